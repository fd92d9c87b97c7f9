//! Fetch requests that wait for data, and fetch sessions (KIP-227).
//!
//! A fetch waits until `min_bytes` are there, something is wrong with one of its partitions, or its time is over. Only
//! an append, a leader's move or a deletion can end the wait early, and each of them touches the partition.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::{FetchRequest, FetchResponse};
use uuid::Uuid;

use super::api::fetch::{BY_ID_FROM, read, respond};
use super::api::{Call, Ticket};
use super::state::State;

/// Kafka's `max.incremental.fetch.session.cache.slots`.
const SESSIONS_MAX: usize = 1000;
/// As session epoch: no session.
const NO_SESSION: i32 = -1;

/// One partition of a fetch.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Empty where the id names no topic.
    pub(crate) topic: String,
    pub(crate) topic_id: Uuid,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) leader_epoch: i32,
    pub(crate) bytes_max: i32,
    /// High watermark and log start as the session's client knows them.
    told: Option<(i64, i64)>,
}

impl Asked {
    fn is(&self, other: &Asked, version: i16) -> bool {
        let same_topic =
            if version >= BY_ID_FROM { self.topic_id == other.topic_id } else { self.topic == other.topic };
        same_topic && self.partition == other.partition
    }
}

/// A fetch whose session is resolved.
#[derive(Debug)]
pub(crate) struct Plan {
    ticket: Ticket,
    pub(crate) node: i32,
    pub(crate) version: i16,
    /// Read committed.
    pub(crate) committed: bool,
    pub(crate) session: i32,
    /// Only what has news is told.
    incremental: bool,
    partitions: Vec<Asked>,
    bytes_min: usize,
    bytes_max: usize,
    deadline: Duration,
}

#[derive(Debug)]
struct Session {
    node: i32,
    /// Of the next request.
    epoch: i32,
    partitions: Vec<Asked>,
    used_at: Duration,
}

/// Sessions and waiting fetches of all nodes.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    sessions: HashMap<i32, Session>,
    parked: BTreeMap<Ticket, Plan>,
    /// Parked fetches by partition.
    waiting: HashMap<(String, i32), HashSet<Ticket>>,
    touched: HashSet<Ticket>,
}

impl Fetches {
    /// Keeps a fetch until something happens to one of its partitions or its time is over.
    pub(crate) fn park(&mut self, plan: Plan) {
        for asked in &plan.partitions {
            let key = (asked.topic.clone(), asked.partition);
            self.waiting.entry(key).or_default().insert(plan.ticket);
        }
        self.parked.insert(plan.ticket, plan);
    }

    fn unpark(&mut self, ticket: Ticket) -> Option<Plan> {
        let plan = self.parked.remove(&ticket)?;
        for asked in &plan.partitions {
            let key = (asked.topic.clone(), asked.partition);
            if let Some(waiting) = self.waiting.get_mut(&key) {
                waiting.remove(&ticket);
                if waiting.is_empty() {
                    self.waiting.remove(&key);
                }
            }
        }
        Some(plan)
    }

    /// Something happened to a partition: whoever waits for it looks again.
    pub(crate) fn touch(&mut self, topic: &str, partition: i32) {
        // Nobody waits where a pool keeps up with a producer; then the key is not even made.
        if !self.waiting.is_empty()
            && let Some(waiting) = self.waiting.get(&(topic.to_owned(), partition))
        {
            self.touched.extend(waiting);
        }
    }

    /// The connection is gone.
    pub(super) fn forget(&mut self, ticket: Ticket) {
        self.unpark(ticket);
        self.touched.remove(&ticket);
    }

    /// When a waiting fetch is to be answered at the latest.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.parked.values().map(|plan| plan.deadline).min()
    }

    /// A node was started anew: it knows none of its sessions.
    pub(super) fn forget_node(&mut self, node: i32) {
        self.sessions.retain(|_, session| session.node != node);
    }
}

impl State {
    /// Answers the waiting fetches that are due. True if there was one.
    pub(super) fn poll_fetches(&mut self) -> bool {
        let late = self.fetches.parked.values().filter(|plan| plan.deadline <= self.now);
        let mut look: Vec<Ticket> = late.map(|plan| plan.ticket).collect();
        let mut touched: Vec<Ticket> = self.fetches.touched.drain().collect();
        touched.sort_unstable();
        look.extend(touched);
        let mut answered = false;
        for ticket in look {
            let Some(plan) = self.fetches.parked.get(&ticket) else { continue };
            if self.is_due(plan)
                && let Some(plan) = self.fetches.unpark(ticket)
            {
                let response = self.answer_fetch(plan);
                self.reply(ticket, &response);
                answered = true;
            }
        }
        answered
    }

    /// Whether the fetch need not wait (any more).
    pub(crate) fn is_due(&self, plan: &Plan) -> bool {
        if plan.deadline <= self.now {
            return true;
        }
        let mut bytes = 0;
        for asked in &plan.partitions {
            let topic = self.topics.get(&asked.topic);
            let Some(partition) = topic.and_then(|topic| topic.partition(asked.partition)) else {
                return true;
            };
            let log = &partition.log;
            let wrong_place = partition.leader != plan.node
                || (asked.leader_epoch >= 0 && asked.leader_epoch != partition.leader_epoch)
                || !(log.start_offset()..=log.end_offset()).contains(&asked.offset);
            if wrong_place {
                return true;
            }
            let most = usize::try_from(asked.bytes_max).unwrap_or(0);
            bytes += log.available_bytes(asked.offset, plan.committed, most);
        }
        plan.partitions.is_empty()
            || bytes >= plan.bytes_min.min(plan.bytes_max).max(1)
            || plan.bytes_min == 0
    }

