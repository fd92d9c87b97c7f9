//! What a batch must be before it is stored, and the control batches that end transactions.

use bytes::{BufMut, Bytes};
use kafka_protocol::ResponseError;
use keylane_protocol::records::{Batch, BatchErrorKind, BatchHeader, next_batch};

const CORRUPT_MESSAGE: i16 = ResponseError::CorruptMessage.code();
const MESSAGE_TOO_LARGE: i16 = ResponseError::MessageTooLarge.code();
const INVALID_RECORD: i16 = ResponseError::InvalidRecord.code();

/// The one batch of a Produce request for one partition, checked as far as that goes without a log.
///
/// The records inside are not looked at: unpacking them would cost more than all the rest, and what is wrong in there
/// under a good CRC is found by whoever reads it.
#[derive(Debug, Clone)]
pub(crate) struct ProducedBatch(Batch);

impl ProducedBatch {
    /// Checks `records` of a Produce request, version 3 or later: they are one whole batch of format 2.
    ///
    /// # Errors
    /// The code to answer: INVALID_RECORD, CORRUPT_MESSAGE, or MESSAGE_TOO_LARGE for more than `bytes_max` bytes.
    pub(crate) fn parse(records: Bytes, bytes_max: usize) -> Result<Self, i16> {
        let batch = Self::parse_stored(records, bytes_max)?;
        check_header(batch.header())?;
        Ok(batch)
    }

    /// Checks a batch as it may lie in a log: compaction has taken records, and their count does not agree with the
    /// range any more.
    ///
    /// # Errors
    /// As [`ProducedBatch::parse`].
    pub(crate) fn parse_stored(mut records: Bytes, bytes_max: usize) -> Result<Self, i16> {
        let size = records.len();
        let batch = match next_batch(&mut records) {
            Ok(Some(batch)) => batch,
            Ok(None) if size == 0 => return Err(INVALID_RECORD),
            Ok(None) => return Err(CORRUPT_MESSAGE),
            Err(error) => match error.kind {
                BatchErrorKind::UnsupportedMagic(_) => return Err(INVALID_RECORD),
                _ => return Err(CORRUPT_MESSAGE),
            },
        };
        if !records.is_empty() {
            return Err(INVALID_RECORD);
        }
        if batch.header.base_offset != 0 {
            return Err(INVALID_RECORD);
        }
        if size > bytes_max {
            return Err(MESSAGE_TOO_LARGE);
        }
        batch.check_crc().map_err(|_| CORRUPT_MESSAGE)?;
        Ok(ProducedBatch(batch))
    }

    /// The header as the producer wrote it.
    pub(crate) fn header(&self) -> &BatchHeader {
        &self.0.header
    }

    pub(super) fn bytes(&self) -> &Bytes {
        self.0.bytes()
    }
}

/// What Kafka demands of a client's batch.
fn check_header(header: &BatchHeader) -> Result<(), i16> {
    let counts_agree =
        header.record_count > 0 && header.record_count.checked_sub(1) == Some(header.last_offset_delta);
    let has_producer = header.producer_id >= 0;
    let producer_is_whole = !has_producer || (header.base_sequence >= 0 && header.producer_epoch >= 0);
    let transaction_has_producer = has_producer || !header.is_transactional();
    if counts_agree && !header.is_control() && producer_is_whole && transaction_has_producer {
        header.compression().map(|_| ()).map_err(|_| INVALID_RECORD)
    } else {
        Err(INVALID_RECORD)
    }
}

/// Transactional and control.
const MARKER_ATTRIBUTES: i16 = 0x30;
/// The length of the marker record's body: attributes, two deltas, key of 4, value of 6, no headers.
const MARKER_BODY_BYTES: u8 = 16;
/// A small number as a zigzag varint of one byte.
const fn zigzag(small: u8) -> u8 {
    small * 2
}

/// A control batch of one record that commits or aborts what `producer_id` wrote (KIP-98). Base offset and leader
/// epoch are left 0 for the log.
pub(super) fn marker(
    producer_id: i64,
    producer_epoch: i16,
    commit: bool,
    coordinator_epoch: i32,
    now_ms: i64,
) -> Vec<u8> {
    let mut covered = Vec::with_capacity(57);
    covered.put_i16(MARKER_ATTRIBUTES);
    covered.put_i32(0);
    covered.put_i64(now_ms);
    covered.put_i64(now_ms);
    covered.put_i64(producer_id);
    covered.put_i16(producer_epoch);
    covered.put_i32(-1);
    covered.put_i32(1);
    covered.put_slice(&[zigzag(MARKER_BODY_BYTES), 0, 0, 0]);
    // Key: version 0 and the type.
    covered.put_u8(zigzag(4));
    covered.put_i16(0);
    covered.put_i16(i16::from(commit));
    // Value: version 0 and who wrote it.
    covered.put_u8(zigzag(6));
    covered.put_i16(0);
    covered.put_i32(coordinator_epoch);
    covered.put_u8(0);

    let mut batch = Vec::with_capacity(21 + covered.len());
    batch.put_i64(0);
    batch.put_i32(4 + 1 + 4 + covered.len() as i32);
    batch.put_i32(0);
    batch.put_i8(2);
    batch.put_u32(crc32c::crc32c(&covered));
    batch.put_slice(&covered);
    batch
}

