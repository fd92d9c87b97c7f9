//! What a campaign of many seeds amounts to.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::world::World;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    pub(crate) seeds: u64,
    simulated: Duration,
    events: u64,
    handled: u64,
    repeats: u64,
    late: u64,
    counts: BTreeMap<String, u64>,
}

impl Stats {
    pub(crate) fn count(&mut self, what: &str) {
        match self.counts.get_mut(what) {
            Some(count) => *count += 1,
            None => {
                self.counts.insert(what.to_owned(), 1);
            }
        }
    }

    /// What a finished world adds.
    pub(crate) fn end_of(world: &World) -> Stats {
        let mut stats = world.stats.clone();
        stats.seeds = 1;
        stats.simulated = world.time.now;
        stats.events = world.time.count();
        stats.handled = world.ledger.handled;
        stats.repeats = world.ledger.repeats;
        stats.late = world.ledger.late;
        for (fault, count) in world.cluster.faults_injected() {
            // Without how long and how often, or there would be as many kinds as faults.
            let kind = fault.split([',', '(']).next().unwrap_or_default();
            *stats.counts.entry(format!("request {kind}")).or_default() += count;
        }
        stats
    }

    pub(crate) fn add(&mut self, other: &Stats) {
        self.seeds += other.seeds;
        self.simulated += other.simulated;
        self.events += other.events;
        self.handled += other.handled;
        self.repeats += other.repeats;
        self.late += other.late;
        for (what, count) in &other.counts {
            *self.counts.entry(what.clone()).or_default() += count;
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} seeds, {:.1} simulated hours, {} events, {} records handled, {} of them again, {} after their \
             partition had gone",
            self.seeds,
            self.simulated.as_secs_f64() / 3600.0,
            self.events,
            self.handled,
            self.repeats,
            self.late
        )?;
        for (what, count) in &self.counts {
            writeln!(f, "{count:>9}  {what}")?;
        }
        Ok(())
    }
}
