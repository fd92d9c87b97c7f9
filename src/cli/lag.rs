//! `lag`: watches a group.

use std::time::Duration;

use super::common::Common;
use super::consume::Isolation;

/// `lag`, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Lag {
    /// What every subcommand needs.
    pub common: Common,
    /// Which groups.
    pub groups: Groups,
    /// Only these topics; empty = every topic that the group has commits or members for.
    pub topics: Vec<String>,
    /// Time between two ticks; not zero.
    pub interval: Duration,
    /// One tick, then the end.
    pub once: bool,
    /// Which end offset is meant.
    pub isolation: Isolation,
}

/// The groups that `lag` watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Groups {
    /// Every group of the cluster.
    All,
    /// These, without repetition; never empty.
    Named(Vec<String>),
}
