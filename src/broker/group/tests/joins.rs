//! Who is let in.

use super::*;

#[test]
fn the_first_member_leads_the_first_generation() {
    let mut bench = Bench::new();
    let (id, ticket) = bench.enter(asks());
    let joined = bench.joined(ticket);
    assert_eq!((joined.generation, joined.leader.as_str(), joined.member.as_str()), (1, &*id, &*id));
    assert_eq!((joined.protocol_type.as_str(), joined.protocol.as_str()), ("consumer", "range"));
    assert_eq!(joined.members.len(), 1);
    assert_eq!(joined.members[0].metadata, "m");
    assert_eq!(bench.state(), "CompletingRebalance");
}

#[test]
fn before_version_4_no_second_join_is_asked_for() {
    let mut bench = Bench::new();
    let ticket = bench.join(Joining { version: 3, ..asks() });
    assert_eq!(bench.joined(ticket).generation, 1);
}

#[test]
fn an_id_that_was_given_out_lapses_after_the_session_timeout() {
    let mut bench = Bench::new();
    let ticket = bench.join(asks());
    let (_, id) = bench.refused(ticket);
    assert!(id.starts_with("c-"));
    bench.wait(SESSION_MS as u64);
    let ticket = bench.join(asks_as(&id));
    assert_eq!(bench.refused(ticket), (ResponseError::UnknownMemberId, id));
}

#[test]
fn a_round_waits_for_ids_that_were_given_out() {
    let mut bench = Bench::new();
    let ids = bench.stable(1);
    bench.join(asks());
    let ticket = bench.join(asks_as(&ids[0]));
    assert!(bench.is_parked(ticket));
    bench.wait(SESSION_MS as u64);
    assert_eq!(bench.joined(ticket).generation, 2);
}

#[test]
fn bad_requests_are_refused() {
    let mut bench = Bench::new();
    let mut refusal = |asked: Joining<u32>| {
        let ticket = bench.join(asked);
        bench.refused(ticket).0
    };
    assert_eq!(refusal(Joining { group: String::new(), ..asks() }), ResponseError::InvalidGroupId);
    assert_eq!(refusal(Joining { session_ms: 0, ..asks() }), ResponseError::InvalidSessionTimeout);
    assert_eq!(refusal(Joining { session_ms: 1_800_001, ..asks() }), ResponseError::InvalidSessionTimeout);
    assert_eq!(refusal(asks_as("nobody")), ResponseError::UnknownMemberId);
    let empty = Joining { protocols: Vec::new(), ..asks() };
    assert_eq!(refusal(empty), ResponseError::InconsistentGroupProtocol);
    let untyped = Joining { protocol_type: String::new(), ..asks() };
    assert_eq!(refusal(untyped), ResponseError::InconsistentGroupProtocol);
    assert_eq!(refusal(asks_as("nobody")), ResponseError::UnknownMemberId);
}

#[test]
fn a_member_must_share_type_and_a_protocol_with_all_others() {
    let mut bench = Bench::new();
    bench.stable(1);
    let other_type = bench.join(Joining { protocol_type: "connect".to_owned(), ..asks() });
    assert_eq!(bench.refused(other_type).0, ResponseError::InconsistentGroupProtocol);
    let nothing_shared = bench.join(Joining { protocols: protocols(&["sticky"]), ..asks() });
    assert_eq!(bench.refused(nothing_shared).0, ResponseError::InconsistentGroupProtocol);
    bench.enter(Joining { protocols: protocols(&["sticky", "range"]), ..asks() });
}

#[test]
fn an_emptied_group_takes_another_protocol_type() {
    let mut bench = Bench::new();
    let ids = bench.stable(1);
    assert_eq!(bench.leave(&ids[0]), Ok(()));
    assert_eq!((bench.state(), bench.generation()), ("Empty", 2));
    let asked = Joining { protocol_type: "connect".to_owned(), protocols: protocols(&["x"]), ..asks() };
    let (_, ticket) = bench.enter(asked);
    assert_eq!(bench.joined(ticket).generation, 3);
    assert_eq!(bench.joined(ticket).protocol_type, "connect");
}

#[test]
fn the_protocol_with_most_votes_is_chosen_among_the_common_ones() {
    let mut bench = Bench::with_delay(100);
    for names in [&["a", "b", "x"][..], &["b", "a"], &["y", "b", "a"]] {
        bench.enter(Joining { protocols: protocols(names), ..asks() });
    }
    bench.wait(1000);
    let ticket = bench.tickets;
    assert_eq!(bench.joined(ticket).protocol, "b");
}

#[test]
fn on_equal_votes_the_leader_decides() {
    let mut bench = Bench::with_delay(100);
    for names in [&["z", "a"], &["a", "z"]] {
        bench.enter(Joining { protocols: protocols(names), ..asks() });
    }
    bench.wait(1000);
    let ticket = bench.tickets;
    assert_eq!(bench.joined(ticket).protocol, "z");
}

#[test]
fn a_follower_that_comes_again_unchanged_gets_the_current_generation() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let generation = bench.generation();
    let ticket = bench.join(asks_as(&ids[1]));
    assert_eq!(bench.joined(ticket).generation, generation);
    assert!(bench.joined(ticket).members.is_empty());
    assert_eq!(bench.state(), "Stable");
}

#[test]
fn a_follower_with_new_metadata_begins_a_rebalance() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let ticket = bench.join(Joining { protocols: protocols(&["range", "sticky"]), ..asks_as(&ids[1]) });
    assert!(bench.is_parked(ticket));
    assert_eq!(bench.state(), "PreparingRebalance");
}

#[test]
fn a_leader_that_comes_again_begins_a_rebalance() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let ticket = bench.join(asks_as(&ids[0]));
    assert!(bench.is_parked(ticket));
    assert_eq!(bench.beat(&ids[1], bench.generation()), Err(ResponseError::RebalanceInProgress));
    bench.join(asks_as(&ids[1]));
    assert_eq!(bench.joined(ticket).members.len(), 2);
}

#[test]
fn between_join_and_sync_an_unchanged_join_gets_the_same_answer() {
    let mut bench = Bench::new();
    let (id, first) = bench.enter(asks());
    let second = bench.join(asks_as(&id));
    assert_eq!(bench.joined(first), bench.joined(second));
    let changed = bench.join(Joining { protocols: protocols(&["range", "sticky"]), ..asks_as(&id) });
    assert_eq!(bench.joined(changed).generation, 2);
}

#[test]
fn a_join_that_is_repeated_displaces_the_first() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let first = bench.join(asks_as(&ids[0]));
    let second = bench.join(asks_as(&ids[0]));
    assert_eq!(bench.refused(first).0, ResponseError::RebalanceInProgress);
    assert!(bench.is_parked(second));
}

#[test]
fn version_0_waits_as_long_as_the_session() {
    let mut bench = Bench::new();
    let first = bench.join(Joining { version: 0, rebalance_ms: -1, ..asks() });
    let first = bench.joined(first).member;
    let second = bench.join(Joining { version: 0, rebalance_ms: -1, ..asks() });
    bench.wait(5000);
    assert_eq!(bench.beat(&first, 1), Err(ResponseError::RebalanceInProgress));
    bench.wait(SESSION_MS as u64 - 5000);
    assert_eq!(bench.joined(second).generation, 2);
    assert_eq!(bench.joined(second).members.len(), 1);
}
