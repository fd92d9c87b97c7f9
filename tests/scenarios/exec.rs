//! `--exec`: a process per record, what it is given, what its end means, and that nothing of it is left.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::child::{Exit, Keylane, Stream};
use crate::cluster::{Cluster, LIMIT, wait_until};
use crate::produce::{Given, produce};

/// `keylane pool -t TOPIC -g GROUP OPTIONS -- sh -c SCRIPT sh ARGUMENTS`, in whose script `$D` is a folder.
pub struct Stage<'k> {
    pub kafka: &'k Cluster,
    pub topic: String,
    pub folder: TempDir,
}

impl<'k> Stage<'k> {
    pub fn of(kafka: &'k Cluster, records: &[Given<'_>]) -> Self {
        let topic = kafka.topic(1, &["max.message.bytes=20000000"]);
        produce(kafka.brokers(), &topic, 0, records);
        Stage { kafka, topic, folder: tempfile::tempdir().unwrap() }
    }

    pub fn args<'a>(&'a self, group: &'a str, options: &[&'a str]) -> Vec<&'a str> {
        let mut args = vec!["pool", "-t", &self.topic, "-g", group];
        args.extend(options);
        args
    }

    pub fn script(&self, script: &str) -> String {
        format!("D={}; {script}", self.folder.path().display())
    }

    pub fn start(&self, group: &str, options: &[&str], script: &str, arguments: &[&str]) -> Keylane {
        let script = self.script(script);
        let mut args = self.args(group, options);
        args.extend(["--", "sh", "-c", &script, "sh"]);
        args.extend(arguments);
        self.kafka.keylane(&args)
    }

    /// Runs to the end of the topic.
    pub fn run(&self, group: &str, options: &[&str], script: &str, arguments: &[&str]) -> Exit {
        let options = [&["-e"], options].concat();
        self.start(group, &options, script, arguments).wait_exit(LIMIT)
    }

    pub fn group(&self, name: &str) -> String {
        format!("{}-{name}", self.topic)
    }

    pub fn file(&self, name: &str) -> Vec<u8> {
        fs::read(self.folder.path().join(name)).unwrap_or_default()
    }

    pub fn lines(&self, name: &str) -> Vec<String> {
        String::from_utf8(self.file(name)).unwrap().lines().map(str::to_owned).collect()
    }

    /// Of a group that may have committed nothing yet.
    pub fn committed(&self, group: &str) -> i64 {
        committed(self.kafka, group, &self.topic)
    }
}

/// The sum over all partitions of a topic; 0 of a group that has committed nothing.
pub fn committed(kafka: &Cluster, group: &str, topic: &str) -> i64 {
    let args = ["lag", "-g", group, "-t", topic, "--once", "--format", "json"];
    let exit = kafka.keylane(&args).wait_exit(LIMIT);
    let answers = exit.stdout.lines().filter_map(|line| serde_json::from_str(line).ok());
    let partitions = |answer: serde_json::Value| answer["partitions"].as_array().cloned();
    let partitions = answers.into_iter().find_map(partitions).unwrap_or_else(|| panic!("{exit}"));
    partitions.iter().filter_map(|partition| partition["current_offset"].as_i64()).sum()
}

fn three<'a>() -> [Given<'a>; 3] {
    [Given::of("a", b"1"), Given::of("b", b"2"), Given::of("a", b"3")]
}

pub fn is_alive(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Processes of a session, or children of a process: by field 6 or 4 of their `stat`, as in proc(5).
fn processes(field: usize, number: u32) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
        if after.split_whitespace().nth(field - 3) == Some(&number.to_string()) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found
}

