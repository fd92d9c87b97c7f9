//! What the end of a transaction does elsewhere: a marker in each of its partitions, and the offsets of its groups.

use super::Ended;
use crate::broker::state::State;

/// Coordinators never lose their place to an older one here.
const COORDINATOR_EPOCH: i32 = 0;

impl State {
    /// Writes the markers of a transaction, and makes its offsets count or go. Partitions that have been deleted since
    /// need no marker.
    pub(crate) fn finish_transaction(&mut self, ended: Ended) {
        let now_ms = self.wall_ms();
        for (topic, index) in &ended.partitions {
            let found = self.topics.partition_mut(topic, *index);
            let Some(partition) = found else { continue };
            partition.log.append_marker(
                ended.producer.id,
                ended.producer.epoch,
                ended.commit,
                COORDINATOR_EPOCH,
                partition.leader_epoch,
                now_ms,
            );
            self.on_appended(topic, *index);
        }
        self.groups.on_transaction_end(ended.producer.id, ended.commit);
    }

    /// Aborts the transactions whose timeout is over.
    pub(in crate::broker) fn poll_transactions(&mut self) {
        let late = self.transactions.poll(self.now);
        for ended in late {
            self.finish_transaction(ended);
        }
    }
}
