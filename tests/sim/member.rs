//! A pool member: the real engine and the real workers' steps, driven as the threads and the loop of a process drive
//! them.
//!
//! One turn is what the loop does between two waits (see `pool::role` and `driver`); a worker is either at a record
//! until some time, or waits to be woken. A process that is stopped does nothing, and what comes meanwhile waits for
//! it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kafka_protocol::messages::{ApiKey, OffsetCommitRequest, RequestHeader};
use kafka_protocol::protocol::{Decodable, HeaderVersion};
use keylane::broker::cluster::Cluster;
use keylane::cli::Verbosity;
use keylane::exit::Exit;
use keylane::handler::outcome::{End, Failed, Kind, Outcome};
use keylane::handler::policy::{OnFail, Policy};
use keylane::pool::engine::{Engine, Signals};
use keylane::pool::run::RunRecord;
use keylane::pool::shared::{Clock, Failure, RecordBatch, Shared, Wake, Want};
use keylane::pool::tries::Try;
use keylane::pool::worker::{Next, Worker};
use keylane::report::{Line, Report, Tap};
use keylane_protocol::client::consumer::Tag;
use keylane_protocol::client::net::Net;
use keylane_protocol::records::Record;

use crate::ledger::{Held, Leaving};
use crate::plan::{GROUP, Plan, Weather};
use crate::random::Random;
use crate::time::{Event, Who};
use crate::world::World;

/// What engine and workers want woken.
#[derive(Default)]
pub(crate) struct Bell {
    engine: AtomicBool,
    workers: Mutex<Vec<u32>>,
}

struct Wakes(Arc<Bell>);

impl Wake for Wakes {
    fn wake_engine(&self) {
        self.0.engine.store(true, Ordering::Relaxed);
    }

    fn wake_worker(&self, worker: u32) {
        self.0.workers.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
    }
}

/// A line that a member said.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    kind: String,
    text: String,
    partitions: Vec<i32>,
}

struct Hand {
    worker: Worker,
    /// The record it is at, and whether it will fail.
    held: Option<(Held, bool)>,
    /// The same where handlers can fail: what the try will come to, or with none the failure that ends the member.
    tried: Option<(Try, Held, Option<Outcome>)>,
    /// When it looks again, or is done with its record.
    due: Option<Duration>,
}

/// What is to become of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lives,
    /// A signal came, or two.
    Stops,
    /// A handler failed.
    Fails,
}

pub(crate) struct Member {
    pub(crate) engine: Engine,
    pub(crate) shared: Arc<Shared>,
    clock: Arc<AtomicU64>,
    /// World time when the process began.
    pub(crate) began: Duration,
    pub(crate) asleep: Duration,
    hands: Vec<Hand>,
    bell: Arc<Bell>,
    said: Arc<Mutex<Vec<Said>>>,
    /// The next turn.
    pub(crate) due: Option<Duration>,
    pub(crate) signals: Signals,
    pub(crate) fate: Fate,
    /// A drain ran into its limit.
    overran: bool,
    /// A drain stopped short of records that could not be done in time.
    fell_short: bool,
    /// One of the next handlers fails.
    pub(crate) to_fail: bool,
    /// One of the next handlers hangs.
    pub(crate) to_hang: bool,
    /// Turns within the present virtual second.
    turns: (u64, u32),
    records_max: u64,
    bytes_max: u64,
    pub(crate) instance: Option<String>,
    /// Partitions that it was given when it had no lease any more (it stood still): its own once it has one.
    claims: BTreeSet<i32>,
}

/// More turns than this in a virtual second are a spin.
const TURNS_MAX: u32 = 20_000;
/// The largest batch that the feeders make, unpacked and with its index.
const BATCH_BYTES_MAX: u64 = 256 << 10;

