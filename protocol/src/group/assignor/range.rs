//! The range assignor: each topic is cut into one run of partitions per subscriber.
//!
//! Guarantee: per topic, members in group order hold ascending runs whose lengths differ by at most one, the longer
//! ones first. Topics with the same subscribers and partition count are cut alike, which is why people choose it.

use std::collections::BTreeMap;

use super::{Roster, TopicPartitions};

pub(super) fn assign(roster: &Roster<'_>) -> BTreeMap<String, TopicPartitions> {
    let mut assigned = roster.nothing();
    let order = roster.in_group_order();
    for (number, topic) in roster.topics.iter().enumerate() {
        let mut left = topic.subscribers.len() as i32;
        let mut next = 0;
        for &member in order.iter().filter(|&&member| topic.has_subscriber(member)) {
            // Rounding up what is left gives the first members the longer runs.
            let run = (topic.count - next + left - 1) / left;
            roster.give(&mut assigned, member, number, next..next + run);
            next += run;
            left -= 1;
        }
    }
    assigned
}
