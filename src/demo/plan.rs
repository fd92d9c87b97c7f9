//! What the demo does, in numbers, and the command lines that come of them.
//!
//! The roles are run from command lines like anybody's, so that what the picture shows can be typed.

use std::ffi::OsString;
use std::time::Duration;

use crate::cli::{self, Command, Environment, Parsed};

/// The numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Made by `seed`.
    pub topic: &'static str,
    /// Both consumers', one after the other.
    pub group: &'static str,
    /// Keys in turn.
    pub keys: u64,
    /// Partitions of the topic.
    pub partitions: u32,
    /// Records in all.
    pub records: u64,
    /// Records that come in each second.
    pub rate: u64,
    /// How long the handler takes for one record, ms.
    pub delay_ms: u64,
    /// Of the pool.
    pub workers: u32,
    /// How long the one thread works before the pool takes over.
    pub alone: Duration,
    /// Then the demo ends, finished or not.
    pub limit: Duration,
}

impl Plan {
    /// What `keylane demo` shows: 400 records a second for half a minute, of which one thread can do 100 and eight
    /// workers 800. The lag grows to 3600 in 12 s, is gone 9 s later, and the pool keeps up from then on.
    pub const FULL: Plan = Plan {
        topic: "orders",
        group: "billing",
        keys: 32,
        partitions: 6,
        records: 12_000,
        rate: 400,
        delay_ms: 10,
        workers: 8,
        alone: Duration::from_secs(12),
        limit: Duration::from_secs(55),
    };

    /// How long it takes where nothing is slow: the last records are finished soon after they came.
    pub fn expected(&self) -> Duration {
        Duration::from_millis(self.records * 1000 / self.rate) + Duration::from_secs(1)
    }

    /// What one worker can do, records a second.
    pub fn rate_of_one(&self) -> u64 {
        1000 / self.delay_ms
    }

    /// What all workers can do, records a second.
    pub fn rate_of_all(&self) -> u64 {
        self.rate_of_one() * u64::from(self.workers)
    }

    /// The lag when the pool takes over.
    pub fn lag_expected(&self) -> i64 {
        let rate = self.rate.saturating_sub(self.rate_of_one());
        i64::try_from(rate * self.alone.as_secs()).unwrap_or(i64::MAX)
    }
}

/// A command line, as words and resolved.
#[derive(Clone, Debug)]
pub(super) struct Line<T> {
    pub(super) text: String,
    pub(super) config: T,
}

/// The command lines of all roles.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    pub(super) seed: Line<cli::Seed>,
    pub(super) sequential: Line<cli::Sequential>,
    pub(super) pool: Line<cli::Pool>,
    pub(super) lag: Line<cli::Lag>,
}

impl Lines {
    pub(super) fn new(plan: &Plan, broker: &str) -> Self {
        let Plan { topic, group, keys, partitions, records, rate, delay_ms, workers, .. } = plan;
        Lines {
            seed: line(
                &format!(
                    "seed -b {broker} -t {topic} -n {records} -k {keys} --rate {rate} --partitions {partitions}"
                ),
                |command| match command {
                    Command::Seed(seed) => Some(seed),
                    _ => None,
                },
            ),
            sequential: line(
                &format!("sequential -b {broker} -t {topic} -g {group} --work-delay {delay_ms}ms"),
                |command| match command {
                    Command::Sequential(sequential) => Some(sequential),
                    _ => None,
                },
            ),
            pool: line(
                &format!("pool -b {broker} -t {topic} -g {group} -w {workers} --work-delay {delay_ms}ms"),
                |command| match command {
                    Command::Pool(pool) => Some(pool),
                    _ => None,
                },
            ),
            lag: line(&format!("lag -b {broker} -g {group} -i 250ms"), |command| match command {
                Command::Lag(lag) => Some(lag),
                _ => None,
            }),
        }
    }
}

/// The broker of the demo: one node at any free port, which no other machine reaches.
pub(super) fn broker() -> cli::Broker {
    let choose = |command| match command {
        Command::Broker(broker) => Some(broker),
        _ => None,
    };
    line("broker --listen 127.0.0.1:0", choose).config
}

/// Parses as the program does, but without the environment of whoever looks at the demo.
///
/// # Panics
/// The line is wrong: they are all written above.
fn line<T>(rest: &str, choose: impl Fn(Command) -> Option<T>) -> Line<T> {
    let text = format!("keylane {rest}");
    let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
    match cli::parse(&words, &Environment::default()) {
        Ok(Parsed::Run(command)) => match choose(*command) {
            Some(config) => Line { text, config },
            None => panic!("{text}: another command"),
        },
        other => panic!("{text}: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_parse_and_say_what_the_plan_says() {
        let plan = Plan::FULL;
        let lines = Lines::new(&plan, "127.0.0.1:65535");
        assert_eq!(lines.seed.config.messages, Some(plan.records));
        assert_eq!(lines.seed.config.partitions, plan.partitions);
        assert_eq!(lines.pool.config.workers, plan.workers);
        assert_eq!(lines.pool.config.consume.group, lines.sequential.config.consume.group);
        assert_eq!(lines.sequential.config.consume.topics, [plan.topic]);
        // They are shown at 80 columns.
        for text in [&lines.sequential.text, &lines.pool.text, &lines.lag.text] {
            assert!(text.len() <= 77, "{text}");
        }
        assert_eq!(broker().nodes, 1);
    }

    #[test]
    fn the_plan_ends_in_time() {
        let plan = Plan::FULL;
        let catch_up = plan.lag_expected() as u64 / (plan.rate_of_all() - plan.rate);
        let caught_up = plan.alone + Duration::from_secs(catch_up + 2);
        assert!(caught_up < plan.expected() && plan.expected() < plan.limit);
        assert!(plan.limit < Duration::from_secs(60));
    }
}
