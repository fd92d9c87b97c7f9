//! What joblogs and a topic prove about a run. Pure.
//!
//! A record counts as handled once a try of it ended well, or once it is in the dead-letter topic. Its *completion* is
//! the end of the first such try, or of the last one before its first letter, whichever came first. Times of joblogs
//! are right to a millisecond, and so are the clocks of several machines at best: what lies within
//! [`TOLERANCE_US`] is no proof.

use std::collections::{BTreeMap, BTreeSet};

/// Two times nearer than this are the same.
pub(super) const TOLERANCE_US: i64 = 2_000;
/// So many violations of a kind are named; all are counted.
pub(super) const NAMED_MAX: usize = 20;

/// Partition and offset.
pub(super) type Place = (i32, i64);

/// A try, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Try {
    pub(super) place: Place,
    pub(super) began_us: i64,
    pub(super) ended_us: i64,
    pub(super) done: bool,
    /// Which joblog: the tries of one come from one process at a time.
    pub(super) file: u32,
}

/// All that is known. What is `None` was not asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    /// In the order of each joblog.
    pub(super) tries: Vec<Try>,
    /// The topic's records: the hash of each one's key, unless it is null.
    pub(super) records: Option<BTreeMap<Place, Option<u64>>>,
    /// Records that are in the dead-letter topic, and how many tries their letter tells of; the least of several.
    pub(super) letters: BTreeMap<Place, u32>,
    /// The group's committed offsets.
    pub(super) committed: Option<BTreeMap<i32, i64>>,
}

/// A kind of violation: how many there are, and the first few.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Violations {
    pub(super) count: u64,
    pub(super) named: Vec<String>,
}

impl Violations {
    fn add(&mut self, name: impl FnOnce() -> String) {
        self.count += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(name());
        }
    }
}

/// The verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// Records that were tried or are in the topic.
    pub(super) records: u64,
    /// Handled by a try.
    pub(super) handled: u64,
    /// Handled by their letter alone.
    pub(super) dead_lettered: u64,
    /// All tries, and those that failed.
    pub(super) tries: u64,
    pub(super) failed_tries: u64,
    /// Good ends beyond the first of each record.
    pub(super) repeats: u64,
    /// Records that were never handled.
    pub(super) missing: Violations,
    /// Never handled, and yet below the committed offset.
    pub(super) committed_early: Violations,
    /// Completed before an earlier record of their key.
    pub(super) out_of_order: Violations,
    /// Tried while another record of their key was, by one process.
    pub(super) overlaps: Violations,
}

impl Findings {
    /// Whether nothing is wrong.
    pub(super) fn is_clean(&self) -> bool {
        self.kinds().iter().all(|(_, violations)| violations.count == 0)
    }

