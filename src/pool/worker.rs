//! The worker threads: take, handle, complete.
//!
//! A record is started only while the lease holds (see [`Shared::may_start`]): a process that was stopped for longer
//! than the session timeout starts nothing before the coordinator has answered. What was taken but not started is
//! given back to the front of its lane.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::run::Run;
use super::shared::{Failure, RecordBatch, Shared};
use crate::handler::Handler;

/// A run of records without a blocking handler ends after about this long, so that no record waits behind it for
/// longer.
const RUN_TIME: Duration = Duration::from_micros(100);
/// Records in the first run of a worker, before it knows how long one takes.
const FIRST_RUN: usize = 64;

/// Starts the workers; they end when [`State::stop`](super::shared::State::stop) is set.
///
/// # Errors
/// The system gives no thread.
pub(super) fn start(
    shared: &Arc<Shared>,
    count: u32,
    handler: impl Fn(u32) -> Handler,
) -> io::Result<Vec<thread::JoinHandle<()>>> {
    let mut threads = Vec::new();
    for worker in 0..count {
        let (shared, handler) = (shared.clone(), handler(worker));
        let thread = thread::Builder::new()
            .name(format!("worker-{worker}"))
            .stack_size(STACK_BYTES)
            .spawn(move || work(&shared, worker, handler))?;
        threads.push(thread);
    }
    shared.set_workers(threads.iter().map(|thread| thread.thread().clone()).collect());
    Ok(threads)
}

/// Handlers need little; a thousand workers must not cost gigabytes of address space.
const STACK_BYTES: usize = 256 << 10;

fn work(shared: &Shared, worker: u32, mut handler: Handler) {
    let mut run = Run::new();
    let mut size = FIRST_RUN.min(shared.run_records_max);
    loop {
        if !take(shared, worker, size, &mut run) {
            return;
        }
        let began = Instant::now();
        let (finished, failure) = handle(shared, &mut handler, &run);
        if shared.run_records_max > 1 && finished > 0 {
            size = next_size(began.elapsed(), finished, shared.run_records_max);
        }
        let mut state = shared.lock();
        state.board.complete(&mut run, finished);
        state.processed += finished as u64;
        state.last_at = state.last_at.max(shared.now());
        if let Some(failure) = failure {
            state.failure.get_or_insert(failure);
            state.stop = true;
        }
        let wake = Shared::wants_attention(&mut state);
        drop(state);
        if wake {
            shared.wake_engine();
        }
    }
}

/// Fills the run, waiting until there is something; false when the worker is to end.
fn take(shared: &Shared, worker: u32, size: usize, run: &mut Run<RecordBatch>) -> bool {
    let mut state = shared.lock();
    loop {
        if state.stop {
            return false;
        }
        if shared.may_start() {
            state.board.take(worker, size, run);
            if !run.is_empty() {
                state.first_at.get_or_insert_with(|| shared.now());
                return true;
            }
        }
        state = shared.park(worker, state);
    }
}

/// Handles the records of a run in order; returns how many from the front are finished.
fn handle(shared: &Shared, handler: &mut Handler, run: &Run<RecordBatch>) -> (usize, Option<Failure>) {
    if handler.does_nothing() {
        return (if shared.may_start() { run.len() } else { 0 }, None);
    }
    let mut finished = 0;
    for record in run.iter() {
        // One look per record where a handler can block; else a run is short enough for one look in all.
        if (finished == 0 || handler.can_block()) && !shared.may_start() {
            break;
        }
        if let Err(error) = handler.handle(&record) {
            return (0, Some(Failure::Output(error)));
        }
        finished += 1;
    }
    // Finished means written: what a handler has gathered goes out before anything is marked.
    match handler.flush() {
        Ok(()) => (finished, None),
        Err(error) => (0, Some(Failure::Output(error))),
    }
}

fn next_size(took: Duration, finished: usize, max: usize) -> usize {
    let each_ns = (took.as_nanos() / finished as u128).max(1);
    usize::try_from(RUN_TIME.as_nanos() / each_ns).unwrap_or(max).clamp(1, max)
}
