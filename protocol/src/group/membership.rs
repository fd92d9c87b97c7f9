//! A member of a classic consumer group: join, sync, heartbeat, leave.
//!
//! The phases are types, and a step consumes one and returns the next: [`Out`] → [`Joining`] → [`Elected`] (the
//! leader, while it learns the partition counts) → [`Syncing`] → [`Stable`]. Member id and generation travel as one
//! value, [`Identity`], and change together.
//!
//! A heartbeat never waits for anything: while a new JoinGroup is pending the old identity goes on beating, so that
//! a member which keeps its partitions through the rebalance (KIP-429) always knows whether the coordinator still
//! counts on it. Answers that belong to an older identity are told from those that concern the current one, and
//! change nothing.
//!
//! Sources: KIP-62 (background heartbeats), KIP-345 (static members), KIP-394 (member id required), KIP-429
//! (cooperative), KIP-814 (skipAssignment).

mod phases;
mod standing;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    GroupId, JoinGroupRequest, JoinGroupResponse, SyncGroupRequest, SyncGroupResponse,
};

use self::phases::Phase;
pub use self::phases::{Elect, Elected, Joined, Joining, Out, Stable, Standing, Synced, Syncing};
use super::{Assignment, Assignor, GroupMember, MetadataError, Subscription};
use crate::api::{Api, text};
use crate::error::{Class, Error, classify, code};

/// Partitions by topic, sorted.
pub type Owned = BTreeMap<String, Vec<i32>>;

/// The protocol type of consumers.
const PROTOCOL_TYPE: &str = "consumer";

/// What a member brings along.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// `group.id`
    pub group: String,
    /// `group.instance.id`: a static member keeps its place over a restart (KIP-345).
    pub instance_id: Option<String>,
    /// Without a heartbeat for this long the coordinator removes the member.
    pub session_timeout: Duration,
    /// How long the coordinator waits for members to join again.
    pub rebalance_timeout: Duration,
    /// Time between heartbeats.
    pub heartbeat_interval: Duration,
    /// In order of preference.
    pub assignors: Vec<Assignor>,
    /// The subscription.
    pub topics: Vec<String>,
    /// `client.rack`
    pub rack: Option<String>,
}

impl GroupConfig {
    /// Whether partitions are kept through a rebalance. As in Java, all assignors on the list must be able to.
    pub fn is_cooperative(&self) -> bool {
        self.assignors.iter().all(|assignor| assignor.is_cooperative())
    }
}

/// Member id and generation: they change together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Empty before the coordinator gives one.
    pub member_id: String,
    /// -1 outside a generation.
    pub generation: i32,
}

impl Identity {
    fn new(member_id: String) -> Self {
        Identity { member_id, generation: -1 }
    }
}

/// A member.
#[derive(Debug)]
pub struct Membership {
    config: GroupConfig,
    identity: Identity,
    phase: Phase,
    attempts: u64,
    failures: u32,
    heartbeat_due: Duration,
    heartbeat_in_flight: bool,
    /// Until when the coordinator certainly counts on us: sent time of the newest answered request + session timeout,
    /// but no longer than `calm_at` + rebalance timeout.
    lease_until: Option<Duration>,
    /// Sent time of the newest request whose answer said that no rebalance was under way. A rebalance that has begun
    /// since leaves out who has not joined within the rebalance timeout, whatever its heartbeats are told meanwhile.
    calm_at: Duration,
    /// The newest assignment and its generation, for the sticky assignor's user data.
    last_assignment: (Owned, i32),
    random: u64,
}

