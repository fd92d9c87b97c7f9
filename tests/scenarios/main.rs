//! The four roles as black boxes beside brokers: what the program promises, scenario by scenario.
//!
//! Each test starts `keylane broker` for itself, so that `cargo test` needs nothing else. With
//! `KEYLANE_TEST_KAFKA=HOST:PORT` the same scenarios run on that Kafka (`scripts/kafka` starts one), and with them
//! those that need Java or a real broker: clients of others in the same group, logs that Java wrote, older versions.
//! Without it one line says that these were left out. `KEYLANE_TEST_FULL=1` runs the full sizes; else they are small
//! enough for a CI machine. A test that stops brokers, or wants another version, starts a cluster of its own.
//!
//! What a test believes is a ledger: the lines of `--print`, which are written when a record is finished.

#![allow(missing_docs, unreachable_pub, reason = "tests; the names say what they do")]
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "../support/child.rs"]
mod child;

mod cluster;
mod ledger;

mod crash;
mod exec;
mod failures;
mod handlers;
mod logs;
mod memory;
mod order;
mod others;
mod outage;
mod pipe;
mod produce;
mod rates;
mod rebalance;
mod stop;
mod suite;
mod usage;
mod versions;
mod watch;
