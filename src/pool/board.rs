//! Everything that stands behind the pool's one mutex: per partition the tracker, the dispatcher, the counts.
//!
//! Guarantees:
//! - a record is registered with the tracker in the same call that queues it, so no commit can pass it;
//! - one record of a lane (or of a hash worker) is with a worker at a time, across assignments too;
//! - what belongs to an older assignment changes no tracker: it only frees its lane and its batch;
//! - held records = queued + with workers; nothing else is kept per record.
//!
//! A record costs no allocation, no atomic and no strong hash.

mod numbers;

use std::sync::Arc;

use super::batch::{BatchId, Batches, Origin, Released};
use super::hash::Hash;
use super::items::{Item, Items};
use super::lanes::Lanes;
use super::route::Routed;
use super::run::{Run, RunBatch, RunItem};
use super::sequence::Sequence;
use super::tracker::{Assignment, Tracker};

pub use numbers::{Counts, LongLane, SlotCounts};

/// A partition's place on the board: the same for the life of the process, whoever owns the partition meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u32);

impl Slot {
    pub(crate) fn new(index: u32) -> Slot {
        Slot(index)
    }

    /// Slots count from 0 in the order of first assignment.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// How records find a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// Any idle worker takes the next ready lane.
    Lanes,
    /// Each key has its worker.
    Hash {
        /// Number of workers, not 0.
        workers: u32,
    },
    /// Any idle worker takes the next partition that no other worker has.
    Partitions,
    /// One worker; the partitions in turn.
    Sequential {
        /// Records that a partition gives before the next one's turn, not 0.
        chunk_records_max: u32,
    },
}

/// One line of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The partition's slot, for [`Board::commit_acked`].
    pub slot: Slot,
    /// The assignment that the offset belongs to.
    pub assignment: Assignment,
    /// Topic name.
    pub topic: Arc<str>,
    /// Partition number.
    pub partition: i32,
    /// The next offset to read.
    pub offset: i64,
    /// Leader epoch of the last batch passed, −1 if unknown.
    pub epoch: i32,
}

#[derive(Debug)]
struct Partition {
    topic: Arc<str>,
    partition: i32,
    /// None while the partition is not assigned.
    owned: Option<Owned>,
}

#[derive(Debug)]
struct Owned {
    assignment: Assignment,
    tracker: Tracker,
    queued: u64,
    inflight: u64,
    /// One past the highest ordinal that a worker has taken.
    started_end: u64,
    /// Draining: no ordinal from here on is handed out.
    target_end: Option<u64>,
}

#[derive(Debug)]
enum Dispatcher {
    Lanes(Lanes),
    Hash(Hash),
    Sequential(Sequence),
}

/// The board. `B` is the decoded batch that records are read from.
#[derive(Debug)]
pub struct Board<B> {
    dispatcher: Dispatcher,
    items: Items,
    batches: Batches<B>,
    slots: Vec<Partition>,
    next_assignment: Assignment,
    queued: u64,
    inflight: u64,
    /// See [`Board::passed`].
    passed: u64,
    /// Number of the latest run.
    runs: u64,
}

/// Where a run takes records from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// Whatever is ready for this worker.
    Ready(u32),
    /// A lane that it has.
    Lane(u32),
    /// That, and then whatever is ready.
    LaneThenReady(u32),
}

impl<B> Board<B> {
    /// An empty board.
    pub fn new(dispatch: Dispatch) -> Board<B> {
        let dispatcher = match dispatch {
            Dispatch::Lanes => Dispatcher::Lanes(Lanes::new()),
            Dispatch::Hash { workers } => Dispatcher::Hash(Hash::new(workers)),
            Dispatch::Partitions => Dispatcher::Sequential(Sequence::side_by_side()),
            Dispatch::Sequential { chunk_records_max } => {
                Dispatcher::Sequential(Sequence::one_at_a_time(chunk_records_max))
            }
        };
        Board {
            dispatcher,
            items: Items::new(),
            batches: Batches::new(),
            slots: Vec::new(),
            next_assignment: Assignment::FIRST,
            queued: 0,
            inflight: 0,
            passed: 0,
            runs: 0,
        }
    }

