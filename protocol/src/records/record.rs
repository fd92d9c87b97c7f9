//! The records inside an unpacked payload.
//!
//! [`index_records`] walks a payload once and checks all of it, so that either every record of a batch is good or the
//! batch is an error and none is delivered. [`Record::parse`] then reads one record at its position; it checks
//! bounds again, which costs little, because it cannot know where the position came from.

use super::varint::{read_i32, read_i64};
use super::{BatchError, BatchErrorKind, BatchHeader, TimestampType};

/// The smallest record: its length, attributes, two deltas, two lengths and a count, one byte each.
const RECORD_BYTES_MIN: usize = 7;
/// The smallest header: a length of a name and one of a value.
const HEADER_BYTES_MIN: usize = 2;

/// Checks a whole payload and notes where each record begins.
///
/// `positions` is cleared and gets the byte position of each record. `each` is called per record, in order, with its
/// index, its offset minus the base offset, and its key. It runs while the rest of the payload is still unchecked:
/// what it collects must be thrown away if the call fails.
///
/// # Errors
/// [`BatchErrorKind::Damaged`] unless there are exactly as many records as the header counts, each filling its length,
/// with offset deltas that rise strictly and stay within the last one, and no byte left over.
pub fn index_records(
    header: &BatchHeader,
    payload: &[u8],
    positions: &mut Vec<u32>,
    mut each: impl FnMut(usize, i32, Option<&[u8]>),
) -> Result<(), BatchError> {
    positions.clear();
    let damaged = |what| BatchErrorKind::Damaged(what).at(header.base_offset);
    let count = usize::try_from(header.record_count).map_err(|_| damaged("negative record count"))?;
    if count > payload.len() / RECORD_BYTES_MIN {
        return Err(damaged("more records counted than the bytes can hold"));
    }
    if u32::try_from(payload.len()).is_err() {
        return Err(damaged("payload longer than positions can name"));
    }
    positions.reserve(count);
    let mut at = 0;
    let mut previous_delta = -1;
    for index in 0..count {
        let position = at as u32;
        let (body, end) = read_body(payload, at).ok_or_else(|| damaged("record length"))?;
        at = end;
        let fields = Fields::parse(body).map_err(damaged)?;
        if fields.offset_delta <= previous_delta || fields.offset_delta > header.last_offset_delta {
            return Err(damaged("offset delta out of order or out of the batch's range"));
        }
        check_headers(fields.headers_count, fields.headers).ok_or_else(|| damaged("record headers"))?;
        previous_delta = fields.offset_delta;
        positions.push(position);
        each(index, fields.offset_delta, fields.key);
    }
    if at != payload.len() {
        return Err(damaged("bytes after the last record"));
    }
    Ok(())
}

/// One record: views into its batch's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its offset in the partition.
    pub offset: i64,
    /// Milliseconds since 1970: the producer's, or the broker's if the topic has log-append time.
    pub timestamp_ms: i64,
    /// The key. Null is not the empty key.
    pub key: Option<&'a [u8]>,
    /// The value; null is a tombstone.
    pub value: Option<&'a [u8]>,
    headers_count: u32,
    headers: &'a [u8],
}

impl<'a> Record<'a> {
    /// Reads the record at `position`, which [`index_records`] gave for the same payload.
    ///
    /// # Errors
    /// [`BatchErrorKind::Damaged`] if there is no record there.
    #[inline]
    pub fn parse(header: &BatchHeader, payload: &'a [u8], position: u32) -> Result<Self, BatchError> {
        let damaged = |what| BatchErrorKind::Damaged(what).at(header.base_offset);
        let (body, _) = read_body(payload, position as usize).ok_or_else(|| damaged("record length"))?;
        let fields = Fields::parse(body).map_err(damaged)?;
        let timestamp_ms = match header.timestamp_type() {
            TimestampType::CreateTime => header.base_timestamp.saturating_add(fields.timestamp_delta),
            TimestampType::LogAppendTime => header.max_timestamp,
        };
        Ok(Record {
            offset: header.base_offset.saturating_add(fields.offset_delta.into()),
            timestamp_ms,
            key: fields.key,
            value: fields.value,
            headers_count: fields.headers_count,
            headers: fields.headers,
        })
    }

