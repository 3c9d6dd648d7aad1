//! The line about the failures of a completed job, the same in every report.

use protocol::ErrorThresholds;
use protocol::words::{clause, counted};

use crate::thresholds::few_results;
use crate::{Failures, Tally};

/// Keys that make such a job fail.
const KEYS: &str = "to fail such a job, set `error_threshold: 0` (items), `allowed_failed_count: 0` (mini-batches) or \
                    `fail_fast: N` (equal failures)";

/// Returns the number of failures, their cause, and the keys that would have failed the job. `None` without failures.
pub(crate) fn headline(tally: &Tally, thresholds: &ErrorThresholds) -> Option<String> {
    let (mini_batches, items) = (tally.mini_batches(), tally.items());
    let failed = match (mini_batches.failed, items.failed) {
        (0, 0) => return None,
        (0, failed) => format!("{failed} of {} failed", counted(items.total, "item")),
        (failed, _) => {
            let others = match tally.items_failed_of_successes() {
                0 => String::new(),
                items => format!(", and {} of the others", counted(items, "item")),
            };
            format!("{failed} of {} failed{others}", counted(mini_batches.total, "mini-batch"))
        }
    };
    let causes = tally.failures().causes();
    let why = match mini_batches.failed {
        0 if tally.items_rejected() == 0 => few_results(tally),
        0 if causes.is_empty() => "rejected before the last retry".to_owned(),
        _ => why(tally.failures()),
    };
    let see = match causes.first() {
        Some(_) if mini_batches.failed > 0 || tally.items_rejected() > 0 => {
            "; see logs/job_error.txt"
        }
        _ => "; see logs/rejects.csv",
    };
    let allowed =
        if is_limited(thresholds) { "this is within the limits of the job" } else { KEYS };
    Some(format!("completed with failures: {failed} ({why}){see}; {allowed}"))
}

fn why(failures: &Failures) -> String {
    match &failures.kinds()[..] {
        [] => "for an unknown cause".to_owned(),
        [only] => clause(only).to_owned(),
        [first, others @ ..] => {
            format!("{} and {}", clause(first), counted(others.len() as u64, "other cause"))
        }
    }
}

fn is_limited(thresholds: &ErrorThresholds) -> bool {
    thresholds.error_threshold >= 0
        || thresholds.allowed_failed_count >= 0
        || thresholds.allowed_failed_percent < 100.0
        || thresholds.fail_fast > 0
}

#[cfg(test)]
mod tests {
    use protocol::{Planned, ResultEvent};

    use super::*;
    use crate::fixtures::{failed, rejected, succeeded, tally_of};

    fn tally(attempts: impl IntoIterator<Item = protocol::Attempt>, mini_batches: u64) -> Tally {
        let mut tally = tally_of(attempts);
        tally.apply(&ResultEvent::Planned(Planned { mini_batches, items: None }));
        tally
    }

    fn headline(tally: &Tally) -> Option<String> {
        super::headline(tally, &ErrorThresholds::default())
    }

    #[test]
    fn partial_failure_names_count_cause_and_keys() {
        let one = tally([failed(0, 1, true, 1), succeeded(1, 1, 1, 1)], 7);
        let expected = format!(
            "completed with failures: 1 of 7 mini-batches failed (ValueError: bad value); see logs/job_error.txt; {KEYS}"
        );
        assert_eq!(headline(&one), Some(expected));
        let mut other = failed(1, 1, true, 1);
        other.error.as_mut().expect("failed").message = "worse.".into();
        let two = tally([failed(0, 1, true, 1), other, succeeded(2, 1, 1, 1)], 3);
        let limited = ErrorThresholds { error_threshold: 10, ..Default::default() };
        let expected = "completed with failures: 2 of 3 mini-batches failed (ValueError: bad value and 1 other cause); see \
                        logs/job_error.txt; this is within the limits of the job";
        assert_eq!(super::headline(&two, &limited).as_deref(), Some(expected));
    }

    #[test]
    fn error_that_another_try_has_made_good_is_no_cause() {
        let mut passing = failed(0, 1, false, 1);
        passing.error.as_mut().expect("failed").message = "the service is away".into();
        let again = succeeded(0, 2, 1, 1);
        let text = headline(&tally([passing.clone(), again, failed(1, 1, true, 1)], 2));
        assert!(text.expect("one failed").contains("(ValueError: bad value)"));
        let mut partly = succeeded(1, 1, 10, 9);
        partly.rejected = vec![rejected(3)];
        partly.rejected[0].error.category = "KeyError".into();
        let text = headline(&tally([passing.clone(), succeeded(0, 2, 1, 1), partly.clone()], 2));
        assert!(text.expect("one item failed").contains("1 of 11 items failed (KeyError)"));
        let text = headline(&tally([failed(0, 1, true, 1), partly], 2));
        let expected = "1 of 2 mini-batches failed, and 1 item of the others (";
        assert!(text.as_deref().expect("both failed").contains(expected), "{text:?}");
    }

    #[test]
    fn failed_items_of_other_mini_batches_are_those_rejected_and_those_without_a_result() {
        let rejected = protocol::Attempt { rejected: vec![rejected(3)], ..succeeded(1, 1, 10, 7) };
        for (other, items) in [(rejected, 3), (succeeded(1, 1, 10, 8), 2)] {
            let text = headline(&tally([failed(0, 1, true, 5), other], 2)).expect("one failed");
            let expected = format!("1 of 2 mini-batches failed, and {items} items of the others (");
            assert!(text.contains(&expected), "{text}");
        }
    }

    #[test]
    fn errors_that_differ_in_numbers_are_one_cause() {
        let of_row = |mini_batch, row| {
            let mut attempt = failed(mini_batch, 1, true, 1);
            attempt.error.as_mut().expect("failed").message = format!("row {row} is bad");
            attempt
        };
        let text = headline(&tally([of_row(0, 7), of_row(1, 8)], 3)).expect("two failed");
        assert!(
            text.starts_with(
                "completed with failures: 2 of 3 mini-batches failed (ValueError: row 7 is bad);"
            ),
            "{text}"
        );
    }

    #[test]
    fn missing_results_are_a_partial_failure() {
        let short = tally([succeeded(0, 1, 10, 9)], 1);
        let text = headline(&short).expect("one item failed");
        assert!(
            text.starts_with(
                "completed with failures: 1 of 10 items failed (run() returned fewer results"
            ),
            "{text}"
        );
        assert!(text.contains("; see logs/rejects.csv; "), "{text}");
        assert_eq!(headline(&tally([succeeded(0, 1, 1, 1)], 1)), None);
    }
}
