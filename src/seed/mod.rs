//! `seed`: fills a topic with records that can be made again.
//!
//! One thread makes records in slices and lets the network loop turn between them, so the loop is never called per
//! record and nothing is allocated per record. A full buffer stops the making, never the loop. Every record that was
//! made ends up in the counts, as sent or as failed.

mod latency;
pub(crate) mod records;

use std::io;
use std::num::NonZeroU32;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keylane_protocol::client::make_topic::MakeTopic;
use keylane_protocol::client::net::Net;
use keylane_protocol::client::producer::{Producer, ProducerNote};
use keylane_protocol::error::{Class, Error, Fault};
use keylane_protocol::metadata::TopicPartition;
use keylane_protocol::produce::{self, AppendError, ProduceConfig, Slot};
use keylane_protocol::records::Codec;

use crate::cli::{self, Seed, Verbosity};
use crate::driver::Driver;
use crate::driver::signals::{SignalCount, Source};
use crate::exit::Exit;
use crate::pool::role::{net_config, random_seed};
use crate::report::Report;

use latency::Latency;
use records::{Keys, Values};

/// Records are made in slices of about this many bytes between two turns of the loop: a fraction of a millisecond.
const SLICE_BYTES: u64 = 256 << 10;
/// Unpacked records that wait or are out.
const BUFFERED_BYTES_MAX: usize = 16 << 20;
const REQUEST_BYTES_MAX: usize = 1 << 20;
const REQUESTS_IN_FLIGHT_MAX: usize = 2;
const STATS_INTERVAL: Duration = Duration::from_secs(1);
/// With `--rate`, the loop sleeps at least this long between two slices.
const RATE_TICK: Duration = Duration::from_millis(1);
/// Reasons of failed records that are told; the rest is counted.
const REASONS_MAX: usize = 10;

/// Fills the topic. Everything but the `done:` line goes to stderr.
pub fn run(config: &Seed, report: &Report, signals: &Source) -> Exit {
    let codec = codec(config.compression);
    if !codec.is_supported() {
        report.error(format!("this build is without {codec} compression; choose another --compression"));
        return Exit::Usage;
    }
    match Run::new(config, report, codec, signals).and_then(Run::run) {
        Ok(exit) => exit,
        Err(error) => {
            report.error(format!("the network loop: {error}"));
            Exit::Bug
        }
    }
}

fn codec(compression: cli::Compression) -> Codec {
    match compression {
        cli::Compression::None => Codec::None,
        cli::Compression::Lz4 => Codec::Lz4,
        cli::Compression::Gzip => Codec::Gzip,
        cli::Compression::Snappy => Codec::Snappy,
        cli::Compression::Zstd => Codec::Zstd,
    }
}

fn produce_config(config: &Seed, codec: Codec) -> ProduceConfig {
    ProduceConfig {
        codec,
        acks: match config.acks {
            cli::Acks::All => produce::Acks::All,
            cli::Acks::Leader => produce::Acks::Leader,
            cli::Acks::None => produce::Acks::None,
        },
        linger: config.linger,
        batch_bytes_max: config.batch_bytes as usize,
        buffered_bytes_max: BUFFERED_BYTES_MAX,
        request_bytes_max: REQUEST_BYTES_MAX,
        requests_in_flight_max: REQUESTS_IN_FLIGHT_MAX,
        delivery_timeout: config.delivery_timeout,
        request_timeout: config.common.request_timeout,
        seed: u64::from(std::process::id()),
    }
}

/// How the making of records ended, or may go on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Making {
    /// There is more to make at once.
    More,
    /// The buffer is full.
    Full,
    /// `--rate` allows the next record then.
    At(Duration),
    /// All are made.
    Done,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    made: u64,
    sent: u64,
    failed: u64,
    sent_bytes: u64,
}

struct Run<'a> {
    config: &'a Seed,
    report: &'a Report,
    driver: Driver,
    signals: SignalCount,
    producer: Producer,
    values: Values,
    keys: Keys,
    slots: Vec<Slot>,
    counts: Counts,
    latency: Latency,
    /// When the first record was made, and when the last one resolved.
    began_at: Duration,
    ended_at: Duration,
    /// What was told at the last `--stats`.
    told: Counts,
    told_at: Duration,
    reasons: Vec<String>,
    /// What makes going on pointless.
    fatal: Option<Error>,
}

