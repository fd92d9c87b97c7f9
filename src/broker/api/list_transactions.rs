//! ListTransactions: <https://kafka.apache.org/protocol#The_Messages_ListTransactions>.

use std::time::Duration;

use kafka_protocol::messages::list_transactions_response::TransactionState;
use kafka_protocol::messages::{ApiKey, ListTransactionsRequest, ListTransactionsResponse, ProducerId};

use super::{Api, Call, text};
use crate::broker::state::State;
use crate::broker::transactions::{Phase, Transaction};

/// States that Kafka has and that cannot be seen here.
const PASSING_STATES: [&str; 4] = ["PrepareCommit", "PrepareAbort", "Dead", "PrepareEpochFence"];

pub(crate) struct ListTransactions;

impl Api for ListTransactions {
    const KEY: ApiKey = ApiKey::ListTransactions;
    /// The next one has a pattern of Java's regular expressions.
    const VERSIONS: (i16, i16) = (0, 1);
    type Request = ListTransactionsRequest;
    type Response = ListTransactionsResponse;

    fn handle(
        state: &mut State,
        call: &Call<'_>,
        request: ListTransactionsRequest,
    ) -> Option<ListTransactionsResponse> {
        let known = |filter: &str| {
            Phase::ALL.iter().any(|phase| phase.name() == filter) || PASSING_STATES.contains(&filter)
        };
        let unknown = request.state_filters.iter().filter(|filter| !known(filter)).cloned().collect();
        let here = |id: &str| state.coordinator_error(id, call.node).is_none();
        let found = state
            .transactions
            .iter()
            .filter(|(id, transaction)| here(id) && is_wanted(state, &request, transaction))
            .map(|(id, transaction)| {
                TransactionState::default()
                    .with_transactional_id(text(id).into())
                    .with_producer_id(ProducerId(transaction.producer.id))
                    .with_transaction_state(text(transaction.phase.name()))
            });
        let found = found.collect();
        Some(
            ListTransactionsResponse::default()
                .with_unknown_state_filters(unknown)
                .with_transaction_states(found),
        )
    }

    fn refuse(_: &ListTransactionsRequest, _: &Call<'_>, code: i16) -> ListTransactionsResponse {
        ListTransactionsResponse::default().with_error_code(code)
    }
}

/// An empty filter lets everything through.
fn is_wanted(state: &State, request: &ListTransactionsRequest, transaction: &Transaction) -> bool {
    let (states, ids) = (&request.state_filters, &request.producer_id_filters);
    let open_for = transaction.started.map(|started| state.now.saturating_sub(started));
    let long_enough = match u64::try_from(request.duration_filter) {
        Ok(least_ms) => open_for.is_some_and(|open_for| open_for > Duration::from_millis(least_ms)),
        Err(_) => true,
    };
    long_enough
        && (states.is_empty() || states.iter().any(|name| **name == *transaction.phase.name()))
        && (ids.is_empty() || ids.iter().any(|id| id.0 == transaction.producer.id))
}
