//! The worker threads of a handler that is a program. Each polls its bell beside what its children do.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use super::shared::{Failure, Shared, Want};
use super::threads::{Alarm, STACK_BYTES};
use super::tries::Try;
use super::worker::Next;
use crate::cli;
use crate::exit::Exit;
use crate::handler::bell::Bell;
use crate::handler::child;
use crate::handler::environment::About;
use crate::handler::exec::{Command, Exec, Ran, Watch};
use crate::handler::joblog::{Entry, Joblog};
use crate::handler::outcome::{End, Outcome};
use crate::handler::{CommandConfig, CommandMode};

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
pub(super) struct Crew {
    command: Arc<Command>,
    group: String,
    joblog: Option<Arc<Joblog>>,
}

impl Crew {
    /// Finds the program and opens the joblog.
    ///
    /// # Errors
    /// What ends the run before it begins, and why.
    pub(super) fn new(command: &CommandConfig, config: &cli::Consume) -> Result<Crew, (Exit, String)> {
        if matches!(command.mode, CommandMode::Pipe { .. } | CommandMode::Exec(Some(_))) {
            return Err((Exit::Usage, "--pipe and --batch are not built yet".to_owned()));
        }
        let open = |path: &PathBuf| {
            let failed = |error| (Exit::Output, format!("--joblog {}: {error}", path.display()));
            Joblog::open(path).map(Arc::new).map_err(failed)
        };
        Ok(Crew {
            command: Arc::new(Command::new(command)?),
            group: config.group.clone(),
            joblog: config.failing.joblog.as_ref().map(open).transpose()?,
        })
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
        child::make_room(u64::from(count) * DESCRIPTORS_PER_WORKER + DESCRIPTORS_OF_OTHERS);
        let Crew { command, group, joblog } = self;
        let workshop = Workshop { shared: shared.clone(), command, group, joblog };
        start(workers, count, move |worker, bell| workshop.work(worker, bell))
    }
}

/// A bell and four ends of pipes; while a child is started the ends of two more, and what waits for it.
const DESCRIPTORS_PER_WORKER: u64 = 10;
/// Brokers, files, signals.
const DESCRIPTORS_OF_OTHERS: u64 = 128;

/// What the workers of `--exec` share.
#[derive(Clone)]
struct Workshop {
    shared: Arc<Shared>,
    command: Arc<Command>,
    group: String,
    joblog: Option<Arc<Joblog>>,
}

impl Workshop {
    /// The work of one worker, until the run is over.
    fn work(&self, worker: u32, bell: &Bell) {
        let failure = match Exec::new(self.command.clone(), &self.group, worker) {
            Ok(mut exec) => self.work_with(&mut exec, worker, bell).err(),
            Err(error) => {
                Some(Failure::Handler(Exit::CannotRun, format!("no descriptors for the command: {error}")))
            }
        };
        if failure.is_some() {
            self.shared.settle(&mut Vec::new(), failure);
        }
    }

    fn work_with(&self, exec: &mut Exec, worker: u32, bell: &Bell) -> Result<(), Failure> {
        let want = Want { open: 0, tries_max: 1, records_max: 1 };
        let (mut tries, mut settled) = (Vec::new(), Vec::new());
        loop {
            match self.shared.take_tries(worker, want, &mut tries) {
                Next::Handle => {}
                Next::Wait => {
                    exec.wait(bell).map_err(Failure::Output)?;
                    continue;
                }
                Next::End => return Ok(()),
            }
            for tried in tries.drain(..) {
                let (outcome, failure) = match self.try_once(exec, &tried, bell) {
                    Ok(ran) => (ran.outcome, None),
                    Err(failure) => (Outcome::Unfinished, Some(failure)),
                };
                settled.push((tried, outcome));
                self.shared.settle(&mut settled, failure);
            }
        }
    }

    fn try_once(&self, exec: &mut Exec, tried: &Try, bell: &Bell) -> Result<Ran, Failure> {
        let first = tried.first();
        let record = crate::handler::parse(&first).map_err(Failure::Output)?;
        let batch = first.batch;
        let about = About { topic: &batch.topic, partition: batch.partition, attempt: tried.attempt };
        let watch = Watch { bell, now: &|| self.shared.now(), ends: &|| self.shared.ends_of(tried) };
        let Some(joblog) = &self.joblog else {
            return exec.run(about, &record, &watch).map_err(Failure::Output);
        };
        let (began, began_at) = (SystemTime::now(), self.shared.now());
        let ran = exec.run(about, &record, &watch).map_err(Failure::Output)?;
        let (exit, signal) = match ran.end {
            Some(End::Exit(code)) => (code, 0),
            Some(End::Signal(number)) => (-1, number),
            _ => (-1, 0),
        };
        let entry = Entry {
            place: (about.topic, about.partition, record.offset),
            began,
            ran: self.shared.now().saturating_sub(began_at),
            sent_bytes: ran.sent_bytes,
            received_bytes: ran.received_bytes,
            exit,
            signal,
            command: &exec.words(about, &record),
        };
        joblog.write(&entry).map_err(|error| {
            Failure::Handler(Exit::Output, format!("the joblog cannot be written: {error}"))
        })?;
        Ok(ran)
    }
}
