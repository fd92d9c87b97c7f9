//! A naive model of the board, in sets and lists, that follows each operation and compares everything it can see.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::pool::batch::BatchId;
use crate::pool::board::{Board, Commit, Dispatch, Slot};
use crate::pool::route::{Route, Routed};
use crate::pool::run::Run;

/// One step. Steps that are impossible at the moment do nothing.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Assign {
        partition: i32,
        position: i64,
    },
    /// Records as (distance from the offset before, key); `close` ends the batch after a hole, with an epoch.
    Deliver {
        partition: i32,
        records: Vec<(i64, Option<u8>)>,
        close: Option<(i64, i32)>,
    },
    Advance {
        partition: i32,
        by: i64,
        epoch: i32,
    },
    Take {
        worker: u32,
        records_max: usize,
    },
    TakeMore {
        run: usize,
        records_max: usize,
        one_lane: bool,
    },
    Complete {
        run: usize,
        finished: usize,
    },
    Freeze {
        partition: i32,
    },
    StopShort {
        run: usize,
    },
    Revoke {
        partition: i32,
    },
    Reset {
        partition: i32,
        back: i64,
    },
    Snapshot,
    Acknowledge {
        snapshot: usize,
    },
}

/// What must not run twice at once and keeps its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    Key(i32, u8),
    Alone(u64),
    Worker(u64),
    Partition(i32),
}

#[derive(Clone, Copy, Debug)]
struct Record {
    partition: i32,
    /// Number of the assignment in the model.
    life: u64,
    ordinal: u64,
    offset: i64,
    lane: Lane,
    batch: usize,
    index: u32,
}

pub(super) struct Taken {
    pub(super) run: Run<usize>,
    /// Records by their number in the model.
    records: Vec<u64>,
}

struct Batch {
    id: BatchId,
    partition: i32,
    bytes: u64,
    next_index: u32,
    open: bool,
    released: bool,
}

#[derive(Default)]
struct Owned {
    life: u64,
    delivered: i64,
    offsets: Vec<i64>,
    done: BTreeSet<u64>,
    /// Ends of batches with their epochs.
    ends: Vec<(i64, i32)>,
    committed: i64,
    started_end: u64,
    target_end: Option<u64>,
    open: Option<usize>,
}

impl Owned {
    fn unfinished(&self) -> impl Iterator<Item = u64> {
        (0..self.offsets.len() as u64).filter(|ordinal| !self.done.contains(ordinal))
    }

    fn first(&self) -> u64 {
        self.unfinished().next().unwrap_or(self.offsets.len() as u64)
    }

    fn pending(&self) -> u64 {
        let first = self.first();
        self.done.iter().filter(|&&ordinal| ordinal > first).count() as u64
    }

    fn next(&self) -> (i64, i32) {
        let next = self.unfinished().next().map_or(self.delivered, |ordinal| self.offsets[ordinal as usize]);
        let passed = self.ends.iter().take_while(|end| end.0 <= next).last();
        (next, passed.map_or(-1, |end| end.1))
    }
}

pub(super) struct World {
    pub(super) board: Board<usize>,
    pub(super) runs: Vec<Taken>,
    dispatch: Dispatch,
    topic: Arc<str>,
    owned: BTreeMap<i32, Owned>,
    slots: BTreeMap<i32, Slot>,
    batches: Vec<Batch>,
    records: Vec<Record>,
    /// Queued records by number: in each lane the lowest is the next.
    queued: BTreeSet<u64>,
    snapshots: Vec<Vec<(i32, u64, Commit)>>,
    lives: u64,
    robin: u64,
    /// Records finished that do not come again.
    passed: u64,
}

impl World {
    pub(super) fn new(dispatch: Dispatch) -> World {
        World {
            board: Board::new(dispatch),
            runs: Vec::new(),
            dispatch,
            topic: Arc::from("t"),
            owned: BTreeMap::new(),
            slots: BTreeMap::new(),
            batches: Vec::new(),
            records: Vec::new(),
            queued: BTreeSet::new(),
            snapshots: Vec::new(),
            lives: 0,
            robin: 0,
            passed: 0,
        }
    }

