//! What is known of the cluster: brokers, topics with their ids, partition leaders with their epochs.
//!
//! Invariant: under one topic id, an older leader epoch never replaces a newer one (KIP-320). A new topic id under a
//! known name means that the topic was deleted and made again; its partitions then start afresh.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use kafka_protocol::messages::MetadataResponse;
use uuid::Uuid;

use crate::api::Api;
use crate::error::{Class, classify, code};

/// A topic's id: 128 bits as Kafka prints them, zero when the broker gives none.
pub type TopicId = Uuid;

/// A partition of a topic. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicPartition {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's number.
    pub partition: i32,
}

impl TopicPartition {
    /// A partition by name and number.
    pub fn new(topic: impl Into<Arc<str>>, partition: i32) -> Self {
        TopicPartition { topic: topic.into(), partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// A broker's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// Host name or address, as advertised.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Rack, if it has one.
    pub rack: Option<String>,
}

/// Where a partition is led.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Node id; none while there is no leader.
    pub node: Option<i32>,
    /// Its epoch; -1 when the broker gives none.
    pub epoch: i32,
}

/// A topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topic {
    /// Its id.
    pub id: TopicId,
    /// Leaders by partition.
    pub partitions: BTreeMap<i32, Leader>,
    /// Replicas and in-sync replicas by partition, for `topic describe`.
    pub replicas: BTreeMap<i32, (Vec<i32>, Vec<i32>)>,
    /// Kafka's own topic, as `__consumer_offsets`.
    pub is_internal: bool,
}

/// The newest state of each topic that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicState {
    /// It exists.
    Known(Topic),
    /// The broker refuses it with this code: unknown, denied, or no name of a topic.
    Refused(i16),
}

/// A topic that was deleted and made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recreated {
    /// Its name.
    pub topic: String,
    /// The id that it had.
    pub was: TopicId,
}

/// The cluster, as the newest answers tell it.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    /// The cluster's id.
    pub cluster_id: Option<String>,
    /// The controller's node id, or some broker that stands in for it (KRaft).
    pub controller: Option<i32>,
    /// Brokers by node id.
    pub brokers: BTreeMap<i32, Broker>,
    /// Topics by name.
    pub topics: BTreeMap<String, TopicState>,
}

impl Metadata {
    /// A known topic.
    pub fn topic(&self, name: &str) -> Option<&Topic> {
        match self.topics.get(name) {
            Some(TopicState::Known(topic)) => Some(topic),
            _ => None,
        }
    }

    /// Whether a topic is known with its partitions.
    pub fn has_partitions(&self, name: &str) -> bool {
        self.topic(name).is_some_and(|topic| !topic.partitions.is_empty())
    }

    /// Whether a broker has said what a topic is, if only that there is none; not while it is being made.
    pub fn is_answered(&self, name: &str) -> bool {
        match self.topics.get(name) {
            Some(TopicState::Known(topic)) => !topic.partitions.is_empty(),
            Some(TopicState::Refused(refused)) => !is_transient(*refused),
            None => false,
        }
    }

    /// The leader of a partition, if it is known and there is one.
    pub fn leader(&self, at: &TopicPartition) -> Option<(i32, i32)> {
        let leader = self.topic(&at.topic)?.partitions.get(&at.partition)?;
        leader.node.map(|node| (node, leader.epoch))
    }

    /// The name of a topic by its id.
    pub fn name_of(&self, id: TopicId) -> Option<&str> {
        self.topics.iter().find_map(|(name, state)| match state {
            TopicState::Known(topic) if topic.id == id && !id.is_nil() => Some(name.as_str()),
            _ => None,
        })
    }

    /// Takes a leader that a Fetch or Produce answer named (KIP-951). An older epoch is ignored.
    pub fn learn_leader(&mut self, at: &TopicPartition, node: i32, epoch: i32) {
        if let Some(TopicState::Known(topic)) = self.topics.get_mut(&*at.topic)
            && let Some(leader) = topic.partitions.get_mut(&at.partition)
            && epoch > leader.epoch
        {
            *leader = Leader { node: Some(node), epoch };
        }
    }

