//! The members of one group: who is known, who leads, which protocol they share.
//!
//! Invariants: the leader is a member; a protocol exists that all members support; a member's id is never also
//! pending; SyncGroups are parked only in CompletingRebalance, JoinGroups only in PreparingRebalance.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::ResponseError;
use keylane_protocol::group::subscription::Subscription;

use super::member::{Member, Phase};
use super::messages::{JoinRefused, Joined, JoinedMember, Reply, Synced};

/// The protocol type of consumers; only its metadata has a form known to the broker.
const CONSUMER: &str = "consumer";

/// What is constant while one request or timer is worked through.
pub(super) struct Turn<'a, T> {
    pub(super) now: Duration,
    pub(super) initial_delay: Duration,
    pub(super) replies: &'a mut Vec<(T, Reply)>,
}

impl<T> Turn<'_, T> {
    pub(super) fn refuse_join(&mut self, ticket: T, error: ResponseError, member: &str) {
        let refused = JoinRefused { error, member: member.to_owned() };
        self.replies.push((ticket, Reply::Join(Err(refused))));
    }

    pub(super) fn refuse_sync(&mut self, ticket: T, error: ResponseError) {
        self.replies.push((ticket, Reply::Sync(Err(error))));
    }
}

/// One group.
#[derive(Debug)]
pub(super) struct Group<T> {
    pub(super) phase: Phase,
    /// Only grows.
    pub(super) generation: i32,
    /// `None`: never had members, so it only stores offsets.
    pub(super) protocol_type: Option<String>,
    /// The protocol of this generation.
    pub(super) protocol: Option<String>,
    pub(super) leader: Option<String>,
    pub(super) members: BTreeMap<String, Member<T>>,
    /// Ids given out with MEMBER_ID_REQUIRED and not used yet, and when they lapse.
    pub(super) pending: BTreeMap<String, Duration>,
    /// What this generation's members subscribe to; `None` where that cannot be told.
    subscribed: Option<BTreeSet<String>>,
    arrivals: u64,
}

