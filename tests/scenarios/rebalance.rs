//! Groups of several keylanes, and topics that grow.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::child::{Keylane, Stream};
use crate::cluster::{Cluster, LIMIT, full, wait_until};
use crate::ledger::{Entry, History, LEDGER, assert_ordered, ledger};

/// What the last `assigned` line of a member names, and when it came.
pub fn assigned(child: &Keylane) -> (Duration, BTreeSet<i32>) {
    let lines = child.lines();
    let last =
        lines.iter().rev().find(|line| line.stream == Stream::Err && line.text.contains("] assigned "));
    let Some(line) = last else { return (Duration::ZERO, BTreeSet::new()) };
    let names = line.text.split_once("] assigned ").unwrap().1;
    if names.starts_with("nothing") {
        return (line.time, BTreeSet::new());
    }
    let list = names.split_whitespace().next().unwrap().rsplit_once('/').unwrap().1;
    (line.time, list.split(',').map(|partition| partition.parse().unwrap()).collect())
}

/// The longest time in which a partition's records stood still, between its first and its last record of the ledger.
fn longest_gap(entries: &[Entry], partition: i32) -> Duration {
    let times: Vec<Duration> =
        entries.iter().filter(|entry| entry.partition == partition).map(|entry| entry.time).collect();
    times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

fn pool(kafka: &Cluster, topic: &str, more: &[&str]) -> Keylane {
    let mut args = vec!["pool", "-t", topic, "-g", topic, "--print", LEDGER];
    args.extend(more);
    kafka.keylane(&args)
}

#[test]
fn two_pools_share_a_topic_and_hand_it_back() {
    let kafka = Cluster::any();
    let topic = kafka.topic(6, &[]);
    kafka.seed(&topic, 30_000, 64, &[]);
    let mut first = pool(&kafka, &topic, &["--work-delay", "10ms"]);
    first.wait_lines(Stream::Out, 500, LIMIT);
    let mut second = pool(&kafka, &topic, &["--work-delay", "10ms"]);
    let shared = wait_until("three partitions each", LIMIT, || {
        let (_, one) = assigned(&first);
        let (_, two) = assigned(&second);
        (one.len() == 3 && two.len() == 3).then_some((one, two))
    });
    assert!(shared.0.is_disjoint(&shared.1), "{shared:?}");
    second.wait_lines(Stream::Out, 500, LIMIT);

    second.signal("TERM");
    let began = first.elapsed();
    let exit = second.wait_exit(LIMIT);
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);
    let rate: f64 = exit.done("rate").unwrap().trim_end_matches("/s").parse().unwrap();
    assert!(rate > if full() { 700.0 } else { 400.0 }, "the second pool doubles the rate: {rate}/s");
    let (time, _) = wait_until("six partitions again", LIMIT, || {
        Some(assigned(&first)).filter(|(_, six)| six.len() == 6)
    });
    let back = time.saturating_sub(began);
    assert!(back < Duration::from_secs(3), "handed back after {back:?}");

    let retained_until = first.elapsed();
    wait_until("records of all partitions", LIMIT, || {
        let entries = ledger(&first);
        shared
            .1
            .iter()
            .all(|p| entries.iter().any(|e| e.partition == *p && e.time > retained_until))
            .then_some(())
    });
    first.signal("TERM");
    assert_eq!(first.wait_exit(LIMIT).code, Some(0));

    let (one, two) = (ledger(&first), ledger(&second));
    assert_ordered(&two);
    assert_ordered(&one);
    // 8 workers on 10 ms are never silent for long; a rebalance that stops the work takes a heartbeat and two rounds.
    for partition in &shared.0 {
        let gap = longest_gap(&one, *partition);
        assert!(gap < Duration::from_millis(500), "retained partition {partition} waited {gap:?}");
    }
    let mut history = History::default();
    history.add(&one);
    history.add(&two);
    assert_eq!(history.repeats, [], "a drained hand-over repeats nothing");
    let committed = kafka.committed(&topic, &topic);
    for (partition, next) in &committed {
        assert_eq!(history.prefix(*partition), *next);
        assert_eq!(history.count_from(*partition, *next), 0);
    }
}

/// Members with a list of eager assignors give up everything and get a share back.
#[test]
fn eager_members_drain_before_they_join_again() {
    let kafka = Cluster::any();
    for assignor in ["range", "roundrobin", "sticky"] {
        let topic = kafka.topic(6, &[]);
        kafka.seed(&topic, 6000, 512, &[]);
        let more = ["--work-delay", "5ms", "--assignor", assignor];
        let mut first = pool(&kafka, &topic, &more);
        first.wait_lines(Stream::Out, 100, LIMIT);
        let mut second = pool(&kafka, &topic, &more);
        wait_until("three partitions each", LIMIT, || {
            (assigned(&first).1.len() == 3 && assigned(&second).1.len() == 3).then_some(())
        });
        first.signal("TERM");
        assert_eq!(first.wait_exit(LIMIT).code, Some(0));
        wait_until("all partitions", LIMIT, || (assigned(&second).1.len() == 6).then_some(()));
        wait_until("no lag", LIMIT, || {
            kafka.offsets(&topic, &topic).values().all(|o| o.committed == Some(o.end)).then_some(())
        });
        second.signal("TERM");
        assert_eq!(second.wait_exit(LIMIT).code, Some(0));
        let mut history = History::default();
        for child in [&first, &second] {
            let entries = ledger(child);
            assert_ordered(&entries);
            history.add(&entries);
        }
        assert_eq!(history.repeats, [], "{assignor}");
        history.assert_complete(&kafka.ends(&topic, &topic));
    }
}

#[test]
fn a_partition_added_in_mid_run_is_read() {
    let Some(kafka) = Cluster::real() else { return };
    let topic = kafka.topic(2, &[]);
    kafka.seed(&topic, 500, 32, &[]);
    let mut child = pool(&kafka, &topic, &["--work-delay", "1ms"]);
    child.wait_lines(Stream::Out, 500, LIMIT);
    kafka.run_java(
        "org.apache.kafka.tools.TopicCommand",
        &["--bootstrap-server", kafka.brokers(), "--alter", "--topic", &topic, "--partitions", "5"],
    );
    let added = child.elapsed();
    let (time, _) =
        wait_until("five partitions", LIMIT, || Some(assigned(&child)).filter(|(_, all)| all.len() == 5));
    let waited = time.saturating_sub(added);
    // The metadata age of 30 s, and the rebalance.
    assert!(waited < Duration::from_secs(33), "picked up after {waited:?}");
    kafka.seed(&topic, 1000, 32, &[]);
    child.wait_lines(Stream::Out, 1500, LIMIT);
    child.signal("TERM");
    assert_eq!(child.wait_exit(LIMIT).code, Some(0));
    let entries = ledger(&child);
    assert_ordered(&entries);
    let mut history = History::default();
    history.add(&entries);
    assert_eq!(history.repeats, []);
    history.assert_complete(&kafka.ends(&topic, &topic));
    kafka.assert_caught_up(&topic, &topic);
}
