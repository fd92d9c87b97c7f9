//! What `seed` writes: record i has the same key and value in every run with the same settings.
//!
//! Key of record i = PREFIX + (i mod K), or a Zipf rank with `--skew`. A value is half fresh text and half phrases that
//! come again within every batch, so that it compresses about 2:1. Fresh text is computed, eight letters at a time: to
//! cut it out of a pool too large for a codec to remember costs a cache miss a record, several times as much.

use keylane_protocol::partitioner;
use std::num::NonZeroU32;

use crate::handler::format::append_digits;

/// Phrases are cut from this many, which every codec remembers.
const PHRASES: usize = 32;
/// The longest run of one half.
const RUN_BYTES: usize = 64;
/// Long enough for any u64.
const DIGITS_MAX: usize = 20;

/// splitmix64 of a place in a sequence: stateless, so a record can be made again.
pub(crate) fn random(seed: u64, place: u64) -> u64 {
    let mut bits = seed.wrapping_add(place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Eight letters and digits (a to z, 2 to 7) of 40 of the bits.
#[inline]
fn letters(bits: u64) -> [u8; 8] {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let fives = bits & (0x1f * EACH);
    // A byte of 1 for each of 26 to 31, which become digits; no byte carries into the next.
    let digits = ((fives + (0x80 - 26) * EACH) >> 7) & EACH;
    (fives + u64::from(b'a') * EACH - digits * u64::from(b'a' + 26 - b'2')).to_le_bytes()
}

/// Fills `out` with text. Returns where the sequence stands.
#[inline]
fn fill(out: &mut [u8], mut state: u64) -> u64 {
    let mut step = || {
        state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(0x9e37_79b9_7f4a_7c15);
        letters(state ^ (state >> 31))
    };
    let (eights, rest) = out.as_chunks_mut::<8>();
    for eight in eights {
        *eight = step();
    }
    if !rest.is_empty() {
        let last = step();
        let bytes = rest.len();
        rest.copy_from_slice(&last[..bytes]);
    }
    state
}

/// Makes values.
pub(crate) struct Values {
    seed: u64,
    phrases: Vec<u8>,
    value: Vec<u8>,
}

impl Values {
    pub(crate) fn new(seed: u64, size_bytes: usize) -> Self {
        let mut phrases = vec![0; PHRASES * RUN_BYTES];
        fill(&mut phrases, random(seed, u64::MAX));
        Values { seed, phrases, value: vec![0; size_bytes] }
    }

    /// The value of record `index`.
    #[inline]
    pub(crate) fn make(&mut self, index: u64) -> &[u8] {
        let mut state = random(self.seed, index);
        for run in self.value.chunks_mut(2 * RUN_BYTES) {
            let from = (state >> 32) as usize % PHRASES * RUN_BYTES;
            let (fresh, phrase) = run.split_at_mut(run.len().div_ceil(2));
            state = fill(fresh, state);
            phrase.copy_from_slice(&self.phrases[from..from + phrase.len()]);
        }
        &self.value
    }
}

/// Makes keys and their partitions.
pub(super) struct Keys {
    key: Vec<u8>,
    prefix_bytes: usize,
    keys: u64,
    zipf: Option<Zipf>,
    seed: u64,
    partitions: NonZeroU32,
}

impl Keys {
    pub(super) fn new(prefix: &str, keys: u64, skew: f64, seed: u64, partitions: NonZeroU32) -> Self {
        let mut key = Vec::with_capacity(prefix.len() + DIGITS_MAX);
        key.extend_from_slice(prefix.as_bytes());
        let zipf = (skew > 0.0).then(|| Zipf::new(keys, skew));
        // Another sequence than that of the values.
        let seed = random(seed, u64::MAX - 1);
        Keys { key, prefix_bytes: prefix.len(), keys, zipf, seed, partitions }
    }

    /// The key of record `index` and the partition that Java's producer would choose.
    #[inline]
    pub(super) fn make(&mut self, index: u64) -> (&[u8], i32) {
        let number = match &self.zipf {
            None => index % self.keys,
            Some(zipf) => zipf.rank(random(self.seed, index)) - 1,
        };
        self.key.truncate(self.prefix_bytes);
        append_digits(&mut self.key, number);
        (&self.key, partitioner::partition(&self.key, self.partitions))
    }
}

/// Ranks from 1 to n with probability ∝ rank^-s, by rejection-inversion (Hörmann and Derflinger 1996): no table, so any
/// number of keys will do.
struct Zipf {
    count: f64,
    exponent: f64,
    low: f64,
    high: f64,
    squeeze: f64,
}

impl Zipf {
    fn new(count: u64, exponent: f64) -> Self {
        let mut zipf = Zipf { count: count as f64, exponent, low: 0.0, high: 0.0, squeeze: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(zipf.count + 0.5);
        zipf.squeeze = 2.0 - zipf.inverse(zipf.integral(2.5) - (2f64.ln() * -exponent).exp());
        zipf
    }

    fn rank(&self, bits: u64) -> u64 {
        let mut bits = bits;
        loop {
            let uniform = (bits >> 11) as f64 / (1u64 << 53) as f64;
            let area = self.high + uniform * (self.low - self.high);
            let x = self.inverse(area);
            let rank = (x + 0.5).floor().clamp(1.0, self.count);
            let density = (rank.ln() * -self.exponent).exp();
            if rank - x <= self.squeeze || area >= self.integral(rank + 0.5) - density {
                return rank as u64;
            }
            bits = random(bits, 0);
        }
    }

    /// ∫ t^-s dt from 1 to x.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let power = (1.0 - self.exponent) * log;
        // (e^p - 1) / p, which is 1 at 0.
        let factor = if power.abs() > 1e-8 { power.exp_m1() / power } else { 1.0 + power / 2.0 };
        factor * log
    }

    fn inverse(&self, area: f64) -> f64 {
        let product = (area * (1.0 - self.exponent)).max(-1.0);
        let factor = if product.abs() > 1e-8 { product.ln_1p() / product } else { 1.0 - product / 2.0 };
        (factor * area).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partitions(count: u32) -> NonZeroU32 {
        NonZeroU32::new(count).unwrap()
    }

    #[test]
    fn keys_go_in_turn_and_where_java_puts_them() {
        let mut keys = Keys::new("key-", 3, 0.0, 1, partitions(6));
        let made: Vec<_> = (0..4).map(|index| keys.make(index).0.to_vec()).collect();
        assert_eq!(made, [b"key-0", b"key-1", b"key-2", b"key-0"]);
        // CASES 22.
        for (prefix, index, count, expected) in [("100:", 48069, 12, 9), ("", 21, 7, 3)] {
            let mut keys = Keys::new(prefix, u64::MAX, 0.0, 1, partitions(count));
            assert_eq!(keys.make(index).1, expected, "{prefix}{index}");
        }
        let mut keys = Keys::new("", u64::MAX, 0.0, 1, partitions(1));
        assert_eq!(keys.make(u64::MAX - 1).0, (u64::MAX - 1).to_string().as_bytes());
    }

    #[test]
    fn skew_follows_zipf() {
        for exponent in [0.5, 1.0, 1.5] {
            let (count, draws) = (50u64, 200_000u64);
            let zipf = Zipf::new(count, exponent);
            let mut seen = vec![0u64; count as usize];
            for draw in 0..draws {
                seen[zipf.rank(random(7, draw)) as usize - 1] += 1;
            }
            let total: f64 = (1..=count).map(|rank| (rank as f64).powf(-exponent)).sum();
            for (rank, seen) in (1u64..).zip(&seen) {
                let expected = (rank as f64).powf(-exponent) / total * draws as f64;
                let error = (*seen as f64 - expected).abs();
                assert!(
                    error < 5.0 * expected.sqrt() + 1.0,
                    "s={exponent} rank {rank}: {seen}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn fresh_text_is_letters_and_digits() {
        let mut text = vec![0; 4099];
        fill(&mut text, 1);
        assert!(text.iter().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7')));
        assert!((b'a'..=b'z').chain(b'2'..=b'7').all(|letter| text.contains(&letter)));
    }

    #[test]
    fn values_are_seeded_and_differ() {
        let mut one = Values::new(1, 100);
        let first = one.make(0).to_vec();
        assert_ne!(first, one.make(1));
        assert_eq!(first, Values::new(1, 100).make(0));
        assert_ne!(first, Values::new(2, 100).make(0));
        for size in [0, 1, 7, 127, 128, 129, 10_000] {
            assert_eq!(Values::new(1, size).make(5).len(), size);
        }
    }

    #[test]
    fn values_compress_about_two_to_one() {
        use keylane_protocol::records::{BatchBuilder, Codec, ProducerStamp};
        for size in [100, 1000] {
            let mut values = Values::new(1, size);
            let mut builder = BatchBuilder::new();
            for index in 0..400_000 / size as u64 {
                builder.append(Some(b"key-1"), Some(values.make(index)), &[], 0).unwrap();
            }
            let unpacked = builder.bytes();
            let packed = builder.finish(Codec::Lz4, &ProducerStamp::NONE).unwrap().len();
            let ratio = unpacked as f64 / packed as f64;
            assert!((1.6..2.4).contains(&ratio), "{size} bytes: {ratio}");
        }
    }
}
