//! The pipes between a worker and its children.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::super::lines::{Lines, Target};

/// So much always goes into an empty pipe at once, however small the system makes it.
pub(super) const PIPE_BYTES_MIN: usize = 4096;
/// A pipe's usual size; read at a time.
pub(super) const PIPE_BYTES: usize = 64 << 10;
/// A child that writes all the time is left alone for a look at everything else after so many reads.
const READS_MAX: usize = 16;

/// The way of one output stream of a worker's children.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) read: PipeReader,
    pub(super) write: PipeWriter,
    pub(super) lines: Lines,
    pub(super) received_bytes: u64,
}

impl Output {
    pub(super) fn to(target: Target) -> io::Result<Output> {
        let (read, write) = io::pipe()?;
        fcntl(&read, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Output { read, write, lines: Lines::to(target), received_bytes: 0 })
    }

    /// A child may have made its side non-blocking, for all that come after it.
    pub(super) fn reset(&self) -> io::Result<()> {
        fcntl(&self.write, FcntlArg::F_SETFL(OFlag::empty()))?;
        Ok(())
    }

    pub(super) fn pass(&mut self, scratch: &mut [u8], tag: &[u8]) -> io::Result<()> {
        for _ in 0..READS_MAX {
            let bytes = match self.read.read(scratch) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.received_bytes += bytes as u64;
            self.lines.pass(&scratch[..bytes], tag)?;
            if bytes < scratch.len() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// The value on its way to a child's stdin.
#[derive(Debug)]
pub(super) struct Input {
    /// Gone when all is written, or nobody reads any more.
    pub(super) writer: Option<PipeWriter>,
    pub(super) written: usize,
}

impl Input {
    /// What the child is given as stdin (none: the null device), and what is still to be written.
    pub(super) fn with(value: &[u8]) -> io::Result<(Option<PipeReader>, Input)> {
        if value.is_empty() {
            return Ok((None, Input { writer: None, written: 0 }));
        }
        let (read, write) = io::pipe()?;
        if value.len() > PIPE_BYTES_MIN {
            fcntl(&write, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        let mut input = Input { writer: Some(write), written: 0 };
        input.write(value);
        Ok((Some(read), input))
    }

    /// Writes what goes in.
    pub(super) fn write(&mut self, value: &[u8]) {
        let Some(writer) = &mut self.writer else { return };
        match writer.write(&value[self.written..]) {
            Ok(bytes) => self.written += bytes,
            Err(error) if is_again(&error) => return,
            // It does not read, which is its own affair.
            Err(_) => self.written = value.len(),
        }
        if self.written == value.len() {
            self.writer = None;
        }
    }
}

fn is_again(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// The headers on their way to a child.
#[derive(Debug)]
pub(super) enum Headers {
    Pipe(PipeReader),
    /// More than a pipe is sure to hold.
    Memory(File),
}

impl Headers {
    pub(super) fn with(text: &[u8]) -> io::Result<Headers> {
        if text.len() <= PIPE_BYTES_MIN {
            let (read, mut write) = io::pipe()?;
            write.write_all(text)?;
            return Ok(Headers::Pipe(read));
        }
        let mut file = File::from(memfd_create(c"headers", MFdFlags::MFD_CLOEXEC)?);
        file.write_all(text)?;
        file.rewind()?;
        Ok(Headers::Memory(file))
    }
}

impl AsFd for Headers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Headers::Pipe(pipe) => pipe.as_fd(),
            Headers::Memory(file) => file.as_fd(),
        }
    }
}
