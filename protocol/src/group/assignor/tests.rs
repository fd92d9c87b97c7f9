//! The assignors by example: the Java client's documentation and tests, in a short notation.
//!
//! Partitions are written `t0p3`, an assignment `C0: t0p0 t0p3 | C1: t1p0`.

use std::collections::BTreeMap;

use super::*;

type Owned = BTreeMap<String, Vec<i32>>;
type Members = BTreeMap<String, GroupMember>;

const STICKY_BOTH: [Assignor; 2] = [Assignor::CooperativeSticky, Assignor::Sticky];

pub(super) fn owned(text: &str) -> Owned {
    let mut owned = Owned::new();
    for word in text.split_whitespace() {
        let (topic, partition) = word.rsplit_once('p').unwrap();
        owned.entry(topic.to_owned()).or_default().push(partition.parse().unwrap());
    }
    owned.values_mut().for_each(|partitions| partitions.sort_unstable());
    owned
}

pub(super) fn counts(topics: &[(&str, i32)]) -> BTreeMap<String, i32> {
    topics.iter().map(|&(topic, count)| (topic.to_owned(), count)).collect()
}

/// A member as it stands in the JoinGroup answer, after its bytes went over the wire.
pub(super) fn member(assignor: Assignor, topics: &str, owned: &Owned, generation: i32) -> GroupMember {
    let cooperative = assignor.is_cooperative();
    let sent = Subscription {
        topics: topics.split_whitespace().map(str::to_owned).collect(),
        user_data: assignor.user_data(owned, generation),
        owned: if cooperative { owned.clone() } else { Owned::new() },
        generation,
        rack: None,
    };
    GroupMember { subscription: Subscription::decode(sent.encode()).unwrap(), instance_id: None }
}

/// Members as (id, topics, what they had, its generation).
fn members(assignor: Assignor, list: &[(&str, &str, &str, i32)]) -> Members {
    let one = |&(id, topics, had, generation): &(&str, &str, &str, i32)| {
        (id.to_owned(), member(assignor, topics, &owned(had), generation))
    };
    list.iter().map(one).collect()
}

fn fresh(assignor: Assignor, list: &[(&str, &str)]) -> Members {
    let list: Vec<_> = list.iter().map(|&(id, topics)| (id, topics, "", -1)).collect();
    members(assignor, &list)
}

fn show(assigned: &BTreeMap<String, Assignment>) -> String {
    let one = |(id, assignment): (&String, &Assignment)| {
        let words = assignment.partitions.iter().flat_map(|(topic, partitions)| {
            partitions.iter().map(move |partition| format!(" {topic}p{partition}"))
        });
        format!("{id}:{}", words.collect::<String>())
    };
    assigned.iter().map(one).collect::<Vec<_>>().join(" | ")
}

fn run(assignor: Assignor, members: &Members, topics: &[(&str, i32)]) -> String {
    show(&assignor.assign(members, &counts(topics)))
}

#[test]
fn names_are_the_java_client_s() {
    for assignor in Assignor::ALL {
        assert_eq!(Assignor::from_name(assignor.name()), Some(assignor));
    }
    assert_eq!(Assignor::from_name("cooperative-sticky"), Some(Assignor::CooperativeSticky));
    assert_eq!(Assignor::from_name("uniform"), None);
}

#[test]
fn user_data_is_the_java_client_s() {
    // The bytes are those of kafka-clients 3.9.2 and 4.4.0.
    let hex = |assignor: Assignor, had: &str, generation| {
        let bytes = assignor.user_data(&owned(had), generation)?;
        Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    };
    let both = "000000010003666f6f00000002000000000000000700000005";
    assert_eq!(hex(Assignor::Sticky, "foop0 foop7", 5).as_deref(), Some(both));
    assert_eq!(hex(Assignor::Sticky, "", 5).as_deref(), Some("0000000000000005"));
    assert_eq!(hex(Assignor::Sticky, "", -1), None);
    assert_eq!(hex(Assignor::CooperativeSticky, "foop0", 5).as_deref(), Some("00000005"));
    assert_eq!(hex(Assignor::CooperativeSticky, "", -1).as_deref(), Some("ffffffff"));
    assert_eq!(hex(Assignor::Range, "foop0", 5), None);
    assert_eq!(hex(Assignor::RoundRobin, "foop0", 5), None);
}

