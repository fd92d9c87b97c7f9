//! ListGroups: <https://kafka.apache.org/protocol#The_Messages_ListGroups>. Each node lists the groups it coordinates.

use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::{ApiKey, GroupId, ListGroupsRequest, ListGroupsResponse};
use kafka_protocol::protocol::StrBytes;

use super::{Api, Call, text};
use crate::broker::state::State;

/// From this version on states are told, and filtered by (KIP-518).
const STATES_FROM: i16 = 4;
/// From this version on types are (KIP-848).
const TYPES_FROM: i16 = 5;
/// The type of all groups here, as a client writes it in a filter or reads it.
const CLASSIC: &str = "classic";

pub(crate) struct ListGroups;

impl Api for ListGroups {
    const KEY: ApiKey = ApiKey::ListGroups;
    const VERSIONS: (i16, i16) = (0, 5);
    type Request = ListGroupsRequest;
    type Response = ListGroupsResponse;

    fn handle(state: &mut State, call: &Call<'_>, request: ListGroupsRequest) -> Option<ListGroupsResponse> {
        let passes = |filter: &[StrBytes], value: &str| {
            filter.is_empty() || filter.iter().any(|wanted| wanted.trim().eq_ignore_ascii_case(value))
        };
        let listed = state.groups.list().filter(|group| {
            state.coordinator_of(group.id) == call.node
                && passes(&request.states_filter, group.state)
                && passes(&request.types_filter, CLASSIC)
        });
        let listed = listed.map(|group| {
            let listed = ListedGroup::default()
                .with_group_id(GroupId(text(group.id)))
                .with_protocol_type(text(group.protocol_type));
            let listed =
                if call.version >= STATES_FROM { listed.with_group_state(text(group.state)) } else { listed };
            if call.version >= TYPES_FROM { listed.with_group_type(text(CLASSIC)) } else { listed }
        });
        Some(ListGroupsResponse::default().with_groups(listed.collect()))
    }

    fn refuse(_: &ListGroupsRequest, _: &Call<'_>, code: i16) -> ListGroupsResponse {
        ListGroupsResponse::default().with_error_code(code)
    }
}
