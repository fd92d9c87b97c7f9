//! How far groups are behind: committed offsets first, then log ends, so that no lag is negative by a race.
//!
//! Invariant: the offsets of a group's partitions are asked for only after the group's own committed offsets came
//! ([`Survey::take_partitions`]; CASES 14). Groups do not wait for each other, and every failure is a value of its
//! group or partition. A partition without a commit is behind by all that its log holds; one that could not be read
//! is unknown and in no total (CASES 15). A group of either protocol is described (CASES 16).

use std::collections::BTreeSet;

use crate::admin::groups::{GroupDescription, STATE_EMPTY, STATE_UNKNOWN};
use crate::admin::offsets::Found;
use crate::admin::{Answer, OffsetsByPartition, Question};
use crate::error::{Error, Fault, code};
use crate::metadata::{Metadata, TopicPartition};

/// Names a group within a [`Survey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupIndex(usize);

/// Which of a group's first three questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// DescribeGroups.
    Classic,
    /// ConsumerGroupDescribe.
    Consumer,
    /// OffsetFetch.
    Committed,
}

/// Which end of the logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// The first offset.
    Start,
    /// The last offset, plus one.
    End,
}

/// A partition, and how far the group is behind in it.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionLag {
    /// Which partition.
    pub at: TopicPartition,
    /// The committed offset; none = no commit.
    pub committed: Result<Option<i64>, Error>,
    /// The log's first offset.
    pub start: Result<i64, Error>,
    /// The log's end, as the isolation has it.
    pub end: Result<i64, Error>,
}

impl PartitionLag {
    /// Records behind, never negative; none = not known.
    pub fn lag(&self) -> Option<i64> {
        let from = match self.committed.as_ref().ok()? {
            Some(committed) => *committed,
            None => *self.start.as_ref().ok()?,
        };
        Some(self.end.as_ref().ok()?.saturating_sub(from).max(0))
    }

    /// By how much the commit is beyond the log's end, as after a truncation or in a recreated topic.
    pub fn beyond_end(&self) -> Option<i64> {
        let (Ok(Some(committed)), Ok(end)) = (&self.committed, &self.end) else { return None };
        (committed > end).then(|| committed.saturating_sub(*end))
    }

    /// By how much the commit is below the log's start: records that were removed before the group came to them.
    pub fn below_start(&self) -> Option<i64> {
        let (Ok(Some(committed)), Ok(start)) = (&self.committed, &self.start) else { return None };
        (committed < start).then(|| start.saturating_sub(*committed))
    }

    /// Whether there is no commit.
    pub fn is_uncommitted(&self) -> bool {
        self.committed == Ok(None)
    }

    /// Why the lag is not known.
    pub fn error(&self) -> Option<&Error> {
        let start = self.start.as_ref().err().filter(|_| self.is_uncommitted());
        self.committed.as_ref().err().or(self.end.as_ref().err()).or(start)
    }
}

/// A group that is there.
#[derive(Clone, Debug, PartialEq)]
pub struct DescribedGroup {
    /// State and members.
    pub description: GroupDescription,
    /// All partitions of the topics that it has commits or members for.
    pub partitions: Vec<PartitionLag>,
}

impl DescribedGroup {
    /// Records behind in all partitions whose lag is known.
    pub fn total(&self) -> i64 {
        self.partitions.iter().filter_map(PartitionLag::lag).fold(0, i64::saturating_add)
    }

    /// Partitions without a commit.
    pub fn uncommitted(&self) -> usize {
        self.partitions.iter().filter(|partition| partition.is_uncommitted()).count()
    }

    /// Partitions whose lag is not known.
    pub fn unknown(&self) -> usize {
        self.partitions.iter().filter(|partition| partition.lag().is_none()).count()
    }

