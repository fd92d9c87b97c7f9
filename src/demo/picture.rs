//! From a moment to the lines of a picture: no terminal, no clock.
//!
//! No line is longer than the width less one, and there are never more lines than the height: what has no room is left
//! out, the chart and what happened first. Only the last frame may be higher, as nothing is drawn over it.

use std::time::Duration;

use super::bars::{bar, chart, column_at, round_up};
use super::scene::{Act, Point, Scene};
use super::terminal::Size;

/// What may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) colour: bool,
    pub(super) unicode: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ink {
    Plain,
    Bold,
    /// What explains, or is over.
    Faint,
    /// The one thread's time.
    Slow,
    /// The pool's time.
    Fast,
    /// What comes in.
    Source,
    Alarm,
}

impl Ink {
    fn code(self) -> &'static str {
        match self {
            Ink::Plain => "0",
            Ink::Bold => "1",
            Ink::Faint => "2",
            Ink::Slow => "33",
            Ink::Fast => "32",
            Ink::Source => "36",
            Ink::Alarm => "1;31",
        }
    }
}

/// One line under work, cut at the width.
struct Line<'a> {
    brush: &'a Brush,
    text: String,
    columns: usize,
}

impl Line<'_> {
    fn add(mut self, ink: Ink, text: &str) -> Self {
        let room = self.brush.columns - self.columns;
        let cut: String = text.chars().take(room).collect();
        self.columns += cut.chars().count();
        if self.brush.style.colour && ink != Ink::Plain && !cut.trim().is_empty() {
            self.text.push_str(&format!("\x1b[{}m{cut}\x1b[0m", ink.code()));
        } else {
            self.text.push_str(&cut);
        }
        self
    }

    /// Adds text at the right edge, if there is room for it.
    fn add_right(self, ink: Ink, text: &str) -> Self {
        let wanted = text.chars().count();
        let room = self.brush.columns - self.columns;
        if room < wanted + 1 {
            return self;
        }
        let gap = " ".repeat(room - wanted);
        self.add(Ink::Plain, &gap).add(ink, text)
    }

    fn end(self) -> String {
        self.text.trim_end().to_owned()
    }
}

struct Brush {
    style: Style,
    /// What a line may have: the width less one, so that no terminal wraps it.
    columns: usize,
}

impl Brush {
    fn line(&self) -> Line<'_> {
        Line { brush: self, text: String::new(), columns: 0 }
    }

    fn of(&self, ink: Ink, text: &str) -> String {
        self.line().add(ink, text).end()
    }
}

/// Bars are not narrower than that.
const BAR_MIN: usize = 8;
const CHART_ROWS_MIN: usize = 3;
const CHART_ROWS_MAX: usize = 10;
/// Left of the chart.
const GUTTER: usize = 8;

/// Draws.
pub(super) fn draw(scene: &Scene, style: Style, size: Size) -> Vec<String> {
    let brush = Brush { style, columns: size.columns.saturating_sub(1).max(20) };
    // The last frame leaves a line for the shell.
    if scene.act == Act::Over {
        return end(scene, &brush, size.rows.saturating_sub(1));
    }
    let mut lines = running(scene, &brush, size.rows);
    lines.truncate(size.rows.max(1));
    lines
}

fn running(scene: &Scene, brush: &Brush, rows: usize) -> Vec<String> {
    let mut lines = vec![head(scene, brush), brush.of(Ink::Bold, &scene.title)];
    let bars = partitions(scene, brush);
    let mut tail = rates(scene, brush);
    tail.push(workers(scene, brush));
    tail.push(limit(scene, brush));
    if rows > lines.len() + bars.len() + tail.len() + 1 {
        lines.push(brush.of(Ink::Faint, &format!("$ {}", scene.command)));
        lines.push(String::new());
    }
    lines.extend(bars);

    let mut left = rows.saturating_sub(lines.len() + tail.len());
    if left > CHART_ROWS_MIN + 2 {
        let chart_rows = (left - 5).clamp(CHART_ROWS_MIN, CHART_ROWS_MAX);
        let chart = history(scene, brush, chart_rows);
        left = left.saturating_sub(chart.len() + 1);
        lines.push(String::new());
        lines.extend(chart);
    }
    lines.extend(tail);
    if left > 1 && !scene.events.is_empty() {
        let first = scene.events.len().saturating_sub(left - 1);
        lines.push(String::new());
        for event in &scene.events[first..] {
            lines.push(brush.of(Ink::Faint, &format!("{:>6.1} s  {}", event.at.as_secs_f64(), event.text)));
        }
    }
    lines
}

