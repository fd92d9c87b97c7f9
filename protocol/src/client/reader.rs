//! Reads a range of offsets of some partitions once, without a group.
//!
//! For commands that look at a topic up to where it ended. Guarantees: the chunks of a partition come in order and
//! without a gap, from the start of its range to the end; nothing is fetched while a chunk waits for its owner, so what
//! is held is one answer of each leader at most. A reader that gets nowhere for as long as the owner has patience fails
//! with the reason, and so does one that is refused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::messages::FetchResponse;
use kafka_protocol::messages::fetch_response::PartitionData;

use super::net::{Interest, Net, NetConfig, NetEvent, Purpose, To, backoff};
use crate::api::{Api, Response};
use crate::error::{Class, Error, Fault, classify, code};
use crate::fetch::{self, FetchConfig, FetchedBatch, Session, Wanted};
use crate::metadata::{TopicId, TopicPartition};

/// Names a Fetch by its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(i32);

/// Offsets from `from` up to, not including, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first offset.
    pub from: i64,
    /// The first offset behind the last.
    pub end: i64,
}

/// A part of a partition's range.
#[derive(Debug)]
pub struct Chunk {
    /// Which partition.
    pub at: TopicPartition,
    /// What of the range it covers: records outside, at the borders of the batches, are not part of it.
    pub range: Range,
    /// Whole batches in order.
    pub batches: Vec<FetchedBatch>,
}

#[derive(Debug)]
struct Partition {
    position: i64,
    end: i64,
    /// The topic as it was first seen: offsets mean nothing in one that is made again.
    topic_id: Option<TopicId>,
    not_before: Duration,
    failures: u32,
}

const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The reader.
pub struct Reader {
    net: Net<Tag>,
    config: FetchConfig,
    partitions: BTreeMap<TopicPartition, Partition>,
    sessions: BTreeMap<i32, Session>,
    chunks: VecDeque<Chunk>,
    failure: Option<Error>,
    last_error: Option<Error>,
    patience: Duration,
    /// When something last went on.
    moved_at: Duration,
    polled_at: Duration,
    random: u64,
}

impl Reader {
    /// A reader of these ranges, which begins with the first [`Reader::poll`].
    pub fn new(
        net: NetConfig,
        config: FetchConfig,
        ranges: impl IntoIterator<Item = (TopicPartition, Range)>,
        patience: Duration,
        now: Duration,
    ) -> Reader {
        let random = net.seed;
        let mut net = Net::new(net);
        let partitions: BTreeMap<TopicPartition, Partition> = ranges
            .into_iter()
            .filter(|(_, range)| range.from < range.end)
            .map(|(at, Range { from, end })| {
                let not_before = Duration::ZERO;
                (at, Partition { position: from, end, topic_id: None, not_before, failures: 0 })
            })
            .collect();
        let topics: BTreeSet<String> = partitions.keys().map(|at| at.topic.to_string()).collect();
        net.set_interest(Interest::Topics(topics), now);
        Reader {
            net,
            config,
            partitions,
            sessions: BTreeMap::new(),
            chunks: VecDeque::new(),
            failure: None,
            last_error: None,
            patience,
            moved_at: now,
            polled_at: now,
            random,
        }
    }

    /// The connections.
    pub fn net(&mut self) -> &mut Net<Tag> {
        &mut self.net
    }

    /// The next chunk.
    pub fn next_chunk(&mut self) -> Option<Chunk> {
        self.chunks.pop_front()
    }

    /// Whether every range was read and taken.
    pub fn is_done(&self) -> bool {
        self.chunks.is_empty() && self.partitions.is_empty()
    }

