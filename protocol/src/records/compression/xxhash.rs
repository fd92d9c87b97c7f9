//! XXH32 over a whole slice, for the checksums of LZ4 frames.
//!
//! The crate that has it is only reachable through a dependency's private path, and this is all we need of it.
//! Specification: <https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>.

const PRIME_1: u32 = 0x9E37_79B1;
const PRIME_2: u32 = 0x85EB_CA77;
const PRIME_3: u32 = 0xC2B2_AE3D;
const PRIME_4: u32 = 0x27D4_EB2F;
const PRIME_5: u32 = 0x1656_67B1;

/// XXH32 of `bytes` with seed 0, the only one that LZ4 frames use.
pub(super) fn xxh32(bytes: &[u8]) -> u32 {
    let (stripes, rest) = bytes.as_chunks::<16>();
    let mut hash = if stripes.is_empty() { PRIME_5 } else { mix_stripes(stripes) };
    hash = hash.wrapping_add(bytes.len() as u32);
    let (words, tail) = rest.as_chunks::<4>();
    for word in words {
        let word = u32::from_le_bytes(*word).wrapping_mul(PRIME_3);
        hash = hash.wrapping_add(word).rotate_left(17).wrapping_mul(PRIME_4);
    }
    for byte in tail {
        let byte = u32::from(*byte).wrapping_mul(PRIME_5);
        hash = hash.wrapping_add(byte).rotate_left(11).wrapping_mul(PRIME_1);
    }
    hash = (hash ^ hash >> 15).wrapping_mul(PRIME_2);
    hash = (hash ^ hash >> 13).wrapping_mul(PRIME_3);
    hash ^ hash >> 16
}

fn mix_stripes(stripes: &[[u8; 16]]) -> u32 {
    let mut lanes = [PRIME_1.wrapping_add(PRIME_2), PRIME_2, 0, 0_u32.wrapping_sub(PRIME_1)];
    for stripe in stripes {
        let (words, _) = stripe.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            let word = u32::from_le_bytes(*word).wrapping_mul(PRIME_2);
            *lane = lane.wrapping_add(word).rotate_left(13).wrapping_mul(PRIME_1);
        }
    }
    let [one, two, three, four] = lanes;
    one.rotate_left(1)
        .wrapping_add(two.rotate_left(7))
        .wrapping_add(three.rotate_left(12))
        .wrapping_add(four.rotate_left(18))
}

#[cfg(test)]
mod tests {
    use super::xxh32;

    #[test]
    fn published_vectors() {
        assert_eq!(xxh32(b""), 0x02CC_5D05);
        assert_eq!(xxh32(b"a"), 0x550D_7456);
        assert_eq!(xxh32(b"abc"), 0x32D1_53FF);
        assert_eq!(xxh32(b"Nobody inspects the spammish repetition"), 0xE229_3B2F);
    }

    #[test]
    fn header_of_kafka_frames() {
        assert_eq!((xxh32(&[0x60, 0x40]) >> 8) as u8, 0x82);
        assert_eq!((xxh32(&[0x04, 0x22, 0x4D, 0x18, 0x60, 0x40]) >> 8) as u8, 0x1a);
    }
}
