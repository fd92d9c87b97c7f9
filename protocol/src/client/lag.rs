//! A [`Survey`] of groups' lag carried out by [`Admin`].
//!
//! All first questions go out at once; each group goes on as soon as its own answers came. So one look takes: finding
//! the coordinators, their three answers, the metadata of the topics if they are new, and both ends of the logs.

use std::collections::BTreeMap;
use std::time::Duration;

use super::admin::{Admin, CallId, Target};
use super::net::Interest;
use crate::admin::offsets::OffsetSearch;
use crate::error::{Error, Fault};
use crate::lag::{End, GroupIndex, GroupLag, Part, Survey};
use crate::offsets::{EARLIEST, Isolation, LATEST};

/// A survey under way.
#[derive(Debug)]
pub struct SurveyRun {
    survey: Survey,
    isolation: Isolation,
    started_at: Duration,
    until: Duration,
    questions: BTreeMap<CallId, (GroupIndex, Part)>,
    searches: BTreeMap<CallId, (GroupIndex, End)>,
}

impl SurveyRun {
    /// Begins; what is not answered by `until` is unknown.
    pub fn start(
        survey: Survey,
        isolation: Isolation,
        until: Duration,
        admin: &mut Admin,
        now: Duration,
    ) -> Self {
        let mut questions = BTreeMap::new();
        for (group, part, question) in survey.questions() {
            let target = Target::Coordinator(survey.name(group).to_owned());
            questions.insert(admin.ask(target, question, until, now), (group, part));
        }
        let searches = BTreeMap::new();
        SurveyRun { survey, isolation, started_at: now, until, questions, searches }
    }

    /// Takes what came and asks what is next. Call it after each turn of the driver until it is done.
    pub fn poll(&mut self, admin: &mut Admin, now: Duration) -> bool {
        if self.until <= now {
            // The questions' own errors say more than that time is over.
            admin.poll(now);
        }
        let open: Vec<CallId> = self.questions.keys().copied().collect();
        for id in open {
            let Some(outcome) = admin.take_answer(id) else { continue };
            let Some((group, part)) = self.questions.remove(&id) else { continue };
            if outcome.is_ok()
                && let Some(node) = admin.coordinator(self.survey.name(group))
            {
                self.survey.take_coordinator(group, node);
            }
            self.survey.take(group, part, outcome);
        }
        self.keep_metadata(admin, now);
        for (group, partitions) in self.survey.take_partitions(admin.metadata()) {
            for (end, timestamp) in [(End::Start, EARLIEST), (End::End, LATEST)] {
                let search = OffsetSearch::new(timestamp, self.isolation, partitions.iter().cloned());
                self.searches.insert(admin.search(search, self.until, now), (group, end));
            }
        }
        let open: Vec<CallId> = self.searches.keys().copied().collect();
        for id in open {
            let Some(found) = admin.take_found(id) else { continue };
            let Some((group, end)) = self.searches.remove(&id) else { continue };
            self.survey.take_found(group, end, found);
        }
        self.survey.is_done() || self.until <= now
    }

    /// Keeps the metadata of the topics that matter. Topics are only added: a group that could not be read this time
    /// comes back with the same ones.
    fn keep_metadata(&self, admin: &mut Admin, now: Duration) {
        let mut topics = self.survey.topics();
        match admin.net().interest() {
            Interest::All => return,
            Interest::Topics(known) if topics.is_subset(known) => return,
            Interest::Topics(known) => topics.extend(known.iter().cloned()),
        }
        admin.set_interest(Interest::Topics(topics), now);
    }

    /// When [`SurveyRun::poll`] gives up.
    pub fn deadline(&self) -> Duration {
        self.until
    }

    /// The result.
    pub fn finish(self, admin: &mut Admin, now: Duration) -> Vec<GroupLag> {
        for id in self.questions.keys().chain(self.searches.keys()) {
            admin.forget(*id);
        }
        let groups = self.survey.finish(&Error::new(Fault::TimedOut(now.saturating_sub(self.started_at))));
        let unknown = |group: &GroupLag| {
            group.outcome.as_ref().is_ok_and(|group| group.as_ref().is_some_and(|group| group.unknown() > 0))
        };
        if groups.iter().any(unknown) {
            // The topic may have been made anew, or its leader be back, by the next time.
            admin.net().want_metadata(now);
        }
        groups
    }
}
