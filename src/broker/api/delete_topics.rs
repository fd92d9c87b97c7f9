//! DeleteTopics: <https://kafka.apache.org/protocol#The_Messages_DeleteTopics>.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{ApiKey, DeleteTopicsRequest, DeleteTopicsResponse, TopicName};
use uuid::Uuid;

use super::{Api, Call};
use crate::broker::state::State;

/// From this version on topics may be named by id.
const BY_ID_FROM: i16 = 6;

pub(crate) struct DeleteTopics;

impl Api for DeleteTopics {
    const KEY: ApiKey = ApiKey::DeleteTopics;
    const VERSIONS: (i16, i16) = (1, 6);
    type Request = DeleteTopicsRequest;
    type Response = DeleteTopicsResponse;

    fn handle(
        state: &mut State,
        call: &Call<'_>,
        request: DeleteTopicsRequest,
    ) -> Option<DeleteTopicsResponse> {
        let responses = asked(&request, call.version).into_iter().map(|(name, id)| delete(state, name, id));
        Some(DeleteTopicsResponse::default().with_responses(responses.collect()))
    }

    fn refuse(request: &DeleteTopicsRequest, call: &Call<'_>, code: i16) -> DeleteTopicsResponse {
        let refused = |(name, id): (Option<TopicName>, Uuid)| {
            DeletableTopicResult::default().with_name(name).with_topic_id(id).with_error_code(code)
        };
        let responses = asked(request, call.version).into_iter().map(refused);
        DeleteTopicsResponse::default().with_responses(responses.collect())
    }
}

fn asked(request: &DeleteTopicsRequest, version: i16) -> Vec<(Option<TopicName>, Uuid)> {
    if version >= BY_ID_FROM {
        request.topics.iter().map(|topic| (topic.name.clone(), topic.topic_id)).collect()
    } else {
        request.topic_names.iter().map(|name| (Some(name.clone()), Uuid::nil())).collect()
    }
}

fn delete(state: &mut State, name: Option<TopicName>, id: Uuid) -> DeletableTopicResult {
    let by_id = name.is_none();
    let known = match &name {
        Some(name) => Some(name.to_string()),
        None => state.topics.name_of(id).map(str::to_owned),
    };
    let result = DeletableTopicResult::default();
    match known.and_then(|name| state.delete_topic(&name)) {
        Some(topic) => result.with_name(Some(topic.name)).with_topic_id(topic.id),
        None => {
            let code = if by_id {
                ResponseError::UnknownTopicId.code()
            } else {
                ResponseError::UnknownTopicOrPartition.code()
            };
            result.with_name(name).with_topic_id(id).with_error_code(code)
        }
    }
}
