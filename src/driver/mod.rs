//! The mio loop that moves bytes between sockets and a [`Net`]: the only clock and the only sockets of keylane.
//!
//! mio's events are hints on edges, so every ready socket is read until it would block, and a write that would block
//! waits for the next event. Timers are looked at on every pass, whether events came or not: a busy socket never
//! starves a heartbeat. Names are resolved on a thread of their own, and all addresses of a name are tried in turn.

mod clients;
pub mod clock;
mod resolver;
#[cfg(feature = "broker")]
pub mod server;
pub mod signals;

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use keylane_protocol::client::net::{LinkId, Net};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};
use rustix::net::sockopt;

use clock::Instant;
use resolver::{Question, Resolver};

const WAKE: Token = Token(0);
/// An address that does not answer a connection attempt for this long is given up for the next one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection on which nothing has come for so long is asked whether it is still there,
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
/// again after this,
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
/// and is lost when so many times there was no answer.
const KEEPALIVE_COUNT: u32 = 3;

struct Socket {
    link: LinkId,
    stream: TcpStream,
    address: SocketAddr,
    connected: bool,
    /// Whether the last write was taken whole.
    writable: bool,
    /// Addresses of the same name that are still to be tried.
    rest: Vec<SocketAddr>,
    /// Why those before it failed; empty if it is the first.
    failed: String,
    give_up_at: Duration,
}

/// What a role's client is to the driver.
pub trait Client {
    /// How the client names its requests.
    type Tag;
    /// Its connections.
    fn net(&mut self) -> &mut Net<Self::Tag>;
    /// Takes what the connections brought and sends what is due.
    fn poll(&mut self, now: Duration);
    /// When [`Client::poll`] has something to do though nothing was received.
    fn deadline(&self) -> Option<Duration>;
}

/// The loop.
pub struct Driver {
    poll: Poll,
    events: Events,
    started: Instant,
    sockets: HashMap<Token, Socket>,
    by_link: HashMap<LinkId, Token>,
    token: usize,
    resolver: Resolver,
    /// Links whose name is being looked up. An answer that comes when its link has moved on is for nobody: the
    /// connection that the link may have by then has requests under way.
    asked: HashMap<LinkId, Question>,
    waker: Arc<Waker>,
}

