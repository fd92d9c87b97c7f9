//! The mio loop that serves a [`Cluster`]: listeners, one per node, and the connections that they accept.
//!
//! As in the loop for clients, events are hints on edges: every ready socket is read until it would block, though not
//! for ever in one go, and a write that would block waits for the next event.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use crate::broker::cluster::{Cluster, ConnId};

const WAKE: Token = Token(0);
const READ_BYTES: usize = 256 << 10;
/// Reads of one connection in a row; then the others have their turn.
const READS_IN_A_ROW: usize = 16;

/// Ports that are taken, before there is a cluster that knows them.
pub struct Listeners(Vec<TcpListener>);

impl Listeners {
    /// Takes a port for each node: the one given and those behind it, or any free ones if it is 0.
    ///
    /// # Errors
    /// The address that cannot be had, and why.
    pub fn bind(address: SocketAddr, nodes: u16) -> Result<Self, (SocketAddr, io::Error)> {
        let mut listeners = Vec::new();
        for node in 0..nodes {
            let port = if address.port() == 0 { 0 } else { address.port().saturating_add(node) };
            let address = SocketAddr::new(address.ip(), port);
            listeners.push(TcpListener::bind(address).map_err(|error| (address, error))?);
        }
        Ok(Listeners(listeners))
    }

    /// The port of each node.
    pub fn ports(&self) -> Vec<u16> {
        // A bound socket has an address; 0 would be told as such and found out at once.
        self.0.iter().map(|listener| listener.local_addr().map_or(0, |address| address.port())).collect()
    }
}

struct Peer {
    conn: ConnId,
    stream: TcpStream,
    /// Whether the last write was taken whole.
    writable: bool,
}

/// The loop.
pub struct Server {
    poll: Poll,
    events: Events,
    listeners: Vec<TcpListener>,
    peers: HashMap<Token, Peer>,
    by_conn: HashMap<ConnId, Token>,
    /// Connections with unread bytes for which there will be no event.
    unread: BTreeSet<Token>,
    token: usize,
    cluster: Cluster,
    started: Instant,
    waker: Arc<Waker>,
    scratch: Vec<u8>,
}

impl Server {
    /// Listens for a cluster's clients; node 1 has the first listener.
    ///
    /// # Errors
    /// The system gives no epoll or event descriptor.
    pub fn new(listeners: Listeners, cluster: Cluster) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let mut listeners = listeners.0;
        for (listener, token) in listeners.iter_mut().zip(1..) {
            poll.registry().register(listener, Token(token), Interest::READABLE)?;
        }
        Ok(Server {
            events: Events::with_capacity(256),
            token: listeners.len(),
            listeners,
            peers: HashMap::new(),
            by_conn: HashMap::new(),
            unread: BTreeSet::new(),
            cluster,
            started: Instant::now(),
            waker,
            scratch: vec![0; READ_BYTES],
            poll,
        })
    }

    /// Ends the wait of [`Server::turn`] from another thread.
    pub fn waker(&self) -> Arc<Waker> {
        self.waker.clone()
    }

    /// The cluster.
    pub fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Time since the server began.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// One pass: bytes in both directions, waiting for something to happen if nothing is there.
    ///
    /// # Errors
    /// epoll itself failed.
    pub fn turn(&mut self) -> io::Result<()> {
        let wait = if self.unread.is_empty() {
            self.cluster.deadline().map(|due| due.saturating_sub(self.now()))
        } else {
            Some(Duration::ZERO)
        };
        match self.poll.poll(&mut self.events, wait) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        let mut readable = std::mem::take(&mut self.unread);
        let mut accepting = Vec::new();
        for event in self.events.iter() {
            let token = event.token();
            if (1..=self.listeners.len()).contains(&token.0) {
                accepting.push(token.0 - 1);
            } else if let Some(peer) = self.peers.get_mut(&token) {
                let closed = event.is_error() || event.is_read_closed() || event.is_write_closed();
                peer.writable |= event.is_writable() || closed;
                if event.is_readable() || closed {
                    readable.insert(token);
                }
            }
        }
        for listener in accepting {
            self.accept(listener);
        }
        for token in readable {
            self.read(token);
            self.write_all();
        }
        let now = self.now();
        self.cluster.poll(now);
        self.write_all();
        self.close_all();
        Ok(())
    }

    fn accept(&mut self, index: usize) {
        loop {
            // Out of descriptors, or a client that has gone again: the next event finds the listener as it is.
            let Ok((mut stream, address)) = self.listeners[index].accept() else { return };
            let _ = stream.set_nodelay(true);
            self.token += 1;
            let token = Token(self.token);
            let interest = Interest::READABLE | Interest::WRITABLE;
            if self.poll.registry().register(&mut stream, token, interest).is_err() {
                continue;
            }
            let node = i32::try_from(index + 1).unwrap_or(i32::MAX);
            let now = self.now();
            // A node that is down has no port in the world of its clients.
            let Some(conn) = self.cluster.connect(node, &address.ip().to_string(), now) else { continue };
            self.peers.insert(token, Peer { conn, stream, writable: true });
            self.by_conn.insert(conn, token);
        }
    }

    fn read(&mut self, token: Token) {
        for _ in 0..READS_IN_A_ROW {
            let Some(peer) = self.peers.get_mut(&token) else { return };
            if self.cluster.is_full(peer.conn) {
                break;
            }
            match peer.stream.read(&mut self.scratch) {
                Ok(0) => return self.lose(token),
                Ok(count) => {
                    let (conn, now) = (peer.conn, self.started.elapsed());
                    self.cluster.receive(conn, &self.scratch[..count], now);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.lose(token),
            }
        }
        self.unread.insert(token);
    }

    /// The client has gone.
    fn lose(&mut self, token: Token) {
        if let Some(conn) = self.drop_peer(token) {
            let now = self.now();
            self.cluster.disconnect(conn, now);
        }
    }

    fn drop_peer(&mut self, token: Token) -> Option<ConnId> {
        let mut peer = self.peers.remove(&token)?;
        self.by_conn.remove(&peer.conn);
        self.unread.remove(&token);
        let _ = self.poll.registry().deregister(&mut peer.stream);
        Some(peer.conn)
    }

    fn write_all(&mut self) {
        let waiting: Vec<ConnId> = self.cluster.writable().collect();
        for conn in waiting {
            let Some(token) = self.by_conn.get(&conn).copied() else { continue };
            let Some(peer) = self.peers.get_mut(&token) else { continue };
            while peer.writable {
                let bytes = self.cluster.outgoing(conn);
                if bytes.is_empty() {
                    break;
                }
                match peer.stream.write(bytes) {
                    Ok(count) => self.cluster.written(conn, count),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => peer.writable = false,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => {
                        self.lose(token);
                        break;
                    }
                }
            }
        }
    }

    fn close_all(&mut self) {
        while let Some(conn) = self.cluster.next_close() {
            if let Some(token) = self.by_conn.get(&conn).copied() {
                self.drop_peer(token);
            }
        }
    }
}
