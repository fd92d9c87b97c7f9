//! What keylane says: messages and progress on stderr, answers on stdout, as text or as one JSON object a line.
//!
//! Every line is written whole. A line that cannot be written to stderr is lost without complaint: there is nobody left
//! to tell; one that nobody reads is left out after a while, since whoever says it has more to do. Answers on stdout
//! return the error, since they are the work. A line of progress begins with `[HH:MM:SS]` (UTC) in text; in JSON every
//! line has `type` and `time` (RFC 3339, UTC). This is the binary's side of the clock: the protocol never sees it.
//!
//! With a [`Tap`] nothing is written: whoever runs a role as a part of something larger is handed each line instead.

use std::fmt::{self, Display};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::poll::{PollFd, PollFlags};
use serde_json::Value;

use crate::cli::{Common, MemoryLimit, OutputFormat, Verbosity};
use crate::handler::child::wait_for;

/// Members of a JSON line besides `type` and `time`.
pub type Fields = Vec<(&'static str, Value)>;

/// One line before it is written.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// Its `type` in JSON, as `stats`, `assigned` or `warning`.
    pub kind: &'a str,
    /// The whole text, without the time in front.
    pub text: &'a str,
    /// Members of a JSON line besides `type` and `time`.
    pub fields: &'a [(&'static str, Value)],
    /// At which level it is said; answers are said at every level.
    pub level: Verbosity,
    /// Whether it is an answer, for stdout.
    pub is_answer: bool,
}

