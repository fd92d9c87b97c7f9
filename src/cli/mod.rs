//! The command line: one file of flags per subcommand, checked and resolved before anything runs.
//!
//! Parsing has no effect. Three steps: clap types the flags; each subcommand's `resolve` fills in environment,
//! configuration file and defaults and refuses contradictions; what remains is a plain [`Command`] that the roles run.

mod address;
mod common;
mod consume;
mod group;
mod known;
mod known_names;
mod lag;
mod memory;
mod pool;
mod properties;
mod seed;
mod sequential;
mod settings;
mod topic;
mod usage;
mod value;

pub use address::Address;
pub use common::{Common, OutputFormat, Verbosity};
pub use consume::{AssignorName, Consume, From, Isolation, OutOfRange};
pub use group::{GroupCommand, GroupDescribe, GroupReset, ResetTarget, TopicPartitions};
pub use lag::{Groups, Lag};
pub use memory::MemoryLimit;
pub use pool::{Dispatch, NullKey, Order, Pool};
pub use seed::{Acks, Compression, Seed};
pub use sequential::Sequential;
pub use settings::{Environment, FromEnvironment};
pub use topic::{TopicCommand, TopicCreate};
pub use usage::Usage;

/// What to run, resolved: nothing in it depends on flags, environment or files any more.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// `seed`.
    Seed(Seed),
    /// `sequential`.
    Sequential(Sequential),
    /// `pool`.
    Pool(Pool),
    /// `lag`.
    Lag(Lag),
    /// `topic`.
    Topic(TopicCommand),
    /// `group`.
    Group(GroupCommand),
}

impl Command {
    /// What every subcommand needs.
    pub fn common(&self) -> &Common {
        match self {
            Command::Seed(seed) => &seed.common,
            Command::Sequential(sequential) => &sequential.consume.common,
            Command::Pool(pool) => &pool.consume.common,
            Command::Lag(lag) => &lag.common,
            Command::Topic(topic) => topic.common(),
            Command::Group(group) => group.common(),
        }
    }
}
