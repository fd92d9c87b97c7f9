//! What the network thread and the workers share: the board behind one mutex, and who waits for what.
//!
//! The mutex is held for a chunk of records at most and never while a record is handled. Workers park one by one and
//! are woken only as many as can find something; the network thread is woken only when it asked for it. How a thread
//! is woken and what time it is come from outside ([`Wake`], [`Clock`]), so that all of it runs on a virtual clock as
//! well.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use keylane_protocol::records::{BatchHeader, Payload};

use super::at_work::AtWork;
use super::board::{Board, Slot};
use super::tries::{self, Judged, Outcomes, Refused, Tries, Try};
use super::worker::Next;
use crate::driver::clock::Instant;
use crate::exit::Exit;
use crate::handler::outcome::Outcome;
use crate::handler::policy::{Policy, Verdict};

/// What time it is.
#[derive(Clone, Debug)]
pub enum Clock {
    /// Time since this instant.
    Real(Instant),
    /// Nanoseconds, set by somebody else.
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    /// Time since the start.
    pub fn now(&self) -> Duration {
        match self {
            Clock::Real(started) => started.elapsed(),
            Clock::Virtual(now_ns) => Duration::from_nanos(now_ns.load(Ordering::Acquire)),
        }
    }
}

/// Ends the waits of the network thread and the workers.
pub trait Wake: Send + Sync {
    /// The engine's next turn is due.
    fn wake_engine(&self);
    /// This worker is to look again; it may have done so already.
    fn wake_worker(&self, worker: u32);
}

/// A decoded batch, shared by the records that are read from it.
#[derive(Debug)]
pub struct RecordBatch {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: i32,
    /// The batch's header.
    pub header: BatchHeader,
    /// The unpacked records.
    pub payload: Payload,
    /// Where each record begins in the payload.
    pub positions: Vec<u32>,
}

/// When a worker wakes the network thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// Only when nothing is queued and no record is with a worker.
    WhenIdle,
    /// When so few records are queued, or none of them can be taken: there is room for more.
    WhenQueuedAtMost(u64),
    /// After every run: something is being drained.
    Always,
}

/// Why the work cannot go on.
#[derive(Debug)]
pub enum Failure {
    /// Writing the handler's output failed.
    Output(io::Error),
    /// A handler cannot be run, whatever the record, or something else that it needs failed: what to say.
    Handler(Exit, String),
}

impl Failure {
    /// Whether what is begun is still to be finished: children need not print, and who they print to is gone.
    pub(super) fn drains(&self) -> bool {
        matches!(self, Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// When what runs is to be broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// A child's group is sent TERM then.
    pub term_at: Duration,
    /// And KILL.
    pub kill_at: Duration,
}

/// From TERM to KILL where nothing else sets a limit.
pub const KILL_AFTER: Duration = Duration::from_secs(2);

impl Ends {
    /// At once.
    pub(super) const NOW: Ends = Ends { term_at: Duration::ZERO, kill_at: Duration::ZERO };

    /// Whichever is over first.
    pub(crate) fn earlier(self, other: Ends) -> Ends {
        if other.kill_at < self.kill_at { other } else { self }
    }

    /// In time for a drain from `now` until `until`: TERM 3 s before, KILL 1 s before, sooner in a short drain.
    pub(super) fn before(until: Duration, now: Duration) -> Ends {
        let drain = until.saturating_sub(now);
        let term = Duration::from_secs(3).min(drain / 2);
        let kill = Duration::from_secs(1).min(drain / 4);
        Ends { term_at: until - term, kill_at: until - kill }
    }
}

/// What a worker that takes tries can do with.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Tries that it has open already.
    pub open: usize,
    /// Tries that it takes at most now.
    pub tries_max: usize,
    /// Records of a try at most.
    pub records_max: usize,
    /// It was woken: there is something for it.
    pub woken: bool,
}

/// Everything behind the mutex.
#[derive(Debug)]
pub struct State {
    /// Which record may run next, which offset may be committed.
    pub board: Board<RecordBatch>,
    /// Numbers of the workers that are parked.
    pub(super) idle: Vec<u32>,
    /// Those that wait for more of a batch which they have begun.
    gathering: Vec<u32>,
    /// Workers end when they look next: see [`Shared::stop`].
    stop: bool,
    /// When to wake the network thread.
    pub attention: Attention,
    /// Records finished.
    pub processed: u64,
    /// The network thread is woken when so many are.
    pub wake_at: u64,
    /// When the first record was taken and the newest was finished, since the driver began.
    pub first_at: Option<Duration>,
    /// See `first_at`.
    pub last_at: Duration,
    /// The first failure of a worker.
    pub failure: Option<Failure>,
    /// Records that failed and what becomes of them.
    pub(super) tries: Tries,
    /// `--halt`: with so many dead letters and skips the run ends.
    pub(super) failed_max: u64,
    /// When what runs of a slot is to be broken off, while it drains.
    pub(super) ends: BTreeMap<Slot, Ends>,
}

/// The shared part of a pool.
pub struct Shared {
    state: Mutex<State>,
    clock: Clock,
    /// Until when records may be started, in µs of the clock.
    lease_us: AtomicU64,
    /// The same, but for one that was lost: it would have lasted until then.
    heard_us: AtomicU64,
    /// `State::stop`, for handlers that look without the lock.
    stopped: AtomicBool,
    workers: usize,
    at_work: AtWork,
    wake: Box<dyn Wake>,
    /// How many records a worker takes at a time: 1 where a handler can block.
    pub run_records_max: usize,
}

impl State {
    /// Whether the workers are to end.
    pub fn is_stopped(&self) -> bool {
        self.stop
    }

