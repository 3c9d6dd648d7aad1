//! Decides which failures end a job, and states the cause in one line. Pure: a tally in, a cause out.

use std::time::Duration;

use protocol::words::{clause, counted, sentence};
use protocol::{Counts, ErrorThresholds, JobSpec};

use crate::{Options, Peers, Tally};

/// Cause of a job whose inputs contain no items.
const NOTHING_TO_DO: &str = "The inputs contain no items (empty files, or tables without rows), so run() was never \
     called and there is no output. Check what the inputs in the job file contain.";

/// The limits that can end a job before it is complete.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Failed items and mini-batches.
    pub thresholds: ErrorThresholds,
    /// Whether the job runs a command, whose failure is that of the job.
    pub is_command: bool,
    /// Nodes of the job; with peers the maximum at a time, or `None` for no maximum.
    pub node_count: Option<u32>,
    /// Other processes that work on the job.
    pub peers: Peers,
    /// Processes per node; `None`: the number seen so far.
    pub process_count_per_node: Option<u32>,
    /// Limit of one `run()` call.
    pub run_invocation_timeout: Duration,
    /// The job fails after this time without a finished mini-batch.
    pub progress_update_timeout: Duration,
    /// The job fails after this time without a first mini-batch.
    pub first_task_creation_timeout: Duration,
    /// Age of the job from which failures of `init()` in every process fail it.
    pub init_failure_age: Duration,
}

impl Limits {
    /// Returns the limits of a job.
    pub fn new(spec: &JobSpec, options: &Options) -> Self {
        Self {
            thresholds: spec.thresholds,
            is_command: spec.is_command(),
            node_count: spec.node_count,
            peers: options.peers,
            process_count_per_node: spec.process_count_per_node.or(options.process_count_per_node),
            run_invocation_timeout: Duration::from_secs(spec.run_invocation_timeout_seconds),
            progress_update_timeout: Duration::from_secs(spec.progress_update_timeout_seconds),
            first_task_creation_timeout: Duration::from_secs(
                spec.first_task_creation_timeout_seconds,
            ),
            init_failure_age: options.init_failure_age,
        }
    }
}

/// Returns the cause if failures exceed a threshold. Every comparison except that of `fail_fast` is a strict "greater
/// than".
///
/// A mini-batch that succeeded without some items, after it had spent its tries, is a failed one
/// for the limits on mini-batches: they protect as in Azure ML, which has no isolation.
///
/// A failed mini-batch that has another try counts towards `allowed_failed_count` only if `polled`.
/// Azure ML polls every ten seconds, so a quick second try can prevent the failure.
pub fn exceeded(tally: &Tally, thresholds: &ErrorThresholds, polled: bool) -> Option<String> {
    if let Some(repeated) =
        tally.failures().repeated().filter(|one| is_reached(one.count, thresholds.fail_fast))
    {
        let (times, limit) = (counted(repeated.count, "time"), thresholds.fail_fast);
        let text = format!(
            "The same failure occurred {times}, and fail_fast is {limit}: {}",
            repeated.sentence
        );
        return Some(with_first(text, tally));
    }
    let failed_items = tally.items().failed;
    if is_above(failed_items, thresholds.error_threshold) {
        let threshold = thresholds.error_threshold;
        let text = format!(
            "The number of failed items is {failed_items}, which exceeds error threshold {threshold}."
        );
        return Some(with_cause(text, tally));
    }
    let partly = tally.partly_failed();
    let failed =
        partly + if polled { tally.currently_failed() } else { tally.mini_batches().failed };
    if is_above(failed, thresholds.allowed_failed_count) {
        let allowed = thresholds.allowed_failed_count;
        let text = format!(
            "The number of failed mini batches is {failed}, which exceeds allowed failed count {allowed}."
        );
        // The counts of the summary do not include them.
        let text = match failed - partly - tally.mini_batches().failed {
            0 => text,
            retrying => format!("{text} {retrying} of them failed a try and had tries left."),
        };
        let text = if partly > 0 {
            format!("{text} {partly} of them lost only rejected items.")
        } else {
            text
        };
        return Some(with_cause(text, tally));
    }
    let counts = tally.mini_batches();
    let failed = counts.failed + partly;
    let percent = failed as f64 * 100.0 / counts.total as f64;
    if counts.total > 0 && percent > thresholds.allowed_failed_percent {
        let text = format!(
            "The percentage of failed mini batches is {:.2} ({} of {}), which exceeds allowed failed percent {}.",
            percent, failed, counts.total, thresholds.allowed_failed_percent
        );
        return Some(with_cause(text, tally));
    }
    None
}

