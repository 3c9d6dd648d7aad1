//! Measures the cost of a run of a range by itself, beside its items. Pure.
//!
//! A quick script with small items, such as rows, spends the time of hundreds of items on each run: its ranges should be
//! long. Where an item takes a second, a run costs nothing, and ranges should be short, because the good items of a range
//! that fails are run again.

/// The cost of a run by itself, in items of a quick script, before any run was measured.
const USUAL: f64 = 256.0;
/// Largest such number: items cost next to nothing.
const MOST: f64 = 1e9;

/// The runs of the ranges of a mini-batch, by kind.
#[derive(Debug, Default)]
pub(super) struct RunCost {
    /// Runs of one item, successful or not.
    alone: Runs,
    /// Successful runs of more items.
    good: Runs,
    /// Failed runs of more items.
    failed: Runs,
}

#[derive(Debug, Default)]
struct Runs {
    runs: u64,
    items: u64,
    seconds: f64,
}

impl Runs {
    fn add(&mut self, items: u64, seconds: f64) {
        self.runs += 1;
        self.items += items;
        self.seconds += seconds.max(0.0);
    }

    /// Returns the seconds for each item beyond the first of its run, if runs of one item take `alone`.
    fn seconds_per_item(&self, alone: f64) -> f64 {
        ((self.seconds - self.runs as f64 * alone) / (self.items - self.runs) as f64).max(0.0)
    }
}

impl RunCost {
    /// Notes a run that has succeeded.
    pub(super) fn succeeded(&mut self, items: u64, seconds: f64) {
        let runs = if items > 1 { &mut self.good } else { &mut self.alone };
        runs.add(items, seconds);
    }

    /// Notes a run that has failed, because of an item.
    pub(super) fn failed(&mut self, items: u64, seconds: f64) {
        let runs = if items > 1 { &mut self.failed } else { &mut self.alone };
        runs.add(items, seconds);
    }

    /// Returns how many items of a range cost as much in vain, if it fails, as a run costs by itself.
    pub(super) fn cost_in_items(&self) -> f64 {
        if self.alone.runs == 0 || self.good.runs == 0 {
            return USUAL;
        }
        let alone = self.alone.seconds / self.alone.runs as f64;
        let item = self.good.seconds_per_item(alone);
        // Most scripts stop at the bad item, which is in the middle on the average.
        let in_vain =
            if self.failed.runs > 0 { self.failed.seconds_per_item(alone) } else { item / 2.0 };
        let run = (alone - item).max(0.0);
        if run == 0.0 && in_vain == 0.0 { USUAL } else { (run / in_vain).min(MOST) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs of a script that spends `run` seconds on each run, `item` on each item, and `eager` of that on items behind a
    /// bad one, too.
    fn measured(run: f64, item: f64, eager: f64) -> RunCost {
        let mut cost = RunCost::default();
        cost.failed(1, run + item);
        cost.succeeded(1001, run + 1001.0 * item);
        cost.failed(101, run + item + 100.0 * item * (eager + 1.0) / 2.0);
        cost
    }

    #[track_caller]
    fn assert_close(cost: &RunCost, expected: f64) {
        let found = cost.cost_in_items();
        assert!((found / expected - 1.0).abs() < 1e-6, "{found}, not {expected}");
    }

    #[test]
    fn cost_of_a_run_is_counted_in_items() {
        assert_close(&measured(0.001, 0.001, 0.0), 2.0);
        assert_close(&measured(0.001, 0.001, 1.0), 1.0);
        assert_close(&measured(0.000_5, 0.000_002, 0.0), 500.0);
        assert_close(&measured(0.1, 0.0, 0.0), MOST);
        assert_eq!(measured(0.0, 1.0, 0.0).cost_in_items(), 0.0);
    }

    #[test]
    fn half_of_a_range_is_in_vain_before_one_has_failed() {
        let mut cost = RunCost::default();
        assert_close(&cost, USUAL);
        cost.failed(1, 0.002);
        assert_close(&cost, USUAL);
        cost.succeeded(11, 0.012);
        assert_close(&cost, 2.0);
    }

    #[test]
    fn times_of_zero_give_no_estimate() {
        assert_close(&measured(0.0, 0.0, 0.0), USUAL);
        let mut cost = measured(0.001, 0.001, 0.0);
        cost.succeeded(500, -3.0);
        assert!(cost.cost_in_items().is_finite());
    }
}
