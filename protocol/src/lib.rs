//! keylane's Kafka client as pure state machines.
//!
//! Nothing here has a socket, a thread, a clock or randomness of its own: callers pass bytes and `now` in and take
//! bytes, deadlines and events out. `now` is a [`std::time::Duration`] since an arbitrary start that never goes back.

pub mod admin;
pub mod api;
pub mod bounded;
pub mod client;
pub mod commit;
pub mod connection;
pub mod error;
pub mod fetch;
pub mod frame;
pub mod group;
pub mod lag;
pub mod metadata;
pub mod offsets;
pub mod partitioner;
pub mod produce;
pub mod records;
