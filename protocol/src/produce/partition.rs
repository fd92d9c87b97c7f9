//! One partition's records on their way out: the open batch, then closed ones in order.
//!
//! Invariants: batches that are out are at the front of the queue when one is sent, so order holds through retries
//! (after a failure nothing is sent again before all that followed it came back). Sequences along the queue are
//! contiguous (KIP-98). `out ≤ requests`: a batch that expired leaves the queue, its request stays due.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use crate::error::{Error, Fault};
use crate::metadata::TopicPartition;
use crate::records::{BatchBuilder, Codec, ProducerStamp, restamp};

use super::{Delivery, Slot};

/// The sequence number `count` records after `sequence`: it wraps to 0 after 2147483647.
pub(super) fn sequence_after(sequence: i32, count: i32) -> i32 {
    ((i64::from(sequence) + i64::from(count)) % (1 << 31)) as i32
}

/// Producer id and epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) producer_id: i64,
    pub(super) epoch: i16,
}

/// A closed batch: its bytes never change but by [`Partition::renumber`].
pub(super) struct Batch {
    pub(super) bytes: Bytes,
    /// Number of its first record in the partition, from 0 in the order of the appends: the batch's name.
    pub(super) first: u64,
    /// Number of the batch among all that were closed.
    number: u64,
    count: i32,
    charged_bytes: usize,
    first_at: Duration,
    last_at: Duration,
    /// It was sent at least once under its present stamp, so the broker may have stored it.
    sent: bool,
    out: bool,
}

/// One partition.
pub(super) struct Partition {
    pub(super) at: TopicPartition,
    slot: Slot,
    open: BatchBuilder,
    open_first_at: Duration,
    open_last_at: Duration,
    pub(super) queue: VecDeque<Batch>,
    /// Records appended so far.
    appended: u64,
    /// Batches closed so far.
    closed: u64,
    /// None while not idempotent, or until an id is given.
    pub(super) identity: Option<Identity>,
    next_sequence: i32,
    /// A batch was acknowledged under this identity. A broker that knows nothing of a producer takes any sequence as
    /// its first (KIP-360), so until then a second batch could be stored before the first.
    proven: bool,
    /// Batches in the queue that are out.
    out: usize,
    /// Requests without an outcome that carry a batch of this partition, expired ones included.
    pub(super) requests: usize,
    /// A batch left the queue unacknowledged: what was never sent waits until the rest is settled, and then begins a
    /// new epoch (KIP-360).
    gap: bool,
    /// The broker does not accept our sequences any more: begin a new epoch once nothing is out.
    refused: bool,
    pub(super) retry_at: Duration,
    pub(super) failures: u32,
    pub(super) last_error: Option<Error>,
}

/// What a partition has to send.
pub(super) enum Next {
    /// Nothing, or not now.
    Nothing,
    /// The closed batch at this place of the queue.
    Closed(usize),
    /// The open batch.
    Open,
}

impl Partition {
    pub(super) fn new(at: TopicPartition, slot: Slot, identity: Option<Identity>) -> Self {
        Partition {
            at,
            slot,
            open: BatchBuilder::new(),
            open_first_at: Duration::ZERO,
            open_last_at: Duration::ZERO,
            queue: VecDeque::new(),
            appended: 0,
            closed: 0,
            identity,
            next_sequence: 0,
            proven: false,
            out: 0,
            requests: 0,
            gap: false,
            refused: false,
            retry_at: Duration::ZERO,
            failures: 0,
            last_error: None,
        }
    }

    pub(super) fn open(&mut self) -> &mut BatchBuilder {
        &mut self.open
    }

    /// A record was appended to the open batch; returns its number.
    pub(super) fn appended(&mut self, now: Duration) -> u64 {
        if self.open.record_count() == 1 {
            self.open_first_at = now;
        }
        self.open_last_at = now;
        self.appended += 1;
        self.appended - 1
    }

    /// Closes the open batch. Packing fails only for a batch near 2 GB; its records are failed then.
    pub(super) fn close(&mut self, codec: Codec) -> Result<(), Delivery> {
        let count = self.open.record_count();
        let charged_bytes = self.open.bytes();
        let stamp = match self.identity {
            Some(identity) => stamp(identity, self.next_sequence),
            None => ProducerStamp::NONE,
        };
        let first = self.appended - count as u64;
        match self.open.finish(codec, &stamp) {
            Ok(bytes) => {
                self.next_sequence = sequence_after(self.next_sequence, count);
                let (first_at, last_at) = (self.open_first_at, self.open_last_at);
                let number = self.closed;
                self.closed += 1;
                let (sent, out) = (false, false);
                let batch =
                    Batch { bytes, first, number, count, charged_bytes, first_at, last_at, sent, out };
                self.queue.push_back(batch);
                Ok(())
            }
            Err(error) => {
                let delivery = self.fail_open(Error::new(Fault::Damaged(error)));
                Err(delivery)
            }
        }
    }

    fn fail_open(&mut self, error: Error) -> Delivery {
        let count = self.open.record_count();
        let delivery = Delivery {
            slot: self.slot,
            first: self.appended - count as u64,
            count: count as u32,
            charged_bytes: self.open.bytes(),
            first_at: self.open_first_at,
            last_at: self.open_last_at,
            result: Err(error.at_partition(&self.at.topic, self.at.partition)),
        };
        self.open.clear();
        delivery
    }