    /// The kinds of violation, by name.
    pub(super) fn kinds(&self) -> [(&'static str, &Violations); 4] {
        [
            ("missing", &self.missing),
            ("committed-early", &self.committed_early),
            ("out-of-order", &self.out_of_order),
            ("overlaps", &self.overlaps),
        ]
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    good: u64,
    /// End of the first good try.
    first_good_us: Option<i64>,
}

/// Looks at everything.
pub(super) fn judge(evidence: &Evidence) -> Findings {
    let mut findings = Findings { tries: evidence.tries.len() as u64, ..Findings::default() };
    let mut fates: BTreeMap<Place, Fate> = BTreeMap::new();
    for tried in &evidence.tries {
        let fate = fates.entry(tried.place).or_default();
        if tried.done {
            fate.good += 1;
            let first = fate.first_good_us.unwrap_or(i64::MAX).min(tried.ended_us);
            fate.first_good_us = Some(first);
        } else {
            findings.failed_tries += 1;
        }
    }
    let known = evidence.records.iter().flat_map(BTreeMap::keys).copied();
    let places: BTreeSet<Place> = known.chain(fates.keys().copied()).collect();
    findings.records = places.len() as u64;
    for place in places {
        let fate = fates.get(&place).copied().unwrap_or_default();
        findings.repeats += fate.good.saturating_sub(1);
        if fate.good > 0 {
            findings.handled += 1;
        } else if evidence.letters.contains_key(&place) {
            findings.dead_lettered += 1;
        } else if evidence.records.is_some() {
            // Without the topic nothing says that it had to be: it may have been skipped on purpose.
            findings.missing.add(|| named(place));
            let committed = evidence.committed.as_ref().and_then(|committed| committed.get(&place.0));
            if let Some(committed) = committed.filter(|committed| place.1 < **committed) {
                findings.committed_early.add(|| format!("{} below {committed}", named(place)));
            }
        }
    }
    if let Some(records) = &evidence.records {
        check_order(records, &fates, evidence, &mut findings);
        check_overlaps(records, &evidence.tries, &mut findings);
    }
    findings
}

fn named((partition, offset): Place) -> String {
    format!("{partition}@{offset}")
}

/// The completions of a key are in the order of its offsets.
fn check_order(
    records: &BTreeMap<Place, Option<u64>>,
    fates: &BTreeMap<Place, Fate>,
    evidence: &Evidence,
    findings: &mut Findings,
) {
    let deaths = deaths(evidence);
    // By partition and key: the latest completion so far, in the order of offsets.
    let mut latest: BTreeMap<(i32, u64), (i64, i64)> = BTreeMap::new();
    for (place, key) in records {
        let (Some(key), Some(fate)) = (key, fates.get(place)) else { continue };
        let ends_us = fate.first_good_us.into_iter().chain(deaths.get(place).copied());
        let Some(completed_us) = ends_us.min() else { continue };
        let (before_us, before) = *latest.entry((place.0, *key)).or_insert((completed_us, place.1));
        if completed_us + TOLERANCE_US < before_us {
            let early_ms = (before_us - completed_us) / 1000;
            findings.out_of_order.add(|| {
                format!(
                    "{} completed {early_ms} ms before {} of its key",
                    named(*place),
                    named((place.0, before))
                )
            });
        }
        if completed_us > before_us {
            latest.insert((place.0, *key), (completed_us, place.1));
        }
    }
}

/// When dead-lettered records were done with: the end of the try that was the last one their letter tells of.
///
/// Another process may have met such a record again and written a second letter, long after later records of its key
/// were done; its tries say nothing. Nor do those of one that was killed before it could write a letter, unless no
/// joblog has as many tries as the letter tells of.
fn deaths(evidence: &Evidence) -> BTreeMap<Place, i64> {
    let mut ends_us: BTreeMap<(Place, u32), Vec<i64>> = BTreeMap::new();
    for tried in evidence.tries.iter().filter(|tried| evidence.letters.contains_key(&tried.place)) {
        ends_us.entry((tried.place, tried.file)).or_default().push(tried.ended_us);
    }
    let mut deaths: BTreeMap<Place, (bool, i64)> = BTreeMap::new();
    for ((place, _), ends_us) in ends_us {
        let attempts = evidence.letters[&place] as usize;
        let last_us = ends_us[attempts.clamp(1, ends_us.len()) - 1];
        let death = (ends_us.len() < attempts, last_us);
        let known = deaths.entry(place).or_insert(death);
        *known = death.min(*known);
    }
    deaths.into_iter().map(|(place, (_, death_us))| (place, death_us)).collect()
}

/// In one joblog no two records of a key are tried at once. Those of a batch have both times in common.
fn check_overlaps(records: &BTreeMap<Place, Option<u64>>, tries: &[Try], findings: &mut Findings) {
    let mut by_key: Vec<((u32, i32, u64), &Try)> = tries
        .iter()
        .filter_map(|tried| {
            let key = (*records.get(&tried.place)?)?;
            Some(((tried.file, tried.place.0, key), tried))
        })
        .collect();
    by_key.sort_by_key(|(key, tried)| (*key, tried.began_us, tried.ended_us));
    let mut running: Option<(&(u32, i32, u64), &Try)> = None;
    for (key, tried) in &by_key {
        let Some((_, before)) = running.filter(|(other, _)| *other == key) else {
            running = Some((key, tried));
            continue;
        };
        let batch = (before.began_us, before.ended_us) == (tried.began_us, tried.ended_us);
        if !batch && tried.began_us + TOLERANCE_US < before.ended_us {
            findings.overlaps.add(|| {
                format!("{} was tried while {} of its key was", named(tried.place), named(before.place))
            });
        }
        if tried.ended_us >= before.ended_us {
            running = Some((key, tried));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(offset: i64, began_ms: i64, ended_ms: i64, done: bool) -> Try {
        Try { place: (0, offset), began_us: began_ms * 1000, ended_us: ended_ms * 1000, done, file: 0 }
    }

    fn evidence(tries: &[Try], records: &[(i64, Option<u64>)]) -> Evidence {
        Evidence {
            tries: tries.to_vec(),
            records: Some(records.iter().map(|(offset, key)| ((0, *offset), *key)).collect()),
            ..Evidence::default()
        }
    }

    #[test]
    fn a_good_run_is_clean_and_its_repeats_are_counted() {
        let tries = [
            tried(0, 0, 10, true),
            tried(1, 10, 20, false),
            tried(2, 5, 15, true),
            tried(1, 40, 50, true),
            tried(1, 60, 70, true),
        ];
        let findings = judge(&evidence(&tries, &[(0, Some(7)), (1, Some(7)), (2, Some(8))]));
        assert!(findings.is_clean(), "{findings:?}");
        assert_eq!((findings.records, findings.handled, findings.repeats), (3, 3, 1));
        assert_eq!((findings.tries, findings.failed_tries), (5, 1));
    }

    #[test]
    fn what_was_not_handled_is_missing_and_perhaps_committed_early() {
        let mut evidence =
            evidence(&[tried(0, 0, 1, true), tried(1, 1, 2, false)], &[(0, None), (1, None), (5, None)]);
        evidence.committed = Some(BTreeMap::from([(0, 3)]));
        let findings = judge(&evidence);
        assert_eq!(findings.missing.named, ["0@1", "0@5"]);
        assert_eq!(findings.committed_early.named, ["0@1 below 3"]);
        evidence.letters.insert((0, 1), 1);
        let findings = judge(&evidence);
        assert_eq!(
            (findings.dead_lettered, findings.missing.count, findings.committed_early.count),
            (1, 1, 0)
        );
    }

    #[test]
    fn a_key_out_of_order_is_found() {
        let records = [(0, Some(7)), (1, Some(7)), (2, Some(7))];
        let wrong = [tried(1, 0, 10, true), tried(0, 20, 30, true), tried(2, 40, 50, true)];
        let findings = judge(&evidence(&wrong, &records));
        assert_eq!(findings.out_of_order.named, ["0@1 completed 20 ms before 0@0 of its key"]);
        // A repeat after a restart is none: the first completions count.
        let repeated =
            [tried(0, 0, 1, true), tried(1, 1, 2, true), tried(0, 5, 6, true), tried(2, 9, 9, true)];
        assert!(judge(&evidence(&repeated, &records)).is_clean());
        // Other keys, and no keys, are free.
        assert!(judge(&evidence(&wrong, &[(0, Some(7)), (1, Some(8)), (2, None)])).is_clean());
        // A letter completes its record when it died.
        let died = [tried(1, 0, 10, true), tried(0, 20, 30, false)];
        let mut evidence = evidence(&died, &records[..2]);
        evidence.letters.insert((0, 0), 1);
        assert_eq!(judge(&evidence).out_of_order.count, 1);
    }

    #[test]
    fn a_second_letter_or_a_late_success_is_no_disorder() {
        let records = [(0, Some(7)), (1, Some(7))];
        let of = |file: u32, tried: Try| Try { file, ..tried };
        // The second process begins below what the first had finished; the third was killed before its second try.
        let met_again = |done| {
            [
                tried(0, 0, 10, false),
                tried(0, 20, 30, false),
                tried(1, 40, 50, true),
                of(1, tried(0, 60, 70, false)),
                of(1, tried(0, 80, 90, done)),
                of(2, tried(0, 0, 5, false)),
            ]
        };
        for done in [false, true] {
            let mut evidence = evidence(&met_again(done), &records);
            evidence.letters.insert((0, 0), 2);
            assert!(judge(&evidence).is_clean(), "{done}");
            // But what went on before the try that the letter tells of did not wait for it.
            evidence.tries[2] = tried(1, 11, 19, true);
            assert_eq!(judge(&evidence).out_of_order.count, 1);
        }
    }

    #[test]
    fn two_tries_of_a_key_at_once_are_found() {
        let records = [(0, Some(7)), (1, Some(7)), (2, Some(7))];
        let wrong = [tried(0, 0, 100, true), tried(1, 10, 20, false), tried(1, 50, 120, true)];
        let findings = judge(&evidence(&wrong, &records[..2]));
        assert_eq!(
            findings.overlaps.named,
            ["0@1 was tried while 0@0 of its key was", "0@1 was tried while 0@0 of its key was"]
        );
        let batch = [tried(0, 0, 100, true), tried(1, 0, 100, true), tried(2, 99, 120, true)];
        assert!(judge(&evidence(&batch, &records)).is_clean());
        // Another process is not this one: a zombie may still run its child.
        let mut two = wrong;
        two[0].file = 1;
        assert_eq!(judge(&evidence(&two, &records[..2])).overlaps.count, 0);
    }
}
