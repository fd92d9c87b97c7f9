//! Requests of a hostile client to the in-memory broker: every API and version that it says it serves, sound ones in a
//! row on one cluster, changed ones, and batches that no producer would send.

use std::sync::OnceLock;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut, TryGetError};
use kafka_protocol::messages as m;
use kafka_protocol::messages::{ApiKey, ApiVersionsResponse, RequestHeader, TopicName};
use kafka_protocol::protocol::buf::ByteBuf;
use kafka_protocol::protocol::{Decodable, Encodable};
use keylane::broker::cluster::{Cluster, ClusterConfig, ConnId};
use keylane_protocol::api::text;
use keylane_protocol::bounded::Bounded;

use crate::batches;
use crate::campaign::{self, Case};
use crate::generate::{self, Sample};
use crate::mutate::{mutate, varint};
use crate::rng::Rng;

/// Bytes of memory for each byte of a request: what is decoded of it, what is kept, and the answer.
const MEMORY_PER_BYTE_MAX: usize = 1000;
/// The cluster with its topics, and what its answers say of itself.
const MEMORY_BASE: usize = 1 << 20;
const CLIENT_ID: &str = "hostile";

/// An API and version that is served, with requests.
struct Kind {
    key: ApiKey,
    version: i16,
    samples: Vec<Sample>,
}

macro_rules! requests {
    ($($key:ident $request:ident;)*) => {
        fn sample(rng: &mut Rng, key: ApiKey, version: i16) -> Option<Sample> {
            match key {
                $(ApiKey::$key => generate::message::<m::$request>(rng, version, is_wide(key, version)),)*
                _ => None,
            }
        }

        /// Whether the decoder can be let loose on a body: it makes no claim that the bytes cannot fill.
        fn is_harmless(key: ApiKey, version: i16, body: &[u8]) -> bool {
            let bytes = Bounded::new(Bytes::copy_from_slice(body));
            let mut body = Cautious { bytes, is_wide: is_wide(key, version), claimed: false };
            let is_read = match key {
                $(ApiKey::$key => m::$request::decode(&mut body, version).is_ok(),)*
                _ => false,
            };
            is_read || !body.claimed
        }
    };
}

requests! {
    Produce ProduceRequest;
    Fetch FetchRequest;
    ListOffsets ListOffsetsRequest;
    Metadata MetadataRequest;
    OffsetCommit OffsetCommitRequest;
    OffsetFetch OffsetFetchRequest;
    FindCoordinator FindCoordinatorRequest;
    JoinGroup JoinGroupRequest;
    Heartbeat HeartbeatRequest;
    LeaveGroup LeaveGroupRequest;
    SyncGroup SyncGroupRequest;
    DescribeGroups DescribeGroupsRequest;
    ListGroups ListGroupsRequest;
    ApiVersions ApiVersionsRequest;
    CreateTopics CreateTopicsRequest;
    DeleteTopics DeleteTopicsRequest;
    DeleteRecords DeleteRecordsRequest;
    InitProducerId InitProducerIdRequest;
    OffsetForLeaderEpoch OffsetForLeaderEpochRequest;
    AddPartitionsToTxn AddPartitionsToTxnRequest;
    AddOffsetsToTxn AddOffsetsToTxnRequest;
    EndTxn EndTxnRequest;
    TxnOffsetCommit TxnOffsetCommitRequest;
    DescribeConfigs DescribeConfigsRequest;
    CreatePartitions CreatePartitionsRequest;
    DeleteGroups DeleteGroupsRequest;
    OffsetDelete OffsetDeleteRequest;
    DescribeCluster DescribeClusterRequest;
    ConsumerGroupDescribe ConsumerGroupDescribeRequest;
}

fn is_wide(key: ApiKey, version: i16) -> bool {
    key.request_header_version(version) < 2
}

/// Watches for a claim that the bytes cannot fill. In the older layouts, which count with 32 bits, no number of that
/// width may pass what is left: that takes long timeouts for bad counts, which does for choosing inputs.
struct Cautious {
    bytes: Bounded,
    is_wide: bool,
    claimed: bool,
}

impl Buf for Cautious {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }

    fn try_get_u8(&mut self) -> Result<u8, TryGetError> {
        let is_there = self.bytes.has_remaining();
        let value = self.bytes.try_get_u8();
        self.claimed |= is_there && value.is_err();
        value
    }

    fn try_get_i32(&mut self) -> Result<i32, TryGetError> {
        let value = self.bytes.try_get_i32()?;
        let available = self.bytes.remaining();
        match usize::try_from(value) {
            Ok(requested) if self.is_wide && requested > available => {
                self.claimed = true;
                Err(TryGetError { requested, available })
            }
            _ => Ok(value),
        }
    }
}

