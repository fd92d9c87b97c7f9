//! Inputs that once failed, each with its bytes or values.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::{JoinGroupResponse, SyncGroupResponse};
use keylane_protocol::api::{Api, decode_response, text};
use keylane_protocol::group::membership::Joined;
use keylane_protocol::group::{Assignor, GroupConfig, Membership, Owned};
use keylane_protocol::lag::PartitionLag;
use keylane_protocol::metadata::TopicPartition;

use crate::alloc;

/// Found by reading kafka-protocol's decoders: the arrays of these nine to fourteen bytes asked for 412 GB or 378 GB,
/// and the process was ended.
#[test]
fn a_count_does_not_allocate() {
    // Behind the correlation id: empty tags of the header, throttle time, a count of 2^32 - 2.
    let metadata = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f];
    // An unknown tag of the header that promises 2^28 bytes, then one with 2^35 tags.
    let tag = [0, 0, 0, 1, 1, 9, 0x80, 0x80, 0x80, 0x80, 0x01];
    let tags = [0, 0, 0, 1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01];
    // A truth value of 128 looks like the first byte of the count behind it (CreateTopics, TopicMetadata).
    let truth = [0, 0, 0, 1, 0, 0x80, 0xff, 0xff, 0xff, 0xff, 0x0f];
    // The old layout of ApiVersions: no error, then 2^31 - 1 ranges.
    let ranges = [0, 0, 0, 1, 0, 0, 0x7f, 0xff, 0xff, 0xff];
    let cases: [(Api, i16, &[u8]); 6] = [
        (Api::Metadata, 12, &metadata),
        (Api::Fetch, 13, &tag),
        (Api::Fetch, 13, &tags),
        (Api::CreateTopics, 7, &truth),
        (Api::ApiVersions, 0, &ranges),
        (Api::ApiVersions, 2, &ranges),
    ];
    for (api, version, frame) in cases {
        let frame = Bytes::copy_from_slice(frame);
        let (answer, seen) = alloc::measured(|| decode_response(api, version, frame));
        assert!(answer.is_err(), "{api}");
        assert!(seen.peak_bytes < 64 << 10, "{api} version {version}: {seen:?}");
    }
}

/// Campaign consumers, seed 1, input 987: the member was in generation 2^31 - 1, and its successor was computed.
#[test]
fn the_last_generation_has_no_successor() {
    let mut membership = Membership::new(
        GroupConfig {
            group: "g".to_owned(),
            instance_id: None,
            session_timeout: Duration::from_secs(6),
            rebalance_timeout: Duration::from_secs(10),
            heartbeat_interval: Duration::from_secs(1),
            assignors: vec![Assignor::Range],
            topics: vec!["t".to_owned()],
            rack: None,
        },
        1,
    );
    let answer = |generation: i32| {
        Ok(JoinGroupResponse::default()
            .with_generation_id(generation)
            .with_protocol_name(Some(text("range")))
            .with_member_id(text("me"))
            .with_leader(text("other")))
    };
    membership.join(&Owned::new());
    let joined = membership.on_join(answer(i32::MAX), Duration::ZERO);
    assert_eq!(joined, Ok(Joined::Follower { missed: false }));
    membership.sync(&Default::default(), Duration::ZERO);
    membership.on_sync(Ok(SyncGroupResponse::default()), Duration::ZERO).expect("an empty assignment");
    membership.join(&Owned::new());
    let joined = membership.on_join(answer(i32::MIN), Duration::ZERO);
    assert_eq!(joined, Ok(Joined::Follower { missed: true }));
}

/// The same kind, found by looking for it: a lag is a difference of two numbers of the peer.
#[test]
fn a_lag_between_the_ends_of_the_numbers() {
    let lag = PartitionLag {
        at: TopicPartition::new("t", 0),
        committed: Ok(Some(i64::MIN)),
        start: Ok(i64::MAX),
        end: Ok(i64::MAX),
    };
    assert_eq!((lag.lag(), lag.below_start(), lag.beyond_end()), (Some(i64::MAX), Some(i64::MAX), None));
    let beyond = PartitionLag { committed: Ok(Some(i64::MAX)), end: Ok(i64::MIN), ..lag };
    assert_eq!((beyond.lag(), beyond.beyond_end()), (Some(0), Some(i64::MAX)));
}
