//! `--listen`: what the pool counts, in Prometheus' text format, and whether it is well.
//!
//! The engine publishes a [`Snapshot`] about once a second; a page is made from the newest one on the listener's
//! thread, so nobody who asks, however often or slowly, holds up the pool.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::at_work::{BOUNDS_S, Histogram};
use super::board::Counts;
use super::ending::Ending;
use super::engine::Engine;
use super::shared::Shared;
use super::status::PartitionView;
use super::tries::Outcomes;
use crate::listen::{Answer, Pages};
use crate::prometheus::{self, Page};

/// An engine that has not published for this long hangs.
const STALE_AFTER: Duration = Duration::from_secs(15);

/// What the pages are made of.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    at: Duration,
    assigned: bool,
    draining: bool,
    processed: u64,
    outcomes: Outcomes,
    counts: Counts,
    lanes: usize,
    tries_waiting: usize,
    workers_busy: usize,
    workers: usize,
    commits: u64,
    commits_failed: u64,
    rebalances: u64,
    reconnects: u64,
    fetched_bytes: u64,
    partitions: Vec<PartitionView>,
}

/// The newest snapshot.
pub(super) type Published = Arc<Mutex<Option<Snapshot>>>;

impl Engine {
    /// From now on what the engine counts is published; the pages are for [`listen`](crate::listen).
    pub fn pages(&mut self) -> Arc<dyn Pages> {
        let published = self.published.get_or_insert_default().clone();
        self.watch_regularly();
        Arc::new(PoolPages { shared: self.shared.clone(), published })
    }

    pub(super) fn publish(&mut self, now: Duration) {
        let Some(published) = &self.published else { return };
        let state = self.shared.lock();
        let (idle, workers) = self.shared.idle_workers(&state);
        let mut snapshot = Snapshot {
            at: now,
            assigned: self.generation_seen,
            draining: !matches!(self.ending, Ending::No),
            processed: state.processed,
            outcomes: state.outcomes(),
            counts: state.board.counts(),
            lanes: state.board.lanes(),
            tries_waiting: state.tries.len(),
            workers_busy: workers - idle,
            workers,
            commits: self.totals.commits,
            commits_failed: 0,
            rebalances: self.totals.rebalances,
            reconnects: self.totals.reconnects,
            fetched_bytes: self.totals.fetched_bytes,
            partitions: self.partition_views(&state, now),
        };
        drop(state);
        snapshot.commits_failed = self.consumer.commits_failed();
        *published.lock().unwrap_or_else(PoisonError::into_inner) = Some(snapshot);
    }
}

struct PoolPages {
    shared: Arc<Shared>,
    published: Published,
}

impl Pages for PoolPages {
    fn page(&self, path: &str) -> Option<Answer> {
        let snapshot = || self.published.lock().unwrap_or_else(PoisonError::into_inner).clone();
        prometheus::pages(
            path,
            || health(snapshot().as_ref(), self.shared.now(), self.shared.is_heard()),
            || render(&snapshot().unwrap_or_default(), &self.shared.at_work().took()),
        )
    }
}

fn health(snapshot: Option<&Snapshot>, now: Duration, heard: bool) -> Result<&'static str, String> {
    let Some(snapshot) = snapshot.filter(|snapshot| snapshot.assigned) else {
        return Err("the group has given no assignment yet".to_owned());
    };
    let silent = now.saturating_sub(snapshot.at);
    if silent > STALE_AFTER {
        return Err(format!("the pool's own loop has been silent for {} s", silent.as_secs()));
    }
    if !heard {
        return Err("the group's coordinator has not answered for the session timeout".to_owned());
    }
    Ok(if snapshot.draining { "draining" } else { "ok" })
}

/// A gauge for each partition.
fn by_partition(
    page: &mut Page,
    snapshot: &Snapshot,
    name: &str,
    help: &str,
    value: fn(&PartitionView) -> f64,
) {
    page.begin(name, "gauge", help);
    for view in &snapshot.partitions {
        let labels = [("topic", &*view.topic), ("partition", &view.partition.to_string())];
        page.sample(name, &labels, value(view));
    }
}

