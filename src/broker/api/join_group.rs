//! JoinGroup: <https://kafka.apache.org/protocol#The_Messages_JoinGroup>.

use bytes::Bytes;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::{ApiKey, JoinGroupRequest, JoinGroupResponse};

use super::{Api, Call, text};
use crate::broker::group::{JoinRefused, Joined, Joining};
use crate::broker::state::State;

pub(crate) struct JoinGroup;

impl Api for JoinGroup {
    const KEY: ApiKey = ApiKey::JoinGroup;
    const VERSIONS: (i16, i16) = (0, 9);
    type Request = JoinGroupRequest;
    type Response = JoinGroupResponse;

    fn handle(state: &mut State, call: &Call<'_>, request: JoinGroupRequest) -> Option<JoinGroupResponse> {
        if let Some(code) = state.coordinator_error(&request.group_id, call.node) {
            return Some(Self::refuse(&request, call, code));
        }
        // Copied: a slice would keep the whole request alive for as long as the member is.
        let protocols = request
            .protocols
            .iter()
            .map(|protocol| (protocol.name.to_string(), Bytes::copy_from_slice(&protocol.metadata)));
        let asked = Joining {
            ticket: call.ticket,
            version: call.version,
            fresh: state.fresh_id().to_string(),
            group: request.group_id.to_string(),
            member: request.member_id.to_string(),
            instance: request.group_instance_id.as_ref().map(ToString::to_string),
            client_id: call.client_id.to_owned(),
            client_host: call.client_host.to_owned(),
            session_ms: request.session_timeout_ms,
            rebalance_ms: if call.version == 0 { -1 } else { request.rebalance_timeout_ms },
            protocol_type: request.protocol_type.to_string(),
            protocols: protocols.collect(),
        };
        state.groups.join(asked, state.now);
        None
    }

    fn refuse(request: &JoinGroupRequest, _: &Call<'_>, code: i16) -> JoinGroupResponse {
        JoinGroupResponse::default().with_error_code(code).with_member_id(request.member_id.clone())
    }
}

/// The answer, once there is one.
pub(crate) fn respond(answer: Result<Joined, JoinRefused>) -> JoinGroupResponse {
    let joined = match answer {
        Ok(joined) => joined,
        Err(refused) => {
            let response = JoinGroupResponse::default().with_error_code(refused.error.code());
            return response.with_member_id(text(refused.member));
        }
    };
    let members = joined.members.into_iter().map(|member| {
        JoinGroupResponseMember::default()
            .with_member_id(text(member.id))
            .with_group_instance_id(member.instance.map(text))
            .with_metadata(member.metadata)
    });
    JoinGroupResponse::default()
        .with_generation_id(joined.generation)
        .with_protocol_type(Some(text(joined.protocol_type)))
        .with_protocol_name(Some(text(joined.protocol)))
        .with_leader(text(joined.leader))
        .with_skip_assignment(joined.skip_assignment)
        .with_member_id(text(joined.member))
        .with_members(members.collect())
}
