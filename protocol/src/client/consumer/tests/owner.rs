//! The owner of a consumer, in small: takes what is fetched, finishes it at its own pace, drains, commits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::{Consumer, Event};
use super::Random;
use crate::metadata::TopicPartition;
use crate::offsets::OffsetAndEpoch;

/// A partition as its owner has it.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) fetched: i64,
    pub(super) done: i64,
    reported: i64,
    epoch: i32,
    /// Where it ends, if that was asked for.
    pub(super) end: Option<i64>,
    frozen: bool,
}

#[derive(Debug)]
struct Drain {
    partitions: Vec<TopicPartition>,
    until: Duration,
}

/// What has happened to a consumer, for the tests to look at.
#[derive(Debug, Default)]
pub(super) struct Owner {
    pub(super) parts: BTreeMap<TopicPartition, Own>,
    pub(super) log: Vec<(Duration, String)>,
    pub(super) fatal: Option<String>,
    pub(super) closed: Option<bool>,
    pub(super) acked: BTreeMap<TopicPartition, i64>,
    /// The highest offset that was ever said to be done.
    pub(super) done_max: BTreeMap<TopicPartition, i64>,
    /// Offsets that were finished, by anybody's count at least once.
    pub(super) finished: BTreeSet<(TopicPartition, i64)>,
    pub(super) broken: usize,
    pub(super) notices: Vec<String>,
    /// Finishes nothing while true.
    pub(super) stuck: bool,
    /// Time between two goes.
    pub(super) pace: Duration,
    /// How long a drain takes.
    pub(super) drain: Duration,
    due: Option<Duration>,
    drain_in: Option<Drain>,
}

impl Owner {
    pub(super) fn new(pace: Duration, drain: Duration) -> Self {
        Owner { pace, drain, ..Owner::default() }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        let drain = self.drain_in.as_ref().map(|drain| drain.until);
        [self.due.filter(|_| !self.parts.is_empty() && !self.stuck), drain].into_iter().flatten().min()
    }

    /// Events first, then work that is due.
    pub(super) fn turn(&mut self, consumer: &mut Consumer, random: &mut Random, now: Duration) {
        while let Some(event) = consumer.next_event() {
            self.take(event, consumer, now);
        }
        if let Some(drain) = self.drain_in.take_if(|drain| drain.until <= now) {
            let offsets = self.offsets_of(&drain.partitions);
            consumer.drained(offsets, now);
        }
        if self.due.is_none_or(|due| due <= now) {
            self.due = Some(now + self.pace * (50 + random.below(100)) as u32 / 100);
            self.work(consumer, random, now);
        }
    }

    fn work(&mut self, consumer: &mut Consumer, random: &mut Random, now: Duration) {
        if self.stuck || consumer.lease_until().is_some_and(|until| until <= now) {
            return;
        }
        let mut news = Vec::new();
        for (at, own) in &mut self.parts {
            if own.frozen || own.done >= own.fetched {
                continue;
            }
            let to = own.done + 1 + random.below((own.fetched - own.done) as u64) as i64;
            self.finished.extend((own.done..to).map(|offset| (at.clone(), offset)));
            own.done = to;
            let most = self.done_max.entry(at.clone()).or_insert(to);
            *most = to.max(*most);
            if random.below(3) > 0 {
                own.reported = to;
                news.push((at.clone(), OffsetAndEpoch { offset: to, epoch: own.epoch }));
            }
        }
        consumer.commit(news);
        for (at, own) in &mut self.parts {
            consumer.set_fetchable(at, own.fetched - own.done < 40);
            if own.reported < own.done && own.done == own.fetched {
                own.reported = own.done;
                consumer.commit([(at.clone(), OffsetAndEpoch { offset: own.done, epoch: own.epoch })]);
            }
        }
    }

    /// What is done of these partitions.
    pub(super) fn offsets_of(&self, partitions: &[TopicPartition]) -> Vec<(TopicPartition, OffsetAndEpoch)> {
        let own = partitions.iter().filter_map(|at| Some((at, self.parts.get(at)?)));
        own.map(|(at, own)| (at.clone(), OffsetAndEpoch { offset: own.done, epoch: own.epoch })).collect()
    }

