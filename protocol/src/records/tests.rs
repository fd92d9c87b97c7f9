//! Batches as a whole: written and read back, against the codec crate, and the public bug reports whose right
//! behaviour lives here.

use super::*;
use bytes::Bytes;
use kafka_protocol::records as oracle;
use proptest::prelude::*;

const SIZE_MAX: usize = 1 << 20;

type OwnedHeader = (Vec<u8>, Option<Vec<u8>>);

#[derive(Debug, Clone, PartialEq)]
struct Entry {
    offset: i64,
    timestamp_ms: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<OwnedHeader>,
}

fn build(entries: &[Entry], codec: Codec, stamp: &ProducerStamp) -> Bytes {
    let mut builder = BatchBuilder::new();
    for entry in entries {
        let headers: Vec<_> =
            entry.headers.iter().map(|(name, value)| (&name[..], value.as_deref())).collect();
        let (key, value) = (entry.key.as_deref(), entry.value.as_deref());
        let bytes_max = builder.bytes() + record_bytes_max(key, value, &headers);
        builder.append(key, value, &headers, entry.timestamp_ms).unwrap();
        assert!(builder.bytes() <= bytes_max);
    }
    builder.finish(codec, stamp).unwrap()
}

/// Reads everything, the way a consumer does.
fn read(mut bytes: Bytes) -> Result<Vec<Entry>, BatchError> {
    let (mut entries, mut spare, mut positions) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(batch) = next_batch(&mut bytes)? {
        batch.check_crc()?;
        let payload = batch.payload(&mut spare, SIZE_MAX)?;
        let mut indexed = Vec::new();
        index_records(&batch.header, &payload, &mut positions, |index, delta, key| {
            assert_eq!(index, indexed.len());
            indexed.push((batch.header.base_offset + i64::from(delta), key.map(<[u8]>::to_vec)));
        })?;
        assert_eq!(positions.len(), indexed.len());
        for (position, (offset, key)) in positions.iter().zip(indexed) {
            let record = Record::parse(&batch.header, &payload, *position)?;
            assert_eq!((record.offset, record.key.map(<[u8]>::to_vec)), (offset, key));
            entries.push(Entry {
                offset,
                timestamp_ms: record.timestamp_ms,
                key: record.key.map(<[u8]>::to_vec),
                value: record.value.map(<[u8]>::to_vec),
                headers: record
                    .headers()
                    .map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec)))
                    .collect(),
            });
        }
        spare = payload.into_vec();
    }
    Ok(entries)
}

fn entry(offset: i64, key: &str, value: &str) -> Entry {
    Entry {
        offset,
        timestamp_ms: 1000 + offset,
        key: Some(key.into()),
        value: Some(value.into()),
        headers: Vec::new(),
    }
}

