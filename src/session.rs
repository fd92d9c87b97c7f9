//! A command's conversation with the cluster: questions asked and waited for, one step after the other.
//!
//! For the commands that ask and answer (`lag`, `topic`, `group`). Each step ends within the request timeout; messages
//! about brokers that come and go are said once per change.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use keylane_protocol::admin::offsets::{Found, OffsetSearch};
use keylane_protocol::admin::{Answer, Question};
use keylane_protocol::client::admin::{Admin, CallId, Notice, Target};
use keylane_protocol::client::lag::SurveyRun;
use keylane_protocol::client::net::Interest;
use keylane_protocol::error::{Error, Fault};
use keylane_protocol::lag::{GroupLag, Survey};
use keylane_protocol::metadata::{Metadata, TopicState};
use keylane_protocol::offsets::Isolation;

use crate::cli::Common;
use crate::driver::Driver;
use crate::driver::signals::{SignalCount, Source};
use crate::exit::Exit;
use crate::pool::role::{net_config, random_seed};
use crate::report::Report;

/// Why a command cannot go on.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The cluster, or the way to it.
    Kafka(Error),
    /// epoll or a thread cannot be had.
    System(io::Error),
    /// stdout or a file cannot be written.
    Output(io::Error),
    /// A signal came, or the reader of stdout is gone: nothing is wrong.
    Stopped,
    /// A signal came before all was read that the answer is about.
    Interrupted,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Kafka(error)
    }
}

impl Failure {
    /// What writing to stdout gave. A reader that went away, as `head` does, is no error.
    pub(crate) fn of_output(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Stopped,
            _ => Failure::Output(error),
        }
    }

    /// What telling an outcome gave that the exit code tells as well: nobody has to read it.
    pub(crate) fn unless_unread(told: Result<(), Failure>) -> Result<(), Failure> {
        match told {
            Err(Failure::Stopped) => Ok(()),
            told => told,
        }
    }

    /// Says it and gives the exit code.
    pub(crate) fn end(&self, report: &Report) -> Exit {
        match self {
            Failure::Kafka(error) => {
                report.error(error);
                Exit::of(error)
            }
            Failure::System(error) => {
                report.error(format!("the system refuses what keylane needs: {error}"));
                Exit::Unavailable
            }
            Failure::Output(error) => {
                report.error(format!("cannot write: {error}"));
                Exit::Output
            }
            Failure::Stopped => Exit::Done,
            Failure::Interrupted => Exit::Unfinished,
        }
    }
}

/// A conversation.
pub(crate) struct Session {
    driver: Driver,
    admin: Admin,
    report: Report,
    request_timeout: Duration,
    signals: Option<SignalCount>,
}

impl Session {
    /// Begins; nothing is sent yet.
    ///
    /// # Errors
    /// The system gives no epoll.
    pub(crate) fn open(common: &Common, report: &Report) -> Result<Self, Failure> {
        let driver = Driver::new().map_err(Failure::System)?;
        let admin = Admin::new(net_config(common, random_seed()), driver.now());
        let (report, request_timeout) = (report.clone(), common.request_timeout);
        Ok(Session { driver, admin, report, request_timeout, signals: None })
    }

    /// From now on a signal ends each wait with [`Failure::Stopped`].
    ///
    /// # Errors
    /// The system refuses the handlers.
    pub(crate) fn watch_signals(&mut self, source: &Source) -> Result<(), Failure> {
        self.signals = Some(source.watch(self.driver.waker()).map_err(Failure::System)?);
        Ok(())
    }

    /// Where messages go.
    pub(crate) fn report(&self) -> &Report {
        &self.report
    }

    /// What is known of the cluster.
    pub(crate) fn metadata(&self) -> &Metadata {
        self.admin.metadata()
    }

    /// Whether any broker has answered so far.
    pub(crate) fn ever_up(&mut self) -> bool {
        self.admin.net().ever_up()
    }

    /// Time since the driver began.
    pub(crate) fn now(&self) -> Duration {
        self.driver.now()
    }

    /// When a step that begins now must be over.
    pub(crate) fn until(&self) -> Duration {
        self.driver.now() + self.request_timeout
    }

    /// Turns the driver until `step` has a result, or none by `until`.
    fn run<R>(
        &mut self,
        until: Option<Duration>,
        mut step: impl FnMut(&mut Admin, Duration) -> Option<R>,
    ) -> Result<Option<R>, Failure> {
        loop {
            if self.signals.as_ref().is_some_and(|signals| signals.count() > 0) {
                return Err(Failure::Stopped);
            }
            self.say_notices();
            let now = self.driver.now();
            if let Some(result) = step(&mut self.admin, now) {
                return Ok(Some(result));
            }
            if until.is_some_and(|until| until <= now) {
                return Ok(None);
            }
            self.driver.turn(&mut self.admin, until).map_err(Failure::System)?;
        }
    }

    fn say_notices(&mut self) {
        while let Some(notice) = self.admin.next_notice() {
            match notice {
                Notice::Down(address, why) => self.report.warning(format!("broker {address}: {why}")),
                Notice::Up(address) => self.report.note(format!("broker {address} is back")),
            }
        }
    }

