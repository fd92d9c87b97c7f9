//! Record batches of magic 2, built by hand so that a test can make what no producer would: holes, missing records,
//! markers, wrong counts, flipped bytes, cut tails.
//!
//! Layout: <https://kafka.apache.org/documentation/#recordbatch>. The CRC is right unless a test breaks it.

use super::codec::{self, Codec};

/// Bytes of a batch before its records.
pub const HEADER_BYTES: usize = 61;

/// What a key or a value can be given as; `()` is null.
pub trait Field {
    fn bytes(self) -> Option<Vec<u8>>;
}

impl Field for &str {
    fn bytes(self) -> Option<Vec<u8>> {
        Some(self.as_bytes().to_vec())
    }
}

impl Field for String {
    fn bytes(self) -> Option<Vec<u8>> {
        Some(self.into_bytes())
    }
}

impl Field for &[u8] {
    fn bytes(self) -> Option<Vec<u8>> {
        Some(self.to_vec())
    }
}

impl Field for Vec<u8> {
    fn bytes(self) -> Option<Vec<u8>> {
        Some(self)
    }
}

impl Field for () {
    fn bytes(self) -> Option<Vec<u8>> {
        None
    }
}

impl<F: Field> Field for Option<F> {
    fn bytes(self) -> Option<Vec<u8>> {
        self.and_then(Field::bytes)
    }
}

/// One record; `delta` is its offset less the base offset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub delta: i32,
    pub timestamp_delta: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

/// A batch to be; see [`batch`].
#[derive(Clone, Debug)]
pub struct Batch {
    base: i64,
    records: Vec<Record>,
    last_delta: Option<i32>,
    count: Option<i32>,
    codec: Codec,
    attribute_bits: i16,
    payload: Option<Vec<u8>>,
    leader_epoch: Option<i32>,
    base_timestamp: i64,
    producer: (i64, i16, i32),
    flips: Vec<usize>,
    bad_crc: bool,
}

/// A batch that begins at `base`, with no record yet. Timestamps default to 2024-01-01 plus one millisecond an offset.
pub fn batch(base: i64) -> Batch {
    Batch {
        base,
        records: Vec::new(),
        last_delta: None,
        count: None,
        codec: Codec::None,
        attribute_bits: 0,
        payload: None,
        leader_epoch: None,
        base_timestamp: 1_704_067_200_000 + base,
        producer: (-1, -1, -1),
        flips: Vec::new(),
        bad_crc: false,
    }
}

impl Batch {
    /// Records at the next offsets.
    pub fn records<K: Field, V: Field>(mut self, records: impl IntoIterator<Item = (K, V)>) -> Self {
        for (key, value) in records {
            let delta = self.records.last().map_or(0, |r| r.delta + 1);
            self = self.record_delta(delta, key, value);
        }
        self
    }

    /// One record at an absolute offset, so that holes can be left before it.
    pub fn record_at<K: Field, V: Field>(self, offset: i64, key: K, value: V) -> Self {
        let delta = i32::try_from(offset - self.base).expect("an offset near the base");
        self.record_delta(delta, key, value)
    }

    fn record_delta<K: Field, V: Field>(mut self, delta: i32, key: K, value: V) -> Self {
        self.records.push(Record {
            delta,
            timestamp_delta: i64::from(delta),
            key: key.bytes(),
            value: value.bytes(),
            headers: Vec::new(),
        });
        self
    }

    /// A header on the record added last; names may repeat.
    pub fn header<V: Field>(mut self, name: &str, value: V) -> Self {
        let record = self.records.last_mut().expect("a record before its header");
        record.headers.push((name.to_owned(), value.bytes()));
        self
    }

    /// lastOffsetDelta, where it is not that of the last record: a compacted tail.
    pub fn last_delta(mut self, delta: i32) -> Self {
        self.last_delta = Some(delta);
        self
    }

    /// The record count of the header, where it is to lie.
    pub fn count(mut self, count: i32) -> Self {
        self.count = Some(count);
        self
    }

