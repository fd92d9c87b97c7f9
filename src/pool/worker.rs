//! What a worker does, step by step: take, handle, complete. Nothing here waits or blocks, so the threads (`threads`)
//! and the simulator run the same steps.
//!
//! A record is started only while the lease holds (see [`Shared::may_start`]): a process that was stopped for longer
//! than the session timeout starts nothing before the coordinator has answered. What was taken but not started is
//! given back to the front of its lane.

use std::time::Duration;

use super::run::{Run, RunRecord};
use super::shared::{Failure, RecordBatch, Shared};

/// A run of records without a blocking handler ends after about this long, so that no record waits behind it for
/// longer.
const RUN_TIME: Duration = Duration::from_micros(100);
/// Records in the first run of a worker, before it knows how long one takes.
const FIRST_RUN: usize = 64;

/// What is to be done after [`Worker::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Records were taken: handle them, then complete.
    Handle,
    /// Nothing is there: take again when woken.
    Wait,
    /// The work is over.
    End,
}

/// One worker's own state.
#[derive(Debug)]
pub struct Worker {
    number: u32,
    run: Run<RecordBatch>,
    /// How many records the next run may have.
    size: usize,
    /// How many of the run are finished, from the front.
    finished: usize,
    /// It is on the list of those that wait, unless it was woken.
    waiting: bool,
}

impl Worker {
    /// Worker `number`, from 0.
    pub fn new(number: u32, shared: &Shared) -> Self {
        let size = FIRST_RUN.min(shared.run_records_max);
        Worker { number, run: Run::new(), size, finished: 0, waiting: false }
    }

    /// Takes records, if there are any and they may be started.
    pub fn take(&mut self, shared: &Shared) -> Next {
        let mut state = shared.lock();
        if std::mem::take(&mut self.waiting) {
            // A wake-up without cause leaves us on the list.
            let number = self.number;
            state.idle.retain(|idle| *idle != number);
        }
        if state.is_stopped() {
            return Next::End;
        }
        if shared.may_start() {
            state.board.take(self.number, self.size, &mut self.run);
            if !self.run.is_empty() {
                state.first_at.get_or_insert_with(|| shared.now());
                return Next::Handle;
            }
        }
        state.idle.push(self.number);
        self.waiting = true;
        Next::Wait
    }

    /// The record to handle now, unless the run is at its end or nothing may be started any more.
    pub fn next_record(&self, shared: &Shared) -> Option<RunRecord<'_, RecordBatch>> {
        let record = self.run.get(self.finished)?;
        // A process may be stopped in the middle of a run, and go on when its partitions are another's.
        shared.may_start().then_some(record)
    }

    /// The record of [`Worker::next_record`] is finished.
    pub fn finish_record(&mut self) {
        assert!(self.finished < self.run.len(), "only what was taken is finished");
        self.finished += 1;
    }

    /// Finishes the whole run where there is nothing to be done with a record, if it may be started.
    pub fn finish_run(&mut self, shared: &Shared) {
        self.finished = if shared.may_start() { self.run.len() } else { 0 };
    }

    /// Ends the run: what is finished is marked, the rest given back. After a failure nothing of it counts as finished,
    /// and all workers end. Returns how many records were finished.
    pub fn complete(&mut self, shared: &Shared, failure: Option<Failure>) -> usize {
        let finished = if failure.is_some() { 0 } else { self.finished };
        self.finished = 0;
        let mut state = shared.lock();
        state.board.complete(&mut self.run, finished);
        state.processed += finished as u64;
        state.last_at = state.last_at.max(shared.now());
        if let Some(failure) = failure {
            state.failure.get_or_insert(failure);
            shared.stop(&mut state);
        }
        let wake = Shared::wants_attention(&mut state);
        drop(state);
        if wake {
            shared.wake_engine();
        }
        finished
    }

    /// Makes the next run as long as this one's pace allows: `took` is how long `finished` records took.
    pub fn keep_pace(&mut self, shared: &Shared, took: Duration, finished: usize) {
        if shared.run_records_max > 1 && finished > 0 {
            let each_ns = (took.as_nanos() / finished as u128).max(1);
            let fits = usize::try_from(RUN_TIME.as_nanos() / each_ns).unwrap_or(usize::MAX);
            self.size = fits.clamp(1, shared.run_records_max);
        }
    }
}
