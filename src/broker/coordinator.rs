//! Between the group coordinator, which knows no encoding and no nodes, and the rest of the cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use kafka_protocol::ResponseError;

use super::api::{join_group, sync_group};
use super::group::{Commits, Committed, Reply};
use super::state::State;
use super::topics::Topics;

/// A group at one moment, for those who check a cluster from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSnapshot {
    /// Empty, PreparingRebalance, CompletingRebalance or Stable.
    pub state: &'static str,
    /// Grows with each round.
    pub generation: i32,
    /// A member id.
    pub leader: Option<String>,
    /// What each member id was assigned; empty unless Stable.
    pub members: BTreeMap<String, bytes::Bytes>,
    /// Committed offsets by topic and partition.
    pub committed: BTreeMap<(String, i32), i64>,
    /// A transaction that is under way holds offsets of the group.
    pub has_pending: bool,
}

impl State {
    /// When a group has something to do. While all nodes are down nobody's session ends.
    pub(super) fn groups_deadline(&self) -> Option<Duration> {
        self.groups.deadline().filter(|_| self.nodes_up().next().is_some())
    }

    /// Ends the waits of groups that are over, and sends what is owed to JoinGroups and SyncGroups.
    pub(super) fn poll_groups(&mut self) {
        if self.groups_deadline().is_some() {
            self.groups.poll(self.now);
        }
        for (ticket, reply) in self.groups.take_replies() {
            match reply {
                Reply::Join(answer) => self.reply(ticket, &join_group::respond(answer)),
                Reply::Sync(answer) => self.reply(ticket, &sync_group::respond(answer)),
            }
        }
    }

    /// All groups, by name.
    pub(super) fn group_names(&self) -> Vec<String> {
        self.groups.list().map(|group| group.id.to_owned()).collect()
    }

    /// Makes the members of a group join again.
    pub(super) fn force_rebalance(&mut self, group: &str) {
        self.groups.force_rebalance(group, self.now);
    }

    /// Ends the session of a member of a group.
    pub(super) fn expire_member(&mut self, group: &str, member: &str) {
        self.groups.expire(group, member, self.now);
    }

    pub(super) fn group_snapshot(&self, id: &str) -> Option<GroupSnapshot> {
        let group = self.groups.describe(id)?;
        let committed = self.groups.all_committed(id);
        let committed =
            committed.map(|(topic, partition, there)| ((topic.to_owned(), partition), there.offset));
        let members = group.members.into_iter();
        Some(GroupSnapshot {
            state: group.state,
            generation: group.generation,
            leader: group.leader.map(str::to_owned),
            members: members.map(|member| (member.id.to_owned(), member.assignment)).collect(),
            committed: committed.collect(),
            has_pending: self.groups.has_pending(id),
        })
    }

    /// Which node coordinates which group, to be compared after a change.
    pub(super) fn group_coordinators(&self) -> Vec<(String, i32)> {
        let names = self.group_names().into_iter();
        names.map(|name| (name.clone(), self.coordinator_of(&name))).collect()
    }

    /// Ends what groups wait for that have another coordinator than before.
    pub(super) fn follow_coordinators(&mut self, before: &[(String, i32)]) {
        for (group, node) in before {
            if self.coordinator_of(group) != *node {
                self.groups.on_coordinator_moved(group, self.now);
            }
        }
    }
}

/// Keeps one committed offset. Answers a Kafka error code, 0 if it is kept.
pub(super) fn keep(
    topics: &Topics,
    commits: &mut Result<Commits<'_>, ResponseError>,
    topic: &str,
    partition: i32,
    committed: Committed,
) -> i16 {
    if !exists(topics, topic, partition) {
        return ResponseError::UnknownTopicOrPartition.code();
    }
    let kept = match commits {
        Ok(commits) => commits.put(topic, partition, committed),
        Err(error) => Err(*error),
    };
    kept.map_or_else(|error| error.code(), |()| 0)
}

/// Whether offsets of a partition can be committed: only of one that exists.
pub(super) fn exists(topics: &Topics, topic: &str, partition: i32) -> bool {
    topics.partition(topic, partition).is_some()
}
