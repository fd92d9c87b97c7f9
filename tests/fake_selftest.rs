//! The fake broker tested by a raw client: every API in every version offered, the coordinator, sessions, hooks.

mod fake;

use std::time::{Duration, Instant};

use bytes::Bytes;
use fake::client::Client;
use fake::codec::Codec;
use fake::state::{group_id, text, topic_name};
use fake::{Fake, Kafka, Phantom, Reaction, batch, codes};
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::*;
use uuid::Uuid;

const SECOND: Duration = Duration::from_secs(1);

fn topic_id(fake: &Fake, topic: &str) -> Uuid {
    fake.with(|s| s.topic(topic).id)
}

fn fetch_request(version: i16, id: Uuid, partitions: &[(i32, i64)]) -> FetchRequest {
    let asked = partitions.iter().map(|(partition, offset)| {
        FetchPartition::default()
            .with_partition(*partition)
            .with_fetch_offset(*offset)
            .with_partition_max_bytes(1 << 20)
    });
    let mut topic = FetchTopic::default().with_partitions(asked.collect());
    if version >= 13 {
        topic.topic_id = id;
    } else {
        topic.topic = topic_name("t");
    }
    FetchRequest::default()
        .with_max_wait_ms(50)
        .with_min_bytes(1)
        .with_max_bytes(1 << 20)
        .with_topics(vec![topic])
}

fn join_request(member: &str, version: i16) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(Bytes::from_static(b"\0\x01\0\0\0\x01\0\x01t\xff\xff\xff\xff\0\0\0\0"));
    let mut request = JoinGroupRequest::default()
        .with_group_id(group_id("g"))
        .with_session_timeout_ms(10_000)
        .with_member_id(text(member))
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol]);
    if version >= 1 {
        request.rebalance_timeout_ms = 2000;
    }
    request
}

fn commit_request(member: &str, generation: i32, offset: i64) -> OffsetCommitRequest {
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(offset);
    let topic = OffsetCommitRequestTopic::default().with_name(topic_name("t"));
    OffsetCommitRequest::default()
        .with_group_id(group_id("g"))
        .with_generation_id_or_member_epoch(generation)
        .with_member_id(text(member))
        .with_topics(vec![topic.with_partitions(vec![partition])])
}

fn produce_request(version: i16, id: Uuid, bytes: Vec<u8>) -> ProduceRequest {
    let data = PartitionProduceData::default().with_records(Some(Bytes::from(bytes)));
    let mut topic = TopicProduceData::default().with_partition_data(vec![data]);
    if version >= 13 {
        topic.topic_id = id;
    } else {
        topic.name = topic_name("t");
    }
    ProduceRequest::default().with_acks(-1).with_timeout_ms(1000).with_topic_data(vec![topic])
}

