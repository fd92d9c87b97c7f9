//! A consumer: a group member that knows where to start, fetches, and commits what its owner says is done.
//!
//! The owner takes [`Event`]s and answers two of them: after [`Event::Revoke`] it drains and calls
//! [`Consumer::drained`]; after its own decision to end it calls [`Consumer::stop`], drains, and calls
//! [`Consumer::close`]. Between, it gives offsets to [`Consumer::commit`] and says by [`Consumer::set_fetchable`]
//! which partitions it has room for. What concerns one subject is in one file: `membership` (coordinator, rounds,
//! revocations, commits, the end), `start` (where a partition begins, and resets), `fetching`, `broken` (what cannot be
//! read on).
//!
//! Invariants: no long poll in front of a heartbeat or a commit (see [`super::net::Purpose`]); a revocation ends
//! before the join that gives the partitions up; a position moves back only together with a new incarnation, and
//! answers to questions of an older incarnation are dropped.

mod broken;
mod fetching;
mod membership;
mod start;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::net::{Interest, Net, NetConfig, NetEvent};
use crate::api::{Api, Response};
use crate::commit::Committer;
use crate::error::{Class, Error, Fault, code};
use crate::fetch::{FetchConfig, FetchedBatch, Session};
use crate::group::{GroupConfig, Identity, Membership};
use crate::metadata::{TopicId, TopicPartition, TopicState};
use crate::offsets::OffsetAndEpoch;

/// Where a partition without a commit begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartFrom {
    /// At the start of the log.
    Earliest,
    /// At its end.
    Latest,
    /// At the first record that is not older than this, in ms since 1970; at the end if there is none.
    Timestamp(i64),
}

/// What to do when the position is outside the log, or the topic was made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Go to the start of the log.
    Earliest,
    /// Go to its end.
    Latest,
    /// Give up.
    Fail,
}

/// Settings of a consumer.
#[derive(Clone, Debug)]
pub struct ConsumerConfig {
    /// The member.
    pub group: GroupConfig,
    /// The fetches.
    pub fetch: FetchConfig,
    /// For partitions without a commit.
    pub from: StartFrom,
    /// For positions outside the log.
    pub out_of_range: Reset,
    /// For topics that were deleted and made again.
    pub recreated: Reset,
    /// Look up the end of each partition when it is first assigned.
    pub want_end: bool,
    /// How long the owner may drain at a revocation.
    pub revoke_timeout: Duration,
    /// How long a topic that was there may be unknown before it counts as gone.
    pub topic_timeout: Duration,
    /// Seed of the jitter.
    pub seed: u64,
}

/// A partition that is about to be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Which.
    pub at: TopicPartition,
    /// The first offset to be fetched and its leader epoch.
    pub position: OffsetAndEpoch,
    /// The end of the partition, if it was asked for.
    pub end: Option<i64>,
    /// The group has no offset, and who asks the log again would begin elsewhere: the position is to be committed
    /// though nothing is finished.
    pub is_new: bool,
}