    /// Waits.
    ///
    /// # Errors
    /// A signal came.
    pub(crate) fn wait(&mut self, until: Duration) -> Result<(), Failure> {
        self.run(Some(until), |_, _| None::<()>).map(|_| ())
    }

    /// Asks one question.
    ///
    /// # Errors
    /// What it ended with.
    pub(crate) fn ask(&mut self, target: Target, question: Question) -> Result<Answer, Failure> {
        let answers = self.ask_all(vec![(target, question)])?;
        let answer = answers.into_iter().next();
        Ok(answer.unwrap_or_else(|| unreachable!("one question has one outcome"))?)
    }

    /// Asks questions at the same time; one outcome each, in their order.
    ///
    /// # Errors
    /// Not those of the questions.
    pub(crate) fn ask_all(
        &mut self,
        questions: Vec<(Target, Question)>,
    ) -> Result<Vec<Result<Answer, Error>>, Failure> {
        let (now, until) = (self.now(), self.until());
        let ids: Vec<CallId> = questions
            .into_iter()
            .map(|(target, question)| self.admin.ask(target, question, until, now))
            .collect();
        let mut answers = BTreeMap::new();
        self.run(None, |admin, _| {
            for id in &ids {
                if let Some(answer) = admin.take_answer(*id) {
                    answers.insert(*id, answer);
                }
            }
            (answers.len() == ids.len()).then_some(())
        })?;
        Ok(answers.into_values().collect())
    }

    /// Searches offsets at the same time; one result each, in their order.
    ///
    /// # Errors
    /// Not those of partitions.
    pub(crate) fn search_all(&mut self, searches: Vec<OffsetSearch>) -> Result<Vec<Found>, Failure> {
        let (now, until) = (self.now(), self.until());
        let ids: Vec<CallId> =
            searches.into_iter().map(|search| self.admin.search(search, until, now)).collect();
        let mut all = BTreeMap::new();
        self.run(None, |admin, _| {
            for id in &ids {
                if let Some(found) = admin.take_found(*id) {
                    all.insert(*id, found);
                }
            }
            (all.len() == ids.len()).then_some(())
        })?;
        Ok(all.into_values().collect())
    }

    /// Looks at groups.
    ///
    /// # Errors
    /// Not those of groups.
    pub(crate) fn survey(
        &mut self,
        survey: Survey,
        isolation: Isolation,
        until: Duration,
    ) -> Result<Vec<GroupLag>, Failure> {
        let now = self.now();
        let mut run = SurveyRun::start(survey, isolation, until, &mut self.admin, now);
        self.run(None, |admin, now| run.poll(admin, now).then_some(()))?;
        let now = self.now();
        Ok(run.finish(&mut self.admin, now))
    }

    /// Fetches the metadata of all topics, or of these. For all topics it must be the first step of all.
    ///
    /// # Errors
    /// No broker answers.
    pub(crate) fn fetch_metadata(&mut self, interest: Interest) -> Result<(), Failure> {
        let (now, until) = (self.now(), self.until());
        self.admin.set_interest(interest.clone(), now);
        self.admin.net().want_metadata(now);
        let before = self.admin.metadata_count();
        let found = self.run(Some(until), |admin, _| {
            // The answer to an earlier, narrower question may come first: it lacks topics.
            let complete = match &interest {
                Interest::All => true,
                Interest::Topics(names) => {
                    names.iter().all(|name| admin.metadata().topics.contains_key(name))
                }
            };
            (complete && admin.metadata_count() > before).then_some(())
        })?;
        found.ok_or_else(|| self.unreachable())
    }

    /// Waits until the state of each of these topics is as wanted, in metadata that is fetched anew.
    ///
    /// # Errors
    /// No broker answers. `Ok(false)`: they answer, but time is over.
    pub(crate) fn wait_for_topics(
        &mut self,
        names: &[String],
        wanted: impl Fn(Option<&TopicState>) -> bool,
    ) -> Result<bool, Failure> {
        let until = self.until();
        let now = self.now();
        self.admin.set_interest(Interest::Topics(names.iter().cloned().collect()), now);
        self.admin.net().want_metadata(now);
        let mut seen = self.admin.metadata_count();
        let first = seen;
        let found = self.run(Some(until), |admin, now| {
            if admin.metadata_count() == seen {
                return None;
            }
            seen = admin.metadata_count();
            let metadata = admin.metadata();
            let done = names.iter().all(|name| wanted(metadata.topics.get(name)));
            if !done {
                admin.net().want_metadata(now);
            }
            done.then_some(())
        })?;
        match found {
            Some(()) => Ok(true),
            None if seen > first => Ok(false),
            None => Err(self.unreachable()),
        }
    }

    fn unreachable(&mut self) -> Failure {
        let error = self.admin.net().last_error().cloned();
        Failure::Kafka(error.unwrap_or_else(|| Error::new(Fault::TimedOut(self.request_timeout))))
    }
}
