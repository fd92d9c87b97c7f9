//! A classic group coordinator: who is in, which generation, who waits for whom. Offsets are in `offsets`.
//!
//! It follows Kafka's GroupCoordinator where a client can tell the difference. Waiting requests hold a ticket (their
//! index in the request log); the answer is filed under it when the round ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::{JoinGroupRequest, JoinGroupResponse};

use super::codes;
use super::offsets::Committed;
use super::phantom::Phantom;
use super::state::text;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Empty,
    PreparingRebalance,
    CompletingRebalance,
    Stable,
}

impl Phase {
    /// The word in DescribeGroups and ListGroups.
    pub fn word(self) -> &'static str {
        match self {
            Phase::Empty => "Empty",
            Phase::PreparingRebalance => "PreparingRebalance",
            Phase::CompletingRebalance => "CompletingRebalance",
            Phase::Stable => "Stable",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Member {
    pub instance: Option<String>,
    pub client_id: String,
    pub session: Duration,
    pub rebalance: Duration,
    pub protocols: Vec<(String, Bytes)>,
    /// The waiting JoinGroup.
    pub ticket: Option<usize>,
    pub assignment: Bytes,
    pub heard: Instant,
    /// Set for a member that lives inside the fake.
    pub phantom: Option<Phantom>,
    /// Order of arrival: the oldest leads.
    pub seniority: usize,
}

/// A group of the new protocol, for describe requests only.
#[derive(Clone, Debug)]
pub struct ConsumerGroup {
    pub state: String,
    pub members: usize,
}

#[derive(Debug)]
pub struct Group {
    pub phase: Phase,
    pub generation: i32,
    pub protocol_type: String,
    pub protocol: String,
    pub leader: String,
    pub members: BTreeMap<String, Member>,
    pub offsets: BTreeMap<(String, i32), Committed>,
    /// Set: DescribeGroups calls it dead and only ConsumerGroupDescribe knows it.
    pub consumer: Option<ConsumerGroup>,
    pending: BTreeSet<String>,
    answers: BTreeMap<usize, JoinGroupResponse>,
    /// Members not back by then are dropped.
    deadline: Option<Instant>,
    /// The round does not end before, though all are in.
    hold: Option<Instant>,
    arrivals: usize,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            phase: Phase::Empty,
            generation: 0,
            protocol_type: "consumer".to_owned(),
            protocol: String::new(),
            leader: String::new(),
            members: BTreeMap::new(),
            offsets: BTreeMap::new(),
            consumer: None,
            pending: BTreeSet::new(),
            answers: BTreeMap::new(),
            deadline: None,
            hold: None,
            arrivals: 0,
        }
    }
}

/// What a JoinGroup brings beside its body.
pub struct Joining<'a> {
    pub body: &'a JoinGroupRequest,
    pub version: i16,
    pub client_id: &'a str,
    /// The request's index.
    pub ticket: usize,
    /// Unique text for a new member id.
    pub fresh: String,
    pub initial_delay: Duration,
}

/// A JoinGroup answer that is only an error.
pub fn join_error(code: i16, member: &str) -> JoinGroupResponse {
    JoinGroupResponse::default()
        .with_error_code(code)
        .with_generation_id(-1)
        .with_protocol_name(Some(text("")))
        .with_member_id(text(member))
}

