//! The classic group coordinator: membership, rebalances and committed offsets of all groups.
//!
//! It decides as Kafka 4's coordinator does where a client can tell the difference. It knows no connection, no clock
//! and no encoding: what a JoinGroup or SyncGroup is owed goes to a ticket of any kind, `now` is passed in, and answers
//! are collected by [`Groups::take_replies`]. Every ticket is answered exactly once, after a rebalance timeout or a
//! session timeout at the latest; also where Kafka forgets one (a JoinGroup or SyncGroup that the same member repeats
//! over another connection, the SyncGroup of a member that leaves): those are told to join again.
//!
//! All nodes share it: whether a node may answer for a group is checked before.

mod commit;
mod join;
mod leave;
mod member;
mod messages;
mod moved;
mod offsets;
mod rebalance;
mod state;
mod sync;
#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeMap;
use std::time::Duration;

use kafka_protocol::ResponseError;

use self::member::Phase;
pub(crate) use self::messages::{Claim, JoinRefused, Joined, Joining, Leaving, Reply, Synced, Syncing};
use self::offsets::Offsets;
pub(crate) use self::offsets::{Commits, Committed};
use self::state::{Group, Turn};
pub(crate) use self::view::{GroupView, MemberView};

/// `group.max.session.timeout.ms`. There is no least one here: tests want short sessions.
const SESSION_MS_MAX: i32 = 30 * 60 * 1000;

/// First version of OffsetCommit whose clients know GROUP_ID_NOT_FOUND.
const GROUP_ID_NOT_FOUND: i16 = 9;

#[derive(Debug)]
struct Entry<T> {
    group: Group<T>,
    offsets: Offsets,
}

/// All groups.
#[derive(Debug)]
pub(crate) struct Groups<T> {
    /// `group.initial.rebalance.delay.ms`; zero ends the first round with the first member.
    initial_delay: Duration,
    groups: BTreeMap<String, Entry<T>>,
    replies: Vec<(T, Reply)>,
    /// Not later than the first deadline of any group.
    wake: Option<Duration>,
}

impl<T> Groups<T> {
    pub(crate) fn new(initial_delay: Duration) -> Self {
        Self { initial_delay, groups: BTreeMap::new(), replies: Vec::new(), wake: None }
    }

    /// Answers since the last call, in order.
    pub(crate) fn take_replies(&mut self) -> Vec<(T, Reply)> {
        std::mem::take(&mut self.replies)
    }

    // ---- time ----

