//! The transaction coordinator: who may write under a transactional id, and what its open transaction holds (KIP-98,
//! KIP-360).
//!
//! It decides as Kafka does. Clients of both kinds are served, told apart by the version of each request: those that
//! add partitions before they write to them and keep their epoch, and those of transaction version 2 (KIP-890), whose
//! every transaction has an epoch of its own. Markers are written in the step that ends a transaction, so the states
//! between (PrepareCommit, PrepareAbort) are never seen.
//! No knowledge of logs and connections: what is to be done elsewhere comes back as [`Ended`].
//!
//! Invariants: partitions and groups are only held while the state is [`Phase::Ongoing`]; at most [`IDS_MAX`] ids.

mod markers;
#[cfg(test)]
mod tests;

use kafka_protocol::ResponseError;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// `transaction.max.timeout.ms`.
const TIMEOUT_MS_MAX: i32 = 900_000;
/// Beyond so many the longest idle is forgotten; Kafka forgets by time (a week).
const IDS_MAX: usize = 10_000;
/// No producer is given a later epoch, so that there is one left to fence it with.
const EPOCH_MAX: i16 = i16::MAX - 1;

/// A producer id and its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Producer {
    pub(crate) id: i64,
    pub(crate) epoch: i16,
}

/// What a transaction is at, under Kafka's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Empty,
    Ongoing,
    CompleteCommit,
    CompleteAbort,
}

impl Phase {
    pub(crate) const ALL: [Phase; 4] =
        [Phase::Empty, Phase::Ongoing, Phase::CompleteCommit, Phase::CompleteAbort];

    /// As DescribeTransactions says it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Empty => "Empty",
            Phase::Ongoing => "Ongoing",
            Phase::CompleteCommit => "CompleteCommit",
            Phase::CompleteAbort => "CompleteAbort",
        }
    }
}

/// One transactional id.
#[derive(Debug)]
pub(crate) struct Transaction {
    pub(crate) producer: Producer,
    /// What it was before the last InitProducerId, if that told who it was, or before the last EndTxn that changed it:
    /// whoever asks again with this has not had the answer.
    before: Option<Producer>,
    pub(crate) timeout_ms: i32,
    pub(crate) phase: Phase,
    pub(crate) partitions: BTreeSet<(String, i32)>,
    groups: BTreeSet<String>,
    /// When the open transaction began, or the last one did.
    pub(crate) started: Option<Duration>,
    used: Duration,
}

impl Transaction {
    fn deadline(&self) -> Option<Duration> {
        let timeout = Duration::from_millis(u64::try_from(self.timeout_ms).unwrap_or(0));
        let started = self.started.filter(|_| self.phase == Phase::Ongoing);
        started.map(|started| started.saturating_add(timeout))
    }

    /// Whether `producer` is who may write.
    fn check(&self, producer: Producer) -> Result<(), ResponseError> {
        if self.producer.id != producer.id {
            Err(ResponseError::InvalidProducerIdMapping)
        } else if self.producer.epoch != producer.epoch {
            Err(ResponseError::ProducerFenced)
        } else {
            Ok(())
        }
    }

    fn begin(&mut self, now: Duration) {
        if self.phase != Phase::Ongoing {
            self.phase = Phase::Ongoing;
            self.started = Some(now);
        }
        self.used = now;
    }

    fn end(&mut self, commit: bool) -> Ended {
        self.phase = if commit { Phase::CompleteCommit } else { Phase::CompleteAbort };
        self.groups.clear();
        Ended { producer: self.producer, commit, partitions: std::mem::take(&mut self.partitions) }
    }

    /// Ends under an epoch that the producer then goes on with; the marker has it already, and so shuts out what is
    /// late. With no epoch left it goes on with a new id.
    fn end_and_renew(&mut self, commit: bool, fresh_id: i64) -> Ended {
        let current = self.producer;
        let marker = Producer { epoch: current.epoch.saturating_add(1), ..current };
        self.before = Some(current);
        self.producer = if current.epoch >= EPOCH_MAX { Producer { id: fresh_id, epoch: 0 } } else { marker };
        Ended { producer: marker, ..self.end(commit) }
    }

