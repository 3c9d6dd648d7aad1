use std::sync::{Arc, RwLock};

use bytes::Bytes;
use protocol::{
    Attempt, AttemptStatus, ErrorReport, JobResult, JobSpec, JobState, Phases, Planned,
    ResultEvent, Rows, encode_record,
};
use reducer::MiniBatchState;
use storage::JobStore;

use super::*;
use crate::FoundJob;

pub(crate) fn attempt(
    mini_batch: u64,
    try_number: u32,
    status: AttemptStatus,
    is_final: bool,
) -> Attempt {
    let has_failed = status != AttemptStatus::Succeeded;
    Attempt {
        mini_batch,
        try_number,
        node: "n".into(),
        process: format!("process00{}", mini_batch % 2).into(),
        status,
        is_final,
        total: 4,
        succeeded: if has_failed { 0 } else { 3 },
        rows: if has_failed { Rows::None } else { Rows::Inline },
        started_at: 1_700_000_000_000 + mini_batch,
        elapsed_seconds: 0.5,
        process_seconds: 0.25,
        run_seconds: 0.375,
        phases: Phases::new(0.0625, 0.25, 0.09375),
        error: has_failed.then(|| {
            Box::new(ErrorReport {
                category: "ValueError".into(),
                message: "bad, \"very\"".into(),
                ..Default::default()
            })
        }),
        detail: format!("/in/{mini_batch}, \"a\".txt"),
        ..Attempt::default()
    }
}

fn segment(events: &[ResultEvent]) -> Bytes {
    let mut bytes = Vec::new();
    for event in events {
        encode_record(event, b"row\n", &mut bytes);
    }
    bytes.into()
}

fn ended(mini_batch: u64, try_number: u32, status: AttemptStatus, is_final: bool) -> ResultEvent {
    ResultEvent::Attempt(Box::new(attempt(mini_batch, try_number, status, is_final)))
}

fn job() -> (tempfile::TempDir, FoundJob) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let store = JobStore::local(folder.path()).expect("folder exists");
    (folder, FoundJob::new(store, JobSpec::example()))
}

#[test]
fn attempt_takes_72_bytes() {
    assert_eq!(size_of::<AttemptSummary>(), 72);
}

#[test]
fn history_has_the_states_of_the_tally() {
    let mut history = History::default();
    history
        .add_segment(&segment(&[
            ResultEvent::Planned(Planned { mini_batches: 5, items: Some(20) }),
            ended(0, 1, AttemptStatus::Succeeded, true),
            ended(1, 1, AttemptStatus::RunRaised, false),
            ended(2, 1, AttemptStatus::RunTimedOut, false),
        ]))
        .expect("valid");
    let first = history.version();
    let after = segment(&[
        ended(1, 2, AttemptStatus::Succeeded, true),
        ended(2, 2, AttemptStatus::RunRaised, true),
        ended(9, 1, AttemptStatus::Succeeded, true),
    ]);
    history.add_segment(&after).expect("valid");
    let states: Vec<_> = (0..5).map(|mini_batch| history.state(mini_batch)).collect();
    use MiniBatchState::{Failed, Pending, Succeeded};
    assert_eq!(states, [Succeeded, Succeeded, Failed, Pending, Pending]);
    assert_eq!((history.mini_batches(), history.attempts_kept()), (5, 5), "9 is outside the plan");
    let tries: Vec<_> =
        history.attempts_of(1).map(|attempt| (attempt.try_number, attempt.counts())).collect();
    assert_eq!(tries, [(2, true), (1, false)]);
    assert_eq!(history.shown(2).map(|attempt| attempt.status), Some(AttemptStatus::RunRaised));
    assert_eq!(history.changed_since(first).collect::<Vec<_>>(), vec![0..4096]);
    assert_eq!(history.changed_since(history.version()).count(), 0);
    let sums: Vec<_> =
        history.processes().iter().map(|process| (process.attempts, process.failed)).collect();
    assert_eq!(sums, [(3, 2), (2, 1)]);
}

