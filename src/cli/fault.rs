//! `--fault SPEC` of `broker`: `WHAT:ACTION[,OPTION…]`.

use std::time::Duration;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::ApiKey;

use super::value;
use crate::broker::fault::{Action, Event, Fault, Kind};

/// The numbers of Kafka's APIs and error codes are below this.
const NUMBERS_END: i16 = 200;
/// Time between two events, unless `every` says otherwise.
const EVERY: Duration = Duration::from_secs(5);
/// How long a node that is restarted stays away, unless said otherwise.
const AWAY: Duration = Duration::from_secs(2);

/// Reads a fault.
pub(super) fn fault(text: &str) -> Result<Fault, String> {
    let mut parts = text.split(',');
    let head = parts.next().unwrap_or_default();
    let (what, action) = head.split_once(':').ok_or_else(|| {
        format!("'{head}' is not WHAT:ACTION: write produce:error=NOT_LEADER_OR_FOLLOWER or group:rebalance")
    })?;
    let kind = match event(what, action)? {
        Some(event) => Kind::Cluster(event, EVERY),
        None => Kind::Requests(api(what)?, request_action(action)?),
    };
    let mut fault = Fault::new(kind, text);
    for part in parts {
        let (name, given) = part.split_once('=').unwrap_or((part, ""));
        option(&mut fault, name, given)?;
    }
    Ok(fault)
}

fn option(fault: &mut Fault, name: &str, given: &str) -> Result<(), String> {
    match (name, &mut fault.kind) {
        ("p", _) => fault.probability = probability(given)?,
        ("nth", Kind::Requests(..)) => fault.nth = Some(value::whole(given, 1, u64::MAX)?),
        ("client", Kind::Requests(..)) => fault.client = Some(value::id(given)?),
        ("every", Kind::Cluster(_, every)) => *every = value::timeout_not_zero(given)?,
        ("times", _) => fault.times = Some(value::whole(given, 1, u64::MAX)?),
        ("after", _) => fault.after = value::duration(given)?,
        ("until", _) => fault.until = Some(value::duration(given)?),
        (_, Kind::Requests(..)) => {
            return Err(format!("'{name}' is not one of p, nth, times, after, until, client"));
        }
        (_, Kind::Cluster(..)) => {
            return Err(format!("'{name}' is not one of every, p, times, after, until"));
        }
    }
    Ok(())
}

fn event(what: &str, action: &str) -> Result<Option<Event>, String> {
    let (verb, given) = action.split_once('=').unwrap_or((action, ""));
    let event = match (what, verb) {
        ("leader", "move") => Event::MoveLeader,
        ("coordinator", "move") => Event::MoveCoordinator,
        ("group", "rebalance") => Event::Rebalance,
        ("node", "restart") if given.is_empty() => Event::Restart(AWAY),
        ("node", "restart") => return Ok(Some(Event::Restart(value::timeout_not_zero(given)?))),
        ("leader" | "coordinator", _) => return Err(format!("'{action}': write {what}:move")),
        ("group", _) => return Err(format!("'{action}': write group:rebalance")),
        ("node", _) => return Err(format!("'{action}': write node:restart or node:restart=2s")),
        _ => return Ok(None),
    };
    if given.is_empty() { Ok(Some(event)) } else { Err(format!("'{verb}' takes no value")) }
}

/// Letters alone, small: `OffsetCommit`, `offset-commit` and `OFFSET_COMMIT` are the same.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn api(what: &str) -> Result<Option<ApiKey>, String> {
    if what == "any" {
        return Ok(None);
    }
    let wanted = plain(what);
    let all = (0..NUMBERS_END).filter_map(|number| ApiKey::try_from(number).ok());
    let found = all.filter(|key| plain(&format!("{key:?}")) == wanted).map(Some).next();
    found.ok_or_else(|| {
        format!(
            "'{what}' is no API of Kafka: write its name, as fetch or offset-commit; or any, leader, coordinator, \
             group, node"
        )
    })
}

