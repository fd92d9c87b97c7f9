//! What is looked at while a round goes on: the group's commits, and the processes of the pools.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use serde_json::Value;

use crate::events::{Ledger, What};
use crate::member::{Member, Team};

/// `keylane lag`, whose answers go into the ledger as they come.
pub struct Commits {
    child: Child,
    reader: Option<JoinHandle<()>>,
}

impl Commits {
    pub fn watch(team: &Team) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keylane"));
        command.args(["lag", "-b", &team.brokers, "-g", &team.group, "-t", &team.topic]);
        command.args(["-i", "250ms", "--format", "json"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("keylane lag starts");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let ledger = Ledger::open(&team.ledger).expect("the ledger opens");
        let reader = std::thread::spawn(move || {
            for line in answers.lines().map_while(Result::ok) {
                let answer: Value = serde_json::from_str(&line).unwrap_or_default();
                let coordinator = answer["coordinator_node"].as_u64().map_or(0, |node| node as u32);
                for partition in answer["partitions"].as_array().into_iter().flatten() {
                    let number = |name: &str| partition[name].as_i64();
                    if let (Some(index), Some(offset)) = (number("partition"), number("current_offset")) {
                        let place = (index as i32, offset);
                        ledger.append(What::Committed, coordinator, place, "-").expect("a line");
                    }
                }
            }
        });
        Commits { child, reader: Some(reader) }
    }
}

impl Drop for Commits {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Memory and dead children of the members, sampled every second.
#[derive(Debug, Default)]
pub struct Health {
    pub rss_kib_max: u64,
    /// Dead children that wait to be reaped, and how often each was seen.
    unreaped: BTreeMap<u32, u32>,
    /// Those that were seen for too long.
    pub zombies: BTreeSet<u32>,
}

impl Health {
    /// So many samples in a row a dead child may be seen: its pool may be short of time for a second or two.
    const SEEN_MAX: u32 = 4;

    pub fn sample(&mut self, members: &[Member]) {
        // A stopped process reaps nothing.
        let parents: BTreeSet<u32> = members.iter().filter(|m| m.is_well()).map(|m| m.child.id()).collect();
        for member in members.iter().filter(|member| member.is_well()) {
            self.rss_kib_max = self.rss_kib_max.max(member.child.rss_kib().unwrap_or(0));
        }
        let dead = processes().filter(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // State and parent follow the name, which may hold anything.
            let mut after = stat.rsplit_once(") ").map_or("", |(_, after)| after).split(' ');
            after.next() == Some("Z")
                && after.next().and_then(|p| p.parse().ok()).is_some_and(|p| parents.contains(&p))
        });
        let dead: BTreeSet<u32> = dead.collect();
        self.unreaped.retain(|pid, _| dead.contains(pid));
        for pid in dead {
            let seen = self.unreaped.entry(pid).or_default();
            *seen += 1;
            if *seen >= Self::SEEN_MAX {
                self.zombies.insert(pid);
            }
        }
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Pools and handlers that work for this ledger.
pub fn processes_of(ledger: &Path) -> Vec<u32> {
    let name = ledger.to_string_lossy().into_owned().into_bytes();
    let has = |pid: &u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.split(|byte| *byte == 0).any(|word| word == name)
    };
    processes().filter(has).collect()
}
