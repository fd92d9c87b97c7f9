//! The requests about the cluster and its topics: ApiVersions, Metadata, FindCoordinator, CreateTopics, DeleteTopics,
//! DescribeConfigs, InitProducerId.

use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    ApiVersionsResponse, CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest,
    DeleteTopicsResponse, DescribeConfigsRequest, DescribeConfigsResponse, FindCoordinatorRequest,
    FindCoordinatorResponse, InitProducerIdRequest, InitProducerIdResponse, MetadataRequest,
    MetadataResponse, ProducerId,
};
use uuid::Uuid;

use super::codes;
use super::state::{State, broker_id, text, topic_name};
use super::versions::Kafka;

pub fn api_versions(state: &State) -> ApiVersionsResponse {
    let mut response = ApiVersionsResponse::default();
    for api in Kafka::apis() {
        if let Some((min, max)) = state.range(api) {
            let range = ApiVersion::default().with_api_key(api as i16);
            response.api_keys.push(range.with_min_version(min).with_max_version(max));
        }
    }
    response
}

pub fn metadata(state: &mut State, body: &MetadataRequest, version: i16) -> MetadataResponse {
    let all = match &body.topics {
        None => true,
        Some(topics) => version == 0 && topics.is_empty(),
    };
    let asked: Vec<MetadataRequestTopic> = if all {
        let named = |name: &String| MetadataRequestTopic::default().with_name(Some(topic_name(name)));
        state.topics.keys().map(named).collect()
    } else {
        body.topics.clone().unwrap_or_default()
    };
    let mut response = MetadataResponse::default();
    for topic in asked {
        response.topics.push(topic_metadata(state, &topic, body.allow_auto_topic_creation, version));
    }
    response.brokers = state
        .nodes
        .iter()
        .filter(|n| n.listed)
        .map(|n| {
            MetadataResponseBroker::default()
                .with_node_id(broker_id(n.id))
                .with_host(text("127.0.0.1"))
                .with_port(i32::from(n.port))
        })
        .collect();
    if version >= 1 {
        response.controller_id = response.brokers.first().map_or(broker_id(-1), |b| b.node_id);
    }
    if version >= 2 {
        response.cluster_id = Some(text("fake-cluster"));
    }
    response
}

fn topic_metadata(
    state: &mut State,
    asked: &MetadataRequestTopic,
    may_create: bool,
    version: i16,
) -> MetadataResponseTopic {
    let name = match &asked.name {
        Some(name) => Some(name.to_string()),
        None => state.name_of(asked.topic_id),
    };
    let mut answered = MetadataResponseTopic::default();
    let Some(name) = name else {
        answered.topic_id = asked.topic_id;
        answered.error_code = codes::UNKNOWN_TOPIC_ID;
        return answered;
    };
    answered.name = Some(topic_name(&name));
    if !state.topics.contains_key(&name) {
        if may_create && state.auto_create {
            state.create_topic(&name, 1);
            answered.error_code = codes::LEADER_NOT_AVAILABLE;
        } else {
            answered.error_code = codes::UNKNOWN_TOPIC_OR_PARTITION;
        }
        return answered;
    }
    let topic = &state.topics[&name];
    if version >= 10 {
        answered.topic_id = topic.id;
    }
    for (index, partition) in (0..).zip(&topic.partitions) {
        let mut told = MetadataResponsePartition::default().with_partition_index(index);
        told.leader_id = broker_id(partition.leader);
        told.error_code = if partition.leader < 0 { codes::LEADER_NOT_AVAILABLE } else { 0 };
        if version >= 7 {
            told.leader_epoch = partition.epoch;
        }
        told.replica_nodes = vec![broker_id(partition.leader)];
        told.isr_nodes = vec![broker_id(partition.leader)];
        answered.partitions.push(told);
    }
    answered
}

pub fn find_coordinator(
    state: &State,
    body: &FindCoordinatorRequest,
    version: i16,
) -> FindCoordinatorResponse {
    let node = state.coordinator;
    let port = state.port(node);
    if version < 4 {
        return FindCoordinatorResponse::default()
            .with_node_id(broker_id(node))
            .with_host(text("127.0.0.1"))
            .with_port(port);
    }
    let found = |key: &kafka_protocol::protocol::StrBytes| {
        Coordinator::default()
            .with_key(key.clone())
            .with_node_id(broker_id(node))
            .with_host(text("127.0.0.1"))
            .with_port(port)
    };
    FindCoordinatorResponse::default().with_coordinators(body.coordinator_keys.iter().map(found).collect())
}

