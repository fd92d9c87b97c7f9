//! The offset tracker of one assigned partition: which offset may be committed.
//!
//! Guarantees: committed ≤ next ≤ delivered. `next` is the first delivered offset that is not finished, or with all
//! finished the position up to which everything was delivered; it runs over *delivered* offsets, so the holes that
//! markers, aborted and compacted records leave are passed like any others. It never falls.
//!
//! Records are numbered per assignment (ordinals). Offsets are kept as runs, completions as bits: contiguous offsets
//! cost one bit a record.

use std::collections::VecDeque;

/// Number of one assignment of one partition, unique in the process. It changes when the partition is newly added and
/// when its position is moved back; what belongs to an older one changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Assignment(u64);

impl Assignment {
    pub(crate) const FIRST: Assignment = Assignment(1);

    pub(crate) fn following(self) -> Assignment {
        Assignment(self.0 + 1)
    }
}

/// Consecutive offsets from `offset`, up to the ordinal of the run after.
#[derive(Clone, Copy, Debug)]
struct OffsetRun {
    ordinal: u64,
    offset: i64,
}

/// The tracker. Offsets are Kafka's; epochs are leader epochs, −1 where unknown.
#[derive(Debug)]
pub struct Tracker {
    /// Runs of the ordinals `first..end`; empty when there are none.
    runs: VecDeque<OffsetRun>,
    /// Done bits from ordinal `first` rounded down to a multiple of 64; none at or past `end`.
    done: VecDeque<u64>,
    /// The first unfinished ordinal: ≤ end.
    first: u64,
    /// One past the last ordinal.
    end: u64,
    /// Finished ordinals past `first`: ≤ end − first.
    pending: u64,
    /// Everything below was delivered: ≥ next.
    delivered: i64,
    /// Epoch of the batch before `next`, or around it.
    epoch: i32,
    /// Where the epoch changes: from which `next` on it is this one, in order.
    epochs: VecDeque<(i64, i32)>,
    /// The last acknowledged commit, at first the position at assignment, or 1 less where that is still to be
    /// committed: ≤ next.
    committed: i64,
}

impl Tracker {
    /// A tracker for a partition that starts at `position`; `epoch` goes with it until a batch is passed.
    pub fn new(position: i64, epoch: i32) -> Tracker {
        Tracker {
            runs: VecDeque::new(),
            done: VecDeque::new(),
            first: 0,
            end: 0,
            pending: 0,
            delivered: position,
            epoch,
            epochs: VecDeque::new(),
            committed: position,
        }
    }

    /// The position itself is not committed yet, and is to be.
    pub fn commit_start(&mut self) {
        self.committed = self.committed.min(self.next_offset() - 1);
    }

    /// Registers delivered records and returns the ordinal of the first; the others follow on. Offsets rise and are not
    /// below [`Tracker::delivered`].
    pub fn register(&mut self, offsets: impl Iterator<Item = i64>) -> u64 {
        let start = self.end;
        let mut expected = if self.first == self.end { i64::MIN } else { self.delivered_by_run() };
        let mut delivered = self.delivered;
        for offset in offsets {
            assert!(offset >= delivered, "records are delivered in offset order and once");
            if offset != expected {
                self.runs.push_back(OffsetRun { ordinal: self.end, offset });
            }
            expected = offset + 1;
            delivered = expected;
            self.end += 1;
        }
        self.delivered = delivered;
        let words = self.end.div_ceil(64) - self.first / 64;
        self.done.resize(words as usize, 0);
        start
    }

    /// [`Tracker::register`] for `count` records with consecutive offsets.
    pub fn register_run(&mut self, first_offset: i64, count: u64) -> u64 {
        let start = self.end;
        if count == 0 {
            return start;
        }
        assert!(first_offset >= self.delivered, "records are delivered in offset order and once");
        let expected = if self.first == self.end { i64::MIN } else { self.delivered_by_run() };
        if first_offset != expected {
            self.runs.push_back(OffsetRun { ordinal: self.end, offset: first_offset });
        }
        self.end += count;
        self.delivered = first_offset + count as i64;
        let words = self.end.div_ceil(64) - self.first / 64;
        self.done.resize(words as usize, 0);
        start
    }

    /// A batch with this leader epoch begins here. From its second offset on the epoch goes with commits: with the one
    /// before, a broker would say that its log ends at the batch (KIP-320), and the position lies behind that.
    pub fn enter(&mut self, base_offset: i64, epoch: i32) {
        self.push_epoch(base_offset + 1, epoch);
        self.pass_epochs();
    }

    /// Everything below `next_offset` is now delivered: the end of a batch with this leader epoch (records missing at
    /// its end and batches without any included), or with epoch −1 a move forward without a batch.
    pub fn advance(&mut self, next_offset: i64, epoch: i32) {
        self.delivered = self.delivered.max(next_offset);
        self.push_epoch(next_offset, epoch);
        self.pass_epochs();
    }

    fn push_epoch(&mut self, from: i64, epoch: i32) {
        let newest = self.epochs.back().map_or(self.epoch, |&(_, epoch)| epoch);
        if epoch >= 0 && epoch != newest {
            self.epochs.push_back((from, epoch));
        }
    }

