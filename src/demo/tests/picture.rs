//! The picture at several sizes, in colour and without. The samples are what people see: read them.

use std::time::Duration;

use crate::demo::picture::{Style, draw};
use crate::demo::scene::{Act, Event, Partition, Point, Sample, Scene};
use crate::demo::terminal::Size;

const PLAIN: Style = Style { colour: false, unicode: false };
const BLOCKS: Style = Style { colour: false, unicode: true };
const COLOUR: Style = Style { colour: true, unicode: true };
const SMALL: Size = Size { columns: 80, rows: 24 };
const MIDDLE: Size = Size { columns: 120, rows: 32 };
const LARGE: Size = Size { columns: 160, rows: 40 };

/// The pool, three seconds after it took over.
fn catching_up() -> Scene {
    let seconds = Duration::from_secs;
    let lags = [143, 934, 841, 496, 1, 147];
    let keys = [3, 10, 9, 6, 1, 3];
    let rising = (0..48).map(|tick| Sample { at: Duration::from_millis(tick * 250), lag: 75 * tick as i64 });
    let falling = (48..61)
        .map(|tick| Sample { at: Duration::from_millis(tick * 250), lag: 3600 - 80 * (tick as i64 - 48) });
    Scene {
        act: Act::CatchingUp,
        elapsed: Duration::from_millis(15_250),
        expected: seconds(31),
        broker: "127.0.0.1:43263".to_owned(),
        group: "billing",
        title: "8 workers, the same 10 ms, each key still in order: it catches up.".to_owned(),
        command: "keylane pool -b 127.0.0.1:43263 -t orders -g billing -w 8 --work-delay 10ms".to_owned(),
        partitions: keys
            .into_iter()
            .zip(lags)
            .map(|(keys, lag)| Partition { keys, lag: Some(lag) })
            .collect(),
        partition_lag_max: 1008,
        history: rising.chain(falling).collect(),
        lag_max: 3600,
        taken_over_at: Some(seconds(12)),
        produced: 6049,
        produced_rate: 402,
        finished: 3550,
        finished_rate: 776,
        rate_max: 800,
        pool_workers: 8,
        workers: 8,
        busy: 7,
        keys: (0..32).map(|key| key % 4 == 1 && key != 5).collect(),
        limit: Some(("workers".to_owned(), "all are busy, and more records could run")),
        events: (0..20)
            .map(|number| Event { at: seconds(number), text: format!("event number {number}") })
            .collect(),
        events_before: 0,
        summary: Vec::new(),
        failed: false,
    }
}

fn falling_behind() -> Scene {
    let mut scene = catching_up();
    scene.act = Act::Behind;
    scene.title = "One thread, 10 ms a record: 400/s come in, it can do 100/s. It falls behind.".to_owned();
    scene.history.truncate(30);
    scene.elapsed = Duration::from_millis(7300);
    scene.taken_over_at = None;
    scene.workers = 1;
    scene.busy = 1;
    scene
}

fn over() -> Scene {
    let point = |name, text: &str, bad| Point { name, text: text.to_owned(), bad };
    Scene {
        act: Act::Over,
        title: "Done: 8.1 times as fast, each key in order, nothing lost.".to_owned(),
        summary: vec![
            point("records", "none lost (checked): 12000 sent, 12000 finished", false),
            point(
                "order",
                "kept, and a text that is too long to stand in one line of 80 columns, so that",
                false,
            ),
            point("pool", "773 records/s", false),
        ],
        ..catching_up()
    }
}

/// The text without its colours.
fn bare(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\x1b') {
        text.push_str(before);
        rest = after.split_once('m').expect("only colours").1;
    }
    text + rest
}

#[test]
fn at_80_columns_without_colour_and_blocks() {
    let expected = include_str!("catching_up_80.txt");
    assert_eq!(draw(&catching_up(), PLAIN, SMALL).join("\n") + "\n", expected);
}