#[test]
fn values_arrive_unchanged() {
    let kafka = Cluster::any();
    let large: Vec<u8> = (0..10u32 << 20).map(|n| (n.wrapping_mul(7) >> 3) as u8).collect();
    let names: Vec<String> = (0..1000).map(|n| format!("h{n}")).collect();
    let mut headers: Vec<(&[u8], Option<&[u8]>)> =
        names.iter().map(|name| (name.as_bytes(), Some(&b"some text"[..]))).collect();
    headers.extend([(&b"h0"[..], Some(&b"last \xff"[..])), (b"h1", None), (b"h2", Some(b"last"))]);
    let values: [Option<&[u8]>; 7] =
        [Some(b"plain"), Some(b"a\nb\n"), Some(b"\0\0"), Some(b"\xff\xfe"), Some(b""), None, Some(&large)];
    let records = values.map(|value| Given { key: Some(b"k"), value, headers: &headers });
    let stage = Stage::of(&kafka, &records);
    let script =
        "cat > $D/$KEYLANE_OFFSET; cat <&$KEYLANE_HEADERS_FD > $D/headers; env > $D/env.$KEYLANE_OFFSET";
    let exit = stage.run(&stage.group("g"), &["-w", "2"], script, &[]);
    assert_eq!(exit.code, Some(0), "{exit}");
    for (offset, value) in values.iter().enumerate() {
        assert!(stage.file(&offset.to_string()) == value.unwrap_or_default(), "value {offset}");
        let env = stage.lines(&format!("env.{offset}"));
        assert_eq!(env.contains(&"KEYLANE_VALUE_NULL=1".to_owned()), value.is_none());
        let count = env.iter().filter(|line| line.starts_with("KEYLANE_HEADER_")).count();
        // Neither bytes that are no text nor null.
        assert_eq!(count, 998);
        assert!(env.contains(&"KEYLANE_HEADER_H2=last".to_owned()));
        let group = format!("KEYLANE_GROUP={}", stage.group("g"));
        assert!(env.contains(&group) && env.contains(&"KEYLANE_KEY_B64=aw==".to_owned()));
    }
    let exact: Vec<(String, Option<String>)> = serde_json::from_slice(&stage.file("headers")).unwrap();
    assert_eq!(exact.len(), headers.len());
    assert_eq!(exact[0], ("aDA=".to_owned(), Some("c29tZSB0ZXh0".to_owned())));
    assert_eq!(exact[1000], ("aDA=".to_owned(), Some("bGFzdCD/".to_owned())));
    assert_eq!(exact[1001], ("aDE=".to_owned(), None));
}

#[test]
fn arguments_stay_whole() {
    let kafka = Cluster::any();
    let values: [&[u8]; 6] = [b"a  b", b"'q' \"d\" $HOME `x`", b"one\ntwo", b"-rf", b"*", b"{key} \xff"];
    let records = values.map(|value| Given::of("the key", value));
    let stage = Stage::of(&kafka, &records);
    let arguments = ["{}", "x{}x", "{key}.{topic}.{partition}.{offset}"];
    let script = "printf '%s\\0' \"$#\" \"$@\" >> $D/out";
    let exit = stage.run(&stage.group("g"), &[], script, &arguments);
    assert_eq!(exit.code, Some(0), "{exit}");
    let mut expected = Vec::new();
    for (offset, value) in values.iter().enumerate() {
        let place = format!("the key.{}.0.{offset}", stage.topic);
        let parts = [b"3", *value, &[b"x", *value, b"x"].concat(), place.as_bytes()];
        parts.iter().for_each(|part| expected.extend([*part, b"\0"].concat()));
    }
    assert!(stage.file("out") == expected, "{:?}", String::from_utf8_lossy(&stage.file("out")));

    let exit =
        stage.run(&stage.group("raw"), &["--no-replace", "-n", "1"], "printf %s \"$1\" > $D/raw", &["{}"]);
    assert_eq!((exit.code, stage.file("raw")), (Some(0), b"{}".to_vec()), "{exit}");
    // What no argument can hold is rejected.
    let nul = Stage::of(&kafka, &[Given::of("k", b"a\0b")]);
    let exit = nul.run(&nul.group("g"), &[], "exit 0", &["{}"]);
    assert_eq!(exit.code, Some(65), "{exit}");
    assert!(exit.stderr.contains("NUL"), "{exit}");
}

