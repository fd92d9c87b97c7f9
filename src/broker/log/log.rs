//! The log itself.
//!
//! All nodes of the dev broker share one copy, so whatever is appended is replicated: the high watermark is the end.
//!
//! Invariants: `start <= last stable offset <= end`; no batch lies wholly below `start`; the offset ranges of batches
//! touch, and the last one's ends at `end`.

use super::batch::{self, ProducedBatch};
use super::epochs::Epochs;
use super::producers::{AbortedTransaction, ProducerState, Producers};
use super::segment::{Entry, Segment};
use bytes::Bytes;
use kafka_protocol::ResponseError;
use keylane_protocol::records::{Batch, ControlMarker, Record, index_records, next_batch};
use std::collections::VecDeque;

/// The most that one batch is unpacked to when a record is looked for by its timestamp.
const UNPACKED_BYTES_MAX: usize = 256 << 20;

/// The log of one partition.
#[derive(Debug, Default)]
pub(crate) struct Log {
    start: i64,
    end: i64,
    /// Of the batches at and past `start`.
    bytes: u64,
    /// In offset order; only the last may grow.
    segments: VecDeque<Segment>,
    epochs: Epochs,
    producers: Producers,
}

/// What became of a produced batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Appended {
    pub(crate) base_offset: i64,
    pub(crate) log_start_offset: i64,
    /// It had been stored before, and nothing was stored now.
    pub(crate) duplicate: bool,
}

/// What a fetch gets.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadResult {
    /// Whole batches; the first may begin below the offset asked for.
    pub(crate) records: Bytes,
    /// Aborted transactions with records among them. Empty unless only committed data was asked for.
    pub(crate) aborted: Vec<AbortedTransaction>,
}

/// An offset with the timestamp that it was found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimedOffset {
    pub(crate) offset: i64,
    pub(crate) timestamp_ms: i64,
    pub(crate) leader_epoch: i32,
}

impl Log {
    /// An empty log that begins at 0.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Stores a batch that a client produced, unless it has been stored before.
    ///
    /// Whether a transactional batch's partition belongs to the transaction is the coordinator's to say: ask it before,
    /// unless [`Log::has_open_transaction`].
    ///
    /// # Errors
    /// INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, or INVALID_TXN_STATE.
    pub(crate) fn append(
        &mut self,
        batch: &ProducedBatch,
        leader_epoch: i32,
        now_ms: i64,
    ) -> Result<Appended, i16> {
        let header = batch.header();
        if let Some(base_offset) = self.producers.check(header)? {
            return Ok(Appended { base_offset, log_start_offset: self.start, duplicate: true });
        }
        let last_offset_delta = header.last_offset_delta;
        let base_offset = self.push(batch.bytes(), last_offset_delta, header.max_timestamp, leader_epoch);
        self.producers.appended(header, base_offset, now_ms);
        Ok(Appended { base_offset, log_start_offset: self.start, duplicate: false })
    }

    /// Ends the transaction that `producer_id` may have here; returns the marker's offset.
    pub(crate) fn append_marker(
        &mut self,
        producer_id: i64,
        producer_epoch: i16,
        commit: bool,
        coordinator_epoch: i32,
        leader_epoch: i32,
        now_ms: i64,
    ) -> i64 {
        let marker = batch::marker(producer_id, producer_epoch, commit, coordinator_epoch, now_ms);
        let offset = self.push(&marker, 0, now_ms, leader_epoch);
        self.producers.ended(producer_id, producer_epoch, commit, coordinator_epoch, offset, now_ms);
        offset
    }

    fn push(
        &mut self,
        batch: &[u8],
        last_offset_delta: i32,
        max_timestamp_ms: i64,
        leader_epoch: i32,
    ) -> i64 {
        let base_offset = self.end;
        self.epochs.begin(leader_epoch, base_offset);
        if !self.segments.back().is_some_and(|segment| segment.has_room(batch.len())) {
            if let Some(full) = self.segments.back_mut() {
                full.seal();
            }
            self.segments.push_back(Segment::new());
        }
        let last_offset = base_offset + i64::from(last_offset_delta);
        let entry = Entry { base_offset, last_offset, max_timestamp_ms, position: 0, length: 0 };
        let segment = self.segments.back_mut().expect("one was made above");
        segment.push(batch, entry, leader_epoch);
        self.end = last_offset + 1;
        self.bytes += batch.len() as u64;
        base_offset
    }

    /// A new leader takes over: epochs end at the log's end, whether or not the new one ever writes.
    pub(crate) fn begin_epoch(&mut self, leader_epoch: i32) {
        self.epochs.begin(leader_epoch, self.end);
    }

    /// The first offset that can be read.
    pub(crate) fn start_offset(&self) -> i64 {
        self.start
    }

    /// One past the last offset; the high watermark too.
    pub(crate) fn end_offset(&self) -> i64 {
        self.end
    }

    /// Where readers of committed data stop: the first record whose transaction is still open, else the end.
    pub(crate) fn last_stable_offset(&self) -> i64 {
        self.producers.first_open().map_or(self.end, |first| first.max(self.start))
    }

