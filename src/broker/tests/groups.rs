//! Groups and committed offsets over connections.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Request, StrBytes};

use super::client::{Client, cluster};
use crate::broker::api::SERVED;
use crate::broker::cluster::Cluster;

fn text(value: &str) -> StrBytes {
    StrBytes::from_string(value.to_owned())
}

fn group() -> GroupId {
    GroupId(text("g"))
}

fn topic(name: &str) -> TopicName {
    TopicName(text(name))
}

/// The version of an API that is `step` above its lowest, or its highest.
fn version<R: Request>(step: i16) -> i16 {
    let (_, min, max) = *SERVED.iter().find(|(key, _, _)| *key as i16 == R::KEY).expect("served");
    (min + step).min(max)
}

fn join(member: &str) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default().with_name(text("range"));
    JoinGroupRequest::default()
        .with_group_id(group())
        .with_session_timeout_ms(10_000)
        .with_rebalance_timeout_ms(60_000)
        .with_member_id(text(member))
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol.with_metadata(Bytes::from_static(b"metadata"))])
}

fn sync(member: &str, generation: i32, step: i16) -> SyncGroupRequest {
    let share = SyncGroupRequestAssignment::default().with_member_id(text(member));
    let named = version::<SyncGroupRequest>(step) >= 5;
    SyncGroupRequest::default()
        .with_group_id(group())
        .with_generation_id(generation)
        .with_member_id(text(member))
        .with_protocol_type(named.then(|| text("consumer")))
        .with_protocol_name(named.then(|| text("range")))
        .with_assignments(vec![share.with_assignment(Bytes::from_static(b"share"))])
}

fn commit(member: &str, generation: i32, at: &[(&str, i32, i64)]) -> OffsetCommitRequest {
    let topics = at.iter().map(|(name, partition, offset)| {
        let partition = OffsetCommitRequestPartition::default()
            .with_partition_index(*partition)
            .with_committed_offset(*offset)
            .with_committed_metadata(Some(text("note")));
        OffsetCommitRequestTopic::default().with_name(topic(name)).with_partitions(vec![partition])
    });
    OffsetCommitRequest::default()
        .with_group_id(group())
        .with_generation_id_or_member_epoch(generation)
        .with_member_id(text(member))
        .with_topics(topics.collect())
}

/// Codes of a commit, by partition in order.
fn codes(response: &OffsetCommitResponse) -> Vec<i16> {
    let topics = response.topics.iter();
    topics.flat_map(|topic| topic.partitions.iter().map(|partition| partition.error_code)).collect()
}

/// Offset, metadata and code of t-0, and the code of the group.
fn fetch(client: &mut Client, cluster: &mut Cluster, version: i16, stable: bool) -> (i64, String, i16, i16) {
    let request = OffsetFetchRequest::default().with_require_stable(stable);
    let request = if version >= 8 {
        let topics =
            OffsetFetchRequestTopics::default().with_name(topic("t")).with_partition_indexes(vec![0]);
        let named = OffsetFetchRequestGroup::default().with_group_id(group()).with_topics(Some(vec![topics]));
        let all = OffsetFetchRequestGroup::default().with_group_id(GroupId(text("other"))).with_topics(None);
        request.with_groups(vec![named, all])
    } else {
        let topics = OffsetFetchRequestTopic::default().with_name(topic("t")).with_partition_indexes(vec![0]);
        request.with_group_id(group()).with_topics(Some(vec![topics]))
    };
    let answer = client.ask(cluster, version, &request);
    if version >= 8 {
        assert_eq!((answer.groups.len(), answer.groups[1].topics.len()), (2, 0));
        let group = &answer.groups[0];
        let found = group.topics.first().map(|topic| &topic.partitions[0]);
        let metadata = found.and_then(|found| found.metadata.as_deref()).unwrap_or_default().to_owned();
        let (offset, code) = found.map_or((-2, 0), |found| (found.committed_offset, found.error_code));
        (offset, metadata, code, group.error_code)
    } else {
        let found = answer.topics.first().map(|topic| &topic.partitions[0]);
        let metadata = found.and_then(|found| found.metadata.as_deref()).unwrap_or_default().to_owned();
        let (offset, code) = found.map_or((-2, 0), |found| (found.committed_offset, found.error_code));
        (offset, metadata, code, answer.error_code)
    }
}