fn head(scene: &Scene, brush: &Brush) -> String {
    let clock = |time: Duration| format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60);
    let right = if scene.act == Act::Over {
        clock(scene.elapsed)
    } else {
        format!("{} of about {}", clock(scene.elapsed), clock(scene.expected.max(scene.elapsed)))
    };
    let about = format!("  a Kafka in memory at {}", scene.broker);
    brush.line().add(Ink::Source, "keylane demo").add(Ink::Faint, &about).add_right(Ink::Plain, &right).end()
}

/// The consumer's colour.
fn ink(scene: &Scene) -> Ink {
    if scene.taken_over_at.is_some() { Ink::Fast } else { Ink::Slow }
}

fn partitions(scene: &Scene, brush: &Brush) -> Vec<String> {
    let total = scene.lag().map_or_else(|| "none yet".to_owned(), |lag| format!("total {lag}"));
    let text = format!("lag of group {}: records that wait, in each partition", scene.group);
    let mut lines = vec![brush.line().add(Ink::Plain, &text).add_right(Ink::Bold, &total).end()];
    let columns = brush.columns.saturating_sub(12 + 8).max(BAR_MIN);
    let max = round_up(scene.partition_lag_max);
    for (number, partition) in scene.partitions.iter().enumerate() {
        let keys = if partition.keys == 1 { "key " } else { "keys" };
        let label = format!("{number:>3} {:>3} {keys}", partition.keys);
        let bar = bar(partition.lag.unwrap_or(0), max, columns, brush.style.unicode);
        let value = partition.lag.map_or_else(|| "-".to_owned(), |lag| lag.to_string());
        let line = brush.line().add(Ink::Faint, &label).add(ink(scene), &format!(" {bar}"));
        lines.push(line.add(Ink::Plain, &format!("{value:>7}")).end());
    }
    lines
}

fn history(scene: &Scene, brush: &Brush, rows: usize) -> Vec<String> {
    let columns = brush.columns.saturating_sub(GUTTER).max(BAR_MIN);
    let span = scene.expected.max(scene.elapsed);
    let max = round_up(scene.lag_max);
    let unicode = brush.style.unicode;
    let grid = chart(&scene.history, span, max, columns, rows, unicode);
    let split = scene.taken_over_at.map_or(columns, |at| column_at(at, span, columns));
    let mut lines = Vec::new();
    for (row, cells) in grid.iter().enumerate() {
        let label = match row {
            0 => max.to_string(),
            1 => "total".to_owned(),
            2 if rows > CHART_ROWS_MIN => "lag".to_owned(),
            _ if row + 1 == rows => "0".to_owned(),
            _ => String::new(),
        };
        let edge = if unicode { '│' } else { '|' };
        let (slow, fast) = cells.split_at(split);
        let line = brush.line().add(Ink::Faint, &format!("{label:>6} {edge}"));
        let line = line.add(Ink::Slow, &slow.iter().collect::<String>());
        lines.push(line.add(Ink::Fast, &fast.iter().collect::<String>()).end());
    }
    lines.push(axis(scene, brush, columns, span, split));
    lines
}

/// `0 s   one thread   ^ 8 workers   31 s`
fn axis(scene: &Scene, brush: &Brush, columns: usize, span: Duration, split: usize) -> String {
    let end = format!("{} s", span.as_secs());
    let start = "0 s";
    let arrow = if brush.style.unicode { "▲" } else { "^" };
    let mut line = brush.line().add(Ink::Plain, &" ".repeat(GUTTER)).add(Ink::Faint, start);
    let mut used = start.len();
    let alone = "one thread";
    let alone_at = split.min(column_at(scene.elapsed, span, columns)) / 2;
    let alone_at = alone_at.saturating_sub(alone.len() / 2);
    let mut marks = Vec::new();
    if alone_at > start.len() && alone_at + alone.len() < split {
        marks.push((alone_at, Ink::Slow, alone.to_owned()));
    }
    if scene.taken_over_at.is_some() {
        marks.push((split, Ink::Fast, format!("{arrow} {} workers", scene.pool_workers)));
    }
    for (at, ink, text) in marks {
        let wanted = text.chars().count();
        if at > used && at + wanted + end.len() < columns {
            line = line.add(Ink::Plain, &" ".repeat(at - used)).add(ink, &text);
            used = at + wanted;
        }
    }
    line.add_right(Ink::Faint, &end).end()
}

