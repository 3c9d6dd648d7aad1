//! Percentiles of the durations of all attempts of a job, and its slowest mini-batches, for the timeline. They are exact and
//! grow with the history, so that an answer costs only as much as the attempts since the last one.

use std::cmp::Reverse;
use std::ops::Range;

use engine::history::{AttemptSummary, History, MARKED_TOGETHER, Origin};
use protocol::Phases;
use serde::Serialize;

/// Number of slowest mini-batches to keep.
pub const SLOWEST_MAX: usize = 20;

/// Returns one duration of an attempt; `None`: unknown.
type Duration = fn(&AttemptSummary) -> Option<f32>;

/// The durations of an attempt.
const DURATIONS: [(&str, Duration); 8] = [
    ("elapsed", |attempt| Some(attempt.elapsed_seconds)),
    ("waited", |attempt| measured(attempt).map(|phases| phases.waited_seconds)),
    ("prepared", |attempt| measured(attempt).map(|phases| phases.prepared_seconds)),
    ("loaded", |attempt| measured(attempt).map(|phases| phases.loaded_seconds)),
    ("run", |attempt| Some(attempt.run_seconds)),
    ("reported", AttemptSummary::reported_seconds),
    // Loaded and reported, where nothing tells them apart.
    ("overhead", |attempt| {
        measured(attempt)
            .is_none()
            .then(|| (attempt.elapsed_seconds - attempt.run_seconds).max(0.0))
    }),
    ("cpu", |attempt| Some(attempt.process_seconds)),
];

fn measured(attempt: &AttemptSummary) -> Option<Phases> {
    Some(attempt.phases).filter(|phases| phases.are_known())
}

/// The distribution of one duration over all attempts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    pub of: &'static str,
    pub p50: f32,
    pub p90: f32,
    pub p95: f32,
    pub p99: f32,
    pub max: f32,
    pub mean: f64,
}

/// A mini-batch by its duration, slowest first.
type Slow = (Reverse<u32>, u64);

/// Statistics of the attempts of one history.
#[derive(Debug, Default)]
pub struct AttemptStatistics {
    origin: Origin,
    version: u32,
    /// Attempts that it has added.
    known: usize,
    durations: [Sorted; DURATIONS.len()],
    /// The slowest of each [`MARKED_TOGETHER`] mini-batches.
    slowest: Vec<Vec<Slow>>,
}

impl AttemptStatistics {
    /// Adds the attempts that the history has recorded since the last call.
    pub fn update(&mut self, history: &History) {
        // The report of attempts replaces the ledger.
        if self.origin != history.origin() || self.known > history.attempts_kept() {
            *self = Self { origin: history.origin(), ..Self::default() };
        }
        let new = history.attempts_kept() - self.known;
        self.known += new;
        if new > 0 {
            for (sorted, (_, duration)) in self.durations.iter_mut().zip(DURATIONS) {
                sorted.add(history.attempts().rev().take(new).filter_map(duration).collect());
            }
        }
        for range in history.changed_since(self.version) {
            let chunk = range.start as usize / MARKED_TOGETHER;
            if self.slowest.len() <= chunk {
                self.slowest.resize(chunk + 1, Vec::new());
            }
            self.slowest[chunk] = slowest_in(history, range);
        }
        self.version = history.version();
    }

    /// Returns the percentiles over all attempts.
    pub fn percentiles(&self) -> Vec<Percentiles> {
        self.durations
            .iter()
            .zip(DURATIONS)
            .filter_map(|(sorted, (of, _))| sorted.percentiles(of))
            .collect()
    }

    /// Returns the slowest mini-batches, slowest first.
    pub fn slowest(&self) -> Vec<u64> {
        let mut all: Vec<Slow> = self.slowest.iter().flatten().copied().collect();
        all.sort_unstable();
        all.truncate(SLOWEST_MAX);
        all.into_iter().map(|(_, mini_batch)| mini_batch).collect()
    }

    /// Returns approximately the memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        let durations: usize =
            self.durations.iter().map(|sorted| sorted.values.capacity() * size_of::<f32>()).sum();
        durations + self.slowest.len() * SLOWEST_MAX * size_of::<Slow>()
    }
}

/// Durations in ascending order, and their sum.
#[derive(Debug, Default)]
struct Sorted {
    values: Vec<f32>,
    sum: f64,
}

impl Sorted {
    fn add(&mut self, mut new: Vec<f32>) {
        self.sum += new.iter().copied().map(f64::from).sum::<f64>();
        self.values.append(&mut new);
        // The old ones are one sorted run, so this takes little more than sorting the new ones.
        self.values.sort_by(f32::total_cmp);
    }