impl ByteBuf for Cautious {
    fn peek_bytes(&mut self, range: std::ops::Range<usize>) -> Bytes {
        self.bytes.peek_bytes(range)
    }

    fn get_bytes(&mut self, size: usize) -> Bytes {
        self.bytes.get_bytes(size)
    }
}

fn cluster(seed: u64) -> Cluster {
    Cluster::new(ClusterConfig {
        nodes: vec![("one".to_owned(), 9092), ("two".to_owned(), 9093)],
        // The generator's strings are of these letters.
        topics: ["a", "b"].map(|name| (name.to_owned(), 3)).to_vec(),
        auto_create_partitions: (seed.is_multiple_of(2)).then_some(2),
        retain_bytes: 1 << 20,
        seed,
        ..ClusterConfig::default()
    })
}

/// A whole frame with the header of the version.
fn frame(key: ApiKey, version: i16, correlation: i32, body: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::zeroed(4);
    RequestHeader::default()
        .with_request_api_key(key as i16)
        .with_request_api_version(version)
        .with_correlation_id(correlation)
        .with_client_id(Some(text(CLIENT_ID)))
        .encode(&mut out, key.request_header_version(version))
        .expect("a request header");
    out.extend_from_slice(body);
    let length = (out.len() - 4) as i32;
    out[..4].copy_from_slice(&length.to_be_bytes());
    out.to_vec()
}

/// Takes all that is to be written to a connection.
fn drain(cluster: &mut Cluster, conn: ConnId) -> Vec<u8> {
    let mut all = Vec::new();
    while !cluster.outgoing(conn).is_empty() {
        let count = cluster.outgoing(conn).len();
        all.extend_from_slice(cluster.outgoing(conn));
        cluster.written(conn, count);
    }
    all
}

/// What the broker says that it serves, with samples.
fn kinds() -> &'static [Kind] {
    static KINDS: OnceLock<Vec<Kind>> = OnceLock::new();
    KINDS.get_or_init(|| {
        let mut cluster = cluster(1);
        let conn = cluster.connect(1, "here", Duration::ZERO).expect("a node that is up");
        cluster.receive(conn, &frame(ApiKey::ApiVersions, 0, 1, &[]), Duration::ZERO);
        let answer = drain(&mut cluster, conn);
        let mut body = Bytes::from(answer).slice(8..);
        let served = ApiVersionsResponse::decode(&mut body, 0).expect("what is served");
        let mut rng = Rng::of(1, "requests", 0);
        let mut kinds = Vec::new();
        for range in served.api_keys {
            let key = ApiKey::try_from(range.api_key).expect("a known API");
            for version in range.min_version..=range.max_version {
                let samples = (0..6).filter_map(|_| sample(&mut rng, key, version)).collect();
                kinds.push(Kind { key, version, samples });
            }
        }
        kinds
    })
}

/// A Produce request that carries batches.
fn produce(rng: &mut Rng, version: i16) -> Vec<u8> {
    use m::produce_request::{PartitionProduceData, TopicProduceData};
    let mut records = Vec::new();
    for _ in 0..1 + rng.below(2) {
        let hostile = rng.one_in(2);
        records.extend(batches::batch(rng, hostile));
    }
    let partition = PartitionProduceData::default()
        .with_index(rng.below(3) as i32)
        .with_records((!rng.one_in(20)).then(|| records.into()));
    let topic = TopicProduceData::default().with_partition_data(vec![partition]);
    let topic = if version >= 13 { topic } else { topic.with_name(TopicName(text("a"))) };
    let request = m::ProduceRequest::default()
        .with_acks(*rng.pick(&[-1, 1, -1, 0, 7]))
        .with_timeout_ms(1000)
        .with_topic_data(vec![topic]);
    let mut out = BytesMut::new();
    request.encode(&mut out, version).expect("fields that the version has");
    out.to_vec()
}

/// A Fetch request that looks for them.
fn fetch(rng: &mut Rng, version: i16) -> Vec<u8> {
    use m::fetch_request::{FetchPartition, FetchTopic};
    let offset = if rng.one_in(4) { rng.odd_i64() } else { rng.below(30) as i64 };
    let partition = FetchPartition::default()
        .with_partition(rng.below(3) as i32)
        .with_fetch_offset(offset)
        .with_partition_max_bytes(1 << rng.below(31));
    let topic = FetchTopic::default().with_partitions(vec![partition]);
    let topic = if version >= 13 { topic } else { topic.with_topic(TopicName(text("a"))) };
    let mut request = m::FetchRequest::default()
        .with_max_bytes(1 << rng.below(31))
        .with_isolation_level(rng.below(2) as i8)
        .with_topics(vec![topic]);
    if version < 15 {
        request.replica_id = m::BrokerId(-1);
    }
    let mut out = BytesMut::new();
    request.encode(&mut out, version).expect("fields that the version has");
    out.to_vec()
}

