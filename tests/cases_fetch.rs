//! Public bug reports of other clients about fetching, as tests of the binary. The number in a name is that of the
//! case in the project's list; each test opens with the thread.

mod fake;

use std::time::Duration;

use fake::codec::{Codec, snappy_raw, snappy_xerial};
use fake::{Exit, Fake, Kafka, Keylane, Reaction, batch};
use kafka_protocol::messages::ApiKey;

const LIMIT: Duration = Duration::from_secs(20);

/// Prints partition and offset of every record up to the end of topic `t`.
fn print_all(fake: &Fake, more: &[&str]) -> Exit {
    let mut args = vec!["pool", "-t", "t", "-g", "g", "--print", "%p %o\n", "-e"];
    args.extend(more);
    Keylane::run(fake, &args).wait_exit(LIMIT)
}

fn sorted(exit: &Exit) -> Vec<(i32, i64)> {
    let mut out: Vec<(i32, i64)> = exit
        .stdout_lines()
        .iter()
        .map(|line| {
            let (partition, offset) = line.split_once(' ').unwrap_or_else(|| panic!("{exit}"));
            (partition.parse().expect("a partition"), offset.parse().expect("an offset"))
        })
        .collect();
    out.sort_unstable();
    out
}

/// osodevops/kafka-backup#139: a compacted tail and a batch with no records left must not stall the position.
#[test]
fn case_02_compacted_tails() {
    for fetch_bytes in ["1048576", "1"] {
        let fake = Fake::builder()
            .topic("t", 1)
            .set(|s| s.log("t", 0).delete_prefix(100))
            .batch("t", 0, &batch(100).records((0..5).map(|i| (format!("k{i}"), "v"))).last_delta(9))
            .batch("t", 0, &batch(110).last_delta(9))
            .batch("t", 0, &batch(120).records([("k", "v")]))
            .start();
        let exit = print_all(&fake, &["-X", &format!("max.partition.fetch.bytes={fetch_bytes}")]);
        assert_eq!(exit.code, Some(0), "{exit}");
        assert_eq!(sorted(&exit), [100, 101, 102, 103, 104, 120].map(|offset| (0, offset)), "{exit}");
        let positions = fake.log(|log| log.positions("t", 0));
        assert_eq!(positions[0], 100);
        assert!(positions[1..].iter().all(|p| [110, 120, 121].contains(p)), "{positions:?}");
        assert_eq!(fake.committed("g", "t", 0), Some(121), "behind the last record");
    }
}

/// spring-projects/spring-kafka#4258, the part without a handler: markers and aborted records leave holes, and the
/// commit still reaches the end.
#[test]
fn case_01_markers_and_aborted_records() {
    let fake = Fake::builder()
        .topic("t", 1)
        .batch("t", 0, &batch(0).transactional(7).records([("a", "0")]))
        .batch("t", 0, &batch(1).marker(7, true))
        .batch("t", 0, &batch(2).transactional(7).records([("a", "2"), ("b", "3")]))
        .batch("t", 0, &batch(4).marker(7, false))
        .batch("t", 0, &batch(5).transactional(8).records([("a", "5")]))
        .batch("t", 0, &batch(6).marker(8, true))
        .start();
    let exit = print_all(&fake, &[]);
    assert_eq!(exit.code, Some(0), "{exit}");
    assert_eq!(sorted(&exit), [(0, 0), (0, 5)], "{exit}");
    assert_eq!(fake.committed("g", "t", 0), Some(7));
}

/// The simulator: behind an aborted transaction `sequential` had no record to commit for, and the lag stayed.
#[test]
fn sequential_commits_what_it_passes_without_a_record() {
    let fake = Fake::builder()
        .topic("t", 1)
        .batch("t", 0, &batch(0).transactional(7).records([("a", "0")]))
        .batch("t", 0, &batch(1).marker(7, false))
        .start();
    let _child = Keylane::run(&fake, &["sequential", "-t", "t", "-g", "g", "--work-delay", "0"]);
    fake.wait_until("a commit behind the marker", LIMIT, |log| log.committed_max("g", "t", 0) == Some(2));
}

