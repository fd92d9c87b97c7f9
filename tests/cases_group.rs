//! Public bug reports of other clients about group membership and committed offsets, as tests of the binary. The
//! number in a name is that of the case in the project's list; each test opens with the thread.

mod fake;

use std::thread::sleep;
use std::time::Duration;

use fake::{Fake, Keylane, Phantom, Reaction, codes};
use kafka_protocol::messages::ApiKey;

const LIMIT: Duration = Duration::from_secs(20);

/// A pool on topic `t` in group `g` whose handler sleeps.
fn pool(fake: &Fake, work_delay: &str, more: &[&str]) -> Keylane {
    let mut args = vec!["pool", "-t", "t", "-g", "g", "--work-delay", work_delay];
    args.extend(more);
    Keylane::run(fake, &args)
}

fn wait_generation(fake: &Fake, generation: i32) {
    fake.wait_until("a stable group", LIMIT, |log| {
        log.state
            .groups
            .get("g")
            .is_some_and(|g| g.generation >= generation && g.phase == fake::group::Phase::Stable)
    });
}

/// Waits until records of so many partitions were handed out: a position past the first was asked for.
fn wait_reading(fake: &Fake, partitions: &[i32]) {
    fake.wait_until("fetches", LIMIT, |log| partitions.iter().all(|p| log.positions("t", *p).len() > 1));
}

/// confluentinc/parallel-consumer#826: a commit between delivery and registration must not pass an unfinished record.
#[test]
fn case_03_a_commit_while_all_workers_are_busy() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 50, 1).committed("g", "t", 0, 50).start();
    let more = ["-w", "1", "--commit-interval", "10ms", "-X", "heartbeat.interval.ms=100"];
    let _child = pool(&fake, "3s", &more);
    wait_generation(&fake, 1);
    for generation in 2..6 {
        fake.append_records("t", 0, vec![("k", "v"); 3]);
        fake.force_rebalance("g");
        wait_generation(&fake, generation);
    }
    sleep(Duration::from_millis(300));
    let late =
        fake.commits("g").into_iter().filter(|c| c.offset > 50 && c.time < Duration::from_millis(2500));
    assert_eq!(late.count(), 0, "a commit past an unfinished record");
}

/// redpanda-data/connect#4477: a completion after the revocation must not be committed.
#[test]
fn case_04_a_late_completion() {
    let fake = Fake::builder()
        .topic("t", 2)
        .numbered("t", 0, 12, 1)
        .numbered("t", 1, 12, 1)
        .committed("g", "t", 0, 10)
        .committed("g", "t", 1, 10)
        .start();
    let _child = pool(&fake, "4s", &["--revoke-timeout", "1s", "--commit-interval", "100ms"]);
    wait_reading(&fake, &[0, 1]);
    fake.phantom_join("g", "ghost", Phantom::new(&["t"]));
    let lost = fake.wait_for("an assignment of the ghost", LIMIT, |log| {
        let owned = log.state.groups["g"].members["ghost"].phantom.as_ref()?.owned();
        owned.values().flatten().next().copied()
    });
    let from = fake.requests().len();
    sleep(Duration::from_secs(5));
    let named: Vec<_> =
        fake.commits("g").into_iter().filter(|c| c.index >= from && c.partition == lost).collect();
    assert!(named.is_empty(), "commits of a partition given away: {named:?}");
    fake.remove_member("g", "ghost");
    let back = fake.requests().len();
    fake.wait_until("offset 10 to be read again", LIMIT, |log| {
        log.state.fetch_asks.iter().any(|a| a.index >= back && a.partition == lost && a.offset == 10)
    });
}

/// PostHog/posthog#80897, eager: what ends within the drain is committed, under the old generation, before JoinGroup.
#[test]
fn case_05_eager_drain() {
    let fake =
        Fake::builder().topic("t", 2).records("t", 0, [("a", "0")]).records("t", 1, [("b", "0")]).start();
    let more = ["--assignor", "range", "--revoke-timeout", "2s", "--commit-interval", "30s", "-w", "2"];
    let _child = pool(&fake, "700ms", &more);
    wait_reading(&fake, &[0, 1]);
    sleep(Duration::from_millis(300));
    fake.force_rebalance("g");
    wait_generation(&fake, 2);
    let rejoin = fake.log(|log| log.joins().last().map(|(request, _)| request.index)).unwrap();
    let mut before: Vec<_> = fake
        .commits("g")
        .into_iter()
        .filter(|c| c.index < rejoin)
        .map(|c| (c.partition, c.offset, c.generation))
        .collect();
    before.sort_unstable();
    assert_eq!(before, [(0, 1, 1), (1, 1, 1)]);
}

