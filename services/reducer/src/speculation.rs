//! Decides when a mini-batch gets a speculative run. Pure: run times, counts and the time in,
//! decisions out.
//!
//! Once a job has at most as many open mini-batches as processes, some processes are idle. A
//! mini-batch that is open for far longer than its peers took is then worth a speculative run, a
//! *copy*, on one of them: its process or its node may be slow. The first success counts, as after
//! any repeated delivery. The copies of a job are few.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::{MiniBatchState, Tally};

/// The part of the successful attempts that were faster than the time with which an open mini-batch is compared.
const QUANTILE: f64 = 0.9;
/// It is slow if it takes this many times as long,
const FACTOR: f64 = 2.0;
/// and at least this long: starting a process and reading a mini-batch take a while, too.
const LEAST: Duration = Duration::from_secs(5);
/// Successful attempts from which run times are meaningful.
const KNOWN_MIN: u64 = 3;
/// One mini-batch of this many may be copied, and at least one of each job.
const ONE_OF: u64 = 20;

/// Bins of a histogram for each doubling, the shortest duration that they tell apart, and their number: up to a century.
const BINS_PER_DOUBLING: f64 = 8.0;
const SECONDS_MIN: f64 = 1e-6;
const BINS: usize = 416;

/// Durations, counted in bins of which each is 9 % longer than the one before.
#[derive(Debug, Default)]
struct Histogram {
    bins: Vec<u64>,
    total: u64,
}

impl Histogram {
    fn add(&mut self, seconds: f64) {
        let bin = ((seconds / SECONDS_MIN).log2() * BINS_PER_DOUBLING).ceil();
        // Also where it is not a number.
        let bin = if bin > 0.0 { (bin as usize).min(BINS - 1) } else { 0 };
        self.bins.resize(BINS, 0);
        self.bins[bin] += 1;
        self.total += 1;
    }

    /// Returns a duration that this part of them does not exceed.
    fn quantile(&self, part: f64) -> f64 {
        let wanted = (self.total as f64 * part).ceil() as u64;
        let mut seen = 0;
        let reaches = |count: &u64| {
            seen += count;
            seen >= wanted
        };
        let bin = self.bins.iter().position(reaches).unwrap_or(0);
        SECONDS_MIN * (bin as f64 / BINS_PER_DOUBLING).exp2()
    }
}

/// The durations of successful attempts.
#[derive(Debug, Default)]
pub(crate) struct RunTimes {
    whole: Histogram,
    per_item: Histogram,
}

impl RunTimes {
    /// Adds the duration of a successful attempt.
    pub fn add(&mut self, seconds: f64, items: u64) {
        self.whole.add(seconds);
        self.per_item.add(seconds / items.max(1) as f64);
    }

    /// Returns the duration that nine of ten attempts did not exceed; `None`: too little is known.
    pub fn most(&self) -> Option<f64> {
        (self.whole.total >= KNOWN_MIN).then(|| self.whole.quantile(QUANTILE))
    }

    /// Returns the time after which a mini-batch of this many items is slow; `None`: unknown. A
    /// large mini-batch may take as long as its items, a small one as long as others.
    pub fn slow_after(&self, items: Option<u64>) -> Option<Duration> {
        let most = self.most()?;
        let by_items = items.map_or(0.0, |items| self.per_item.quantile(QUANTILE) * items as f64);
        let expected = most.max(by_items);
        Some(Duration::try_from_secs_f64(FACTOR * expected).unwrap_or(Duration::MAX).max(LEAST))
    }
}

/// The slow mini-batches and their copies.
#[derive(Debug, Default)]
pub(crate) struct Speculation {
    pub run_times: RunTimes,
    /// Since when processes are idle.
    idle_since: Option<Instant>,
    /// The copied mini-batches, and until when their copy may still succeed.
    copies: BTreeMap<u64, Option<Instant>>,
    /// The mini-batches without an ended attempt at the last check.
    pub open: Vec<u64>,
    /// Records of copies that it has read or written.
    pub epochs: u64,
    /// The decided mini-batches that nodes last received.
    pub decided: Vec<u64>,
}

impl Speculation {
    /// Returns for how long processes have been idle; `None`: none is.
    pub fn idle_for(&mut self, open: u64, processes: u64, now: Instant) -> Option<Duration> {
        let is_idle = open > 0 && open <= processes && processes > 1;
        self.idle_since = is_idle.then(|| self.idle_since.unwrap_or(now));
        self.idle_since.map(|since| now - since)
    }

