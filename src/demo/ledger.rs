//! The check from outside: every record that a handler begins and finishes is entered here.
//!
//! Guarantees: [`Tally::broken`] is 0 only if no two records of a key were handled at once and the n-th record handled
//! of each key was, byte for byte, the n-th that `seed` made. It does not rely on offsets for that: record i of `seed`
//! can be made again.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use keylane_protocol::records::Record;

use crate::cli;
use crate::handler::Observer;
use crate::seed::records::Values;

/// Which consumer handled a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hand {
    /// `sequential`.
    One,
    /// `pool`.
    Pool,
}

/// What one consumer did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// Records finished, repeats included.
    pub(super) finished: u64,
    /// Records in work.
    pub(super) busy: u32,
    /// When the first record was begun.
    pub(super) first_at: Option<Duration>,
}

/// The state of the ledger at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) one: Work,
    pub(super) pool: Work,
    /// Different records finished.
    pub(super) finished: u64,
    /// Records begun again after they had been finished.
    pub(super) repeats: u64,
    /// Breaks of the order of a key.
    pub(super) broken: u64,
    /// The first break.
    pub(super) first_break: Option<String>,
    /// For each key whether a record of it is in work.
    pub(super) keys: Vec<bool>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Key {
    /// How many different records of it are finished.
    finished: u64,
    busy: bool,
}

/// What is entered of a record.
struct Entry<'a> {
    partition: i32,
    offset: i64,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
}

impl<'a> Entry<'a> {
    fn of(partition: i32, record: &Record<'a>) -> Self {
        Entry { partition, offset: record.offset, key: record.key, value: record.value }
    }
}

struct Inner {
    prefix: String,
    values: Values,
    keys: Vec<Key>,
    finished: HashSet<(i32, i64)>,
    tally: Tally,
}

/// The ledger.
pub(super) struct Ledger {
    inner: Mutex<Inner>,
    started: Instant,
}

impl Ledger {
    /// For the records that `seed` makes; times are counted from `started`.
    pub(super) fn new(seed: &cli::Seed, started: Instant) -> Self {
        let keys = usize::try_from(seed.keys).unwrap_or(usize::MAX);
        let inner = Inner {
            prefix: seed.key_prefix.clone(),
            values: Values::new(seed.seed, seed.size_bytes as usize),
            keys: vec![Key::default(); keys],
            finished: HashSet::new(),
            tally: Tally::default(),
        };
        Ledger { inner: Mutex::new(inner), started }
    }

    pub(super) fn tally(&self) -> Tally {
        let inner = self.lock();
        let keys = inner.keys.iter().map(|key| key.busy).collect();
        Tally { keys, ..inner.tally.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn work(&mut self, hand: Hand) -> &mut Work {
        match hand {
            Hand::One => &mut self.tally.one,
            Hand::Pool => &mut self.tally.pool,
        }
    }

    fn breaks(&mut self, what: String) {
        self.tally.broken += 1;
        self.tally.first_break.get_or_insert(what);
    }

    /// The number of a key, if `seed` makes it.
    fn number(&self, key: Option<&[u8]>) -> Option<usize> {
        let text = std::str::from_utf8(key?).ok()?.strip_prefix(&self.prefix)?;
        text.parse().ok().filter(|number| *number < self.keys.len())
    }

    fn begins(&mut self, hand: Hand, entry: &Entry<'_>, now: Duration) {
        let work = self.work(hand);
        work.first_at.get_or_insert(now);
        work.busy += 1;
        let place = (entry.partition, entry.offset);
        let Some(number) = self.number(entry.key) else {
            return self.breaks(format!("the record {}@{} has a key that nobody sent", place.0, place.1));
        };
        if std::mem::replace(&mut self.keys[number].busy, true) {
            self.breaks(format!("two records of {}{number} were handled at once", self.prefix));
        }
        if self.finished.contains(&place) {
            self.tally.repeats += 1;
            return;
        }
        let nth = self.keys[number].finished;
        let index = nth * self.keys.len() as u64 + number as u64;
        if entry.value != Some(self.values.make(index)) {
            let (prefix, nth) = (&self.prefix, nth + 1);
            self.breaks(format!("{prefix}{number}: the record handled as number {nth} is not number {nth}"));
        }
    }

    fn finished(&mut self, hand: Hand, entry: &Entry<'_>) {
        let work = self.work(hand);
        work.finished += 1;
        work.busy -= 1;
        let is_new = self.finished.insert((entry.partition, entry.offset));
        if let Some(number) = self.number(entry.key) {
            self.keys[number].busy = false;
            self.keys[number].finished += u64::from(is_new);
        }
        self.tally.finished += u64::from(is_new);
    }
}

/// Enters the records of one consumer.
pub(super) struct Clerk {
    pub(super) ledger: Arc<Ledger>,
    pub(super) hand: Hand,
}

impl std::fmt::Debug for Clerk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Clerk({:?})", self.hand)
    }
}

