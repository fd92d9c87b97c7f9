//! Valid messages of any kind, made by the decoder itself: it is given a buffer that invents what it asks for and
//! keeps it. What was handed out is an encoding, since decoding it again asks the same questions.

use bytes::{Buf, Bytes, TryGetError};
use kafka_protocol::protocol::Decodable;
use kafka_protocol::protocol::buf::ByteBuf;

use crate::rng::Rng;

/// A body, and where its counts and lengths stand.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) body: Vec<u8>,
    /// Places of single bytes that are a count, a length, a tag or a truth value.
    pub(crate) marks: Vec<usize>,
}

/// Bodies of this size get no more elements.
const BODY_BYTES_FULL: usize = 1500;
const TRIES_MAX: usize = 2000;

/// A body of message `M`; none where the decoder refused all that was invented.
///
/// `wide_counts` says that the layout has counts of 32 bits (all are before the flexible versions of KIP-482): then
/// every number is small.
pub(crate) fn message<M: Decodable>(rng: &mut Rng, version: i16, wide_counts: bool) -> Option<Sample> {
    (0..TRIES_MAX).find_map(|_| {
        let mut source = Source { rng, given: Vec::new(), marks: Vec::new(), ahead: [0; 16], wide_counts };
        M::decode(&mut source, version).ok()?;
        let sample = Sample { body: source.given, marks: source.marks };
        let mut again = Bytes::copy_from_slice(&sample.body);
        assert!(
            M::decode(&mut again, version).is_ok() && again.is_empty(),
            "what was read can be read again"
        );
        Some(sample)
    })
}

struct Source<'a> {
    rng: &'a mut Rng,
    given: Vec<u8>,
    marks: Vec<usize>,
    /// What the next number is read from.
    ahead: [u8; 16],
    wide_counts: bool,
}

impl Buf for Source<'_> {
    fn remaining(&self) -> usize {
        usize::MAX / 2
    }

    fn chunk(&self) -> &[u8] {
        &self.ahead
    }

    fn advance(&mut self, count: usize) {
        self.given.extend_from_slice(&self.ahead[..count]);
        if self.wide_counts {
            // The same few in each width: the last byte of a number is its value.
            self.marks.push(self.given.len() - 1);
            self.ahead = [0; 16];
            self.ahead[3] = self.rng.below(4) as u8;
            return;
        }
        let value = self.rng.odd_i64().to_be_bytes();
        // A width of its own, whatever the number's: small ones and those at an edge come out for each.
        let width = *self.rng.pick(&[2, 4, 8]);
        self.ahead = [0; 16];
        self.ahead[..width].copy_from_slice(&value[8 - width..]);
    }

    fn try_get_u8(&mut self) -> Result<u8, TryGetError> {
        let full = self.given.len() > BODY_BYTES_FULL;
        let value = match self.rng.below(48) {
            0 => 0,
            1..=3 if !full => self.rng.below(12) as u8,
            4..=12 if !full => 3,
            13..=26 if !full => 2,
            _ => 1,
        };
        self.marks.push(self.given.len());
        self.given.push(value);
        Ok(value)
    }
}

impl ByteBuf for Source<'_> {
    fn peek_bytes(&mut self, _: std::ops::Range<usize>) -> Bytes {
        unreachable!("no message is peeked into")
    }

    fn get_bytes(&mut self, size: usize) -> Bytes {
        // Of few letters, so that names meet.
        let bytes: Vec<u8> = (0..size).map(|_| b'a' + self.rng.below(4) as u8).collect();
        self.given.extend_from_slice(&bytes);
        bytes.into()
    }
}
