//! Fetch: sessions with a leader, and what an answer means for the position of a partition.
//!
//! A [`Session`] (KIP-227) is one broker's view of what we read there: only what changed is sent, partitions that are
//! paused are forgotten. One fetch is in flight per session. [`scan`] walks the batches of an answer: batches below
//! the position are dropped, the new position is behind the *range* of the last whole batch, and batches of aborted
//! transactions and markers are marked as not to be delivered, while their ranges still count.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use kafka_protocol::messages::fetch_response::{AbortedTransaction, PartitionData};
use kafka_protocol::messages::{FetchRequest, FetchResponse, TopicName};
use uuid::Uuid;

use crate::api::text;
use crate::error::{Error, Fault, code};
use crate::metadata::{Metadata, TopicPartition};
use crate::offsets::Isolation;
use crate::records::{self, Batch, BatchError, ControlMarker, Record};

/// Settings of every Fetch.
#[derive(Clone, Debug)]
pub struct FetchConfig {
    /// `fetch.max.bytes`: of a whole answer.
    pub bytes_max: i32,
    /// `max.partition.fetch.bytes`
    pub partition_bytes_max: i32,
    /// `fetch.max.wait.ms`: how long the broker holds back an answer without records.
    pub wait_max: Duration,
    /// Which transactions are seen.
    pub isolation: Isolation,
    /// `client.rack` (KIP-392)
    pub rack: Option<String>,
}

/// A partition as it is to be read now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The topic's id; nil with brokers that have none.
    pub topic_id: Uuid,
    /// The next offset to read.
    pub position: i64,
    /// The leader's epoch, as the metadata has it.
    pub leader_epoch: i32,
}

/// What one broker knows of our reading.
#[derive(Debug, Default)]
pub struct Session {
    id: i32,
    epoch: i32,
    /// What the broker remembers, when the session is established.
    known: BTreeMap<TopicPartition, Wanted>,
    /// What the fetch in flight asked for: position by partition.
    asked: BTreeMap<TopicPartition, Wanted>,
    in_flight: bool,
    /// Turns the order of a full request, so that the byte limit cuts off another partition each time.
    turn: usize,
}

impl Session {
    /// Whether a fetch is in flight.
    pub fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    /// The next Fetch for these partitions. An empty list is fine: it forgets what the session held.
    ///
    /// # Panics
    /// A fetch is in flight.
    pub fn request(
        &mut self,
        wanted: BTreeMap<TopicPartition, Wanted>,
        config: &FetchConfig,
        wait: Duration,
    ) -> FetchRequest {
        assert!(!self.in_flight, "one fetch in flight per leader");
        self.in_flight = true;
        let incremental = self.epoch > 0;
        let mut sent: Vec<(&TopicPartition, &Wanted)> =
            wanted.iter().filter(|(at, wanted)| !incremental || self.known.get(at) != Some(wanted)).collect();
        if !incremental && !sent.is_empty() {
            self.turn = (self.turn + 1) % sent.len();
            sent.rotate_left(self.turn);
        }
        let topics = sent
            .into_iter()
            .map(|(at, wanted)| {
                let partition = FetchPartition::default()
                    .with_partition(at.partition)
                    .with_current_leader_epoch(wanted.leader_epoch)
                    .with_fetch_offset(wanted.position)
                    .with_partition_max_bytes(config.partition_bytes_max);
                FetchTopic::default()
                    .with_topic(TopicName(text(&at.topic)))
                    .with_topic_id(wanted.topic_id)
                    .with_partitions(vec![partition])
            })
            .collect();
        // A partition that is no longer wanted, or belongs to another topic of the same name now.
        let forgotten = self
            .known
            .iter()
            .filter(|(at, known)| {
                incremental && wanted.get(at).is_none_or(|wanted| wanted.topic_id != known.topic_id)
            })
            .map(|(at, known)| {
                ForgottenTopic::default()
                    .with_topic(TopicName(text(&at.topic)))
                    .with_topic_id(known.topic_id)
                    .with_partitions(vec![at.partition])
            })
            .collect();
        let request = FetchRequest::default()
            .with_max_wait_ms(i32::try_from(wait.as_millis()).unwrap_or(i32::MAX))
            .with_min_bytes(1)
            .with_max_bytes(config.bytes_max)
            .with_isolation_level(config.isolation.level())
            .with_session_id(self.id)
            .with_session_epoch(self.epoch)
            .with_topics(topics)
            .with_forgotten_topics_data(forgotten)
            .with_rack_id(text(config.rack.as_deref().unwrap_or("")));
        self.known = wanted.clone();
        self.asked = wanted;
        request
    }

    /// The answer came. Returns what was asked, for the partitions to be matched with, or the code with which the
    /// session is refused; it then begins anew with the next request.
    pub fn on_answer(&mut self, response: &FetchResponse) -> Result<BTreeMap<TopicPartition, Wanted>, i16> {
        self.in_flight = false;
        if response.error_code != code::NONE {
            self.reset();
            return Err(response.error_code);
        }
        if response.session_id == 0 {
            // The broker has no room for a session: every request is a full one.
            self.id = 0;
            self.epoch = 0;
            self.known.clear();
        } else {
            self.id = response.session_id;
            // Epochs wrap to 1: 0 would ask for a new session.
            self.epoch = if self.epoch == i32::MAX { 1 } else { self.epoch + 1 };
        }
        Ok(std::mem::take(&mut self.asked))
    }

    /// The fetch failed with its connection; sessions belong to the broker's memory, so begin anew.
    pub fn on_failure(&mut self) {
        self.in_flight = false;
        self.reset();
    }

