//! How a leader shares the partitions out, and what each member tells it for that.
//!
//! The four classic assignors, behaving as the Java client's do, so that keylane and Java members can be in one
//! group whichever of them leads. Guarantees of all four: every partition that has a subscriber is given to exactly
//! one subscriber, except that cooperative-sticky leaves out, for one round, what its owner must first revoke; every
//! member has an entry; the same input gives the same output. Racks are not looked at.
//!
//! Compared with the assignors of kafka-clients 4.4.0 in 16,000 rebalances of 4,000 generated groups: range,
//! round-robin and the sticky ones under equal subscriptions give the very same assignments. Under unequal ones sticky
//! gives the same balance or a better one. One difference is meant: Java takes subscriptions for equal if the first
//! members it looks at have none, and then gives these what they do not want.

mod board;
mod cooperative;
mod general;
mod range;
mod roundrobin;
mod sticky;
mod uniform;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;

use super::codec::TopicPartitions;
use super::{Assignment, Subscription};

/// A way to share partitions out; the protocol name in JoinGroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Assignor {
    /// Balanced and sticky; members keep what they own while they rebalance (KIP-429).
    CooperativeSticky,
    /// Balanced and sticky; members give everything up to rebalance (KIP-54).
    Sticky,
    /// Runs of partitions per topic.
    Range,
    /// Partitions dealt in turn.
    RoundRobin,
}

/// A member as the leader sees it in the JoinGroup answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupMember {
    /// What the member sent.
    pub subscription: Subscription,
    /// `group.instance.id` (KIP-345), for a static member.
    pub instance_id: Option<String>,
}

impl Assignor {
    /// All four, in the order keylane prefers them.
    pub const ALL: [Self; 4] = [Self::CooperativeSticky, Self::Sticky, Self::Range, Self::RoundRobin];

    /// The name members agree on in JoinGroup; the Java client's.
    pub fn name(self) -> &'static str {
        match self {
            Self::CooperativeSticky => "cooperative-sticky",
            Self::Sticky => "sticky",
            Self::Range => "range",
            Self::RoundRobin => "roundrobin",
        }
    }

    /// The assignor of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|assignor| assignor.name() == name)
    }

    /// Whether members keep what they own while they join, and revoke only what they are not given again.
    pub fn is_cooperative(self) -> bool {
        self == Self::CooperativeSticky
    }

    /// What a member sends as user data: `owned` is its last assignment, `generation` the generation of that one,
    /// −1 for none.
    pub fn user_data(&self, owned: &BTreeMap<String, Vec<i32>>, generation: i32) -> Option<Bytes> {
        match self {
            Self::CooperativeSticky => Some(cooperative::user_data(generation)),
            Self::Sticky => sticky::user_data(owned, generation),
            Self::Range | Self::RoundRobin => None,
        }
    }

    /// Shares out `partitions` (topic → how many it has). A topic that is not there, or has none, is given to nobody.
    pub fn assign(
        &self,
        members: &BTreeMap<String, GroupMember>,
        partitions: &BTreeMap<String, i32>,
    ) -> BTreeMap<String, Assignment> {
        let roster = Roster::new(members, partitions);
        let assigned = match self {
            Self::CooperativeSticky => cooperative::assign(&roster),
            Self::Sticky => sticky::assign(&roster),
            Self::Range => range::assign(&roster),
            Self::RoundRobin => roundrobin::assign(&roster),
        };
        assigned
            .into_iter()
            .map(|(id, partitions)| (id, Assignment { partitions, user_data: None }))
            .collect()
    }
}

/// The members, and the topics among which they choose: those that exist and have a subscriber. Members are numbered
/// in the order of their ids.
struct Roster<'a> {
    members: Vec<(&'a str, &'a GroupMember)>,
    topics: Vec<Topic<'a>>,
}

struct Topic<'a> {
    name: &'a str,
    count: i32,
    /// The members that want it, ascending; at least one.
    subscribers: Vec<usize>,
}

impl<'a> Roster<'a> {
    fn new(members: &'a BTreeMap<String, GroupMember>, partitions: &'a BTreeMap<String, i32>) -> Self {
        let members: Vec<_> = members.iter().map(|(id, member)| (id.as_str(), member)).collect();
        let mut subscribers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (number, (_, member)) in members.iter().enumerate() {
            for topic in &member.subscription.topics {
                let subscribers = subscribers.entry(topic).or_default();
                // A member may name a topic twice.
                if subscribers.last() != Some(&number) {
                    subscribers.push(number);
                }
            }
        }
        let topic = |(name, subscribers): (&'a str, Vec<usize>)| {
            let count = partitions.get(name).copied().filter(|&count| count > 0)?;
            Some(Topic { name, count, subscribers })
        };
        Self { members, topics: subscribers.into_iter().filter_map(topic).collect() }
    }

    /// Members, static ones first by instance id, then the others by member id: an instance keeps its place when it
    /// comes back with a new member id.
    fn in_group_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.members.len()).collect();
        order.sort_by_key(|&number| {
            let instance_id = self.members[number].1.instance_id.as_deref();
            (instance_id.is_none(), instance_id, number)
        });
        order
    }

    /// Every member with no partitions.
    fn nothing(&self) -> BTreeMap<String, TopicPartitions> {
        self.members.iter().map(|(id, _)| ((*id).to_owned(), TopicPartitions::new())).collect()
    }

    /// Adds partitions, which must come in ascending order within a topic.
    fn give(
        &self,
        assigned: &mut BTreeMap<String, TopicPartitions>,
        member: usize,
        topic: usize,
        partitions: impl Iterator<Item = i32>,
    ) {
        let mut partitions = partitions.peekable();
        if partitions.peek().is_some() {
            let topics = assigned.get_mut(self.members[member].0).expect("every member has an entry");
            topics.entry(self.topics[topic].name.to_owned()).or_default().extend(partitions);
        }
    }
}

impl Topic<'_> {
    fn has_subscriber(&self, member: usize) -> bool {
        self.subscribers.binary_search(&member).is_ok()
    }
}
