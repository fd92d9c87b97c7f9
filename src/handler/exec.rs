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
use std::io::{self, PipeReader, PipeWriter, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use keylane_protocol::records::Record;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;

use super::CommandConfig;
use super::bell::Bell;
use super::child::{self, Child, Descriptors, Program};
use super::environment::{self, About, Base, Environment};
use super::lines::{Lines, Target};
use super::outcome::{End, ExitCodes, Failed, Kind, Outcome, reason};
use super::template::{Fields, Template};
use crate::exit::Exit;
use crate::pool::shared::{Ends, KILL_AFTER};

/// So much always goes into an empty pipe at once, however small the system makes it.
const PIPE_BYTES_MIN: usize = 4096;
/// A pipe's usual size; read at a time.
const PIPE_BYTES: usize = 64 << 10;
/// A child that writes all the time is left alone for a look at everything else after so many reads.
const READS_MAX: usize = 16;

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

/// The way of one output stream of a worker's children.
#[derive(Debug)]
struct Output {
    read: PipeReader,
    write: PipeWriter,
    lines: Lines,
    received_bytes: u64,
}

impl Output {
    fn to(target: Target) -> io::Result<Output> {
        let (read, write) = io::pipe()?;
        fcntl(&read, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Output { read, write, lines: Lines::to(target), received_bytes: 0 })
    }

    /// A child may have made its side non-blocking, for all that come after it.
    fn reset(&self) -> io::Result<()> {
        fcntl(&self.write, FcntlArg::F_SETFL(OFlag::empty()))?;
        Ok(())
    }

    fn pass(&mut self, scratch: &mut [u8], tag: &[u8]) -> io::Result<()> {
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
struct Input {
    /// Gone when all is written, or nobody reads any more.
    writer: Option<PipeWriter>,
    written: usize,
}

impl Input {
    /// What the child is given as stdin (none: the null device), and what is still to be written.
    fn with(value: &[u8]) -> io::Result<(Option<PipeReader>, Input)> {
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
    fn write(&mut self, value: &[u8]) {
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
enum Headers {
    Pipe(PipeReader),
    /// More than a pipe is sure to hold.
    Memory(File),
}

impl Headers {
    fn with(text: &[u8]) -> io::Result<Headers> {
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::time::Instant;

    use super::*;
    use crate::handler::CommandMode;
    use crate::handler::tests::batch_of;

    const ABOUT: About<'_> = About { topic: "orders", partition: 2, attempt: 1, batch_records: None };

    struct Stage {
        exec: Exec,
        bell: Bell,
        folder: tempfile::TempDir,
    }

    impl Stage {
        /// `sh -c SCRIPT`, with a folder as `$D`.
        fn of(script: &str, change: impl FnOnce(&mut CommandConfig)) -> Stage {
            let folder = tempfile::tempdir().unwrap();
            let script = format!("D={}; {script}", folder.path().display());
            let mut config = CommandConfig {
                words: ["sh", "-c", &script].map(OsString::from).to_vec(),
                mode: CommandMode::Exec(None),
                replace: false,
                tag: false,
                timeout: None,
                exits: ExitCodes::default(),
            };
            change(&mut config);
            let exec = Exec::new(Arc::new(Command::new(&config).unwrap()), "kitchen", 0).unwrap();
            Stage { exec, bell: Bell::new().unwrap(), folder }
        }

        fn run(&mut self, value: Option<&[u8]>, ends: Option<Ends>) -> Ran {
            let (header, payload) = batch_of(Some(b"k"), value, &[(b"h", Some(b"1"))]);
            let record = Record::parse(&header, &payload, 0).unwrap();
            let began = Instant::now();
            let watch =
                Watch { bell: &self.bell, now: &|| began.elapsed(), ends: &|| ends, started: &|_| {} };
            self.exec.run(ABOUT, &record, None, &watch).unwrap()
        }

        fn file(&self, name: &str) -> Vec<u8> {
            std::fs::read(self.folder.path().join(name)).unwrap_or_default()
        }
    }

    fn failed(ran: Ran) -> (Kind, End) {
        let Outcome::Failed(failed) = ran.outcome else { panic!("{ran:?}") };
        (failed.kind, failed.end)
    }

    #[test]
    fn values_arrive_as_they_are() {
        let mut stage = Stage::of("cat > $D/in; echo $KEYLANE_VALUE_NULL > $D/null", |_| {});
        let large: Vec<u8> = (0..1_000_000u32).map(|n| (n * 7 >> 3) as u8).collect();
        for value in
            [&b"v"[..], b"a\nb\0\xff", b"", &large[..PIPE_BYTES_MIN], &large[..PIPE_BYTES + 1], &large]
        {
            let ran = stage.run(Some(value), None);
            assert_eq!((&ran.outcome, ran.sent_bytes), (&Outcome::Done, value.len() as u64));
            assert!(stage.file("in") == value);
            assert_eq!(stage.file("null"), b"\n");
        }
        assert_eq!(stage.run(None, None).outcome, Outcome::Done);
        assert_eq!((stage.file("in"), stage.file("null")), (Vec::new(), b"1\n".to_vec()));
    }

    #[test]
    fn a_child_that_does_not_read_is_no_error() {
        let large = vec![b'x'; 1_000_000];
        let mut stage = Stage::of("exit 0", |_| {});
        assert_eq!(stage.run(Some(&large), None).outcome, Outcome::Done);
        let mut stage = Stage::of("exec <&-; sleep 0.2; exit 3", |_| {});
        assert_eq!(failed(stage.run(Some(&large), None)), (Kind::Ordinary, End::Exit(3)));
    }

    #[test]
    fn what_a_child_writes_is_no_deadlock() {
        // Reads nothing before it has written more than a pipe holds.
        let mut stage = Stage::of("head -c 300000 /dev/zero; cat > $D/in", |_| {});
        stage.exec.out.lines = Lines::to(Target::Nowhere);
        let large = vec![b'x'; 300_000];
        let ran = stage.run(Some(&large), None);
        assert_eq!((ran.outcome, ran.received_bytes), (Outcome::Done, 300_000));
        assert_eq!(stage.file("in").len(), 300_000);
    }

    #[test]
    fn ends_are_told_apart() {
        let mut stage = Stage::of("read -r code; kill -$code $$ 2>/dev/null; exit $code", |_| {});
        let mut with = |text: &str| failed(stage.run(Some(text.as_bytes()), None));
        assert_eq!(with("65\n"), (Kind::Reject, End::Exit(65)));
        assert_eq!(with("75\n"), (Kind::Temporary, End::Exit(75)));
        assert_eq!(with("127\n"), (Kind::CannotRun(Exit::NotFound), End::Exit(127)));
        assert_eq!(with("9\n"), (Kind::Ordinary, End::Signal(9)));
    }

    #[test]
    fn a_background_process_delays_nothing() {
        let mut stage = Stage::of("sleep 30 & echo $! > $D/pid", |_| {});
        let began = Instant::now();
        assert_eq!(stage.run(Some(b"v"), None).outcome, Outcome::Done);
        assert!(began.elapsed() < Duration::from_secs(10));
        let pid: i32 = String::from_utf8(stage.file("pid")).unwrap().trim().parse().unwrap();
        // It is the user's own, and left alone.
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    }

    #[test]
    fn a_child_over_its_time_is_ended_with_its_group() {
        let script = "trap '' TERM; sleep 60 & echo $! > $D/pid; while :; do sleep 1; done";
        let mut stage = Stage::of(script, |config| config.timeout = Some(Duration::from_millis(300)));
        let began = Instant::now();
        assert_eq!(failed(stage.run(Some(b"v"), None)), (Kind::Ordinary, End::TimedOut));
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(2300) && took < Duration::from_secs(10), "{took:?}");
        let pid = String::from_utf8(stage.file("pid")).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        while state().is_ok_and(|stat| !stat.contains(") Z")) {
            assert!(began.elapsed() < Duration::from_secs(20), "the grandchild is gone");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn what_the_pool_ends_is_unfinished() {
        let mut stage = Stage::of("trap 'exit 0' TERM; while :; do sleep 0.05; done", |_| {});
        let ends = |term_ms, kill_ms| {
            Some(Ends { term_at: Duration::from_millis(term_ms), kill_at: Duration::from_millis(kill_ms) })
        };
        assert_eq!(stage.run(Some(b"v"), ends(200, 9_000)).outcome, Outcome::Unfinished);
        let mut deaf = Stage::of("trap '' TERM; while :; do sleep 0.05; done", |_| {});
        let began = Instant::now();
        assert_eq!(deaf.run(Some(b"v"), ends(100, 300)).outcome, Outcome::Unfinished);
        assert!(began.elapsed() < Duration::from_secs(5));
        // One that ends before is not asked twice.
        let mut quick = Stage::of("exit 65", |_| {});
        assert_eq!(failed(quick.run(Some(b"v"), ends(20_000, 30_000))), (Kind::Reject, End::Exit(65)));
    }

    #[test]
    fn arguments_environment_and_headers() {
        let script = r#"printf '<%s>' "$@" $KEYLANE_TOPIC $KEYLANE_KEY $KEYLANE_HEADER_H > $D/out; cat <&$KEYLANE_HEADERS_FD >> $D/out"#;
        let mut stage = Stage::of(script, |config| {
            config.replace = true;
            config.words.extend(["sh", "{}", "{key}@{offset}"].map(OsString::from));
        });
        assert_eq!(stage.run(Some(b"-a  'b'\n*"), None).outcome, Outcome::Done);
        assert_eq!(stage.file("out"), b"<-a  'b'\n*><k@0><orders><k><1>[[\"aA==\",\"MQ==\"]]");
        assert_eq!(failed(stage.run(Some(b"\0"), None)), (Kind::Reject, End::Answer));
    }

    #[test]
    fn a_child_cannot_spoil_the_pipes_for_the_next() {
        let Ok(stage) = std::process::Command::new("python3").arg("-c").arg("").status() else { return };
        assert!(stage.success());
        let mut stage = Stage::of("", |config| {
            let script = "import os,sys\nos.write(1, b'x' * 200000)\nos.set_blocking(1, False)";
            config.words = ["python3", "-c", script].map(OsString::from).to_vec();
        });
        stage.exec.out.lines = Lines::to(Target::Nowhere);
        for _ in 0..3 {
            let ran = stage.run(None, None);
            assert_eq!((ran.outcome, ran.received_bytes), (Outcome::Done, 200_000));
        }
    }
}
