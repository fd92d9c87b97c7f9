//! The worker threads of a handler that is a program. Each polls its bell beside what its children do.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::shared::{Failure, Shared, Want};
use super::threads::{Alarm, STACK_BYTES};
use super::tries::Try;
use super::worker::Next;
use crate::cli;
use crate::exit::Exit;
use crate::handler::bell::Bell;
use crate::handler::child::{self, Program};
use crate::handler::environment::About;
use crate::handler::exec::{Command, Exec, Ran, Watch};
use crate::handler::format::Format;
use crate::handler::joblog::{Entry, Joblog};
use crate::handler::outcome::{End, Failed, Kind, Outcome};
use crate::handler::pipe::{self, Pipe};
use crate::handler::{BatchConfig, CommandConfig, CommandMode};
use crate::report::Report;

/// Starts workers that do `work`, each with its number and its bell, and makes them known in `workers`.
///
/// # Errors
/// The system gives no thread or no descriptor.
fn start(
    workers: &OnceLock<Vec<Alarm>>,
    count: u32,
    work: impl Fn(u32, &Bell) + Clone + Send + 'static,
) -> io::Result<Vec<JoinHandle<()>>> {
    let mut threads = Vec::new();
    let mut alarms = Vec::new();
    for worker in 0..count {
        let bell = Arc::new(Bell::new()?);
        alarms.push(Alarm::Ring(bell.clone()));
        let work = work.clone();
        let thread = thread::Builder::new()
            .name(format!("worker-{worker}"))
            .stack_size(STACK_BYTES)
            .spawn(move || work(worker, &bell))?;
        threads.push(thread);
    }
    let known = workers.set(alarms);
    assert!(known.is_ok(), "workers are started once");
    Ok(threads)
}

/// A handler that is a program, found and ready.
#[derive(Debug)]
pub(super) enum Crew {
    /// `--exec`.
    Exec(Workshop),
    /// `--pipe`.
    Pipe(Pipe),
}

impl Crew {
    /// Finds the program and opens the joblog.
    ///
    /// # Errors
    /// What ends the run before it begins, and why.
    pub(super) fn new(
        command: &CommandConfig,
        config: &cli::Consume,
        report: &Report,
    ) -> Result<Crew, (Exit, String)> {
        let open = |path: &PathBuf| {
            let failed = |error| (Exit::Output, format!("--joblog {}: {error}", path.display()));
            Joblog::open(path).map(Arc::new).map_err(failed)
        };
        let group = config.group.clone();
        let open_joblog = || config.failing.joblog.as_ref().map(open).transpose();
        match command.mode {
            CommandMode::Exec(batch) => {
                let command = Arc::new(Command::new(command)?);
                Ok(Crew::Exec(Workshop { command, batch, group, joblog: open_joblog()? }))
            }
            CommandMode::Pipe { depth } => Ok(Crew::Pipe(Pipe {
                program: Program::find(&command.words)?,
                group,
                depth,
                timeout: command.timeout,
                exits: command.exits.clone(),
                joblog: open_joblog()?,
                report: report.clone(),
            })),
        }
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// The system gives no thread or no descriptor.
    pub(super) fn start(
        self,
        shared: &Arc<Shared>,
        workers: &OnceLock<Vec<Alarm>>,
        count: u32,
    ) -> io::Result<Vec<JoinHandle<()>>> {
        child::keep_ends()?;
        child::make_room(u64::from(count) * DESCRIPTORS_PER_WORKER + DESCRIPTORS_OF_OTHERS);
        let (crew, shared) = (Arc::new(self), shared.clone());
        start(workers, count, move |number, bell| match &*crew {
            Crew::Exec(workshop) => work(workshop, &shared, number, bell),
            Crew::Pipe(pipe) => pipe::work(pipe, &shared, number, bell),
        })
    }
}

/// After a command that cannot be started for now: the system lacks memory or numbers for processes.
const START_REST: Duration = Duration::from_millis(100);
/// A bell, a pidfd and at most four ends of pipes; while a child is started the ends of two more, and what waits for
/// it.
const DESCRIPTORS_PER_WORKER: u64 = 10;
/// Brokers, files, signals.
const DESCRIPTORS_OF_OTHERS: u64 = 128;

/// What the workers of `--exec` share.
#[derive(Debug)]
pub(super) struct Workshop {
    command: Arc<Command>,
    batch: Option<BatchConfig>,
    group: String,
    joblog: Option<Arc<Joblog>>,
}

/// The work of worker `number` of `--exec`, until the run is over.
fn work(workshop: &Workshop, shared: &Shared, number: u32, bell: &Bell) {
    let failure = match Exec::new(workshop.command.clone(), &workshop.group, number) {
        Ok(exec) => Worker { workshop, shared, number, bell, exec }.run().err(),
        Err(error) => {
            Some(Failure::Handler(Exit::CannotRun, format!("no descriptors for the command: {error}")))
        }
    };
    if failure.is_some() {
        shared.settle(&mut Vec::new(), failure);
    }
}

struct Worker<'a> {
    workshop: &'a Workshop,
    shared: &'a Shared,
    number: u32,
    bell: &'a Bell,
    exec: Exec,
}

