//! The requests about groups and their members, around [`super::group`].

use std::collections::BTreeMap;
use std::time::Instant;

use kafka_protocol::messages::consumer_group_describe_response::{
    DescribedGroup as DescribedConsumerGroup, Member as ConsumerMember,
};
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, DeleteGroupsRequest, DeleteGroupsResponse,
    DescribeGroupsRequest, DescribeGroupsResponse, HeartbeatRequest, HeartbeatResponse, JoinGroupRequest,
    JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse, ListGroupsRequest, ListGroupsResponse,
    SyncGroupRequest, SyncGroupResponse,
};

use super::codes;
use super::group::{Group, Joining, Phase};
use super::requests::Request;
use super::state::{State, text};

/// Takes the join in on the first call; `None` while it waits.
pub fn join(
    state: &mut State,
    request: &Request,
    body: &JoinGroupRequest,
    first: bool,
    now: Instant,
) -> Option<JoinGroupResponse> {
    if !first {
        return state.group(&body.group_id).take_join_answer(request.index);
    }
    let fresh = format!("{:08x}-fake", state.fresh());
    let initial_delay = state.initial_rebalance_delay;
    let joining = Joining {
        body,
        version: request.version,
        client_id: &request.client_id,
        ticket: request.index,
        fresh,
        initial_delay,
    };
    state.group(&body.group_id).join(&joining, now)
}

/// `None` while the leader has not spoken.
pub fn sync(
    state: &mut State,
    body: &SyncGroupRequest,
    first: bool,
    now: Instant,
) -> Option<SyncGroupResponse> {
    let group = state.group(&body.group_id);
    let refuse = |code| Some(SyncGroupResponse::default().with_error_code(code));
    if let Some(code) = group.check(&body.member_id, body.group_instance_id.as_deref(), body.generation_id) {
        // Who waited and finds another generation was overtaken by a rebalance.
        let overtaken = !first && code == codes::ILLEGAL_GENERATION;
        return refuse(if overtaken { codes::REBALANCE_IN_PROGRESS } else { code });
    }
    if first {
        group.hear(&body.member_id, now);
    }
    if group.phase == Phase::CompletingRebalance && first && group.leader == *body.member_id {
        let assignments: BTreeMap<_, _> =
            body.assignments.iter().map(|a| (a.member_id.to_string(), a.assignment.clone())).collect();
        group.assign(assignments, now);
        return Some(assigned(group, body));
    }
    match group.phase {
        Phase::CompletingRebalance => None,
        Phase::Stable => Some(assigned(group, body)),
        Phase::PreparingRebalance => refuse(codes::REBALANCE_IN_PROGRESS),
        Phase::Empty => refuse(codes::UNKNOWN_MEMBER_ID),
    }
}

fn assigned(group: &Group, body: &SyncGroupRequest) -> SyncGroupResponse {
    let member = &group.members[body.member_id.as_str()];
    SyncGroupResponse::default()
        .with_protocol_type(Some(text(group.protocol_type.clone())))
        .with_protocol_name(Some(text(group.protocol.clone())))
        .with_assignment(member.assignment.clone())
}

pub fn heartbeat(state: &mut State, body: &HeartbeatRequest, now: Instant) -> HeartbeatResponse {
    let group = state.group(&body.group_id);
    let code = match group.check(&body.member_id, body.group_instance_id.as_deref(), body.generation_id) {
        Some(code) => code,
        None => {
            group.hear(&body.member_id, now);
            if group.phase == Phase::PreparingRebalance { codes::REBALANCE_IN_PROGRESS } else { 0 }
        }
    };
    HeartbeatResponse::default().with_error_code(code)
}

pub fn leave(state: &mut State, body: &LeaveGroupRequest, version: i16, now: Instant) -> LeaveGroupResponse {
    let group = state.group(&body.group_id);
    let code = |left: bool| if left { 0 } else { codes::UNKNOWN_MEMBER_ID };
    if version < 3 {
        return LeaveGroupResponse::default().with_error_code(code(group.remove(&body.member_id, now)));
    }
    let mut response = LeaveGroupResponse::default();
    for member in &body.members {
        let left = match member.group_instance_id.as_deref() {
            Some(instance) => group.remove_instance(instance, now),
            None => group.remove(&member.member_id, now),
        };
        response.members.push(
            MemberResponse::default()
                .with_member_id(member.member_id.clone())
                .with_group_instance_id(member.group_instance_id.clone())
                .with_error_code(code(left)),
        );
    }
    response
}

