//! Killed reducers, and messages that are delivered again.

use std::sync::atomic::{AtomicBool, Ordering};

use protocol::{Kept, Rejected, Rerun};

use super::*;

/// Steps at the beginning of another round.
const OF_ROUNDS: [CrashPoint; 2] = [CrashPoint::BeforeRound, CrashPoint::AfterRound];

/// Announces the results of the crash test: some rows inline, some as parts, one retry, one failure.
async fn announce(job: &Job) {
    for mini_batch in 0..6u64 {
        let rows = format!("row {mini_batch}\n");
        if mini_batch % 3 == 0 {
            let name = format!("{mini_batch}-1");
            let mut attempt = succeeded(mini_batch, 1, 1, 1);
            attempt.rows = Rows::Part { name: name.clone(), bytes: rows.len() as u64 };
            job.store.put_part(&name, rows.into()).await.expect("writable");
            job.send_event(event(attempt)).await;
        } else {
            job.send_rows(mini_batch, &rows).await;
        }
    }
    job.send_event(event(failed(6, 1, false, 2))).await;
    job.send_event(event(attempt(6, 3, AttemptStatus::ProcessDied, true, 2, 0))).await;
    job.planned(7).await;
}

/// Kills the reducer when it reaches `point`, then lets another finish.
async fn crash_at(point: CrashPoint) -> (Job, JobResult, bool) {
    let mut job = Job::new();
    // The queue soon delivers the messages of the killed reducer again.
    job.options.visibility = Duration::from_millis(50);
    announce(&job).await;
    let is_killed = AtomicBool::new(false);
    job.options.crash = Arc::new(move |at| {
        if at == point && !is_killed.swap(true, Ordering::SeqCst) {
            panic!("killed at {point:?}");
        }
    });
    let reducer = job.open().await;
    let killed = tokio::spawn(reducer.run(CancellationToken::new())).await.is_err();
    job.options.crash = Arc::new(|_| {});
    let result = job.run().await;
    (job, result, killed)
}

/// Returns the bytes of the tables of rejects.
fn rejects(job: &Job) -> [Vec<u8>; 2] {
    ["rejects.csv", "rejects.parquet"].map(|name| {
        fs::read(job.folder.path().join("job/logs").join(name)).expect("the table exists")
    })
}

#[tokio::test]
async fn next_reducer_finishes_after_a_kill_at_any_step() {
    let undisturbed = Job::new();
    announce(&undisturbed).await;
    let expected = undisturbed.run().await;
    assert_eq!(undisturbed.output(), "row 0\nrow 1\nrow 2\nrow 3\nrow 4\nrow 5\n");
    for &point in CrashPoint::ALL.iter().filter(|point| !OF_ROUNDS.contains(point)) {
        let (job, result, killed) = crash_at(point).await;
        assert!(killed, "the reducer never reached {point:?}");
        assert_eq!(job.output(), undisturbed.output(), "{point:?}");
        assert_eq!((result.state, result.items), (expected.state, expected.items), "{point:?}");
        assert_eq!(result.mini_batches, expected.mini_batches, "{point:?}");
        let out = fs::read_dir(job.folder.path().join("out")).expect("there");
        assert_eq!(out.count(), 1, "{point:?} left a temporary file");
        let processed = job.log("sys/job_report/processed_mini-batches.csv");
        assert_eq!(processed.lines().count(), 1 + 8, "{point:?}: each attempt has one row");
        let parts = job.folder.path().join("job/parts");
        assert!(
            parts.exists(),
            "{point:?}: a retry of what has failed needs the rows of the others"
        );
        let logs = fs::read_dir(job.folder.path().join("job/logs")).expect("there");
        let is_temporary = |name: &str| name.ends_with(".tmp");
        let mut names =
            logs.map(|entry| entry.expect("readable").file_name().into_string().expect("text"));
        assert!(!names.any(|name| is_temporary(&name)), "{point:?} left a temporary table");
        assert_eq!(rejects(&job), rejects(&undisturbed), "{point:?}");
    }
}

/// Announces a job of which an item and a mini-batch fail.
async fn announce_with_reject(job: &Job) {
    let error = failed(0, 1, true, 1).error.map(|error| *error).expect("it failed");
    let rejected = vec![Rejected { detail: "/in/b".into(), error, ..rejected(1) }];
    let pieces = vec![(0, 2), (2, 2)];
    let with_reject = Attempt { rejected, pieces, rows: Rows::Inline, ..succeeded(0, 1, 3, 2) };
    job.send(&[(event(with_reject), b"a\nc\n")]).await;
    job.send_event(event(failed(1, 3, true, 1))).await;
    job.send_rows(2, "e\n").await;
    job.planned(3).await;
}

