//! What is done with a record.

pub mod base64;
pub mod bell;
pub mod child;
pub mod environment;
pub mod exec;
pub mod format;
pub mod joblog;
pub mod lines;
pub mod outcome;
pub mod pipe;
pub mod policy;
pub mod template;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use keylane_protocol::records::{Headers, Record};

use crate::pool::run::RunRecord;
use crate::pool::shared::RecordBatch;
use format::{Format, RecordView};
use outcome::ExitCodes;

/// The handler that the command line chose: sleep, print, or sleep and then print; or a command alone. At least one is
/// there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandlerConfig {
    /// `--work-delay`.
    pub delay: Option<Delay>,
    /// `--print`.
    pub print: Option<Format>,
    /// `--fsync`: stdout, if it is a file, is synced before each commit.
    pub fsync: bool,
    /// `--exec`, `--shell` or `--pipe`.
    pub command: Option<CommandConfig>,
}

/// A handler that is a program: it can fail, see [`outcome`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandConfig {
    /// Program and arguments, not empty; `--shell TEXT` is `/bin/sh -c TEXT`.
    pub words: Vec<OsString>,
    /// How it is fed.
    pub mode: CommandMode,
    /// Whether `{}`, `{key}` and so on are replaced in arguments: not with `--no-replace`, `--shell` or `--pipe`.
    pub replace: bool,
    /// `--tag`: its lines begin with topic/partition@offset.
    pub tag: bool,
    /// `--timeout`: the longest try.
    pub timeout: Option<Duration>,
    /// What its exit codes mean.
    pub exits: ExitCodes,
}

/// How a command is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandMode {
    /// A process per record, or with `--batch` per so many.
    Exec(Option<BatchConfig>),
    /// One long-lived process per worker.
    Pipe {
        /// `--pipe-depth`: records open at once, not 0.
        depth: usize,
    },
}

/// `--batch`, `--batch-wait`, `--batch-by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchConfig {
    /// Records at most, not 0.
    pub records_max: usize,
    /// How long the first record waits for more.
    pub wait: Duration,
    /// Whether a batch holds the records of one lane only.
    pub by_key: bool,
}

/// How long `--work-delay` sleeps: drawn uniformly from `min..=max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// The shortest sleep.
    pub min: Duration,
    /// The longest sleep; not below `min`.
    pub max: Duration,
}

impl HandlerConfig {
    /// Whether handling one record can take long.
    pub fn can_block(&self) -> bool {
        self.command.is_some() || self.delay.is_some_and(|delay| !delay.max.is_zero())
    }

    /// `--batch-by key`.
    pub fn batches_by_key(&self) -> bool {
        let mode = self.command.as_ref().map(|command| command.mode);
        matches!(mode, Some(CommandMode::Exec(Some(BatchConfig { by_key: true, .. }))))
    }
}