    // ---- Assignments ----

    /// The partition is newly added, to be read from `position`; `leader_epoch` goes with commits until a batch is
    /// passed. It must not be assigned already.
    pub fn assign(&mut self, topic: Arc<str>, partition: i32, position: i64, leader_epoch: i32) -> Slot {
        let known = self.slots.iter().position(|slot| slot.partition == partition && slot.topic == topic);
        let index = known.unwrap_or_else(|| {
            self.slots.push(Partition { topic, partition, owned: None });
            self.batches.slot_bytes.push(0);
            if let Dispatcher::Sequential(sequence) = &mut self.dispatcher {
                sequence.add_slot();
            }
            self.slots.len() - 1
        });
        assert!(self.slots[index].owned.is_none(), "a partition is revoked before it is assigned again");
        self.own(index, position, leader_epoch);
        Slot(u32::try_from(index).expect("partitions are bounded by the cluster"))
    }

    /// The position moves back (or anywhere, where the log was cut): a new assignment. What was queued is dropped, what
    /// is with workers changes nothing any more, commits start afresh from `position`.
    pub fn reset(&mut self, slot: Slot, position: i64, leader_epoch: i32) {
        self.lost(slot);
        self.own(slot.index(), position, leader_epoch);
    }

    /// The position at which the slot was just assigned is to be committed, though nothing is finished.
    pub fn commit_start(&mut self, slot: Slot) {
        if let Some(owned) = self.owned_mut(slot) {
            owned.tracker.commit_start();
        }
    }

    /// Ends the assignment and returns what `next` and its epoch were at the end, or None if it was not assigned. To be
    /// called when the last commit is acknowledged, or given up.
    pub fn revoke(&mut self, slot: Slot) -> Option<(i64, i32)> {
        self.drop_from(slot, 0);
        self.batches.close_all(slot.0);
        let owned = self.slots[slot.index()].owned.take()?;
        self.passed -= owned.tracker.pending();
        Some(owned.tracker.next())
    }

    /// Ends the assignment; somebody else may own the partition already.
    pub fn lost(&mut self, slot: Slot) {
        self.revoke(slot);
    }

    /// The slot's assignment, if it has one.
    pub fn assignment(&self, slot: Slot) -> Option<Assignment> {
        self.owned(slot).map(|owned| owned.assignment)
    }

    /// Topic and partition of a slot.
    pub fn name(&self, slot: Slot) -> (&Arc<str>, i32) {
        let partition = &self.slots[slot.index()];
        (&partition.topic, partition.partition)
    }

    /// The assigned slots.
    pub fn assigned(&self) -> impl Iterator<Item = Slot> {
        (0..).zip(&self.slots).filter(|(_, slot)| slot.owned.is_some()).map(|(index, _)| Slot(index))
    }

    // ---- Delivery ----

    /// Takes in a decoded batch that is charged with `bytes`. None if the slot is not assigned or is draining.
    pub fn open_batch(&mut self, slot: Slot, batch: Arc<B>, bytes: u64) -> Option<BatchId> {
        let owned = self.owned(slot).filter(|owned| owned.target_end.is_none())?;
        let assignment = owned.assignment;
        Some(self.batches.open(slot.0, assignment, batch, bytes))
    }

    /// Tells where the batch that was opened last begins, and its leader epoch.
    pub fn enter_batch(&mut self, slot: Slot, base_offset: i64, leader_epoch: i32) {
        if let Some(owned) = self.owned_mut(slot) {
            owned.tracker.enter(base_offset, leader_epoch);
        }
    }

    /// Registers and queues the records `first_index…` of an open batch, in offset order. False, and nothing is done,
    /// if the assignment has ended or is draining.
    pub fn deliver(&mut self, id: BatchId, first_index: u32, records: &[Routed]) -> bool {
        let count = u32::try_from(records.len()).expect("a slice of a batch has few records");
        let first_offset = records.first().map_or(0, |first| first.offset);
        let register = |tracker: &mut Tracker| tracker.register(records.iter().map(|record| record.offset));
        let Some(origin) = self.register(id, first_index, first_offset, count, register) else {
            return false;
        };
        let first = Item::new(id.index, first_index, 0);
        match &mut self.dispatcher {
            Dispatcher::Lanes(lanes) => lanes.enqueue(&mut self.items, &origin, first, records),
            Dispatcher::Hash(hash) => hash.enqueue(&mut self.items, &origin, first, records),
            Dispatcher::Sequential(sequence) => sequence.enqueue(&origin, first, records),
        }
        true
    }

