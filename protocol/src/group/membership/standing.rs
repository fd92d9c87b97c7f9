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
            self.lease_until = self.lease_until.max(Some(sent_at + self.config.session_timeout));
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
