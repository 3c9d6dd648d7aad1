//! The summary of an ended job.

use std::fmt::Write;

use engine::State;
use engine::targets::TargetRef;
use engine::words::{clause, counted, kept, sentence, took};
use protocol::{Counts, FailedMiniBatch, JobResult, JobState, RoundResult};

use crate::remedies::flags;

/// Returns the summary of a job. `target`: the target where later commands find it.
pub fn summary(result: &JobResult, target: &TargetRef) -> String {
    let mut text = String::new();
    let elapsed = took(result.elapsed_seconds, result.worked_seconds);
    let id = &result.job_id;
    let _ = match (&result.headline, result.state) {
        (Some(headline), _) => {
            writeln!(text, "job {id} {}\n  elapsed: {elapsed}", sentence(headline))
        }
        (None, JobState::Running) => writeln!(text, "job {id} running for {elapsed}"),
        // It ended before its first progress.
        (None, state) if result.elapsed_seconds == 0.0 => {
            writeln!(text, "job {id} {}", State::from(state).word())
        }
        (None, state) => writeln!(text, "job {id} {} in {elapsed}", State::from(state).word()),
    };
    if let Some(cause) = &result.cause {
        let _ = writeln!(text, "  cause: {cause}");
    }
    // If mini-batches failed, `failures` quotes their output.
    let start = result
        .failures
        .first()
        .filter(|first| first.mini_batches.is_empty() && result.state == JobState::Failed);
    quote_printed(start.map_or("", |start| &start.printed), &mut text);
    let retrying = match result.retrying {
        0 => String::new(),
        retrying => format!(", {retrying} failed a try and had tries left"),
    };
    if !result.command {
        let _ = writeln!(text, "  mini-batches: {}{retrying}", tallied(&result.mini_batches));
        let _ = writeln!(text, "  items: {}", tallied(&result.items));
    }
    if result.extra_runs > 0 {
        let (runs, items) =
            (counted(result.extra_runs, "extra run"), counted(result.items_rejected, "item"));
        let _ = writeln!(
            text,
            "  isolation: {runs} of pieces of {}; {items} failed alone",
            result.divided.sentence()
        );
    } else if result.items_rejected > 0 {
        let _ = writeln!(text, "  items rejected: {}", result.items_rejected);
    }
    if result.items_kept > 0 {
        let _ = writeln!(text, "  checkpoints: {}", kept(result.items_kept));
    }
    if let Some(waits) = result.waited.sentence() {
        let _ = writeln!(text, "  processes {waits}");
    }
    if result.copies != Default::default() {
        let _ = writeln!(text, "  speculation: {}", result.copies.sentence());
    }
    match result.command {
        // The cause names its error.
        true => quote_printed(
            result.failed_mini_batches.first().map_or("", |failed| &failed.printed),
            &mut text,
        ),
        false => failures(result, &mut text),
    }
    if let Some(rejects) = result.rejects.as_ref().filter(|_| !result.command) {
        let _ = writeln!(text, "  rejects: {}, in {}", counted(rejects.items, "item"), rejects.csv);
    }
    warnings(result, &mut text);
    for note in &result.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    for line in rounds(&result.rounds) {
        let _ = writeln!(text, "{line}");
    }
    if let Some(output) = &result.output {
        let _ = writeln!(text, "  output: {output}");
    }
    for (name, folder) in &result.outputs {
        let _ = writeln!(text, "  output {name}: {folder}");
    }
    if result.mini_batches.failed > 0 || result.items.failed > 0 || result.state == JobState::Failed
    {
        let _ = writeln!(text, "  open: {}/job_result.txt", result.logs);
    }
    let first = match result.state {
        JobState::Failed => Some("correct the cause, then "),
        JobState::Canceled => Some(""),
        _ => None,
    };
    if let Some(first) = first {
        let _ = writeln!(text, "  {first}continue with: gristmill retry {id}{}", flags(target));
    }
    let lacks = result.mini_batches.failed + result.rejects_to_retry();
    if result.state == JobState::Completed && lacks > 0 && !result.command {
        let _ =
            writeln!(text, "  run what failed again with: gristmill retry {id}{}", flags(target));
    }
    let _ = write!(text, "  logs: {}", result.logs);
    text
}

/// Returns the rounds of a job, as lines.
pub fn rounds(rounds: &[RoundResult]) -> impl Iterator<Item = String> {
    (1..).zip(rounds).map(|(number, round)| format!("  round {number} {}", round.sentence()))
}

