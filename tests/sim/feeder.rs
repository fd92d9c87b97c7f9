//! Producers that fill the topic: the real one, with records that can be told apart.
//!
//! A record's value begins with its number: the feeder in the upper half, a counter in the lower. Each partition has
//! keys of its own, so that added partitions move none.

use std::time::Duration;

use keylane_protocol::client::net::{Interest, Net, NetConfig};
use keylane_protocol::client::producer::{Producer, ProducerTag};
use keylane_protocol::metadata::TopicPartition;
use keylane_protocol::produce::{Acks, ProduceConfig};
use keylane_protocol::records::{Codec, Record};

use crate::plan::{TOPIC, Weather};
use crate::time::{Event, Who};
use crate::world::World;

pub(crate) struct Feeder {
    pub(crate) producer: Producer,
    pub(crate) began: Duration,
    pub(crate) due: Option<Duration>,
    made: u64,
    most: u64,
    /// By slot, its partition, and the records by their numbers within it.
    slots: Vec<(i32, Vec<u64>)>,
}

impl Feeder {
    /// Whether everything was made and resolved.
    pub(crate) fn is_done(&self) -> bool {
        self.made == self.most && self.producer.is_empty()
    }
}

/// Key and number of a record.
pub(crate) fn understand(record: &Record<'_>) -> (Option<u32>, u64) {
    let value = record.value.expect("every record has a value");
    let id = u64::from_be_bytes(value[..8].try_into().expect("a number"));
    let key = record.key.map(|key| {
        std::str::from_utf8(key).ok().and_then(|key| key.rsplit('-').next()?.parse().ok()).expect("a key")
    });
    (key, id)
}

impl World {
    pub(crate) fn start_feeder(&mut self, most: u64) {
        let number = self.feeders.len();
        let calm = self.plan.weather == Weather::Calm;
        let random = &mut self.time.random;
        let config = NetConfig {
            bootstrap: (1..=self.plan.nodes).map(|node| (format!("n{node}"), 9092)).collect(),
            client_id: format!("f{number}"),
            request_timeout: self.plan.request_timeout,
            reconnect_backoff: Duration::from_millis(50),
            reconnect_backoff_max: Duration::from_secs(1),
            metadata_age_max: Duration::from_secs(30),
            seed: random.next(),
        };
        let mut net: Net<ProducerTag> = Net::new(config);
        net.set_interest(Interest::Topics([TOPIC.to_owned()].into()), Duration::ZERO);
        let produce = ProduceConfig {
            codec: random.pick(&[Codec::None, Codec::Lz4]).unwrap_or(Codec::None),
            acks: Acks::All,
            linger: Duration::from_millis(random.below(20)),
            batch_bytes_max: random.pick(&[300, 4_000, 60_000]).unwrap_or(4_000),
            buffered_bytes_max: 1 << 20,
            request_bytes_max: 1 << 16,
            requests_in_flight_max: 5,
            delivery_timeout: Duration::from_secs(if calm { 60 } else { random.between(3, 30) }),
            request_timeout: self.plan.request_timeout,
            seed: random.next(),
        };
        self.feeders.push(Some(Feeder {
            producer: Producer::new(net, produce),
            began: self.time.now,
            due: None,
            made: 0,
            most,
            slots: Vec::new(),
        }));
        self.want_turn(Who::Feeder(number), self.time.now);
        self.time.after(Duration::from_millis(1), Event::Make(number));
    }

    /// Makes a few records, and more later.
    pub(crate) fn make(&mut self, number: usize) {
        let partitions = self.partitions() as u64;
        let now = self.time.now;
        let Some(feeder) = self.feeders[number].as_mut() else { return };
        let random = &mut self.time.random;
        for _ in 0..random.between(1, 20).min(feeder.most - feeder.made) {
            let partition = random.below(partitions) as i32;
            let key = format!("k{partition}-{}", random.below(self.plan.keys));
            let key = (!random.one_in(10)).then_some(key.as_bytes());
            let id = (number as u64) << 32 | feeder.made;
            let mut value = id.to_be_bytes().to_vec();
            let padding = if random.one_in(20) { 3_000 } else { 60 };
            value.resize(8 + random.below(padding) as usize, b'.');
            let slot = feeder.producer.slot(&TopicPartition::new(TOPIC, partition));
            let local = now - feeder.began;
            let taken = feeder.producer.append(slot, key, Some(&value), &[], 0, local);
            let Ok(place) = taken else { break };
            if feeder.slots.len() == slot.index() {
                feeder.slots.push((partition, Vec::new()));
            }
            let (_, ids) = &mut feeder.slots[slot.index()];
            assert_eq!(place, ids.len() as u64, "records are numbered in turn");
            ids.push(id);
            feeder.made += 1;
            self.ledger.made(id);
        }
        if feeder.made < feeder.most {
            // All are made in the first two thirds of the time.
            let times = (feeder.most / 10).max(1);
            let pause = self.plan.until.as_micros() as u64 * 2 / 3 / times;
            let pause = Duration::from_micros(random.below(2 * pause));
            self.time.after(pause, Event::Make(number));
        }
        self.want_turn(Who::Feeder(number), now);
    }

    pub(crate) fn turn_feeder(&mut self, number: usize) {
        let now = self.time.now;
        let Some(feeder) = self.feeders[number].as_mut() else { return };
        if feeder.due != Some(now) {
            return;
        }
        feeder.due = None;
        let local = now - feeder.began;
        let (producer, who) = (&mut feeder.producer, Who::Feeder(number));
        producer.poll(local);
        self.wires.flush(who, producer.net(), &mut self.time);
        let mut failed = Vec::new();
        while let Some(delivery) = producer.next_delivery() {
            let (partition, ids) = &feeder.slots[delivery.slot.index()];
            for index in 0..u64::from(delivery.count) {
                let id = ids[(delivery.first + index) as usize];
                match &delivery.result {
                    Ok(base) => {
                        let offset = if *base < 0 { -1 } else { base + index as i64 };
                        self.ledger.acknowledged(id, *partition, offset);
                    }
                    Err(error) => {
                        failed.push(format!("feeder {number}: {id:x} for {partition} failed: {error}"));
                        assert!(!self.ledger.strict, "record {id:x} failed in calm weather: {error}");
                        self.stats.count("a record could not be produced");
                    }
                }
            }
        }
        while producer.next_note().is_some() {}
        assert_eq!(producer.failure(), None, "feeder {number}");
        producer.net().on_timeout(local);
        producer.poll(local);
        self.wires.flush(who, producer.net(), &mut self.time);
        let due = [producer.net().deadline(), producer.deadline()].into_iter().flatten().min();
        for line in failed {
            self.trace(|| line);
        }
        let Some(feeder) = self.feeders[number].as_ref() else { return };
        if let Some(due) = due {
            let due = (feeder.began + due).max(now + Duration::from_micros(10));
            self.want_turn(who, due);
        }
    }
}
