//! A worker of `--pipe`: it takes records, feeds its child and takes the child's answers, all in one wait.
//!
//! Guarantees: neither pipe is waited for alone, so there is no deadlock whichever side stops reading; a child that is
//! slow to read is given no further record once the lease is over; what a child has open gets its outcomes only when
//! the child is reaped, so no key is worked on twice at once; a child that comes to nothing is not started again and
//! again without a rest.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::Signal;

use super::process::{Process, Taken, fd_or};
use super::session::{Fate, Session, Settled};
use crate::exit::Exit;
use crate::handler::bell::Bell;
use crate::handler::child::{Program, spawn_failed, wait_for};
use crate::handler::environment::Base;
use crate::handler::format;
use crate::handler::joblog::{Entry, Joblog};
use crate::handler::lines::{Lines, Target};
use crate::handler::outcome::{End, ExitCodes, Failed, Kind, Outcome};
use crate::handler::{parse, view};
use crate::pool::shared::{Failure, KILL_AFTER, Shared, Want};
use crate::pool::tries::Try;
use crate::pool::worker::Next;
use crate::report::Report;

/// What all workers of a `--pipe` share.
#[derive(Debug)]
pub struct Pipe {
    /// What is run.
    pub program: Program,
    /// For `KEYLANE_GROUP`.
    pub group: String,
    /// `--pipe-depth`, not 0.
    pub depth: usize,
    /// `--timeout`.
    pub timeout: Option<Duration>,
    /// What its exit codes mean.
    pub exits: ExitCodes,
    /// `--joblog`.
    pub joblog: Option<Arc<Joblog>>,
    /// Where it is said that a child ended.
    pub report: Report,
}

/// Works until the run is over. What the child prints on stderr goes to ours.
pub fn work(pipe: &Pipe, shared: &Shared, number: u32, bell: &Bell) {
    let mut worker = Worker {
        pipe,
        shared,
        number,
        bell,
        environment: Base::of_process(&pipe.group, number),
        command: pipe.program.words().iter().map(|word| word.to_bytes()).collect::<Vec<_>>().join(&b' '),
        session: Session::new(pipe.depth, pipe.timeout),
        process: None,
        ending: None,
        stderr: Lines::to(Target::Stderr),
        buffer: vec![0; READ_BYTES],
        taken: Vec::new(),
        over: Vec::new(),
        settled: Vec::new(),
        failure: None,
        is_rung: false,
        is_finishing: false,
        idle_deaths: 0,
        rest_until: Duration::ZERO,
    };
    worker.run();
}

/// Read at once. Answers are short; stderr has no hurry.
const READ_BYTES: usize = 64 << 10;
/// A child that closed a pipe may be about to end by itself, and its exit code says more than the pipe does.
const CLOSED_WAIT: Duration = Duration::from_secs(1);
/// A child that lived for longer did not end because it cannot begin.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// The rest before the second start in a row; it doubles from start to start.
const REST: Duration = Duration::from_millis(100);
/// The longest rest.
const REST_MAX: Duration = Duration::from_secs(5);

/// A child that is to end.
#[derive(Debug)]
struct Ending {
    fate: Fate,
    term_at: Duration,
    kill_at: Duration,
    is_termed: bool,
    is_killed: bool,
}

struct Worker<'a> {
    pipe: &'a Pipe,
    shared: &'a Shared,
    number: u32,
    bell: &'a Bell,
    environment: Base,
    command: Vec<u8>,
    session: Session<Try>,
    process: Option<Process>,
    /// Only with a process.
    ending: Option<Ending>,
    stderr: Lines,
    buffer: Vec<u8>,
    taken: Vec<Try>,
    /// On their way to `settled`.
    over: Vec<Settled<Try>>,
    settled: Vec<(Try, Outcome)>,
    failure: Option<Failure>,
    /// The bell was rung since the last take.
    is_rung: bool,
    /// The run is over: the child is to end.
    is_finishing: bool,
    /// Children in a row that ended soon and without an answer.
    idle_deaths: u32,
    rest_until: Duration,
}

