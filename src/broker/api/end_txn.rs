//! EndTxn: <https://kafka.apache.org/protocol#The_Messages_EndTxn>.

use kafka_protocol::messages::{ApiKey, EndTxnRequest, EndTxnResponse};

use super::{Api, Call};
use crate::broker::state::State;
use crate::broker::transactions::{Producer, told};

/// First version whose clients know PRODUCER_FENCED.
const KNOWS_FENCED_FROM: i16 = 2;

pub(crate) struct EndTxn;

impl Api for EndTxn {
    const KEY: ApiKey = ApiKey::EndTxn;
    /// From 5 on each transaction has an epoch of its own (KIP-890, transaction version 2).
    const VERSIONS: (i16, i16) = (0, 4);
    type Request = EndTxnRequest;
    type Response = EndTxnResponse;

    fn handle(state: &mut State, call: &Call<'_>, request: EndTxnRequest) -> Option<EndTxnResponse> {
        let id = &*request.transactional_id;
        if let Some(code) = state.transaction_coordinator_error(id, call.node) {
            return Some(EndTxnResponse::default().with_error_code(code));
        }
        let producer = Producer { id: request.producer_id.0, epoch: request.producer_epoch };
        let code = match state.transactions.end(id, producer, request.committed) {
            Ok(ended) => {
                if let Some(ended) = ended {
                    state.finish_transaction(ended);
                }
                0
            }
            Err(error) => told(error, call.version >= KNOWS_FENCED_FROM),
        };
        Some(EndTxnResponse::default().with_error_code(code))
    }

    fn refuse(_: &EndTxnRequest, _: &Call<'_>, code: i16) -> EndTxnResponse {
        EndTxnResponse::default().with_error_code(code)
    }
}
