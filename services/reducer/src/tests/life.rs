//! One job from its first message to its end.

use std::sync::OnceLock;

use super::*;

#[tokio::test]
async fn complete_job_has_its_rows_in_order() {
    let job = Job::new();
    let reducer = job.open().await;
    let mut progress = reducer.progress();
    let run = tokio::spawn(reducer.run(CancellationToken::new()));
    for mini_batch in [2, 0, 1] {
        job.send_rows(mini_batch, &format!("row {mini_batch}\n")).await;
    }
    progress.wait_for(|progress| progress.mini_batches.succeeded == 3).await.expect("committed");
    job.planned(3).await;
    let result = run.await.expect("no panic").expect("the job ends");
    assert_eq!((result.state, &result.cause), (JobState::Completed, &None));
    assert_eq!(result.items, protocol::Counts { total: 3, succeeded: 3, failed: 0 });
    assert_eq!(
        result.output,
        Some(job.folder.path().join("out/parallel_run_step.txt").display().to_string())
    );
    assert_eq!(job.output(), "row 0\nrow 1\nrow 2\n");
    assert_eq!(job.results.depth().await.expect("there").total(), 0, "everything is acknowledged");
    assert_eq!(job.store.result().await.expect("readable"), Some(result));
    assert_eq!(
        job.store.progress().await.expect("readable").expect("written").mini_batches.succeeded,
        3
    );
    assert_eq!(job.run().await.state, JobState::Completed, "an ended job stays ended");
}

#[tokio::test]
async fn reports_describe_the_whole_job() {
    let job = Job::new();
    job.send_event(ResultEvent::ProcessStarted {
        node: "0".into(),
        process: "process000".into(),
        pid: 77,
        gpus: None,
        at: 0,
    })
    .await;
    let mut warned = succeeded(0, 1, 1, 1);
    warned.rows = Rows::Inline;
    warned.warnings =
        vec![protocol::Warning { message: "line 3 of a.csv: 'x' is not a number".into() }];
    warned.warnings_total = 4;
    job.send(&[(event(warned), b"zero\n"), (event(failed(1, 1, false, 1)), b"")]).await;
    job.send_event(event(failed(1, 3, true, 1))).await;
    job.planned(2).await;
    assert_eq!(job.run().await.state, JobState::Completed, "failures are allowed");
    let processed = job.log("sys/job_report/processed_mini-batches.csv");
    assert_eq!(processed.lines().count(), 4);
    assert!(processed.contains("\n0,1,77,"), "{processed}");
    assert!(job.log("sys/job_report/process_summary.csv").contains("\n0,process000,77,,,1,2,"));
    assert!(job.log("sys/job_report/node_summary.csv").contains("\n0,1,1,2,"));
    let warnings = job.log("sys/warning/mini-batch_warnings.txt");
    let expected = "mini-batch 0 (/data/0.png): line 3 of a.csv: 'x' is not a number\nmini-batch 0: 3 more warnings\n";
    assert_eq!(warnings, expected);
    let overview = job.overview();
    assert!(overview.contains("There are 2 tasks with 2 items."), "{overview}");
    assert!(overview.contains("Processed 2 of 2 mini batches in 0:0"), "{overview}");
    assert!(overview.contains("The job ended: Completed."), "{overview}");
    let result = job.log("job_result.txt");
    assert!(
        result.contains("Failed mini-batches (1), the first:\n  mini-batch 1 (/data/1.png)"),
        "{result}"
    );
    assert!(job.log("job_error.txt").contains("2 times ValueError: bad value"));
    assert!(job.log("user/error.txt").contains("Traceback: bad value"));
    assert!(job.log("readme.txt").contains("processed_mini-batches.csv"));
    assert!(job.log("sys/master_role.txt").contains("started with process id 77."));
}