#[test]
fn attempts_of_more_processes_than_have_a_position_are_counted() {
    let mut history = History::default();
    let events: Vec<_> = (0..PROCESSES_MAX as u64 + 3)
        .map(|number| {
            let mut attempt = attempt(number, 1, AttemptStatus::Succeeded, true);
            attempt.process = format!("process{number}").into();
            ResultEvent::Attempt(Box::new(attempt))
        })
        .collect();
    history.add_segment(&segment(&events)).expect("readable");
    assert_eq!(
        (history.processes().len(), history.attempts_kept()),
        (PROCESSES_MAX, PROCESSES_MAX)
    );
    assert_eq!(history.attempts_left_out(), 3);
    assert_eq!(
        history.tally().mini_batches().succeeded,
        PROCESSES_MAX as u64 + 3,
        "the tally has them"
    );
}

#[test]
fn lost_rows_and_reopening_are_seen() {
    let mut history = History::default();
    let all =
        [ended(0, 1, AttemptStatus::Succeeded, true), ended(1, 1, AttemptStatus::RunRaised, true)];
    history.add_segment(&segment(&all)).expect("valid");
    let reopened = [
        ResultEvent::RowsLost { mini_batches: vec![0] },
        ResultEvent::Round(protocol::Round { at: 7, failed: true, ..Default::default() }),
    ];
    history.add_segment(&segment(&reopened)).expect("valid");
    assert_eq!(
        (history.state(0), history.state(1)),
        (MiniBatchState::Pending, MiniBatchState::Pending)
    );
    assert!(!history.shown(0).expect("it was tried").counts());
    assert_eq!(history.tally().round_results().last().and_then(|round| round.at), Some(7));
}

#[test]
fn damaged_segment_changes_nothing() {
    let mut history = History::default();
    let whole = segment(&[
        ended(0, 1, AttemptStatus::Succeeded, true),
        ended(1, 1, AttemptStatus::Succeeded, true),
    ]);
    history.add_segment(&whole.slice(..whole.len() - 3)).expect_err("cut short");
    history.add_segment(&Bytes::new()).expect_err("empty");
    assert_eq!((history.attempts_kept(), history.origin()), (0, Origin::Nothing));
    history.add_segment(&whole).expect("repaired");
    assert_eq!(history.attempts_kept(), 2);
}

#[tokio::test]
async fn running_job_is_read_as_it_grows_and_its_records_are_found() {
    let (_folder, job) = job();
    let history = Arc::new(RwLock::new(History::default()));
    assert!(!job.update_history(&history).await.expect("readable"));
    for mini_batch in 0..3 {
        let bytes = segment(&[ended(mini_batch, 1, AttemptStatus::Succeeded, true)]);
        job.store.commit_segment(mini_batch, vec![bytes]).await.expect("writable");
        assert!(job.update_history(&history).await.expect("readable"));
    }
    let places: Vec<_> =
        history.read().expect("whole").attempts().map(|attempt| attempt.place).collect();
    let records = job.recorded_attempts(Origin::Ledger, &places).await;
    for (mini_batch, record) in records.into_iter().enumerate() {
        let record = record.expect("recorded");
        assert_eq!(record.attempt, attempt(mini_batch as u64, 1, AttemptStatus::Succeeded, true));
        assert_eq!(&record.rows[..], b"row\n");
    }
}

#[tokio::test]
async fn damaged_segment_is_named_until_it_is_repaired() {
    let (folder, job) = job();
    let history = Arc::new(RwLock::new(History::default()));
    let whole = segment(&[ended(0, 1, AttemptStatus::Succeeded, true)]);
    job.store.commit_segment(0, vec![whole.clone()]).await.expect("writable");
    job.store.commit_segment(1, vec![whole]).await.expect("writable");
    let file = job.store.segment_file(1).expect("a local job");
    assert!(file.starts_with(folder.path()));
    let stored = std::fs::read(&file).expect("readable");
    // Also without its digest alone, where its records end.
    std::fs::write(&file, &stored[..stored.len() - 16]).expect("writable");
    let known = || {
        let history = history.read().expect("whole");
        (history.attempts_kept(), history.unreadable())
    };
    job.update_history(&history).await.expect("the rest is readable");
    assert_eq!(known(), (1, Some(1)));
    std::fs::write(&file, &stored).expect("writable");
    job.update_history(&history).await.expect("readable");
    assert_eq!(known(), (2, None));
}

