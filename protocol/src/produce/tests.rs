//! The accumulator by scripted answers. CASES 21 and 23.

use std::collections::BTreeMap;

use bytes::Bytes;
use kafka_protocol::messages::BrokerId;
use kafka_protocol::messages::produce_response::{LeaderIdAndEpoch, TopicProduceResponse};

use super::*;
use crate::metadata::{Broker, Leader, Topic, TopicState};
use crate::records::{BatchHeader, next_batch};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) fn config() -> ProduceConfig {
    ProduceConfig {
        codec: Codec::None,
        acks: Acks::All,
        linger: ms(5),
        batch_bytes_max: 1 << 20,
        buffered_bytes_max: 1 << 20,
        request_bytes_max: 1 << 20,
        requests_in_flight_max: 5,
        delivery_timeout: ms(30_000),
        request_timeout: ms(10_000),
        seed: 1,
    }
}

/// Topic `t` whose partitions are led by these nodes.
pub(super) fn metadata(leaders: &[i32]) -> Metadata {
    let mut metadata = Metadata::default();
    let mut topic = Topic::default();
    for (partition, node) in leaders.iter().enumerate() {
        topic.partitions.insert(partition as i32, Leader { node: Some(*node), epoch: 1 });
        let broker = Broker { host: "broker".to_owned(), port: 9092, rack: None };
        metadata.brokers.insert(*node, broker);
    }
    metadata.topics = BTreeMap::from([("t".to_owned(), TopicState::Known(topic))]);
    metadata
}

/// What a request carries: partition, header, bytes.
pub(super) fn batches(request: &ProduceRequest) -> Vec<(i32, BatchHeader, Bytes)> {
    let mut all = Vec::new();
    for topic in &request.topic_data {
        for data in &topic.partition_data {
            let bytes = data.records.clone().expect("a batch");
            let mut rest = bytes.clone();
            let batch = next_batch(&mut rest).expect("a sound batch").expect("a whole batch");
            batch.check_crc().expect("its CRC");
            assert!(rest.is_empty(), "one batch for each partition");
            all.push((data.index, batch.header, bytes));
        }
    }
    all
}

/// An answer of one code and base offset for each partition.
pub(super) fn answer(answers: &[(i32, i16, i64)]) -> ProduceResponse {
    let partitions = answers
        .iter()
        .map(|(partition, code, offset)| {
            PartitionProduceResponse::default()
                .with_index(*partition)
                .with_error_code(*code)
                .with_base_offset(*offset)
        })
        .collect();
    let topic =
        TopicProduceResponse::default().with_name(TopicName(text("t"))).with_partition_responses(partitions);
    ProduceResponse::default().with_responses(vec![topic])
}

struct Bench {
    accumulator: Accumulator,
    metadata: Metadata,
    slot: Slot,
    now: Duration,
}

impl Bench {
    fn new(config: ProduceConfig) -> Self {
        let mut accumulator = Accumulator::new(config);
        let slot = accumulator.slot(&TopicPartition::new("t", 0));
        if accumulator.wants_identity() {
            accumulator.set_identity(7, 0);
        }
        accumulator.partitions[0].set_proven();
        Bench { accumulator, metadata: metadata(&[1, 2]), slot, now: ms(1000) }
    }

    fn append(&mut self, records: usize) {
        for _ in 0..records {
            let taken = self.accumulator.append(self.slot, None, Some(b"value"), &[], 0, self.now);
            taken.expect("there is room");
        }
    }

    fn next(&mut self) -> Option<(i32, RequestId, BatchHeader, Bytes)> {
        let (node, id, request) = self.accumulator.next_request(&self.metadata, self.now)?;
        let mut batches = batches(&request);
        assert_eq!(batches.len(), 1);
        let (_, header, bytes) = batches.remove(0);
        Some((node, id, header, bytes))
    }

    /// A batch of so many records, sent.
    fn send(&mut self, records: usize) -> (RequestId, BatchHeader, Bytes) {
        self.append(records);
        self.now += ms(5);
        let (_, id, header, bytes) = self.next().expect("linger is over");
        assert_eq!(header.record_count as usize, records);
        (id, header, bytes)
    }

    fn resend(&mut self) -> (RequestId, BatchHeader, Bytes) {
        self.now += ms(2000);
        let (_, id, header, bytes) = self.next().expect("the pause is over");
        (id, header, bytes)
    }

    fn answer(&mut self, id: RequestId, code: i16) {
        let response = answer(&[(0, code, 100)]);
        self.accumulator.on_outcome(id, Ok(response), &mut self.metadata, self.now);
    }

    fn drop_connection(&mut self, id: RequestId) {
        let error = Error::new(Fault::Disconnected("lost".to_owned()));
        self.accumulator.on_outcome(id, Err(error), &mut self.metadata, self.now);
    }