#[tokio::test]
async fn exceeded_threshold_fails_the_job_at_once() {
    let mut job = Job::new();
    job.spec.thresholds.error_threshold = 1;
    for mini_batch in 0..2 {
        job.send_event(event(failed(mini_batch, 3, true, 1))).await;
    }
    let result = job.run().await;
    assert_eq!(result.state, JobState::Failed);
    let cause = result.cause.expect("failed");
    assert!(
        cause.starts_with("The number of failed items is 2, which exceeds error threshold 1."),
        "{cause}"
    );
    assert!(job.log("job_result.txt").contains(&cause));
    assert!(!job.folder.path().join("out").exists(), "there is no output");
}

#[tokio::test]
async fn job_without_results_fails_only_with_append_row() {
    let mut job = Job::new();
    job.send_event(event(succeeded(0, 1, 5, 0))).await;
    job.planned(1).await;
    let result = job.run().await;
    assert!(
        result
            .cause
            .expect("failed")
            .starts_with("run() returned no results: 0 of 1 item succeeded.")
    );
    job.spec.output.action = OutputAction::SummaryOnly;
    let mut reducer = job.open().await;
    reopen(&mut reducer).await;
    job.send_event(event(Attempt { round: 1, ..succeeded(0, 1, 5, 0) })).await;
    let result = reducer.run(CancellationToken::new()).await.expect("the job ends");
    assert_eq!(
        (result.state, result.output),
        (JobState::Completed, Some(job.spec.output.folder.display()))
    );
}

#[tokio::test]
async fn reopened_job_runs_failed_mini_batches() {
    let mut job = Job::new();
    job.spec.thresholds.allowed_failed_count = 0;
    job.send_rows(0, "zero\n").await;
    job.send_event(event(failed(1, 3, true, 1))).await;
    job.planned(2).await;
    assert_eq!(job.run().await.state, JobState::Failed);
    let mut reducer = job.open().await;
    assert_eq!(reducer.tally().state(1), MiniBatchState::Failed);
    reopen(&mut reducer).await;
    assert_eq!(
        (reducer.tally().state(0), reducer.tally().state(1)),
        (MiniBatchState::Succeeded, MiniBatchState::Pending)
    );
    assert_eq!(job.store.result().await.expect("readable"), None);
    job.send_rows(1, "one\n").await;
    assert_eq!(reducer.drain().await.expect("committed"), 1);
    let result = reducer.run(CancellationToken::new()).await.expect("the job ends");
    assert_eq!(result.state, JobState::Completed);
    assert_eq!(job.output(), "zero\none\n");
}

#[tokio::test]
async fn reopened_job_runs_successes_again_whose_missing_items_fail_it() {
    let mut job = Job::new();
    job.spec.thresholds.error_threshold = 0;
    job.send_rows(0, "zero\n").await;
    job.send_event(event(succeeded(1, 1, 5, 4))).await;
    job.planned(2).await;
    assert_eq!(job.run().await.state, JobState::Failed);
    let mut reducer = job.open().await;
    assert_eq!(reopen(&mut reducer).await.whole, 1);
    for reducer in [&reducer, &job.open().await] {
        let tally = reducer.tally();
        assert_eq!(
            (tally.state(0), tally.state(1)),
            (MiniBatchState::Succeeded, MiniBatchState::Pending)
        );
        assert_eq!((tally.items().failed, tally.rounds()), (0, 1));
    }
    let again = Attempt { round: 1, rows: Rows::Inline, ..succeeded(1, 1, 1, 1) };
    job.send(&[(event(again), b"one\n")]).await;
    let result = reducer.run(CancellationToken::new()).await.expect("the job ends");
    assert_eq!((result.state, result.items.failed), (JobState::Completed, 0));
    assert_eq!(job.output(), "zero\none\n");
}

