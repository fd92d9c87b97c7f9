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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::group::codec::unhex;

    // Written by the Java client (kafka-clients 3.9.2 and 4.4.0 agree) from foo-0, bar-2, foo-7 and user data "hi";
    // it keeps the topics in the order in which they come.
    const JAVA_V3: &str =
        "0003000000020003666f6f00000002000000000000000700036261720000000100000002000000026869";

    fn full() -> Assignment {
        Assignment {
            partitions: BTreeMap::from([("bar".into(), vec![2]), ("foo".into(), vec![0, 7])]),
            user_data: Some(Bytes::from_static(b"hi")),
        }
    }

    #[test]
    fn reads_what_the_java_client_writes_in_every_version() {
        for version in ["0000", "0001", "0002", "0003", "0064"] {
            assert_eq!(Assignment::decode(unhex(&(version.to_owned() + &JAVA_V3[4..]))), Ok(full()));
        }
        assert_eq!(Assignment::decode(unhex(&(JAVA_V3.to_owned() + "0003626172"))), Ok(full()));
    }

    #[test]
    fn writes_version_3() {
        let sorted = "00030000000200036261720000000100000002 0003666f6f000000020000000000000007 000000026869";
        assert_eq!(full().encode(), unhex(&sorted.replace(' ', "")));
        assert_eq!(Assignment::default().encode(), unhex("000300000000ffffffff"), "as the Java client");
    }

    #[test]
    fn no_bytes_mean_no_partitions() {
        assert_eq!(Assignment::decode(Bytes::new()), Ok(Assignment::default()));
    }

    #[test]
    fn refuses_what_no_leader_should_send() {
        let error = |digits: &str| Assignment::decode(unhex(digits)).unwrap_err();
        assert_eq!(error("00"), MetadataError::Truncated("version"));
        assert_eq!(error("800000000000ffffffff"), MetadataError::Version(i16::MIN));
        assert_eq!(error("000340000000"), MetadataError::Truncated("assigned partitions"));
        assert_eq!(error("00030000000100017440000000"), MetadataError::Truncated("assigned partitions"));
        assert_eq!(error("000300000000"), MetadataError::Truncated("user data"));
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_value(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Assignment::decode(bytes.into());
        }

        #[test]
        fn a_cut_is_an_error(cut in 1_usize..41) {
            prop_assert!(Assignment::decode(full().encode().slice(..cut)).is_err());
        }
    }
}
