//! The accumulator against simulated leaders that keep Kafka's rules for sequences, under seeded faults: connections
//! cut before and after storing, late copies of old requests, leaders that move, batches that expire.
//!
//! Whatever happens: each record resolves once, what was delivered is stored once, nothing is stored twice, and the log
//! is in the order of the appends. A failure prints its seed.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::tests::{answer, batches, config, metadata};
use super::*;
use crate::metadata::{Leader, TopicState};
use crate::records::{BatchHeader, Record, index_records, next_batch};

const PARTITIONS: usize = 3;
const NODES: [i32; 2] = [1, 2];
const SEEDS: u64 = 60;
const STEP: Duration = Duration::from_millis(5);

/// What a broker keeps of a producer in a partition.
#[derive(Default)]
struct ProducerState {
    epoch: i16,
    /// First and last sequence and base offset of the last five batches.
    recent: VecDeque<(i32, i32, i64)>,
}

#[derive(Default)]
struct Log {
    records: Vec<u64>,
    producers: HashMap<i64, ProducerState>,
}

impl Log {
    /// Kafka's `ProducerAppendInfo` and its look for duplicates, as of KIP-360.
    fn append(&mut self, header: &BatchHeader, records: Vec<u64>) -> (i16, i64) {
        let first = header.base_sequence;
        let last = partition::sequence_after(first, header.record_count - 1);
        let state = self.producers.entry(header.producer_id).or_default();
        let known = !state.recent.is_empty();
        if header.producer_epoch < state.epoch {
            return (code::INVALID_PRODUCER_EPOCH, -1);
        }
        if header.producer_epoch > state.epoch {
            if known && first != 0 {
                return (code::OUT_OF_ORDER_SEQUENCE_NUMBER, -1);
            }
            *state = ProducerState { epoch: header.producer_epoch, recent: VecDeque::new() };
        } else if known {
            if let Some((_, _, offset)) =
                state.recent.iter().find(|batch| (batch.0, batch.1) == (first, last))
            {
                return (code::NONE, *offset);
            }
            let (_, newest, _) = state.recent[state.recent.len() - 1];
            if first != partition::sequence_after(newest, 1) {
                return (code::OUT_OF_ORDER_SEQUENCE_NUMBER, -1);
            }
        }
        let offset = self.records.len() as i64;
        state.recent.push_back((first, last, offset));
        if state.recent.len() > 5 {
            state.recent.pop_front();
        }
        self.records.extend(records);
        (code::NONE, offset)
    }
}

/// A connection to a node: requests on their way and answers on theirs.
#[derive(Default)]
struct Wire {
    requests: VecDeque<(Duration, RequestId, ProduceRequest)>,
    answers: VecDeque<(Duration, RequestId, ProduceResponse)>,
}

struct World {
    random: u64,
    now: Duration,
    accumulator: Accumulator,
    /// What the client believes, and what is true.
    metadata: Metadata,
    leaders: Vec<Leader>,
    logs: Vec<Log>,
    wires: BTreeMap<i32, Wire>,
    /// Requests of cut connections that the broker still reads.
    late: Vec<(Duration, i32, ProduceRequest)>,
    resolved: Vec<BTreeMap<u64, Result<i64, Error>>>,
    identity_at: Duration,
}

