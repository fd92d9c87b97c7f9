//! How a run ends: drain, last commit, leave, and the exit code.
//!
//! In this order, whatever ends it: nothing new is fetched or joined; in each partition every record below the highest
//! one started is finished and none beyond is started; the prefix is committed; the group is left. At the drain's limit
//! what is with a worker is broken off, and what is unfinished then stays uncommitted and comes again.

use std::io;
use std::time::Duration;

use keylane_protocol::metadata::TopicPartition;

use super::board::Commit;
use super::engine::{Engine, to_offsets};
use super::shared::{Attention, Ends, State};
use super::stats::rate;
use super::tries::Outcomes;
use crate::cli::Verbosity;
use crate::exit::Exit;

/// Why a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// `-e`: every partition reached its end.
    End,
    /// `-n`: so many records are finished.
    Count,
    /// SIGINT, SIGTERM or SIGHUP.
    Signal,
    /// The reader of stdout has gone.
    ClosedOutput,
    /// The run cannot go on.
    Failure(Exit),
}

impl Stop {
    fn word(self) -> &'static str {
        match self {
            Stop::End => "end",
            Stop::Count => "count",
            Stop::Signal | Stop::ClosedOutput => "signal",
            Stop::Failure(_) => "failure",
        }
    }
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    No,
    Draining {
        stop: Stop,
        /// What still runs then is broken off, so that the last commit covers all that is done by `until`.
        break_at: Duration,
        until: Duration,
    },
    /// What is begun is being broken off, until `until` at most.
    GivingUp {
        stop: Stop,
        until: Duration,
    },
    /// `--fsync`: before the last commit.
    Syncing {
        stop: Stop,
        until: Duration,
    },
    Closing {
        stop: Stop,
    },
    /// A second signal: the last prefix is committed if that takes under a second.
    Hurrying {
        signal: i32,
        until: Duration,
    },
}

/// For the round in which partitions come to a member that has none, once their owners have drained.
const HAND_OVER: Duration = Duration::from_secs(2);
/// For handlers to let go, where a failure or a full drain leaves more time than that.
const GIVE_UP: Duration = Duration::from_secs(1);
/// For the last commit.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(5);
/// For the last commit after a second signal.
const HURRY_TIMEOUT: Duration = Duration::from_millis(900);

impl Engine {
    pub(super) fn ending_deadline(&self) -> Option<Duration> {
        match self.ending {
            Ending::Draining { break_at: until, .. }
            | Ending::GivingUp { until, .. }
            | Ending::Syncing { until, .. }
            | Ending::Hurrying { until, .. } => Some(until),
            Ending::No if self.config.exit_at_end && self.intakes.is_empty() && self.generation_seen => {
                Some(self.assigned_at + self.config.revoke_timeout + HAND_OVER)
            }
            _ => None,
        }
    }

    /// Looks at signals and goals, and goes on with an end that has begun.
    pub(super) fn poll_ending(&mut self, now: Duration) -> Option<Exit> {
        if self.signals.count >= 2 && !matches!(self.ending, Ending::Hurrying { .. }) {
            self.hurry(now);
        }
        let reached_damage = self.reached_damage();
        match self.ending {
            Ending::No => {
                if self.signals.count > 0 {
                    self.begin_end(Stop::Signal, now);
                } else if let Some(error) = self.damaged.take_if(|_| reached_damage) {
                    self.report.error(&error);
                    self.begin_end(Stop::Failure(Exit::of(&error)), now);
                } else if self.is_halted() {
                    // The next turn ends the run for that. What was not begun is dropped, and no goal is reached.
                } else if self.reached_count() {
                    self.begin_end(Stop::Count, now);
                } else if self.reached_end(now) {
                    self.begin_end(Stop::End, now);
                }
            }
            Ending::Draining { .. } => self.poll_drain(now),
            Ending::GivingUp { stop, until } => self.poll_giving_up(stop, until, now),
            Ending::Syncing { stop, until } => self.poll_syncing(stop, until, now),
            // The last commit may have been under way before, with more time than is left now.
            Ending::Hurrying { until, .. } if until <= now => {
                let committed = !self.shared.lock().board.has_any_news();
                return Some(self.on_closed(committed));
            }
            Ending::Closing { .. } | Ending::Hurrying { .. } => {}
        }
        None
    }

    fn reached_count(&self) -> bool {
        let Some(count) = self.config.count else { return false };
        let state = self.shared.lock();
        state.board.passed() >= count && state.board.is_idle()
    }

    /// Whether everything before the damage is finished: a restart then meets it first.
    fn reached_damage(&self) -> bool {
        let Some(error) = &self.damaged else { return false };
        let (Some(topic), Some(partition)) = (&error.context.topic, error.context.partition) else {
            return true;
        };
        let at = TopicPartition::new(topic.as_str(), partition);
        let Some(intake) = self.intakes.get(&at) else { return true };
        let counts = self.shared.lock().board.slot_counts(intake.slot());
        !intake.has_feed() && counts.is_none_or(|counts| counts.ahead == 0)
    }