#[test]
fn exit_codes_mean_what_the_contract_says() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &three());
    let run = |name: &str, options: &[&str], script: &str| {
        let group = stage.group(name);
        let options = [&["--retry-delay", "1ms", "-w", "1"], options].concat();
        let exit = stage.run(&group, &options, script, &[]);
        (exit.code, stage.committed(&group), exit)
    };
    let (code, committed, exit) = run("done", &[], "exit 0");
    assert_eq!((code, committed, exit.done("processed")), (Some(0), 3, Some("3")), "{exit}");
    let (code, committed, exit) = run("reject", &[], "exit 65");
    assert_eq!((code, committed, exit.done("retried")), (Some(65), 0, Some("0")), "{exit}");
    let (code, committed, exit) = run("later", &["--retries", "0"], "[ $KEYLANE_ATTEMPT -gt 2 ] || exit 75");
    assert_eq!((code, committed, exit.done("retried")), (Some(0), 3, Some("6")), "{exit}");
    let (code, committed, exit) = run("signal", &["--retries", "1"], "kill -ABRT $$");
    assert_eq!((code, committed), (Some(65), 0), "{exit}");
    assert!(exit.stderr.contains("try 2 (signal 6)"), "{exit}");
    let (code, committed, exit) = run("skip", &["--on-fail", "skip"], "exit 65");
    assert_eq!((code, committed, exit.done("skipped")), (Some(1), 3, Some("3")), "{exit}");
    for code in [126, 127] {
        let (got, committed, exit) = run(&format!("x{code}"), &[], &format!("exit {code}"));
        assert_eq!((got, committed), (Some(code), 0), "{exit}");
    }
    for (program, code) in [("no-such-program", 127), ("/etc/passwd", 126), ("/etc", 126)] {
        let group = stage.group("none");
        let mut args = stage.args(&group, &["-e", "--", program]);
        args.push("{}");
        let exit = kafka.keylane(&args).wait_exit(LIMIT);
        assert_eq!(exit.code, Some(code), "{exit}");
        assert!(exit.stderr.contains(program), "{exit}");
    }
}

#[test]
fn a_poison_record_stops_before_it() {
    let kafka = Cluster::any();
    let keys: Vec<String> = (0..20).map(|n| format!("k{}", n % 5)).collect();
    let records: Vec<Given<'_>> =
        (0..20).map(|n| Given::of(&keys[n], if n == 8 { b"poison" } else { b"good" })).collect();
    let stage = Stage::of(&kafka, &records);
    let group = stage.group("g");
    let script = "read -r value; echo $KEYLANE_OFFSET >> $D/tries; [ \"$value\" != poison ]";
    for round in 1..=2 {
        let exit = stage.run(&group, &["-w", "3", "--retries", "2", "--retry-delay", "5ms"], script, &[]);
        assert_eq!(exit.code, Some(65), "{exit}");
        let place = format!("{}/0@8", stage.topic);
        assert!(exit.stderr.contains(&place) && exit.stderr.contains("try 3"), "{exit}");
        assert!(stage.committed(&group) <= 8, "{exit}");
        let tries = stage.lines("tries").iter().filter(|line| *line == "8").count();
        assert_eq!(tries, 3 * round, "a restart meets it again");
    }
    let exit = stage.run(&group, &["--on-fail", "skip", "--retries", "0"], script, &[]);
    assert_eq!((exit.code, exit.done("skipped")), (Some(1), Some("1")), "{exit}");
    let seen: BTreeSet<String> = stage.lines("tries").into_iter().collect();
    assert_eq!(seen.len(), 20);
}

#[test]
fn a_hanging_child_is_killed_with_its_group() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &three()[..1]);
    let script =
        "trap '' TERM; sleep 100 & echo $! >> $D/pids; echo $$ >> $D/pids; while :; do sleep 1; done";
    let exit = stage.run(&stage.group("g"), &["--timeout", "200ms", "--retries", "0"], script, &[]);
    assert_eq!(exit.code, Some(65), "{exit}");
    assert!(exit.stderr.contains("--timeout"), "{exit}");
    let pids = stage.lines("pids");
    assert_eq!(pids.len(), 2);
    assert!(!pids.iter().any(|pid| is_alive(pid)), "{pids:?}");
}

