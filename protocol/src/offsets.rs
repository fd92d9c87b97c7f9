//! Where to start: committed offsets (OffsetFetch), log ends and timestamps (ListOffsets), and where two logs part
//! (OffsetForLeaderEpoch).
//!
//! Invariant: only "no error and offset -1" means that a partition has no commit. Every error is an error.

use std::collections::BTreeMap;

use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{
    BrokerId, GroupId, ListOffsetsRequest, ListOffsetsResponse, OffsetFetchRequest, OffsetFetchResponse,
    OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, TopicName,
};

use crate::api::text;
use crate::error::code;
use crate::metadata::TopicPartition;

/// Timestamp of ListOffsets that means the end of the log.
pub const LATEST: i64 = -1;
/// Timestamp of ListOffsets that means the start of the log.
pub const EARLIEST: i64 = -2;

/// An offset and the leader epoch of the batch before it (-1 when unknown).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetAndEpoch {
    /// The next offset to read.
    pub offset: i64,
    /// Leader epoch; -1 when unknown.
    pub epoch: i32,
}

/// Which transactions a reader sees (KIP-98).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Everything.
    ReadUncommitted,
    /// Only what is committed, up to the last stable offset.
    ReadCommitted,
}

impl Isolation {
    /// The value on the wire.
    pub fn level(self) -> i8 {
        i8::from(self == Isolation::ReadCommitted)
    }
}

/// Groups partitions by topic, in order.
pub(crate) fn by_topic<'a>(
    partitions: impl IntoIterator<Item = &'a TopicPartition>,
) -> BTreeMap<&'a str, Vec<i32>> {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for at in partitions {
        topics.entry(&at.topic).or_default().push(at.partition);
    }
    topics
}

/// Asks for the committed offsets of these partitions, or of all (`None`). With `require_stable`, offsets on which a
/// transaction is still open are refused (KIP-447) rather than answered with an old value.
pub fn offset_fetch_request(
    group: &str,
    partitions: Option<&[TopicPartition]>,
    require_stable: bool,
) -> OffsetFetchRequest {
    let topics = partitions.map(|partitions| {
        by_topic(partitions)
            .into_iter()
            .map(|(topic, partitions)| {
                OffsetFetchRequestTopics::default()
                    .with_name(TopicName(text(topic)))
                    .with_partition_indexes(partitions)
            })
            .collect()
    });
    let group = OffsetFetchRequestGroup::default().with_group_id(GroupId(text(group))).with_topics(topics);
    OffsetFetchRequest::default().with_require_stable(require_stable).with_groups(vec![group])
}

/// One partition of an OffsetFetch answer: no commit, a commit, or an error code.
pub type CommittedOffset = Result<Option<OffsetAndEpoch>, i16>;

/// Reads an OffsetFetch answer about one group.
///
/// # Errors
/// The code with which the whole group is refused.
pub fn read_offset_fetch(
    response: OffsetFetchResponse,
) -> Result<Vec<(TopicPartition, CommittedOffset)>, i16> {
    let mut offsets = Vec::new();
    let mut take = |topic: &str, partition: i32, error_code: i16, offset: i64, epoch: i32| {
        let committed = match (error_code, offset) {
            (code::NONE, -1) => Ok(None),
            // No other negative offset can be committed; a broker that sends one is not to be read as "no commit".
            (code::NONE, offset) if offset < 0 => Err(-1),
            (code::NONE, offset) => Ok(Some(OffsetAndEpoch { offset, epoch })),
            (refused, _) => Err(refused),
        };
        offsets.push((TopicPartition::new(topic, partition), committed));
    };
    if response.error_code != code::NONE {
        return Err(response.error_code);
    }
    for topic in &response.topics {
        for p in &topic.partitions {
            take(&topic.name, p.partition_index, p.error_code, p.committed_offset, p.committed_leader_epoch);
        }
    }
    for group in &response.groups {
        if group.error_code != code::NONE {
            return Err(group.error_code);
        }
        for topic in &group.topics {
            for p in &topic.partitions {
                take(
                    &topic.name,
                    p.partition_index,
                    p.error_code,
                    p.committed_offset,
                    p.committed_leader_epoch,
                );
            }
        }
    }
    Ok(offsets)
}

