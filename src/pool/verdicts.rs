//! What the engine does about records that failed: next tries that are due, dead letters, skips, and the end of the run
//! at one that cannot be done.

use std::fmt;
use std::time::Duration;

use super::ending::{Ending, Stop};
use super::engine::Engine;
use super::shared::{Ends, KILL_AFTER, State};
use super::tries::Judged;
use crate::exit::Exit;
use crate::handler::outcome::{End, Kind};
use crate::handler::policy::{Halt, Verdict};

/// Where dead letters are posted. Each comes back by
/// [`Shared::letter_done`](super::shared::Shared::letter_done), now or much later.
pub trait Letterbox: fmt::Debug + Send {
    /// Takes a record that failed for good.
    fn post(&mut self, judged: Judged);
}

impl Engine {
    /// Dead letters go to `letterbox`, and the run ends after so many failed records.
    pub fn set_failure_policy(&mut self, letterbox: Option<Box<dyn Letterbox>>, halt: Option<Halt>) {
        self.letterbox = letterbox;
        self.halt = halt;
        self.shared.lock().failed_max = halt.map_or(u64::MAX, |halt| halt.failures_max);
    }

    /// When a try is due.
    pub(super) fn tries_deadline(&self) -> Option<Duration> {
        self.shared.lock().tries.next_due()
    }

    /// Brings due tries to the workers, and acts on records that failed for good.
    pub(super) fn poll_tries(&mut self, now: Duration) {
        let mut state = self.shared.lock();
        let State { board, tries, ends, .. } = &mut *state;
        let limit = |slot| ends.get(&slot).map(|ends| ends.term_at);
        let gave_up = !ends.is_empty() && tries.give_up_late(board, limit);
        let ready = board.ready();
        let ripened = tries.ripen(board, now) > 0;
        // Also what waited behind a record that is passed now, or given up.
        let is_work = gave_up || ripened || board.ready() > ready;
        let judged = std::mem::take(&mut tries.judged);
        if is_work {
            self.shared.wake_workers(state, true);
        } else {
            drop(state);
        }
        for judged in judged {
            self.on_judged(judged, now);
        }
        if let Some(halt) = self.halt.filter(|_| self.is_halted())
            && matches!(self.ending, Ending::No)
        {
            self.on_halt(halt, now);
        }
    }

    /// Whether so many records failed that `--halt` ends the run.
    pub(super) fn is_halted(&self) -> bool {
        self.shared.lock().is_halted()
    }

    fn on_judged(&mut self, judged: Judged, now: Duration) {
        match (judged.verdict, &mut self.letterbox) {
            (Verdict::DeadLetter, Some(letterbox)) => letterbox.post(judged),
            (Verdict::Stop(exit), _) => self.stop_at(judged, exit, now),
            (verdict, _) => unreachable!("{verdict:?} is no verdict for the engine, or has no letterbox"),
        }
    }

    /// The run ends before this record.
    fn stop_at(&mut self, judged: Judged, exit: Exit, now: Duration) {
        let Judged { tried, failed, refused, .. } = judged;
        let (name, tries) = (tried.name(), tried.attempt);
        let how = match failed.end {
            End::Exit(code) => format!("exit {code}"),
            End::Signal(number) => format!("signal {number}"),
            End::TimedOut => "no end within --timeout".to_owned(),
            End::Answer => failed.reason.clone(),
        };
        let text = match failed.kind {
            Kind::CannotRun(_) => format!("{name}: the handler cannot be run: {}", failed.reason),
            Kind::Reject => format!("{name}: rejected by its handler on try {tries} ({how})"),
            _ => format!("{name}: failed on try {tries} ({how}), the last one it has"),
        };
        let letter = refused.map_or(String::new(), |why| format!("; its dead letter is refused: {why}"));
        self.report.error(format!("{text}{letter}; it is not committed and comes again"));
        self.end_for(Stop::Failure(exit), now);
        let mut state = self.shared.lock();
        let State { board, tries, .. } = &mut *state;
        tries.give_up(board, tried);
        // What waited behind it, up to the end of a drain.
        self.shared.wake_workers(state, true);
    }

    fn on_halt(&mut self, halt: Halt, now: Duration) {
        let failed = self.shared.lock().outcomes().failed();
        self.report.error(format!("{failed} records failed: --halt ends the run"));
        let limit = if halt.now { KILL_AFTER + Duration::from_secs(1) } else { self.config.drain_timeout };
        self.begin_end_within(Stop::Failure(Exit::Record), limit, now);
        if halt.now {
            let mut state = self.shared.lock();
            state.ends.values_mut().for_each(|ends| *ends = Ends { term_at: now, kill_at: now + KILL_AFTER });
            drop(state);
            self.shared.wake_every_worker();
        }
    }
}
