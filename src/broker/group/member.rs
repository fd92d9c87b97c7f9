//! One member of a group, and the phase a group is in.

use std::time::Duration;

use bytes::Bytes;

use super::messages::Joining;

/// A member that has joined at least once, be it that the answer is still owed.
#[derive(Debug)]
pub(super) struct Member<T> {
    pub(super) instance: Option<String>,
    pub(super) client_id: String,
    pub(super) client_host: String,
    pub(super) session: Duration,
    pub(super) rebalance: Duration,
    /// Name and metadata, the preferred one first.
    pub(super) protocols: Vec<(String, Bytes)>,
    /// Empty between two generations.
    pub(super) assignment: Bytes,
    /// A parked JoinGroup.
    pub(super) joining: Option<T>,
    /// A parked SyncGroup.
    pub(super) syncing: Option<T>,
    /// Has sent the SyncGroup of this generation.
    pub(super) synced: bool,
    /// Has never had an answer, so it cannot know its id: a parked join does not keep it alive.
    pub(super) fresh: bool,
    /// The end of its session, for a member that waits for nothing.
    pub(super) expires: Duration,
    /// Order of arrival: the oldest is the next leader.
    pub(super) seniority: u64,
}

impl<T> Member<T> {
    pub(super) fn new(asked: &Joining<T>, seniority: u64) -> Self {
        let (session, rebalance) = timeouts(asked);
        Self {
            instance: asked.instance.clone(),
            client_id: asked.client_id.clone(),
            client_host: asked.client_host.clone(),
            session,
            rebalance,
            protocols: asked.protocols.clone(),
            assignment: Bytes::new(),
            joining: None,
            syncing: None,
            synced: false,
            fresh: true,
            expires: Duration::ZERO,
            seniority,
        }
    }

    /// Takes over what a later JoinGroup says.
    pub(super) fn update(&mut self, asked: &Joining<T>) {
        (self.session, self.rebalance) = timeouts(asked);
        self.protocols.clone_from(&asked.protocols);
    }

    pub(super) fn supports(&self, protocol: &str) -> bool {
        self.protocols.iter().any(|(name, _)| name == protocol)
    }

    /// What it said about a protocol.
    pub(super) fn metadata(&self, protocol: &str) -> Bytes {
        let found = self.protocols.iter().find(|(name, _)| name == protocol);
        found.map(|(_, metadata)| metadata.clone()).unwrap_or_default()
    }

    /// When its session ends by silence; `None` while the coordinator owes it an answer.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let waits = (self.joining.is_some() && !self.fresh) || self.syncing.is_some();
        (!waits).then_some(self.expires)
    }

    /// It was heard of, or answered: its session begins anew.
    pub(super) fn touch(&mut self, now: Duration) {
        self.expires = now + self.session;
    }
}

/// The session and rebalance timeouts. A rebalance timeout of nothing would make timers that never let time pass.
fn timeouts<T>(asked: &Joining<T>) -> (Duration, Duration) {
    let millis = |value: i32| Duration::from_millis(u64::from(value.max(1).unsigned_abs()));
    let rebalance_ms = if asked.rebalance_ms < 0 { asked.session_ms } else { asked.rebalance_ms };
    (millis(asked.session_ms), millis(rebalance_ms))
}

/// Where a group is in its round. A group that is deleted leaves the map; what is not in the map is called Dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No members; offsets perhaps.
    Empty,
    /// Waits for members to join (again).
    PreparingRebalance {
        /// Then the round ends with those who are in.
        ends: Duration,
        /// Set in the first round after Empty, which lasts at least the initial rebalance delay.
        initial: Option<InitialDelay>,
    },
    /// Waits for the leader's assignments.
    CompletingRebalance {
        /// Then those who have not sent SyncGroup are removed.
        sync_by: Duration,
    },
    /// Everybody has an assignment.
    Stable {
        /// As above, while a SyncGroup is missing.
        sync_by: Option<Duration>,
    },
}

/// `group.initial.rebalance.delay.ms`: begun again while members arrive, up to the rebalance timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InitialDelay {
    /// The length of the delay that is running.
    pub(super) step: Duration,
    /// What may still be added.
    pub(super) remaining: Duration,
    /// A member was added since the delay began.
    pub(super) arrived: bool,
}

impl Phase {
    /// The name in DescribeGroups and ListGroups.
    pub(super) fn name(self) -> &'static str {
        match self {
            Phase::Empty => "Empty",
            Phase::PreparingRebalance { .. } => "PreparingRebalance",
            Phase::CompletingRebalance { .. } => "CompletingRebalance",
            Phase::Stable { .. } => "Stable",
        }
    }

    pub(super) fn deadline(self) -> Option<Duration> {
        match self {
            Phase::Empty => None,
            Phase::PreparingRebalance { ends, .. } => Some(ends),
            Phase::CompletingRebalance { sync_by } => Some(sync_by),
            Phase::Stable { sync_by } => sync_by,
        }
    }
}
