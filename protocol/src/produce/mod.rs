//! The producer's state: what waits, what is out, what became of it. No IO.
//!
//! Guarantees: every appended record resolves exactly once, as delivered or as failed with the reason; the records of
//! a partition are stored in the order of their appends; `charged_bytes ≤ buffered_bytes_max`, but for a single record
//! that is larger.
//!
//! Idempotence (KIP-98): with acks=all a batch carries producer id, epoch and sequence, and a retry repeats its bytes,
//! so the broker stores it once. A batch that failed for good leaves a gap in the sequences; the partition then settles
//! what was already sent under the old stamp and goes on at sequence 0 of the next epoch (KIP-360). Epochs are raised
//! here and per partition, as brokers keep producer state per partition; InitProducerId is asked once, and again
//! only when an epoch is used up: to a producer without transactions it always gives a new id, under which a late
//! copy of an old request would not be fenced.

mod partition;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{ProduceRequest, ProduceResponse, TopicName};

use crate::api::{Api, text};
use crate::client::net::backoff;
use crate::error::{Class, Error, Fault, code};
use crate::metadata::{Metadata, TopicPartition};
use crate::records::{BatchError, Codec, record_bytes_max};

use partition::{Identity, Next, Partition, Rules};

/// What a leader waits for before it acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// All in-sync replicas; idempotent.
    All,
    /// Itself; a retry may store a record twice.
    Leader,
    /// Nothing: there is no answer, so a record counts as delivered once its bytes are written.
    None,
}

impl Acks {
    fn code(self) -> i16 {
        match self {
            Acks::All => -1,
            Acks::Leader => 1,
            Acks::None => 0,
        }
    }
}

/// Settings of an [`Accumulator`].
#[derive(Clone, Debug)]
pub struct ProduceConfig {
    /// How batches are packed.
    pub codec: Codec,
    /// What is waited for.
    pub acks: Acks,
    /// How long a batch waits for more records while it could be sent.
    pub linger: Duration,
    /// A batch is closed before it grows past this many bytes, unpacked; a larger record is a batch of its own.
    pub batch_bytes_max: usize,
    /// Unpacked bytes of all records that are not resolved.
    pub buffered_bytes_max: usize,
    /// A request takes no further batch once it has this many bytes, packed.
    pub request_bytes_max: usize,
    /// Requests out to one leader.
    pub requests_in_flight_max: usize,
    /// From a batch's first append to its failure.
    pub delivery_timeout: Duration,
    /// How long a leader may wait for its replicas.
    pub request_timeout: Duration,
    /// Seed of the jitter of pauses.
    pub seed: u64,
}

/// Brokers remember the last five batches of a producer in a partition: no more may be in doubt at once.
const IDEMPOTENT_IN_FLIGHT_MAX: usize = 5;
const RETRY_PAUSE: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Names a partition to its [`Accumulator`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u32);

impl Slot {
    /// Slots count from 0 in the order in which they were made.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Names a Produce request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

/// What became of a run of records of one partition, each exactly once.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// The partition.
    pub slot: Slot,
    /// The number of the first one, as [`Accumulator::append`] gave it.
    pub first: u64,
    /// How many.
    pub count: u32,
    /// Their bytes in the batch, unpacked.
    pub charged_bytes: usize,
    /// When the first one was appended.
    pub first_at: Duration,
    /// When the last one was appended.
    pub last_at: Duration,
    /// The offset of the first one (-1 where the broker did not say), or why they failed.
    pub result: Result<i64, Error>,
}

/// Why a record was not taken.
#[derive(Clone, Debug, PartialEq)]
pub enum AppendError {
    /// The buffer is full: wait for deliveries.
    Full,
    /// No batch can hold it.
    Record(BatchError),
}

/// A request that is out.
struct Flight {
    node: i32,
    /// Slot and batch.
    batches: Vec<(usize, u64)>,
}

#[derive(Default)]
struct Node {
    requests: usize,
    /// The broker asked for a pause (KIP-219).
    not_before: Duration,
}

/// Where the producer id stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Somebody must ask for one.
    Wanted,
    Given(Identity),
}

/// The producer's state.
pub struct Accumulator {
    config: ProduceConfig,
    rules: Rules,
    partitions: Vec<Partition>,
    slots: HashMap<TopicPartition, Slot>,
    source: Source,
    charged_bytes: usize,
    flights: HashMap<RequestId, Flight>,
    nodes: BTreeMap<i32, Node>,
    request_number: u64,
    /// Where the next request begins to look, so that no partition is always last.
    turn: usize,
    deliveries: VecDeque<Delivery>,
    wants_metadata: bool,
    /// When requests were last looked for: what was due by then waits for an event, not for time.
    looked_at: Duration,
    random: u64,
}