#[test]
fn nobody_and_nothing() {
    for assignor in Assignor::ALL {
        assert_eq!(run(assignor, &Members::new(), &[("t", 3)]), "");
        assert_eq!(run(assignor, &fresh(assignor, &[("C0", ""), ("C1", "")]), &[("t", 3)]), "C0: | C1:");
        assert_eq!(run(assignor, &fresh(assignor, &[("C0", "gone none")]), &[("t", 3), ("none", 0)]), "C0:");
        assert_eq!(
            run(assignor, &fresh(assignor, &[("C0", "t t")]), &[("t", 2), ("other", 2)]),
            "C0: tp0 tp1"
        );
    }
}

#[test]
fn range_cuts_each_topic() {
    let two = fresh(Assignor::Range, &[("C0", "t0 t1"), ("C1", "t0 t1")]);
    let cut = "C0: t0p0 t0p1 t1p0 t1p1 | C1: t0p2 t1p2";
    assert_eq!(run(Assignor::Range, &two, &[("t0", 3), ("t1", 3)]), cut);
    let mixed = fresh(Assignor::Range, &[("C0", "t1"), ("C1", "t1 t2"), ("C2", "t1")]);
    assert_eq!(
        run(Assignor::Range, &mixed, &[("t1", 3), ("t2", 2)]),
        "C0: t1p0 | C1: t1p1 t2p0 t2p1 | C2: t1p2"
    );
    assert_eq!(run(Assignor::Range, &mixed, &[("t1", 1)]), "C0: t1p0 | C1: | C2:");
    assert_eq!(run(Assignor::Range, &mixed, &[("t1", 5)]), "C0: t1p0 t1p1 | C1: t1p2 t1p3 | C2: t1p4");
}

#[test]
fn round_robin_deals_past_those_not_subscribed() {
    let two = fresh(Assignor::RoundRobin, &[("C0", "t0 t1"), ("C1", "t0 t1")]);
    let dealt = "C0: t0p0 t0p2 t1p1 | C1: t0p1 t1p0 t1p2";
    assert_eq!(run(Assignor::RoundRobin, &two, &[("t0", 3), ("t1", 3)]), dealt);
    let mixed = fresh(Assignor::RoundRobin, &[("C0", "t0"), ("C1", "t0 t1"), ("C2", "t0 t1 t2")]);
    let dealt = "C0: t0p0 | C1: t1p0 | C2: t1p1 t2p0 t2p1 t2p2";
    assert_eq!(run(Assignor::RoundRobin, &mixed, &[("t0", 1), ("t1", 2), ("t2", 3)]), dealt);
}

#[test]
fn static_members_keep_their_place_under_new_member_ids() {
    for assignor in [Assignor::Range, Assignor::RoundRobin] {
        let instances = |ids: [&str; 3]| {
            let mut all = fresh(assignor, &ids.map(|id| (id, "t0 t1")));
            for (id, instance) in ids.iter().zip(["I0", "I1", "I2"]) {
                all.get_mut(*id).unwrap().instance_id = Some(instance.to_owned());
            }
            let assigned = assignor.assign(&all, &counts(&[("t0", 3), ("t1", 3)]));
            ids.map(|id| assigned[id].partitions.clone())
        };
        assert_eq!(instances(["C0", "C1", "C2"]), instances(["C5", "C3", "C4"]));
        assert_eq!(instances(["C5", "C3", "C4"])[0], owned("t0p0 t1p0"));
    }
    let mut mixed = fresh(Assignor::Range, &[("C0", "t"), ("C1", "t")]);
    mixed.get_mut("C1").unwrap().instance_id = Some("I".to_owned());
    assert_eq!(
        run(Assignor::Range, &mixed, &[("t", 3)]),
        "C0: tp2 | C1: tp0 tp1",
        "static members come first"
    );
}

const FOUR: [(&str, i32); 4] = [("t0", 2), ("t1", 2), ("t2", 2), ("t3", 2)];

