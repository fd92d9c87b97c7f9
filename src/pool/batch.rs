//! The decoded batches that the board holds, each until its last record is finished or dropped.
//!
//! Guarantees: a batch is charged in full while any record of it is queued or with a worker, of a revoked partition
//! too; it is counted per record here, under the board's lock, and never by an atomic per record.

use std::sync::Arc;

use super::tracker::Assignment;

/// An open batch: more of its records may be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchId {
    pub(crate) index: u32,
    pub(crate) slot: u32,
    pub(crate) assignment: Assignment,
}

/// A batch that the board no longer needs.
#[derive(Debug)]
pub struct Released<B> {
    /// The board's handle, the last one but for clones made elsewhere.
    pub batch: Arc<B>,
    /// What it was charged with.
    pub bytes: u64,
}

/// What turns an index and an offset delta within a batch into the record's ordinal and offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) slot: u32,
    pub(crate) assignment: Assignment,
    /// Offset of the first record delivered.
    offset: i64,
    /// The ordinal that index 0 has or would have; it may be below zero, going round.
    ordinal: u64,
}

impl Origin {
    #[inline]
    pub(crate) fn offset(&self, delta: u32) -> i64 {
        self.offset + i64::from(delta)
    }

    #[inline]
    pub(crate) fn ordinal(&self, index: u32) -> u64 {
        self.ordinal.wrapping_add(u64::from(index))
    }

    /// The delta of an offset that is not below the first; offsets of a batch span less than 2^31.
    #[inline]
    pub(crate) fn delta(&self, offset: i64) -> u32 {
        u32::try_from(offset - self.offset).expect("a batch spans less than 2^31 offsets")
    }
}

#[derive(Debug)]
pub(crate) struct Entry<B> {
    pub(crate) batch: Option<Arc<B>>,
    pub(crate) origin: Origin,
    /// The index that the next slice starts with, once there was one.
    next_index: Option<u32>,
    /// Records queued or with a worker, and one more while the batch is open.
    pub(crate) live: u32,
    pub(crate) open: bool,
    pub(crate) bytes: u64,
    /// The latest run that took records from here, and the batch's place in that run.
    pub(crate) run: u64,
    pub(crate) handle: u32,
}

impl<B> Entry<B> {
    /// A slice of `count` records is delivered: the batch's first, or the one that follows on the last.
    pub(crate) fn deliver(&mut self, first_index: u32, count: u32, offset: i64, ordinal: u64) {
        match self.next_index {
            None => {
                self.origin.offset = offset;
                self.origin.ordinal = ordinal.wrapping_sub(u64::from(first_index));
            }
            Some(next) => {
                assert!(next == first_index, "the slices of a batch follow each other");
                assert!(ordinal == self.origin.ordinal(next), "a partition's batches do not overlap");
            }
        }
        self.next_index = Some(first_index + count);
        self.live += count;
    }
}

/// The slab of batches.
#[derive(Debug)]
pub(crate) struct Batches<B> {
    entries: Vec<Entry<B>>,
    free: Vec<u32>,
    pub(crate) released: Vec<Released<B>>,
    /// Bytes charged, over all slots.
    pub(crate) bytes: u64,
    /// Bytes charged, by slot.
    pub(crate) slot_bytes: Vec<u64>,
}

impl<B> Batches<B> {
    pub(crate) fn new() -> Batches<B> {
        Batches {
            entries: Vec::new(),
            free: Vec::new(),
            released: Vec::new(),
            bytes: 0,
            slot_bytes: Vec::new(),
        }
    }

    pub(crate) fn open(&mut self, slot: u32, assignment: Assignment, batch: Arc<B>, bytes: u64) -> BatchId {
        self.bytes += bytes;
        self.slot_bytes[slot as usize] += bytes;
        let origin = Origin { slot, assignment, offset: 0, ordinal: 0 };
        let batch = Some(batch);
        let entry = Entry { batch, origin, next_index: None, live: 1, open: true, bytes, run: 0, handle: 0 };
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("batches are bounded far below 2^32")
            }
        };
        BatchId { index, slot, assignment }
    }

    /// The entry of an open batch, unless its assignment has ended.
    pub(crate) fn opened(&mut self, id: BatchId) -> Option<&mut Entry<B>> {
        let entry = self.entries.get_mut(id.index as usize)?;
        (entry.open && entry.origin.assignment == id.assignment).then_some(entry)
    }

    pub(crate) fn close(&mut self, id: BatchId) {
        if let Some(entry) = self.opened(id) {
            entry.open = false;
            self.release(id.index, 1);
        }
    }

    /// Closes every open batch of a slot.
    pub(crate) fn close_all(&mut self, slot: u32) {
        for index in 0..self.entries.len() {
            let entry = &mut self.entries[index];
            if entry.open && entry.origin.slot == slot {
                entry.open = false;
                self.release(index as u32, 1);
            }
        }
    }

    /// `records` fewer are live; the last one releases the batch.
    pub(crate) fn release(&mut self, index: u32, records: u32) {
        let entry = &mut self.entries[index as usize];
        assert!(entry.live >= records, "a batch is released once per record");
        entry.live -= records;
        if entry.live > 0 || records == 0 {
            return;
        }
        let bytes = entry.bytes;
        self.bytes -= bytes;
        self.slot_bytes[entry.origin.slot as usize] -= bytes;
        let batch = entry.batch.take().expect("a live batch has its handle");
        self.released.push(Released { batch, bytes });
        self.free.push(index);
    }

    #[inline]
    pub(crate) fn entry(&mut self, index: u32) -> &mut Entry<B> {
        &mut self.entries[index as usize]
    }

    /// Where the batch of a queued record comes from.
    pub(crate) fn origin(&self, index: u32) -> Origin {
        self.entries[index as usize].origin
    }

    /// The batch of a queued record.
    pub(crate) fn batch(&self, index: u32) -> &Arc<B> {
        self.entries[index as usize].batch.as_ref().expect("a queued record's batch is live")
    }

    /// Live entries with their indices; for the invariant check.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Entry<B>)> {
        (0..).zip(&self.entries).filter(|(_, entry)| entry.batch.is_some())
    }
}
