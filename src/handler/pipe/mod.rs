//! `--pipe`: one long-lived child per worker, which gets records as JSON lines and answers them in any order.
//!
//! `session` decides, without IO; `process` is a child and its pipes; `worker` is the thread between the pool and both.

mod answer;
mod process;
mod session;
mod worker;

pub use worker::{Pipe, work};
