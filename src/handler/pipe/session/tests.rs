//! Small cases one by one, then a child that does anything at all, by seeds.

use std::collections::BTreeMap;

use super::*;

type Over = Vec<Settled<u32>>;

const MS: Duration = Duration::from_millis(1);

fn line(id: u64, item: &u32, out: &mut Vec<u8>) {
    out.extend(format!("{id}:{item}\n").bytes());
}

/// Items 0, 1, … are open and written, so that ids are 1, 2, ….
fn opened(records: u32, timeout: Option<Duration>) -> Session<u32> {
    let mut session = Session::new(8, timeout);
    (0..records).for_each(|item| session.open(item, false, Duration::ZERO));
    session.fill(line);
    session.wrote(session.out().len());
    session
}

fn read(session: &mut Session<u32>, printed: &str) -> (Over, Result<(), String>) {
    let mut over = Vec::new();
    let result = session.read(printed.as_bytes(), MS, &mut over);
    (over, result)
}

fn end(session: &mut Session<u32>, fate: Fate) -> Over {
    let mut over = Vec::new();
    session.end(&fate, 0, &ExitCodes::default(), MS, &mut over);
    assert_eq!(session.open_records(), 0);
    over
}

fn failed(settled: &Settled<u32>) -> (Kind, End, bool) {
    match &settled.outcome {
        Outcome::Failed(failed) => (failed.kind, failed.end, failed.counts),
        other => panic!("{other:?}"),
    }
}

#[test]
fn answers_come_in_any_order_and_cut_anywhere() {
    let mut session = opened(4, None);
    let (over, result) = read(&mut session, "3 ok\n1 retry later\n2 rej");
    assert_eq!(result, Ok(()));
    assert_eq!(over.iter().map(|settled| settled.item).collect::<Vec<_>>(), [2, 0]);
    assert_eq!(over[0].outcome, Outcome::Done);
    assert_eq!((over[0].sent_bytes, over[0].received_bytes), (4, 5));
    assert_eq!(failed(&over[1]), (Kind::Temporary, End::Answer, true));
    let (over, result) = read(&mut session, "ect no price\n");
    assert_eq!(result, Ok(()));
    assert_eq!(failed(&over[0]), (Kind::Reject, End::Answer, true));
    assert!(matches!(&over[0].outcome, Outcome::Failed(failed) if failed.reason == "no price"));
    assert_eq!(session.open_records(), 1);
}

#[test]
fn what_is_no_answer_breaks_the_child() {
    for (printed, said) in [
        ("hello\u{1b}[31m\n", "no answer but \"hello\\u{1b}[31m\""),
        ("9 ok\n", "does not have: \"9 ok\""),
        ("1 ok\n1 ok\n", "does not have: \"1 ok\""),
        ("\n", "no answer but \"\""),
    ] {
        let mut session = opened(1, None);
        let (_, result) = read(&mut session, printed);
        assert!(result.clone().is_err_and(|text| text.contains(said)), "{printed:?}: {result:?}");
    }
    let mut session = opened(1, None);
    let text = read(&mut session, &"x".repeat(LINE_BYTES_MAX + 1)).1.unwrap_err();
    assert!(text.contains("without end") && text.len() < 300, "{text}");
    // A record that has not left cannot be answered.
    session.end(&Fate::Ended, 0, &ExitCodes::default(), MS, &mut Vec::new());
    session.open(9, false, MS);
    session.fill(line);
    assert!(read(&mut session, "2 ok\n").1.is_err());
}

#[test]
fn one_that_was_open_alone_is_blamed_with_what_the_exit_code_means() {
    for (code, kind) in [(1, Kind::Ordinary), (0, Kind::Ordinary), (65, Kind::Reject), (75, Kind::Temporary)]
    {
        let over = end(&mut opened(1, None), Fate::Died(End::Exit(code)));
        assert_eq!(failed(&over[0]), (kind, End::Exit(code), true));
    }
    let over = end(&mut opened(1, None), Fate::Broken("printed x".to_owned()));
    assert_eq!(failed(&over[0]), (Kind::Ordinary, End::Answer, true));
}

#[test]
fn of_several_none_is_blamed() {
    let over = end(&mut opened(3, None), Fate::Died(End::Exit(65)));
    assert_eq!(over.len(), 3);
    assert!(over.iter().all(|settled| failed(settled) == (Kind::Ordinary, End::Exit(65), false)));
    // One that has not left is not among them.
    let mut session = opened(1, None);
    session.open(1, false, MS);
    session.fill(line);
    let over = end(&mut session, Fate::Died(End::Signal(11)));
    assert_eq!(failed(&over[0]), (Kind::Ordinary, End::Signal(11), true));
    assert_eq!(over[1].outcome, Outcome::Unfinished);
}

