//! Runs a campaign: inputs from one seed, each held to its limits, and the layers that were reached.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::alloc::{self, Use};
use crate::rng::Rng;

/// Of all campaigns together.
const INPUTS_DEFAULT: u64 = 10_000;
/// Time allowed whatever the input: an idle machine needs microseconds, a loaded one may take us off the processor.
const TIME_MAX: Duration = Duration::from_millis(250);
/// Time allowed for each byte, in a build without optimisation.
const TIME_PER_BYTE_MAX: Duration = Duration::from_micros(2);
/// A slow input is run again so often, by the processor's time: only one that is slow each time is.
const SLOW_TRIES: usize = 4;

/// What one input did.
#[derive(Debug, Default)]
pub(crate) struct Case {
    stages: BTreeMap<&'static str, u64>,
    seen: Use,
    limit_bytes: usize,
    elapsed: Duration,
    bytes: usize,
    /// Measure the processor's time: another program may have had it meanwhile.
    on_processor: bool,
}

/// How long this thread has run, as Linux counts it.
fn processor_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

impl Case {
    /// Says that this input reached a layer.
    pub(crate) fn reached(&mut self, stage: &'static str) {
        *self.stages.entry(stage).or_default() = 1;
    }

    /// Does the work on `bytes` bytes of input, which may hold `limit_bytes` of memory at once. Several pieces of work
    /// of one input are each held to their own limit.
    pub(crate) fn work<T>(
        &mut self,
        bytes: usize,
        limit_bytes: usize,
        work: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let ran = self.on_processor.then(processor_time).flatten();
        let begun = Instant::now();
        let (result, seen) = alloc::measured(|| work(self));
        self.elapsed += match (ran, ran.and_then(|_| processor_time())) {
            (Some(from), Some(to)) => to.saturating_sub(from),
            _ => begun.elapsed(),
        };
        self.bytes += bytes;
        if seen.peak_bytes >= self.seen.peak_bytes {
            self.seen = seen;
            self.limit_bytes = limit_bytes;
        }
        assert!(
            seen.peak_bytes <= limit_bytes,
            "{bytes} bytes of input held {} bytes, {} of them asked for at once; the limit is {limit_bytes}",
            seen.peak_bytes,
            seen.largest_bytes
        );
        result
    }

    fn is_slow(&self) -> bool {
        let bytes = u32::try_from(self.bytes).unwrap_or(u32::MAX);
        self.elapsed > TIME_MAX + TIME_PER_BYTE_MAX * bytes
    }
}

/// Prints how an input that failed is run again.
struct Replay(&'static str, u64, u64);

impl Replay {
    fn arm(campaign: &'static str, seed: u64, number: u64) -> Self {
        alloc::name_input(Some((campaign, seed, number)));
        Replay(campaign, seed, number)
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        alloc::name_input(None);
        if std::thread::panicking() {
            let Replay(campaign, seed, number) = self;
            eprintln!(
                "campaign {campaign}, seed {seed}, input {number}; replay: KEYLANE_HOSTILE_SEED={seed} \
                 KEYLANE_HOSTILE_INPUT={number} cargo test --test hostile {campaign}"
            );
        }
    }
}

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a whole number, not '{text}'")))
}

/// Runs `share` percent of the inputs. `stages` are the layers that must be reached, each with the least part of the
/// inputs, in thousandths.
pub(crate) fn run(
    campaign: &'static str,
    share: u64,
    stages: &[(&'static str, u64)],
    mut input: impl FnMut(&mut Rng, &mut Case),
) {
    let seed = variable("KEYLANE_HOSTILE_SEED").unwrap_or(1);
    let only: Option<u64> = variable("KEYLANE_HOSTILE_INPUT");
    let inputs = variable("KEYLANE_HOSTILE_INPUTS").unwrap_or(INPUTS_DEFAULT) * share / 100;
    let numbers = only.map_or(0..inputs, |number| number..number + 1);
    let begun = Instant::now();
    let mut reached: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut slowest = (Duration::ZERO, 0);
    let mut peak = (0, 0);
    let mut largest = (0, 0);
    for number in numbers {
        let replay = Replay::arm(campaign, seed, number);
        let mut tries = 0;
        let case = loop {
            let mut case = Case { on_processor: tries > 0, ..Case::default() };
            input(&mut Rng::of(seed, campaign, number), &mut case);
            tries += 1;
            if !case.is_slow() {
                break case;
            }
            assert!(tries < SLOW_TRIES, "{} bytes of input took {:?}", case.bytes, case.elapsed);
        };
        drop(replay);
        slowest = slowest.max((case.elapsed, number));
        peak = peak.max((case.seen.peak_bytes, number));
        largest = largest.max((case.seen.largest_bytes, number));
        for (stage, count) in case.stages {
            *reached.entry(stage).or_default() += count;
        }
    }
    println!(
        "{campaign}: {inputs} inputs in {:.1?}; slowest {:.1?} (input {}), most memory {} bytes (input {}), \
         largest request {} bytes (input {})",
        begun.elapsed(),
        slowest.0,
        slowest.1,
        peak.0,
        peak.1,
        largest.0,
        largest.1
    );
    for (stage, count) in &reached {
        println!("  {count:>9} {stage}");
    }
    if only.is_none() {
        for (stage, least) in stages {
            let count = reached.get(stage).copied().unwrap_or(0);
            assert!(count * 1000 >= inputs * least, "only {count} of {inputs} inputs reached '{stage}'");
        }
    }
}
