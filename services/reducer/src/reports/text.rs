//! The texts of reports, as pure functions.

use std::fmt::Write;
use std::time::Duration;

use protocol::words::{counted, kept, sentence};
use protocol::{JobResult, JobState, Waiting};

use crate::failures::EXAMPLES_MAX;
use crate::{Failures, Tally};

/// Returns a duration in the format of Python: `5:02:14`, or `1 day, 0:00:00`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let clock = format!("{}:{:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    match seconds / 86400 {
        0 => clock,
        1 => format!("1 day, {clock}"),
        days => format!("{days} days, {clock}"),
    }
}

/// Returns the progress for the overview.
pub(super) fn progress(tally: &Tally, elapsed: Duration, remaining: Option<Duration>) -> String {
    let ended = tally.ended();
    if ended == 0 {
        return "No task has been processed yet.".to_owned();
    }
    let elapsed = duration(elapsed);
    let Some(planned) = tally.planned() else {
        return format!(
            "Processed {} in {elapsed}. Scheduling continues.",
            counted(ended, "mini batch")
        );
    };
    let rest = match remaining {
        Some(_) if ended >= planned.mini_batches => String::new(),
        Some(remaining) => format!(" Estimated remaining time {}.", duration(remaining)),
        None => String::new(),
    };
    format!(
        "Processed {ended} of {} in {elapsed}.{rest}",
        counted(planned.mini_batches, "mini batch")
    )
}

/// `job_result.txt`.
pub(super) fn job_result(
    result: &JobResult,
    tally: &Tally,
    starts: &str,
    waits: &[Waiting],
    warnings: &[String],
) -> String {
    let mut text = format!("Job {} ended: {:?}.\n", result.job_id, result.state);
    if let Some(cause) = &result.cause {
        let _ = writeln!(text, "Cause: {cause}");
    }
    if let Some(headline) = &result.headline {
        let _ = writeln!(text, "The job {}", sentence(headline));
    }
    for (name, counts) in [("Mini-batches", result.mini_batches), ("Items", result.items)] {
        let total = if counts.total == 0 {
            "not all known".to_owned()
        } else {
            format!("{} in all", counts.total)
        };
        let _ = writeln!(
            text,
            "{name}: {total}, {} succeeded, {} failed.",
            counts.succeeded, counts.failed
        );
    }
    if result.retrying > 0 {
        let _ = writeln!(
            text,
            "Failed a try and had tries left: {}.",
            counted(result.retrying, "mini-batch")
        );
    }
    let _ = writeln!(
        text,
        "Retries: {}. Deliveries lost with their node: {}. Duplicates dropped: {}.",
        tally.retries(),
        tally.deliveries_lost_total(),
        result.duplicates_dropped
    );
    if result.extra_runs > 0 {
        let (runs, items) =
            (counted(result.extra_runs, "extra run"), counted(result.items_rejected, "item"));
        let pieces = result.divided.sentence();
        let _ = writeln!(
            text,
            "Isolation of failing items: {runs} of pieces of {pieces}; {items} failed alone."
        );
    } else if result.items_rejected > 0 {
        let _ = writeln!(text, "Items rejected: {}.", result.items_rejected);
    }
    if result.items_kept > 0 {
        let _ = writeln!(text, "{}.", kept(result.items_kept));
    }
    if let Some(waits) = result.waited.sentence() {
        let _ = writeln!(text, "Its processes {waits}.");
    }
    if result.copies != Default::default() {
        let _ = writeln!(
            text,
            "Mini-batches that ran far longer than others: {}.",
            result.copies.sentence()
        );
    }
    let elapsed = Duration::try_from_secs_f64(result.elapsed_seconds).unwrap_or_default();
    let _ = writeln!(text, "Elapsed: {}.", duration(elapsed));
    text += starts;
    for note in tally.nodes().notes() {
        let _ = writeln!(text, "Note: {}", sentence(&note));
    }
    if let Some(output) = &result.output {
        let _ = writeln!(text, "Output: {output}");
    }
    if let Some(rejects) = &result.rejects {
        let _ =
            writeln!(text, "Rejected: {}, see {}.", counted(rejects.items, "item"), rejects.csv);
    }
    write_given_up(tally, &mut text);
    write_waiting(waits, &mut text);
    if tally.warnings().count() > 0 || !warnings.is_empty() {
        let _ = writeln!(text, "\nWarnings:");
        for warning in warnings {
            let _ = writeln!(text, "  {warning}");
        }
        for kind in &result.warning_kinds {
            let _ = writeln!(text, "  {kind}");
        }
        if tally.warnings().count() > 0 {
            let count = counted(tally.warnings().count(), "warning");
            let _ = writeln!(
                text,
                "  {count} of mini-batches, see logs/sys/warning/mini-batch_warnings.txt"
            );
        }
    }
    if !tally.failures().groups().is_empty() {
        let _ = writeln!(text, "\nErrors of the entry script: see logs/job_error.txt.");
    }
    let _ = writeln!(text, "Layout of the logs: see logs/readme.txt.");
    text
}

