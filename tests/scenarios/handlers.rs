//! Handlers as they are met in use: a server that is down, a terminal, a full disk, a reader that is slow or gone,
//! records of every shape.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use keylane::handler::base64;
use nix::fcntl::{FcntlArg, fcntl};
use serde_json::Value;

use crate::child::Keylane;
use crate::cluster::{Cluster, LIMIT, full, have, wait_until};
use crate::exec::{Stage, committed, is_alive};
use crate::ledger::LEDGER;
use crate::produce::{Given, produce};

const KEYLANE: &str = env!("CARGO_BIN_EXE_keylane");

/// Keys `k0` to `k(keys - 1)` in turn.
fn keys_in_turn(records: usize, keys: usize) -> Vec<String> {
    (0..records).map(|n| format!("k{}", n % keys)).collect()
}

fn of_keys(keys: &[String]) -> Vec<Given<'_>> {
    keys.iter().map(|key| Given::of(key, b"v")).collect()
}

// ---- A server that is down -----------------------------------------------------------------------------------------

/// Takes a request and answers with a status; its body.
fn answer(mut stream: TcpStream, status: &str) -> io::Result<Vec<u8>> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line)? > 2 {
        if let Some((_, value)) = line.to_ascii_lowercase().split_once("content-length:") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
    Ok(body)
}

