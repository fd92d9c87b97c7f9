//! Rounds and the timers that end them.

use super::*;

#[test]
fn the_initial_delay_collects_members_and_grows_with_each() {
    let mut bench = Bench::with_delay(3000);
    let (_, first) = bench.enter(asks());
    bench.wait(2000);
    let (_, second) = bench.enter(asks());
    bench.wait(1000);
    assert!(bench.is_parked(first), "a member arrived, so the delay begins again");
    bench.wait(3000);
    assert_eq!((bench.joined(first).generation, bench.joined(second).generation), (1, 1));
    assert_eq!(bench.joined(first).members.len(), 2);
}

#[test]
fn the_initial_delay_ends_with_the_rebalance_timeout() {
    let mut bench = Bench::with_delay(3000);
    let (_, first) = bench.enter(Joining { rebalance_ms: 7000, ..asks() });
    for _ in 0..6 {
        bench.wait(1000);
        bench.enter(Joining { rebalance_ms: 7000, ..asks() });
    }
    bench.wait(999);
    assert!(bench.is_parked(first));
    bench.enter(Joining { rebalance_ms: 7000, ..asks() });
    bench.wait(4000);
    assert_eq!(bench.joined(first).generation, 1);
}

#[test]
fn members_that_do_not_come_back_in_time_are_out() {
    let mut bench = Bench::new();
    let ids = bench.stable(3);
    let generation = bench.generation();
    let tickets = [bench.join(asks_as(&ids[0])), bench.join(asks_as(&ids[1]))];
    for _ in 0..REBALANCE_MS / 5000 {
        assert!(bench.is_parked(tickets[0]));
        assert_eq!(bench.beat(&ids[2], generation), Err(ResponseError::RebalanceInProgress));
        bench.wait(5000);
    }
    assert_eq!(bench.joined(tickets[0]).members.len(), 2);
    assert_eq!(bench.joined(tickets[1]).generation, generation + 1);
    assert_eq!(bench.beat(&ids[2], generation), Err(ResponseError::UnknownMemberId));
}

#[test]
fn the_most_patient_member_sets_the_rebalance_timeout() {
    let mut bench = Bench::new();
    let (slow, _) = bench.enter(Joining { rebalance_ms: 30_000, session_ms: 60_000, ..asks() });
    let (_, quick) = bench.enter(Joining { rebalance_ms: 1000, ..asks() });
    bench.wait(29_999);
    assert!(bench.is_parked(quick));
    bench.wait(1);
    assert_eq!(bench.joined(quick).members.len(), 1);
    assert_eq!(bench.beat(&slow, 1), Err(ResponseError::UnknownMemberId));
}

#[test]
fn a_leader_that_stays_away_is_followed_by_the_oldest_who_came() {
    let mut bench = Bench::new();
    let ids = bench.stable(3);
    let second = bench.join(Joining { protocols: protocols(&["range", "x"]), ..asks_as(&ids[1]) });
    let third = bench.join(asks_as(&ids[2]));
    bench.wait(SESSION_MS as u64);
    assert_eq!(bench.joined(second).leader, ids[1]);
    assert_eq!(bench.joined(third).leader, ids[1]);
    assert!(bench.joined(third).members.is_empty());
}

#[test]
fn a_silent_member_is_out_and_the_others_share_anew() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let generation = bench.generation();
    bench.wait(6000);
    assert_eq!(bench.beat(&ids[0], generation), Ok(()));
    bench.wait(4000);
    assert_eq!(bench.state(), "PreparingRebalance");
    assert_eq!(bench.beat(&ids[1], generation), Err(ResponseError::UnknownMemberId));
    let ticket = bench.join(asks_as(&ids[0]));
    assert_eq!(bench.joined(ticket).members.len(), 1);
}

#[test]
fn every_request_of_a_member_keeps_it_alive() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let generation = bench.generation();
    for _ in 0..3 {
        bench.wait(9000);
        assert_eq!(bench.beat(&ids[0], generation), Ok(()));
        assert!(bench.groups.commits(&claim(&ids[1], generation), 9, bench.now).is_ok());
        bench.wait(9000);
        assert_eq!(bench.beat(&ids[0], generation), Ok(()));
        bench.join(asks_as(&ids[1]));
        bench.wait(9000);
        assert_eq!(bench.beat(&ids[0], generation), Ok(()));
        bench.sync(&ids[1], generation);
    }
    assert_eq!(bench.state(), "Stable");
}

