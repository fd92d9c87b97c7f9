//! Brokers in memory: topics with ids, leaders, epochs and logs; fetch sessions; injected refusals.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartitions, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::{
    ApiVersionsResponse, BrokerId, FindCoordinatorResponse, HeartbeatResponse, LeaveGroupResponse,
    ListOffsetsRequest, ListOffsetsResponse, MetadataRequest, MetadataResponse, OffsetCommitRequest,
    OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse, OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
};
use uuid::Uuid;

use super::fetches::Sessions;
use super::group::Group;
use super::wire::Ticket;
use crate::api::{Api, Request, Response, text};
use crate::error::code;
use crate::metadata::TopicPartition;
use crate::records::{BatchBuilder, Codec, ProducerStamp};

/// One partition's log.
#[derive(Clone, Debug)]
pub(super) struct Log {
    pub(super) leader: i32,
    pub(super) epoch: i32,
    pub(super) start: i64,
    /// Base offset, leader epoch, bytes.
    pub(super) batches: Vec<(i64, i32, Bytes)>,
    pub(super) end: i64,
    /// Where each epoch began.
    epochs: Vec<(i32, i64)>,
    /// The replica that consumers are sent to (KIP-392).
    pub(super) preferred: Option<i32>,
}

impl Log {
    fn new(leader: i32) -> Self {
        let epochs = vec![(0, 0)];
        Log { leader, epoch: 0, start: 0, batches: Vec::new(), end: 0, epochs, preferred: None }
    }

    /// Appends one batch.
    pub(super) fn append(&mut self, count: i64) {
        let mut builder = BatchBuilder::new();
        for at in 0..count {
            let value = (self.end + at).to_string();
            builder.append(Some(b"k"), Some(value.as_bytes()), &[], 1).expect("fits");
        }
        let plain = builder.finish(Codec::None, &ProducerStamp::NONE).expect("builds");
        let mut batch = BytesMut::from(&plain[..]);
        batch[..8].copy_from_slice(&self.end.to_be_bytes());
        batch[12..16].copy_from_slice(&self.epoch.to_be_bytes());
        self.batches.push((self.end, self.epoch, batch.freeze()));
        self.end += count;
    }

    /// Another leader, with the same log.
    pub(super) fn lead(&mut self, node: i32) {
        self.leader = node;
        self.epoch += 1;
        self.epochs.push((self.epoch, self.end));
    }

    /// Cuts the log at a batch border, as an unclean leader election does.
    pub(super) fn cut(&mut self, end: i64, node: i32) {
        self.batches.retain(|(base, ..)| *base < end);
        self.end = end;
        self.epochs.retain(|(_, start)| *start < end);
        self.lead(node);
    }

    /// Drops what is below.
    pub(super) fn retain_from(&mut self, start: i64) {
        self.start = start;
        self.batches.retain(|(base, ..)| *base >= start);
    }

    /// The batches from the one that holds `offset` on.
    pub(super) fn read(&self, offset: i64, batches_max: usize) -> Bytes {
        let first = self.batches.partition_point(|(base, ..)| *base <= offset).saturating_sub(1);
        let mut bytes = BytesMut::new();
        for (_, _, batch) in self.batches.iter().skip(first).take(batches_max) {
            if offset < self.end {
                bytes.put_slice(batch);
            }
        }
        bytes.freeze()
    }

    fn epoch_end(&self, wanted: i32) -> (i32, i64) {
        match self.epochs.iter().rposition(|(epoch, _)| *epoch <= wanted) {
            Some(at) => (self.epochs[at].0, self.epochs.get(at + 1).map_or(self.end, |(_, start)| *start)),
            None => (-1, -1),
        }
    }
}

/// A topic.
#[derive(Clone, Debug)]
pub(super) struct TopicLogs {
    pub(super) id: Uuid,
    pub(super) logs: Vec<Log>,
}

/// The next requests of an API that are refused.
#[derive(Clone, Debug)]
pub(super) struct Refusals {
    pub(super) api: Api,
    pub(super) code: i16,
    pub(super) left: u32,
}

