//! Sticky sharing where members want different topics: as balanced as the subscriptions allow.
//!
//! Guarantee: no chain of hand-overs (a gives one of its partitions to b, who wants that topic, b one of another
//! topic to c, …) leads from a member to one that has at least two fewer. The Java client stops when no single
//! hand-over does; the chains make it the true optimum, and a leader of either kind leaves the other's result alone
//! or improves it. The optimum is also why a cooperative group settles in two rounds: what was withheld in the first
//! can be placed in the second without moving anything else.
//!
//! Moves are few but not always the fewest: chains are chosen by length, not by what they disturb.
//!
//! Time: every chain lowers the sum of squared counts, so there are at most as many as partitions out of place;
//! finding one looks at each topic's subscribers once.

use std::collections::BTreeMap;

use super::board::Board;

pub(super) fn share(board: &mut Board<'_>) {
    let mut loads = vec![0; board.member_count()];
    for owner in board.owner.iter().flatten() {
        loads[*owner] += 1;
    }
    let free: Vec<bool> = board.owner.iter().map(Option::is_none).collect();
    place(board, &mut loads);
    // What nobody had is moved first: it costs nothing. Only then what somebody would have to give up.
    Levelling::new(board, &mut loads, |partition| free[partition]).run();
    Levelling::new(board, &mut loads, |_| true).run();
}

/// Gives each free partition to its least loaded subscriber, topics with few subscribers first.
fn place(board: &mut Board<'_>, loads: &mut [usize]) {
    let mut order: Vec<usize> = (0..board.topic_count()).collect();
    order.sort_by_key(|&topic| board.subscribers(topic).len());
    for topic in order {
        for partition in board.span(topic) {
            if board.owner[partition].is_none() {
                let least = board.subscribers(topic).iter().copied().min_by_key(|&member| loads[member]);
                let least = least.expect("a listed topic has a subscriber");
                board.owner[partition] = Some(least);
                loads[least] += 1;
            }
        }
    }
}

/// Evens the counts out by moving some of the partitions along chains of members.
struct Levelling<'b, 'r> {
    board: &'b mut Board<'r>,
    loads: &'b mut [usize],
    /// Per member: topic → the partitions that it holds and may give away; no empty lists.
    movable: Vec<BTreeMap<usize, Vec<usize>>>,
}

/// One hand-over: a partition of `topic` from `giver`.
#[derive(Clone, Copy)]
struct Step {
    giver: usize,
    topic: usize,
}

impl<'b, 'r> Levelling<'b, 'r> {
    fn new(board: &'b mut Board<'r>, loads: &'b mut [usize], may_move: impl Fn(usize) -> bool) -> Self {
        let mut movable: Vec<BTreeMap<usize, Vec<usize>>> = vec![BTreeMap::new(); board.member_count()];
        for (partition, owner) in board.owner.iter().enumerate() {
            if let Some(owner) = owner.filter(|_| may_move(partition)) {
                movable[owner].entry(board.topic(partition)).or_default().push(partition);
            }
        }
        Self { board, loads, movable }
    }

    /// Takes from the most loaded member until that one's surplus can go nowhere, then from the next. A member that
    /// is done stays done: a later chain starts at one with no more than it, so if the member could reach any part
    /// of that chain it could have reached its end.
    fn run(mut self) {
        let mut open: Vec<usize> = (0..self.loads.len()).collect();
        while let Some(place) = (0..open.len()).max_by_key(|&place| (self.loads[open[place]], open[place])) {
            let giver = open[place];
            let floor = self.loads.iter().copied().min().expect("there is a member");
            if floor + 2 > self.loads[giver] {
                break;
            }
            let (taker, steps) = self.reach(giver, floor);
            if self.loads[taker] + 2 > self.loads[giver] {
                open.swap_remove(place);
            } else {
                self.shift(giver, taker, &steps);
            }
        }
    }

    /// The least loaded member that a chain from `from` leads to, the nearest of several, and the last step to each
    /// member on the way. No member has less than `floor`, so the search ends at one that has it.
    fn reach(&self, from: usize, floor: usize) -> (usize, Vec<Option<Step>>) {
        let mut steps = vec![None; self.loads.len()];
        let mut topic_seen = vec![false; self.board.topic_count()];
        let mut least = from;
        let mut reached = vec![from];
        let mut next = 0;
        while let Some(&giver) = reached.get(next) {
            next += 1;
            for &topic in self.movable[giver].keys() {
                if std::mem::replace(&mut topic_seen[topic], true) {
                    continue;
                }
                for &taker in self.board.subscribers(topic) {
                    if taker != from && steps[taker].is_none() {
                        steps[taker] = Some(Step { giver, topic });
                        reached.push(taker);
                        if self.loads[taker] < self.loads[least] {
                            least = taker;
                        }
                        if self.loads[taker] == floor {
                            return (taker, steps);
                        }
                    }
                }
            }
        }
        (least, steps)
    }

    fn shift(&mut self, first: usize, last: usize, steps: &[Option<Step>]) {
        let mut taker = last;
        while taker != first {
            let step = steps[taker].expect("a reached member has a step to it");
            self.hand_over(step, taker);
            taker = step.giver;
        }
        self.loads[first] -= 1;
        self.loads[last] += 1;
    }

    /// Moves the partition whose move disturbs least: one that comes home, else one that was not the giver's before.
    fn hand_over(&mut self, step: Step, taker: usize) {
        let previous = &self.board.previous;
        let held = self.movable[step.giver].get_mut(&step.topic).expect("a step's giver holds its topic");
        let (place, &partition) = held
            .iter()
            .enumerate()
            .min_by_key(|&(_, &partition)| match previous[partition] {
                Some(member) if member == taker => 0,
                Some(member) if member == step.giver => 2,
                _ => 1,
            })
            .expect("no empty lists");
        held.remove(place);
        if held.is_empty() {
            self.movable[step.giver].remove(&step.topic);
        }
        self.movable[taker].entry(step.topic).or_default().push(partition);
        self.board.owner[partition] = Some(taker);
    }
}
