//! `pool` and `sequential`: records in, handled by workers, offsets out.
//!
//! The bookkeeping ([`board`] and what it is made of) is plain data without threads, locks or a clock. One
//! [`board::Board`] stands behind one mutex ([`shared`]); the [`engine`] delivers records to it, the workers
//! ([`worker`]) take and complete them. Both go in steps that never wait, with the time given from outside: threads and
//! sockets come to them in [`role`] and `threads`, a virtual clock and wires of bytes in `tests/sim`.

pub mod at_work;
pub mod batch;
pub mod board;
pub mod budget;
mod commands;
mod disk;
mod ending;
pub mod engine;
mod filling;
pub mod hash;
mod hot;
mod intake;
mod items;
mod json_pointer;
mod lane_key;
pub mod lanes;
mod letters;
mod metrics;
pub mod role;
pub mod route;
pub mod run;
mod sequence;
pub mod shared;
mod starting;
mod stats;
mod status;
mod threads;
pub mod tracker;
pub mod tries;
mod verdicts;
mod watch;
pub mod worker;

#[cfg(test)]
mod tests;