/// PostHog/posthog#80897, cooperative: JoinGroup at once, the commit of what leaves under the new generation, then the
/// second JoinGroup.
#[test]
fn case_05_cooperative_drain() {
    let fake =
        Fake::builder().topic("t", 2).records("t", 0, [("a", "0")]).records("t", 1, [("b", "0")]).start();
    let more = ["--revoke-timeout", "5s", "--commit-interval", "30s", "--stats", "0", "-w", "2"];
    let _child = pool(&fake, "2s", &more);
    wait_reading(&fake, &[0, 1]);
    let (joins, at) = (fake.log(|log| log.count(ApiKey::JoinGroup)), fake.now());
    fake.phantom_join("g", "ghost", Phantom::new(&["t"]));
    wait_generation(&fake, 3);
    let (first, second) = fake.log(|log| {
        let all = log.joins();
        (all[joins].0.clone(), all[joins + 1].0.clone())
    });
    assert!(first.time - at < Duration::from_millis(1500), "the join waited for the drain");
    let ghost = fake.log(|log| log.state.groups["g"].members["ghost"].phantom.clone()).unwrap();
    let lost = *ghost.owned()["t"].first().expect("one partition left");
    let commits = fake.commits("g");
    let commit = commits.iter().find(|c| c.partition == lost).expect("a commit of what left");
    assert!(first.index < commit.index && commit.index < second.index, "{commits:?}");
    assert_eq!((commit.offset, commit.generation), (1, 2));
}

/// twmb/franz-go#122: the drain ends before the rebalance timeout, heartbeats go on meanwhile.
#[test]
fn case_06_a_drain_longer_than_the_rebalance() {
    let fake = Fake::builder().topic("t", 1).records("t", 0, [("a", "0")]).start();
    let more = ["--assignor", "range", "--revoke-timeout", "2s", "-X", "max.poll.interval.ms=3000"];
    let more = [&more[..], &["-X", "heartbeat.interval.ms=300"]].concat();
    let _child = pool(&fake, "10s", &more);
    wait_reading(&fake, &[0]);
    let (joins, at) = (fake.log(|log| log.count(ApiKey::JoinGroup)), fake.now());
    fake.force_rebalance("g");
    let rejoin = fake.wait_for("another JoinGroup", LIMIT, |log| log.joins().get(joins).map(|j| j.0.clone()));
    assert!(rejoin.time - at < Duration::from_secs(3), "{:?}", rejoin.time - at);
    let beats =
        fake.log(|log| log.heartbeats().iter().filter(|(r, _)| r.time > at && r.time < rejoin.time).count());
    assert!(beats >= 3, "{beats} heartbeats during the drain");
    sleep(Duration::from_secs(9));
    let old: Vec<_> =
        fake.commits("g").into_iter().filter(|c| c.generation < 2 && c.index > rejoin.index).collect();
    assert!(old.is_empty(), "{old:?}");
}

/// twmb/franz-go#122, the other half: UNKNOWN_MEMBER_ID means lost; join with an empty id and commit nothing.
#[test]
fn case_06_an_unknown_member() {
    let fake = Fake::builder().topic("t", 1).records("t", 0, [("a", "0")]).start();
    let _child = pool(&fake, "5s", &["-X", "heartbeat.interval.ms=300"]);
    wait_reading(&fake, &[0]);
    let joins = fake.log(|log| log.count(ApiKey::JoinGroup));
    fake.fail_times(ApiKey::Heartbeat, 1, codes::UNKNOWN_MEMBER_ID);
    let (request, body) = fake.wait_for("a JoinGroup", LIMIT, |log| log.joins().get(joins).cloned());
    assert_eq!(body.member_id.as_str(), "");
    assert!(fake.commits("g").iter().all(|c| c.index > request.index), "a commit of a lost member");
}