#[tokio::test]
async fn table_of_rejects_follows_the_end_of_the_job() {
    let mut job = Job::new();
    job.spec.thresholds.allowed_failed_count = 0;
    job.send_rows(0, "zero\n").await;
    job.send_event(event(failed(1, 3, true, 2))).await;
    job.planned(2).await;
    let result = job.run().await;
    let tables = result.rejects.expect("one item was rejected");
    assert_eq!(
        (tables.items, fs::read_to_string(&tables.csv).expect("there")),
        (2, job.log("rejects.csv"))
    );
    assert!(fs::exists(&tables.parquet).expect("readable"));
    assert_eq!(job.log("rejects.csv").lines().count(), 2, "a header and one range of items");
    assert!(job.log("job_result.txt").contains("Rejected: 2 items, see "));

    let mut reducer = job.open().await;
    reopen(&mut reducer).await;
    job.send_rows(1, "one\n").await;
    let result = reducer.run(CancellationToken::new()).await.expect("the job ends");
    assert_eq!((result.state, result.rejects), (JobState::Completed, None));
    assert_eq!(job.log("rejects.csv").lines().count(), 1, "the header");
    assert!(!job.log("job_result.txt").contains("Rejected"));
}

#[tokio::test]
async fn unwritable_table_of_rejects_changes_only_the_warnings() {
    let job = Job::new();
    let obstacle = job.folder.path().join("job/logs/rejects.parquet");
    fs::create_dir_all(obstacle.join("a folder where the table should be")).expect("writable");
    job.send_rows(0, "zero\n").await;
    job.send_event(event(failed(1, 3, true, 1))).await;
    job.planned(2).await;
    let result = job.run().await;
    assert_eq!((result.state, result.cause, result.rejects), (JobState::Completed, None, None));
    let [warning] = &result.first_warnings[..] else { panic!("{:?}", result.first_warnings) };
    assert!(
        warning.starts_with("cannot write ")
            && warning.ends_with("can still be counted by their causes"),
        "{warning}"
    );
    assert_eq!((result.warnings, warning.lines().count()), (1, 1));
    assert_eq!(job.output(), "zero\n");
    assert!(
        !fs::exists(job.folder.path().join("job/logs/rejects.csv")).expect("readable"),
        "both or none"
    );
}

#[tokio::test]
async fn unwritable_output_fails_the_job_and_loses_nothing() {
    let job = Job::new();
    let obstacle = job.folder.path().join("out");
    fs::write(&obstacle, "a file where the folder should be").expect("writable");
    let mut row = succeeded(0, 1, 1, 1);
    row.rows = Rows::Part { name: "0-1".into(), bytes: 5 };
    job.store.put_part("0-1", Bytes::from_static(b"zero\n")).await.expect("writable");
    job.send_event(event(row)).await;
    job.planned(1).await;
    let result = job.run().await;
    assert_eq!(result.state, JobState::Failed);
    let cause = result.cause.expect("failed");
    assert!(
        cause.contains("create output folder")
            && cause.ends_with("retry the job: no result is lost."),
        "{cause}"
    );
    fs::remove_file(&obstacle).expect("removable");
    let mut reducer = job.open().await;
    reopen(&mut reducer).await;
    let result = reducer.run(CancellationToken::new()).await.expect("the job ends");
    assert_eq!(result.state, JobState::Completed);
    assert_eq!(job.output(), "zero\n");
    assert!(!job.folder.path().join("job/parts").exists(), "a completed job has no parts");
}

#[tokio::test]
async fn canceled_job_is_canceled_although_its_queue_does_not_answer_at_once() {
    let job = Job::new();
    job.send_rows(0, "zero\n").await;
    let cancel = CancellationToken::new();
    let reducer = job.open().await;
    job.results.fail_next(2);
    cancel.cancel();
    let result = reducer.run(cancel).await.expect("the job ends");
    assert_eq!((result.state, result.mini_batches.succeeded), (JobState::Canceled, 1));
}

#[tokio::test]
async fn canceled_job_keeps_announced_results() {
    let job = Job::new();
    let cancel = CancellationToken::new();
    let reducer = job.open().await;
    job.send_rows(0, "zero\n").await;
    cancel.cancel();
    let result = reducer.run(cancel).await.expect("the job ends");
    assert_eq!((result.state, result.mini_batches.succeeded), (JobState::Canceled, 1));
    assert_eq!(job.results.depth().await.expect("there").total(), 0);

    let job = Job::new();
    job.store.request_cancel("no longer needed").await.expect("writable");
    let result = job.run().await;
    assert_eq!(
        (result.state, result.cause.as_deref()),
        (JobState::Canceled, Some("no longer needed"))
    );
}