    /// Finds the mini-batches of the complete plan without an ended attempt. Searches the whole job
    /// only if it has to: a check follows every few seconds, and a large job has millions of ended
    /// mini-batches.
    pub fn look(&mut self, tally: &Tally) {
        let planned = tally.planned().map_or(0, |planned| planned.mini_batches);
        let is_pending = |mini_batch: &u64| tally.state(*mini_batch) == MiniBatchState::Pending;
        self.open.retain(is_pending);
        // At the first check, or because rows were lost since the last one.
        if self.open.len() as u64 != planned.saturating_sub(tally.ended() + tally.retrying()) {
            self.open = (0..planned).filter(is_pending).collect();
        }
    }

    /// Returns the number of mini-batches that may still be copied.
    pub fn budget(&self, mini_batches: u64) -> u64 {
        (mini_batches / ONE_OF).max(1).saturating_sub(self.started())
    }

    /// Whether a mini-batch was copied.
    pub fn is_copied(&self, mini_batch: u64) -> bool {
        self.copies.contains_key(&mini_batch)
    }

    /// Records copies, which may succeed until then; `None`: they have ended.
    pub fn copied(&mut self, mini_batches: &[u64], until: Option<Instant>) {
        self.epochs += 1;
        for &mini_batch in mini_batches {
            self.copies.entry(mini_batch).or_insert(until);
        }
    }

    /// Records that a copy has failed.
    pub fn failed(&mut self, mini_batch: u64) {
        self.copies.entry(mini_batch).and_modify(|until| *until = None);
    }

    /// Returns the number of copies.
    pub fn started(&self) -> u64 {
        self.copies.len() as u64
    }

    /// Returns the copied mini-batches that have succeeded.
    pub fn over(&self, tally: &Tally) -> Vec<u64> {
        let is_over = |&mini_batch: &u64| tally.state(mini_batch) == MiniBatchState::Succeeded;
        self.copies.keys().copied().filter(is_over).collect()
    }