    /// Whether so many records failed that `--halt` ends the run.
    pub(super) fn is_halted(&self) -> bool {
        self.tries.outcomes.failed() >= self.failed_max
    }

    /// What is handed out by then is the last.
    fn freeze_if_halted(&mut self) {
        if self.is_halted() {
            self.board.freeze_all();
        }
    }

    /// What became of records that failed.
    pub fn outcomes(&self) -> Outcomes {
        self.tries.outcomes
    }
}

impl Shared {
    /// A board for `workers` workers. The clock is the one whose times the engine is given.
    pub fn new(
        board: Board<RecordBatch>,
        clock: Clock,
        wake: Box<dyn Wake>,
        workers: u32,
        run_records_max: usize,
    ) -> Self {
        Shared {
            state: Mutex::new(State {
                board,
                idle: Vec::new(),
                gathering: Vec::new(),
                stop: false,
                attention: Attention::WhenIdle,
                processed: 0,
                wake_at: u64::MAX,
                first_at: None,
                last_at: Duration::ZERO,
                failure: None,
                tries: Tries::new(Policy::default(), 0),
                failed_max: u64::MAX,
                ends: BTreeMap::new(),
            }),
            clock,
            lease_us: AtomicU64::new(0),
            heard_us: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            workers: workers as usize,
            at_work: AtWork::new(workers),
            wake,
            run_records_max,
        }
    }

    /// What becomes of records that fail; `seed` is for the jitter of delays.
    pub fn set_policy(&mut self, policy: Policy, seed: u64) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.tries = Tries::new(policy, seed);
    }

    /// Takes the lock. A panic elsewhere ends the process, so poison is never seen in a release build.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What time it is.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// What each worker is at.
    pub fn at_work(&self) -> &AtWork {
        &self.at_work
    }

    /// Records may be started until then.
    pub fn set_lease(&self, until: Duration) {
        let until_us = u64::try_from(until.as_micros()).unwrap_or(u64::MAX);
        let before = self.lease_us.swap(until_us, Ordering::AcqRel);
        if until_us > 0 {
            self.heard_us.store(until_us, Ordering::Release);
        }
        // Workers that found the lease over wait.
        let now_us = self.now().as_micros();
        if u128::from(before) <= now_us && now_us < u128::from(until_us) {
            self.wake_every_worker();
        }
    }

    /// Whether records may be started: the coordinator certainly still counts on us.
    pub fn may_start(&self) -> bool {
        self.now().as_micros() < u128::from(self.lease_us.load(Ordering::Acquire))
    }

    /// Whether the coordinator was heard within the session timeout. A member that it has removed may start nothing,
    /// and joins again.
    pub fn is_heard(&self) -> bool {
        self.now().as_micros() < u128::from(self.heard_us.load(Ordering::Acquire))
    }

