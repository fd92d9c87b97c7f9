//! What all nodes share, as the API handlers see it.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::ResponseHeader;
use kafka_protocol::protocol::{Encodable, HeaderVersion, StrBytes};
use uuid::Uuid;

use super::api::Ticket;
use super::cluster::ClusterConfig;
use super::fetches::Fetches;
use super::group::Groups;
use super::topics::{Partition, Topic, Topics};
use super::transactions::Transactions;
use crate::pool::hash::fnv32a;

/// A node of the cluster.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: i32,
    pub(crate) host: StrBytes,
    pub(crate) port: u16,
    /// A node that is down leads nothing, coordinates nothing and is left out of the metadata.
    pub(crate) up: bool,
}

/// What became of a request that was parked or answered.
#[derive(Debug)]
pub(crate) enum Reply {
    Frame(Bytes),
    /// Kafka answers a Produce with acks=0 by nothing at all.
    Nothing,
    /// ... and closes the connection if it went wrong, so that the producer looks for the leader anew.
    Close,
    /// An answer that cannot be encoded: a bug of the broker. The connection is cut.
    Bug(String),
}

/// Everything but the connections.
pub(crate) struct State {
    pub(crate) config: ClusterConfig,
    /// Time since an arbitrary start.
    pub(crate) now: Duration,
    pub(crate) nodes: Vec<Node>,
    pub(crate) topics: Topics,
    pub(crate) fetches: Fetches,
    pub(crate) transactions: Transactions,
    pub(crate) groups: Groups<Ticket>,
    /// Coordinators that were moved: how many nodes on from their first place. By key: a group or transactional id.
    coordinator_shifts: BTreeMap<String, usize>,
    /// Answers on their way to the connections.
    pub(super) replies: Vec<(Ticket, Reply)>,
    random: u64,
}

impl State {
    pub(super) fn new(config: ClusterConfig) -> Self {
        let nodes = (1..).zip(&config.nodes).map(|(id, (host, port))| Node {
            id,
            host: StrBytes::from_string(host.clone()),
            port: *port,
            up: true,
        });
        let mut state = State {
            nodes: nodes.collect(),
            now: Duration::ZERO,
            topics: Topics::default(),
            fetches: Fetches::default(),
            transactions: Transactions::default(),
            groups: Groups::new(config.initial_rebalance_delay),
            coordinator_shifts: BTreeMap::new(),
            replies: Vec::new(),
            random: config.seed,
            config,
        };
        for (name, partitions) in state.config.topics.clone() {
            // Checked where the configuration comes from; a second topic of the name changes nothing.
            let _ = state.create_topic(&name, partitions, 1);
        }
        state
    }

    /// Wall clock time in milliseconds, for record timestamps.
    pub(crate) fn wall_ms(&self) -> i64 {
        let elapsed_ms = i64::try_from(self.now.as_millis()).unwrap_or(i64::MAX);
        self.config.wall_ms_at_zero.saturating_add(elapsed_ms)
    }

    /// The next number of the seeded sequence (splitmix64).
    pub(crate) fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A new id for a topic or for the tail of a member's name: the form of a random UUID.
    pub(crate) fn fresh_id(&mut self) -> Uuid {
        let bits = u128::from(self.random()) << 64 | u128::from(self.random());
        uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
    }

