//! The worker threads of a handler that is a program. Each polls its bell beside what its children do.

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use super::threads::{Alarm, STACK_BYTES};
use crate::handler::bell::Bell;

/// Starts workers that do `work`, each with its number and its bell, and makes them known in `workers`.
///
/// # Errors
/// The system gives no thread or no descriptor.
pub(super) fn start(
    workers: &OnceLock<Vec<Alarm>>,
    count: u32,
    work: impl Fn(u32, &Bell) + Clone + Send + 'static,
) -> io::Result<Vec<JoinHandle<()>>> {
    let mut threads = Vec::new();
    let mut alarms = Vec::new();
    for worker in 0..count {
        let bell = Arc::new(Bell::new()?);
        alarms.push(Alarm::Ring(bell.clone()));
        let work = work.clone();
        let thread = thread::Builder::new()
            .name(format!("worker-{worker}"))
            .stack_size(STACK_BYTES)
            .spawn(move || work(worker, &bell))?;
        threads.push(thread);
    }
    let known = workers.set(alarms);
    assert!(known.is_ok(), "workers are started once");
    Ok(threads)
}
