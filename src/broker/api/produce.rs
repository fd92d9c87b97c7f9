//! Produce: <https://kafka.apache.org/protocol#The_Messages_Produce>.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::{
    LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};
use kafka_protocol::messages::{ApiKey, BrokerId, ProduceRequest, ProduceResponse};

use super::{Api, Call};
use crate::broker::log::{Appended, ProducedBatch};
use crate::broker::state::State;
use crate::broker::transactions::{Producer, told, told_unverified};

/// From this version on answers say who leads (KIP-951).
const LEADERS_FROM: i16 = 10;
/// First version whose clients know TRANSACTION_ABORTABLE (KIP-890).
const KNOWS_ABORTABLE_FROM: i16 = 11;
/// From this version on a batch adds its partition to the transaction (KIP-890, transaction version 2).
const ADDS_FROM: i16 = 12;
/// From this version on topics are named by id (KIP-516).
const BY_ID_FROM: i16 = 13;
/// The topic's own limit for a batch, bytes.
const MAX_MESSAGE_BYTES: &str = "max.message.bytes";

pub(crate) struct Produce;

impl Api for Produce {
    const KEY: ApiKey = ApiKey::Produce;
    const VERSIONS: (i16, i16) = (3, 13);
    type Request = ProduceRequest;
    type Response = ProduceResponse;

    fn handle(state: &mut State, call: &Call<'_>, request: ProduceRequest) -> Option<ProduceResponse> {
        let transactional_id = request.transactional_id.as_deref().map(|id| &**id);
        let refused = if !(-1..=1).contains(&request.acks) {
            Some(ResponseError::InvalidRequiredAcks.code())
        } else if transactional_id.is_none() && has_transactional(&request) {
            Some(ResponseError::TransactionalIdAuthorizationFailed.code())
        } else {
            None
        };
        let response = answer(&request, |topic, data| {
            let named = name(state, call, topic);
            let appended = match refused {
                Some(code) => Err(code),
                None => named
                    .as_deref()
                    .ok_or(ResponseError::UnknownTopicId.code())
                    .and_then(|name| append(state, call, transactional_id, name, data)),
            };
            tell(state, call, &named.unwrap_or_default(), data.index, appended)
        });
        if request.acks == 0 {
            let mut partitions = response.responses.iter().flat_map(|topic| &topic.partition_responses);
            match partitions.find(|partition| partition.error_code != 0) {
                Some(_) => state.reply_by_closing(call.ticket),
                None => state.reply_nothing(call.ticket),
            }
            return None;
        }
        Some(with_endpoints(state, call, response))
    }

    fn refuse(request: &ProduceRequest, _: &Call<'_>, code: i16) -> ProduceResponse {
        answer(request, |_, data| failed(data.index, code))
    }

    fn wants_answer(request: &ProduceRequest) -> bool {
        request.acks != 0
    }
}

fn answer(
    request: &ProduceRequest,
    mut one: impl FnMut(&TopicProduceData, &PartitionProduceData) -> PartitionProduceResponse,
) -> ProduceResponse {
    let topics = request.topic_data.iter().map(|topic| {
        let partitions = topic.partition_data.iter().map(|data| one(topic, data)).collect();
        // Of name and id the version has one, the other is empty.
        let response = TopicProduceResponse::default().with_name(topic.name.clone());
        response.with_topic_id(topic.topic_id).with_partition_responses(partitions)
    });
    ProduceResponse::default().with_responses(topics.collect())
}

/// The name of a topic that there is, if it is named by id.
fn name(state: &State, call: &Call<'_>, topic: &TopicProduceData) -> Option<String> {
    if call.version >= BY_ID_FROM {
        state.topics.name_of(topic.topic_id).map(str::to_owned)
    } else {
        Some(topic.name.to_string())
    }
}

/// Whether a batch says that it belongs to a transaction, by the attributes at their fixed place.
fn has_transactional(request: &ProduceRequest) -> bool {
    let partitions = request.topic_data.iter().flat_map(|topic| &topic.partition_data);
    let mut attributes = partitions.filter_map(|data| data.records.as_ref()?.get(22));
    attributes.any(|low| low & 0x10 != 0)
}

