//! Dead letters on their way into their topic.
//!
//! A thread of its own with its own producer, so that neither the consumer's heartbeats nor the workers wait for it.
//! Guarantees: a record is passed only when its letter is acknowledged by all in-sync replicas, stored once per posting
//! (idempotent; a restart may post it again); what is refused for good ends the run before the record; everything else
//! (no broker, no leader, too few replicas, a topic that is gone) is waited out, with one line when that begins and one
//! when it is over. The letters of a key keep their order: its lane waits for each of them. Memory is bounded by the
//! records that the pool may hold, and by [`BUFFERED_BYTES_MAX`] for what is on its way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fmt, io};

use keylane_protocol::admin::{Answer, Question, TopicAccess};
use keylane_protocol::api::Api;
use keylane_protocol::client::admin::Target;
use keylane_protocol::client::net::{Interest, Net, NetConfig};
use keylane_protocol::client::producer::Producer;
use keylane_protocol::error::{Error, code, code_name};
use keylane_protocol::metadata::{TopicPartition, TopicState};
use keylane_protocol::partitioner;
use keylane_protocol::produce::{AppendError, Delivery, Slot};
use keylane_protocol::records::{Header, Record};
use mio::Waker;

use super::shared::{Failure, Shared};
use super::tries::{Judged, Refused};
use super::verdicts::Letterbox;
use crate::cli::Common;
use crate::dlq::letter::{Origin, end_text};
use crate::dlq::sender::{BUFFERED_BYTES_MAX, exit_of_refusal, produce_config};
use crate::driver::Driver;
use crate::exit::Exit;
use crate::report::Report;
use crate::session::{self, Session};

/// Letters are never given up by time: ten years.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 86_400);
/// A letter that is not acknowledged for so long is worth a line.
const LATE: Duration = Duration::from_secs(5);
/// For a topic that was made a moment ago and that not every broker knows yet.
const MISSING_FOR: Duration = Duration::from_secs(1);
const MISSING_PAUSE: Duration = Duration::from_millis(100);

/// What the thread needs to know.
#[derive(Clone, Debug)]
pub(super) struct LettersConfig {
    /// The dead-letter topic.
    pub(super) topic: String,
    /// What [`check`] found.
    pub(super) place: Place,
    /// The group whose records these are.
    pub(super) group: String,
    /// Its connections.
    pub(super) net: NetConfig,
}

/// Where letters go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) partitions: NonZeroU32,
    /// How long after a record's own time its letter may stay; none: for as long as any.
    pub(super) retention: Option<Duration>,
}

/// Looks whether the dead-letter topic is there and may be written.
///
/// # Errors
/// It is missing, not writable or unknown within the request timeout; that was said.
pub(super) fn check(common: &Common, topic: &str, report: &Report) -> Result<Place, Exit> {
    let refused = |error: &Error| {
        report.error(format!("dead letters have no place: {error}"));
        Exit::of(error)
    };
    let failed = |failure| match failure {
        session::Failure::Kafka(error) => refused(&error),
        failure => failure.end(report),
    };
    let mut session = Session::open(common, report).map_err(failed)?;
    let access = ask_access(&mut session, topic, MISSING_FOR.min(common.request_timeout)).map_err(failed)?;
    if access.may_write == Some(false) {
        let error = Error::refused(Api::Produce, code::TOPIC_AUTHORIZATION_FAILED, None);
        return Err(refused(&error.at_topic(topic)));
    }
    let partitions = NonZeroU32::new(u32::try_from(access.partitions).unwrap_or(0)).ok_or_else(|| {
        report.error(format!("dead-letter topic {topic} has no partition yet"));
        Exit::Unavailable
    })?;
    Ok(Place { partitions, retention: ask_retention(&mut session, topic) })
}

/// Whoever may not read configurations goes without a warning.
fn ask_retention(session: &mut Session, topic: &str) -> Option<Duration> {
    match session.ask(Target::Any, Question::TopicRetention(topic.to_owned())) {
        Ok(Answer::Retention(retention)) => retention,
        _ => None,
    }
}

