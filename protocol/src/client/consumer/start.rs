//! Where each partition begins, and where it goes on when its position is outside the log.
//!
//! Committed offsets come first, then the log's start, end or a timestamp for those without one. A partition is
//! announced to the owner when its start is known, and fetched only after that.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Consumer, Event, Partition, Reset, Start, StartFrom, Tag};
use crate::api::{Api, Response};
use crate::client::net::{Purpose, To};
use crate::error::{Class, Error, Fault, classify};
use crate::metadata::TopicPartition;
use crate::offsets::{self, EARLIEST, Isolation, LATEST, OffsetAndEpoch};

/// What is still to be learned before a partition can be fetched.
#[derive(Debug, PartialEq)]
pub(super) enum Phase {
    /// The group's committed offset.
    Committed { asked: bool },
    /// An offset by time. `moved` says why the position is being moved, for a partition that was read before.
    Begin { timestamp: i64, asked: bool, moved: Option<String> },
    /// The position is outside the log: its start and its end decide.
    Range { start: Answer, end: Answer },
    /// The position of a partition that was read before is about to be moved back there; where the log that is there
    /// now ends is asked first.
    Moving { to: OffsetAndEpoch, why: String },
    /// The leader's epoch has changed: does its log still hold what we read?
    Validate { asked: bool },
    /// Nothing.
    Ready,
    /// It cannot be read on.
    Broken,
}

/// A question of which the answer is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    ToAsk,
    Asked,
    Known(i64),
}

/// What a ListOffsets is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// The offset to begin at.
    Begin,
    /// The end at the time of the assignment.
    End,
    /// The start of the log, for a position outside of it.
    RangeStart,
    /// The end of the log, for a position outside of it.
    RangeEnd,
}

/// One line of a ListOffsets request to be.
struct Asked {
    at: TopicPartition,
    epoch: i32,
    timestamp: i64,
    incarnation: u64,
}

/// Pause before a question is asked again.
const PAUSE: Duration = Duration::from_millis(100);
/// Partitions whose start is known are announced after this long, even if others are still unknown.
const ANNOUNCE_WAIT: Duration = Duration::from_millis(500);

impl Partition {
    pub(super) fn is_ready(&self, want_end: bool) -> bool {
        self.phase == Phase::Ready && (self.end.is_some() || !want_end)
    }

    /// Whether another position is being looked up: what is finished now belongs to a log that is no more.
    pub(super) fn is_moving_back(&self) -> bool {
        matches!(self.phase, Phase::Begin { moved: Some(_), .. } | Phase::Moving { .. })
    }

    /// When a pause of this partition ends.
    pub(super) fn deadline(&self) -> Option<Duration> {
        (self.not_before > Duration::ZERO).then_some(self.not_before)
    }

    /// Answers to what was asked before are dropped, so it is asked again.
    fn begin_incarnation(&mut self, incarnation: u64) {
        self.incarnation = incarnation;
        self.end_asked = false;
    }

    fn may_be_announced(&self, want_end: bool) -> bool {
        !self.announced && !self.revoking && self.is_ready(want_end)
    }

    fn asks(&self, question: Question) -> Option<i64> {
        match (&self.phase, question) {
            (Phase::Begin { timestamp, asked: false, .. }, Question::Begin) => Some(*timestamp),
            (Phase::Range { start: Answer::ToAsk, .. }, Question::RangeStart) => Some(EARLIEST),
            (Phase::Range { end: Answer::ToAsk, .. }, Question::RangeEnd) => Some(LATEST),
            (Phase::Broken, _) => None,
            (_, Question::End) if self.end.is_none() && !self.end_asked => Some(LATEST),
            _ => None,
        }
    }
}

impl Consumer {
    pub(super) fn poll_start(&mut self, now: Duration) {
        for partition in self.partitions.values_mut() {
            if partition.not_before <= now {
                partition.not_before = Duration::ZERO;
            }
        }
        if !self.is_ending() {
            self.ask_committed(now);
            self.ask_offsets(now);
            self.ask_epoch_ends(now);
            self.announce(now);
        }
    }

    // ---- announcing ----

    pub(super) fn announce_deadline(&self) -> Option<Duration> {
        let some_ready = self.partitions.values().any(|p| p.may_be_announced(self.config.want_end));
        self.unannounced_since.filter(|_| some_ready && !self.is_ending()).map(|since| since + ANNOUNCE_WAIT)
    }

