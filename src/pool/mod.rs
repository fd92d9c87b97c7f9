//! The pool's bookkeeping: which record may run next and which offset may be committed.
//!
//! Everything here is plain data without threads, locks or a clock. One [`board::Board`] stands behind one mutex; the
//! network thread delivers records to it, workers take and complete them.

pub mod batch;
pub mod board;
pub mod budget;
pub mod hash;
mod items;
pub mod lanes;
pub mod route;
pub mod run;
mod sequence;
pub mod tracker;

#[cfg(test)]
mod tests;
