//! Many connections to one cluster: who is asked over which connection, reconnects, metadata, coordinators.
//!
//! A request goes to a [`To`]: any broker, or a node for a purpose. Each (node, purpose) has a connection of its own,
//! so that no long poll and no pending JoinGroup stands in front of a heartbeat or a commit. Connections are made on
//! demand and again after a back-off with jitter. A request gets one [`NetEvent::Outcome`]; whether it is worth
//! another try is the sender's decision.
//!
//! The driver asks [`Net::poll_connect`] and [`Net::poll_close`], moves bytes, and reports what became of each socket.

mod known;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use self::known::Coordinator;
use crate::api::{Request, Response};
use crate::connection::{Answer, Connection};
use crate::error::{Error, Fault};
use crate::frame::BufferPool;
use crate::metadata::{Metadata, Recreated};

/// What a connection is for. Requests of different purposes never wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// Metadata, offsets, produce: answered at once.
    Main,
    /// Fetch long polls.
    Fetch,
    /// JoinGroup and SyncGroup, which the coordinator holds back.
    Join,
    /// All other requests to a coordinator: heartbeats and commits.
    Group,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum To {
    /// Whichever broker can be reached.
    Any,
    /// One broker.
    Node(i32, Purpose),
}

/// Names a connection to the driver. It stays the same when the connection is made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// Settings of all connections.
#[derive(Clone, Debug)]
pub struct NetConfig {
    /// Where to begin, in order.
    pub bootstrap: Vec<(String, u16)>,
    /// Kafka's `client.id`.
    pub client_id: String,
    /// Silence on a connection, while an answer is due, that fails it.
    pub request_timeout: Duration,
    /// First pause before a connection is made anew; it doubles.
    pub reconnect_backoff: Duration,
    /// Longest pause.
    pub reconnect_backoff_max: Duration,
    /// Metadata older than this is fetched again.
    pub metadata_age_max: Duration,
    /// Seed of the jitter.
    pub seed: u64,
}

/// Which topics the metadata is kept for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interest {
    /// These topics; none of them is created by asking.
    Topics(BTreeSet<String>),
    /// Every topic of the cluster.
    All,
}

/// What happened.
#[derive(Debug)]
pub enum NetEvent<T> {
    /// The outcome of a request.
    Outcome(T, Result<Response, Error>),
    /// The metadata was refreshed; with the topics that were made again.
    Metadata(Vec<Recreated>),
    /// A broker cannot be reached any more, or not yet.
    Down(String, String),
    /// A broker that could not be reached answers.
    Up(String),
}

enum Token<T> {
    Metadata { all: bool },
    Coordinator(String),
    User(T),
}

enum LinkState<T> {
    /// Nothing to do, or waiting until `not_before` to connect for what waits.
    Idle {
        not_before: Duration,
    },
    /// The driver was asked to connect, or is about to be.
    Connecting {
        asked: bool,
    },
    Up(Connection<Token<T>>),
}

struct Link<T> {
    to: To,
    state: LinkState<T>,
    /// Consecutive failures, for the back-off.
    failures: u32,
    /// Which bootstrap address is next.
    turn: usize,
    /// The address in use, for messages.
    address: String,
    waiting: Vec<(Request, Token<T>, Duration)>,
    /// To be connected though nothing waits, see [`Net::warm_up`].
    wanted: bool,
}

/// The connections to one cluster. `T` names a request to its sender.
pub struct Net<T> {
    config: NetConfig,
    links: BTreeMap<LinkId, Link<T>>,
    by_destination: HashMap<To, LinkId>,
    events: VecDeque<NetEvent<T>>,
    closing: VecDeque<LinkId>,
    /// Requests to nodes that are not known, and when their outcome is told.
    refused: VecDeque<(Duration, Token<T>, Error)>,
    pool: BufferPool,
    metadata: Metadata,
    interest: Interest,
    metadata_in_flight: bool,
    metadata_due: Option<Duration>,
    metadata_tried_at: Option<Duration>,
    metadata_failures: u32,
    /// How often in a row it was wanted again soon after it had come.
    metadata_streak: u32,
    coordinators: HashMap<String, Coordinator>,
    /// Addresses that are known to be down.
    down: BTreeSet<String>,
    last_error: Option<Error>,
    ever_up: bool,
    random: u64,
    answers: Vec<Answer<Token<T>>>,
}

