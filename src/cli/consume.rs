//! What `sequential` and `pool` share: topics, group, handler, where to start and when to stop.

use std::time::Duration;

use clap::Args;
use keylane_protocol::client::consumer::{Reset, StartFrom};
use keylane_protocol::group::Assignor;
use keylane_protocol::offsets::Isolation;

use super::common::{Common, CommonFlags};
use super::handler::{Failing, HandlerFlags, lecture_handler};
use super::lecture;
use super::parse::CommandWords;
use super::settings::{Layers, Setting};
use super::usage::{Usage, require};
use super::value;
use crate::handler::HandlerConfig;

/// The flags that both consumers share.
#[derive(Args, Clone, Debug)]
pub(super) struct ConsumeFlags {
    /// Topic to read; pool takes several [default: lecture-03-05-events]
    #[arg(short, long, value_name = "TOPIC", value_parser = value::topic)]
    topic: Vec<String>,

    /// Consumer group; needed for any topic but the lecture's
    #[arg(short, long, value_name = "GROUP", value_parser = value::id)]
    group: Option<String>,

    #[command(flatten)]
    handler: HandlerFlags,

    /// Where a partition without a commit starts; @MS = a time in ms since 1970 [default: earliest]
    #[arg(long, value_name = "earliest|latest|@MS", value_parser = start_from)]
    from: Option<StartFrom>,

    /// Stop when every partition has reached the end that it had when it was first assigned
    #[arg(short, long)]
    exit_at_end: bool,

    /// Stop when the first N delivered records are finished and committed
    #[arg(short = 'n', long, value_name = "N", value_parser = records)]
    records: Option<u64>,

    /// Longest drain after a signal
    #[arg(long, value_name = "D", default_value = "25s", value_parser = value::timeout)]
    drain_timeout: Duration,

    /// Longest drain of a revoked partition; must be below max.poll.interval.ms [default: 10s]
    #[arg(long, value_name = "D", value_parser = value::timeout)]
    revoke_timeout: Option<Duration>,

    /// List of range, roundrobin, sticky, cooperative-sticky, the preferred first [default: cooperative-sticky]
    #[arg(long, value_name = "NAME,...", value_parser = assignors)]
    assignor: Option<Assignors>,

    /// Static membership: this member's name in the group
    #[arg(long, value_name = "ID", value_parser = value::id)]
    instance_id: Option<String>,

    /// Time between progress lines, 0 = none
    #[arg(long, value_name = "D", default_value = "1s", value_parser = value::period)]
    stats: Duration,

    /// read_committed or read_uncommitted [default: read_committed]
    #[arg(long, value_name = "LEVEL", value_parser = isolation)]
    isolation: Option<Isolation>,
}