#[test]
fn sticky_starts_like_round_robin_and_keeps_what_is_left() {
    let all = "t0 t1 t2 t3";
    for assignor in STICKY_BOTH {
        let three = fresh(assignor, &[("C0", all), ("C1", all), ("C2", all)]);
        let start = "C0: t0p0 t1p1 t3p0 | C1: t0p1 t2p0 t3p1 | C2: t1p0 t2p1";
        assert_eq!(run(assignor, &three, &FOUR), start);
        let two = members(assignor, &[("C0", all, "t0p0 t1p1 t3p0", 1), ("C2", all, "t1p0 t2p1", 1)]);
        let after = "C0: t0p0 t0p1 t1p1 t3p0 | C2: t1p0 t2p0 t2p1 t3p1";
        assert_eq!(run(assignor, &two, &FOUR), after);
    }
}

#[test]
fn sticky_balances_as_far_as_subscriptions_allow() {
    let topics = [("t0", 1), ("t1", 2), ("t2", 3)];
    for assignor in STICKY_BOTH {
        let three = fresh(assignor, &[("C0", "t0"), ("C1", "t0 t1"), ("C2", "t0 t1 t2")]);
        assert_eq!(run(assignor, &three, &topics), "C0: t0p0 | C1: t1p0 t1p1 | C2: t2p0 t2p1 t2p2");
        let two = [("C1", "t0 t1", "t1p0 t1p1", 1), ("C2", "t0 t1 t2", "t2p0 t2p1 t2p2", 1)];
        let after = "C1: t0p0 t1p0 t1p1 | C2: t2p0 t2p1 t2p2";
        assert_eq!(run(assignor, &members(assignor, &two), &topics), after);
    }
}

#[test]
fn quotas() {
    let both = "t1 t2";
    for assignor in STICKY_BOTH {
        let run =
            |list: &[(&str, &str, &str, i32)], topics: &[_]| run(assignor, &members(assignor, list), topics);
        // The first of two at the lower quota gets the odd one.
        let list = [("C1", both, "t1p0 t2p1", 1), ("C2", both, "t1p1 t2p2", 1)];
        assert_eq!(run(&list, &[("t1", 2), ("t2", 3)]), "C1: t1p0 t2p0 t2p1 | C2: t1p1 t2p2");
        // All below the lower quota.
        let list = [("C1", both, "t1p0", 1), ("C2", both, "t1p1", 1), ("C3", both, "", 1)];
        assert_eq!(run(&list, &[("t1", 2), ("t2", 3)]), "C1: t1p0 t2p1 | C2: t1p1 t2p2 | C3: t2p0");
        // All reach their quota without anybody giving up anything.
        let list = [("C1", "t", "tp0 tp1", 1), ("C2", "t", "tp2", 1), ("C3", "t", "", 1)];
        assert_eq!(run(&list, &[("t", 4)]), "C1: tp0 tp1 | C2: tp2 | C3: tp3");
        // A new topic leaves the old one where it is.
        let list = [("C1", both, "t1p0 t1p2", 1), ("C2", both, "t1p1", 1)];
        assert_eq!(run(&list, &[("t1", 3), ("t2", 3)]), "C1: t1p0 t1p2 t2p0 | C2: t1p1 t2p1 t2p2");
    }
}

#[test]
fn a_surplus_comes_from_every_topic_alike() {
    let half =
        |from: i32| (0..12).map(|p| format!("t1p{} t2p{}", p + from, p + from)).collect::<Vec<_>>().join(" ");
    let list = [("C1", "t1 t2", half(0)), ("C2", "t1 t2", String::new())];
    let list: Vec<_> = list.iter().map(|(id, topics, had)| (*id, *topics, had.as_str(), 1)).collect();
    let assigned =
        Assignor::Sticky.assign(&members(Assignor::Sticky, &list), &counts(&[("t1", 12), ("t2", 12)]));
    for assignment in assigned.values() {
        assert!(
            assignment.partitions.values().all(|partitions| partitions.len() == 6),
            "{}",
            show(&assigned)
        );
    }
}

