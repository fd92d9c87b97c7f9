//! The failure policy: from a failed try to what becomes of the record. Pure; the waiting is the pool's.
//!
//! A record has one outcome: done, dead-lettered, skipped, or unfinished. It is never passed silently.

use std::time::Duration;

use super::outcome::{Failed, Kind};
use crate::exit::Exit;

/// `--retries`, `--retry-delay`, `--retry-max-delay`, `--on-fail`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Extra tries after ordinary failures; `None` = without limit.
    pub retries: Option<u32>,
    /// Before the second try; doubles from try to try.
    pub delay: Duration,
    /// The longest delay.
    pub delay_max: Duration,
    /// What becomes of a record that cannot be done.
    pub on_fail: OnFail,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            retries: Some(3),
            delay: Duration::from_millis(200),
            delay_max: Duration::from_secs(30),
            on_fail: OnFail::Stop,
        }
    }
}

/// `--on-fail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFail {
    /// The run ends before the record.
    Stop,
    /// The record is passed, and counted.
    Skip,
    /// The record is passed once its copy is acknowledged in the dead-letter topic.
    DeadLetter,
}

/// `--halt`: after how many dead letters and skips the run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halt {
    /// `now`: what is running is ended; else (`soon`) it is drained.
    pub now: bool,
    /// `fail=N`, not 0.
    pub failures_max: u64,
}

/// What becomes of a record after a failed try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Tried again after this delay.
    Again(Duration),
    /// The run ends with this code.
    Stop(Exit),
    /// Passed.
    Skip,
    /// Passed once it is in the dead-letter topic.
    DeadLetter,
}

impl Policy {
    /// Judges the newest failed try of a record that was tried `tries` times, `counted` of them ordinary failures that
    /// count, the newest included. `random` is for the jitter: the delay is between half and all of what it could be.
    pub fn judge(&self, failed: &Failed, tries: u32, counted: u32, random: u64) -> Verdict {
        let again = match failed.kind {
            Kind::CannotRun(exit) => return Verdict::Stop(exit),
            Kind::Reject => false,
            Kind::Temporary => true,
            Kind::Ordinary => self.retries.is_none_or(|retries| counted <= retries),
        };
        if again {
            return Verdict::Again(self.delay(tries, random));
        }
        match self.on_fail {
            OnFail::Stop => Verdict::Stop(Exit::Record),
            OnFail::Skip => Verdict::Skip,
            OnFail::DeadLetter => Verdict::DeadLetter,
        }
    }

    fn delay(&self, tries: u32, random: u64) -> Duration {
        let doublings = tries.saturating_sub(1).min(31);
        let full = self.delay.saturating_mul(1 << doublings).min(self.delay_max);
        let fraction = (random >> 11) as f64 / (1u64 << 53) as f64;
        full.mul_f64(0.5 + fraction / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::End;
    use super::*;

    fn failed(kind: Kind) -> Failed {
        Failed { kind, end: End::Exit(1), reason: String::new(), counts: true }
    }

    #[test]
    fn ordinary_failures_are_tried_again_so_many_times() {
        let policy = Policy { retries: Some(2), ..Policy::default() };
        let judge = |tries, counted| policy.judge(&failed(Kind::Ordinary), tries, counted, u64::MAX);
        assert!(matches!(judge(1, 1), Verdict::Again(_)));
        assert!(matches!(judge(2, 2), Verdict::Again(_)));
        assert_eq!(judge(3, 3), Verdict::Stop(Exit::Record));
        // Temporary failures between them do not use the limit up.
        assert!(matches!(judge(9, 2), Verdict::Again(_)));
        let none = Policy { retries: Some(0), on_fail: OnFail::Skip, ..Policy::default() };
        assert_eq!(none.judge(&failed(Kind::Ordinary), 1, 1, 0), Verdict::Skip);
        let endless = Policy { retries: None, ..Policy::default() };
        assert!(matches!(endless.judge(&failed(Kind::Ordinary), u32::MAX, u32::MAX, 0), Verdict::Again(_)));
    }

    #[test]
    fn a_rejected_record_is_not_tried_again() {
        let policy = Policy { on_fail: OnFail::DeadLetter, ..Policy::default() };
        assert_eq!(policy.judge(&failed(Kind::Reject), 1, 0, 0), Verdict::DeadLetter);
        assert!(matches!(policy.judge(&failed(Kind::Temporary), 100, 0, 0), Verdict::Again(_)));
        let exit = Exit::NotFound;
        assert_eq!(policy.judge(&failed(Kind::CannotRun(exit)), 1, 0, 0), Verdict::Stop(exit));
    }

    #[test]
    fn delays_double_up_to_the_longest() {
        let policy = Policy::default();
        let delay = |tries, random| match policy.judge(&failed(Kind::Temporary), tries, 0, random) {
            Verdict::Again(delay) => delay.as_millis(),
            other => panic!("{other:?}"),
        };
        assert_eq!(delay(1, 0), 100);
        assert!((199..=200).contains(&delay(1, u64::MAX)));
        assert_eq!(delay(2, 0), 200);
        assert_eq!(delay(5, 0), 1600);
        assert_eq!(delay(50, 0), 15_000);
        assert!((29_999..=30_000).contains(&delay(u32::MAX, u64::MAX)));
    }
}