    /// The one partition that holds most of the lag: more than half of it, more than twice its fair share, and at
    /// least [`SKEW_LAG_MIN`] records.
    pub fn skew(&self) -> Option<(&TopicPartition, i64)> {
        let lags = self.partitions.iter().filter_map(|partition| Some((&partition.at, partition.lag()?)));
        let count = i64::try_from(lags.clone().count()).ok()?;
        let (at, most) = lags.max_by_key(|(_, lag)| *lag)?;
        let total = self.total();
        let skewed =
            most >= SKEW_LAG_MIN && most > total / 2 && most.saturating_mul(count) > total.saturating_mul(2);
        skewed.then_some((at, most))
    }
}

/// A smaller lag is no skew worth a line.
pub const SKEW_LAG_MIN: i64 = 100;

/// What was found out about a group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupLag {
    /// The group.
    pub name: String,
    /// The node that coordinates it, if it is known.
    pub coordinator: Option<i32>,
    /// None: no broker knows such a group.
    pub outcome: Result<Option<DescribedGroup>, Error>,
}

#[derive(Debug, Default)]
struct GroupSurvey {
    name: String,
    coordinator: Option<i32>,
    classic: Option<Result<Option<GroupDescription>, Error>>,
    consumer: Option<Result<Option<GroupDescription>, Error>>,
    committed: Option<Result<OffsetsByPartition, Error>>,
    /// Set once the offsets may be asked for.
    partitions: Option<BTreeSet<TopicPartition>>,
    starts: Option<Found>,
    ends: Option<Found>,
}

/// One look at some groups.
#[derive(Debug)]
pub struct Survey {
    groups: Vec<GroupSurvey>,
    only: BTreeSet<String>,
}

impl Survey {
    /// A look at these groups, and of their topics only at those in `only`, unless it is empty.
    pub fn new(groups: impl IntoIterator<Item = String>, only: BTreeSet<String>) -> Self {
        let groups = groups.into_iter().map(|name| GroupSurvey { name, ..GroupSurvey::default() }).collect();
        Survey { groups, only }
    }

    /// The questions to begin with, all at once, each for the group's coordinator.
    pub fn questions(&self) -> Vec<(GroupIndex, Part, Question)> {
        let of_group = |(at, group): (usize, &GroupSurvey)| {
            let name = || group.name.clone();
            [
                (GroupIndex(at), Part::Classic, Question::DescribeGroup(name())),
                (GroupIndex(at), Part::Consumer, Question::DescribeConsumerGroup(name())),
                (GroupIndex(at), Part::Committed, Question::Committed(name())),
            ]
        };
        self.groups.iter().enumerate().flat_map(of_group).collect()
    }

    /// The name of a group.
    pub fn name(&self, group: GroupIndex) -> &str {
        &self.groups[group.0].name
    }

    /// Takes the outcome of one of [`Survey::questions`], in any order.
    pub fn take(&mut self, group: GroupIndex, part: Part, outcome: Result<Answer, Error>) {
        let group = &mut self.groups[group.0];
        let description = |outcome| match outcome {
            Ok(Answer::Group(description)) => Ok(description),
            Ok(other) => unreachable!("a description reads as {other:?}"),
            Err(error) => Err(error),
        };
        match part {
            Part::Classic => group.classic = Some(description(outcome)),
            Part::Consumer => group.consumer = Some(description(outcome)),
            Part::Committed => {
                group.committed = Some(match outcome {
                    Ok(Answer::Committed(offsets)) => Ok(offsets),
                    Ok(other) => unreachable!("committed offsets read as {other:?}"),
                    Err(error) => Err(error),
                });
            }
        }
    }

    /// Takes the node that coordinates a group.
    pub fn take_coordinator(&mut self, group: GroupIndex, node: i32) {
        self.groups[group.0].coordinator = Some(node);
    }

    /// The topics of the groups whose first three answers came: their metadata is needed next.
    pub fn topics(&self) -> BTreeSet<String> {
        self.groups.iter().flat_map(|group| self.topics_of(group)).collect()
    }

