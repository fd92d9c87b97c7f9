//! The consumer's dealings with its coordinator: rounds, revocations, heartbeats, commits, the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Consumer, Event, LostReason, Partition, Tag, shared};
use crate::api::messages::LeaveGroupRequest;
use crate::api::{Api, Response};
use crate::client::net::{Purpose, To};
use crate::error::{Error, code};
use crate::group::membership::{Elect, Joined, Standing, Synced};
use crate::group::{Identity, Owned};
use crate::metadata::TopicPartition;
use crate::offsets::OffsetAndEpoch;

/// Partitions on their way out: drain, commit, fence; only then the next JoinGroup.
#[derive(Debug)]
pub(super) struct Revocation {
    partitions: BTreeSet<TopicPartition>,
    /// The owner has to be done by then; the commit may take [`COMMIT_GRACE`] more.
    deadline: Duration,
    drained: bool,
}

/// How far the end has come.
#[derive(Debug)]
pub(super) enum Ending {
    No,
    /// Nothing new is fetched or joined.
    Stopping,
    /// The last commit is under way.
    Committing {
        until: Duration,
        /// What was to be committed was lost to another member meanwhile.
        lost: bool,
    },
    /// LeaveGroup is out, or waits for a coordinator to be found.
    Leaving {
        until: Duration,
        committed: bool,
        request: Option<LeaveGroupRequest>,
    },
    Closed,
}

/// For the commit that follows a drain that took all its time.
const COMMIT_GRACE: Duration = Duration::from_secs(2);
/// For the answer to LeaveGroup.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a leader waits for the metadata of topics that only other members subscribe to.
const COUNTS_WAIT: Duration = Duration::from_secs(2);

impl Consumer {
    pub(super) fn poll_membership(&mut self, now: Duration) {
        self.poll_ending(now);
        if matches!(self.ending, Ending::Closed) {
            return;
        }
        self.finish_revocation(now);
        if self.lacks_topics() {
            self.net.want_metadata(now);
        }
        let node = match self.net.coordinator(&self.config.group.group, now) {
            Ok(Some(node)) => node,
            Ok(None) => return,
            Err(error) => return self.fatal(error),
        };
        if self.membership.is_rebalancing() && self.round_node.is_some_and(|asked| asked != node) {
            self.membership.restart_round(now);
        }
        if self.heartbeat_node.is_some_and(|asked| asked != node) {
            self.membership.abandon_heartbeat(now);
        }
        if let Some(request) = self.membership.heartbeat(now) {
            self.heartbeat_node = Some(node);
            let tag = Tag::Heartbeat(self.membership.identity().clone(), now);
            self.net.send(To::Node(node, Purpose::Group), request, tag, Duration::ZERO, now);
        }
        if self.membership.wants_join(now) && matches!(self.ending, Ending::No) && self.metadata_seen {
            self.join(node, now);
        }
        if self.membership.is_elected() {
            self.sync(node, now);
        }
        self.send_commit(node, now);
    }

    pub(super) fn membership_deadline(&self) -> Option<Duration> {
        if matches!(self.ending, Ending::Closed) {
            return None;
        }
        let group = &self.config.group.group;
        let revocation = self.revocation.as_ref().map(|revocation| revocation.deadline + COMMIT_GRACE);
        let ending = match &self.ending {
            Ending::Committing { until, .. } | Ending::Leaving { until, .. } => Some(*until),
            _ => None,
        };
        // A deadline that cannot be acted on now would spin the loop; what it waits for wakes it.
        let Some(node) = self.net.known_coordinator(group) else {
            return [revocation, ending, self.net.coordinator_due(group)].into_iter().flatten().min();
        };
        let may_join = matches!(self.ending, Ending::No) && self.revocation.is_none() && self.metadata_seen;
        let join = self.membership.join_deadline().filter(|_| may_join);
        let counts =
            self.counts_from.filter(|_| self.membership.is_elected()).map(|since| since + COUNTS_WAIT);
        let held = |at: &TopicPartition| self.unconfirmed.contains_key(&*at.topic);
        let ready = self.may_commit() && self.net.is_ready(To::Node(node, Purpose::Group));
        let commit = self.committer.deadline(held).filter(|_| ready);
        let heartbeat = self.membership.heartbeat_deadline();
        [revocation, ending, join, counts, commit, heartbeat].into_iter().flatten().min()
    }

