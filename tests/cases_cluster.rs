//! What a cluster does to its clients: brokers go and come, leaders and coordinators move, logs lose their beginning,
//! topics are missing. Nothing may be handed out twice or lost within one assignment.

mod fake;

use std::time::Duration;

use fake::{Fake, Keylane, codes};
use kafka_protocol::messages::ApiKey;

const LIMIT: Duration = Duration::from_secs(20);

fn printing(fake: &Fake) -> Keylane {
    let args = ["pool", "-t", "t", "-g", "g", "--print", "%p %o\n", "--commit-interval", "50ms"];
    Keylane::run(fake, &args)
}

fn wait_committed(fake: &Fake, partition: i32, offset: i64) {
    fake.wait_until("a commit", LIMIT, |log| log.state.committed("g", "t", partition) == Some(offset));
}

fn append(fake: &Fake, partition: i32, count: usize) {
    fake.append_records("t", partition, (0..count).map(|i| (format!("k{i}"), "v")));
}

/// Ends the child and checks that every record of the partitions was printed once.
fn assert_each_once(mut child: Keylane, ends: &[i64]) {
    child.signal("TERM");
    let exit = child.wait_exit(LIMIT);
    assert_eq!(exit.code, Some(0), "{exit}");
    let mut lines = exit.stdout_lines();
    lines.sort_unstable();
    let mut wanted: Vec<String> =
        (0..).zip(ends).flat_map(|(p, end): (i32, _)| (0..*end).map(move |o| format!("{p} {o}"))).collect();
    wanted.sort_unstable();
    assert!(lines == wanted, "{} lines for {} records: {exit}", lines.len(), wanted.len());
}

#[test]
fn a_broker_restarts() {
    let fake = Fake::builder().topic("t", 2).numbered("t", 0, 100, 9).numbered("t", 1, 100, 9).start();
    let child = printing(&fake);
    wait_committed(&fake, 0, 100);
    wait_committed(&fake, 1, 100);
    fake.stop_node(1);
    append(&fake, 0, 50);
    std::thread::sleep(Duration::from_secs(1));
    fake.start_node(1);
    append(&fake, 1, 50);
    wait_committed(&fake, 0, 150);
    wait_committed(&fake, 1, 150);
    assert_each_once(child, &[150, 150]);
}

#[test]
fn connections_are_cut_again_and_again() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 100, 9).start();
    let child = printing(&fake);
    wait_committed(&fake, 0, 100);
    for round in 1..=5 {
        fake.cut(1);
        append(&fake, 0, 20);
        wait_committed(&fake, 0, 100 + 20 * round);
    }
    assert_each_once(child, &[200]);
}

#[test]
fn a_leader_moves() {
    let fake = Fake::cluster(2).topic("t", 2).numbered("t", 0, 100, 9).numbered("t", 1, 100, 9).start();
    let child = printing(&fake);
    wait_committed(&fake, 0, 100);
    wait_committed(&fake, 1, 100);
    for node in [2, 1, 2] {
        fake.with(|s| s.move_leader("t", 0, node));
        append(&fake, 0, 10);
        append(&fake, 1, 10);
    }
    wait_committed(&fake, 0, 130);
    wait_committed(&fake, 1, 130);
    assert_each_once(child, &[130, 130]);
}

#[test]
fn a_coordinator_moves() {
    let fake = Fake::cluster(2).topic("t", 2).numbered("t", 0, 100, 9).start();
    let child = printing(&fake);
    wait_committed(&fake, 0, 100);
    fake.with(|s| s.coordinator = 2);
    append(&fake, 0, 50);
    wait_committed(&fake, 0, 150);
    assert_each_once(child, &[150, 0]);
    assert!(fake.log(|log| log.heartbeats().iter().all(|(_, body)| !body.member_id.is_empty())));
}

/// Records below the start are gone: go on at the start and say so.
#[test]
fn the_beginning_was_deleted() {
    let fake = Fake::builder()
        .topic("t", 1)
        .numbered("t", 0, 1000, 9)
        .committed("g", "t", 0, 5)
        .set(|s| s.log("t", 0).delete_prefix(500))
        .start();
    let args = ["pool", "-t", "t", "-g", "g", "--print", "%o\n", "-e"];
    let exit = Keylane::run(&fake, &args).wait_exit(LIMIT);
    assert_eq!((exit.code, exit.stdout_lines().len()), (Some(0), 500), "{exit}");
    assert!(exit.stderr.contains("495"), "{exit}");
    assert_eq!(fake.committed("g", "t", 0), Some(1000));
}

/// An unclean election cut the log below the position: go on where the logs part, by OffsetForLeaderEpoch.
#[test]
fn the_end_was_cut() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 1000, 9).start();
    let mut child = printing(&fake);
    wait_committed(&fake, 0, 1000);
    fake.with(|s| {
        s.log("t", 0).truncate(500);
        s.move_leader("t", 0, 1);
        s.append_records("t", 0, vec![("new", "v"); 10]);
    });
    fake.wait_until("a question for the epoch", LIMIT, |log| log.count(ApiKey::OffsetForLeaderEpoch) > 0);
    wait_committed(&fake, 0, 510);
    child.signal("TERM");
    let exit = child.wait_exit(LIMIT);
    assert_eq!((exit.code, exit.stdout_lines().len()), (Some(0), 1010), "{exit}");
}