fn write_given_up(tally: &Tally, text: &mut String) {
    let failed = tally.mini_batches().failed;
    if failed == 0 {
        return;
    }
    let _ = writeln!(text, "\nFailed mini-batches ({failed}), the first:");
    for given_up in tally.failures().given_up_first() {
        let log = &given_up.error.log;
        let open = if log.is_empty() { String::new() } else { format!(" Open logs/{log}.") };
        let (id, detail, tries) = (given_up.mini_batch, &given_up.detail, given_up.tries);
        let error = sentence(&given_up.error_line());
        let _ = writeln!(text, "  mini-batch {id} ({detail}), tries: {tries}, {error}{open}");
    }
}

fn write_waiting(waits: &[Waiting], text: &mut String) {
    for waiting in waits {
        let _ = writeln!(text, "\nStill waiting for {waiting}.");
        for line in waiting.stack.lines() {
            let _ = writeln!(text, "  {line}");
        }
        write_printed(&waiting.printed, text);
    }
}

/// Quotes the last lines that a script has printed.
fn write_printed(lines: &str, text: &mut String) {
    if !lines.is_empty() {
        let _ = writeln!(text, "  printed last:");
        for line in lines.lines() {
            let _ = writeln!(text, "    {line}");
        }
    }
}

/// `job_error.txt`.
pub(super) fn job_error(tally: &Tally) -> String {
    let groups = tally.failures().groups();
    let Some(first) = groups.first() else {
        return match tally.ended_as() {
            Some((JobState::Failed, Some(cause), _)) => {
                format!("No error of the entry script. The job failed: {cause}\n")
            }
            _ => "No errors.\n".to_owned(),
        };
    };
    let total: u64 = groups.iter().map(|group| group.count).sum();
    let (errors, kinds) = (counted(total, "error"), counted(groups.len() as u64, "kind"));
    let order = if first.ended_job {
        "the one that ended the job and then the most frequent"
    } else {
        "the most frequent"
    };
    let mut text = format!("{errors} of {kinds}, {order} first.\n");
    for group in groups {
        let message =
            if group.message.is_empty() { "(many different messages)" } else { &group.message };
        let _ = writeln!(text, "\n{} {}: {message}", counted(group.count, "time"), group.category);
        if group.has_others {
            let _ = writeln!(
                text,
                "  this is the first message; the others differ in numbers, paths or quoted texts"
            );
        }
        if group.ended_job {
            let _ = writeln!(text, "  it ended the job");
        } else if group.mini_batches.is_empty() {
            let _ = writeln!(text, "  in init()");
        } else {
            let more = if group.mini_batches.len() == EXAMPLES_MAX { ", …" } else { "" };
            let ids: Vec<_> = group.mini_batches.iter().map(u64::to_string).collect();
            let _ = writeln!(text, "  mini-batches: {}{more}", ids.join(", "));
        }
        if !group.log.is_empty() {
            let _ = writeln!(text, "  open logs/{}", group.log);
        }
        write_printed(&group.printed, &mut text);
    }
    text
}

