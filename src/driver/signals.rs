//! SIGINT, SIGTERM and SIGHUP, counted; each wakes the network loop. SIGUSR1 asks how things stand, where a role has
//! something to say.
//!
//! A signal that was ignored when the process began stays ignored (`nohup`). A role that is a part of something larger
//! is stopped by a [`Remote`] instead, in the same way.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use mio::Waker;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// What came so far.
#[derive(Clone, Default)]
pub struct SignalCount {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    count: AtomicU32,
    last: AtomicU32,
    asked: AtomicU32,
}

impl SignalCount {
    /// How often SIGUSR1 came; it is not among the signals that are counted.
    pub fn asked(&self) -> u32 {
        self.shared.asked.load(Ordering::Acquire)
    }

    /// How many signals came.
    pub fn count(&self) -> u32 {
        self.shared.count.load(Ordering::Acquire)
    }

    /// The newest one's number.
    pub fn last(&self) -> i32 {
        self.shared.last.load(Ordering::Acquire) as i32
    }

    fn add(&self, signal: i32) {
        if signal == SIGUSR1 {
            self.shared.asked.fetch_add(1, Ordering::AcqRel);
            return;
        }
        self.shared.last.store(signal as u32, Ordering::Release);
        self.shared.count.fetch_add(1, Ordering::AcqRel);
    }
}

/// Where a role's signals come from.
#[derive(Clone, Default)]
pub enum Source {
    /// The process.
    #[default]
    Process,
    /// Whoever runs the role.
    Remote(Remote),
}

impl Source {
    /// Begins to count.
    ///
    /// # Errors
    /// The system refuses the handlers or the thread.
    pub fn watch(&self, waker: Arc<Waker>) -> io::Result<SignalCount> {
        self.watch_all(&ENDS, waker)
    }

    /// Begins to count, SIGUSR1 too.
    ///
    /// # Errors
    /// As [`Source::watch`].
    pub fn watch_and_answer(&self, waker: Arc<Waker>) -> io::Result<SignalCount> {
        self.watch_all(&[&ENDS[..], &[SIGUSR1]].concat(), waker)
    }

    fn watch_all(&self, signals: &[i32], waker: Arc<Waker>) -> io::Result<SignalCount> {
        match self {
            Source::Process => count_signals(signals, move |_| {
                // It fails only when the event descriptor is gone, which is at the end.
                let _ = waker.wake();
            }),
            Source::Remote(remote) => Ok(remote.watch(waker)),
        }
    }
}

/// Gives signals by hand, also to those that begin to count afterwards.
#[derive(Clone, Default)]
pub struct Remote {
    count: SignalCount,
    wakers: Arc<Mutex<Vec<Arc<Waker>>>>,
}

impl Remote {
    /// As if this signal had come.
    pub fn signal(&self, signal: i32) {
        self.count.add(signal);
        for waker in self.wakers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = waker.wake();
        }
    }

    fn watch(&self, waker: Arc<Waker>) -> SignalCount {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner).push(waker);
        self.count.clone()
    }
}

/// Begins to count the process's signals; `wake` is called with each.
///
/// # Errors
/// The system refuses the handlers or the thread.
pub fn watch(wake: impl Fn(i32) + Send + 'static) -> io::Result<SignalCount> {
    count_signals(&ENDS, wake)
}

/// The signals that end a run.
const ENDS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

fn count_signals(signals: &[i32], wake: impl Fn(i32) + Send + 'static) -> io::Result<SignalCount> {
    let ignored = ignored().unwrap_or(0);
    let wanted: Vec<i32> = signals.iter().copied().filter(|signal| !is_among(ignored, *signal)).collect();
    let mut signals = Signals::new(wanted)?;
    let count = SignalCount::default();
    let counted = count.clone();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            counted.add(signal);
            wake(signal);
        }
    })?;
    Ok(count)
}

/// Whether a mask of signals has this one.
pub fn is_among(mask: u64, signal: i32) -> bool {
    mask & (1 << (signal - 1)) != 0
}

/// The mask of signals that are ignored now, bit 0 being signal 1, from the kernel; none where it cannot be read.
pub fn ignored() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
}
