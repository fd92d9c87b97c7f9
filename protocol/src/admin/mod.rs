//! Questions about groups and topics, and what a broker answers.
//!
//! A [`Question`] is about one group, one topic or one leader, so that one refusal is one value and never hides the
//! answers of others; requests are pipelined, so that costs no round trip. It alone reads its answer
//! ([`Question::read`]), which breaks the protocol if it leaves out what was asked for.

pub mod groups;
pub mod offsets;

use std::collections::BTreeMap;
use std::time::Duration;

use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResourceResult;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, CreateTopicsRequest, DeleteGroupsRequest, DeleteTopicsRequest,
    DescribeConfigsRequest, DescribeConfigsResponse, DescribeGroupsRequest, GroupId, ListGroupsRequest,
    ListGroupsResponse, ListOffsetsResponse, MetadataRequest, OffsetCommitRequest, OffsetFetchResponse,
    TopicName,
};

use crate::api::{Api, Request, Response, text};
use crate::error::{Error, code};
use crate::metadata::TopicPartition;
use crate::offsets::{
    Isolation, OffsetAndEpoch, list_offsets_request, offset_fetch_request, read_list_offsets,
    read_offset_fetch,
};
use groups::GroupDescription;

/// Offsets by partition, or why one cannot be had.
pub type OffsetsByPartition = BTreeMap<TopicPartition, Result<i64, Error>>;

/// A topic to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTopic {
    /// Its name.
    pub name: String,
    /// Number of partitions.
    pub partitions: i32,
    /// Replicas of each.
    pub replication: i16,
    /// Its configuration where it differs from the broker's.
    pub configs: Vec<(String, String)>,
}

/// A group as a broker lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedGroup {
    /// Its id.
    pub name: String,
    /// `consumer` for consumer groups; others (Connect workers) keep no offsets.
    pub protocol_type: String,
    /// Its state in Kafka's words; empty where the broker does not tell.
    pub state: String,
    /// `classic`, `consumer`, `share`; empty before Kafka 3.8.
    pub group_type: String,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// The groups that one broker coordinates.
    ListGroups,
    /// A group of the classic protocol.
    DescribeGroup(String),
    /// A group of the consumer protocol (KIP-848).
    DescribeConsumerGroup(String),
    /// All committed offsets of a group.
    Committed(String),
    /// Offsets by timestamp, of partitions that one broker leads, each with its leader epoch.
    ListOffsets {
        /// [`EARLIEST`](crate::offsets::EARLIEST), [`LATEST`](crate::offsets::LATEST), or ms since 1970.
        timestamp: i64,
        /// Whether records of open transactions count as not there yet.
        isolation: Isolation,
        /// The partitions.
        partitions: Vec<(TopicPartition, i32)>,
    },
    /// Sets the offsets of a group without members.
    CommitOffsets(String, Vec<(TopicPartition, i64)>),
    /// Removes a group without members.
    DeleteGroup(String),
    /// Makes a topic; the broker may take as long as this.
    CreateTopic(NewTopic, Duration),
    /// Removes a topic; the broker may take as long as this.
    DeleteTopic(String, Duration),
    /// The configuration of a topic where it differs from Kafka's defaults.
    TopicConfigs(String),
    /// How long a topic keeps a record after the record's own time.
    TopicRetention(String),
    /// Whether a topic is there, and whether we may write to it (KIP-430).
    TopicAccess(String),
}

/// What a broker answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// To [`Question::ListGroups`].
    Groups(Vec<ListedGroup>),
    /// To the two ways of describing a group; none: this protocol does not know the group.
    Group(Option<GroupDescription>),
    /// To [`Question::Committed`]: a partition without an entry has no commit.
    Committed(OffsetsByPartition),
    /// To [`Question::ListOffsets`]; none: no record is as new as the timestamp.
    Offsets(BTreeMap<TopicPartition, Result<Option<i64>, Error>>),
    /// To [`Question::TopicConfigs`].
    Configs(Vec<(String, String)>),
    /// To [`Question::TopicRetention`]; none: the record's own time decides nothing.
    Retention(Option<Duration>),
    /// To [`Question::TopicAccess`].
    Access(TopicAccess),
    /// It was done.
    Done,
}

/// A topic that is there, and what we may do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicAccess {
    /// Number of its partitions.
    pub partitions: usize,
    /// Whether it may be written; none: the broker does not tell.
    pub may_write: Option<bool>,
}

