//! Fair shares of a limit (records or bytes) among the assigned partitions.
//!
//! Guarantees: a partition with a backlog always gets its share, limit ÷ partitions, however much the others hold; it
//! gets more only from what no hungry partition is owed; and the share is never less than one. So a partition with
//! one slow key cannot fill the buffer. A partition that becomes hungry late gets its share beside what others hold
//! already: until they have given it back, the sum may exceed the limit, by less than the limit again.

/// What one partition holds and whether it could use more.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Records or bytes held.
    pub held: u64,
    /// It has a backlog: fetched data waiting, or a lag.
    pub hungry: bool,
}

/// The shares at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    limit: u64,
    share: u64,
    reserved: u64,
}

impl Budget {
    /// Divides `limit` among all assigned partitions.
    pub fn new(limit: u64, demands: impl Iterator<Item = Demand> + Clone) -> Budget {
        // With less than one for each, every partition of a pass would take what is owed to no other.
        let share = (limit / demands.clone().count().max(1) as u64).max(1);
        let mut budget = Budget { limit, share, reserved: 0 };
        budget.reserved = demands.map(|demand| budget.reserved_for(demand)).sum();
        budget
    }

    /// How much more this partition, one of those given to [`Budget::new`], may be given now; 0 pauses it.
    pub fn room(&self, demand: Demand) -> u64 {
        let others = self.reserved - self.reserved_for(demand);
        let own = self.share.saturating_sub(demand.held);
        let spare = self.limit.saturating_sub(others + demand.held);
        own.max(spare)
    }

    /// The partition with this demand, one of those given to [`Budget::new`], was given so much: less is left for the
    /// others of the same pass.
    pub fn give(&mut self, demand: Demand, more: u64) {
        let after = Demand { held: demand.held + more, ..demand };
        self.reserved = self.reserved - self.reserved_for(demand) + self.reserved_for(after);
    }

    fn reserved_for(&self, demand: Demand) -> u64 {
        if demand.hungry { demand.held.max(self.share) } else { demand.held }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rooms(limit: u64, demands: &[(u64, bool)]) -> Vec<u64> {
        let demands: Vec<Demand> = demands.iter().map(|&(held, hungry)| Demand { held, hungry }).collect();
        let budget = Budget::new(limit, demands.iter().copied());
        demands.iter().map(|&demand| budget.room(demand)).collect()
    }

    #[test]
    fn shares() {
        assert_eq!(rooms(60, &[(0, true), (0, true), (0, true)]), [20, 20, 20]);
        assert_eq!(rooms(60, &[(0, true), (0, false), (0, false)]), [60, 40, 40], "idle ones lend theirs");
        assert_eq!(
            rooms(60, &[(40, true), (0, false), (0, true)]),
            [0, 20, 20],
            "over its share, another hungry"
        );
        assert_eq!(rooms(60, &[(60, true), (0, true), (0, false)]), [0, 20, 20], "guaranteed all the same");
        assert_eq!(rooms(2, &[(1, true), (0, true), (1, true)]), [0, 1, 0], "one is always admitted");
        assert_eq!(rooms(4, &[(0, true); 6]), [1; 6], "all of one pass together, fewer than one for each");
        assert_eq!(rooms(60, &[]), [0_u64; 0]);
    }

    #[test]
    fn one_pass_lends_what_is_spare_once() {
        let demands = [(0, true), (0, true), (0, false)].map(|(held, hungry)| Demand { held, hungry });
        let mut budget = Budget::new(60, demands.iter().copied());
        let mut given = Vec::new();
        for demand in demands.into_iter().filter(|demand| demand.hungry) {
            given.push(budget.room(demand));
            budget.give(demand, budget.room(demand));
        }
        assert_eq!(given, [40, 20]);
    }

    proptest! {
        #[test]
        fn bounded_and_guaranteed(limit in 1..1000_u64, start in prop::collection::vec((0..1_u64, any::<bool>()), 1..8),
                                  steps in prop::collection::vec((0..8_usize, any::<bool>(), 0..200_u64), 0..60)) {
            let mut demands: Vec<Demand> =
                start.iter().map(|&(held, hungry)| Demand { held, hungry }).collect();
            let share = limit / demands.len() as u64;
            for (at, hungry, less) in steps {
                let at = at % demands.len();
                demands[at].hungry = hungry;
                let room = Budget::new(limit, demands.iter().copied()).room(demands[at]);
                let held = demands[at].held;
                prop_assert!(room >= share.saturating_sub(held));
                prop_assert!(room >= u64::from(held == 0));
                if hungry { demands[at].held += room; } else { demands[at].held -= less.min(held); }
                let sum: u64 = demands.iter().map(|demand| demand.held).sum();
                prop_assert!(sum < 2 * limit + demands.len() as u64);
            }
        }
    }
}
