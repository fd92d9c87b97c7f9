//! The cooperative sticky assignor (KIP-429): the sticky sharing, less what must first be revoked.
//!
//! Guarantee: nobody is given a partition that another member says it owns, unless a newer generation has already
//! given it to it. So a partition that moves does so in two rounds: in the first it is given to nobody, its owner
//! revokes it and rejoins, and the second finds it free.

use std::collections::BTreeMap;

use bytes::{Buf, Bytes};

use super::board::{Board, Claim};
use super::{Roster, TopicPartitions, sticky};
use crate::group::Subscription;

pub(super) fn assign(roster: &Roster<'_>) -> BTreeMap<String, TopicPartitions> {
    let mut board = Board::new(roster, claim);
    sticky::share(&mut board);
    board.withhold();
    board.assigned()
}

/// The generation alone: what is owned stands in the subscription itself.
pub(super) fn user_data(generation: i32) -> Bytes {
    Bytes::copy_from_slice(&generation.max(-1).to_be_bytes())
}

/// The subscription's own generation, which members have written since version 2; before that, the user data's.
fn claim(subscription: &Subscription) -> Claim {
    let mut generation = subscription.generation;
    if generation < 0 {
        let user_data = subscription.user_data.clone();
        generation = user_data.and_then(|mut bytes| bytes.try_get_i32().ok()).unwrap_or(-1).max(-1);
    }
    Claim { owned: subscription.owned.clone(), generation }
}
