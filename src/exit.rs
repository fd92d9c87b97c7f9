//! Exit codes: the one table that scripts rely on.
//!
//! The numbers follow `sysexits.h` and the shells. Every way out of keylane is a variant here, so none is made up on
//! the spot and a `match` on the outcome of a run stays exhaustive.

use std::process::ExitCode;

use keylane_protocol::error::{Class, Error, Fault, code};
use signal_hook::consts::{SIGHUP, SIGINT};

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Reached the goal with nothing dead-lettered or skipped; without a goal: stopped by a signal and drained.
    Done = 0,
    /// Reached the goal, but some records failed, were dead-lettered or skipped; `lag --once`: a group not described
    /// or a partition unknown; `group delete`: a group is not empty.
    Partly = 1,
    /// The command line, an environment variable or a configuration file is wrong.
    Usage = 64,
    /// Stopped at a record that cannot be done, or at damaged data.
    Record = 65,
    /// A topic is missing and may not be made.
    NoTopic = 66,
    /// No broker or coordinator before the first assignment or answer.
    Unavailable = 69,
    /// A bug in keylane.
    Bug = 70,
    /// Writing stdout, the joblog or a file failed.
    Output = 74,
    /// Stopped with unfinished records: they come again.
    Unfinished = 75,
    /// Refused by the cluster: fenced, inconsistent protocol, unsupported version, topic recreated.
    Refused = 76,
    /// Authentication or authorization failed.
    Denied = 77,
    /// The handler cannot be run.
    CannotRun = 126,
    /// The handler is not there.
    NotFound = 127,
    /// The second SIGHUP.
    Hangup = 129,
    /// The second SIGINT.
    Interrupt = 130,
    /// The second SIGTERM.
    Terminate = 143,
}

impl Exit {
    /// How a run ends that an error ended.
    pub fn of(error: &Error) -> Exit {
        match (&error.fault, error.class()) {
            (Fault::Misuse(_), _) => Exit::Bug,
            (Fault::Damaged(_) | Fault::Refused(code::CORRUPT_MESSAGE, _), _) => Exit::Record,
            (Fault::Policy(_), _) => Exit::Refused,
            (_, Class::Denied) => Exit::Denied,
            (_, Class::Topic) => Exit::NoTopic,
            (_, Class::Retry | Class::Leader | Class::Coordinator) => Exit::Unavailable,
            (_, Class::Refused | Class::Membership | Class::Fine) => Exit::Refused,
        }
    }

    /// How a run ends that this signal ended at once.
    pub fn of_signal(signal: i32) -> Exit {
        match signal {
            SIGHUP => Exit::Hangup,
            SIGINT => Exit::Interrupt,
            _ => Exit::Terminate,
        }
    }

    /// The number that the shell sees.
    pub fn code(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}
