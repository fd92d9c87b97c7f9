//! OffsetCommit: <https://kafka.apache.org/protocol#The_Messages_OffsetCommit>. Version 10 names topics by id; the
//! codec can write it, but clients that are served up to 9 lose nothing.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::offset_commit_request::OffsetCommitRequestPartition;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::{ApiKey, OffsetCommitRequest, OffsetCommitResponse};

use super::{Api, Call};
use crate::broker::coordinator::{exists, keep};
use crate::broker::group::{Claim, Committed};
use crate::broker::state::State;

pub(crate) struct OffsetCommit;

impl Api for OffsetCommit {
    const KEY: ApiKey = ApiKey::OffsetCommit;
    const VERSIONS: (i16, i16) = (2, 9);
    type Request = OffsetCommitRequest;
    type Response = OffsetCommitResponse;

    fn handle(
        state: &mut State,
        call: &Call<'_>,
        request: OffsetCommitRequest,
    ) -> Option<OffsetCommitResponse> {
        if let Some(code) = state.coordinator_error(&request.group_id, call.node) {
            return Some(Self::refuse(&request, call, code));
        }
        let topics = &state.topics;
        let mut named = request.topics.iter();
        if !named.any(|topic| topic.partitions.iter().any(|p| exists(topics, &topic.name, p.partition_index)))
        {
            // Without a partition that exists the group is not asked, nor made.
            return Some(respond(&request, |_, _| ResponseError::UnknownTopicOrPartition.code()));
        }
        let claim = Claim {
            group: &request.group_id,
            member: &request.member_id,
            instance: request.group_instance_id.as_deref(),
            generation: request.generation_id_or_member_epoch,
        };
        let mut commits = state.groups.commits(&claim, call.version, state.now);
        Some(respond(&request, |topic, partition| {
            let committed = Committed {
                offset: partition.committed_offset,
                leader_epoch: partition.committed_leader_epoch,
                metadata: partition.committed_metadata.as_deref().unwrap_or_default().to_owned(),
            };
            keep(topics, &mut commits, topic, partition.partition_index, committed)
        }))
    }

    fn refuse(request: &OffsetCommitRequest, _: &Call<'_>, code: i16) -> OffsetCommitResponse {
        respond(request, |_, _| code)
    }
}

/// An answer with a code for each partition, found in order.
fn respond(
    request: &OffsetCommitRequest,
    mut code: impl FnMut(&str, &OffsetCommitRequestPartition) -> i16,
) -> OffsetCommitResponse {
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            OffsetCommitResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(code(&topic.name, partition))
        });
        OffsetCommitResponseTopic::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    OffsetCommitResponse::default().with_topics(topics.collect())
}
