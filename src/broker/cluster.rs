//! The cluster: connections on the outside, the state that all nodes share on the inside.
//!
//! Driven like this: [`Cluster::connect`] for each accepted connection, [`Cluster::receive`] for its bytes,
//! [`Cluster::poll`] at each [`Cluster::deadline`], and after any of these what [`Cluster::outgoing`] and
//! [`Cluster::next_close`] say. A client's fault (a frame that cannot be read, a version that is not served) closes
//! its connection and is told by [`Cluster::next_notice`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::ApiKey;

use super::api::{self, Call, Serve, Ticket, api_versions};
use super::connection::{Connection, Current, Fate};
use super::coordinator::GroupSnapshot;
use super::fault::{Action, Event, Fault, Faults};
use super::state::{Reply, State};

/// Kafka's cluster id.
pub(crate) const CLUSTER_ID: &str = "keylane-in-memory";

/// Names a connection; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Host and port of each node, as clients are told; the nodes are numbered from 1.
    pub nodes: Vec<(String, u16)>,
    /// Topics to begin with: name and number of partitions.
    pub topics: Vec<(String, i32)>,
    /// Partitions of topics that are made because a client names them; `None`: none are made.
    pub auto_create_partitions: Option<i32>,
    /// Bytes of batches kept over all partitions; beyond that the oldest of the largest partition go.
    pub retain_bytes: u64,
    /// `message.max.bytes`: the largest batch, bytes.
    pub max_message_bytes: usize,
    /// `group.initial.rebalance.delay.ms`: how long the first member of a group waits for others.
    pub initial_rebalance_delay: Duration,
    /// Wall clock time in milliseconds when `now` is zero.
    pub wall_ms_at_zero: i64,
    /// What is to go wrong.
    pub faults: Vec<Fault>,
    /// Of ids and injected faults.
    pub seed: u64,
}

impl Default for ClusterConfig {
    /// One node on 127.0.0.1:9092, no topics, Kafka's defaults where there are any.
    fn default() -> Self {
        ClusterConfig {
            nodes: vec![("127.0.0.1".to_owned(), 9092)],
            topics: Vec::new(),
            auto_create_partitions: Some(6),
            retain_bytes: 256 << 20,
            max_message_bytes: 1_048_588,
            initial_rebalance_delay: Duration::ZERO,
            wall_ms_at_zero: 0,
            faults: Vec::new(),
            seed: 1,
        }
    }
}

/// The nodes of a cluster and everything on them.
pub struct Cluster {
    pub(super) state: State,
    connections: BTreeMap<ConnId, Connection>,
    faults: Faults,
    /// Requests that a fault holds back, and until when.
    delayed: BTreeMap<(Duration, ConnId), Bytes>,
    /// When nodes that are down come back.
    back: BTreeMap<i32, Duration>,
    closing: VecDeque<ConnId>,
    notices: VecDeque<String>,
    next_conn: u64,
    next_serial: u64,
}

impl Cluster {
    /// A cluster with all nodes up.
    ///
    /// # Panics
    /// There is no node.
    pub fn new(config: ClusterConfig) -> Self {
        assert!(!config.nodes.is_empty(), "a cluster has a node");
        Cluster {
            faults: Faults::new(config.faults.clone()),
            state: State::new(config),
            connections: BTreeMap::new(),
            delayed: BTreeMap::new(),
            back: BTreeMap::new(),
            closing: VecDeque::new(),
            notices: VecDeque::new(),
            next_conn: 1,
            next_serial: 1,
        }
    }

    /// Time does not go back.
    pub(super) fn set_now(&mut self, now: Duration) {
        self.state.now = self.state.now.max(now);
    }

    /// A client has connected to a node. Its address is told by DescribeGroups. `None`: the node is down.
    pub fn connect(&mut self, node: i32, client_host: &str, now: Duration) -> Option<ConnId> {
        self.set_now(now);
        if !self.state.node(node).is_some_and(|node| node.up) {
            return None;
        }
        let id = ConnId(self.next_conn);
        self.next_conn += 1;
        self.connections.insert(id, Connection::new(node, client_host.to_owned()));
        Some(id)
    }