    fn announce(&mut self, now: Duration) {
        let Some(since) = self.unannounced_since else { return };
        let want_end = self.config.want_end;
        let waiting = |p: &Partition| !p.announced && !p.revoking && !p.is_ready(want_end);
        let all_ready = !self.partitions.values().any(waiting);
        let some_ready = self.partitions.values().any(|p| p.may_be_announced(want_end));
        let late = since + ANNOUNCE_WAIT <= now;
        if !(all_ready || some_ready && late) {
            return;
        }
        let mut added = Vec::new();
        let mut kept = Vec::new();
        for (at, partition) in &mut self.partitions {
            if partition.announced {
                if !partition.revoking {
                    kept.push(at.clone());
                }
            } else if partition.may_be_announced(want_end) {
                partition.announced = true;
                let position = OffsetAndEpoch { offset: partition.position, epoch: partition.epoch };
                added.push(Start { at: at.clone(), position, end: partition.end, is_new: partition.is_new });
            }
        }
        if all_ready {
            self.unannounced_since = None;
        }
        let generation = self.membership.identity().generation;
        self.events.push_back(Event::Assigned { generation, added, kept });
    }

    // ---- the group's committed offsets ----

    fn ask_committed(&mut self, now: Duration) {
        let mut wanted = Vec::new();
        for (at, partition) in &self.partitions {
            if partition.phase == (Phase::Committed { asked: false }) && partition.not_before.is_zero() {
                wanted.push((at.clone(), partition.incarnation));
            }
        }
        if wanted.is_empty() {
            return;
        }
        let Ok(Some(node)) = self.net.coordinator(&self.config.group.group, now) else { return };
        let to = To::Node(node, Purpose::Group);
        for (at, _) in &wanted {
            if let Some(partition) = self.partitions.get_mut(at) {
                partition.phase = Phase::Committed { asked: true };
            }
        }
        let names: Vec<TopicPartition> = wanted.iter().map(|(at, _)| at.clone()).collect();
        // Offsets under an open transaction are never guessed at, whatever this run's isolation (CASES 13).
        let request = offsets::offset_fetch_request(&self.config.group.group, Some(&names), true);
        self.net.send(to, request, Tag::OffsetFetch(wanted), Duration::ZERO, now);
    }

    pub(super) fn on_offset_fetch(
        &mut self,
        asked: &[(TopicPartition, u64)],
        result: Result<Response, Error>,
        now: Duration,
    ) {
        let answers = match result {
            Ok(Response::OffsetFetch(response)) => match offsets::read_offset_fetch(response) {
                Ok(answers) => answers.into_iter().collect::<BTreeMap<_, _>>(),
                Err(code) => {
                    let error =
                        Error::refused(Api::OffsetFetch, code, None).at_group(&self.config.group.group);
                    return self.offset_fetch_failed(asked, error, now);
                }
            },
            Ok(other) => unreachable!("{} answers OffsetFetch", other.api()),
            Err(error) => return self.offset_fetch_failed(asked, error, now),
        };
        for (at, incarnation) in asked {
            let Some(partition) = self.partitions.get_mut(at).filter(|p| p.incarnation == *incarnation)
            else {
                continue;
            };
            match answers.get(at) {
                Some(Ok(Some(committed))) => {
                    partition.position = committed.offset;
                    partition.epoch = committed.epoch;
                    // The log may have been cut since (KIP-320).
                    let is_known = committed.epoch >= 0;
                    partition.phase = if is_known { Phase::Validate { asked: false } } else { Phase::Ready };
                }
                Some(Ok(None)) => {
                    partition.is_new = !matches!(self.config.from, StartFrom::Earliest);
                    let timestamp = match self.config.from {
                        StartFrom::Earliest => EARLIEST,
                        StartFrom::Latest => LATEST,
                        StartFrom::Timestamp(ms) => ms,
                    };
                    partition.phase = Phase::Begin { timestamp, asked: false, moved: None };
                }
                Some(Err(code)) => {
                    let error = Error::refused(Api::OffsetFetch, *code, None)
                        .at_partition(&at.topic, at.partition)
                        .at_group(&self.config.group.group);
                    self.offset_fetch_failed(&[(at.clone(), *incarnation)], error, now);
                }
                None => {
                    let error = Error::peer("an answer without a partition that was asked for")
                        .at_api(Api::OffsetFetch)
                        .at_partition(&at.topic, at.partition);
                    return self.fatal(error);
                }
            }
        }
    }

