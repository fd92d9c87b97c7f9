//! Dead letters after the fact: `dlq list|replay`.

pub(crate) mod letter;
