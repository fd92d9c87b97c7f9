//! Topics, their partitions, and who leads them.

use std::collections::{BTreeMap, HashMap};

use kafka_protocol::ResponseError;
use kafka_protocol::messages::TopicName;
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::log::Log;

/// The longest name that Kafka allows, bytes.
const NAME_BYTES_MAX: usize = 249;
/// More partitions are refused: this is memory of one process.
pub(crate) const PARTITIONS_MAX: i32 = 10_000;

/// One partition: its log and its leader.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) leader: i32,
    /// Rises with each move.
    pub(crate) leader_epoch: i32,
    pub(crate) replicas: Vec<i32>,
    pub(crate) log: Log,
}

/// One topic.
#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) name: TopicName,
    pub(crate) id: Uuid,
    pub(crate) partitions: Vec<Partition>,
    /// What CreateTopics set, by name.
    pub(crate) configs: BTreeMap<String, String>,
}

impl Topic {
    /// The partition of a request.
    pub(crate) fn partition(&self, index: i32) -> Option<&Partition> {
        self.partitions.get(usize::try_from(index).ok()?)
    }

    /// See [`Topic::partition`].
    pub(crate) fn partition_mut(&mut self, index: i32) -> Option<&mut Partition> {
        self.partitions.get_mut(usize::try_from(index).ok()?)
    }
}

/// All topics.
#[derive(Debug, Default)]
pub(crate) struct Topics {
    by_name: BTreeMap<String, Topic>,
    names: HashMap<Uuid, String>,
}

impl Topics {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Topic> {
        self.by_name.values()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Topic> {
        self.by_name.values_mut()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Topic> {
        self.by_name.get(name)
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Topic> {
        self.by_name.get_mut(name)
    }

    /// A partition by the coordinates of a request.
    pub(crate) fn partition(&self, topic: &str, index: i32) -> Option<&Partition> {
        self.get(topic)?.partition(index)
    }

    /// See [`Topics::partition`].
    pub(crate) fn partition_mut(&mut self, topic: &str, index: i32) -> Option<&mut Partition> {
        self.get_mut(topic)?.partition_mut(index)
    }

    /// The name behind a topic id.
    pub(crate) fn name_of(&self, id: Uuid) -> Option<&str> {
        self.names.get(&id).map(String::as_str)
    }

    /// Makes a topic without partitions.
    ///
    /// # Errors
    /// A Kafka error code: the name is taken or cannot be one.
    pub(crate) fn create(&mut self, name: &str, id: Uuid) -> Result<&mut Topic, i16> {
        if !is_name(name) {
            return Err(ResponseError::InvalidTopicException.code());
        }
        if self.by_name.contains_key(name) {
            return Err(ResponseError::TopicAlreadyExists.code());
        }
        self.names.insert(id, name.to_owned());
        let topic = Topic {
            name: TopicName(StrBytes::from_string(name.to_owned())),
            id,
            partitions: Vec::new(),
            configs: BTreeMap::new(),
        };
        Ok(self.by_name.entry(name.to_owned()).or_insert(topic))
    }

    pub(crate) fn delete(&mut self, name: &str) -> Option<Topic> {
        let topic = self.by_name.remove(name)?;
        self.names.remove(&topic.id);
        Some(topic)
    }
}

/// Kafka's rule for names: `[a-zA-Z0-9._-]{1,249}`, neither `.` nor `..`.
pub(crate) fn is_name(name: &str) -> bool {
    let letter = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name != "." && name != ".." && name.bytes().all(letter)
}
