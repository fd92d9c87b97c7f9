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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::group::codec::unhex;

    // Written by the Java client (kafka-clients 3.9.2 and 4.4.0 agree) from topics foo and bar, user data "hi", owned
    // foo-0, foo-7 and bar-2, generation 5, rack "rack-a".
    const V0: &str = "00000000000200036261720003666f6f000000026869";
    const V1_ADDS: &str = "00000002000362617200000001000000020003666f6f000000020000000000000007";
    const V2_ADDS: &str = "00000005";
    const V3_ADDS: &str = "00067261636b2d61";

    fn java(version: u16) -> String {
        let fields = [&V0[4..], V1_ADDS, V2_ADDS, V3_ADDS];
        format!("{version:04x}{}", fields[..=usize::from(version.min(3))].concat())
    }

    fn full() -> Subscription {
        Subscription {
            topics: vec!["bar".into(), "foo".into()],
            user_data: Some(Bytes::from_static(b"hi")),
            owned: BTreeMap::from([("bar".into(), vec![2]), ("foo".into(), vec![0, 7])]),
            generation: 5,
            rack: Some("rack-a".into()),
        }
    }

    #[test]
    fn writes_what_the_java_client_writes() {
        let unsorted = Subscription { topics: vec!["foo".into(), "bar".into()], ..full() };
        assert_eq!(unsorted.encode(), unhex(&java(3)));
        let least = Subscription { topics: vec!["t".into()], ..Subscription::default() };
        assert_eq!(least.encode(), unhex("000300000001000174ffffffff00000000ffffffffffff"));
        assert_eq!(Subscription::decode(least.encode()), Ok(least));
    }

    #[test]
    fn reads_each_version_with_the_fields_it_has() {
        let at = |version| Subscription::decode(unhex(&java(version))).unwrap();
        assert_eq!(at(3), full());
        assert_eq!(at(2), Subscription { rack: None, ..full() });
        assert_eq!(at(1), Subscription { rack: None, generation: -1, ..full() });
        assert_eq!(at(0), Subscription { rack: None, generation: -1, owned: BTreeMap::new(), ..full() });
    }

    #[test]
    fn reads_the_front_of_versions_to_come() {
        assert_eq!(Subscription::decode(unhex(&(java(100) + "0003626172"))), Ok(full()));
        assert_eq!(Subscription::decode(unhex(&("0000".to_owned() + &java(3)[4..]))).unwrap().generation, -1);
    }

    #[test]
    fn refuses_what_no_member_should_send() {
        let error = |digits: &str| Subscription::decode(unhex(digits)).unwrap_err();
        assert_eq!(error(""), MetadataError::Truncated("version"));
        assert_eq!(error("ffff00000000"), MetadataError::Version(-1));
        assert_eq!(error("0000ffffffff"), MetadataError::Length("subscribed topics", -1));
        assert_eq!(error("00007fffffff0000"), MetadataError::Truncated("subscribed topics"));
        assert_eq!(error("000000000001ffff"), MetadataError::Length("subscribed topics", -1));
        assert_eq!(error("0000000000010001ff"), MetadataError::Utf8("subscribed topics"));
        assert_eq!(error("0000000000007fffffff"), MetadataError::Truncated("user data"));
        assert_eq!(error("000100000000ffffffff7fffffff"), MetadataError::Truncated("owned partitions"));
        let negative = "000100000000ffffffff0000000100017400000001fffffffe";
        assert_eq!(error(negative), MetadataError::Partition(-2));
    }

    #[test]
    fn the_tolerant_reading_keeps_what_stands_before_the_fault() {
        let claims_version_1 = unhex(&("0001".to_owned() + &V0[4..]));
        let (read, fault) = Subscription::decode_tolerant(claims_version_1);
        assert_eq!(read, Subscription { rack: None, generation: -1, owned: BTreeMap::new(), ..full() });
        assert_eq!(fault, Some(MetadataError::Truncated("owned partitions")));
        let (read, fault) = Subscription::decode_tolerant(Bytes::new());
        assert_eq!((read, fault), (Subscription::default(), Some(MetadataError::Truncated("version"))));
    }

    #[test]
    fn repeats_and_disorder_in_owned_partitions_are_put_right() {
        let digits =
            "000100000000ffffffff00000002000174000000030000000500000001000000050001740000000100000003";
        assert_eq!(
            Subscription::decode(unhex(digits)).unwrap().owned,
            BTreeMap::from([("t".into(), vec![1, 3, 5])])
        );
    }

    proptest! {
        #[test]
        fn a_cut_is_an_error(cut in 0_usize..70) {
            let whole = full().encode();
            prop_assume!(cut < whole.len());
            prop_assert!(Subscription::decode(whole.slice(..cut)).is_err());
        }

        #[test]
        fn any_bytes_give_a_value(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Subscription::decode(bytes.into());
        }

        #[test]
        fn a_changed_byte_gives_a_value_that_survives_writing(at in 0_usize..70, to: u8) {
            let mut bytes = full().encode().to_vec();
            let at = at % bytes.len();
            bytes[at] = to;
            if let Ok(read) = Subscription::decode(bytes.into()) {
                let again = Subscription::decode(read.encode()).unwrap();
                prop_assert_eq!(again.owned, read.owned);
            }
        }
    }
}
