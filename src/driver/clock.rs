//! The clock of leases, deadlines and waits: it goes on while the machine is suspended, as the cluster's does.

use std::sync::OnceLock;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// A moment of this machine's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// Now. The standard library's instant stands still in a suspended machine, which would come back with a lease that
    /// the coordinator has long given to another.
    pub fn now() -> Instant {
        static CLOCK: OnceLock<ClockId> = OnceLock::new();
        let clock = CLOCK.get_or_init(|| {
            // Sandboxes may not know it.
            let boottime = ClockId::CLOCK_BOOTTIME;
            if clock_gettime(boottime).is_ok() { boottime } else { ClockId::CLOCK_MONOTONIC }
        });
        Instant(clock_gettime(*clock).map(Duration::from).unwrap_or_default())
    }

    /// Time since then.
    pub fn elapsed(self) -> Duration {
        Instant::now().0.saturating_sub(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on() {
        let before = std::time::Instant::now();
        let began = Instant::now();
        std::thread::sleep(Duration::from_millis(20));
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(20) && took <= before.elapsed(), "{took:?}");
    }
}
