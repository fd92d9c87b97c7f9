//! Dispatch by partition: each partition in delivered order, the partitions in turn. Ranges are queued, not records.
//!
//! Guarantees: a partition is with one worker at a time. For `keylane sequential` one run is out at a time in all,
//! and a partition gives at most a chunk of records before the next one's turn. For a pool whose handler cannot block
//! each partition is one lane: that keeps every key's order too, and nothing would be won by running two keys of one
//! partition at once, while a queue per key costs more than such a handler.

use std::collections::VecDeque;

use super::batch::Origin;
use super::items::Item;
use super::route::Routed;

/// Records of one batch with consecutive indices and offsets.
#[derive(Clone, Copy, Debug)]
struct Range {
    first: Item,
    ordinal: u64,
    len: u32,
}

impl Range {
    fn nth(&self, n: u32) -> Item {
        Item::new(self.first.batch, self.first.index + n, self.first.delta + n)
    }
}

#[derive(Debug, Default)]
struct Lane {
    ranges: VecDeque<Range>,
    /// With a worker, and so not in turn. Not used where one run is out at a time.
    busy: bool,
}

impl Lane {
    /// Up to so many records of the first range; returns how many.
    fn take_front(&mut self, records_max: u32, mut sink: impl FnMut(&Item)) -> u32 {
        let Some(range) = self.ranges.front_mut() else { unreachable!("what is taken from has a range") };
        let count = range.len.min(records_max);
        (0..count).for_each(|n| sink(&range.nth(n)));
        if count == range.len {
            self.ranges.pop_front();
        } else {
            let ordinal = range.ordinal + u64::from(count);
            *range = Range { first: range.nth(count), ordinal, len: range.len - count };
        }
        count
    }
}

/// One queue of ranges per partition.
#[derive(Debug)]
pub(crate) struct Sequence {
    lanes: Vec<Lane>,
    /// Partitions with a range waiting that are not busy; the front one has its turn.
    turns: VecDeque<u32>,
    /// One run is out at a time in all, and this is whether one is; none where partitions run side by side.
    out: Option<bool>,
    chunk_records_max: u32,
    chunk_left: u32,
}

impl Sequence {
    /// One run at a time in all.
    pub(crate) fn one_at_a_time(chunk_records_max: u32) -> Sequence {
        assert!(chunk_records_max > 0, "a chunk has at least one record");
        Sequence {
            lanes: Vec::new(),
            turns: VecDeque::new(),
            out: Some(false),
            chunk_records_max,
            chunk_left: chunk_records_max,
        }
    }

    /// Partitions side by side; each gives a run's worth in its turn.
    pub(crate) fn side_by_side() -> Sequence {
        Sequence {
            lanes: Vec::new(),
            turns: VecDeque::new(),
            out: None,
            chunk_records_max: u32::MAX,
            chunk_left: u32::MAX,
        }
    }

    pub(crate) fn add_slot(&mut self) {
        self.lanes.push(Lane::default());
    }

    pub(crate) fn enqueue(&mut self, origin: &Origin, first: Item, records: &[Routed]) {
        let mut item = first;
        for run in records.chunk_by(|a, b| a.offset + 1 == b.offset) {
            let len = u32::try_from(run.len()).expect("a slice of a batch has few records");
            self.enqueue_run(origin, item, run[0].offset, len);
            item.index += len;
        }
    }

    /// `len` records with consecutive indices from that of `item` on, and consecutive offsets.
    pub(crate) fn enqueue_run(&mut self, origin: &Origin, mut item: Item, offset: i64, len: u32) {
        if len == 0 {
            return;
        }
        let lane = &mut self.lanes[origin.slot as usize];
        if lane.ranges.is_empty() && !lane.busy {
            self.turns.push_back(origin.slot);
        }
        item.delta = origin.delta(offset);
        lane.ranges.push_back(Range { first: item, ordinal: origin.ordinal(item.index), len });
    }

    pub(crate) fn take(&mut self, records_max: usize, mut sink: impl FnMut(u32, &Item)) {
        if self.out != Some(true) {
            self.take_in_turn(u32::try_from(records_max).unwrap_or(u32::MAX), &mut sink);
        }
    }

    /// More for a run that is out, whose last records are of `slot`.
    pub(crate) fn take_more(&mut self, slot: u32, records_max: usize, mut sink: impl FnMut(u32, &Item)) {
        let mut left = u32::try_from(records_max).unwrap_or(u32::MAX);
        // Where partitions run side by side this one is busy, and so not in turn.
        let lane = &mut self.lanes[slot as usize];
        while self.out.is_none() && left > 0 && !lane.ranges.is_empty() {
            left -= lane.take_front(left, |item| sink(slot, item));
        }
        self.take_in_turn(left, &mut sink);
    }