    /// The records compressed (in the codec's stored form, see [`codec`]).
    pub fn codec(mut self, codec: Codec) -> Self {
        self.codec = codec;
        self
    }

    /// More attribute bits, for instance 5–7 for a codec that does not exist or 8 for log append time.
    pub fn attributes(mut self, bits: i16) -> Self {
        self.attribute_bits |= bits;
        self
    }

    /// The bytes after the header as they are, instead of the encoded records.
    pub fn payload(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.payload = Some(bytes.into());
        self
    }

    pub fn leader_epoch(mut self, epoch: i32) -> Self {
        self.leader_epoch = Some(epoch);
        self
    }

    /// Milliseconds since 1970 of the first record; the others follow by their deltas.
    pub fn timestamp_ms(mut self, base: i64) -> Self {
        self.base_timestamp = base;
        self
    }

    pub fn producer(mut self, id: i64, epoch: i16, base_sequence: i32) -> Self {
        self.producer = (id, epoch, base_sequence);
        self
    }

    /// Part of a transaction of producer `id`.
    pub fn transactional(self, id: i64) -> Self {
        self.attributes(0x10).producer(id, 0, 0)
    }

    /// The marker that ends a transaction of producer `id`.
    pub fn marker(self, id: i64, commit: bool) -> Self {
        let key = vec![0, 0, 0, u8::from(commit)];
        self.attributes(0x30).producer(id, 0, -1).record_delta(0, key, vec![0, 0, 0, 0, 0, 0])
    }

    /// Turns over the bits of one byte after the CRC was made; counted from the batch's start.
    pub fn flip(mut self, index: usize) -> Self {
        self.flips.push(index);
        self
    }

    pub fn bad_crc(mut self) -> Self {
        self.bad_crc = true;
        self
    }

    /// The encoded records, not compressed: what a test may compress in its own way and give to [`Batch::payload`].
    pub fn record_bytes(&self) -> Vec<u8> {
        encode_records(&self.records)
    }

    pub fn base(&self) -> i64 {
        self.base
    }

    /// The same batch at another base offset.
    pub fn at(mut self, base: i64) -> Self {
        self.base = base;
        self
    }

    /// The epoch asked for, if any.
    pub fn epoch(&self) -> Option<i32> {
        self.leader_epoch
    }

    pub fn last_offset(&self) -> i64 {
        let counted = self.records.last().map_or(0, |r| r.delta);
        self.base + i64::from(self.last_delta.unwrap_or(counted))
    }

    /// The bytes.
    pub fn build(&self) -> Vec<u8> {
        let payload = match &self.payload {
            Some(bytes) => bytes.clone(),
            None => codec::compress(self.codec, &encode_records(&self.records)),
        };
        let last_delta = i32::try_from(self.last_offset() - self.base).expect("a small batch");
        let count = self.count.unwrap_or(i32::try_from(self.records.len()).expect("a small batch"));
        let newest = self.records.iter().map(|r| r.timestamp_delta).max().unwrap_or(0);
        let length = i32::try_from(HEADER_BYTES - 12 + payload.len()).expect("a small batch");
        let mut out = Vec::with_capacity(HEADER_BYTES + payload.len());
        out.extend(self.base.to_be_bytes());
        out.extend(length.to_be_bytes());
        out.extend(self.leader_epoch.unwrap_or(0).to_be_bytes());
        out.push(2);
        out.extend([0; 4]);
        out.extend((self.attribute_bits | self.codec as i16).to_be_bytes());
        out.extend(last_delta.to_be_bytes());
        out.extend(self.base_timestamp.to_be_bytes());
        out.extend((self.base_timestamp + newest).to_be_bytes());
        out.extend(self.producer.0.to_be_bytes());
        out.extend(self.producer.1.to_be_bytes());
        out.extend(self.producer.2.to_be_bytes());
        out.extend(count.to_be_bytes());
        out.extend(payload);
        let crc = crc32c::crc32c(&out[21..]) ^ u32::from(self.bad_crc);
        out[17..21].copy_from_slice(&crc.to_be_bytes());
        for index in &self.flips {
            out[*index] ^= 0xff;
        }
        out
    }
}

