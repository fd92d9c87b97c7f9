//! FindCoordinator: <https://kafka.apache.org/protocol#The_Messages_FindCoordinator>.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::{ApiKey, BrokerId, FindCoordinatorRequest, FindCoordinatorResponse};
use kafka_protocol::protocol::StrBytes;

use super::{Api, Call};
use crate::broker::state::State;

/// Groups and transactional ids; share groups (2) are not served.
const KEY_TYPES: [i8; 2] = [0, 1];
/// From this version on several keys are asked for at once (KIP-699).
const BATCHED_FROM: i16 = 4;

pub(crate) struct FindCoordinator;

impl Api for FindCoordinator {
    const KEY: ApiKey = ApiKey::FindCoordinator;
    const VERSIONS: (i16, i16) = (0, 6);
    type Request = FindCoordinatorRequest;
    type Response = FindCoordinatorResponse;

    fn handle(
        state: &mut State,
        call: &Call<'_>,
        request: FindCoordinatorRequest,
    ) -> Option<FindCoordinatorResponse> {
        let find = |key: &StrBytes| {
            if !KEY_TYPES.contains(&request.key_type) {
                return nowhere(key, ResponseError::InvalidRequest.code());
            }
            match state.node(state.coordinator_of(key)) {
                Some(node) => Coordinator::default()
                    .with_key(key.clone())
                    .with_node_id(BrokerId(node.id))
                    .with_host(node.host.clone())
                    .with_port(i32::from(node.port)),
                None => nowhere(key, ResponseError::CoordinatorNotAvailable.code()),
            }
        };
        let found = keys(&request, call.version).iter().map(find).collect();
        Some(respond(found, call.version))
    }

    fn refuse(request: &FindCoordinatorRequest, call: &Call<'_>, code: i16) -> FindCoordinatorResponse {
        let found = keys(request, call.version).iter().map(|key| nowhere(key, code)).collect();
        respond(found, call.version)
    }
}

fn keys(request: &FindCoordinatorRequest, version: i16) -> Vec<StrBytes> {
    if version >= BATCHED_FROM { request.coordinator_keys.clone() } else { vec![request.key.clone()] }
}

fn nowhere(key: &StrBytes, code: i16) -> Coordinator {
    let coordinator = Coordinator::default().with_key(key.clone()).with_error_code(code);
    coordinator.with_node_id(BrokerId(-1)).with_port(-1)
}

fn respond(mut found: Vec<Coordinator>, version: i16) -> FindCoordinatorResponse {
    if version >= BATCHED_FROM {
        return FindCoordinatorResponse::default().with_coordinators(found);
    }
    let Some(only) = found.pop() else { return FindCoordinatorResponse::default() };
    FindCoordinatorResponse::default()
        .with_error_code(only.error_code)
        .with_node_id(only.node_id)
        .with_host(only.host)
        .with_port(only.port)
}
