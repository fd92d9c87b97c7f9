//! The middle of `pool` and `sequential`: consumer events in, deliveries, commits and reports out.
//!
//! It goes in turns and never waits, so heartbeats go on whatever the handlers do: the caller moves the consumer's
//! bytes, takes a turn, and does so again at the [`Engine::deadline`], when bytes came, or when a worker or a signal
//! woke it. The end (drain, last commit, leave) is in `ending`, the limits of the start in `starting`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use keylane_protocol::client::consumer::{Consumer, Event, LostReason, Start};
use keylane_protocol::error::Error;
use keylane_protocol::fetch::FetchedBatch;
use keylane_protocol::metadata::TopicPartition;
use keylane_protocol::offsets::OffsetAndEpoch;
use serde_json::Value;

use super::batch::Released;
use super::board::{Commit, Slot};
use super::disk::Disk;
use super::ending::{Ending, Stop};
use super::hot::HotKeys;
use super::intake::{Intake, Spares};
use super::lane_key::LaneReader;
use super::metrics::Published;
use super::route::{LaneKey, NullKey, Router, Routing};
use super::shared::{Attention, Ends, Failure, RecordBatch, Shared, State};
use super::stats::Totals;
use super::verdicts::Letterbox;
use super::watch::Watch;
use crate::cli::Verbosity;
use crate::exit::Exit;
use crate::handler::policy::Halt;
use crate::report::{Fields, Report};

/// When offsets are committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitWhen {
    /// Every so often.
    Every(Duration),
    /// After so many records, and when nothing more is there.
    Records(u64),
}

/// What the engine needs to know.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The group, for messages.
    pub group: String,
    /// How keys become lanes or workers.
    pub routing: Routing,
    /// What becomes of records without a key.
    pub null_key: NullKey,
    /// What decides a record's lane.
    pub lane_key: LaneKey,
    /// Unfinished records held, over all partitions.
    pub records_max: u64,
    /// Bytes held, over all partitions.
    pub bytes_max: u64,
    /// Records handed out past the first unfinished one, per partition.
    pub ahead_max: u64,
    /// When offsets are committed.
    pub commit: CommitWhen,
    /// Time between stats lines.
    pub stats: Option<Duration>,
    /// How long a partition may be held up by one record, while later ones finish, before that is said.
    pub gap_age: Option<Duration>,
    /// `-e`
    pub exit_at_end: bool,
    /// `-n`
    pub count: Option<u64>,
    /// Limit of the drain after a signal.
    pub drain_timeout: Duration,
    /// Limit of the drain of a revoked partition, ours or another member's.
    pub revoke_timeout: Duration,
    /// How long to look for a broker before the first assignment, and (with `-e`) for a missing topic.
    pub request_timeout: Duration,
    /// `fetch.max.bytes` and `max.partition.fetch.bytes`, as configured.
    pub fetch_bytes_max: u32,
    /// See above.
    pub partition_fetch_bytes_max: u32,
}

/// Fetches are not made smaller than that, however many partitions there are.
const FETCH_BYTES_MIN: u64 = 64 << 10;

/// Partitions that are being drained because they go to another member.
struct Revoking {
    slots: Vec<(TopicPartition, Slot)>,
    deadline: Duration,
    /// The sync that is waited for before the commit.
    sync: Option<u64>,
}

