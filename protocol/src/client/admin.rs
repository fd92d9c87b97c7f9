//! Questions to a cluster: each finds its broker, is asked again while that can help, and ends with one outcome.
//!
//! Questions are independent of each other and pipelined. What is worth another try is decided by
//! [`crate::error::classify`]; the pauses between tries double, and each question has a time by which it ends. In the
//! good path nothing waits for a timer.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::net::{Interest, Net, NetConfig, NetEvent, Purpose, To, backoff};
use crate::admin::offsets::{Found, OffsetSearch};
use crate::admin::{Answer, Question};
use crate::api::Response;
use crate::error::{Class, Error, Fault};
use crate::metadata::{Metadata, TopicPartition};

/// Whom a question is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Whichever broker can be reached.
    Any,
    /// This broker.
    Node(i32),
    /// The controller, which alone makes and removes topics before KRaft.
    Controller,
    /// The coordinator of this group.
    Coordinator(String),
}

/// Names a question to the one who asked it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(u64);

/// What happened to the connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A broker cannot be reached any more, or not yet; and why.
    Down(String, String),
    /// It answers again.
    Up(String),
}

/// Names a request to [`Net`]; carries what reading its answer needs.
#[derive(Debug)]
pub struct Tag {
    id: CallId,
    question: Question,
    /// The node that was asked, for a coordinator that moved.
    node: Option<i32>,
}

#[derive(Debug)]
enum CallState {
    /// To be asked, not before this.
    Open(Duration),
    /// To be asked once a coordinator or a controller is known.
    Waiting,
    Asked,
}

#[derive(Debug)]
struct Call {
    target: Target,
    question: Question,
    started_at: Duration,
    until: Duration,
    state: CallState,
    failures: u32,
    last_error: Option<Error>,
}

#[derive(Debug)]
struct Search {
    search: OffsetSearch,
    started_at: Duration,
    until: Duration,
    failures: u32,
}

const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a coordinator or controller is looked for when nothing happens.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The client of `lag`, `topic` and `group`.
pub struct Admin {
    net: Net<Tag>,
    calls: BTreeMap<CallId, Call>,
    searches: BTreeMap<CallId, Search>,
    answers: BTreeMap<CallId, Result<Answer, Error>>,
    found: BTreeMap<CallId, Found>,
    notices: VecDeque<Notice>,
    next_id: u64,
    metadata_count: u64,
    polled_at: Duration,
    random: u64,
}

impl Admin {
    /// A client that fetches the list of brokers first.
    pub fn new(config: NetConfig, now: Duration) -> Self {
        let random = config.seed;
        let mut net = Net::new(config);
        net.want_metadata(now);
        Admin {
            net,
            calls: BTreeMap::new(),
            searches: BTreeMap::new(),
            answers: BTreeMap::new(),
            found: BTreeMap::new(),
            notices: VecDeque::new(),
            next_id: 0,
            metadata_count: 0,
            polled_at: now,
            random,
        }
    }

    /// Its connections.
    pub fn net(&mut self) -> &mut Net<Tag> {
        &mut self.net
    }

    /// What is known of the cluster.
    pub fn metadata(&self) -> &Metadata {
        self.net.metadata()
    }

    /// How many Metadata answers came.
    pub fn metadata_count(&self) -> u64 {
        self.metadata_count
    }

    /// Keeps the metadata of these topics from now on.
    pub fn set_interest(&mut self, interest: Interest, now: Duration) {
        self.net.set_interest(interest, now);
    }

    /// What happened to the connections next.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Asks a question that ends by `until`.
    pub fn ask(&mut self, target: Target, question: Question, until: Duration, now: Duration) -> CallId {
        let id = self.new_id();
        let call = Call {
            target,
            question,
            started_at: now,
            until,
            state: CallState::Waiting,
            failures: 0,
            last_error: None,
        };
        self.calls.insert(id, call);
        id
    }

