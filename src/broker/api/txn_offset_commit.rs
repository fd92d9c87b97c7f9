//! TxnOffsetCommit: <https://kafka.apache.org/protocol#The_Messages_TxnOffsetCommit>. The offsets count when the
//! producer's transaction is committed.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::txn_offset_commit_request::TxnOffsetCommitRequestPartition;
use kafka_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use kafka_protocol::messages::{ApiKey, TxnOffsetCommitRequest, TxnOffsetCommitResponse};

use super::{Api, Call};
use crate::broker::coordinator::{exists, keep};
use crate::broker::group::{Claim, Committed};
use crate::broker::state::State;
use crate::broker::transactions::{Producer, told, told_unverified};

/// From this version on clients know TRANSACTION_ABORTABLE (KIP-890).
const ABORTABLE_FROM: i16 = 4;
/// From this version on the group need not be added to the transaction before (KIP-890, transaction version 2).
const ADDS_FROM: i16 = 5;

pub(crate) struct TxnOffsetCommit;

impl Api for TxnOffsetCommit {
    const KEY: ApiKey = ApiKey::TxnOffsetCommit;
    const VERSIONS: (i16, i16) = (0, 5);
    type Request = TxnOffsetCommitRequest;
    type Response = TxnOffsetCommitResponse;

    fn handle(
        state: &mut State,
        call: &Call<'_>,
        request: TxnOffsetCommitRequest,
    ) -> Option<TxnOffsetCommitResponse> {
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
        if let Err(code) = admit(state, call.version, &request) {
            return Some(Self::refuse(&request, call, code));
        }
        let claim = Claim {
            group: &request.group_id,
            member: &request.member_id,
            instance: request.group_instance_id.as_deref(),
            generation: request.generation_id,
        };
        let topics = &state.topics;
        let mut commits = state.groups.transactional_commits(&claim, request.producer_id.0);
        Some(respond(&request, |topic, partition| {
            let committed = Committed {
                offset: partition.committed_offset,
                leader_epoch: partition.committed_leader_epoch,
                metadata: partition.committed_metadata.as_deref().unwrap_or_default().to_owned(),
            };
            keep(topics, &mut commits, topic, partition.partition_index, committed)
        }))
    }

    fn refuse(request: &TxnOffsetCommitRequest, _: &Call<'_>, code: i16) -> TxnOffsetCommitResponse {
        respond(request, |_, _| code)
    }
}

/// Whether the producer has an open transaction that may hold offsets of the group, or can have one.
fn admit(state: &mut State, version: i16, request: &TxnOffsetCommitRequest) -> Result<(), i16> {
    let id = request.transactional_id.as_str();
    let producer = Producer { id: request.producer_id.0, epoch: request.producer_epoch };
    let group = request.group_id.as_str();
    if version >= ADDS_FROM {
        let added = state.transactions.add_group(id, producer, group, state.now);
        // Producers know the older name for it.
        return added.map_err(|error| told(error, false));
    }
    let verified = state.transactions.verify_group(id, producer, group);
    verified.map_err(|error| told_unverified(error, version >= ABORTABLE_FROM))
}

/// An answer with a code for each partition, found in order.
fn respond(
    request: &TxnOffsetCommitRequest,
    mut code: impl FnMut(&str, &TxnOffsetCommitRequestPartition) -> i16,
) -> TxnOffsetCommitResponse {
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            TxnOffsetCommitResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(code(&topic.name, partition))
        });
        TxnOffsetCommitResponseTopic::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    TxnOffsetCommitResponse::default().with_topics(topics.collect())
}