/// As a service manager stops a unit: TERM to every process of it.
#[test]
fn a_term_to_everything_is_no_failure() {
    let kafka = Cluster::any();
    let keys: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    let records: Vec<Given<'_>> = keys.iter().map(|key| Given::of(key, b"v")).collect();
    let stage = Stage::of(&kafka, &records);
    let group = stage.group("g");
    let script = stage.script("echo $KEYLANE_OFFSET >> $D/begun; sleep 3; echo $KEYLANE_OFFSET >> $D/done");
    let options = ["-b", kafka.brokers(), "-w", "4", "--on-fail", "skip", "--", "sh", "-c", &script];
    let mut command = Command::new("setsid");
    command.arg(env!("CARGO_BIN_EXE_keylane")).args(stage.args(&group, &options));
    let mut keylane = Keylane::run_command(command);
    wait_until("four children", LIMIT, || (stage.lines("begun").len() >= 4).then_some(()));
    let all = processes(6, keylane.id());
    assert!(all.len() >= 5, "keylane, and children in its session: {all:?}");
    // It complains of those that end by the end of another.
    Command::new("kill").arg("-TERM").args(&all).output().unwrap();
    let exit = keylane.wait_exit(LIMIT);
    assert_eq!((exit.code, exit.done("stop")), (Some(75), Some("signal")), "{exit}");
    assert_eq!((exit.done("retried"), exit.done("skipped")), (Some("0"), Some("0")), "{exit}");
    assert_eq!(stage.committed(&group), 0, "{exit}");
    // A child may end by the signal before keylane has its own, and its worker begin with the next record, which then
    // is finished in the drain.
    let number = |name: &str| exit.done(name).unwrap().parse::<usize>().unwrap();
    let (unfinished, processed) = (number("unfinished"), number("processed"));
    assert!((4..=8).contains(&unfinished) && processed <= 4, "{exit}");
    assert!(stage.lines("begun").len() <= unfinished + processed, "{exit}");
    assert_eq!(stage.lines("done").len(), processed, "{exit}");
}

/// Ctrl+C reaches keylane's own group, in which no child is.
#[test]
fn slow_children_finish_in_the_drain() {
    let kafka = Cluster::any();
    let keys: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    let records: Vec<Given<'_>> = keys.iter().map(|key| Given::of(key, b"v")).collect();
    let stage = Stage::of(&kafka, &records);
    let group = stage.group("g");
    let script = "echo $KEYLANE_OFFSET >> $D/begun; sleep 0.7; echo $KEYLANE_OFFSET >> $D/done";
    let mut keylane = stage.start(&group, &["-w", "4"], script, &[]);
    wait_until("four children", LIMIT, || (stage.lines("begun").len() >= 4).then_some(()));
    keylane.signal("INT");
    let exit = keylane.wait_exit(LIMIT);
    let done = stage.lines("done").len();
    assert_eq!((exit.code, exit.done("unfinished")), (Some(0), Some("0")), "{exit}");
    assert_eq!((stage.lines("begun").len(), stage.committed(&group)), (done, done as i64), "{exit}");
    assert!((4..40).contains(&done));
}