/// What a pool member does between its consumer and its workers.
pub struct Engine {
    pub(super) consumer: Consumer,
    pub(super) shared: Arc<Shared>,
    pub(super) config: EngineConfig,
    pub(super) report: Report,
    pub(super) signals: Signals,
    pub(super) intakes: BTreeMap<TopicPartition, Intake>,
    pub(super) spares: Spares,
    pub(super) released: Vec<Released<RecordBatch>>,
    revoking: Option<Revoking>,
    pub(super) ending: Ending,
    pub(super) totals: Totals,
    /// What a partition is asked for at most in one fetch, bytes.
    pub(super) partition_fetch_bytes: u64,
    pub(super) generation_seen: bool,
    /// When the newest assignment came.
    pub(super) assigned_at: Duration,
    /// Where each partition ended when it was first assigned, for `-e`.
    ends: BTreeMap<TopicPartition, i64>,
    pub(super) missing: BTreeSet<String>,
    pub(super) missing_since: Option<Duration>,
    commit_due: Option<Duration>,
    committed_at: u64,
    /// What the newest commit by number of records asked for.
    asked: Vec<Commit>,
    /// Records that a drain stopped short of, of partitions that went to another member while the run was ending.
    pub(super) handed_over: u64,
    /// With `--fsync`: what syncs stdout.
    pub(super) disk: Option<Disk>,
    /// What is to be committed after the sync with this number.
    pub(super) unsynced: Option<(u64, Vec<Commit>)>,
    pub(super) stats_due: Option<Duration>,
    pub(super) stats_before: (u64, Duration),
    pub(super) lane_key: Arc<LaneReader>,
    pub(super) hot_keys: HotKeys,
    pub(super) watch: Watch,
    pub(super) published: Option<Published>,
    /// A partition is as far ahead of its first unfinished record as it may be.
    pub(super) held_back: bool,
    pub(super) waited_for_broker: bool,
    /// Records wait and workers may be idle: deliver again before waiting.
    pub(super) fill_again: bool,
    /// A partition or topic that cannot be read on: the run ends at it.
    pub(super) damaged: Option<Error>,
    pub(super) letterbox: Option<Box<dyn Letterbox>>,
    pub(super) halt: Option<Halt>,
    /// That the partitions are too many for the memory was said.
    said_memory: bool,
}

/// The signals that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// How many.
    pub count: u32,
    /// The newest one's number.
    pub last: i32,
}

impl Engine {
    /// An engine whose first turn is at `now`, a time of the clock of `shared`.
    pub fn new(
        consumer: Consumer,
        shared: Arc<Shared>,
        config: EngineConfig,
        report: Report,
        now: Duration,
    ) -> Self {
        if let CommitWhen::Records(count) = config.commit {
            shared.lock().wake_at = count;
        }
        Engine {
            consumer,
            shared,
            report,
            signals: Signals::default(),
            intakes: BTreeMap::new(),
            spares: Spares::default(),
            released: Vec::new(),
            revoking: None,
            ending: Ending::No,
            totals: Totals::default(),
            partition_fetch_bytes: 0,
            generation_seen: false,
            assigned_at: Duration::ZERO,
            ends: BTreeMap::new(),
            missing: BTreeSet::new(),
            missing_since: None,
            commit_due: None,
            committed_at: 0,
            asked: Vec::new(),
            handed_over: 0,
            disk: None,
            unsynced: None,
            stats_due: config.stats.map(|every| now + every),
            stats_before: (0, now),
            lane_key: Arc::new(LaneReader::new(&config.lane_key)),
            hot_keys: HotKeys::default(),
            watch: Watch::new(config.gap_age.is_some(), now),
            published: None,
            held_back: false,
            waited_for_broker: false,
            fill_again: false,
            damaged: None,
            letterbox: None,
            halt: None,
            said_memory: false,
            config,
        }
    }

    /// The consumer, for whoever moves its bytes and polls it.
    pub fn consumer(&mut self) -> &mut Consumer {
        &mut self.consumer
    }

