//! `dlq replay`: dead letters go back to where they came from.
//!
//! Guarantees: the letters of a dead-letter partition are sent in their order, so those of a key keep theirs; a letter
//! goes back to its origin's partition (by its key, if that partition is gone) as the record that it was; the group
//! `DLQ.replay` commits what was acknowledged and nothing beyond, after every chunk, so another replay goes on where
//! this one came to. What was acknowledged behind a letter that failed, or after the last commit of a replay that was
//! killed, is sent again. Two replays at once are not kept apart.
//!
//! With `--key` or `--since` nothing is committed: progress may not pass the letters that are left out.

use std::collections::BTreeMap;

use keylane_protocol::admin::{Answer, Question};
use keylane_protocol::client::admin::Target;
use keylane_protocol::client::reader::{Chunk, Range};
use keylane_protocol::error::{Error, Fault};
use keylane_protocol::metadata::TopicPartition;

use super::letter::Origin;
use super::sender::{Fate, Sender, exit_of_refusal};
use super::source::{self, Filter, Source};
use super::{Query, headers_of, say_skipped};
use crate::cli::Verbosity;
use crate::driver::signals::Source as SignalSource;
use crate::exit::Exit;
use crate::report::Report;
use crate::session::{Failure, Session};
use crate::table::columns;

/// The group that keeps the progress of replays of a topic.
fn group_of(topic: &str) -> String {
    format!("{topic}.replay")
}

/// A replay under way.
struct Replay<'a> {
    query: Query<'a>,
    execute: bool,
    report: &'a Report,
    session: Session,
    group: String,
    filter: Filter,
    sender: Sender,
    /// Letters by where they go.
    counts: BTreeMap<TopicPartition, u64>,
    skipped: u64,
    left_out: u64,
}

/// How far a chunk was sent, and why no further.
struct Sent {
    /// Everything below is acknowledged.
    progress: i64,
    stop: Option<Stop>,
}

enum Stop {
    /// Something failed.
    Failure(Failure),
    /// A letter was not taken; that was said.
    Letter(Exit),
}

pub(super) fn run(query: Query<'_>, execute: bool, report: &Report) -> Result<Exit, Failure> {
    let mut session = Session::open(query.common, report)?;
    let mut ranges = source::ranges(&mut session, query.topic)?;
    let group = group_of(query.topic);
    begin_at(&mut ranges, &committed(&mut session, &group)?, &group)?;
    let filter = Filter::new(query.key, query.since);
    let sender = Sender::open(query.common, &SignalSource::Process)?;
    let source = Source::open(query.common, &ranges, &SignalSource::Process)?;
    let counts = BTreeMap::new();
    Replay { query, execute, report, session, group, filter, sender, counts, skipped: 0, left_out: 0 }
        .run(source)
}

/// What the group has committed; a partition that cannot be read is an error, not a partition without a commit.
fn committed(session: &mut Session, group: &str) -> Result<BTreeMap<TopicPartition, i64>, Failure> {
    match session.ask(Target::Coordinator(group.to_owned()), Question::Committed(group.to_owned()))? {
        Answer::Committed(offsets) => {
            Ok(offsets.into_iter().map(|(at, offset)| Ok((at, offset?))).collect::<Result<_, Error>>()?)
        }
        other => unreachable!("committed offsets read as {other:?}"),
    }
}

/// Moves the start of each range to the group's progress.
fn begin_at(
    ranges: &mut BTreeMap<TopicPartition, Range>,
    committed: &BTreeMap<TopicPartition, i64>,
    group: &str,
) -> Result<(), Error> {
    for (at, range) in ranges {
        let Some(progress) = committed.get(at) else { continue };
        if *progress > range.end {
            let what = format!(
                "the progress of group {group:?} ({progress}) is beyond the end ({}): the topic was made again? Then \
                 delete the group first",
                range.end
            );
            return Err(Error::new(Fault::Policy(what)).at_partition(&at.topic, at.partition));
        }
        range.from = range.from.max(*progress);
    }
    Ok(())
}

