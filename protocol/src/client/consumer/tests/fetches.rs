//! The brokers' fetch sessions (KIP-227) and long polls.

use std::collections::BTreeMap;
use std::time::Duration;

use kafka_protocol::messages::fetch_response::{FetchableTopicResponse, PartitionData};
use kafka_protocol::messages::{BrokerId, FetchRequest, FetchResponse};
use uuid::Uuid;

use super::cluster::Cluster;
use super::group::Answers;
use super::wire::Ticket;
use crate::api::Response;
use crate::error::code;

const BATCHES_MAX: usize = 3;

#[derive(Debug)]
struct Session {
    node: i32,
    epoch: i32,
    /// Offset and leader epoch by topic id and partition.
    partitions: BTreeMap<(Uuid, i32), (i64, i32)>,
}

#[derive(Debug)]
struct Poll {
    ticket: Ticket,
    session: i32,
    /// A full answer names every partition.
    full: bool,
    refused: i16,
    until: Duration,
}

/// All sessions of all brokers.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    sessions: BTreeMap<i32, Session>,
    polls: Vec<Poll>,
    ready: Answers,
    next_id: i32,
}

impl Sessions {
    /// A broker has restarted: its sessions are gone.
    pub(super) fn forget(&mut self, node: i32) {
        self.sessions.retain(|_, session| session.node != node);
    }

    pub(super) fn begin(&mut self, request: FetchRequest, ticket: Ticket, refused: i16, now: Duration) {
        let full = request.session_epoch == 0;
        if full {
            self.next_id += 1;
            let session = Session { node: ticket.node, epoch: 1, partitions: BTreeMap::new() };
            self.sessions.insert(self.next_id, session);
        }
        let id = if full { self.next_id } else { request.session_id };
        let found = self.sessions.get_mut(&id).filter(|session| session.node == ticket.node);
        let session = match found {
            Some(session) if full || session.epoch == request.session_epoch => session,
            Some(_) => return self.refuse(ticket, code::INVALID_FETCH_SESSION_EPOCH),
            None => return self.refuse(ticket, code::FETCH_SESSION_ID_NOT_FOUND),
        };
        if !full {
            session.epoch += 1;
        }
        for topic in &request.forgotten_topics_data {
            for partition in &topic.partitions {
                session.partitions.remove(&(topic.topic_id, *partition));
            }
        }
        for topic in &request.topics {
            for asked in &topic.partitions {
                let state = (asked.fetch_offset, asked.current_leader_epoch);
                session.partitions.insert((topic.topic_id, asked.partition), state);
            }
        }
        let until = now + Duration::from_millis(request.max_wait_ms as u64);
        self.polls.push(Poll { ticket, session: id, full, refused, until });
    }

    fn refuse(&mut self, ticket: Ticket, refused: i16) {
        self.ready.push((ticket, Response::Fetch(FetchResponse::default().with_error_code(refused))));
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.polls.iter().map(|poll| poll.until).min()
    }
}

impl Cluster {
    /// Answers the polls that have something to say or whose time is over.
    pub(super) fn fetch_answers(&mut self, now: Duration) -> Answers {
        let mut answers = std::mem::take(&mut self.sessions.ready);
        for poll in std::mem::take(&mut self.sessions.polls) {
            let mut response = FetchResponse::default().with_session_id(poll.session);
            let Some(session) = self.sessions.sessions.get(&poll.session) else {
                response.error_code = code::FETCH_SESSION_ID_NOT_FOUND;
                answers.push((poll.ticket, Response::Fetch(response)));
                continue;
            };
            let mut urgent = false;
            for ((id, partition), (offset, epoch)) in &session.partitions {
                let data = self.fetch(&poll, *id, *partition, *offset, *epoch);
                let speaks = data.error_code != code::NONE
                    || data.records.as_ref().is_some_and(|records| !records.is_empty())
                    || data.preferred_read_replica.0 >= 0;
                urgent |= speaks;
                if speaks || poll.full {
                    response.responses.push(
                        FetchableTopicResponse::default().with_topic_id(*id).with_partitions(vec![data]),
                    );
                }
            }
            if urgent || poll.until <= now {
                answers.push((poll.ticket, Response::Fetch(response)));
            } else {
                self.sessions.polls.push(poll);
            }
        }
        answers
    }

    fn fetch(&self, poll: &Poll, id: Uuid, partition: i32, offset: i64, epoch: i32) -> PartitionData {
        let data = PartitionData::default().with_partition_index(partition).with_high_watermark(-1);
        let named = self.topics.iter().find(|(_, topic)| topic.id == id);
        let Some((name, _)) = named else { return data.with_error_code(code::UNKNOWN_TOPIC_ID) };
        if poll.refused != code::NONE {
            return data.with_error_code(poll.refused);
        }
        let log = match self.led(poll.ticket.node, name, partition, epoch) {
            Ok(log) => log,
            Err(refused) => return data.with_error_code(refused),
        };
        if offset < log.start || offset > log.end {
            return data.with_error_code(code::OFFSET_OUT_OF_RANGE);
        }
        let data = data.with_high_watermark(log.end).with_last_stable_offset(log.end);
        match log.preferred {
            Some(node) if node != poll.ticket.node => {
                data.with_preferred_read_replica(BrokerId(node)).with_records(Some(Default::default()))
            }
            _ => data.with_records(Some(log.read(offset, BATCHES_MAX))),
        }
    }
}
