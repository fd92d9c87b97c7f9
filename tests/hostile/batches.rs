//! Record batches: their headers, the codecs, the records in them, and what a Fetch answer's walk makes of them.
//!
//! Most inputs have a right CRC and length whatever was changed, so that what lies behind these checks is reached.

use std::sync::OnceLock;

use bytes::Bytes;
use kafka_protocol::messages::fetch_response::AbortedTransaction;
use keylane_protocol::fetch;
use keylane_protocol::offsets::Isolation;
use keylane_protocol::records::{
    BatchBuilder, Codec, ControlMarker, ProducerStamp, Record, index_records, next_batch,
};

use crate::campaign::{self, Case};
use crate::mutate::mutate;
use crate::pack::{self, CODECS, FIELDS, HEADER_BYTES, LZ4, SNAPPY, zigzag};
use crate::rng::Rng;

/// The largest payload of these inputs.
const SIZE_MAX: usize = 256 << 10;
/// zstd's window: what its frames may ask for whatever the size limit, with the room to move it and its tables.
const ZSTD_BYTES: usize = (16 << 20) + (2 << 20);
/// Tables and windows of the other codecs.
const CODEC_BYTES: usize = 256 << 10;
/// Bytes of memory for each byte of a batch: the batch, and a position for each seven bytes of its payload.
const MEMORY_PER_BYTE_MAX: usize = 4;

/// A sound batch.
struct Sample {
    batch: Vec<u8>,
    /// Its records before compression.
    payload: Vec<u8>,
    codec: u8,
}

fn builder(rng: &mut Rng) -> BatchBuilder {
    let mut builder = BatchBuilder::new();
    let records = match rng.below(6) {
        0 => 1,
        1 => 200,
        _ => 1 + rng.below(12),
    };
    for _ in 0..records {
        let (key_length, value_length) = (rng.below(12), rng.below(70));
        let key = rng.bytes(key_length);
        let value = if rng.one_in(2) { vec![b'v'; value_length] } else { rng.bytes(value_length) };
        let headers: Vec<(&[u8], Option<&[u8]>)> = match rng.below(4) {
            0 => vec![(b"name", Some(b"value")), (b"name", None), (b"", Some(b""))],
            _ => Vec::new(),
        };
        let key = (!rng.one_in(5)).then_some(&key[..]);
        let value = (!rng.one_in(9)).then_some(&value[..]);
        let timestamp = if rng.one_in(20) { rng.odd_i64() } else { 1_700_000_000_000 };
        builder.append(key, value, &headers, timestamp).expect("far below 2 GB");
    }
    builder
}

fn sample(rng: &mut Rng, codec: u8) -> Sample {
    let stamp = ProducerStamp {
        producer_id: rng.below(4) as i64 - 1,
        producer_epoch: 0,
        base_sequence: 0,
        is_transactional: rng.one_in(2),
    };
    let start = rng.clone();
    let plain = builder(rng).finish(Codec::None, &stamp).expect("a batch");
    let codec_of = Codec::from_id(codec.into()).expect("a known codec");
    let batch = builder(&mut start.clone()).finish(codec_of, &stamp).expect("a batch").to_vec();
    Sample { batch, payload: plain[HEADER_BYTES..].to_vec(), codec }
}

fn samples() -> &'static [Sample] {
    static SAMPLES: OnceLock<Vec<Sample>> = OnceLock::new();
    SAMPLES.get_or_init(|| {
        let mut rng = Rng::of(1, "batch samples", 0);
        (0..60).map(|at| sample(&mut rng, (at % CODECS.len()) as u8)).collect()
    })
}

/// Sets a field of the header to something odd.
fn change_header(rng: &mut Rng, batch: &mut [u8]) {
    let (at, width) = *rng.pick(&FIELDS);
    let value = match rng.below(4) {
        0 => i64::from(batch[57..61].iter().fold(0_i32, |sum, byte| sum << 8 | i32::from(*byte)))
            .wrapping_add(rng.below(5) as i64 - 2),
        1 => rng.below(8) as i64,
        _ => rng.odd_i64(),
    };
    batch[at..at + width].copy_from_slice(&value.to_be_bytes()[8 - width..]);
}