#[test]
fn the_newer_generation_keeps_what_two_claim() {
    let all = "t1 t2";
    let topics = [("t1", 3), ("t2", 3)];
    for assignor in STICKY_BOTH {
        for older in [9, 0, -1] {
            let had = "t1p0 t1p2 t2p1";
            let list = members(assignor, &[("C1", all, had, 10), ("C2", all, had, older)]);
            assert_eq!(run(assignor, &list, &topics), "C1: t1p0 t1p2 t2p1 | C2: t1p1 t2p0 t2p2");
        }
        let list = [("C1", all, "t1p0 t2p1 t1p1", 10), ("C2", all, "t1p0 t2p1 t2p2", 8)];
        assert_eq!(
            run(assignor, &members(assignor, &list), &topics),
            "C1: t1p0 t1p1 t2p1 | C2: t1p2 t2p0 t2p2"
        );
        let all = "t1 t2 t3";
        let list = [
            ("C1", all, "t1p0 t2p0 t3p0", 10),
            ("C2", all, "t1p1 t2p1 t3p1", 9),
            ("C3", all, "t2p1 t3p0 t3p2", 8),
        ];
        let settled = "C1: t1p0 t2p0 t3p0 | C2: t1p1 t2p1 t3p1 | C3: t1p2 t2p2 t3p2";
        let topics = [("t1", 3), ("t2", 3), ("t3", 3)];
        assert_eq!(run(assignor, &members(assignor, &list), &topics), settled);
    }
}

#[test]
fn what_two_claim_in_one_generation_is_nobody_s() {
    for (count, rest) in [(3, ""), (4, " tp3")] {
        let claims = [("C1", "t", "tp0 tp1", 4), ("C2", "t", "tp0 tp2", 4), ("C3", "t", "", 4)];
        let run = |assignor| run(assignor, &members(assignor, &claims), &[("t", count)]);
        assert_eq!(run(Assignor::Sticky), format!("C1: tp1{rest} | C2: tp2 | C3: tp0"));
        assert_eq!(
            run(Assignor::CooperativeSticky),
            format!("C1: tp1{rest} | C2: tp2 | C3:"),
            "both must revoke"
        );
    }
}

#[test]
fn with_other_subscriptions_too_a_double_claim_is_withheld() {
    // C1 would get tp0 again: but C2 may be at work on it as well.
    let claims = [("C1", "t", "tp0", 4), ("C2", "u", "tp0 up0", 4)];
    let claims = members(Assignor::CooperativeSticky, &claims);
    assert_eq!(run(Assignor::CooperativeSticky, &claims, &[("t", 1), ("u", 1)]), "C1: | C2: up0");
}

#[test]
fn three_generations_in_any_order() {
    for order in [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]] {
        let claims = [
            ("C1", "t", "tp0 tp2", order[0]),
            ("C2", "t", "tp1 tp2 tp3", order[1]),
            ("C3", "t", "tp2 tp4 tp5", order[2]),
            ("C4", "u", "up0", 2),
        ];
        for assignor in STICKY_BOTH {
            let assigned = assignor.assign(&members(assignor, &claims), &counts(&[("t", 6), ("u", 1)]));
            let held = |id: &str| assigned[id].partitions.values().map(Vec::len).sum::<usize>();
            assert!(
                ["C1", "C2", "C3", "C4"].iter().all(|id| (1..=2).contains(&held(id))),
                "{}",
                show(&assigned)
            );
        }
    }
}

#[test]
fn cooperative_withholds_what_moves() {
    let claims = [("C1", "t", "tp0 tp1 tp2", 3), ("C2", "t", "", -1)];
    let claims = members(Assignor::CooperativeSticky, &claims);
    assert_eq!(run(Assignor::CooperativeSticky, &claims, &[("t", 3)]), "C1: tp0 tp1 | C2:");
    let claims = [("C1", "t", "tp0 tp1", 4), ("C2", "t", "", 4)];
    let claims = members(Assignor::CooperativeSticky, &claims);
    assert_eq!(run(Assignor::CooperativeSticky, &claims, &[("t", 3)]), "C1: tp0 tp1 | C2: tp2");
}

