//! The course of the demo: what is heard from the roles goes in, cues for them and scenes come out.
//!
//! No threads and no clock: `now` is given. Every role that was started is waited for, whatever ends the demo; from
//! [`Plan::limit`] on it only ends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

use keylane_protocol::partitioner;
use serde_json::Value;

use super::ledger::Tally;
use super::plan::{Lines, Plan};
use super::scene::{Act, Event, Partition, Sample, Scene};
use super::verdict::Verdict;
use crate::exit::Exit;

/// Who plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Seed,
    Sequential,
    Pool,
    Lag,
}

impl Role {
    pub(super) fn name(self) -> &'static str {
        match self {
            Role::Seed => "seed",
            Role::Sequential => "sequential",
            Role::Pool => "pool",
            Role::Lag => "lag",
        }
    }
}

/// What is heard.
#[derive(Debug)]
pub(super) enum Heard {
    /// A role says a line.
    Line { role: Role, kind: String, text: String, fields: BTreeMap<&'static str, Value> },
    /// A role has ended.
    Ended(Role, Exit),
    /// The broker has something to say.
    Broker(String),
    /// A signal came to the process.
    Signal(i32),
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cue {
    Start(Role),
    /// As by a signal.
    Stop(Role),
}

/// Why the demo ends before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// This signal came.
    Signal(i32),
    /// [`Plan::limit`] has come.
    Late,
    /// This role ended that should not have.
    Failed(Role, Exit),
    /// A role did not end when it was told to.
    Stuck(Role),
}

/// Rates are of the last so long.
const RATE_WINDOW: Duration = Duration::from_millis(1500);
/// Roles that were told to end get that long before they are told again, and as long once more.
const PATIENCE: Duration = Duration::from_secs(3);
/// A tick of `lag` that is heard so long after an event has seen it.
const TICK: Duration = Duration::from_millis(250);
/// How long the title tells of the change.
const TOLD: Duration = Duration::from_millis(2500);
const EVENTS_MAX: usize = 64;
/// Bars and charts begin with a scale for what is to be expected: a partition gets this share of the lag, in percent.
const PARTITION_PERCENT: i64 = 28;

/// A count over time, and its rate.
#[derive(Debug, Default)]
struct Meter {
    samples: VecDeque<(Duration, u64)>,
}

impl Meter {
    fn add(&mut self, now: Duration, count: u64) {
        self.samples.push_back((now, count));
        while self.samples.get(1).is_some_and(|(at, _)| *at + RATE_WINDOW <= now) {
            self.samples.pop_front();
        }
    }

    fn rate(&self) -> u64 {
        let (Some((from, before)), Some((to, after))) = (self.samples.front(), self.samples.back()) else {
            return 0;
        };
        let seconds = (*to - *from).as_secs_f64();
        if seconds > 0.2 { ((after - before) as f64 / seconds).round() as u64 } else { 0 }
    }
}

/// What the pool did until nothing waited any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct CatchUp {
    pub(super) finished: u64,
    pub(super) took: Duration,
}

/// The state of the demo.
pub(super) struct Story {
    pub(super) plan: Plan,
    lines: Lines,
    broker: String,
    act: Act,
    started: BTreeSet<Role>,
    running: BTreeSet<Role>,
    /// Roles that have been told to end, and when last.
    told: BTreeMap<Role, Duration>,
    told_twice: bool,
    pub(super) cut: Option<Cut>,
    cut_at: Duration,
    alone_since: Option<Duration>,
    taken_over_at: Option<Duration>,
    partitions: Vec<Partition>,
    partition_lag_max: i64,
    history: Vec<Sample>,
    lag_max: i64,
    /// Records in the topic, as `lag` sees it.
    produced: u64,
    produced_meter: Meter,
    finished_meter: Meter,
    pub(super) sent: Option<u64>,
    sent_at: Duration,
    pub(super) sent_failed: u64,
    /// Rate of `sequential`, from its last line.
    pub(super) rate_alone: Option<f64>,
    pub(super) catch_up: Option<CatchUp>,
    limit: Option<String>,
    /// What limited the pool, and how often it said so: while it caught up, and afterwards.
    pub(super) limits: [BTreeMap<String, u32>; 2],
    events: VecDeque<Event>,
    events_before: usize,
    pub(super) troubles: Vec<String>,
}