    fn reached_end(&self, now: Duration) -> bool {
        // A newcomer is assigned nothing until the others have given something up.
        let waits_for_others =
            self.intakes.is_empty() && now < self.assigned_at + self.config.revoke_timeout + HAND_OVER;
        self.config.exit_at_end
            && self.generation_seen
            && !waits_for_others
            && self.consumer.is_settled()
            && self.consumer.has_all_topics()
            && self.intakes.values().all(|intake| intake.is_at_end() && !intake.has_feed())
            && self.shared.lock().board.is_idle()
    }

    /// A worker could not write: nothing more is finished, whether the run was to end or not.
    pub(super) fn on_output_failure(&mut self, error: &io::Error, now: Duration) {
        let stop = match error.kind() {
            io::ErrorKind::BrokenPipe => Stop::ClosedOutput,
            io::ErrorKind::InvalidData => Stop::Failure(Exit::Record),
            _ => Stop::Failure(Exit::Output),
        };
        if stop != Stop::ClosedOutput {
            let what =
                if stop == Stop::Failure(Exit::Record) { "reading a record" } else { "writing to stdout" };
            self.report.error(format!("{what} failed: {error}"));
        }
        self.end_for(stop, now);
    }

    /// The run is to end for this, whether it does so already or not: the first failure decides the exit code.
    pub(super) fn end_for(&mut self, new: Stop, now: Duration) {
        match &mut self.ending {
            Ending::No => self.begin_end(new, now),
            Ending::Draining { stop, .. }
            | Ending::GivingUp { stop, .. }
            | Ending::Syncing { stop, .. }
            | Ending::Closing { stop } => {
                if !matches!(stop, Stop::Failure(_)) {
                    *stop = new;
                }
            }
            Ending::Hurrying { .. } => {}
        }
    }

    pub(super) fn begin_end(&mut self, stop: Stop, now: Duration) {
        self.begin_end_within(stop, self.config.drain_timeout, now);
    }

    pub(super) fn begin_end_within(&mut self, stop: Stop, limit: Duration, now: Duration) {
        let until = now + limit;
        let own = Ends::before(until, now);
        self.consumer.stop();
        let mut state = self.shared.lock();
        state.board.freeze_all();
        state.attention = Attention::Always;
        let State { board, ends, .. } = &mut *state;
        for slot in board.assigned() {
            ends.entry(slot).and_modify(|ends| *ends = ends.earlier(own)).or_insert(own);
        }
        drop(state);
        self.shared.wake_every_worker();
        for intake in self.intakes.values_mut() {
            intake.clear();
        }
        self.ending = Ending::Draining { stop, break_at: own.kill_at, until };
        self.say_draining(now);
        self.poll_drain(now);
    }

    /// `draining: R records in P partitions, 22s left; signal again to stop now`
    pub(super) fn say_draining(&self, now: Duration) {
        let Ending::Draining { until, .. } = self.ending else { return };
        let (records, partitions) = self.shared.lock().board.drain_left();
        if records == 0 {
            return;
        }
        let left = until.saturating_sub(now).as_secs_f64().ceil();
        let text = format!(
            "draining: {records} records in {partitions} partitions, {left}s left; signal again to stop now"
        );
        let fields = vec![
            ("records", records.into()),
            ("partitions", partitions.into()),
            ("seconds_left", left.into()),
        ];
        self.report.stamped(Verbosity::Normal, "draining", text, fields);
    }

    fn poll_drain(&mut self, now: Duration) {
        let Ending::Draining { stop, break_at, until } = self.ending else { return };
        let mut state = self.shared.lock();
        // What runs beyond a target that was lowered comes again, and yet is not to be torn off.
        let left = state.board.drain_left().0 > 0 || state.board.inflight() > 0;
        // Once a worker failed nothing more is finished.
        if left && now < break_at && !state.is_stopped() {
            return;
        }
        self.shared.stop(&mut state);
        let State { board, tries, .. } = &mut *state;
        tries.give_up_all(board);
        drop(state);
        self.shared.wake_every_worker();
        let until = until.min(now + GIVE_UP);
        self.ending = Ending::GivingUp { stop, until };
        self.poll_giving_up(stop, until, now);
    }

    /// The last commit, once no record is with a worker.
    fn poll_giving_up(&mut self, stop: Stop, until: Duration, now: Duration) {
        let state = self.shared.lock();
        if state.board.inflight() > 0 && now < until {
            return;
        }
        // Before the sync: what a worker that did not let go in time still writes is not to be passed.
        let snapshot = state.board.commit_snapshot();
        drop(state);
        match self.unless_synced_first(snapshot) {
            Some(snapshot) => self.commit_last(stop, snapshot, now),
            None => {
                let until = now + COMMIT_TIMEOUT;
                self.ending = Ending::Syncing { stop, until };
                self.poll_syncing(stop, until, now);
            }
        }
    }

    fn poll_syncing(&mut self, stop: Stop, until: Duration, now: Duration) {
        let sync = self.unsynced.as_ref().map(|(sync, _)| *sync);
        let outcome = sync.and_then(|sync| self.disk.as_ref()?.outcome(sync));
        if outcome.is_none() && now < until {
            return;
        }
        let snapshot = self.take_synced().unwrap_or_default();
        self.commit_last(stop, snapshot, now);
    }

