//! What each worker is at: for SIGUSR1, the watch over gaps and the metrics.
//!
//! A worker writes one small entry of its own when a try begins and when it is over, so it costs a handler that sleeps
//! or starts a program nothing that could be measured. Handlers that cannot block are not entered. Nobody takes the
//! pool's mutex with one of these held, nor the other way round for longer than a copy.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::board::Slot;
use super::run::RunRecord;
use super::shared::RecordBatch;
use super::tracker::Assignment;
use super::tries::Try;

/// One record in a handler's hands.
#[derive(Clone, Debug)]
pub struct Doing {
    /// The record's batch.
    pub batch: Arc<RecordBatch>,
    /// Its index there.
    pub index: u32,
    /// Its partition.
    pub slot: Slot,
    /// The assignment it belongs to.
    pub assignment: Assignment,
    /// Its offset.
    pub offset: i64,
    /// Records that share its try.
    pub records: usize,
    /// Number of the try, from 1.
    pub attempt: u32,
    /// When the try began, a time of the shared clock.
    pub since: Duration,
    /// The child that has it.
    pub pid: Option<u32>,
    /// Tries open in the same child; this one is the oldest.
    pub open: usize,
}

/// One entry per worker.
#[derive(Debug)]
pub struct AtWork {
    workers: Vec<Mutex<Entry>>,
}

#[derive(Debug, Default)]
struct Entry {
    doing: Option<Doing>,
    took: Histogram,
}

impl AtWork {
    pub(super) fn new(workers: u32) -> AtWork {
        AtWork { workers: (0..workers).map(|_| Mutex::default()).collect() }
    }

    /// For a handler with one try at a time: it begins, in the child `pid` if there is one.
    pub fn begin(&self, worker: u32, tried: &Try, pid: Option<u32>, now: Duration) {
        self.hold(worker, Some((tried, now)), 1, pid);
    }

    /// The try is over; how long it took goes into the histogram. To be called before it is settled, or the batch's
    /// buffers are not used again.
    pub fn end(&self, worker: u32, now: Duration) {
        let mut entry = self.entry(worker);
        if let Some(doing) = entry.doing.take() {
            entry.took.add(now.saturating_sub(doing.since), 1);
        }
    }

    /// For a handler with several tries open in one child: the oldest of them and when it began, none when all are
    /// over. One call per turn is enough, but none may be settled while it stands here.
    pub fn hold(&self, worker: u32, oldest: Option<(&Try, Duration)>, open: usize, pid: Option<u32>) {
        let doing = oldest.map(|(tried, since)| {
            let first = tried.first();
            Doing { records: tried.len(), attempt: tried.attempt, pid, open, ..Doing::of(&first, since) }
        });
        self.entry(worker).doing = doing;
    }

    /// How long tries took that [`AtWork::hold`] stood for.
    pub fn observe(&self, worker: u32, took: impl IntoIterator<Item = Duration>) {
        let mut entry = self.entry(worker);
        // Those that were begun at once and answered at once are neighbours, and many.
        let mut run = (Duration::ZERO, 0);
        for took in took {
            if took != run.0 {
                entry.took.add(run.0, run.1);
                run = (took, 0);
            }
            run.1 += 1;
        }
        entry.took.add(run.0, run.1);
    }

    /// A worker of keylane's own handlers begins with a record.
    pub(super) fn begin_record(&self, worker: u32, record: &RunRecord<'_, RecordBatch>, now: Duration) {
        self.entry(worker).doing = Some(Doing::of(record, now));
    }

    /// What the workers are at, by number.
    pub(super) fn list(&self) -> Vec<(u32, Doing)> {
        let each = (0..).zip(&self.workers);
        each.filter_map(|(worker, entry)| Some((worker, lock(entry).doing.clone()?))).collect()
    }

    /// How long all tries took.
    pub(super) fn took(&self) -> Histogram {
        let mut all = Histogram::default();
        self.workers.iter().for_each(|entry| all.merge(&lock(entry).took));
        all
    }

    fn entry(&self, worker: u32) -> MutexGuard<'_, Entry> {
        lock(&self.workers[worker as usize])
    }
}

impl Doing {
    fn of(record: &RunRecord<'_, RecordBatch>, since: Duration) -> Doing {
        Doing {
            batch: record.batch.clone(),
            index: record.index,
            slot: record.slot,
            assignment: record.assignment,
            offset: record.offset,
            records: 1,
            attempt: 1,
            since,
            pid: None,
            open: 1,
        }
    }
}

fn lock(entry: &Mutex<Entry>) -> MutexGuard<'_, Entry> {
    entry.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Upper bounds of the histogram's buckets, seconds; what is longer is in none but the last, which has no bound.
pub(super) const BOUNDS_S: [f64; 17] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
    300.0,
];

/// How long tries took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Histogram {
    /// Per bucket, not cumulated; the last one is for what is over all bounds.
    pub(super) counts: [u64; BOUNDS_S.len() + 1],
    pub(super) sum: Duration,
}

impl Histogram {
    fn add(&mut self, took: Duration, tries: u32) {
        let bucket = BOUNDS_S.partition_point(|bound| *bound < took.as_secs_f64());
        self.counts[bucket] += u64::from(tries);
        self.sum = self.sum.saturating_add(took.saturating_mul(tries));
    }

    fn merge(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.sum = self.sum.saturating_add(other.sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let mut histogram = Histogram::default();
        for ms in [0, 10, 11, 400_000] {
            histogram.add(Duration::from_millis(ms), 1);
        }
        let mut twice = histogram.clone();
        twice.merge(&histogram);
        assert_eq!(
            (histogram.counts[0], histogram.counts[6], histogram.counts[7], histogram.counts[17]),
            (1, 1, 1, 1)
        );
        assert_eq!((twice.counts[17], twice.sum), (2, Duration::from_millis(800_042)));
    }

    #[test]
    fn tries_that_took_as_long_are_counted_each() {
        let at_work = AtWork::new(2);
        at_work.observe(1, [0, 11, 11, 11, 0].map(Duration::from_millis));
        at_work.observe(1, []);
        let took = at_work.took();
        assert_eq!((took.counts[0], took.counts[7], took.sum), (2, 3, Duration::from_millis(33)));
    }
}
