//! Tests of the coordinator, by subject, and the bench they share.

mod admin;
mod commits;
mod joins;
mod model;
mod moved;
mod rounds;
mod statics;
mod syncs;

use std::collections::BTreeMap;

use super::*;
use bytes::Bytes;

const SESSION_MS: i32 = 10_000;
const REBALANCE_MS: i32 = 60_000;

/// One group "g" in simulated time, and all answers so far.
pub(super) struct Bench {
    groups: Groups<u32>,
    now: Duration,
    tickets: u32,
    answers: BTreeMap<u32, Reply>,
}

/// A dynamic member's first JoinGroup of version 9.
pub(super) fn asks() -> Joining<u32> {
    Joining {
        ticket: 0,
        version: 9,
        fresh: String::new(),
        group: "g".to_owned(),
        member: String::new(),
        instance: None,
        client_id: "c".to_owned(),
        client_host: "/127.0.0.1".to_owned(),
        session_ms: SESSION_MS,
        rebalance_ms: REBALANCE_MS,
        protocol_type: "consumer".to_owned(),
        protocols: protocols(&["range"]),
    }
}

/// The JoinGroup of a member with an id.
pub(super) fn asks_as(member: &str) -> Joining<u32> {
    Joining { member: member.to_owned(), ..asks() }
}

/// The first JoinGroup of a static member.
pub(super) fn asks_static(instance: &str) -> Joining<u32> {
    Joining { instance: Some(instance.to_owned()), ..asks() }
}

/// Protocols whose metadata is "m".
pub(super) fn protocols(names: &[&str]) -> Vec<(String, Bytes)> {
    names.iter().map(|name| ((*name).to_owned(), Bytes::from_static(b"m"))).collect()
}

impl Bench {
    fn new() -> Self {
        Self::with_delay(0)
    }

    fn with_delay(delay_ms: u64) -> Self {
        let groups = Groups::new(Duration::from_millis(delay_ms));
        Self { groups, now: Duration::from_secs(1), tickets: 0, answers: BTreeMap::new() }
    }

    /// Files the answers: each ticket was issued and gets one.
    fn collect(&mut self) {
        for (ticket, reply) in self.groups.take_replies() {
            assert!((1..=self.tickets).contains(&ticket), "ticket {ticket} was never issued");
            assert!(self.answers.insert(ticket, reply).is_none(), "ticket {ticket} was answered twice");
        }
    }

    fn join(&mut self, mut asked: Joining<u32>) -> u32 {
        self.tickets += 1;
        asked.ticket = self.tickets;
        asked.fresh = self.tickets.to_string();
        self.groups.join(asked, self.now);
        self.collect();
        self.tickets
    }

    /// Both joins of a new dynamic member. Its id and the second ticket.
    fn enter(&mut self, asked: Joining<u32>) -> (String, u32) {
        let ticket = self.join(asked.clone());
        let (error, id) = self.refused(ticket);
        assert_eq!(error, ResponseError::MemberIdRequired);
        let ticket = self.join(Joining { member: id.clone(), ..asked });
        (id, ticket)
    }

    fn sync_with(&mut self, member: &str, generation: i32, assignments: &[(&str, &'static str)]) -> u32 {
        let share =
            |(id, share): &(&str, &'static str)| ((*id).to_owned(), Bytes::from_static(share.as_bytes()));
        self.send_sync(Syncing {
            ticket: 0,
            group: "g".to_owned(),
            member: member.to_owned(),
            instance: None,
            generation,
            protocol_type: Some("consumer".to_owned()),
            protocol: Some("range".to_owned()),
            assignments: assignments.iter().map(share).collect(),
        })
    }

    fn sync(&mut self, member: &str, generation: i32) -> u32 {
        self.sync_with(member, generation, &[])
    }

    fn send_sync(&mut self, mut asked: Syncing<u32>) -> u32 {
        self.tickets += 1;
        asked.ticket = self.tickets;
        self.groups.sync(asked, self.now);
        self.collect();
        self.tickets
    }

    fn beat(&mut self, member: &str, generation: i32) -> Result<(), ResponseError> {
        let answer = self.groups.heartbeat(&claim(member, generation), self.now);
        self.collect();
        answer
    }

    fn leave(&mut self, member: &str) -> Result<(), ResponseError> {
        let leaving = [Leaving { member, instance: None }];
        let outcomes = self.groups.leave("g", &leaving, self.now);
        self.collect();
        outcomes.and_then(|outcomes| outcomes[0])
    }

    /// Lets time pass, with a poll at each deadline.
    fn wait(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        while let Some(deadline) = self.groups.deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.groups.poll(self.now);
            self.collect();
            assert!(self.groups.deadline().is_none_or(|next| next > self.now), "time stands still");
        }
        self.now = end;
    }

    fn is_parked(&self, ticket: u32) -> bool {
        assert!(ticket <= self.tickets);
        !self.answers.contains_key(&ticket)
    }

    fn joined(&self, ticket: u32) -> Joined {
        match &self.answers[&ticket] {
            Reply::Join(Ok(joined)) => joined.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn refused(&self, ticket: u32) -> (ResponseError, String) {
        match &self.answers[&ticket] {
            Reply::Join(Err(refused)) => (refused.error, refused.member.clone()),
            other => panic!("{other:?}"),
        }
    }

    fn synced(&self, ticket: u32) -> Result<Bytes, ResponseError> {
        match &self.answers[&ticket] {
            Reply::Sync(answer) => answer.clone().map(|synced| synced.assignment),
            other => panic!("{other:?}"),
        }
    }

    fn state(&self) -> &'static str {
        self.groups.describe("g").map_or("Dead", |group| group.state)
    }

    fn generation(&self) -> i32 {
        self.groups.describe("g").map_or(-1, |group| group.generation)
    }

    /// All members join again and sync, the leader first. Then the group is stable.
    fn settle(&mut self, members: &[&str]) {
        let tickets: Vec<u32> = members.iter().map(|id| self.join(asks_as(id))).collect();
        let leader = self.joined(tickets[0]).leader;
        let generation = self.generation();
        self.sync(&leader, generation);
        for id in members.iter().filter(|id| **id != leader) {
            self.sync(id, generation);
        }
        assert_eq!(self.state(), "Stable");
    }

    /// A stable group of dynamic members, the leader first.
    fn stable(&mut self, count: usize) -> Vec<String> {
        let (first, _) = self.enter(asks());
        let mut ids = vec![first];
        for _ in 1..count {
            let (id, _) = self.enter(asks());
            ids.push(id);
            // The newest is parked already where a round is under way; it may join again.
            let all: Vec<&str> = ids.iter().map(String::as_str).collect();
            self.settle(&all);
        }
        if count == 1 {
            let generation = self.generation();
            self.sync(&ids[0].clone(), generation);
        }
        ids
    }
}

pub(super) fn claim(member: &str, generation: i32) -> Claim<'_> {
    Claim { group: "g", member, instance: None, generation }
}