/// A pause that doubles with each failure, with a jitter of ±20 %.
pub(crate) fn backoff(first: Duration, max: Duration, failures: u32, random: &mut u64) -> Duration {
    let exact = first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(max);
    // splitmix64: jitter needs no more than that.
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *random;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let share = 800 + (bits >> 33) % 401;
    exact * share as u32 / 1000
}

const METADATA_PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl<T> Net<T> {
    /// No connection is made before something is sent or metadata is wanted.
    pub fn new(config: NetConfig) -> Self {
        assert!(!config.bootstrap.is_empty(), "a bootstrap address is needed");
        let random = config.seed;
        Net {
            config,
            links: BTreeMap::new(),
            by_destination: HashMap::new(),
            events: VecDeque::new(),
            closing: VecDeque::new(),
            refused: VecDeque::new(),
            pool: BufferPool::default(),
            metadata: Metadata::default(),
            interest: Interest::Topics(BTreeSet::new()),
            metadata_in_flight: false,
            metadata_due: None,
            metadata_tried_at: None,
            metadata_failures: 0,
            metadata_streak: 0,
            coordinators: HashMap::new(),
            down: BTreeSet::new(),
            last_error: None,
            ever_up: false,
            random,
            answers: Vec::new(),
        }
    }

    /// What is known of the cluster.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// What is known of the cluster, to add what other answers tell.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Receive buffers and how many of their bytes are held.
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// The settings.
    pub fn config(&self) -> &NetConfig {
        &self.config
    }

    /// Whether any broker has answered so far.
    pub fn ever_up(&self) -> bool {
        self.ever_up
    }

    /// The newest failure of a connection.
    pub fn last_error(&self) -> Option<&Error> {
        self.last_error.as_ref()
    }

    /// Sends a request. `wait` is how long the broker may hold the answer back by the request's own terms.
    pub fn send(&mut self, to: To, request: impl Into<Request>, tag: T, wait: Duration, now: Duration) {
        self.send_token(to, request.into(), Token::User(tag), wait, now);
    }

    fn send_token(&mut self, to: To, request: Request, token: Token<T>, wait: Duration, now: Duration) {
        if let To::Node(node, _) = to
            && !self.metadata.brokers.contains_key(&node)
        {
            let error =
                Error::new(Fault::Disconnected(format!("node {node} is not in the cluster's metadata")));
            self.want_metadata(now);
            // Later, or a sender that tries again at once would spin.
            let error = error.at_api(request.api());
            return self.refused.push_back((now + METADATA_PAUSE, token, error));
        }
        let id = self.link_to(to);
        let Some(link) = self.links.get_mut(&id) else { unreachable!("link_to makes the link") };
        match &mut link.state {
            LinkState::Up(connection) => {
                if let Err((token, error)) = connection.send(request, token, wait, now) {
                    let broker = link.describe();
                    self.outcome(token, Err(error.at_broker(broker)), now);
                }
            }
            LinkState::Connecting { .. } => link.waiting.push((request, token, wait)),
            LinkState::Idle { not_before } => {
                if *not_before <= now {
                    link.state = LinkState::Connecting { asked: false };
                }
                link.waiting.push((request, token, wait));
            }
        }
    }

    /// Sends a Produce request that the broker never answers (acks=0). Returns false while there is no connection.
    pub fn send_unanswered(&mut self, to: To, request: Request) -> Result<bool, Error> {
        let id = self.link_to(to);
        match self.links.get_mut(&id).map(|link| &mut link.state) {
            Some(LinkState::Up(connection)) if connection.is_ready() => {
                connection.send_unanswered(request).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Whether a request to this destination would be sent at once, and not wait for a connection.
    pub fn is_ready(&self, to: To) -> bool {
        let link = self.by_destination.get(&to).and_then(|id| self.links.get(id));
        link.is_some_and(|link| matches!(&link.state, LinkState::Up(connection) if connection.is_ready()))
    }

    /// Opens the connection to a destination, after the back-off that is due, so that a request need not wait for it.
    /// Ask again if it fails.
    pub fn warm_up(&mut self, to: To, now: Duration) {
        if let To::Node(node, _) = to
            && !self.metadata.brokers.contains_key(&node)
        {
            return self.want_metadata(now);
        }
        let id = self.link_to(to);
        if let Some(link) = self.links.get_mut(&id)
            && let LinkState::Idle { not_before } = link.state
        {
            link.wanted = true;
            if not_before <= now {
                link.state = LinkState::Connecting { asked: false };
            }
        }
    }

    fn link_to(&mut self, to: To) -> LinkId {
        if let Some(id) = self.by_destination.get(&to) {
            return *id;
        }
        let id = LinkId(self.links.len() as u32);
        self.by_destination.insert(to, id);
        let link = Link {
            to,
            state: LinkState::Idle { not_before: Duration::ZERO },
            failures: 0,
            turn: 0,
            address: String::new(),
            waiting: Vec::new(),
            wanted: false,
        };
        self.links.insert(id, link);
        id
    }

    /// What happened next.
    pub fn next_event(&mut self) -> Option<NetEvent<T>> {
        self.events.pop_front()
    }

    fn outcome(&mut self, token: Token<T>, result: Result<Response, Error>, now: Duration) {
        match token {
            Token::User(tag) => self.events.push_back(NetEvent::Outcome(tag, result)),
            Token::Metadata { all } => self.metadata_outcome(all, result, now),
            Token::Coordinator(group) => self.coordinator_outcome(&group, result, now),
        }
    }

    // ---- what the driver calls ----

    /// The next connection to make: the driver resolves the host and tries all its addresses.
    pub fn poll_connect(&mut self) -> Option<(LinkId, String, u16)> {
        let mut waiting = self
            .links
            .iter()
            .filter(|(_, link)| matches!(link.state, LinkState::Connecting { asked: false }));
        let (id, (host, port)) = waiting.find_map(|(id, link)| Some((*id, self.address_of(link)?)))?;
        let link = self.links.get_mut(&id)?;
        link.address = show_address(&host, port);
        link.state = LinkState::Connecting { asked: true };
        Some((id, host, port))
    }

    /// Where a link leads now; none for a node that the cluster has not (any more): another broker in its place would
    /// be taken for it for ever.
    fn address_of(&self, link: &Link<T>) -> Option<(String, u16)> {
        match link.to {
            To::Any => {
                let candidates = self.candidates();
                candidates.get(link.turn % candidates.len()).cloned()
            }
            To::Node(node, _) => {
                let broker = self.metadata.brokers.get(&node)?;
                Some((broker.host.clone(), broker.port))
            }
        }
    }

    /// After new metadata: fails links to nodes that have moved, and what waits for a connection to one that is gone. A
    /// connection to a node that is only left out of the metadata goes on while it lasts.
    fn drop_moved_links(&mut self, now: Duration) {
        let mut moved = Vec::new();
        for (id, link) in &self.links {
            let To::Node(node, _) = link.to else { continue };
            let (is_open, is_wanted) = match &link.state {
                LinkState::Idle { .. } => (false, !link.waiting.is_empty() || link.wanted),
                LinkState::Connecting { asked } => (*asked, true),
                LinkState::Up(_) => (true, false),
            };
            let why = match self.address_of(link).map(|(host, port)| show_address(&host, port)) {
                Some(address) if is_open && address != link.address => {
                    format!("node {node} is at {address} now")
                }
                None if is_wanted => format!("node {node} is not in the cluster's metadata any more"),
                _ => continue,
            };
            moved.push((*id, is_open, why));
        }
        for (id, is_open, why) in moved {
            if is_open {
                self.closing.push_back(id);
            }
            self.fail_link(id, &Error::new(Fault::Disconnected(why)), now);
        }
    }

    /// Addresses at which any broker may be found: the bootstrap list, then all known brokers.
    fn candidates(&self) -> Vec<(String, u16)> {
        let mut all = self.config.bootstrap.clone();
        for broker in self.metadata.brokers.values() {
            let address = (broker.host.clone(), broker.port);
            if !all.contains(&address) {
                all.push(address);
            }
        }
        all
    }

    /// The next connection to close.
    pub fn poll_close(&mut self) -> Option<LinkId> {
        self.closing.pop_front()
    }

    /// The socket that was asked for last is connected. Nothing happens if the link has failed meanwhile: it is closed.
    pub fn on_connected(&mut self, id: LinkId, now: Duration) {
        let (client_id, silence) = (&self.config.client_id, self.config.request_timeout);
        let Some(link) = self.links.get_mut(&id) else { return };
        if !matches!(link.state, LinkState::Connecting { asked: true }) {
            return;
        }
        let mut connection = Connection::new(client_id, silence, self.pool.clone(), now);
        for (request, token, wait) in link.waiting.drain(..) {
            let held = connection.send(request, token, wait, now);
            assert!(held.is_ok(), "a new connection holds requests until its versions are known");
        }
        link.state = LinkState::Up(connection);
    }

    /// The socket could not be connected, or was lost; `why` is for a person.
    pub fn on_disconnected(&mut self, id: LinkId, why: &str, now: Duration) {
        self.fail_link(id, &Error::new(Fault::Disconnected(why.to_owned())), now);
    }

    /// Where bytes received on a link go; none if the link is not up.
    pub fn space(&mut self, id: LinkId) -> Option<&mut [u8]> {
        match &mut self.links.get_mut(&id)?.state {
            LinkState::Up(connection) => Some(connection.space()),
            _ => None,
        }
    }

    /// `count` bytes were received into [`Net::space`].
    pub fn received(&mut self, id: LinkId, count: usize, now: Duration) {
        let mut answers = std::mem::take(&mut self.answers);
        let Some(link) = self.links.get_mut(&id) else { return };
        let LinkState::Up(connection) = &mut link.state else { return };
        let result = connection.received(count, now, &mut answers);
        let broker = link.describe();
        for answer in answers.drain(..) {
            match answer {
                Answer::Ready => self.on_ready(id),
                Answer::Outcome(token, result) => {
                    let result = result.map_err(|error| error.at_broker(broker.clone()));
                    self.outcome(token, result, now);
                }
            }
        }
        self.answers = answers;
        if let Err(error) = result {
            self.closing.push_back(id);
            self.fail_link(id, &error, now);
        }
    }

    fn on_ready(&mut self, id: LinkId) {
        self.ever_up = true;
        let Some(link) = self.links.get_mut(&id) else { return };
        link.failures = 0;
        link.wanted = false;
        let address = link.address.clone();
        if self.down.remove(&address) {
            self.events.push_back(NetEvent::Up(address));
        }
    }

    /// Bytes to write on a link.
    pub fn outgoing(&self, id: LinkId) -> &[u8] {
        match self.links.get(&id).map(|link| &link.state) {
            Some(LinkState::Up(connection)) => connection.outgoing(),
            _ => &[],
        }
    }

    /// `count` bytes of [`Net::outgoing`] were written.
    pub fn written(&mut self, id: LinkId, count: usize) {
        if let Some(LinkState::Up(connection)) = self.links.get_mut(&id).map(|link| &mut link.state) {
            connection.written(count);
        }
    }

    /// All links that exist, for the driver to look for bytes to write.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.links.keys().copied()
    }

    /// When [`Net::on_timeout`] has something to do, or there is an event to be taken.
    pub fn deadline(&self) -> Option<Duration> {
        if !self.events.is_empty() {
            return Some(Duration::ZERO);
        }
        let links = self.links.values().filter_map(|link| match &link.state {
            LinkState::Idle { not_before } if !link.waiting.is_empty() || link.wanted => Some(*not_before),
            LinkState::Up(connection) => connection.deadline(),
            _ => None,
        });
        let metadata = self.metadata_due.filter(|_| !self.metadata_in_flight);
        let refused = self.refused.front().map(|(due, ..)| *due);
        links.chain(metadata).chain(refused).min()
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Duration) {
        let mut silent = Vec::new();
        for (id, link) in &mut self.links {
            match &mut link.state {
                LinkState::Idle { not_before }
                    if *not_before <= now && (!link.waiting.is_empty() || link.wanted) =>
                {
                    link.state = LinkState::Connecting { asked: false };
                }
                LinkState::Up(connection) if connection.deadline().is_some_and(|due| due <= now) => {
                    silent.push((*id, connection.silence()));
                }
                _ => {}
            }
        }
        while self.refused.front().is_some_and(|(due, ..)| *due <= now)
            && let Some((_, token, error)) = self.refused.pop_front()
        {
            self.outcome(token, Err(error), now);
        }
        for (id, error) in silent {
            self.closing.push_back(id);
            self.fail_link(id, &error, now);
        }
        if !self.metadata_in_flight && self.metadata_due.is_some_and(|due| due <= now) {
            self.send_metadata(now);
        }
    }

    fn fail_link(&mut self, id: LinkId, error: &Error, now: Duration) {
        let candidates = self.candidates().len();
        let Some(link) = self.links.get_mut(&id) else { return };
        let error = error.clone().at_broker(link.describe());
        let old = std::mem::replace(&mut link.state, LinkState::Idle { not_before: now });
        let mut failed: Vec<(Token<T>, Error)> = Vec::new();
        link.wanted = false;
        let was_idle = match old {
            LinkState::Up(connection) => {
                // A broker closes connections that were idle for long: nothing is wrong then.
                let idle = connection.is_ready()
                    && connection.pending_count() == 0
                    && matches!(error.fault, Fault::Disconnected(_));
                connection.fail(&error, |token, error| failed.push((token, error)));
                idle
            }
            _ => false,
        };
        for (request, token, _) in link.waiting.drain(..) {
            failed.push((token, error.clone().at_api(request.api())));
        }
        if !was_idle {
            link.turn += 1;
            link.failures += 1;
            // All bootstrap addresses are tried in turn before the first pause.
            let rounds = match link.to {
                To::Any if link.failures < candidates as u32 => 0,
                To::Any => link.failures / candidates as u32,
                To::Node(..) => link.failures,
            };
            if rounds > 0 {
                let (first, max) = (self.config.reconnect_backoff, self.config.reconnect_backoff_max);
                let pause = backoff(first, max, rounds, &mut self.random);
                link.state = LinkState::Idle { not_before: now + pause };
            }
            let address = link.address.clone();
            self.last_error = Some(error.clone());
            let elsewhere = self.links.values().any(|other| {
                other.address == address
                    && matches!(&other.state, LinkState::Up(connection) if connection.is_ready())
            });
            if !elsewhere && self.down.insert(address.clone()) {
                self.events.push_back(NetEvent::Down(address, error.fault.to_string()));
            }
            self.want_metadata(now);
        }
        for (token, error) in failed {
            self.outcome(token, Err(error), now);
        }
    }
}

impl<T> Link<T> {
    fn describe(&self) -> String {
        match self.to {
            To::Any => self.address.clone(),
            To::Node(node, _) => format!("{} (node {node})", self.address),
        }
    }
}

fn show_address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
