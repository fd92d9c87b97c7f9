//! What one try of a handler came to, and what the handler's exit codes mean.

use crate::exit::Exit;

/// What a try came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The record is handled.
    Done,
    /// The try was broken off by keylane itself (a drain's limit, a lost partition): it says nothing about the record,
    /// which comes again.
    Unfinished,
    /// The try failed.
    Failed(Failed),
}

/// A try that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// What is to follow from it.
    pub kind: Kind,
    /// How it ended.
    pub end: End,
    /// In words, for messages and the dead letter; at most [`REASON_BYTES_MAX`].
    pub reason: String,
    /// Whether it may be held against the record. A child that died with several records open is no proof against
    /// either: each is tried again [alone](crate::pool::tries::Try::alone).
    pub counts: bool,
}

/// A longer reason is cut.
pub const REASON_BYTES_MAX: usize = 1024;

/// The kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The record can never be handled: no retry.
    Reject,
    /// It can be later: tried again without limit.
    Temporary,
    /// Tried again so many times.
    Ordinary,
    /// The handler itself cannot be run: keylane stops with this code.
    CannotRun(Exit),
}

/// How a failed try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The child's exit code.
    Exit(i32),
    /// The signal that ended the child.
    Signal(i32),
    /// It took longer than `--timeout`, and was killed.
    TimedOut,
    /// It said so (`--pipe`), or there was no child.
    Answer,
}

impl End {
    /// Whether the child may have ended by a signal that was meant for keylane too, as a terminal or a service manager
    /// sends it to a whole group: a shell that lost its command to one says 128 + its number.
    pub fn is_by_stop_signal(self) -> bool {
        const HUP: i32 = 1;
        const INT: i32 = 2;
        const KILL: i32 = 9;
        const TERM: i32 = 15;
        match self {
            End::Signal(number) => matches!(number, HUP | INT | TERM | KILL),
            End::Exit(code) => matches!(code - 128, HUP | INT | TERM),
            End::TimedOut | End::Answer => false,
        }
    }
}

/// What a child's exit codes mean: `--reject-exit` and `--retry-exit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitCodes {
    /// No retry.
    pub reject: Vec<u8>,
    /// Tried again without limit.
    pub retry: Vec<u8>,
}

impl Default for ExitCodes {
    fn default() -> Self {
        ExitCodes { reject: vec![65], retry: vec![75] }
    }
}

impl ExitCodes {
    /// What an exit code means; `None` for 0. A code that is listed means what the list says, 126 and 127 too.
    pub fn kind(&self, code: i32) -> Option<Kind> {
        let listed = |list: &[u8]| u8::try_from(code).is_ok_and(|code| list.contains(&code));
        match code {
            _ if listed(&self.reject) => Some(Kind::Reject),
            _ if listed(&self.retry) => Some(Kind::Temporary),
            0 => None,
            126 => Some(Kind::CannotRun(Exit::CannotRun)),
            127 => Some(Kind::CannotRun(Exit::NotFound)),
            _ => Some(Kind::Ordinary),
        }
    }
}

/// Cuts a reason to its limit, at a character's border.
pub fn reason(mut text: String) -> String {
    if text.len() > REASON_BYTES_MAX {
        let mut end = REASON_BYTES_MAX;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_mean_what_the_contract_says() {
        let codes = ExitCodes::default();
        assert_eq!(codes.kind(0), None);
        assert_eq!(codes.kind(65), Some(Kind::Reject));
        assert_eq!(codes.kind(75), Some(Kind::Temporary));
        assert_eq!(codes.kind(1), Some(Kind::Ordinary));
        assert_eq!(codes.kind(126), Some(Kind::CannotRun(Exit::CannotRun)));
        assert_eq!(codes.kind(127), Some(Kind::CannotRun(Exit::NotFound)));
        let listed = ExitCodes { reject: vec![65, 3], retry: vec![75, 22, 127] };
        assert_eq!(listed.kind(3), Some(Kind::Reject));
        assert_eq!(listed.kind(22), Some(Kind::Temporary));
        assert_eq!(listed.kind(127), Some(Kind::Temporary));
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        assert_eq!(reason("ä".repeat(600)).len(), REASON_BYTES_MAX);
        assert_eq!(reason(format!("x{}", "ä".repeat(600))).len(), REASON_BYTES_MAX - 1);
        assert_eq!(reason("short".to_owned()), "short");
    }
}
