//! The lines of `lag`, which scripts read, and its JSON.

use keylane_protocol::error::Error;
use keylane_protocol::lag::{DescribedGroup, GroupLag, PartitionLag};
use serde_json::{Value, json};

use crate::report::Fields;

/// The header and a line per partition, without the time in front. `several` adds the group to each partition's line.
pub(super) fn text(group: &GroupLag, several: bool) -> String {
    let name = &group.name;
    let described = match &group.outcome {
        Ok(Some(described)) => described,
        Ok(None) => return format!("group={name:?}: not described"),
        Err(error) => return format!("group={name:?}: unknown: {error}"),
    };
    let mut text = format!(
        "group={name:?} state={} members={} total={} uncommitted={} unknown={}",
        described.description.state,
        described.description.members.len(),
        described.total(),
        described.uncommitted(),
        described.unknown()
    );
    for partition in &described.partitions {
        text.push('\n');
        text.push_str(&partition_line(partition));
        if several {
            text.push_str(&format!(" group={name}"));
        }
        text.push_str(&marks(partition));
    }
    text
}

fn partition_line(partition: &PartitionLag) -> String {
    let known = |offset: Option<i64>| offset.map_or_else(|| "?".to_owned(), |offset| offset.to_string());
    let commit = match &partition.committed {
        Ok(Some(offset)) => offset.to_string(),
        Ok(None) => "-".to_owned(),
        Err(_) => "?".to_owned(),
    };
    let end = known(partition.end.as_ref().ok().copied());
    format!("{}={} (commit={commit} end={end})", partition.at, known(partition.lag()))
}

/// What stands behind the bracket of a partition that is not as it should be.
fn marks(partition: &PartitionLag) -> String {
    let mut marks = String::new();
    if let Some(records) = partition.beyond_end() {
        marks.push_str(&format!(" beyond-end={records}"));
    }
    if let Some(records) = partition.below_start() {
        marks.push_str(&format!(" below-start={records}"));
    }
    if let Some(error) = partition.error() {
        marks.push_str(&format!(" error={}", reason(error)));
    }
    marks
}

/// One word for why an offset is unknown.
fn reason(error: &Error) -> String {
    error.code().map_or_else(|| "no-answer".to_owned(), keylane_protocol::error::code_name)
}

/// The line about one partition that holds most of the lag.
pub(super) fn skew(group: &str, place: &str, lag: i64, described: &DescribedGroup) -> (String, Fields) {
    let total = described.total();
    let percent = lag.saturating_mul(100).checked_div(total).unwrap_or(0);
    let text = format!(
        "group={group:?} skew: {place} holds {percent}% of the lag ({lag} of {total}); more workers help only if its \
         records have several keys"
    );
    let fields = vec![
        ("group_name", group.into()),
        ("partition", place.into()),
        ("lag", lag.into()),
        ("total_lag", total.into()),
    ];
    (text, fields)
}

/// The object of a group, for `lag` and `group describe`. What is not known is null.
pub(crate) fn json_fields(group: &GroupLag) -> Fields {
    let mut fields: Fields = vec![("group_name", group.name.as_str().into())];
    let described = match &group.outcome {
        Ok(Some(described)) => described,
        other => {
            let error = match other {
                Err(error) => error.to_string(),
                _ => "not described".to_owned(),
            };
            fields.extend([
                ("state", Value::Null),
                ("members", Value::Null),
                ("coordinator_node", json!(group.coordinator)),
                ("total_lag", Value::Null),
                ("partitions", json!([])),
                ("error", error.into()),
            ]);
            return fields;
        }
    };
    let partitions: Vec<Value> =
        described.partitions.iter().map(|partition| partition_json(partition, described)).collect();
    fields.extend([
        ("state", described.description.state.as_str().into()),
        ("members", described.description.members.len().into()),
        ("coordinator_node", json!(group.coordinator)),
        ("total_lag", described.total().into()),
        ("uncommitted", described.uncommitted().into()),
        ("unknown", described.unknown().into()),
        ("partitions", partitions.into()),
    ]);
    fields
}

fn partition_json(partition: &PartitionLag, described: &DescribedGroup) -> Value {
    let member = described.description.member_of(&partition.at);
    let mut object = json!({
        "topic": &*partition.at.topic,
        "partition": partition.at.partition,
        "current_offset": partition.committed.as_ref().ok().copied().flatten(),
        "log_start_offset": partition.start.as_ref().ok(),
        "log_end_offset": partition.end.as_ref().ok(),
        "lag": partition.lag(),
        "member_id": member.map(|member| &member.member_id),
        "client_id": member.map(|member| &member.client_id),
        "host": member.map(|member| &member.host),
    });
    if let Some(error) = partition.error() {
        object["error"] = error.to_string().into();
    }
    object
}