/// Overwrites header fields and seals the batch again.
fn altered(batch: &[u8], changes: &[(usize, &[u8])]) -> Bytes {
    let mut batch = batch.to_vec();
    for (at, bytes) in changes {
        batch[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    let crc = crc32c::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    batch.into()
}

fn with_base_offset(batch: &[u8], base_offset: i64) -> Bytes {
    altered(batch, &[(0, &base_offset.to_be_bytes())])
}

fn ten_records(codec: Codec) -> Bytes {
    let entries: Vec<_> = (0..10).map(|i| entry(i, "key", "a value that is long enough")).collect();
    build(&entries, codec, &ProducerStamp::NONE)
}

/// The example in the codec crate's documentation: offset 1, "hello" = "world", three offsets compacted away.
const HELLO: [u8; 79] = [
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x43, 0x00, 0x00, 0x00, 0x00, 0x02,
    0x73, 0x6d, 0x29, 0x7b, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x22, 0x01, 0xd0, 0x0f, 0x02, 0x0a, 0x68,
    0x65, 0x6c, 0x6c, 0x6f, 0x0a, 0x77, 0x6f, 0x72, 0x6c, 0x64, 0x00,
];

#[test]
fn known_batch() {
    let mut bytes = Bytes::from_static(&HELLO);
    let batch = next_batch(&mut bytes).unwrap().unwrap();
    assert!(bytes.is_empty());
    assert_eq!(batch.check_crc(), Ok(()));
    let header = batch.header;
    assert_eq!((header.batch_length, header.crc, header.record_count), (67, 0x736d_297b, 1));
    assert_eq!(header.next_offset(), 4);
    let read = read(Bytes::from_static(&HELLO)).unwrap();
    assert_eq!(read, [Entry { timestamp_ms: 1000, ..entry(1, "hello", "world") }]);
}

#[test]
fn header_bits() {
    let plain = ten_records(Codec::Lz4);
    let header = |attributes: i16| {
        let mut batch = altered(&plain, &[(21, &attributes.to_be_bytes())]);
        next_batch(&mut batch).unwrap().unwrap().header
    };
    let lz4 = header(3);
    assert_eq!(lz4.compression(), Ok(Codec::Lz4));
    assert!(!lz4.is_transactional() && !lz4.is_control());
    assert_eq!(lz4.timestamp_type(), TimestampType::CreateTime);
    assert_eq!((lz4.last_offset(), lz4.next_offset()), (9, 10));
    assert_eq!(header(0x08).timestamp_type(), TimestampType::LogAppendTime);
    assert!(header(0x10).is_transactional());
    assert!(header(0x20).is_control());
    let unknown = header(7).compression().unwrap_err();
    assert_eq!(unknown, BatchError { base_offset: Some(0), kind: BatchErrorKind::UnknownCodec(7) });
}

#[test]
fn log_append_time_is_the_batchs_max() {
    let attributes = 0x08_i16.to_be_bytes();
    let batch = altered(&ten_records(Codec::None), &[(21, &attributes), (35, &777_i64.to_be_bytes())]);
    assert!(read(batch).unwrap().iter().all(|entry| entry.timestamp_ms == 777));
}

#[test]
fn headers_keep_order_and_repeats() {
    let mut one = entry(0, "k", "v");
    one.headers = vec![
        (b"b".to_vec(), Some(b"1".to_vec())),
        (b"a".to_vec(), None),
        (b"b".to_vec(), Some(Vec::new())),
        (Vec::new(), Some(b"\xff".to_vec())),
    ];
    assert_eq!(read(build(&[one.clone()], Codec::Lz4, &ProducerStamp::NONE)).unwrap(), [one]);
}

/// Public case 2: thread osodevops/kafka-backup#139.
#[test]
fn compacted_tail_and_empty_batch_move_on() {
    let five: Vec<_> = (0..5).map(|i| entry(i, "key", "value")).collect();
    let one = build(&[entry(0, "key", "value")], Codec::Lz4, &ProducerStamp::NONE);
    let tail = build(&five, Codec::Lz4, &ProducerStamp::NONE);
    let tail = altered(&tail, &[(0, &100_i64.to_be_bytes()), (23, &9_i32.to_be_bytes())]);
    let mut emptied = tail[..HEADER_BYTES].to_vec();
    emptied[8..12].copy_from_slice(&49_i32.to_be_bytes());
    emptied[57..61].copy_from_slice(&0_i32.to_be_bytes());
    let emptied = with_base_offset(&emptied, 110);
    let bytes = Bytes::from([&tail[..], &emptied, &with_base_offset(&one, 120)].concat());
    let offsets: Vec<_> = read(bytes.clone()).unwrap().iter().map(|entry| entry.offset).collect();
    assert_eq!(offsets, [100, 101, 102, 103, 104, 120]);
    let (mut left, mut next) = (bytes, Vec::new());
    while let Some(batch) = next_batch(&mut left).unwrap() {
        next.push(batch.header.next_offset());
    }
    assert_eq!(next, [110, 120, 121]);
}

/// Public case 17: thread thomhurst/Dekaf#645.
#[test]
fn cut_tail_is_normal() {
    let whole = ten_records(Codec::Lz4);
    for cut in 0..whole.len() {
        let mut bytes = Bytes::from([&whole[..], &whole[..cut]].concat());
        assert!(next_batch(&mut bytes).unwrap().is_some());
        assert!(next_batch(&mut bytes).unwrap().is_none(), "cut at {cut}");
        assert_eq!(bytes.len(), cut);
    }
}

/// Public case 17, second part: thread thomhurst/Dekaf#2065.
#[test]
fn flipped_byte_yields_no_record() {
    for codec in [Codec::None, Codec::Lz4] {
        let whole = ten_records(codec);
        for at in 17..whole.len() {
            let mut damaged = whole.to_vec();
            damaged[at] ^= 0x10;
            let error = read(damaged.into()).unwrap_err();
            assert_eq!(error.base_offset, Some(0));
            let is_crc = matches!(error.kind, BatchErrorKind::CrcMismatch { .. });
            assert!(is_crc || (23..61).contains(&at), "{error} at {at}");
        }
    }
}

#[test]
fn impossible_headers() {
    let whole = with_base_offset(&ten_records(Codec::None), 5);
    let error = |at: usize, bytes: &[u8]| read(altered(&whole, &[(at, bytes)])).unwrap_err().kind;
    for magic in [0_u8, 1, 3] {
        assert_eq!(error(16, &[magic]), BatchErrorKind::UnsupportedMagic(magic as i8));
    }
    for length in [-1, i32::MIN, 0, 48] {
        assert!(matches!(error(8, &length.to_be_bytes()), BatchErrorKind::Damaged(_)), "length {length}");
    }
    for count in [-1, 9, 11, i32::MAX] {
        assert!(matches!(error(57, &count.to_be_bytes()), BatchErrorKind::Damaged(_)), "count {count}");
    }
    for delta in [-1, i32::MIN, 0, 8] {
        assert!(matches!(error(23, &delta.to_be_bytes()), BatchErrorKind::Damaged(_)), "last delta {delta}");
    }
    assert!(matches!(error(0, &(-1_i64).to_be_bytes()), BatchErrorKind::Damaged(_)));
    assert!(matches!(error(0, &i64::MAX.to_be_bytes()), BatchErrorKind::Damaged(_)));
    let mut longest = with_base_offset(&whole, i64::MAX - 10);
    assert_eq!(next_batch(&mut longest).unwrap().unwrap().header.next_offset(), i64::MAX);
}

#[test]
fn offsets_that_stand_still_are_damage() {
    let batch = build(&[entry(0, "k", "v"), entry(1, "k", "v")], Codec::None, &ProducerStamp::NONE);
    let record_bytes = (batch.len() - HEADER_BYTES) / 2;
    for delta in [0_u8, 1, 2 << 1] {
        let at = HEADER_BYTES + record_bytes + 3;
        let error = read(altered(&batch, &[(at, &[delta])])).unwrap_err();
        let what = "offset delta out of order or out of the batch's range";
        assert_eq!(error.kind, BatchErrorKind::Damaged(what), "delta {delta}");
    }
}

#[test]
fn hostile_counts_allocate_nothing() {
    let whole = ten_records(Codec::None);
    let mut header = next_batch(&mut whole.clone()).unwrap().unwrap().header;
    header.record_count = i32::MAX;
    let mut positions = Vec::new();
    assert!(index_records(&header, &whole[HEADER_BYTES..], &mut positions, |_, _, _| ()).is_err());
    assert_eq!(positions.capacity(), 0);
    // One record whose count of headers is the largest.
    let body = [0, 0, 0, 1, 1, 0xfe, 0xff, 0xff, 0xff, 0x0f];
    let payload = [&[body.len() as u8 * 2], &body[..]].concat();
    header.record_count = 1;
    let error = index_records(&header, &payload, &mut positions, |_, _, _| ()).unwrap_err();
    assert_eq!(error.kind, BatchErrorKind::Damaged("record headers"));
    assert_eq!(Record::parse(&header, &payload, 0).unwrap().headers().count(), 0);
    assert!(Record::parse(&header, &payload, 4000).is_err());
}

#[test]
fn control_markers() {
    let header = next_batch(&mut ten_records(Codec::None)).unwrap().unwrap().header;
    let parse = |key: Option<&[u8]>| ControlMarker::parse(&header, key);
    assert_eq!(parse(Some(&[0, 0, 0, 0])), Ok(ControlMarker::Abort));
    assert_eq!(parse(Some(&[0, 0, 0, 1])), Ok(ControlMarker::Commit));
    assert_eq!(parse(Some(&[0, 1, 0, 6, 9, 9])), Ok(ControlMarker::Other(6)));
    assert!(parse(Some(&[0xff, 0xff, 0, 1])).is_err());
    assert!(parse(Some(&[0, 0, 0])).is_err());
    assert!(parse(None).is_err());
}

#[test]
fn stamp_and_restamp() {
    let entries: Vec<_> = (0..3).map(|i| entry(i, "key", "value")).collect();
    let stamp =
        ProducerStamp { producer_id: 7, producer_epoch: 2, base_sequence: 40, is_transactional: true };
    let batch = build(&entries, Codec::Lz4, &stamp);
    let again = restamp(&batch, 8, 3, 0);
    let header = next_batch(&mut again.clone()).unwrap().unwrap().header;
    assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (8, 3, 0));
    assert!(header.is_transactional());
    assert_eq!(read(again.clone()).unwrap(), entries);
    assert_eq!(restamp(&again, 7, 2, 40), batch);
}

#[test]
fn builder_is_used_again() {
    let mut builder = BatchBuilder::new();
    for round in 0..3 {
        builder.append(Some(b"k"), None, &[], 50 - round).unwrap();
        builder.append(None, Some(b""), &[], 40).unwrap();
        assert_eq!(builder.record_count(), 2);
        let batch = builder.finish(Codec::Lz4, &ProducerStamp::NONE).unwrap();
        assert!(builder.is_empty());
        assert_eq!(builder.bytes(), HEADER_BYTES);
        let header = next_batch(&mut batch.clone()).unwrap().unwrap().header;
        assert_eq!((header.base_timestamp, header.max_timestamp), (50 - round, 50 - round));
        let read = read(batch).unwrap();
        assert_eq!((read[0].value.clone(), read[1].key.clone()), (None, None));
        assert_eq!((read[0].timestamp_ms, read[1].timestamp_ms), (50 - round, 40));
    }
}

fn bytes_strategy() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop::option::of(prop::collection::vec(any::<u8>(), 0..200))
}

