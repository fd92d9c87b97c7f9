//! Other clients in the same topic and in the same group.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use crate::child::{Keylane, Stream};
use crate::cluster::{Cluster, LIMIT, have, repository, size, wait_until};
use crate::ledger::LEDGER;
use crate::rebalance::assigned;

/// Lines `PARTITION OFFSET KEY` of one partition's records, by offset.
type Records = BTreeMap<(i32, i64), String>;

fn records<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<((i32, i64), String)> {
    let parsed = lines.filter_map(|line| {
        let mut words = line.trim_end_matches('.').splitn(3, ' ');
        Some(((words.next()?.parse().ok()?, words.next()?.parse().ok()?), words.next()?.to_owned()))
    });
    parsed.collect()
}

fn run_peer(mut command: Command, args: &[&str]) -> Records {
    command.args(args);
    let name = format!("{command:?}");
    let exit = Keylane::run_command(command).wait_exit(2 * LIMIT);
    assert_eq!(exit.code, Some(0), "{name}: {exit}");
    records(exit.stdout.lines()).into_iter().collect()
}

/// franz-go's reader, built once; none where there is no Go.
fn franz() -> Option<String> {
    if !have("go") {
        return None;
    }
    let program = repository("target/franz");
    let mut build = Command::new("go");
    build.args(["build", "-o", &program, "."]).current_dir(repository("tests/peers/franz"));
    let output = build.output().expect("go runs");
    if !output.status.success() {
        crate::cluster::say(&format!(
            "franz-go cannot be built here: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
        return None;
    }
    Some(program)
}

/// Every reader sees all of seed's records under the keys that the command line promises, and in the partitions where
/// Java's producer puts these keys.
#[test]
fn all_clients_read_what_seed_wrote() {
    Cluster::each_for_peers(all_read_the_same);
}

fn all_read_the_same(kafka: &Cluster) {
    let by_java = kafka.topic(6, &[]);
    kafka.run_java("Produce.java", &[kafka.brokers(), &by_java, "records=320", "keys=32"]);
    let java_partitions = key_partitions(&read(kafka, &by_java));
    assert_eq!(java_partitions.len(), 32);
    let franz = franz();
    let records = size(3200, 100_000);
    for codec in ["lz4", "none", "gzip", "snappy", "zstd"] {
        let topic = kafka.topic(6, &[]);
        kafka.seed(&topic, records, 32, &["-z", codec]);
        let seen = read(kafka, &topic);
        assert_eq!(seen.len(), records, "{codec}: Java");
        assert_eq!(key_partitions(&seen), java_partitions, "{codec}");
        let mut per_key: BTreeMap<&str, usize> = BTreeMap::new();
        for key in seen.values() {
            *per_key.entry(key).or_default() += 1;
        }
        assert!(
            (0..32).all(|key| per_key[format!("key-{key}").as_str()] == records / 32),
            "{codec}: {per_key:?}"
        );
        if let Some(franz) = &franz {
            assert_eq!(
                run_peer(Command::new(franz), &["read", "-b", kafka.brokers(), "-t", &topic]),
                seen,
                "{codec}"
            );
        }
        // librdkafka of Debian 12 reads all codecs.
        if have("kcat") {
            let args = ["-b", kafka.brokers(), "-C", "-t", &topic, "-e", "-q", "-f", "%p %o %k\n"];
            assert_eq!(run_peer(Command::new("kcat"), &args), seen, "{codec}: kcat");
        }
    }
}

/// All records of a topic by Java's consumer.
fn read(kafka: &Cluster, topic: &str) -> Records {
    let printed = kafka.read_by_java(topic, &["--formatter-property", "print.key=true"]);
    let lines = printed.lines().filter(|line| line.starts_with("Partition:"));
    lines
        .map(|line| {
            let words: Vec<&str> = line.split('\t').collect();
            let number =
                |word: &str| word.split_once(':').unwrap_or_else(|| panic!("{line}")).1.trim().to_owned();
            ((number(words[0]).parse().unwrap(), number(words[1]).parse().unwrap()), words[2].to_owned())
        })
        .collect()
}

fn key_partitions(records: &Records) -> BTreeMap<String, i32> {
    let pairs: BTreeSet<(String, i32)> =
        records.iter().map(|((partition, _), key)| (key.clone(), *partition)).collect();
    let map: BTreeMap<String, i32> = pairs.iter().cloned().collect();
    assert_eq!(map.len(), pairs.len(), "a key has one partition: {pairs:?}");
    map
}

/// Partitions that a Java member owns by its own lines; cooperative members are told what is added and what goes.
fn owned_by_java(member: &Keylane) -> BTreeSet<i32> {
    let mut owned = BTreeSet::new();
    for line in member.lines().iter().filter(|line| line.stream == Stream::Out) {
        let mut words = line.text.split_whitespace();
        let what = words.next().unwrap_or_default();
        let partitions = words.filter_map(|name| name.rsplit_once('-')?.1.parse().ok());
        match what {
            "assigned" => owned.extend(partitions),
            "revoked" | "lost" => partitions.for_each(|partition: i32| {
                owned.remove(&partition);
            }),
            _ => {}
        }
    }
    owned
}

/// keylane is in the group first, or Java is: the first member leads.
fn share(keylane_assignors: &str, java_assignors: &str, java_leads: bool) {
    Cluster::each_for_peers(|kafka| share_on(kafka, keylane_assignors, java_assignors, java_leads));
}

fn share_on(kafka: &Cluster, keylane_assignors: &str, java_assignors: &str, java_leads: bool) {
    let topic = kafka.topic(6, &[]);
    kafka.seed(&topic, 4000, 64, &[]);
    let java_assignors = format!("assignors={java_assignors}");
    let start_java =
        || kafka.java("Member.java", &[kafka.brokers(), &topic, &topic, &java_assignors, "work-ms=1"]);
    let start_keylane = || {
        kafka.keylane(&[
            "pool",
            "-t",
            &topic,
            "-g",
            &topic,
            "--assignor",
            keylane_assignors,
            "--work-delay",
            "5ms",
            "--print",
            LEDGER,
        ])
    };
    let (mut java, mut ours);
    if java_leads {
        java = start_java();
        wait_until("Java has all", LIMIT, || (owned_by_java(&java).len() == 6).then_some(()));
        ours = start_keylane();
    } else {
        ours = start_keylane();
        wait_until("keylane has all", LIMIT, || (assigned(&ours).1.len() == 6).then_some(()));
        java = start_java();
    }
    wait_until("three partitions each", LIMIT, || {
        let (one, two) = (owned_by_java(&java), assigned(&ours).1);
        (one.len() == 3 && two.len() == 3 && one.is_disjoint(&two)).then_some(())
    });
    kafka.seed(&topic, 2000, 64, &[]);
    wait_until("no lag", LIMIT, || {
        kafka.offsets(&topic, &topic).values().all(|o| o.committed == Some(o.end)).then_some(())
    });
    // The one in the group longer leaves; the other takes over.
    if java_leads {
        java.signal("TERM");
        wait_until("keylane has all", LIMIT, || (assigned(&ours).1.len() == 6).then_some(()));
    } else {
        ours.signal("TERM");
        wait_until("Java has all", LIMIT, || (owned_by_java(&java).len() == 6).then_some(()));
    }
    kafka.seed(&topic, 2000, 64, &[]);
    wait_until("no lag", LIMIT, || {
        kafka.offsets(&topic, &topic).values().all(|o| o.committed == Some(o.end)).then_some(())
    });
    if java_leads {
        ours.signal("TERM")
    } else {
        java.signal("TERM")
    }
    let ours_end = ours.wait_exit(LIMIT);
    assert_eq!(ours_end.code, Some(0), "{}", ours_end.stderr);
    java.wait_exit(Duration::from_secs(30));

    let mut times: BTreeMap<(i32, i64), usize> = BTreeMap::new();
    for child in [&ours, &java] {
        for (at, _) in records(child.text(Stream::Out).lines()) {
            *times.entry(at).or_default() += 1;
        }
    }
    let handled: BTreeSet<(i32, i64)> = times.keys().copied().collect();
    let all: BTreeSet<(i32, i64)> =
        kafka.ends(&topic, &topic).into_iter().flat_map(|(p, end)| (0..end).map(move |o| (p, o))).collect();
    assert_eq!(handled, all);
    // Java's member commits after each poll, so a record of it can come again when its poll was not committed before a
    // partition moved; nothing of ours does.
    let ours_twice = records(ours.text(Stream::Out).lines()).len()
        - records(ours.text(Stream::Out).lines()).iter().map(|(at, _)| *at).collect::<BTreeSet<_>>().len();
    assert_eq!(ours_twice, 0);
}

#[test]
fn eager_group_led_by_keylane() {
    // Java's default list.
    share("range,cooperative-sticky", "range,cooperative-sticky", false);
}

#[test]
fn eager_group_led_by_java() {
    share("range,cooperative-sticky", "range,cooperative-sticky", true);
}

#[test]
fn cooperative_group_led_by_keylane() {
    share("cooperative-sticky", "cooperative-sticky", false);
}

#[test]
fn cooperative_group_led_by_java() {
    share("cooperative-sticky", "cooperative-sticky", true);
}

/// keylane's default assignor beside Java's default list: the broker picks what both have.
#[test]
fn defaults_of_both() {
    share("cooperative-sticky", "range,cooperative-sticky", true);
}

/// The offsets that these tests ask keylane for are those that Java's tool reads.
#[test]
fn javas_tool_reads_the_same_offsets() {
    Cluster::each_for_peers(same_offsets);
}

fn same_offsets(kafka: &Cluster) {
    let topic = kafka.topic(3, &[]);
    kafka.seed(&topic, 900, 32, &[]);
    kafka.run(&["pool", "-t", &topic, "-g", &topic, "--work-delay", "0", "-n", "500"]);
    let answer = kafka.run_java(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        &["--bootstrap-server", kafka.brokers(), "--describe", "--group", &topic],
    );
    let mut by_java = BTreeMap::new();
    for line in answer.stdout.lines().filter(|line| line.split_whitespace().next() == Some(&topic)) {
        let words: Vec<&str> = line.split_whitespace().collect();
        by_java.insert(words[2].parse::<i32>().unwrap(), (words[3].parse().ok(), words[4].parse().unwrap()));
    }
    // Java's tool leaves out a partition without a commit.
    let ours: BTreeMap<i32, (Option<i64>, i64)> = kafka
        .offsets(&topic, &topic)
        .into_iter()
        .filter(|(_, offsets)| offsets.committed.is_some())
        .map(|(partition, offsets)| (partition, (offsets.committed, offsets.end)))
        .collect();
    assert_eq!(ours, by_java, "{answer}");
    assert_eq!(ours.values().filter_map(|(committed, _)| *committed).sum::<i64>(), 500);
}
