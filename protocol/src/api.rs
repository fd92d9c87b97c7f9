//! The APIs that keylane speaks: keys, versions, headers, encoding and decoding by the crate kafka-protocol.
//!
//! The version of a request is chosen per connection from what the broker advertised (KIP-35) and the range here.
//! The ranges start where Kafka 2.8 ends and reach as far as keylane's own code reads the answer, so a field of an
//! older layout is never guessed at. `anyhow`, kafka-protocol's error type, ends in this file.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages as m;
use kafka_protocol::messages::{RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, StrBytes};

use crate::bounded::Bounded;
use crate::error::{Error, Fault};

pub use kafka_protocol::messages;

/// A string in kafka-protocol's own type.
pub fn text(value: &str) -> StrBytes {
    StrBytes::from_string(value.to_owned())
}

macro_rules! apis {
    ($($name:ident = $key:literal, $low:literal ..= $high:literal, $request:ident, $response:ident;)*) => {
        /// An API key of the Kafka protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)] // the names are Kafka's own
        pub enum Api { $($name),* }

        impl Api {
            /// All of them.
            pub const ALL: &[Api] = &[$(Api::$name),*];

            /// The key on the wire.
            pub const fn key(self) -> i16 {
                match self { $(Api::$name => $key),* }
            }

            /// The versions that keylane reads and writes.
            pub const fn versions(self) -> (i16, i16) {
                match self { $(Api::$name => ($low, $high)),* }
            }

            /// Kafka's name.
            pub const fn name(self) -> &'static str {
                match self { $(Api::$name => stringify!($name)),* }
            }

            fn request_header_version(self, version: i16) -> i16 {
                match self { $(Api::$name => m::$request::header_version(version)),* }
            }

            fn response_header_version(self, version: i16) -> i16 {
                match self { $(Api::$name => m::$response::header_version(version)),* }
            }

            /// Decodes the body of an answer.
            fn decode_body(self, version: i16, body: &mut Bounded) -> Result<Response, String> {
                match self {
                    $(Api::$name => m::$response::decode(body, version)
                        .map(Response::$name)
                        .map_err(|error| error.to_string())),*
                }
            }
        }

        /// A request of any API.
        #[derive(Clone, Debug)]
        #[allow(missing_docs)]
        pub enum Request { $($name(m::$request)),* }

        /// An answer of any API.
        #[derive(Clone, Debug)]
        #[allow(missing_docs)]
        pub enum Response { $($name(m::$response)),* }

        impl Request {
            /// The API of this request.
            pub const fn api(&self) -> Api {
                match self { $(Request::$name(_) => Api::$name),* }
            }

            fn encode_body(&self, version: i16, out: &mut BytesMut) -> Result<(), String> {
                match self {
                    $(Request::$name(request) => request.encode(out, version).map_err(|error| error.to_string())),*
                }
            }
        }

        $(impl From<m::$request> for Request {
            fn from(request: m::$request) -> Self { Request::$name(request) }
        })*

        impl Response {
            /// The API of this answer.
            pub const fn api(&self) -> Api {
                match self { $(Response::$name(_) => Api::$name),* }
            }
        }
    };
}

