//! Produce and the transaction APIs through the bytes of a connection: what a client gets to see.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::Request;
use keylane_protocol::records::{BatchBuilder, Codec, ProducerStamp};

use super::client;
use crate::broker::api::text;
use crate::broker::cluster::Cluster;

const TOPIC: &str = "t";
const ID: &str = "mover";
const NOT_LEADER_OR_FOLLOWER: i16 = 6;

/// Connections to all nodes of a cluster.
struct Client {
    cluster: Cluster,
    wires: Vec<client::Client>,
    now: Duration,
}

impl Client {
    /// Connected to each of `nodes`; the topic has two partitions.
    fn new(nodes: u16) -> Self {
        let mut cluster = client::cluster(nodes, |config| {
            config.nodes = (0..nodes).map(|index| ("localhost".to_owned(), 9000 + index)).collect();
        });
        let connect = |node| client::Client::connect(&mut cluster, node);
        let wires = (1..=i32::from(nodes)).map(connect).collect();
        Client { cluster, wires, now: Duration::from_secs(1) }
    }

    /// Sends a request to a node and takes the answer, if there is one.
    fn try_ask<R: Request>(&mut self, node: i32, version: i16, request: &R) -> Option<R::Response> {
        let wire = &mut self.wires[node as usize - 1];
        wire.send(&mut self.cluster, version, request, self.now);
        let answer = wire.answer::<R>(&mut self.cluster, version);
        assert_eq!(self.cluster.next_notice(), None);
        answer
    }

    fn ask<R: Request>(&mut self, node: i32, version: i16, request: &R) -> R::Response {
        self.try_ask(node, version, request).expect("an answer")
    }

    fn init(&mut self, version: i16) -> InitProducerIdResponse {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(text(ID).into()))
            .with_transaction_timeout_ms(1000)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        self.ask(1, version, &request)
    }

    fn stamp(&mut self) -> ProducerStamp {
        let told = self.init(4);
        assert_eq!(told.error_code, 0);
        ProducerStamp {
            producer_id: told.producer_id.0,
            producer_epoch: told.producer_epoch,
            base_sequence: 0,
            is_transactional: true,
        }
    }

    fn add(&mut self, stamp: &ProducerStamp, version: i16, partitions: &[i32]) -> Vec<i16> {
        let topic = AddPartitionsToTxnTopic::default().with_name(text(TOPIC).into());
        let request = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(text(ID).into())
            .with_v3_and_below_producer_id(ProducerId(stamp.producer_id))
            .with_v3_and_below_producer_epoch(stamp.producer_epoch)
            .with_v3_and_below_topics(vec![topic.with_partitions(partitions.to_vec())]);
        let told = self.ask(1, version, &request);
        let results = told.results_by_topic_v3_and_below.iter().flat_map(|topic| &topic.results_by_partition);
        results.map(|result| result.partition_error_code).collect()
    }

    fn end(&mut self, stamp: &ProducerStamp, version: i16, commit: bool) -> i16 {
        let request = EndTxnRequest::default()
            .with_transactional_id(text(ID).into())
            .with_producer_id(ProducerId(stamp.producer_id))
            .with_producer_epoch(stamp.producer_epoch)
            .with_committed(commit);
        self.ask(1, version, &request).error_code
    }

    /// Error code and base offset.
    fn produce(&mut self, stamp: &ProducerStamp, version: i16) -> (i16, i64) {
        let told = self.ask(1, version, &produce(-1, 0, batch(stamp), stamp.is_transactional));
        let partition = &told.responses[0].partition_responses[0];
        (partition.error_code, partition.base_offset)
    }

    /// High watermark, last stable offset, bytes, producers of aborted transactions.
    fn fetch(&mut self, committed: bool) -> (i64, i64, usize, Vec<i64>) {
        let partition = FetchPartition::default().with_partition_max_bytes(1 << 20);
        let topic = FetchTopic::default().with_topic(text(TOPIC).into()).with_partitions(vec![partition]);
        let request = FetchRequest::default()
            .with_max_bytes(1 << 20)
            .with_isolation_level(i8::from(committed))
            .with_topics(vec![topic]);
        let told = self.ask(1, 12, &request);
        let data = &told.responses[0].partitions[0];
        assert_eq!(data.error_code, 0);
        let aborted = data.aborted_transactions.iter().flatten().map(|aborted| aborted.producer_id.0);
        let size = data.records.as_ref().map_or(0, Bytes::len);
        (data.high_watermark, data.last_stable_offset, size, aborted.collect())
    }
}

