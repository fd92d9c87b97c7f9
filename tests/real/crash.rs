//! `kill -9`: nothing lost, and few records twice.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::child::{Keylane, Stream};
use crate::kafka::{Cluster, LIMIT, size};
use crate::ledger::{Entry, History, LEDGER, assert_ordered, ledger};

/// Older finished work than this is committed: twice the commit interval, and what a busy machine adds.
const COMMITTED_WITHIN: Duration = Duration::from_millis(2000);

#[test]
fn a_killed_run_loses_nothing_and_repeats_little() {
    let Some(kafka) = Cluster::shared() else { return };
    let rounds = size(3, 20);
    let topic = kafka.topic(6, &[]);
    kafka.seed(&topic, rounds * 4000 + 4000, 32, &[]);
    let mut history = History::default();
    let mut committed = BTreeMap::new();
    for round in 0..rounds {
        let delay = ["10ms", "0..20ms", "5ms..15ms"][round % 3];
        let mut child = start(&kafka, &topic, &["--work-delay", delay]);
        // The first record comes when the killed member's session has ended.
        child.wait_lines(Stream::Out, 1, LIMIT);
        std::thread::sleep(Duration::from_millis(2500 + (round as u64 * 371) % 700));
        let died = child.elapsed();
        child.signal("KILL");
        assert_eq!(child.wait_exit(LIMIT).code, None);
        let entries = ledger(&child);
        assert_ordered(&entries);
        check_repeats(&mut history, &entries, &committed);
        committed = kafka.committed(&topic, &topic);
        history.assert_covers(&committed);
        for (partition, next) in &committed {
            let due = finished_by(&history, &entries, *partition, died.saturating_sub(COMMITTED_WITHIN));
            assert!(
                *next >= due,
                "round {round}: partition {partition} is committed to {next}, {due} was due"
            );
        }
    }
    let mut rest = start(&kafka, &topic, &["--work-delay", "0", "-e"]);
    assert_eq!(rest.wait_exit(LIMIT).code, Some(0));
    check_repeats(&mut history, &ledger(&rest), &committed);
    history.assert_complete(&kafka.ends(&topic, &topic));
    kafka.assert_caught_up(&topic, &topic);
}

fn start(kafka: &Cluster, topic: &str, more: &[&str]) -> Keylane {
    let mut args = vec!["pool", "-t", topic, "-g", topic, "--print", LEDGER, "-X", "session.timeout.ms=6000"];
    args.extend(more);
    kafka.keylane(&args)
}

/// Adds a run that began from these commits: it may repeat only what they do not cover.
fn check_repeats(history: &mut History, entries: &[Entry], committed: &BTreeMap<i32, i64>) {
    let known = history.repeats.len();
    let open: usize = committed.iter().map(|(partition, next)| history.count_from(*partition, *next)).sum();
    history.add(entries);
    let early =
        entries.iter().find(|entry| committed.get(&entry.partition).is_some_and(|next| entry.offset < *next));
    assert_eq!(early, None, "handled again, though committed");
    let repeats = history.repeats.len() - known;
    assert!(repeats <= open, "{repeats} repeats of {open} records finished past the commit");
}

/// The first offset of a partition that was not finished at `time` of this run.
fn finished_by(history: &History, entries: &[Entry], partition: i32, time: Duration) -> i64 {
    let later = entries.iter().filter(|entry| entry.partition == partition && entry.time > time);
    later.map(|entry| entry.offset).min().unwrap_or(i64::MAX).min(history.prefix(partition))
}
