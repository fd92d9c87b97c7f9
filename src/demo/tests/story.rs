//! The course of the demo, with roles that are played by the test.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::demo::ledger::{Tally, Work};
use crate::demo::plan::{Lines, Plan};
use crate::demo::scene::Act;
use crate::demo::story::{Cue, Cut, Heard, Role, Story};
use crate::exit::Exit;

struct Test {
    story: Story,
    tally: Tally,
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn line(role: Role, kind: &str, text: &str, fields: &[(&'static str, Value)]) -> Heard {
    let fields: BTreeMap<&'static str, Value> = fields.iter().cloned().collect();
    Heard::Line { role, kind: kind.to_owned(), text: text.to_owned(), fields }
}

impl Test {
    fn new() -> Self {
        let lines = Lines::new(&Plan::FULL, "127.0.0.1:1");
        let tally = Tally { keys: vec![false; 32], ..Tally::default() };
        Test { story: Story::new(Plan::FULL, lines, "127.0.0.1:1".to_owned()), tally }
    }

    fn hear(&mut self, at: f64, heard: Heard) -> Vec<Cue> {
        self.story.hear(heard, seconds(at));
        self.story.advance(&self.tally, seconds(at))
    }

    fn pass(&mut self, at: f64) -> Vec<Cue> {
        self.story.advance(&self.tally, seconds(at))
    }

    fn lag(&mut self, at: f64, lag: i64, end: i64) -> Vec<Cue> {
        let row = |partition, lag, end| json!({"partition": partition, "lag": lag, "log_end_offset": end});
        let mut rows = vec![row(0, lag, end)];
        rows.extend((1..6).map(|partition| row(partition, 0, 0)));
        self.hear(at, line(Role::Lag, "lag", "", &[("total_lag", lag.into()), ("partitions", rows.into())]))
    }

    fn assigned(&mut self, at: f64, role: Role) -> Vec<Cue> {
        let partitions = json!(["orders/0", "orders/1", "orders/2", "orders/3", "orders/4", "orders/5"]);
        let fields =
            [("partitions", partitions), ("from", json!([0, 0, 0, 0, 0, 0])), ("generation", 1.into())];
        self.hear(at, line(role, "assigned", "", &fields))
    }

    /// Until the pool has all partitions.
    fn take_over() -> Self {
        let mut test = Test::new();
        assert_eq!(test.pass(0.0), [Cue::Start(Role::Seed)]);
        assert_eq!(test.pass(0.1), []);
        let made = line(Role::Seed, "note", "keylane: note: made topic orders with 6 partitions", &[]);
        assert_eq!(test.hear(0.2, made), [Cue::Start(Role::Sequential), Cue::Start(Role::Lag)]);
        assert_eq!(test.assigned(0.5, Role::Sequential), []);
        assert_eq!(test.lag(6.0, 1800, 2400), []);
        assert_eq!(test.story.scene(&test.tally, seconds(6.0)).act, Act::Behind);
        assert_eq!(test.pass(12.4), []);
        assert_eq!(test.pass(12.5), [Cue::Stop(Role::Sequential)]);
        assert_eq!(test.pass(12.6), []);
        let done = line(Role::Sequential, "done", "", &[("rate", 99.0.into()), ("processed", 1190.into())]);
        assert_eq!(test.hear(12.7, done), []);
        assert_eq!(test.hear(12.7, Heard::Ended(Role::Sequential, Exit::Done)), [Cue::Start(Role::Pool)]);
        assert_eq!(test.assigned(12.8, Role::Pool), []);
        assert_eq!(test.story.scene(&test.tally, seconds(13.0)).act, Act::CatchingUp);
        test
    }

    fn finished(&mut self, finished: u64) {
        self.tally.finished = finished;
        self.tally.pool = Work { finished: finished - 1190, busy: 0, first_at: Some(seconds(12.8)) };
    }

    fn play_on(mut self) -> Self {
        self.hear(15.0, line(Role::Pool, "stats", "", &[("limit", "workers".into())]));
        self.finished(9110);
        self.lag(22.8, 100, 9112);
        assert_eq!(self.story.scene(&self.tally, seconds(22.8)).act, Act::KeepingUp);
        self.hear(25.0, line(Role::Pool, "stats", "", &[("limit", "fetch".into())]));
        self.hear(30.2, line(Role::Seed, "done", "", &[("sent", 12_000.into()), ("failed", 0.into())]));
        self.hear(30.2, Heard::Ended(Role::Seed, Exit::Done));
        self
    }
}

#[test]
fn the_whole_story() {
    let mut test = Test::take_over().play_on();
    test.finished(12_000);
    // Not before everything is committed.
    assert_eq!(test.lag(30.4, 0, 12_000), [], "may have been asked before the last record came");
    assert_eq!(test.lag(30.6, 100, 12_000), []);
    assert_eq!(test.lag(30.8, 0, 12_000), [Cue::Stop(Role::Pool)]);
    assert_eq!(test.hear(30.9, Heard::Ended(Role::Pool, Exit::Done)), [Cue::Stop(Role::Lag)]);
    assert!(!test.story.is_over());
    assert_eq!(test.hear(31.0, Heard::Ended(Role::Lag, Exit::Done)), []);
    assert!(test.story.is_over());
    let verdict = test.story.verdict(&test.tally);
    assert_eq!((verdict.exit, verdict.lost), (Exit::Done, 0));
    // 7920 records in 10 s, to 99 a second.
    assert_eq!(verdict.speed_up.map(|times| (times * 10.0).round()), Some(80.0));
    assert_eq!(verdict.title, "Done: 8.0 times as fast, each key in order, nothing lost.");
    let text: Vec<&str> = verdict.points.iter().map(|point| point.text.as_str()).collect();
    assert_eq!(text[0], "none lost (checked): 12000 sent, 12000 finished");
    assert!(text.iter().any(|text| text.starts_with("limit=workers while it caught up")));
    assert!(text.iter().any(|text| text.starts_with("limit=fetch at the end")));
    assert!(verdict.points.iter().all(|point| !point.bad));
}

#[test]
fn a_broken_order_ends_with_1() {
    let mut test = Test::take_over().play_on();
    test.finished(12_000);
    test.tally.broken = 2;
    test.tally.first_break = Some("two records of key-7 were handled at once".to_owned());
    let verdict = test.story.verdict(&test.tally);
    assert_eq!(verdict.exit, Exit::Partly);
    assert!(verdict.title.contains("bug in keylane"));
    assert!(verdict.points.iter().any(|point| point.bad && point.text.contains("key-7")));
}

#[test]
fn a_lost_record_ends_with_1() {
    let mut test = Test::take_over().play_on();
    test.finished(11_999);
    assert_eq!(test.lag(30.8, 0, 12_000), [Cue::Stop(Role::Pool)]);
    let verdict = test.story.verdict(&test.tally);
    assert_eq!((verdict.exit, verdict.lost), (Exit::Partly, 1));
}

#[test]
fn a_signal_ends_all_roles_at_once() {
    let mut test = Test::take_over();
    let cues = test.hear(15.0, Heard::Signal(2));
    assert_eq!(cues, [Cue::Stop(Role::Seed), Cue::Stop(Role::Pool), Cue::Stop(Role::Lag)]);
    assert_eq!(test.pass(15.1), []);
    // A second one hurries them.
    assert_eq!(test.hear(15.2, Heard::Signal(2)).len(), 3);
    for role in [Role::Seed, Role::Pool, Role::Lag] {
        assert!(!test.story.is_over());
        test.hear(15.3, Heard::Ended(role, Exit::Unfinished));
    }
    assert!(test.story.is_over());
    assert_eq!(test.story.verdict(&test.tally).exit, Exit::Interrupt);
}

#[test]
fn a_slow_machine_is_told_so_in_time() {
    let mut test = Test::take_over();
    test.finished(2000);
    let cues = test.pass(Plan::FULL.limit.as_secs_f64());
    assert_eq!(cues.len(), 3);
    for role in [Role::Seed, Role::Pool, Role::Lag] {
        test.hear(55.1, Heard::Ended(role, Exit::Done));
    }
    let verdict = test.story.verdict(&test.tally);
    assert_eq!((verdict.exit, verdict.lost), (Exit::Unfinished, 0));
}

#[test]
fn a_role_that_ends_too_early_ends_the_demo() {
    let mut test = Test::take_over();
    let error = line(Role::Pool, "error", "keylane: error: no coordinator", &[]);
    test.hear(14.0, error);
    assert_eq!(test.hear(14.0, Heard::Ended(Role::Pool, Exit::Unavailable)).len(), 2);
    test.hear(14.1, Heard::Ended(Role::Seed, Exit::Unfinished));
    test.hear(14.1, Heard::Ended(Role::Lag, Exit::Done));
    assert!(test.story.is_over());
    let verdict = test.story.verdict(&test.tally);
    assert_eq!(verdict.exit, Exit::Unavailable);
    assert!(verdict.points.iter().any(|point| point.bad && point.text.contains("no coordinator")));
}

#[test]
fn a_role_that_does_not_end_is_not_waited_for() {
    let mut test = Test::take_over();
    assert_eq!(test.hear(15.0, Heard::Signal(15)).len(), 3);
    test.hear(15.1, Heard::Ended(Role::Seed, Exit::Done));
    test.hear(15.1, Heard::Ended(Role::Lag, Exit::Done));
    assert_eq!(test.pass(18.0), [Cue::Stop(Role::Pool)]);
    assert_eq!(test.pass(21.0), []);
    assert!(test.story.is_over());
    assert_eq!(test.story.cut, Some(Cut::Stuck(Role::Pool)));
    assert_eq!(test.story.verdict(&test.tally).exit, Exit::Bug);
}
