//! What can go wrong, who is at fault, and what a client does about it.
//!
//! An [`Error`] names the fault and where it happened (broker, API, topic, partition, offset, group). Whether a
//! code of Kafka's is worth another try is decided in one place, [`classify`]; nothing else compares codes to
//! choose between retry and failure.

use std::fmt;
use std::time::Duration;

use kafka_protocol::error::ResponseError;

use crate::api::Api;
use crate::records::BatchError;

/// Kafka's error codes that keylane's code names. The full table is in the protocol guide, "Error codes".
pub mod code {
    #![allow(missing_docs)] // the names are Kafka's own
    pub const UNKNOWN_SERVER_ERROR: i16 = -1;
    pub const NONE: i16 = 0;
    pub const OFFSET_OUT_OF_RANGE: i16 = 1;
    pub const CORRUPT_MESSAGE: i16 = 2;
    pub const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
    pub const LEADER_NOT_AVAILABLE: i16 = 5;
    pub const NOT_LEADER_OR_FOLLOWER: i16 = 6;
    pub const MESSAGE_TOO_LARGE: i16 = 10;
    pub const COORDINATOR_LOAD_IN_PROGRESS: i16 = 14;
    pub const COORDINATOR_NOT_AVAILABLE: i16 = 15;
    pub const NOT_COORDINATOR: i16 = 16;
    pub const INVALID_TOPIC: i16 = 17;
    pub const ILLEGAL_GENERATION: i16 = 22;
    pub const INCONSISTENT_GROUP_PROTOCOL: i16 = 23;
    pub const UNKNOWN_MEMBER_ID: i16 = 25;
    pub const INVALID_SESSION_TIMEOUT: i16 = 26;
    pub const REBALANCE_IN_PROGRESS: i16 = 27;
    pub const TOPIC_AUTHORIZATION_FAILED: i16 = 29;
    pub const GROUP_AUTHORIZATION_FAILED: i16 = 30;
    pub const CLUSTER_AUTHORIZATION_FAILED: i16 = 31;
    pub const UNSUPPORTED_VERSION: i16 = 35;
    pub const TOPIC_ALREADY_EXISTS: i16 = 36;
    pub const OUT_OF_ORDER_SEQUENCE_NUMBER: i16 = 45;
    pub const DUPLICATE_SEQUENCE_NUMBER: i16 = 46;
    pub const INVALID_PRODUCER_EPOCH: i16 = 47;
    pub const UNKNOWN_PRODUCER_ID: i16 = 59;
    pub const NON_EMPTY_GROUP: i16 = 68;
    pub const GROUP_ID_NOT_FOUND: i16 = 69;
    pub const FETCH_SESSION_ID_NOT_FOUND: i16 = 70;
    pub const INVALID_FETCH_SESSION_EPOCH: i16 = 71;
    pub const FENCED_LEADER_EPOCH: i16 = 74;
    pub const UNKNOWN_LEADER_EPOCH: i16 = 75;
    pub const OFFSET_NOT_AVAILABLE: i16 = 78;
    pub const MEMBER_ID_REQUIRED: i16 = 79;
    pub const GROUP_MAX_SIZE_REACHED: i16 = 81;
    pub const FENCED_INSTANCE_ID: i16 = 82;
    pub const UNSTABLE_OFFSET_COMMIT: i16 = 88;
    pub const UNKNOWN_TOPIC_ID: i16 = 100;
    pub const INCONSISTENT_TOPIC_ID: i16 = 103;
    pub const FETCH_SESSION_TOPIC_ID_ERROR: i16 = 106;
}

/// The name of an error code in Kafka's spelling, as `UNKNOWN_MEMBER_ID`.
pub fn code_name(code: i16) -> String {
    match ResponseError::try_from_code(code) {
        None => "NONE".to_owned(),
        Some(ResponseError::Unknown(code)) => format!("ERROR_{code}"),
        Some(error) => {
            let mut name = String::new();
            for (at, letter) in format!("{error:?}").char_indices() {
                if letter.is_ascii_uppercase() && at > 0 {
                    name.push('_');
                }
                name.push(letter.to_ascii_uppercase());
            }
            name
        }
    }
}

