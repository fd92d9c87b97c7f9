//! `group list|describe|delete|reset`.

use std::path::PathBuf;
use std::time::Duration;

use super::common::Common;

/// `group`, resolved.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupCommand {
    /// `group list`.
    List(Common),
    /// `group describe`.
    Describe(GroupDescribe),
    /// `group delete`: names or globs (`*`, `?`), never empty.
    Delete(Common, Vec<String>),
    /// `group reset`.
    Reset(GroupReset),
}

impl GroupCommand {
    /// What every subcommand needs.
    pub fn common(&self) -> &Common {
        match self {
            GroupCommand::Describe(describe) => &describe.common,
            GroupCommand::Reset(reset) => &reset.common,
            GroupCommand::List(common) | GroupCommand::Delete(common, _) => common,
        }
    }
}

/// `group describe`, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupDescribe {
    /// What every subcommand needs.
    pub common: Common,
    /// The group.
    pub name: String,
    /// Offsets and lag per partition too.
    pub offsets: bool,
}

/// `group reset`, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupReset {
    /// What every subcommand needs.
    pub common: Common,
    /// The group whose offsets are read and, without `to_group`, set.
    pub name: String,
    /// What is reset; never empty.
    pub topics: Vec<TopicPartitions>,
    /// Where to.
    pub to: ResetTarget,
    /// Set the offsets of this group instead.
    pub to_group: Option<String>,
    /// Write the plan there.
    pub to_file: Option<PathBuf>,
    /// Do it; else say only what would be done.
    pub execute: bool,
}

/// `TOPIC` or `TOPIC:0,1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPartitions {
    /// The topic.
    pub topic: String,
    /// These partitions, without repetition; `None` = all.
    pub partitions: Option<Vec<i32>>,
}

/// Where `group reset` goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResetTarget {
    /// The log's start.
    Earliest,
    /// The log's end.
    Latest,
    /// This offset.
    Offset(i64),
    /// The first record whose timestamp is at least this many ms since 1970.
    Timestamp(i64),
    /// The first record at most this old.
    Ago(Duration),
}
