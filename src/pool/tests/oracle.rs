//! Random operation sequences, the model checked after each step.

use proptest::prelude::*;

use super::model::{Op, World};
use crate::pool::board::Dispatch;

fn op() -> impl Strategy<Value = Op> {
    let partition = 0..3_i32;
    let record = (prop_oneof![4 => Just(1_i64), 1 => 2..5_i64], prop::option::weighted(0.8, 0..4_u8));
    prop_oneof![
        4 => (partition.clone(), 0..50_i64).prop_map(|(partition, position)| Op::Assign { partition, position }),
        12 => (partition.clone(), prop::collection::vec(record, 0..9), prop::option::of((0..3_i64, 0..3_i32)))
            .prop_map(|(partition, records, close)| Op::Deliver { partition, records, close }),
        2 => (partition.clone(), 0..80_i64, 0..2_usize).prop_map(|(partition, by, keyed)|
            Op::Deliver { partition, records: vec![(1, (keyed == 1).then_some(1)); by as usize], close: Some((0, 1)) }),
        2 => (partition.clone(), 0..5_i64, -1..3_i32)
            .prop_map(|(partition, by, epoch)| Op::Advance { partition, by, epoch }),
        16 => (0..3_u32, prop_oneof![3 => Just(1_usize), 2 => 2..20_usize])
            .prop_map(|(worker, records_max)| Op::Take { worker, records_max }),
        16 => (0..8_usize, prop_oneof![4 => Just(99_usize), 1 => 0..12_usize])
            .prop_map(|(run, finished)| Op::Complete { run, finished }),
        2 => (0..8_usize, 1..6_usize, any::<bool>())
            .prop_map(|(run, records_max, one_lane)| Op::TakeMore { run, records_max, one_lane }),
        1 => partition.clone().prop_map(|partition| Op::Freeze { partition }),
        1 => (0..8_usize).prop_map(|run| Op::StopShort { run }),
        2 => partition.clone().prop_map(|partition| Op::Revoke { partition }),
        1 => (partition, 0..20_i64).prop_map(|(partition, back)| Op::Reset { partition, back }),
        2 => Just(Op::Snapshot),
        2 => (0..4_usize).prop_map(|snapshot| Op::Acknowledge { snapshot }),
    ]
}

fn play(dispatch: Dispatch, ops: &[Op]) {
    let mut world = World::new(dispatch);
    for op in ops {
        world.apply(op);
    }
    world.wind_up();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lanes(ops in prop::collection::vec(op(), 1..150)) {
        play(Dispatch::Lanes, &ops);
    }

    #[test]
    fn hash(ops in prop::collection::vec(op(), 1..150)) {
        play(Dispatch::Hash { workers: 3 }, &ops);
    }

    #[test]
    fn partitions(ops in prop::collection::vec(op(), 1..150)) {
        play(Dispatch::Partitions, &ops);
    }

    #[test]
    fn sequential(ops in prop::collection::vec(op(), 1..150)) {
        play(Dispatch::Sequential { chunk_records_max: 7 }, &ops);
    }
}
