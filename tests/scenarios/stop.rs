//! The first signal: what was handled is committed, and a restart repeats nothing.

use std::process::Command;
use std::time::Duration;

use crate::child::{Keylane, Stream};
use crate::cluster::{Cluster, LIMIT, size, wait_until};
use crate::ledger::{History, LEDGER, assert_ordered, ledger};

/// SIGTERM in mid-run, again and again, over the roles and ways to dispatch.
#[test]
fn a_stopped_run_has_committed_what_it_finished() {
    let kafka = Cluster::any();
    let rounds = size(6, 20).max(5);
    let topic = kafka.topic(6, &[]);
    let records = rounds * 900 + 3000;
    kafka.seed(&topic, records, 32, &[]);
    let mut history = History::default();
    for round in 0..rounds {
        let role: &[&str] = match round % 5 {
            0 => &["pool", "--work-delay", "10ms"],
            1 => &["pool", "--work-delay", "0..20ms", "-w", "16"],
            2 => &["pool", "--work-delay", "5ms..10ms", "--dispatch", "hash"],
            3 => &["sequential", "--work-delay", "1ms"],
            _ => &["pool", "--work-delay", "0..3ms", "--order", "partition"],
        };
        let mut args = role.to_vec();
        args.extend(["-t", &topic, "-g", &topic, "--print", LEDGER]);
        let mut child = kafka.keylane(&args);
        child.wait_lines(Stream::Out, 50 + round * 137 % 500, LIMIT);
        child.signal("TERM");
        let exit = child.wait_exit(Duration::from_secs(10));
        assert_eq!(exit.code, Some(0), "round {round}: {}", exit.stderr);
        let entries = ledger(&child);
        assert_ordered(&entries);
        history.add(&entries);
        assert_eq!(exit.done("processed"), Some(entries.len().to_string().as_str()), "{}", exit.stderr);
        assert_eq!(
            (exit.done("unfinished"), exit.done("stop")),
            (Some("0"), Some("signal")),
            "{}",
            exit.stderr
        );
        assert_eq!(history.repeats, [], "round {round} repeats: {}", exit.stderr);
        let committed = kafka.committed(&topic, &topic);
        history.assert_covers(&committed);
        for (partition, next) in committed {
            assert_eq!(
                history.count_from(partition, next),
                0,
                "round {round}: finished in {partition}, not committed"
            );
        }
    }
    let mut rest =
        kafka.keylane(&["pool", "-t", &topic, "-g", &topic, "--work-delay", "0", "--print", LEDGER, "-e"]);
    assert_eq!(rest.wait_exit(LIMIT).code, Some(0));
    history.add(&ledger(&rest));
    assert_eq!(history.repeats, []);
    history.assert_complete(&kafka.ends(&topic, &topic));
    assert_eq!(history.count(), records);
    kafka.assert_caught_up(&topic, &topic);
}

/// One key has nine records of ten, others have run far ahead of it, and the drain cannot catch up within its limit.
#[test]
fn a_drain_over_its_limit_says_what_comes_again() {
    let kafka = Cluster::any();
    let topic = kafka.topic(1, &[]);
    kafka.seed(&topic, 3000, 32, &["--skew", "4"]);
    let args = [
        "pool",
        "-t",
        &topic,
        "-g",
        &topic,
        "--work-delay",
        "100ms",
        "--print",
        LEDGER,
        "--drain-timeout",
        "4s",
    ];
    let mut child = kafka.keylane(&args);
    child.wait_lines(Stream::Out, 60, LIMIT);
    child.signal("INT");
    let exit = child.wait_exit(Duration::from_secs(15));
    assert_eq!(exit.code, Some(75), "{}", exit.stderr);
    let left = countdown(&exit.stderr);
    assert!(left.len() >= 2, "lines that count down: {}", exit.stderr);
    assert!(left.windows(2).all(|pair| pair[1].0 <= pair[0].0 && pair[1].1 <= pair[0].1), "{left:?}");

    let entries = ledger(&child);
    assert_ordered(&entries);
    let mut history = History::default();
    history.add(&entries);
    let committed = kafka.committed(&topic, &topic);
    history.assert_covers(&committed);
    assert_eq!(committed[&0], history.prefix(0), "the last commit holds all that it may");
    // A restart repeats just what was finished past the prefix.
    let ahead = history.count_from(0, committed[&0]);
    let mut rest =
        kafka.keylane(&["pool", "-t", &topic, "-g", &topic, "--work-delay", "0", "--print", LEDGER, "-e"]);
    assert_eq!(rest.wait_exit(LIMIT).code, Some(0));
    history.add(&ledger(&rest));
    assert_eq!(history.repeats.len(), ahead);
    history.assert_complete(&kafka.ends(&topic, &topic));
    assert_eq!(said_again(&exit.stderr), Some(ahead), "{}", exit.stderr);
}

/// Records and seconds of the lines `draining: R records in P partitions, 22s left; …`.
fn countdown(stderr: &str) -> Vec<(u64, u64)> {
    let lines = stderr.lines().filter_map(|line| line.split_once("draining: "));
    let parts = lines.map(|(_, text)| {
        let numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
        let numbers: Vec<u64> = numbers.collect();
        (numbers[0], numbers[2])
    });
    parts.collect()
}

/// The finished records that the line about unfinished ones announces once more.
fn said_again(stderr: &str) -> Option<usize> {
    let line = stderr.lines().find(|line| line.contains("both come again"))?;
    let finished = line.split_once("unfinished and ")?.1;
    finished.split_whitespace().next()?.parse().ok()
}

/// A log collector that hangs: progress is left out, and heartbeats, commits and signals go on.
#[test]
fn a_stderr_that_nobody_reads_stops_nothing() {
    let kafka = Cluster::any();
    let topic = kafka.topic(1, &[]);
    kafka.seed(&topic, 20, 5, &[]);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (pid, code) = (file("pid"), file("code"));
    let script = format!("{{ \"$@\" & echo $! > {pid}; wait $!; echo $? > {code}; }} 2>&1 | sleep 40");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_keylane")]);
    command.args(["pool", "-b", kafka.brokers(), "-t", &topic, "-g", &topic, "--work-delay", "0"]);
    // A pipe's 64 KiB in some 3 s.
    command.args(["--stats", "10ms", "--format", "json"]);
    let shell = Keylane::run_command(command);
    std::thread::sleep(Duration::from_secs(8));
    kafka.assert_caught_up(&topic, &topic);
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let killed = Command::new("kill").args(["-TERM", &read(&pid)]).status().unwrap();
    assert!(killed.success());
    wait_until("its end", Duration::from_secs(8), || (read(&code) == "0").then_some(()));
    shell.signal("TERM");
}
