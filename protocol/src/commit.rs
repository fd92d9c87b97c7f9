//! The order of OffsetCommits.
//!
//! Invariants: one commit is in flight; within an assignment the committed offset of a partition never falls; a
//! commit carries the identity under which it was sent, so that its answer can be told from one that concerns the
//! present; nothing is committed for a partition that was dropped.
//!
//! A commit whose connection broke is repeated with the newest offsets. The connection is never closed to cancel
//! one: the next commit could overtake it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{GroupId, OffsetCommitRequest, OffsetCommitResponse, TopicName};

use crate::api::{Api, text};
use crate::error::{Class, Error, classify, code};
use crate::group::Identity;
use crate::metadata::TopicPartition;
use crate::offsets::OffsetAndEpoch;

/// Offsets by partition.
pub type Offsets = BTreeMap<TopicPartition, OffsetAndEpoch>;

/// What an answer to OffsetCommit says.
#[derive(Debug, Default)]
pub struct CommitOutcome {
    /// Stored.
    pub acked: Vec<(TopicPartition, i64)>,
    /// A code that the membership has to judge, with the identity under which the commit was sent.
    pub standing: Option<i16>,
    /// Topics that the broker does not know (any more): their identity must be confirmed.
    pub unknown_topics: BTreeSet<String>,
    /// Partitions of topics that this program may not commit for (any more); they do not wait again.
    pub denied: Vec<(TopicPartition, Error)>,
    /// Refused for good.
    pub fatal: Option<Error>,
}

/// Which offsets are to be committed, which are on their way.
#[derive(Debug, Default)]
pub struct Committer {
    wanted: Offsets,
    in_flight: Option<(Identity, Offsets)>,
    /// The highest offset sent per partition within its assignment.
    sent: BTreeMap<TopicPartition, i64>,
    not_before: Duration,
    failures: u32,
    random: u64,
}

