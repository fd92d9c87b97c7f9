//! One client's connection: frames in, one request at a time, frames out.
//!
//! A broker answers the requests of a connection in order, and takes up the next one only when the one before it was
//! answered: a JoinGroup that waits holds back everything behind it. Clients rely on the order and suffer from the
//! waiting, so both are kept here.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

use super::api::Ticket;

/// Kafka's `socket.request.max.bytes`.
const FRAME_BYTES_MAX: usize = 100 << 20;

/// What is to become of the answer to the request under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is sent.
    #[default]
    Send,
    /// The connection is cut in its place: the client cannot know that the request was carried out.
    Lose,
    /// The connection is cut in the middle of it.
    Cut,
}

/// A request that has not been answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    pub(super) ticket: Ticket,
    pub(super) fate: Fate,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) node: i32,
    pub(super) client_host: String,
    inbox: BytesMut,
    outbox: VecDeque<Bytes>,
    pub(super) current: Option<Current>,
    /// A fault holds back a request, and what comes behind it.
    pub(super) held: bool,
    /// Nothing more is read; it is closed when what is to be sent has been sent.
    pub(super) closing: bool,
}

impl Connection {
    pub(super) fn new(node: i32, client_host: String) -> Self {
        Connection {
            node,
            client_host,
            inbox: BytesMut::new(),
            outbox: VecDeque::new(),
            current: None,
            held: false,
            closing: false,
        }
    }

    pub(super) fn receive(&mut self, bytes: &[u8]) {
        if !self.closing {
            self.inbox.extend_from_slice(bytes);
        }
    }

    /// Whether so much waits here that the driver should not read on.
    pub(super) fn is_full(&self) -> bool {
        (self.held || self.current.is_some()) && self.inbox.len() > FRAME_BYTES_MAX
    }

    /// The next whole request, without its length.
    ///
    /// # Errors
    /// The length cannot be one.
    pub(super) fn next_frame(&mut self) -> Result<Option<Bytes>, i32> {
        if self.closing || self.held || self.current.is_some() {
            return Ok(None);
        }
        let Some(length) = self.inbox.first_chunk::<4>() else { return Ok(None) };
        let length = i32::from_be_bytes(*length);
        let size = usize::try_from(length).ok().filter(|size| *size <= FRAME_BYTES_MAX).ok_or(length)?;
        if self.inbox.len() - 4 < size {
            return Ok(None);
        }
        self.inbox.advance(4);
        Ok(Some(self.inbox.split_to(size).freeze()))
    }

    pub(super) fn send(&mut self, frame: Bytes) {
        if !frame.is_empty() {
            self.outbox.push_back(frame);
        }
    }

    pub(super) fn outgoing(&self) -> &[u8] {
        self.outbox.front().map_or(&[], Bytes::as_ref)
    }

    pub(super) fn written(&mut self, count: usize) {
        let Some(front) = self.outbox.front_mut() else { return };
        front.advance(count.min(front.len()));
        if front.is_empty() {
            self.outbox.pop_front();
        }
    }

    /// Whether it is to be closed now.
    pub(super) fn is_done(&self) -> bool {
        self.closing && self.outbox.is_empty()
    }
}
