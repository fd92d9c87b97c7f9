//! JoinGroup: who is let in, and whether that begins a rebalance.

use kafka_protocol::ResponseError;

use super::member::{Member, Phase};
use super::messages::{Joining, Reply};
use super::state::{Group, Turn};

/// A new member does not know its id yet, so it can neither heartbeat nor be told apart from one whose client has
/// gone: it must be in a generation by then (Kafka's constant).
const NEW_MEMBER_JOIN: std::time::Duration = std::time::Duration::from_secs(5 * 60);

/// First version in which a dynamic member is registered only when it comes back with the id it was given (KIP-394).
const MEMBER_ID_REQUIRED: i16 = 4;

/// First version in which a leader can be told to skip the assignment (KIP-814).
const SKIP_ASSIGNMENT: i16 = 9;

impl<T> Group<T> {
    /// Takes a JoinGroup in. Its ticket is answered now or when the round ends.
    pub(super) fn join(&mut self, asked: Joining<T>, turn: &mut Turn<'_, T>) {
        if !self.supports(&asked.protocol_type, &asked.protocols) {
            turn.refuse_join(asked.ticket, ResponseError::InconsistentGroupProtocol, &asked.member);
        } else if asked.member.is_empty() {
            self.join_new(asked, turn);
        } else {
            self.join_known(asked, turn);
        }
    }

    fn join_new(&mut self, asked: Joining<T>, turn: &mut Turn<'_, T>) {
        let id = format!("{}-{}", asked.instance.as_deref().unwrap_or(&asked.client_id), asked.fresh);
        let holder = asked.instance.as_deref().and_then(|instance| self.static_member(instance));
        if let Some(old) = holder.map(str::to_owned) {
            self.replace_static(&old, id, asked, turn);
        } else if asked.instance.is_none() && asked.version >= MEMBER_ID_REQUIRED {
            let session = Member::new(&asked, 0).session;
            turn.refuse_join(asked.ticket, ResponseError::MemberIdRequired, &id);
            self.pending.insert(id, turn.now + session);
        } else {
            self.admit(id, asked, turn);
        }
    }

    fn join_known(&mut self, asked: Joining<T>, turn: &mut Turn<'_, T>) {
        let id = asked.member.clone();
        // Ids of static members are never pending.
        if self.pending.contains_key(&id) && asked.instance.is_none() {
            return self.admit(id, asked, turn);
        }
        if let Err(error) = self.validate(&id, asked.instance.as_deref()) {
            return turn.refuse_join(asked.ticket, error, &id);
        }
        let leads = self.is_leader(&id);
        let same = self.members.get(&id).is_some_and(|member| member.protocols == asked.protocols);
        let current = match self.phase {
            // Probably the answer was lost.
            Phase::CompletingRebalance { .. } => same,
            // A leader that comes again knows of a reason to assign anew that metadata does not show.
            Phase::Stable { .. } => same && !leads,
            Phase::Empty | Phase::PreparingRebalance { .. } => false,
        };
        if current {
            let joined = self.joined(&id, leads);
            self.touch(&id, turn.now);
            turn.replies.push((asked.ticket, Reply::Join(Ok(joined))));
            return;
        }
        self.park_join(&id, asked, turn);
        self.prepare_or_complete(turn);
    }

    /// A new member, with or without an id given out before.
    fn admit(&mut self, id: String, asked: Joining<T>, turn: &mut Turn<'_, T>) {
        let mut member = Member::new(&asked, 0);
        member.expires = turn.now + NEW_MEMBER_JOIN;
        member.joining = Some(asked.ticket);
        if let Phase::PreparingRebalance { initial: Some(initial), .. } = &mut self.phase {
            initial.arrived = true;
        }
        self.insert(id, member, &asked.protocol_type);
        self.prepare_or_complete(turn);
    }

    /// Parks a member's JoinGroup. One that was parked before (its connection was lost, most likely) is told to come
    /// again; Kafka forgets it.
    fn park_join(&mut self, id: &str, asked: Joining<T>, turn: &mut Turn<'_, T>) {
        let Some(member) = self.members.get_mut(id) else { return };
        member.update(&asked);
        if let Some(displaced) = member.joining.replace(asked.ticket) {
            turn.refuse_join(displaced, ResponseError::RebalanceInProgress, id);
        }
    }

    /// A static member that comes back without an id takes the place of its predecessor, which is fenced.
    fn replace_static(&mut self, old: &str, id: String, asked: Joining<T>, turn: &mut Turn<'_, T>) {
        let old_leader = self.leader.clone().unwrap_or_default();
        let Some(mut member) = self.members.remove(old) else { return };
        if let Some(ticket) = member.joining.take() {
            turn.refuse_join(ticket, ResponseError::FencedInstanceId, old);
        }
        if let Some(ticket) = member.syncing.take() {
            turn.refuse_sync(ticket, ResponseError::FencedInstanceId);
        }
        // The answer to this join is its business alone: the predecessor had its own.
        member.fresh = false;
        if self.is_leader(old) {
            self.leader = Some(id.clone());
        }
        self.members.insert(id.clone(), member);
        let version = asked.version;
        self.park_join(&id, asked, turn);
        self.touch(&id, turn.now);
        match self.phase {
            Phase::Stable { .. } if self.protocol.as_deref() == Some(&*self.select_protocol()) => {
                self.answer_replacement(&id, &old_leader, version, turn);
            }
            // In CompletingRebalance the leader may have seen the old id and would assign nothing to the new one.
            Phase::Stable { .. } | Phase::CompletingRebalance { .. } => self.prepare(turn),
            Phase::PreparingRebalance { .. } => self.complete_if_all_joined(turn),
            Phase::Empty => {}
        }
    }

    /// The new id of a static member in an unchanged generation. A leader that cannot be told to skip the assignment
    /// is shown the old leader, so it thinks itself a follower (and misses changes of topics, as it did before
    /// KIP-814).
    fn answer_replacement(&mut self, id: &str, old_leader: &str, version: i16, turn: &mut Turn<'_, T>) {
        let leads = self.is_leader(id);
        let skips = leads && version >= SKIP_ASSIGNMENT;
        let mut joined = self.joined(id, skips);
        joined.skip_assignment = skips;
        if version < SKIP_ASSIGNMENT {
            old_leader.clone_into(&mut joined.leader);
        }
        if let Some(ticket) = self.members.get_mut(id).and_then(|member| member.joining.take()) {
            turn.replies.push((ticket, Reply::Join(Ok(joined))));
        }
    }
}
