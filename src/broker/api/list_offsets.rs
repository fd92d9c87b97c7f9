//! ListOffsets: <https://kafka.apache.org/protocol#The_Messages_ListOffsets>.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::list_offsets_request::ListOffsetsPartition;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::{ApiKey, ListOffsetsRequest, ListOffsetsResponse};

use super::{Api, Call};
use crate::broker::log::TimedOffset;
use crate::broker::state::State;

/// From this version on the answer has leader epochs.
const EPOCH_FROM: i16 = 4;

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
/// The record with the largest timestamp (KIP-734).
const MAX_TIMESTAMP: i64 = -3;
/// The earliest offset on the broker's own disk (KIP-405): here all of it.
const EARLIEST_LOCAL: i64 = -4;
/// The latest offset in tiered storage (KIP-1005): there is none.
const LATEST_TIERED: i64 = -5;

pub(crate) struct ListOffsets;

impl Api for ListOffsets {
    const KEY: ApiKey = ApiKey::ListOffsets;
    const VERSIONS: (i16, i16) = (1, 10);
    type Request = ListOffsetsRequest;
    type Response = ListOffsetsResponse;

    fn handle(
        state: &mut State,
        call: &Call<'_>,
        request: ListOffsetsRequest,
    ) -> Option<ListOffsetsResponse> {
        let committed = request.isolation_level == 1;
        Some(answer(&request, |topic, partition| {
            let response =
                ListOffsetsPartitionResponse::default().with_partition_index(partition.partition_index);
            match find(state, topic, partition, call.node, committed) {
                Ok((offset, timestamp, epoch)) => {
                    let epoch = if call.version >= EPOCH_FROM { epoch } else { -1 };
                    response.with_offset(offset).with_timestamp(timestamp).with_leader_epoch(epoch)
                }
                Err(code) => refused(partition.partition_index, code),
            }
        }))
    }

    fn refuse(request: &ListOffsetsRequest, _: &Call<'_>, code: i16) -> ListOffsetsResponse {
        answer(request, |_, partition| refused(partition.partition_index, code))
    }
}

fn refused(partition: i32, code: i16) -> ListOffsetsPartitionResponse {
    let response =
        ListOffsetsPartitionResponse::default().with_partition_index(partition).with_error_code(code);
    response.with_offset(-1).with_timestamp(-1)
}

fn answer(
    request: &ListOffsetsRequest,
    mut one: impl FnMut(&str, &ListOffsetsPartition) -> ListOffsetsPartitionResponse,
) -> ListOffsetsResponse {
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| one(&topic.name, partition)).collect();
        ListOffsetsTopicResponse::default().with_name(topic.name.clone()).with_partitions(partitions)
    });
    ListOffsetsResponse::default().with_topics(topics.collect())
}

/// Offset, timestamp and leader epoch; an offset of −1 where nothing fits.
fn find(
    state: &mut State,
    topic: &str,
    asked: &ListOffsetsPartition,
    node: i32,
    committed: bool,
) -> Result<(i64, i64, i32), i16> {
    let partition = state.led_partition(topic, asked.partition_index, node, asked.current_leader_epoch)?;
    let (log, epoch) = (&partition.log, partition.leader_epoch);
    let nothing = (-1, -1, -1);
    let found = |found: TimedOffset| (found.offset, found.timestamp_ms, found.leader_epoch);
    let found = match asked.timestamp {
        LATEST if committed => (log.last_stable_offset(), -1, epoch),
        LATEST => (log.end_offset(), -1, epoch),
        EARLIEST | EARLIEST_LOCAL => (log.start_offset(), -1, epoch),
        MAX_TIMESTAMP => log.max_timestamp().map_or(nothing, found),
        LATEST_TIERED => nothing,
        timestamp if timestamp >= 0 => log.find_timestamp(timestamp).map_or(nothing, found),
        _ => return Err(ResponseError::UnsupportedVersion.code()),
    };
    Ok(found)
}
