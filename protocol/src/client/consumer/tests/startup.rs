//! From nothing to the first record: passing errors must neither end in an empty assignment nor skip records.

use std::time::Duration;

use super::super::StartFrom;
use super::world::{World, config};
use super::{NEVER, ms};
use crate::api::{Api, Request};
use crate::error::code;
use crate::group::Assignor;
use crate::metadata::TopicPartition;

fn world() -> World {
    let mut world = World::new(11);
    for partition in 0..6 {
        world.cluster.log("t", partition).append(50);
    }
    world
}

fn fetched_from(world: &World, partition: i32) -> Option<i64> {
    world.cluster.seen.iter().find_map(|(_, _, request)| match request {
        Request::Fetch(request) => request
            .topics
            .iter()
            .flat_map(|topic| &topic.partitions)
            .find(|asked| asked.partition == partition)
            .map(|asked| asked.fetch_offset),
        _ => None,
    })
}

#[test]
fn passing_errors_at_startup_are_waited_out() {
    let passing = [
        (Api::Metadata, code::LEADER_NOT_AVAILABLE),
        (Api::Metadata, code::UNKNOWN_TOPIC_OR_PARTITION),
        (Api::FindCoordinator, code::COORDINATOR_NOT_AVAILABLE),
        (Api::FindCoordinator, code::COORDINATOR_LOAD_IN_PROGRESS),
        (Api::JoinGroup, code::NOT_COORDINATOR),
        (Api::JoinGroup, code::COORDINATOR_LOAD_IN_PROGRESS),
        (Api::SyncGroup, code::NOT_COORDINATOR),
        (Api::SyncGroup, code::COORDINATOR_LOAD_IN_PROGRESS),
        (Api::SyncGroup, code::REBALANCE_IN_PROGRESS),
        (Api::OffsetFetch, code::UNSTABLE_OFFSET_COMMIT),
        (Api::OffsetFetch, code::NOT_COORDINATOR),
        (Api::OffsetFetch, code::COORDINATOR_LOAD_IN_PROGRESS),
        (Api::ListOffsets, code::NOT_LEADER_OR_FOLLOWER),
        (Api::ListOffsets, code::UNKNOWN_TOPIC_OR_PARTITION),
        (Api::ListOffsets, code::OFFSET_NOT_AVAILABLE),
        (Api::Fetch, code::NOT_LEADER_OR_FOLLOWER),
        (Api::Fetch, code::UNKNOWN_TOPIC_ID),
        (Api::Fetch, code::UNKNOWN_LEADER_EPOCH),
    ];
    for (api, code) in passing {
        let mut world = world();
        world.cluster.refuse(api, code, 3);
        world.cluster.committed.insert(TopicPartition::new("t", 0), (42, 0));
        world.join(config(&[Assignor::Range]), ms(20), ms(0));
        world.run_until(&format!("{api} {code}"), 8_000, World::is_converged);
        let owner = &world.clients[0].owner;
        assert_eq!((owner.fatal.as_ref(), fetched_from(&world, 0)), (None, Some(42)), "{api} {code}");
        assert_eq!(fetched_from(&world, 1), Some(0), "{api} {code}");
    }
}

#[test]
fn an_open_transaction_is_waited_for_and_only_then_is_the_start_known() {
    // CASES 13
    let mut world = world();
    world.cluster.committed.insert(TopicPartition::new("t", 0), (42, 0));
    world.cluster.refuse(Api::OffsetFetch, code::UNSTABLE_OFFSET_COMMIT, 40);
    let mut latest = config(&[Assignor::Range]);
    latest.from = StartFrom::Latest;
    world.join(latest, ms(20), ms(0));
    world.run(2_000);
    assert_eq!(world.count(0, Duration::ZERO, Api::Fetch), 0);
    assert!(!world.clients[0].consumer.is_settled());
    world.run_until("the start", 5_000, |world| fetched_from(world, 0).is_some());
    world.run(500);
    assert_eq!((fetched_from(&world, 0), fetched_from(&world, 1)), (Some(42), Some(50)));
}

#[test]
fn an_unknown_error_of_offset_fetch_ends_without_a_fetch() {
    // CASES 13
    let mut world = world();
    world.cluster.refuse(Api::OffsetFetch, 999, 1);
    world.join(config(&[Assignor::Range]), ms(20), ms(0));
    world.run(3_000);
    assert!(world.clients[0].owner.fatal.is_some());
    assert_eq!(world.count(0, Duration::ZERO, Api::Fetch), 0);
}

#[test]
fn a_leader_that_saw_no_topic_assigns_again_when_it_comes() {
    for followers in 0..3 {
        let mut world = world();
        let topics = std::mem::take(&mut world.cluster.topics);
        for _ in 0..=followers {
            world.join(config(&[Assignor::CooperativeSticky]), ms(20), ms(0));
        }
        world.run(3_000);
        assert!(!world.clients[0].consumer.has_all_topics());
        world.cluster.topics = topics;
        world.run_until("the topic", 8_000, World::is_converged);
        assert!(world.clients[0].consumer.has_all_topics());
    }
}

#[test]
fn a_topic_that_stays_away_is_asked_for_about_once_a_second() {
    let mut world = world();
    world.cluster.topics.clear();
    world.join(config(&[Assignor::CooperativeSticky]), ms(20), ms(0));
    world.run(5_000);
    let from = world.now;
    world.run(10_000);
    let asked = world.count(0, from, Api::Metadata);
    assert!((8..=14).contains(&asked), "{asked}");
}

#[test]
fn the_end_is_known_before_a_partition_is_announced() {
    let mut world = world();
    let mut to_the_end = config(&[Assignor::Range]);
    to_the_end.want_end = true;
    world.cluster.refuse(Api::ListOffsets, code::NOT_LEADER_OR_FOLLOWER, 5);
    world.join(to_the_end, ms(20), ms(0));
    world.run_until("all of it", 8_000, World::is_converged);
    // What comes later is not fetched.
    world.cluster.log("t", 0).append(5);
    world.answer_all();
    world.run(2_000);
    let at = TopicPartition::new("t", 0);
    assert_eq!(world.clients[0].owner.parts[&at].fetched, 50);
}

#[test]
fn one_partition_without_a_start_holds_up_the_others_for_half_a_second() {
    let mut world = world();
    world.cluster.log("t", 5).leader = 77;
    world.join(config(&[Assignor::Range]), ms(20), ms(0));
    world.run_until("five", 3_000, |world| world.clients[0].owner.parts.len() == 5);
    assert!(!world.clients[0].consumer.is_settled());
    world.cluster.log("t", 5).leader = 3;
    world.run_until("the sixth", 3_000, |world| world.clients[0].owner.parts.len() == 6);
    assert!(world.clients[0].owner.said(NEVER, "").is_none());
}
