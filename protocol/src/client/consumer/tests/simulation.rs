//! Seeded random runs: members come and go, connections break, coordinators and leaders move, brokers refuse.
//!
//! `KEYLANE_SEEDS=from..to` runs other seeds than the default ones. A failure names its seed.

use std::collections::BTreeSet;
use std::time::Duration;

use super::world::{World, config};
use super::{Random, ms};
use crate::api::Api;
use crate::group::Assignor;

/// Codes that pass, by API.
const PASSING: &[(Api, &[i16])] = &[
    (Api::Metadata, &[5, 3]),
    (Api::FindCoordinator, &[15, 14]),
    (Api::JoinGroup, &[14, 15, 16]),
    (Api::SyncGroup, &[14, 15, 16, 27]),
    (Api::Heartbeat, &[14, 15, 16, 27]),
    (Api::OffsetCommit, &[14, 15, 16, 3]),
    (Api::OffsetFetch, &[14, 16, 88]),
    (Api::ListOffsets, &[6, 78, 3]),
    (Api::OffsetForLeaderEpoch, &[6, 75]),
    (Api::Fetch, &[6, 74, 75, 3, 100, 78]),
];

fn assignors(random: &mut Random) -> Vec<Assignor> {
    match random.below(4) {
        0 => vec![Assignor::Range],
        1 => vec![Assignor::Sticky, Assignor::RoundRobin],
        _ => vec![Assignor::CooperativeSticky],
    }
}

struct Chaos {
    world: World,
    assignors: Vec<Assignor>,
    leaving: BTreeSet<usize>,
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed);
        let assignors = assignors(&mut world.random);
        let longest = [3, 3, 20, 120][world.random.below(4) as usize];
        world.delay_ms = (1, longest);
        if world.random.one_in(3) {
            world.cluster.refuse(Api::Metadata, 5, 2);
            world.cluster.refuse(Api::OffsetFetch, 88, 3);
            world.cluster.refuse(Api::ListOffsets, 6, 3);
            world.cluster.refuse(Api::JoinGroup, 16, 2);
        }
        Chaos { world, assignors, leaving: BTreeSet::new() }
    }

    fn member(&mut self) {
        let mut config = config(&self.assignors);
        // Refusals that follow each other for a while are no topic that is gone.
        config.topic_timeout = ms(30_000);
        let world = &mut self.world;
        let (pace, drain) = (ms(20 + world.random.below(300)), ms(world.random.below(2_500)));
        world.join(config, pace, drain);
    }

    fn running(&self) -> Vec<usize> {
        let runs = |client: &usize| self.world.clients[*client].running && !self.leaving.contains(client);
        (0..self.world.clients.len()).filter(runs).collect()
    }

    fn act(&mut self) {
        let running = self.running();
        let random = &mut self.world.random;
        let node = 1 + random.below(3) as i32;
        let chosen = running[random.below(running.len() as u64) as usize];
        match random.below(14) {
            0 if running.len() < 4 => self.member(),
            1 if running.len() > 2 => {
                self.leaving.insert(chosen);
                self.world.close(chosen, 3_000);
            }
            2 if running.len() > 2 && random.one_in(2) => self.world.kill(chosen),
            3 | 4 => self.world.cut_one(),
            5 => self.world.cut(|client, _| client == chosen),
            6 => self.world.move_coordinator(node),
            7 => {
                let partition = random.below(6) as i32;
                self.world.cluster.log("t", partition).lead(node);
            }
            8 => self.world.set_node(node, false),
            9 => {
                let for_ms = random.below(12_000);
                self.world.stop_process(chosen, for_ms);
            }
            10 => self.world.hang_one(),
            11 => (1..=3).for_each(|node| self.world.set_node(node, true)),
            _ => {
                let (api, codes) = PASSING[random.below(PASSING.len() as u64) as usize];
                let code = codes[random.below(codes.len() as u64) as usize];
                let times = 1 + random.below(4) as u32;
                self.world.cluster.refuse(api, code, times);
            }
        }
    }

    fn append(&mut self) {
        for _ in 0..self.world.random.below(4) {
            let partition = self.world.random.below(6) as i32;
            let count = 1 + self.world.random.below(20) as i64;
            self.world.cluster.log("t", partition).append(count);
        }
        self.world.answer_all();
    }
}

fn run(seed: u64) {
    let mut chaos = Chaos::new(seed);
    for _ in 0..2 + chaos.world.random.below(2) {
        chaos.member();
    }
    let until = ms(15_000 + chaos.world.random.below(20_000));
    while chaos.world.now < until {
        let pause = chaos.world.random.below(1_200);
        chaos.world.run(pause);
        chaos.append();
        chaos.act();
    }
    (1..=3).for_each(|node| chaos.world.set_node(node, true));
    chaos.world.cluster.refusals.clear();
    chaos.world.run_until("convergence", 60_000, World::is_converged);
    // Members that were killed are missed after their session only.
    chaos.world.run(8_000);
    chaos.world.run_until("convergence", 20_000, World::is_converged);
    let since = chaos.world.now;
    chaos.world.run(5_000);
    assert!(chaos.world.is_converged(), "it stays so\n{}", chaos.world.story());
    for client in chaos.running() {
        let owner = &chaos.world.clients[client].owner;
        assert_eq!((&owner.fatal, owner.broken), (&None, 0));
        assert_eq!(owner.said(since + Duration::from_millis(1), ""), None, "nothing more happens");
    }
    chaos.check_finished();
}

impl Chaos {
    /// Every record was finished by somebody.
    fn check_finished(&self) {
        for (partition, log) in self.world.cluster.topics["t"].logs.iter().enumerate() {
            let at = crate::metadata::TopicPartition::new("t", partition as i32);
            for offset in 0..log.end {
                let finished =
                    |client: &super::world::Client| client.owner.finished.contains(&(at.clone(), offset));
                assert!(self.world.clients.iter().any(finished), "{at}@{offset} was skipped");
            }
        }
    }
}

#[test]
fn groups_converge_whatever_happens() {
    let seeds = std::env::var("KEYLANE_SEEDS").unwrap_or_else(|_| "0..30".to_owned());
    let (from, to) = seeds.split_once("..").expect("KEYLANE_SEEDS=from..to");
    let (from, to): (u64, u64) = (from.parse().expect("a number"), to.parse().expect("a number"));
    let mut failed = Vec::new();
    for seed in from..to {
        if std::panic::catch_unwind(|| run(seed)).is_err() {
            failed.push(seed);
            eprintln!("^ seed {seed}");
        }
    }
    assert!(failed.is_empty(), "failing seeds: {failed:?}");
}
