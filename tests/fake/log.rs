//! One partition's log: batches in offset order, the ends, the epochs, transactions and producers.

use std::collections::BTreeMap;

use super::batch::{self, Batch, Header, batch};
use super::codes;

/// Stored batch bytes and the offsets they are found under (which damaged bytes need not agree with).
#[derive(Clone, Debug)]
pub struct Stored {
    pub base: i64,
    pub last: i64,
    pub epoch: i32,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aborted {
    pub producer_id: i64,
    pub first: i64,
    pub last: i64,
}

/// The last batches of an idempotent producer: (first sequence, last sequence, base offset), newest last.
#[derive(Clone, Debug, Default)]
struct Producer {
    epoch: i16,
    batches: Vec<(i32, i32, i64)>,
}

#[derive(Clone, Debug, Default)]
pub struct Log {
    pub start: i64,
    /// One past the last offset. Beyond the last batch if the test wants so (a compacted tail).
    pub end: i64,
    /// Where it is to be below `end`.
    pub high_watermark: Option<i64>,
    pub batches: Vec<Stored>,
    pub aborted: Vec<Aborted>,
    open: BTreeMap<i64, i64>,
    producers: BTreeMap<i64, Producer>,
}

impl Log {
    /// Appends where the batch says, which must be at or past the end; its epoch is the partition's if it names none.
    pub fn append(&mut self, new: &Batch, epoch: i32) {
        let epoch = new.epoch().unwrap_or(epoch);
        let bytes = new.clone().leader_epoch(epoch).build();
        self.append_raw(new.base(), new.last_offset(), epoch, bytes);
    }

    /// Appends records at the end in one batch; returns the base offset.
    pub fn append_records<K: batch::Field, V: batch::Field>(
        &mut self,
        epoch: i32,
        records: impl IntoIterator<Item = (K, V)>,
    ) -> i64 {
        let base = self.end;
        self.append(&batch(base).records(records), epoch);
        base
    }

    /// Any bytes, served for fetches of `base..=last`.
    pub fn append_raw(&mut self, base: i64, last: i64, epoch: i32, bytes: Vec<u8>) {
        assert!(base >= self.end && last >= base, "batch {base}..={last} behind the end {}", self.end);
        if let Some(header) = Header::read(&bytes) {
            self.follow_transaction(&header, &bytes, base);
        }
        self.end = last + 1;
        self.batches.push(Stored { base, last, epoch, bytes });
    }

    fn follow_transaction(&mut self, header: &Header, bytes: &[u8], base: i64) {
        if !header.is_transactional() {
            return;
        }
        if !header.is_control() {
            self.open.entry(header.producer_id).or_insert(base);
            return;
        }
        let first = self.open.remove(&header.producer_id);
        let commit = batch::read_records(bytes)
            .and_then(|records| records.first().and_then(|r| r.key.clone()))
            .is_some_and(|key| key.last() == Some(&1));
        if let (Some(first), false) = (first, commit) {
            self.aborted.push(Aborted { producer_id: header.producer_id, first, last: base });
        }
    }

    pub fn high_watermark(&self) -> i64 {
        self.high_watermark.unwrap_or(self.end).min(self.end)
    }

    /// The first offset of an open transaction, else the high watermark.
    pub fn last_stable(&self) -> i64 {
        let high = self.high_watermark();
        self.open.values().min().map_or(high, |first| high.min(*first))
    }

    /// Cuts everything from `offset` on, whole batches only.
    pub fn truncate(&mut self, offset: i64) {
        self.batches.retain(|b| b.last < offset);
        self.end = offset;
        self.start = self.start.min(offset);
    }

    /// Moves the start up, as DeleteRecords or retention does.
    pub fn delete_prefix(&mut self, offset: i64) {
        self.start = offset;
        self.end = self.end.max(offset);
        self.batches.retain(|b| b.last >= offset);
    }

    /// Records in the log, by the batches' own counts, markers left out.
    pub fn record_count(&self) -> i64 {
        let headers = self.batches.iter().filter_map(|b| Header::read(&b.bytes));
        headers.filter(|h| !h.is_control()).map(|h| i64::from(h.count)).sum()
    }