#[tokio::test]
async fn killed_job_gives_up_its_output_and_a_later_round_writes_it() {
    let mut job = Job::new();
    let kill = job.options.kill.clone();
    job.options.crash = Arc::new(move |point| {
        if point == CrashPoint::DuringOutput {
            kill.cancel();
        }
    });
    job.send_rows(0, "zero\n").await;
    job.planned(1).await;
    let result = job.run().await;
    assert_eq!(
        (result.state, result.cause.as_deref()),
        (
            JobState::Canceled,
            Some("canceled while the output was being written; no result is lost")
        )
    );
    let left = fs::read_dir(job.folder.path().join("out")).expect("created").count();
    assert_eq!(left, 0, "neither a part of the file nor the file");

    job.options.kill = CancellationToken::new();
    job.options.crash = Arc::new(|_| {});
    let mut reducer = job.open().await;
    reopen(&mut reducer).await;
    let result = reducer.run(CancellationToken::new()).await.expect("the job ends");
    assert_eq!((result.state, job.output().as_str()), (JobState::Completed, "zero\n"));
}

#[tokio::test]
async fn other_roles_can_fail_the_job() {
    let job = Job::new();
    let reducer = job.open().await;
    let fail = reducer.fail_job();
    fail.fail("the agent cannot start");
    fail.fail("a second cause");
    let result = reducer.run(CancellationToken::new()).await.expect("the job ends");
    assert_eq!(result.cause.as_deref(), Some("the agent cannot start"));

    let job = Job::new();
    job.send_event(ResultEvent::PlanFailed { cause: "input /data does not exist".into() }).await;
    assert_eq!(job.run().await.cause.as_deref(), Some("input /data does not exist"));
}

#[tokio::test]
async fn stopped_node_fails_the_job() {
    let job = Job::new();
    let error = ErrorReport {
        category: "ImportError".into(),
        message: "no x".into(),
        ..ErrorReport::default()
    };
    let (node, process) = ("0".into(), "process000".into());
    job.send_event(ResultEvent::InitFailed { node, process, error: error.into() }).await;
    let cause = Some("init() failed 6 times: ImportError: no x".into());
    job.send_event(ResultEvent::NodeStopped { node: "0".into(), cause }).await;
    let cause = job.run().await.cause.expect("failed");
    assert_eq!(cause, "Node 0 stopped: init() failed 6 times: ImportError: no x");
    assert!(
        job.overview()
            .contains("process000 on node 0 failed before its first mini batch: ImportError: no x")
    );
    assert!(job.log("job_error.txt").contains("in init()"));
}

#[tokio::test]
async fn all_ended_is_signalled_before_the_final_file_is_written() {
    let mut job = Job::new();
    job.send_rows(0, "row\n").await;
    job.planned(1).await;
    for what in ["a fresh job", "a job that was complete before"] {
        let signal = Arc::new(OnceLock::<CancellationToken>::new());
        let all_ended = signal.clone();
        job.options.crash = Arc::new(move |point| {
            let is_signalled = all_ended.get().expect("known before it runs").is_cancelled();
            assert_eq!(is_signalled, point >= CrashPoint::BeforeOutput, "{what}, {point:?}");
        });
        let reducer = job.open().await;
        signal.set(reducer.all_ended()).expect("set once");
        let result = reducer.run(CancellationToken::new()).await.expect("the job ends");
        assert_eq!((result.state, &*job.output()), (JobState::Completed, "row\n"));
        fs::remove_file(job.folder.path().join("job/result.json")).expect("written");
    }
}

#[tokio::test]
async fn failed_job_does_not_signal_all_ended() {
    let job = Job::new();
    job.send_event(ResultEvent::PlanFailed { cause: "no input".into() }).await;
    let reducer = job.open().await;
    let all_ended = reducer.all_ended();
    assert_eq!(
        reducer.run(CancellationToken::new()).await.expect("the job ends").state,
        JobState::Failed
    );
    assert!(!all_ended.is_cancelled());
}

