//! OffsetDelete: <https://kafka.apache.org/protocol#The_Messages_OffsetDelete>.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_protocol::messages::{ApiKey, OffsetDeleteRequest, OffsetDeleteResponse};

use super::{Api, Call};
use crate::broker::coordinator::exists;
use crate::broker::state::State;

pub(crate) struct OffsetDelete;

impl Api for OffsetDelete {
    const KEY: ApiKey = ApiKey::OffsetDelete;
    const VERSIONS: (i16, i16) = (0, 0);
    type Request = OffsetDeleteRequest;
    type Response = OffsetDeleteResponse;

    fn handle(
        state: &mut State,
        call: &Call<'_>,
        request: OffsetDeleteRequest,
    ) -> Option<OffsetDeleteResponse> {
        if let Some(code) = state.coordinator_error(&request.group_id, call.node) {
            return Some(Self::refuse(&request, call, code));
        }
        if let Err(error) = state.groups.may_delete_offsets(&request.group_id) {
            return Some(Self::refuse(&request, call, error.code()));
        }
        let topics = request.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                let index = partition.partition_index;
                let outcome = if exists(&state.topics, &topic.name, index) {
                    state.groups.delete_offset(&request.group_id, &topic.name, index)
                } else {
                    Err(ResponseError::UnknownTopicOrPartition)
                };
                OffsetDeleteResponsePartition::default()
                    .with_partition_index(index)
                    .with_error_code(outcome.map_or_else(|error| error.code(), |()| 0))
            });
            OffsetDeleteResponseTopic::default()
                .with_name(topic.name.clone())
                .with_partitions(partitions.collect())
        });
        let topics = topics.collect();
        Some(OffsetDeleteResponse::default().with_topics(topics))
    }

    fn refuse(_: &OffsetDeleteRequest, _: &Call<'_>, code: i16) -> OffsetDeleteResponse {
        OffsetDeleteResponse::default().with_error_code(code)
    }
}
