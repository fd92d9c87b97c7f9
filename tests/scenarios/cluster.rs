//! Brokers: `keylane broker` for one test, the Kafka of `KEYLANE_TEST_KAFKA`, or a Kafka of a test's own; topics,
//! records, offsets.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::child::{Exit, Keylane};

const BROKERS: &str = "KEYLANE_TEST_KAFKA";

/// Long enough for any one step on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Whether the full sizes are asked for.
pub fn full() -> bool {
    std::env::var("KEYLANE_TEST_FULL").is_ok_and(|value| value != "0" && !value.is_empty())
}

/// `quick` on a CI machine, a third of it on the broker inside, where everybody waits for it; `when_full` if asked for.
pub fn size(quick: usize, when_full: usize) -> usize {
    match (full(), kafka()) {
        (true, _) => when_full,
        (false, Some(_)) => quick,
        (false, None) => quick.div_ceil(3),
    }
}

/// Held by every test for as long as it runs; a test that measures rates holds it alone.
static QUIET: RwLock<()> = RwLock::new(());

#[allow(dead_code, reason = "held, not read")]
enum Turn {
    Shared(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

/// Brokers to test against.
pub struct Cluster {
    brokers: String,
    kind: Kind,
    _turn: Turn,
}

enum Kind {
    /// `keylane broker`, which ends with this.
    Dev(Keylane),
    /// The one of `KEYLANE_TEST_KAFKA`.
    Shared,
    /// One that this test has started by `scripts/kafka`.
    Own { name: String, version: Option<String> },
}

/// Offsets of a partition as a group sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    pub committed: Option<i64>,
    pub end: i64,
}

impl Cluster {
    /// The Kafka of `KEYLANE_TEST_KAFKA`, or a broker of keylane's own.
    pub fn any() -> Self {
        let turn = Turn::Shared(QUIET.read().unwrap_or_else(PoisonError::into_inner));
        Self::begin(turn)
    }

    /// The same, while no other test runs.
    pub fn alone() -> Self {
        let turn = Turn::Alone(QUIET.write().unwrap_or_else(PoisonError::into_inner));
        Self::begin(turn)
    }

    fn begin(turn: Turn) -> Self {
        match kafka() {
            Some(brokers) => Self { brokers, kind: Kind::Shared, _turn: turn },
            None => Self::start_dev(&[], turn),
        }
    }

    /// A broker of keylane's own, with these arguments more.
    pub fn dev(args: &[&str]) -> Self {
        Self::start_dev(args, Turn::Shared(QUIET.read().unwrap_or_else(PoisonError::into_inner)))
    }

    fn start_dev(args: &[&str], turn: Turn) -> Self {
        let mut all = vec!["broker", "--listen", "127.0.0.1:0", "--retain", "1GiB"];
        all.extend(args);
        let child = Keylane::run_bare(&all, &[]);
        let line = child.wait_line("listening: ", LIMIT);
        let brokers = line.text.trim_start_matches("listening: ").to_owned();
        Self { brokers, kind: Kind::Dev(child), _turn: turn }
    }

    /// The Kafka of `KEYLANE_TEST_KAFKA`, for what only a real one has; none without it.
    pub fn real() -> Option<Self> {
        kafka()?;
        Some(Self::any())
    }

    /// Where peers can run (Java comes with `scripts/kafka`), first the real Kafka, then a broker of keylane's own,
    /// which has to serve them too.
    pub fn each_for_peers(mut test: impl FnMut(&Cluster)) {
        if let Some(kafka) = Self::real() {
            test(&kafka);
            drop(kafka);
            test(&Self::dev(&[]));
        }
    }

    /// Stops keylane's own broker and answers what it said.
    pub fn end_dev(&mut self) -> Exit {
        let Kind::Dev(child) = &mut self.kind else { panic!("not a broker of keylane's own") };
        child.signal("TERM");
        child.wait_exit(LIMIT)
    }

    /// A new cluster, removed at the end; `start` are further arguments of `scripts/kafka start`.
    pub fn own(name: &str, version: Option<&str>, start: &[&str]) -> Option<Self> {
        kafka()?;
        Some(Self::start_own(name, version, start))
    }

