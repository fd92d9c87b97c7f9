//! The protocol crate's composites as clients of the loop.

use std::time::Duration;

use keylane_protocol::client::net::Net;
use keylane_protocol::client::producer::{Producer, ProducerTag};

use super::Client;

impl Client for Producer {
    type Tag = ProducerTag;

    fn net(&mut self) -> &mut Net<ProducerTag> {
        Producer::net(self)
    }

    fn poll(&mut self, now: Duration) {
        Producer::poll(self, now);
    }

    fn deadline(&self) -> Option<Duration> {
        Producer::deadline(self)
    }
}
