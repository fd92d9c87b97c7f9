//! The batch header, walking the batches of one partition's bytes, the CRC, and the payload.
//!
//! A batch is a view of the received bytes. Its header is checked for what can be checked without the CRC: lengths
//! fit, the offset range is sound, the count is not negative. [`Batch::check_crc`] comes before anything else is
//! believed.

use super::compression::{self, Codec};
use super::{BatchError, BatchErrorKind};
use bytes::Bytes;
use std::ops::Deref;

/// Bytes before the first record.
pub const HEADER_BYTES: usize = 61;
/// `baseOffset` and `batchLength`, which `batchLength` does not count.
const LENGTH_END: usize = 12;
/// Where the CRC's range begins: at the attributes.
pub(super) const CRC_START: usize = 21;

const COMPRESSION_MASK: i16 = 0x07;
const LOG_APPEND_TIME: i16 = 0x08;
pub(super) const TRANSACTIONAL: i16 = 0x10;
const CONTROL: i16 = 0x20;

/// The header of a batch, field by field; see <https://kafka.apache.org/documentation/#recordbatch>.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the format's own names")]
pub struct BatchHeader {
    pub base_offset: i64,
    pub batch_length: i32,
    pub partition_leader_epoch: i32,
    pub magic: i8,
    pub crc: u32,
    pub attributes: i16,
    pub last_offset_delta: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub record_count: i32,
}

/// Whose clock the timestamps are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer's, record by record.
    CreateTime,
    /// The broker's, one for the whole batch.
    LogAppendTime,
}

impl BatchHeader {
    fn parse(bytes: &[u8; HEADER_BYTES]) -> Self {
        BatchHeader {
            base_offset: i64::from_be_bytes(field(bytes, 0)),
            batch_length: i32::from_be_bytes(field(bytes, 8)),
            partition_leader_epoch: i32::from_be_bytes(field(bytes, LENGTH_END)),
            magic: i8::from_be_bytes(field(bytes, 16)),
            crc: u32::from_be_bytes(field(bytes, 17)),
            attributes: i16::from_be_bytes(field(bytes, CRC_START)),
            last_offset_delta: i32::from_be_bytes(field(bytes, 23)),
            base_timestamp: i64::from_be_bytes(field(bytes, 27)),
            max_timestamp: i64::from_be_bytes(field(bytes, 35)),
            producer_id: i64::from_be_bytes(field(bytes, 43)),
            producer_epoch: i16::from_be_bytes(field(bytes, 51)),
            base_sequence: i32::from_be_bytes(field(bytes, 53)),
            record_count: i32::from_be_bytes(field(bytes, 57)),
        }
    }

    pub(super) fn write(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&self.base_offset.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.batch_length.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.partition_leader_epoch.to_be_bytes());
        bytes[16] = self.magic as u8;
        bytes[17..21].copy_from_slice(&self.crc.to_be_bytes());
        bytes[21..23].copy_from_slice(&self.attributes.to_be_bytes());
        bytes[23..27].copy_from_slice(&self.last_offset_delta.to_be_bytes());
        bytes[27..35].copy_from_slice(&self.base_timestamp.to_be_bytes());
        bytes[35..43].copy_from_slice(&self.max_timestamp.to_be_bytes());
        bytes[43..51].copy_from_slice(&self.producer_id.to_be_bytes());
        bytes[51..53].copy_from_slice(&self.producer_epoch.to_be_bytes());
        bytes[53..57].copy_from_slice(&self.base_sequence.to_be_bytes());
        bytes[57..61].copy_from_slice(&self.record_count.to_be_bytes());
        bytes
    }

    /// How the payload is packed.
    ///
    /// # Errors
    /// [`BatchErrorKind::UnknownCodec`] for a number that Kafka has not given out.
    pub fn compression(&self) -> Result<Codec, BatchError> {
        let id = self.attributes & COMPRESSION_MASK;
        Codec::from_id(id).ok_or_else(|| BatchErrorKind::UnknownCodec(id).at(self.base_offset))
    }

    /// Whether the batch belongs to a transaction (KIP-98), which a later marker commits or aborts.
    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    /// Whether its records are markers for clients, not data (KIP-98).
    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL != 0
    }

    /// Whose clock the timestamps are from.
    pub fn timestamp_type(&self) -> TimestampType {
        if self.attributes & LOG_APPEND_TIME != 0 {
            TimestampType::LogAppendTime
        } else {
            TimestampType::CreateTime
        }
    }

    /// The last offset of the batch's range, whether or not compaction left its record.
    pub fn last_offset(&self) -> i64 {
        self.base_offset + i64::from(self.last_offset_delta)
    }

    /// Where reading goes on: behind the batch's *range*. A compacted tail or a batch with no records left would
    /// be fetched for ever by a client that goes by the last record.
    pub fn next_offset(&self) -> i64 {
        self.last_offset() + 1
    }

    /// What must hold whatever the CRC says, so that offsets move forward and no count is negative.
    fn check(&self) -> Result<(), BatchError> {
        let damaged = |what| Err(BatchErrorKind::Damaged(what).at(self.base_offset));
        if self.base_offset < 0 {
            return damaged("negative base offset");
        }
        if self.last_offset_delta < 0 {
            return damaged("negative last offset delta");
        }
        if self.base_offset > i64::MAX - i64::from(self.last_offset_delta) - 1 {
            return damaged("offsets past the largest one");
        }
        if self.record_count < 0 {
            return damaged("negative record count");
        }
        Ok(())
    }
}

fn field<const N: usize>(bytes: &[u8; HEADER_BYTES], start: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[start..start + N]);
    out
}