impl ConsumeFlags {
    /// Comes last, after the consumer's own values.
    pub(super) fn resolve(
        self,
        common: CommonFlags,
        command: Option<CommandWords>,
        mut layers: Layers<'_>,
        lecture_group: &str,
    ) -> Result<Consume, Usage> {
        let mut topics = value::without_repetition(self.topic);
        if topics.is_empty() {
            topics.push(lecture::TOPIC.to_owned());
        }
        let (handler, failing) = self.handler.resolve(command, &mut layers)?;
        let (group, handler) = group_and_handler(&mut layers, &topics, self.group, handler, lecture_group)?;

        refuse_consumer_protocol(&mut layers)?;
        let max_poll_interval = milliseconds(&mut layers, "max.poll.interval.ms", 60_000)?;
        let fetch_max_wait = layers.property("fetch.max.wait.ms", value::milliseconds)?;
        let revoke = Limited {
            name: "--revoke-timeout",
            default: Duration::from_secs(10),
            given: self.revoke_timeout,
        };
        let wait =
            Limited { name: "fetch.max.wait.ms", default: Duration::from_millis(500), given: fetch_max_wait };
        let out_of_range = layers.property("auto.offset.reset", reset)?;
        if out_of_range == Some(Reset::Latest) && self.from.is_none() {
            layers.warnings.push(
                "auto.offset.reset=latest is for offsets out of range; a partition without a commit starts at the \
                 earliest record unless --from latest says otherwise"
                    .to_owned(),
            );
        }
        if self.drain_timeout > max_poll_interval {
            layers.warnings.push(format!(
                "--drain-timeout {}ms is above max.poll.interval.ms={}: a rebalance that begins while this member \
                 drains waits no longer than that, and what still runs then is also run by another member",
                self.drain_timeout.as_millis(),
                max_poll_interval.as_millis()
            ));
        }
        let consume = Consume {
            topics,
            group,
            handler,
            failing,
            from: self.from.unwrap_or(StartFrom::Earliest),
            exit_at_end: self.exit_at_end,
            records_max: self.records,
            drain_timeout: self.drain_timeout,
            revoke_timeout: revoke.below(max_poll_interval, "max.poll.interval.ms", &mut layers),
            assignors: layers
                .pick(self.assignor, &ASSIGNOR)?
                .map_or_else(|| vec![Assignor::CooperativeSticky], |list| list.0),
            instance_id: layers.pick(self.instance_id, &INSTANCE_ID)?,
            stats: Some(self.stats).filter(|stats| !stats.is_zero()),
            isolation: layers.pick(self.isolation, &ISOLATION)?.unwrap_or(Isolation::ReadCommitted),
            out_of_range: out_of_range.unwrap_or(Reset::Earliest),
            session_timeout: milliseconds(&mut layers, "session.timeout.ms", 45_000)?,
            heartbeat_interval: milliseconds(&mut layers, "heartbeat.interval.ms", 1000)?,
            max_poll_interval,
            fetch_max_bytes: layers.property("fetch.max.bytes", fetch_bytes)?,
            max_partition_fetch_bytes: layers
                .property("max.partition.fetch.bytes", fetch_bytes)?
                .unwrap_or(1 << 20),
            fetch_max_wait: wait.below(common.request_timeout, "--request-timeout", &mut layers),
            common: common.resolve(layers)?,
        };
        consume.check()?;
        Ok(consume)
    }
}

const GROUP: Setting<String> =
    Setting { flag: "--group", variable: None, property: Some(("group.id", value::id)) };
const INSTANCE_ID: Setting<String> =
    Setting { flag: "--instance-id", variable: None, property: Some(("group.instance.id", value::id)) };
const ASSIGNOR: Setting<Assignors> = Setting {
    flag: "--assignor",
    variable: None,
    property: Some(("partition.assignment.strategy", assignors)),
};

/// The group and the handler: said, or the lecture's where its topic alone is read.
fn group_and_handler(
    layers: &mut Layers<'_>,
    topics: &[String],
    group: Option<String>,
    handler: Option<HandlerConfig>,
    lecture_group: &str,
) -> Result<(String, HandlerConfig), Usage> {
    let group = layers.pick(group, &GROUP)?;
    let others: Vec<&str> =
        topics.iter().map(String::as_str).filter(|topic| *topic != lecture::TOPIC).collect();
    if others.is_empty() {
        let handler = handler.map_or_else(|| lecture_handler(layers), Ok)?;
        return Ok((group.unwrap_or_else(|| lecture_group.to_owned()), handler));
    }
    let missing = match (&group, &handler) {
        (None, None) => "a group and a handler: add -g GROUP, and -- CMD ARG... or --print FORMAT",
        (None, Some(_)) => "a group: add -g GROUP",
        (Some(_), None) => "a handler: add -- CMD ARG..., --print FORMAT or --work-delay D",
        (Some(_), Some(_)) => "",
    };
    match (group, handler) {
        (Some(group), Some(handler)) => Ok((group, handler)),
        _ => Err(Usage::new(format!(
            "topic {} needs {missing} (defaults, WORK_DELAY included, are for topic {} alone)",
            others.join(", "),
            lecture::TOPIC
        ))),
    }
}