    /// `--fsync`: from now on nothing is committed before this file is synced.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn sync_before_commits(&mut self, output: File) -> io::Result<()> {
        self.disk = Some(Disk::start(self.shared.clone(), move || output.sync_data())?);
        Ok(())
    }

    /// What engine and workers share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Signals came: the first one ends the run in good order, the second at once. They are acted on in the next turn.
    pub fn set_signals(&mut self, signals: Signals) {
        self.signals = signals;
    }

    /// Does what is due, after the consumer was polled; with an exit code the run is over.
    pub fn turn(&mut self, now: Duration) -> Option<Exit> {
        while let Some(event) = self.consumer.next_event() {
            let exit = self.on_event(event, now);
            if exit.is_some() {
                return exit;
            }
        }
        self.shared.set_lease(self.consumer.lease_until().unwrap_or_default());
        self.take_failures(now);
        self.poll_tries(now);
        self.poll_revoking(now);
        self.fill();
        self.poll_commit(now);
        self.poll_stats(now);
        self.poll_watch(now);
        self.check_start(now);
        self.poll_ending(now)
    }

    /// When the next turn is due though nothing came.
    pub fn deadline(&self) -> Option<Duration> {
        let revoking = self.revoking.as_ref().map(|revoking| revoking.deadline);
        let start = self.start_deadline();
        if self.fill_again {
            return Some(Duration::ZERO);
        }
        // Once the last commit is under way, or while one waits for a sync, the timer is not looked at and would spin
        // the loop.
        let commit = self.commit_due.filter(|_| self.may_commit() && self.unsynced.is_none());
        let (ending, tries) = (self.ending_deadline(), self.tries_deadline());
        let reports = [self.stats_due, self.watch.due()];
        [commit, revoking, start, ending, tries].into_iter().chain(reports).flatten().min()
    }

    // ---- consumer events ----

    /// Takes one event; with an exit code the run is over.
    fn on_event(&mut self, event: Event, now: Duration) -> Option<Exit> {
        match event {
            Event::Assigned { generation, added, kept } => self.on_assigned(generation, added, &kept, now),
            Event::Revoke { partitions, deadline } => self.on_revoke(partitions, deadline, now),
            Event::Revoked(partitions) => self.on_gone("revoked", &partitions, None),
            Event::Lost(partitions, reason) => self.on_gone("lost", &partitions, Some(reason)),
            Event::Fetched { at, batches, bytes } => self.on_fetched(&at, batches, bytes),
            Event::Moved { at, position, back, end, why } => self.on_moved(&at, position, back, end, &why),
            Event::Committed(offsets) => self.on_committed(offsets),
            Event::Broken(error) if matches!(self.ending, Ending::No) => {
                self.damaged.get_or_insert(error);
            }
            // The last commit.
            Event::Broken(error) => self.report.error(&error),
            Event::TopicMissing(topic) => {
                self.missing_since.get_or_insert(now);
                let wait = if self.config.exit_at_end { "" } else { "; waiting for it" };
                self.report.warning(format!("topic {topic} does not exist{wait}"));
                self.missing.insert(topic);
            }
            Event::TopicFound(topic) => {
                self.report.note(format!("topic {topic} exists now"));
                self.missing.remove(&topic);
                if self.missing.is_empty() {
                    self.missing_since = None;
                }
            }
            Event::Notice(text) => self.report.note(text),
            Event::BrokerDown(address, why) => self.report.warning(format!("broker {address}: {why}")),
            Event::BrokerUp(address) => {
                self.totals.reconnects += 1;
                self.report.note(format!("broker {address} answers again"));
            }
            Event::Closed { committed } => return Some(self.on_closed(committed)),
            Event::Fatal(error) => {
                self.report.error(&error);
                self.totals.unfinished = self.shared.lock().board.counts().inflight;
                return Some(Exit::of(&error));
            }
        }
        None
    }

    fn on_assigned(&mut self, generation: i32, added: Vec<Start>, kept: &[TopicPartition], now: Duration) {
        if self.generation_seen {
            self.totals.rebalances += 1;
        }
        self.generation_seen = true;
        self.assigned_at = now;
        let mut from: BTreeMap<TopicPartition, i64> = BTreeMap::new();
        for start in added {
            from.insert(start.at.clone(), start.position.offset);
            let mut state = self.shared.lock();
            let (offset, epoch) = (start.position.offset, start.position.epoch);
            let slot = state.board.assign(start.at.topic.clone(), start.at.partition, offset, epoch);
            if start.is_new {
                state.board.commit_start(slot);
            }
            drop(state);
            // The end is where it was when the partition first came, or a busy topic would never be done with.
            let end = start.end.filter(|_| self.config.exit_at_end);
            // A log that was cut meanwhile ends before it.
            let end = end.map(|end| end.min(*self.ends.entry(start.at.clone()).or_insert(end)));
            let intake = new_intake(&self.config, &self.lane_key, &start.at, slot, offset, end);
            self.intakes.insert(start.at, intake);
        }
        let state = self.shared.lock();
        for at in kept {
            if let Some((offset, _)) = self.intakes.get(at).and_then(|intake| state.board.next(intake.slot()))
            {
                from.insert(at.clone(), offset);
            }
        }
        drop(state);
        self.set_fetch_limits();
        let (names, offsets) = (show_partitions(from.keys()), show_list(from.values()));
        let text = if from.is_empty() {
            let why =
                if self.missing.is_empty() { "other members have all partitions" } else { "no topic yet" };
            format!("assigned nothing generation={generation}: {why}")
        } else {
            format!("assigned {names} from={offsets} generation={generation}")
        };
        let mut fields = partition_fields(from.keys());
        fields.push(("from", from.values().copied().collect::<Vec<i64>>().into()));
        fields.push(("generation", generation.into()));
        self.report.stamped(Verbosity::Normal, "assigned", text, fields);
    }

    /// Divides the memory among the fetches in flight: each leader is asked for a part of it.
    fn set_fetch_limits(&mut self) {
        let partitions = self.intakes.len().max(1) as u64;
        let share = self.config.bytes_max / partitions;
        let partition = fetch_bytes(self.config.partition_fetch_bytes_max, share / 4);
        // One fetch is in flight to each leader, and any broker may be one.
        let leaders = self.consumer.net().metadata().brokers.len().max(8) as u64;
        let answer = fetch_bytes(self.config.fetch_bytes_max, self.config.bytes_max / leaders);
        self.partition_fetch_bytes = partition.unsigned_abs().into();
        // Each is read on, if by no more than this, whatever the others hold: none may starve.
        if partitions.saturating_mul(FETCH_BYTES_MIN) > self.config.bytes_max && !self.said_memory {
            self.said_memory = true;
            let text = format!(
                "{partitions} partitions hold {} KiB and a batch each at least, which may be more than --max-memory",
                FETCH_BYTES_MIN >> 10
            );
            self.report.warning(text);
        }
        self.consumer.set_fetch_limits(answer, partition);
    }

    fn on_revoke(&mut self, partitions: Vec<TopicPartition>, deadline: Duration, now: Duration) {
        let mut slots = Vec::new();
        let ends = Ends::before(deadline, now);
        let mut state = self.shared.lock();
        for at in partitions {
            if let Some(intake) = self.intakes.get_mut(&at) {
                state.board.freeze(intake.slot());
                intake.clear();
                state.ends.insert(intake.slot(), ends);
                slots.push((at, intake.slot()));
            }
        }
        state.attention = Attention::Always;
        drop(state);
        self.shared.wake_every_worker();
        self.revoking = Some(Revoking { slots, deadline, sync: None });
    }

    /// Ends the drain of revoked partitions when it is done or its time is over.
    fn poll_revoking(&mut self, now: Duration) {
        let Some(revoking) = &mut self.revoking else { return };
        let mut state = self.shared.lock();
        let left = revoking.slots.iter().any(|(_, slot)| !state.board.drained(*slot));
        if left && now < revoking.deadline {
            return;
        }
        let mut synced = true;
        if let Some(disk) = &self.disk {
            let outcome = disk.outcome(*revoking.sync.get_or_insert_with(|| disk.ask()));
            if outcome.is_none() && now < revoking.deadline {
                return;
            }
            synced = outcome == Some(true);
        }
        let offsets: Vec<(TopicPartition, OffsetAndEpoch)> = revoking
            .slots
            .iter()
            .filter(|_| synced)
            .filter_map(|(at, slot)| {
                let (offset, epoch) = state.board.next(*slot)?;
                let commit = state.board.has_news(*slot);
                commit.then(|| (at.clone(), OffsetAndEpoch { offset, epoch }))
            })
            .collect();
        let given_up = state.tries.take_given_up(|slot| revoking.slots.iter().any(|(_, s)| *s == slot));
        if matches!(self.ending, Ending::No) {
            state.attention = Attention::WhenIdle;
        } else {
            self.handed_over += given_up;
        }
        drop(state);
        if left {
            let text =
                "the drain limit of a rebalance has passed: unfinished records run again at their next owner";
            self.report.warning(text);
        } else if given_up > 0 {
            self.report.warning(format!(
                "{given_up} records cannot be done within the drain limit of a rebalance: they run again at their \
                 next owner, and what is finished behind them too"
            ));
        }
        if !synced {
            self.report.warning(
                "stdout was not synced within the drain limit of a rebalance: what was finished since the \
                                 last commit runs again at its next owner",
            );
        }
        // It would take back what is committed now.
        if let Some((_, snapshot)) = &mut self.unsynced {
            snapshot.retain(|commit| revoking.slots.iter().all(|(_, slot)| *slot != commit.slot));
        }
        self.revoking = None;
        self.consumer.drained(offsets, now);
    }

    fn on_gone(&mut self, kind: &str, partitions: &[TopicPartition], reason: Option<LostReason>) {
        if self
            .revoking
            .as_ref()
            .is_some_and(|revoking| revoking.slots.iter().any(|(at, _)| partitions.contains(at)))
        {
            self.revoking = None;
            if matches!(self.ending, Ending::No) {
                self.shared.lock().attention = Attention::WhenIdle;
            }
        }
        let mut state = self.shared.lock();
        for at in partitions {
            if let Some(intake) = self.intakes.remove(at) {
                state.board.revoke(intake.slot());
                state.ends.remove(&intake.slot());
            }
        }
        let State { board, tries, .. } = &mut *state;
        tries.give_up_gone(board);
        drop(state);
        self.shared.wake_every_worker();
        let why = match reason {
            None => "",
            Some(LostReason::UnknownMember) => {
                ": the coordinator removed this member (no heartbeat reached it in time); joining again"
            }
            Some(LostReason::Generation) => ": a rebalance went on without this member; joining again",
        };
        let names =
            if partitions.is_empty() { "nothing".to_owned() } else { show_partitions(partitions.iter()) };
        self.report.stamped(
            Verbosity::Normal,
            kind,
            format!("{kind} {names}{why}"),
            partition_fields(partitions.iter()),
        );
    }

    fn on_fetched(&mut self, at: &TopicPartition, batches: Vec<FetchedBatch>, bytes: usize) {
        self.totals.fetched_bytes += bytes as u64;
        if let Some(intake) = self.intakes.get_mut(at)
            && matches!(self.ending, Ending::No)
        {
            intake.push(batches, bytes);
        }
    }

    fn on_moved(
        &mut self,
        at: &TopicPartition,
        position: OffsetAndEpoch,
        back: bool,
        end: Option<i64>,
        why: &str,
    ) {
        let slot = self.intakes.get(at).map(Intake::slot);
        let next = slot.and_then(|slot| self.shared.lock().board.next(slot));
        let position = match next.filter(|(next, _)| back && *next < position.offset) {
            // What is not finished before that is in the log as ever.
            Some((offset, epoch)) => {
                let next = OffsetAndEpoch { offset, epoch };
                self.consumer.rewind(at, next);
                next
            }
            None => position,
        };
        self.report.warning(format!("{at}: {why}; going on at offset {}", position.offset));
        let Some(intake) = self.intakes.get_mut(at) else { return };
        if back {
            match end.filter(|_| self.config.exit_at_end) {
                None => intake.restart(position.offset),
                // Another log, another end.
                Some(end) => {
                    self.ends.insert(at.clone(), end);
                    *intake = new_intake(
                        &self.config,
                        &self.lane_key,
                        at,
                        intake.slot(),
                        position.offset,
                        Some(end),
                    );
                }
            }
            let slot = intake.slot();
            let mut state = self.shared.lock();
            state.board.reset(slot, position.offset, position.epoch);
            // The group's offset is of a log that is no more.
            state.board.commit_start(slot);
            let State { board, tries, .. } = &mut *state;
            tries.give_up_gone(board);
            // A partition on its way out stays so: thawed, it would hold up the rebalance to its limit.
            if self.revoking.as_ref().is_some_and(|revoking| revoking.slots.iter().any(|(_, s)| *s == slot)) {
                state.board.freeze(slot);
            }
            drop(state);
            // What is with them belongs to an assignment that has ended.
            self.shared.wake_every_worker();
        } else {
            intake.push_gap(position.offset);
        }
    }

    fn on_committed(&mut self, offsets: Vec<(TopicPartition, i64)>) {
        self.totals.commits += 1;
        let mut state = self.shared.lock();
        for (at, offset) in offsets {
            let Some(slot) = self.intakes.get(&at).map(Intake::slot) else { continue };
            let Some(assignment) = state.board.assignment(slot) else { continue };
            let TopicPartition { topic, partition } = at;
            state.board.commit_acked(&Commit { slot, assignment, topic, partition, offset, epoch: -1 });
        }
    }

    fn take_failures(&mut self, now: Duration) {
        let failure = self.shared.lock().failure.take();
        match failure {
            Some(Failure::Output(error)) => self.on_output_failure(&error, now),
            Some(Failure::Handler(exit, what)) => {
                self.report.error(what);
                self.end_for(Stop::Failure(exit), now);
            }
            None => {}
        }
    }

    // ---- commits ----

    /// Also while draining, which may take long; the last commit is the end's own.
    fn may_commit(&self) -> bool {
        matches!(self.ending, Ending::No | Ending::Draining { .. })
    }

    fn poll_commit(&mut self, now: Duration) {
        if !self.may_commit() {
            return;
        }
        if let Some(snapshot) = self.take_synced() {
            self.consumer.commit(to_offsets(snapshot));
        }
        let mut state = self.shared.lock();
        let due = match self.config.commit {
            CommitWhen::Every(interval) => {
                if self.commit_due.is_none() && state.board.has_any_news() {
                    self.commit_due = Some(now + interval);
                }
                self.commit_due.is_some_and(|due| due <= now)
            }
            // Idle, also what has no records for us counts: the lag is to reach 0 behind an aborted transaction.
            CommitWhen::Records(count) => {
                state.processed - self.committed_at >= count || state.board.is_idle()
            }
        };
        if !due || self.unsynced.is_some() {
            return;
        }
        self.commit_due = None;
        self.committed_at = state.processed;
        let snapshot = state.board.commit_snapshot();
        if let CommitWhen::Records(count) = self.config.commit {
            state.wake_at = state.processed + count;
            if self.asked == snapshot {
                return;
            }
            self.asked.clone_from(&snapshot);
        }
        drop(state);
        if let Some(snapshot) = self.unless_synced_first(snapshot) {
            self.consumer.commit(to_offsets(snapshot));
        }
    }

    /// A snapshot that may be committed as it is; with `--fsync` none, and it waits for the sync asked for here.
    pub(super) fn unless_synced_first(&mut self, snapshot: Vec<Commit>) -> Option<Vec<Commit>> {
        let Some(disk) = &self.disk else { return Some(snapshot) };
        self.unsynced = Some((disk.ask(), snapshot));
        None
    }

    /// What has waited for a sync and is on the disk, but for partitions that were given up or moved back meanwhile.
    pub(super) fn take_synced(&mut self) -> Option<Vec<Commit>> {
        let disk = self.disk.as_ref()?;
        let (_, mut snapshot) = self.unsynced.take_if(|(sync, _)| disk.outcome(*sync) == Some(true))?;
        let state = self.shared.lock();
        snapshot.retain(|commit| state.board.assignment(commit.slot) == Some(commit.assignment));
        Some(snapshot)
    }
}

