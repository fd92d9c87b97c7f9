//! Every version that is served is answered, in full and with a bare error, in a form that can be read.

use std::time::Duration;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::api_versions_request::ApiVersionsRequest;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Request, StrBytes};

use super::client::{Client, cluster};
use crate::broker::api::SERVED;
use crate::broker::cluster::Cluster;
use crate::broker::fault::{Action, Fault, Kind};

fn text(value: &'static str) -> StrBytes {
    StrBytes::from_static_str(value)
}

fn topic() -> TopicName {
    TopicName(text("t"))
}

/// Sends the request in every version that is served, to a cluster that carries it out and to one that refuses all.
fn all_versions<R: Request>(mut make: impl FnMut(i16, &Cluster) -> R) {
    let key = ApiKey::try_from(R::KEY).unwrap();
    let (_, min, max) = *SERVED.iter().find(|(served, _, _)| *served == key).expect("served");
    for version in min..=max {
        for refuse in [false, true] {
            let mut cluster = cluster(1, |config| {
                if refuse {
                    config.faults.push(refuse_all(key));
                }
            });
            let mut client = Client::connect(&mut cluster, 1);
            let request = make(version, &cluster);
            client.ask(&mut cluster, version, &request);
            assert_eq!(cluster.next_notice(), None, "{key:?} {version}");
        }
    }
}

fn refuse_all(key: ApiKey) -> Fault {
    Fault::new(Kind::Requests(Some(key), Action::Error(ResponseError::UnknownServerError.code())), "refuse")
}

#[test]
fn api_versions() {
    all_versions(|_, _| ApiVersionsRequest::default());
}

#[test]
fn metadata() {
    all_versions(|version, _| {
        let request = MetadataRequest::default();
        if version == 0 {
            return request.with_topics(Some(Vec::new()));
        }
        let topic = |name| MetadataRequestTopic::default().with_name(Some(TopicName(text(name))));
        request.with_topics(Some(vec![topic("t"), topic("made"), topic("bad name")]))
    });
    all_versions(|version, _| {
        MetadataRequest::default().with_topics(if version == 0 { Some(Vec::new()) } else { None })
    });
}

#[test]
fn find_coordinator() {
    all_versions(|version, _| {
        let request = FindCoordinatorRequest::default();
        if version >= 4 {
            request.with_coordinator_keys(vec![text("a"), text("b")])
        } else {
            request.with_key(text("a"))
        }
    });
}

#[test]
fn topics_made_grown_deleted() {
    all_versions(|_, _| {
        let new = |name| CreatableTopic::default().with_name(TopicName(text(name))).with_num_partitions(3);
        let topics = vec![new("n").with_replication_factor(1), new("t").with_replication_factor(1), new("m")];
        CreateTopicsRequest::default().with_topics(topics)
    });
    all_versions(|_, _| {
        let topic = |name| CreatePartitionsTopic::default().with_name(TopicName(text(name))).with_count(4);
        CreatePartitionsRequest::default().with_topics(vec![topic("t"), topic("none")])
    });
    all_versions(|version, _| {
        let request = DeleteTopicsRequest::default();
        if version >= 6 {
            let named = |name| DeleteTopicState::default().with_name(name);
            request.with_topics(vec![named(Some(topic())), named(None)])
        } else {
            request.with_topic_names(vec![topic(), TopicName(text("none"))])
        }
    });
}

#[test]
fn records() {
    all_versions(|_, cluster| {
        let id = cluster.state.topics.get("t").unwrap().id;
        let partition =
            |index| FetchPartition::default().with_partition(index).with_partition_max_bytes(1 << 20);
        let asked = FetchTopic::default().with_partitions(vec![partition(0), partition(9)]);
        let request = FetchRequest::default().with_max_bytes(1 << 20).with_replica_id(BrokerId(-1));
        request.with_topics(vec![asked.with_topic(topic()).with_topic_id(id)])
    });
    all_versions(|_, _| {
        let at = |index, timestamp| {
            let partition = ListOffsetsPartition::default().with_partition_index(index);
            partition.with_timestamp(timestamp)
        };
        let partitions = vec![at(0, -1), at(0, -2), at(0, -3), at(1, 5), at(9, -1)];
        let topics = ListOffsetsTopic::default().with_name(topic()).with_partitions(partitions);
        ListOffsetsRequest::default().with_topics(vec![topics])
    });
    all_versions(|_, _| {
        let at = |index| OffsetForLeaderPartition::default().with_partition(index).with_leader_epoch(0);
        let topics = OffsetForLeaderTopic::default().with_topic(topic()).with_partitions(vec![at(0), at(9)]);
        OffsetForLeaderEpochRequest::default().with_topics(vec![topics])
    });
    all_versions(|_, _| {
        let at = |index| DeleteRecordsPartition::default().with_partition_index(index).with_offset(-1);
        let topics = DeleteRecordsTopic::default().with_name(topic()).with_partitions(vec![at(0), at(9)]);
        DeleteRecordsRequest::default().with_topics(vec![topics])
    });
}

#[test]
fn descriptions() {
    all_versions(|_, _| DescribeClusterRequest::default());
    all_versions(|_, _| {
        let resource = |kind, name| {
            let resource = DescribeConfigsResource::default().with_resource_type(kind);
            resource.with_resource_name(text(name)).with_configuration_keys(None)
        };
        let resources = vec![resource(2, "t"), resource(2, "none"), resource(4, "1"), resource(8, "1")];
        DescribeConfigsRequest::default().with_resources(resources)
    });
}

#[test]
fn a_version_that_is_not_served_is_told_or_ends_the_connection() {
    let mut cluster = cluster(1, |_| {});
    let mut client = Client::connect(&mut cluster, 1);
    // By hand: kafka-protocol does not encode what it does not know.
    let frame = [0, 0, 0, 11, 0, 18, 0, 99, 0, 0, 0, 1, 255, 255, 0];
    cluster.receive(client.conn, &frame, Duration::ZERO);
    let mut answer = client.frame(&mut cluster).unwrap();
    assert_eq!(answer.split_to(4).as_ref(), [0, 0, 0, 1]);
    let told = <ApiVersionsResponse as kafka_protocol::protocol::Decodable>::decode(&mut answer, 0).unwrap();
    assert_eq!(told.error_code, ResponseError::UnsupportedVersion.code());
    assert_eq!(told.api_keys.len(), SERVED.len());
    let frame = [0, 0, 0, 11, 0, 1, 0, 99, 0, 0, 0, 1, 255, 255, 0];
    cluster.receive(client.conn, &frame, Duration::ZERO);
    assert_eq!(cluster.next_close(), Some(client.conn));
    assert!(cluster.next_notice().unwrap().contains("Fetch version 99"));
}