/// What a client does about an error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// No error.
    Fine,
    /// Ask the same broker again after a pause.
    Retry,
    /// The leader moved or is not known here: refresh the metadata, then ask again.
    Leader,
    /// The coordinator moved or is not ready: find it again, then ask again.
    Coordinator,
    /// The topic is missing or is not the one that was asked for: refresh the metadata and decide by topic id.
    Topic,
    /// The group's membership decides (generation, member id, rebalance).
    Membership,
    /// This program may not do that: authentication or authorization.
    Denied,
    /// The cluster refuses for good.
    Refused,
}

/// The one table: what a client does about `code` in an answer to `api`.
///
/// Codes that mean one thing everywhere stand first; an API's own reading of a code is a line of its own.
/// A code that a newer broker invents is [`Class::Refused`], but for those that Kafka marks retriable.
pub fn classify(api: Api, code: i16) -> Class {
    use code::*;
    match (api, code) {
        (_, NONE) => Class::Fine,
        // Deleting what is gone already, or creating what is there, is for the caller to read.
        (Api::DeleteTopics | Api::DeleteGroups, UNKNOWN_TOPIC_OR_PARTITION) => Class::Refused,
        // The answer to a stored batch whose first answer was lost (KIP-98).
        (Api::Produce, DUPLICATE_SEQUENCE_NUMBER) => Class::Fine,
        // A transaction is open on these offsets: wait as long as it takes (KIP-447).
        (Api::OffsetFetch, UNSTABLE_OFFSET_COMMIT) => Class::Retry,
        // What went wrong at the leader may be over at the next look, or at the next leader; as Java has it.
        (Api::Fetch | Api::ListOffsets | Api::OffsetForLeaderEpoch | Api::Metadata, UNKNOWN_SERVER_ERROR) => {
            Class::Leader
        }
        (
            _,
            LEADER_NOT_AVAILABLE
            | NOT_LEADER_OR_FOLLOWER
            | FENCED_LEADER_EPOCH
            | UNKNOWN_LEADER_EPOCH
            | OFFSET_NOT_AVAILABLE
            | 9
            | 56,
        ) => Class::Leader,
        (_, COORDINATOR_LOAD_IN_PROGRESS) => Class::Retry,
        (_, COORDINATOR_NOT_AVAILABLE | NOT_COORDINATOR) => Class::Coordinator,
        (
            _,
            UNKNOWN_TOPIC_OR_PARTITION
            | UNKNOWN_TOPIC_ID
            | INCONSISTENT_TOPIC_ID
            | FETCH_SESSION_TOPIC_ID_ERROR,
        ) => Class::Topic,
        (
            _,
            ILLEGAL_GENERATION
            | UNKNOWN_MEMBER_ID
            | REBALANCE_IN_PROGRESS
            | MEMBER_ID_REQUIRED
            | FENCED_INSTANCE_ID,
        ) => Class::Membership,
        (_, FETCH_SESSION_ID_NOT_FOUND | INVALID_FETCH_SESSION_EPOCH) => Class::Retry,
        // 53 transactional id, 54 security disabled, 57/58 SASL, 61 delegation tokens
        (
            _,
            TOPIC_AUTHORIZATION_FAILED
            | GROUP_AUTHORIZATION_FAILED
            | CLUSTER_AUTHORIZATION_FAILED
            | 53
            | 54
            | 57
            | 58
            | 61,
        ) => Class::Denied,
        (_, code) => match ResponseError::try_from_code(code) {
            Some(error) if error.is_retriable() => Class::Retry,
            _ => Class::Refused,
        },
    }
}

