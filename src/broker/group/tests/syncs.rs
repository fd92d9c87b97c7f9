//! SyncGroup and Heartbeat.

use super::*;

#[test]
fn followers_wait_for_the_leader() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let generation = bench.generation() + 1;
    bench.join(asks_as(&ids[0]));
    bench.join(asks_as(&ids[1]));
    assert_eq!(bench.beat(&ids[1], generation), Ok(()), "heartbeats are in order between join and sync");
    let follower = bench.sync_with(&ids[1], generation, &[(&ids[1], "not from the leader")]);
    assert!(bench.is_parked(follower));
    let leader = bench.sync_with(&ids[0], generation, &[(&ids[1], "one"), (&ids[0], "zero"), ("gone", "x")]);
    assert_eq!(bench.synced(follower).expect("synced"), "one");
    assert_eq!(bench.synced(leader).expect("synced"), "zero");
    let again = bench.sync(&ids[1], generation);
    assert_eq!(bench.synced(again).expect("synced"), "one");
}

#[test]
fn whom_the_leader_forgets_gets_nothing() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let again = bench.sync(&ids[1], bench.generation());
    assert_eq!(bench.synced(again).expect("synced"), "");
}

#[test]
fn syncs_that_do_not_fit_are_refused() {
    let mut bench = Bench::new();
    let missing = bench.sync("m", 1);
    assert_eq!(bench.synced(missing), Err(ResponseError::UnknownMemberId));
    let ids = bench.stable(1);
    let stranger = bench.sync("nobody", 1);
    assert_eq!(bench.synced(stranger), Err(ResponseError::UnknownMemberId));
    let stale = bench.sync(&ids[0], 0);
    assert_eq!(bench.synced(stale), Err(ResponseError::IllegalGeneration));
    let asked = Syncing {
        ticket: 0,
        group: "g".to_owned(),
        member: ids[0].clone(),
        instance: None,
        generation: 1,
        protocol_type: None,
        protocol: None,
        assignments: Vec::new(),
    };
    let wrong_type = bench.send_sync(Syncing { protocol_type: Some("connect".to_owned()), ..asked.clone() });
    assert_eq!(bench.synced(wrong_type), Err(ResponseError::InconsistentGroupProtocol));
    let wrong_protocol = bench.send_sync(Syncing { protocol: Some("sticky".to_owned()), ..asked.clone() });
    assert_eq!(bench.synced(wrong_protocol), Err(ResponseError::InconsistentGroupProtocol));
    let silent = bench.send_sync(asked.clone());
    assert!(bench.synced(silent).is_ok());
    let nameless = bench.send_sync(Syncing { group: String::new(), ..asked });
    assert_eq!(bench.synced(nameless), Err(ResponseError::InvalidGroupId));
}

#[test]
fn a_rebalance_ends_parked_syncs() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let generation = bench.generation() + 1;
    bench.join(asks_as(&ids[0]));
    bench.join(asks_as(&ids[1]));
    let ticket = bench.sync(&ids[1], generation);
    bench.enter(asks());
    assert_eq!(bench.synced(ticket), Err(ResponseError::RebalanceInProgress));
    let late = bench.sync(&ids[0], generation);
    assert_eq!(bench.synced(late), Err(ResponseError::RebalanceInProgress));
}

#[test]
fn a_sync_that_is_repeated_displaces_the_first() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let generation = bench.generation() + 1;
    bench.join(asks_as(&ids[0]));
    bench.join(asks_as(&ids[1]));
    let first = bench.sync(&ids[1], generation);
    let second = bench.sync(&ids[1], generation);
    assert_eq!(bench.synced(first), Err(ResponseError::RebalanceInProgress));
    bench.sync(&ids[0], generation);
    assert!(bench.synced(second).is_ok());
}

#[test]
fn a_leader_that_never_syncs_is_out_after_the_rebalance_timeout() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let generation = bench.generation() + 1;
    bench.join(asks_as(&ids[0]));
    bench.join(asks_as(&ids[1]));
    let ticket = bench.sync(&ids[1], generation);
    for _ in 0..REBALANCE_MS / 5000 {
        assert!(bench.is_parked(ticket));
        assert_eq!(bench.beat(&ids[0], generation), Ok(()));
        bench.wait(5000);
    }
    assert_eq!(bench.synced(ticket), Err(ResponseError::RebalanceInProgress));
    assert_eq!(bench.beat(&ids[0], generation), Err(ResponseError::UnknownMemberId));
    let ticket = bench.join(asks_as(&ids[1]));
    assert_eq!(bench.joined(ticket).leader, ids[1]);
}

#[test]
fn a_follower_that_never_syncs_is_out_though_the_group_is_stable() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let generation = bench.generation() + 1;
    bench.join(asks_as(&ids[0]));
    bench.join(asks_as(&ids[1]));
    bench.sync(&ids[0], generation);
    for _ in 0..REBALANCE_MS / 5000 {
        assert_eq!(bench.state(), "Stable");
        assert_eq!(bench.beat(&ids[0], generation), Ok(()));
        assert_eq!(bench.beat(&ids[1], generation), Ok(()));
        bench.wait(5000);
    }
    assert_eq!(bench.beat(&ids[1], generation), Err(ResponseError::UnknownMemberId));
    assert_eq!(bench.beat(&ids[0], generation), Err(ResponseError::RebalanceInProgress));
}

#[test]
fn all_syncs_in_time_stop_the_timer() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let generation = bench.generation();
    for _ in 0..30 {
        assert_eq!(bench.beat(&ids[0], generation), Ok(()));
        assert_eq!(bench.beat(&ids[1], generation), Ok(()));
        bench.wait(5000);
    }
    assert_eq!(bench.state(), "Stable");
}

#[test]
fn heartbeats_are_checked() {
    let mut bench = Bench::new();
    assert_eq!(bench.beat("m", 1), Err(ResponseError::UnknownMemberId));
    let ids = bench.stable(1);
    assert_eq!(bench.beat(&ids[0], 1), Ok(()));
    assert_eq!(bench.beat(&ids[0], 2), Err(ResponseError::IllegalGeneration));
    assert_eq!(bench.beat("nobody", 1), Err(ResponseError::UnknownMemberId));
    let nameless = Claim { group: "", ..claim(&ids[0], 1) };
    assert_eq!(bench.groups.heartbeat(&nameless, bench.now), Err(ResponseError::InvalidGroupId));
}
