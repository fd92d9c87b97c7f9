//! What other members of a group write: subscriptions, assignments, the sticky assignors' user data; and what a
//! leader makes of them.

use std::collections::BTreeMap;

use bytes::Bytes;
use keylane_protocol::group::{Assignment, Assignor, GroupMember, Subscription};

use crate::campaign;
use crate::mutate::mutate;
use crate::rng::Rng;

const TOPICS: [&str; 4] = ["orders", "payments", "t", "gone"];
/// Bytes of memory for each byte: a partition of four bytes costs a place in a list and, with the sticky assignors,
/// an entry of each table that a leader keeps; a topic of six costs a map's node.
const MEMORY_PER_BYTE_MAX: usize = 120;
const MEMORY_BASE: usize = 64 << 10;

fn partitions(rng: &mut Rng) -> BTreeMap<String, Vec<i32>> {
    let mut all = BTreeMap::new();
    for topic in TOPICS.iter().filter(|_| rng.one_in(2)).collect::<Vec<_>>() {
        let mut partitions: Vec<i32> = (0..1 + rng.below(8)).map(|_| rng.below(12) as i32).collect();
        if rng.one_in(8) {
            partitions.push(i32::MAX - rng.below(2) as i32);
        }
        all.insert((*topic).to_owned(), partitions);
    }
    all
}

/// A sound member, with the user data that one of the assignors writes.
fn subscription(rng: &mut Rng, noise: bool) -> Subscription {
    let owned = partitions(rng);
    let generation = if rng.one_in(6) { rng.odd_i64() as i32 } else { rng.below(6) as i32 - 1 };
    let assignor = *rng.pick(&Assignor::ALL);
    let mut user_data = assignor.user_data(&owned, generation);
    if noise && let Some(sound) = &user_data {
        let mut bytes = sound.to_vec();
        mutate(rng, &mut bytes, sound);
        user_data = Some(bytes.into());
    }
    Subscription {
        topics: TOPICS.iter().filter(|_| !rng.one_in(4)).map(|topic| (*topic).to_owned()).collect(),
        user_data,
        owned: if rng.one_in(3) { BTreeMap::new() } else { owned },
        generation,
        rack: rng.one_in(4).then(|| "rack".to_owned()),
    }
}

fn hostile(rng: &mut Rng, sound: &Bytes) -> Bytes {
    let mut bytes = sound.to_vec();
    match rng.below(8) {
        0 => {
            let count = rng.below(80);
            bytes = rng.bytes(count);
        }
        1 => {}
        _ => mutate(rng, &mut bytes, sound),
    }
    bytes.into()
}

#[test]
fn subscriptions() {
    let stages = [("subscription accepted", 300), ("read in part", 100), ("shared out", 900)];
    campaign::run("subscriptions", 9, &stages, |rng, case| {
        let mut members = Vec::new();
        for number in 0..1 + rng.below(4) {
            let noise = rng.one_in(2);
            let sound = subscription(rng, noise).encode();
            let bytes = if rng.one_in(3) { sound } else { hostile(rng, &sound) };
            let instance_id = rng.one_in(3).then(|| format!("instance-{}", number % 2));
            members.push((format!("member-{number}"), bytes, instance_id));
        }
        let counts: BTreeMap<String, i32> =
            TOPICS[..3].iter().map(|topic| ((*topic).to_owned(), rng.below(14) as i32 - 1)).collect();
        let cluster: usize = counts.values().map(|count| (*count).max(0) as usize).sum();
        let bytes: usize = members.iter().map(|(_, bytes, _)| bytes.len()).sum();
        // The cluster's partitions are known, and shared out whatever the members say.
        let limit = MEMORY_BASE + MEMORY_PER_BYTE_MAX * bytes + 400 * cluster * members.len();
        case.work(bytes, limit, |case| {
            let mut read = BTreeMap::new();
            for (id, bytes, instance_id) in &members {
                let (subscription, fault) = Subscription::decode_tolerant(bytes.clone());
                case.reached(if fault.is_none() { "subscription accepted" } else { "subscription refused" });
                if fault.is_some() && subscription != Subscription::default() {
                    case.reached("read in part");
                }
                let sorted = subscription.owned.values().all(|list| list.is_sorted() && list[0] >= 0);
                assert!(sorted, "partitions ascending, none below 0");
                let again = Subscription::decode(subscription.encode()).expect("what we write we read");
                assert_eq!(again.owned, subscription.owned);
                read.insert(id.clone(), GroupMember { subscription, instance_id: instance_id.clone() });
            }
            for assignor in Assignor::ALL {
                let assigned = assignor.assign(&read, &counts);
                assert_eq!(assigned.len(), read.len(), "every member has an entry");
                check(&read, &counts, &assigned, assignor);
            }
            case.reached("shared out");
        });
    });
}

/// Every partition goes to one member that wants it, and none that is not there to anybody.
fn check(
    members: &BTreeMap<String, GroupMember>,
    counts: &BTreeMap<String, i32>,
    assigned: &BTreeMap<String, Assignment>,
    assignor: Assignor,
) {
    let mut given: BTreeMap<(&str, i32), usize> = BTreeMap::new();
    for (id, assignment) in assigned {
        for (topic, partitions) in &assignment.partitions {
            assert!(members[id].subscription.topics.contains(topic), "{assignor:?} gives what is wanted");
            for partition in partitions {
                assert!((0..counts[topic]).contains(partition), "{assignor:?} gives what there is");
                *given.entry((topic, *partition)).or_default() += 1;
            }
        }
    }
    assert!(given.values().all(|owners| *owners == 1), "{assignor:?}: one owner each");
    let wanted = counts
        .iter()
        .filter(|(topic, _)| members.values().any(|member| member.subscription.topics.contains(topic)))
        .map(|(_, count)| (*count).max(0) as usize)
        .sum::<usize>();
    assert!(
        given.len() == wanted || assignor.is_cooperative() && given.len() < wanted,
        "{assignor:?} leaves nothing out"
    );
}

#[test]
fn assignments() {
    let stages = [("assignment accepted", 200), ("assignment refused", 200)];
    campaign::run("assignments", 5, &stages, |rng, case| {
        let sound = Assignment { partitions: partitions(rng), user_data: None }.encode();
        let bytes = hostile(rng, &sound);
        let limit = MEMORY_BASE + MEMORY_PER_BYTE_MAX * bytes.len();
        case.work(bytes.len(), limit, |case| match Assignment::decode(bytes) {
            Ok(read) => {
                case.reached("assignment accepted");
                assert!(read.partitions.values().all(|list| list.is_sorted() && list[0] >= 0));
                assert_eq!(Assignment::decode(read.encode()).as_ref(), Ok(&read));
            }
            Err(_) => case.reached("assignment refused"),
        });
    });
}
