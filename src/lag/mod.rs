//! `lag`: says how far groups are behind, once or at every tick.
//!
//! Committed offsets are read before log ends, so no lag is negative by a race. A tick says what is unknown instead of
//! leaving it out, and the next tick asks again: a broker that goes away is a line, not the end.

mod format;
mod metrics;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use keylane_protocol::admin::{Answer, ListedGroup, Question};
use keylane_protocol::client::admin::Target;
use keylane_protocol::client::net::Interest;
use keylane_protocol::error::Error;
use keylane_protocol::lag::{GroupLag, Survey};

use crate::cli::{Groups, Lag, Verbosity};
use crate::driver::signals::Source;
use crate::exit::Exit;
use crate::listen::Listener;
use crate::report::Report;
use crate::session::{Failure, Session};

pub(crate) use format::json_fields;
use metrics::LagPages;

/// A tick gets at least this long, however short the interval.
const TICK_MIN: Duration = Duration::from_millis(500);

/// Runs `lag` to its end. Where the address of `--listen` cannot be had, that is 69, as for `pool`.
pub fn run(config: &Lag, report: &Report, signals: &Source) -> Exit {
    let pages = match config.listen.map(|address| listen(address, config.interval, report)) {
        Some(Err(exit)) => return exit,
        Some(Ok(pages)) => Some(pages),
        None => None,
    };
    match watch(config, pages.as_deref(), report, signals) {
        Ok(exit) => exit,
        Err(failure) => failure.end(report),
    }
}

/// Serves what is still to be published.
fn listen(address: SocketAddr, interval: Duration, report: &Report) -> Result<Arc<LagPages>, Exit> {
    let pages = LagPages::new(interval);
    let serve = || {
        let listener = Listener::bind(address)?;
        report.note(format!("metrics at http://{}/metrics", listener.address()?));
        listener.serve(pages.clone())
    };
    match serve() {
        Ok(()) => Ok(pages),
        Err(error) => {
            report.error(format!("--listen {address}: {error}"));
            Err(Exit::Unavailable)
        }
    }
}

fn watch(config: &Lag, pages: Option<&LagPages>, report: &Report, signals: &Source) -> Result<Exit, Failure> {
    let mut session = Session::open(&config.common, report)?;
    if !config.once {
        session.watch_signals(signals)?;
    }
    let mut listing = Listing::default();
    let mut skews = Skews::default();
    let mut first = true;
    loop {
        let began = session.now();
        let until =
            if first { session.until() } else { session.until().min(began + config.interval.max(TICK_MIN)) };
        let names = match &config.groups {
            Groups::Named(names) => names.clone(),
            Groups::All => listing.fetch(&mut session)?,
        };
        let survey = Survey::new(names, config.topics.iter().cloned().collect());
        let groups = session.survey(survey, config.isolation, until)?;
        if first && !session.ever_up() {
            // Nothing is known that a tick could say.
            return Err(first_error(&groups).or(listing.error).map_or(Failure::Stopped, Failure::Kafka));
        }
        let several = config.groups == Groups::All || groups.len() > 1;
        for group in &groups {
            print(group, several, report)?;
            skews.say(group, report);
        }
        if config.once {
            return Ok(exit_of_tick(&groups, listing.error.as_ref()));
        }
        if first && !groups.is_empty() && groups.iter().all(|group| group.outcome.is_err()) {
            // Refused for good, or nobody coordinates any of them: waiting is for what has worked once.
            return Ok(exit_of_tick(&groups, None));
        }
        if let Some(pages) = pages {
            pages.publish(groups);
        }
        first = false;
        session.wait(began + config.interval)?;
    }
}

fn first_error(groups: &[GroupLag]) -> Option<Error> {
    groups.iter().find_map(|group| group.outcome.as_ref().err().cloned())
}

fn print(group: &GroupLag, several: bool, report: &Report) -> Result<(), Failure> {
    let text = if report.is_json() { String::new() } else { format::text(group, several) };
    let fields = if report.wants_fields() { json_fields(group) } else { Vec::new() };
    report.answer_stamped("lag", text, fields).map_err(Failure::of_output)
}

/// `--once`: what an error ends with; else 1 where a group is not there or a partition is unknown.
fn exit_of_tick(groups: &[GroupLag], listing: Option<&Error>) -> Exit {
    let errors = groups.iter().filter_map(|group| group.outcome.as_ref().err()).chain(listing);
    // A refusal says more than a broker that cannot be reached.
    let exits: Vec<Exit> = errors.map(Exit::of).collect();
    for exit in [Exit::Denied, Exit::Bug, Exit::Refused, Exit::Unavailable] {
        if exits.contains(&exit) {
            return exit;
        }
    }
    if let Some(exit) = exits.first() {
        return *exit;
    }
    let partly = |group: &GroupLag| match &group.outcome {
        Ok(Some(described)) => described.unknown() > 0,
        Ok(None) | Err(_) => true,
    };
    if groups.iter().any(partly) { Exit::Partly } else { Exit::Done }
}

