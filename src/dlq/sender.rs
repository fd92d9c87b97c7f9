//! Sends records to their partitions, one batch each, and knows what became of every one.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use keylane_protocol::api::Api;
use keylane_protocol::client::net::{Interest, Net, NetConfig};
use keylane_protocol::client::producer::Producer;
use keylane_protocol::error::{Error, Fault};
use keylane_protocol::metadata::{TopicPartition, TopicState};
use keylane_protocol::partitioner;
use keylane_protocol::produce::{Acks, AppendError, ProduceConfig, Slot};
use keylane_protocol::records::{Codec, Header, Record};

use super::letter::Origin;
use crate::cli::Common;
use crate::driver::Driver;
use crate::driver::signals::{SignalCount, Source as SignalSource};
use crate::exit::Exit;
use crate::pool::role::{net_config, random_seed};
use crate::session::Failure;

/// Unpacked records that are out or wait for a leader.
pub(crate) const BUFFERED_BYTES_MAX: usize = 16 << 20;
const REQUEST_BYTES_MAX: usize = 1 << 20;
const REQUESTS_IN_FLIGHT_MAX: usize = 5;
/// As long as Java's `delivery.timeout.ms` would be with our request timeout.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// Every record is a batch of its own: a broker refuses whole batches, which would say nothing about a single record of
/// theirs. It is packed, for a record that came packed may be over a topic's limit unpacked. The owner keeps to
/// [`BUFFERED_BYTES_MAX`].
pub(crate) fn produce_config(net: &NetConfig, delivery_timeout: Duration) -> ProduceConfig {
    ProduceConfig {
        codec: Codec::Lz4,
        acks: Acks::All,
        linger: Duration::ZERO,
        batch_bytes_max: 1,
        buffered_bytes_max: usize::MAX,
        request_bytes_max: REQUEST_BYTES_MAX,
        requests_in_flight_max: REQUESTS_IN_FLIGHT_MAX,
        delivery_timeout,
        request_timeout: net.request_timeout,
        seed: net.seed,
    }
}

/// What became of a record.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fate {
    /// Not acknowledged.
    Open,
    /// Acknowledged there.
    Taken(TopicPartition),
    /// It never will be.
    Refused(Error),
}

/// A producer for records of any topic.
pub(super) struct Sender {
    driver: Driver,
    producer: Producer,
    signals: SignalCount,
    request_timeout: Duration,
    topics: BTreeSet<String>,
    /// The offset and the target of each record, by its name at the producer.
    names: BTreeMap<(Slot, u64), (i64, TopicPartition)>,
    fates: BTreeMap<i64, Fate>,
    failed: bool,
}

impl Sender {
    /// Nothing is sent yet.
    ///
    /// # Errors
    /// The system gives no epoll or no signal handler.
    pub(super) fn open(common: &Common, signals: &SignalSource) -> Result<Sender, Failure> {
        let driver = Driver::new().map_err(Failure::System)?;
        let signals = signals.watch(driver.waker()).map_err(Failure::System)?;
        let net = net_config(common, random_seed());
        let config = produce_config(&net, DELIVERY_TIMEOUT);
        Ok(Sender {
            driver,
            producer: Producer::new(Net::new(net), config),
            signals,
            request_timeout: common.request_timeout,
            topics: BTreeSet::new(),
            names: BTreeMap::new(),
            fates: BTreeMap::new(),
            failed: false,
        })
    }

    /// The exit after a signal.
    pub(super) fn stopped(&self) -> Exit {
        match (self.signals.count(), self.signals.last()) {
            (2.., signal) => Exit::of_signal(signal),
            _ => Exit::Unfinished,
        }
    }

    /// Where a letter goes back to: its origin, or by its key where that partition is gone.
    ///
    /// # Errors
    /// The topic is missing or unknown within the request timeout.
    pub(super) fn target(&mut self, origin: &Origin, key: Option<&[u8]>) -> Result<TopicPartition, Failure> {
        let topic = origin.topic.as_str();
        self.learn(topic)?;
        let known = self.producer.net().metadata().topic(topic);
        let has = known.is_some_and(|topic| topic.partitions.contains_key(&origin.partition));
        let count = known.and_then(|topic| u32::try_from(topic.partitions.len()).ok()).unwrap_or(0);
        let count = NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
        let partition = match key {
            _ if has => origin.partition,
            Some(key) => partitioner::partition(key, count),
            None => origin.partition.rem_euclid(i32::try_from(count.get()).unwrap_or(i32::MAX)),
        };
        Ok(TopicPartition::new(topic, partition))
    }

