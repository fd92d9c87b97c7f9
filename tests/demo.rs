//! `keylane demo` from its beginning to its end, without a terminal, and interrupted.
#![cfg(feature = "broker")]

#[path = "support/child.rs"]
mod child;

use std::time::Duration;

use child::Keylane;

#[test]
fn the_demo_keeps_what_it_claims() {
    let exit = Keylane::run_bare(&["demo", "--format", "json"], &[]).wait_exit(Duration::from_secs(70));
    assert_eq!(exit.code, Some(0), "{exit}");
    assert!(exit.took < Duration::from_secs(60) && exit.stderr.is_empty(), "{exit}");
    let lines: Vec<serde_json::Value> =
        exit.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let of = |kind: &str| lines.iter().filter(|line| line["type"] == kind).collect::<Vec<_>>();

    let summary = of("summary")[0];
    assert_eq!(summary["produced"], 12_000, "{exit}");
    assert_eq!(summary["processed"], 12_000, "{exit}");
    assert_eq!((&summary["lost"], &summary["order_broken"]), (&0.into(), &0.into()), "{exit}");
    assert_eq!(summary["repeats"], 0, "{exit}");
    // Eight workers; a busy machine gives them less than eight times as much.
    assert!(summary["speed_up"].as_f64().is_some_and(|times| times > 3.0), "{exit}");

    // The lag grows, and is gone at the end; the pool is busier than the one thread.
    let progress = of("progress");
    let lag = |line: &serde_json::Value| line["total_lag"].as_i64().unwrap_or(0);
    assert!(progress.iter().map(|line| lag(line)).max().unwrap_or(0) > 1500, "{exit}");
    assert_eq!(lag(progress[progress.len() - 1]), 0, "{exit}");
    assert!(progress.iter().any(|line| line["workers"] == 1));
    assert!(progress.iter().any(|line| line["workers"] == 8 && line["busy"].as_i64() > Some(4)));
}

#[test]
fn an_interrupted_demo_ends_at_once() {
    let mut demo = Keylane::run_bare(&["demo"], &[]);
    demo.wait_line("busy=1/1", Duration::from_secs(20));
    demo.signal("INT");
    let exit = demo.wait_exit(Duration::from_secs(5));
    assert_eq!(exit.code, Some(130), "{exit}");
    assert!(exit.stdout.contains("Interrupted"), "{exit}");
    assert!(exit.stdout.contains("kept (checked)"), "{exit}");
    // No picture, no codes for a terminal.
    assert!(!exit.stdout.contains('\u{1b}'), "{exit}");
}
