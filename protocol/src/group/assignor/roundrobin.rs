//! The round-robin assignor: all partitions in order, dealt to the members in order, past those not subscribed.
//!
//! Guarantee: with equal subscriptions the members' counts differ by at most one. With unequal ones they may not:
//! the deal does not look at what a member already holds, and that is how the Java client does it.

use std::collections::BTreeMap;

use super::{Roster, TopicPartitions};

pub(super) fn assign(roster: &Roster<'_>) -> BTreeMap<String, TopicPartitions> {
    let mut assigned = roster.nothing();
    let order = roster.in_group_order();
    let mut deal = order.iter().copied().cycle();
    for (number, topic) in roster.topics.iter().enumerate() {
        for partition in 0..topic.count {
            let member =
                deal.find(|&member| topic.has_subscriber(member)).expect("a listed topic has a subscriber");
            roster.give(&mut assigned, member, number, std::iter::once(partition));
        }
    }
    assigned
}