    /// What may be sent now, by the rules of order and idempotence.
    pub(super) fn next(&self, now: Duration, rules: &Rules) -> Next {
        let waits_for_identity = rules.idempotent && self.identity.is_none();
        let in_flight_max = if self.proven { rules.in_flight_max } else { 1 };
        if self.requests >= in_flight_max || self.refused || now < self.retry_at || waits_for_identity {
            return Next::Nothing;
        }
        let at = self.queue.iter().position(|batch| !batch.out).unwrap_or(self.queue.len());
        if self.out > at {
            return Next::Nothing;
        }
        // A broker knows a batch again by its last few: with more behind the oldest one in doubt, it would refuse that
        // one's retry, though it may have stored it.
        let number = self.queue.get(at).map_or(self.closed, |batch| batch.number);
        if self.queue.front().is_some_and(|oldest| number - oldest.number >= rules.in_flight_max as u64) {
            return Next::Nothing;
        }
        match self.queue.get(at) {
            Some(batch) if self.gap && !batch.sent => Next::Nothing,
            Some(_) => Next::Closed(at),
            None if self.open.is_empty() || self.gap => Next::Nothing,
            None if rules.flushing || self.open_first_at + rules.linger <= now => Next::Open,
            None => Next::Nothing,
        }
    }

    /// When [`Partition::next`] may say something else though no answer came.
    pub(super) fn due(&self, rules: &Rules) -> Option<Duration> {
        if self.out < self.queue.len() {
            return Some(self.retry_at);
        }
        (!self.open.is_empty()).then(|| self.retry_at.max(self.open_first_at + rules.linger))
    }

    /// Marks a batch as sent and returns its bytes.
    pub(super) fn take_out(&mut self, at: usize) -> (u64, Bytes) {
        let Some(batch) = self.queue.get_mut(at) else { unreachable!("only a batch of the queue is sent") };
        assert!(!batch.out, "a batch is out once at a time");
        batch.out = true;
        batch.sent = true;
        self.out += 1;
        self.requests += 1;
        (batch.first, batch.bytes.clone())
    }

    /// The outcome of a request came for the batch of this name; none if the batch has expired meanwhile.
    pub(super) fn came_back(&mut self, first: u64) -> Option<usize> {
        assert!(self.requests > 0, "an outcome belongs to a request");
        self.requests -= 1;
        let at = self.queue.iter().position(|batch| batch.first == first)?;
        assert!(self.queue[at].out, "an outcome belongs to a batch that is out");
        self.queue[at].out = false;
        self.out -= 1;
        Some(at)
    }

    /// Takes a batch out of the queue for good.
    pub(super) fn resolve(&mut self, at: usize, result: Result<i64, Error>, idempotent: bool) -> Delivery {
        let Some(batch) = self.queue.remove(at) else {
            unreachable!("only a batch of the queue is resolved")
        };
        self.out -= usize::from(batch.out);
        self.gap |= idempotent && result.is_err();
        self.proven |= result.is_ok();
        let (topic, partition) = (&self.at.topic, self.at.partition);
        Delivery {
            slot: self.slot,
            first: batch.first,
            count: batch.count as u32,
            charged_bytes: batch.charged_bytes,
            first_at: batch.first_at,
            last_at: batch.last_at,
            result: result.map_err(|error| error.at_partition(topic, partition)),
        }
    }

    /// The broker holds another idea of our sequences: a new epoch, as soon as nothing is out.
    pub(super) fn refuse_sequences(&mut self) {
        self.refused = true;
    }

    /// When the oldest record has waited for the delivery timeout.
    pub(super) fn expires_at(&self, delivery_timeout: Duration) -> Option<Duration> {
        let oldest = match self.queue.front() {
            Some(batch) => Some(batch.first_at),
            None => (!self.open.is_empty()).then_some(self.open_first_at),
        };
        oldest.map(|at| at + delivery_timeout)
    }

    /// Fails the oldest batch.
    pub(super) fn expire(&mut self, error: Error, idempotent: bool) -> Delivery {
        match self.queue.is_empty() {
            true => self.fail_open(error),
            false => self.resolve(0, Err(error), idempotent),
        }
    }

    /// Whether a new epoch must begin and may: every batch whose storing is in doubt was settled under the old stamp
    /// first, else it could be stored twice.
    pub(super) fn needs_epoch(&self) -> bool {
        let settled = self.requests == 0;
        settled && (self.refused || self.gap && !self.queue.front().is_some_and(|batch| batch.sent))
    }

    /// Numbers everything in the queue from sequence 0 under another identity.
    pub(super) fn renumber(&mut self, identity: Option<Identity>) {
        assert!(self.requests == 0, "nothing is out while the stamps change");
        self.identity = identity;
        self.next_sequence = 0;
        self.proven = false;
        self.gap = false;
        self.refused = false;
        let Some(identity) = identity else { return };
        for batch in &mut self.queue {
            let base = self.next_sequence;
            batch.bytes = restamp(&batch.bytes, identity.producer_id, identity.epoch, base);
            batch.sent = false;
            self.next_sequence = sequence_after(base, batch.count);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.open.is_empty()
    }

    #[cfg(test)]
    pub(super) fn set_proven(&mut self) {
        self.proven = true;
    }

    #[cfg(test)]
    pub(super) fn set_next_sequence(&mut self, sequence: i32) {
        self.next_sequence = sequence;
    }
}

fn stamp(identity: Identity, base_sequence: i32) -> ProducerStamp {
    ProducerStamp {
        producer_id: identity.producer_id,
        producer_epoch: identity.epoch,
        base_sequence,
        is_transactional: false,
    }
}

/// What decides when a partition may send.
pub(super) struct Rules {
    pub(super) idempotent: bool,
    pub(super) in_flight_max: usize,
    pub(super) linger: Duration,
    pub(super) flushing: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_wrap_to_zero() {
        assert_eq!(sequence_after(i32::MAX - 1, 1), i32::MAX);
        assert_eq!(sequence_after(i32::MAX, 1), 0);
        assert_eq!(sequence_after(i32::MAX - 1, 3), 1);
    }
}