/// confluentinc/librdkafka#2933: a commit refused during a rebalance is not repeated, and fetching goes on.
#[test]
fn case_07_a_commit_in_a_rebalance() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 200, 20).start();
    fake.on(ApiKey::OffsetCommit, |request, state| {
        if request.nth != 1 {
            return Reaction::Default;
        }
        state.group("g").prepare(std::time::Instant::now());
        Reaction::Error(codes::REBALANCE_IN_PROGRESS)
    });
    let more = ["--commit-interval", "100ms", "-X", "heartbeat.interval.ms=200", "-e"];
    let mut child = pool(&fake, "40ms", &more);
    let exit = child.wait_exit(LIMIT);
    assert_eq!(exit.code, Some(0), "{exit}");
    assert_eq!(fake.committed("g", "t", 0), Some(200));
    let synced = fake.log(|log| log.syncs().last().map(|(r, _)| (r.index, r.time))).unwrap();
    let late = fake.commits("g").into_iter().filter(|c| c.index > synced.0 && c.generation < 2).count();
    assert_eq!(late, 0, "commits of the old generation after the sync");
    let next = fake.fetches().into_iter().find(|a| a.index > synced.0);
    assert!(next.is_none_or(|a| a.time - synced.1 < Duration::from_secs(1)), "fetching did not start again");
}

/// confluentinc/librdkafka#2933, with a partition that leaves: no commit of an old generation, none of what is
/// another's, and what is kept is read on at once.
#[test]
fn case_07_what_is_left_is_committed_by_the_new_generation() {
    for (assignor, handler) in [("cooperative-sticky", "lanes"), ("range", "lanes"), ("range", "hash")] {
        let fake =
            Fake::builder().topic("t", 2).numbered("t", 0, 60_000, 20).numbered("t", 1, 60_000, 20).start();
        fake.on(ApiKey::OffsetCommit, |request, state| {
            if request.nth != 3 {
                return Reaction::Default;
            }
            state.group("g").add_phantom("ghost", Phantom::new(&["t"]), std::time::Instant::now());
            Reaction::Error(codes::REBALANCE_IN_PROGRESS)
        });
        let more = ["-w", "4", "--assignor", assignor, "--dispatch", handler, "--commit-interval", "100ms"];
        // Small fetches, so that it asks all the time.
        let small =
            ["-X", "heartbeat.interval.ms=100", "-X", "max.partition.fetch.bytes=4096", "--buffer", "32"];
        let _child = pool(&fake, "1ms", &[&more[..], &small].concat());
        let lost = fake.wait_for("an assignment of the ghost", LIMIT, |log| {
            let owned = log.state.groups.get("g")?.members.get("ghost")?.phantom.as_ref()?.owned();
            owned.get("t")?.first().copied()
        });
        let kept = 1 - lost;
        sleep(Duration::from_millis(1500));
        let (generation, synced) = fake.log(|log| {
            let syncs = log.syncs();
            let (request, body) = syncs.last().expect("it syncs");
            (body.generation_id, (request.index, request.time))
        });
        let late: Vec<_> = fake.commits("g").into_iter().filter(|c| c.index > synced.0).collect();
        assert!(late.len() >= 3, "{assignor}: {late:?}");
        assert!(
            late.iter().all(|c| (c.generation, c.partition) == (generation, kept)),
            "{assignor}: {late:?}"
        );
        let next = fake.fetches().into_iter().find(|ask| ask.index > synced.0 && ask.partition == kept);
        let waited = next.expect("it reads on").time - synced.1;
        assert!(waited < Duration::from_secs(1), "{assignor}: {waited:?}");
    }
}

/// tulios/kafkajs#447: a handler slower than the session is no reason for a rebalance.
#[test]
fn case_08_a_slow_handler() {
    let fakes: Vec<Fake> =
        (0..2).map(|_| Fake::builder().topic("t", 1).numbered("t", 0, 8, 8).start()).collect();
    let tail = ["-t", "t", "-g", "g", "--work-delay", "20s"];
    let tail = [&tail[..], &["-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=1000"]].concat();
    let _pool = Keylane::run(&fakes[0], &[&["pool"][..], &tail[..]].concat());
    let _sequential = Keylane::run(&fakes[1], &[&["sequential"][..], &tail[..]].concat());
    for fake in &fakes {
        wait_generation(fake, 1);
    }
    sleep(Duration::from_secs(20));
    for fake in &fakes {
        let (beats, syncs) = fake.log(|log| (log.count(ApiKey::Heartbeat), log.count(ApiKey::SyncGroup)));
        assert!(beats >= 18 && syncs == 1, "{beats} heartbeats, {syncs} syncs");
    }
}

