//! What a partition knows of its producers: sequences (idempotence, KIP-98), open and aborted transactions.
//!
//! Invariants: `open` holds exactly the first offsets of the producers whose transaction is open; at most
//! [`BATCHES_KEPT`] batches are kept a producer and [`PRODUCERS_MAX`] producers with no open transaction.

use kafka_protocol::ResponseError;
use keylane_protocol::records::BatchHeader;
use std::collections::{BTreeMap, VecDeque};

/// As many as a client may have in flight and still be idempotent.
const BATCHES_KEPT: usize = 5;
/// The longest idle is forgotten beyond this many; Kafka forgets by time (a day).
const PRODUCERS_MAX: usize = 10_000;

const INVALID_PRODUCER_EPOCH: i16 = ResponseError::InvalidProducerEpoch.code();
const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = ResponseError::OutOfOrderSequenceNumber.code();
const INVALID_TXN_STATE: i16 = ResponseError::InvalidTxnState.code();

/// A transaction whose records readers of committed data leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AbortedTransaction {
    pub(crate) producer_id: i64,
    /// Of its first record in this partition.
    pub(crate) first_offset: i64,
    /// Of its marker.
    pub(crate) last_offset: i64,
    /// The last stable offset behind the marker: what is aborted later begins at or past it.
    stable_offset: i64,
}

/// What DescribeProducers tells of one producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProducerState {
    pub(crate) producer_id: i64,
    pub(crate) producer_epoch: i16,
    /// -1 if no batch is known.
    pub(crate) last_sequence: i32,
    /// When it last wrote.
    pub(crate) last_timestamp_ms: i64,
    /// -1 before its first marker.
    pub(crate) coordinator_epoch: i32,
    /// -1 if no transaction is open.
    pub(crate) transaction_start_offset: i64,
}

#[derive(Debug)]
struct Sequenced {
    first: i32,
    last: i32,
    base_offset: i64,
}

#[derive(Debug)]
struct Producer {
    epoch: i16,
    /// Newest last, all of `epoch`.
    batches: VecDeque<Sequenced>,
    transaction_start: Option<i64>,
    coordinator_epoch: i32,
    last_timestamp_ms: i64,
}

#[derive(Debug, Default)]
pub(super) struct Producers {
    known: BTreeMap<i64, Producer>,
    /// First offset of each open transaction.
    open: BTreeMap<i64, i64>,
    /// In the order of their markers.
    aborted: VecDeque<AbortedTransaction>,
}

impl Producers {
    /// Whether a batch may be stored. `Ok(Some(base offset))`: it is, since it came before.
    ///
    /// A producer that the log knows nothing of may begin at any sequence: its state may have been trimmed or moved
    /// away, and Kafka too has stopped to answer UNKNOWN_PRODUCER_ID for it.
    pub(super) fn check(&self, header: &BatchHeader) -> Result<Option<i64>, i16> {
        if header.producer_id < 0 {
            return Ok(None);
        }
        let Some(producer) = self.known.get(&header.producer_id) else { return Ok(None) };
        let first = header.base_sequence;
        let last = sequence_after(first, header.last_offset_delta);
        if header.producer_epoch < producer.epoch {
            return Err(INVALID_PRODUCER_EPOCH);
        }
        let expected = if header.producer_epoch == producer.epoch {
            let same = producer.batches.iter().find(|batch| (batch.first, batch.last) == (first, last));
            if let Some(same) = same {
                return Ok(Some(same.base_offset));
            }
            producer.batches.back().map_or(0, |batch| sequence_after(batch.last, 1))
        } else {
            0
        };
        if first != expected {
            return Err(OUT_OF_ORDER_SEQUENCE_NUMBER);
        }
        if producer.transaction_start.is_some() && !header.is_transactional() {
            return Err(INVALID_TXN_STATE);
        }
        Ok(None)
    }

    /// Whether the producer has a transaction open here under just this epoch.
    pub(super) fn has_open(&self, producer_id: i64, producer_epoch: i16) -> bool {
        let known = self.known.get(&producer_id);
        known.is_some_and(|known| known.epoch == producer_epoch && known.transaction_start.is_some())
    }