/// Who is handed each line in place of stderr and stdout.
#[derive(Clone)]
pub struct Tap(Arc<dyn Fn(&Line<'_>) + Send + Sync>);

impl Tap {
    /// `take` is called for every line that the verbosity allows, on the thread that says it.
    pub fn new(take: impl Fn(&Line<'_>) + Send + Sync + 'static) -> Self {
        Tap(Arc::new(take))
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tap")
    }
}

/// Decides what is said and how.
#[derive(Clone, Debug, Default)]
pub struct Report {
    format: OutputFormat,
    verbosity: Verbosity,
    tap: Option<Tap>,
}

impl Report {
    /// A report that writes `format` and says as much as `verbosity` allows.
    pub fn new(format: OutputFormat, verbosity: Verbosity) -> Self {
        Report { format, verbosity, tap: None }
    }

    /// A report whose lines go to `tap`.
    pub fn tapped(verbosity: Verbosity, tap: Tap) -> Self {
        Report { format: OutputFormat::Text, verbosity, tap: Some(tap) }
    }

    /// Whether JSON lines are written.
    pub fn is_json(&self) -> bool {
        self.format == OutputFormat::Json
    }

    /// Whether anybody looks at the fields of a line, where making them is work.
    pub fn wants_fields(&self) -> bool {
        self.is_json() || self.tap.is_some()
    }

    /// Whether a line of this level is written; asking first saves the work of making it.
    pub fn says(&self, level: Verbosity) -> bool {
        level <= self.verbosity
    }

    /// Prints what was taken from the environment and the warnings of the command line.
    pub fn start(&self, common: &Common) {
        for variable in &common.from_environment {
            let text = format!("from the environment: {}={}", variable.name, variable.value);
            let fields =
                vec![("name", variable.name.as_str().into()), ("value", variable.value.as_str().into())];
            self.plain(Verbosity::Normal, "environment", text, fields);
        }
        for warning in &common.warnings {
            self.warning(warning);
        }
    }

    /// How much memory a consumer may hold, and why.
    pub fn memory(&self, limit: &MemoryLimit) {
        let fields = vec![("bytes", limit.bytes.into()), ("reason", limit.reason.as_str().into())];
        self.plain(Verbosity::Normal, "memory", format!("max-memory: {limit}"), fields);
    }

    /// What went wrong; said at every level.
    pub fn error(&self, message: impl Display) {
        self.message(Verbosity::Errors, "error", message);
    }

    /// What may be wrong.
    pub fn warning(&self, message: impl Display) {
        self.message(Verbosity::Normal, "warning", message);
    }

    /// What is good to know.
    pub fn note(&self, message: impl Display) {
        self.message(Verbosity::Normal, "note", message);
    }

    fn message(&self, level: Verbosity, kind: &str, message: impl Display) {
        let text = message.to_string();
        let fields = vec![("message", Value::from(text.as_str()))];
        self.plain(level, kind, format!("keylane: {kind}: {text}"), fields);
    }

    /// A line of progress: `[HH:MM:SS] text`.
    pub fn stamped(&self, level: Verbosity, kind: &str, text: impl Display, fields: Fields) {
        self.say(level, kind, true, text, fields);
    }

    /// A line without the time in front, such as `done: …`.
    pub fn plain(&self, level: Verbosity, kind: &str, text: impl Display, fields: Fields) {
        self.say(level, kind, false, text, fields);
    }

    fn say(&self, level: Verbosity, kind: &str, stamped: bool, text: impl Display, fields: Fields) {
        if !self.says(level) {
            return;
        }
        let line = Line { kind, text: &text.to_string(), fields: &fields, level, is_answer: false };
        match &self.tap {
            Some(Tap(take)) => take(&line),
            None => to_stderr(&self.written(&line, stamped, SystemTime::now())),
        }
    }

    /// An answer on stdout, without the time in front.
    ///
    /// # Errors
    /// What writing to stdout gives; a closed pipe is [`io::ErrorKind::BrokenPipe`].
    pub fn answer(&self, kind: &str, text: impl Display, fields: Fields) -> io::Result<()> {
        self.say_answer(kind, false, text, fields)
    }

    /// An answer on stdout: `[HH:MM:SS] text`.
    ///
    /// # Errors
    /// As [`Report::answer`].
    pub fn answer_stamped(&self, kind: &str, text: impl Display, fields: Fields) -> io::Result<()> {
        self.say_answer(kind, true, text, fields)
    }

    fn say_answer(&self, kind: &str, stamped: bool, text: impl Display, fields: Fields) -> io::Result<()> {
        let (text, level) = (text.to_string(), Verbosity::Errors);
        let line = Line { kind, text: &text, fields: &fields, level, is_answer: true };
        match &self.tap {
            Some(Tap(take)) => {
                take(&line);
                Ok(())
            }
            None => to_stdout(self.written(&line, stamped, SystemTime::now()).as_bytes()),
        }
    }

    /// The line as it is written.
    fn written(&self, line: &Line<'_>, stamped: bool, now: SystemTime) -> String {
        let text = line.text;
        match self.format {
            OutputFormat::Text if stamped => format!("[{}] {text}\n", clock(now)),
            OutputFormat::Text => format!("{text}\n"),
            OutputFormat::Json => {
                // Not by a map, which would sort the members: people read this too.
                let mut out = format!("{{\"type\":{},\"time\":\"{}\"", Value::from(line.kind), rfc3339(now));
                for (name, value) in line.fields {
                    out.push_str(&format!(",{}:{value}", Value::from(*name)));
                }
                out.push_str("}\n");
                out
            }
        }
    }
}

/// Writes bytes to stdout at once.
///
/// # Errors
/// What the write gives.
pub fn to_stdout(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Writes what a child printed to stderr, however long that takes: its worker has time. Nobody is left to be told of an
/// error.
pub fn pass_to_stderr(bytes: &[u8]) {
    let _held = STDERR.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = io::stderr().write_all(bytes);
}

/// For whoever writes to stderr.
static STDERR: Mutex<()> = Mutex::new(());
/// Lines that were not written since the last that was.
static UNWRITTEN: AtomicU64 = AtomicU64::new(0);
/// How long a line waits for a stderr that takes nothing for now. Where one has waited in vain the next do not.
const STDERR_PATIENCE: Duration = Duration::from_secs(1);
const STDERR_PAUSE: Duration = Duration::from_millis(5);
/// A pipe that is writable takes so much without a wait (`PIPE_BUF`).
const STDERR_BYTES: usize = 4096;

/// A line of ours. It may be the network thread's, which must not stand still because nobody reads: heartbeats and
/// signals would wait as well. Such a line is left out, and counted.
fn to_stderr(line: &str) {
    let unwritten = UNWRITTEN.load(Ordering::Relaxed);
    let patience = if unwritten == 0 { STDERR_PATIENCE } else { Duration::ZERO };
    let until = Instant::now() + patience;
    let is_written = hold_stderr(until).is_some_and(|_held| {
        let missed = match unwritten {
            0 => String::new(),
            _ => format!("keylane: warning: {unwritten} lines are left out here: nobody read them in time\n"),
        };
        write_in_time(&missed, until) && write_in_time(line, until)
    });
    if is_written {
        UNWRITTEN.fetch_sub(unwritten, Ordering::Relaxed);
    } else {
        UNWRITTEN.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether all of it was written, or failed to be, which is nobody's to be told.
fn write_in_time(text: &str, until: Instant) -> bool {
    text.as_bytes().chunks(STDERR_BYTES).all(|chunk| {
        let is_taken = is_writable(until);
        if is_taken {
            let _ = io::stderr().write_all(chunk);
        }
        is_taken
    })
}

fn hold_stderr(until: Instant) -> Option<MutexGuard<'static, ()>> {
    loop {
        match STDERR.try_lock() {
            Ok(held) => return Some(held),
            Err(TryLockError::Poisoned(held)) => return Some(held.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => thread::sleep(STDERR_PAUSE),
        }
    }
}

/// Waits until stderr takes bytes. Where that cannot be told it does.
fn is_writable(until: Instant) -> bool {
    let stderr = io::stderr();
    let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    wait_for(&mut fds, Some(until.saturating_duration_since(Instant::now()))).unwrap_or(true)
}

/// `HH:MM:SS`, UTC.
pub fn clock(time: SystemTime) -> String {
    let (_, second, _) = since_epoch(time);
    format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// `2026-12-01T09:48:48.123Z`.
pub fn rfc3339(time: SystemTime) -> String {
    let (day, _, ms) = since_epoch(time);
    let (year, month, day) = civil(day);
    format!("{year:04}-{month:02}-{day:02}T{}.{ms:03}Z", clock(time))
}

/// Days since 1970, second of the day, ms of the second. A clock before 1970 counts as 1970.
fn since_epoch(time: SystemTime) -> (u64, u64, u32) {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs() / 86_400, since.as_secs() % 86_400, since.subsec_millis())
}

/// Year, month and day of a day since 1970 (Howard Hinnant's `civil_from_days`, for days from 1970 on).
fn civil(day: u64) -> (u64, u64, u64) {
    // Counted from 1 March of the year 0, so that a leap day ends its year.
    let day = day + 719_468;
    let era = day / 146_097;
    let day_of_era = day % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day_of_year - (153 * march_month + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(second * 1000 + 7)
    }

    #[test]
    fn times_as_date_prints_them() {
        for (second, expected) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (951_868_799, "2000-02-29T23:59:59.007Z"),
            (1_709_164_800, "2024-02-29T00:00:00.007Z"),
            (1_735_689_599, "2024-12-31T23:59:59.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
        ] {
            assert_eq!(rfc3339(at(second)), expected);
        }
        assert_eq!(clock(at(3661)), "01:01:01");
    }

    #[test]
    fn lines_in_both_formats() {
        let text = Report::new(OutputFormat::Text, Verbosity::Normal);
        let json = Report::new(OutputFormat::Json, Verbosity::Normal);
        let fields = [("processed", Value::from(3))];
        let (now, level) = (at(3661), Verbosity::Normal);
        let stats = Line { kind: "stats", text: "processed=3", fields: &fields, level, is_answer: false };
        let done = Line { kind: "done", text: "done: processed=3", ..stats };
        assert_eq!(text.written(&stats, true, now), "[01:01:01] processed=3\n");
        assert_eq!(text.written(&done, false, now), "done: processed=3\n");
        let line = json.written(&stats, true, now);
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            value,
            serde_json::json!({"type":"stats","time":"1970-01-01T01:01:01.007Z","processed":3})
        );
        assert!(line.ends_with("}\n") && line.matches('\n').count() == 1);
    }

    #[test]
    fn a_tap_is_handed_lines_and_answers() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let tap = Tap::new(move |line: &Line<'_>| {
            let seen = (line.kind.to_owned(), line.text.to_owned(), line.fields.len(), line.is_answer);
            sender.send(seen).unwrap();
        });
        let report = Report::tapped(Verbosity::Normal, tap);
        report.stamped(Verbosity::Normal, "stats", "processed=3", vec![("processed", 3.into())]);
        report.stamped(Verbosity::More, "stats", "not said", Vec::new());
        report.answer("topic", "a", Vec::new()).unwrap();
        drop(report);
        let seen: Vec<_> = receiver.iter().collect();
        let expected = [("stats", "processed=3", 1, false), ("topic", "a", 0, true)];
        let expected =
            expected.map(|(kind, text, fields, answer)| (kind.into(), text.into(), fields, answer));
        assert_eq!(seen, expected);
    }

    #[test]
    fn levels() {
        let quiet = Report::new(OutputFormat::Text, Verbosity::Errors);
        assert!(quiet.says(Verbosity::Errors) && !quiet.says(Verbosity::Normal));
        let normal = Report::default();
        assert!(normal.says(Verbosity::Normal) && !normal.says(Verbosity::More));
    }
}