fn tallied(counts: &Counts) -> String {
    let Counts { total, succeeded, failed } = counts;
    match total {
        0 if counts.ended() > 0 => {
            format!("{succeeded} succeeded, {failed} failed; the total is unknown")
        }
        _ => format!("{succeeded} of {total} succeeded, {failed} failed"),
    }
}

/// Lists the failed mini-batches of the result. Those with the same error share a line.
fn failures(result: &JobResult, text: &mut String) {
    let mut alike: Vec<(&FailedMiniBatch, u64)> = Vec::new();
    for failed in &result.failed_mini_batches {
        match alike.iter_mut().find(|(first, _)| first.error == failed.error) {
            Some((_, others)) => *others += 1,
            None => alike.push((failed, 0)),
        }
    }
    for (first, others) in alike {
        let open = if first.log.is_empty() {
            String::new()
        } else {
            format!("; open {}/{}", result.logs, first.log)
        };
        let others = if others > 0 { format!(" and {others} more") } else { String::new() };
        let (id, detail) = (first.mini_batch, &first.detail);
        let _ = writeln!(
            text,
            "  failed: mini-batch {id} ({detail}){others}: {}{open}",
            clause(&first.error)
        );
        quote_printed(&first.printed, text);
    }
    let unnamed =
        result.mini_batches.failed.saturating_sub(result.failed_mini_batches.len() as u64);
    if unnamed > 0 {
        let file = format!("{}/sys/job_report/processed_mini-batches.csv", result.logs);
        let _ = writeln!(text, "  failed: {}, in {file}", counted(unnamed, "more mini-batch"));
    }
}

fn quote_printed(lines: &str, text: &mut String) {
    for line in lines.lines() {
        let _ = writeln!(text, "    it printed: {line}");
    }
}

fn warnings(result: &JobResult, text: &mut String) {
    let of_kinds = result.warning_kinds.iter().map(|kind| kind.count).fold(0, u64::saturating_add);
    let named = of_kinds.saturating_add(result.first_warnings.len() as u64);
    if result.warnings == 0 {
        return;
    }
    let _ = writeln!(text, "  warnings: {}", result.warnings);
    for kind in &result.warning_kinds {
        let _ = writeln!(text, "    {kind}");
    }
    for warning in &result.first_warnings {
        let _ = writeln!(text, "    {warning}");
    }
    let file = format!("{}/sys/warning/mini-batch_warnings.txt", result.logs);
    if result.warnings <= named && of_kinds > 0 {
        let _ = writeln!(text, "    all of them are in {file}");
    }
    if result.warnings > named {
        let _ = writeln!(text, "    {} more, in {file}", result.warnings - named);
    }
}

#[cfg(test)]
mod tests {
    use protocol::FailureCause;

    use super::*;

    fn failed(mini_batch: u64, error: &str) -> FailedMiniBatch {
        FailedMiniBatch {
            mini_batch,
            detail: format!("/in/{}", mini_batch + 1),
            error: error.into(),
            log: "user/error/0/process001.txt".into(),
            printed: String::new(),
        }
    }

    fn result(state: JobState) -> JobResult {
        JobResult {
            elapsed_seconds: 75.0,
            worked_seconds: 75.0,
            ..JobResult::new("score-20261121-100203-ab12".into(), state, "/jobs/1/logs".into())
        }
    }

    #[test]
    fn script_that_does_not_start_is_quoted() {
        let start = FailureCause {
            error: "SystemExit: 1".into(),
            attempts: 2,
            mini_batches: vec![],
            log: "user/error/0/process000.txt".into(),
            printed: "loading the model\nno such file".into(),
        };
        let failed = JobResult {
            cause: Some("Node 0 stopped.".into()),
            failures: vec![start],
            ..result(JobState::Failed)
        };
        let text = summary(&failed, &TargetRef::default());
        let quoted = "  cause: Node 0 stopped.\n    it printed: loading the model\n    it printed: no such file\n";
        assert!(text.contains(quoted), "{text}");
    }

