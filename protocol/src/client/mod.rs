//! Composites over many connections, still without IO.

pub mod consumer;
pub mod net;
