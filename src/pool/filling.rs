//! Who is given how much: the limits on records and bytes, divided among the partitions.
//!
//! Memory held = receive buffers + unpacked batches + spare buffers. What is not charged to one partition (receive
//! buffers are held whole while a slice of them lives) comes off the limit of all.

use super::budget::{Budget, Demand};
use super::ending::Ending;
use super::engine::Engine;
use super::intake::Room;
use super::shared::Attention;

/// What one partition holds at the beginning of a pass.
struct Holding {
    records: Demand,
    bytes: Demand,
    /// How much further it may run ahead of its first unfinished record.
    ahead: u64,
    holds_batch: bool,
}

/// What is divided in a pass.
struct Pass {
    records: Budget,
    bytes: Budget,
    /// Receive buffers are scarce.
    copy: bool,
    holdings: Vec<Holding>,
}

impl Engine {
    /// Delivers what fits, and tells the consumer which partitions to fetch.
    pub(super) fn fill(&mut self) {
        self.reclaim();
        if !matches!(self.ending, Ending::No) {
            return;
        }
        let processed_before = self.shared.lock().processed;
        let mut pass = self.begin_pass();
        let mut count_room = self.count_room();
        let mut delivered_any = false;
        let mut starved = false;
        for ((at, intake), holding) in self.intakes.iter_mut().zip(&pass.holdings) {
            let bytes = pass.bytes.room(holding.bytes);
            let fetch = bytes >= self.partition_fetch_bytes || holding.bytes.held == 0;
            let records = pass.records.room(holding.records).min(holding.ahead).min(count_room);
            let mut room = Room { records, bytes, holds_batch: holding.holds_batch, copy: pass.copy };
            match intake.fill(&self.shared, &mut self.spares, &mut room) {
                Ok(delivered) => {
                    pass.records.give(holding.records, delivered);
                    pass.bytes.give(holding.bytes, bytes - room.bytes);
                    count_room -= delivered;
                    delivered_any |= delivered > 0;
                }
                Err(error) => {
                    intake.break_off();
                    self.damaged.get_or_insert(error);
                }
            }
            if pass.copy {
                intake.copy_views();
            }
            // What finished records free is wanted here: for what waits, or to fetch more.
            starved |= count_room > 0 && (intake.has_feed() || (!fetch && self.consumer.has_backlog(at)));
            let few = (intake.feed_bytes() as u64) < self.partition_fetch_bytes;
            let fetchable = fetch && few && count_room > 0 && !intake.is_broken();
            intake.set_fetchable(fetchable);
            self.consumer.set_fetchable(at, fetchable);
        }
        let mut state = self.shared.lock();
        // The workers may have finished everything by now: then nobody would wake us for what still waits.
        let moved = delivered_any || state.processed > processed_before;
        self.fill_again = starved && state.board.queued() == 0 && moved;
        if state.attention != Attention::Always {
            state.attention = if starved {
                Attention::WhenQueuedAtMost(state.board.queued() / 2)
            } else {
                Attention::WhenIdle
            };
        }
        self.shared.wake_workers(state, true);
    }

    /// Records that may be delivered yet for `-n`. What was delivered and then went to another member does not count.
    fn count_room(&self) -> u64 {
        let Some(count) = self.config.count else { return u64::MAX };
        let state = self.shared.lock();
        let counts = state.board.counts();
        count.saturating_sub(state.board.passed() + counts.queued + counts.inflight)
    }

    /// Looks at what each partition holds.
    fn begin_pass(&mut self) -> Pass {
        let buffers = self.consumer.net().pool().bytes() + self.spares.bytes();
        let mut holdings = Vec::with_capacity(self.intakes.len());
        let mut views = 0;
        let state = self.shared.lock();
        for (at, intake) in &self.intakes {
            let counts = state.board.slot_counts(intake.slot());
            let (held, held_bytes, past) =
                counts.map_or((0, 0, 0), |counts| (counts.held(), counts.held_bytes, counts.ahead));
            let hungry = intake.has_feed() || self.consumer.has_backlog(at);
            views += intake.view_bytes() as u64;
            holdings.push(Holding {
                records: Demand { held, hungry },
                bytes: Demand { held: held_bytes + intake.feed_bytes() as u64, hungry },
                ahead: self.config.ahead_max.saturating_sub(past),
                holds_batch: held_bytes > 0,
            });
        }
        drop(state);
        // At least a quarter stays for records, else buffers that are merely kept for use would stop the work.
        let limit = self
            .config
            .bytes_max
            .saturating_sub(buffers.saturating_sub(views))
            .max(self.config.bytes_max / 4);
        self.held_back = holdings.iter().any(|holding| holding.ahead == 0);
        Pass {
            records: Budget::new(self.config.records_max, holdings.iter().map(|holding| holding.records)),
            bytes: Budget::new(limit, holdings.iter().map(|holding| holding.bytes)),
            copy: buffers > self.config.bytes_max / 2,
            holdings,
        }
    }

    /// Takes back the buffers of batches that are done.
    fn reclaim(&mut self) {
        self.shared.lock().board.take_released(&mut self.released);
        for released in self.released.drain(..) {
            self.spares.reclaim(released);
        }
    }
}