    /// The same, whether or not a real Kafka is asked for.
    pub fn start_own(name: &str, version: Option<&str>, start: &[&str]) -> Self {
        let turn = Turn::Shared(QUIET.read().unwrap_or_else(PoisonError::into_inner));
        let name = format!("test-{name}");
        // What an interrupted run has left.
        script(&["clean", "--name", &name]);
        let mut args = vec!["start", "--name", &name];
        args.extend(version.iter().flat_map(|version| ["--version", version]));
        args.extend(start);
        let answer = script(&args);
        let brokers = answer
            .lines()
            .find_map(|line| line.strip_prefix("KAFKA_BROKERS="))
            .unwrap_or_else(|| panic!("no KAFKA_BROKERS= in {answer}"))
            .to_owned();
        let kind = Kind::Own { name, version: version.map(str::to_owned) };
        Self { brokers, kind, _turn: turn }
    }

    pub fn brokers(&self) -> &str {
        &self.brokers
    }

    /// A verb of `scripts/kafka` on this test's own cluster.
    pub fn script(&self, verb: &str, args: &[&str]) {
        let Kind::Own { name, .. } = &self.kind else { panic!("not a cluster of its own") };
        let mut all = vec![verb, "--name", name];
        all.extend(args);
        script(&all);
    }

    /// Starts keylane on these brokers.
    pub fn keylane(&self, args: &[&str]) -> Keylane {
        Keylane::run_against(&self.brokers, args, &[])
    }

    /// Runs keylane to its end, which must be exit 0.
    pub fn run(&self, args: &[&str]) -> Exit {
        let exit = self.keylane(args).wait_exit(4 * LIMIT);
        assert_eq!(exit.code, Some(0), "keylane {args:?}: {exit}");
        exit
    }

    /// A new topic. Its name is new in every run, so that brokers can be used again.
    pub fn topic(&self, partitions: u32, configs: &[&str]) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let name = format!("t{ms}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let partitions = partitions.to_string();
        let mut args = vec!["topic", "create", &name, "-p", &partitions];
        args.extend(configs.iter().flat_map(|config| ["-c", config]));
        self.run(&args);
        name
    }

    /// Writes `records` over `keys` keys with `seed`.
    pub fn seed(&self, topic: &str, records: usize, keys: usize, more: &[&str]) {
        let (records, keys) = (records.to_string(), keys.to_string());
        let mut args = vec!["seed", "-t", topic, "-n", &records, "-k", &keys];
        args.extend(more);
        let exit = self.run(&args);
        assert_eq!(exit.done("sent"), Some(records.as_str()), "{exit}");
        assert_eq!(exit.done("failed"), Some("0"), "{exit}");
    }

    /// What `group` has committed, and where the partitions of `topic` end.
    pub fn offsets(&self, group: &str, topic: &str) -> BTreeMap<i32, Offsets> {
        let mut lag = self.keylane(&["lag", "-g", group, "-t", topic, "--once", "--format", "json"]);
        let exit = lag.wait_exit(LIMIT);
        let line = exit.stdout.lines().find(|line| line.contains("\"partitions\""));
        let line = line.unwrap_or_else(|| panic!("no answer about {group}: {exit}"));
        let answer: serde_json::Value = serde_json::from_str(line).unwrap();
        let partitions = answer["partitions"].as_array().unwrap_or_else(|| panic!("{line}"));
        let mut offsets = BTreeMap::new();
        for partition in partitions.iter().filter(|partition| partition["topic"] == topic) {
            let number = |name: &str| partition[name].as_i64();
            let index = number("partition").unwrap_or_else(|| panic!("{line}")) as i32;
            let end = number("log_end_offset").unwrap_or_else(|| panic!("no end offset in {line}"));
            offsets.insert(index, Offsets { committed: number("current_offset"), end });
        }
        assert!(!offsets.is_empty(), "no partition of {topic} in {line}");
        offsets
    }

