//! Heartbeats, what an answer says about the standing of a member, and leaving.

use std::time::Duration;

use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::{HeartbeatRequest, LeaveGroupRequest};

use super::{Identity, Membership, Phase, Standing};
use crate::api::{Api, text};
use crate::error::{Class, Error, classify, code};

impl Membership {
    /// A heartbeat, if one is due.
    pub fn heartbeat(&mut self, now: Duration) -> Option<HeartbeatRequest> {
        if !self.beats() || self.heartbeat_in_flight || self.heartbeat_due > now {
            return None;
        }
        self.heartbeat_in_flight = true;
        self.heartbeat_due = now + self.config.heartbeat_interval;
        Some(
            HeartbeatRequest::default()
                .with_group_id(self.group_id())
                .with_generation_id(self.identity.generation)
                .with_member_id(text(&self.identity.member_id))
                .with_group_instance_id(self.config.instance_id.as_deref().map(text)),
        )
    }

    /// The heartbeat in flight was sent to a broker that is not the coordinator any more: it is not waited for.
    pub fn abandon_heartbeat(&mut self, now: Duration) {
        if self.heartbeat_in_flight {
            self.heartbeat_in_flight = false;
            self.heartbeat_due = now;
        }
    }

    /// The answer to a heartbeat that was sent at `sent_at` under `identity`.
    ///
    /// # Errors
    /// The group refuses us for good.
    pub fn on_heartbeat(
        &mut self,
        identity: &Identity,
        sent_at: Duration,
        answer: Result<i16, Error>,
        now: Duration,
    ) -> Result<Standing, Error> {
        self.heartbeat_in_flight = false;
        let error_code = match answer {
            Ok(error_code) => error_code,
            Err(error) if matches!(error.class(), Class::Refused | Class::Denied) => return Err(error),
            Err(_) => return Ok(Standing::Coordinator),
        };
        if *identity == self.identity && matches!(error_code, code::NONE | code::REBALANCE_IN_PROGRESS) {
            // Between the answers to JoinGroup and SyncGroup a heartbeat is told nothing of the round.
            if error_code == code::NONE && !self.is_between_join_and_sync() {
                self.calm_at = self.calm_at.max(sent_at);
            }
            let session = sent_at + self.config.session_timeout;
            let round = self.calm_at + self.config.rebalance_timeout;
            self.lease_until = self.lease_until.max(Some(session.min(round)));
        }
        self.on_standing(Api::Heartbeat, identity, error_code, now)
    }

    /// What a code in the answer to a heartbeat or a commit, sent under `identity`, says about the membership.
    ///
    /// # Errors
    /// The group refuses us for good.
    pub fn on_standing(
        &mut self,
        api: Api,
        identity: &Identity,
        error_code: i16,
        now: Duration,
    ) -> Result<Standing, Error> {
        let refused = || Error::refused(api, error_code, None).at_group(&self.config.group);
        let current = *identity == self.identity && !matches!(self.phase, Phase::Ended);
        match classify(api, error_code) {
            Class::Fine | Class::Retry => Ok(Standing::Kept),
            Class::Coordinator => Ok(Standing::Coordinator),
            Class::Membership if !current => Ok(Standing::Kept),
            Class::Membership => match error_code {
                code::REBALANCE_IN_PROGRESS => {
                    self.want_rejoin();
                    Ok(Standing::Kept)
                }
                code::UNKNOWN_MEMBER_ID => {
                    self.forget_member(now);
                    Ok(Standing::Lost)
                }
                // While a JoinGroup is pending, or is to be repeated, the generation may have moved on without us
                // knowing yet: only the answer to the join tells.
                code::ILLEGAL_GENERATION if matches!(self.phase, Phase::Joining(_) | Phase::Out(_)) => {
                    Ok(Standing::Kept)
                }
                code::ILLEGAL_GENERATION => {
                    self.forget_generation(now);
                    Ok(Standing::Lost)
                }
                _ => {
                    self.phase = Phase::Ended;
                    Err(refused())
                }
            },
            Class::Denied | Class::Refused => {
                self.phase = Phase::Ended;
                Err(refused())
            }
            Class::Leader | Class::Topic => Ok(Standing::Kept),
        }
    }

    // ---- leave ----