/// The lease is over: a child that is slow to read is given nothing more, but for the rest of a line.
#[test]
fn what_has_not_left_is_taken_back() {
    let mut session = Session::new(8, None);
    (0..3).for_each(|item| session.open(item, false, Duration::ZERO));
    session.fill(line);
    // All of 0, and a byte of 1, which is answered before it has left.
    session.wrote(line_bytes(1, 0) + 1);
    assert_eq!(read(&mut session, "2 ok\n").1, Ok(()));
    session.open(3, false, MS);
    let mut over = Vec::new();
    session.withdraw(MS, &mut over);
    assert_eq!(over.iter().map(|settled| settled.item).collect::<Vec<_>>(), [3, 2]);
    assert!(over.iter().all(|settled| settled.outcome == Outcome::Unfinished));
    assert_eq!(session.out(), b":1\n");
    assert_eq!(session.open_records(), 1);
    session.wrote(3);
    session.withdraw(MS, &mut over);
    assert_eq!((over.len(), session.out().len()), (2, 0));
    // Later ones follow as ever.
    session.open(2, false, MS);
    session.fill(line);
    assert_eq!(session.out(), b"5:2\n");
    session.wrote(4);
    assert_eq!(read(&mut session, "5 ok\n1 ok\n").0.len(), 2);
}

fn line_bytes(id: u64, item: u32) -> usize {
    let mut out = Vec::new();
    line(id, &item, &mut out);
    out.len()
}

#[test]
fn a_child_that_takes_nothing_uses_the_oldest_record_up() {
    let mut session = Session::new(4, None);
    (0..3).for_each(|item| session.open(item, false, MS));
    session.fill(line);
    let over = end(&mut session, Fate::Died(End::Exit(1)));
    assert_eq!(failed(&over[0]), (Kind::Ordinary, End::Exit(1), true));
    assert!(over[1..].iter().all(|settled| settled.outcome == Outcome::Unfinished));
}

#[test]
fn what_the_child_has_not_read_is_not_blamed() {
    let unread = |session: &mut Session<u32>, unread| {
        let mut over = Vec::new();
        session.end(&Fate::Died(End::Exit(1)), unread, &ExitCodes::default(), MS, &mut over);
        over.iter().map(|settled| matches!(settled.outcome, Outcome::Failed(_))).collect::<Vec<_>>()
    };
    // Four bytes each.
    assert_eq!(unread(&mut opened(3, None), 4), [true, true, false]);
    assert_eq!(unread(&mut opened(3, None), 7), [true, true, false]);
    assert_eq!(unread(&mut opened(3, None), 8), [true, false, false]);
    assert_eq!(
        unread(&mut opened(3, None), 12),
        [true, false, false],
        "one that reads nothing is at its end"
    );
    let mut session = opened(3, None);
    read(&mut session, "1 ok\n").1.unwrap();
    assert_eq!(unread(&mut session, 8), [false, false], "one that answered may end when it likes");
    let mut session = opened(3, None);
    let mut over = Vec::new();
    session.close_input(6, &mut over).unwrap();
    let items: Vec<_> =
        over.iter().map(|settled| (settled.item, settled.outcome == Outcome::Unfinished)).collect();
    assert_eq!(items, [(2, true), (1, false)]);
}

#[test]
fn a_last_line_needs_no_newline() {
    let mut session = opened(2, None);
    assert_eq!(read(&mut session, "2 ok").1, Ok(()));
    let over = end(&mut session, Fate::Died(End::Exit(3)));
    assert_eq!((over[0].item, &over[0].outcome), (1, &Outcome::Done));
    assert_eq!(failed(&over[1]), (Kind::Ordinary, End::Exit(3), true), "it was the only one left");
    let mut session = opened(2, None);
    assert_eq!(read(&mut session, "2 o").1, Ok(()));
    assert!(end(&mut session, Fate::Died(End::Exit(3))).iter().all(|settled| !failed(settled).2));
}

#[test]
fn a_records_time_begins_when_those_before_it_are_over() {
    let mut session = opened(3, Some(10 * MS));
    assert_eq!(session.deadline(), Some(10 * MS));
    session.read(b"1 ok\n", 8 * MS, &mut Vec::new()).unwrap();
    assert_eq!(session.deadline(), Some(18 * MS));
    session.read(b"3 ok\n", 9 * MS, &mut Vec::new()).unwrap();
    assert_eq!(session.deadline(), Some(18 * MS));
    session.open(3, false, 9 * MS);
    session.fill(line);
    session.wrote(session.out().len());
    assert!(!session.is_late(17 * MS));
    assert!(session.is_late(18 * MS));
    assert_eq!((session.deadline(), session.room()), (None, 0));
    // The others may still answer; it may not.
    let mut over = Vec::new();
    session.read(b"2 ok\n4 ok\n", 19 * MS, &mut over).unwrap();
    assert_eq!(over.iter().map(|settled| settled.item).collect::<Vec<_>>(), [3]);
    let over = end(&mut session, Fate::TimedOut);
    assert_eq!((over[0].item, failed(&over[0])), (1, (Kind::Ordinary, End::TimedOut, true)));
}

