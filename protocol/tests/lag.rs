//! `lag` against a scripted cluster of one broker, without sockets: the bytes of the requests are decoded, recorded
//! and answered. CASES 14, 15 and 16, with their figures.

#![allow(clippy::unwrap_used)] // a test

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::consumer_group_describe_response as consumer;
use kafka_protocol::messages::describe_groups_response as classic;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::offset_fetch_response as fetched;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use keylane_protocol::api::{Api, text};
use keylane_protocol::client::admin::Admin;
use keylane_protocol::client::lag::SurveyRun;
use keylane_protocol::client::net::{LinkId, NetConfig};
use keylane_protocol::lag::{DescribedGroup, GroupLag, Survey};
use keylane_protocol::offsets::Isolation;

/// What the broker says; each test changes what it is about.
struct Broker {
    /// Partition: committed offset (-1: none), log start, log end.
    partitions: Vec<(i64, i64, i64)>,
    /// Added to every log end after each question for it.
    growth: i64,
    /// Commits equal the log's end.
    commit_at_end: bool,
    describe_state: &'static str,
    describe_error: i16,
    /// State and members by ConsumerGroupDescribe, no state for GROUP_ID_NOT_FOUND; none: it does not have the API.
    consumer: Option<(&'static str, usize)>,
    /// As Kafka 2.8: OffsetFetch up to 7, FindCoordinator up to 3.
    old: bool,
    list_errors: Vec<i16>,
    find_errors: Vec<i16>,
    log: Vec<Api>,
}

impl Default for Broker {
    fn default() -> Self {
        Broker {
            partitions: vec![(10, 0, 15)],
            growth: 0,
            commit_at_end: false,
            describe_state: "Empty",
            describe_error: 0,
            consumer: None,
            old: false,
            list_errors: Vec::new(),
            find_errors: Vec::new(),
            log: Vec::new(),
        }
    }
}

fn decode<R: Request>(mut bytes: Bytes, version: i16) -> R {
    RequestHeader::decode(&mut bytes, R::header_version(version)).unwrap();
    let request = <R as Decodable>::decode(&mut bytes, version).unwrap();
    assert!(!bytes.has_remaining(), "bytes behind a request");
    request
}

fn frame<R: Encodable + HeaderVersion>(response: R, version: i16, correlation: i32) -> Bytes {
    let mut body = BytesMut::new();
    ResponseHeader::default()
        .with_correlation_id(correlation)
        .encode(&mut body, R::header_version(version))
        .unwrap();
    response.encode(&mut body, version).unwrap();
    let mut frame = BytesMut::new();
    frame.put_u32(body.len() as u32);
    frame.extend(body);
    frame.freeze()
}

fn topic() -> TopicName {
    TopicName(text("t"))
}

fn group_id() -> GroupId {
    GroupId(text("g"))
}

impl Broker {
    fn answer(&mut self, request: Bytes) -> Bytes {
        let mut head = request.clone();
        let (key, version, correlation) = (head.get_i16(), head.get_i16(), head.get_i32());
        let api = *Api::ALL.iter().find(|api| api.key() == key).unwrap();
        self.log.push(api);
        match api {
            Api::ApiVersions => frame(self.api_versions(), version, correlation),
            Api::FindCoordinator => frame(self.find_coordinator(version), version, correlation),
            Api::Metadata => frame(self.metadata(&decode(request, version)), version, correlation),
            Api::DescribeGroups => frame(self.describe(), version, correlation),
            Api::ConsumerGroupDescribe => frame(self.describe_consumer(), version, correlation),
            Api::OffsetFetch => {
                let request: OffsetFetchRequest = decode(request, version);
                assert_eq!(request.groups.len(), usize::from(version >= 8));
                frame(self.offset_fetch(version), version, correlation)
            }
            Api::ListOffsets => frame(self.list_offsets(&decode(request, version)), version, correlation),
            other => panic!("{other} was asked"),
        }
    }