    fn commit_last(&mut self, stop: Stop, snapshot: Vec<Commit>, now: Duration) {
        let mut state = self.shared.lock();
        let given_up = state.tries.take_given_up(|_| true) + self.handed_over;
        let ((left, _), pending) = (state.board.drain_left(), state.board.counts().pending);
        drop(state);
        let left = left + given_up;
        self.totals.unfinished = left;
        // What a reader that went away did not get is not news to anybody.
        if left > 0 && stop != Stop::ClosedOutput {
            self.report.warning(format!(
                "{left} records are unfinished and {pending} finished ones lie behind them: both come again"
            ));
        }
        self.ending = Ending::Closing { stop };
        self.consumer.close(to_offsets(snapshot), now + COMMIT_TIMEOUT, now);
    }

    /// The second signal.
    fn hurry(&mut self, now: Duration) {
        let signal = self.signals.last;
        let mut state = self.shared.lock();
        self.shared.stop(&mut state);
        let State { board, tries, ends, .. } = &mut *state;
        tries.give_up_all(board);
        // Children without a record have been given the rest of the drain.
        ends.values_mut().for_each(|ends| *ends = Ends::NOW);
        let counts = state.board.counts();
        let snapshot = state.board.commit_snapshot();
        drop(state);
        self.totals.unfinished = counts.inflight;
        self.shared.wake_every_worker();
        self.consumer.stop();
        self.ending = Ending::Hurrying { signal, until: now + HURRY_TIMEOUT };
        let snapshot = self.unless_synced_first(snapshot).unwrap_or_default();
        self.consumer.close(to_offsets(snapshot), now + HURRY_TIMEOUT, now);
    }

    pub(super) fn on_closed(&mut self, committed: bool) -> Exit {
        let synced = self.unsynced.is_none() || !self.shared.lock().board.has_any_news();
        if !synced {
            self.report.warning("stdout was not synced in time: records since the last commit come again");
        } else if !committed {
            self.report
                .warning("the last commit was not acknowledged: records since the one before come again");
        }
        let committed = committed && synced;
        let clean = committed && self.totals.unfinished == 0;
        let failed = self.shared.lock().outcomes().failed();
        match self.ending {
            Ending::Hurrying { signal, .. } => Exit::of_signal(signal),
            Ending::Closing { stop: Stop::Failure(exit) } => exit,
            Ending::Closing { stop: Stop::End | Stop::Count } if clean && failed > 0 => Exit::Partly,
            Ending::Closing { stop: Stop::End | Stop::Count } if clean => Exit::Done,
            // What the reader did not take is unfinished, and that is no error.
            Ending::Closing { stop: Stop::ClosedOutput } if committed => Exit::Done,
            Ending::Closing { stop: Stop::Signal } if clean && !self.has_goal() => Exit::Done,
            _ => Exit::Unfinished,
        }
    }

    fn has_goal(&self) -> bool {
        self.config.exit_at_end || self.config.count.is_some()
    }

    /// The run is over: the workers are told to end. Returns whether none of them is with a record, so that their end
    /// can be waited for.
    pub fn end_workers(&mut self) -> bool {
        let mut state = self.shared.lock();
        self.shared.stop(&mut state);
        self.totals.processed = state.processed;
        self.totals.outcomes = state.outcomes();
        self.totals.elapsed =
            state.first_at.map_or(Duration::ZERO, |first| state.last_at.saturating_sub(first));
        let idle = state.board.is_idle();
        drop(state);
        self.shared.wake_every_worker();
        idle
    }

    /// Says the last line, after [`Engine::end_workers`].
    pub fn say_done(&self, exit: Exit) {
        let stop = match self.ending {
            Ending::Draining { stop, .. }
            | Ending::GivingUp { stop, .. }
            | Ending::Syncing { stop, .. }
            | Ending::Closing { stop } => stop.word(),
            Ending::Hurrying { .. } => Stop::Signal.word(),
            Ending::No => Stop::Failure(exit).word(),
        };
        let totals = &self.totals;
        let (seconds, rate) = (totals.elapsed.as_secs_f64(), rate(totals.processed, totals.elapsed));
        let Outcomes { retried, dead_lettered, skipped } = totals.outcomes;
        let text = format!(
            "done: processed={} seconds={seconds:.3} rate={rate:.1}/s retried={retried} dead-lettered={dead_lettered} \
             skipped={skipped} unfinished={} commits={} rebalances={} stop={stop}",
            totals.processed, totals.unfinished, totals.commits, totals.rebalances
        );
        let fields = vec![
            ("processed", totals.processed.into()),
            ("seconds", seconds.into()),
            ("rate", rate.into()),
            ("retried", retried.into()),
            ("dead_lettered", dead_lettered.into()),
            ("skipped", skipped.into()),
            ("unfinished", totals.unfinished.into()),
            ("commits", totals.commits.into()),
            ("rebalances", totals.rebalances.into()),
            ("stop", stop.into()),
        ];
        self.report.plain(Verbosity::Normal, "done", text, fields);
    }
}
