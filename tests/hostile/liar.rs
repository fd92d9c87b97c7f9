//! A broker that answers every request of a consumer in sound frames, and lies in the numbers: offsets at the edges
//! of their types, partitions and brokers that are not there, generations that jump, codes at random.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages as m;
use kafka_protocol::messages::{BrokerId, RequestHeader, ResponseHeader, TopicName};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, StrBytes};
use keylane_protocol::api::{Api, text};
use keylane_protocol::group::Assignment;
use uuid::Uuid;

use crate::batches;
use crate::mutate::mutate;
use crate::rng::Rng;

pub(crate) const TOPIC: &str = "t";
const GROUP: &str = "g";
/// Codes that a consumer lives with: out of range, moved leaders and coordinators, rebalances, fences.
const CODES: [i16; 15] = [1, 3, 5, 6, 7, 14, 15, 16, 22, 25, 27, 27, 74, 75, 100];
const ID: Uuid = Uuid::from_u128(7);

/// How often it lies: once in so many fields.
pub(crate) struct Liar {
    pub(crate) lies_one_in: usize,
}

/// A request's frame, without its length.
struct Asked {
    api: Api,
    version: i16,
    correlation: i32,
    body: Bytes,
}

fn read<R: Decodable + HeaderVersion>(asked: &Asked) -> R {
    let mut body = asked.body.clone();
    RequestHeader::decode(&mut body, R::header_version(asked.version)).expect("our own header");
    R::decode(&mut body, asked.version).expect("our own request")
}

fn write<R: Encodable + HeaderVersion>(asked: &Asked, response: &R) -> Vec<u8> {
    let mut out = BytesMut::new();
    ResponseHeader::default()
        .with_correlation_id(asked.correlation)
        .encode(&mut out, R::header_version(asked.version))
        .and_then(|()| response.encode(&mut out, asked.version))
        .expect("fields that the version has");
    out.to_vec()
}

fn topic() -> TopicName {
    TopicName(text(TOPIC))
}

impl Liar {
    /// The answer to a request, as a whole frame.
    pub(crate) fn answer(&self, rng: &mut Rng, frame: &Bytes) -> Vec<u8> {
        let key = i16::from_be_bytes([frame[0], frame[1]]);
        let asked = Asked {
            api: *Api::ALL.iter().find(|api| api.key() == key).expect("an API of ours"),
            version: i16::from_be_bytes([frame[2], frame[3]]),
            correlation: i32::from_be_bytes([frame[4], frame[5], frame[6], frame[7]]),
            body: frame.clone(),
        };
        let mut body = self.body(rng, &asked);
        if rng.one_in(8 * self.lies_one_in) {
            let start = body.len().min(4);
            let mut rest = body.split_off(start);
            let copy = rest.clone();
            mutate(rng, &mut rest, &copy);
            body.append(&mut rest);
        }
        let mut wire = (body.len() as i32).to_be_bytes().to_vec();
        wire.append(&mut body);
        wire
    }

    fn body(&self, rng: &mut Rng, asked: &Asked) -> Vec<u8> {
        match asked.api {
            Api::ApiVersions => write(asked, &self.versions(rng)),
            Api::Metadata => write(asked, &self.metadata(rng)),
            Api::FindCoordinator => write(asked, &self.coordinator(rng, asked)),
            Api::JoinGroup => write(asked, &self.join(rng, &read(asked))),
            Api::SyncGroup => write(asked, &self.sync(rng)),
            Api::Heartbeat => write(asked, &m::HeartbeatResponse::default().with_error_code(self.code(rng))),
            Api::OffsetCommit => write(asked, &self.commit(rng, &read(asked))),
            Api::OffsetFetch => write(asked, &self.committed(rng, asked)),
            Api::ListOffsets => write(asked, &self.offsets(rng, &read(asked))),
            Api::OffsetForLeaderEpoch => write(asked, &self.epochs(rng)),
            Api::Fetch => write(asked, &self.fetch(rng, asked)),
            Api::LeaveGroup => write(asked, &m::LeaveGroupResponse::default()),
            other => panic!("a consumer does not ask for {other}"),
        }
    }

