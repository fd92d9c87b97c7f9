//! What somebody outside may look at and do to a cluster, without a client: for simulators, tests and demonstrations.

use std::time::Duration;

use bytes::Bytes;

use super::cluster::Cluster;
use super::log::ProducedBatch;

/// Where a log begins and ends, and who leads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRange {
    /// The first offset that can be read.
    pub start: i64,
    /// One past the last one, open transactions included.
    pub end: i64,
    /// The leader, −1 for none.
    pub leader: i32,
    /// Its epoch.
    pub leader_epoch: i32,
}

/// Bytes of one [`Cluster::read_log`].
const READ_BYTES_MAX: usize = 1 << 20;

impl Cluster {
    /// Number of partitions of a topic; 0 if there is no such topic.
    pub fn partitions(&self, topic: &str) -> i32 {
        let count = self.state.topics.get(topic).map_or(0, |topic| topic.partitions.len());
        i32::try_from(count).unwrap_or(i32::MAX)
    }

    /// The range of a partition's log.
    pub fn log_range(&self, topic: &str, partition: i32) -> Option<LogRange> {
        let found = self.state.topics.partition(topic, partition)?;
        Some(LogRange {
            start: found.log.start_offset(),
            end: found.log.end_offset(),
            leader: found.leader,
            leader_epoch: found.leader_epoch,
        })
    }

    /// Some whole batches as they lie in the log, from the one with this offset on; those of open and aborted
    /// transactions and markers too. Empty at the end and outside the log.
    pub fn read_log(&self, topic: &str, partition: i32, offset: i64) -> Bytes {
        let found = self.state.topics.partition(topic, partition);
        let read = found.and_then(|found| found.log.read(offset, READ_BYTES_MAX, false, true).ok());
        read.map_or_else(Bytes::new, |read| read.records)
    }

    /// The offset that a group has committed for a partition, and the leader epoch that it gave with it.
    pub fn committed(&self, group: &str, topic: &str, partition: i32) -> Option<(i64, i32)> {
        let committed = self.state.groups.committed(group, topic, partition)?;
        Some((committed.offset, committed.leader_epoch))
    }

    /// Adds partitions to a topic until there are `count`.
    pub fn add_partitions(&mut self, topic: &str, count: i32, now: Duration) {
        self.set_now(now);
        self.state.add_partitions(topic, count, 1);
    }

    /// Deletes the records below an offset.
    pub fn delete_records(&mut self, topic: &str, partition: i32, before: i64, now: Duration) {
        self.set_now(now);
        if let Some(found) = self.state.topics.partition_mut(topic, partition) {
            found.log.delete_records_before(before);
        }
        self.touch(topic, partition);
    }

    /// Stores a batch as if its leader had been asked to, transactional or not, compacted or whole.
    ///
    /// # Errors
    /// The Kafka error code of the refusal.
    pub fn append(&mut self, topic: &str, partition: i32, batch: Bytes, now: Duration) -> Result<i64, i16> {
        self.set_now(now);
        let (bytes_max, now_ms) = (self.state.config.max_message_bytes, self.state.wall_ms());
        let batch = ProducedBatch::parse_stored(batch, bytes_max)?;
        let found = self.state.topics.partition_mut(topic, partition);
        let found = found.ok_or(kafka_protocol::ResponseError::UnknownTopicOrPartition.code())?;
        let appended = found.log.append(&batch, found.leader_epoch, now_ms)?;
        self.touch(topic, partition);
        Ok(appended.base_offset)
    }

    /// Ends the transaction of a producer in a partition by a marker.
    pub fn append_marker(
        &mut self,
        topic: &str,
        partition: i32,
        producer_id: i64,
        producer_epoch: i16,
        commit: bool,
        now: Duration,
    ) {
        self.set_now(now);
        let now_ms = self.state.wall_ms();
        if let Some(found) = self.state.topics.partition_mut(topic, partition) {
            found.log.append_marker(producer_id, producer_epoch, commit, 0, found.leader_epoch, now_ms);
        }
        self.touch(topic, partition);
    }

    fn touch(&mut self, topic: &str, partition: i32) {
        self.state.on_appended(topic, partition);
        self.settle();
    }
}