impl Accumulator {
    /// Nothing is buffered.
    ///
    /// # Panics
    /// If this build lacks the codec.
    pub fn new(config: ProduceConfig) -> Self {
        assert!(config.codec.is_supported(), "a codec of this build is chosen");
        let idempotent = config.acks == Acks::All;
        // Without sequences two batches of a partition could change places in a retry.
        let in_flight_max = if idempotent { IDEMPOTENT_IN_FLIGHT_MAX } else { 1 };
        Accumulator {
            rules: Rules { idempotent, in_flight_max, linger: config.linger, flushing: false },
            partitions: Vec::new(),
            slots: HashMap::new(),
            source: Source::Wanted,
            charged_bytes: 0,
            flights: HashMap::new(),
            nodes: BTreeMap::new(),
            request_number: 0,
            turn: 0,
            deliveries: VecDeque::new(),
            wants_metadata: false,
            looked_at: Duration::ZERO,
            random: config.seed,
            config,
        }
    }

    /// The slot of a partition.
    pub fn slot(&mut self, at: &TopicPartition) -> Slot {
        if let Some(slot) = self.slots.get(at) {
            return *slot;
        }
        let slot = Slot(self.partitions.len() as u32);
        let identity = match self.source {
            Source::Given(identity) => Some(identity),
            Source::Wanted => None,
        };
        self.partitions.push(Partition::new(at.clone(), slot, identity.filter(|_| self.rules.idempotent)));
        self.slots.insert(at.clone(), slot);
        slot
    }

    /// The partition of a slot.
    pub fn partition_of(&self, slot: Slot) -> &TopicPartition {
        &self.partitions[slot.index()].at
    }