fn new_intake(
    config: &EngineConfig,
    lane_key: &Arc<LaneReader>,
    at: &TopicPartition,
    slot: Slot,
    position: i64,
    end: Option<i64>,
) -> Intake {
    let router = Router::new(config.routing, config.null_key, &at.topic, at.partition);
    Intake::new(at.clone(), slot, router, position, end).keyed_by(lane_key.clone())
}

/// A byte limit of a fetch: what was configured, but no more than memory allows, yet never uselessly little.
pub(super) fn fetch_bytes(configured: u32, memory: u64) -> i32 {
    let bytes = u64::from(configured).min(memory.max(FETCH_BYTES_MIN));
    i32::try_from(bytes).unwrap_or(i32::MAX)
}

/// A snapshot as the consumer takes it.
pub(super) fn to_offsets(snapshot: Vec<Commit>) -> impl Iterator<Item = (TopicPartition, OffsetAndEpoch)> {
    snapshot.into_iter().map(|commit| {
        let at = TopicPartition { topic: commit.topic, partition: commit.partition };
        (at, OffsetAndEpoch { offset: commit.offset, epoch: commit.epoch })
    })
}

/// `a/0,1,2 b/0`
pub(super) fn show_partitions<'a>(partitions: impl Iterator<Item = &'a TopicPartition>) -> String {
    let mut text = String::new();
    let mut topic: Option<&str> = None;
    for at in partitions {
        if topic == Some(&at.topic) {
            text.push_str(&format!(",{}", at.partition));
        } else {
            text.push_str(&format!("{}{at}", if topic.is_some() { " " } else { "" }));
            topic = Some(&at.topic);
        }
    }
    text
}

fn show_list<'a>(values: impl Iterator<Item = &'a i64>) -> String {
    values.map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn partition_fields<'a>(partitions: impl Iterator<Item = &'a TopicPartition>) -> Fields {
    let list: Vec<Value> = partitions.map(|at| Value::from(at.to_string())).collect();
    vec![("partitions", list.into())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_shown_by_topic() {
        let at = TopicPartition::new;
        let list = [at("a", 0), at("a", 1), at("b", 7)];
        assert_eq!(show_partitions(list.iter()), "a/0,1 b/7");
    }
}
