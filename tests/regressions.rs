//! Faults that a second reading of the driver and the pool found, each as a test of the binary.

mod fake;

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use fake::{Codec, Fake, Keylane, Phantom, Reaction, batch, codes};
use kafka_protocol::messages::ApiKey;

const LIMIT: Duration = Duration::from_secs(20);

/// A pool on topic `t` in group `g`.
fn pool(fake: &Fake, more: &[&str]) -> Keylane {
    let mut args = vec!["pool", "-t", "t", "-g", "g"];
    args.extend(more);
    Keylane::run(fake, &args)
}

/// `keylane ARGS` as bash runs it, with what follows it on the line.
fn in_shell(fake: &Fake, args: &str, behind: &str) -> Keylane {
    let mut command = Command::new("bash");
    let program = env!("CARGO_BIN_EXE_keylane");
    command.args(["-c", &format!("{program} {args} -b {} {behind}", fake.brokers())]);
    Keylane::run_command(command)
}

/// Seconds of CPU that the child has used.
fn cpu_seconds(child: &Keylane) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("a running child");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name in brackets").split_whitespace().collect();
    let ticks: f64 = [11, 12].iter().map(|at| fields[*at].parse::<f64>().expect("ticks")).sum();
    ticks / 100.0
}

/// A connection that failed and is wanted again at once got its new socket closed in the same pass, and then nobody
/// waited for anything: no metadata ever came again.
#[test]
fn a_silent_broker_is_left_for_the_next_one() {
    let fake = Fake::cluster(2).topic("t", 1).numbered("t", 0, 10, 5).start();
    fake.with(|s| s.move_leader("t", 0, 2));
    let _child = pool(&fake, &["--work-delay", "0", "--request-timeout", "1s"]);
    fake.wait_until("a commit", LIMIT, |log| log.committed_max("g", "t", 0) == Some(10));
    fake.on(
        ApiKey::Metadata,
        |request, _| if request.node == 1 { Reaction::Drop } else { Reaction::Default },
    );
    fake.fail_times(ApiKey::Fetch, 1, codes::NOT_LEADER_OR_FOLLOWER);
    fake.append_records("t", 0, [("k", "v")]);
    let asked = |log: &fake::Log<'_>| log.of(ApiKey::Metadata).iter().any(|request| request.node == 2);
    fake.wait_until("Metadata asked of the other broker", Duration::from_secs(6), asked);
}

/// A batch that unpacks to more than its partition's share of the memory was begun, and when its partition had no room
/// for all its records at once, never gone on with.
#[test]
fn a_batch_larger_than_its_share_is_finished() {
    let mut builder = Fake::builder().topic("t", 4);
    for partition in 0..4 {
        for base in [0, 200] {
            let records = (0..200).map(|i| (format!("k{i}"), "v".repeat(2000)));
            builder = builder.batch("t", partition, &batch(base).records(records).codec(Codec::Lz4));
        }
    }
    let fake = builder.start();
    let more = ["--work-delay", "1ms", "-w", "4", "--buffer", "8", "--max-memory", "1MiB", "-e"];
    let exit = pool(&fake, &more).wait_exit(LIMIT);
    assert_eq!((exit.code, exit.done("processed")), (Some(0), Some("1600")), "{exit}");
}

/// Large records that are not packed, and small batches that unpack to much, are taken in only as far as
/// `--max-memory` allows.
#[test]
fn the_memory_limit_holds_for_large_records() {
    let plain = |base| batch(base).records([("k", "v".repeat(300_000))]);
    let packed = |base| batch(base).attributes(4).payload(zstd_record(1_000_000)).count(1).last_delta(0);
    let kinds: [(&str, &dyn Fn(i64) -> fake::Batch); 2] = [("packed", &packed), ("plain", &plain)];
    for (kind, one) in kinds {
        let mut builder = Fake::builder().topic("t", 2);
        for at in 0..600 {
            builder = builder.batch("t", at % 2, &one(i64::from(at / 2)));
        }
        let fake = builder.start();
        let mut child = pool(&fake, &["--work-delay", "60s", "--max-memory", "16MiB"]);
        fake.wait_until("fetches", LIMIT, |log| log.count(ApiKey::Fetch) > 1);
        let mut most = 0;
        for _ in 0..30 {
            sleep(Duration::from_millis(100));
            most = most.max(child.rss_kib().unwrap_or(0));
        }
        assert!(child.is_running() && most < (16 + 32) << 10, "{most} KiB with {kind} records");
    }
}

