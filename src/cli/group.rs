//! `group list|describe|delete|reset`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::common::{Common, CommonFlags};
use super::settings::Environment;
use super::usage::{Usage, require};
use super::value;

/// The flags of `group`.
#[derive(Subcommand, Clone, Debug)]
pub(super) enum GroupFlags {
    /// List the groups
    List(ListFlags),
    /// Show a group's state and members
    Describe(DescribeFlags),
    /// Delete groups that have no members
    Delete(DeleteFlags),
    /// Move a group's committed offsets; says only what it would do unless --execute is given
    Reset(ResetFlags),
}

/// The flags of `group list`.
#[derive(Args, Clone, Debug)]
pub(super) struct ListFlags {
    #[command(flatten)]
    common: CommonFlags,
}

/// The flags of `group describe`.
#[derive(Args, Clone, Debug)]
pub(super) struct DescribeFlags {
    /// The group
    #[arg(value_name = "NAME", value_parser = value::id)]
    name: String,

    /// Show committed offset, end and lag of each partition too
    #[arg(long)]
    offsets: bool,

    #[command(flatten)]
    common: CommonFlags,
}

/// The flags of `group delete`.
#[derive(Args, Clone, Debug)]
pub(super) struct DeleteFlags {
    /// Groups to delete, as names or quoted globs ('test-*')
    #[arg(value_name = "NAME|GLOB", required = true, value_parser = value::id)]
    name: Vec<String>,

    #[command(flatten)]
    common: CommonFlags,
}

/// The flags of `group reset`.
#[derive(Args, Clone, Debug)]
pub(super) struct ResetFlags {
    /// The group
    #[arg(value_name = "NAME", value_parser = value::id)]
    name: String,

    /// Topic, or some of its partitions, may be repeated
    #[arg(short, long, value_name = "TOPIC[:0,1]", required = true, value_parser = topic_partitions)]
    topic: Vec<TopicPartitions>,

    /// Where to: an offset, a time (@MS since 1970) or an age (-1h)
    #[arg(
        long,
        value_name = "earliest|latest|OFFSET|@MS|-1h",
        allow_hyphen_values = true,
        value_parser = ResetTarget::parse
    )]
    to: ResetTarget,

    /// Set the offsets of this group instead
    #[arg(long, value_name = "GROUP", value_parser = value::id)]
    to_group: Option<String>,

    /// Write the plan to a file
    #[arg(long, value_name = "FILE")]
    to_file: Option<PathBuf>,

    /// Do it
    #[arg(long)]
    execute: bool,

    #[command(flatten)]
    common: CommonFlags,
}

impl GroupFlags {
    pub(super) fn resolve(self, environment: &Environment) -> Result<GroupCommand, Usage> {
        let common = |flags: CommonFlags| flags.layers(environment).and_then(|layers| flags.resolve(layers));
        match self {
            GroupFlags::List(flags) => Ok(GroupCommand::List(common(flags.common)?)),
            GroupFlags::Describe(flags) => Ok(GroupCommand::Describe(GroupDescribe {
                common: common(flags.common)?,
                name: flags.name,
                offsets: flags.offsets,
            })),
            GroupFlags::Delete(flags) => {
                Ok(GroupCommand::Delete(common(flags.common)?, value::without_repetition(flags.name)))
            }
            GroupFlags::Reset(flags) => {
                for (index, item) in flags.topic.iter().enumerate() {
                    let earlier = flags.topic[..index].iter().any(|earlier| earlier.topic == item.topic);
                    require!(
                        !earlier,
                        "-t {0} is given twice: write -t {0}:0,1 for several partitions",
                        item.topic
                    );
                }
                Ok(GroupCommand::Reset(GroupReset {
                    common: common(flags.common)?,
                    name: flags.name,
                    topics: flags.topic,
                    to: flags.to,
                    to_group: flags.to_group,
                    to_file: flags.to_file,
                    execute: flags.execute,
                }))
            }
        }
    }
}

/// `TOPIC` or `TOPIC:0,1`.
fn topic_partitions(text: &str) -> Result<TopicPartitions, String> {
    let Some((topic, list)) = text.split_once(':') else {
        return Ok(TopicPartitions { topic: value::topic(text)?, partitions: None });
    };
    let number = |part: &str| value::whole(part, 0, i32::MAX as u64).map(|number| number as i32);
    let partitions: Result<Vec<i32>, String> = list.split(',').map(number).collect();
    let partitions = partitions.map_err(|why| format!("{why}: write TOPIC:0,1"))?;
    Ok(TopicPartitions {
        topic: value::topic(topic)?,
        partitions: Some(value::without_repetition(partitions)),
    })
}

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

impl ResetTarget {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no place to go: write earliest, latest, an offset, @MS or -1h");
        match text {
            "earliest" => return Ok(ResetTarget::Earliest),
            "latest" => return Ok(ResetTarget::Latest),
            _ => {}
        }
        if text.starts_with('@') {
            return value::timestamp(text).map(ResetTarget::Timestamp).ok_or_else(wrong);
        }
        if let Some(age) = text.strip_prefix('-') {
            return value::duration(age).map(ResetTarget::Ago).map_err(|_| wrong());
        }
        let offset = value::whole(text, 0, i64::MAX as u64).map_err(|_| wrong())?;
        i64::try_from(offset).map(ResetTarget::Offset).map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        for (text, target) in [
            ("earliest", ResetTarget::Earliest),
            ("latest", ResetTarget::Latest),
            ("0", ResetTarget::Offset(0)),
            ("9223372036854775807", ResetTarget::Offset(i64::MAX)),
            ("@1700000000000", ResetTarget::Timestamp(1_700_000_000_000)),
            ("-1h", ResetTarget::Ago(Duration::from_secs(3600))),
        ] {
            assert_eq!(ResetTarget::parse(text), Ok(target), "{text}");
        }
        for text in ["", "-1", "-", "@", "@-1", "1h", "+5", "9223372036854775808", "--execute"] {
            assert!(ResetTarget::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn topics_and_partitions() {
        let parsed = |partitions| Ok(TopicPartitions { topic: "a".to_owned(), partitions });
        assert_eq!(topic_partitions("a"), parsed(None));
        assert_eq!(topic_partitions("a:0,2,0"), parsed(Some(vec![0, 2])));
        for text in ["", "a:", "a:x", ":0", "a:-1", "a:0,", "a:2147483648"] {
            assert!(topic_partitions(text).is_err(), "{text}");
        }
    }
}