fn rates(scene: &Scene, brush: &Brush) -> Vec<String> {
    let columns = brush.columns.saturating_sub(18 + 14).max(BAR_MIN);
    let line = |name: &str, rate: u64, count: u64, ink: Ink| {
        let bar = bar(
            i64::try_from(rate).unwrap_or(i64::MAX),
            i64::try_from(scene.rate_max).unwrap_or(i64::MAX),
            columns,
            brush.style.unicode,
        );
        let line =
            brush.line().add(Ink::Plain, &format!("{name:<9} {rate:>5}/s ")).add(ink, &format!(" {bar}"));
        line.add_right(Ink::Plain, &format!("{count} in all")).end()
    };
    vec![
        line("produced", scene.produced_rate, scene.produced, Ink::Source),
        line("processed", scene.finished_rate, scene.finished, ink(scene)),
    ]
}

/// Workers and keys, a mark for each that is at work.
fn workers(scene: &Scene, brush: &Brush) -> String {
    let (busy, idle) = if brush.style.unicode { ("■", "·") } else { ("#", ".") };
    let total = scene.workers as usize;
    let at_work = (scene.busy as usize).min(total);
    let marks = busy.repeat(at_work) + &idle.repeat(total - at_work);
    let width = (scene.pool_workers as usize).max(total);
    let gap = " ".repeat(width - total);
    let line = brush.line().add(Ink::Plain, "workers   ").add(ink(scene), &marks);
    let mut line = line.add(Ink::Plain, &format!("{gap}  {at_work} of {total} busy  keys at work "));
    for key in &scene.keys {
        line = if *key { line.add(ink(scene), busy) } else { line.add(Ink::Faint, idle) };
    }
    line.end()
}

fn limit(scene: &Scene, brush: &Brush) -> String {
    let line = brush.line().add(Ink::Plain, "limit     ");
    match &scene.limit {
        Some((word, meaning)) => line.add(Ink::Bold, word).add(Ink::Faint, &format!(": {meaning}")).end(),
        None => line.add(Ink::Faint, "said once a second").end(),
    }
}

/// The last frame: the story as a chart, and what came of it.
fn end(scene: &Scene, brush: &Brush, rows: usize) -> Vec<String> {
    let title = if scene.failed { Ink::Alarm } else { Ink::Bold };
    let mut lines = vec![head(scene, brush), brush.of(title, &scene.title), String::new()];
    let points = summary(&scene.summary, brush);
    let left = rows.saturating_sub(lines.len() + points.len());
    if left > CHART_ROWS_MIN + 2 && !scene.history.is_empty() {
        lines.extend(history(scene, brush, (left - 2).clamp(CHART_ROWS_MIN, CHART_ROWS_MAX)));
        lines.push(String::new());
    }
    lines.extend(points);
    lines
}

fn summary(points: &[Point], brush: &Brush) -> Vec<String> {
    const NAME: usize = 12;
    let room = brush.columns.saturating_sub(NAME).max(BAR_MIN);
    let mut lines = Vec::new();
    for point in points {
        let (name_ink, ink) = if point.bad { (Ink::Alarm, Ink::Alarm) } else { (Ink::Faint, Ink::Plain) };
        for (index, part) in wrap(&point.text, room).iter().enumerate() {
            let name = if index == 0 { point.name } else { "" };
            let line = brush.line().add(name_ink, &format!("{name:<NAME$}")).add(ink, part);
            lines.push(line.end());
        }
    }
    lines
}

/// Cuts between words.
fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().filter(|line| line.chars().count() + 1 + word.chars().count() <= columns);
        match line {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
}