/// The same with children.
#[test]
fn case_08_slow_children() {
    let ways: [(&str, &[&str]); 3] = [
        ("pool", &["--", "sleep", "60"]),
        ("sequential", &["--", "sleep", "60"]),
        ("pool", &["--pipe", "--", "sleep", "60"]),
    ];
    let running: Vec<(Fake, Keylane)> = ways
        .iter()
        .map(|(role, handler)| {
            let fake = Fake::builder().topic("t", 1).numbered("t", 0, 8, 8).start();
            let mut args = vec![*role, "-t", "t", "-g", "g", "--drain-timeout", "0"];
            args.extend(["-X", "session.timeout.ms=2000", "-X", "heartbeat.interval.ms=300"]);
            args.extend(*handler);
            let child = Keylane::run(&fake, &args);
            (fake, child)
        })
        .collect();
    running.iter().for_each(|(fake, _)| wait_generation(fake, 1));
    sleep(Duration::from_secs(6));
    for (fake, mut child) in running {
        let (beats, syncs) = fake.log(|log| (log.count(ApiKey::Heartbeat), log.count(ApiKey::SyncGroup)));
        assert!(beats >= 14 && syncs == 1, "{beats} heartbeats, {syncs} syncs");
        // So that no child outlives the test.
        child.signal("TERM");
        assert_eq!(child.wait_exit(LIMIT).code, Some(75));
    }
}

/// confluentinc/parallel-consumer#832, the part without a handler that can be released: what stops dispatch stops
/// fetching, memory stays flat and heartbeats go on.
#[test]
fn case_09_stuck_workers_stop_fetching() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 400_000, 1000).start();
    let child = pool(&fake, "60s", &["-w", "4", "--buffer", "1024", "-X", "heartbeat.interval.ms=500"]);
    wait_reading(&fake, &[0]);
    sleep(Duration::from_secs(2));
    let (early, beats) =
        (child.rss_kib().expect("a live child"), fake.log(|log| log.count(ApiKey::Heartbeat)));
    sleep(Duration::from_secs(4));
    let late = child.rss_kib().expect("a live child");
    assert!(late < early + 8 * 1024 && late < 100 * 1024, "RSS went from {early} to {late} KiB");
    assert!(fake.log(|log| log.count(ApiKey::Heartbeat)) >= beats + 5, "heartbeats stopped");
    let furthest = fake.log(|log| log.positions("t", 0)).into_iter().max();
    assert!(furthest < Some(200_000), "read up to {furthest:?} with 4096 records allowed");
}

/// confluentinc/parallel-consumer#832: one stuck record stops fetching and keeps memory flat; released, all is done.
#[test]
fn case_09_a_stuck_record_is_released() {
    let full = std::env::var("KEYLANE_TEST_FULL").is_ok_and(|value| value != "0" && !value.is_empty());
    let (records, ahead) = if full { (1_000_000, "100000") } else { (60_000, "10000") };
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, records, 1000).start();
    let folder = tempfile::tempdir().unwrap();
    let flag = folder.path().join("go");
    // The first record is answered by another process, once it may be; the others at once.
    let answers = format!(
        r#"exec awk $(awk -W version 2>&1 </dev/null | grep -q ^mawk && echo -W interactive) -F '"' '
        /"offset":0,/ {{ system("(until [ -e {} ]; do sleep 0.1; done; echo " $4 " ok) &"); next }}
        {{ print $4 " ok"; fflush() }}'"#,
        flag.display()
    );
    let mut args = vec!["pool", "-t", "t", "-g", "g", "-e", "-w", "4", "--max-ahead", ahead];
    args.extend(["-X", "heartbeat.interval.ms=200", "-X", "session.timeout.ms=2000"]);
    args.extend(["-X", "max.partition.fetch.bytes=65536", "--pipe", "--", "sh", "-c", &answers]);
    let mut child = Keylane::run(&fake, &args);
    wait_reading(&fake, &[0]);
    // It stands: two seconds in which nothing was finished.
    let until = std::time::Instant::now() + 3 * LIMIT;
    while child.text(fake::child::Stream::Err).matches(" rate=0.0/s ").count() < 2 {
        assert!(std::time::Instant::now() < until, "no standstill");
        sleep(Duration::from_millis(50));
    }
    let (early, beats) = (child.rss_kib().unwrap(), fake.log(|log| log.count(ApiKey::Heartbeat)));
    let furthest = fake.log(|log| log.positions("t", 0)).into_iter().max();
    assert!(furthest < Some(records as i64 / 2), "read up to {furthest:?}");
    assert_eq!(fake.committed("g", "t", 0).unwrap_or(0), 0);
    sleep(Duration::from_secs(3));
    let late = child.rss_kib().unwrap();
    assert!(late < early + 8 * 1024 && late < 100 * 1024, "RSS went from {early} to {late} KiB");
    assert!(fake.log(|log| log.count(ApiKey::Heartbeat)) >= beats + 10, "heartbeats stopped");
    assert_eq!(fake.log(|log| log.positions("t", 0)).into_iter().max(), furthest, "and reads no further");
    std::fs::write(&flag, "").unwrap();
    let exit = child.wait_exit(6 * LIMIT);
    let done = (exit.code, exit.done("processed"), exit.done("retried"), exit.done("rebalances"));
    assert_eq!(done, (Some(0), Some(records.to_string().as_str()), Some("0"), Some("0")), "{exit}");
    assert_eq!(fake.committed("g", "t", 0), Some(records as i64));
}

