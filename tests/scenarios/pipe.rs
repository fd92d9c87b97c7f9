//! `--pipe`: a long-lived child per worker, what it is given, what its answers and its end mean.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::child::{Exit, Keylane};
use crate::cluster::{Cluster, LIMIT, have, repository, wait_until};
use crate::produce::{Given, produce};

/// What a shell needs to read a record: `$id`, `$key`, `$offset`, `$value`, of records that need no JSON parser.
const READ: &str = r#"
field() { rest=${line#*"\"$1\":"}; rest=${rest#\"}; rest=${rest%%\"*}; echo "${rest%%,*}"; }
next() {
    IFS= read -r line || return 1
    id=$(field id) key=$(field key) offset=$(field offset) value=$(field value)
}
done_with() { echo "$key $offset" >> "$D/done"; echo "$id ok"; }
"#;

struct Stage<'k> {
    kafka: &'k Cluster,
    topic: String,
    folder: TempDir,
}

impl<'k> Stage<'k> {
    fn of(kafka: &'k Cluster, records: &[Given<'_>]) -> Self {
        let topic = kafka.topic(1, &["max.message.bytes=20000000"]);
        produce(kafka.brokers(), &topic, 0, records);
        Stage { kafka, topic, folder: tempfile::tempdir().unwrap() }
    }

    /// `keylane pool … OPTIONS --pipe -- WORDS`.
    fn start(&self, options: &[&str], words: &[&str]) -> Keylane {
        let mut args = vec!["pool", "-t", &self.topic, "-g", &self.topic];
        args.extend(options);
        args.extend(["--pipe", "--"]);
        args.extend(words);
        self.kafka.keylane(&args)
    }

    fn start_script(&self, options: &[&str], script: &str) -> Keylane {
        let script = format!("D={}; {READ} {script}", self.folder.path().display());
        self.start(options, &["sh", "-c", &script])
    }

    /// Runs a shell script on one worker to the end of the topic.
    fn run(&self, options: &[&str], script: &str) -> Exit {
        self.start_script(&[&["-e", "-w", "1"], options].concat(), script).wait_exit(LIMIT)
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Offsets of the lines in `done`, in order.
    fn done(&self) -> Vec<i64> {
        self.lines("done").iter().map(|line| line.split_once(' ').unwrap().1.parse().unwrap()).collect()
    }

    fn done_sorted(&self) -> Vec<i64> {
        let mut offsets = self.done();
        offsets.sort_unstable();
        offsets
    }

    /// 0 where nothing is committed.
    fn committed(&self) -> i64 {
        let lag = self.kafka.run(&["lag", "-g", &self.topic, "--once"]);
        let commit = lag.stdout.split_once("(commit=").and_then(|(_, rest)| rest.split_once(' '));
        commit.map_or(0, |(offset, _)| offset.parse().unwrap_or(0))
    }

    fn assert_gone(&self) {
        for pid in self.lines("pids") {
            let gone = || (!Path::new(&format!("/proc/{pid}")).exists()).then_some(());
            wait_until("the child's end", Duration::from_secs(5), gone);
        }
    }
}

/// Records with keys `k0`, `k1`, … in turn.
fn records<'a>(keys: &'a [String], values: &'a [&'a str]) -> Vec<Given<'a>> {
    let of = |(at, value): (usize, &&'a str)| Given::of(&keys[at % keys.len()], value.as_bytes());
    values.iter().enumerate().map(of).collect()
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|key| format!("k{key}")).collect()
}

/// `count` values of which one, at 5, is another.
fn with_poison(count: usize, poison: &'static str) -> Vec<&'static str> {
    (0..count).map(|at| if at == 5 { poison } else { "good" }).collect()
}

#[test]
fn answers_in_any_order_keep_the_order_of_each_key() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &records(&keys(6), &["v"; 60]));
    let script = r#"while next; do ( sleep "0.0$((offset * 7 % 10))"; done_with ) & done; wait"#;
    let exit = stage.start_script(&["-e", "-w", "2"], script).wait_exit(LIMIT);
    assert_eq!(exit.code, Some(0), "{exit}");
    let mut of_key: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    let done = stage.done();
    done.iter().for_each(|offset| of_key.entry(offset % 6).or_default().push(*offset));
    assert!(done.windows(2).any(|pair| pair[1] < pair[0]), "some overtake others: {done:?}");
    for (key, offsets) in of_key {
        let expected: Vec<i64> = (0..10).map(|round| round * 6 + key).collect();
        assert_eq!(offsets, expected);
    }
    assert_eq!((exit.done("processed"), stage.committed()), (Some("60"), 60));
}

