//! A classic group coordinator in memory: join barrier, generations, sync, heartbeats, offsets, failover.
//!
//! After Kafka's GroupMetadataManager: what is persisted is the group as of the last SyncGroup of a leader, and the
//! offsets; a coordinator that takes over knows no more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::{
    HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, SyncGroupRequest,
    SyncGroupResponse,
};

use super::wire::Ticket;
use crate::api::{Response, text};
use crate::error::code;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Empty,
    Preparing,
    Completing,
    Stable,
}

#[derive(Clone, Debug)]
struct Member {
    protocols: Vec<(String, Bytes)>,
    session: Duration,
    rebalance: Duration,
    seen: Duration,
    join: Option<Ticket>,
    sync: Option<Ticket>,
    assignment: Bytes,
}

#[derive(Clone, Debug)]
struct Persisted {
    generation: i32,
    protocol: String,
    leader: String,
    members: BTreeMap<String, Member>,
}

/// Answers that are due.
pub(super) type Answers = Vec<(Ticket, Response)>;

/// The group and its coordinator.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) state: State,
    pub(super) generation: i32,
    protocol: String,
    leader: String,
    members: BTreeMap<String, Member>,
    /// Ids that were given and not used yet.
    given: BTreeSet<String>,
    next_id: u32,
    round_due: Option<Duration>,
    /// The first round waits for more members.
    first: bool,
    persisted: Persisted,
    pub(super) answers: Answers,
}

const FIRST_DELAY: Duration = Duration::from_millis(100);

impl Group {
    pub(super) fn new() -> Self {
        let persisted = Persisted {
            generation: 0,
            protocol: String::new(),
            leader: String::new(),
            members: BTreeMap::new(),
        };
        Group {
            state: State::Empty,
            generation: 0,
            protocol: String::new(),
            leader: String::new(),
            members: BTreeMap::new(),
            given: BTreeSet::new(),
            next_id: 0,
            round_due: None,
            first: false,
            persisted,
            answers: Vec::new(),
        }
    }

    // ---- requests ----

    pub(super) fn join(&mut self, request: &JoinGroupRequest, ticket: Ticket, now: Duration) {
        let id = request.member_id.to_string();
        if id.is_empty() {
            self.next_id += 1;
            let id = format!("member-{}", self.next_id);
            self.given.insert(id.clone());
            return self.refuse_join(ticket, code::MEMBER_ID_REQUIRED, &id);
        }
        let protocols: Vec<(String, Bytes)> =
            request.protocols.iter().map(|p| (p.name.to_string(), p.metadata.clone())).collect();
        let changed = match self.members.get(&id) {
            Some(member) => member.protocols != protocols,
            None if self.given.remove(&id) => true,
            None => return self.refuse_join(ticket, code::UNKNOWN_MEMBER_ID, &id),
        };
        let same_round =
            !changed && (self.state == State::Completing || self.state == State::Stable && self.leader != id);
        let millis = |ms: i32| Duration::from_millis(ms as u64);
        let member = self.members.entry(id.clone()).or_insert_with(|| Member {
            protocols: Vec::new(),
            session: millis(request.session_timeout_ms),
            rebalance: millis(request.rebalance_timeout_ms),
            seen: now,
            join: None,
            sync: None,
            assignment: Bytes::new(),
        });
        member.protocols = protocols;
        member.seen = now;
        member.join = Some(ticket);
        if same_round {
            return self.answer_join(&id);
        }
        self.prepare(now);
        self.complete_if_all_joined(now);
    }

    pub(super) fn sync(&mut self, request: &SyncGroupRequest, ticket: Ticket, now: Duration) {
        let id = request.member_id.to_string();
        let refused = match (self.members.get_mut(&id), self.state) {
            (None, _) | (_, State::Empty) => code::UNKNOWN_MEMBER_ID,
            _ if request.generation_id != self.generation => code::ILLEGAL_GENERATION,
            (_, State::Preparing) => code::REBALANCE_IN_PROGRESS,
            (Some(member), _) => {
                member.seen = now;
                member.sync = Some(ticket);
                if self.state == State::Completing && id == self.leader {
                    self.take_assignments(request);
                }
                if self.state == State::Stable {
                    self.answer_syncs(code::NONE);
                }
                return;
            }
        };
        let response = SyncGroupResponse::default().with_error_code(refused);
        self.answers.push((ticket, Response::SyncGroup(response)));
    }

