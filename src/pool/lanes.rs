//! The default dispatcher: key → lane, and the queue of ready lanes.
//!
//! A lane is (partition, 64-bit key hash): two keys that share a hash share a lane, which costs only parallelism.
//! Guarantees: one run of a lane is with a worker at a time, in offset order, across revoke and re-assignment too;
//! lanes become ready first in, first out, which keeps the tracker's window small; a lane exists only while a record of
//! it is queued or with a worker, so memory is bounded by the records held.

use std::collections::VecDeque;

use super::batch::Origin;
use super::items::{Item, Items, Queue};
use super::route::{Route, Routed};

/// A 64-bit hash of a key, never [`Route::FREE`]. Not proof against someone who knows `seed` and chooses keys: the
/// worst they win is that their keys share a lane.
#[inline]
pub fn lane_hash(seed: u64, key: &[u8]) -> u64 {
    const A: u64 = 0xa076_1d64_78bd_642f;
    const B: u64 = 0xe703_7ed1_a0b4_28db;
    let len = key.len() as u64;
    let mut state = seed ^ A;
    let mut rest = key;
    while let Some((chunk, after)) = rest.split_first_chunk::<16>()
        && !after.is_empty()
    {
        state = fold(word(&chunk[..8]) ^ A, word(&chunk[8..]) ^ state);
        rest = after;
    }
    // The last 16 bytes or fewer, as two words that may overlap.
    let (low, high) = match rest.len() {
        8.. => (word(&rest[..8]), word(&rest[rest.len() - 8..])),
        4..8 => (half(&rest[..4]), half(&rest[rest.len() - 4..])),
        1..4 => {
            let middle = u64::from(rest[rest.len() / 2]);
            (u64::from(rest[0]) << 16 | middle << 8 | u64::from(rest[rest.len() - 1]), 0)
        }
        0 => (0, 0),
    };
    let hash = fold(B ^ len, fold(low ^ B, high ^ state));
    if hash == Route::FREE.value() { 0 } else { hash }
}

/// The 128-bit product folded in two.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

#[inline]
fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

#[inline]
fn half(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |chunk| u64::from(u32::from_le_bytes(*chunk)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not in use.
    Vacant,
    /// In the ready queue, with a record waiting.
    Ready,
    /// With a worker; records may be waiting behind.
    Running,
}

#[derive(Clone, Copy, Debug)]
struct Lane {
    route: Route,
    queue: Queue,
    slot: u32,
    tag: u32,
    /// Length of the queue.
    waiting: u32,
    state: State,
}

/// A lane with many records waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Long {
    pub(crate) slot: u32,
    pub(crate) waiting: u32,
    pub(crate) queue: Queue,
}

/// All lanes of all partitions.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    vacant: Vec<u32>,
    index: Index,
    ready: VecDeque<u32>,
}

impl Lanes {
    pub(crate) fn new() -> Lanes {
        Lanes { lanes: Vec::new(), vacant: Vec::new(), index: Index::new(), ready: VecDeque::new() }
    }

    pub(crate) fn enqueue(&mut self, items: &mut Items, origin: &Origin, first: Item, records: &[Routed]) {
        for (index, record) in (first.index..).zip(records) {
            let id = self.lane(origin.slot, record.route);
            let item = Item::new(first.batch, index, origin.delta(record.offset));
            let lane = &mut self.lanes[id as usize];
            lane.waiting += 1;
            items.push_back(&mut lane.queue, item);
        }
    }

    pub(crate) fn take(&mut self, items: &mut Items, records_max: usize, mut sink: impl FnMut(u32, &Item)) {
        let mut left = records_max;
        while left > 0 {
            let Some(id) = self.ready.pop_front() else { break };
            self.lanes[id as usize].state = State::Running;
            left -= self.take_more(items, id, left, &mut sink);
        }
    }

    /// More of a lane that is running; returns how many.
    pub(crate) fn take_more(
        &mut self,
        items: &mut Items,
        id: u32,
        records_max: usize,
        mut sink: impl FnMut(u32, &Item),
    ) -> usize {
        let lane = &mut self.lanes[id as usize];
        assert!(lane.state == State::Running, "a run belongs to a running lane");
        let mut taken = 0;
        while taken < records_max
            && let Some(item) = items.pop_front(&mut lane.queue)
        {
            lane.waiting -= 1;
            sink(id, &item);
            taken += 1;
        }
        taken
    }

    /// Whether more records may come into the lane: one that belongs to no order has a lane of its own.
    pub(crate) fn can_grow(&self, id: u32) -> bool {
        self.lanes[id as usize].route != Route::FREE
    }

