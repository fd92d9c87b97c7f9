//! SIGUSR1: what runs, what waits and where each partition stands, in about fifty lines or one JSON object.

use std::time::Duration;

use serde_json::{Map, Value};

use super::at_work::Doing;
use super::board::Slot;
use super::engine::Engine;
use super::hot::key_fields;
use super::lane_key::show_key;
use super::shared::{RecordBatch, State};
use super::stats::Limit;
use super::tries::{Idle, Try};
use super::watch::{idle_text, seconds};
use crate::cli::Verbosity;
use crate::report::Fields;

const RUNNING_MAX: usize = 20;
const WAITING_MAX: usize = 10;
const LANES_MAX: usize = 5;
const PARTITIONS_MAX: usize = 12;

/// Where one partition stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PartitionView {
    pub(super) topic: String,
    pub(super) partition: i32,
    /// The offset that may be committed.
    pub(super) next: i64,
    /// The first unfinished offset, and how long it has been that (up to a second short).
    pub(super) oldest: Option<(i64, Duration)>,
    pub(super) pending: u64,
    pub(super) queued: u64,
    pub(super) inflight: u64,
    pub(super) held_bytes: u64,
    pub(super) committed: i64,
    pub(super) delivered: i64,
    /// Not fetched: it holds what it may, or more would not be used.
    pub(super) paused: bool,
    pub(super) draining: bool,
}

impl PartitionView {
    fn text(&self) -> String {
        let oldest = match self.oldest {
            Some((offset, age)) => format!("oldest={offset} for {}", seconds(age)),
            None => "oldest=-".to_owned(),
        };
        let state = match (self.draining, self.paused) {
            (true, _) => "draining",
            (false, true) => "paused",
            (false, false) => "fetching",
        };
        format!(
            "partition {}/{}: next={} {oldest} pending={} queued={} running={} held={}B committed={} {state}",
            self.topic,
            self.partition,
            self.next,
            self.pending,
            self.queued,
            self.inflight,
            self.held_bytes,
            self.committed
        )
    }

    fn json(&self) -> Value {
        object(vec![
            ("topic", self.topic.as_str().into()),
            ("partition", self.partition.into()),
            ("next", self.next.into()),
            ("oldest", self.oldest.map(|(offset, _)| offset).into()),
            ("oldest_seconds", self.oldest.map(|(_, age)| age.as_secs_f64()).into()),
            ("pending", self.pending.into()),
            ("queued", self.queued.into()),
            ("running", self.inflight.into()),
            ("held_bytes", self.held_bytes.into()),
            ("committed", self.committed.into()),
            ("paused", self.paused.into()),
            ("draining", self.draining.into()),
        ])
    }
}

/// Lines of one kind: the first ones, and how many more there are.
struct Section {
    name: &'static str,
    /// As text, and as JSON.
    lines: Vec<(String, Value)>,
    total: usize,
}

impl Section {
    fn new(name: &'static str, total: usize, lines: Vec<(String, Value)>) -> Section {
        Section { name, lines, total }
    }

    fn append_text(&self, text: &mut String) {
        for (line, _) in &self.lines {
            text.push_str("\n  ");
            text.push_str(line);
        }
        if self.total > self.lines.len() {
            text.push_str(&format!("\n  and {} more {}", self.total - self.lines.len(), self.name));
        }
    }
}

impl Engine {
    /// Says what the pool is at.
    pub fn say_status(&mut self, now: Duration) {
        let at_work = self.shared.at_work().list();
        let state = self.shared.lock();
        self.watch.look(&state.board, now);
        let counts = state.board.counts();
        let (idle, workers) = self.shared.idle_workers(&state);
        let sections = [
            self.running(&state, at_work, now),
            self.waiting(&state, now),
            self.longest_lanes(&state),
            self.partitions(&state, now),
        ];
        let (lanes, waiting) = (state.board.lanes(), state.tries.len());
        drop(state);
        let limit = Limit::of(&counts, idle, workers, self.is_held_back()).word();
        let mut text = format!(
            "status: inflight={} waiting={waiting} lanes={lanes} ready={} queued={} pending={} held={}B \
             workers={}/{workers} \
             limit={limit}",
            counts.inflight,
            counts.ready,
            counts.queued,
            counts.pending,
            counts.held_bytes,
            workers - idle
        );
        sections.iter().for_each(|section| section.append_text(&mut text));
        let mut fields: Fields = vec![
            ("inflight", counts.inflight.into()),
            ("tries_waiting", waiting.into()),
            ("lanes", lanes.into()),
            ("lanes_ready", counts.ready.into()),
            ("queued", counts.queued.into()),
            ("pending", counts.pending.into()),
            ("held_bytes", counts.held_bytes.into()),
            ("workers_busy", (workers - idle).into()),
            ("workers", workers.into()),
            ("limit", limit.into()),
        ];
        for section in sections {
            let lines: Vec<Value> = section.lines.into_iter().map(|(_, json)| json).collect();
            fields.push((section.name, lines.into()));
        }
        // Somebody asked.
        self.report.stamped(Verbosity::Errors, "status", text, fields);
    }

