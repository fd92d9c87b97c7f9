//! The default answer of each API.

use std::time::Instant;

use kafka_protocol::messages::{ApiKey, RequestKind, ResponseKind};

use super::errors::error_response;
use super::requests::Request;
use super::state::State;
use super::{cluster, codes, data, fetch, members, offsets};

pub enum Answer {
    Ready(ResponseKind),
    /// Ask again when something changed or a little time passed.
    Wait,
    /// None is due (Produce with acks 0).
    Nothing,
}

/// What is kept between two turns of one request.
pub struct Turn {
    begun: bool,
    plan: Option<fetch::Plan>,
    forced: Option<i16>,
}

impl Turn {
    /// `forced`, for Fetch: an error in every partition, the session handled as usual.
    pub fn new(forced: Option<i16>) -> Self {
        Self { begun: false, plan: None, forced }
    }
}

/// APIs that only the coordinator of the group answers.
fn wants_coordinator(api: ApiKey) -> bool {
    matches!(
        api,
        ApiKey::JoinGroup
            | ApiKey::SyncGroup
            | ApiKey::Heartbeat
            | ApiKey::LeaveGroup
            | ApiKey::OffsetCommit
            | ApiKey::OffsetFetch
            | ApiKey::DescribeGroups
            | ApiKey::ConsumerGroupDescribe
            | ApiKey::DeleteGroups
    )
}

/// One turn of a request.
pub fn answer(state: &mut State, request: &Request, turn: &mut Turn, now: Instant) -> Answer {
    let first = !std::mem::replace(&mut turn.begun, true);
    if wants_coordinator(request.api) && request.node != state.coordinator {
        return Answer::Ready(error_response(state, request, codes::NOT_COORDINATOR));
    }
    let version = request.version;
    let waiting = |response: Option<ResponseKind>| response.map_or(Answer::Wait, Answer::Ready);
    let response: ResponseKind = match &request.kind {
        RequestKind::JoinGroup(body) => {
            return waiting(members::join(state, request, body, first, now).map(Into::into));
        }
        RequestKind::SyncGroup(body) => {
            return waiting(members::sync(state, body, first, now).map(Into::into));
        }
        RequestKind::Fetch(body) => {
            if first {
                match fetch::plan(state, request, body, now) {
                    Ok(plan) => turn.plan = Some(plan),
                    Err(code) => return Answer::Ready(fetch::refused(code).into()),
                }
            }
            let plan = turn.plan.as_mut().expect("made on the first turn");
            return waiting(fetch::answer(state, request, body, plan, turn.forced, now).map(Into::into));
        }
        RequestKind::Produce(body) => {
            let response = data::produce(state, body, version, request.node);
            if body.acks == 0 {
                return Answer::Nothing;
            }
            response.into()
        }
        RequestKind::ApiVersions(_) => cluster::api_versions(state).into(),
        RequestKind::Metadata(body) => cluster::metadata(state, body, version).into(),
        RequestKind::FindCoordinator(body) => cluster::find_coordinator(state, body, version).into(),
        RequestKind::Heartbeat(body) => members::heartbeat(state, body, now).into(),
        RequestKind::LeaveGroup(body) => members::leave(state, body, version, now).into(),
        RequestKind::OffsetCommit(body) => offsets::commit(state, body, now).into(),
        RequestKind::OffsetFetch(body) => offsets::fetch(state, body, version).into(),
        RequestKind::ListOffsets(body) => data::list_offsets(state, body, version, request.node).into(),
        RequestKind::OffsetForLeaderEpoch(body) => data::leader_epochs(state, body, request.node).into(),
        RequestKind::InitProducerId(body) => cluster::init_producer_id(state, body).into(),
        RequestKind::CreateTopics(body) => cluster::create_topics(state, body, version).into(),
        RequestKind::DeleteTopics(body) => cluster::delete_topics(state, body, version).into(),
        RequestKind::DescribeConfigs(body) => cluster::describe_configs(state, body).into(),
        RequestKind::ListGroups(body) => members::list(state, body, version).into(),
        RequestKind::DescribeGroups(body) => members::describe(state, body, version).into(),
        RequestKind::ConsumerGroupDescribe(body) => members::describe_consumer(state, body).into(),
        RequestKind::DeleteGroups(body) => members::delete(state, body).into(),
        other => panic!("{other:?} has no default answer; the version table should not offer it"),
    };
    Answer::Ready(response)
}
