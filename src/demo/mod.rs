//! `demo`: the whole of keylane in one process and one picture.
//!
//! A Kafka in memory, the real `seed` and `lag`, then the real `sequential`, which falls behind, and the real `pool` in
//! its place, which catches up. The roles run from command lines, on threads of their own; nothing of them is imitated.
//! The claims at the end are checked from outside, by what the handlers saw (`ledger`).

mod bars;
mod ledger;
mod picture;
mod plan;
mod scene;
mod stage;
mod story;
mod terminal;
mod verdict;
mod view;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::cli;
use crate::driver::signals;
use crate::exit::Exit;
use crate::report::Report;

use ledger::Tally;
pub use plan::Plan;
use scene::Scene;
use stage::Stage;
use story::{Cue, Cut, Heard, Story};
use verdict::Verdict;
use view::View;

/// Eight pictures a second: smooth, and little for a slow line.
const FRAME: Duration = Duration::from_millis(125);
/// The signal that a closed stdout would be.
const SIGPIPE: i32 = 13;

/// Runs the demo to its end.
///
/// # Errors
/// The system gives no port, threads, signals or epoll.
pub fn run(config: &cli::Demo, report: &Report) -> io::Result<Exit> {
    play(Plan::FULL, config, report)
}

/// Runs a demo of another size.
///
/// # Errors
/// As [`run`].
pub fn play(plan: Plan, config: &cli::Demo, report: &Report) -> io::Result<Exit> {
    let (sender, receiver) = mpsc::channel();
    let started = Instant::now();
    let process = sender.clone();
    signals::watch(move |signal| {
        let _ = process.send(Heard::Signal(signal));
    })?;
    let mut stage = Stage::open(&plan, sender, started)?;
    let mut story = Story::new(plan, stage.lines.clone(), stage.address());
    let mut output = Output::new(View::open(config, report));
    let mut frame_at = Duration::ZERO;
    while !story.is_over() {
        match receiver.recv_timeout(frame_at.saturating_sub(started.elapsed())) {
            Ok(heard) => story.hear(heard, started.elapsed()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => unreachable!("the stage keeps a sender"),
        }
        let (tally, now) = (stage.ledger.tally(), started.elapsed());
        for cue in story.advance(&tally, now) {
            match cue {
                Cue::Start(role) => stage.start(role)?,
                Cue::Stop(role) => stage.stop(role),
            }
        }
        if now >= frame_at && !story.is_over() {
            frame_at = now + FRAME;
            if output.show(&story.scene(&tally, now)) == Shown::FailedNow {
                story.hear(Heard::Signal(SIGPIPE), now);
            }
        }
    }
    let (tally, now) = (stage.ledger.tally(), started.elapsed());
    let (scene, verdict) = (story.scene(&tally, now), story.verdict(&tally));
    stage.close(!matches!(story.cut, Some(Cut::Stuck(_))))?;
    Ok(output.close(&scene, &verdict, &tally, report))
}

#[derive(PartialEq, Eq)]
enum Shown {
    Fine,
    FailedNow,
}

/// A view until writing to it fails; then the demo only ends.
struct Output {
    view: Option<View>,
    failure: Option<io::Error>,
}

impl Output {
    fn new(opened: io::Result<View>) -> Self {
        match opened {
            Ok(view) => Output { view: Some(view), failure: None },
            Err(error) => Output { view: None, failure: Some(error) },
        }
    }

    fn show(&mut self, scene: &Scene) -> Shown {
        let Some(view) = &mut self.view else { return Shown::Fine };
        let Err(error) = view.show(scene) else { return Shown::Fine };
        self.view = None;
        self.failure = Some(error);
        Shown::FailedNow
    }

    /// Shows the end. Returns the exit: a reader that has seen enough, as `head`, is no error.
    fn close(mut self, scene: &Scene, verdict: &Verdict, tally: &Tally, report: &Report) -> Exit {
        if let Some(view) = self.view.take() {
            self.failure = view.close(scene, verdict, tally).err();
        }
        match self.failure {
            None => verdict.exit,
            Some(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
            Some(error) => {
                report.error(format!("cannot write to stdout: {error}"));
                Exit::Output
            }
        }
    }
}