fn append(
    state: &mut State,
    call: &Call<'_>,
    transactional_id: Option<&str>,
    topic: &str,
    data: &PartitionProduceData,
) -> Result<Appended, i16> {
    let bytes_max = bytes_max(state, topic);
    let partition = state.led_partition(topic, data.index, call.node, -1)?;
    let records = data.records.clone().unwrap_or_default();
    let batch = ProducedBatch::parse(records, bytes_max)?;
    let header = batch.header();
    let producer = Producer { id: header.producer_id, epoch: header.producer_epoch };
    if header.is_transactional() && !partition.log.has_open_transaction(producer.id, producer.epoch) {
        let first_sequence = header.base_sequence;
        admit(state, call, transactional_id, producer, first_sequence, topic, data.index)?;
    }
    let now_ms = state.wall_ms();
    let partition = state.led_partition(topic, data.index, call.node, -1)?;
    let appended = partition.log.append(&batch, partition.leader_epoch, now_ms)?;
    if !appended.duplicate {
        state.on_appended(topic, data.index);
    }
    Ok(appended)
}

/// Asks the coordinator about the first batch of a transaction in a partition.
fn admit(
    state: &mut State,
    call: &Call<'_>,
    transactional_id: Option<&str>,
    producer: Producer,
    first_sequence: i32,
    topic: &str,
    index: i32,
) -> Result<(), i16> {
    let id = transactional_id.unwrap_or_default();
    if call.version < ADDS_FROM {
        let verified = state.transactions.verify_partition(id, producer, topic, index);
        return verified.map_err(|error| told_unverified(error, call.version >= KNOWS_ABORTABLE_FROM));
    }
    let added = state.transactions.add_partitions(id, producer, [(topic.to_owned(), index)], state.now);
    // Producers know the older name for it.
    added.map_err(|error| told(error, false))?;
    // Every transaction has an epoch of its own here, and every epoch begins at 0.
    if first_sequence == 0 { Ok(()) } else { Err(ResponseError::OutOfOrderSequenceNumber.code()) }
}

fn bytes_max(state: &State, topic: &str) -> usize {
    let configured = state.topics.get(topic).and_then(|topic| topic.configs.get(MAX_MESSAGE_BYTES));
    configured.and_then(|text| text.parse().ok()).unwrap_or(state.config.max_message_bytes)
}

fn tell(
    state: &State,
    call: &Call<'_>,
    topic: &str,
    index: i32,
    appended: Result<Appended, i16>,
) -> PartitionProduceResponse {
    match appended {
        Ok(appended) => PartitionProduceResponse::default()
            .with_index(index)
            .with_base_offset(appended.base_offset)
            .with_log_append_time_ms(-1)
            .with_log_start_offset(appended.log_start_offset),
        Err(code) if code == ResponseError::NotLeaderOrFollower.code() && call.version >= LEADERS_FROM => {
            let response = failed(index, code);
            let found = state.topics.partition(topic, index);
            let Some(partition) = found else { return response };
            let leader = LeaderIdAndEpoch::default().with_leader_id(BrokerId(partition.leader));
            response.with_current_leader(leader.with_leader_epoch(partition.leader_epoch))
        }
        Err(code) => failed(index, code),
    }
}

fn failed(index: i32, code: i16) -> PartitionProduceResponse {
    PartitionProduceResponse::default()
        .with_index(index)
        .with_error_code(code)
        .with_base_offset(-1)
        .with_log_append_time_ms(-1)
        .with_log_start_offset(-1)
}

/// Adds where the leaders are that the answer names.
fn with_endpoints(state: &State, call: &Call<'_>, response: ProduceResponse) -> ProduceResponse {
    if call.version < LEADERS_FROM {
        return response;
    }
    let told = response.responses.iter().flat_map(|topic| &topic.partition_responses);
    let mut leaders: Vec<i32> = told.map(|partition| partition.current_leader.leader_id.0).collect();
    leaders.sort_unstable();
    leaders.dedup();
    let endpoints = leaders.into_iter().filter_map(|id| state.node(id)).map(|node| {
        let endpoint = NodeEndpoint::default().with_node_id(BrokerId(node.id));
        endpoint.with_host(node.host.clone()).with_port(i32::from(node.port))
    });
    let endpoints = endpoints.collect();
    response.with_node_endpoints(endpoints)
}
