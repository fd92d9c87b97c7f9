//! What can be wrong with a batch. Always the peer's or the disk's fault, so always a value and never a panic.
//!
//! Callers add the topic and partition; a batch knows at most its own base offset.

use super::Codec;
use std::fmt;

/// A batch that cannot be read, with the offset that it claims to begin at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchError {
    /// The batch's base offset, where its header could be read (a batch being written has none).
    pub base_offset: Option<i64>,
    /// What is wrong.
    pub kind: BatchErrorKind,
}

/// What is wrong with a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchErrorKind {
    /// The bytes contradict the format; the text says where.
    Damaged(&'static str),
    /// The CRC-32C in the header is not that of the bytes.
    CrcMismatch {
        /// The header's value.
        expected: u32,
        /// What the bytes give.
        actual: u32,
    },
    /// A message format other than 2: 0 and 1 are from before Kafka 0.11.
    UnsupportedMagic(i8),
    /// This build was made without the codec.
    UnsupportedCodec(Codec),
    /// A codec number that Kafka has not given out.
    UnknownCodec(i16),
    /// Unpacked, or built, the batch would pass the limit.
    TooLarge {
        /// The limit that was set.
        bytes_max: usize,
    },
}

impl BatchErrorKind {
    pub(super) fn at(self, base_offset: i64) -> BatchError {
        BatchError { base_offset: Some(base_offset), kind: self }
    }
}

impl From<BatchErrorKind> for BatchError {
    fn from(kind: BatchErrorKind) -> Self {
        BatchError { base_offset: None, kind }
    }
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.base_offset {
            Some(offset) => write!(f, "record batch at offset {offset}: {}", self.kind),
            None => write!(f, "record batch: {}", self.kind),
        }
    }
}

impl fmt::Display for BatchErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BatchErrorKind::Damaged(what) => write!(f, "damaged: {what}"),
            BatchErrorKind::CrcMismatch { expected, actual } => {
                write!(f, "damaged: CRC is {actual:08x}, the header says {expected:08x}")
            }
            BatchErrorKind::UnsupportedMagic(magic @ (0 | 1)) => {
                write!(f, "message format {magic}, from before Kafka 0.11, is not supported")
            }
            BatchErrorKind::UnsupportedMagic(magic) => write!(f, "message format {magic} is not supported"),
            BatchErrorKind::UnsupportedCodec(codec) => write!(f, "this build is without {codec} compression"),
            BatchErrorKind::UnknownCodec(id) => write!(f, "compression codec {id} is unknown"),
            BatchErrorKind::TooLarge { bytes_max } => write!(f, "larger than the limit of {bytes_max} bytes"),
        }
    }
}

impl std::error::Error for BatchError {}
