//! A coordinator that moves to another node.

use super::*;

impl Bench {
    fn move_coordinator(&mut self) {
        self.groups.on_coordinator_moved("g", self.now);
        self.collect();
    }
}

#[test]
fn a_stable_group_goes_on_with_new_sessions() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let generation = bench.generation();
    bench.wait(9000);
    bench.move_coordinator();
    bench.wait(9000);
    assert_eq!(bench.beat(&ids[0], generation), Ok(()));
    assert_eq!(bench.beat(&ids[1], generation), Ok(()));
}

#[test]
fn parked_joins_look_for_the_new_coordinator_and_new_members_begin_again() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let join = bench.join(asks_as(&ids[0]));
    let (new, new_join) = bench.enter(asks());
    let pending = bench.join(asks());
    let (_, pending) = bench.refused(pending);
    bench.move_coordinator();
    assert_eq!(bench.refused(join).0, ResponseError::NotCoordinator);
    assert_eq!(bench.refused(new_join).0, ResponseError::NotCoordinator);
    for id in [new, pending] {
        let again = bench.join(asks_as(&id));
        assert_eq!(bench.refused(again).0, ResponseError::UnknownMemberId);
    }
    let again = bench.join(asks_as(&ids[0]));
    bench.join(asks_as(&ids[1]));
    assert_eq!(bench.joined(again).members.len(), 2);
}

#[test]
fn parked_syncs_look_for_the_new_coordinator() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let generation = bench.generation() + 1;
    bench.join(asks_as(&ids[0]));
    bench.join(asks_as(&ids[1]));
    let sync = bench.sync(&ids[1], generation);
    bench.move_coordinator();
    assert_eq!(bench.synced(sync), Err(ResponseError::NotCoordinator));
    let again = bench.sync(&ids[1], generation);
    bench.sync(&ids[0], generation);
    assert!(bench.synced(again).is_ok());
}

#[test]
fn a_group_of_new_members_only_is_empty() {
    let mut bench = Bench::with_delay(3000);
    let (_, ticket) = bench.enter(asks());
    bench.move_coordinator();
    assert!(!bench.is_parked(ticket));
    assert_eq!(bench.state(), "Empty");
}
