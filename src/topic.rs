//! `topic create|list|describe|delete`, with the columns of `kafka-topics`.
//!
//! `create` ends when every partition has a leader and `delete` when the topic is gone, both as a broker's metadata
//! tells it, so that the next command finds things as this one says they are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use keylane_protocol::admin::{Answer, NewTopic, Question};
use keylane_protocol::api::Api;
use keylane_protocol::client::admin::Target;
use keylane_protocol::client::net::Interest;
use keylane_protocol::error::{Error, Fault, code};
use keylane_protocol::metadata::{Topic, TopicState};
use serde_json::{Value, json};

use crate::cli::{Common, TopicCommand, TopicCreate};
use crate::exit::Exit;
use crate::report::Report;
use crate::session::{Failure, Session};

/// Pause before a name that is about to be free is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// Runs `topic` to its end.
pub fn run(command: &TopicCommand, report: &Report) -> Exit {
    let result = match command {
        TopicCommand::Create(topic) => create(topic, report),
        TopicCommand::List(common) => list(common, report),
        TopicCommand::Describe(common, name) => describe(common, name.as_deref(), report),
        TopicCommand::Delete(common, names) => delete(common, names, report),
    };
    result.unwrap_or_else(|failure| failure.end(report))
}

fn create(topic: &TopicCreate, report: &Report) -> Result<Exit, Failure> {
    let mut session = Session::open(&topic.common, report)?;
    let too_many = |what: &str| Error::new(Fault::Policy(format!("too many {what}"))).at_topic(&topic.name);
    let new = NewTopic {
        name: topic.name.clone(),
        partitions: i32::try_from(topic.partitions).map_err(|_| too_many("partitions"))?,
        replication: i16::try_from(topic.replication).map_err(|_| too_many("replicas"))?,
        configs: topic.configs.clone(),
    };
    let existed = !make(&mut session, new, topic)?;
    let led = session.wait_for_topics(std::slice::from_ref(&topic.name), |state| match state {
        Some(TopicState::Known(known)) => {
            !known.partitions.is_empty() && known.partitions.values().all(|leader| leader.node.is_some())
        }
        _ => false,
    })?;
    if !led {
        return Err(late(
            &topic.name,
            "not all of its partitions have a leader yet",
            topic.common.request_timeout,
        ));
    }
    let partitions = session.metadata().topic(&topic.name).map_or(0, |known| known.partitions.len());
    let text = match existed {
        false => format!("created topic {} with {partitions} partitions", topic.name),
        true => format!("topic {} exists already, with {partitions} partitions", topic.name),
    };
    let fields = vec![
        ("topic", topic.name.as_str().into()),
        ("partitions", partitions.into()),
        ("created", (!existed).into()),
    ];
    report.answer("topic", text, fields).map_err(Failure::of_output)?;
    Ok(Exit::Done)
}

/// Makes the topic; false if `--if-not-exists` accepts the one that is there.
///
/// With ZooKeeper a topic that was just deleted is gone from the metadata before its name is free. Such a name is
/// tried again, so that a delete and a create in a row do what they say.
fn make(session: &mut Session, new: NewTopic, topic: &TopicCreate) -> Result<bool, Failure> {
    let until = session.until();
    loop {
        let question = Question::CreateTopic(new.clone(), topic.common.request_timeout);
        let error = match session.ask(Target::Controller, question) {
            Ok(_) => return Ok(true),
            Err(Failure::Kafka(error)) if error.code() == Some(code::TOPIC_ALREADY_EXISTS) => error,
            Err(failure) => return Err(failure),
        };
        session.fetch_metadata(Interest::Topics(BTreeSet::from([new.name.clone()])))?;
        if session.metadata().topic(&new.name).is_some() || session.now() >= until {
            return if topic.if_not_exists { Ok(false) } else { Err(error.into()) };
        }
        let again = session.now() + AGAIN;
        session.wait(again)?;
    }
}

fn late(topic: &str, what: &str, waited: Duration) -> Failure {
    let error = Error::new(Fault::Disconnected(format!("{what}, after {} ms", waited.as_millis())));
    Failure::Kafka(error.at_topic(topic))
}

fn list(common: &Common, report: &Report) -> Result<Exit, Failure> {
    let mut session = Session::open(common, report)?;
    session.fetch_metadata(Interest::All)?;
    for (name, state) in &session.metadata().topics {
        let TopicState::Known(topic) = state else { continue };
        let fields = vec![
            ("topic", name.as_str().into()),
            ("partitions", topic.partitions.len().into()),
            ("internal", topic.is_internal.into()),
        ];
        report.answer("topic", name, fields).map_err(Failure::of_output)?;
    }
    Ok(Exit::Done)
}