    fn offset_fetch_failed(&mut self, asked: &[(TopicPartition, u64)], error: Error, now: Duration) {
        match error.class() {
            Class::Denied | Class::Refused if error.context.partition.is_some() => {
                let partitions: Vec<TopicPartition> = asked.iter().map(|(at, _)| at.clone()).collect();
                return self.break_partitions(&partitions, error);
            }
            Class::Denied | Class::Refused => return self.fatal(error),
            Class::Coordinator => self.net.forget_coordinator(&self.config.group.group, now),
            Class::Retry if error.code().is_none() => {
                self.net.forget_coordinator(&self.config.group.group, now)
            }
            _ => {}
        }
        for (at, incarnation) in asked {
            if let Some(partition) = self.partitions.get_mut(at).filter(|p| p.incarnation == *incarnation) {
                partition.phase = Phase::Committed { asked: false };
                partition.not_before = now + PAUSE;
            }
        }
    }

    // ---- offsets of the log ----

    fn ask_offsets(&mut self, now: Duration) {
        let mut questions: BTreeMap<(i32, Question), Vec<Asked>> = BTreeMap::new();
        let mut leaderless = false;
        for (at, partition) in &mut self.partitions {
            if !partition.not_before.is_zero() {
                continue;
            }
            for question in [Question::Begin, Question::End, Question::RangeStart, Question::RangeEnd] {
                if question == Question::End && !self.config.want_end {
                    continue;
                }
                let Some(timestamp) = partition.asks(question) else { continue };
                let Some((node, epoch)) = self.net.metadata().leader(at) else {
                    partition.not_before = now + PAUSE;
                    leaderless = true;
                    break;
                };
                let wanted = Asked { at: at.clone(), epoch, timestamp, incarnation: partition.incarnation };
                questions.entry((node, question)).or_default().push(wanted);
            }
        }
        if leaderless {
            self.net.want_metadata(now);
        }
        for ((node, question), wanted) in questions {
            let mut asked = Vec::new();
            let mut list = Vec::new();
            for Asked { at, epoch, timestamp, incarnation } in wanted {
                self.mark_asked(&at, question, true);
                asked.push((at.clone(), incarnation));
                list.push((at, epoch, timestamp));
            }
            let isolation = match question {
                Question::RangeStart | Question::RangeEnd => Isolation::ReadUncommitted,
                Question::Begin | Question::End => self.config.fetch.isolation,
            };
            let request = offsets::list_offsets_request(&list, isolation);
            let tag = Tag::ListOffsets(question, asked);
            self.net.send(To::Node(node, Purpose::Main), request, tag, Duration::ZERO, now);
        }
    }

    fn mark_asked(&mut self, at: &TopicPartition, question: Question, mark: bool) {
        let Some(partition) = self.partitions.get_mut(at) else { return };
        let answer = if mark { Answer::Asked } else { Answer::ToAsk };
        match (&mut partition.phase, question) {
            (_, Question::End) => partition.end_asked = mark,
            (Phase::Begin { asked, .. }, Question::Begin) => *asked = mark,
            (Phase::Range { start, .. }, Question::RangeStart) => *start = answer,
            (Phase::Range { end, .. }, Question::RangeEnd) => *end = answer,
            _ => {}
        }
    }

    pub(super) fn on_list_offsets(
        &mut self,
        question: Question,
        asked: &[(TopicPartition, u64)],
        result: Result<Response, Error>,
        now: Duration,
    ) {
        let answers: BTreeMap<_, _> = match result {
            Ok(Response::ListOffsets(response)) => {
                offsets::read_list_offsets(&response).into_iter().collect()
            }
            Ok(other) => unreachable!("{} answers ListOffsets", other.api()),
            Err(error) if matches!(error.class(), Class::Denied | Class::Refused) => {
                return self.fatal(error);
            }
            Err(_) => BTreeMap::new(),
        };
        for (at, incarnation) in asked {
            if self.partitions.get(at).is_none_or(|p| p.incarnation != *incarnation) {
                continue;
            }
            self.mark_asked(at, question, false);
            match answers.get(at) {
                Some(Ok(offset)) => self.on_log_offset(at, question, *offset, now),
                Some(Err(code)) => {
                    let error = Error::refused(Api::ListOffsets, *code, None);
                    self.partition_failed(at, error.at_partition(&at.topic, at.partition), now);
                }
                None => self.pause_partition(at, now),
            }
        }
    }