/// Whether the inputs of a complete job have no items.
pub fn has_no_items(tally: &Tally) -> bool {
    tally.items() == Counts::default() && tally.mini_batches().failed == 0
}

/// Returns the cause if the command of a job has failed: its own error, in front of what ran it.
pub fn command_failed(tally: &Tally) -> Option<String> {
    let failed = tally.failures().first().filter(|_| tally.mini_batches().failed > 0)?;
    Some(format!("The command failed: {}", failed.error.sentence()))
}

/// Returns the cause if a complete job should have rows and has none.
pub fn nothing_succeeded(tally: &Tally) -> Option<String> {
    if has_no_items(tally) {
        return Some(NOTHING_TO_DO.to_owned());
    }
    if tally.items().succeeded > 0 {
        return None;
    }
    let (mini_batches, items) = (tally.mini_batches(), tally.items());
    if mini_batches.succeeded > 0 {
        let none = format!("0 of {} succeeded", counted(items.total, "item"));
        let returned = match rejects(tally) {
            Some(rejects) => format!("{none}; {rejects}"),
            None if tally.warnings().records_unread().is_some() => {
                format!("{none}: {}; open logs/rejects.csv.", clause(&few_results(tally)))
            }
            None => {
                format!(
                    "run() returned no results: {none}. Return one result for each item: a list, or a DataFrame."
                )
            }
        };
        return Some(if mini_batches.failed == 0 { returned } else { with_cause(returned, tally) });
    }
    let all = match mini_batches.failed {
        1 => "The only mini-batch failed".to_owned(),
        failed => format!("All {failed} mini-batches failed"),
    };
    let failures = tally.failures();
    let Some((count, cause)) = failures.most_frequent() else { return Some(format!("{all}.")) };
    let attempts = counted(failures.attempts_failed(), "attempt");
    let open =
        if cause.log.is_empty() { String::new() } else { format!("; open logs/{}", cause.log) };
    Some(format!("{all}; {count} of {attempts}: {}{open}.", clause(&cause.error())))
}

/// Returns how many items were rejected from mini-batches that succeeded, with the most frequent error and the file to
/// open; `None`: none were.
fn rejects(tally: &Tally) -> Option<String> {
    let items = Some(tally.items_rejected()).filter(|items| *items > 0)?;
    let most = tally.failures().most_frequent();
    let error = most.map_or_else(String::new, |(_, group)| format!(": {}", clause(&group.error())));
    Some(format!("{} rejected{error}; open logs/rejects.csv.", counted(items, "item")))
}

pub(crate) fn is_above(count: u64, threshold: i64) -> bool {
    u64::try_from(threshold).is_ok_and(|threshold| count > threshold)
}

/// Whether a count has reached the limit; 0 means no limit.
fn is_reached(count: u64, limit: u64) -> bool {
    limit > 0 && count >= limit
}

/// Appends the cause of most attempts and the first failed mini-batch.
fn with_cause(text: String, tally: &Tally) -> String {
    let dominant = tally.failures().dominant().map_or_else(String::new, |dominant| {
        let attempts = counted(dominant.attempts, "attempt");
        format!(" {} of {attempts} ended with {}", dominant.count, sentence(&dominant.cause))
    });
    with_first(format!("{text}{dominant}"), tally)
}

/// Appends the first failed mini-batch and the file to open.
fn with_first(text: String, tally: &Tally) -> String {
    let first = match tally.failures().first() {
        Some(first) if first.error.log.is_empty() => {
            format!(" The first failed mini-batch is {} ({}).", first.mini_batch, first.detail)
        }
        Some(first) => {
            let log = &first.error.log;
            format!(
                " The first failed mini-batch is {} ({}), open logs/{log}.",
                first.mini_batch, first.detail
            )
        }
        None => match rejects(tally) {
            Some(rejects) => format!(" {rejects}"),
            None if tally.items().failed > 0 => format!(" {}", sentence(&few_results(tally))),
            None => String::new(),
        },
    };
    format!("{text}{first}")
}