apis! {
    Produce = 0, 9..=12, ProduceRequest, ProduceResponse;
    Fetch = 1, 12..=17, FetchRequest, FetchResponse;
    ListOffsets = 2, 6..=8, ListOffsetsRequest, ListOffsetsResponse;
    Metadata = 3, 11..=13, MetadataRequest, MetadataResponse;
    OffsetCommit = 8, 8..=9, OffsetCommitRequest, OffsetCommitResponse;
    OffsetFetch = 9, 7..=9, OffsetFetchRequest, OffsetFetchResponse;
    FindCoordinator = 10, 3..=5, FindCoordinatorRequest, FindCoordinatorResponse;
    JoinGroup = 11, 7..=9, JoinGroupRequest, JoinGroupResponse;
    Heartbeat = 12, 4..=4, HeartbeatRequest, HeartbeatResponse;
    LeaveGroup = 13, 4..=5, LeaveGroupRequest, LeaveGroupResponse;
    SyncGroup = 14, 5..=5, SyncGroupRequest, SyncGroupResponse;
    DescribeGroups = 15, 5..=6, DescribeGroupsRequest, DescribeGroupsResponse;
    ListGroups = 16, 4..=5, ListGroupsRequest, ListGroupsResponse;
    ApiVersions = 18, 0..=3, ApiVersionsRequest, ApiVersionsResponse;
    CreateTopics = 19, 7..=7, CreateTopicsRequest, CreateTopicsResponse;
    DeleteTopics = 20, 6..=6, DeleteTopicsRequest, DeleteTopicsResponse;
    InitProducerId = 22, 4..=5, InitProducerIdRequest, InitProducerIdResponse;
    OffsetForLeaderEpoch = 23, 4..=4, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse;
    DescribeConfigs = 32, 4..=4, DescribeConfigsRequest, DescribeConfigsResponse;
    DeleteGroups = 42, 2..=2, DeleteGroupsRequest, DeleteGroupsResponse;
    ConsumerGroupDescribe = 69, 0..=1, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse;
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The versions of each API that a broker advertised, met with ours.
#[derive(Clone, Debug, Default)]
pub struct Versions {
    /// By place in [`Api::ALL`]: the highest version both sides have.
    common: Vec<Option<i16>>,
    /// What the broker said, for messages.
    advertised: Vec<Option<(i16, i16)>>,
}

impl Versions {
    /// Meets what a broker advertised with what keylane speaks.
    pub fn negotiate(advertised: impl IntoIterator<Item = (i16, i16, i16)>) -> Self {
        let mut versions =
            Versions { common: vec![None; Api::ALL.len()], advertised: vec![None; Api::ALL.len()] };
        for (key, low, high) in advertised {
            for (at, api) in Api::ALL.iter().enumerate() {
                if api.key() == key {
                    let (our_low, our_high) = api.versions();
                    let version = high.min(our_high);
                    versions.common[at] = (version >= low.max(our_low)).then_some(version);
                    versions.advertised[at] = Some((low, high));
                }
            }
        }
        versions
    }

    /// The version to use, or who lacks what.
    pub fn of(&self, api: Api) -> Result<i16, Error> {
        let at = api as usize;
        match self.common.get(at).copied().flatten() {
            Some(version) => Ok(version),
            None => {
                let (low, high) = api.versions();
                let theirs = match self.advertised.get(at).copied().flatten() {
                    Some((low, high)) => format!("the broker has versions {low} to {high}"),
                    None => "the broker does not have it".to_owned(),
                };
                Err(Error::new(Fault::Incompatible(format!(
                    "{api} versions {low} to {high} are needed, {theirs}; keylane works with Kafka 2.8 to 4.4"
                )))
                .at_api(api))
            }
        }
    }
}

/// Fits a request to a version. Requests are built in the newest layout, with all names of a thing (a topic's name
/// and its id) filled in; kafka-protocol refuses to encode a field that the version does not have.
fn fit(request: Request, version: i16) -> Request {
    match request {
        Request::FindCoordinator(mut request) if version < 4 => {
            request.key = request.coordinator_keys.pop().unwrap_or_default();
            Request::FindCoordinator(request)
        }
        Request::OffsetFetch(mut request) if version < 8 => {
            if let Some(group) = request.groups.pop() {
                request.group_id = group.group_id;
                request.topics = group.topics.map(|topics| {
                    topics
                        .into_iter()
                        .map(|topic| {
                            m::offset_fetch_request::OffsetFetchRequestTopic::default()
                                .with_name(topic.name)
                                .with_partition_indexes(topic.partition_indexes)
                        })
                        .collect()
                });
            }
            Request::OffsetFetch(request)
        }
        Request::Fetch(request) => Request::Fetch(fit_fetch(request, version)),
        other => other,
    }
}

/// Topics are named by id from version 13 on (KIP-516), by name before.
fn fit_fetch(mut request: m::FetchRequest, version: i16) -> m::FetchRequest {
    let by_id = version >= 13;
    if !by_id {
        // A topic that was made again is forgotten by its old id only; by name it is the same one to the broker.
        let wanted: Vec<m::TopicName> = request.topics.iter().map(|topic| topic.topic.clone()).collect();
        request
            .forgotten_topics_data
            .retain(|topic| topic.topic_id.is_nil() || !wanted.contains(&topic.topic));
    }
    for topic in &mut request.topics {
        if by_id {
            topic.topic = m::TopicName::default();
        } else {
            topic.topic_id = Default::default();
        }
    }
    for topic in &mut request.forgotten_topics_data {
        if by_id {
            topic.topic = m::TopicName::default();
        } else {
            topic.topic_id = Default::default();
        }
    }
    // The replica id moved into a tagged field with version 15; -1 is the default there.
    if version < 15 {
        request.replica_id = m::BrokerId(-1);
    }
    request
}

/// Appends a whole request frame: length, header, body.
///
/// # Panics
/// Never on what came off a wire: a request that cannot be encoded is our own bug, reported as [`Fault::Misuse`].
pub fn encode_request(
    request: Request,
    version: i16,
    correlation: i32,
    client_id: &StrBytes,
    out: &mut BytesMut,
) -> Result<(), Error> {
    let api = request.api();
    let start = out.len();
    out.put_i32(0);
    let header = RequestHeader::default()
        .with_request_api_key(api.key())
        .with_request_api_version(version)
        .with_correlation_id(correlation)
        .with_client_id(Some(client_id.clone()));
    let bug = |what: String| {
        Error::new(Fault::Misuse(format!("cannot encode version {version}: {what}"))).at_api(api)
    };
    let encoded = header
        .encode(out, api.request_header_version(version))
        .map_err(|error| bug(error.to_string()))
        .and_then(|()| fit(request, version).encode_body(version, out).map_err(bug));
    if let Err(error) = encoded {
        out.truncate(start);
        return Err(error);
    }
    let length = out.len() - start - 4;
    let length = i32::try_from(length).map_err(|_| bug(format!("a request of {length} bytes")))?;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

/// The correlation id of an answer, without consuming it.
pub fn peek_correlation(frame: &Bytes) -> Option<i32> {
    (frame.len() >= 4).then(|| i32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]))
}

