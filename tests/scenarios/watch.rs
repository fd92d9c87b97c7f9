//! What holds the work up, and whether somebody who asks is told: hot keys, SIGUSR1, gaps, metrics; and lanes by
//! another key than the record's.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use keylane_protocol::records::Header;
use serde_json::Value;

use crate::child::{Keylane, Stream};
use crate::cluster::{Cluster, LIMIT, wait_until};
use crate::ledger::{LEDGER, ledger};
use crate::produce::{Given, produce};

/// One key has nine records of ten among a thousand keys. It is named, and the others go on at full speed beside it.
#[test]
fn a_hot_key_is_named_and_holds_up_no_other() {
    let kafka = Cluster::alone();
    for (dispatch, format) in [("lanes", "text"), ("hash", "json")] {
        let topic = kafka.topic(6, &[]);
        kafka.seed(&topic, 600, 1000, &[]);
        kafka.seed(&topic, 5400, 1, &["--key-prefix", "hot-"]);
        let args = [
            "pool",
            "-t",
            &topic,
            "-g",
            &topic,
            "--work-delay",
            "10ms",
            "--print",
            LEDGER,
            "--dispatch",
            dispatch,
            "--format",
            format,
        ];
        let mut child = kafka.keylane(&args);
        child.wait_lines(Stream::Out, 1, LIMIT);
        let began = child.elapsed();
        let line = match format {
            "text" => child.wait_line("hot key \"hot-0\": ", LIMIT),
            _ => child.wait_line("\"type\":\"hot_key\"", LIMIT),
        };
        assert!(line.time - began < Duration::from_secs(5), "{line:?} {began:?}");
        if format == "json" {
            let line: Value = serde_json::from_str(&line.text).unwrap();
            assert_eq!((&line["key"], &line["topic"]), (&"hot-0".into(), &topic.as_str().into()));
            assert!(line["waiting"].as_u64() <= line["queued"].as_u64(), "{line}");
        } else {
            assert!(line.text.contains("% of ") && line.text.ends_with(" waiting"), "{line:?}");
        }
        // Eight workers manage 800 records a second; one of them has the hot key (and, by hash, its neighbours).
        let others = wait_until("the other keys", Duration::from_secs(30), || {
            let entries = ledger(&child);
            let others: Vec<_> = entries.into_iter().filter(|entry| entry.key != "hot-0").collect();
            (others.len() == 600 || dispatch == "hash").then_some(others)
        });
        if dispatch == "lanes" {
            let last = others.last().unwrap().time - began;
            assert!(last < Duration::from_secs(3), "600 records of other keys took {last:?}");
        }
    }
}

