//! Records in the hands of handlers that can fail: tried, waiting for their next try, or waiting to be passed.
//!
//! A [`Try`] keeps its run, so its lane waits for it while every other lane goes on. Guarantees: a try is at one place
//! at a time (with a worker, here, or with the dead letters); what a try belongs to decides when it is to be broken off
//! ([`Shared::ends_of`](super::shared::Shared::ends_of)); what is given up is dropped or queued again by the board.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::board::{Board, Slot};
use super::run::{Run, RunRecord};
use super::shared::RecordBatch;
use super::tracker::Assignment;
use crate::exit::Exit;
use crate::handler::outcome::{Failed, Kind, Outcome};
use crate::handler::policy::{Policy, Verdict};
use crate::seed::records::random;

/// One record, or with `--batch` several of which all have one outcome, on the way to that outcome.
#[derive(Debug)]
pub struct Try {
    pub(super) run: Run<RecordBatch>,
    /// Number of this try, from 1.
    pub attempt: u32,
    /// Ordinary failures that count so far.
    pub(super) counted: u32,
    /// It was open in a child that died together with others: it is to be tried with no other open beside it.
    pub alone: bool,
}

impl Try {
    pub(super) fn new(run: Run<RecordBatch>) -> Try {
        Try { run, attempt: 1, counted: 0, alone: false }
    }

    /// Its records in the order to handle them in; at least one.
    pub fn records(&self) -> impl Iterator<Item = RunRecord<'_, RecordBatch>> {
        self.run.iter()
    }

    /// The first record.
    pub fn first(&self) -> RunRecord<'_, RecordBatch> {
        self.run.get(0).expect("a try has a record")
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.run.len()
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.run.is_empty()
    }

    /// The assignments that its records belong to.
    pub(super) fn places(&self) -> impl Iterator<Item = (Slot, Assignment)> {
        let mut last = None;
        self.records().filter_map(move |record| {
            let place = (record.slot, record.assignment);
            (last.replace(place) != Some(place)).then_some(place)
        })
    }

    /// `topic/partition@offset` of the first record, and how many follow.
    pub fn name(&self) -> String {
        let first = self.first();
        let name = format!("{}/{}@{}", first.batch.topic, first.batch.partition, first.offset);
        match self.len() {
            1 => name,
            more => format!("{name} and {} after it", more - 1),
        }
    }
}

/// A record that failed for good, on its way to what the policy says.
#[derive(Debug)]
pub struct Judged {
    /// The record.
    pub tried: Try,
    /// Its last failure.
    pub failed: Failed,
    /// Stop or DeadLetter.
    pub verdict: Verdict,
    /// Why the dead-letter topic does not take it.
    pub refused: Option<String>,
}

/// A dead letter that can never be taken.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Who says so, and why.
    pub why: String,
    /// What the run ends with.
    pub exit: Exit,
}

/// How many records came to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Tries after the first ones.
    pub retried: u64,
    /// Records whose copy in the dead-letter topic is acknowledged.
    pub dead_lettered: u64,
    /// Records passed by `--on-fail skip`.
    pub skipped: u64,
}

impl Outcomes {
    /// Records passed though they failed.
    pub fn failed(&self) -> u64 {
        self.dead_lettered + self.skipped
    }
}

/// What a try waits for.
#[derive(Debug)]
enum Waits {
    /// Its next try.
    Again,
    /// Whether a signal comes that its child's end would be explained by.
    Verdict(Failed),
}

/// A try that is with no worker, for whoever asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idle {
    /// It waits for its next try, which is due then.
    Until(Duration),
    /// It waits until then for a stop signal that would explain its child's end.
    ForSignal(Duration),
    /// The next worker takes it.
    Due,
    /// The engine is about to act on it.
    Judged,
}

/// A child that ended by a signal may have been sent the one that is about to reach keylane itself: its end is judged
/// when that would have come.
const SIGNAL_WAIT: Duration = Duration::from_millis(250);

/// All tries that are with no worker.
#[derive(Debug)]
pub(super) struct Tries {
    policy: Policy,
    /// For the jitter.
    seed: u64,
    draws: u64,
    waiting: BTreeMap<(Duration, u64), (Try, Waits)>,
    entered: u64,
    /// To be taken by the next worker.
    pub(super) due: VecDeque<Try>,
    /// The last one that a worker took was due: a new one has its turn.
    pub(super) is_new_next: bool,
    /// For the engine.
    pub(super) judged: Vec<Judged>,
    pub(super) outcomes: Outcomes,
    /// Records that a drain stops short of, while their assignments last.
    given_up: BTreeMap<(Slot, Assignment), u64>,
    /// Buffers of tries that are over.
    spares: Vec<Run<RecordBatch>>,
}

