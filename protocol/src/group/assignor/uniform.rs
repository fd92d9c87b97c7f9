//! Sticky sharing where all members want the same topics: quotas.
//!
//! Guarantees: member counts differ by at most one; no member below its quota loses a partition, and one above it
//! loses only the surplus. What is free is dealt in turn in the Java client's order, so that a fresh group gets the
//! same assignment from either leader.

use std::collections::VecDeque;

use super::board::Board;

pub(super) fn share(board: &mut Board<'_>) {
    let members = board.member_count();
    if members == 0 {
        return;
    }
    let floor = board.partition_count() / members;
    // How many members may still hold one more than `floor`.
    let mut extra = board.partition_count() % members;
    let mut loads = Vec::with_capacity(members);
    for mut owned in owned_by_member(board) {
        let keep = if owned.len() > floor && extra > 0 {
            extra -= 1;
            floor + 1
        } else {
            owned.len().min(floor)
        };
        // By number before topic: the surplus then comes from many topics rather than from the last one.
        owned.sort_by_key(|&partition| (board.index(partition), board.topic(partition)));
        for &partition in &owned[keep..] {
            board.owner[partition] = None;
        }
        loads.push(keep);
    }
    deal(board, &mut loads, floor);
}

fn owned_by_member(board: &Board<'_>) -> Vec<Vec<usize>> {
    let mut owned = vec![Vec::new(); board.member_count()];
    for (partition, owner) in board.owner.iter().enumerate() {
        if let Some(owner) = *owner {
            owned[owner].push(partition);
        }
    }
    owned
}

/// Gives out what is free: in turn to the members below `floor`, then one each to members at `floor`.
fn deal(board: &mut Board<'_>, loads: &mut [usize], floor: usize) {
    let at = |wanted: fn(&usize, &usize) -> bool| -> VecDeque<usize> {
        (0..loads.len()).filter(|&member| wanted(&loads[member], &floor)).collect()
    };
    let (mut below, mut level) = (at(usize::lt), at(usize::eq));
    for partition in 0..board.partition_count() {
        if board.owner[partition].is_some() {
            continue;
        }
        let member =
            below.pop_front().or_else(|| level.pop_front()).expect("the quotas add up to all partitions");
        board.owner[partition] = Some(member);
        loads[member] += 1;
        if loads[member] < floor {
            below.push_back(member);
        } else if loads[member] == floor {
            level.push_back(member);
        }
    }
}
