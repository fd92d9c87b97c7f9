//! The log against a naive one: a list of batches that is searched from end to end for every question. A failure names
//! its seed.

use super::tests::{Shape, batch, next_offset};
use super::{Log, ProducedBatch};
use bytes::Bytes;
use keylane_protocol::records::{Codec, ControlMarker, index_records, next_batch};
use std::collections::{BTreeMap, BTreeSet};

const SEEDS: u64 = 60;
const STEPS: usize = 250;
const PRODUCERS: u64 = 4;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Transactional,
    Commit,
    Abort,
}

#[derive(Debug, Clone)]
struct Stored {
    base: i64,
    last: i64,
    length: usize,
    timestamp_ms: i64,
    leader_epoch: i32,
    producer_id: i64,
    producer_epoch: i16,
    base_sequence: i32,
    kind: Kind,
}

/// What a producer with this id has had stored since its epoch began, never forgotten.
#[derive(Debug, Default)]
struct History {
    epoch: i16,
    batches: Vec<(i32, i32, i64)>,
}

#[derive(Default)]
struct Oracle {
    start: i64,
    end: i64,
    batches: Vec<Stored>,
    histories: BTreeMap<i64, History>,
    /// Where each leader epoch that wrote began.
    epochs: Vec<(i32, i64)>,
}

impl Oracle {
    fn open_transactions(&self) -> BTreeMap<i64, i64> {
        let mut open = BTreeMap::new();
        for batch in &self.batches {
            match batch.kind {
                Kind::Plain => {}
                Kind::Transactional => {
                    open.entry(batch.producer_id).or_insert(batch.base);
                }
                Kind::Commit | Kind::Abort => {
                    open.remove(&batch.producer_id);
                }
            }
        }
        open
    }

    fn stable(&self) -> i64 {
        self.open_transactions().values().min().map_or(self.end, |first| *first.max(&self.start))
    }

    fn answer(&self, shape: &Shape) -> Result<Option<i64>, i16> {
        let Some(history) = self.histories.get(&shape.producer_id) else { return Ok(None) };
        if shape.producer_epoch < history.epoch {
            return Err(47);
        }
        let recent = &history.batches[history.batches.len().saturating_sub(5)..];
        let last = shape.base_sequence + shape.records as i32 - 1;
        if shape.producer_epoch > history.epoch {
            if shape.base_sequence != 0 {
                return Err(45);
            }
        } else if let Some((_, _, base)) =
            recent.iter().find(|(first, end, _)| (*first, *end) == (shape.base_sequence, last))
        {
            return Ok(Some(*base));
        } else if shape.base_sequence != recent.last().map_or(0, |(_, end, _)| end + 1) {
            return Err(45);
        }
        if self.open_transactions().contains_key(&shape.producer_id) && !shape.transactional {
            return Err(48);
        }
        Ok(None)
    }

    fn store(&mut self, stored: Stored) {
        if stored.producer_id >= 0 {
            let history = self.histories.entry(stored.producer_id).or_default();
            if history.epoch < stored.producer_epoch {
                *history = History { epoch: stored.producer_epoch, batches: Vec::new() };
            }
            if matches!(stored.kind, Kind::Plain | Kind::Transactional) {
                let last = stored.base_sequence + (stored.last - stored.base) as i32;
                history.batches.push((stored.base_sequence, last, stored.base));
            }
        }
        if self.epochs.last().is_none_or(|(epoch, _)| *epoch < stored.leader_epoch) {
            self.epochs.push((stored.leader_epoch, stored.base));
        }
        self.end = stored.last + 1;
        self.batches.push(stored);
    }

    fn readable(&self) -> impl Iterator<Item = &Stored> {
        self.batches.iter().filter(|batch| batch.last >= self.start)
    }