    pub(super) fn apply(&mut self, op: &Op) {
        match *op {
            Op::Assign { partition, position } => self.assign(partition, position),
            Op::Deliver { partition, ref records, close } => self.deliver(partition, records, close),
            Op::Advance { partition, by, epoch } => {
                if let Some(owned) = self.owned.get_mut(&partition).filter(|owned| owned.open.is_none()) {
                    let to = owned.delivered + by;
                    self.board.advance(self.slots[&partition], to, epoch);
                    if owned.target_end.is_none() {
                        owned.delivered = to;
                        owned.ends.extend((epoch >= 0).then_some((to, epoch)));
                    }
                }
            }
            Op::Take { worker, records_max } => self.take(worker, records_max),
            Op::TakeMore { run, records_max, one_lane } => self.take_more(run, records_max, one_lane),
            Op::Complete { run, finished } => {
                if run < self.runs.len() {
                    self.complete(run, finished);
                }
            }
            Op::Freeze { partition } => self.freeze(partition),
            Op::StopShort { run } => self.stop_short(run),
            Op::Revoke { partition } => {
                if let Some(owned) = self.owned.remove(&partition) {
                    self.passed -= owned.pending();
                    assert_eq!(self.board.revoke(self.slots[&partition]), Some(owned.next()));
                    self.end(partition);
                }
            }
            Op::Reset { partition, back } => {
                if let Some(owned) = self.owned.remove(&partition) {
                    self.passed -= owned.pending();
                    let position = (owned.delivered - back).max(0);
                    self.board.reset(self.slots[&partition], position, -1);
                    self.end(partition);
                    self.own(partition, position);
                }
            }
            Op::Snapshot => self.snapshot(),
            Op::Acknowledge { snapshot } => {
                for (partition, life, commit) in self.snapshots.get(snapshot).into_iter().flatten() {
                    self.board.commit_acked(commit);
                    if let Some(owned) = self.owned.get_mut(partition).filter(|owned| owned.life == *life) {
                        owned.committed = owned.committed.max(commit.offset);
                    }
                }
            }
        }
        self.check();
    }

    /// Ends everything; nothing may be left.
    pub(super) fn wind_up(&mut self) {
        while !self.runs.is_empty() {
            self.apply(&Op::Complete { run: 0, finished: usize::MAX });
        }
        for worker in 0..3 {
            while self.board.has_work(worker) {
                self.apply(&Op::Take { worker, records_max: 5 });
                self.apply(&Op::Complete { run: 0, finished: usize::MAX });
            }
        }
        assert!(self.queued.is_empty(), "no record is left behind");
        assert_eq!(self.board.lanes(), 0);
        for partition in 0..3 {
            self.apply(&Op::Revoke { partition });
        }
        assert_eq!(self.board.counts(), crate::pool::board::Counts::default());
    }

    fn assign(&mut self, partition: i32, position: i64) {
        if self.owned.contains_key(&partition) {
            return;
        }
        let slot = self.board.assign(Arc::clone(&self.topic), partition, position, -1);
        assert_eq!(*self.slots.entry(partition).or_insert(slot), slot);
        self.own(partition, position);
    }

    fn own(&mut self, partition: i32, position: i64) {
        self.lives += 1;
        let owned = Owned { life: self.lives, delivered: position, committed: position, ..Owned::default() };
        self.owned.insert(partition, owned);
    }

    /// What the end of an assignment does to the rest.
    fn end(&mut self, partition: i32) {
        self.queued.retain(|&record| self.records[record as usize].partition != partition);
        self.batches
            .iter_mut()
            .filter(|batch| batch.partition == partition)
            .for_each(|batch| batch.open = false);
    }