    /// Notes a data batch stored at `base_offset`.
    pub(super) fn appended(&mut self, header: &BatchHeader, base_offset: i64, now_ms: i64) {
        if header.producer_id < 0 {
            return;
        }
        let producer = self.producer(header.producer_id, header.producer_epoch, now_ms);
        if producer.batches.len() == BATCHES_KEPT {
            producer.batches.pop_front();
        }
        producer.batches.push_back(Sequenced {
            first: header.base_sequence,
            last: sequence_after(header.base_sequence, header.last_offset_delta),
            base_offset,
        });
        if header.is_transactional() && producer.transaction_start.is_none() {
            producer.transaction_start = Some(base_offset);
            self.open.insert(base_offset, header.producer_id);
        }
    }

    /// Notes the marker stored at `offset`, the log's last.
    pub(super) fn ended(
        &mut self,
        producer_id: i64,
        producer_epoch: i16,
        commit: bool,
        coordinator_epoch: i32,
        offset: i64,
        now_ms: i64,
    ) {
        let producer = self.producer(producer_id, producer_epoch, now_ms);
        producer.coordinator_epoch = coordinator_epoch;
        let Some(first_offset) = producer.transaction_start.take() else { return };
        self.open.remove(&first_offset);
        if !commit {
            let stable_offset = self.first_open().unwrap_or(offset + 1);
            self.aborted.push_back(AbortedTransaction {
                producer_id,
                first_offset,
                last_offset: offset,
                stable_offset,
            });
        }
    }

    /// The first offset of the oldest open transaction.
    pub(super) fn first_open(&self) -> Option<i64> {
        self.open.first_key_value().map(|(&offset, _)| offset)
    }

    /// The aborted transactions that have records in `from..to`, by first offset.
    pub(super) fn aborted_in(&self, from: i64, to: i64) -> Vec<AbortedTransaction> {
        let start = self.aborted.partition_point(|aborted| aborted.last_offset < from);
        let mut found = Vec::new();
        for aborted in self.aborted.range(start..) {
            if aborted.first_offset < to {
                found.push(*aborted);
            }
            if aborted.stable_offset >= to {
                break;
            }
        }
        found.sort_unstable_by_key(|aborted| aborted.first_offset);
        found
    }

    /// Forgets the aborted transactions that lie wholly before `start`.
    pub(super) fn trim_to(&mut self, start: i64) {
        while self.aborted.front().is_some_and(|aborted| aborted.last_offset < start) {
            self.aborted.pop_front();
        }
    }

    /// Every producer, by id.
    pub(super) fn states(&self) -> impl Iterator<Item = ProducerState> + '_ {
        self.known.iter().map(|(&producer_id, producer)| ProducerState {
            producer_id,
            producer_epoch: producer.epoch,
            last_sequence: producer.batches.back().map_or(-1, |batch| batch.last),
            last_timestamp_ms: producer.last_timestamp_ms,
            coordinator_epoch: producer.coordinator_epoch,
            transaction_start_offset: producer.transaction_start.unwrap_or(-1),
        })
    }

    /// The producer, made if it is new, at `epoch` or, should it be there already, a later one.
    fn producer(&mut self, id: i64, epoch: i16, now_ms: i64) -> &mut Producer {
        if self.known.len() >= PRODUCERS_MAX && !self.known.contains_key(&id) {
            self.forget_idle();
        }
        let producer = self.known.entry(id).or_insert_with(|| Producer {
            epoch,
            batches: VecDeque::new(),
            transaction_start: None,
            coordinator_epoch: -1,
            last_timestamp_ms: now_ms,
        });
        if epoch > producer.epoch {
            producer.epoch = epoch;
            producer.batches.clear();
        }
        producer.last_timestamp_ms = now_ms;
        producer
    }

    fn forget_idle(&mut self) {
        let idle = self.known.iter().filter(|(_, producer)| producer.transaction_start.is_none());
        if let Some((&id, _)) = idle.min_by_key(|(_, producer)| producer.last_timestamp_ms) {
            self.known.remove(&id);
        }
    }
}

/// Sequences wrap to 0 after 2147483647.
fn sequence_after(sequence: i32, by: i32) -> i32 {
    sequence.wrapping_add(by) & i32::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_wrap_to_zero() {
        assert_eq!(sequence_after(i32::MAX, 1), 0);
        assert_eq!(sequence_after(i32::MAX - 1, 3), 1);
        assert_eq!(sequence_after(5, 0), 5);
    }

    #[test]
    fn the_longest_idle_producer_is_forgotten() {
        let mut producers = Producers::default();
        for id in 0..PRODUCERS_MAX as i64 + 3 {
            producers.producer(id, 0, id);
        }
        assert_eq!(producers.known.len(), PRODUCERS_MAX);
        assert_eq!(producers.known.first_key_value().map(|(id, _)| *id), Some(3));
    }
}