const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Committer {
    /// Nothing to commit.
    pub fn new(seed: u64) -> Self {
        Committer { random: seed, ..Committer::default() }
    }

    /// Commits these offsets soon; newer ones replace what is waiting.
    ///
    /// # Panics
    /// An offset falls within its assignment: the tracker is broken, and committing it would repeat work for good.
    pub fn want(&mut self, offsets: impl IntoIterator<Item = (TopicPartition, OffsetAndEpoch)>) {
        for (at, wanted) in offsets {
            let before = self.wanted.get(&at).map(|waiting| waiting.offset).max(self.sent.get(&at).copied());
            assert!(
                before.is_none_or(|before| wanted.offset >= before),
                "commit of {at} falls to {}",
                wanted.offset
            );
            self.wanted.insert(at, wanted);
        }
    }

    /// The partition is given up, or its position was moved: its offsets are no longer ours to commit, and its
    /// next assignment starts afresh.
    pub fn drop_partition(&mut self, at: &TopicPartition) {
        self.wanted.remove(at);
        self.sent.remove(at);
        if let Some((_, offsets)) = &mut self.in_flight {
            offsets.remove(at);
        }
    }

    /// Whether everything that was wanted is answered.
    pub fn is_idle(&self) -> bool {
        self.wanted.is_empty() && self.in_flight.is_none()
    }

    /// Whether offsets of these partitions are waiting or on their way.
    pub fn concerns(&self, partitions: &BTreeSet<TopicPartition>) -> bool {
        let in_flight = self.in_flight.iter().flat_map(|(_, offsets)| offsets.keys());
        self.wanted.keys().chain(in_flight).any(|at| partitions.contains(at))
    }

    /// When [`Committer::request`] has something to send, of what is not `held`.
    pub fn deadline(&self, held: impl Fn(&TopicPartition) -> bool) -> Option<Duration> {
        let ready = self.wanted.keys().any(|at| !held(at));
        (self.in_flight.is_none() && ready).then_some(self.not_before)
    }

    /// The next OffsetCommit, unless one is in flight or nothing is due. What is `held` waits.
    pub fn request(
        &mut self,
        group: &str,
        instance_id: Option<&str>,
        identity: &Identity,
        held: impl Fn(&TopicPartition) -> bool,
        now: Duration,
    ) -> Option<OffsetCommitRequest> {
        if self.in_flight.is_some() || self.not_before > now {
            return None;
        }
        let (held, ready): (Offsets, Offsets) =
            std::mem::take(&mut self.wanted).into_iter().partition(|(at, _)| held(at));
        self.wanted = held;
        if ready.is_empty() {
            return None;
        }
        let mut topics: BTreeMap<&str, Vec<OffsetCommitRequestPartition>> = BTreeMap::new();
        for (at, offset) in &ready {
            let partition = OffsetCommitRequestPartition::default()
                .with_partition_index(at.partition)
                .with_committed_offset(offset.offset)
                .with_committed_leader_epoch(offset.epoch)
                .with_committed_metadata(Some(text("")));
            topics.entry(&at.topic).or_default().push(partition);
        }
        let topics = topics
            .into_iter()
            .map(|(topic, partitions)| {
                OffsetCommitRequestTopic::default()
                    .with_name(TopicName(text(topic)))
                    .with_partitions(partitions)
            })
            .collect();
        for (at, offset) in &ready {
            self.sent.insert(at.clone(), offset.offset);
        }
        self.in_flight = Some((identity.clone(), ready));
        Some(
            OffsetCommitRequest::default()
                .with_group_id(GroupId(text(group)))
                .with_generation_id_or_member_epoch(identity.generation)
                .with_member_id(text(&identity.member_id))
                .with_group_instance_id(instance_id.map(text))
                .with_topics(topics),
        )
    }

    /// The commit's outcome; what was not stored waits again, unless something newer does.
    pub fn on_answer(
        &mut self,
        answer: Result<OffsetCommitResponse, Error>,
        now: Duration,
    ) -> (Option<Identity>, CommitOutcome) {
        let mut outcome = CommitOutcome::default();
        let Some((identity, mut offsets)) = self.in_flight.take() else { return (None, outcome) };
        match answer {
            Ok(response) => {
                for topic in &response.topics {
                    for partition in &topic.partitions {
                        let at = TopicPartition::new(topic.name.as_str(), partition.partition_index);
                        self.take_code(&at, partition.error_code, &mut offsets, &mut outcome);
                    }
                }
            }
            Err(error) if matches!(error.class(), Class::Denied | Class::Refused) => {
                outcome.fatal = Some(error)
            }
            Err(_) => {}
        }
        if offsets.is_empty() {
            self.failures = 0;
        } else {
            self.failures += 1;
            let pause = crate::client::net::backoff(PAUSE, PAUSE_MAX, self.failures, &mut self.random);
            self.not_before = now + pause;
        }
        for (at, offset) in offsets {
            self.wanted.entry(at).or_insert(offset);
        }
        (Some(identity), outcome)
    }

    fn take_code(
        &self,
        at: &TopicPartition,
        refused: i16,
        offsets: &mut Offsets,
        outcome: &mut CommitOutcome,
    ) {
        let error = || Error::refused(Api::OffsetCommit, refused, None).at_partition(&at.topic, at.partition);
        match classify(Api::OffsetCommit, refused) {
            Class::Fine => {
                if let Some(offset) = offsets.remove(at) {
                    outcome.acked.push((at.clone(), offset.offset));
                }
            }
            Class::Membership | Class::Coordinator => outcome.standing = Some(refused),
            Class::Topic => {
                outcome.unknown_topics.insert(at.topic.to_string());
            }
            Class::Retry | Class::Leader => {}
            Class::Denied if refused == code::TOPIC_AUTHORIZATION_FAILED => {
                offsets.remove(at);
                outcome.denied.push((at.clone(), error()));
            }
            Class::Denied | Class::Refused => outcome.fatal = Some(error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::offset_commit_response::{
        OffsetCommitResponsePartition, OffsetCommitResponseTopic,
    };

    use super::*;

    const NOW: Duration = Duration::ZERO;
    const LATER: Duration = Duration::from_secs(60);

    fn at() -> TopicPartition {
        TopicPartition::new("t", 0)
    }

    fn offset(offset: i64) -> OffsetAndEpoch {
        OffsetAndEpoch { offset, epoch: 0 }
    }

    fn send(committer: &mut Committer, generation: i32) -> Option<i64> {
        let identity = Identity { member_id: "m".to_owned(), generation };
        let request = committer.request("g", None, &identity, |_| false, LATER)?;
        assert_eq!(request.generation_id_or_member_epoch, generation);
        Some(request.topics[0].partitions[0].committed_offset)
    }

    fn answer(code: i16) -> Result<OffsetCommitResponse, Error> {
        let partition = OffsetCommitResponsePartition::default().with_error_code(code);
        let topic = OffsetCommitResponseTopic::default()
            .with_name(TopicName(text("t")))
            .with_partitions(vec![partition]);
        Ok(OffsetCommitResponse::default().with_topics(vec![topic]))
    }

    #[test]
    fn one_commit_is_in_flight_and_the_newest_follows() {
        let mut committer = Committer::new(1);
        committer.want([(at(), offset(5))]);
        assert_eq!(send(&mut committer, 1), Some(5));
        committer.want([(at(), offset(7))]);
        committer.want([(at(), offset(9))]);
        assert_eq!(send(&mut committer, 1), None);
        let (_, outcome) = committer.on_answer(answer(0), NOW);
        assert_eq!(outcome.acked, [(at(), 5)]);
        assert_eq!(send(&mut committer, 1), Some(9));
    }

    #[test]
    fn an_unanswered_commit_is_repeated_unless_the_partition_is_gone() {
        let mut committer = Committer::new(1);
        committer.want([(at(), offset(5))]);
        send(&mut committer, 1);
        let lost = Error::new(crate::error::Fault::Disconnected("cut".to_owned()));
        committer.on_answer(Err(lost.clone()), NOW);
        assert_eq!(send(&mut committer, 2), Some(5));
        committer.drop_partition(&at());
        let (identity, outcome) = committer.on_answer(answer(22), NOW);
        assert_eq!((identity.map(|identity| identity.generation), outcome.standing), (Some(2), Some(22)));
        assert!(committer.is_idle());
    }

    #[test]
    #[should_panic(expected = "falls")]
    fn an_offset_never_falls_within_an_assignment() {
        let mut committer = Committer::new(1);
        committer.want([(at(), offset(5))]);
        send(&mut committer, 1);
        committer.want([(at(), offset(4))]);
    }
}