    fn deliver(&mut self, partition: i32, records: &[(i64, Option<u8>)], close: Option<(i64, i32)>) {
        let Some(owned) = self.owned.get_mut(&partition) else { return };
        let frozen = owned.target_end.is_some();
        let at = match owned.open {
            Some(at) => at,
            None => {
                let (at, bytes) = (self.batches.len(), 100 + self.batches.len() as u64);
                let Some(id) = self.board.open_batch(self.slots[&partition], Arc::new(at), bytes) else {
                    assert!(frozen);
                    return;
                };
                assert!(!frozen);
                self.batches.push(Batch { id, partition, bytes, next_index: 0, open: true, released: false });
                at
            }
        };
        owned.open = Some(at);
        let mut routed = Vec::new();
        let mut offset = owned.delivered - 1;
        for &(distance, key) in records {
            offset += distance;
            let route = match (self.dispatch, key) {
                (_, None) => Route::FREE,
                (_, Some(key)) => Route::new(u64::from(key) % 3),
            };
            routed.push(Routed { offset, route });
        }
        let batch = &mut self.batches[at];
        let by_partition = matches!(self.dispatch, Dispatch::Partitions | Dispatch::Sequential { .. });
        let consecutive = routed.windows(2).all(|pair| pair[0].offset + 1 == pair[1].offset);
        let delivered = match routed.first() {
            Some(first) if by_partition && consecutive => {
                self.board.deliver_run(batch.id, batch.next_index, first.offset, routed.len() as u32)
            }
            _ => self.board.deliver(batch.id, batch.next_index, &routed),
        };
        assert_eq!(delivered, !frozen);
        for &Routed { offset, route } in routed.iter().filter(|_| !frozen) {
            let number = self.records.len() as u64;
            let lane = match self.dispatch {
                Dispatch::Lanes if route == Route::FREE => Lane::Alone(number),
                Dispatch::Lanes => Lane::Key(partition, route.value() as u8),
                Dispatch::Hash { workers } if route == Route::FREE => {
                    self.robin = (self.robin + 1) % u64::from(workers);
                    Lane::Worker(self.robin)
                }
                Dispatch::Hash { .. } => Lane::Worker(route.value()),
                Dispatch::Sequential { .. } | Dispatch::Partitions => Lane::Partition(partition),
            };
            let ordinal = owned.offsets.len() as u64;
            let (life, index) = (owned.life, batch.next_index);
            self.records.push(Record { partition, life, ordinal, offset, lane, batch: at, index });
            self.queued.insert(number);
            owned.offsets.push(offset);
            owned.delivered = offset + 1;
            batch.next_index += 1;
        }
        if let Some((hole, epoch)) = close {
            let end = owned.delivered + hole;
            self.board.close_batch(batch.id, end, epoch);
            owned.open = None;
            batch.open = false;
            if !frozen {
                owned.delivered = end;
                owned.ends.push((end, epoch));
            }
        }
    }

    fn running(&self) -> BTreeSet<Lane> {
        self.runs
            .iter()
            .flat_map(|run| &run.records)
            .map(|&record| self.records[record as usize].lane)
            .collect()
    }

    /// Lanes that may be handed out now.
    fn ready(&self) -> BTreeSet<Lane> {
        let running = self.running();
        if matches!(self.dispatch, Dispatch::Sequential { .. }) && !running.is_empty() {
            return BTreeSet::new();
        }
        let lanes = self.queued.iter().map(|&record| self.records[record as usize].lane);
        lanes.filter(|lane| !running.contains(lane)).collect()
    }

    fn take(&mut self, worker: u32, records_max: usize) {
        let mut ready = self.ready();
        if matches!(self.dispatch, Dispatch::Hash { .. }) {
            ready.retain(|&lane| lane == Lane::Worker(u64::from(worker)));
        }
        let mut run = Run::new();
        self.board.take(worker, records_max, &mut run);
        let records = self.check_taken(&run, 0, records_max, &ready);
        if !run.is_empty() {
            self.runs.push(Taken { run, records });
        }
    }