    fn topics_of(&self, group: &GroupSurvey) -> BTreeSet<String> {
        let Some(Ok(committed)) = &group.committed else { return BTreeSet::new() };
        let Some(Ok(Some(described))) = group.description() else { return BTreeSet::new() };
        let assigned = described.members.iter().flat_map(|member| &member.assignment);
        committed
            .keys()
            .chain(assigned)
            .map(|at| at.topic.to_string())
            .filter(|topic| self.only.is_empty() || self.only.contains(topic))
            .collect()
    }

    /// Groups whose committed offsets came and whose topics are known, each once, with their partitions. Only now
    /// may the logs' ends be asked for.
    pub fn take_partitions(&mut self, metadata: &Metadata) -> Vec<(GroupIndex, BTreeSet<TopicPartition>)> {
        let mut ready = Vec::new();
        for at in 0..self.groups.len() {
            let group = &self.groups[at];
            if group.partitions.is_some() || !group.is_answered() {
                continue;
            }
            let topics = self.topics_of(group);
            if topics.iter().any(|topic| !metadata.topics.contains_key(topic)) {
                continue;
            }
            let mut partitions = self.seen_partitions(group);
            for topic in &topics {
                let known = metadata.topic(topic).into_iter().flat_map(|topic| topic.partitions.keys());
                partitions.extend(known.map(|partition| TopicPartition::new(topic.as_str(), *partition)));
            }
            self.groups[at].partitions = Some(partitions.clone());
            if !partitions.is_empty() {
                ready.push((GroupIndex(at), partitions));
            }
        }
        ready
    }

    /// The partitions with a commit. A topic that was removed has them still, for a moment.
    fn seen_partitions(&self, group: &GroupSurvey) -> BTreeSet<TopicPartition> {
        let Some(Ok(committed)) = &group.committed else { return BTreeSet::new() };
        let wanted = |at: &&TopicPartition| self.only.is_empty() || self.only.contains(&*at.topic);
        committed.keys().filter(wanted).cloned().collect()
    }

    /// Takes one end of the logs of a group's partitions.
    pub fn take_found(&mut self, group: GroupIndex, end: End, found: Found) {
        let group = &mut self.groups[group.0];
        assert!(group.partitions.is_some(), "log ends are asked for after the commits came");
        match end {
            End::Start => group.starts = Some(found),
            End::End => group.ends = Some(found),
        }
    }

    /// Whether everything that was asked was answered.
    pub fn is_done(&self) -> bool {
        self.groups.iter().all(|group| {
            group.is_answered()
                && group.partitions.as_ref().is_some_and(|partitions| {
                    partitions.is_empty() || (group.starts.is_some() && group.ends.is_some())
                })
        })
    }

    /// The result. What is still open becomes the error `late`.
    pub fn finish(mut self, late: &Error) -> Vec<GroupLag> {
        let groups = std::mem::take(&mut self.groups);
        groups.into_iter().map(|group| self.finish_group(group, late)).collect()
    }

    fn finish_group(&self, mut group: GroupSurvey, late: &Error) -> GroupLag {
        let partitions = group.partitions.take().unwrap_or_else(|| self.seen_partitions(&group));
        let outcome = match (group.description(), &group.committed) {
            (Some(Ok(Some(description))), Some(Ok(committed))) => {
                let found = |found: &Option<Found>, at: &TopicPartition| match found
                    .as_ref()
                    .and_then(|found| found.get(at))
                {
                    Some(Ok(Some(offset))) => Ok(*offset),
                    Some(Ok(None)) => {
                        Err(Error::peer("a log without ends").at_partition(&at.topic, at.partition))
                    }
                    Some(Err(error)) => Err(error.clone()),
                    None => Err(late.clone().at_partition(&at.topic, at.partition)),
                };
                let partitions = partitions
                    .into_iter()
                    .map(|at| PartitionLag {
                        committed: committed.get(&at).cloned().transpose(),
                        start: found(&group.starts, &at),
                        end: found(&group.ends, &at),
                        at,
                    })
                    .collect();
                Ok(Some(DescribedGroup { description, partitions }))
            }
            (Some(Ok(None)), _) => Ok(None),
            (_, Some(Err(error))) => Err(error.clone()),
            (Some(Err(error)), _) => Err(error),
            _ => Err(late.clone().at_group(&group.name)),
        };
        GroupLag { name: group.name, coordinator: group.coordinator, outcome }
    }
}

