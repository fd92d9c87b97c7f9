//! The rates that the walk-through promises, and the words that say what limits them.
//!
//! A CI machine is slow and noisy: there only what would be wrong by far fails; the full run has the real bounds.

use std::time::{Duration, Instant};

use crate::child::{Exit, Stream};
use crate::cluster::{Cluster, LIMIT, full, size};
use crate::watch::{get, metrics_address, samples};

fn rate(exit: &Exit) -> f64 {
    let rate = exit.done("rate").unwrap_or_else(|| panic!("{exit}"));
    rate.trim_end_matches("/s").parse().unwrap()
}

/// Works through a topic to its end, all of it a backlog; asserts exit 0 and a rate within the bounds, the lower one
/// widened on CI. Not by `-n`, which takes the first records delivered, and these are of few keys.
fn measure(kafka: &Cluster, topic: &str, way: &[&str], least: f64, most: f64) -> Exit {
    let group = format!("{topic}-{}", way.join("").replace(|c: char| !c.is_ascii_alphanumeric(), ""));
    let mut args = vec![way[0], "-t", topic, "-g", &group, "-e"];
    args.extend(&way[1..]);
    let exit = kafka.run(&args);
    let rate = rate(&exit);
    crate::cluster::say(&format!("{}: {rate:.1} records/s", way.join(" ")));
    let least = if full() { least } else { least * 0.75 };
    assert!(rate >= least && rate <= most, "{way:?}: {rate} records/s, not {least} to {most}\n{exit}");
    exit
}

/// A topic of 6 partitions with `records` over `keys` keys.
fn backlog(kafka: &Cluster, records: usize, keys: usize) -> String {
    let topic = kafka.topic(6, &[]);
    kafka.seed(&topic, records, keys, &[]);
    topic
}

/// The word of most stats lines.
fn limit(exit: &Exit) -> String {
    let words = exit.stderr.lines().filter_map(|line| line.split_once("limit="));
    let words: Vec<&str> =
        words.map(|(_, rest)| rest.split_whitespace().next().unwrap_or_default()).collect();
    let most = words.iter().max_by_key(|word| words.iter().filter(|other| other == word).count());
    (*most.unwrap_or_else(|| panic!("no stats lines: {exit}"))).to_owned()
}

