//! The summary of a campaign, a column a round.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::round::{Outcome, Plan};

#[derive(Default)]
pub struct Table {
    /// Names of rows, in order of their first appearance.
    names: Vec<String>,
    columns: Vec<BTreeMap<String, String>>,
    verified: Vec<String>,
    /// Said again at the end, where whoever reads a log looks first.
    violations: Vec<String>,
}

impl Table {
    pub fn add(&mut self, plan: &Plan, outcome: &Outcome) {
        let verdict = &outcome.verdict;
        let mut rows: Vec<(String, String)> = vec![
            ("assignor".into(), plan.assignor.into()),
            ("seconds".into(), format!("{:.0}", outcome.took.as_secs_f64())),
            ("records".into(), verdict.records.to_string()),
            ("tries".into(), verdict.tries.to_string()),
        ];
        let mut counted = |title: &str, counts: &BTreeMap<&'static str, usize>| {
            for (name, count) in counts {
                rows.push((format!("{title}: {name}"), count.to_string()));
            }
        };
        counted("tries that failed", &verdict.failed);
        counted("deed", &outcome.deeds);
        counted("partitions given up", &verdict.endings);
        counted("repeats", &verdict.repeats);
        counted("two processes at one key", &verdict.overlaps);
        let halt = verdict.longest_halt.map_or(0.0, |(halt, _, _)| halt.as_secs_f64());
        rows.extend([
            ("most repeats after one tenure".into(), verdict.repeats_max.to_string()),
            (
                "most finished in order, not committed".into(),
                verdict.behind.values().max().copied().unwrap_or(0).to_string(),
            ),
            ("begun by one that had lost it".into(), verdict.stale.to_string()),
            ("pools started".into(), outcome.members.to_string()),
            ("rebalances of members".into(), outcome.rebalances.to_string()),
            ("commits looked at".into(), verdict.commits_seen.to_string()),
            ("of them old, by a new coordinator".into(), verdict.commits_stale.to_string()),
            ("longest halt of a partition, s".into(), format!("{halt:.1}")),
            ("largest pool, MiB".into(), (outcome.rss_kib_max >> 10).to_string()),
            ("violations".into(), outcome.violations.len().to_string()),
        ]);
        let known: BTreeSet<String> = self.names.iter().cloned().collect();
        self.names.extend(rows.iter().map(|(name, _)| name.clone()).filter(|name| !known.contains(name)));
        self.columns.push(rows.into_iter().collect());
        self.verified.push(outcome.verified.clone());
        let round = plan.index + 1;
        self.violations
            .extend(outcome.violations.iter().map(|what| format!("round {round}: VIOLATION {what}")));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.names.iter().map(String::len).max().unwrap_or(0);
        for name in &self.names {
            write!(f, "{name:width$}")?;
            for column in &self.columns {
                write!(f, " {:>18}", column.get(name).map_or("-", String::as_str))?;
            }
            writeln!(f)?;
        }
        for line in self.verified.iter().chain(&self.violations) {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}