impl Story {
    pub(super) fn new(plan: Plan, lines: Lines, broker: String) -> Self {
        let partitions = NonZeroU32::new(plan.partitions).unwrap_or(NonZeroU32::MIN);
        let mut all = vec![Partition::default(); partitions.get() as usize];
        let prefix = &lines.seed.config.key_prefix;
        for number in 0..plan.keys {
            let partition = partitioner::partition(format!("{prefix}{number}").as_bytes(), partitions);
            all[partition as usize].keys += 1;
        }
        let lag_max = plan.lag_expected();
        Story {
            plan,
            lines,
            broker,
            act: Act::Opening,
            started: BTreeSet::new(),
            running: BTreeSet::new(),
            told: BTreeMap::new(),
            told_twice: false,
            cut: None,
            cut_at: Duration::ZERO,
            alone_since: None,
            taken_over_at: None,
            partitions: all,
            partition_lag_max: lag_max * PARTITION_PERCENT / 100,
            history: Vec::new(),
            lag_max,
            produced: 0,
            produced_meter: Meter::default(),
            finished_meter: Meter::default(),
            sent: None,
            sent_at: Duration::ZERO,
            sent_failed: 0,
            rate_alone: None,
            catch_up: None,
            limit: None,
            limits: Default::default(),
            events: VecDeque::new(),
            events_before: 0,
            troubles: Vec::new(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.act == Act::Over
    }

    fn tell(&mut self, now: Duration, text: impl Into<String>) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
            self.events_before += 1;
        }
        self.events.push_back(Event { at: now, text: text.into() });
    }

    // ---- what is heard ----

    pub(super) fn hear(&mut self, heard: Heard, now: Duration) {
        match heard {
            Heard::Line { role, kind, text, fields } => self.hear_line(role, &kind, &text, &fields, now),
            Heard::Ended(role, exit) => self.hear_end(role, exit, now),
            Heard::Broker(text) => self.tell(now, format!("broker: {text}")),
            // A second one is acted on like the first: everybody is told again.
            Heard::Signal(signal) => {
                self.told.clear();
                self.cut(Cut::Signal(signal), now);
            }
        }
    }

    fn cut(&mut self, cut: Cut, now: Duration) {
        if self.cut.is_none() {
            self.cut = Some(cut);
            self.cut_at = now;
        }
    }

    fn hear_line(
        &mut self,
        role: Role,
        kind: &str,
        text: &str,
        fields: &BTreeMap<&'static str, Value>,
        now: Duration,
    ) {
        let number = |name: &str| fields.get(name).and_then(Value::as_u64);
        match (role, kind) {
            (Role::Lag, "lag") => self.hear_lag(fields, now),
            (Role::Seed, "done") => {
                self.sent = number("sent");
                self.sent_at = now;
                self.sent_failed = number("failed").unwrap_or(0);
                let sent = self.sent.unwrap_or(0);
                self.tell(now, format!("seed ends: all {sent} records are sent"));
            }
            (Role::Seed, "note") => {
                let text = text.strip_prefix("keylane: note: ").unwrap_or(text);
                self.tell(now, format!("seed {text}, {} records/s follow", self.plan.rate));
            }
            (Role::Sequential | Role::Pool, "stats") => {
                self.limit = fields.get("limit").and_then(Value::as_str).map(str::to_owned);
                let limits = match self.act {
                    Act::CatchingUp => Some(&mut self.limits[0]),
                    Act::KeepingUp => Some(&mut self.limits[1]),
                    _ => None,
                };
                if let (Some(limits), Some(word), Role::Pool) = (limits, &self.limit, role) {
                    *limits.entry(word.clone()).or_insert(0) += 1;
                }
            }
            (Role::Sequential | Role::Pool, "assigned") => self.hear_assigned(role, fields, now),
            (Role::Sequential, "done") => {
                self.rate_alone = fields.get("rate").and_then(Value::as_f64);
                let processed = number("processed").unwrap_or(0);
                self.tell(
                    now,
                    format!("sequential is done: {processed} records, committed; it has left the group"),
                );
            }
            (Role::Pool, "done") => {
                let processed = number("processed").unwrap_or(0);
                self.tell(
                    now,
                    format!("pool is done: {processed} records, committed; it has left the group"),
                );
            }
            (_, "warning" | "error") => {
                let text = format!("{}: {}", role.name(), text.trim_start_matches("keylane: "));
                if kind == "error" {
                    self.troubles.push(text.clone());
                }
                self.tell(now, text);
            }
            _ => {}
        }
    }

