//! keylane against real Kafka: the binary as a black box beside brokers that `scripts/kafka` starts, and beside the
//! Java, franz-go and librdkafka clients.
//!
//! `KEYLANE_TEST_KAFKA=HOST:PORT` names brokers to work on; without it every test here passes and one line says that
//! they were skipped. `KEYLANE_TEST_FULL=1` runs the full sizes; else they are small enough for a CI machine. A test
//! that stops brokers, or wants another version, starts a cluster of its own.
//!
//! What a test believes is a ledger: the lines of `--print`, which are written when a record is finished.

#![allow(missing_docs, unreachable_pub, reason = "tests; the names say what they do")]
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "../support/child.rs"]
mod child;

mod kafka;
mod ledger;

mod broker;
mod crash;
mod java;
mod logs;
mod memory;
mod order;
mod rates;
mod rebalance;
mod stop;
mod usage;
mod versions;
