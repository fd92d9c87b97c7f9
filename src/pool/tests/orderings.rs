//! Every way up to five records over two lanes can be taken and completed by up to three workers, with a drain, a
//! revoke or a new assignment at any moment.

use std::sync::Arc;

use super::model::{Op, World};
use crate::pool::board::Dispatch;

/// Replays `path` and then tries every step that is possible.
fn explore(dispatch: Dispatch, keys: &[Option<u8>], path: &mut Vec<Op>, events_left: u32, visited: &mut u64) {
    let mut world = World::new(dispatch);
    world.apply(&Op::Assign { partition: 0, position: 0 });
    let deliver = Op::Deliver {
        partition: 0,
        records: keys.iter().map(|&key| (1, key)).collect(),
        close: Some((0, 0)),
    };
    world.apply(&deliver);
    for op in path.iter() {
        world.apply(op);
    }
    *visited += 1;
    let mut steps = Vec::new();
    let runs = world.runs.len();
    if runs < 3 && world.board.ready() > 0 {
        for worker in 0..if matches!(dispatch, Dispatch::Hash { .. }) { 2 } else { 1 } {
            if world.board.has_work(worker) {
                steps.push((Op::Take { worker, records_max: 1 }, 0));
                if events_left > 0 {
                    steps.push((Op::Take { worker, records_max: 2 }, 1));
                }
            }
        }
    }
    for run in 0..runs {
        steps.push((Op::Complete { run, finished: 9 }, 0));
        if events_left > 0 {
            steps.push((Op::Complete { run, finished: 0 }, 1));
        }
    }
    if events_left > 0 {
        steps.push((Op::Freeze { partition: 0 }, 1));
        steps.push((Op::Revoke { partition: 0 }, 1));
        steps.push((Op::Reset { partition: 0, back: 9 }, 1));
    }
    for (step, cost) in steps {
        path.push(step);
        explore(dispatch, keys, path, events_left - cost, visited);
        path.pop();
    }
}

fn all_orderings(dispatch: Dispatch, events_records_max: u32) -> u64 {
    let mut visited = 0;
    for count in 1..=5_u32 {
        for pattern in 0..1_u32 << (count - 1) {
            let keys: Vec<_> = (0..count).map(|at| Some((pattern >> at & 1) as u8)).collect();
            explore(dispatch, &keys, &mut Vec::new(), u32::from(count <= events_records_max), &mut visited);
        }
    }
    visited
}

#[test]
fn lanes() {
    assert!(all_orderings(Dispatch::Lanes, 3) > 1000);
}

#[test]
fn hash() {
    assert!(all_orderings(Dispatch::Hash { workers: 2 }, 2) > 1000);
}

#[test]
fn released_batches_have_one_handle() {
    let mut world = World::new(Dispatch::Lanes);
    world.apply(&Op::Assign { partition: 0, position: 0 });
    world.apply(&Op::Deliver { partition: 0, records: vec![(1, None)], close: Some((0, 0)) });
    world.apply(&Op::Take { worker: 0, records_max: 1 });
    world.board.complete(&mut world.runs[0].run, 1);
    let mut released = Vec::new();
    world.board.take_released(&mut released);
    assert_eq!(released.len(), 1);
    assert_eq!(Arc::strong_count(&released[0].batch), 1);
}