    fn percentiles(&self, of: &'static str) -> Option<Percentiles> {
        let count = self.values.len();
        let max = *self.values.last()?;
        let at =
            |share: f64| self.values[((count as f64 * share).ceil() as usize).clamp(1, count) - 1];
        let mean = self.sum / count as f64;
        Some(Percentiles {
            of,
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            max,
            mean,
        })
    }
}

/// Returns the slowest mini-batches of a range, slowest first.
fn slowest_in(history: &History, range: Range<u64>) -> Vec<Slow> {
    let range = range.start..range.end.min(history.mini_batches());
    // Non-negative numbers sort like their bits.
    let bits = |attempt: &AttemptSummary| attempt.elapsed_seconds.max(0.0).to_bits();
    let mut all: Vec<Slow> =
        range.filter_map(|number| Some((Reverse(bits(history.shown(number)?)), number))).collect();
    if all.len() > SLOWEST_MAX {
        all.select_nth_unstable(SLOWEST_MAX);
        all.truncate(SLOWEST_MAX);
    }
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use protocol::Attempt;
    use protocol::AttemptStatus::{RunRaised, Succeeded};

    use super::*;
    use crate::fixtures::{history, segment, tried};

    fn of(history: &History) -> AttemptStatistics {
        let mut measured = AttemptStatistics::default();
        measured.update(history);
        measured
    }

    fn took(mini_batch: u64, try_number: u32, seconds: f64) -> Attempt {
        let mut attempt = tried(mini_batch, try_number, Succeeded);
        (attempt.elapsed_seconds, attempt.run_seconds) = (seconds, seconds / 2.0);
        attempt
    }

    #[test]
    fn percentiles_are_exact() {
        let attempts: Vec<_> = (1..=100).map(|n| took(n, 1, n as f64)).collect();
        let all = of(&history(&attempts)).percentiles();
        let names: Vec<_> = all.iter().map(|percentiles| percentiles.of).collect();
        assert_eq!(names, ["elapsed", "waited", "prepared", "loaded", "run", "reported", "cpu"]);
        assert_eq!(
            (all[1].p50, all[2].max, all[3].mean, all[5].p99),
            (0.0625, 0.25, 0.09375, 49.406_25)
        );
        let expected = Percentiles {
            of: "elapsed",
            p50: 50.0,
            p90: 90.0,
            p95: 95.0,
            p99: 99.0,
            max: 100.0,
            mean: 50.5,
        };
        assert_eq!(all[0], expected);
        assert!(of(&History::default()).percentiles().is_empty());
    }

    #[test]
    fn missing_phases_are_not_guessed() {
        let mut earlier = took(0, 1, 2.0);
        earlier.phases = Phases::default();
        let all = of(&history(&[earlier, took(1, 1, 4.0)])).percentiles();
        let of = |name: &str| {
            all.iter().find(|percentiles| percentiles.of == name).expect("measured").max
        };
        assert_eq!((of("overhead"), of("waited"), of("elapsed")), (1.0, 0.0625, 4.0));
    }

    #[test]
    fn growing_history_gives_the_same_as_a_whole_one() {
        let mut growing = History::default();
        let mut kept = AttemptStatistics::default();
        for round in 0_u64..20 {
            let numbers = (0..700).map(|n| (round * 700 + n) * 7919 % 14_000);
            let attempts: Vec<_> =
                numbers.map(|n| took(n, 1 + round as u32, (n * 31 % 997) as f64 / 8.0)).collect();
            growing.add_segment(&segment(&attempts)).expect("valid");
            kept.update(&growing);
            let whole = of(&growing);
            assert_eq!(kept.percentiles(), whole.percentiles(), "{round}");
            assert_eq!(kept.slowest(), whole.slowest(), "{round}");
        }
        assert_eq!(kept.slowest().len(), SLOWEST_MAX);
        assert!(kept.memory_bytes() >= 4 * 7 * growing.attempts_kept());
    }

    #[test]
    fn slowest_follow_the_attempt_that_stands_for_a_mini_batch() {
        let mut slow_failure = tried(8, 1, RunRaised);
        slow_failure.elapsed_seconds = 9.0;
        let mut growing = history(&[took(7, 1, 5.0), slow_failure]);
        let mut measured = of(&growing);
        assert_eq!(measured.slowest(), [8, 7]);
        growing.add_segment(&segment(&[took(8, 2, 1.0)])).expect("valid");
        measured.update(&growing);
        assert_eq!(measured.slowest(), [7, 8], "its second try was quick");
    }
}
