//! The table on which the two sticky assignors work: members and partitions as numbers, who claims what, who gets it.
//!
//! Invariants: topics and members stand in name order, and a topic's partitions lie side by side, so that ascending
//! numbers are the order the Java client deals in; `previous[p]` is a subscriber of p's topic and the only member
//! that claims p with the highest generation among its claimants; `owner[p]` is none or a subscriber of p's topic.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Roster, TopicPartitions};
use crate::group::Subscription;

/// What a member says it had, and in which generation (−1 for none).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) owned: TopicPartitions,
    pub(super) generation: i32,
}

pub(super) struct Board<'r> {
    roster: &'r Roster<'r>,
    /// Per topic the numbers of its partitions here.
    spans: Vec<Range<usize>>,
    topic_of: Vec<usize>,
    claimants: Vec<Vec<usize>>,
    /// The member that a partition comes from, where that is beyond doubt.
    pub(super) previous: Vec<Option<usize>>,
    /// The member that gets it; starts as `previous`.
    pub(super) owner: Vec<Option<usize>>,
}

impl<'r> Board<'r> {
    /// `claim` gives what a member had. A claim to a partition that does not exist (any more) is dropped.
    pub(super) fn new(roster: &'r Roster<'r>, claim: impl Fn(&Subscription) -> Claim) -> Self {
        let mut spans = Vec::with_capacity(roster.topics.len());
        let mut topic_of = Vec::new();
        for (number, topic) in roster.topics.iter().enumerate() {
            let span = topic_of.len()..topic_of.len() + topic.count as usize;
            topic_of.resize(span.end, number);
            spans.push(span);
        }
        let partitions = topic_of.len();
        let mut board = Self {
            roster,
            spans,
            topic_of,
            claimants: vec![Vec::new(); partitions],
            previous: vec![None; partitions],
            owner: Vec::new(),
        };
        let mut generations = Vec::with_capacity(roster.members.len());
        for (number, (_, member)) in roster.members.iter().enumerate() {
            let claim = claim(&member.subscription);
            board.note(number, &claim.owned);
            generations.push(claim.generation);
        }
        board.decide(&generations);
        board
    }

    fn note(&mut self, member: usize, owned: &TopicPartitions) {
        for (name, partitions) in owned {
            let topic = self.roster.topics.binary_search_by(|topic| topic.name.cmp(name));
            let Ok(topic) = topic else { continue };
            let span = self.span(topic);
            for &partition in partitions {
                let place = usize::try_from(partition).ok().filter(|&partition| partition < span.len());
                if let Some(place) = place {
                    self.claimants[span.start + place].push(member);
                }
            }
        }
    }

    /// The highest generation wins a partition that several members claim; members that claim it in the same
    /// generation cannot all be right, so then it is nobody's.
    fn decide(&mut self, generations: &[i32]) {
        for (partition, claimants) in self.claimants.iter().enumerate() {
            let Some(newest) = claimants.iter().map(|&member| generations[member]).max() else { continue };
            let mut winners = claimants.iter().copied().filter(|&member| generations[member] == newest);
            if let (Some(winner), None) = (winners.next(), winners.next()) {
                let topic = &self.roster.topics[self.topic_of[partition]];
                self.previous[partition] = Some(winner).filter(|&winner| topic.has_subscriber(winner));
            }
        }
        self.owner = self.previous.clone();
    }

    /// Whether every member wants every topic (that exists and is wanted at all).
    pub(super) fn is_uniform(&self) -> bool {
        self.roster.topics.iter().all(|topic| topic.subscribers.len() == self.member_count())
    }

    pub(super) fn member_count(&self) -> usize {
        self.roster.members.len()
    }

    pub(super) fn topic_count(&self) -> usize {
        self.spans.len()
    }

    /// The members that want the topic, ascending; at least one.
    pub(super) fn subscribers(&self, topic: usize) -> &'r [usize] {
        &self.roster.topics[topic].subscribers
    }

    /// The numbers of the topic's partitions.
    pub(super) fn span(&self, topic: usize) -> Range<usize> {
        self.spans[topic].clone()
    }

    pub(super) fn partition_count(&self) -> usize {
        self.topic_of.len()
    }

    /// The topic's number.
    pub(super) fn topic(&self, partition: usize) -> usize {
        self.topic_of[partition]
    }

    /// The partition's number within its topic.
    pub(super) fn index(&self, partition: usize) -> usize {
        partition - self.spans[self.topic_of[partition]].start
    }

    /// Takes back what somebody other than its new owner may still be at work on. Its old owner sees that it is not
    /// given it again, revokes it and rejoins; then it is free. A claim of any generation counts here: a member that
    /// missed a rebalance may still hold what it claims, even though it has lost it.
    pub(super) fn withhold(&mut self) {
        for (partition, claimants) in self.claimants.iter().enumerate() {
            let moves = self.owner[partition] != self.previous[partition];
            if moves && claimants.iter().any(|&member| Some(member) != self.owner[partition]) {
                self.owner[partition] = None;
            }
        }
    }

    pub(super) fn assigned(&self) -> BTreeMap<String, TopicPartitions> {
        let mut assigned = self.roster.nothing();
        for (partition, owner) in self.owner.iter().enumerate() {
            if let Some(owner) = *owner {
                let index = i32::try_from(self.index(partition)).expect("counts are int32");
                self.roster.give(&mut assigned, owner, self.topic_of[partition], std::iter::once(index));
            }
        }
        assigned
    }
}