    /// Ends the membership. A static member says nothing: its place is kept for its return (KIP-345).
    pub fn leave(&mut self) -> Option<LeaveGroupRequest> {
        let member = !self.identity.member_id.is_empty() && !matches!(self.phase, Phase::Ended);
        self.phase = Phase::Ended;
        (member && self.config.instance_id.is_none()).then(|| {
            let member = MemberIdentity::default().with_member_id(text(&self.identity.member_id));
            LeaveGroupRequest::default().with_group_id(self.group_id()).with_members(vec![member])
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kafka_protocol::messages::{JoinGroupResponse, SyncGroupResponse};

    use super::super::{GroupConfig, Joined, Owned, Synced};
    use super::*;
    use crate::group::Assignor;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn join(member: &mut Membership, generation: i32) -> Joined {
        member.join(&Owned::new());
        let answer = JoinGroupResponse::default()
            .with_generation_id(generation)
            .with_protocol_name(Some(text("range")))
            .with_member_id(text("m"))
            .with_leader(text("other"));
        member.on_join(Ok(answer), Duration::ZERO).expect("joined")
    }

    /// Stable in generation 1, synced at second 0; session 45 s, rebalance 60 s.
    fn member() -> Membership {
        member_within(seconds(60))
    }

    fn member_within(rebalance_timeout: Duration) -> Membership {
        let config = GroupConfig {
            group: "g".to_owned(),
            instance_id: None,
            session_timeout: seconds(45),
            rebalance_timeout,
            heartbeat_interval: seconds(3),
            assignors: vec![Assignor::Range],
            topics: vec!["t".to_owned()],
            rack: None,
        };
        let mut member = Membership::new(config, 1);
        assert_eq!(join(&mut member, 1), Joined::Follower { missed: false });
        member.sync(&BTreeMap::new(), Duration::ZERO);
        let synced = member.on_sync(Ok(SyncGroupResponse::default()), Duration::ZERO);
        assert_eq!(synced, Ok(Synced::Assigned(Owned::new())));
        member
    }

    fn beat(member: &mut Membership, at: u64, code: i16) -> Option<Duration> {
        let identity = member.identity().clone();
        assert_eq!(member.on_heartbeat(&identity, seconds(at), Ok(code), seconds(at)), Ok(Standing::Kept));
        member.lease_until()
    }

    #[test]
    fn a_rebalance_bounds_the_lease_until_it_is_calm_again() {
        let mut member = member();
        assert_eq!(beat(&mut member, 30, code::NONE), Some(seconds(75)));
        assert_eq!(beat(&mut member, 33, code::REBALANCE_IN_PROGRESS), Some(seconds(78)));
        // Left out at second 90 at the earliest, if the join does not get through.
        member.join(&Owned::new());
        assert_eq!(beat(&mut member, 60, code::REBALANCE_IN_PROGRESS), Some(seconds(90)));
        assert_eq!(beat(&mut member, 80, code::REBALANCE_IN_PROGRESS), Some(seconds(90)));
        assert_eq!(beat(&mut member, 83, code::NONE), Some(seconds(128)));
    }

    #[test]
    fn a_rebalance_right_after_the_sync_bounds_the_lease_too() {
        let mut member = member_within(seconds(10));
        assert_eq!(member.lease_until(), Some(seconds(10)));
        assert_eq!(beat(&mut member, 3, code::NONE), Some(seconds(13)));
    }

    #[test]
    fn a_round_that_passed_unseen_is_missed() {
        for (generation, missed) in [(1, false), (2, false), (3, true), (9, true)] {
            assert_eq!(join(&mut member(), generation), Joined::Follower { missed }, "{generation}");
        }
    }

    #[test]
    fn a_round_begun_anew_at_another_coordinator_claims_what_it_claimed_before() {
        let mut member = member();
        assert_eq!(join(&mut member, 2), Joined::Follower { missed: false });
        assert_eq!(member.identity().generation, 2);
        member.restart_round(seconds(5));
        assert_eq!((member.identity().generation, member.join_deadline()), (1, Some(seconds(5))));
        assert!(!member.may_commit());
    }

    #[test]
    fn answers_about_an_older_generation_change_nothing() {
        let mut member = member();
        let old = Identity { member_id: "m".to_owned(), generation: 0 };
        for refused in [code::UNKNOWN_MEMBER_ID, code::ILLEGAL_GENERATION, code::FENCED_INSTANCE_ID, 27] {
            let standing = member.on_standing(Api::OffsetCommit, &old, refused, seconds(1));
            assert_eq!(standing, Ok(Standing::Kept));
            assert!(member.is_settled());
        }
    }

    #[test]
    fn a_leader_begins_a_round_for_what_it_did_not_count_and_not_for_what_is_away() {
        let mut member = member();
        let count = |topics: &[(&str, i32)]| {
            topics.iter().map(|(topic, count)| ((*topic).to_owned(), *count)).collect::<BTreeMap<_, _>>()
        };
        for (now, again) in
            [(vec![], false), (vec![("t", 6)], false), (vec![("t", 7)], true), (vec![("u", 1)], true)]
        {
            member.phase =
                Phase::Stable(super::super::Stable { led: Some(count(&[("t", 6)])), rejoin: false });
            assert_eq!(member.on_counts(&count(&now)), again, "{now:?}");
        }
    }
}