    fn take_assignments(&mut self, request: &SyncGroupRequest) {
        for (id, member) in &mut self.members {
            let given = request.assignments.iter().find(|given| given.member_id.as_str() == id);
            member.assignment = given.map(|given| given.assignment.clone()).unwrap_or_default();
        }
        self.state = State::Stable;
        self.persist();
    }

    /// The code for a heartbeat.
    pub(super) fn heartbeat(&mut self, request: &HeartbeatRequest, now: Duration) -> i16 {
        match self.check(&request.member_id, request.generation_id, now) {
            code::NONE if self.state == State::Preparing => code::REBALANCE_IN_PROGRESS,
            checked => checked,
        }
    }

    /// The code for a commit.
    pub(super) fn commit(&mut self, member_id: &str, generation: i32, now: Duration) -> i16 {
        match self.check(member_id, generation, now) {
            code::NONE if self.state == State::Completing => code::REBALANCE_IN_PROGRESS,
            checked => checked,
        }
    }

    fn check(&mut self, member_id: &str, generation: i32, now: Duration) -> i16 {
        match self.members.get_mut(member_id) {
            None => code::UNKNOWN_MEMBER_ID,
            Some(_) if generation != self.generation => code::ILLEGAL_GENERATION,
            Some(member) => {
                member.seen = now;
                code::NONE
            }
        }
    }

    pub(super) fn leave(&mut self, request: &LeaveGroupRequest, now: Duration) {
        for member in &request.members {
            self.remove(member.member_id.as_str(), now);
        }
    }

    // ---- time and failover ----

    pub(super) fn deadline(&self) -> Option<Duration> {
        let idle = self.members.values().filter(|member| member.join.is_none() && member.sync.is_none());
        idle.map(|member| member.seen + member.session).chain(self.round_due).min()
    }

    pub(super) fn on_timeout(&mut self, now: Duration) {
        let silent = |member: &Member| {
            member.join.is_none() && member.sync.is_none() && member.seen + member.session <= now
        };
        let gone: Vec<String> =
            self.members.iter().filter(|(_, member)| silent(member)).map(|(id, _)| id.clone()).collect();
        for id in gone {
            self.remove(&id, now);
        }
        if self.round_due.is_some_and(|due| due <= now) {
            self.complete(now);
        }
    }

    /// Another broker takes over: it knows what was persisted.
    pub(super) fn fail_over(&mut self, now: Duration) {
        let ids: Vec<String> = self.members.keys().cloned().collect();
        for id in ids {
            if let Some(ticket) = self.members.get_mut(&id).and_then(|member| member.join.take()) {
                self.refuse_join(ticket, code::NOT_COORDINATOR, &id);
            }
        }
        self.answer_syncs(code::NOT_COORDINATOR);
        let Persisted { generation, protocol, leader, members } = self.persisted.clone();
        (self.generation, self.protocol, self.leader, self.members) = (generation, protocol, leader, members);
        for member in self.members.values_mut() {
            member.seen = now;
        }
        self.given.clear();
        self.round_due = None;
        self.state = if self.members.is_empty() { State::Empty } else { State::Stable };
    }

    /// The coordinator forgets a member, as after a session that ended unseen.
    pub(super) fn remove(&mut self, id: &str, now: Duration) {
        let Some(member) = self.members.remove(id) else { return };
        if let Some(ticket) = member.join {
            self.refuse_join(ticket, code::UNKNOWN_MEMBER_ID, id);
        }
        if self.state != State::Empty {
            self.prepare(now);
            self.complete_if_all_joined(now);
        }
    }

