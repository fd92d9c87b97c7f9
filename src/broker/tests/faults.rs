//! Faults do what they say, when they are to.

use std::time::Duration;

use kafka_protocol::messages::{ApiKey, FindCoordinatorRequest, MetadataRequest};
use kafka_protocol::protocol::StrBytes;

use super::client::{Client, cluster};
use crate::broker::cluster::Cluster;
use crate::broker::fault::{Action, Event, Fault, Kind};

fn fault(kind: Kind) -> Fault {
    Fault { nth: Some(2), ..Fault::new(kind, "f") }
}

fn find() -> FindCoordinatorRequest {
    FindCoordinatorRequest::default().with_key(StrBytes::from_static_str("g"))
}

/// A cluster whose second FindCoordinator meets the fault, with the first one behind it.
fn second(action: Action) -> (Cluster, Client) {
    let kind = Kind::Requests(Some(ApiKey::FindCoordinator), action);
    let mut cluster = cluster(1, |config| config.faults.push(fault(kind)));
    let mut client = Client::connect(&mut cluster, 1);
    assert_eq!(client.ask(&mut cluster, 3, &find()).error_code, 0);
    client.send(&mut cluster, 3, &find(), Duration::ZERO);
    (cluster, client)
}

#[test]
fn an_error_is_answered_once() {
    let (mut cluster, mut client) = second(Action::Error(15));
    let answer = client.answer::<FindCoordinatorRequest>(&mut cluster, 3).unwrap();
    assert_eq!((answer.error_code, answer.node_id.0), (15, -1));
    assert_eq!(client.ask(&mut cluster, 3, &find()).error_code, 0);
    assert_eq!(cluster.faults_injected().get("f"), Some(&1));
}

#[test]
fn a_delayed_request_holds_back_those_behind_it() {
    let delay = Duration::from_millis(50);
    let (mut cluster, mut client) = second(Action::Delay(delay, delay));
    client.send(&mut cluster, 12, &MetadataRequest::default().with_topics(None), Duration::from_millis(10));
    assert!(client.frame(&mut cluster).is_none());
    assert_eq!(cluster.deadline(), Some(delay));
    cluster.poll(delay);
    let correlations: Vec<u8> = [client.frame(&mut cluster), client.frame(&mut cluster)]
        .into_iter()
        .map(|frame| frame.expect("both are answered")[3])
        .collect();
    assert_eq!(correlations, [2, 3]);
}

#[test]
fn connections_are_cut_before_in_place_of_and_within_the_answer() {
    for (action, sent) in [(Action::Reset, false), (Action::Lose, false), (Action::Cut, true)] {
        let (mut cluster, mut client) = second(action);
        assert_eq!(!cluster.outgoing(client.conn).is_empty(), sent, "{action:?}");
        assert!(client.frame(&mut cluster).is_none());
        assert_eq!(cluster.next_close(), Some(client.conn), "{action:?}");
    }
    let (mut cluster, mut client) = second(Action::Drop);
    cluster.poll(Duration::from_secs(3600));
    assert!(client.frame(&mut cluster).is_none());
    assert_eq!(cluster.next_close(), None);
}

#[test]
fn a_node_goes_down_and_comes_back() {
    let away = Duration::from_secs(1);
    let kind = Kind::Cluster(Event::Restart(away), Duration::from_secs(10));
    let mut cluster =
        cluster(2, |config| config.faults.push(Fault { nth: None, times: Some(1), ..fault(kind) }));
    let due = cluster.deadline().unwrap();
    assert_eq!(due, Duration::from_secs(10));
    cluster.poll(due);
    let up = |cluster: &mut Cluster| {
        [1, 2].into_iter().filter(|node| cluster.connect(*node, "", due).is_some()).count()
    };
    assert_eq!(up(&mut cluster), 1);
    assert_eq!(cluster.deadline(), Some(due + away));
    cluster.poll(due + away);
    assert_eq!(up(&mut cluster), 2);
    assert_eq!(cluster.deadline(), None);
}
