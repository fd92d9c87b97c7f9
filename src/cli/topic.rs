//! `topic create|list|describe|delete`.

use clap::{Args, Subcommand};

use super::common::{Common, CommonFlags};
use super::seed::{partitions, replication};
use super::settings::Environment;
use super::usage::{Usage, require};
use super::value;

/// The flags of `topic`.
#[derive(Subcommand, Clone, Debug)]
pub(super) enum TopicFlags {
    /// Make a topic
    Create(CreateFlags),
    /// List the topics
    List(ListFlags),
    /// Show partitions, leaders and replicas of one topic, or of all
    Describe(DescribeFlags),
    /// Delete topics
    Delete(DeleteFlags),
}

/// The flags of `topic create`.
#[derive(Args, Clone, Debug)]
pub(super) struct CreateFlags {
    /// The topic's name
    #[arg(value_name = "NAME", value_parser = value::topic)]
    name: String,

    /// A topic of that name is no error
    #[arg(long)]
    if_not_exists: bool,

    /// Number of partitions
    #[arg(short, long, value_name = "N", default_value = "6", value_parser = partitions)]
    partitions: u32,

    /// Number of replicas
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = replication)]
    replication: u16,

    /// Topic configuration such as cleanup.policy=compact, may be repeated
    #[arg(short = 'c', long, value_name = "NAME=VALUE", value_parser = topic_config)]
    topic_config: Vec<(String, String)>,

    #[command(flatten)]
    common: CommonFlags,
}

/// The flags of `topic list`.
#[derive(Args, Clone, Debug)]
pub(super) struct ListFlags {
    #[command(flatten)]
    common: CommonFlags,
}

/// The flags of `topic describe`.
#[derive(Args, Clone, Debug)]
pub(super) struct DescribeFlags {
    /// The topic; all if left out
    #[arg(value_name = "NAME", value_parser = value::topic)]
    name: Option<String>,

    #[command(flatten)]
    common: CommonFlags,
}

/// The flags of `topic delete`.
#[derive(Args, Clone, Debug)]
pub(super) struct DeleteFlags {
    /// Topics to delete
    #[arg(value_name = "NAME", required = true, value_parser = value::topic)]
    name: Vec<String>,

    #[command(flatten)]
    common: CommonFlags,
}

impl TopicFlags {
    pub(super) fn resolve(self, environment: &Environment) -> Result<TopicCommand, Usage> {
        let common = |flags: CommonFlags| flags.layers(environment).and_then(|layers| flags.resolve(layers));
        match self {
            TopicFlags::Create(flags) => {
                for (index, (name, _)) in flags.topic_config.iter().enumerate() {
                    let earlier = flags.topic_config[..index].iter().any(|(earlier, _)| earlier == name);
                    require!(!earlier, "-c {name} is given twice: give it once");
                }
                Ok(TopicCommand::Create(TopicCreate {
                    common: common(flags.common)?,
                    name: flags.name,
                    if_not_exists: flags.if_not_exists,
                    partitions: flags.partitions,
                    replication: flags.replication,
                    configs: flags.topic_config,
                }))
            }
            TopicFlags::List(flags) => Ok(TopicCommand::List(common(flags.common)?)),
            TopicFlags::Describe(flags) => Ok(TopicCommand::Describe(common(flags.common)?, flags.name)),
            TopicFlags::Delete(flags) => {
                Ok(TopicCommand::Delete(common(flags.common)?, value::without_repetition(flags.name)))
            }
        }
    }
}

fn topic_config(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), value.to_owned())),
        _ => Err(format!("'{text}' is not NAME=VALUE, such as cleanup.policy=compact")),
    }
}

/// `topic`, resolved.
#[derive(Clone, Debug, PartialEq)]
pub enum TopicCommand {
    /// `topic create`.
    Create(TopicCreate),
    /// `topic list`.
    List(Common),
    /// `topic describe`: one topic, or all.
    Describe(Common, Option<String>),
    /// `topic delete`: these topics, without repetition; never empty.
    Delete(Common, Vec<String>),
}

impl TopicCommand {
    /// What every subcommand needs.
    pub fn common(&self) -> &Common {
        match self {
            TopicCommand::Create(create) => &create.common,
            TopicCommand::List(common)
            | TopicCommand::Describe(common, _)
            | TopicCommand::Delete(common, _) => common,
        }
    }
}

/// `topic create`, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicCreate {
    /// What every subcommand needs.
    pub common: Common,
    /// The topic's name.
    pub name: String,
    /// A topic of that name is no error.
    pub if_not_exists: bool,
    /// At least 1.
    pub partitions: u32,
    /// At least 1.
    pub replication: u16,
    /// Topic configuration.
    pub configs: Vec<(String, String)>,
}
