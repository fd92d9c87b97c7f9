//! Makes a topic if it is missing, and waits until each of its partitions has a leader.
//!
//! It never fails because the topic is already there, with whatever number of partitions: another program may make it
//! at the same moment.

use std::collections::BTreeSet;
use std::time::Duration;

use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::{CreateTopicsRequest, TopicName};

use crate::api::{Api, Response, text};
use crate::client::net::{Interest, Net, Purpose, To};
use crate::error::{Class, Error, code};
use crate::metadata::TopicState;

use super::producer::is_final;

/// A topic that is to be there.
#[derive(Clone, Debug)]
pub struct MakeTopic {
    topic: String,
    partitions: i32,
    replication: i16,
    in_flight: bool,
    not_before: Duration,
    made: bool,
    ready: Option<u32>,
    failure: Option<Error>,
}

/// How often the metadata is asked while the topic is being made.
const PAUSE: Duration = Duration::from_millis(100);

impl MakeTopic {
    /// `partitions` and `replication` count only if it is missing.
    pub fn new(topic: &str, partitions: i32, replication: i16) -> Self {
        MakeTopic {
            topic: topic.to_owned(),
            partitions,
            replication,
            in_flight: false,
            not_before: Duration::ZERO,
            made: false,
            ready: None,
            failure: None,
        }
    }

    /// Asks for the topic's metadata.
    pub fn begin<T>(&self, net: &mut Net<T>, now: Duration) {
        net.set_interest(Interest::Topics(BTreeSet::from([self.topic.clone()])), now);
    }

    /// The number of partitions, once each has a leader; and whether it was made here.
    pub fn ready(&self) -> Option<(u32, bool)> {
        self.ready.map(|partitions| (partitions, self.made))
    }

    /// Why it cannot be made or used.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Goes on with what the metadata says. Returns whether a request was sent.
    pub fn poll<T>(&mut self, net: &mut Net<T>, tag: T, now: Duration) -> bool {
        if self.ready.is_some() || self.failure.is_some() || self.in_flight {
            return false;
        }
        match net.metadata().topics.get(&self.topic) {
            None => false,
            Some(TopicState::Known(topic)) => {
                let count = topic.partitions.len();
                if count > 0 && topic.partitions.values().all(|leader| leader.node.is_some()) {
                    self.ready = Some(count as u32);
                } else {
                    self.wait(net, now);
                }
                false
            }
            Some(TopicState::Refused(code)) if is_final(*code) => {
                let error = Error::refused(Api::Metadata, *code, None).at_topic(&self.topic);
                self.failure = Some(error);
                false
            }
            // Made, but this broker has not heard of it yet.
            Some(TopicState::Refused(_)) if self.made => {
                self.wait(net, now);
                false
            }
            Some(TopicState::Refused(code)) => {
                let missing = *code == code::UNKNOWN_TOPIC_OR_PARTITION;
                if !missing || self.not_before > now {
                    self.wait(net, now);
                    return false;
                }
                self.send(net, tag, now);
                true
            }
        }
    }

    /// When [`MakeTopic::poll`] is to be called again.
    pub fn deadline(&self) -> Option<Duration> {
        let open = self.ready.is_none() && self.failure.is_none() && !self.in_flight;
        open.then_some(self.not_before)
    }

    fn wait<T>(&mut self, net: &mut Net<T>, now: Duration) {
        if self.not_before <= now {
            self.not_before = now + PAUSE;
            net.want_metadata(now);
        }
    }

    fn send<T>(&mut self, net: &mut Net<T>, tag: T, now: Duration) {
        self.in_flight = true;
        let timeout = net.config().request_timeout;
        let topic = CreatableTopic::default()
            .with_name(TopicName(text(&self.topic)))
            .with_num_partitions(self.partitions)
            .with_replication_factor(self.replication);
        let request = CreateTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX));
        // Without KRaft only the controller makes topics; with it, any broker hands the request on.
        let to = match net.metadata().controller {
            Some(node) if net.metadata().brokers.contains_key(&node) => To::Node(node, Purpose::Main),
            _ => To::Any,
        };
        net.send(to, request, tag, timeout, now);
    }

    /// CreateTopics was answered.
    pub fn on_outcome<T>(&mut self, result: Result<Response, Error>, net: &mut Net<T>, now: Duration) {
        self.in_flight = false;
        let error = match result {
            Ok(Response::CreateTopics(response)) => match response.topics.first() {
                Some(topic) if topic.error_code == code::NONE => {
                    self.made = true;
                    return self.wait(net, now);
                }
                // Somebody else was faster.
                Some(topic) if topic.error_code == code::TOPIC_ALREADY_EXISTS => {
                    return self.wait(net, now);
                }
                Some(topic) => {
                    let message = topic.error_message.as_ref().map(ToString::to_string);
                    Error::refused(Api::CreateTopics, topic.error_code, message)
                }
                None => Error::peer("the answer leaves out the topic").at_api(Api::CreateTopics),
            },
            Ok(other) => unreachable!("{} answers CreateTopics", other.api()),
            Err(error) => error,
        };
        match error.class() {
            Class::Denied | Class::Refused => self.failure = Some(error.at_topic(&self.topic)),
            _ => {
                self.not_before = now + PAUSE;
                net.want_metadata(now);
            }
        }
    }
}
