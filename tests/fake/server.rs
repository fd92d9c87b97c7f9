//! Listeners and connections: a thread each, one request at a time per connection, in order, as a broker has it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kafka_protocol::messages::{ApiKey, ApiVersionsResponse, ResponseKind};

use super::answer::{Answer, Turn, answer};
use super::errors::error_response;
use super::hooks::{Hooks, Reaction};
use super::requests::Request;
use super::state::State;
use super::{cluster, codes, versions, wire};

/// How often a waiting request and the group clock look again.
const TURN: Duration = Duration::from_millis(5);

pub struct Shared {
    pub state: Mutex<State>,
    /// Told whenever a request or a test may have changed the state.
    pub changed: Condvar,
    pub hooks: Mutex<Hooks>,
    pub started: Instant,
    pub ending: AtomicBool,
    connections: Mutex<BTreeMap<u64, (i32, TcpStream)>>,
    next_connection: AtomicU64,
}

/// A failed assertion in a hook must not hide behind a poisoned lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(state: State) -> Self {
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            hooks: Mutex::new(Hooks::default()),
            started: Instant::now(),
            ending: AtomicBool::new(false),
            connections: Mutex::new(BTreeMap::new()),
            next_connection: AtomicU64::new(1),
        }
    }

    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Cuts the connections of a node, or of all for `None`.
    pub fn cut(&self, node: Option<i32>) {
        lock(&self.connections).retain(|_, (at, stream)| {
            let kept = node.is_some_and(|node| node != *at);
            if !kept {
                let _ = stream.shutdown(Shutdown::Both);
            }
            kept
        });
        self.changed.notify_all();
    }

    /// How many connections are open at a node, or in all.
    pub fn open(&self, node: Option<i32>) -> usize {
        lock(&self.connections).values().filter(|(at, _)| node.is_none_or(|node| node == *at)).count()
    }

    fn fault(&self, text: String) {
        lock(&self.state).faults.push(text);
        self.changed.notify_all();
    }
}

/// Accepts for one node until `stop` is set and somebody connects once more.
pub fn listen(shared: &Arc<Shared>, node: i32, listener: &TcpListener, stop: &AtomicBool) {
    while let Ok((stream, _)) = listener.accept() {
        if stop.load(Ordering::SeqCst) || shared.is_ending() {
            return;
        }
        let id = shared.next_connection.fetch_add(1, Ordering::SeqCst);
        let _ = stream.set_nodelay(true);
        let Ok(kept) = stream.try_clone() else { continue };
        lock(&shared.connections).insert(id, (node, kept));
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            let connection = Connection { shared: &shared, id, node };
            // A failed assertion in a hook is a fault too: else the client would only see a silent connection.
            match catch_unwind(AssertUnwindSafe(|| connection.serve(stream))) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    shared.fault(format!("connection {id}: {error}"));
                }
                Ok(_) => {}
                Err(_) => shared.fault(format!("connection {id}: the fake or a hook panicked, see stderr")),
            }
            if let Some((_, stream)) = lock(&shared.connections).remove(&id) {
                let _ = stream.shutdown(Shutdown::Both);
            }
            shared.changed.notify_all();
        });
    }
}

/// Ends sessions and rounds of the groups as time passes.
pub fn clock(shared: &Shared) {
    while !shared.is_ending() {
        std::thread::sleep(TURN);
        let mut state = lock(&shared.state);
        let (expire, now) = (state.expire_sessions, Instant::now());
        let mut changed = false;
        for group in state.groups.values_mut() {
            changed |= group.tick(now, expire);
        }
        drop(state);
        if changed {
            shared.changed.notify_all();
        }
    }
}

struct Connection<'a> {
    shared: &'a Shared,
    id: u64,
    node: i32,
}

/// What goes out for a request.
enum Out {
    Bytes(Vec<u8>),
    /// Only these bytes, then the end.
    Last(Vec<u8>),
    Nothing,
}