pub fn create_topics(state: &mut State, body: &CreateTopicsRequest, version: i16) -> CreateTopicsResponse {
    let mut response = CreateTopicsResponse::default();
    for topic in &body.topics {
        let mut answered = CreatableTopicResult::default().with_name(topic.name.clone());
        let count = if topic.num_partitions == -1 { 1 } else { topic.num_partitions };
        match usize::try_from(count) {
            _ if state.topics.contains_key(topic.name.as_str()) => {
                answered.error_code = codes::TOPIC_ALREADY_EXISTS;
                answered.error_message =
                    Some(text(format!("Topic '{}' already exists.", topic.name.as_str())));
            }
            Ok(wanted) if wanted > 0 => {
                let id = match body.validate_only {
                    true => Uuid::nil(),
                    false => state.create_topic(&topic.name, wanted),
                };
                if version >= 7 {
                    answered.topic_id = id;
                }
                if version >= 5 {
                    answered.num_partitions = count;
                    answered.replication_factor = 1;
                    answered.configs = Some(Vec::new());
                }
            }
            _ => answered.error_code = codes::INVALID_PARTITIONS,
        }
        response.topics.push(answered);
    }
    response
}

pub fn delete_topics(state: &mut State, body: &DeleteTopicsRequest, version: i16) -> DeleteTopicsResponse {
    let by_name = body.topic_names.iter().map(|name| (Some(name.to_string()), Uuid::nil()));
    let by_either = body.topics.iter().map(|t| (t.name.as_ref().map(|name| name.to_string()), t.topic_id));
    let asked: Vec<(Option<String>, Uuid)> =
        if version >= 6 { by_either.collect() } else { by_name.collect() };
    let mut response = DeleteTopicsResponse::default();
    for (name, id) in asked {
        let by_id = name.is_none();
        let name = name.or_else(|| state.name_of(id));
        let removed = name.as_ref().and_then(|name| state.topics.remove(name));
        let mut answered = DeletableTopicResult::default();
        answered.name = name.as_deref().map(topic_name);
        match (removed, by_id) {
            (Some(topic), _) if version >= 6 => answered.topic_id = topic.id,
            (Some(_), _) => {}
            (None, true) => {
                answered.topic_id = id;
                answered.error_code = codes::UNKNOWN_TOPIC_ID;
            }
            (None, false) => answered.error_code = codes::UNKNOWN_TOPIC_OR_PARTITION,
        }
        response.responses.push(answered);
    }
    response
}

/// A few topic settings at their defaults, for topics (resource type 2) that exist.
pub fn describe_configs(state: &State, body: &DescribeConfigsRequest) -> DescribeConfigsResponse {
    const SETTINGS: [(&str, &str); 3] =
        [("cleanup.policy", "delete"), ("max.message.bytes", "1048588"), ("retention.ms", "604800000")];
    let mut response = DescribeConfigsResponse::default();
    for resource in &body.resources {
        let mut answered = DescribeConfigsResult::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name.clone());
        if resource.resource_type == 2 && !state.topics.contains_key(resource.resource_name.as_str()) {
            answered.error_code = codes::UNKNOWN_TOPIC_OR_PARTITION;
        } else {
            let wanted = |name: &str| {
                resource
                    .configuration_keys
                    .as_ref()
                    .is_none_or(|keys| keys.iter().any(|k| k.as_str() == name))
            };
            for (name, value) in SETTINGS.iter().filter(|(name, _)| wanted(name)) {
                answered.configs.push(
                    DescribeConfigsResourceResult::default()
                        .with_name(text(*name))
                        .with_value(Some(text(*value)))
                        .with_config_source(5),
                );
            }
        }
        response.results.push(answered);
    }
    response
}

pub fn init_producer_id(state: &mut State, body: &InitProducerIdRequest) -> InitProducerIdResponse {
    if body.producer_id.0 >= 0 {
        let epoch = body.producer_epoch.wrapping_add(1);
        return InitProducerIdResponse::default()
            .with_producer_id(body.producer_id)
            .with_producer_epoch(epoch);
    }
    state.next_producer_id += 1;
    InitProducerIdResponse::default()
        .with_producer_id(ProducerId(state.next_producer_id))
        .with_producer_epoch(0)
}
