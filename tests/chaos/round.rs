//! One round: a topic, a group, pools that come and go, and the deeds done to them and to the brokers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::child::{Exit, Keylane, Stream};
use crate::cluster::{Cluster, LIMIT, wait_until};
use crate::dice::Dice;
use crate::events::{Ledger, Place, What, now, read};
use crate::evidence::Evidence;
use crate::handler::HANG_MAX;
use crate::judge::{Verdict, judge};
use crate::member::{AHEAD_MAX, DRAIN_MAX, End, Member, Mode, SESSION, Team};
use crate::watch::{Commits, Health, processes_of};

const PARTITIONS: usize = 8;
const KEYS: &str = "400";
/// Records a second.
const RATE: &str = "200";
/// Records that are there before anybody works, so that the pools begin with all hands full.
const BACKLOG: usize = 4000;
const MEMBERS_MIN: usize = 2;
const MEMBERS_MAX: usize = 4;
const NODES: u64 = 3;
const TICK: Duration = Duration::from_millis(50);
/// The work at hand, the last session of a killed member, and a busy machine.
const CATCH_UP_MAX: Duration = Duration::from_secs(120);
/// A pool may have 32 MiB of records; the rest is the program, threads, and a build that is not optimised.
const RSS_KIB_MAX: u64 = 128 << 10;

/// What a round is to be.
pub struct Plan {
    pub index: u64,
    pub seed: u64,
    pub assignor: &'static str,
    pub chaos: Duration,
}

/// What came of it.
#[derive(Default)]
pub struct Outcome {
    pub verdict: Verdict,
    /// The line of `keylane verify`.
    pub verified: String,
    pub deeds: BTreeMap<&'static str, usize>,
    pub members: usize,
    pub rebalances: usize,
    pub rss_kib_max: u64,
    pub took: Duration,
    pub violations: Vec<String>,
}

/// What is done to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Deed {
    Kill,
    Stop,
    Leave,
    Join,
    KillNode,
    RestartNode,
}

const DEEDS: [(Deed, &str); 6] = [
    (Deed::Kill, "SIGKILL"),
    (Deed::Stop, "SIGSTOP"),
    (Deed::Leave, "SIGTERM"),
    (Deed::Join, "join"),
    (Deed::KillNode, "broker kill -9"),
    (Deed::RestartNode, "broker restart"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Deed,
    Join,
    Continue(u32),
}

/// Plays a round and judges it.
pub fn run(kafka: &Cluster, plan: &Plan) -> Outcome {
    let began = Instant::now();
    let mut stage = Stage::new(kafka, plan);
    std::thread::scope(|scope| stage.play(scope));
    let mut outcome = stage.judge();
    outcome.took = began.elapsed();
    for violation in &outcome.violations {
        stage.say(&format!("VIOLATION {violation}"));
    }
    if outcome.violations.is_empty() && std::env::var_os("KEYLANE_CHAOS_KEEP").is_none() {
        let _ = std::fs::remove_dir_all(&stage.folder);
    } else {
        for member in &stage.members {
            let text = member.child.text(Stream::Err);
            let _ = std::fs::write(stage.folder.join(format!("stderr-{}", member.id)), text);
        }
        stage.say(&format!("its ledger, joblogs and messages stay in {}", stage.folder.display()));
    }
    outcome
}

struct Stage<'k> {
    kafka: &'k Cluster,
    plan: &'k Plan,
    folder: PathBuf,
    team: Team,
    ledger: Ledger,
    dice: Dice,
    began: Instant,
    members: Vec<Member>,
    /// What is still to be done, and when.
    agenda: BinaryHeap<Reverse<(Instant, Next)>>,
    /// Deeds of this turn of the wheel: each comes once before any comes again.
    bag: Vec<Deed>,
    deeds: BTreeMap<&'static str, usize>,
    health: Health,
    violations: Vec<String>,
}

/// Held while a node is down, or not yet in sync.
static NODE_AWAY: AtomicBool = AtomicBool::new(false);

