//! `lag --listen`: the newest tick in Prometheus' text format, and whether there is one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use keylane_protocol::lag::{DescribedGroup, GroupLag, PartitionLag};

use crate::listen::{Answer, Pages};
use crate::prometheus::{self, Page};

/// So many intervals without a tick are a hang, but no less than [`STALE_MIN`].
const STALE_TICKS: u32 = 3;
const STALE_MIN: Duration = Duration::from_secs(15);

/// What the newest tick has found, for the listener's threads.
pub(super) struct LagPages {
    stale_after: Duration,
    newest: Mutex<Option<Tick>>,
}

struct Tick {
    at: Instant,
    groups: Vec<GroupLag>,
}

impl LagPages {
    pub(super) fn new(interval: Duration) -> Arc<Self> {
        let stale_after = interval.saturating_mul(STALE_TICKS).max(STALE_MIN);
        Arc::new(LagPages { stale_after, newest: Mutex::new(None) })
    }

    /// Takes the place of the tick before.
    pub(super) fn publish(&self, groups: Vec<GroupLag>) {
        let tick = Tick { at: Instant::now(), groups };
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(tick);
    }

    fn health(&self, tick: Option<&Tick>) -> Result<&'static str, String> {
        let Some(tick) = tick else { return Err("nothing is known yet".to_owned()) };
        let silent = tick.at.elapsed();
        if silent > self.stale_after {
            return Err(format!("the newest answer is {} s old", silent.as_secs()));
        }
        match tick.groups.iter().find_map(|group| group.outcome.as_ref().err()) {
            Some(error) => Err(error.to_string()),
            None => Ok("ok"),
        }
    }
}

impl Pages for LagPages {
    fn page(&self, path: &str) -> Option<Answer> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let groups = || newest.as_ref().map_or(&[][..], |tick| &tick.groups);
        prometheus::pages(path, || self.health(newest.as_ref()), || render(groups()))
    }
}

/// What is not known has no sample.
fn render(groups: &[GroupLag]) -> String {
    let mut page = Page::default();
    let help =
        "1 where the group could be described, 0 where it is not there or its coordinator does not answer.";
    page.begin("keylane_group_up", "gauge", help);
    for group in groups {
        page.sample("keylane_group_up", &[("group", &group.name)], u8::from(described(group).is_some()));
    }
    by_group(&mut page, groups, "keylane_group_members", "Members of the group.", |described| {
        described.description.members.len()
    });
    let help = "Partitions whose lag is not known.";
    by_group(&mut page, groups, "keylane_group_partitions_unknown", help, DescribedGroup::unknown);
    let each = |page: &mut Page, name, help, value: fn(&PartitionLag) -> Option<i64>| {
        by_partition(page, groups, name, help, value);
    };
    let help = "Records behind the log's end; without a commit, all that the log holds.";
    each(&mut page, "keylane_group_lag", help, PartitionLag::lag);
    each(&mut page, "keylane_group_committed_offset", "The committed offset.", |partition| {
        partition.committed.as_ref().ok().copied().flatten()
    });
    each(&mut page, "keylane_group_log_end_offset", "The log's end.", |partition| {
        partition.end.as_ref().ok().copied()
    });
    page.into_text()
}

fn described(group: &GroupLag) -> Option<&DescribedGroup> {
    group.outcome.as_ref().ok()?.as_ref()
}

fn by_group(
    page: &mut Page,
    groups: &[GroupLag],
    name: &str,
    help: &str,
    value: impl Fn(&DescribedGroup) -> usize,
) {
    page.begin(name, "gauge", help);
    for group in groups {
        if let Some(described) = described(group) {
            page.sample(name, &[("group", &group.name)], value(described));
        }
    }
}

fn by_partition(
    page: &mut Page,
    groups: &[GroupLag],
    name: &str,
    help: &str,
    value: fn(&PartitionLag) -> Option<i64>,
) {
    page.begin(name, "gauge", help);
    for group in groups {
        for partition in described(group).map_or(&[][..], |described| &described.partitions) {
            let (topic, index) = (&partition.at.topic, partition.at.partition.to_string());
            if let Some(value) = value(partition) {
                page.sample(name, &[("group", &group.name), ("topic", topic), ("partition", &index)], value);
            }
        }
    }
}
