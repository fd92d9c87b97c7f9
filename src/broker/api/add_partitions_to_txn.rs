//! AddPartitionsToTxn: <https://kafka.apache.org/protocol#The_Messages_AddPartitionsToTxn>.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::{AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, ApiKey};

use super::{Api, Call};
use crate::broker::state::State;
use crate::broker::transactions::{Producer, told};

/// First version whose clients know PRODUCER_FENCED.
const KNOWS_FENCED_FROM: i16 = 2;

pub(crate) struct AddPartitionsToTxn;

impl Api for AddPartitionsToTxn {
    const KEY: ApiKey = ApiKey::AddPartitionsToTxn;
    /// Later ones are for brokers among themselves.
    const VERSIONS: (i16, i16) = (0, 3);
    type Request = AddPartitionsToTxnRequest;
    type Response = AddPartitionsToTxnResponse;

    fn handle(
        state: &mut State,
        call: &Call<'_>,
        request: AddPartitionsToTxnRequest,
    ) -> Option<AddPartitionsToTxnResponse> {
        let id = &*request.v3_and_below_transactional_id;
        if let Some(code) = state.coordinator_error(id, call.node) {
            return Some(answer(&request, |_, _| code));
        }
        let exists =
            |state: &State, topic: &str, partition: i32| state.topics.partition(topic, partition).is_some();
        let asked = request
            .v3_and_below_topics
            .iter()
            .flat_map(|topic| topic.partitions.iter().map(|partition| (topic.name.to_string(), *partition)));
        let asked: Vec<(String, i32)> = asked.collect();
        // All of them or none.
        if !asked.iter().all(|(topic, partition)| exists(state, topic, *partition)) {
            return Some(answer(&request, |topic, partition| {
                if exists(state, topic, partition) {
                    ResponseError::OperationNotAttempted.code()
                } else {
                    ResponseError::UnknownTopicOrPartition.code()
                }
            }));
        }
        let producer =
            Producer { id: request.v3_and_below_producer_id.0, epoch: request.v3_and_below_producer_epoch };
        let added = state.transactions.add_partitions(id, producer, asked, state.now);
        let code = added.map_or_else(|error| told(error, call.version >= KNOWS_FENCED_FROM), |()| 0);
        Some(answer(&request, |_, _| code))
    }

    fn refuse(request: &AddPartitionsToTxnRequest, _: &Call<'_>, code: i16) -> AddPartitionsToTxnResponse {
        answer(request, |_, _| code)
    }
}

fn answer(
    request: &AddPartitionsToTxnRequest,
    code: impl Fn(&str, i32) -> i16,
) -> AddPartitionsToTxnResponse {
    let topics = request.v3_and_below_topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|&partition| {
            AddPartitionsToTxnPartitionResult::default()
                .with_partition_index(partition)
                .with_partition_error_code(code(&topic.name, partition))
        });
        let result = AddPartitionsToTxnTopicResult::default().with_name(topic.name.clone());
        result.with_results_by_partition(partitions.collect())
    });
    AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(topics.collect())
}
