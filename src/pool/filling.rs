//! Who is given how much: the limits on records and bytes, divided among the partitions.
//!
//! Memory held = receive buffers + unpacked batches + spare buffers. What is not charged to one partition (receive
//! buffers are held whole while a slice of them lives) comes off the limit of all.

use super::budget::{Budget, Demand};
use super::ending::Ending;
use super::engine::Engine;
use super::intake::Room;
use super::shared::Attention;

impl Engine {
    /// Delivers what fits, and tells the consumer which partitions to fetch.
    pub(super) fn fill(&mut self) {
        self.reclaim();
        if !matches!(self.ending, Ending::No) {
            return;
        }
        let processed_before = self.shared.lock().processed;
        let rooms = self.rooms();
        let mut count_room = self.count_room();
        let mut delivered_any = false;
        let mut starved = false;
        for ((at, intake), (mut room, fetch)) in self.intakes.iter_mut().zip(rooms) {
            room.records = room.records.min(count_room);
            match intake.fill(&self.shared, &mut self.spares, room) {
                Ok(delivered) => {
                    count_room -= delivered;
                    delivered_any |= delivered > 0;
                }
                Err(error) => {
                    intake.break_off();
                    self.damaged.get_or_insert(error);
                }
            }
            if room.copy {
                intake.copy_views();
            }
            // What finished records free is wanted here: for what waits, or to fetch more.
            starved |= count_room > 0 && (intake.has_feed() || (!fetch && self.consumer.has_backlog(at)));
            let few = (intake.feed_bytes() as u64) < self.partition_fetch_bytes;
            self.consumer.set_fetchable(at, fetch && few && count_room > 0 && !intake.is_broken());
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
        count.saturating_sub(state.processed + counts.queued + counts.inflight)
    }

    /// What each partition may be given, and whether more of it may be fetched.
    fn rooms(&mut self) -> Vec<(Room, bool)> {
        let buffers = self.consumer.net().pool().bytes() + self.spares.bytes();
        let mut records = Vec::with_capacity(self.intakes.len());
        let mut bytes = Vec::with_capacity(self.intakes.len());
        let mut ahead = Vec::with_capacity(self.intakes.len());
        let mut unpacked = Vec::with_capacity(self.intakes.len());
        let mut views = 0;
        let state = self.shared.lock();
        for (at, intake) in &self.intakes {
            let counts = state.board.slot_counts(intake.slot());
            let (held, held_bytes, past) =
                counts.map_or((0, 0, 0), |counts| (counts.held(), counts.held_bytes, counts.ahead));
            let hungry = intake.has_feed() || self.consumer.has_backlog(at);
            views += intake.view_bytes() as u64;
            records.push(Demand { held, hungry });
            bytes.push(Demand { held: held_bytes + intake.feed_bytes() as u64, hungry });
            unpacked.push(held_bytes);
            ahead.push(self.config.ahead_max.saturating_sub(past));
        }
        drop(state);
        // At least a quarter stays for records, else buffers that are merely kept for use would stop the work.
        let limit = self
            .config
            .bytes_max
            .saturating_sub(buffers.saturating_sub(views))
            .max(self.config.bytes_max / 4);
        let copy = buffers > self.config.bytes_max / 2;
        let record_budget = Budget::new(self.config.records_max, records.iter().copied());
        let byte_budget = Budget::new(limit, bytes.iter().copied());
        self.held_back = ahead.contains(&0);
        let mut rooms = Vec::with_capacity(records.len());
        for (at, (records, bytes)) in records.iter().zip(&bytes).enumerate() {
            let room = byte_budget.room(*bytes);
            let fetch = room >= self.partition_fetch_bytes || bytes.held == 0;
            let records = record_budget.room(*records).min(ahead[at]);
            rooms.push((Room { records, bytes: room, holds_batch: unpacked[at] > 0, copy }, fetch));
        }
        rooms
    }

    /// Takes back the buffers of batches that are done.
    fn reclaim(&mut self) {
        self.shared.lock().board.take_released(&mut self.released);
        for released in self.released.drain(..) {
            self.spares.reclaim(released);
        }
    }
}
