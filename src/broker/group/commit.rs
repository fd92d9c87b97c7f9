//! Who may commit offsets for a group, and when.

use std::time::Duration;

use kafka_protocol::ResponseError;

use super::member::Phase;
use super::messages::Claim;
use super::state::Group;

impl<T> Group<T> {
    /// Checks an OffsetCommit, and begins the member's session anew.
    pub(super) fn validate_commit(&mut self, claim: &Claim<'_>, now: Duration) -> Result<(), ResponseError> {
        if self.is_empty() && claim.generation < 0 {
            return Ok(());
        }
        if claim.generation < 0 && claim.member.is_empty() && claim.instance.is_none() {
            // A consumer outside of the group would move the members' offsets.
            return Err(ResponseError::UnknownMemberId);
        }
        self.validate_generation(claim.member, claim.instance, claim.generation)?;
        if matches!(self.phase, Phase::CompletingRebalance { .. }) {
            // The member knows the generation but not yet its share: what it commits may belong to another.
            return Err(ResponseError::RebalanceInProgress);
        }
        self.touch(claim.member, now);
        Ok(())
    }

    /// Checks a TxnOffsetCommit. The phase does not matter: fencing is the transaction's business. Clients before
    /// KIP-447 do not say who they are.
    pub(super) fn validate_transactional_commit(&self, claim: &Claim<'_>) -> Result<(), ResponseError> {
        let anonymous = claim.generation < 0 && claim.member.is_empty() && claim.instance.is_none();
        if anonymous || (self.is_empty() && claim.generation < 0) {
            return Ok(());
        }
        self.validate_generation(claim.member, claim.instance, claim.generation)
    }
}