#[cfg(test)]
mod tests {
    use super::*;
    use keylane_protocol::records::{
        BatchBuilder, Codec, ControlMarker, ProducerStamp, Record, index_records,
    };

    const BYTES_MAX: usize = 1 << 20;

    fn good() -> Vec<u8> {
        let mut builder = BatchBuilder::new();
        for value in ["a", "b", "c"] {
            builder.append(None, Some(value.as_bytes()), &[], 5).expect("it fits");
        }
        builder.finish(Codec::None, &ProducerStamp::NONE).expect("no codec").to_vec()
    }

    /// `change` made to the batch, and the CRC made good again.
    fn changed(change: impl FnOnce(&mut Vec<u8>)) -> Bytes {
        let mut bytes = good();
        change(&mut bytes);
        let crc = crc32c::crc32c(&bytes[21..]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        bytes.into()
    }

    fn refusal(records: impl Into<Bytes>) -> i16 {
        ProducedBatch::parse(records.into(), BYTES_MAX).map(|_| 0).unwrap_or_else(|code| code)
    }

    #[test]
    fn one_whole_batch_is_taken() {
        let batch = ProducedBatch::parse(good().into(), BYTES_MAX).expect("good");
        assert_eq!(batch.header().record_count, 3);
    }

    #[test]
    fn damage_is_corrupt() {
        let mut bytes = good();
        *bytes.last_mut().expect("not empty") ^= 1;
        assert_eq!(refusal(bytes), CORRUPT_MESSAGE);
        assert_eq!(refusal(good()[..good().len() - 1].to_vec()), CORRUPT_MESSAGE);
        assert_eq!(refusal(changed(|bytes| bytes[8..12].copy_from_slice(&[0, 0, 0, 1]))), CORRUPT_MESSAGE);
    }

    #[test]
    fn not_exactly_one_batch_is_invalid() {
        assert_eq!(refusal(Vec::new()), INVALID_RECORD);
        assert_eq!(refusal([good(), good()].concat()), INVALID_RECORD);
        assert_eq!(refusal([good(), vec![0]].concat()), INVALID_RECORD);
    }

    #[test]
    fn headers_that_no_client_may_send() {
        let cases: [(&str, Bytes); 8] = [
            ("older format", changed(|b| b[16] = 1)),
            ("base offset", changed(|b| b[7] = 1)),
            ("count", changed(|b| b[60] = 4)),
            ("no records", changed(|b| b[57..61].copy_from_slice(&[0; 4]))),
            ("control", changed(|b| b[22] |= 0x20)),
            ("codec", changed(|b| b[22] |= 7)),
            ("transaction of nobody", changed(|b| b[22] |= 0x10)),
            ("producer without sequence", changed(|b| b[43..51].copy_from_slice(&7i64.to_be_bytes()))),
        ];
        for (what, records) in cases {
            assert_eq!(refusal(records), INVALID_RECORD, "{what}");
        }
    }

    #[test]
    fn size_is_limited() {
        let size = good().len();
        assert!(ProducedBatch::parse(good().into(), size).is_ok());
        assert_eq!(ProducedBatch::parse(good().into(), size - 1).err(), Some(MESSAGE_TOO_LARGE));
    }

    #[test]
    fn markers_are_read_by_our_own_reader() {
        for (commit, expected) in [(true, ControlMarker::Commit), (false, ControlMarker::Abort)] {
            let mut bytes = Bytes::from(marker(77, 3, commit, 9, 1234));
            assert_eq!(bytes.len(), 78, "as Kafka's");
            let batch = next_batch(&mut bytes).expect("sound").expect("whole");
            assert!(bytes.is_empty());
            batch.check_crc().expect("sealed");
            let header = batch.header;
            assert!(header.is_control() && header.is_transactional());
            assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (77, 3, -1));
            let payload = batch.payload(&mut Vec::new(), 1000).expect("plain");
            let mut positions = Vec::new();
            index_records(&header, &payload, &mut positions, |_, _, _| ()).expect("sound");
            let record = Record::parse(&header, &payload, positions[0]).expect("a record");
            assert_eq!(ControlMarker::parse(&header, record.key), Ok(expected));
            assert_eq!(record.value, Some(&[0, 0, 0, 0, 0, 9][..]));
            assert_eq!(record.timestamp_ms, 1234);
        }
    }
}
