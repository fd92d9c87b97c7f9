//! Every codec against itself, against foreign encoders, and against damage.

use super::*;
use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use proptest::prelude::*;
use std::io::{Read, Write};

const SIZE_MAX: usize = 16 << 20;

fn supported() -> Vec<Codec> {
    CODECS.iter().map(|(codec, _)| *codec).filter(|codec| codec.is_supported()).collect()
}

fn pack(codec: Codec, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Compressor::default().compress(codec, payload, &mut out).unwrap();
    out
}

fn unpacked(codec: Codec, packed: &[u8]) -> Result<Vec<u8>, BatchErrorKind> {
    let (mut buffer, len) = decompress(codec, packed, Vec::new(), SIZE_MAX)?;
    buffer.truncate(len);
    Ok(buffer)
}

/// Seeded bytes that pack well in part: stretches of text, of zeros and of noise.
fn mixed(bytes: usize) -> Vec<u8> {
    let mut state = 7_u32;
    let mut out = Vec::with_capacity(bytes);
    while out.len() < bytes {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match state >> 30 {
            0 => out.extend_from_slice(&state.to_le_bytes()),
            1 => out.extend_from_slice(&[0; 50]),
            _ => out.extend_from_slice(format!("key-{} went by; ", state >> 24 & 63).as_bytes()),
        }
    }
    out.truncate(bytes);
    out
}

#[test]
fn names_and_numbers() {
    for (index, (codec, name)) in CODECS.iter().enumerate() {
        assert_eq!(codec.id(), index as i16);
        assert_eq!(Codec::from_id(codec.id()), Some(*codec));
        assert_eq!(name.parse(), Ok(*codec));
        assert_eq!(codec.to_string(), *name);
    }
    assert_eq!(Codec::from_id(5), None);
    assert_eq!(Codec::from_id(-1), None);
    assert_eq!("LZ4".parse::<Codec>(), Err(UnknownCodecName));
}

#[test]
fn round_trip_of_every_size_class() {
    for codec in supported() {
        let mut compressor = Compressor::default();
        let mut spare = Vec::new();
        for bytes in [1, 12, 13, 100, 32_768, 65_535, 65_536, 65_537, 300_000, 1_500_000, 70] {
            let payload = mixed(bytes);
            let mut packed = Vec::new();
            compressor.compress(codec, &payload, &mut packed).unwrap();
            let (buffer, len) = decompress(codec, &packed, spare, SIZE_MAX).unwrap();
            assert!(buffer[..len] == payload, "{codec}, {bytes} bytes");
            spare = buffer;
        }
    }
}

#[test]
fn limit_is_met_exactly() {
    for codec in supported() {
        let payload = mixed(200_000);
        let packed = pack(codec, &payload);
        assert_eq!(decompress(codec, &packed, Vec::new(), 200_000).unwrap().1, 200_000, "{codec}");
        let short = decompress(codec, &packed, Vec::new(), 199_999).unwrap_err();
        assert_eq!(short, too_large(199_999), "{codec}");
    }
}

#[test]
fn bomb_is_an_error_and_takes_no_memory() {
    for codec in supported() {
        let packed = pack(codec, &vec![0; 4 << 20]);
        for size_max in [0, 1, 1000, 1 << 20] {
            let mut out = Output { buffer: Vec::new(), len: 0, size_max };
            assert_eq!(unpack(codec, &packed, &mut out), Err(too_large(size_max)), "{codec}");
            assert!(out.buffer.capacity() <= size_max, "{codec}: {} of {size_max}", out.buffer.capacity());
        }
    }
}

/// Public case 19: thread kafka-protocol-rs/kafka-protocol-rs#59.
#[test]
fn lz4_frame_is_as_java_writes_it() {
    let payload = b"all the same, ".repeat(300_000 / 14);
    let packed = pack(Codec::Lz4, &payload);
    assert_eq!(packed[..7], [0x04, 0x22, 0x4D, 0x18, 0x60, 0x40, 0x82]);
    assert_eq!(packed[packed.len() - 4..], [0; 4]);
    let mut read = Vec::new();
    FrameDecoder::new(&packed[..]).read_to_end(&mut read).unwrap();
    assert!(read == payload);
}

