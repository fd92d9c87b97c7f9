//! EndTxn: <https://kafka.apache.org/protocol#The_Messages_EndTxn>.

use kafka_protocol::messages::{ApiKey, EndTxnRequest, EndTxnResponse, ProducerId};

use super::{Api, Call};
use crate::broker::state::State;
use crate::broker::transactions::{Producer, told};

/// First version whose clients know PRODUCER_FENCED.
const KNOWS_FENCED_FROM: i16 = 2;
/// From this version on each transaction has an epoch of its own (KIP-890, transaction version 2).
const RENEWS_FROM: i16 = 5;

pub(crate) struct EndTxn;

impl Api for EndTxn {
    const KEY: ApiKey = ApiKey::EndTxn;
    const VERSIONS: (i16, i16) = (0, 5);
    type Request = EndTxnRequest;
    type Response = EndTxnResponse;

    fn handle(state: &mut State, call: &Call<'_>, request: EndTxnRequest) -> Option<EndTxnResponse> {
        let id = &*request.transactional_id;
        if let Some(code) = state.coordinator_error(id, call.node) {
            return Some(EndTxnResponse::default().with_error_code(code));
        }
        let producer = Producer { id: request.producer_id.0, epoch: request.producer_epoch };
        let (transactions, commit) = (&mut state.transactions, request.committed);
        let outcome = if call.version >= RENEWS_FROM {
            transactions
                .end_and_renew(id, producer, commit)
                .map(|(renewed, ended)| (response_of(renewed), ended))
        } else {
            transactions.end(id, producer, commit).map(|ended| (EndTxnResponse::default(), ended))
        };
        match outcome {
            Ok((response, ended)) => {
                if let Some(ended) = ended {
                    state.finish_transaction(ended);
                }
                Some(response)
            }
            Err(error) => {
                let code = told(error, call.version >= KNOWS_FENCED_FROM);
                Some(EndTxnResponse::default().with_error_code(code))
            }
        }
    }

    fn refuse(_: &EndTxnRequest, _: &Call<'_>, code: i16) -> EndTxnResponse {
        EndTxnResponse::default().with_error_code(code)
    }
}

fn response_of(producer: Producer) -> EndTxnResponse {
    let response = EndTxnResponse::default().with_producer_id(ProducerId(producer.id));
    response.with_producer_epoch(producer.epoch)
}
