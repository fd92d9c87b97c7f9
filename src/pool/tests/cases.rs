//! Named cases. Each quotes the public report that shows the fault.

use std::sync::Arc;

use crate::pool::batch::BatchId;
use crate::pool::board::{Board, Dispatch, Slot};
use crate::pool::route::{Route, Routed};
use crate::pool::run::Run;

fn board() -> (Board<()>, Slot) {
    let mut board = Board::new(Dispatch::Lanes);
    let slot = board.assign(Arc::from("t"), 0, 0, -1);
    (board, slot)
}

/// Delivers records in one batch that stays open.
fn deliver(board: &mut Board<()>, slot: Slot, records: &[(i64, Route)]) -> BatchId {
    let id = board.open_batch(slot, Arc::new(()), 100).expect("assigned");
    let records: Vec<Routed> = records.iter().map(|&(offset, route)| Routed { offset, route }).collect();
    assert!(board.deliver(id, 0, &records));
    id
}

/// Takes one record.
fn take(board: &mut Board<()>) -> Option<(i64, Run<()>)> {
    let mut run = Run::new();
    board.take(0, 1, &mut run);
    let offset = run.get(0)?.offset;
    Some((offset, run))
}

fn finish(board: &mut Board<()>, mut run: Run<()>) {
    board.complete(&mut run, 1);
    board.invariants();
}

fn next(board: &Board<()>, slot: Slot) -> i64 {
    board.next(slot).expect("assigned").0
}

/// Finishes `order` of free records at `offsets` and returns `next` after each.
fn nexts(offsets: &[i64], order: &[i64]) -> Vec<i64> {
    let (mut board, slot) = board();
    let records: Vec<_> = offsets.iter().map(|&offset| (offset, Route::FREE)).collect();
    deliver(&mut board, slot, &records);
    let mut runs: Vec<_> = std::iter::from_fn(|| take(&mut board)).collect();
    let mut nexts = Vec::new();
    for &offset in order {
        let at = runs.iter().position(|run| run.0 == offset).expect("taken");
        finish(&mut board, runs.swap_remove(at).1);
        nexts.push(next(&board, slot));
    }
    nexts
}

/// spring-projects/spring-kafka#4258: out-of-order completion with holes between the offsets.
#[test]
fn holes_between_offsets() {
    let nexts = nexts(&[0, 2, 4, 6], &[0, 2, 6, 4]);
    assert!(nexts[2] <= 4);
    assert!(nexts[3] >= 7);
    assert_eq!(nexts, [2, 4, 4, 7]);
}

/// spring-projects/spring-kafka#4342: the first fix discarded offsets that were pending.
#[test]
fn pending_offsets_are_kept() {
    assert_eq!(nexts(&[0, 1, 2, 3], &[3, 0]), [0, 1]);
    assert_eq!(nexts(&[0, 1, 2, 3], &[3, 0, 1, 2]), [0, 1, 2, 4]);
}

/// osodevops/kafka-backup#139: the position is a batch's end, with records missing there or none at all.
#[test]
fn compacted_tail_and_empty_batch() {
    let mut board = Board::new(Dispatch::Lanes);
    let slot = board.assign(Arc::from("t"), 0, 100, 3);
    let records: Vec<_> = (100..105).map(|offset| (offset, Route::FREE)).collect();
    let batch = deliver(&mut board, slot, &records);
    board.close_batch(batch, 110, 4);
    board.advance(slot, 120, 5);
    let batch = deliver(&mut board, slot, &[(120, Route::FREE)]);
    board.close_batch(batch, 121, 6);
    let mut seen = Vec::new();
    while let Some((offset, run)) = take(&mut board) {
        assert_eq!(
            board.next(slot),
            Some((offset, if offset == 120 { 5 } else { 3 })),
            "the epoch is the last batch's passed"
        );
        finish(&mut board, run);
        seen.push(offset);
    }
    assert_eq!(seen, [100, 101, 102, 103, 104, 120]);
    assert_eq!(board.next(slot), Some((121, 6)));
}

/// A partition that holds nothing for us any more reaches its end: lag 0 behind a marker.
#[test]
fn a_trailing_marker_is_passed() {
    let (mut board, slot) = board();
    let batch = deliver(&mut board, slot, &[(0, Route::FREE)]);
    board.close_batch(batch, 1, 0);
    board.advance(slot, 2, 0);
    assert_eq!(next(&board, slot), 0);
    let (_, run) = take(&mut board).expect("one");
    finish(&mut board, run);
    assert_eq!(board.next(slot), Some((2, 0)));
}

