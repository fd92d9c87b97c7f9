//! A client that speaks any version of any API to a cluster in memory.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};

use crate::broker::cluster::{Cluster, ClusterConfig, ConnId};

pub(super) struct Client {
    pub(super) conn: ConnId,
    received: BytesMut,
    correlation: i32,
}

/// A cluster with a topic `t` of two partitions.
pub(super) fn cluster(nodes: u16, change: impl FnOnce(&mut ClusterConfig)) -> Cluster {
    let mut config = ClusterConfig {
        nodes: (0..nodes).map(|node| ("127.0.0.1".to_owned(), 9092 + node)).collect(),
        topics: vec![("t".to_owned(), 2)],
        wall_ms_at_zero: 1_000_000,
        ..ClusterConfig::default()
    };
    change(&mut config);
    Cluster::new(config)
}

impl Client {
    pub(super) fn connect(cluster: &mut Cluster, node: i32) -> Self {
        let conn = cluster.connect(node, "test", Duration::ZERO).expect("the node is up");
        Client { conn, received: BytesMut::new(), correlation: 0 }
    }

    /// Sends a request; its answer may come later.
    pub(super) fn send<R: Request>(
        &mut self,
        cluster: &mut Cluster,
        version: i16,
        request: &R,
        now: Duration,
    ) {
        self.correlation += 1;
        let key = ApiKey::try_from(R::KEY).expect("a known API");
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(self.correlation)
            .with_client_id(Some(StrBytes::from_static_str("tester")));
        let mut frame = BytesMut::new();
        frame.put_i32(0);
        header.encode(&mut frame, key.request_header_version(version)).expect("encodable header");
        request.encode(&mut frame, version).expect("encodable request");
        let size = i32::try_from(frame.len() - 4).expect("small");
        frame[..4].copy_from_slice(&size.to_be_bytes());
        cluster.receive(self.conn, &frame, now);
    }

    /// The next answer that is there.
    pub(super) fn frame(&mut self, cluster: &mut Cluster) -> Option<Bytes> {
        loop {
            let bytes = cluster.outgoing(self.conn).to_vec();
            if bytes.is_empty() {
                break;
            }
            self.received.extend_from_slice(&bytes);
            cluster.written(self.conn, bytes.len());
        }
        let length = i32::from_be_bytes(*self.received.first_chunk::<4>()?);
        let length = usize::try_from(length).expect("a length");
        if self.received.len() < 4 + length {
            return None;
        }
        let _ = self.received.split_to(4);
        Some(self.received.split_to(length).freeze())
    }

    /// The answer to the newest request, if it is there.
    pub(super) fn answer<R: Request>(&mut self, cluster: &mut Cluster, version: i16) -> Option<R::Response> {
        let mut frame = self.frame(cluster)?;
        let header =
            ResponseHeader::decode(&mut frame, R::Response::header_version(version)).expect("a header");
        assert_eq!(header.correlation_id, self.correlation);
        let response = R::Response::decode(&mut frame, version).expect("an answer");
        assert!(frame.is_empty(), "bytes behind the answer");
        Some(response)
    }

    /// Asks and is answered at once.
    pub(super) fn ask<R: Request>(
        &mut self,
        cluster: &mut Cluster,
        version: i16,
        request: &R,
    ) -> R::Response {
        self.send(cluster, version, request, Duration::ZERO);
        self.answer::<R>(cluster, version).unwrap_or_else(|| panic!("no answer to {} {version}", R::KEY))
    }
}
