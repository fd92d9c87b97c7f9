//! What a world is made of: drawn from the seed before anything runs.

use std::ffi::OsString;
use std::time::Duration;

use kafka_protocol::messages::ApiKey;
use keylane::broker::cluster::ClusterConfig;
use keylane::broker::fault::{Action, Fault, Kind};
use keylane::cli::{self, Command, Environment, Parsed};
use keylane::pool::role::Setup;

use crate::random::Random;

pub(crate) const TOPIC: &str = "t";
pub(crate) const GROUP: &str = "g";

/// What may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Members come and go in good order, leaders move, bytes are slow: no record may be handled twice.
    Calm,
    /// Anything.
    Rough,
}

/// Which records may not overtake each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Key { nulls_too: bool },
    Partition,
    None,
}

/// How long handlers take, in µs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) usual_us: (u64, u64),
    pub(crate) slow_us: (u64, u64),
    /// One in so many is slow; 0: none.
    pub(crate) slow_one_in: u64,
    pub(crate) hung_us: (u64, u64),
    pub(crate) hung_one_in: u64,
    /// One try in so many fails and is repeated; 0: handlers cannot fail.
    pub(crate) failing_one_in: u64,
    /// The longest delay before the next try.
    pub(crate) retry_ms: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) weather: Weather,
    pub(crate) nodes: i32,
    pub(crate) partitions: i32,
    pub(crate) keys: u64,
    pub(crate) order: Order,
    /// The members' command line.
    pub(crate) words: Vec<String>,
    command: Command,
    /// Members have names in the group.
    pub(crate) is_static: bool,
    pub(crate) members: u64,
    pub(crate) pace: Pace,
    /// Way of a message.
    pub(crate) delay_us: (u64, u64),
    /// One in so many messages comes in pieces.
    pub(crate) split_one_in: u64,
    pub(crate) feeders: u64,
    pub(crate) records: u64,
    /// Faults happen until then.
    pub(crate) until: Duration,
    pub(crate) session: Duration,
    /// A JoinGroup may be waited for so long, and the request timeout.
    pub(crate) rebalance_timeout: Duration,
    /// A member that is told to stop may drain for so long.
    pub(crate) drain_timeout: Duration,
    pub(crate) request_timeout: Duration,
    /// Between two deeds of chaos, ms.
    pub(crate) pause_ms: (u64, u64),
    pub(crate) faults: Vec<Fault>,
    pub(crate) seed: u64,
}

/// Codes that pass, by API. Heartbeat's 27 is not among them: a coordinator says it to members alone, whom it thereby
/// counts on for another session; a rebalance is forced as a deed of its own (`a rebalance is forced`).
const PASSING: &[(ApiKey, &[i16])] = &[
    (ApiKey::Metadata, &[5]),
    (ApiKey::FindCoordinator, &[15, 14]),
    (ApiKey::JoinGroup, &[14, 15, 16]),
    (ApiKey::SyncGroup, &[14, 15, 16, 27]),
    (ApiKey::Heartbeat, &[14, 15, 16]),
    (ApiKey::OffsetCommit, &[14, 15, 16, 3]),
    (ApiKey::OffsetFetch, &[14, 16, 88]),
    (ApiKey::ListOffsets, &[6, 78, 3]),
    (ApiKey::OffsetForLeaderEpoch, &[6, 75]),
    (ApiKey::Fetch, &[6, 74, 75, 3, 78]),
    (ApiKey::Produce, &[6, 7, 19, 3]),
    (ApiKey::InitProducerId, &[14, 15, 16]),
];

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x5eed);
        let weather = if random.one_in(3) { Weather::Calm } else { Weather::Rough };
        let calm = weather == Weather::Calm;
        let nodes = random.between(1, 3) as i32;
        let session_ms = random.between(2_000, 6_000);
        let request_ms = random.between(2_000, 5_000);
        let revoke_ms = if calm { 8_000 } else { random.between(500, 4_000) };
        let drain_ms = if calm { 20_000 } else { random.between(300, 6_000) };
        let mut words = vec!["keylane".to_owned()];
        let mut add = |text: String| words.extend(text.split(' ').map(str::to_owned));
        let (role, order, delay) = draw_role(&mut random);
        add(role);
        let brokers: Vec<String> = (1..=nodes).map(|node| format!("n{node}:9092")).collect();
        let assignors = [
            "cooperative-sticky",
            "cooperative-sticky",
            "cooperative-sticky,range",
            "range",
            "sticky,roundrobin",
            "roundrobin",
        ];
        let assignor = random.pick(&assignors).unwrap_or_default();
        add(format!("-b {} -t {TOPIC} -g {GROUP} --work-delay {delay} --stats 0", brokers.join(",")));
        add(format!("--assignor {assignor} --revoke-timeout {revoke_ms}ms --drain-timeout {drain_ms}ms"));
        add(format!("--request-timeout {request_ms}ms -X session.timeout.ms={session_ms}"));
        add(format!("-X heartbeat.interval.ms={}", random.between(100, 700)));
        let rebalance_ms = revoke_ms + random.between(1_000, 4_000);
        add(format!("-X max.poll.interval.ms={rebalance_ms}"));
        add(format!("-X fetch.max.wait.ms={}", random.between(100, 500)));
        if random.one_in(4) {
            add(format!("-X max.partition.fetch.bytes={}", random.between(200, 4_000)));
        }
        let is_static = random.one_in(6);
        let slow_ms = if calm { (20, 200) } else { (20, 1_500) };
        let instant = delay == "0";
        let mut tries = Random(seed ^ 0x7269_6573);
        let usual_us =
            if instant { (1, 20) } else { (100, random.pick(&[500, 3_000, 20_000]).unwrap_or(500)) };
        let pace = Pace {
            usual_us,
            slow_us: (slow_ms.0 * 1000, slow_ms.1 * 1000),
            slow_one_in: if instant { 0 } else { random.pick(&[0, 30, 100]).unwrap_or(0) },
            hung_us: (3_000_000, 20_000_000),
            hung_one_in: if instant || calm { 0 } else { random.pick(&[0, 15, 40, 150]).unwrap_or(0) },
            failing_one_in: if instant { 0 } else { tries.pick(&[0, 0, 4, 25]).unwrap_or(0) },
            retry_ms: if calm { 200 } else { tries.between(20, 5_000) },
        };
        let until_ms = random.between(6_000, 20_000);
        let command = parse(&words);
        Plan {
            weather,
            nodes,
            partitions: random.between(1, 6) as i32,
            keys: random.between(1, 8),
            order,
            command,
            words,
            is_static,
            members: random.between(1, 3),
            pace,
            delay_us: random.pick(&[(50, 300), (200, 2_000), (1_000, 30_000)]).unwrap_or((50, 300)),
            split_one_in: random.pick(&[0, 40, 8]).unwrap_or(0),
            feeders: random.between(1, 2),
            records: random.between(60, 400),
            until: Duration::from_millis(until_ms),
            session: Duration::from_millis(session_ms),
            rebalance_timeout: Duration::from_millis(rebalance_ms),
            drain_timeout: Duration::from_millis(drain_ms),
            request_timeout: Duration::from_millis(request_ms),
            pause_ms: random.pick(&[(50, 600), (200, 2_000), (1_000, 4_000)]).unwrap_or((200, 2_000)),
            faults: if calm { Vec::new() } else { draw_faults(&mut random, until_ms) },
            seed,
        }
    }

    /// The next member.
    pub(crate) fn setup(&self, seed: u64) -> Setup {
        match &self.command {
            Command::Pool(pool) => Setup::of_pool(pool, seed),
            Command::Sequential(sequential) => Setup::of_sequential(sequential, seed),
            other => unreachable!("{other:?} is no consumer"),
        }
    }

    pub(crate) fn cluster(&self) -> ClusterConfig {
        ClusterConfig {
            nodes: (1..=self.nodes).map(|node| (format!("n{node}"), 9092)).collect(),
            topics: vec![(TOPIC.to_owned(), self.partitions)],
            auto_create_partitions: None,
            initial_rebalance_delay: Duration::from_millis(self.seed % 3 * 100),
            faults: self.faults.clone(),
            seed: self.seed,
            ..ClusterConfig::default()
        }
    }
}

