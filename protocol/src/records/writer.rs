//! Building batches for Produce.
//!
//! Records are laid down in their final form as they come, so finishing a batch is one pass of the codec and one of the
//! CRC, and a builder that is used again allocates nothing but the finished bytes. A finished batch is never
//! built again for a retry; only [`restamp`] changes it, when the producer gets a new epoch.

use super::batch::{CRC_START, HEADER_BYTES, TRANSACTIONAL};
use super::compression::Compressor;
use super::varint::{size_i32, size_i64, write_i32, write_i64};
use super::{BatchError, BatchErrorKind, BatchHeader, Codec};
use bytes::Bytes;

/// A record's attributes, two lengths and a count at their longest, the deltas, and its own length.
const RECORD_OVERHEAD_BYTES_MAX: usize = 1 + 10 + 5 * 5;
/// A header's two lengths at their longest.
const HEADER_OVERHEAD_BYTES_MAX: usize = 2 * 5;
/// No batch may be longer, as its length is an `i32` that leaves out the first twelve bytes.
const BATCH_BYTES_MAX: usize = i32::MAX as usize;

/// Who sends a batch: the fields by which a broker drops duplicates (KIP-98).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerStamp {
    /// The producer id that the broker gave out, or -1.
    pub producer_id: i64,
    /// Its epoch, or -1.
    pub producer_epoch: i16,
    /// The sequence number of the first record, or -1.
    pub base_sequence: i32,
    /// Whether the batch belongs to a transaction.
    pub is_transactional: bool,
}

impl ProducerStamp {
    /// A producer that is not idempotent.
    pub const NONE: ProducerStamp =
        ProducerStamp { producer_id: -1, producer_epoch: -1, base_sequence: -1, is_transactional: false };
}

/// The most bytes that a record can take in a batch before compression; for deciding whether it still fits.
pub fn record_bytes_max(
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: &[(&[u8], Option<&[u8]>)],
) -> usize {
    let data = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
    let headers = headers.iter().map(|(name, value)| name.len() + data(*value) + HEADER_OVERHEAD_BYTES_MAX);
    RECORD_OVERHEAD_BYTES_MAX + data(key) + data(value) + headers.sum::<usize>()
}

/// Collects records and makes batches of them, one after another.
#[derive(Default)]
pub struct BatchBuilder {
    payload: Vec<u8>,
    record_count: i32,
    base_timestamp_ms: i64,
    max_timestamp_ms: i64,
    compressor: Compressor,
    batch: Vec<u8>,
}