    fn reset(&mut self) {
        self.id = 0;
        self.epoch = 0;
        self.known.clear();
        self.asked.clear();
    }
}

/// The name of a topic in a Fetch answer, by name or by id.
pub fn topic_name<'a>(
    response_name: &'a str,
    id: Uuid,
    asked: &'a BTreeMap<TopicPartition, Wanted>,
    metadata: &'a Metadata,
) -> Option<&'a str> {
    if !response_name.is_empty() {
        return Some(response_name);
    }
    let by_request = asked.iter().find(|(_, wanted)| wanted.topic_id == id).map(|(at, _)| &*at.topic);
    by_request.or_else(|| metadata.name_of(id))
}

/// A batch and whether its records are delivered.
#[derive(Clone, Debug)]
pub struct FetchedBatch {
    /// The batch, still packed; its CRC is checked when it is unpacked.
    pub batch: Batch,
    /// False for markers and for batches of aborted transactions: only their range counts.
    pub deliver: bool,
}

/// What the records of one partition in one answer come to.
#[derive(Debug, Default)]
pub struct Scanned {
    /// Whole batches in order; the first may begin below the position.
    pub batches: Vec<FetchedBatch>,
    /// The new position.
    pub position: i64,
    /// Leader epoch of the last batch, or none without batches.
    pub epoch: Option<i32>,
    /// Bytes of the batches.
    pub bytes: usize,
}

/// Walks the batches of one partition, up to the first damaged batch header or marker: what stands before it is sound,
/// and would never be reached if each answer that holds the damage were dropped as a whole.
pub fn scan(
    bytes: Bytes,
    position: i64,
    aborted: &[AbortedTransaction],
    isolation: Isolation,
) -> (Scanned, Option<BatchError>) {
    let mut scanned = Scanned { position, ..Scanned::default() };
    let damage = scan_into(&mut scanned, bytes, Aborts::new(aborted, isolation)).err();
    (scanned, damage)
}

fn scan_into(scanned: &mut Scanned, mut bytes: Bytes, mut aborts: Aborts) -> Result<(), BatchError> {
    while let Some(batch) = records::next_batch(&mut bytes)? {
        let header = &batch.header;
        // Markers and aborts of batches below the position still open and close transactions.
        let deliver = aborts.deliver(&batch)?;
        if header.next_offset() <= scanned.position {
            continue;
        }
        scanned.position = header.next_offset();
        scanned.epoch = Some(header.partition_leader_epoch);
        scanned.bytes += batch.bytes().len();
        scanned.batches.push(FetchedBatch { batch, deliver });
    }
    Ok(())
}

/// Which transactions of an answer were aborted (KIP-98): the broker lists them by producer and first offset; an
/// abort marker in the log closes each.
struct Aborts {
    /// Sorted by first offset, last first.
    to_open: Vec<(i64, i64)>,
    open: HashSet<i64>,
}

impl Aborts {
    fn new(aborted: &[AbortedTransaction], isolation: Isolation) -> Self {
        let mut to_open: Vec<(i64, i64)> = match isolation {
            Isolation::ReadCommitted => {
                aborted.iter().map(|entry| (entry.first_offset, entry.producer_id.0)).collect()
            }
            Isolation::ReadUncommitted => Vec::new(),
        };
        to_open.sort_unstable_by(|a, b| b.cmp(a));
        Aborts { to_open, open: HashSet::new() }
    }

    /// Whether the records of the next batch are delivered. Whoever opens a batch checks it; one that nobody opens is
    /// checked here: a damaged one may only look like a marker, or like one of an aborted transaction.
    fn deliver(&mut self, batch: &Batch) -> Result<bool, BatchError> {
        let deliver = self.is_delivered(batch)?;
        if !deliver {
            batch.check_crc()?;
        }
        Ok(deliver)
    }

    fn is_delivered(&mut self, batch: &Batch) -> Result<bool, BatchError> {
        let header = &batch.header;
        while let Some((first, producer)) = self.to_open.last().copied()
            && first <= header.last_offset()
        {
            self.open.insert(producer);
            self.to_open.pop();
        }
        if header.is_control() {
            if self.open.contains(&header.producer_id) && is_abort(batch)? {
                self.open.remove(&header.producer_id);
            }
            return Ok(false);
        }
        Ok(!(header.is_transactional() && self.open.contains(&header.producer_id)))
    }
}

/// Whether a control batch is an abort marker. It may have lost its record to compaction; then it closes nothing,
/// but the records that it would close are gone as well.
fn is_abort(batch: &Batch) -> Result<bool, BatchError> {
    batch.check_crc()?;
    let mut spare = Vec::new();
    let payload = batch.payload(&mut spare, MARKER_BYTES_MAX)?;
    if batch.header.record_count == 0 {
        return Ok(false);
    }
    let record = Record::parse(&batch.header, &payload, 0)?;
    Ok(ControlMarker::parse(&batch.header, record.key)? == ControlMarker::Abort)
}

/// A control batch holds one small record.
const MARKER_BYTES_MAX: usize = 64 << 10;

/// The error of a partition in a Fetch answer.
pub fn partition_error(at: &TopicPartition, data: &PartitionData, offset: i64) -> Error {
    Error::refused(crate::api::Api::Fetch, data.error_code, None)
        .at_partition(&at.topic, at.partition)
        .at_offset(offset)
}

/// A damaged batch, with its place.
pub fn damaged(at: &TopicPartition, position: i64, error: BatchError) -> Error {
    let offset = error.base_offset.unwrap_or(position);
    Error::new(Fault::Damaged(error)).at_partition(&at.topic, at.partition).at_offset(offset)
}
