//! What the leader tells each member through SyncGroup: ConsumerProtocolAssignment, versions 0 to 3.
//!
//! The fields are the same in all four versions; the number only keeps step with the subscription's.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::codec::{MetadataError, Reader, Writer};

const VERSION_NEWEST: i16 = 3;

/// One member's assignment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// The member's partitions by topic, ascending.
    pub partitions: BTreeMap<String, Vec<i32>>,
    /// What the leader's assignor added; none of ours adds anything.
    pub user_data: Option<Bytes>,
}

impl Assignment {
    /// The assignment as version 3.
    ///
    /// # Panics
    /// If a topic is longer than 32,767 bytes, which no cluster has.
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::default();
        out.int16(VERSION_NEWEST);
        out.topic_partitions(&self.partitions);
        out.nullable_bytes(self.user_data.as_ref());
        out.into_bytes()
    }

    /// Reads any version; one above 3 is read as 3. No bytes at all is what the broker answers to a member that the
    /// leader left out, and means no partitions.
    pub fn decode(bytes: Bytes) -> Result<Self, MetadataError> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let mut from = Reader::new(bytes);
        from.version(VERSION_NEWEST)?;
        let partitions = from.topic_partitions("assigned partitions")?;
        let user_data = from.nullable_bytes("user data")?;
        Ok(Self { partitions, user_data })
    }
}
