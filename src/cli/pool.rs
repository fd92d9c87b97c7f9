//! `pool`: many workers, each key in order.

use std::time::Duration;

use super::consume::Consume;
use super::memory::MemoryLimit;

/// `pool`, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// What both consumers need.
    pub consume: Consume,
    /// Records handled at once; at least 1.
    pub workers: u32,
    /// Time between two commits; not zero.
    pub commit_interval: Duration,
    /// Unfinished records held per worker; at least 1.
    pub buffer: u32,
    /// Bytes held.
    pub max_memory: MemoryLimit,
    /// Records handed out past the first unfinished one, per partition; at least 1.
    pub max_ahead: u32,
    /// How a record finds its worker.
    pub dispatch: Dispatch,
    /// What is kept in order; `Key` unless `dispatch` is `Lanes`.
    pub order: Order,
    /// Whether records without a key keep an order.
    pub null_key: NullKey,
}

/// How a record finds its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// Any idle worker takes the next ready lane; a lane is (topic, partition, key).
    Lanes,
    /// Worker = FNV-1a (32 bit) of the key, modulo workers.
    Hash,
    /// The same over topic, partition and key.
    PartitionHash,
}

/// What is kept in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Records of one key.
    Key,
    /// Records of one partition.
    Partition,
    /// Nothing.
    None,
}

/// What becomes of records without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NullKey {
    /// No order among them.
    Spread,
    /// One lane per partition; with `Dispatch::Hash`, worker 0.
    Lane,
}
