//! Produce, ListOffsets and OffsetForLeaderEpoch. Fetch has its own file.

use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::produce_response::{PartitionProduceResponse, TopicProduceResponse};
use kafka_protocol::messages::{
    ListOffsetsRequest, ListOffsetsResponse, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse,
    ProduceRequest, ProduceResponse,
};

use super::codes;
use super::state::{Partition, State};

/// The error of a request for a partition at this node under a leader epoch the client believes in (-1: any).
pub fn refusal(partition: Option<&Partition>, node: i32, epoch: i32) -> Option<i16> {
    let Some(partition) = partition else { return Some(codes::UNKNOWN_TOPIC_OR_PARTITION) };
    if partition.leader != node {
        return Some(codes::NOT_LEADER_OR_FOLLOWER);
    }
    match epoch {
        -1 => None,
        _ if epoch < partition.epoch => Some(codes::FENCED_LEADER_EPOCH),
        _ if epoch > partition.epoch => Some(codes::UNKNOWN_LEADER_EPOCH),
        _ => None,
    }
}

pub fn produce(state: &mut State, body: &ProduceRequest, version: i16, node: i32) -> ProduceResponse {
    let mut response = ProduceResponse::default();
    for topic in &body.topic_data {
        let name = if version >= 13 { state.name_of(topic.topic_id) } else { Some(topic.name.to_string()) };
        let mut answered = TopicProduceResponse::default().with_topic_id(topic.topic_id);
        answered.name = topic.name.clone();
        for data in &topic.partition_data {
            let mut told =
                PartitionProduceResponse::default().with_index(data.index).with_log_append_time_ms(-1);
            let found = name.as_ref().and_then(|name| state.find_mut(name, data.index));
            (told.error_code, told.base_offset) = match (found, &name) {
                (_, None) => (codes::UNKNOWN_TOPIC_ID, -1),
                (found, _) => match refusal(found.as_deref(), node, -1) {
                    Some(code) => (code, -1),
                    None => {
                        let partition = found.expect("no refusal");
                        partition.log.produce(data.records.as_deref().unwrap_or_default(), partition.epoch)
                    }
                },
            };
            if version >= 5 {
                told.log_start_offset = if told.error_code == 0 { 0 } else { -1 };
            }
            answered.partition_responses.push(told);
        }
        response.responses.push(answered);
    }
    response
}

pub fn list_offsets(
    state: &State,
    body: &ListOffsetsRequest,
    version: i16,
    node: i32,
) -> ListOffsetsResponse {
    let mut response = ListOffsetsResponse::default();
    for topic in &body.topics {
        let mut answered = ListOffsetsTopicResponse::default().with_name(topic.name.clone());
        for asked in &topic.partitions {
            let mut told = ListOffsetsPartitionResponse::default()
                .with_partition_index(asked.partition_index)
                .with_timestamp(-1)
                .with_offset(-1);
            let found = state.find(&topic.name, asked.partition_index);
            match (refusal(found, node, asked.current_leader_epoch), found) {
                (Some(code), _) => told.error_code = code,
                (None, None) => unreachable!("a missing partition is refused"),
                (None, Some(partition)) => {
                    (told.timestamp, told.offset) =
                        offset_for(partition, asked.timestamp, body.isolation_level);
                    if version >= 4 && told.offset >= 0 {
                        told.leader_epoch = partition.epoch;
                    }
                }
            }
            answered.partitions.push(told);
        }
        response.topics.push(answered);
    }
    response
}

/// -1 the end (of what the isolation may see), -2 and -4 the start, -3 the newest timestamp, else by time.
fn offset_for(partition: &Partition, timestamp: i64, isolation: i8) -> (i64, i64) {
    let log = &partition.log;
    match timestamp {
        -1 if isolation == 1 => (-1, log.last_stable()),
        -1 => (-1, log.high_watermark()),
        -2 | -4 => (-1, log.start),
        -3 => log.batches.last().map_or((-1, -1), |b| (-1, b.last)),
        time => log.offset_at(time).unwrap_or((-1, -1)),
    }
}

pub fn leader_epochs(
    state: &State,
    body: &OffsetForLeaderEpochRequest,
    node: i32,
) -> OffsetForLeaderEpochResponse {
    let mut response = OffsetForLeaderEpochResponse::default();
    for topic in &body.topics {
        let mut answered = OffsetForLeaderTopicResult::default().with_topic(topic.topic.clone());
        for asked in &topic.partitions {
            let mut told = EpochEndOffset::default().with_partition(asked.partition);
            let found = state.find(&topic.topic, asked.partition);
            match (refusal(found, node, asked.current_leader_epoch), found) {
                (Some(code), _) => told.error_code = code,
                (None, None) => unreachable!("a missing partition is refused"),
                (None, Some(partition)) => {
                    (told.leader_epoch, told.end_offset) =
                        partition.log.epoch_end(asked.leader_epoch, partition.epoch);
                }
            }
            answered.partitions.push(told);
        }
        response.topics.push(answered);
    }
    response
}