    /// Whether `known` is who asked for the end that there has been, and asks again.
    fn was(&self, known: Producer) -> bool {
        let bumped = self.producer.id == known.id && known.epoch.checked_add(1) == Some(self.producer.epoch);
        let renewed = self.before == Some(known) && known.epoch == EPOCH_MAX && self.producer.epoch == 0;
        bumped || renewed
    }

    /// Shuts the current producer out by an epoch that is given to nobody, and aborts what it had open.
    fn fence(&mut self) -> Ended {
        self.producer.epoch += 1;
        self.before = None;
        self.end(false)
    }

    /// The next epoch or producer id. With `known`, only for the producer that it names.
    fn renew(&mut self, known: Option<Producer>, fresh_id: i64) -> Result<Producer, ResponseError> {
        let current = self.producer;
        match known {
            Some(known) if known.epoch != current.epoch => {
                return if self.before.is_some_and(|before| before.epoch == known.epoch) {
                    Ok(current)
                } else {
                    Err(ResponseError::ProducerFenced)
                };
            }
            _ => {}
        }
        self.before = known.map(|_| current);
        self.producer = if current.epoch >= EPOCH_MAX {
            Producer { id: fresh_id, epoch: 0 }
        } else {
            Producer { epoch: current.epoch + 1, ..current }
        };
        Ok(self.producer)
    }

    /// Whether a producer that says it was `known` may go on under this id at all.
    fn may_be(&self, known: Producer) -> bool {
        let repeated = |before: Producer| before.id == known.id && known.epoch >= EPOCH_MAX;
        self.producer.id == known.id || self.before.is_some_and(repeated)
    }
}

/// A transaction that has ended: its markers are to be written and the offsets that it holds back let go or dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) producer: Producer,
    pub(crate) commit: bool,
    pub(crate) partitions: BTreeSet<(String, i32)>,
}

/// What InitProducerId asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Init<'a> {
    pub(crate) transactional_id: Option<&'a str>,
    pub(crate) timeout_ms: i32,
    /// What the producer was before (KIP-360), both -1 if it is new.
    pub(crate) known: Producer,
}

/// The coordinator of all transactional ids.
#[derive(Debug, Default)]
pub(crate) struct Transactions {
    next_producer_id: i64,
    by_id: BTreeMap<String, Transaction>,
}

impl Transactions {
    /// InitProducerId. An open transaction is aborted, which the answer does not wait for in Kafka: the client is told
    /// CONCURRENT_TRANSACTIONS and asks again.
    ///
    /// # Errors
    /// The code to answer; the transaction beside it is to be ended all the same.
    pub(crate) fn init(
        &mut self,
        asked: Init<'_>,
        now: Duration,
    ) -> (Result<Producer, ResponseError>, Option<Ended>) {
        let known = match (asked.known.id, asked.known.epoch) {
            (-1, -1) => None,
            (-1, _) | (_, -1) => return (Err(ResponseError::InvalidRequest), None),
            _ => Some(asked.known),
        };
        let Some(transactional_id) = asked.transactional_id else {
            return (Ok(Producer { id: self.fresh_producer_id(), epoch: 0 }), None);
        };
        if transactional_id.is_empty() {
            return (Err(ResponseError::InvalidRequest), None);
        }
        if !(1..=TIMEOUT_MS_MAX).contains(&asked.timeout_ms) {
            return (Err(ResponseError::InvalidTransactionTimeout), None);
        }
        let Some(found) = self.by_id.get_mut(transactional_id) else {
            return (Ok(self.begin_id(transactional_id, asked.timeout_ms, now)), None);
        };
        if known.is_some_and(|known| !found.may_be(known)) {
            return (Err(ResponseError::ProducerFenced), None);
        }
        if found.phase == Phase::Ongoing {
            return (Err(ResponseError::ConcurrentTransactions), Some(found.fence()));
        }
        let fresh_id = self.next_producer_id;
        let renewed = found.renew(known, fresh_id);
        if let Ok(renewed) = renewed {
            found.phase = Phase::Empty;
            found.timeout_ms = asked.timeout_ms;
            (found.started, found.used) = (None, now);
            if renewed.id == fresh_id {
                self.next_producer_id += 1;
            }
        }
        (renewed, None)
    }

