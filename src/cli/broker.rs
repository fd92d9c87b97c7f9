//! `broker`: an in-memory Kafka for development and tests.

use std::net::{SocketAddr, ToSocketAddrs};

use clap::Args;

use super::common::{Output, OutputFlags};
use super::fault::fault;
use super::usage::{Usage, require};
use super::value;
use crate::broker::fault::Fault;

const EXAMPLES: &str = "\
Faults, WHAT:ACTION[,OPTION...]:
  an API of Kafka, or any:  error=NAME  delay=D or D..D  drop (no answer)  reset (cut before)
                            lose (cut in place of the answer)  cut (cut within the answer)
  the cluster:              leader:move  coordinator:move  group:rebalance  node:restart=D
  options:                  p=0.05  nth=3  times=10  after=5s  until=1m  client=ID; every=5s for the cluster
Examples: keylane broker --topic orders:12
          keylane broker --nodes 3 --fault leader:move,every=10s
          keylane broker --fault produce:error=NOT_LEADER_OR_FOLLOWER,p=0.01 --fault fetch:delay=50ms..200ms
          keylane broker --fault offset-commit:lose,nth=3 --fault group:rebalance,every=20s,after=1m
";

/// The flags of `broker`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct BrokerFlags {
    /// Where to listen; port 0 takes free ones, and the line on stdout says which
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9092", value_parser = listen)]
    listen: SocketAddr,

    /// The host that clients are told [default: the one of --listen]
    #[arg(long, value_name = "HOST", value_parser = value::id)]
    advertise: Option<String>,

    /// Nodes of the cluster, on this port and those behind it
    #[arg(long, value_name = "N", default_value = "1", value_parser = nodes)]
    nodes: u16,

    /// A topic to begin with, may be repeated
    #[arg(short, long, value_name = "NAME:PARTITIONS", value_parser = topic)]
    topic: Vec<(String, i32)>,

    /// Partitions of a topic that a client makes by naming it; 0: none are made
    #[arg(long, value_name = "N", default_value = "6", value_parser = partitions)]
    auto_create: i32,

    /// Bytes of records kept; beyond that the oldest go
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = value::size)]
    retain: u64,

    /// Something to go wrong, may be repeated (see below)
    #[arg(long, value_name = "SPEC", value_parser = fault)]
    fault: Vec<Fault>,

    /// Of the chance in --fault: the same requests at the same times get the same faults
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,

    #[command(flatten)]
    output: OutputFlags,
}

impl BrokerFlags {
    pub(super) fn resolve(self) -> Result<Broker, Usage> {
        let last_port = u32::from(self.listen.port()) + u32::from(self.nodes) - 1;
        require!(
            last_port <= u32::from(u16::MAX),
            "--nodes {}: there are not so many ports behind {}",
            self.nodes,
            self.listen.port()
        );
        for (index, (name, _)) in self.topic.iter().enumerate() {
            let again = self.topic[..index].iter().any(|(other, _)| other == name);
            require!(!again, "--topic {name} is given twice");
        }
        let own = if self.listen.ip().is_unspecified() {
            "127.0.0.1".to_owned()
        } else {
            self.listen.ip().to_string()
        };
        Ok(Broker {
            listen: self.listen,
            advertise: self.advertise.unwrap_or(own),
            nodes: self.nodes,
            topics: self.topic,
            auto_create: (self.auto_create > 0).then_some(self.auto_create),
            retain_bytes: self.retain,
            faults: self.fault,
            seed: self.seed,
            output: self.output.resolve(),
        })
    }
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    let wrong = || format!("'{text}' is not an address to listen at: write 127.0.0.1:9092 or [::1]:0");
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    // No resolver while parsing: of names, only the one that needs none.
    let port = text.strip_prefix("localhost:").ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    ("127.0.0.1", port).to_socket_addrs().ok().and_then(|mut all| all.next()).ok_or_else(wrong)
}

fn nodes(text: &str) -> Result<u16, String> {
    let number = value::whole_u32(text, 1, 100)?;
    u16::try_from(number).map_err(|_| format!("'{text}' is too large"))
}

fn partitions(text: &str) -> Result<i32, String> {
    let number = value::whole_u32(text, 0, 10_000)?;
    i32::try_from(number).map_err(|_| format!("'{text}' is too large"))
}

fn topic(text: &str) -> Result<(String, i32), String> {
    let (name, count) = text
        .rsplit_once(':')
        .ok_or_else(|| format!("'{text}' is not NAME:PARTITIONS: write {text}:6, say"))?;
    let count = value::whole_u32(count, 1, 10_000)?;
    Ok((value::topic(name)?, i32::try_from(count).map_err(|_| format!("'{text}' is too large"))?))
}

/// `broker`, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Broker {
    /// Of the first node; port 0 for any free ports.
    pub listen: SocketAddr,
    /// The host that clients are told.
    pub advertise: String,
    /// Number of nodes, at least 1.
    pub nodes: u16,
    /// Topics to begin with, and their partitions.
    pub topics: Vec<(String, i32)>,
    /// Partitions of topics that are made by naming them.
    pub auto_create: Option<i32>,
    /// Bytes of records kept.
    pub retain_bytes: u64,
    /// What is to go wrong.
    pub faults: Vec<Fault>,
    /// Of the chance in it.
    pub seed: u64,
    /// How lines are written.
    pub output: Output,
}