/// A topic that is missing is asked for again for so long.
fn ask_access(
    session: &mut Session,
    topic: &str,
    missing_for: Duration,
) -> Result<TopicAccess, session::Failure> {
    let mut until = None;
    loop {
        match session.ask(Target::Any, Question::TopicAccess(topic.to_owned())) {
            Ok(Answer::Access(access)) => return Ok(access),
            Ok(other) => unreachable!("a topic's access read as {other:?}"),
            Err(session::Failure::Kafka(error)) if error.code() == Some(code::UNKNOWN_TOPIC_OR_PARTITION) => {
                let until = *until.get_or_insert(session.now() + missing_for);
                if session.now() >= until {
                    return Err(session::Failure::Kafka(error));
                }
                let again = session.now() + MISSING_PAUSE;
                session.wait(again)?;
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// What the engine and the thread share.
struct Mail {
    posted: Mutex<VecDeque<Judged>>,
    ended: AtomicBool,
    waker: Arc<Waker>,
}

impl Mail {
    fn take(&self) -> VecDeque<Judged> {
        std::mem::take(&mut *self.posted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn wake(&self) {
        // It fails only when the event descriptor is gone, which is at the end.
        let _ = self.waker.wake();
    }
}

/// The engine's end.
struct Slit(Arc<Mail>);

impl fmt::Debug for Slit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slit")
    }
}

impl Letterbox for Slit {
    fn post(&mut self, judged: Judged) {
        self.0.posted.lock().unwrap_or_else(PoisonError::into_inner).push_back(judged);
        self.0.wake();
    }
}

/// The thread.
pub(super) struct Letters {
    mail: Arc<Mail>,
    thread: JoinHandle<()>,
}

impl Letters {
    /// Starts it.
    ///
    /// # Errors
    /// The system gives no thread or no epoll.
    pub(super) fn start(config: LettersConfig, shared: Arc<Shared>, report: Report) -> io::Result<Letters> {
        let driver = Driver::new()?;
        let (posted, ended) = (Mutex::new(VecDeque::new()), AtomicBool::new(false));
        let mail = Arc::new(Mail { posted, ended, waker: driver.waker() });
        let postman = Postman::new(config, driver, mail.clone(), shared, report);
        let thread = thread::Builder::new().name("letters".to_owned()).spawn(move || postman.run())?;
        Ok(Letters { mail, thread })
    }

    /// Where letters are posted.
    pub(super) fn letterbox(&self) -> Box<dyn Letterbox> {
        Box::new(Slit(self.mail.clone()))
    }

    /// The run is over: what is not acknowledged by now belongs to records that are unfinished and come again. The
    /// thread ends within a turn of its loop.
    pub(super) fn end(self) {
        self.mail.ended.store(true, Ordering::Release);
        self.mail.wake();
        // A panic has ended the process already.
        let _ = self.thread.join();
    }
}

/// Warns of a letter that its topic may delete as soon as it is there. Returns whether it did.
fn warn_of_age(config: &LettersConfig, judged: &Judged, timestamp_ms: i64, report: &Report) -> bool {
    let Some(retention) = config.place.retention else { return false };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let age = now.saturating_sub(Duration::from_millis(timestamp_ms.max(0).unsigned_abs()));
    if timestamp_ms < 0 || age < retention {
        return false;
    }
    let hours = |time: Duration| time.as_secs() / 3600;
    report.warning(format!(
        "{}: {} h old, and {} deletes records {} h after their own time: this letter and others may go at once; \
         set retention.ms=-1 there",
        judged.tried.name(),
        hours(age),
        config.topic,
        hours(retention)
    ));
    true
}

/// A try whose records are on their way.
struct Parcel {
    judged: Judged,
    /// Records whose outcome is open.
    left: usize,
    refused: Option<Refused>,
    posted_at: Duration,
}

struct Postman {
    config: LettersConfig,
    driver: Driver,
    producer: Producer,
    mail: Arc<Mail>,
    shared: Arc<Shared>,
    report: Report,
    /// Posted and not yet with the producer.
    waiting: VecDeque<Judged>,
    parcels: BTreeMap<u64, Parcel>,
    parcel_number: u64,
    /// The parcel of each record that is with the producer, by its slot and number there.
    records: BTreeMap<(Slot, u64), u64>,
    /// Whether it was said that letters are late.
    said_late: bool,
    /// Whether it was said that letters are older than their topic keeps.
    said_old: bool,
}

impl Postman {
    fn new(
        config: LettersConfig,
        driver: Driver,
        mail: Arc<Mail>,
        shared: Arc<Shared>,
        report: Report,
    ) -> Postman {
        let mut net = Net::new(config.net.clone());
        let topics = BTreeSet::from([config.topic.clone()]);
        net.set_interest(Interest::Topics(topics), driver.now());
        let producer = Producer::new(net, produce_config(&config.net, DELIVERY_TIMEOUT));
        Postman {
            config,
            driver,
            producer,
            mail,
            shared,
            report,
            waiting: VecDeque::new(),
            parcels: BTreeMap::new(),
            parcel_number: 0,
            records: BTreeMap::new(),
            said_late: false,
            said_old: false,
        }
    }

    fn run(mut self) {
        while !self.mail.ended.load(Ordering::Acquire) {
            self.waiting.extend(self.mail.take());
            let now = self.driver.now();
            self.append(now);
            let late_at = self.late_at().filter(|_| !self.said_late);
            if let Err(error) = self.driver.turn(&mut self.producer, late_at) {
                let text = format!("the system refuses what keylane needs: {error}");
                return self.shared.settle(&mut Vec::new(), Some(Failure::Handler(Exit::Bug, text)));
            }
            let now = self.driver.now();
            while let Some(delivery) = self.producer.next_delivery() {
                self.on_delivery(delivery);
            }
            self.refuse_all_if_hopeless();
            self.say_state(now);
        }
    }

    /// Gives the producer what it has room for.
    fn append(&mut self, now: Duration) {
        while let Some(judged) = self.waiting.pop_front() {
            // All records of a try or none: the rest of it would have to be remembered.
            if self.producer.buffered_bytes() >= BUFFERED_BYTES_MAX {
                return self.waiting.push_front(judged);
            }
            self.parcel_number += 1;
            let number = self.parcel_number;
            let (mut left, mut refused) = (0, None);
            for record in judged.tried.records() {
                let (batch, index) = (record.batch, record.index as usize);
                let parsed = Record::parse(&batch.header, &batch.payload, batch.positions[index]);
                let appended = parsed.map_err(|error| error.to_string()).and_then(|parsed| {
                    self.said_old = self.said_old
                        || warn_of_age(&self.config, &judged, parsed.timestamp_ms, &self.report);
                    let origin = Origin {
                        topic: batch.topic.to_string(),
                        partition: batch.partition,
                        offset: parsed.offset,
                        timestamp_ms: parsed.timestamp_ms,
                        group: self.config.group.clone(),
                        attempts: judged.tried.attempt,
                        reason: judged.failed.reason.clone(),
                        exit: end_text(&judged.failed),
                    };
                    post(&mut self.producer, &self.config, &origin, &parsed, now)
                });
                match appended {
                    Ok(key) => {
                        self.records.insert(key, number);
                        left += 1;
                    }
                    Err(why) => refused = Some(Refused { why, exit: Exit::Record }),
                }
            }
            let parcel = Parcel { judged, left, refused, posted_at: now };
            self.parcels.insert(number, parcel);
            self.finish_if_done(number);
        }
    }

    fn on_delivery(&mut self, delivery: Delivery) {
        let refused = delivery.result.err().map(|error| refused(&error));
        for number in delivery.first..delivery.first + u64::from(delivery.count) {
            // Its parcel may have been refused with the whole producer meanwhile.
            let Some(parcel) = self.records.remove(&(delivery.slot, number)) else { continue };
            if let Some(open) = self.parcels.get_mut(&parcel) {
                open.left -= 1;
                open.refused = open.refused.take().or_else(|| refused.clone());
            }
            self.finish_if_done(parcel);
        }
    }

    fn finish_if_done(&mut self, number: u64) {
        if self.parcels.get(&number).is_none_or(|parcel| parcel.left > 0) {
            return;
        }
        let Some(parcel) = self.parcels.remove(&number) else { return };
        self.shared.letter_done(parcel.judged, parcel.refused);
    }

    /// Without a producer id no letter can ever be sent.
    fn refuse_all_if_hopeless(&mut self) {
        let Some(error) = self.producer.failure().filter(|_| !self.parcels.is_empty()) else { return };
        let refused = refused(error);
        self.records.clear();
        for parcel in std::mem::take(&mut self.parcels).into_values() {
            self.shared.letter_done(parcel.judged, Some(refused.clone()));
        }
    }

    /// When the oldest letter that is on its way is late.
    fn late_at(&self) -> Option<Duration> {
        // Numbers rise with time.
        self.parcels.values().next().map(|oldest| oldest.posted_at + LATE)
    }

    /// One line when letters begin to be late, one when none is any more.
    fn say_state(&mut self, now: Duration) {
        let is_late = self.late_at().is_some_and(|late_at| late_at <= now);
        if is_late == self.said_late {
            return;
        }
        self.said_late = is_late;
        let letters = self.parcels.len() + self.waiting.len();
        let why = self.why_late();
        let topic = &self.config.topic;
        if is_late {
            self.report.warning(format!(
                "{letters} dead letters wait for topic {topic} ({why}); their records stay unfinished until it takes \
                 them"
            ));
        } else {
            self.report.note(format!("dead-letter topic {topic} takes letters again"));
        }
    }

    fn why_late(&mut self) -> String {
        if let Some(error) = self.producer.retry_error() {
            return error.to_string();
        }
        let topic = &self.config.topic;
        if let Some(TopicState::Refused(code)) = self.producer.net().metadata().topics.get(topic) {
            return code_name(*code);
        }
        match self.producer.net().last_error() {
            Some(error) => error.to_string(),
            None => "no answer yet".to_owned(),
        }
    }
}

/// What a refusal by the cluster means for the run.
fn refused(error: &Error) -> Refused {
    Refused { why: error.to_string(), exit: exit_of_refusal(error) }
}

/// Hands a letter to the producer; returns its name there, or why no batch can hold it.
fn post(
    producer: &mut Producer,
    config: &LettersConfig,
    origin: &Origin,
    record: &Record<'_>,
    now: Duration,
) -> Result<(Slot, u64), String> {
    let known = producer.net().metadata().topic(&config.topic).map_or(0, |topic| topic.partitions.len());
    let partitions = u32::try_from(known).ok().and_then(NonZeroU32::new).unwrap_or(config.place.partitions);
    let partition = match record.key {
        Some(key) => partitioner::partition(key, partitions),
        None => origin.partition.rem_euclid(i32::try_from(partitions.get()).unwrap_or(i32::MAX)),
    };
    let slot = producer.slot(&TopicPartition::new(config.topic.as_str(), partition));
    let added = origin.headers();
    let added = added.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes())));
    let headers: Vec<Header<'_>> = record.headers().chain(added).collect();
    match producer.append(slot, record.key, record.value, &headers, record.timestamp_ms, now) {
        Ok(number) => Ok((slot, number)),
        Err(AppendError::Record(error)) => Err(error.to_string()),
        Err(AppendError::Full) => unreachable!("the producer's own limit is never reached"),
    }
}
