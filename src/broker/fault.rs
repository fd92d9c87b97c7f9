//! Faults on request: what goes wrong, when, and how often.
//!
//! A fault either meets requests of an API (an error, a delay, no answer, a cut connection) or happens to the cluster
//! at its own time (a leader or coordinator moves, a group must rebalance, a node goes down for a while). Chance comes
//! from the cluster's seed, so a run with the same requests at the same times repeats itself.

use std::collections::BTreeMap;
use std::time::Duration;

use kafka_protocol::messages::ApiKey;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The request is answered with this Kafka error code and not carried out.
    Error(i16),
    /// The request is taken up only after a time from this range.
    Delay(Duration, Duration),
    /// The request is neither carried out nor answered, and the connection stays open.
    Drop,
    /// The connection is cut before the request is carried out.
    Reset,
    /// The request is carried out, and the connection is cut instead of an answer.
    Lose,
    /// The request is carried out, and the connection is cut in the middle of the answer.
    Cut,
}

/// What happens to the cluster by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A partition, taken by chance, gets another leader, or the same one under a new epoch.
    MoveLeader,
    /// A group, taken by chance, gets another coordinator.
    MoveCoordinator,
    /// The members of a group, taken by chance, must join again.
    Rebalance,
    /// A node, taken by chance, goes down for so long.
    Restart(Duration),
}

/// What a fault meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Requests of one API, or of all but ApiVersions.
    Requests(Option<ApiKey>, Action),
    /// The cluster, about every so often.
    Cluster(Event, Duration),
}

/// One fault, as `--fault` asks for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// What.
    pub kind: Kind,
    /// Share of the requests (or times) that it meets, 0 to 1.
    pub probability: f64,
    /// Only the n-th request that it could meet, counted from 1.
    pub nth: Option<u64>,
    /// At most so often in all.
    pub times: Option<u64>,
    /// Not before this time since the start.
    pub after: Duration,
    /// Not at or after this time since the start.
    pub until: Option<Duration>,
    /// Only requests with this client id.
    pub client: Option<String>,
    /// As it is written, for messages and counts.
    pub text: String,
}

impl Fault {
    /// One that always strikes.
    pub fn new(kind: Kind, text: impl Into<String>) -> Self {
        let (nth, times, until, client) = (None, None, None, None);
        Fault { kind, probability: 1.0, nth, times, after: Duration::ZERO, until, client, text: text.into() }
    }
}

#[derive(Debug)]
struct Standing {
    fault: Fault,
    seen: u64,
    done: u64,
    due: Option<Duration>,
}

/// All faults of a cluster.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Standing>);

impl Faults {
    pub(super) fn new(faults: Vec<Fault>) -> Self {
        let standing = faults.into_iter().map(|fault| {
            let due = match fault.kind {
                Kind::Cluster(_, every) => Some(fault.after + every),
                Kind::Requests(..) => None,
            };
            Standing { fault, seen: 0, done: 0, due }
        });
        Faults(standing.collect())
    }

    /// What is to go wrong with a request: the first fault that meets it.
    pub(super) fn on_request(
        &mut self,
        key: ApiKey,
        client_id: &str,
        now: Duration,
        mut random: impl FnMut() -> u64,
    ) -> Option<Action> {
        for standing in &mut self.0 {
            let Kind::Requests(api, action) = standing.fault.kind else { continue };
            let meant = api.map_or(key != ApiKey::ApiVersions, |api| api == key);
            let client = standing.fault.client.as_deref();
            if meant && client.is_none_or(|client| client == client_id) && standing.strikes(now, &mut random)
            {
                return Some(action);
            }
        }
        None
    }

    /// The events that are due.
    pub(super) fn take_due(&mut self, now: Duration, mut random: impl FnMut() -> u64) -> Vec<Event> {
        let mut events = Vec::new();
        for standing in &mut self.0 {
            let Kind::Cluster(event, every) = standing.fault.kind else { continue };
            if standing.due.is_none_or(|due| now < due) {
                continue;
            }
            // Between half and one and a half of the time, so that faults do not march in step.
            let share = 500 + random() % 1001;
            standing.due = Some(now + (every * share as u32 / 1000).max(Duration::from_millis(1)));
            if standing.strikes(now, &mut random) {
                events.push(event);
            }
            if standing.is_over(now) {
                standing.due = None;
            }
        }
        events
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.0.iter().filter_map(|standing| standing.due).min()
    }

    /// How often each has struck, by its text.
    pub(super) fn counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for standing in &self.0 {
            *counts.entry(standing.fault.text.clone()).or_default() += standing.done;
        }
        counts
    }
}

impl Standing {
    /// Counts a request or a time; whether it is struck.
    fn strikes(&mut self, now: Duration, random: &mut impl FnMut() -> u64) -> bool {
        if now < self.fault.after || self.is_over(now) {
            return false;
        }
        self.seen += 1;
        let strikes = match self.fault.nth {
            Some(nth) => self.seen == nth,
            None => ((random() >> 11) as f64) < self.fault.probability * (1u64 << 53) as f64,
        };
        self.done += u64::from(strikes);
        strikes
    }

    fn is_over(&self, now: Duration) -> bool {
        self.fault.until.is_some_and(|until| now >= until)
            || self.fault.times.is_some_and(|times| self.done >= times)
            || self.fault.nth.is_some_and(|nth| self.seen >= nth)
    }
}