impl Question {
    /// The API that carries it.
    pub const fn api(&self) -> Api {
        match self {
            Question::ListGroups => Api::ListGroups,
            Question::DescribeGroup(_) => Api::DescribeGroups,
            Question::DescribeConsumerGroup(_) => Api::ConsumerGroupDescribe,
            Question::Committed(_) => Api::OffsetFetch,
            Question::ListOffsets { .. } => Api::ListOffsets,
            Question::CommitOffsets(..) => Api::OffsetCommit,
            Question::DeleteGroup(_) => Api::DeleteGroups,
            Question::CreateTopic(..) => Api::CreateTopics,
            Question::DeleteTopic(..) => Api::DeleteTopics,
            Question::TopicConfigs(_) | Question::TopicRetention(_) => Api::DescribeConfigs,
            Question::TopicAccess(_) => Api::Metadata,
        }
    }

    /// The request, in the newest layout: [`crate::api`] fits it to the connection's version.
    pub fn request(&self) -> Request {
        let group_id = |group: &str| GroupId(text(group));
        match self {
            Question::ListGroups => ListGroupsRequest::default().into(),
            Question::DescribeGroup(group) => {
                DescribeGroupsRequest::default().with_groups(vec![group_id(group)]).into()
            }
            Question::DescribeConsumerGroup(group) => {
                ConsumerGroupDescribeRequest::default().with_group_ids(vec![group_id(group)]).into()
            }
            Question::Committed(group) => offset_fetch_request(group, None, false).into(),
            Question::ListOffsets { timestamp, isolation, partitions } => {
                let wanted: Vec<(TopicPartition, i32, i64)> =
                    partitions.iter().map(|(at, epoch)| (at.clone(), *epoch, *timestamp)).collect();
                list_offsets_request(&wanted, *isolation).into()
            }
            Question::CommitOffsets(group, offsets) => commit(group, offsets).into(),
            Question::DeleteGroup(group) => {
                DeleteGroupsRequest::default().with_groups_names(vec![group_id(group)]).into()
            }
            Question::CreateTopic(topic, timeout) => create_topic(topic, *timeout).into(),
            Question::DeleteTopic(name, timeout) => DeleteTopicsRequest::default()
                .with_topics(vec![DeleteTopicState::default().with_name(Some(TopicName(text(name))))])
                .with_timeout_ms(milliseconds(*timeout))
                .into(),
            Question::TopicConfigs(name) => describe_configs(name, None),
            Question::TopicRetention(name) => describe_configs(name, Some(&RETENTION_CONFIGS)),
            Question::TopicAccess(name) => MetadataRequest::default()
                .with_topics(Some(vec![
                    MetadataRequestTopic::default().with_name(Some(TopicName(text(name)))),
                ]))
                .with_allow_auto_topic_creation(false)
                .with_include_topic_authorized_operations(true)
                .into(),
        }
    }

    /// Reads the answer.
    ///
    /// # Errors
    /// The broker refused the question as a whole, or left out what was asked for. Refusals of single partitions are
    /// in the [`Answer`], except for [`Question::CommitOffsets`], where the first of them counts.
    pub fn read(&self, response: Response) -> Result<Answer, Error> {
        let refuse =
            |code: i16, message: Option<String>| self.named(Error::refused(self.api(), code, message));
        let missing =
            || self.named(Error::peer("the answer leaves out what was asked for").at_api(self.api()));
        let done = |found: Option<(i16, Option<String>)>| match found {
            Some((code::NONE, _)) => Ok(Answer::Done),
            Some((code, message)) => Err(refuse(code, message)),
            None => Err(missing()),
        };
        match response {
            Response::ListGroups(response) => match response.error_code {
                code::NONE => Ok(Answer::Groups(listed(response))),
                code => Err(refuse(code, None)),
            },
            Response::DescribeGroups(response) => {
                let described = response.groups.into_iter().next().ok_or_else(missing)?;
                groups::read_classic(described)
                    .map_err(|(code, message)| refuse(code, message))
                    .map(Answer::Group)
            }
            Response::ConsumerGroupDescribe(response) => {
                let described = response.groups.into_iter().next().ok_or_else(missing)?;
                groups::read_consumer(described)
                    .map_err(|(code, message)| refuse(code, message))
                    .map(Answer::Group)
            }
            Response::OffsetFetch(response) => {
                committed(response).map(Answer::Committed).map_err(|code| refuse(code, None))
            }
            Response::ListOffsets(response) => Ok(Answer::Offsets(listed_offsets(&response))),
            Response::OffsetCommit(response) => {
                let mut codes = response
                    .topics
                    .iter()
                    .flat_map(|topic| &topic.partitions)
                    .map(|partition| partition.error_code);
                done(codes.clone().find(|code| *code != code::NONE).or(codes.next()).map(|code| (code, None)))
            }
            Response::DeleteGroups(response) => {
                done(response.results.first().map(|result| (result.error_code, None)))
            }
            Response::CreateTopics(response) => {
                done(
                    response.topics.into_iter().next().map(|topic| {
                        (topic.error_code, topic.error_message.map(|message| message.to_string()))
                    }),
                )
            }
            Response::DeleteTopics(response) => {
                done(
                    response.responses.into_iter().next().map(|topic| {
                        (topic.error_code, topic.error_message.map(|message| message.to_string()))
                    }),
                )
            }
            Response::DescribeConfigs(response) => match configs(response).ok_or_else(missing)? {
                Ok(configs) if matches!(self, Question::TopicRetention(_)) => {
                    Ok(Answer::Retention(retention(&configs)))
                }
                Ok(configs) => Ok(Answer::Configs(without_defaults(configs))),
                Err((code, message)) => Err(refuse(code, message)),
            },
            Response::Metadata(response) => {
                let topic = response.topics.first().ok_or_else(missing)?;
                match topic.error_code {
                    code::NONE => Ok(Answer::Access(TopicAccess {
                        partitions: topic.partitions.len(),
                        may_write: may_write(topic.topic_authorized_operations),
                    })),
                    code => Err(refuse(code, None)),
                }
            }
            other => unreachable!("{} answers {}", other.api(), self.api()),
        }
    }

