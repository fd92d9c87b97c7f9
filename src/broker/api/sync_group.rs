//! SyncGroup: <https://kafka.apache.org/protocol#The_Messages_SyncGroup>.

use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{ApiKey, SyncGroupRequest, SyncGroupResponse};

use super::{Api, Call, text};
use crate::broker::group::{Synced, Syncing};
use crate::broker::state::State;

/// From this version on the protocol's type and name must be given (KIP-559).
const PROTOCOL_FROM: i16 = 5;

pub(crate) struct SyncGroup;

impl Api for SyncGroup {
    const KEY: ApiKey = ApiKey::SyncGroup;
    const VERSIONS: (i16, i16) = (0, 5);
    type Request = SyncGroupRequest;
    type Response = SyncGroupResponse;

    fn handle(state: &mut State, call: &Call<'_>, request: SyncGroupRequest) -> Option<SyncGroupResponse> {
        if let Some(code) = state.coordinator_error(&request.group_id, call.node) {
            return Some(Self::refuse(&request, call, code));
        }
        let nameless = request.protocol_type.is_none() || request.protocol_name.is_none();
        if call.version >= PROTOCOL_FROM && nameless {
            return Some(Self::refuse(&request, call, ResponseError::InconsistentGroupProtocol.code()));
        }
        // Copied: a slice would keep the whole request alive for as long as the assignment is.
        let assignments = request
            .assignments
            .iter()
            .map(|share| (share.member_id.to_string(), Bytes::copy_from_slice(&share.assignment)));
        let asked = Syncing {
            ticket: call.ticket,
            group: request.group_id.to_string(),
            member: request.member_id.to_string(),
            instance: request.group_instance_id.as_ref().map(ToString::to_string),
            generation: request.generation_id,
            protocol_type: request.protocol_type.as_ref().map(ToString::to_string),
            protocol: request.protocol_name.as_ref().map(ToString::to_string),
            assignments: assignments.collect(),
        };
        state.groups.sync(asked, state.now);
        None
    }

    fn refuse(_: &SyncGroupRequest, _: &Call<'_>, code: i16) -> SyncGroupResponse {
        SyncGroupResponse::default().with_error_code(code)
    }
}

/// The answer, once there is one.
pub(crate) fn respond(answer: Result<Synced, ResponseError>) -> SyncGroupResponse {
    match answer {
        Ok(synced) => SyncGroupResponse::default()
            .with_protocol_type(Some(text(synced.protocol_type)))
            .with_protocol_name(Some(text(synced.protocol)))
            .with_assignment(synced.assignment),
        Err(error) => SyncGroupResponse::default().with_error_code(error.code()),
    }
}