    /// Takes a record and returns its number in the partition.
    ///
    /// # Errors
    /// The buffer is full, or the record is beyond the format's limits. Nothing was taken then.
    pub fn append(
        &mut self,
        slot: Slot,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&[u8], Option<&[u8]>)],
        timestamp_ms: i64,
        now: Duration,
    ) -> Result<u64, AppendError> {
        let bytes = record_bytes_max(key, value, headers);
        if self.charged_bytes + bytes + crate::records::HEADER_BYTES > self.config.buffered_bytes_max
            && self.charged_bytes > 0
        {
            return Err(AppendError::Full);
        }
        let partition = &mut self.partitions[slot.index()];
        let is_full =
            !partition.open().is_empty() && partition.open().bytes() + bytes > self.config.batch_bytes_max;
        if is_full && let Err(failed) = partition.close(self.config.codec) {
            self.charged_bytes -= failed.charged_bytes;
            self.deliveries.push_back(failed);
        }
        let partition = &mut self.partitions[slot.index()];
        let open = partition.open();
        let before = if open.is_empty() { 0 } else { open.bytes() };
        open.append(key, value, headers, timestamp_ms).map_err(AppendError::Record)?;
        self.charged_bytes += open.bytes() - before;
        Ok(partition.appended(now))
    }

    /// Whether lingering is over: everything goes out as soon as it can.
    pub fn set_flushing(&mut self, flushing: bool) {
        self.rules.flushing = flushing;
    }

    /// Shortens the delivery timeout of everything that is buffered; zero fails it at the next timeout.
    pub fn set_delivery_timeout(&mut self, delivery_timeout: Duration) {
        self.config.delivery_timeout = delivery_timeout;
    }

    /// Unpacked bytes of all records that are not resolved.
    pub fn buffered_bytes(&self) -> usize {
        self.charged_bytes
    }

    /// Whether every record is resolved.
    pub fn is_empty(&self) -> bool {
        self.partitions.iter().all(Partition::is_empty)
    }

    /// The next outcome.
    pub fn next_delivery(&mut self) -> Option<Delivery> {
        self.deliveries.pop_front()
    }

    /// Why something that was sent is to be sent again, of the first partition of which that is so.
    pub fn retry_error(&self) -> Option<&Error> {
        self.partitions.iter().find_map(|partition| partition.last_error.as_ref())
    }

    /// Whether InitProducerId must be asked: without an id nothing idempotent is sent.
    pub fn wants_identity(&self) -> bool {
        self.rules.idempotent && self.source == Source::Wanted
    }

    /// InitProducerId was answered.
    pub fn set_identity(&mut self, producer_id: i64, epoch: i16) {
        let identity = Identity { producer_id, epoch };
        self.source = Source::Given(identity);
        for partition in &mut self.partitions {
            if partition.identity.is_none() {
                partition.renumber(Some(identity));
            }
        }
    }

    /// Whether a leader was missing or is no longer one, since the last call.
    pub fn take_wants_metadata(&mut self) -> bool {
        std::mem::take(&mut self.wants_metadata)
    }

    /// The next request to send: one batch of each partition that has one for this leader, up to the request's size.
    pub fn next_request(
        &mut self,
        metadata: &Metadata,
        now: Duration,
    ) -> Option<(i32, RequestId, ProduceRequest)> {
        self.looked_at = now;
        let mut flight = Flight { node: -1, batches: Vec::new() };
        let mut topics: Vec<TopicProduceData> = Vec::new();
        let mut bytes = 0;
        let turn = self.turn;
        for step in 0..self.partitions.len() {
            if bytes >= self.config.request_bytes_max {
                break;
            }
            let index = (turn + step) % self.partitions.len();
            let next = self.partitions[index].next(now, &self.rules);
            if matches!(next, Next::Nothing) {
                continue;
            }
            let Some((node, _)) = metadata.leader(&self.partitions[index].at) else {
                self.wants_metadata = true;
                continue;
            };
            let is_free = self.nodes.get(&node).is_none_or(|known| {
                known.requests < self.config.requests_in_flight_max && known.not_before <= now
            });
            if (!flight.batches.is_empty() && node != flight.node) || !is_free {
                continue;
            }
            let Some((first, records)) = self.take_batch(index, &next) else { continue };
            bytes += records.len();
            flight.node = node;
            self.turn = index + 1;
            flight.batches.push((index, first));
            let at = &self.partitions[index].at;
            let data = PartitionProduceData::default().with_index(at.partition).with_records(Some(records));
            match topics.iter_mut().find(|topic| topic.name.as_str() == &*at.topic) {
                Some(topic) => topic.partition_data.push(data),
                None => topics.push(
                    TopicProduceData::default()
                        .with_name(TopicName(text(&at.topic)))
                        .with_partition_data(vec![data]),
                ),
            }
        }
        if flight.batches.is_empty() {
            return None;
        }
        let node = flight.node;
        self.nodes.entry(node).or_default().requests += 1;
        self.request_number += 1;
        let id = RequestId(self.request_number);
        self.flights.insert(id, flight);
        let timeout_ms = i32::try_from(self.config.request_timeout.as_millis()).unwrap_or(i32::MAX);
        let request = ProduceRequest::default()
            .with_acks(self.config.acks.code())
            .with_timeout_ms(timeout_ms)
            .with_topic_data(topics);
        Some((node, id, request))
    }

    fn take_batch(&mut self, index: usize, next: &Next) -> Option<(u64, bytes::Bytes)> {
        let partition = &mut self.partitions[index];
        let at = match next {
            Next::Nothing => return None,
            Next::Closed(at) => *at,
            Next::Open => match partition.close(self.config.codec) {
                Ok(()) => partition.queue.len() - 1,
                Err(failed) => {
                    self.charged_bytes -= failed.charged_bytes;
                    self.deliveries.push_back(failed);
                    return None;
                }
            },
        };
        Some(partition.take_out(at))
    }

    /// The outcome of a request.
    pub fn on_outcome(
        &mut self,
        id: RequestId,
        result: Result<ProduceResponse, Error>,
        metadata: &mut Metadata,
        now: Duration,
    ) {
        let Some(flight) = self.flights.remove(&id) else { unreachable!("a request has one outcome") };
        let node = self.nodes.entry(flight.node).or_default();
        node.requests -= 1;
        let response = match result {
            Ok(response) => response,
            Err(error) => {
                for (index, first) in flight.batches {
                    self.failed(index, first, error.clone(), now);
                }
                return;
            }
        };
        let throttle = Duration::from_millis(u64::try_from(response.throttle_time_ms).unwrap_or(0));
        node.not_before = node.not_before.max(now + throttle);
        let mut left = flight.batches;
        for topic in &response.responses {
            for answer in &topic.partition_responses {
                // Answers come in the order of the request, so this finds the first one.
                let found = left.iter().position(|(index, _)| {
                    let at = &self.partitions[*index].at;
                    at.partition == answer.index && *at.topic == **topic.name
                });
                let Some(found) = found else { continue };
                let (index, first) = left.remove(found);
                self.answered(index, first, answer, metadata, now);
            }
        }
        for (index, first) in left {
            let error = Error::peer("the answer leaves out a partition").at_api(Api::Produce);
            self.failed(index, first, error, now);
        }
    }

    /// A request without an answer (acks=0) was written whole.
    pub fn on_written(&mut self, id: RequestId) {
        let Some(flight) = self.flights.remove(&id) else { unreachable!("a request has one outcome") };
        self.nodes.entry(flight.node).or_default().requests -= 1;
        for (index, first) in flight.batches {
            self.delivered(index, first, -1);
        }
    }

    fn answered(
        &mut self,
        index: usize,
        first: u64,
        answer: &PartitionProduceResponse,
        metadata: &mut Metadata,
        now: Duration,
    ) {
        // DUPLICATE_SEQUENCE_NUMBER is of this class too: it was stored before.
        if crate::error::classify(Api::Produce, answer.error_code) == Class::Fine {
            return self.delivered(index, first, answer.base_offset);
        }
        let at = self.partitions[index].at.clone();
        let message = answer.error_message.as_ref().map(ToString::to_string);
        let error = Error::refused(Api::Produce, answer.error_code, message);
        let before = metadata.leader(&at);
        let leader = &answer.current_leader;
        if leader.leader_id.0 >= 0 {
            metadata.learn_leader(&at, leader.leader_id.0, leader.leader_epoch);
        }
        let moved = metadata.leader(&at) != before;
        self.failed(index, first, error, now);
        if moved {
            // The answer itself named the new leader (KIP-951): no pause.
            self.partitions[index].retry_at = now;
        }
    }

    fn delivered(&mut self, index: usize, first: u64, base_offset: i64) {
        let partition = &mut self.partitions[index];
        if let Some(at) = partition.came_back(first) {
            partition.failures = 0;
            partition.last_error = None;
            let delivery = partition.resolve(at, Ok(base_offset), self.rules.idempotent);
            self.charged_bytes -= delivery.charged_bytes;
            self.deliveries.push_back(delivery);
        }
        self.settle(index);
    }

    /// A batch came back without being acknowledged: once more, or no more.
    fn failed(&mut self, index: usize, first: u64, error: Error, now: Duration) {
        let idempotent = self.rules.idempotent;
        let partition = &mut self.partitions[index];
        if let Some(at) = partition.came_back(first) {
            let about_sequences = idempotent
                && matches!(
                    error.code(),
                    Some(
                        code::OUT_OF_ORDER_SEQUENCE_NUMBER
                            | code::UNKNOWN_PRODUCER_ID
                            | code::INVALID_PRODUCER_EPOCH
                    )
                );
            let class = error.class();
            let again = about_sequences
                || matches!(class, Class::Retry | Class::Leader | Class::Topic | Class::Coordinator);
            // With an earlier batch still to be sent again, a gap in the sequences is what is to be expected.
            if about_sequences && at == 0 {
                partition.refuse_sequences();
            }
            if again {
                partition.failures += 1;
                let pause = backoff(RETRY_PAUSE, RETRY_PAUSE_MAX, partition.failures, &mut self.random);
                partition.retry_at = now + pause;
                self.wants_metadata |= !about_sequences;
                partition.last_error = Some(error);
            } else {
                let delivery = partition.resolve(at, Err(error), idempotent);
                self.charged_bytes -= delivery.charged_bytes;
                self.deliveries.push_back(delivery);
            }
        }
        self.settle(index);
    }

    /// Begins the partition's next epoch if it needs one and may.
    fn settle(&mut self, index: usize) {
        let partition = &mut self.partitions[index];
        if !partition.needs_epoch() {
            return;
        }
        let next = match (partition.identity, self.source) {
            (Some(identity), _) if identity.epoch < i16::MAX - 1 => {
                Some(Identity { epoch: identity.epoch + 1, ..identity })
            }
            (Some(used_up), Source::Given(given)) if used_up.producer_id != given.producer_id => Some(given),
            _ => {
                self.source = Source::Wanted;
                None
            }
        };
        partition.renumber(next);
    }

    /// Fails what has waited too long.
    pub fn on_timeout(&mut self, now: Duration) {
        let timeout = self.config.delivery_timeout;
        for index in 0..self.partitions.len() {
            let mut expired = false;
            let partition = &mut self.partitions[index];
            while partition.expires_at(timeout).is_some_and(|due| due <= now) {
                let why = match &partition.last_error {
                    Some(error) => format!("not acknowledged within {} ms: {error}", timeout.as_millis()),
                    None => format!("not acknowledged within {} ms", timeout.as_millis()),
                };
                let error = Error::new(Fault::Policy(why)).at_api(Api::Produce);
                let delivery = partition.expire(error, self.rules.idempotent);
                self.charged_bytes -= delivery.charged_bytes;
                self.deliveries.push_back(delivery);
                expired = true;
            }
            if expired {
                self.settle(index);
            }
        }
    }

    /// When [`Accumulator::on_timeout`] or [`Accumulator::next_request`] has something to do though no answer came.
    pub fn deadline(&self) -> Option<Duration> {
        let timeout = self.config.delivery_timeout;
        let expiry = self.partitions.iter().filter_map(|partition| partition.expires_at(timeout)).min();
        let sends = self.partitions.iter().filter_map(|partition| partition.due(&self.rules));
        let nodes = self.nodes.values().map(|node| node.not_before);
        let next = sends.chain(nodes).filter(|due| *due > self.looked_at).min();
        expiry.into_iter().chain(next).min()
    }
}