    /// What resolved: first record, count, delivered.
    fn resolved(&mut self) -> Vec<(u64, u32, bool)> {
        std::iter::from_fn(|| self.accumulator.next_delivery())
            .map(|delivery| (delivery.first, delivery.count, delivery.result.is_ok()))
            .collect()
    }
}

/// CASES 21.
#[test]
fn sequences_grow_by_records_and_a_retry_repeats_the_bytes() {
    let mut bench = Bench::new(config());
    let (first, header, _) = bench.send(1);
    assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (7, 0, 0));
    let (second, header, bytes) = bench.send(3);
    assert_eq!(header.base_sequence, 1);
    bench.answer(first, 0);
    // The broker stored the second; its answer is lost with the connection.
    bench.drop_connection(second);
    let (again, header, repeated) = bench.resend();
    assert_eq!((header.base_sequence, header.record_count), (1, 3));
    assert_eq!(repeated, bytes);
    let (third, header, _) = bench.send(2);
    assert_eq!(header.base_sequence, 4);
    bench.answer(again, code::DUPLICATE_SEQUENCE_NUMBER);
    bench.answer(third, 0);
    assert_eq!(bench.resolved(), [(0, 1, true), (1, 3, true), (4, 2, true)]);
    assert!(bench.accumulator.is_empty());
    assert_eq!(bench.accumulator.buffered_bytes(), 0);
}

#[test]
fn sequences_wrap_within_and_between_batches() {
    let mut bench = Bench::new(config());
    bench.accumulator.partitions[0].set_next_sequence(i32::MAX - 1);
    let bases: Vec<i32> = (0..3).map(|_| bench.send(3).1.base_sequence).collect();
    assert_eq!(bases, [i32::MAX - 1, 1, 4]);
    bench.accumulator.partitions[0].set_next_sequence(i32::MAX);
    assert_eq!(bench.send(1).1.base_sequence, i32::MAX);
    assert_eq!(bench.send(1).1.base_sequence, 0);
}

#[test]
fn nothing_overtakes_a_batch_that_came_back() {
    let mut bench = Bench::new(config());
    let (first, _, _) = bench.send(1);
    let (second, _, _) = bench.send(1);
    bench.answer(first, code::NOT_LEADER_OR_FOLLOWER);
    bench.append(1);
    bench.now += ms(2000);
    assert!(bench.next().is_none(), "the second is still out");
    bench.answer(second, code::NOT_LEADER_OR_FOLLOWER);
    let bases: Vec<i32> =
        [bench.resend(), bench.resend(), bench.resend()].map(|sent| sent.1.base_sequence).into();
    assert_eq!(bases, [0, 1, 2]);
    assert!(bench.accumulator.take_wants_metadata());
}

#[test]
fn at_most_five_batches_are_in_doubt() {
    let mut bench = Bench::new(ProduceConfig { requests_in_flight_max: 9, ..config() });
    let ids: Vec<RequestId> = (0..5).map(|_| bench.send(1).0).collect();
    bench.append(1);
    bench.now += ms(1000);
    assert!(bench.next().is_none());
    bench.answer(ids[0], 0);
    assert!(bench.next().is_some());
}

/// KIP-360.
#[test]
fn an_expired_batch_begins_a_new_epoch_for_what_was_never_sent() {
    let mut bench = Bench::new(ProduceConfig { requests_in_flight_max: 1, ..config() });
    let (lost, _, _) = bench.send(2);
    bench.now += ms(20_000);
    bench.append(3);
    bench.now += ms(15_000);
    bench.accumulator.on_timeout(bench.now);
    assert_eq!(bench.resolved(), [(0, 2, false)]);
    assert!(bench.next().is_none(), "the lost request may still arrive on its connection");
    bench.drop_connection(lost);
    assert_eq!(bench.resolved(), []);
    let (id, header, _) = bench.resend();
    assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (7, 1, 0));
    bench.answer(id, 0);
    assert_eq!(bench.resolved(), [(2, 3, true)]);
    assert_eq!(bench.send(1).1.base_sequence, 3);
}

#[test]
fn what_was_sent_is_settled_under_its_old_stamp_before_the_epoch_changes() {
    let mut bench = Bench::new(config());
    let (first, _, _) = bench.send(1);
    bench.now += ms(20_000);
    let (second, _, bytes) = bench.send(1);
    bench.drop_connection(first);
    bench.drop_connection(second);
    bench.now += ms(15_000);
    bench.accumulator.on_timeout(bench.now);
    assert_eq!(bench.resolved(), [(0, 1, false)]);
    bench.append(1);
    // The second may be stored: under another stamp it would be stored twice.
    let (again, _, repeated) = bench.resend();
    assert_eq!(repeated, bytes);
    assert!(bench.next().is_none(), "the third was never sent: it waits");
    bench.answer(again, code::OUT_OF_ORDER_SEQUENCE_NUMBER);
    let (id, header, _) = bench.resend();
    assert_eq!((header.producer_epoch, header.base_sequence), (1, 0));
    bench.answer(id, 0);
    let (_, header, _) = bench.resend();
    assert_eq!((header.producer_epoch, header.base_sequence), (1, 1));
    assert_eq!(bench.resolved(), [(1, 1, true)]);
}

