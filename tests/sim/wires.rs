//! The byte network between clients and the cluster.
//!
//! A connection keeps its order in each direction and nothing else: bytes come late, in pieces, or not at all. A cut
//! is heard at different times at the two ends, and what was under way may be lost in one direction or in both. What is
//! for a process that is stopped waits for it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use keylane::broker::cluster::{Cluster, ConnId};
use keylane_protocol::client::net::{LinkId, Net};

use crate::time::{Event, Time, Who};

/// A way that never ends well: how long until the broker notices that nobody is there.
const FORGOTTEN: Duration = Duration::from_secs(15);

struct Conn {
    who: Who,
    link: LinkId,
    node: i32,
    broker: Option<ConnId>,
    /// The client's end is open.
    opened: bool,
    /// When the newest bytes arrive, each way: later ones come no sooner.
    there: Duration,
    back: Duration,
    /// What is sent goes nowhere.
    there_lost: bool,
    back_lost: bool,
}

/// All connections.
pub(crate) struct Wires {
    conns: BTreeMap<u64, Conn>,
    of_link: HashMap<(Who, LinkId), u64>,
    of_broker: HashMap<ConnId, u64>,
    next: u64,
    delay_us: (u64, u64),
    split_one_in: u64,
    /// Attempts to connect are refused until then.
    refuse_until: Duration,
}

impl Wires {
    pub(crate) fn new(delay_us: (u64, u64), split_one_in: u64) -> Self {
        Wires {
            conns: BTreeMap::new(),
            of_link: HashMap::new(),
            of_broker: HashMap::new(),
            next: 1,
            delay_us,
            split_one_in,
            refuse_until: Duration::ZERO,
        }
    }

    // ---- the clients' side ----

    /// Does what a driver does after each poll: closes, connects, writes.
    pub(crate) fn flush<T>(&mut self, who: Who, net: &mut Net<T>, time: &mut Time) {
        while let Some(link) = net.poll_close() {
            self.close(who, link, time);
        }
        while let Some((link, host, _)) = net.poll_connect() {
            self.connect(who, link, &host, time);
        }
        let links: Vec<LinkId> = net.links().filter(|link| !net.outgoing(*link).is_empty()).collect();
        for link in links {
            let bytes = Bytes::copy_from_slice(net.outgoing(link));
            net.written(link, bytes.len());
            if let Some(id) = self.of_link.get(&(who, link)).copied() {
                self.send(id, bytes, true, time);
            }
        }
    }

    fn connect(&mut self, who: Who, link: LinkId, host: &str, time: &mut Time) {
        let id = self.next;
        self.next += 1;
        let node = host.trim_start_matches('n').parse().expect("nodes are called n1, n2, ...");
        let now = time.now;
        let conn = Conn {
            who,
            link,
            node,
            broker: None,
            opened: false,
            there: now,
            back: now,
            there_lost: false,
            back_lost: false,
        };
        self.conns.insert(id, conn);
        self.of_link.insert((who, link), id);
        let delay = time.random.us(self.delay_us);
        time.after(delay, Event::Accept(id));
    }

    /// The client closes its end.
    fn close(&mut self, who: Who, link: LinkId, time: &mut Time) {
        if let Some(id) = self.of_link.remove(&(who, link)) {
            self.client_gone(id, false, time);
        }
    }

    /// A process is gone with all its connections; after a failure of its machine nobody tells the brokers.
    pub(crate) fn drop_client(&mut self, who: Who, silently: bool, time: &mut Time) {
        let gone: Vec<u64> =
            self.conns.iter().filter(|(_, conn)| conn.who == who).map(|(id, _)| *id).collect();
        self.of_link.retain(|(other, _), _| *other != who);
        for id in gone {
            self.client_gone(id, silently, time);
        }
    }