/// The same while records below the cut are still to be done: they are in the log as ever.
#[test]
fn the_end_was_cut_before_all_below_was_done() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 1000, 9).start();
    let args = ["pool", "-t", "t", "-g", "g", "-w", "4", "--work-delay", "4ms", "--print", "%o\n"];
    let mut child = Keylane::run(&fake, &args);
    fake.wait_until("a commit", LIMIT, |log| log.committed_max("g", "t", 0) > Some(0));
    fake.with(|s| {
        s.log("t", 0).truncate(500);
        s.move_leader("t", 0, 1);
        s.append_records("t", 0, vec![("new", "v"); 10]);
    });
    wait_committed(&fake, 0, 510);
    child.signal("TERM");
    let exit = child.wait_exit(LIMIT);
    let printed: std::collections::BTreeSet<i64> =
        exit.stdout_lines().iter().map(|line| line.parse().unwrap()).collect();
    assert!(exit.code == Some(0) && (0..510).all(|offset| printed.contains(&offset)), "{exit}");
}

/// The same between two runs: the commit is behind the cut (KIP-320).
#[test]
fn the_end_was_cut_below_the_commit() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 1000, 9).start();
    let run =
        || Keylane::run(&fake, &["pool", "-t", "t", "-g", "g", "--print", "%o\n", "-e"]).wait_exit(LIMIT);
    assert_eq!(run().stdout_lines().len(), 1000);
    fake.with(|s| {
        s.log("t", 0).truncate(500);
        s.move_leader("t", 0, 1);
        s.append_records("t", 0, vec![("new", "v"); 600]);
    });
    let exit = run();
    assert_eq!((exit.code, exit.stdout_lines().len()), (Some(0), 600), "{exit}");
    assert!(exit.stderr.contains("the log was cut to 500"), "{exit}");
    assert_eq!(fake.committed("g", "t", 0), Some(1100));
}

/// A broker that cannot say where a log was cut is read from all the same.
#[test]
fn a_broker_that_knows_no_epochs() {
    let fake =
        Fake::builder().topic("t", 1).numbered("t", 0, 100, 9).without(ApiKey::OffsetForLeaderEpoch).start();
    for records in [100, 10] {
        let args = ["pool", "-t", "t", "-g", "g", "--print", "%o\n", "-e"];
        let exit = Keylane::run(&fake, &args).wait_exit(LIMIT);
        assert_eq!((exit.code, exit.stdout_lines().len()), (Some(0), records), "{exit}");
        append(&fake, 0, 10);
    }
}

/// Where the start is the end of the log, the next owner must not take a later end for it.
#[test]
fn the_start_at_the_end_is_committed() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 100, 9).start();
    let mut args = vec!["pool", "-t", "t", "-g", "g", "--from", "latest", "--work-delay", "60s"];
    // The group waits for so long for one that was killed.
    args.extend(["-X", "session.timeout.ms=6000"]);
    let mut child = Keylane::run(&fake, &args);
    wait_committed(&fake, 0, 100);
    append(&fake, 0, 1);
    child.signal("KILL");
    child.wait_exit(LIMIT);
    let args = ["pool", "-t", "t", "-g", "g", "--from", "latest", "--print", "%o\n", "-e"];
    let exit = Keylane::run(&fake, &args).wait_exit(LIMIT);
    assert_eq!((exit.code, exit.stdout.trim()), (Some(0), "100"), "{exit}");
}

/// A typo makes no topic.
#[test]
fn a_missing_topic() {
    let fake = Fake::builder().start();
    let args = ["pool", "-t", "tpyo", "-g", "g", "--work-delay", "0", "-e", "--request-timeout", "1s"];
    let exit = Keylane::run(&fake, &args).wait_exit(LIMIT);
    assert_eq!(exit.code, Some(66), "{exit}");
    assert!(exit.stderr.contains("tpyo"), "{exit}");
    assert!(fake.with(|s| s.topics.is_empty()));
}

/// Errors that pass: nothing is lost, nothing is told as a failure.
#[test]
fn passing_errors_everywhere() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 100, 9).start();
    fake.fail_times(ApiKey::Metadata, 2, codes::LEADER_NOT_AVAILABLE);
    fake.fail_times(ApiKey::FindCoordinator, 2, codes::COORDINATOR_NOT_AVAILABLE);
    fake.fail_times(ApiKey::JoinGroup, 2, codes::COORDINATOR_LOAD_IN_PROGRESS);
    fake.fail_times(ApiKey::SyncGroup, 1, codes::REBALANCE_IN_PROGRESS);
    fake.fail_times(ApiKey::OffsetFetch, 2, codes::COORDINATOR_LOAD_IN_PROGRESS);
    fake.fail_times(ApiKey::ListOffsets, 2, codes::NOT_LEADER_OR_FOLLOWER);
    fake.fail_times(ApiKey::Fetch, 2, codes::NOT_LEADER_OR_FOLLOWER);
    fake.fail_times(ApiKey::OffsetCommit, 2, codes::COORDINATOR_LOAD_IN_PROGRESS);
    let args = ["pool", "-t", "t", "-g", "g", "--print", "%o\n", "-e"];
    let exit = Keylane::run(&fake, &args).wait_exit(LIMIT);
    assert_eq!((exit.code, exit.stdout_lines().len()), (Some(0), 100), "{exit}");
    assert_eq!(fake.committed("g", "t", 0), Some(100));
}