    /// One of these, by chance.
    pub(super) fn any_of<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        if all.is_empty() { None } else { Some(all[self.random() as usize % all.len()].clone()) }
    }

    /// When something is to happen though no request came.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let all = [self.fetches.deadline(), self.transactions.deadline(), self.groups_deadline()];
        all.into_iter().flatten().min()
    }

    // ---- answers ----

    /// Answers a request, now or after it was parked.
    pub(crate) fn reply<R: Encodable + HeaderVersion>(&mut self, ticket: Ticket, response: &R) {
        let reply = match frame(ticket, response) {
            Ok(frame) => Reply::Frame(frame),
            Err(error) => {
                Reply::Bug(format!("{} version {}: {error}", std::any::type_name::<R>(), ticket.version))
            }
        };
        self.replies.push((ticket, reply));
    }

    /// Ends a request that gets no answer.
    pub(crate) fn reply_nothing(&mut self, ticket: Ticket) {
        self.replies.push((ticket, Reply::Nothing));
    }

    /// Nobody waits for the answer any more.
    pub(super) fn forget(&mut self, ticket: Ticket) {
        self.fetches.forget(ticket);
    }

    /// Ends a request, and its connection with it.
    pub(crate) fn reply_by_closing(&mut self, ticket: Ticket) {
        self.replies.push((ticket, Reply::Close));
    }

    // ---- nodes ----

    pub(crate) fn node(&self, id: i32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    pub(crate) fn nodes_up(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.up)
    }

    /// The controller: the first node that is up.
    pub(crate) fn controller(&self) -> i32 {
        self.nodes_up().next().map_or(-1, |node| node.id)
    }

    /// Takes a node down and gives what it led to others that are up. False if it was down.
    pub(super) fn stop_node(&mut self, id: i32) -> bool {
        let coordinators = self.group_coordinators();
        let Some(node) = self.nodes.iter_mut().find(|node| node.id == id && node.up) else { return false };
        node.up = false;
        self.fetches.forget_node(id);
        let up: Vec<i32> = self.nodes_up().map(|node| node.id).collect();
        self.lead_anew(id, &up);
        self.follow_coordinators(&coordinators);
        true
    }

    /// Brings a node back. What nobody leads since all were down, it leads.
    pub(super) fn start_node(&mut self, id: i32) {
        let coordinators = self.group_coordinators();
        let Some(node) = self.nodes.iter_mut().find(|node| node.id == id && !node.up) else { return };
        node.up = true;
        let down: Vec<i32> = self.nodes.iter().filter(|node| !node.up).map(|node| node.id).collect();
        // Partitions that were added meanwhile never had a leader.
        for node in down.into_iter().chain([-1]) {
            self.lead_anew(node, &[id]);
        }
        self.follow_coordinators(&coordinators);
    }

    /// Gives the partitions of a node to others in turn; they stay where they are if there is no other.
    fn lead_anew(&mut self, from: i32, to: &[i32]) {
        let led: Vec<(String, i32)> = self
            .topics
            .iter()
            .flat_map(|topic| topic.partitions.iter().zip(0..).map(move |found| (topic, found)))
            .filter(|(_, (partition, _))| partition.leader == from)
            .map(|(topic, (_, index))| (topic.name.to_string(), index))
            .collect();
        for ((topic, partition), turn) in led.into_iter().zip(0..) {
            if let Some(to) = to.get(turn % to.len().max(1)) {
                self.move_leader(&topic, partition, *to);
            }
        }
    }

    // ---- topics ----

    /// Makes a topic; leaders in turn over the nodes.
    ///
    /// # Errors
    /// A Kafka error code.
    pub(crate) fn create_topic(&mut self, name: &str, partitions: i32, replicas: usize) -> Result<(), i16> {
        if !(1..=super::topics::PARTITIONS_MAX).contains(&partitions) {
            return Err(ResponseError::InvalidPartitions.code());
        }
        let id = self.fresh_id();
        self.topics.create(name, id)?;
        self.add_partitions(name, partitions, replicas);
        Ok(())
    }

    /// Adds partitions until there are `count`.
    pub(crate) fn add_partitions(&mut self, name: &str, count: i32, replicas: usize) {
        let nodes: Vec<i32> = self.nodes_up().map(|node| node.id).collect();
        let Some(topic) = self.topics.get_mut(name) else { return };
        // Where two topics of one partition each begin at different nodes, load spreads.
        let first = topic.id.as_u128() as usize % nodes.len().max(1);
        for index in topic.partitions.len()..usize::try_from(count).unwrap_or(0) {
            let place = |turn: usize| nodes.get((first + index + turn) % nodes.len().max(1)).copied();
            let replicas: Vec<i32> = (0..replicas.clamp(1, nodes.len().max(1))).filter_map(place).collect();
            let leader = replicas.first().copied().unwrap_or(-1);
            topic.partitions.push(Partition {
                leader,
                leader_epoch: 0,
                replicas,
                log: super::log::Log::new(),
            });
        }
    }

    /// Deletes a topic with its records. Whoever waits for them is told.
    pub(crate) fn delete_topic(&mut self, name: &str) -> Option<Topic> {
        let topic = self.topics.delete(name)?;
        for index in 0..topic.partitions.len() {
            self.fetches.touch(name, i32::try_from(index).unwrap_or(i32::MAX));
        }
        self.groups.on_topic_deleted(name);
        Some(topic)
    }

    /// The partition of a request, if `node` leads it under that epoch (−1: any).
    ///
    /// # Errors
    /// The Kafka error code that says why not.
    pub(crate) fn led_partition(
        &mut self,
        topic: &str,
        partition: i32,
        node: i32,
        leader_epoch: i32,
    ) -> Result<&mut Partition, i16> {
        let found = self.topics.partition_mut(topic, partition);
        let found = found.ok_or(ResponseError::UnknownTopicOrPartition.code())?;
        if found.leader != node {
            Err(ResponseError::NotLeaderOrFollower.code())
        } else if leader_epoch >= 0 && leader_epoch < found.leader_epoch {
            Err(ResponseError::FencedLeaderEpoch.code())
        } else if leader_epoch > found.leader_epoch {
            Err(ResponseError::UnknownLeaderEpoch.code())
        } else {
            Ok(found)
        }
    }

    /// Gives a partition to another node that is up (or to the same one), under the next leader epoch.
    pub(crate) fn move_leader(&mut self, topic: &str, partition: i32, to: i32) {
        if let Some(found) = self.topics.partition_mut(topic, partition) {
            found.leader = to;
            found.leader_epoch += 1;
            found.log.begin_epoch(found.leader_epoch);
            if !found.replicas.contains(&to) {
                found.replicas = vec![to];
            }
            self.fetches.touch(topic, partition);
        }
    }

    /// To be called when a partition has new records: fetches wait for them, and old ones may have to go.
    pub(crate) fn on_appended(&mut self, topic: &str, partition: i32) {
        self.fetches.touch(topic, partition);
        self.retain();
    }

    /// Drops the oldest records of the largest partitions while there are more bytes than may be kept.
    fn retain(&mut self) {
        loop {
            let all = self.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
            let bytes: u64 = all.map(|partition| partition.log.bytes()).sum();
            if bytes <= self.config.retain_bytes {
                return;
            }
            let all = self.topics.iter_mut().flat_map(|topic| &mut topic.partitions);
            let Some(largest) = all.max_by_key(|partition| partition.log.bytes()) else { return };
            let before = largest.log.bytes();
            largest.log.trim_to_bytes(before.saturating_sub(bytes - self.config.retain_bytes));
            if largest.log.bytes() == before {
                return;
            }
        }
    }

    // ---- coordinators ----

    /// The node that coordinates a group or transactional id; −1 while all are down.
    pub(crate) fn coordinator_of(&self, key: &str) -> i32 {
        let shift = self.coordinator_shifts.get(key).copied().unwrap_or(0);
        // Any fixed spread does.
        let first = fnv32a(key.as_bytes()) as usize % self.nodes.len() + shift;
        let mut places = (0..self.nodes.len()).map(|turn| &self.nodes[(first + turn) % self.nodes.len()]);
        places.find(|node| node.up).map_or(-1, |node| node.id)
    }

    /// Moves a coordinator to the next node.
    pub(crate) fn move_coordinator(&mut self, key: &str) {
        let coordinators = self.group_coordinators();
        *self.coordinator_shifts.entry(key.to_owned()).or_default() += 1;
        self.follow_coordinators(&coordinators);
    }

    /// NOT_COORDINATOR, if another node than `node` coordinates the group or transactional id.
    pub(crate) fn coordinator_error(&self, key: &str, node: i32) -> Option<i16> {
        (self.coordinator_of(key) != node).then_some(ResponseError::NotCoordinator.code())
    }
}

/// Length, header and body of an answer.
fn frame<R: Encodable + HeaderVersion>(
    ticket: Ticket,
    response: &R,
) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
    let header_version = R::header_version(ticket.version);
    let header = ResponseHeader::default().with_correlation_id(ticket.correlation);
    let size = header.compute_size(header_version)? + response.compute_size(ticket.version)?;
    let mut out = BytesMut::with_capacity(4 + size);
    out.put_i32(i32::try_from(size)?);
    header.encode(&mut out, header_version)?;
    response.encode(&mut out, ticket.version)?;
    Ok(out.freeze())
}
