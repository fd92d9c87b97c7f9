//! One stretch of a log's bytes with an index of the batches in it.
//!
//! The last segment grows in a `Vec`, so reading from it copies; when it is full it becomes `Bytes`, and any run of
//! batches in it is a slice that costs nothing. Reads never cross a segment, as Kafka's do not.
//!
//! Invariants: batches lie one behind the other, `position + length` of one is the `position` of the next; their offset
//! ranges touch.

use bytes::Bytes;
use std::collections::VecDeque;

/// How long a segment grows before the next begins. Larger than what a Fetch asks of one partition, so that most
/// answers are one slice; small enough that trimming frees memory soon.
pub(super) const SEGMENT_BYTES: usize = 4 << 20;

/// Where one batch is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) base_offset: i64,
    pub(super) last_offset: i64,
    pub(super) max_timestamp_ms: i64,
    pub(super) position: usize,
    pub(super) length: usize,
}

impl Entry {
    pub(super) fn end_position(&self) -> usize {
        self.position + self.length
    }
}

#[derive(Debug)]
enum Store {
    Open(Vec<u8>),
    Sealed(Bytes),
}

#[derive(Debug)]
pub(super) struct Segment {
    store: Store,
    /// In offset order. Those trimmed away are gone from here before their bytes are freed.
    batches: VecDeque<Entry>,
    /// At least the largest of the batches' timestamps: it stays when the batch that had it is cut off.
    max_timestamp_ms: i64,
}

impl Segment {
    pub(super) fn new() -> Self {
        Segment { store: Store::Open(Vec::new()), batches: VecDeque::new(), max_timestamp_ms: i64::MIN }
    }

    /// Whether another batch of `length` bytes belongs in here.
    pub(super) fn has_room(&self, length: usize) -> bool {
        match &self.store {
            Store::Open(bytes) => bytes.is_empty() || bytes.len() + length <= SEGMENT_BYTES,
            Store::Sealed(_) => false,
        }
    }

    /// Stores a batch whose first eight bytes, the base offset, and leader epoch are replaced.
    ///
    /// # Panics
    /// If the segment is sealed.
    pub(super) fn push(&mut self, batch: &[u8], mut entry: Entry, leader_epoch: i32) {
        let Store::Open(bytes) = &mut self.store else { panic!("a sealed segment does not grow") };
        entry.position = bytes.len();
        entry.length = batch.len();
        bytes.extend_from_slice(batch);
        let stored = &mut bytes[entry.position..];
        stored[0..8].copy_from_slice(&entry.base_offset.to_be_bytes());
        stored[12..16].copy_from_slice(&leader_epoch.to_be_bytes());
        self.max_timestamp_ms = self.max_timestamp_ms.max(entry.max_timestamp_ms);
        self.batches.push_back(entry);
    }

    /// Ends its growth; reads are slices from now on.
    pub(super) fn seal(&mut self) {
        if let Store::Open(bytes) = &mut self.store {
            self.store = Store::Sealed(Bytes::from(std::mem::take(bytes)));
        }
    }

    pub(super) fn batches(&self) -> &VecDeque<Entry> {
        &self.batches
    }

    pub(super) fn max_timestamp_ms(&self) -> i64 {
        self.max_timestamp_ms
    }

    /// The index of the batch that holds `offset` or, if it was cut off, of the first behind it.
    pub(super) fn find(&self, offset: i64) -> usize {
        self.batches.partition_point(|batch| batch.last_offset < offset)
    }

    pub(super) fn slice(&self, start: usize, end: usize) -> Bytes {
        match &self.store {
            Store::Open(bytes) => Bytes::copy_from_slice(&bytes[start..end]),
            Store::Sealed(bytes) => bytes.slice(start..end),
        }
    }

    pub(super) fn bytes_of(&self, entry: &Entry) -> Bytes {
        self.slice(entry.position, entry.end_position())
    }

    /// Takes the first batch out of the index; its bytes go with the segment.
    pub(super) fn pop_front(&mut self) -> Option<Entry> {
        self.batches.pop_front()
    }

    /// Cuts off the last batch.
    pub(super) fn pop_back(&mut self) -> Option<Entry> {
        let cut = self.batches.pop_back()?;
        match &mut self.store {
            Store::Open(bytes) => bytes.truncate(cut.position),
            // Sealed it stays: what follows goes to a new segment.
            Store::Sealed(bytes) => bytes.truncate(cut.position),
        }
        Some(cut)
    }
}
