//! One test per rule of the log; `model` has the long runs.

use super::log::ReadResult;
use super::{Appended, Log, ProducedBatch};
use bytes::Bytes;
use keylane_protocol::records::{BatchBuilder, Codec, ProducerStamp, next_batch};

const OFFSET_OUT_OF_RANGE: i16 = 1;
const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;
const INVALID_PRODUCER_EPOCH: i16 = 47;
const INVALID_TXN_STATE: i16 = 48;

/// What a test wants of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) records: usize,
    pub(super) value_bytes: usize,
    pub(super) timestamp_ms: i64,
    pub(super) codec: Codec,
    pub(super) producer_id: i64,
    pub(super) producer_epoch: i16,
    pub(super) base_sequence: i32,
    pub(super) transactional: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            records: 1,
            value_bytes: 1,
            timestamp_ms: 1000,
            codec: Codec::None,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            transactional: false,
        }
    }
}

pub(super) fn batch(shape: &Shape) -> Bytes {
    let mut builder = BatchBuilder::new();
    let value = vec![b'v'; shape.value_bytes];
    for _ in 0..shape.records {
        builder.append(None, Some(&value), &[], shape.timestamp_ms).expect("it fits");
    }
    let stamp = ProducerStamp {
        producer_id: shape.producer_id,
        producer_epoch: shape.producer_epoch,
        base_sequence: shape.base_sequence,
        is_transactional: shape.transactional,
    };
    builder.finish(shape.codec, &stamp).expect("a codec of this build")
}

fn append(log: &mut Log, shape: Shape) -> Result<Appended, i16> {
    let batch = ProducedBatch::parse(batch(&shape), usize::MAX).expect("built to be good");
    log.append(&batch, 0, 0)
}

fn plain(log: &mut Log, records: usize) -> i64 {
    append(log, Shape { records, ..Shape::default() }).expect("no producer, no refusal").base_offset
}

/// A batch of producer 7.
fn sequenced(epoch: i16, base_sequence: i32, records: usize) -> Shape {
    Shape { producer_id: 7, producer_epoch: epoch, base_sequence, records, ..Shape::default() }
}

fn transactional(producer_id: i64, base_sequence: i32) -> Shape {
    Shape { producer_id, producer_epoch: 0, base_sequence, transactional: true, ..Shape::default() }
}

/// Behind the last batch that was read.
pub(super) fn next_offset(read: &ReadResult) -> Option<i64> {
    let (mut records, mut next) = (read.records.clone(), None);
    while let Some(batch) = next_batch(&mut records).expect("sound") {
        next = Some(batch.header.next_offset());
    }
    next
}

fn base(result: Result<Appended, i16>) -> i64 {
    result.expect("accepted").base_offset
}

#[test]
fn offsets_and_the_leader_epoch_are_written_over_and_the_crc_still_holds() {
    let mut log = Log::new();
    plain(&mut log, 3);
    let second = ProducedBatch::parse(batch(&Shape { records: 2, ..Shape::default() }), usize::MAX);
    let told = log.append(&second.expect("good"), 9, 0).expect("accepted");
    assert_eq!(told, Appended { base_offset: 3, log_start_offset: 0, duplicate: false });
    let mut records = log.read(3, 1000, false, false).expect("there").records;
    let batch = next_batch(&mut records).expect("sound").expect("whole");
    batch.check_crc().expect("not covered");
    assert_eq!((batch.header.base_offset, batch.header.partition_leader_epoch), (3, 9));
    assert_eq!(log.end_offset(), 5);
}

#[test]
fn the_last_five_batches_are_known_again() {
    let mut log = Log::new();
    for index in 0..6 {
        assert_eq!(base(append(&mut log, sequenced(0, index * 2, 2))), i64::from(index) * 2);
    }
    for index in 1..6 {
        let told = append(&mut log, sequenced(0, index * 2, 2)).expect("known");
        assert_eq!((told.base_offset, told.duplicate), (i64::from(index) * 2, true));
    }
    assert_eq!(append(&mut log, sequenced(0, 0, 2)), Err(OUT_OF_ORDER_SEQUENCE_NUMBER), "the sixth is not");
    assert_eq!(append(&mut log, sequenced(0, 2, 1)), Err(OUT_OF_ORDER_SEQUENCE_NUMBER), "nor a part of one");
    assert_eq!(log.end_offset(), 12);
}