pub fn list(state: &State, body: &ListGroupsRequest, version: i16) -> ListGroupsResponse {
    let mut response = ListGroupsResponse::default();
    for (id, group) in &state.groups {
        let word = group.consumer.as_ref().map_or(group.phase.word(), |c| c.state.as_str());
        if !body.states_filter.is_empty() && !body.states_filter.iter().any(|s| s.as_str() == word) {
            continue;
        }
        let mut listed = ListedGroup::default();
        listed.group_id.0 = text(id.clone());
        listed.protocol_type = text(group.protocol_type.clone());
        if version >= 4 {
            listed.group_state = text(word);
        }
        if version >= 5 {
            listed.group_type = text(if group.consumer.is_some() { "consumer" } else { "classic" });
        }
        response.groups.push(listed);
    }
    response
}

pub fn describe(state: &State, body: &DescribeGroupsRequest, version: i16) -> DescribeGroupsResponse {
    let mut response = DescribeGroupsResponse::default();
    for id in &body.groups {
        let mut described = DescribedGroup::default().with_group_id(id.clone());
        match state.groups.get(id.as_str()).filter(|g| g.consumer.is_none()) {
            None => {
                described.group_state = text("Dead");
                if version >= 6 {
                    described.error_code = codes::GROUP_ID_NOT_FOUND;
                    described.error_message = Some(text(format!("Group {} not found.", id.as_str())));
                }
            }
            Some(group) => {
                described.group_state = text(group.phase.word());
                described.protocol_type = text(group.protocol_type.clone());
                if group.phase == Phase::Stable {
                    described.protocol_data = text(group.protocol.clone());
                }
                described.members = group.members.iter().map(|(id, m)| member(group, id, m)).collect();
            }
        }
        response.groups.push(described);
    }
    response
}

fn member(group: &Group, id: &str, member: &super::group::Member) -> DescribedGroupMember {
    let metadata = member.protocols.iter().find(|(name, _)| *name == group.protocol);
    DescribedGroupMember::default()
        .with_member_id(text(id))
        .with_group_instance_id(member.instance.clone().map(text))
        .with_client_id(text(member.client_id.clone()))
        .with_client_host(text("/127.0.0.1"))
        .with_member_metadata(metadata.map(|(_, bytes)| bytes.clone()).unwrap_or_default())
        .with_member_assignment(member.assignment.clone())
}

/// ConsumerGroupDescribe: only groups with [`Group::consumer`] set are known here.
pub fn describe_consumer(
    state: &State,
    body: &ConsumerGroupDescribeRequest,
) -> ConsumerGroupDescribeResponse {
    let mut response = ConsumerGroupDescribeResponse::default();
    for id in &body.group_ids {
        let mut described = DescribedConsumerGroup::default().with_group_id(id.clone());
        match state.groups.get(id.as_str()).and_then(|g| g.consumer.as_ref()) {
            None => {
                described.error_code = codes::GROUP_ID_NOT_FOUND;
                described.error_message = Some(text(format!("Group {} not found.", id.as_str())));
                described.group_state = text("Dead");
            }
            Some(group) => {
                described.group_state = text(group.state.clone());
                described.group_epoch = 1;
                described.assignment_epoch = 1;
                described.assignor_name = text("uniform");
                for n in 0..group.members {
                    described.members.push(
                        ConsumerMember::default()
                            .with_member_id(text(format!("consumer-member-{n}")))
                            .with_member_epoch(1)
                            .with_client_id(text("consumer"))
                            .with_client_host(text("/127.0.0.1")),
                    );
                }
            }
        }
        response.groups.push(described);
    }
    response
}

pub fn delete(state: &mut State, body: &DeleteGroupsRequest) -> DeleteGroupsResponse {
    let mut response = DeleteGroupsResponse::default();
    for id in &body.groups_names {
        let code = match state.groups.get(id.as_str()) {
            None => codes::GROUP_ID_NOT_FOUND,
            Some(group) if group.members.is_empty() => {
                state.groups.remove(id.as_str());
                0
            }
            Some(_) => codes::NON_EMPTY_GROUP,
        };
        response
            .results
            .push(DeletableGroupResult::default().with_group_id(id.clone()).with_error_code(code));
    }
    response
}
