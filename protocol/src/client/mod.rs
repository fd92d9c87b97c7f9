//! Composites over many connections, still without IO.

pub mod make_topic;
pub mod net;
pub mod producer;