impl Group {
    /// Takes a JoinGroup in. `None`: it waits, see [`Group::take_join_answer`].
    pub fn join(&mut self, joining: &Joining<'_>, now: Instant) -> Option<JoinGroupResponse> {
        let body = joining.body;
        let asked = body.member_id.as_str();
        if body.group_id.is_empty() {
            return Some(join_error(codes::INVALID_GROUP_ID, asked));
        }
        if body.protocols.is_empty() || !self.fits(body) {
            return Some(join_error(codes::INCONSISTENT_GROUP_PROTOCOL, asked));
        }
        let instance = body.group_instance_id.as_ref().map(ToString::to_string);
        let known = instance.as_deref().and_then(|i| self.by_instance(i));
        let id = match (&instance, known) {
            (Some(_), Some(known)) if asked.is_empty() => return self.replace_static(&known, joining, now),
            (Some(_), Some(known)) if known != asked => {
                return Some(join_error(codes::FENCED_INSTANCE_ID, asked));
            }
            (Some(name), None) if asked.is_empty() => format!("{name}-{}", joining.fresh),
            (None, _) if asked.is_empty() => {
                let id = format!("{}-{}", joining.client_id, joining.fresh);
                if joining.version >= 4 {
                    self.pending.insert(id.clone());
                    return Some(join_error(codes::MEMBER_ID_REQUIRED, &id));
                }
                id
            }
            _ if self.pending.remove(asked) || self.members.contains_key(asked) => asked.to_owned(),
            _ => return Some(join_error(codes::UNKNOWN_MEMBER_ID, asked)),
        };
        self.admit(&id, instance, joining, now)
    }

    fn fits(&self, body: &JoinGroupRequest) -> bool {
        let mut others = self.members.iter().filter(|(id, m)| m.phantom.is_none() && **id != *body.member_id);
        let shared = |member: &Member| {
            member.protocols.iter().any(|(name, _)| body.protocols.iter().any(|p| p.name.as_str() == name))
        };
        others.all(|(_, member)| shared(member))
    }

    fn by_instance(&self, instance: &str) -> Option<String> {
        self.members.iter().find(|(_, m)| m.instance.as_deref() == Some(instance)).map(|(id, _)| id.clone())
    }

    /// A static member that comes back without its id: it takes the place of the old one, which is fenced.
    fn replace_static(
        &mut self,
        old: &str,
        joining: &Joining<'_>,
        now: Instant,
    ) -> Option<JoinGroupResponse> {
        let member = self.members.remove(old).expect("found by instance");
        if let Some(ticket) = member.ticket {
            self.answers.insert(ticket, join_error(codes::FENCED_INSTANCE_ID, old));
        }
        let instance = member.instance.clone();
        let id = format!("{}-{}", instance.as_deref().unwrap_or_default(), joining.fresh);
        let unchanged = member.protocols == protocols_of(joining.body);
        let leads = self.leader == old;
        if leads {
            self.leader.clone_from(&id);
        }
        self.members.insert(id.clone(), Member { ticket: None, heard: now, ..member });
        if self.phase == Phase::Stable && unchanged && (!leads || joining.version >= 9) {
            return Some(self.join_answer(&id, leads));
        }
        self.admit(&id, instance, joining, now)
    }

    fn admit(
        &mut self,
        id: &str,
        instance: Option<String>,
        joining: &Joining<'_>,
        now: Instant,
    ) -> Option<JoinGroupResponse> {
        let body = joining.body;
        let protocols = protocols_of(body);
        let same = self.members.get(id).is_some_and(|m| m.protocols == protocols);
        let settled = match self.phase {
            Phase::CompletingRebalance => same,
            Phase::Stable => same && self.leader != id,
            Phase::Empty | Phase::PreparingRebalance => false,
        };
        if settled {
            return Some(self.join_answer(id, false));
        }
        self.arrivals += 1;
        let old = self.members.remove(id);
        if let Some(ticket) = old.as_ref().and_then(|m| m.ticket) {
            self.answers.insert(ticket, join_error(codes::REBALANCE_IN_PROGRESS, id));
        }
        let millis = |value: i32| Duration::from_millis(value.max(0) as u64);
        let rebalance =
            if joining.version == 0 { body.session_timeout_ms } else { body.rebalance_timeout_ms };
        self.members.insert(
            id.to_owned(),
            Member {
                instance,
                client_id: joining.client_id.to_owned(),
                session: millis(body.session_timeout_ms),
                rebalance: millis(rebalance),
                protocols,
                ticket: Some(joining.ticket),
                assignment: old.as_ref().map(|m| m.assignment.clone()).unwrap_or_default(),
                heard: now,
                phantom: None,
                seniority: old.map_or(self.arrivals, |m| m.seniority),
            },
        );
        self.protocol_type = body.protocol_type.to_string();
        if self.phase == Phase::Empty {
            self.hold = Some(now + joining.initial_delay);
        }
        self.prepare(now);
        self.tick(now, true);
        self.answers.remove(&joining.ticket)
    }