    /// Waits until a topic is known.
    fn learn(&mut self, topic: &str) -> Result<(), Failure> {
        if self.producer.net().metadata().has_partitions(topic) {
            return Ok(());
        }
        let now = self.driver.now();
        if self.topics.insert(topic.to_owned()) {
            self.producer.net().set_interest(Interest::Topics(self.topics.clone()), now);
        }
        let until = now + self.request_timeout;
        loop {
            let net = self.producer.net();
            if net.metadata().is_answered(topic) {
                return match net.metadata().topics.get(topic) {
                    Some(TopicState::Refused(code)) => {
                        Err(Error::refused(Api::Metadata, *code, None).at_topic(topic).into())
                    }
                    _ => Ok(()),
                };
            }
            let now = self.driver.now();
            if now >= until {
                let error = self.producer.net().last_error().cloned();
                return Err(error.unwrap_or(Error::new(Fault::TimedOut(self.request_timeout))).into());
            }
            self.turn(Some(until))?;
        }
    }

    /// Sends a record, waiting for room.
    ///
    /// # Errors
    /// A signal came, or sending has become hopeless; the record was not sent.
    pub(super) fn send(
        &mut self,
        target: &TopicPartition,
        record: &Record<'_>,
        headers: &[Header<'_>],
        timestamp_ms: i64,
    ) -> Result<(), Failure> {
        while self.producer.buffered_bytes() >= BUFFERED_BYTES_MAX && !self.failed {
            self.turn(None)?;
        }
        if self.signals.count() > 0 || self.failed {
            return Err(Failure::Stopped);
        }
        let (offset, now) = (record.offset, self.driver.now());
        let slot = self.producer.slot(target);
        match self.producer.append(slot, record.key, record.value, headers, timestamp_ms, now) {
            Ok(number) => {
                self.names.insert((slot, number), (offset, target.clone()));
                self.fates.insert(offset, Fate::Open);
            }
            Err(AppendError::Record(error)) => {
                self.failed = true;
                self.fates.insert(offset, Fate::Refused(Error::new(Fault::Damaged(error))));
            }
            Err(AppendError::Full) => unreachable!("the producer's own limit is never reached"),
        }
        Ok(())
    }

    /// Waits until every record has its fate, or a second signal comes.
    ///
    /// # Errors
    /// That signal, or sending has become hopeless.
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        while !self.producer.is_empty() {
            if self.signals.count() >= 2 {
                return Err(Failure::Stopped);
            }
            self.turn(None)?;
        }
        Ok(())
    }

    /// What became of the records since the last call, by their offset.
    pub(super) fn take_fates(&mut self) -> BTreeMap<i64, Fate> {
        self.names.clear();
        std::mem::take(&mut self.fates)
    }

    fn turn(&mut self, deadline: Option<Duration>) -> Result<(), Failure> {
        self.driver.turn(&mut self.producer, deadline).map_err(Failure::System)?;
        while let Some(delivery) = self.producer.next_delivery() {
            for number in delivery.first..delivery.first + u64::from(delivery.count) {
                let Some((offset, target)) = self.names.remove(&(delivery.slot, number)) else { continue };
                let fate = match &delivery.result {
                    Ok(_) => Fate::Taken(target),
                    Err(error) => Fate::Refused(error.clone()),
                };
                self.failed |= matches!(fate, Fate::Refused(_));
                self.fates.insert(offset, fate);
            }
        }
        match self.producer.failure() {
            Some(error) => Err(error.clone().into()),
            None => Ok(()),
        }
    }
}

/// How a run ends at a letter that was not taken.
pub(crate) fn exit_of_refusal(error: &Error) -> Exit {
    match (&error.fault, Exit::of(error)) {
        // Not acknowledged in time: it comes again.
        (Fault::Policy(_), _) => Exit::Unfinished,
        (_, Exit::Refused) => Exit::Record,
        (_, exit) => exit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_for_good_is_the_records_fault() {
        let refused = |code| exit_of_refusal(&Error::refused(Api::Produce, code, None));
        assert_eq!(refused(10), Exit::Record);
        assert_eq!(refused(29), Exit::Denied);
        assert_eq!(exit_of_refusal(&Error::new(Fault::Policy("late".to_owned()))), Exit::Unfinished);
    }
}
