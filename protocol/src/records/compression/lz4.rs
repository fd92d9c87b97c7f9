//! LZ4 frames, the form in which Kafka packs LZ4 (KIP-57).
//!
//! The frame is parsed here and each block is decoded straight into its place in the output: a stream decoder between
//! them copies every byte twice, which is a third of the time that reading a record takes.
//!
//! Reading accepts every frame: linked and independent blocks, all checksums (which are verified), content size, all
//! block sizes, several frames, skippable frames, and the header checksum of clients before KIP-57. Writing follows
//! the Java client: independent 64 KB blocks and no checksums, for the batch has its CRC.
//!
//! `lz4_flex` runs without `safe-decode`. Read in 0.14.2 (`block/decompress.rs`, `fastcpy_unsafe.rs`): its fast
//! loop is entered only with 19 bytes of input and 34 of output left (51 with a dictionary), more than one turn of
//! it can move; outside it every literal, offset and match is compared with what is left of input, output and
//! history before it is copied; an offset of 0 is refused. So a hostile block can make it fail, and no more.
//! The tests feed it hostile blocks.
//!
//! Format: <https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md>.

use super::xxhash::xxh32;
use super::{BatchErrorKind, Output, take, take_array, too_large};
use lz4_flex::block::{
    CompressTable, DecompressError, compress_into_with_table, decompress_into, decompress_into_with_dict,
    get_maximum_output_size,
};
use std::ops::RangeInclusive;

const MAGIC: u32 = 0x184D_2204;
const MAGIC_SKIPPABLE: RangeInclusive<u32> = 0x184D_2A50..=0x184D_2A5F;
const FLG_VERSION_SHIFT: u8 = 6;
const FLG_INDEPENDENT: u8 = 0x20;
const FLG_BLOCK_CHECKSUM: u8 = 0x10;
const FLG_CONTENT_SIZE: u8 = 0x08;
const FLG_CONTENT_CHECKSUM: u8 = 0x04;
const FLG_RESERVED: u8 = 0x02;
const FLG_DICTIONARY: u8 = 0x01;
const BD_RESERVED: u8 = 0x8f;
/// Set in a block's size when its bytes are stored as they are.
const STORED: u32 = 0x8000_0000;
/// How far back a linked block may refer.
const WINDOW_BYTES: usize = 64 * 1024;
/// Blocks of the frames we write, and the least room made for a block read.
const BLOCK_BYTES: usize = 64 * 1024;
/// Magic, FLG (version 01, independent blocks), BD (64 KB blocks), header checksum.
const FRAME_START: [u8; 7] = [0x04, 0x22, 0x4D, 0x18, 0x60, 0x40, 0x82];
/// The block size of 0 that ends a frame.
const FRAME_END: [u8; 4] = [0; 4];

/// Unpacks all frames of `packed`.
pub(super) fn decompress(mut packed: &[u8], out: &mut Output) -> Result<(), BatchErrorKind> {
    let mut seen = false;
    while !packed.is_empty() {
        let magic = take_u32(&mut packed)?;
        if magic == MAGIC {
            Frame::parse(&mut packed)?.decompress(&mut packed, out)?;
            seen = true;
        } else if MAGIC_SKIPPABLE.contains(&magic) {
            let length = take_u32(&mut packed)? as usize;
            take(&mut packed, length).ok_or(CUT)?;
        } else {
            return Err(BatchErrorKind::Damaged("LZ4 frame magic"));
        }
    }
    if seen { Ok(()) } else { Err(CUT) }
}

const CUT: BatchErrorKind = BatchErrorKind::Damaged("LZ4 frame cut off");

fn take_u32(packed: &mut &[u8]) -> Result<u32, BatchErrorKind> {
    take_array(packed).map(u32::from_le_bytes).ok_or(CUT)
}

struct Frame {
    independent: bool,
    block_checksum: bool,
    content_checksum: bool,
    content_bytes: Option<u64>,
    block_bytes_max: usize,
}

impl Frame {
    /// Reads the descriptor, behind the magic.
    fn parse(packed: &mut &[u8]) -> Result<Self, BatchErrorKind> {
        let descriptor = *packed;
        let [flg, bd] = take_array(packed).ok_or(CUT)?;
        if flg >> FLG_VERSION_SHIFT != 1 || flg & FLG_RESERVED != 0 || bd & BD_RESERVED != 0 {
            return Err(BatchErrorKind::Damaged("LZ4 frame version or reserved bits"));
        }
        if flg & FLG_DICTIONARY != 0 {
            return Err(BatchErrorKind::Damaged("LZ4 frame wants a dictionary"));
        }
        let block_bytes_max = match bd >> 4 {
            size @ 4..=7 => 1 << (8 + 2 * size),
            _ => return Err(BatchErrorKind::Damaged("LZ4 block size")),
        };
        let mut content_bytes = None;
        if flg & FLG_CONTENT_SIZE != 0 {
            content_bytes = Some(take_array(packed).map(u64::from_le_bytes).ok_or(CUT)?);
        }
        let descriptor = &descriptor[..descriptor.len() - packed.len()];
        let [checksum] = take_array(packed).ok_or(CUT)?;
        if checksum != header_checksum(descriptor) && checksum != old_header_checksum(descriptor) {
            return Err(BatchErrorKind::Damaged("LZ4 frame header checksum"));
        }
        Ok(Frame {
            independent: flg & FLG_INDEPENDENT != 0,
            block_checksum: flg & FLG_BLOCK_CHECKSUM != 0,
            content_checksum: flg & FLG_CONTENT_CHECKSUM != 0,
            content_bytes,
            block_bytes_max,
        })
    }