impl<'a> Run<'a> {
    fn new(config: &'a Seed, report: &'a Report, codec: Codec, signals: &Source) -> io::Result<Self> {
        let driver = Driver::new()?;
        let signals = signals.watch(driver.waker())?;
        let mut producer =
            Producer::new(Net::new(net_config(&config.common, random_seed())), produce_config(config, codec));
        let partitions = i32::try_from(config.partitions).unwrap_or(i32::MAX);
        let replication = i16::try_from(config.replication).unwrap_or(i16::MAX);
        producer.make_topic(MakeTopic::new(&config.topic, partitions, replication), driver.now());
        Ok(Run {
            values: Values::new(config.seed, config.size_bytes as usize),
            // Made again once the number of partitions is known.
            keys: Keys::new(&config.key_prefix, config.keys, config.skew, config.seed, NonZeroU32::MIN),
            slots: Vec::new(),
            counts: Counts::default(),
            latency: Latency::new(),
            began_at: Duration::ZERO,
            ended_at: Duration::ZERO,
            told: Counts::default(),
            told_at: Duration::ZERO,
            reasons: Vec::new(),
            fatal: None,
            config,
            report,
            driver,
            signals,
            producer,
        })
    }

    fn run(mut self) -> io::Result<Exit> {
        let exit = match self.wait_for_topic()? {
            Some(exit) => exit,
            None => {
                self.fill()?;
                self.drain()?
            }
        };
        Ok(self.tell_end(exit))
    }

    /// Connects and makes the topic. Returns the exit if that is not to be.
    fn wait_for_topic(&mut self) -> io::Result<Option<Exit>> {
        let limit = self.config.common.request_timeout.min(self.config.delivery_timeout);
        loop {
            if let Some((partitions, made)) = self.producer.topic_partitions() {
                return Ok(self.begin(partitions, made));
            }
            if let Some(error) = self.producer.failure() {
                self.report.error(error);
                return Ok(Some(exit_of(error)));
            }
            if self.signals.count() > 0 {
                return Ok(Some(self.stopped()));
            }
            if self.driver.now() >= limit {
                let why = match self.producer.net().last_error() {
                    Some(error) => error.to_string(),
                    None => format!("topic {} has a partition without a leader", self.config.topic),
                };
                self.report.error(format!("nothing could be sent within {} ms: {why}", limit.as_millis()));
                return Ok(Some(Exit::Unavailable));
            }
            self.driver.turn(&mut self.producer, Some(limit))?;
            self.tell_notes();
        }
    }

    fn begin(&mut self, partitions: u32, made: bool) -> Option<Exit> {
        let topic = &self.config.topic;
        let count = NonZeroU32::new(partitions)?;
        if made {
            self.report.note(format!("made topic {topic} with {partitions} partitions"));
        } else if partitions != self.config.partitions {
            self.report.note(format!("topic {topic} is there already, with {partitions} partitions"));
        }
        let config = self.config;
        self.keys = Keys::new(&config.key_prefix, config.keys, config.skew, config.seed, count);
        let at = TopicPartition::new(topic.as_str(), 0);
        self.slots = (0..partitions as i32)
            .map(|partition| self.producer.slot(&TopicPartition { partition, ..at.clone() }))
            .collect();
        self.began_at = self.driver.now();
        self.ended_at = self.began_at;
        self.told_at = self.began_at;
        None
    }

    /// Makes records until all are made, a signal comes or nothing can be sent any more.
    fn fill(&mut self) -> io::Result<()> {
        loop {
            let making = self.make_slice();
            if making == Making::Done || self.signals.count() > 0 || self.fatal.is_some() {
                return Ok(());
            }
            let stats_at = self.told_at + STATS_INTERVAL;
            let deadline = match making {
                Making::More | Making::Done => Duration::ZERO,
                Making::Full => stats_at,
                Making::At(due) => stats_at.min(due),
            };
            self.turn(deadline)?;
        }
    }