/// Why partitions are gone without a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostReason {
    /// The coordinator does not know this member any more (error 25).
    UnknownMember,
    /// The generation went on without us (error 22).
    Generation,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// A generation has begun. `added` are new, `kept` go on as they are.
    Assigned {
        /// The generation.
        generation: i32,
        /// New partitions, each with its start.
        added: Vec<Start>,
        /// Partitions that were there before.
        kept: Vec<TopicPartition>,
    },
    /// These partitions are to be given up: drain them, then call [`Consumer::drained`], by the deadline.
    Revoke {
        /// Which.
        partitions: Vec<TopicPartition>,
        /// When draining has to end.
        deadline: Duration,
    },
    /// The commit of these partitions is done (or could not be had): fence them now.
    Revoked(Vec<TopicPartition>),
    /// These partitions belong to others already: fence them now, commit nothing.
    Lost(Vec<TopicPartition>, LostReason),
    /// Batches of one partition, in order.
    Fetched {
        /// Which.
        at: TopicPartition,
        /// Whole batches; records below the position that was asked for are to be dropped.
        batches: Vec<FetchedBatch>,
        /// Bytes of the batches.
        bytes: usize,
    },
    /// The position of a partition was moved: drop what is queued of it and begin again here.
    Moved {
        /// Which.
        at: TopicPartition,
        /// The next offset and its epoch.
        position: OffsetAndEpoch,
        /// Whether it was moved back, which begins a new assignment; else records were lost to retention.
        back: bool,
        /// The end of the partition, if it was asked for: asked again where the position was moved back.
        end: Option<i64>,
        /// For a person.
        why: String,
    },
    /// Offsets were stored.
    Committed(Vec<(TopicPartition, i64)>),
    /// A subscribed topic does not exist.
    TopicMissing(String),
    /// A topic that was missing exists.
    TopicFound(String),
    /// Something that a person should know; the consumer goes on.
    Notice(String),
    /// A broker cannot be reached: address and reason.
    BrokerDown(String, String),
    /// A broker can be reached again.
    BrokerUp(String),
    /// The consumer has ended, by [`Consumer::close`]; whether the last commit was stored.
    Closed {
        /// Whether everything that was to be committed is stored.
        committed: bool,
    },
    /// A partition or a topic cannot be read on: damaged, refused, or not what it was. What was fetched before can
    /// still be finished and committed (offsets that mean nothing any more are passed over): drain and close.
    Broken(Error),
    /// The consumer cannot go on, and nothing more can be committed: the group itself refuses it, or a broker speaks
    /// another protocol.
    Fatal(Error),
}

/// Names a request of the consumer.
#[derive(Debug)]
pub enum Tag {
    /// JoinGroup, by attempt.
    Join(u64),
    /// SyncGroup, by attempt.
    Sync(u64),
    /// Heartbeat, with what it was sent under and when.
    Heartbeat(Identity, Duration),
    /// OffsetCommit.
    Commit,
    /// LeaveGroup.
    Leave,
    /// OffsetFetch for these incarnations.
    OffsetFetch(Vec<(TopicPartition, u64)>),
    /// ListOffsets: what for, and for which incarnations.
    ListOffsets(start::Question, Vec<(TopicPartition, u64)>),
    /// OffsetForLeaderEpoch.
    EpochEnd(Vec<(TopicPartition, u64)>),
    /// Fetch from a node.
    Fetch(i32),
}

/// A partition that is owned.
#[derive(Debug)]
struct Partition {
    /// Changes whenever the position is moved by other means than fetching.
    incarnation: u64,
    topic_id: TopicId,
    phase: start::Phase,
    position: i64,
    /// Leader epoch of the batch before the position; -1 when unknown.
    epoch: i32,
    /// Leader epoch under which the position is known to be good, or is just being validated.
    leader_epoch: i32,
    end: Option<i64>,
    end_asked: bool,
    /// See [`Start::is_new`].
    is_new: bool,
    /// Last known end of what can be read; 0 before the first fetch.
    readable_end: i64,
    /// Whether the owner has been told of it.
    announced: bool,
    revoking: bool,
    /// Whether the owner has room.
    fetchable: bool,
    /// A follower to read from (KIP-392), and until when.
    replica: Option<(i32, Duration)>,
    not_before: Duration,
}

/// A topic whose identity is in doubt.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    since: Duration,
    /// How often the metadata said since then that it is unknown.
    unknown: u32,
}

/// So many answers at least must say that a topic is gone.
const UNKNOWN_MIN: u32 = 5;