impl Observer for Clerk {
    fn begins(&self, partition: i32, record: &Record<'_>) {
        let now = self.ledger.started.elapsed();
        self.ledger.lock().begins(self.hand, &Entry::of(partition, record), now);
    }

    fn finished(&self, partition: i32, record: &Record<'_>) {
        self.ledger.lock().finished(self.hand, &Entry::of(partition, record));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::plan::{Lines, Plan};

    /// A ledger, and what does to the record `index` of `seed`, at its place in one partition.
    struct Check {
        ledger: Ledger,
        values: Values,
        keys: u64,
    }

    impl Check {
        fn new() -> Self {
            let seed = Lines::new(&Plan::FULL, "127.0.0.1:1").seed.config;
            let values = Values::new(seed.seed, seed.size_bytes as usize);
            Check { ledger: Ledger::new(&seed, Instant::now()), values, keys: seed.keys }
        }

        fn with(&mut self, index: u64, act: impl Fn(&mut Inner, &Entry<'_>)) {
            let key = format!("key-{}", index % self.keys);
            let offset = i64::try_from(index).unwrap();
            let (key, value) = (Some(key.as_bytes()), Some(self.values.make(index)));
            act(&mut self.ledger.lock(), &Entry { partition: 0, offset, key, value });
        }

        fn begins(&mut self, index: u64) {
            self.with(index, |inner, entry| inner.begins(Hand::Pool, entry, Duration::ZERO));
        }

        fn finished(&mut self, index: u64) {
            self.with(index, |inner, entry| inner.finished(Hand::Pool, entry));
        }

        fn handled(&mut self, index: u64) {
            self.begins(index);
            self.finished(index);
        }

        fn counts(&self) -> (u64, u64, u64) {
            let tally = self.ledger.tally();
            (tally.finished, tally.repeats, tally.broken)
        }
    }

    #[test]
    fn keys_may_overtake_one_another() {
        let mut check = Check::new();
        check.begins(7);
        check.begins(3);
        assert_eq!(check.ledger.tally().pool.busy, 2);
        check.finished(3);
        check.handled(35);
        assert!(check.ledger.tally().keys[7] && !check.ledger.tally().keys[3]);
        check.finished(7);
        assert_eq!(check.counts(), (3, 0, 0));
    }

    #[test]
    fn a_record_that_overtakes_its_key_is_a_break() {
        let mut check = Check::new();
        check.handled(32);
        assert_eq!(check.counts(), (1, 0, 1));
        let first = check.ledger.tally().first_break.unwrap();
        assert_eq!(first, "key-0: the record handled as number 1 is not number 1");
    }

    #[test]
    fn two_records_of_a_key_at_once_are_a_break() {
        let mut check = Check::new();
        check.handled(0);
        check.begins(32);
        check.begins(64);
        assert!(check.ledger.tally().first_break.unwrap().contains("at once"));
    }

    #[test]
    fn a_repeat_is_counted_and_breaks_nothing() {
        let mut check = Check::new();
        check.handled(0);
        check.handled(32);
        check.handled(32);
        check.handled(64);
        assert_eq!(check.counts(), (3, 1, 0));
        assert_eq!(check.ledger.tally().pool.finished, 4);
    }

    #[test]
    fn a_key_that_nobody_sent_is_a_break() {
        let check = Check::new();
        for key in [None, Some(&b"key-32"[..]), Some(b"other-1"), Some(b"key-\xff")] {
            let entry = Entry { partition: 0, offset: 0, key, value: None };
            check.ledger.lock().begins(Hand::One, &entry, Duration::ZERO);
        }
        assert_eq!(check.counts().2, 4);
    }
}