#[test]
fn sequential_manages_one_record_a_delay() {
    let kafka = Cluster::alone();
    let topic = backlog(&kafka, size(300, 1500), 32);
    measure(&kafka, &topic, &["sequential", "--work-delay", "10ms"], 95.0, 100.0);
    measure(&kafka, &topic, &["pool", "-w", "1", "--work-delay", "10ms"], 95.0, 100.0);
    let few = backlog(&kafka, size(30, 100), 32);
    measure(&kafka, &few, &["sequential", "--work-delay", "100ms"], 9.5, 10.0);

    let topic = backlog(&kafka, 2000, 32);
    // It commits after each batch of 100, so at least every two seconds.
    let mut child =
        kafka.keylane(&["sequential", "-t", &topic, "-g", &topic, "--work-delay", "10ms", "--print", "%o\n"]);
    child.wait_lines(Stream::Out, 1, LIMIT);
    let (mut before, mut moved) = (0, Instant::now());
    let until = Instant::now() + Duration::from_secs(size(5, 12).max(4) as u64);
    while Instant::now() < until {
        let sum: i64 = kafka.committed(&topic, &topic).values().sum();
        if sum > before {
            (before, moved) = (sum, Instant::now());
        }
        assert!(moved.elapsed() < Duration::from_millis(2300), "the commit stands at {sum}");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(before > 0);
}

#[test]
fn a_pool_manages_what_its_workers_and_keys_allow() {
    let kafka = Cluster::alone();
    let topic = backlog(&kafka, size(3200, 8000), 32);
    let lanes = measure(&kafka, &topic, &["pool", "--work-delay", "10ms"], 780.0, 800.0);
    assert_eq!(limit(&lanes), "workers");
    // One worker has five of the 32 keys, so all of them manage 32 / 5 times its 100 a second.
    measure(&kafka, &topic, &["pool", "--work-delay", "10ms", "--dispatch", "hash"], 560.0, 640.0);
    let few = backlog(&kafka, size(400, 800), 32);
    measure(&kafka, &few, &["pool", "--work-delay", "100ms"], 78.0, 80.0);
    let more = backlog(&kafka, size(960, 3200), 32);
    measure(&kafka, &more, &["pool", "--work-delay", "50ms", "-w", "16"], 312.0, 320.0);
}

#[test]
fn few_keys_limit_a_pool() {
    let kafka = Cluster::alone();
    for (keys, least, most) in [(4, 380.0, 400.0), (1, 95.0, 100.0)] {
        let topic = backlog(&kafka, size(4, 10) * 100 * keys, keys);
        let exit = measure(&kafka, &topic, &["pool", "-w", "16", "--work-delay", "10ms"], least, most);
        assert_eq!(limit(&exit), "keys", "{}", exit.stderr);
    }
}

/// Works through 10,000 records of one partition, 0 to 5 ms each, by 16 workers: seconds from the first record to the
/// last, and seconds slept by all together. A machine's sleeps are longer than asked for, a busy one's by a tenth; the
/// metrics know.
fn slept_through(kafka: &Cluster, topic: &str, round: u32, records: usize) -> (f64, f64) {
    let group = format!("{topic}-{round}");
    let args = ["pool", "-t", topic, "-g", &group, "-w", "16", "--work-delay", "0..5ms", "--listen"];
    let mut child = kafka.keylane(&[&args[..], &["127.0.0.1:0"]].concat());
    child.wait_line(&format!("processed={records} "), LIMIT);
    let slept = samples(&get(&metrics_address(&child), "/metrics").1)["keylane_handler_seconds_sum"];
    child.signal("TERM");
    let exit = child.wait_exit(LIMIT);
    let asked = 2.5e-3 * records as f64;
    assert!(slept >= 0.97 * asked, "{slept} s were slept, {asked} s asked for\n{exit}");
    (exit.done("seconds").unwrap().parse().unwrap(), slept)
}

/// The table of Confluent's Parallel Consumer. No scheduler can be faster than all the work on all workers, or than the
/// key with the most records alone.
#[test]
fn no_number_of_keys_costs_more_than_its_longest_lane() {
    const WORKERS: f64 = 16.0;
    // Of a uniform draw from 0 to 5 ms.
    let deviation = 5e-3 / 12f64.sqrt();
    let all: &[usize] = &[1, 2, 5, 10, 20, 50, 100, 1000, 10_000];
    let (keys, allowed) = if full() { (all, 1.05) } else { (&[10, 50, 1000][..], 1.4) };
    let kafka = Cluster::alone();
    let records = size(10_000, 10_000);
    for keys in keys {
        let topic = kafka.topic(1, &[]);
        kafka.seed(&topic, records, *keys, &[]);
        // A lane of n records lasts n draws: n times the mean, give or take the deviation times √n. The longest of K
        // such is expected at most √(2 ln K) deviations above the mean; two more make it a run in a hundred. A single
        // lane is all the work.
        let most = records.div_ceil(*keys) as f64;
        let above = if *keys == 1 { 0.0 } else { (2.0 * (*keys as f64).ln()).sqrt() + 2.0 };
        // What else the machine does can only lengthen a round, so that one within the bound is enough.
        let held = (0..3).any(|round| {
            let (seconds, slept) = slept_through(&kafka, &topic, round, records);
            let (work, lane) = (slept / WORKERS, most * slept / records as f64);
            let least = work.max(lane);
            crate::cluster::say(&format!(
                "{keys} keys: {seconds} s, {:.3} times {least:.3} s",
                seconds / least
            ));
            assert!(seconds >= 0.99 * least, "{keys} keys: {seconds} s cannot be");
            seconds <= allowed * work.max(lane + above * deviation * most.sqrt())
        });
        assert!(held, "{keys} keys take more than {allowed} times what they must");
    }
}

/// A stream of 1000 records a second: one thread falls behind by 900 a second, in a straight line; a pool catches up.
#[test]
fn lag_grows_under_sequential_and_falls_under_a_pool() {
    let kafka = Cluster::alone();
    let topic = kafka.topic(6, &[]);
    let mut seed = kafka.keylane(&["seed", "-t", &topic, "-n", "0", "--rate", "1000"]);
    let mut sequential = kafka.keylane(&["sequential", "-t", &topic, "-g", &topic, "--work-delay", "10ms"]);
    let mut lag = kafka.keylane(&["lag", "-g", &topic, "-i", "1s"]);
    let seconds = size(10, 60).max(5) as u64;
    std::thread::sleep(Duration::from_secs(seconds + 4));
    sequential.signal("TERM");
    seed.signal("TERM");
    assert_eq!(sequential.wait_exit(LIMIT).code, Some(0));
    assert_eq!(seed.wait_exit(LIMIT).code, Some(0));
    let points = totals(&lag.lines());
    let points = &points[points.len().saturating_sub(seconds as usize)..];
    let ((first_time, first), (last_time, last)) = (points[0], points[points.len() - 1]);
    let slope = (last - first) / (last_time - first_time);
    crate::cluster::say(&format!("lag grew by {slope:.0} a second"));
    let tolerance = if full() { 30.0 } else { 150.0 };
    assert!((slope - 900.0).abs() <= tolerance, "lag grew by {slope} a second: {points:?}");
    // Straight: no point is off the line by more than what two commits bring.
    for (time, total) in points {
        let expected = first + slope * (time - first_time);
        assert!((total - expected).abs() < 500.0, "{total} at {time}, {expected} expected: {points:?}");
    }
    let mut pool = kafka.keylane(&["pool", "-t", &topic, "-g", &topic, "--work-delay", "1ms", "-e"]);
    assert_eq!(pool.wait_exit(4 * LIMIT).code, Some(0));
    kafka.assert_caught_up(&topic, &topic);
    lag.wait_line("total=0 ", LIMIT);
    lag.signal("TERM");
    assert_eq!(lag.wait_exit(LIMIT).code, Some(0));
}

/// Seconds since the start, and `total=`, of each tick of `lag`.
fn totals(lines: &[crate::child::Line]) -> Vec<(f64, f64)> {
    let parsed = lines.iter().filter_map(|line| {
        let total = line.text.split_once("total=")?.1.split_whitespace().next()?.parse().ok()?;
        Some((line.time.as_secs_f64(), total))
    });
    parsed.collect()
}
