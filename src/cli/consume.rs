//! What `sequential` and `pool` share: topics, group, handler, where to start and when to stop.

use std::time::Duration;

use super::common::Common;
use crate::handler::HandlerConfig;

/// What both consumers need, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Consume {
    /// What every subcommand needs.
    pub common: Common,
    /// Topics to read, without repetition; never empty, and one only for `sequential`.
    pub topics: Vec<String>,
    /// The consumer group.
    pub group: String,
    /// What is done with a record.
    pub handler: HandlerConfig,
    /// Where a partition without a commit starts.
    pub from: From,
    /// Stop when every partition has reached the end it had when it was first assigned.
    pub exit_at_end: bool,
    /// Stop when the first that many delivered records are finished; at least 1.
    pub records_max: Option<u64>,
    /// Limit of the drain after a signal.
    pub drain_timeout: Duration,
    /// Limit of the drain of a revoked partition; below `max_poll_interval`.
    pub revoke_timeout: Duration,
    /// Assignors in order of preference, without repetition; never empty.
    pub assignors: Vec<AssignorName>,
    /// Static membership.
    pub instance_id: Option<String>,
    /// Time between progress lines; `None` = none.
    pub stats: Option<Duration>,
    /// Which records are delivered, and which end `exit_at_end` means.
    pub isolation: Isolation,
    /// `auto.offset.reset`: what to do when a position is out of range.
    pub out_of_range: OutOfRange,
    /// `session.timeout.ms`.
    pub session_timeout: Duration,
    /// `heartbeat.interval.ms`; below `session_timeout`.
    pub heartbeat_interval: Duration,
    /// `max.poll.interval.ms`: the rebalance timeout of JoinGroup.
    pub max_poll_interval: Duration,
    /// `fetch.max.bytes`; `None` = derive it from the memory limit.
    pub fetch_max_bytes: Option<u32>,
    /// `max.partition.fetch.bytes`.
    pub max_partition_fetch_bytes: u32,
    /// `fetch.max.wait.ms`; below the request timeout.
    pub fetch_max_wait: Duration,
}

/// Where a partition without a commit starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// At the log's start.
    Earliest,
    /// At the log's end.
    Latest,
    /// At the first record whose timestamp is at least this many ms since 1970.
    Timestamp(i64),
}

/// What to do when a position is below the log's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfRange {
    /// Go to the log's start.
    Earliest,
    /// Go to the log's end.
    Latest,
    /// Stop.
    Fail,
}

/// `isolation.level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Records of open and aborted transactions too.
    ReadUncommitted,
    /// Up to the last stable offset, without aborted records.
    ReadCommitted,
}

impl Isolation {
    /// The number on the wire.
    pub fn code(self) -> i8 {
        match self {
            Isolation::ReadUncommitted => 0,
            Isolation::ReadCommitted => 1,
        }
    }
}

/// An assignor by the name that travels in JoinGroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssignorName {
    /// Java's RangeAssignor.
    Range,
    /// Java's RoundRobinAssignor.
    RoundRobin,
    /// Java's StickyAssignor.
    Sticky,
    /// Java's CooperativeStickyAssignor.
    CooperativeSticky,
}

impl AssignorName {
    /// All of them, as named on the wire.
    pub const ALL: [(&'static str, AssignorName); 4] = [
        ("range", AssignorName::Range),
        ("roundrobin", AssignorName::RoundRobin),
        ("sticky", AssignorName::Sticky),
        ("cooperative-sticky", AssignorName::CooperativeSticky),
    ];

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            AssignorName::Range => "range",
            AssignorName::RoundRobin => "roundrobin",
            AssignorName::Sticky => "sticky",
            AssignorName::CooperativeSticky => "cooperative-sticky",
        }
    }
}