#[test]
fn at_80_columns_with_blocks() {
    let expected = include_str!("falling_behind_80.txt");
    assert_eq!(draw(&falling_behind(), BLOCKS, SMALL).join("\n") + "\n", expected);
}

#[test]
fn at_120_columns() {
    let expected = include_str!("catching_up_120.txt");
    assert_eq!(draw(&catching_up(), BLOCKS, MIDDLE).join("\n") + "\n", expected);
}

#[test]
fn at_160_columns_bars_and_chart_are_larger() {
    let (small, large) = (draw(&catching_up(), BLOCKS, SMALL), draw(&catching_up(), BLOCKS, LARGE));
    let columns = |line: &String| line.chars().count();
    let full = |line: &String| line.chars().filter(|char| *char == '█').count();
    // The head, the bars and the rates reach the right edge of both.
    for line in [0, 4, 5, 6, 7, 8, 9, 10] {
        assert_eq!((columns(&small[line]), columns(&large[line])), (79, 159), "{}", large[line]);
    }
    for line in [5, 6, 7, 8] {
        assert!(full(&large[line]) > 2 * full(&small[line]), "{}", large[line]);
    }
    let chart_rows = |lines: &[String]| lines.iter().filter(|line| line.contains('│')).count();
    assert_eq!((chart_rows(&small), chart_rows(&large)), (4, 10));
    assert_eq!((small.len(), large.len()), (24, 40));
}

#[test]
fn the_end_at_80_columns() {
    let expected = include_str!("over_80.txt");
    assert_eq!(draw(&over(), BLOCKS, SMALL).join("\n") + "\n", expected);
}

#[test]
fn colours_change_nothing_but_colour() {
    for scene in [catching_up(), falling_behind(), over()] {
        let coloured = draw(&scene, COLOUR, SMALL);
        assert!(coloured.iter().any(|line| line.contains("\x1b[")));
        let bare: Vec<String> = coloured.iter().map(|line| bare(line).trim_end().to_owned()).collect();
        assert_eq!(bare, draw(&scene, BLOCKS, SMALL));
    }
}

#[test]
fn the_one_thread_and_the_pool_differ_in_colour() {
    let slow = draw(&falling_behind(), COLOUR, SMALL).join("\n");
    let fast = draw(&catching_up(), COLOUR, SMALL).join("\n");
    assert!(slow.contains("\x1b[33m") && !slow.contains("\x1b[32m"));
    // The chart keeps the one thread's time as it was.
    assert!(fast.contains("\x1b[33m") && fast.contains("\x1b[32m"));
}

#[test]
fn every_size_has_room() {
    for scene in [catching_up(), falling_behind(), over()] {
        for columns in [1, 20, 40, 79, 80, 81, 120, 300] {
            for rows in [1, 5, 10, 16, 20, 24, 25, 50, 100] {
                for style in [PLAIN, BLOCKS] {
                    let lines = draw(&scene, style, Size { columns, rows });
                    assert!(
                        lines.len() <= rows || scene.act == Act::Over,
                        "{columns}x{rows}: {} lines",
                        lines.len()
                    );
                    let widest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
                    assert!(widest < columns.max(21), "{columns}x{rows}: {widest} columns");
                }
            }
        }
    }
}

#[test]
fn a_low_window_keeps_the_numbers() {
    let lines = draw(&catching_up(), PLAIN, Size { columns: 80, rows: 13 });
    assert_eq!(lines.len(), 13);
    assert!(lines[2].starts_with("lag of group") && lines[12].starts_with("limit     workers"));
}

#[test]
fn before_anything_is_known() {
    let mut scene = falling_behind();
    scene.partitions.iter_mut().for_each(|partition| partition.lag = None);
    scene.history.clear();
    scene.limit = None;
    scene.workers = 0;
    scene.busy = 0;
    let lines = draw(&scene, PLAIN, SMALL);
    assert!(lines[4].ends_with("none yet"));
    assert!(lines.iter().any(|line| line.starts_with("workers") && line.contains("0 of 0 busy")));
}
