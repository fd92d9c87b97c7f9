//! Judges a round by the handlers' ledger. Pure.
//!
//! A *try* lasts from its `begin` to its last line, and is complete if that is `done` or `reject`. What must hold:
//!
//! - every record is completed; a rejected one is in the dead-letter topic, and every committed offset lies at or below
//!   the first record that was not complete before it was seen, and never goes back, except to an observer for a moment
//!   while a coordinator moves; no tenure that was an orderly one begins below a commit that was seen before;
//! - the first completions of a key are in the order of its offsets, whoever made them;
//! - in one process no two tries of a key overlap, and within one tenure of a partition a key goes on to a later record
//!   only from a complete one, and never back;
//! - in two processes they overlap only where one was killed (its children live on), had lost the partition, or stood
//!   still when it should have ended them;
//! - a try is begun only by a member that has the partition (or whose loss of it, not yet known to it, is proven), and
//!   not below the offset where its tenure began;
//! - a record is completed again only after a tenure that ended in a way that explains it, and not more records than
//!   may be finished past the commit: `--max-ahead`, those in hand, and the finished prefix that was not committed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::events::{Event, Place, What};
use crate::evidence::{Career, Evidence, Gone, Tenure};

/// keylane's messages have ms, and come a moment after what they tell.
const TOLERANCE: Duration = Duration::from_millis(25);
/// From the start of a process to its first line, on a machine that is very busy.
const SPAWN_MAX: Duration = Duration::from_secs(3);
/// For so long after the last broker has come back, or after another node than before has answered, a coordinator may
/// be new.
const FAILOVER_MAX: Duration = Duration::from_secs(5);
/// From SIGCONT until what a member lost meanwhile has been sent KILL.
const END_MAX: Duration = Duration::from_secs(3);
const NAMED_MAX: usize = 10;

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    pub records: usize,
    pub tries: usize,
    /// By the word of the ledger; `silent` ended without any.
    pub failed: BTreeMap<&'static str, usize>,
    /// Completions after a record's first, by what explains them.
    pub repeats: BTreeMap<&'static str, usize>,
    /// Overlaps of two processes, by what excuses them.
    pub overlaps: BTreeMap<&'static str, usize>,
    /// By partition: the most records seen that were all complete and not committed. Commits stand still while the
    /// coordinator is away, and that comes on top of `--max-ahead`.
    pub behind: BTreeMap<i32, i64>,
    /// How often members gave partitions up, by how.
    pub endings: BTreeMap<&'static str, usize>,
    /// Tries begun by a member that had lost the partition and could not know it.
    pub stale: usize,
    /// The most repeats after one tenure.
    pub repeats_max: usize,
    /// Times that the committed offset of a partition was looked at.
    pub commits_seen: usize,
    /// Those that a new coordinator answered with an older one. Kafka's answers at its high watermark, which lags
    /// behind on a new leader; only the answer to a member (`require_stable`) waits for it.
    pub commits_stale: usize,
    /// The longest time in which a partition's records stood still: how long, when it ended, which partition.
    pub longest_halt: Option<(Duration, Duration, i32)>,
    pub violations: Vec<String>,
    counts: BTreeMap<&'static str, usize>,
}

impl Verdict {
    fn violate(&mut self, kind: &'static str, what: impl FnOnce() -> String) {
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        if *count <= NAMED_MAX {
            self.violations.push(format!("{kind}: {}", what()));
        } else if *count == NAMED_MAX + 1 {
            self.violations.push(format!("{kind}: and more"));
        }
    }
}

/// A try of a record.
#[derive(Clone, Debug)]
struct Try {
    member: u32,
    pid: u32,
    place: Place,
    /// Of its lines, by their number in the ledger.
    begin: usize,
    last: usize,
    /// When it began.
    time: Duration,
    /// How it ended, and after how long it was last seen.
    end: Option<What>,
    ended: Duration,
}

impl Try {
    fn is_complete(&self) -> bool {
        matches!(self.end, Some(What::Done | What::Reject))
    }
}

/// Judges.
pub fn judge(evidence: &Evidence) -> Verdict {
    let mut verdict = Verdict::default();
    let tries = tries(evidence, &mut verdict);
    let case = Case::new(evidence, &tries);
    verdict.tries = tries.len();
    verdict.records = evidence.ends.values().map(|end| *end as usize).sum();
    for tried in tries.iter().filter(|tried| !tried.is_complete()) {
        let word = if tried.end.is_some() { "failed" } else { "silent" };
        *verdict.failed.entry(word).or_default() += 1;
    }
    case.check_commits(&mut verdict);
    case.check_complete(&mut verdict);
    case.check_first_completions(&mut verdict);
    case.check_overlaps(&mut verdict);
    case.check_steps(&mut verdict);
    case.check_tenures(&mut verdict);
    case.check_repeats(&mut verdict);
    case.find_halt(&mut verdict);
    case.count_endings(&mut verdict);
    verdict
}

