//! The virtual clock: what is to happen when, in an order that the seed alone decides.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

use bytes::Bytes;
use keylane_protocol::client::net::LinkId;

use crate::random::Random;

/// Somebody with connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Who {
    Member(usize),
    Feeder(usize),
}

/// What happens. Connections are named by a number that is never used twice.
#[derive(Debug)]
pub(crate) enum Event {
    /// The attempt reaches the broker.
    Accept(u64),
    /// The client hears that it is connected.
    Opened(u64),
    /// The client hears that it is not.
    Refused(Who, LinkId, u64),
    ToBroker(u64, Bytes),
    ToClient(u64, Bytes),
    /// The broker hears that the connection is gone.
    BrokerLost(u64),
    /// The client does.
    ClientLost(u64),
    /// The loop of a process goes round.
    Turn(Who),
    /// A worker wakes up, or is done with a record.
    Hand(usize, usize),
    /// The cluster's own deadline.
    Cluster,
    /// A feeder makes records.
    Make(usize),
    /// A process begins.
    Start,
    /// A node comes back.
    NodeUp(i32),
    /// Something goes wrong, or not.
    Act,
}

struct Entry {
    at: Duration,
    number: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The earliest is the greatest, for the heap.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// Now, what comes, and chance.
pub(crate) struct Time {
    pub(crate) now: Duration,
    pub(crate) random: Random,
    queue: BinaryHeap<Entry>,
    count: u64,
    /// The number of the event that happens now.
    current: u64,
}

impl Time {
    pub(crate) fn new(random: Random) -> Self {
        Time { now: Duration::ZERO, random, queue: BinaryHeap::new(), count: 0, current: 0 }
    }

    /// At the same time things happen in the order in which they were scheduled.
    pub(crate) fn at(&mut self, at: Duration, event: Event) {
        self.count += 1;
        self.queue.push(Entry { at: at.max(self.now), number: self.count, event });
    }

    /// The event that happens now happens later instead, in its old order among others of that time.
    pub(crate) fn postpone(&mut self, at: Duration, event: Event) {
        self.queue.push(Entry { at: at.max(self.now), number: self.current, event });
    }

    pub(crate) fn after(&mut self, pause: Duration, event: Event) {
        self.at(self.now + pause, event);
    }

    /// The next thing that happens up to `limit`; time goes on to it.
    pub(crate) fn next(&mut self, limit: Duration) -> Option<Event> {
        if self.queue.peek()?.at > limit {
            return None;
        }
        let entry = self.queue.pop()?;
        self.now = self.now.max(entry.at);
        self.current = entry.number;
        Some(entry.event)
    }

    /// How many things were scheduled so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}