#[test]
fn a_member_that_waits_in_a_join_does_not_expire() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let generation = bench.generation();
    let ticket = bench.join(asks_as(&ids[0]));
    for _ in 0..5 {
        bench.wait(9000);
        assert_eq!(bench.beat(&ids[1], generation), Err(ResponseError::RebalanceInProgress));
    }
    assert!(bench.is_parked(ticket));
    bench.join(asks_as(&ids[1]));
    assert_eq!(bench.joined(ticket).members.len(), 2);
    // Its session begins with the answer.
    bench.wait(9000);
    assert_eq!(bench.beat(&ids[0], generation + 1), Ok(()));
}

#[test]
fn a_new_member_whose_round_does_not_end_is_sent_away() {
    let mut bench = Bench::new();
    let asked = Joining { rebalance_ms: 1_000_000, ..asks() };
    let (old, _) = bench.enter(asked.clone());
    bench.sync(&old, 1);
    let (_, ticket) = bench.enter(asked);
    for _ in 0..60 {
        assert!(bench.is_parked(ticket));
        assert_eq!(bench.beat(&old, 1), Err(ResponseError::RebalanceInProgress));
        bench.wait(5000);
    }
    assert_eq!(bench.refused(ticket), (ResponseError::UnknownMemberId, String::new()));
}

#[test]
fn an_empty_round_ends_in_an_empty_group() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    bench.wait(SESSION_MS as u64);
    assert_eq!((bench.state(), bench.groups.deadline()), ("Empty", None));
    let ticket = bench.join(asks_as(&ids[0]));
    assert_eq!(bench.refused(ticket).0, ResponseError::UnknownMemberId);
}

#[test]
fn members_that_leave_begin_one_rebalance() {
    let mut bench = Bench::new();
    let ids = bench.stable(3);
    let generation = bench.generation();
    let leaving = [
        Leaving { member: &ids[0], instance: None },
        Leaving { member: "nobody", instance: None },
        Leaving { member: &ids[1], instance: None },
        Leaving { member: "", instance: Some("nobody") },
        Leaving { member: "", instance: None },
    ];
    let unknown = Err(ResponseError::UnknownMemberId);
    let left = bench.groups.leave("g", &leaving, bench.now);
    assert_eq!(left, Ok(vec![Ok(()), unknown, Ok(()), unknown, unknown]));
    let ticket = bench.join(asks_as(&ids[2]));
    let joined = bench.joined(ticket);
    assert_eq!((joined.generation, joined.leader), (generation + 1, ids[2].clone()));
}

#[test]
fn a_member_that_leaves_ends_the_wait_for_it() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let ticket = bench.join(asks_as(&ids[0]));
    assert_eq!(bench.leave(&ids[1]), Ok(()));
    assert_eq!(bench.joined(ticket).members.len(), 1);
    let again = bench.join(asks_as(&ids[0]));
    assert!(!bench.is_parked(again));
    assert_eq!(bench.leave(&ids[0]), Ok(()));
    assert_eq!(bench.state(), "Empty");
}

#[test]
fn what_a_member_waits_for_ends_when_it_leaves() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let join = bench.join(asks_as(&ids[0]));
    assert_eq!(bench.leave(&ids[0]), Ok(()));
    assert_eq!(bench.refused(join), (ResponseError::UnknownMemberId, String::new()));
    let (new, _) = bench.enter(asks());
    bench.join(asks_as(&ids[1]));
    let generation = bench.generation();
    let sync = bench.sync(&new, generation);
    assert!(bench.is_parked(sync));
    assert_eq!(bench.leave(&new), Ok(()));
    assert_eq!(bench.synced(sync), Err(ResponseError::UnknownMemberId));
}

#[test]
fn an_id_that_was_given_out_can_be_given_back() {
    let mut bench = Bench::new();
    let ids = bench.stable(1);
    let pending = bench.join(asks());
    let (_, pending) = bench.refused(pending);
    let ticket = bench.join(asks_as(&ids[0]));
    assert!(bench.is_parked(ticket));
    assert_eq!(bench.leave(&pending), Ok(()));
    assert_eq!(bench.joined(ticket).generation, 2);
    assert_eq!(bench.leave(&pending), Err(ResponseError::UnknownMemberId));
}

#[test]
fn hooks_force_what_tests_want() {
    let mut bench = Bench::new();
    assert!(!bench.groups.force_rebalance("g", bench.now));
    let ids = bench.stable(2);
    let generation = bench.generation();
    assert!(bench.groups.force_rebalance("g", bench.now));
    assert_eq!(bench.beat(&ids[0], generation), Err(ResponseError::RebalanceInProgress));
    let ticket = bench.join(asks_as(&ids[0]));
    assert!(bench.groups.expire("g", &ids[1], bench.now));
    bench.collect();
    assert_eq!(bench.joined(ticket).members.len(), 1);
    assert!(!bench.groups.expire("g", &ids[1], bench.now));
}
