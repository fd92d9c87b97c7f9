//! Answers of a hostile broker, whole frames of every API and version that keylane reads, through a connection.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages as m;
use kafka_protocol::messages::ApiVersionsResponse;
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::protocol::{Encodable, HeaderVersion};
use keylane_protocol::api::{Api, Request};
use keylane_protocol::connection::{Answer, Connection};
use keylane_protocol::frame::BufferPool;

use crate::alloc;
use crate::campaign;
use crate::generate::{self, Sample};
use crate::mutate::{mutate, varint};
use crate::rng::Rng;

/// Bytes of memory for each byte of an answer. The largest element of an array (see `the_largest_elements`) can be
/// claimed for each byte that is left, at two levels at once before the bytes run out.
const MEMORY_PER_BYTE_MAX: usize = 800;
/// The frame reader's scratch, a connection's own, and what the counts may pass the bytes by.
const MEMORY_BASE: usize = 320 << 10;

/// An API and version, with answers to it.
pub(crate) struct Kind {
    pub(crate) api: Api,
    pub(crate) version: i16,
    header_version: i16,
    pub(crate) samples: Vec<Sample>,
    request: Request,
    /// A broker that knows nothing else.
    handshake: Bytes,
}

fn kinds(rng: &mut Rng, samples: usize) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for api in Api::ALL {
        let (low, high) = api.versions();
        for version in low..=high {
            kinds.push(kind(rng, *api, version, samples));
        }
    }
    kinds
}

macro_rules! kinds {
    ($($api:ident $request:ident $response:ident;)*) => {
        fn kind(rng: &mut Rng, api: Api, version: i16, samples: usize) -> Kind {
            let wide = api == Api::ApiVersions && version < 3;
            match api {
                $(Api::$api => Kind {
                    api,
                    version,
                    header_version: m::$response::header_version(version),
                    samples: (0..samples)
                        .map(|_| generate::message::<m::$response>(rng, version, wide).expect("a message"))
                        .collect(),
                    request: m::$request::default().into(),
                    handshake: handshake(api, version),
                },)*
            }
        }

        /// Reads a body as kafka-protocol does by itself.
        fn decoded(api: Api, version: i16, body: Bytes) -> bool {
            use kafka_protocol::protocol::Decodable;
            let mut body = body;
            match api {
                $(Api::$api => m::$response::decode(&mut body, version).is_ok(),)*
            }
        }
    };
}

kinds! {
    Produce ProduceRequest ProduceResponse;
    Fetch FetchRequest FetchResponse;
    ListOffsets ListOffsetsRequest ListOffsetsResponse;
    Metadata MetadataRequest MetadataResponse;
    OffsetCommit OffsetCommitRequest OffsetCommitResponse;
    OffsetFetch OffsetFetchRequest OffsetFetchResponse;
    FindCoordinator FindCoordinatorRequest FindCoordinatorResponse;
    JoinGroup JoinGroupRequest JoinGroupResponse;
    Heartbeat HeartbeatRequest HeartbeatResponse;
    LeaveGroup LeaveGroupRequest LeaveGroupResponse;
    SyncGroup SyncGroupRequest SyncGroupResponse;
    DescribeGroups DescribeGroupsRequest DescribeGroupsResponse;
    ListGroups ListGroupsRequest ListGroupsResponse;
    ApiVersions ApiVersionsRequest ApiVersionsResponse;
    CreateTopics CreateTopicsRequest CreateTopicsResponse;
    DeleteTopics DeleteTopicsRequest DeleteTopicsResponse;
    InitProducerId InitProducerIdRequest InitProducerIdResponse;
    OffsetForLeaderEpoch OffsetForLeaderEpochRequest OffsetForLeaderEpochResponse;
    DescribeConfigs DescribeConfigsRequest DescribeConfigsResponse;
    DeleteGroups DeleteGroupsRequest DeleteGroupsResponse;
    ConsumerGroupDescribe ConsumerGroupDescribeRequest ConsumerGroupDescribeResponse;
}

/// The frame by which a broker says that it has one version of one API.
fn handshake(api: Api, version: i16) -> Bytes {
    let range =
        ApiVersion::default().with_api_key(api.key()).with_min_version(version).with_max_version(version);
    let mut body = BytesMut::new();
    let response = ApiVersionsResponse::default().with_api_keys(vec![range]);
    response.encode(&mut body, 3).expect("an answer to ApiVersions");
    frame(1, 0, &body).into()
}

/// A whole frame: length, correlation id, the header's empty tags where it has any, body.
fn frame(correlation: i32, header_version: i16, body: &[u8]) -> Vec<u8> {
    let tags = usize::from(header_version >= 1);
    let mut frame = ((4 + tags + body.len()) as i32).to_be_bytes().to_vec();
    frame.extend(correlation.to_be_bytes());
    frame.resize(8 + tags, 0);
    frame.extend_from_slice(body);
    frame
}