    /// The first offset that `group` has not committed, per partition.
    pub fn committed(&self, group: &str, topic: &str) -> BTreeMap<i32, i64> {
        let offsets = self.offsets(group, topic);
        offsets.into_iter().map(|(partition, offsets)| (partition, offsets.committed.unwrap_or(0))).collect()
    }

    /// Log ends, by way of a group that exists.
    pub fn ends(&self, group: &str, topic: &str) -> BTreeMap<i32, i64> {
        let offsets = self.offsets(group, topic);
        offsets.into_iter().map(|(partition, offsets)| (partition, offsets.end)).collect()
    }

    /// Asserts that `group` has no lag.
    pub fn assert_caught_up(&self, group: &str, topic: &str) {
        for (partition, offsets) in self.offsets(group, topic) {
            // A partition in which nothing was ever read may have no commit.
            assert_eq!(offsets.committed.unwrap_or(0), offsets.end, "{topic}/{partition}");
        }
    }

    /// What `dlq list` tells of each letter of a dead-letter topic.
    pub fn letters(&self, dead: &str) -> Vec<serde_json::Value> {
        let list = self.run(&["dlq", "list", "-t", dead, "--format", "json"]).stdout;
        list.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Starts a Java program, a class of Kafka's jars or a file of `tests/peers`.
    pub fn java(&self, program: &str, args: &[&str]) -> Keylane {
        let mut command = Command::new(repository("scripts/kafka"));
        command.arg("run");
        if let Kind::Own { version: Some(version), .. } = &self.kind {
            command.args(["--version", version]);
        }
        command.arg(if program.ends_with(".java") {
            repository(&format!("tests/peers/{program}"))
        } else {
            program.to_owned()
        });
        command.args(args);
        Keylane::run_command(command)
    }

    /// What Java's console consumer prints of a topic from its beginning on: for each record its partition, its offset
    /// and what `more` asks for, but no value.
    pub fn read_by_java(&self, topic: &str, more: &[&str]) -> String {
        let mut args = vec!["--bootstrap-server", &self.brokers, "--topic", topic, "--from-beginning"];
        args.extend(["--timeout-ms", "4000"]);
        for property in ["print.partition=true", "print.offset=true", "print.value=false"] {
            args.extend(["--formatter-property", property]);
        }
        args.extend(more);
        // It ends by its timeout, which is no success to it.
        self.java("org.apache.kafka.tools.consumer.ConsoleConsumer", &args).wait_exit(2 * LIMIT).stdout
    }

    /// Runs a Java program to its end, which must be exit 0.
    pub fn run_java(&self, program: &str, args: &[&str]) -> Exit {
        let exit = self.java(program, args).wait_exit(2 * LIMIT);
        assert_eq!(exit.code, Some(0), "{program} {args:?}: {exit}");
        exit
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Kind::Own { name, .. } = &self.kind {
            let mut command = Command::new(repository("scripts/kafka"));
            let _ = command.args(["clean", "--name", name]).output();
        }
    }
}

/// Polls until `done` answers something.
///
/// # Panics
/// When `timeout` passes.
pub fn wait_until<T>(what: &str, timeout: Duration, mut done: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + timeout;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < until, "not within {timeout:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a peer can be run here; says so when not.
pub fn have(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()));
    if !found {
        say(&format!("no {program} here: its part of a test is left out"));
    }
    found
}

/// A file of the repository.
pub fn repository(path: &str) -> String {
    format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// What `KEYLANE_TEST_KAFKA` names.
pub fn kafka() -> Option<String> {
    static SAID: Once = Once::new();
    let brokers = std::env::var(BROKERS).ok().filter(|brokers| !brokers.is_empty());
    if brokers.is_none() {
        SAID.call_once(|| {
            say(&format!("{BROKERS}=HOST:PORT names no Kafka: what needs a real one is left out"))
        });
    }
    brokers
}

/// Past the capture of the test harness, which hides what a passing test prints.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "scenarios: {line}");
}

fn script(args: &[&str]) -> String {
    let output = Command::new(repository("scripts/kafka")).args(args).output().expect("scripts/kafka runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "scripts/kafka {args:?}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}