    fn api_versions(&self) -> ApiVersionsResponse {
        let keys =
            Api::ALL.iter().filter(|api| **api != Api::ConsumerGroupDescribe || self.consumer.is_some());
        let keys = keys
            .map(|api| {
                let newest = match api {
                    Api::OffsetFetch if self.old => 7,
                    Api::FindCoordinator if self.old => 3,
                    api => api.versions().1,
                };
                ApiVersion::default().with_api_key(api.key()).with_max_version(newest)
            })
            .collect();
        ApiVersionsResponse::default().with_api_keys(keys)
    }

    fn find_coordinator(&mut self, version: i16) -> FindCoordinatorResponse {
        let code = if self.find_errors.is_empty() { 0 } else { self.find_errors.remove(0) };
        let response = FindCoordinatorResponse::default();
        if version <= 3 {
            let response = response.with_error_code(code).with_node_id(BrokerId(1));
            return response.with_host(text("127.0.0.1")).with_port(9092);
        }
        let coordinator = find_coordinator_response::Coordinator::default()
            .with_key(text("g"))
            .with_error_code(code)
            .with_node_id(BrokerId(1))
            .with_host(text("127.0.0.1"))
            .with_port(9092);
        response.with_coordinators(vec![coordinator])
    }

    fn metadata(&self, request: &MetadataRequest) -> MetadataResponse {
        let broker = MetadataResponseBroker::default()
            .with_node_id(BrokerId(1))
            .with_host(text("127.0.0.1"))
            .with_port(9092);
        let partitions = (0..self.partitions.len())
            .map(|at| {
                MetadataResponsePartition::default()
                    .with_partition_index(at as i32)
                    .with_leader_id(BrokerId(1))
            })
            .collect();
        let known = MetadataResponseTopic::default().with_name(Some(topic())).with_partitions(partitions);
        let asked = request.topics.as_ref().is_some_and(|topics| !topics.is_empty());
        let topics = if asked { vec![known] } else { Vec::new() };
        MetadataResponse::default().with_brokers(vec![broker]).with_topics(topics)
    }

    fn describe(&self) -> DescribeGroupsResponse {
        let group = classic::DescribedGroup::default()
            .with_group_id(group_id())
            .with_error_code(self.describe_error)
            .with_group_state(StrBytes::from_static_str(self.describe_state));
        DescribeGroupsResponse::default().with_groups(vec![group])
    }

    fn describe_consumer(&self) -> ConsumerGroupDescribeResponse {
        let (state, members) = self.consumer.unwrap();
        let group = consumer::DescribedGroup::default()
            .with_group_id(group_id())
            .with_error_code(if state.is_empty() { 69 } else { 0 })
            .with_group_state(StrBytes::from_static_str(state))
            .with_members(vec![consumer::Member::default(); members]);
        ConsumerGroupDescribeResponse::default().with_groups(vec![group])
    }

    fn offset_fetch(&self, version: i16) -> OffsetFetchResponse {
        let commits =
            self.partitions.iter().enumerate().map(|(at, (committed, _, end))| {
                (at as i32, if self.commit_at_end { *end } else { *committed })
            });
        if version <= 7 {
            let partition = |(at, offset)| {
                fetched::OffsetFetchResponsePartition::default()
                    .with_partition_index(at)
                    .with_committed_offset(offset)
            };
            let topic = fetched::OffsetFetchResponseTopic::default()
                .with_name(topic())
                .with_partitions(commits.map(partition).collect());
            return OffsetFetchResponse::default().with_topics(vec![topic]);
        }
        let partition = |(at, offset)| {
            fetched::OffsetFetchResponsePartitions::default()
                .with_partition_index(at)
                .with_committed_offset(offset)
        };
        let topic = fetched::OffsetFetchResponseTopics::default()
            .with_name(topic())
            .with_partitions(commits.map(partition).collect());
        let group =
            fetched::OffsetFetchResponseGroup::default().with_group_id(group_id()).with_topics(vec![topic]);
        OffsetFetchResponse::default().with_groups(vec![group])
    }