    /// Finds out what a request asks for, and makes, changes or ends its session.
    ///
    /// # Errors
    /// The Kafka error code for the whole request.
    pub(crate) fn plan_fetch(&mut self, call: &Call<'_>, request: &FetchRequest) -> Result<Plan, i16> {
        let explicit = self.asked(request, call.version);
        let (session, incremental, partitions) = self.resolve_session(call, request, explicit)?;
        let size = |bytes: i32| usize::try_from(bytes).unwrap_or(0);
        let wait = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0));
        Ok(Plan {
            ticket: call.ticket,
            node: call.node,
            version: call.version,
            committed: request.isolation_level == 1,
            session,
            incremental,
            partitions,
            bytes_min: size(request.min_bytes),
            bytes_max: size(request.max_bytes),
            deadline: self.now + wait,
        })
    }

    fn asked(&self, request: &FetchRequest, version: i16) -> Vec<Asked> {
        let mut all = Vec::new();
        for topic in &request.topics {
            let name = if version >= BY_ID_FROM {
                self.topics.name_of(topic.topic_id).unwrap_or_default().to_owned()
            } else {
                topic.topic.to_string()
            };
            all.extend(topic.partitions.iter().map(|partition| Asked {
                topic: name.clone(),
                topic_id: topic.topic_id,
                partition: partition.partition,
                offset: partition.fetch_offset,
                leader_epoch: partition.current_leader_epoch,
                bytes_max: partition.partition_max_bytes,
                told: None,
            }));
        }
        all
    }

    /// Session id, whether it existed before, and all of its partitions.
    fn resolve_session(
        &mut self,
        call: &Call<'_>,
        request: &FetchRequest,
        explicit: Vec<Asked>,
    ) -> Result<(i32, bool, Vec<Asked>), i16> {
        if call.version < 7 {
            return Ok((0, false, explicit));
        }
        if request.session_epoch <= 0 {
            // A full fetch ends the session that is named with it.
            self.fetches.sessions.remove(&request.session_id);
            if request.session_epoch == NO_SESSION {
                return Ok((0, false, explicit));
            }
            return Ok((self.open_session(call.node, &explicit), false, explicit));
        }
        let now = self.now;
        let known =
            self.fetches.sessions.get_mut(&request.session_id).filter(|found| found.node == call.node);
        let session = known.ok_or(ResponseError::FetchSessionIdNotFound.code())?;
        if session.epoch != request.session_epoch {
            return Err(ResponseError::InvalidFetchSessionEpoch.code());
        }
        session.epoch = session.epoch.checked_add(1).unwrap_or(1);
        session.used_at = now;
        for topic in &request.forgotten_topics_data {
            session.partitions.retain(|asked| {
                let same_topic = if call.version >= BY_ID_FROM {
                    asked.topic_id == topic.topic_id
                } else {
                    *asked.topic == **topic.topic
                };
                !(same_topic && topic.partitions.contains(&asked.partition))
            });
        }
        for new in explicit {
            match session.partitions.iter_mut().find(|old| old.is(&new, call.version)) {
                Some(old) => *old = Asked { told: old.told, ..new },
                None => session.partitions.push(new),
            }
        }
        Ok((request.session_id, true, session.partitions.clone()))
    }

    fn open_session(&mut self, node: i32, partitions: &[Asked]) -> i32 {
        if self.fetches.sessions.len() >= SESSIONS_MAX {
            let oldest = self.fetches.sessions.iter().min_by_key(|(id, session)| (session.used_at, **id));
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                self.fetches.sessions.remove(&oldest);
            }
        }
        loop {
            let id = (self.random() >> 33) as i32;
            if id != 0 && !self.fetches.sessions.contains_key(&id) {
                let session = Session { node, epoch: 1, partitions: partitions.to_vec(), used_at: self.now };
                self.fetches.sessions.insert(id, session);
                return id;
            }
        }
    }

    /// Reads what there is now.
    pub(crate) fn answer_fetch(&mut self, plan: Plan) -> FetchResponse {
        let mut left = plan.bytes_max;
        let mut first = true;
        let mut told: Vec<(&Asked, PartitionData)> = Vec::new();
        let mut with_data = Vec::new();
        for asked in &plan.partitions {
            let data = read(self, &plan, asked, left, first);
            let size = data.records.as_ref().map_or(0, bytes::Bytes::len);
            left = left.saturating_sub(size);
            first &= size == 0;
            let news = (data.high_watermark, data.log_start_offset);
            let known = !plan.incremental || asked.told != Some(news) || data.error_code != 0 || size > 0;
            if let Some(session) = self.fetches.sessions.get_mut(&plan.session)
                && let Some(kept) = session.partitions.iter_mut().find(|kept| kept.is(asked, plan.version))
            {
                // What failed is told again until it is mended.
                kept.told = (data.error_code == 0).then_some(news);
            }
            if size > 0 {
                with_data.push(asked.clone());
            }
            if known {
                told.push((asked, data));
            }
        }
        // Who has just had its turn goes last, so that a small limit starves nobody.
        if let Some(session) = self.fetches.sessions.get_mut(&plan.session) {
            let had = |asked: &Asked| with_data.iter().any(|other| other.is(asked, plan.version));
            session.partitions.sort_by_key(had);
        }
        respond(self, &plan, told)
    }
}
