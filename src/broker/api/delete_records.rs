//! DeleteRecords: <https://kafka.apache.org/protocol#The_Messages_DeleteRecords> (KIP-107).

use kafka_protocol::ResponseError;
use kafka_protocol::messages::delete_records_request::DeleteRecordsPartition;
use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kafka_protocol::messages::{ApiKey, DeleteRecordsRequest, DeleteRecordsResponse};

use super::{Api, Call};
use crate::broker::state::State;

/// As an offset: everything.
const HIGH_WATERMARK: i64 = -1;

pub(crate) struct DeleteRecords;

impl Api for DeleteRecords {
    const KEY: ApiKey = ApiKey::DeleteRecords;
    const VERSIONS: (i16, i16) = (0, 2);
    type Request = DeleteRecordsRequest;
    type Response = DeleteRecordsResponse;

    fn handle(
        state: &mut State,
        call: &Call<'_>,
        request: DeleteRecordsRequest,
    ) -> Option<DeleteRecordsResponse> {
        Some(answer(&request, |topic, asked| match delete(state, call.node, topic, asked) {
            Ok(low_watermark) => {
                let result =
                    DeleteRecordsPartitionResult::default().with_partition_index(asked.partition_index);
                result.with_low_watermark(low_watermark)
            }
            Err(code) => refused(asked, code),
        }))
    }

    fn refuse(request: &DeleteRecordsRequest, _: &Call<'_>, code: i16) -> DeleteRecordsResponse {
        answer(request, |_, asked| refused(asked, code))
    }
}

fn refused(asked: &DeleteRecordsPartition, code: i16) -> DeleteRecordsPartitionResult {
    let result = DeleteRecordsPartitionResult::default().with_partition_index(asked.partition_index);
    result.with_low_watermark(-1).with_error_code(code)
}

fn answer(
    request: &DeleteRecordsRequest,
    mut one: impl FnMut(&str, &DeleteRecordsPartition) -> DeleteRecordsPartitionResult,
) -> DeleteRecordsResponse {
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|asked| one(&topic.name, asked)).collect();
        DeleteRecordsTopicResult::default().with_name(topic.name.clone()).with_partitions(partitions)
    });
    DeleteRecordsResponse::default().with_topics(topics.collect())
}

fn delete(state: &mut State, node: i32, topic: &str, asked: &DeleteRecordsPartition) -> Result<i64, i16> {
    let partition = state.led_partition(topic, asked.partition_index, node, -1)?;
    let end = partition.log.end_offset();
    let offset = if asked.offset == HIGH_WATERMARK { end } else { asked.offset };
    if offset > end || offset < 0 {
        return Err(ResponseError::OffsetOutOfRange.code());
    }
    partition.log.delete_records_before(offset);
    Ok(partition.log.start_offset())
}
