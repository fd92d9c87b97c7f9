//! The sticky assignor (KIP-54), and what both sticky assignors have in common.
//!
//! An eager member owns nothing when it joins, so it says in its user data what it had: StickyAssignorUserData,
//! version 0 a list of topics with partitions, version 1 (KIP-341) the generation of that behind it. The bytes bear no
//! version number: they are version 1 if they can be read as that, else 0.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::board::{Board, Claim};
use super::{Roster, TopicPartitions, general, uniform};
use crate::group::Subscription;
use crate::group::codec::{MetadataError, Reader, Writer};

pub(super) fn assign(roster: &Roster<'_>) -> BTreeMap<String, TopicPartitions> {
    let mut board = Board::new(roster, claim);
    share(&mut board);
    board.assigned()
}

/// Gives every partition an owner.
pub(super) fn share(board: &mut Board<'_>) {
    if board.is_uniform() { uniform::share(board) } else { general::share(board) }
}

/// Version 1, or nothing from a member that was never assigned anything.
pub(super) fn user_data(owned: &TopicPartitions, generation: i32) -> Option<Bytes> {
    if owned.is_empty() && generation < 0 {
        return None;
    }
    let mut out = Writer::default();
    out.topic_partitions(owned);
    out.int32(generation);
    Some(out.into_bytes())
}

/// What the member had. Bytes that cannot be read cost the member what it had, and nobody anything else.
fn claim(subscription: &Subscription) -> Claim {
    let bytes = subscription.user_data.clone().unwrap_or_default();
    let mut from = Reader::new(bytes);
    match previous_assignment(&mut from) {
        Ok(owned) => Claim { owned, generation: from.int32("generation").unwrap_or(-1) },
        Err(_) => Claim { owned: TopicPartitions::new(), generation: -1 },
    }
}

fn previous_assignment(from: &mut Reader) -> Result<TopicPartitions, MetadataError> {
    from.topic_partitions("previous assignment")
}