    fn take_in_turn(&mut self, mut left: u32, sink: &mut impl FnMut(u32, &Item)) {
        while left > 0
            && let Some(&slot) = self.turns.front()
        {
            let lane = &mut self.lanes[slot as usize];
            match &mut self.out {
                Some(out) => *out = true,
                None => lane.busy = true,
            }
            let count = lane.take_front(left.min(self.chunk_left), |item| sink(slot, item));
            left -= count;
            self.chunk_left -= count;
            let over = lane.ranges.is_empty();
            if lane.busy {
                // Chunks are of turns, and here each run has a turn of its own.
                self.chunk_left = self.chunk_records_max;
                if over || left == 0 {
                    self.turns.pop_front();
                }
                continue;
            }
            if over || self.chunk_left == 0 {
                self.chunk_left = self.chunk_records_max;
                self.turns.pop_front();
                if !over {
                    self.turns.push_back(slot);
                }
            }
        }
    }

    pub(crate) fn give_back(&mut self, slot: u32, item: Item, ordinal: u64) {
        let lane = &mut self.lanes[slot as usize];
        let queue = &mut lane.ranges;
        if queue.is_empty() && !lane.busy {
            self.turns.push_front(slot);
            self.chunk_left = self.chunk_records_max;
        }
        if let Some(range) = queue.front_mut()
            && range.first.batch == item.batch
            && range.first.index == item.index + 1
            && range.first.delta == item.delta + 1
        {
            *range = Range { first: item, ordinal, len: range.len + 1 };
        } else {
            queue.push_front(Range { first: item, ordinal, len: 1 });
        }
    }

    pub(crate) fn release(&mut self, slot: u32) {
        if let Some(out) = &mut self.out {
            *out = false;
            return;
        }
        let lane = &mut self.lanes[slot as usize];
        lane.busy = false;
        if !lane.ranges.is_empty() {
            self.turns.push_back(slot);
        }
    }

    pub(crate) fn drop_from(&mut self, slot: u32, ordinal: u64, mut dropped: impl FnMut(u32, u32)) {
        let queue = &mut self.lanes[slot as usize].ranges;
        queue.retain_mut(|range| {
            let keep = ordinal.saturating_sub(range.ordinal).min(u64::from(range.len)) as u32;
            if keep < range.len {
                dropped(range.first.batch, range.len - keep);
            }
            range.len = keep;
            keep > 0
        });
        if queue.is_empty() {
            if self.turns.front() == Some(&slot) {
                self.chunk_left = self.chunk_records_max;
            }
            self.turns.retain(|&turn| turn != slot);
        }
    }

    pub(crate) fn ready(&self) -> usize {
        match self.out {
            Some(out) => usize::from(!out && !self.turns.is_empty()),
            None => self.turns.len(),
        }
    }

    /// Visits every queued record, and checks what this file guarantees.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Item) -> u64) {
        for (slot, lane) in (0..).zip(&self.lanes) {
            let queue = &lane.ranges;
            let in_turn = self.turns.iter().filter(|&&turn| turn == slot).count();
            assert_eq!(in_turn, usize::from(!queue.is_empty() && !lane.busy));
            let mut next = 0;
            for range in queue {
                assert!(range.len > 0 && range.ordinal >= next, "a partition is in offset order");
                next = range.ordinal + u64::from(range.len);
                (0..range.len).for_each(|n| assert_eq!(visit(&range.nth(n)), range.ordinal + u64::from(n)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::batch::Batches;
    use crate::pool::tracker::Assignment;

    /// After 2^32 records nothing was left of the one chunk, and taking came to no end.
    #[test]
    fn side_by_side_there_is_no_end_of_a_chunk() {
        let mut sequence = Sequence { chunk_left: 3, ..Sequence::side_by_side() };
        sequence.add_slot();
        let mut batches = Batches::new();
        batches.slot_bytes.push(0);
        let id = batches.open(0, Assignment::FIRST, std::sync::Arc::new(()), 1);
        let entry = batches.opened(id).expect("just opened");
        entry.deliver(0, 10, 0, 0);
        sequence.enqueue_run(&entry.origin, Item::new(0, 0, 0), 0, 10);
        for (wanted, expected) in [(4, 4), (9, 6)] {
            let mut taken = 0;
            sequence.take(wanted, |_, _| taken += 1);
            assert_eq!(taken, expected);
            sequence.release(0);
        }
    }
}
