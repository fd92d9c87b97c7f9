//! Usage errors and answers, from outside: every wrong command line ends with 64, an empty stdout, and a line on
//! stderr that says what is wrong and what would be right.

use std::io::Write;
use std::process::{Command, Output};

/// Runs keylane with these words and these variables alone.
fn keylane(words: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_keylane"))
        .args(words)
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .expect("keylane starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("keylane writes UTF-8")
}

/// A line split at spaces must be refused, and stderr must hold each of `parts`.
#[track_caller]
fn refused_with(variables: &[(&str, &str)], line: &str, parts: &[&str]) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = keylane(&words, variables);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{line}: {stderr}");
    assert!(output.stdout.is_empty(), "{line}");
    assert!(stderr.starts_with("keylane: error: ") && stderr.ends_with('\n'), "{line}: {stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{line}: '{part}' is not in: {stderr}");
    }
}

#[track_caller]
fn refused(line: &str, parts: &[&str]) {
    refused_with(&[], line, parts);
}

/// The line is taken: it does not end with 64. A port that nobody listens on keeps the run short.
#[track_caller]
fn taken(variables: &[(&str, &str)], line: &str) -> String {
    let words: Vec<&str> =
        line.split_whitespace().chain(["-b", "127.0.0.1:1", "--request-timeout", "600ms"]).collect();
    let output = keylane(&words, variables);
    let stderr = text(&output.stderr);
    assert_ne!(output.status.code(), Some(64), "{line}: {stderr}");
    stderr
}

#[test]
fn help_and_version_go_to_stdout_with_zero() {
    for line in ["--help", "-h", "--version", "-V", "help", "help pool", "pool --help", "topic create --help"]
    {
        let output = keylane(&line.split(' ').collect::<Vec<_>>(), &[]);
        assert_eq!(output.status.code(), Some(0), "{line}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{line}");
    }
    let help = text(&keylane(&["--help"], &[]).stdout);
    assert!(help.lines().count() <= 14, "{help}");
    let pool = text(&keylane(&["pool", "--help"], &[]).stdout);
    for part in ["[env: WORKERS] [default: 8]", "[env: COMMIT_INTERVAL] [default: 500ms]", "[default: 25s]"] {
        assert!(pool.contains(part), "{part}: {pool}");
    }
}

#[test]
fn the_list_of_properties_needs_nothing_else() {
    for line in ["-X list", "pool -X list", "topic create -X list", "seed -Xlist"] {
        let output = keylane(&line.split(' ').collect::<Vec<_>>(), &[]);
        assert_eq!(output.status.code(), Some(0), "{line}");
        assert!(text(&output.stdout).contains("session.timeout.ms = 45000\n"), "{line}");
    }
}

#[test]
fn unknown_words() {
    refused("", &["a command is missing", "Usage: keylane COMMAND"]);
    refused("topic", &["a command is missing", "create"]);
    refused("pol", &["'pol'", "'pool'"]);
    refused("pool --workres 4", &["'--workres'", "'--workers'"]);
    refused("pool extra", &["'extra'"]);
    refused("-b a:1 pool", &["'-b'", "Options go after the command"]);
    refused("pool --workers", &["--workers <N>"]);
    refused("pool -w 4 -w 5", &["--workers", "multiple times"]);
    refused("pool -v -q", &["--verbose", "--quiet"]);
    refused("topic create", &["<NAME>"]);
    refused("topic delete", &["<NAME>"]);
    refused("group reset g", &["--topic", "--to"]);
}

#[test]
fn go_style_options() {
    refused("pool -group=x", &["did you mean --group=x?"]);
    refused("seed -messages=5 -t a", &["did you mean --messages=5?"]);
    refused("lag -bootstrap-server=a:1", &["did you mean --bootstrap-server=a:1?"]);
    refused("pool -workers 8", &["Did you mean --workers?"]);
}

#[test]
fn commands_come_last_and_alone() {
    refused("pool --", &["-- has no command", "-- CMD ARG..."]);
    refused("pool --exec", &["--exec has no command"]);
    refused("sequential --print %s -- sh -c true", &["choose one handler"]);
    refused("pool --shell true -- cat", &["choose one handler"]);
    refused("pool --tag --work-delay 0", &["--tag is for a command"]);
    refused("pool --dlq dead --on-fail skip -- cat", &["--dlq", "--on-fail"]);
    refused("pool --on-fail dlq -- cat", &["--dlq TOPIC"]);
    refused("pool --halt soon -- cat", &["never, now,fail=N, soon,fail=N"]);
    refused("pool --retries=-1 -- cat", &["from 0 to 1000000, or inf"]);
    refused("pool --reject-exit 0 -- cat", &["from 1 to 255"]);
    refused("verify", &["<JOBLOG>"]);
    refused("verify j.log -g g", &["-t TOPIC"]);
    refused("dlq list", &["--topic"]);
    let output = keylane(&["pool", "--exec", "true", "--tag", "-b", "127.0.0.1:1"], &[]);
    assert_eq!(output.status.code(), Some(69), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("--tag stands after --exec"), "{}", text(&output.stderr));
    for (command, code) in [("keylane-no-such-command", 127), ("/etc/passwd", 126)] {
        let output = keylane(&["pool", "--", command], &[]);
        assert_eq!(output.status.code(), Some(code), "{command}: {}", text(&output.stderr));
    }
}

