//! A group member that lives inside the fake: it joins, keeps up with every round and leaves when the test says so.
//! Subscriptions and assignments are in the consumer protocol's layout (ConsumerProtocolSubscription v1,
//! ConsumerProtocolAssignment), read and written here by hand since they are bytes to the coordinator.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use bytes::Bytes;

/// Topic to partitions.
pub type Partitions = BTreeMap<String, BTreeSet<i32>>;

#[derive(Clone, Debug, Default)]
pub struct Phantom {
    topics: Vec<String>,
    owned: Partitions,
    back_at: Option<Instant>,
}

impl Phantom {
    pub fn new(topics: &[&str]) -> Self {
        Self { topics: topics.iter().map(|t| (*t).to_owned()).collect(), ..Self::default() }
    }

    /// Does not join any round before `at`, so that the others wait in theirs.
    pub fn back_at(mut self, at: Instant) -> Self {
        self.back_at = Some(at);
        self
    }

    pub fn back(&self, now: Instant) -> bool {
        self.back_at.is_none_or(|at| now >= at)
    }

    pub fn owned(&self) -> &Partitions {
        &self.owned
    }

    /// Its subscription; what it owns is told to cooperative assignors only.
    pub fn subscription(&self, protocol: &str) -> Bytes {
        let mut out = vec![0, 1];
        out.extend((self.topics.len() as i32).to_be_bytes());
        for topic in &self.topics {
            string(&mut out, topic);
        }
        out.extend((-1i32).to_be_bytes());
        let nothing = Partitions::new();
        let owned = if protocol.contains("cooperative") { &self.owned } else { &nothing };
        partitions(&mut out, owned);
        Bytes::from(out)
    }

    /// Takes its assignment; answers whether it gave something up and so joins again at once.
    pub fn assigned(&mut self, protocol: &str, assignment: &[u8]) -> bool {
        let new = read_assignment(assignment).unwrap_or_default();
        let kept = |(topic, parts): (&String, &BTreeSet<i32>)| {
            parts.iter().all(|p| new.get(topic).is_some_and(|set| set.contains(p)))
        };
        let again = protocol.contains("cooperative") && !self.owned.iter().all(kept);
        self.owned = new;
        again
    }
}

/// The bytes of an assignment (version 0, no user data).
pub fn assignment(parts: &Partitions) -> Bytes {
    let mut out = vec![0, 0];
    partitions(&mut out, parts);
    out.extend((-1i32).to_be_bytes());
    Bytes::from(out)
}

/// The partitions of an assignment; `None` if the bytes are not one.
pub fn read_assignment(bytes: &[u8]) -> Option<Partitions> {
    read_partitions(&mut bytes.get(2..)?)
}

/// The topics and owned partitions of a subscription; `None` if the bytes are not one.
pub fn read_subscription(bytes: &[u8]) -> Option<(Vec<String>, Partitions)> {
    let version = bytes.get(1)?;
    let mut rest = bytes.get(2..)?;
    let mut topics = Vec::new();
    for _ in 0..take_int(&mut rest)? {
        topics.push(take_string(&mut rest)?);
    }
    let user_data = take_int(&mut rest)?;
    rest = rest.get(usize::try_from(user_data).unwrap_or(0)..)?;
    let owned = if *version == 0 { Partitions::new() } else { read_partitions(&mut rest)? };
    Some((topics, owned))
}

fn string(out: &mut Vec<u8>, value: &str) {
    out.extend((value.len() as i16).to_be_bytes());
    out.extend(value.as_bytes());
}

fn partitions(out: &mut Vec<u8>, map: &Partitions) {
    out.extend((map.len() as i32).to_be_bytes());
    for (topic, parts) in map {
        string(out, topic);
        out.extend((parts.len() as i32).to_be_bytes());
        for partition in parts {
            out.extend(partition.to_be_bytes());
        }
    }
}

fn read_partitions(bytes: &mut &[u8]) -> Option<Partitions> {
    let mut map = Partitions::new();
    for _ in 0..take_int(bytes)? {
        let topic = take_string(bytes)?;
        let mut parts = BTreeSet::new();
        for _ in 0..take_int(bytes)? {
            parts.insert(take_int(bytes)?);
        }
        map.insert(topic, parts);
    }
    Some(map)
}

fn take_int(bytes: &mut &[u8]) -> Option<i32> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    *bytes = rest;
    Some(i32::from_be_bytes(*head))
}

fn take_string(bytes: &mut &[u8]) -> Option<String> {
    let (head, rest) = bytes.split_first_chunk::<2>()?;
    let (text, rest) = rest.split_at_checked(usize::try_from(i16::from_be_bytes(*head)).ok()?)?;
    *bytes = rest;
    String::from_utf8(text.to_vec()).ok()
}
