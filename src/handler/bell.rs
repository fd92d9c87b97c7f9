//! What wakes a worker that waits in a poll: an event descriptor.
//!
//! A ring is never lost: it lasts until it is cleared, however many there were. Who clears first and looks then misses
//! nothing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Rung by any thread, heard by the one that polls it.
#[derive(Debug)]
pub struct Bell {
    event: EventFd,
}

impl Bell {
    /// A silent bell.
    ///
    /// # Errors
    /// The process or the system has no descriptor left.
    pub fn new() -> io::Result<Bell> {
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Bell { event })
    }

    /// Makes the descriptor readable.
    pub fn ring(&self) {
        // It fails only when it was rung 2^64 times.
        let _ = self.event.write(1);
    }

    /// Takes note of all rings so far.
    pub fn clear(&self) {
        // It fails only when it was not rung.
        let _ = self.event.read();
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    fn rings_until_it_is_cleared() {
        let bell = Bell::new().unwrap();
        let is_rung = || {
            let mut fds = [PollFd::new(bell.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
        };
        assert!(!is_rung());
        bell.clear();
        bell.ring();
        bell.ring();
        assert!(is_rung());
        bell.clear();
        assert!(!is_rung());
    }
}
