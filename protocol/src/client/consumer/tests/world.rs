//! Consumers, brokers and the wires between them on one virtual clock.
//!
//! Bytes are real, in both directions; a connection keeps its order; a broker answers one request of a connection at
//! a time, as Kafka does. After every step the invariants are checked.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::super::{Consumer, ConsumerConfig, Reset, StartFrom};
use super::cluster::{Cluster, Reply};
use super::owner::Owner;
use super::wire::{self, Ticket};
use super::{Random, ms};
use crate::api::{Api, Response};
use crate::client::net::{LinkId, NetConfig};
use crate::fetch::FetchConfig;
use crate::group::{Assignor, GroupConfig};
use crate::metadata::TopicPartition;
use crate::offsets::Isolation;

/// A consumer and its owner.
pub(super) struct Client {
    pub(super) consumer: Consumer,
    pub(super) owner: Owner,
    links: BTreeMap<LinkId, u64>,
    pub(super) running: bool,
    /// A stopped process: until then it does nothing, and finds everything that came meanwhile.
    asleep: Duration,
    /// Polls within the present virtual second.
    polls: (u64, u32),
}

struct Conn {
    client: usize,
    link: LinkId,
    node: i32,
    up: bool,
    out: BytesMut,
    /// When the newest bytes arrive, each way: later ones come no sooner.
    there: Duration,
    back: Duration,
    queue: VecDeque<Bytes>,
    busy: bool,
    /// What is sent here goes nowhere.
    hung: bool,
}

enum Step {
    Connect(u64),
    Request(u64, Bytes),
    Answer(u64, Bytes),
    Cut(u64),
    /// A client hears that the connection of this link, which had this number, is gone.
    Lost(usize, LinkId, u64),
    /// A client is told to end, within this many ms.
    Close(usize, u64),
}

/// Everything.
pub(super) struct World {
    pub(super) now: Duration,
    pub(super) random: Random,
    pub(super) cluster: Cluster,
    pub(super) clients: Vec<Client>,
    /// Shortest and longest way of a message, in ms.
    pub(super) delay_ms: (u64, u64),
    conns: BTreeMap<u64, Conn>,
    steps: BTreeMap<(Duration, u64), Step>,
    count: u64,
    /// Committed offsets may fall only where the log was cut or made anew.
    pub(super) may_fall: bool,
    /// Highest offset committed so far, by partition.
    committed: BTreeMap<TopicPartition, i64>,
}

/// More polls than this in a virtual second are a spin.
const POLLS_MAX: u32 = 3000;

