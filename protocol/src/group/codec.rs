//! The primitive fields of what group members write for each other, read with a bound on everything.
//!
//! These bytes pass through the broker unread, so whatever is wrong with them is another *member's* fault. The
//! generated decoders trust array counts; this reader does not. It guarantees: no panic, and no allocation larger
//! than the bytes that are really there account for. All fields are the old fixed-width kind: none of these
//! messages is flexible.

use std::collections::BTreeMap;
use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Why the bytes another member wrote cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataError {
    /// The bytes end inside this field, or its count or length promises more than is left.
    Truncated(&'static str),
    /// A length or count of a field that cannot be null is negative.
    Length(&'static str, i32),
    /// A version below 0. Versions above the newest we know are read as that one.
    Version(i16),
    /// The field is not UTF-8.
    Utf8(&'static str),
    /// A partition number below 0.
    Partition(i32),
}

impl fmt::Display for MetadataError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated(field) => write!(out, "the bytes end inside {field}"),
            Self::Length(field, length) => write!(out, "{field} has the length {length}"),
            Self::Version(version) => write!(out, "version {version} does not exist"),
            Self::Utf8(field) => write!(out, "{field} is not UTF-8"),
            Self::Partition(partition) => write!(out, "{partition} is no partition"),
        }
    }
}

impl std::error::Error for MetadataError {}

/// Topic → partitions, each list ascending and without repeats.
pub(crate) type TopicPartitions = BTreeMap<String, Vec<i32>>;

/// A topic and the partitions of it: two bytes of length and four of count.
const TOPIC_ENTRY_BYTES_MIN: usize = 6;
const STRING_BYTES_MIN: usize = 2;
const PARTITION_BYTES: usize = 4;

/// Reads fields from the front of `bytes`.
pub(crate) struct Reader {
    bytes: Bytes,
}

impl Reader {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self { bytes }
    }

    /// The version in front of a subscription or an assignment, lowered to `newest`. A newer version only adds
    /// fields at the end, by the protocol's own rule, so its front can be read as the newest one known here.
    pub(crate) fn version(&mut self, newest: i16) -> Result<i16, MetadataError> {
        let version = self.int16("version")?;
        if version < 0 { Err(MetadataError::Version(version)) } else { Ok(version.min(newest)) }
    }

    pub(crate) fn int16(&mut self, field: &'static str) -> Result<i16, MetadataError> {
        self.bytes.try_get_i16().map_err(|_| MetadataError::Truncated(field))
    }

    pub(crate) fn int32(&mut self, field: &'static str) -> Result<i32, MetadataError> {
        self.bytes.try_get_i32().map_err(|_| MetadataError::Truncated(field))
    }

    pub(crate) fn string(&mut self, field: &'static str) -> Result<String, MetadataError> {
        let length = self.int16(field)?;
        let length = usize::try_from(length).map_err(|_| MetadataError::Length(field, length.into()))?;
        self.text(length, field)
    }

    /// Any negative length means null, as the Java client reads it.
    pub(crate) fn nullable_string(&mut self, field: &'static str) -> Result<Option<String>, MetadataError> {
        match usize::try_from(self.int16(field)?) {
            Err(_) => Ok(None),
            Ok(length) => self.text(length, field).map(Some),
        }
    }

    /// Any negative length means null, as the Java client reads it.
    pub(crate) fn nullable_bytes(&mut self, field: &'static str) -> Result<Option<Bytes>, MetadataError> {
        match usize::try_from(self.int32(field)?) {
            Err(_) => Ok(None),
            Ok(length) => self.take(length, field).map(Some),
        }
    }

    pub(crate) fn strings(&mut self, field: &'static str) -> Result<Vec<String>, MetadataError> {
        (0..self.count(STRING_BYTES_MIN, field)?).map(|_| self.string(field)).collect()
    }

    /// An array of (topic, array of partition), merged where a topic comes twice. A topic without partitions says
    /// nothing and is left out.
    pub(crate) fn topic_partitions(&mut self, field: &'static str) -> Result<TopicPartitions, MetadataError> {
        let mut all = TopicPartitions::new();
        for _ in 0..self.count(TOPIC_ENTRY_BYTES_MIN, field)? {
            let topic = self.string(field)?;
            let count = self.count(PARTITION_BYTES, field)?;
            let partitions = (0..count).map(|_| self.partition(field)).collect::<Result<Vec<_>, _>>()?;
            if !partitions.is_empty() {
                all.entry(topic).or_default().extend(partitions);
            }
        }
        for partitions in all.values_mut() {
            partitions.sort_unstable();
            partitions.dedup();
        }
        Ok(all)
    }

    fn partition(&mut self, field: &'static str) -> Result<i32, MetadataError> {
        let partition = self.int32(field)?;
        if partition < 0 { Err(MetadataError::Partition(partition)) } else { Ok(partition) }
    }

    /// An array's count, refused where the rest of the bytes cannot hold that many elements.
    fn count(&mut self, element_bytes_min: usize, field: &'static str) -> Result<usize, MetadataError> {
        let count = self.int32(field)?;
        let count = usize::try_from(count).map_err(|_| MetadataError::Length(field, count))?;
        if count > self.bytes.len() / element_bytes_min {
            return Err(MetadataError::Truncated(field));
        }
        Ok(count)
    }

    fn text(&mut self, length: usize, field: &'static str) -> Result<String, MetadataError> {
        let bytes = self.take(length, field)?;
        std::str::from_utf8(&bytes).map(str::to_owned).map_err(|_| MetadataError::Utf8(field))
    }

    fn take(&mut self, length: usize, field: &'static str) -> Result<Bytes, MetadataError> {
        if length > self.bytes.len() {
            return Err(MetadataError::Truncated(field));
        }
        Ok(self.bytes.split_to(length))
    }
}

/// Writes the same fields. Its asserts are about our own data: names the cluster or our configuration gave us,
/// which the length fields hold by far.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: BytesMut,
}

impl Writer {
    pub(crate) fn int16(&mut self, value: i16) {
        self.bytes.put_i16(value);
    }

    pub(crate) fn int32(&mut self, value: i32) {
        self.bytes.put_i32(value);
    }

    pub(crate) fn string(&mut self, value: &str) {
        self.int16(i16::try_from(value.len()).expect("a name is at most 32767 bytes long"));
        self.bytes.put_slice(value.as_bytes());
    }

    pub(crate) fn nullable_string(&mut self, value: Option<&str>) {
        match value {
            None => self.int16(-1),
            Some(value) => self.string(value),
        }
    }

    pub(crate) fn nullable_bytes(&mut self, value: Option<&Bytes>) {
        match value {
            None => self.int32(-1),
            Some(value) => {
                self.count(value.len());
                self.bytes.put_slice(value);
            }
        }
    }

    pub(crate) fn topic_partitions(&mut self, all: &TopicPartitions) {
        let filled = all.iter().filter(|(_, partitions)| !partitions.is_empty());
        self.count(filled.clone().count());
        for (topic, partitions) in filled {
            self.string(topic);
            self.count(partitions.len());
            for &partition in partitions {
                self.int32(partition);
            }
        }
    }

    pub(crate) fn count(&mut self, count: usize) {
        self.int32(i32::try_from(count).expect("a list is shorter than 2^31"));
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.bytes.freeze()
    }
}

/// Bytes from hexadecimal digits, for test vectors.
#[cfg(test)]
pub(crate) fn unhex(digits: &str) -> Bytes {
    assert!(digits.len().is_multiple_of(2), "an odd number of digits");
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}
