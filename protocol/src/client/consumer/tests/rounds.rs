//! Rebalances, row by row of "What happens when" in the design.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::JoinGroupRequest;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;

use super::world::{World, config};
use super::{ms, wire};
use crate::api::{Api, Request, text};
use crate::error::code;
use crate::group::Assignor;
use crate::metadata::TopicPartition;

const EAGER: &[Assignor] = &[Assignor::Range];
const COOPERATIVE: &[Assignor] = &[Assignor::CooperativeSticky];

/// Members with records in every partition; each works every 20 ms.
fn group_of(members: usize, assignors: &[Assignor], drain: Duration) -> World {
    let mut world = World::new(7);
    for partition in 0..6 {
        (0..20).for_each(|_| world.cluster.log("t", partition).append(3));
    }
    for _ in 0..members {
        world.join(config(assignors), ms(20), drain);
    }
    world.run_until("first assignment", 5_000, |world| {
        let owned: usize = world.clients.iter().map(|client| client.owner.parts.len()).sum();
        owned == 6 && world.clients.iter().all(|client| client.consumer.is_settled())
    });
    world.run(1);
    world
}

impl World {
    /// The requests of a client from `from` on, by API, with generation where it has one.
    pub(super) fn sent(&self, client: usize, from: Duration) -> Vec<(Duration, Api, i32)> {
        let ours = self.cluster.seen.iter().filter(|(at, who, _)| *at >= from && *who == client);
        ours.map(|(at, _, request)| {
            let generation = match request {
                Request::OffsetCommit(request) => request.generation_id_or_member_epoch,
                Request::Heartbeat(request) => request.generation_id,
                Request::SyncGroup(request) => request.generation_id,
                _ => -1,
            };
            (*at, request.api(), generation)
        })
        .collect()
    }

    pub(super) fn first(&self, client: usize, from: Duration, api: Api) -> Option<(Duration, i32)> {
        let mut sent = self.sent(client, from).into_iter();
        sent.find(|(_, other, _)| *other == api).map(|(at, _, generation)| (at, generation))
    }

    pub(super) fn count(&self, client: usize, from: Duration, api: Api) -> usize {
        self.sent(client, from).into_iter().filter(|(_, other, _)| *other == api).count()
    }

    fn generation(&self, client: usize) -> i32 {
        self.clients[client].consumer.generation()
    }

    fn member_id(&self, client: usize) -> String {
        self.clients[client].consumer.membership.identity().member_id.clone()
    }
}

#[test]
fn an_eager_rebalance_drains_and_commits_before_it_joins() {
    // CASES 5
    let mut world = group_of(1, EAGER, ms(300));
    let from = world.now;
    world.join(config(EAGER), ms(20), ms(300));
    world.run_until("a second generation", 5_000, |world| world.generation(0) == 2);
    let owner = &world.clients[0].owner;
    let (revoke, _) = owner.said(from, "revoke 6").expect("told to drain");
    let (revoked, _) = owner.said(from, "revoked 6").expect("told to fence");
    let sent = world.sent(0, revoke);
    let commit = sent.iter().rfind(|(at, api, _)| *api == Api::OffsetCommit && *at <= revoked);
    let (join, _) = world.first(0, revoke, Api::JoinGroup).expect("joins");
    let (commit, _, generation) = *commit.expect("commits what was drained");
    assert!(revoke + ms(290) < commit && commit < revoked && revoked < join, "{sent:?}");
    assert_eq!(generation, 1);
}

#[test]
fn a_cooperative_rebalance_joins_at_once_and_kept_partitions_never_pause() {
    // CASES 5
    let mut world = group_of(1, COOPERATIVE, ms(300));
    let from = world.now;
    world.join(config(COOPERATIVE), ms(20), ms(300));
    world.run_until("three are given up", 5_000, |world| world.clients[1].owner.parts.len() == 3);
    let owner = &world.clients[0].owner;
    let (revoke, _) = owner.said(from, "revoke 3").expect("told to drain");
    let (revoked, _) = owner.said(from, "revoked 3").expect("told to fence");
    let joins: Vec<Duration> =
        world.sent(0, from).iter().filter(|(_, api, _)| *api == Api::JoinGroup).map(|(at, ..)| *at).collect();
    assert!(joins[0] < revoke && revoked < joins[1], "{joins:?}");
    let (commit, generation) = world.first(0, revoke + ms(290), Api::OffsetCommit).expect("commits");
    assert!(commit < revoked, "committed before it is fenced");
    assert_eq!(generation, 2, "under the generation that is now current");
    // Nothing of what was kept was begun again.
    assert_eq!(owner.log.iter().filter(|(at, text)| *at >= from && text.contains('@')).count(), 0);
}

