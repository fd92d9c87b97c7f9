//! A usage error: what is wrong, and what would be right.

use std::fmt;

/// Why nothing was started; ends as exit 64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage(String);

impl Usage {
    /// `message` says what is wrong and what would be right, without a full stop.
    pub fn new(message: impl Into<String>) -> Self {
        Usage(message.into())
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Fails with a message unless the condition holds.
macro_rules! require {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::cli::usage::Usage::new(format!($($message)+)));
        }
    };
}
pub(super) use require;