    /// Takes a Metadata answer. Topics that it does not name keep their state; `all` says that every topic was
    /// asked for, so that those not named are gone. Returns the topics that were made again.
    pub fn apply(&mut self, response: &MetadataResponse, all: bool) -> Vec<Recreated> {
        if let Some(id) = &response.cluster_id {
            self.cluster_id = Some(id.to_string());
        }
        self.controller = (response.controller_id.0 >= 0).then_some(response.controller_id.0);
        // An answer without brokers is a broker that is still starting: what is known is worth more.
        if !response.brokers.is_empty() {
            self.brokers = response
                .brokers
                .iter()
                .filter_map(|broker| {
                    let port = u16::try_from(broker.port).ok()?;
                    let rack = broker.rack.as_ref().map(|rack| rack.to_string());
                    Some((broker.node_id.0, Broker { host: broker.host.to_string(), port, rack }))
                })
                .collect();
        }
        if all {
            let named: Vec<&str> = response
                .topics
                .iter()
                .filter_map(|topic| topic.name.as_ref().map(|name| name.as_str()))
                .collect();
            self.topics.retain(|name, _| named.contains(&name.as_str()));
        }
        let mut recreated = Vec::new();
        for answer in &response.topics {
            let Some(name) = answer.name.as_ref().map(|name| name.to_string()) else { continue };
            // LEADER_NOT_AVAILABLE on a topic comes while it is being made, often without its partitions.
            if answer.error_code != code::NONE
                && (answer.error_code != code::LEADER_NOT_AVAILABLE || answer.partitions.is_empty())
            {
                let known = matches!(self.topics.get(&name), Some(TopicState::Known(_)));
                if !known || !is_transient(answer.error_code) {
                    self.topics.insert(name, TopicState::Refused(answer.error_code));
                }
                continue;
            }
            let mut topic =
                Topic { id: answer.topic_id, is_internal: answer.is_internal, ..Topic::default() };
            for partition in &answer.partitions {
                let node = (partition.leader_id.0 >= 0).then_some(partition.leader_id.0);
                topic
                    .partitions
                    .insert(partition.partition_index, Leader { node, epoch: partition.leader_epoch });
                let nodes = |ids: &[kafka_protocol::messages::BrokerId]| ids.iter().map(|id| id.0).collect();
                topic.replicas.insert(
                    partition.partition_index,
                    (nodes(&partition.replica_nodes), nodes(&partition.isr_nodes)),
                );
            }
            if let Some(known) = self.topic(&name) {
                if known.id == topic.id {
                    for (partition, leader) in &known.partitions {
                        match topic.partitions.get_mut(partition) {
                            Some(new) if new.epoch < leader.epoch => *new = *leader,
                            _ => {}
                        }
                    }
                } else if !known.id.is_nil() && !topic.id.is_nil() {
                    recreated.push(Recreated { topic: name.clone(), was: known.id });
                }
            }
            self.topics.insert(name, TopicState::Known(topic));
        }
        recreated
    }
}

/// Whether a code of a topic says only that this broker cannot tell now: what was known before still counts.
fn is_transient(refused: i16) -> bool {
    matches!(classify(Api::Metadata, refused), Class::Retry | Class::Leader)
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::metadata_response::{MetadataResponsePartition, MetadataResponseTopic};
    use kafka_protocol::messages::{BrokerId, TopicName};

    use super::*;
    use crate::api::text;

    fn answer(id: u128, leaders: &[(i32, i32)]) -> MetadataResponse {
        let partitions = leaders
            .iter()
            .enumerate()
            .map(|(at, (node, epoch))| {
                MetadataResponsePartition::default()
                    .with_partition_index(at as i32)
                    .with_leader_id(BrokerId(*node))
                    .with_leader_epoch(*epoch)
            })
            .collect();
        let topic = MetadataResponseTopic::default()
            .with_name(Some(TopicName(text("t"))))
            .with_topic_id(Uuid::from_u128(id))
            .with_partitions(partitions);
        MetadataResponse::default().with_topics(vec![topic])
    }

    #[test]
    fn an_older_epoch_never_replaces_a_newer_one_of_the_same_topic() {
        let mut metadata = Metadata::default();
        let at = TopicPartition::new("t", 0);
        metadata.apply(&answer(1, &[(1, 5)]), false);
        metadata.apply(&answer(1, &[(2, 4)]), false);
        assert_eq!(metadata.leader(&at), Some((1, 5)));
        metadata.learn_leader(&at, 3, 5);
        assert_eq!(metadata.leader(&at), Some((1, 5)));
        metadata.learn_leader(&at, 3, 6);
        assert_eq!(metadata.leader(&at), Some((3, 6)));
        let recreated = metadata.apply(&answer(2, &[(1, 0)]), false);
        assert_eq!(recreated, [Recreated { topic: "t".to_owned(), was: Uuid::from_u128(1) }]);
        assert_eq!(metadata.leader(&at), Some((1, 0)));
    }

    #[test]
    fn a_topic_that_all_topics_no_longer_name_is_gone() {
        let mut metadata = Metadata::default();
        metadata.apply(&answer(1, &[(1, 0)]), false);
        metadata.apply(&MetadataResponse::default(), false);
        assert!(metadata.topic("t").is_some());
        metadata.apply(&MetadataResponse::default(), true);
        assert!(metadata.topic("t").is_none());
    }
}