fn batch(stamp: &ProducerStamp) -> Bytes {
    let mut builder = BatchBuilder::new();
    builder.append(Some(b"k"), Some(b"v"), &[], 5).expect("it fits");
    builder.finish(Codec::None, stamp).expect("no codec")
}

fn produce(acks: i16, partition: i32, records: Bytes, transactional: bool) -> ProduceRequest {
    let data = PartitionProduceData::default().with_index(partition).with_records(Some(records));
    let topic = TopicProduceData::default().with_name(text(TOPIC).into()).with_partition_data(vec![data]);
    ProduceRequest::default()
        .with_transactional_id(transactional.then(|| text(ID).into()))
        .with_acks(acks)
        .with_timeout_ms(1000)
        .with_topic_data(vec![topic])
}

fn next(stamp: &ProducerStamp, base_sequence: i32) -> ProducerStamp {
    ProducerStamp { base_sequence, ..*stamp }
}

#[test]
fn every_version_is_answered() {
    for version in 3..=12 {
        let mut client = Client::new(1);
        assert_eq!(client.produce(&ProducerStamp::NONE, version), (0, 0), "Produce {version}");
        let told = client.ask(1, version, &produce(1, 7, batch(&ProducerStamp::NONE), false));
        assert_eq!(told.responses[0].partition_responses[0].error_code, 3, "Produce {version}");
    }
    for (init, add, end) in [(0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 3, 4), (5, 3, 4)] {
        let mut client = Client::new(1);
        let told = client.init(init);
        assert_eq!((told.error_code, told.producer_id.0, told.producer_epoch), (0, 0, 0));
        let stamp = ProducerStamp { producer_id: 0, producer_epoch: 0, ..ProducerStamp::NONE };
        assert_eq!(client.add(&stamp, add, &[0, 1]), [0, 0]);
        assert_eq!(client.end(&stamp, end, true), 0);
        let stale = ProducerStamp { producer_epoch: 5, ..stamp };
        let fenced = if add < 2 { 47 } else { 90 };
        assert_eq!(client.add(&stale, add, &[0]), [fenced]);
        assert_eq!(client.end(&stale, end, true), fenced);
    }
    for version in 0..=4 {
        let mut client = Client::new(1);
        let stamp = client.stamp();
        let request = AddOffsetsToTxnRequest::default()
            .with_transactional_id(text(ID).into())
            .with_producer_id(ProducerId(stamp.producer_id))
            .with_group_id(text("g").into());
        assert_eq!(client.ask(1, version, &request).error_code, 0);
        let stale = request.with_producer_epoch(3);
        assert_eq!(client.ask(1, version, &stale).error_code, if version < 2 { 47 } else { 90 });
    }
}

#[test]
fn a_committed_transaction() {
    let mut client = Client::new(1);
    let stamp = client.stamp();
    assert_eq!(client.add(&stamp, 3, &[0]), [0]);
    assert_eq!(client.produce(&stamp, 11), (0, 0));
    let (end, stable, bytes, _) = client.fetch(true);
    assert_eq!((end, stable, bytes), (1, 0, 0), "not to be seen yet");
    assert_eq!(client.end(&stamp, 4, true), 0);
    let (end, stable, bytes, aborted) = client.fetch(true);
    assert_eq!((end, stable, aborted), (2, 2, vec![]));
    assert!(bytes > 78, "the record and the marker");
    assert_eq!(client.add(&stamp, 3, &[0]), [0]);
    assert_eq!(client.produce(&next(&stamp, 1), 11), (0, 2), "sequences go on");
}

#[test]
fn an_aborted_transaction() {
    let mut client = Client::new(1);
    let stamp = client.stamp();
    client.add(&stamp, 3, &[0, 1]);
    client.produce(&stamp, 11);
    assert_eq!(client.end(&stamp, 4, false), 0);
    let (end, stable, _, aborted) = client.fetch(true);
    assert_eq!((end, stable, aborted), (2, 2, vec![stamp.producer_id]));
    assert!(client.fetch(false).3.is_empty());
}

#[test]
fn partitions_must_be_added_first() {
    let mut client = Client::new(1);
    let stamp = client.stamp();
    assert_eq!(client.produce(&stamp, 10), (48, -1), "INVALID_TXN_STATE");
    assert_eq!(client.produce(&stamp, 11), (120, -1), "TRANSACTION_ABORTABLE");
    client.add(&stamp, 3, &[1]);
    assert_eq!(client.produce(&stamp, 11), (120, -1), "another one was");
    let told = client.ask(1, 11, &produce(-1, 0, batch(&stamp), false));
    assert_eq!(told.responses[0].partition_responses[0].error_code, 53, "without a transactional id");
    assert_eq!(client.add(&stamp, 3, &[0, 9]), [55, 3], "all or none");
}