    /// Begins a round, if none is under way.
    pub fn prepare(&mut self, now: Instant) {
        if self.phase != Phase::PreparingRebalance {
            self.phase = Phase::PreparingRebalance;
            let longest = self.members.values().map(|m| m.rebalance).max().unwrap_or_default();
            self.deadline = Some(now + longest);
        }
    }

    /// The answer of a JoinGroup that had to wait.
    pub fn take_join_answer(&mut self, ticket: usize) -> Option<JoinGroupResponse> {
        self.answers.remove(&ticket)
    }

    /// Time passes: sessions end, rounds end. Answers whether anything changed.
    pub fn tick(&mut self, now: Instant, expire: bool) -> bool {
        let mut changed = false;
        let late: Vec<String> = self
            .members
            .iter()
            .filter(|(_, m)| expire && m.phantom.is_none() && m.ticket.is_none() && now > m.heard + m.session)
            .map(|(id, _)| id.clone())
            .collect();
        for id in late {
            self.remove(&id, now);
            changed = true;
        }
        if self.phase == Phase::PreparingRebalance {
            let all = self.members.values().all(|m| m.back(now));
            let held = self.hold.is_some_and(|hold| now < hold);
            if (all && !held) || self.deadline.is_some_and(|deadline| now >= deadline) {
                self.complete(now);
                changed = true;
            }
        }
        changed
    }

    /// Ends the round: who is not back is dropped, the rest get the next generation.
    fn complete(&mut self, now: Instant) {
        self.members.retain(|_, m| m.back(now) || m.instance.is_some());
        self.hold = None;
        self.deadline = None;
        self.generation += 1;
        if self.members.is_empty() {
            self.phase = Phase::Empty;
            self.leader.clear();
            return;
        }
        self.phase = Phase::CompletingRebalance;
        self.choose();
        let ids: Vec<String> = self.members.keys().cloned().collect();
        for id in ids {
            let answer = self.join_answer(&id, false);
            let member = self.members.get_mut(&id).expect("listed above");
            member.heard = now;
            if let Some(ticket) = member.ticket.take() {
                self.answers.insert(ticket, answer);
            }
        }
        if self.members.get(&self.leader).is_some_and(|m| m.phantom.is_some()) {
            self.assign(BTreeMap::new(), now);
        }
    }

    /// The leader stays; else the oldest real member. The protocol is the first of the leader's that all know.
    fn choose(&mut self) {
        let real = |m: &&Member| m.phantom.is_none();
        if !self.members.get(&self.leader).as_ref().is_some_and(real) {
            let oldest = self.members.iter().min_by_key(|(_, m)| (m.phantom.is_some(), m.seniority));
            self.leader = oldest.map(|(id, _)| id.clone()).unwrap_or_default();
        }
        let leader = &self.members[&self.leader];
        let knows = |m: &Member, name: &str| m.protocols.iter().any(|(n, _)| n == name);
        let common = leader
            .protocols
            .iter()
            .find(|(name, _)| self.members.values().filter(real).all(|m| knows(m, name)));
        if let Some((name, _)) = common {
            self.protocol = name.clone();
        }
    }

    /// What the member is told of the current generation; the leader also who is in.
    fn join_answer(&self, id: &str, skip_assignment: bool) -> JoinGroupResponse {
        let mut answer = JoinGroupResponse::default()
            .with_generation_id(self.generation)
            .with_protocol_type(Some(text(self.protocol_type.clone())))
            .with_protocol_name(Some(text(self.protocol.clone())))
            .with_leader(text(self.leader.clone()))
            .with_skip_assignment(skip_assignment)
            .with_member_id(text(id));
        if self.leader == id {
            answer.members = self.members.iter().map(|(id, member)| self.listed(id, member)).collect();
        }
        answer
    }