impl Driver {
    /// A loop without sockets.
    ///
    /// # Errors
    /// The system gives no epoll or event descriptor.
    pub fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        Ok(Driver {
            events: Events::with_capacity(256),
            started: Instant::now(),
            sockets: HashMap::new(),
            by_link: HashMap::new(),
            token: WAKE.0,
            resolver: Resolver::new(waker.clone()),
            asked: HashMap::new(),
            waker,
            poll,
        })
    }

    /// Ends the wait of [`Driver::turn`] from another thread.
    pub fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    /// Time since the driver began.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The instant from which [`Driver::now`] counts, for threads that compare with it.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// One pass: the client's timers and requests, then bytes in both directions, waiting until `deadline` at most.
    ///
    /// # Errors
    /// epoll itself failed. What goes wrong with a connection is told to the client instead.
    pub fn turn<C: Client>(&mut self, client: &mut C, deadline: Option<Duration>) -> io::Result<()> {
        let now = self.now();
        client.net().on_timeout(now);
        client.poll(now);
        self.open_and_close(client.net(), now);
        let due = [client.net().deadline(), client.deadline(), deadline, self.connect_deadline()];
        let wait = due.into_iter().flatten().min().map(|due| due.saturating_sub(self.now()));
        match self.poll.poll(&mut self.events, wait) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        let now = self.now();
        let ready: Vec<(Token, bool, bool)> = self
            .events
            .iter()
            .map(|event| {
                let closed = event.is_error() || event.is_read_closed() || event.is_write_closed();
                (event.token(), event.is_readable() || closed, event.is_writable() || closed)
            })
            .collect();
        for (token, readable, writable) in ready {
            self.on_ready(client.net(), token, readable, writable, now);
        }
        self.take_names(client.net(), now);
        self.give_up_connecting(client.net(), now);
        client.poll(now);
        self.open_and_close(client.net(), now);
        Ok(())
    }

    fn connect_deadline(&self) -> Option<Duration> {
        self.sockets.values().filter(|socket| !socket.connected).map(|socket| socket.give_up_at).min()
    }

    /// Makes and closes the connections that the client asked for, and writes what is there to write.
    fn open_and_close<T>(&mut self, net: &mut Net<T>, now: Duration) {
        // First, for a link that failed may be wanted again already: its new socket is not the one to close.
        while let Some(link) = net.poll_close() {
            self.asked.remove(&link);
            self.drop_socket(link);
        }
        while let Some((link, host, port)) = net.poll_connect() {
            match resolver::numeric(&host, port) {
                Some(addresses) => {
                    self.asked.remove(&link);
                    self.connect(net, link, addresses, String::new(), now);
                }
                None => {
                    let question = self.resolver.ask(link, host, port);
                    self.asked.insert(link, question);
                }
            }
        }
        let links: Vec<LinkId> = self.by_link.keys().copied().collect();
        for link in links {
            if !net.outgoing(link).is_empty() {
                self.write(net, link, now);
            }
        }
    }

    fn take_names<T>(&mut self, net: &mut Net<T>, now: Duration) {
        while let Some(answer) = self.resolver.take() {
            if self.asked.get(&answer.link) != Some(&answer.question) {
                continue;
            }
            self.asked.remove(&answer.link);
            match answer.addresses {
                Ok(addresses) if addresses.is_empty() => {
                    net.on_disconnected(answer.link, "the name has no address", now);
                }
                Ok(addresses) => self.connect(net, answer.link, addresses, String::new(), now),
                Err(why) => net.on_disconnected(answer.link, &why, now),
            }
        }
    }

    /// Tries the first of the addresses; the others follow if it fails. `failed` says why those before did.
    fn connect<T>(
        &mut self,
        net: &mut Net<T>,
        link: LinkId,
        mut rest: Vec<SocketAddr>,
        mut failed: String,
        now: Duration,
    ) {
        while !rest.is_empty() {
            let address = rest.remove(0);
            match self.open(link, address, &rest, &failed, now) {
                Ok(()) => return,
                Err(error) => failed = connect_error(&failed, address, &error),
            }
        }
        net.on_disconnected(link, &failed, now);
    }

    fn open(
        &mut self,
        link: LinkId,
        address: SocketAddr,
        rest: &[SocketAddr],
        failed: &str,
        now: Duration,
    ) -> io::Result<()> {
        let mut stream = TcpStream::connect(address)?;
        // Requests are written whole; waiting to merge them would only delay them.
        let _ = stream.set_nodelay(true);
        keep_alive(&stream);
        self.token += 1;
        let token = Token(self.token);
        self.poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        self.drop_socket(link);
        self.by_link.insert(link, token);
        let give_up_at = now + CONNECT_TIMEOUT;
        let socket = Socket {
            link,
            stream,
            address,
            connected: false,
            writable: false,
            rest: rest.to_vec(),
            failed: failed.to_owned(),
            give_up_at,
        };
        self.sockets.insert(token, socket);
        Ok(())
    }

    fn drop_socket(&mut self, link: LinkId) {
        if let Some(token) = self.by_link.remove(&link)
            && let Some(mut socket) = self.sockets.remove(&token)
        {
            let _ = self.poll.registry().deregister(&mut socket.stream);
        }
    }

    fn give_up_connecting<T>(&mut self, net: &mut Net<T>, now: Duration) {
        let late: Vec<Token> = self
            .sockets
            .iter()
            .filter(|(_, socket)| !socket.connected && socket.give_up_at <= now)
            .map(|(token, _)| *token)
            .collect();
        for token in late {
            let error = io::Error::new(ErrorKind::TimedOut, "no answer to the connection attempt");
            self.next_address(net, token, &error, now);
        }
    }

    fn next_address<T>(&mut self, net: &mut Net<T>, token: Token, error: &io::Error, now: Duration) {
        let Some(socket) = self.sockets.get(&token) else { return };
        let (link, rest) = (socket.link, socket.rest.clone());
        let failed = connect_error(&socket.failed, socket.address, error);
        self.drop_socket(link);
        self.connect(net, link, rest, failed, now);
    }

    fn on_ready<T>(&mut self, net: &mut Net<T>, token: Token, readable: bool, writable: bool, now: Duration) {
        let Some(socket) = self.sockets.get_mut(&token) else { return };
        if !socket.connected {
            match socket.stream.take_error().and_then(|error| match error {
                Some(error) => Err(error),
                None => socket.stream.peer_addr().map(|_| ()),
            }) {
                Ok(()) => {
                    socket.connected = true;
                    socket.writable = true;
                    net.on_connected(socket.link, now);
                }
                Err(error) if error.kind() == ErrorKind::NotConnected => return,
                Err(error) => return self.next_address(net, token, &error, now),
            }
        }
        let link = socket.link;
        if writable {
            socket.writable = true;
            self.write(net, link, now);
        }
        if readable {
            self.read(net, token, now);
        }
    }

    fn write<T>(&mut self, net: &mut Net<T>, link: LinkId, now: Duration) {
        let Some(socket) = self.by_link.get(&link).and_then(|token| self.sockets.get_mut(token)) else {
            return;
        };
        while socket.connected && socket.writable {
            let bytes = net.outgoing(link);
            if bytes.is_empty() {
                return;
            }
            match socket.stream.write(bytes) {
                Ok(count) => net.written(link, count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => socket.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let why = format!("the connection was lost: {error}");
                    self.drop_socket(link);
                    return net.on_disconnected(link, &why, now);
                }
            }
        }
    }

    fn read<T>(&mut self, net: &mut Net<T>, token: Token, now: Duration) {
        loop {
            let Some(socket) = self.sockets.get_mut(&token) else { return };
            let link = socket.link;
            // The link may have failed on what was read before.
            let Some(space) = net.space(link) else { return self.drop_socket(link) };
            let why = match socket.stream.read(space) {
                Ok(0) => "the connection was closed by the broker".to_owned(),
                Ok(count) => {
                    net.received(link, count, now);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => format!("the connection was lost: {error}"),
            };
            self.drop_socket(link);
            return net.on_disconnected(link, &why, now);
        }
    }
}

/// A connection may wait for hours, as for the next JoinGroup, while somebody on the way forgets it without a word.
/// That is noticed here, and not by a member that is waited for. What the system refuses of it is not missed otherwise.
fn keep_alive(stream: &TcpStream) {
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_AFTER);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_EVERY);
    let _ = sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT);
}

/// What a person is told when no address of a name can be connected to: the reason of each, the first one first.
fn connect_error(before: &str, address: SocketAddr, error: &io::Error) -> String {
    let why = match error.kind() {
        ErrorKind::ConnectionRefused => format!("cannot connect to {address}: nothing listens there"),
        _ => format!("cannot connect to {address}: {error}"),
    };
    if before.is_empty() { why } else { format!("{before}; {why}") }
}