/// The brokers.
pub(super) struct Cluster {
    pub(super) nodes: BTreeMap<i32, bool>,
    pub(super) topics: BTreeMap<String, TopicLogs>,
    pub(super) coordinator: i32,
    pub(super) group: Group,
    pub(super) committed: BTreeMap<TopicPartition, (i64, i32)>,
    pub(super) sessions: Sessions,
    pub(super) refusals: Vec<Refusals>,
    /// Every request that came, in order.
    pub(super) seen: Vec<(Duration, usize, Request)>,
    /// Commits that were stored since they were last looked at: who, where, what.
    pub(super) stored: VecDeque<(usize, TopicPartition, i64)>,
}

/// What becomes of a request.
pub(super) enum Reply {
    Now(Response),
    /// Fetch and the rounds answer later.
    Later,
}

impl Cluster {
    pub(super) fn new(nodes: i32) -> Self {
        Cluster {
            nodes: (1..=nodes).map(|node| (node, true)).collect(),
            topics: BTreeMap::new(),
            coordinator: 1,
            group: Group::new(),
            committed: BTreeMap::new(),
            sessions: Sessions::default(),
            refusals: Vec::new(),
            seen: Vec::new(),
            stored: VecDeque::new(),
        }
    }

    pub(super) fn create(&mut self, topic: &str, partitions: i32, id: u128) {
        let nodes = self.nodes.len() as i32;
        let logs = (0..partitions).map(|partition| Log::new(1 + partition % nodes)).collect();
        self.topics.insert(topic.to_owned(), TopicLogs { id: Uuid::from_u128(id), logs });
    }

    pub(super) fn log(&mut self, topic: &str, partition: i32) -> &mut Log {
        &mut self.topics.get_mut(topic).expect("a topic").logs[partition as usize]
    }

    pub(super) fn refuse(&mut self, api: Api, code: i16, left: u32) {
        self.refusals.push(Refusals { api, code, left });
    }

    fn refusal(&mut self, api: Api) -> i16 {
        match self.refusals.iter_mut().find(|refusals| refusals.api == api && refusals.left > 0) {
            Some(refusals) => {
                refusals.left -= 1;
                refusals.code
            }
            None => code::NONE,
        }
    }

    /// The leader's log, or the code with which `node` refuses it.
    pub(super) fn led(&self, node: i32, topic: &str, partition: i32, epoch: i32) -> Result<&Log, i16> {
        let log = self.topics.get(topic).and_then(|topic| topic.logs.get(partition as usize));
        let log = log.ok_or(code::UNKNOWN_TOPIC_OR_PARTITION)?;
        let reads = log.leader == node || log.preferred == Some(node);
        match epoch {
            _ if !reads => Err(code::NOT_LEADER_OR_FOLLOWER),
            epoch if epoch >= 0 && epoch < log.epoch => Err(code::FENCED_LEADER_EPOCH),
            epoch if epoch > log.epoch => Err(code::UNKNOWN_LEADER_EPOCH),
            _ => Ok(log),
        }
    }