/// confluentinc/parallel-consumer#826: a commit between seeing a record and registering it.
#[test]
fn a_delivered_record_is_never_committed_past() {
    let (mut board, slot) = board();
    board.advance(slot, 50, 0);
    deliver(&mut board, slot, &[(50, Route::new(1))]);
    let commit = board.commit_snapshot();
    assert_eq!((commit.len(), commit[0].offset), (1, 50));
    board.freeze_all();
    assert_eq!(board.commit_snapshot()[0].offset, 50);
    assert!(board.drained(slot), "nothing was started");
    assert_eq!(board.revoke(slot), Some((50, 0)));
}

/// redpanda-data/connect#4477: a completion after the revoke.
#[test]
fn a_late_completion_changes_nothing() {
    let mut board = Board::new(Dispatch::Lanes);
    let topic: Arc<str> = Arc::from("t");
    let slot = board.assign(Arc::clone(&topic), 0, 10, -1);
    deliver(&mut board, slot, &[(10, Route::new(1)), (11, Route::new(1))]);
    let commit_before = { board.commit_snapshot() };
    let (_, late) = take(&mut board).expect("offset 10");
    board.freeze(slot);
    assert!(!board.drained(slot));
    assert_eq!(board.drain_left(), (1, 1));
    assert_eq!(board.revoke(slot), Some((10, -1)));
    assert!(commit_before.is_empty() && board.commit_snapshot().is_empty());

    assert_eq!(board.assign(topic, 0, 10, -1), slot);
    deliver(&mut board, slot, &[(10, Route::new(1)), (20, Route::new(2))]);
    assert_eq!(take(&mut board).map(|(offset, run)| (offset, finish(&mut board, run))), Some((20, ())));
    assert!(take(&mut board).is_none(), "the key's old record still runs");
    finish(&mut board, late);
    assert_eq!(next(&board, slot), 10, "the old completion changes nothing");
    let (offset, run) = take(&mut board).expect("the lane is free again");
    assert_eq!(offset, 10);
    finish(&mut board, run);
    assert_eq!(next(&board, slot), 21);
}

/// An acknowledgement for an ended assignment, and one that comes late.
#[test]
fn acknowledgements_of_old_are_ignored() {
    let (mut board, slot) = board();
    board.advance(slot, 5, 0);
    let first = board.commit_snapshot();
    board.advance(slot, 8, 0);
    let second = board.commit_snapshot();
    board.commit_acked(&second[0]);
    board.commit_acked(&first[0]);
    assert!(board.commit_snapshot().is_empty());
    board.reset(slot, 2, 0);
    board.commit_acked(&second[0]);
    board.advance(slot, 3, 0);
    assert_eq!(board.commit_snapshot()[0].offset, 3, "never lower starts afresh");
    board.invariants();
}