/// Joins as a new member. Its id and generation.
fn enter(client: &mut Client, cluster: &mut Cluster, step: i16) -> (String, i32) {
    let version = version::<JoinGroupRequest>(step);
    let mut answer = client.ask(cluster, version, &join(""));
    if version >= 4 {
        assert_eq!(answer.error_code, ResponseError::MemberIdRequired.code());
        answer = client.ask(cluster, version, &join(&answer.member_id));
    }
    assert_eq!((answer.error_code, answer.members.len()), (0, 1));
    assert_eq!(answer.members[0].metadata, "metadata");
    (answer.member_id.to_string(), answer.generation_id)
}

#[test]
fn the_life_of_a_group_in_every_version() {
    for step in 0..=9 {
        let mut cluster = cluster(1, |_| {});
        let mut client = Client::connect(&mut cluster, 1);
        let (id, generation) = enter(&mut client, &mut cluster, step);
        let synced =
            client.ask(&mut cluster, version::<SyncGroupRequest>(step), &sync(&id, generation, step));
        assert_eq!((synced.error_code, &*synced.assignment), (0, &b"share"[..]));

        let beat = HeartbeatRequest::default().with_group_id(group()).with_member_id(text(&id));
        let beat = beat.with_generation_id(generation);
        assert_eq!(client.ask(&mut cluster, version::<HeartbeatRequest>(step), &beat).error_code, 0);

        let at = [("t", 0, 7), ("t", 9, 7), ("none", 0, 7)];
        let committed = commit(&id, generation, &at);
        let answer = client.ask(&mut cluster, version::<OffsetCommitRequest>(step), &committed);
        assert_eq!(codes(&answer), [0, 3, 3]);
        let fetched = fetch(&mut client, &mut cluster, version::<OffsetFetchRequest>(step), false);
        assert_eq!(fetched, (7, "note".to_owned(), 0, 0));

        check_described(&mut client, &mut cluster, step, &id);
        let delete = DeleteGroupsRequest::default().with_groups_names(vec![group(), GroupId(text("none"))]);
        let answer = client.ask(&mut cluster, version::<DeleteGroupsRequest>(step), &delete);
        let deleted: Vec<i16> = answer.results.iter().map(|result| result.error_code).collect();
        assert_eq!(deleted, [68, 69]);

        check_left(&mut client, &mut cluster, step, &id);
        let answer = client.ask(&mut cluster, version::<DeleteGroupsRequest>(step), &delete);
        assert_eq!(answer.results[0].error_code, 0);
        assert_eq!(cluster.group("g"), None);
        assert_eq!(cluster.next_notice(), None);
    }
}

fn check_described(client: &mut Client, cluster: &mut Cluster, step: i16, id: &str) {
    let version_asked = version::<DescribeGroupsRequest>(step);
    let request = DescribeGroupsRequest::default()
        .with_groups(vec![group(), GroupId(text("none"))])
        .with_include_authorized_operations(version_asked >= 3);
    let answer = client.ask(cluster, version_asked, &request);
    let described = &answer.groups[0];
    let words = (described.group_state.as_str(), described.protocol_data.as_str());
    assert_eq!(words, ("Stable", "range"));
    let member = &described.members[0];
    assert_eq!((&*member.member_id, &*member.client_id, &*member.client_host), (id, "tester", "test"));
    assert_eq!((&*member.member_metadata, &*member.member_assignment), (&b"metadata"[..], &b"share"[..]));
    assert_eq!(described.authorized_operations >= 0, version_asked >= 3);
    let missing = &answer.groups[1];
    let code = if version_asked >= 6 { 69 } else { 0 };
    assert_eq!((missing.error_code, missing.group_state.as_str()), (code, "Dead"));

    let version_asked = version::<ListGroupsRequest>(step);
    let listed = client.ask(cluster, version_asked, &ListGroupsRequest::default());
    assert_eq!((listed.groups.len(), listed.groups[0].protocol_type.as_str()), (1, "consumer"));
    if version_asked >= 4 {
        assert_eq!(listed.groups[0].group_state.as_str(), "Stable");
        let mut count = |states: &str, types: &str| {
            let filter = |words: &str| words.split_terminator(',').map(text).collect::<Vec<_>>();
            let request = ListGroupsRequest::default().with_states_filter(filter(states));
            let request = request.with_types_filter(filter(types));
            client.ask(cluster, version_asked, &request).groups.len()
        };
        assert_eq!((count("Empty", ""), count("empty,STABLE", "")), (0, 1));
        if version_asked >= 5 {
            assert_eq!((count("", "Classic"), count("", "consumer"), count("", "nonsense")), (1, 0, 0));
        }
    }
}

