//! Which partitions are fetched from which broker, and what the answers mean.

use std::collections::BTreeMap;
use std::time::Duration;

use kafka_protocol::messages::FetchResponse;
use kafka_protocol::messages::fetch_response::PartitionData;

use super::start::{Answer, Phase};
use super::{Consumer, Event, Partition, Tag};
use crate::api::{Api, Response};
use crate::client::net::{Purpose, To};
use crate::error::{Class, Error, classify, code};
use crate::fetch::{self, Wanted};
use crate::metadata::TopicPartition;
use crate::offsets::Isolation;

/// The long poll of a broker some of whose partitions are left out: one that is wanted again must not wait long
/// behind the others.
const SHORT_WAIT: Duration = Duration::from_millis(20);
/// How long a follower is read from before the leader is asked again (as `metadata.max.age.ms` in Java).
const REPLICA_TIME: Duration = Duration::from_secs(300);

impl Consumer {
    pub(super) fn poll_fetch(&mut self, now: Duration) {
        if self.is_ending() {
            return;
        }
        // What each broker is asked for, and whether something of it is left out for now.
        let mut plan: BTreeMap<i32, (BTreeMap<TopicPartition, Wanted>, bool)> = BTreeMap::new();
        let mut leaderless = false;
        for (at, partition) in &mut self.partitions {
            let Some((leader, epoch)) = self.net.metadata().leader(at) else {
                leaderless |= partition.announced;
                continue;
            };
            partition.check_epoch(epoch);
            let node = partition.source(leader, now);
            let (wanted, left_out) = plan.entry(node).or_default();
            if partition.is_fetched() {
                let topic_id = partition.topic_id;
                wanted.insert(
                    at.clone(),
                    Wanted { topic_id, position: partition.position, leader_epoch: epoch },
                );
            } else {
                *left_out = true;
            }
        }
        if leaderless {
            self.net.want_metadata(now);
        }
        let unsettled = !self.membership.is_settled();
        for (node, (wanted, left_out)) in plan {
            let session = self.sessions.entry(node).or_default();
            if session.is_in_flight() || wanted.is_empty() {
                continue;
            }
            let to = To::Node(node, Purpose::Fetch);
            let longest = self.config.fetch.wait_max;
            let wait = if left_out || unsettled { SHORT_WAIT.min(longest) } else { longest };
            let request = session.request(wanted, &self.config.fetch, wait);
            self.net.send(to, request, Tag::Fetch(node), wait, now);
        }
    }

    pub(super) fn on_fetch(&mut self, node: i32, result: Result<Response, Error>, now: Duration) {
        let response = match result {
            Ok(Response::Fetch(response)) => response,
            Ok(other) => unreachable!("{} answers Fetch", other.api()),
            Err(error) => {
                self.sessions.entry(node).or_default().on_failure();
                if matches!(error.class(), Class::Denied | Class::Refused) {
                    return self.fatal(error);
                }
                return self.leave_replica(node, now);
            }
        };
        let asked = match self.sessions.entry(node).or_default().on_answer(&response) {
            Ok(asked) => asked,
            // The session is forgotten: the next request makes a new one.
            Err(code::FETCH_SESSION_ID_NOT_FOUND | code::INVALID_FETCH_SESSION_EPOCH) => return,
            Err(refused) => {
                let error = Error::refused(Api::Fetch, refused, None);
                return match classify(Api::Fetch, refused) {
                    Class::Denied | Class::Refused => self.break_partitions(&self.read_from(node), error),
                    _ => self.doubt_topics_of(node, now),
                };
            }
        };
        self.take_partitions(node, response, &asked, now);
    }

    /// The partitions that are read from a broker.
    fn read_from(&self, node: i32) -> Vec<TopicPartition> {
        self.partitions
            .iter()
            .filter(|(at, partition)| match partition.replica {
                Some((replica, _)) => replica == node,
                None => self.net.metadata().leader(at).is_some_and(|(leader, _)| leader == node),
            })
            .map(|(at, _)| at.clone())
            .collect()
    }

    /// The whole answer of a broker is refused for its topic ids: all its partitions pause until the metadata tells.
    fn doubt_topics_of(&mut self, node: i32, now: Duration) {
        for at in self.read_from(node) {
            self.doubt_topic(&at.topic, now);
            self.pause_partition(&at, now);
        }
    }

    fn leave_replica(&mut self, node: i32, now: Duration) {
        self.net.want_metadata(now);
        for partition in self.partitions.values_mut() {
            if partition.replica.is_some_and(|(replica, _)| replica == node) {
                partition.replica = None;
            }
        }
    }