/// More buffers are not kept.
const SPARES_MAX: usize = 4096;
/// A buffer for more records is not kept.
const SPARE_RECORDS_MAX: usize = 16;

impl Tries {
    pub(super) fn new(policy: Policy, seed: u64) -> Tries {
        Tries {
            policy,
            seed,
            draws: 0,
            waiting: BTreeMap::new(),
            entered: 0,
            due: VecDeque::new(),
            is_new_next: false,
            judged: Vec::new(),
            outcomes: Outcomes::default(),
            given_up: BTreeMap::new(),
            spares: Vec::new(),
        }
    }

    /// An empty run for a new try.
    pub(super) fn spare_run(&mut self) -> Run<RecordBatch> {
        self.spares.pop().unwrap_or_default()
    }

    /// Keeps a run that is empty again, unless it had many records: those are rare, and large.
    pub(super) fn keep_run(&mut self, run: Run<RecordBatch>) {
        if self.spares.len() < SPARES_MAX && run.items.capacity() <= SPARE_RECORDS_MAX {
            self.spares.push(run);
        }
    }

    /// How many records of these slots drains have stopped short of since this was last asked. Those of an assignment
    /// that has ended since are another member's, and unfinished work of it alone.
    pub(super) fn take_given_up(&mut self, wanted: impl Fn(Slot) -> bool) -> u64 {
        let mut sum = 0;
        self.given_up.retain(|(slot, _), records| {
            let taken = wanted(*slot);
            sum += if taken { *records } else { 0 };
            !taken
        });
        sum
    }