    fn list_offsets(&mut self, request: &ListOffsetsRequest) -> ListOffsetsResponse {
        let code = if self.list_errors.is_empty() { 0 } else { self.list_errors.remove(0) };
        let mut partitions = Vec::new();
        for asked in &request.topics[0].partitions {
            let (_, start, end) = &mut self.partitions[asked.partition_index as usize];
            let offset = if asked.timestamp == -2 { *start } else { *end };
            *end += self.growth;
            let answer = ListOffsetsPartitionResponse::default().with_partition_index(asked.partition_index);
            partitions.push(answer.with_error_code(code).with_offset(if code == 0 { offset } else { -1 }));
        }
        let topic = ListOffsetsTopicResponse::default().with_name(topic()).with_partitions(partitions);
        ListOffsetsResponse::default().with_topics(vec![topic])
    }
}

fn new_admin() -> Admin {
    let config = NetConfig {
        bootstrap: vec![("127.0.0.1".to_owned(), 9092)],
        client_id: "test".to_owned(),
        request_timeout: Duration::from_secs(10),
        reconnect_backoff: Duration::from_millis(50),
        reconnect_backoff_max: Duration::from_secs(1),
        metadata_age_max: Duration::from_secs(300),
        seed: 1,
    };
    Admin::new(config, Duration::ZERO)
}

/// Moves bytes once in both directions, as one turn of the driver does; says whether any moved.
fn exchange(admin: &mut Admin, broker: &mut Broker, now: Duration) -> bool {
    admin.net().on_timeout(now);
    admin.poll(now);
    while let Some((link, _, _)) = admin.net().poll_connect() {
        admin.net().on_connected(link, now);
    }
    let links: Vec<LinkId> = admin.net().links().collect();
    let mut moved = false;
    for link in links {
        while !admin.net().outgoing(link).is_empty() {
            moved = true;
            let mut bytes = Bytes::copy_from_slice(admin.net().outgoing(link));
            let length = bytes.get_u32() as usize;
            admin.net().written(link, 4 + length);
            for piece in broker.answer(bytes.slice(..length)).chunks(1000) {
                admin.net().space(link).unwrap()[..piece.len()].copy_from_slice(piece);
                admin.net().received(link, piece.len(), now);
            }
        }
    }
    admin.poll(now);
    moved
}

/// One look at group "g"; also how much time it took.
fn look(broker: &mut Broker) -> (GroupLag, Duration) {
    let (mut admin, mut now) = (new_admin(), Duration::ZERO);
    let survey = Survey::new(["g".to_owned()], BTreeSet::new());
    let until = Duration::from_secs(10);
    let mut run = SurveyRun::start(survey, Isolation::ReadUncommitted, until, &mut admin, now);
    let mut turns = 0;
    while !run.poll(&mut admin, now) {
        if !exchange(&mut admin, broker, now) && !run.poll(&mut admin, now) {
            let due = [admin.deadline(), admin.net().deadline()].into_iter().flatten().min().unwrap();
            now = now.max(due);
        }
        turns += 1;
        assert!(turns < 2000, "nothing comes of it: {:?}", broker.log);
    }
    let mut groups = run.finish(&mut admin, now);
    assert_eq!(groups.len(), 1);
    (groups.remove(0), now)
}

fn described(broker: &mut Broker) -> DescribedGroup {
    look(broker).0.outcome.unwrap().expect("described")
}

fn count(broker: &Broker, api: Api) -> usize {
    broker.log.iter().filter(|asked| **asked == api).count()
}

#[test]
fn commits_are_read_before_ends_so_lag_is_never_negative() {
    // CASES 14: the end grows by 10 on each request and the commit equals the end.
    let mut broker =
        Broker { partitions: vec![(0, 0, 100)], growth: 10, commit_at_end: true, ..Broker::default() };
    let group = described(&mut broker);
    assert_eq!(group.partitions[0].committed, Ok(Some(100)));
    assert!(group.partitions[0].lag().unwrap() >= 0);
    let first = |api| broker.log.iter().position(|asked| *asked == api).unwrap();
    assert!(first(Api::OffsetFetch) < first(Api::ListOffsets), "{:?}", broker.log);
}

#[test]
fn a_commit_beyond_the_end_is_no_lag_and_marked() {
    let mut broker = Broker { partitions: vec![(120, 0, 100)], ..Broker::default() };
    let group = described(&mut broker);
    assert_eq!((group.partitions[0].lag(), group.partitions[0].beyond_end()), (Some(0), Some(20)));
    assert_eq!((group.total(), group.unknown()), (0, 0));
}

#[test]
fn a_partition_without_a_commit_is_behind_by_its_whole_log() {
    // CASES 15: never end + 1. keylane's contract counts it from the log's start and says how many have no commit.
    for old in [true, false] {
        let partitions = vec![(-1, 1000, 3083), (-1, 0, 0), (4388, 0, 4388)];
        let group = described(&mut Broker { partitions, old, ..Broker::default() });
        let lags: Vec<Option<i64>> = group.partitions.iter().map(|partition| partition.lag()).collect();
        assert_eq!(lags, [Some(2083), Some(0), Some(0)]);
        assert_eq!((group.total(), group.uncommitted(), group.unknown()), (2083, 2, 0));
    }
}

#[test]
fn a_group_of_the_consumer_protocol_is_not_dead() {
    // CASES 16: DescribeGroups says Dead, or GROUP_ID_NOT_FOUND; key 69 knows the group.
    for describe_error in [0, 69] {
        let dead = || Broker { describe_state: "Dead", describe_error, ..Broker::default() };
        let group = described(&mut Broker { consumer: Some(("Stable", 2)), ..dead() });
        assert_eq!((group.description.state.as_str(), group.description.members.len()), ("Stable", 2));
        assert_eq!(group.total(), 5);
        // A broker without key 69.
        let group = described(&mut dead());
        assert_eq!((group.description.state.as_str(), group.total()), ("unknown", 5));
        // Key 69 does not know it either, but there are commits.
        let group = described(&mut Broker { consumer: Some(("", 0)), ..dead() });
        assert_eq!((group.description.state.as_str(), group.total()), ("Empty", 5));
        // And without commits it is not there.
        let mut nothing = Broker { partitions: vec![(-1, 0, 15)], ..dead() };
        assert_eq!(look(&mut nothing).0.outcome, Ok(None));
        assert_eq!(count(&nothing, Api::ListOffsets), 0);
    }
}

#[test]
fn the_good_path_waits_for_no_timer_and_asks_nothing_twice() {
    let mut broker = Broker { consumer: Some(("", 0)), ..Broker::default() };
    let (group, took) = look(&mut broker);
    assert_eq!((group.coordinator, took), (Some(1), Duration::ZERO));
    for (api, times) in [
        (Api::ApiVersions, 2),
        (Api::FindCoordinator, 1),
        (Api::Metadata, 2),
        (Api::DescribeGroups, 1),
        (Api::ConsumerGroupDescribe, 1),
        (Api::OffsetFetch, 1),
        (Api::ListOffsets, 2),
    ] {
        assert_eq!(count(&broker, api), times, "{api} in {:?}", broker.log);
    }
}

#[test]
fn what_passes_is_asked_again_with_pauses() {
    let mut broker = Broker { list_errors: vec![6, 6], find_errors: vec![15, 15], ..Broker::default() };
    let (group, took) = look(&mut broker);
    assert_eq!(group.outcome.unwrap().unwrap().total(), 5);
    assert!(took > Duration::from_millis(150) && took < Duration::from_secs(2), "{took:?}");
    // Never ready: over at the time limit, with the reason, and few questions meanwhile.
    let mut broker = Broker { list_errors: vec![6; 1000], ..Broker::default() };
    let (group, took) = look(&mut broker);
    let group = group.outcome.unwrap().unwrap();
    assert_eq!(group.partitions[0].end.as_ref().unwrap_err().code(), Some(6));
    assert!(took >= Duration::from_secs(10));
    assert!(count(&broker, Api::ListOffsets) < 100, "{}", count(&broker, Api::ListOffsets));
}

#[test]
fn a_refusal_is_the_value_of_its_partition_or_group() {
    let group = described(&mut Broker { list_errors: vec![29, 29], ..Broker::default() });
    assert_eq!((group.unknown(), group.total()), (1, 0));
    let mut broker = Broker { find_errors: vec![30], ..Broker::default() };
    assert_eq!(look(&mut broker).0.outcome.unwrap_err().code(), Some(30));
    assert_eq!(count(&broker, Api::OffsetFetch), 0);
}
