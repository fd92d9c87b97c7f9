//! The board in numbers, and the check of all that it guarantees.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::batch::Origin;
use super::super::items::Item;
use super::{Board, Dispatcher, Slot};

/// The whole board in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records waiting for a worker.
    pub queued: u64,
    /// Records with a worker, those of ended assignments included.
    pub inflight: u64,
    /// Finished records that no commit can cover yet, because an earlier one is unfinished.
    pub pending: u64,
    /// How many workers could find something to take now. With records queued, none ready and workers idle, the keys
    /// are the limit.
    pub ready: usize,
    /// Bytes of all batches charged.
    pub held_bytes: u64,
}

/// One partition in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotCounts {
    /// Records waiting for a worker.
    pub queued: u64,
    /// Records of this assignment with a worker.
    pub inflight: u64,
    /// Finished records past the first unfinished one.
    pub pending: u64,
    /// Registered records past the first unfinished one, itself included.
    pub ahead: u64,
    /// Bytes of batches charged, those that only records of an ended assignment keep included.
    pub held_bytes: u64,
    /// The first unfinished offset.
    pub oldest: Option<i64>,
    /// The position up to which everything was delivered.
    pub delivered: i64,
    /// The last acknowledged commit, at first the position at assignment.
    pub committed: i64,
}

/// Records that wait for one lane.
#[derive(Debug)]
pub struct LongLane<'a, B> {
    /// The lane's partition.
    pub slot: Slot,
    /// How many wait.
    pub waiting: u64,
    /// The batch of the first of them.
    pub batch: &'a Arc<B>,
    /// Its index there.
    pub index: u32,
}

impl SlotCounts {
    /// Unfinished records that take up room.
    pub fn held(&self) -> u64 {
        self.queued + self.inflight
    }
}

impl<B> Board<B> {
    /// The whole board in numbers; costs a look at each partition.
    pub fn counts(&self) -> Counts {
        let pending =
            self.slots.iter().filter_map(|slot| slot.owned.as_ref()).map(|owned| owned.tracker.pending());
        Counts {
            queued: self.queued,
            inflight: self.inflight,
            pending: pending.sum(),
            ready: self.ready(),
            held_bytes: self.batches.bytes,
        }
    }

    /// One partition in numbers, unless it is not assigned.
    pub fn slot_counts(&self, slot: Slot) -> Option<SlotCounts> {
        let owned = self.owned(slot)?;
        Some(SlotCounts {
            queued: owned.queued,
            inflight: owned.inflight,
            pending: owned.tracker.pending(),
            ahead: owned.tracker.ahead(),
            held_bytes: self.batches.slot_bytes[slot.index()],
            oldest: owned.tracker.oldest(),
            delivered: owned.tracker.delivered(),
            committed: owned.tracker.committed(),
        })
    }

    /// Records waiting for a worker.
    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Records with workers.
    pub fn inflight(&self) -> u64 {
        self.inflight
    }

    /// Whether no record is queued and none is with a worker.
    pub fn is_idle(&self) -> bool {
        self.queued == 0 && self.inflight == 0
    }

    /// Whether a record can be taken by one worker only ([`Dispatch::Hash`](super::Dispatch::Hash)).
    pub fn has_fixed_workers(&self) -> bool {
        matches!(self.dispatcher, Dispatcher::Hash(_))
    }

    /// How many workers could find something to take now: ready lanes, free hash workers with records, or one.
    pub fn ready(&self) -> usize {
        match &self.dispatcher {
            Dispatcher::Lanes(lanes) => lanes.ready(),
            Dispatcher::Hash(hash) => hash.ready(),
            Dispatcher::Sequential(sequence) => sequence.ready(),
        }
    }

    /// Lanes in being (with a record queued or with a worker); 0 for the other dispatchers.
    pub fn lanes(&self) -> usize {
        match &self.dispatcher {
            Dispatcher::Lanes(lanes) => lanes.len(),
            _ => 0,
        }
    }

