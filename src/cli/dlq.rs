//! `dlq list|replay`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::common::{Common, CommonFlags};
use super::settings::Environment;
use super::usage::Usage;
use super::value;

/// The flags of `dlq`.
#[derive(Subcommand, Clone, Debug)]
pub(super) enum DlqFlags {
    /// List the dead letters of a topic
    List(ListFlags),
    /// Send dead letters back to where they came from; says only what it would do unless --execute is given
    Replay(ReplayFlags),
}

/// Which dead letters.
#[derive(Args, Clone, Debug)]
struct Letters {
    /// The dead-letter topic
    #[arg(short, long, value_name = "DLQ", required = true, value_parser = value::topic)]
    topic: String,

    /// Only those with this key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// Only those whose timestamp (the record's own, unless the topic has log-append time) is this recent
    #[arg(long, value_name = "D", value_parser = value::duration)]
    since: Option<Duration>,
}

/// The flags of `dlq list`.
#[derive(Args, Clone, Debug)]
pub(super) struct ListFlags {
    #[command(flatten)]
    letters: Letters,

    #[command(flatten)]
    common: CommonFlags,
}

/// The flags of `dlq replay`.
#[derive(Args, Clone, Debug)]
pub(super) struct ReplayFlags {
    #[command(flatten)]
    letters: Letters,

    /// Do it; progress is committed in group DLQ.replay, but not with --key or --since: those would be sent again
    #[arg(long)]
    execute: bool,

    #[command(flatten)]
    common: CommonFlags,
}

impl DlqFlags {
    pub(super) fn resolve(self, environment: &Environment) -> Result<DlqCommand, Usage> {
        let common = |flags: CommonFlags| flags.layers(environment).and_then(|layers| flags.resolve(layers));
        Ok(match self {
            DlqFlags::List(ListFlags { letters: Letters { topic, key, since }, common: flags }) => {
                DlqCommand::List(DlqList { common: common(flags)?, topic, key, since })
            }
            DlqFlags::Replay(ReplayFlags { letters, execute, common: flags }) => {
                let Letters { topic, key, since } = letters;
                DlqCommand::Replay(DlqReplay { common: common(flags)?, topic, key, since, execute })
            }
        })
    }
}

/// `dlq`, resolved.
#[derive(Clone, Debug, PartialEq)]
pub enum DlqCommand {
    /// `dlq list`.
    List(DlqList),
    /// `dlq replay`.
    Replay(DlqReplay),
}

impl DlqCommand {
    /// What every client of a cluster needs.
    pub fn common(&self) -> &Common {
        match self {
            DlqCommand::List(list) => &list.common,
            DlqCommand::Replay(replay) => &replay.common,
        }
    }
}

/// `dlq list`, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct DlqList {
    /// What every subcommand needs.
    pub common: Common,
    /// The dead-letter topic.
    pub topic: String,
    /// Only those with this key.
    pub key: Option<String>,
    /// Only those whose timestamp is within this time before now.
    pub since: Option<Duration>,
}

/// `dlq replay`, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct DlqReplay {
    /// What every subcommand needs.
    pub common: Common,
    /// The dead-letter topic.
    pub topic: String,
    /// Only those with this key.
    pub key: Option<String>,
    /// Only those whose timestamp is within this time before now.
    pub since: Option<Duration>,
    /// Do it, rather than say what would be done.
    pub execute: bool,
}
