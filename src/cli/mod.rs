//! The command line: one file of flags per subcommand, checked and resolved before anything runs.
//!
//! Parsing has no effect. Three steps: clap types the flags; each subcommand's `resolve` fills in environment,
//! configuration file and defaults and refuses contradictions; what remains is a plain [`Command`] that the roles run.

mod address;
#[cfg(feature = "broker")]
mod broker;
mod common;
mod consume;
#[cfg(feature = "broker")]
mod demo;
mod dlq;
#[cfg(feature = "broker")]
mod fault;
mod group;
mod handler;
mod known;
mod known_names;
mod lag;
mod lecture;
mod memory;
mod parse;
mod pool;
mod properties;
mod seed;
mod sequential;
mod settings;
mod topic;
mod usage;
mod value;
mod verify;

pub use address::Address;
#[cfg(feature = "broker")]
pub use broker::Broker;
pub use common::{Common, Output, OutputFormat, Verbosity};
pub use consume::Consume;
#[cfg(feature = "broker")]
pub use demo::{Colour, Demo};
pub use dlq::{DlqCommand, DlqList, DlqReplay};
pub use group::{GroupCommand, GroupDescribe, GroupReset, ResetTarget, TopicPartitions};
pub use handler::Failing;
pub use lag::{Groups, Lag};
pub use memory::MemoryLimit;
pub use parse::{Parsed, parse, wanted_format};
pub use pool::{Dispatch, NullKey, Order, Pool};
pub use seed::{Acks, Compression, Seed};
pub use sequential::Sequential;
pub use settings::{Environment, FromEnvironment};
pub use topic::{TopicCommand, TopicCreate};
pub use usage::Usage;
pub use verify::Verify;

// The wire's own types where the command line has nothing to add.
pub use keylane_protocol::client::consumer::{Reset, StartFrom};
pub use keylane_protocol::group::Assignor;
pub use keylane_protocol::offsets::Isolation;

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
    /// `dlq`.
    Dlq(DlqCommand),
    /// `verify`.
    Verify(Verify),
    /// `broker`.
    #[cfg(feature = "broker")]
    Broker(Broker),
    /// `demo`.
    #[cfg(feature = "broker")]
    Demo(Demo),
}

impl Command {
    /// What every client of a cluster needs; `None` for what is no client.
    pub fn common(&self) -> Option<&Common> {
        Some(match self {
            Command::Seed(seed) => &seed.common,
            Command::Sequential(sequential) => &sequential.consume.common,
            Command::Pool(pool) => &pool.consume.common,
            Command::Lag(lag) => &lag.common,
            Command::Topic(topic) => topic.common(),
            Command::Group(group) => group.common(),
            Command::Dlq(dlq) => dlq.common(),
            Command::Verify(verify) => &verify.common,
            #[cfg(feature = "broker")]
            Command::Broker(_) | Command::Demo(_) => return None,
        })
    }

    /// How lines are written.
    pub fn output(&self) -> Output {
        #[cfg(feature = "broker")]
        match self {
            Command::Broker(broker) => return broker.output,
            Command::Demo(demo) => return demo.output,
            _ => {}
        }
        self.common().map(|common| common.output).unwrap_or_default()
    }
}
