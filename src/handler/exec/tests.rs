use std::ffi::OsString;
use std::time::Instant;

use super::pipes::PIPE_BYTES_MIN;
use super::*;
use crate::handler::CommandMode;
use crate::handler::lines::Lines;
use crate::handler::tests::batch_of;

const ABOUT: About<'_> = About { topic: "orders", partition: 2, attempt: 1, batch_records: None };

struct Stage {
    exec: Exec,
    bell: Bell,
    folder: tempfile::TempDir,
}

impl Stage {
    /// `sh -c SCRIPT`, with a folder as `$D`.
    fn of(script: &str, change: impl FnOnce(&mut CommandConfig)) -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let script = format!("D={}; {script}", folder.path().display());
        let mut config = CommandConfig {
            words: ["sh", "-c", &script].map(OsString::from).to_vec(),
            mode: CommandMode::Exec(None),
            replace: false,
            tag: false,
            timeout: None,
            exits: ExitCodes::default(),
        };
        change(&mut config);
        let exec = Exec::new(Arc::new(Command::new(&config).unwrap()), "kitchen", 0).unwrap();
        Stage { exec, bell: Bell::new().unwrap(), folder }
    }

    fn run(&mut self, value: Option<&[u8]>, ends: Option<Ends>) -> Ran {
        let (header, payload) = batch_of(Some(b"k"), value, &[(b"h", Some(b"1"))]);
        let record = Record::parse(&header, &payload, 0).unwrap();
        let began = Instant::now();
        let watch = Watch { bell: &self.bell, now: &|| began.elapsed(), ends: &|| ends, started: &|_| {} };
        self.exec.run(ABOUT, &record, None, &watch).unwrap()
    }

    fn file(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.folder.path().join(name)).unwrap_or_default()
    }
}

fn failed(ran: Ran) -> (Kind, End) {
    let Outcome::Failed(failed) = ran.outcome else { panic!("{ran:?}") };
    (failed.kind, failed.end)
}