fn parse(words: &[String]) -> Command {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    match cli::parse(&words, &Environment::default()) {
        Ok(Parsed::Run(command)) => *command,
        other => panic!("the members' command line: {other:?}"),
    }
}

/// The role with its own flags, what it keeps in order, and the delay that says whether its handlers can block.
fn draw_role(random: &mut Random) -> (String, Order, &'static str) {
    let workers = random.between(1, 5);
    let buffer = random.pick(&[1, 2, 8, 64]).unwrap_or(8);
    let commit_ms = random.pick(&[20, 100, 500, 2_000]).unwrap_or(500);
    let ahead = random.pick(&[3, 20, 100_000]).unwrap_or(20);
    let (nulls, nulls_too) = random.pick(&[("spread", false), ("lane", true)]).unwrap_or(("spread", false));
    let pool =
        format!("pool -w {workers} --buffer {buffer} --commit-interval {commit_ms}ms --max-ahead {ahead}");
    let by_key = Order::Key { nulls_too };
    match random.below(8) {
        0..3 => (format!("{pool} --null-key {nulls}"), by_key, "1ms"),
        3 => (format!("{pool} --dispatch hash --null-key {nulls}"), by_key, "1ms"),
        4 => (format!("{pool} --dispatch partition-hash --null-key {nulls}"), by_key, "1ms"),
        5 => (format!("{pool} --order partition"), Order::Partition, "1ms"),
        6 => {
            let (order, kept) = random
                .pick(&[("none", Order::None), ("key", Order::Partition)])
                .unwrap_or(("none", Order::None));
            // Where a handler cannot block, the partition is kept in order.
            if order == "none" { (format!("{pool} --order none"), kept, "1ms") } else { (pool, kept, "0") }
        }
        _ => {
            let polled = random.pick(&[1, 7, 100]).unwrap_or(7);
            let delay = random.pick(&["0", "1ms"]).unwrap_or("0");
            (format!("sequential --max-poll-records {polled}"), Order::Partition, delay)
        }
    }
}

fn draw_faults(random: &mut Random, until_ms: u64) -> Vec<Fault> {
    let mut faults = Vec::new();
    for _ in 0..random.below(4) {
        let (api, codes) = random.pick(PASSING).unwrap_or((ApiKey::Heartbeat, &[14]));
        let delay = Duration::from_millis(random.between(10, 3_000));
        let action = match random.below(10) {
            0..5 => Action::Error(random.pick(codes).unwrap_or(14)),
            5 => Action::Delay(Duration::ZERO, delay),
            6 => Action::Drop,
            7 => Action::Reset,
            8 => Action::Lose,
            _ => Action::Cut,
        };
        let one_in = random.pick(&[3, 10, 50]).unwrap_or(10);
        let kind = Kind::Requests(Some(api), action);
        faults.push(Fault {
            probability: 1.0 / one_in as f64,
            times: Some(random.between(1, 20)),
            after: Duration::from_millis(random.below(until_ms / 2)),
            until: Some(Duration::from_millis(until_ms)),
            ..Fault::new(kind, format!("{api:?}: {action:?}, one in {one_in}"))
        });
    }
    faults
}