#[test]
fn lz4_old_and_false_header_checksum() {
    let payload = mixed(100_000);
    let mut packed = pack(Codec::Lz4, &payload);
    packed[6] = 0x1a;
    assert!(unpacked(Codec::Lz4, &packed).unwrap() == payload);
    packed[6] = 0x83;
    let error = unpacked(Codec::Lz4, &packed).unwrap_err();
    assert_eq!(error, BatchErrorKind::Damaged("LZ4 frame header checksum"));
}

fn foreign_frames(payload: &[u8]) -> Vec<(FrameInfo, Vec<u8>)> {
    let mut frames = Vec::new();
    for mode in [BlockMode::Independent, BlockMode::Linked] {
        for size in [BlockSize::Max64KB, BlockSize::Max256KB, BlockSize::Max1MB, BlockSize::Max4MB] {
            for flags in 0..8 {
                let info = FrameInfo::new()
                    .block_mode(mode)
                    .block_size(size)
                    .block_checksums(flags & 1 != 0)
                    .content_checksum(flags & 2 != 0)
                    .content_size((flags & 4 != 0).then_some(payload.len() as u64));
                let mut encoder = FrameEncoder::with_frame_info(info.clone(), Vec::new());
                encoder.write_all(payload).unwrap();
                frames.push((info, encoder.finish().unwrap()));
            }
        }
    }
    frames
}

#[test]
fn lz4_reads_every_kind_of_frame() {
    for bytes in [10, 5_000, 700_000] {
        let payload = mixed(bytes);
        for (info, packed) in foreign_frames(&payload) {
            assert!(unpacked(Codec::Lz4, &packed).unwrap() == payload, "{info:?}");
            let short = decompress(Codec::Lz4, &packed, Vec::new(), bytes - 1).unwrap_err();
            assert_eq!(short, too_large(bytes - 1), "{info:?}");
        }
    }
}

#[test]
fn lz4_reads_several_and_skippable_frames() {
    let payload = mixed(90_000);
    for (_, mut packed) in foreign_frames(&payload) {
        packed.extend_from_slice(&[0x53, 0x2A, 0x4D, 0x18, 3, 0, 0, 0, 1, 2, 3]);
        packed.extend_from_slice(&pack(Codec::Lz4, b"and one more"));
        let expected = [&payload[..], b"and one more"].concat();
        assert!(unpacked(Codec::Lz4, &packed).unwrap() == expected);
    }
}

#[test]
fn lz4_checksums_are_verified() {
    let payload = mixed(90_000);
    for (info, packed) in foreign_frames(&payload) {
        let mut damaged = packed.clone();
        if info.content_checksum {
            *damaged.last_mut().unwrap() ^= 1;
            let error = unpacked(Codec::Lz4, &damaged).unwrap_err();
            assert_eq!(error, BatchErrorKind::Damaged("LZ4 content checksum"));
        } else if info.block_checksums {
            // The last block's checksum is just before the end mark.
            let at = damaged.len() - 5;
            damaged[at] ^= 1;
            let error = unpacked(Codec::Lz4, &damaged).unwrap_err();
            assert_eq!(error, BatchErrorKind::Damaged("LZ4 block checksum"));
        }
        for end in [0, 3, 6, 7, 9, packed.len() / 2, packed.len() - 1] {
            assert!(unpacked(Codec::Lz4, &packed[..end]).is_err(), "cut at {end}");
        }
    }
}

