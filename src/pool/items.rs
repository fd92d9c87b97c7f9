//! Queued records, in a slab with linked queues through it, so that a record costs no allocation and a queue eight
//! bytes.

/// No item.
const NIL: u32 = u32::MAX;

/// One queued record: 16 bytes, four to a cache line, because the slab's cache misses are most of a record's cost. The
/// rest is told by its batch's [`Origin`](super::batch::Origin).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) batch: u32,
    /// Index of the record within its batch.
    pub(crate) index: u32,
    /// Offset past the first one delivered of the batch.
    pub(crate) delta: u32,
    next: u32,
}

impl Item {
    #[inline]
    pub(crate) fn new(batch: u32, index: u32, delta: u32) -> Item {
        Item { batch, index, delta, next: NIL }
    }
}

/// A first-in first-out queue of items that live in [`Items`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    head: u32,
    tail: u32,
}

impl Queue {
    pub(crate) const EMPTY: Queue = Queue { head: NIL, tail: NIL };

    pub(crate) fn is_empty(self) -> bool {
        self.head == NIL
    }
}

/// The slab. Its size is the largest number of records that were ever queued at once.
#[derive(Debug)]
pub(crate) struct Items {
    slab: Vec<Item>,
    /// Free places. A stack beside the slab and not a list through it: the list's every step would wait for memory.
    free: Vec<u32>,
}

impl Items {
    pub(crate) fn new() -> Items {
        Items { slab: Vec::new(), free: Vec::new() }
    }

    // Not inlined, the item goes through memory and each store waits for the ones before.
    #[inline(always)]
    pub(crate) fn push_back(&mut self, queue: &mut Queue, item: Item) {
        let id = self.insert(item);
        if queue.tail == NIL {
            queue.head = id;
        } else {
            self.slab[queue.tail as usize].next = id;
        }
        queue.tail = id;
    }

    pub(crate) fn push_front(&mut self, queue: &mut Queue, item: Item) {
        let id = self.insert(Item { next: queue.head, ..item });
        if queue.tail == NIL {
            queue.tail = id;
        }
        queue.head = id;
    }

    #[inline]
    pub(crate) fn pop_front(&mut self, queue: &mut Queue) -> Option<Item> {
        if queue.head == NIL {
            return None;
        }
        let id = queue.head;
        let item = self.slab[id as usize];
        queue.head = item.next;
        if queue.head == NIL {
            queue.tail = NIL;
        }
        self.free.push(id);
        Some(item)
    }

    /// Removes every item that `keep` refuses; the others stay in order.
    pub(crate) fn retain(&mut self, queue: &mut Queue, mut keep: impl FnMut(&Item) -> bool) {
        let mut id = queue.head;
        *queue = Queue::EMPTY;
        while id != NIL {
            let item = self.slab[id as usize];
            if keep(&item) {
                if queue.tail == NIL {
                    queue.head = id;
                } else {
                    self.slab[queue.tail as usize].next = id;
                }
                self.slab[id as usize].next = NIL;
                queue.tail = id;
            } else {
                self.free.push(id);
            }
            id = item.next;
        }
    }

    /// The items of a queue, first to last.
    pub(crate) fn iter(&self, queue: Queue) -> impl Iterator<Item = &Item> {
        let mut id = queue.head;
        std::iter::from_fn(move || {
            let item = self.slab.get(id as usize)?;
            id = item.next;
            Some(item)
        })
    }

    #[inline(always)]
    fn insert(&mut self, item: Item) -> u32 {
        if let Some(id) = self.free.pop() {
            self.slab[id as usize] = item;
            return id;
        }
        let id = u32::try_from(self.slab.len()).expect("queued records are bounded far below 2^32");
        assert!(id != NIL, "queued records are bounded far below 2^32");
        self.slab.push(item);
        id
    }
}