    /// Base offsets of the data batches from `offset` on that a reader of committed data is given.
    fn committed_from(&self, offset: i64) -> Vec<i64> {
        let stable = self.stable();
        let fate = |index: usize, batch: &Stored| match batch.kind {
            Kind::Plain => true,
            Kind::Transactional => self.batches[index..]
                .iter()
                .find(|later| {
                    later.producer_id == batch.producer_id && matches!(later.kind, Kind::Commit | Kind::Abort)
                })
                .is_some_and(|end| end.kind == Kind::Commit),
            Kind::Commit | Kind::Abort => false,
        };
        let batches = self.batches.iter().enumerate();
        let given = batches
            .filter(|(index, batch)| batch.base < stable && batch.last >= offset && fate(*index, batch));
        given.map(|(_, batch)| batch.base).collect()
    }
}

struct World {
    random: u64,
    log: Log,
    oracle: Oracle,
    leader_epoch: i32,
    now_ms: i64,
}

impl World {
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    fn step(&mut self) {
        self.now_ms += self.below(20) as i64;
        match self.below(22) {
            0..10 => self.produce(),
            10..14 => self.end_transaction(),
            14 => self.leader_epoch += self.below(2) as i32,
            15 => self.trim(),
            16 if self.below(4) == 0 => self.truncate(),
            16 | 17 => self.check_timestamps(),
            _ => self.check_reads(),
        }
        self.log.invariants();
        assert_eq!(self.log.start_offset(), self.oracle.start);
        assert_eq!(self.log.end_offset(), self.oracle.end);
        assert_eq!(self.log.last_stable_offset(), self.oracle.stable());
        let bytes: usize = self.oracle.readable().map(|batch| batch.length).sum();
        assert_eq!(self.log.bytes(), bytes as u64);
    }

    fn produce(&mut self) {
        let producer_id = self.below(PRODUCERS + 1) as i64 - 1;
        let mut shape = Shape {
            records: 1 + self.below(5) as usize,
            timestamp_ms: self.now_ms - self.below(30) as i64,
            codec: if self.below(2) == 0 { Codec::None } else { Codec::Lz4 },
            ..Shape::default()
        };
        if producer_id >= 0 {
            let history = self.oracle.histories.get(&producer_id);
            let (epoch, next) = history.map_or((0, 0), |history| {
                (history.epoch, history.batches.last().map_or(0, |batch| batch.1 + 1))
            });
            shape.producer_id = producer_id;
            shape.producer_epoch = epoch;
            shape.base_sequence = next;
            shape.transactional = producer_id % 2 == 0 || self.below(10) == 0;
            match self.below(12) {
                0 => shape.base_sequence += 1 + self.below(3) as i32,
                1 => shape.producer_epoch -= 1,
                2 => shape.producer_epoch += 1,
                3 => (shape.producer_epoch, shape.base_sequence) = (epoch + 1, 0),
                4 | 5 => self.repeat(&mut shape),
                _ => {}
            }
            if shape.producer_epoch < 0 {
                return;
            }
        }
        self.append(&shape);
    }

    /// Makes `shape` a batch that came before, perhaps too long ago.
    fn repeat(&mut self, shape: &mut Shape) {
        let Some(history) = self.oracle.histories.get(&shape.producer_id) else { return };
        if history.batches.is_empty() {
            return;
        }
        let back = self.random as usize % history.batches.len().min(8);
        let (first, last, _) = history.batches[history.batches.len() - 1 - back];
        shape.base_sequence = first;
        shape.records = (last - first + 1) as usize;
    }

    fn append(&mut self, shape: &Shape) {
        let bytes = batch(shape);
        let length = bytes.len();
        let parsed = ProducedBatch::parse(bytes, usize::MAX).expect("built to be good");
        let expected = self.oracle.answer(shape);
        let told = self.log.append(&parsed, self.leader_epoch, self.now_ms);
        let base = match expected {
            Err(code) => return assert_eq!(told, Err(code)),
            Ok(Some(base)) => {
                let told = told.expect("a duplicate is no error");
                return assert_eq!((told.base_offset, told.duplicate), (base, true));
            }
            Ok(None) => self.oracle.end,
        };
        let told = told.expect("in order");
        assert_eq!((told.base_offset, told.duplicate), (base, false));
        self.oracle.store(Stored {
            base,
            last: base + shape.records as i64 - 1,
            length,
            timestamp_ms: shape.timestamp_ms,
            leader_epoch: self.leader_epoch,
            producer_id: shape.producer_id,
            producer_epoch: shape.producer_epoch,
            base_sequence: shape.base_sequence,
            kind: if shape.transactional { Kind::Transactional } else { Kind::Plain },
        });
    }

