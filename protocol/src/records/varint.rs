//! Zigzag variable-length integers as record bodies use them (Protocol Buffers' `sint32` and `sint64`).
//!
//! Reading never passes the slice and gives `None` for an integer cut off or longer than its type allows. Most of a
//! record's integers take one or two bytes, so those are decoded in line and the rest out of line.

/// Longest encoding of an `i32`.
const I32_BYTES_MAX: usize = 5;
/// Longest encoding of an `i64`.
const I64_BYTES_MAX: usize = 10;

/// Reads an `i32` at `*at` and moves `*at` behind it.
#[inline(always)]
pub(super) fn read_i32(bytes: &[u8], at: &mut usize) -> Option<i32> {
    // As in the Java client, bits of a fifth byte that do not fit are dropped.
    let raw = read_raw(bytes, at, I32_BYTES_MAX)? as u32;
    Some((raw >> 1) as i32 ^ -((raw & 1) as i32))
}

/// Reads an `i64` at `*at` and moves `*at` behind it.
#[inline(always)]
pub(super) fn read_i64(bytes: &[u8], at: &mut usize) -> Option<i64> {
    let raw = read_raw(bytes, at, I64_BYTES_MAX)?;
    Some((raw >> 1) as i64 ^ -((raw & 1) as i64))
}

#[inline(always)]
fn read_raw(bytes: &[u8], at: &mut usize, bytes_max: usize) -> Option<u64> {
    let first = *bytes.get(*at)?;
    if first < 0x80 {
        *at += 1;
        return Some(first.into());
    }
    let second = *bytes.get(*at + 1)?;
    if second < 0x80 {
        *at += 2;
        return Some(u64::from(first & 0x7f) | u64::from(second) << 7);
    }
    read_long(bytes, at, bytes_max)
}

#[inline(never)]
fn read_long(bytes: &[u8], at: &mut usize, bytes_max: usize) -> Option<u64> {
    let mut raw = 0_u64;
    for (index, byte) in bytes.get(*at..)?.iter().take(bytes_max).enumerate() {
        raw |= u64::from(byte & 0x7f) << (7 * index);
        if *byte < 0x80 {
            *at += index + 1;
            return Some(raw);
        }
    }
    None
}

/// Appends an `i32`.
#[inline]
pub(super) fn write_i32(out: &mut Vec<u8>, value: i32) {
    write_raw(out, u64::from(zigzag_i32(value)));
}

/// Appends an `i64`.
#[inline]
pub(super) fn write_i64(out: &mut Vec<u8>, value: i64) {
    write_raw(out, zigzag_i64(value));
}

/// How many bytes [`write_i32`] appends.
#[inline]
pub(super) fn size_i32(value: i32) -> usize {
    size_raw(u64::from(zigzag_i32(value)))
}

/// How many bytes [`write_i64`] appends.
#[inline]
pub(super) fn size_i64(value: i64) -> usize {
    size_raw(zigzag_i64(value))
}

#[inline]
fn zigzag_i32(value: i32) -> u32 {
    (value << 1 ^ value >> 31) as u32
}

#[inline]
fn zigzag_i64(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

#[inline]
fn size_raw(raw: u64) -> usize {
    let bits = 64 - (raw | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

#[inline]
fn write_raw(out: &mut Vec<u8>, mut raw: u64) {
    while raw >= 0x80 {
        out.push(raw as u8 | 0x80);
        raw >>= 7;
    }
    out.push(raw as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_encodings() {
        for (value, bytes) in [
            (0, &[0x00][..]),
            (-1, &[0x01]),
            (1, &[0x02]),
            (63, &[0x7e]),
            (-64, &[0x7f]),
            (64, &[0x80, 0x01]),
            (8191, &[0xfe, 0x7f]),
            (8192, &[0x80, 0x80, 0x01]),
            (i32::MAX, &[0xfe, 0xff, 0xff, 0xff, 0x0f]),
            (i32::MIN, &[0xff, 0xff, 0xff, 0xff, 0x0f]),
        ] {
            let mut out = Vec::new();
            write_i32(&mut out, value);
            assert_eq!(out, bytes);
            assert_eq!(size_i32(value), bytes.len());
            let mut at = 0;
            assert_eq!(read_i32(bytes, &mut at), Some(value));
            assert_eq!(at, bytes.len());
        }
    }

    #[test]
    fn cut_or_endless_is_none() {
        assert_eq!(read_i32(&[], &mut 0), None);
        assert_eq!(read_i32(&[0x80], &mut 0), None);
        assert_eq!(read_i32(&[0x80; 20], &mut 0), None);
        assert_eq!(read_i32(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x01], &mut 0), None);
        assert_eq!(read_i64(&[0xff; 20], &mut 0), None);
        assert_eq!(read_i64(&[0x00], &mut 1), None);
        assert_eq!(read_i64(&[0x00], &mut 7), None);
    }

    proptest! {
        #[test]
        fn round_trip(value: i64) {
            let mut out = Vec::new();
            write_i64(&mut out, value);
            prop_assert_eq!(out.len(), size_i64(value));
            let mut at = 0;
            prop_assert_eq!(read_i64(&out, &mut at), Some(value));
            prop_assert_eq!(at, out.len());
        }
    }
}