/// First pause after an answer that calls for another try.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Membership {
    /// Not a member yet.
    pub fn new(config: GroupConfig, seed: u64) -> Self {
        assert!(!config.assignors.is_empty(), "an assignor is needed");
        Membership {
            config,
            identity: Identity::new(String::new()),
            phase: Phase::Out(Out { not_before: Duration::ZERO }),
            attempts: 0,
            failures: 0,
            heartbeat_due: Duration::ZERO,
            heartbeat_in_flight: false,
            lease_until: None,
            calm_at: Duration::ZERO,
            last_assignment: (Owned::new(), -1),
            random: seed,
        }
    }

    /// As if the newest rounds had passed unseen.
    #[cfg(test)]
    pub(crate) fn set_generation_for_test(&mut self, generation: i32) {
        self.identity.generation = generation;
    }

    /// What the member brought along.
    pub fn config(&self) -> &GroupConfig {
        &self.config
    }

    /// The current member id and generation.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether offsets may be committed now: inside a generation, and not between the answers to JoinGroup and
    /// SyncGroup, when the coordinator refuses them (and an old generation is already refused).
    pub fn may_commit(&self) -> bool {
        self.identity.generation >= 0 && matches!(self.phase, Phase::Stable(_) | Phase::Joining(_))
    }

    /// Whether the member has an assignment and no rebalance is under way or wanted.
    pub fn is_settled(&self) -> bool {
        matches!(&self.phase, Phase::Stable(stable) if !stable.rejoin)
    }

    /// Whether a JoinGroup or SyncGroup is out or about to be.
    pub fn is_rebalancing(&self) -> bool {
        matches!(self.phase, Phase::Joining(_) | Phase::Elected(_) | Phase::Syncing(_))
    }

    /// Whether the member is outside a round, with none pending.
    pub fn is_out(&self) -> bool {
        matches!(self.phase, Phase::Out(_))
    }

    /// Whether the join was answered and the sync is not yet.
    pub fn is_between_join_and_sync(&self) -> bool {
        matches!(self.phase, Phase::Elected(_) | Phase::Syncing(_))
    }

    /// Until when no other member can have been given our partitions.
    pub fn lease_until(&self) -> Option<Duration> {
        self.lease_until
    }

    /// Whether [`Membership::join`] is due.
    pub fn wants_join(&self, now: Duration) -> bool {
        match &self.phase {
            Phase::Out(out) => out.not_before <= now,
            Phase::Stable(stable) => stable.rejoin,
            _ => false,
        }
    }

    /// A new round is wanted: partitions are to be given up, or the leader saw a topic change.
    pub fn want_rejoin(&mut self) {
        if let Phase::Stable(stable) = &mut self.phase {
            stable.rejoin = true;
        }
    }

    /// When the next heartbeat is due; none while one is in flight.
    pub fn heartbeat_deadline(&self) -> Option<Duration> {
        (self.beats() && !self.heartbeat_in_flight).then_some(self.heartbeat_due)
    }

    /// When [`Membership::join`] is due.
    pub fn join_deadline(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Out(out) => Some(out.not_before),
            Phase::Stable(stable) if stable.rejoin => Some(Duration::ZERO),
            _ => None,
        }
    }

    fn beats(&self) -> bool {
        // One that is out of a round and about to end joins no other, and yet has a drain to finish under its lease.
        self.identity.generation >= 0 && !matches!(self.phase, Phase::Ended)
    }

    // ---- join ----

    /// The JoinGroup request and the number of this attempt; `owned` is what is still held.
    pub fn join(&mut self, owned: &Owned) -> (JoinGroupRequest, u64) {
        self.attempts += 1;
        self.phase = Phase::Joining(Joining { attempt: self.attempts });
        let protocols = self
            .config
            .assignors
            .iter()
            .map(|assignor| {
                // The sticky assignor's members give up everything first, so it goes by the last assignment.
                let (held, generation) = if assignor.is_cooperative() {
                    (owned, self.identity.generation)
                } else {
                    (&self.last_assignment.0, self.last_assignment.1)
                };
                let subscription = Subscription {
                    topics: self.config.topics.clone(),
                    user_data: assignor.user_data(held, generation),
                    owned: owned.clone(),
                    generation: self.identity.generation,
                    rack: self.config.rack.clone(),
                };
                JoinGroupRequestProtocol::default()
                    .with_name(text(assignor.name()))
                    .with_metadata(subscription.encode())
            })
            .collect();
        let request = JoinGroupRequest::default()
            .with_group_id(self.group_id())
            .with_session_timeout_ms(millis(self.config.session_timeout))
            .with_rebalance_timeout_ms(millis(self.config.rebalance_timeout))
            .with_member_id(text(&self.identity.member_id))
            .with_group_instance_id(self.config.instance_id.as_deref().map(text))
            .with_protocol_type(text(PROTOCOL_TYPE))
            .with_protocols(protocols);
        (request, self.attempts)
    }

    /// Whether an answer to this attempt is still awaited.
    pub fn awaits(&self, attempt: u64) -> bool {
        match &self.phase {
            Phase::Joining(joining) => joining.attempt == attempt,
            Phase::Syncing(syncing) => syncing.attempt == attempt,
            _ => false,
        }
    }

    /// The answer to the JoinGroup that is awaited (see [`Membership::awaits`]).
    ///
    /// # Errors
    /// The group refuses us for good.
    pub fn on_join(
        &mut self,
        answer: Result<JoinGroupResponse, Error>,
        now: Duration,
    ) -> Result<Joined, Error> {
        assert!(matches!(self.phase, Phase::Joining(_)), "on_join in {:?}", self.phase);
        let response = match answer {
            Ok(response) => response,
            Err(error) => return self.join_failed(error, now),
        };
        match response.error_code {
            code::NONE => {}
            code::MEMBER_ID_REQUIRED => {
                self.identity = Identity::new(response.member_id.to_string());
                self.phase = Phase::Out(Out { not_before: now });
                return Ok(Joined::Again);
            }
            code::UNKNOWN_MEMBER_ID => {
                self.forget_member(now);
                return Ok(Joined::Lost);
            }
            refused => {
                let error = Error::refused(Api::JoinGroup, refused, None).at_group(&self.config.group);
                return self.join_failed(error, now);
            }
        }
        self.failures = 0;
        let from = self.identity.generation;
        // The leader of the next generation hears what we own. Of one that came and went while our answer was lost
        // we know nothing, and our claim to what we own counts no more (KIP-792).
        let next = from.checked_add(1);
        let missed = from >= 0 && response.generation_id != from && Some(response.generation_id) != next;
        self.identity =
            Identity { member_id: response.member_id.to_string(), generation: response.generation_id };
        let name = response.protocol_name.as_ref().map_or("", |name| name.as_str());
        let Some(assignor) = self.config.assignors.iter().copied().find(|assignor| assignor.name() == name)
        else {
            self.phase = Phase::Ended;
            let what = format!("the coordinator chose the assignor \"{name}\", which was not offered");
            return Err(Error::peer(what).at_api(Api::JoinGroup).at_group(&self.config.group));
        };
        let leads = response.leader == response.member_id;
        let mut topics: BTreeSet<String> = BTreeSet::new();
        let mut members = BTreeMap::new();
        let mut unreadable = Vec::new();
        if leads {
            for member in response.members {
                let (subscription, fault) = Subscription::decode_tolerant(member.metadata);
                unreadable.extend(fault.map(|fault| (member.member_id.to_string(), fault)));
                topics.extend(subscription.topics.iter().cloned());
                let instance_id = member.group_instance_id.map(|id| id.to_string());
                members.insert(member.member_id.to_string(), GroupMember { subscription, instance_id });
            }
        }
        let skip = response.skip_assignment || !leads;
        self.phase = Phase::Elected(Elected { from, assignor, members, skip });
        Ok(if leads {
            Joined::Leader(Elect { topics, unreadable, missed })
        } else {
            Joined::Follower { missed }
        })
    }

    fn join_failed(&mut self, error: Error, now: Duration) -> Result<Joined, Error> {
        let class = error.class();
        let lost_connection = error.code().is_none();
        match class {
            Class::Denied | Class::Refused => {
                self.phase = Phase::Ended;
                return Err(error.at_group(&self.config.group));
            }
            Class::Membership if error.code() == Some(code::FENCED_INSTANCE_ID) => {
                self.phase = Phase::Ended;
                return Err(error.at_group(&self.config.group));
            }
            _ => {}
        }
        self.pause(now);
        // A broken connection may be a broken coordinator: look for it again.
        Ok(if lost_connection || class == Class::Coordinator { Joined::Coordinator } else { Joined::Again })
    }

    /// Back to [`Out`] with a pause that grows with the failures in a row.
    fn pause(&mut self, now: Duration) {
        self.failures += 1;
        let pause = crate::client::net::backoff(PAUSE, PAUSE_MAX, self.failures, &mut self.random);
        self.phase = Phase::Out(Out { not_before: now + pause });
    }

    /// The coordinator does not know us: join as a new member.
    fn forget_member(&mut self, now: Duration) {
        self.identity = Identity::new(String::new());
        self.lease_until = None;
        self.pause(now);
    }

    /// The generation is over for us: join again under the same id.
    fn forget_generation(&mut self, now: Duration) {
        self.identity.generation = -1;
        self.lease_until = None;
        self.phase = Phase::Out(Out { not_before: now });
    }

    /// The coordinator has moved: what was asked of the old one in this round will not be answered, or says nothing
    /// any more. The new one knows no generation that was not synced, so the claim to what is owned is the one from
    /// before the join.
    pub fn restart_round(&mut self, now: Duration) {
        match &self.phase {
            Phase::Elected(Elected { from, .. }) | Phase::Syncing(Syncing { from, .. }) => {
                self.identity.generation = *from;
            }
            Phase::Joining(_) => {}
            Phase::Out(_) | Phase::Stable(_) | Phase::Ended => return,
        }
        self.phase = Phase::Out(Out { not_before: now });
    }

    // ---- sync ----

    /// Whether [`Membership::sync`] is due.
    pub fn is_elected(&self) -> bool {
        matches!(self.phase, Phase::Elected(_))
    }

    /// The SyncGroup request and the number of this attempt. `counts` are the partitions of the topics that
    /// [`Joined::Leader`] named; topics that do not exist are left out.
    pub fn sync(&mut self, counts: &BTreeMap<String, i32>, now: Duration) -> (SyncGroupRequest, u64) {
        let Phase::Elected(elected) = std::mem::replace(&mut self.phase, Phase::Ended) else {
            panic!("sync without an answer to JoinGroup");
        };
        let leads = !elected.members.is_empty();
        let assignments = if elected.skip || !leads {
            Vec::new()
        } else {
            elected
                .assignor
                .assign(&elected.members, counts)
                .into_iter()
                .map(|(member, assignment)| {
                    SyncGroupRequestAssignment::default()
                        .with_member_id(text(&member))
                        .with_assignment(assignment.encode())
                })
                .collect()
        };
        self.attempts += 1;
        self.phase = Phase::Syncing(Syncing {
            attempt: self.attempts,
            from: elected.from,
            led: leads.then(|| counts.clone()),
            sent_at: now,
        });
        let request = SyncGroupRequest::default()
            .with_group_id(self.group_id())
            .with_generation_id(self.identity.generation)
            .with_member_id(text(&self.identity.member_id))
            .with_group_instance_id(self.config.instance_id.as_deref().map(text))
            .with_protocol_type(Some(text(PROTOCOL_TYPE)))
            .with_protocol_name(Some(text(elected.assignor.name())))
            .with_assignments(assignments);
        (request, self.attempts)
    }

    /// The answer to the SyncGroup that is awaited.
    ///
    /// # Errors
    /// The group refuses us for good, or the leader sent bytes that are no assignment.
    pub fn on_sync(
        &mut self,
        answer: Result<SyncGroupResponse, Error>,
        now: Duration,
    ) -> Result<Synced, Error> {
        let Phase::Syncing(syncing) = std::mem::replace(&mut self.phase, Phase::Ended) else {
            panic!("on_sync without SyncGroup");
        };
        let response = match answer {
            Ok(response) => response,
            Err(error) => {
                return match error.class() {
                    Class::Denied | Class::Refused => Err(error.at_group(&self.config.group)),
                    _ => {
                        self.identity.generation = syncing.from;
                        self.pause(now);
                        Ok(Synced::Coordinator)
                    }
                };
            }
        };
        let refused =
            || Error::refused(Api::SyncGroup, response.error_code, None).at_group(&self.config.group);
        match response.error_code {
            code::NONE => {}
            code::UNKNOWN_MEMBER_ID => {
                self.forget_member(now);
                return Ok(Synced::Lost);
            }
            code::ILLEGAL_GENERATION => {
                self.forget_generation(now);
                return Ok(Synced::Lost);
            }
            code::REBALANCE_IN_PROGRESS => {
                // The next round has begun already; what is owned is taken along.
                self.phase = Phase::Out(Out { not_before: now });
                return Ok(Synced::Again);
            }
            code::FENCED_INSTANCE_ID => return Err(refused()),
            other => match classify(Api::SyncGroup, other) {
                Class::Denied | Class::Refused => return Err(refused()),
                class => {
                    self.identity.generation = syncing.from;
                    self.pause(now);
                    return Ok(if class == Class::Coordinator { Synced::Coordinator } else { Synced::Again });
                }
            },
        }
        let partitions = if response.assignment.is_empty() {
            Owned::new()
        } else {
            Assignment::decode(response.assignment)
                .map_err(|error| {
                    let what = format!("the assignment by the group's leader cannot be read: {error}");
                    Error::peer(what).at_api(Api::SyncGroup).at_group(&self.config.group)
                })?
                .partitions
        };
        self.calm_at = syncing.sent_at;
        self.lease_until =
            Some(syncing.sent_at + self.config.session_timeout.min(self.config.rebalance_timeout));
        self.heartbeat_due = now + self.config.heartbeat_interval;
        self.last_assignment = (partitions.clone(), self.identity.generation);
        self.phase = Phase::Stable(Stable { led: syncing.led, rejoin: false });
        Ok(Synced::Assigned(partitions))
    }

    /// The topics that this member counted as the leader of the current generation.
    pub fn led_topics(&self) -> Option<&BTreeMap<String, i32>> {
        match &self.phase {
            Phase::Stable(stable) => stable.led.as_ref(),
            _ => None,
        }
    }

    /// Tells a leader what the topics look like now; a change calls for a new round. Returns whether it does.
    ///
    /// A topic that was not there and is now is a change. One that is not there any more is none: a broker that has
    /// just started may not know it yet, and its members find out by themselves if it is gone.
    pub fn on_counts(&mut self, counts: &BTreeMap<String, i32>) -> bool {
        match &mut self.phase {
            Phase::Stable(stable)
                if !stable.rejoin
                    && stable.led.as_ref().is_some_and(|led| {
                        counts.iter().any(|(topic, count)| led.get(topic) != Some(count))
                    }) =>
            {
                stable.rejoin = true;
                true
            }
            _ => false,
        }
    }

    fn group_id(&self) -> GroupId {
        GroupId(text(&self.config.group))
    }
}

fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}
