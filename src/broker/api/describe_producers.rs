//! DescribeProducers: <https://kafka.apache.org/protocol#The_Messages_DescribeProducers>.

use kafka_protocol::messages::describe_producers_response::{
    PartitionResponse, ProducerState, TopicResponse,
};
use kafka_protocol::messages::{ApiKey, DescribeProducersRequest, DescribeProducersResponse, ProducerId};

use super::{Api, Call};
use crate::broker::log;
use crate::broker::state::State;

pub(crate) struct DescribeProducers;

impl Api for DescribeProducers {
    const KEY: ApiKey = ApiKey::DescribeProducers;
    const VERSIONS: (i16, i16) = (0, 0);
    type Request = DescribeProducersRequest;
    type Response = DescribeProducersResponse;

    fn handle(
        state: &mut State,
        call: &Call<'_>,
        request: DescribeProducersRequest,
    ) -> Option<DescribeProducersResponse> {
        Some(answer(&request, |topic, index| {
            let response = PartitionResponse::default().with_partition_index(index);
            match state.led_partition(topic, index, call.node, -1) {
                Ok(partition) => {
                    response.with_active_producers(partition.log.producers().map(describe).collect())
                }
                Err(code) => response.with_error_code(code),
            }
        }))
    }

    fn refuse(request: &DescribeProducersRequest, _: &Call<'_>, code: i16) -> DescribeProducersResponse {
        answer(request, |_, index| {
            PartitionResponse::default().with_partition_index(index).with_error_code(code)
        })
    }
}

fn answer(
    request: &DescribeProducersRequest,
    mut one: impl FnMut(&str, i32) -> PartitionResponse,
) -> DescribeProducersResponse {
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partition_indexes.iter().map(|index| one(&topic.name, *index)).collect();
        TopicResponse::default().with_name(topic.name.clone()).with_partitions(partitions)
    });
    DescribeProducersResponse::default().with_topics(topics.collect())
}

fn describe(producer: log::ProducerState) -> ProducerState {
    ProducerState::default()
        .with_producer_id(ProducerId(producer.producer_id))
        .with_producer_epoch(i32::from(producer.producer_epoch))
        .with_last_sequence(producer.last_sequence)
        .with_last_timestamp(producer.last_timestamp_ms)
        .with_coordinator_epoch(producer.coordinator_epoch)
        .with_current_txn_start_offset(producer.transaction_start_offset)
}