/// Feeds bytes as a socket would, in pieces; false when the connection is to be closed.
fn feed(
    connection: &mut Connection<u32>,
    mut bytes: &[u8],
    piece: usize,
    answers: &mut Vec<Answer<u32>>,
) -> bool {
    while !bytes.is_empty() {
        let space = connection.space();
        let count = piece.max(1).min(space.len()).min(bytes.len());
        space[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        if connection.received(count, Duration::ZERO, answers).is_err() {
            return false;
        }
    }
    true
}

/// A connection that has agreed on the kind's version and owes it an answer.
fn connect(kind: &Kind) -> Connection<u32> {
    let mut connection =
        Connection::new("hostile", Duration::from_secs(1), BufferPool::default(), Duration::ZERO);
    if kind.api != Api::ApiVersions {
        let mut answers = Vec::new();
        assert!(feed(&mut connection, &kind.handshake, usize::MAX, &mut answers), "a sound handshake");
        connection
            .send(kind.request.clone(), 7, Duration::ZERO, Duration::ZERO)
            .expect("a version in common and a request that can be encoded");
    }
    connection
}

fn change(rng: &mut Rng, sample: &Sample, other: &Sample) -> Vec<u8> {
    let mut body = sample.body.clone();
    match rng.below(4) {
        0 => {
            let at = *rng.pick(&sample.marks);
            let claim = match rng.below(4) {
                0 => (body.len() - at + rng.below(80)) as u64,
                1 => u64::from(u32::MAX) - rng.below(3) as u64,
                _ => 1 << rng.below(34),
            };
            body.splice(at..at + 1, varint(claim));
            if rng.one_in(3) {
                body.truncate(at + 1 + rng.below(body.len() - at));
            }
        }
        1 => {
            for _ in 0..1 + rng.below(3) {
                let at = *rng.pick(&sample.marks);
                body[at] = *rng.pick(&[0, 1, 2, 3, 9, 0x7f, 0x80, 0xff]);
            }
        }
        _ => mutate(rng, &mut body, &other.body),
    }
    body
}

#[test]
fn answers() {
    let kinds = kinds(&mut Rng::of(1, "answers", u64::MAX), 8);
    let stages = [("answered", 80), ("refused", 300), ("unsound frame", 3)];
    campaign::run("answers", 20, &stages, |rng, case| {
        let kind = rng.pick(&kinds);
        let body = match rng.below(20) {
            0 => {
                let count = rng.below(200);
                rng.bytes(count)
            }
            1 => rng.pick(&kind.samples).body.clone(),
            _ => {
                let (sample, other) = (rng.below(kind.samples.len()), rng.below(kind.samples.len()));
                change(rng, &kind.samples[sample], &kind.samples[other])
            }
        };
        let correlation = if kind.api == Api::ApiVersions { 1 } else { 2 };
        let mut wire = frame(correlation, kind.header_version, &body);
        // Two answers where one is due, or frames that are none.
        let is_framed = !rng.one_in(20);
        let copy = wire.clone();
        if !is_framed {
            mutate(rng, &mut wire, &copy);
        } else if rng.one_in(20) {
            wire.extend_from_slice(&copy);
        }
        let piece = if rng.one_in(2) { usize::MAX } else { 1 + rng.below(wire.len()) };
        // A frame's length is believed up to 16 MiB, which is asked for in one piece and not touched.
        let believed = if is_framed { 0 } else { 17 << 20 };
        let limit = MEMORY_BASE + believed + MEMORY_PER_BYTE_MAX * wire.len();
        case.work(wire.len(), limit, |case| {
            let mut connection = connect(kind);
            let mut answers = Vec::new();
            let sound = feed(&mut connection, &wire, piece, &mut answers);
            let outcomes = answers.iter().filter(|answer| matches!(answer, Answer::Outcome(..))).count();
            assert!(outcomes <= 1, "one request, one outcome");
            match answers.last() {
                Some(Answer::Outcome(_, Ok(_)) | Answer::Ready) => case.reached("answered"),
                Some(Answer::Outcome(_, Err(_))) => case.reached("refused"),
                None if sound => case.reached("waits for more"),
                None if kind.api == Api::ApiVersions => case.reached("handshake refused"),
                None => case.reached("unsound frame"),
            }
        });
    });
}

/// What the generated decoders would ask for where they read the bytes themselves: per API the largest element.
#[test]
fn the_largest_elements() {
    const CLAIM: u64 = 1 << 16;
    let mut largest = 0;
    for kind in kinds(&mut Rng::of(1, "elements", 0), 12) {
        let mut of_kind = 0;
        for sample in &kind.samples {
            for at in &sample.marks {
                // Cut off behind the claim: all that follows would be read as something else.
                let mut body = sample.body[..*at].to_vec();
                body.extend(varint(CLAIM));
                let body = Bytes::from(body);
                let ((), seen) = alloc::measured(|| {
                    decoded(kind.api, kind.version, body);
                });
                if seen.largest_bytes >= CLAIM as usize / 2 {
                    of_kind = of_kind.max(seen.largest_bytes / (CLAIM as usize - 1));
                }
            }
        }
        println!("{of_kind:>5} bytes an element: {} version {}", kind.api, kind.version);
        largest = largest.max(of_kind);
    }
    assert!(2 * largest <= MEMORY_PER_BYTE_MAX, "an element has {largest} bytes");
}
