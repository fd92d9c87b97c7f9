//! What every subcommand takes: brokers, properties, output format, verbosity.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::address::{self, Address, AddressList};
use super::settings::{FromEnvironment, Layers, Setting};
use super::usage::Usage;
use super::value;

/// The flags that every subcommand shares.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Common options")]
pub(super) struct CommonFlags {
    /// Brokers to start from, port 9092 unless given [env: KAFKA_BROKERS] [default: 127.0.0.1:9092]
    #[arg(short, long, alias = "bootstrap-server", value_name = "HOST:PORT,…", value_parser = address::list)]
    pub(super) brokers: Option<AddressList>,

    /// A Java or librdkafka property; NAME=@FILE takes the value from a file, `-X list` shows the names
    #[arg(short = 'X', value_name = "NAME=VALUE")]
    pub(super) property: Vec<String>,

    /// A Java client.properties, or a kcat.conf (any name that ends in .conf) [env: KEYLANE_CONFIG]
    #[arg(short = 'F', long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Lines for people, or one JSON object a line with `type` and `time`, on stderr too
    #[arg(long, value_name = "text|json", default_value = "text", value_parser = OutputFormat::parse)]
    pub(super) format: OutputFormat,

    /// How long a broker that owes an answer may stay silent
    #[arg(long, value_name = "D", default_value = "10s", value_parser = value::timeout_not_zero)]
    pub(super) request_timeout: Duration,

    /// Say more
    #[arg(short, long, conflicts_with = "quiet")]
    pub(super) verbose: bool,

    /// Say errors only
    #[arg(short, long)]
    pub(super) quiet: bool,
}

/// How lines are written, on stdout and on stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputFormat {
    /// For people.
    #[default]
    Text,
    /// One object a line.
    Json,
}

impl OutputFormat {
    fn parse(text: &str) -> Result<Self, String> {
        value::word(text, &[("text", Self::Text), ("json", Self::Json)])
    }
}

/// How much is said on stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// `-q`: errors only.
    Errors,
    /// What the contract shows.
    #[default]
    Normal,
    /// `-v`: connections, rebalance steps and the like.
    More,
}

/// What every subcommand needs, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Common {
    /// Where to find the cluster; never empty.
    pub brokers: Vec<Address>,
    /// `client.id`.
    pub client_id: String,
    /// `client.rack`: a replica there may be read from (KIP-392).
    pub client_rack: Option<String>,
    /// How lines are written.
    pub format: OutputFormat,
    /// Silence that is allowed on a connection while an answer is due; not zero.
    pub request_timeout: Duration,
    /// How much is said.
    pub verbosity: Verbosity,
    /// Values that came from the environment, to be printed at start; secrets are masked.
    pub from_environment: Vec<FromEnvironment>,
    /// To be printed at start.
    pub warnings: Vec<String>,
}
