//! The roles `pool` and `sequential`: from the resolved command line to a running engine.
//!
//! A [`Setup`] is what the command line comes to; the loop below runs it with sockets, threads and signals.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use keylane_protocol::client::consumer::{Consumer, ConsumerConfig, Reset};
use keylane_protocol::client::net::NetConfig;
use keylane_protocol::fetch::FetchConfig;
use keylane_protocol::group::GroupConfig;

use super::board::{Board, Dispatch};
use super::commands::Crew;
use super::disk;
use super::engine::{CommitWhen, Engine, EngineConfig, Signals, fetch_bytes};
use super::letters::{self, Letters, LettersConfig};
use super::route::{LaneKey, NullKey, Order, Routing};
use super::shared::{Clock, KILL_AFTER, Shared, Wake};
use super::threads::{self, Threads};
use crate::cli;
use crate::driver::Driver;
use crate::driver::signals::Source;
use crate::exit::Exit;
use crate::handler::policy::Policy;
use crate::handler::{Handler, Observer};
use crate::listen::Listener;
use crate::report::Report;

/// Between two looks whether the workers have ended, which nobody is woken by.
const END_WAIT: Duration = Duration::from_millis(5);
/// Records in a run where no handler can block; a run ends earlier by time.
const RUN_RECORDS_MAX: usize = 4096;
/// `sequential` holds so many polls' worth of records.
const SEQUENTIAL_POLLS_HELD: u64 = 4;
/// `sequential` has no flag for memory: what `pool` takes at most by default.
const SEQUENTIAL_BYTES_MAX: u64 = 64 << 20;

/// What differs between the two roles.
struct Plan {
    dispatch: Dispatch,
    routing: Routing,
    null_key: NullKey,
    lane_key: LaneKey,
    gap_age: Option<Duration>,
    workers: u32,
    records_max: u64,
    bytes_max: u64,
    ahead_max: u64,
    commit: CommitWhen,
}

/// What a member is run in.
#[derive(Default)]
pub struct Surroundings {
    /// Where its lines go.
    pub report: Report,
    /// What stops it.
    pub signals: Source,
    /// Who looks at its records.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Surroundings {
    /// A process of its own.
    pub fn of_process(report: &Report) -> Self {
        Surroundings { report: report.clone(), ..Surroundings::default() }
    }
}

/// Runs `pool`. Where the address of `--listen` cannot be had, it ends with 69 before it joins the group: the process
/// that has it may be on its way out, so trying again is worth it.
///
/// # Errors
/// The system gives no threads, signals or epoll.
pub fn pool(config: &cli::Pool, around: &Surroundings) -> io::Result<Exit> {
    let mut listener = None;
    if let Some(address) = config.listen {
        match Listener::bind(address) {
            Ok(bound) => listener = Some(bound),
            Err(error) => {
                around.report.error(format!("--listen {address}: {error}"));
                return Ok(Exit::Unavailable);
            }
        }
    }
    run(&config.consume, Setup::of_pool(config, random_seed()), listener, around)
}

/// Runs `sequential`.
///
/// # Errors
/// As [`pool`].
pub fn sequential(config: &cli::Sequential, around: &Surroundings) -> io::Result<Exit> {
    run(&config.consume, Setup::of_sequential(config, random_seed()), None, around)
}

/// All that a member is made of, as values.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its connections.
    pub net: NetConfig,
    /// Its consumer.
    pub consumer: ConsumerConfig,
    /// Its engine.
    pub engine: EngineConfig,
    /// How records find a worker.
    pub dispatch: Dispatch,
    /// Workers, not 0.
    pub workers: u32,
    /// How many records a worker takes at a time.
    pub run_records_max: usize,
    /// What becomes of records that fail, and the seed for the jitter of delays.
    pub policy: (Policy, u64),
}

