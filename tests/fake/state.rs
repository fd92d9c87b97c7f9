//! What the fake cluster holds: nodes, topics, groups, fetch sessions, the request log. Plain data behind one mutex;
//! tests reach it through `Fake::with` and hooks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::{ApiKey, BrokerId, GroupId, TopicName};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::batch::{Batch, Field};
use super::group::Group;
use super::log::Log;
use super::requests::{FetchAsk, Request};
use super::versions::{Kafka, Range};

pub struct Partition {
    /// Node id, -1 for none.
    pub leader: i32,
    pub epoch: i32,
    pub log: Log,
}

pub struct Topic {
    pub id: Uuid,
    pub partitions: Vec<Partition>,
}

pub struct Node {
    pub id: i32,
    pub port: u16,
    /// Whether Metadata names it; a stopped node stays listed for a while in a real cluster too.
    pub listed: bool,
}

/// What a fetch session remembers of a partition.
#[derive(Clone, Debug)]
pub struct SessionPartition {
    pub topic: String,
    pub topic_id: Uuid,
    pub partition: i32,
    pub offset: i64,
    pub epoch: i32,
    pub bytes_max: i32,
    /// The high watermark last told, so that an unchanged partition can be left out.
    pub told: Option<(i64, i64)>,
}

#[derive(Clone, Debug)]
pub struct Session {
    pub node: i32,
    /// The epoch that the next request must carry.
    pub epoch: i32,
    pub partitions: Vec<SessionPartition>,
}

pub struct State {
    pub kafka: Kafka,
    /// Ranges that differ from the version's own; `None` takes an API away.
    pub ranges: BTreeMap<i16, Option<Range>>,
    pub nodes: Vec<Node>,
    pub topics: BTreeMap<String, Topic>,
    pub groups: BTreeMap<String, Group>,
    /// The node of every group.
    pub coordinator: i32,
    /// Whether members that stop speaking are removed after their session timeout.
    pub expire_sessions: bool,
    /// How long the first join of an empty group waits for others (`group.initial.rebalance.delay.ms`).
    pub initial_rebalance_delay: Duration,
    pub sessions: BTreeMap<i32, Session>,
    pub requests: Vec<Arc<Request>>,
    /// Requests so far by API number.
    pub counts: BTreeMap<i16, usize>,
    /// Every position asked for, sessions resolved.
    pub fetch_asks: Vec<FetchAsk>,
    /// Bugs of the client or of the fake: an undecodable request, a version never offered, an answer that cannot be
    /// encoded. A test fails on them when the fake is dropped.
    pub faults: Vec<String>,
    /// As `auto.create.topics.enable`: on, so that a client that forgets to say no is found out.
    pub auto_create: bool,
    /// Off: every fetch answer has session id 0, as from a broker whose session cache is full.
    pub fetch_sessions: bool,
    pub next_id: i64,
    pub next_producer_id: i64,
}

impl State {
    pub fn new(kafka: Kafka) -> Self {
        Self {
            kafka,
            ranges: BTreeMap::new(),
            nodes: Vec::new(),
            topics: BTreeMap::new(),
            groups: BTreeMap::new(),
            coordinator: 1,
            expire_sessions: true,
            initial_rebalance_delay: Duration::ZERO,
            sessions: BTreeMap::new(),
            requests: Vec::new(),
            counts: BTreeMap::new(),
            fetch_asks: Vec::new(),
            faults: Vec::new(),
            auto_create: true,
            fetch_sessions: true,
            next_id: 1,
            next_producer_id: 1000,
        }
    }

    /// A number not given out before.
    pub fn fresh(&mut self) -> i64 {
        self.next_id += 1;
        self.next_id
    }

    /// Makes a topic, leaders spread over the nodes in turn.
    pub fn create_topic(&mut self, name: &str, partitions: usize) -> Uuid {
        let id = Uuid::from_u128(0xfa4e << 112 | self.fresh() as u128);
        self.topics.insert(name.to_owned(), Topic { id, partitions: Vec::new() });
        self.add_partitions(name, partitions);
        id
    }

