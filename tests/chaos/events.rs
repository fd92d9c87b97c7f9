//! The handlers' own ledger: one file for a whole round, a line per event, each written by one append.
//!
//! Appends to one file happen one after the other, so the order of its lines is an order of time that no clock of
//! several processes gives: a line that stands before another was written before it. The conductor writes into it
//! too, when a pool has been killed and what the group had committed.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A handler begins a try of a record.
    Begin,
    /// It hangs, and is still alive.
    Still,
    /// It has done the record; its answer follows.
    Done,
    /// It refuses the record for good; its answer follows.
    Reject,
    /// It has failed; its answer follows.
    Fail,
    /// A pool is dead, by SIGKILL: what its children do from now on is an orphan's.
    Killed,
    /// The group's committed offset was at least this far before this line. In place of a pool's number stands the
    /// node of the coordinator that said so, 0 if it is not known.
    Committed,
    /// A broker is about to be taken away.
    Away,
    /// It is back, and all replicas are in sync.
    Back,
}

const WORDS: [(What, &str); 9] = [
    (What::Begin, "begin"),
    (What::Still, "still"),
    (What::Done, "done"),
    (What::Reject, "reject"),
    (What::Fail, "fail"),
    (What::Killed, "killed"),
    (What::Committed, "committed"),
    (What::Away, "away"),
    (What::Back, "back"),
];

/// Partition and offset.
pub type Place = (i32, i64);

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub what: What,
    /// The number of a pool's process in its round.
    pub member: u32,
    /// Of the handler.
    pub pid: u32,
    pub place: Place,
    pub key: String,
    /// Since 1970; right to a microsecond.
    pub time: Duration,
}

/// Time since 1970.
pub fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The file, for appending.
#[derive(Debug)]
pub struct Ledger(File);

impl Ledger {
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Ledger(OpenOptions::new().create(true).append(true).open(path)?))
    }

    pub fn append(&self, what: What, member: u32, place: Place, key: &str) -> io::Result<()> {
        let word = WORDS.iter().find(|(known, _)| *known == what).map_or("", |(_, word)| word);
        let (partition, offset) = place;
        let (pid, time) = (std::process::id(), now().as_micros());
        let line = format!("{word} {member} {pid} {partition} {offset} {time} {key}\n");
        let written = (&self.0).write(line.as_bytes())?;
        if written == line.len() { Ok(()) } else { Err(io::Error::other("half a line was written")) }
    }
}

/// All lines of a file.
pub fn read(path: &Path) -> io::Result<Vec<Event>> {
    let text = std::fs::read_to_string(path)?;
    text.lines()
        .map(|line| parse(line).ok_or_else(|| io::Error::other(format!("no event: {line}"))))
        .collect()
}

fn parse(line: &str) -> Option<Event> {
    let mut words = line.splitn(7, ' ');
    let word = words.next()?;
    let (what, _) = WORDS.iter().find(|(_, known)| *known == word)?;
    let member = words.next()?.parse().ok()?;
    let pid = words.next()?.parse().ok()?;
    let place = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let time = Duration::from_micros(words.next()?.parse().ok()?);
    Some(Event { what: *what, member, pid, place, key: words.next()?.to_owned(), time })
}
