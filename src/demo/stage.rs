//! The threads: the broker on one of its own, each role on another, and how they are stopped.
//!
//! What a role says is sent to the story. A role that ends, in whatever way, is heard of.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use mio::Waker;

use super::ledger::{Clerk, Hand, Ledger};
use super::plan::{self, Lines, Plan};
use super::story::{Heard, Role};
use crate::broker::cluster::Cluster;
use crate::broker::role::cluster_config;
use crate::cli::Verbosity;
use crate::driver::server::{Listeners, Server};
use crate::driver::signals::{Remote, Source};
use crate::exit::Exit;
use crate::pool::role::{self, Surroundings};
use crate::report::{Line, Report, Tap};
use crate::{lag, seed};

/// SIGINT, what Ctrl+C sends.
const STOP: i32 = 2;

struct Broker {
    thread: JoinHandle<io::Result<()>>,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

/// Everything that runs.
pub(super) struct Stage {
    broker: Broker,
    address: SocketAddr,
    pub(super) lines: Lines,
    pub(super) ledger: Arc<Ledger>,
    roles: BTreeMap<Role, (Remote, JoinHandle<()>)>,
    sender: Sender<Heard>,
}

impl Stage {
    /// Starts the broker, nothing else.
    ///
    /// # Errors
    /// The system gives no port, epoll or thread.
    pub(super) fn open(plan: &Plan, sender: Sender<Heard>, started: Instant) -> io::Result<Self> {
        let config = plan::broker();
        let listeners = Listeners::bind(config.listen, config.nodes).map_err(|(_, error)| error)?;
        let ports = listeners.ports();
        let address = SocketAddr::new(config.listen.ip(), ports.first().copied().unwrap_or_default());
        let server = Server::new(listeners, Cluster::new(cluster_config(&config, &ports)))?;
        let (stop, waker) = (Arc::new(AtomicBool::new(false)), server.waker());
        let (stopped, notices) = (stop.clone(), sender.clone());
        let thread = thread::Builder::new()
            .name("broker".to_owned())
            .spawn(move || serve(server, &stopped, &notices))?;
        let lines = Lines::new(plan, &address.to_string());
        Ok(Stage {
            broker: Broker { thread, stop, waker },
            address,
            ledger: Arc::new(Ledger::new(&lines.seed.config, started)),
            lines,
            roles: BTreeMap::new(),
            sender,
        })
    }

    /// Where the broker listens.
    pub(super) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Starts a role.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(&mut self, role: Role) -> io::Result<()> {
        let remote = Remote::default();
        let part = Part {
            role,
            report: Report::tapped(Verbosity::Normal, tap(role, self.sender.clone())),
            signals: Source::Remote(remote.clone()),
            ledger: self.ledger.clone(),
            lines: self.lines.clone(),
        };
        let ending = Ending { role, exit: Exit::Bug, sender: self.sender.clone() };
        let thread = thread::Builder::new().name(role.name().to_owned()).spawn(move || {
            let mut ending = ending;
            ending.exit = part.play();
        })?;
        self.roles.insert(role, (remote, thread));
        Ok(())
    }

    /// Stops a role as by Ctrl+C, or by another one.
    pub(super) fn stop(&self, role: Role) {
        if let Some((remote, _)) = self.roles.get(&role) {
            remote.signal(STOP);
        }
    }

    /// Ends the broker, and waits for every thread. One that does not end is left, and the story knows of it.
    ///
    /// # Errors
    /// The broker's loop failed.
    pub(super) fn close(self, all_ended: bool) -> io::Result<()> {
        for (_, thread) in self.roles.into_values() {
            if all_ended || thread.is_finished() {
                // What it ended with was heard, a panic too.
                let _ = thread.join();
            }
        }
        self.broker.stop.store(true, Ordering::Release);
        let _ = self.broker.waker.wake();
        match self.broker.thread.join() {
            Ok(ended) => ended,
            Err(_) => Err(io::Error::other("the broker has panicked")),
        }
    }
}

fn serve(mut server: Server, stop: &AtomicBool, notices: &Sender<Heard>) -> io::Result<()> {
    while !stop.load(Ordering::Acquire) {
        server.turn()?;
        while let Some(notice) = server.cluster().next_notice() {
            // Nobody listens any more at the end.
            let _ = notices.send(Heard::Broker(notice));
        }
    }
    Ok(())
}

fn tap(role: Role, sender: Sender<Heard>) -> Tap {
    Tap::new(move |line: &Line<'_>| {
        let fields = line.fields.iter().map(|(name, value)| (*name, value.clone())).collect();
        let (kind, text) = (line.kind.to_owned(), line.text.to_owned());
        let _ = sender.send(Heard::Line { role, kind, text, fields });
    })
}

/// Tells of a role's end when it is dropped.
struct Ending {
    role: Role,
    exit: Exit,
    sender: Sender<Heard>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.sender.send(Heard::Ended(self.role, self.exit));
    }
}

/// A role and what it is run in.
struct Part {
    role: Role,
    report: Report,
    signals: Source,
    ledger: Arc<Ledger>,
    lines: Lines,
}

impl Part {
    fn play(self) -> Exit {
        let ended = match self.role {
            Role::Seed => Ok(seed::run(&self.lines.seed.config, &self.report, &self.signals)),
            Role::Lag => Ok(lag::run(&self.lines.lag.config, &self.report, &self.signals)),
            Role::Sequential => role::sequential(&self.lines.sequential.config, &self.around(Hand::One)),
            Role::Pool => role::pool(&self.lines.pool.config, &self.around(Hand::Pool)),
        };
        ended.unwrap_or_else(|error| {
            self.report.error(format!("the system refuses what keylane needs: {error}"));
            Exit::Bug
        })
    }

    fn around(&self, hand: Hand) -> Surroundings {
        Surroundings {
            report: self.report.clone(),
            signals: self.signals.clone(),
            observer: Some(Arc::new(Clerk { ledger: self.ledger.clone(), hand })),
        }
    }
}
