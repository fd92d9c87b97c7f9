//! `seed`: fills a topic.

use std::time::Duration;

use super::common::Common;

/// `seed`, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Seed {
    /// What every subcommand needs.
    pub common: Common,
    /// Made with `partitions` and `replication` if it is missing.
    pub topic: String,
    /// Records to send; `None` = until stopped.
    pub messages: Option<u64>,
    /// Key of record i = `key_prefix` + (i mod `keys`); at least 1.
    pub keys: u64,
    /// Bytes of each value.
    pub size_bytes: u32,
    /// Codec of the batches.
    pub compression: Compression,
    /// Records a second; `None` = unlimited.
    pub rate: Option<u64>,
    /// Exponent of the Zipf distribution over the keys; 0 = the keys in turn.
    pub skew: f64,
    /// What every key starts with.
    pub key_prefix: String,
    /// Partitions of a topic that must be made.
    pub partitions: u32,
    /// Replicas of a topic that must be made.
    pub replication: u16,
    /// What the leader waits for.
    pub acks: Acks,
    /// How long a batch may wait for more records.
    pub linger: Duration,
    /// Bytes of a batch before compression.
    pub batch_bytes: u32,
    /// From the record's hand-over to its failure.
    pub delivery_timeout: Duration,
    /// Seed of the generated text.
    pub seed: u64,
}

/// Codec of produced batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not compressed.
    None,
    /// LZ4 frames.
    Lz4,
    /// gzip.
    Gzip,
    /// Snappy.
    Snappy,
    /// Zstandard.
    Zstd,
}

/// What a produce request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// All in-sync replicas; idempotent.
    All,
    /// The leader; not idempotent.
    Leader,
    /// Nothing; not idempotent.
    None,
}

impl Acks {
    /// The number on the wire.
    pub fn code(self) -> i16 {
        match self {
            Acks::All => -1,
            Acks::Leader => 1,
            Acks::None => 0,
        }
    }
}
