//! Everything in one place: the cluster, the wires, the members, the feeders, the observer, on one clock.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use keylane::broker::cluster::Cluster;
use keylane_protocol::records::{Record, index_records, next_batch};

use crate::feeder::{Feeder, understand};
use crate::ledger::Ledger;
use crate::member::{Fate, Member};
use crate::plan::{GROUP, Plan, TOPIC, Weather};
use crate::random::Random;
use crate::stats::Stats;
use crate::time::{Event, Time, Who};
use crate::wires::Wires;

/// How long after a fault it may still be felt, beyond the request timeout: the last commit may take 5 s.
const AFTERMATH: Duration = Duration::from_secs(7);
/// How long it may take until everything is well again.
const HEALING: Duration = Duration::from_secs(120);
/// Lines kept for a failure.
const LINES_MAX: usize = 400;

pub(crate) struct World {
    pub(crate) time: Time,
    pub(crate) plan: Plan,
    pub(crate) cluster: Cluster,
    pub(crate) wires: Wires,
    /// Those that ended are `None`.
    pub(crate) members: Vec<Option<Member>>,
    pub(crate) feeders: Vec<Option<Feeder>>,
    pub(crate) ledger: Ledger,
    pub(crate) stats: Stats,
    /// Faults are made.
    pub(crate) faulty: bool,
    /// Until then what goes wrong has its excuse.
    pub(crate) trouble_until: Duration,
    /// When partitions last came or went, or a member did.
    pub(crate) newest_change: Duration,
    /// Records of transactions that are or will be aborted.
    pub(crate) aborted: HashSet<u64>,
    /// Open transactions: partition and outcome, by producer.
    pub(crate) transactions: BTreeMap<i64, (i32, bool)>,
    /// Instance names of members that were killed, to be used again.
    pub(crate) instances: Vec<String>,
    cluster_due: Option<Duration>,
    lines: Option<VecDeque<String>>,
}

impl World {
    pub(crate) fn new(seed: u64, tracing: bool) -> Self {
        let plan = Plan::new(seed);
        let mut time = Time::new(Random(seed));
        time.random.next();
        let trouble_until = if plan.faults.is_empty() {
            Duration::ZERO
        } else {
            plan.until + plan.request_timeout + AFTERMATH
        };
        World {
            cluster: Cluster::new(plan.cluster()),
            wires: Wires::new(plan.delay_us, plan.split_one_in),
            members: Vec::new(),
            feeders: Vec::new(),
            ledger: Ledger::new(plan.order, plan.weather == Weather::Calm),
            stats: Stats::default(),
            faulty: true,
            trouble_until,
            newest_change: Duration::ZERO,
            aborted: HashSet::new(),
            transactions: BTreeMap::new(),
            instances: Vec::new(),
            cluster_due: None,
            lines: tracing.then(VecDeque::new),
            time,
            plan,
        }
    }

    /// From the first event to the last check.
    pub(crate) fn run(&mut self) {
        let (members, feeders) = (self.plan.members, self.plan.feeders);
        for _ in 0..members {
            let instance = self.new_instance();
            self.start_member(instance);
        }
        for _ in 0..feeders {
            self.start_feeder(self.plan.records / feeders);
        }
        self.time.after(Duration::from_millis(200), Event::Act);
        self.run_to(self.plan.until);
        self.heal();
        self.run_until_well();
        self.stop_all();
        self.ledger.check_end();
    }

    // ---- time ----

