//! The producer over its connections: an [`Accumulator`] whose requests go out and whose answers come back.
//!
//! A leader gets requests back to back on its connection for [`Purpose::Main`]; Kafka answers them in order. What
//! failed for the whole producer, not for a batch, is [`Producer::failure`].

use std::collections::VecDeque;
use std::time::Duration;

use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse, ProduceResponse};

use crate::api::{Api, Response};
use crate::client::make_topic::MakeTopic;
use crate::client::net::{Net, NetEvent, Purpose, To, backoff};
use crate::error::{Class, Error, classify, code};
use crate::metadata::{Broker, TopicPartition};
use crate::produce::{Accumulator, Acks, AppendError, Delivery, ProduceConfig, RequestId, Slot};

/// Names the producer's requests to its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProducerTag {
    /// InitProducerId.
    Identity,
    /// Produce.
    Produce(RequestId),
    /// CreateTopics.
    MakeTopic,
}

/// What the user may want to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProducerNote {
    /// A broker cannot be reached, and why.
    Down(String, String),
    /// It can again.
    Up(String),
}

const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often it is looked whether requests without an answer are written.
const WRITTEN_TICK: Duration = Duration::from_millis(1);
/// Notes that nobody reads are dropped beyond this many.
const NOTES_MAX: usize = 64;

/// A producer.
pub struct Producer {
    net: Net<ProducerTag>,
    accumulator: Accumulator,
    acks: Acks,
    identity_in_flight: bool,
    identity_not_before: Duration,
    identity_failures: u32,
    topic: Option<MakeTopic>,
    /// Requests with acks=0 whose bytes are not all written.
    unanswered: Vec<RequestId>,
    failure: Option<Error>,
    notes: VecDeque<ProducerNote>,
    random: u64,
    looked_at: Duration,
}

impl Producer {
    /// A producer without connections. Set the interest of `net` to the topics first, or call
    /// [`Producer::make_topic`].
    pub fn new(net: Net<ProducerTag>, config: ProduceConfig) -> Self {
        Producer {
            net,
            acks: config.acks,
            random: config.seed,
            accumulator: Accumulator::new(config),
            identity_in_flight: false,
            identity_not_before: Duration::ZERO,
            identity_failures: 0,
            topic: None,
            unanswered: Vec::new(),
            failure: None,
            notes: VecDeque::new(),
            looked_at: Duration::ZERO,
        }
    }

    /// Makes the topic if it is missing; [`Producer::topic_partitions`] tells when it is there.
    pub fn make_topic(&mut self, make: MakeTopic, now: Duration) {
        make.begin(&mut self.net, now);
        self.topic = Some(make);
    }

    /// The partitions of the topic of [`Producer::make_topic`], once each has a leader; and whether it was made here.
    pub fn topic_partitions(&self) -> Option<(u32, bool)> {
        self.topic.as_ref().and_then(MakeTopic::ready)
    }

    /// The connections.
    pub fn net(&mut self) -> &mut Net<ProducerTag> {
        &mut self.net
    }

    /// See [`Accumulator::slot`].
    pub fn slot(&mut self, at: &TopicPartition) -> Slot {
        self.accumulator.slot(at)
    }

