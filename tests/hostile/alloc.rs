//! Counts what one thread asks of the allocator, so that a campaign can hold each input to a limit.
//!
//! A request that no campaign could allow ends the program at once and says which input made it: serving it, or
//! refusing it, would end the program without saying so.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;

/// No single request may be as large.
const REQUEST_BYTES_MAX: usize = 16 << 30;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(0) };
    static INPUT: Cell<Option<(&'static str, u64, u64)>> = const { Cell::new(None) };
}

/// The system's allocator, counted per thread.
pub(crate) struct Counting;

/// What one piece of work asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Use {
    /// The most bytes alive at once, beyond what was alive before.
    pub(crate) peak_bytes: usize,
    /// The largest single request.
    pub(crate) largest_bytes: usize,
}

/// Names the input that runs on this thread: campaign, seed, number.
pub(crate) fn name_input(input: Option<(&'static str, u64, u64)>) {
    INPUT.set(input);
}

/// Runs `work` and says what it asked for. A moving reallocation counts with both its buffers.
pub(crate) fn measured<T>(work: impl FnOnce() -> T) -> (T, Use) {
    let start = LIVE.get();
    PEAK.set(start);
    LARGEST.set(0);
    let result = work();
    let peak_bytes = usize::try_from(PEAK.get() - start).unwrap_or(0);
    (result, Use { peak_bytes, largest_bytes: LARGEST.get() })
}

fn taken(bytes: usize) {
    if bytes > REQUEST_BYTES_MAX {
        alarm(bytes);
    }
    let live = LIVE.get() + bytes as isize;
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
    LARGEST.set(LARGEST.get().max(bytes));
}

fn given_back(bytes: usize) {
    LIVE.set(LIVE.get() - bytes as isize);
}

/// An allocator must not unwind, so this ends the program.
fn alarm(bytes: usize) -> ! {
    let mut stderr = std::io::stderr();
    // Nothing can be done where stderr is closed: the program ends all the same.
    let _ = match INPUT.get() {
        Some((campaign, seed, number)) => writeln!(
            stderr,
            "{bytes} bytes asked for at once; replay: KEYLANE_HOSTILE_SEED={seed} KEYLANE_HOSTILE_INPUT={number} \
             cargo test --test hostile {campaign}"
        ),
        None => writeln!(stderr, "{bytes} bytes asked for at once, outside any campaign"),
    };
    std::process::abort()
}

// SAFETY: every call goes to the system's allocator as it came; counting touches only `Cell`s of this thread, which
// are initialised at compile time and have no destructor, so it neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        given_back(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        taken(bytes);
        given_back(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}