/// A record whose integers are what they should be, but for one or two.
fn odd_record(rng: &mut Rng, delta: i64) -> Vec<u8> {
    let odd = |rng: &mut Rng, right: i64| if rng.one_in(12) { rng.odd_i64() } else { right };
    let mut body = vec![0];
    let timestamp = rng.odd_i64();
    body.extend(zigzag(timestamp));
    body.extend(zigzag(odd(rng, delta)));
    for _ in 0..2 {
        let length = rng.below(20);
        body.extend(zigzag(odd(rng, length as i64)));
        body.resize(body.len() + length, b'x');
    }
    let headers = rng.below(3);
    body.extend(zigzag(odd(rng, headers as i64)));
    for _ in 0..headers {
        body.extend(zigzag(odd(rng, 2)));
        body.extend(b"hh");
        body.extend(zigzag(odd(rng, -1)));
    }
    let mut record = zigzag(odd(rng, body.len() as i64));
    record.append(&mut body);
    record
}

/// A payload of such records, and how many and up to which offset the header should say.
fn odd_payload(rng: &mut Rng) -> (Vec<u8>, i32, i32) {
    let count = 1 + rng.below(6);
    let mut payload = Vec::new();
    let mut delta = 0;
    for _ in 0..count {
        payload.extend(odd_record(rng, delta));
        delta += 1 + rng.below(3) as i64 - i64::from(rng.one_in(12));
    }
    (payload, count as i32, delta as i32)
}

/// Bytes as one of the codecs packs them; those that can be packed without an encoder.
fn pack_by_hand(rng: &mut Rng, payload: &[u8]) -> (u8, Vec<u8>) {
    match rng.below(4) {
        0 => (LZ4, pack::lz4_stored(payload)),
        1 => (SNAPPY, pack::snappy_literals(payload)),
        2 => {
            let cut = rng.below(payload.len());
            let blocks = [&payload[..cut], &payload[cut..]].map(pack::snappy_literals);
            (SNAPPY, pack::snappy_framed(&blocks))
        }
        _ => (0, payload.to_vec()),
    }
}

/// A batch, hostile or sound.
pub(crate) fn batch(rng: &mut Rng, hostile: bool) -> Vec<u8> {
    if hostile { hostile_batch(rng) } else { rng.pick(samples()).batch.clone() }
}

fn hostile_batch(rng: &mut Rng) -> Vec<u8> {
    let samples = samples();
    let sample = rng.pick(samples);
    let other = rng.pick(samples);
    match rng.below(10) {
        0 | 1 => {
            let mut payload = sample.payload.clone();
            mutate(rng, &mut payload, &other.payload);
            let (codec, packed) = pack_by_hand(rng, &payload);
            pack::repack(&sample.batch, codec, &packed)
        }
        2 | 3 => {
            let (payload, count, last) = odd_payload(rng);
            let (codec, packed) = pack_by_hand(rng, &payload);
            let mut batch = pack::repack(&sample.batch, codec, &packed);
            batch[23..27].copy_from_slice(&last.to_be_bytes());
            batch[57..61].copy_from_slice(&count.to_be_bytes());
            pack::seal(&mut batch);
            batch
        }
        4..=6 => {
            let mut packed = sample.batch[HEADER_BYTES..].to_vec();
            mutate(rng, &mut packed, &other.batch[HEADER_BYTES..]);
            pack::repack(&sample.batch, sample.codec, &packed)
        }
        7 => {
            let mut batch = sample.batch.clone();
            change_header(rng, &mut batch);
            pack::seal_crc(&mut batch);
            batch
        }
        8 => {
            let mut batch = sample.batch.clone();
            mutate(rng, &mut batch, &other.batch);
            if rng.one_in(2) && batch.len() > HEADER_BYTES {
                pack::seal(&mut batch);
            }
            batch
        }
        _ => sample.batch.clone(),
    }
}

