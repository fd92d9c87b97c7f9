//! OffsetForLeaderEpoch: <https://kafka.apache.org/protocol#The_Messages_OffsetForLeaderEpoch> (KIP-320).

use kafka_protocol::messages::offset_for_leader_epoch_request::OffsetForLeaderPartition;
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::{ApiKey, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};

use super::{Api, Call};
use crate::broker::state::State;

pub(crate) struct OffsetForLeaderEpoch;

impl Api for OffsetForLeaderEpoch {
    const KEY: ApiKey = ApiKey::OffsetForLeaderEpoch;
    const VERSIONS: (i16, i16) = (2, 4);
    type Request = OffsetForLeaderEpochRequest;
    type Response = OffsetForLeaderEpochResponse;

    fn handle(
        state: &mut State,
        call: &Call<'_>,
        request: OffsetForLeaderEpochRequest,
    ) -> Option<OffsetForLeaderEpochResponse> {
        Some(answer(&request, |topic, asked| {
            let epoch = asked.current_leader_epoch;
            match state.led_partition(topic, asked.partition, call.node, epoch) {
                Ok(partition) => {
                    let (epoch, end_offset) = partition.log.epoch_end(asked.leader_epoch);
                    let response = EpochEndOffset::default().with_partition(asked.partition);
                    response.with_leader_epoch(epoch).with_end_offset(end_offset)
                }
                Err(code) => refused(asked.partition, code),
            }
        }))
    }

    fn refuse(
        request: &OffsetForLeaderEpochRequest,
        _: &Call<'_>,
        code: i16,
    ) -> OffsetForLeaderEpochResponse {
        answer(request, |_, asked| refused(asked.partition, code))
    }
}

fn refused(partition: i32, code: i16) -> EpochEndOffset {
    let response = EpochEndOffset::default().with_partition(partition).with_error_code(code);
    response.with_leader_epoch(-1).with_end_offset(-1)
}

fn answer(
    request: &OffsetForLeaderEpochRequest,
    mut one: impl FnMut(&str, &OffsetForLeaderPartition) -> EpochEndOffset,
) -> OffsetForLeaderEpochResponse {
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|asked| one(&topic.topic, asked)).collect();
        OffsetForLeaderTopicResult::default().with_topic(topic.topic.clone()).with_partitions(partitions)
    });
    OffsetForLeaderEpochResponse::default().with_topics(topics.collect())
}