/// Is told what becomes of every record, for a check from outside; it costs nothing where there is none.
pub trait Observer: fmt::Debug + Send + Sync {
    /// A worker begins with a record.
    fn begins(&self, partition: i32, record: &Record<'_>);
    /// It has handled it. No other record of the same key may begin before this returns.
    fn finished(&self, partition: i32, record: &Record<'_>);
}

/// A worker's handler.
#[derive(Debug)]
pub struct Handler {
    config: HandlerConfig,
    out: Vec<u8>,
    random: u64,
    observer: Option<Arc<dyn Observer>>,
}

/// A longer sleep is cut into such parts, between which it is looked whether the record is to be given up.
const SLEEP_MAX: Duration = Duration::from_millis(50);
/// Rendered output is written at this size even in the middle of a run.
const OUT_BYTES_MAX: usize = 256 << 10;

impl Handler {
    /// `worker` only makes the random sleeps of the workers differ.
    pub fn new(config: HandlerConfig, worker: u32) -> Self {
        Handler {
            config,
            out: Vec::new(),
            random: 0x9e37_79b9_7f4a_7c15 ^ u64::from(worker) << 32,
            observer: None,
        }
    }

    /// The same handler, looked at by an observer.
    pub fn observed_by(mut self, observer: Option<Arc<dyn Observer>>) -> Self {
        self.observer = observer;
        self
    }

    /// Whether handling one record can take long.
    pub fn can_block(&self) -> bool {
        self.config.can_block()
    }

    /// Whether there is nothing to be done with a record: `--work-delay 0` alone.
    pub fn does_nothing(&self) -> bool {
        !self.can_block() && self.config.print.is_none() && self.observer.is_none()
    }

    /// Handles one record, and returns whether it is finished: once `is_stopped` says so, it is given up instead,
    /// before anything of it is to be seen. Its output may wait for [`Handler::flush`].
    ///
    /// # Errors
    /// Writing to stdout failed, or the record cannot be read.
    pub fn handle(
        &mut self,
        record: &RunRecord<'_, RecordBatch>,
        is_stopped: impl Fn() -> bool,
    ) -> io::Result<bool> {
        let Some(observer) = self.observer.clone() else { return self.work(record, is_stopped) };
        let parsed = parse(record)?;
        observer.begins(record.batch.partition, &parsed);
        let finished = self.work(record, is_stopped)?;
        if finished {
            observer.finished(record.batch.partition, &parsed);
        }
        Ok(finished)
    }

    fn work(
        &mut self,
        record: &RunRecord<'_, RecordBatch>,
        is_stopped: impl Fn() -> bool,
    ) -> io::Result<bool> {
        if let Some(delay) = self.config.delay
            && !delay.max.is_zero()
        {
            let mut left = self.draw(delay);
            while !left.is_zero() {
                let part = left.min(SLEEP_MAX);
                std::thread::sleep(part);
                if is_stopped() {
                    return Ok(false);
                }
                left -= part;
            }
        }
        let Some(format) = &self.config.print else { return Ok(true) };
        let parsed = parse(record)?;
        format.render(&view(record.batch, &parsed), &mut self.out);
        if self.out.len() >= OUT_BYTES_MAX {
            self.flush()?;
        }
        Ok(true)
    }

    /// Writes what was rendered.
    ///
    /// # Errors
    /// Writing to stdout failed.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let written = crate::report::to_stdout(&self.out);
        self.out.clear();
        written
    }

    fn draw(&mut self, delay: Delay) -> Duration {
        let spread = delay.max - delay.min;
        // xorshift64: differing sleeps are all that is wanted.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        delay.min + spread.mul_f64((self.random >> 11) as f64 / (1u64 << 53) as f64)
    }
}

/// What is written of a record.
pub(crate) fn view<'a>(batch: &'a RecordBatch, parsed: &Record<'a>) -> RecordView<'a, Headers<'a>> {
    RecordView {
        topic: &batch.topic,
        partition: batch.partition,
        offset: parsed.offset,
        timestamp_ms: parsed.timestamp_ms,
        key: parsed.key,
        value: parsed.value,
        headers: parsed.headers(),
    }
}

pub(crate) fn parse<'a>(record: &RunRecord<'a, RecordBatch>) -> io::Result<Record<'a>> {
    let batch = record.batch;
    let position = batch.positions[record.index as usize];
    Record::parse(&batch.header, &batch.payload, position)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

#[cfg(test)]
pub(crate) mod tests {
    use keylane_protocol::records::{
        BatchBuilder, BatchHeader, Codec, Header, Payload, ProducerStamp, next_batch,
    };

    /// A batch of one record, which is at position 0 and has offset 0.
    pub(crate) fn batch_of(
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header<'_>],
    ) -> (BatchHeader, Payload) {
        let mut builder = BatchBuilder::new();
        builder.append(key, value, headers, 1_700_000_000_000).unwrap();
        let mut bytes = builder.finish(Codec::None, &ProducerStamp::NONE).unwrap();
        let batch = next_batch(&mut bytes).unwrap().unwrap();
        let payload = batch.payload(&mut Vec::new(), usize::MAX).unwrap();
        (batch.header, payload)
    }
}
