//! What is true of every record, kept by an observer who sees everything, and what must never happen.
//!
//! The observer reads the logs, hears when a handler starts and ends, what the members say about their partitions, and
//! which offsets the brokers store. Each check panics with what was broken.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use keylane::pool::tracker::Assignment;

use crate::plan::Order;

/// One record as it is in the log.
#[derive(Clone, Debug)]
struct Entry {
    id: u64,
    key: Option<u32>,
    done: bool,
    /// How many windows had been open in this partition when it was last finished.
    windows: u64,
}

/// The records of one key, or of all keys that are kept in order together.
#[derive(Debug, Default)]
struct Lane {
    offsets: Vec<i64>,
    /// Those before are finished, or gone from the log.
    done: usize,
}

/// A partition that a member owns.
#[derive(Clone, Debug)]
struct Own {
    /// One past the highest offset finished.
    done_end: i64,
    /// Started and not finished.
    running: BTreeSet<(i64, Assignment)>,
}

#[derive(Debug, Default)]
struct Book {
    /// By offset; markers and aborted records are empty places.
    entries: Vec<Option<Entry>>,
    lanes: HashMap<LaneId, Lane>,
    /// Leader epochs of the batches, markers too, by base offset.
    epochs: BTreeMap<i64, i32>,
    start: i64,
    committed: i64,
    owner: Option<usize>,
    /// How often an owner left finished records behind that no commit covered.
    windows: u64,
    /// Of each feeder, its newest record.
    fed: HashMap<u64, u64>,
}

/// What is kept in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum LaneId {
    Key(Option<u32>),
    All,
    /// A record on its own.
    One(i64),
}

impl LaneId {
    fn alone(self, assignment: Assignment) -> Option<Assignment> {
        matches!(self, LaneId::One(_)).then_some(assignment)
    }
}

/// What one process did with one assignment.
#[derive(Debug)]
struct Span {
    assignment: Assignment,
    started: HashSet<i64>,
    newest: HashMap<LaneId, i64>,
}

#[derive(Debug, Default)]
struct MemberBook {
    owned: BTreeMap<i32, Own>,
    spans: BTreeMap<i32, Span>,
    /// A record that is in no lane may run twice at once, of two assignments.
    running: BTreeMap<(i32, LaneId, Option<Assignment>), i64>,
    /// Started under an ownership that has ended.
    orphans: BTreeSet<(i32, i64, Assignment)>,
}

/// Why an owner may leave finished or running records behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// It gave the partition up in good order and nothing was in its way.
    Orderly,
    /// In good order, but short of records that could not be done in time: no handler runs any more.
    Short,
    /// Something was.
    Excused,
}

/// A record with a handler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) assignment: Assignment,
    pub(crate) key: Option<u32>,
    pub(crate) id: u64,
}

/// Everything that is known.
pub(crate) struct Ledger {
    order: Order,
    books: BTreeMap<i32, Book>,
    members: BTreeMap<usize, MemberBook>,
    /// What became of each record that was produced: its place, once it is acknowledged.
    produced: HashMap<u64, Option<(i32, i64)>>,
    /// Records finished, the repeated ones among them, and those finished after their partition had gone.
    pub(crate) handled: u64,
    pub(crate) repeats: u64,
    pub(crate) late: u64,
    /// Calm weather: nothing is ever handled twice.
    pub(crate) strict: bool,
}

impl Ledger {
    pub(crate) fn new(order: Order, strict: bool) -> Self {
        Ledger {
            order,
            books: BTreeMap::new(),
            members: BTreeMap::new(),
            produced: HashMap::new(),
            handled: 0,
            repeats: 0,
            late: 0,
            strict,
        }
    }

    fn lane(&self, key: Option<u32>, offset: i64) -> LaneId {
        match (self.order, key) {
            (Order::Key { nulls_too: false }, None) | (Order::None, _) => LaneId::One(offset),
            (Order::Key { .. }, key) => LaneId::Key(key),
            (Order::Partition, _) => LaneId::All,
        }
    }

