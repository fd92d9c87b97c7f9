//! DescribeCluster: <https://kafka.apache.org/protocol#The_Messages_DescribeCluster> (KIP-700).

use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::{ApiKey, BrokerId, DescribeClusterRequest, DescribeClusterResponse};

use super::{Api, Call, text};
use crate::broker::cluster::CLUSTER_ID;
use crate::broker::state::State;

pub(crate) struct DescribeCluster;

impl Api for DescribeCluster {
    const KEY: ApiKey = ApiKey::DescribeCluster;
    const VERSIONS: (i16, i16) = (0, 2);
    type Request = DescribeClusterRequest;
    type Response = DescribeClusterResponse;

    fn handle(state: &mut State, _: &Call<'_>, _: DescribeClusterRequest) -> Option<DescribeClusterResponse> {
        let brokers = state.nodes_up().map(|node| {
            let broker = DescribeClusterBroker::default().with_broker_id(BrokerId(node.id));
            broker.with_host(node.host.clone()).with_port(i32::from(node.port))
        });
        let response = DescribeClusterResponse::default()
            .with_cluster_id(text(CLUSTER_ID))
            .with_controller_id(BrokerId(state.controller()))
            .with_brokers(brokers.collect());
        Some(response)
    }

    fn refuse(_: &DescribeClusterRequest, _: &Call<'_>, code: i16) -> DescribeClusterResponse {
        DescribeClusterResponse::default().with_error_code(code)
    }
}