#[test]
fn the_next_producer_of_an_id_fences_the_one_before() {
    let mut client = Client::new(1);
    let stamp = client.stamp();
    client.add(&stamp, 3, &[0]);
    client.produce(&stamp, 11);
    assert_eq!(client.init(4).error_code, 51, "CONCURRENT_TRANSACTIONS while the open one is aborted");
    assert_eq!(client.produce(&next(&stamp, 1), 11), (47, -1));
    assert_eq!(client.end(&stamp, 4, true), 90);
    let second = client.stamp();
    assert_eq!((second.producer_id, second.producer_epoch), (stamp.producer_id, 2));
    client.add(&second, 3, &[0]);
    assert_eq!(client.produce(&second, 11), (0, 2));
    assert_eq!(client.end(&second, 4, true), 0);
    assert_eq!(client.fetch(true).3, [stamp.producer_id]);
}

#[test]
fn the_timeout_aborts() {
    let mut client = Client::new(1);
    let stamp = client.stamp();
    client.add(&stamp, 3, &[0]);
    client.produce(&stamp, 11);
    let due = client.cluster.deadline().expect("the timeout");
    assert_eq!(due, client.now + Duration::from_secs(1));
    client.now = due;
    client.cluster.poll(due);
    assert_eq!(client.fetch(true).1, 2, "the marker is there");
    assert_eq!(client.produce(&next(&stamp, 1), 11), (47, -1));
    assert_eq!(client.cluster.deadline(), None);
}

#[test]
fn a_batch_that_comes_twice_is_stored_once() {
    let mut client = Client::new(1);
    let stamp =
        ProducerStamp { producer_id: 5, producer_epoch: 0, base_sequence: 0, is_transactional: false };
    assert_eq!(client.produce(&stamp, 9), (0, 0));
    assert_eq!(client.produce(&next(&stamp, 1), 9), (0, 1));
    assert_eq!(client.produce(&stamp, 9), (0, 0));
    assert_eq!(client.produce(&next(&stamp, 3), 9), (45, -1));
    assert_eq!(client.fetch(false).0, 2);
}

#[test]
fn without_acks_there_is_no_answer() {
    let mut client = Client::new(1);
    let none = client.try_ask(1, 9, &produce(0, 0, batch(&ProducerStamp::NONE), false));
    assert!(none.is_none());
    assert_eq!(client.fetch(false).0, 1, "but it is stored, and the next request is served");
    let told = client.ask(1, 9, &produce(2, 0, batch(&ProducerStamp::NONE), false));
    assert_eq!(told.responses[0].partition_responses[0].error_code, 21);
    // A producer that asks for no answer learns by a closed connection that it has to look for the leader.
    let none = client.try_ask(1, 9, &produce(0, 9, batch(&ProducerStamp::NONE), false));
    assert!(none.is_none());
    assert!(client.cluster.next_close().is_some());
}

#[test]
fn whoever_does_not_lead_says_who_does() {
    let mut client = Client::new(2);
    for version in [9, 10] {
        let records = batch(&ProducerStamp::NONE);
        let told: Vec<_> =
            [1, 2].map(|node| client.ask(node, version, &produce(-1, 0, records.clone(), false))).into();
        let partition = |node: usize| &told[node - 1].responses[0].partition_responses[0];
        let wrong = if partition(1).error_code == NOT_LEADER_OR_FOLLOWER { 1 } else { 2 };
        let right = 3 - wrong;
        assert_eq!(partition(wrong).error_code, NOT_LEADER_OR_FOLLOWER);
        assert_eq!(partition(right).error_code, 0);
        let leader = &partition(wrong).current_leader;
        let endpoints = &told[wrong - 1].node_endpoints;
        if version < 10 {
            assert_eq!((leader.leader_id.0, endpoints.len()), (-1, 0));
        } else {
            assert_eq!((leader.leader_id.0, leader.leader_epoch), (right as i32, 0));
            assert_eq!((endpoints[0].node_id.0, endpoints[0].port), (right as i32, 8999 + right as i32));
        }
    }
}

#[test]
fn the_coordinator_of_an_id_is_one_node() {
    let mut client = Client::new(3);
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(text(ID).into()))
        .with_transaction_timeout_ms(1000)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1);
    let mut codes: Vec<i16> = (1..=3).map(|node| client.ask(node, 4, &request).error_code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 16, 16]);
    let idempotent = request.with_transactional_id(None);
    for node in 1..=3 {
        assert_eq!(client.ask(node, 4, &idempotent).error_code, 0, "anybody gives producer ids");
    }
}

