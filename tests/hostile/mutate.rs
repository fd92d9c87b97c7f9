//! Changes to bytes: what a bad disk, a bad peer or a bad programmer would make of them.

use crate::rng::Rng;

/// One to four changes. `other` lends bytes for splicing.
pub(crate) fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..1 + rng.below(4) {
        mutate_once(rng, bytes, other);
    }
}

fn mutate_once(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = rng.below(bytes.len());
    match rng.below(14) {
        0 | 1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << rng.below(8);
            }
        }
        2 | 3 => {
            let to = *rng.pick(&[0, 1, 2, 0x3f, 0x40, 0x7f, 0x80, 0x81, 0xfe, 0xff]);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = to;
            }
        }
        4 | 5 => {
            let near = bytes.len() as i64 + rng.below(5) as i64 - 2;
            let value = if rng.one_in(3) { near } else { rng.odd_i64() };
            let width = *rng.pick(&[2, 4, 4, 8]);
            overwrite(bytes, at, &value.to_be_bytes()[8 - width..]);
        }
        6 => {
            let value = rng.odd_i64() as u64;
            let varint = varint(value);
            if rng.one_in(2) {
                overwrite(bytes, at, &varint);
            } else {
                bytes.splice(at..(at + 1).min(bytes.len()), varint);
            }
        }
        7 => {
            let count = 1 + rng.below(16);
            let noise = rng.bytes(count);
            bytes.splice(at..at, noise);
        }
        8 => bytes.truncate(at),
        9 => {
            let end = (at + 1 + rng.below(32)).min(bytes.len());
            bytes.drain(at..end);
        }
        10 => {
            let end = (at + 1 + rng.below(64)).min(bytes.len());
            let copy = bytes[at..end].to_vec();
            let to = rng.below(bytes.len() + 1);
            bytes.splice(to..to, copy);
        }
        11 if !other.is_empty() => {
            let start = rng.below(other.len());
            let end = (start + 1 + rng.below(64)).min(other.len());
            bytes.splice(at..at, other[start..end].iter().copied());
        }
        12 if !other.is_empty() => {
            let start = rng.below(other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[start..]);
        }
        _ => {
            let end = (at + 1 + rng.below(16)).min(bytes.len());
            let value = *rng.pick(&[0, 0xff, 0x80, 0x7f]);
            bytes[at..end].fill(value);
        }
    }
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    let end = (at + with.len()).min(bytes.len());
    bytes[at..end].copy_from_slice(&with[..end - at]);
}

/// An unsigned variable-length integer, as long as its value needs, up to ten bytes.
pub(crate) fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}