/// Public case 20: thread kafka-protocol-rs/kafka-protocol-rs#79.
#[cfg(feature = "snappy")]
#[test]
fn snappy_raw_and_framed() {
    let payload = mixed(100_000);
    let raw = snap::raw::Encoder::new().compress_vec(&payload).unwrap();
    assert!(unpacked(Codec::Snappy, &raw).unwrap() == payload);
    let framed = pack(Codec::Snappy, &payload);
    assert_eq!(framed[..16], *b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01");
    let first = u32::from_be_bytes(framed[16..20].try_into().unwrap()) as usize;
    assert_eq!(snap::raw::decompress_len(&framed[20..20 + first]).unwrap(), 32 * 1024);
    assert!(unpacked(Codec::Snappy, &framed).unwrap() == payload);
    let twice = [&framed[..], &framed].concat();
    assert_eq!(unpacked(Codec::Snappy, &twice).unwrap().len(), 200_000);
    for end in [0, 1, 15, 17, framed.len() - 1] {
        assert!(unpacked(Codec::Snappy, &framed[..end]).is_err(), "cut at {end}");
    }
    // Four bytes that claim 4 GB.
    assert!(unpacked(Codec::Snappy, &[0xff, 0xff, 0xff, 0xff, 0x0f, 0]).is_err());
}

#[cfg(feature = "gzip")]
#[test]
fn gzip_members_and_checksum() {
    let payload = mixed(100_000);
    let mut packed = pack(Codec::Gzip, &payload);
    packed.extend_from_slice(&pack(Codec::Gzip, b"and one more"));
    assert!(unpacked(Codec::Gzip, &packed).unwrap() == [&payload[..], b"and one more"].concat());
    let at = packed.len() - 8;
    packed[at] ^= 1;
    assert!(unpacked(Codec::Gzip, &packed).is_err());
}

/// A frame by the reference implementation (`zstd -3`), with its checksum.
#[cfg(feature = "zstd")]
#[test]
fn zstd_foreign_frame_and_checksum() {
    let mut packed = ZSTD_FRAME.to_vec();
    assert_eq!(unpacked(Codec::Zstd, &packed).unwrap(), b"keylane ".repeat(100));
    let twice = [&packed[..], &packed].concat();
    assert_eq!(unpacked(Codec::Zstd, &twice).unwrap().len(), 1600);
    *packed.last_mut().unwrap() ^= 1;
    assert_eq!(unpacked(Codec::Zstd, &packed), Err(BatchErrorKind::Damaged("zstd checksum")));
}

#[test]
fn codec_left_out_is_named() {
    for (codec, name) in CODECS {
        if !codec.is_supported() {
            let error = decompress(codec, b"x", Vec::new(), SIZE_MAX).unwrap_err();
            assert_eq!(error, BatchErrorKind::UnsupportedCodec(codec));
            assert!(error.to_string().contains(name));
        }
    }
}

/// Damages `packed`: bytes changed at places, then cut.
fn damage(packed: &mut Vec<u8>, changes: &[(usize, u8)], cut: usize) {
    for (at, byte) in changes {
        let at = at % packed.len();
        packed[at] = *byte;
    }
    if cut.is_multiple_of(4) {
        packed.truncate(cut / 4 % packed.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn round_trip(payload in prop::collection::vec(0..8_u8, 1..4000)) {
        for codec in supported() {
            prop_assert!(unpacked(codec, &pack(codec, &payload)).unwrap() == payload);
        }
    }

    #[test]
    fn damage_neither_panics_nor_fills_memory(
        bytes in 1..100_000_usize,
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..6),
        cut: usize,
    ) {
        let payload = mixed(bytes);
        let linked = foreign_frames(&payload[..bytes.min(500)]);
        let frames = linked.into_iter().step_by(7).map(|(_, packed)| (Codec::Lz4, packed));
        let own = supported().into_iter().map(|codec| (codec, pack(codec, &payload)));
        for (codec, mut packed) in own.chain(frames) {
            damage(&mut packed, &changes, cut);
            let mut out = Output { buffer: Vec::new(), len: 0, size_max: 150_000 };
            let _ = unpack(codec, &packed, &mut out);
            prop_assert!(out.buffer.capacity() <= 150_000);
        }
    }

    /// Bytes straight into the block decoder, which has no checksum before it.
    #[test]
    fn hostile_lz4_blocks(blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 1..4)) {
        for (flg, checksum) in [(0x60, 0x82), (0x40, (xxhash::xxh32(&[0x40, 0x40]) >> 8) as u8)] {
            let mut packed = vec![0x04, 0x22, 0x4D, 0x18, flg, 0x40, checksum];
            for block in &blocks {
                packed.extend_from_slice(&(block.len() as u32).to_le_bytes());
                packed.extend_from_slice(block);
            }
            packed.extend_from_slice(&[0; 4]);
            let mut out = Output { buffer: Vec::new(), len: 0, size_max: 100_000 };
            let _ = unpack(Codec::Lz4, &packed, &mut out);
            prop_assert!(out.buffer.capacity() <= 100_000);
        }
    }
}
#[cfg(feature = "zstd")]
const ZSTD_FRAME: [u8; 28] = [
    0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x7d, 0x00, 0x00, 0x40, 0x6b, 0x65, 0x79, 0x6c, 0x61, 0x6e, 0x65,
    0x20, 0x01, 0x00, 0x15, 0x57, 0x15, 0x2e, 0x37, 0x30, 0x06, 0x62,
];
