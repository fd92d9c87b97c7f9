//! Keeps an eye on each partition's first unfinished record: since when it is the first, and where it is.
//!
//! It looks about once a second and keeps one entry per partition, so an age is up to a second short and a record
//! costs nothing. `--gap-age` warns from here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::at_work::Doing;
use super::board::{Board, Slot, SlotCounts};
use super::engine::Engine;
use super::hot::{key_fields, thousands};
use super::lane_key::show_key;
use super::shared::{RecordBatch, State};
use super::tracker::Assignment;
use super::tries::Idle;
use crate::cli::Verbosity;
use crate::report::Fields;

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(1);

/// The first unfinished record of a partition.
#[derive(Clone, Copy, Debug)]
struct Front {
    assignment: Assignment,
    offset: i64,
    since: Duration,
    /// When it was warned of last.
    warned: Option<Duration>,
}

/// The fronts of all partitions that have one.
#[derive(Debug, Default)]
pub(super) struct Watch {
    fronts: BTreeMap<Slot, Front>,
    due: Option<Duration>,
}

impl Watch {
    /// One that looks by itself from `now` on, if `regularly`.
    pub(super) fn new(regularly: bool, now: Duration) -> Watch {
        Watch { fronts: BTreeMap::new(), due: regularly.then(|| now + EVERY) }
    }

    /// When it looks next.
    pub(super) fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Looks which records are the first unfinished ones now.
    pub(super) fn look<B>(&mut self, board: &Board<B>, now: Duration) {
        self.fronts.retain(|slot, front| board.assignment(*slot) == Some(front.assignment));
        for slot in board.assigned() {
            let (Some(assignment), Some(counts)) = (board.assignment(slot), board.slot_counts(slot)) else {
                continue;
            };
            let Some(offset) = counts.oldest else {
                self.fronts.remove(&slot);
                continue;
            };
            let new = Front { assignment, offset, since: now, warned: None };
            let front = self.fronts.entry(slot).or_insert(new);
            if front.offset != offset {
                *front = new;
            }
        }
    }

    /// How long the partition's first unfinished record has been that.
    pub(super) fn age(&self, slot: Slot, now: Duration) -> Option<Duration> {
        self.fronts.get(&slot).map(|front| now.saturating_sub(front.since))
    }

    /// Partitions to warn of: once per front, and again every `gap_age`.
    fn take_old<B>(&mut self, board: &Board<B>, gap_age: Duration, now: Duration) -> Vec<(Slot, SlotCounts)> {
        let mut old = Vec::new();
        for (slot, front) in &mut self.fronts {
            let from = front.warned.unwrap_or(front.since);
            let counts = board.slot_counts(*slot).filter(|counts| counts.pending > 0);
            if let Some(counts) = counts
                && now.saturating_sub(from) >= gap_age
            {
                front.warned = Some(now);
                old.push((*slot, counts));
            }
        }
        old
    }
}

/// Where an unfinished record is, and which try it is at.
#[derive(Debug)]
enum Place {
    AtWork(u32, Doing),
    Idle(u32, Idle),
    /// In its lane.
    Queued,
    /// In a child beside an older one, or on its way to the dead-letter topic.
    Elsewhere,
}

/// What the record's key is read from: a batch and the index there.
type Source = (Arc<RecordBatch>, u32);

impl Place {
    /// Looks for the record in everything that can have it.
    fn find(state: &State, at_work: &[(u32, Doing)], slot: Slot, offset: i64) -> (Place, Option<Source>) {
        let assignment = state.board.assignment(slot);
        for (worker, doing) in at_work {
            let last = doing.offset.saturating_add(doing.records as i64 - 1);
            if (doing.slot, Some(doing.assignment)) == (slot, assignment)
                && (doing.offset..=last).contains(&offset)
            {
                let source = (doing.offset == offset).then(|| (doing.batch.clone(), doing.index));
                return (Place::AtWork(*worker, doing.clone()), source);
            }
        }
        for (tried, idle) in state.tries.iter() {
            let found = tried.records().find(|record| (record.slot, record.offset) == (slot, offset));
            if let Some(record) = found {
                return (Place::Idle(tried.attempt, idle), Some((record.batch.clone(), record.index)));
            }
        }
        match state.board.first_of_lane(slot, offset) {
            Some((batch, index)) => (Place::Queued, Some((batch.clone(), index))),
            // A worker's own queue is not searched.
            None if state.board.has_fixed_workers() => (Place::Queued, None),
            None => (Place::Elsewhere, None),
        }
    }

    fn text(&self, now: Duration) -> String {
        match self {
            Place::AtWork(worker, doing) => doing.text(*worker, now),
            Place::Idle(attempt, idle) => idle_text(*attempt, *idle, now),
            Place::Queued => "it waits for a worker".to_owned(),
            Place::Elsewhere => "it is with a worker, or on its way to the dead-letter topic".to_owned(),
        }
    }

    fn attempt(&self) -> Option<u32> {
        match self {
            Place::AtWork(_, doing) => Some(doing.attempt),
            Place::Idle(attempt, _) => Some(*attempt),
            Place::Queued | Place::Elsewhere => None,
        }
    }
}