/// A record whose handler hangs is named to whoever asks, in text and in JSON.
#[test]
fn usr1_names_what_is_stuck() {
    let kafka = Cluster::any();
    let topic = kafka.topic(1, &[]);
    let records = [Given::of("first", b"1"), Given::of("a\"\n", b"2"), Given::of("first", b"3")];
    produce(kafka.brokers(), &topic, 0, &records);
    for format in ["text", "json"] {
        let group = format!("{topic}-{format}");
        let args = [
            "pool",
            "-t",
            &topic,
            "-g",
            &group,
            "--work-delay",
            "60s",
            "--format",
            format,
            "--stats",
            "200ms",
        ];
        let child = kafka.keylane(&args);
        child.wait_line(
            if format == "text" { "inflight=2 queued=1" } else { "\"inflight\":2,\"queued\":1" },
            LIMIT,
        );
        child.signal("USR1");
        if format == "text" {
            child.wait_line("status: inflight=2 waiting=0 lanes=2 ready=0 queued=1 pending=0 held=", LIMIT);
            let line = child.wait_line(&format!("running {topic}/0@0 key \"first\": worker "), LIMIT);
            assert!(line.text.contains(" is at try 1 for "), "{line:?}");
            child.wait_line(&format!("running {topic}/0@1 key \"a\\\"\\n\": worker "), LIMIT);
            child.wait_line(&format!("lane {topic}/0 key \"first\": 1 waiting"), LIMIT);
            let line = child.wait_line(&format!("partition {topic}/0: next=0 oldest=0 for "), LIMIT);
            assert!(line.text.contains(" pending=0 queued=1 running=2 held="), "{line:?}");
        } else {
            let line = child.wait_line("\"type\":\"status\"", LIMIT);
            let status: Value = serde_json::from_str(&line.text).unwrap();
            // Two workers took them in the same moment, so either may be the older one.
            let running = status["running"].as_array().unwrap();
            let key_of = |offset: i64| {
                running.iter().find(|tried| tried["offset"] == offset).map(|tried| &tried["key"])
            };
            let age = |tried: &Value| tried["seconds"].as_f64().unwrap();
            assert!(running.len() == 2 && age(&running[0]) >= age(&running[1]), "{status}");
            assert_eq!(key_of(0).unwrap(), "first", "{status}");
            assert_eq!(key_of(1).unwrap(), "a\"\n", "{status}");
            assert_eq!(status["partitions"][0]["oldest"], 0, "{status}");
        }
        // Asked again, it answers again.
        let before = child.lines().len();
        child.signal("USR1");
        wait_until("a second answer", LIMIT, || {
            child.lines()[before..].iter().any(|line| line.text.contains("status")).then_some(())
        });
    }
}

/// A child that hangs is named with its process, and what waits for its next try beside it; the gap that it leaves is
/// warned of.
#[test]
fn a_stuck_child_is_named() {
    let kafka = Cluster::any();
    let topic = kafka.topic(1, &[]);
    let records = [Given::of("ill", b"fails"), Given::of("bad", b"hangs"), Given::of("good", b"done")];
    produce(kafka.brokers(), &topic, 0, &records);
    let script = "case $(cat) in hangs) sleep 15;; fails) exit 75;; esac";
    let args = [
        "pool",
        "-t",
        &topic,
        "-g",
        &topic,
        "--gap-age",
        "1s",
        "--retry-delay",
        "60s",
        "--retry-max-delay",
        "60s",
        "--shell",
        script,
    ];
    let child = kafka.keylane(&args);
    // The first one holds the partition up; the warning says what it waits for.
    let line = child.wait_line(&format!("{topic}/0@0 key \"ill\" has held up its partition for "), LIMIT);
    assert!(line.text.contains("1 records past it") && line.text.contains(": try 2 is due in "), "{line:?}");
    child.signal("USR1");
    child.wait_line("status: inflight=2 waiting=1 lanes=2 ready=0 queued=0 pending=1 held=", LIMIT);
    child.wait_line(&format!("waiting {topic}/0@0 key \"ill\": try 2 is due in "), LIMIT);
    let line = child.wait_line(&format!("running {topic}/0@1 key \"bad\": worker "), LIMIT);
    let pid = line.text.split("(pid ").nth(1).unwrap_or_else(|| panic!("{line:?}")).trim_end_matches(')');
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(String::from_utf8_lossy(&words).contains("sleep"), "{pid} is the child");
}

