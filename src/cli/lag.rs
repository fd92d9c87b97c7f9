//! `lag`: watches a group.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use keylane_protocol::offsets::Isolation;

use super::common::{Common, CommonFlags};
use super::consume::{ISOLATION, isolation};
use super::lecture;
use super::settings::{Environment, Setting};
use super::usage::Usage;
use super::value;

/// The flags of `lag`.
#[derive(Args, Clone, Debug)]
pub(super) struct LagFlags {
    /// Group to watch, may be repeated [env: LAG_GROUP] [default: lecture-03-05-sequential]
    #[arg(short, long, value_name = "GROUP", value_parser = value::id)]
    group: Vec<String>,

    /// Watch every group of the cluster
    #[arg(long, conflicts_with = "group")]
    all: bool,

    /// Only this topic, may be repeated
    #[arg(short, long, value_name = "TOPIC", value_parser = value::topic)]
    topic: Vec<String>,

    /// Time between two ticks
    #[arg(short, long, value_name = "D", default_value = "2s", value_parser = value::timeout_not_zero)]
    interval: Duration,

    /// One tick, then the end
    #[arg(long)]
    once: bool,

    /// Which end is meant: read_uncommitted or read_committed [default: read_uncommitted]
    #[arg(long, value_name = "LEVEL", value_parser = isolation)]
    isolation: Option<Isolation>,

    /// Serve /metrics and /healthz over HTTP here, such as 127.0.0.1:9401
    #[arg(long, value_name = "IP:PORT", value_parser = value::listen, conflicts_with = "once")]
    listen: Option<SocketAddr>,

    #[command(flatten)]
    common: CommonFlags,
}

impl LagFlags {
    pub(super) fn resolve(self, environment: &Environment) -> Result<Lag, Usage> {
        let mut layers = self.common.layers(environment)?;
        let setting = Setting {
            flag: "--group",
            variable: Some(("LAG_GROUP", one_group)),
            property: Some(("group.id", one_group)),
        };
        let groups = if self.all {
            Groups::All
        } else {
            let flag = Some(value::without_repetition(self.group)).filter(|groups| !groups.is_empty());
            let default = || vec![lecture::GROUP_SEQUENTIAL.to_owned()];
            Groups::Named(layers.pick(flag, &setting)?.unwrap_or_else(default))
        };
        Ok(Lag {
            groups,
            topics: value::without_repetition(self.topic),
            interval: self.interval,
            once: self.once,
            listen: self.listen,
            isolation: layers.pick(self.isolation, &ISOLATION)?.unwrap_or(Isolation::ReadUncommitted),
            common: self.common.resolve(layers)?,
        })
    }
}

fn one_group(text: &str) -> Result<Vec<String>, String> {
    value::id(text).map(|group| vec![group])
}

/// `lag`, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Lag {
    /// What every subcommand needs.
    pub common: Common,
    /// Which groups.
    pub groups: Groups,
    /// Only these topics; empty = every topic that the group has commits or members for.
    pub topics: Vec<String>,
    /// Time between two ticks; not zero.
    pub interval: Duration,
    /// One tick, then the end.
    pub once: bool,
    /// Where metrics are served, if anywhere.
    pub listen: Option<SocketAddr>,
    /// Which end offset is meant.
    pub isolation: Isolation,
}

/// The groups that `lag` watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Groups {
    /// Every group of the cluster.
    All,
    /// These, without repetition; never empty.
    Named(Vec<String>),
}