fn body(rng: &mut Rng, kind: &Kind) -> Vec<u8> {
    match kind.key {
        ApiKey::Produce if !rng.one_in(4) => return produce(rng, kind.version),
        ApiKey::Fetch if !rng.one_in(4) => return fetch(rng, kind.version),
        _ if kind.samples.is_empty() => return Vec::new(),
        _ => {}
    }
    let sample = rng.pick(&kind.samples);
    let mut body = sample.body.clone();
    match rng.below(4) {
        0 if !sample.marks.is_empty() => {
            let at = *rng.pick(&sample.marks);
            body.splice(at..at + 1, varint(1 << rng.below(34)));
        }
        1 => mutate(rng, &mut body, &rng.clone().pick(&kind.samples).body),
        _ => {}
    }
    body
}

fn run(case: &mut Case, seed: u64, frames: &[(usize, Vec<u8>)], piece: usize) {
    let mut cluster = cluster(seed);
    let mut now = Duration::ZERO;
    let conns: Vec<ConnId> = (1..=2).filter_map(|node| cluster.connect(node, "here", now)).collect();
    for (from, wire) in frames {
        let conn = conns[*from];
        for piece in wire.chunks(piece) {
            cluster.receive(conn, piece, now);
        }
        if !drain(&mut cluster, conn).is_empty() {
            case.reached("answered");
        }
        now += Duration::from_millis(200);
        cluster.poll(now);
        if cluster.next_close().is_some() {
            case.reached("closed");
        }
        while cluster.next_notice().is_some() {}
    }
    // What is held back is answered, or its time is over.
    for _ in 0..4 {
        now += Duration::from_secs(60);
        cluster.poll(now);
        for conn in &conns {
            if !drain(&mut cluster, *conn).is_empty() {
                case.reached("answered later");
            }
        }
    }
    for conn in conns {
        cluster.disconnect(conn, now);
    }
}

#[test]
fn requests() {
    let kinds = kinds();
    let stages = [("answered", 400), ("closed", 20)];
    campaign::run("requests", 5, &stages, |rng, case| {
        let mut frames = Vec::new();
        let mut is_over = [false; 2];
        for _ in 0..1 + rng.below(8) {
            let from = rng.below(2);
            if is_over[from] {
                continue;
            }
            let kind = rng.pick(kinds);
            let body = body(rng, kind);
            let mut wire = frame(kind.key, kind.version, rng.below(9) as i32, &body);
            let fits = !is_wide(kind.key, kind.version) || is_harmless(kind.key, kind.version, &body);
            if !fits {
                // In the older layouts the broker's decoders believe counts.
                case.reached("left out");
                continue;
            }
            if rng.one_in(20) {
                // The length and the header, but no count of a body.
                let header = wire.len() - body.len();
                let at = rng.below(header);
                wire[at] = rng.next() as u8;
                // Nor where the header's own lengths shift a body that was found harmless.
                let shifts = is_wide(kind.key, kind.version);
                if shifts || kind.version != i16::from_be_bytes([wire[6], wire[7]]) || (4..6).contains(&at) {
                    wire.truncate(header);
                    // A shorter client id would leave its end for the body.
                    wire[12..14].copy_from_slice(&(CLIENT_ID.len() as i16).to_be_bytes());
                    // Or the frames behind it would be its body.
                    wire[..4].copy_from_slice(&(header as i32 - 4).to_be_bytes());
                } else if at < 4 {
                    // What a shorter length cuts off, or a longer one leaves of the frame behind it, would be read as a
                    // frame that nobody looked at.
                    let claimed = u32::from_be_bytes([wire[0], wire[1], wire[2], wire[3]]) as usize;
                    wire.truncate(claimed.saturating_add(4));
                    is_over[from] = true;
                }
            }
            frames.push((from, wire));
        }
        let piece = if rng.one_in(2) { usize::MAX } else { 1 + rng.below(64) };
        let bytes: usize = frames.iter().map(|(_, wire)| wire.len()).sum();
        let seed = rng.next();
        let limit = MEMORY_BASE + MEMORY_PER_BYTE_MAX * bytes;
        case.work(bytes, limit, |case| run(case, seed, &frames, piece));
    });
}