fn refuse_consumer_protocol(layers: &mut Layers<'_>) -> Result<(), Usage> {
    let protocol = layers.property("group.protocol", |text| Ok(text.to_ascii_lowercase()))?;
    require!(
        protocol.as_deref().is_none_or(|protocol| protocol == "classic"),
        "group.protocol={}: this version speaks the classic protocol alone; write classic",
        protocol.unwrap_or_default()
    );
    Ok(())
}

/// A duration that must stay below another one.
struct Limited {
    name: &'static str,
    default: Duration,
    given: Option<Duration>,
}

impl Limited {
    /// What was given (checked later), else the default; a default that does not fit gives way, and that is said.
    fn below(self, limit: Duration, limit_name: &str, layers: &mut Layers<'_>) -> Duration {
        match self.given {
            Some(given) => given,
            None if self.default < limit => self.default,
            None => {
                let half = limit / 2;
                let (half_ms, limit_ms) = (half.as_millis(), limit.as_millis());
                layers.warnings.push(format!(
                    "{} is {half_ms} ms rather than {} ms, to stay below {limit_name} of {limit_ms} ms",
                    self.name,
                    self.default.as_millis()
                ));
                half
            }
        }
    }
}

fn milliseconds(layers: &mut Layers<'_>, name: &'static str, default_ms: u64) -> Result<Duration, Usage> {
    let value = layers.property(name, value::milliseconds_not_zero)?;
    Ok(value.unwrap_or(Duration::from_millis(default_ms)))
}

fn fetch_bytes(text: &str) -> Result<u32, String> {
    value::whole_u32(text, 1, i32::MAX as u32)
}

fn records(text: &str) -> Result<u64, String> {
    value::whole(text, 1, i64::MAX as u64)
}

/// What both consumers need, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Consume {
    /// What every subcommand needs.
    pub common: Common,
    /// Topics to read, without repetition; never empty, and one only for `sequential`.
    pub topics: Vec<String>,
    /// The consumer group.
    pub group: String,
    /// What is done with a record.
    pub handler: HandlerConfig,
    /// What becomes of a record that it fails on.
    pub failing: Failing,
    /// Where a partition without a commit starts.
    pub from: StartFrom,
    /// Stop when every partition has reached the end it had when it was first assigned.
    pub exit_at_end: bool,
    /// Stop when the first that many delivered records are finished; at least 1.
    pub records_max: Option<u64>,
    /// Limit of the drain after a signal.
    pub drain_timeout: Duration,
    /// Limit of the drain of a revoked partition; below `max_poll_interval`.
    pub revoke_timeout: Duration,
    /// Assignors in order of preference, without repetition; never empty.
    pub assignors: Vec<Assignor>,
    /// Static membership.
    pub instance_id: Option<String>,
    /// Time between progress lines; `None` = none.
    pub stats: Option<Duration>,
    /// Which records are delivered, and which end `exit_at_end` means.
    pub isolation: Isolation,
    /// `auto.offset.reset`: what to do when a position is out of range.
    pub out_of_range: Reset,
    /// `session.timeout.ms`.
    pub session_timeout: Duration,
    /// `heartbeat.interval.ms`; below `session_timeout`.
    pub heartbeat_interval: Duration,
    /// `max.poll.interval.ms`: the rebalance timeout of JoinGroup.
    pub max_poll_interval: Duration,
    /// `fetch.max.bytes`; `None` = derive it from the memory limit.
    pub fetch_max_bytes: Option<u32>,
    /// `max.partition.fetch.bytes`.
    pub max_partition_fetch_bytes: u32,
    /// `fetch.max.wait.ms`; below the request timeout.
    pub fetch_max_wait: Duration,
}

