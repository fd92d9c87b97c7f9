//! A group's coordinator is another node now.
//!
//! The new one knows what was stored, so less than the old one: ids that were given out but not used and members that
//! never had an answer are lost, and nothing that was parked is remembered. Here the generation stays what it is; Kafka
//! falls back to the last one whose assignment was stored, if the move comes between.

use kafka_protocol::ResponseError;

use super::member::Phase;
use super::state::{Group, Turn};

impl<T> Group<T> {
    pub(super) fn on_coordinator_moved(&mut self, turn: &mut Turn<'_, T>) {
        self.pending.clear();
        let fresh = self.members.iter().filter(|(_, member)| member.fresh);
        let fresh: Vec<String> = fresh.map(|(id, _)| id.clone()).collect();
        for (id, member) in &mut self.members {
            member.touch(turn.now);
            if let Some(ticket) = member.joining.take() {
                turn.refuse_join(ticket, ResponseError::NotCoordinator, id);
            }
            if let Some(ticket) = member.syncing.take() {
                turn.refuse_sync(ticket, ResponseError::NotCoordinator);
                member.synced = false;
            }
        }
        for id in fresh {
            self.take_out(&id, turn);
        }
        let ends = turn.now + self.rebalance_timeout();
        match &mut self.phase {
            phase @ Phase::PreparingRebalance { .. } => {
                *phase = Phase::PreparingRebalance { ends, initial: None };
                self.complete_if_all_joined(turn);
            }
            Phase::CompletingRebalance { sync_by } | Phase::Stable { sync_by: Some(sync_by) } => {
                *sync_by = ends
            }
            Phase::Empty | Phase::Stable { sync_by: None } => {}
        }
    }
}