#[test]
fn values_arrive_as_they_are() {
    let mut stage = Stage::of("cat > $D/in; echo $KEYLANE_VALUE_NULL > $D/null", |_| {});
    let large: Vec<u8> = (0..1_000_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
    for value in [&b"v"[..], b"a\nb\0\xff", b"", &large[..PIPE_BYTES_MIN], &large[..PIPE_BYTES + 1], &large] {
        let ran = stage.run(Some(value), None);
        assert_eq!((&ran.outcome, ran.sent_bytes), (&Outcome::Done, value.len() as u64));
        assert!(stage.file("in") == value);
        assert_eq!(stage.file("null"), b"\n");
    }
    assert_eq!(stage.run(None, None).outcome, Outcome::Done);
    assert_eq!((stage.file("in"), stage.file("null")), (Vec::new(), b"1\n".to_vec()));
}

#[test]
fn a_child_that_does_not_read_is_no_error() {
    let large = vec![b'x'; 1_000_000];
    let mut stage = Stage::of("exit 0", |_| {});
    assert_eq!(stage.run(Some(&large), None).outcome, Outcome::Done);
    let mut stage = Stage::of("exec <&-; sleep 0.2; exit 3", |_| {});
    assert_eq!(failed(stage.run(Some(&large), None)), (Kind::Ordinary, End::Exit(3)));
}

#[test]
fn what_a_child_writes_is_no_deadlock() {
    // Reads nothing before it has written more than a pipe holds.
    let mut stage = Stage::of("head -c 300000 /dev/zero; cat > $D/in", |_| {});
    stage.exec.out.lines = Lines::to(Target::Nowhere);
    let large = vec![b'x'; 300_000];
    let ran = stage.run(Some(&large), None);
    assert_eq!((ran.outcome, ran.received_bytes), (Outcome::Done, 300_000));
    assert_eq!(stage.file("in").len(), 300_000);
}

#[test]
fn ends_are_told_apart() {
    let mut stage = Stage::of("read -r code; kill -$code $$ 2>/dev/null; exit $code", |_| {});
    let mut with = |text: &str| failed(stage.run(Some(text.as_bytes()), None));
    assert_eq!(with("65\n"), (Kind::Reject, End::Exit(65)));
    assert_eq!(with("75\n"), (Kind::Temporary, End::Exit(75)));
    assert_eq!(with("127\n"), (Kind::CannotRun(Exit::NotFound), End::Exit(127)));
    assert_eq!(with("9\n"), (Kind::Ordinary, End::Signal(9)));
}

#[test]
fn a_background_process_delays_nothing() {
    let mut stage = Stage::of("sleep 30 & echo $! > $D/pid", |_| {});
    let began = Instant::now();
    assert_eq!(stage.run(Some(b"v"), None).outcome, Outcome::Done);
    assert!(began.elapsed() < Duration::from_secs(10));
    let pid: i32 = String::from_utf8(stage.file("pid")).unwrap().trim().parse().unwrap();
    // It is the user's own, and left alone.
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

#[test]
fn a_child_over_its_time_is_ended_with_its_group() {
    let script = "trap '' TERM; sleep 60 & echo $! > $D/pid; while :; do sleep 1; done";
    let mut stage = Stage::of(script, |config| config.timeout = Some(Duration::from_millis(300)));
    let began = Instant::now();
    assert_eq!(failed(stage.run(Some(b"v"), None)), (Kind::Ordinary, End::TimedOut));
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(2300) && took < Duration::from_secs(10), "{took:?}");
    let pid = String::from_utf8(stage.file("pid")).unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    while state().is_ok_and(|stat| !stat.contains(") Z")) {
        assert!(began.elapsed() < Duration::from_secs(20), "the grandchild is gone");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// As a process that is stopped and goes on: the time is over, and the child ended long before.
#[test]
fn a_child_that_ended_while_keylane_stood_still_was_in_time() {
    let mut stage = Stage::of("exit 0", |config| config.timeout = Some(Duration::from_secs(1)));
    let (header, payload) = batch_of(Some(b"k"), Some(b"v"), &[]);
    let record = Record::parse(&header, &payload, 0).unwrap();
    let calls = std::cell::Cell::new(0);
    let now = || {
        calls.set(calls.get() + 1);
        if calls.get() == 1 {
            return Duration::ZERO;
        }
        std::thread::sleep(Duration::from_millis(500));
        Duration::from_secs(3600)
    };
    for ends in [None, Some(Ends { term_at: Duration::from_secs(1), kill_at: Duration::from_secs(2) })] {
        calls.set(0);
        let watch = Watch { bell: &stage.bell, now: &now, ends: &|| ends, started: &|_| {} };
        assert_eq!(stage.exec.run(ABOUT, &record, None, &watch).unwrap().outcome, Outcome::Done);
    }
}

#[test]
fn what_the_pool_ends_is_unfinished() {
    let mut stage = Stage::of("trap 'exit 0' TERM; while :; do sleep 0.05; done", |_| {});
    let ends = |term_ms, kill_ms| {
        Some(Ends { term_at: Duration::from_millis(term_ms), kill_at: Duration::from_millis(kill_ms) })
    };
    assert_eq!(stage.run(Some(b"v"), ends(200, 9_000)).outcome, Outcome::Unfinished);
    let mut deaf = Stage::of("trap '' TERM; while :; do sleep 0.05; done", |_| {});
    let began = Instant::now();
    assert_eq!(deaf.run(Some(b"v"), ends(100, 300)).outcome, Outcome::Unfinished);
    assert!(began.elapsed() < Duration::from_secs(5));
    // One that ends before is not asked twice.
    let mut quick = Stage::of("exit 65", |_| {});
    assert_eq!(failed(quick.run(Some(b"v"), ends(20_000, 30_000))), (Kind::Reject, End::Exit(65)));
}

#[test]
fn arguments_environment_and_headers() {
    let script = r#"printf '<%s>' "$@" $KEYLANE_TOPIC $KEYLANE_KEY $KEYLANE_HEADER_H > $D/out
        cat <&$KEYLANE_HEADERS_FD >> $D/out"#;
    let mut stage = Stage::of(script, |config| {
        config.replace = true;
        config.words.extend(["sh", "{}", "{key}@{offset}"].map(OsString::from));
    });
    assert_eq!(stage.run(Some(b"-a  'b'\n*"), None).outcome, Outcome::Done);
    assert_eq!(stage.file("out"), b"<-a  'b'\n*><k@0><orders><k><1>[[\"aA==\",\"MQ==\"]]");
    assert_eq!(failed(stage.run(Some(b"\0"), None)), (Kind::Reject, End::Answer));
}

#[test]
fn a_child_cannot_spoil_the_pipes_for_the_next() {
    let Ok(stage) = std::process::Command::new("python3").arg("-c").arg("").status() else { return };
    assert!(stage.success());
    let mut stage = Stage::of("", |config| {
        let script = "import os,sys\nos.write(1, b'x' * 200000)\nos.set_blocking(1, False)";
        config.words = ["python3", "-c", script].map(OsString::from).to_vec();
    });
    stage.exec.out.lines = Lines::to(Target::Nowhere);
    for _ in 0..3 {
        let ran = stage.run(None, None);
        assert_eq!((ran.outcome, ran.received_bytes), (Outcome::Done, 200_000));
    }
}