impl Worker<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        // By key a try begins with one record, and takes more of its lane.
        let batch = self.workshop.batch.filter(|batch| !batch.by_key);
        let records_max = batch.map_or(1, |batch| batch.records_max);
        let want = Want { open: 0, tries_max: 1, records_max, woken: true };
        let (mut tries, mut settled) = (Vec::new(), Vec::new());
        loop {
            match self.shared.take_tries(self.number, want, &mut tries) {
                Next::Handle => {}
                Next::Wait => {
                    self.wait(None)?;
                    continue;
                }
                Next::End => return Ok(()),
            }
            for mut tried in tries.drain(..) {
                let (outcome, failure) = match self.handle(&mut tried) {
                    Ok(outcome) => (outcome, None),
                    Err(failure) => (Outcome::Unfinished, Some(failure)),
                };
                let starts_none = matches!(
                    &outcome,
                    Outcome::Failed(Failed { kind: Kind::Temporary, end: End::Answer, .. })
                );
                settled.push((tried, outcome));
                self.shared.settle(&mut settled, failure);
                if starts_none {
                    // The next record would fare no better. Its own delay may be none.
                    self.wait(Some(START_REST))?;
                }
            }
        }
    }

    fn handle(&mut self, tried: &mut Try) -> Result<Outcome, Failure> {
        // One that was tried before is as it was.
        if let Some(batch) = self.workshop.batch.filter(|_| tried.attempt == 1) {
            self.gather(batch, tried)?;
            // That may have taken long.
            if !self.shared.may_begin(tried) {
                return Ok(Outcome::Unfinished);
            }
        }
        Ok(self.try_once(tried)?.outcome)
    }

    /// Fills a batch, as long as it may wait.
    fn gather(&mut self, batch: BatchConfig, tried: &mut Try) -> Result<(), Failure> {
        let until = self.shared.now() + batch.wait;
        loop {
            let left = until.saturating_sub(self.shared.now());
            // What is to be broken off soon is not to wait for more.
            let last = left.is_zero() || self.shared.ends_of(tried).is_some();
            if self.shared.top_up(self.number, tried, batch.records_max, batch.by_key, last) {
                return Ok(());
            }
            self.wait(Some(left))?;
        }
    }

    /// Waits. That nobody reads what a child left in the background prints is the end of the run, not of the worker,
    /// which the drain may need.
    fn wait(&mut self, limit: Option<Duration>) -> Result<(), Failure> {
        match self.exec.wait(self.bell, limit).map_err(Failure::Output) {
            Err(failure) if failure.drains() => {
                self.shared.settle(&mut Vec::new(), Some(failure));
                Ok(())
            }
            waited => waited,
        }
    }

    fn try_once(&mut self, tried: &Try) -> Result<Ran, Failure> {
        let Worker { workshop, shared, number, bell, exec } = self;
        let first = tried.first();
        let record = crate::handler::parse(&first).map_err(Failure::Output)?;
        let batch = first.batch;
        let about = About {
            topic: &batch.topic,
            partition: batch.partition,
            attempt: tried.attempt,
            batch_records: workshop.batch.map(|_| tried.len()),
        };
        let lines = workshop.batch.map(|_| lines_of(tried)).transpose().map_err(Failure::Output)?;
        let at_work = shared.at_work();
        let watch = Watch {
            bell,
            now: &|| shared.now(),
            ends: &|| shared.ends_of(tried),
            started: &|pid| at_work.begin(*number, tried, Some(pid), shared.now()),
        };
        let began_at = shared.now();
        let ran = exec.run(about, &record, lines.as_deref(), &watch);
        at_work.end(*number, shared.now());
        let ran = ran.map_err(Failure::Output)?;
        if let Some(joblog) = &workshop.joblog {
            let took = shared.now().saturating_sub(began_at);
            let command = exec.words(about, &record);
            log(joblog, tried, &ran, took, &command).map_err(|error| {
                Failure::Handler(Exit::Output, format!("the joblog cannot be written: {error}"))
            })?;
        }
        Ok(ran)
    }
}

/// The records of a batch as its child reads them: a JSON object a line.
fn lines_of(tried: &Try) -> io::Result<Vec<u8>> {
    let mut lines = Vec::new();
    for record in tried.records() {
        let parsed = crate::handler::parse(&record)?;
        Format::Json.render(&crate::handler::view(record.batch, &parsed), &mut lines);
    }
    Ok(lines)
}

/// A line for each record of a try. The bytes of a batch are with its first.
fn log(joblog: &Joblog, tried: &Try, ran: &Ran, took: Duration, command: &[u8]) -> io::Result<()> {
    let (exit, signal) = match ran.end {
        // It was ended before its time, and whoever reads this is not to take it for done.
        Some(End::Exit(0)) if !matches!(ran.outcome, Outcome::Done) => (-1, Signal::SIGTERM as i32),
        Some(End::Exit(code)) => (code, 0),
        Some(End::Signal(number)) => (-1, number),
        _ => (-1, 0),
    };
    for (index, record) in tried.records().enumerate() {
        let bytes = if index == 0 { (ran.sent_bytes, ran.received_bytes) } else { (0, 0) };
        joblog.write(&Entry {
            place: (&record.batch.topic, record.batch.partition, record.offset),
            began: joblog.now() - took,
            ran: took,
            sent_bytes: bytes.0,
            received_bytes: bytes.1,
            exit,
            signal,
            command,
        })?;
    }
    Ok(())
}
