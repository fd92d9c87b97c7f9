//! LeaveGroup: members that go by themselves, or are removed by an administrator.

use kafka_protocol::ResponseError;

use super::messages::Leaving;
use super::state::{Group, Turn};

impl<T> Group<T> {
    /// Takes members out, each with its own outcome, then begins at most one rebalance.
    pub(super) fn leave(
        &mut self,
        leaving: &[Leaving<'_>],
        turn: &mut Turn<'_, T>,
    ) -> Vec<Result<(), ResponseError>> {
        let members = self.members.len();
        let outcomes = leaving.iter().map(|leaving| self.leave_one(leaving, turn)).collect();
        if self.members.len() < members {
            self.on_member_gone(turn);
        } else {
            // An id that was given out and not used may have been what a round waited for.
            self.complete_if_all_joined(turn);
        }
        outcomes
    }

    fn leave_one(&mut self, leaving: &Leaving<'_>, turn: &mut Turn<'_, T>) -> Result<(), ResponseError> {
        let id = if leaving.member.is_empty() {
            let holder = leaving.instance.and_then(|instance| self.static_member(instance));
            holder.ok_or(ResponseError::UnknownMemberId)?.to_owned()
        } else {
            if !self.pending.contains_key(leaving.member) {
                self.validate(leaving.member, leaving.instance)?;
            }
            leaving.member.to_owned()
        };
        self.take_out(&id, turn);
        Ok(())
    }
}
