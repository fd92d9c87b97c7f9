//! What can be read of a group: for DescribeGroups and ListGroups, and for a simulator's checkers.

use bytes::Bytes;

use super::member::{Member, Phase};
use super::state::Group;

/// One group as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupView<'a> {
    pub(crate) id: &'a str,
    /// Empty, PreparingRebalance, CompletingRebalance or Stable.
    pub(crate) state: &'static str,
    /// Empty for a group that never had members.
    pub(crate) protocol_type: &'a str,
    /// Empty unless Stable.
    pub(crate) protocol: &'a str,
    pub(crate) generation: i32,
    pub(crate) leader: Option<&'a str>,
    pub(crate) members: Vec<MemberView<'a>>,
}

/// One member as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberView<'a> {
    pub(crate) id: &'a str,
    pub(crate) instance: Option<&'a str>,
    pub(crate) client_id: &'a str,
    pub(crate) client_host: &'a str,
    /// Empty unless Stable.
    pub(crate) metadata: Bytes,
    /// Empty unless Stable.
    pub(crate) assignment: Bytes,
}

impl<T> Group<T> {
    pub(super) fn view<'a>(&'a self, id: &'a str) -> GroupView<'a> {
        // Between generations neither the protocol nor what was assigned means anything.
        let stable = matches!(self.phase, Phase::Stable { .. });
        let protocol = self.protocol.as_deref().filter(|_| stable).unwrap_or_default();
        let member = |(id, member): (&'a String, &'a Member<T>)| MemberView {
            id,
            instance: member.instance.as_deref(),
            client_id: &member.client_id,
            client_host: &member.client_host,
            metadata: if stable { member.metadata(protocol) } else { Bytes::new() },
            assignment: if stable { member.assignment.clone() } else { Bytes::new() },
        };
        GroupView {
            id,
            state: self.phase.name(),
            protocol_type: self.protocol_type.as_deref().unwrap_or_default(),
            protocol,
            generation: self.generation,
            leader: self.leader.as_deref(),
            members: self.members.iter().map(member).collect(),
        }
    }
}