    /// [`Board::deliver`] for `count` records with consecutive offsets, where dispatch is by partition: no record needs
    /// a look then.
    ///
    /// # Panics
    /// Dispatch is by key.
    pub fn deliver_run(&mut self, id: BatchId, first_index: u32, first_offset: i64, count: u32) -> bool {
        let register = |tracker: &mut Tracker| tracker.register_run(first_offset, u64::from(count));
        let Some(origin) = self.register(id, first_index, first_offset, count, register) else {
            return false;
        };
        let Dispatcher::Sequential(sequence) = &mut self.dispatcher else {
            panic!("a run is delivered where dispatch is by partition")
        };
        sequence.enqueue_run(&origin, Item::new(id.index, first_index, 0), first_offset, count);
        true
    }

    /// Registers records of an open batch with its tracker, before they are queued.
    fn register(
        &mut self,
        id: BatchId,
        first_index: u32,
        first_offset: i64,
        count: u32,
        register: impl FnOnce(&mut Tracker) -> u64,
    ) -> Option<Origin> {
        let entry = self.batches.opened(id)?;
        let owned = self.slots[id.slot as usize].owned.as_mut().filter(|owned| owned.target_end.is_none())?;
        let ordinal = register(&mut owned.tracker);
        if count > 0 {
            entry.deliver(first_index, count, first_offset, ordinal);
        }
        owned.queued += u64::from(count);
        self.queued += u64::from(count);
        Some(entry.origin)
    }

    /// All records of the batch were delivered: the position moves to its end, and it is released with its last record.
    pub fn close_batch(&mut self, id: BatchId, next_offset: i64, leader_epoch: i32) {
        if self.batches.opened(id).is_some() {
            self.batches.close(id);
            self.advance(Slot(id.slot), next_offset, leader_epoch);
        }
    }

    /// The position moves to `next_offset` without a record: past a batch with this leader epoch that has none for us
    /// (control, aborted, empty), or with epoch −1 past offsets that are gone. Nothing happens while draining.
    pub fn advance(&mut self, slot: Slot, next_offset: i64, leader_epoch: i32) {
        if let Some(owned) = self.owned_mut(slot)
            && owned.target_end.is_none()
        {
            owned.tracker.advance(next_offset, leader_epoch);
        }
    }

    /// Moves the batches that are no longer needed to `into`.
    pub fn take_released(&mut self, into: &mut Vec<Released<B>>) {
        into.append(&mut self.batches.released);
    }

    // ---- Workers ----

    /// Hands up to `records_max` records to `worker` (its number counts for [`Dispatch::Hash`] alone) in an empty run,
    /// which stays empty if none is ready. Those of one lane come together and in order. Each record that is not alone
    /// in its run keeps the others waiting, so ask for one where handling can block.
    pub fn take(&mut self, worker: u32, records_max: usize, run: &mut Run<B>) {
        assert!(run.is_empty(), "a run is completed before it is filled again");
        self.fill(Source::Ready(worker), records_max, run);
    }

    /// Hands up to `records_max` more records to a run that has some: of its one lane if `one_lane` (by
    /// [`Dispatch::Lanes`], whose lanes alone are keys), else of its last lane first and then of any that no run has.
    /// Returns whether more may come. The assignments of the run are present ones.
    pub fn take_more(&mut self, records_max: usize, one_lane: bool, run: &mut Run<B>) -> bool {
        let lane = run.items.last().map(|item| item.lane).expect("a run that is filled up has a record");
        let source = if one_lane { Source::Lane(lane) } else { Source::LaneThenReady(lane) };
        self.fill(source, records_max, run);
        match &self.dispatcher {
            Dispatcher::Lanes(lanes) => !one_lane || lanes.can_grow(lane),
            Dispatcher::Hash(_) | Dispatcher::Sequential(_) => true,
        }
    }