/// Returns why items of mini-batches that succeeded have no result, although none is known as rejected.
pub(crate) fn few_results(tally: &Tally) -> String {
    let fewer = "run() returned fewer results than it received items";
    let Some((lost, first)) = tally.warnings().records_unread() else { return fewer.to_owned() };
    match tally.items().failed.saturating_sub(lost) {
        0 => format!("{} could not be read, first: {first}", counted(lost, "record")),
        _ => format!("{} could not be read, first: {first}; and {fewer}", counted(lost, "record")),
    }
}

#[cfg(test)]
mod tests {
    use protocol::{
        Attempt, AttemptStatus, ErrorReport, Planned, RECORD_FAILED, Rejected, ResultEvent,
        UnreadRecord, WarningKind,
    };

    use super::*;
    use crate::fixtures::{event, failed, rejected, succeeded, tally_of};

    fn tally(attempts: Vec<protocol::Attempt>) -> Tally {
        tally_of(attempts)
    }

    fn off() -> ErrorThresholds {
        ErrorThresholds::default()
    }

    #[test]
    fn item_threshold_is_strict_and_counts_missing_results() {
        let tally = tally(vec![succeeded(0, 1, 10, 8), failed(1, 3, true, 1)]);
        let with = |error_threshold| {
            exceeded(&tally, &ErrorThresholds { error_threshold, ..off() }, false)
        };
        assert_eq!(with(-1), None);
        assert_eq!(with(3), None);
        let cause = with(2).expect("3 > 2");
        assert_eq!(
            cause,
            "The number of failed items is 3, which exceeds error threshold 2. The first failed mini-batch is 1 \
             (/data/1.png), open logs/user/error/0/process000.txt."
        );
    }

    #[test]
    fn failed_command_is_named_by_its_own_error() {
        assert_eq!(command_failed(&tally(vec![succeeded(0, 1, 1, 1)])), None);
        let cause = command_failed(&tally(vec![failed(0, 1, true, 1)])).expect("it has failed");
        assert_eq!(
            cause,
            "The command failed: ValueError: bad value. Open logs/user/error/0/process000.txt."
        );
    }

    #[test]
    fn missing_results_are_named() {
        let short = tally(vec![succeeded(0, 1, 10, 8)]);
        let cause = exceeded(&short, &ErrorThresholds { error_threshold: 1, ..off() }, false)
            .expect("2 > 1");
        assert!(
            cause.ends_with(" run() returned fewer results than it received items."),
            "{cause}"
        );
        assert_eq!(nothing_succeeded(&short), None);
        let cause = nothing_succeeded(&tally(vec![succeeded(0, 1, 10, 0)])).expect("none of ten");
        let expected = "run() returned no results: 0 of 10 items succeeded. Return one result for each item: a list, or \
                        a DataFrame.";
        assert_eq!(cause, expected);
    }

    #[test]
    fn records_that_could_not_be_read_are_named() {
        let kind = WarningKind {
            column: Some("total".into()),
            problem: format!("not a whole number, {RECORD_FAILED}"),
            count: 3,
            first: "t.csv, line 335: \"abc\"".into(),
            remedy: String::new(),
            column_type: None,
        };
        // One of the two records has two such values.
        let unread = || {
            let (path, place, message) = (String::new(), String::new(), String::new());
            UnreadRecord { path, place, records: 2, message }
        };
        let read = |succeeded_items| {
            let warning_kinds = vec![kind.clone()];
            few_results(&tally(vec![Attempt {
                warning_kinds,
                warnings_total: 3,
                unread: vec![unread()],
                ..succeeded(0, 1, 10, succeeded_items)
            }]))
        };
        assert_eq!(read(8), "2 records could not be read, first: t.csv, line 335: \"abc\"");
        assert!(
            read(7).ends_with("\"abc\"; and run() returned fewer results than it received items")
        );
        let none = Attempt {
            warning_kinds: vec![kind.clone()],
            warnings_total: 3,
            unread: vec![unread()],
            ..succeeded(0, 1, 2, 0)
        };
        assert_eq!(
            nothing_succeeded(&tally(vec![none])).as_deref(),
            Some(
                "0 of 2 items succeeded: 2 records could not be read, first: t.csv, line 335: \"abc\"; open \
                 logs/rejects.csv."
            )
        );
    }