    /// From now on nothing is begun, and what can be broken off is given up unfinished. The workers are still to be
    /// woken.
    pub fn stop(&self, state: &mut State) {
        state.stop = true;
        self.stopped.store(true, Ordering::Release);
    }

    /// Whether a handler is to give up the record that it is at.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Wakes as many parked workers as can find something, and releases the lock first. Where workers take runs, they
    /// are let sleep until there is a run for them, or `all` is said: waking one costs more than many records. Those
    /// that wait for more of a batch come first: what they have waits for no worker.
    pub fn wake_workers(&self, mut state: MutexGuard<'_, State>, all: bool) {
        let mut woken: Vec<u32> = Vec::new();
        if state.board.queued() > 0 {
            woken.append(&mut state.gathering);
        }
        let gathering = woken.len();
        self.pick_parked(&mut state, gathering, all, &mut woken);
        drop(state);
        self.wake_each(&woken);
    }

    /// Takes from the parked workers those who can find something, when `others` look as well.
    fn pick_parked(&self, state: &mut State, others: usize, all: bool, into: &mut Vec<u32>) {
        let State { board, idle, tries, .. } = state;
        if board.has_fixed_workers() {
            let mut due = tries.due.len();
            idle.retain(|worker| {
                let wake = board.has_work(*worker) || due > 0;
                due = due.saturating_sub(1);
                if wake {
                    into.push(*worker);
                }
                !wake
            });
            return;
        }
        let wanted = if self.run_records_max > 1 {
            // Busy workers come back within a run's time: more are woken only for what they cannot take.
            let busy = self.workers - idle.len();
            let max = self.run_records_max as u64;
            let runs = if all { board.queued().div_ceil(max) } else { board.queued() / max };
            usize::try_from(runs).unwrap_or(usize::MAX).min(board.ready()).saturating_sub(busy)
        } else {
            board.ready().saturating_sub(others) + tries.due.len()
        };
        for _ in 0..wanted.min(idle.len()) {
            into.extend(idle.pop());
        }
    }

    /// Takes tries for a worker whose handler can fail: those whose next try is due and new ones in turn, new ones up
    /// to its fair share, lest one worker has many open while others have none. With [`Next::Wait`] it is woken when
    /// there are more.
    pub fn take_tries(&self, worker: u32, want: Want, into: &mut Vec<Try>) -> Next {
        let mut state = self.lock();
        state.idle.retain(|idle| *idle != worker);
        if state.stop {
            return Next::End;
        }
        let before = into.len();
        if self.may_start() {
            let State { board, tries, .. } = &mut *state;
            let all = (board.ready() as u64 + board.inflight()).div_ceil(self.workers as u64);
            let share = usize::try_from(all).unwrap_or(usize::MAX).max(want.open + usize::from(want.woken));
            while into.len() - before < want.tries_max {
                let open = want.open + into.len() - before;
                // Tries that are due again at once must not keep every other lane waiting.
                let is_new_next =
                    std::mem::take(&mut tries.is_new_next) && open < share && board.has_work(worker);
                match tries.due.front().filter(|first| first.alone || !is_new_next) {
                    // It waits for the others to end, and new ones wait for it.
                    Some(first) if first.alone && open > 0 => break,
                    Some(first) => {
                        let alone = first.alone;
                        // One that was broken off, or never reached its child, is not tried again but at last.
                        tries.outcomes.retried += u64::from(first.attempt > 1);
                        into.extend(tries.due.pop_front());
                        tries.is_new_next = true;
                        if alone {
                            break;
                        }
                    }
                    None if open >= share => break,
                    None => {
                        let mut run = tries.spare_run();
                        board.take(worker, want.records_max, &mut run);
                        if run.is_empty() {
                            tries.keep_run(run);
                            break;
                        }
                        into.push(Try::new(run));
                    }
                }
            }
        }
        if into.len() > before {
            state.first_at.get_or_insert_with(|| self.now());
            return Next::Handle;
        }
        // Those that have nothing open are woken first.
        let place = if want.open > 0 { 0 } else { state.idle.len() };
        state.idle.insert(place, worker);
        Next::Wait
    }