#[test]
fn batches_have_a_limit() {
    let mut client = Client::new(1);
    let mut builder = BatchBuilder::new();
    builder.append(None, Some(&vec![0; 1_048_600]), &[], 5).expect("it fits");
    let large = builder.finish(Codec::None, &ProducerStamp::NONE).expect("no codec");
    let told = client.ask(1, 9, &produce(-1, 0, large, false));
    assert_eq!(told.responses[0].partition_responses[0].error_code, 10);
}

#[test]
fn a_fetch_that_waits_is_woken_by_the_end_of_a_transaction() {
    let mut client = Client::new(1);
    let mut reader = client::Client::connect(&mut client.cluster, 1);
    let stamp = client.stamp();
    client.add(&stamp, 3, &[0]);
    client.produce(&stamp, 11);
    let partition = FetchPartition::default().with_partition_max_bytes(1 << 20);
    let topic = FetchTopic::default().with_topic(text(TOPIC).into()).with_partitions(vec![partition]);
    let request = FetchRequest::default()
        .with_max_wait_ms(60_000)
        .with_min_bytes(1)
        .with_max_bytes(1 << 20)
        .with_isolation_level(1)
        .with_topics(vec![topic]);
    reader.send(&mut client.cluster, 12, &request, client.now);
    assert!(client.cluster.outgoing(reader.conn).is_empty(), "nothing is committed");
    assert_eq!(client.cluster.next_notice(), None);
    client.end(&stamp, 4, true);
    assert!(!client.cluster.outgoing(reader.conn).is_empty());
}

#[test]
fn transactions_and_producers_are_described() {
    let mut client = Client::new(1);
    let stamp = client.stamp();
    client.now += Duration::from_millis(250);
    client.add(&stamp, 3, &[0, 1]);
    client.produce(&stamp, 11);
    client.now += Duration::from_millis(250);

    let ids = vec![text(ID).into(), text("other").into()];
    let told = client.ask(1, 0, &DescribeTransactionsRequest::default().with_transactional_ids(ids));
    let [known, unknown] = &told.transaction_states[..] else { panic!("two were asked for") };
    assert_eq!((known.error_code, &*known.transaction_state), (0, "Ongoing"));
    assert_eq!((known.transaction_timeout_ms, known.transaction_start_time_ms), (1000, 1_001_250));
    assert_eq!((known.producer_id.0, known.producer_epoch), (stamp.producer_id, stamp.producer_epoch));
    assert_eq!((&**known.topics[0].topic, &known.topics[0].partitions[..]), (TOPIC, &[0, 1][..]));
    assert_eq!(unknown.error_code, 105);

    let mut listed = |request: &ListTransactionsRequest, version| {
        let told = client.ask(1, version, request);
        (told.transaction_states.len(), told.unknown_state_filters.len())
    };
    let all = ListTransactionsRequest::default();
    assert_eq!((listed(&all, 0), listed(&all, 1)), ((1, 0), (1, 0)));
    let by_state = |name: &str| all.clone().with_state_filters(vec![text(name)]);
    assert_eq!(listed(&by_state("Ongoing"), 0), (1, 0));
    assert_eq!(listed(&by_state("PrepareCommit"), 0), (0, 0));
    assert_eq!(listed(&by_state("Sleeping"), 0), (0, 1));
    assert_eq!(listed(&all.clone().with_producer_id_filters(vec![ProducerId(77)]), 0), (0, 0));
    assert_eq!(listed(&all.clone().with_duration_filter(249), 1), (1, 0));
    assert_eq!(listed(&all.clone().with_duration_filter(250), 1), (0, 0));

    let topic = describe_producers_request::TopicRequest::default().with_name(text(TOPIC).into());
    let topic = topic.with_partition_indexes(vec![0, 1, 2]);
    let told = client.ask(1, 0, &DescribeProducersRequest::default().with_topics(vec![topic]));
    let partitions = &told.topics[0].partitions;
    let producer = &partitions[0].active_producers[0];
    assert_eq!((producer.producer_id.0, producer.last_sequence), (stamp.producer_id, 0));
    assert_eq!((producer.last_timestamp, producer.current_txn_start_offset), (1_001_250, 0));
    assert_eq!((partitions[1].active_producers.len(), partitions[2].error_code), (0, 3));
}

#[test]
fn a_partition_may_lose_its_end() {
    let mut client = Client::new(1);
    for _ in 0..3 {
        client.produce(&ProducerStamp::NONE, 9);
    }
    client.cluster.truncate(TOPIC, 0, 1);
    assert_eq!(client.fetch(false).0, 1);
    assert_eq!(client.produce(&ProducerStamp::NONE, 9), (0, 1));
}