    #[inline]
    fn fill(&mut self, source: Source, records_max: usize, run: &mut Run<B>) {
        let before = run.items.len();
        self.runs += 1;
        let (stamp, batches) = (self.runs, &mut self.batches);
        let (taken, sources) = (&mut run.items, &mut run.batches);
        let mut sink = |lane: u32, item: &Item| {
            let entry = batches.entry(item.batch);
            if entry.run != stamp {
                entry.run = stamp;
                entry.handle = sources.len() as u32;
                let batch = Arc::clone(entry.batch.as_ref().expect("a queued record's batch is live"));
                let (index, origin) = (item.batch, entry.origin);
                sources.push(RunBatch { batch, index, origin, records: 0, index_end: 0 });
            }
            let handle = entry.handle;
            let source = &mut sources[handle as usize];
            source.records += 1;
            source.index_end = source.index_end.max(item.index + 1);
            taken.push(RunItem { index: item.index, delta: item.delta, lane, handle });
        };
        let items = &mut self.items;
        match (&mut self.dispatcher, source) {
            (Dispatcher::Lanes(lanes), Source::Ready(_)) => lanes.take(items, records_max, sink),
            (Dispatcher::Lanes(lanes), Source::Lane(lane)) => {
                lanes.take_more(items, lane, records_max, sink);
            }
            (Dispatcher::Lanes(lanes), Source::LaneThenReady(lane)) => {
                let left = records_max - lanes.take_more(items, lane, records_max, &mut sink);
                lanes.take(items, left, sink);
            }
            (Dispatcher::Hash(hash), Source::Ready(worker)) => hash.take(items, worker, records_max, sink),
            // The lane is its worker's, who need not be the one that has the run now, for a later try.
            (Dispatcher::Hash(hash), Source::Lane(worker) | Source::LaneThenReady(worker)) => {
                hash.take_more(items, worker, records_max, sink);
            }
            (Dispatcher::Sequential(sequence), Source::Ready(_)) => sequence.take(records_max, sink),
            (Dispatcher::Sequential(sequence), Source::Lane(slot) | Source::LaneThenReady(slot)) => {
                sequence.take_more(slot, records_max, sink);
            }
        }
        let taken = (run.items.len() - before) as u64;
        self.queued -= taken;
        self.inflight += taken;
        // What the run had before is counted, and its assignments may have ended since.
        for source in run.batches.iter_mut().filter(|source| source.records > 0) {
            // Queues of ended assignments are dropped, so what is handed out belongs to the present one.
            let owned =
                self.slots[source.origin.slot as usize].owned.as_mut().expect("a queued record is owned");
            owned.queued -= u64::from(source.records);
            owned.inflight += u64::from(source.records);
            owned.started_end = owned.started_end.max(source.origin.ordinal(source.index_end));
            source.records = 0;
        }
    }

    /// The worker is done with the run: its first `finished` records are finished, the others go back to the front of
    /// their lanes in order (or are dropped, if their assignment has ended or drains short of them).
    pub fn complete(&mut self, run: &mut Run<B>, finished: usize) {
        assert!(finished <= run.items.len(), "no more is finished than was taken");
        let items = &run.items;
        let mut at = 0;
        while at < finished {
            let lane = items[at].lane;
            while at < finished && items[at].lane == lane {
                // Neighbours in a batch are finished together.
                let RunItem { handle, index, .. } = items[at];
                let follows = |item: &RunItem, n: u32| {
                    item.handle == handle && item.index == index + n && item.lane == lane
                };
                let mut count = 1;
                while at + (count as usize) < finished && follows(&items[at + count as usize], count) {
                    count += 1;
                }
                let source = &mut run.batches[handle as usize];
                source.records += count;
                if let Some(owned) = &mut self.slots[source.origin.slot as usize].owned
                    && owned.assignment == source.origin.assignment
                {
                    owned.tracker.finish(source.origin.ordinal(index), u64::from(count));
                    owned.inflight -= u64::from(count);
                    self.passed += u64::from(count);
                }
                at += count as usize;
            }
            if at < finished || items.get(at).is_none_or(|item| item.lane != lane) {
                self.release(lane, false);
            }
        }
        let mut end = items.len();
        while end > finished {
            let lane = items[end - 1].lane;
            while end > finished && items[end - 1].lane == lane {
                end -= 1;
                self.give_back(&items[end], &mut run.batches);
            }
            self.release(lane, true);
        }
        self.inflight -= run.items.len() as u64;
        run.items.clear();
        for source in run.batches.drain(..) {
            // The run's handle goes first: what is released then has one handle.
            drop(source.batch);
            self.batches.release(source.index, source.records);
        }
    }

