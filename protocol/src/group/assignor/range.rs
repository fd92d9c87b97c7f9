//! The range assignor: each topic is cut into one run of partitions per subscriber.
//!
//! Guarantee: per topic, members in group order hold ascending runs whose lengths differ by at most one, the longer
//! ones first. Topics with the same subscribers and partition count are cut alike, which is why people choose it.

use std::collections::BTreeMap;

use super::{Roster, TopicPartitions};

pub(super) fn assign(roster: &Roster<'_>) -> BTreeMap<String, TopicPartitions> {
    let mut assigned = roster.nothing();
    for (topic, count) in roster.topics() {
        let subscribers: Vec<&str> =
            roster.in_group_order().filter(|id| roster.subscribes(id, topic)).collect();
        let mut next = 0;
        for (place, id) in subscribers.iter().enumerate() {
            let left = subscribers.len() - place;
            // Rounding up what is left gives the first members the longer runs.
            let run = (count as usize - next).div_ceil(left);
            roster.give(&mut assigned, id, topic, (next..next + run).map(|partition| partition as i32));
            next += run;
        }
    }
    assigned
}
