//! A broker that goes away for five seconds and comes back.

use std::time::Duration;

use crate::child::{Keylane, Stream};
use crate::cluster::{Cluster, LIMIT, full, size, wait_until};
use crate::ledger::{History, LEDGER, assert_ordered, ledger};

#[test]
fn a_kafka_that_is_away_for_five_seconds_stops_nobody() {
    let Some(kafka) = Cluster::own("broker", None, &[]) else { return };
    let away = |stop: &[&str]| {
        kafka.script("stop", stop);
        std::thread::sleep(Duration::from_secs(5));
        kafka.script("start", &[]);
    };
    outage(&kafka, || away(&[]));
    if full() {
        outage(&kafka, || away(&["--kill"]));
    }
}

#[test]
fn a_node_of_our_own_broker_that_is_away_stops_nobody() {
    let mut dev = Cluster::dev(&["--fault", "node:restart=3s,every=3s,times=1,after=1s"]);
    outage(&dev, || ());
    let said = dev.end_dev().stderr;
    assert!(said.contains("times=1,after=1s: 1 times"), "{said}");
}

fn outage(kafka: &Cluster, away: impl FnOnce()) {
    let topic = kafka.topic(6, &[]);
    let records = size(12_000, 12_000).to_string();
    let (pool_group, sequential_group) = (format!("{topic}-pool"), format!("{topic}-sequential"));
    let mut seed = kafka.keylane(&[
        "seed",
        "-t",
        &topic,
        "-n",
        &records,
        "-k",
        "64",
        "--rate",
        "1000",
        "--delivery-timeout",
        "120s",
    ]);
    let mut pool = kafka.keylane(&[
        "pool",
        "-t",
        &topic,
        "-g",
        &pool_group,
        "--work-delay",
        "0..4ms",
        "--print",
        LEDGER,
    ]);
    let mut sequential = kafka.keylane(&[
        "sequential",
        "-t",
        &topic,
        "-g",
        &sequential_group,
        "--work-delay",
        "0",
        "--print",
        LEDGER,
    ]);
    pool.wait_lines(Stream::Out, 1000, LIMIT);
    sequential.wait_lines(Stream::Out, 1000, LIMIT);
    let mut lag = kafka.keylane(&["lag", "-g", &pool_group, "-i", "500ms"]);
    lag.wait_lines(Stream::Out, 1, LIMIT);

    away();
    let sent = seed.wait_exit(3 * LIMIT);
    assert_eq!(sent.code, Some(0), "{sent}");
    assert_eq!((sent.done("sent"), sent.done("failed")), (Some(records.as_str()), Some("0")), "{sent}");
    let ends = kafka.ends(&pool_group, &topic);
    assert_eq!(ends.values().sum::<i64>().to_string(), records, "idempotent: nothing written twice");
    for group in [&pool_group, &sequential_group] {
        wait_until("all is committed", LIMIT, || {
            kafka.offsets(group, &topic).values().all(|o| o.committed == Some(o.end)).then_some(())
        });
    }
    wait_until("lag tells the end", LIMIT, || {
        let text = lag.text(Stream::Out);
        let total =
            text.lines().rev().find_map(|line| line.split_once("total="))?.1.split_whitespace().next()?;
        (total == "0").then_some(())
    });
    for child in [&mut pool, &mut sequential] {
        check_end(child, &ends);
    }
    lag.signal("TERM");
    assert_eq!(lag.wait_exit(LIMIT).code, Some(0));
}

fn check_end(child: &mut Keylane, ends: &std::collections::BTreeMap<i32, i64>) {
    child.signal("TERM");
    let exit = child.wait_exit(LIMIT);
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);
    let entries = ledger(child);
    let mut history = History::default();
    history.add(&entries);
    history.assert_complete(ends);
    // Only a member that was removed meanwhile may see records again.
    if !exit.stderr.contains("] lost ") {
        assert_ordered(&entries);
        assert_eq!(history.repeats, [], "{}", exit.stderr);
    }
}