    fn end_transaction(&mut self) {
        let producer_id = self.below(PRODUCERS) as i64;
        let commit = self.below(2) == 0;
        let bump = i16::from(self.below(4) == 0);
        let base = self.oracle.end;
        let epoch = self.oracle.histories.get(&producer_id).map_or(0, |history| history.epoch) + bump;
        let told = self.log.append_marker(producer_id, epoch, commit, 1, self.leader_epoch, self.now_ms);
        assert_eq!(told, base);
        self.oracle.store(Stored {
            base,
            last: base,
            length: 78,
            timestamp_ms: self.now_ms,
            leader_epoch: self.leader_epoch,
            producer_id,
            producer_epoch: epoch,
            base_sequence: -1,
            kind: if commit { Kind::Commit } else { Kind::Abort },
        });
    }

    fn trim(&mut self) {
        if self.below(2) == 0 {
            // As DeleteRecords: also into the middle of a batch, but not past the last stable offset, as the oracle's
            // list of what is open must go on.
            let span = (self.oracle.stable() - self.oracle.start) as u64;
            let offset = self.oracle.start + self.below(span / 2 + 2) as i64;
            let offset = offset.min(self.oracle.stable());
            self.log.delete_records_before(offset);
            self.oracle.start = offset.max(self.oracle.start);
            return;
        }
        let bytes = self.oracle.readable().map(|batch| batch.length).sum::<usize>() as u64;
        let kept = self.below(bytes + 1);
        self.log.trim_to_bytes(kept);
        let (mut left, stable) = (bytes, self.oracle.stable());
        let mut start = self.oracle.start;
        for batch in self.oracle.readable() {
            if left <= kept || batch.last >= stable {
                break;
            }
            left -= batch.length as u64;
            start = batch.last + 1;
        }
        self.oracle.start = start;
    }

    /// Only before anything is trimmed: what the log knew of producers from there is not found again.
    fn truncate(&mut self) {
        if self.oracle.start > 0 || self.oracle.end == 0 {
            return;
        }
        let offset = self.oracle.end - self.below(20.min(self.oracle.end as u64)) as i64;
        self.log.truncate_to(offset);
        let mut batches = std::mem::take(&mut self.oracle.batches);
        batches.retain(|batch| batch.last < offset);
        self.oracle = Oracle::default();
        for batch in batches {
            self.oracle.store(batch);
        }
    }

    fn check_reads(&mut self) {
        let (start, end) = (self.oracle.start, self.oracle.end);
        assert_eq!(self.log.read(end + 1, 1, false, true).err(), Some(1));
        assert_eq!(self.log.read(start - 1, 1, false, true).err(), Some(1));
        let offset = start + self.below((end - start) as u64 + 1) as i64;
        let bytes_max = self.below(2000) as usize;
        for committed in [false, true] {
            let limit = if committed { self.oracle.stable() } else { end };
            let due: Vec<_> =
                self.oracle.readable().filter(|batch| batch.last >= offset && batch.base < limit).collect();
            let available: usize = due.iter().map(|batch| batch.length).sum();
            assert_eq!(self.log.available_bytes(offset, committed, usize::MAX), available);
            assert_eq!(self.log.available_bytes(offset, committed, bytes_max), available.min(bytes_max));
            for at_least_one in [false, true] {
                let mut sizes = 0;
                let fitting = due.iter().take_while(|batch| {
                    sizes += batch.length;
                    sizes <= bytes_max
                });
                let count = fitting.count().max(usize::from(at_least_one)).min(due.len());
                let told = self.log.read(offset, bytes_max, committed, at_least_one).expect("within");
                assert_eq!(next_offset(&told), due[..count].last().map(|batch| batch.last + 1));
                let bases: Vec<_> =
                    due[..count].iter().map(|batch| (batch.base, batch.leader_epoch)).collect();
                assert_eq!(bases_of(told.records), bases);
            }
        }
        self.check_committed(offset);
    }