    pub(crate) fn give_back(&mut self, items: &mut Items, id: u32, item: Item) {
        let lane = &mut self.lanes[id as usize];
        lane.waiting += 1;
        items.push_front(&mut lane.queue, item);
    }

    /// The lane's run is over. `first`: records of it were given back, so it is the one that has waited longest.
    #[inline]
    pub(crate) fn release(&mut self, id: u32, first: bool) {
        let lane = &mut self.lanes[id as usize];
        assert!(lane.state == State::Running, "a run belongs to a running lane");
        if lane.queue.is_empty() {
            self.remove(id);
            return;
        }
        lane.state = State::Ready;
        if first {
            self.ready.push_front(id);
        } else {
            self.ready.push_back(id);
        }
    }

    pub(crate) fn retain(&mut self, items: &mut Items, slot: u32, keep: &mut impl FnMut(&Item) -> bool) {
        for id in 0..self.lanes.len() {
            let lane = &mut self.lanes[id];
            if lane.slot == slot && lane.state != State::Vacant {
                let waiting = &mut lane.waiting;
                items.retain(&mut lane.queue, |item| {
                    let keep = keep(item);
                    *waiting -= u32::from(!keep);
                    keep
                });
            }
        }
        let mut ready = std::mem::take(&mut self.ready);
        ready.retain(|&id| {
            let keep = !self.lanes[id as usize].queue.is_empty();
            if !keep {
                self.remove(id);
            }
            keep
        });
        self.ready = ready;
    }

    /// Lanes that a worker could take now.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Lanes in being.
    pub(crate) fn len(&self) -> usize {
        self.lanes.len() - self.vacant.len()
    }

    /// The lanes with most records waiting, the longest first; costs a look at each lane.
    pub(crate) fn longest(&self, lanes_max: usize) -> Vec<Long> {
        let mut longest: Vec<Long> = Vec::with_capacity(lanes_max + 1);
        let mut least = 0;
        for lane in &self.lanes {
            if lane.waiting > least {
                let long = Long { slot: lane.slot, waiting: lane.waiting, queue: lane.queue };
                let place = longest.partition_point(|other| other.waiting >= long.waiting);
                longest.insert(place, long);
                longest.truncate(lanes_max);
                least =
                    if longest.len() < lanes_max { 0 } else { longest.last().map_or(0, |last| last.waiting) };
            }
        }
        longest
    }

    /// The queues of a partition's lanes.
    pub(crate) fn queues_of(&self, slot: u32) -> impl Iterator<Item = Queue> {
        self.lanes.iter().filter(move |lane| lane.slot == slot && lane.waiting > 0).map(|lane| lane.queue)
    }

    /// Visits every queued item, and checks what this file guarantees.
    pub(crate) fn for_each(&self, items: &Items, mut visit: impl FnMut(&Item) -> u64) {
        let mut keyed = 0;
        for (id, lane) in (0..).zip(&self.lanes) {
            let mut last = None;
            let mut waiting = 0;
            for item in items.iter(lane.queue) {
                waiting += 1;
                let ordinal = visit(item);
                assert!(last.replace(ordinal) < Some(ordinal), "a lane is in offset order");
            }
            assert_eq!(lane.waiting, waiting, "a lane knows how many wait in it");
            match lane.state {
                State::Vacant => assert!(last.is_none() && self.vacant.contains(&id)),
                State::Ready => {
                    assert!(last.is_some());
                    assert_eq!(self.ready.iter().filter(|&&ready| ready == id).count(), 1);
                }
                State::Running => assert!(!self.ready.contains(&id)),
            }
            if lane.state != State::Vacant && lane.route != Route::FREE {
                keyed += 1;
                assert_eq!(self.index.find(&self.lanes, lane.tag, lane.slot, lane.route), Ok(id));
            }
        }
        assert_eq!(self.index.used, keyed, "the index holds the lanes in being and no others");
    }

    /// The lane of a record that is about to be queued: the one in being, or a new one, made ready.
    #[inline]
    fn lane(&mut self, slot: u32, route: Route) -> u32 {
        if route == Route::FREE {
            return self.insert(slot, route, 0);
        }
        let tag = Index::tag(slot, route);
        match self.index.find(&self.lanes, tag, slot, route) {
            Ok(id) => id,
            Err(place) => {
                let id = self.insert(slot, route, tag);
                self.index.insert(place, tag, id);
                id
            }
        }
    }

    fn insert(&mut self, slot: u32, route: Route, tag: u32) -> u32 {
        let lane = Lane { route, queue: Queue::EMPTY, slot, tag, waiting: 0, state: State::Ready };
        let id = match self.vacant.pop() {
            Some(id) => {
                self.lanes[id as usize] = lane;
                id
            }
            None => {
                self.lanes.push(lane);
                u32::try_from(self.lanes.len() - 1).expect("lanes are bounded by queued records")
            }
        };
        self.ready.push_back(id);
        id
    }

