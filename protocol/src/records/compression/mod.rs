//! The codecs of Kafka's batches, each over a whole payload at once.
//!
//! Unpacking never holds more than the caller's limit: room is made only as data arrives or as a checked claim allows,
//! and a claim past the limit is an error before any memory is taken. `lz4` and `none` are always there; `gzip`,
//! `snappy` and `zstd` are features, and without them the number is known and refused by name.

#[cfg(feature = "gzip")]
mod gzip;
mod lz4;
#[cfg(feature = "snappy")]
mod snappy;
mod xxhash;
#[cfg(feature = "zstd")]
mod zstd;

use super::BatchErrorKind;
use std::fmt;
use std::str::FromStr;

/// How a batch's records are packed; the low three bits of its attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Codec {
    /// Not at all.
    #[default]
    None,
    /// RFC 1952.
    Gzip,
    /// Snappy, in Java's framing or as one raw block.
    Snappy,
    /// The LZ4 frame format.
    Lz4,
    /// RFC 8878.
    Zstd,
}

/// Every codec, in the order of their numbers.
const CODECS: [(Codec, &str); 5] = [
    (Codec::None, "none"),
    (Codec::Gzip, "gzip"),
    (Codec::Snappy, "snappy"),
    (Codec::Lz4, "lz4"),
    (Codec::Zstd, "zstd"),
];

impl Codec {
    /// The number in a batch's attributes.
    pub fn id(self) -> i16 {
        self as i16
    }

    /// The codec of a number, if Kafka has given it out.
    pub fn from_id(id: i16) -> Option<Self> {
        let index = usize::try_from(id).ok()?;
        CODECS.get(index).map(|(codec, _)| *codec)
    }

    /// Kafka's name for it, as in `compression.type`.
    pub fn name(self) -> &'static str {
        CODECS[self as usize].1
    }

    /// Whether this build can read and write it.
    pub fn is_supported(self) -> bool {
        match self {
            Codec::None | Codec::Lz4 => true,
            Codec::Gzip => cfg!(feature = "gzip"),
            Codec::Snappy => cfg!(feature = "snappy"),
            Codec::Zstd => cfg!(feature = "zstd"),
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no codec's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownCodecName;

impl fmt::Display for UnknownCodecName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not one of none, gzip, snappy, lz4, zstd")
    }
}

impl std::error::Error for UnknownCodecName {}

impl FromStr for Codec {
    type Err = UnknownCodecName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        CODECS.iter().find(|(_, known)| *known == name).map(|(codec, _)| *codec).ok_or(UnknownCodecName)
    }
}

/// Unpacks `packed` into `buffer`, whose old content does not matter. Gives the buffer back with the number of bytes
/// that are data; its length is never cut, so that it need not be cleared again.
pub(super) fn decompress(
    codec: Codec,
    packed: &[u8],
    buffer: Vec<u8>,
    size_max: usize,
) -> Result<(Vec<u8>, usize), BatchErrorKind> {
    let mut out = Output { buffer, len: 0, size_max };
    match codec {
        Codec::None => {
            let room = out.reserve(packed.len());
            room.get_mut(..packed.len()).ok_or(too_large(size_max))?.copy_from_slice(packed);
            out.advance(packed.len());
        }
        Codec::Lz4 => lz4::decompress(packed, &mut out)?,
        #[cfg(feature = "gzip")]
        Codec::Gzip => gzip::decompress(packed, &mut out)?,
        #[cfg(feature = "snappy")]
        Codec::Snappy => snappy::decompress(packed, &mut out)?,
        #[cfg(feature = "zstd")]
        Codec::Zstd => zstd::decompress(packed, &mut out)?,
        #[allow(unreachable_patterns, reason = "reached when a feature is off")]
        _ => return Err(BatchErrorKind::UnsupportedCodec(codec)),
    }
    Ok((out.buffer, out.len))
}

fn too_large(bytes_max: usize) -> BatchErrorKind {
    BatchErrorKind::TooLarge { bytes_max }
}

/// Packs payloads; keeps each codec's tables and buffers from batch to batch.
#[derive(Default)]
pub(super) struct Compressor {
    lz4: lz4::Encoder,
    #[cfg(feature = "snappy")]
    snappy: snappy::Encoder,
}

impl Compressor {
    /// Appends `payload`, packed, to `out`.
    pub(super) fn compress(
        &mut self,
        codec: Codec,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), BatchErrorKind> {
        match codec {
            Codec::None => out.extend_from_slice(payload),
            Codec::Lz4 => self.lz4.compress(payload, out),
            #[cfg(feature = "gzip")]
            Codec::Gzip => gzip::compress(payload, out),
            #[cfg(feature = "snappy")]
            Codec::Snappy => self.snappy.compress(payload, out),
            #[cfg(feature = "zstd")]
            Codec::Zstd => zstd::compress(payload, out),
            #[allow(unreachable_patterns, reason = "reached when a feature is off")]
            _ => return Err(BatchErrorKind::UnsupportedCodec(codec)),
        }
        Ok(())
    }
}

/// Where a codec unpacks to: `buffer[..len]` is done, what follows is room, and neither passes `size_max`.
///
/// The room holds whatever the last batch left there. Clearing it for each batch would cost as much as a third of
/// the decoding, and cutting a `Vec` means clearing it when it grows again; so its length only rises.
struct Output {
    buffer: Vec<u8>,
    len: usize,
    size_max: usize,
}

impl Output {
    /// The room, made `wanted` bytes long if `size_max` allows it, else as long as it allows.
    fn reserve(&mut self, wanted: usize) -> &mut [u8] {
        let target = self.len.saturating_add(wanted).min(self.size_max);
        if target > self.buffer.len() {
            if self.len == 0 && target > self.buffer.capacity() {
                // Fresh zeroed memory comes from the system unwritten; growing in place would copy and write it all.
                self.buffer = Vec::new();
                self.buffer = vec![0; target];
            } else {
                self.buffer.reserve_exact(target - self.buffer.len());
                self.buffer.resize(target, 0);
            }
        }
        self.split().1
    }

    /// What is done, and the room behind it.
    fn split(&mut self) -> (&[u8], &mut [u8]) {
        let end = self.buffer.len().min(self.size_max);
        let (done, room) = self.buffer[..end].split_at_mut(self.len);
        (done, room)
    }

    /// Counts `bytes` of the room as done.
    fn advance(&mut self, bytes: usize) {
        self.len += bytes;
        assert!(self.len <= self.size_max && self.len <= self.buffer.len(), "a codec passed its room");
    }

    /// Reads `source` to its end, making room as data arrives: at most twice what has arrived.
    #[cfg(any(feature = "gzip", feature = "zstd"))]
    fn read_all(
        &mut self,
        mut read: impl FnMut(&mut [u8]) -> Result<usize, BatchErrorKind>,
        first: usize,
    ) -> Result<(), BatchErrorKind> {
        self.reserve(first);
        loop {
            if self.split().1.is_empty() {
                let wanted = self.len.max(first);
                if self.reserve(wanted).is_empty() {
                    // Full to the limit: only the end may follow.
                    return if read(&mut [0])? == 0 { Ok(()) } else { Err(too_large(self.size_max)) };
                }
            }
            match read(self.split().1)? {
                0 => return Ok(()),
                bytes => self.advance(bytes),
            }
        }
    }
}

/// Splits off the first `length` bytes.
fn take<'a>(input: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some(taken)
}

/// Splits off an array.
fn take_array<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests;