#[test]
fn a_drain_that_takes_too_long_ends_at_its_limit_with_heartbeats_throughout() {
    // CASES 6
    let mut world = group_of(1, EAGER, ms(60_000));
    let from = world.now;
    world.join(config(EAGER), ms(20), ms(0));
    world.run_until("a second generation", 9_000, |world| world.generation(0) == 2);
    let (revoke, _) = world.clients[0].owner.said(from, "revoke 6").expect("told to drain");
    let (join, _) = world.first(0, revoke, Api::JoinGroup).expect("joins");
    assert!(revoke + ms(2_900) < join && join < revoke + ms(5_100), "{join:?}");
    assert!(world.count(0, revoke, Api::Heartbeat) >= 5);
}

#[test]
fn commits_are_held_from_the_join_answer_to_the_sync_answer() {
    let mut world = group_of(2, COOPERATIVE, ms(0));
    // The leader vanishes before it assigns: the other one waits with its sync, for the leader's session.
    let (leader, follower) =
        if world.clients[0].consumer.membership.led_topics().is_some() { (0, 1) } else { (1, 0) };
    world.clients[leader].consumer.membership.want_rejoin();
    world.turn(leader);
    world.run_until("a join of the leader", 1_000, |world| {
        world.clients[leader].consumer.membership.is_rebalancing()
    });
    world.run_until("the follower's join is answered", 3_000, |world| {
        world.clients[follower].consumer.membership.is_between_join_and_sync()
            || world.clients[follower].consumer.generation() == 2
    });
    world.kill(leader);
    // The follower goes on with what it keeps, so that there is something to be held.
    (0..6).for_each(|partition| world.cluster.log("t", partition).append(3));
    world.answer_all();
    world.run(1_000);
    let consumer = &world.clients[follower].consumer;
    assert!(consumer.membership.is_between_join_and_sync() && !consumer.committer.is_idle());
    world.run(20_000);
    // The world has checked every commit on its way.
    assert!(world.clients[follower].owner.parts.len() == 6, "{}", world.story());
}

#[test]
fn a_member_that_is_unknown_has_lost_everything_and_begins_anew() {
    // CASES 6: error 25
    let mut world = group_of(1, COOPERATIVE, ms(0));
    let (from, id) = (world.now, world.member_id(0));
    let now = world.now;
    world.cluster.group.remove(&id, now);
    world.answer_all();
    world.run_until("a new member", 5_000, |world| world.clients[0].owner.said(from, "assigned").is_some());
    let (lost, text) = world.clients[0].owner.said(from, "lost").expect("lost");
    assert_eq!(text, "lost 6 UnknownMember");
    let (at, generation) = world.first(0, lost, Api::OffsetCommit).unwrap_or((super::NEVER, 2));
    assert!(generation >= 1, "no commit without a generation at {at:?}");
    let joined = world.cluster.seen.iter().find_map(|(at, _, request)| match request {
        Request::JoinGroup(request) if *at > lost => Some(request.member_id.to_string()),
        _ => None,
    });
    assert_eq!(joined.as_deref(), Some(""));
    assert_ne!(world.member_id(0), id);
}

#[test]
fn a_generation_that_went_on_is_lost_and_joined_again_under_the_same_id() {
    // Error 22
    let mut world = group_of(1, COOPERATIVE, ms(0));
    let (from, id) = (world.now, world.member_id(0));
    world.cluster.refuse(Api::Heartbeat, code::ILLEGAL_GENERATION, 1);
    world.run_until("lost", 2_000, |world| world.clients[0].owner.said(from, "lost").is_some());
    world.run_until("assigned again", 5_000, |world| world.clients[0].owner.parts.len() == 6);
    assert_eq!(world.member_id(0), id);
}

#[test]
fn a_fenced_instance_ends() {
    // Error 82
    let mut world = group_of(1, COOPERATIVE, ms(0));
    world.cluster.refuse(Api::Heartbeat, code::FENCED_INSTANCE_ID, 1);
    world.run(2_000);
    let fatal = world.clients[0].owner.fatal.clone().expect("fatal");
    assert!(fatal.contains("FENCED_INSTANCE_ID"), "{fatal}");
    let from = world.now;
    world.run(2_000);
    assert_eq!(world.count(0, from, Api::JoinGroup) + world.count(0, from, Api::OffsetCommit), 0);
}

