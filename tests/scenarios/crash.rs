//! `kill -9`: nothing lost, and few records twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::child::{Keylane, Stream};
use crate::cluster::{Cluster, LIMIT, kafka, size, wait_until};
use crate::ledger::{Entry, History, LEDGER, assert_ordered, ledger};
use crate::rebalance::assigned;

/// Older finished work than this is committed: twice the commit interval, and what a busy machine adds.
const COMMITTED_WITHIN: Duration = Duration::from_millis(2000);

#[test]
fn a_killed_run_loses_nothing_and_repeats_little() {
    let kafka = Cluster::any();
    let rounds = size(3, 20).max(2);
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
        let before = std::mem::replace(&mut committed, kafka.committed(&topic, &topic));
        history.assert_covers(&committed);
        for (partition, next) in &committed {
            let start = before.get(partition).copied().unwrap_or(0);
            let due = finished_by(&entries, *partition, start, died.saturating_sub(COMMITTED_WITHIN));
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

/// The other member takes over when the session has ended, and repeats only what was not committed.
#[test]
fn a_killed_members_partitions_go_to_the_other() {
    let kafka = Cluster::any();
    let topic = kafka.topic(6, &[]);
    kafka.seed(&topic, 20_000, 64, &[]);
    let mut stays = start(&kafka, &topic, &["--work-delay", "10ms"]);
    stays.wait_lines(Stream::Out, 100, LIMIT);
    let mut dies = start(&kafka, &topic, &["--work-delay", "10ms"]);
    wait_until("three partitions each", LIMIT, || {
        (assigned(&stays).1.len() == 3 && assigned(&dies).1.len() == 3).then_some(())
    });
    let taken = assigned(&dies).1;
    dies.wait_lines(Stream::Out, 1000, LIMIT);
    dies.signal("KILL");
    let died = stays.elapsed();
    assert_eq!(dies.wait_exit(LIMIT).code, None);
    let committed = kafka.committed(&topic, &topic);
    let (time, _) =
        wait_until("all partitions", LIMIT, || Some(assigned(&stays)).filter(|(_, all)| all.len() == 6));
    let waited = time.saturating_sub(died);
    // The session, from the last heartbeat on; then the next heartbeat of the one that stays.
    assert!(waited < session() + Duration::from_secs(3), "taken over after {waited:?}");
    wait_until("records of the partitions taken over", LIMIT, || {
        let entries = ledger(&stays);
        let since = |p: &i32| entries.iter().filter(|e| e.partition == *p && e.time > time).count();
        taken.iter().all(|partition| since(partition) > 50).then_some(())
    });
    stays.signal("TERM");
    assert_eq!(stays.wait_exit(LIMIT).code, Some(0));

    let (one, two) = (ledger(&stays), ledger(&dies));
    assert_ordered(&two);
    let mut history = History::default();
    history.add(&two);
    for partition in &taken {
        // What the dead one had finished and committed is not begun again.
        let again = one.iter().filter(|e| e.partition == *partition && e.time >= time);
        assert!(again.map(|e| e.offset).min() >= Some(committed[partition]), "partition {partition}");
    }
    history.add(&one);
    let last = kafka.committed(&topic, &topic);
    history.assert_covers(&last);
    // What the dead one had finished further on comes again to whoever goes on from here.
    for (partition, next) in last.iter().filter(|(partition, _)| !taken.contains(partition)) {
        assert_eq!(history.prefix(*partition), *next);
        assert_eq!(history.count_from(*partition, *next), 0);
    }
}

/// A real broker allows no less.
fn session() -> Duration {
    if kafka().is_some() { Duration::from_secs(6) } else { Duration::from_secs(2) }
}

fn start(kafka: &Cluster, topic: &str, more: &[&str]) -> Keylane {
    let session = format!("session.timeout.ms={}", session().as_millis());
    let mut args = vec!["pool", "-t", topic, "-g", topic, "--print", LEDGER, "-X", &session];
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

/// How far a partition was finished at `time` of a run that began there at `start`.
fn finished_by(entries: &[Entry], partition: i32, start: i64, time: Duration) -> i64 {
    let done = entries.iter().filter(|entry| entry.partition == partition && entry.time <= time);
    let done: BTreeSet<i64> = done.map(|entry| entry.offset).collect();
    (start..).find(|offset| !done.contains(offset)).unwrap_or(start)
}
