//! Random members against the coordinator: they join, sync, heartbeat, commit, leave, change, restart, freeze, and send
//! requests twice, while the coordinator moves. A failure names its seed.
//!
//! Checked all along: generations only grow, a generation has one leader, a ticket is answered once and within the
//! rebalance timeout, a share comes from the generation it is asked for. At the end all who are still there behave, and
//! the group becomes stable with just them.

use super::*;

const SEEDS: u64 = 300;
const STEPS: usize = 250;
/// No ticket waits longer than a round, or its first delay before that.
const PATIENCE: Duration = Duration::from_millis(REBALANCE_MS as u64 + 3000);

/// splitmix64
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % bound
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Idle,
    Joining(u32),
    Joined,
    Syncing(u32),
    In,
    /// Sends nothing any more.
    Frozen,
}

#[derive(Debug)]
struct Client {
    instance: Option<String>,
    id: String,
    generation: i32,
    /// The members to assign to, for a leader.
    leads: Vec<String>,
    protocols: Vec<(String, Bytes)>,
    step: Step,
}

struct World {
    bench: Bench,
    random: Random,
    clients: Vec<Client>,
    issued: BTreeMap<u32, Duration>,
    answered: usize,
    generation: i32,
    leaders: BTreeMap<i32, String>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let delay_ms = [0, 500, 3000][random.below(3) as usize];
        let clients = (0..1 + random.below(6)).map(|n| Client {
            instance: n.is_multiple_of(3).then(|| format!("instance-{n}")),
            id: String::new(),
            generation: -1,
            leads: Vec::new(),
            protocols: protocols(&["range"]),
            step: Step::Idle,
        });
        World {
            clients: clients.collect(),
            bench: Bench::with_delay(delay_ms),
            random,
            issued: BTreeMap::new(),
            answered: 0,
            generation: 0,
            leaders: BTreeMap::new(),
        }
    }

    fn join(&mut self, who: usize) {
        let client = &self.clients[who];
        let asked = Joining {
            member: client.id.clone(),
            instance: client.instance.clone(),
            protocols: client.protocols.clone(),
            ..asks()
        };
        let ticket = self.bench.join(asked);
        self.issued.insert(ticket, self.bench.now);
        self.clients[who].step = Step::Joining(ticket);
    }

    fn sync(&mut self, who: usize) {
        let client = &self.clients[who];
        let share = |id: &String| (id.clone(), Bytes::from(format!("{}:", client.generation)));
        let ticket = self.bench.send_sync(Syncing {
            ticket: 0,
            group: "g".to_owned(),
            member: client.id.clone(),
            instance: client.instance.clone(),
            generation: client.generation,
            protocol_type: None,
            protocol: None,
            assignments: client.leads.iter().map(share).collect(),
        });
        self.issued.insert(ticket, self.bench.now);
        self.clients[who].step = Step::Syncing(ticket);
    }

    fn beat(&mut self, who: usize) {
        let client = &self.clients[who];
        let claim = Claim { instance: client.instance.as_deref(), ..claim(&client.id, client.generation) };
        let outcome = self.bench.groups.heartbeat(&claim, self.bench.now);
        self.bench.collect();
        match outcome {
            Ok(()) => {
                let commits = self.bench.groups.commits(&claim, 9, self.bench.now);
                assert_ne!(commits.err(), Some(ResponseError::IllegalGeneration));
            }
            Err(error) => self.stumble(who, error),
        }
    }

    /// A client is told that it is not where it thought.
    fn stumble(&mut self, who: usize, error: ResponseError) {
        let client = &mut self.clients[who];
        match error {
            ResponseError::UnknownMemberId | ResponseError::FencedInstanceId => client.id.clear(),
            ResponseError::RebalanceInProgress
            | ResponseError::IllegalGeneration
            | ResponseError::MemberIdRequired
            | ResponseError::NotCoordinator => {}
            other => panic!("{other:?} makes no sense here"),
        }
        client.step = Step::Idle;
    }

    /// Looks at all answers that are new, and what they tell.
    fn hear(&mut self) {
        while self.answered < self.bench.answers.len() {
            let new: Vec<u32> =
                self.issued.keys().copied().filter(|ticket| !self.bench.is_parked(*ticket)).collect();
            for ticket in new {
                self.issued.remove(&ticket);
                self.answered += 1;
                let reply = self.bench.answers[&ticket].clone();
                self.check_leader(&reply);
                let waits =
                    |client: &Client| [Step::Joining(ticket), Step::Syncing(ticket)].contains(&client.step);
                if let Some(who) = self.clients.iter().position(waits) {
                    self.take(who, reply);
                }
            }
        }
    }

    fn check_leader(&mut self, reply: &Reply) {
        if let Reply::Join(Ok(joined)) = reply
            && joined.leader == joined.member
            && !joined.skip_assignment
        {
            let leader = self.leaders.entry(joined.generation).or_insert_with(|| joined.member.clone());
            assert_eq!(*leader, joined.member, "two lead generation {}", joined.generation);
        }
    }

    fn take(&mut self, who: usize, reply: Reply) {
        let client = &mut self.clients[who];
        match reply {
            Reply::Join(Ok(joined)) => {
                client.id = joined.member;
                client.generation = joined.generation;
                let assigns = !joined.skip_assignment;
                client.leads =
                    joined.members.into_iter().filter(|_| assigns).map(|member| member.id).collect();
                client.step = Step::Joined;
            }
            Reply::Join(Err(refused)) => {
                if refused.error == ResponseError::MemberIdRequired {
                    client.id = refused.member;
                }
                self.stumble(who, refused.error);
            }
            Reply::Sync(Ok(synced)) => {
                let expected = format!("{}:", client.generation);
                assert_eq!(synced.assignment, expected.as_bytes(), "a share of another generation");
                client.step = Step::In;
            }
            Reply::Sync(Err(error)) => self.stumble(who, error),
        }
    }

    /// What a member does that behaves.
    fn go_on(&mut self, who: usize) {
        match self.clients[who].step {
            Step::Idle => self.join(who),
            Step::Joined => self.sync(who),
            Step::In => self.beat(who),
            Step::Joining(_) | Step::Syncing(_) | Step::Frozen => {}
        }
    }

    fn act(&mut self) {
        let who = self.random.below(self.clients.len() as u64) as usize;
        if self.clients[who].step == Step::Frozen {
            if self.random.below(6) == 0 {
                self.clients[who].step = Step::Idle;
            }
            return;
        }
        match self.random.below(40) {
            0 => self.clients[who].step = Step::Frozen,
            // Its process starts again: what is parked is nobody's.
            1 => {
                self.clients[who].id.clear();
                self.join(who);
            }
            2 => {
                let extra = ["a", "b", "c"][self.random.below(3) as usize];
                self.clients[who].protocols = protocols(&["range", extra]);
                self.join(who);
            }
            3 => self.join(who),
            4 if self.clients[who].generation >= 0 => self.sync(who),
            5 | 6 if self.clients[who].instance.is_none() => {
                let id = self.clients[who].id.clone();
                let _ = self.bench.leave(&id);
                self.clients[who].id.clear();
                self.clients[who].step = Step::Idle;
            }
            7 => {
                self.bench.groups.on_coordinator_moved("g", self.bench.now);
                self.bench.collect();
            }
            8 => {
                self.bench.groups.force_rebalance("g", self.bench.now);
                self.bench.collect();
            }
            _ => self.go_on(who),
        }
    }

    fn step(&mut self, wait_ms: u64) {
        self.hear();
        self.bench.wait(wait_ms);
        self.hear();
        let generation = self.bench.generation().max(0);
        assert!(generation >= self.generation, "the generation fell");
        self.generation = generation;
        for (ticket, issued) in &self.issued {
            assert!(self.bench.now <= *issued + PATIENCE, "ticket {ticket} waits for too long");
        }
    }

    fn converge(&mut self) {
        self.clients.retain(|client| client.step != Step::Frozen);
        // Long enough for everything that went wrong to time out, and for a round after that.
        for _ in 0..3 * REBALANCE_MS / 1000 {
            for who in 0..self.clients.len() {
                self.go_on(who);
                self.hear();
            }
            self.step(1000);
        }
        let group = self.bench.groups.describe("g");
        if self.clients.is_empty() {
            assert!(group.is_none_or(|group| group.state == "Empty"));
            return;
        }
        let group = group.expect("somebody is in");
        assert_eq!(group.state, "Stable");
        let mut there: Vec<&str> = self.clients.iter().map(|client| client.id.as_str()).collect();
        there.sort_unstable();
        let known: Vec<&str> = group.members.iter().map(|member| member.id).collect();
        assert_eq!(known, there);
        let settled = |client: &Client| client.step == Step::In && client.generation == group.generation;
        assert!(self.clients.iter().all(settled));
    }
}

#[test]
fn whatever_members_do_the_group_gets_stable_once_they_behave() {
    let mut rounds = 0;
    for seed in 0..SEEDS {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            for _ in 0..STEPS {
                world.act();
                let wait_ms = world.random.below(2000);
                world.step(wait_ms);
            }
            world.converge();
            world.generation
        });
        rounds += run.unwrap_or_else(|_| panic!("seed {seed}"));
    }
    assert!(rounds > 5 * SEEDS as i32, "little has happened: {rounds} generations");
}