    /// Adds the group or topic that the question is about.
    pub fn named(&self, error: Error) -> Error {
        let error = error.at_api(self.api());
        match self {
            Question::DescribeGroup(group)
            | Question::DescribeConsumerGroup(group)
            | Question::Committed(group)
            | Question::CommitOffsets(group, _)
            | Question::DeleteGroup(group) => error.at_group(group),
            Question::CreateTopic(NewTopic { name, .. }, _)
            | Question::DeleteTopic(name, _)
            | Question::TopicConfigs(name)
            | Question::TopicRetention(name)
            | Question::TopicAccess(name) => error.at_topic(name),
            Question::ListGroups | Question::ListOffsets { .. } => error,
        }
    }
}

/// Kafka's number for topics in DescribeConfigs.
const RESOURCE_TOPIC: i8 = 2;
/// Kafka's number for a value that is Kafka's own default, in DescribeConfigs.
const SOURCE_DEFAULT: i8 = 5;

/// What [`retention`] reads.
const RETENTION_CONFIGS: [&str; 3] = ["cleanup.policy", "message.timestamp.type", "retention.ms"];

fn describe_configs(topic: &str, names: Option<&[&str]>) -> Request {
    DescribeConfigsRequest::default()
        .with_resources(vec![
            DescribeConfigsResource::default()
                .with_resource_type(RESOURCE_TOPIC)
                .with_resource_name(text(topic))
                .with_configuration_keys(names.map(|names| names.iter().map(|name| text(name)).collect())),
        ])
        .into()
}

/// Reads a set of operations as Kafka writes it: a bit per `AclOperation`, of which WRITE is number 4. A broker that
/// does not tell leaves the smallest number there.
fn may_write(operations: i32) -> Option<bool> {
    const WRITE: i32 = 1 << 4;
    (operations != i32::MIN).then_some(operations & WRITE != 0)
}

fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

/// Partitions by topic, in the order of the topics' names.
fn by_topic<P>(
    partitions: impl IntoIterator<Item = (TopicPartition, P)>,
) -> impl Iterator<Item = (TopicName, Vec<(i32, P)>)> {
    let mut topics: BTreeMap<std::sync::Arc<str>, Vec<(i32, P)>> = BTreeMap::new();
    for (at, value) in partitions {
        topics.entry(at.topic).or_default().push((at.partition, value));
    }
    topics.into_iter().map(|(topic, partitions)| (TopicName(text(&topic)), partitions))
}

/// Generation −1 and no member id: the commit of somebody who is no member, which a broker takes for an empty group.
fn commit(group: &str, offsets: &[(TopicPartition, i64)]) -> OffsetCommitRequest {
    let topics = by_topic(offsets.iter().cloned())
        .map(|(topic, partitions)| {
            let partitions = partitions
                .into_iter()
                .map(|(partition, offset)| {
                    OffsetCommitRequestPartition::default()
                        .with_partition_index(partition)
                        .with_committed_offset(offset)
                })
                .collect();
            OffsetCommitRequestTopic::default().with_name(topic).with_partitions(partitions)
        })
        .collect();
    OffsetCommitRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(topics)
}

fn create_topic(topic: &NewTopic, timeout: Duration) -> CreateTopicsRequest {
    let configs = topic
        .configs
        .iter()
        .map(|(name, value)| {
            CreatableTopicConfig::default().with_name(text(name)).with_value(Some(text(value)))
        })
        .collect();
    CreateTopicsRequest::default()
        .with_topics(vec![
            CreatableTopic::default()
                .with_name(TopicName(text(&topic.name)))
                .with_num_partitions(topic.partitions)
                .with_replication_factor(topic.replication)
                .with_configs(configs),
        ])
        .with_timeout_ms(milliseconds(timeout))
}