#[test]
fn values_say_what_would_be_right() {
    refused("pool -w 0", &["'0'", "--workers <N>", "from 1 to 10000"]);
    refused("pool -w 99999", &["from 1 to 10000"]);
    refused("pool --work-delay 10", &["'10' has no unit: write 10ms, 10s or 10m"]);
    refused("pool --work-delay 20ms..1ms", &["write 1ms..20ms"]);
    refused("pool --max-memory 64MB", &["64KiB, 32MiB"]);
    refused("pool --max-memory 0", &["1 byte or more"]);
    refused("pool --dispatch key", &["lanes, hash, partition-hash"]);
    refused("pool --from beginning", &["earliest, latest or @MS"]);
    refused("pool --print %q", &["'%q'", "%t %p %o"]);
    refused("pool --assignor range,uniform", &["one of cooperative-sticky, sticky, range, roundrobin"]);
    refused("pool -n 0", &["from 1 to"]);
    refused("pool -b a:b", &["HOST:PORT"]);
    refused("pool -b ::1:9092", &["[::1]:PORT"]);
    refused("seed -t a/b -n 1", &["not a topic name"]);
    refused("seed -z brotli", &["none, lz4, gzip, snappy, zstd"]);
    refused("seed --acks 2", &["all, 1, 0"]);
    refused("seed --skew nan", &["a number from 0 to 10"]);
    refused("lag -i 0", &["1ms or more"]);
    refused("lag --format xml", &["text, json"]);
    refused("group reset g -t a --to tomorrow", &["earliest, latest, an offset, @MS or -1h"]);
    refused("group reset g -t a:x --to latest", &["TOPIC:0,1"]);
    refused("topic create a -c retention", &["NAME=VALUE"]);
}

#[test]
fn contradictions() {
    refused("pool --dispatch hash --order none", &["--dispatch", "--order"]);
    refused("pool --dispatch partition-hash --order partition", &["--dispatch", "--order"]);
    refused("pool --order none --null-key lane", &["--order none", "--null-key lane"]);
    refused("lag --all -g x", &["--all", "--group"]);
    refused("pool --revoke-timeout 60s", &["--revoke-timeout 60000ms", "max.poll.interval.ms=60000"]);
    refused(
        "pool -X heartbeat.interval.ms=45000",
        &["heartbeat.interval.ms=45000", "session.timeout.ms=45000"],
    );
    refused(
        "pool --request-timeout 1s -X fetch.max.wait.ms=1000",
        &["fetch.max.wait.ms=1000", "--request-timeout 1000ms"],
    );
    let stderr = taken(&[], "pool -X max.poll.interval.ms=3000");
    assert!(stderr.contains("--revoke-timeout is 1500 ms rather than 10000 ms"), "{stderr}");
    refused("pool -g a -X group.id=b", &["--group", "-X group.id", "give one of them"]);
    refused("sequential -t a -t b -g g --work-delay 0", &["one topic", "pool"]);
    refused("seed --linger 31s", &["--linger", "--delivery-timeout"]);
    refused("group reset g -t a -t a:1 --to latest", &["given twice"]);
}

#[test]
fn lecture_defaults_hold_for_its_topic_alone() {
    refused("pool -t orders", &["a group and a handler", "-g GROUP", "-- CMD", "--print FORMAT"]);
    refused("pool -t orders -g g", &["needs a handler"]);
    refused("sequential -t orders --print %s", &["needs a group"]);
    refused("pool -t lecture-03-05-events -t orders", &["topic orders needs"]);
    refused_with(
        &[("WORK_DELAY", "1ms")],
        "pool -t orders -g g",
        &["needs a handler", "WORK_DELAY included"],
    );
    refused("seed -t orders", &["-n N", "lecture-03-05-events"]);
    for line in
        ["pool", "sequential", "seed", "lag --once", "pool -t orders -g g --work-delay 1ms..2ms --print json"]
    {
        taken(&[], line);
    }
    taken(&[("SEED_MESSAGES", "5")], "seed -t orders");
    taken(&[("KAFKA_GROUP_ID", "g")], "pool -t orders --work-delay 0");
}