impl Doing {
    /// `worker 3 is at try 2 for 12.3s (pid 4711)`
    pub(super) fn text(&self, worker: u32, now: Duration) -> String {
        let mut text = format!(
            "worker {worker} is at try {} for {}",
            self.attempt,
            seconds(now.saturating_sub(self.since))
        );
        if self.records > 1 {
            text.push_str(&format!(" with {} after it", self.records - 1));
        }
        match (self.pid, self.open) {
            (Some(pid), 1) => text.push_str(&format!(" (pid {pid})")),
            (Some(pid), open) => text.push_str(&format!(" (pid {pid}, the oldest of {open} open there)")),
            (None, _) => {}
        }
        text
    }
}

/// `try 3 is due in 1.2s`
pub(super) fn idle_text(attempt: u32, idle: Idle, now: Duration) -> String {
    match idle {
        Idle::Until(due) => format!("try {attempt} is due in {}", seconds(due.saturating_sub(now))),
        Idle::ForSignal(_) => {
            format!("a signal ended the child of try {attempt}; whether keylane gets it too is awaited")
        }
        Idle::Due => format!("try {attempt} waits for a worker"),
        Idle::Judged => format!("try {attempt} was the last one"),
    }
}

/// `12.3s`
pub(super) fn seconds(time: Duration) -> String {
    format!("{:.1}s", time.as_secs_f64())
}

impl Engine {
    /// Looks once a second from now on.
    pub(super) fn watch_regularly(&mut self) {
        self.watch.due.get_or_insert(Duration::ZERO);
    }

    /// Looks where the partitions stand when that is due, warns, and publishes what metrics show.
    pub(super) fn poll_watch(&mut self, now: Duration) {
        if self.watch.due.is_none_or(|due| due > now) {
            return;
        }
        self.watch.due = Some(now + EVERY);
        let at_work = self.shared.at_work().list();
        let state = self.shared.lock();
        self.watch.look(&state.board, now);
        let old = match self.config.gap_age {
            Some(gap_age) => self.watch.take_old(&state.board, gap_age, now),
            None => Vec::new(),
        };
        let mut lines = Vec::new();
        for (slot, counts) in old {
            let Some(offset) = counts.oldest else { continue };
            let place = Place::find(&state, &at_work, slot, offset);
            let age = self.watch.age(slot, now).unwrap_or_default();
            let name = state.board.name(slot);
            lines.push(self.gap_line(name, offset, place, (counts.pending, age), now));
        }
        drop(state);
        for (text, fields) in lines {
            self.report.plain(Verbosity::Normal, "gap", text, fields);
        }
        self.publish(now);
    }

    fn gap_line(
        &self,
        (topic, partition): (&Arc<str>, i32),
        offset: i64,
        (place, source): (Place, Option<Source>),
        (pending, age): (u64, Duration),
        now: Duration,
    ) -> (String, Fields) {
        let key = source.as_ref().map(|(batch, index)| self.lane_key.read_from(batch, *index));
        let shown = key.as_ref().map_or(String::new(), |key| format!(" key {}", show_key(key.as_deref())));
        let (name, place_text) = (format!("{topic}/{partition}@{offset}"), place.text(now));
        let text = format!(
            "keylane: warning: {name}{shown} has held up its partition for {}, {} records past it are finished and \
             uncommitted: {place_text}",
            seconds(age),
            thousands(pending)
        );
        let mut fields: Fields = vec![
            ("topic", topic.as_ref().into()),
            ("partition", partition.into()),
            ("offset", offset.into()),
            ("seconds", age.as_secs_f64().into()),
            ("pending", pending.into()),
            ("attempt", place.attempt().into()),
            ("where", place_text.into()),
        ];
        fields.extend(key.iter().flat_map(|key| key_fields(key.as_deref())));
        (text, fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::board::Dispatch;
    use crate::pool::route::{Route, Routed};
    use crate::pool::run::Run;

    #[test]
    fn a_front_is_old_when_it_stays_and_others_finish() {
        let mut board = Board::<()>::new(Dispatch::Lanes);
        let slot = board.assign("t".into(), 0, 0, 0);
        let batch = board.open_batch(slot, Arc::new(()), 1).unwrap();
        let records: Vec<Routed> = (0..4).map(|offset| Routed { offset, route: Route::FREE }).collect();
        assert!(board.deliver(batch, 0, &records));
        let (mut watch, second) = (Watch::default(), Duration::from_secs);
        let (mut stuck, mut run) = (Run::new(), Run::new());
        board.take(0, 1, &mut stuck);
        let mut old = |board: &Board<()>, now| {
            watch.look(board, second(now));
            watch.take_old(board, second(10), second(now)).len()
        };
        assert_eq!((old(&board, 0), old(&board, 10)), (0, 0), "nothing is finished behind it");
        board.take(0, 1, &mut run);
        board.complete(&mut run, 1);
        assert_eq!((old(&board, 11), old(&board, 20), old(&board, 21)), (1, 0, 1), "and again");
        board.complete(&mut stuck, 1);
        board.take(0, 1, &mut stuck);
        board.take(0, 1, &mut run);
        board.complete(&mut run, 1);
        assert_eq!((old(&board, 25), old(&board, 34), old(&board, 35)), (0, 0, 1), "another front");
        board.revoke(slot);
        assert_eq!(old(&board, 60), 0);
        assert_eq!(watch.age(slot, second(60)), None);
    }
}