    pub(crate) fn run_to(&mut self, limit: Duration) {
        while let Some(event) = self.time.next(limit) {
            self.happen(event);
        }
        self.time.now = limit;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Turn(Who::Member(number)) => self.turn_member(number),
            Event::Turn(Who::Feeder(number)) => self.turn_feeder(number),
            Event::Hand(number, worker) => self.step_hand(number, worker),
            Event::Make(number) => self.make(number),
            Event::Start => {
                let instance = self.new_instance();
                self.start_member(instance);
            }
            Event::Act => self.act(),
            Event::NodeUp(node) => {
                self.cluster.start_node(node, self.time.now);
                self.settle();
            }
            Event::Cluster => {
                if self.cluster_due == Some(self.time.now) {
                    self.cluster_due = None;
                    self.cluster.poll(self.time.now);
                    self.settle();
                }
            }
            Event::Accept(id) => {
                self.wires.accept(id, &mut self.cluster, &mut self.time);
                self.settle();
            }
            Event::ToBroker(id, bytes) => {
                self.wires.arrive(id, &bytes, &mut self.cluster, &self.time);
                self.settle();
            }
            Event::BrokerLost(id) => {
                self.wires.broker_lost(id, &mut self.cluster, &self.time);
                self.settle();
            }
            Event::Opened(_) | Event::Refused(..) | Event::ToClient(..) | Event::ClientLost(_) => {
                self.tell_client(event);
            }
        }
    }

    /// The loop of a process is to go round at this time, unless it does so earlier.
    pub(crate) fn want_turn(&mut self, who: Who, at: Duration) {
        let at = at.max(self.time.now);
        let due = match who {
            Who::Member(number) => self.members[number].as_mut().map(|member| &mut member.due),
            Who::Feeder(number) => self.feeders[number].as_mut().map(|feeder| &mut feeder.due),
        };
        if let Some(due) = due
            && due.is_none_or(|due| at < due)
        {
            *due = Some(at);
            self.time.at(at, Event::Turn(who));
        }
    }

    // ---- wires ----

    /// Until when this process is stopped.
    fn asleep(&self, who: Who) -> Option<Duration> {
        let Who::Member(number) = who else { return None };
        let until = self.members[number].as_ref()?.asleep;
        (until > self.time.now).then_some(until)
    }

    fn tell_client(&mut self, event: Event) {
        let id = match &event {
            Event::Opened(id) | Event::ToClient(id, _) | Event::ClientLost(id) | Event::Refused(_, _, id) => {
                *id
            }
            _ => unreachable!("the others are not for clients"),
        };
        let Some((who, link)) = self.wires.client(id) else { return };
        // What comes to a stopped process waits, in its order, also when that is stopped again meanwhile.
        if let Some(until) = self.asleep(who) {
            return self.time.postpone(until, event);
        }
        let told = match who {
            Who::Member(number) => {
                let Some(member) = self.members[number].as_mut() else { return };
                let local = self.time.now - member.began;
                tell(member.engine.consumer().net(), link, event, &mut self.wires, local)
            }
            Who::Feeder(number) => {
                let Some(feeder) = self.feeders[number].as_mut() else { return };
                let local = self.time.now - feeder.began;
                tell(feeder.producer.net(), link, event, &mut self.wires, local)
            }
        };
        if told {
            self.want_turn(who, self.time.now);
        }
    }

    /// After anything was done to the cluster: bytes go out, and the observer looks.
    pub(crate) fn settle(&mut self) {
        self.wires.pump(&mut self.cluster, &mut self.time);
        if let Some(notice) = self.cluster.next_notice() {
            panic!("the broker finds fault with a client: {notice}");
        }
        if let Some(due) = self.cluster.deadline() {
            let due = due.max(self.time.now + Duration::from_micros(1));
            if self.cluster_due.is_none_or(|at| due < at) {
                self.cluster_due = Some(due);
                self.time.at(due, Event::Cluster);
            }
        }
        self.observe();
    }

    /// The observer reads what is new in the logs and which offsets are stored.
    fn observe(&mut self) {
        for partition in 0..self.partitions() {
            let Some(range) = self.cluster.log_range(TOPIC, partition) else { continue };
            self.ledger.log_starts(partition, range.start);
            let known = self.ledger.log_end(partition);
            if known < range.end {
                self.read_log(partition, known.max(range.start), range.end);
            }
            if let Some((committed, epoch)) = self.cluster.committed(GROUP, TOPIC, partition) {
                self.ledger.stores(partition, committed, epoch);
            }
        }
    }

    fn read_log(&mut self, partition: i32, mut from: i64, end: i64) {
        let (mut positions, mut spare) = (Vec::new(), Vec::new());
        while from < end {
            let mut bytes = self.cluster.read_log(TOPIC, partition, from);
            while let Some(batch) = next_batch(&mut bytes).expect("the log is sound") {
                let header = &batch.header;
                // Not the reader's own word for it, which is one of the things to be tried.
                let behind = header.base_offset + i64::from(header.last_offset_delta) + 1;
                self.ledger.batch_begins(partition, header.base_offset, header.partition_leader_epoch);
                if !header.is_control() && behind > from {
                    let (producer, epoch) = (header.producer_id, header.producer_epoch);
                    let (sequence, count) = (header.base_sequence, header.record_count);
                    self.trace(|| {
                        format!(
                            "{partition}@{}: producer {producer} epoch {epoch} sequence {sequence}, {count} records",
                            header.base_offset
                        )
                    });
                    let payload = batch.payload(&mut spare, 1 << 20).expect("it can be unpacked");
                    index_records(header, &payload, &mut positions, |_, _, _| {}).expect("it has records");
                    for position in &positions {
                        let record = Record::parse(header, &payload, *position).expect("a record");
                        if record.offset >= from {
                            let (key, id) = understand(&record);
                            let aborted = self.aborted.contains(&id);
                            self.ledger.stored(partition, record.offset, key, id, aborted);
                        }
                    }
                }
                from = from.max(behind);
            }
        }
        self.ledger.log_reaches(partition, end);
    }

    pub(crate) fn partitions(&self) -> i32 {
        self.cluster.partitions(TOPIC)
    }

    // ---- weather ----

    pub(crate) fn is_calm(&self) -> bool {
        self.plan.weather == Weather::Calm
    }

    /// Something went wrong that may be felt for `more`, and for what follows from it.
    pub(crate) fn trouble(&mut self, more: Duration) {
        let until = self.time.now + more + self.plan.request_timeout + AFTERMATH;
        self.trouble_until = self.trouble_until.max(until);
    }

    pub(crate) fn in_trouble(&self) -> bool {
        self.time.now < self.trouble_until
    }

    /// Members that are to go on.
    pub(crate) fn living(&self) -> Vec<usize> {
        let lives =
            |member: &Option<Member>| member.as_ref().is_some_and(|member| member.fate == Fate::Lives);
        self.members
            .iter()
            .enumerate()
            .filter(|(_, member)| lives(member))
            .map(|(number, _)| number)
            .collect()
    }

    pub(crate) fn new_instance(&mut self) -> Option<String> {
        let fresh = || format!("i{}", self.members.len());
        self.plan.is_static.then(|| self.instances.pop().unwrap_or_else(fresh))
    }

    // ---- the end ----

    /// Nothing goes wrong any more.
    fn heal(&mut self) {
        self.faulty = false;
        for node in 1..=self.plan.nodes {
            self.cluster.start_node(node, self.time.now);
        }
        self.wires.refuse(Duration::ZERO);
        for member in self.members.iter_mut().flatten() {
            (member.to_fail, member.to_hang) = (false, false);
        }
        let open: Vec<i64> = self.transactions.keys().copied().collect();
        for producer in open {
            self.end_transaction(producer);
        }
        // A static member that comes back as leader is told to skip the assignment (KIP-814), so nobody in the group
        // can know of partitions that were added while it was away: the next round brings them.
        if self.plan.is_static && self.partitions() > self.plan.partitions {
            self.cluster.force_rebalance(GROUP);
        }
        self.settle();
        if self.living().is_empty() {
            let instance = self.new_instance();
            self.start_member(instance);
        }
        self.trace(|| "everything is mended".to_owned());
    }

    fn run_until_well(&mut self) {
        let limit = self.time.now + HEALING;
        loop {
            self.run_to(self.time.now + Duration::from_millis(250));
            let why = match self.what_is_wrong() {
                None => return,
                Some(why) => why,
            };
            if self.time.now > limit {
                panic!("not well {HEALING:?} after the last fault: {why}\n{}", self.state());
            }
        }
    }

    fn what_is_wrong(&mut self) -> Option<String> {
        if self.in_trouble() {
            return Some("trouble is not over".to_owned());
        }
        // A member that was killed is missed after its session only.
        if self.newest_change + self.plan.session + Duration::from_secs(2) > self.time.now {
            return Some(format!("partitions still move: {:?}", self.newest_change));
        }
        if let Some(number) = self.feeders.iter().flatten().position(|feeder| !feeder.is_done()) {
            return Some(format!("feeder {number} is not done"));
        }
        for partition in 0..self.partitions() {
            if self.ledger.owner(partition).is_none() {
                return Some(format!("nobody has {partition}"));
            }
        }
        for (number, member) in self.members.iter_mut().enumerate() {
            let Some(member) = member else { continue };
            if member.fate != Fate::Lives {
                return Some(format!("member {number} has not ended"));
            }
            let consumer = member.engine.consumer();
            if !consumer.is_settled() {
                return Some(format!("member {number} is not settled"));
            }
            // One that asks the wrong broker for ever knows of no trouble.
            let lease = consumer.lease_until().map(|until| member.began + until);
            if lease.is_none_or(|until| until <= self.time.now) {
                return Some(format!("member {number} has no lease"));
            }
        }
        (!self.ledger.is_done()).then(|| "there is lag".to_owned())
    }

    /// All members end in good order.
    fn stop_all(&mut self) {
        for number in self.living() {
            self.signal(number);
        }
        let limit = self.time.now + Duration::from_secs(10);
        while self.members.iter().any(Option::is_some) {
            assert!(self.time.now < limit, "a member does not end\n{}", self.state());
            self.run_to(self.time.now + Duration::from_millis(50));
        }
    }

    // ---- telling ----

    /// Keeps a line for the story of a failure.
    pub(crate) fn trace(&mut self, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            if lines.len() == LINES_MAX {
                lines.pop_front();
            }
            lines.push_back(format!("{:>10.3} {}", self.time.now.as_secs_f64(), line()));
        }
    }

    /// What happened last.
    pub(crate) fn story(&self) -> String {
        self.lines.iter().flatten().fold(String::new(), |all, line| all + line + "\n")
    }

    fn state(&mut self) -> String {
        let mut text = String::new();
        for partition in 0..self.partitions() {
            let (range, owner) = (self.cluster.log_range(TOPIC, partition), self.ledger.owner(partition));
            let committed = self.ledger.committed(partition);
            text += &format!("{partition}: {range:?} owner {owner:?} committed {committed}\n");
        }
        let now = self.time.now;
        for (number, member) in self.members.iter_mut().enumerate() {
            let Some(member) = member else { continue };
            let counts = member.shared.lock().board.counts();
            let asleep = member.asleep > now;
            let running = self.ledger.running(number);
            let consumer = member.engine.consumer();
            let settled = consumer.is_settled();
            text += &format!(
                "member {number}: {:?} asleep {asleep} settled {settled} generation {} lease {:?} running \
                 {running} {counts:?}\n",
                member.fate,
                consumer.generation(),
                consumer.lease_until(),
            );
        }
        text
    }
}

/// A client's end of a connection hears something. False if nothing came of it.
fn tell<T>(
    net: &mut keylane_protocol::client::net::Net<T>,
    link: keylane_protocol::client::net::LinkId,
    event: Event,
    wires: &mut Wires,
    local: Duration,
) -> bool {
    match event {
        Event::Opened(id) => {
            wires.opened(id);
            net.on_connected(link, local);
        }
        Event::Refused(who, link, id) => {
            if wires.refused(who, link, id) {
                net.on_disconnected(link, "refused", local);
            }
        }
        Event::ClientLost(id) => {
            if wires.client_lost(id).is_some() {
                net.on_disconnected(link, "cut", local);
            }
        }
        Event::ToClient(id, bytes) => {
            if !wires.comes_back(id) {
                return false;
            }
            let mut bytes = &bytes[..];
            while !bytes.is_empty() {
                let Some(space) = net.space(link) else { break };
                let count = bytes.len().min(space.len());
                space[..count].copy_from_slice(&bytes[..count]);
                net.received(link, count, local);
                bytes = &bytes[count..];
            }
        }
        _ => return false,
    }
    true
}
