//! What a run may wait for before it has something to do: a broker, a coordinator, a topic.

use std::time::Duration;

use super::ending::{Ending, Stop};
use super::engine::Engine;
use crate::exit::Exit;

impl Engine {
    pub(super) fn start_deadline(&self) -> Option<Duration> {
        let topic = self.missing_since.filter(|_| self.config.exit_at_end);
        let broker = (!self.generation_seen).then_some(Duration::ZERO);
        [topic, broker]
            .into_iter()
            .flatten()
            .min()
            .map(|since| since + self.config.request_timeout)
            .filter(|_| matches!(self.ending, Ending::No) && !self.waited_for_broker)
    }

    /// No broker, no coordinator or (with `-e`) no topic within the request timeout ends the run.
    pub(super) fn check_start(&mut self, now: Duration) {
        if !matches!(self.ending, Ending::No) {
            return;
        }
        if self.config.exit_at_end
            && self.missing_since.is_some_and(|since| since + self.config.request_timeout <= now)
        {
            let names = self.missing.iter().cloned().collect::<Vec<_>>().join(", ");
            self.report.error(format!("no topic {names}; make it with: keylane topic create {names}"));
            return self.begin_end(Stop::Failure(Exit::NoTopic), now);
        }
        if self.generation_seen || self.waited_for_broker || now < self.config.request_timeout {
            return;
        }
        self.waited_for_broker = true;
        let group = self.config.group.clone();
        let net = self.consumer.net();
        if net.known_coordinator(&group).is_some() {
            return;
        }
        let brokers = || {
            let all: Vec<String> =
                net.config().bootstrap.iter().map(|(host, port)| format!("{host}:{port}")).collect();
            format!("no answer from {}; is that a Kafka port, and without TLS?", all.join(", "))
        };
        let why = net.last_error().map_or_else(brokers, ToString::to_string);
        let what = if net.ever_up() { "no coordinator for the group" } else { "no broker can be reached" };
        self.report.error(format!("{what} within {} s: {why}", self.config.request_timeout.as_secs_f64()));
        self.begin_end(Stop::Failure(Exit::Unavailable), now);
    }
}
