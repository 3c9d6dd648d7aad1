//! Tests of the document of a job.

use protocol::AttemptStatus::{RunRaised, Succeeded};
use protocol::{Attempt, SlotPhase};
use reducer::Reducer;

use super::*;
use crate::fixtures::{history, running, tried, words};

fn can(spec: &JobSpec, written: Option<&str>, is_of_this_machine: bool) -> bool {
    output(spec, written, is_of_this_machine).downloadable
}

#[test]
fn download_is_offered_of_a_file_that_the_portal_can_read() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("rows.txt").display().to_string();
    std::fs::write(&file, "row\n").expect("writable");
    let mut spec = JobSpec::example();
    spec.output.folder = folder.path().into();
    assert!(can(&spec, Some(&file), true));
    assert!(!can(&spec, None, true), "not written yet");
    assert!(!can(&spec, Some(&format!("{file}.gone")), true));
    assert!(!can(&spec, Some(&file), false), "a file of another machine that is here, too");
    spec.output.action = OutputAction::SummaryOnly;
    assert!(!can(&spec, Some(&folder.path().display().to_string()), true), "a folder");
    spec.output.action = OutputAction::AppendRow;
    spec.output.folder = "s3://bucket/out".into();
    assert!(can(&spec, Some("s3://bucket/out/rows.txt"), false));
}

fn described(spec: JobSpec, attempts: &[Attempt], progress: Progress) -> Job {
    let view = running(history(attempts), spec, Some(progress));
    let history = view.history();
    Job::new(&view, &history, words(), "", false)
}

#[test]
fn gauges_show_how_near_each_limit_is() {
    let spec = JobSpec {
        thresholds: ErrorThresholds {
            error_threshold: 10,
            allowed_failed_percent: 5.0,
            fail_fast: 20,
            ..Default::default()
        },
        run_max_try: 4,
        progress_update_timeout_seconds: 600,
        ..JobSpec::example()
    };
    let whole = |mini_batch| Attempt { succeeded: 4, ..tried(mini_batch, 1, Succeeded) };
    let last = Attempt { is_final: true, ..tried(2, 3, RunRaised) };
    let attempts = [whole(0), whole(1), tried(2, 1, RunRaised), tried(2, 2, RunRaised), last];
    let started_at = 1_700_000_000_000;
    let progress = Progress {
        started_at,
        // Half a minute after the last attempt, which ended after a second.
        at: started_at + 31_000,
        mini_batches: Counts { total: 12, succeeded: 2, failed: 1 },
        items: Counts { total: 48, succeeded: 8, failed: 4 },
        retrying: 2,
        rate: Some(0.1),
        remaining_seconds: Some(90),
        ..Reducer::no_progress()
    };
    let job = described(spec, &attempts, progress);
    let gauges: Vec<_> = job
        .gauges
        .iter()
        .map(|gauge| (gauge.key, gauge.value, gauge.limit, gauge.fails_when))
        .collect();
    let expected = [
        ("error_threshold", 4.0, Some(10.0), "above"),
        ("allowed_failed_count", 3.0, None, "above"),
        ("allowed_failed_percent", 100.0 / 12.0, Some(5.0), "above"),
        ("fail_fast", 3.0, Some(20.0), "reached"),
        ("run_max_try", 3.0, Some(4.0), "above"),
        ("progress_update_timeout", 30.0, Some(600.0), "above"),
    ];
    assert_eq!(gauges, expected);
    assert_eq!((job.rate, job.numbers.eta_seconds), (Some(0.1), Some(90.0)));
}

#[test]
fn note_counts_attempts_that_are_left_out() {
    assert_eq!(left_out(0), None);
    let expected = "2 attempts are only counted, and no page shows them one by one: it shows 3000000 attempts and 65535 \
                    processes of a job at most";
    assert_eq!(left_out(2).as_deref(), Some(expected));
}

#[test]
fn mark_changes_with_the_reason_for_waiting() {
    let waiting = Waiting {
        node: "0".to_owned(),
        process: "process001".to_owned(),
        mini_batch: Some(3),
        phase: SlotPhase::Run,
        seconds: 30,
        since: 1_700_000_000_000,
        detail: String::new(),
        stack: "File \"entry.py\", line 3, in run".to_owned(),
        printed: String::new(),
    };
    let mark = |waiting: Waiting| {
        let progress = Progress { waiting: vec![waiting], ..Reducer::no_progress() };
        described(JobSpec::example(), &[tried(0, 1, Succeeded)], progress).mark()
    };
    let known = mark(waiting.clone());
    assert_eq!(
        mark(Waiting { seconds: 31, ..waiting.clone() }),
        known,
        "time passes without an event"
    );
    let others = [
        Waiting { mini_batch: Some(4), ..waiting.clone() },
        Waiting { process: "process002".to_owned(), ..waiting.clone() },
        Waiting { stack: "File \"entry.py\", line 4, in run".to_owned(), ..waiting.clone() },
        Waiting { since: 1_700_000_009_000, ..waiting.clone() },
    ];
    for other in others {
        assert_ne!(mark(other), known);
    }
}