/// Reads batches to the end, as `pool` does, and holds what comes to what the reader promises.
fn read(case: &mut Case, mut records: Bytes, size_max: usize) {
    let mut spare = Vec::new();
    let mut positions = Vec::new();
    while let Ok(Some(batch)) = next_batch(&mut records) {
        case.reached("header read");
        let header = batch.header;
        assert!(header.base_offset >= 0 && header.next_offset() > header.base_offset);
        if batch.check_crc().is_err() {
            case.reached("CRC refused");
            continue;
        }
        let Ok(payload) = batch.payload(&mut spare, size_max) else {
            case.reached("unpacking refused");
            continue;
        };
        assert!(payload.owned_bytes() <= size_max.max(batch.bytes().len()), "no more than the limit");
        if payload.owned_bytes() > 0 {
            case.reached("unpacked");
        }
        let mut last = -1;
        let indexed = index_records(&header, &payload, &mut positions, |index, delta, _| {
            assert!(delta > last && delta <= header.last_offset_delta, "record {index} in order");
            last = delta;
        });
        if indexed.is_err() {
            case.reached("records refused");
        } else {
            case.reached("records indexed");
            assert_eq!(positions.len(), header.record_count as usize);
            for position in &positions {
                let record = Record::parse(&header, &payload, *position).expect("an indexed record");
                assert!((header.base_offset..header.next_offset()).contains(&record.offset));
                let data = record.headers().map(|(name, value)| name.len() + value.map_or(0, <[u8]>::len));
                assert!(data.sum::<usize>() <= payload.len());
                let _ = ControlMarker::parse(&header, record.key);
            }
        }
        for position in 0..payload.len().min(40) as u32 {
            let _ = Record::parse(&header, &payload, position * 7).map(|record| record.headers().count());
        }
        let _ = Record::parse(&header, &payload, u32::MAX);
        spare = payload.into_vec();
    }
}

fn memory_max(wire: &Bytes, size_max: usize) -> usize {
    let mut batches = wire.clone();
    let has_zstd = std::iter::from_fn(|| next_batch(&mut batches).ok().flatten())
        .any(|batch| batch.header.compression() == Ok(Codec::Zstd));
    let window_bytes = if has_zstd { ZSTD_BYTES } else { 0 };
    // Growing a buffer holds the old and the new one.
    2 * size_max + window_bytes + CODEC_BYTES + MEMORY_PER_BYTE_MAX * wire.len() + 4 * size_max / 7
}

#[test]
fn batches() {
    let stages = [
        ("header read", 700),
        ("unpacked", 200),
        ("records indexed", 100),
        ("records refused", 100),
        ("unpacking refused", 100),
    ];
    campaign::run("batches", 24, &stages, |rng, case| {
        let mut wire = Vec::new();
        for _ in 0..1 + rng.below(3) {
            wire.extend(hostile_batch(rng));
        }
        if rng.one_in(10) {
            wire.truncate(rng.below(wire.len()));
        }
        let size_max = if rng.one_in(4) { 64 + rng.below(4096) } else { SIZE_MAX };
        let wire = Bytes::from(wire);
        case.work(wire.len(), memory_max(&wire, size_max), |case| read(case, wire, size_max));
    });
}

/// Small batches that unpack to much: each codec stops at the limit.
#[test]
fn bombs() {
    let packed: Vec<Vec<u8>> = (1..CODECS.len() as u8)
        .map(|codec| {
            let mut builder = BatchBuilder::new();
            builder.append(None, Some(&vec![0; 8 << 20]), &[], 0).expect("far below 2 GB");
            let codec = Codec::from_id(codec.into()).expect("a known codec");
            builder.finish(codec, &ProducerStamp::NONE).expect("a batch").to_vec()
        })
        .collect();
    let stages = [("header read", 900), ("unpacking refused", 500)];
    campaign::run("bombs", 1, &stages, |rng, case| {
        let at = rng.below(packed.len());
        let mut batch = packed[at].clone();
        match rng.below(4) {
            // Several frames, one behind the other.
            0 => batch = pack::repack(&batch, at as u8 + 1, &batch[HEADER_BYTES..].repeat(2)),
            1 => {
                let mut body = batch[HEADER_BYTES..].to_vec();
                mutate(rng, &mut body, &batch);
                batch = pack::repack(&batch, at as u8 + 1, &body);
            }
            _ => {}
        }
        let size_max = 1 + rng.below(SIZE_MAX);
        let batch = Bytes::from(batch);
        case.work(batch.len(), memory_max(&batch, size_max), |case| read(case, batch, size_max));
    });
}

