//! Consumers against brokers in memory: real bytes, a virtual clock, no IO.

mod broken;
mod cluster;
mod endings;
mod fetches;
mod group;
mod logs;
mod owner;
mod rounds;
mod simulation;
mod startup;
mod wire;
mod world;

use std::time::Duration;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// splitmix64
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Below `bound`; 0 for 0.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// With a chance of one in `chances`.
    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

/// A time no test reaches.
const NEVER: Duration = Duration::from_secs(1 << 20);
