//! What is known of the cluster and is kept up to date here: metadata, and the coordinators of groups.

use std::time::Duration;

use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{FindCoordinatorRequest, MetadataRequest, TopicName};

use super::{Interest, METADATA_PAUSE, Net, NetEvent, PAUSE_MAX, To, Token, backoff};
use crate::api::{Api, Response, text};
use crate::error::{Class, Error, Fault, classify};

/// A group's coordinator, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Coordinator {
    node: Option<i32>,
    in_flight: bool,
    not_before: Duration,
    failures: u32,
    /// The cluster refuses to name one. That is believed until then: access may be granted any time.
    refused: Option<(Error, Duration)>,
}

/// How long a refusal is believed.
const REFUSED_FOR: Duration = Duration::from_secs(1);

impl<T> Net<T> {
    /// Keeps the metadata of these topics; it is fetched if they are not all known.
    pub fn set_interest(&mut self, interest: Interest, now: Duration) {
        if self.interest != interest {
            self.interest = interest;
            self.metadata_due = Some(now);
        }
    }

    /// The topics that the metadata is kept for.
    pub fn interest(&self) -> &Interest {
        &self.interest
    }

    /// Refreshes the metadata soon; at most ten times a second, less often while it fails or is wanted again and again.
    pub fn want_metadata(&mut self, now: Duration) {
        let times = self.metadata_failures.max(self.metadata_streak) + 1;
        let pause = backoff(METADATA_PAUSE, PAUSE_MAX, times, &mut self.random);
        let due = self.metadata_tried_at.map_or(now, |tried| now.max(tried + pause));
        self.metadata_due = Some(self.metadata_due.map_or(due, |earlier| earlier.min(due)));
    }

    /// The coordinator of a group. While it is not known it is looked for, and [`NetEvent`]s drive that on: ask again
    /// at every turn.
    ///
    /// # Errors
    /// The cluster refuses to name one, as for lack of authorization.
    pub fn coordinator(&mut self, group: &str, now: Duration) -> Result<Option<i32>, Error> {
        let coordinator = self.coordinators.entry(group.to_owned()).or_default();
        if let Some((error, until)) = &coordinator.refused {
            if now < *until {
                return Err(error.clone());
            }
            coordinator.refused = None;
        }
        if coordinator.node.is_none() && !coordinator.in_flight && coordinator.not_before <= now {
            coordinator.in_flight = true;
            let request =
                FindCoordinatorRequest::default().with_key_type(0).with_coordinator_keys(vec![text(group)]);
            self.send_token(
                To::Any,
                request.into(),
                Token::Coordinator(group.to_owned()),
                Duration::ZERO,
                now,
            );
        }
        Ok(self.coordinators.get(group).and_then(|coordinator| coordinator.node))
    }

    /// The coordinator of a group, if it is known.
    pub fn known_coordinator(&self, group: &str) -> Option<i32> {
        self.coordinators.get(group)?.node
    }

    /// When [`Net::coordinator`] is worth another call, while it has none.
    pub fn coordinator_due(&self, group: &str) -> Option<Duration> {
        let coordinator = self.coordinators.get(group)?;
        let open = coordinator.node.is_none() && !coordinator.in_flight && coordinator.refused.is_none();
        open.then_some(coordinator.not_before)
    }

    /// The coordinator is not (or no longer) the one that was named: look for it again, after a pause.
    pub fn forget_coordinator(&mut self, group: &str, now: Duration) {
        let pause = &mut self.random;
        if let Some(coordinator) = self.coordinators.get_mut(group) {
            coordinator.node = None;
            coordinator.failures += 1;
            coordinator.not_before = now + backoff(METADATA_PAUSE, PAUSE_MAX, coordinator.failures, pause);
        }
    }

    /// The coordinator works: the pause before it is looked for again starts small.
    pub fn coordinator_works(&mut self, group: &str) {
        if let Some(coordinator) = self.coordinators.get_mut(group) {
            coordinator.failures = 0;
        }
    }

    pub(super) fn send_metadata(&mut self, now: Duration) {
        self.metadata_in_flight = true;
        self.metadata_due = None;
        let soon = self.metadata_tried_at.is_some_and(|tried| tried + 2 * PAUSE_MAX > now);
        self.metadata_streak = if soon { self.metadata_streak + 1 } else { 0 };
        self.metadata_tried_at = Some(now);
        let topics = match &self.interest {
            Interest::All => None,
            Interest::Topics(names) => Some(
                names
                    .iter()
                    .map(|name| MetadataRequestTopic::default().with_name(Some(TopicName(text(name)))))
                    .collect(),
            ),
        };
        let all = topics.is_none();
        let request = MetadataRequest::default().with_topics(topics).with_allow_auto_topic_creation(false);
        self.send_token(To::Any, request.into(), Token::Metadata { all }, Duration::ZERO, now);
    }

    pub(super) fn metadata_outcome(&mut self, all: bool, result: Result<Response, Error>, now: Duration) {
        self.metadata_in_flight = false;
        match result {
            Ok(Response::Metadata(response)) => {
                self.metadata_failures = 0;
                let recreated = self.metadata.apply(&response, all);
                let next = now + self.config.metadata_age_max;
                self.metadata_due = Some(self.metadata_due.map_or(next, |due| due.min(next)));
                self.events.push_back(NetEvent::Metadata(recreated));
                self.drop_moved_links(now);
            }
            Ok(other) => unreachable!("{} answers Metadata", other.api()),
            Err(error) => {
                self.metadata_failures += 1;
                self.last_error = Some(error);
                self.want_metadata(now);
            }
        }
    }

    pub(super) fn coordinator_outcome(
        &mut self,
        group: &str,
        result: Result<Response, Error>,
        now: Duration,
    ) {
        let found = match result {
            Ok(Response::FindCoordinator(response)) => match response.coordinators.into_iter().next() {
                Some(found) => (found.error_code, found.error_message, found.node_id, found.host, found.port),
                None => (
                    response.error_code,
                    response.error_message,
                    response.node_id,
                    response.host,
                    response.port,
                ),
            },
            Ok(other) => unreachable!("{} answers FindCoordinator", other.api()),
            Err(error) => {
                self.last_error = Some(error.clone());
                if let Some(coordinator) = self.coordinators.get_mut(group) {
                    coordinator.in_flight = false;
                    if matches!(error.fault, Fault::Incompatible(_) | Fault::Peer(_)) {
                        coordinator.refused = Some((error, now + REFUSED_FOR));
                    }
                }
                return self.forget_coordinator(group, now);
            }
        };
        let (error_code, message, node, host, port) = found;
        let Some(coordinator) = self.coordinators.get_mut(group) else { return };
        coordinator.in_flight = false;
        match classify(Api::FindCoordinator, error_code) {
            Class::Fine => {
                coordinator.node = Some(node.0);
                let port = u16::try_from(port).unwrap_or(0);
                // The coordinator may be newer than our list of brokers.
                self.metadata.brokers.entry(node.0).or_insert_with(|| crate::metadata::Broker {
                    host: host.to_string(),
                    port,
                    rack: None,
                });
            }
            Class::Denied | Class::Refused => {
                let message = message.map(|message| message.to_string());
                let error = Error::refused(Api::FindCoordinator, error_code, message).at_group(group);
                coordinator.refused = Some((error, now + REFUSED_FOR));
            }
            _ => {
                let message = message.map(|message| message.to_string());
                self.last_error =
                    Some(Error::refused(Api::FindCoordinator, error_code, message).at_group(group));
                self.forget_coordinator(group, now);
            }
        }
    }
}