    /// Whether the end of the job waits for the copy of a mini-batch that has failed. `polled`: those that have another
    /// try count as failed.
    pub fn holds(&self, tally: &Tally, polled: bool, now: Instant) -> bool {
        self.copies.iter().filter(|(_, until)| until.is_some_and(|until| until > now)).any(
            |(&mini_batch, _)| match tally.state(mini_batch) {
                MiniBatchState::Failed => true,
                MiniBatchState::Retrying => polled,
                MiniBatchState::Pending | MiniBatchState::Succeeded => false,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::{Planned, ResultEvent};

    use super::*;
    use crate::fixtures::{event, failed, succeeded};

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn slow_is_twice_the_time_of_nine_in_ten() {
        let mut times = RunTimes::default();
        for second in 1..=2 {
            times.add(f64::from(second), 1);
        }
        assert_eq!(times.slow_after(None), None, "two are too few");
        for second in 3..=100 {
            times.add(f64::from(second), 1);
        }
        let limit = times.slow_after(None).expect("known");
        assert!((seconds(180.0)..seconds(200.0)).contains(&limit), "{limit:?}");
    }

    #[test]
    fn large_mini_batch_may_take_as_long_as_its_items() {
        let mut times = RunTimes::default();
        (0..50).for_each(|_| times.add(10.0, 10));
        let limit = |items| times.slow_after(items).expect("known");
        assert!((seconds(20.0)..seconds(22.0)).contains(&limit(None)));
        assert!(
            (seconds(200.0)..seconds(220.0)).contains(&limit(Some(100))),
            "{:?}",
            limit(Some(100))
        );
        assert_eq!(limit(Some(1)), limit(None), "a small one may take as long as others");
    }

    #[test]
    fn quick_mini_batches_get_some_seconds() {
        let mut times = RunTimes::default();
        (0..50).for_each(|_| times.add(0.001, 1));
        assert_eq!(times.slow_after(Some(1)), Some(LEAST));
    }

    #[test]
    fn idle_time_begins_when_every_open_mini_batch_has_a_process() {
        let (mut speculation, now) = (Speculation::default(), Instant::now());
        let after = |time| now + Duration::from_secs(time);
        assert_eq!(speculation.idle_for(5, 4, now), None);
        assert_eq!(speculation.idle_for(4, 4, after(1)), Some(Duration::ZERO));
        assert_eq!(speculation.idle_for(1, 4, after(6)), Some(Duration::from_secs(5)));
        assert_eq!(speculation.idle_for(5, 4, after(7)), None, "a node was lost");
        assert_eq!(speculation.idle_for(4, 4, after(9)), Some(Duration::ZERO));
        assert_eq!(speculation.idle_for(1, 1, after(9)), None, "there is no other process");
        assert_eq!(speculation.idle_for(0, 4, after(9)), None);
    }

    #[test]
    fn end_of_the_job_waits_for_the_copy_of_a_failed_mini_batch() {
        let (mut speculation, now) = (Speculation::default(), Instant::now());
        let until = now + Duration::from_secs(60);
        speculation.copied(&[1, 2], Some(until));
        let mut tally = Tally::default();
        tally.apply(&ResultEvent::Planned(Planned { mini_batches: 3, items: None }));
        tally.apply(&event(failed(2, 1, false, 1)));
        assert_eq!(
            (speculation.holds(&tally, false, now), speculation.holds(&tally, true, now)),
            (false, true)
        );
        tally.apply(&event(failed(0, 3, true, 1)));
        assert!(!speculation.holds(&tally, false, now), "mini-batch 0 has no copy");
        tally.apply(&event(failed(1, 3, true, 1)));
        assert!(speculation.holds(&tally, false, now));
        assert!(!speculation.holds(&tally, false, until), "the copy may have been lost");
        speculation.failed(1);
        assert!(!speculation.holds(&tally, false, now), "both have failed");
        tally.apply(&event(succeeded(2, 1, 1, 1)));
        assert_eq!(speculation.over(&tally), [2]);
    }

    proptest! {
        #[test]
        fn every_check_finds_open_mini_batches(events in proptest::collection::vec((0u64..20, 0u32..5), 0..60)) {
            let (mut speculation, mut tally) = (Speculation::default(), Tally::default());
            for (number, (mini_batch, kind)) in events.into_iter().enumerate() {
                tally.apply(&match kind {
                    0 => event(failed(mini_batch, 1, false, 1)),
                    1 => event(failed(mini_batch, 3, true, 1)),
                    2 => ResultEvent::RowsLost { mini_batches: vec![mini_batch] },
                    _ => event(succeeded(mini_batch, 1, 1, 1)),
                });
                if number == 5 {
                    tally.apply(&ResultEvent::Planned(Planned { mini_batches: 20, items: None }));
                }
                speculation.look(&tally);
                let planned = tally.planned().map_or(0, |planned| planned.mini_batches);
                let open = (0..planned).filter(|one| tally.state(*one) == MiniBatchState::Pending);
                prop_assert_eq!(&speculation.open, &open.collect::<Vec<_>>());
            }
        }

        #[test]
        fn copies_are_few(mini_batches in 1u64..100_000, rounds in 1u64..50) {
            let mut speculation = Speculation::default();
            for round in 0..rounds {
                let more: Vec<u64> = (0..speculation.budget(mini_batches)).map(|number| round * 100_000 + number).collect();
                speculation.copied(&more, None);
            }
            prop_assert_eq!(speculation.started(), (mini_batches / ONE_OF).max(1));
        }

        #[test]
        fn quantile_bounds_its_part(times in proptest::collection::vec(1e-5f64..1e6, 1..200), part in 0.1f64..1.0) {
            let mut histogram = Histogram::default();
            times.iter().for_each(|&seconds| histogram.add(seconds));
            let bound = histogram.quantile(part);
            let below = times.iter().filter(|&&seconds| seconds <= bound * 1.000_001).count();
            prop_assert!(below as f64 >= times.len() as f64 * part - 1e-6);
            let near = times.iter().filter(|&&seconds| seconds < bound / 1.1).count();
            prop_assert!((near as f64) < times.len() as f64 * part);
        }

        #[test]
        fn any_reported_duration_is_counted(seconds in any::<f64>(), items in any::<u64>()) {
            let mut times = RunTimes::default();
            (0..KNOWN_MIN).for_each(|_| times.add(seconds, items));
            prop_assert!(times.slow_after(Some(items)).is_some_and(|limit| limit >= LEAST));
        }
    }
}
