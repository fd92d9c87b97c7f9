//! A whole consumer before a broker that lies: what is decoded soundly may still be nonsense.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use keylane_protocol::client::consumer::{Consumer, ConsumerConfig, Event, Reset, StartFrom};
use keylane_protocol::client::net::{LinkId, NetConfig};
use keylane_protocol::fetch::FetchConfig;
use keylane_protocol::group::{Assignor, GroupConfig};
use keylane_protocol::metadata::TopicPartition;
use keylane_protocol::offsets::{Isolation, OffsetAndEpoch};

use crate::campaign::{self, Case};
use crate::liar::{Liar, TOPIC};
use crate::rng::Rng;

/// Turns of the loop; the owner ends it in the last quarter.
const TURNS: usize = 48;
/// A frame reader's scratch for each connection, and a connection for each purpose of each broker that is invented.
const MEMORY_MAX: usize = 8 << 20;

fn config(rng: &mut Rng) -> ConsumerConfig {
    let policies = [Reset::Earliest, Reset::Latest, Reset::Fail];
    ConsumerConfig {
        group: GroupConfig {
            group: "g".to_owned(),
            instance_id: rng.one_in(4).then(|| "instance".to_owned()),
            session_timeout: Duration::from_secs(6),
            rebalance_timeout: Duration::from_secs(10),
            heartbeat_interval: Duration::from_millis(500),
            assignors: vec![*rng.pick(&Assignor::ALL)],
            topics: vec![TOPIC.to_owned()],
            rack: rng.one_in(2).then(|| "rack".to_owned()),
        },
        fetch: FetchConfig {
            bytes_max: 1 << 20,
            partition_bytes_max: 1 << 18,
            wait_max: Duration::from_millis(500),
            isolation: *rng.pick(&[Isolation::ReadCommitted, Isolation::ReadUncommitted]),
            rack: None,
        },
        from: *rng.pick(&[StartFrom::Earliest, StartFrom::Latest, StartFrom::Timestamp(7)]),
        out_of_range: *rng.pick(&policies),
        recreated: *rng.pick(&policies),
        want_end: rng.one_in(2),
        revoke_timeout: Duration::from_secs(3),
        topic_timeout: Duration::from_secs(5),
        seed: rng.next(),
    }
}

struct Run<'a> {
    rng: &'a mut Rng,
    case: &'a mut Case,
    consumer: Consumer,
    liar: Liar,
    now: Duration,
    ended: bool,
    /// Where each partition's records are finished up to: an owner that makes no mistake commits just that.
    done: BTreeMap<TopicPartition, i64>,
}

impl Run<'_> {
    fn turn(&mut self) {
        while let Some((link, ..)) = self.consumer.net().poll_connect() {
            if self.rng.one_in(40) {
                self.consumer.net().on_disconnected(link, "refused", self.now);
            } else {
                self.consumer.net().on_connected(link, self.now);
            }
        }
        while self.consumer.net().poll_close().is_some() {}
        let links: Vec<LinkId> = self.consumer.net().links().collect();
        for link in links {
            self.serve(link);
        }
        self.consumer.poll(self.now);
        while let Some(event) = self.consumer.next_event() {
            self.on_event(event);
        }
        let pause = *self.rng.pick(&[1, 5, 20, 100, 100, 500, 3000]);
        self.now += Duration::from_millis(pause);
        self.consumer.net().on_timeout(self.now);
        let _ = (self.consumer.deadline(), self.consumer.net().deadline());
    }

    /// Answers what was asked on a link.
    fn serve(&mut self, link: LinkId) {
        let net = self.consumer.net();
        let mut asked = BytesMut::from(net.outgoing(link));
        net.written(link, asked.len());
        while asked.len() > 4 {
            let length = i32::from_be_bytes([asked[0], asked[1], asked[2], asked[3]]) as usize;
            let frame: Bytes = asked.split_to(4 + length).freeze().slice(4..);
            let answer = self.liar.answer(self.rng, &frame);
            let mut answer = &answer[..];
            while !answer.is_empty() {
                let Some(space) = self.consumer.net().space(link) else { return };
                let count = space.len().min(answer.len());
                space[..count].copy_from_slice(&answer[..count]);
                answer = &answer[count..];
                self.consumer.net().received(link, count, self.now);
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Assigned { added, .. } => {
                self.case.reached("assigned");
                for start in added {
                    assert!(start.position.offset >= 0, "a start is an offset");
                    self.done.insert(start.at, start.position.offset);
                }
            }
            Event::Revoke { partitions, .. } => {
                self.case.reached("revoked");
                let mut done = self.places();
                done.retain(|(at, _)| partitions.contains(at));
                self.consumer.drained(done, self.now);
            }
            Event::Revoked(partitions) | Event::Lost(partitions, _) => {
                self.done.retain(|at, _| !partitions.contains(at));
            }
            Event::Fetched { at, batches, .. } => {
                self.case.reached("fetched");
                let done = self.done.get_mut(&at).expect("a partition that was announced");
                for fetched in batches {
                    let next = fetched.batch.header.next_offset();
                    assert!(next > *done, "batches in order");
                    *done = next;
                }
                let place = place(*done);
                self.consumer.commit([(at.clone(), place)]);
                let fetchable = !self.rng.one_in(4);
                self.consumer.set_fetchable(&at, fetchable);
            }
            Event::Moved { at, position, .. } => {
                self.case.reached("moved");
                assert!(position.offset >= 0, "a position is an offset");
                self.done.insert(at, position.offset);
            }
            Event::Committed(_) => self.case.reached("committed"),
            Event::Broken(_) => self.case.reached("broken"),
            Event::Fatal(_) => {
                self.case.reached("fatal");
                self.ended = true;
            }
            Event::Closed { .. } => {
                self.case.reached("closed");
                self.ended = true;
            }
            _ => {}
        }
    }
}

impl Run<'_> {
    fn places(&self) -> Vec<(TopicPartition, OffsetAndEpoch)> {
        self.done.iter().map(|(at, offset)| (at.clone(), place(*offset))).collect()
    }
}

fn place(offset: i64) -> OffsetAndEpoch {
    OffsetAndEpoch { offset, epoch: 3 }
}

#[test]
fn consumers() {
    let stages = [("assigned", 300), ("fetched", 150), ("committed", 100), ("closed", 100)];
    campaign::run("consumers", 1, &stages, |rng, case| {
        let net = NetConfig {
            bootstrap: vec![("host".to_owned(), 9092)],
            client_id: "hostile".to_owned(),
            request_timeout: Duration::from_secs(10),
            reconnect_backoff: Duration::from_millis(20),
            reconnect_backoff_max: Duration::from_millis(500),
            metadata_age_max: Duration::from_secs(60),
            seed: rng.next(),
        };
        let config = config(rng);
        let lies_one_in = *rng.pick(&[6, 20, 60, 200]);
        case.work(0, MEMORY_MAX, |case| {
            let mut run = Run {
                consumer: Consumer::new(net, config, Duration::ZERO),
                rng,
                case,
                liar: Liar { lies_one_in },
                now: Duration::ZERO,
                ended: false,
                done: BTreeMap::new(),
            };
            for turn in 0..TURNS {
                run.turn();
                if turn == TURNS * 3 / 4 {
                    run.consumer.stop();
                    let deadline = run.now + Duration::from_secs(5);
                    run.consumer.close(run.places(), deadline, run.now);
                }
                if run.ended {
                    break;
                }
            }
        });
    });
}
