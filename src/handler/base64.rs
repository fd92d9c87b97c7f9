//! Base64 with padding (RFC 4648, section 4), writing only: thirty lines instead of a crate.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends `bytes` in base64.
pub fn append(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) & 63;
            out.push(if digit <= chunk.len() { ALPHABET[index as usize] } else { b'=' });
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_vectors_of_the_rfc() {
        for (plain, encoded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            let mut out = Vec::new();
            super::append(&mut out, plain.as_bytes());
            assert_eq!(String::from_utf8(out).unwrap(), encoded);
        }
        let mut out = Vec::new();
        super::append(&mut out, &[0xfb, 0xff, 0xfe]);
        assert_eq!(out, b"+//+");
    }
}
