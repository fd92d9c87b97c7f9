//! Length-prefixed frames put together from whatever pieces a socket yields.
//!
//! Invariant: `start ≤ end ≤ scratch.len()`, and a large frame has `filled ≤ length ≤ FRAME_BYTES_MAX`. A bad
//! length is an error before it is an allocation, and a claimed length is trusted only up to
//! `TRUSTED_BYTES_MAX`; beyond that a buffer grows with what has really arrived.
//!
//! Small frames are copied out of one scratch buffer. Large ones (Fetch answers) are read straight into a buffer of
//! their own, which goes back to a [`BufferPool`] when the last slice of it is dropped: the first touch of fresh
//! memory can cost more than all the work done on it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::error::Error;

/// The largest frame that is accepted, in bytes.
pub const FRAME_BYTES_MAX: usize = 512 << 20;
/// A claimed length is allocated at once up to this many bytes.
const TRUSTED_BYTES_MAX: usize = 16 << 20;
/// Frames up to this size are copied out of the scratch buffer.
const SMALL_BYTES_MAX: usize = 16 << 10;
const SCRATCH_BYTES: usize = 64 << 10;

/// Receive buffers that are used again, and a count of the bytes held by frames that come in or were handed out.
#[derive(Clone, Debug, Default)]
pub struct BufferPool {
    shared: Arc<PoolShared>,
}

#[derive(Debug, Default)]
struct PoolShared {
    /// Idle buffers, each initialised to its full length.
    idle: Mutex<Vec<Vec<u8>>>,
    held_bytes: AtomicUsize,
    /// The largest buffer asked for: all are made so large, so that any of them serves again.
    largest_bytes: AtomicUsize,
}

/// Idle buffers kept; more are given back to the allocator.
const IDLE_BUFFERS_MAX: usize = 2;

impl BufferPool {
    /// Bytes of large frames that are coming in or alive, in whole buffers.
    pub fn held_bytes(&self) -> usize {
        self.shared.held_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of all large buffers, those that are kept for use included.
    pub fn bytes(&self) -> u64 {
        let idle = self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
        (self.held_bytes() + idle.iter().map(Vec::len).sum::<usize>()) as u64
    }

    /// A buffer of at least `length` bytes; its content is arbitrary.
    fn take(&self, length: usize) -> Pooled {
        let mut idle = self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = match idle.iter().position(|buffer| buffer.len() >= length) {
            Some(at) => idle.swap_remove(at),
            None => {
                // None is large enough: one of them makes room, so that the pool follows the size in use.
                idle.pop();
                let length = length.next_multiple_of(1 << 20);
                vec![0; length.max(self.shared.largest_bytes.fetch_max(length, Ordering::Relaxed))]
            }
        };
        drop(idle);
        self.shared.held_bytes.fetch_add(buffer.len(), Ordering::Relaxed);
        Pooled { buffer, length: 0, pool: self.clone() }
    }

    fn put(&self, buffer: Vec<u8>) {
        let mut idle = self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_BUFFERS_MAX && buffer.len() <= TRUSTED_BYTES_MAX {
            idle.push(buffer);
        }
    }
}

/// A buffer that is counted while it is held and goes back to its pool; as the owner behind the [`Bytes`] of a frame it
/// shows the frame's `length`.
#[derive(Debug)]
struct Pooled {
    buffer: Vec<u8>,
    length: usize,
    pool: BufferPool,
}

impl Pooled {
    fn grow(&mut self, length: usize) {
        self.pool.shared.held_bytes.fetch_add(length - self.buffer.len(), Ordering::Relaxed);
        self.buffer.resize(length, 0);
    }

    fn into_frame(mut self, length: usize) -> Bytes {
        self.length = length;
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.pool.shared.held_bytes.fetch_sub(self.buffer.len(), Ordering::Relaxed);
        self.pool.put(std::mem::take(&mut self.buffer));
    }
}

#[derive(Debug)]
struct LargeFrame {
    pooled: Pooled,
    filled: usize,
    length: usize,
}

/// Puts frames together.
#[derive(Debug)]
pub struct FrameReader {
    scratch: Vec<u8>,
    start: usize,
    end: usize,
    large: Option<LargeFrame>,
    pool: BufferPool,
}

impl FrameReader {
    /// A reader without bytes.
    pub fn new(pool: BufferPool) -> Self {
        FrameReader { scratch: vec![0; SCRATCH_BYTES], start: 0, end: 0, large: None, pool }
    }