    fn begin_id(&mut self, transactional_id: &str, timeout_ms: i32, now: Duration) -> Producer {
        if self.by_id.len() >= IDS_MAX {
            self.forget_idle();
        }
        let producer = Producer { id: self.fresh_producer_id(), epoch: 0 };
        let transaction = Transaction {
            producer,
            before: None,
            timeout_ms,
            phase: Phase::Empty,
            partitions: BTreeSet::new(),
            groups: BTreeSet::new(),
            started: None,
            used: now,
        };
        self.by_id.insert(transactional_id.to_owned(), transaction);
        producer
    }

    fn fresh_producer_id(&mut self) -> i64 {
        self.next_producer_id += 1;
        self.next_producer_id - 1
    }

    /// Those with an open transaction end by their timeout and are idle then.
    fn forget_idle(&mut self) {
        let idle = self.by_id.iter().filter(|(_, transaction)| transaction.phase != Phase::Ongoing);
        if let Some(id) = idle.min_by_key(|(_, transaction)| transaction.used).map(|(id, _)| id.clone()) {
            self.by_id.remove(&id);
        }
    }

    fn checked(
        &mut self,
        transactional_id: &str,
        producer: Producer,
    ) -> Result<&mut Transaction, ResponseError> {
        if transactional_id.is_empty() {
            return Err(ResponseError::InvalidRequest);
        }
        let found = self.by_id.get_mut(transactional_id).ok_or(ResponseError::InvalidProducerIdMapping)?;
        found.check(producer)?;
        Ok(found)
    }

    /// AddPartitionsToTxn: begins a transaction if none is open.
    ///
    /// # Errors
    /// INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, or INVALID_REQUEST.
    pub(crate) fn add_partitions(
        &mut self,
        transactional_id: &str,
        producer: Producer,
        partitions: impl IntoIterator<Item = (String, i32)>,
        now: Duration,
    ) -> Result<(), ResponseError> {
        let found = self.checked(transactional_id, producer)?;
        found.begin(now);
        found.partitions.extend(partitions);
        Ok(())
    }

    /// AddOffsetsToTxn: begins a transaction if none is open.
    ///
    /// # Errors
    /// As [`Transactions::add_partitions`].
    pub(crate) fn add_group(
        &mut self,
        transactional_id: &str,
        producer: Producer,
        group: &str,
        now: Duration,
    ) -> Result<(), ResponseError> {
        let found = self.checked(transactional_id, producer)?;
        found.begin(now);
        found.groups.insert(group.to_owned());
        Ok(())
    }

    /// EndTxn. `None`: it had been ended so before.
    ///
    /// # Errors
    /// INVALID_TXN_STATE, or as [`Transactions::add_partitions`].
    pub(crate) fn end(
        &mut self,
        transactional_id: &str,
        producer: Producer,
        commit: bool,
    ) -> Result<Option<Ended>, ResponseError> {
        let found = self.checked(transactional_id, producer)?;
        match (found.phase, commit) {
            (Phase::Ongoing, _) => Ok(Some(found.end(commit))),
            (Phase::CompleteCommit, true) | (Phase::CompleteAbort, false) => Ok(None),
            (Phase::Empty | Phase::CompleteCommit | Phase::CompleteAbort, _) => {
                Err(ResponseError::InvalidTxnState)
            }
        }
    }

