//! SIGINT, SIGTERM and SIGHUP, counted; each wakes the network loop.
//!
//! A signal that was ignored when the process began stays ignored (`nohup`).

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use mio::Waker;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
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
}

impl SignalCount {
    /// How many signals came.
    pub fn count(&self) -> u32 {
        self.shared.count.load(Ordering::Acquire)
    }

    /// The newest one's number.
    pub fn last(&self) -> i32 {
        self.shared.last.load(Ordering::Acquire) as i32
    }
}

/// Begins to count.
///
/// # Errors
/// The system refuses the handlers or the thread.
pub fn watch(waker: Arc<Waker>) -> io::Result<SignalCount> {
    let ignored = ignored_at_start();
    let wanted: Vec<i32> =
        [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0).collect();
    let mut signals = Signals::new(wanted)?;
    let count = SignalCount::default();
    let shared = count.shared.clone();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            shared.last.store(signal as u32, Ordering::Release);
            shared.count.fetch_add(1, Ordering::AcqRel);
            let _ = waker.wake();
        }
    })?;
    Ok(count)
}

/// The mask of ignored signals, from the kernel; 0 where it cannot be read.
fn ignored_at_start() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
