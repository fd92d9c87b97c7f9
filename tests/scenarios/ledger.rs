//! What was handled, from the lines of `--print`: a record's line is written when it is finished.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::child::{Keylane, Stream};

/// The format of a ledger. The dot shows that a line is whole: a killed process may leave half of one.
pub const LEDGER: &str = "%p %o %k.\n";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Since its process was started.
    pub time: Duration,
    pub partition: i32,
    pub offset: i64,
    pub key: String,
}

/// The ledger of one process so far.
pub fn ledger(child: &Keylane) -> Vec<Entry> {
    let lines = child.lines();
    let written: Vec<_> = lines.iter().filter(|line| line.stream == Stream::Out).collect();
    let mut entries = Vec::with_capacity(written.len());
    for (index, line) in written.iter().enumerate() {
        match parse(&line.text) {
            Some((partition, offset, key)) => {
                entries.push(Entry { time: line.time, partition, offset, key: key.to_owned() });
            }
            None => assert_eq!(index + 1, written.len(), "no line of a ledger: {:?}", line.text),
        }
    }
    entries
}

fn parse(line: &str) -> Option<(i32, i64, &str)> {
    let mut words = line.strip_suffix('.')?.splitn(3, ' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?))
}

/// Asserts that each key of one process's ledger was handled in offset order, nothing twice.
pub fn assert_ordered(entries: &[Entry]) {
    let mut last: HashMap<(i32, &str), i64> = HashMap::new();
    for entry in entries {
        if let Some(before) = last.insert((entry.partition, &entry.key), entry.offset) {
            assert!(before < entry.offset, "after offset {before} of its key came {entry:?}");
        }
    }
}

/// What several processes, one after another or at once, have handled of a topic.
#[derive(Default)]
pub struct History {
    handled: BTreeMap<i32, BTreeSet<i64>>,
    pub repeats: Vec<(i32, i64)>,
}

impl History {
    pub fn add(&mut self, entries: &[Entry]) {
        for entry in entries {
            if !self.handled.entry(entry.partition).or_default().insert(entry.offset) {
                self.repeats.push((entry.partition, entry.offset));
            }
        }
    }

    pub fn count(&self) -> usize {
        self.handled.values().map(BTreeSet::len).sum()
    }

    /// Handled offsets of a partition at or past `offset`.
    pub fn count_from(&self, partition: i32, offset: i64) -> usize {
        self.handled.get(&partition).map_or(0, |offsets| offsets.range(offset..).count())
    }

    /// The first offset that was not handled, in a log without gaps.
    pub fn prefix(&self, partition: i32) -> i64 {
        let Some(offsets) = self.handled.get(&partition) else { return 0 };
        (0..)
            .zip(offsets)
            .find(|(expected, offset)| expected != *offset)
            .map_or(offsets.len() as i64, |(at, _)| at)
    }

    /// Asserts that every record below `ends` was handled, in a log without gaps.
    pub fn assert_complete(&self, ends: &BTreeMap<i32, i64>) {
        for (partition, end) in ends {
            assert_eq!(self.prefix(*partition), *end, "partition {partition} is handled up to its end");
        }
    }

    /// Asserts that nothing unfinished lies below `committed`.
    pub fn assert_covers(&self, committed: &BTreeMap<i32, i64>) {
        for (partition, next) in committed {
            let prefix = self.prefix(*partition);
            assert!(*next <= prefix, "partition {partition}: committed {next}, but {prefix} is unfinished");
        }
    }
}