#[test]
fn the_environment_is_checked_and_printed() {
    refused_with(&[("WORKERS", "abc")], "pool", &["WORKERS=abc", "environment", "from 1 to 10000"]);
    refused_with(&[("WORKERS", "0")], "pool", &["WORKERS=0"]);
    refused_with(&[("COMMIT_INTERVAL", "5")], "pool", &["COMMIT_INTERVAL=5", "write 5ms, 5s or 5m"]);
    refused_with(&[("WORK_DELAY", "soon")], "sequential", &["WORK_DELAY=soon", "10ms"]);
    refused_with(&[("SEED_KEYS", "-1")], "seed", &["SEED_KEYS=-1"]);
    refused_with(&[("KAFKA_BROKERS", "a:b")], "lag", &["KAFKA_BROKERS=a:b", "HOST:PORT"]);
    refused_with(&[("KAFKA_SESSION_TIMEOUT_MS", "45s")], "pool", &["KAFKA_SESSION_TIMEOUT_MS", "'45s'"]);
    let stderr = taken(&[("WORKERS", "4"), ("COMMIT_INTERVAL", ""), ("KAFKA_HOME", "/k")], "pool");
    assert!(stderr.contains("from the environment: WORKERS=4\n"), "{stderr}");
    assert_eq!(stderr.matches("from the environment").count(), 1, "{stderr}");
    let stderr = taken(&[("WORKERS", "abc")], "pool -w 2");
    assert!(!stderr.contains("from the environment"), "{stderr}");
    assert!(stderr.contains("max-memory: "), "{stderr}");
    taken(&[("WORKERS", "abc")], "seed");
}

#[test]
fn properties() {
    refused("pool -X group.id", &["-X NAME=VALUE"]);
    refused("pool -X sesion.timeout.ms=1", &["unknown property", "session.timeout.ms"]);
    refused("pool -X frobnicate=1", &["unknown property", "-X list"]);
    refused("pool -X group.protocol=consumer", &["group.protocol=consumer", "write classic"]);
    refused("pool -X security.protocol=SASL_SSL", &["no TLS and no SASL yet"]);
    refused("pool -X session.timeout.ms=soon", &["-X session.timeout.ms", "'soon'"]);
    refused("pool -X client.id=@/no/such/file", &["-X client.id", "cannot read /no/such/file"]);
    let stderr = taken(&[], "pool -X batch.size=5 -X auto.offset.reset=latest");
    assert!(stderr.contains("warning: -X batch.size: not used; give --batch-bytes"), "{stderr}");
    assert!(stderr.contains("--from latest"), "{stderr}");
    let stderr = taken(&[("KAFKA_SASL_PASSWORD", "hush")], "pool -X sasl.password=hush");
    assert!(
        stderr.contains("-X sasl.password: not used; this version has no TLS and no SASL yet"),
        "{stderr}"
    );
    assert!(!stderr.contains("hush"), "{stderr}");
}

#[test]
fn configuration_files() {
    let folder = tempfile::tempdir().expect("a folder for files");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::File::create(&path).and_then(|mut file| file.write_all(text.as_bytes())).expect("a file");
        path.to_str().expect("a plain path").to_owned()
    };
    let good = write("client.properties", "# mine\ngroup.id = from-\\\n  file\nsession.timeout.ms: 6000\n");
    taken(&[], &format!("pool -t orders --work-delay 0 -F {good}"));
    let stderr = taken(&[("KEYLANE_CONFIG", &good)], "pool -t orders --work-delay 0");
    assert!(stderr.contains("from the environment: KEYLANE_CONFIG="), "{stderr}");
    // The environment stands above the file, the command line above both.
    let heartbeat = format!("pool -t orders --work-delay 0 -F {good} -X heartbeat.interval.ms=6000");
    refused(&heartbeat, &["session.timeout.ms=6000"]);
    taken(&[("KAFKA_SESSION_TIMEOUT_MS", "7000")], &heartbeat);
    refused_with(
        &[("KAFKA_SESSION_TIMEOUT_MS", "7000")],
        &format!("{heartbeat} -X session.timeout.ms=5000"),
        &["session.timeout.ms=5000"],
    );
    let typo = write("typo.properties", "\nboostrap.servers=a:1\n");
    refused(&format!("lag -F {typo}"), &["typo.properties line 2", "bootstrap.servers"]);
    let wrong = write("wrong.properties", "heartbeat.interval.ms=fast\n");
    refused(&format!("pool -F {wrong}"), &["wrong.properties line 1: heartbeat.interval.ms", "'fast'"]);
    let kcat = write("kcat.conf", "metadata.broker.list\n");
    refused(&format!("lag -F {kcat}"), &["kcat.conf line 1", "NAME=VALUE"]);
    refused("lag -F /no/such/file", &["--config", "/no/such/file"]);
}

#[test]
fn errors_as_json() {
    for line in ["pool --format json -w x", "pool --format=json -t orders", "pool --format json -group=x"] {
        let output = keylane(&line.split(' ').collect::<Vec<_>>(), &[]);
        assert_eq!(output.status.code(), Some(64), "{line}");
        let stderr = text(&output.stderr);
        let value: serde_json::Value = serde_json::from_str(&stderr).expect("one object");
        assert_eq!(value["type"], "error", "{line}");
        assert!(value["message"].is_string() && value["time"].is_string(), "{line}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{line}");
    }
}
