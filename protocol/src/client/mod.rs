//! Composites over many connections, still without IO.

pub mod net;