    /// Whether a topic is missing, in doubt, or not ready: our own, or one that a member subscribes to whom we lead.
    fn lacks_topics(&self) -> bool {
        let leads = self.membership.led_topics().is_some();
        !self.unconfirmed.is_empty()
            || !self.missing.is_empty()
            || (self.metadata_seen && !self.has_all_topics())
            || (leads && self.led_topics.iter().any(|topic| !self.net.metadata().has_partitions(topic)))
    }

    // ---- rounds ----

    fn join(&mut self, node: i32, now: Duration) {
        if self.revocation.is_some() {
            return;
        }
        if !self.config.group.is_cooperative() && !self.partitions.is_empty() {
            let all = self.partitions.keys().cloned().collect();
            self.unannounced_since = None;
            return self.start_revocation(all, now);
        }
        let mut owned = Owned::new();
        for at in self.partitions.keys() {
            owned.entry(at.topic.to_string()).or_default().push(at.partition);
        }
        self.round_node = Some(node);
        self.claimed = self.partitions.keys().cloned().collect();
        let (request, attempt) = self.membership.join(&owned);
        let wait = self.config.group.rebalance_timeout;
        self.net.send(To::Node(node, Purpose::Join), request, Tag::Join(attempt), wait, now);
    }

    pub(super) fn on_join(&mut self, attempt: u64, result: Result<Response, Error>, now: Duration) {
        if !self.membership.awaits(attempt) {
            return;
        }
        let answer = result.map(|response| match response {
            Response::JoinGroup(response) => response,
            other => unreachable!("{} answers JoinGroup", other.api()),
        });
        match self.membership.on_join(answer, now) {
            Err(error) => self.fatal(error),
            Ok(Joined::Again) => {}
            Ok(Joined::Follower { missed }) => {
                self.led_topics.clear();
                if missed {
                    self.lose(LostReason::Generation);
                }
            }
            Ok(Joined::Lost) => self.lose(LostReason::UnknownMember),
            Ok(Joined::Coordinator) => self.net.forget_coordinator(&self.config.group.group, now),
            Ok(Joined::Leader(elect)) => self.on_elected(elect, now),
        }
    }

    fn on_elected(&mut self, elect: Elect, now: Duration) {
        for (member, fault) in elect.unreadable {
            let what = format!("the subscription of member {member} cannot be read to its end: {fault}");
            self.events.push_back(Event::Notice(what));
        }
        self.set_topic_interest(&elect.topics, now);
        self.led_topics = elect.topics;
        self.counts_from = None;
        if elect.missed {
            self.lose(LostReason::Generation);
        }
    }

    /// Sends SyncGroup; a leader first waits for metadata that covers the topics of all members.
    fn sync(&mut self, node: i32, now: Duration) {
        let known = |topic: &String| self.net.metadata().is_answered(topic);
        if !self.led_topics.iter().all(known) {
            let since = *self.counts_from.get_or_insert(now);
            // The members wait for this answer: a topic that stays unknown is assigned with the next round.
            if since + COUNTS_WAIT > now {
                return;
            }
        }
        let counts = self.partition_counts();
        let (request, attempt) = self.membership.sync(&counts, now);
        let wait = self.config.group.rebalance_timeout;
        self.net.send(To::Node(node, Purpose::Join), request, Tag::Sync(attempt), wait, now);
    }

    fn partition_counts(&self) -> BTreeMap<String, i32> {
        let metadata = self.net.metadata();
        self.led_topics
            .iter()
            .filter_map(|topic| {
                let count = metadata.topic(topic)?.partitions.len();
                (count > 0).then(|| (topic.clone(), i32::try_from(count).unwrap_or(i32::MAX)))
            })
            .collect()
    }

