//! `topic create|list|describe|delete`.

use super::common::Common;

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
