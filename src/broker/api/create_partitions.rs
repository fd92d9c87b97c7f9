//! CreatePartitions: <https://kafka.apache.org/protocol#The_Messages_CreatePartitions>.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::{ApiKey, CreatePartitionsRequest, CreatePartitionsResponse};

use super::{Api, Call, text};
use crate::broker::state::State;
use crate::broker::topics::PARTITIONS_MAX;

pub(crate) struct CreatePartitions;

impl Api for CreatePartitions {
    const KEY: ApiKey = ApiKey::CreatePartitions;
    const VERSIONS: (i16, i16) = (0, 3);
    type Request = CreatePartitionsRequest;
    type Response = CreatePartitionsResponse;

    fn handle(
        state: &mut State,
        _: &Call<'_>,
        request: CreatePartitionsRequest,
    ) -> Option<CreatePartitionsResponse> {
        let results = request.topics.iter().map(|topic| match grow(state, topic, request.validate_only) {
            Ok(()) => refused(topic, 0),
            Err((code, why)) => refused(topic, code).with_error_message(Some(text(why))),
        });
        Some(CreatePartitionsResponse::default().with_results(results.collect()))
    }

    fn refuse(request: &CreatePartitionsRequest, _: &Call<'_>, code: i16) -> CreatePartitionsResponse {
        let results = request.topics.iter().map(|topic| refused(topic, code));
        CreatePartitionsResponse::default().with_results(results.collect())
    }
}

fn refused(topic: &CreatePartitionsTopic, code: i16) -> CreatePartitionsTopicResult {
    CreatePartitionsTopicResult::default().with_name(topic.name.clone()).with_error_code(code)
}

fn grow(state: &mut State, topic: &CreatePartitionsTopic, validate_only: bool) -> Result<(), (i16, String)> {
    let found = state.topics.get(&topic.name).ok_or_else(|| {
        (ResponseError::UnknownTopicOrPartition.code(), format!("there is no topic '{}'", *topic.name))
    })?;
    let before = i32::try_from(found.partitions.len()).unwrap_or(i32::MAX);
    if topic.count <= before || topic.count > PARTITIONS_MAX {
        let why = format!("topic '{}' has {before} partitions; {} is not more", *topic.name, topic.count);
        return Err((ResponseError::InvalidPartitions.code(), why));
    }
    let replicas = found.partitions.first().map_or(1, |partition| partition.replicas.len());
    if !validate_only {
        state.add_partitions(&topic.name, topic.count, replicas);
    }
    Ok(())
}
