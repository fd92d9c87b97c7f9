//! `verify`.

use std::path::PathBuf;

use clap::Args;

use super::common::{Common, CommonFlags};
use super::settings::Environment;
use super::usage::{Usage, require};
use super::value;

/// The flags of `verify`.
#[derive(Args, Clone, Debug)]
pub(super) struct VerifyFlags {
    /// Joblogs of one group: of every process that worked for it, restarts included
    #[arg(value_name = "JOBLOG", required = true)]
    joblog: Vec<PathBuf>,

    /// The topic they worked on: its records tell what is missing and which record has which key
    #[arg(short, long, value_name = "TOPIC", value_parser = value::topic)]
    topic: Option<String>,

    /// The group: nothing may be committed past a record that was not handled
    #[arg(short, long, value_name = "GROUP", value_parser = value::id)]
    group: Option<String>,

    /// The dead-letter topic: what is there counts as handled
    #[arg(long, value_name = "TOPIC", value_parser = value::topic)]
    dlq: Option<String>,

    #[command(flatten)]
    common: CommonFlags,
}

impl VerifyFlags {
    pub(super) fn resolve(self, environment: &Environment) -> Result<Verify, Usage> {
        require!(
            self.topic.is_some() || (self.group.is_none() && self.dlq.is_none()),
            "--group and --dlq need the topic: add -t TOPIC"
        );
        let layers = self.common.layers(environment)?;
        Ok(Verify {
            joblogs: self.joblog,
            topic: self.topic,
            group: self.group,
            dead_letters: self.dlq,
            common: self.common.resolve(layers)?,
        })
    }
}

/// `verify`, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Verify {
    /// What every subcommand needs; the cluster is asked only with a topic.
    pub common: Common,
    /// The files; not empty.
    pub joblogs: Vec<PathBuf>,
    /// The topic.
    pub topic: Option<String>,
    /// The group; only with a topic.
    pub group: Option<String>,
    /// The dead-letter topic; only with a topic.
    pub dead_letters: Option<String>,
}
