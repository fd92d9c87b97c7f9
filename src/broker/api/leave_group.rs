//! LeaveGroup: <https://kafka.apache.org/protocol#The_Messages_LeaveGroup>.

use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::{ApiKey, LeaveGroupRequest, LeaveGroupResponse};

use super::{Api, Call};
use crate::broker::group::Leaving;
use crate::broker::state::State;

/// From this version on several members leave at once (KIP-345).
const BATCHED_FROM: i16 = 3;

pub(crate) struct LeaveGroup;

impl Api for LeaveGroup {
    const KEY: ApiKey = ApiKey::LeaveGroup;
    const VERSIONS: (i16, i16) = (0, 5);
    type Request = LeaveGroupRequest;
    type Response = LeaveGroupResponse;

    fn handle(state: &mut State, call: &Call<'_>, request: LeaveGroupRequest) -> Option<LeaveGroupResponse> {
        if let Some(code) = state.coordinator_error(&request.group_id, call.node) {
            return Some(Self::refuse(&request, call, code));
        }
        let batched = call.version >= BATCHED_FROM;
        let leaving: Vec<Leaving<'_>> = if batched {
            let leaving = request.members.iter().map(|member| Leaving {
                member: &member.member_id,
                instance: member.group_instance_id.as_deref(),
            });
            leaving.collect()
        } else {
            vec![Leaving { member: &request.member_id, instance: None }]
        };
        let outcomes = match state.groups.leave(&request.group_id, &leaving, state.now) {
            Ok(outcomes) => outcomes,
            Err(error) => return Some(Self::refuse(&request, call, error.code())),
        };
        let mut codes = outcomes.into_iter().map(|outcome| outcome.map_or_else(|error| error.code(), |()| 0));
        if !batched {
            return Some(Self::refuse(&request, call, codes.next().unwrap_or(0)));
        }
        let members = request.members.iter().zip(codes).map(|(member, code)| {
            MemberResponse::default()
                .with_member_id(member.member_id.clone())
                .with_group_instance_id(member.group_instance_id.clone())
                .with_error_code(code)
        });
        Some(LeaveGroupResponse::default().with_members(members.collect()))
    }

    fn refuse(_: &LeaveGroupRequest, _: &Call<'_>, code: i16) -> LeaveGroupResponse {
        LeaveGroupResponse::default().with_error_code(code)
    }
}