    /// Adds records to a try that is about to be handled, up to `records_max`: of its own lane alone if `one_lane`.
    /// Where there are not enough, and it is not the `last` call, the worker is woken when there may be more. Returns
    /// whether the try is as it is to be handled.
    pub fn top_up(
        &self,
        worker: u32,
        tried: &mut Try,
        records_max: usize,
        one_lane: bool,
        last: bool,
    ) -> bool {
        let mut state = self.lock();
        state.gathering.retain(|gathering| *gathering != worker);
        let mut can_grow = false;
        // A lane of an assignment that has ended has nothing for it.
        if !state.stop && self.may_start() && !tries::is_gone(&state.board, tried) {
            let more = records_max.saturating_sub(tried.len());
            can_grow = state.board.take_more(more, one_lane, &mut tried.run);
        }
        let is_ready = last || !can_grow || tried.len() >= records_max;
        // It may have been woken for what it does not take.
        let mut woken = Vec::new();
        if state.board.ready() > 0 || !state.tries.due.is_empty() {
            self.pick_parked(&mut state, 0, true, &mut woken);
        }
        if !is_ready {
            state.gathering.push(worker);
        }
        drop(state);
        self.wake_each(&woken);
        is_ready
    }

    /// Wakes others for what a worker leaves: with `all` for what it has not looked for, too. None is woken for what it
    /// could not take either: it would leave that to others in turn, and so on without end.
    pub fn leave_to_others(&self, all: bool) {
        let state = self.lock();
        let due = &state.tries.due;
        // New ones wait for one that is to be alone, and that is whose who have nothing open.
        let is_for_others = all || due.front().is_none_or(|first| !first.alone);
        if self.may_start() && is_for_others && (state.board.ready() > 0 || (all && !due.is_empty())) {
            self.wake_workers(state, true);
        }
    }

    /// Takes the outcomes of tries, all at once. A failure ends the work of all workers: at once, or if our stdout is
    /// closed as a signal does.
    pub fn settle(&self, settled: &mut Vec<(Try, Outcome)>, failure: Option<Failure>) {
        if settled.is_empty() && failure.is_none() {
            return;
        }
        let now = self.now();
        let mut state = self.lock();
        let State { board, tries, .. } = &mut *state;
        if failure.as_ref().is_some_and(Failure::drains) {
            // Before the outcomes: the drain stops short of the record whose output is lost.
            board.freeze_all();
        }
        let (due_before, failed_before) = (tries.next_due(), tries.outcomes.failed());
        let mut finished = 0;
        for (tried, outcome) in settled.drain(..) {
            finished += tries.settle(board, tried, outcome, now);
        }
        // Those that were skipped may be enough for --halt.
        let engine = tries.next_due() != due_before
            || !tries.judged.is_empty()
            || tries.outcomes.failed() > failed_before;
        // Whoever settles a try looks for the next by itself; what waited behind it may be another worker's alone.
        let workers = !tries.due.is_empty() || (board.has_fixed_workers() && board.ready() > 0);
        state.processed += finished;
        state.last_at = state.last_at.max(now);
        state.freeze_if_halted();
        if let Some(failure) = failure {
            if !failure.drains() {
                self.stop(&mut state);
            }
            state.failure.get_or_insert(failure);
        }
        let engine = Shared::wants_attention(&mut state) || engine;
        if workers {
            self.wake_workers(state, true)
        } else {
            drop(state)
        }
        if engine {
            self.wake_engine();
        }
    }

    /// A dead letter is acknowledged, or refused for good.
    pub fn letter_done(&self, judged: Judged, refused: Option<Refused>) {
        let mut state = self.lock();
        let State { board, tries, .. } = &mut *state;
        match refused {
            None => {
                tries.outcomes.dead_lettered += tries.pass(board, judged.tried);
                state.last_at = state.last_at.max(self.now());
            }
            Some(_) if tries::is_gone(board, &judged.tried) => tries.give_up(board, judged.tried),
            Some(refused) => {
                let verdict = Verdict::Stop(refused.exit);
                tries.judged.push(Judged { verdict, refused: Some(refused.why), ..judged });
            }
        }
        state.freeze_if_halted();
        let ready = state.board.ready() > 0;
        if ready {
            self.wake_workers(state, true)
        } else {
            drop(state)
        }
        self.wake_engine();
    }

