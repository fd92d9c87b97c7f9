//! Logs as other clients and the broker's own housekeeping leave them: every codec, transactions, gaps, nulls.

use std::collections::{BTreeMap, BTreeSet};

use crate::child::{Exit, Keylane};
use crate::cluster::{Cluster, LIMIT, wait_until};
use crate::ledger::{History, LEDGER, ledger};

/// Runs a pool to the end of the topic and checks that everything is committed.
fn drain(kafka: &Cluster, topic: &str, more: &[&str]) -> (Keylane, Exit) {
    let mut args = vec!["pool", "-t", topic, "-g", topic, "--work-delay", "0..1ms", "-e"];
    args.extend(more);
    let mut child = kafka.keylane(&args);
    let exit = child.wait_exit(LIMIT);
    assert_eq!(exit.code, Some(0), "{exit}");
    kafka.assert_caught_up(topic, topic);
    (child, exit)
}

/// Partition and offset of all records that Java's consumer reads.
fn read_by_java(kafka: &Cluster, topic: &str) -> BTreeSet<(i32, i64)> {
    let printed = kafka.read_by_java(topic, &["--isolation-level", "read_committed"]);
    let parts = printed.lines().filter_map(|line| line.strip_prefix("Partition:"));
    parts
        .map(|line| {
            let (partition, offset) = line.trim().split_once("Offset:").unwrap_or_else(|| panic!("{line}"));
            (partition.trim().parse().unwrap(), offset.trim().parse().unwrap())
        })
        .collect()
}

fn handled(child: &Keylane) -> BTreeSet<(i32, i64)> {
    let entries = ledger(child);
    let offsets: BTreeSet<_> = entries.iter().map(|entry| (entry.partition, entry.offset)).collect();
    assert_eq!(offsets.len(), entries.len(), "nothing twice");
    offsets
}

#[test]
fn every_codec_of_the_java_producer() {
    let Some(kafka) = Cluster::real() else { return };
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let topic = kafka.topic(3, &[]);
        let compression = format!("compression={codec}");
        kafka.run_java(
            "Produce.java",
            &[kafka.brokers(), &topic, "records=6000", "keys=50", "size=300", &compression, "headers=3"],
        );
        // %s shows the whole value: it begins with the record's number and is 300 bytes long.
        let (_, exit) = drain(&kafka, &topic, &["--print", "%p %o %k %S %s.\n"]);
        let mut numbers = BTreeSet::new();
        let mut history: BTreeMap<(i32, String), i64> = BTreeMap::new();
        for line in exit.stdout.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let (partition, offset): (i32, i64) = (words[0].parse().unwrap(), words[1].parse().unwrap());
            let number: usize = words[4].parse().unwrap();
            assert_eq!((words[2], words[3]), (format!("key-{}", number % 50).as_str(), "300"), "{line}");
            let last = history.insert((partition, words[2].to_owned()), offset);
            assert!(last.is_none_or(|last| last < offset), "{line} after {last:?}");
            assert!(numbers.insert(number), "twice: {line}");
        }
        assert_eq!(numbers.len(), 6000, "{codec}");
    }
}

#[test]
fn null_and_empty_keys_and_values() {
    let Some(kafka) = Cluster::real() else { return };
    for null_key in ["spread", "lane"] {
        let topic = kafka.topic(2, &[]);
        kafka.run_java(
            "Produce.java",
            &[kafka.brokers(), &topic, "records=600", "keys=7", "null-keys=3", "null-values=4", "headers=1"],
        );
        let (_, exit) = drain(&kafka, &topic, &["--print", "%K %S\n", "--null-key", null_key]);
        let lines = exit.stdout_lines();
        assert_eq!(lines.len(), 600);
        assert_eq!(lines.iter().filter(|line| line.starts_with("-1 ")).count(), 200);
        assert_eq!(lines.iter().filter(|line| line.ends_with(" -1")).count(), 150);
    }
}

