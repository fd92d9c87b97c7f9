//! A scripted Kafka broker inside the test process.
//!
//! It speaks the wire protocol over TCP on 127.0.0.1, behaves like a small cluster by default, records every request
//! and lets a test change any answer. State is one struct behind one mutex: [`Fake::with`] reaches it while a client
//! runs. A fault of the client (an undecodable request, a version never offered) or of the fake itself fails the test
//! when the [`Fake`] is dropped.
//!
//! ```ignore
//! let fake = Fake::builder().topic("t", 2).records("t", 0, [("k", "v")]).start();
//! fake.on(ApiKey::OffsetCommit, |request, _| if request.nth == 1 { Reaction::Error(27) } else { Reaction::Default });
//! let mut child = Keylane::run(&fake, &["pool", "-t", "t", "-g", "g", "--work-delay", "0", "-e"]);
//! let done = child.wait_exit(Duration::from_secs(10));
//! assert_eq!(done.code, Some(0), "{done}");
//! assert_eq!(fake.committed("g", "t", 0), Some(1));
//! ```

#![allow(dead_code, unused_imports, reason = "each test program uses a part of this module")]
#![allow(missing_docs, unreachable_pub, reason = "test support; the names say what they do")]
#![allow(clippy::unwrap_used, reason = "a failed step in test support is a failed test")]

pub mod answer;
pub mod batch;
pub mod client;
pub mod cluster;
pub mod codec;
pub mod codes;
pub mod data;
pub mod errors;
pub mod fetch;
pub mod group;
pub mod hooks;
pub mod log;
pub mod members;
pub mod offsets;
pub mod phantom;
pub mod requests;
pub mod server;
pub mod state;
pub mod versions;
pub mod wire;

#[path = "../support/child.rs"]
pub mod child;

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kafka_protocol::messages::ApiKey;

pub use batch::{Batch, batch};
pub use child::{Exit, Keylane};
pub use codec::Codec;
pub use hooks::Reaction;
pub use phantom::Phantom;
pub use requests::{Commit, FetchAsk, Log, Produced, Request};
pub use state::State;
pub use versions::Kafka;

use batch::Field;
use server::{Shared, lock};
use state::Node;

impl Keylane {
    /// `keylane ARGS` with `-b THE-FAKE` before the first option.
    pub fn run(fake: &Fake, args: &[&str]) -> Self {
        Self::run_with(fake, args, &[])
    }

    /// With more variables in its environment.
    pub fn run_with(fake: &Fake, args: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::run_against(&fake.brokers(), args, environment)
    }
}

/// What the cluster holds before it starts.
pub struct Builder {
    state: State,
}

impl Builder {
    pub fn kafka(mut self, kafka: Kafka) -> Self {
        self.state.kafka = kafka;
        self
    }

    pub fn topic(mut self, name: &str, partitions: usize) -> Self {
        self.state.create_topic(name, partitions);
        self
    }

    /// Records in one batch at the end of the partition.
    pub fn records<K: Field, V: Field>(
        mut self,
        topic: &str,
        partition: i32,
        records: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.state.append_records(topic, partition, records);
        self
    }

    /// `count` records `("k<i mod keys>", "v<i>")` at the end of the partition, in batches of 500.
    pub fn numbered(mut self, topic: &str, partition: i32, count: usize, keys: usize) -> Self {
        let all: Vec<usize> = (0..count).collect();
        for part in all.chunks(500) {
            let records = part.iter().map(|i| (format!("k{}", i % keys), format!("v{i}")));
            self.state.append_records(topic, partition, records);
        }
        self
    }

    pub fn batch(mut self, topic: &str, partition: i32, batch: &Batch) -> Self {
        self.state.append(topic, partition, batch);
        self
    }

    pub fn committed(mut self, group: &str, topic: &str, partition: i32, offset: i64) -> Self {
        self.state.set_committed(group, topic, partition, offset);
        self
    }

    /// Another version range than the release's own.
    pub fn range(mut self, api: ApiKey, min: i16, max: i16) -> Self {
        self.state.ranges.insert(api as i16, Some((min, max)));
        self
    }

    pub fn without(mut self, api: ApiKey) -> Self {
        self.state.ranges.insert(api as i16, None);
        self
    }

    /// Any other setting.
    pub fn set(mut self, change: impl FnOnce(&mut State)) -> Self {
        change(&mut self.state);
        self
    }

    pub fn start(mut self) -> Fake {
        let mut listeners = Vec::new();
        for node in &mut self.state.nodes {
            let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
            node.port = listener.local_addr().expect("bound").port();
            listeners.push((node.id, listener));
        }
        let shared = Arc::new(Shared::new(self.state));
        let clock = Arc::clone(&shared);
        std::thread::spawn(move || server::clock(&clock));
        let fake = Fake { shared, listening: Mutex::new(BTreeMap::new()) };
        for (node, listener) in listeners {
            fake.listen(node, listener);
        }
        fake
    }
}

struct Listening {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// The running cluster; it ends when dropped.
pub struct Fake {
    shared: Arc<Shared>,
    listening: Mutex<BTreeMap<i32, Listening>>,
}

impl Fake {
    /// One node, Kafka 4.3, no topic.
    pub fn builder() -> Builder {
        Self::cluster(1)
    }

    /// Nodes 1 to `nodes`; node 1 is the coordinator of every group.
    pub fn cluster(nodes: i32) -> Builder {
        let mut state = State::new(Kafka::V4_3);
        state.nodes = (1..=nodes).map(|id| Node { id, port: 0, listed: true }).collect();
        Builder { state }
    }