/// `keylane … | head -1`: what prints on ends, what is quiet is finished, nothing more is begun.
#[test]
fn a_closed_stdout_lets_the_other_children_finish() {
    let kafka = Cluster::any();
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    let given = |(n, key): (usize, &'_ String)| (key.clone(), if n == 3 { "prints" } else { "quiet" });
    let records: Vec<_> = keys.iter().enumerate().map(given).collect();
    let records: Vec<Given<'_>> =
        records.iter().map(|(key, value)| Given::of(key, value.as_bytes())).collect();
    let stage = Stage::of(&kafka, &records);
    let group = stage.group("g");
    let script = stage.script(
        r#"echo $KEYLANE_OFFSET >> $D/begun
        if [ $(cat) = prints ]; then
            while [ $(wc -l < $D/begun) -lt 4 ]; do sleep 0.05; done
            while echo line; do sleep 0.05; done
        fi
        while ! [ -e $D/go ]; do sleep 0.05; done; echo $KEYLANE_OFFSET >> $D/done"#,
    );
    let mut command = Command::new("sh");
    command.args(["-c", r#"{ "$@"; echo "exit $?" >&2; } | head -n 1"#, "sh"]);
    command.args([env!("CARGO_BIN_EXE_keylane"), "pool", "-b", kafka.brokers(), "-t", &stage.topic]);
    command.args(["-g", &group, "-w", "4", "--", "sh", "-c", &script]);
    let mut pipeline = Keylane::run_command(command);
    pipeline.wait_line("draining: 3 records", LIMIT);
    fs::write(stage.folder.path().join("go"), "").unwrap();
    let exit = pipeline.wait_exit(LIMIT);
    assert_eq!(exit.stdout_lines(), ["line"], "{exit}");
    assert!(exit.stderr.ends_with("exit 0"), "{exit}");
    assert_eq!((exit.done("processed"), exit.done("stop")), (Some("3"), Some("signal")), "{exit}");
    let sorted =
        |name| stage.lines(name).into_iter().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>();
    assert_eq!((sorted("begun").join(" "), sorted("done").join(" ")), ("0 1 2 3".into(), "0 1 2".into()));
    assert_eq!(stage.committed(&group), 3, "{exit}");
}

/// Only the lane of a record that is tried again waits, also where its next try is due at once.
#[test]
fn a_record_that_fails_for_ever_keeps_no_other_waiting() {
    let kafka = Cluster::any();
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    let records: Vec<Given<'_>> = keys.iter().map(|key| Given::of(key, b"v")).collect();
    let stage = Stage::of(&kafka, &records);
    let group = stage.group("g");
    let script = "[ $KEYLANE_OFFSET = 3 ] && exit 75; echo $KEYLANE_OFFSET >> $D/done";
    let options = ["-w", "1", "--retry-delay", "0", "--drain-timeout", "200ms"];
    let mut keylane = stage.start(&group, &options, script, &[]);
    wait_until("all others", LIMIT, || (stage.lines("done").len() == 19).then_some(()));
    keylane.signal("TERM");
    let exit = keylane.wait_exit(LIMIT);
    assert_eq!((exit.code, stage.committed(&group)), (Some(75), 3), "{exit}");
}

#[test]
fn a_second_signal_leaves_no_child() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &three());
    let group = stage.group("g");
    let script = "trap '' TERM INT; echo $$ >> $D/pids; sleep 100 & echo $! >> $D/pids; wait; sleep 100";
    let mut keylane = stage.start(&group, &["-w", "2"], script, &[]);
    wait_until("two children", LIMIT, || (stage.lines("pids").len() >= 4).then_some(()));
    keylane.signal("TERM");
    keylane.wait_line("draining", LIMIT);
    let began = Instant::now();
    keylane.signal("TERM");
    let exit = keylane.wait_exit(LIMIT);
    assert_eq!(exit.code, Some(143), "{exit}");
    assert!(began.elapsed() < Duration::from_secs(3), "{exit}");
    let pids = stage.lines("pids");
    // The last of them may still be on its way out.
    wait_until("all gone", Duration::from_secs(5), || (!pids.iter().any(|pid| is_alive(pid))).then_some(()));
    assert_eq!(stage.committed(&group), 0);
}

#[test]
fn nothing_is_left_of_many_children() {
    let kafka = Cluster::any();
    let topic = kafka.topic(3, &[]);
    kafka.seed(&topic, 2000, 50, &[]);
    let mut keylane =
        kafka.keylane(&["pool", "-t", &topic, "-g", &topic, "-w", "4", "--stats", "100ms", "--", "true"]);
    let descriptors =
        |id: u32| fs::read_dir(Path::new("/proc").join(id.to_string()).join("fd")).unwrap().count();
    keylane.wait_line("processed=", LIMIT);
    let first = descriptors(keylane.id());
    keylane.wait_line("processed=2000", 2 * LIMIT);
    wait_until("no child", LIMIT, || processes(4, keylane.id()).is_empty().then_some(()));
    // What leaks once a child would be thousands; connections come and go.
    let few = first + 8;
    wait_until("few descriptors", LIMIT, || (descriptors(keylane.id()) <= few).then_some(()));
    keylane.signal("TERM");
    let exit = keylane.wait_exit(LIMIT);
    assert_eq!((exit.code, exit.done("processed")), (Some(0), Some("2000")), "{exit}");
    kafka.assert_caught_up(&topic, &topic);
}

/// keylane as whoever ignores this signal starts it; its arguments follow.
fn ignoring(signal: &str) -> Command {
    let mut command = Command::new("sh");
    let script = format!("trap '' {signal}; exec \"$@\"");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_keylane")]);
    command
}

/// `nohup keylane … &`, and its terminal goes.
#[test]
fn an_ignored_hangup_stays_ignored() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &three());
    let script = stage.script("sleep 0.2; grep SigIgn /proc/self/status >> $D/ignored");
    let group = stage.group("g");
    let mut command = ignoring("HUP");
    command.args(stage.args(&group, &["-b", kafka.brokers(), "-w", "1", "-e", "--", "sh", "-c", &script]));
    let mut keylane = Keylane::run_command(command);
    wait_until("a child", LIMIT, || (!stage.lines("ignored").is_empty()).then_some(()));
    keylane.signal("HUP");
    let exit = keylane.wait_exit(LIMIT);
    assert_eq!(
        (exit.code, exit.done("stop"), exit.done("processed")),
        (Some(0), Some("end"), Some("3")),
        "{exit}"
    );
    let ignored = stage.lines("ignored");
    assert_eq!(ignored.len(), 3);
    for line in ignored {
        let mask = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
        assert_eq!(mask & 1, 1, "and its children ignore it: {line}");
    }
}

