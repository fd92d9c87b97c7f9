//! Rounds: how one begins, whom it waits for, how it ends; and the timers that end waits.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::ResponseError;

use super::member::{InitialDelay, Phase};
use super::messages::Reply;
use super::state::{Group, Turn};

impl<T> Group<T> {
    /// Begins a round, or, where one is under way, ends it if nobody is missing.
    pub(super) fn prepare_or_complete(&mut self, turn: &mut Turn<'_, T>) {
        match self.phase {
            Phase::PreparingRebalance { .. } => self.complete_if_all_joined(turn),
            Phase::Empty | Phase::CompletingRebalance { .. } | Phase::Stable { .. } => self.prepare(turn),
        }
    }

    /// Begins a round.
    pub(super) fn prepare(&mut self, turn: &mut Turn<'_, T>) {
        if matches!(self.phase, Phase::CompletingRebalance { .. }) {
            for member in self.members.values_mut() {
                member.assignment = Bytes::new();
                if let Some(ticket) = member.syncing.take() {
                    turn.refuse_sync(ticket, ResponseError::RebalanceInProgress);
                    member.touch(turn.now);
                }
            }
        }
        let patience = self.rebalance_timeout();
        if self.is_empty() {
            let step = turn.initial_delay;
            let remaining = patience.saturating_sub(step);
            let initial = Some(InitialDelay { step, remaining, arrived: false });
            self.phase = Phase::PreparingRebalance { ends: turn.now + step, initial };
            if step.is_zero() {
                self.complete(turn);
            }
        } else {
            self.phase = Phase::PreparingRebalance { ends: turn.now + patience, initial: None };
            self.complete_if_all_joined(turn);
        }
    }

    /// Ends the round if everybody is in. The first one after Empty runs for its delay in any case.
    pub(super) fn complete_if_all_joined(&mut self, turn: &mut Turn<'_, T>) {
        if matches!(self.phase, Phase::PreparingRebalance { initial: None, .. }) && self.all_joined() {
            self.complete(turn);
        }
    }

    /// Ends the round: who is not in is dropped (static members stay until their session ends), the others get the
    /// next generation.
    fn complete(&mut self, turn: &mut Turn<'_, T>) {
        self.members.retain(|_, member| member.joining.is_some() || member.instance.is_some());
        let leader_is_in =
            self.leader.as_ref().and_then(|id| self.members.get(id)).is_some_and(|m| m.joining.is_some());
        if !leader_is_in {
            let next = self.oldest(|member| member.joining.is_some());
            if next.is_none() && !self.members.is_empty() {
                // Only static members, and none has come. The round goes on until one does or all sessions end.
                let ends = turn.now + self.rebalance_timeout();
                if self.leader.as_ref().is_none_or(|id| !self.members.contains_key(id)) {
                    self.leader = self.oldest(|_| true);
                }
                self.phase = Phase::PreparingRebalance { ends, initial: None };
                return;
            }
            self.leader = next;
        }
        self.begin_generation();
        if self.members.is_empty() {
            self.phase = Phase::Empty;
            return;
        }
        self.phase = Phase::CompletingRebalance { sync_by: turn.now + self.rebalance_timeout() };
        self.answer_joins(turn);
    }

    fn answer_joins(&mut self, turn: &mut Turn<'_, T>) {
        let mut tickets = Vec::new();
        for (id, member) in &mut self.members {
            member.fresh = false;
            member.touch(turn.now);
            tickets.extend(member.joining.take().map(|ticket| (id.clone(), ticket)));
        }
        for (id, ticket) in tickets {
            let joined = self.joined(&id, self.is_leader(&id));
            turn.replies.push((ticket, Reply::Join(Ok(joined))));
        }
    }

    /// A member was heard of.
    pub(super) fn touch(&mut self, id: &str, now: Duration) {
        if let Some(member) = self.members.get_mut(id) {
            member.touch(now);
        }
    }

    /// A member is gone: the others share anew.
    pub(super) fn on_member_gone(&mut self, turn: &mut Turn<'_, T>) {
        match self.phase {
            Phase::Stable { .. } | Phase::CompletingRebalance { .. } => self.prepare(turn),
            Phase::PreparingRebalance { .. } => self.complete_if_all_joined(turn),
            Phase::Empty => {}
        }
    }

    // ---- timers ----

    /// When something ends by itself.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let sessions = self.members.values().filter_map(|member| member.deadline());
        sessions.chain(self.pending.values().copied()).chain(self.phase.deadline()).min()
    }

    /// Ends the waits that are over.
    pub(super) fn poll(&mut self, turn: &mut Turn<'_, T>) {
        self.expire_pending(turn);
        self.expire_sessions(turn);
        match self.phase {
            Phase::PreparingRebalance { ends, initial } if ends <= turn.now => match initial {
                Some(delay) => self.end_initial_delay(delay, turn),
                None => self.complete(turn),
            },
            Phase::CompletingRebalance { sync_by } | Phase::Stable { sync_by: Some(sync_by) }
                if sync_by <= turn.now =>
            {
                self.end_sync_wait(turn);
            }
            _ => {}
        }
    }

    fn expire_pending(&mut self, turn: &mut Turn<'_, T>) {
        let before = self.pending.len();
        self.pending.retain(|_, lapses| *lapses > turn.now);
        if self.pending.len() < before {
            self.complete_if_all_joined(turn);
        }
    }

    fn expire_sessions(&mut self, turn: &mut Turn<'_, T>) {
        let silent = |(id, member): (&String, &super::member::Member<T>)| {
            member.deadline().is_some_and(|deadline| deadline <= turn.now).then(|| id.clone())
        };
        let silent: Vec<String> = self.members.iter().filter_map(silent).collect();
        for id in &silent {
            self.take_out(id, turn);
        }
        if !silent.is_empty() {
            self.on_member_gone(turn);
        }
    }

    /// While members arrive the first round is held open, in steps, up to the rebalance timeout.
    fn end_initial_delay(&mut self, delay: InitialDelay, turn: &mut Turn<'_, T>) {
        if !delay.arrived || delay.remaining.is_zero() {
            return self.complete(turn);
        }
        let step = turn.initial_delay.min(delay.remaining);
        let remaining = delay.remaining.saturating_sub(delay.step);
        let initial = Some(InitialDelay { step, remaining, arrived: false });
        self.phase = Phase::PreparingRebalance { ends: turn.now + step, initial };
    }

    /// Those who never sent SyncGroup are out.
    fn end_sync_wait(&mut self, turn: &mut Turn<'_, T>) {
        let missing = self.members.iter().filter(|(_, member)| !member.synced);
        let missing: Vec<String> = missing.map(|(id, _)| id.clone()).collect();
        for id in &missing {
            self.take_out(id, turn);
        }
        self.prepare(turn);
    }
}
