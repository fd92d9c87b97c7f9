//! Kafka record batches (magic 2): reading, writing, compression.
//!
//! Our own and not the codec crate's, because the bytes are a stranger's and this is the hottest code: nothing is
//! copied but what a codec must unpack, no size is believed before it is checked against the bytes at hand, and a
//! batch cut off at the end of a Fetch answer is normal.
//!
//! | File | Subject |
//! |---|---|
//! | `batch` | the 61-byte header, walking the batches of a Fetch answer, CRC, the unpacked payload |
//! | `record` | the validating index over a payload, one record, its headers, transaction markers |
//! | `writer` | building a batch for Produce, giving it another producer epoch |
//! | `compression` | the codecs, each bounded by the caller's limit |
//! | `varint` | zigzag variable-length integers |
//! | `error` | what can be wrong with a batch |
//!
//! Reading one partition's bytes:
//!
//! ```text
//! while let Some(batch) = next_batch(&mut records)? {
//!     batch.check_crc()?;                                   // before anything inside is believed
//!     let payload = batch.payload(&mut spare, size_max)?;   // unpacked, or a view when not compressed
//!     index_records(&batch.header, &payload, &mut positions, |index, offset_delta, key| ..)?;
//!     let record = Record::parse(&batch.header, &payload, positions[i])?;
//!     position = batch.header.next_offset();                // whether or not it held records
//! }
//! ```
//!
//! Format: <https://kafka.apache.org/documentation/#recordbatch>.

mod batch;
mod compression;
mod error;
mod record;
mod varint;
mod writer;

pub use batch::{Batch, BatchHeader, HEADER_BYTES, Payload, TimestampType, next_batch};
pub use compression::{Codec, UnknownCodecName};
pub use error::{BatchError, BatchErrorKind};
pub use record::{ControlMarker, Headers, Record, index_records};
pub use writer::{BatchBuilder, ProducerStamp, record_bytes_max, restamp};