/// One child takes a byte at a time, so it is plain which record it died of; the other takes all there is.
#[test]
fn a_record_that_ends_its_child_is_found_among_others() {
    let kafka = Cluster::any();
    let by_bytes = r#"while next; do [ "$value" = poison ] && exit 3; done_with; done"#;
    let at_once = r#"exec awk $(awk -W version 2>&1 </dev/null | grep -q ^mawk && echo -W interactive) -F '"' '
        /"value":"poison"/ { exit 3 }
        { match($0, /"offset":[0-9]+/); print "k", substr($0, RSTART + 9, RLENGTH - 9) >> "'$D/done'"
          fflush("'$D/done'"); print $4 " ok"; fflush() }'"#;
    for (script, together) in [(by_bytes, false), (at_once, true)] {
        let stage = Stage::of(&kafka, &records(&keys(20), &with_poison(20, "poison")));
        let options = ["--retries", "1", "--retry-delay", "0", "--on-fail", "skip"];
        let exit = stage.run(&options, script);
        assert_eq!((exit.code, exit.done("skipped")), (Some(1), Some("1")), "{exit}");
        assert!(exit.stderr.contains("exited with 3"), "{exit}");
        assert_eq!(exit.stderr.contains("one by one"), together, "{exit}");
        let others: Vec<i64> = (0..20).filter(|offset| *offset != 5).collect();
        assert_eq!(stage.done_sorted(), others, "each once: what had answered is not done again");
        assert_eq!(stage.committed(), 20);
    }
}

#[test]
fn the_default_policy_stops_at_a_poison_record() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &records(&keys(20), &with_poison(20, "poison")));
    let script = r#"while next; do [ "$value" = poison ] && kill -SEGV $$; done_with; done"#;
    let exit = stage.run(&["--retries", "0"], script);
    assert_eq!(exit.code, Some(65), "{exit}");
    assert!(exit.stderr.contains(&format!("{}/0@5", stage.topic)), "{exit}");
    assert_eq!(stage.committed(), 5);
}

#[test]
fn exit_codes_of_a_child_mean_what_they_mean_for_exec() {
    let kafka = Cluster::any();
    for (code, expected) in [(65, 65), (126, 126), (127, 127)] {
        let stage = Stage::of(&kafka, &records(&keys(1), &["v"]));
        let exit = stage.run(&["--retries", "inf"], &format!("next; exit {code}"));
        assert_eq!(exit.code, Some(expected), "{exit}");
        assert_eq!(stage.committed(), 0);
    }
    let stage = Stage::of(&kafka, &records(&keys(1), &["v"]));
    let script = r#"next; [ -e "$D/was" ] && { done_with; exit; }; touch "$D/was"; exit 75"#;
    let exit = stage.run(&["--retries", "0", "--retry-delay", "0"], script);
    assert_eq!((exit.code, exit.done("retried")), (Some(0), Some("1")), "{exit}");
    let exit = stage.start(&["-e"], &["/no/such/program"]).wait_exit(LIMIT);
    assert_eq!(exit.code, Some(127), "{exit}");
}

#[test]
fn a_record_may_be_put_off_or_rejected() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &records(&keys(10), &with_poison(10, "bad")));
    let script = r#"while next; do
        if [ "$value" = bad ]; then echo "$id reject no price"
        elif [ "$offset" = 3 ] && ! [ -e "$D/was" ]; then touch "$D/was"; echo "$id retry"
        else done_with; fi
    done"#;
    let log = stage.folder.path().join("log");
    let options = ["--on-fail", "skip", "--retry-delay", "10ms", "--joblog", log.to_str().unwrap()];
    let exit = stage.run(&options, script);
    assert_eq!(
        (exit.code, exit.done("skipped"), exit.done("retried")),
        (Some(1), Some("1"), Some("1")),
        "{exit}"
    );
    assert_eq!(stage.done_sorted(), [0, 1, 2, 3, 4, 6, 7, 8, 9]);
    let mut exits: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in &stage.lines("log")[1..] {
        let columns: Vec<&str> = line.split('\t').collect();
        exits.entry(columns[1].to_owned()).or_default().push(columns[6].to_owned());
    }
    assert_eq!(exits.len(), 10);
    let of = |offset: i64| exits[&format!("{}/0@{offset}", stage.topic)].clone();
    assert_eq!((of(0), of(3), of(5)), (vec!["0".into()], vec!["75".into(), "0".into()], vec!["65".into()]));
}

