//! Public bug reports of other tools about lag, as tests of `keylane lag`. The number in a name is that of the case
//! in the project's list; each test opens with the thread.

mod fake;

use std::time::Duration;

use fake::group::ConsumerGroup;
use fake::{Exit, Fake, Keylane, Reaction};
use kafka_protocol::messages::{ApiKey, RequestKind};

fn lag(fake: &Fake) -> Exit {
    Keylane::run(fake, &["lag", "-g", "g", "--once"]).wait_exit(Duration::from_secs(15))
}

fn assert_line(exit: &Exit, line: &str) {
    assert!(exit.stdout_lines().iter().any(|l| l.starts_with(line)), "no {line:?}: {exit}");
}

/// danielqsj/kafka_exporter#287: committed is read before end, so lag is never below 0.
#[test]
fn case_14_committed_before_end() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 100, 5).committed("g", "t", 0, 100).start();
    fake.on(ApiKey::OffsetFetch, |_, state| {
        let end = state.log("t", 0).end;
        state.set_committed("g", "t", 0, end);
        Reaction::Default
    });
    fake.on(ApiKey::ListOffsets, |_, state| {
        state.append_records("t", 0, vec![("k", "v"); 10]);
        Reaction::Default
    });
    let exit = lag(&fake);
    assert_eq!(exit.code, Some(0), "{exit}");
    let line =
        exit.stdout_lines().into_iter().find(|l| l.starts_with("t/0=")).unwrap_or_else(|| panic!("{exit}"));
    let lag: i64 = line["t/0=".len()..].split(' ').next().unwrap().parse().unwrap();
    assert!(lag >= 0, "{line}");
    let (fetched, ends) = fake.log(|log| {
        let fetched = log.of(ApiKey::OffsetFetch)[0].index;
        let ends = log.of(ApiKey::ListOffsets).into_iter().filter(|r| match &r.kind {
            RequestKind::ListOffsets(b) => {
                b.topics.iter().any(|t| t.partitions.iter().any(|p| p.timestamp == -1))
            }
            _ => false,
        });
        (fetched, ends.map(|r| r.index).collect::<Vec<_>>())
    });
    assert!(ends.iter().all(|end| fetched < *end), "OffsetFetch {fetched}, ends {ends:?}");
}

/// The same with a commit beyond the end.
#[test]
fn case_14_a_commit_beyond_the_end() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 100, 5).committed("g", "t", 0, 120).start();
    assert_line(&lag(&fake), "t/0=0 (commit=120 end=100)");
}

/// danielqsj/kafka_exporter#28: no commit is not offset -1. The log from its start is what is left to do.
#[test]
fn case_15_no_commit() {
    let fake = Fake::builder()
        .topic("t", 3)
        .set(|s| s.log("t", 0).end = 3083)
        .set(|s| s.log("t", 2).end = 4388)
        .committed("g", "t", 2, 4388)
        .start();
    let exit =
        Keylane::run(&fake, &["lag", "-g", "g", "-t", "t", "--once"]).wait_exit(Duration::from_secs(15));
    assert_line(&exit, "t/0=3083 (commit=- end=3083)");
    assert_line(&exit, "t/1=0 (commit=- end=0)");
    assert_line(&exit, "t/2=0 (commit=4388 end=4388)");
    assert!(exit.stdout.contains("total=3083 uncommitted=2 unknown=0"), "{exit}");
}

/// redpanda-data/kminion#352: a group of the new protocol looks dead to DescribeGroups and is not.
#[test]
fn case_16_a_group_of_the_new_protocol() {
    let group = || {
        Fake::builder().topic("t", 1).numbered("t", 0, 15, 5).committed("g", "t", 0, 10).set(|s| {
            s.group("g").consumer = Some(ConsumerGroup { state: "Stable".to_owned(), members: 2 });
        })
    };
    let fake = group().start();
    let exit = lag(&fake);
    assert_eq!(exit.code, Some(0), "{exit}");
    assert_line(&exit, "t/0=5 (commit=10 end=15)");
    assert!(exit.stdout.contains("group=\"g\" state=Stable members=2 total=5"), "{exit}");

    let fake = group().without(ApiKey::ConsumerGroupDescribe).start();
    let exit = lag(&fake);
    assert_line(&exit, "t/0=5 (commit=10 end=15)");
    assert!(!exit.stdout.contains("Dead"), "{exit}");
}
