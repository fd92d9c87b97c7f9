//! Offsets: who may commit, what is pending, what is forgotten.

use super::*;

fn at(offset: i64) -> Committed {
    Committed { offset, leader_epoch: 3, metadata: "note".to_owned() }
}

impl Bench {
    fn commit(&mut self, member: &str, generation: i32, offset: i64) -> Result<(), ResponseError> {
        self.groups.commits(&claim(member, generation), 9, self.now)?.put("t", 0, at(offset))
    }

    fn transactional(&mut self, producer: i64, offset: i64) -> Result<(), ResponseError> {
        self.groups.transactional_commits(&claim("", -1), producer)?.put("t", 0, at(offset))
    }

    fn committed(&self) -> Option<i64> {
        self.groups.committed("g", "t", 0).map(|committed| committed.offset)
    }
}

#[test]
fn a_simple_consumer_commits_to_an_empty_group_only() {
    let mut bench = Bench::new();
    assert_eq!(bench.commit("", -1, 5), Ok(()));
    assert_eq!(bench.groups.committed("g", "t", 0), Some(&at(5)));
    let view = bench.groups.describe("g").expect("the group was made");
    assert_eq!((view.state, view.protocol_type, view.generation), ("Empty", "", 0));
    let ids = bench.stable(1);
    assert_eq!(bench.commit("", -1, 6), Err(ResponseError::UnknownMemberId));
    assert_eq!(bench.commit(&ids[0], -1, 6), Err(ResponseError::IllegalGeneration));
    bench.leave(&ids[0]).expect("it is in");
    assert_eq!(bench.commit("", -1, 7), Ok(()));
    assert_eq!(bench.commit(&ids[0], 1, 8), Err(ResponseError::UnknownMemberId));
    assert_eq!(bench.committed(), Some(7));
}

#[test]
fn a_member_of_a_group_that_is_gone_is_told_so() {
    let mut bench = Bench::new();
    let of_version =
        |bench: &mut Bench, version| bench.groups.commits(&claim("m", 3), version, bench.now).err();
    assert_eq!(of_version(&mut bench, 9), Some(ResponseError::GroupIdNotFound));
    assert_eq!(of_version(&mut bench, 8), Some(ResponseError::IllegalGeneration));
    assert_eq!(bench.state(), "Dead");
}

#[test]
fn a_member_commits_in_its_generation_except_between_join_and_sync() {
    let mut bench = Bench::new();
    let ids = bench.stable(2);
    let generation = bench.generation();
    assert_eq!(bench.commit(&ids[0], generation, 1), Ok(()));
    assert_eq!(bench.commit(&ids[0], generation - 1, 2), Err(ResponseError::IllegalGeneration));
    assert_eq!(bench.commit("nobody", generation, 2), Err(ResponseError::UnknownMemberId));
    bench.join(asks_as(&ids[0]));
    assert_eq!(bench.state(), "PreparingRebalance");
    assert_eq!(bench.commit(&ids[1], generation, 3), Ok(()));
    bench.join(asks_as(&ids[1]));
    assert_eq!(bench.state(), "CompletingRebalance");
    assert_eq!(bench.commit(&ids[1], generation, 4), Err(ResponseError::IllegalGeneration));
    assert_eq!(bench.commit(&ids[1], generation + 1, 4), Err(ResponseError::RebalanceInProgress));
    assert_eq!(bench.committed(), Some(3));
}

#[test]
fn metadata_is_limited() {
    let mut bench = Bench::new();
    let mut commits = bench.groups.commits(&claim("", -1), 9, bench.now).expect("a simple consumer");
    let mut put = |metadata: String| commits.put("t", 0, Committed { metadata, ..at(1) });
    assert_eq!(put("x".repeat(4096)), Ok(()));
    assert_eq!(put("x".repeat(4097)), Err(ResponseError::OffsetMetadataTooLarge));
    assert_eq!(put("é".repeat(4096)), Ok(()));
    assert_eq!(put("𝄞".repeat(2049)), Err(ResponseError::OffsetMetadataTooLarge));
}

#[test]
fn offsets_of_a_transaction_wait_for_its_end() {
    let mut bench = Bench::new();
    assert_eq!(bench.transactional(7, 10), Ok(()));
    assert!(bench.groups.has_pending("g") && bench.groups.is_pending("g", "t", 0));
    assert!(!bench.groups.is_pending("g", "t", 1));
    assert_eq!(bench.committed(), None);
    bench.groups.on_transaction_end(8, true);
    assert_eq!(bench.committed(), None);
    bench.groups.on_transaction_end(7, true);
    assert_eq!(bench.groups.committed("g", "t", 0), Some(&at(10)));
    assert!(!bench.groups.has_pending("g"));
    assert_eq!(bench.transactional(7, 20), Ok(()));
    bench.groups.on_transaction_end(7, false);
    assert_eq!((bench.committed(), bench.groups.has_pending("g")), (Some(10), false));
}

#[test]
fn the_later_commit_wins_not_the_later_end() {
    let mut bench = Bench::new();
    bench.transactional(7, 10).expect("no members");
    bench.commit("", -1, 11).expect("no members");
    bench.groups.on_transaction_end(7, true);
    assert_eq!(bench.committed(), Some(11));
    bench.transactional(7, 12).expect("no members");
    bench.transactional(8, 13).expect("no members");
    bench.groups.on_transaction_end(8, true);
    bench.groups.on_transaction_end(7, true);
    assert_eq!(bench.committed(), Some(13));
}

#[test]
fn a_transaction_that_says_who_it_is_is_checked() {
    let mut bench = Bench::new();
    let refused = |bench: &mut Bench, member: &str, generation| {
        bench.groups.transactional_commits(&claim(member, generation), 7).err()
    };
    assert_eq!(refused(&mut bench, "m", 1), Some(ResponseError::IllegalGeneration));
    let ids = bench.stable(1);
    assert_eq!(refused(&mut bench, &ids[0], 1), None);
    assert_eq!(refused(&mut bench, &ids[0], 0), Some(ResponseError::IllegalGeneration));
    assert_eq!(refused(&mut bench, "nobody", 1), Some(ResponseError::UnknownMemberId));
    assert_eq!(refused(&mut bench, "", -1), None, "older clients do not say");
    bench.join(asks_as(&ids[0]));
    assert_eq!(bench.state(), "CompletingRebalance");
    assert_eq!(refused(&mut bench, &ids[0], 2), None, "the phase does not matter");
}

#[test]
fn a_deleted_topic_takes_its_offsets_along() {
    let mut bench = Bench::new();
    bench.commit("", -1, 1).expect("no members");
    bench.transactional(7, 2).expect("no members");
    bench.groups.on_topic_deleted("other");
    assert_eq!(bench.committed(), Some(1));
    bench.groups.on_topic_deleted("t");
    bench.groups.on_transaction_end(7, true);
    assert_eq!((bench.committed(), bench.groups.all_committed("g").count()), (None, 0));
}

#[test]
fn everything_committed_is_listed_in_order() {
    let mut bench = Bench::new();
    let mut commits = bench.groups.commits(&claim("", -1), 9, bench.now).expect("no members");
    for (topic, partition) in [("b", 0), ("a", 10), ("a", 2)] {
        commits.put(topic, partition, at(i64::from(partition))).expect("short metadata");
    }
    let all: Vec<_> =
        bench.groups.all_committed("g").map(|(topic, partition, _)| (topic, partition)).collect();
    assert_eq!(all, [("a", 2), ("a", 10), ("b", 0)]);
    assert_eq!(bench.groups.all_committed("nothing").count(), 0);
}