impl GroupSurvey {
    fn is_answered(&self) -> bool {
        self.classic.is_some() && self.consumer.is_some() && self.committed.is_some()
    }

    /// The group as the two protocols and its commits tell it; none while an answer is due.
    fn description(&self) -> Option<Result<Option<GroupDescription>, Error>> {
        let (classic, consumer, committed) =
            (self.classic.as_ref()?, self.consumer.as_ref()?, self.committed.as_ref()?);
        let has_commits = committed.as_ref().is_ok_and(|committed| !committed.is_empty());
        Some(match (classic, consumer) {
            (_, Ok(Some(description))) | (Ok(Some(description)), _) => Ok(Some(description.clone())),
            // Commits without members ever, as a reset to another group makes them.
            (Ok(None), Ok(None)) => Ok(has_commits.then(|| GroupDescription::of_state(STATE_EMPTY))),
            (Ok(None), Err(error)) if has_no_api(error) => {
                Ok(has_commits.then(|| GroupDescription::of_state(STATE_UNKNOWN)))
            }
            (Err(error), _) | (Ok(None), Err(error)) => Err(error.clone()),
        })
    }
}

/// Whether a broker cannot describe groups of the consumer protocol: it lacks the API, or has it off.
fn has_no_api(error: &Error) -> bool {
    matches!(error.fault, Fault::Incompatible(_)) || error.code() == Some(code::UNSUPPORTED_VERSION)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use kafka_protocol::messages::metadata_response::{MetadataResponsePartition, MetadataResponseTopic};
    use kafka_protocol::messages::{BrokerId, MetadataResponse, TopicName};

    use super::*;
    use crate::admin::groups::Member;
    use crate::api::{Api, text};

    fn metadata(partitions: i32) -> Metadata {
        let partitions = (0..partitions)
            .map(|at| {
                MetadataResponsePartition::default().with_partition_index(at).with_leader_id(BrokerId(1))
            })
            .collect();
        let topic = MetadataResponseTopic::default()
            .with_name(Some(TopicName(text("t"))))
            .with_partitions(partitions);
        let mut metadata = Metadata::default();
        metadata.apply(&MetadataResponse::default().with_topics(vec![topic]), false);
        metadata
    }

    fn at(partition: i32) -> TopicPartition {
        TopicPartition::new("t", partition)
    }

    fn committed(offsets: &[(i32, i64)]) -> Result<Answer, Error> {
        Ok(Answer::Committed(
            offsets.iter().map(|(partition, offset)| (at(*partition), Ok(*offset))).collect(),
        ))
    }

    fn stable(assigned: &[i32]) -> Result<Answer, Error> {
        let assignment = assigned.iter().map(|partition| at(*partition)).collect();
        let members = vec![Member { assignment, ..Member::default() }];
        Ok(Answer::Group(Some(GroupDescription {
            state: "Stable".to_owned(),
            members,
            ..Default::default()
        })))
    }

    fn late() -> Error {
        Error::new(Fault::TimedOut(Duration::from_secs(1)))
    }

    #[test]
    fn log_ends_are_never_asked_before_the_commits_came() {
        let parts = [Part::Classic, Part::Consumer, Part::Committed];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut survey = Survey::new(["g".to_owned()], BTreeSet::new());
            let group = survey.questions()[0].0;
            for place in order {
                assert!(survey.take_partitions(&metadata(3)).is_empty(), "{order:?}");
                let outcome = match parts[place] {
                    Part::Classic => stable(&[1]),
                    Part::Consumer => Ok(Answer::Group(None)),
                    Part::Committed => committed(&[(0, 4)]),
                };
                survey.take(group, parts[place], outcome);
            }
            assert_eq!(survey.topics(), BTreeSet::from(["t".to_owned()]));
            assert!(survey.take_partitions(&Metadata::default()).is_empty(), "the topic is not known yet");
            let ready = survey.take_partitions(&metadata(3));
            assert_eq!(ready, [(group, BTreeSet::from([at(0), at(1), at(2)]))]);
            assert!(survey.take_partitions(&metadata(3)).is_empty(), "each group once");
            // The ends in either order.
            let found = |offset| BTreeMap::from([0, 1, 2].map(|partition| (at(partition), Ok(Some(offset)))));
            survey.take_found(group, End::End, found(9));
            assert!(!survey.is_done());
            survey.take_found(group, End::Start, found(1));
            assert!(survey.is_done());
            let groups = survey.finish(&late());
            let described = groups[0].outcome.clone().expect("readable").expect("described");
            let lags: Vec<Option<i64>> = described.partitions.iter().map(PartitionLag::lag).collect();
            assert_eq!(lags, [Some(5), Some(8), Some(8)]);
        }
    }

    #[test]
    fn a_group_that_does_not_answer_holds_up_no_other() {
        let mut survey = Survey::new(["a".to_owned(), "b".to_owned()], BTreeSet::new());
        let questions = survey.questions();
        let (a, b) = (questions[0].0, questions[3].0);
        survey.take(b, Part::Classic, stable(&[]));
        survey.take(b, Part::Consumer, Err(Error::new(Fault::Incompatible("none".to_owned()))));
        survey.take(b, Part::Committed, committed(&[(0, 4)]));
        assert_eq!(survey.take_partitions(&metadata(1)).len(), 1);
        survey.take(
            a,
            Part::Committed,
            Err(Error::refused(Api::OffsetFetch, code::GROUP_AUTHORIZATION_FAILED, None)),
        );
        assert!(!survey.is_done());
        let groups = survey.finish(&late());
        assert_eq!(groups[0].outcome.as_ref().expect_err("denied").code(), Some(30));
        let described = groups[1].outcome.clone().expect("readable").expect("described");
        assert_eq!((described.unknown(), described.total()), (1, 0), "its ends did not come in time");
    }

    #[test]
    fn a_filter_leaves_out_other_topics() {
        let mut survey = Survey::new(["g".to_owned()], BTreeSet::from(["other".to_owned()]));
        let group = survey.questions()[0].0;
        survey.take(group, Part::Classic, stable(&[0]));
        survey.take(group, Part::Consumer, Ok(Answer::Group(None)));
        survey.take(group, Part::Committed, committed(&[(0, 4)]));
        assert!(survey.topics().is_empty() && survey.take_partitions(&metadata(1)).is_empty());
        assert!(survey.is_done());
    }

    #[test]
    fn skew_is_most_of_the_lag_and_twice_the_fair_share() {
        let group = |lags: &[i64]| {
            let partition = |(number, lag): (usize, &i64)| PartitionLag {
                at: at(number as i32),
                committed: Ok(Some(0)),
                start: Ok(0),
                end: Ok(*lag),
            };
            let partitions = lags.iter().enumerate().map(partition).collect();
            DescribedGroup { description: GroupDescription::default(), partitions }
        };
        assert_eq!(group(&[500, 10, 10, 10]).skew(), Some((&at(0), 500)));
        assert_eq!(group(&[5, 0, 0, 0]).skew(), None, "too little to matter");
        assert_eq!(group(&[500, 400, 400]).skew(), None, "less than half");
        assert_eq!(group(&[600, 300, 100]).skew(), None, "less than twice a third");
        assert_eq!(group(&[1000, 0]).skew(), None, "of two partitions one is always likely");
        assert_eq!(group(&[]).skew(), None);
    }
}
