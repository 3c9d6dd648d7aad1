//! Sums the extra cost of the attempts of a job beyond one run of each mini-batch, and the savings.

use std::collections::HashSet;

use protocol::{Attempt, AttemptStatus, DividedMiniBatches, WaitTimes};

use super::Effect;

/// Sums over the attempts that count. They stay although rows are lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// Runs of ranges of mini-batches whose tries were spent.
    pub extra_runs: u64,
    /// These mini-batches.
    pub divided: DividedMiniBatches,
    /// All of them: a later round may divide one once more.
    divided_before: HashSet<u64>,
    /// Items of successes whose results earlier tries had handed back.
    pub items_kept: u64,
    /// Waits for limits and services.
    pub waited: WaitTimes,
}

impl Effort {
    /// Adds an attempt, after it was counted.
    pub(super) fn add(&mut self, attempt: &Attempt, effect: Effect) {
        if effect == Effect::Nothing {
            return;
        }
        self.extra_runs += u64::from(attempt.extra_runs);
        if attempt.extra_runs > 0 && self.divided_before.insert(attempt.mini_batch) {
            self.divided.add(attempt.mini_batch);
        }
        self.waited.add(attempt.waited);
        if attempt.status == AttemptStatus::Succeeded {
            self.items_kept += attempt.items_kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::{ResultEvent, Round};

    use super::*;
    use crate::Tally;
    use crate::fixtures::{event, failed, succeeded};

    #[test]
    fn attempts_that_count_add_their_waits_and_successes_what_was_kept() {
        let waited =
            |limits_milliseconds| WaitTimes { limits_milliseconds, services_milliseconds: 1 };
        let failure =
            Attempt { waited: waited(100), items_kept: 3, extra_runs: 1, ..failed(0, 1, false, 9) };
        let success = Attempt { waited: waited(20), items_kept: 4, ..succeeded(0, 2, 9, 9) };
        let mut tally = Tally::default();
        for attempt in [&failure, &failure, &success, &success] {
            tally.apply(&event(attempt.clone()));
        }
        let expected = Effort {
            extra_runs: 1,
            divided: DividedMiniBatches { mini_batches: 1, first: vec![0] },
            divided_before: HashSet::from([0]),
            items_kept: 4,
            waited: WaitTimes { limits_milliseconds: 120, services_milliseconds: 2 },
        };
        assert_eq!(tally.effort(), expected);
        let again = |mini_batch| event(Attempt { extra_runs: 1, ..failed(mini_batch, 3, true, 9) });
        let mut many = Tally::default();
        for round in 0..2 {
            for mini_batch in 0..9 {
                many.apply(&again(mini_batch));
            }
            if round == 0 {
                many.apply(&ResultEvent::Round(Round { failed: true, ..Round::default() }));
            }
        }
        assert_eq!(
            (many.effort().extra_runs, many.effort().divided.mini_batches),
            (18, 9),
            "in both rounds"
        );
        tally.apply(&ResultEvent::RowsLost { mini_batches: vec![0] });
        assert_eq!(tally.effort(), expected, "it was done all the same");
    }
}