#[test]
fn a_child_that_hangs_is_ended_and_its_record_judged() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &records(&keys(20), &with_poison(20, "hang")));
    let script = r#"echo $$ >> "$D/pids"; while next; do
        if [ "$value" = hang ]; then sleep 100 & echo $! >> "$D/pids"; wait; fi; done_with; done"#;
    let options = ["--timeout", "400ms", "--retries", "1", "--retry-delay", "10ms", "--on-fail", "skip"];
    let began = Instant::now();
    let exit = stage.run(&options, script);
    assert_eq!((exit.code, exit.done("skipped")), (Some(1), Some("1")), "{exit}");
    assert!(began.elapsed() < Duration::from_secs(20), "{exit}");
    let others: Vec<i64> = (0..20).filter(|offset| *offset != 5).collect();
    assert_eq!(stage.done_sorted(), others);
    stage.assert_gone();
}

/// What waits behind others in a child that works one by one is not late because of them.
#[test]
fn a_slow_child_is_no_late_one() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &records(&keys(20), &["v"; 20]));
    let exit = stage.run(&["--timeout", "700ms"], "while next; do sleep 0.05; done_with; done");
    assert_eq!((exit.code, exit.done("retried")), (Some(0), Some("0")), "{exit}");
    assert_eq!(stage.done(), (0..20).collect::<Vec<i64>>());
}

#[test]
fn a_child_that_prints_what_is_no_answer_is_replaced() {
    let kafka = Cluster::any();
    for (prints, said) in [
        ("echo hello there", "no answer but \"hello there\""),
        ("echo 999999 ok", "does not have"),
        ("echo \"$id ok\"; echo \"$id ok\"; sleep 100", "does not have"),
        ("head -c 200000 /dev/zero; sleep 100", "without end"),
    ] {
        let stage = Stage::of(&kafka, &records(&keys(8), &with_poison(8, "odd")));
        let script =
            format!("while next; do if [ \"$value\" = odd ]; then {prints}; else done_with; fi; done");
        let exit = stage.run(&["--retries", "0", "--on-fail", "skip"], &script);
        assert!(matches!(exit.code, Some(0 | 1)), "{exit}");
        assert!(exit.stderr.contains(said), "{said}: {exit}");
        let done = stage.done_sorted();
        let others: Vec<i64> = [0, 1, 2, 3, 4, 6, 7].into();
        assert!(others.iter().all(|offset| done.contains(offset)), "{done:?}");
        assert_eq!(stage.committed(), 8);
    }
}

#[test]
fn a_child_that_never_reads_is_no_deadlock() {
    let kafka = Cluster::any();
    let large = "x".repeat(700_000);
    let stage = Stage::of(&kafka, &records(&keys(4), &[large.as_str(); 4]));
    let options = ["--timeout", "300ms", "--retries", "0", "--drain-timeout", "5s"];
    let exit = stage.run(&options, "echo $$ >> $D/pids; exec sleep 100");
    assert_eq!(exit.code, Some(65), "{exit}");
    assert_eq!(stage.committed(), 0);
    stage.assert_gone();
}

#[test]
fn a_child_may_close_its_stdin_or_end_after_each_record() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &records(&keys(20), &["v"; 20]));
    let exit = stage.run(&["--retries", "0"], "next; done_with");
    assert_eq!((exit.code, stage.done_sorted()), (Some(0), (0..20).collect()), "{exit}");
    // With its stdin closed it lives on; its stdout closed, it cannot answer.
    let stage = Stage::of(&kafka, &records(&keys(1), &["v"; 2]));
    // The last one is not to be waited for until the usual drain is over.
    let options = ["--retries", "0", "--drain-timeout", "2s"];
    let exit = stage.run(&options, "next; done_with; exec sleep 100 <&-");
    assert_eq!((exit.code, stage.done_sorted()), (Some(0), vec![0, 1]), "{exit}");
    let stage = Stage::of(&kafka, &records(&keys(1), &["v"; 2]));
    let exit = stage.run(&["--retries", "0"], "next; exec sleep 100 >&-");
    assert_eq!(exit.code, Some(65), "{exit}");
    assert!(exit.stderr.contains("closed its stdout"), "{exit}");
}