/// What went wrong, by who is at fault.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The broker sent bytes that break the protocol.
    Peer(String),
    /// The broker answered with an error code, and perhaps a text of its own.
    Refused(i16, Option<String>),
    /// Broker and keylane have no version of an API in common.
    Incompatible(String),
    /// No connection, or it was lost; the text is the system's reason.
    Disconnected(String),
    /// The connection was silent for this long while an answer was due.
    TimedOut(Duration),
    /// A record batch is damaged.
    Damaged(BatchError),
    /// What the caller asked for cannot be had, by the caller's own policy.
    Policy(String),
    /// Our own bug: a request that cannot be encoded.
    Misuse(String),
}

/// Where it went wrong. Whatever does not apply is left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Context {
    /// `host:port` and node id, as far as known.
    pub broker: Option<String>,
    /// The API that was asked.
    pub api: Option<Api>,
    /// The topic.
    pub topic: Option<String>,
    /// The partition of the topic.
    pub partition: Option<i32>,
    /// The offset in the partition.
    pub offset: Option<i64>,
    /// The consumer group.
    pub group: Option<String>,
}

/// A fault and where it happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    /// What went wrong.
    pub fault: Fault,
    /// Where it went wrong. Boxed: errors travel in results on hot paths.
    pub context: Box<Context>,
}

impl Error {
    /// An error without context.
    pub fn new(fault: Fault) -> Self {
        Error { fault, context: Box::default() }
    }

    /// The broker's error code, with its text.
    pub fn refused(api: Api, code: i16, message: Option<String>) -> Self {
        let mut error = Error::new(Fault::Refused(code, message));
        error.context.api = Some(api);
        error
    }

    /// The peer broke the protocol.
    pub fn peer(what: impl Into<String>) -> Self {
        Error::new(Fault::Peer(what.into()))
    }

    /// Adds the API.
    pub fn at_api(mut self, api: Api) -> Self {
        self.context.api.get_or_insert(api);
        self
    }

    /// Adds the broker.
    pub fn at_broker(mut self, broker: impl Into<String>) -> Self {
        self.context.broker.get_or_insert(broker.into());
        self
    }

    /// Adds the topic and partition.
    pub fn at_partition(mut self, topic: &str, partition: i32) -> Self {
        self.context.topic.get_or_insert_with(|| topic.to_owned());
        self.context.partition.get_or_insert(partition);
        self
    }

    /// Adds the topic.
    pub fn at_topic(mut self, topic: &str) -> Self {
        self.context.topic.get_or_insert_with(|| topic.to_owned());
        self
    }

    /// Adds the offset.
    pub fn at_offset(mut self, offset: i64) -> Self {
        self.context.offset.get_or_insert(offset);
        self
    }

    /// Adds the group.
    pub fn at_group(mut self, group: &str) -> Self {
        self.context.group.get_or_insert_with(|| group.to_owned());
        self
    }

    /// The broker's error code, where there is one.
    pub fn code(&self) -> Option<i16> {
        match self.fault {
            Fault::Refused(code, _) => Some(code),
            _ => None,
        }
    }

    /// What a client does about it. Lost connections and silence are worth another try; broken protocol is not.
    pub fn class(&self) -> Class {
        match (&self.fault, self.context.api) {
            (Fault::Refused(code, _), Some(api)) => classify(api, *code),
            (Fault::Disconnected(_) | Fault::TimedOut(_), _) => Class::Retry,
            _ => Class::Refused,
        }
    }
}

