//! What a member tells the group's leader when it joins: ConsumerProtocolSubscription, versions 0 to 3.
//!
//! Version 1 added the owned partitions (KIP-429), 2 the generation they were assigned in (KIP-792), 3 the rack
//! (KIP-881). We write 3, as the Java client does: members of an older kind read the front of it. The broker never
//! looks inside, so everything read here comes from another member and is checked.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::codec::{MetadataError, Reader, Writer};

const VERSION_NEWEST: i16 = 3;

/// One member's subscription, as carried in JoinGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The topics the member wants partitions of. Order and repeats mean nothing.
    pub topics: Vec<String>,
    /// What the member's assignor added, see [`Assignor::user_data`](super::assignor::Assignor::user_data).
    pub user_data: Option<Bytes>,
    /// What the member still owns while it joins, by topic, ascending. An eager member owns nothing then.
    pub owned: BTreeMap<String, Vec<i32>>,
    /// The generation `owned` was assigned in; −1 for none.
    pub generation: i32,
    /// `client.rack`. Accepted and passed on; no assignor here looks at it.
    pub rack: Option<String>,
}

impl Default for Subscription {
    fn default() -> Self {
        Self { topics: Vec::new(), user_data: None, owned: BTreeMap::new(), generation: -1, rack: None }
    }
}

impl Subscription {
    /// The subscription as version 3, with the topics sorted.
    ///
    /// # Panics
    /// If a topic or the rack is longer than 32,767 bytes: both are checked where they come in.
    pub fn encode(&self) -> Bytes {
        let mut topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        topics.sort_unstable();
        topics.dedup();
        let mut out = Writer::default();
        out.int16(VERSION_NEWEST);
        out.count(topics.len());
        for topic in topics {
            out.string(topic);
        }
        out.nullable_bytes(self.user_data.as_ref());
        out.topic_partitions(&self.owned);
        out.int32(self.generation.max(-1));
        out.nullable_string(self.rack.as_deref());
        out.into_bytes()
    }

    /// Reads any version; one above 3 is read as 3, and bytes behind the last known field are left alone.
    pub fn decode(bytes: Bytes) -> Result<Self, MetadataError> {
        match Self::decode_tolerant(bytes) {
            (subscription, None) => Ok(subscription),
            (_, Some(error)) => Err(error),
        }
    }

    /// Reads up to the first fault and returns that too. A leader that would refuse the whole rebalance for one odd
    /// member hurts everybody else: with this, a member that announces version 1 and leaves out what belongs to it
    /// (some clients did) still gets its share, and one that cannot be read at all gets nothing.
    pub fn decode_tolerant(bytes: Bytes) -> (Self, Option<MetadataError>) {
        let mut subscription = Self::default();
        let fault = subscription.read(&mut Reader::new(bytes)).err();
        (subscription, fault)
    }

    fn read(&mut self, from: &mut Reader) -> Result<(), MetadataError> {
        let version = from.version(VERSION_NEWEST)?;
        self.topics = from.strings("subscribed topics")?;
        self.user_data = from.nullable_bytes("user data")?;
        if version >= 1 {
            self.owned = from.topic_partitions("owned partitions")?;
        }
        if version >= 2 {
            self.generation = from.int32("generation")?.max(-1);
        }
        if version >= 3 {
            self.rack = from.nullable_string("rack")?.filter(|rack| !rack.is_empty());
        }
        Ok(())
    }
}