    fn persist(&mut self) {
        let mut members = self.members.clone();
        for member in members.values_mut() {
            (member.join, member.sync) = (None, None);
        }
        self.persisted = Persisted {
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            members,
        };
    }

    /// What is pending is never answered, as by a broker that hangs.
    pub(super) fn forget_tickets(&mut self) {
        for member in self.members.values_mut() {
            (member.join, member.sync) = (None, None);
        }
    }

    /// The id that was given last.
    pub(super) fn newest_id(&self) -> String {
        format!("member-{}", self.next_id)
    }

    // ---- rounds ----

    fn prepare(&mut self, now: Duration) {
        if self.state == State::Preparing {
            return;
        }
        if self.state == State::Completing {
            self.answer_syncs(code::REBALANCE_IN_PROGRESS);
        }
        self.first = self.state == State::Empty;
        let longest = self.members.values().map(|member| member.rebalance).max().unwrap_or_default();
        self.round_due = Some(now + if self.first { FIRST_DELAY } else { longest });
        self.state = State::Preparing;
    }

    fn complete_if_all_joined(&mut self, now: Duration) {
        let all = self.members.values().all(|member| member.join.is_some());
        if self.state == State::Preparing && all && !self.first {
            self.complete(now);
        }
    }

    fn complete(&mut self, now: Duration) {
        self.round_due = None;
        self.members.retain(|_, member| member.join.is_some());
        self.generation += 1;
        if self.members.is_empty() {
            self.state = State::Empty;
            return self.persist();
        }
        self.state = State::Completing;
        if !self.members.contains_key(&self.leader) {
            self.leader = self.members.keys().next().cloned().unwrap_or_default();
        }
        let everybody = |name: &str| {
            self.members.values().all(|member| member.protocols.iter().any(|(other, _)| other == name))
        };
        let offered = &self.members[&self.leader].protocols;
        self.protocol =
            offered.iter().find(|(name, _)| everybody(name)).expect("a common assignor").0.clone();
        let ids: Vec<String> = self.members.keys().cloned().collect();
        for id in ids {
            if let Some(member) = self.members.get_mut(&id) {
                member.seen = now;
            }
            self.answer_join(&id);
        }
    }

    fn answer_join(&mut self, id: &str) {
        let Some(ticket) = self.members.get_mut(id).and_then(|member| member.join.take()) else { return };
        let leads = *id == self.leader && self.state == State::Completing;
        let metadata = |member: &Member| {
            let chosen = member.protocols.iter().find(|(name, _)| *name == self.protocol);
            chosen.map(|(_, metadata)| metadata.clone()).unwrap_or_default()
        };
        let members = self.members.iter().filter(|_| leads).map(|(id, member)| {
            JoinGroupResponseMember::default().with_member_id(text(id)).with_metadata(metadata(member))
        });
        let response = JoinGroupResponse::default()
            .with_generation_id(self.generation)
            .with_protocol_type(Some(text("consumer")))
            .with_protocol_name(Some(text(&self.protocol)))
            .with_leader(text(&self.leader))
            .with_member_id(text(id))
            .with_members(members.collect());
        self.answers.push((ticket, Response::JoinGroup(response)));
    }

    fn refuse_join(&mut self, ticket: Ticket, refused: i16, id: &str) {
        let response = JoinGroupResponse::default()
            .with_error_code(refused)
            .with_generation_id(-1)
            .with_protocol_name(Some(text("")))
            .with_member_id(text(id));
        self.answers.push((ticket, Response::JoinGroup(response)));
    }

    fn answer_syncs(&mut self, error_code: i16) {
        for member in self.members.values_mut() {
            let Some(ticket) = member.sync.take() else { continue };
            let mut response = SyncGroupResponse::default().with_error_code(error_code);
            if error_code == code::NONE {
                response.assignment = member.assignment.clone();
            }
            self.answers.push((ticket, Response::SyncGroup(response)));
        }
    }
}