impl Member {
    pub(crate) fn shared_now(&self, now: Duration) -> Duration {
        let local = now - self.began;
        self.clock.store(u64::try_from(local.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        local
    }
}

impl World {
    /// A new process.
    pub(crate) fn start_member(&mut self, instance: Option<String>) -> usize {
        let number = self.members.len();
        let seed = self.time.random.next();
        let mut setup = self.plan.setup(seed);
        setup.net.client_id = format!("m{number}");
        setup.consumer.group.instance_id = instance.clone();
        let (workers, records_max, bytes_max) =
            (setup.workers, setup.engine.records_max, setup.engine.bytes_max);
        let (clock, bell): (Arc<AtomicU64>, Arc<Bell>) = Default::default();
        let said: Arc<Mutex<Vec<Said>>> = Arc::default();
        let heard = said.clone();
        let tap = Tap::new(move |line| heard.lock().unwrap_or_else(PoisonError::into_inner).push(hear(line)));
        let report = Report::tapped(Verbosity::Normal, tap);
        setup.policy.0 = Policy {
            retries: None,
            delay: Duration::from_millis(10),
            delay_max: Duration::from_millis(self.plan.pace.retry_ms),
            on_fail: OnFail::Stop,
        };
        let engine = setup.engine(Clock::Virtual(clock.clone()), Box::new(Wakes(bell.clone())), report);
        let shared = engine.shared().clone();
        let hand = |number| Hand { worker: Worker::new(number, &shared), held: None, tried: None, due: None };
        let hands: Vec<Hand> = (0..workers).map(hand).collect();
        self.members.push(Some(Member {
            engine,
            shared,
            clock,
            began: self.time.now,
            asleep: Duration::ZERO,
            hands,
            bell,
            said,
            due: None,
            signals: Signals::default(),
            fate: Fate::Lives,
            overran: false,
            fell_short: false,
            to_fail: false,
            to_hang: false,
            turns: (0, 0),
            records_max,
            bytes_max,
            instance,
            claims: BTreeSet::new(),
        }));
        self.trace(|| format!("member {number} begins"));
        for worker in 0..workers as usize {
            self.wake_hand(number, worker);
        }
        self.want_turn(Who::Member(number), self.time.now);
        number
    }

    // ---- the loop ----

    pub(crate) fn turn_member(&mut self, number: usize) {
        let now = self.time.now;
        let Some(member) = self.members[number].as_mut() else { return };
        if member.due != Some(now) {
            return;
        }
        if member.asleep > now {
            member.due = Some(member.asleep);
            return self.time.at(member.asleep, Event::Turn(Who::Member(number)));
        }
        member.due = None;
        let second = now.as_secs();
        member.turns = if member.turns.0 == second { (second, member.turns.1 + 1) } else { (second, 1) };
        let spins = member.turns.1 > TURNS_MAX;
        let local = member.shared_now(now);
        // As the driver's loop: after its wait...
        let (engine, wires) = (&mut member.engine, &mut self.wires);
        engine.consumer().poll(local);
        check_commits(&self.plan, &self.cluster, engine.consumer().net());
        wires.flush(Who::Member(number), engine.consumer().net(), &mut self.time);
        engine.set_signals(member.signals);
        let exit = engine.turn(local);
        self.hear_lines(number);
        if let Some(exit) = exit {
            return self.exit_member(number, exit);
        }
        self.check_member(number);
        // ... and before the next one.
        let Some(member) = self.members[number].as_mut() else { return };
        let engine = &mut member.engine;
        let deadline = engine.deadline();
        let consumer = engine.consumer();
        consumer.net().on_timeout(local);
        consumer.poll(local);
        check_commits(&self.plan, &self.cluster, consumer.net());
        self.wires.flush(Who::Member(number), consumer.net(), &mut self.time);
        let dues = [consumer.net().deadline(), consumer.deadline(), deadline];
        assert!(!spins, "member {number} spins: due {dues:?} at {local:?}");
        if let Some(due) = dues.into_iter().flatten().min() {
            // The loop itself takes time, or virtual time would not go on while there is always more to do.
            let due = (member.began + due).max(now + Duration::from_micros(10));
            self.want_turn(Who::Member(number), due);
        }
        self.hear_bell(number);
    }

    /// Looks after a member whose workers or engine may have woken each other.
    fn hear_bell(&mut self, number: usize) {
        let Some(member) = self.members[number].as_mut() else { return };
        let engine = member.bell.engine.swap(false, Ordering::Relaxed);
        let workers =
            std::mem::take(&mut *member.bell.workers.lock().unwrap_or_else(PoisonError::into_inner));
        for worker in workers {
            self.wake_hand(number, worker as usize);
        }
        if engine {
            let at = self.time.now + self.time.random.us((0, 60));
            self.want_turn(Who::Member(number), at);
        }
    }

    // ---- workers ----

    fn wake_hand(&mut self, number: usize, worker: usize) {
        let at = self.time.now + self.time.random.us((0, 60));
        let Some(member) = self.members[number].as_mut() else { return };
        let hand = &mut member.hands[worker];
        if let Some((tried, _, outcome @ Some(_))) = &mut hand.tried
            && let Some(ends) = member.shared.ends_of(tried)
        {
            // Its child is told to end, and does, by itself or not.
            let ended = at
                .max(member.began + self.time.random.pick(&[ends.term_at, ends.kill_at]).unwrap_or_default());
            if hand.due.is_some_and(|due| ended < due) {
                *outcome = Some(Outcome::Unfinished);
                hand.due = Some(ended);
                self.time.at(ended, Event::Hand(number, worker));
            }
        }
        // One that is at a record, or woken already, looks by itself.
        if hand.due.is_none() {
            hand.due = Some(at);
            self.time.at(at, Event::Hand(number, worker));
        }
    }

    pub(crate) fn step_hand(&mut self, number: usize, worker: usize) {
        let now = self.time.now;
        let Some(member) = self.members[number].as_mut() else { return };
        if member.hands[worker].due != Some(now) {
            return;
        }
        if member.asleep > now {
            // Threads go on in any order.
            let at = member.asleep + self.time.random.us((0, 2_000));
            member.hands[worker].due = Some(at);
            return self.time.at(at, Event::Hand(number, worker));
        }
        member.shared_now(now);
        let hand = &mut member.hands[worker];
        hand.due = None;
        if let Some((tried, held, outcome)) = hand.tried.take() {
            self.end_try(number, worker, tried, &held, outcome);
            return self.hear_bell(number);
        }
        let Some((held, fails)) = hand.held.take() else {
            self.take(number, worker);
            return self.hear_bell(number);
        };
        if fails {
            self.ledger.abandoned(number, &held);
            let error = std::io::Error::other("a handler of the simulator fails");
            hand.worker.complete(&member.shared, Some(Failure::Output(error)));
            member.fate = Fate::Fails;
            self.take(number, worker);
        } else {
            self.ledger.finished(number, &held);
            hand.worker.finish_record();
            self.go_on(number, worker);
        }
        self.hear_bell(number);
    }

    fn end_try(&mut self, number: usize, worker: usize, tried: Try, held: &Held, outcome: Option<Outcome>) {
        let Some(member) = self.members[number].as_mut() else { return };
        let failure = outcome.is_none().then(|| {
            member.fate = Fate::Fails;
            Failure::Output(std::io::Error::other("a handler of the simulator fails"))
        });
        match &outcome {
            Some(Outcome::Done) => self.ledger.finished(number, held),
            Some(Outcome::Failed(_)) => {
                self.stats.count("a try fails");
                self.ledger.abandoned(number, held);
            }
            Some(Outcome::Unfinished) | None => self.ledger.abandoned(number, held),
        }
        member.shared.settle(&mut vec![(tried, outcome.unwrap_or(Outcome::Unfinished))], failure);
        self.take(number, worker);
    }

    /// The worker looks for records.
    fn take(&mut self, number: usize, worker: usize) {
        let Some(member) = self.members[number].as_mut() else { return };
        if self.plan.pace.failing_one_in > 0 {
            let mut tries = Vec::new();
            let want = Want { open: 0, tries_max: 1, records_max: 1, woken: true };
            if member.shared.take_tries(worker as u32, want, &mut tries) == Next::Handle
                && let Some(tried) = tries.pop()
            {
                let held = read(&tried.first());
                let again = tried.attempt > 1;
                self.begin(number, worker, held, again, Some(tried));
            }
            return;
        }
        if member.hands[worker].worker.take(&member.shared) == Next::Handle {
            self.go_on(number, worker);
        }
    }

    /// Begins with the next record of the run, or completes it.
    fn go_on(&mut self, number: usize, worker: usize) {
        let Some(member) = self.members[number].as_mut() else { return };
        let hand = &mut member.hands[worker];
        if let Some(record) = hand.worker.next_record(&member.shared) {
            let held = read(&record);
            return self.begin(number, worker, held, false, None);
        }
        hand.worker.complete(&member.shared, None);
        self.take(number, worker);
    }

    fn begin(&mut self, number: usize, worker: usize, held: Held, again: bool, tried: Option<Try>) {
        let mut takes = self.time.random.us(self.plan.pace.usual_us);
        let (pace, random) = (&self.plan.pace, &mut self.time.random);
        if pace.slow_one_in > 0 && random.one_in(pace.slow_one_in) {
            takes = random.us(pace.slow_us);
        }
        let Some(member) = self.members[number].as_mut() else { return };
        let hangs = std::mem::take(&mut member.to_hang)
            || (self.faulty && pace.hung_one_in > 0 && random.one_in(pace.hung_one_in));
        if hangs {
            takes = random.us(pace.hung_us);
            self.stats.count("a handler hangs");
        }
        let fails = std::mem::take(&mut member.to_fail);
        let due = self.time.now + takes;
        let claimed = member.claims.remove(&held.partition);
        let hand = &mut member.hands[worker];
        hand.due = Some(due);
        match tried {
            None => hand.held = Some((held, fails)),
            Some(tried) => {
                let outcome = if self.faulty && self.time.random.one_in(self.plan.pace.failing_one_in) {
                    Outcome::Failed(draw_failure(&mut self.time.random, self.plan.weather))
                } else {
                    Outcome::Done
                };
                hand.tried = Some((tried, held, (!fails).then_some(outcome)));
            }
        }
        if claimed {
            self.hear_assigned(number, &[held.partition]);
        }
        self.ledger.started(number, &held, again);
        self.time.at(due, Event::Hand(number, worker));
    }

    // ---- what it says ----

    fn hear_lines(&mut self, number: usize) {
        let Some(member) = self.members[number].as_ref() else { return };
        let lines = std::mem::take(&mut *member.said.lock().unwrap_or_else(PoisonError::into_inner));
        for said in lines {
            self.trace(|| format!("member {number}: {}: {}", said.kind, said.text));
            match said.kind.as_str() {
                "assigned" => self.hear_assigned(number, &said.partitions),
                "revoked" | "lost" => {
                    if said.kind == "lost" {
                        assert!(!self.is_calm(), "member {number} {}", said.text);
                        self.stats.count("a member loses its partitions");
                    }
                    let how = self.leaving(number, said.kind == "lost");
                    for partition in said.partitions {
                        if let Some(member) = self.members[number].as_mut() {
                            member.claims.remove(&partition);
                        }
                        self.ledger.leaves(number, partition, how, &said.kind);
                    }
                }
                "warning" if said.text.contains("drain limit") || said.text.contains("are unfinished") => {
                    assert!(!self.is_calm(), "member {number}: {}", said.text);
                    let short = said.text.contains("cannot be done within");
                    if let Some(member) = self.members[number].as_mut() {
                        member.overran |= !short;
                        member.fell_short |= short;
                    }
                }
                _ => {}
            }
            self.newest_change = if matches!(said.kind.as_str(), "assigned" | "revoked" | "lost") {
                self.time.now
            } else {
                self.newest_change
            };
        }
    }

    fn hear_assigned(&mut self, number: usize, partitions: &[i32]) {
        let Some(member) = self.members[number].as_mut() else { return };
        let lease = member.engine.consumer().lease_until().map(|until| member.began + until);
        let late = lease.is_none_or(|until| until <= self.time.now);
        for partition in partitions {
            if late && self.ledger.owner(*partition).is_some_and(|owner| owner != number) {
                if let Some(member) = self.members[number].as_mut() {
                    member.claims.insert(*partition);
                }
                continue;
            }
            let before = self.ledger.owner(*partition);
            if let Some(other) = before.filter(|other| *other != number) {
                self.take_over(number, other, *partition);
            }
            self.ledger.takes(number, *partition);
        }
    }

    /// A partition is given to a member though another one has not said that it is without it.
    fn take_over(&mut self, number: usize, other: usize, partition: i32) {
        let now = self.time.now;
        let Some(holder) = self.members[other].as_mut() else { return };
        if holder.fate == Fate::Lives {
            assert!(
                self.plan.weather == Weather::Rough,
                "member {number} is given {partition}, which member {other} has not given up"
            );
            let lease = holder.engine.consumer().lease_until().map(|until| holder.began + until);
            assert!(
                lease.is_none_or(|until| until <= now),
                "member {number} is given {partition}, on which member {other} has a lease until {lease:?}, \
                 now {now:?}"
            );
            self.stats.count("a partition is taken over");
        }
        let how = self.leaving(other, false);
        self.ledger.leaves(other, partition, how, "taken over");
    }

    /// Whether a member that gives partitions up now may leave a window.
    fn leaving(&self, number: usize, lost: bool) -> Leaving {
        let overran = self.members[number].as_ref().is_some_and(|member| member.overran);
        let failed = self.members[number].as_ref().is_some_and(|member| member.fate == Fate::Fails);
        // A rebalance waits no longer than its timeout, whatever a member is still draining.
        let drains = self.plan.drain_timeout > self.plan.rebalance_timeout
            && self.members[number].as_ref().is_some_and(|member| member.signals.count > 0);
        if lost || overran || failed || drains || self.in_trouble() {
            Leaving::Excused
        } else if self.members[number].as_ref().is_some_and(|member| member.fell_short) {
            Leaving::Short
        } else {
            Leaving::Orderly
        }
    }

    // ---- its end ----

    fn exit_member(&mut self, number: usize, exit: Exit) {
        self.trace(|| format!("member {number} ends: {exit:?}"));
        let how = self.leaving(number, false);
        let Some(member) = self.members[number].as_mut() else { return };
        let (fate, signals) = (member.fate, member.signals.count);
        let since_sleep = self.time.now.saturating_sub(member.asleep);
        member.engine.end_workers();
        let excused = how == Leaving::Excused;
        let expected = match (fate, exit) {
            (Fate::Stops, Exit::Done) => true,
            (Fate::Stops, Exit::Unfinished) => excused,
            // Whatever it was at.
            (_, Exit::Terminate) => signals > 1,
            (Fate::Fails, Exit::Output) => true,
            // It found no broker when it began, or none that could say who coordinates; or it stood still until after.
            (_, Exit::Unavailable) => excused || since_sleep < Duration::from_secs(1),
            _ => false,
        };
        assert!(expected, "member {number} ends with {exit:?}: {fate:?}, {signals} signals, {how:?}");
        // A second signal ends it before what is finished need be committed.
        let how = if signals > 1 { Leaving::Excused } else { how };
        self.ledger.gone(number, how, "the end");
        self.remove_member(number, false);
        if exit == Exit::Unavailable || (fate == Fate::Fails && !self.faulty) {
            // As a supervisor does.
            let pause = self.time.random.us((100_000, 1_000_000));
            self.time.after(pause, Event::Start);
        }
    }

    /// The process is gone without a word.
    pub(crate) fn kill_member(&mut self, number: usize) {
        self.trace(|| format!("member {number} is killed"));
        self.ledger.gone(number, Leaving::Excused, "killed");
        let silently = self.time.random.one_in(4);
        self.remove_member(number, silently);
    }

    fn remove_member(&mut self, number: usize, silently: bool) {
        self.newest_change = self.time.now;
        self.wires.drop_client(Who::Member(number), silently, &mut self.time);
        self.members[number] = None;
    }

    // ---- its own checks ----

    fn check_member(&mut self, number: usize) {
        let thorough = self.time.random.one_in(32);
        let Some(member) = self.members[number].as_ref() else { return };
        let state = member.shared.lock();
        let counts = state.board.counts();
        let partitions = state.board.assigned().count() as u64;
        let held = counts.queued + counts.inflight;
        // See `budget` for the double, which is for partitions that become hungry late. One record of each is always
        // admitted, and what ended assignments left may still run.
        let room = 2 * member.records_max + partitions + member.hands.len() as u64;
        assert!(
            held <= room,
            "member {number} holds {held} records of {}: {:?}",
            member.records_max,
            state.board.assigned().map(|slot| state.board.slot_counts(slot)).collect::<Vec<_>>()
        );
        let bytes = counts.held_bytes;
        let room = 2 * member.bytes_max + (partitions + 1) * BATCH_BYTES_MAX;
        assert!(bytes <= room, "member {number} holds {bytes} bytes of {}", member.bytes_max);
        if thorough {
            state.board.invariants();
        }
    }
}

/// Commits are held from the answer to JoinGroup to the one to SyncGroup: nobody sends one under a generation for which
/// the coordinator has no assignment yet. In calm weather alone: there no coordinator changes its mind on a generation.
fn check_commits(plan: &Plan, cluster: &Cluster, net: &Net<Tag>) {
    if plan.weather != Weather::Calm {
        return;
    }
    for link in net.links() {
        let mut rest = net.outgoing(link);
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let (mut frame, behind) = after.split_at(u32::from_be_bytes(*length) as usize);
            rest = behind;
            let version = i16::from_be_bytes([frame[2], frame[3]]);
            if i16::from_be_bytes([frame[0], frame[1]]) != ApiKey::OffsetCommit as i16 {
                continue;
            }
            let header = OffsetCommitRequest::header_version(version);
            RequestHeader::decode(&mut frame, header).expect("a header");
            let request = OffsetCommitRequest::decode(&mut frame, version).expect("a commit");
            let group = cluster.group(GROUP).expect("the group that it is sent for");
            assert!(
                group.state != "CompletingRebalance"
                    || group.generation != request.generation_id_or_member_epoch,
                "a commit between the answers to JoinGroup and SyncGroup of generation {}",
                group.generation
            );
        }
    }
}

fn draw_failure(random: &mut Random, weather: Weather) -> Failed {
    let kind = random.pick(&[Kind::Temporary, Kind::Ordinary]).unwrap_or(Kind::Ordinary);
    // A child that a signal ends is not tried again while its partition drains, so it leaves a window.
    let ends: &[End] = match weather {
        Weather::Calm => &[End::Exit(1), End::TimedOut],
        Weather::Rough => &[End::Exit(1), End::Signal(9), End::Answer],
    };
    let end = random.pick(ends).unwrap_or(End::Answer);
    Failed { kind, end, reason: String::new(), counts: !random.one_in(4) }
}

fn hear(line: &Line<'_>) -> Said {
    let list = line.fields.iter().find(|(name, _)| *name == "partitions").map(|(_, value)| value);
    let names = list.and_then(|list| list.as_array()).into_iter().flatten();
    let number = |name: &str| name.rsplit('/').next().and_then(|number| number.parse().ok());
    Said {
        kind: line.kind.to_owned(),
        text: line.text.to_owned(),
        partitions: names.filter_map(|name| number(name.as_str()?)).collect(),
    }
}

/// What a handler sees of a record: its place, its key and the number in its value.
fn read(record: &RunRecord<'_, RecordBatch>) -> Held {
    let batch = record.batch;
    let position = batch.positions[record.index as usize];
    let parsed = Record::parse(&batch.header, &batch.payload, position).expect("the log is sound");
    assert_eq!(parsed.offset, record.offset, "the board knows its offsets");
    let (key, id) = crate::feeder::understand(&parsed);
    Held { partition: batch.partition, offset: parsed.offset, assignment: record.assignment, key, id }
}