#[test]
fn a_child_that_cannot_begin_is_not_started_without_rest() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &records(&keys(40), &["v"; 40]));
    let options = ["-w", "1", "--retries", "inf", "--retry-delay", "0", "--drain-timeout", "200ms"];
    let mut child = stage.start_script(&options, "echo x >> $D/starts; exit 1");
    std::thread::sleep(Duration::from_secs(1));
    child.signal("TERM");
    let exit = child.wait_exit(LIMIT);
    let starts = stage.lines("starts").len();
    assert!((2..12).contains(&starts), "{starts} starts: {exit}");
}

/// A worker whose child died early, and for which there is nothing more, costs nothing.
#[test]
fn a_worker_without_a_child_is_idle() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &records(&keys(1), &["v"; 1]));
    let options = ["-w", "2", "--retries", "0", "--on-fail", "skip"];
    let mut child = stage.start_script(&options, "next; exit 1");
    child.wait_line("exited with 1", LIMIT);
    // Beyond the rest before another start.
    std::thread::sleep(Duration::from_secs(1));
    let before = cpu_ticks(child.id());
    std::thread::sleep(Duration::from_secs(2));
    let ticks = cpu_ticks(child.id()) - before;
    child.signal("TERM");
    let exit = child.wait_exit(LIMIT);
    assert!(ticks < 40, "{ticks} hundredths of a second in 2 s: {exit}");
}

/// User and system time of a process, in hundredths of a second.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(") ").unwrap().1.split(' ');
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// A child that takes its time over its end is waited for, but not by whoever signals twice.
#[test]
fn a_second_signal_at_the_very_end_is_told() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &records(&keys(1), &["v"; 3]));
    let mut child = stage.start_script(&["-e", "-w", "1"], "while next; do done_with; done; sleep 30");
    wait_until("the last record", LIMIT, || (stage.done().len() == 3).then_some(()));
    std::thread::sleep(Duration::from_secs(1));
    assert!(child.is_running() && stage.committed() == 3);
    child.signal("TERM");
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.is_running(), "it is about to end anyway");
    child.signal("TERM");
    let exit = child.wait_exit(Duration::from_secs(5));
    assert_eq!((exit.code, exit.done("processed")), (Some(143), Some("3")), "{exit}");
}

#[test]
fn a_stopped_run_lets_the_children_finish() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &records(&keys(4), &["v"; 400]));
    let script = "while next; do sleep 0.02; done_with; done; echo end >> $D/ends";
    let mut child = stage.start_script(&["-w", "2"], script);
    wait_until("records", LIMIT, || (stage.done().len() > 20).then_some(()));
    child.signal("TERM");
    let exit = child.wait_exit(LIMIT);
    assert_eq!((exit.code, exit.done("unfinished")), (Some(0), Some("0")), "{exit}");
    let done = stage.done_sorted();
    assert_eq!(done, (0..done.len() as i64).collect::<Vec<_>>());
    assert_eq!(stage.committed(), done.len() as i64);
    assert_eq!(stage.lines("ends").len(), 2, "each child saw the end of its input: {exit}");
}

#[test]
fn a_child_that_hangs_is_ended_by_the_drain() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &records(&keys(20), &with_poison(20, "hang")));
    let script = r#"trap '' TERM; echo $$ >> "$D/pids"
        while next; do [ "$value" = hang ] && while :; do sleep 1; done; done_with; done"#;
    let options = ["-w", "1", "--drain-timeout", "2s"];
    let mut child = stage.start_script(&options, script);
    wait_until("records", LIMIT, || (stage.done().len() == 5).then_some(()));
    child.signal("TERM");
    let exit = child.wait_exit(Duration::from_secs(10));
    // The drain stops short of it, and those behind it come again as well.
    assert_eq!((exit.code, exit.done("unfinished")), (Some(75), Some("15")), "{exit}");
    assert_eq!(stage.committed(), 5);
    stage.assert_gone();
}

