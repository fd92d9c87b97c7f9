//! A message's bytes that refuse a count or length which the bytes behind it cannot fill.
//!
//! kafka-protocol's generated decoders allocate what the count of an array claims before they read one element: nine
//! bytes could ask for 400 GB and end the process. They read through a trait, though, and in the flexible layouts
//! (KIP-482) every count, length and tag number is an unsigned variable-length integer, which they read byte by byte;
//! the only other single bytes read so are truth values. So this buffer follows each such integer and ends the
//! reading where it passes what is left, before the decoder has it.
//!
//! Guarantee: claim ≤ bytes left + [`CLAIM_SLACK`]. An element takes at least one byte, so what a decoder asks for is
//! at most the bytes received times the size of an element in memory, once per level of nesting: 64 to 344 bytes by
//! API, as the hostile tests measure. What is asked for beyond the elements that are there is never touched.
//!
//! Layouts before the flexible ones count with 32 bits, which look like any other number; see
//! [`api::decode_response`](crate::api::decode_response) for the only one that is read.

use std::ops::Range;

use bytes::{Buf, Bytes, TryGetError};
use kafka_protocol::protocol::buf::ByteBuf;

/// A claim may pass the bytes left by this much: the number of an unknown tag near the end may be larger than what
/// is left, and Kafka numbers the tags of a message from 0 without gaps.
pub const CLAIM_SLACK: usize = 64;
/// Bits that the bytes of a 32-bit integer bring before its fifth and last.
const SHIFT_MAX: u32 = 28;

/// Bytes to decode a message of a flexible version from.
#[derive(Debug)]
pub struct Bounded {
    bytes: Bytes,
    /// The integer that is being read: the bits so far, and where the next go. A truth value of 128 or more looks like
    /// the first byte of one; then the integer behind it is taken for larger than it is, never for smaller.
    claim: u64,
    shift: u32,
}

impl Bounded {
    /// All of `bytes`.
    pub fn new(bytes: Bytes) -> Self {
        Bounded { bytes, claim: 0, shift: 0 }
    }

    fn begin_anew(&mut self) {
        self.claim = 0;
        self.shift = 0;
    }
}

impl Buf for Bounded {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.begin_anew();
        self.bytes.advance(count);
    }

    fn try_get_u8(&mut self) -> Result<u8, TryGetError> {
        let byte = self.bytes.try_get_u8()?;
        let bits = u64::from(byte & 0x7f);
        self.claim = match bits {
            0 => self.claim,
            _ if self.shift > SHIFT_MAX => u64::MAX,
            bits => self.claim | bits << self.shift,
        };
        let left = self.bytes.len();
        if self.claim > (left + CLAIM_SLACK) as u64 {
            let requested = usize::try_from(self.claim).unwrap_or(usize::MAX);
            return Err(TryGetError { requested, available: left });
        }
        if byte < 0x80 {
            self.begin_anew();
        } else {
            self.shift += 7;
        }
        Ok(byte)
    }
}

impl ByteBuf for Bounded {
    fn peek_bytes(&mut self, range: Range<usize>) -> Bytes {
        self.bytes.slice(range)
    }

    fn get_bytes(&mut self, size: usize) -> Bytes {
        self.begin_anew();
        self.bytes.split_to(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads single bytes until one is refused; how many were not.
    fn taken(bytes: &[u8]) -> usize {
        let mut bounded = Bounded::new(Bytes::copy_from_slice(bytes));
        std::iter::from_fn(|| bounded.try_get_u8().ok()).count()
    }

    #[test]
    fn a_claim_past_what_is_left_is_refused() {
        assert_eq!(taken(&[]), 0);
        assert_eq!(taken(&[CLAIM_SLACK as u8]), 1);
        assert_eq!(taken(&[CLAIM_SLACK as u8 + 1]), 0);
        assert_eq!(taken(&[CLAIM_SLACK as u8 + 1, 0]), 2);
        assert_eq!(taken(&[0xff, 0xff, 0xff, 0xff, 0x0f]), 0);
        assert_eq!(taken(&[0x80, 0x80, 0x80, 0x80, 0x01]), 4);
        // Longer than 32 bits can be, however far it goes on.
        assert_eq!(taken(&[[0x80; 200].as_slice(), &[1]].concat()), 200);
    }

    #[test]
    fn numbers_of_other_kinds_begin_anew() {
        let mut bounded = Bounded::new(Bytes::from_static(&[0x81, 0, 0, 0, 9, 0x81, b'x', 0x01, 0x41]));
        assert_eq!(bounded.try_get_u8().ok(), Some(0x81));
        assert_eq!(bounded.try_get_i32().ok(), Some(9));
        assert_eq!(bounded.try_get_u8().ok(), Some(0x81));
        assert_eq!(bounded.try_get_bytes(1).ok(), Some(Bytes::from_static(b"x")));
        assert_eq!(bounded.try_get_u8().ok(), Some(1));
        assert!(bounded.try_get_u8().is_err(), "65 elements in no bytes");
    }
}