    /// A client of committed data that goes by the list of aborted transactions sees just what the oracle says.
    fn check_committed(&mut self, offset: i64) {
        let (mut position, mut seen) = (offset, Vec::new());
        loop {
            let bytes_max = self.below(1500) as usize;
            let told = self.log.read(position, bytes_max, true, true).expect("within");
            if told.records.is_empty() {
                break;
            }
            let mut pending = told.aborted.iter().map(|a| (a.first_offset, a.producer_id)).peekable();
            let mut aborting = BTreeSet::new();
            let mut records = told.records;
            while let Some(batch) = next_batch(&mut records).expect("sound") {
                batch.check_crc().expect("sealed");
                let header = batch.header;
                while let Some((_, producer_id)) =
                    pending.next_if(|(first, _)| *first <= header.last_offset())
                {
                    aborting.insert(producer_id);
                }
                if header.is_control() {
                    let payload = batch.payload(&mut Vec::new(), 1000).expect("plain");
                    let mut marker = None;
                    index_records(&header, &payload, &mut Vec::new(), |_, _, key| {
                        marker = ControlMarker::parse(&header, key).ok();
                    })
                    .expect("sound");
                    if marker == Some(ControlMarker::Abort) {
                        aborting.remove(&header.producer_id);
                    }
                } else if !(header.is_transactional() && aborting.contains(&header.producer_id)) {
                    seen.push(header.base_offset);
                }
                position = header.next_offset();
            }
        }
        assert_eq!(seen, self.oracle.committed_from(offset));
    }

    fn check_timestamps(&mut self) {
        let wanted = self.now_ms - self.below(300) as i64;
        let found = self.oracle.readable().find(|batch| batch.timestamp_ms >= wanted);
        let told = self.log.find_timestamp(wanted);
        assert_eq!(
            told.map(|told| (told.offset, told.timestamp_ms, told.leader_epoch)),
            found.map(|batch| (batch.base.max(self.oracle.start), batch.timestamp_ms, batch.leader_epoch))
        );
        let latest = self.oracle.readable().map(|batch| batch.timestamp_ms).max();
        assert_eq!(self.log.max_timestamp().map(|told| told.timestamp_ms), latest);
        if let Some((epoch, _)) = self.oracle.epochs.last().copied() {
            assert_eq!(self.log.epoch_end(epoch), (epoch, self.oracle.end));
            assert_eq!(self.log.epoch_end(epoch + 1), (-1, -1));
        }
        for pair in self.oracle.epochs.windows(2).filter(|pair| pair[1].1 > self.oracle.start) {
            assert_eq!(self.log.epoch_end(pair[0].0), (pair[0].0, pair[1].1));
        }
    }
}

fn bases_of(mut records: Bytes) -> Vec<(i64, i32)> {
    let mut bases = Vec::new();
    while let Some(batch) = next_batch(&mut records).expect("sound") {
        bases.push((batch.header.base_offset, batch.header.partition_leader_epoch));
    }
    assert!(records.is_empty(), "whole batches only");
    bases
}

#[test]
fn the_log_is_as_the_naive_one() {
    for seed in 1..=SEEDS {
        let mut world = World {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            log: Log::new(),
            oracle: Oracle::default(),
            leader_epoch: 0,
            now_ms: 1_000_000,
        };
        let run = std::panic::AssertUnwindSafe(|| (0..STEPS).for_each(|_| world.step()));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
