//! Describing and deleting groups and offsets.

use keylane_protocol::group::subscription::Subscription;

use super::*;

fn subscribes(topic: &str) -> Vec<(String, Bytes)> {
    let subscription = Subscription { topics: vec![topic.to_owned()], ..Subscription::default() };
    vec![("range".to_owned(), subscription.encode())]
}

fn put(bench: &mut Bench, topic: &str) {
    let mut commits = bench.groups.commits(&claim("", -1), 9, bench.now).expect("no members");
    let committed = Committed { offset: 1, leader_epoch: -1, metadata: String::new() };
    commits.put(topic, 0, committed).expect("short metadata");
}

#[test]
fn only_a_stable_group_shows_metadata_and_assignments() {
    let mut bench = Bench::new();
    let (id, _) = bench.enter(asks());
    let view = bench.groups.describe("g").expect("the group is there");
    assert_eq!((view.state, view.protocol_type, view.protocol), ("CompletingRebalance", "consumer", ""));
    assert_eq!((view.members[0].metadata.len(), view.members[0].client_host), (0, "/127.0.0.1"));
    bench.sync_with(&id, 1, &[(&id, "all")]);
    let view = bench.groups.describe("g").expect("the group is there");
    assert_eq!((view.state, view.protocol, view.leader), ("Stable", "range", Some(&*id)));
    let member = &view.members[0];
    assert_eq!((member.id, member.client_id, member.instance), (&*id, "c", None));
    assert_eq!((&*member.metadata, &*member.assignment), (&b"m"[..], &b"all"[..]));
    assert_eq!(bench.groups.list().count(), 1);
}

#[test]
fn a_group_is_deleted_with_its_offsets_once_it_is_empty() {
    let mut bench = Bench::new();
    assert_eq!(bench.groups.delete("g"), Err(ResponseError::GroupIdNotFound));
    put(&mut bench, "t");
    let ids = bench.stable(1);
    assert_eq!(bench.groups.delete("g"), Err(ResponseError::NonEmptyGroup));
    bench.leave(&ids[0]).expect("it is in");
    assert_eq!(bench.groups.delete("g"), Ok(()));
    assert_eq!((bench.state(), bench.groups.committed("g", "t", 0)), ("Dead", None));
}

#[test]
fn an_id_given_out_by_a_deleted_group_is_unknown() {
    let mut bench = Bench::new();
    let ticket = bench.join(asks());
    let (_, id) = bench.refused(ticket);
    assert_eq!(bench.groups.delete("g"), Ok(()));
    let ticket = bench.join(asks_as(&id));
    assert_eq!(bench.refused(ticket).0, ResponseError::UnknownMemberId);
    bench.wait(60_000);
    assert_eq!(bench.groups.deadline(), None);
}

#[test]
fn offsets_that_members_read_cannot_be_deleted() {
    let mut bench = Bench::new();
    put(&mut bench, "read");
    put(&mut bench, "old");
    let (id, _) = bench.enter(Joining { protocols: subscribes("read"), ..asks() });
    bench.sync(&id, 1);
    assert_eq!(bench.groups.may_delete_offsets("g"), Ok(()));
    assert_eq!(bench.groups.delete_offset("g", "read", 0), Err(ResponseError::GroupSubscribedToTopic));
    assert_eq!(bench.groups.delete_offset("g", "old", 0), Ok(()));
    assert_eq!(bench.groups.delete_offset("g", "never", 0), Ok(()));
    assert_eq!(bench.groups.committed("g", "old", 0), None);
    bench.leave(&id).expect("it is in");
    assert_eq!(bench.groups.delete_offset("g", "read", 0), Ok(()));
}

#[test]
fn offsets_of_members_that_cannot_be_understood_stay() {
    let mut bench = Bench::new();
    put(&mut bench, "t");
    bench.stable(1);
    assert_eq!(bench.groups.delete_offset("g", "t", 0), Err(ResponseError::GroupSubscribedToTopic));
    let asked = Joining { group: "other".to_owned(), protocol_type: "connect".to_owned(), ..asks() };
    bench.enter(asked);
    assert_eq!(bench.groups.may_delete_offsets("other"), Err(ResponseError::NonEmptyGroup));
    assert_eq!(bench.groups.may_delete_offsets("none"), Err(ResponseError::GroupIdNotFound));
    assert_eq!(bench.groups.may_delete_offsets(""), Err(ResponseError::InvalidGroupId));
}
