//! Static membership (KIP-345, KIP-814).

use super::*;

/// A stable group of two static members, "a" (leads) and "b". Their ids.
fn stable_pair(bench: &mut Bench) -> [String; 2] {
    let a = bench.join(asks_static("a"));
    let a = bench.joined(a).member;
    let b = bench.join(asks_static("b"));
    bench.join(Joining { member: a.clone(), ..asks_static("a") });
    let b = bench.joined(b).member;
    let generation = bench.generation();
    bench.sync_with(&a, generation, &[(&a, "for a"), (&b, "for b")]);
    bench.sync(&b, generation);
    assert_eq!(bench.state(), "Stable");
    [a, b]
}

#[test]
fn no_second_join_is_asked_of_a_static_member() {
    let mut bench = Bench::new();
    let ticket = bench.join(asks_static("a"));
    let joined = bench.joined(ticket);
    assert!(joined.member.starts_with("a-"));
    assert_eq!(joined.members[0].instance.as_deref(), Some("a"));
}

#[test]
fn a_follower_that_restarts_gets_its_share_back_without_a_rebalance() {
    let mut bench = Bench::new();
    let [a, old] = stable_pair(&mut bench);
    let generation = bench.generation();
    let ticket = bench.join(asks_static("b"));
    let joined = bench.joined(ticket);
    assert_ne!(joined.member, old);
    assert_eq!((joined.generation, joined.leader, joined.skip_assignment), (generation, a, false));
    let sync = bench.sync(&joined.member, generation);
    assert_eq!(bench.synced(sync).expect("synced"), "for b");
    assert_eq!(bench.state(), "Stable");
    assert_eq!(bench.beat(&old, generation), Err(ResponseError::UnknownMemberId));
    let claim = Claim { instance: Some("b"), ..claim(&old, generation) };
    assert_eq!(bench.groups.heartbeat(&claim, bench.now), Err(ResponseError::FencedInstanceId));
}

#[test]
fn a_leader_that_restarts_is_told_to_skip_the_assignment() {
    let mut bench = Bench::new();
    let [old, b] = stable_pair(&mut bench);
    let ticket = bench.join(asks_static("a"));
    let joined = bench.joined(ticket);
    assert!(joined.skip_assignment);
    assert_eq!(joined.leader, joined.member);
    assert_ne!(joined.member, old);
    assert!(joined.members.iter().any(|member| member.id == b));
    assert_eq!(bench.state(), "Stable");
}

#[test]
fn a_leader_too_old_for_that_is_shown_the_old_leader() {
    let mut bench = Bench::new();
    let [old, _] = stable_pair(&mut bench);
    let ticket = bench.join(Joining { version: 8, ..asks_static("a") });
    let joined = bench.joined(ticket);
    assert_eq!((joined.leader, joined.skip_assignment, joined.members), (old, false, Vec::new()));
    assert_eq!(bench.groups.describe("g").and_then(|group| group.leader), Some(&*joined.member));
}

#[test]
fn a_restart_that_changes_the_protocol_begins_a_rebalance() {
    let mut bench = Bench::new();
    let asked = || Joining { protocols: protocols(&["x", "y"]), ..asks_static("a") };
    let ticket = bench.join(asked());
    let id = bench.joined(ticket).member;
    let sync = Syncing {
        ticket: 0,
        group: "g".to_owned(),
        member: id,
        instance: Some("a".to_owned()),
        generation: 1,
        protocol_type: None,
        protocol: None,
        assignments: Vec::new(),
    };
    bench.send_sync(sync);
    let ticket = bench.join(Joining { protocols: protocols(&["y", "x"]), ..asks_static("a") });
    let joined = bench.joined(ticket);
    assert_eq!((joined.generation, joined.protocol.as_str()), (2, "y"));
}

#[test]
fn a_restart_between_join_and_sync_begins_a_rebalance_and_fences_the_parked_sync() {
    let mut bench = Bench::new();
    let [a, b] = stable_pair(&mut bench);
    bench.join(Joining { member: a.clone(), ..asks_static("a") });
    bench.join(Joining { member: b.clone(), ..asks_static("b") });
    assert_eq!(bench.state(), "CompletingRebalance");
    let generation = bench.generation();
    let sync = bench.sync(&b, generation);
    let restarted = bench.join(asks_static("b"));
    assert_eq!(bench.synced(sync), Err(ResponseError::FencedInstanceId));
    assert!(bench.is_parked(restarted));
    assert_eq!(bench.state(), "PreparingRebalance");
    bench.join(Joining { member: a, ..asks_static("a") });
    assert_eq!(bench.joined(restarted).generation, generation + 1);
}