    /// Records finished in all, but for those that come again: what ended after its assignment had, and what lay behind
    /// an unfinished record when it did.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// Whether `worker` would find a record now.
    pub fn has_work(&self, worker: u32) -> bool {
        match &self.dispatcher {
            Dispatcher::Hash(hash) => hash.has_work(worker),
            _ => self.ready() > 0,
        }
    }

    // ---- Draining ----

    /// Begins to drain: only records up to the highest one started so far are handed out any more, what is beyond is
    /// dropped and comes again.
    pub fn freeze(&mut self, slot: Slot) {
        if let Some(owned) = self.owned_mut(slot)
            && owned.target_end.is_none()
        {
            let end = owned.started_end;
            owned.target_end = Some(end);
            self.drop_from(slot, end);
        }
    }

    /// Begins to drain every assigned partition.
    pub fn freeze_all(&mut self) {
        for index in 0..self.slots.len() {
            self.freeze(Slot(index as u32));
        }
    }

    /// The drain stops short of this record, which cannot finish in time: none from it on is handed out.
    pub fn stop_short(&mut self, slot: Slot, assignment: Assignment, ordinal: u64) {
        if let Some(owned) = self.owned_mut(slot)
            && owned.assignment == assignment
            && let Some(end) = owned.target_end
            && ordinal < end
        {
            owned.target_end = Some(ordinal);
            self.drop_from(slot, ordinal);
        }
    }

    /// Whether the slot drains and stops short of this record: what becomes of it is not committed.
    pub fn is_beyond_drain(&self, slot: Slot, ordinal: u64) -> bool {
        self.owned(slot).and_then(|owned| owned.target_end).is_some_and(|end| ordinal >= end)
    }

    /// Whether the slot is assigned and draining.
    pub fn is_draining(&self, slot: Slot) -> bool {
        self.owned(slot).is_some_and(|owned| owned.target_end.is_some())
    }

    /// Whether every record up to the drain's target is finished and none beyond it is with a worker any more, which a
    /// target that was lowered leaves there; true also for a slot that is not assigned, false for one that is not
    /// draining.
    pub fn drained(&self, slot: Slot) -> bool {
        self.owned(slot).is_none_or(|owned| {
            owned.inflight == 0 && owned.target_end.is_some_and(|end| owned.tracker.first() >= end)
        })
    }

    /// Unfinished records up to the drain's targets, and in how many partitions.
    pub fn drain_left(&self) -> (u64, usize) {
        let left = self.slots.iter().filter_map(|slot| {
            let owned = slot.owned.as_ref()?;
            Some(owned.tracker.unfinished_below(owned.target_end?)).filter(|&left| left > 0)
        });
        left.fold((0, 0), |(records, partitions), left| (records + left, partitions + 1))
    }

    // ---- Commits ----

    /// The offset to commit and its epoch, unless the slot is not assigned.
    pub fn next(&self, slot: Slot) -> Option<(i64, i32)> {
        self.owned(slot).map(|owned| owned.tracker.next())
    }

    /// What a commit sent now has to say: each partition whose `next` is past its last acknowledged commit.
    pub fn commit_snapshot(&self) -> Vec<Commit> {
        let changed = (0..).zip(&self.slots).filter_map(|(index, slot)| {
            let owned = slot.owned.as_ref()?;
            let (offset, epoch) = owned.tracker.next();
            (offset != owned.tracker.committed()).then(|| Commit {
                slot: Slot(index),
                assignment: owned.assignment,
                topic: Arc::clone(&slot.topic),
                partition: slot.partition,
                offset,
                epoch,
            })
        });
        changed.collect()
    }