/// Answers every request with `status` until `done`; their bodies in order.
fn serve(listener: &TcpListener, status: &str, mut done: impl FnMut() -> bool) -> Vec<Vec<u8>> {
    listener.set_nonblocking(true).unwrap();
    let mut bodies = Vec::new();
    while !done() {
        match listener.accept() {
            Ok((stream, _)) => bodies.push(answer(stream, status).unwrap()),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
    bodies
}

/// It does not even listen at first (curl's exit 7), then answers 503 (22 by `-f`), then works.
#[test]
fn a_server_that_is_down_is_waited_for() {
    if !have("curl") {
        return;
    }
    let kafka = Cluster::any();
    let keys = keys_in_turn(60, 6);
    let values: Vec<String> = keys.iter().enumerate().map(|(n, key)| format!("{key} {n}")).collect();
    let records: Vec<Given<'_>> =
        keys.iter().zip(&values).map(|(key, value)| Given::of(key, value.as_bytes())).collect();
    let stage = Stage::of(&kafka, &records);
    let dead = kafka.topic(1, &[]);
    // Connections to brokers come from another address, so that none of them takes the port meanwhile.
    let address = TcpListener::bind("127.0.0.57:0").unwrap().local_addr().unwrap();
    let (group, url) = (stage.group("g"), format!("http://{address}/"));
    let log = stage.folder.path().join("log");
    let options =
        ["-e", "-w", "4", "--retry-exit", "7,22", "--dlq", &dead, "--joblog", log.to_str().unwrap()];
    let mut args = stage.args(&group, &options);
    // The real delays grow to 30 s.
    let (half, soon) = if full() { (30_000, &[][..]) } else { (800, &["--retry-max-delay", "400ms"][..]) };
    args.extend(soon);
    args.extend(["--", "curl", "-fsS", "--data-binary", "@-", &url]);
    let mut child = Keylane::run_against(kafka.brokers(), &args, &[("no_proxy", "*")]);

    let half = Duration::from_millis(half);
    child.wait_line("Failed to connect", LIMIT);
    std::thread::sleep(half);
    let listener = TcpListener::bind(address).unwrap();
    let until = Instant::now() + half;
    let refused = serve(&listener, "503 Service Unavailable", || Instant::now() >= until);
    let late = until + 2 * LIMIT;
    let taken = serve(&listener, "200 OK", || !child.is_running() || Instant::now() > late);
    let exit = child.wait_exit(LIMIT);
    assert_eq!((exit.code, exit.done("dead-lettered")), (Some(0), Some("0")), "{exit}");
    kafka.assert_caught_up(&group, &stage.topic);
    let text = fs::read_to_string(&log).unwrap();
    let mut exits: BTreeMap<&str, usize> = BTreeMap::new();
    text.lines().skip(1).for_each(|line| *exits.entry(line.split('\t').nth(6).unwrap()).or_default() += 1);
    assert!(exits["7"] >= 4 && exits["22"] == refused.len() && refused.len() >= 4, "{exits:?}");
    assert_eq!((exits["0"], exits.len()), (60, 3), "{exits:?}");

    let mut taken: Vec<String> = taken.into_iter().map(|body| String::from_utf8(body).unwrap()).collect();
    // By key, each key in the order in which they came; then all must be as they were produced.
    taken.sort_by_key(|body| body.split_once(' ').unwrap().0.to_owned());
    let mut expected = values.clone();
    expected.sort_by_key(|body| body.split_once(' ').unwrap().0.to_owned());
    assert_eq!(taken, expected);
}

#[test]
fn a_hanging_child_is_tried_again_and_then_set_aside() {
    let kafka = Cluster::any();
    let keys = keys_in_turn(40, 40);
    let stage = Stage::of(&kafka, &of_keys(&keys));
    let dead = kafka.topic(1, &[]);
    let script = "[ $KEYLANE_OFFSET != 3 ] || { echo $$ >> $D/pids; sleep 100 & echo $! >> $D/pids; wait; }";
    let timeout = if full() { "2s" } else { "300ms" };
    let options =
        ["--timeout", timeout, "--retries", "2", "--retry-delay", "10ms", "--dlq", &dead, "-w", "3"];
    let group = stage.group("g");
    let exit = stage.run(&group, &options, script, &[]);
    let done = (exit.code, exit.done("processed"), exit.done("retried"), exit.done("dead-lettered"));
    assert_eq!(done, (Some(1), Some("39"), Some("2"), Some("1")), "{exit}");
    let pids = stage.lines("pids");
    assert_eq!(pids.len(), 6, "three tries, each a group of two");
    assert!(!pids.iter().any(|pid| is_alive(pid)), "{pids:?}");
    let letter = &kafka.letters(&dead)[0];
    assert_eq!(letter["attempts"].as_i64(), Some(3), "{letter}");
    assert_eq!(stage.committed(&group), 40);
}

// ---- A terminal ----------------------------------------------------------------------------------------------------

/// A word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Runs a shell's line on a terminal of its own, where what is written to stdin is typed. Both streams are stdout.
fn on_a_terminal(line: &str) -> Keylane {
    let mut command = Command::new("script");
    command.args(["-q", "-e", "-c", line, "/dev/null"]).env("SHELL", "/bin/sh");
    Keylane::run_command(command)
}

/// `keylane pool … -- sh -c SCRIPT` as a shell's words.
fn pool_line(stage: &Stage<'_>, group: &str, options: &[&str], script: &str) -> String {
    let script = stage.script(script);
    let mut args = vec![KEYLANE];
    args.extend(stage.args(group, &["-b", stage.kafka.brokers()]));
    args.extend(options);
    args.extend(["--", "sh", "-c", &script]);
    args.into_iter().map(quoted).collect::<Vec<_>>().join(" ")
}

const CTRL_C: &[u8] = b"\x03";

#[test]
fn ctrl_c_lets_the_children_finish() {
    if !have("script") {
        return;
    }
    let kafka = Cluster::any();
    let keys = keys_in_turn(40, 40);
    let stage = Stage::of(&kafka, &of_keys(&keys));
    let group = stage.group("g");
    // A sleep that the terminal reaches ends at once, and its shell writes that it was reached too.
    let script = "trap 'echo x >> $D/reached' INT; echo $KEYLANE_OFFSET >> $D/begun; sleep 0.7 || exit 1; \
                  echo $KEYLANE_OFFSET >> $D/done";
    let line = format!("exec {}", pool_line(&stage, &group, &["-w", "4"], script));
    let mut terminal = on_a_terminal(&line);
    wait_until("four children", LIMIT, || (stage.lines("begun").len() >= 4).then_some(()));
    terminal.write_stdin(CTRL_C);
    let exit = terminal.wait_exit(LIMIT);
    assert_eq!((exit.code, exit.done("stop")), (Some(0), Some("signal")), "{exit}");
    assert_eq!((exit.done("unfinished"), exit.done("retried")), (Some("0"), Some("0")), "{exit}");
    let done = stage.lines("done").len();
    assert_eq!((stage.lines("begun").len(), stage.committed(&group)), (done, done as i64), "{exit}");
    assert!((4..40).contains(&done), "{exit}");
    assert_eq!(stage.lines("reached"), [] as [&str; 0], "Ctrl+C is for keylane alone");
}

#[test]
fn ctrl_c_again_ends_the_children() {
    if !have("script") {
        return;
    }
    let kafka = Cluster::any();
    let keys = keys_in_turn(8, 8);
    let stage = Stage::of(&kafka, &of_keys(&keys));
    let group = stage.group("g");
    let script = "trap '' TERM INT; echo $$ >> $D/pids; sleep 100 & echo $! >> $D/pids; wait";
    let line = format!("exec {}", pool_line(&stage, &group, &["-w", "2"], script));
    let mut terminal = on_a_terminal(&line);
    wait_until("two children", LIMIT, || (stage.lines("pids").len() >= 4).then_some(()));
    terminal.write_stdin(CTRL_C);
    terminal.wait_line("draining", LIMIT);
    terminal.write_stdin(CTRL_C);
    let exit = terminal.wait_exit(LIMIT);
    assert_eq!(exit.code, Some(130), "{exit}");
    let pids = stage.lines("pids");
    wait_until("all gone", Duration::from_secs(5), || (!pids.iter().any(|pid| is_alive(pid))).then_some(()));
    assert_eq!((pids.len(), stage.committed(&group)), (4, 0), "{exit}");
}

/// The terminal goes while keylane runs behind its shell.
#[test]
fn a_closed_terminal_ends_a_run_unless_it_has_nohup() {
    if !have("script") || !have("nohup") {
        return;
    }
    let kafka = Cluster::any();
    let keys = keys_in_turn(20, 20);
    let stage = Stage::of(&kafka, &of_keys(&keys));
    for (before, stop) in [("nohup", "stop=end"), ("", "stop=signal")] {
        let group = stage.group(stop);
        let told = stage.folder.path().join(stop);
        let line = pool_line(&stage, &group, &["-e", "-w", "2"], "echo x >> $D/begun; sleep 0.2");
        let line = format!("{before} {line} < /dev/null > {} 2>&1 & wait", told.display());
        let begun = stage.lines("begun").len();
        let mut terminal = on_a_terminal(&line);
        wait_until("a child", LIMIT, || (stage.lines("begun").len() > begun).then_some(()));
        terminal.signal("KILL");
        terminal.wait_exit(LIMIT);
        let last = wait_until("the end", LIMIT, || {
            let text = fs::read_to_string(&told).unwrap();
            text.lines().find(|line| line.starts_with("done:")).map(str::to_owned)
        });
        assert!(last.contains(stop), "{before}: {last}");
        assert_eq!(stage.committed(&group) == 20, stop == "stop=end", "{last}");
    }
}

// ---- Output that fails, ends or waits ------------------------------------------------------------------------------

/// `keylane ARGS` as a shell runs it, with what follows it on the line.
fn in_shell(kafka: &Cluster, args: &[&str], behind: &str) -> Keylane {
    let mut words = vec![KEYLANE];
    words.extend(args);
    words.extend(["-b", kafka.brokers()]);
    let line = words.into_iter().map(quoted).collect::<Vec<_>>().join(" ");
    let mut command = Command::new("bash");
    command.args(["-c", &format!("{line} {behind}")]);
    Keylane::run_command(command)
}

#[test]
fn a_full_disk_ends_the_run_with_nothing_committed() {
    let kafka = Cluster::any();
    let topic = kafka.topic(3, &[]);
    kafka.seed(&topic, 20_000, 100, &[]);
    for (name, role) in [("p", "pool"), ("s", "sequential")] {
        let group = format!("{topic}-{name}");
        let args = [role, "-t", &topic, "-g", &group, "-e", "--print", "%s\n"];
        let exit = in_shell(&kafka, &args, "> /dev/full").wait_exit(LIMIT);
        assert_eq!(exit.code, Some(74), "{exit}");
        assert!(exit.stderr.contains("writing to stdout failed"), "{exit}");
        assert_eq!(committed(&kafka, &group, &topic), 0, "{exit}");
    }
    // Some of it fits: what is on the disk is at least what is committed.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out");
    let group = format!("{topic}-some");
    let script = format!("trap '' XFSZ; ulimit -f 100; exec \"$@\" > {}", file.display());
    let mut command = Command::new("bash");
    command.args(["-c", &script, "bash", KEYLANE, "pool", "-b", kafka.brokers(), "-t", &topic, "-g", &group]);
    command.args(["-e", "--print", LEDGER, "--work-delay", "0..1ms", "--commit-interval", "50ms"]);
    let exit = Keylane::run_command(command).wait_exit(LIMIT);
    assert_eq!(exit.code, Some(74), "{exit}");
    let text = fs::read_to_string(&file).unwrap();
    let mut history = crate::ledger::History::default();
    // The last line may have been cut.
    let whole = text.lines().filter(|line| line.ends_with('.'));
    let entries = whole.map(|line| {
        let mut words = line.split(' ').map(|word| word.parse::<i64>().ok());
        crate::ledger::Entry {
            time: Duration::ZERO,
            partition: words.next().unwrap().unwrap() as i32,
            offset: words.next().unwrap().unwrap(),
            key: String::new(),
        }
    });
    history.add(&entries.collect::<Vec<_>>());
    let committed = kafka.committed(&group, &topic);
    history.assert_covers(&committed);
    assert!(committed.values().sum::<i64>() > 0, "{exit}");
}

/// With `--fsync` nothing is committed that is not on the disk. Files of procfs take writes and refuse to be synced.
#[test]
fn what_cannot_be_synced_is_not_committed() {
    let kafka = Cluster::any();
    let topic = kafka.topic(3, &[]);
    kafka.seed(&topic, 5000, 100, &[]);
    for (role, ending) in [("pool", "-e"), ("sequential", "-e"), ("pool", "--commit-interval=10ms")] {
        let group = format!("{topic}-{role}{ending}");
        let args = [role, "-t", &topic, "-g", &group, ending, "--fsync", "--print", "%o\n"];
        let exit = in_shell(&kafka, &args, "> /proc/self/comm").wait_exit(LIMIT);
        assert_eq!(exit.code, Some(74), "{exit}");
        assert!(exit.stderr.contains("writing to stdout failed"), "{exit}");
        assert_eq!(committed(&kafka, &group, &topic), 0, "{exit}");
        let args = [role, "-t", &topic, "-g", &group, "-e", "--print", "%o\n"];
        let exit = in_shell(&kafka, &args, "> /proc/self/comm").wait_exit(LIMIT);
        assert_eq!((exit.code, committed(&kafka, &group, &topic)), (Some(0), 5000), "{exit}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out");
    for role in ["pool", "sequential"] {
        let group = format!("{topic}-{role}");
        let args = [role, "-t", &topic, "-g", &group, "-e", "--fsync", "--print", "%o\n"];
        let exit = in_shell(&kafka, &args, &format!("> {}", file.display())).wait_exit(LIMIT);
        assert_eq!((exit.code, committed(&kafka, &group, &topic)), (Some(0), 5000), "{exit}");
        assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 5000);
    }
    let group = format!("{topic}-pipe");
    let args = ["pool", "-t", &topic, "-g", &group, "-e", "--fsync", "--print", "%o\n"];
    let exit = in_shell(&kafka, &args, "| cat").wait_exit(LIMIT);
    assert!(exit.code == Some(0) && exit.stderr.contains("stdout is no file"), "{exit}");
}

/// The bytes that the pipe of the next test holds: a page, the least there is.
const PIPE_BYTES: usize = 4096;

#[test]
fn a_reader_that_goes_away_ends_the_run_quietly() {
    let kafka = Cluster::any();
    let topic = kafka.topic(1, &[]);
    kafka.seed(&topic, 20_000, 100, &[]);
    for (role, more) in
        [("pool", &["-w", "4"][..]), ("sequential", &[]), ("pool", &["--work-delay", "0..1ms"])]
    {
        let group = format!("{topic}-{role}-{}", more.len() + more.concat().len());
        let (reader, writer) = io::pipe().unwrap();
        let held = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES as i32)).unwrap() as usize;
        // A run that does not end is a failed test, not one without end.
        let mut command = Command::new("timeout");
        command.args([
            "--foreground",
            "-s",
            "KILL",
            "60",
            KEYLANE,
            role,
            "-b",
            kafka.brokers(),
            "-t",
            &topic,
            "-g",
            &group,
            "-q",
            "--print",
            LEDGER,
        ]);
        command.args(more).stdout(writer).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        // It has the other end to itself.
        drop(command);
        let mut reader = BufReader::with_capacity(64, reader);
        let mut line = String::new();
        for _ in 0..200 {
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        drop(reader);
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), told.as_str()), (Some(0), ""), "{role} {more:?}");
        let committed = committed(&kafka, &group, &topic);
        // Lines of at least nine bytes: `0 0 key-0.`
        let most = 200 + (64 + held) / 9;
        assert!(committed <= most as i64, "{role} {more:?}: {committed} committed, {most} written at most");
    }
    // The words of the issue.
    let group = format!("{topic}-head");
    let args = ["pool", "-t", &topic, "-g", &group, "-e", "-q", "--print", "%s\n"];
    let exit = in_shell(&kafka, &args, "| head -1; exit ${PIPESTATUS[0]}").wait_exit(LIMIT);
    let told = (exit.code, exit.stdout_lines().len(), exit.stderr.as_str());
    assert_eq!(told, (Some(0), 1, ""), "{exit}");
}