    fn decompress(&self, packed: &mut &[u8], out: &mut Output) -> Result<(), BatchErrorKind> {
        let start = out.len;
        let left = out.size_max - start;
        if self.content_bytes.is_some_and(|bytes| bytes > left as u64) {
            return Err(too_large(out.size_max));
        }
        out.reserve(self.likely_bytes(packed));
        loop {
            let size = take_u32(packed)?;
            if size == 0 {
                break;
            }
            let length = (size & !STORED) as usize;
            if length > self.block_bytes_max {
                return Err(BatchErrorKind::Damaged("LZ4 block longer than its frame allows"));
            }
            let block = take(packed, length).ok_or(CUT)?;
            if self.block_checksum && take_u32(packed)? != xxh32(block) {
                return Err(BatchErrorKind::Damaged("LZ4 block checksum"));
            }
            if size & STORED != 0 {
                let room = out.reserve(length).get_mut(..length);
                room.ok_or(too_large(left + start))?.copy_from_slice(block);
                out.advance(length);
            } else {
                self.decompress_block(block, start, out)?;
            }
        }
        let content = &out.split().0[start..];
        if self.content_checksum && take_u32(packed)? != xxh32(content) {
            return Err(BatchErrorKind::Damaged("LZ4 content checksum"));
        }
        if self.content_bytes.is_some_and(|bytes| bytes != content.len() as u64) {
            return Err(BatchErrorKind::Damaged("LZ4 content size"));
        }
        Ok(())
    }

    /// Decodes one block behind what is done. Where the room was guessed too small it is doubled and the block is
    /// begun again: a block does not say how long it gets.
    fn decompress_block(&self, block: &[u8], start: usize, out: &mut Output) -> Result<(), BatchErrorKind> {
        loop {
            let size_max = out.size_max;
            let (done, room) = out.split();
            let room_bytes = room.len().min(self.block_bytes_max);
            let room = &mut room[..room_bytes];
            let result = if self.independent {
                decompress_into(block, room)
            } else {
                let history = done.len().saturating_sub(WINDOW_BYTES).max(start);
                decompress_into_with_dict(block, room, &done[history..])
            };
            match result {
                Ok(bytes) => {
                    out.advance(bytes);
                    return Ok(());
                }
                Err(DecompressError::OutputTooSmall { .. }) if room_bytes < self.block_bytes_max => {
                    let wanted = (2 * room_bytes).clamp(BLOCK_BYTES, self.block_bytes_max);
                    if out.reserve(wanted).len() == room_bytes {
                        return Err(too_large(size_max));
                    }
                }
                Err(_) => return Err(BatchErrorKind::Damaged("LZ4 block")),
            }
        }
    }

    /// How much room the frame's blocks will want: exact to a block for 64 KB blocks, which Java fills, and a guess
    /// from the packed size for larger ones, of which many producers fill little.
    fn likely_bytes(&self, mut packed: &[u8]) -> usize {
        if let Some(bytes) = self.content_bytes {
            // Believed as far as the best ratio that LZ4 has, 255 to 1.
            return usize::try_from(bytes).unwrap_or(usize::MAX).min(packed.len().saturating_mul(255));
        }
        let mut likely = 0_usize;
        while let Some(size) = take_array(&mut packed).map(u32::from_le_bytes).filter(|size| *size != 0) {
            let length = (size & !STORED) as usize;
            let checksum_bytes = if self.block_checksum { 4 } else { 0 };
            if take(&mut packed, length + checksum_bytes).is_none() {
                break;
            }
            likely = likely.saturating_add(if size & STORED != 0 {
                length
            } else {
                (4 * length).clamp(BLOCK_BYTES, self.block_bytes_max)
            });
        }
        likely
    }
}

fn header_checksum(descriptor: &[u8]) -> u8 {
    (xxh32(descriptor) >> 8) as u8
}

/// Clients before KIP-57 hashed the magic along with the descriptor.
fn old_header_checksum(descriptor: &[u8]) -> u8 {
    let mut hashed = MAGIC.to_le_bytes().to_vec();
    hashed.extend_from_slice(descriptor);
    header_checksum(&hashed)
}

/// Writes frames; keeps its table and a block's buffer.
pub(super) struct Encoder {
    table: CompressTable,
    block: Vec<u8>,
}

impl Default for Encoder {
    fn default() -> Self {
        Encoder { table: CompressTable::default(), block: Vec::new() }
    }
}

impl Encoder {
    /// Appends `payload` as one frame.
    pub(super) fn compress(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        self.block.resize(get_maximum_output_size(BLOCK_BYTES), 0);
        out.extend_from_slice(&FRAME_START);
        for chunk in payload.chunks(BLOCK_BYTES) {
            let packed = compress_into_with_table(chunk, &mut self.block, &mut self.table);
            let bytes = packed.expect("the buffer is as long as the largest block can get");
            let (size, block) = if bytes < chunk.len() {
                (bytes as u32, &self.block[..bytes])
            } else {
                (chunk.len() as u32 | STORED, chunk)
            };
            out.extend_from_slice(&size.to_le_bytes());
            out.extend_from_slice(block);
        }
        out.extend_from_slice(&FRAME_END);
    }
}
