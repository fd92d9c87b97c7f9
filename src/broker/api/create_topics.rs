//! CreateTopics: <https://kafka.apache.org/protocol#The_Messages_CreateTopics>.

use std::collections::BTreeMap;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::{ApiKey, CreateTopicsRequest, CreateTopicsResponse};

use super::{Api, Call, text};
use crate::broker::state::State;
use crate::broker::topics::{PARTITIONS_MAX, is_name};

pub(crate) struct CreateTopics;

impl Api for CreateTopics {
    const KEY: ApiKey = ApiKey::CreateTopics;
    const VERSIONS: (i16, i16) = (2, 7);
    type Request = CreateTopicsRequest;
    type Response = CreateTopicsResponse;

    fn handle(state: &mut State, _: &Call<'_>, request: CreateTopicsRequest) -> Option<CreateTopicsResponse> {
        let topics = request.topics.iter().map(|topic| match create(state, topic, request.validate_only) {
            Ok(result) => result.with_name(topic.name.clone()),
            Err((code, why)) => refused(topic, code).with_error_message(Some(text(why))),
        });
        Some(CreateTopicsResponse::default().with_topics(topics.collect()))
    }

    fn refuse(request: &CreateTopicsRequest, _: &Call<'_>, code: i16) -> CreateTopicsResponse {
        let topics = request.topics.iter().map(|topic| refused(topic, code));
        CreateTopicsResponse::default().with_topics(topics.collect())
    }
}

fn refused(topic: &CreatableTopic, code: i16) -> CreatableTopicResult {
    CreatableTopicResult::default()
        .with_name(topic.name.clone())
        .with_error_code(code)
        .with_num_partitions(-1)
        .with_replication_factor(-1)
}

fn create(
    state: &mut State,
    topic: &CreatableTopic,
    validate_only: bool,
) -> Result<CreatableTopicResult, (i16, String)> {
    let name = topic.name.as_str();
    if !is_name(name) {
        let why = "a topic name has 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_', '-'";
        return Err((ResponseError::InvalidTopicException.code(), why.to_owned()));
    }
    if state.topics.get(name).is_some() {
        return Err((ResponseError::TopicAlreadyExists.code(), format!("topic '{name}' already exists")));
    }
    let nodes = state.nodes_up().count();
    let (partitions, replicas) = if topic.assignments.is_empty() {
        let asked = topic.num_partitions;
        let partitions = if asked == -1 { state.config.auto_create_partitions.unwrap_or(1) } else { asked };
        (partitions, if topic.replication_factor == -1 { 1 } else { i32::from(topic.replication_factor) })
    } else {
        // Which nodes is not followed, only how many: leaders are spread here anyway.
        let most = topic.assignments.iter().map(|assignment| assignment.broker_ids.len()).max();
        let count = i32::try_from(topic.assignments.len()).unwrap_or(i32::MAX);
        (count, most.and_then(|most| i32::try_from(most).ok()).unwrap_or(0))
    };
    if !(1..=PARTITIONS_MAX).contains(&partitions) {
        let why = format!("the number of partitions is to be 1 to {PARTITIONS_MAX}, not {partitions}");
        return Err((ResponseError::InvalidPartitions.code(), why));
    }
    let replicas = usize::try_from(replicas).ok().filter(|replicas| (1..=nodes).contains(replicas));
    let replicas = replicas.ok_or_else(|| {
        let why = format!("the replication factor is to be 1 to {nodes}, the number of nodes");
        (ResponseError::InvalidReplicationFactor.code(), why)
    })?;
    let result = CreatableTopicResult::default()
        .with_num_partitions(partitions)
        .with_replication_factor(i16::try_from(replicas).unwrap_or(i16::MAX))
        .with_configs(Some(Vec::new()));
    if validate_only {
        return Ok(result);
    }
    state.create_topic(name, partitions, replicas).map_err(|code| (code, String::new()))?;
    let configs: BTreeMap<String, String> = topic
        .configs
        .iter()
        .filter_map(|config| Some((config.name.to_string(), config.value.as_ref()?.to_string())))
        .collect();
    let Some(created) = state.topics.get_mut(name) else { return Ok(result) };
    created.configs = configs;
    Ok(result.with_topic_id(created.id))
}
