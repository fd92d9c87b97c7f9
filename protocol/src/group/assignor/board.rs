//! The table on which the two sticky assignors work: members and partitions as numbers, who claims what, who gets it.
//!
//! Invariants: topics and members stand in name order, and a topic's partitions lie side by side, so that ascending
//! numbers are the order the Java client deals in; `previous[p]` is a subscriber of p's topic and the only member
//! that claims p with the highest generation among its claimants; `owner[p]` is none or a subscriber of p's topic.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Roster, TopicPartitions};

/// What a member says it had, and in which generation (−1 for none).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) owned: TopicPartitions,
    pub(super) generation: i32,
}

/// A topic's place in the table.
pub(super) struct Topic<'a> {
    name: &'a str,
    /// The numbers of its partitions here.
    pub(super) span: Range<usize>,
    /// The members that want it, ascending; at least one.
    pub(super) subscribers: Vec<usize>,
}

pub(super) struct Board<'a> {
    members: Vec<&'a str>,
    pub(super) topics: Vec<Topic<'a>>,
    topic_of: Vec<usize>,
    claimants: Vec<Vec<usize>>,
    /// The member that a partition comes from, where that is beyond doubt.
    pub(super) previous: Vec<Option<usize>>,
    /// The member that gets it; starts as `previous`.
    pub(super) owner: Vec<Option<usize>>,
}

impl<'a> Board<'a> {
    /// `claim` gives what a member had. A claim to a partition that does not exist (any more) is dropped.
    pub(super) fn new(roster: &Roster<'a>, claim: impl Fn(&str) -> Claim) -> Self {
        let members: Vec<&str> = roster.members.keys().map(String::as_str).collect();
        let mut topics = Vec::new();
        let mut topic_of = Vec::new();
        for (name, count) in roster.topics() {
            let span = topic_of.len()..topic_of.len() + count as usize;
            topic_of.resize(span.end, topics.len());
            let subscribers = (0..members.len()).filter(|&m| roster.subscribes(members[m], name)).collect();
            topics.push(Topic { name, span, subscribers });
        }
        let partitions = topic_of.len();
        let mut board = Self {
            members,
            topics,
            topic_of,
            claimants: vec![Vec::new(); partitions],
            previous: vec![None; partitions],
            owner: Vec::new(),
        };
        let mut generations = Vec::with_capacity(board.members.len());
        for member in 0..board.members.len() {
            let claim = claim(board.members[member]);
            board.note(member, &claim.owned);
            generations.push(claim.generation);
        }
        board.decide(&generations);
        board
    }

    fn note(&mut self, member: usize, owned: &TopicPartitions) {
        for (name, partitions) in owned {
            let Ok(topic) = self.topics.binary_search_by(|topic| topic.name.cmp(name)) else { continue };
            let span = self.topics[topic].span.clone();
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
                let subscribers = &self.topics[self.topic_of[partition]].subscribers;
                self.previous[partition] = subscribers.binary_search(&winner).ok().map(|_| winner);
            }
        }
        self.owner = self.previous.clone();
    }

    /// Whether every member wants every topic (that exists and is wanted at all).
    pub(super) fn is_uniform(&self) -> bool {
        self.topics.iter().all(|topic| topic.subscribers.len() == self.members.len())
    }

    pub(super) fn member_count(&self) -> usize {
        self.members.len()
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
        partition - self.topics[self.topic_of[partition]].span.start
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

    pub(super) fn assigned(&self, roster: &Roster<'_>) -> BTreeMap<String, TopicPartitions> {
        let mut assigned = roster.nothing();
        for (partition, owner) in self.owner.iter().enumerate() {
            if let Some(owner) = *owner {
                let index = i32::try_from(self.index(partition)).expect("counts are int32");
                let topic = self.topics[self.topic_of[partition]].name;
                roster.give(&mut assigned, self.members[owner], topic, std::iter::once(index));
            }
        }
        assigned
    }
}
