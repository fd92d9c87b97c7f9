//! Stop, drain, commit, leave: from every state the end comes in time.

use std::time::Duration;

use super::super::Event;
use super::ms;
use super::world::{World, config};
use crate::api::Api;
use crate::error::code;
use crate::group::Assignor;

fn reader() -> World {
    let mut world = World::new(13);
    for partition in 0..6 {
        (0..20).for_each(|_| world.cluster.log("t", partition).append(3));
    }
    world.join(config(&[Assignor::CooperativeSticky]), ms(20), ms(0));
    world.run_until("work", 5_000, |world| !world.clients[0].owner.done_max.is_empty());
    world
}

#[test]
fn the_end_commits_and_leaves() {
    let mut world = reader();
    let from = world.now;
    world.close(0, 3_000);
    world.run(500);
    assert_eq!(world.clients[0].owner.closed, Some(true));
    let (commit, _) = world.first(0, from, Api::OffsetCommit).expect("a last commit");
    let (leave, _) = world.first(0, from, Api::LeaveGroup).expect("leaves");
    assert!(commit < leave);
    for (at, done) in &world.clients[0].owner.done_max {
        assert_eq!(world.cluster.committed[at].0, *done);
    }
}

#[test]
fn a_static_member_does_not_leave() {
    let mut world = World::new(13);
    let mut fixed = config(&[Assignor::CooperativeSticky]);
    fixed.group.instance_id = Some("one".to_owned());
    world.join(fixed, ms(20), ms(0));
    world.run_until("assigned", 5_000, |world| world.clients[0].owner.parts.len() == 6);
    world.close(0, 3_000);
    world.run(500);
    assert_eq!(world.clients[0].owner.closed, Some(true));
    assert_eq!(world.count(0, Duration::ZERO, Api::LeaveGroup), 0);
}

#[test]
fn an_end_that_comes_at_once_is_told_at_once() {
    let mut world = World::new(13);
    world.join(config(&[Assignor::CooperativeSticky]), ms(20), ms(0));
    let (consumer, now) = (&mut world.clients[0].consumer, world.now);
    consumer.stop();
    consumer.close([], now + ms(3_000), now);
    // Nobody is waited for: an owner that slept now would not wake up.
    assert_eq!(consumer.deadline(), Some(Duration::ZERO));
    assert!(matches!(consumer.next_event(), Some(Event::Closed { committed: true })));
}

#[test]
fn the_end_comes_at_any_moment_of_the_start() {
    for after_ms in 0..250 {
        let mut world = World::new(after_ms);
        world.delay_ms = (2, 5);
        world.join(config(&[Assignor::CooperativeSticky]), ms(20), ms(0));
        world.run(after_ms);
        world.close(0, 3_000);
        world.run(1_500);
        assert!(world.clients[0].owner.closed.is_some(), "after {after_ms} ms\n{}", world.story());
    }
}

#[test]
fn the_end_comes_at_any_moment_of_a_rebalance() {
    for after_ms in (0..700).step_by(11) {
        let mut world = reader();
        world.join(config(&[Assignor::CooperativeSticky]), ms(20), ms(200));
        world.run(after_ms);
        let from = world.now;
        world.close(0, 3_000);
        world.run(3_500);
        assert_eq!(world.clients[0].owner.closed, Some(true), "after {after_ms} ms\n{}", world.story());
        assert_eq!(world.count(0, from + ms(10), Api::JoinGroup), 0, "after {after_ms} ms");
        world.run_until("the other has all", 20_000, |world| world.clients[1].owner.parts.len() == 6);
    }
}

#[test]
fn the_end_comes_at_its_limit_without_a_coordinator() {
    let mut world = reader();
    world.cluster.refuse(Api::FindCoordinator, code::COORDINATOR_NOT_AVAILABLE, 1_000);
    world.cluster.refuse(Api::OffsetCommit, code::NOT_COORDINATOR, 1_000);
    world.run(500);
    let from = world.now;
    world.close(0, 3_000);
    world.run_until("closed", 4_200, |world| world.clients[0].owner.closed.is_some());
    assert_eq!(world.clients[0].owner.closed, Some(false));
    assert!(world.now >= from + ms(3_000));
}

#[test]
fn the_end_waits_for_a_coordinator_that_comes_back() {
    let mut world = reader();
    (1..=3).for_each(|node| world.set_node(node, false));
    world.run(200);
    world.close(0, 5_000);
    world.run(1_000);
    (1..=3).for_each(|node| world.set_node(node, true));
    world.run_until("closed", 4_500, |world| world.clients[0].owner.closed.is_some());
    assert_eq!(world.clients[0].owner.closed, Some(true));
    assert!(world.count(0, Duration::ZERO, Api::LeaveGroup) == 1);
}

#[test]
fn a_hopeless_last_commit_is_not_tried_until_the_limit() {
    let mut world = reader();
    // The member stands outside a round, and its generation is over.
    let now = world.now;
    world.clients[0].consumer.membership.want_rejoin();
    world.cluster.refuse(Api::JoinGroup, code::COORDINATOR_LOAD_IN_PROGRESS, 1);
    world.turn(0);
    world.run_until("out", 1_000, |world| world.clients[0].consumer.membership.is_out());
    world.cluster.refuse(Api::OffsetCommit, code::ILLEGAL_GENERATION, 1_000);
    world.close(0, 30_000);
    world.run_until("closed", 3_000, |world| world.clients[0].owner.closed.is_some());
    assert_eq!(world.clients[0].owner.closed, Some(false));
    assert!(world.now < now + ms(3_000));
}

#[test]
fn what_is_lost_at_the_end_does_not_count_as_committed() {
    let mut world = reader();
    world.cluster.refuse(Api::OffsetCommit, code::UNKNOWN_MEMBER_ID, 10);
    world.close(0, 3_000);
    world.run(1_500);
    assert_eq!(world.clients[0].owner.closed, Some(false));
}