fn check_left(client: &mut Client, cluster: &mut Cluster, step: i16, id: &str) {
    let version = version::<LeaveGroupRequest>(step);
    let request = LeaveGroupRequest::default().with_group_id(group());
    if version >= 3 {
        let identity = |id| MemberIdentity::default().with_member_id(text(id));
        let request = request.with_members(vec![identity(id), identity("nobody")]);
        let answer = client.ask(cluster, version, &request);
        let left: Vec<i16> = answer.members.iter().map(|member| member.error_code).collect();
        assert_eq!((answer.error_code, left), (0, vec![0, 25]));
    } else {
        let request = request.with_member_id(text(id));
        assert_eq!(client.ask(cluster, version, &request).error_code, 0);
        assert_eq!(client.ask(cluster, version, &request).error_code, 25);
    }
}

#[test]
fn a_bare_error_in_every_version() {
    for step in 0..=9 {
        // Asked of the node that does not coordinate the group.
        let mut cluster = cluster(2, |_| {});
        let coordinator = cluster.state.coordinator_of("g");
        let mut client = Client::connect(&mut cluster, 3 - coordinator);
        let not_coordinator = ResponseError::NotCoordinator.code();
        let answer = client.ask(&mut cluster, version::<JoinGroupRequest>(step), &join("m"));
        assert_eq!((answer.error_code, &*answer.member_id), (not_coordinator, "m"));
        let answer = client.ask(&mut cluster, version::<SyncGroupRequest>(step), &sync("m", 1, step));
        assert_eq!(answer.error_code, not_coordinator);
        let beat = HeartbeatRequest::default().with_group_id(group());
        let answer = client.ask(&mut cluster, version::<HeartbeatRequest>(step), &beat);
        assert_eq!(answer.error_code, not_coordinator);
        let leave = LeaveGroupRequest::default().with_group_id(group());
        let answer = client.ask(&mut cluster, version::<LeaveGroupRequest>(step), &leave);
        assert_eq!(answer.error_code, not_coordinator);
        let version_asked = version::<OffsetCommitRequest>(step);
        let answer = client.ask(&mut cluster, version_asked, &commit("m", 1, &[("t", 0, 1), ("none", 0, 1)]));
        assert_eq!(codes(&answer), [not_coordinator; 2]);
        let version_asked = version::<OffsetFetchRequest>(step);
        if version_asked < 8 {
            let (offset, _, code, whole) = fetch(&mut client, &mut cluster, version_asked, false);
            let expected =
                if version_asked < 2 { (-1, not_coordinator, 0) } else { (-2, 0, not_coordinator) };
            assert_eq!((offset, code, whole), expected);
        }
        let describe = DescribeGroupsRequest::default().with_groups(vec![group()]);
        let answer = client.ask(&mut cluster, version::<DescribeGroupsRequest>(step), &describe);
        assert_eq!(answer.groups[0].error_code, not_coordinator);
        let delete = DeleteGroupsRequest::default().with_groups_names(vec![group()]);
        let answer = client.ask(&mut cluster, version::<DeleteGroupsRequest>(step), &delete);
        assert_eq!(answer.results[0].error_code, not_coordinator);
        let answer = client.ask(&mut cluster, 0, &OffsetDeleteRequest::default().with_group_id(group()));
        assert_eq!(answer.error_code, not_coordinator);
        let version_asked = version::<TxnOffsetCommitRequest>(step);
        let answer = client.ask(&mut cluster, version_asked, &transactional(0, 0, 5));
        assert_eq!(answer.topics[0].partitions[0].error_code, not_coordinator);
        assert_eq!(cluster.next_notice(), None);
    }
}

#[test]
fn each_node_lists_the_groups_it_coordinates() {
    let mut cluster = cluster(2, |_| {});
    let coordinator = cluster.state.coordinator_of("g");
    let mut one = Client::connect(&mut cluster, coordinator);
    let mut other = Client::connect(&mut cluster, 3 - coordinator);
    one.ask(&mut cluster, 9, &commit("", -1, &[("t", 0, 1)]));
    assert_eq!(one.ask(&mut cluster, 5, &ListGroupsRequest::default()).groups.len(), 1);
    assert_eq!(other.ask(&mut cluster, 5, &ListGroupsRequest::default()).groups.len(), 0);
}