    fn on_log_offset(
        &mut self,
        at: &TopicPartition,
        question: Question,
        found: OffsetAndEpoch,
        now: Duration,
    ) {
        let Some(partition) = self.partitions.get_mut(at) else { return };
        match (question, &mut partition.phase) {
            (Question::End, phase) => {
                partition.end = Some(found.offset.max(0));
                if let Phase::Moving { to, why } = phase {
                    let (to, why) = (*to, std::mem::take(why));
                    partition.phase = Phase::Ready;
                    self.go_to(at, to, true, &why);
                }
            }
            (Question::Begin, Phase::Begin { timestamp, moved, .. }) => {
                if found.offset < 0 {
                    // No record is as young as the timestamp: begin at the end.
                    *timestamp = LATEST;
                    return;
                }
                let moved = moved.take();
                partition.phase = Phase::Ready;
                match moved {
                    Some(why) => self.move_to(at, found, true, &why),
                    None => {
                        partition.position = found.offset;
                        partition.epoch = found.epoch;
                    }
                }
            }
            (Question::RangeStart, Phase::Range { start, .. }) => {
                *start = Answer::Known(found.offset);
                self.judge_range(at, now);
            }
            (Question::RangeEnd, Phase::Range { end, .. }) => {
                *end = Answer::Known(found.offset);
                self.judge_range(at, now);
            }
            _ => {}
        }
    }

    /// The position was refused as out of range: below the start, records are gone; inside, the broker was behind;
    /// above the end, the log was cut and the epochs tell where.
    fn judge_range(&mut self, at: &TopicPartition, now: Duration) {
        let Some(partition) = self.partitions.get_mut(at) else { return };
        let Phase::Range { start: Answer::Known(start), end: Answer::Known(end) } = partition.phase else {
            return;
        };
        let position = partition.position;
        if position < start {
            let gone = start - position;
            let what =
                format!("{gone} records before offset {start} are gone (deleted by retention or by hand)");
            return match self.config.out_of_range {
                Reset::Earliest => {
                    partition.phase = Phase::Ready;
                    self.move_to(at, OffsetAndEpoch { offset: start, epoch: -1 }, false, &what);
                }
                Reset::Latest => {
                    partition.phase = Phase::Ready;
                    self.move_to(at, OffsetAndEpoch { offset: end, epoch: -1 }, false, &what);
                }
                Reset::Fail => {
                    let error = Error::new(Fault::Policy(format!("{what}, and auto.offset.reset is none")));
                    let error = error.at_partition(&at.topic, at.partition).at_offset(position);
                    self.break_partitions(std::slice::from_ref(at), error);
                }
            };
        }
        if position <= end {
            partition.phase = Phase::Ready;
            return self.pause_partition(at, now);
        }
        if partition.epoch >= 0 {
            partition.phase = Phase::Validate { asked: false };
            return;
        }
        let what = format!("the log ends at {end}, below the position {position}");
        self.restart_or_fail(at, self.config.out_of_range, &what);
    }

    pub(super) fn restart_or_fail(&mut self, at: &TopicPartition, reset: Reset, what: &str) {
        if reset == Reset::Fail {
            let error = Error::new(Fault::Policy(format!("{what}, and auto.offset.reset is none")));
            let error = error.at_partition(&at.topic, at.partition);
            // What is finished may lie past the end of what is there now.
            return self.void_partitions(std::slice::from_ref(at), error);
        }
        self.restart_partition(at, reset, what);
    }

    /// Looks up the start or the end of the log and moves the position there.
    pub(super) fn restart_partition(&mut self, at: &TopicPartition, reset: Reset, why: &str) {
        let incarnation = self.new_incarnation();
        let topic_id = self.net.metadata().topic(&at.topic).map(|topic| topic.id);
        let Some(partition) = self.partitions.get_mut(at) else { return };
        partition.begin_incarnation(incarnation);
        partition.topic_id = topic_id.unwrap_or(partition.topic_id);
        partition.leader_epoch = -1;
        partition.readable_end = 0;
        partition.replica = None;
        partition.not_before = Duration::ZERO;
        let timestamp = if reset == Reset::Latest { LATEST } else { EARLIEST };
        partition.phase = Phase::Begin { timestamp, asked: false, moved: Some(why.to_owned()) };
        // What was finished under the old log must not be committed into the new one.
        self.committer.drop_partition(at);
    }

    fn move_to(&mut self, at: &TopicPartition, to: OffsetAndEpoch, back: bool, why: &str) {
        let incarnation = self.new_incarnation();
        let Some(partition) = self.partitions.get_mut(at) else { return };
        partition.begin_incarnation(incarnation);
        if back {
            self.committer.drop_partition(at);
        }
        if back && self.config.want_end {
            // The end of a log that is no more says nothing.
            partition.end = None;
            partition.phase = Phase::Moving { to, why: why.to_owned() };
            return;
        }
        self.go_to(at, to, back, why);
    }