impl Replay<'_> {
    fn run(mut self, mut source: Source) -> Result<Exit, Failure> {
        let commits = self.execute && self.filter.is_any();
        if self.execute && !commits {
            let text =
                "with --key or --since progress is not moved: a later replay sends these letters again";
            self.report.warning(text);
        }
        let mut exit = None;
        while exit.is_none() {
            let chunk = match source.next() {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break,
                Err(failure) => {
                    exit = Some(failure.end(self.report));
                    break;
                }
            };
            let Sent { progress, stop } = self.send(&chunk);
            if commits && progress > chunk.range.from {
                let question = Question::CommitOffsets(self.group.clone(), vec![(chunk.at, progress)]);
                self.session.ask(Target::Coordinator(self.group.clone()), question)?;
            }
            exit = match stop {
                None => None,
                Some(Stop::Failure(Failure::Stopped)) => Some(self.sender.stopped()),
                Some(Stop::Failure(failure)) => Some(failure.end(self.report)),
                Some(Stop::Letter(exit)) => Some(exit),
            };
        }
        Failure::unless_unread(self.tell())?;
        Ok(match exit {
            Some(exit) => exit,
            None if self.execute && self.skipped > 0 => Exit::Partly,
            None => Exit::Done,
        })
    }

    /// Sends the letters of a chunk and waits for all of them.
    fn send(&mut self, chunk: &Chunk) -> Sent {
        let mut next = chunk.range.from;
        let walked = source::for_each(chunk, |record| {
            next = record.offset;
            if !self.filter.takes(record) {
                self.left_out += 1;
                return Ok(());
            }
            let Some((origin, headers)) = Origin::split(&headers_of(record)) else {
                self.skipped += 1;
                return Ok(());
            };
            let target = self.sender.target(&origin, record.key)?;
            if self.execute {
                self.sender.send(&target, record, &headers, origin.timestamp_ms)?;
            } else {
                *self.counts.entry(target).or_default() += 1;
            }
            Ok(())
        });
        let mut stop = walked.err().map(Stop::Failure);
        // `next` was not sent if the walk ended at it.
        let mut progress = if stop.is_some() { next } else { chunk.range.end };
        if let Err(failure) = self.sender.flush() {
            stop.get_or_insert(Stop::Failure(failure));
        }
        for (offset, fate) in self.sender.take_fates() {
            match fate {
                Fate::Taken(target) => *self.counts.entry(target).or_default() += 1,
                Fate::Open => progress = progress.min(offset),
                Fate::Refused(error) => {
                    progress = progress.min(offset);
                    if !matches!(stop, Some(Stop::Letter(_))) {
                        self.report.error(format!("{}@{offset} cannot be replayed: {error}", chunk.at));
                        stop = Some(Stop::Letter(exit_of_refusal(&error)));
                    }
                }
            }
        }
        Sent { progress, stop }
    }

    fn tell(&self) -> Result<(), Failure> {
        let (report, letters) = (self.report, self.counts.values().sum::<u64>());
        if report.is_json() {
            for (at, letters) in &self.counts {
                let fields = vec![
                    ("topic", (*at.topic).into()),
                    ("partition", at.partition.into()),
                    ("letters", (*letters).into()),
                    ("executed", self.execute.into()),
                ];
                report.answer("replay", "", fields).map_err(Failure::of_output)?;
            }
        } else if letters > 0 {
            let row = |(at, letters): (&TopicPartition, &u64)| {
                [at.topic.to_string(), at.partition.to_string(), letters.to_string()]
            };
            let rows: Vec<[String; 3]> = self.counts.iter().map(row).collect();
            let table = columns(["TOPIC", "PARTITION", "LETTERS"], &rows);
            report.answer("replay", table, Vec::new()).map_err(Failure::of_output)?;
        }
        say_skipped(report, self.skipped);
        let (left_out, skipped) = (self.left_out, self.skipped);
        let fields = vec![
            ("topic", self.query.topic.into()),
            ("letters", letters.into()),
            ("skipped", skipped.into()),
            ("left_out", left_out.into()),
            ("executed", self.execute.into()),
        ];
        let word = if self.execute { "replayed" } else { "would-replay" };
        let text = format!("done: {word}={letters} skipped={skipped} left-out={left_out}");
        report.plain(Verbosity::Normal, "done", text, fields);
        if !self.execute {
            report.note("dry run: nothing was sent; add --execute to do it");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(partition: i32) -> TopicPartition {
        TopicPartition::new("orders.dead", partition)
    }

    #[test]
    fn a_replay_begins_at_the_groups_progress() {
        let mut ranges = BTreeMap::new();
        for partition in 0..3 {
            ranges.insert(at(partition), Range { from: 5, end: 10 });
        }
        begin_at(&mut ranges, &BTreeMap::from([(at(0), 7), (at(1), 2)]), "g").expect("within the log");
        let from: Vec<i64> = ranges.values().map(|range| range.from).collect();
        assert_eq!(from, [7, 5, 5]);
        assert!(begin_at(&mut ranges, &BTreeMap::from([(at(0), 11)]), "g").is_err());
    }
}
