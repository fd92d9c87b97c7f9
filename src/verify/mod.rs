//! `keylane verify`: do joblogs, and the topic they are of, prove that a run was right?
//!
//! From joblogs alone it counts tries, failures and repeats. With the topic every record must be handled and every key
//! in order; with the dead-letter topic a letter counts as handled; with the group nothing may be committed past a
//! record that was not. Everything is held in memory, about 100 bytes for each record and each try.

mod judge;
mod lines;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use keylane_protocol::admin::{Answer, Question};
use keylane_protocol::client::admin::Target;
use keylane_protocol::error::Error;
use serde_json::Value;

use crate::cli::Verify;
use crate::dlq::letter::Origin;
use crate::dlq::source::{self, Source};
use crate::driver::signals::Source as SignalSource;
use crate::exit::Exit;
use crate::report::Report;
use crate::session::{Failure, Session};

use judge::{Evidence, Findings, Place, Try};

/// Runs `verify` to its end.
pub fn run(config: &Verify, report: &Report) -> Exit {
    judged(config, report).unwrap_or_else(|failure| failure.end(report))
}

fn judged(config: &Verify, report: &Report) -> Result<Exit, Failure> {
    let mut evidence = Evidence { tries: tries(config, report)?, ..Evidence::default() };
    if let Some(topic) = &config.topic {
        evidence.records = Some(records(config, topic, report)?);
        if let Some(dead_letters) = &config.dead_letters {
            evidence.letters = letters(config, topic, dead_letters, report)?;
        }
        if let Some(group) = &config.group {
            evidence.committed = Some(committed(config, topic, group, report)?);
        }
    } else {
        report.note("without -t TOPIC neither missing records nor the order of keys can be told");
    }
    let findings = judge::judge(&evidence);
    Failure::unless_unread(tell(&findings, config, report))?;
    Ok(if findings.is_clean() { Exit::Done } else { Exit::Partly })
}

/// The tries of the topic in all joblogs; without a topic there may be one topic only.
fn tries(config: &Verify, report: &Report) -> Result<Vec<Try>, Failure> {
    let (mut tries, mut topic, mut others) = (Vec::new(), config.topic.clone(), 0u64);
    for (file, path) in (0..).zip(&config.joblogs) {
        let bad = lines::read(path, |tried| {
            if *topic.get_or_insert_with(|| tried.topic.clone()) != tried.topic {
                others += 1;
                return;
            }
            let place = (tried.partition, tried.offset);
            let lines::Tried { began_us, ended_us, done, .. } = tried;
            tries.push(Try { place, began_us, ended_us, done, file });
        });
        let bad = bad.map_err(|error| {
            Failure::Output(std::io::Error::new(error.kind(), format!("{}: {error}", path.display())))
        })?;
        if bad > 0 {
            let path = path.display();
            report
                .warning(format!("{path}: {bad} lines are no joblog's, or were cut: they were passed over"));
        }
    }
    if others > 0 {
        report.warning(format!("{others} lines are of other topics: they were passed over"));
    }
    Ok(tries)
}

fn records(config: &Verify, topic: &str, report: &Report) -> Result<BTreeMap<Place, Option<u64>>, Failure> {
    let mut records = BTreeMap::new();
    read(config, topic, report, |partition, record| {
        let hash = record.key.map(|key| {
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            hasher.finish()
        });
        records.insert((partition, record.offset), hash);
    })?;
    Ok(records)
}

/// The records of `topic` that are in the dead-letter topic, put there by the group if one is given, and the fewest
/// tries that a letter of each tells of.
fn letters(
    config: &Verify,
    topic: &str,
    dead_letters: &str,
    report: &Report,
) -> Result<BTreeMap<Place, u32>, Failure> {
    let mut places = BTreeMap::new();
    read(config, dead_letters, report, |_, record| {
        let headers: Vec<_> = record.headers().collect();
        let is_meant = |origin: &Origin| {
            origin.topic == topic && config.group.as_ref().is_none_or(|group| *group == origin.group)
        };
        if let Some((origin, _)) = Origin::split(&headers).filter(|(origin, _)| is_meant(origin)) {
            let attempts = places.entry((origin.partition, origin.offset)).or_insert(origin.attempts);
            *attempts = origin.attempts.min(*attempts);
        }
    })?;
    Ok(places)
}

fn read(
    config: &Verify,
    topic: &str,
    report: &Report,
    mut each: impl FnMut(i32, &keylane_protocol::records::Record<'_>),
) -> Result<(), Failure> {
    let mut session = Session::open(&config.common, report)?;
    let ranges = source::ranges(&mut session, topic)?;
    let mut source = Source::open(&config.common, &ranges, &SignalSource::Process)?;
    while let Some(chunk) = source.next()? {
        source::for_each(&chunk, |record| {
            each(chunk.at.partition, record);
            Ok(())
        })?;
    }
    Ok(())
}

fn committed(
    config: &Verify,
    topic: &str,
    group: &str,
    report: &Report,
) -> Result<BTreeMap<i32, i64>, Failure> {
    let mut session = Session::open(&config.common, report)?;
    let target = Target::Coordinator(group.to_owned());
    match session.ask(target, Question::Committed(group.to_owned()))? {
        Answer::Committed(offsets) => {
            let of_topic = offsets.into_iter().filter(|(at, _)| *at.topic == *topic);
            let read = of_topic.map(|(at, offset)| Ok((at.partition, offset?)));
            Ok(read.collect::<Result<_, Error>>()?)
        }
        other => unreachable!("committed offsets read as {other:?}"),
    }
}

fn tell(findings: &Findings, config: &Verify, report: &Report) -> Result<(), Failure> {
    let topic = config.topic.as_deref().unwrap_or("");
    let mut fields = vec![
        ("clean", findings.is_clean().into()),
        ("records", findings.records.into()),
        ("handled", findings.handled.into()),
        ("dead_lettered", findings.dead_lettered.into()),
        ("tries", findings.tries.into()),
        ("failed_tries", findings.failed_tries.into()),
        ("repeats", findings.repeats.into()),
    ];
    let mut text = format!(
        "verify: {} records={} handled={} dead-lettered={} tries={} failed-tries={} repeats={}",
        if findings.is_clean() { "clean" } else { "violated" },
        findings.records,
        findings.handled,
        findings.dead_lettered,
        findings.tries,
        findings.failed_tries,
        findings.repeats,
    );
    for ((name, violations), field) in
        findings.kinds().into_iter().zip(["missing", "committed_early", "out_of_order", "overlaps"])
    {
        text.push_str(&format!(" {name}={}", violations.count));
        fields.push((field, Value::from(violations.count)));
    }
    for (name, violations) in findings.kinds() {
        for what in &violations.named {
            report.error(format!("{name}: {topic}/{what}"));
        }
        let more = violations.count - violations.named.len() as u64;
        if more > 0 {
            report.error(format!("{name}: and {more} more"));
        }
    }
    report.answer("verify", text, fields).map_err(Failure::of_output)
}
