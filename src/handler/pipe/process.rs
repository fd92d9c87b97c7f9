//! A `--pipe` child and the pipes to it: none of them ever blocks us.

use std::ffi::CStr;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::session::OUT_BYTES_MAX;
use crate::handler::child::{Child, Descriptors, Program};

/// What a read came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// So many bytes, not 0.
    Bytes(usize),
    /// Nothing for now.
    Nothing,
    /// Nobody writes there any more.
    End,
}

/// A running child. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) child: Child,
    /// Until it is told that nothing more comes.
    pub(super) stdin: Option<PipeWriter>,
    /// Until it closes them.
    pub(super) stdout: Option<PipeReader>,
    pub(super) stderr: Option<PipeReader>,
    pub(super) started: Duration,
    /// Known when stdin is closed.
    unread_bytes: u64,
}

impl Process {
    /// Starts a child.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn start(program: &Program, environment: &[&CStr], now: Duration) -> io::Result<Process> {
        let (theirs_in, stdin) = io::pipe()?;
        let (stdout, theirs_out) = io::pipe()?;
        let (stderr, theirs_err) = io::pipe()?;
        for ours in [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()] {
            fcntl(ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        // All that a session writes at once; answers are short. A user who has used his pages up keeps the usual size.
        let _ = fcntl(&stdin, FcntlArg::F_SETPIPE_SZ(OUT_BYTES_MAX as i32));
        let descriptors = Descriptors {
            stdin: theirs_in.as_fd(),
            stdout: theirs_out.as_fd(),
            stderr: theirs_err.as_fd(),
            headers: None,
        };
        let child = Child::spawn(program, program.words(), environment, &descriptors)?;
        Ok(Process {
            child,
            stdin: Some(stdin),
            stdout: Some(stdout),
            stderr: Some(stderr),
            started: now,
            unread_bytes: 0,
        })
    }

    /// Writes what fits: 0 bytes when the pipe is full.
    ///
    /// # Errors
    /// Nobody reads there any more.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(stdin) = &mut self.stdin else { return Ok(0) };
        loop {
            match stdin.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                written => return written,
            }
        }
    }

    /// How much of what was written the child has not read.
    pub(super) fn unread_bytes(&self) -> u64 {
        self.stdin.as_ref().map_or(self.unread_bytes, |stdin| rustix::io::ioctl_fionread(stdin).unwrap_or(0))
    }

    /// Nothing more comes.
    pub(super) fn close_stdin(&mut self) {
        self.unread_bytes = self.unread_bytes();
        self.stdin = None;
    }

    /// Reads what the child printed; at the end of the stream closes it.
    pub(super) fn read_stdout(&mut self, buffer: &mut [u8]) -> Taken {
        take(&mut self.stdout, buffer)
    }

    /// As `read_stdout`.
    pub(super) fn read_stderr(&mut self, buffer: &mut [u8]) -> Taken {
        take(&mut self.stderr, buffer)
    }
}

fn take(pipe: &mut Option<PipeReader>, buffer: &mut [u8]) -> Taken {
    let Some(reader) = pipe else { return Taken::Nothing };
    loop {
        match reader.read(buffer) {
            Ok(0) => break,
            Ok(bytes) => return Taken::Bytes(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Taken::Nothing,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // A pipe has no other error; one that had would have nothing to read either.
            Err(_) => break,
        }
    }
    *pipe = None;
    Taken::End
}

/// The descriptor, or one that never has anything to say.
pub(super) fn fd_or<'fd>(pipe: Option<&'fd impl AsFd>, silent: BorrowedFd<'fd>) -> BorrowedFd<'fd> {
    pipe.map_or(silent, AsFd::as_fd)
}