    pub(super) fn handle(&mut self, request: Request, ticket: &Ticket, now: Duration) -> Reply {
        let refused = self.refusal(request.api());
        self.seen.push((now, ticket.client, request.clone()));
        let elsewhere = if ticket.node == self.coordinator { code::NONE } else { code::NOT_COORDINATOR };
        let group_code = if refused == code::NONE { elsewhere } else { refused };
        Reply::Now(match request {
            Request::ApiVersions(_) => Response::ApiVersions(versions()),
            Request::Metadata(request) => Response::Metadata(self.metadata(&request, refused)),
            Request::FindCoordinator(_) => Response::FindCoordinator(self.find_coordinator(refused)),
            Request::JoinGroup(request) => {
                if group_code == code::NONE {
                    self.group.join(&request, ticket.clone(), now);
                    return Reply::Later;
                }
                let response = kafka_protocol::messages::JoinGroupResponse::default()
                    .with_protocol_name(Some(text("")))
                    .with_error_code(group_code);
                Response::JoinGroup(response)
            }
            Request::SyncGroup(request) => {
                if group_code == code::NONE {
                    self.group.sync(&request, ticket.clone(), now);
                    return Reply::Later;
                }
                let response =
                    kafka_protocol::messages::SyncGroupResponse::default().with_error_code(group_code);
                Response::SyncGroup(response)
            }
            Request::Heartbeat(request) => {
                let code = match group_code {
                    code::NONE => self.group.heartbeat(&request, now),
                    // Told early: a coordinator that says so has heard the member all the same.
                    code::REBALANCE_IN_PROGRESS => match self.group.heartbeat(&request, now) {
                        code::NONE => group_code,
                        other => other,
                    },
                    refused => refused,
                };
                Response::Heartbeat(HeartbeatResponse::default().with_error_code(code))
            }
            Request::LeaveGroup(request) => {
                if group_code == code::NONE {
                    self.group.leave(&request, now);
                }
                Response::LeaveGroup(LeaveGroupResponse::default().with_error_code(group_code))
            }
            Request::OffsetCommit(request) => {
                Response::OffsetCommit(self.commit(&request, ticket, group_code, now))
            }
            Request::OffsetFetch(request) => Response::OffsetFetch(self.offsets(&request, group_code)),
            Request::ListOffsets(request) => {
                Response::ListOffsets(self.list_offsets(&request, ticket.node, refused))
            }
            Request::OffsetForLeaderEpoch(request) => {
                Response::OffsetForLeaderEpoch(self.epoch_ends(&request, ticket.node, refused))
            }
            Request::Fetch(request) => {
                self.sessions.begin(request, ticket.clone(), refused, now);
                return Reply::Later;
            }
            other => panic!("{} is not served here", other.api()),
        })
    }

    fn metadata(&self, request: &MetadataRequest, refused: i16) -> MetadataResponse {
        let brokers = self.nodes.keys().map(|node| {
            MetadataResponseBroker::default()
                .with_node_id(BrokerId(*node))
                .with_host(text("broker"))
                .with_port(9090 + node)
        });
        let topics = request.topics.iter().flatten().map(|asked| {
            let name = asked.name.clone().expect("by name");
            let answer = MetadataResponseTopic::default().with_name(Some(name.clone()));
            match self.topics.get(name.as_str()) {
                _ if refused != code::NONE => answer.with_error_code(refused),
                None => answer.with_error_code(code::UNKNOWN_TOPIC_OR_PARTITION),
                Some(topic) => answer.with_topic_id(topic.id).with_partitions(
                    topic
                        .logs
                        .iter()
                        .enumerate()
                        .map(|(at, log)| {
                            MetadataResponsePartition::default()
                                .with_partition_index(at as i32)
                                .with_leader_id(BrokerId(log.leader))
                                .with_leader_epoch(log.epoch)
                        })
                        .collect(),
                ),
            }
        });
        MetadataResponse::default().with_brokers(brokers.collect()).with_topics(topics.collect())
    }

    fn find_coordinator(&self, refused: i16) -> FindCoordinatorResponse {
        let found = Coordinator::default()
            .with_key(text("g"))
            .with_node_id(BrokerId(self.coordinator))
            .with_host(text("broker"))
            .with_port(9090 + self.coordinator)
            .with_error_code(refused);
        FindCoordinatorResponse::default().with_coordinators(vec![found])
    }