    /// Searches offsets of partitions on all their leaders until `until`. The metadata of their topics must be kept
    /// ([`Admin::set_interest`]).
    pub fn search(&mut self, search: OffsetSearch, until: Duration, now: Duration) -> CallId {
        let id = self.new_id();
        let search = Search { search, started_at: now, until, failures: 0 };
        self.searches.insert(id, search);
        id
    }

    /// The outcome of [`Admin::ask`], once.
    pub fn take_answer(&mut self, id: CallId) -> Option<Result<Answer, Error>> {
        self.answers.remove(&id)
    }

    /// The outcome of [`Admin::search`], once.
    pub fn take_found(&mut self, id: CallId) -> Option<Found> {
        self.found.remove(&id)
    }

    /// Gives up a question or a search; its answer is dropped.
    pub fn forget(&mut self, id: CallId) {
        self.calls.remove(&id);
        self.searches.remove(&id);
        self.answers.remove(&id);
        self.found.remove(&id);
    }

    fn new_id(&mut self) -> CallId {
        self.next_id += 1;
        CallId(self.next_id)
    }

    /// Takes what the connections brought and sends what is due.
    pub fn poll(&mut self, now: Duration) {
        self.polled_at = now;
        loop {
            let took = self.take_events(now);
            self.end_late(now);
            self.send_calls(now);
            self.send_searches(now);
            if !took {
                return;
            }
        }
    }

    /// When [`Admin::poll`] has something to do though nothing was received.
    pub fn deadline(&self) -> Option<Duration> {
        let calls = self.calls.values().map(|call| match call.state {
            CallState::Open(not_before) => not_before.min(call.until),
            CallState::Waiting => (self.polled_at + LOOK_AGAIN).min(call.until),
            CallState::Asked => call.until,
        });
        let searches = self
            .searches
            .values()
            .map(|search| search.search.deadline().map_or(search.until, |due| due.min(search.until)));
        calls.chain(searches).min()
    }

    fn take_events(&mut self, now: Duration) -> bool {
        let mut took = false;
        while let Some(event) = self.net.next_event() {
            took = true;
            match event {
                NetEvent::Outcome(tag, result) => self.settle(tag, result, now),
                NetEvent::Metadata(_) => self.metadata_count += 1,
                NetEvent::Down(address, why) => self.notices.push_back(Notice::Down(address, why)),
                NetEvent::Up(address) => self.notices.push_back(Notice::Up(address)),
            }
        }
        took
    }

    fn settle(&mut self, tag: Tag, result: Result<Response, Error>, now: Duration) {
        let Tag { id, question, node } = tag;
        let outcome =
            result.and_then(|response| question.read(response)).map_err(|error| question.named(error));
        if let Some(search) = self.searches.get_mut(&id) {
            let pause = backoff(PAUSE, PAUSE_MAX, search.failures + 1, &mut self.random);
            let again = search.search.take(&question, outcome, now + pause);
            search.failures += u32::from(again);
            return;
        }
        // A question that ended by its time has nobody who waits for the answer.
        let Some(call) = self.calls.get_mut(&id) else { return };
        let error = match outcome {
            Err(error) if matches!(error.class(), Class::Retry | Class::Leader | Class::Coordinator) => error,
            outcome => {
                if let (Target::Coordinator(group), true) = (&call.target, outcome.is_ok()) {
                    self.net.coordinator_works(group);
                }
                self.calls.remove(&id);
                self.answers.insert(id, outcome);
                return;
            }
        };
        call.failures += 1;
        let pause = backoff(PAUSE, PAUSE_MAX, call.failures, &mut self.random);
        call.state = CallState::Open(now + pause);
        match &call.target {
            Target::Coordinator(group) => {
                let moved = error.class() == Class::Coordinator || error.code().is_none();
                // Several questions fail with one connection: the coordinator is forgotten once.
                if moved && node.is_some() && self.net.known_coordinator(group) == node {
                    self.net.forget_coordinator(group, now);
                }
            }
            Target::Controller => self.net.want_metadata(now),
            Target::Any | Target::Node(_) => {}
        }
        call.last_error = Some(error);
    }