    fn listed(&self, id: &str, member: &Member) -> JoinGroupResponseMember {
        let metadata = match &member.phantom {
            Some(phantom) => phantom.subscription(&self.protocol),
            None => {
                let chosen = member.protocols.iter().find(|(name, _)| *name == self.protocol);
                chosen.map(|(_, metadata)| metadata.clone()).unwrap_or_default()
            }
        };
        JoinGroupResponseMember::default()
            .with_member_id(text(id))
            .with_group_instance_id(member.instance.clone().map(text))
            .with_metadata(metadata)
    }

    /// The error of a request that claims to come from a member, if any.
    pub fn check(&self, member: &str, instance: Option<&str>, generation: i32) -> Option<i16> {
        if instance.and_then(|i| self.by_instance(i)).is_some_and(|known| known != member) {
            return Some(codes::FENCED_INSTANCE_ID);
        }
        if !self.members.contains_key(member) {
            return Some(codes::UNKNOWN_MEMBER_ID);
        }
        (generation != self.generation).then_some(codes::ILLEGAL_GENERATION)
    }

    pub fn hear(&mut self, member: &str, now: Instant) {
        if let Some(member) = self.members.get_mut(member) {
            member.heard = now;
        }
    }

    /// The leader's assignments: the group is stable.
    pub fn assign(&mut self, mut assignments: BTreeMap<String, Bytes>, now: Instant) {
        let mut again = false;
        for (id, member) in &mut self.members {
            member.assignment = assignments.remove(id).unwrap_or_default();
            if let Some(phantom) = &mut member.phantom {
                again |= phantom.assigned(&self.protocol, &member.assignment);
            }
        }
        self.phase = Phase::Stable;
        if again {
            self.prepare(now);
        }
    }

    /// Takes a member out; the others must join again. Answers whether it was in.
    pub fn remove(&mut self, id: &str, now: Instant) -> bool {
        let pending = self.pending.remove(id);
        let Some(member) = self.members.remove(id) else { return pending };
        if let Some(ticket) = member.ticket {
            self.answers.insert(ticket, join_error(codes::UNKNOWN_MEMBER_ID, id));
        }
        if self.members.is_empty() {
            self.phase = Phase::Empty;
            self.generation += 1;
            self.leader.clear();
        } else {
            self.prepare(now);
            self.tick(now, false);
        }
        true
    }

    /// Takes out the member of an instance id.
    pub fn remove_instance(&mut self, instance: &str, now: Instant) -> bool {
        self.by_instance(instance).is_some_and(|id| self.remove(&id, now))
    }

    /// A member inside the fake joins: a rebalance for everybody else.
    pub fn add_phantom(&mut self, id: &str, phantom: Phantom, now: Instant) {
        self.arrivals += 1;
        self.members.insert(
            id.to_owned(),
            Member {
                instance: None,
                client_id: "phantom".to_owned(),
                session: Duration::from_secs(3600),
                rebalance: Duration::ZERO,
                protocols: Vec::new(),
                ticket: None,
                assignment: Bytes::new(),
                heard: now,
                phantom: Some(phantom),
                seniority: self.arrivals,
            },
        );
        self.prepare(now);
        self.tick(now, false);
    }
}

impl Member {
    /// Whether it has joined the round under way. A phantom is always back, unless it is told to keep others waiting.
    fn back(&self, now: Instant) -> bool {
        match &self.phantom {
            Some(phantom) => phantom.back(now),
            None => self.ticket.is_some(),
        }
    }
}

fn protocols_of(body: &JoinGroupRequest) -> Vec<(String, Bytes)> {
    body.protocols.iter().map(|p| (p.name.to_string(), p.metadata.clone())).collect()
}