    fn hear_assigned(&mut self, role: Role, fields: &BTreeMap<&'static str, Value>, now: Duration) {
        let list = |name: &str| fields.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
        let all = list("partitions").len() == self.partitions.len();
        let generation = fields.get("generation").and_then(Value::as_i64).unwrap_or(0);
        let count = list("partitions").len();
        let from: i64 = list("from").iter().filter_map(Value::as_i64).sum();
        self.tell(
            now,
            format!(
                "rebalance, generation {generation}: {} takes {count} partitions, {from} records done",
                role.name()
            ),
        );
        match role {
            Role::Sequential => {
                self.alone_since.get_or_insert(now);
            }
            _ if all && self.act == Act::TakingOver => self.act = Act::CatchingUp,
            _ => {}
        }
    }

    fn hear_lag(&mut self, fields: &BTreeMap<&'static str, Value>, now: Duration) {
        let Some(rows) = fields.get("partitions").and_then(Value::as_array) else { return };
        let mut produced = 0;
        for row in rows {
            let number = |name: &str| row.get(name).and_then(Value::as_i64);
            let index = number("partition").and_then(|partition| usize::try_from(partition).ok());
            let Some(partition) = index.and_then(|index| self.partitions.get_mut(index)) else { continue };
            partition.lag = number("lag");
            self.partition_lag_max = self.partition_lag_max.max(partition.lag.unwrap_or(0));
            produced += u64::try_from(number("log_end_offset").unwrap_or(0)).unwrap_or(0);
        }
        // A group that is not there yet has no partitions.
        if rows.len() == self.partitions.len() {
            let lag = fields.get("total_lag").and_then(Value::as_i64).unwrap_or(0);
            self.lag_max = self.lag_max.max(lag);
            self.history.push(Sample { at: now, lag });
            self.produced = produced.max(self.produced);
            self.produced_meter.add(now, self.produced);
        }
    }

    fn hear_end(&mut self, role: Role, exit: Exit, now: Duration) {
        self.running.remove(&role);
        let wanted = self.told.contains_key(&role) || self.cut.is_some() || role == Role::Seed;
        if self.cut.is_none() && (!wanted || exit != Exit::Done) {
            self.cut(Cut::Failed(role, exit), now);
        }
    }

    // ---- what is to be done ----

    /// Looks at where the demo stands. Called after anything was heard, and with every frame.
    pub(super) fn advance(&mut self, tally: &Tally, now: Duration) -> Vec<Cue> {
        self.finished_meter.add(now, tally.finished);
        if now >= self.plan.limit {
            self.cut(Cut::Late, now);
        }
        if self.cut.is_some() {
            return self.close(now);
        }
        match self.act {
            Act::Opening => self.open(now),
            Act::Behind => self.stop_alone(now),
            Act::TakingOver if !self.running.contains(&Role::Sequential) => self.start(Role::Pool),
            Act::CatchingUp => self.catch_up(tally, now),
            Act::KeepingUp => self.finish(now),
            Act::Closing => {
                let cues =
                    if self.running.contains(&Role::Pool) { Vec::new() } else { self.stop(Role::Lag, now) };
                if self.running.is_empty() {
                    self.act = Act::Over;
                }
                cues
            }
            Act::TakingOver | Act::Over => Vec::new(),
        }
    }

