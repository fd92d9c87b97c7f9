//! The worker threads: they go through the steps of [`Worker`] and park when there is nothing to take.

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};
use std::time::Instant;

use mio::Waker;

use super::shared::{Failure, Shared, Wake};
use super::worker::{Next, Worker};
use crate::handler::Handler;
use crate::handler::bell::Bell;

/// Handlers need little; a thousand workers must not cost gigabytes of address space.
pub(super) const STACK_BYTES: usize = 256 << 10;

/// Wakes the driver's loop, and the threads once they are started.
pub(super) struct Threads {
    pub(super) waker: Arc<Waker>,
    pub(super) workers: Arc<OnceLock<Vec<Alarm>>>,
}

/// What ends a worker's wait.
#[derive(Debug)]
pub(super) enum Alarm {
    /// It is parked.
    Unpark(Thread),
    /// It polls this, and what its children do.
    Ring(Arc<Bell>),
}

impl Wake for Threads {
    fn wake_engine(&self) {
        // It fails only when the event descriptor is gone, which is at the end.
        let _ = self.waker.wake();
    }

    fn wake_worker(&self, worker: u32) {
        // None waits before all are known: nothing is delivered until then.
        if let Some(workers) = self.workers.get() {
            match &workers[worker as usize] {
                Alarm::Unpark(thread) => thread.unpark(),
                Alarm::Ring(bell) => bell.ring(),
            }
        }
    }
}

/// Starts the workers and makes them known in `workers`; they end when [`State::stop`](super::shared::State::stop) is
/// set.
///
/// # Errors
/// The system gives no thread.
pub(super) fn start(
    shared: &Arc<Shared>,
    workers: &OnceLock<Vec<Alarm>>,
    count: u32,
    handler: impl Fn(u32) -> Handler,
) -> io::Result<Vec<JoinHandle<()>>> {
    let mut threads = Vec::new();
    for worker in 0..count {
        let (shared, handler) = (shared.clone(), handler(worker));
        let thread = thread::Builder::new()
            .name(format!("worker-{worker}"))
            .stack_size(STACK_BYTES)
            .spawn(move || work(&shared, worker, handler))?;
        threads.push(thread);
    }
    let known = workers.set(threads.iter().map(|thread| Alarm::Unpark(thread.thread().clone())).collect());
    assert!(known.is_ok(), "workers are started once");
    Ok(threads)
}

fn work(shared: &Shared, number: u32, mut handler: Handler) {
    // Else the system lets a sleep end 50 us late, and 10,000 short ones half a second in all.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_timerslack(1);
    let mut worker = Worker::new(number, shared);
    loop {
        match worker.take(shared) {
            Next::Handle => {}
            Next::Wait => {
                thread::park();
                continue;
            }
            Next::End => return,
        }
        let began = Instant::now();
        let failure = handle(shared, number, &mut handler, &mut worker).err().map(Failure::Output);
        let took = began.elapsed();
        let finished = worker.complete(shared, failure);
        worker.keep_pace(shared, took, finished);
    }
}

/// Handles the records of a run in order.
fn handle(shared: &Shared, number: u32, handler: &mut Handler, worker: &mut Worker) -> io::Result<()> {
    if handler.does_nothing() {
        worker.finish_run(shared);
        return Ok(());
    }
    while let Some(record) = worker.next_record(shared) {
        if handler.can_block() {
            shared.at_work().begin_record(number, &record, shared.now());
        }
        let finished = handler.handle(&record, || shared.is_stopped());
        if handler.can_block() {
            shared.at_work().end(number, shared.now());
        }
        if !finished? {
            break;
        }
        worker.finish_record();
    }
    // Finished means written: what a handler has gathered goes out before anything is marked.
    handler.flush()
}