impl Consume {
    /// What no single value can tell.
    fn check(&self) -> Result<(), Usage> {
        require!(
            self.heartbeat_interval < self.session_timeout,
            "heartbeat.interval.ms={} must be below session.timeout.ms={}",
            self.heartbeat_interval.as_millis(),
            self.session_timeout.as_millis()
        );
        require!(
            self.revoke_timeout < self.max_poll_interval,
            "--revoke-timeout {}ms must be below max.poll.interval.ms={}, after which the group goes on without \
             this member: lower the one or raise the other",
            self.revoke_timeout.as_millis(),
            self.max_poll_interval.as_millis()
        );
        require!(
            self.fetch_max_wait < self.common.request_timeout,
            "fetch.max.wait.ms={} must be below --request-timeout {}ms: a broker that waits for records is silent",
            self.fetch_max_wait.as_millis(),
            self.common.request_timeout.as_millis()
        );
        Ok(())
    }
}

/// `earliest`, `latest` or `@MS`.
fn start_from(text: &str) -> Result<StartFrom, String> {
    match text {
        "earliest" => Ok(StartFrom::Earliest),
        "latest" => Ok(StartFrom::Latest),
        _ => value::timestamp(text)
            .map(StartFrom::Timestamp)
            .ok_or_else(|| format!("'{text}' is no place to start: write earliest, latest or @MS")),
    }
}

/// Java's words and librdkafka's.
fn reset(text: &str) -> Result<Reset, String> {
    match text {
        "earliest" | "smallest" | "beginning" => Ok(Reset::Earliest),
        "latest" | "largest" | "end" => Ok(Reset::Latest),
        "none" | "error" => Ok(Reset::Fail),
        _ => Err(format!("'{text}' is not one of earliest, latest, none")),
    }
}

/// `--isolation`, whose default depends on the subcommand.
pub(super) const ISOLATION: Setting<Isolation> =
    Setting { flag: "--isolation", variable: None, property: Some(("isolation.level", isolation)) };

/// `read_committed` or `read_uncommitted`.
pub(super) fn isolation(text: &str) -> Result<Isolation, String> {
    let words =
        [("read_committed", Isolation::ReadCommitted), ("read_uncommitted", Isolation::ReadUncommitted)];
    value::word(text, &words)
}

/// A list of assignors as one value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Assignors(Vec<Assignor>);

/// The names on the wire, or those of Java's classes.
fn assignors(text: &str) -> Result<Assignors, String> {
    let words = Assignor::ALL.map(|assignor| (assignor.name(), assignor));
    let mut list = Vec::new();
    for part in text.split(',').map(str::trim) {
        let short = match part.strip_prefix("org.apache.kafka.clients.consumer.") {
            Some("RangeAssignor") => "range",
            Some("RoundRobinAssignor") => "roundrobin",
            Some("StickyAssignor") => "sticky",
            Some("CooperativeStickyAssignor") => "cooperative-sticky",
            _ => part,
        };
        let name = value::word(short, &words)?;
        if list.contains(&name) {
            return Err(format!("'{part}' is listed twice"));
        }
        list.push(name);
    }
    Ok(Assignors(list))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_to_start() {
        assert_eq!(start_from("@0"), Ok(StartFrom::Timestamp(0)));
        for text in ["", "@", "@x", "beginning", "7", "@-1"] {
            assert!(start_from(text).is_err(), "{text}");
        }
    }

    #[test]
    fn assignors_by_both_names() {
        let java = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor, \
                    org.apache.kafka.clients.consumer.RangeAssignor";
        let list = Assignors(vec![Assignor::CooperativeSticky, Assignor::Range]);
        assert_eq!(assignors(java), Ok(list.clone()));
        assert_eq!(assignors("cooperative-sticky,range"), Ok(list));
        for text in ["", "range,", "range,range", "uniform", "Range"] {
            assert!(assignors(text).is_err(), "{text}");
        }
    }
}