impl Worker<'_> {
    fn run(&mut self) {
        let mut freed = false;
        loop {
            let now = self.shared.now();
            self.take(now, freed);
            if self.is_finishing && self.process.is_none() && self.session.open_records() == 0 {
                return;
            }
            self.start(now);
            self.write(now);
            self.settle(now);
            self.show();
            let ready = self.wait(now);
            let now = self.shared.now();
            self.read(ready, now);
            self.advance(now);
            freed = self.settle(now);
        }
    }

    // ---- Records ----

    /// Takes what there is room for. `freed` = lanes have become ready by what was settled.
    fn take(&mut self, now: Duration, freed: bool) {
        let is_rung = std::mem::take(&mut self.is_rung);
        let mut woken = is_rung;
        let mut took = 0;
        let can_start = !self.is_finishing && self.ending.is_none() && self.rest_until <= now;
        while can_start && self.session.room() > 0 {
            let open = self.session.open_records();
            let want = Want { open, tries_max: self.session.room(), records_max: 1, woken };
            match self.shared.take_tries(self.number, want, &mut self.taken) {
                Next::Handle => {
                    took += self.taken.len();
                    // Read anew: the record before one of these may have ended while the lock was waited for, and
                    // they must not seem to have begun before that.
                    let began = self.shared.now();
                    for tried in self.taken.drain(..) {
                        let alone = tried.alone;
                        self.session.open(tried, alone, began);
                    }
                }
                // It is on the list of those that have room.
                Next::Wait => break,
                Next::End => {
                    self.is_finishing = true;
                    self.finish();
                    break;
                }
            }
            woken = false;
        }
        // Ends that change ring the bell.
        let newest = if is_rung || self.is_finishing { usize::MAX } else { took };
        if newest > 0 {
            let session = &mut self.session;
            self.shared.with_ends(|ends_of| session.look_at_ends(newest, |tried| ends_of(tried)));
        }
        if self.is_finishing && woken {
            self.finish();
        }
        if (freed || woken) && !self.is_finishing {
            // What cannot be taken here is for others, who may all be waiting.
            self.shared.leave_to_others(!can_start);
        }
    }

    /// Tells those who ask what the child is at.
    fn show(&self) {
        let pid = self.process.as_ref().map(|process| process.child.pid().unsigned_abs());
        self.shared.at_work().hold(self.number, self.session.oldest(), self.session.open_records(), pid);
    }

    /// Passes outcomes on; returns whether there were any.
    fn settle(&mut self, now: Duration) -> bool {
        if self.over.is_empty() && self.failure.is_none() {
            return false;
        }
        // What is settled is not to be shown any more.
        self.show();
        let answered = self.over.iter().filter(|settled| !matches!(settled.outcome, Outcome::Unfinished));
        let took = answered.map(|settled| now.saturating_sub(settled.began));
        self.shared.at_work().observe(self.number, took);
        for settled in self.over.drain(..) {
            if let Some(joblog) = &self.pipe.joblog
                && let Err(error) = log(joblog, &settled, &self.command, now)
            {
                let text = format!("writing the joblog failed: {error}");
                self.failure.get_or_insert(Failure::Handler(Exit::Output, text));
            }
            self.settled.push((settled.item, settled.outcome));
        }
        if matches!(self.failure, Some(Failure::Handler(Exit::Output, _))) {
            // What has no line in the joblog is not acknowledged.
            self.settled.iter_mut().for_each(|(_, outcome)| *outcome = Outcome::Unfinished);
        }
        self.shared.settle(&mut self.settled, self.failure.take());
        true
    }

    // ---- The child ----

    /// Starts a child, if there is something for it.
    fn start(&mut self, now: Duration) {
        if self.process.is_some() || self.session.open_records() == 0 || self.is_finishing {
            if self.process.is_none() {
                self.session.end(&Fate::Ended, 0, &self.pipe.exits, now, &mut self.over);
            }
            return;
        }
        match Process::start(&self.pipe.program, &self.environment.without_record(), now) {
            Ok(process) => self.process = Some(process),
            Err(error) => self.on_start_failed(&error, now),
        }
    }

    fn on_start_failed(&mut self, error: &io::Error, now: Duration) {
        let failed = spawn_failed(error);
        let begin = self.over.len();
        self.session.end(&Fate::Ended, 0, &self.pipe.exits, now, &mut self.over);
        match failed.kind {
            Kind::Temporary => {
                for settled in &mut self.over[begin..] {
                    settled.outcome = Outcome::Failed(failed.clone());
                }
                self.rest(now);
            }
            Kind::CannotRun(exit) => self.failure = Some(Failure::Handler(exit, failed.reason)),
            // The arguments are the same for every record: no record is to blame.
            _ => self.failure = Some(Failure::Handler(Exit::CannotRun, failed.reason)),
        }
    }

    fn rest(&mut self, now: Duration) {
        let doublings = self.idle_deaths.saturating_sub(1).min(16);
        let rest = if self.idle_deaths == 0 { Duration::ZERO } else { REST.saturating_mul(1 << doublings) };
        self.rest_until = now + rest.min(REST_MAX);
        self.idle_deaths = self.idle_deaths.saturating_add(1);
    }

    /// Feeds the child.
    fn write(&mut self, now: Duration) {
        let Some(process) = &mut self.process else { return };
        if self.ending.is_some() {
            return;
        }
        if !self.shared.may_start() {
            self.session.withdraw(now, &mut self.over);
        }
        loop {
            let failure = &mut self.failure;
            self.session.fill(|id, tried, out| render(id, tried, out, failure));
            let out = self.session.out();
            if out.is_empty() {
                return;
            }
            let wanted = out.len();
            match process.write(out) {
                Ok(written) => {
                    self.session.wrote(written);
                    if written < wanted {
                        return;
                    }
                }
                Err(_) => return self.on_stdin_closed(now),
            }
        }
    }

    /// The child reads no more.
    fn on_stdin_closed(&mut self, now: Duration) {
        let Some(process) = self.process.as_mut().filter(|process| process.stdin.is_some()) else { return };
        process.close_stdin();
        let fate = match self.session.close_input(process.unread_bytes(), &mut self.over) {
            Ok(()) if !self.session.is_spent() => return,
            Ok(()) => Fate::Ended,
            Err(text) => Fate::Broken(text),
        };
        self.end_child(fate, now + CLOSED_WAIT, now + CLOSED_WAIT + KILL_AFTER);
    }

    /// Waits for something to happen.
    fn wait(&mut self, now: Duration) -> Ready {
        let limit = self.deadline(now).map(|at| at.saturating_sub(now));
        let silent = self.bell.as_fd();
        let bell = PollFd::new(silent, PollFlags::POLLIN);
        let Some(process) = &self.process else {
            let mut fds = [bell];
            // A poll that fails has nothing to tell, and the next one comes at once.
            return Ready { bell: wait_for(&mut fds, limit).unwrap_or(false), ..Ready::default() };
        };
        let stdin = process.stdin.as_ref();
        // That nobody reads there any more is told in any case.
        let writable = if self.session.out().is_empty() { PollFlags::empty() } else { PollFlags::POLLOUT };
        let writable = if stdin.is_some() { writable } else { PollFlags::empty() };
        let mut fds = [
            bell,
            PollFd::new(process.child.as_fd(), PollFlags::POLLIN),
            PollFd::new(fd_or(process.stdout.as_ref(), silent), PollFlags::POLLIN),
            PollFd::new(fd_or(process.stderr.as_ref(), silent), PollFlags::POLLIN),
            PollFd::new(fd_or(stdin, silent), writable),
        ];
        if !wait_for(&mut fds, limit).unwrap_or(false) {
            return Ready::default();
        }
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        Ready {
            bell: is_ready(&fds[0]),
            child: is_ready(&fds[1]),
            stdout: is_ready(&fds[2]),
            stderr: is_ready(&fds[3]),
            closed: stdin.is_some()
                && fds[4].revents().is_some_and(|events| events.contains(PollFlags::POLLERR)),
        }
    }

    fn deadline(&self, now: Duration) -> Option<Duration> {
        let (term_at, kill_at) = self.session.ends();
        match &self.ending {
            _ if self.process.is_none() => {
                (!self.is_finishing).then_some(self.rest_until).filter(|at| *at > now)
            }
            None => [self.session.deadline(), term_at, kill_at].into_iter().flatten().min(),
            Some(ending) if ending.is_killed => None,
            Some(ending) if ending.is_termed => Some(ending.kill_at.min(kill_at.unwrap_or(Duration::MAX))),
            Some(ending) => Some(ending.term_at.min(kill_at.unwrap_or(Duration::MAX))),
        }
    }

    /// Takes what the child printed, and its end.
    fn read(&mut self, ready: Ready, now: Duration) {
        if ready.bell {
            self.bell.clear();
            self.is_rung = true;
        }
        if ready.stdout {
            self.read_answers(now);
        }
        if ready.stderr {
            self.pass_stderr();
        }
        if ready.child {
            self.reap(now);
        } else if ready.closed {
            self.on_stdin_closed(now);
        }
    }

    fn read_answers(&mut self, now: Duration) {
        let Some(process) = &mut self.process else { return };
        loop {
            let taken = process.read_stdout(&mut self.buffer);
            let is_trusted =
                !matches!(self.ending, Some(Ending { fate: Fate::Broken(_), is_termed: true, .. }));
            match taken {
                Taken::Bytes(bytes) => {
                    if is_trusted
                        && let Err(text) = self.session.read(&self.buffer[..bytes], now, &mut self.over)
                    {
                        return self.end_child(Fate::Broken(text), now, now + KILL_AFTER);
                    }
                    if bytes < self.buffer.len() {
                        return;
                    }
                }
                Taken::Nothing => return,
                Taken::End => {
                    if self.ending.is_none() {
                        let fate = Fate::Broken("the child closed its stdout".to_owned());
                        self.end_child(fate, now + CLOSED_WAIT, now + CLOSED_WAIT + KILL_AFTER);
                    }
                    return;
                }
            }
        }
    }

    fn pass_stderr(&mut self) {
        let Some(process) = &mut self.process else { return };
        if let Taken::Bytes(bytes) = process.read_stderr(&mut self.buffer) {
            // There is nobody to tell when stderr is gone.
            let _ = self.stderr.pass(&self.buffer[..bytes], b"");
        }
    }

    // ---- The end of a child ----

    /// The child is to end: it gets nothing more, TERM and KILL when it is time.
    fn end_child(&mut self, fate: Fate, term_at: Duration, kill_at: Duration) {
        if let Some(process) = &mut self.process {
            process.close_stdin();
            self.ending = Some(Ending { fate, term_at, kill_at, is_termed: false, is_killed: false });
        }
    }

    /// The run is over, and nothing is open or what is open is to be broken off.
    fn finish(&mut self) {
        if self.session.open_records() > 0 {
            return;
        }
        let ends = self.shared.last_ends();
        match &mut self.ending {
            None => self.end_child(Fate::Ended, ends.term_at, ends.kill_at),
            Some(ending) => {
                ending.term_at = ending.term_at.min(ends.term_at);
                ending.kill_at = ending.kill_at.min(ends.kill_at);
            }
        }
    }

    /// Does what is due.
    fn advance(&mut self, now: Duration) {
        if self.process.is_none() {
            return;
        }
        let (term_at, kill_at) = self.session.ends();
        match &mut self.ending {
            None if self.session.is_late(now) => self.end_child(Fate::TimedOut, now, now + KILL_AFTER),
            None if [term_at, kill_at].into_iter().flatten().any(|at| at <= now) => {
                self.end_child(Fate::Ended, now, kill_at.unwrap_or(now));
            }
            None if self.session.is_spent() => {
                self.end_child(Fate::Ended, now + CLOSED_WAIT, now + CLOSED_WAIT + KILL_AFTER);
            }
            None => {}
            Some(ending) => ending.kill_at = ending.kill_at.min(kill_at.unwrap_or(Duration::MAX)),
        }
        self.advance_ending(now);
    }

    fn advance_ending(&mut self, now: Duration) {
        let (Some(process), Some(ending)) = (&self.process, &mut self.ending) else { return };
        if ending.kill_at <= now && !ending.is_killed {
            (ending.is_termed, ending.is_killed) = (true, true);
            process.child.signal_group(Signal::SIGKILL);
        } else if ending.term_at <= now && !ending.is_termed {
            ending.is_termed = true;
            process.child.signal_group(Signal::SIGTERM);
        }
    }

    /// The child has ended.
    fn reap(&mut self, now: Duration) {
        let Some(process) = &mut self.process else { return };
        if self.session.open_records() > 0 || self.ending.is_some() {
            // What it has started may be at work on its records, and holds its pipes.
            process.child.signal_group(Signal::SIGKILL);
        }
        let end = match process.child.try_wait() {
            Ok(None) => return,
            Ok(Some(end)) => end,
            // Somebody else has reaped it: how it ended is not known.
            Err(_) => End::Answer,
        };
        self.read_answers(now);
        self.pass_stderr();
        let _ = self.stderr.end(b"");
        let ending = self.ending.take();
        let fate = match ending {
            Some(Ending { fate, is_termed: true, .. }) => fate,
            // It was not asked to, or not yet.
            Some(Ending { fate: Fate::Ended, .. }) => Fate::Ended,
            _ => Fate::Died(end),
        };
        let Some(process) = self.process.take() else { return };
        self.on_ended(fate, &process, now);
    }

    /// What the end of a child means for what it had, and for the next.
    fn on_ended(&mut self, fate: Fate, process: &Process, now: Duration) {
        let (lived, unread) = (now.saturating_sub(process.started), process.unread_bytes());
        if self.session.answers() > 0 || lived >= SHORT_LIFE || fate == Fate::Ended {
            self.idle_deaths = 0;
        } else {
            self.rest(now);
        }
        let open = self.session.open_records();
        let begin = self.over.len();
        if let Fate::Died(End::Exit(code)) = fate
            && let Some(Kind::CannotRun(exit)) = self.pipe.exits.kind(code)
        {
            self.failure = Some(Failure::Handler(exit, format!("the child exited with {code}")));
            return self.session.end(&Fate::Ended, 0, &self.pipe.exits, now, &mut self.over);
        }
        self.session.end(&fate, unread, &self.pipe.exits, now, &mut self.over);
        let is_said = match &fate {
            Fate::Broken(_) => true,
            Fate::Died(End::Exit(0)) => open > 0,
            Fate::Died(_) => true,
            Fate::TimedOut | Fate::Ended => false,
        };
        if is_said && !self.is_finishing {
            self.say_end(&fate, begin);
        }
    }

    /// Says how a child ended, and what it had.
    fn say_end(&self, fate: &Fate, begin: usize) {
        let how = match fate {
            Fate::Broken(text) => text.clone(),
            Fate::Died(End::Exit(code)) => format!("the child exited with {code}"),
            Fate::Died(End::Signal(number)) => format!("the child was ended by signal {number}"),
            _ => "the child ended".to_owned(),
        };
        let failed: Vec<&Settled<Try>> = self.over[begin..]
            .iter()
            .filter(|settled| matches!(settled.outcome, Outcome::Failed(_)))
            .collect();
        let had = match failed.as_slice() {
            [] => String::new(),
            [one] => format!("; it had {} open", one.item.name()),
            several => format!("; {} records that it had open are tried again one by one", several.len()),
        };
        self.pipe.report.warning(format!("worker {}: {how}{had}", self.number));
    }
}