#[test]
fn a_restart_during_a_round_fences_the_parked_join() {
    let mut bench = Bench::new();
    let [a, _] = stable_pair(&mut bench);
    let parked = bench.join(Joining { member: a.clone(), ..asks_static("a") });
    let restarted = bench.join(asks_static("a"));
    assert_eq!(bench.refused(parked), (ResponseError::FencedInstanceId, a));
    assert!(bench.is_parked(restarted));
    // It knows no id yet, but it took a member's place: it does not expire while it waits.
    bench.wait(SESSION_MS as u64);
    assert_eq!(bench.joined(restarted).members.len(), 1, "b was silent");
}

#[test]
fn an_instance_id_in_use_is_fenced_and_an_unknown_one_refused() {
    let mut bench = Bench::new();
    let [a, _] = stable_pair(&mut bench);
    let impostor = bench.join(Joining { member: "x".to_owned(), ..asks_static("a") });
    assert_eq!(bench.refused(impostor).0, ResponseError::FencedInstanceId);
    let unknown = bench.join(Joining { member: a, ..asks_static("c") });
    assert_eq!(bench.refused(unknown).0, ResponseError::UnknownMemberId);
}

#[test]
fn an_id_that_was_given_out_is_not_for_static_members() {
    let mut bench = Bench::new();
    let pending = bench.join(asks());
    let (_, id) = bench.refused(pending);
    let ticket = bench.join(Joining { member: id, ..asks_static("a") });
    assert_eq!(bench.refused(ticket).0, ResponseError::UnknownMemberId);
}

#[test]
fn a_static_member_that_misses_the_round_stays_until_its_session_ends() {
    let mut bench = Bench::new();
    let asked = |instance| Joining { session_ms: 100_000, ..asks_static(instance) };
    let a = bench.join(asked("a"));
    let a = bench.joined(a).member;
    let b = bench.join(asked("b"));
    bench.wait(REBALANCE_MS as u64);
    let joined = bench.joined(b);
    assert_eq!(joined.members.len(), 2, "a is still assigned to");
    assert_eq!(joined.leader, joined.member, "but does not lead any more");
    bench.sync(&joined.member, joined.generation);
    assert_eq!(bench.state(), "Stable");
    // Its session began anew with the generation, but it must sync in that.
    bench.wait(REBALANCE_MS as u64);
    let claim = Claim { instance: Some("a"), ..claim(&a, joined.generation) };
    assert_eq!(bench.groups.heartbeat(&claim, bench.now), Err(ResponseError::UnknownMemberId));
    assert_eq!(bench.state(), "PreparingRebalance");
}

#[test]
fn a_round_in_which_only_absent_static_members_are_left_goes_on() {
    let mut bench = Bench::new();
    let asked = |instance| Joining { session_ms: 100_000, ..asks_static(instance) };
    let a = bench.join(asked("a"));
    let a = bench.joined(a).member;
    bench.groups.force_rebalance("g", bench.now);
    bench.wait(REBALANCE_MS as u64 + 1000);
    assert_eq!((bench.state(), bench.generation()), ("PreparingRebalance", 1));
    let ticket = bench.join(Joining { member: a, ..asked("a") });
    assert_eq!(bench.joined(ticket).generation, 2);
}

#[test]
fn an_administrator_removes_by_instance_id() {
    let mut bench = Bench::new();
    let [a, b] = stable_pair(&mut bench);
    let leaving = [
        Leaving { member: "", instance: Some("a") },
        Leaving { member: &a, instance: Some("b") },
        Leaving { member: &b, instance: Some("c") },
    ];
    let outcomes = bench.groups.leave("g", &leaving, bench.now).expect("a group id");
    let expected = [Ok(()), Err(ResponseError::FencedInstanceId), Err(ResponseError::UnknownMemberId)];
    assert_eq!(outcomes, expected);
    assert_eq!(bench.state(), "PreparingRebalance");
}