/// confluentinc/parallel-consumer#540: a partition at its limit must not hold up the others.
#[test]
fn case_10_a_full_partition_is_left_out() {
    let fake = Fake::builder().topic("t", 2).numbered("t", 0, 100_000, 1).numbered("t", 1, 200, 50).start();
    let mut args = vec!["pool", "-t", "t", "-g", "g", "--work-delay", "20ms", "-w", "8", "--buffer", "8"];
    args.extend(["--commit-interval", "50ms"]);
    let _child = Keylane::run(&fake, &args);
    fake.wait_until("the end of partition 1", LIMIT, |log| log.committed_max("g", "t", 1) == Some(200));
    assert!(fake.committed("g", "t", 0).unwrap_or(0) < 1000, "partition 0 is slow");
    let left_out = fake.log(|log| {
        log.fetch_requests().iter().any(|(_, body)| {
            let forgotten = body.forgotten_topics_data.iter().any(|t| t.partitions.contains(&0));
            let named = body.topics.iter().any(|t| t.partitions.iter().any(|p| p.partition == 0));
            forgotten || (body.session_epoch <= 0 && !body.topics.is_empty() && !named)
        })
    });
    assert!(left_out, "partition 0 was never paused");
}

/// twmb/franz-go#1426: a recreated topic must not get the old topic's offsets, and no loop may spin.
#[test]
fn case_12_a_recreated_topic() {
    let fake = Fake::builder().topic("t", 1).numbered("t", 0, 500, 10).start();
    let args = ["pool", "-t", "t", "-g", "g", "--work-delay", "0", "--request-timeout", "2s"];
    let mut child = Keylane::run(&fake, &args);
    fake.wait_until("a commit of 500", LIMIT, |log| log.committed_max("g", "t", 0) == Some(500));
    let (before, at) = (fake.requests().len(), fake.now());
    fake.with(|s| s.change_topic_id("t"));
    let exit = child.wait_exit(LIMIT);
    let seconds = (fake.now() - at).as_secs_f64().max(1.0);
    assert_eq!(exit.code, Some(76), "{exit}");
    assert!(exit.stderr.contains("made again"), "{exit}");
    let late = fake.log(|log| log.all()[before..].to_vec());
    assert!(late.iter().all(|r| r.api != ApiKey::OffsetCommit), "a commit under an unconfirmed identity");
    let asked = late.iter().filter(|r| matches!(r.api, ApiKey::Fetch | ApiKey::Metadata)).count();
    assert!((asked as f64) < 5.0 * seconds, "{asked} requests in {seconds} s");
}

/// thomhurst/Dekaf#645: a cut last batch is normal, and the partitions behind it are read all the same.
#[test]
fn case_17_a_cut_tail() {
    let first = batch(0).records([("a", "0"), ("b", "1")]);
    let second = batch(2).records([("c", "x".repeat(420))]);
    let limit = first.build().len() + 200;
    let fake = Fake::builder()
        .topic("t", 2)
        .batch("t", 0, &first)
        .batch("t", 0, &second)
        .records("t", 1, [("d", "0"), ("e", "1")])
        .start();
    let exit = print_all(&fake, &["-X", &format!("max.partition.fetch.bytes={limit}")]);
    assert_eq!(exit.code, Some(0), "{exit}");
    assert_eq!(sorted(&exit), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)], "{exit}");
    assert_eq!(fake.log(|log| log.positions("t", 0))[..2], [0, 2]);
}

/// thomhurst/Dekaf#2065: damage in a whole batch is an error that names the place, and nothing is committed past it.
#[test]
fn case_17_damage_in_a_whole_batch() {
    let fake = Fake::builder()
        .topic("t", 1)
        .records("t", 0, [("a", "0"), ("b", "1")])
        .batch("t", 0, &batch(2).records([("c", "2")]).flip(63))
        .records("t", 0, [("d", "3")])
        .start();
    // What lies before the damage is finished first, however slow, so that a restart meets the damage at once.
    for delay in ["0", "50ms"] {
        fake.with(|state| state.set_committed("g", "t", 0, 0));
        let exit = print_all(&fake, &["--work-delay", delay]);
        assert_eq!(exit.code, Some(65), "{exit}");
        assert!(exit.stderr.contains("t/0@2"), "{exit}");
        assert_eq!(sorted(&exit), [(0, 0), (0, 1)], "{exit}");
        assert_eq!(fake.log(|log| log.committed_max("g", "t", 0)), Some(2));
    }
}

