//! `--exec`: one try of one record by a process of its own.
//!
//! The value is on its stdin, what it writes passes to ours, and its end is the outcome. A worker waits in one poll for
//! all of it. Guarantees: a child that reads nothing, or never all, is no error and no deadlock; what a background
//! process keeps open delays nothing; a child that is ended before its time is ended with its whole group.
//!
//! A spawn has to be cheap. So the pipes for output belong to the worker and serve one child after the other: there is
//! never an end of file to wait for, as a child's last words are in the pipe when it has ended. A small value is in its
//! pipe before the child begins.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use keylane_protocol::records::Record;
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::Signal;

use super::CommandConfig;
use super::bell::Bell;
use super::child::{self, Child, Descriptors, Program};
use super::environment::{self, About, Base, Environment};
use super::lines::Target;
use super::outcome::{End, ExitCodes, Failed, Kind, Outcome, reason};
use super::template::{Fields, Template};
use crate::exit::Exit;
use crate::pool::shared::{Ends, KILL_AFTER};
use pipes::{Headers, Input, Output, PIPE_BYTES};

mod pipes;

/// A command, ready for all workers.
#[derive(Debug)]
pub struct Command {
    program: Program,
    template: Template,
    exits: ExitCodes,
    tag: bool,
    timeout: Option<Duration>,
    null: File,
}

impl Command {
    /// Finds the program.
    ///
    /// # Errors
    /// It is not there (127), or cannot be run (126), and why.
    pub fn new(config: &CommandConfig) -> Result<Command, (Exit, String)> {
        let program = Program::find(&config.words)?;
        let null =
            File::open("/dev/null").map_err(|error| (Exit::CannotRun, format!("/dev/null: {error}")))?;
        Ok(Command {
            template: Template::new(program.words(), config.replace),
            program,
            exits: config.exits.clone(),
            tag: config.tag,
            timeout: config.timeout,
            null,
        })
    }
}

/// What a worker looks at while a child runs.
pub struct Watch<'a> {
    /// Rung when `ends` may have changed.
    pub bell: &'a Bell,
    /// What time it is.
    pub now: &'a dyn Fn() -> Duration,
    /// When the try is to be broken off, in that time.
    pub ends: &'a dyn Fn() -> Option<Ends>,
    /// Told the number of the child's process once there is one.
    pub started: &'a dyn Fn(u32),
}

/// One try.
#[derive(Debug)]
pub struct Ran {
    /// What it came to.
    pub outcome: Outcome,
    /// How the child ended, if there was one.
    pub end: Option<End>,
    /// Bytes of the value that the child was given.
    pub sent_bytes: u64,
    /// Bytes that it wrote to both its outputs.
    pub received_bytes: u64,
}

/// A worker's executor.
#[derive(Debug)]
pub struct Exec {
    command: Arc<Command>,
    base: Base,
    environment: Environment,
    headers: Vec<u8>,
    out: Output,
    err: Output,
    scratch: Vec<u8>,
    tag: Vec<u8>,
}

