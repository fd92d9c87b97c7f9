//! For each API the answer that is nothing but an error, in the place where that API carries it: every partition,
//! topic, group or the whole answer.

use kafka_protocol::messages::consumer_group_describe_response::DescribedGroup as DescribedConsumerGroup;
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResult;
use kafka_protocol::messages::describe_groups_response::DescribedGroup;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_fetch_response::OffsetFetchResponseGroup;
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{
    ApiVersionsResponse, ConsumerGroupDescribeResponse, CreateTopicsResponse, DeleteGroupsResponse,
    DeleteTopicsResponse, DescribeConfigsResponse, DescribeGroupsResponse, FindCoordinatorResponse,
    HeartbeatResponse, InitProducerIdResponse, LeaveGroupResponse, ListGroupsResponse, ListOffsetsResponse,
    OffsetCommitResponse, OffsetFetchResponse, OffsetForLeaderEpochResponse, ProduceResponse, ProducerId,
    RequestKind, ResponseKind, SyncGroupResponse,
};

use super::group::join_error;
use super::requests::Request;
use super::state::{State, broker_id, text};
use super::{cluster, offsets};

/// # Panics
/// For an API that the fake does not know.
pub fn error_response(state: &mut State, request: &Request, code: i16) -> ResponseKind {
    match &request.kind {
        RequestKind::ApiVersions(_) => ApiVersionsResponse::default().with_error_code(code).into(),
        RequestKind::Metadata(body) => {
            let mut response = cluster::metadata(state, body, request.version);
            for topic in &mut response.topics {
                let bare =
                    MetadataResponseTopic::default().with_error_code(code).with_name(topic.name.clone());
                *topic = bare;
            }
            response.into()
        }
        RequestKind::JoinGroup(body) => join_error(code, &body.member_id).into(),
        RequestKind::SyncGroup(_) => SyncGroupResponse::default().with_error_code(code).into(),
        RequestKind::Heartbeat(_) => HeartbeatResponse::default().with_error_code(code).into(),
        RequestKind::LeaveGroup(_) => LeaveGroupResponse::default().with_error_code(code).into(),
        RequestKind::InitProducerId(_) => InitProducerIdResponse::default()
            .with_error_code(code)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1)
            .into(),
        RequestKind::FindCoordinator(_) => coordinator(request, code),
        RequestKind::OffsetFetch(_) => offset_fetch(state, request, code),
        RequestKind::Produce(_)
        | RequestKind::ListOffsets(_)
        | RequestKind::OffsetCommit(_)
        | RequestKind::OffsetForLeaderEpoch(_) => per_partition(request, code),
        _ => per_name(request, code),
    }
}

fn coordinator(request: &Request, code: i16) -> ResponseKind {
    let RequestKind::FindCoordinator(body) = &request.kind else { unreachable!("matched by the caller") };
    if request.version < 4 {
        return FindCoordinatorResponse::default()
            .with_error_code(code)
            .with_node_id(broker_id(-1))
            .with_port(-1)
            .into();
    }
    let failed = |key: &kafka_protocol::protocol::StrBytes| {
        Coordinator::default()
            .with_key(key.clone())
            .with_error_code(code)
            .with_node_id(broker_id(-1))
            .with_port(-1)
    };
    FindCoordinatorResponse::default()
        .with_coordinators(body.coordinator_keys.iter().map(failed).collect())
        .into()
}

/// 88 stands at the partitions, with offset -1, as a broker has it, and so does everything in version 1; other codes
/// stand at the group.
fn offset_fetch(state: &State, request: &Request, code: i16) -> ResponseKind {
    let RequestKind::OffsetFetch(body) = &request.kind else { unreachable!("matched by the caller") };
    if code == super::codes::UNSTABLE_OFFSET_COMMIT || request.version < 2 {
        let mut response = offsets::fetch(state, body, request.version);
        for partition in response.topics.iter_mut().flat_map(|t| &mut t.partitions) {
            (partition.error_code, partition.committed_offset) = (code, -1);
        }
        let topics = response.groups.iter_mut().flat_map(|g| &mut g.topics);
        for partition in topics.flat_map(|t| &mut t.partitions) {
            (partition.error_code, partition.committed_offset) = (code, -1);
        }
        return response.into();
    }
    let groups = body.groups.iter().map(|group| {
        OffsetFetchResponseGroup::default().with_group_id(group.group_id.clone()).with_error_code(code)
    });
    let mut response = OffsetFetchResponse::default().with_groups(groups.collect());
    if request.version < 8 {
        response.error_code = code;
    }
    response.into()
}

