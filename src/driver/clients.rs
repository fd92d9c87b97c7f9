//! The protocol crate's composites as clients of the loop.

use std::time::Duration;

use keylane_protocol::client::admin::{self, Admin};
use keylane_protocol::client::consumer::{self, Consumer};
use keylane_protocol::client::net::Net;
use keylane_protocol::client::producer::{Producer, ProducerTag};
use keylane_protocol::client::reader::{self, Reader};

use super::Client;

impl Client for Admin {
    type Tag = admin::Tag;

    fn net(&mut self) -> &mut Net<admin::Tag> {
        Admin::net(self)
    }

    fn poll(&mut self, now: Duration) {
        Admin::poll(self, now);
    }

    fn deadline(&self) -> Option<Duration> {
        Admin::deadline(self)
    }
}

impl Client for Consumer {
    type Tag = consumer::Tag;

    fn net(&mut self) -> &mut Net<consumer::Tag> {
        Consumer::net(self)
    }

    fn poll(&mut self, now: Duration) {
        Consumer::poll(self, now);
    }

    fn deadline(&self) -> Option<Duration> {
        Consumer::deadline(self)
    }
}

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

impl Client for Reader {
    type Tag = reader::Tag;

    fn net(&mut self) -> &mut Net<reader::Tag> {
        Reader::net(self)
    }

    fn poll(&mut self, now: Duration) {
        Reader::poll(self, now);
    }

    fn deadline(&self) -> Option<Duration> {
        Reader::deadline(self)
    }
}
