//! OffsetCommit and OffsetFetch, by topic name: kafka-protocol 0.18 has no version 10 of either.

use std::time::Instant;

use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{
    OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse,
};

use super::codes;
use super::group::Phase;
use super::state::{State, group_id, text, topic_name};

/// The next offset to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub offset: i64,
    pub leader_epoch: i32,
    pub metadata: String,
}

impl State {
    /// Puts a committed offset there before the test, or changes it behind the client's back.
    pub fn set_committed(&mut self, group: &str, topic: &str, partition: i32, offset: i64) {
        let committed = Committed { offset, leader_epoch: -1, metadata: String::new() };
        self.group(group).offsets.insert((topic.to_owned(), partition), committed);
    }

    pub fn committed(&self, group: &str, topic: &str, partition: i32) -> Option<i64> {
        Some(self.groups.get(group)?.offsets.get(&(topic.to_owned(), partition))?.offset)
    }
}

/// The error of the whole commit, if any.
fn refusal(state: &mut State, body: &OffsetCommitRequest, now: Instant) -> Option<i16> {
    let generation = body.generation_id_or_member_epoch;
    let group = state.group(&body.group_id);
    if group.members.is_empty() {
        return (generation >= 0).then_some(codes::ILLEGAL_GENERATION);
    }
    let instance = body.group_instance_id.as_deref();
    if let Some(code) = group.check(&body.member_id, instance, generation) {
        return Some(code);
    }
    group.hear(&body.member_id, now);
    (group.phase == Phase::CompletingRebalance).then_some(codes::REBALANCE_IN_PROGRESS)
}

pub fn commit(state: &mut State, body: &OffsetCommitRequest, now: Instant) -> OffsetCommitResponse {
    let refused = refusal(state, body, now);
    let mut response = OffsetCommitResponse::default();
    for topic in &body.topics {
        let mut answered = OffsetCommitResponseTopic::default().with_name(topic.name.clone());
        for partition in &topic.partitions {
            let index = partition.partition_index;
            let code = match refused {
                Some(code) => code,
                None if state.find(&topic.name, index).is_none() => codes::UNKNOWN_TOPIC_OR_PARTITION,
                None => {
                    let committed = Committed {
                        offset: partition.committed_offset,
                        leader_epoch: partition.committed_leader_epoch,
                        metadata: partition.committed_metadata.as_deref().unwrap_or_default().to_owned(),
                    };
                    let group = state.group(&body.group_id);
                    group.offsets.insert((topic.name.to_string(), index), committed);
                    0
                }
            };
            answered.partitions.push(
                OffsetCommitResponsePartition::default().with_partition_index(index).with_error_code(code),
            );
        }
        response.topics.push(answered);
    }
    response
}

/// A topic and what is committed of its partitions.
type Found = (String, Vec<(i32, Option<Committed>)>);

/// What is committed of what a request asks for; of everything for no topics.
fn look_up(state: &State, group: &str, asked: Option<Vec<(String, Vec<i32>)>>) -> Vec<Found> {
    let stored = state.groups.get(group).map(|g| &g.offsets);
    let asked = asked.unwrap_or_else(|| {
        let mut all: Vec<(String, Vec<i32>)> = Vec::new();
        for (topic, partition) in stored.into_iter().flat_map(|offsets| offsets.keys()) {
            match all.last_mut() {
                Some((last, parts)) if last == topic => parts.push(*partition),
                _ => all.push((topic.clone(), vec![*partition])),
            }
        }
        all
    });
    let find = |topic: &str, partition: i32| stored?.get(&(topic.to_owned(), partition)).cloned();
    asked
        .into_iter()
        .map(|(topic, parts)| {
            let found = parts.iter().map(|p| (*p, find(&topic, *p))).collect();
            (topic, found)
        })
        .collect()
}

pub fn fetch(state: &State, body: &OffsetFetchRequest, version: i16) -> OffsetFetchResponse {
    let mut response = OffsetFetchResponse::default();
    if version < 8 {
        let asked = body
            .topics
            .as_ref()
            .map(|topics| topics.iter().map(|t| (t.name.to_string(), t.partition_indexes.clone())).collect());
        for (topic, found) in look_up(state, &body.group_id, asked) {
            let partitions = found.into_iter().map(|(index, committed)| {
                let mut out = OffsetFetchResponsePartition::default().with_partition_index(index);
                (out.committed_offset, out.committed_leader_epoch) = position(committed.as_ref(), version);
                out.metadata = Some(text(committed.map(|c| c.metadata).unwrap_or_default()));
                out
            });
            let mut answered = OffsetFetchResponseTopic::default().with_name(topic_name(&topic));
            answered.partitions = partitions.collect();
            response.topics.push(answered);
        }
        return response;
    }
    for group in &body.groups {
        let mut answered = OffsetFetchResponseGroup::default().with_group_id(group_id(&group.group_id));
        let asked = group
            .topics
            .as_ref()
            .map(|topics| topics.iter().map(|t| (t.name.to_string(), t.partition_indexes.clone())).collect());
        for (topic, found) in look_up(state, &group.group_id, asked) {
            let mut named = OffsetFetchResponseTopics::default().with_name(topic_name(&topic));
            named.partitions = found
                .into_iter()
                .map(|(index, committed)| {
                    let mut out = OffsetFetchResponsePartitions::default().with_partition_index(index);
                    (out.committed_offset, out.committed_leader_epoch) =
                        position(committed.as_ref(), version);
                    out.metadata = Some(text(committed.map(|c| c.metadata).unwrap_or_default()));
                    out
                })
                .collect();
            answered.topics.push(named);
        }
        response.groups.push(answered);
    }
    response
}

fn position(committed: Option<&Committed>, version: i16) -> (i64, i32) {
    let epoch = committed.map_or(-1, |c| c.leader_epoch);
    (committed.map_or(-1, |c| c.offset), if version >= 5 { epoch } else { -1 })
}
