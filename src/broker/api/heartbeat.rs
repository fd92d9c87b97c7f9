//! Heartbeat: <https://kafka.apache.org/protocol#The_Messages_Heartbeat>.

use kafka_protocol::messages::{ApiKey, HeartbeatRequest, HeartbeatResponse};

use super::{Api, Call};
use crate::broker::group::Claim;
use crate::broker::state::State;

pub(crate) struct Heartbeat;

impl Api for Heartbeat {
    const KEY: ApiKey = ApiKey::Heartbeat;
    const VERSIONS: (i16, i16) = (0, 4);
    type Request = HeartbeatRequest;
    type Response = HeartbeatResponse;

    fn handle(state: &mut State, call: &Call<'_>, request: HeartbeatRequest) -> Option<HeartbeatResponse> {
        if let Some(code) = state.coordinator_error(&request.group_id, call.node) {
            return Some(Self::refuse(&request, call, code));
        }
        let claim = Claim {
            group: &request.group_id,
            member: &request.member_id,
            instance: request.group_instance_id.as_deref(),
            generation: request.generation_id,
        };
        let code = state.groups.heartbeat(&claim, state.now).map_or_else(|error| error.code(), |()| 0);
        Some(Self::refuse(&request, call, code))
    }

    fn refuse(_: &HeartbeatRequest, _: &Call<'_>, code: i16) -> HeartbeatResponse {
        HeartbeatResponse::default().with_error_code(code)
    }
}