/// The consumer.
pub struct Consumer {
    net: Net<Tag>,
    config: ConsumerConfig,
    topics: BTreeSet<String>,
    membership: Membership,
    committer: Committer,
    partitions: BTreeMap<TopicPartition, Partition>,
    sessions: BTreeMap<i32, Session>,
    events: VecDeque<Event>,
    incarnations: u64,
    revocation: Option<membership::Revocation>,
    /// The coordinator that the JoinGroup or SyncGroup of this round was sent to.
    round_node: Option<i32>,
    /// The broker that the newest heartbeat was sent to.
    heartbeat_node: Option<i32>,
    /// What the newest JoinGroup said that we own.
    claimed: BTreeSet<TopicPartition>,
    ending: membership::Ending,
    /// Since when a topic's identity is in doubt; its offsets are not committed meanwhile.
    unconfirmed: BTreeMap<String, Doubt>,
    missing: BTreeSet<String>,
    /// Topics that are broken and not looked at again.
    given_up: BTreeSet<String>,
    metadata_seen: bool,
    /// The topics that the members of a group that we lead subscribe to, and since when they are waited for.
    led_topics: BTreeSet<String>,
    counts_from: Option<Duration>,
    /// When the newest assignment came, until its partitions are announced.
    unannounced_since: Option<Duration>,
    commits_failed: u64,
    failed: bool,
}

impl Consumer {
    /// A consumer that begins with the first [`Consumer::poll`].
    pub fn new(net: NetConfig, config: ConsumerConfig, now: Duration) -> Self {
        let topics: BTreeSet<String> = config.group.topics.iter().cloned().collect();
        let mut net = Net::new(net);
        net.set_interest(Interest::Topics(topics.clone()), now);
        Consumer {
            membership: Membership::new(config.group.clone(), config.seed),
            committer: Committer::new(config.seed ^ 1),
            net,
            topics,
            partitions: BTreeMap::new(),
            sessions: BTreeMap::new(),
            events: VecDeque::new(),
            incarnations: 0,
            revocation: None,
            round_node: None,
            heartbeat_node: None,
            claimed: BTreeSet::new(),
            ending: membership::Ending::No,
            unconfirmed: BTreeMap::new(),
            missing: BTreeSet::new(),
            given_up: BTreeSet::new(),
            metadata_seen: false,
            led_topics: BTreeSet::new(),
            counts_from: None,
            unannounced_since: None,
            commits_failed: 0,
            failed: false,
            config,
        }
    }

    /// The connections.
    pub fn net(&mut self) -> &mut Net<Tag> {
        &mut self.net
    }

    /// What happened next.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Until when no other member can have been given our partitions; none before the first assignment.
    pub fn lease_until(&self) -> Option<Duration> {
        self.membership.lease_until()
    }

    /// Whether the member has an assignment and no rebalance is under way or wanted.
    pub fn is_settled(&self) -> bool {
        self.membership.is_settled() && self.revocation.is_none() && self.unannounced_since.is_none()
    }

    /// Whether every subscribed topic is known with its partitions. While one is not, an empty assignment says nothing.
    pub fn has_all_topics(&self) -> bool {
        self.topics.iter().all(|topic| self.net.metadata().has_partitions(topic))
    }

    /// Whether the group has been joined at least once.
    pub fn has_joined(&self) -> bool {
        self.membership.identity().generation >= 0
    }

    /// Commits of which nothing was stored; most of them were sent again.
    pub fn commits_failed(&self) -> u64 {
        self.commits_failed
    }

    /// The current generation.
    pub fn generation(&self) -> i32 {
        self.membership.identity().generation
    }

    /// The partitions that are owned and announced.
    pub fn owned(&self) -> impl Iterator<Item = &TopicPartition> {
        self.partitions.iter().filter(|(_, partition)| partition.announced).map(|(at, _)| at)
    }

    /// Whether there is (or may be) more to fetch of a partition than was fetched.
    pub fn has_backlog(&self, at: &TopicPartition) -> bool {
        self.partitions.get(at).is_some_and(|partition| partition.position < partition.readable_end)
    }

    /// The owner goes on here and not where the partition was just moved to, which lies behind records that it has not
    /// finished.
    pub fn rewind(&mut self, at: &TopicPartition, to: OffsetAndEpoch) {
        let incarnation = self.new_incarnation();
        let Some(partition) = self.partitions.get_mut(at) else { return };
        partition.incarnation = incarnation;
        (partition.position, partition.epoch) = (to.offset, to.epoch);
        // What has come for the other position.
        self.events.retain(|event| !matches!(event, Event::Fetched { at: of, .. } if of == at));
    }

