//! keylane: a Kafka topic worked through by many workers, each key in order.

#[cfg(feature = "broker")]
pub mod broker;
pub mod cli;
#[cfg(feature = "broker")]
pub mod demo;
pub mod dlq;
pub mod driver;
pub mod exit;
pub mod group;
pub mod handler;
pub mod lag;
pub mod listen;
pub mod pool;
mod prometheus;
pub mod report;
pub mod seed;
mod session;
mod table;
pub mod topic;
pub mod verify;