    fn remove(&mut self, id: u32) {
        let lane = &mut self.lanes[id as usize];
        lane.state = State::Vacant;
        self.vacant.push(id);
        if lane.route != Route::FREE {
            self.index.remove(lane.tag, id);
        }
    }
}

/// An open-addressing table from (slot, route) to lane: linear probing, at most half full, no tombstones.
#[derive(Debug)]
struct Index {
    /// (tag, lane); the lane is `VACANT` in an empty place. A tag's highest bits are its home.
    places: Vec<(u32, u32)>,
    used: usize,
    /// 32 − log2(places).
    shift: u32,
}

const VACANT: u32 = u32::MAX;

impl Index {
    fn new() -> Index {
        Index { places: vec![(0, VACANT); 64], used: 0, shift: 32 - 6 }
    }

    #[inline]
    fn tag(slot: u32, route: Route) -> u32 {
        (fold(
            route.value() ^ 0x9e37_79b9_7f4a_7c15,
            (u64::from(slot) << 1 | 1).wrapping_mul(0xd6e8_feb8_6659_fd93),
        ) >> 32) as u32
    }

    /// The lane, or the empty place where it belongs.
    #[inline]
    fn find(&self, lanes: &[Lane], tag: u32, slot: u32, route: Route) -> Result<u32, usize> {
        let mask = self.places.len() - 1;
        let mut place = (tag >> self.shift) as usize;
        loop {
            let (found, id) = self.places[place & mask];
            if id == VACANT {
                return Err(place & mask);
            }
            if found == tag {
                let lane = &lanes[id as usize];
                if lane.route == route && lane.slot == slot {
                    return Ok(id);
                }
            }
            place += 1;
        }
    }

    fn insert(&mut self, place: usize, tag: u32, id: u32) {
        self.places[place] = (tag, id);
        self.used += 1;
        if self.used * 2 > self.places.len() {
            self.grow();
        }
    }

    fn grow(&mut self) {
        assert!(self.shift > 1, "lanes are bounded by queued records");
        self.shift -= 1;
        let size = self.places.len() * 2;
        let old = std::mem::replace(&mut self.places, vec![(0, VACANT); size]);
        for (tag, id) in old.into_iter().filter(|&(_, id)| id != VACANT) {
            let mut place = (tag >> self.shift) as usize;
            while self.places[place & (size - 1)].1 != VACANT {
                place += 1;
            }
            self.places[place & (size - 1)] = (tag, id);
        }
    }

    /// Takes the lane out and moves later ones of its cluster up, so that no search ends too early.
    fn remove(&mut self, tag: u32, id: u32) {
        let mask = self.places.len() - 1;
        let mut hole = (tag >> self.shift) as usize;
        while self.places[hole].1 != id {
            hole = (hole + 1) & mask;
        }
        let mut place = hole;
        loop {
            place = (place + 1) & mask;
            let (tag, id) = self.places[place];
            if id == VACANT {
                break;
            }
            // It may move to the hole unless its home lies after the hole, going round.
            let home = (tag >> self.shift) as usize;
            if place.wrapping_sub(home) & mask >= place.wrapping_sub(hole) & mask {
                self.places[hole] = (tag, id);
                hole = place;
            }
        }
        self.places[hole].1 = VACANT;
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn hash_tells_keys_apart() {
        let mut seen = HashSet::new();
        for len in 0..70 {
            for at in 0..=len {
                let mut key = vec![b'x'; len];
                if at < len {
                    key[at] = b'y';
                }
                seen.insert(lane_hash(7, &key));
            }
        }
        assert_eq!(seen.len(), (0..70).map(|len| len + 1).sum::<usize>());
        let many: HashSet<u64> = (0..200_000).map(|i| lane_hash(7, format!("key-{i}").as_bytes())).collect();
        assert_eq!(many.len(), 200_000);
        assert_ne!(lane_hash(1, b"k"), lane_hash(2, b"k"));
    }

    #[test]
    fn hash_spreads_over_the_index() {
        for slot in 0..3 {
            let homes: HashSet<u32> = (0..4096)
                .map(|i| Index::tag(slot, Route::new(lane_hash(7, format!("key-{i}").as_bytes()))) >> 20)
                .collect();
            // 4096 balls into 4096 places leave 1 − 1/e of them used.
            assert!((2500..2680).contains(&homes.len()), "{}", homes.len());
        }
        let partitions: HashSet<u32> = (0..64).map(|slot| Index::tag(slot, Route::new(0)) >> 22).collect();
        assert!(partitions.len() > 50, "{}", partitions.len());
    }
}