    fn commit(
        &mut self,
        request: &OffsetCommitRequest,
        ticket: &Ticket,
        refused: i16,
        now: Duration,
    ) -> OffsetCommitResponse {
        let code = match refused {
            code::NONE => self.group.commit(&request.member_id, request.generation_id_or_member_epoch, now),
            refused => refused,
        };
        let mut topics = Vec::new();
        for topic in &request.topics {
            let mut partitions = Vec::new();
            for partition in &topic.partitions {
                if code == code::NONE {
                    let at = TopicPartition::new(topic.name.as_str(), partition.partition_index);
                    self.stored.push_back((ticket.client, at.clone(), partition.committed_offset));
                    self.committed.insert(at, (partition.committed_offset, partition.committed_leader_epoch));
                }
                partitions.push(
                    OffsetCommitResponsePartition::default()
                        .with_partition_index(partition.partition_index)
                        .with_error_code(code),
                );
            }
            topics.push(
                OffsetCommitResponseTopic::default()
                    .with_name(topic.name.clone())
                    .with_partitions(partitions),
            );
        }
        OffsetCommitResponse::default().with_topics(topics)
    }

    fn offsets(&self, request: &OffsetFetchRequest, refused: i16) -> OffsetFetchResponse {
        // An open transaction refuses the partitions, anything else the group.
        let unstable = refused == code::UNSTABLE_OFFSET_COMMIT;
        let asked = request.groups[0].topics.iter().flatten();
        let topics = asked.map(|topic| {
            let partitions = topic.partition_indexes.iter().map(|partition| {
                let at = TopicPartition::new(topic.name.as_str(), *partition);
                let (offset, epoch) = match self.committed.get(&at) {
                    Some(committed) if !unstable => *committed,
                    _ => (-1, -1),
                };
                OffsetFetchResponsePartitions::default()
                    .with_partition_index(*partition)
                    .with_committed_offset(offset)
                    .with_committed_leader_epoch(epoch)
                    .with_error_code(if unstable { refused } else { 0 })
            });
            OffsetFetchResponseTopics::default()
                .with_name(topic.name.clone())
                .with_partitions(partitions.collect())
        });
        let group = OffsetFetchResponseGroup::default()
            .with_group_id(request.groups[0].group_id.clone())
            .with_error_code(if unstable { 0 } else { refused })
            .with_topics(topics.collect());
        OffsetFetchResponse::default().with_groups(vec![group])
    }

    fn list_offsets(&self, request: &ListOffsetsRequest, node: i32, refused: i16) -> ListOffsetsResponse {
        let topics = request.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|asked| {
                let answer =
                    ListOffsetsPartitionResponse::default().with_partition_index(asked.partition_index);
                let led = self.led(node, &topic.name, asked.partition_index, asked.current_leader_epoch);
                match led {
                    _ if refused != code::NONE => answer.with_error_code(refused).with_offset(-1),
                    Err(code) => answer.with_error_code(code).with_offset(-1),
                    Ok(log) => answer
                        .with_offset(if asked.timestamp == -2 { log.start } else { log.end })
                        .with_leader_epoch(-1),
                }
            });
            ListOffsetsTopicResponse::default()
                .with_name(topic.name.clone())
                .with_partitions(partitions.collect())
        });
        ListOffsetsResponse::default().with_topics(topics.collect())
    }

    fn epoch_ends(
        &self,
        request: &OffsetForLeaderEpochRequest,
        node: i32,
        refused: i16,
    ) -> OffsetForLeaderEpochResponse {
        let topics = request.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|asked| {
                let answer = EpochEndOffset::default().with_partition(asked.partition);
                match self.led(node, &topic.topic, asked.partition, asked.current_leader_epoch) {
                    _ if refused != code::NONE => answer.with_error_code(refused),
                    Err(code) => answer.with_error_code(code),
                    Ok(log) => {
                        let (epoch, end) = log.epoch_end(asked.leader_epoch);
                        answer.with_leader_epoch(epoch).with_end_offset(end)
                    }
                }
            });
            OffsetForLeaderTopicResult::default()
                .with_topic(topic.topic.clone())
                .with_partitions(partitions.collect())
        });
        OffsetForLeaderEpochResponse::default().with_topics(topics.collect())
    }
}

fn versions() -> ApiVersionsResponse {
    let keys = Api::ALL.iter().map(|api| {
        let (low, high) = api.versions();
        ApiVersion::default().with_api_key(api.key()).with_min_version(low).with_max_version(high)
    });
    ApiVersionsResponse::default().with_api_keys(keys.collect())
}