    /// EndTxn of transaction version 2 (KIP-890): with who the producer is from now on. Such a client does not know
    /// whether anything was added, so it may abort nothing.
    ///
    /// # Errors
    /// INVALID_TXN_STATE, or as [`Transactions::add_partitions`].
    pub(crate) fn end_and_renew(
        &mut self,
        transactional_id: &str,
        producer: Producer,
        commit: bool,
    ) -> Result<(Producer, Option<Ended>), ResponseError> {
        if transactional_id.is_empty() {
            return Err(ResponseError::InvalidRequest);
        }
        let fresh_id = self.next_producer_id;
        let found = self.by_id.get_mut(transactional_id).ok_or(ResponseError::InvalidProducerIdMapping)?;
        let complete = matches!(found.phase, Phase::CompleteCommit | Phase::CompleteAbort);
        if complete && found.was(producer) {
            let same = commit == (found.phase == Phase::CompleteCommit);
            return if same { Ok((found.producer, None)) } else { Err(ResponseError::InvalidTxnState) };
        }
        found.check(producer)?;
        if commit && found.phase != Phase::Ongoing {
            return Err(ResponseError::InvalidTxnState);
        }
        let ended = found.end_and_renew(commit, fresh_id);
        if found.producer.id == fresh_id {
            self.next_producer_id += 1;
        }
        Ok((found.producer, Some(ended)))
    }

    /// Whether a partition has been added to the open transaction (KIP-890: before its first batch is stored).
    ///
    /// # Errors
    /// TRANSACTION_ABORTABLE if not, INVALID_PRODUCER_ID_MAPPING, or INVALID_PRODUCER_EPOCH.
    pub(crate) fn verify_partition(
        &self,
        transactional_id: &str,
        producer: Producer,
        topic: &str,
        partition: i32,
    ) -> Result<(), ResponseError> {
        let found = self.verified(transactional_id, producer)?;
        let added = found.partitions.iter().any(|(name, index)| name == topic && *index == partition);
        if added { Ok(()) } else { Err(ResponseError::TransactionAbortable) }
    }

    /// Whether the offsets of a group have been added to the open transaction, before TxnOffsetCommit holds any.
    ///
    /// # Errors
    /// As [`Transactions::verify_partition`].
    pub(crate) fn verify_group(
        &self,
        transactional_id: &str,
        producer: Producer,
        group: &str,
    ) -> Result<(), ResponseError> {
        let found = self.verified(transactional_id, producer)?;
        if found.groups.contains(group) { Ok(()) } else { Err(ResponseError::TransactionAbortable) }
    }

    fn verified(&self, transactional_id: &str, producer: Producer) -> Result<&Transaction, ResponseError> {
        let found = self.by_id.get(transactional_id).ok_or(ResponseError::InvalidProducerIdMapping)?;
        match found.check(producer) {
            // What comes back from a partition leader says it by the older name.
            Err(ResponseError::ProducerFenced) => Err(ResponseError::InvalidProducerEpoch),
            checked => checked.map(|()| found),
        }
    }

    /// When [`Transactions::poll`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.by_id.values().filter_map(Transaction::deadline).min()
    }

    /// Aborts the transactions that have been open for too long; their producers are fenced.
    pub(crate) fn poll(&mut self, now: Duration) -> Vec<Ended> {
        let late = |transaction: &&mut Transaction| transaction.deadline().is_some_and(|due| due <= now);
        self.by_id.values_mut().filter(late).map(Transaction::fence).collect()
    }

    /// What is known of a transactional id.
    pub(crate) fn get(&self, transactional_id: &str) -> Option<&Transaction> {
        self.by_id.get(transactional_id)
    }

    /// All transactional ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Transaction)> {
        self.by_id.iter().map(|(id, transaction)| (id.as_str(), transaction))
    }
}

/// What a verification that failed is told as: older clients do not know TRANSACTION_ABORTABLE (KIP-890) yet.
pub(crate) fn told_unverified(error: ResponseError, knows_abortable: bool) -> i16 {
    match error {
        ResponseError::TransactionAbortable if !knows_abortable => ResponseError::InvalidTxnState.code(),
        error => error.code(),
    }
}

/// What clients of old versions are told, who do not know PRODUCER_FENCED yet.
pub(crate) fn told(error: ResponseError, knows_fenced: bool) -> i16 {
    match error {
        ResponseError::ProducerFenced if !knows_fenced => ResponseError::InvalidProducerEpoch.code(),
        error => error.code(),
    }
}
