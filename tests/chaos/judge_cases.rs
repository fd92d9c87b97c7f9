//! Small histories that are wrong in one way each: the judge must see it, and must not see more in a good one.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::events::{Event, What};
use crate::evidence::{Career, Evidence, Gone, Tenure};
use crate::judge::judge;

/// Tries every case.
///
/// # Panics
/// At the first that is judged wrongly.
pub fn run() {
    // A member, its tenure's end if it is not `Left`, its lines. Every history ends with all four records committed.
    let good = "b1@0 d1@0 b1@1 b1@2 d1@2 f1@1 b1@1 d1@1 c3 b1@3 d1@3";
    let cases: &[(&str, &str, Gone, &str)] = &[
        ("", "a good one", Gone::Left, good),
        ("lost:", "a record is missing", Gone::Left, "b1@0 d1@0 b1@1 d1@1 b1@3 d1@3"),
        ("committed early:", "a commit past it", Gone::Left, "b1@0 d1@0 c2 b1@1 d1@1 b1@2 d1@2 b1@3 d1@3"),
        ("commit went back:", "it goes back", Gone::Left, "b1@0 d1@0 b1@1 d1@1 c2 c1 b1@2 d1@2 b1@3 d1@3"),
        (
            "",
            "for a moment, by a new coordinator",
            Gone::Left,
            "b1@0 d1@0 b1@1 d1@1 c2 a0 c1 i0 c2 b1@2 d1@2 b1@3 d1@3",
        ),
        (
            "",
            "by one that Kafka chose itself",
            Gone::Left,
            "b1@0 d1@0 b1@1 d1@1 c1@2 c2@1 b1@2 d1@2 b1@3 d1@3",
        ),
        (
            "commit went back:",
            "by the only one there was",
            Gone::Left,
            "b1@0 d1@0 b1@1 d1@1 c1@2 c1@1 b1@2 d1@2 b1@3 d1@3",
        ),
        (
            "commit went back:",
            "by one that is new no longer",
            Gone::Left,
            "b1@0 d1@0 b1@1 d1@1 c1@2 c2@2 b1@2 d1@2 b1@3 d1@3 c2@3 c2@2",
        ),
        (
            "began below the commit:",
            "for its next owner, too",
            Gone::Left,
            "b1@0 d1@0 a0 c1 c0 i0 b2@1 d2@1 b2@2 d2@2 b2@3 d2@3",
        ),
        ("lost:", "rejected without a letter", Gone::Left, "b1@0 r1@0 b1@1 d1@1 b1@2 d1@2 b1@3 d1@3"),
        ("out of order:", "a key backwards", Gone::Left, "b1@2 d1@2 b1@0 d1@0 b1@1 d1@1 b1@3 d1@3"),
        ("step:", "and its step back", Gone::Left, "b1@2 d1@2 b1@0 d1@0 b1@1 d1@1 b1@3 d1@3"),
        ("step:", "on from a failed one", Gone::Left, "b1@0 f1@0 b1@2 d1@2 b1@0 d1@0 b1@1 d1@1 b1@3 d1@3"),
        ("overlap:", "two of a key at once", Gone::Left, "b1@0 b1@2 d1@0 d1@2 b1@1 d1@1 b1@3 d1@3"),
        ("overlap:", "at two members", Gone::Left, "b1@0 b2@0 d1@0 d2@0 b1@1 d1@1 b1@2 d1@2 b1@3 d1@3"),
        ("", "one of them lost it", Gone::Lost, "b1@0 b2@0 d1@0 d2@0 b2@1 d2@1 b2@2 d2@2 b2@3 d2@3"),
        ("", "one of them an orphan", Gone::Killed, "b1@0 k1 b2@0 d1@0 d2@0 b2@1 d2@1 b2@2 d2@2 b2@3 d2@3"),
        (
            "overlap:",
            "one killed after",
            Gone::Killed,
            "b1@0 b2@0 d1@0 k1 d2@0 b2@1 d2@1 b2@2 d2@2 b2@3 d2@3",
        ),
        ("repeat:", "again for no reason", Gone::Left, "b1@0 d1@0 b2@0 d2@0 b1@1 d1@1 b1@2 d1@2 b1@3 d1@3"),
        ("", "again after a kill", Gone::Killed, "b1@0 d1@0 k1 b2@0 d2@0 b2@1 d2@1 b2@2 d2@2 b2@3 d2@3"),
        ("repeat:", "again by itself", Gone::Killed, "b1@0 d1@0 b1@0 d1@0 k1 b2@1 d2@1 b2@2 d2@2 b2@3 d2@3"),
        (
            "repeats:",
            "too often",
            Gone::Killed,
            "b1@1 d1@1 b1@3 d1@3 k1 b2@0 d2@0 b2@1 d2@1 b2@2 d2@2 b2@3 d2@3",
        ),
        (
            "",
            "that often by a late commit",
            Gone::Killed,
            "b1@0 d1@0 b1@1 d1@1 c0 k1 b2@0 d2@0 b2@1 d2@1 b2@2 d2@2 b2@3 d2@3",
        ),
        ("ledger:", "beyond the log", Gone::Left, "b1@0 d1@0 b1@1 d1@1 b1@2 d1@2 b1@3 d1@3 b1@4 d1@4"),
    ];
    for (expected, name, gone, lines) in cases {
        let violations = judge(&history(lines, *gone)).violations;
        let found = violations.iter().any(|violation| violation.starts_with(expected));
        assert_eq!(found, !expected.is_empty(), "{name}: {violations:#?}");
        assert!(!expected.is_empty() || violations.is_empty(), "{name}: {violations:#?}");
    }
    let mut below = history(good, Gone::Left);
    below.careers[0].tenures[0].from = 1;
    assert!(judge(&below).violations[0].starts_with("below its start:"));
    let mut after = history(good, Gone::Left);
    after.careers[0].tenures[0].gone = Some((Duration::from_secs(3), Gone::Revoked));
    assert!(judge(&after).violations.iter().any(|violation| violation.starts_with("begun after the end:")));
    assert_eq!(
        crate::evidence::parse_time("2026-12-01T09:48:48.123Z"),
        Some(Duration::from_millis(1_796_118_528_123))
    );
    eprintln!("chaos: the judge judges {} histories as it should", cases.len() + 2);
}