/// A request of an API that needs no membership, in a version.
fn sample(fake: &Fake, api: ApiKey, version: i16) -> RequestKind {
    let id = topic_id(fake, "t");
    match api {
        ApiKey::Produce => produce_request(version, id, batch(0).records([("k", "v")]).build()).into(),
        ApiKey::Fetch => fetch_request(version, id, &[(0, 0)]).into(),
        ApiKey::ListOffsets => {
            let partition = ListOffsetsPartition::default().with_timestamp(-1);
            let topic =
                ListOffsetsTopic::default().with_name(topic_name("t")).with_partitions(vec![partition]);
            ListOffsetsRequest::default().with_topics(vec![topic]).into()
        }
        ApiKey::Metadata => {
            let topic = MetadataRequestTopic::default().with_name(Some(topic_name("t")));
            MetadataRequest::default().with_topics(Some(vec![topic])).into()
        }
        ApiKey::OffsetCommit => commit_request("", -1, 7).into(),
        ApiKey::OffsetFetch if version < 8 => {
            let topic = OffsetFetchRequestTopic::default().with_name(topic_name("t"));
            let topics = Some(vec![topic.with_partition_indexes(vec![0])]);
            OffsetFetchRequest::default().with_group_id(group_id("g")).with_topics(topics).into()
        }
        ApiKey::OffsetFetch => {
            let topic = OffsetFetchRequestTopics::default().with_name(topic_name("t"));
            let topic = topic.with_partition_indexes(vec![0]);
            let group = OffsetFetchRequestGroup::default().with_group_id(group_id("g"));
            OffsetFetchRequest::default().with_groups(vec![group.with_topics(Some(vec![topic]))]).into()
        }
        ApiKey::FindCoordinator if version < 4 => {
            FindCoordinatorRequest::default().with_key(text("g")).into()
        }
        ApiKey::FindCoordinator => {
            FindCoordinatorRequest::default().with_coordinator_keys(vec![text("g"), text("h")]).into()
        }
        ApiKey::JoinGroup => join_request("nobody", version).into(),
        ApiKey::SyncGroup => {
            let request = SyncGroupRequest::default().with_group_id(group_id("g"));
            request.with_member_id(text("nobody")).into()
        }
        ApiKey::Heartbeat => HeartbeatRequest::default().with_group_id(group_id("g")).into(),
        ApiKey::LeaveGroup if version < 3 => {
            LeaveGroupRequest::default().with_group_id(group_id("g")).with_member_id(text("nobody")).into()
        }
        ApiKey::LeaveGroup => {
            let member = MemberIdentity::default().with_member_id(text("nobody"));
            LeaveGroupRequest::default().with_group_id(group_id("g")).with_members(vec![member]).into()
        }
        ApiKey::DescribeGroups => DescribeGroupsRequest::default().with_groups(vec![group_id("g")]).into(),
        ApiKey::ListGroups => ListGroupsRequest::default().into(),
        ApiKey::ApiVersions => ApiVersionsRequest::default().into(),
        ApiKey::CreateTopics => {
            let topic = CreatableTopic::default().with_name(topic_name(&format!("made-{version}")));
            CreateTopicsRequest::default().with_topics(vec![topic.with_num_partitions(2)]).into()
        }
        ApiKey::DeleteTopics if version < 6 => {
            DeleteTopicsRequest::default().with_topic_names(vec![topic_name("none")]).into()
        }
        ApiKey::DeleteTopics => {
            let topic = DeleteTopicState::default().with_name(Some(topic_name("none")));
            DeleteTopicsRequest::default().with_topics(vec![topic]).into()
        }
        ApiKey::InitProducerId => {
            let mut request = InitProducerIdRequest::default();
            request.producer_id = ProducerId(-1);
            request.producer_epoch = -1;
            request.into()
        }
        ApiKey::OffsetForLeaderEpoch => {
            let partition =
                OffsetForLeaderPartition::default().with_leader_epoch(0).with_current_leader_epoch(-1);
            let topic = OffsetForLeaderTopic::default().with_topic(topic_name("t"));
            OffsetForLeaderEpochRequest::default()
                .with_topics(vec![topic.with_partitions(vec![partition])])
                .into()
        }
        ApiKey::DescribeConfigs => {
            let resource =
                DescribeConfigsResource::default().with_resource_type(2).with_resource_name(text("t"));
            DescribeConfigsRequest::default()
                .with_resources(vec![resource.with_configuration_keys(None)])
                .into()
        }
        ApiKey::DeleteGroups => {
            DeleteGroupsRequest::default().with_groups_names(vec![group_id("none")]).into()
        }
        ApiKey::ConsumerGroupDescribe => {
            ConsumerGroupDescribeRequest::default().with_group_ids(vec![group_id("g")]).into()
        }
        other => panic!("no sample of {other:?}"),
    }
}

/// Every version that is offered and that kafka-protocol speaks.
fn versions(fake: &Fake) -> Vec<(ApiKey, i16)> {
    let mut out = Vec::new();
    for api in Kafka::apis() {
        let spoken = fake::versions::spoken(api);
        if let Some((min, max)) = fake.with(|s| s.range(api)) {
            out.extend((min.max(spoken.0)..=max.min(spoken.1)).map(|version| (api, version)));
        }
    }
    out
}

