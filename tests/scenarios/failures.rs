//! Records that a handler cannot do: tried again, dead-lettered and sent back, skipped, or the end of the run.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::child::{Exit, Keylane};
use crate::cluster::{Cluster, LIMIT, have};
use crate::produce::{Given, produce};

/// What a record is, but for its offset.
const RECORD: &str = "%k|%T|%h|%s\\n";

/// A folder of a test's own, removed at the end.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Runs a pool of `topic` to its end.
fn pool(kafka: &Cluster, topic: &str, flags: &[&str], handler: &str) -> Exit {
    let mut args = vec!["pool", "-t", topic, "-g", topic, "-e", "-w", "4"];
    args.extend(flags);
    args.extend(["--", "sh", "-c", handler]);
    kafka.keylane(&args).wait_exit(LIMIT)
}

/// Every record of a topic in `format`, by another group.
fn records(kafka: &Cluster, topic: &str, format: &str) -> Vec<String> {
    let group = format!("{topic}.{}", records_read());
    let exit = kafka.run(&["sequential", "-t", topic, "-g", &group, "-e", "-q", "--print", format]);
    exit.stdout.lines().map(str::to_owned).collect()
}

fn records_read() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

/// Fields of a joblog's lines.
fn joblog(path: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().skip(1).map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

fn seconds(text: &str) -> f64 {
    text.trim().parse().unwrap()
}

#[test]
fn a_poison_record_goes_to_the_dead_letters_and_back() {
    let kafka = Cluster::any();
    let (topic, dead) = (kafka.topic(1, &[]), kafka.topic(2, &[]));
    kafka.seed(&topic, 100, 10, &[]);
    let folder = folder();
    let log = folder.path().join("log").display().to_string();
    // Offset 3 has key-3, as have 13, 23 and so on.
    let flags = ["--retries", "2", "--retry-delay", "800ms", "--dlq", &dead, "--joblog", &log];
    let exit = pool(&kafka, &topic, &flags, "test $KEYLANE_OFFSET != 3");
    assert_eq!(exit.code, Some(1), "{exit}");
    let done = |name| exit.done(name).map(str::to_owned).unwrap_or_default();
    assert_eq!(
        (done("processed"), done("dead-lettered"), done("retried")),
        ("99".into(), "1".into(), "2".into())
    );
    kafka.assert_caught_up(&topic, &topic);

    // Nobody but its key waited for it.
    let poison = format!("{topic}/0@3");
    let lines = joblog(&log);
    let third =
        lines.iter().filter(|line| line[1] == poison).map(|line| seconds(&line[2])).next_back().unwrap();
    let is_of_its_key = |line: &&Vec<String>| line[1].ends_with('3');
    let last =
        lines.iter().filter(|line| !is_of_its_key(line)).map(|line| seconds(&line[2]) + seconds(&line[3]));
    let last = last.fold(0.0, f64::max);
    assert!(last < third, "others were done {last}, its third try began {third}");
    assert_eq!(lines.iter().filter(is_of_its_key).filter(|line| seconds(&line[2]) >= third).count(), 10);
    let awk = "NR > 1 && NF == 9 { n[$7 + ($8 ? 128 + $8 : 0)]++ } END { print NR - 1, n[0], n[1] }";
    let counted = Command::new("awk").args(["-F\t", awk, &log]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&counted.stdout), "102 99 3\n");

    // Proven by its joblog, unless a line is taken out.
    let verify = ["verify", &log, "-t", &topic, "-g", &topic, "--dlq", &dead];
    assert!(kafka.run(&verify).stdout.starts_with("verify: clean records=100 handled=99 dead-lettered=1 "));
    let text = fs::read_to_string(&log).unwrap();
    let short = folder.path().join("short").display().to_string();
    let kept = text.lines().filter(|line| !line.contains(&format!("{topic}/0@50\t")));
    fs::write(&short, kept.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let exit =
        kafka.keylane(&["verify", &short, "-t", &topic, "-g", &topic, "--dlq", &dead]).wait_exit(LIMIT);
    assert_eq!(exit.code, Some(1), "{exit}");
    assert!(exit.stderr.contains(&format!("committed-early: {topic}/0@50 below 100")), "{exit}");

    // The letter is the record, with headers that tell.
    let origin = records(&kafka, &topic, RECORD);
    let letters = records(&kafka, &dead, RECORD);
    let headers = "keylane-dlq-topic=";
    let (before, after) = letters[0].split_once(headers).unwrap();
    let (told, value) = after.rsplit_once('|').unwrap();
    assert_eq!((letters.len(), format!("{before}|{value}")), (1, origin[3].clone()));
    let expected = format!("{topic},keylane-dlq-partition=0,keylane-dlq-offset=3,keylane-dlq-timestamp=");
    assert!(told.starts_with(&expected), "{told}");
    let expected = format!(",keylane-dlq-group={topic},keylane-dlq-attempts=3,");
    assert!(told.contains(&expected) && told.ends_with(",keylane-dlq-exit=1"), "{told}");
    let list = kafka.run(&["dlq", "list", "-t", &dead, "-q"]).stdout;
    assert!(list.starts_with("PARTITION OFFSET TIMESTAMP"), "{list}");
    assert!(list.lines().nth(1).is_some_and(|line| line.contains(&format!(" key-3 {poison} "))), "{list}");

    // Back it goes, once.
    let replay = ["dlq", "replay", "-t", &dead];
    assert_eq!(kafka.run(&replay).done("would-replay"), Some("1"));
    assert_eq!(kafka.ends(&topic, &topic)[&0], 100, "a dry run sends nothing");
    let replay = ["dlq", "replay", "-t", &dead, "--execute"];
    assert_eq!(kafka.run(&replay).done("replayed"), Some("1"));
    let again = records(&kafka, &topic, RECORD);
    assert_eq!((again.len(), &again[100]), (101, &origin[3]));
    assert_eq!(kafka.run(&replay).done("replayed"), Some("0"));
    assert_eq!(kafka.ends(&topic, &topic)[&0], 101);
}

#[test]
fn letters_go_back_in_the_order_of_their_keys() {
    let kafka = Cluster::any();
    let (topic, dead) = (kafka.topic(3, &[]), kafka.topic(2, &[]));
    kafka.seed(&topic, 120, 12, &[]);
    // A record of every key but one is left over by the replay of that key.
    let exit = pool(&kafka, &topic, &["--dlq", &dead], "exit 65");
    assert_eq!(
        (exit.code, exit.done("dead-lettered"), exit.done("retried")),
        (Some(1), Some("120"), Some("0"))
    );
    let origin = records(&kafka, &topic, "%p %k %T %s\\n");
    let some = kafka.run(&["dlq", "replay", "-t", &dead, "--key", "key-5", "--execute"]);
    assert_eq!((some.done("replayed"), some.done("left-out")), (Some("10"), Some("110")));
    assert!(some.stderr.contains("progress is not moved"), "{some}");
    let all = kafka.run(&["dlq", "replay", "-t", &dead, "--execute"]);
    assert_eq!((all.done("replayed"), all.done("skipped")), (Some("120"), Some("0")));
    let now = records(&kafka, &topic, "%p %k %T %s\\n");
    assert_eq!(now.len(), 250);
    for key in 0..12 {
        let of_key = |lines: &[String]| -> Vec<String> {
            let word = format!(" key-{key} ");
            lines.iter().filter(|line| line.contains(&word)).cloned().collect()
        };
        let found = of_key(&now);
        let expected = vec![of_key(&origin); if key == 5 { 3 } else { 2 }].concat();
        assert_eq!(found, expected, "key-{key}");
    }
    // What is no letter is passed over and counted; progress passes it too.
    kafka.seed(&dead, 5, 5, &[]);
    let exit = kafka.keylane(&["dlq", "replay", "-t", &dead, "--execute"]).wait_exit(LIMIT);
    assert_eq!(
        (exit.code, exit.done("skipped"), exit.done("replayed")),
        (Some(1), Some("5"), Some("0")),
        "{exit}"
    );
    assert_eq!(kafka.run(&["dlq", "replay", "-t", &dead, "--execute"]).done("skipped"), Some("0"));
}

#[test]
fn a_letter_keeps_every_byte_and_header() {
    if !have("kcat") {
        return;
    }
    let kafka = Cluster::any();
    let (topic, dead) = (kafka.topic(1, &[]), kafka.topic(1, &[]));
    let folder = folder();
    let value = folder.path().join("value");
    let bytes: Vec<u8> = (0..=255).chain([0, 10, 13, 255]).collect();
    fs::write(&value, &bytes).unwrap();
    let made = Command::new("kcat")
        .args([
            "-P",
            "-b",
            kafka.brokers(),
            "-t",
            &topic,
            "-k",
            "k ey",
            "-H",
            "a=1",
            "-H",
            "a=2",
            "-H",
            "keylane=x",
        ])
        .arg(&value)
        .status()
        .unwrap();
    assert!(made.success());
    assert_eq!(pool(&kafka, &topic, &["--retries", "0", "--dlq", &dead], "exit 9").code, Some(1));
    let json = |topic: &str, offset: usize| {
        let line = records(&kafka, topic, "json").swap_remove(offset);
        let mut object: serde_json::Value = serde_json::from_str(&line).unwrap();
        let headers = object["headers"].take();
        (object["key"].take(), object["value_b64"].take(), object["timestamp"].take(), headers)
    };
    let (origin, letter) = (json(&topic, 0), json(&dead, 0));
    assert!(origin.1.is_string(), "{origin:?}");
    assert_eq!((&letter.0, &letter.1, &letter.2), (&origin.0, &origin.1, &origin.2));
    let (before, added) = (origin.3.as_array().unwrap(), letter.3.as_array().unwrap());
    assert_eq!((before.len(), added.len()), (3, 11));
    assert_eq!(&added[..3], before.as_slice());
    assert_eq!(added[10], serde_json::json!(["keylane-dlq-exit", "9"]));
    kafka.run(&["dlq", "replay", "-t", &dead, "--execute"]);
    assert_eq!(json(&topic, 1), origin);
}

#[test]
fn skips_and_halts_count_what_failed() {
    let kafka = Cluster::any();
    let topic = kafka.topic(1, &[]);
    kafka.seed(&topic, 60, 60, &[]);
    let exit = pool(&kafka, &topic, &["--on-fail", "skip", "--retries", "0"], "test $KEYLANE_OFFSET -lt 55");
    assert_eq!(
        (exit.code, exit.done("skipped"), exit.done("processed")),
        (Some(1), Some("5"), Some("55")),
        "{exit}"
    );
    kafka.assert_caught_up(&topic, &topic);

    let run = |group: &str, halt: &str, handler: &str| {
        let args =
            ["pool", "-t", &topic, "-g", group, "-e", "-w", "4", "--on-fail", "skip", "--retries", "0"];
        let mut args = args.to_vec();
        args.extend(["--halt", halt, "--", "sh", "-c", handler]);
        kafka.keylane(&args).wait_exit(LIMIT)
    };
    // What runs is finished.
    let (soon, now) = (format!("{topic}.soon"), format!("{topic}.now"));
    let exit = run(&soon, "soon,fail=3", "test $KEYLANE_OFFSET -ge 3 || { sleep 0.3; exit 1; }");
    assert_eq!(
        (exit.code, exit.done("unfinished"), exit.done("stop")),
        (Some(65), Some("0"), Some("failure")),
        "{exit}"
    );
    assert!(exit.done("skipped").is_some_and(|skipped| skipped.parse::<u32>().unwrap() >= 3), "{exit}");
    // Nothing is begun any more once it is over.
    let exit = run(&format!("{topic}.many"), "soon,fail=1", "exit 65");
    assert!(exit.done("skipped").is_some_and(|skipped| skipped.parse::<u32>().unwrap() <= 4), "{exit}");
    // What runs is ended.
    let exit = run(&now, "now,fail=1", "test $KEYLANE_OFFSET != 2 || exit 1; exec sleep 30");
    assert_eq!((exit.code, exit.done("skipped")), (Some(65), Some("1")), "{exit}");
    assert!(exit.took < Duration::from_secs(10), "{exit}");
    assert_eq!(exit.done("commits"), Some("0"), "the first record was running: {exit}");
}

#[test]
fn a_dead_letter_topic_must_be_there() {
    let kafka = Cluster::any();
    let topic = kafka.topic(1, &[]);
    let exit = pool(&kafka, &topic, &["--dlq", "no-such-topic"], "true");
    assert_eq!(exit.code, Some(66), "{exit}");
    assert!(exit.stderr.contains("no-such-topic"), "{exit}");
    assert!(!exit.stderr.contains("assigned"), "it joins nothing: {exit}");
    for command in ["list", "replay"] {
        let exit = kafka.keylane(&["dlq", command, "-t", "no-such-topic"]).wait_exit(LIMIT);
        assert_eq!(exit.code, Some(66), "{exit}");
    }
}

/// Where letters may not be written nothing is joined. A topic with any ACL is closed to whatever that does not allow.
#[test]
fn a_dead_letter_topic_must_be_writable() {
    let authorizer = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer";
    let start = ["--set", authorizer, "--set", "allow.everyone.if.no.acl.found=true"];
    let Some(kafka) = Cluster::own("acl", None, &start) else { return };
    let (topic, dead) = (kafka.topic(1, &[]), kafka.topic(1, &[]));
    kafka.seed(&topic, 10, 10, &[]);
    let command = "org.apache.kafka.tools.AclCommand --add --allow-principal User:* --operation Read --topic";
    let mut args: Vec<&str> = command.split(' ').collect();
    args.extend([&dead, "--bootstrap-server", kafka.brokers()]);
    kafka.script("run", &args);
    let exit = pool(&kafka, &topic, &["--dlq", &dead], "exit 65");
    assert_eq!(exit.code, Some(77), "{exit}");
    assert!(exit.stderr.contains(&dead) && exit.stderr.contains("TOPIC_AUTHORIZATION_FAILED"), "{exit}");
    assert!(!exit.stderr.contains("assigned"), "it joins nothing: {exit}");
    // Reading is allowed, and Describe with it; writing the source is nobody's business.
    let exit = pool(&kafka, &dead, &[], "true");
    assert_eq!((exit.code, exit.done("processed")), (Some(0), Some("0")), "{exit}");
}

/// Letters keep their timestamps, by which their topic may delete them at once: that is said, and once.
#[test]
fn a_letter_older_than_its_topic_keeps_is_warned_of() {
    let kafka = Cluster::any();
    let topic = kafka.topic(1, &[]);
    // Records of 2023.
    produce(kafka.brokers(), &topic, 0, &[Given::of("a", b"1"), Given::of("b", b"2")]);
    for (configs, warnings) in [
        (&["retention.ms=360000000"][..], 1),
        (&["retention.ms=-1"], 0),
        (&["retention.ms=360000000", "message.timestamp.type=LogAppendTime"], 0),
    ] {
        let dead = kafka.topic(1, configs);
        let args = ["pool", "-t", &topic, "-g", &dead, "-e", "--dlq", &dead, "--", "sh", "-c", "exit 65"];
        let exit = kafka.keylane(&args).wait_exit(LIMIT);
        assert_eq!((exit.code, exit.done("dead-lettered")), (Some(1), Some("2")), "{exit}");
        let said = format!("{dead} deletes records 100 h after their own time");
        assert_eq!(exit.stderr.matches(&said).count(), warnings, "{configs:?}: {exit}");
    }
}

#[test]
fn a_letter_that_is_refused_for_good_ends_the_run_before_its_record() {
    let kafka = Cluster::any();
    let (topic, dead) = (kafka.topic(1, &[]), kafka.topic(1, &["max.message.bytes=2000"]));
    kafka.seed(&topic, 20, 20, &["--size", "20000"]);
    let exit = pool(&kafka, &topic, &["--retries", "0", "--dlq", &dead], "test $KEYLANE_OFFSET != 7");
    assert_eq!((exit.code, exit.done("dead-lettered")), (Some(65), Some("0")), "{exit}");
    let why =
        format!("{topic}/0@7: failed on try 1 (exit 1), the last one it has; its dead letter is refused: ");
    assert!(exit.stderr.contains(&why) && exit.stderr.contains("MESSAGE_TOO_LARGE"), "{exit}");
    assert_eq!(kafka.committed(&topic, &topic)[&0], 7);
}

/// A dead-letter topic that takes nothing for a while is waited for.
#[test]
fn a_letter_is_sent_until_it_is_taken() {
    let kafka = Cluster::dev(&["--fault", "produce:error=NOT_ENOUGH_REPLICAS,client=letters,times=4"]);
    let (topic, dead) = (kafka.topic(1, &[]), kafka.topic(1, &[]));
    kafka.seed(&topic, 20, 20, &[]);
    let flags = ["--retries", "0", "--dlq", &dead, "-X", "client.id=letters"];
    let exit = pool(&kafka, &topic, &flags, "test $KEYLANE_OFFSET != 7");
    assert_eq!((exit.code, exit.done("dead-lettered")), (Some(1), Some("1")), "{exit}");
    assert_eq!(records(&kafka, &dead, "%o\\n"), ["0"]);
    kafka.assert_caught_up(&topic, &topic);
}

#[test]
fn exit_codes_mean_what_was_said() {
    let kafka = Cluster::any();
    let (topic, dead) = (kafka.topic(1, &[]), kafka.topic(1, &[]));
    kafka.seed(&topic, 4, 4, &[]);
    let fast = ["--retries", "0", "--retry-delay", "10ms", "--retry-max-delay", "20ms"];
    let mut flags = fast.to_vec();
    flags.extend(["--dlq", &dead, "--reject-exit", "65,3", "--retry-exit", "75,22"]);
    // 75 and 22 are tried without limit, 3 and 65 never again.
    let handler = "case $KEYLANE_OFFSET in 0) test $KEYLANE_ATTEMPT -ge 6 || exit 75;; \
                   1) test $KEYLANE_ATTEMPT -ge 4 || exit 22;; 2) exit 3;; 3) exit 65;; esac";
    let exit = pool(&kafka, &topic, &flags, handler);
    assert_eq!(
        (exit.code, exit.done("retried"), exit.done("dead-lettered")),
        (Some(1), Some("8"), Some("2")),
        "{exit}"
    );
    let letters = kafka.letters(&dead);
    let told: Vec<_> =
        letters.iter().map(|letter| (letter["exit"].as_str(), letter["attempts"].as_i64())).collect();
    assert!(told.contains(&(Some("3"), Some(1))) && told.contains(&(Some("65"), Some(1))), "{letters:?}");
    assert_eq!(told.len(), 2, "{letters:?}");
}

/// The topic is read to where it ended, though its leaders refuse, lose answers and forget sessions.
#[test]
fn letters_are_read_through_faults() {
    let mut args = Vec::new();
    let faults = [
        "fetch:error=NOT_LEADER_OR_FOLLOWER,client=reader,times=2",
        "fetch:error=FETCH_SESSION_ID_NOT_FOUND,client=reader,nth=4",
        "fetch:reset,client=reader,nth=6",
        "fetch:cut,client=reader,nth=7",
        "fetch:error=UNKNOWN_TOPIC_OR_PARTITION,client=nobody",
    ];
    faults.iter().for_each(|fault| args.extend(["--fault", fault]));
    let kafka = Cluster::dev(&args);
    let topic = kafka.topic(3, &[]);
    // More than one fetch takes.
    kafka.seed(&topic, 6_000, 100, &["--size", "1000", "-z", "none", "-q"]);
    let exit = kafka.run(&["dlq", "replay", "-t", &topic, "-X", "client.id=reader"]);
    assert_eq!((exit.done("skipped"), exit.done("would-replay")), (Some("6000"), Some("0")), "{exit}");
    // Patience has an end.
    let args = ["dlq", "list", "-t", &topic, "-X", "client.id=nobody", "--request-timeout", "1s"];
    let exit = kafka.keylane(&args).wait_exit(LIMIT);
    assert_eq!(exit.code, Some(66), "{exit}");
    assert!(exit.stderr.contains("UNKNOWN_TOPIC_OR_PARTITION"), "{exit}");
}

/// A batch that fails becomes a letter for each of its records, and none is passed before all are acknowledged.
#[test]
fn a_batch_that_fails_is_a_letter_for_each_record() {
    let kafka = Cluster::any();
    let (topic, dead) = (kafka.topic(1, &[]), kafka.topic(2, &[]));
    kafka.seed(&topic, 40, 5, &[]);
    let flags = ["--batch", "8", "--retries", "1", "--retry-delay", "10ms", "--dlq", &dead];
    let exit = pool(&kafka, &topic, &flags, "! grep -q '\"offset\":13,'");
    let lost: u64 = exit.done("dead-lettered").unwrap().parse().unwrap();
    assert!(exit.code == Some(1) && (1..=8).contains(&lost), "{exit}");
    assert_eq!(exit.done("processed"), Some((40 - lost).to_string().as_str()), "{exit}");
    kafka.assert_caught_up(&topic, &topic);
    let letters = kafka.letters(&dead);
    let offsets: std::collections::BTreeSet<i64> = letters
        .iter()
        .map(|letter| {
            let told = (letter["attempts"].as_i64(), letter["exit"].as_str());
            assert_eq!(told, (Some(2), Some("1")), "{letter}");
            letter["origin_offset"].as_i64().unwrap_or_else(|| panic!("{letter}"))
        })
        .collect();
    assert!(offsets.len() as u64 == lost && offsets.contains(&13), "{letters:?}");
}

/// A child that ends well because it was told to has not done its record, and the joblog does not say so.
#[test]
fn what_was_ended_is_not_done_in_the_joblog() {
    let kafka = Cluster::any();
    let topic = kafka.topic(1, &[]);
    kafka.seed(&topic, 1, 1, &[]);
    let folder = folder();
    let log = folder.path().join("log").display().to_string();
    let flags = ["--timeout", "500ms", "--retries", "0", "--on-fail", "skip", "--joblog", &log];
    let exit = pool(&kafka, &topic, &flags, "trap 'exit 0' TERM; sleep 30 & wait $!");
    assert_eq!((exit.code, exit.done("skipped")), (Some(1), Some("1")), "{exit}");
    let lines = joblog(&log);
    assert_eq!((lines.len(), lines[0][6].as_str(), lines[0][7].as_str()), (1, "-1", "15"));
    let exit = kafka.keylane(&["verify", &log, "-t", &topic, "-g", &topic]).wait_exit(LIMIT);
    assert!(exit.code == Some(1) && exit.stdout.contains("missing=1 committed-early=1"), "{exit}");
    // The verdict is the exit code's as well, for whoever does not read the line.
    let mut command = Command::new("sh");
    let script = "{ \"$@\"; echo \"code $?\" >&2; } | sh -c 'exec <&-; sleep 1'";
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_keylane"), "verify", &log]);
    command.args(["-b", kafka.brokers(), "-t", &topic]);
    let exit = Keylane::run_command(command).wait_exit(LIMIT);
    assert!(exit.stderr.lines().any(|line| line == "code 1"), "{exit}");
}

/// Nor has one that ends well without an answer.
#[test]
fn what_was_not_answered_is_not_done_in_the_joblog() {
    let kafka = Cluster::any();
    let topic = kafka.topic(1, &[]);
    kafka.seed(&topic, 1, 1, &[]);
    let folder = folder();
    let log = folder.path().join("log").display().to_string();
    let args = ["pool", "-t", &topic, "-g", &topic, "-e", "--retries", "0", "--on-fail", "skip"];
    let silent = ["--joblog", &log, "--pipe", "--", "sh", "-c", "read line"];
    let exit = kafka.keylane(&[&args[..], &silent].concat()).wait_exit(LIMIT);
    assert_eq!((exit.code, exit.done("skipped")), (Some(1), Some("1")), "{exit}");
    let lines = joblog(&log);
    assert_eq!((lines.len(), lines[0][6].as_str()), (1, "-1"));
}

/// What a signal cuts short has no verdict, and no list that is whole.
#[test]
fn an_interrupted_look_is_unfinished() {
    let kafka = Cluster::dev(&["--fault", "fetch:delay=60s,client=slow"]);
    let topic = kafka.topic(1, &[]);
    kafka.seed(&topic, 10, 1, &[]);
    let folder = folder();
    let log = folder.path().join("log").display().to_string();
    fs::write(&log, "").unwrap();
    for args in [&["verify", &log][..], &["dlq", "list"]] {
        let args = [args, &["-t", &topic, "-X", "client.id=slow", "--request-timeout", "100s"]].concat();
        let mut child = kafka.keylane(&args);
        std::thread::sleep(Duration::from_secs(1));
        child.signal("TERM");
        let exit = child.wait_exit(LIMIT);
        assert_eq!(exit.code, Some(75), "{exit}");
    }
}

/// Letters may be forbidden while the run is under way: that is what it ends with, and not the record's fault.
#[test]
fn a_letter_that_is_not_allowed_ends_the_run_with_77() {
    let kafka = Cluster::dev(&["--fault", "produce:error=TOPIC_AUTHORIZATION_FAILED,client=letters"]);
    let (topic, dead) = (kafka.topic(1, &[]), kafka.topic(1, &[]));
    kafka.seed(&topic, 5, 5, &[]);
    let flags = ["--dlq", &dead, "-X", "client.id=letters"];
    let exit = pool(&kafka, &topic, &flags, "test $KEYLANE_OFFSET != 3 || exit 65");
    assert_eq!((exit.code, exit.done("dead-lettered")), (Some(77), Some("0")), "{exit}");
    let why =
        format!("{topic}/0@3: rejected by its handler on try 1 (exit 65); its dead letter is refused: ");
    assert!(exit.stderr.contains(&why), "{exit}");
    assert_eq!(kafka.committed(&topic, &topic)[&0], 3);
}

/// Another group's letter says nothing about this one.
#[test]
fn a_letter_counts_for_the_group_that_wrote_it() {
    let kafka = Cluster::any();
    let (topic, dead) = (kafka.topic(1, &[]), kafka.topic(1, &[]));
    kafka.seed(&topic, 3, 3, &[]);
    let folder = folder();
    let log = folder.path().join("log").display().to_string();
    let exit =
        pool(&kafka, &topic, &["--dlq", &dead, "--joblog", &log], "test $KEYLANE_OFFSET != 1 || exit 65");
    assert_eq!(exit.code, Some(1), "{exit}");
    let other = format!("{topic}.other");
    for (group, code) in [(&topic, 0), (&other, 1)] {
        let exit =
            kafka.keylane(&["verify", &log, "-t", &topic, "-g", group, "--dlq", &dead]).wait_exit(LIMIT);
        assert_eq!(exit.code, Some(code), "{exit}");
    }
}
