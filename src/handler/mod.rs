//! What is done with a record.

pub mod base64;
pub mod format;

use std::time::Duration;

use format::Format;

/// The handler that the command line chose: sleep, print, or sleep and then print. At least one is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerConfig {
    /// `--work-delay`.
    pub delay: Option<Delay>,
    /// `--print`.
    pub print: Option<Format>,
}

/// How long `--work-delay` sleeps: drawn uniformly from `min..=max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// The shortest sleep.
    pub min: Duration,
    /// The longest sleep; not below `min`.
    pub max: Duration,
}
