//! The keylane binary as a child process: its lines with times, its exit, its signals. Dropped, it is killed.
//!
//! A test against real brokers runs other programs, peers, by the same type.

#![allow(dead_code, reason = "each test program uses a part of this module")]
#![allow(missing_docs, unreachable_pub, reason = "test support; the names say what they do")]

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Out,
    Err,
}

/// One line without its end.
#[derive(Clone, Debug)]
pub struct Line {
    /// Since the child was started.
    pub time: Duration,
    pub stream: Stream,
    pub text: String,
}

/// How the child ended.
#[derive(Clone, Debug)]
pub struct Exit {
    /// `None` when a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Exit { code, stdout, stderr, took } = self;
        write!(f, "exit {code:?} after {took:?}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}

impl Exit {
    pub fn stdout_lines(&self) -> Vec<&str> {
        self.stdout.lines().collect()
    }

    /// The value of `name=` in the last `done:` line of either stream.
    pub fn done(&self, name: &str) -> Option<&str> {
        let mut lines = self.stdout.lines().chain(self.stderr.lines()).filter(|l| l.starts_with("done:"));
        let words = lines.next_back()?.split_whitespace();
        words.filter_map(|word| word.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
    }
}

/// A running keylane.
pub struct Keylane {
    child: Child,
    pub stdin: Option<ChildStdin>,
    lines: Arc<Mutex<Vec<Line>>>,
    readers: Vec<JoinHandle<()>>,
    started: Instant,
}

impl Keylane {
    /// `keylane ARGS` with `-b BROKERS` before the first option, and more variables in its environment.
    pub fn run_against(brokers: &str, args: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut all = args.to_vec();
        let place = all.iter().position(|arg| arg.starts_with('-')).unwrap_or(all.len());
        all.splice(place..place, ["-b", brokers]);
        Self::run_bare(&all, environment)
    }

    /// Exactly these arguments. Variables that keylane reads are not inherited.
    pub fn run_bare(args: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keylane"));
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            let own = ["KAFKA_", "KEYLANE_", "SEED_", "LAG_", "WORK", "COMMIT_INTERVAL"];
            if own.iter().any(|prefix| name_text.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        command.args(args).envs(environment.iter().copied());
        Self::run_command(command)
    }

    /// Any program.
    pub fn run_command(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let out = child.stdout.take().expect("piped");
        let err = child.stderr.take().expect("piped");
        let readers =
            vec![reader(out, Stream::Out, &lines, started), reader(err, Stream::Err, &lines, started)];
        Self { stdin: child.stdin.take(), child, lines, readers, started }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name, for instance `TERM`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.id().to_string()]).status();
        assert!(status.expect("kill runs").success(), "kill -s {name}");
    }

    pub fn write_stdin(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().expect("open").write_all(bytes).expect("the child reads");
    }

    /// The lines so far.
    pub fn lines(&self) -> Vec<Line> {
        lock(&self.lines).clone()
    }

    pub fn text(&self, stream: Stream) -> String {
        let lines = self.lines();
        let chosen = lines.iter().filter(|l| l.stream == stream);
        chosen.map(|l| l.text.as_str()).collect::<Vec<_>>().join("\n")
    }

    /// Waits for a line, of either stream, that contains `part`.
    ///
    /// # Panics
    /// When `timeout` passes, with all lines.
    pub fn wait_line(&self, part: &str, timeout: Duration) -> Line {
        let until = Instant::now() + timeout;
        loop {
            if let Some(line) = self.lines().into_iter().find(|l| l.text.contains(part)) {
                return line;
            }
            assert!(Instant::now() < until, "no line with {part:?} within {timeout:?}: {:#?}", self.lines());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until `stream` has at least `count` lines.
    ///
    /// # Panics
    /// When `timeout` passes, or the child ends before.
    pub fn wait_lines(&mut self, stream: Stream, count: usize, timeout: Duration) {
        let until = Instant::now() + timeout;
        loop {
            let running = self.is_running();
            if lock(&self.lines).iter().filter(|line| line.stream == stream).count() >= count {
                return;
            }
            assert!(running, "ended before it wrote {count} lines");
            assert!(Instant::now() < until, "not {count} lines within {timeout:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Time since the start, as [`Line::time`] counts it.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("our child").is_none()
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// When `timeout` passes, with all lines; the child is killed.
    pub fn wait_exit(&mut self, timeout: Duration) -> Exit {
        let until = Instant::now() + timeout;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                break status;
            }
            if Instant::now() >= until {
                let _ = self.child.kill();
                panic!("still running after {timeout:?}: {:#?}", self.lines());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let took = self.started.elapsed();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        Exit { code: status.code(), stdout: self.text(Stream::Out), stderr: self.text(Stream::Err), took }
    }

    /// Resident memory in KiB (from /proc).
    pub fn rss_kib(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
        line.split_whitespace().next()?.parse().ok()
    }
}

impl Drop for Keylane {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let lines = self.lines();
            // All that it said, but of a long ledger the end alone.
            let old = lines.len().saturating_sub(200);
            for (_, line) in lines.iter().enumerate().filter(|(at, l)| *at >= old || l.stream == Stream::Err)
            {
                eprintln!("{:>9.3}s {:?} {}", line.time.as_secs_f64(), line.stream, line.text);
            }
        }
    }
}

/// A poisoned lock is a test that failed already; its data is still good to read.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reader(
    source: impl Read + Send + 'static,
    stream: Stream,
    lines: &Arc<Mutex<Vec<Line>>>,
    started: Instant,
) -> JoinHandle<()> {
    let lines = Arc::clone(lines);
    std::thread::spawn(move || {
        let mut source = BufReader::new(source);
        let mut bytes = Vec::new();
        while source.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(&bytes)).into_owned();
            lock(&lines).push(Line { time: started.elapsed(), stream, text });
            bytes.clear();
        }
    })
}
