//! Fetch: sessions (KIP-227), long poll, byte limits, read_committed.

use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::messages::fetch_response::{
    AbortedTransaction, FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData,
};
use kafka_protocol::messages::{FetchRequest, FetchResponse, ProducerId};

use super::codes;
use super::data::refusal;
use super::requests::{FetchAsk, Request};
use super::state::{Session, SessionPartition, State, broker_id, text, topic_name};

/// What a Fetch asks for once its session is resolved; made on its first turn.
#[derive(Clone, Debug)]
pub struct Plan {
    session: i32,
    /// Only what has news is told.
    incremental: bool,
    partitions: Vec<SessionPartition>,
    deadline: Instant,
}

/// Error answers of the whole request carry no partitions.
pub fn refused(code: i16) -> FetchResponse {
    FetchResponse::default().with_error_code(code)
}

fn asked_of(body: &FetchRequest, state: &State, version: i16) -> Vec<SessionPartition> {
    let mut out = Vec::new();
    for topic in &body.topics {
        let name = if version >= 13 { state.name_of(topic.topic_id) } else { Some(topic.topic.to_string()) };
        for partition in &topic.partitions {
            out.push(SessionPartition {
                topic: name.clone().unwrap_or_default(),
                topic_id: topic.topic_id,
                partition: partition.partition,
                offset: partition.fetch_offset,
                epoch: partition.current_leader_epoch,
                bytes_max: partition.partition_max_bytes,
                told: None,
            });
        }
    }
    out
}

/// Opens, changes or skips the session and notes what is asked for.
pub fn plan(state: &mut State, request: &Request, body: &FetchRequest, now: Instant) -> Result<Plan, i16> {
    let version = request.version;
    let explicit = asked_of(body, state, version);
    let deadline = now + Duration::from_millis(body.max_wait_ms.max(0) as u64);
    let sessionless = version < 7 || body.session_epoch == -1 || !state.fetch_sessions;
    if version >= 7 && body.session_epoch <= 0 {
        state.sessions.remove(&body.session_id);
    }
    let plan = if sessionless && body.session_epoch <= 0 {
        Plan { session: 0, incremental: false, partitions: explicit.clone(), deadline }
    } else if body.session_epoch == 0 {
        let session = i32::try_from(state.fresh()).expect("few ids");
        let kept = Session { node: request.node, epoch: 1, partitions: explicit.clone() };
        state.sessions.insert(session, kept);
        Plan { session, incremental: false, partitions: explicit.clone(), deadline }
    } else {
        let known = state.sessions.get_mut(&body.session_id).filter(|s| s.node == request.node);
        let session = known.ok_or(codes::FETCH_SESSION_ID_NOT_FOUND)?;
        if session.epoch != body.session_epoch {
            return Err(codes::INVALID_FETCH_SESSION_EPOCH);
        }
        session.epoch = session.epoch.checked_add(1).unwrap_or(1);
        let by_id = version >= 13;
        for topic in &body.forgotten_topics_data {
            session.partitions.retain(|p| {
                let same = if by_id { p.topic_id == topic.topic_id } else { p.topic == topic.topic.as_str() };
                !(same && topic.partitions.contains(&p.partition))
            });
        }
        for new in &explicit {
            let same = |p: &&mut SessionPartition| {
                p.partition == new.partition
                    && (if by_id { p.topic_id == new.topic_id } else { p.topic == new.topic })
            };
            match session.partitions.iter_mut().find(same) {
                Some(old) => *old = SessionPartition { told: old.told, ..new.clone() },
                None => session.partitions.push(new.clone()),
            }
        }
        let partitions = session.partitions.clone();
        Plan { session: body.session_id, incremental: true, partitions, deadline }
    };
    for asked in &plan.partitions {
        let same = |p: &SessionPartition| {
            (p.topic_id, p.topic.as_str(), p.partition)
                == (asked.topic_id, asked.topic.as_str(), asked.partition)
        };
        state.fetch_asks.push(FetchAsk {
            time: request.time,
            index: request.index,
            connection: request.connection,
            node: request.node,
            topic: asked.topic.clone(),
            partition: asked.partition,
            offset: asked.offset,
            leader_epoch: asked.epoch,
            bytes_max: asked.bytes_max,
            explicit: explicit.iter().any(same),
        });
    }
    Ok(plan)
}

