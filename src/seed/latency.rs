//! Latencies in a small histogram: exact average and maximum, percentiles within 1.6 %.

use std::time::Duration;

/// Buckets per power of two; a value below twice this many microseconds has a bucket of its own.
const STEPS: u64 = 64;
const STEPS_BITS: u32 = STEPS.trailing_zeros();
const BUCKETS: usize = ((64 - STEPS_BITS as usize) + 1) * STEPS as usize;
/// A batch's records are taken as appended evenly between its first and its last, in this many groups at most.
const GROUPS_MAX: u64 = 16;

/// Counts latencies.
pub(super) struct Latency {
    counts: Vec<u64>,
    count: u64,
    sum_us: u128,
    max_us: u64,
}

/// What is printed, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Summary {
    pub(super) avg_ms: f64,
    pub(super) p50_ms: f64,
    pub(super) p95_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
}

impl Latency {
    pub(super) fn new() -> Self {
        Latency { counts: vec![0; BUCKETS], count: 0, sum_us: 0, max_us: 0 }
    }

    /// A batch of `count` records, appended from `first_at` to `last_at`, was acknowledged.
    pub(super) fn add_batch(&mut self, count: u64, first_at: Duration, last_at: Duration, now: Duration) {
        let longest = now.saturating_sub(first_at).as_micros() as u64;
        let shortest = now.saturating_sub(last_at).as_micros() as u64;
        let groups = count.clamp(1, GROUPS_MAX);
        for group in 0..groups {
            let records = count * (group + 1) / groups - count * group / groups;
            let spread = longest.saturating_sub(shortest);
            let steps = (groups - 1).max(1);
            self.add(records, longest - spread * group / steps);
        }
    }

    fn add(&mut self, records: u64, latency_us: u64) {
        self.counts[bucket(latency_us)] += records;
        self.count += records;
        self.sum_us += u128::from(records) * u128::from(latency_us);
        self.max_us = self.max_us.max(latency_us);
    }

    pub(super) fn summary(&self) -> Summary {
        Summary {
            avg_ms: self.sum_us as f64 / self.count.max(1) as f64 / 1000.0,
            p50_ms: self.percentile_ms(50),
            p95_ms: self.percentile_ms(95),
            p99_ms: self.percentile_ms(99),
            max_ms: self.max_us as f64 / 1000.0,
        }
    }

    /// The smallest bucket limit that `percent` of the records do not pass.
    fn percentile_ms(&self, percent: u64) -> f64 {
        let wanted = (self.count * percent).div_ceil(100);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && *count > 0 {
                return upper_us(bucket).min(self.max_us) as f64 / 1000.0;
            }
        }
        0.0
    }
}

fn bucket(value: u64) -> usize {
    if value < STEPS {
        return value as usize;
    }
    let shift = value.ilog2() - STEPS_BITS;
    ((u64::from(shift) + 1) * STEPS + (value >> shift) - STEPS) as usize
}

/// The largest value of a bucket.
fn upper_us(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let shift = bucket / STEPS - 1;
    let step = bucket % STEPS + STEPS;
    ((step + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_values_within_its_share() {
        for value in (0..5000).chain([1 << 20, (1 << 20) + 77, 1 << 40, u64::MAX >> 1]) {
            let upper = upper_us(bucket(value));
            assert!(value <= upper && upper - value <= value / 64, "{value} in a bucket up to {upper}");
            assert!(upper_us(bucket(value).saturating_sub(1)) < value.max(1), "{value}");
        }
    }

    #[test]
    fn percentiles_weigh_records() {
        let ms = Duration::from_millis;
        let mut latency = Latency::new();
        latency.add_batch(90, ms(10), ms(10), ms(11));
        latency.add_batch(10, ms(0), ms(0), ms(100));
        let summary = latency.summary();
        assert_eq!(summary.max_ms, 100.0);
        assert!((summary.avg_ms - 10.9).abs() < 1e-9);
        assert!((summary.p50_ms - 1.0).abs() < 0.02 && summary.p95_ms > 98.0);
        assert_eq!(Latency::new().summary().p99_ms, 0.0);
    }
}