#[test]
fn of_a_child_that_hangs_only_the_oldest_is_late() {
    let mut session = opened(3, Some(MS));
    assert!(session.is_late(MS));
    let over = end(&mut session, Fate::TimedOut);
    assert_eq!(failed(&over[0]).1, End::TimedOut);
    assert!(over[1..].iter().all(|settled| settled.outcome == Outcome::Unfinished));
}

#[test]
fn an_alone_record_has_no_other_beside_it() {
    let mut session = Session::new(8, None);
    session.open(0, true, MS);
    assert_eq!(session.room(), 0);
    session.fill(line);
    session.wrote(session.out().len());
    read(&mut session, "1 ok\n").1.unwrap();
    assert_eq!(session.room(), 8);
}

#[test]
fn large_records_wait_until_there_is_room() {
    let mut session = Session::new(8, None);
    let large = |id: u64, _: &u32, out: &mut Vec<u8>| {
        out.extend(id.to_string().bytes());
        out.resize(out.len() + OUT_BYTES_MAX, b'x');
    };
    (0..3).for_each(|item| session.open(item, false, MS));
    session.fill(large);
    assert!(session.out().len() < OUT_BYTES_MAX + 100, "one only");
    assert_eq!(session.room(), 0);
    session.wrote(50);
    session.fill(large);
    assert!(session.out().len() < 2 * OUT_BYTES_MAX + 100, "and the next");
    session.wrote(session.out().len());
    session.fill(large);
    session.wrote(session.out().len());
    assert_eq!(session.room(), 1, "what comes next may be as large");
}

#[test]
fn a_child_that_closes_its_stdin_answers_for_what_it_has() {
    let mut session = opened(1, None);
    (1..4).for_each(|item| session.open(item, false, MS));
    session.fill(line);
    session.wrote(5);
    let mut over = Vec::new();
    session.close_input(0, &mut over).unwrap();
    over.sort_by_key(|settled| settled.item);
    assert!(!failed(&over[0]).2, "half of it is there");
    assert!(over[1..].iter().all(|settled| settled.outcome == Outcome::Unfinished));
    assert_eq!((over.len(), session.room(), session.is_spent(), session.out().len()), (2, 0, false, 0));
    let mut more = Vec::new();
    session.read(b"1 ok\n2 ok\n", MS, &mut more).unwrap();
    assert!(session.is_spent());
    end(&mut session, Fate::Ended);
    assert!(!session.is_spent());
    session.open(9, false, MS);
    assert!(session.close_input(0, &mut over).is_err(), "nothing of it is there");
}

#[test]
fn term_spares_a_child_with_a_record_that_may_go_on() {
    let mut session = opened(2, None);
    assert_eq!(session.ends(), (None, None));
    let ends = |term: u32, kill: u32| Some(Ends { term_at: term * MS, kill_at: kill * MS });
    session.look_at_ends(1, |item| {
        assert_eq!(*item, 1, "the newest");
        None
    });
    session.look_at_ends(usize::MAX, |item| ends(5, 9).filter(|_| *item == 0));
    assert_eq!(session.ends(), (None, Some(9 * MS)));
    session.look_at_ends(usize::MAX, |item| if *item == 0 { ends(6, 10) } else { ends(7, 11) });
    assert_eq!(session.ends(), (Some(7 * MS), Some(9 * MS)), "an end does not move back");
    read(&mut session, "1 ok\n").1.unwrap();
    assert_eq!(session.ends(), (Some(7 * MS), Some(11 * MS)));
    read(&mut session, "2 ok\n").1.unwrap();
    assert_eq!(session.ends(), (None, None));
}

/// A child that may do anything, and what it did.
struct Child {
    random: u64,
    /// Of the line that it is reading.
    partial: Vec<u8>,
    /// Ids and items that it has read.
    has: Vec<(u64, u32)>,
    /// Printed, and not read by us.
    printed: Vec<u8>,
    garbage: bool,
}

impl Child {
    fn below(&mut self, bound: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % bound
    }

    fn takes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => {
                    let text = String::from_utf8(std::mem::take(&mut self.partial)).unwrap();
                    let (id, item) = text.split_once(':').unwrap();
                    self.has.push((id.parse().unwrap(), item.parse().unwrap()));
                }
                byte => self.partial.push(*byte),
            }
        }
    }

    /// Returns what it said of which item.
    fn answers(&mut self) -> Option<(u32, &'static str)> {
        if self.has.is_empty() {
            return None;
        }
        let at = self.below(self.has.len());
        let (id, item) = self.has.swap_remove(at);
        let word = ["ok", "ok", "ok", "retry", "reject bad"][self.below(5)];
        self.printed.extend(format!("{id} {word}\n").bytes());
        Some((item, word))
    }
}

