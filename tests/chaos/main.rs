//! Chaos: pools with handlers in other processes, on three real brokers, while things are killed and restarted.
//!
//! `scripts/test chaos` starts it. A round has a topic, a group and a seed of its own: records are written all the
//! time, several `keylane pool` work, and every few seconds a deed is done to one of them or to a broker; then all is
//! healed, and the group has to come to the end. Two judges look at it: `keylane verify` by the joblogs, and [`judge`]
//! by what the handlers themselves have written down. This program is also the handler: see [`handler`].
//!
//! What a violated round has left stays under `target/tmp`; with `KEYLANE_CHAOS_KEEP=1` that of a good one too.
//! Without `KEYLANE_CHAOS_SECONDS` only the judge is tried, on small histories that are wrong in one way each.

#![allow(missing_docs, unreachable_pub, reason = "tests; the names say what they do")]
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "../support/child.rs"]
mod child;
#[allow(dead_code, reason = "shared with the scenarios, which use more of it")]
#[path = "../scenarios/cluster.rs"]
mod cluster;

mod dice;
mod events;
mod evidence;
mod handler;
mod judge;
mod judge_cases;
mod member;
mod round;
mod table;
mod watch;

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cluster::Cluster;
use round::{Plan, run};
use table::Table;

/// Of a round's chaos; its beginning and its end come on top of it, some 20 s.
const ROUND_MIN: Duration = Duration::from_secs(45);
const ROUND_MAX: Duration = Duration::from_secs(150);
const AROUND: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(("handler", rest)) = args.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return handler::main(rest);
    }
    judge_cases::run();
    let Some(seconds) = number("KEYLANE_CHAOS_SECONDS") else {
        eprintln!(
            "chaos: scripts/test chaos runs it; without KEYLANE_CHAOS_SECONDS only its judge was tried"
        );
        return ExitCode::SUCCESS;
    };
    campaign(Duration::from_secs(seconds))
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

/// Rounds until the time is over, at least one with each kind of assignor.
fn campaign(time: Duration) -> ExitCode {
    let until = Instant::now() + time;
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let seed = number("KEYLANE_CHAOS_SEED").unwrap_or(now_ms as u64 % 1_000_000);
    eprintln!("chaos: KEYLANE_CHAOS_SEED={seed}");
    let kafka = Cluster::start_own("chaos", None, &["--nodes", "3"]);
    let mut table = Table::default();
    let mut failed = 0;
    for index in 0.. {
        let left = until.saturating_duration_since(Instant::now());
        let rounds_left = if index == 0 { 2 } else { 1 };
        let chaos = (left / rounds_left).saturating_sub(AROUND).clamp(ROUND_MIN, ROUND_MAX);
        if index >= 2 && left < chaos + AROUND {
            break;
        }
        let assignor = if index % 2 == 0 { "cooperative-sticky" } else { "range" };
        let plan = Plan { index, seed: dice::mix(&[seed, index]), assignor, chaos };
        let outcome = run(&kafka, &plan);
        failed += u32::from(!outcome.violations.is_empty());
        table.add(&plan, &outcome);
    }
    println!("{table}");
    if failed > 0 {
        println!("chaos: {failed} rounds violated; KEYLANE_CHAOS_SEED={seed}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
