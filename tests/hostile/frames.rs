//! Bytes of a socket, put together to frames.

use keylane_protocol::frame::{BufferPool, FRAME_BYTES_MAX, FrameReader};

use crate::campaign;
use crate::mutate::mutate;
use crate::rng::Rng;

/// A claimed length is asked for up to this, in one piece that is not touched: `frame`'s TRUSTED_BYTES_MAX, which
/// doubles once with what really arrived, as a pool's buffers are rounded up to 1 MiB.
const BELIEVED_BYTES: usize = 17 << 20;
const SCRATCH_BYTES: usize = 64 << 10;

fn wire(rng: &mut Rng) -> Vec<u8> {
    let mut wire = Vec::new();
    for _ in 0..1 + rng.below(5) {
        let length = match rng.below(30) {
            0 => 60_000 + rng.below(80_000),
            1 | 2 => 16_000 + rng.below(1_000),
            _ => rng.below(300),
        };
        let claimed = match rng.below(24) {
            0 => rng.odd_i64() as u32,
            1 => (FRAME_BYTES_MAX as u32).wrapping_add(rng.below(3) as u32).wrapping_sub(1),
            2 => rng.next() as u32 >> rng.below(20),
            _ => length as u32,
        };
        wire.extend(claimed.to_be_bytes());
        let fill = rng.next() as u8;
        wire.resize(wire.len() + length, fill);
    }
    wire
}

/// The frames in `wire`, and whether a bad length ends them.
fn expected(mut wire: &[u8]) -> (Vec<&[u8]>, bool) {
    let mut frames = Vec::new();
    while let Some((length, rest)) = wire.split_first_chunk() {
        match usize::try_from(i32::from_be_bytes(*length)) {
            Ok(length) if length <= FRAME_BYTES_MAX => match rest.split_at_checked(length) {
                Some((frame, rest)) => {
                    frames.push(frame);
                    wire = rest;
                }
                None => return (frames, false),
            },
            _ => return (frames, true),
        }
    }
    (frames, false)
}

/// Feeds all of `wire` in pieces of up to `piece` bytes.
fn feed(reader: &mut FrameReader, mut wire: &[u8], rng: &mut Rng, piece: usize) -> (Vec<bytes::Bytes>, bool) {
    let mut frames = Vec::new();
    while !wire.is_empty() {
        let space = reader.space();
        assert!(!space.is_empty(), "there is always room");
        let count = (1 + rng.below(piece)).min(space.len()).min(wire.len());
        space[..count].copy_from_slice(&wire[..count]);
        wire = &wire[count..];
        reader.received(count);
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return (frames, true),
            }
        }
    }
    (frames, false)
}

#[test]
fn frames() {
    let stages = [("whole frame", 500), ("large frame", 50), ("bad length", 50), ("waits for more", 50)];
    campaign::run("frames", 7, &stages, |rng, case| {
        let mut wire = wire(rng);
        if rng.one_in(3) {
            mutate(rng, &mut wire, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0x40, 0]);
        }
        let (expected, bad) = expected(&wire);
        let piece = 1 + if rng.one_in(2) { wire.len() } else { rng.below(5000) };
        // Frames that are kept are copies, or keep their own buffer, which is rounded up.
        let large = expected.iter().filter(|frame| frame.len() > 10_000).count();
        let limit = SCRATCH_BYTES + BELIEVED_BYTES * (1 + large) + 16 * wire.len() + 4096;
        case.work(wire.len(), limit, |case| {
            let mut reader = FrameReader::new(BufferPool::default());
            let (frames, ended) = feed(&mut reader, &wire, rng, piece);
            assert_eq!(ended, bad, "a bad length is an error");
            assert!(frames.iter().map(|frame| &frame[..]).eq(expected.iter().copied()), "the same frames");
            case.reached(if bad { "bad length" } else { "no bad length" });
            if !frames.is_empty() {
                case.reached("whole frame");
            }
            if frames.iter().any(|frame| frame.len() > 16 << 10) {
                case.reached("large frame");
            }
            let whole: usize = frames.iter().map(|frame| 4 + frame.len()).sum();
            if !bad && whole < wire.len() {
                case.reached("waits for more");
            }
        });
    });
}