    /// Ends what has no time left.
    fn end_late(&mut self, now: Duration) {
        let late: Vec<CallId> =
            self.calls.iter().filter(|(_, call)| call.until <= now).map(|(id, _)| *id).collect();
        for id in late {
            let Some(call) = self.calls.remove(&id) else { continue };
            let waited = now.saturating_sub(call.started_at);
            // Never sent: why there is no connection, or no coordinator, says more than that time is over.
            let unsent = || self.net.last_error().filter(|_| !matches!(call.state, CallState::Asked));
            let error = call.last_error.or_else(|| {
                let error = unsent()?;
                let broker = error.context.broker.clone();
                let same = Error::new(error.fault.clone());
                Some(match broker {
                    Some(broker) => same.at_broker(broker),
                    None => same,
                })
            });
            let error = error.unwrap_or_else(|| Error::new(Fault::TimedOut(waited)));
            self.answers.insert(id, Err(call.question.named(error)));
        }
        let ended: Vec<CallId> = self
            .searches
            .iter()
            .filter(|(_, search)| search.until <= now || search.search.is_done())
            .map(|(id, _)| *id)
            .collect();
        for id in ended {
            let Some(search) = self.searches.remove(&id) else { continue };
            self.found.insert(id, search.search.finish(now.saturating_sub(search.started_at)));
        }
    }

    fn send_calls(&mut self, now: Duration) {
        let ready: Vec<CallId> = self
            .calls
            .iter()
            .filter(|(_, call)| match call.state {
                CallState::Open(not_before) => not_before <= now,
                CallState::Waiting => true,
                CallState::Asked => false,
            })
            .map(|(id, _)| *id)
            .collect();
        for id in ready {
            let Some(call) = self.calls.get_mut(&id) else { continue };
            let to = match &call.target {
                Target::Any => Some(To::Any),
                Target::Node(node) => Some(To::Node(*node, Purpose::Main)),
                Target::Controller => match self.net.metadata().controller {
                    Some(node) => Some(To::Node(node, Purpose::Main)),
                    None => {
                        self.net.want_metadata(now);
                        None
                    }
                },
                Target::Coordinator(group) => match self.net.coordinator(group, now) {
                    Ok(node) => node.map(|node| To::Node(node, Purpose::Main)),
                    Err(error) => {
                        let error = call.question.named(error);
                        self.calls.remove(&id);
                        self.answers.insert(id, Err(error));
                        continue;
                    }
                },
            };
            call.state = match to {
                Some(to) => {
                    send(&mut self.net, to, id, &call.question, now);
                    CallState::Asked
                }
                None => CallState::Waiting,
            };
        }
    }

    fn send_searches(&mut self, now: Duration) {
        for (id, search) in &mut self.searches {
            for (node, question) in search.search.due(self.net.metadata(), now) {
                send(&mut self.net, To::Node(node, Purpose::Main), *id, &question, now);
            }
            if search.search.take_wants_metadata() {
                self.net.want_metadata(now);
            }
        }
    }

    /// The coordinator of a group, as far as it is known.
    pub fn coordinator(&self, group: &str) -> Option<i32> {
        self.net.known_coordinator(group)
    }

    /// The partitions of a topic that is known.
    pub fn partitions(&self, topic: &str) -> Vec<TopicPartition> {
        let known = self.metadata().topic(topic);
        known
            .into_iter()
            .flat_map(|known| known.partitions.keys().map(|partition| TopicPartition::new(topic, *partition)))
            .collect()
    }
}

fn send(net: &mut Net<Tag>, to: To, id: CallId, question: &Question, now: Duration) {
    let node = match to {
        To::Any => None,
        To::Node(node, _) => Some(node),
    };
    let tag = Tag { id, question: question.clone(), node };
    net.send(to, question.request(), tag, Duration::ZERO, now);
}
