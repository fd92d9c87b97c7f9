//! The handler of the chaos: this very program as `handler exec|pipe LEDGER MEMBER SEED`.
//!
//! It writes down what it does, before it answers. Mostly it takes some milliseconds; now and then it is slow, fails,
//! asks for another try, dies, or hangs until it is ended (after [`HANG_MAX`] by itself, so that an orphan ends). Some
//! records it always rejects.

use std::collections::BinaryHeap;
use std::io::{BufRead, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};

use crate::dice::mix;
use crate::events::{Ledger, Place, What, now};

/// A handler that hangs ends after this by itself.
pub const HANG_MAX: Duration = Duration::from_secs(20);
/// How often one that hangs shows that it is alive.
const STILL: Duration = Duration::from_millis(100);

/// What becomes of one try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Done,
    Reject,
    Fail,
    Temporary,
    /// The process ends, whatever else it has in hand.
    Die,
    Hang,
    /// The same, deaf to SIGTERM.
    HangDeaf,
}

pub fn main(args: &[String]) -> ExitCode {
    let [mode, ledger, member, seed] = args else { panic!("handler exec|pipe LEDGER MEMBER SEED") };
    let hand = Hand {
        ledger: Ledger::open(Path::new(ledger)).expect("the ledger opens"),
        member: member.parse().expect("a number"),
        seed: seed.parse().expect("a number"),
    };
    match mode.as_str() {
        "exec" => exec(&hand),
        "pipe" => pipe(&hand),
        other => panic!("no mode: {other}"),
    }
}

struct Hand {
    ledger: Ledger,
    member: u32,
    seed: u64,
}

impl Hand {
    fn write(&self, what: What, place: Place, key: &str) {
        self.ledger.append(what, self.member, place, key).expect("the ledger takes a line");
    }

    /// What becomes of a try, and how long it takes. The same record is rejected always, and fails only by chance.
    fn decide(&self, place: Place) -> (Act, Duration) {
        let (partition, offset) = (u64::from(place.0.unsigned_abs()), place.1.unsigned_abs());
        if mix(&[self.seed, partition, offset]).is_multiple_of(400) {
            return (Act::Reject, Duration::from_millis(5));
        }
        let nonce = now().as_nanos() as u64 ^ u64::from(std::process::id());
        let roll = mix(&[self.seed, partition, offset, nonce]);
        let ms = (roll >> 20) % 1000;
        let short = Duration::from_millis(ms % 40);
        match roll % 2000 {
            0..40 => (Act::Fail, short),
            40..70 => (Act::Temporary, short),
            70..73 => (Act::Die, short),
            73..75 => (Act::Hang, short),
            75 => (Act::HangDeaf, short),
            76..90 => (Act::Done, Duration::from_millis(500 + ms)),
            _ => (Act::Done, short),
        }
    }
}

// ---- a process per record ------------------------------------------------------------------------------------------

fn exec(hand: &Hand) -> ExitCode {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("no {name}"));
    let number = |name: &str| variable(name).parse::<i64>().expect("a number");
    let place = (number("KEYLANE_PARTITION") as i32, number("KEYLANE_OFFSET"));
    let key = variable("KEYLANE_KEY");
    hand.write(What::Begin, place, &key);
    std::io::stdin().read_to_end(&mut Vec::new()).expect("stdin ends");
    let (act, time) = hand.decide(place);
    std::thread::sleep(time);
    let (what, code) = match act {
        Act::Done => (What::Done, 0),
        Act::Reject => (What::Reject, 65),
        Act::Fail => (What::Fail, 1),
        Act::Temporary => (What::Fail, 75),
        Act::Die => {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), Signal::SIGKILL);
            (What::Fail, 1)
        }
        Act::Hang | Act::HangDeaf => {
            if act == Act::HangDeaf {
                let mut deaf = SigSet::empty();
                deaf.add(Signal::SIGTERM);
                deaf.thread_block().expect("a signal can be blocked");
            }
            let until = Instant::now() + HANG_MAX;
            while Instant::now() < until {
                std::thread::sleep(STILL);
                hand.write(What::Still, place, &key);
            }
            (What::Fail, 1)
        }
    };
    hand.write(what, place, &key);
    ExitCode::from(code)
}

// ---- one process for many records ----------------------------------------------------------------------------------

/// A record in hand. The heap gives the one that is due first.
struct Task {
    due: Instant,
    act: Act,
    hung_until: Instant,
    id: String,
    place: Place,
    key: String,
}

impl PartialEq for Task {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Task {}

impl PartialOrd for Task {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Task {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.due.cmp(&self.due)
    }
}

/// Works on all that it is given at once, and ends when its input has ended and all is answered.
fn pipe(hand: &Hand) -> ExitCode {
    let lines = read_lines();
    let mut tasks = BinaryHeap::new();
    let mut open = true;
    while open || !tasks.is_empty() {
        let due = tasks.peek().map(|task: &Task| task.due.saturating_duration_since(Instant::now()));
        let wait = due.unwrap_or(Duration::from_secs(3600));
        // Without a reader there is nothing to wait for but the next task.
        let line = if open {
            lines.recv_timeout(wait)
        } else {
            std::thread::sleep(wait);
            Err(RecvTimeoutError::Timeout)
        };
        match line {
            Ok(line) => tasks.push(take(hand, &line)),
            Err(RecvTimeoutError::Disconnected) => open = false,
            Err(RecvTimeoutError::Timeout) => {}
        }
        while tasks.peek().is_some_and(|task| task.due <= Instant::now()) {
            if let Some(task) = tasks.pop()
                && let Some(again) = finish(hand, task)
            {
                tasks.push(again);
            }
        }
    }
    ExitCode::SUCCESS
}

fn read_lines() -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if line.is_ok_and(|line| sender.send(line).is_err()) {
                return;
            }
        }
    });
    lines
}

fn take(hand: &Hand, line: &str) -> Task {
    let record: serde_json::Value = serde_json::from_str(line).expect("a line is an object");
    let text = |name: &str| record[name].as_str().unwrap_or_else(|| panic!("no {name}: {line}")).to_owned();
    let number = |name: &str| record[name].as_i64().unwrap_or_else(|| panic!("no {name}: {line}"));
    let place = (number("partition") as i32, number("offset"));
    let key = text("key");
    hand.write(What::Begin, place, &key);
    let (act, time) = hand.decide(place);
    let now = Instant::now();
    Task { due: now + time, act, hung_until: now + HANG_MAX, id: text("id"), place, key }
}

/// Ends a task, or gives it back if it hangs.
fn finish(hand: &Hand, mut task: Task) -> Option<Task> {
    let hangs = matches!(task.act, Act::Hang | Act::HangDeaf);
    if hangs && Instant::now() < task.hung_until {
        hand.write(What::Still, task.place, &task.key);
        task.due = Instant::now() + STILL;
        return Some(task);
    }
    let (what, answer) = match task.act {
        Act::Done => (What::Done, "ok"),
        Act::Reject => (What::Reject, "reject a poison record"),
        Act::Fail | Act::Temporary | Act::Hang | Act::HangDeaf => (What::Fail, "retry"),
        Act::Die => std::process::exit(3),
    };
    hand.write(what, task.place, &task.key);
    let mut stdout = std::io::stdout().lock();
    // An orphan's answers are read by nobody.
    let _ = writeln!(stdout, "{} {answer}", task.id).and_then(|()| stdout.flush());
    None
}