    /// Whether `next` of the slot is past its last acknowledged commit.
    pub fn has_news(&self, slot: Slot) -> bool {
        self.owned(slot).is_some_and(|owned| owned.tracker.next().0 != owned.tracker.committed())
    }

    /// Whether a snapshot would have a line.
    pub fn has_any_news(&self) -> bool {
        self.assigned().any(|slot| self.has_news(slot))
    }

    /// The cluster has acknowledged this line of a snapshot. Nothing happens if its assignment has ended.
    pub fn commit_acked(&mut self, commit: &Commit) {
        if let Some(owned) = self.owned_mut(commit.slot)
            && owned.assignment == commit.assignment
        {
            owned.tracker.acknowledge(commit.offset);
        }
    }

    // ---- Helpers ----

    fn owned(&self, slot: Slot) -> Option<&Owned> {
        self.slots[slot.index()].owned.as_ref()
    }

    fn owned_mut(&mut self, slot: Slot) -> Option<&mut Owned> {
        self.slots[slot.index()].owned.as_mut()
    }

    fn own(&mut self, index: usize, position: i64, leader_epoch: i32) {
        let assignment = self.next_assignment;
        self.next_assignment = assignment.following();
        self.slots[index].owned = Some(Owned {
            assignment,
            tracker: Tracker::new(position, leader_epoch),
            queued: 0,
            inflight: 0,
            started_end: 0,
            target_end: None,
        });
    }

    fn give_back(&mut self, item: &RunItem, sources: &mut [RunBatch<B>]) {
        let source = &mut sources[item.handle as usize];
        let present = self.slots[source.origin.slot as usize].owned.as_mut();
        let Some(owned) = present.filter(|owned| owned.assignment == source.origin.assignment) else {
            source.records += 1;
            return;
        };
        owned.inflight -= 1;
        let ordinal = source.origin.ordinal(item.index);
        if owned.target_end.is_some_and(|end| ordinal >= end) {
            source.records += 1;
            return;
        }
        owned.queued += 1;
        self.queued += 1;
        let back = Item::new(source.index, item.index, item.delta);
        match &mut self.dispatcher {
            Dispatcher::Lanes(lanes) => lanes.give_back(&mut self.items, item.lane, back),
            Dispatcher::Hash(hash) => hash.give_back(&mut self.items, item.lane, back),
            Dispatcher::Sequential(sequence) => sequence.give_back(item.lane, back, ordinal),
        }
    }

    #[inline]
    fn release(&mut self, lane: u32, first: bool) {
        match &mut self.dispatcher {
            Dispatcher::Lanes(lanes) => lanes.release(lane, first),
            Dispatcher::Hash(hash) => hash.release(lane),
            Dispatcher::Sequential(sequence) => sequence.release(lane),
        }
    }

    /// Drops the queued records of the slot from this ordinal on.
    fn drop_from(&mut self, slot: Slot, ordinal: u64) {
        if self.owned(slot).is_none_or(|owned| owned.queued == 0) {
            // To find that out by a look at every lane is too much for each of many partitions.
            return;
        }
        let batches = &mut self.batches;
        let mut count = 0;
        let mut keep = |item: &Item| {
            let origin = batches.entry(item.batch).origin;
            let keep = origin.slot != slot.0 || origin.ordinal(item.index) < ordinal;
            if !keep {
                batches.release(item.batch, 1);
                count += 1;
            }
            keep
        };
        match &mut self.dispatcher {
            Dispatcher::Lanes(lanes) => lanes.retain(&mut self.items, slot.0, &mut keep),
            Dispatcher::Hash(hash) => hash.retain(&mut self.items, &mut keep),
            Dispatcher::Sequential(sequence) => sequence.drop_from(slot.0, ordinal, |batch, records| {
                batches.release(batch, records);
                count += u64::from(records);
            }),
        }
        self.queued -= count;
        if let Some(owned) = self.owned_mut(slot) {
            owned.queued -= count;
        }
    }
}
