//! Zigzag variable-length integers as record bodies use them (Protocol Buffers' `sint32` and `sint64`).
//!
//! Reading never passes the slice and gives `None` for an integer cut off or longer than its type allows. Most of a
//! record's integers take one or two bytes, so those are decoded in line and the rest out of line.

/// Longest encoding of an `i32`.
const I32_BYTES_MAX: usize = 5;
/// Longest encoding of an `i64`.
const I64_BYTES_MAX: usize = 10;

/// Reads an `i32` at `at`: its value and the position behind it.
#[inline(always)]
pub(super) fn read_i32(bytes: &[u8], at: usize) -> Option<(i32, usize)> {
    let (raw, at) = read_raw(bytes, at, I32_BYTES_MAX)?;
    // As in the Java client, bits of a fifth byte that do not fit are dropped.
    let raw = raw as u32;
    Some(((raw >> 1) as i32 ^ -((raw & 1) as i32), at))
}

/// Reads an `i64` at `at`: its value and the position behind it.
#[inline(always)]
pub(super) fn read_i64(bytes: &[u8], at: usize) -> Option<(i64, usize)> {
    let (raw, at) = read_raw(bytes, at, I64_BYTES_MAX)?;
    Some(((raw >> 1) as i64 ^ -((raw & 1) as i64), at))
}

/// Positions go in and out by value: behind a reference they would live in memory, not in a register, and each field
/// of a record would wait for the store of the one before it.
#[inline(always)]
fn read_raw(bytes: &[u8], at: usize, bytes_max: usize) -> Option<(u64, usize)> {
    let first = *bytes.get(at)?;
    if first < 0x80 {
        return Some((first.into(), at + 1));
    }
    let second = *bytes.get(at + 1)?;
    if second < 0x80 {
        return Some((u64::from(first & 0x7f) | u64::from(second) << 7, at + 2));
    }
    read_long(bytes, at, bytes_max)
}

#[inline(never)]
fn read_long(bytes: &[u8], at: usize, bytes_max: usize) -> Option<(u64, usize)> {
    let mut raw = 0_u64;
    for (index, byte) in bytes.get(at..)?.iter().take(bytes_max).enumerate() {
        raw |= u64::from(byte & 0x7f) << (7 * index);
        if *byte < 0x80 {
            return Some((raw, at + index + 1));
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
            assert_eq!(read_i32(bytes, 0), Some((value, bytes.len())));
        }
    }

    #[test]
    fn cut_or_endless_is_none() {
        assert_eq!(read_i32(&[], 0), None);
        assert_eq!(read_i32(&[0x80], 0), None);
        assert_eq!(read_i32(&[0x80; 20], 0), None);
        assert_eq!(read_i32(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x01], 0), None);
        assert_eq!(read_i64(&[0xff; 20], 0), None);
        assert_eq!(read_i64(&[0x00], 1), None);
        assert_eq!(read_i64(&[0x00], 7), None);
    }

    proptest! {
        #[test]
        fn round_trip(value: i64) {
            let mut out = Vec::new();
            write_i64(&mut out, value);
            prop_assert_eq!(out.len(), size_i64(value));
            prop_assert_eq!(read_i64(&out, 0), Some((value, out.len())));
        }
    }
}