    fn start(&mut self, role: Role) -> Vec<Cue> {
        if !self.started.insert(role) {
            return Vec::new();
        }
        self.running.insert(role);
        vec![Cue::Start(role)]
    }

    fn stop(&mut self, role: Role, now: Duration) -> Vec<Cue> {
        if !self.running.contains(&role) || self.told.contains_key(&role) {
            return Vec::new();
        }
        self.told.insert(role, now);
        vec![Cue::Stop(role)]
    }

    fn open(&mut self, now: Duration) -> Vec<Cue> {
        if !self.started.contains(&Role::Seed) {
            self.tell(now, format!("broker: an in-memory Kafka (keylane broker) listens at {}", self.broker));
            return self.start(Role::Seed);
        }
        // Its first line says that the topic is there.
        if !self.events.iter().any(|event| event.text.starts_with("seed")) {
            return Vec::new();
        }
        self.act = Act::Behind;
        [self.start(Role::Sequential), self.start(Role::Lag)].concat()
    }

    fn stop_alone(&mut self, now: Duration) -> Vec<Cue> {
        if self.alone_since.is_none_or(|since| now < since + self.plan.alone) {
            return Vec::new();
        }
        self.act = Act::TakingOver;
        self.taken_over_at = Some(now);
        self.limit = None;
        self.tell(now, "sequential is told to stop, as by Ctrl+C");
        self.stop(Role::Sequential, now)
    }

    fn catch_up(&mut self, tally: &Tally, now: Duration) -> Vec<Cue> {
        let Some(first_at) = tally.pool.first_at else { return Vec::new() };
        // What the newest tick has seen is finished, or about to be.
        let in_time = self.history.last().is_some_and(|sample| sample.at > first_at);
        let waits = tally.finished + u64::from(self.plan.workers) < self.produced;
        if in_time && (!waits || self.all_committed()) {
            let took = now.saturating_sub(first_at);
            self.catch_up = Some(CatchUp { finished: tally.pool.finished, took });
            self.act = Act::KeepingUp;
            self.tell(
                now,
                format!("caught up in {:.1} s: no record waits longer than for its key", took.as_secs_f64()),
            );
        }
        Vec::new()
    }

    /// Whether the group has committed everything that was sent. The ledger is not asked here: a record that is
    /// committed and was never handled is lost, and the end tells of it.
    fn all_committed(&self) -> bool {
        let seen = |sample: &Sample| sample.lag == 0 && sample.at > self.sent_at + TICK;
        self.sent.is_some() && self.history.last().is_some_and(seen)
    }

    fn finish(&mut self, now: Duration) -> Vec<Cue> {
        if !self.all_committed() {
            return Vec::new();
        }
        self.act = Act::Closing;
        self.tell(now, "everything is finished and committed: pool is told to stop, as by Ctrl+C");
        self.stop(Role::Pool, now)
    }

    /// Ends whatever runs.
    fn close(&mut self, now: Duration) -> Vec<Cue> {
        self.act = Act::Closing;
        if self.running.is_empty() {
            self.act = Act::Over;
            return Vec::new();
        }
        if now >= self.cut_at + PATIENCE && !self.told_twice {
            self.told_twice = true;
            self.told.clear();
        }
        if now >= self.cut_at + 2 * PATIENCE {
            if let Some(role) = self.running.first() {
                self.cut = Some(Cut::Stuck(*role));
            }
            self.act = Act::Over;
            return Vec::new();
        }
        let running: Vec<Role> = self.running.iter().copied().collect();
        running.into_iter().flat_map(|role| self.stop(role, now)).collect()
    }

