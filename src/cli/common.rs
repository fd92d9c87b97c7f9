//! What every subcommand takes: brokers, properties, output format, verbosity.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};

use super::address::{self, Address, AddressList};
use super::settings::{Environment, FromEnvironment, Layers, Setting};
use super::usage::{Usage, require};
use super::value;

/// The flags that every subcommand shares.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Common options")]
pub(super) struct CommonFlags {
    /// Brokers to start from, port 9092 unless given [env: KAFKA_BROKERS] [default: 127.0.0.1:9092]
    #[arg(short, long, alias = "bootstrap-server", value_name = "HOST:PORT,...", value_parser = address::list)]
    brokers: Option<AddressList>,

    /// A Java or librdkafka property; NAME=@FILE reads the value from a file, -X list shows the names
    #[arg(short = 'X', value_name = "NAME=VALUE")]
    property: Vec<String>,

    /// A Java client.properties, or (with a name that ends in .conf) a kcat.conf [env: KEYLANE_CONFIG]
    #[arg(short = 'F', long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// How long a broker that owes an answer may stay silent
    #[arg(long, value_name = "D", default_value = "10s", value_parser = value::timeout_not_zero)]
    pub(super) request_timeout: Duration,

    #[command(flatten)]
    output: OutputFlags,
}

/// How much is said, and how.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Common options")]
pub(super) struct OutputFlags {
    /// Write text, or JSON: one object a line, on stderr too
    #[arg(long, value_name = "text|json", default_value = "text", value_parser = OutputFormat::parse)]
    format: OutputFormat,

    /// Say more
    #[arg(short, long, action = ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,

    /// Say errors only
    #[arg(short, long)]
    quiet: bool,
}

impl OutputFlags {
    pub(super) fn resolve(self) -> Output {
        Output {
            format: self.format,
            verbosity: match (self.verbose, self.quiet) {
                (_, true) => Verbosity::Errors,
                (0, false) => Verbosity::Normal,
                (_, false) => Verbosity::More,
            },
        }
    }
}

impl CommonFlags {
    /// The layers below the flags.
    pub(super) fn layers<'a>(&self, environment: &'a Environment) -> Result<Layers<'a>, Usage> {
        Layers::new(environment, &self.property, self.config.as_deref())
    }

    /// Comes last: what the layers have to say at start goes along.
    pub(super) fn resolve(self, mut layers: Layers<'_>) -> Result<Common, Usage> {
        let brokers = layers.pick(
            self.brokers,
            &Setting {
                flag: "--brokers",
                variable: Some(("KAFKA_BROKERS", address::list)),
                property: Some(("bootstrap.servers", address::list)),
            },
        )?;
        let protocol = layers.property("security.protocol", |text| Ok(text.to_ascii_uppercase()))?;
        if let Some(protocol) = protocol {
            require!(
                protocol == "PLAINTEXT",
                "security.protocol={protocol}: this version has no TLS and no SASL yet; PLAINTEXT alone works"
            );
        }
        Ok(Common {
            brokers: brokers.map_or_else(|| vec![("127.0.0.1".to_owned(), 9092)], |list| list.0),
            client_id: layers.property("client.id", value::id)?.unwrap_or_else(|| "keylane".to_owned()),
            client_rack: layers.property("client.rack", value::id)?,
            request_timeout: self.request_timeout,
            output: self.output.resolve(),
            from_environment: layers.from_environment,
            warnings: layers.warnings,
        })
    }
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

/// How much is said, and how, resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// How lines are written.
    pub format: OutputFormat,
    /// How much is said.
    pub verbosity: Verbosity,
}

/// What every client of a cluster needs, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Common {
    /// Where to find the cluster; never empty.
    pub brokers: Vec<Address>,
    /// `client.id`.
    pub client_id: String,
    /// `client.rack`: a replica there may be read from (KIP-392).
    pub client_rack: Option<String>,
    /// How lines are written.
    pub output: Output,
    /// Silence that is allowed on a connection while an answer is due; not zero.
    pub request_timeout: Duration,
    /// Values that came from the environment, to be printed at start.
    pub from_environment: Vec<FromEnvironment>,
    /// To be printed at start.
    pub warnings: Vec<String>,
}
