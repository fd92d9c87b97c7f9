//! `group list|describe|delete|reset`, with the columns of `kafka-consumer-groups`.

mod glob;
mod reset;

use std::collections::{BTreeMap, BTreeSet};

use keylane_protocol::admin::groups::Member;
use keylane_protocol::admin::{Answer, ListedGroup, Question};
use keylane_protocol::client::admin::Target;
use keylane_protocol::client::net::Interest;
use keylane_protocol::error::code;
use keylane_protocol::lag::{DescribedGroup, GroupLag, Survey};
use keylane_protocol::offsets::Isolation;

use crate::cli::{Common, GroupCommand, GroupDescribe, Verbosity};
use crate::exit::Exit;
use crate::lag::json_fields;
use crate::report::Report;
use crate::session::{Failure, Session};
use crate::table::{columns, or_dash};

/// Runs `group` to its end.
pub fn run(command: &GroupCommand, report: &Report) -> Exit {
    let result = match command {
        GroupCommand::List(common) => list(common, report),
        GroupCommand::Describe(config) => describe(config, report),
        GroupCommand::Delete(common, names) => delete(common, names, report),
        GroupCommand::Reset(config) => reset::run(config, report),
    };
    result.unwrap_or_else(|failure| failure.end(report))
}

/// The groups of all brokers, by name.
fn fetch_list(session: &mut Session) -> Result<BTreeMap<String, ListedGroup>, Failure> {
    session.fetch_metadata(Interest::Topics(BTreeSet::new()))?;
    let nodes = session.metadata().brokers.keys();
    let questions = nodes.map(|node| (Target::Node(*node), Question::ListGroups)).collect();
    let mut groups = BTreeMap::new();
    for answer in session.ask_all(questions)? {
        match answer? {
            Answer::Groups(listed) => {
                groups.extend(listed.into_iter().map(|group| (group.name.clone(), group)))
            }
            other => unreachable!("groups read as {other:?}"),
        }
    }
    Ok(groups)
}

/// Names alone, as `kafka-consumer-groups --list`; with `-v` as with its `--type --state`.
fn list(common: &Common, report: &Report) -> Result<Exit, Failure> {
    let mut session = Session::open(common, report)?;
    let groups = fetch_list(&mut session)?;
    if report.says(Verbosity::More) && !report.is_json() {
        let cells = |group: &ListedGroup| {
            let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
            [
                group.name.clone(),
                or_dash(&group.group_type),
                or_dash(&group.protocol_type),
                or_dash(&group.state),
            ]
        };
        let rows: Vec<[String; 4]> = groups.values().map(cells).collect();
        let table = columns(["GROUP", "TYPE", "PROTOCOL", "STATE"], &rows);
        report.answer("group", table, Vec::new()).map_err(Failure::of_output)?;
        return Ok(Exit::Done);
    }
    for (name, group) in &groups {
        let fields = vec![
            ("group_name", name.as_str().into()),
            ("group_type", group.group_type.as_str().into()),
            ("protocol_type", group.protocol_type.as_str().into()),
            ("state", group.state.as_str().into()),
        ];
        report.answer("group", name, fields).map_err(Failure::of_output)?;
    }
    Ok(Exit::Done)
}

/// One group, with its lag.
fn survey(session: &mut Session, name: &str) -> Result<GroupLag, Failure> {
    let until = session.until();
    let groups =
        session.survey(Survey::new([name.to_owned()], BTreeSet::new()), Isolation::ReadUncommitted, until)?;
    Ok(groups.into_iter().next().unwrap_or_else(|| unreachable!("one group has one outcome")))
}

fn describe(config: &GroupDescribe, report: &Report) -> Result<Exit, Failure> {
    let mut session = Session::open(&config.common, report)?;
    let group = survey(&mut session, &config.name)?;
    let described = match &group.outcome {
        Ok(Some(described)) => described,
        Ok(None) => {
            report.error(format!("group {:?} is not there", group.name));
            return Ok(Exit::Partly);
        }
        Err(error) => return Err(error.clone().into()),
    };
    let text =
        if report.is_json() { String::new() } else { describe_text(&group, described, config.offsets) };
    report.answer("group", text, json_fields(&group)).map_err(Failure::of_output)?;
    Ok(if config.offsets && described.unknown() > 0 { Exit::Partly } else { Exit::Done })
}