#[test]
fn members_of_old_versions() {
    // Version 1 of the subscription has no generation: the user data has it.
    let mut coop = members(Assignor::CooperativeSticky, &[("C1", "t", "tp0", 5), ("C2", "t", "tp0 tp1", 4)]);
    coop.get_mut("C1").unwrap().subscription.generation = -1;
    assert_eq!(run(Assignor::CooperativeSticky, &coop, &[("t", 2)]), "C1: tp0 | C2: tp1");
    // Without either, any generation is newer.
    coop.get_mut("C1").unwrap().subscription.user_data = None;
    assert_eq!(
        run(Assignor::CooperativeSticky, &coop, &[("t", 2)]),
        "C1: | C2: tp0",
        "tp1 moves, so it waits"
    );
    // Version 0 of the sticky user data has no generation, and the subscription's does not count.
    let mut sticky =
        members(Assignor::Sticky, &[("C1", "t", "tp0 tp2", 1), ("C2", "t", "tp1", 1), ("C3", "t", "", -1)]);
    let subscription = &mut sticky.get_mut("C2").unwrap().subscription;
    let version_1 = subscription.user_data.take().unwrap();
    subscription.user_data = Some(version_1.slice(..version_1.len() - 4));
    assert_eq!(run(Assignor::Sticky, &sticky, &[("t", 3)]), "C1: tp0 | C2: tp1 | C3: tp2");
}

#[test]
fn sticky_believes_its_user_data_alone() {
    let mut one = members(Assignor::Sticky, &[("C1", "t", "tp1", 2), ("C2", "t", "", 2)]);
    one.get_mut("C2").unwrap().subscription.owned = owned("tp1");
    one.get_mut("C2").unwrap().subscription.generation = 9;
    assert_eq!(run(Assignor::Sticky, &one, &[("t", 2)]), "C1: tp1 | C2: tp0");
}

#[test]
fn odd_user_data_costs_only_the_member_that_sent_it() {
    for odd in ["", "00", "7fffffff", "0000000100", "00000001000174ffffffff00000001", "ffffffffffffffff"] {
        let bytes = crate::group::codec::unhex(odd);
        for assignor in STICKY_BOTH {
            let mut two = members(assignor, &[("C1", "t", "", -1), ("C2", "t", "tp0", 5)]);
            two.get_mut("C1").unwrap().subscription.user_data = Some(bytes.clone());
            assert_eq!(run(assignor, &two, &[("t", 2)]), "C1: tp1 | C2: tp0");
        }
    }
}

#[test]
fn claims_to_what_does_not_exist_are_dropped() {
    for assignor in STICKY_BOTH {
        let claims = [("C1", "t", "tp0 tp7 gonep0 tp2147483647", 3), ("C2", "t", "", 3)];
        assert_eq!(run(assignor, &members(assignor, &claims), &[("t", 2)]), "C1: tp0 | C2: tp1");
    }
}

#[test]
fn a_chain_of_hand_overs_evens_out() {
    // No single hand-over helps: C1 and C3 share no topic.
    let had = [("C1", "t1", "t1p0 t1p1 t1p2", 1), ("C2", "t1 t2", "t2p0 t2p1", 1), ("C3", "t2", "t2p2", 1)];
    let evened = run(Assignor::Sticky, &members(Assignor::Sticky, &had), &[("t1", 3), ("t2", 3)]);
    assert_eq!(evened, "C1: t1p1 t1p2 | C2: t1p0 t2p1 | C3: t2p0 t2p2");
}

#[test]
fn what_nobody_had_moves_before_what_somebody_had() {
    // tp2 is new and lands at C1; evening out takes one of C1's three, and it is that one.
    let had = [("C1", "t", "tp0 tp1", 1), ("C2", "t u", "up0 up1", 1), ("C3", "u", "up2", 1)];
    let evened = run(Assignor::Sticky, &members(Assignor::Sticky, &had), &[("t", 3), ("u", 3)]);
    assert_eq!(evened, "C1: tp0 tp1 | C2: tp2 up1 | C3: up0 up2");
}
