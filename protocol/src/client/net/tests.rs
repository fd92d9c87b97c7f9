//! Links to nodes that move or go away.

use std::time::Duration;

use kafka_protocol::messages::HeartbeatRequest;

use super::{LinkId, Net, NetConfig, NetEvent, Purpose, To};
use crate::metadata::Broker;

const NODE: To = To::Node(2, Purpose::Fetch);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// One that knows node 2.
fn net() -> Net<u32> {
    let mut net = Net::new(NetConfig {
        bootstrap: vec![("boot".to_owned(), 1)],
        client_id: "test".to_owned(),
        request_timeout: ms(10_000),
        reconnect_backoff: ms(50),
        reconnect_backoff_max: ms(50),
        metadata_age_max: ms(30_000),
        seed: 1,
    });
    put(&mut net, "n2");
    net
}

fn put(net: &mut Net<u32>, host: &str) {
    net.metadata_mut().brokers.insert(2, Broker { host: host.to_owned(), port: 9, rack: None });
}

fn send(net: &mut Net<u32>, tag: u32, now: Duration) {
    net.send(NODE, HeartbeatRequest::default(), tag, Duration::ZERO, now);
}

/// The connection to the node that is to be made; those for metadata go to the bootstrap address.
fn connect(net: &mut Net<u32>) -> Option<(LinkId, String)> {
    let all = std::iter::from_fn(|| net.poll_connect());
    all.map(|(id, host, _)| (id, host)).find(|(_, host)| host != "boot")
}

fn failed(net: &mut Net<u32>) -> Vec<u32> {
    let events = std::iter::from_fn(|| net.next_event());
    let outcomes = events.filter_map(|event| match event {
        NetEvent::Outcome(tag, Err(_)) => Some(tag),
        _ => None,
    });
    outcomes.collect()
}

/// Simulator: a node went away while its connection was about to be made anew. Another broker was connected to in its
/// place, and after it had come back too: it got the node's fetches, refused them, and nothing was read for ever.
#[test]
fn a_node_that_is_gone_is_not_looked_for_elsewhere() {
    let mut net = net();
    send(&mut net, 1, ms(0));
    let (id, host) = connect(&mut net).expect("a connection is wanted");
    assert_eq!(host, "n2");
    net.on_disconnected(id, "refused", ms(0));
    send(&mut net, 2, ms(1));
    net.metadata_mut().brokers.remove(&2);
    net.on_timeout(ms(100));
    let wanted: Vec<LinkId> = std::iter::from_fn(|| net.poll_connect()).map(|(id, ..)| id).collect();
    assert!(!wanted.contains(&id), "neither there nor at the bootstrap address");
    net.drop_moved_links(ms(100));
    assert_eq!(failed(&mut net), [1, 2]);
    put(&mut net, "n2");
    send(&mut net, 3, ms(200));
    net.on_timeout(ms(1_000));
    assert_eq!(connect(&mut net), Some((id, "n2".to_owned())));
}

#[test]
fn a_node_with_another_address_is_connected_to_anew() {
    let mut net = net();
    send(&mut net, 1, ms(0));
    let (id, _) = connect(&mut net).expect("a connection is wanted");
    net.on_connected(id, ms(0));
    net.drop_moved_links(ms(0));
    assert_eq!(net.poll_close(), None, "nothing has changed");
    put(&mut net, "n3");
    net.drop_moved_links(ms(10));
    assert_eq!(net.poll_close(), Some(id));
    assert_eq!(failed(&mut net), [1]);
    send(&mut net, 2, ms(20));
    net.on_timeout(ms(1_000));
    assert_eq!(connect(&mut net), Some((id, "n3".to_owned())));
}

/// A connection that comes when its link has failed is closed, not used: another address may be the node's by now.
#[test]
fn a_connection_that_is_not_wanted_any_more_is_none() {
    let mut net = net();
    send(&mut net, 1, ms(0));
    let (id, _) = connect(&mut net).expect("a connection is wanted");
    put(&mut net, "n3");
    net.drop_moved_links(ms(0));
    net.on_connected(id, ms(0));
    assert!(net.space(id).is_none() && !net.is_ready(NODE));
    assert_eq!((net.poll_close(), failed(&mut net)), (Some(id), vec![1]));
    send(&mut net, 2, ms(20));
    net.on_timeout(ms(1_000));
    assert_eq!(connect(&mut net), Some((id, "n3".to_owned())));
    net.on_connected(id, ms(1_000));
    assert!(net.space(id).is_some());
    // And one that comes twice takes nothing from the one that is in use.
    net.on_connected(id, ms(1_000));
    assert_eq!(failed(&mut net), [0; 0]);
    net.on_disconnected(id, "gone", ms(1_001));
    assert_eq!(failed(&mut net), [2]);
}

#[test]
fn a_group_that_was_refused_is_asked_for_again() {
    use crate::api::Response;
    use crate::error::code;
    use kafka_protocol::messages::FindCoordinatorResponse;
    let mut net = net();
    assert!(net.coordinator("g", ms(0)).is_ok_and(|node| node.is_none()));
    let refused = FindCoordinatorResponse::default().with_error_code(code::GROUP_AUTHORIZATION_FAILED);
    net.coordinator_outcome("g", Ok(Response::FindCoordinator(refused)), ms(10));
    assert!(net.coordinator("g", ms(20)).is_err());
    assert!(net.coordinator("g", ms(1_010)).is_ok_and(|node| node.is_none()));
    let granted = FindCoordinatorResponse::default().with_node_id(2.into());
    net.coordinator_outcome("g", Ok(Response::FindCoordinator(granted)), ms(1_020));
    assert!(net.coordinator("g", ms(1_020)).is_ok_and(|node| node == Some(2)));
}