#[test]
fn sequences_must_follow() {
    let mut log = Log::new();
    append(&mut log, sequenced(0, 0, 3)).expect("first");
    assert_eq!(append(&mut log, sequenced(0, 4, 1)), Err(OUT_OF_ORDER_SEQUENCE_NUMBER));
    assert_eq!(base(append(&mut log, sequenced(0, 3, 1))), 3);
}

#[test]
fn an_unknown_producer_may_begin_anywhere() {
    let mut log = Log::new();
    assert_eq!(base(append(&mut log, sequenced(3, 50, 1))), 0);
    assert_eq!(base(append(&mut log, sequenced(3, 51, 1))), 1);
}

#[test]
fn sequences_wrap() {
    let mut log = Log::new();
    append(&mut log, sequenced(0, i32::MAX - 1, 4)).expect("anywhere");
    assert_eq!(base(append(&mut log, sequenced(0, 2, 1))), 4, "MAX - 1, MAX, 0, 1, and then 2");
    assert!(append(&mut log, sequenced(0, i32::MAX - 1, 4)).expect("known").duplicate);
}

#[test]
fn epochs_fence_and_begin_at_zero() {
    let mut log = Log::new();
    append(&mut log, sequenced(1, 0, 1)).expect("first");
    assert_eq!(append(&mut log, sequenced(0, 1, 1)), Err(INVALID_PRODUCER_EPOCH));
    assert_eq!(append(&mut log, sequenced(2, 1, 1)), Err(OUT_OF_ORDER_SEQUENCE_NUMBER));
    assert_eq!(base(append(&mut log, sequenced(2, 0, 1))), 1);
    assert_eq!(append(&mut log, sequenced(1, 1, 1)), Err(INVALID_PRODUCER_EPOCH));
}

#[test]
fn a_marker_of_a_later_epoch_fences() {
    let mut log = Log::new();
    append(&mut log, transactional(7, 0)).expect("first");
    log.append_marker(7, 1, false, 0, 0, 0);
    assert_eq!(append(&mut log, transactional(7, 1)), Err(INVALID_PRODUCER_EPOCH));
    let next = Shape { producer_epoch: 1, ..transactional(7, 0) };
    assert_eq!(base(append(&mut log, next)), 2);
}

#[test]
fn sequences_go_on_behind_a_marker_of_the_same_epoch() {
    let mut log = Log::new();
    append(&mut log, transactional(7, 0)).expect("first");
    log.append_marker(7, 0, true, 0, 0, 0);
    assert_eq!(base(append(&mut log, transactional(7, 1))), 2);
}

#[test]
fn within_a_transaction_everything_is_transactional() {
    let mut log = Log::new();
    append(&mut log, transactional(7, 0)).expect("first");
    assert_eq!(append(&mut log, sequenced(0, 1, 1)), Err(INVALID_TXN_STATE));
    log.append_marker(7, 0, true, 0, 0, 0);
    assert_eq!(base(append(&mut log, sequenced(0, 1, 1))), 2);
}

#[test]
fn the_oldest_open_transaction_holds_the_stable_offset() {
    let mut log = Log::new();
    plain(&mut log, 2);
    append(&mut log, transactional(7, 0)).expect("first");
    append(&mut log, transactional(8, 0)).expect("first");
    assert_eq!(log.last_stable_offset(), 2);
    assert!(log.has_open_transaction(7, 0) && !log.has_open_transaction(7, 1));
    log.append_marker(7, 0, true, 0, 0, 0);
    assert_eq!(log.last_stable_offset(), 3);
    log.append_marker(8, 0, false, 0, 0, 0);
    assert_eq!(log.last_stable_offset(), 6);
    assert!(!log.has_open_transaction(7, 0));
}