    // ---- the logs ----

    /// How much of the log is known.
    pub(crate) fn log_end(&self, partition: i32) -> i64 {
        self.books.get(&partition).map_or(0, |book| book.entries.len() as i64)
    }

    /// The log has a record. `aborted`: of a transaction that was, so nobody is to see it.
    pub(crate) fn stored(&mut self, partition: i32, offset: i64, key: Option<u32>, id: u64, aborted: bool) {
        let lane = self.lane(key, offset);
        let book = self.books.entry(partition).or_default();
        let feeder = id >> 32;
        let newest = book.fed.insert(feeder, id);
        assert!(
            newest.is_none_or(|newest| newest < id),
            "the log of {partition} has record {id:x} at {offset} behind {newest:x?} of the same producer"
        );
        let place = offset as usize;
        assert!(book.entries.len() <= place, "offset {offset} of {partition} is in the log twice");
        book.entries.resize_with(place, || None);
        if aborted {
            book.entries.push(None);
            return;
        }
        book.entries.push(Some(Entry { id, key, done: false, windows: 0 }));
        book.lanes.entry(lane).or_default().offsets.push(offset);
    }

    /// A batch of any kind begins here.
    pub(crate) fn batch_begins(&mut self, partition: i32, base_offset: i64, leader_epoch: i32) {
        self.books.entry(partition).or_default().epochs.insert(base_offset, leader_epoch);
    }

    /// The log ends here, whether with records or with markers.
    pub(crate) fn log_reaches(&mut self, partition: i32, end: i64) {
        let book = self.books.entry(partition).or_default();
        if book.entries.len() < end as usize {
            book.entries.resize_with(end as usize, || None);
        }
    }

    /// Records below were deleted.
    pub(crate) fn log_starts(&mut self, partition: i32, start: i64) {
        let book = self.books.entry(partition).or_default();
        book.start = book.start.max(start);
    }

    // ---- producers ----

    pub(crate) fn made(&mut self, id: u64) {
        self.produced.insert(id, None);
    }

    pub(crate) fn acknowledged(&mut self, id: u64, partition: i32, offset: i64) {
        let before = self.produced.insert(id, Some((partition, offset)));
        assert_eq!(before, Some(None), "record {id:x} is resolved once");
    }

    // ---- handlers ----

    /// A handler was given a record; `again` after a try that failed.
    pub(crate) fn started(&mut self, member: usize, held: &Held, again: bool) {
        let Held { partition, offset, assignment, key, id } = *held;
        let lane = self.lane(key, offset);
        let book = self.books.entry(partition).or_default();
        let what = format!("member {member}, {partition}@{offset}");
        let entry = book.entries.get(offset as usize).and_then(Option::as_ref);
        let entry = entry.unwrap_or_else(|| panic!("{what}: handled, but there is no such record"));
        assert_eq!((entry.id, entry.key), (id, key), "{what}: the handler was given another record");
        assert_eq!(
            book.owner,
            Some(member),
            "{what}: started though the partition is not its own (any more): {:?} has it",
            book.owner
        );
        let own = self.members.entry(member).or_default();
        if let Some(other) = own.running.insert((partition, lane, lane.alone(assignment)), offset) {
            panic!("{what}: started while {other} of the same lane runs");
        }
        let fresh = || Span { assignment, started: HashSet::new(), newest: HashMap::new() };
        let span = own.spans.entry(partition).or_insert_with(fresh);
        if span.assignment != assignment {
            assert!(span.assignment < assignment, "{what}: of an assignment that has ended");
            *span = fresh();
        }
        let newest = span.newest.insert(lane, offset);
        if again {
            assert!(!span.started.insert(offset), "{what}: tried again before it was tried");
            assert_eq!(newest, Some(offset), "{what}: tried again, though it was not the newest of its lane");
        } else {
            assert!(span.started.insert(offset), "{what}: started twice within one assignment");
            assert!(newest.is_none_or(|newest| newest < offset), "{what}: a step back from {newest:?}");
        }
        if let Some(owned) = own.owned.get_mut(&partition) {
            owned.running.insert((offset, assignment));
        }
    }