#[test]
fn a_commit_refused_by_a_rebalance_neither_stalls_nor_loses() {
    // CASES 7
    for assignors in [EAGER, COOPERATIVE] {
        let mut world = group_of(1, assignors, ms(0));
        let from = world.now;
        world.cluster.refuse(Api::OffsetCommit, code::REBALANCE_IN_PROGRESS, 1_000);
        world.run_until("a second generation", 6_000, |world| {
            world.first(0, from, Api::SyncGroup).is_some() && world.clients[0].owner.parts.len() == 6
        });
        world.cluster.refusals.clear();
        let (sync, _) = world.first(0, from, Api::SyncGroup).expect("synced");
        for partition in 0..6 {
            world.cluster.log("t", partition).append(5);
        }
        world.answer_all();
        world.run_until("the rest is committed", 5_000, World::is_converged);
        let (fetch, _) = world.first(0, sync, Api::Fetch).expect("fetches");
        assert!(fetch < sync + ms(1_000));
        assert_eq!(world.clients[0].owner.said(from, "lost"), None);
    }
}

#[test]
fn without_heartbeat_answers_the_lease_ends_and_nothing_else() {
    let mut world = group_of(1, COOPERATIVE, ms(0));
    let from = world.now;
    world.cluster.refuse(Api::FindCoordinator, code::COORDINATOR_NOT_AVAILABLE, 1_000);
    world.cluster.refuse(Api::Heartbeat, code::NOT_COORDINATOR, 1_000);
    world.run(8_000);
    let lease = world.clients[0].consumer.lease_until().expect("had a lease");
    assert!(lease < world.now, "no record may be started any more");
    assert_eq!(world.clients[0].owner.said(from, "lost"), None, "the tracker is kept");
    // The group forgot the member meanwhile: that is for the coordinator to say.
    world.cluster.refusals.clear();
    world.run_until("lost", 3_000, |world| world.clients[0].owner.said(from, "lost 6").is_some());
    world.run_until("and back", 5_000, World::is_converged);
}

#[test]
fn a_process_that_was_stopped_starts_nothing_and_commits_nothing_of_what_others_have() {
    let mut world = group_of(2, COOPERATIVE, ms(0));
    world.clients[1].owner.pace = ms(1_000);
    for partition in 0..6 {
        (0..20).for_each(|_| world.cluster.log("t", partition).append(3));
    }
    world.answer_all();
    world.run(300);
    let from = world.now;
    world.stop_process(1, 20_000);
    world.run_until("the other has all", 15_000, |world| world.clients[0].owner.parts.len() == 6);
    world.run(18_000);
    assert_eq!(world.clients[1].owner.said(from, "lost").map(|(_, text)| text), Some("lost 3 UnknownMember"));
    world.run_until("shared again", 10_000, World::is_converged);
}

#[test]
fn nothing_is_handed_out_twice_when_the_coordinator_moves_in_any_phase() {
    for after_ms in (0..60).step_by(3) {
        let mut world = group_of(2, COOPERATIVE, ms(0));
        let from = world.now;
        world.join(config(COOPERATIVE), ms(20), ms(0));
        world.run(after_ms);
        world.move_coordinator(2);
        if after_ms % 2 == 0 {
            world.set_node(1, false);
        }
        world.run(3_000);
        world.set_node(1, true);
        world.run_until("convergence", 30_000, World::is_converged);
        for client in 0..2 {
            let owner = &world.clients[client].owner;
            assert_eq!(owner.said(from, "lost"), None, "after {after_ms} ms\n{}", world.story());
        }
    }
}

#[test]
fn a_round_that_is_pending_at_a_silent_coordinator_is_begun_anew_at_the_next() {
    let mut world = group_of(2, COOPERATIVE, ms(0));
    world.join(config(COOPERATIVE), ms(20), ms(0));
    world
        .run_until("a join is pending", 2_000, |world| world.clients[0].consumer.membership.is_rebalancing());
    // The old coordinator neither answers nor closes; heartbeats find the new one.
    world.cluster.coordinator = 3;
    world.cluster.group.forget_tickets();
    world.cluster.group.fail_over(world.now);
    let now = world.now;
    world.run_until("members go on", 4_000, |world| world.generation(0) > 1 && world.generation(1) > 1);
    // One that is not a member yet hears nothing, and waits as long as a join may take.
    world.run_until("convergence", 20_000, World::is_converged);
    assert!(world.clients.iter().all(|client| client.owner.said(now, "lost").is_none()));
}