/// It waits for its reader, holds no more than the pipe does, and stays in its group meanwhile.
#[test]
fn a_slow_reader_is_waited_for() {
    let kafka = Cluster::any();
    let topic = kafka.topic(2, &[]);
    kafka.seed(&topic, 30_000, 100, &[]);
    let folder = tempfile::tempdir().unwrap();
    let flag = folder.path().join("go");
    let mut args = vec!["pool", "-t", &topic, "-g", &topic, "-e", "--print", LEDGER, "--stats", "200ms"];
    args.extend(["-X", "session.timeout.ms=3000", "-X", "heartbeat.interval.ms=500"]);
    args.extend(["--commit-interval", "100ms"]);
    let behind =
        format!("| {{ until [ -e {} ]; do sleep 0.1; done; cat; }}; exit ${{PIPESTATUS[0]}}", flag.display());
    let mut child = in_shell(&kafka, &args, &behind);
    child.wait_line("assigned", LIMIT);
    std::thread::sleep(Duration::from_secs(5));
    let committed = committed(&kafka, &topic, &topic);
    let most = 65_536 / 9;
    assert!(committed <= most, "{committed} are committed, and the pipe takes {most} at most");
    fs::write(&flag, "").unwrap();
    let exit = child.wait_exit(LIMIT);
    assert_eq!((exit.code, exit.done("rebalances")), (Some(0), Some("0")), "{}", exit.stderr);
    let entries = crate::ledger::ledger(&child);
    crate::ledger::assert_ordered(&entries);
    let mut history = crate::ledger::History::default();
    history.add(&entries);
    assert_eq!((history.count(), history.repeats.len()), (30_000, 0));
    kafka.assert_caught_up(&topic, &topic);
}