/// Decodes an answer: header, then body. Bytes behind the body break the protocol, and so does a count that the bytes
/// cannot fill; it costs no memory.
pub fn decode_response(api: Api, version: i16, frame: Bytes) -> Result<Response, Error> {
    let broken = |what: String| Error::peer(format!("version {version} answer: {what}")).at_api(api);
    if api == Api::ApiVersions && version < API_VERSIONS_FLEXIBLE && !is_count_filled(&frame) {
        return Err(broken("more versions counted than there are bytes".to_owned()));
    }
    let mut frame = Bounded::new(frame);
    ResponseHeader::decode(&mut frame, api.response_header_version(version))
        .map_err(|error| broken(error.to_string()))?;
    let response = api.decode_body(version, &mut frame).map_err(broken)?;
    if frame.has_remaining() {
        return Err(broken(format!("{} bytes too many", frame.remaining())));
    }
    Ok(response)
}

/// The first flexible version of ApiVersions. Of every other API only flexible versions are read.
const API_VERSIONS_FLEXIBLE: i16 = 3;

/// Whether an ApiVersions answer of an older layout can hold what it counts: behind the correlation id and the error
/// stands a count of 32 bits, of key, lowest and highest version.
fn is_count_filled(frame: &[u8]) -> bool {
    const COUNT_START: usize = 4 + 2;
    const RANGE_BYTES: usize = 3 * 2;
    let Some((count, ranges)) = frame.get(COUNT_START..).and_then(<[u8]>::split_first_chunk) else {
        // Too short for a count: the decoder says so.
        return true;
    };
    usize::try_from(i32::from_be_bytes(*count)).is_ok_and(|count| count <= ranges.len() / RANGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_common_version_is_chosen() {
        let versions = Versions::negotiate([(1, 4, 14), (3, 0, 10), (0, 13, 20)]);
        assert_eq!(versions.of(Api::Fetch).ok(), Some(14));
        let error = versions.of(Api::Metadata).expect_err("10 is too old");
        assert!(error.to_string().contains("the broker has versions 0 to 10"), "{error}");
        assert!(versions.of(Api::Produce).is_err(), "nothing in common");
        assert!(versions.of(Api::Heartbeat).is_err(), "not advertised");
    }

    #[test]
    fn our_ranges_are_known_to_the_codec() {
        for api in Api::ALL {
            let key = m::ApiKey::try_from(api.key()).expect("a known key");
            let (low, high) = api.versions();
            let valid = key.valid_versions();
            assert!(valid.min <= low && high <= valid.max, "{api}: {low}..={high} in {valid}");
        }
    }

    #[test]
    fn only_flexible_versions_are_read() {
        for api in Api::ALL.iter().filter(|api| **api != Api::ApiVersions) {
            // A flexible answer has tags in its header, but for ApiVersions.
            assert_eq!(api.response_header_version(api.versions().0), 1, "{api}");
        }
    }

    #[test]
    fn a_count_that_the_bytes_cannot_fill_costs_nothing() {
        // Metadata 12: throttle time, then 4,294,967,294 brokers.
        let body = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f];
        assert!(decode_response(Api::Metadata, 12, Bytes::copy_from_slice(&body)).is_err());
        // ApiVersions 0: no error, then 2,147,483,647 ranges.
        let body = [0, 0, 0, 1, 0, 0, 0x7f, 0xff, 0xff, 0xff];
        assert!(decode_response(Api::ApiVersions, 0, Bytes::copy_from_slice(&body)).is_err());
        let body = [0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 3, 0, 0, 0, 12];
        assert!(decode_response(Api::ApiVersions, 0, Bytes::copy_from_slice(&body)).is_ok());
    }

    #[test]
    fn a_frame_carries_its_length_and_correlation() {
        let request: Request = m::HeartbeatRequest::default().into();
        let mut out = BytesMut::new();
        encode_request(request, 4, 77, &text("keylane"), &mut out).expect("encodes");
        assert_eq!(out.len(), 4 + i32::from_be_bytes([out[0], out[1], out[2], out[3]]) as usize);
        assert_eq!(&out[8..12], &77i32.to_be_bytes());
    }

    #[test]
    fn requests_fit_every_version_of_ours() {
        use m::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
        use m::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
        let id = uuid::Uuid::from_u128(7);
        let name = || m::TopicName(text("t"));
        let fetch = m::FetchRequest::default()
            .with_topics(vec![
                FetchTopic::default()
                    .with_topic(name())
                    .with_topic_id(id)
                    .with_partitions(vec![FetchPartition::default()]),
            ])
            .with_forgotten_topics_data(vec![
                ForgottenTopic::default().with_topic(name()).with_topic_id(id).with_partitions(vec![1]),
            ]);
        let topic = OffsetFetchRequestTopics::default().with_name(name()).with_partition_indexes(vec![0]);
        let group = OffsetFetchRequestGroup::default()
            .with_group_id(m::GroupId(text("g")))
            .with_topics(Some(vec![topic]));
        let requests: [Request; 3] = [
            fetch.into(),
            m::OffsetFetchRequest::default().with_require_stable(true).with_groups(vec![group]).into(),
            m::FindCoordinatorRequest::default().with_coordinator_keys(vec![text("g")]).into(),
        ];
        for request in requests {
            let (low, high) = request.api().versions();
            for version in low..=high {
                let mut out = BytesMut::new();
                let encoded = encode_request(request.clone(), version, 1, &text("c"), &mut out);
                assert_eq!(encoded, Ok(()), "{} version {version}", request.api());
                assert!(out.windows(1).any(|byte| byte == b"t" || byte == b"g") || version >= 13);
            }
        }
    }
}
