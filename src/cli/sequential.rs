//! `sequential`: the one-thread baseline.

use clap::Args;

use super::common::CommonFlags;
use super::consume::{Consume, ConsumeFlags};
use super::lecture;
use super::parse::CommandWords;
use super::settings::{Environment, Setting};
use super::usage::{Usage, require};
use super::value;

/// The flags of `sequential`.
#[derive(Args, Clone, Debug)]
pub(super) struct SequentialFlags {
    #[command(flatten)]
    consume: ConsumeFlags,

    /// Records between two commits [default: 100]
    #[arg(long, value_name = "N", value_parser = max_poll_records)]
    max_poll_records: Option<u32>,

    #[command(flatten)]
    common: CommonFlags,
}

impl SequentialFlags {
    pub(super) fn resolve(
        self,
        environment: &Environment,
        command: Option<CommandWords>,
    ) -> Result<Sequential, Usage> {
        let mut layers = self.common.layers(environment)?;
        let setting = Setting {
            flag: "--max-poll-records",
            variable: None,
            property: Some(("max.poll.records", max_poll_records)),
        };
        let max_poll_records = layers.pick(self.max_poll_records, &setting)?.unwrap_or(100);
        let consume = self.consume.resolve(self.common, command, layers, lecture::GROUP_SEQUENTIAL)?;
        require!(
            !consume.handler.batches_by_key(),
            "--batch-by key is for pool: sequential takes the records as they lie, whatever their keys"
        );
        require!(
            consume.topics.len() == 1,
            "sequential reads one topic, and {} are given: give one -t, or use pool",
            consume.topics.len()
        );
        Ok(Sequential { consume, max_poll_records })
    }
}

fn max_poll_records(text: &str) -> Result<u32, String> {
    value::whole_u32(text, 1, 1_000_000)
}

/// `sequential`, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequential {
    /// What both consumers need; one topic.
    pub consume: Consume,
    /// Records between two commits; at least 1.
    pub max_poll_records: u32,
}
