//! What the judge is given, and what of it is read from joblogs and times.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use crate::events::{Event, Place};

/// How a member came to an end of its work on a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gone {
    /// Given up in a rebalance, drained.
    Revoked,
    /// The same, but with records that were not finished within the limit.
    CutShort,
    /// The group went on without it.
    Lost,
    /// Its process ended with exit 0.
    Left,
    /// Its process ended otherwise, by itself: 75 is unfinished work.
    Unfinished,
    /// Its process was killed.
    Killed,
}

impl Gone {
    pub fn name(self) -> &'static str {
        match self {
            Gone::Revoked => "drained",
            Gone::CutShort => "drain limit",
            Gone::Lost => "lost",
            Gone::Left => "exit 0",
            Gone::Unfinished => "exit 75",
            Gone::Killed => "killed",
        }
    }
}

/// A member's time with a partition; times are since 1970, by keylane's own messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure {
    pub partition: i32,
    /// Where it began to read.
    pub from: i64,
    pub generation: i64,
    pub began: Duration,
    pub gone: Option<(Duration, Gone)>,
}

/// One process of the group.
#[derive(Clone, Debug, Default)]
pub struct Career {
    pub id: u32,
    /// Records that its handlers may hold at one moment.
    pub in_hand_max: usize,
    pub tenures: Vec<Tenure>,
    /// SIGSTOP and SIGCONT.
    pub stops: Vec<(Duration, Option<Duration>)>,
    /// Tries that ended by a signal or without an answer, whatever the handler has written down before.
    pub unheard: BTreeMap<Place, u32>,
    /// Assignments after the first.
    pub rebalances: usize,
}

/// All that is known of a round.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// In the order of the ledger.
    pub events: Vec<Event>,
    pub careers: Vec<Career>,
    /// Where the partitions end.
    pub ends: BTreeMap<i32, i64>,
    /// Records that are in the dead-letter topic.
    pub letters: BTreeSet<Place>,
    /// `--max-ahead`.
    pub ahead_max: usize,
}

/// Tries of a joblog that ended by a signal or without an exit code.
pub fn unheard(joblog: &Path) -> BTreeMap<Place, u32> {
    let mut tries = BTreeMap::new();
    for line in std::fs::read_to_string(joblog).unwrap_or_default().lines() {
        let columns: Vec<&str> = line.splitn(9, '\t').collect();
        let [_, host, _, _, _, _, exit, signal, _] = columns[..] else { continue };
        let place = host.rsplit_once('/').and_then(|(_, place)| place.split_once('@'));
        let place = place.and_then(|(p, o)| Some((p.parse().ok()?, o.parse().ok()?)));
        if let Some(place) = place.filter(|_| signal != "0" || exit == "-1") {
            *tries.entry(place).or_insert(0) += 1;
        }
    }
    tries
}

/// `2026-12-01T09:48:48.123Z` as time since 1970.
pub fn parse_time(text: &str) -> Option<Duration> {
    let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (clock, ms) = clock.split_once('.')?;
    let seconds = clock.split(':').try_fold(0, |sum, part| Some(sum * 60 + part.parse::<u64>().ok()?))?;
    // Howard Hinnant's days_from_civil: a year begins in March, so that a leap day ends it.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(Duration::from_secs(days * 86_400 + seconds) + Duration::from_millis(ms.parse().ok()?))
}
