//! How far apart bad items are, and how long a range should be that may hold one. Pure.

use std::collections::VecDeque;
use std::ops::Range;

/// Distances between bad items that are remembered.
const REMEMBERED: usize = 8;
/// Least items of a range, unless bad items are closer.
const SHORTEST: u64 = 4;

/// The numbers of good items before each of the last bad ones.
#[derive(Debug)]
pub(super) struct Gaps {
    recent: VecDeque<u64>,
    /// The item behind the last bad one.
    next: u64,
    /// The end of the items.
    end: u64,
    /// How often the items can be divided into halves.
    levels: u32,
    /// Bad items so far.
    bad: u64,
}

impl Gaps {
    /// Begins at the first of these items. Nothing is known from other mini-batches, so that the ranges of a mini-batch do
    /// not depend on what else the node has run.
    pub(super) fn of(items: &Range<u64>) -> Self {
        let levels = (items.end - items.start).max(2).ilog2();
        Self { recent: VecDeque::new(), next: items.start, end: items.end, levels, bad: 0 }
    }

    /// Notes a bad item. One that lies before another says nothing about distances.
    pub(super) fn found(&mut self, bad: u64) {
        self.bad += 1;
        if let Some(gap) = bad.checked_sub(self.next) {
            self.recent.truncate(REMEMBERED - 1);
            self.recent.push_front(gap);
            self.next = bad + 1;
        }
    }

    /// Returns the length that a range from `start` should have; `None`: fewer distances than `least` are known.
    /// `run_cost`: a run of a range costs as much as this number of its items costs in vain if it fails. `runs`: so far.
    ///
    /// Runs of long ranges are in vain more often, and short ones are many: with `gap` good items before each bad one,
    /// ranges of `length` items cost `gap / length` runs and `length` items in vain, least at the square root below.
    /// After more good items than expected, ranges become longer. However dear items are, all runs are no more than a
    /// search for each bad item would take: near that number, the length doubles from range to range.
    pub(super) fn length(&self, start: u64, least: usize, run_cost: f64, runs: u32) -> Option<u64> {
        let count = self.recent.len();
        if count < least.max(1) {
            return None;
        }
        let passed = start.saturating_sub(self.next);
        let gap = (self.recent.iter().sum::<u64>() / count as u64).max(passed);
        let shortest = SHORTEST.max(gap / u64::from(self.levels));
        let best = ((gap as f64 * run_cost).sqrt() as u64).max(shortest).min(gap);
        let runs_left =
            (self.bad * u64::from(2 * self.levels + 2)).saturating_sub(u64::from(runs) + 1);
        let needed = self.end.saturating_sub(start) >> runs_left.min(63);
        Some(best.max(needed).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(bad: impl IntoIterator<Item = u64>) -> Gaps {
        let mut gaps = Gaps::of(&(0..1 << 20));
        bad.into_iter().for_each(|bad| gaps.found(bad));
        gaps
    }

    /// Returns the length for a quick script.
    fn length(gaps: &Gaps, start: u64, least: usize) -> Option<u64> {
        gaps.length(start, least, 256.0, 0)
    }

    #[test]
    fn ranges_are_shorter_than_bad_items_are_apart() {
        assert_eq!(length(&gaps([]), 0, 0), None);
        assert_eq!(
            (length(&gaps([1000]), 1001, 1), length(&gaps([1000]), 1001, 2)),
            (Some(505), None)
        );
        assert_eq!(length(&gaps([1000, 4001]), 4002, 2), Some(715));
        assert_eq!(length(&gaps([10, 21]), 22, 2), Some(10), "a run costs more than ten items");
        assert_eq!(length(&gaps([0, 1, 2]), 3, 2), Some(1));
    }

    #[test]
    fn ranges_of_dear_items_are_short() {
        let lengths = |gap| {
            [1e9, 256.0, 16.0, 1.0, 0.0]
                .map(|cost| gaps([gap]).length(gap + 1, 1, cost, 2).expect("known"))
        };
        assert_eq!(
            lengths(1000),
            [1000, 505, 126, 50, 50],
            "not more runs than a search for one among a million"
        );
        assert_eq!(lengths(10), [10, 10, 10, 4, 4]);
        assert_eq!(lengths(2), [2; 5]);
    }

    #[test]
    fn ranges_become_longer_behind_the_last_bad_item() {
        let gaps = gaps(0..20);
        let lengths: Vec<_> =
            [20, 21, 22, 24, 28].into_iter().filter_map(|start| length(&gaps, start, 2)).collect();
        assert_eq!(lengths, [1, 1, 2, 4, 8]);
    }

    #[test]
    fn ranges_are_no_more_than_a_search_for_each_bad_item_takes() {
        let lengths = |bad: &[u64]| {
            [2, 31, 35, 41, 100].map(|runs| gaps(bad.iter().copied()).length(2002, 1, 1.0, runs))
        };
        let rest = (1 << 20) - 2002;
        assert_eq!(
            lengths(&[1000]),
            [Some(50), Some(rest >> 10), Some(rest >> 6), Some(rest), Some(rest)]
        );
        assert_eq!(lengths(&[950, 2001])[..4], [Some(50); 4], "two of them");
    }

    #[test]
    fn only_the_last_distances_count() {
        let mut gaps = gaps((1..=20).map(|number| number * 10_000));
        (0..8).for_each(|number| gaps.found(200_001 + number * 11));
        assert_eq!(length(&gaps, 200_079, 2), Some(8));
        gaps.found(5);
        assert_eq!(length(&gaps, 200_079, 2), Some(8), "it lies before the others");
    }
}