impl Setup {
    /// A member of `pool`. Nothing secret depends on the seed: it is for jitter and lane hashes.
    pub fn of_pool(config: &cli::Pool, seed: u64) -> Self {
        let workers = config.workers;
        let order = match config.order {
            cli::Order::Key => Order::Key,
            cli::Order::Partition => Order::Partition,
            cli::Order::None => Order::None,
        };
        let (dispatch, routing) = match config.dispatch {
            // Where a handler cannot block, the partition is the lane as well: see `sequence`.
            cli::Dispatch::Lanes if order == Order::Partition || !config.consume.handler.can_block() => {
                (Dispatch::Partitions, Routing::Lanes { order: Order::Partition, seed: 0 })
            }
            cli::Dispatch::Lanes => (Dispatch::Lanes, Routing::Lanes { order, seed }),
            cli::Dispatch::Hash => (Dispatch::Hash { workers }, Routing::Hash { workers }),
            cli::Dispatch::PartitionHash => (Dispatch::Hash { workers }, Routing::PartitionHash { workers }),
        };
        let plan = Plan {
            dispatch,
            routing,
            null_key: match config.null_key {
                cli::NullKey::Spread => NullKey::Spread,
                cli::NullKey::Lane => NullKey::Lane,
            },
            lane_key: config.lane_key.clone(),
            gap_age: config.gap_age,
            workers,
            records_max: u64::from(config.buffer) * u64::from(workers),
            bytes_max: config.max_memory.bytes,
            ahead_max: u64::from(config.max_ahead),
            commit: CommitWhen::Every(config.commit_interval),
        };
        Setup::new(&config.consume, plan, seed)
    }

    /// A member of `sequential`.
    pub fn of_sequential(config: &cli::Sequential, seed: u64) -> Self {
        let records = u64::from(config.max_poll_records);
        let plan = Plan {
            dispatch: Dispatch::Sequential { chunk_records_max: config.max_poll_records },
            routing: Routing::Lanes { order: Order::Partition, seed: 0 },
            null_key: NullKey::Lane,
            lane_key: LaneKey::Key,
            gap_age: None,
            workers: 1,
            records_max: records.saturating_mul(SEQUENTIAL_POLLS_HELD).max(1024),
            bytes_max: SEQUENTIAL_BYTES_MAX,
            ahead_max: u64::MAX,
            commit: CommitWhen::Records(records),
        };
        Setup::new(&config.consume, plan, seed)
    }

    fn new(config: &cli::Consume, plan: Plan, seed: u64) -> Self {
        let engine = EngineConfig {
            group: config.group.clone(),
            routing: plan.routing,
            null_key: plan.null_key,
            lane_key: plan.lane_key,
            gap_age: plan.gap_age,
            records_max: plan.records_max,
            bytes_max: plan.bytes_max,
            ahead_max: plan.ahead_max,
            commit: plan.commit,
            stats: config.stats,
            exit_at_end: config.exit_at_end,
            count: config.records_max,
            drain_timeout: config.drain_timeout,
            revoke_timeout: config.revoke_timeout,
            request_timeout: config.common.request_timeout,
            fetch_bytes_max: config.fetch_max_bytes.unwrap_or(u32::MAX),
            partition_fetch_bytes_max: config.max_partition_fetch_bytes,
        };
        Setup {
            net: net_config(&config.common, seed ^ 1),
            consumer: consumer_config(config, plan.bytes_max, seed ^ 2),
            engine,
            dispatch: plan.dispatch,
            workers: plan.workers,
            run_records_max: if config.handler.can_block() { 1 } else { RUN_RECORDS_MAX },
            policy: (config.failing.policy.clone(), seed ^ 3),
        }
    }

    /// The engine, and in it what it shares with the workers that are still to be started.
    pub fn engine(self, clock: Clock, wake: Box<dyn Wake>, report: Report) -> Engine {
        let now = clock.now();
        let consumer = Consumer::new(self.net, self.consumer, now);
        let board = Board::new(self.dispatch);
        let mut shared = Shared::new(board, clock, wake, self.workers, self.run_records_max);
        let (policy, seed) = self.policy;
        shared.set_policy(policy, seed);
        Engine::new(consumer, Arc::new(shared), self.engine, report, now)
    }
}