#[test]
fn a_parked_join_is_answered_when_the_other_member_comes_and_when_time_is_over() {
    let mut cluster = cluster(1, |_| {});
    let mut one = Client::connect(&mut cluster, 1);
    let mut two = Client::connect(&mut cluster, 1);
    let (first, generation) = enter(&mut one, &mut cluster, 9);
    one.ask(&mut cluster, 5, &sync(&first, generation, 5));
    let second = two.ask(&mut cluster, 9, &join("")).member_id.to_string();
    two.send(&mut cluster, 9, &join(&second), Duration::ZERO);
    assert!(two.answer::<JoinGroupRequest>(&mut cluster, 9).is_none());
    let answer = one.ask(&mut cluster, 9, &join(&first));
    assert_eq!((answer.generation_id, answer.members.len()), (2, 2));
    let answer = two.answer::<JoinGroupRequest>(&mut cluster, 9).expect("the round has ended");
    assert_eq!((answer.generation_id, &*answer.leader, answer.members.len()), (2, &*first, 0));
    one.ask(&mut cluster, 5, &sync(&first, 2, 5));
    two.ask(&mut cluster, 5, &sync(&second, 2, 5));
    // Both fall silent; the deadline is the end of their sessions.
    assert_eq!(cluster.deadline(), Some(Duration::from_secs(10)));
    cluster.poll(Duration::from_secs(10));
    let snapshot = cluster.group("g").expect("the group is there");
    assert_eq!((snapshot.state, snapshot.generation, snapshot.members.len()), ("Empty", 3, 0));
    assert_eq!(cluster.deadline(), None);
}

#[test]
fn a_parked_join_is_told_that_the_coordinator_moved() {
    let mut cluster = cluster(3, |_| {});
    let coordinator = cluster.state.coordinator_of("g");
    let mut one = Client::connect(&mut cluster, coordinator);
    let mut two = Client::connect(&mut cluster, coordinator);
    let (first, generation) = enter(&mut one, &mut cluster, 9);
    one.ask(&mut cluster, 5, &sync(&first, generation, 5));
    let second = two.ask(&mut cluster, 9, &join("")).member_id.to_string();
    two.send(&mut cluster, 9, &join(&second), Duration::ZERO);
    cluster.move_coordinator("g");
    let answer = two.answer::<JoinGroupRequest>(&mut cluster, 9).expect("an answer");
    assert_eq!(answer.error_code, ResponseError::NotCoordinator.code());
    let coordinator = cluster.state.coordinator_of("g");
    let mut one = Client::connect(&mut cluster, coordinator);
    let beat = HeartbeatRequest::default().with_group_id(group()).with_member_id(text(&first));
    let beat = beat.with_generation_id(generation);
    assert_eq!(one.ask(&mut cluster, 4, &beat).error_code, ResponseError::RebalanceInProgress.code());
}

#[test]
fn hooks_reach_the_group() {
    let mut cluster = cluster(1, |_| {});
    let mut client = Client::connect(&mut cluster, 1);
    let (id, generation) = enter(&mut client, &mut cluster, 9);
    client.ask(&mut cluster, 5, &sync(&id, generation, 5));
    client.ask(&mut cluster, 9, &commit(&id, generation, &[("t", 1, 4)]));
    let snapshot = cluster.group("g").expect("the group is there");
    assert_eq!((snapshot.state, snapshot.leader.as_deref()), ("Stable", Some(&*id)));
    assert_eq!(snapshot.members[&id], "share");
    assert_eq!(snapshot.committed[&("t".to_owned(), 1)], 4);
    cluster.force_rebalance("g");
    assert_eq!(cluster.group("g").expect("the group is there").state, "PreparingRebalance");
    cluster.expire_member("g", &id);
    assert_eq!(cluster.group("g").expect("the group is there").state, "Empty");
}

#[test]
fn nobody_expires_while_all_nodes_are_down() {
    let mut cluster = cluster(1, |_| {});
    let mut client = Client::connect(&mut cluster, 1);
    let (id, generation) = enter(&mut client, &mut cluster, 9);
    client.ask(&mut cluster, 5, &sync(&id, generation, 5));
    cluster.stop_node(1, Duration::ZERO);
    assert_eq!(cluster.deadline(), None);
    cluster.poll(Duration::from_secs(100));
    cluster.start_node(1, Duration::from_secs(100));
    assert_eq!(cluster.group("g").expect("the group is there").state, "Stable");
    assert_eq!(cluster.deadline(), Some(Duration::from_secs(110)));
}

fn transactional(producer: i64, epoch: i16, offset: i64) -> TxnOffsetCommitRequest {
    let partition = |index| {
        let partition = TxnOffsetCommitRequestPartition::default().with_partition_index(index);
        partition.with_committed_offset(offset).with_committed_metadata(Some(text("note")))
    };
    let topics = TxnOffsetCommitRequestTopic::default().with_name(topic("t"));
    TxnOffsetCommitRequest::default()
        .with_transactional_id(TransactionalId(text("mover")))
        .with_group_id(group())
        .with_producer_id(ProducerId(producer))
        .with_producer_epoch(epoch)
        .with_topics(vec![topics.with_partitions(vec![partition(0), partition(9)])])
}