    fn take_more(&mut self, run: usize, records_max: usize, one_lane: bool) {
        let one_lane = one_lane && self.dispatch == Dispatch::Lanes;
        let Some(mut taken) = (run < self.runs.len()).then(|| self.runs.swap_remove(run)) else { return };
        let last = self.records[*taken.records.last().expect("runs are not empty") as usize].lane;
        let mut lanes = if one_lane { BTreeSet::new() } else { self.ready() };
        let own: Vec<Record> = taken.records.iter().map(|&record| self.records[record as usize]).collect();
        let is_present = |record: &Record| {
            self.owned.get(&record.partition).is_some_and(|owned| owned.life == record.life)
        };
        // The others of the run are released with it, and not to be begun anew before.
        for record in &own {
            lanes.remove(&record.lane);
        }
        if matches!(last, Lane::Worker(_)) {
            lanes.clear();
        }
        lanes.insert(last);
        if let Dispatch::Sequential { .. } = self.dispatch {
            lanes.extend((0..3).map(Lane::Partition));
        }
        if own.iter().all(is_present) {
            let more = self.board.take_more(records_max, one_lane, &mut taken.run);
            assert_eq!(more, !one_lane || !matches!(last, Lane::Alone(_)));
            let records = self.check_taken(&taken.run, own.len(), records_max, &lanes);
            taken.records.extend(records);
        }
        self.runs.push(taken);
    }

    /// Checks what was added to a run that had `before` records, and notes it.
    fn check_taken(
        &mut self,
        run: &Run<usize>,
        before: usize,
        records_max: usize,
        lanes: &BTreeSet<Lane>,
    ) -> Vec<u64> {
        let mut taken = Vec::new();
        for record in run.iter().skip(before) {
            let slot = record.slot;
            let number = *self
                .queued
                .iter()
                .find(|&&number| {
                    let queued = &self.records[number as usize];
                    self.slots[&queued.partition] == slot && queued.ordinal == record.ordinal
                })
                .expect("what is handed out was queued");
            let expected = self.records[number as usize];
            assert!(lanes.contains(&expected.lane), "a lane runs once at a time");
            let first = self.queued.iter().find(|&&other| self.records[other as usize].lane == expected.lane);
            assert_eq!(first, Some(&number), "a lane is in order");
            assert_eq!(
                (**record.batch, record.index, record.offset),
                (expected.batch, expected.index, expected.offset)
            );
            assert_eq!(Some(record.assignment), self.board.assignment(slot));
            self.queued.remove(&number);
            let owned = self.owned.get_mut(&expected.partition).expect("owned");
            owned.started_end = owned.started_end.max(expected.ordinal + 1);
            taken.push(number);
        }
        let all = self.queued.iter().all(|&other| !lanes.contains(&self.records[other as usize].lane));
        assert!(all || taken.len() == records_max, "a run is as full as it can be");
        taken
    }

    fn complete(&mut self, run: usize, finished: usize) {
        let mut taken = self.runs.remove(run);
        let finished = finished.min(taken.run.len());
        self.board.complete(&mut taken.run, finished);
        assert!(taken.run.is_empty());
        for (at, &number) in taken.records.iter().enumerate() {
            let record = self.records[number as usize];
            let Some(owned) = self.owned.get_mut(&record.partition).filter(|owned| owned.life == record.life)
            else {
                continue;
            };
            if at < finished {
                self.passed += 1;
                owned.done.insert(record.ordinal);
            } else if owned.target_end.is_none_or(|end| record.ordinal < end) {
                self.queued.insert(number);
            }
        }
    }

    fn freeze(&mut self, partition: i32) {
        let Some(owned) = self.owned.get_mut(&partition) else { return };
        self.board.freeze(self.slots[&partition]);
        owned.target_end.get_or_insert(owned.started_end);
        self.drop_beyond(partition);
    }

    fn stop_short(&mut self, run: usize) {
        let Some(taken) = self.runs.get(run) else { return };
        let record = self.records[taken.records[0] as usize];
        let from = taken.run.get(0).expect("runs are not empty");
        self.board.stop_short(from.slot, from.assignment, from.ordinal);
        let owned = self.owned.get_mut(&record.partition).filter(|owned| owned.life == record.life);
        if let Some(end) = owned.and_then(|owned| owned.target_end.as_mut()) {
            *end = record.ordinal.min(*end);
            self.drop_beyond(record.partition);
        }
    }

    fn drop_beyond(&mut self, partition: i32) {
        let end = self.owned[&partition].target_end.expect("draining");
        self.queued.retain(|&number| {
            let record = &self.records[number as usize];
            record.partition != partition || record.ordinal < end
        });
    }

