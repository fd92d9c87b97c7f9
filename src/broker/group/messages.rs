//! What a request asks of the coordinator, and what it answers, free of protocol versions and encodings.

use bytes::Bytes;
use kafka_protocol::ResponseError;

/// A JoinGroup.
#[derive(Clone, Debug)]
pub(crate) struct Joining<T> {
    /// What the answer goes to.
    pub(crate) ticket: T,
    /// From version 4 on a dynamic member must join again under the id it is given; from 9 on a leader may be told to
    /// skip the assignment.
    pub(crate) version: i16,
    /// Unique text: the tail of a new member id, if one is needed.
    pub(crate) fresh: String,
    pub(crate) group: String,
    /// Empty: no id yet.
    pub(crate) member: String,
    pub(crate) instance: Option<String>,
    pub(crate) client_id: String,
    pub(crate) client_host: String,
    pub(crate) session_ms: i32,
    /// Negative (version 0 has no such field): the session timeout.
    pub(crate) rebalance_ms: i32,
    pub(crate) protocol_type: String,
    /// Name and metadata, the preferred one first.
    pub(crate) protocols: Vec<(String, Bytes)>,
}

/// A SyncGroup.
#[derive(Clone, Debug)]
pub(crate) struct Syncing<T> {
    pub(crate) ticket: T,
    pub(crate) group: String,
    pub(crate) member: String,
    pub(crate) instance: Option<String>,
    pub(crate) generation: i32,
    /// Checked where present (version 5 on).
    pub(crate) protocol_type: Option<String>,
    pub(crate) protocol: Option<String>,
    /// Member id and assignment; only the leader's counts.
    pub(crate) assignments: Vec<(String, Bytes)>,
}

/// Who a request claims to come from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    pub(crate) group: &'a str,
    pub(crate) member: &'a str,
    pub(crate) instance: Option<&'a str>,
    /// -1: outside of any generation.
    pub(crate) generation: i32,
}

/// The answer to a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// To a JoinGroup.
    Join(Result<Joined, JoinRefused>),
    /// To a SyncGroup.
    Sync(Result<Synced, ResponseError>),
}

/// A member's place in a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Joined {
    pub(crate) generation: i32,
    pub(crate) protocol_type: String,
    pub(crate) protocol: String,
    pub(crate) leader: String,
    pub(crate) member: String,
    /// KIP-814: the leader finds out who is in, but must not assign anew.
    pub(crate) skip_assignment: bool,
    /// Who is in; only for the leader.
    pub(crate) members: Vec<JoinedMember>,
}

/// A member as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JoinedMember {
    pub(crate) id: String,
    pub(crate) instance: Option<String>,
    /// What it said about the chosen protocol.
    pub(crate) metadata: Bytes,
}

/// Why a JoinGroup failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JoinRefused {
    pub(crate) error: ResponseError,
    /// With MEMBER_ID_REQUIRED the id to join with; else the one that was asked for, or nothing.
    pub(crate) member: String,
}

/// A member's share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Synced {
    pub(crate) protocol_type: String,
    pub(crate) protocol: String,
    pub(crate) assignment: Bytes,
}

/// One of the members of a LeaveGroup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving<'a> {
    /// Empty: whoever holds the instance id (removal by an administrator).
    pub(crate) member: &'a str,
    pub(crate) instance: Option<&'a str>,
}
