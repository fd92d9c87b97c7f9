//! The classic consumer group protocol: membership, assignors and the bytes members exchange.
