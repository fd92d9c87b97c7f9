//! `group reset`: sets a group's offsets, or says what it would set.
//!
//! Without `--execute` nothing is changed. The group whose offsets are set must have no members: theirs would be
//! overwritten by the next commit. An offset outside the log is moved to its nearer end, with a note.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keylane_protocol::admin::offsets::{Found, OffsetSearch};
use keylane_protocol::admin::{Answer, Question};
use keylane_protocol::api::Api;
use keylane_protocol::client::admin::Target;
use keylane_protocol::client::net::Interest;
use keylane_protocol::error::{Error, code};
use keylane_protocol::metadata::{Metadata, TopicPartition, TopicState};
use keylane_protocol::offsets::{EARLIEST, Isolation, LATEST};
use serde_json::json;

use crate::cli::{GroupReset, ResetTarget, TopicPartitions};
use crate::exit::Exit;
use crate::report::Report;
use crate::session::{Failure, Session};
use crate::table::{columns, or_dash};

/// One partition of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    at: TopicPartition,
    current: Option<i64>,
    new: i64,
}

pub(super) fn run(config: &GroupReset, report: &Report) -> Result<Exit, Failure> {
    let mut session = Session::open(&config.common, report)?;
    let target = config.to_group.as_ref().unwrap_or(&config.name);
    let current = fetch_current(&mut session, &config.name)?;
    let names = config.topics.iter().map(|topic| topic.topic.clone()).collect();
    session.fetch_metadata(Interest::Topics(names))?;
    let partitions = chosen(&config.topics, session.metadata())?;
    let plan = plan(&mut session, &config.to, &partitions, &current)?;
    if let Some(path) = &config.to_file {
        fs::write(path, csv(&plan)).map_err(Failure::Output)?;
    }
    if config.execute {
        if let Some(why) = why_not_empty(&mut session, target)? {
            report.error(format!("group {target:?} {why}; its offsets can be set when it has no members"));
            return Ok(Exit::Partly);
        }
        let offsets = plan.iter().map(|step| (step.at.clone(), step.new)).collect();
        session.ask(Target::Coordinator(target.clone()), Question::CommitOffsets(target.clone(), offsets))?;
    }
    print(&plan, target, config.execute, report)?;
    if !config.execute {
        report.note("dry run: nothing was changed; add --execute to do it");
    }
    Ok(Exit::Done)
}

/// What the group has committed; a partition that cannot be read has none to show.
fn fetch_current(session: &mut Session, group: &str) -> Result<BTreeMap<TopicPartition, i64>, Failure> {
    match session.ask(Target::Coordinator(group.to_owned()), Question::Committed(group.to_owned()))? {
        Answer::Committed(offsets) => {
            Ok(offsets.into_iter().filter_map(|(at, offset)| Some((at, offset.ok()?))).collect())
        }
        other => unreachable!("committed offsets read as {other:?}"),
    }
}

/// The partitions that the command line names.
fn chosen(topics: &[TopicPartitions], metadata: &Metadata) -> Result<BTreeSet<TopicPartition>, Error> {
    let mut all = BTreeSet::new();
    for TopicPartitions { topic, partitions } in topics {
        let known = match metadata.topics.get(topic) {
            Some(TopicState::Known(known)) => known,
            Some(TopicState::Refused(code)) => {
                return Err(Error::refused(Api::Metadata, *code, None).at_topic(topic));
            }
            None => {
                let code = code::UNKNOWN_TOPIC_OR_PARTITION;
                return Err(Error::refused(Api::Metadata, code, None).at_topic(topic));
            }
        };
        for partition in partitions.clone().unwrap_or_else(|| known.partitions.keys().copied().collect()) {
            if !known.partitions.contains_key(&partition) {
                let error = Error::refused(Api::Metadata, code::UNKNOWN_TOPIC_OR_PARTITION, None);
                return Err(error.at_partition(topic, partition));
            }
            all.insert(TopicPartition::new(topic.as_str(), partition));
        }
    }
    Ok(all)
}