/// confluentinc/parallel-consumer#318 and #183: null keys carry no order, the empty key does.
#[test]
fn case_11_null_and_empty_keys() {
    let nulls = Fake::builder().topic("t", 1).records("t", 0, vec![((), "v"); 8]).start();
    let exit = pool(&nulls, "200ms", &["-w", "4", "-e"]).wait_exit(LIMIT);
    assert_eq!(exit.code, Some(0), "{exit}");
    let seconds: f64 = exit.done("seconds").and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("{exit}"));
    assert!((0.35..1.0).contains(&seconds), "null keys took {seconds} s");
    assert_eq!(nulls.committed("g", "t", 0), Some(8));

    let empties = Fake::builder().topic("t", 1).records("t", 0, vec![("", "v"); 4]).start();
    let exit = pool(&empties, "200ms", &["-w", "4", "-e"]).wait_exit(LIMIT);
    let seconds: f64 = exit.done("seconds").and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("{exit}"));
    assert!(seconds >= 0.75, "empty keys took {seconds} s");
    assert_eq!(empties.committed("g", "t", 0), Some(4));
}

/// platformatic/kafka#267, confluentinc/librdkafka#3265: an error in OffsetFetch is not "no commit".
#[test]
fn case_13_an_unstable_commit() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 50, 5).committed("g", "t", 0, 42).start();
    fake.fail_times(ApiKey::OffsetFetch, 3, codes::UNSTABLE_OFFSET_COMMIT);
    let exit = pool(&fake, "0", &["-e"]).wait_exit(LIMIT);
    assert_eq!((exit.code, exit.done("processed")), (Some(0), Some("8")), "{exit}");
    assert_eq!(fake.log(|log| log.positions("t", 0))[0], 42);
    let times: Vec<Duration> = fake.log(|log| log.of(ApiKey::OffsetFetch).iter().map(|r| r.time).collect());
    assert!(
        times.windows(2).take(3).all(|w| w[1] - w[0] >= Duration::from_millis(20)),
        "no pause: {times:?}"
    );
}

/// The same with an error that nobody knows: stop, and read nothing.
#[test]
fn case_13_an_unknown_error() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 50, 5).committed("g", "t", 0, 42).start();
    fake.fail_times(ApiKey::OffsetFetch, usize::MAX, 999);
    let exit = pool(&fake, "0", &["-e", "--request-timeout", "2s"]).wait_exit(LIMIT);
    assert!(exit.code.is_some_and(|code| code != 0), "{exit}");
    assert!(exit.stderr.contains("999"), "{exit}");
    assert!(fake.fetches().is_empty());
}

/// The first signal: what was started is finished and committed, then the group is left.
#[test]
fn a_signal_drains() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 1000, 50).start();
    let mut child = pool(&fake, "50ms", &["-w", "4", "--commit-interval", "10s"]);
    wait_reading(&fake, &[0]);
    sleep(Duration::from_millis(300));
    child.signal("TERM");
    let exit = child.wait_exit(LIMIT);
    assert_eq!((exit.code, exit.done("stop")), (Some(0), Some("signal")), "{exit}");
    let processed: i64 =
        exit.done("processed").and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{exit}"));
    assert_eq!(fake.committed("g", "t", 0), Some(processed));
    assert_eq!(fake.log(|log| log.leaves().len()), 1);
}