    /// The lanes with most records waiting, the longest first; none for the other dispatchers. Costs a look at each
    /// lane.
    pub fn longest_lanes(&self, lanes_max: usize) -> Vec<LongLane<'_, B>> {
        let Dispatcher::Lanes(lanes) = &self.dispatcher else { return Vec::new() };
        let long = lanes.longest(lanes_max).into_iter().filter_map(|long| {
            let first = self.items.iter(long.queue).next()?;
            let (slot, waiting) = (Slot(long.slot), u64::from(long.waiting));
            Some(LongLane { slot, waiting, batch: self.batches.batch(first.batch), index: first.index })
        });
        long.collect()
    }

    /// The batch of a record that is the first one waiting in its lane, and its index there. Costs a look at each lane.
    pub fn first_of_lane(&self, slot: Slot, offset: i64) -> Option<(&Arc<B>, u32)> {
        let Dispatcher::Lanes(lanes) = &self.dispatcher else { return None };
        let is_it = |item: &&Item| self.batches.origin(item.batch).offset(item.delta) == offset;
        let mut firsts = lanes.queues_of(slot.0).filter_map(|queue| self.items.iter(queue).next());
        firsts.find(is_it).map(|item| (self.batches.batch(item.batch), item.index))
    }

    /// Shows the first records (batch and index) that wait for the hash worker with the longest queue, and says how
    /// long that is; 0 for the other dispatchers.
    pub fn look_at_longest_queue(
        &self,
        records_max: usize,
        mut visit: impl FnMut(Slot, &Arc<B>, u32),
    ) -> u64 {
        let Dispatcher::Hash(hash) = &self.dispatcher else { return 0 };
        let Some((queue, waiting)) = hash.longest() else { return 0 };
        for item in self.items.iter(queue).take(records_max) {
            let batch = self.batches.batch(item.batch);
            visit(Slot(self.batches.origin(item.batch).slot), batch, item.index);
        }
        waiting.into()
    }

    /// Checks what the board guarantees, by a walk over everything; panics on a bug of ours. For tests.
    pub fn invariants(&self) {
        let mut queued = vec![0; self.slots.len()];
        let mut batch_queued = BTreeMap::<u32, u32>::new();
        let origins: BTreeMap<u32, Origin> =
            self.batches.iter().map(|(index, entry)| (index, entry.origin)).collect();
        let visit = |item: &Item| {
            let (slot, ordinal) = (origins[&item.batch].slot, origins[&item.batch].ordinal(item.index));
            queued[slot as usize] += 1;
            *batch_queued.entry(item.batch).or_default() += 1;
            let owned = self.slots[slot as usize].owned.as_ref().expect("only owned records are queued");
            assert!(
                owned.target_end.is_none_or(|end| ordinal < end),
                "nothing beyond a drain's target is queued"
            );
            assert!(ordinal >= owned.tracker.first(), "only unfinished records are queued");
            ordinal
        };
        match &self.dispatcher {
            Dispatcher::Lanes(lanes) => lanes.for_each(&self.items, visit),
            Dispatcher::Hash(hash) => hash.for_each(&self.items, visit),
            Dispatcher::Sequential(sequence) => sequence.for_each(visit),
        }
        let mut inflight = 0;
        for (slot, &queued) in self.slots.iter().zip(&queued) {
            let Some(owned) = &slot.owned else { continue };
            owned.tracker.invariants();
            assert_eq!(owned.queued, queued);
            assert!(owned.started_end <= owned.tracker.first() + owned.tracker.ahead());
            let held = owned.queued + owned.inflight;
            let unfinished = owned.tracker.ahead() - owned.tracker.pending();
            assert!(held <= unfinished);
            assert!(
                held == unfinished || owned.target_end.is_some(),
                "only a drain drops registered records"
            );
            inflight += owned.inflight;
        }
        assert_eq!(self.queued, queued.iter().sum::<u64>());
        assert!(inflight <= self.inflight, "what ended assignments left is counted too");
        let mut bytes = vec![0; self.slots.len()];
        let mut live = 0;
        for (index, entry) in self.batches.iter() {
            bytes[entry.origin.slot as usize] += entry.bytes;
            live += u64::from(entry.live - u32::from(entry.open));
            assert!(entry.live >= u32::from(entry.open) + batch_queued.get(&index).copied().unwrap_or(0));
            assert!(entry.live > 0);
        }
        assert_eq!(live, self.queued + self.inflight, "a batch lives as long as its records");
        assert_eq!(self.batches.slot_bytes, bytes);
        assert_eq!(self.batches.bytes, bytes.iter().sum::<u64>());
    }
}