fn encode_records(records: &[Record]) -> Vec<u8> {
    let mut out = Vec::new();
    for record in records {
        let mut body = vec![0];
        varint(&mut body, record.timestamp_delta);
        varint(&mut body, i64::from(record.delta));
        field(&mut body, record.key.as_deref());
        field(&mut body, record.value.as_deref());
        varint(&mut body, record.headers.len() as i64);
        for (name, value) in &record.headers {
            field(&mut body, Some(name.as_bytes()));
            field(&mut body, value.as_deref());
        }
        varint(&mut out, body.len() as i64);
        out.extend(body);
    }
    out
}

fn field(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => varint(out, -1),
        Some(bytes) => {
            varint(out, bytes.len() as i64);
            out.extend(bytes);
        }
    }
}

/// Zigzag, then seven bits a byte.
fn varint(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        out.push((rest as u8 & 0x7f) | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// What a batch's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub base: i64,
    pub bytes: usize,
    pub leader_epoch: i32,
    pub magic: u8,
    pub crc_good: bool,
    pub attributes: i16,
    pub last_delta: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub count: i32,
}

impl Header {
    /// Reads the header of the batch at the start of `bytes`; `None` if it is not whole.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let long = |at: usize| Some(i64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let int = |at: usize| Some(i32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let short = |at: usize| Some(i16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let size = usize::try_from(int(8)?).ok()?.checked_add(12)?;
        let whole = bytes.get(..size).filter(|whole| whole.len() >= HEADER_BYTES)?;
        Some(Self {
            base: long(0)?,
            bytes: size,
            leader_epoch: int(12)?,
            magic: whole[16],
            crc_good: crc32c::crc32c(&whole[21..]) == int(17)? as u32,
            attributes: short(21)?,
            last_delta: int(23)?,
            base_timestamp: long(27)?,
            max_timestamp: long(35)?,
            producer_id: long(43)?,
            producer_epoch: short(51)?,
            base_sequence: int(53)?,
            count: int(57)?,
        })
    }

    pub fn last_offset(&self) -> i64 {
        self.base + i64::from(self.last_delta)
    }

    pub fn is_transactional(&self) -> bool {
        self.attributes & 0x10 != 0
    }

    pub fn is_control(&self) -> bool {
        self.attributes & 0x20 != 0
    }
}

/// The records of one whole, uncompressed batch; `None` for a compressed or damaged one.
pub fn read_records(bytes: &[u8]) -> Option<Vec<Record>> {
    let header = Header::read(bytes)?;
    if header.attributes & 7 != 0 || !header.crc_good {
        return None;
    }
    let mut rest = &bytes[HEADER_BYTES..header.bytes];
    let mut records = Vec::new();
    while !rest.is_empty() {
        let length = usize::try_from(take_varint(&mut rest)?).ok()?;
        let mut body = rest.get(..length)?;
        rest = &rest[length..];
        body = body.get(1..)?;
        let timestamp_delta = take_varint(&mut body)?;
        let delta = i32::try_from(take_varint(&mut body)?).ok()?;
        let key = take_field(&mut body)?;
        let value = take_field(&mut body)?;
        let mut headers = Vec::new();
        for _ in 0..take_varint(&mut body)? {
            let name = String::from_utf8(take_field(&mut body)??).ok()?;
            headers.push((name, take_field(&mut body)?));
        }
        records.push(Record { delta, timestamp_delta, key, value, headers });
    }
    Some(records)
}

fn take_varint(bytes: &mut &[u8]) -> Option<i64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some((value >> 1) as i64 ^ -((value & 1) as i64));
        }
    }
    None
}

/// Outer `None`: damaged; inner: null.
fn take_field(bytes: &mut &[u8]) -> Option<Option<Vec<u8>>> {
    let length = take_varint(bytes)?;
    if length < 0 {
        return Some(None);
    }
    let (head, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
    *bytes = rest;
    Some(Some(head.to_vec()))
}