/// Asks for offsets by time: partition, the leader epoch that we know (-1 if none), timestamp in ms or
/// [`EARLIEST`] or [`LATEST`].
pub fn list_offsets_request(
    wanted: &[(TopicPartition, i32, i64)],
    isolation: Isolation,
) -> ListOffsetsRequest {
    let mut topics: BTreeMap<&str, Vec<ListOffsetsPartition>> = BTreeMap::new();
    for (at, epoch, timestamp) in wanted {
        let partition = ListOffsetsPartition::default()
            .with_partition_index(at.partition)
            .with_current_leader_epoch(*epoch)
            .with_timestamp(*timestamp);
        topics.entry(&at.topic).or_default().push(partition);
    }
    let topics = topics
        .into_iter()
        .map(|(topic, partitions)| {
            ListOffsetsTopic::default().with_name(TopicName(text(topic))).with_partitions(partitions)
        })
        .collect();
    ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_isolation_level(isolation.level())
        .with_topics(topics)
}

/// Reads a ListOffsets answer: the offset with its epoch, or an error code. Offset -1 says that no record is as
/// young as the timestamp.
pub fn read_list_offsets(
    response: &ListOffsetsResponse,
) -> Vec<(TopicPartition, Result<OffsetAndEpoch, i16>)> {
    let mut offsets = Vec::new();
    for topic in &response.topics {
        for p in &topic.partitions {
            let result = match p.error_code {
                code::NONE => Ok(OffsetAndEpoch { offset: p.offset, epoch: p.leader_epoch }),
                refused => Err(refused),
            };
            offsets.push((TopicPartition::new(topic.name.as_str(), p.partition_index), result));
        }
    }
    offsets
}

/// Asks a leader where the log of an epoch ends: partition, the leader epoch that we know, the epoch that we read.
pub fn epoch_end_request(wanted: &[(TopicPartition, i32, i32)]) -> OffsetForLeaderEpochRequest {
    let mut topics: BTreeMap<&str, Vec<OffsetForLeaderPartition>> = BTreeMap::new();
    for (at, current, read) in wanted {
        let partition = OffsetForLeaderPartition::default()
            .with_partition(at.partition)
            .with_current_leader_epoch(*current)
            .with_leader_epoch(*read);
        topics.entry(&at.topic).or_default().push(partition);
    }
    let topics = topics
        .into_iter()
        .map(|(topic, partitions)| {
            OffsetForLeaderTopic::default().with_topic(TopicName(text(topic))).with_partitions(partitions)
        })
        .collect();
    OffsetForLeaderEpochRequest::default().with_replica_id(BrokerId(-1)).with_topics(topics)
}

/// Reads an OffsetForLeaderEpoch answer: where the epoch ends in the leader's log (offset -1: it does not know).
pub fn read_epoch_end(
    response: &OffsetForLeaderEpochResponse,
) -> Vec<(TopicPartition, Result<OffsetAndEpoch, i16>)> {
    let mut ends = Vec::new();
    for topic in &response.topics {
        for p in &topic.partitions {
            let result = match p.error_code {
                code::NONE => Ok(OffsetAndEpoch { offset: p.end_offset, epoch: p.leader_epoch }),
                refused => Err(refused),
            };
            ends.push((TopicPartition::new(topic.topic.as_str(), p.partition), result));
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::offset_fetch_response::{
        OffsetFetchResponseGroup, OffsetFetchResponsePartitions, OffsetFetchResponseTopics,
    };

    use super::*;

    fn answer(error_code: i16, offset: i64) -> OffsetFetchResponse {
        let partition = OffsetFetchResponsePartitions::default()
            .with_error_code(error_code)
            .with_committed_offset(offset)
            .with_committed_leader_epoch(3);
        let topic = OffsetFetchResponseTopics::default()
            .with_name(TopicName(text("t")))
            .with_partitions(vec![partition]);
        OffsetFetchResponse::default()
            .with_groups(vec![OffsetFetchResponseGroup::default().with_topics(vec![topic])])
    }

    #[test]
    fn only_no_error_and_minus_one_means_no_commit() {
        // CASES 13: an error with offset -1 is an error.
        let read =
            |error_code, offset| read_offset_fetch(answer(error_code, offset)).map(|mut all| all.remove(0).1);
        assert_eq!(read(0, -1), Ok(Ok(None)));
        assert_eq!(read(88, -1), Ok(Err(88)));
        assert_eq!(read(0, 42), Ok(Ok(Some(OffsetAndEpoch { offset: 42, epoch: 3 }))));
        assert_eq!(read(0, -7), Ok(Err(-1)));
    }
}