/// One run of a seed; every item is opened until it is done or fails for good, as the pool would have it.
fn run(seed: u64) {
    let timeout = seed.is_multiple_of(3).then_some(20 * MS);
    let depth = 1 + (seed % 9) as usize;
    let mut session = Session::new(depth, timeout);
    let mut child =
        Child { random: seed, partial: Vec::new(), has: Vec::new(), printed: Vec::new(), garbage: false };
    let mut now = Duration::ZERO;
    let mut due: Vec<(u32, bool)> = (0..60).map(|item| (item, false)).collect();
    let mut open: BTreeMap<u32, bool> = BTreeMap::new();
    let mut said: BTreeMap<u32, &str> = BTreeMap::new();
    let mut finished = 0;
    let mut over = Vec::new();
    let mut steps = 0;
    while finished < 60 {
        steps += 1;
        assert!(steps < 200_000, "seed {seed} comes to no end");
        now += MS / 4;
        while session.room() > 0 && !due.is_empty() && (!due[0].1 || open.is_empty()) && child.below(4) > 0 {
            let (item, alone) = due.remove(0);
            open.insert(item, alone);
            session.open(item, alone, now);
        }
        session.fill(line);
        let bytes = child.below(session.out().len() + 1);
        child.takes(&session.out()[..bytes]);
        session.wrote(bytes);
        let mut fate = None;
        match child.below(60) {
            0 => fate = Some(Fate::Died(End::Exit([0, 1, 65, 75][child.below(4)]))),
            1 => fate = Some(Fate::Ended),
            2 if !child.garbage => {
                child.garbage = true;
                let which = child.below(3);
                child.printed.extend([&b"what\n"[..], b"99999999 ok\n", b"\n"][which]);
            }
            3 => fate = session.close_input(0, &mut over).err().map(Fate::Broken),
            4 => session.withdraw(now, &mut over),
            _ => {
                if !child.garbage
                    && let Some((item, word)) = child.answers()
                {
                    said.insert(item, word);
                }
            }
        }
        let dies = matches!(fate, Some(Fate::Died(_)));
        let bytes = if dies { child.printed.len() } else { child.below(child.printed.len() + 1) };
        let printed: Vec<u8> = child.printed.drain(..bytes).collect();
        if !matches!(fate, Some(Fate::Broken(_))) {
            match session.read(&printed, now, &mut over) {
                Ok(()) => {}
                Err(text) => {
                    // It did wrong, or it spoke of a record that was taken back when it closed its stdin half-way.
                    assert!(child.garbage, "seed {seed}: {text}");
                    fate = Some(Fate::Broken(text));
                }
            }
        }
        if fate.is_none() && session.is_late(now) {
            fate = Some(Fate::TimedOut);
        }
        if fate.is_none() && session.is_spent() {
            fate = Some(Fate::Ended);
        }
        if let Some(fate) = fate {
            session.end(&fate, 0, &ExitCodes::default(), now, &mut over);
            assert_eq!((session.open_records(), session.out().len()), (0, 0));
            child.partial.clear();
            child.has.clear();
            child.printed.clear();
            child.garbage = false;
        }
        for settled in over.drain(..) {
            let alone = open.remove(&settled.item).unwrap_or_else(|| panic!("seed {seed}: two outcomes"));
            let said = said.remove(&settled.item);
            match settled.outcome {
                Outcome::Done => {
                    assert_eq!(said, Some("ok"), "seed {seed}");
                    finished += 1;
                }
                Outcome::Unfinished => due.insert(0, (settled.item, alone)),
                Outcome::Failed(failed) if !failed.counts => {
                    assert!(!alone, "seed {seed}: one that is alone is not open with others");
                    due.push((settled.item, true));
                }
                Outcome::Failed(Failed { end: End::Answer, kind: Kind::Reject, .. }) => {
                    assert_eq!(said, Some("reject bad"), "seed {seed}");
                    finished += 1;
                }
                Outcome::Failed(Failed { kind: Kind::Reject, .. }) => finished += 1,
                Outcome::Failed(_) => due.push((settled.item, alone)),
            }
        }
        due.sort_by_key(|(_, alone)| !alone);
        assert_eq!(session.open_records(), open.len(), "seed {seed}");
        assert!(open.len() <= depth);
        assert!(open.len() == 1 || open.values().all(|alone| !alone), "seed {seed}: {open:?}");
    }
}

#[test]
fn every_record_gets_one_outcome_whatever_the_child_does() {
    (0..500).for_each(run);
}