    fn running(&self, state: &State, mut at_work: Vec<(u32, Doing)>, now: Duration) -> Section {
        at_work.sort_by_key(|(_, doing)| doing.since);
        let shown = at_work.iter().take(RUNNING_MAX).map(|(worker, doing)| {
            let (name, key, mut fields) =
                self.name(state, (doing.slot, doing.offset), &doing.batch, doing.index);
            fields.push(("worker", (*worker).into()));
            fields.push(("attempt", doing.attempt.into()));
            fields.push(("seconds", now.saturating_sub(doing.since).as_secs_f64().into()));
            fields.push(("pid", doing.pid.into()));
            fields.push(("open", doing.open.into()));
            (format!("running {name} key {key}: {}", doing.text(*worker, now)), object(fields))
        });
        Section::new("running", at_work.len(), shown.collect())
    }

    fn waiting(&self, state: &State, now: Duration) -> Section {
        let shown = state.tries.iter().take(WAITING_MAX).map(|(tried, idle): (&Try, Idle)| {
            let first = tried.first();
            let (name, key, mut fields) =
                self.name(state, (first.slot, first.offset), first.batch, first.index);
            fields.push(("attempt", tried.attempt.into()));
            let due = match idle {
                Idle::Until(due) | Idle::ForSignal(due) => Some(due.saturating_sub(now).as_secs_f64()),
                Idle::Due | Idle::Judged => None,
            };
            fields.push(("due_in_seconds", due.into()));
            (format!("waiting {name} key {key}: {}", idle_text(tried.attempt, idle, now)), object(fields))
        });
        Section::new("waiting", state.tries.len(), shown.collect())
    }

    fn longest_lanes(&self, state: &State) -> Section {
        let lanes = state.board.longest_lanes(LANES_MAX);
        let shown = lanes.iter().map(|long| {
            let (topic, partition) = state.board.name(long.slot);
            let key = self.lane_key.read_from(long.batch, long.index);
            let mut fields = vec![("topic", topic.as_ref().into()), ("partition", partition.into())];
            fields.extend(key_fields(key.as_deref()));
            fields.push(("waiting", long.waiting.into()));
            let key = show_key(key.as_deref());
            (format!("lane {topic}/{partition} key {key}: {} waiting", long.waiting), object(fields))
        });
        let shown: Vec<_> = shown.collect();
        // How many there are in all is in the first line.
        Section::new("longest_lanes", shown.len(), shown)
    }

    fn partitions(&self, state: &State, now: Duration) -> Section {
        let mut views = self.partition_views(state, now);
        // Those that have stood longest come first.
        views.sort_by_key(|view| std::cmp::Reverse(view.oldest.map(|(_, age)| age)));
        let shown = views.iter().take(PARTITIONS_MAX).map(|view| (view.text(), view.json()));
        Section::new("partitions", views.len(), shown.collect())
    }

    /// All assigned partitions.
    pub(super) fn partition_views(&self, state: &State, now: Duration) -> Vec<PartitionView> {
        let views = self.intakes.iter().filter_map(|(at, intake)| {
            let slot = intake.slot();
            let counts = state.board.slot_counts(slot)?;
            let age = self.watch.age(slot, now).unwrap_or_default();
            Some(PartitionView {
                topic: at.topic.to_string(),
                partition: at.partition,
                next: state.board.next(slot)?.0,
                oldest: counts.oldest.map(|offset| (offset, age)),
                pending: counts.pending,
                queued: counts.queued,
                inflight: counts.inflight,
                held_bytes: counts.held_bytes,
                committed: counts.committed,
                delivered: counts.delivered,
                paused: !intake.is_fetchable(),
                draining: state.board.is_draining(slot),
            })
        });
        views.collect()
    }

    /// `topic/partition@offset`, its key, and both as members of a JSON object.
    fn name(
        &self,
        state: &State,
        (slot, offset): (Slot, i64),
        batch: &RecordBatch,
        index: u32,
    ) -> (String, String, Fields) {
        let (topic, partition) = state.board.name(slot);
        let key = self.lane_key.read_from(batch, index);
        let mut fields = vec![
            ("topic", topic.as_ref().into()),
            ("partition", partition.into()),
            ("offset", offset.into()),
        ];
        fields.extend(key_fields(key.as_deref()));
        (format!("{topic}/{partition}@{offset}"), show_key(key.as_deref()), fields)
    }
}

fn object(fields: Fields) -> Value {
    Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}
