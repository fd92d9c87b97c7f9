//! Topics, nodes and leaders.

use std::time::Duration;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::{BrokerId, ListOffsetsRequest, MetadataRequest, TopicName};
use kafka_protocol::protocol::StrBytes;

use super::client::{Client, cluster};
use crate::broker::cluster::Cluster;

fn leaders(cluster: &mut Cluster, client: &mut Client) -> Vec<(i32, i32)> {
    let metadata = client.ask(cluster, 12, &MetadataRequest::default().with_topics(None));
    let topic =
        metadata.topics.iter().find(|topic| topic.name.as_ref().is_some_and(|name| name.as_str() == "t"));
    topic.unwrap().partitions.iter().map(|found| (found.leader_id.0, found.leader_epoch)).collect()
}

fn end_of(cluster: &mut Cluster, client: &mut Client, partition: i32, epoch: i32) -> i16 {
    let asked = ListOffsetsPartition::default().with_partition_index(partition).with_timestamp(-1);
    let topic = ListOffsetsTopic::default().with_name(TopicName(StrBytes::from_static_str("t")));
    let topic = topic.with_partitions(vec![asked.with_current_leader_epoch(epoch)]);
    let response = client.ask(cluster, 7, &ListOffsetsRequest::default().with_topics(vec![topic]));
    response.topics[0].partitions[0].error_code
}

#[test]
fn leaders_are_spread_and_move_with_their_epoch() {
    let mut cluster = cluster(2, |_| {});
    let mut client = Client::connect(&mut cluster, 1);
    let before = leaders(&mut cluster, &mut client);
    assert_ne!(before[0].0, before[1].0);
    let mine = before.iter().position(|(leader, _)| *leader == 1).unwrap();
    let partition = i32::try_from(mine).unwrap();
    assert_eq!(end_of(&mut cluster, &mut client, partition, 0), 0);
    assert_eq!(end_of(&mut cluster, &mut client, partition, 1), ResponseError::UnknownLeaderEpoch.code());
    cluster.move_leader("t", partition);
    assert_eq!(leaders(&mut cluster, &mut client)[mine], (2, 1));
    assert_eq!(end_of(&mut cluster, &mut client, partition, 0), ResponseError::NotLeaderOrFollower.code());
    cluster.move_leader("t", partition);
    assert_eq!(end_of(&mut cluster, &mut client, partition, 1), ResponseError::FencedLeaderEpoch.code());
}

#[test]
fn a_node_that_goes_down_leaves_its_work_to_others() {
    let mut cluster = cluster(2, |_| {});
    let mut one = Client::connect(&mut cluster, 1);
    let two = Client::connect(&mut cluster, 2);
    cluster.stop_node(2, Duration::ZERO);
    assert_eq!(cluster.next_close(), Some(two.conn));
    assert_eq!(cluster.connect(2, "test", Duration::ZERO), None);
    assert!(leaders(&mut cluster, &mut one).iter().all(|(leader, _)| *leader == 1));
    let metadata = one.ask(&mut cluster, 12, &MetadataRequest::default().with_topics(None));
    assert_eq!(metadata.brokers.len(), 1);
    assert_eq!(metadata.controller_id, BrokerId(1));
    cluster.start_node(2, Duration::ZERO);
    assert!(cluster.connect(2, "test", Duration::ZERO).is_some());
}

#[test]
fn the_last_node_keeps_what_it_led() {
    let mut cluster = cluster(1, |_| {});
    cluster.stop_node(1, Duration::ZERO);
    cluster.start_node(1, Duration::from_secs(1));
    let mut client = Client::connect(&mut cluster, 1);
    assert!(leaders(&mut cluster, &mut client).iter().all(|(leader, _)| *leader == 1));
}
