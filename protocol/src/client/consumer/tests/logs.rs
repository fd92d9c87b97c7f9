//! Leaders that move, logs that are cut, topics that are made again, replicas, damage.

use std::time::Duration;

use super::super::Reset;
use super::ms;
use super::world::{World, config};
use crate::api::{Api, Request};
use crate::client::consumer::ConsumerConfig;
use crate::group::Assignor;
use crate::metadata::TopicPartition;

pub(super) fn at(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

/// One member at the end of six partitions with 60 records in batches of 3.
pub(super) fn reader(change: impl FnOnce(&mut ConsumerConfig)) -> World {
    let mut world = World::new(9);
    for partition in 0..6 {
        (0..20).for_each(|_| world.cluster.log("t", partition).append(3));
    }
    let mut config = config(&[Assignor::CooperativeSticky]);
    change(&mut config);
    world.join(config, ms(20), ms(0));
    world.run_until("the end", 10_000, World::is_converged);
    world.run(200);
    world
}

#[test]
fn a_leader_that_moves_is_followed_at_the_position() {
    let mut world = reader(|_| {});
    let from = world.now;
    for round in 0..3 {
        world.cluster.log("t", 0).lead(2 + round % 2);
        world.cluster.log("t", 0).append(3);
        world.answer_all();
        world.run_until("the rest", 3_000, World::is_converged);
    }
    assert!(world.count(0, from, Api::OffsetForLeaderEpoch) >= 3, "each new epoch is validated");
    assert_eq!(world.clients[0].owner.said(from, ""), None, "nobody noticed");
}

#[test]
fn a_log_cut_by_an_unclean_election_is_followed_to_where_it_parts() {
    let mut world = reader(|_| {});
    world.may_fall = true;
    let from = world.now;
    world.cluster.log("t", 0).cut(30, 2);
    world.cluster.log("t", 0).append(3);
    world.answer_all();
    world.run_until("moved", 5_000, |world| world.clients[0].owner.said(from, "moved").is_some());
    let (_, text) = world.clients[0].owner.said(from, "moved").expect("moved");
    assert!(text.starts_with("moved t/0 to 30 back true"), "{text}");
    world.run_until("the new end", 5_000, World::is_converged);
}

#[test]
fn a_position_below_the_log_goes_to_its_start_and_says_how_many_are_gone() {
    let mut world = reader(|_| {});
    let from = world.now;
    world.clients[0].owner.stuck = true;
    world.set_node(1, false);
    let log = world.cluster.log("t", 0);
    (0..20).for_each(|_| log.append(3));
    log.retain_from(90);
    world.set_node(1, true);
    world.answer_all();
    world.run_until("moved", 5_000, |world| world.clients[0].owner.said(from, "moved").is_some());
    let (_, text) = world.clients[0].owner.said(from, "moved").expect("moved");
    assert!(text.starts_with("moved t/0 to 90 back false: 30 records"), "{text}");
}

#[test]
fn a_position_below_the_log_ends_where_that_is_asked_for() {
    let mut world = reader(|config| config.out_of_range = Reset::Fail);
    world.set_node(1, false);
    let log = world.cluster.log("t", 0);
    (0..20).for_each(|_| log.append(3));
    log.retain_from(90);
    world.set_node(1, true);
    world.run(3_000);
    assert!(world.clients[0].owner.heard_broken("t/0@60"));
}

#[test]
fn a_position_inside_the_log_that_is_refused_is_tried_again() {
    let mut world = reader(|_| {});
    let from = world.now;
    world.cluster.refuse(Api::Fetch, crate::error::code::OFFSET_OUT_OF_RANGE, 5);
    world.run(2_000);
    (0..6).for_each(|partition| world.cluster.log("t", partition).append(3));
    world.answer_all();
    world.run_until("the rest", 5_000, World::is_converged);
    assert_eq!(world.clients[0].owner.said(from, "moved"), None);
}

pub(super) fn recreate(world: &mut World, away_ms: u64) {
    world.cluster.topics.clear();
    let now = world.now;
    world.clients[0].consumer.net().want_metadata(now);
    world.run(away_ms);
    world.cluster.create("t", 6, 2);
    (0..6).for_each(|partition| world.cluster.log("t", partition).append(7));
    world.answer_all();
}

#[test]
fn a_topic_made_again_gets_no_commit_of_the_old_one() {
    // CASES 12, also where the topic was seen to be away between.
    for away_ms in [0, 10, 1_500] {
        let mut world = reader(|_| {});
        world.clients[0].owner.stuck = true;
        let from = world.now;
        recreate(&mut world, away_ms);
        world.clients[0].owner.stuck = false;
        world.run(4_000);
        assert!(world.clients[0].owner.heard_broken("made again"));
        world.close(0, 1_000);
        world.run(2_000);
        assert_eq!(world.count(0, from, Api::OffsetCommit), 0);
        let requests = world.sent(0, from + ms(2_000)).len();
        assert!(requests < 5 * 4, "{requests}");
    }
}

#[test]
fn a_topic_made_again_is_read_from_its_start_where_that_is_asked_for() {
    for away_ms in [0, 1_500] {
        let mut world = reader(|config| config.recreated = Reset::Earliest);
        world.may_fall = true;
        let from = world.now;
        recreate(&mut world, away_ms);
        world.cluster.committed.clear();
        world.run_until("the new topic", 8_000, World::is_converged);
        let (moved, text) = world.clients[0].owner.said(from, "moved t/0").expect("moved");
        assert!(text.starts_with("moved t/0 to 0 back true"), "{text}");
        assert!(world.first(0, from, Api::OffsetCommit).is_some_and(|(commit, _)| commit > moved));
    }
}

#[test]
fn a_topic_that_is_gone_ends_after_its_time_without_a_commit() {
    let mut world = reader(|_| {});
    (0..6).for_each(|partition| world.cluster.log("t", partition).append(3));
    world.answer_all();
    world.clients[0].owner.stuck = true;
    world.run(100);
    world.cluster.topics.clear();
    let now = world.now;
    world.clients[0].consumer.net().want_metadata(now);
    world.run(500);
    let from = world.now;
    world.clients[0].owner.stuck = false;
    world.run(3_000);
    assert_eq!((world.clients[0].owner.broken, world.count(0, from, Api::OffsetCommit)), (0, 0));
    world.run(4_000);
    assert!(world.clients[0].owner.heard_broken("gone"));
    world.close(0, 1_000);
    world.run(500);
    // Nothing is waited for: there is nothing to commit to.
    assert_eq!(world.clients[0].owner.closed, Some(true));
    assert_eq!(world.count(0, from, Api::OffsetCommit), 0);
}

#[test]
fn damage_ends_a_partition_behind_what_is_sound() {
    // CASES 17
    let mut world = World::new(9);
    for partition in 0..6 {
        (0..3).for_each(|_| world.cluster.log("t", partition).append(3));
    }
    // The magic byte of the last batch.
    let (_, _, batch) = &mut world.cluster.log("t", 0).batches[2];
    let mut bytes = batch.to_vec();
    bytes[16] = 9;
    *batch = bytes.into();
    world.join(config(&[Assignor::Range]), ms(20), ms(0));
    world.run(3_000);
    let owner = &world.clients[0].owner;
    assert_eq!((owner.broken, owner.parts[&at(0)].done, owner.parts[&at(1)].done), (1, 6, 9));
    assert_eq!(world.cluster.committed[&at(0)].0, 6);
    assert!(owner.said(Duration::ZERO, "Fetch of t/0@6").is_some(), "{:?}", owner.log);
}

/// A bit makes records look like a marker, which nobody opens: they were passed, and committed.
#[test]
fn damage_that_looks_like_a_marker_is_damage() {
    let mut world = World::new(9);
    (0..3).for_each(|_| world.cluster.log("t", 0).append(3));
    let (_, _, batch) = &mut world.cluster.log("t", 0).batches[1];
    let mut bytes = batch.to_vec();
    // The low byte of the attributes: control.
    bytes[22] |= 1 << 5;
    *batch = bytes.into();
    world.join(config(&[Assignor::Range]), ms(20), ms(0));
    world.run(3_000);
    let owner = &world.clients[0].owner;
    assert_eq!((owner.broken, owner.parts[&at(0)].done), (1, 3));
    assert_eq!(world.cluster.committed[&at(0)].0, 3);
}

#[test]
fn a_replica_that_the_leader_names_is_read_and_left_when_it_is_down() {
    let mut world = reader(|_| {});
    world.cluster.log("t", 0).preferred = Some(2);
    let from = world.now;
    for _ in 0..3 {
        world.run(600);
        world.cluster.log("t", 0).append(3);
        world.answer_all();
    }
    world.run_until("the rest", 3_000, World::is_converged);
    assert_eq!(world.clients[0].consumer.partitions[&at(0)].replica.map(|(node, _)| node), Some(2));
    world.cluster.log("t", 0).preferred = None;
    world.set_node(2, false);
    world.cluster.log("t", 0).append(3);
    world.answer_all();
    let limit = |world: &World| world.cluster.committed[&at(0)].0 == world.cluster.topics["t"].logs[0].end;
    world.run_until("from the leader", 3_000, limit);
    assert!(
        world
            .cluster
            .seen
            .iter()
            .any(|(time, _, request)| { *time > from && matches!(request, Request::Fetch(_)) })
    );
}

#[test]
fn a_session_that_the_broker_forgot_is_made_anew() {
    let mut world = reader(|_| {});
    (1..=3).for_each(|node| world.cluster.sessions.forget(node));
    world.answer_all();
    (0..6).for_each(|partition| world.cluster.log("t", partition).append(3));
    world.answer_all();
    world.run_until("the rest", 3_000, World::is_converged);
}