fn run(
    config: &cli::Consume,
    setup: Setup,
    listener: Option<Listener>,
    around: &Surroundings,
) -> io::Result<Exit> {
    let crew = |command| Crew::new(command, config, &around.report);
    let command = match config.handler.command.as_ref().map(crew).transpose() {
        Ok(command) => command,
        Err((exit, text)) => {
            around.report.error(text);
            return Ok(exit);
        }
    };
    let letters = match config.failing.dead_letters.as_ref().map(|topic| dead_letters(config, topic, around))
    {
        Some(Err(exit)) => return Ok(exit),
        Some(Ok(letters)) => Some(letters),
        None => None,
    };
    let mut driver = Driver::new()?;
    let signals = around.signals.watch_and_answer(driver.waker())?;
    let known = Arc::new(OnceLock::new());
    let wake = Threads { waker: driver.waker(), workers: known.clone() };
    let count = setup.workers;
    let mut engine = setup.engine(Clock::Real(driver.started()), Box::new(wake), around.report.clone());
    if let Some(listener) = listener {
        let address = listener.address()?;
        around.report.note(format!("metrics at http://{address}/metrics"));
        listener.serve(engine.pages())?;
    }
    if config.handler.fsync {
        match disk::stdout_file()? {
            Some(output) => engine.sync_before_commits(output)?,
            None => around.report.note("--fsync: stdout is no file; what its reader loses is lost"),
        }
    }
    let workers = match command {
        None => threads::start(engine.shared(), &known, count, |worker| {
            Handler::new(config.handler.clone(), worker).observed_by(around.observer.clone())
        })?,
        Some(crew) => crew.start(engine.shared(), &known, count)?,
    };
    let letters = letters
        .map(|letters| Letters::start(letters, engine.shared().clone(), around.report.clone()))
        .transpose()?;
    engine.set_failure_policy(letters.as_ref().map(Letters::letterbox), config.failing.halt);
    let mut asked = 0;
    loop {
        let deadline = engine.deadline();
        driver.turn(engine.consumer(), deadline)?;
        engine.set_signals(Signals { count: signals.count(), last: signals.last() });
        if signals.asked() != asked {
            asked = signals.asked();
            engine.say_status(driver.now());
        }
        if let Some(mut exit) = engine.turn(driver.now()) {
            if engine.end_workers() {
                // A child of --pipe may take its time over what it has still to write. Whoever does not let go then, as
                // where nobody reads our stdout, is left behind.
                let until = engine.shared().last_ends().kill_at + KILL_AFTER;
                while workers.iter().any(|worker| !worker.is_finished()) && driver.now() < until {
                    if signals.count() >= 2 {
                        exit = Exit::of_signal(signals.last());
                        break;
                    }
                    let soon = driver.now() + END_WAIT;
                    driver.turn(engine.consumer(), Some(soon))?;
                }
            }
            if let Some(letters) = letters {
                letters.end();
            }
            engine.say_done(exit);
            return Ok(exit);
        }
    }
}

/// Looks whether dead letters can go to `topic`, before anything is joined.
fn dead_letters(config: &cli::Consume, topic: &str, around: &Surroundings) -> Result<LettersConfig, Exit> {
    let place = letters::check(&config.common, topic, &around.report)?;
    let (topic, group) = (topic.to_owned(), config.group.clone());
    Ok(LettersConfig { topic, place, group, net: net_config(&config.common, random_seed()) })
}

/// The connections of any role.
pub fn net_config(common: &cli::Common, seed: u64) -> NetConfig {
    NetConfig {
        bootstrap: common.brokers.clone(),
        client_id: common.client_id.clone(),
        request_timeout: common.request_timeout,
        reconnect_backoff: Duration::from_millis(50),
        reconnect_backoff_max: Duration::from_secs(1),
        metadata_age_max: Duration::from_secs(30),
        seed,
    }
}

fn consumer_config(config: &cli::Consume, memory_bytes: u64, seed: u64) -> ConsumerConfig {
    ConsumerConfig {
        group: GroupConfig {
            group: config.group.clone(),
            instance_id: config.instance_id.clone(),
            session_timeout: config.session_timeout,
            rebalance_timeout: config.max_poll_interval,
            heartbeat_interval: config.heartbeat_interval,
            assignors: config.assignors.clone(),
            topics: config.topics.clone(),
            rack: config.common.client_rack.clone(),
        },
        fetch: FetchConfig {
            // For the first fetches; the engine divides the memory when it knows the partitions.
            bytes_max: fetch_bytes(config.fetch_max_bytes.unwrap_or(u32::MAX), memory_bytes / 8),
            partition_bytes_max: fetch_bytes(config.max_partition_fetch_bytes, memory_bytes / 64),
            wait_max: config.fetch_max_wait,
            isolation: config.isolation,
            rack: config.common.client_rack.clone(),
        },
        from: config.from,
        out_of_range: config.out_of_range,
        recreated: Reset::Fail,
        want_end: config.exit_at_end,
        revoke_timeout: config.revoke_timeout,
        topic_timeout: config.common.request_timeout,
        seed,
    }
}

/// A seed for jitter and hashes; nothing secret depends on it.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