fn plan(
    session: &mut Session,
    to: &ResetTarget,
    partitions: &BTreeSet<TopicPartition>,
    current: &BTreeMap<TopicPartition, i64>,
) -> Result<Vec<Step>, Failure> {
    let search =
        |timestamp: i64| OffsetSearch::new(timestamp, Isolation::ReadUncommitted, partitions.iter().cloned());
    let mut searches = vec![search(EARLIEST), search(LATEST)];
    let timestamp = match to {
        ResetTarget::Timestamp(ms) => Some(*ms),
        ResetTarget::Ago(ago) => Some(before_now(*ago)),
        ResetTarget::Earliest | ResetTarget::Latest | ResetTarget::Offset(_) => None,
    };
    searches.extend(timestamp.map(search));
    let mut found = session.search_all(searches)?.into_iter();
    let mut next = || found.next().unwrap_or_default();
    let (starts, ends, at_time) = (next(), next(), next());
    let mut plan = Vec::with_capacity(partitions.len());
    for at in partitions {
        let (start, end) = (offset(&starts, at)?, offset(&ends, at)?);
        let (start, end) = (start.unwrap_or(0), end.unwrap_or(0));
        let (new, note) = match to {
            ResetTarget::Earliest => (start, None),
            ResetTarget::Latest => (end, None),
            ResetTarget::Offset(offset) => within(*offset, start, end),
            ResetTarget::Timestamp(_) | ResetTarget::Ago(_) => match offset(&at_time, at)? {
                Some(offset) => (offset, None),
                None => (end, Some(format!("no record is as new as that; its end {end} is taken"))),
            },
        };
        if let Some(note) = note {
            session.report().warning(format!("{at}: {note}"));
        }
        plan.push(Step { at: at.clone(), current: current.get(at).copied(), new });
    }
    Ok(plan)
}

/// The offset moved into the log, with a note if that changed it.
fn within(offset: i64, start: i64, end: i64) -> (i64, Option<String>) {
    if offset < start {
        (start, Some(format!("offset {offset} is below the log's start; {start} is taken")))
    } else if offset > end {
        (end, Some(format!("offset {offset} is beyond the log's end; {end} is taken")))
    } else {
        (offset, None)
    }
}

fn offset(found: &Found, at: &TopicPartition) -> Result<Option<i64>, Error> {
    match found.get(at) {
        Some(result) => result.clone(),
        None => unreachable!("a search finds something for each of its partitions"),
    }
}

/// Ms since 1970, so long ago.
fn before_now(ago: Duration) -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.saturating_sub(ago).as_millis()).unwrap_or(0)
}

/// Why the group's offsets may not be set; none: it has no members, or is not there yet.
fn why_not_empty(session: &mut Session, group: &str) -> Result<Option<String>, Failure> {
    let described = match super::survey(session, group)?.outcome? {
        None => return Ok(None),
        Some(described) => described.description,
    };
    // A broker that cannot describe the group refuses the commit itself if there are members.
    let free = described.is_empty() || described.state == keylane_protocol::admin::groups::STATE_UNKNOWN;
    let why = || format!("is {} with {} members", described.state, described.members.len());
    Ok((!free).then(why))
}

/// The form that `kafka-consumer-groups --reset-offsets --from-file` reads for one group.
fn csv(plan: &[Step]) -> String {
    plan.iter().map(|step| format!("{},{},{}\n", step.at.topic, step.at.partition, step.new)).collect()
}

fn print(plan: &[Step], group: &str, executed: bool, report: &Report) -> Result<(), Failure> {
    if report.is_json() {
        for step in plan {
            let fields = vec![
                ("group_name", group.into()),
                ("topic", (*step.at.topic).into()),
                ("partition", step.at.partition.into()),
                ("new_offset", step.new.into()),
                ("current_offset", json!(step.current)),
                ("executed", executed.into()),
            ];
            report.answer("reset", "", fields).map_err(Failure::of_output)?;
        }
        return Ok(());
    }
    let rows: Vec<[String; 5]> = plan
        .iter()
        .map(|step| {
            let at = &step.at;
            let (topic, partition) = (at.topic.to_string(), at.partition.to_string());
            [group.to_owned(), topic, partition, step.new.to_string(), or_dash(step.current)]
        })
        .collect();
    let table = columns(["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET", "CURRENT-OFFSET"], &rows);
    report.answer("reset", table, Vec::new()).map_err(Failure::of_output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_outside_the_log_is_moved_with_a_note() {
        assert_eq!(within(5, 5, 10), (5, None));
        assert_eq!(within(10, 5, 10), (10, None));
        assert_eq!(within(4, 5, 10).0, 5);
        assert_eq!(within(11, 5, 10).0, 10);
        assert!(within(4, 5, 10).1.is_some_and(|note| note.contains("below")));
        assert!(within(11, 5, 10).1.is_some_and(|note| note.contains("beyond")));
    }

    #[test]
    fn the_file_is_the_one_that_kafkas_tool_reads() {
        let step = |partition, new| Step { at: TopicPartition::new("t", partition), current: None, new };
        assert_eq!(csv(&[step(0, 5), step(1, 7)]), "t,0,5\nt,1,7\n");
    }
}
