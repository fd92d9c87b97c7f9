//! Public bug reports of other clients about producing, as tests of `keylane seed`. The number in a name is that of
//! the case in the project's list; each test opens with the thread.

mod fake;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::Duration;

use fake::batch::read_records;
use fake::{Exit, Fake, Keylane, Reaction, codes};
use kafka_protocol::messages::{ApiKey, ResponseKind};

const LIMIT: Duration = Duration::from_secs(20);

fn seed(fake: &Fake, more: &[&str]) -> Exit {
    let args = [&["seed", "-t", "t"][..], more].concat();
    Keylane::run(fake, &args).wait_exit(LIMIT)
}

fn stored(fake: &Fake) -> i64 {
    fake.with(|s| s.topic("t").partitions.iter().map(|p| p.log.record_count()).sum())
}

fn assert_all_sent(fake: &Fake, exit: &Exit, count: i64) {
    assert_eq!(exit.code, Some(0), "{exit}");
    assert_eq!(exit.done("sent"), Some(count.to_string().as_str()), "{exit}");
    assert_eq!(exit.done("failed"), Some("0"), "{exit}");
    assert_eq!(stored(fake), count);
}

/// tulios/kafkajs#598: sequences grow by the records of each batch, per partition.
#[test]
fn case_21_sequences() {
    let fake = Fake::builder().topic("t", 3).start();
    let exit = seed(&fake, &["-n", "3000", "--batch-bytes", "4KiB"]);
    assert_all_sent(&fake, &exit, 3000);
    let mut next: BTreeMap<i32, i32> = BTreeMap::new();
    for produced in fake.log(|log| log.produced()) {
        let expected = next.entry(produced.partition).or_default();
        assert_eq!(produced.header.base_sequence, *expected, "partition {}", produced.partition);
        *expected += produced.header.count;
    }
}

/// tulios/kafkajs#598, IBM/sarama#1070: an answer that was lost; the repeat is the same batch, stored once.
#[test]
fn case_21_a_lost_answer() {
    let fake = Fake::builder().topic("t", 1).start();
    fake.on(ApiKey::Produce, |request, _| match request.nth {
        2 => Reaction::CloseAfterBytes(0),
        _ => Reaction::Default,
    });
    let exit = seed(&fake, &["-n", "1000", "--batch-bytes", "4KiB"]);
    assert_all_sent(&fake, &exit, 1000);
    let produced = fake.log(|log| log.produced());
    let lost = &produced[1];
    let again = produced[2..].iter().find(|p| p.header.base_sequence == lost.header.base_sequence);
    assert!(again.expect("a repeat").bytes == lost.bytes, "the repeat differs");
}

/// confluentinc/librdkafka#4438: DUPLICATE_SEQUENCE_NUMBER means delivered.
#[test]
fn case_21_a_duplicate_is_success() {
    let fake = Fake::builder().topic("t", 1).start();
    fake.on(ApiKey::Produce, |request, _| {
        if request.nth != 2 {
            return Reaction::Default;
        }
        Reaction::edit(|response| {
            let ResponseKind::Produce(body) = response else { return };
            body.responses[0].partition_responses[0].error_code = codes::DUPLICATE_SEQUENCE_NUMBER;
            body.responses[0].partition_responses[0].base_offset = -1;
        })
    });
    let exit = seed(&fake, &["-n", "1000", "--batch-bytes", "4KiB"]);
    assert_all_sent(&fake, &exit, 1000);
}

/// tulios/kafkajs#357: the same key, the same partition as Java.
#[test]
fn case_22_javas_partitions() {
    let fake = Fake::builder().topic("t", 12).start();
    let exit = seed(&fake, &["-n", "10", "-k", "10", "--key-prefix", "100:4806", "-z", "none"]);
    assert_all_sent(&fake, &exit, 10);
    let batches = fake.with(|s| s.log("t", 9).batches.clone());
    let keys: Vec<Vec<u8>> =
        batches.iter().flat_map(|b| read_records(&b.bytes).unwrap()).filter_map(|r| r.key).collect();
    assert!(keys.contains(&b"100:48069".to_vec()), "{keys:?}");
}

/// edenhill/kcat#36: nothing delivered is an exit status, in time.
#[test]
fn case_23_no_broker() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for broker in ["no-such-host.invalid:9092", closed.as_str()] {
        let args = ["seed", "-b", broker, "-t", "t", "-n", "10", "--delivery-timeout", "2s"];
        let args = [&args[..], &["--request-timeout", "2s"]].concat();
        let exit = Keylane::run_bare(&args, &[]).wait_exit(LIMIT);
        assert_eq!((exit.code, exit.done("sent")), (Some(69), Some("0")), "{broker}: {exit}");
        assert!(exit.done("failed").is_some() && exit.took < Duration::from_secs(4), "{broker}: {exit}");
    }
}

/// edenhill/kcat#36: one batch refused is counted and is an exit status.
#[test]
fn case_23_one_batch_refused() {
    let fake = Fake::builder().topic("t", 1).start();
    fake.on(ApiKey::Produce, |request, _| match request.nth {
        3 => Reaction::Error(codes::MESSAGE_TOO_LARGE),
        _ => Reaction::Default,
    });
    let exit = seed(&fake, &["-n", "1000", "--batch-bytes", "4KiB", "--acks", "1"]);
    assert_eq!(exit.code, Some(1), "{exit}");
    let count =
        |name| exit.done(name).and_then(|n| n.parse::<i64>().ok()).unwrap_or_else(|| panic!("{exit}"));
    assert!(count("failed") > 0);
    assert_eq!((count("sent") + count("failed"), count("sent")), (1000, stored(&fake)));
}

/// edenhill/kcat#36: a signal while records wait for company: they go out at once.
#[test]
fn case_23_a_signal_during_linger() {
    let fake = Fake::builder().topic("t", 1).start();
    let args = ["seed", "-t", "t", "-n", "0", "--rate", "100", "--linger", "20s"];
    let mut child = Keylane::run(&fake, &args);
    fake.wait_until("a connection that is ready", LIMIT, |log| log.count(ApiKey::Metadata) > 0);
    std::thread::sleep(Duration::from_millis(500));
    child.signal("TERM");
    let exit = child.wait_exit(Duration::from_secs(5));
    let sent: i64 = exit.done("sent").and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{exit}"));
    assert_eq!((exit.code, sent), (Some(0), stored(&fake)), "{exit}");
    assert!(sent > 0);
}