    /// The same name under a new id, empty, with as many partitions.
    pub fn recreate_topic(&mut self, name: &str) -> Uuid {
        let count = self.topic(name).partitions.len();
        self.create_topic(name, count)
    }

    /// Changes the id and leaves the logs as they are.
    pub fn change_topic_id(&mut self, name: &str) -> Uuid {
        let id = Uuid::from_u128(0xfa4e << 112 | self.fresh() as u128);
        self.topic(name).id = id;
        id
    }

    pub fn add_partitions(&mut self, name: &str, count: usize) {
        let nodes: Vec<i32> = self.nodes.iter().map(|n| n.id).collect();
        let topic = self.topic(name);
        for _ in 0..count {
            let leader = nodes[topic.partitions.len() % nodes.len()];
            topic.partitions.push(Partition { leader, epoch: 0, log: Log::default() });
        }
    }

    /// # Panics
    /// For a topic that is not there: a mistake in the test.
    pub fn topic(&mut self, name: &str) -> &mut Topic {
        self.topics.get_mut(name).unwrap_or_else(|| panic!("no topic {name}"))
    }

    pub fn partition(&mut self, topic: &str, partition: i32) -> &mut Partition {
        let partitions = &mut self.topic(topic).partitions;
        usize::try_from(partition)
            .ok()
            .and_then(|p| partitions.get_mut(p))
            .unwrap_or_else(|| panic!("no partition {partition}"))
    }

    pub fn log(&mut self, topic: &str, partition: i32) -> &mut Log {
        &mut self.partition(topic, partition).log
    }

    pub fn append(&mut self, topic: &str, partition: i32, batch: &Batch) {
        let found = self.partition(topic, partition);
        let epoch = found.epoch;
        found.log.append(batch, epoch);
    }

    pub fn append_records<K: Field, V: Field>(
        &mut self,
        topic: &str,
        partition: i32,
        records: impl IntoIterator<Item = (K, V)>,
    ) -> i64 {
        let found = self.partition(topic, partition);
        let epoch = found.epoch;
        found.log.append_records(epoch, records)
    }

    /// Gives a partition to another node (or the same) under the next leader epoch.
    pub fn move_leader(&mut self, topic: &str, partition: i32, node: i32) {
        let found = self.partition(topic, partition);
        found.leader = node;
        found.epoch += 1;
    }

    /// The partition by request coordinates, `None` if it does not exist.
    pub fn find(&self, topic: &str, partition: i32) -> Option<&Partition> {
        self.topics.get(topic)?.partitions.get(usize::try_from(partition).ok()?)
    }

    pub fn find_mut(&mut self, topic: &str, partition: i32) -> Option<&mut Partition> {
        self.topics.get_mut(topic)?.partitions.get_mut(usize::try_from(partition).ok()?)
    }

    /// The name behind a topic id.
    pub fn name_of(&self, id: Uuid) -> Option<String> {
        self.topics.iter().find(|(_, topic)| topic.id == id).map(|(name, _)| name.clone())
    }

    pub fn group(&mut self, id: &str) -> &mut Group {
        self.groups.entry(id.to_owned()).or_default()
    }

    /// The versions of an API that ApiVersions tells and that are answered.
    pub fn range(&self, api: ApiKey) -> Option<Range> {
        match self.ranges.get(&(api as i16)) {
            Some(range) => *range,
            None => self.kafka.range(api),
        }
    }

    pub fn port(&self, node: i32) -> i32 {
        self.nodes.iter().find(|n| n.id == node).map_or(-1, |n| i32::from(n.port))
    }
}

/// A Rust string as the messages' own string.
pub fn text(value: impl Into<String>) -> StrBytes {
    StrBytes::from_string(value.into())
}

pub fn topic_name(value: &str) -> TopicName {
    TopicName(text(value))
}

pub fn group_id(value: &str) -> GroupId {
    GroupId(text(value))
}

pub fn broker_id(value: i32) -> BrokerId {
    BrokerId(value)
}
