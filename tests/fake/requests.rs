//! The request log and the questions that tests ask of it.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::{
    ApiKey, FetchRequest, HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, OffsetCommitRequest,
    ProduceRequest, RequestKind, SyncGroupRequest,
};

use super::batch::Header;
use super::state::State;

/// One request as it came in.
#[derive(Debug)]
pub struct Request {
    /// Its place in the log, from 0.
    pub index: usize,
    /// How many requests of this API came before it, plus 1.
    pub nth: usize,
    /// Since the fake was started.
    pub time: Duration,
    pub connection: u64,
    pub node: i32,
    pub api: ApiKey,
    pub version: i16,
    pub correlation: i32,
    pub client_id: String,
    pub kind: RequestKind,
    /// The frame without its length: header and body.
    pub raw: Bytes,
}

/// One partition in one OffsetCommit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    pub time: Duration,
    /// Index of the request in the log.
    pub index: usize,
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub leader_epoch: i32,
    pub generation: i32,
    pub member: String,
}

/// One partition that a Fetch asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchAsk {
    pub time: Duration,
    pub index: usize,
    pub connection: u64,
    pub node: i32,
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub leader_epoch: i32,
    pub bytes_max: i32,
    /// Named in the request itself; false when the session remembered it.
    pub explicit: bool,
}

/// One batch in one Produce.
#[derive(Clone, Debug)]
pub struct Produced {
    pub time: Duration,
    pub index: usize,
    pub topic: String,
    pub partition: i32,
    pub header: Header,
    pub bytes: Bytes,
}

/// The log up to one moment.
pub struct Log<'a> {
    pub state: &'a State,
}

macro_rules! typed {
    ($(#[$doc:meta])* $name:ident, $variant:ident, $body:ty) => {
        $(#[$doc])*
        pub fn $name(&self) -> Vec<(Arc<Request>, $body)> {
            self.all().iter().filter_map(|request| match &request.kind {
                RequestKind::$variant(body) => Some((request.clone(), body.clone())),
                _ => None,
            }).collect()
        }
    };
}

impl Log<'_> {
    pub fn all(&self) -> &[Arc<Request>] {
        &self.state.requests
    }

    pub fn of(&self, api: ApiKey) -> Vec<Arc<Request>> {
        self.all().iter().filter(|r| r.api == api).cloned().collect()
    }

    pub fn count(&self, api: ApiKey) -> usize {
        self.all().iter().filter(|r| r.api == api).count()
    }

    typed!(joins, JoinGroup, JoinGroupRequest);
    typed!(syncs, SyncGroup, SyncGroupRequest);
    typed!(heartbeats, Heartbeat, HeartbeatRequest);
    typed!(leaves, LeaveGroup, LeaveGroupRequest);
    typed!(commit_requests, OffsetCommit, OffsetCommitRequest);
    typed!(fetch_requests, Fetch, FetchRequest);
    typed!(produce_requests, Produce, ProduceRequest);

    /// Every partition of every OffsetCommit of `group`, in order, whatever was answered.
    pub fn commits(&self, group: &str) -> Vec<Commit> {
        let mut out = Vec::new();
        for (request, body) in self.commit_requests() {
            if body.group_id.as_str() != group {
                continue;
            }
            for topic in &body.topics {
                for partition in &topic.partitions {
                    out.push(Commit {
                        time: request.time,
                        index: request.index,
                        topic: topic.name.to_string(),
                        partition: partition.partition_index,
                        offset: partition.committed_offset,
                        leader_epoch: partition.committed_leader_epoch,
                        generation: body.generation_id_or_member_epoch,
                        member: body.member_id.to_string(),
                    });
                }
            }
        }
        out
    }

    /// The highest offset in any commit of `group` for the partition.
    pub fn committed_max(&self, group: &str, topic: &str, partition: i32) -> Option<i64> {
        let of = |c: &Commit| c.topic == topic && c.partition == partition;
        self.commits(group).into_iter().filter(of).map(|c| c.offset).max()
    }

    /// Every position asked for, sessions resolved, in order.
    pub fn fetches(&self) -> Vec<FetchAsk> {
        self.state.fetch_asks.clone()
    }

    /// The offsets asked for of one partition, repeats left out.
    pub fn positions(&self, topic: &str, partition: i32) -> Vec<i64> {
        let of = |a: &&FetchAsk| a.topic == topic && a.partition == partition;
        let mut out: Vec<i64> = self.state.fetch_asks.iter().filter(of).map(|a| a.offset).collect();
        out.dedup();
        out
    }

    /// Every batch of every Produce, in order, whatever was answered.
    pub fn produced(&self) -> Vec<Produced> {
        let mut out = Vec::new();
        for (request, body) in self.produce_requests() {
            for topic in &body.topic_data {
                let name = match topic.name.as_str() {
                    "" => self.state.name_of(topic.topic_id).unwrap_or_default(),
                    name => name.to_owned(),
                };
                for data in &topic.partition_data {
                    let bytes = data.records.clone().unwrap_or_default();
                    if let Some(header) = Header::read(&bytes) {
                        out.push(Produced {
                            time: request.time,
                            index: request.index,
                            topic: name.clone(),
                            partition: data.index,
                            header,
                            bytes,
                        });
                    }
                }
            }
        }
        out
    }

    /// One line a request, for the message of a failed test.
    pub fn summary(&self) -> String {
        let mut out = String::new();
        let skipped = self.all().len().saturating_sub(200);
        if skipped > 0 {
            let _ = writeln!(out, "({skipped} requests before)");
        }
        for request in &self.all()[skipped..] {
            let mut body = format!("{:?}", request.kind).replace(", unknown_tagged_fields: {}", "");
            if let Some((cut, _)) = body.char_indices().nth(300) {
                body.truncate(cut);
            }
            let _ = writeln!(
                out,
                "{:>9.3}s conn {} node {} v{} {body}",
                request.time.as_secs_f64(),
                request.connection,
                request.node,
                request.version
            );
        }
        out
    }
}