    fn snapshot(&mut self) {
        let mut lines = Vec::new();
        let snapshot = self.board.commit_snapshot();
        for (&partition, owned) in &self.owned {
            let slot = self.slots[&partition];
            let line = snapshot.iter().find(|commit| commit.slot == slot);
            assert_eq!(
                line.map(|commit| (commit.offset, commit.epoch)),
                Some(owned.next()).filter(|next| next.0 != owned.committed)
            );
            if let Some(commit) = line {
                assert_eq!((&*commit.topic, commit.partition), ("t", partition));
                assert!(commit.offset > owned.committed, "never lower");
                lines.push((partition, owned.life, commit.clone()));
            }
        }
        assert_eq!(snapshot.len(), lines.len());
        self.snapshots.push(lines);
    }

    fn check(&mut self) {
        self.board.invariants();
        let counts = self.board.counts();
        let inflight: Vec<u64> = self.runs.iter().flat_map(|run| run.records.iter().copied()).collect();
        assert_eq!((counts.queued, counts.inflight), (self.queued.len() as u64, inflight.len() as u64));
        let mut pending = 0;
        let mut left = (0, 0);
        for (&partition, owned) in &self.owned {
            let slot = self.slots[&partition];
            let seen = self.board.slot_counts(slot).expect("owned");
            assert_eq!(self.board.next(slot), Some(owned.next()));
            let first = owned.first();
            assert_eq!(seen.ahead, owned.offsets.len() as u64 - first);
            assert_eq!(seen.pending, owned.pending());
            assert_eq!(seen.oldest, owned.offsets.get(first as usize).copied());
            assert_eq!(seen.delivered, owned.delivered);
            let own = |number: &&u64| self.records[**number as usize].life == owned.life;
            assert_eq!(seen.queued, self.queued.iter().filter(own).count() as u64);
            assert_eq!(seen.inflight, inflight.iter().filter(own).count() as u64);
            pending += seen.pending;
            let below =
                owned.target_end.map_or(0, |end| owned.unfinished().filter(|&ordinal| ordinal < end).count());
            left = (left.0 + below as u64, left.1 + usize::from(below > 0));
            let drained = owned.target_end.is_some() && below == 0 && seen.inflight == 0;
            assert_eq!(self.board.drained(slot), drained);
        }
        assert_eq!((counts.pending, self.board.passed()), (pending, self.passed));
        assert_eq!(self.board.drain_left(), left);
        let ready = self.ready();
        match self.dispatch {
            Dispatch::Lanes => {
                assert_eq!(counts.ready, ready.len());
                let lanes =
                    self.queued.iter().chain(&inflight).map(|&record| self.records[record as usize].lane);
                assert_eq!(
                    self.board.lanes(),
                    lanes.collect::<BTreeSet<_>>().len(),
                    "no lane outlives its records"
                );
            }
            Dispatch::Hash { .. } | Dispatch::Partitions => assert_eq!(counts.ready, ready.len()),
            Dispatch::Sequential { .. } => assert_eq!(counts.ready, usize::from(!ready.is_empty())),
        }
        self.check_batches(counts.held_bytes, &inflight);
    }

    fn check_batches(&mut self, held_bytes: u64, inflight: &[u64]) {
        let mut released = Vec::new();
        self.board.take_released(&mut released);
        for release in released {
            assert_eq!(Arc::strong_count(&release.batch), 1);
            let batch = &mut self.batches[*release.batch];
            assert!(!batch.released && release.bytes == batch.bytes);
            batch.released = true;
        }
        let used = self.queued.iter().chain(inflight).map(|&record| self.records[record as usize].batch);
        let mut live: BTreeSet<usize> = used.collect();
        live.extend((0..self.batches.len()).filter(|&at| self.batches[at].open));
        for (at, batch) in self.batches.iter().enumerate() {
            assert_eq!(batch.released, !live.contains(&at), "a batch is held while a record of it is");
        }
        assert_eq!(held_bytes, live.iter().map(|&at| self.batches[at].bytes).sum::<u64>());
    }
}