    fn lies(&self, rng: &mut Rng) -> bool {
        rng.one_in(self.lies_one_in)
    }

    fn i64(&self, rng: &mut Rng, right: i64) -> i64 {
        if self.lies(rng) { rng.odd_i64() } else { right }
    }

    fn i32(&self, rng: &mut Rng, right: i32) -> i32 {
        if self.lies(rng) { rng.odd_i64() as i32 } else { right }
    }

    fn node(&self, rng: &mut Rng) -> BrokerId {
        let right = rng.below(2) as i32;
        BrokerId(self.i32(rng, right))
    }

    fn code(&self, rng: &mut Rng) -> i16 {
        if !rng.one_in(2 * self.lies_one_in) {
            return 0;
        }
        match rng.below(6) {
            0 => rng.next() as i16,
            1 => rng.below(120) as i16 - 1,
            _ => *rng.pick(&CODES),
        }
    }

    fn host(&self, rng: &mut Rng) -> StrBytes {
        text(if self.lies(rng) { "" } else { "host" })
    }

    fn partitions(&self, rng: &mut Rng) -> Vec<i32> {
        let mut all: Vec<i32> = (0..3).filter(|_| !self.lies(rng)).collect();
        if self.lies(rng) {
            all.push(rng.odd_i64() as i32);
        }
        all
    }

    fn versions(&self, rng: &mut Rng) -> m::ApiVersionsResponse {
        let ranges = Api::ALL.iter().map(|api| {
            let (low, high) = api.versions();
            let high = low + rng.below((high - low + 1) as usize) as i16;
            m::api_versions_response::ApiVersion::default()
                .with_api_key(api.key())
                .with_min_version(0)
                .with_max_version(if rng.one_in(60 * self.lies_one_in) { rng.next() as i16 } else { high })
        });
        m::ApiVersionsResponse::default().with_api_keys(ranges.collect())
    }

    fn metadata(&self, rng: &mut Rng) -> m::MetadataResponse {
        use m::metadata_response::{
            MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
        };
        let brokers = (0..2).map(|node| {
            MetadataResponseBroker::default()
                .with_node_id(BrokerId(self.i32(rng, node)))
                .with_host(self.host(rng))
                .with_port(self.i32(rng, 9092))
        });
        let brokers = brokers.collect();
        let partitions = self.partitions(rng).into_iter().map(|partition| {
            MetadataResponsePartition::default()
                .with_error_code(self.code(rng))
                .with_partition_index(partition)
                .with_leader_id(self.node(rng))
                .with_leader_epoch(self.i32(rng, 3))
        });
        let topic = MetadataResponseTopic::default()
            .with_partitions(partitions.collect())
            .with_error_code(self.code(rng))
            .with_name((!self.lies(rng)).then(topic))
            .with_topic_id(if rng.one_in(4 * self.lies_one_in) { Uuid::from_u128(8) } else { ID });
        m::MetadataResponse::default()
            .with_brokers(brokers)
            .with_controller_id(self.node(rng))
            .with_topics(vec![topic])
    }

    fn coordinator(&self, rng: &mut Rng, asked: &Asked) -> m::FindCoordinatorResponse {
        let (node, host) = (self.node(rng), self.host(rng));
        let (port, code) = (self.i32(rng, 9092), self.code(rng));
        if asked.version < 4 {
            return m::FindCoordinatorResponse::default()
                .with_node_id(node)
                .with_host(host)
                .with_port(port)
                .with_error_code(code);
        }
        let coordinator = m::find_coordinator_response::Coordinator::default()
            .with_key(text(if self.lies(rng) { "other" } else { GROUP }))
            .with_node_id(node)
            .with_host(host)
            .with_port(port)
            .with_error_code(code);
        m::FindCoordinatorResponse::default().with_coordinators(vec![coordinator])
    }

