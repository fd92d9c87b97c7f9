//! Zstandard frames (RFC 8878), by `ruzstd`: pure Rust, at the price of its speed and of one fast level for writing.

use super::{BatchErrorKind, Output, take};
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::io::Read;

/// The largest window taken when the caller's limit is smaller: what RFC 8878 asks every decoder to support. Streams
/// announce a window by their level and not by their size, so a small limit cannot bound it.
const WINDOW_BYTES: u64 = 8 * 1024 * 1024;

/// Unpacks all frames; their checksums are verified.
pub(super) fn decompress(mut packed: &[u8], out: &mut Output) -> Result<(), BatchErrorKind> {
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(WINDOW_BYTES.max(out.size_max as u64));
    while !packed.is_empty() {
        match decoder.init(&mut packed) {
            Ok(()) => decompress_frame(&mut decoder, &mut packed, out)?,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length, ..
            })) => {
                take(&mut packed, length as usize).ok_or(DAMAGED)?;
            }
            Err(_) => return Err(DAMAGED),
        }
    }
    Ok(())
}

const DAMAGED: BatchErrorKind = BatchErrorKind::Damaged("zstd frame");

fn decompress_frame(
    decoder: &mut FrameDecoder,
    packed: &mut &[u8],
    out: &mut Output,
) -> Result<(), BatchErrorKind> {
    let first = packed.len().saturating_mul(3);
    let read = |room: &mut [u8]| {
        // One block, of at most 128 KB, at a time: what is unpacked waits in the decoder until it leaves the window.
        while decoder.can_collect() == 0 && !decoder.is_finished() {
            decoder.decode_blocks(&mut *packed, BlockDecodingStrategy::UptoBlocks(1)).map_err(|_| DAMAGED)?;
        }
        decoder.read(room).map_err(|_| DAMAGED)
    };
    out.read_all(read, first)?;
    // A frame that has a checksum has it read by now; one without gives `None`.
    match decoder.get_checksum_from_data() {
        Some(expected) if decoder.get_calculated_checksum() != Some(expected) => {
            Err(BatchErrorKind::Damaged("zstd checksum"))
        }
        _ => Ok(()),
    }
}

/// Appends `payload` as one frame.
pub(super) fn compress(payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&compress_to_vec(payload, CompressionLevel::Fastest));
}
