//! What a dead letter carries besides the record: where it comes from and why it failed, as headers with text values.
//!
//! A letter keeps the record's key, value, headers and timestamp, and the headers here stand behind the record's own.
//! Taking a letter apart gives exactly the record back: of a record that died twice (a pool over a dead-letter topic)
//! the newer set is taken off, and the older one is the record's.

use keylane_protocol::records::Header;

use crate::handler::outcome::{End, Failed, Kind};

/// How the names of all these headers begin.
pub(crate) const PREFIX: &str = "keylane-dlq-";

const TOPIC: &str = "keylane-dlq-topic";
const PARTITION: &str = "keylane-dlq-partition";
const OFFSET: &str = "keylane-dlq-offset";
const TIMESTAMP: &str = "keylane-dlq-timestamp";
const GROUP: &str = "keylane-dlq-group";
const ATTEMPTS: &str = "keylane-dlq-attempts";
const REASON: &str = "keylane-dlq-reason";
const EXIT: &str = "keylane-dlq-exit";

/// Where a dead letter comes from, and why it is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The record's topic.
    pub(crate) topic: String,
    /// Its partition there.
    pub(crate) partition: i32,
    /// Its offset there.
    pub(crate) offset: i64,
    /// Its timestamp there, which a dead-letter topic with log-append time does not keep.
    pub(crate) timestamp_ms: i64,
    /// The group that could not handle it.
    pub(crate) group: String,
    /// How often it was tried.
    pub(crate) attempts: u32,
    /// The last failure in words.
    pub(crate) reason: String,
    /// How the last try ended: see [`end_text`].
    pub(crate) exit: String,
}

impl Origin {
    /// The headers of the letter.
    pub(crate) fn headers(&self) -> [(&'static str, String); 8] {
        [
            (TOPIC, self.topic.clone()),
            (PARTITION, self.partition.to_string()),
            (OFFSET, self.offset.to_string()),
            (TIMESTAMP, self.timestamp_ms.to_string()),
            (GROUP, self.group.clone()),
            (ATTEMPTS, self.attempts.to_string()),
            (REASON, self.reason.clone()),
            (EXIT, self.exit.clone()),
        ]
    }

    /// Takes the headers of a letter apart into its origin and the record's own headers; none if it is no dead letter
    /// of keylane's, or does not tell where it comes from.
    pub(crate) fn split<'a>(headers: &[Header<'a>]) -> Option<(Origin, Vec<Header<'a>>)> {
        let first = headers.iter().rposition(|(name, _)| *name == TOPIC.as_bytes())?;
        let (before, letter) = headers.split_at(first);
        let is_ours = |header: &Header<'_>| header.0.starts_with(PREFIX.as_bytes());
        let text = |name: &str| {
            let (_, value) = letter.iter().find(|(found, _)| *found == name.as_bytes())?;
            value.and_then(|value| std::str::from_utf8(value).ok())
        };
        let origin = Origin {
            topic: text(TOPIC).filter(|topic| !topic.is_empty())?.to_owned(),
            partition: text(PARTITION)?.parse().ok().filter(|partition| *partition >= 0)?,
            offset: text(OFFSET)?.parse().ok()?,
            timestamp_ms: text(TIMESTAMP)?.parse().ok()?,
            group: text(GROUP).unwrap_or_default().to_owned(),
            attempts: text(ATTEMPTS).and_then(|text| text.parse().ok()).unwrap_or_default(),
            reason: text(REASON).unwrap_or_default().to_owned(),
            exit: text(EXIT).unwrap_or_default().to_owned(),
        };
        let own = before.iter().chain(letter.iter().filter(|header| !is_ours(header)));
        Some((origin, own.copied().collect()))
    }
}

/// How a try ended: the exit code, `signal N`, or `timeout`. An answer of a `--pipe` child has the code that stands for
/// it (65 rejected, 75 to be tried again); what never ran has `-`.
pub(crate) fn end_text(failed: &Failed) -> String {
    match (failed.end, failed.kind) {
        (End::Exit(code), _) => code.to_string(),
        (End::Signal(number), _) => format!("signal {number}"),
        (End::TimedOut, _) => "timeout".to_owned(),
        (End::Answer, Kind::Reject) => "65".to_owned(),
        (End::Answer, Kind::Temporary) => "75".to_owned(),
        (End::Answer, Kind::Ordinary | Kind::CannotRun(_)) => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(topic: &str) -> Origin {
        Origin {
            topic: topic.to_owned(),
            partition: 3,
            offset: 17,
            timestamp_ms: 1_700_000_000_000,
            group: "kitchen".to_owned(),
            attempts: 4,
            reason: "exit 1".to_owned(),
            exit: "1".to_owned(),
        }
    }

    fn with<'a>(own: &[Header<'a>], letter: &'a [(&'static str, String); 8]) -> Vec<Header<'a>> {
        let letter = letter.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
        own.iter().copied().chain(letter).collect()
    }

    #[test]
    fn a_letter_gives_the_record_back() {
        let own: [Header<'_>; 3] = [(b"a", Some(b"1")), (b"a", None), (b"\xff", Some(b""))];
        let (origin, letter) = (origin("orders"), origin("orders").headers());
        assert_eq!(Origin::split(&with(&own, &letter)), Some((origin, own.to_vec())));
    }

    #[test]
    fn of_two_sets_the_newer_one_is_taken_off() {
        let (older, newer) = (origin("orders").headers(), origin("orders.dead").headers());
        let once = with(&[], &older);
        let (first, rest) = Origin::split(&with(&once, &newer)).expect("a letter");
        assert_eq!((first.topic.as_str(), &rest), ("orders.dead", &once));
    }

    #[test]
    fn what_does_not_tell_its_origin_is_no_letter() {
        let mut letter = origin("orders").headers();
        assert_eq!(Origin::split(&[(b"keylane-dlq-offset", Some(b"1"))]), None);
        letter[1].1 = "-1".to_owned();
        assert_eq!(Origin::split(&with(&[], &letter)), None);
        letter[1].1 = "many".to_owned();
        assert_eq!(Origin::split(&with(&[], &letter)), None);
    }
}