/// A child with several records: it is named with the oldest of them, and what it answers is counted.
#[test]
fn the_oldest_record_of_a_pipe_is_named() {
    let kafka = Cluster::any();
    let topic = kafka.topic(1, &[]);
    let records = [("a", "v"), ("b", "hangs"), ("c", "v"), ("d", "hangs")];
    let records = records.map(|(key, value)| Given::of(key, value.as_bytes()));
    produce(kafka.brokers(), &topic, 0, &records);
    let script = r#"while IFS= read -r line; do
        case $line in *hangs*) ;; *) id=${line#*'"id":"'}; echo "${id%%\"*} ok";; esac; done"#;
    let args = [
        "pool",
        "-t",
        &topic,
        "-g",
        &topic,
        "-w",
        "1",
        "--gap-age",
        "1s",
        "--listen",
        "127.0.0.1:0",
        "--pipe",
        "--",
        "sh",
        "-c",
        script,
    ];
    let child = kafka.keylane(&args);
    let address = metrics_address(&child);
    let line = child.wait_line(&format!("{topic}/0@1 key \"b\" has held up its partition for "), LIMIT);
    assert!(line.text.contains("1 records past it") && line.text.contains(" is at try 1 for "), "{line:?}");
    child.signal("USR1");
    child.wait_line("status: inflight=2 waiting=0 lanes=2 ready=0 queued=0 pending=1 held=", LIMIT);
    let line = child.wait_line(&format!("running {topic}/0@1 key \"b\": worker 0 is at try 1 for "), LIMIT);
    let pid = line.text.split("(pid ").nth(1).unwrap_or_else(|| panic!("{line:?}"));
    let pid = pid.strip_suffix(", the oldest of 2 open there)").unwrap_or_else(|| panic!("{line:?}"));
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(String::from_utf8_lossy(&words).contains("hangs"), "{pid} is the child");
    let found = samples(&get(&address, "/metrics").1);
    assert_eq!(found["keylane_handler_seconds_count"], 2.0, "{found:?}");
}

/// Sleeps differ widely, so some record stays first for long while later ones finish: it is named while it runs.
#[test]
fn a_record_that_holds_up_its_partition_is_named() {
    let kafka = Cluster::any();
    let topic = kafka.topic(1, &[]);
    kafka.seed(&topic, 600, 200, &[]);
    let args = [
        "pool",
        "-t",
        &topic,
        "-g",
        &topic,
        "--work-delay",
        "0..5s",
        "--print",
        LEDGER,
        "--gap-age",
        "1s",
        "-w",
        "24",
    ];
    let mut child = kafka.keylane(&args);
    let line = child.wait_line(" has held up its partition for ", LIMIT);
    let place = line.text.split(&format!("{topic}/0@")).nth(1).unwrap_or_else(|| panic!("{line:?}"));
    let offset: i64 = place.split_whitespace().next().unwrap().parse().unwrap();
    assert!(
        line.text.starts_with("keylane: warning: ") && line.text.contains(" is at try 1 for "),
        "{line:?}"
    );
    assert!(line.text.contains(" records past it are finished and uncommitted: worker "), "{line:?}");
    let entries = ledger(&child);
    let finished_before = |entry: &&crate::ledger::Entry| entry.time + Duration::from_millis(300) < line.time;
    let finished: Vec<i64> = entries.iter().filter(finished_before).map(|entry| entry.offset).collect();
    assert!((0..offset).all(|before| finished.contains(&before)), "{line:?} {finished:?}");
    assert!(!finished.contains(&offset), "{line:?} {finished:?}");
    child.signal("TERM");
    assert_eq!(child.wait_exit(LIMIT).code, Some(0));
}

/// The samples of a page, by name and labels.
pub fn samples(page: &str) -> BTreeMap<String, f64> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let parsed = lines.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        (name.to_owned(), value.parse().unwrap_or_else(|error| panic!("{line}: {error}")))
    });
    parsed.collect()
}