    // ---- what is seen ----

    pub(super) fn verdict(&self, tally: &Tally) -> Verdict {
        Verdict::new(self, tally)
    }

    pub(super) fn scene(&self, tally: &Tally, now: Duration) -> Scene {
        let verdict = (self.act == Act::Over).then(|| self.verdict(tally));
        let running = [Role::Sequential, Role::Pool].into_iter().find(|role| self.running.contains(role));
        let (workers, busy, command) = match running {
            Some(Role::Sequential) => (1, tally.one.busy, &self.lines.sequential.text),
            Some(_) => (self.plan.workers, tally.pool.busy, &self.lines.pool.text),
            None if self.started.contains(&Role::Sequential) => (0, 0, &self.lines.lag.text),
            None => (0, 0, &self.lines.seed.text),
        };
        let meaning = |word: &String| (word.clone(), self.meaning(word));
        Scene {
            act: self.act,
            elapsed: now,
            expected: self.plan.expected(),
            broker: self.broker.clone(),
            group: self.plan.group,
            title: verdict.as_ref().map_or_else(|| self.title(now), |verdict| verdict.title.clone()),
            command: command.clone(),
            partitions: self.partitions.clone(),
            partition_lag_max: self.partition_lag_max,
            history: self.history.clone(),
            lag_max: self.lag_max,
            taken_over_at: self.taken_over_at,
            produced: self.produced,
            produced_rate: if self.sent.is_some() { 0 } else { self.produced_meter.rate() },
            finished: tally.finished,
            finished_rate: self.finished_meter.rate(),
            rate_max: self.plan.rate_of_all(),
            pool_workers: self.plan.workers,
            workers,
            busy,
            keys: tally.keys.clone(),
            limit: self.limit.as_ref().filter(|_| running.is_some()).map(meaning),
            events: self.events.iter().cloned().collect(),
            events_before: self.events_before,
            failed: verdict.as_ref().is_some_and(|verdict| verdict.exit != Exit::Done),
            summary: verdict.map(|verdict| verdict.points).unwrap_or_default(),
        }
    }

    fn title(&self, now: Duration) -> String {
        let Plan { rate, delay_ms, workers, .. } = self.plan;
        if self.cut.is_some() {
            return "Stopping: finish what is begun, commit, leave the group".to_owned();
        }
        match self.act {
            Act::Opening => format!("A producer starts: {rate} records a second, {} keys", self.plan.keys),
            Act::Behind => format!(
                "One thread, {delay_ms} ms a record: {rate}/s come in, it can do {}/s. It falls behind.",
                self.plan.rate_of_one()
            ),
            Act::TakingOver => {
                "The thread is told to stop: it finishes, commits and leaves the group.".to_owned()
            }
            Act::CatchingUp if self.taken_over_at.is_some_and(|at| now < at + TOLD) => {
                format!("The thread has been stopped; {workers} workers take over at its last commit.")
            }
            Act::CatchingUp => {
                format!("{workers} workers, the same {delay_ms} ms, each key still in order: it catches up.")
            }
            Act::KeepingUp => {
                format!("{workers} workers, each key still in order: caught up, and it keeps up.")
            }
            Act::Closing | Act::Over => "All is done: the pool leaves the group.".to_owned(),
        }
    }

    /// What a word for a limit means in the demo.
    fn meaning(&self, word: &str) -> &'static str {
        match word {
            "handler" if self.running.contains(&Role::Sequential) => "the one thread is always busy",
            "handler" => "all workers are busy, and there is nothing for more of them",
            "workers" => "all are busy, and more records could run",
            "keys" => "every key that has records is in work already",
            "fetch" => "no record waits; what lag is left waits for the next commit",
            "commit" => "nothing may begin before a commit",
            _ => "",
        }
    }
}