    /// All of them; those that wait stand in the order in which they are due.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Try, Idle)> {
        let waiting = self.waiting.iter().map(|((due, _), (tried, waits))| match waits {
            Waits::Again => (tried, Idle::Until(*due)),
            Waits::Verdict(_) => (tried, Idle::ForSignal(*due)),
        });
        let due = self.due.iter().map(|tried| (tried, Idle::Due));
        due.chain(waiting).chain(self.judged.iter().map(|judged| (&judged.tried, Idle::Judged)))
    }

    /// How many they are.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.due.len() + self.judged.len()
    }

    /// When the first of those that wait is due.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.waiting.keys().next().map(|(due, _)| *due)
    }

    /// Takes the outcome of a try. Returns how many records are finished by it.
    pub(super) fn settle(
        &mut self,
        board: &mut Board<RecordBatch>,
        tried: Try,
        outcome: Outcome,
        now: Duration,
    ) -> u64 {
        match outcome {
            Outcome::Done => self.pass(board, tried),
            Outcome::Unfinished => {
                // Where nothing ends it was no fault of the record, and it is tried again with its number.
                if is_gone(board, &tried) || tried.places().any(|(slot, _)| board.is_draining(slot)) {
                    self.give_up(board, tried)
                } else {
                    self.due.push_back(tried)
                }
                0
            }
            Outcome::Failed(failed) => {
                if is_gone(board, &tried) {
                    // It failed after its partition had gone: whoever has that now tries it afresh.
                    self.give_up(board, tried);
                } else if failed.end.is_by_stop_signal() {
                    self.wait(now + SIGNAL_WAIT, tried, Waits::Verdict(failed));
                } else {
                    self.judge(board, tried, failed, now);
                }
                0
            }
        }
    }

    /// Its records are over: a commit may pass them. Returns how many they are.
    pub(super) fn pass(&mut self, board: &mut Board<RecordBatch>, mut tried: Try) -> u64 {
        let records = tried.len();
        board.complete(&mut tried.run, records);
        self.keep_run(tried.run);
        records as u64
    }

    fn judge(&mut self, board: &mut Board<RecordBatch>, mut tried: Try, failed: Failed, now: Duration) {
        if !failed.counts {
            tried.alone = true;
            tried.attempt = tried.attempt.saturating_add(1);
            return self.due.push_back(tried);
        }
        tried.counted += u32::from(failed.kind == Kind::Ordinary);
        let jitter = self.draw();
        match self.policy.judge(&failed, tried.attempt, tried.counted, jitter) {
            Verdict::Again(delay) => {
                tried.attempt = tried.attempt.saturating_add(1);
                // Without a delay there is nothing that the engine would have to be woken for.
                if delay.is_zero() {
                    self.due.push_back(tried)
                } else {
                    self.wait(now + delay, tried, Waits::Again)
                }
            }
            Verdict::Skip => {
                self.outcomes.skipped += self.pass(board, tried);
            }
            verdict => self.judged.push(Judged { tried, failed, verdict, refused: None }),
        }
    }

    fn wait(&mut self, due: Duration, tried: Try, waits: Waits) {
        self.entered += 1;
        self.waiting.insert((due, self.entered), (tried, waits));
    }

    /// Moves on what is due. Returns how many tries became ready for a worker.
    pub(super) fn ripen(&mut self, board: &mut Board<RecordBatch>, now: Duration) -> usize {
        let before = self.due.len();
        while let Some(first) = self.waiting.first_entry()
            && first.key().0 <= now
        {
            match first.remove() {
                (tried, Waits::Again) => self.due.push_back(tried),
                (tried, Waits::Verdict(failed)) => self.judge(board, tried, failed, now),
            }
        }
        self.due.len().saturating_sub(before)
    }

    /// Gives up what cannot be finished before its partition's drain is over: `limit` of a place is when, if it drains.
    /// The end of a child by a signal is explained by now. So is what the drain stops short of: another try of it, or a
    /// dead letter, would be for nothing. Returns whether there was any.
    pub(super) fn give_up_late(
        &mut self,
        board: &mut Board<RecordBatch>,
        limit: impl Fn(Slot) -> Option<Duration>,
    ) -> bool {
        let before = self.len();
        let late = |due, tried: &Try, waits: &Waits| {
            let verdict = matches!(waits, Waits::Verdict(_));
            tried.places().any(|(slot, _)| limit(slot).is_some_and(|limit| verdict || due > limit))
        };
        let out = self.take_waiting(late);
        out.into_iter().for_each(|tried| self.give_up(board, tried));
        // Each that is given up may be a new end of the drain.
        self.give_up_where(board, |board, tried, verdict| {
            !matches!(verdict, Some(Verdict::Stop(_)))
                && tried.records().any(|record| board.is_beyond_drain(record.slot, record.ordinal))
        });
        self.len() < before
    }

    /// Costs a look at each; those that stay are not moved.
    fn take_waiting(&mut self, mut wanted: impl FnMut(Duration, &Try, &Waits) -> bool) -> Vec<Try> {
        let wanted = self.waiting.iter().filter(|((due, _), (tried, waits))| wanted(*due, tried, waits));
        let keys: Vec<(Duration, u64)> = wanted.map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| self.waiting.remove(&key)).map(|(tried, _)| tried).collect()
    }

    /// Gives up what belongs to an assignment that has ended.
    pub(super) fn give_up_gone(&mut self, board: &mut Board<RecordBatch>) {
        self.give_up_where(board, |board, tried, _| is_gone(board, tried));
        self.given_up.retain(|(slot, assignment), _| board.assignment(*slot) == Some(*assignment));
    }

    /// Gives up what is wanted so, with its verdict if it has one.
    fn give_up_where(
        &mut self,
        board: &mut Board<RecordBatch>,
        wanted: impl Fn(&Board<RecordBatch>, &Try, Option<Verdict>) -> bool,
    ) {
        let mut out = self.take_waiting(|_, tried, _| wanted(board, tried, None));
        for tried in std::mem::take(&mut self.due) {
            if wanted(board, &tried, None) { out.push(tried) } else { self.due.push_back(tried) }
        }
        for judged in std::mem::take(&mut self.judged) {
            let is_wanted = wanted(board, &judged.tried, Some(judged.verdict));
            if is_wanted { out.push(judged.tried) } else { self.judged.push(judged) }
        }
        out.into_iter().for_each(|tried| self.give_up(board, tried));
    }

    /// Gives up all.
    pub(super) fn give_up_all(&mut self, board: &mut Board<RecordBatch>) {
        let waiting = std::mem::take(&mut self.waiting).into_values().map(|(tried, _)| tried);
        let judged = std::mem::take(&mut self.judged).into_iter().map(|judged| judged.tried);
        let due = std::mem::take(&mut self.due);
        waiting.chain(due).chain(judged).for_each(|tried| self.give_up(board, tried));
    }

    /// The record stays unfinished: the drain, if there is one, stops short of it; else it is queued again in front.
    pub(super) fn give_up(&mut self, board: &mut Board<RecordBatch>, mut tried: Try) {
        for record in tried.run.iter() {
            let present = board.assignment(record.slot) == Some(record.assignment);
            if present && board.is_draining(record.slot) {
                *self.given_up.entry((record.slot, record.assignment)).or_default() += 1;
            }
            board.stop_short(record.slot, record.assignment, record.ordinal);
        }
        board.complete(&mut tried.run, 0);
    }

    fn draw(&mut self) -> u64 {
        self.draws += 1;
        random(self.seed, self.draws)
    }
}

