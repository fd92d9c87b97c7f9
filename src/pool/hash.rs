//! The hash dispatcher: every key belongs to one fixed worker, as `--dispatch hash` and `partition-hash` promise.
//!
//! Guarantees: a worker's records run one run at a time, in the order of delivery; so a key's records do too, across
//! revoke and re-assignment as well, because the worker stays busy until its old record ends.

use super::batch::Origin;
use super::items::{Item, Items, Queue};
use super::route::{Route, Routed};

const FNV32_OFFSET: u32 = 0x811c_9dc5;
const FNV32_PRIME: u32 = 0x0100_0193;

/// FNV-1a, 32 bits, of `bytes`.
#[inline]
pub fn fnv32a(bytes: &[u8]) -> u32 {
    fnv32a_from(FNV32_OFFSET, bytes)
}

/// FNV-1a continued: `state` is the hash of the bytes before.
#[inline]
pub fn fnv32a_from(state: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(state, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(FNV32_PRIME))
}

/// One queue per worker.
#[derive(Debug)]
pub(crate) struct Hash {
    workers: Vec<Worker>,
    /// The worker that the next record without a route goes to.
    robin: usize,
}

#[derive(Debug)]
struct Worker {
    queue: Queue,
    /// Length of the queue.
    waiting: u32,
    busy: bool,
}

impl Hash {
    /// Panics with no worker at all: the command line refuses that.
    pub(crate) fn new(workers: u32) -> Hash {
        assert!(workers > 0, "a pool has at least one worker");
        Hash {
            workers: (0..workers).map(|_| Worker { queue: Queue::EMPTY, waiting: 0, busy: false }).collect(),
            robin: 0,
        }
    }

    pub(crate) fn enqueue(&mut self, items: &mut Items, origin: &Origin, first: Item, records: &[Routed]) {
        for (index, record) in (first.index..).zip(records) {
            let worker = if record.route == Route::FREE {
                self.robin = (self.robin + 1) % self.workers.len();
                self.robin
            } else {
                record.route.value() as usize
            };
            let item = Item::new(first.batch, index, origin.delta(record.offset));
            let worker = &mut self.workers[worker];
            worker.waiting += 1;
            items.push_back(&mut worker.queue, item);
        }
    }

    pub(crate) fn take(
        &mut self,
        items: &mut Items,
        worker: u32,
        records_max: usize,
        sink: impl FnMut(u32, &Item),
    ) {
        let own = &mut self.workers[worker as usize];
        if !own.busy && !own.queue.is_empty() {
            own.busy = true;
            self.take_more(items, worker, records_max, sink);
        }
    }

    /// More for a worker's run.
    pub(crate) fn take_more(
        &mut self,
        items: &mut Items,
        worker: u32,
        records_max: usize,
        mut sink: impl FnMut(u32, &Item),
    ) {
        let own = &mut self.workers[worker as usize];
        assert!(own.busy, "a run belongs to a busy worker");
        for _ in 0..records_max {
            let Some(item) = items.pop_front(&mut own.queue) else { break };
            own.waiting -= 1;
            sink(worker, &item);
        }
    }

    pub(crate) fn give_back(&mut self, items: &mut Items, worker: u32, item: Item) {
        let own = &mut self.workers[worker as usize];
        own.waiting += 1;
        items.push_front(&mut own.queue, item);
    }

    pub(crate) fn release(&mut self, worker: u32) {
        let own = &mut self.workers[worker as usize];
        assert!(own.busy, "a run belongs to a busy worker");
        own.busy = false;
    }

    pub(crate) fn retain(&mut self, items: &mut Items, keep: &mut impl FnMut(&Item) -> bool) {
        for worker in &mut self.workers {
            let waiting = &mut worker.waiting;
            items.retain(&mut worker.queue, |item| {
                let keep = keep(item);
                *waiting -= u32::from(!keep);
                keep
            });
        }
    }

    /// Workers that are free and have a record waiting.
    pub(crate) fn ready(&self) -> usize {
        self.workers.iter().filter(|worker| !worker.busy && !worker.queue.is_empty()).count()
    }

    pub(crate) fn has_work(&self, worker: u32) -> bool {
        let own = &self.workers[worker as usize];
        !own.busy && !own.queue.is_empty()
    }

    /// The longest queue and its length.
    pub(crate) fn longest(&self) -> Option<(Queue, u32)> {
        let longest = self.workers.iter().max_by_key(|worker| worker.waiting)?;
        Some((longest.queue, longest.waiting))
    }

    /// Every queued item; for the invariant check.
    pub(crate) fn for_each(&self, items: &Items, mut visit: impl FnMut(&Item) -> u64) {
        for worker in &self.workers {
            let mut waiting = 0;
            for item in items.iter(worker.queue) {
                waiting += 1;
                visit(item);
            }
            assert_eq!(worker.waiting, waiting, "a worker's queue knows its length");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv_vectors() {
        assert_eq!(fnv32a(b""), 0x811c_9dc5);
        assert_eq!(fnv32a(b"a"), 0xe40c_292c);
        assert_eq!(fnv32a(b"foobar"), 0xbf9c_f968);
        assert_eq!(fnv32a_from(fnv32a(b"foo"), b"bar"), fnv32a(b"foobar"));
    }
}
