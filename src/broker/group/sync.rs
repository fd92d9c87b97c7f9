//! SyncGroup and Heartbeat: what members of the current generation are told.

use bytes::Bytes;
use kafka_protocol::ResponseError;
use std::collections::BTreeMap;

use super::member::Phase;
use super::messages::{Claim, Reply, Syncing};
use super::state::{Group, Turn};

impl<T> Group<T> {
    /// Takes a SyncGroup in. A follower's is parked until the leader's comes.
    pub(super) fn sync(&mut self, asked: Syncing<T>, turn: &mut Turn<'_, T>) {
        if let Err(error) = self.validate_sync(&asked) {
            return turn.refuse_sync(asked.ticket, error);
        }
        let Some(member) = self.members.get_mut(&asked.member) else {
            unreachable!("a member that was just found");
        };
        member.synced = true;
        member.touch(turn.now);
        if matches!(self.phase, Phase::Stable { .. }) {
            let synced = self.synced(&self.members[&asked.member]);
            turn.replies.push((asked.ticket, Reply::Sync(Ok(synced))));
            self.end_sync_timer();
            return;
        }
        // One parked before belongs to a connection that was lost.
        if let Some(displaced) = member.syncing.replace(asked.ticket) {
            turn.refuse_sync(displaced, ResponseError::RebalanceInProgress);
        }
        if self.is_leader(&asked.member) {
            self.assign(asked.assignments, turn);
        }
    }

    fn validate_sync(&self, asked: &Syncing<T>) -> Result<(), ResponseError> {
        if self.is_empty() {
            return Err(ResponseError::UnknownMemberId);
        }
        self.validate_generation(&asked.member, asked.instance.as_deref(), asked.generation)?;
        let differs = |asked: &Option<String>, ours: &Option<String>| asked.is_some() && asked != ours;
        if differs(&asked.protocol_type, &self.protocol_type) || differs(&asked.protocol, &self.protocol) {
            return Err(ResponseError::InconsistentGroupProtocol);
        }
        if matches!(self.phase, Phase::PreparingRebalance { .. }) {
            return Err(ResponseError::RebalanceInProgress);
        }
        Ok(())
    }

    /// The leader has decided: everybody who waits gets its share, and nothing where the leader forgot it.
    fn assign(&mut self, assignments: Vec<(String, Bytes)>, turn: &mut Turn<'_, T>) {
        let mut assignments: BTreeMap<String, Bytes> = assignments.into_iter().collect();
        let mut tickets = Vec::new();
        for (id, member) in &mut self.members {
            member.assignment = assignments.remove(id).unwrap_or_default();
            if let Some(ticket) = member.syncing.take() {
                member.touch(turn.now);
                tickets.push((ticket, id.clone()));
            }
        }
        for (ticket, id) in tickets {
            turn.replies.push((ticket, Reply::Sync(Ok(self.synced(&self.members[&id])))));
        }
        self.phase = Phase::Stable { sync_by: self.phase.deadline() };
        self.end_sync_timer();
    }

    fn end_sync_timer(&mut self) {
        if let Phase::Stable { sync_by } = &mut self.phase
            && self.members.values().all(|member| member.synced)
        {
            *sync_by = None;
        }
    }

    /// Begins a member's session anew.
    ///
    /// # Errors
    /// REBALANCE_IN_PROGRESS (the session is begun anew all the same) tells it to join again.
    pub(super) fn heartbeat(
        &mut self,
        claim: &Claim<'_>,
        now: std::time::Duration,
    ) -> Result<(), ResponseError> {
        self.validate_generation(claim.member, claim.instance, claim.generation)?;
        self.touch(claim.member, now);
        match self.phase {
            Phase::PreparingRebalance { .. } => Err(ResponseError::RebalanceInProgress),
            Phase::CompletingRebalance { .. } | Phase::Stable { .. } => Ok(()),
            Phase::Empty => Err(ResponseError::UnknownMemberId),
        }
    }
}
