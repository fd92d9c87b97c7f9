//! InitProducerId: <https://kafka.apache.org/protocol#The_Messages_InitProducerId>.

use kafka_protocol::messages::{ApiKey, InitProducerIdRequest, InitProducerIdResponse, ProducerId};

use super::{Api, Call};
use crate::broker::state::State;
use crate::broker::transactions::{Init, Producer, told};

/// First version whose clients know PRODUCER_FENCED.
const KNOWS_FENCED_FROM: i16 = 4;

pub(crate) struct InitProducerId;

impl Api for InitProducerId {
    const KEY: ApiKey = ApiKey::InitProducerId;
    const VERSIONS: (i16, i16) = (0, 5);
    type Request = InitProducerIdRequest;
    type Response = InitProducerIdResponse;

    fn handle(
        state: &mut State,
        call: &Call<'_>,
        request: InitProducerIdRequest,
    ) -> Option<InitProducerIdResponse> {
        let transactional_id = request.transactional_id.as_deref().map(|id| &**id);
        let elsewhere = transactional_id
            .filter(|id| !id.is_empty())
            .and_then(|id| state.coordinator_error(id, call.node));
        if let Some(code) = elsewhere {
            return Some(refused(code));
        }
        let known = Producer { id: request.producer_id.0, epoch: request.producer_epoch };
        let asked = Init { transactional_id, timeout_ms: request.transaction_timeout_ms, known };
        let (answer, ended) = state.transactions.init(asked, state.now);
        if let Some(ended) = ended {
            state.finish_transaction(ended);
        }
        Some(match answer {
            Ok(producer) => InitProducerIdResponse::default()
                .with_producer_id(ProducerId(producer.id))
                .with_producer_epoch(producer.epoch),
            Err(error) => refused(told(error, call.version >= KNOWS_FENCED_FROM)),
        })
    }

    fn refuse(_: &InitProducerIdRequest, _: &Call<'_>, code: i16) -> InitProducerIdResponse {
        refused(code)
    }
}

fn refused(code: i16) -> InitProducerIdResponse {
    let response = InitProducerIdResponse::default().with_error_code(code);
    response.with_producer_id(ProducerId(-1)).with_producer_epoch(-1)
}
