//! What a record costs to read and to write, in nanoseconds, step by step; LZ4, 100-byte values, 1000 keys.
//!
//! `cargo bench -p keylane-protocol --profile fast`. The figures are the best of several rounds over more data than the
//! caches hold, on a machine that is otherwise idle; compare them on one machine only. Values are seeded text that LZ4
//! packs about 2:1, like the values that `keylane seed` makes.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock; the crate itself never does")]
#![allow(clippy::unwrap_used, reason = "the batches are the benchmark's own")]

use bytes::Bytes;
use keylane_protocol::records::{
    Batch, BatchBuilder, Codec, HEADER_BYTES, Payload, ProducerStamp, Record, index_records, next_batch,
};
use std::hint::black_box;
use std::io::Read;
use std::time::{Duration, Instant};

const BATCHES: usize = 16;
const BATCH_BYTES: usize = 1 << 20;
const VALUE_BYTES: usize = 100;
const KEYS: u64 = 1000;
/// More words pack worse.
const WORDS: usize = 400;
/// Well over the 64 KB that LZ4 looks back, and still in the cache.
const VALUES: usize = 8192;
const ROUNDS: usize = 20;
const SIZE_MAX: usize = 64 << 20;

fn main() {
    for codec in [Codec::Lz4, Codec::None, Codec::Snappy] {
        let records = Texts::default();
        measure(codec, records);
    }
}

fn measure(codec: Codec, mut texts: Texts) {
    let values: Vec<([u8; VALUE_BYTES], String)> =
        (0..VALUES).map(|_| (texts.value(), format!("key-{}", texts.random(KEYS)))).collect();
    let mut builder = BatchBuilder::new();
    let fill = |builder: &mut BatchBuilder, batch: usize| {
        builder.clear();
        for (value, key) in values.iter().cycle().skip(batch * 77 % VALUES) {
            let timestamp_ms = 1_800_000_000_000 + i64::from(builder.record_count() / 16);
            builder.append(Some(key.as_bytes()), Some(value), &[], timestamp_ms).unwrap();
            if builder.bytes() >= BATCH_BYTES {
                break;
            }
        }
    };
    let mut topic = Vec::new();
    for batch in 0..BATCHES {
        fill(&mut builder, batch);
        topic.extend_from_slice(&builder.finish(codec, &ProducerStamp::NONE).unwrap());
    }
    let mut fetched = Bytes::from(topic);
    let packed_bytes = fetched.len();
    let mut batches = Vec::new();
    while let Some(batch) = next_batch(&mut fetched).unwrap() {
        batches.push(batch);
    }
    let payloads: Vec<Payload> =
        batches.iter().map(|batch| batch.payload(&mut Vec::new(), SIZE_MAX).unwrap()).collect();
    let count: usize = batches.iter().map(|batch| batch.header.record_count as usize).sum();
    let unpacked_bytes: usize = payloads.iter().map(|payload| payload.len()).sum();
    println!(
        "{codec}: {count} records in {} batches, {} B a record, packed to {:.2}",
        batches.len(),
        unpacked_bytes / count,
        packed_bytes as f64 / unpacked_bytes as f64,
    );
    let report = |what: &str, run: &mut dyn FnMut(usize)| {
        println!("  {what:<20} {:6.1} ns a record", best(run).as_nanos() as f64 / count as f64);
    };
    let mut spare = Vec::new();
    let mut positions = Vec::new();
    report("write: append", &mut |i| fill(&mut builder, i));
    report("write: all", &mut |i| {
        fill(&mut builder, i);
        black_box(builder.finish(codec, &ProducerStamp::NONE).unwrap());
    });
    report("read: crc", &mut |i| batches[i].check_crc().unwrap());
    report("read: unpack", &mut |i| unpack(&batches[i], &mut spare));
    report("read: index", &mut |i| index(&batches[i], &payloads[i], &mut positions));
    report("read: all three", &mut |i| {
        batches[i].check_crc().unwrap();
        let payload = batches[i].payload(&mut spare, SIZE_MAX).unwrap();
        index(&batches[i], &payload, &mut positions);
        spare = payload.into_vec();
    });
    report("read: index, parse", &mut |i| {
        index(&batches[i], &payloads[i], &mut positions);
        for position in &positions {
            black_box(Record::parse(&batches[i].header, &payloads[i], *position).unwrap());
        }
    });
    let mut copy = Vec::new();
    report("memcpy, for scale", &mut |i| {
        copy.clear();
        copy.extend_from_slice(&payloads[i]);
        black_box(&copy);
    });
    if codec == Codec::Lz4 {
        report("lz4_flex's frame decoder, for scale", &mut |i| {
            copy.clear();
            let packed = &batches[i].bytes()[HEADER_BYTES..];
            lz4_flex::frame::FrameDecoder::new(packed).read_to_end(&mut copy).unwrap();
        });
    }
}

fn unpack(batch: &Batch, spare: &mut Vec<u8>) {
    let payload = batch.payload(spare, SIZE_MAX).unwrap();
    black_box(&payload[..]);
    *spare = payload.into_vec();
}

/// With what a dispatcher does per record at the least: it looks at the key.
fn index(batch: &Batch, payload: &[u8], positions: &mut Vec<u32>) {
    let mut sum = 0;
    index_records(&batch.header, payload, positions, |_, _, key| sum += key.map_or(0, <[u8]>::len)).unwrap();
    black_box(sum);
}

/// The sum of each batch's best time, so that a round disturbed here and there does not count.
fn best(run: &mut dyn FnMut(usize)) -> Duration {
    let mut best = [Duration::MAX; BATCHES];
    for _ in 0..ROUNDS {
        for (batch, best) in best.iter_mut().enumerate() {
            let start = Instant::now();
            run(batch);
            *best = start.elapsed().min(*best);
        }
    }
    best.iter().sum()
}

/// Seeded text: words of a small vocabulary, and numbers that do not repeat.
struct Texts {
    state: u64,
    words: Vec<Vec<u8>>,
}

impl Default for Texts {
    fn default() -> Self {
        let mut texts = Texts { state: 42, words: Vec::new() };
        texts.words = (0..WORDS).map(|_| texts.word()).collect();
        texts
    }
}

impl Texts {
    /// SplitMix64.
    fn random(&mut self, below: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % below
    }

    fn word(&mut self) -> Vec<u8> {
        let length = 4 + self.random(9);
        (0..length).map(|_| b'a' + self.random(26) as u8).collect()
    }

    fn value(&mut self) -> [u8; VALUE_BYTES] {
        let mut value = [b' '; VALUE_BYTES];
        let mut at = 0;
        while at < VALUE_BYTES {
            let index = self.random(self.words.len() as u64) as usize;
            let word = &self.words[index];
            let length = word.len().min(VALUE_BYTES - at);
            value[at..at + length].copy_from_slice(&word[..length]);
            at += length + 1;
        }
        value
    }
}