/// The groups of all brokers. A broker that does not answer keeps the groups it had.
#[derive(Default)]
struct Listing {
    by_node: BTreeMap<i32, Vec<ListedGroup>>,
    error: Option<Error>,
}

impl Listing {
    fn fetch(&mut self, session: &mut Session) -> Result<Vec<String>, Failure> {
        if !session.ever_up() {
            session.fetch_metadata(Interest::Topics(BTreeSet::new()))?;
        }
        let nodes: Vec<i32> = session.metadata().brokers.keys().copied().collect();
        self.by_node.retain(|node, _| nodes.contains(node));
        let questions = nodes.iter().map(|node| (Target::Node(*node), Question::ListGroups)).collect();
        let answers = session.ask_all(questions)?;
        let failed_before = self.error.take().is_some();
        for (node, answer) in nodes.into_iter().zip(answers) {
            match answer {
                Ok(Answer::Groups(groups)) => {
                    self.by_node.insert(node, groups);
                }
                Ok(other) => unreachable!("groups read as {other:?}"),
                Err(error) => {
                    if !failed_before {
                        session.report().warning(format!("its groups are not listed: {error}"));
                    }
                    self.error = Some(error);
                }
            }
        }
        Ok(consumer_groups(self.by_node.values().flatten()))
    }
}

/// Names of the groups that commit offsets as consumers do, in order: no Connect workers, no share groups.
pub(crate) fn consumer_groups<'a>(groups: impl Iterator<Item = &'a ListedGroup>) -> Vec<String> {
    let consumers = groups.filter(|group| {
        matches!(group.protocol_type.as_str(), "consumer" | "")
            && matches!(group.group_type.to_ascii_lowercase().as_str(), "" | "classic" | "consumer")
    });
    let names: BTreeSet<String> = consumers.map(|group| group.name.clone()).collect();
    names.into_iter().collect()
}

/// The skew of each group that was said last: it is said again when it is another partition's.
#[derive(Default)]
struct Skews {
    said: BTreeMap<String, String>,
}

impl Skews {
    fn say(&mut self, group: &GroupLag, report: &Report) {
        let Ok(Some(described)) = &group.outcome else { return };
        let Some((at, lag)) = described.skew() else {
            self.said.remove(&group.name);
            return;
        };
        let place = at.to_string();
        if self.said.get(&group.name) == Some(&place) {
            return;
        }
        let (text, fields) = format::skew(&group.name, &place, lag, described);
        report.stamped(Verbosity::Normal, "skew", text, fields);
        self.said.insert(group.name.clone(), place);
    }
}

#[cfg(test)]
mod tests {
    use keylane_protocol::error::Fault;

    use super::*;

    fn group(outcome: Result<Option<keylane_protocol::lag::DescribedGroup>, Error>) -> GroupLag {
        GroupLag { name: "g".to_owned(), coordinator: None, outcome }
    }

    #[test]
    fn the_exit_of_a_tick_is_that_of_its_worst_group() {
        use keylane_protocol::api::Api;
        let denied = || Err(Error::refused(Api::FindCoordinator, 30, None));
        let away = || Err(Error::new(Fault::Disconnected("gone".to_owned())));
        assert_eq!(exit_of_tick(&[], None), Exit::Done);
        assert_eq!(exit_of_tick(&[group(Ok(None))], None), Exit::Partly);
        assert_eq!(exit_of_tick(&[group(Ok(None)), group(away())], None), Exit::Unavailable);
        assert_eq!(exit_of_tick(&[group(away()), group(denied())], None), Exit::Denied);
        assert_eq!(exit_of_tick(&[], away().err().as_ref()), Exit::Unavailable);
    }

    #[test]
    fn only_groups_with_offsets_are_watched() {
        let listed = |name: &str, protocol_type: &str, group_type: &str| ListedGroup {
            name: name.to_owned(),
            protocol_type: protocol_type.to_owned(),
            state: String::new(),
            group_type: group_type.to_owned(),
        };
        let groups = [
            listed("b", "consumer", "Classic"),
            listed("a", "consumer", "Consumer"),
            listed("reset", "", "Classic"),
            listed("connect", "connect", "Classic"),
            listed("share", "share", "Share"),
            listed("old", "consumer", ""),
        ];
        assert_eq!(consumer_groups(groups.iter()), ["a", "b", "old", "reset"]);
    }
}