/// Whoever started keylane ignored SIGCHLD, and the kernel then reaps its children, whatever they ended with.
#[test]
fn where_sigchld_is_ignored_ends_are_still_known() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &three());
    let group = stage.group("g");
    let mut command = ignoring("CHLD");
    let script = "test $KEYLANE_OFFSET != 1 || exit 65; sleep 0.1";
    command.args(stage.args(&group, &["-b", kafka.brokers(), "-e", "--on-fail", "skip"]));
    command.args(["--", "sh", "-c", script]);
    let exit = Keylane::run_command(command).wait_exit(LIMIT);
    let done = (exit.code, exit.done("processed"), exit.done("skipped"));
    assert_eq!(done, (Some(1), Some("2"), Some("1")), "{exit}");
}

#[test]
fn lines_pass_whole_and_tagged() {
    let kafka = Cluster::any();
    let keys: Vec<String> = (0..60).map(|n| format!("k{n}")).collect();
    let records: Vec<Given<'_>> = keys.iter().map(|key| Given::of(key, b"v")).collect();
    let stage = Stage::of(&kafka, &records);
    let script = "for part in a b c; do printf $part; printf $part >&2; done; echo; echo >&2; echo d";
    let mut keylane = stage.start(&stage.group("g"), &["-e", "--tag", "-w", "8"], script, &[]);
    let exit = keylane.wait_exit(LIMIT);
    assert_eq!(exit.code, Some(0), "{exit}");
    let tagged = |text: &str| -> BTreeSet<String> {
        (0..60).map(|offset| format!("{}/0@{offset}\t{text}", stage.topic)).collect()
    };
    let lines: BTreeSet<String> =
        keylane.lines().into_iter().filter(|line| line.stream == Stream::Out).map(|line| line.text).collect();
    assert_eq!(lines, &tagged("abc") | &tagged("d"));
    let errors: BTreeSet<String> =
        exit.stderr.lines().filter(|line| line.contains('\t')).map(str::to_owned).collect();
    assert_eq!(errors, tagged("abc"));
    // A reader that goes away ends the run quietly.
    let mut command = Command::new("sh");
    command.args(["-c", "\"$@\" | head -n 1", "sh", env!("CARGO_BIN_EXE_keylane")]);
    let group = stage.group("head");
    command.args(stage.args(&group, &["-b", kafka.brokers(), "-q", "--", "sh", "-c", "echo x"]));
    let exit = Keylane::run_command(command).wait_exit(LIMIT);
    assert_eq!((exit.code, exit.stdout.as_str(), exit.stderr.as_str()), (Some(0), "x", ""), "{exit}");
}

