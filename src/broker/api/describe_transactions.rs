//! DescribeTransactions: <https://kafka.apache.org/protocol#The_Messages_DescribeTransactions>.

use std::time::Duration;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_transactions_response::{TopicData, TransactionState};
use kafka_protocol::messages::{
    ApiKey, DescribeTransactionsRequest, DescribeTransactionsResponse, ProducerId, TransactionalId,
};

use super::{Api, Call, text};
use crate::broker::state::State;
use crate::broker::transactions::Transaction;

pub(crate) struct DescribeTransactions;

impl Api for DescribeTransactions {
    const KEY: ApiKey = ApiKey::DescribeTransactions;
    const VERSIONS: (i16, i16) = (0, 0);
    type Request = DescribeTransactionsRequest;
    type Response = DescribeTransactionsResponse;

    fn handle(
        state: &mut State,
        call: &Call<'_>,
        request: DescribeTransactionsRequest,
    ) -> Option<DescribeTransactionsResponse> {
        Some(answer(&request, |id| {
            if id.is_empty() {
                return failed(id, ResponseError::InvalidRequest.code());
            }
            if let Some(code) = state.coordinator_error(id, call.node) {
                return failed(id, code);
            }
            match state.transactions.get(id) {
                Some(transaction) => describe(state, id, transaction),
                None => failed(id, ResponseError::TransactionalIdNotFound.code()),
            }
        }))
    }

    fn refuse(
        request: &DescribeTransactionsRequest,
        _: &Call<'_>,
        code: i16,
    ) -> DescribeTransactionsResponse {
        answer(request, |id| failed(id, code))
    }
}

fn answer(
    request: &DescribeTransactionsRequest,
    one: impl Fn(&TransactionalId) -> TransactionState,
) -> DescribeTransactionsResponse {
    let states = request.transactional_ids.iter().map(one).collect();
    DescribeTransactionsResponse::default().with_transaction_states(states)
}

fn failed(id: &TransactionalId, code: i16) -> TransactionState {
    TransactionState::default().with_transactional_id(id.clone()).with_error_code(code)
}

fn describe(state: &State, id: &TransactionalId, transaction: &Transaction) -> TransactionState {
    let mut topics: Vec<TopicData> = Vec::new();
    for (name, partition) in &transaction.partitions {
        if topics.last().is_none_or(|topic| *topic.topic != **name) {
            topics.push(TopicData::default().with_topic(text(name.clone()).into()));
        }
        if let Some(topic) = topics.last_mut() {
            topic.partitions.push(*partition);
        }
    }
    let wall_ms = |started: Duration| {
        let ago_ms = state.now.saturating_sub(started).as_millis();
        state.wall_ms() - i64::try_from(ago_ms).unwrap_or(i64::MAX)
    };
    TransactionState::default()
        .with_transactional_id(id.clone())
        .with_transaction_state(text(transaction.phase.name()))
        .with_transaction_timeout_ms(transaction.timeout_ms)
        .with_transaction_start_time_ms(transaction.started.map_or(-1, wall_ms))
        .with_producer_id(ProducerId(transaction.producer.id))
        .with_producer_epoch(transaction.producer.epoch)
        .with_topics(topics)
}