/// Simulator: a leader moved, the retry of the oldest batch was refused by the old one while the new one took those
/// behind it. The sixth pushed it out of what the broker remembers, and it was stored twice.
#[test]
fn a_batch_in_doubt_holds_back_those_that_a_broker_would_forget_it_for() {
    let mut bench = Bench::new(config());
    let sent: Vec<RequestId> = (0..5).map(|_| bench.send(1).0).collect();
    for id in &sent[1..] {
        bench.answer(*id, 0);
    }
    bench.append(1);
    bench.now += ms(2_000);
    assert!(bench.next().is_none(), "a sixth while the first is in doubt");
    bench.answer(sent[0], 0);
    assert!(bench.next().is_some());
}

#[test]
fn a_broker_that_forgot_the_producer_gets_a_new_epoch() {
    for refusal in
        [code::OUT_OF_ORDER_SEQUENCE_NUMBER, code::UNKNOWN_PRODUCER_ID, code::INVALID_PRODUCER_EPOCH]
    {
        let mut bench = Bench::new(config());
        let (id, _, _) = bench.send(4);
        bench.answer(id, 0);
        let (first, _, _) = bench.send(1);
        let (second, _, _) = bench.send(2);
        bench.answer(first, refusal);
        bench.answer(second, code::OUT_OF_ORDER_SEQUENCE_NUMBER);
        let (first, header, _) = bench.resend();
        assert_eq!((header.producer_epoch, header.base_sequence, header.record_count), (1, 0, 1));
        assert!(bench.next().is_none(), "the new epoch begins with one batch");
        bench.answer(first, 0);
        let (second, header, _) = bench.resend();
        assert_eq!((header.producer_epoch, header.base_sequence, header.record_count), (1, 1, 2));
        bench.answer(second, 0);
        assert_eq!(bench.resolved(), [(0, 4, true), (4, 1, true), (5, 2, true)]);
    }
}

#[test]
fn a_used_up_epoch_asks_for_a_new_id() {
    let mut bench = Bench::new(config());
    bench.accumulator.set_identity(7, 0);
    bench.accumulator.partitions[0].identity = Some(Identity { producer_id: 7, epoch: i16::MAX - 1 });
    let (id, _, _) = bench.send(1);
    bench.answer(id, code::UNKNOWN_PRODUCER_ID);
    bench.now += ms(2000);
    assert!(bench.next().is_none() && bench.accumulator.wants_identity());
    bench.accumulator.set_identity(8, 0);
    let (_, header, _) = bench.resend();
    assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (8, 0, 0));
}

/// CASES 23: one of several batches is refused.
#[test]
fn a_refused_batch_fails_alone_and_says_why() {
    let mut bench = Bench::new(config());
    let (first, _, _) = bench.send(1);
    let (second, _, _) = bench.send(2);
    bench.answer(first, code::MESSAGE_TOO_LARGE);
    bench.answer(second, code::OUT_OF_ORDER_SEQUENCE_NUMBER);
    let failed = bench.accumulator.next_delivery().expect("the first failed");
    let why = failed.result.expect_err("refused").to_string();
    assert!(why.starts_with("Produce of t/0: refused: MESSAGE_TOO_LARGE (10)"), "{why}");
    let (again, header, _) = bench.resend();
    assert_eq!((header.producer_epoch, header.base_sequence), (1, 0));
    bench.answer(again, 0);
    assert_eq!(bench.resolved(), [(1, 2, true)]);
}

/// KIP-951.
#[test]
fn an_answer_that_names_the_new_leader_needs_no_pause() {
    let mut bench = Bench::new(config());
    let (id, _, bytes) = bench.send(1);
    let leader = LeaderIdAndEpoch::default().with_leader_id(BrokerId(2)).with_leader_epoch(9);
    let mut response = answer(&[(0, code::NOT_LEADER_OR_FOLLOWER, -1)]);
    response.responses[0].partition_responses[0].current_leader = leader;
    bench.accumulator.on_outcome(id, Ok(response), &mut bench.metadata, bench.now);
    let (node, _, _, repeated) = bench.next().expect("at once");
    assert_eq!((node, repeated), (2, bytes));
}

