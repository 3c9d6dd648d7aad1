//! How far apart bad items are, and how long a range should be that may hold one. Pure.

use std::collections::VecDeque;

/// Distances between bad items that are remembered.
const REMEMBERED: usize = 8;
/// Items of a quick script that take as long as a run costs by itself.
const RUN_ITEMS: u64 = 128;

/// The numbers of good items before each of the last bad ones.
#[derive(Debug)]
pub(super) struct Gaps {
    recent: VecDeque<u64>,
    /// The item behind the last bad one.
    next: u64,
}

impl Gaps {
    /// Begins at the first item. Nothing is known from other mini-batches, so that the ranges of a mini-batch do not
    /// depend on what else the node has run.
    pub(super) fn from(first: u64) -> Self {
        Self { recent: VecDeque::new(), next: first }
    }

    /// Notes a bad item. One that lies before another says nothing about distances.
    pub(super) fn found(&mut self, bad: u64) {
        if let Some(gap) = bad.checked_sub(self.next) {
            self.recent.truncate(REMEMBERED - 1);
            self.recent.push_front(gap);
            self.next = bad + 1;
        }
    }

    /// Returns the length that a range from `start` should have; `None`: fewer distances than `least` are known.
    ///
    /// Runs of long ranges are in vain more often, and short ones are many: with `gap` good items before each bad one,
    /// ranges of `length` items cost `gap / length` runs and `length / 2` items in vain, least at the square root below.
    /// After more good items than expected, ranges become longer.
    pub(super) fn length(&self, start: u64, least: usize) -> Option<u64> {
        let count = self.recent.len();
        if count < least.max(1) {
            return None;
        }
        let gap = self.recent.iter().sum::<u64>() / count as u64;
        let passed = start.saturating_sub(self.next);
        let best = gap.saturating_mul(2 * RUN_ITEMS).isqrt().min(gap);
        Some(best.max(passed.saturating_sub(gap)).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(bad: impl IntoIterator<Item = u64>) -> Gaps {
        let mut gaps = Gaps::from(0);
        bad.into_iter().for_each(|bad| gaps.found(bad));
        gaps
    }

    #[test]
    fn ranges_are_shorter_than_bad_items_are_apart() {
        assert_eq!(gaps([]).length(0, 0), None);
        assert_eq!((gaps([1000]).length(1001, 1), gaps([1000]).length(1001, 2)), (Some(505), None));
        assert_eq!(gaps([1000, 4001]).length(4002, 2), Some(715));
        assert_eq!(gaps([10, 21]).length(22, 2), Some(10), "a run costs more than ten items");
        assert_eq!(gaps([0, 1, 2]).length(3, 2), Some(1));
    }

    #[test]
    fn ranges_become_longer_behind_the_last_bad_item() {
        let gaps = gaps(0..20);
        let lengths: Vec<_> = [20, 21, 22, 24, 28].into_iter().filter_map(|start| gaps.length(start, 2)).collect();
        assert_eq!(lengths, [1, 1, 2, 4, 8]);
    }

    #[test]
    fn only_the_last_distances_count() {
        let mut gaps = gaps((1..=20).map(|number| number * 10_000));
        (0..8).for_each(|number| gaps.found(200_001 + number * 11));
        assert_eq!(gaps.length(200_079, 2), Some(8));
        gaps.found(5);
        assert_eq!(gaps.length(200_079, 2), Some(8), "it lies before the others");
    }
}