#[test]
fn aborted_and_open_transactions() {
    let Some(kafka) = Cluster::real() else { return };
    let topic = kafka.topic(2, &[]);
    kafka.run_java(
        "Txn.java",
        &[
            kafka.brokers(),
            &topic,
            &topic,
            "commit:30:0,1",
            "abort:20:0,1",
            "plain:5:0,1",
            "abort:3:1",
            "commit:400:0",
            "abort:10:0",
            "abort:10:1",
        ],
    );
    let (child, _) = drain(&kafka, &topic, &["--print", LEDGER]);
    let seen = handled(&child);
    assert_eq!(seen, read_by_java(&kafka, &topic));
    assert_eq!(seen.len(), 30 * 2 + 5 * 2 + 400);

    // Uncommitted reading has the aborted ones as well.
    let group = format!("{topic}-all");
    let mut all = kafka.keylane(&[
        "pool",
        "-t",
        &topic,
        "-g",
        &group,
        "--work-delay",
        "0",
        "--isolation",
        "read_uncommitted",
        "--print",
        LEDGER,
        "-e",
    ]);
    assert_eq!(all.wait_exit(LIMIT).code, Some(0));
    assert_eq!(handled(&all).len(), seen.len() + 20 * 2 + 3 + 10 * 2);
    kafka.assert_caught_up(&group, &topic);

    // Behind an open transaction nothing is handed out.
    kafka.run_java("Txn.java", &[kafka.brokers(), &topic, &format!("{topic}-open"), "open:7:1"]);
    kafka.run_java("Produce.java", &[kafka.brokers(), &topic, "records=10", "partition=1"]);
    let mut more =
        kafka.keylane(&["pool", "-t", &topic, "-g", &topic, "--work-delay", "0", "--print", LEDGER, "-e"]);
    assert_eq!(more.wait_exit(LIMIT).code, Some(0));
    assert_eq!(ledger(&more), []);
}

#[test]
fn a_compacted_log_with_gaps() {
    let Some(kafka) = Cluster::real() else { return };
    let topic = kafka.topic(
        1,
        &[
            "cleanup.policy=compact",
            "min.cleanable.dirty.ratio=0.01",
            "segment.ms=500",
            "min.compaction.lag.ms=0",
            "max.compaction.lag.ms=1000",
            "delete.retention.ms=100",
        ],
    );
    for _ in 0..3 {
        kafka.run_java("Produce.java", &[kafka.brokers(), &topic, "records=67", "keys=9", "null-values=11"]);
        std::thread::sleep(std::time::Duration::from_millis(700));
    }
    // A segment rolls on an append, and the last one is never cleaned.
    kafka.run_java("Produce.java", &[kafka.brokers(), &topic, "records=1", "keys=1"]);
    let compacted = wait_until("gaps in the log", LIMIT, || {
        let seen = read_by_java(&kafka, &topic);
        (seen.len() < 150).then_some(seen)
    });
    let (child, _) = drain(&kafka, &topic, &["--print", LEDGER]);
    let seen = handled(&child);
    // The cleaner may have gone on between the two readings.
    assert!(seen.is_subset(&compacted) && seen.len() > 1, "{seen:?} of {compacted:?}");
    assert_eq!(kafka.committed(&topic, &topic)[&0], 202);
    let later = read_by_java(&kafka, &topic);
    assert!(later.is_subset(&seen), "{later:?} of {seen:?}");
}

#[test]
fn a_log_whose_beginning_was_deleted() {
    let Some(kafka) = Cluster::real() else { return };
    let topic = kafka.topic(1, &[]);
    kafka.seed(&topic, 3000, 10, &[]);
    // A commit at 100 that the log no longer reaches down to, and a group that starts afresh.
    let mut first = kafka.keylane(&["pool", "-t", &topic, "-g", &topic, "--work-delay", "0", "-n", "100"]);
    assert_eq!(first.wait_exit(LIMIT).code, Some(0));
    let json = std::env::temp_dir().join(format!("keylane-{topic}.json"));
    let text = format!(r#"{{"partitions":[{{"topic":"{topic}","partition":0,"offset":1234}}],"version":1}}"#);
    std::fs::write(&json, text).unwrap();
    kafka.run_java(
        "org.apache.kafka.tools.DeleteRecordsCommand",
        &["--bootstrap-server", kafka.brokers(), "--offset-json-file", json.to_str().unwrap()],
    );
    std::fs::remove_file(json).unwrap();
    let (child, exit) = drain(&kafka, &topic, &["--print", LEDGER]);
    let expected: BTreeSet<_> = (1234..3000).map(|offset| (0, offset)).collect();
    assert_eq!(handled(&child), expected);
    assert!(exit.stderr.contains("1134"), "it says how many are gone: {}", exit.stderr);

    let group = format!("{topic}-new");
    let mut fresh =
        kafka.keylane(&["pool", "-t", &topic, "-g", &group, "--work-delay", "0", "--print", LEDGER, "-e"]);
    assert_eq!(fresh.wait_exit(LIMIT).code, Some(0));
    let mut history = History::default();
    history.add(&ledger(&fresh));
    assert_eq!(handled(&fresh), expected);
    kafka.assert_caught_up(&group, &topic);
}