pub(super) fn config(assignors: &[Assignor]) -> ConsumerConfig {
    ConsumerConfig {
        group: GroupConfig {
            group: "g".to_owned(),
            instance_id: None,
            session_timeout: ms(6_000),
            rebalance_timeout: ms(10_000),
            heartbeat_interval: ms(500),
            assignors: assignors.to_vec(),
            topics: vec!["t".to_owned()],
            rack: None,
        },
        fetch: FetchConfig {
            bytes_max: 1 << 20,
            partition_bytes_max: 1 << 18,
            wait_max: ms(500),
            isolation: Isolation::ReadUncommitted,
            rack: None,
        },
        from: StartFrom::Earliest,
        out_of_range: Reset::Earliest,
        recreated: Reset::Fail,
        want_end: false,
        revoke_timeout: ms(3_000),
        topic_timeout: ms(5_000),
        seed: 1,
    }
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut cluster = Cluster::new(3);
        cluster.create("t", 6, 1);
        World {
            now: Duration::ZERO,
            random: Random(seed),
            cluster,
            clients: Vec::new(),
            delay_ms: (1, 3),
            conns: BTreeMap::new(),
            steps: BTreeMap::new(),
            count: 0,
            may_fall: false,
            committed: BTreeMap::new(),
        }
    }

    pub(super) fn join(&mut self, mut config: ConsumerConfig, pace: Duration, drain: Duration) -> usize {
        config.seed = self.random.next();
        let net = NetConfig {
            bootstrap: vec![("broker".to_owned(), 9091), ("broker".to_owned(), 9092)],
            client_id: "test".to_owned(),
            request_timeout: ms(3_000),
            reconnect_backoff: ms(50),
            reconnect_backoff_max: ms(1_000),
            metadata_age_max: ms(300_000),
            seed: config.seed,
        };
        let consumer = Consumer::new(net, config, self.now);
        let owner = Owner::new(pace, drain);
        let links = BTreeMap::new();
        self.clients.push(Client {
            consumer,
            owner,
            links,
            running: true,
            asleep: Duration::ZERO,
            polls: (0, 0),
        });
        let client = self.clients.len() - 1;
        self.turn(client);
        client
    }

    // ---- time ----

    /// Runs until `time`.
    pub(super) fn run_to(&mut self, time: Duration) {
        while self.step(time) {}
        self.now = self.now.max(time);
    }

    pub(super) fn run(&mut self, more_ms: u64) {
        self.run_to(self.now + ms(more_ms));
    }

    /// Runs until the condition holds.
    pub(super) fn run_until(&mut self, what: &str, limit_ms: u64, holds: impl Fn(&World) -> bool) {
        let limit = self.now + ms(limit_ms);
        while !holds(self) {
            assert!(self.step(limit), "{what}: not within {limit_ms} ms\n{}", self.story());
        }
    }

    /// What the owners were told, for messages.
    pub(super) fn story(&self) -> String {
        let lines = self.clients.iter().enumerate().flat_map(|(client, state)| {
            let log = state.owner.log.iter().rev().take(30).rev();
            log.map(move |(at, text)| format!("{:>7} client {client}: {text}", at.as_millis()))
        });
        let states = self.clients.iter().enumerate().map(|(client, state)| {
            let consumer = &state.consumer;
            let partitions = consumer.partitions.iter().map(|(at, p)| {
                let committed = self.cluster.committed.get(at);
                let own = state.owner.parts.get(at);
                let (phase, position, paused, fetchable) = (&p.phase, p.position, p.not_before, p.fetchable);
                format!("  {at} {phase:?} at {position} until {paused:?} {fetchable} {own:?} {committed:?}")
            });
            let (identity, unannounced) = (consumer.membership.identity(), consumer.unannounced_since);
            let settled = (consumer.is_settled(), unannounced, state.running, state.asleep);
            format!(
                "client {client}: {identity:?} {settled:?}\n{}",
                partitions.collect::<Vec<_>>().join("\n")
            )
        });
        let logs = self.cluster.topics.values().flat_map(|topic| &topic.logs);
        let logs: Vec<_> = logs.map(|log| (log.leader, log.epoch, log.end)).collect();
        format!(
            "now {} logs {logs:?}\n{}",
            self.now.as_millis(),
            lines.chain(states).collect::<Vec<_>>().join("\n")
        )
    }

    /// One thing happens, if one is due before `limit`.
    fn step(&mut self, limit: Duration) -> bool {
        let step = self.steps.keys().next().map(|(at, _)| *at);
        let broker = [self.cluster.group.deadline(), self.cluster.sessions.deadline()];
        let broker = broker.into_iter().flatten().min();
        let client = (0..self.clients.len()).filter_map(|client| Some((self.due(client)?, client))).min();
        let next = [step, broker, client.map(|(due, _)| due)].into_iter().flatten().min();
        let Some(next) = next.filter(|next| *next <= limit) else { return false };
        self.now = self.now.max(next);
        if let Some((due, client)) = client
            && due <= self.now
        {
            self.turn(client);
        }
        if broker.is_some_and(|due| due <= self.now) {
            self.cluster.group.on_timeout(self.now);
            self.answer_all();
        }
        if let Some((at, key)) = self.steps.keys().next().copied()
            && at <= self.now
            && let Some(step) = self.steps.remove(&(at, key))
        {
            self.take_step(step);
        }
        self.check();
        true
    }

    fn due(&mut self, client: usize) -> Option<Duration> {
        let client = &mut self.clients[client];
        if !client.running {
            return None;
        }
        let due = [client.consumer.net().deadline(), client.consumer.deadline(), client.owner.deadline()];
        // Whoever wakes up looks around.
        let awake = Some(client.asleep).filter(|until| !until.is_zero());
        awake.or_else(|| due.into_iter().flatten().min())
    }

    fn schedule(&mut self, at: Duration, step: Step) {
        self.count += 1;
        self.steps.insert((at, self.count), step);
    }

    fn delay(&mut self) -> Duration {
        let (least, most) = self.delay_ms;
        ms(least) + Duration::from_micros(self.random.below((most - least) * 1000 + 1))
    }

    // ---- a client's turn, as the driver takes it ----

    pub(super) fn turn(&mut self, client: usize) {
        let now = self.now;
        let state = &mut self.clients[client];
        if !state.running || state.asleep > now {
            return;
        }
        state.asleep = Duration::ZERO;
        let second = now.as_secs();
        state.polls = if state.polls.0 == second { (second, state.polls.1 + 1) } else { (second, 1) };
        if state.polls.1 > POLLS_MAX {
            let due = (state.consumer.net().deadline(), state.consumer.deadline(), state.owner.deadline());
            panic!("client {client} spins: due {due:?}\n{}", self.story());
        }
        state.consumer.net().on_timeout(now);
        state.consumer.poll(now);
        state.owner.turn(&mut state.consumer, &mut self.random, now);
        state.consumer.poll(now);
        if state.owner.closed.is_some() {
            state.running = false;
        }
        self.open_and_close(client);
        self.write(client);
    }

    fn open_and_close(&mut self, client: usize) {
        while let Some(link) = self.clients[client].consumer.net().poll_close() {
            if let Some(conn) = self.clients[client].links.remove(&link) {
                self.conns.remove(&conn);
            }
        }
        while let Some((link, _, port)) = self.clients[client].consumer.net().poll_connect() {
            self.count += 1;
            let (id, now) = (self.count, self.now);
            let conn = Conn {
                client,
                link,
                node: i32::from(port) - 9090,
                up: false,
                out: BytesMut::new(),
                there: now,
                back: now,
                queue: VecDeque::new(),
                busy: false,
                hung: false,
            };
            self.conns.insert(id, conn);
            self.clients[client].links.insert(link, id);
            let at = now + self.delay();
            self.schedule(at, Step::Connect(id));
        }
    }

    fn write(&mut self, client: usize) {
        let links: Vec<(LinkId, u64)> =
            self.clients[client].links.iter().map(|(link, conn)| (*link, *conn)).collect();
        for (link, id) in links {
            let consumer = &mut self.clients[client].consumer;
            let bytes = consumer.net().outgoing(link).to_vec();
            consumer.net().written(link, bytes.len());
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            conn.out.extend_from_slice(&bytes);
            for frame in wire::take_frames(&mut conn.out) {
                self.check_request(client, &frame);
                let delay = self.delay();
                let Some(conn) = self.conns.get_mut(&id) else { continue };
                conn.there = conn.there.max(self.now + delay);
                let at = conn.there;
                self.schedule(at, Step::Request(id, frame));
            }
        }
    }

    // ---- the wires ----

    fn take_step(&mut self, step: Step) {
        let hearer = match &step {
            Step::Connect(id) | Step::Answer(id, _) | Step::Cut(id) => self.conns.get(id).map(|c| c.client),
            Step::Lost(client, ..) | Step::Close(client, _) => Some(*client),
            Step::Request(..) => None,
        };
        if let Some(until) = hearer.map(|client| self.clients[client].asleep)
            && until > self.now
        {
            return self.schedule(until, step);
        }
        match step {
            Step::Connect(id) => {
                let Some(conn) = self.conns.get_mut(&id) else { return };
                if !self.cluster.nodes.get(&conn.node).copied().unwrap_or(false) {
                    return self.drop_conn(id);
                }
                conn.up = true;
                let (client, link) = (conn.client, conn.link);
                self.clients[client].consumer.net().on_connected(link, self.now);
                self.turn(client);
            }
            Step::Request(id, frame) => {
                if let Some(conn) = self.conns.get_mut(&id)
                    && !conn.hung
                {
                    conn.queue.push_back(frame);
                    self.serve(id);
                }
            }
            Step::Answer(id, bytes) => self.deliver(id, &bytes),
            Step::Cut(id) => self.drop_conn(id),
            Step::Lost(client, link, id) => self.tell_lost(client, link, id),
            Step::Close(client, limit_ms) => self.close(client, limit_ms),
        }
        self.answer_all();
    }

    fn deliver(&mut self, id: u64, mut bytes: &[u8]) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (client, link) = (conn.client, conn.link);
        while !bytes.is_empty() {
            let Some(space) = self.clients[client].consumer.net().space(link) else { return };
            let count = bytes.len().min(space.len());
            space[..count].copy_from_slice(&bytes[..count]);
            self.clients[client].consumer.net().received(link, count, self.now);
            bytes = &bytes[count..];
        }
        self.turn(client);
    }

    fn serve(&mut self, id: u64) {
        while let Some(conn) = self.conns.get_mut(&id)
            && !conn.busy
            && let Some(frame) = conn.queue.pop_front()
        {
            conn.busy = true;
            let (request, ticket) = wire::decode(&frame, id, conn.client, conn.node);
            match self.cluster.handle(request, &ticket, self.now) {
                Reply::Now(response) => self.answer(&ticket, &response),
                Reply::Later => {}
            }
        }
    }

    fn answer(&mut self, ticket: &Ticket, response: &Response) {
        let delay = self.delay();
        let Some(conn) = self.conns.get_mut(&ticket.conn) else { return };
        conn.busy = false;
        conn.back = conn.back.max(self.now + delay);
        let at = conn.back;
        self.schedule(at, Step::Answer(ticket.conn, wire::encode(response, ticket)));
    }

    /// Tells what the group and the fetches have to say by now.
    pub(super) fn answer_all(&mut self) {
        loop {
            let mut answers = std::mem::take(&mut self.cluster.group.answers);
            answers.extend(self.cluster.fetch_answers(self.now));
            if answers.is_empty() {
                return;
            }
            for (ticket, response) in answers {
                self.answer(&ticket, &response);
                self.serve(ticket.conn);
            }
        }
    }

    fn drop_conn(&mut self, id: u64) {
        let Some(conn) = self.conns.remove(&id) else { return };
        let asleep = self.clients[conn.client].asleep;
        if asleep > self.now {
            return self.schedule(asleep, Step::Lost(conn.client, conn.link, id));
        }
        self.tell_lost(conn.client, conn.link, id);
    }

    fn tell_lost(&mut self, client: usize, link: LinkId, id: u64) {
        let state = &mut self.clients[client];
        // It may have given up that connection by itself.
        if state.links.get(&link) == Some(&id) {
            state.links.remove(&link);
            state.consumer.net().on_disconnected(link, "cut", self.now);
            self.turn(client);
        }
    }

    // ---- what goes wrong ----

    /// Cuts connections: all of them that the condition names (client, node).
    pub(super) fn cut(&mut self, which: impl Fn(usize, i32) -> bool) {
        let ids: Vec<u64> =
            self.conns.iter().filter(|(_, c)| which(c.client, c.node)).map(|(id, _)| *id).collect();
        for id in ids {
            self.drop_conn(id);
        }
    }

    /// Cuts one connection, whichever; its newest answer may be lost with it.
    pub(super) fn cut_one(&mut self) {
        let ids: Vec<u64> = self.conns.keys().copied().collect();
        if let Some(id) = ids.get(self.random.below(ids.len().max(1) as u64) as usize) {
            let at = self.now;
            self.schedule(at, Step::Cut(*id));
        }
    }

    /// A connection goes silent without being closed.
    pub(super) fn hang_one(&mut self) {
        let at = self.random.below(self.conns.len().max(1) as u64) as usize;
        if let Some(conn) = self.conns.values_mut().nth(at) {
            conn.hung = true;
        }
    }

    /// The process is stopped for a time.
    pub(super) fn stop_process(&mut self, client: usize, for_ms: u64) {
        // Never sooner than before: what waits for the wake-up keeps its order.
        let until = self.now + ms(for_ms);
        self.clients[client].asleep = self.clients[client].asleep.max(until);
    }

    /// A broker goes down or comes back.
    pub(super) fn set_node(&mut self, node: i32, up: bool) {
        self.cluster.nodes.insert(node, up);
        if !up {
            self.cluster.sessions.forget(node);
            self.cut(|_, other| other == node);
        }
    }

    pub(super) fn move_coordinator(&mut self, node: i32) {
        self.cluster.coordinator = node;
        self.cluster.group.fail_over(self.now);
        self.answer_all();
    }

    /// The process is gone without a word.
    pub(super) fn kill(&mut self, client: usize) {
        self.clients[client].running = false;
        self.clients[client].links.clear();
        self.conns.retain(|_, conn| conn.client != client);
    }

    /// Stops and closes; a process that is stopped does so when it goes on.
    pub(super) fn close(&mut self, client: usize, limit_ms: u64) {
        let state = &mut self.clients[client];
        if state.asleep > self.now {
            let at = state.asleep;
            return self.schedule(at, Step::Close(client, limit_ms));
        }
        state.consumer.stop();
        let offsets = state.owner.offsets();
        state.consumer.close(offsets, self.now + ms(limit_ms), self.now);
        self.turn(client);
    }

    // ---- invariants ----

    fn check_request(&self, client: usize, frame: &Bytes) {
        if wire::api_of(frame) != Api::OffsetCommit {
            return;
        }
        let consumer = &self.clients[client].consumer;
        let between = consumer.membership.is_between_join_and_sync();
        assert!(!between, "client {client} commits between join and sync\n{}", self.story());
        let (request, _) = wire::decode(frame, 0, client, 0);
        let crate::api::Request::OffsetCommit(request) = request else { unreachable!("a commit") };
        for topic in &request.topics {
            for partition in &topic.partitions {
                let at = TopicPartition::new(topic.name.as_str(), partition.partition_index);
                assert!(
                    consumer.partitions.contains_key(&at),
                    "client {client} commits {at}, which it does not own\n{}",
                    self.story()
                );
            }
        }
    }

    fn check(&mut self) {
        while let Some((client, at, offset)) = self.cluster.stored.pop_front() {
            let done = self.clients[client].owner.done_max.get(&at).copied().unwrap_or(0);
            let begun = self.committed.get(&at).copied().unwrap_or(0);
            assert!(offset <= done.max(begun), "client {client} committed {at}@{offset}, done {done}");
            if !self.may_fall {
                assert!(offset >= begun, "client {client}: {at} falls {begun} to {offset}\n{}", self.story());
            }
            self.committed.insert(at, offset);
        }
        let mut owners: BTreeMap<&TopicPartition, usize> = BTreeMap::new();
        for (client, state) in self.clients.iter().enumerate() {
            let holds = state.consumer.lease_until().is_some_and(|until| until > self.now);
            if !state.running || !holds {
                continue;
            }
            for at in state.owner.parts.keys() {
                if let Some(other) = owners.insert(at, client) {
                    panic!("{at} is owned by {other} and {client}\n{}", self.story());
                }
            }
        }
    }

    /// Whether every partition is owned once, and read, finished and committed to its end.
    pub(super) fn is_converged(&self) -> bool {
        let running = || self.clients.iter().filter(|client| client.running);
        // One that is stopped still believes what it knew before.
        let settled = running().all(|client| client.consumer.is_settled() && client.asleep.is_zero());
        settled
            && self.cluster.topics.iter().all(|(topic, logs)| {
                logs.logs.iter().enumerate().all(|(partition, log)| {
                    let at = TopicPartition::new(topic.as_str(), partition as i32);
                    let owners = running().filter(|client| client.owner.parts.contains_key(&at)).count();
                    let committed = self.cluster.committed.get(&at).map_or(0, |(offset, _)| *offset);
                    owners == 1 && committed == log.end
                })
            })
    }
}
