//! The phases of a member, and what the answers in each call for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Assignor, GroupMember, MetadataError, Owned};

/// Not joining. Joins when asked to, but not before `not_before`.
#[derive(Debug)]
pub struct Out {
    pub(super) not_before: Duration,
}

/// JoinGroup is out.
#[derive(Debug)]
pub struct Joining {
    pub(super) attempt: u64,
}

/// The leader, before it knows how many partitions the topics of all members have.
#[derive(Debug)]
pub struct Elected {
    /// The generation before the join.
    pub(super) from: i32,
    pub(super) assignor: Assignor,
    pub(super) members: BTreeMap<String, GroupMember>,
    /// The coordinator keeps the old assignment (KIP-814): lead, but assign nothing.
    pub(super) skip: bool,
}

/// SyncGroup is out.
#[derive(Debug)]
pub struct Syncing {
    pub(super) attempt: u64,
    /// The generation before the join.
    pub(super) from: i32,
    /// What a leader counted; none for the others.
    pub(super) led: Option<BTreeMap<String, i32>>,
    pub(super) sent_at: Duration,
}

/// A member with an assignment.
#[derive(Debug)]
pub struct Stable {
    /// What a leader counted when it assigned; a change calls for a new round.
    pub(super) led: Option<BTreeMap<String, i32>>,
    /// A rebalance was announced or is wanted.
    pub(super) rejoin: bool,
}

#[derive(Debug)]
pub(super) enum Phase {
    Out(Out),
    Joining(Joining),
    Elected(Elected),
    Syncing(Syncing),
    Stable(Stable),
    /// Left, or refused for good.
    Ended,
}

/// What the answer to JoinGroup calls for.
#[derive(Debug, PartialEq)]
pub enum Joined {
    /// Join again at [`join_deadline`](super::Membership::join_deadline); what was owned stays owned.
    Again,
    /// The coordinator does not know us any more: what was owned is lost. Join again.
    Lost,
    /// Another coordinator has to be found; then join again.
    Coordinator,
    /// Elected, see [`Elect`].
    Leader(Elect),
    /// Call [`sync`](super::Membership::sync) without counts.
    Follower {
        /// As in [`Elect`].
        missed: bool,
    },
}

/// What a leader learns from the answer to JoinGroup.
#[derive(Debug, PartialEq)]
pub struct Elect {
    /// Give the partition counts of these topics to [`sync`](super::Membership::sync).
    pub topics: BTreeSet<String>,
    /// Members whose metadata cannot be read to the end: they are served as far as it can.
    pub unreadable: Vec<(String, MetadataError)>,
    /// A round was completed without us, so that what we own may have been given to others: it is lost.
    pub missed: bool,
}

/// What the answer to SyncGroup calls for.
#[derive(Debug, PartialEq)]
pub enum Synced {
    /// Join again; what was owned stays owned.
    Again,
    /// What was owned is lost. Join again.
    Lost,
    /// Another coordinator has to be found; then join again.
    Coordinator,
    /// A new generation with this assignment.
    Assigned(Owned),
}

/// What the answer to a heartbeat or a commit says about the membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing new, or about an identity of the past.
    Kept,
    /// What was owned is lost. Join again.
    Lost,
    /// Another coordinator has to be found.
    Coordinator,
}
