//! Fetch: <https://kafka.apache.org/protocol#The_Messages_Fetch>. Sessions (KIP-227) and waiting are in
//! [`fetches`](crate::broker::fetches); here is what one look at the logs gives.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::fetch_response::{
    AbortedTransaction, FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData,
};
use kafka_protocol::messages::{ApiKey, BrokerId, FetchRequest, FetchResponse, ProducerId};

use super::{Api, Call};
use crate::broker::fetches::{Asked, Plan};
use crate::broker::state::State;

/// From this version on topics are named by id.
pub(crate) const BY_ID_FROM: i16 = 13;

pub(crate) struct Fetch;

impl Api for Fetch {
    const KEY: ApiKey = ApiKey::Fetch;
    const VERSIONS: (i16, i16) = (4, 18);
    type Request = FetchRequest;
    type Response = FetchResponse;

    fn handle(state: &mut State, call: &Call<'_>, request: FetchRequest) -> Option<FetchResponse> {
        let plan = match state.plan_fetch(call, &request) {
            Ok(plan) => plan,
            Err(code) => return Some(FetchResponse::default().with_error_code(code)),
        };
        if !state.is_due(&plan) {
            state.fetches.park(plan);
            return None;
        }
        Some(state.answer_fetch(plan))
    }

    fn refuse(request: &FetchRequest, call: &Call<'_>, code: i16) -> FetchResponse {
        if call.version >= 7 {
            return FetchResponse::default().with_error_code(code);
        }
        let topics = request.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|asked| refused(asked.partition, code)).collect();
            FetchableTopicResponse::default().with_topic(topic.topic.clone()).with_partitions(partitions)
        });
        FetchResponse::default().with_responses(topics.collect())
    }
}

fn refused(partition: i32, code: i16) -> PartitionData {
    PartitionData::default()
        .with_partition_index(partition)
        .with_error_code(code)
        .with_high_watermark(-1)
        .with_last_stable_offset(-1)
        .with_log_start_offset(-1)
        .with_records(Some(bytes::Bytes::new()))
}

/// What one partition gives, at most `left` bytes of it; with `first`, one batch whatever its size.
pub(crate) fn read(state: &mut State, plan: &Plan, asked: &Asked, left: usize, first: bool) -> PartitionData {
    if asked.topic.is_empty() {
        return refused(asked.partition, ResponseError::UnknownTopicId.code());
    }
    let known = state.topics.get(&asked.topic);
    // The same name under another id is another topic.
    if plan.version >= BY_ID_FROM && known.is_some_and(|topic| topic.id != asked.topic_id) {
        return refused(asked.partition, ResponseError::InconsistentTopicId.code());
    }
    let found = state.led_partition(&asked.topic, asked.partition, plan.node, asked.leader_epoch);
    let partition = match found {
        Ok(partition) => partition,
        Err(code) => {
            let moved = [ResponseError::NotLeaderOrFollower.code(), ResponseError::FencedLeaderEpoch.code()];
            let data = refused(asked.partition, code);
            return match known_leader(state, asked) {
                Some((leader, epoch)) if plan.version >= 12 && moved.contains(&code) => {
                    let current = LeaderIdAndEpoch::default().with_leader_id(BrokerId(leader));
                    data.with_current_leader(current.with_leader_epoch(epoch))
                }
                _ => data,
            };
        }
    };
    let bytes_max = left.min(usize::try_from(asked.bytes_max).unwrap_or(0));
    let log = &partition.log;
    let (high_watermark, stable, start) = (log.end_offset(), log.last_stable_offset(), log.start_offset());
    let data = PartitionData::default()
        .with_partition_index(asked.partition)
        .with_high_watermark(high_watermark)
        .with_last_stable_offset(stable)
        .with_log_start_offset(start);
    match log.read(asked.offset, bytes_max, plan.committed, first) {
        Ok(read) => {
            let aborted = read.aborted.into_iter().map(|transaction| {
                let aborted =
                    AbortedTransaction::default().with_producer_id(ProducerId(transaction.producer_id));
                aborted.with_first_offset(transaction.first_offset)
            });
            let aborted = plan.committed.then(|| aborted.collect());
            data.with_aborted_transactions(aborted).with_records(Some(read.records))
        }
        Err(code) => {
            refused(asked.partition, code).with_high_watermark(high_watermark).with_log_start_offset(start)
        }
    }
}

fn known_leader(state: &State, asked: &Asked) -> Option<(i32, i32)> {
    let partition = state.topics.partition(&asked.topic, asked.partition)?;
    Some((partition.leader, partition.leader_epoch))
}

/// The answer of these partitions, grouped by topic in the order in which they come.
pub(crate) fn respond(state: &State, plan: &Plan, told: Vec<(&Asked, PartitionData)>) -> FetchResponse {
    let mut leaders: Vec<i32> = Vec::new();
    let mut topics: Vec<FetchableTopicResponse> = Vec::new();
    for (asked, data) in told {
        if data.current_leader.leader_id.0 >= 0 && !leaders.contains(&data.current_leader.leader_id.0) {
            leaders.push(data.current_leader.leader_id.0);
        }
        let same = |topic: &&mut FetchableTopicResponse| {
            if plan.version >= BY_ID_FROM {
                topic.topic_id == asked.topic_id
            } else {
                *topic.topic == *asked.topic
            }
        };
        match topics.iter_mut().find(same) {
            Some(topic) => topic.partitions.push(data),
            None => {
                let topic = FetchableTopicResponse::default().with_partitions(vec![data]);
                topics.push(if plan.version >= BY_ID_FROM {
                    topic.with_topic_id(asked.topic_id)
                } else {
                    topic.with_topic(super::text(asked.topic.clone()).into())
                });
            }
        }
    }
    let response = FetchResponse::default().with_session_id(plan.session).with_responses(topics);
    if plan.version < 16 {
        return response;
    }
    let endpoints = leaders.into_iter().filter_map(|id| state.node(id)).map(|node| {
        let endpoint = NodeEndpoint::default().with_node_id(BrokerId(node.id));
        endpoint.with_host(node.host.clone()).with_port(i32::from(node.port))
    });
    response.with_node_endpoints(endpoints.collect())
}