    /// What is done of all.
    pub(super) fn offsets(&self) -> Vec<(TopicPartition, OffsetAndEpoch)> {
        let all: Vec<TopicPartition> = self.parts.keys().cloned().collect();
        self.offsets_of(&all)
    }

    fn say(&mut self, now: Duration, what: String) {
        self.log.push((now, what));
    }

    fn take(&mut self, event: Event, consumer: &mut Consumer, now: Duration) {
        match event {
            Event::Assigned { generation, added, kept } => {
                let names: Vec<String> =
                    added.iter().map(|s| format!("{}@{}", s.at, s.position.offset)).collect();
                self.say(now, format!("assigned {generation} +{} kept {}", names.join(","), kept.len()));
                for start in added {
                    let at = start.position.offset;
                    let epoch = start.position.epoch;
                    let own =
                        Own { fetched: at, done: at, reported: at, epoch, end: start.end, frozen: false };
                    assert!(self.parts.insert(start.at.clone(), own).is_none(), "{} twice", start.at);
                    consumer.set_fetchable(&start.at, true);
                }
                for at in kept {
                    assert!(self.parts.contains_key(&at), "{at} kept and not known");
                }
            }
            Event::Revoke { partitions, deadline } => {
                self.say(now, format!("revoke {}", partitions.len()));
                for at in &partitions {
                    self.parts.get_mut(at).expect("revoked what is owned").frozen = true;
                }
                self.drain_in = Some(Drain { partitions, until: deadline.min(now + self.drain) });
            }
            Event::Revoked(partitions) => {
                self.say(now, format!("revoked {}", partitions.len()));
                self.drop_all(&partitions);
            }
            Event::Lost(partitions, reason) => {
                self.say(now, format!("lost {} {reason:?}", partitions.len()));
                self.drop_all(&partitions);
                self.drain_in = None;
            }
            Event::Fetched { at, batches, .. } => {
                let own = self.parts.get_mut(&at).expect("fetched what is owned");
                assert!(!own.frozen, "{at} fetched while it is revoked");
                for batch in batches {
                    let header = &batch.batch.header;
                    let first = header.base_offset;
                    assert!(first <= own.fetched, "{at}: {first} skips what follows {}", own.fetched);
                    assert!(header.next_offset() > own.fetched, "{at}: {first} again at {}", own.fetched);
                    own.fetched = header.next_offset();
                    own.epoch = header.partition_leader_epoch;
                }
            }
            Event::Moved { at, position, back, end, why } => {
                self.say(now, format!("moved {at} to {} back {back}: {why}", position.offset));
                let own = self.parts.get_mut(&at).expect("moved what is owned");
                own.fetched = position.offset;
                own.end = end;
                own.epoch = position.epoch;
                if back {
                    (own.done, own.reported) = (position.offset, position.offset);
                }
            }
            Event::Committed(offsets) => self.acked.extend(offsets),
            Event::Closed { committed } => self.closed = Some(committed),
            Event::Broken(error) => {
                self.broken += 1;
                self.say(now, error.to_string());
            }
            Event::Fatal(error) => {
                self.say(now, format!("fatal {error}"));
                self.fatal = Some(error.to_string());
            }
            Event::Notice(text) => self.notices.push(text),
            Event::TopicMissing(topic) => self.say(now, format!("missing {topic}")),
            Event::TopicFound(topic) => self.say(now, format!("found {topic}")),
            Event::BrokerDown(..) | Event::BrokerUp(_) => {}
        }
    }

    fn drop_all(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            assert!(self.parts.remove(at).is_some(), "{at} is gone and was not owned");
        }
    }

    /// Whether it was told of something broken, in these words.
    pub(super) fn heard_broken(&self, words: &str) -> bool {
        self.broken > 0 && self.log.iter().any(|(_, text)| text.contains(words))
    }

    /// The time and text of the first entry from `from` on that begins so.
    pub(super) fn said(&self, from: Duration, start: &str) -> Option<(Duration, &str)> {
        let entry = self.log.iter().find(|(at, text)| *at >= from && text.starts_with(start));
        entry.map(|(at, text)| (*at, text.as_str()))
    }
}
