//! keylane's Kafka client as pure state machines.
//!
//! Nothing here has a socket, a thread, a clock or randomness of its own: callers pass bytes and `now` in and take
//! bytes, deadlines and events out. `now` is a [`std::time::Duration`] since an arbitrary start that never goes back.

pub mod api;
pub mod client;
pub mod connection;
pub mod error;
pub mod frame;
pub mod group;
pub mod metadata;
pub mod partitioner;
pub mod produce;
pub mod records;