    /// Why it cannot go on; the chunks before that are still to be had.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref().filter(|_| self.chunks.is_empty())
    }

    /// The owner waits for a chunk from now on: patience begins anew.
    pub fn resume(&mut self, now: Duration) {
        self.moved_at = now;
    }

    /// Takes what the connections brought and sends what is due.
    pub fn poll(&mut self, now: Duration) {
        self.polled_at = now;
        while let Some(event) = self.net.next_event() {
            match event {
                NetEvent::Outcome(Tag(node), result) => self.on_fetch(node, result, now),
                NetEvent::Metadata(_) | NetEvent::Up(_) => {}
                NetEvent::Down(broker, why) => {
                    self.last_error = Some(Error::new(Fault::Disconnected(why)).at_broker(broker));
                }
            }
        }
        if self.failure.is_some() || !self.chunks.is_empty() || self.partitions.is_empty() {
            return;
        }
        if self.moved_at + self.patience <= now {
            let error = self.last_error.take().or_else(|| self.net.last_error().cloned());
            self.failure = Some(error.unwrap_or_else(|| Error::new(Fault::TimedOut(self.patience))));
            return;
        }
        self.send(now);
    }

    /// When [`Reader::poll`] has something to do though nothing was received.
    pub fn deadline(&self) -> Option<Duration> {
        if self.failure.is_some() || self.partitions.is_empty() {
            return None;
        }
        let retries = self.partitions.values().map(|partition| partition.not_before);
        let retries = retries.filter(|due| *due > self.polled_at);
        retries.chain([self.moved_at + self.patience]).min()
    }

    fn send(&mut self, now: Duration) {
        let mut plan: BTreeMap<i32, BTreeMap<TopicPartition, Wanted>> = BTreeMap::new();
        let mut leaderless = false;
        for (at, partition) in &mut self.partitions {
            if partition.not_before > now {
                continue;
            }
            let metadata = self.net.metadata();
            let (Some(topic), Some((node, leader_epoch))) = (metadata.topic(&at.topic), metadata.leader(at))
            else {
                leaderless = true;
                continue;
            };
            let topic_id = *partition.topic_id.get_or_insert(topic.id);
            let wanted = Wanted { topic_id, position: partition.position, leader_epoch };
            plan.entry(node).or_default().insert(at.clone(), wanted);
        }
        if leaderless {
            self.net.want_metadata(now);
        }
        for (node, wanted) in plan {
            let session = self.sessions.entry(node).or_default();
            if session.is_in_flight() {
                continue;
            }
            let wait = self.config.wait_max;
            let request = session.request(wanted, &self.config, wait);
            self.net.send(To::Node(node, Purpose::Fetch), request, Tag(node), wait, now);
        }
    }

    fn on_fetch(&mut self, node: i32, result: Result<Response, Error>, now: Duration) {
        let session = self.sessions.entry(node).or_default();
        let response = match result {
            Ok(Response::Fetch(response)) => response,
            Ok(other) => unreachable!("{} answers Fetch", other.api()),
            Err(error) => {
                session.on_failure();
                return self.node_failed(node, error, now);
            }
        };
        match session.on_answer(&response) {
            Ok(asked) => self.take(response, &asked, now),
            // The session is forgotten: the next request makes a new one.
            Err(code::FETCH_SESSION_ID_NOT_FOUND | code::INVALID_FETCH_SESSION_EPOCH) => {}
            Err(refused) => self.node_failed(node, Error::refused(Api::Fetch, refused, None), now),
        }
    }

    /// A whole answer failed: all partitions of the node wait.
    fn node_failed(&mut self, node: i32, error: Error, now: Duration) {
        if matches!(error.class(), Class::Denied | Class::Refused) {
            self.failure.get_or_insert(error);
            return;
        }
        let metadata = self.net.metadata();
        let here = |at: &&TopicPartition| metadata.leader(at).is_none_or(|(leader, _)| leader == node);
        let here: Vec<TopicPartition> = self.partitions.keys().filter(here).cloned().collect();
        here.iter().for_each(|at| self.pause(at, now));
        self.last_error = Some(error);
    }

    fn pause(&mut self, at: &TopicPartition, now: Duration) {
        self.net.want_metadata(now);
        if let Some(partition) = self.partitions.get_mut(at) {
            partition.failures += 1;
            partition.not_before = now + backoff(PAUSE, PAUSE_MAX, partition.failures, &mut self.random);
        }
    }

    fn take(&mut self, response: FetchResponse, asked: &BTreeMap<TopicPartition, Wanted>, now: Duration) {
        for topic in response.responses {
            let name = fetch::topic_name(topic.topic.as_str(), topic.topic_id, asked, self.net.metadata());
            let Some(name) = name.map(Arc::<str>::from) else { continue };
            for data in topic.partitions {
                let at = TopicPartition { topic: name.clone(), partition: data.partition_index };
                if asked.contains_key(&at) {
                    self.take_partition(&at, data, now);
                }
            }
        }
    }

    fn take_partition(&mut self, at: &TopicPartition, data: PartitionData, now: Duration) {
        let Some(partition) = self.partitions.get_mut(at) else { return };
        if data.error_code != code::NONE {
            let error = fetch::partition_error(at, &data, partition.position);
            let leader = &data.current_leader;
            if leader.leader_id.0 >= 0 {
                self.net.metadata_mut().learn_leader(at, leader.leader_id.0, leader.leader_epoch);
            }
            match classify(Api::Fetch, data.error_code) {
                Class::Denied | Class::Refused => {
                    self.failure.get_or_insert(error);
                }
                _ => {
                    self.pause(at, now);
                    self.last_error = Some(error);
                }
            }
            return;
        }
        partition.failures = 0;
        let aborted = data.aborted_transactions.unwrap_or_default();
        let from = partition.position;
        let (scanned, damage) =
            fetch::scan(data.records.unwrap_or_default(), from, &aborted, self.config.isolation);
        if scanned.position > from {
            let end = scanned.position.min(partition.end);
            partition.position = scanned.position;
            let (range, batches) = (Range { from, end }, scanned.batches);
            self.moved_at = now;
            self.last_error = None;
            self.chunks.push_back(Chunk { at: at.clone(), range, batches });
            if scanned.position >= partition.end {
                self.partitions.remove(at);
            }
        }
        if let Some(damage) = damage {
            self.failure.get_or_insert(fetch::damaged(at, scanned.position, damage).at_api(Api::Fetch));
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kafka_protocol::messages::TopicName;
    use kafka_protocol::messages::fetch_response::FetchableTopicResponse;

    use super::*;
    use crate::api::text;
    use crate::offsets::Isolation;
    use crate::records::{BatchBuilder, Codec, ProducerStamp};

    const PATIENCE: Duration = Duration::from_secs(10);

    fn reader(ranges: &[(i32, i64, i64)]) -> Reader {
        let net = NetConfig {
            bootstrap: vec![("broker".to_owned(), 9092)],
            client_id: "test".to_owned(),
            request_timeout: PATIENCE,
            reconnect_backoff: PAUSE,
            reconnect_backoff_max: PAUSE_MAX,
            metadata_age_max: PATIENCE,
            seed: 1,
        };
        let fetch = FetchConfig {
            bytes_max: 1 << 20,
            partition_bytes_max: 1 << 20,
            wait_max: PAUSE,
            isolation: Isolation::ReadUncommitted,
            rack: None,
        };
        let ranges = ranges.iter().map(|(at, from, end)| (place(*at), Range { from: *from, end: *end }));
        Reader::new(net, fetch, ranges, PATIENCE, Duration::ZERO)
    }

    fn place(partition: i32) -> TopicPartition {
        TopicPartition::new("t", partition)
    }

    /// A batch of `count` records from `base` on.
    fn batch(base: i64, count: usize) -> Bytes {
        let mut builder = BatchBuilder::new();
        (0..count).for_each(|_| builder.append(None, Some(b"x"), &[], 0).expect("small"));
        let mut bytes = builder.finish(Codec::None, &ProducerStamp::NONE).expect("packed").to_vec();
        bytes[..8].copy_from_slice(&base.to_be_bytes());
        bytes.into()
    }

    fn answer(reader: &mut Reader, partition: i32, records: Bytes, error_code: i16) {
        let data = PartitionData::default()
            .with_partition_index(partition)
            .with_error_code(error_code)
            .with_records(Some(records));
        let topic =
            FetchableTopicResponse::default().with_topic(TopicName(text("t"))).with_partitions(vec![data]);
        let wanted = Wanted { topic_id: TopicId::nil(), position: 0, leader_epoch: 0 };
        let asked = BTreeMap::from([(place(partition), wanted)]);
        reader.take(FetchResponse::default().with_responses(vec![topic]), &asked, Duration::ZERO);
    }

    #[test]
    fn chunks_cover_the_range_and_no_more() {
        let mut reader = reader(&[(0, 2, 7), (1, 5, 5)]);
        answer(&mut reader, 0, batch(0, 4), code::NONE);
        // Sent again by a broker that forgot: nothing new.
        answer(&mut reader, 0, batch(0, 4), code::NONE);
        answer(&mut reader, 0, Bytes::new(), code::NONE);
        assert!(!reader.is_done());
        answer(&mut reader, 0, batch(4, 6), code::NONE);
        let ranges: Vec<Range> =
            std::iter::from_fn(|| reader.next_chunk()).map(|chunk| chunk.range).collect();
        assert_eq!(ranges, [Range { from: 2, end: 4 }, Range { from: 4, end: 7 }]);
        assert!(reader.is_done());
    }

    #[test]
    fn what_came_before_a_failure_is_still_to_be_had() {
        let mut reader = reader(&[(0, 0, 9), (1, 0, 9)]);
        answer(&mut reader, 0, batch(0, 4), code::NONE);
        answer(&mut reader, 1, Bytes::new(), code::NOT_LEADER_OR_FOLLOWER);
        assert!(reader.failure.is_none(), "that is tried again");
        answer(&mut reader, 1, Bytes::new(), code::TOPIC_AUTHORIZATION_FAILED);
        assert!(reader.failure().is_none());
        assert!(reader.next_chunk().is_some());
        let code = reader.failure().and_then(Error::code);
        assert_eq!(code, Some(code::TOPIC_AUTHORIZATION_FAILED));
        // A damaged batch behind a good one.
        let mut damaged = self::reader(&[(0, 0, 9)]);
        let mut bytes = [batch(0, 4), batch(4, 4)].concat();
        let at = bytes.len() / 2 + 16;
        bytes[at] = 9;
        answer(&mut damaged, 0, bytes.into(), code::NONE);
        assert_eq!(damaged.next_chunk().map(|chunk| chunk.range), Some(Range { from: 0, end: 4 }));
        assert!(damaged.failure().is_some());
    }

    #[test]
    fn patience_counts_from_when_the_owner_waits() {
        let mut reader = reader(&[(0, 0, 9)]);
        reader.poll(PATIENCE - PAUSE);
        assert!(reader.failure().is_none());
        reader.resume(PATIENCE);
        reader.poll(PATIENCE + PAUSE);
        assert!(reader.failure().is_none());
        assert_eq!(reader.deadline(), Some(2 * PATIENCE));
        reader.poll(2 * PATIENCE);
        assert!(reader.failure().is_some());
    }
}