    #[test]
    fn failure_has_cause_file_and_next_step() {
        let result = JobResult {
            cause: Some("The number of failed items is 3, which exceeds error threshold 2.".into()),
            mini_batches: Counts { total: 10, succeeded: 7, failed: 3 },
            items: Counts { total: 10, succeeded: 7, failed: 3 },
            failed_mini_batches: vec![failed(4, "ValueError: five is bad.")],
            ..result(JobState::Failed)
        };
        let expected = "\
job score-20261121-100203-ab12 failed in 1 min 15 s
  cause: The number of failed items is 3, which exceeds error threshold 2.
  mini-batches: 7 of 10 succeeded, 3 failed
  items: 7 of 10 succeeded, 3 failed
  failed: mini-batch 4 (/in/5): ValueError: five is bad; open /jobs/1/logs/user/error/0/process001.txt
  failed: 2 more mini-batches, in /jobs/1/logs/sys/job_report/processed_mini-batches.csv
  open: /jobs/1/logs/job_result.txt
  correct the cause, then continue with: gristmill retry score-20261121-100203-ab12 --target prod
  logs: /jobs/1/logs";
        assert_eq!(summary(&result, &TargetRef::Named("prod".to_owned())), expected);
    }

    #[test]
    fn job_that_ended_before_its_first_progress_has_no_time() {
        let result = JobResult {
            cause: Some("the engine stopped".into()),
            elapsed_seconds: 0.0,
            worked_seconds: 0.0,
            ..result(JobState::Failed)
        };
        let text = summary(&result, &TargetRef::ThisMachine);
        let expected = "job score-20261121-100203-ab12 failed\n  cause: the engine stopped\n";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn headline_of_job_with_failures_comes_first() {
        let headline = "completed with failures: 2 of 7 mini-batches failed (ValueError: bad); see logs/job_error.txt";
        let mut printed = failed(0, "ValueError: bad");
        printed.printed = "reading a\nnot a number".into();
        let result = JobResult {
            headline: Some(headline.into()),
            output: Some("/out/rows.txt".into()),
            mini_batches: Counts { total: 7, succeeded: 5, failed: 2 },
            items: Counts { total: 7, succeeded: 5, failed: 2 },
            failed_mini_batches: vec![printed, failed(1, "ValueError: bad")],
            ..result(JobState::Completed)
        };
        let text = summary(&result, &TargetRef::ThisMachine);
        assert!(
            text.starts_with(&format!(
                "job score-20261121-100203-ab12 {headline}.\n  elapsed: 1 min 15 s\n"
            )),
            "{text}"
        );
        let group = "  failed: mini-batch 0 (/in/1) and 1 more: ValueError: bad; open /jobs/1/logs/user/error/0/process001.txt\n    \
                     it printed: reading a\n    it printed: not a number\n";
        assert!(text.contains(group), "{text}");
        assert!(
            text.contains(
                "  run what failed again with: gristmill retry score-20261121-100203-ab12\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn summary_of_a_command_has_no_mini_batches() {
        let mut failed = failed(0, "ValueError: bad");
        failed.printed = "reading a".into();
        let result = JobResult {
            cause: Some("The command failed: ValueError: bad.".into()),
            command: true,
            failed_mini_batches: vec![failed],
            ..result(JobState::Failed)
        };
        let text = summary(&result, &TargetRef::ThisMachine);
        assert!(
            text.contains("\n  cause: The command failed: ValueError: bad.\n    it printed: reading a\n  open:"),
            "{text}"
        );
        assert!(!text.contains("mini-batch") && !text.contains("items:"), "{text}");
    }

    #[test]
    fn warnings_are_listed() {
        let warned = |warnings, first: &[&str]| {
            let first_warnings = first.iter().map(|line| (*line).to_owned()).collect();
            summary(
                &JobResult { warnings, first_warnings, ..result(JobState::Completed) },
                &TargetRef::ThisMachine,
            )
        };
        assert!(!warned(0, &[]).contains("warning"));
        let one = warned(1, &["mini-batch 0: 'x' is no number"]);
        assert!(
            one.contains("  warnings: 1\n    mini-batch 0: 'x' is no number\n  logs:"),
            "{one}"
        );
        let more = warned(1_000_000, &["mini-batch 0: 'x' is no number"]);
        assert!(
            more.contains("    999999 more, in /jobs/1/logs/sys/warning/mini-batch_warnings.txt\n"),
            "{more}"
        );
    }

    #[test]
    fn counts_agree_with_each_other() {
        assert_eq!(tallied(&Counts::default()), "0 of 0 succeeded, 0 failed");
        assert_eq!(
            tallied(&Counts { total: 0, succeeded: 9, failed: 1 }).split(';').next(),
            Some("9 succeeded, 1 failed")
        );
        let mini_batches = Counts { total: 20, ..Counts::default() };
        let result = JobResult { retrying: 8, mini_batches, ..result(JobState::Failed) };
        let expected =
            "  mini-batches: 0 of 20 succeeded, 0 failed, 8 failed a try and had tries left\n";
        assert!(summary(&result, &TargetRef::ThisMachine).contains(expected));
    }
}