#[test]
fn without_sequences_one_batch_is_out_at_a_time() {
    let mut bench = Bench::new(ProduceConfig { acks: Acks::Leader, ..config() });
    let (first, header, _) = bench.send(1);
    assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (-1, -1, -1));
    bench.append(1);
    bench.now += ms(100);
    assert!(bench.next().is_none());
    bench.answer(first, code::MESSAGE_TOO_LARGE);
    assert!(bench.next().is_some());
    assert_eq!(bench.resolved(), [(0, 1, false)]);
}

#[test]
fn without_acks_written_is_delivered() {
    let mut bench = Bench::new(ProduceConfig { acks: Acks::None, ..config() });
    let (id, _, _) = bench.send(2);
    bench.accumulator.on_written(id);
    assert_eq!(bench.resolved(), [(0, 2, true)]);
}

#[test]
fn buffered_bytes_stay_within_the_limit() {
    let mut bench = Bench::new(ProduceConfig { buffered_bytes_max: 1000, batch_bytes_max: 300, ..config() });
    let mut taken = 0;
    let full = loop {
        assert!(bench.accumulator.buffered_bytes() <= 1000);
        match bench.accumulator.append(bench.slot, None, Some(&[0; 50]), &[], 0, bench.now) {
            Ok(number) => assert_eq!(number, taken),
            Err(error) => break error,
        }
        taken += 1;
    };
    assert_eq!(full, AppendError::Full);
    assert!(taken > 5);
    bench.accumulator.set_flushing(true);
    while let Some((_, id, header, bytes)) = bench.next() {
        assert!(bytes.len() <= 300 && header.record_count > 1);
        bench.answer(id, 0);
    }
    assert_eq!(bench.resolved().iter().map(|(_, count, _)| u64::from(*count)).sum::<u64>(), taken);
    assert_eq!(bench.accumulator.buffered_bytes(), 0);
    // A record beyond the limit is taken alone.
    let large = [0; 5000];
    bench
        .accumulator
        .append(bench.slot, None, Some(&large), &[], 0, bench.now)
        .expect("nothing else is here");
    let refused = bench.accumulator.append(bench.slot, None, Some(b""), &[], 0, bench.now);
    assert_eq!(refused, Err(AppendError::Full));
}

#[test]
fn records_wait_for_the_producer_id() {
    let mut bench = Bench::new(config());
    bench.accumulator = Accumulator::new(ProduceConfig { batch_bytes_max: 200, ..config() });
    bench.slot = bench.accumulator.slot(&TopicPartition::new("t", 0));
    bench.append(20);
    bench.now += ms(100);
    assert!(bench.next().is_none() && bench.accumulator.wants_identity());
    bench.accumulator.set_identity(9, 3);
    let (_, id, header, _) = bench.next().expect("an id is given");
    assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (9, 3, 0));
    assert!(bench.next().is_none(), "a broker that knows no sequence takes any: one at a time");
    bench.answer(id, 0);
    let (_, _, next, _) = bench.next().expect("closed meanwhile");
    assert_eq!(next.base_sequence, header.record_count);
}

#[test]
fn a_request_takes_a_batch_of_each_partition_of_its_leader() {
    let mut accumulator = Accumulator::new(config());
    accumulator.set_identity(7, 0);
    let mut metadata = metadata(&[1, 2, 1]);
    let now = ms(1000);
    for partition in 0..4 {
        let slot = accumulator.slot(&TopicPartition::new("t", partition));
        accumulator.append(slot, None, None, &[], 0, now).expect("room");
    }
    accumulator.set_flushing(true);
    let (node, id, request) = accumulator.next_request(&metadata, now).expect("a request");
    assert_eq!((node, batches(&request).len()), (1, 2));
    let (node, _, request) = accumulator.next_request(&metadata, now).expect("a request");
    assert_eq!((node, batches(&request).len()), (2, 1));
    assert!(accumulator.next_request(&metadata, now).is_none());
    assert!(accumulator.take_wants_metadata(), "partition 3 has no leader");
    // One that the answer leaves out is not taken as stored.
    accumulator.on_outcome(id, Ok(answer(&[(2, 0, 5)])), &mut metadata, now);
    let outcomes: Vec<_> = std::iter::from_fn(|| accumulator.next_delivery()).collect();
    assert_eq!(outcomes.len(), 2);
    assert!(outcomes[0].result == Ok(5) && outcomes[1].result.is_err());
}

#[test]
fn a_throttled_leader_is_left_alone() {
    let mut bench = Bench::new(config());
    let (id, _, _) = bench.send(1);
    let response = answer(&[(0, 0, 0)]).with_throttle_time_ms(300);
    bench.accumulator.on_outcome(id, Ok(response), &mut bench.metadata, bench.now);
    bench.append(1);
    bench.now += ms(100);
    assert!(bench.next().is_none());
    assert_eq!(bench.accumulator.deadline(), Some(bench.now + ms(200)));
    bench.now += ms(200);
    assert!(bench.next().is_some());
}