/// Makes tries of lines.
fn tries(evidence: &Evidence, verdict: &mut Verdict) -> Vec<Try> {
    let mut tries: Vec<Try> = Vec::new();
    let mut open: HashMap<(u32, Place), usize> = HashMap::new();
    for (at, event) in evidence.events.iter().enumerate() {
        let Event { what, member, pid, place, time, .. } = event;
        match what {
            What::Killed | What::Committed | What::Away | What::Back => {}
            What::Begin => {
                open.insert((*pid, *place), tries.len());
                let (begin, last) = (at, at);
                let (member, pid, place, time) = (*member, *pid, *place, *time);
                tries.push(Try { member, pid, place, begin, last, time, end: None, ended: time });
            }
            What::Still | What::Done | What::Reject | What::Fail => {
                let Some(index) = open.get(&(*pid, *place)).copied() else {
                    verdict.violate("ledger", || format!("{event:?} has no beginning"));
                    continue;
                };
                tries[index].last = at;
                tries[index].ended = *time;
                if *what != What::Still {
                    tries[index].end = Some(*what);
                    open.remove(&(*pid, *place));
                }
            }
        }
    }
    tries
}

/// The evidence, ordered.
struct Case<'a> {
    evidence: &'a Evidence,
    tries: &'a [Try],
    careers: BTreeMap<u32, &'a Career>,
    /// By member: the number of the line that says that it is dead.
    killed: BTreeMap<u32, usize>,
    /// By record: its completions, in order.
    completions: BTreeMap<Place, Vec<&'a Try>>,
    /// By partition and key: the tries, in order of their beginnings.
    lanes: BTreeMap<(i32, &'a str), Vec<&'a Try>>,
}

impl<'a> Case<'a> {
    fn new(evidence: &'a Evidence, tries: &'a [Try]) -> Self {
        let mut completions: BTreeMap<Place, Vec<&Try>> = BTreeMap::new();
        let mut lanes: BTreeMap<(i32, &str), Vec<&Try>> = BTreeMap::new();
        for tried in tries {
            let key = evidence.events[tried.begin].key.as_str();
            lanes.entry((tried.place.0, key)).or_default().push(tried);
            if tried.is_complete() {
                completions.entry(tried.place).or_default().push(tried);
            }
        }
        completions.values_mut().for_each(|of_record| of_record.sort_by_key(|tried| tried.last));
        let killed = evidence.events.iter().enumerate().filter(|(_, event)| event.what == What::Killed);
        let killed = killed.map(|(at, event)| (event.member, at)).collect();
        let careers = evidence.careers.iter().map(|career| (career.id, career)).collect();
        Case { evidence, tries, careers, killed, completions, lanes }
    }

    /// Whether a member was dead when this line was written.
    fn is_killed(&self, member: u32, line: usize) -> bool {
        self.killed.get(&member).is_some_and(|at| *at < line)
    }