    fn listen(&self, node: i32, listener: TcpListener) {
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, stopped) = (Arc::clone(&self.shared), Arc::clone(&stop));
        let thread = std::thread::spawn(move || server::listen(&shared, node, &listener, &stopped));
        lock(&self.listening).insert(node, Listening { stop, thread });
    }

    /// `127.0.0.1:PORT` of every node, for `-b`.
    pub fn brokers(&self) -> String {
        self.with(|s| s.nodes.iter().map(|n| format!("127.0.0.1:{}", n.port)).collect::<Vec<_>>().join(","))
    }

    pub fn port(&self, node: i32) -> u16 {
        self.with(|s| s.nodes.iter().find(|n| n.id == node).expect("a node of the cluster").port)
    }

    /// Reads or changes the state; whoever waits looks again.
    pub fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut lock(&self.shared.state));
        self.shared.changed.notify_all();
        result
    }

    /// Adds a hook. It runs with the state locked, so it must not call the [`Fake`].
    pub fn on(&self, api: ApiKey, hook: impl FnMut(&Request, &mut State) -> Reaction + Send + 'static) {
        lock(&self.shared.hooks).add(api, Box::new(hook));
    }

    /// The next `times` requests of an API get an error.
    pub fn fail_times(&self, api: ApiKey, times: usize, code: i16) {
        let mut left = times;
        self.on(api, move |_, _| {
            if left == 0 {
                return Reaction::Default;
            }
            left -= 1;
            Reaction::Error(code)
        });
    }

    pub fn clear_hooks(&self) {
        lock(&self.shared.hooks).clear();
    }

    /// Closes a node's port and cuts its connections; the port stays its own.
    pub fn stop_node(&self, node: i32) {
        if let Some(listening) = lock(&self.listening).remove(&node) {
            listening.stop.store(true, Ordering::SeqCst);
            let _ = TcpStream::connect(("127.0.0.1", self.port(node)));
            let _ = listening.thread.join();
        }
        self.cut(node);
    }

    /// Listens on the old port again.
    pub fn start_node(&self, node: i32) {
        let port = self.port(node);
        self.listen(node, TcpListener::bind(("127.0.0.1", port)).expect("the port as before"));
    }

    /// Cuts a node's connections and goes on listening.
    pub fn cut(&self, node: i32) {
        self.shared.cut(Some(node));
    }

    pub fn open_connections(&self) -> usize {
        self.shared.open(None)
    }

    pub fn append(&self, topic: &str, partition: i32, batch: &Batch) {
        self.with(|s| s.append(topic, partition, batch));
    }

    pub fn append_records<K: Field, V: Field>(
        &self,
        topic: &str,
        partition: i32,
        records: impl IntoIterator<Item = (K, V)>,
    ) -> i64 {
        self.with(|s| s.append_records(topic, partition, records))
    }

    /// A member inside the fake joins the group.
    pub fn phantom_join(&self, group: &str, id: &str, phantom: Phantom) {
        self.with(|s| s.group(group).add_phantom(id, phantom, Instant::now()));
    }

    /// A member leaves, or is thrown out.
    pub fn remove_member(&self, group: &str, id: &str) {
        self.with(|s| s.group(group).remove(id, Instant::now()));
    }

    /// Every member must join again.
    pub fn force_rebalance(&self, group: &str) {
        self.with(|s| s.group(group).prepare(Instant::now()));
    }

    pub fn committed(&self, group: &str, topic: &str, partition: i32) -> Option<i64> {
        self.with(|s| s.committed(group, topic, partition))
    }

    /// Asks the request log. The state is locked meanwhile, as in [`Fake::with`] and [`Fake::wait_for`]: nothing inside
    /// may call the [`Fake`].
    pub fn log<R>(&self, ask: impl FnOnce(&Log<'_>) -> R) -> R {
        ask(&Log { state: &lock(&self.shared.state) })
    }

    pub fn requests(&self) -> Vec<Arc<Request>> {
        self.log(|log| log.all().to_vec())
    }

    pub fn commits(&self, group: &str) -> Vec<Commit> {
        self.log(|log| log.commits(group))
    }

    pub fn fetches(&self) -> Vec<FetchAsk> {
        self.log(|log| log.fetches())
    }

    /// Since the start, as in [`Request::time`].
    pub fn now(&self) -> Duration {
        self.shared.started.elapsed()
    }

    /// Waits until `found` gives something.
    ///
    /// # Panics
    /// When `timeout` passes, with the request log.
    pub fn wait_for<R>(
        &self,
        what: &str,
        timeout: Duration,
        mut found: impl FnMut(&Log<'_>) -> Option<R>,
    ) -> R {
        let until = Instant::now() + timeout;
        let mut state = lock(&self.shared.state);
        loop {
            if let Some(result) = found(&Log { state: &state }) {
                return result;
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no {what} within {timeout:?}\n{}", Log { state: &state }.summary());
            let waited = self.shared.changed.wait_timeout(state, left.min(Duration::from_millis(20)));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// As [`Fake::wait_for`] with a condition.
    pub fn wait_until(&self, what: &str, timeout: Duration, mut holds: impl FnMut(&Log<'_>) -> bool) {
        self.wait_for(what, timeout, |log| holds(log).then_some(()));
    }

    /// Takes the faults so far; what is taken does not fail the test at the end.
    pub fn take_faults(&self) -> Vec<String> {
        self.with(|s| std::mem::take(&mut s.faults))
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        let nodes: Vec<i32> = lock(&self.listening).keys().copied().collect();
        for node in nodes {
            self.stop_node(node);
        }
        self.shared.cut(None);
        let faults = self.take_faults();
        if std::thread::panicking() {
            eprintln!("requests:\n{}faults: {faults:?}", self.log(|log| log.summary()));
        } else {
            assert!(faults.is_empty(), "faults on the wire: {faults:#?}");
        }
    }
}