// ---- Records of every shape ----------------------------------------------------------------------------------------

fn base64_of(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    base64::append(&mut text, bytes);
    String::from_utf8(text).unwrap()
}

#[test]
fn every_record_is_printed_unchanged() {
    let kafka = Cluster::any();
    let large: Vec<u8> = (0..10u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let names: Vec<String> = (0..1000).map(|n| format!("h{n}")).collect();
    let mut headers: Vec<(&[u8], Option<&[u8]>)> =
        names.iter().map(|name| (name.as_bytes(), Some(&b"some text"[..]))).collect();
    headers.extend([(&b"h0"[..], Some(&b"last \xff\0\n"[..])), (b"h1", None), (b"h2", Some(b""))]);
    let fields: [Option<&[u8]>; 7] = [
        Some(b"plain"),
        Some(b"a\nb\r\n\"\\"),
        Some(b"\0\0"),
        Some(b"\xff\xfe"),
        Some(b""),
        None,
        Some(&large),
    ];
    // The key is the value of the record before, but for the large one.
    let keys: [Option<&[u8]>; 7] =
        [None, Some(b"plain"), Some(b"a\nb"), Some(b"\0\0"), Some(b"\xff\xfe"), Some(b""), None];
    let records: Vec<Given<'_>> =
        keys.iter().zip(fields).map(|(key, value)| Given { key: *key, value, headers: &headers }).collect();
    let stage = Stage::of(&kafka, &records);
    let run = |role: &str, format: &str, name: &str| {
        let group = stage.group(&format!("{role}-{name}"));
        let mut command = Command::new("timeout");
        command.args(["60", KEYLANE, role, "-b", kafka.brokers(), "-t", &stage.topic, "-g", &group]);
        if role == "pool" {
            command.args(["--order", "partition"]);
        }
        let output = command.args(["-e", "-q", "--print", format]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let mut shown = Vec::new();
    for (at, (name, value)) in headers.iter().enumerate() {
        shown.extend(if at == 0 { &b""[..] } else { b"," });
        shown.extend([*name, b"=", value.unwrap_or(b"NULL")].concat());
    }
    let length = |bytes: Option<&[u8]>| bytes.map_or(-1, |bytes| bytes.len() as i64);
    let mut expected = Vec::new();
    for (offset, (key, value)) in keys.iter().zip(fields).enumerate() {
        write!(expected, "{} 0 {offset} 1700000000000 {}:", stage.topic, length(*key)).unwrap();
        expected.extend([key.unwrap_or_default(), b"|"].concat());
        write!(expected, "{}:", length(value)).unwrap();
        expected.extend((length(value) as i32).to_be_bytes());
        expected.extend([value.unwrap_or_default(), b"|", &shown, b"\n"].concat());
    }
    for role in ["pool", "sequential"] {
        let printed = run(role, "%t %p %o %T %K:%k|%S:%R%s|%h\\n", "letters");
        assert!(printed == expected, "{role}: {} bytes, not {}", printed.len(), expected.len());
    }

    let printed = run("pool", "json", "json");
    let lines: Vec<&[u8]> = printed.strip_suffix(b"\n").unwrap().split(|byte| *byte == b'\n').collect();
    assert_eq!(lines.len(), 7);
    let member = |bytes: Option<&[u8]>| match bytes.map(std::str::from_utf8) {
        None => (Some(Value::Null), None),
        Some(Ok(text)) => (Some(Value::from(text)), None),
        Some(Err(_)) => (None, Some(Value::from(base64_of(bytes.unwrap())))),
    };
    for (offset, line) in lines.into_iter().enumerate() {
        let line: Value = serde_json::from_slice(line).unwrap();
        let found = |name: &str| line.get(name).cloned();
        assert_eq!(found("offset"), Some(Value::from(offset)));
        assert!((found("key"), found("key_b64")) == member(keys[offset]), "key of {offset}");
        assert!((found("value"), found("value_b64")) == member(fields[offset]), "value of {offset}");
        let shown = line["headers"].as_array().unwrap();
        assert_eq!((shown.len(), &shown[0]), (1003, &serde_json::json!(["h0", "some text"])));
        let last = [
            serde_json::json!(["h0", { "b64": base64_of(b"last \xff\0\n") }]),
            serde_json::json!(["h1", null]),
            serde_json::json!(["h2", ""]),
        ];
        assert_eq!(shown[1000..], last);
    }
}

/// confluentinc/parallel-consumer#318 and #183, with children: null keys have no order, the empty key has one; and
/// what a child is told of keys that are no text.
#[test]
fn case_11_null_and_empty_keys_of_children() {
    let kafka = Cluster::any();
    let mut keys: Vec<Option<&[u8]>> = vec![None; 8];
    keys.extend([Some(&b""[..]); 4]);
    keys.extend([Some(&b"\xff"[..]), Some(b"a\nb"), Some(b"\0")]);
    let records: Vec<Given<'_>> =
        keys.iter().map(|key| Given { key: *key, value: Some(b"v"), headers: &[] }).collect();
    let stage = Stage::of(&kafka, &records);
    let group = stage.group("g");
    let script = "env -0 > $D/env.$KEYLANE_OFFSET; echo b $KEYLANE_OFFSET >> $D/log; sleep 0.3; \
                  echo e $KEYLANE_OFFSET >> $D/log";
    let exit = stage.run(&group, &["-w", "4"], script, &[]);
    assert_eq!((exit.code, stage.committed(&group)), (Some(0), 15), "{exit}");

    let log = stage.lines("log");
    let place = |event: &str, offset: usize| {
        log.iter().position(|line| *line == format!("{event} {offset}")).unwrap()
    };
    let overlaps = |a: usize, b: usize| place("b", a) < place("e", b) && place("b", b) < place("e", a);
    assert!((1..8).any(|other| overlaps(0, other)), "null keys side by side: {log:?}");
    for offset in 8..11 {
        assert!(place("e", offset) < place("b", offset + 1), "the empty key is one lane: {log:?}");
    }
    for (offset, key) in keys.iter().enumerate() {
        let env = stage.file(&format!("env.{offset}"));
        let env: Vec<&[u8]> = env.split(|byte| *byte == 0).collect();
        let of = |name: &str| env.iter().find_map(|line| line.strip_prefix(name.as_bytes()));
        let text = key.filter(|key| std::str::from_utf8(key).is_ok() && !key.contains(&0));
        assert_eq!(of("KEYLANE_KEY="), text, "{key:?}");
        let encoded = key.map(base64_of);
        assert_eq!(of("KEYLANE_KEY_B64="), encoded.as_deref().map(str::as_bytes), "{key:?}");
    }
}

/// edenhill/kcat#36, for letters: what cannot go back is an exit status, and is left where it is.
#[test]
fn case_23_a_letter_that_is_refused_on_its_way_back() {
    let kafka = Cluster::any();
    let (topic, dead) = (kafka.topic(1, &["max.message.bytes=2000"]), kafka.topic(1, &[]));
    let large: Vec<u8> = (0..20_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let headers: [(&[u8], Option<&[u8]>); 4] = [
        (b"keylane-dlq-topic", Some(topic.as_bytes())),
        (b"keylane-dlq-partition", Some(b"0")),
        (b"keylane-dlq-offset", Some(b"0")),
        (b"keylane-dlq-timestamp", Some(b"1700000000000")),
    ];
    let values: [&[u8]; 3] = [b"small", &large, b"later"];
    let letters = values.map(|value| Given { key: Some(b"k"), value: Some(value), headers: &headers });
    produce(kafka.brokers(), &dead, 0, &letters);
    let replay = ["dlq", "replay", "-t", &dead, "--execute"];
    for _ in 0..2 {
        let exit = kafka.keylane(&replay).wait_exit(LIMIT);
        assert_eq!(exit.code, Some(65), "{exit}");
        assert!(exit.stderr.contains(&format!("{dead}/0@1")), "{exit}");
        assert!(exit.stderr.contains("MESSAGE_TOO_LARGE"), "{exit}");
    }
    assert_eq!(kafka.committed(&format!("{dead}.replay"), &dead)[&0], 1);
}