/// Runs what a round publishes: the rejected item beside the rows that are kept, and the failed mini-batch.
async fn announce_round(job: &Job, reducer: &Reducer) {
    if let Some(Rerun { round, kept }) = reducer.tally().again(0) {
        let content = job.store.part(&kept.expect("it has rows")).await.expect("they are kept");
        let (kept, rows) = Kept::decode(&content).expect("whole");
        assert_eq!(
            (&kept.ranges[..], kept.succeeded, &content[rows..]),
            (&[(1, 2)][..], 2, &b"a\nc\n"[..])
        );
        let again = Attempt { round, rows: Rows::Inline, ..succeeded(0, 1, 3, 3) };
        job.send(&[(event(again), b"a\nb\nc\n")]).await;
    }
    if let Some(Rerun { round, .. }) = reducer.tally().again(1) {
        let again = Attempt { round, rows: Rows::Inline, ..succeeded(1, 1, 1, 1) };
        job.send(&[(event(again), b"d\n")]).await;
    }
}

#[tokio::test]
async fn round_goes_on_after_a_kill_at_any_step() {
    for &point in CrashPoint::ALL {
        let mut job = Job::new();
        job.options.visibility = Duration::from_millis(50);
        announce_with_reject(&job).await;
        assert_eq!(
            (job.run().await.state, job.output()),
            (JobState::Completed, "a\nc\ne\n".to_owned())
        );
        let is_killed = Arc::new(AtomicBool::new(false));
        let killed = is_killed.clone();
        job.options.crash = Arc::new(move |at| {
            if at == point && !killed.swap(true, Ordering::SeqCst) {
                panic!("killed at {point:?}");
            }
        });
        let reducer = loop {
            let mut reducer = job.open().await;
            let begins = tokio::spawn(async move {
                reopen(&mut reducer).await;
                reducer
            });
            if let Ok(reducer) = begins.await {
                break reducer;
            }
        };
        assert_eq!(reducer.tally().mini_batches().ended(), 1, "{point:?}");
        announce_round(&job, &reducer).await;
        // The message of the first round is delivered once more.
        job.send_rows(0, "a\nc\n").await;
        let mut ended = tokio::spawn(reducer.run(CancellationToken::new())).await.is_ok();
        while !ended {
            ended = tokio::spawn(job.open().await.run(CancellationToken::new())).await.is_ok();
        }
        let result = job.store.result().await.expect("readable").expect("it has ended");
        assert!(
            is_killed.load(Ordering::SeqCst) || point == CrashPoint::DuringRejects,
            "{point:?} was not reached"
        );
        assert_eq!(
            (result.state, job.output()),
            (JobState::Completed, "a\nb\nc\nd\ne\n".to_owned()),
            "{point:?}"
        );
        assert_eq!(
            (result.items.failed, result.mini_batches.succeeded, result.rejects),
            (0, 3, None),
            "{point:?}"
        );
    }
}

#[tokio::test]
async fn repeated_attempt_is_not_committed_again() {
    let job = Job::new();
    for _ in 0..5 {
        job.send_rows(0, "zero\n").await;
        let mut reducer = job.open().await;
        reducer.drain().await.expect("committed");
    }
    let mut reducer = job.open().await;
    assert_eq!(reducer.ledger.segments(), 1);
    job.send_rows(0, "zero\n").await;
    job.send_rows(1, "one\n").await;
    reducer.drain().await.expect("committed");
    assert_eq!(
        (reducer.ledger.segments(), reducer.tally().duplicates()),
        (2, 1),
        "the ledger counts the duplicates"
    );
    assert_eq!(job.open().await.tally().duplicates(), 1);
}

#[tokio::test]
async fn duplicates_and_unavailable_queue_change_nothing() {
    let job = Job::new();
    for mini_batch in 0..20 {
        job.send_rows(mini_batch, &format!("{mini_batch}\n")).await;
    }
    job.planned(20).await;
    let reducer = job.open().await;
    job.results.duplicate_next(10);
    job.results.fail_next(2);
    let result = reducer.run(CancellationToken::new()).await.expect("the job ends");
    assert_eq!((result.state, result.items.succeeded), (JobState::Completed, 20));
    let expected: String = (0..20).map(|id| format!("{id}\n")).collect();
    assert_eq!(job.output(), expected);
}