fn entries_strategy() -> impl Strategy<Value = Vec<Entry>> {
    let header = (prop::collection::vec(any::<u8>(), 0..10), bytes_strategy());
    let one = (any::<u32>(), bytes_strategy(), bytes_strategy(), prop::collection::vec(header, 0..4));
    prop::collection::vec(one, 1..80).prop_map(|entries| {
        let with_offset = entries.into_iter().enumerate();
        let entry = |(index, (timestamp, key, value, headers)): (usize, (u32, _, _, _))| Entry {
            offset: index as i64,
            timestamp_ms: i64::from(timestamp),
            key,
            value,
            headers,
        };
        with_offset.map(entry).collect()
    })
}

/// The oracle's headers are a map of text: keep those it can hold.
fn made_plain(mut entries: Vec<Entry>) -> Vec<Entry> {
    for entry in &mut entries {
        for (index, (name, _)) in entry.headers.iter_mut().enumerate() {
            *name = format!("header-{index}").into_bytes();
        }
    }
    entries
}

fn oracle_record(entry: &Entry) -> oracle::Record {
    let text = |name: &Vec<u8>| String::from_utf8(name.clone()).unwrap().into();
    oracle::Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: -1,
        producer_id: -1,
        producer_epoch: -1,
        timestamp_type: oracle::TimestampType::Creation,
        offset: entry.offset,
        // The oracle counts sequences up from its "none" of -1.
        sequence: entry.offset as i32 - 1,
        timestamp: entry.timestamp_ms,
        key: entry.key.clone().map(Bytes::from),
        value: entry.value.clone().map(Bytes::from),
        headers: entry
            .headers
            .iter()
            .map(|(name, value)| (text(name), value.clone().map(Bytes::from)))
            .collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn round_trip(entries in entries_strategy()) {
        for codec in [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
            if codec.is_supported() {
                prop_assert_eq!(&read(build(&entries, codec, &ProducerStamp::NONE)).unwrap(), &entries);
            }
        }
    }

    #[test]
    fn oracle_reads_what_we_write(entries in entries_strategy()) {
        let entries = made_plain(entries);
        let batch = build(&entries, Codec::None, &ProducerStamp::NONE);
        let decoded = oracle::RecordBatchDecoder::decode(&mut batch.clone()).unwrap();
        let expected: Vec<_> = entries.iter().map(oracle_record).collect();
        prop_assert_eq!(decoded.records, expected);
    }

    #[test]
    fn we_read_what_the_oracle_writes(entries in entries_strategy()) {
        let entries = made_plain(entries);
        let records: Vec<_> = entries.iter().map(oracle_record).collect();
        let options = oracle::RecordEncodeOptions { version: 2, compression: oracle::Compression::None };
        let mut encoded = bytes::BytesMut::new();
        oracle::RecordBatchEncoder::encode(&mut encoded, &records, &options).unwrap();
        prop_assert_eq!(read(encoded.freeze()).unwrap(), entries);
    }

    /// The CRC is made good again, so that the damage reaches what lies behind it.
    #[test]
    fn damage_behind_the_crc(
        entries in entries_strategy(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        packed: bool,
    ) {
        let codec = if packed { Codec::Lz4 } else { Codec::None };
        let mut batch = build(&entries, codec, &ProducerStamp::NONE).to_vec();
        for (at, byte) in changes {
            let at = 21 + at.index(batch.len() - 21);
            batch[at] = byte;
        }
        let _ = read(altered(&batch, &[]));
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300), count in 0..50_i32) {
        let _ = read(Bytes::from(bytes.clone()));
        let mut header = next_batch(&mut ten_records(Codec::None)).unwrap().unwrap().header;
        header.record_count = count;
        header.last_offset_delta = 100;
        let mut positions = Vec::new();
        let _ = index_records(&header, &bytes, &mut positions, |_, _, _| ());
        prop_assert!(positions.capacity() <= 64);
        for position in 0..bytes.len() as u32 {
            if let Ok(record) = Record::parse(&header, &bytes, position) {
                prop_assert!(record.headers().count() <= bytes.len());
            }
        }
    }
}
