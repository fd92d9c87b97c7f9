//! What the network thread and the workers share: the board behind one mutex, and who waits for what.
//!
//! The mutex is held for a chunk of records at most and never while a record is handled. Workers park one by one and
//! are woken only as many as can find something; the network thread is woken only when it asked for it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use keylane_protocol::records::{BatchHeader, Payload};
use mio::Waker;

use super::board::Board;

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
}

/// Everything behind the mutex.
#[derive(Debug)]
pub struct State {
    /// Which record may run next, which offset may be committed.
    pub board: Board<RecordBatch>,
    /// Numbers of the workers that are parked.
    idle: Vec<u32>,
    /// Workers end when they look next.
    pub stop: bool,
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
}

/// The shared part of a pool.
#[derive(Debug)]
pub struct Shared {
    state: Mutex<State>,
    started: Instant,
    /// Until when records may be started, in µs since `started`.
    lease_us: AtomicU64,
    workers: OnceLock<Vec<Thread>>,
    waker: Arc<Waker>,
    /// How many records a worker takes at a time: 1 where a handler can block.
    pub run_records_max: usize,
}

impl Shared {
    /// `started` is the driver's zero.
    pub fn new(
        board: Board<RecordBatch>,
        started: Instant,
        waker: Arc<Waker>,
        run_records_max: usize,
    ) -> Self {
        Shared {
            state: Mutex::new(State {
                board,
                idle: Vec::new(),
                stop: false,
                attention: Attention::WhenIdle,
                processed: 0,
                wake_at: u64::MAX,
                first_at: None,
                last_at: Duration::ZERO,
                failure: None,
            }),
            started,
            lease_us: AtomicU64::new(0),
            workers: OnceLock::new(),
            waker,
            run_records_max,
        }
    }

    /// Takes the lock. A panic elsewhere ends the process, so poison is never seen in a release build.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the driver began.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Makes the workers known, once, before anything is delivered.
    pub fn set_workers(&self, threads: Vec<Thread>) {
        assert!(self.workers.set(threads).is_ok(), "workers are started once");
    }

    /// Records may be started until then.
    pub fn set_lease(&self, until: Duration) {
        let until_us = u64::try_from(until.as_micros()).unwrap_or(u64::MAX);
        let before = self.lease_us.swap(until_us, Ordering::AcqRel);
        // Workers that found the lease over have parked.
        if u128::from(before) <= self.now().as_micros() {
            self.wake_all();
        }
    }

    /// Whether records may be started: the coordinator certainly still counts on us.
    pub fn may_start(&self) -> bool {
        self.now().as_micros() < u128::from(self.lease_us.load(Ordering::Acquire))
    }

    /// Parks the calling worker until it is woken; the lock is given up meanwhile.
    pub fn park<'a>(&'a self, worker: u32, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.idle.push(worker);
        drop(state);
        std::thread::park();
        let mut state = self.lock();
        // A wake-up without cause leaves us on the list.
        state.idle.retain(|idle| *idle != worker);
        state
    }

    /// Wakes as many parked workers as can find something, and releases the lock first. Where workers take runs, they
    /// are let sleep until there is a run for them, or `all` is said: waking one costs more than many records.
    pub fn wake_workers(&self, mut state: MutexGuard<'_, State>, all: bool) {
        let mut woken: Vec<u32> = Vec::new();
        let total = self.workers.get().map_or(0, Vec::len);
        let State { board, idle, .. } = &mut *state;
        if board.has_fixed_workers() {
            idle.retain(|worker| {
                let wake = board.has_work(*worker);
                if wake {
                    woken.push(*worker);
                }
                !wake
            });
        } else {
            let busy = total - idle.len();
            let wanted = if self.run_records_max > 1 {
                // Busy workers come back within a run's time: more are woken only for what they cannot take.
                let max = self.run_records_max as u64;
                let runs = if all { board.queued().div_ceil(max) } else { board.queued() / max };
                usize::try_from(runs).unwrap_or(usize::MAX).min(board.ready()).saturating_sub(busy)
            } else {
                board.ready()
            };
            for _ in 0..wanted.min(idle.len()) {
                woken.extend(idle.pop());
            }
        }
        drop(state);
        self.unpark(&woken);
    }

    /// Wakes every parked worker.
    pub fn wake_all(&self) {
        let idle = std::mem::take(&mut self.lock().idle);
        self.unpark(&idle);
    }

    fn unpark(&self, workers: &[u32]) {
        if let Some(threads) = self.workers.get() {
            for worker in workers {
                threads[*worker as usize].unpark();
            }
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
        // It fails only when the event descriptor is gone, which is at the end.
        let _ = self.waker.wake();
    }

    /// Number of parked workers and of all.
    pub fn idle_workers(&self, state: &State) -> (usize, usize) {
        (state.idle.len(), self.workers.get().map_or(0, Vec::len))
    }
}