    /// Lets everything that was made go out at once, and waits for it.
    fn drain(&mut self) -> io::Result<Exit> {
        let stopped = self.signals.count() > 0;
        self.producer.set_flushing(true);
        if stopped && !self.producer.is_empty() {
            let left = self.counts.made - self.counts.sent - self.counts.failed;
            let seconds = self.config.delivery_timeout.as_secs();
            let text = format!("draining: {left} records, {seconds}s left; signal again to stop now");
            self.report.stamped(Verbosity::Normal, "draining", text, vec![("records", left.into())]);
        }
        while !self.producer.is_empty() && self.signals.count() < 2 && self.fatal.is_none() {
            self.turn(self.told_at + STATS_INTERVAL)?;
        }
        if self.signals.count() >= 2 || self.fatal.is_some() {
            self.counts.failed = self.counts.made - self.counts.sent;
        }
        Ok(match &self.fatal {
            Some(error) => exit_of(error),
            None if stopped || self.signals.count() > 0 => self.stopped(),
            None if self.counts.failed > 0 => Exit::Partly,
            None => Exit::Done,
        })
    }

    /// The exit after a signal.
    fn stopped(&self) -> Exit {
        let reached = self.config.messages.is_some_and(|messages| self.counts.made >= messages);
        match (self.signals.count(), self.signals.last()) {
            (2.., signal) => Exit::of_signal(signal),
            _ if self.config.messages.is_some() && !reached => Exit::Unfinished,
            _ if self.counts.failed > 0 => Exit::Partly,
            _ => Exit::Done,
        }
    }

    /// Makes records for one slice.
    fn make_slice(&mut self) -> Making {
        let now = self.driver.now();
        let timestamp_ms = wall_clock_ms();
        let end = self.config.messages.unwrap_or(u64::MAX);
        let allowed = match self.config.rate {
            None => end,
            Some(rate) => {
                let elapsed = (now - self.began_at).as_secs_f64();
                end.min((elapsed * rate as f64) as u64 + 1)
            }
        };
        let slice = (SLICE_BYTES / (u64::from(self.config.size_bytes) + 16)).max(1);
        let stop = allowed.min(self.counts.made + slice);
        while self.counts.made < stop {
            let index = self.counts.made;
            let (key, partition) = self.keys.make(index);
            let value = self.values.make(index);
            let slot = self.slots[partition as usize];
            match self.producer.append(slot, Some(key), Some(value), &[], timestamp_ms, now) {
                Ok(_) => self.counts.made += 1,
                Err(AppendError::Full) => return Making::Full,
                Err(AppendError::Record(error)) => {
                    self.fatal = Some(Error::new(Fault::Policy(format!("--size is too large: {error}"))));
                    return Making::Done;
                }
            }
        }
        match self.config.rate {
            _ if self.counts.made >= end => Making::Done,
            Some(rate) if self.counts.made >= allowed => {
                let due = self.began_at + Duration::from_secs_f64(self.counts.made as f64 / rate as f64);
                Making::At(due.max(now + RATE_TICK))
            }
            _ => Making::More,
        }
    }

    fn turn(&mut self, deadline: Duration) -> io::Result<()> {
        self.driver.turn(&mut self.producer, Some(deadline))?;
        let now = self.driver.now();
        self.take_deliveries(now);
        if let Some(error) = self.producer.failure() {
            self.fatal.get_or_insert_with(|| error.clone());
        }
        self.tell_notes();
        if now >= self.told_at + STATS_INTERVAL {
            self.tell_stats(now);
        }
        Ok(())
    }

    fn take_deliveries(&mut self, now: Duration) {
        let value_bytes = u64::from(self.config.size_bytes);
        while let Some(delivery) = self.producer.next_delivery() {
            let count = u64::from(delivery.count);
            self.ended_at = now;
            match delivery.result {
                Ok(_) => {
                    self.counts.sent += count;
                    self.counts.sent_bytes += count * value_bytes;
                    self.latency.add_batch(count, delivery.first_at, delivery.last_at, now);
                }
                Err(error) => {
                    self.counts.failed += count;
                    self.tell_reason(&error);
                    // What is forbidden now is forbidden for the rest.
                    if error.class() == Class::Denied {
                        self.fatal.get_or_insert(error);
                    }
                }
            }
        }
    }