    /// Marks `count` consecutive registered records as finished. Panics when one is so already: each is with one worker
    /// at a time.
    #[inline]
    pub fn finish(&mut self, ordinal: u64, count: u64) {
        let end = ordinal + count;
        assert!(
            count > 0 && ordinal >= self.first && end <= self.end,
            "a record is finished after it was registered, and once"
        );
        let mut at = ordinal;
        while at < end {
            let shift = at % 64;
            let bits = (end - at).min(64 - shift);
            let mask = (u64::MAX >> (64 - bits)) << shift;
            let word = &mut self.done[(at / 64 - self.first / 64) as usize];
            assert!(*word & mask == 0, "a record is finished once");
            *word |= mask;
            at += bits;
        }
        self.pending += count;
        if ordinal == self.first {
            self.pass_finished();
        }
    }

    /// The offset to commit, and the leader epoch that goes with it.
    pub fn next(&self) -> (i64, i32) {
        let next = self.next_offset();
        let passed = self.epochs.iter().take_while(|&&(end, _)| end <= next).last();
        (next, passed.map_or(self.epoch, |&(_, epoch)| epoch))
    }

    /// The first unfinished offset, if any.
    pub fn oldest(&self) -> Option<i64> {
        (self.first < self.end).then(|| self.next_offset())
    }

    /// The position up to which everything was delivered.
    pub fn delivered(&self) -> i64 {
        self.delivered
    }

    /// The first unfinished ordinal, or the next one to be given.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Records registered past the first unfinished one, itself included.
    pub fn ahead(&self) -> u64 {
        self.end - self.first
    }

    /// Finished records that `next` has not passed.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// Unfinished records with an ordinal below `ordinal_end`.
    pub fn unfinished_below(&self, ordinal_end: u64) -> u64 {
        let end = ordinal_end.min(self.end);
        if end <= self.first {
            return 0;
        }
        let base = self.first / 64 * 64;
        let finished: u64 = (0..)
            .step_by(64)
            .zip(&self.done)
            .map(|(from, &word)| {
                let kept = (end - base).saturating_sub(from).min(64);
                let mask = if kept == 64 { u64::MAX } else { (1 << kept) - 1 };
                u64::from((word & mask).count_ones())
            })
            .sum();
        // The bits below `first` in the first word are set; they are not asked for.
        (end - base) - finished
    }

    /// The last acknowledged commit of this assignment, at first its start.
    pub fn committed(&self) -> i64 {
        self.committed
    }

    /// A commit of `offset` was acknowledged. A late answer to an older commit changes nothing.
    pub fn acknowledge(&mut self, offset: i64) {
        assert!(offset <= self.next_offset(), "only what the tracker gave out is committed");
        self.committed = self.committed.max(offset);
    }

    /// Checks what this file guarantees; panics on a bug of ours.
    pub fn invariants(&self) {
        let next = self.next_offset();
        assert!(self.committed <= next && next <= self.delivered, "committed ≤ next ≤ delivered");
        assert!(self.first <= self.end);
        assert_eq!(self.runs.is_empty(), self.first == self.end);
        assert!(self.runs.front().is_none_or(|run| run.ordinal <= self.first));
        assert!(self.runs.iter().zip(self.runs.iter().skip(1)).all(|(a, b)| {
            a.ordinal < b.ordinal && b.offset - a.offset > (b.ordinal - a.ordinal).cast_signed()
        }));
        assert_eq!(self.done.len() as u64, self.end.div_ceil(64) - self.first / 64);
        assert!(self.first == self.end || self.done[0] >> (self.first % 64) & 1 == 0);
        assert_eq!(self.pending, self.ahead() - self.unfinished_below(self.end));
    }

    /// Where the last run would go on.
    fn delivered_by_run(&self) -> i64 {
        self.runs.back().map_or(i64::MIN, |run| run.offset + (self.end - run.ordinal).cast_signed())
    }

    fn next_offset(&self) -> i64 {
        match self.runs.front() {
            Some(run) => run.offset + (self.first - run.ordinal).cast_signed(),
            None => self.delivered,
        }
    }

    #[inline]
    fn pass_finished(&mut self) {
        let before = self.first;
        while self.first < self.end {
            let shift = self.first % 64;
            // Bits shifted in are zeros, so no more than 64 − shift ones are counted.
            let ones = u64::from((self.done[0] >> shift).trailing_ones());
            self.first += ones;
            if shift + ones < 64 {
                break;
            }
            self.done.pop_front();
        }
        self.pending -= self.first - before;
        if self.first == self.end {
            self.runs.clear();
        }
        while self.runs.get(1).is_some_and(|run| run.ordinal <= self.first) {
            self.runs.pop_front();
        }
        if !self.epochs.is_empty() {
            self.pass_epochs();
        }
    }

    fn pass_epochs(&mut self) {
        let next = self.next_offset();
        while let Some(&(end, epoch)) = self.epochs.front() {
            if end > next {
                break;
            }
            self.epoch = epoch;
            self.epochs.pop_front();
        }
    }
}