    /// When [`Groups::poll`] is to be called; perhaps too early, never too late.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.wake
    }

    /// Ends the waits that are over: sessions, rounds, ids that were not used.
    pub(crate) fn poll(&mut self, now: Duration) {
        if self.wake.is_none_or(|wake| wake > now) {
            return;
        }
        let ids: Vec<String> = self.groups.keys().cloned().collect();
        self.wake = None;
        for id in ids {
            self.with(&id, now, Group::poll);
        }
    }

    /// Works on a group that exists, and keeps the deadline true.
    fn with<R>(
        &mut self,
        id: &str,
        now: Duration,
        work: impl FnOnce(&mut Group<T>, &mut Turn<'_, T>) -> R,
    ) -> Option<R> {
        let group = &mut self.groups.get_mut(id)?.group;
        let mut turn = Turn { now, initial_delay: self.initial_delay, replies: &mut self.replies };
        let result = work(group, &mut turn);
        #[cfg(test)]
        group.check();
        self.wake = self.wake.into_iter().chain(group.deadline()).min();
        Some(result)
    }

    fn create(&mut self, id: &str) -> &mut Entry<T> {
        let entry = || Entry { group: Group::new(), offsets: Offsets::default() };
        self.groups.entry(id.to_owned()).or_insert_with(entry)
    }

    // ---- membership ----

    /// JoinGroup. A new member's group is made for it.
    pub(crate) fn join(&mut self, asked: Joining<T>, now: Duration) {
        let refusal = if asked.group.is_empty() {
            Some(ResponseError::InvalidGroupId)
        } else if !(1..=SESSION_MS_MAX).contains(&asked.session_ms) {
            Some(ResponseError::InvalidSessionTimeout)
        } else if !asked.member.is_empty() && !self.groups.contains_key(&asked.group) {
            Some(ResponseError::UnknownMemberId)
        } else {
            None
        };
        if let Some(error) = refusal {
            let refused = JoinRefused { error, member: asked.member };
            self.replies.push((asked.ticket, Reply::Join(Err(refused))));
            return;
        }
        let id = asked.group.clone();
        self.create(&id);
        self.with(&id, now, |group, turn| group.join(asked, turn));
    }

    /// SyncGroup.
    pub(crate) fn sync(&mut self, asked: Syncing<T>, now: Duration) {
        let refusal = if asked.group.is_empty() {
            Some(ResponseError::InvalidGroupId)
        } else if !self.groups.contains_key(&asked.group) {
            Some(ResponseError::UnknownMemberId)
        } else {
            None
        };
        if let Some(error) = refusal {
            self.replies.push((asked.ticket, Reply::Sync(Err(error))));
            return;
        }
        let id = asked.group.clone();
        self.with(&id, now, |group, turn| group.sync(asked, turn));
    }

    /// Heartbeat.
    ///
    /// # Errors
    /// What the member is to be told; REBALANCE_IN_PROGRESS among them.
    pub(crate) fn heartbeat(&mut self, claim: &Claim<'_>, now: Duration) -> Result<(), ResponseError> {
        if claim.group.is_empty() {
            return Err(ResponseError::InvalidGroupId);
        }
        let answer = self.with(claim.group, now, |group, turn| group.heartbeat(claim, turn.now));
        answer.unwrap_or(Err(ResponseError::UnknownMemberId))
    }

    /// LeaveGroup. One outcome for each of `leaving`.
    ///
    /// # Errors
    /// INVALID_GROUP_ID.
    pub(crate) fn leave(
        &mut self,
        group: &str,
        leaving: &[Leaving<'_>],
        now: Duration,
    ) -> Result<Vec<Result<(), ResponseError>>, ResponseError> {
        if group.is_empty() {
            return Err(ResponseError::InvalidGroupId);
        }
        let left = self.with(group, now, |group, turn| group.leave(leaving, turn));
        Ok(left.unwrap_or_else(|| vec![Err(ResponseError::UnknownMemberId); leaving.len()]))
    }

    /// Makes the members of a group join again, as if one had come or gone. False where there are none.
    pub(crate) fn force_rebalance(&mut self, group: &str, now: Duration) -> bool {
        let forced = self.with(group, now, |group, turn| {
            let settled = matches!(group.phase, Phase::CompletingRebalance { .. } | Phase::Stable { .. });
            if settled {
                group.prepare(turn);
            }
            settled || matches!(group.phase, Phase::PreparingRebalance { .. })
        });
        forced.unwrap_or(false)
    }

    /// Ends a member's session. False where it is not there.
    pub(crate) fn expire(&mut self, group: &str, member: &str, now: Duration) -> bool {
        let expired = self.with(group, now, |group, turn| {
            let there = group.members.contains_key(member);
            if there {
                group.take_out(member, turn);
                group.on_member_gone(turn);
            }
            there
        });
        expired.unwrap_or(false)
    }

    /// Another node coordinates the group now: whoever waits is told to look for it.
    pub(crate) fn on_coordinator_moved(&mut self, group: &str, now: Duration) {
        self.with(group, now, Group::on_coordinator_moved);
    }

    // ---- offsets ----

    /// Checks an OffsetCommit, and begins the member's session anew. Without generation and member it comes from a
    /// simple consumer or an administrator, whose group is made for it.
    ///
    /// # Errors
    /// Why nothing may be committed.
    pub(crate) fn commits(
        &mut self,
        claim: &Claim<'_>,
        version: i16,
        now: Duration,
    ) -> Result<Commits<'_>, ResponseError> {
        if !self.groups.contains_key(claim.group) && claim.generation >= 0 {
            let known = version >= GROUP_ID_NOT_FOUND;
            let (new, old) = (ResponseError::GroupIdNotFound, ResponseError::IllegalGeneration);
            return Err(if known { new } else { old });
        }
        let Entry { group, offsets } = self.create(claim.group);
        group.validate_commit(claim, now)?;
        Ok(Commits { offsets, producer: None })
    }

    /// Checks a TxnOffsetCommit (the producer was checked before). Older clients do not say who they are.
    ///
    /// # Errors
    /// Why nothing may be committed.
    pub(crate) fn transactional_commits(
        &mut self,
        claim: &Claim<'_>,
        producer: i64,
    ) -> Result<Commits<'_>, ResponseError> {
        if claim.group.is_empty() {
            return Err(ResponseError::InvalidGroupId);
        }
        if !self.groups.contains_key(claim.group) && claim.generation >= 0 {
            return Err(ResponseError::IllegalGeneration);
        }
        let Entry { group, offsets } = self.create(claim.group);
        group.validate_transactional_commit(claim)?;
        Ok(Commits { offsets, producer: Some(producer) })
    }

    /// The transaction of a producer has ended: its offsets count, or never were.
    pub(crate) fn on_transaction_end(&mut self, producer: i64, committed: bool) {
        for entry in self.groups.values_mut() {
            entry.offsets.on_transaction_end(producer, committed);
        }
    }

    /// Offsets of a topic that is gone go with it.
    pub(crate) fn on_topic_deleted(&mut self, topic: &str) {
        for entry in self.groups.values_mut() {
            entry.offsets.on_topic_deleted(topic);
        }
    }

    /// What is committed of a partition.
    pub(crate) fn committed(&self, group: &str, topic: &str, partition: i32) -> Option<&Committed> {
        self.groups.get(group)?.offsets.get(topic, partition)
    }

    /// Everything that is committed, by topic and partition.
    pub(crate) fn all_committed(&self, group: &str) -> impl Iterator<Item = (&str, i32, &Committed)> {
        self.groups.get(group).into_iter().flat_map(|entry| entry.offsets.iter())
    }

    /// A transaction that is under way holds an offset of the partition.
    pub(crate) fn is_pending(&self, group: &str, topic: &str, partition: i32) -> bool {
        self.groups.get(group).is_some_and(|entry| entry.offsets.is_pending(topic, partition))
    }

    /// A transaction that is under way holds offsets of the group.
    pub(crate) fn has_pending(&self, group: &str) -> bool {
        self.groups.get(group).is_some_and(|entry| entry.offsets.has_pending())
    }

    /// Whether offsets of a group may be deleted.
    ///
    /// # Errors
    /// INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, or NON_EMPTY_GROUP where the members are no consumers.
    pub(crate) fn may_delete_offsets(&self, group: &str) -> Result<(), ResponseError> {
        if group.is_empty() {
            return Err(ResponseError::InvalidGroupId);
        }
        let group = &self.groups.get(group).ok_or(ResponseError::GroupIdNotFound)?.group;
        let allowed = group.is_empty() || group.is_consumers();
        if allowed { Ok(()) } else { Err(ResponseError::NonEmptyGroup) }
    }

    /// Forgets an offset, if there is one.
    ///
    /// # Errors
    /// GROUP_SUBSCRIBED_TO_TOPIC while a member reads the topic, GROUP_ID_NOT_FOUND.
    pub(crate) fn delete_offset(
        &mut self,
        group: &str,
        topic: &str,
        partition: i32,
    ) -> Result<(), ResponseError> {
        let Entry { group, offsets } = self.groups.get_mut(group).ok_or(ResponseError::GroupIdNotFound)?;
        if group.is_subscribed(topic) {
            return Err(ResponseError::GroupSubscribedToTopic);
        }
        offsets.delete(topic, partition);
        Ok(())
    }

    // ---- administration ----

    /// All groups, by id.
    pub(crate) fn list(&self) -> impl Iterator<Item = GroupView<'_>> {
        self.groups.iter().map(|(id, entry)| entry.group.view(id))
    }

    /// One group; `None` is what Kafka calls Dead.
    pub(crate) fn describe(&self, group: &str) -> Option<GroupView<'_>> {
        self.groups.get_key_value(group).map(|(id, entry)| entry.group.view(id))
    }

    /// Forgets a group and its offsets.
    ///
    /// # Errors
    /// GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
    pub(crate) fn delete(&mut self, group: &str) -> Result<(), ResponseError> {
        let entry = self.groups.get(group).ok_or(ResponseError::GroupIdNotFound)?;
        if !entry.group.is_empty() {
            return Err(ResponseError::NonEmptyGroup);
        }
        self.groups.remove(group);
        Ok(())
    }
}
