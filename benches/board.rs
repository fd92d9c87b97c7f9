//! What the board costs per record: registered and queued, taken, completed. Prints nanoseconds per record.
//!
//! CPU time, so that what else the machine does counts little; Linux only. 1000 keys over 6 partitions, batches of 500
//! records delivered at once, up to 8192 records held.

use std::hint::black_box;
use std::sync::Arc;

use keylane::pool::board::{Board, Dispatch, Slot};
use keylane::pool::hash::fnv32a;
use keylane::pool::lanes::lane_hash;
use keylane::pool::route::{Route, Routed};
use keylane::pool::run::Run;

const KEYS: u64 = 1000;
const WORKERS: u32 = 8;
const PARTITIONS: usize = 6;
const BATCH_RECORDS: usize = 500;
const HELD_RECORDS_MAX: u64 = 8192;
const BATCHES: usize = 20_000;

fn main() {
    println!(
        "routes: lane_hash {:.1} ns, fnv32a {:.1} ns",
        hash_ns(|key| lane_hash(1, key)),
        hash_ns(|key| fnv32a(key).into())
    );
    let lanes = |key: u64| Route::new(lane_hash(1, format!("key-{key}").as_bytes()));
    let workers = |key: u64| Route::new(u64::from(fnv32a(format!("key-{key}").as_bytes()) % WORKERS));
    for (name, dispatch, route) in [
        ("lanes", Dispatch::Lanes, &lanes as &dyn Fn(u64) -> Route),
        ("lanes, no order", Dispatch::Lanes, &|_| Route::FREE),
        ("hash", Dispatch::Hash { workers: WORKERS }, &workers),
        ("sequential", Dispatch::Sequential { chunk_records_max: 500 }, &|_| Route::FREE),
    ] {
        for run_records_max in [512, 64, 1] {
            println!(
                "{name:16} runs of {run_records_max:3}: {:5.1} ns",
                record_ns(dispatch, route, run_records_max)
            );
        }
    }
}

/// Nanoseconds per record.
fn record_ns(dispatch: Dispatch, route: &dyn Fn(u64) -> Route, run_records_max: usize) -> f64 {
    let mut board = Board::<()>::new(dispatch);
    let topic: Arc<str> = Arc::from("t");
    let slots: Vec<Slot> =
        (0..PARTITIONS).map(|partition| board.assign(Arc::clone(&topic), partition as i32, 0, 0)).collect();
    // Each key has its partition; the records of one fall in turns on its keys.
    let routes: Vec<Vec<Route>> = (0..PARTITIONS as u64)
        .map(|partition| (0..KEYS).filter(|key| key % PARTITIONS as u64 == partition).map(route).collect())
        .collect();
    let mut next = [0_i64; PARTITIONS];
    let mut turns: Vec<_> = routes.iter().map(|routes| routes.iter().copied().cycle()).collect();
    let (mut records, mut released) = (Vec::new(), Vec::new());
    let workers = if matches!(dispatch, Dispatch::Sequential { .. }) { 1 } else { WORKERS };
    let mut runs: Vec<Run<()>> = (0..workers).map(|_| Run::new()).collect();
    let start = cpu_ns();
    for turn in 0..BATCHES {
        let at = turn % PARTITIONS;
        records.clear();
        records.extend((0..BATCH_RECORDS as i64).map(|n| Routed {
            offset: next[at] + n,
            route: turns[at].next().expect("each partition has keys"),
        }));
        next[at] += BATCH_RECORDS as i64;
        let batch = board.open_batch(slots[at], Arc::new(()), 50_000).expect("assigned");
        assert!(board.deliver(batch, 0, &records));
        board.close_batch(batch, next[at], 0);
        let last = turn + 1 == BATCHES;
        while board.counts().queued > if last { 0 } else { HELD_RECORDS_MAX - BATCH_RECORDS as u64 } {
            for (worker, run) in (0..).zip(&mut runs) {
                board.take(worker, run_records_max, run);
            }
            for run in &mut runs {
                let finished = black_box(run.len());
                board.complete(run, finished);
            }
        }
        board.take_released(&mut released);
        released.clear();
    }
    let ns = cpu_ns() - start;
    assert_eq!((board.counts().inflight, board.lanes()), (0, 0));
    ns / (BATCHES * BATCH_RECORDS) as f64
}

/// Nanoseconds per key.
fn hash_ns(hash: impl Fn(&[u8]) -> u64) -> f64 {
    let keys: Vec<String> = (0..KEYS).map(|key| format!("key-{key}")).collect();
    let start = cpu_ns();
    for key in (0..10_000).flat_map(|_| &keys) {
        black_box(hash(black_box(key.as_bytes())));
    }
    (cpu_ns() - start) / (10_000 * KEYS) as f64
}

/// CPU time of this process's only thread.
fn cpu_ns() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").expect("a Linux kernel");
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("nanoseconds")
}