#[test]
fn offsets_of_a_transaction_count_when_it_is_committed() {
    for step in 0..=4 {
        let mut cluster = cluster(1, |_| {});
        let mut client = Client::connect(&mut cluster, 1);
        let id = TransactionalId(text("mover"));
        let init = InitProducerIdRequest::default().with_transaction_timeout_ms(60_000);
        let init = init.with_transactional_id(Some(id.clone()));
        let producer = client.ask(&mut cluster, 4, &init);
        let (pid, epoch) = (producer.producer_id, producer.producer_epoch);
        let version = version::<TxnOffsetCommitRequest>(step);
        let put = |client: &mut Client, cluster: &mut Cluster, epoch, offset| {
            let answer = client.ask(cluster, version, &transactional(pid.0, epoch, offset));
            let partitions = answer.topics[0].partitions.iter();
            partitions.map(|partition| partition.error_code).collect::<Vec<i16>>()
        };
        let not_added = if version >= 4 { 120 } else { 48 };
        assert_eq!(put(&mut client, &mut cluster, epoch, 5), [not_added; 2]);
        for (commits, offset, expected) in [(true, 5, 5), (false, 6, 5)] {
            let add = AddOffsetsToTxnRequest::default().with_transactional_id(id.clone());
            let add = add.with_producer_id(pid).with_producer_epoch(epoch).with_group_id(group());
            assert_eq!(client.ask(&mut cluster, 3, &add).error_code, 0);
            assert_eq!(put(&mut client, &mut cluster, epoch + 1, offset), [47; 2]);
            assert_eq!(put(&mut client, &mut cluster, epoch, offset), [0, 3]);
            assert!(cluster.group("g").expect("the group was made").has_pending);
            assert_eq!(fetch(&mut client, &mut cluster, 7, true).2, 88);
            assert_eq!(fetch(&mut client, &mut cluster, 9, true).2, 88);
            assert_eq!(fetch(&mut client, &mut cluster, 9, false).2, 0);
            let end = EndTxnRequest::default().with_transactional_id(id.clone()).with_committed(commits);
            let end = end.with_producer_id(pid).with_producer_epoch(epoch);
            assert_eq!(client.ask(&mut cluster, 3, &end).error_code, 0);
            assert_eq!(fetch(&mut client, &mut cluster, 9, true), (expected, "note".to_owned(), 0, 0));
        }
    }
}

#[test]
fn offsets_are_deleted_by_request_and_with_their_topic() {
    let mut cluster = cluster(1, |_| {});
    let mut client = Client::connect(&mut cluster, 1);
    client.ask(&mut cluster, 9, &commit("", -1, &[("t", 0, 1), ("t", 1, 2)]));
    let partition = |index| OffsetDeleteRequestPartition::default().with_partition_index(index);
    let named = OffsetDeleteRequestTopic::default().with_name(topic("t"));
    let request = OffsetDeleteRequest::default().with_group_id(group());
    let request = request.with_topics(vec![named.with_partitions(vec![partition(0), partition(9)])]);
    let answer = client.ask(&mut cluster, 0, &request);
    let deleted: Vec<i16> = answer.topics[0].partitions.iter().map(|found| found.error_code).collect();
    assert_eq!((answer.error_code, deleted), (0, vec![0, 3]));
    let committed = |cluster: &Cluster| cluster.group("g").expect("the group is there").committed;
    assert_eq!(committed(&cluster).len(), 1);
    let delete = DeleteTopicsRequest::default().with_topic_names(vec![topic("t")]);
    client.ask(&mut cluster, 5, &delete);
    assert_eq!(committed(&cluster).len(), 0);
    let answer = client.ask(&mut cluster, 0, &request.with_group_id(GroupId(text("none"))));
    assert_eq!((answer.error_code, answer.topics.len()), (69, 0));
}

#[test]
fn all_offsets_are_told_where_no_topic_is_named() {
    let mut cluster = cluster(1, |_| {});
    let mut client = Client::connect(&mut cluster, 1);
    client.ask(&mut cluster, 9, &commit("", -1, &[("t", 1, 2), ("t", 0, 1)]));
    let answer =
        client.ask(&mut cluster, 7, &OffsetFetchRequest::default().with_group_id(group()).with_topics(None));
    let offsets: Vec<i64> = answer.topics[0].partitions.iter().map(|found| found.committed_offset).collect();
    assert_eq!((answer.topics.len(), offsets), (1, vec![1, 2]));
}