    #[test]
    fn failures_that_differ_only_in_numbers_and_paths_are_one_cause() {
        let of_file = |mini_batch| {
            let mut attempt = failed(mini_batch, 1, true, 1);
            attempt.error.as_mut().expect("failed").message =
                format!("cannot read /data/{mini_batch}.png");
            attempt
        };
        let cause =
            nothing_succeeded(&tally((0..4).map(of_file).collect())).expect("none succeeded");
        assert!(
            cause.starts_with(
                "All 4 mini-batches failed; 4 of 4 attempts: ValueError: cannot read /data/0.png"
            ),
            "{cause}"
        );
    }

    #[test]
    fn mini_batch_that_lost_only_some_items_is_a_failed_one() {
        let error = ErrorReport { category: "ValueError".into(), ..Default::default() };
        let rejected = |item| Rejected { error: error.clone(), ..rejected(item) };
        let isolated = |mini_batch| Attempt {
            rejected: vec![rejected(0), rejected(2)],
            extra_runs: 6,
            ..succeeded(mini_batch, 1, 9, 7)
        };
        let mut tally = tally(vec![isolated(0), isolated(1), succeeded(2, 1, 9, 9)]);
        tally.apply(&ResultEvent::Planned(Planned { mini_batches: 3, items: None }));
        let cause = |thresholds| exceeded(&tally, &thresholds, true);
        let count = |allowed_failed_count| cause(ErrorThresholds { allowed_failed_count, ..off() });
        let said = "The number of failed mini batches is 2, which exceeds allowed failed count 1. 2 of them lost only \
                    rejected items.";
        assert!(count(1).is_some_and(|cause| cause.starts_with(said)), "{:?}", count(1));
        assert_eq!(count(2), None);
        let percent =
            |allowed_failed_percent| cause(ErrorThresholds { allowed_failed_percent, ..off() });
        assert!(percent(66.0).is_some_and(|cause| cause.contains("is 66.67 (2 of 3)")));
        assert_eq!(percent(67.0), None);
        let alike = |fail_fast| cause(ErrorThresholds { fail_fast, ..off() });
        assert!(
            alike(2).is_some_and(|cause| cause.contains("occurred 2 times")),
            "once for each mini-batch"
        );
        assert_eq!(alike(3), None);
    }

    #[test]
    fn rejected_items_are_named() {
        let rejected = |count: u64| {
            let reject = |item| Rejected {
                detail: format!("/data/{item}.png"),
                status: AttemptStatus::IllegalResult,
                error: ErrorReport {
                    category: "RowDoesNotFit".into(),
                    message: "no total".into(),
                    ..Default::default()
                },
                ..rejected(item)
            };
            tally(vec![Attempt {
                rejected: (0..count).map(reject).collect(),
                ..succeeded(0, 1, 3, 3 - count)
            }])
        };
        let cause = exceeded(&rejected(2), &ErrorThresholds { error_threshold: 1, ..off() }, false)
            .expect("2 > 1");
        let said = "2 items rejected: RowDoesNotFit: no total; open logs/rejects.csv.";
        assert_eq!(
            cause,
            format!("The number of failed items is 2, which exceeds error threshold 1. {said}")
        );
        assert_eq!(nothing_succeeded(&rejected(2)), None);
        let said = "0 of 3 items succeeded; 3 items rejected: RowDoesNotFit: no total; open logs/rejects.csv.";
        assert_eq!(nothing_succeeded(&rejected(3)).expect("none of three"), said);
    }

    #[test]
    fn failure_of_every_mini_batch_names_its_cause() {
        let open = "open logs/user/error/0/process000.txt.";
        let cause = |attempts| nothing_succeeded(&tally(attempts)).expect("nothing succeeded");
        let one = cause(vec![failed(0, 1, true, 1)]);
        assert_eq!(
            one,
            format!("The only mini-batch failed; 1 of 1 attempt: ValueError: bad value; {open}")
        );
        let tries = (0..7).flat_map(|id| [failed(id, 1, false, 1), failed(id, 2, true, 1)]);
        let all = cause(tries.collect());
        assert_eq!(
            all,
            format!("All 7 mini-batches failed; 14 of 14 attempts: ValueError: bad value; {open}")
        );
        let mixed = cause(vec![succeeded(0, 1, 10, 0), failed(1, 1, true, 1)]);
        assert!(
            mixed.starts_with("run() returned no results: 0 of 11 items succeeded."),
            "{mixed}"
        );
        assert!(mixed.ends_with(
            "The first failed mini-batch is 1 (/data/1.png), open logs/user/error/0/process000.txt."
        ));
    }