    /// Where the next bytes go; never empty. Call [`FrameReader::received`] with how many came, then
    /// [`FrameReader::next_frame`] until it has none, before asking for space again.
    pub fn space(&mut self) -> &mut [u8] {
        if let Some(large) = &mut self.large {
            if large.filled == large.pooled.buffer.len() {
                // Only a frame beyond TRUSTED_BYTES_MAX comes here: double what has really arrived.
                let grown = (large.pooled.buffer.len() * 2).min(large.length);
                large.pooled.grow(grown);
            }
            let end = large.length.min(large.pooled.buffer.len());
            return &mut large.pooled.buffer[large.filled..end];
        }
        if self.start > 0 {
            self.scratch.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.scratch[self.end..]
    }

    /// `count` bytes were written to the front of the last [`FrameReader::space`].
    pub fn received(&mut self, count: usize) {
        match &mut self.large {
            Some(large) => {
                large.filled += count;
                assert!(large.filled <= large.length, "more bytes than there was space");
            }
            None => {
                self.end += count;
                assert!(self.end <= self.scratch.len(), "more bytes than there was space");
            }
        }
    }

    /// The next whole frame without its length, or none until more bytes come.
    ///
    /// # Errors
    /// A length that is negative or above [`FRAME_BYTES_MAX`]. The connection cannot be used any more.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, Error> {
        if let Some(large) = &self.large
            && large.filled < large.length
        {
            return Ok(None);
        }
        if let Some(large) = self.large.take() {
            return Ok(Some(large.pooled.into_frame(large.length)));
        }
        let ready = &self.scratch[self.start..self.end];
        let Some((prefix, body)) = ready.split_first_chunk::<4>() else { return Ok(None) };
        let claimed = i32::from_be_bytes(*prefix);
        let length =
            usize::try_from(claimed).ok().filter(|length| *length <= FRAME_BYTES_MAX).ok_or_else(|| {
                Error::peer(format!(
                    "a frame of {claimed} bytes (0 to {FRAME_BYTES_MAX} are accepted); is this a Kafka port?"
                ))
            })?;
        if length <= body.len() {
            let frame = Bytes::copy_from_slice(&body[..length]);
            self.start += 4 + length;
            return Ok(Some(frame));
        }
        if length > SMALL_BYTES_MAX {
            let mut pooled = self.pool.take(length.min(TRUSTED_BYTES_MAX));
            pooled.buffer[..body.len()].copy_from_slice(body);
            self.large = Some(LargeFrame { pooled, filled: body.len(), length });
            self.start = 0;
            self.end = 0;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn feed(
        reader: &mut FrameReader,
        mut bytes: &[u8],
        pieces: &mut impl FnMut() -> usize,
    ) -> Result<Vec<Bytes>, Error> {
        let mut frames = Vec::new();
        while !bytes.is_empty() {
            let space = reader.space();
            let count = pieces().clamp(1, space.len()).min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            reader.received(count);
            while let Some(frame) = reader.next_frame()? {
                frames.push(frame);
            }
        }
        Ok(frames)
    }

    proptest! {
        #[test]
        fn frames_survive_any_cutting(
            sizes in prop::collection::vec(prop_oneof![0usize..200, 10_000usize..200_000], 1..8),
            cuts in prop::collection::vec(1usize..100_000, 1..20),
        ) {
            let mut wire = Vec::new();
            for (at, size) in sizes.iter().enumerate() {
                wire.extend((*size as u32).to_be_bytes());
                wire.extend((0..*size).map(|byte| (byte + at) as u8));
            }
            let mut turn = 0;
            let mut reader = FrameReader::new(BufferPool::default());
            let frames = feed(&mut reader, &wire, &mut || { turn += 1; cuts[turn % cuts.len()] }).unwrap();
            prop_assert_eq!(frames.len(), sizes.len());
            for (at, frame) in frames.iter().enumerate() {
                prop_assert_eq!(frame.len(), sizes[at]);
                prop_assert!(frame.iter().enumerate().all(|(byte, value)| *value == (byte + at) as u8));
            }
        }
    }

    #[test]
    fn a_bad_length_is_an_error_before_it_is_an_allocation() {
        for bad in [[0xff, 0xff, 0xff, 0xff], [0x7f, 0xff, 0xff, 0xff], *b"HTTP"] {
            let mut reader = FrameReader::new(BufferPool::default());
            assert!(feed(&mut reader, &bad, &mut || 4).is_err());
        }
    }

    #[test]
    fn a_claimed_length_is_not_allocated_at_once() {
        let mut reader = FrameReader::new(BufferPool::default());
        let frames = feed(&mut reader, &(300u32 << 20).to_be_bytes(), &mut || 4).expect("within the limit");
        assert!(frames.is_empty());
        assert!(reader.space().len() <= TRUSTED_BYTES_MAX);
    }

    #[test]
    fn buffers_are_counted_while_held_and_used_again() {
        let pool = BufferPool::default();
        let mut reader = FrameReader::new(pool.clone());
        let mut wire = 100_000u32.to_be_bytes().to_vec();
        wire.resize(4 + 100_000, 7);
        let frames = feed(&mut reader, &wire, &mut || 5000).expect("a frame");
        let slice = frames[0].slice(10..20);
        drop(frames);
        assert_eq!(pool.held_bytes(), 1 << 20);
        drop(slice);
        assert_eq!(pool.held_bytes(), 0);
        assert_eq!(pool.shared.idle.lock().unwrap().len(), 1);
        feed(&mut reader, &wire, &mut || 5000).expect("a frame");
        assert_eq!(pool.shared.idle.lock().unwrap().len(), 1);
    }
}