/// Whether an assignment that the try belongs to has ended.
pub(super) fn is_gone(board: &Board<RecordBatch>, tried: &Try) -> bool {
    tried.places().any(|(slot, assignment)| board.assignment(slot) != Some(assignment))
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::handler::outcome::End;
    use crate::handler::tests::batch_of;
    use crate::pool::board::Dispatch;
    use crate::pool::route::{Route, Routed};

    /// Records from offset 0 on, all on one route.
    pub(in crate::pool) fn deliver(board: &mut Board<RecordBatch>, slot: Slot, route: Route, records: i64) {
        deliver_routed(board, slot, route, 0..records);
    }

    /// Records from this offset on, each with a lane of its own.
    pub(in crate::pool) fn deliver_from(board: &mut Board<RecordBatch>, slot: Slot, from: i64, records: i64) {
        deliver_routed(board, slot, Route::FREE, from..from + records);
    }

    fn deliver_routed(
        board: &mut Board<RecordBatch>,
        slot: Slot,
        route: Route,
        offsets: std::ops::Range<i64>,
    ) {
        let (header, payload) = batch_of(Some(b"k"), Some(b"v"), &[]);
        let batch = RecordBatch { topic: Arc::from("t"), partition: 0, header, payload, positions: vec![0] };
        let batch = board.open_batch(slot, Arc::new(batch), 1).expect("assigned");
        let records: Vec<Routed> = offsets.map(|offset| Routed { offset, route }).collect();
        assert!(board.deliver(batch, 0, &records));
    }

    /// The next record.
    fn take(board: &mut Board<RecordBatch>) -> Try {
        let mut run = Run::default();
        board.take(0, 1, &mut run);
        Try::new(run)
    }

    /// A partition, and its one record with a worker.
    fn take_one(board: &mut Board<RecordBatch>) -> (Slot, Try) {
        let slot = board.assign(Arc::from("t"), 0, 0, -1);
        deliver(board, slot, Route::FREE, 1);
        (slot, take(board))
    }

    fn failed(kind: Kind, code: i32) -> Failed {
        Failed { kind, end: End::Exit(code), reason: String::new(), counts: true }
    }

    /// Whoever has the partition now tries the record afresh, and its tries are not counted twice.
    #[test]
    fn what_fails_after_its_partition_has_gone_is_not_tried_again() {
        let mut board = Board::new(Dispatch::Lanes);
        let mut tries = Tries::new(Policy::default(), 1);
        for is_gone in [false, true] {
            let (slot, tried) = take_one(&mut board);
            if is_gone {
                board.revoke(slot);
            }
            let outcome = Outcome::Failed(failed(Kind::Temporary, 75));
            tries.settle(&mut board, tried, outcome, Duration::ZERO);
            assert_eq!(tries.len(), usize::from(!is_gone));
            board.revoke(slot);
            tries.give_up_gone(&mut board);
        }
    }

    /// A member stood still while it gave a partition up short of a record, and lost it: it had nothing to do with that
    /// record any more, and yet called its own end, much later, unfinished.
    #[test]
    fn what_was_given_up_and_then_lost_is_no_unfinished_work() {
        let mut board = Board::new(Dispatch::Lanes);
        let mut tries = Tries::new(Policy::default(), 1);
        for is_lost in [false, true] {
            let (slot, tried) = take_one(&mut board);
            board.freeze(slot);
            tries.give_up(&mut board, tried);
            if is_lost {
                board.revoke(slot);
                tries.give_up_gone(&mut board);
            }
            assert_eq!(tries.take_given_up(|_| true), u64::from(!is_lost));
            board.revoke(slot);
        }
    }

    /// A drain that stops short of a record does not wait for the next try of one behind it, nor posts a letter of it:
    /// both come again.
    #[test]
    fn what_a_drain_stops_short_of_is_not_tried_again() {
        let mut board = Board::new(Dispatch::Lanes);
        let mut tries = Tries::new(Policy::default(), 1);
        let slot = board.assign(Arc::from("t"), 0, 0, -1);
        deliver(&mut board, slot, Route::FREE, 5);
        let [before, short, due, waiting, judged] = [(); 5].map(|()| take(&mut board));
        board.freeze(slot);
        tries.due.extend([before, due]);
        tries.wait(Duration::from_secs(9), waiting, Waits::Again);
        let (failed, verdict) = (failed(Kind::Ordinary, 1), Verdict::DeadLetter);
        tries.judged.push(Judged { tried: judged, failed, verdict, refused: None });
        let limit = Duration::from_secs(20);
        assert!(!tries.give_up_late(&mut board, |_| Some(limit)), "all can be done in time");
        tries.give_up(&mut board, short);
        assert!(tries.give_up_late(&mut board, |_| Some(limit)));
        assert_eq!(tries.len(), 1);
        assert_eq!(tries.due[0].first().offset, 0);
        assert_eq!(tries.take_given_up(|_| true), 4);
    }
}