    /// A leader whose topics have changed since it assigned them begins a new round.
    pub(super) fn tell_leader_the_counts(&mut self) {
        if self.membership.led_topics().is_none() {
            return;
        }
        let counts = self.partition_counts();
        if self.membership.on_counts(&counts) {
            self.events.push_back(Event::Notice(
                "the topics' partitions have changed: a new round begins".to_owned(),
            ));
        }
    }

    pub(super) fn on_sync(&mut self, attempt: u64, result: Result<Response, Error>, now: Duration) {
        if !self.membership.awaits(attempt) {
            return;
        }
        let answer = result.map(|response| match response {
            Response::SyncGroup(response) => response,
            other => unreachable!("{} answers SyncGroup", other.api()),
        });
        match self.membership.on_sync(answer, now) {
            Err(error) => self.fatal(error),
            Ok(Synced::Again) => {}
            Ok(Synced::Lost) => self.lose(LostReason::Generation),
            Ok(Synced::Coordinator) => self.net.forget_coordinator(&self.config.group.group, now),
            Ok(Synced::Assigned(assigned)) => self.on_assigned(assigned, now),
        }
    }

    fn on_assigned(&mut self, assigned: Owned, now: Duration) {
        self.net.coordinator_works(&self.config.group.group);
        let mut wanted = BTreeSet::new();
        for (topic, partitions) in assigned {
            if !self.topics.contains(&topic) {
                let what = format!("the group's leader assigned the topic {topic}, which was not asked for");
                self.events.push_back(Event::Notice(what));
                continue;
            }
            let topic = shared(&topic);
            wanted.extend(
                partitions.into_iter().map(|partition| TopicPartition { topic: topic.clone(), partition }),
            );
        }
        let gone: BTreeSet<TopicPartition> =
            self.partitions.keys().filter(|at| !wanted.contains(at)).cloned().collect();
        if !matches!(self.ending, Ending::Stopping | Ending::Committing { .. }) {
            for at in wanted {
                if !self.partitions.contains_key(&at) {
                    let topic_id =
                        self.net.metadata().topic(&at.topic).map_or_else(Default::default, |t| t.id);
                    let incarnation = self.new_incarnation();
                    self.partitions.insert(at, Partition::new(incarnation, topic_id));
                }
            }
        }
        self.unannounced_since = Some(now);
        // What was claimed in the join and lost since is withheld from all until we have joined without it (KIP-429).
        let withheld = |at: &TopicPartition| !self.partitions.contains_key(at);
        if self.claimed.iter().any(withheld) {
            self.membership.want_rejoin();
        }
        if !gone.is_empty() {
            self.start_revocation(gone, now);
        }
        // What changed between the count and now.
        self.tell_leader_the_counts();
    }

    // ---- giving up ----

    fn start_revocation(&mut self, partitions: BTreeSet<TopicPartition>, now: Duration) {
        let deadline = now + self.config.revoke_timeout;
        for at in &partitions {
            if let Some(partition) = self.partitions.get_mut(at) {
                partition.revoking = true;
            }
        }
        // What the owner was never told of needs no draining.
        let told: Vec<TopicPartition> = partitions
            .iter()
            .filter(|at| self.partitions.get(at).is_some_and(|p| p.announced))
            .cloned()
            .collect();
        let drained = told.is_empty();
        self.revocation = Some(Revocation { partitions, deadline, drained });
        if !drained {
            self.events.push_back(Event::Revoke { partitions: told, deadline });
        }
        self.finish_revocation(now);
    }

    /// The owner has drained what [`Event::Revoke`] named; these offsets are to be committed before it is given up.
    pub fn drained(
        &mut self,
        offsets: impl IntoIterator<Item = (TopicPartition, OffsetAndEpoch)>,
        now: Duration,
    ) {
        self.commit(offsets);
        if let Some(revocation) = &mut self.revocation {
            revocation.drained = true;
        }
        self.poll_membership(now);
    }