    /// How many bytes the batches take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a transaction of the producer is open here under just this epoch.
    pub(crate) fn has_open_transaction(&self, producer_id: i64, producer_epoch: i16) -> bool {
        self.producers.has_open(producer_id, producer_epoch)
    }

    /// The producers known here, by id.
    pub(crate) fn producers(&self) -> impl Iterator<Item = ProducerState> + '_ {
        self.producers.states()
    }

    fn limit(&self, committed: bool) -> i64 {
        if committed { self.last_stable_offset() } else { self.end }
    }

    /// Whole batches from the one that holds `offset`: as many as fit in `bytes_max`, but the first in any case if
    /// `at_least_one` (KIP-74). Stops at a segment's end, so there may be more; below the last stable offset if
    /// `committed`.
    ///
    /// # Errors
    /// OFFSET_OUT_OF_RANGE.
    pub(crate) fn read(
        &self,
        offset: i64,
        bytes_max: usize,
        committed: bool,
        at_least_one: bool,
    ) -> Result<ReadResult, i16> {
        if !(self.start..=self.end).contains(&offset) {
            return Err(ResponseError::OffsetOutOfRange.code());
        }
        let limit = self.limit(committed);
        if offset >= limit {
            return Ok(ReadResult::default());
        }
        let segment = &self.segments[self.segment_of(offset)];
        let first_index = segment.find(offset);
        let first = segment.batches()[first_index];
        let position_max = first.position.saturating_add(bytes_max);
        let fits = |batch: &Entry| batch.base_offset < limit && batch.end_position() <= position_max;
        let last_index = match segment.batches().partition_point(fits).checked_sub(1) {
            Some(last) if last >= first_index => last,
            _ if at_least_one => first_index,
            _ => return Ok(ReadResult::default()),
        };
        let last = segment.batches()[last_index];
        let records = segment.slice(first.position, last.end_position());
        let behind = last.last_offset + 1;
        let aborted = if committed { self.producers.aborted_in(offset, behind) } else { Vec::new() };
        Ok(ReadResult { records, aborted })
    }

    /// How many bytes could be read from `offset` on, counted no further than `up_to`; 0 where a read would fail.
    /// For the minimum that a Fetch waits for.
    pub(crate) fn available_bytes(&self, offset: i64, committed: bool, up_to: usize) -> usize {
        let limit = self.limit(committed);
        if offset < self.start || offset >= limit {
            return 0;
        }
        let mut total = 0;
        for segment in self.segments.range(self.segment_of(offset)..) {
            let batches = segment.batches();
            let end = batches.partition_point(|batch| batch.base_offset < limit);
            let begin = segment.find(offset);
            if begin < end {
                total += batches[end - 1].end_position() - batches[begin].position;
            }
            if total >= up_to || end < batches.len() {
                break;
            }
        }
        total.min(up_to)
    }

    /// The first record at or past the start whose timestamp is `timestamp_ms` or later. A marker counts as one.
    pub(crate) fn find_timestamp(&self, timestamp_ms: i64) -> Option<TimedOffset> {
        let candidates = self.segments.iter().filter(|segment| segment.max_timestamp_ms() >= timestamp_ms);
        for segment in candidates {
            let late = segment.batches().iter().filter(|batch| batch.max_timestamp_ms >= timestamp_ms);
            let found = late.filter_map(|entry| self.find_in_batch(segment, entry, timestamp_ms)).next();
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The first record with the latest timestamp of all (KIP-734).
    pub(crate) fn max_timestamp(&self) -> Option<TimedOffset> {
        let entries = self.segments.iter().flat_map(|segment| segment.batches());
        let latest_ms = entries.map(|entry| entry.max_timestamp_ms).max()?;
        self.find_timestamp(latest_ms)
    }

    fn find_in_batch(&self, segment: &Segment, entry: &Entry, timestamp_ms: i64) -> Option<TimedOffset> {
        let batch = stored_batch(segment, entry);
        let leader_epoch = batch.header.partition_leader_epoch;
        let Ok(payload) = batch.payload(&mut Vec::new(), UNPACKED_BYTES_MAX) else {
            // Packed by a codec that this build lacks, or damaged by its producer: the batch is as near as one gets.
            let offset = entry.base_offset.max(self.start);
            return Some(TimedOffset { offset, timestamp_ms: entry.max_timestamp_ms, leader_epoch });
        };
        let mut positions = Vec::new();
        // The positions before a damaged record are good.
        let _ = index_records(&batch.header, &payload, &mut positions, |_, _, _| ());
        let records = positions.iter().filter_map(|&at| Record::parse(&batch.header, &payload, at).ok());
        records
            .filter(|record| record.timestamp_ms >= timestamp_ms && record.offset >= self.start)
            .map(|record| TimedOffset {
                offset: record.offset,
                timestamp_ms: record.timestamp_ms,
                leader_epoch,
            })
            .next()
    }

    /// The largest leader epoch up to `leader_epoch` and the offset behind its last record, as OffsetForLeaderEpoch
    /// answers; (-1, -1) if the log has not come to it.
    pub(crate) fn epoch_end(&self, leader_epoch: i32) -> (i32, i64) {
        self.epochs.end_of(leader_epoch, self.end)
    }

    /// Makes `offset` the start if it is past it, but never past the end. Memory is freed by segments.
    pub(crate) fn delete_records_before(&mut self, offset: i64) {
        let offset = offset.min(self.end);
        if offset <= self.start {
            return;
        }
        self.start = offset;
        while let Some(segment) = self.segments.front_mut() {
            while segment.batches().front().is_some_and(|batch| batch.last_offset < offset) {
                let cut = segment.pop_front().expect("it has a front");
                self.bytes -= cut.length as u64;
            }
            if !segment.batches().is_empty() {
                break;
            }
            self.segments.pop_front();
        }
        self.epochs.trim_to(offset);
        self.producers.trim_to(offset);
    }

    /// Gives up the oldest batches until at most `bytes` are left or an open transaction would be touched.
    pub(crate) fn trim_to_bytes(&mut self, bytes: u64) {
        if self.bytes <= bytes {
            return;
        }
        let (mut excess, stable) = (self.bytes - bytes, self.last_stable_offset());
        let mut offset = self.start;
        for entry in self.segments.iter().flat_map(|segment| segment.batches()) {
            if excess == 0 || entry.last_offset >= stable {
                break;
            }
            offset = entry.last_offset + 1;
            excess = excess.saturating_sub(entry.length as u64);
        }
        self.delete_records_before(offset);
    }

    /// Loses everything from `offset` on, as a log does whose leader was behind: whole batches, so the end may come
    /// below `offset`. What producers and transactions were is worked out anew from what is left.
    pub(crate) fn truncate_to(&mut self, offset: i64) {
        if offset >= self.end {
            return;
        }
        while let Some(segment) = self.segments.back_mut() {
            while segment.batches().back().is_some_and(|batch| batch.last_offset >= offset) {
                let cut = segment.pop_back().expect("it has a back");
                self.bytes -= cut.length as u64;
                self.end = cut.base_offset;
            }
            if !segment.batches().is_empty() {
                break;
            }
            self.segments.pop_back();
        }
        if self.segments.is_empty() {
            self.end = self.end.min(offset);
        }
        self.start = self.start.min(self.end);
        self.epochs.truncate_to(self.end);
        self.rebuild_producers();
    }

    fn rebuild_producers(&mut self) {
        let mut producers = Producers::default();
        for segment in &self.segments {
            for entry in segment.batches() {
                let batch = stored_batch(segment, entry);
                let header = &batch.header;
                if !header.is_control() {
                    producers.appended(header, entry.base_offset, header.max_timestamp);
                    continue;
                }
                let (commit, coordinator_epoch) = read_marker(&batch);
                producers.ended(
                    header.producer_id,
                    header.producer_epoch,
                    commit,
                    coordinator_epoch,
                    entry.base_offset,
                    header.max_timestamp,
                );
            }
        }
        self.producers = producers;
    }

    /// The segment that holds `offset`, which lies in `start..end`.
    fn segment_of(&self, offset: i64) -> usize {
        let ends_before =
            |segment: &Segment| segment.batches().back().is_some_and(|batch| batch.last_offset < offset);
        self.segments.partition_point(ends_before)
    }

    #[cfg(test)]
    pub(super) fn invariants(&self) {
        assert!(self.start <= self.last_stable_offset() && self.last_stable_offset() <= self.end);
        let mut bytes = 0;
        let mut next = None;
        for segment in &self.segments {
            assert!(!segment.batches().is_empty());
            for entry in segment.batches() {
                assert!(entry.last_offset >= self.start);
                assert_eq!(next.unwrap_or(entry.base_offset), entry.base_offset);
                next = Some(entry.last_offset + 1);
                bytes += entry.length as u64;
            }
        }
        assert_eq!(next.unwrap_or(self.end), self.end);
        assert_eq!(bytes, self.bytes);
    }
}

/// Reads a batch back.
fn stored_batch(segment: &Segment, entry: &Entry) -> Batch {
    let batch = next_batch(&mut segment.bytes_of(entry)).ok().flatten();
    batch.expect("it was whole and sound when it was stored")
}

/// Whether a marker of ours commits, and the epoch of the coordinator that wrote it.
fn read_marker(batch: &Batch) -> (bool, i32) {
    let payload = batch.payload(&mut Vec::new(), UNPACKED_BYTES_MAX).expect("markers are not packed");
    let record = Record::parse(&batch.header, &payload, 0).expect("a marker has one record");
    let marker = ControlMarker::parse(&batch.header, record.key).expect("only whole markers are stored");
    let epoch = record.value.and_then(|value| value.get(2..)).and_then(|epoch| epoch.first_chunk());
    (marker == ControlMarker::Commit, epoch.map_or(-1, |epoch| i32::from_be_bytes(*epoch)))
}
