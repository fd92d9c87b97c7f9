//! Record batches by hand: a header over any payload, sealed with the CRC that makes readers believe it, and codecs'
//! frames around bytes of our choice, which no encoder would make.

/// Bytes before the first record.
pub(crate) const HEADER_BYTES: usize = 61;
const CRC_START: usize = 21;

/// The codecs' numbers in a batch's attributes.
pub(crate) const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];
pub(crate) const SNAPPY: u8 = 2;
pub(crate) const LZ4: u8 = 3;

/// Where fields of the header stand, and how wide they are; those that the length and the CRC guard.
pub(crate) const FIELDS: [(usize, usize); 12] = [
    (0, 8),  // base offset
    (8, 4),  // batch length
    (12, 4), // partition leader epoch
    (16, 1), // magic
    (21, 2), // attributes
    (23, 4), // last offset delta
    (27, 8), // base timestamp
    (35, 8), // max timestamp
    (43, 8), // producer id
    (51, 2), // producer epoch
    (53, 4), // base sequence
    (57, 4), // record count
];

/// Writes the length and the CRC that the bytes have.
pub(crate) fn seal(batch: &mut [u8]) {
    let length = batch.len() as i32 - 12;
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    seal_crc(batch);
}

/// Writes the CRC alone; the length stays what it claims.
pub(crate) fn seal_crc(batch: &mut [u8]) {
    if batch.len() > CRC_START {
        let crc = crc32c::crc32c(&batch[CRC_START..]);
        batch[CRC_START - 4..CRC_START].copy_from_slice(&crc.to_be_bytes());
    }
}

/// The batch's header over another payload, under another codec.
pub(crate) fn repack(batch: &[u8], codec: u8, packed: &[u8]) -> Vec<u8> {
    let mut made = batch[..HEADER_BYTES].to_vec();
    made[22] = made[22] & !7 | codec;
    made.extend_from_slice(packed);
    seal(&mut made);
    made
}

/// An LZ4 frame of blocks that are stored as they are.
pub(crate) fn lz4_stored(payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82];
    for block in payload.chunks(64 << 10) {
        frame.extend((block.len() as u32 | 0x8000_0000).to_le_bytes());
        frame.extend_from_slice(block);
    }
    frame.extend([0; 4]);
    frame
}

/// A raw Snappy block of literals.
pub(crate) fn snappy_literals(payload: &[u8]) -> Vec<u8> {
    let mut block = crate::mutate::varint(payload.len() as u64);
    for literal in payload.chunks(64 << 10) {
        block.push(61 << 2);
        block.extend((literal.len() as u16).wrapping_sub(1).to_le_bytes());
        block.extend_from_slice(literal);
    }
    block
}

/// Java's framing around raw Snappy blocks.
pub(crate) fn snappy_framed(blocks: &[Vec<u8>]) -> Vec<u8> {
    let mut frame = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
    for block in blocks {
        frame.extend((block.len() as u32).to_be_bytes());
        frame.extend_from_slice(block);
    }
    frame
}

/// A variable-length integer of a record: zigzag, so that small negative numbers are short.
pub(crate) fn zigzag(value: i64) -> Vec<u8> {
    crate::mutate::varint((value << 1 ^ value >> 63) as u64)
}
