//! The lines that tell how the work goes: `--stats`, what limits it, and `done:`.

use std::time::Duration;

use super::board::Counts;
use super::engine::Engine;
use super::hot::Hot;
use super::tries::Outcomes;
use crate::cli::Verbosity;

/// What the work waits for, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// Nothing is there to be done: the topic is empty, or the broker slower than the workers.
    Fetch,
    /// Records wait, but each belongs to a key that is being worked on: more workers would not help, more keys would.
    Keys,
    /// All workers are at work, and more could be.
    Workers,
    /// All workers are at work, and there is nothing else for others to do.
    Handler,
    /// Nothing may be started: the coordinator does not answer, or too much is finished past an unfinished record.
    Commit,
}

impl Limit {
    /// The word in the stats line.
    pub(super) fn word(self) -> &'static str {
        match self {
            Limit::Fetch => "fetch",
            Limit::Keys => "keys",
            Limit::Workers => "workers",
            Limit::Handler => "handler",
            Limit::Commit => "commit",
        }
    }

    /// Judges the board at one moment. `held_back`: the lease is over, or a partition is at `--max-ahead`.
    pub(super) fn of(counts: &Counts, idle: usize, workers: usize, held_back: bool) -> Limit {
        if held_back && (idle == workers || counts.queued == 0) {
            Limit::Commit
        } else if idle == 0 && workers > 0 {
            if counts.ready > 0 { Limit::Workers } else { Limit::Handler }
        } else if counts.queued > 0 && counts.ready == 0 {
            Limit::Keys
        } else {
            Limit::Fetch
        }
    }
}

/// Records by outcome and what else the last line tells.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    /// Records finished.
    pub(super) processed: u64,
    /// What became of those that failed.
    pub(super) outcomes: Outcomes,
    /// Commits that were stored.
    pub(super) commits: u64,
    /// Assignments after the first.
    pub(super) rebalances: u64,
    /// Brokers that answered again.
    pub(super) reconnects: u64,
    /// Bytes of the batches that were fetched.
    pub(super) fetched_bytes: u64,
    /// Records begun and not finished when the run ended.
    pub(super) unfinished: u64,
    /// From the first record taken to the last one finished.
    pub(super) elapsed: Duration,
}

impl Engine {
    /// Whether nothing may be started: the lease is over, or a partition is at `--max-ahead`.
    pub(super) fn is_held_back(&self) -> bool {
        self.held_back || (self.generation_seen && !self.shared.may_start())
    }

    /// Says the line of `--stats`, if it is due, and which key holds the work up.
    pub(super) fn poll_stats(&mut self, now: Duration) {
        let Some(every) = self.config.stats else { return };
        if self.stats_due.is_none_or(|due| due > now) {
            return;
        }
        self.stats_due = Some(now + every);
        let state = self.shared.lock();
        let counts = state.board.counts();
        let processed = state.processed;
        let (idle, workers) = self.shared.idle_workers(&state);
        let hot = Hot::find(&state.board, &self.lane_key);
        let hot = hot.map(|hot| {
            let (topic, partition) = state.board.name(hot.slot);
            (hot, topic.clone(), partition)
        });
        drop(state);
        let limit = Limit::of(&counts, idle, workers, self.is_held_back());
        let (before, since) = self.stats_before;
        let rate = rate(processed - before, now.saturating_sub(since));
        self.stats_before = (processed, now);
        let text = format!(
            "processed={processed} rate={rate:.1}/s inflight={} queued={} pending={} limit={}",
            counts.inflight,
            counts.queued,
            counts.pending,
            limit.word()
        );
        let fields = vec![
            ("processed", processed.into()),
            ("rate", rate.into()),
            ("inflight", counts.inflight.into()),
            ("queued", counts.queued.into()),
            ("pending", counts.pending.into()),
            ("limit", limit.word().into()),
        ];
        self.report.stamped(Verbosity::Normal, "stats", text, fields);
        if let Some((hot, topic, partition)) = hot
            && let Some((text, fields)) = self.hot_keys.say(hot, (&topic, partition), (limit, workers), now)
        {
            self.report.stamped(Verbosity::Normal, "hot_key", text, fields);
        }
        self.say_draining(now);
    }
}

/// `1234.5`: one digit is what a reader can use.
pub(super) fn rate(records: u64, elapsed: Duration) -> f64 {
    let seconds = elapsed.as_secs_f64();
    if seconds > 0.0 { records as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_names_what_more_of_would_help() {
        let counts = |queued, ready| Counts { queued, ready, ..Counts::default() };
        assert_eq!(Limit::of(&counts(0, 0), 8, 8, false), Limit::Fetch);
        assert_eq!(Limit::of(&counts(100, 0), 4, 8, false), Limit::Keys);
        assert_eq!(Limit::of(&counts(100, 20), 0, 8, false), Limit::Workers);
        assert_eq!(Limit::of(&counts(100, 0), 0, 8, false), Limit::Handler);
        assert_eq!(Limit::of(&counts(100, 20), 8, 8, true), Limit::Commit);
    }
}
