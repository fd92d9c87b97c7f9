//! ListOffsets of many partitions: each is asked of its leader, and again where the leader moved.
//!
//! Every partition ends with one value or one error. All partitions of a leader go in one request.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Answer, Question};
use crate::api::Api;
use crate::error::{Class, Error, Fault};
use crate::metadata::{Metadata, TopicPartition, TopicState};
use crate::offsets::Isolation;

/// What is known of a partition's offset: none = no record is as new as the timestamp.
pub type Found = BTreeMap<TopicPartition, Result<Option<i64>, Error>>;

#[derive(Debug)]
enum State {
    /// To be asked, not before this.
    Open(Duration),
    /// To be asked once the metadata names a leader.
    Leaderless,
    Asked,
    Known(Result<Option<i64>, Error>),
}

/// A search for offsets.
#[derive(Debug)]
pub struct OffsetSearch {
    timestamp: i64,
    isolation: Isolation,
    partitions: BTreeMap<TopicPartition, State>,
    /// Why a partition was not readable the last time.
    last_error: Option<Error>,
    wants_metadata: bool,
}

impl OffsetSearch {
    /// A search for the offset at `timestamp` ([`EARLIEST`](crate::offsets::EARLIEST),
    /// [`LATEST`](crate::offsets::LATEST), ms since 1970).
    pub fn new(
        timestamp: i64,
        isolation: Isolation,
        partitions: impl IntoIterator<Item = TopicPartition>,
    ) -> Self {
        let partitions = partitions.into_iter().map(|at| (at, State::Open(Duration::ZERO))).collect();
        OffsetSearch { timestamp, isolation, partitions, last_error: None, wants_metadata: false }
    }

    /// What to ask now, of which node.
    pub fn due(&mut self, metadata: &Metadata, now: Duration) -> Vec<(i32, Question)> {
        let mut by_node: BTreeMap<i32, Vec<(TopicPartition, i32)>> = BTreeMap::new();
        for (at, state) in &mut self.partitions {
            match state {
                State::Leaderless => {}
                State::Open(not_before) if *not_before <= now => {}
                _ => continue,
            }
            if let Some((node, epoch)) = metadata.leader(at) {
                by_node.entry(node).or_default().push((at.clone(), epoch));
                *state = State::Asked;
            } else if let Some(error) = no_leader(metadata, at) {
                *state = State::Known(Err(error));
            } else {
                // A topic that is not there at all is on its way: the one who asks keeps an interest in it.
                self.wants_metadata |= metadata.topic(&at.topic).is_some();
                *state = State::Leaderless;
            }
        }
        let (timestamp, isolation) = (self.timestamp, self.isolation);
        by_node
            .into_iter()
            .map(|(node, partitions)| (node, Question::ListOffsets { timestamp, isolation, partitions }))
            .collect()
    }

    /// Takes the outcome of a question of [`OffsetSearch::due`]. What is worth another try waits until `again_at`;
    /// says whether anything is.
    pub fn take(&mut self, question: &Question, outcome: Result<Answer, Error>, again_at: Duration) -> bool {
        let mut again = false;
        let Question::ListOffsets { partitions, .. } = question else {
            unreachable!("only ListOffsets is asked")
        };
        let mut offsets = match outcome {
            Ok(Answer::Offsets(offsets)) => Ok(offsets),
            Ok(_) => unreachable!("ListOffsets reads as offsets"),
            Err(error) => Err(error),
        };
        for (at, _) in partitions {
            let result = match &mut offsets {
                Ok(offsets) => offsets.remove(at).unwrap_or_else(|| {
                    let error = Error::peer("the answer leaves out what was asked for");
                    Err(error.at_api(Api::ListOffsets).at_partition(&at.topic, at.partition))
                }),
                Err(error) => Err(error.clone().at_partition(&at.topic, at.partition)),
            };
            let state = match result {
                Err(error)
                    if matches!(
                        error.class(),
                        Class::Retry | Class::Leader | Class::Topic | Class::Coordinator
                    ) =>
                {
                    again = true;
                    self.wants_metadata = true;
                    self.last_error = Some(error);
                    State::Open(again_at)
                }
                result => State::Known(result),
            };
            self.partitions.insert(at.clone(), state);
        }
        again
    }

    /// Whether newer metadata is needed; says so once.
    pub fn take_wants_metadata(&mut self) -> bool {
        std::mem::take(&mut self.wants_metadata)
    }

    /// Whether every partition has its value or error.
    pub fn is_done(&self) -> bool {
        self.partitions.values().all(|state| matches!(state, State::Known(_)))
    }

    /// When the next partition may be asked again.
    pub fn deadline(&self) -> Option<Duration> {
        let open = self.partitions.values().filter_map(|state| match state {
            State::Open(not_before) => Some(*not_before),
            _ => None,
        });
        open.min()
    }

    /// What was found. A partition without a value gets the newest error.
    pub fn finish(self, waited: Duration) -> Found {
        let late =
            self.last_error.unwrap_or_else(|| Error::new(Fault::TimedOut(waited)).at_api(Api::ListOffsets));
        self.partitions
            .into_iter()
            .map(|(at, state)| match state {
                State::Known(result) => (at, result),
                _ => {
                    let error = late.clone();
                    (at, Err(error))
                }
            })
            .collect()
    }
}

/// Why a partition will have no leader however often the metadata is fetched.
fn no_leader(metadata: &Metadata, at: &TopicPartition) -> Option<Error> {
    let missing = |code: i16| Error::refused(Api::Metadata, code, None).at_partition(&at.topic, at.partition);
    match metadata.topics.get(&*at.topic) {
        Some(TopicState::Refused(code)) => Some(missing(*code)),
        Some(TopicState::Known(topic)) if !topic.partitions.contains_key(&at.partition) => {
            Some(missing(crate::error::code::UNKNOWN_TOPIC_OR_PARTITION))
        }
        _ => None,
    }
}
