//! How the demo is shown: as a picture on a terminal, else as lines, text or JSON.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};

use super::ledger::Tally;
use super::picture::{self, Style};
use super::scene::{Act, Scene};
use super::terminal::{self, Screen, Size};
use super::verdict::Verdict;
use crate::cli::{Demo, Verbosity};
use crate::report::{Fields, Report};

/// Where there is no picture.
const LINE: Duration = Duration::from_secs(1);

/// Where the demo is shown.
pub(super) enum View {
    /// On the terminal.
    Picture(Screen, Style),
    /// As lines; `title` and `events` say what was told.
    Lines { report: Report, title: String, events: usize, told_at: Option<Duration> },
    /// The summary alone.
    Summary(Report),
}

impl View {
    /// Chooses, and makes room on the terminal.
    ///
    /// # Errors
    /// Writing to stdout failed.
    pub(super) fn open(config: &Demo, report: &Report) -> io::Result<Self> {
        if !report.says(Verbosity::Normal) {
            return Ok(View::Summary(report.clone()));
        }
        if terminal::can_draw() && !report.is_json() {
            return Ok(View::Picture(Screen::open()?, terminal::style(config.colour)));
        }
        Ok(View::Lines { report: report.clone(), title: String::new(), events: 0, told_at: None })
    }

    /// Shows a moment.
    ///
    /// # Errors
    /// Writing to stdout failed.
    pub(super) fn show(&mut self, scene: &Scene) -> io::Result<()> {
        match self {
            View::Picture(screen, style) => screen.draw(&picture::draw(scene, *style, terminal::size())),
            View::Lines { report, title, events, told_at } => {
                if scene.act != Act::Over && *title != scene.title {
                    title.clone_from(&scene.title);
                    let fields = vec![
                        ("text", scene.title.as_str().into()),
                        ("command", scene.command.as_str().into()),
                    ];
                    report.answer("act", format!("== {}", scene.title), fields)?;
                }
                for event in scene.events.iter().skip(events.saturating_sub(scene.events_before)) {
                    let seconds = event.at.as_secs_f64();
                    let fields = vec![("seconds", rounded(seconds)), ("text", event.text.as_str().into())];
                    report.answer("event", format!("{seconds:>5.1} s  {}", event.text), fields)?;
                }
                *events = scene.events_before + scene.events.len();
                if told_at.is_none_or(|told_at| scene.elapsed >= told_at + LINE) && scene.lag().is_some() {
                    *told_at = Some(scene.elapsed);
                    report.answer("progress", progress(scene), progress_fields(scene))?;
                }
                Ok(())
            }
            View::Summary(_) => Ok(()),
        }
    }

    /// Shows the end, which stays.
    ///
    /// # Errors
    /// Writing to stdout failed.
    pub(super) fn close(mut self, scene: &Scene, verdict: &Verdict, tally: &Tally) -> io::Result<()> {
        if let View::Lines { told_at, .. } = &mut self {
            *told_at = None;
            self.show(scene)?;
        }
        match self {
            View::Picture(screen, style) => screen.close(&picture::draw(scene, style, terminal::size())),
            View::Lines { report, .. } | View::Summary(report) => {
                let wide = Size { columns: 400, rows: usize::MAX };
                let plain = Style { colour: false, unicode: false };
                let without_history = Scene { history: Vec::new(), ..scene.clone() };
                // Behind the head, which is for a screen.
                let text = picture::draw(&without_history, plain, wide).split_off(1).join("\n");
                report.answer("summary", text, summary_fields(scene, verdict, tally))
            }
        }
    }
}

fn progress(scene: &Scene) -> String {
    let lags: Vec<String> = scene.partitions.iter().map(|partition| show(partition.lag)).collect();
    format!(
        "{:>5.1} s  produced={} ({}/s) processed={} ({}/s) lag={} ({}) busy={}/{} limit={}",
        scene.elapsed.as_secs_f64(),
        scene.produced,
        scene.produced_rate,
        scene.finished,
        scene.finished_rate,
        show(scene.lag()),
        lags.join(" "),
        scene.busy,
        scene.workers,
        scene.limit.as_ref().map_or("-", |(word, _)| word)
    )
}

fn show(lag: Option<i64>) -> String {
    lag.map_or_else(|| "-".to_owned(), |lag| lag.to_string())
}

fn progress_fields(scene: &Scene) -> Fields {
    let lags: Vec<Option<i64>> = scene.partitions.iter().map(|partition| partition.lag).collect();
    vec![
        ("seconds", rounded(scene.elapsed.as_secs_f64())),
        ("produced", scene.produced.into()),
        ("produced_rate", scene.produced_rate.into()),
        ("processed", scene.finished.into()),
        ("processed_rate", scene.finished_rate.into()),
        ("total_lag", json!(scene.lag())),
        ("lag", json!(lags)),
        ("busy", scene.busy.into()),
        ("workers", scene.workers.into()),
        ("limit", json!(scene.limit.as_ref().map(|(word, _)| word))),
    ]
}

fn summary_fields(scene: &Scene, verdict: &Verdict, tally: &Tally) -> Fields {
    vec![
        ("seconds", rounded(scene.elapsed.as_secs_f64())),
        ("text", verdict.title.as_str().into()),
        ("produced", scene.produced.into()),
        ("processed", tally.finished.into()),
        ("lost", verdict.lost.into()),
        ("order_broken", tally.broken.into()),
        ("repeats", tally.repeats.into()),
        ("speed_up", json!(verdict.speed_up.map(|times| (times * 100.0).round() / 100.0))),
        ("exit", verdict.exit.code().into()),
    ]
}

fn rounded(seconds: f64) -> Value {
    ((seconds * 10.0).round() / 10.0).into()
}
