//! The order of a key's records, whatever the handlers' times.

use crate::cluster::{Cluster, LIMIT, size};
use crate::ledger::{History, LEDGER, assert_ordered, ledger};

#[test]
fn sixteen_workers_keep_each_keys_order() {
    let kafka = Cluster::any();
    let records = size(20_000, 200_000);
    let topic = kafka.topic(6, &[]);
    kafka.seed(&topic, records, 1000, &["--skew", "0.6"]);
    let ways: [&[&str]; 4] = [
        &[],
        &["--dispatch", "hash"],
        &["--dispatch", "partition-hash"],
        // A small window, so that pausing and resuming is at work all the time.
        &["--buffer", "8", "--max-ahead", "50"],
    ];
    for (index, way) in ways.iter().enumerate() {
        let group = format!("{topic}-{index}");
        let mut args = vec![
            "pool",
            "-t",
            &topic,
            "-g",
            &group,
            "-w",
            "16",
            "--work-delay",
            "0..5ms",
            "--print",
            LEDGER,
            "-e",
        ];
        args.extend(*way);
        let mut child = kafka.keylane(&args);
        let exit = child.wait_exit(4 * LIMIT);
        assert_eq!(exit.code, Some(0), "{way:?}: {}", exit.stderr);
        let entries = ledger(&child);
        assert_ordered(&entries);
        let mut history = History::default();
        history.add(&entries);
        history.assert_complete(&kafka.ends(&group, &topic));
        assert_eq!((history.count(), history.repeats.len()), (records, 0));
        kafka.assert_caught_up(&group, &topic);
    }
}

/// With one worker's worth of order: a whole partition, one record after the other.
#[test]
fn order_by_partition_is_the_logs_order() {
    let kafka = Cluster::any();
    let topic = kafka.topic(6, &[]);
    kafka.seed(&topic, 5000, 100, &[]);
    let mut child = kafka.keylane(&[
        "pool",
        "-t",
        &topic,
        "-g",
        &topic,
        "--work-delay",
        "0..2ms",
        "--order",
        "partition",
        "--print",
        LEDGER,
        "-e",
    ]);
    let exit = child.wait_exit(LIMIT);
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);
    let mut next = std::collections::BTreeMap::new();
    for entry in ledger(&child) {
        let expected = next.entry(entry.partition).or_insert(0);
        assert_eq!(entry.offset, *expected, "{entry:?}");
        *expected += 1;
    }
    assert_eq!(next, kafka.ends(&topic, &topic));
}