    /// Bytes came, cut anywhere.
    pub fn receive(&mut self, conn: ConnId, bytes: &[u8], now: Duration) {
        self.set_now(now);
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        connection.receive(bytes);
        self.take_frames(conn);
        self.settle();
    }

    /// Whether a connection has so much to do that nothing more is to be read from it now.
    pub fn is_full(&self, conn: ConnId) -> bool {
        self.connections.get(&conn).is_some_and(Connection::is_full)
    }

    /// The connection is gone.
    pub fn disconnect(&mut self, conn: ConnId, now: Duration) {
        self.set_now(now);
        self.drop_connection(conn);
    }

    fn drop_connection(&mut self, conn: ConnId) {
        let Some(connection) = self.connections.remove(&conn) else { return };
        if let Some(current) = connection.current {
            self.state.forget(current.ticket);
        }
    }

    /// What is to be written to a connection next; empty if there is nothing.
    pub fn outgoing(&self, conn: ConnId) -> &[u8] {
        self.connections.get(&conn).map_or(&[], Connection::outgoing)
    }

    /// So many of the outgoing bytes were written.
    pub fn written(&mut self, conn: ConnId, count: usize) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.written(count);
            self.close_if_done(conn);
        }
    }

    /// Connections with something to write.
    pub fn writable(&self) -> impl Iterator<Item = ConnId> {
        let waiting = self.connections.iter().filter(|(_, connection)| !connection.outgoing().is_empty());
        waiting.map(|(id, _)| *id)
    }

    /// A connection that the driver is to close now.
    pub fn next_close(&mut self) -> Option<ConnId> {
        self.closing.pop_front()
    }

    /// Something that a person may want to know, in a line.
    pub fn next_notice(&mut self) -> Option<String> {
        self.notices.pop_front()
    }

    /// Time has passed.
    pub fn poll(&mut self, now: Duration) {
        self.set_now(now);
        self.poll_faults();
        self.state.poll_transactions();
        self.settle();
    }

    /// When [`Cluster::poll`] has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        let delayed = self.delayed.first_key_value().map(|((due, _), _)| *due);
        let back = self.back.values().min().copied();
        [self.state.deadline(), delayed, back, self.faults.deadline()].into_iter().flatten().min()
    }

    // ---- what happens to a cluster ----

    /// Gives a partition to another node that is up, or to the same one under a new epoch if there is no other.
    pub fn move_leader(&mut self, topic: &str, partition: i32) {
        let found = self.state.topics.partition(topic, partition);
        let Some(leader) = found.map(|found| found.leader) else { return };
        let others: Vec<i32> = self.state.nodes_up().map(|node| node.id).filter(|id| *id != leader).collect();
        let to = if others.is_empty() { leader } else { others[self.state.random() as usize % others.len()] };
        self.state.move_leader(topic, partition, to);
        self.settle();
    }

    /// An unclean election: a partition loses the records from `offset` on, then as [`Cluster::move_leader`].
    pub fn truncate(&mut self, topic: &str, partition: i32, offset: i64) {
        let found = self.state.topics.partition_mut(topic, partition);
        if let Some(found) = found {
            found.log.truncate_to(offset);
            self.move_leader(topic, partition);
        }
    }

    /// Moves the coordinator of a group or transactional id to the next node.
    pub fn move_coordinator(&mut self, key: &str) {
        self.state.move_coordinator(key);
        self.settle();
    }

    /// Makes the members of a group join again, as if one had come or gone.
    pub fn force_rebalance(&mut self, group: &str) {
        self.state.force_rebalance(group);
        self.settle();
    }

    /// Ends the session of a member of a group.
    pub fn expire_member(&mut self, group: &str, member: &str) {
        self.state.expire_member(group, member);
        self.settle();
    }

    /// A group as it is now, with its committed offsets; `None` if there is none.
    pub fn group(&self, group: &str) -> Option<GroupSnapshot> {
        self.state.group_snapshot(group)
    }

    /// Cuts a node's connections and refuses new ones; others lead and coordinate what it did.
    pub fn stop_node(&mut self, node: i32, now: Duration) {
        self.set_now(now);
        if !self.state.stop_node(node) {
            return;
        }
        let of_node = self.connections.iter().filter(|(_, connection)| connection.node == node);
        for conn in of_node.map(|(id, _)| *id).collect::<Vec<ConnId>>() {
            self.close(conn);
        }
        self.settle();
    }

    /// The node listens again.
    pub fn start_node(&mut self, node: i32, now: Duration) {
        self.set_now(now);
        self.state.start_node(node);
        self.back.remove(&node);
        self.settle();
    }

    /// How often each fault has struck, by its text.
    pub fn faults_injected(&self) -> BTreeMap<String, u64> {
        self.faults.counts()
    }

    fn poll_faults(&mut self) {
        let now = self.state.now;
        let state = &mut self.state;
        for event in self.faults.take_due(now, || state.random()) {
            self.strike(event);
        }
        let back: Vec<i32> =
            self.back.iter().filter(|(_, due)| **due <= now).map(|(node, _)| *node).collect();
        for node in back {
            self.start_node(node, now);
        }
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let ((_, conn), frame) = entry.remove_entry();
            let Some(connection) = self.connections.get_mut(&conn) else { continue };
            connection.held = false;
            self.serve_or_close(conn, frame, false);
            self.deliver_all();
            self.take_frames(conn);
        }
    }

    fn strike(&mut self, event: Event) {
        let now = self.state.now;
        match event {
            Event::MoveLeader => {
                let partitions = self.state.topics.iter().flat_map(|topic| {
                    let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
                    (0..count).map(|partition| (topic.name.to_string(), partition))
                });
                let partitions: Vec<(String, i32)> = partitions.collect();
                if let Some((topic, partition)) = self.state.any_of(&partitions) {
                    self.move_leader(&topic, partition);
                }
            }
            Event::MoveCoordinator => {
                let groups = self.state.group_names();
                if let Some(group) = self.state.any_of(&groups) {
                    self.move_coordinator(&group);
                }
            }
            Event::Rebalance => {
                let groups = self.state.group_names();
                if let Some(group) = self.state.any_of(&groups) {
                    self.state.force_rebalance(&group);
                }
            }
            Event::Restart(away) => {
                let nodes: Vec<i32> = self.state.nodes_up().map(|node| node.id).collect();
                if let Some(node) = self.state.any_of(&nodes) {
                    self.stop_node(node, now);
                    self.back.insert(node, now + away);
                }
            }
        }
    }

    /// Lets everything happen that can happen now: answers are sent, the next requests of their connections taken up,
    /// which may let others be answered.
    pub(super) fn settle(&mut self) {
        loop {
            self.state.poll_fetches();
            self.state.poll_groups();
            let replies = std::mem::take(&mut self.state.replies);
            if replies.is_empty() {
                return;
            }
            for (ticket, reply) in replies {
                if self.deliver(ticket, reply) {
                    self.take_frames(ticket.conn);
                }
            }
        }
    }

    /// Sends an answer. False if nobody waits for it.
    fn deliver(&mut self, ticket: Ticket, reply: Reply) -> bool {
        let Some(connection) = self.connections.get_mut(&ticket.conn) else { return false };
        let Some(current) = connection.current.take_if(|current| current.ticket == ticket) else {
            debug_assert!(false, "an answer to a request that is not open: {ticket:?}");
            return false;
        };
        match (reply, current.fate) {
            (Reply::Frame(frame), Fate::Send) => connection.send(frame),
            (Reply::Frame(frame), Fate::Cut) => {
                connection.send(frame.slice(..frame.len() / 2));
                connection.closing = true;
            }
            (Reply::Nothing, Fate::Send) => {}
            (Reply::Close, _) | (_, Fate::Lose | Fate::Cut) => connection.closing = true,
            (Reply::Bug(why), _) => {
                debug_assert!(false, "an answer that cannot be encoded: {why}");
                connection.closing = true;
                self.notices.push_back(format!("a bug of this broker: an answer cannot be encoded: {why}"));
            }
        }
        self.close_if_done(ticket.conn);
        true
    }

    fn close_if_done(&mut self, conn: ConnId) {
        if self.connections.get(&conn).is_some_and(Connection::is_done) {
            self.close(conn);
        }
    }

    fn close(&mut self, conn: ConnId) {
        self.drop_connection(conn);
        self.closing.push_back(conn);
    }

    /// Serves the requests of a connection until one has to wait.
    fn take_frames(&mut self, conn: ConnId) {
        loop {
            let Some(connection) = self.connections.get_mut(&conn) else { return };
            match connection.next_frame() {
                Ok(None) => return,
                Ok(Some(frame)) => self.serve_or_close(conn, frame, true),
                Err(length) => {
                    self.refuse_connection(conn, &format!("a frame of {length} bytes is announced"))
                }
            }
            // An answer that is there at once is sent at once, so that the next request can be taken up.
            self.deliver_all();
        }
    }

    fn deliver_all(&mut self) {
        for (ticket, reply) in std::mem::take(&mut self.state.replies) {
            self.deliver(ticket, reply);
        }
    }

    fn refuse_connection(&mut self, conn: ConnId, why: &str) {
        let host = self.connections.get(&conn).map_or("", |connection| &connection.client_host);
        self.notices.push_back(format!("closed a connection from {host}: {why}"));
        self.close(conn);
    }

    fn serve_or_close(&mut self, conn: ConnId, frame: Bytes, with_faults: bool) {
        if let Err(why) = self.serve(conn, frame, with_faults) {
            self.refuse_connection(conn, &why);
        }
    }

    fn serve(&mut self, conn: ConnId, frame: Bytes, with_faults: bool) -> Result<(), String> {
        let mut body = frame.clone();
        let (key, header) = api::read_header(&mut body)?;
        let version = header.request_api_version;
        let client_id = header.client_id.as_deref().unwrap_or_default();
        let served = api::versions(key).is_some_and(|(min, max)| (min..=max).contains(&version));
        if !served && key != ApiKey::ApiVersions {
            return Err(format!(
                "client {client_id:?} asked for {key:?} version {version}, which is not served"
            ));
        }
        let now = self.state.now;
        let state = &mut self.state;
        let mut strike = || self.faults.on_request(key, client_id, now, || state.random());
        let action = if with_faults { strike() } else { None };
        let Some(connection) = self.connections.get_mut(&conn) else { return Ok(()) };
        let (mut serve, mut fate) = (Serve::Handle, Fate::Send);
        match action {
            None => {}
            Some(Action::Error(code)) => serve = Serve::Refuse(code),
            Some(Action::Lose) => fate = Fate::Lose,
            Some(Action::Cut) => fate = Fate::Cut,
            Some(Action::Reset) => {
                self.close(conn);
                return Ok(());
            }
            Some(Action::Drop) => {
                connection.held = true;
                return Ok(());
            }
            Some(Action::Delay(least, most)) => {
                connection.held = true;
                let spread_us = u64::try_from((most - least).as_micros()).unwrap_or(u64::MAX - 1);
                let delay = least + Duration::from_micros(self.state.random() % (spread_us + 1));
                self.delayed.insert((now + delay, conn), frame);
                return Ok(());
            }
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let ticket_version = if served { version } else { 0 };
        let ticket = Ticket { conn, serial, correlation: header.correlation_id, version: ticket_version };
        connection.current = Some(Current { ticket, fate });
        if !served {
            self.state.reply(ticket, &api_versions::unsupported());
            return Ok(());
        }
        let (node, client_host) = (connection.node, connection.client_host.clone());
        let call = Call { ticket, node, version, client_id, client_host: &client_host };
        api::serve(&mut self.state, &call, key, body, serve)
            .map_err(|why| format!("{key:?} version {version} of client {client_id:?} cannot be read: {why}"))
    }
}