    /// Says whether the owner has room for more of a partition. A partition without room is left out of the next
    /// fetch; one that is in flight still comes.
    pub fn set_fetchable(&mut self, at: &TopicPartition, fetchable: bool) {
        if let Some(partition) = self.partitions.get_mut(at) {
            partition.fetchable = fetchable;
        }
    }

    /// Sets the byte limits of the next fetches: of a whole answer, and of one partition in it.
    pub fn set_fetch_limits(&mut self, bytes_max: i32, partition_bytes_max: i32) {
        self.config.fetch.bytes_max = bytes_max;
        self.config.fetch.partition_bytes_max = partition_bytes_max;
    }

    /// Commits these offsets soon. Passed over are partitions that are not owned any more, and those about to be moved
    /// ([`Event::Moved`] follows): their offsets mean nothing any more.
    pub fn commit(&mut self, offsets: impl IntoIterator<Item = (TopicPartition, OffsetAndEpoch)>) {
        let partitions = &self.partitions;
        let ours = |at: &TopicPartition| partitions.get(at).is_some_and(|p| !p.is_moving_back());
        self.committer.want(offsets.into_iter().filter(|(at, _)| ours(at)));
    }

    /// Takes what the connections brought and sends what is due.
    pub fn poll(&mut self, now: Duration) {
        while let Some(event) = self.net.next_event() {
            match event {
                NetEvent::Outcome(tag, result) => self.on_outcome(tag, result, now),
                NetEvent::Metadata(_) => self.on_metadata(now),
                NetEvent::Down(address, why) => self.events.push_back(Event::BrokerDown(address, why)),
                NetEvent::Up(address) => self.events.push_back(Event::BrokerUp(address)),
            }
        }
        if self.failed {
            return;
        }
        self.poll_membership(now);
        self.poll_start(now);
        self.poll_fetch(now);
    }

    /// When [`Consumer::poll`] has something to do though nothing was received.
    pub fn deadline(&self) -> Option<Duration> {
        // What happened in a call of the owner, or in a poll after which it did not look.
        if !self.events.is_empty() {
            return Some(Duration::ZERO);
        }
        if self.failed {
            return None;
        }
        let partitions = self.partitions.values().filter_map(Partition::deadline);
        self.membership_deadline().into_iter().chain(partitions).chain(self.announce_deadline()).min()
    }

    fn on_outcome(&mut self, tag: Tag, result: Result<Response, Error>, now: Duration) {
        match tag {
            Tag::Join(attempt) => self.on_join(attempt, result, now),
            Tag::Sync(attempt) => self.on_sync(attempt, result, now),
            Tag::Heartbeat(identity, sent_at) => self.on_heartbeat(&identity, sent_at, result, now),
            Tag::Commit => self.on_commit(result, now),
            Tag::Leave => self.on_leave(),
            Tag::OffsetFetch(asked) => self.on_offset_fetch(&asked, result, now),
            Tag::ListOffsets(question, asked) => self.on_list_offsets(question, &asked, result, now),
            Tag::EpochEnd(asked) => self.on_epoch_end(&asked, result, now),
            Tag::Fetch(node) => self.on_fetch(node, result, now),
        }
    }

    fn fatal(&mut self, error: Error) {
        if !self.failed {
            self.failed = true;
            self.events.push_back(Event::Fatal(error));
        }
    }

    fn new_incarnation(&mut self) -> u64 {
        self.incarnations += 1;
        self.incarnations
    }

    // ---- topics ----

