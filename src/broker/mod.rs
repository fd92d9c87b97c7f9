//! An in-memory Kafka for development and tests: `keylane broker`, `keylane demo` and the simulator.
//!
//! [`cluster::Cluster`] is the whole cluster as one state machine without IO: bytes of connections and `now` in, bytes
//! and deadlines out. It knows no socket, no clock and no thread; randomness comes from the seed in its configuration.
//! So the same code serves real clients over TCP and runs in simulated time.
//!
//! Every node sees the same logs and groups: replication is perfect. What clients notice of a cluster (leaders that
//! move and their epochs, coordinators, nodes that are down) is there; elections, ISRs and disks are not. Nothing
//! survives the process.

pub(crate) mod api;
pub mod cluster;
mod connection;
pub mod coordinator;
pub mod fault;
pub(crate) mod fetches;
pub(crate) mod group;
pub mod inspect;
pub(crate) mod log;
pub mod role;
pub(crate) mod state;
pub(crate) mod topics;
pub(crate) mod transactions;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
mod tests;