fn request_action(action: &str) -> Result<Action, String> {
    let (verb, given) = action.split_once('=').unwrap_or((action, ""));
    match (verb, given) {
        ("error", name) => error(name).map(Action::Error),
        ("delay", range) => {
            let (least, most) = range.split_once("..").unwrap_or((range, range));
            let (least, most) = (value::duration(least)?, value::duration(most)?);
            if least > most {
                return Err(format!("'{range}': the longer time comes second"));
            }
            Ok(Action::Delay(least, most))
        }
        ("drop", "") => Ok(Action::Drop),
        ("reset", "") => Ok(Action::Reset),
        ("lose", "") => Ok(Action::Lose),
        ("cut", "") => Ok(Action::Cut),
        _ => Err(format!("'{action}' is not one of error=NAME, delay=D, drop, reset, lose, cut")),
    }
}

fn error(name: &str) -> Result<i16, String> {
    if let Ok(code) = name.parse::<i16>()
        && code != 0
    {
        return Ok(code);
    }
    let wanted = plain(name);
    let all = (-1..NUMBERS_END).filter_map(ResponseError::try_from_code);
    let known = all.filter(|error| !matches!(error, ResponseError::Unknown(_)));
    let found = known.filter(|error| plain(&format!("{error:?}")) == wanted).map(|error| error.code()).next();
    found.ok_or_else(|| {
        format!("'{name}' is no error of Kafka: write NOT_COORDINATOR, say, or its number, 16")
    })
}

fn probability(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number
        .filter(|number| (0.0..=1.0).contains(number))
        .ok_or_else(|| format!("'{text}' is not a probability: write a number from 0 to 1, as 0.05"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_that_are_right() {
        let fetch =
            fault("fetch:error=NOT_LEADER_OR_FOLLOWER,p=0.25,times=3,after=2s,until=1m,client=c").unwrap();
        assert_eq!(fetch.kind, Kind::Requests(Some(ApiKey::Fetch), Action::Error(6)));
        assert_eq!((fetch.probability, fetch.times, fetch.client.as_deref()), (0.25, Some(3), Some("c")));
        assert_eq!((fetch.after, fetch.until), (Duration::from_secs(2), Some(Duration::from_secs(60))));
        let commit = fault("offset-commit:lose,nth=2").unwrap();
        assert_eq!(commit.kind, Kind::Requests(Some(ApiKey::OffsetCommit), Action::Lose));
        assert_eq!(commit.nth, Some(2));
        let ms = Duration::from_millis;
        assert_eq!(
            fault("any:delay=5ms..20ms").unwrap().kind,
            Kind::Requests(None, Action::Delay(ms(5), ms(20)))
        );
        assert_eq!(
            fault("heartbeat:error=27").unwrap().kind,
            Kind::Requests(Some(ApiKey::Heartbeat), Action::Error(27))
        );
        assert_eq!(fault("leader:move,every=300ms").unwrap().kind, Kind::Cluster(Event::MoveLeader, ms(300)));
        assert_eq!(fault("node:restart=700ms").unwrap().kind, Kind::Cluster(Event::Restart(ms(700)), EVERY));
    }

    #[test]
    fn faults_that_are_wrong_say_what_to_write() {
        for (text, hint) in [
            ("fetch", "WHAT:ACTION"),
            ("fech:drop", "no API"),
            ("fetch:explode", "error=NAME"),
            ("fetch:error=NOPE", "NOT_COORDINATOR"),
            ("fetch:error=0", "NOT_COORDINATOR"),
            ("fetch:drop=1", "error=NAME"),
            ("fetch:drop,p=2", "0 to 1"),
            ("fetch:drop,p=", "0 to 1"),
            ("fetch:drop,every=1s", "p, nth"),
            ("fetch:delay=20ms..5ms", "second"),
            ("leader:fall", "leader:move"),
            ("leader:move,nth=1", "every, p"),
            ("leader:move=1", "no value"),
            ("node:restart=0", "0"),
        ] {
            let error = fault(text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
