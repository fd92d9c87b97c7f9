//! What came of the demo: claims that were checked, and the exit code.

use std::collections::BTreeMap;

use super::ledger::Tally;
use super::scene::Point;
use super::story::{Cut, Story};
use crate::exit::Exit;

/// The end.
pub(super) struct Verdict {
    pub(super) title: String,
    pub(super) points: Vec<Point>,
    pub(super) exit: Exit,
    /// Sent and not finished, of a demo that came to its end.
    pub(super) lost: u64,
    /// Rate of the pool while it caught up, to that of the one thread.
    pub(super) speed_up: Option<f64>,
}

impl Verdict {
    pub(super) fn new(story: &Story, tally: &Tally) -> Self {
        let sent = story.sent.unwrap_or(0);
        let missing = sent.saturating_sub(tally.finished);
        // What was cut off has unfinished records and no lost ones: they are still in the topic.
        let lost = if story.cut.is_none() { missing } else { 0 };
        let alone = story.rate_alone.filter(|rate| *rate > 0.0);
        let pool =
            story.catch_up.map(|catch_up| catch_up.finished as f64 / catch_up.took.as_secs_f64().max(0.001));
        let speed_up = alone.zip(pool).map(|(alone, pool)| pool / alone);
        let exit = match story.cut {
            _ if tally.broken > 0 || lost > 0 => Exit::Partly,
            None if story.sent_failed > 0 => Exit::Partly,
            None => Exit::Done,
            Some(Cut::Signal(signal)) => Exit::of_signal(signal),
            Some(Cut::Late) => Exit::Unfinished,
            Some(Cut::Failed(_, Exit::Done) | Cut::Stuck(_)) => Exit::Bug,
            Some(Cut::Failed(_, exit)) => exit,
        };
        let mut points = Points::default();
        points.records(story, tally, lost);
        points.order(story, tally);
        points.repeats(tally);
        points.rates(story, alone, pool, speed_up);
        points.limits(story);
        for trouble in story.troubles.iter().take(3) {
            points.add("error", trouble.clone(), true);
        }
        if exit == Exit::Done {
            points.add(
                "your Kafka",
                r"keylane pool -b HOST:PORT -t TOPIC -g GROUP -w 8 -f '%k %s\n'".to_owned(),
                false,
            );
        }
        Verdict { title: title(story, tally, lost, speed_up), points: points.0, exit, lost, speed_up }
    }
}

fn title(story: &Story, tally: &Tally, lost: u64, speed_up: Option<f64>) -> String {
    if tally.broken > 0 {
        return "The order of a key was broken: this is a bug in keylane.".to_owned();
    }
    if lost > 0 || (story.cut.is_none() && story.sent_failed > 0) {
        return "Records were lost: this is a bug in keylane.".to_owned();
    }
    match story.cut {
        None => {
            let times = speed_up.map_or_else(String::new, |times| format!(" {times:.1} times as fast,"));
            format!("Done:{times} each key in order, nothing lost.")
        }
        Some(Cut::Signal(_)) => {
            "Interrupted: everything is ended in order, nothing is left behind.".to_owned()
        }
        Some(Cut::Late) => format!(
            "Stopped after {} s, as this machine is slow today; what is unfinished is said below.",
            story.plan.limit.as_secs()
        ),
        Some(Cut::Failed(role, exit)) => {
            format!("{} ended too early, with exit code {}.", role.name(), exit.code())
        }
        Some(Cut::Stuck(role)) => format!("{} does not end: this is a bug in keylane.", role.name()),
    }
}

#[derive(Default)]
struct Points(Vec<Point>);

impl Points {
    fn add(&mut self, name: &'static str, text: String, bad: bool) {
        self.0.push(Point { name, text, bad });
    }

    fn records(&mut self, story: &Story, tally: &Tally, lost: u64) {
        let finished = tally.finished;
        let text = match story.sent {
            _ if story.sent_failed > 0 => format!("{} could not be sent", story.sent_failed),
            Some(sent) if finished == sent => {
                format!("none lost (checked): {sent} sent, {finished} finished")
            }
            Some(sent) if lost > 0 => format!("{sent} sent, {finished} finished: {lost} LOST"),
            Some(sent) => {
                format!("{sent} sent, {finished} finished: {} unfinished", sent - finished.min(sent))
            }
            None => format!("{finished} finished when it was stopped"),
        };
        self.add("records", text, lost > 0 || story.sent_failed > 0);
    }

    fn order(&mut self, story: &Story, tally: &Tally) {
        match &tally.first_break {
            Some(first) => self.add("order", format!("BROKEN {} times: {first}", tally.broken), true),
            None => {
                let keys = story.plan.keys;
                let text = format!("kept (checked): of each of {keys} keys one at a time, in the order sent");
                self.add("order", text, false);
            }
        }
    }

    fn repeats(&mut self, tally: &Tally) {
        let text = match tally.repeats {
            0 => "0: the pool went on right where the thread had stopped".to_owned(),
            repeats => format!("{repeats}: handled again after the pool took over"),
        };
        if tally.pool.first_at.is_some() {
            self.add("repeats", text, false);
        }
    }

    fn rates(&mut self, story: &Story, alone: Option<f64>, pool: Option<f64>, speed_up: Option<f64>) {
        if let Some(rate) = alone {
            self.add("one thread", format!("{rate:.0} records/s of {} ms each", story.plan.delay_ms), false);
        }
        if let (Some(rate), Some(times)) = (pool, speed_up) {
            let workers = story.plan.workers;
            let text = format!(
                "{rate:.0} records/s with {workers} workers while it caught up: {times:.1} times as fast"
            );
            self.add("pool", text, false);
        }
    }

    fn limits(&mut self, story: &Story) {
        let most = |limits: &BTreeMap<String, u32>| {
            limits.iter().max_by_key(|(_, count)| **count).map(|(word, _)| word.clone())
        };
        if let Some(word) = most(&story.limits[0]) {
            let meaning = match word.as_str() {
                "workers" => ": more workers would be faster",
                "keys" => ": more keys would be faster",
                _ => "",
            };
            self.add("limits", format!("limit={word} while it caught up{meaning}"), false);
        }
        if let Some(word) = most(&story.limits[1]) {
            let meaning = if word == "fetch" { ": it waited for the producer" } else { "" };
            self.add("", format!("limit={word} at the end{meaning}"), false);
        }
    }
}