#[test]
fn every_record_arrives_unchanged() {
    let kafka = Cluster::any();
    let large: Vec<u8> = (0..10u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let names: Vec<String> = (0..1000).map(|n| format!("h{n}")).collect();
    let mut headers: Vec<(&[u8], Option<&[u8]>)> =
        names.iter().map(|name| (name.as_bytes(), Some(&b"some text"[..]))).collect();
    headers.extend([(&b"h0"[..], Some(&b"last \xff"[..])), (b"h1", None)]);
    let values: [Option<&[u8]>; 8] = [
        Some(b"plain"),
        Some(b"a\nb\r\n\t\"q\" \\ \x01"),
        Some(b"\0\0"),
        Some(b"\xff\xfe"),
        Some(b""),
        None,
        Some("\u{e9}\u{1f980}\u{2028}".as_bytes()),
        Some(&large),
    ];
    let keys: [Option<&[u8]>; 8] =
        [Some(b"k"), None, Some(b""), Some(b"\xff"), Some(b"a\nb"), Some(b"k"), Some(b"\0"), Some(b"k")];
    let given: Vec<Given<'_>> =
        keys.iter().zip(values).map(|(key, value)| Given { key: *key, value, headers: &headers }).collect();
    let stage = Stage::of(&kafka, &given);
    let script =
        r#"tee "$D/lines" | grep -a -o --line-buffered '^{"id":"[0-9]*' | sed -u 's/.*"//; s/$/ ok/'"#;
    let exit = stage.run(&[], script);
    assert_eq!(exit.code, Some(0), "{exit}");
    let mut seen = 0;
    for line in stage.lines("lines") {
        let line: Value = serde_json::from_str(&line).unwrap();
        let at = line["offset"].as_u64().unwrap() as usize;
        assert_eq!(
            (&line["topic"], line["partition"].as_i64()),
            (&Value::from(stage.topic.as_str()), Some(0))
        );
        assert_eq!(line["timestamp"].as_i64(), Some(1_700_000_000_000));
        assert!(bytes(&line, "key") == keys[at].map(<[u8]>::to_vec), "key {at}");
        assert!(bytes(&line, "value") == values[at].map(<[u8]>::to_vec), "value {at}");
        let shown = line["headers"].as_array().unwrap();
        assert_eq!(shown.len(), headers.len());
        assert_eq!(shown[0], serde_json::json!(["h0", "some text"]));
        assert_eq!(shown[1000], serde_json::json!(["h0", {"b64": "bGFzdCD/"}]));
        assert_eq!(shown[1001], serde_json::json!(["h1", null]));
        seen += 1;
    }
    assert_eq!(seen, 8);
}

/// A member of the pipe format; null is none.
fn bytes(record: &Value, name: &str) -> Option<Vec<u8>> {
    match record.get(format!("{name}_b64")) {
        Some(text) => Some(from_base64(text.as_str().unwrap())),
        None => record[name].as_str().map(|text| text.as_bytes().to_vec()),
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    // Many megabytes, in a build that is not optimised: by a table, and each byte is touched once.
    let mut digits = [0xff; 256];
    (0..).zip(ALPHABET).for_each(|(digit, byte)| digits[usize::from(*byte)] = digit);
    let text = text.trim_end_matches('=').as_bytes();
    let mut out = Vec::with_capacity(text.len());
    let (mut bits, mut count) = (0u32, 0);
    for byte in text {
        let digit = digits[usize::from(*byte)];
        assert!(digit < 64, "{byte} is no digit");
        (bits, count) = (bits << 6 | digit, count + 6);
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    out
}

// ---- The examples under scripts/ ----

fn example(name: &str) -> String {
    repository(&format!("scripts/examples/{name}"))
}

#[test]
fn the_example_in_sh() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &records(&keys(3), &["v \"q\"", "\\", "{}"]));
    let exit = stage.start(&["-e"], &[&example("pipe.sh")]).wait_exit(LIMIT);
    assert_eq!(exit.code, Some(0), "{exit}");
    for offset in 0..3 {
        assert!(exit.stderr.lines().any(|line| line == format!("{}/0@{offset}", stage.topic)), "{exit}");
    }
}

#[test]
fn the_example_in_awk() {
    let kafka = Cluster::any();
    let stage = Stage::of(&kafka, &records(&keys(2), &["\"key\":\"no\"", "b", "c"]));
    let exit = stage.start(&["-e", "-w", "1"], &[&example("pipe-awk.sh")]).wait_exit(LIMIT);
    assert_eq!(exit.code, Some(0), "{exit}");
    let counts: Vec<&str> = exit.stderr.lines().filter(|line| line.starts_with('k')).collect();
    assert!(counts.contains(&"k0 2") && counts.contains(&"k1 1"), "{exit}");
}

#[test]
fn the_example_in_jq() {
    if !have("jq") {
        return;
    }
    let kafka = Cluster::any();
    let values: [Option<&[u8]>; 7] = [
        Some(b"{\"amount\": 3}"),
        Some(b"{\"amount\": -1}"),
        Some(b"no json"),
        Some(b"\xff"),
        None,
        Some(b"{\"amount\":\"3\"}"),
        Some(b"[1]"),
    ];
    let given = values.map(|value| Given { key: Some(b"k"), value, headers: &[] });
    let stage = Stage::of(&kafka, &given);
    let log = stage.folder.path().join("log");
    let words = ["jq", "-r", "--unbuffered", "-f", &example("pipe.jq")];
    let options = ["-e", "--on-fail", "skip", "--joblog", log.to_str().unwrap()];
    let exit = stage.start(&options, &words).wait_exit(LIMIT);
    assert_eq!((exit.code, exit.done("skipped")), (Some(1), Some("5")), "{exit}");
    let exits: Vec<String> =
        stage.lines("log")[1..].iter().map(|line| line.split('\t').nth(6).unwrap().to_owned()).collect();
    assert_eq!(exits, ["0", "65", "65", "65", "0", "65", "65"]);
}

#[test]
fn the_example_in_python() {
    if !have("python3") {
        return;
    }
    let kafka = Cluster::any();
    let headers: [(&[u8], Option<&[u8]>); 3] = [(b"a", Some(b"1")), (b"a", Some(b"\xff")), (b"b", None)];
    let values: [Option<&[u8]>; 4] = [Some(b"a\n\"\\"), Some(b"\xff\0"), None, Some(b"")];
    let given = values.map(|value| Given { key: Some(b"\xfe"), value, headers: &headers });
    let stage = Stage::of(&kafka, &given);
    let exit = stage.start(&["-e"], &["python3", &example("pipe.py")]).wait_exit(LIMIT);
    assert_eq!(exit.code, Some(0), "{exit}");
    for line in [
        "0 0 b'\\xfe' 1b878a9d5204c91c81994d82d32ed6b1 3",
        "0 1 b'\\xfe' e0e8bfafbb0689563b2fba789c97b3cc 3",
        "0 2 b'\\xfe' null 3",
        "0 3 b'\\xfe' d41d8cd98f00b204e9800998ecf8427e 3",
    ] {
        assert!(exit.stderr.lines().any(|printed| printed == line), "{line}: {exit}");
    }
}

/// Without a server: what counts is what curl would be given.
#[test]
fn the_example_for_exec() {
    let kafka = Cluster::any();
    let given = [
        Given { key: Some(b"k1"), value: Some(b"body\n\0"), headers: &[] },
        Given { key: Some(b"k1"), value: None, headers: &[] },
    ];
    let stage = Stage::of(&kafka, &given);
    let curl = stage.folder.path().join("curl");
    fs::write(&curl, "#!/bin/sh\nD=${0%/*}\necho \"$@\" >> $D/args\ncat >> $D/body\n").unwrap();
    Command::new("chmod").args(["+x", curl.to_str().unwrap()]).status().unwrap();
    let path = format!("PATH={}:{}", stage.folder.path().display(), std::env::var("PATH").unwrap());
    let args = [
        "pool",
        "-t",
        &stage.topic,
        "-g",
        &stage.topic,
        "-e",
        "--",
        "env",
        &path,
        "URL=http://h/",
        &example("exec.sh"),
    ];
    let exit = kafka.keylane(&args).wait_exit(LIMIT);
    assert_eq!(exit.code, Some(0), "{exit}");
    let place = format!("Idempotency-Key: {}/0@0", stage.topic);
    assert_eq!(
        stage.lines("args"),
        [format!("-fsS --data-binary @- -H {place} http://h/"), "-fsS -X DELETE http://h/k1".to_owned()]
    );
    assert_eq!(fs::read(stage.folder.path().join("body")).unwrap(), b"body\n\0");
}
