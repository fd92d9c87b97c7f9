//! The letters of a dead-letter topic, from where a command begins to where the topic ended when it began.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keylane_protocol::admin::offsets::{Found, OffsetSearch};
use keylane_protocol::api::Api;
use keylane_protocol::client::net::Interest;
use keylane_protocol::client::reader::{Chunk, Range, Reader};
use keylane_protocol::error::{Error, Fault, code};
use keylane_protocol::fetch::FetchConfig;
use keylane_protocol::metadata::{TopicPartition, TopicState};
use keylane_protocol::offsets::{EARLIEST, Isolation, LATEST};
use keylane_protocol::records::{BatchError, Record, index_records};

use crate::cli::Common;
use crate::driver::Driver;
use crate::driver::signals::{SignalCount, Source as SignalSource};
use crate::pool::role::{net_config, random_seed};
use crate::session::{Failure, Session};

const FETCH_BYTES_MAX: i32 = 4 << 20;
const PARTITION_BYTES_MAX: i32 = 1 << 20;
const FETCH_WAIT_MAX: Duration = Duration::from_millis(500);
/// A batch that unpacks to more is refused: Kafka's own limits are far below.
const PAYLOAD_BYTES_MAX: usize = 256 << 20;

/// Which letters are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    key: Option<Vec<u8>>,
    since_ms: Option<i64>,
}

impl Filter {
    /// `--key` and `--since`, counted back from now.
    pub(super) fn new(key: Option<&str>, since: Option<Duration>) -> Filter {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let since_ms = since.map(|since| i64::try_from(now.saturating_sub(since).as_millis()).unwrap_or(0));
        Filter { key: key.map(|key| key.as_bytes().to_vec()), since_ms }
    }

    /// Whether it leaves anything out.
    pub(super) fn is_any(&self) -> bool {
        *self == Filter::default()
    }

    /// Whether a letter is meant: by its key, and by the timestamp that it has in the dead-letter topic.
    pub(super) fn takes(&self, record: &Record<'_>) -> bool {
        self.key.as_ref().is_none_or(|key| record.key == Some(key))
            && self.since_ms.is_none_or(|since_ms| record.timestamp_ms >= since_ms)
    }
}

/// Looks up what of a topic is there now: every partition with its start and its end, as far as transactions are over.
///
/// # Errors
/// The topic is missing, or an offset cannot be had.
pub(crate) fn ranges(session: &mut Session, topic: &str) -> Result<BTreeMap<TopicPartition, Range>, Failure> {
    session.fetch_metadata(Interest::Topics([topic.to_owned()].into()))?;
    let partitions: Vec<TopicPartition> = match session.metadata().topics.get(topic) {
        Some(TopicState::Known(known)) => {
            known.partitions.keys().map(|partition| TopicPartition::new(topic, *partition)).collect()
        }
        Some(TopicState::Refused(code)) => return Err(refused(*code, topic).into()),
        None => return Err(refused(code::UNKNOWN_TOPIC_OR_PARTITION, topic).into()),
    };
    let search =
        |timestamp| OffsetSearch::new(timestamp, Isolation::ReadCommitted, partitions.iter().cloned());
    let mut found = session.search_all(vec![search(EARLIEST), search(LATEST)])?.into_iter();
    let (starts, ends) = (found.next().unwrap_or_default(), found.next().unwrap_or_default());
    let mut ranges = BTreeMap::new();
    for at in partitions {
        let (from, end) = (offset(&starts, &at)?, offset(&ends, &at)?);
        ranges.insert(at, Range { from, end });
    }
    Ok(ranges)
}

fn refused(code: i16, topic: &str) -> Error {
    Error::refused(Api::Metadata, code, None).at_topic(topic)
}

fn offset(found: &Found, at: &TopicPartition) -> Result<i64, Error> {
    match found.get(at) {
        Some(Ok(offset)) => Ok(offset.unwrap_or(0)),
        Some(Err(error)) => Err(error.clone()),
        None => unreachable!("a search finds something for each of its partitions"),
    }
}

/// Reads ranges of the topic.
pub(crate) struct Source {
    driver: Driver,
    reader: Reader,
    signals: SignalCount,
}

impl Source {
    /// Begins; a signal from `signals` ends each wait.
    ///
    /// # Errors
    /// The system gives no epoll or no signal handler.
    pub(crate) fn open(
        common: &Common,
        ranges: &BTreeMap<TopicPartition, Range>,
        signals: &SignalSource,
    ) -> Result<Source, Failure> {
        let driver = Driver::new().map_err(Failure::System)?;
        let signals = signals.watch(driver.waker()).map_err(Failure::System)?;
        let fetch = FetchConfig {
            bytes_max: FETCH_BYTES_MAX,
            partition_bytes_max: PARTITION_BYTES_MAX,
            wait_max: FETCH_WAIT_MAX,
            isolation: Isolation::ReadCommitted,
            rack: common.client_rack.clone(),
        };
        let ranges = ranges.iter().map(|(at, range)| (at.clone(), *range));
        let net = net_config(common, random_seed());
        let reader = Reader::new(net, fetch, ranges, common.request_timeout, driver.now());
        Ok(Source { driver, reader, signals })
    }

    /// The next part of a partition; none when all is read.
    ///
    /// # Errors
    /// It cannot be read on, or a signal came.
    pub(crate) fn next(&mut self) -> Result<Option<Chunk>, Failure> {
        self.reader.resume(self.driver.now());
        loop {
            if self.signals.count() > 0 {
                return Err(Failure::Interrupted);
            }
            if let Some(chunk) = self.reader.next_chunk() {
                return Ok(Some(chunk));
            }
            if self.reader.is_done() {
                return Ok(None);
            }
            if let Some(error) = self.reader.failure() {
                return Err(error.clone().into());
            }
            self.driver.turn(&mut self.reader, None).map_err(Failure::System)?;
        }
    }
}

/// Calls `each` for every record of a chunk, in order.
///
/// # Errors
/// A batch is damaged, or what `each` gives.
pub(crate) fn for_each(
    chunk: &Chunk,
    mut each: impl FnMut(&Record<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let at = &chunk.at;
    let (mut spare, mut positions) = (Vec::new(), Vec::new());
    for fetched in chunk.batches.iter().filter(|fetched| fetched.deliver) {
        let header = &fetched.batch.header;
        let damaged = |error: BatchError| {
            let error = Error::new(Fault::Damaged(error)).at_partition(&at.topic, at.partition);
            Failure::Kafka(error.at_offset(header.base_offset))
        };
        fetched.batch.check_crc().map_err(damaged)?;
        let payload = fetched.batch.payload(&mut spare, PAYLOAD_BYTES_MAX).map_err(damaged)?;
        index_records(header, &payload, &mut positions, |_, _, _| {}).map_err(damaged)?;
        for position in &positions {
            let record = Record::parse(header, &payload, *position).map_err(damaged)?;
            if (chunk.range.from..chunk.range.end).contains(&record.offset) {
                each(&record)?;
            }
        }
        spare = payload.into_vec();
    }
    Ok(())
}
