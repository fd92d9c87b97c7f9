//! What a group is, from the two protocols' descriptions of it.
//!
//! A group of the consumer protocol (KIP-848) looks Dead to DescribeGroups, or answers GROUP_ID_NOT_FOUND; only
//! ConsumerGroupDescribe knows it. A broker without that API cannot tell such a group from one that is not there,
//! but for its commits: then the state is unknown, never Dead (CASES 16, kminion#352).

use std::collections::BTreeSet;

use kafka_protocol::messages::consumer_group_describe_response as consumer;
use kafka_protocol::messages::describe_groups_response as classic;

use crate::error::code;
use crate::group::Assignment;
use crate::metadata::TopicPartition;

/// A member of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its member id.
    pub member_id: String,
    /// Its `group.instance.id`, if it is static.
    pub instance_id: Option<String>,
    /// Its `client.id`.
    pub client_id: String,
    /// Where it connects from, as the broker prints it: `/127.0.0.1`.
    pub host: String,
    /// What it works on.
    pub assignment: BTreeSet<TopicPartition>,
}

/// A group as its coordinator describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupDescription {
    /// `Stable`, `Empty`, `PreparingRebalance` …, or [`STATE_UNKNOWN`].
    pub state: String,
    /// The assignor; empty where none was chosen yet.
    pub assignor: String,
    /// Its members.
    pub members: Vec<Member>,
}

/// The state of a group that has commits, on a broker that cannot describe it.
pub const STATE_UNKNOWN: &str = "unknown";
/// The state of a group that has commits and never had members.
pub const STATE_EMPTY: &str = "Empty";
const STATE_DEAD: &str = "Dead";

impl GroupDescription {
    /// A group of which nothing but its commits is known.
    pub fn of_state(state: &str) -> Self {
        GroupDescription { state: state.to_owned(), ..Self::default() }
    }

    /// Whether it has no members, so that its offsets may be set.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.state == STATE_EMPTY
    }

    /// The member that works on a partition.
    pub fn member_of(&self, at: &TopicPartition) -> Option<&Member> {
        self.members.iter().find(|member| member.assignment.contains(at))
    }
}

type Refusal = (i16, Option<String>);

fn not_found(code: i16, state: &str) -> bool {
    code == code::GROUP_ID_NOT_FOUND || (code == code::NONE && state == STATE_DEAD)
}

/// A description by DescribeGroups. An assignment that does not decode belongs to a group that is no consumer group
/// (Connect), or to a client that breaks the protocol: the member is shown without partitions.
pub(super) fn read_classic(group: classic::DescribedGroup) -> Result<Option<GroupDescription>, Refusal> {
    if not_found(group.error_code, &group.group_state) {
        return Ok(None);
    }
    if group.error_code != code::NONE {
        return Err((group.error_code, group.error_message.map(|message| message.to_string())));
    }
    let members = group
        .members
        .into_iter()
        .map(|member| {
            let assignment = Assignment::decode(member.member_assignment).unwrap_or_default();
            let assignment = assignment.partitions.into_iter().flat_map(|(topic, partitions)| {
                partitions.into_iter().map(move |partition| TopicPartition::new(topic.as_str(), partition))
            });
            Member {
                member_id: member.member_id.to_string(),
                instance_id: member.group_instance_id.map(|id| id.to_string()),
                client_id: member.client_id.to_string(),
                host: member.client_host.to_string(),
                assignment: assignment.collect(),
            }
        })
        .collect();
    Ok(Some(GroupDescription {
        state: group.group_state.to_string(),
        assignor: group.protocol_data.to_string(),
        members,
    }))
}

/// A description by ConsumerGroupDescribe.
pub(super) fn read_consumer(group: consumer::DescribedGroup) -> Result<Option<GroupDescription>, Refusal> {
    if not_found(group.error_code, &group.group_state) {
        return Ok(None);
    }
    if group.error_code != code::NONE {
        return Err((group.error_code, group.error_message.map(|message| message.to_string())));
    }
    let members = group
        .members
        .into_iter()
        .map(|member| {
            let assignment = member.assignment.topic_partitions.into_iter().flat_map(|topic| {
                let name = topic.topic_name.0.to_string();
                topic
                    .partitions
                    .into_iter()
                    .map(move |partition| TopicPartition::new(name.as_str(), partition))
            });
            Member {
                member_id: member.member_id.to_string(),
                instance_id: member.instance_id.map(|id| id.to_string()),
                client_id: member.client_id.to_string(),
                host: member.client_host.to_string(),
                assignment: assignment.collect(),
            }
        })
        .collect();
    Ok(Some(GroupDescription {
        state: group.group_state.to_string(),
        assignor: group.assignor_name.to_string(),
        members,
    }))
}
