//! `seed`: fills a topic.

use std::time::Duration;

use clap::Args;

use super::common::{Common, CommonFlags};
use super::lecture;
use super::settings::{Environment, Setting};
use super::usage::{Usage, require};
use super::value;

/// The flags of `seed`.
#[derive(Args, Clone, Debug)]
pub(super) struct SeedFlags {
    /// Topic to fill; it is made if it is missing
    #[arg(short, long, value_name = "TOPIC", default_value = lecture::TOPIC, value_parser = value::topic)]
    topic: String,

    /// Records, 0 = until stopped; needed for any topic but the lecture's [env: SEED_MESSAGES] [default: 100000]
    #[arg(short = 'n', long, value_name = "N", value_parser = messages)]
    messages: Option<u64>,

    /// Number of different keys; record i has key PREFIX + (i mod K) [env: SEED_KEYS] [default: 32]
    #[arg(short, long, value_name = "K", value_parser = keys)]
    keys: Option<u64>,

    /// Bytes of each value
    #[arg(long, value_name = "SIZE", default_value = "100", value_parser = value_size)]
    size: u32,

    /// none, lz4, gzip, snappy or zstd [default: lz4]
    #[arg(short = 'z', long, value_name = "CODEC", value_parser = Compression::parse)]
    compression: Option<Compression>,

    /// Records a second, 0 = unlimited
    #[arg(long, value_name = "N", default_value = "0", value_parser = rate)]
    rate: u64,

    /// Exponent of a Zipf distribution over the keys, 0 = each key in turn
    #[arg(long, value_name = "X", default_value = "0", value_parser = skew)]
    skew: f64,

    /// What every key starts with
    #[arg(long, value_name = "PREFIX", default_value = "key-")]
    key_prefix: String,

    /// Partitions of a topic that must be made
    #[arg(long, value_name = "N", default_value = "6", value_parser = partitions)]
    partitions: u32,

    /// Replicas of a topic that must be made
    #[arg(long, value_name = "N", default_value = "1", value_parser = replication)]
    replication: u16,

    /// all, or 1 or 0: not idempotent [default: all]
    #[arg(long, value_name = "all|1|0", value_parser = Acks::parse)]
    acks: Option<Acks>,

    /// How long a batch waits for more records [default: 5ms]
    #[arg(long, value_name = "D", value_parser = value::timeout)]
    linger: Option<Duration>,

    /// Bytes of a batch before compression
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = batch_size)]
    batch_bytes: u32,

    /// How long a record may take until it counts as failed
    #[arg(long, value_name = "D", default_value = "30s", value_parser = value::timeout_not_zero)]
    delivery_timeout: Duration,

    /// Seed of the generated text
    #[arg(long, value_name = "N", default_value = "1", value_parser = seed)]
    seed: u64,

    #[command(flatten)]
    common: CommonFlags,
}

impl SeedFlags {
    pub(super) fn resolve(self, environment: &Environment) -> Result<Seed, Usage> {
        let mut layers = self.common.layers(environment)?;
        let messages_setting =
            Setting { flag: "--messages", variable: Some(("SEED_MESSAGES", messages)), property: None };
        let messages = match layers.pick(self.messages, &messages_setting)? {
            Some(messages) => messages,
            None if self.topic == lecture::TOPIC => lecture::MESSAGES,
            None => {
                return Err(Usage::new(format!(
                    "topic {} needs a number of records: add -n N, or -n 0 to send until stopped (the default is \
                     for topic {} alone)",
                    self.topic,
                    lecture::TOPIC
                )));
            }
        };
        let keys = Setting { flag: "--keys", variable: Some(("SEED_KEYS", keys)), property: None };
        let compression = Setting {
            flag: "--compression",
            variable: None,
            property: Some(("compression.type", Compression::parse)),
        };
        let acks = Setting { flag: "--acks", variable: None, property: Some(("acks", Acks::parse)) };
        let linger =
            Setting { flag: "--linger", variable: None, property: Some(("linger.ms", value::milliseconds)) };
        let seed = Seed {
            topic: self.topic,
            messages: Some(messages).filter(|messages| *messages > 0),
            keys: layers.pick(self.keys, &keys)?.unwrap_or(32),
            size_bytes: self.size,
            compression: layers.pick(self.compression, &compression)?.unwrap_or(Compression::Lz4),
            rate: Some(self.rate).filter(|rate| *rate > 0),
            skew: self.skew,
            key_prefix: self.key_prefix,
            partitions: self.partitions,
            replication: self.replication,
            acks: layers.pick(self.acks, &acks)?.unwrap_or(Acks::All),
            linger: layers.pick(self.linger, &linger)?.unwrap_or(Duration::from_millis(5)),
            batch_bytes: self.batch_bytes,
            delivery_timeout: self.delivery_timeout,
            seed: self.seed,
            common: self.common.resolve(layers)?,
        };
        require!(
            seed.linger < seed.delivery_timeout,
            "--linger {}ms must be below --delivery-timeout {}ms",
            seed.linger.as_millis(),
            seed.delivery_timeout.as_millis()
        );
        Ok(seed)
    }
}

/// The largest value and the largest batch: what brokers take at most in practice.
const RECORD_BYTES_MAX: u32 = 64 << 20;

fn messages(text: &str) -> Result<u64, String> {
    value::whole(text, 0, i64::MAX as u64)
}

fn keys(text: &str) -> Result<u64, String> {
    value::whole(text, 1, 1_000_000_000)
}

fn value_size(text: &str) -> Result<u32, String> {
    value::size_within(text, 0, RECORD_BYTES_MAX)
}

fn batch_size(text: &str) -> Result<u32, String> {
    value::size_within(text, 1, RECORD_BYTES_MAX)
}

fn rate(text: &str) -> Result<u64, String> {
    value::whole(text, 0, 1_000_000_000)
}

fn seed(text: &str) -> Result<u64, String> {
    value::whole(text, 0, u64::MAX)
}

fn skew(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(skew) if (0.0..=10.0).contains(&skew) => Ok(skew),
        _ => Err(format!("'{text}' is not a number from 0 to 10")),
    }
}

/// Partitions of a new topic.
pub(super) fn partitions(text: &str) -> Result<u32, String> {
    value::whole_u32(text, 1, 100_000)
}

/// Replicas of a new topic: 16 bits with a sign on the wire.
pub(super) fn replication(text: &str) -> Result<u16, String> {
    value::whole(text, 1, 32_767)
        .and_then(|number| u16::try_from(number).map_err(|_| format!("'{text}' is too large")))
}

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

impl Compression {
    fn parse(text: &str) -> Result<Self, String> {
        let words = [
            ("none", Compression::None),
            ("lz4", Compression::Lz4),
            ("gzip", Compression::Gzip),
            ("snappy", Compression::Snappy),
            ("zstd", Compression::Zstd),
        ];
        value::word(text, &words)
    }
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
    fn parse(text: &str) -> Result<Self, String> {
        value::word(text, &[("all", Acks::All), ("1", Acks::Leader), ("0", Acks::None), ("-1", Acks::All)])
    }

    /// The number on the wire.
    pub fn code(self) -> i16 {
        match self {
            Acks::All => -1,
            Acks::Leader => 1,
            Acks::None => 0,
        }
    }
}