/// The answer, or `None` while there are fewer than min_bytes and time is left. `forced` is an error for every
/// partition.
pub fn answer(
    state: &mut State,
    request: &Request,
    body: &FetchRequest,
    plan: &mut Plan,
    forced: Option<i16>,
    now: Instant,
) -> Option<FetchResponse> {
    let mut left = usize::try_from(body.max_bytes).unwrap_or(0);
    let mut total = 0;
    let mut failed = false;
    let mut told: Vec<(usize, PartitionData)> = Vec::new();
    for (index, asked) in plan.partitions.iter().enumerate() {
        let data = match forced {
            Some(code) => failure(asked, code),
            None => read(state, request, body, asked, left, total == 0),
        };
        let size = data.records.as_ref().map_or(0, Bytes::len);
        total += size;
        left = left.saturating_sub(size);
        failed |= data.error_code != 0;
        told.push((index, data));
    }
    let enough = total >= usize::try_from(body.min_bytes).unwrap_or(0);
    if !failed && !enough && now < plan.deadline {
        return None;
    }
    let mut response = FetchResponse::default().with_session_id(plan.session);
    let session = state.sessions.get_mut(&plan.session);
    let mut kept = session.map(|s| &mut s.partitions);
    let mut with_data = Vec::new();
    for (index, data) in told {
        let asked = &plan.partitions[index];
        let news = (data.high_watermark, data.log_start_offset);
        let has_data = data.records.as_ref().is_some_and(|r| !r.is_empty());
        if plan.incremental && !has_data && data.error_code == 0 && asked.told == Some(news) {
            continue;
        }
        if let Some(kept) = &mut kept {
            let same = |p: &SessionPartition| {
                (p.topic_id, p.topic.as_str(), p.partition)
                    == (asked.topic_id, asked.topic.as_str(), asked.partition)
            };
            if let Some(place) = kept.iter().position(same) {
                kept[place].told = if data.error_code == 0 { Some(news) } else { None };
                if has_data {
                    with_data.push(kept.remove(place));
                }
            }
        }
        push(&mut response, asked, data, request.version);
    }
    // Whoever got data goes to the end of the line, as a broker does it, so that nobody starves.
    if let Some(kept) = kept {
        kept.extend(with_data);
    }
    if request.version >= 16 {
        name_leaders(state, &mut response);
    }
    Some(response)
}

fn push(response: &mut FetchResponse, asked: &SessionPartition, data: PartitionData, version: i16) {
    let mut topic = FetchableTopicResponse::default();
    if version >= 13 {
        topic.topic_id = asked.topic_id;
    } else {
        topic.topic = topic_name(&asked.topic);
    }
    let last = response.responses.last_mut();
    match last.filter(|t| t.topic_id == topic.topic_id && t.topic == topic.topic) {
        Some(last) => last.partitions.push(data),
        None => {
            topic.partitions.push(data);
            response.responses.push(topic);
        }
    }
}

/// KIP-951: where the leaders named in the answer live.
fn name_leaders(state: &State, response: &mut FetchResponse) {
    let partitions = response.responses.iter().flat_map(|t| &t.partitions);
    let mut leaders: Vec<i32> =
        partitions.map(|p| p.current_leader.leader_id.0).filter(|id| *id >= 0).collect();
    leaders.sort_unstable();
    leaders.dedup();
    for id in leaders {
        response.node_endpoints.push(
            NodeEndpoint::default()
                .with_node_id(broker_id(id))
                .with_host(text("127.0.0.1"))
                .with_port(state.port(id)),
        );
    }
}

fn failure(asked: &SessionPartition, code: i16) -> PartitionData {
    PartitionData::default()
        .with_partition_index(asked.partition)
        .with_error_code(code)
        .with_high_watermark(-1)
        .with_last_stable_offset(-1)
        .with_log_start_offset(-1)
        .with_records(Some(Bytes::new()))
}

fn read(
    state: &State,
    request: &Request,
    body: &FetchRequest,
    asked: &SessionPartition,
    left: usize,
    first: bool,
) -> PartitionData {
    let name = if request.version >= 13 { state.name_of(asked.topic_id) } else { Some(asked.topic.clone()) };
    let Some(name) = name else { return failure(asked, codes::UNKNOWN_TOPIC_ID) };
    let found = state.find(&name, asked.partition);
    if let Some(code) = refusal(found, request.node, asked.epoch) {
        let mut data = failure(asked, code);
        if let (true, Some(partition)) = (request.version >= 12, found) {
            data.current_leader = LeaderIdAndEpoch::default()
                .with_leader_id(broker_id(partition.leader))
                .with_leader_epoch(partition.epoch);
        }
        return data;
    }
    let log = &found.expect("not refused").log;
    if asked.offset < log.start || asked.offset > log.end {
        return failure(asked, codes::OFFSET_OUT_OF_RANGE);
    }
    let committed = body.isolation_level == 1;
    let limit = if committed { log.last_stable() } else { log.high_watermark() };
    let bytes_max = left.min(usize::try_from(asked.bytes_max).unwrap_or(0));
    let records = log.read(asked.offset, limit, bytes_max, first);
    let mut data = PartitionData::default()
        .with_partition_index(asked.partition)
        .with_high_watermark(log.high_watermark())
        .with_last_stable_offset(log.last_stable())
        .with_log_start_offset(log.start);
    if committed {
        let aborted = log.aborted_in(asked.offset, limit).into_iter().map(|a| {
            AbortedTransaction::default()
                .with_producer_id(ProducerId(a.producer_id))
                .with_first_offset(a.first)
        });
        data.aborted_transactions = Some(aborted.collect());
    }
    data.with_records(Some(Bytes::from(records)))
}