/// One whole batch: a parsed header over a view of the bytes received.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The parsed header.
    pub header: BatchHeader,
    bytes: Bytes,
}

/// Takes the next batch off `records`, one partition's bytes from a Fetch answer.
///
/// `Ok(None)` when no whole batch is left. `records` then still holds the tail that the broker cut off at its size
/// limit, if it did: nothing in it is usable and its batch is fetched again, but a caller that got *only* such a tail
/// must see that fetching again would bring the same (brokers since 0.10.1 send the first batch whole, KIP-74).
///
/// # Errors
/// [`BatchErrorKind::UnsupportedMagic`] for an older format, [`BatchErrorKind::Damaged`] for a header that cannot be.
/// After an error `records` is where it was: without a trusted length there is no next batch.
pub fn next_batch(records: &mut Bytes) -> Result<Option<Batch>, BatchError> {
    let Some(start) = records.first_chunk::<LENGTH_END>() else { return Ok(None) };
    let [base_offset @ .., _, _, _, _] = start;
    let base_offset = i64::from_be_bytes(*base_offset);
    let [_, _, _, _, _, _, _, _, length @ ..] = start;
    let batch_length = i32::from_be_bytes(*length);
    let Ok(length) = usize::try_from(batch_length) else {
        return Err(BatchErrorKind::Damaged("negative length").at(base_offset));
    };
    if let Some(&magic) = records.get(16)
        && magic != 2
    {
        return Err(BatchErrorKind::UnsupportedMagic(magic as i8).at(base_offset));
    }
    if length < HEADER_BYTES - LENGTH_END {
        return Err(BatchErrorKind::Damaged("length shorter than the header").at(base_offset));
    }
    // Compared this way round because the sum could overflow where usize has 32 bits.
    if records.len() - LENGTH_END < length {
        return Ok(None);
    }
    let Some(header) = records.first_chunk() else { return Ok(None) };
    let header = BatchHeader::parse(header);
    header.check()?;
    Ok(Some(Batch { header, bytes: records.split_to(LENGTH_END + length) }))
}

impl Batch {
    /// The same batch in bytes of its own, so that the received ones can go.
    pub fn to_owned_bytes(&self) -> Batch {
        Batch { header: self.header, bytes: Bytes::copy_from_slice(&self.bytes) }
    }

    /// Compares the header's CRC-32C with that of the bytes it covers.
    ///
    /// # Errors
    /// [`BatchErrorKind::CrcMismatch`]: not one record of the batch may be used.
    pub fn check_crc(&self) -> Result<(), BatchError> {
        let actual = crc32c::crc32c(&self.bytes[CRC_START..]);
        if actual == self.header.crc {
            return Ok(());
        }
        Err(BatchErrorKind::CrcMismatch { expected: self.header.crc, actual }.at(self.header.base_offset))
    }

    /// The records, unpacked: a view of the received bytes when the batch is not compressed, else a buffer of at
    /// most `size_max` bytes.
    ///
    /// The buffer is made out of `spare`, which is taken only when it is needed; give it back what
    /// [`Payload::into_vec`] returns and nothing is allocated or cleared as long as batches do not grow.
    ///
    /// # Errors
    /// [`BatchErrorKind::Damaged`], [`BatchErrorKind::TooLarge`] (seen before memory passes `size_max`), or a codec
    /// that is unknown or left out of this build. `spare` may have been spent.
    pub fn payload(&self, spare: &mut Vec<u8>, size_max: usize) -> Result<Payload, BatchError> {
        let packed = &self.bytes[HEADER_BYTES..];
        let codec = self.header.compression()?;
        // An emptied batch keeps its attributes and may have nothing to unpack.
        if codec == Codec::None || (packed.is_empty() && self.header.record_count == 0) {
            return Ok(Payload(Data::Shared(self.bytes.slice(HEADER_BYTES..))));
        }
        match compression::decompress(codec, packed, std::mem::take(spare), size_max) {
            Ok((buffer, len)) => Ok(Payload(Data::Owned { buffer, len })),
            Err(kind) => Err(kind.at(self.header.base_offset)),
        }
    }

    /// All bytes of the batch, header included.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// The unpacked records of a batch; dereferences to their bytes.
#[derive(Debug)]
pub struct Payload(Data);

#[derive(Debug)]
enum Data {
    Shared(Bytes),
    /// `buffer` keeps the length of the largest batch it ever held, since making it longer again would cost clearing
    /// it; `len` bytes are this batch's.
    Owned {
        buffer: Vec<u8>,
        len: usize,
    },
}

impl Payload {
    /// Bytes of memory of its own that it keeps, which may be more than its length; 0 for a view.
    pub fn owned_bytes(&self) -> usize {
        match &self.0 {
            Data::Shared(_) => 0,
            Data::Owned { buffer, .. } => buffer.capacity(),
        }
    }

    /// The same bytes in a buffer of its own, made out of `spare`, so that the received ones can go.
    pub fn into_owned(self, mut spare: Vec<u8>) -> Self {
        match self.0 {
            Data::Owned { .. } => self,
            Data::Shared(bytes) => {
                let (len, kept) = (bytes.len(), spare.len().min(bytes.len()));
                spare[..kept].copy_from_slice(&bytes[..kept]);
                spare.extend_from_slice(&bytes[kept..]);
                Payload(Data::Owned { len, buffer: spare })
            }
        }
    }

    /// The buffer, to be used again for another batch; empty for a view.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Data::Shared(_) => Vec::new(),
            Data::Owned { buffer, .. } => buffer,
        }
    }
}

impl Deref for Payload {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Data::Shared(bytes) => bytes,
            Data::Owned { buffer, len } => &buffer[..*len],
        }
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
