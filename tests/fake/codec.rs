//! The four codecs in their stored form: valid frames that do not shrink anything. Enough to test that a reader knows
//! the framing, and no compressor is needed. Real compressed data belongs to the tests of the record reader.

/// A batch's codec; the number is the one in its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    None = 0,
    Gzip = 1,
    /// Xerial framing, as Java writes it, in chunks of 32 KiB.
    Snappy = 2,
    Lz4 = 3,
    Zstd = 4,
}

/// `data` in a valid frame of the codec.
pub fn compress(codec: Codec, data: &[u8]) -> Vec<u8> {
    match codec {
        Codec::None => data.to_vec(),
        Codec::Gzip => gzip(data),
        Codec::Snappy => snappy_xerial(data, 32 * 1024),
        Codec::Lz4 => lz4(data),
        Codec::Zstd => zstd(data),
    }
}

/// One raw snappy block of literals.
pub fn snappy_raw(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut length = data.len();
    while length >= 0x80 {
        out.push((length as u8 & 0x7f) | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    for chunk in data.chunks(65536) {
        out.push(61 << 2);
        out.extend(((chunk.len() - 1) as u16).to_le_bytes());
        out.extend(chunk);
    }
    out
}

/// Java's snappy stream: a 16-byte header, then chunks of a length and a raw block.
pub fn snappy_xerial(data: &[u8], chunk_bytes: usize) -> Vec<u8> {
    let mut out = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
    for chunk in data.chunks(chunk_bytes) {
        let block = snappy_raw(chunk);
        out.extend((block.len() as u32).to_be_bytes());
        out.extend(block);
    }
    out
}

/// FLG 0x60 (version 01, independent blocks), BD 0x40 (64 KiB), whose header checksum is 0x82.
fn lz4(data: &[u8]) -> Vec<u8> {
    let mut out = vec![0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82];
    for chunk in data.chunks(65536) {
        out.extend((chunk.len() as u32 | 0x8000_0000).to_le_bytes());
        out.extend(chunk);
    }
    out.extend([0; 4]);
    out
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let mut chunks = data.chunks(65535).peekable();
    if chunks.peek().is_none() {
        out.extend([1, 0, 0, 0xff, 0xff]);
    }
    while let Some(chunk) = chunks.next() {
        out.push(u8::from(chunks.peek().is_none()));
        out.extend((chunk.len() as u16).to_le_bytes());
        out.extend((!(chunk.len() as u16)).to_le_bytes());
        out.extend(chunk);
    }
    let mut crc = !0u32;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    out.extend((!crc).to_le_bytes());
    out.extend((data.len() as u32).to_le_bytes());
    out
}

/// A frame with a 4-byte content size and raw blocks, no checksum.
fn zstd(data: &[u8]) -> Vec<u8> {
    let mut out = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    out.extend((data.len() as u32).to_le_bytes());
    let mut chunks = data.chunks(65536).peekable();
    if chunks.peek().is_none() {
        out.extend([1, 0, 0]);
    }
    while let Some(chunk) = chunks.next() {
        let head = ((chunk.len() as u32) << 3) | u32::from(chunks.peek().is_none());
        out.extend(&head.to_le_bytes()[..3]);
        out.extend(chunk);
    }
    out
}