    fn tell_reason(&mut self, error: &Error) {
        let reason = error.to_string();
        if self.reasons.len() < REASONS_MAX && !self.reasons.contains(&reason) {
            self.report.error(&reason);
            self.reasons.push(reason);
        }
    }

    fn tell_notes(&mut self) {
        while let Some(note) = self.producer.next_note() {
            match note {
                ProducerNote::Down(broker, why) => {
                    self.report.warning(format!("broker {broker}: {why}; trying again"));
                }
                ProducerNote::Up(broker) => self.report.note(format!("broker {broker} answers again")),
            }
        }
    }

    fn tell_stats(&mut self, now: Duration) {
        let seconds = (now - self.told_at).as_secs_f64();
        let rate = (self.counts.sent - self.told.sent) as f64 / seconds;
        let mb = mebibytes(self.counts.sent_bytes - self.told.sent_bytes) / seconds;
        let (sent, failed) = (self.counts.sent, self.counts.failed);
        let waiting = self.counts.made - sent - failed;
        let text = format!("sent={sent} failed={failed} rate={rate:.0}/s mb-per-s={mb:.2} waiting={waiting}");
        let fields = vec![
            ("sent", sent.into()),
            ("failed", failed.into()),
            ("rate", rounded(rate, 0)),
            ("mb_per_s", rounded(mb, 2)),
            ("waiting", waiting.into()),
        ];
        self.report.stamped(Verbosity::Normal, "stats", text, fields);
        self.told = self.counts;
        self.told_at = now;
    }

    /// The `done:` line. Seconds run from the first record made to the last one resolved.
    fn tell_end(&mut self, exit: Exit) -> Exit {
        let Counts { sent, failed, sent_bytes, .. } = self.counts;
        if let Some(error) = &self.fatal
            && !self.reasons.contains(&error.to_string())
        {
            self.report.error(error);
        }
        let seconds = (self.ended_at - self.began_at).as_secs_f64();
        let per_second = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let (rate, mb) = (per_second(sent as f64), per_second(mebibytes(sent_bytes)));
        let latency = self.latency.summary();
        let text = format!(
            "done: sent={sent} failed={failed} seconds={seconds:.3} rate={rate:.0}/s mb-per-s={mb:.2} \
             latency-avg-ms={:.2} latency-p50-ms={:.2} latency-p95-ms={:.2} latency-p99-ms={:.2} \
             latency-max-ms={:.2}",
            latency.avg_ms, latency.p50_ms, latency.p95_ms, latency.p99_ms, latency.max_ms
        );
        let fields = vec![
            ("sent", sent.into()),
            ("failed", failed.into()),
            ("seconds", rounded(seconds, 3)),
            ("rate", rounded(rate, 0)),
            ("mb_per_s", rounded(mb, 2)),
            ("latency_avg_ms", rounded(latency.avg_ms, 2)),
            ("latency_p50_ms", rounded(latency.p50_ms, 2)),
            ("latency_p95_ms", rounded(latency.p95_ms, 2)),
            ("latency_p99_ms", rounded(latency.p99_ms, 2)),
            ("latency_max_ms", rounded(latency.max_ms, 2)),
        ];
        match self.report.answer("done", text, fields) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                self.report.error(format!("cannot write to stdout: {error}"));
                Exit::Output
            }
            _ => exit,
        }
    }
}

/// The exit for an error that ends the run.
fn exit_of(error: &Error) -> Exit {
    match error.fault {
        // A record that no batch can hold.
        Fault::Policy(_) => Exit::Partly,
        _ => Exit::of(error),
    }
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

fn rounded(value: f64, digits: i32) -> serde_json::Value {
    let scale = 10f64.powi(digits);
    if digits == 0 { (value.round() as u64).into() } else { ((value * scale).round() / scale).into() }
}

fn wall_clock_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