/// kafka-protocol-rs#122: too new an ApiVersions is asked again, on the same connection, in the broker's own version.
#[test]
fn case_18_an_older_broker() {
    let fake = Fake::builder()
        .kafka(Kafka::V2_8)
        .range(ApiKey::ApiVersions, 0, 2)
        .topic("t", 1)
        .records("t", 0, [("a", "0")])
        .start();
    let exit = print_all(&fake, &[]);
    assert_eq!((exit.code, exit.stdout.trim()), (Some(0), "0 0"), "{exit}");
    let first: Vec<_> = fake.requests().into_iter().filter(|r| r.connection == 1).take(2).collect();
    assert!(first.iter().all(|r| r.api == ApiKey::ApiVersions));
    assert_eq!((first[0].version >= 3, first[1].version), (true, 2));
}

/// The same with an answer that names no range at all: version 0.
#[test]
fn case_18_an_empty_answer() {
    let fake = Fake::builder().topic("t", 1).records("t", 0, [("a", "0")]).start();
    fake.on(ApiKey::ApiVersions, |request, _| match request.version {
        0 => Reaction::Default,
        _ => Reaction::RawBody(vec![0, 35, 0, 0, 0, 0]),
    });
    let exit = print_all(&fake, &[]);
    assert_eq!(exit.code, Some(0), "{exit}");
    let first: Vec<_> = fake.requests().into_iter().filter(|r| r.connection == 1).take(2).collect();
    assert_eq!((first[1].api, first[1].version), (ApiKey::ApiVersions, 0));
}

/// Every release's own versions are spoken.
#[test]
fn all_releases() {
    for kafka in [Kafka::V2_8, Kafka::V3_9, Kafka::V4_3] {
        let fake = Fake::cluster(3).kafka(kafka).topic("t", 3);
        let fake = (0..3).fold(fake, |f, p| f.numbered("t", p, 100, 7)).start();
        let exit = print_all(&fake, &[]);
        assert_eq!((exit.code, exit.stdout_lines().len()), (Some(0), 300), "{kafka:?}: {exit}");
        assert_eq!((0..3).map(|p| fake.committed("g", "t", p)).collect::<Vec<_>>(), [Some(100); 3]);
    }
}

/// kafka-protocol-rs#59 and #79: every codec's framing is read; snappy raw and in Java's chunks.
#[test]
fn case_19_20_codecs() {
    let value = "0123456789abcdef".repeat(6400);
    let records = |codec| batch(0).codec(codec).records([("a", value.clone())]);
    let plain = records(Codec::Snappy);
    let bytes = plain.record_bytes();
    let fake = Fake::builder()
        .topic("t", 6)
        .batch("t", 0, &records(Codec::Gzip))
        .batch("t", 1, &records(Codec::Lz4))
        .batch("t", 2, &records(Codec::Zstd))
        .batch("t", 3, &plain.clone().payload(snappy_raw(&bytes)))
        .batch("t", 4, &plain.clone().payload(snappy_xerial(&bytes, 32 << 10)))
        .batch("t", 5, &plain.payload(snappy_xerial(&bytes, 1000)))
        .start();
    let mut args = vec!["pool", "-t", "t", "-g", "g", "--print", "%p %s\n", "-e"];
    args.extend(["-X", "max.partition.fetch.bytes=1048576"]);
    let exit = Keylane::run(&fake, &args).wait_exit(LIMIT);
    assert_eq!(exit.code, Some(0), "{:?} {}", exit.code, exit.stderr);
    let mut lines = exit.stdout_lines();
    lines.sort_unstable();
    let wanted: Vec<String> = (0..6).map(|p| format!("{p} {value}")).collect();
    assert!(lines == wanted, "{} lines", lines.len());
}

/// A codec that nobody knows: named, with the place; nothing is committed past it.
#[test]
fn case_20_an_unknown_codec() {
    let fake = Fake::builder()
        .topic("t", 1)
        .records("t", 0, [("a", "0")])
        .batch("t", 0, &batch(1).attributes(5).records([("b", "1")]))
        .start();
    let exit = print_all(&fake, &[]);
    assert_eq!(exit.code, Some(65), "{exit}");
    assert!(exit.stderr.contains("t/0@1"), "{exit}");
    assert!(fake.log(|log| log.committed_max("g", "t", 0)).unwrap_or(0) <= 1);
}
