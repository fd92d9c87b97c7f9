//! Which lanes and queues are the longest, for stats and for whoever asks.

use std::sync::Arc;

use crate::pool::board::{Board, Dispatch, Slot};
use crate::pool::route::{Route, Routed};
use crate::pool::run::Run;

fn deliver(board: &mut Board<()>, slot: Slot, routes: &[Route]) {
    let id = board.open_batch(slot, Arc::new(()), 100).expect("assigned");
    let records: Vec<Routed> = (0..).zip(routes).map(|(offset, &route)| Routed { offset, route }).collect();
    assert!(board.deliver(id, 0, &records));
}

/// What is in a run does not count, what was given back does.
#[test]
fn the_longest_lanes() {
    let mut board = Board::new(Dispatch::Lanes);
    let [slot, other] = [0, 9].map(|partition| board.assign("t".into(), partition, 0, 0));
    let [a, b] = [1, 2].map(Route::new);
    deliver(&mut board, slot, &[a, b, a, Route::FREE, a, b]);
    deliver(&mut board, other, &[a, a]);
    let longest = |board: &Board<()>, max| {
        let lanes = board.longest_lanes(max);
        lanes.iter().map(|lane| (lane.slot, lane.waiting, lane.index)).collect::<Vec<_>>()
    };
    assert_eq!(longest(&board, 1), [(slot, 3, 0)]);
    assert_eq!(longest(&board, 9), [(slot, 3, 0), (slot, 2, 1), (other, 2, 0), (slot, 1, 3)]);
    assert_eq!(board.first_of_lane(slot, 1).map(|(_, index)| index), Some(1));
    assert_eq!(board.first_of_lane(slot, 2).map(|(_, index)| index), None, "behind another");
    let mut run = Run::new();
    board.take(0, 1, &mut run);
    assert_eq!(longest(&board, 3), [(slot, 2, 2), (slot, 2, 1), (other, 2, 0)]);
    board.complete(&mut run, 0);
    assert_eq!(longest(&board, 1), [(slot, 3, 0)]);
    board.revoke(slot);
    assert_eq!(longest(&board, 9), [(other, 2, 0)]);
    board.invariants();
}

#[test]
fn the_longest_queue_of_a_worker() {
    let mut board = Board::<()>::new(Dispatch::Hash { workers: 2 });
    let slot = board.assign("t".into(), 0, 0, 0);
    deliver(&mut board, slot, &[1, 0, 1].map(Route::new));
    let mut seen = Vec::new();
    assert_eq!(board.look_at_longest_queue(9, |_, _, index| seen.push(index)), 2);
    assert_eq!(board.look_at_longest_queue(1, |_, _, index| seen.push(index)), 2);
    assert_eq!(seen, [0, 2, 0]);
    assert!(board.longest_lanes(1).is_empty());
    board.invariants();
}