/// A record whose value is `bytes` times the same letter (a multiple of 100,000), as a zstd frame of a few blocks.
fn zstd_record(bytes: u32) -> Vec<u8> {
    let varint = |value: u32| {
        let (mut rest, mut out) = (value << 1, Vec::new());
        while rest >= 0x80 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
        out
    };
    let mut head = vec![0, 0, 0, 2, b'k'];
    head.extend(varint(bytes));
    let mut front = varint(head.len() as u32 + bytes + 1);
    front.extend(head);
    // RFC 8878: the magic number, a header with the content's size in 4 bytes, blocks that are raw or of one byte.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    frame.extend((front.len() as u32 + bytes + 1).to_le_bytes());
    let block = |size: u32, kind: u32, last: u32| (size << 3 | kind << 1 | last).to_le_bytes();
    frame.extend(&block(front.len() as u32, 0, 0)[..3]);
    frame.extend(front);
    for _ in 0..bytes / 100_000 {
        frame.extend(&block(100_000, 1, 0)[..3]);
        frame.push(b'v');
    }
    frame.extend(&block(1, 0, 1)[..3]);
    frame.push(0);
    frame
}

/// While the last commit had no answer, the loop ran on a commit timer that nobody looked at any more.
#[test]
fn waiting_for_the_last_commit_costs_nothing() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 10, 5).start();
    fake.on(ApiKey::OffsetCommit, |_, _| Reaction::delay_ms(15_000));
    let mut child = pool(&fake, &["--work-delay", "0", "--commit-interval", "300ms", "--stats", "0"]);
    fake.wait_until("a commit", LIMIT, |log| log.count(ApiKey::OffsetCommit) > 0);
    // More news, for which the timer is set again.
    fake.append_records("t", 0, [("k", "v")]);
    sleep(Duration::from_millis(200));
    child.signal("TERM");
    sleep(Duration::from_millis(800));
    let before = cpu_seconds(&child);
    sleep(Duration::from_secs(2));
    let used = cpu_seconds(&child) - before;
    assert!(child.is_running());
    assert!(used < 0.5, "{used} s of CPU in two idle seconds");
}

/// The second signal came while the last commit was waited for, and changed nothing.
#[test]
fn a_second_signal_ends_the_wait_for_the_last_commit() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 10, 5).start();
    fake.on(ApiKey::OffsetCommit, |_, _| Reaction::delay_ms(15_000));
    let mut child = pool(&fake, &["--work-delay", "0", "--commit-interval", "300ms"]);
    fake.wait_until("a commit", LIMIT, |log| log.count(ApiKey::OffsetCommit) > 0);
    child.signal("TERM");
    sleep(Duration::from_millis(300));
    let at = child.elapsed();
    child.signal("INT");
    let exit = child.wait_exit(LIMIT);
    assert_eq!(exit.code, Some(130), "{exit}");
    assert!(exit.took - at < Duration::from_millis(1500), "{:?} after the second signal", exit.took - at);
}

/// A closed pipe is no error: what was written is committed, and what was not comes again.
#[test]
fn the_reader_of_stdout_goes_away() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 5000, 5).start();
    let mut child = in_shell(
        &fake,
        r"pool -t t -g g --print '%o\n' --work-delay 1ms -w 1",
        "| head -n 3; exit ${PIPESTATUS[0]}",
    );
    let exit = child.wait_exit(LIMIT);
    assert_eq!(exit.code, Some(0), "{exit}");
    assert!(!exit.stderr.contains("unfinished are"), "{exit}");
    let committed = fake.committed("g", "t", 0).expect("a commit");
    assert!((3..100).contains(&committed), "{committed}");
}

