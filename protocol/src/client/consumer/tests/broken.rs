//! What cannot be read on ends in good order; where the log is another one, so is its end.

use std::time::Duration;

use super::super::Reset;
use super::logs::{at, reader, recreate};
use super::ms;
use super::world::{World, config};
use crate::api::Api;
use crate::error::code;
use crate::group::Assignor;

/// A reader with finished records that are not committed yet, refused from now on.
fn refused(api: Api, refused: i16) -> (World, Duration) {
    let mut world = reader(|_| {});
    let from = world.now;
    (0..6).for_each(|partition| world.cluster.log("t", partition).append(3));
    world.answer_all();
    world.run(10);
    world.cluster.refuse(api, refused, 1_000);
    (0..6).for_each(|partition| world.cluster.log("t", partition).append(3));
    world.answer_all();
    (world, from)
}

#[test]
fn a_topic_that_may_not_be_read_any_more_ends_with_a_commit_and_a_leave() {
    for api in [Api::Fetch, Api::Metadata] {
        let (mut world, from) = refused(api, code::TOPIC_AUTHORIZATION_FAILED);
        let now = world.now;
        world.clients[0].consumer.net().want_metadata(now);
        world.turn(0);
        world.run(3_000);
        let owner = &world.clients[0].owner;
        assert_eq!(owner.fatal, None, "{api}");
        assert!(owner.heard_broken("TOPIC_AUTHORIZATION_FAILED"), "{api}");
        assert!(owner.broken <= 6, "{api}: told {} times", owner.broken);
        let fetches = world.count(0, now + ms(2_000), Api::Fetch);
        assert_eq!(fetches, 0, "{api}");
        assert!(world.count(0, from, Api::Heartbeat) >= 4, "{api}: it is a member still");
        world.close(0, 3_000);
        world.run(500);
        let owner = &world.clients[0].owner;
        assert_eq!((owner.closed, world.count(0, from, Api::LeaveGroup)), (Some(true), 1), "{api}");
        for (at, done) in &owner.done_max {
            assert!(*done >= 60 && world.cluster.committed[at].0 == *done, "{api}: {at}");
        }
    }
}

#[test]
fn a_start_that_is_refused_ends_with_a_leave_and_no_spin() {
    let mut world = World::new(9);
    world.cluster.refuse(Api::ListOffsets, code::TOPIC_AUTHORIZATION_FAILED, 1_000);
    let mut to_the_end = config(&[Assignor::CooperativeSticky]);
    to_the_end.want_end = true;
    world.join(to_the_end, ms(20), ms(0));
    world.run(5_000);
    let owner = &world.clients[0].owner;
    assert_eq!((&owner.fatal, world.count(0, Duration::ZERO, Api::Fetch)), (&None, 0));
    assert!(owner.heard_broken("TOPIC_AUTHORIZATION_FAILED"));
    assert!(world.count(0, Duration::ZERO, Api::ListOffsets) <= 12);
    world.close(0, 3_000);
    world.run(500);
    assert_eq!(world.clients[0].owner.closed, Some(true));
    assert_eq!(world.count(0, Duration::ZERO, Api::LeaveGroup), 1);
}

#[test]
fn a_commit_that_is_denied_for_its_topic_ends_with_a_leave() {
    let (mut world, from) = refused(Api::OffsetCommit, code::TOPIC_AUTHORIZATION_FAILED);
    world.run_until("told", 2_000, |world| {
        world.clients[0].owner.heard_broken("OffsetCommit of t/0: refused: TOPIC_AUTHORIZATION_FAILED")
    });
    world.close(0, 3_000);
    world.run(500);
    let owner = &world.clients[0].owner;
    assert_eq!((&owner.fatal, owner.closed), (&None, Some(false)));
    assert_eq!(world.count(0, from, Api::LeaveGroup), 1);
}

#[test]
fn what_waits_for_the_start_of_a_new_log_is_forgotten_when_that_is_refused() {
    let mut world = reader(|config| config.recreated = Reset::Earliest);
    world.clients[0].owner.stuck = true;
    let from = world.now;
    world.cluster.refuse(Api::ListOffsets, code::TOPIC_AUTHORIZATION_FAILED, 1_000);
    recreate(&mut world, 10);
    world.run(3_000);
    assert!(world.clients[0].owner.heard_broken("TOPIC_AUTHORIZATION_FAILED"));
    // The owner has it as before: another round would hand it out a second time.
    let joins = world.count(0, from, Api::JoinGroup);
    world.join(config(&[Assignor::CooperativeSticky]), ms(20), ms(0));
    world.run(3_000);
    assert_eq!(world.count(0, from, Api::JoinGroup), joins);
    world.close(0, 1_000);
    world.run(500);
    assert_eq!(world.count(0, from, Api::OffsetCommit), 0, "the offsets of the old log");
    assert_eq!(world.count(0, from, Api::LeaveGroup), 1);
}

#[test]
fn a_topic_made_again_ends_where_the_new_one_ends() {
    let mut world = reader(|config| (config.recreated, config.want_end) = (Reset::Earliest, true));
    assert_eq!(world.clients[0].owner.parts[&at(0)].end, Some(60));
    world.may_fall = true;
    recreate(&mut world, 10);
    world.cluster.committed.clear();
    world.run_until("the new topic", 8_000, World::is_converged);
    (0..6).for_each(|partition| world.cluster.log("t", partition).append(3));
    world.answer_all();
    world.run(2_000);
    let own = &world.clients[0].owner.parts[&at(0)];
    assert_eq!((own.end, own.fetched, own.done), (Some(7), 7, 7));
}

#[test]
fn a_log_that_was_cut_ends_where_it_ends_now() {
    let mut world = reader(|config| config.want_end = true);
    world.may_fall = true;
    let from = world.now;
    let log = world.cluster.log("t", 0);
    log.cut(30, 2);
    log.append(3);
    world.answer_all();
    let now = world.now;
    world.clients[0].consumer.net().want_metadata(now);
    world.run_until("moved", 5_000, |world| world.clients[0].owner.said(from, "moved").is_some());
    world.run_until("the new end", 5_000, World::is_converged);
    let own = &world.clients[0].owner.parts[&at(0)];
    assert_eq!((own.end, own.fetched, own.done), (Some(33), 33, 33));
}