fn per_partition(request: &Request, code: i16) -> ResponseKind {
    match &request.kind {
        RequestKind::Produce(body) => {
            let topics = body.topic_data.iter().map(|topic| {
                let failed = topic.partition_data.iter().map(|data| {
                    PartitionProduceResponse::default()
                        .with_index(data.index)
                        .with_error_code(code)
                        .with_base_offset(-1)
                        .with_log_append_time_ms(-1)
                });
                TopicProduceResponse::default()
                    .with_name(topic.name.clone())
                    .with_topic_id(topic.topic_id)
                    .with_partition_responses(failed.collect())
            });
            ProduceResponse::default().with_responses(topics.collect()).into()
        }
        RequestKind::ListOffsets(body) => {
            let topics = body.topics.iter().map(|topic| {
                let failed = topic.partitions.iter().map(|p| {
                    ListOffsetsPartitionResponse::default()
                        .with_partition_index(p.partition_index)
                        .with_error_code(code)
                });
                ListOffsetsTopicResponse::default()
                    .with_name(topic.name.clone())
                    .with_partitions(failed.collect())
            });
            ListOffsetsResponse::default().with_topics(topics.collect()).into()
        }
        RequestKind::OffsetCommit(body) => {
            let topics = body.topics.iter().map(|topic| {
                let failed = topic.partitions.iter().map(|p| {
                    OffsetCommitResponsePartition::default()
                        .with_partition_index(p.partition_index)
                        .with_error_code(code)
                });
                OffsetCommitResponseTopic::default()
                    .with_name(topic.name.clone())
                    .with_topic_id(topic.topic_id)
                    .with_partitions(failed.collect())
            });
            OffsetCommitResponse::default().with_topics(topics.collect()).into()
        }
        RequestKind::OffsetForLeaderEpoch(body) => {
            let topics = body.topics.iter().map(|topic| {
                let failed = topic
                    .partitions
                    .iter()
                    .map(|p| EpochEndOffset::default().with_partition(p.partition).with_error_code(code));
                OffsetForLeaderTopicResult::default()
                    .with_topic(topic.topic.clone())
                    .with_partitions(failed.collect())
            });
            OffsetForLeaderEpochResponse::default().with_topics(topics.collect()).into()
        }
        other => unreachable!("no partitions in {other:?}"),
    }
}

fn per_name(request: &Request, code: i16) -> ResponseKind {
    match &request.kind {
        RequestKind::CreateTopics(body) => {
            let failed = body
                .topics
                .iter()
                .map(|t| CreatableTopicResult::default().with_name(t.name.clone()).with_error_code(code));
            CreateTopicsResponse::default().with_topics(failed.collect()).into()
        }
        RequestKind::DeleteTopics(body) => {
            let failed = |name: Option<kafka_protocol::messages::TopicName>| {
                DeletableTopicResult::default().with_name(name).with_error_code(code)
            };
            let by_name = body.topic_names.iter().map(|name| failed(Some(name.clone())));
            let by_either = body.topics.iter().map(|t| failed(t.name.clone()).with_topic_id(t.topic_id));
            DeleteTopicsResponse::default().with_responses(by_name.chain(by_either).collect()).into()
        }
        RequestKind::ListGroups(_) => ListGroupsResponse::default().with_error_code(code).into(),
        RequestKind::DescribeGroups(body) => {
            let failed = body
                .groups
                .iter()
                .map(|id| DescribedGroup::default().with_group_id(id.clone()).with_error_code(code));
            DescribeGroupsResponse::default().with_groups(failed.collect()).into()
        }
        RequestKind::ConsumerGroupDescribe(body) => {
            let failed = body.group_ids.iter().map(|id| {
                DescribedConsumerGroup::default()
                    .with_group_id(id.clone())
                    .with_error_code(code)
                    .with_group_state(text(""))
            });
            ConsumerGroupDescribeResponse::default().with_groups(failed.collect()).into()
        }
        RequestKind::DeleteGroups(body) => {
            let failed = body
                .groups_names
                .iter()
                .map(|id| DeletableGroupResult::default().with_group_id(id.clone()).with_error_code(code));
            DeleteGroupsResponse::default().with_results(failed.collect()).into()
        }
        RequestKind::DescribeConfigs(body) => {
            let failed = body.resources.iter().map(|r| {
                DescribeConfigsResult::default()
                    .with_error_code(code)
                    .with_resource_type(r.resource_type)
                    .with_resource_name(r.resource_name.clone())
            });
            DescribeConfigsResponse::default().with_results(failed.collect()).into()
        }
        other => panic!("no error answer for {other:?}"),
    }
}