impl BatchBuilder {
    /// An empty builder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`BatchErrorKind::TooLarge`] if the batch would pass the format's 2 GB; nothing is added then.
    pub fn append(
        &mut self,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&[u8], Option<&[u8]>)],
        timestamp_ms: i64,
    ) -> Result<(), BatchError> {
        let bytes_left = BATCH_BYTES_MAX - self.bytes();
        if record_bytes_max(key, value, headers) > bytes_left || self.record_count == i32::MAX {
            return Err(BatchErrorKind::TooLarge { bytes_max: BATCH_BYTES_MAX }.into());
        }
        if self.record_count == 0 {
            self.base_timestamp_ms = timestamp_ms;
            self.max_timestamp_ms = timestamp_ms;
        }
        self.max_timestamp_ms = self.max_timestamp_ms.max(timestamp_ms);
        // Wraps back when the reader adds it, should the two be 2^63 apart.
        let timestamp_delta = timestamp_ms.wrapping_sub(self.base_timestamp_ms);
        let offset_delta = self.record_count;

        let headers_bytes: usize =
            headers.iter().map(|(name, value)| nullable_size(Some(name)) + nullable_size(*value)).sum();
        let body_bytes = 1
            + size_i64(timestamp_delta)
            + size_i32(offset_delta)
            + nullable_size(key)
            + nullable_size(value)
            + size_i32(headers.len() as i32)
            + headers_bytes;
        let out = &mut self.payload;
        write_i32(out, body_bytes as i32);
        let body_start = out.len();
        out.push(0);
        write_i64(out, timestamp_delta);
        write_i32(out, offset_delta);
        write_nullable(out, key);
        write_nullable(out, value);
        write_i32(out, headers.len() as i32);
        for (name, value) in headers {
            write_nullable(out, Some(name));
            write_nullable(out, *value);
        }
        assert_eq!(out.len() - body_start, body_bytes, "the length written before the record is its length");
        self.record_count += 1;
        Ok(())
    }

    /// How many records are waiting.
    pub fn record_count(&self) -> i32 {
        self.record_count
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.record_count == 0
    }

    /// The size of the batch as it is now, before compression.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.payload.len()
    }

    /// Packs what is waiting into a batch ready for Produce, and is empty again.
    ///
    /// # Errors
    /// [`BatchErrorKind::UnsupportedCodec`] if this build lacks it, [`BatchErrorKind::TooLarge`] if packing made a
    /// batch near 2 GB larger still; the records stay then.
    ///
    /// # Panics
    /// With no record appended: a batch of none has no last offset.
    pub fn finish(&mut self, codec: Codec, stamp: &ProducerStamp) -> Result<Bytes, BatchError> {
        assert!(!self.is_empty(), "a batch has records");
        self.batch.clear();
        self.batch.resize(HEADER_BYTES, 0);
        self.compressor.compress(codec, &self.payload, &mut self.batch)?;
        let Ok(batch_length) = i32::try_from(self.batch.len() - 12) else {
            return Err(BatchErrorKind::TooLarge { bytes_max: BATCH_BYTES_MAX }.into());
        };
        let header = BatchHeader {
            base_offset: 0,
            batch_length,
            partition_leader_epoch: -1,
            magic: 2,
            crc: 0,
            attributes: codec.id() | if stamp.is_transactional { TRANSACTIONAL } else { 0 },
            last_offset_delta: self.record_count - 1,
            base_timestamp: self.base_timestamp_ms,
            max_timestamp: self.max_timestamp_ms,
            producer_id: stamp.producer_id,
            producer_epoch: stamp.producer_epoch,
            base_sequence: stamp.base_sequence,
            record_count: self.record_count,
        };
        self.batch[..HEADER_BYTES].copy_from_slice(&header.write());
        seal(&mut self.batch);
        self.clear();
        // Copied to its exact size: a batch may wait long for its answer, and the scratch is the larger.
        Ok(Bytes::copy_from_slice(&self.batch))
    }

    /// Throws away what is waiting.
    pub fn clear(&mut self) {
        self.payload.clear();
        self.record_count = 0;
    }
}

/// The same batch under another producer id, epoch and base sequence (KIP-360: after an epoch bump the batches in
/// flight are sent again from sequence 0). Whether it is transactional stays as it was built.
///
/// # Panics
/// If `batch` is not one that [`BatchBuilder::finish`] made.
pub fn restamp(batch: &[u8], producer_id: i64, producer_epoch: i16, base_sequence: i32) -> Bytes {
    assert!(batch.len() > HEADER_BYTES, "only a finished batch has a stamp");
    let mut batch = batch.to_vec();
    batch[43..51].copy_from_slice(&producer_id.to_be_bytes());
    batch[51..53].copy_from_slice(&producer_epoch.to_be_bytes());
    batch[53..57].copy_from_slice(&base_sequence.to_be_bytes());
    seal(&mut batch);
    batch.into()
}

/// Writes the CRC over the bytes that it covers.
fn seal(batch: &mut [u8]) {
    let crc = crc32c::crc32c(&batch[CRC_START..]);
    batch[CRC_START - 4..CRC_START].copy_from_slice(&crc.to_be_bytes());
}

#[inline]
fn nullable_size(bytes: Option<&[u8]>) -> usize {
    match bytes {
        None => size_i32(-1),
        Some(bytes) => size_i32(bytes.len() as i32) + bytes.len(),
    }
}

#[inline]
fn write_nullable(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => write_i32(out, -1),
        Some(bytes) => {
            write_i32(out, bytes.len() as i32);
            out.extend_from_slice(bytes);
        }
    }
}
