//! Handlers that do not return: memory stays bounded, heartbeats go on, one slow partition holds nobody up.

use std::time::{Duration, Instant};

use crate::child::Keylane;
use crate::cluster::{Cluster, LIMIT, full, kafka, size};
use crate::ledger::{LEDGER, ledger};

/// What the program may need besides `--max-memory`.
const BESIDES_KIB: u64 = 24 * 1024;

/// The most memory the process ever held, in KiB.
fn peak_kib(child: &Keylane) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn blocked_handlers_hold_no_more_than_the_limit_and_stay_in_the_group() {
    let kafka = Cluster::any();
    let topic = kafka.topic(6, &[]);
    kafka.seed(&topic, size(300_000, 2_000_000), 1000, &[]);
    for limit_mib in [16, 64] {
        let group = format!("{topic}-{limit_mib}");
        let limit = format!("{limit_mib}MiB");
        let child = kafka.keylane(&[
            "pool",
            "-t",
            &topic,
            "-g",
            &group,
            "--work-delay",
            "10m",
            "--max-memory",
            &limit,
            "--buffer",
            "100000",
            "-X",
            "session.timeout.ms=3000",
            "-X",
            "heartbeat.interval.ms=500",
        ]);
        child.wait_line("] assigned ", LIMIT);
        let until = Instant::now() + Duration::from_secs(size(8, 20) as u64);
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(200));
        }
        let peak = peak_kib(&child);
        let allowed = limit_mib * 1024 + BESIDES_KIB;
        assert!(peak <= allowed, "{limit}: {peak} KiB at the most, {allowed} allowed");
        let text = child.text(crate::child::Stream::Err);
        assert_eq!(text.matches("] assigned ").count(), 1, "{text}");
        assert!(!text.contains("] lost ") && !text.contains("] revoked "), "{text}");
        let state = kafka.run(&["lag", "-g", &group, "--once"]).stdout;
        assert!(state.contains("state=Stable members=1"), "{state}");
        child.signal("KILL");
    }
}

/// One partition has a single key and by far the longest backlog. It must not fill the buffer and starve the others.
#[test]
fn a_slow_partition_does_not_hold_up_the_others() {
    if kafka().is_none() {
        return;
    }
    let kafka = Cluster::alone();
    let topic = kafka.topic(6, &[]);
    let records = size(50_000, 300_000).to_string();
    let brokers = kafka.brokers();
    kafka
        .run_java("Produce.java", &[brokers, &topic, &format!("records={records}"), "keys=1", "partition=0"]);
    for partition in 1..6 {
        let partition = format!("partition={partition}");
        kafka.run_java("Produce.java", &[brokers, &topic, "records=1500", "keys=40", &partition]);
    }
    let mut child = kafka.keylane(&[
        "pool",
        "-t",
        &topic,
        "-g",
        &topic,
        "-w",
        "16",
        "--work-delay",
        "10ms",
        "--buffer",
        "128",
        "--print",
        LEDGER,
    ]);
    child.wait_lines(crate::child::Stream::Out, 6000, LIMIT);
    let entries = ledger(&child);
    let others: Vec<_> = entries.iter().filter(|entry| entry.partition != 0).collect();
    let (first, last) = (others[0].time, others[others.len() - 1].time);
    let rate = others.len() as f64 / (last - first).as_secs_f64();
    // One worker is on the slow key all the time, fifteen are left.
    let least = if full() { 1400.0 } else { 1000.0 };
    assert!(rate >= least, "the other partitions had {rate:.0} records/s");
    child.signal("TERM");
    assert_eq!(child.wait_exit(LIMIT).code, Some(0));
}