fn listed(response: ListGroupsResponse) -> Vec<ListedGroup> {
    response
        .groups
        .into_iter()
        .map(|group| ListedGroup {
            name: group.group_id.0.to_string(),
            protocol_type: group.protocol_type.to_string(),
            state: group.group_state.to_string(),
            group_type: group.group_type.to_string(),
        })
        .collect()
}

/// The partitions that have a commit, or that could not be read.
fn committed(response: OffsetFetchResponse) -> Result<OffsetsByPartition, i16> {
    let error = |code: i16, at: &TopicPartition| {
        Error::refused(Api::OffsetFetch, code, None).at_partition(&at.topic, at.partition)
    };
    let with_commit =
        read_offset_fetch(response)?.into_iter().filter_map(|(at, committed)| match committed {
            Ok(None) => None,
            Ok(Some(committed)) => Some((at, Ok(committed.offset))),
            Err(code) => {
                let error = error(code, &at);
                Some((at, Err(error)))
            }
        });
    Ok(with_commit.collect())
}

fn listed_offsets(response: &ListOffsetsResponse) -> BTreeMap<TopicPartition, Result<Option<i64>, Error>> {
    let offset = |(at, found): (TopicPartition, Result<OffsetAndEpoch, i16>)| {
        let result = match found {
            Ok(found) if found.offset >= 0 => Ok(Some(found.offset)),
            Ok(OffsetAndEpoch { offset: -1, .. }) => Ok(None),
            Ok(found) => {
                Err(Error::peer(format!("a log offset of {}", found.offset)).at_api(Api::ListOffsets))
            }
            Err(code) => Err(Error::refused(Api::ListOffsets, code, None)),
        };
        let result = result.map_err(|error| error.at_partition(&at.topic, at.partition));
        (at, result)
    };
    read_list_offsets(response).into_iter().map(offset).collect()
}

type ConfigsOrCode = Result<Vec<DescribeConfigsResourceResult>, (i16, Option<String>)>;

fn configs(response: DescribeConfigsResponse) -> Option<ConfigsOrCode> {
    let topic = response.results.into_iter().next()?;
    if topic.error_code != code::NONE {
        return Some(Err((topic.error_code, topic.error_message.map(|message| message.to_string()))));
    }
    Some(Ok(topic.configs))
}

fn without_defaults(configs: Vec<DescribeConfigsResourceResult>) -> Vec<(String, String)> {
    let mut configs: Vec<(String, String)> = configs
        .into_iter()
        .filter(|config| config.config_source != SOURCE_DEFAULT && !config.is_sensitive)
        .map(|config| {
            (config.name.to_string(), config.value.map(|value| value.to_string()).unwrap_or_default())
        })
        .collect();
    configs.sort();
    configs
}

/// A topic that only compacts, or counts from the time at which the broker stored a record, keeps old ones as well as
/// new ones.
fn retention(configs: &[DescribeConfigsResourceResult]) -> Option<Duration> {
    let value = |name: &str| {
        let config = configs.iter().find(|config| config.name.as_str() == name)?;
        config.value.as_ref().map(|value| value.to_string())
    };
    let deletes = value("cleanup.policy").is_none_or(|policy| policy.contains("delete"));
    let by_record = value("message.timestamp.type").is_none_or(|kind| kind == "CreateTime");
    let ms = value("retention.ms")?.parse().ok().filter(|_| deletes && by_record)?;
    Some(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_operations_says_whether_we_may_write() {
        // READ, DESCRIBE; with WRITE; what a broker without an answer leaves.
        assert_eq!(may_write(1 << 3 | 1 << 8), Some(false));
        assert_eq!(may_write(1 << 3 | 1 << 4 | 1 << 8), Some(true));
        assert_eq!(may_write(i32::MIN), None);
    }

    #[test]
    fn old_records_are_kept_or_not() {
        let read = |configs: &[(&str, &str)]| {
            let one = |(name, value): &(&str, &str)| {
                DescribeConfigsResourceResult::default().with_name(text(name)).with_value(Some(text(value)))
            };
            retention(&configs.iter().map(one).collect::<Vec<_>>())
        };
        let week = ("retention.ms", "604800000");
        assert_eq!(read(&[week]), Some(Duration::from_secs(7 * 86_400)));
        assert_eq!(
            read(&[("cleanup.policy", "compact,delete"), week]),
            Some(Duration::from_secs(7 * 86_400))
        );
        assert_eq!(read(&[("retention.ms", "-1")]), None);
        assert_eq!(read(&[("cleanup.policy", "compact"), week]), None);
        assert_eq!(read(&[("message.timestamp.type", "LogAppendTime"), week]), None);
        assert_eq!(read(&[]), None);
    }
}