impl World {
    fn new(seed: u64, config: ProduceConfig) -> Self {
        let leaders: Vec<i32> = (0..PARTITIONS).map(|partition| NODES[partition % NODES.len()]).collect();
        let mut accumulator = Accumulator::new(ProduceConfig { seed, ..config });
        for partition in 0..PARTITIONS {
            accumulator.slot(&TopicPartition::new("t", partition as i32));
        }
        World {
            random: seed,
            now: Duration::from_secs(1),
            accumulator,
            metadata: metadata(&leaders),
            leaders: leaders.iter().map(|node| Leader { node: Some(*node), epoch: 1 }).collect(),
            logs: (0..PARTITIONS).map(|_| Log::default()).collect(),
            wires: NODES.iter().map(|node| (*node, Wire::default())).collect(),
            late: Vec::new(),
            resolved: vec![BTreeMap::new(); PARTITIONS],
            identity_at: Duration::from_secs(1) + STEP * 20,
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        let mut bits = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random = bits;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % limit
    }

    fn store(&mut self, node: i32, request: &ProduceRequest) -> ProduceResponse {
        let mut answers = Vec::new();
        for (partition, header, bytes) in batches(request) {
            if self.leaders[partition as usize].node != Some(node) {
                answers.push((partition, code::NOT_LEADER_OR_FOLLOWER, -1));
                continue;
            }
            let mut rest = bytes;
            let batch = next_batch(&mut rest).expect("sound").expect("whole");
            let payload = batch.payload(&mut Vec::new(), 1 << 20).expect("a payload");
            let mut positions = Vec::new();
            index_records(&header, &payload, &mut positions, |_, _, _| {}).expect("sound records");
            let records = positions.iter().map(|at| {
                let record = Record::parse(&header, &payload, *at).expect("a record");
                u64::from_le_bytes(record.value.expect("a value").try_into().expect("a number"))
            });
            let (code, offset) = self.logs[partition as usize].append(&header, records.collect());
            answers.push((partition, code, offset));
        }
        answer(&answers)
    }

    /// Cuts a connection: what was on its way is lost, or read later by the broker, in order.
    fn cut(&mut self, node: i32) {
        let wire = self.wires.insert(node, Wire::default()).expect("a wire to each node");
        let read = self.below(wire.requests.len() as u64 + 1) as usize;
        let lateness = STEP * self.below(200) as u32;
        let mut failed: Vec<RequestId> = wire.answers.iter().map(|(_, id, _)| *id).collect();
        for (at, (_, id, request)) in wire.requests.into_iter().enumerate() {
            failed.push(id);
            if at < read {
                self.late.push((self.now + lateness, node, request));
            }
        }
        for id in failed {
            let error = Error::new(Fault::Disconnected("cut".to_owned()));
            self.accumulator.on_outcome(id, Err(error), &mut self.metadata, self.now);
        }
    }

    fn fault(&mut self) {
        match self.below(40) {
            0 => {
                let node = NODES[self.below(NODES.len() as u64) as usize];
                self.cut(node);
            }
            1 => {
                let partition = self.below(PARTITIONS as u64) as usize;
                let leader = &mut self.leaders[partition];
                let other = NODES.iter().find(|node| Some(**node) != leader.node).copied();
                *leader = Leader { node: other, epoch: leader.epoch + 1 };
            }
            _ => {}
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        if self.accumulator.wants_identity() && self.now >= self.identity_at {
            self.accumulator.set_identity(42, 0);
        }
        self.accumulator.on_timeout(self.now);
        if self.accumulator.take_wants_metadata()
            && let Some(TopicState::Known(topic)) = self.metadata.topics.get_mut("t")
        {
            for (partition, leader) in self.leaders.iter().enumerate() {
                topic.partitions.insert(partition as i32, *leader);
            }
        }
        while let Some((node, id, request)) = self.accumulator.next_request(&self.metadata, self.now) {
            let at = self.now + STEP * self.below(4) as u32;
            self.wires.get_mut(&node).expect("a node").requests.push_back((at, id, request));
        }
        for at in (0..self.late.len()).rev() {
            if self.late[at].0 <= self.now && self.late.iter().all(|other| other.0 >= self.late[at].0) {
                // Requests of one connection share their time and are read in order.
                let due = self.late[at].0;
                let ready: Vec<_> = self.late.extract_if(.., |late| late.0 == due).collect();
                for (_, node, request) in ready {
                    self.store(node, &request);
                }
                break;
            }
        }
        for node in NODES {
            while let Some((at, id, request)) =
                self.wires.get_mut(&node).expect("a node").requests.pop_front()
            {
                if at > self.now {
                    self.wires.get_mut(&node).expect("a node").requests.push_front((at, id, request));
                    break;
                }
                let response = self.store(node, &request);
                let at = self.now + STEP * self.below(4) as u32;
                self.wires.get_mut(&node).expect("a node").answers.push_back((at, id, response));
            }
            while let Some((at, id, response)) =
                self.wires.get_mut(&node).expect("a node").answers.pop_front()
            {
                if at > self.now {
                    self.wires.get_mut(&node).expect("a node").answers.push_front((at, id, response));
                    break;
                }
                self.accumulator.on_outcome(id, Ok(response), &mut self.metadata, self.now);
            }
        }
        while let Some(delivery) = self.accumulator.next_delivery() {
            for record in 0..u64::from(delivery.count) {
                let offset = delivery.result.clone().map(|base| base + record as i64);
                let seen = self.resolved[delivery.slot.index()].insert(delivery.first + record, offset);
                assert!(seen.is_none(), "a record resolves once");
            }
        }
        assert!(self.accumulator.buffered_bytes() <= self.accumulator.config.buffered_bytes_max);
    }

    /// Appends for a while under faults, then lets everything settle. Returns how many failed.
    fn run(&mut self) -> usize {
        let mut appended = [0u64; PARTITIONS];
        for _ in 0..600 {
            for _ in 0..self.below(12) {
                let partition = self.below(PARTITIONS as u64) as usize;
                let slot = self.accumulator.slot(&TopicPartition::new("t", partition as i32));
                let value = appended[partition].to_le_bytes();
                match self.accumulator.append(slot, None, Some(&value), &[], 0, self.now) {
                    Ok(number) => {
                        assert_eq!(number, appended[partition]);
                        appended[partition] += 1;
                    }
                    Err(error) => assert_eq!(error, AppendError::Full),
                }
            }
            self.fault();
            self.step();
        }
        self.accumulator.set_flushing(true);
        for _ in 0..4000 {
            self.step();
        }
        assert!(self.accumulator.is_empty(), "everything settles");
        assert_eq!(self.accumulator.buffered_bytes(), 0);
        let mut failures = 0;
        for (partition, log) in self.logs.iter().enumerate() {
            assert!(log.records.is_sorted_by(|one, next| one < next), "the log is in order, nothing twice");
            assert_eq!(self.resolved[partition].len() as u64, appended[partition], "every record resolves");
            for (number, outcome) in &self.resolved[partition] {
                match outcome {
                    Ok(offset) => assert_eq!(log.records.get(*offset as usize), Some(number), "stored there"),
                    Err(_) => failures += 1,
                }
            }
        }
        failures
    }
}

struct PrintSeed(u64);

impl Drop for PrintSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed was {}", self.0);
        }
    }
}

fn small() -> ProduceConfig {
    ProduceConfig { batch_bytes_max: 120, buffered_bytes_max: 4000, request_bytes_max: 300, ..config() }
}

#[test]
fn nothing_is_lost_doubled_or_reordered() {
    for seed in 0..SEEDS {
        let _print = PrintSeed(seed);
        let failures = World::new(seed, small()).run();
        assert_eq!(failures, 0, "nothing expires");
    }
}

#[test]
fn nothing_is_doubled_or_reordered_when_batches_expire() {
    let mut failures = 0;
    for seed in 0..SEEDS {
        let _print = PrintSeed(seed);
        let config = ProduceConfig { delivery_timeout: Duration::from_millis(400), ..small() };
        failures += World::new(seed, config).run();
    }
    assert!(failures > 0, "some batches do expire");
}
