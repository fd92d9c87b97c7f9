//! DeleteGroups: <https://kafka.apache.org/protocol#The_Messages_DeleteGroups>.

use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::{ApiKey, DeleteGroupsRequest, DeleteGroupsResponse, GroupId};

use super::{Api, Call};
use crate::broker::state::State;

pub(crate) struct DeleteGroups;

impl Api for DeleteGroups {
    const KEY: ApiKey = ApiKey::DeleteGroups;
    const VERSIONS: (i16, i16) = (0, 2);
    type Request = DeleteGroupsRequest;
    type Response = DeleteGroupsResponse;

    fn handle(
        state: &mut State,
        call: &Call<'_>,
        request: DeleteGroupsRequest,
    ) -> Option<DeleteGroupsResponse> {
        Some(respond(&request, |id| match state.coordinator_error(id, call.node) {
            Some(code) => code,
            None => state.groups.delete(id).map_or_else(|error| error.code(), |()| 0),
        }))
    }

    fn refuse(request: &DeleteGroupsRequest, _: &Call<'_>, code: i16) -> DeleteGroupsResponse {
        respond(request, |_| code)
    }
}

/// An answer with a code for each group, found in order.
fn respond(request: &DeleteGroupsRequest, mut code: impl FnMut(&GroupId) -> i16) -> DeleteGroupsResponse {
    let results = request.groups_names.iter();
    let results =
        results.map(|id| DeletableGroupResult::default().with_group_id(id.clone()).with_error_code(code(id)));
    DeleteGroupsResponse::default().with_results(results.collect())
}
