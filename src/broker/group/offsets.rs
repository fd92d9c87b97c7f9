//! Committed offsets of one group, and those that wait for the end of a transaction.
//!
//! Of a plain commit and one of a transaction the later *commit* wins, not the later end: as in the log of Kafka's
//! `__consumer_offsets`. Nothing expires.

use std::collections::BTreeMap;

use kafka_protocol::ResponseError;

/// `offset.metadata.max.bytes`, in UTF-16 units as Java counts them.
const METADATA_MAX: usize = 4096;

/// The next offset to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Committed {
    pub(crate) offset: i64,
    /// The epoch of the record before; -1: unknown.
    pub(crate) leader_epoch: i32,
    pub(crate) metadata: String,
}

#[derive(Clone, Debug)]
struct Stored {
    committed: Committed,
    /// Order of the commits of this group.
    sequence: u64,
}

/// By topic and partition.
type Positions = BTreeMap<String, BTreeMap<i32, Stored>>;

/// The offsets of one group.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    committed: Positions,
    /// By producer id.
    pending: BTreeMap<i64, Positions>,
    commits: u64,
}

impl Offsets {
    fn put(&mut self, producer: Option<i64>, topic: &str, partition: i32, committed: Committed) {
        self.commits += 1;
        let stored = Stored { committed, sequence: self.commits };
        let positions = match producer {
            Some(producer) => self.pending.entry(producer).or_default(),
            None => &mut self.committed,
        };
        positions.entry(topic.to_owned()).or_default().insert(partition, stored);
    }

    pub(super) fn get(&self, topic: &str, partition: i32) -> Option<&Committed> {
        self.committed.get(topic)?.get(&partition).map(|stored| &stored.committed)
    }

    /// By topic, then partition.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, i32, &Committed)> {
        self.committed.iter().flat_map(|(topic, partitions)| {
            partitions.iter().map(|(partition, stored)| (topic.as_str(), *partition, &stored.committed))
        })
    }

    /// A transaction that is under way holds an offset for it.
    pub(super) fn is_pending(&self, topic: &str, partition: i32) -> bool {
        let mut pending = self.pending.values();
        pending.any(|positions| positions.get(topic).is_some_and(|found| found.contains_key(&partition)))
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The transaction of a producer has ended: its offsets count, or never were.
    pub(super) fn on_transaction_end(&mut self, producer: i64, committed: bool) {
        let Some(pending) = self.pending.remove(&producer).filter(|_| committed) else { return };
        for (topic, partitions) in pending {
            let to = self.committed.entry(topic).or_default();
            for (partition, stored) in partitions {
                if to.get(&partition).is_none_or(|there| there.sequence < stored.sequence) {
                    to.insert(partition, stored);
                }
            }
        }
    }

    pub(super) fn delete(&mut self, topic: &str, partition: i32) {
        self.edit(|positions| {
            if let Some(partitions) = positions.get_mut(topic) {
                partitions.remove(&partition);
            }
        });
    }

    pub(super) fn on_topic_deleted(&mut self, topic: &str) {
        self.edit(|positions| {
            positions.remove(topic);
        });
    }

    /// Changes what is committed and what is pending, and leaves no empty map behind.
    fn edit(&mut self, change: impl Fn(&mut Positions)) {
        for positions in self.pending.values_mut().chain([&mut self.committed]) {
            change(positions);
            positions.retain(|_, partitions| !partitions.is_empty());
        }
        self.pending.retain(|_, positions| !positions.is_empty());
    }
}

/// Where a checked commit may put its offsets.
pub(crate) struct Commits<'a> {
    pub(super) offsets: &'a mut Offsets,
    /// Set: they count when that producer's transaction is committed.
    pub(super) producer: Option<i64>,
}

impl Commits<'_> {
    /// Stores one offset.
    ///
    /// # Errors
    /// OFFSET_METADATA_TOO_LARGE.
    pub(crate) fn put(
        &mut self,
        topic: &str,
        partition: i32,
        committed: Committed,
    ) -> Result<(), ResponseError> {
        let metadata = &committed.metadata;
        if metadata.len() > METADATA_MAX && metadata.encode_utf16().count() > METADATA_MAX {
            return Err(ResponseError::OffsetMetadataTooLarge);
        }
        self.offsets.put(self.producer, topic, partition, committed);
        Ok(())
    }
}