#[test]
fn readers_of_committed_data_are_told_what_was_aborted() {
    let mut log = Log::new();
    append(&mut log, transactional(7, 0)).expect("first");
    append(&mut log, transactional(8, 0)).expect("first");
    log.append_marker(8, 0, false, 0, 0, 0);
    assert!(log.read(0, 10_000, true, true).expect("there").records.is_empty(), "7 is open");
    assert_eq!(next_offset(&log.read(0, 10_000, false, true).expect("there")), Some(3));
    log.append_marker(7, 0, false, 0, 0, 0);
    let aborted = |log: &Log, offset| {
        let told = log.read(offset, 10_000, true, true).expect("there");
        told.aborted.iter().map(|a| (a.producer_id, a.first_offset, a.last_offset)).collect::<Vec<_>>()
    };
    assert_eq!(aborted(&log, 0), [(7, 0, 3), (8, 1, 2)]);
    assert_eq!(aborted(&log, 3), [(7, 0, 3)]);
    assert!(log.read(0, 10_000, false, true).expect("there").aborted.is_empty());
}

#[test]
fn the_first_batch_comes_whole_only_if_it_must() {
    let mut log = Log::new();
    plain(&mut log, 10);
    plain(&mut log, 1);
    assert!(log.read(0, 1, false, false).expect("there").records.is_empty());
    let whole = log.read(4, 1, false, true).expect("there");
    assert_eq!(next_offset(&whole), Some(10), "from the batch that holds the offset");
    assert_eq!(next_offset(&log.read(0, usize::MAX, false, false).expect("there")), Some(11));
    assert!(log.read(11, 1, false, true).expect("the end").records.is_empty());
    assert_eq!(log.read(12, 1, false, true).err(), Some(OFFSET_OUT_OF_RANGE));
}

#[test]
fn large_logs_are_read_in_slices_of_segments() {
    let mut log = Log::new();
    let large = Shape { value_bytes: 700_000, ..Shape::default() };
    for _ in 0..20 {
        append(&mut log, large).expect("no producer");
    }
    let (mut position, mut reads) = (0, 0);
    while position < 20 {
        let told = log.read(position, 3_000_000, false, true).expect("there");
        let next = next_offset(&told).expect("there is more");
        assert!(next > position);
        (position, reads) = (next, reads + 1);
    }
    assert!(reads <= 10, "{reads} reads for 14 MB");
    let first = log.read(0, 3_000_000, false, true).expect("there").records;
    let again = log.read(0, 3_000_000, false, true).expect("there").records;
    assert_eq!(first.as_ptr(), again.as_ptr(), "not copied");
    assert_eq!(log.available_bytes(0, false, usize::MAX) as u64, log.bytes());
    assert_eq!(log.available_bytes(0, false, 1_000_000), 1_000_000);
}

#[test]
fn deleting_may_end_within_a_batch() {
    let mut log = Log::new();
    plain(&mut log, 3);
    plain(&mut log, 3);
    log.delete_records_before(4);
    assert_eq!((log.start_offset(), log.end_offset()), (4, 6));
    assert_eq!(log.read(3, 1, false, true).err(), Some(OFFSET_OUT_OF_RANGE));
    let mut records = log.read(4, 1, false, true).expect("there").records;
    assert_eq!(next_batch(&mut records).expect("sound").expect("whole").header.base_offset, 3);
    log.delete_records_before(100);
    assert_eq!((log.start_offset(), log.end_offset(), log.bytes()), (6, 6, 0));
    assert_eq!(plain(&mut log, 1), 6);
    log.invariants();
}

#[test]
fn trimming_spares_open_transactions() {
    let mut log = Log::new();
    plain(&mut log, 1);
    append(&mut log, transactional(7, 0)).expect("first");
    plain(&mut log, 1);
    log.trim_to_bytes(0);
    assert_eq!(log.start_offset(), 1);
    log.append_marker(7, 0, true, 0, 0, 0);
    log.trim_to_bytes(0);
    assert_eq!((log.start_offset(), log.bytes()), (4, 0));
}

#[test]
fn deleting_past_an_open_transaction_moves_the_stable_offset() {
    let mut log = Log::new();
    append(&mut log, transactional(7, 0)).expect("first");
    plain(&mut log, 3);
    log.delete_records_before(2);
    assert_eq!(log.last_stable_offset(), 2);
    log.append_marker(7, 0, false, 0, 0, 0);
    assert_eq!(log.last_stable_offset(), 5);
}