    /// Bytes from the batch that holds `offset`, up to `limit` (an offset) and `max_bytes`. The tail may be cut within
    /// a batch, as a broker's file slice is; `whole_first` lets a first batch over the limit through whole.
    pub fn read(&self, offset: i64, limit: i64, max_bytes: usize, whole_first: bool) -> Vec<u8> {
        let mut out = Vec::new();
        for stored in self.batches.iter().filter(|b| b.last >= offset && b.base < limit) {
            out.extend(&stored.bytes);
            if out.len() >= max_bytes {
                let first = if whole_first { out.len().min(self.size_at(offset)) } else { 0 };
                out.truncate(max_bytes.max(first));
                break;
            }
        }
        out
    }

    fn size_at(&self, offset: i64) -> usize {
        self.batches.iter().find(|b| b.last >= offset).map_or(0, |b| b.bytes.len())
    }

    /// The aborted transactions that touch `from..to`.
    pub fn aborted_in(&self, from: i64, to: i64) -> Vec<Aborted> {
        self.aborted.iter().filter(|a| a.last >= from && a.first < to).copied().collect()
    }

    /// The first (timestamp, offset) at or after `timestamp`; to the record in plain batches, else to the batch.
    pub fn offset_at(&self, timestamp: i64) -> Option<(i64, i64)> {
        for stored in &self.batches {
            let Some(header) = Header::read(&stored.bytes).filter(|h| h.max_timestamp >= timestamp) else {
                continue;
            };
            for record in batch::read_records(&stored.bytes).unwrap_or_default() {
                let time = header.base_timestamp + record.timestamp_delta;
                if time >= timestamp {
                    return Some((time, header.base + i64::from(record.delta)));
                }
            }
            return Some((header.base_timestamp, stored.base));
        }
        None
    }

    /// Where the log of `epoch` ends: (the epoch at or below it, the first offset of a later one), for
    /// OffsetForLeaderEpoch.
    pub fn epoch_end(&self, epoch: i32, current: i32) -> (i32, i64) {
        if epoch > current {
            return (-1, -1);
        }
        let known = self.batches.iter().map(|b| b.epoch).filter(|e| *e <= epoch).max();
        let end = self.batches.iter().find(|b| b.epoch > epoch).map_or(self.end, |b| b.base);
        if epoch == current { (epoch, self.end) } else { (known.unwrap_or(-1), end) }
    }

    /// Stores one produced batch at the end. Answers (error code, base offset). A repeated one of the last five is
    /// stored once and answered with its first offset.
    pub fn produce(&mut self, bytes: &[u8], epoch: i32) -> (i16, i64) {
        let Some(header) = Header::read(bytes).filter(|h| h.crc_good && h.magic == 2) else {
            return (codes::CORRUPT_MESSAGE, -1);
        };
        let sequenced = header.producer_id >= 0 && header.base_sequence >= 0;
        if sequenced && let Err(answer) = self.check_sequence(&header) {
            return answer;
        }
        let mut bytes = bytes[..header.bytes].to_vec();
        let base = self.end;
        bytes[..8].copy_from_slice(&base.to_be_bytes());
        bytes[12..16].copy_from_slice(&epoch.to_be_bytes());
        self.append_raw(base, base + i64::from(header.last_delta), epoch, bytes);
        (0, base)
    }

    fn check_sequence(&mut self, header: &Header) -> Result<(), (i16, i64)> {
        let base = self.end;
        let producer = self.producers.entry(header.producer_id).or_default();
        let first = header.base_sequence;
        let last = sequence_after(first, header.last_delta);
        if header.producer_epoch < producer.epoch {
            return Err((codes::INVALID_PRODUCER_EPOCH, -1));
        }
        if header.producer_epoch > producer.epoch {
            *producer = Producer { epoch: header.producer_epoch, batches: Vec::new() };
        }
        if let Some(known) = producer.batches.iter().find(|b| (b.0, b.1) == (first, last)) {
            return Err((0, known.2));
        }
        let expected = producer.batches.last().map_or(0, |b| sequence_after(b.1, 1));
        if first != expected {
            return Err((codes::OUT_OF_ORDER_SEQUENCE_NUMBER, -1));
        }
        producer.batches.push((first, last, base));
        if producer.batches.len() > 5 {
            producer.batches.remove(0);
        }
        Ok(())
    }

    /// Lets a producer go on from `sequence`, for tests of the wrap after 2147483647.
    pub fn set_sequence(&mut self, producer_id: i64, epoch: i16, last: i32) {
        self.producers.insert(producer_id, Producer { epoch, batches: vec![(last, last, -1)] });
    }
}

/// Sequences wrap to 0 after 2147483647.
fn sequence_after(sequence: i32, by: i32) -> i32 {
    ((i64::from(sequence) + i64::from(by)) % (i64::from(i32::MAX) + 1)) as i32
}