fn render(snapshot: &Snapshot, took: &Histogram) -> String {
    let mut page = Page::default();
    let Outcomes { retried, dead_lettered, skipped } = snapshot.outcomes;
    let counts = &snapshot.counts;
    let outcomes = [("done", snapshot.processed), ("dead_lettered", dead_lettered), ("skipped", skipped)];
    page.by(
        "keylane_records_total",
        "counter",
        "Records passed, by what became of them.",
        "outcome",
        &outcomes,
    );
    page.one("keylane_retries_total", "counter", "Tries after a record's first one.", retried);
    let buckets = BOUNDS_S.into_iter().zip(took.counts);
    let (above, sum) = (took.counts[BOUNDS_S.len()], took.sum.as_secs_f64());
    page.histogram("keylane_handler_seconds", "Time a handler took for one try.", buckets, above, sum);
    page.one("keylane_records_in_flight", "gauge", "Records in a handler's hands.", counts.inflight);
    page.one("keylane_records_queued", "gauge", "Records waiting for a worker.", counts.queued);
    page.one(
        "keylane_records_pending",
        "gauge",
        "Records finished behind an unfinished one.",
        counts.pending,
    );
    let lanes = [
        ("ready", counts.ready as u64),
        ("waiting", snapshot.tries_waiting as u64),
        ("all", snapshot.lanes as u64),
    ];
    let help = "Lanes: ready for a worker, waiting for their record's next try, and all in being.";
    page.by("keylane_lanes", "gauge", help, "state", &lanes);
    let workers =
        [("busy", snapshot.workers_busy as u64), ("idle", (snapshot.workers - snapshot.workers_busy) as u64)];
    page.by("keylane_workers", "gauge", "Workers.", "state", &workers);
    page.one("keylane_held_bytes", "gauge", "Bytes of unpacked batches held.", counts.held_bytes);
    page.one("keylane_fetched_bytes_total", "counter", "Bytes of fetched batches.", snapshot.fetched_bytes);
    let commits = [("stored", snapshot.commits), ("failed", snapshot.commits_failed)];
    page.by("keylane_commits_total", "counter", "Offset commits, by result.", "result", &commits);
    page.one("keylane_rebalances_total", "counter", "Assignments after the first.", snapshot.rebalances);
    page.one(
        "keylane_reconnects_total",
        "counter",
        "Brokers found again after they were lost.",
        snapshot.reconnects,
    );
    page.one("keylane_partitions", "gauge", "Partitions assigned.", snapshot.partitions.len());
    let paused = snapshot.partitions.iter().filter(|view| view.paused).count();
    page.one("keylane_partitions_paused", "gauge", "Of them, those not fetched for now.", paused);
    let each = |page: &mut Page, name, help, value: fn(&PartitionView) -> f64| {
        by_partition(page, snapshot, name, help, value);
    };
    each(&mut page, "keylane_partition_commit_gap", "Offsets delivered past the committed one.", |view| {
        (view.delivered - view.committed) as f64
    });
    each(
        &mut page,
        "keylane_partition_oldest_unfinished_seconds",
        "How long the first unfinished record is that.",
        |view| view.oldest.map_or(0.0, |(_, age)| age.as_secs_f64()),
    );
    each(
        &mut page,
        "keylane_partition_pending",
        "Records finished behind the first unfinished one.",
        |view| view.pending as f64,
    );
    each(&mut page, "keylane_partition_committed_offset", "The committed offset.", |view| {
        view.committed as f64
    });
    each(&mut page, "keylane_partition_paused", "1 while it is not fetched.", |view| {
        f64::from(u8::from(view.paused))
    });
    page.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        let view = PartitionView {
            topic: "a\"b".to_owned(),
            partition: 3,
            next: 5,
            oldest: Some((5, Duration::from_millis(1500))),
            pending: 7,
            queued: 1,
            inflight: 1,
            held_bytes: 9,
            committed: 4,
            delivered: 14,
            paused: true,
            draining: false,
        };
        Snapshot {
            at: Duration::from_secs(100),
            assigned: true,
            processed: 12,
            partitions: vec![view],
            ..Snapshot::default()
        }
    }

    #[test]
    fn the_page_has_what_was_counted() {
        let mut took = Histogram::default();
        (took.counts[3], took.counts[17], took.sum) = (2, 1, Duration::from_millis(2500));
        let page = render(&snapshot(), &took);
        for line in [
            "keylane_records_total{outcome=\"done\"} 12",
            "keylane_handler_seconds_bucket{le=\"0.0005\"} 0",
            "keylane_handler_seconds_bucket{le=\"0.001\"} 2",
            "keylane_handler_seconds_bucket{le=\"300\"} 2",
            "keylane_handler_seconds_bucket{le=\"+Inf\"} 3",
            "keylane_handler_seconds_sum 2.5",
            "keylane_handler_seconds_count 3",
            "keylane_partitions_paused 1",
            "keylane_partition_commit_gap{topic=\"a\\\"b\",partition=\"3\"} 10",
            "keylane_partition_oldest_unfinished_seconds{topic=\"a\\\"b\",partition=\"3\"} 1.5",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        crate::prometheus::tests::check(&page);
    }

    #[test]
    fn health_has_reasons() {
        let second = Duration::from_secs;
        let new = snapshot();
        assert_eq!(health(Some(&new), second(101), true), Ok("ok"));
        assert_eq!(
            health(Some(&Snapshot { draining: true, ..new.clone() }), second(101), true),
            Ok("draining")
        );
        assert!(health(None, second(101), true).is_err());
        assert!(health(Some(&Snapshot { assigned: false, ..new.clone() }), second(101), true).is_err());
        assert!(health(Some(&new), second(101), false).unwrap_err().contains("coordinator"));
        assert!(health(Some(&new), second(116), true).unwrap_err().contains("silent for 16 s"));
    }
}