    fn finish_revocation(&mut self, now: Duration) {
        let Some(revocation) = &self.revocation else { return };
        let committed = revocation.drained && !self.committer.concerns(&revocation.partitions);
        if !committed && now < revocation.deadline + COMMIT_GRACE {
            return;
        }
        let Some(revocation) = self.revocation.take() else { return };
        let told = |at: &TopicPartition| self.partitions.get(at).is_some_and(|p| p.announced);
        let fenced: Vec<TopicPartition> =
            revocation.partitions.iter().filter(|at| told(at)).cloned().collect();
        self.forget_partitions(revocation.partitions.iter());
        if !fenced.is_empty() {
            if !committed {
                let text = "the commit before partitions are given up was not acknowledged in time: what was \
                            finished since the one before is done again by their next owner";
                self.events.push_back(Event::Notice(text.to_owned()));
            }
            self.events.push_back(Event::Revoked(fenced));
        }
        // The cooperative round that gives them to others. An eager one is wanted already.
        self.membership.want_rejoin();
    }

    pub(super) fn forget_partitions<'a>(&mut self, partitions: impl Iterator<Item = &'a TopicPartition>) {
        for at in partitions {
            self.committer.drop_partition(at);
            self.partitions.remove(at);
        }
    }

    /// The coordinator has given our partitions away: nothing of them is committed any more.
    fn lose(&mut self, reason: LostReason) {
        self.revocation = None;
        self.unannounced_since = None;
        if let Ending::Committing { lost, .. } = &mut self.ending {
            *lost |= !self.committer.is_idle();
        }
        let told: Vec<TopicPartition> =
            self.partitions.iter().filter(|(_, p)| p.announced).map(|(at, _)| at.clone()).collect();
        let all: Vec<TopicPartition> = self.partitions.keys().cloned().collect();
        self.forget_partitions(all.iter());
        if !told.is_empty() {
            self.events.push_back(Event::Lost(told, reason));
        }
    }

    // ---- heartbeats and commits ----

    pub(super) fn on_heartbeat(
        &mut self,
        identity: &Identity,
        sent_at: Duration,
        result: Result<Response, Error>,
        now: Duration,
    ) {
        let answer = result.map(|response| match response {
            Response::Heartbeat(response) => response.error_code,
            other => unreachable!("{} answers Heartbeat", other.api()),
        });
        let standing = self.membership.on_heartbeat(identity, sent_at, answer, now);
        self.take_standing(standing, now);
    }

    fn take_standing(&mut self, standing: Result<Standing, Error>, now: Duration) {
        match standing {
            Err(error) => self.fatal(error),
            Ok(Standing::Kept) => {}
            Ok(Standing::Lost) => {
                let unknown = self.membership.identity().member_id.is_empty();
                self.lose(if unknown { LostReason::UnknownMember } else { LostReason::Generation });
            }
            Ok(Standing::Coordinator) => self.net.forget_coordinator(&self.config.group.group, now),
        }
    }

    fn may_commit(&self) -> bool {
        // At the end there may be no other round to wait for: an old generation is worth a try.
        let last_chance = matches!(self.ending, Ending::Committing { .. }) && self.has_joined();
        self.membership.may_commit() || (last_chance && !self.membership.is_between_join_and_sync())
    }

    fn send_commit(&mut self, node: i32, now: Duration) {
        if !self.may_commit() || self.committer.deadline(|_| false).is_none() {
            return;
        }
        let to = To::Node(node, Purpose::Group);
        if !self.net.is_ready(to) {
            // A commit that waits for a connection could be sent when it is no longer true.
            return self.net.warm_up(to, now);
        }
        let group = &self.config.group;
        let identity = self.membership.identity();
        let instance_id = group.instance_id.as_deref();
        // Until its topic's identity is confirmed.
        let held = |at: &TopicPartition| self.unconfirmed.contains_key(&*at.topic);
        let request = self.committer.request(&group.group, instance_id, identity, held, now);
        if let Some(request) = request {
            self.net.send(to, request, Tag::Commit, Duration::ZERO, now);
        }
    }

    pub(super) fn on_commit(&mut self, result: Result<Response, Error>, now: Duration) {
        let answer = result.map(|response| match response {
            Response::OffsetCommit(response) => response,
            other => unreachable!("{} answers OffsetCommit", other.api()),
        });
        let disconnected = answer.is_err();
        let (identity, outcome) = self.committer.on_answer(answer, now);
        if disconnected && outcome.fatal.is_none() {
            self.net.forget_coordinator(&self.config.group.group, now);
        }
        if outcome.acked.is_empty() {
            self.commits_failed += 1;
        } else {
            self.net.coordinator_works(&self.config.group.group);
            self.events.push_back(Event::Committed(outcome.acked));
        }
        for topic in &outcome.unknown_topics {
            self.doubt_topic(topic, now);
        }
        if let Some((_, error)) = outcome.denied.first() {
            if let Ending::Committing { lost, .. } = &mut self.ending {
                *lost = true;
            }
            self.events.push_back(Event::Broken(error.clone()));
        }
        for (at, _) in &outcome.denied {
            self.committer.drop_partition(at);
        }
        if outcome.standing == Some(code::REBALANCE_IN_PROGRESS)
            && let Some(revocation) = &mut self.revocation
            && revocation.drained
        {
            // The round goes on without this commit; a little patience, then ours does too (CASES 7).
            revocation.deadline = revocation.deadline.min(now);
        }
        if let (Some(refused), Some(identity)) = (outcome.standing, identity) {
            let standing = self.membership.on_standing(Api::OffsetCommit, &identity, refused, now);
            self.take_standing(standing, now);
            // In the generation that a round has brought since, the commit is worth another try.
            let newest = identity == *self.membership.identity();
            if refused == code::ILLEGAL_GENERATION && newest && self.is_ending() && self.membership.is_out() {
                // There will be no other round to commit in.
                self.lose(LostReason::Generation);
            }
        }
        if let Some(error) = outcome.fatal {
            self.fatal(error.at_group(&self.config.group.group));
        }
    }

    // ---- the end ----

    /// Begins the end: nothing new is fetched or joined. Drain, then call [`Consumer::close`].
    pub fn stop(&mut self) {
        if matches!(self.ending, Ending::No) {
            self.ending = Ending::Stopping;
        }
    }

    /// Commits these offsets and leaves the group; [`Event::Closed`] follows, at the deadline at the latest (plus a
    /// second for LeaveGroup).
    pub fn close(
        &mut self,
        offsets: impl IntoIterator<Item = (TopicPartition, OffsetAndEpoch)>,
        deadline: Duration,
        now: Duration,
    ) {
        if matches!(self.ending, Ending::No | Ending::Stopping) {
            self.commit(offsets);
            self.ending = Ending::Committing { until: deadline, lost: false };
            self.poll_membership(now);
        }
    }

    fn poll_ending(&mut self, now: Duration) {
        if let Ending::Committing { until, lost } = self.ending {
            let committed = self.committer.is_idle();
            if !committed && now < until {
                return;
            }
            let committed = committed && !lost;
            let until = now + LEAVE_TIMEOUT;
            match self.membership.leave() {
                None => self.end(committed),
                request => self.ending = Ending::Leaving { until, committed, request },
            }
        }
        let Ending::Leaving { until, committed, request } = &mut self.ending else { return };
        if *until <= now {
            let committed = *committed;
            return self.end(committed);
        }
        if request.is_some()
            && let Ok(Some(node)) = self.net.coordinator(&self.config.group.group, now)
            && let Some(request) = request.take()
        {
            self.net.send(To::Node(node, Purpose::Group), request, Tag::Leave, Duration::ZERO, now);
        }
    }

    /// Whether it was heard or not, the coordinator is told no more.
    pub(super) fn on_leave(&mut self) {
        if let Ending::Leaving { committed, .. } = self.ending {
            self.end(committed);
        }
    }

    fn end(&mut self, committed: bool) {
        self.ending = Ending::Closed;
        self.events.push_back(Event::Closed { committed });
    }

    pub(super) fn is_ending(&self) -> bool {
        !matches!(self.ending, Ending::No)
    }
}