pub fn get(address: &str, path: &str) -> (u32, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

pub fn metrics_address(child: &Keylane) -> String {
    let line = child.wait_line("metrics at http://", LIMIT).text;
    line.split("http://").nth(1).unwrap().trim_end_matches("/metrics").to_owned()
}

/// What a page counts is what the last line says.
#[test]
fn metrics_agree_with_the_last_line() {
    let kafka = Cluster::any();
    let topic = kafka.topic(2, &[]);
    kafka.seed(&topic, 500, 50, &[]);
    let args = [
        "pool",
        "-t",
        &topic,
        "-g",
        &topic,
        "--work-delay",
        "2ms",
        "--print",
        "%o\n",
        "--listen",
        "127.0.0.1:0",
    ];
    let mut child = kafka.keylane(&args);
    let address = metrics_address(&child);
    child.wait_lines(Stream::Out, 500, LIMIT);
    let done = "keylane_records_total{outcome=\"done\"}";
    let gap =
        |partition| format!("keylane_partition_commit_gap{{topic=\"{topic}\",partition=\"{partition}\"}}");
    let found = wait_until("a page with everything", LIMIT, || {
        let (status, page) = get(&address, "/metrics");
        assert_eq!(status, 200, "{page}");
        let found = samples(&page);
        let all =
            found[done] == 500.0 && found.get(&gap(0)) == Some(&0.0) && found.get(&gap(1)) == Some(&0.0);
        all.then_some(found)
    });
    assert_eq!(found["keylane_handler_seconds_count"], 500.0);
    assert_eq!(found["keylane_handler_seconds_bucket{le=\"+Inf\"}"], 500.0);
    assert!(
        found["keylane_handler_seconds_sum"] >= 1.0
            && found["keylane_handler_seconds_bucket{le=\"0.001\"}"] == 0.0
    );
    assert_eq!((found["keylane_partitions"], found["keylane_records_in_flight"]), (2.0, 0.0));
    assert!(found["keylane_fetched_bytes_total"] > 500.0 * 20.0);
    assert_eq!(get(&address, "/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(get(&address, "/").1, "/healthz\n/metrics\n");
    assert_eq!(get(&address, "/x").0, 404);

    // The address is taken: said before anything is joined.
    let mut second =
        kafka.keylane(&["pool", "-t", &topic, "-g", &topic, "--work-delay", "0", "--listen", &address]);
    let exit = second.wait_exit(LIMIT);
    assert_eq!(exit.code, Some(69), "{exit}");
    assert!(exit.stderr.contains(&format!("--listen {address}: ")), "{exit}");

    child.signal("TERM");
    let exit = child.wait_exit(LIMIT);
    assert_eq!(exit.code, Some(0), "{exit}");
    assert_eq!(exit.done("processed"), Some("500"), "{exit}");
    let stored = found["keylane_commits_total{result=\"stored\"}"].to_string();
    assert_eq!(exit.done("commits"), Some(stored.as_str()), "{exit}");
    assert_eq!(
        exit.done("rebalances"),
        Some(found["keylane_rebalances_total"].to_string().as_str()),
        "{exit}"
    );
}

/// `lag` serves the numbers of its lines.
#[test]
fn lag_serves_its_numbers() {
    let kafka = Cluster::any();
    let topic = kafka.topic(2, &[]);
    kafka.seed(&topic, 300, 50, &[]);
    let args = ["lag", "-g", &topic, "-t", &topic, "-i", "200ms", "--listen", "127.0.0.1:0"];
    let mut child = kafka.keylane(&args);
    let address = metrics_address(&child);
    let up = format!("keylane_group_up{{group=\"{topic}\"}}");
    let found =
        wait_until("a tick", LIMIT, || Some(samples(&get(&address, "/metrics").1)).filter(|f| !f.is_empty()));
    assert_eq!((found[&up], found.len()), (0.0, 1), "nobody has joined yet: {found:?}");
    assert_eq!(get(&address, "/healthz"), (200, "ok\n".to_owned()));

    let exit = kafka.run(&["pool", "-t", &topic, "-g", &topic, "-e", "--work-delay", "0"]);
    assert_eq!(exit.code, Some(0), "{exit}");
    let sum = |found: &BTreeMap<String, f64>, name: &str| -> f64 {
        let label = format!("{name}{{group=\"{topic}\",topic=\"{topic}\",partition=\"");
        (0..2)
            .map(|partition| found.get(&format!("{label}{partition}\"}}")).copied().unwrap_or(f64::NAN))
            .sum()
    };
    let found = wait_until("a tick after it", LIMIT, || {
        let found = samples(&get(&address, "/metrics").1);
        (sum(&found, "keylane_group_committed_offset") == 300.0).then_some(found)
    });
    assert_eq!((found[&up], sum(&found, "keylane_group_lag")), (1.0, 0.0), "{found:?}");
    assert_eq!(sum(&found, "keylane_group_log_end_offset"), 300.0, "{found:?}");
    assert_eq!(found[&format!("keylane_group_partitions_unknown{{group=\"{topic}\"}}")], 0.0, "{found:?}");
    let exit = kafka.keylane(&["lag", "-g", &topic, "--listen", &address]).wait_exit(LIMIT);
    assert_eq!(exit.code, Some(69), "{exit}");
    child.signal("TERM");
    assert_eq!(child.wait_exit(LIMIT).code, Some(0));
}

/// Without an assignment nobody is told that all is well.
#[test]
fn health_says_why_not() {
    let args =
        ["pool", "-b", "127.0.0.1:1", "-t", "t", "-g", "g", "--work-delay", "0", "--listen", "127.0.0.1:0"];
    let child = Keylane::run_bare(&args, &[]);
    let (status, why) = get(&metrics_address(&child), "/healthz");
    assert_eq!((status, why.as_str()), (503, "the group has given no assignment yet\n"));
}

/// Records of one lane key run one at a time in offset order, though their own keys differ; those without it do not
/// wait for each other.
#[test]
fn lanes_by_a_header_and_by_a_member_of_the_value() {
    let kafka = Cluster::any();
    let topic = kafka.topic(1, &[]);
    let customers: Vec<String> = (0..120).map(|n| format!("c{}", n % 4)).collect();
    let values: Vec<String> = customers
        .iter()
        .enumerate()
        .map(|(n, c)| format!("{{\"n\":{n},\"order\":{{\"customer\":\"{c}\"}}}}"))
        .collect();
    let own: Vec<String> = (0..120).map(|n| format!("k{n}")).collect();
    let headers: Vec<[Header<'_>; 2]> = customers
        .iter()
        .map(|c| [(&b"customer"[..], None), (&b"customer"[..], Some(c.as_bytes()))])
        .collect();
    let mut records: Vec<Given<'_>> = (0..120)
        .map(|n| Given {
            key: Some(own[n].as_bytes()),
            value: Some(values[n].as_bytes()),
            headers: &headers[n],
        })
        .collect();
    // Without the lane key, and with one and the same own key.
    records.extend((0..8).map(|_| Given::of("none", b"no JSON")));
    produce(kafka.brokers(), &topic, 0, &records);
    for lane_key in ["header:customer", "json:/order/customer"] {
        let group = format!("{topic}-{}", &lane_key[..4]);
        let args = [
            "pool",
            "-t",
            &topic,
            "-g",
            &group,
            "--work-delay",
            "10ms..30ms",
            "--print",
            LEDGER,
            "-w",
            "16",
            "-e",
            "--lane-key",
            lane_key,
        ];
        let mut child = kafka.keylane(&args);
        let exit = child.wait_exit(LIMIT);
        assert_eq!(exit.code, Some(0), "{exit}");
        let entries = ledger(&child);
        assert_eq!(entries.len(), 128);
        let mut last: HashMap<i64, i64> = HashMap::new();
        for entry in entries.iter().filter(|entry| entry.offset < 120) {
            let before = last.insert(entry.offset % 4, entry.offset);
            assert!(
                before < Some(entry.offset),
                "{lane_key}: after {before:?} of its customer came {entry:?}"
            );
        }
        // Four lanes of 30 records: at least as long as one of them, 30 × 10 ms. By their own keys 16 workers would
        // need half of that.
        let seconds: f64 = exit.done("seconds").unwrap().parse().unwrap();
        assert!(seconds > 0.3, "{lane_key}: {seconds} s");
    }
}
