//! The brokers' side of the wire: decodes requests and encodes answers with kafka-protocol.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion};

use crate::api::{Api, Request, Response, messages as m};

/// Where an answer belongs.
#[derive(Clone, Debug)]
pub(super) struct Ticket {
    /// The connection.
    pub(super) conn: u64,
    /// Whose it is.
    pub(super) client: usize,
    /// The broker that was asked.
    pub(super) node: i32,
    correlation: i32,
    version: i16,
}

impl Ticket {
    /// Of a member that is not there to hear the answer.
    pub(super) fn nobody() -> Self {
        Ticket { conn: 0, client: 0, node: 0, correlation: 0, version: 0 }
    }
}

macro_rules! served {
    ($($name:ident, $request:ident, $response:ident;)*) => {
        fn decode_body(api: Api, header: &mut Bytes, version: i16) -> Request {
            match api {
                $(Api::$name => {
                    let kind = m::$request::header_version(version);
                    RequestHeader::decode(header, kind).expect("a request header");
                    Request::$name(m::$request::decode(header, version).expect("a request body"))
                })*
                other => panic!("{other} is not served here"),
            }
        }

        fn encode_body(response: &Response, correlation: i32, version: i16, out: &mut BytesMut) {
            let header = ResponseHeader::default().with_correlation_id(correlation);
            match response {
                $(Response::$name(body) => {
                    header.encode(out, m::$response::header_version(version)).expect("encodes");
                    body.encode(out, version).expect("encodes");
                })*
                other => panic!("{} is not served here", other.api()),
            }
        }
    };
}

served! {
    ApiVersions, ApiVersionsRequest, ApiVersionsResponse;
    Metadata, MetadataRequest, MetadataResponse;
    FindCoordinator, FindCoordinatorRequest, FindCoordinatorResponse;
    JoinGroup, JoinGroupRequest, JoinGroupResponse;
    SyncGroup, SyncGroupRequest, SyncGroupResponse;
    Heartbeat, HeartbeatRequest, HeartbeatResponse;
    LeaveGroup, LeaveGroupRequest, LeaveGroupResponse;
    OffsetCommit, OffsetCommitRequest, OffsetCommitResponse;
    OffsetFetch, OffsetFetchRequest, OffsetFetchResponse;
    ListOffsets, ListOffsetsRequest, ListOffsetsResponse;
    OffsetForLeaderEpoch, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse;
    Fetch, FetchRequest, FetchResponse;
}

/// Takes the whole frames off the front, without their lengths.
pub(super) fn take_frames(bytes: &mut BytesMut) -> Vec<Bytes> {
    let mut frames = Vec::new();
    while let Some(head) = bytes.first_chunk::<4>() {
        let whole = 4 + u32::from_be_bytes(*head) as usize;
        if bytes.len() < whole {
            break;
        }
        frames.push(bytes.split_to(whole).freeze().slice(4..));
    }
    frames
}

/// The API of a request frame.
pub(super) fn api_of(frame: &Bytes) -> Api {
    let key = i16::from_be_bytes([frame[0], frame[1]]);
    Api::ALL.iter().copied().find(|api| api.key() == key).expect("a known API")
}

/// Decodes a request frame.
pub(super) fn decode(frame: &Bytes, conn: u64, client: usize, node: i32) -> (Request, Ticket) {
    let version = i16::from_be_bytes([frame[2], frame[3]]);
    let correlation = i32::from_be_bytes([frame[4], frame[5], frame[6], frame[7]]);
    let request = decode_body(api_of(frame), &mut frame.clone(), version);
    (request, Ticket { conn, client, node, correlation, version })
}

/// The answer as it goes over the wire.
pub(super) fn encode(response: &Response, ticket: &Ticket) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u32(0);
    encode_body(response, ticket.correlation, ticket.version, &mut out);
    let length = (out.len() - 4) as u32;
    out[..4].copy_from_slice(&length.to_be_bytes());
    out.freeze()
}