    fn take_partitions(
        &mut self,
        node: i32,
        response: FetchResponse,
        asked: &BTreeMap<TopicPartition, Wanted>,
        now: Duration,
    ) {
        for topic in response.responses {
            let name = fetch::topic_name(topic.topic.as_str(), topic.topic_id, asked, self.net.metadata());
            let Some(name) = name.map(super::shared) else { continue };
            for data in topic.partitions {
                let at = TopicPartition { topic: name.clone(), partition: data.partition_index };
                // What was not asked for, or was given up or moved since, is not for us any more.
                let Some(wanted) = asked.get(&at) else { continue };
                let current = |p: &Partition| p.announced && !p.revoking && p.topic_id == wanted.topic_id;
                let in_place = |p: &Partition| p.position == wanted.position && p.phase == Phase::Ready;
                if !self.partitions.get(&at).is_some_and(|p| current(p) && in_place(p)) {
                    continue;
                }
                self.take_partition(node, &at, data, now);
            }
        }
    }

    fn take_partition(&mut self, node: i32, at: &TopicPartition, data: PartitionData, now: Duration) {
        let isolation = self.config.fetch.isolation;
        let Some(partition) = self.partitions.get_mut(at) else { return };
        if data.error_code != code::NONE {
            return self.fetch_refused(at, &data, now);
        }
        let readable_end = match isolation {
            Isolation::ReadCommitted if data.last_stable_offset >= 0 => data.last_stable_offset,
            _ => data.high_watermark,
        };
        partition.readable_end = readable_end.max(0);
        if data.preferred_read_replica.0 >= 0 && data.preferred_read_replica.0 != node {
            partition.replica = Some((data.preferred_read_replica.0, now + REPLICA_TIME));
        }
        let records = data.records.unwrap_or_default();
        if records.is_empty() {
            return;
        }
        let aborted = data.aborted_transactions.unwrap_or_default();
        let position = partition.position;
        let (scanned, damage) = fetch::scan(records, position, &aborted, isolation);
        partition.position = scanned.position;
        partition.epoch = scanned.epoch.unwrap_or(partition.epoch);
        if damage.is_some() {
            partition.phase = Phase::Broken;
        }
        if !scanned.batches.is_empty() {
            let (batches, bytes) = (scanned.batches, scanned.bytes);
            self.events.push_back(Event::Fetched { at: at.clone(), batches, bytes });
        }
        if let Some(damage) = damage {
            let error = fetch::damaged(at, scanned.position, damage).at_api(Api::Fetch);
            self.events.push_back(Event::Broken(error));
        }
    }

    fn fetch_refused(&mut self, at: &TopicPartition, data: &PartitionData, now: Duration) {
        let leader = &data.current_leader;
        if leader.leader_id.0 >= 0 {
            self.net.metadata_mut().learn_leader(at, leader.leader_id.0, leader.leader_epoch);
        }
        let Some(partition) = self.partitions.get_mut(at) else { return };
        let from_replica = partition.replica.take().is_some();
        match data.error_code {
            // A follower may lag behind the leader: ask the leader before anything is concluded.
            code::OFFSET_OUT_OF_RANGE if from_replica => self.pause_partition(at, now),
            code::OFFSET_OUT_OF_RANGE => {
                partition.phase = Phase::Range { start: Answer::ToAsk, end: Answer::ToAsk };
            }
            code::FENCED_LEADER_EPOCH | code::UNKNOWN_LEADER_EPOCH => {
                self.net.want_metadata(now);
                self.pause_partition(at, now);
            }
            code::CORRUPT_MESSAGE => {
                partition.phase = Phase::Broken;
                self.events.push_back(Event::Broken(fetch::partition_error(at, data, partition.position)));
            }
            _ => {
                let error = fetch::partition_error(at, data, partition.position);
                self.partition_failed(at, error, now);
            }
        }
    }
}

impl Partition {
    /// Whether the next fetch asks for it.
    fn is_fetched(&self) -> bool {
        self.announced
            && !self.revoking
            && self.fetchable
            && self.phase == Phase::Ready
            && self.not_before.is_zero()
            && self.end.is_none_or(|end| self.position < end)
    }

    /// A new leader epoch calls for a look at whether the new leader's log holds what was read (KIP-320).
    fn check_epoch(&mut self, epoch: i32) {
        if self.phase == Phase::Ready && epoch > self.leader_epoch {
            if self.leader_epoch >= 0 && self.epoch >= 0 {
                self.phase = Phase::Validate { asked: false };
            } else {
                self.leader_epoch = epoch;
            }
        }
    }

    /// The broker to read from: a follower that the leader named, else the leader.
    fn source(&mut self, leader: i32, now: Duration) -> i32 {
        match self.replica {
            Some((replica, until)) if now < until => replica,
            _ => {
                self.replica = None;
                leader
            }
        }
    }
}
