//! Which partition a key goes to: the Java client's default, so that both sides put the same key in the same place.
//!
//! murmur2 over the key in wrapping 32-bit arithmetic, the sign bit masked off (not the absolute value, which differs
//! for most negative hashes), modulo the number of partitions.

use std::num::NonZeroU32;

const SEED: u32 = 0x9747_b28c;
const MULTIPLIER: u32 = 0x5bd1_e995;

/// The partition of `key` among `partitions`. A record without a key has none, so the caller picks one.
pub fn partition(key: &[u8], partitions: NonZeroU32) -> i32 {
    ((murmur2(key) & 0x7fff_ffff) % partitions) as i32
}

/// murmur2 as in Kafka's `Utils.murmur2`.
pub fn murmur2(key: &[u8]) -> u32 {
    let mut hash = SEED ^ key.len() as u32;
    let (words, tail) = key.as_chunks::<4>();
    for word in words {
        let mut word = u32::from_le_bytes(*word).wrapping_mul(MULTIPLIER);
        word = (word ^ word >> 24).wrapping_mul(MULTIPLIER);
        hash = hash.wrapping_mul(MULTIPLIER) ^ word;
    }
    if !tail.is_empty() {
        for (index, byte) in tail.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(MULTIPLIER);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(MULTIPLIER);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_java() {
        for (key, partitions, expected) in
            [("100:48069", 12, 9), ("wu", 10, 0), ("21", 7, 3), ("foobar", 7, 0)]
        {
            let partitions = NonZeroU32::new(partitions).unwrap();
            assert_eq!(partition(key.as_bytes(), partitions), expected, "{key}");
        }
    }

    /// The values in Kafka's own `UtilsTest.testMurmur2`.
    #[test]
    fn published_hashes() {
        for (key, expected) in [
            ("21", -973932308),
            ("foobar", -790332482),
            ("a-little-bit-long-string", -985981536),
            ("a-little-bit-longer-string", -1486304829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
            ("abc", 479470107),
        ] {
            assert_eq!(murmur2(key.as_bytes()) as i32, expected, "{key}");
        }
    }
}
