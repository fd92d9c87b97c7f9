//! Transactional records and markers in the logs, written there directly: positions must pass what nobody is to see.
//! Some batches lack their last records, as compaction leaves them.

use bytes::{Bytes, BytesMut};
use keylane_protocol::records::{BatchBuilder, Codec, ProducerStamp};

use crate::plan::TOPIC;
use crate::world::World;

/// Producer ids of transactions, and the upper half of their records' numbers.
const FIRST: i64 = 1_000_000;

impl World {
    pub(crate) fn begin_transaction(&mut self, partition: i32) {
        let producer = FIRST + i64::try_from(self.time.count()).unwrap_or(0);
        let commit = self.time.random.one_in(2);
        let count = self.time.random.between(1, 4);
        let mut builder = BatchBuilder::new();
        for number in 0..count {
            let id = (producer as u64) << 32 | number;
            let key = format!("k{partition}-{}", self.time.random.below(self.plan.keys));
            builder.append(Some(key.as_bytes()), Some(&id.to_be_bytes()), &[], 0).expect("a small record");
            if !commit {
                self.aborted.insert(id);
            }
        }
        let stamp = ProducerStamp {
            producer_id: producer,
            producer_epoch: 0,
            base_sequence: 0,
            is_transactional: true,
        };
        let batch = builder.finish(Codec::None, &stamp).expect("a small batch");
        let batch = lengthen(&batch, producer as u64 % 4);
        let stored = self.cluster.append(TOPIC, partition, batch, self.time.now);
        assert!(stored.is_ok(), "a transaction's batch is refused: {stored:?}");
        self.transactions.insert(producer, (partition, commit));
    }

    pub(crate) fn end_transaction(&mut self, producer: i64) {
        if let Some((partition, commit)) = self.transactions.remove(&producer) {
            self.cluster.append_marker(TOPIC, partition, producer, 0, commit, self.time.now);
        }
    }
}

/// The batch with a range that goes `more` offsets beyond its last record.
fn lengthen(batch: &[u8], more: u64) -> Bytes {
    let mut batch = BytesMut::from(batch);
    let delta = u32::from_be_bytes(batch[23..27].try_into().expect("four bytes")) + more as u32;
    batch[23..27].copy_from_slice(&delta.to_be_bytes());
    let crc = crc32c::crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    batch.freeze()
}