fn describe_text(group: &GroupLag, described: &DescribedGroup, offsets: bool) -> String {
    let description = &described.description;
    let assignor = if description.assignor.is_empty() { "-" } else { description.assignor.as_str() };
    let state = [[
        group.name.clone(),
        or_dash(group.coordinator),
        assignor.to_owned(),
        description.state.clone(),
        description.members.len().to_string(),
    ]];
    let mut tables =
        vec![columns(["GROUP", "COORDINATOR", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"], &state)];
    if !description.members.is_empty() {
        let rows: Vec<[String; 6]> =
            description.members.iter().map(|member| member_row(&group.name, member)).collect();
        tables
            .push(columns(["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT"], &rows));
    }
    if offsets {
        tables.push(offsets_table(&group.name, described));
    }
    tables.join("\n\n")
}

fn member_row(group: &str, member: &Member) -> [String; 6] {
    let mut topics: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for at in &member.assignment {
        topics.entry(&at.topic).or_default().push(at.partition.to_string());
    }
    let assignment: Vec<String> =
        topics.into_iter().map(|(topic, partitions)| format!("{topic}({})", partitions.join(","))).collect();
    [
        group.to_owned(),
        member.member_id.clone(),
        member.host.clone(),
        member.client_id.clone(),
        member.assignment.len().to_string(),
        if assignment.is_empty() { "-".to_owned() } else { assignment.join(" ") },
    ]
}

fn offsets_table(group: &str, described: &DescribedGroup) -> String {
    let rows: Vec<[String; 9]> = described
        .partitions
        .iter()
        .map(|partition| {
            let member = described.description.member_of(&partition.at);
            let offset =
                |offset: Option<i64>| offset.map_or_else(|| "?".to_owned(), |offset| offset.to_string());
            let current = match &partition.committed {
                Ok(committed) => or_dash(*committed),
                Err(_) => "?".to_owned(),
            };
            [
                group.to_owned(),
                partition.at.topic.to_string(),
                partition.at.partition.to_string(),
                current,
                offset(partition.end.as_ref().ok().copied()),
                offset(partition.lag()),
                or_dash(member.map(|member| &member.member_id)),
                or_dash(member.map(|member| &member.host)),
                or_dash(member.map(|member| &member.client_id)),
            ]
        })
        .collect();
    let header = [
        "GROUP",
        "TOPIC",
        "PARTITION",
        "CURRENT-OFFSET",
        "LOG-END-OFFSET",
        "LAG",
        "CONSUMER-ID",
        "HOST",
        "CLIENT-ID",
    ];
    columns(header, &rows)
}

/// Deletes what the names and globs stand for. A group that is not there is said and no failure: it is as was asked.
fn delete(common: &Common, patterns: &[String], report: &Report) -> Result<Exit, Failure> {
    let mut session = Session::open(common, report)?;
    let mut names = BTreeSet::new();
    if patterns.iter().any(|pattern| glob::is_glob(pattern)) {
        let listed = fetch_list(&mut session)?;
        for pattern in patterns.iter().filter(|pattern| glob::is_glob(pattern)) {
            let matching: Vec<&String> = listed.keys().filter(|name| glob::matches(pattern, name)).collect();
            if matching.is_empty() {
                report.note(format!("no group matches {pattern:?}"));
            }
            names.extend(matching.into_iter().cloned());
        }
    }
    names.extend(patterns.iter().filter(|pattern| !glob::is_glob(pattern)).cloned());
    let questions = names
        .iter()
        .map(|name| (Target::Coordinator(name.clone()), Question::DeleteGroup(name.clone())))
        .collect();
    let mut exit = Exit::Done;
    for (name, answer) in names.iter().zip(session.ask_all(questions)?) {
        let (text, deleted) = match answer {
            Ok(_) => (format!("deleted group {name}"), true),
            Err(error) if error.code() == Some(code::GROUP_ID_NOT_FOUND) => {
                (format!("group {name} is not there"), false)
            }
            Err(error) => {
                report.error(&error);
                let of_error =
                    if error.code() == Some(code::NON_EMPTY_GROUP) { Exit::Partly } else { Exit::of(&error) };
                // A refusal of another kind says more than a group that is in use.
                exit = if exit == Exit::Done || of_error != Exit::Partly { of_error } else { exit };
                continue;
            }
        };
        let fields = vec![("group_name", name.as_str().into()), ("deleted", deleted.into())];
        report.answer("group", text, fields).map_err(Failure::of_output)?;
    }
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use keylane_protocol::admin::groups::GroupDescription;
    use keylane_protocol::lag::PartitionLag;
    use keylane_protocol::metadata::TopicPartition;

    use super::*;

    #[test]
    fn a_description_has_kafkas_columns() {
        let member = Member {
            member_id: "c-1".to_owned(),
            client_id: "c".to_owned(),
            host: "/127.0.0.1".to_owned(),
            assignment: [
                TopicPartition::new("t", 0),
                TopicPartition::new("t", 1),
                TopicPartition::new("u", 0),
            ]
            .into(),
            instance_id: None,
        };
        let description = GroupDescription {
            state: "Stable".to_owned(),
            assignor: "range".to_owned(),
            members: vec![member],
        };
        let partition = |partition, committed| PartitionLag {
            at: TopicPartition::new("t", partition),
            committed: Ok(committed),
            start: Ok(0),
            end: Ok(10),
        };
        let described =
            DescribedGroup { description, partitions: vec![partition(0, Some(4)), partition(2, None)] };
        let group =
            GroupLag { name: "g".to_owned(), coordinator: Some(1), outcome: Ok(Some(described.clone())) };
        assert_eq!(
            describe_text(&group, &described, true),
            "GROUP COORDINATOR ASSIGNMENT-STRATEGY STATE  #MEMBERS\n\
             g     1           range               Stable 1\n\n\
             GROUP CONSUMER-ID HOST       CLIENT-ID #PARTITIONS ASSIGNMENT\n\
             g     c-1         /127.0.0.1 c         3           t(0,1) u(0)\n\n\
             GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST       CLIENT-ID\n\
             g     t     0         4              10             6   c-1         /127.0.0.1 c\n\
             g     t     2         -              10             10  -           -          -"
        );
    }
}