    /// When a try is to be broken off, if its end is known: its partition drains or is gone, or the run is over.
    pub fn ends_of(&self, tried: &Try) -> Option<Ends> {
        self.with_ends(|ends_of| ends_of(tried))
    }

    /// Whether a try may begin that was taken a while ago.
    pub fn may_begin(&self, tried: &Try) -> bool {
        self.may_start() && self.ends_of(tried).is_none_or(|ends| ends.term_at > self.now())
    }

    /// [`Shared::ends_of`] for many tries.
    pub fn with_ends<R>(&self, look: impl FnOnce(&dyn Fn(&Try) -> Option<Ends>) -> R) -> R {
        let state = self.lock();
        look(&|tried| {
            if state.stop {
                return Some(Ends::NOW);
            }
            let ends = tried.places().filter_map(|(slot, assignment)| {
                if state.board.assignment(slot) != Some(assignment) {
                    return Some(Ends { kill_at: self.now() + KILL_AFTER, ..Ends::NOW });
                }
                state.ends.get(&slot).copied()
            });
            ends.min_by_key(|ends| ends.kill_at)
        })
    }

    /// Once the run is over: when a child that has nothing open, and was told that nothing more comes, is to be ended.
    pub fn last_ends(&self) -> Ends {
        let ends = self.lock().ends.values().copied().max_by_key(|ends| ends.kill_at);
        let now = self.now();
        ends.unwrap_or(Ends { term_at: now + KILL_AFTER, kill_at: now + 2 * KILL_AFTER })
    }

    /// Wakes every worker, parked or at work, to look at [`Shared::ends_of`].
    pub fn wake_every_worker(&self) {
        (0..self.workers as u32).for_each(|worker| self.wake.wake_worker(worker));
    }

    fn wake_each(&self, workers: &[u32]) {
        for worker in workers {
            self.wake.wake_worker(*worker);
        }
    }

    /// Whether a worker that has just completed a run must wake the network thread.
    pub fn wants_attention(state: &mut State) -> bool {
        let wake = match state.attention {
            Attention::Always => true,
            Attention::WhenIdle => state.board.is_idle(),
            Attention::WhenQueuedAtMost(few) => {
                state.board.queued() <= few || state.board.ready() == 0 || state.board.is_idle()
            }
        };
        if wake && state.attention != Attention::Always {
            state.attention = Attention::WhenIdle;
        }
        wake || state.failure.is_some() || state.processed >= state.wake_at
    }

    /// Wakes the network thread.
    pub fn wake_engine(&self) {
        self.wake.wake_engine();
    }