/// What has something to tell.
#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    bell: bool,
    child: bool,
    stdout: bool,
    stderr: bool,
    /// The child reads no more.
    closed: bool,
}

/// Appends the record's line. One that cannot be read is the end of the run.
fn render(id: u64, tried: &Try, out: &mut Vec<u8>, failure: &mut Option<Failure>) {
    let record = tried.first();
    match parse(&record) {
        Ok(parsed) => {
            format::json(&view(record.batch, &parsed), Some(id), out);
            out.push(b'\n');
        }
        Err(error) => {
            failure.get_or_insert(Failure::Output(error));
        }
    }
}

/// Writes the joblog's line of a try that came to something.
fn log(joblog: &Joblog, settled: &Settled<Try>, command: &[u8], now: Duration) -> io::Result<()> {
    let (exit, signal) = match &settled.outcome {
        Outcome::Done => (0, 0),
        Outcome::Unfinished => return Ok(()),
        Outcome::Failed(Failed { kind: Kind::Reject, end: End::Answer, .. }) => (65, 0),
        Outcome::Failed(Failed { kind: Kind::Temporary, end: End::Answer, .. }) => (75, 0),
        Outcome::Failed(failed) => match failed.end {
            // It ended well, but for the record that it owed an answer for.
            End::Exit(0) => (-1, 0),
            End::Exit(code) => (code, 0),
            End::Signal(number) => (-1, number),
            End::TimedOut => (-1, Signal::SIGKILL as i32),
            End::Answer => (-1, 0),
        },
    };
    let record = settled.item.first();
    let ran = now.saturating_sub(settled.began);
    joblog.write(&Entry {
        place: (&record.batch.topic, record.batch.partition, record.offset),
        began: joblog.now() - ran,
        ran,
        sent_bytes: settled.sent_bytes,
        received_bytes: settled.received_bytes,
        exit,
        signal,
        command,
    })
}