    fn client_gone(&mut self, id: u64, silently: bool, time: &mut Time) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.back_lost = true;
        // What was written before still arrives, and the end of it after that.
        let delay = if silently || conn.there_lost { FORGOTTEN } else { time.random.us(self.delay_us) };
        conn.there = conn.there.max(time.now + delay);
        time.at(conn.there, Event::BrokerLost(id));
    }

    // ---- both ways ----

    fn send(&mut self, id: u64, mut bytes: Bytes, there: bool, time: &mut Time) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if if there { conn.there_lost } else { conn.back_lost } {
            return;
        }
        while !bytes.is_empty() {
            let split = self.split_one_in > 0 && bytes.len() > 1 && time.random.one_in(self.split_one_in);
            let count =
                if split { 1 + time.random.below(bytes.len() as u64 - 1) as usize } else { bytes.len() };
            let piece = bytes.split_to(count);
            let arrival = time.now + time.random.us(self.delay_us);
            let way = if there { &mut conn.there } else { &mut conn.back };
            *way = arrival.max(*way);
            let event = if there { Event::ToBroker(id, piece) } else { Event::ToClient(id, piece) };
            time.at(*way, event);
        }
    }

    /// Whose connection it is, unless the client has given it up: the link and whether it is this connection's still.
    pub(crate) fn client(&self, id: u64) -> Option<(Who, LinkId)> {
        let conn = self.conns.get(&id)?;
        (self.of_link.get(&(conn.who, conn.link)) == Some(&id)).then_some((conn.who, conn.link))
    }

    /// Whether bytes still come back on it.
    pub(crate) fn comes_back(&self, id: u64) -> bool {
        self.conns.get(&id).is_some_and(|conn| !conn.back_lost && conn.opened)
    }

    /// The client has heard that its connection is open.
    pub(crate) fn opened(&mut self, id: u64) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.opened = true;
        }
    }

    /// The client has heard that its connection is gone. True if it was still in use.
    pub(crate) fn client_lost(&mut self, id: u64) -> Option<(Who, LinkId)> {
        let (who, link) = self.client(id)?;
        self.of_link.remove(&(who, link));
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.back_lost = true;
        }
        if self.conns.get(&id).is_some_and(|conn| conn.broker.is_none()) {
            self.conns.remove(&id);
        }
        Some((who, link))
    }

    /// Whether this was the link's own attempt, which is over.
    pub(crate) fn refused(&mut self, who: Who, link: LinkId, id: u64) -> bool {
        let own = self.of_link.get(&(who, link)) == Some(&id);
        if own {
            self.of_link.remove(&(who, link));
        }
        self.conns.remove(&id);
        own
    }

    // ---- the cluster's side ----

    /// An attempt arrives.
    pub(crate) fn accept(&mut self, id: u64, cluster: &mut Cluster, time: &mut Time) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let delay = time.random.us(self.delay_us);
        let refused = self.refuse_until > time.now;
        conn.broker = if refused { None } else { cluster.connect(conn.node, "10.0.0.1", time.now) };
        match conn.broker {
            Some(broker) => {
                self.of_broker.insert(broker, id);
                conn.back = time.now + delay;
                time.at(conn.back, Event::Opened(id));
            }
            None => time.after(delay, Event::Refused(conn.who, conn.link, id)),
        }
    }

    /// Bytes arrive at the broker.
    pub(crate) fn arrive(&mut self, id: u64, bytes: &Bytes, cluster: &mut Cluster, time: &Time) {
        if let Some(conn) = self.conns.get(&id)
            && !conn.there_lost
            && let Some(broker) = conn.broker
        {
            cluster.receive(broker, bytes, time.now);
        }
    }

    /// The broker hears that the connection is gone.
    pub(crate) fn broker_lost(&mut self, id: u64, cluster: &mut Cluster, time: &Time) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.back_lost = true;
        if let Some(broker) = conn.broker.take() {
            self.of_broker.remove(&broker);
            cluster.disconnect(broker, time.now);
        }
        if self.client(id).is_none() {
            self.conns.remove(&id);
        }
    }

    /// Takes what the cluster has to write and to close.
    pub(crate) fn pump(&mut self, cluster: &mut Cluster, time: &mut Time) {
        let writable: Vec<ConnId> = cluster.writable().collect();
        for broker in writable {
            let bytes = Bytes::copy_from_slice(cluster.outgoing(broker));
            cluster.written(broker, bytes.len());
            if let Some(id) = self.of_broker.get(&broker).copied() {
                self.send(id, bytes, false, time);
            }
        }
        while let Some(broker) = cluster.next_close() {
            if let Some(id) = self.of_broker.remove(&broker)
                && let Some(conn) = self.conns.get_mut(&id)
            {
                conn.broker = None;
                conn.back = conn.back.max(time.now + time.random.us(self.delay_us));
                time.at(conn.back, Event::ClientLost(id));
            }
        }
    }

    // ---- what goes wrong ----

    /// Connections of these, or all.
    pub(crate) fn ids(&self, who: Option<Who>) -> Vec<u64> {
        let wanted = |conn: &&Conn| who.is_none_or(|who| conn.who == who) && !conn.back_lost;
        self.conns.iter().filter(|(_, conn)| wanted(conn)).map(|(id, _)| *id).collect()
    }

    /// Cuts a connection; what is under way may be lost.
    pub(crate) fn cut(&mut self, id: u64, time: &mut Time) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (there, back) = (time.random.us(self.delay_us), time.random.us(self.delay_us));
        if time.random.one_in(2) {
            conn.there_lost = true;
            time.after(there, Event::BrokerLost(id));
        } else {
            conn.there = conn.there.max(time.now + there);
            time.at(conn.there, Event::BrokerLost(id));
        }
        if time.random.one_in(2) {
            conn.back_lost = true;
            time.after(back, Event::ClientLost(id));
        } else {
            conn.back = conn.back.max(time.now + back);
            time.at(conn.back, Event::ClientLost(id));
        }
    }

    /// The connection goes silent without being closed: in one direction or in both.
    pub(crate) fn hang(&mut self, id: u64, time: &mut Time) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.there_lost = !time.random.one_in(3);
        conn.back_lost = !conn.there_lost || time.random.one_in(2);
        // Nobody keeps such a connection for ever.
        time.after(FORGOTTEN, Event::BrokerLost(id));
    }

    /// Nobody can connect for a while.
    pub(crate) fn refuse(&mut self, until: Duration) {
        self.refuse_until = until;
    }
}