fn describe(common: &Common, name: Option<&str>, report: &Report) -> Result<Exit, Failure> {
    let mut session = Session::open(common, report)?;
    let interest = match name {
        Some(name) => Interest::Topics(BTreeSet::from([name.to_owned()])),
        None => Interest::All,
    };
    session.fetch_metadata(interest)?;
    let mut known = Vec::new();
    for (name, state) in session.metadata().topics.clone() {
        match state {
            TopicState::Known(topic) => known.push((name, topic)),
            TopicState::Refused(code) => {
                return Err(Error::refused(Api::Metadata, code, None).at_topic(&name).into());
            }
        }
    }
    let questions =
        known.iter().map(|(name, _)| (Target::Any, Question::TopicConfigs(name.clone()))).collect();
    let answers = session.ask_all(questions)?;
    for ((name, topic), answer) in known.iter().zip(answers) {
        let configs = match answer {
            Ok(Answer::Configs(configs)) => configs,
            Ok(other) => unreachable!("configurations read as {other:?}"),
            Err(error) => {
                report.warning(format!("the configuration cannot be read: {error}"));
                Vec::new()
            }
        };
        let text = if report.is_json() { String::new() } else { describe_text(name, topic, &configs) };
        let fields = vec![
            ("topic", name.as_str().into()),
            ("topic_id", id(topic).into()),
            ("internal", topic.is_internal.into()),
            ("replication_factor", replication(topic).into()),
            ("configs", configs.iter().cloned().collect::<BTreeMap<_, _>>().into_iter().collect()),
            ("partitions", partitions_json(topic)),
        ];
        report.answer("topic", text, fields).map_err(Failure::of_output)?;
    }
    Ok(Exit::Done)
}

/// A topic id as Kafka prints it: base64 in the alphabet for URLs, without padding.
fn id(topic: &Topic) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits = topic.id.as_u128();
    // 22 digits of 6 bits hold 132: the last digit has 4 bits of padding.
    (0..22u32)
        .map(|digit| {
            let six = if digit < 21 { bits >> (122 - 6 * digit) } else { bits << 4 };
            char::from(ALPHABET[(six & 63) as usize])
        })
        .collect()
}

fn replication(topic: &Topic) -> usize {
    topic.replicas.values().map(|(replicas, _)| replicas.len()).max().unwrap_or(0)
}

fn describe_text(name: &str, topic: &Topic, configs: &[(String, String)]) -> String {
    let configs: Vec<String> = configs.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut text = format!(
        "Topic: {name}\tTopicId: {}\tPartitionCount: {}\tReplicationFactor: {}\tConfigs: {}",
        id(topic),
        topic.partitions.len(),
        replication(topic),
        configs.join(",")
    );
    let nodes = |nodes: &[i32]| nodes.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
    for (partition, leader) in &topic.partitions {
        let leader = leader.node.map_or_else(|| "none".to_owned(), |node| node.to_string());
        let (replicas, in_sync) = topic
            .replicas
            .get(partition)
            .map(|(replicas, in_sync)| (nodes(replicas), nodes(in_sync)))
            .unwrap_or_default();
        text.push_str(&format!(
            "\n\tTopic: {name}\tPartition: {partition}\tLeader: {leader}\tReplicas: {replicas}\tIsr: {in_sync}"
        ));
    }
    text
}

fn partitions_json(topic: &Topic) -> Value {
    let partition = |(partition, leader): (&i32, &keylane_protocol::metadata::Leader)| {
        let (replicas, in_sync) = topic.replicas.get(partition).cloned().unwrap_or_default();
        json!({
            "partition": partition, "leader": leader.node, "leader_epoch": leader.epoch,
            "replicas": replicas, "isr": in_sync,
        })
    };
    topic.partitions.iter().map(partition).collect()
}

fn delete(common: &Common, names: &[String], report: &Report) -> Result<Exit, Failure> {
    let mut session = Session::open(common, report)?;
    let timeout = common.request_timeout;
    let questions =
        names.iter().map(|name| (Target::Controller, Question::DeleteTopic(name.clone(), timeout))).collect();
    let answers = session.ask_all(questions)?;
    let mut exit = Exit::Done;
    let mut deleted = Vec::new();
    for (name, answer) in names.iter().zip(answers) {
        match answer {
            Ok(_) => deleted.push(name.clone()),
            Err(error) if error.code() == Some(code::UNKNOWN_TOPIC_OR_PARTITION) => {
                report.error(format!("topic {name} is not there"));
                exit = Exit::NoTopic;
            }
            Err(error) => {
                report.error(&error);
                exit = Exit::of(&error);
            }
        }
    }
    let gone = deleted.is_empty()
        || session.wait_for_topics(&deleted, |state| {
            matches!(state, Some(TopicState::Refused(code::UNKNOWN_TOPIC_OR_PARTITION)))
        })?;
    if !gone {
        return Err(late(&deleted.join(", "), "the brokers still show it", timeout));
    }
    for name in &deleted {
        let fields = vec![("topic", name.as_str().into()), ("deleted", true.into())];
        report.answer("topic", format!("deleted topic {name}"), fields).map_err(Failure::of_output)?;
    }
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use keylane_protocol::metadata::Leader;

    use super::*;

    #[test]
    fn a_description_has_kafkas_columns() {
        let mut topic = Topic {
            id: "8f6bd1ac-5f1e-4d5c-a6a1-0123456789ab".parse().unwrap_or_default(),
            ..Topic::default()
        };
        topic.partitions.insert(0, Leader { node: Some(1), epoch: 0 });
        topic.partitions.insert(1, Leader { node: None, epoch: 3 });
        topic.replicas.insert(0, (vec![1, 2], vec![1]));
        topic.replicas.insert(1, (vec![2, 1], vec![]));
        let configs = [("retention.ms".to_owned(), "1000".to_owned())];
        assert_eq!(
            describe_text("t", &topic, &configs),
            "Topic: t\tTopicId: j2vRrF8eTVymoQEjRWeJqw\tPartitionCount: 2\tReplicationFactor: 2\t\
             Configs: retention.ms=1000\n\
             \tTopic: t\tPartition: 0\tLeader: 1\tReplicas: 1,2\tIsr: 1\n\
             \tTopic: t\tPartition: 1\tLeader: none\tReplicas: 2,1\tIsr: "
        );
    }
}
