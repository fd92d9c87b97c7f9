//! Metadata: <https://kafka.apache.org/protocol#The_Messages_Metadata>. It also makes topics, where the client and
//! the configuration allow it.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{ApiKey, BrokerId, MetadataRequest, MetadataResponse, TopicName};
use uuid::Uuid;

use super::{Api, Call, text};
use crate::broker::cluster::CLUSTER_ID;
use crate::broker::state::State;
use crate::broker::topics::Topic;

pub(crate) struct Metadata;

impl Api for Metadata {
    const KEY: ApiKey = ApiKey::Metadata;
    const VERSIONS: (i16, i16) = (0, 13);
    type Request = MetadataRequest;
    type Response = MetadataResponse;

    fn handle(state: &mut State, call: &Call<'_>, request: MetadataRequest) -> Option<MetadataResponse> {
        // Version 0 says "all" by an empty list, and always makes topics.
        let all = match &request.topics {
            None => true,
            Some(topics) => call.version == 0 && topics.is_empty(),
        };
        let topics = if all {
            state.topics.iter().map(|topic| describe(state, topic)).collect()
        } else {
            let create = call.version < 4 || request.allow_auto_topic_creation;
            let asked = request.topics.unwrap_or_default();
            asked.into_iter().map(|topic| one(state, topic.name, topic.topic_id, create)).collect()
        };
        Some(cluster(state).with_topics(topics))
    }

    fn refuse(request: &MetadataRequest, _: &Call<'_>, code: i16) -> MetadataResponse {
        let topics = request.topics.iter().flatten().map(|topic| {
            let response = MetadataResponseTopic::default().with_error_code(code);
            response.with_name(topic.name.clone()).with_topic_id(topic.topic_id)
        });
        MetadataResponse::default().with_topics(topics.collect())
    }
}

fn cluster(state: &State) -> MetadataResponse {
    let brokers = state.nodes_up().map(|node| {
        let broker = MetadataResponseBroker::default().with_node_id(BrokerId(node.id));
        broker.with_host(node.host.clone()).with_port(i32::from(node.port))
    });
    MetadataResponse::default()
        .with_brokers(brokers.collect())
        .with_cluster_id(Some(text(CLUSTER_ID)))
        .with_controller_id(BrokerId(state.controller()))
}

fn one(state: &mut State, name: Option<TopicName>, id: Uuid, create: bool) -> MetadataResponseTopic {
    let Some(name) = name else {
        return match state.topics.name_of(id).and_then(|name| state.topics.get(name)) {
            Some(topic) => describe(state, topic),
            None => {
                let response = MetadataResponseTopic::default().with_name(None).with_topic_id(id);
                response.with_error_code(ResponseError::UnknownTopicId.code())
            }
        };
    };
    let mut code = ResponseError::UnknownTopicOrPartition.code();
    if state.topics.get(&name).is_none()
        && create
        && let Some(partitions) = state.config.auto_create_partitions
        && let Err(refused) = state.create_topic(&name, partitions, 1)
    {
        code = refused;
    }
    match state.topics.get(&name) {
        Some(topic) => describe(state, topic),
        None => MetadataResponseTopic::default().with_name(Some(name)).with_error_code(code),
    }
}

fn describe(state: &State, topic: &Topic) -> MetadataResponseTopic {
    let partitions = topic.partitions.iter().zip(0..).map(|(partition, index)| {
        let up = |id: &i32| state.node(*id).is_some_and(|node| node.up);
        let replicas: Vec<BrokerId> = partition.replicas.iter().copied().map(BrokerId).collect();
        let (isr, offline) = partition.replicas.iter().copied().map(BrokerId).partition(|id| up(&id.0));
        let led = up(&partition.leader);
        MetadataResponsePartition::default()
            .with_error_code(if led { 0 } else { ResponseError::LeaderNotAvailable.code() })
            .with_partition_index(index)
            .with_leader_id(BrokerId(if led { partition.leader } else { -1 }))
            .with_leader_epoch(partition.leader_epoch)
            .with_replica_nodes(replicas)
            .with_isr_nodes(isr)
            .with_offline_replicas(offline)
    });
    MetadataResponseTopic::default()
        .with_name(Some(topic.name.clone()))
        .with_topic_id(topic.id)
        .with_partitions(partitions.collect())
}
