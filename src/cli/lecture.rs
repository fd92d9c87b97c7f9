//! The lecture's defaults, which hold for its topic alone.
//!
//! With any other topic a group, a handler and a number of records must be said, so that nobody's records are slept
//! through and committed, or a topic filled, by mistake.

/// The topic of the lecture.
pub(super) const TOPIC: &str = "lecture-03-05-events";
/// Group of `sequential`, and what `lag` watches.
pub(super) const GROUP_SEQUENTIAL: &str = "lecture-03-05-sequential";
/// Group of `pool`.
pub(super) const GROUP_POOL: &str = "lecture-03-05-pool";
/// `--work-delay`.
pub(super) const WORK_DELAY: &str = "10ms";
/// `--messages`.
pub(super) const MESSAGES: u64 = 100_000;