#[tokio::test]
async fn report_stands_in_for_a_removed_ledger() {
    let (_folder, mut job) = job();
    let report = "Mini-batch Id,…\n\
        1,1,77,2023-11-14T22:13:20.001000,4,0,4,0.500000,0.250000,0.375000,RUN_EXCEPTION,ValueError,\
        \"bad, \"\"very\"\"\",\"/in/1, \"\"a\"\".txt\",n,process001,,,,,\n\
        0,1,,2023-11-14T22:13:20.000000,4,3,1,0.500000,0.250000,0.375000,RUN_DONE,,,\"two\nlines\",n,process000,,,,,\n\
        1,2,,2023-11-14T22:13:20.002000,4,3,1,0.500000,0.250000,0.375000,RUN_DONE,,,'=1,n,process001,1.500000,0.250000,0.031250,0.093750,\n\
        0,2,,2023-11-14T22:13:20.003000,4,3,1,0.500000,0.250000,0.375000,RUN_DONE,,,/in/0,n,process000,,,,,True\n";
    job.store.put_log(report::PATH, report.into()).await.expect("writable");
    let counts = protocol::Counts { total: 2, succeeded: 2, failed: 0 };
    let result = JobResult::new("example".into(), JobState::Completed, String::new());
    job.result = Some(JobResult { mini_batches: counts, ..result });
    let history = Arc::new(RwLock::new(History::default()));
    assert!(job.update_history(&history).await.expect("readable"));
    assert!(!job.update_history(&history).await.expect("sealed"));
    let places: Vec<_> = {
        let history = history.read().expect("whole");
        assert_eq!((history.origin(), history.tally().mini_batches()), (Origin::Report, counts));
        assert_eq!(history.attempts_of(1).count(), 2);
        let reported: Vec<_> = history.attempts().map(AttemptSummary::reported_seconds).collect();
        let copies: Vec<_> = history.attempts().map(AttemptSummary::is_copy).collect();
        assert_eq!(copies, [false, false, false, true]);
        assert_eq!(
            reported,
            [None, None, Some(0.09375), None],
            "nothing measured the phases of some"
        );
        history.attempts().map(|attempt| attempt.place).collect()
    };
    let records = job.recorded_attempts(Origin::Report, &places).await;
    let texts: Vec<_> =
        records.iter().flatten().map(|record| record.attempt.detail.as_str()).collect();
    assert_eq!(texts, ["/in/1, \"a\".txt", "two\nlines", "=1", "/in/0"]);
    let phases = records[2].as_ref().expect("it is there").attempt.phases;
    assert_eq!(phases, Phases::new(1.5, 0.25, 0.031_25));
    let error =
        records[0].as_ref().and_then(|record| record.attempt.error.as_deref()).expect("it failed");
    assert_eq!((&*error.category, &*error.message), ("ValueError", "bad, \"very\""));
}

#[tokio::test]
async fn job_that_was_continued_between_two_looks_is_read_on() {
    let (_folder, mut job) = job();
    let history = Arc::new(RwLock::new(History::default()));
    let ended_as = |state| Some(JobResult::new("example".into(), state, String::new()));
    for (number, state) in [(0, JobState::Canceled), (1, JobState::Completed)] {
        let bytes = segment(&[ended(number, 1, AttemptStatus::Succeeded, true)]);
        job.store.commit_segment(number, vec![bytes]).await.expect("writable");
        job.result = ended_as(state);
        assert!(job.update_history(&history).await.expect("readable"));
        assert!(!job.update_history(&history).await.expect("sealed"));
    }
}