    /// The tenure in which a try was begun. A child may write its first line a while after keylane has begun it, so the
    /// latest tenure that began before will do if none fits.
    fn tenure(&self, tried: &Try) -> Option<&'a Tenure> {
        let of_partition = |tenure: &&&Tenure| tenure.partition == tried.place.0;
        let began = |tenure: &&&Tenure| tenure.began <= tried.time + TOLERANCE;
        let tenures = &self.careers.get(&tried.member)?.tenures;
        tenures
            .iter()
            .filter(|tenure| of_partition(&tenure) && began(&tenure))
            .max_by_key(|tenure| tenure.began)
    }

    fn check_commits(&self, verdict: &mut Verdict) {
        let mut complete: BTreeMap<i32, BTreeSet<i64>> = BTreeMap::new();
        let mut prefixes: BTreeMap<i32, i64> = BTreeMap::new();
        // The highest, and the newest.
        let mut seen: BTreeMap<i32, i64> = BTreeMap::new();
        let mut last: BTreeMap<i32, i64> = BTreeMap::new();
        // Brokers that are away, and since when none is and the coordinator has been the same. Kafka moves it by
        // itself, too: back to a broker that has been there again for a while, and away from one that the machine
        // gave no time to say that it is alive.
        let (mut away, mut settled, mut coordinator) = (0, Duration::ZERO, 0);
        for event in &self.evidence.events {
            let (partition, offset) = event.place;
            let prefix = prefixes.entry(partition).or_default();
            let beyond = complete.entry(partition).or_default();
            match event.what {
                What::Done | What::Reject => {
                    if offset >= *prefix {
                        beyond.insert(offset);
                    }
                    while beyond.remove(prefix) {
                        *prefix += 1;
                    }
                }
                What::Committed => {
                    verdict.commits_seen += 1;
                    // Zero is one that is not known, so the first answer of all is no move.
                    if event.member != coordinator && event.member != 0 {
                        if coordinator != 0 {
                            settled = event.time;
                        }
                        coordinator = event.member;
                    }
                    last.insert(partition, offset);
                    let most = seen.entry(partition).or_default();
                    let before = *most;
                    *most = offset.max(before);
                    let behind = verdict.behind.entry(partition).or_default();
                    *behind = (*prefix - offset).max(*behind);
                    if offset > *prefix {
                        let prefix = *prefix;
                        verdict.violate("committed early", || {
                            format!(
                                "partition {partition}: committed {offset}, but {prefix} was not complete"
                            )
                        });
                    }
                    if offset < before && (away > 0 || event.time < settled + FAILOVER_MAX) {
                        verdict.commits_stale += 1;
                    } else if offset < before {
                        verdict.violate("commit went back", || {
                            let (who, time) = (format!("node {coordinator}"), event.time.as_secs_f64());
                            format!("partition {partition}: from {before} to {offset} by {who} at {time:.6}")
                        });
                    }
                }
                What::Away => away += 1,
                What::Back => {
                    away -= 1;
                    settled = event.time;
                }
                What::Begin | What::Still | What::Fail | What::Killed => {}
            }
        }
        self.check_starts(verdict);
        for (partition, end) in &self.evidence.ends {
            let committed = last.get(partition).copied().unwrap_or(0);
            if committed != *end {
                verdict.violate("not committed", || format!("partition {partition}: {committed} of {end}"));
            }
        }
    }

    /// A tenure that was given up in order was the only one of its generation, so what was seen before it began had
    /// been committed before.
    fn check_starts(&self, verdict: &mut Verdict) {
        let commits: Vec<&Event> =
            self.evidence.events.iter().filter(|event| event.what == What::Committed).collect();
        for career in &self.evidence.careers {
            let in_order =
                |tenure: &&Tenure| !matches!(tenure.gone, None | Some((_, Gone::Lost | Gone::Killed)));
            for tenure in career.tenures.iter().filter(in_order) {
                let before = |event: &&&Event| {
                    event.place.0 == tenure.partition && event.time + TOLERANCE < tenure.began
                };
                let most = commits.iter().filter(before).map(|event| event.place.1).max().unwrap_or(0);
                if tenure.from < most {
                    verdict.violate("began below the commit", || {
                        let Tenure { partition, from, generation, .. } = tenure;
                        let who = format!("member {}, generation {generation}", career.id);
                        format!("partition {partition}: {who}, at {from}, {most} was seen")
                    });
                }
            }
        }
    }

    fn check_complete(&self, verdict: &mut Verdict) {
        for (partition, end) in &self.evidence.ends {
            for offset in 0..*end {
                let place = (*partition, offset);
                let Some(of_record) = self.completions.get(&place) else {
                    verdict.violate("lost", || named(place));
                    continue;
                };
                let rejected = of_record.iter().any(|tried| tried.end == Some(What::Reject));
                if rejected && !self.evidence.letters.contains(&place) {
                    verdict
                        .violate("lost", || format!("{} was rejected and is no dead letter", named(place)));
                }
                if !rejected && self.evidence.letters.contains(&place) {
                    verdict.violate("dead letter", || format!("{} was never rejected", named(place)));
                }
            }
        }
        let ends = &self.evidence.ends;
        for place in
            self.completions.keys().filter(|place| ends.get(&place.0).is_none_or(|end| place.1 >= *end))
        {
            verdict.violate("ledger", || format!("{} is in no log", named(*place)));
        }
    }

    fn check_first_completions(&self, verdict: &mut Verdict) {
        for ((_, key), tries) in &self.lanes {
            let places: BTreeSet<Place> = tries.iter().map(|tried| tried.place).collect();
            let mut before: Option<&Try> = None;
            for place in places {
                let Some(first) = self.completions.get(&place).and_then(|of_record| of_record.first()) else {
                    continue;
                };
                if let Some(before) = before.filter(|before| before.last > first.last) {
                    verdict.violate("out of order", || {
                        format!("{key}: {} before {}", self.show(first), self.show(before))
                    });
                }
                before = Some(first);
            }
        }
    }

    fn check_overlaps(&self, verdict: &mut Verdict) {
        for ((_, key), tries) in &self.lanes {
            let mut open: Vec<&Try> = Vec::new();
            for tried in tries {
                open.retain(|other| other.last > tried.begin);
                for other in &open {
                    match self.excuse(other, tried) {
                        Some(excuse) => *verdict.overlaps.entry(excuse).or_default() += 1,
                        None => verdict.violate("overlap", || {
                            format!("{key}: {} while {}", self.show(tried), self.show(other))
                        }),
                    }
                }
                open.push(tried);
            }
        }
    }

    /// Why `other`, still at work, did not hinder `tried` from being begun.
    fn excuse(&self, other: &Try, tried: &Try) -> Option<&'static str> {
        if other.member == tried.member {
            return None;
        }
        // The second may be the straggler: begun by a member that is dead, or does not know yet.
        for (late, line) in [(other, tried.begin), (tried, tried.begin)] {
            if self.is_killed(late.member, line) {
                return Some("orphan");
            }
            match self.tenure(late)?.gone {
                Some((_, Gone::Lost)) => return Some("lost"),
                Some((at, Gone::Killed)) if self.was_stopped(late.member, at) => return Some("lost"),
                _ => {}
            }
        }
        // It stood still when its time with the partition was over, and could not end what ran.
        let (mine, next) = (self.tenure(other)?, self.tenure(tried)?);
        (next.generation > mine.generation && self.stood_still(other.member, tried.time))
            .then_some("stood still")
    }

    /// Whether a member was stopped at this time, or so shortly before that it may still be ending what ran.
    fn stood_still(&self, member: u32, at: Duration) -> bool {
        let stops = self.careers.get(&member).map_or(&[][..], |career| &career.stops);
        stops.iter().any(|(from, until)| *from <= at && until.is_none_or(|until| at < until + END_MAX))
    }

    fn was_stopped(&self, member: u32, before: Duration) -> bool {
        self.careers.get(&member).is_some_and(|career| career.stops.iter().any(|(from, _)| *from < before))
    }

    /// Whether the member's tenure of the partition ended between these times.
    fn has_boundary(&self, member: u32, partition: i32, from: Duration, until: Duration) -> bool {
        let Some(career) = self.careers.get(&member) else { return false };
        let ends = career.tenures.iter().filter(|tenure| tenure.partition == partition);
        let ends = ends.filter_map(|tenure| tenure.gone).map(|(at, _)| at);
        ends.into_iter().any(|at| from <= at + TOLERANCE && at <= until + TOLERANCE)
    }

    fn check_steps(&self, verdict: &mut Verdict) {
        for ((partition, key), tries) in &self.lanes {
            let mut latest: BTreeMap<u32, &Try> = BTreeMap::new();
            for tried in tries {
                let Some(before) = latest.insert(tried.member, tried) else { continue };
                let on = tried.place.1 > before.place.1 && before.is_complete();
                let again = tried.place == before.place && !before.is_complete();
                if on || again || self.has_boundary(tried.member, *partition, before.time, tried.time) {
                    continue;
                }
                let unheard = &self.careers[&tried.member].unheard;
                if tried.place == before.place && unheard.contains_key(&tried.place) {
                    continue;
                }
                verdict
                    .violate("step", || format!("{key}: {} after {}", self.show(tried), self.show(before)));
            }
        }
    }

    fn check_tenures(&self, verdict: &mut Verdict) {
        let mut stale: BTreeMap<u32, usize> = BTreeMap::new();
        for tried in self.tries {
            let Some(tenure) = self.tenure(tried) else {
                verdict.violate("no tenure", || self.show(tried));
                continue;
            };
            if tried.place.1 < tenure.from {
                verdict
                    .violate("below its start", || format!("{}, began at {}", self.show(tried), tenure.from));
            }
            if let Some((at, how)) = tenure.gone {
                let grace = if how == Gone::Revoked { TOLERANCE } else { SPAWN_MAX };
                if tried.time > at + grace && how != Gone::Killed {
                    verdict.violate("begun after the end", || {
                        format!("{}, {how:?} since {at:?}", self.show(tried))
                    });
                }
            }
            if self.is_stale(tried, tenure) {
                verdict.stale += 1;
                *stale.entry(tried.member).or_default() += 1;
            }
        }
        for (member, count) in stale {
            let career = self.careers[&member];
            let lost = career
                .tenures
                .iter()
                .filter(|tenure| matches!(tenure.gone, Some((_, Gone::Lost | Gone::Killed))));
            let times: BTreeSet<Duration> = lost.filter_map(|tenure| Some(tenure.gone?.0)).collect();
            let max = career.in_hand_max * times.len();
            if count > max {
                verdict.violate("begun without the partition", || {
                    format!("{count} by member {member}, {max} at most")
                });
            }
        }
    }

    /// Whether another member had the partition already when a try of this tenure was begun.
    fn is_stale(&self, tried: &Try, tenure: &Tenure) -> bool {
        let others = self.evidence.careers.iter().filter(|career| career.id != tried.member);
        others.flat_map(|career| &career.tenures).any(|other| {
            other.partition == tenure.partition
                && other.generation > tenure.generation
                && other.began > tenure.began
                && other.began + TOLERANCE < tried.time
        })
    }

    fn check_repeats(&self, verdict: &mut Verdict) {
        // By the tenure of the completion before.
        let mut counts: BTreeMap<(u32, i32, Duration), usize> = BTreeMap::new();
        for of_record in self.completions.values() {
            for pair in of_record.windows(2) {
                let (before, again) = (pair[0], pair[1]);
                let Some(why) = self.explain(before, again) else {
                    verdict.violate("repeat", || format!("{} after {}", self.show(again), self.show(before)));
                    continue;
                };
                *verdict.repeats.entry(why).or_default() += 1;
                if let Some(tenure) = self.tenure(before) {
                    *counts.entry((before.member, tenure.partition, tenure.began)).or_default() += 1;
                }
            }
        }
        for ((member, partition, _), count) in counts {
            verdict.repeats_max = verdict.repeats_max.max(count);
            let behind = verdict.behind.get(&partition).copied().unwrap_or(0).unsigned_abs() as usize;
            let max = self.evidence.ahead_max + self.careers[&member].in_hand_max + behind;
            if count > max {
                verdict.violate("repeats", || {
                    format!("{count} of partition {partition} after member {member} had it, {max} at most")
                });
            }
        }
    }

    /// Why a record was completed again.
    fn explain(&self, first: &Try, again: &Try) -> Option<&'static str> {
        let tenure = self.tenure(first)?;
        if first.member == again.member && self.tenure(again)? == tenure {
            let unheard = &self.careers[&first.member].unheard;
            return unheard.contains_key(&first.place).then_some("answer not heard");
        }
        if again.begin < first.last {
            return self.excuse(again, first).or_else(|| self.excuse(first, again));
        }
        match tenure.gone?.1 {
            how @ (Gone::Killed | Gone::Lost | Gone::CutShort | Gone::Unfinished) => Some(how.name()),
            Gone::Revoked | Gone::Left => {
                // The straggler of a member that was dead or gone when it completed.
                let again = self.tenure(again)?;
                matches!(again.gone, Some((_, Gone::Lost | Gone::Killed)))
                    .then_some("begun without knowing")
                    .filter(|_| again.began < tenure.began)
            }
        }
    }

    fn count_endings(&self, verdict: &mut Verdict) {
        for career in &self.evidence.careers {
            let endings: BTreeSet<(Duration, Gone)> =
                career.tenures.iter().filter_map(|tenure| tenure.gone).collect();
            for (_, how) in endings {
                *verdict.endings.entry(how.name()).or_default() += 1;
            }
        }
    }

    fn find_halt(&self, verdict: &mut Verdict) {
        let mut firsts: BTreeMap<i32, Vec<Duration>> = BTreeMap::new();
        for ((partition, _), of_record) in &self.completions {
            firsts.entry(*partition).or_default().push(of_record[0].ended);
        }
        for (partition, mut times) in firsts {
            times.sort_unstable();
            let halts = times.windows(2).map(|pair| (pair[1] - pair[0], pair[1], partition));
            verdict.longest_halt = verdict.longest_halt.into_iter().chain(halts).max();
        }
    }

    fn show(&self, tried: &Try) -> String {
        let Try { member, pid, place, time, end, ended, .. } = tried;
        let lasted = (*ended - (*time).min(*ended)).as_millis();
        let ended = end.map_or("silent".to_owned(), |end| format!("{end:?}"));
        format!(
            "{} by member {member} pid {pid} at {:.6} {ended} after {lasted} ms",
            named(*place),
            time.as_secs_f64()
        )
    }
}

fn named((partition, offset): Place) -> String {
    format!("{partition}@{offset}")
}