impl<'k> Stage<'k> {
    fn new(kafka: &'k Cluster, plan: &'k Plan) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("chaos-{:016x}", plan.seed));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        let topic = format!("chaos-{:08x}-{}", plan.seed as u32, now().as_millis());
        let letters = format!("{topic}.dead");
        let ledger = folder.join("ledger");
        for (name, partitions) in [(&topic, PARTITIONS), (&letters, 2)] {
            let partitions = partitions.to_string();
            kafka.run(&[
                "topic",
                "create",
                name,
                "-p",
                &partitions,
                "-r",
                "3",
                "-c",
                "min.insync.replicas=2",
            ]);
        }
        let team = Team {
            brokers: kafka.brokers().to_owned(),
            group: format!("{topic}.group"),
            topic,
            letters,
            assignor: plan.assignor,
            ledger: ledger.clone(),
            seed: plan.seed,
        };
        Stage {
            kafka,
            plan,
            folder,
            team,
            ledger: Ledger::open(&ledger).expect("a ledger"),
            dice: Dice::new(plan.seed),
            began: Instant::now(),
            members: Vec::new(),
            agenda: BinaryHeap::new(),
            bag: Vec::new(),
            deeds: BTreeMap::new(),
            health: Health::default(),
            violations: Vec::new(),
        }
    }

    fn say(&self, text: &str) {
        eprintln!("chaos: round {} {:7.2}s {text}", self.plan.index + 1, self.began.elapsed().as_secs_f64());
    }

    fn violate(&mut self, text: String) {
        self.say(&text);
        self.violations.push(text);
    }

    // ---- the play ----

    fn play<'s>(&mut self, scope: &'s Scope<'s, '_>)
    where
        'k: 's,
    {
        self.say(&format!("seed {:016x}, {}, {:?}", self.plan.seed, self.plan.assignor, self.plan.chaos));
        self.kafka.seed(&self.team.topic, BACKLOG, 400, &["--skew", "0.8"]);
        let mut seed = self.kafka.keylane(&[
            "seed",
            "-t",
            &self.team.topic,
            "-n",
            "0",
            "-k",
            KEYS,
            "--skew",
            "0.8",
            "--rate",
            RATE,
            "--delivery-timeout",
            "120s",
        ]);
        for _ in 0..3 {
            self.join();
        }
        let commits = Commits::watch(&self.team);
        let until = Instant::now() + self.plan.chaos;
        self.plan_next(Duration::from_secs(8), Next::Deed);
        let mut sampled = Instant::now();
        while Instant::now() < until {
            self.turn(scope);
            if sampled.elapsed() > Duration::from_secs(1) {
                sampled = Instant::now();
                self.health.sample(&self.members);
            }
            std::thread::sleep(TICK);
        }
        // Or it would go on for as long as a node takes to come back.
        seed.signal("TERM");
        self.heal();
        let exit = seed.wait_exit(2 * LIMIT);
        if exit.code != Some(0) || exit.done("failed") != Some("0") {
            self.violate(format!("seed: {exit}"));
        }
        self.catch_up(
            exit.done("sent").and_then(|sent| sent.parse().ok()).map(|sent: i64| sent + BACKLOG as i64),
        );
        drop(commits);
        self.end_members();
    }

    fn plan_next(&mut self, wait: Duration, next: Next) {
        self.agenda.push(Reverse((Instant::now() + wait, next)));
    }

    fn turn<'s>(&mut self, scope: &'s Scope<'s, '_>)
    where
        'k: 's,
    {
        self.look_after_members();
        while self.agenda.peek().is_some_and(|Reverse((due, _))| *due <= Instant::now()) {
            let Some(Reverse((_, next))) = self.agenda.pop() else { return };
            match next {
                Next::Join => self.join(),
                Next::Continue(id) => self.go_on(id),
                Next::Deed => {
                    self.do_deed(scope);
                    let wait = Duration::from_millis(self.dice.between(2500, 7000));
                    self.plan_next(wait, Next::Deed);
                }
            }
        }
    }

    fn join(&mut self) {
        let id = self.members.len() as u32 + 1;
        let mode = if id.is_multiple_of(2) { Mode::Pipe } else { Mode::Exec };
        self.say(&format!("member {id} joins ({mode:?})"));
        self.members.push(Member::start(&self.team, id, mode));
    }

    fn go_on(&mut self, id: u32) {
        let Some(member) = self.members.iter_mut().find(|member| member.id == id) else { return };
        if member.end.is_none() && member.is_stopped() {
            member.child.signal("CONT");
            if let Some((_, until)) = member.stops.last_mut() {
                *until = Some(now());
            }
            self.say(&format!("SIGCONT to member {id}"));
        }
    }

    fn do_deed<'s>(&mut self, scope: &'s Scope<'s, '_>)
    where
        'k: 's,
    {
        let well: Vec<usize> = (0..self.members.len()).filter(|at| self.members[*at].is_well()).collect();
        let node_is_away = NODE_AWAY.load(Ordering::SeqCst);
        let possible = |deed: Deed| match deed {
            Deed::Kill | Deed::Stop | Deed::Leave => well.len() > MEMBERS_MIN,
            Deed::Join => well.len() < MEMBERS_MAX,
            Deed::KillNode | Deed::RestartNode => !node_is_away,
        };
        if self.bag.is_empty() {
            self.bag = DEEDS.map(|(deed, _)| deed).into();
            self.dice.shuffle(&mut self.bag);
        }
        let Some(at) = self.bag.iter().position(|deed| possible(*deed)) else {
            // Nothing left in the bag can be done now; a member more makes all possible.
            if well.len() < MEMBERS_MAX {
                self.join();
            }
            return;
        };
        let deed = self.bag.remove(at);
        let name = DEEDS.iter().find(|(known, _)| *known == deed).map_or("", |(_, name)| name);
        *self.deeds.entry(name).or_default() += 1;
        let victim = if well.is_empty() { 0 } else { *self.dice.pick(&well) };
        let short = Duration::from_millis(self.dice.between(0, 3000));
        match deed {
            Deed::Join => self.join(),
            Deed::Kill => {
                self.kill(victim);
                self.plan_next(short, Next::Join);
            }
            Deed::Stop => {
                let member = &mut self.members[victim];
                member.stops.push((now(), None));
                member.child.signal("STOP");
                let id = member.id;
                self.say(&format!("SIGSTOP to member {id}"));
                self.plan_next(SESSION + Duration::from_secs(1) + short, Next::Continue(id));
            }
            Deed::Leave => {
                let member = &mut self.members[victim];
                member.leaving = Some(Instant::now());
                member.child.signal("TERM");
                let id = member.id;
                self.say(&format!("SIGTERM to member {id}"));
                self.plan_next(short, Next::Join);
            }
            Deed::KillNode | Deed::RestartNode => {
                let node = self.dice.between(1, NODES).to_string();
                self.say(&format!("{name}: node {node}"));
                NODE_AWAY.store(true, Ordering::SeqCst);
                let (kafka, topic) = (self.kafka, self.team.topic.clone());
                let ledger = Ledger::open(&self.team.ledger).expect("a ledger");
                ledger.append(What::Away, 0, (-1, -1), "-").expect("a line");
                let away = Duration::from_millis(self.dice.between(1500, 7000));
                scope.spawn(move || {
                    if deed == Deed::KillNode {
                        kafka.script("kill-node", &[&node]);
                        std::thread::sleep(away);
                    } else {
                        kafka.script("stop", &["--node", &node]);
                    }
                    kafka.script("start-node", &[&node]);
                    wait_until("all replicas in sync", 2 * LIMIT, || {
                        [topic.as_str(), "__consumer_offsets"]
                            .iter()
                            .all(|topic| in_sync(kafka, topic))
                            .then_some(())
                    });
                    ledger.append(What::Back, 0, (-1, -1), "-").expect("a line");
                    NODE_AWAY.store(false, Ordering::SeqCst);
                });
            }
        }
    }

    fn kill(&mut self, at: usize) {
        let member = &mut self.members[at];
        member.child.signal("KILL");
        wait_until("SIGKILL kills", LIMIT, || (!member.child.is_running()).then_some(()));
        let id = member.id;
        self.ledger.append(What::Killed, id, (-1, -1), "-").expect("a line");
        member.end = Some(End { at: now(), exit: None });
        self.say(&format!("SIGKILL to member {id}"));
    }

    /// Takes note of members that have ended: those that were told to, and no others.
    fn look_after_members(&mut self) {
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            if member.end.is_some() || member.is_stopped() {
                continue;
            }
            let id = member.id;
            if !member.child.is_running() {
                let exit = member.child.wait_exit(LIMIT);
                let (code, told) = (exit.code, member.leaving.is_some());
                member.end = Some(End { at: now(), exit: Some(exit) });
                // Whoever finds no coordinator before it has ever had a partition gives up.
                let found_none = !told && code == Some(69) && !member.has_been_assigned();
                if found_none {
                    self.say(&format!("member {id} found no coordinator"));
                    *self.deeds.entry("found no coordinator").or_default() += 1;
                    self.plan_next(Duration::ZERO, Next::Join);
                } else if !told || !matches!(code, Some(0 | 75)) {
                    self.violate(format!("member {id} ended with {code:?}"));
                } else {
                    self.say(&format!("member {id} ended with {code:?}"));
                }
            } else if member
                .leaving
                .is_some_and(|since| since.elapsed() > DRAIN_MAX + Duration::from_secs(20))
            {
                member.leaving = None;
                self.violate(format!("member {id} does not end by SIGTERM"));
            }
        }
    }

    // ---- the end ----

    fn heal(&mut self) {
        self.say("healing");
        for id in 1..=self.members.len() as u32 {
            self.go_on(id);
        }
        wait_until("all nodes are back", 3 * LIMIT, || (!NODE_AWAY.load(Ordering::SeqCst)).then_some(()));
    }

    fn catch_up(&mut self, sent: Option<i64>) {
        let until = Instant::now() + CATCH_UP_MAX;
        loop {
            self.look_after_members();
            self.health.sample(&self.members);
            let offsets = self.kafka.offsets(&self.team.group, &self.team.topic);
            if offsets.values().all(|offset| offset.committed.unwrap_or(0) == offset.end) {
                let ends: i64 = offsets.values().map(|offset| offset.end).sum();
                self.say(&format!("all {ends} records are committed"));
                if sent != Some(ends) {
                    self.violate(format!("seed: sent {sent:?}, in the topic are {ends}"));
                }
                return;
            }
            if Instant::now() > until {
                self.violate(format!("not at the end after {CATCH_UP_MAX:?}: {offsets:?}"));
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn end_members(&mut self) {
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            if member.end.is_some() {
                continue;
            }
            let exit = end(&mut member.child);
            let (id, code) = (member.id, exit.code);
            let member_end = End { at: now(), exit: Some(exit) };
            member.end = Some(member_end);
            if code != Some(0) {
                self.violate(format!("member {id} ended with {code:?} though all was done"));
            }
        }
        let until = Instant::now() + HANG_MAX + Duration::from_secs(5);
        loop {
            let left = processes_of(&self.team.ledger);
            if left.is_empty() {
                return;
            }
            if Instant::now() > until {
                self.violate(format!("processes that are left: {left:?}"));
                return;
            }
            std::thread::sleep(TICK);
        }
    }

    // ---- the judgement ----

    fn judge(&mut self) -> Outcome {
        let (topic, group, letters) = (&self.team.topic, &self.team.group, &self.team.letters);
        let offsets = self.kafka.offsets(group, topic);
        for (partition, offset) in &offsets {
            let place = (*partition, offset.committed.unwrap_or(0));
            self.ledger.append(What::Committed, 0, place, "-").expect("a line");
        }
        let evidence = Evidence {
            events: read(&self.team.ledger).expect("the ledger reads"),
            careers: self.members.iter().map(Member::career).collect(),
            ends: offsets.iter().map(|(partition, offset)| (*partition, offset.end)).collect(),
            letters: self.letters(),
            ahead_max: AHEAD_MAX,
        };
        let verdict = judge(&evidence);
        self.violations.extend(verdict.violations.iter().cloned());

        let mut args = vec!["verify", "-t", topic, "-g", group, "--dlq", letters];
        let joblogs: Vec<String> =
            self.members.iter().map(|m| m.joblog.to_string_lossy().into_owned()).collect();
        args.extend(joblogs.iter().map(String::as_str));
        let verified = self.kafka.keylane(&args).wait_exit(2 * LIMIT);
        if verified.code != Some(0) {
            self.violations.push(format!("keylane verify: {verified}"));
        }
        if !self.health.zombies.is_empty() {
            self.violations.push(format!("dead children that nobody reaps: {:?}", self.health.zombies));
        }
        let rss_kib_max = self.health.rss_kib_max;
        if rss_kib_max > RSS_KIB_MAX {
            self.violations.push(format!("a pool took {rss_kib_max} KiB"));
        }
        Outcome {
            verified: verified.stdout.trim_end().to_owned(),
            deeds: self.deeds.clone(),
            members: self.members.len(),
            rebalances: evidence.careers.iter().map(|career| career.rebalances).sum(),
            rss_kib_max,
            took: Duration::ZERO,
            violations: std::mem::take(&mut self.violations),
            verdict,
        }
    }

    fn letters(&self) -> BTreeSet<Place> {
        let letters = self.kafka.letters(&self.team.letters).into_iter();
        letters
            .filter(|letter| letter["type"] == "letter")
            .map(|letter| {
                let number =
                    |name: &str| letter[name].as_i64().unwrap_or_else(|| panic!("no {name}: {letter}"));
                (number("origin_partition") as i32, number("origin_offset"))
            })
            .collect()
    }
}

/// SIGTERM, and its end.
fn end(child: &mut Keylane) -> Exit {
    child.signal("TERM");
    child.wait_exit(2 * LIMIT)
}

/// Whether every replica of the topic is in sync.
fn in_sync(kafka: &Cluster, topic: &str) -> bool {
    let exit = kafka.keylane(&["topic", "describe", topic, "--format", "json"]).wait_exit(LIMIT);
    let answers = exit.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let partitions: Vec<Value> =
        answers.filter_map(|answer| answer["partitions"].as_array().cloned()).flatten().collect();
    let count = |partition: &Value, name: &str| partition[name].as_array().map_or(0, Vec::len);
    !partitions.is_empty() && partitions.iter().all(|partition| count(partition, "isr") == NODES as usize)
}