/// A marker that ends a transaction of `producer`, or something near one.
fn marker(rng: &mut Rng, producer: i64) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    let mut key = vec![0, 0, 0, u8::from(rng.one_in(2))];
    if rng.one_in(10) {
        mutate(rng, &mut key, &[]);
    }
    builder.append(Some(&key), Some(&[0; 6]), &[], 0).expect("far below 2 GB");
    let codec = if rng.one_in(10) { Codec::Lz4 } else { Codec::None };
    let mut batch = builder.finish(codec, &ProducerStamp::NONE).expect("a batch").to_vec();
    batch[22] |= 0x30;
    batch[43..51].copy_from_slice(&producer.to_be_bytes());
    pack::seal(&mut batch);
    batch
}

#[test]
fn scans() {
    let stages = [("delivered", 300), ("held back", 200), ("damage", 50), ("below the position", 50)];
    campaign::run("scans", 14, &stages, |rng, case| {
        let mut wire = Vec::new();
        let mut offset = match rng.below(10) {
            0 => i64::MAX - rng.below(2000) as i64,
            1 => rng.odd_i64(),
            _ => rng.below(100) as i64,
        };
        let mut aborted = Vec::new();
        for _ in 0..1 + rng.below(6) {
            let producer = rng.below(4) as i64 - 1;
            let mut batch = match rng.below(6) {
                0 | 1 => marker(rng, producer),
                2 => hostile_batch(rng),
                _ => rng.pick(samples()).batch.clone(),
            };
            if !rng.one_in(12) && batch.len() > HEADER_BYTES {
                batch[..8].copy_from_slice(&offset.to_be_bytes());
                let last = i32::from_be_bytes([batch[23], batch[24], batch[25], batch[26]]);
                offset = offset.wrapping_add(i64::from(last)).wrapping_add(1 + rng.below(3) as i64);
            }
            if rng.one_in(2) {
                let first = if rng.one_in(6) { rng.odd_i64() } else { offset.wrapping_sub(4) };
                aborted.push(
                    AbortedTransaction::default().with_producer_id(producer.into()).with_first_offset(first),
                );
            }
            wire.extend(batch);
        }
        let position = if rng.one_in(4) { rng.odd_i64() } else { rng.below(100) as i64 };
        let isolation = if rng.one_in(4) { Isolation::ReadUncommitted } else { Isolation::ReadCommitted };
        let wire = Bytes::from(wire);
        let bytes = wire.len() + aborted.len() * 16;
        // A marker may be packed: it is unpacked up to 64 KiB.
        let limit = 8 * bytes + memory_max(&wire, 64 << 10);
        case.work(bytes, limit, |case| {
            let whole = wire.len();
            let (scanned, damage) = fetch::scan(wire, position, &aborted, isolation);
            assert!(scanned.position >= position, "a position falls only by a reset");
            assert!(scanned.bytes <= whole);
            let mut reached = position;
            for fetched in &scanned.batches {
                assert!(fetched.batch.header.next_offset() > reached, "batches in order");
                reached = fetched.batch.header.next_offset();
                case.reached(if fetched.deliver { "delivered" } else { "held back" });
            }
            assert_eq!(reached, scanned.position);
            if scanned.batches.is_empty() {
                case.reached("below the position");
            }
            if damage.is_some() {
                case.reached("damage");
            }
        });
    });
}
