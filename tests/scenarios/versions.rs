//! Older brokers: 3.9 on KRaft, 2.8 with ZooKeeper.

use crate::cluster::{Cluster, LIMIT};
use crate::ledger::{History, LEDGER, assert_ordered, ledger};
use crate::rebalance::assigned;

#[test]
fn kafka_3_9() {
    let Some(kafka) = Cluster::own("v39", Some("3.9.2"), &[]) else { return };
    work(&kafka);
}

#[test]
fn kafka_2_8() {
    let Some(kafka) = Cluster::own("v28", Some("2.8.2"), &[]) else { return };
    work(&kafka);
}

/// Topic, seed, two members of a group, a restart, lag.
fn work(kafka: &Cluster) {
    let topic = kafka.topic(6, &[]);
    kafka.seed(&topic, 20_000, 64, &[]);
    let args = ["pool", "-t", &topic, "-g", &topic, "--work-delay", "2ms", "--print", LEDGER];
    let mut first = kafka.keylane(&args);
    first.wait_lines(crate::child::Stream::Out, 100, LIMIT);
    let mut second = kafka.keylane(&args);
    crate::cluster::wait_until("three partitions each", LIMIT, || {
        (assigned(&first).1.len() == 3 && assigned(&second).1.len() == 3).then_some(())
    });
    let mut history = History::default();
    for child in [&mut first, &mut second] {
        child.signal("TERM");
        let exit = child.wait_exit(LIMIT);
        assert_eq!(exit.code, Some(0), "{}", exit.stderr);
        let entries = ledger(child);
        assert_ordered(&entries);
        history.add(&entries);
    }
    history.assert_covers(&kafka.committed(&topic, &topic));
    let mut sequential = kafka.keylane(&[
        "sequential",
        "-t",
        &topic,
        "-g",
        &topic,
        "--work-delay",
        "0",
        "--print",
        LEDGER,
        "-e",
    ]);
    let exit = sequential.wait_exit(LIMIT);
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);
    history.add(&ledger(&sequential));
    assert_eq!(history.repeats, []);
    history.assert_complete(&kafka.ends(&topic, &topic));
    let lag = kafka.run(&["lag", "-g", &topic, "--once"]).stdout;
    assert!(lag.contains("total=0 "), "{lag}");
    // Groups and topics are listed and removed.
    let described = kafka.run(&["group", "describe", &topic, "--offsets"]).stdout;
    assert!(described.contains(&topic), "{described}");
    kafka.run(&["group", "delete", &topic]);
    kafka.run(&["topic", "delete", &topic]);
}