    fn go_to(&mut self, at: &TopicPartition, to: OffsetAndEpoch, back: bool, why: &str) {
        let Some(partition) = self.partitions.get_mut(at) else { return };
        partition.position = to.offset;
        partition.epoch = to.epoch;
        let end = partition.end;
        if partition.announced {
            let (at, why) = (at.clone(), why.to_owned());
            self.events.push_back(Event::Moved { at, position: to, back, end, why });
        } else {
            self.events.push_back(Event::Notice(format!("{at}: {why}; beginning at offset {}", to.offset)));
        }
    }

    // ---- where two logs part ----

    fn ask_epoch_ends(&mut self, now: Duration) {
        let mut questions: BTreeMap<i32, Vec<(TopicPartition, i32, i32)>> = BTreeMap::new();
        for (at, partition) in &mut self.partitions {
            if partition.phase != (Phase::Validate { asked: false }) || !partition.not_before.is_zero() {
                continue;
            }
            match self.net.metadata().leader(at) {
                Some((node, epoch)) => {
                    partition.phase = Phase::Validate { asked: true };
                    // A newer one that comes before the answer is validated in its turn.
                    partition.leader_epoch = epoch;
                    questions.entry(node).or_default().push((at.clone(), epoch, partition.epoch));
                }
                None => partition.not_before = now + PAUSE,
            }
        }
        for (node, wanted) in questions {
            let asked = wanted
                .iter()
                .filter_map(|(at, ..)| self.partitions.get(at).map(|p| (at.clone(), p.incarnation)))
                .collect();
            let request = offsets::epoch_end_request(&wanted);
            self.net.send(To::Node(node, Purpose::Main), request, Tag::EpochEnd(asked), Duration::ZERO, now);
        }
    }

    pub(super) fn on_epoch_end(
        &mut self,
        asked: &[(TopicPartition, u64)],
        result: Result<Response, Error>,
        now: Duration,
    ) {
        let answers: BTreeMap<_, _> = match result {
            Ok(Response::OffsetForLeaderEpoch(response)) => {
                offsets::read_epoch_end(&response).into_iter().collect()
            }
            Ok(other) => unreachable!("{} answers OffsetForLeaderEpoch", other.api()),
            // A broker that cannot say it, as some that are not Kafka: the position is believed.
            Err(Error { fault: Fault::Incompatible(_), .. }) => {
                let positions =
                    asked.iter().filter_map(|(at, _)| Some((at.clone(), self.partitions.get(at)?)));
                let whole =
                    |partition: &Partition| Ok(OffsetAndEpoch { offset: partition.position, epoch: -1 });
                positions.map(|(at, partition)| (at, whole(partition))).collect()
            }
            Err(error) if matches!(error.class(), Class::Denied | Class::Refused) => {
                return self.fatal(error);
            }
            Err(_) => BTreeMap::new(),
        };
        for (at, incarnation) in asked {
            let Some(partition) = self.partitions.get_mut(at).filter(|p| p.incarnation == *incarnation)
            else {
                continue;
            };
            partition.phase = Phase::Validate { asked: false };
            match answers.get(at) {
                Some(Ok(end)) => {
                    let position = partition.position;
                    partition.phase = Phase::Ready;
                    if end.offset < 0 {
                        let what = format!("the leader does not know epoch {} any more", partition.epoch);
                        self.restart_or_fail(at, self.config.out_of_range, &what);
                    } else if end.offset < position {
                        let what = format!("the log was cut to {} below the position {position}", end.offset);
                        self.move_to(at, *end, true, &what);
                    }
                }
                Some(Err(code)) => {
                    let error = Error::refused(Api::OffsetForLeaderEpoch, *code, None);
                    self.partition_failed(at, error.at_partition(&at.topic, at.partition), now);
                }
                None => self.pause_partition(at, now),
            }
        }
    }

    // ---- pauses ----

    pub(super) fn pause_partition(&mut self, at: &TopicPartition, now: Duration) {
        if let Some(partition) = self.partitions.get_mut(at) {
            partition.not_before = now + PAUSE;
        }
    }

    /// A question about a partition, or its fetch, was refused: pause, look again, or give up.
    pub(super) fn partition_failed(&mut self, at: &TopicPartition, error: Error, now: Duration) {
        let api = error.context.api.unwrap_or(Api::Fetch);
        match error.code().map_or(Class::Retry, |code| classify(api, code)) {
            Class::Denied | Class::Refused => return self.break_partitions(std::slice::from_ref(at), error),
            Class::Topic => self.doubt_topic(&at.topic, now),
            Class::Leader => self.net.want_metadata(now),
            _ => {}
        }
        self.pause_partition(at, now);
    }
}
