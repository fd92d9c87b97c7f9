//! Snappy in the two forms that producers use: framed by Java's `SnappyOutputStream` (a 16-byte header, then
//! length-prefixed raw blocks), and one raw block. The format of Snappy's own framing description is neither.

use super::{BatchErrorKind, Output, take, take_array, too_large};

/// How a framed payload begins; no raw block does, since this is not a sound raw length followed by a tag.
const MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
/// The magic, the version and the oldest version that can read it, both 1.
const FRAME_START: [u8; 16] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1];
/// What Java packs at a time.
const CHUNK_BYTES: usize = 32 * 1024;
/// No tag makes more of its bytes: two or three for at most 64.
const RATIO_MAX: usize = 32;

/// Unpacks a payload of either form.
pub(super) fn decompress(packed: &[u8], out: &mut Output) -> Result<(), BatchErrorKind> {
    if !packed.starts_with(&MAGIC) {
        return decompress_block(packed, out);
    }
    let mut chunks =
        packed.get(FRAME_START.len()..).ok_or(BatchErrorKind::Damaged("snappy header cut off"))?;
    while !chunks.is_empty() {
        let length = take_array(&mut chunks).map(u32::from_be_bytes).ok_or(CUT)?;
        // The header of a stream appended to the first, as Java's reader allows.
        if length == 0x8253_4E41 {
            take(&mut chunks, FRAME_START.len() - size_of::<u32>()).ok_or(CUT)?;
            continue;
        }
        decompress_block(take(&mut chunks, length as usize).ok_or(CUT)?, out)?;
    }
    Ok(())
}

const CUT: BatchErrorKind = BatchErrorKind::Damaged("snappy chunk cut off");
const DAMAGED: BatchErrorKind = BatchErrorKind::Damaged("snappy block");

fn decompress_block(block: &[u8], out: &mut Output) -> Result<(), BatchErrorKind> {
    let length = snap::raw::decompress_len(block).map_err(|_| DAMAGED)?;
    if length > block.len().saturating_mul(RATIO_MAX) {
        return Err(DAMAGED);
    }
    let size_max = out.size_max;
    let room = out.reserve(length).get_mut(..length).ok_or(too_large(size_max))?;
    let bytes = snap::raw::Decoder::new().decompress(block, room).map_err(|_| DAMAGED)?;
    out.advance(bytes);
    Ok(())
}

/// Writes Java's framing; keeps the encoder's table and a chunk's buffer.
pub(super) struct Encoder {
    encoder: snap::raw::Encoder,
    block: Vec<u8>,
}

impl Default for Encoder {
    fn default() -> Self {
        Encoder { encoder: snap::raw::Encoder::new(), block: Vec::new() }
    }
}

impl Encoder {
    /// Appends `payload`, framed.
    pub(super) fn compress(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        self.block.resize(snap::raw::max_compress_len(CHUNK_BYTES), 0);
        out.extend_from_slice(&FRAME_START);
        for chunk in payload.chunks(CHUNK_BYTES) {
            let packed = self.encoder.compress(chunk, &mut self.block);
            let bytes = packed.expect("the buffer is as long as the largest block can get");
            out.extend_from_slice(&(bytes as u32).to_be_bytes());
            out.extend_from_slice(&self.block[..bytes]);
        }
    }
}
