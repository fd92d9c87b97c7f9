//! DescribeGroups: <https://kafka.apache.org/protocol#The_Messages_DescribeGroups>.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::{ApiKey, DescribeGroupsRequest, DescribeGroupsResponse, GroupId};

use super::{Api, Call, text};
use crate::broker::group::{GroupView, MemberView};
use crate::broker::state::State;

/// From this version on the operations a client may carry out are told, if it asks (KIP-430).
const OPERATIONS_FROM: i16 = 3;
/// From this version on a group that does not exist is an error (KIP-1043).
const NOT_FOUND_FROM: i16 = 6;
/// READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS: everything, since nobody is kept out.
const ALL_OPERATIONS: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;

pub(crate) struct DescribeGroups;

impl Api for DescribeGroups {
    const KEY: ApiKey = ApiKey::DescribeGroups;
    const VERSIONS: (i16, i16) = (0, 6);
    type Request = DescribeGroupsRequest;
    type Response = DescribeGroupsResponse;

    fn handle(
        state: &mut State,
        call: &Call<'_>,
        request: DescribeGroupsRequest,
    ) -> Option<DescribeGroupsResponse> {
        let operations = request.include_authorized_operations && call.version >= OPERATIONS_FROM;
        let groups = request.groups.iter().map(|id| {
            if let Some(code) = state.coordinator_error(id, call.node) {
                return DescribedGroup::default().with_group_id(id.clone()).with_error_code(code);
            }
            let group = state.groups.describe(id).map_or_else(|| missing(id, call.version), described);
            let told = operations && group.error_code == 0;
            if told { group.with_authorized_operations(ALL_OPERATIONS) } else { group }
        });
        Some(DescribeGroupsResponse::default().with_groups(groups.collect()))
    }

    fn refuse(request: &DescribeGroupsRequest, _: &Call<'_>, code: i16) -> DescribeGroupsResponse {
        let groups = request.groups.iter();
        let groups =
            groups.map(|id| DescribedGroup::default().with_group_id(id.clone()).with_error_code(code));
        DescribeGroupsResponse::default().with_groups(groups.collect())
    }
}

fn missing(id: &GroupId, version: i16) -> DescribedGroup {
    let dead = DescribedGroup::default().with_group_id(id.clone()).with_group_state(text("Dead"));
    if version < NOT_FOUND_FROM {
        return dead;
    }
    let message = format!("Group {} not found.", id.as_str());
    dead.with_error_code(ResponseError::GroupIdNotFound.code()).with_error_message(Some(text(message)))
}

fn described(group: GroupView<'_>) -> DescribedGroup {
    let member = |member: MemberView<'_>| {
        DescribedGroupMember::default()
            .with_member_id(text(member.id))
            .with_group_instance_id(member.instance.map(text))
            .with_client_id(text(member.client_id))
            .with_client_host(text(member.client_host))
            .with_member_metadata(member.metadata)
            .with_member_assignment(member.assignment)
    };
    DescribedGroup::default()
        .with_group_id(GroupId(text(group.id)))
        .with_group_state(text(group.state))
        .with_protocol_type(text(group.protocol_type))
        .with_protocol_data(text(group.protocol))
        .with_members(group.members.into_iter().map(member).collect())
}