#[test]
fn every_version_is_answered() {
    for kafka in [Kafka::V2_8, Kafka::V3_9, Kafka::V4_3] {
        let fake = Fake::builder().kafka(kafka).topic("t", 1).records("t", 0, [("k", "v")]).start();
        let mut client = Client::connect(&fake, 1);
        let all = versions(&fake);
        for (api, version) in &all {
            client.call(*api, *version, sample(&fake, *api, *version));
        }
        assert_eq!(fake.requests().len(), all.len());
    }
}

#[test]
fn every_version_can_fail() {
    let fake = Fake::builder().topic("t", 1).records("t", 0, [("k", "v")]).start();
    let mut client = Client::connect(&fake, 1);
    for (api, version) in versions(&fake) {
        if api == ApiKey::ApiVersions {
            continue;
        }
        fake.clear_hooks();
        fake.fail_times(api, 1, 7);
        let answer = client.call(api, version, sample(&fake, api, version));
        assert!(format!("{answer:?}").contains("error_code: 7"), "{api:?} v{version}: {answer:?}");
    }
}

#[test]
fn too_new_api_versions_gets_the_old_layout() {
    let fake = Fake::builder().kafka(Kafka::V2_8).start();
    let mut client = Client::connect(&fake, 1);
    client.send(ApiKey::ApiVersions, 4, ApiVersionsRequest::default()).unwrap();
    let mut frame = Bytes::from(client.receive_raw().unwrap()).slice(4..);
    let answer = expect!(ResponseKind::decode(ApiKey::ApiVersions, &mut frame, 0).unwrap(), ApiVersions);
    assert_eq!(answer.error_code, codes::UNSUPPORTED_VERSION);
    assert!(answer.api_keys.iter().any(|k| (k.api_key, k.max_version) == (18, 3)));
    expect!(client.call(ApiKey::ApiVersions, 3, ApiVersionsRequest::default()), ApiVersions);
}

#[test]
fn a_group_of_two() {
    let fake = Fake::builder().topic("t", 2).start();
    let mut one = Client::connect(&fake, 1);
    let first = join(&mut one, "");
    assert_eq!(first.error_code, codes::MEMBER_ID_REQUIRED);
    let a = first.member_id.to_string();
    let alone = join(&mut one, &a);
    assert_eq!((alone.error_code, alone.generation_id, alone.members.len()), (0, 1, 1));
    assert_eq!(sync(&mut one, &a, 1, &[(&a, b"all")]), (0, Bytes::from_static(b"all")));
    assert_eq!(beat(&mut one, &a, 1), 0);
    assert_eq!(beat(&mut one, &a, 5), codes::ILLEGAL_GENERATION);
    assert_eq!(commit(&mut one, &a, 1, 3), 0);

    let mut two = Client::connect(&fake, 1);
    let b = join(&mut two, "").member_id.to_string();
    two.send(ApiKey::JoinGroup, 9, join_request(&b, 9)).unwrap();
    fake.wait_until("a rebalance", SECOND, |log| {
        log.state.groups["g"].phase == fake::group::Phase::PreparingRebalance
    });
    assert_eq!(beat(&mut one, &a, 1), codes::REBALANCE_IN_PROGRESS);
    assert_eq!(commit(&mut one, &a, 1, 4), 0);
    let lead = join(&mut one, &a);
    assert_eq!((lead.generation_id, lead.leader.as_str(), lead.members.len()), (2, a.as_str(), 2));
    let follow = expect!(two.receive(ApiKey::JoinGroup, 9).unwrap(), JoinGroup);
    assert_eq!((follow.generation_id, follow.members.len()), (2, 0));
    assert_eq!(commit(&mut one, &a, 2, 5), codes::REBALANCE_IN_PROGRESS);
    let request = SyncGroupRequest::default().with_group_id(group_id("g")).with_generation_id(2);
    two.send(ApiKey::SyncGroup, 5, request.with_member_id(text(b.clone()))).unwrap();
    assert_eq!(sync(&mut one, &a, 2, &[(&a, b"p0"), (&b, b"p1")]), (0, Bytes::from_static(b"p0")));
    let synced = expect!(two.receive(ApiKey::SyncGroup, 5).unwrap(), SyncGroup);
    assert_eq!(&synced.assignment[..], b"p1");
    assert_eq!(commit(&mut one, &a, 1, 6), codes::ILLEGAL_GENERATION);
    assert_eq!(commit(&mut one, &a, 2, 6), 0);

    fake.remove_member("g", &b);
    assert_eq!(beat(&mut two, &b, 2), codes::UNKNOWN_MEMBER_ID);
    assert_eq!(beat(&mut one, &a, 2), codes::REBALANCE_IN_PROGRESS);
    let offsets: Vec<i64> = fake.commits("g").iter().map(|c| c.offset).collect();
    assert_eq!((offsets, fake.committed("g", "t", 0)), (vec![3, 4, 5, 6, 6], Some(6)));
}

