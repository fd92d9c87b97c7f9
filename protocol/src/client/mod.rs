//! Composites over many connections, still without IO.

pub mod admin;
pub mod consumer;
pub mod lag;
pub mod make_topic;
pub mod net;
pub mod producer;
pub mod reader;