#[test]
fn transaction_version_2() {
    let mut client = Client::new(1);
    let told = client.ask(1, 4, &ApiVersionsRequest::default());
    let feature = &told.finalized_features[0];
    assert_eq!((&*feature.name, feature.max_version_level), ("transaction.version", 2));

    let first = client.stamp();
    assert_eq!(client.produce(&next(&first, 1), 12), (45, -1), "every epoch begins at 0");
    assert_eq!(client.produce(&first, 12), (0, 0), "nothing was added before");
    assert_eq!(client.produce(&next(&first, 1), 12), (0, 1));
    let end = EndTxnRequest::default()
        .with_transactional_id(text(ID).into())
        .with_producer_id(ProducerId(first.producer_id))
        .with_producer_epoch(first.producer_epoch)
        .with_committed(true);
    for _ in 0..2 {
        let told = client.ask(1, 5, &end);
        assert_eq!((told.error_code, told.producer_id.0, told.producer_epoch), (0, first.producer_id, 1));
    }
    assert_eq!(client.fetch(true).1, 3, "two records and one marker");
    assert_eq!(client.produce(&next(&first, 2), 12), (47, -1), "late");
    let second = ProducerStamp { producer_epoch: 1, ..first };
    assert_eq!(client.produce(&second, 12), (0, 3));
    assert_eq!(client.ask(1, 5, &end.clone().with_producer_epoch(0)).error_code, 90);
    let told = client.ask(1, 5, &end.with_producer_epoch(1).with_committed(false));
    assert_eq!((told.error_code, told.producer_epoch), (0, 2));
    assert_eq!(client.fetch(true).3, [first.producer_id]);
}

#[test]
fn topics_may_be_named_by_id() {
    let mut client = Client::new(1);
    let topic = metadata_request::MetadataRequestTopic::default().with_name(Some(text(TOPIC).into()));
    let told = client.ask(1, 12, &MetadataRequest::default().with_topics(Some(vec![topic])));
    let id = told.topics[0].topic_id;
    let mut request = produce(-1, 0, batch(&ProducerStamp::NONE), false);
    request.topic_data[0].name = TopicName::default();
    for (topic_id, code) in [(id, 0), (uuid::Uuid::from_u128(9), 100)] {
        request.topic_data[0].topic_id = topic_id;
        let told = client.ask(1, 13, &request);
        assert_eq!(told.responses[0].topic_id, topic_id);
        assert_eq!(told.responses[0].partition_responses[0].error_code, code);
    }
}

#[test]
fn offsets_within_a_transaction() {
    for version in 3..=5 {
        let mut client = Client::new(1);
        let stamp = client.stamp();
        let partition = txn_offset_commit_request::TxnOffsetCommitRequestPartition::default();
        let topic = txn_offset_commit_request::TxnOffsetCommitRequestTopic::default()
            .with_name(text(TOPIC).into())
            .with_partitions(vec![partition.with_committed_offset(7)]);
        let commit = TxnOffsetCommitRequest::default()
            .with_transactional_id(text(ID).into())
            .with_group_id(text("g").into())
            .with_generation_id(-1)
            .with_producer_id(ProducerId(stamp.producer_id))
            .with_topics(vec![topic]);
        let mut hold = || client.ask(1, version, &commit).topics[0].partitions[0].error_code;
        if version < 5 {
            assert_eq!(hold(), if version < 4 { 48 } else { 120 }, "the group was not added");
            let add = AddOffsetsToTxnRequest::default()
                .with_transactional_id(text(ID).into())
                .with_producer_id(ProducerId(stamp.producer_id))
                .with_group_id(text("g").into());
            assert_eq!(client.ask(1, 3, &add).error_code, 0);
        }
        let mut hold = || client.ask(1, version, &commit).topics[0].partitions[0].error_code;
        assert_eq!(hold(), 0);
        let stale = commit.clone().with_producer_epoch(9);
        assert_eq!(client.ask(1, version, &stale).topics[0].partitions[0].error_code, 47);
        let ask = offset_fetch_request::OffsetFetchRequestTopic::default()
            .with_name(text(TOPIC).into())
            .with_partition_indexes(vec![0]);
        let ask = OffsetFetchRequest::default().with_group_id(text("g").into()).with_topics(Some(vec![ask]));
        let committed = |client: &mut Client| client.ask(1, 5, &ask).topics[0].partitions[0].committed_offset;
        assert_eq!(committed(&mut client), -1);
        assert_eq!(client.end(&stamp, 3, true), 0);
        assert_eq!(committed(&mut client), 7);
    }
}