/// stdout failed while a signal's drain was going on: the error was not told, and the exit code was another's.
#[test]
fn writing_fails_while_draining() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 3, 1).start();
    let args = r"pool -t t -g g --print '%o\n' --work-delay 700ms -w 1";
    let mut child = in_shell(
        &fake,
        args,
        "> /dev/full & pid=$!; \
        trap 'kill -s TERM $pid' USR1; wait $pid; code=$?; [ $code -gt 128 ] && { wait $pid; code=$?; }; exit $code",
    );
    child.wait_line("assigned", LIMIT);
    sleep(Duration::from_millis(300));
    child.signal("USR1");
    let exit = child.wait_exit(LIMIT);
    assert_eq!(exit.code, Some(74), "{exit}");
    assert!(exit.stderr.contains("writing to stdout failed"), "{exit}");
}

/// Records that were delivered and then went to another member counted as done.
#[test]
fn a_count_is_of_records_done_here() {
    let fake = Fake::builder().topic("t", 2).numbered("t", 0, 30, 1).numbered("t", 1, 300, 1).start();
    let more = ["--work-delay", "50ms", "-w", "1", "-n", "60", "-X", "heartbeat.interval.ms=100"];
    let mut child = pool(&fake, &more);
    fake.wait_until("fetches", LIMIT, |log| [0, 1].iter().all(|p| !log.positions("t", *p).is_empty()));
    sleep(Duration::from_millis(300));
    fake.phantom_join("g", "ghost", Phantom::new(&["t"]));
    child.wait_line("revoked t/", LIMIT);
    sleep(Duration::from_secs(2));
    fake.remove_member("g", "ghost");
    let exit = child.wait_exit(LIMIT);
    assert_eq!((exit.code, exit.done("processed")), (Some(0), Some("60")), "{exit}");
}

/// Of a name with two addresses the reason of the last one alone was told: on a machine without IPv6 that `::1` cannot
/// be had, whatever was wrong with 127.0.0.1.
#[test]
fn every_address_of_a_name_is_told() {
    let args = ["pool", "-t", "t", "-g", "g", "--work-delay", "0", "--request-timeout", "300ms"];
    let exit = Keylane::run_against("localhost:1", &args, &[]).wait_exit(LIMIT);
    assert_eq!(exit.code, Some(69), "{exit}");
    assert!(exit.stderr.contains("cannot connect to 127.0.0.1:1: nothing listens there; "), "{exit}");
}

/// `-e` took the end anew whenever the partition came back, and so never ended on a topic that grows.
#[test]
fn the_end_is_that_of_the_first_assignment() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 40, 1).start();
    let more = ["--work-delay", "50ms", "-w", "1", "-e", "-X", "heartbeat.interval.ms=100"];
    let mut child = pool(&fake, &more);
    fake.wait_until("a commit", LIMIT, |log| log.committed_max("g", "t", 0).is_some());
    fake.append_records("t", 0, vec![("k", "v"); 40]);
    // Thrown out of the group: everything is lost and assigned again.
    let member = fake.with(|s| s.group("g").members.keys().next().cloned()).expect("a member");
    fake.remove_member("g", &member);
    child.wait_line("lost t/0", LIMIT);
    let exit = child.wait_exit(LIMIT);
    assert_eq!((exit.code, fake.committed("g", "t", 0)), (Some(0), Some(40)), "{exit}");
}

/// The end that is remembered must not be waited for in a log that was cut meanwhile.
#[test]
fn the_first_end_may_be_gone() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 20, 1).numbered("t", 0, 20, 1).start();
    let more = ["--work-delay", "100ms", "-w", "1", "-e", "-X", "heartbeat.interval.ms=100"];
    let mut child = pool(&fake, &more);
    fake.wait_until("a commit", LIMIT, |log| log.committed_max("g", "t", 0).is_some());
    fake.with(|s| {
        let member = s.group("g").members.keys().next().cloned().expect("a member");
        s.log("t", 0).truncate(20);
        s.group("g").remove(&member, std::time::Instant::now());
    });
    child.wait_line("lost t/0", LIMIT);
    let exit = child.wait_exit(LIMIT);
    assert_eq!((exit.code, fake.committed("g", "t", 0)), (Some(0), Some(20)), "{exit}");
}
