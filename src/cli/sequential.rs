//! `sequential`: the one-thread baseline.

use super::consume::Consume;

/// `sequential`, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequential {
    /// What both consumers need; one topic.
    pub consume: Consume,
    /// Records between two commits; at least 1.
    pub max_poll_records: u32,
}