    fn join(&self, rng: &mut Rng, request: &m::JoinGroupRequest) -> m::JoinGroupResponse {
        use m::join_group_response::JoinGroupResponseMember;
        let leads = rng.one_in(2);
        let protocol = request.protocols.first().expect("an assignor");
        let mut members = Vec::new();
        for number in 0..if leads { 1 + rng.below(3) } else { 0 } {
            let mut metadata = protocol.metadata.to_vec();
            if number > 0 && rng.one_in(2) {
                mutate(rng, &mut metadata, &protocol.metadata);
            }
            let member = JoinGroupResponseMember::default()
                .with_member_id(text(["me", "other", "third"][number]))
                .with_metadata(metadata.into());
            members.push(member);
        }
        let name = if self.lies(rng) { text("unknown") } else { protocol.name.clone() };
        m::JoinGroupResponse::default()
            .with_error_code(if request.member_id.is_empty() && rng.one_in(2) { 79 } else { self.code(rng) })
            .with_generation_id({
                let right = rng.below(9) as i32;
                self.i32(rng, right)
            })
            .with_protocol_type(Some(text("consumer")))
            .with_protocol_name(Some(name))
            .with_leader(text(if leads { "me" } else { "other" }))
            .with_member_id(text(if self.lies(rng) { "" } else { "me" }))
            .with_members(members)
    }

    fn sync(&self, rng: &mut Rng) -> m::SyncGroupResponse {
        let mut partitions = self.partitions(rng);
        partitions.retain(|_| !rng.one_in(4));
        let topic = if rng.one_in(8 * self.lies_one_in) { "other" } else { TOPIC };
        let assignment = Assignment { partitions: [(topic.to_owned(), partitions)].into(), user_data: None };
        let mut bytes = assignment.encode().to_vec();
        if rng.one_in(4 * self.lies_one_in) {
            let copy = bytes.clone();
            mutate(rng, &mut bytes, &copy);
        }
        m::SyncGroupResponse::default().with_error_code(self.code(rng)).with_assignment(bytes.into())
    }