    /// See [`Accumulator::append`]. What is appended goes out at the next [`Producer::poll`].
    ///
    /// # Errors
    /// As [`Accumulator::append`].
    #[inline]
    pub fn append(
        &mut self,
        slot: Slot,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&[u8], Option<&[u8]>)],
        timestamp_ms: i64,
        now: Duration,
    ) -> Result<u64, AppendError> {
        self.accumulator.append(slot, key, value, headers, timestamp_ms, now)
    }

    /// The next outcome of records.
    pub fn next_delivery(&mut self) -> Option<Delivery> {
        self.accumulator.next_delivery()
    }

    /// See [`Accumulator::retry_error`].
    pub fn retry_error(&self) -> Option<&Error> {
        self.accumulator.retry_error()
    }

    /// Whether every record is resolved.
    pub fn is_empty(&self) -> bool {
        self.accumulator.is_empty()
    }

    /// Unpacked bytes of all records that are not resolved.
    pub fn buffered_bytes(&self) -> usize {
        self.accumulator.buffered_bytes()
    }

    /// See [`Accumulator::set_flushing`].
    pub fn set_flushing(&mut self, flushing: bool) {
        self.accumulator.set_flushing(flushing);
    }

    /// See [`Accumulator::set_delivery_timeout`].
    pub fn set_delivery_timeout(&mut self, delivery_timeout: Duration) {
        self.accumulator.set_delivery_timeout(delivery_timeout);
    }

    /// What makes any further delivery hopeless, as a producer id that is denied.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref().or_else(|| self.topic.as_ref().and_then(MakeTopic::failure))
    }

    /// The next thing to tell the user.
    pub fn next_note(&mut self) -> Option<ProducerNote> {
        self.notes.pop_front()
    }

    /// Takes what the connections brought and sends what is due.
    pub fn poll(&mut self, now: Duration) {
        self.looked_at = now;
        self.accumulator.on_timeout(now);
        loop {
            let mut idle = true;
            while let Some(event) = self.net.next_event() {
                self.on_event(event, now);
            }
            if let Some(topic) = &mut self.topic
                && topic.poll(&mut self.net, ProducerTag::MakeTopic, now)
            {
                idle = false;
            }
            idle &= !self.ask_identity(now);
            idle &= !self.send(now);
            if self.accumulator.take_wants_metadata() {
                self.net.want_metadata(now);
            }
            // A request can fail where it is sent; its outcome is an event then, and a pause follows it.
            if idle {
                return;
            }
        }
    }

    /// When [`Producer::poll`] has something to do though nothing was received.
    pub fn deadline(&self) -> Option<Duration> {
        let identity =
            (self.accumulator.wants_identity() && !self.identity_in_flight && self.failure.is_none())
                .then_some(self.identity_not_before);
        let topic = self.topic.as_ref().and_then(MakeTopic::deadline);
        // No event says that bytes were written.
        let written = (!self.unanswered.is_empty()).then(|| self.looked_at + WRITTEN_TICK);
        let others =
            identity.into_iter().chain(topic).chain(written).filter(|due| *due > self.looked_at).min();
        self.accumulator.deadline().into_iter().chain(others).min()
    }

    fn on_event(&mut self, event: NetEvent<ProducerTag>, now: Duration) {
        match event {
            NetEvent::Outcome(ProducerTag::Produce(id), result) => {
                let result = result.map(|response| match response {
                    Response::Produce(response) => response,
                    other => unreachable!("{} answers Produce", other.api()),
                });
                if let Ok(response) = &result {
                    self.learn_brokers(response);
                }
                self.accumulator.on_outcome(id, result, self.net.metadata_mut(), now);
            }
            NetEvent::Outcome(ProducerTag::Identity, result) => {
                self.identity_in_flight = false;
                let result = result.map(|response| match response {
                    Response::InitProducerId(response) => response,
                    other => unreachable!("{} answers InitProducerId", other.api()),
                });
                self.on_identity(result, now);
            }
            NetEvent::Outcome(ProducerTag::MakeTopic, result) => {
                if let Some(topic) = &mut self.topic {
                    topic.on_outcome(result, &mut self.net, now);
                }
            }
            NetEvent::Metadata(_) => {}
            NetEvent::Down(broker, why) => self.note(ProducerNote::Down(broker, why)),
            NetEvent::Up(broker) => self.note(ProducerNote::Up(broker)),
        }
    }

    fn note(&mut self, note: ProducerNote) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push_back(note);
        }
    }

    /// The addresses of the leaders that an answer names may be newer than our list (KIP-951).
    fn learn_brokers(&mut self, response: &ProduceResponse) {
        for node in &response.node_endpoints {
            if let Ok(port) = u16::try_from(node.port) {
                let rack = node.rack.as_ref().map(|rack| rack.to_string());
                let broker = Broker { host: node.host.to_string(), port, rack };
                self.net.metadata_mut().brokers.insert(node.node_id.0, broker);
            }
        }
    }

    fn ask_identity(&mut self, now: Duration) -> bool {
        let due = self.accumulator.wants_identity()
            && !self.identity_in_flight
            && self.failure.is_none()
            && self.identity_not_before <= now;
        if due {
            self.identity_in_flight = true;
            // The timeout is for transactions; Java sends the largest number without them.
            let request = InitProducerIdRequest::default()
                .with_transactional_id(None)
                .with_transaction_timeout_ms(i32::MAX)
                .with_producer_id((-1).into())
                .with_producer_epoch(-1);
            self.net.send(To::Any, request, ProducerTag::Identity, Duration::ZERO, now);
        }
        due
    }

    fn on_identity(&mut self, result: Result<InitProducerIdResponse, Error>, now: Duration) {
        let error = match result {
            Ok(response) if response.error_code == code::NONE => {
                self.identity_failures = 0;
                return self.accumulator.set_identity(response.producer_id.0, response.producer_epoch);
            }
            Ok(response) => Error::refused(Api::InitProducerId, response.error_code, None),
            Err(error) => error,
        };
        match error.class() {
            Class::Denied | Class::Refused => self.failure = Some(error),
            _ => {
                self.identity_failures += 1;
                let pause = backoff(PAUSE, PAUSE_MAX, self.identity_failures, &mut self.random);
                self.identity_not_before = now + pause;
            }
        }
    }

    /// Sends all that may be sent; returns whether anything was.
    fn send(&mut self, now: Duration) -> bool {
        if self.acks == Acks::None {
            return self.send_unanswered(now);
        }
        let mut sent = false;
        while let Some((node, id, request)) = self.accumulator.next_request(self.net.metadata(), now) {
            let wait = Duration::ZERO;
            self.net.send(To::Node(node, Purpose::Main), request, ProducerTag::Produce(id), wait, now);
            sent = true;
        }
        sent
    }

    /// acks=0: nothing is sent before everything earlier is written, as no answer says that the broker keeps up.
    fn send_unanswered(&mut self, now: Duration) -> bool {
        let links: Vec<_> = self.net.links().collect();
        if links.iter().any(|link| !self.net.outgoing(*link).is_empty()) {
            return false;
        }
        for id in self.unanswered.drain(..) {
            self.accumulator.on_written(id);
        }
        let mut sent = false;
        while let Some((node, id, request)) = self.accumulator.next_request(self.net.metadata(), now) {
            let to = To::Node(node, Purpose::Main);
            match self.net.send_unanswered(to, request.into()) {
                Ok(true) => {
                    self.unanswered.push(id);
                    sent = true;
                }
                Ok(false) => {
                    self.net.warm_up(to, now);
                    let error = Error::new(crate::error::Fault::Disconnected("not connected yet".to_owned()));
                    self.accumulator.on_outcome(id, Err(error), self.net.metadata_mut(), now);
                }
                Err(error) => self.accumulator.on_outcome(id, Err(error), self.net.metadata_mut(), now),
            }
        }
        sent
    }
}

/// Whether a topic's error in Metadata is final.
pub(super) fn is_final(code: i16) -> bool {
    matches!(classify(Api::Metadata, code), Class::Denied | Class::Refused)
}
