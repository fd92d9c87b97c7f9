//! What there is to see at one moment, as values.

use std::time::Duration;

/// The acts, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Act {
    /// The producer begins.
    Opening,
    /// One thread falls behind.
    Behind,
    /// It is stopped; the pool joins.
    TakingOver,
    /// The pool is faster than the producer.
    CatchingUp,
    /// Nothing waits any more.
    KeepingUp,
    /// The last commits, or an end before the end.
    Closing,
    /// Nothing runs any more.
    Over,
}

/// One partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Partition {
    /// How many keys fall to it.
    pub(super) keys: u64,
    /// `None`: not known yet.
    pub(super) lag: Option<i64>,
}

/// The total lag at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) at: Duration,
    pub(super) lag: i64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) at: Duration,
    pub(super) text: String,
}

/// A line of the summary: a word, and what there is to say about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) name: &'static str,
    pub(super) text: String,
    /// Whether it is bad news.
    pub(super) bad: bool,
}

/// One moment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scene {
    pub(super) act: Act,
    pub(super) elapsed: Duration,
    pub(super) expected: Duration,
    /// Where the broker listens.
    pub(super) broker: String,
    pub(super) group: &'static str,
    /// What is shown, in a sentence.
    pub(super) title: String,
    /// The consumer that runs.
    pub(super) command: String,
    pub(super) partitions: Vec<Partition>,
    /// The largest lag of a partition that is to be expected, or was there.
    pub(super) partition_lag_max: i64,
    pub(super) history: Vec<Sample>,
    /// The largest total that is to be expected, or was there.
    pub(super) lag_max: i64,
    /// When the pool took over.
    pub(super) taken_over_at: Option<Duration>,
    /// Records in all.
    pub(super) produced: u64,
    /// Records a second.
    pub(super) produced_rate: u64,
    /// Different records finished.
    pub(super) finished: u64,
    /// Records a second.
    pub(super) finished_rate: u64,
    /// The largest rate that is to be expected.
    pub(super) rate_max: u64,
    /// Workers of the pool.
    pub(super) pool_workers: u32,
    /// Workers of the consumer that runs; 0 if none does.
    pub(super) workers: u32,
    /// Of them with a record.
    pub(super) busy: u32,
    /// For each key whether a record of it is in work.
    pub(super) keys: Vec<bool>,
    /// The consumer's word for what limits it, and what it means.
    pub(super) limit: Option<(String, &'static str)>,
    pub(super) events: Vec<Event>,
    /// Events that were before these.
    pub(super) events_before: usize,
    /// At the end.
    pub(super) summary: Vec<Point>,
    /// Whether the end is a bad one.
    pub(super) failed: bool,
}

impl Scene {
    /// The lag of all partitions that are known.
    pub(super) fn lag(&self) -> Option<i64> {
        let known: Vec<i64> = self.partitions.iter().filter_map(|partition| partition.lag).collect();
        (!known.is_empty()).then(|| known.iter().sum())
    }
}