impl<T> Group<T> {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Empty,
            generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            pending: BTreeMap::new(),
            subscribed: None,
            arrivals: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.phase == Phase::Empty
    }

    pub(super) fn is_leader(&self, id: &str) -> bool {
        self.leader.as_deref() == Some(id)
    }

    /// The member that holds an instance id.
    pub(super) fn static_member(&self, instance: &str) -> Option<&str> {
        let mut members = self.members.iter();
        members.find(|(_, member)| member.instance.as_deref() == Some(instance)).map(|(id, _)| id.as_str())
    }

    /// Whether a request may speak for a member.
    ///
    /// # Errors
    /// FENCED_INSTANCE_ID where another member holds the instance id, UNKNOWN_MEMBER_ID where none does.
    pub(super) fn validate(&self, id: &str, instance: Option<&str>) -> Result<(), ResponseError> {
        if let Some(instance) = instance {
            match self.static_member(instance) {
                None => return Err(ResponseError::UnknownMemberId),
                Some(holder) if holder != id => return Err(ResponseError::FencedInstanceId),
                Some(_) => {}
            }
        }
        if self.members.contains_key(id) { Ok(()) } else { Err(ResponseError::UnknownMemberId) }
    }

    pub(super) fn validate_generation(
        &self,
        id: &str,
        instance: Option<&str>,
        generation: i32,
    ) -> Result<(), ResponseError> {
        self.validate(id, instance)?;
        if generation == self.generation { Ok(()) } else { Err(ResponseError::IllegalGeneration) }
    }

    /// Whether a member of these protocols fits to the others.
    pub(super) fn supports(&self, protocol_type: &str, protocols: &[(String, Bytes)]) -> bool {
        if self.is_empty() {
            return !protocol_type.is_empty() && !protocols.is_empty();
        }
        self.protocol_type.as_deref() == Some(protocol_type)
            && protocols.iter().any(|(name, _)| self.all_support(name))
    }

    fn all_support(&self, protocol: &str) -> bool {
        self.members.values().all(|member| member.supports(protocol))
    }

    /// The protocol with the most votes; each member votes for the first of its own that all support. On equal votes
    /// the one the leader prefers (Kafka leaves that to a hash map).
    pub(super) fn select_protocol(&self) -> String {
        let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
        for member in self.members.values() {
            let vote = member.protocols.iter().find(|(name, _)| self.all_support(name));
            if let Some((name, _)) = vote {
                *votes.entry(name).or_default() += 1;
            }
        }
        let most = votes.values().max().copied();
        let leader = self.leader.as_deref().and_then(|leader| self.members.get(leader));
        let preferred = leader.into_iter().flat_map(|leader| &leader.protocols);
        let preferred = preferred.map(|(name, _)| name.as_str());
        let mut ranked = preferred.filter(|name| votes.get(name).copied() == most);
        // `supports` lets in, and lets change, only those who keep a common protocol; the leader supports it too.
        ranked.next().expect("all members share a protocol").to_owned()
    }

    /// Nobody is missing: every member has a parked JoinGroup and every id given out was used.
    pub(super) fn all_joined(&self) -> bool {
        self.pending.is_empty() && self.members.values().all(|member| member.joining.is_some())
    }

    /// How long members are waited for: as long as the most patient one allows.
    pub(super) fn rebalance_timeout(&self) -> Duration {
        self.members.values().map(|member| member.rebalance).max().unwrap_or_default()
    }

    /// Puts a member in, with its JoinGroup parked; the first one leads.
    pub(super) fn insert(&mut self, id: String, mut member: Member<T>, protocol_type: &str) {
        if self.members.is_empty() {
            self.protocol_type = Some(protocol_type.to_owned());
        }
        self.leader.get_or_insert_with(|| id.clone());
        self.pending.remove(&id);
        self.arrivals += 1;
        member.seniority = self.arrivals;
        self.members.insert(id, member);
    }

    /// Takes a member out and ends what it waits for. The next leader is the oldest member.
    pub(super) fn take_out(&mut self, id: &str, turn: &mut Turn<'_, T>) {
        self.pending.remove(id);
        if let Some(member) = self.members.remove(id) {
            if let Some(ticket) = member.joining {
                turn.refuse_join(ticket, ResponseError::UnknownMemberId, "");
            }
            if let Some(ticket) = member.syncing {
                turn.refuse_sync(ticket, ResponseError::UnknownMemberId);
            }
        }
        if self.is_leader(id) {
            self.leader = self.oldest(|_| true);
        }
    }

    /// The oldest member of a kind.
    pub(super) fn oldest(&self, kind: impl Fn(&Member<T>) -> bool) -> Option<String> {
        let of_kind = self.members.iter().filter(|(_, member)| kind(member));
        of_kind.min_by_key(|(_, member)| member.seniority).map(|(id, _)| id.clone())
    }

    /// Sets what follows from the members of a new generation.
    pub(super) fn begin_generation(&mut self) {
        self.generation = self.generation.saturating_add(1);
        self.protocol = (!self.members.is_empty()).then(|| self.select_protocol());
        self.subscribed = self.subscriptions();
        for member in self.members.values_mut() {
            member.synced = false;
        }
    }

    fn subscriptions(&self) -> Option<BTreeSet<String>> {
        if self.protocol_type.as_deref() != Some(CONSUMER) {
            return None;
        }
        let mut topics = BTreeSet::new();
        for member in self.members.values() {
            let metadata = member.metadata(self.protocol.as_deref()?);
            let (subscription, fault) = Subscription::decode_tolerant(metadata);
            if fault.is_some() && subscription.topics.is_empty() {
                return None;
            }
            topics.extend(subscription.topics);
        }
        Some(topics)
    }

    /// Whether the members read a topic; a group of consumers whose metadata is unreadable may read any.
    pub(super) fn is_subscribed(&self, topic: &str) -> bool {
        match &self.subscribed {
            Some(topics) => topics.contains(topic),
            None => self.is_consumers(),
        }
    }

    pub(super) fn is_consumers(&self) -> bool {
        self.protocol_type.as_deref() == Some(CONSUMER)
    }

    /// A member's place in the current generation.
    pub(super) fn joined(&self, id: &str, with_members: bool) -> Joined {
        let protocol = self.protocol.clone().unwrap_or_default();
        let listed = self.members.iter().filter(|_| with_members).map(|(id, member)| JoinedMember {
            id: id.clone(),
            instance: member.instance.clone(),
            metadata: member.metadata(&protocol),
        });
        let members = listed.collect();
        Joined {
            generation: self.generation,
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            protocol,
            leader: self.leader.clone().unwrap_or_default(),
            member: id.to_owned(),
            skip_assignment: false,
            members,
        }
    }

    /// A member's share of the current generation.
    pub(super) fn synced(&self, member: &Member<T>) -> Synced {
        Synced {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            protocol: self.protocol.clone().unwrap_or_default(),
            assignment: member.assignment.clone(),
        }
    }

    /// Panics where an invariant is broken.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.leader.is_some(), !self.members.is_empty());
        assert!(self.leader.as_ref().is_none_or(|leader| self.members.contains_key(leader)));
        assert!(self.pending.keys().all(|id| !self.members.contains_key(id)));
        if self.is_empty() {
            assert!(self.members.is_empty());
        }
        for member in self.members.values() {
            let preparing = matches!(self.phase, Phase::PreparingRebalance { .. });
            assert!(preparing || member.joining.is_none());
            let completing = matches!(self.phase, Phase::CompletingRebalance { .. });
            assert!(completing || member.syncing.is_none());
            assert!(member.syncing.is_none() || member.synced);
        }
        if !self.members.is_empty() {
            let leader = self.leader.as_ref().map(|leader| &self.members[leader]);
            assert!(
                leader.is_some_and(|leader| leader.protocols.iter().any(|(name, _)| self.all_support(name)))
            );
        }
    }
}