#[test]
fn truncating_takes_whole_batches_and_reopens_what_had_ended() {
    let mut log = Log::new();
    append(&mut log, transactional(7, 0)).expect("first");
    append(&mut log, sequenced_by(8, 0)).expect("first");
    log.append_marker(7, 0, false, 0, 0, 0);
    append(&mut log, sequenced_by(8, 1)).expect("second");
    plain(&mut log, 5);
    log.truncate_to(6);
    assert_eq!(log.end_offset(), 4, "offset 6 was within a batch");
    assert!(append(&mut log, sequenced_by(8, 1)).expect("still known").duplicate);
    log.truncate_to(2);
    assert_eq!(log.last_stable_offset(), 0);
    assert_eq!(base(append(&mut log, sequenced_by(8, 1))), 2, "forgotten with its batch");
    log.append_marker(7, 0, false, 0, 0, 0);
    assert_eq!(log.read(0, 10_000, true, true).expect("there").aborted.len(), 1);
    log.truncate_to(0);
    assert_eq!((log.start_offset(), log.end_offset(), log.bytes()), (0, 0, 0));
    log.invariants();
}

fn sequenced_by(producer_id: i64, base_sequence: i32) -> Shape {
    Shape { producer_id, ..sequenced(0, base_sequence, 1) }
}

#[test]
fn a_full_log_truncated_within_a_sealed_segment_grows_on() {
    let mut log = Log::new();
    for _ in 0..10 {
        append(&mut log, Shape { value_bytes: 1_000_000, ..Shape::default() }).expect("no producer");
    }
    log.truncate_to(3);
    assert_eq!(plain(&mut log, 1), 3);
    assert_eq!(next_offset(&log.read(3, 10, false, true).expect("there")), Some(4));
    log.invariants();
}

#[test]
fn records_are_found_by_time_within_packed_batches() {
    let mut log = Log::new();
    let mut builder = BatchBuilder::new();
    for timestamp_ms in [100, 300, 200] {
        builder.append(None, Some(b"v"), &[], timestamp_ms).expect("it fits");
    }
    let bytes = builder.finish(Codec::Lz4, &ProducerStamp::NONE).expect("lz4 is always there");
    log.append(&ProducedBatch::parse(bytes, usize::MAX).expect("good"), 4, 0).expect("accepted");
    append(&mut log, Shape { timestamp_ms: 250, ..Shape::default() }).expect("accepted");
    let found = |wanted| log.find_timestamp(wanted).map(|found| (found.offset, found.timestamp_ms));
    assert_eq!(found(0), Some((0, 100)));
    assert_eq!(found(101), Some((1, 300)));
    assert_eq!(found(301), None);
    let latest = log.max_timestamp().expect("not empty");
    assert_eq!((latest.offset, latest.timestamp_ms, latest.leader_epoch), (1, 300, 4));
    log.delete_records_before(2);
    assert_eq!(log.find_timestamp(101).map(|found| found.offset), Some(2));
    assert_eq!(log.find_timestamp(201).map(|found| found.offset), Some(3));
    assert_eq!(Log::new().max_timestamp(), None);
}

#[test]
fn a_leader_that_writes_nothing_still_ends_the_epoch_before() {
    let mut log = Log::new();
    log.begin_epoch(0);
    plain(&mut log, 3);
    log.begin_epoch(1);
    assert_eq!(log.epoch_end(0), (0, 3));
    assert_eq!(log.epoch_end(1), (1, 3));
}

#[test]
fn producers_are_described() {
    let mut log = Log::new();
    append(&mut log, transactional(7, 0)).expect("first");
    log.append_marker(8, 2, true, 5, 0, 40);
    let told: Vec<_> = log.producers().collect();
    assert_eq!((told[0].producer_id, told[0].last_sequence, told[0].transaction_start_offset), (7, 0, 0));
    assert_eq!((told[1].producer_epoch, told[1].last_sequence, told[1].coordinator_epoch), (2, -1, 5));
    assert_eq!((told[1].last_timestamp_ms, told[1].transaction_start_offset), (40, -1));
}