impl Exec {
    /// For worker `worker`, from 0, of `group`.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn new(command: Arc<Command>, group: &str, worker: u32) -> io::Result<Exec> {
        Ok(Exec {
            command,
            base: Base::of_process(group, worker),
            environment: Environment::default(),
            headers: Vec::new(),
            out: Output::to(Target::Stdout)?,
            err: Output::to(Target::Stderr)?,
            scratch: vec![0; PIPE_BYTES],
            tag: Vec::new(),
        })
    }

    /// The arguments as the joblog shows them: joined by spaces.
    pub fn words(&self, about: About<'_>, record: &Record<'_>) -> Vec<u8> {
        let words = self.command.template.fill(&fields(about, record)).unwrap_or_default();
        words.iter().map(|word| word.to_bytes()).collect::<Vec<_>>().join(&b' ')
    }

    /// Waits for the bell, for output of what was left running in the background, which it passes on, or for so long.
    ///
    /// # Errors
    /// Our stdout takes no more, or the system fails.
    pub fn wait(&mut self, bell: &Bell, limit: Option<Duration>) -> io::Result<()> {
        let mut fds = [&bell.as_fd(), &self.out.read.as_fd(), &self.err.read.as_fd()]
            .map(|fd| PollFd::new(*fd, PollFlags::POLLIN));
        if !child::wait_for(&mut fds, limit)? {
            return Ok(());
        }
        let [rung, out, err] = fds.map(|fd| is_ready(&fd));
        if rung {
            bell.clear();
        }
        self.pass(out, err)
    }

    /// Tries a record, or several with `batch` as their input; then `record` is the first of them. It returns once no
    /// child is left.
    ///
    /// # Errors
    /// Our stdout takes no more, or the system fails in what should not fail: the try came to nothing.
    pub fn run(
        &mut self,
        about: About<'_>,
        record: &Record<'_>,
        batch: Option<&[u8]>,
        watch: &Watch<'_>,
    ) -> io::Result<Ran> {
        let began = (watch.now)();
        let command = self.command.clone();
        let words = match command.template.fill(&fields(about, record)) {
            Ok(words) => words,
            Err(why) => return Ok(Ran::without_child(rejected(why))),
        };
        self.tag.clear();
        if command.tag {
            let (topic, partition) = (about.topic, about.partition);
            write!(self.tag, "{topic}/{partition}@{}\t", record.offset)?;
        }
        let value = batch.or(record.value).unwrap_or_default();
        let (mut child, input) = match self.start(&command, &words, about, record, value) {
            Ok(started) => started,
            Err(error) => return Ok(Ran::without_child(child::spawn_failed(&error))),
        };
        (watch.started)(child.pid().unsigned_abs());
        let received_before = self.out.received_bytes + self.err.received_bytes;
        let (end, ender, sent) = self.follow(&mut child, input, value, began, watch)?;
        self.out.lines.end(&self.tag)?;
        self.err.lines.end(&self.tag)?;
        Ok(Ran {
            outcome: command.outcome(end, ender),
            end: Some(end),
            sent_bytes: sent as u64,
            received_bytes: self.out.received_bytes + self.err.received_bytes - received_before,
        })
    }

    fn start(
        &mut self,
        command: &Command,
        words: &[Cow<'_, CStr>],
        about: About<'_>,
        record: &Record<'_>,
        value: &[u8],
    ) -> io::Result<(Child, Input)> {
        let argument_bytes = words.iter().map(|word| environment::cost(word.count_bytes())).sum();
        self.headers.clear();
        environment::append_headers(&mut self.headers, record.headers());
        let headers = Headers::with(&self.headers)?;
        let (stdin, input) = Input::with(value)?;
        self.out.reset()?;
        self.err.reset()?;
        let environment = self.environment.build(&self.base, about, record, argument_bytes);
        let descriptors = Descriptors {
            stdin: stdin.as_ref().map_or(command.null.as_fd(), AsFd::as_fd),
            stdout: self.out.write.as_fd(),
            stderr: self.err.write.as_fd(),
            headers: Some(headers.as_fd()),
        };
        Ok((Child::spawn(&command.program, words, &environment, &descriptors)?, input))
    }

    /// Serves a child until it has ended.
    fn follow(
        &mut self,
        child: &mut Child,
        mut input: Input,
        value: &[u8],
        began: Duration,
        watch: &Watch<'_>,
    ) -> io::Result<(End, Ender, usize)> {
        let mut limits = Limits::new(self.command.timeout.map(|timeout| began + timeout), (watch.ends)());
        loop {
            let left = limits.act(child, watch.now);
            let ready = self.poll(child, &input, watch.bell, left)?;
            self.pass(ready.out, ready.err)?;
            if ready.ended {
                break;
            }
            if ready.input {
                input.write(value);
            }
            if ready.rung {
                watch.bell.clear();
                limits.ends = (watch.ends)();
            }
        }
        if limits.ender != Ender::Itself {
            // What it had started as well. Its own number is still taken: it is not reaped.
            child.signal_group(Signal::SIGKILL);
        }
        Ok((child.wait()?, limits.ender, input.written))
    }

    fn poll(&self, child: &Child, input: &Input, bell: &Bell, left: Option<Duration>) -> io::Result<Ready> {
        let reads = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let writes = |fd| PollFd::new(fd, PollFlags::POLLOUT);
        // The child stands first: found ended, it has written all that the pipes behind it are found to hold.
        let fds = [child.as_fd(), self.out.read.as_fd(), self.err.read.as_fd(), bell.as_fd()].map(reads);
        let [ended, out, err, rung] = fds;
        let input = input.writer.as_ref().map(|writer| writes(writer.as_fd()));
        let count = 4 + usize::from(input.is_some());
        let mut fds = [ended, out, err, rung, input.unwrap_or(writes(bell.as_fd()))];
        if !child::wait_for(&mut fds[..count], left)? {
            return Ok(Ready::default());
        }
        let [ended, out, err, rung, input] = fds.map(|fd| is_ready(&fd));
        Ok(Ready { ended, out, err, rung, input })
    }

    fn pass(&mut self, out: bool, err: bool) -> io::Result<()> {
        if out {
            self.out.pass(&mut self.scratch, &self.tag)?;
        }
        if err {
            self.err.pass(&mut self.scratch, &self.tag)?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    ended: bool,
    out: bool,
    err: bool,
    rung: bool,
    input: bool,
}

fn is_ready(fd: &PollFd<'_>) -> bool {
    fd.any().unwrap_or(true)
}

fn fields<'a>(about: About<'a>, record: &Record<'a>) -> Fields<'a> {
    Fields {
        topic: about.topic,
        partition: about.partition,
        offset: record.offset,
        key: record.key,
        value: record.value,
    }
}

fn rejected(why: String) -> Failed {
    Failed { kind: Kind::Reject, end: End::Answer, reason: reason(why), counts: true }
}

impl Ran {
    fn without_child(failed: Failed) -> Ran {
        Ran { outcome: Outcome::Failed(failed), end: None, sent_bytes: 0, received_bytes: 0 }
    }
}

/// Who ended a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ender {
    Itself,
    /// It took longer than `--timeout`.
    Timeout,
    /// A drain, a lost partition, the end of the run.
    Pool,
}

impl Command {
    fn outcome(&self, end: End, ender: Ender) -> Outcome {
        let (kind, end, reason) = match (ender, end) {
            (Ender::Pool, _) => return Outcome::Unfinished,
            (Ender::Timeout, _) => {
                let limit = self.timeout.unwrap_or_default();
                (Kind::Ordinary, End::TimedOut, format!("no end within {limit:?}"))
            }
            (Ender::Itself, End::Exit(code)) => match self.exits.kind(code) {
                None => return Outcome::Done,
                Some(kind) => (kind, end, format!("exit {code}")),
            },
            (Ender::Itself, End::Signal(number)) => (Kind::Ordinary, end, format!("signal {number}")),
            (Ender::Itself, End::TimedOut | End::Answer) => unreachable!("no process ends so"),
        };
        Outcome::Failed(Failed { kind, end, reason, counts: true })
    }
}

/// When a child is to be ended, and how far that is.
#[derive(Debug)]
struct Limits {
    timeout_at: Option<Duration>,
    ends: Option<Ends>,
    ender: Ender,
    /// Of one that was sent TERM.
    kill_at: Option<Duration>,
    is_killed: bool,
}

impl Limits {
    fn new(timeout_at: Option<Duration>, ends: Option<Ends>) -> Limits {
        Limits { timeout_at, ends, ender: Ender::Itself, kill_at: None, is_killed: false }
    }

    /// Sends what is due, and says for how long nothing is.
    fn act(&mut self, child: &Child, now: &dyn Fn() -> Duration) -> Option<Duration> {
        if self.is_killed || (self.timeout_at.is_none() && self.ends.is_none()) {
            return None;
        }
        let now = now();
        if self.ender == Ender::Itself {
            let is_due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
            let due = is_due(self.ends.map(|ends| ends.term_at)) || is_due(self.timeout_at);
            if due && is_over(child) {
                // Where keylane itself stood still, it may have ended in good time.
                return Some(Duration::ZERO);
            }
            if self.ends.is_some_and(|ends| ends.term_at <= now) {
                self.ender = Ender::Pool;
            } else if self.timeout_at.is_some_and(|at| at <= now) {
                self.ender = Ender::Timeout;
                self.kill_at = Some(now + KILL_AFTER);
            }
            if self.ender != Ender::Itself {
                child.signal_group(Signal::SIGTERM);
                // A stopped one hears it, too.
                child.signal_group(Signal::SIGCONT);
            }
        }
        let ends_at = self.ends.map(|ends| match self.ender {
            Ender::Itself => ends.term_at,
            _ => ends.kill_at,
        });
        let own_at = if self.ender == Ender::Itself { self.timeout_at } else { self.kill_at };
        let next = [ends_at, own_at].into_iter().flatten().min()?;
        if self.ender != Ender::Itself && next <= now {
            child.signal_group(Signal::SIGKILL);
            self.is_killed = true;
            return None;
        }
        Some(next.saturating_sub(now))
    }
}

/// Whether a child has ended, reaped or not.
fn is_over(child: &Child) -> bool {
    let mut fds = [PollFd::new(child.as_fd(), PollFlags::POLLIN)];
    child::wait_for(&mut fds, Some(Duration::ZERO)).unwrap_or(false)
}

#[cfg(test)]
mod tests;