#[test]
fn a_batch_has_one_outcome() {
    let kafka = Cluster::any();
    let keys: Vec<String> = (0..30).map(|n| format!("k{}", n % 3)).collect();
    let values: Vec<String> = (0..30).map(|n| format!("v{n}")).collect();
    let records: Vec<Given<'_>> =
        keys.iter().zip(&values).map(|(key, value)| Given::of(key, value.as_bytes())).collect();
    let stage = Stage::of(&kafka, &records);
    let script = "echo $KEYLANE_BATCH >> $D/sizes; tee $D/last.$KEYLANE_OFFSET | wc -l >> $D/counts";
    let exit = stage.run(&stage.group("any"), &["--batch", "8", "-w", "1"], script, &[]);
    assert_eq!((exit.code, exit.done("processed")), (Some(0), Some("30")), "{exit}");
    let sizes: Vec<u64> = stage.lines("sizes").iter().map(|size| size.parse().unwrap()).collect();
    assert_eq!(sizes, stage.lines("counts").iter().map(|n| n.trim().parse().unwrap()).collect::<Vec<u64>>());
    assert_eq!((sizes.iter().sum::<u64>(), sizes.len(), sizes[0]), (30, 4, 8), "{sizes:?}");
    let line: serde_json::Value = serde_json::from_str(&stage.lines("last.0")[0]).unwrap();
    assert_eq!((line["offset"].as_i64(), line["value"].as_str()), (Some(0), Some("v0")));

    // One key in each, and what comes within the wait goes along.
    let script = "cat > $D/by.$KEYLANE_KEY.$KEYLANE_OFFSET; [ $KEYLANE_KEY != k1 ] || exit 65";
    let options = ["--batch", "100", "--batch-by", "key", "--batch-wait", "300ms", "--on-fail", "skip"];
    let mut keylane = stage.start(&stage.group("key"), &[&["-n", "33"], &options[..]].concat(), script, &[]);
    keylane.wait_line("assigned", LIMIT);
    std::thread::sleep(Duration::from_millis(50));
    produce(kafka.brokers(), &stage.topic, 0, &three().map(|more| Given { key: Some(b"k2"), ..more }));
    let exit = keylane.wait_exit(LIMIT);
    let done = (exit.code, exit.done("processed"), exit.done("skipped"));
    assert_eq!(done, (Some(1), Some("23"), Some("10")), "{exit}");
    let offsets = |name: &str| -> Vec<i64> {
        let lines = stage.lines(name);
        let values = lines.iter().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        values.map(|value| value["offset"].as_i64().unwrap()).collect()
    };
    let every_third = |from: i64| (0..10).map(|n| from + 3 * n).collect::<Vec<i64>>();
    assert_eq!(offsets("by.k0.0"), every_third(0));
    assert_eq!(offsets("by.k1.1"), every_third(1));
    assert_eq!([offsets("by.k2.2"), offsets("by.k2.30")].concat().len(), 13);
}

/// What waits in a worker's own queue, or in the one partition, fills a batch as well.
#[test]
fn a_batch_is_filled_by_every_dispatch() {
    let kafka = Cluster::any();
    let records: Vec<Given<'_>> = (0..3).map(|_| Given::of("k", b"v")).collect();
    let stage = Stage::of(&kafka, &records);
    for (name, options) in [
        ("hash", &["--dispatch", "hash", "-w", "2"][..]),
        ("partition", &["--order", "partition", "-w", "2"]),
    ] {
        let options = [options, &["--batch", "6", "--batch-wait", "20s", "-n", "6"]].concat();
        let group = stage.group(name);
        let mut keylane = stage.start(&group, &options, "wc -l >> $D/$KEYLANE_GROUP", &[]);
        keylane.wait_line("assigned", LIMIT);
        std::thread::sleep(Duration::from_millis(300));
        produce(kafka.brokers(), &stage.topic, 0, &records);
        let exit = keylane.wait_exit(LIMIT);
        assert_eq!((exit.code, exit.done("processed")), (Some(0), Some("6")), "{exit}");
        assert_eq!(stage.lines(&group), ["6"], "{exit}");
    }
}

/// The coordinator removes the member while a batch waits to be filled: its records are the next assignment's.
#[test]
fn a_batch_whose_partition_is_lost_is_not_begun() {
    let fault = "heartbeat:error=UNKNOWN_MEMBER_ID,nth=2,times=1,client=lost";
    let kafka = Cluster::dev(&["--fault", fault]);
    let stage = Stage::of(&kafka, &three());
    let options = ["-X", "client.id=lost", "-X", "heartbeat.interval.ms=300", "-n", "3", "-w", "2"];
    let options = [&options[..], &["--batch", "9", "--batch-wait", "3s"]].concat();
    let exit = stage.start(&stage.group("g"), &options, "wc -l >> $D/sizes", &[]).wait_exit(LIMIT);
    assert!(exit.stderr.contains("lost "), "{exit}");
    assert_eq!((exit.code, exit.done("processed")), (Some(0), Some("3")), "{exit}");
    assert_eq!(stage.lines("sizes"), ["3"], "{exit}");
}
