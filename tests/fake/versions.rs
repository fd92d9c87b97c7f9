//! Which versions of which APIs a Kafka release offers, and which of them kafka-protocol speaks.

use kafka_protocol::messages::{ApiKey, InitProducerIdRequest, OffsetCommitRequest, OffsetFetchRequest};
use kafka_protocol::protocol::Message;

/// The lowest and the highest version, both included.
pub type Range = (i16, i16);

/// The releases whose version ranges the fake can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kafka {
    V2_8,
    V3_9,
    V4_3,
}

/// (API, 2.8, 3.9, 4.3); an empty range means not there. Taken from the message definitions of each release.
const TABLE: &[(ApiKey, Range, Range, Range)] = &[
    (ApiKey::Produce, (0, 9), (0, 11), (0, 13)),
    (ApiKey::Fetch, (0, 12), (0, 17), (4, 18)),
    (ApiKey::ListOffsets, (0, 6), (0, 9), (1, 11)),
    (ApiKey::Metadata, (0, 11), (0, 12), (0, 13)),
    (ApiKey::OffsetCommit, (0, 8), (0, 9), (2, 10)),
    (ApiKey::OffsetFetch, (0, 7), (0, 9), (1, 10)),
    (ApiKey::FindCoordinator, (0, 3), (0, 6), (0, 6)),
    (ApiKey::JoinGroup, (0, 7), (0, 9), (2, 9)),
    (ApiKey::Heartbeat, (0, 4), (0, 4), (0, 4)),
    (ApiKey::LeaveGroup, (0, 4), (0, 5), (0, 5)),
    (ApiKey::SyncGroup, (0, 5), (0, 5), (0, 5)),
    (ApiKey::DescribeGroups, (0, 5), (0, 5), (0, 6)),
    (ApiKey::ListGroups, (0, 4), (0, 5), (0, 5)),
    (ApiKey::ApiVersions, (0, 3), (0, 4), (0, 4)),
    (ApiKey::CreateTopics, (0, 7), (0, 7), (2, 7)),
    (ApiKey::DeleteTopics, (0, 6), (0, 6), (1, 6)),
    (ApiKey::InitProducerId, (0, 4), (0, 5), (0, 6)),
    (ApiKey::OffsetForLeaderEpoch, (0, 4), (0, 4), (2, 4)),
    (ApiKey::DescribeConfigs, (0, 4), (0, 4), (1, 4)),
    (ApiKey::DeleteGroups, (0, 2), (0, 2), (0, 2)),
    (ApiKey::ConsumerGroupDescribe, (0, -1), (0, 0), (0, 1)),
];

impl Kafka {
    pub fn range(self, api: ApiKey) -> Option<Range> {
        let row = TABLE.iter().find(|row| row.0 == api)?;
        let range = match self {
            Kafka::V2_8 => row.1,
            Kafka::V3_9 => row.2,
            Kafka::V4_3 => row.3,
        };
        (range.0 <= range.1).then_some(range)
    }

    pub fn apis() -> impl Iterator<Item = ApiKey> {
        TABLE.iter().map(|row| row.0)
    }
}

/// The versions that can be decoded: `ApiKey::valid_versions` claims one too many where Kafka's newest is a draft.
pub fn spoken(api: ApiKey) -> Range {
    let range = match api {
        ApiKey::OffsetCommit => OffsetCommitRequest::VERSIONS,
        ApiKey::OffsetFetch => OffsetFetchRequest::VERSIONS,
        ApiKey::InitProducerId => InitProducerIdRequest::VERSIONS,
        _ => api.valid_versions(),
    };
    (range.min, range.max)
}