fn join(client: &mut Client, member: &str) -> JoinGroupResponse {
    expect!(client.call(ApiKey::JoinGroup, 9, join_request(member, 9)), JoinGroup)
}

fn sync(client: &mut Client, member: &str, generation: i32, plan: &[(&str, &'static [u8])]) -> (i16, Bytes) {
    let assignments = plan.iter().map(|(id, bytes)| {
        SyncGroupRequestAssignment::default()
            .with_member_id(text(*id))
            .with_assignment(Bytes::from_static(bytes))
    });
    let request = SyncGroupRequest::default()
        .with_group_id(group_id("g"))
        .with_member_id(text(member))
        .with_generation_id(generation)
        .with_assignments(assignments.collect());
    let answer = expect!(client.call(ApiKey::SyncGroup, 5, request), SyncGroup);
    (answer.error_code, answer.assignment)
}

fn beat(client: &mut Client, member: &str, generation: i32) -> i16 {
    let request = HeartbeatRequest::default().with_group_id(group_id("g")).with_member_id(text(member));
    expect!(client.call(ApiKey::Heartbeat, 4, request.with_generation_id(generation)), Heartbeat).error_code
}

fn commit(client: &mut Client, member: &str, generation: i32, offset: i64) -> i16 {
    let request = commit_request(member, generation, offset);
    expect!(client.call(ApiKey::OffsetCommit, 9, request), OffsetCommit).topics[0].partitions[0].error_code
}

#[test]
fn a_phantom_joins_and_leaves() {
    let fake = Fake::builder().topic("t", 2).start();
    let mut client = Client::connect(&fake, 1);
    let a = join(&mut client, "").member_id.to_string();
    assert_eq!(join(&mut client, &a).generation_id, 1);
    sync(&mut client, &a, 1, &[]);
    fake.phantom_join("g", "ghost", Phantom::new(&["t"]));
    assert_eq!(beat(&mut client, &a, 1), codes::REBALANCE_IN_PROGRESS);
    let joined = join(&mut client, &a);
    assert_eq!((joined.generation_id, joined.members.len(), joined.leader.as_str()), (2, 2, a.as_str()));
    let ghost = joined.members.iter().find(|m| m.member_id.as_str() == "ghost").unwrap();
    assert_eq!(fake::phantom::read_subscription(&ghost.metadata).unwrap().0, ["t"]);
    sync(&mut client, &a, 2, &[(&a, b"x")]);
    fake.remove_member("g", "ghost");
    let joined = join(&mut client, &a);
    assert_eq!((joined.generation_id, joined.members.len()), (3, 1));
}

#[test]
fn a_silent_member_expires() {
    let fake = Fake::builder().topic("t", 1).start();
    let mut client = Client::connect(&fake, 1);
    let request = |member: &str| join_request(member, 9).with_session_timeout_ms(100);
    let a = expect!(client.call(ApiKey::JoinGroup, 9, request("")), JoinGroup).member_id;
    client.call(ApiKey::JoinGroup, 9, request(&a));
    fake.wait_until("an empty group", SECOND, |log| log.state.groups["g"].members.is_empty());
    assert_eq!(beat(&mut client, &a, 1), codes::UNKNOWN_MEMBER_ID);
}

#[test]
fn a_static_member_comes_back_without_a_rebalance() {
    let fake = Fake::builder().topic("t", 1).start();
    let mut client = Client::connect(&fake, 1);
    let request = || join_request("", 9).with_group_instance_id(Some(text("i")));
    let first = expect!(client.call(ApiKey::JoinGroup, 9, request()), JoinGroup);
    sync(&mut client, &first.member_id, 1, &[(&first.member_id, b"p0")]);
    let again = expect!(client.call(ApiKey::JoinGroup, 9, request()), JoinGroup);
    assert_eq!((again.error_code, again.generation_id, again.skip_assignment), (0, 1, true));
    assert_ne!(again.member_id, first.member_id);
    assert_eq!(sync(&mut client, &again.member_id, 1, &[]).1, Bytes::from_static(b"p0"));
    let old = HeartbeatRequest::default()
        .with_group_id(group_id("g"))
        .with_member_id(first.member_id)
        .with_group_instance_id(Some(text("i")))
        .with_generation_id(1);
    let answer = expect!(client.call(ApiKey::Heartbeat, 4, old), Heartbeat);
    assert_eq!(answer.error_code, codes::FENCED_INSTANCE_ID);
}

fn fetch(client: &mut Client, request: FetchRequest) -> FetchResponse {
    expect!(client.call(ApiKey::Fetch, 17, request), Fetch)
}

#[test]
fn fetch_sessions_and_long_poll() {
    let fake = Fake::builder().topic("t", 2).records("t", 0, [("a", "1"), ("b", "2")]).start();
    let id = topic_id(&fake, "t");
    let mut client = Client::connect(&fake, 1);
    let full = fetch(&mut client, fetch_request(17, id, &[(0, 0), (1, 0)]).with_session_epoch(0));
    let session = full.session_id;
    assert!(session > 0 && full.responses[0].partitions.len() == 2);
    let next = |epoch: i32, partitions: &[(i32, i64)]| {
        let mut request =
            fetch_request(17, id, partitions).with_session_id(session).with_session_epoch(epoch);
        request.topics.retain(|t| !t.partitions.is_empty());
        request
    };
    let begun = Instant::now();
    let empty = fetch(&mut client, next(1, &[(0, 2)]));
    assert!(empty.responses.is_empty() && begun.elapsed() >= Duration::from_millis(50));
    let wrong = fetch(&mut client, next(9, &[]));
    assert_eq!(wrong.error_code, codes::INVALID_FETCH_SESSION_EPOCH);

    let mut waiting = next(2, &[]).with_max_wait_ms(5000);
    waiting.forgotten_topics_data =
        vec![ForgottenTopic::default().with_topic_id(id).with_partitions(vec![0])];
    client.send(ApiKey::Fetch, 17, waiting).unwrap();
    fake.append_records("t", 0, [("c", "3")]);
    fake.append_records("t", 1, [("d", "4")]);
    let woken = expect!(client.receive(ApiKey::Fetch, 17).unwrap(), Fetch);
    let partitions: Vec<i32> = woken.responses[0].partitions.iter().map(|p| p.partition_index).collect();
    assert_eq!(partitions, [1]);
    assert_eq!(fake.log(|log| log.positions("t", 0)), [0, 2]);
    assert!(fake.fetches().iter().any(|ask| ask.partition == 1 && !ask.explicit));
}

#[test]
fn fetch_limits_errors_and_transactions() {
    let fake = Fake::builder()
        .topic("t", 2)
        .batch("t", 0, &batch(0).records([("k", "v".repeat(100)), ("k", "v".repeat(100))]))
        .batch("t", 0, &batch(2).records([("k", "v".repeat(900))]))
        .batch("t", 1, &batch(0).transactional(5).records([("k", "v")]))
        .batch("t", 1, &batch(1).marker(5, false))
        .batch("t", 1, &batch(2).transactional(6).records([("k", "v")]))
        .start();
    let id = topic_id(&fake, "t");
    let mut client = Client::connect(&fake, 1);
    let mut cut = fetch_request(17, id, &[(0, 0), (1, 0)]).with_isolation_level(1);
    cut.topics[0].partitions[0].partition_max_bytes = 500;
    let answer = fetch(&mut client, cut);
    let [first, second] = &answer.responses[0].partitions[..] else { panic!("{answer:?}") };
    assert_eq!(first.records.as_ref().unwrap().len(), 500);
    assert_eq!((second.high_watermark, second.last_stable_offset), (3, 2));
    let aborted = second.aborted_transactions.as_ref().unwrap();
    assert_eq!((aborted.len(), aborted[0].producer_id.0, aborted[0].first_offset), (1, 5, 0));
    let header = fake::batch::Header::read(second.records.as_ref().unwrap()).unwrap();
    assert!(header.crc_good && header.is_transactional());

    let past = fetch(&mut client, fetch_request(17, id, &[(0, 99)]));
    assert_eq!(past.responses[0].partitions[0].error_code, codes::OFFSET_OUT_OF_RANGE);
    fake.with(|s| s.change_topic_id("t"));
    let gone = fetch(&mut client, fetch_request(17, id, &[(0, 0)]));
    assert_eq!(gone.responses[0].partitions[0].error_code, codes::UNKNOWN_TOPIC_ID);
    fake.with(|s| s.move_leader("t", 0, 1));
    let mut fenced = fetch_request(17, topic_id(&fake, "t"), &[(0, 0)]);
    fenced.topics[0].partitions[0].current_leader_epoch = 0;
    let fenced = fetch(&mut client, fenced);
    assert_eq!(fenced.responses[0].partitions[0].error_code, codes::FENCED_LEADER_EPOCH);
}

#[test]
fn batches_have_what_was_asked_for() {
    let holes =
        batch(100).record_at(100, "a", "1").record_at(104, (), Some("2")).header("h", ()).last_delta(9);
    let bytes = holes.build();
    let header = fake::batch::Header::read(&bytes).unwrap();
    assert_eq!((header.base, header.last_offset(), header.count, header.crc_good), (100, 109, 2, true));
    let records = fake::batch::read_records(&bytes).unwrap();
    assert_eq!((records[1].delta, records[1].key.clone()), (4, None));
    assert_eq!(records[1].headers, [("h".to_owned(), None)]);
    assert!(!fake::batch::Header::read(&holes.clone().flip(80).build()).unwrap().crc_good);
    assert!(!fake::batch::Header::read(&holes.bad_crc().build()).unwrap().crc_good);
    // kafka-protocol's own reader agrees.
    let plain = batch(5).records([("a", "1"), ("b", "2")]).build();
    let sets = kafka_protocol::records::RecordBatchDecoder::decode_all(&mut Bytes::from(plain)).unwrap();
    let offsets: Vec<i64> = sets.iter().flat_map(|set| &set.records).map(|r| r.offset).collect();
    assert_eq!(offsets, [5, 6]);
}

#[test]
fn idempotent_produce() {
    let fake = Fake::builder().topic("t", 1).start();
    let id = topic_id(&fake, "t");
    let mut client = Client::connect(&fake, 1);
    let mut send = |sequence: i32, count: usize| {
        let records = vec![("k", "v"); count];
        let bytes = batch(0).records(records).producer(9, 0, sequence).build();
        let answer = expect!(client.call(ApiKey::Produce, 13, produce_request(13, id, bytes)), Produce);
        let told = &answer.responses[0].partition_responses[0];
        (told.error_code, told.base_offset)
    };
    assert_eq!(send(0, 1), (0, 0));
    assert_eq!(send(1, 3), (0, 1));
    assert_eq!(send(1, 3), (0, 1), "a repeat is stored once");
    assert_eq!(send(5, 1).0, codes::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(send(4, 2), (0, 4));
    let sequences: Vec<i32> = fake.log(|log| log.produced().iter().map(|p| p.header.base_sequence).collect());
    assert_eq!(sequences, [0, 1, 1, 5, 4]);
    assert_eq!(fake.with(|s| s.log("t", 0).record_count()), 6);
    fake.with(|s| s.log("t", 0).set_sequence(9, 0, i32::MAX));
    assert_eq!(send(0, 1), (0, 6));
}

#[test]
fn offsets_by_time_epoch_and_end() {
    let fake = Fake::builder()
        .topic("t", 1)
        .batch("t", 0, &batch(0).timestamp_ms(1000).leader_epoch(0).records([("a", "1"), ("b", "2")]))
        .batch("t", 0, &batch(2).timestamp_ms(2000).leader_epoch(3).records([("c", "3")]))
        .set(|s| s.partition("t", 0).epoch = 4)
        .start();
    let mut client = Client::connect(&fake, 1);
    let mut list = |timestamp: i64| {
        let partition =
            ListOffsetsPartition::default().with_timestamp(timestamp).with_current_leader_epoch(-1);
        let topic = ListOffsetsTopic::default().with_name(topic_name("t")).with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default().with_topics(vec![topic]);
        let answer = expect!(client.call(ApiKey::ListOffsets, 9, request), ListOffsets);
        answer.topics[0].partitions[0].offset
    };
    assert_eq!([list(-1), list(-2), list(1001), list(1002), list(5000)], [3, 0, 1, 2, -1]);
    fake.with(|s| s.log("t", 0).delete_prefix(1));
    assert_eq!(list(-2), 1);
    let ends: Vec<(i32, i64)> =
        [0, 2, 3, 4, 5].map(|epoch| fake.with(|s| s.log("t", 0).epoch_end(epoch, 4))).into();
    assert_eq!(ends, [(0, 2), (0, 2), (3, 3), (4, 3), (-1, -1)]);
}

#[test]
fn hooks_change_answers() {
    let fake = Fake::builder().topic("t", 1).start();
    let mut client = Client::connect(&fake, 1);
    fake.fail_times(ApiKey::Heartbeat, 2, 27);
    assert_eq!(
        [beat(&mut client, "m", 1), beat(&mut client, "m", 1), beat(&mut client, "m", 1)],
        [27, 27, 25]
    );
    fake.on(ApiKey::Heartbeat, |request, _| match request.nth {
        4 => Reaction::delay_ms(80),
        5 => Reaction::edit(|response| {
            let ResponseKind::Heartbeat(body) = response else { unreachable!() };
            body.throttle_time_ms = 77;
        }),
        6 => Reaction::CloseAfterBytes(3),
        _ => Reaction::Default,
    });
    let begun = Instant::now();
    beat(&mut client, "m", 1);
    assert!(begun.elapsed() >= Duration::from_millis(80));
    let request = HeartbeatRequest::default().with_group_id(group_id("g"));
    let edited = expect!(client.call(ApiKey::Heartbeat, 4, request.clone()), Heartbeat);
    assert_eq!(edited.throttle_time_ms, 77);
    client.send(ApiKey::Heartbeat, 4, request).unwrap();
    assert!(client.receive_raw().is_err());
}

#[test]
fn a_node_stops_and_comes_back_on_its_port() {
    let fake = Fake::cluster(2).topic("t", 2).start();
    let port = fake.port(2);
    let mut client = Client::connect(&fake, 2);
    let answer = expect!(client.call(ApiKey::Heartbeat, 4, HeartbeatRequest::default()), Heartbeat);
    assert_eq!(answer.error_code, codes::NOT_COORDINATOR);
    fake.stop_node(2);
    assert!(client.receive_raw().is_err());
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    fake.start_node(2);
    let mut client = Client::connect(&fake, 2);
    let answer =
        expect!(client.call(ApiKey::Metadata, 12, MetadataRequest::default().with_topics(None)), Metadata);
    let leaders: Vec<i32> = answer.topics[0].partitions.iter().map(|p| p.leader_id.0).collect();
    assert_eq!((answer.brokers.len(), leaders), (2, vec![1, 2]));
}

#[test]
fn a_fault_of_the_client_is_kept() {
    let fake = Fake::builder().kafka(Kafka::V2_8).start();
    let mut client = Client::connect(&fake, 1);
    client.send(ApiKey::FindCoordinator, 6, FindCoordinatorRequest::default()).unwrap();
    assert!(client.receive_raw().is_err());
    let faults = fake.wait_for("a fault", SECOND, |log| log.state.faults.first().cloned());
    assert!(faults.contains("was never offered"), "{faults}");
    fake.take_faults();
}

#[test]
fn stored_codecs_are_valid() {
    let data: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let frame = fake::codec::compress(codec, &data);
        assert!(frame.len() > data.len() && frame.len() < data.len() + 200, "{codec:?}: {}", frame.len());
    }
}