impl Connection<'_> {
    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        let mut reader = io::BufReader::with_capacity(64 << 10, stream.try_clone()?);
        while let Some(frame) = wire::read_frame(&mut reader)? {
            match self.take(&frame)? {
                Out::Bytes(bytes) => stream.write_all(&bytes)?,
                Out::Last(bytes) => {
                    stream.write_all(&bytes)?;
                    return Ok(());
                }
                Out::Nothing => {}
            }
        }
        Ok(())
    }

    fn take(&self, frame: &wire::Frame) -> io::Result<Out> {
        let bad = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        let api =
            ApiKey::try_from(frame.api_number).map_err(|()| bad(format!("API {}", frame.api_number)))?;
        let range = lock(&self.shared.state).range(api);
        let offered = range.is_some_and(|(min, max)| (min..=max).contains(&frame.version));
        if !offered && api != ApiKey::ApiVersions {
            return Err(bad(format!("{api:?} v{} was never offered ({range:?})", frame.version)));
        }
        let (min, max) = versions::spoken(api);
        if !(min..=max).contains(&frame.version) {
            return Err(bad(format!("{api:?} v{} is beyond the fake", frame.version)));
        }
        let (client_id, kind) = wire::decode(api, frame).map_err(bad)?;
        let request = self.record(api, frame, client_id, kind);
        let reaction = {
            let mut hooks = lock(&self.shared.hooks);
            hooks.decide(&request, &mut lock(&self.shared.state))
        };
        self.shared.changed.notify_all();
        let reaction = match reaction {
            Reaction::Default if !offered => Reaction::RawBody(self.older_api_versions()),
            other => other,
        };
        self.react(&request, reaction)
    }

    /// ApiVersions in a version that is not offered: error 35 in the layout of version 0, with all ranges.
    fn older_api_versions(&self) -> Vec<u8> {
        let mut known = cluster::api_versions(&lock(&self.shared.state));
        known.error_code = codes::UNSUPPORTED_VERSION;
        api_versions_v0(&known)
    }

    fn record(
        &self,
        api: ApiKey,
        frame: &wire::Frame,
        client_id: String,
        kind: kafka_protocol::messages::RequestKind,
    ) -> Arc<Request> {
        let mut state = lock(&self.shared.state);
        let nth = state.counts.entry(api as i16).or_default();
        *nth += 1;
        let nth = *nth;
        let request = Arc::new(Request {
            index: state.requests.len(),
            nth,
            time: self.shared.started.elapsed(),
            connection: self.id,
            node: self.node,
            api,
            version: frame.version,
            correlation: frame.correlation,
            client_id,
            kind,
            raw: frame.raw.clone(),
        });
        state.requests.push(Arc::clone(&request));
        request
    }

    fn react(&self, request: &Request, reaction: Reaction) -> io::Result<Out> {
        let encode = |response: &ResponseKind| {
            wire::encode(request.api, request.version, request.correlation, response)
                .map_err(|text| io::Error::new(io::ErrorKind::InvalidData, text))
        };
        Ok(match reaction {
            Reaction::Default => match self.run(request, None) {
                Some(response) => Out::Bytes(encode(&response)?),
                None => Out::Nothing,
            },
            Reaction::Error(code) if request.api == ApiKey::Fetch => {
                let whole = [codes::FETCH_SESSION_ID_NOT_FOUND, codes::INVALID_FETCH_SESSION_EPOCH];
                let response = match whole.contains(&code) {
                    true => Some(super::fetch::refused(code).into()),
                    false => self.run(request, Some(code)),
                };
                response.map_or(Ok(Out::Nothing), |r| encode(&r).map(Out::Bytes))?
            }
            Reaction::Error(code) => {
                let response = error_response(&mut lock(&self.shared.state), request, code);
                Out::Bytes(encode(&response)?)
            }
            Reaction::Respond(response) => Out::Bytes(encode(&response)?),
            Reaction::Edit(change) => match self.run(request, None) {
                Some(mut response) => {
                    change(&mut response);
                    Out::Bytes(encode(&response)?)
                }
                None => Out::Nothing,
            },
            Reaction::RawBytes(bytes) => Out::Bytes(bytes),
            Reaction::RawBody(body) => Out::Bytes(wire::frame(request.correlation, &body)),
            Reaction::Delay(time, then) => {
                self.sleep(time);
                return self.react(request, *then);
            }
            Reaction::Drop => Out::Nothing,
            Reaction::Close => Out::Last(Vec::new()),
            Reaction::CloseAfterBytes(count) => {
                let mut bytes = match self.run(request, None) {
                    Some(response) => encode(&response)?,
                    None => Vec::new(),
                };
                bytes.truncate(count);
                Out::Last(bytes)
            }
        })
    }

    fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.shared.is_ending() {
            std::thread::sleep(TURN.min(until.saturating_duration_since(Instant::now())));
        }
    }

    /// The default answer, waited for.
    fn run(&self, request: &Request, forced: Option<i16>) -> Option<ResponseKind> {
        let mut turn = Turn::new(forced);
        let mut state = lock(&self.shared.state);
        loop {
            match answer(&mut state, request, &mut turn, Instant::now()) {
                Answer::Ready(response) => {
                    self.shared.changed.notify_all();
                    return Some(response);
                }
                Answer::Nothing => {
                    self.shared.changed.notify_all();
                    return None;
                }
                Answer::Wait if self.shared.is_ending() || !self.is_open() => return None,
                Answer::Wait => {
                    let waited = self.shared.changed.wait_timeout(state, TURN);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Whether the node was not stopped meanwhile. A client that hung up is noticed when its answer is written.
    fn is_open(&self) -> bool {
        lock(&self.shared.connections).contains_key(&self.id)
    }
}

/// The body of an ApiVersions answer in version 0.
pub fn api_versions_v0(response: &ApiVersionsResponse) -> Vec<u8> {
    let mut out = response.error_code.to_be_bytes().to_vec();
    out.extend((response.api_keys.len() as i32).to_be_bytes());
    for key in &response.api_keys {
        out.extend(key.api_key.to_be_bytes());
        out.extend(key.min_version.to_be_bytes());
        out.extend(key.max_version.to_be_bytes());
    }
    out
}