/// confluentinc/parallel-consumer#318: null keys carry no order, the empty key is a key.
#[test]
fn null_keys_overlap_and_empty_ones_do_not() {
    use crate::pool::route::{NullKey, Order, Router, Routing};
    let routing = Routing::Lanes { order: Order::Key, seed: 1 };
    let router = Router::new(routing, NullKey::Spread, "t", 0);
    let (mut board, slot) = board();
    let keys = (0..8).map(|_| None).chain((8..12).map(|_| Some(&b""[..])));
    let records: Vec<_> = (0..).zip(keys).map(|(offset, key)| (offset, router.route(key))).collect();
    deliver(&mut board, slot, &records);
    let runs: Vec<_> = std::iter::from_fn(|| take(&mut board)).collect();
    assert_eq!(runs.iter().map(|run| run.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    runs.into_iter().for_each(|(_, run)| finish(&mut board, run));
    for offset in 9..12 {
        let (taken, run) = take(&mut board).expect("the next empty key");
        assert_eq!(taken, offset);
        assert!(take(&mut board).is_none());
        finish(&mut board, run);
    }
    assert_eq!(next(&board, slot), 12);
    assert_eq!(board.lanes(), 0);
}

/// What is given back is first in its lane again, and its lane first in the ready queue.
#[test]
fn given_back_in_order() {
    let (mut board, slot) = board();
    let [a, b, c] = [1, 2, 3].map(Route::new);
    deliver(&mut board, slot, &[(0, a), (1, b), (2, a), (3, c), (4, b), (5, a)]);
    let mut run = Run::new();
    board.take(0, 4, &mut run);
    let offsets = |run: &Run<()>| run.iter().map(|record| record.offset).collect::<Vec<_>>();
    assert_eq!(offsets(&run), [0, 2, 5, 1]);
    board.complete(&mut run, 1);
    board.invariants();
    board.take(0, 9, &mut run);
    assert_eq!(offsets(&run), [2, 5, 1, 4, 3]);
    board.complete(&mut run, 5);
    assert_eq!(next(&board, slot), 6);
    assert_eq!(board.lanes(), 0);
}

/// A drain finishes what lies below the highest record started, and stops short of one that cannot finish.
#[test]
fn drain_to_the_highest_started() {
    let (mut board, slot) = board();
    let [a, b] = [1, 2].map(Route::new);
    deliver(&mut board, slot, &[(0, a), (1, a), (2, b), (3, a), (4, b)]);
    let (_, first) = take(&mut board).expect("0");
    let (offset, second) = take(&mut board).expect("2");
    assert_eq!(offset, 2);
    board.freeze(slot);
    board.invariants();
    assert_eq!(board.drain_left(), (3, 1));
    assert!(board.open_batch(slot, Arc::new(()), 1).is_none());
    finish(&mut board, second);
    assert!(take(&mut board).is_none(), "4 is beyond");
    finish(&mut board, first);
    let (offset, third) = take(&mut board).expect("1 is below the target");
    assert_eq!((offset, next(&board, slot)), (1, 1));
    let record = third.get(0).expect("one");
    let (assignment, ordinal) = (record.assignment, record.ordinal);
    assert!(!board.drained(slot));
    board.stop_short(slot, assignment, ordinal);
    assert!(!board.drained(slot), "it is still with a worker");
    let mut third = third;
    board.complete(&mut third, 0);
    assert!(board.drained(slot), "1 cannot finish");
    assert_eq!(board.counts().queued, 0, "beyond the target now");
    assert_eq!(board.revoke(slot), Some((1, -1)));
    assert_eq!((board.counts().held_bytes, board.lanes()), (0, 0));
}

/// `sequential`: partitions in turn, each in order, a chunk at a time.
#[test]
fn sequential_takes_turns() {
    let mut board = Board::new(Dispatch::Sequential { chunk_records_max: 3 });
    let slots = [0, 1].map(|partition| board.assign(Arc::from("t"), partition, 0, -1));
    for slot in slots {
        let first = deliver(&mut board, slot, &[0, 1, 3, 4].map(|offset| (offset, Route::FREE)));
        board.close_batch(first, 5, 0);
    }
    let mut seen = Vec::new();
    while let Some((offset, run)) = take(&mut board) {
        assert!(take(&mut board).is_none(), "one at a time");
        seen.push((run.get(0).expect("one").slot.index(), offset));
        finish(&mut board, run);
    }
    assert_eq!(seen, [(0, 0), (0, 1), (0, 3), (1, 0), (1, 1), (1, 3), (0, 4), (1, 4)]);
    assert_eq!(slots.map(|slot| next(&board, slot)), [5, 5]);
}

/// Thousands of lanes come and go: the lane index grows, fills and empties without losing one.
#[test]
fn many_lanes_come_and_go() {
    let (mut board, slot) = board();
    let mut random = 1_u64;
    let mut draw = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut runs = Vec::new();
    let mut offset = 0;
    for round in 0..400 {
        let records: Vec<_> =
            (offset..).take(draw(60) as usize).map(|at| (at, Route::new(draw(2000)))).collect();
        offset += records.len() as i64;
        let batch = deliver(&mut board, slot, &records);
        board.close_batch(batch, offset, 0);
        for _ in 0..draw(6) {
            let mut run = Run::new();
            board.take(0, draw(40) as usize, &mut run);
            runs.push(run);
        }
        // Waves: now and then nearly everything is finished.
        while runs.len() as u64 > if round % 100 == 99 { 0 } else { draw(200) } {
            let mut run = runs.swap_remove(draw(runs.len() as u64) as usize);
            let finished = draw(run.len() as u64 + 1) as usize;
            board.complete(&mut run, finished);
        }
        if round % 20 == 19 {
            board.invariants();
        }
    }
    runs.into_iter().for_each(|mut run| board.complete(&mut run, 0));
    while let Some((_, mut run)) = take(&mut board) {
        board.complete(&mut run, 1);
    }
    board.invariants();
    assert_eq!((next(&board, slot), board.lanes()), (offset, 0));
}

/// Simulator: a drain ended inside the first batch of a new leader. Committed with the epoch before, the position lay
/// behind that epoch's end, and the next owner took the log for cut and went back (KIP-320).
#[test]
fn inside_a_batch_its_epoch_goes_with_the_commit() {
    let (mut board, slot) = board();
    board.advance(slot, 10, 3);
    let id = board.open_batch(slot, Arc::new(()), 100).expect("assigned");
    board.enter_batch(slot, 10, 4);
    let records: Vec<Routed> = (10..13).map(|offset| Routed { offset, route: Route::new(1) }).collect();
    assert!(board.deliver(id, 0, &records));
    assert_eq!(board.next(slot), Some((10, 3)), "before it");
    let (_, run) = take(&mut board).expect("a record");
    finish(&mut board, run);
    assert_eq!(board.next(slot), Some((11, 4)), "inside it");
    board.close_batch(id, 13, 4);
    assert_eq!(board.next(slot), Some((11, 4)));
}