/// `b1@0`: member 1 begins offset 0, at a new second; d, f, r: it has done it, failed, rejected it; `c3`: 3 is
/// committed, `c2@3`: so says node 2; `k1`: member 1 is dead; `a0`, `i0`: a broker is away, and back. Offsets 0 and 2
/// have one key, 1 and 3 another.
fn history(lines: &str, gone_1: Gone) -> Evidence {
    let mut events: Vec<Event> = Vec::new();
    for (second, word) in (1..).zip(lines.split_whitespace()) {
        let (kind, rest) = word.split_at(1);
        let (member, offset) =
            rest.split_once('@').unwrap_or(if kind == "k" { (rest, "-1") } else { ("0", rest) });
        let what = match kind {
            "b" => What::Begin,
            "d" => What::Done,
            "f" => What::Fail,
            "r" => What::Reject,
            "c" => What::Committed,
            "k" => What::Killed,
            "a" => What::Away,
            "i" => What::Back,
            _ => panic!("no line: {word}"),
        };
        let (member, offset): (u32, i64) = (member.parse().unwrap(), offset.parse().unwrap());
        let key = format!("key-{}", offset % 2);
        events.push(Event {
            what,
            member,
            pid: member,
            place: (0, offset),
            key,
            time: Duration::from_secs(second),
        });
    }
    let time = |at: usize| Duration::from_secs(at as u64 + 1);
    let end = time(events.len());
    let of = |member: u32| events.iter().position(|e| e.member == member && e.what == What::Begin).map(time);
    let second = of(2).unwrap_or(end);
    let killed = events.iter().position(|event| event.what == What::Killed).map(time);
    let gone = if gone_1 == Gone::Lost { second } else { killed.unwrap_or(end) };
    let tenure = |generation: i64, began: Duration, gone: Duration, how: Gone| Tenure {
        partition: 0,
        from: 0,
        generation,
        began,
        gone: Some((gone, how)),
    };
    let career =
        |id: u32, tenure: Tenure| Career { id, in_hand_max: 1, tenures: vec![tenure], ..Career::default() };
    let mut careers = vec![career(1, tenure(1, Duration::ZERO, gone, gone_1))];
    if of(2).is_some() {
        careers.push(career(2, tenure(2, second, end, Gone::Left)));
    }
    let all =
        Event { what: What::Committed, member: 0, pid: 0, place: (0, 4), key: "-".to_owned(), time: end };
    events.push(all);
    Evidence { events, careers, ends: BTreeMap::from([(0, 4)]), ahead_max: 0, ..Evidence::default() }
}