    /// Number of parked workers and of all.
    pub fn idle_workers(&self, state: &State) -> (usize, usize) {
        (state.idle.len() + state.gathering.len(), self.workers)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::handler::outcome::{End, Failed, Kind};
    use crate::pool::board::Dispatch;
    use crate::pool::route::Route;
    use crate::pool::tries::tests::{deliver, deliver_from};

    /// Who was woken.
    #[derive(Clone, Default)]
    struct Woken(Arc<Mutex<Vec<u32>>>);

    impl Wake for Woken {
        fn wake_engine(&self) {}

        fn wake_worker(&self, worker: u32) {
            self.0.lock().unwrap().push(worker);
        }
    }

    /// Without records; nobody is woken.
    pub(in crate::pool) fn shared() -> Arc<Shared> {
        let clock = Clock::Virtual(Arc::default());
        Arc::new(Shared::new(Board::new(Dispatch::Lanes), clock, Box::new(Woken::default()), 1, 1))
    }

    const ONE: Want = Want { open: 0, tries_max: 1, records_max: 1, woken: true };

    /// Seed 3002363: a worker had done another one's record on its second try, and what waited behind it was nobody's
    /// business until the next record came; while draining none came, and the drain stood still to its limit.
    #[test]
    fn the_worker_whose_queue_goes_on_is_woken() {
        let (shared, slot, woken) = stage(Dispatch::Hash { workers: 2 }, 2, 0);
        deliver(&mut shared.lock().board, slot, Route::new(0), 2);
        let tried = take(&shared, 0);
        let failed =
            Failed { kind: Kind::Temporary, end: End::Exit(75), reason: String::new(), counts: false };
        shared.settle(&mut vec![(tried, Outcome::Failed(failed))], None);
        let tried = take(&shared, 1);
        assert_eq!(shared.take_tries(0, ONE, &mut Vec::new()), Next::Wait);
        woken.0.lock().unwrap().clear();
        shared.settle(&mut vec![(tried, Outcome::Done)], None);
        assert_eq!(*woken.0.lock().unwrap(), [0]);
        assert_eq!(take(&shared, 0).first().offset, 1);
    }

    /// A pool of `workers` and its partition with so many records.
    fn stage(dispatch: Dispatch, workers: u32, records: i64) -> (Arc<Shared>, Slot, Woken) {
        let mut board = Board::new(dispatch);
        let slot = board.assign(Arc::from("t"), 0, 0, -1);
        deliver(&mut board, slot, Route::FREE, records);
        let woken = Woken::default();
        let clock = Clock::Virtual(Arc::default());
        let shared = Shared::new(board, clock, Box::new(woken.clone()), workers, 1);
        shared.set_lease(Duration::from_secs(1));
        woken.0.lock().unwrap().clear();
        (Arc::new(shared), slot, woken)
    }

    fn take(shared: &Shared, worker: u32) -> Try {
        let mut tries = Vec::new();
        assert_eq!(shared.take_tries(worker, ONE, &mut tries), Next::Handle);
        tries.remove(0)
    }

    fn fail(shared: &Shared, tried: Try, counts: bool) {
        let end = End::Exit(1);
        let failed = Failed { kind: Kind::Ordinary, end, reason: String::new(), counts };
        shared.settle(&mut vec![(tried, Outcome::Failed(failed))], None);
    }

    /// The member was removed from its group while a batch waited to be filled.
    #[test]
    fn a_batch_whose_partition_has_gone_is_not_filled_up() {
        for is_moved in [false, true] {
            let (shared, slot, _) = stage(Dispatch::Lanes, 1, 3);
            let mut tried = take(&shared, 0);
            assert!(shared.may_begin(&tried));
            assert!(!shared.top_up(0, &mut tried, 9, false, false));
            assert_eq!(tried.len(), 3);
            let mut state = shared.lock();
            if is_moved {
                state.board.reset(slot, 0, -1);
                deliver(&mut state.board, slot, Route::FREE, 3);
            } else {
                state.board.lost(slot);
            }
            drop(state);
            assert!(shared.top_up(0, &mut tried, 9, false, false));
            assert!(!shared.may_begin(&tried), "it is somebody else's by now");
            shared.settle(&mut vec![(tried, Outcome::Unfinished)], None);
            let mut state = shared.lock();
            if is_moved {
                state.board.freeze(slot);
                assert!(state.board.drained(slot), "nothing of the new assignment was handed out");
            }
        }
    }

    /// The lease ends while a batch waits, and another worker takes it when there is one again: what is added then is
    /// still of the first one's queue.
    #[test]
    fn a_batch_is_not_begun_when_the_lease_is_over() {
        for dispatch in [Dispatch::Lanes, Dispatch::Hash { workers: 2 }] {
            let (shared, slot, _) = stage(dispatch, 2, 2);
            let first = [1, 0].into_iter().find(|worker| shared.lock().board.has_work(*worker)).unwrap();
            let mut tried = take(&shared, first);
            shared.top_up(first, &mut tried, 9, false, false);
            shared.set_lease(Duration::ZERO);
            assert!(shared.top_up(first, &mut tried, 9, false, false));
            assert!(!shared.may_begin(&tried) && shared.is_heard());
            let before = tried.len();
            shared.settle(&mut vec![(tried, Outcome::Unfinished)], None);
            shared.set_lease(Duration::from_secs(2));
            let mut tried = take(&shared, 1 - first);
            assert_eq!((tried.attempt, tried.len()), (1, before));
            deliver_from(&mut shared.lock().board, slot, 2, 2);
            assert!(!shared.top_up(1 - first, &mut tried, 9, false, false));
            assert!(tried.len() > before);
            shared.settle(&mut vec![(tried, Outcome::Done)], None);
        }
    }

    /// One that has looked wakes nobody for what nobody can take: all would wake each other without end.
    #[test]
    fn what_nobody_can_take_wakes_nobody() {
        let (shared, _, woken) = stage(Dispatch::Lanes, 2, 3);
        let (tried, _open) = (take(&shared, 0), take(&shared, 1));
        // Its child died with others open.
        fail(&shared, tried, false);
        let busy = Want { open: 1, ..ONE };
        assert_eq!(shared.take_tries(1, busy, &mut Vec::new()), Next::Wait);
        woken.0.lock().unwrap().clear();
        shared.leave_to_others(false);
        assert_eq!(*woken.0.lock().unwrap(), [0; 0]);
        shared.leave_to_others(true);
        assert_eq!(*woken.0.lock().unwrap(), [1]);
        assert_eq!(shared.take_tries(1, busy, &mut Vec::new()), Next::Wait);
        shared.set_lease(Duration::ZERO);
        woken.0.lock().unwrap().clear();
        shared.leave_to_others(true);
        assert_eq!(*woken.0.lock().unwrap(), [0; 0]);
    }

    /// A worker that fills a batch cannot take a try that is due, and leaves it to one that is parked.
    #[test]
    fn one_that_fills_a_batch_leaves_a_due_try_to_others() {
        let (shared, _, woken) = stage(Dispatch::Lanes, 2, 2);
        let (other, mut batch) = (take(&shared, 1), take(&shared, 0));
        assert_eq!(shared.take_tries(1, ONE, &mut Vec::new()), Next::Wait);
        assert!(!shared.top_up(0, &mut batch, 9, false, false));
        fail(&shared, other, false);
        assert_eq!(*woken.0.lock().unwrap(), [1]);
        // Where both are busy with batches, neither wakes the other for it.
        assert!(!shared.top_up(0, &mut batch, 9, false, false));
        assert!(!shared.top_up(0, &mut batch, 9, false, false));
        assert_eq!(*woken.0.lock().unwrap(), [1]);
    }

    /// Delivered records go to a batch that has begun before they begin another one, and what it leaves goes on.
    #[test]
    fn a_begun_batch_comes_first() {
        let (shared, slot, woken) = stage(Dispatch::Lanes, 2, 1);
        let mut batch = take(&shared, 0);
        assert_eq!(shared.take_tries(1, ONE, &mut Vec::new()), Next::Wait);
        assert!(!shared.top_up(0, &mut batch, 3, false, false));
        let mut state = shared.lock();
        deliver_from(&mut state.board, slot, 1, 1);
        shared.wake_workers(state, true);
        assert_eq!(*woken.0.lock().unwrap(), [0]);
        let mut state = shared.lock();
        deliver_from(&mut state.board, slot, 2, 2);
        drop(state);
        assert!(shared.top_up(0, &mut batch, 3, false, false));
        assert_eq!((batch.len(), woken.0.lock().unwrap().clone()), (3, vec![0, 1]));
    }

    /// A key of its own has no more to come.
    #[test]
    fn a_batch_of_a_record_without_a_key_does_not_wait() {
        let (shared, _, _) = stage(Dispatch::Lanes, 1, 2);
        let mut tried = take(&shared, 0);
        assert!(shared.top_up(0, &mut tried, 9, true, false));
        assert_eq!(tried.len(), 1);
    }

    /// With --halt nothing is begun once enough have failed, before the network thread knows of it.
    #[test]
    fn a_halt_begins_with_the_failure() {
        let (shared, _, _) = stage(Dispatch::Lanes, 2, 9);
        let mut state = shared.lock();
        let policy =
            Policy { retries: Some(0), on_fail: crate::handler::policy::OnFail::Skip, ..Policy::default() };
        (state.tries, state.failed_max) = (Tries::new(policy, 1), 2);
        drop(state);
        let open = take(&shared, 1);
        for _ in 0..2 {
            fail(&shared, take(&shared, 0), true);
        }
        assert_eq!(shared.take_tries(0, ONE, &mut Vec::new()), Next::Wait);
        shared.settle(&mut vec![(open, Outcome::Done)], None);
        let state = shared.lock();
        assert_eq!((state.processed, state.outcomes().skipped), (1, 2));
    }
}
