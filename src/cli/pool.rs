//! `pool`: many workers, each key in order.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use super::common::CommonFlags;
use super::consume::{Consume, ConsumeFlags};
use super::lecture;
use super::memory::MemoryLimit;
use super::parse::CommandWords;
use super::settings::{Environment, Setting};
use super::usage::{Usage, require};
use super::value;
use crate::pool::route::LaneKey;

/// The flags of `pool`.
#[derive(Args, Clone, Debug)]
pub(super) struct PoolFlags {
    #[command(flatten)]
    consume: ConsumeFlags,

    /// Records handled at once [env: WORKERS] [default: 8]
    #[arg(short, long, value_name = "N", value_parser = workers)]
    workers: Option<u32>,

    /// Time between two commits [env: COMMIT_INTERVAL] [default: 500ms]
    #[arg(long, value_name = "D", value_parser = value::timeout_not_zero)]
    commit_interval: Option<Duration>,

    /// Unfinished records held per worker
    #[arg(long, value_name = "N", default_value = "1024", value_parser = buffer)]
    buffer: u32,

    /// Bytes that records may hold; unless given 64MiB or an eighth of the cgroup's or machine's memory, if smaller
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    max_memory: Option<u64>,

    /// Records handed out past the first unfinished one of a partition: it bounds repeats after a crash
    #[arg(long, value_name = "N", default_value = "100000", value_parser = max_ahead)]
    max_ahead: u32,

    /// lanes (any idle worker), hash (worker = hash of the key) or partition-hash (of topic, partition and key)
    #[arg(long, value_name = "HOW", default_value = "lanes", value_parser = Dispatch::parse)]
    dispatch: Dispatch,

    /// What is kept in order: key, partition or none
    #[arg(long, value_name = "WHAT", default_value = "key", value_parser = Order::parse)]
    order: Order,

    /// Records without a key: spread (no order) or lane (in order per partition)
    #[arg(long, value_name = "spread|lane", default_value = "spread", value_parser = NullKey::parse)]
    null_key: NullKey,

    /// The key that is kept in order: key (the record's), header:NAME or json:/POINTER into the value
    #[arg(long, value_name = "key|header:NAME|json:/POINTER", default_value = "key", value_parser = lane_key)]
    lane_key: LaneKey,

    /// Warn when a partition's first unfinished record stays so for this long while later ones finish; 0 = never
    #[arg(long, value_name = "D", default_value = "60s", value_parser = value::period)]
    gap_age: Duration,

    /// Serve /metrics and /healthz over HTTP here, such as 127.0.0.1:9400
    #[arg(long, value_name = "IP:PORT", value_parser = value::listen)]
    listen: Option<SocketAddr>,

    #[command(flatten)]
    common: CommonFlags,
}

impl PoolFlags {
    pub(super) fn resolve(
        self,
        environment: &Environment,
        command: Option<CommandWords>,
    ) -> Result<Pool, Usage> {
        let mut layers = self.common.layers(environment)?;
        require!(
            self.dispatch == Dispatch::Lanes || self.order == Order::Key,
            "--dispatch hash and partition-hash keep the order of keys: leave out --order, or write --dispatch lanes"
        );
        require!(
            self.null_key == NullKey::Spread || self.order != Order::None,
            "--order none and --null-key lane contradict each other: leave one of them out"
        );
        require!(
            self.lane_key == LaneKey::Key || (self.dispatch == Dispatch::Lanes && self.order == Order::Key),
            "--lane-key is for --dispatch lanes and --order key: leave one of them out"
        );
        let workers = Setting { flag: "--workers", variable: Some(("WORKERS", workers)), property: None };
        let commit_interval = Setting {
            flag: "--commit-interval",
            variable: Some(("COMMIT_INTERVAL", value::timeout_not_zero)),
            property: None,
        };
        let pool = Pool {
            workers: layers.pick(self.workers, &workers)?.unwrap_or(8),
            commit_interval: layers
                .pick(self.commit_interval, &commit_interval)?
                .unwrap_or(Duration::from_millis(500)),
            buffer: self.buffer,
            max_memory: match self.max_memory {
                Some(bytes) => MemoryLimit { bytes, reason: "--max-memory".to_owned() },
                None => MemoryLimit::default_here(),
            },
            max_ahead: self.max_ahead,
            dispatch: self.dispatch,
            order: self.order,
            null_key: self.null_key,
            lane_key: self.lane_key,
            gap_age: Some(self.gap_age).filter(|age| !age.is_zero()),
            listen: self.listen,
            consume: self.consume.resolve(self.common, command, layers, lecture::GROUP_POOL)?,
        };
        require!(
            !pool.consume.handler.batches_by_key()
                || (pool.dispatch == Dispatch::Lanes && pool.order == Order::Key),
            "--batch-by key is for --dispatch lanes and --order key: leave one of them out"
        );
        Ok(pool)
    }
}

fn workers(text: &str) -> Result<u32, String> {
    value::whole_u32(text, 1, 10_000)
}

fn buffer(text: &str) -> Result<u32, String> {
    value::whole_u32(text, 1, 100_000)
}

fn max_ahead(text: &str) -> Result<u32, String> {
    value::whole_u32(text, 1, 100_000_000)
}

fn lane_key(text: &str) -> Result<LaneKey, String> {
    let wrong = || format!("'{text}' is not one of key, header:NAME, json:/POINTER");
    match text.split_once(':') {
        None if text == "key" => Ok(LaneKey::Key),
        Some(("header", name)) if !name.is_empty() => Ok(LaneKey::Header(name.into())),
        Some(("json", pointer)) => {
            // RFC 6901: a ~ stands before 0 or 1 only.
            let escaped = pointer.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
            if pointer.starts_with('/') && escaped {
                Ok(LaneKey::Json(pointer.to_owned()))
            } else {
                Err(format!(
                    "'{pointer}' is not a JSON pointer: write it as /customer/id, a ~ as ~0, a / as ~1"
                ))
            }
        }
        _ => Err(wrong()),
    }
}

fn memory(text: &str) -> Result<u64, String> {
    match value::size(text)? {
        0 => Err("it must be 1 byte or more, such as 64MiB".to_owned()),
        bytes => Ok(bytes),
    }
}

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
    /// What counts as a record's key; `Key` unless `dispatch` is `Lanes` and `order` is `Key`.
    pub lane_key: LaneKey,
    /// When to warn of a partition's first unfinished record.
    pub gap_age: Option<Duration>,
    /// Where metrics are served.
    pub listen: Option<SocketAddr>,
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

impl Dispatch {
    fn parse(text: &str) -> Result<Self, String> {
        let words = [
            ("lanes", Dispatch::Lanes),
            ("hash", Dispatch::Hash),
            ("partition-hash", Dispatch::PartitionHash),
        ];
        value::word(text, &words)
    }
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

impl Order {
    fn parse(text: &str) -> Result<Self, String> {
        value::word(text, &[("key", Order::Key), ("partition", Order::Partition), ("none", Order::None)])
    }
}

/// What becomes of records without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NullKey {
    /// No order among them.
    Spread,
    /// One lane per partition; with `Dispatch::Hash`, worker 0.
    Lane,
}

impl NullKey {
    fn parse(text: &str) -> Result<Self, String> {
        value::word(text, &[("spread", NullKey::Spread), ("lane", NullKey::Lane)])
    }
}