    /// A handler is done with a record.
    pub(crate) fn finished(&mut self, member: usize, held: &Held) {
        let Held { partition, offset, key, .. } = *held;
        let orphan = self.end_run(member, held);
        let lane_id = self.lane(key, offset);
        let book = self.books.entry(partition).or_default();
        let Some(entry) = book.entries.get_mut(offset as usize).and_then(Option::as_mut) else {
            unreachable!("only records are started")
        };
        self.handled += 1;
        self.late += u64::from(orphan);
        let before = (entry.done, entry.windows);
        entry.done = true;
        // What ends late may have been handed on meanwhile, to be handled again.
        entry.windows = if orphan { 0 } else { book.windows };
        if before.0 {
            self.repeats += 1;
            assert!(
                orphan || before.1 < book.windows,
                "member {member}, {partition}@{offset}: handled again, though nobody left it without a commit"
            );
            assert!(!self.strict, "member {member}, {partition}@{offset}: handled again in calm weather");
        } else if let Some(lane) = book.lanes.get_mut(&lane_id) {
            // All of the lane before it are finished or gone.
            let entries = &book.entries;
            let passed = |offset: i64| {
                offset < book.start
                    || entries.get(offset as usize).and_then(Option::as_ref).is_none_or(|entry| entry.done)
            };
            while lane.offsets.get(lane.done).is_some_and(|offset| passed(*offset)) {
                lane.done += 1;
            }
            let waiting = lane.offsets.get(lane.done);
            assert!(
                waiting.is_none_or(|waiting| *waiting > offset),
                "member {member}: {partition}@{offset} was finished before {waiting:?} of the same lane"
            );
        }
        if !orphan && let Some(own) = self.members.entry(member).or_default().owned.get_mut(&partition) {
            own.done_end = own.done_end.max(offset + 1);
        }
    }

    /// A handler ended without an outcome.
    pub(crate) fn abandoned(&mut self, member: usize, held: &Held) {
        self.end_run(member, held);
    }

    /// Whether the partition has gone since the record was started.
    fn end_run(&mut self, member: usize, held: &Held) -> bool {
        let Held { partition, offset, key, assignment, .. } = *held;
        let lane = self.lane(key, offset);
        let own = self.members.entry(member).or_default();
        assert_eq!(
            own.running.remove(&(partition, lane, lane.alone(assignment))),
            Some(offset),
            "what ends was started"
        );
        if let Some(owned) = own.owned.get_mut(&partition) {
            owned.running.remove(&(offset, assignment));
        }
        own.orphans.remove(&(partition, offset, assignment))
    }

    // ---- owners ----

    pub(crate) fn owner(&self, partition: i32) -> Option<usize> {
        self.books.get(&partition).and_then(|book| book.owner)
    }

    /// The partitions that a member has.
    pub(crate) fn owned(&self, member: usize) -> Vec<i32> {
        self.members.get(&member).map_or(Vec::new(), |own| own.owned.keys().copied().collect())
    }

    /// A member says that it has a partition. Whoever had it before was told off by [`Ledger::leaves`].
    pub(crate) fn takes(&mut self, member: usize, partition: i32) {
        let book = self.books.entry(partition).or_default();
        assert!(
            book.owner.is_none_or(|owner| owner == member),
            "member {member} is given {partition}, which member {:?} has",
            book.owner
        );
        book.owner = Some(member);
        let begin = book.committed;
        let own = self.members.entry(member).or_default();
        own.owned.entry(partition).or_insert(Own { done_end: begin, running: BTreeSet::new() });
    }

