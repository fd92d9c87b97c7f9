//! Where a record goes: its key turned into the one number that the board's dispatcher needs, so that no key bytes are
//! kept there.

use super::hash::{fnv32a, fnv32a_from};
use super::lanes::lane_hash;

/// A record's lane (64-bit key hash within its partition) or its worker, by dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route(u64);

impl Route {
    /// No order with any other record: a lane of its own, or the next worker in turn.
    pub const FREE: Route = Route(u64::MAX);

    /// The route with this value; `u64::MAX` is [`Route::FREE`].
    pub const fn new(value: u64) -> Route {
        Route(value)
    }

    /// The lane hash, or the worker's index.
    pub const fn value(self) -> u64 {
        self.0
    }
}

/// One record on its way into the board.
#[derive(Clone, Copy, Debug)]
pub struct Routed {
    /// Its offset.
    pub offset: i64,
    /// Where it goes.
    pub route: Route,
}

/// `--order`: which records may not overtake each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Those of one key in one partition.
    Key,
    /// Those of one partition.
    Partition,
    /// None.
    None,
}

/// `--lane-key`: what counts as a record's key for its lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LaneKey {
    /// The record's key.
    #[default]
    Key,
    /// The last header of this name.
    Header(Vec<u8>),
    /// What this JSON pointer (RFC 6901) finds in the value.
    Json(String),
}

/// `--null-key`: what becomes of records without a key. The empty key is a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NullKey {
    /// No order among them.
    Spread,
    /// In order: one lane per partition, or worker 0.
    Lane,
}

/// `--dispatch`, and what counts as the key there.
#[derive(Clone, Copy, Debug)]
pub enum Routing {
    /// `lanes`.
    Lanes {
        /// `--order`.
        order: Order,
        /// Differs from process to process, so that two lanes that share a hash do not share it everywhere.
        seed: u64,
    },
    /// `hash`: worker = fnv32a(key) mod `workers`.
    Hash {
        /// Number of workers, not 0.
        workers: u32,
    },
    /// `partition-hash`: the same over topic, partition (four bytes, big endian) and key.
    PartitionHash {
        /// Number of workers, not 0.
        workers: u32,
    },
}

/// Routes the records of one partition.
#[derive(Clone, Copy, Debug)]
pub struct Router {
    routing: Routing,
    null: Route,
    /// FNV state after topic and partition.
    prefix: u32,
}

impl Router {
    /// A router for `partition` of `topic`.
    pub fn new(routing: Routing, null_key: NullKey, topic: &str, partition: i32) -> Router {
        let null = match (routing, null_key) {
            (Routing::Lanes { order: Order::Partition, .. }, _) => Route(0),
            (Routing::Lanes { order: Order::None, .. }, _) | (_, NullKey::Spread) => Route::FREE,
            (_, NullKey::Lane) => Route(0),
        };
        let prefix = fnv32a_from(fnv32a(topic.as_bytes()), &partition.to_be_bytes());
        Router { routing, null, prefix }
    }

    /// Whether all records of the partition go the same way, whatever their keys.
    pub fn is_by_partition(&self) -> bool {
        matches!(self.routing, Routing::Lanes { order: Order::Partition, .. })
    }

    /// The route of a record with this key.
    #[inline]
    pub fn route(&self, key: Option<&[u8]>) -> Route {
        let Some(key) = key else { return self.null };
        match self.routing {
            Routing::Lanes { order: Order::Key, seed } => Route(lane_hash(seed, key)),
            Routing::Lanes { order: Order::Partition, .. } => Route(0),
            Routing::Lanes { order: Order::None, .. } => Route::FREE,
            Routing::Hash { .. } | Routing::PartitionHash { .. } if key.is_empty() => Route(0),
            Routing::Hash { workers } => Route(u64::from(fnv32a(key) % workers)),
            Routing::PartitionHash { workers } => Route(u64::from(fnv32a_from(self.prefix, key) % workers)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router(routing: Routing, null_key: NullKey) -> Router {
        Router::new(routing, null_key, "t", 3)
    }

    #[test]
    fn lanes_by_order() {
        let key = router(Routing::Lanes { order: Order::Key, seed: 1 }, NullKey::Spread);
        assert_eq!(key.route(None), Route::FREE);
        assert_eq!(key.route(Some(b"a")), key.route(Some(b"a")));
        assert_ne!(key.route(Some(b"a")), key.route(Some(b"b")));
        assert_ne!(key.route(Some(b"")), Route::FREE, "the empty key is a key");
        let lane = router(Routing::Lanes { order: Order::Key, seed: 1 }, NullKey::Lane);
        assert_ne!(lane.route(None), Route::FREE);
        assert_ne!(lane.route(None), lane.route(Some(b"")));
        let partition = router(Routing::Lanes { order: Order::Partition, seed: 1 }, NullKey::Spread);
        assert_eq!(partition.route(None), partition.route(Some(b"a")));
        let none = router(Routing::Lanes { order: Order::None, seed: 1 }, NullKey::Lane);
        assert_eq!((none.route(None), none.route(Some(b"a"))), (Route::FREE, Route::FREE));
    }

    #[test]
    fn workers_by_hash() {
        let hash = router(Routing::Hash { workers: 8 }, NullKey::Spread);
        assert_eq!(hash.route(Some(b"foobar")), Route(u64::from(0xbf9c_f968_u32 % 8)));
        assert_eq!(hash.route(Some(b"")), Route(0));
        assert_eq!(hash.route(None), Route::FREE);
        let lane = router(Routing::Hash { workers: 8 }, NullKey::Lane);
        assert_eq!(lane.route(None), Route(0));
        let partition = router(Routing::PartitionHash { workers: 1000 }, NullKey::Spread);
        assert_eq!(partition.route(Some(b"k")), Route(u64::from(fnv32a(b"t\0\0\0\x03k") % 1000)));
        assert_eq!(partition.route(Some(b"")), Route(0));
    }
}