    fn on_metadata(&mut self, now: Duration) {
        self.metadata_seen = true;
        self.check_topic_ids();
        for topic in self.topics.difference(&self.given_up).cloned().collect::<Vec<_>>() {
            match self.net.metadata().topics.get(&topic) {
                Some(TopicState::Known(_)) => {
                    self.unconfirmed.remove(&topic);
                    if self.missing.remove(&topic) {
                        self.events.push_back(Event::TopicFound(topic));
                    }
                }
                Some(TopicState::Refused(code::UNKNOWN_TOPIC_OR_PARTITION)) | None => {
                    self.on_topic_unknown(topic, now);
                }
                Some(TopicState::Refused(refused)) => {
                    let error = Error::refused(Api::Metadata, *refused, None).at_topic(&topic);
                    if !matches!(error.class(), Class::Retry | Class::Leader) {
                        self.break_topic(&topic, error);
                    }
                }
            }
        }
        self.tell_leader_the_counts();
    }

    fn on_topic_unknown(&mut self, topic: String, now: Duration) {
        if self.partitions.keys().any(|at| *at.topic == *topic) {
            let doubt = self.unconfirmed.entry(topic.clone()).or_insert(Doubt { since: now, unknown: 0 });
            doubt.unknown += 1;
            // Two answers long apart, as around a stop of the process, may both have come from a broker that starts.
            if doubt.unknown >= UNKNOWN_MIN && doubt.since + self.config.topic_timeout <= now {
                let what = "the topic is gone: it was deleted while its records were read".to_owned();
                self.void_topic(&topic, Error::new(Fault::Policy(what)).at_topic(&topic));
            }
        } else {
            self.unconfirmed.remove(&topic);
            if self.missing.insert(topic.clone()) {
                self.events.push_back(Event::TopicMissing(topic));
            }
        }
    }

    /// A partition is of the topic that it was assigned in: an id that was unknown then is learned, another one means
    /// that the topic was made again. Between the two the topic may have been unknown, so the partition remembers.
    fn check_topic_ids(&mut self) {
        let mut recreated = BTreeSet::new();
        for (at, partition) in &mut self.partitions {
            let Some(id) = self.net.metadata().topic(&at.topic).map(|topic| topic.id) else { continue };
            if partition.topic_id.is_nil() {
                partition.topic_id = id;
            } else if !id.is_nil() && id != partition.topic_id {
                recreated.insert(at.topic.clone());
            }
        }
        for topic in recreated {
            self.on_recreated(&topic);
        }
    }

    fn on_recreated(&mut self, topic: &str) {
        if self.config.recreated == Reset::Fail {
            let what = "the topic was deleted and made again while its records were read; its old offsets mean \
                        nothing in the new one. Start with another group, or give -X auto.offset.reset to go on";
            return self.void_topic(topic, Error::new(Fault::Policy(what.to_owned())).at_topic(topic));
        }
        for at in self.owned_of(topic) {
            self.restart_partition(&at, self.config.recreated, "the topic was made again");
        }
    }

    /// The topic is not (or no longer) what we took it for: no commit until the metadata says what it is.
    fn doubt_topic(&mut self, topic: &str, now: Duration) {
        self.unconfirmed.entry(topic.to_owned()).or_insert(Doubt { since: now, unknown: 0 });
        self.net.want_metadata(now);
    }

    /// The topics to keep metadata for: ours, and what the members of a group that we lead subscribe to.
    fn set_topic_interest(&mut self, others: &BTreeSet<String>, now: Duration) {
        let all = self.topics.union(others).cloned().collect();
        self.net.set_interest(Interest::Topics(all), now);
    }
}

impl Partition {
    fn new(incarnation: u64, topic_id: TopicId) -> Self {
        Partition {
            incarnation,
            topic_id,
            phase: start::Phase::Committed { asked: false },
            position: 0,
            epoch: -1,
            leader_epoch: -1,
            end: None,
            end_asked: false,
            is_new: false,
            readable_end: 0,
            announced: false,
            revoking: false,
            fetchable: true,
            replica: None,
            not_before: Duration::ZERO,
        }
    }
}

/// A topic's name, shared.
fn shared(name: &str) -> Arc<str> {
    Arc::from(name)
}