#[cfg(test)]
mod tests {
    use keylane_protocol::admin::groups::{GroupDescription, Member};
    use keylane_protocol::api::Api;
    use keylane_protocol::metadata::TopicPartition;

    use super::*;

    fn partition(
        number: i32,
        committed: Result<Option<i64>, i16>,
        start: i64,
        end: Result<i64, i16>,
    ) -> PartitionLag {
        PartitionLag {
            at: TopicPartition::new("lecture-03-05-events", number),
            committed: committed.map_err(|code| Error::refused(Api::OffsetFetch, code, None)),
            start: Ok(start),
            end: end.map_err(|code| Error::refused(Api::ListOffsets, code, None)),
        }
    }

    fn group(partitions: Vec<PartitionLag>) -> GroupLag {
        let member = Member {
            member_id: "m-1".to_owned(),
            client_id: "c".to_owned(),
            host: "/127.0.0.1".to_owned(),
            assignment: [TopicPartition::new("lecture-03-05-events", 2)].into(),
            instance_id: None,
        };
        let description = GroupDescription {
            state: "Stable".to_owned(),
            assignor: "range".to_owned(),
            members: vec![member],
        };
        let outcome = Ok(Some(DescribedGroup { description, partitions }));
        GroupLag { name: "G".to_owned(), coordinator: Some(1), outcome }
    }

    #[test]
    fn lines_are_those_of_the_contract() {
        let group = group(vec![
            partition(0, Ok(None), 100, Ok(400)),
            partition(2, Ok(Some(8500)), 0, Ok(8647)),
            partition(3, Ok(Some(120)), 0, Ok(100)),
            partition(4, Err(14), 0, Ok(7)),
            partition(5, Ok(Some(3)), 5, Err(6)),
        ]);
        let expected = "group=\"G\" state=Stable members=1 total=447 uncommitted=1 unknown=2\n\
            lecture-03-05-events/0=300 (commit=- end=400)\n\
            lecture-03-05-events/2=147 (commit=8500 end=8647)\n\
            lecture-03-05-events/3=0 (commit=120 end=100) beyond-end=20\n\
            lecture-03-05-events/4=? (commit=? end=7) error=COORDINATOR_LOAD_IN_PROGRESS\n\
            lecture-03-05-events/5=? (commit=3 end=?) below-start=2 error=NOT_LEADER_OR_FOLLOWER";
        assert_eq!(text(&group, false), expected);
        let several = text(&group, true);
        assert_eq!(
            several.lines().nth(3),
            Some("lecture-03-05-events/3=0 (commit=120 end=100) group=G beyond-end=20")
        );
    }

    #[test]
    fn a_group_that_is_not_there_or_not_readable() {
        let not_there = GroupLag { name: "G".to_owned(), coordinator: Some(1), outcome: Ok(None) };
        assert_eq!(text(&not_there, false), "group=\"G\": not described");
        let denied = Err(Error::refused(Api::FindCoordinator, 30, None).at_group("G"));
        let denied = GroupLag { name: "G".to_owned(), coordinator: None, outcome: denied };
        assert!(
            text(&denied, false).starts_with("group=\"G\": unknown: FindCoordinator group \"G\": refused")
        );
        let fields: serde_json::Map<String, Value> =
            json_fields(&denied).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(fields["total_lag"], Value::Null);
        assert!(fields["error"].as_str().is_some_and(|error| error.contains("GROUP_AUTHORIZATION_FAILED")));
    }

    #[test]
    fn the_object_has_the_contracts_members() {
        let group =
            group(vec![partition(2, Ok(Some(8500)), 10, Ok(8647)), partition(3, Ok(None), 0, Err(6))]);
        let fields: serde_json::Map<String, Value> =
            json_fields(&group).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(
            Value::Object(fields),
            json!({
                "group_name": "G", "state": "Stable", "members": 1, "coordinator_node": 1, "total_lag": 147,
                "uncommitted": 1, "unknown": 1,
                "partitions": [
                    {"topic": "lecture-03-05-events", "partition": 2, "current_offset": 8500, "log_start_offset": 10,
                     "log_end_offset": 8647, "lag": 147, "member_id": "m-1", "client_id": "c", "host": "/127.0.0.1"},
                    {"topic": "lecture-03-05-events", "partition": 3, "current_offset": null, "log_start_offset": 0,
                     "log_end_offset": null, "lag": null, "member_id": null, "client_id": null, "host": null,
                     "error": "ListOffsets: refused: NOT_LEADER_OR_FOLLOWER (6)"},
                ],
            })
        );
    }
}
