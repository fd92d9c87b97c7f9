//! AddOffsetsToTxn: <https://kafka.apache.org/protocol#The_Messages_AddOffsetsToTxn>.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, ApiKey};

use super::{Api, Call};
use crate::broker::state::State;
use crate::broker::transactions::{Producer, told};

/// First version whose clients know PRODUCER_FENCED.
const KNOWS_FENCED_FROM: i16 = 2;

pub(crate) struct AddOffsetsToTxn;

impl Api for AddOffsetsToTxn {
    const KEY: ApiKey = ApiKey::AddOffsetsToTxn;
    const VERSIONS: (i16, i16) = (0, 4);
    type Request = AddOffsetsToTxnRequest;
    type Response = AddOffsetsToTxnResponse;

    fn handle(
        state: &mut State,
        call: &Call<'_>,
        request: AddOffsetsToTxnRequest,
    ) -> Option<AddOffsetsToTxnResponse> {
        let id = &*request.transactional_id;
        if let Some(code) = state.coordinator_error(id, call.node) {
            return Some(AddOffsetsToTxnResponse::default().with_error_code(code));
        }
        if request.group_id.is_empty() {
            let code = ResponseError::InvalidGroupId.code();
            return Some(AddOffsetsToTxnResponse::default().with_error_code(code));
        }
        let producer = Producer { id: request.producer_id.0, epoch: request.producer_epoch };
        let added = state.transactions.add_group(id, producer, &request.group_id, state.now);
        let code = added.map_or_else(|error| told(error, call.version >= KNOWS_FENCED_FROM), |()| 0);
        Some(AddOffsetsToTxnResponse::default().with_error_code(code))
    }

    fn refuse(_: &AddOffsetsToTxnRequest, _: &Call<'_>, code: i16) -> AddOffsetsToTxnResponse {
        AddOffsetsToTxnResponse::default().with_error_code(code)
    }
}