    /// The headers in their order, a repeated name as often as it is there.
    pub fn headers(&self) -> Headers<'a> {
        Headers { left: self.headers_count, bytes: self.headers }
    }
}

/// The headers of one record: name and value, which may be null. Made by [`Record::headers`].
#[derive(Debug, Clone)]
pub struct Headers<'a> {
    left: u32,
    bytes: &'a [u8],
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    /// Ends early at a damaged header, which [`index_records`] has already refused.
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (header, at) = read_header(self.bytes, 0)?;
        self.bytes = &self.bytes[at..];
        Some(header)
    }
}

/// What a control batch says about the transaction of its producer (KIP-98).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlMarker {
    /// Type 0: the producer's open records are not to be delivered.
    Abort,
    /// Type 1: they are.
    Commit,
    /// Any other type, such as KRaft's own; to be passed over.
    Other(i16),
}

impl ControlMarker {
    /// Reads a marker from a control record's key: version and type, 16 bits each. Later versions may append fields.
    ///
    /// # Errors
    /// [`BatchErrorKind::Damaged`] for a key too short or a negative version.
    pub fn parse(header: &BatchHeader, key: Option<&[u8]>) -> Result<Self, BatchError> {
        let damaged = |what| Err(BatchErrorKind::Damaged(what).at(header.base_offset));
        let Some(&[version_high, version_low, type_high, type_low]) = key.and_then(|key| key.first_chunk())
        else {
            return damaged("control record's key too short");
        };
        if i16::from_be_bytes([version_high, version_low]) < 0 {
            return damaged("control record's version negative");
        }
        Ok(match i16::from_be_bytes([type_high, type_low]) {
            0 => ControlMarker::Abort,
            1 => ControlMarker::Commit,
            other => ControlMarker::Other(other),
        })
    }
}

struct Fields<'a> {
    timestamp_delta: i64,
    offset_delta: i32,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    headers_count: u32,
    headers: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Reads a record's body. Attributes are unused in format 2 and skipped.
    #[inline(always)]
    fn parse(body: &'a [u8]) -> Result<Self, &'static str> {
        let (timestamp_delta, at) = read_i64(body, 1).ok_or("record timestamp")?;
        let (offset_delta, at) = read_i32(body, at).ok_or("record offset")?;
        let (key, at) = read_nullable(body, at).ok_or("record key")?;
        let (value, at) = read_nullable(body, at).ok_or("record value")?;
        let (headers_count, at) = read_i32(body, at).ok_or("count of record headers")?;
        let headers_count = u32::try_from(headers_count).map_err(|_| "count of record headers")?;
        let headers = body.get(at..).ok_or("record headers")?;
        Ok(Fields { timestamp_delta, offset_delta, key, value, headers_count, headers })
    }
}

/// A record behind its length, and the position behind the record.
#[inline(always)]
fn read_body(payload: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let (length, at) = read_i32(payload, at)?;
    read_slice(payload, at, length)
}

/// The outer `None` is damage, the inner one null.
#[inline(always)]
fn read_nullable(bytes: &[u8], at: usize) -> Option<(Option<&[u8]>, usize)> {
    let (length, at) = read_i32(bytes, at)?;
    if length == -1 {
        return Some((None, at));
    }
    let (slice, at) = read_slice(bytes, at, length)?;
    Some((Some(slice), at))
}

#[inline(always)]
fn read_slice(bytes: &[u8], at: usize, length: i32) -> Option<(&[u8], usize)> {
    let length = usize::try_from(length).ok()?;
    let slice = bytes.get(at..)?.get(..length)?;
    Some((slice, at + length))
}

#[inline]
fn read_header(bytes: &[u8], at: usize) -> Option<((&[u8], Option<&[u8]>), usize)> {
    let (name_length, at) = read_i32(bytes, at)?;
    let (name, at) = read_slice(bytes, at, name_length)?;
    let (value, at) = read_nullable(bytes, at)?;
    Some(((name, value), at))
}

/// Whether `bytes` is exactly `count` headers. The count costs nothing before it is known that they fit.
#[inline]
fn check_headers(count: u32, bytes: &[u8]) -> Option<()> {
    if count as usize > bytes.len() / HEADER_BYTES_MIN {
        return None;
    }
    let mut at = 0;
    for _ in 0..count {
        (_, at) = read_header(bytes, at)?;
    }
    (at == bytes.len()).then_some(())
}