#[test]
fn a_cut_connection_costs_no_assignment() {
    for assignors in [EAGER, COOPERATIVE] {
        let mut world = group_of(2, assignors, ms(0));
        let from = world.now;
        world.cut(|_, _| true);
        world.run(5_000);
        world.set_node(1, false);
        world.run(500);
        world.set_node(1, true);
        world.run_until("convergence", 20_000, World::is_converged);
        for client in &world.clients {
            assert_eq!(client.owner.said(from, "lost"), None);
            assert_eq!(client.owner.said(from, "assigned"), None);
        }
    }
}

#[test]
fn added_partitions_and_found_topics_begin_a_new_round() {
    let mut world = World::new(3);
    let mut both = config(COOPERATIVE);
    both.group.topics.push("u".to_owned());
    world.join(both, ms(20), ms(0));
    world.run_until("t", 5_000, |world| world.clients[0].owner.parts.len() == 6);
    assert!(!world.clients[0].consumer.has_all_topics());
    // A topic that nobody knew is looked for.
    world.cluster.create("u", 2, 2);
    world.run_until("u", 5_000, |world| world.clients[0].owner.parts.len() == 8);
    assert!(world.clients[0].owner.said(Duration::ZERO, "found u").is_some());
    let mut topic = world.cluster.topics["t"].clone();
    topic.logs.push(topic.logs[0].clone());
    world.cluster.topics.insert("t".to_owned(), topic);
    let now = world.now;
    world.clients[0].consumer.net().want_metadata(now);
    world.run_until("t/6", 5_000, |world| world.clients[0].owner.parts.len() == 9);
}

#[test]
fn an_unknown_moment_of_a_topic_begins_no_round() {
    let mut world = group_of(1, COOPERATIVE, ms(0));
    let from = world.now;
    for code in [code::LEADER_NOT_AVAILABLE, code::UNKNOWN_TOPIC_OR_PARTITION] {
        world.cluster.refuse(Api::Metadata, code, 2);
        let now = world.now;
        world.clients[0].consumer.net().want_metadata(now);
        world.turn(0);
        world.run(4_000);
    }
    assert_eq!(world.count(0, from, Api::JoinGroup), 0);
    assert!(world.is_converged());
}

#[test]
fn a_member_that_cannot_be_read_is_named() {
    let mut world = World::new(5);
    world.join(config(COOPERATIVE), ms(20), ms(0));
    world.run_until("t", 5_000, |world| world.clients[0].owner.parts.len() == 6);
    let mut odd = JoinGroupRequest::default()
        .with_session_timeout_ms(60_000)
        .with_rebalance_timeout_ms(60_000)
        .with_protocols(vec![
            JoinGroupRequestProtocol::default()
                .with_name(text("cooperative-sticky"))
                .with_metadata(Bytes::from_static(b"\0\x01")),
        ]);
    let now = world.now;
    world.cluster.group.join(&odd, wire::Ticket::nobody(), now);
    odd.member_id = text(&world.cluster.group.newest_id());
    world.cluster.group.join(&odd, wire::Ticket::nobody(), now);
    world.run_until("a notice", 5_000, |world| !world.clients[0].owner.notices.is_empty());
    let notice = &world.clients[0].owner.notices[0];
    assert!(notice.contains(odd.member_id.as_str()) && notice.contains("subscribed topics"), "{notice}");
    world.run(1_000);
    assert_eq!(world.clients[0].owner.parts.len(), 6, "the odd one gets nothing");
}

#[test]
fn a_claim_lost_during_the_join_is_given_out_again() {
    // Two rounds pass while the answers to one member are lost: what it claimed is withheld until it joins again.
    let mut world = group_of(2, COOPERATIVE, ms(0));
    let from = world.now;
    for round in 2..5 {
        world.clients[0].consumer.membership.want_rejoin();
        world.turn(0);
        world.run_until("a round", 3_000, |world| {
            world.clients.iter().all(|c| c.consumer.generation() == round && c.consumer.is_settled())
        });
    }
    world.clients[1].consumer.membership.set_generation_for_test(2);
    world.clients[1].consumer.membership.want_rejoin();
    world.turn(1);
    world.run_until("convergence", 10_000, |world| {
        world.clients[1].owner.said(from, "lost 3 Generation").is_some() && world.is_converged()
    });
    assert!(world.cluster.committed.contains_key(&TopicPartition::new("t", 0)));
}
