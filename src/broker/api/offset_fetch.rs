//! OffsetFetch: <https://kafka.apache.org/protocol#The_Messages_OffsetFetch>.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{ApiKey, OffsetFetchRequest, OffsetFetchResponse, TopicName};

use super::{Api, Call, text};
use crate::broker::group::Committed;
use crate::broker::state::State;

/// From this version on several groups are asked for at once (KIP-709).
const BATCHED_FROM: i16 = 8;
/// Below this version only partitions carry an error.
const ERROR_FROM: i16 = 2;
/// Below this version no leader epoch is told.
const EPOCH_FROM: i16 = 5;

pub(crate) struct OffsetFetch;

impl Api for OffsetFetch {
    const KEY: ApiKey = ApiKey::OffsetFetch;
    const VERSIONS: (i16, i16) = (1, 9);
    type Request = OffsetFetchRequest;
    type Response = OffsetFetchResponse;

    fn handle(
        state: &mut State,
        call: &Call<'_>,
        request: OffsetFetchRequest,
    ) -> Option<OffsetFetchResponse> {
        let found = asked(&request, call.version).into_iter().map(|group| {
            match state.coordinator_error(&group.group_id, call.node) {
                Some(code) => refused(&group, call.version, code),
                None => fetch(state, call.version, &group, request.require_stable),
            }
        });
        Some(respond(found.collect(), call.version))
    }

    fn refuse(request: &OffsetFetchRequest, call: &Call<'_>, code: i16) -> OffsetFetchResponse {
        let groups = asked(request, call.version);
        let refused = groups.iter().map(|group| refused(group, call.version, code));
        respond(refused.collect(), call.version)
    }
}

/// What is asked for, in the form of the newest version.
fn asked(request: &OffsetFetchRequest, version: i16) -> Vec<OffsetFetchRequestGroup> {
    if version >= BATCHED_FROM {
        return request.groups.clone();
    }
    let topics = request.topics.as_ref().map(|topics| {
        let topics = topics.iter().map(|topic| {
            kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopics::default()
                .with_name(topic.name.clone())
                .with_partition_indexes(topic.partition_indexes.clone())
        });
        topics.collect()
    });
    vec![OffsetFetchRequestGroup::default().with_group_id(request.group_id.clone()).with_topics(topics)]
}

fn refused(group: &OffsetFetchRequestGroup, version: i16, code: i16) -> OffsetFetchResponseGroup {
    let response =
        OffsetFetchResponseGroup::default().with_group_id(group.group_id.clone()).with_error_code(code);
    if version >= ERROR_FROM {
        return response;
    }
    let topics = group.topics.iter().flatten().map(|topic| {
        let partitions = topic.partition_indexes.iter().map(|index| told(*index, None, version));
        let partitions = partitions.map(|partition| partition.with_error_code(code));
        OffsetFetchResponseTopics::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    response.with_topics(topics.collect())
}

fn fetch(
    state: &State,
    version: i16,
    group: &OffsetFetchRequestGroup,
    stable: bool,
) -> OffsetFetchResponseGroup {
    let id = group.group_id.as_str();
    let told = |topic: &str, index: i32, committed: Option<&Committed>| {
        if stable && state.groups.is_pending(id, topic, index) {
            // A transaction may be about to move it (KIP-447).
            return told(index, None, version).with_error_code(ResponseError::UnstableOffsetCommit.code());
        }
        told(index, committed, version)
    };
    let mut topics: Vec<OffsetFetchResponseTopics> = Vec::new();
    match &group.topics {
        Some(asked) => topics.extend(asked.iter().map(|topic| {
            let partitions = topic
                .partition_indexes
                .iter()
                .map(|index| told(&topic.name, *index, state.groups.committed(id, &topic.name, *index)));
            OffsetFetchResponseTopics::default()
                .with_name(topic.name.clone())
                .with_partitions(partitions.collect())
        })),
        None => {
            for (topic, index, committed) in state.groups.all_committed(id) {
                let partition = told(topic, index, Some(committed));
                match topics.last_mut().filter(|last| last.name.as_str() == topic) {
                    Some(last) => last.partitions.push(partition),
                    None => topics.push(
                        OffsetFetchResponseTopics::default()
                            .with_name(TopicName(text(topic)))
                            .with_partitions(vec![partition]),
                    ),
                }
            }
        }
    }
    OffsetFetchResponseGroup::default().with_group_id(group.group_id.clone()).with_topics(topics)
}

/// One partition; nothing committed is told as offset -1, and is no error.
fn told(index: i32, committed: Option<&Committed>, version: i16) -> OffsetFetchResponsePartitions {
    let epoch = committed.filter(|_| version >= EPOCH_FROM).map_or(-1, |committed| committed.leader_epoch);
    let metadata = committed.map(|committed| committed.metadata.clone()).unwrap_or_default();
    OffsetFetchResponsePartitions::default()
        .with_partition_index(index)
        .with_committed_offset(committed.map_or(-1, |committed| committed.offset))
        .with_committed_leader_epoch(epoch)
        .with_metadata(Some(text(metadata)))
}

fn respond(mut groups: Vec<OffsetFetchResponseGroup>, version: i16) -> OffsetFetchResponse {
    if version >= BATCHED_FROM {
        return OffsetFetchResponse::default().with_groups(groups);
    }
    let Some(only) = groups.pop() else { return OffsetFetchResponse::default() };
    let topics = only.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.into_iter().map(|partition| {
            OffsetFetchResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_committed_offset(partition.committed_offset)
                .with_committed_leader_epoch(partition.committed_leader_epoch)
                .with_metadata(partition.metadata)
                .with_error_code(partition.error_code)
        });
        OffsetFetchResponseTopic::default().with_name(topic.name).with_partitions(partitions.collect())
    });
    OffsetFetchResponse::default().with_error_code(only.error_code).with_topics(topics.collect())
}