    fn commit(&self, rng: &mut Rng, request: &m::OffsetCommitRequest) -> m::OffsetCommitResponse {
        use m::offset_commit_response::{OffsetCommitResponsePartition, OffsetCommitResponseTopic};
        let topics = request.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                OffsetCommitResponsePartition::default()
                    .with_partition_index(self.i32(rng, partition.partition_index))
                    .with_error_code(self.code(rng))
            });
            OffsetCommitResponseTopic::default()
                .with_name(topic.name.clone())
                .with_partitions(partitions.collect())
        });
        m::OffsetCommitResponse::default().with_topics(topics.collect())
    }

    fn committed(&self, rng: &mut Rng, asked: &Asked) -> m::OffsetFetchResponse {
        use m::offset_fetch_response as r;
        let places: Vec<(i32, i64, i32, i16)> = self
            .partitions(rng)
            .into_iter()
            .map(|partition| {
                let right = rng.below(30) as i64 - 1;
                (partition, self.i64(rng, right), self.i32(rng, 3), self.code(rng))
            })
            .collect();
        if asked.version < 8 {
            let partitions = places.into_iter().map(|(partition, offset, epoch, code)| {
                r::OffsetFetchResponsePartition::default()
                    .with_partition_index(partition)
                    .with_committed_offset(offset)
                    .with_committed_leader_epoch(epoch)
                    .with_error_code(code)
            });
            let topic = r::OffsetFetchResponseTopic::default()
                .with_name(topic())
                .with_partitions(partitions.collect());
            return m::OffsetFetchResponse::default().with_topics(vec![topic]);
        }
        let partitions = places.into_iter().map(|(partition, offset, epoch, code)| {
            r::OffsetFetchResponsePartitions::default()
                .with_partition_index(partition)
                .with_committed_offset(offset)
                .with_committed_leader_epoch(epoch)
                .with_error_code(code)
        });
        let topic =
            r::OffsetFetchResponseTopics::default().with_name(topic()).with_partitions(partitions.collect());
        let group = r::OffsetFetchResponseGroup::default()
            .with_group_id(m::GroupId(text(GROUP)))
            .with_topics(vec![topic])
            .with_error_code(self.code(rng));
        m::OffsetFetchResponse::default().with_groups(vec![group])
    }

    fn offsets(&self, rng: &mut Rng, request: &m::ListOffsetsRequest) -> m::ListOffsetsResponse {
        use m::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
        let topics = request.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|partition| {
                let right = if partition.timestamp == -1 { 200 } else { 0 };
                ListOffsetsPartitionResponse::default()
                    .with_partition_index(self.i32(rng, partition.partition_index))
                    .with_error_code(self.code(rng))
                    .with_timestamp(self.i64(rng, -1))
                    .with_offset(self.i64(rng, right))
                    .with_leader_epoch(self.i32(rng, 3))
            });
            ListOffsetsTopicResponse::default()
                .with_name(topic.name.clone())
                .with_partitions(partitions.collect())
        });
        m::ListOffsetsResponse::default().with_topics(topics.collect())
    }

    fn epochs(&self, rng: &mut Rng) -> m::OffsetForLeaderEpochResponse {
        use m::offset_for_leader_epoch_response::{EpochEndOffset, OffsetForLeaderTopicResult};
        let partitions = self.partitions(rng).into_iter().map(|partition| {
            EpochEndOffset::default()
                .with_error_code(self.code(rng))
                .with_partition(partition)
                .with_leader_epoch(self.i32(rng, 3))
                .with_end_offset(self.i64(rng, 200))
        });
        let topic =
            OffsetForLeaderTopicResult::default().with_topic(topic()).with_partitions(partitions.collect());
        m::OffsetForLeaderEpochResponse::default().with_topics(vec![topic])
    }

    fn fetch(&self, rng: &mut Rng, asked: &Asked) -> m::FetchResponse {
        use m::fetch_response::{AbortedTransaction, FetchableTopicResponse, PartitionData};
        let request: m::FetchRequest = read(asked);
        let mut topics = Vec::new();
        for wanted in &request.topics {
            let mut partitions = Vec::new();
            for partition in &wanted.partitions {
                let records = self.records(rng, partition.fetch_offset);
                let aborted = AbortedTransaction::default()
                    .with_producer_id(m::ProducerId(rng.below(3) as i64))
                    .with_first_offset(self.i64(rng, partition.fetch_offset));
                let mut data = PartitionData::default()
                    .with_partition_index(self.i32(rng, partition.partition))
                    .with_error_code(self.code(rng))
                    .with_high_watermark(self.i64(rng, 200))
                    .with_last_stable_offset(self.i64(rng, 200))
                    .with_log_start_offset(self.i64(rng, 0))
                    .with_aborted_transactions(rng.one_in(2).then(|| vec![aborted]))
                    .with_records(Some(records.into()));
                if rng.one_in(4 * self.lies_one_in) {
                    data.preferred_read_replica = self.node(rng);
                }
                if rng.one_in(4 * self.lies_one_in) {
                    data.diverging_epoch.epoch = self.i32(rng, 2);
                    data.diverging_epoch.end_offset = self.i64(rng, 2);
                }
                if rng.one_in(4 * self.lies_one_in) {
                    data.current_leader.leader_id = self.node(rng);
                    data.current_leader.leader_epoch = self.i32(rng, 4);
                }
                partitions.push(data);
            }
            let by_id = asked.version >= 13;
            let mut topic = FetchableTopicResponse::default().with_partitions(partitions);
            if by_id {
                topic.topic_id = if self.lies(rng) { Uuid::from_u128(9) } else { wanted.topic_id };
            } else {
                topic.topic = wanted.topic.clone();
            }
            topics.push(topic);
        }
        m::FetchResponse::default()
            .with_error_code(self.code(rng))
            .with_session_id(self.i32(rng, 5))
            .with_responses(topics)
    }

    /// Batches from an offset on.
    fn records(&self, rng: &mut Rng, mut offset: i64) -> Vec<u8> {
        let mut records = Vec::new();
        for _ in 0..rng.below(3) {
            let hostile = self.lies(rng);
            let mut batch = batches::batch(rng, hostile);
            if batch.len() < 27 {
                continue;
            }
            let last = i32::from_be_bytes([batch[23], batch[24], batch[25], batch[26]]);
            batch[..8].copy_from_slice(&self.i64(rng, offset).to_be_bytes());
            offset = offset.wrapping_add(i64::from(last)).wrapping_add(1);
            records.append(&mut batch);
        }
        records
    }
}