/// `user/error.txt`.
pub(super) fn user_error(failures: &Failures) -> String {
    let mut text = String::new();
    for group in failures.groups() {
        let _ = writeln!(text, "{} {}", counted(group.count, "time"), group.error());
        let _ = writeln!(text, "{}\n", group.traceback.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use protocol::{JobState, Planned, ResultEvent};

    use super::*;
    use crate::fixtures::{event, failed, succeeded, tally_of};

    fn tally() -> Tally {
        tally_of([succeeded(0, 1, 2, 2), failed(1, 1, false, 2), failed(1, 3, true, 2)])
    }

    #[test]
    fn durations_have_the_format_of_python() {
        assert_eq!(duration(Duration::from_secs(18134)), "5:02:14");
        assert_eq!(duration(Duration::from_secs(86400)), "1 day, 0:00:00");
        assert_eq!(duration(Duration::from_secs(3 * 86400 + 61)), "3 days, 0:01:01");
    }

    #[test]
    fn overview_says_how_much_is_done_and_how_long_the_rest_takes() {
        let (mut tally, elapsed) = (tally(), Duration::from_secs(10));
        assert_eq!(progress(&Tally::default(), elapsed, None), "No task has been processed yet.");
        let planning = "Processed 2 mini batches in 0:00:10. Scheduling continues.";
        assert_eq!(progress(&tally, elapsed, None), planning);
        tally.apply(&ResultEvent::Planned(Planned { mini_batches: 5, items: None }));
        assert_eq!(progress(&tally, elapsed, None), "Processed 2 of 5 mini batches in 0:00:10.");
        let expected =
            "Processed 2 of 5 mini batches in 0:00:10. Estimated remaining time 0:00:15.";
        assert_eq!(progress(&tally, elapsed, Some(Duration::from_secs(15))), expected);
    }

    #[test]
    fn messages_that_differ_in_numbers_are_one_kind_of_error() {
        let of = |rows: &[u64]| {
            let mut tally = Tally::default();
            for (mini_batch, row) in (0..).zip(rows) {
                let mut attempt = failed(mini_batch, 1, true, 1);
                attempt.error.as_mut().expect("failed").message = format!("row {row} is bad");
                tally.apply(&event(attempt));
            }
            job_error(&tally)
        };
        let differ = of(&[7, 8]);
        let expected = "2 errors of 1 kind, the most frequent first.\n\n2 times ValueError: row 7 is bad\n  this is the first \
                        message; the others differ in numbers, paths or quoted texts\n";
        assert!(differ.starts_with(expected), "{differ}");
        assert!(!of(&[7, 7]).contains("differ"));
    }

    #[test]
    fn result_names_the_failed_mini_batch_and_the_file_to_open() {
        let tally = tally();
        let result = JobResult {
            cause: Some("The number of failed items is 2, which exceeds error threshold 1.".into()),
            mini_batches: tally.mini_batches(),
            items: tally.items(),
            elapsed_seconds: 61.0,
            ..JobResult::new("digits".into(), JobState::Failed, "/jobs/digits/logs".into())
        };
        let text = job_result(&result, &tally, "", &[], &["a warning".into()]);
        assert!(
            text.starts_with("Job digits ended: Failed.\nCause: The number of failed items is 2"),
            "{text}"
        );
        let failed = "  mini-batch 1 (/data/1.png), tries: 3, ValueError: bad value. Open \
                      logs/user/error/0/process000.txt.\n";
        assert!(text.contains(failed), "{text}");
        assert!(text.contains("\nWarnings:\n  a warning\n"), "{text}");
        assert!(text.contains("Elapsed: 0:01:01."), "{text}");
    }

    #[test]
    fn errors_are_grouped_and_counted() {
        let mut printing = failed(3, 1, false, 1);
        let error = printing.error.as_mut().expect("failed");
        (error.message, error.printed) = ("worse".into(), "opening a\nno such file".into());
        let mut tally = tally();
        tally.apply(&event(printing));
        let text = job_error(&tally);
        assert!(text.contains("\n2 times ValueError: bad value\n  mini-batches: 1\n"), "{text}");
        assert!(text.contains("\n  printed last:\n    opening a\n    no such file\n"), "{text}");
        assert!(user_error(tally.failures()).contains("Traceback: bad value"));
        assert_eq!(job_error(&Tally::default()), "No errors.\n");
    }
}