    #[test]
    fn retried_mini_batches_are_counted_separately() {
        let tally = tally(
            (0..3).map(|id| failed(id, 1, false, 1)).chain([failed(9, 1, true, 1)]).collect(),
        );
        let thresholds = ErrorThresholds { allowed_failed_count: 1, ..off() };
        let cause = exceeded(&tally, &thresholds, true).expect("4 > 1");
        let expected = "The number of failed mini batches is 4, which exceeds allowed failed count 1. 3 of them failed a \
                        try and had tries left. 4 of 4 attempts ended with ValueError: bad value. The first failed \
                        mini-batch is 9 (/data/9.png), open logs/user/error/0/process000.txt.";
        assert_eq!(cause, expected);
        let mut only_retried = Tally::default();
        only_retried.apply(&event(failed(5, 1, false, 1)));
        let thresholds = ErrorThresholds { allowed_failed_count: 0, ..off() };
        let cause = exceeded(&only_retried, &thresholds, true).expect("1 > 0");
        assert!(
            cause
                .contains(" 1 of them failed a try and had tries left. 1 of 1 attempt ended with "),
            "{cause}"
        );
        assert!(
            cause.contains("The first failed mini-batch is 5 (/data/5.png), open logs/"),
            "{cause}"
        );
    }

    #[test]
    fn polled_count_includes_retried_mini_batches() {
        let tally = tally(vec![
            failed(0, 1, false, 1),
            failed(1, 3, true, 1),
            succeeded(2, 1, 1, 1),
            succeeded(3, 1, 1, 1),
        ]);
        let with = |allowed_failed_count, polled| {
            exceeded(&tally, &ErrorThresholds { allowed_failed_count, ..off() }, polled)
        };
        assert_eq!(with(1, false), None);
        assert_eq!(with(2, true), None);
        let cause = with(1, true).expect("2 > 1");
        let expected =
            "The number of failed mini batches is 2, which exceeds allowed failed count 1.";
        assert!(cause.starts_with(expected), "{cause}");
        assert!(with(0, false).is_some());
    }

    #[test]
    fn percentage_applies_only_to_a_complete_plan() {
        let mut tally = tally(vec![failed(0, 3, true, 1), succeeded(1, 1, 1, 1)]);
        let thresholds = ErrorThresholds { allowed_failed_percent: 24.9, ..off() };
        assert_eq!(exceeded(&tally, &thresholds, true), None);
        tally.apply(&ResultEvent::Planned(Planned { mini_batches: 4, items: None }));
        let cause = exceeded(&tally, &thresholds, true).expect("25 % > 24.9 %");
        assert!(
            cause.starts_with("The percentage of failed mini batches is 25.00 (1 of 4)"),
            "{cause}"
        );
        assert_eq!(
            exceeded(&tally, &ErrorThresholds { allowed_failed_percent: 25.0, ..off() }, true),
            None
        );
        assert_eq!(exceeded(&tally, &off(), true), None);
    }

    #[test]
    fn dominant_cause_is_named() {
        let tally =
            tally(vec![failed(0, 1, true, 1), failed(1, 1, true, 1), succeeded(2, 1, 1, 1)]);
        let cause = exceeded(&tally, &ErrorThresholds { error_threshold: 0, ..off() }, false)
            .expect("exceeded");
        assert!(
            cause.contains(" 2 of 3 attempts ended with ValueError: bad value. The first"),
            "{cause}"
        );
    }

    #[test]
    fn equal_failures_end_job_with_fail_fast() {
        let mut attempts =
            vec![failed(0, 1, false, 1), succeeded(1, 1, 1, 1), failed(0, 2, false, 1)];
        let with = |attempts: &Vec<_>, fail_fast| {
            exceeded(&tally(attempts.clone()), &ErrorThresholds { fail_fast, ..off() }, false)
        };
        assert_eq!((with(&attempts, 0), with(&attempts, 3)), (None, None));
        let cause = with(&attempts, 2).expect("two");
        let expected = "The same failure occurred 2 times, and fail_fast is 2: ValueError: bad value. Open \
                        logs/user/error/0/process000.txt.";
        assert!(cause.starts_with(expected), "{cause}");
        attempts.push(failed(2, 3, true, 1));
        assert!(with(&attempts, 3).expect("three").contains("occurred 3 times"));
    }
}
