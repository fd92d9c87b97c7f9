//! `--fsync`: what was printed is on the disk before a commit passes it.
//!
//! A thread of its own syncs, since a slow disk is not to keep heartbeats waiting. Whoever wants to commit takes the
//! snapshot first, then a number ([`Disk::ask`]), and commits the snapshot once that number's sync is done.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::shared::{Failure, Shared};

/// What stdout is written to, if it is a file.
///
/// # Errors
/// The system gives no descriptor.
pub(super) fn stdout_file() -> io::Result<Option<File>> {
    let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    Ok(file.metadata()?.is_file().then_some(file))
}

/// The thread that syncs; it ends with this handle.
pub(super) struct Disk(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The newest number given out.
    asked: u64,
    /// Everything written before this number was given out is on the disk.
    done: u64,
    failed: bool,
    stop: bool,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk {
    /// Starts the thread: `sync` returns when all that is written is on the disk. The engine of `shared` is woken after
    /// each sync; a sync that fails is its failure to write.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(
        shared: Arc<Shared>,
        mut sync: impl FnMut() -> io::Result<()> + Send + 'static,
    ) -> io::Result<Disk> {
        let inner = Arc::new(Inner::default());
        let ours = inner.clone();
        thread::Builder::new().name("fsync".to_owned()).spawn(move || {
            loop {
                let state = ours.lock();
                let waits = |state: &mut State| state.asked == state.done && !state.stop;
                let state = ours.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner);
                if state.stop {
                    return;
                }
                let asked = state.asked;
                drop(state);
                let synced = sync();
                let mut state = ours.lock();
                match synced {
                    Ok(()) => state.done = asked,
                    Err(error) => {
                        state.failed = true;
                        drop(state);
                        shared.settle(&mut Vec::new(), Some(Failure::Output(error)));
                        return;
                    }
                }
                drop(state);
                shared.wake_engine();
            }
        })?;
        Ok(Disk(inner))
    }

    /// Asks for a sync of all that is written by now, and returns its number.
    pub(super) fn ask(&self) -> u64 {
        let mut state = self.0.lock();
        state.asked += 1;
        self.0.changed.notify_all();
        state.asked
    }

    /// Whether the sync with this number was done or has failed; none while it is still to come.
    pub(super) fn outcome(&self, number: u64) -> Option<bool> {
        let state = self.0.lock();
        if state.done >= number { Some(true) } else { state.failed.then_some(false) }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.0.lock().stop = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::pool::shared::tests::shared;

    fn wait(disk: &Disk, number: u64) -> bool {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(outcome) = disk.outcome(number) {
                return outcome;
            }
            assert!(Instant::now() < until, "no sync");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// What is asked for while a sync is under way may have been written after that has begun.
    #[test]
    fn a_sync_under_way_does_not_count_for_what_is_asked_later() {
        let (began, begins) = channel();
        let (end, ends) = channel::<io::Result<()>>();
        let shared = shared();
        let disk = Disk::start(shared.clone(), move || {
            began.send(()).unwrap();
            ends.recv().unwrap()
        });
        let disk = disk.unwrap();
        let first = disk.ask();
        begins.recv().unwrap();
        let second = disk.ask();
        let third = disk.ask();
        assert_eq!(disk.outcome(first), None);
        end.send(Ok(())).unwrap();
        assert!(wait(&disk, first));
        begins.recv().unwrap();
        assert_eq!((disk.outcome(second), disk.outcome(third)), (None, None));
        end.send(Ok(())).unwrap();
        assert!(wait(&disk, third) && wait(&disk, second));
        let last = disk.ask();
        begins.recv().unwrap();
        end.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        assert!(!wait(&disk, last) && wait(&disk, third));
        let until = Instant::now() + Duration::from_secs(10);
        while shared.lock().failure.is_none() {
            assert!(Instant::now() < until, "nobody is told");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
