//! One process of the group, and what its own messages say about the partitions it has had.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::child::{Exit, Keylane, Stream};
use crate::evidence::{Career, Gone, Tenure};

/// How a member gets its records to the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Exec,
    Pipe,
}

/// Records that a `--pipe` child may have at once.
pub const PIPE_DEPTH: usize = 16;
pub const WORKERS: usize = 6;
/// `--max-ahead`.
pub const AHEAD_MAX: usize = 500;
pub const SESSION: Duration = Duration::from_secs(6);
/// `--timeout` of a try.
pub const TRY_MAX: Duration = Duration::from_secs(3);
/// `--drain-timeout`.
pub const DRAIN_MAX: Duration = Duration::from_secs(10);
/// `--revoke-timeout`.
pub const REVOKE_MAX: Duration = Duration::from_secs(6);

/// What all members of a round have in common.
#[derive(Clone, Debug)]
pub struct Team {
    pub brokers: String,
    pub topic: String,
    pub letters: String,
    pub group: String,
    pub assignor: &'static str,
    pub ledger: PathBuf,
    pub seed: u64,
}

/// A pool that was started.
pub struct Member {
    pub id: u32,
    pub mode: Mode,
    pub child: Keylane,
    pub joblog: PathBuf,
    /// When SIGSTOP was sent and when SIGCONT.
    pub stops: Vec<(Duration, Option<Duration>)>,
    /// Since when it has been told to end.
    pub leaving: Option<Instant>,
    pub end: Option<End>,
}

/// How a member's process ended.
#[derive(Clone, Debug)]
pub struct End {
    pub at: Duration,
    /// None: by SIGKILL.
    pub exit: Option<Exit>,
}

impl Member {
    pub fn start(team: &Team, id: u32, mode: Mode) -> Self {
        let joblog = team.ledger.with_file_name(format!("joblog-{id}"));
        let program = std::env::current_exe().expect("this program has a name");
        let seconds = |time: Duration| format!("{}s", time.as_secs());
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let session = format!("session.timeout.ms={}", SESSION.as_millis());
        let mut args: Vec<String> =
            ["pool", "--format", "json", "--stats", "0", "-X", &session].map(str::to_owned).into();
        let mut add = |name: &str, value: String| args.extend([name.to_owned(), value]);
        add("-t", team.topic.clone());
        add("-g", team.group.clone());
        add("-w", WORKERS.to_string());
        add("--commit-interval", "200ms".to_owned());
        add("--max-ahead", AHEAD_MAX.to_string());
        add("--max-memory", "32MiB".to_owned());
        add("--assignor", team.assignor.to_owned());
        add("--timeout", seconds(TRY_MAX));
        add("--drain-timeout", seconds(DRAIN_MAX));
        add("--revoke-timeout", seconds(REVOKE_MAX));
        add("--retries", "30".to_owned());
        add("--retry-delay", "50ms".to_owned());
        add("--retry-max-delay", "500ms".to_owned());
        add("--dlq", team.letters.clone());
        add("--joblog", text(&joblog));
        let mode_name = match mode {
            Mode::Exec => "exec",
            Mode::Pipe => {
                args.extend(["--pipe", "--pipe-depth", &PIPE_DEPTH.to_string()].map(str::to_owned));
                "pipe"
            }
        };
        args.extend(["--", &text(&program), "handler", mode_name, &text(&team.ledger)].map(str::to_owned));
        args.extend([id.to_string(), team.seed.to_string()]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let child = Keylane::run_against(&team.brokers, &args, &[]);
        Member { id, mode, child, joblog, stops: Vec::new(), leaving: None, end: None }
    }

    pub fn is_stopped(&self) -> bool {
        self.stops.last().is_some_and(|(_, until)| until.is_none())
    }

    /// At work, and not about to end.
    pub fn is_well(&self) -> bool {
        self.end.is_none() && self.leaving.is_none() && !self.is_stopped()
    }

    pub fn has_been_assigned(&self) -> bool {
        self.said().iter().any(|line| line["type"] == "assigned")
    }

    /// Its messages.
    fn said(&self) -> Vec<Value> {
        let lines = self.child.lines();
        let messages = lines.iter().filter(|line| line.stream == Stream::Err);
        messages.filter_map(|line| serde_json::from_str(&line.text).ok()).collect()
    }

    /// Records that its handlers may hold at one moment.
    fn in_hand_max(&self) -> usize {
        match self.mode {
            Mode::Exec => WORKERS,
            Mode::Pipe => WORKERS * PIPE_DEPTH,
        }
    }

    /// What is known of it when it has ended.
    pub fn career(&self) -> Career {
        let said = self.said();
        let end = self.end.as_ref().map(|end| {
            let gone = match &end.exit {
                None => Gone::Killed,
                Some(exit) if exit.code == Some(0) => Gone::Left,
                Some(_) => Gone::Unfinished,
            };
            (end.at, gone)
        });
        Career {
            id: self.id,
            in_hand_max: self.in_hand_max(),
            tenures: tenures(&said, end),
            stops: self.stops.clone(),
            unheard: crate::evidence::unheard(&self.joblog),
            rebalances: said.iter().filter(|line| line["type"] == "assigned").count().saturating_sub(1),
        }
    }
}

/// Follows `assigned`, `revoked` and `lost`.
fn tenures(said: &[Value], end: Option<(Duration, Gone)>) -> Vec<Tenure> {
    let mut open: BTreeMap<i32, Tenure> = BTreeMap::new();
    let mut closed = Vec::new();
    // A drain that took too long warns just before its `revoked`.
    let mut cut_short = false;
    let mut ends = false;
    for line in said {
        let Some(time) = line["time"].as_str().and_then(crate::evidence::parse_time) else { continue };
        let kind = line["type"].as_str().unwrap_or_default();
        let message = line["message"].as_str().unwrap_or_default();
        match kind {
            "warning" if message.contains("drain limit of a rebalance") => cut_short = true,
            // No coordinator took its last commit.
            "note" if message.contains("was not acknowledged in time") => cut_short = true,
            "draining" => ends = true,
            "assigned" => {
                let generation = line["generation"].as_i64().unwrap_or(-1);
                let from = line["from"].as_array().into_iter().flatten().filter_map(Value::as_i64);
                for (partition, from) in partitions(line).zip(from) {
                    let tenure = Tenure { partition, from, generation, began: time, gone: None };
                    open.entry(partition).or_insert(tenure);
                }
            }
            "revoked" | "lost" => {
                let how = match (kind, cut_short) {
                    ("lost", _) => Gone::Lost,
                    // A rebalance may come while it drains to its end, and exit 75 tells how that went.
                    _ if ends => end.map_or(Gone::Revoked, |(_, how)| how),
                    (_, true) => Gone::CutShort,
                    (_, false) => Gone::Revoked,
                };
                cut_short = false;
                for partition in partitions(line) {
                    if let Some(tenure) = open.remove(&partition) {
                        closed.push(Tenure { gone: Some((time, how)), ..tenure });
                    }
                }
            }
            _ => {}
        }
    }
    closed.extend(open.into_values().map(|tenure| Tenure { gone: end, ..tenure }));
    closed
}

/// The numbers in `["topic/3", …]`.
fn partitions(line: &Value) -> impl Iterator<Item = i32> + '_ {
    let names = line["partitions"].as_array().into_iter().flatten().filter_map(Value::as_str);
    names.filter_map(|name| name.rsplit_once('/')?.1.parse().ok())
}