/// What a person can do about a code; empty where the name says it all.
fn advice(code: i16) -> &'static str {
    match code {
        code::TOPIC_AUTHORIZATION_FAILED => "ask for read or write access to the topic",
        code::GROUP_AUTHORIZATION_FAILED => "ask for read access to the group",
        code::CLUSTER_AUTHORIZATION_FAILED => "ask for access to the cluster",
        code::FENCED_INSTANCE_ID => "another process uses the same --instance-id; give each its own",
        code::INCONSISTENT_GROUP_PROTOCOL => {
            "the group's members use another assignor or protocol; give --assignor one that they all have, \
             or another -g"
        }
        code::GROUP_MAX_SIZE_REACHED => "the group is full; see group.max.size of the broker",
        code::INVALID_SESSION_TIMEOUT => {
            "session.timeout.ms is outside the broker's group.min/max.session.timeout.ms"
        }
        code::MESSAGE_TOO_LARGE => "see max.message.bytes of the topic; lower --batch-bytes or --size",
        code::UNSUPPORTED_VERSION => {
            "the broker is older or newer than Kafka 2.8 to 4.4, or has this feature off"
        }
        code::NON_EMPTY_GROUP => "stop its members first",
        code::TOPIC_ALREADY_EXISTS => "use --if-not-exists to accept that",
        _ => "",
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Peer(what) => write!(f, "the broker broke the protocol: {what}"),
            Fault::Refused(code, message) => {
                write!(f, "refused: {} ({code})", code_name(*code))?;
                match message {
                    Some(text) if !text.is_empty() => write!(f, ": {text}")?,
                    _ => {}
                }
                match advice(*code) {
                    "" => Ok(()),
                    advice => write!(f, "; {advice}"),
                }
            }
            Fault::Incompatible(what) => write!(f, "incompatible broker: {what}"),
            Fault::Disconnected(why) => write!(f, "{why}"),
            Fault::TimedOut(silence) => write!(f, "no answer for {} ms", silence.as_millis()),
            Fault::Damaged(what) => write!(f, "damaged record batch: {what}"),
            Fault::Policy(what) => f.write_str(what),
            Fault::Misuse(what) => write!(f, "a bug in keylane: {what}"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let context = &*self.context;
        let mut place = String::new();
        if let Some(api) = context.api {
            place.push_str(api.name());
        }
        if let Some(topic) = &context.topic {
            if !place.is_empty() {
                place.push_str(" of ");
            }
            place.push_str(topic);
            if let Some(partition) = context.partition {
                place.push_str(&format!("/{partition}"));
            }
            if let Some(offset) = context.offset {
                place.push_str(&format!("@{offset}"));
            }
        }
        if let Some(group) = &context.group {
            place.push_str(&format!(" group \"{group}\""));
        }
        if let Some(broker) = &context.broker {
            place.push_str(&format!("{}broker {broker}", if place.is_empty() { "" } else { " on " }));
        }
        if !place.is_empty() {
            write!(f, "{}: ", place.trim_start())?;
        }
        self.fault.fmt(f)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kafkas_own() {
        assert_eq!(code_name(25), "UNKNOWN_MEMBER_ID");
        assert_eq!(code_name(-1), "UNKNOWN_SERVER_ERROR");
        assert_eq!(code_name(999), "ERROR_999");
    }

    #[test]
    fn an_error_says_where_and_what_to_do() {
        let error = Error::refused(Api::Fetch, 29, None)
            .at_partition("orders", 3)
            .at_offset(17)
            .at_broker("127.0.0.1:9092 (node 1)");
        assert_eq!(
            error.to_string(),
            "Fetch of orders/3@17 on broker 127.0.0.1:9092 (node 1): refused: TOPIC_AUTHORIZATION_FAILED (29); \
             ask for read or write access to the topic"
        );
    }

    #[test]
    fn a_leader_that_does_not_know_what_went_wrong_is_asked_again() {
        for api in [Api::Fetch, Api::ListOffsets, Api::OffsetForLeaderEpoch, Api::Metadata] {
            assert_eq!(classify(api, -1), Class::Leader);
        }
        // There it is the coordinator's, and a start or a commit is never guessed at.
        assert_eq!(classify(Api::OffsetFetch, -1), Class::Refused);
    }

    #[test]
    fn every_code_has_a_class_in_every_api() {
        for api in Api::ALL {
            for code in -1..200 {
                let class = classify(*api, code);
                assert_eq!(class == Class::Fine, code == 0 || (*api == Api::Produce && code == 46));
            }
        }
    }
}