#[tokio::test]
async fn complete_job_does_not_wait_for_more_results() {
    let mut job = Job::new();
    job.options.commit_interval = Duration::from_secs(3600);
    job.planned(3).await;
    let reducer = job.open().await;
    let mut progress = reducer.progress();
    let run = tokio::spawn(reducer.run(CancellationToken::new()));
    progress.wait_for(|progress| progress.planned).await.expect("committed");
    for mini_batch in 0..3 {
        job.send_rows(mini_batch, "row\n").await;
    }
    let ended = tokio::time::timeout(Duration::from_secs(60), run)
        .await
        .expect("the job does not wait for an hour");
    assert_eq!(ended.expect("no panic").expect("the job ends").state, JobState::Completed);
    assert_eq!(job.output(), "row\nrow\nrow\n");
}

#[tokio::test]
async fn stalled_job_fails_and_names_the_process_it_waits_for() {
    let mut job = Job::new();
    job.spec.progress_update_timeout_seconds = 0;
    let waiting = Waiting {
        stack: "File \"score.py\", line 7, in run".into(),
        printed: "connecting".into(),
        ..waiting("process000", 0, 30)
    };
    let mut other = succeeded(5, 1, 1, 1);
    other.process = "process001".into();
    let started = started("0", "process000");
    job.send(&[(started, b""), (ResultEvent::Waiting(waiting.into()), b""), (event(other), b"")])
        .await;
    let result = job.run().await;
    let cause = result.cause.expect("failed");
    let expected = "No progress update in 0 seconds. Waiting for mini-batch 0 on node 0, process000, in run() for 30 s, \
                    at \"score.py\", line 7, in run.";
    assert_eq!(cause, expected);
    assert_eq!(result.failures[0].printed, "connecting");
    assert!(
        job.log("job_result.txt").contains("Still waiting for mini-batch 0 on node 0, process000")
    );
    let failure = "1 time NoProgress: mini-batch 0 on node 0, process000, in run() for 30 s, at \"score.py\", line 7, \
                   in run\n  it ended the job\n  printed last:\n    connecting\n";
    assert!(job.log("job_error.txt").contains(failure), "{}", job.log("job_error.txt"));
    assert!(job.overview().contains("Waiting for mini-batch 0 on node 0, process000"));
    let progress = job.store.progress().await.expect("readable").expect("written");
    assert_eq!(progress.waiting.len(), 1);
}

#[tokio::test]
async fn job_without_a_task_fails() {
    let mut job = Job::new();
    job.spec.first_task_creation_timeout_seconds = 0;
    let cause = job.run().await.cause.expect("failed");
    assert_eq!(cause, "Unable to create any task within 0 seconds.");
    let errors = format!("No error of the entry script. The job failed: {cause}\n");
    assert_eq!(job.log("job_error.txt"), errors);
}

#[tokio::test]
async fn unreadable_message_that_no_dead_letters_take_stays_in_the_queue_and_delays_no_job() {
    let mut job = Job::new();
    let dead_letters = Arc::new(MemoryQueue::new(MemoryOptions::default()));
    dead_letters.fail_next(1000);
    job.options.dead_letters = Some(dead_letters);
    job.results.send(vec![Message::new(&b"nonsense"[..])]).await.expect("sent");
    job.send_rows(0, "zero\n").await;
    job.planned(1).await;
    assert_eq!(job.run().await.state, JobState::Completed);
    assert_eq!(job.output(), "zero\n");
    assert_eq!(job.results.depth().await.expect("there").total(), 1);
}

#[tokio::test]
async fn unreadable_message_is_kept_for_inspection() {
    let job = Job::new();
    job.results.send(vec![Message::new(&b"nonsense"[..])]).await.expect("sent");
    job.send_rows(0, "zero\n").await;
    job.planned(1).await;
    assert_eq!(job.run().await.state, JobState::Completed);
    assert!(
        job.log("sys/error/messages.txt").contains("A result message of 8 bytes cannot be read")
    );
    assert_eq!(job.results.depth().await.expect("there").total(), 0);
}