    /// A member has a partition no longer. Records that it finished and no commit covers, and those that it is still
    /// at, come again: that is the window, and it needs an excuse.
    pub(crate) fn leaves(&mut self, member: usize, partition: i32, how: Leaving, why: &str) {
        let Some(own) = self.members.entry(member).or_default().owned.remove(&partition) else { return };
        let book = self.books.entry(partition).or_default();
        if book.owner == Some(member) {
            book.owner = None;
        }
        let open = own.done_end > book.committed || !own.running.is_empty();
        if open {
            assert!(
                how == Leaving::Excused || (how == Leaving::Short && own.running.is_empty()),
                "member {member} leaves {partition} ({why}) with finished records up to {} and running {:?}, \
                 committed {}",
                own.done_end,
                own.running,
                book.committed
            );
            book.windows += 1;
        }
        let orphans = own.running.iter().map(|(offset, assignment)| (partition, *offset, *assignment));
        self.members.entry(member).or_default().orphans.extend(orphans);
    }

    /// The process is gone, and so is whatever its handlers did.
    pub(crate) fn gone(&mut self, member: usize, how: Leaving, why: &str) {
        for partition in self.owned(member) {
            self.leaves(member, partition, how, why);
        }
        let own = self.members.entry(member).or_default();
        own.running.clear();
        own.orphans.clear();
    }

    /// Records with handlers of this member.
    pub(crate) fn running(&self, member: usize) -> usize {
        self.members.get(&member).map_or(0, |own| own.running.len())
    }

    // ---- commits ----

    pub(crate) fn committed(&self, partition: i32) -> i64 {
        self.books.get(&partition).map_or(0, |book| book.committed)
    }

    /// The broker stores this offset and leader epoch.
    pub(crate) fn stores(&mut self, partition: i32, committed: i64, epoch: i32) {
        let book = self.books.entry(partition).or_default();
        if committed == book.committed {
            return;
        }
        assert!(
            committed > book.committed,
            "the commit of {partition} falls {} to {committed}",
            book.committed
        );
        assert!(
            committed <= book.entries.len() as i64,
            "{partition}: {committed} is committed, past the end"
        );
        for offset in book.committed.max(book.start)..committed {
            let done = book.entries[offset as usize].as_ref().is_none_or(|entry| entry.done);
            assert!(done, "{partition}: {committed} is committed, and nobody has finished {offset}");
        }
        book.committed = committed;
        // The epoch of the batch before or around, whatever it holds. One that was deleted nobody need have seen.
        let before = book.epochs.range(..committed).next_back();
        if let Some((base, expected)) = before.filter(|(base, _)| **base >= book.start) {
            assert_eq!(epoch, *expected, "{partition}: the epoch of {committed}, behind the batch at {base}");
        }
    }

    // ---- the end ----

    /// Nothing is lost: every record that is in the log was handled, and every acknowledged one is in the log.
    pub(crate) fn check_end(&self) {
        for (partition, book) in &self.books {
            for offset in book.start..book.entries.len() as i64 {
                let done = book.entries[offset as usize].as_ref().is_none_or(|entry| entry.done);
                assert!(done, "{partition}@{offset} was never handled");
            }
            assert_eq!(book.committed.max(book.start), book.entries.len() as i64, "lag of {partition}");
        }
        for (id, place) in &self.produced {
            let Some((partition, offset)) = place else { continue };
            let book = &self.books[partition];
            let entry = book.entries.get(*offset as usize).and_then(Option::as_ref);
            assert!(
                *offset < 0 || entry.is_some_and(|entry| entry.id == *id),
                "record {id:x} was acknowledged at {partition}@{offset}, where {entry:?} is"
            );
        }
    }

    /// Whether the members have handled and committed everything.
    pub(crate) fn is_done(&self) -> bool {
        self.books.values().all(|book| book.committed.max(book.start) == book.entries.len() as i64)
    }
}
