use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{fmt, fs};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use protocol::{Attempt, AttemptStatus, ErrorReport, JobState, Planned, Rows, SlotPhase, Waiting, encode_record};
use queue::{MemoryOptions, MemoryQueue, Message};
use tokio::sync::Notify;

use super::*;
use crate::MiniBatchState;
use crate::fixtures::{attempt, failed, put_plan, spec, succeeded};

/// A job of which the tests play all other roles.
struct Job {
    folder: tempfile::TempDir,
    store: JobStore,
    results: Arc<MemoryQueue>,
    spec: JobSpec,
    options: Options,
}

impl Job {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let job = folder.path().join("job");
        fs::create_dir(&job).expect("fresh");
        let options = Options {
            visibility: Duration::from_secs(60),
            report_interval: Duration::from_millis(20),
            progress_interval: Duration::from_millis(10),
            init_failure_age: Duration::ZERO,
            ..Options::default()
        };
        Self {
            store: JobStore::local(&job).expect("exists"),
            results: Arc::new(MemoryQueue::new(MemoryOptions::default())),
            spec: spec(&folder.path().join("out")),
            options,
            folder,
        }
    }

    async fn open(&self) -> Reducer {
        self.store.put_spec(&self.spec).await.expect("writable");
        if self.options.shared {
            self.store.create_plan_chunk(0, Bytes::from_static(b"{}\n")).await.expect("writable");
        }
        Reducer::open(self.store.clone(), self.results.clone(), self.options.clone()).await.expect("readable")
    }

    async fn run(&self) -> JobResult {
        self.open().await.run(CancellationToken::new()).await.expect("the job ends")
    }

    async fn send(&self, events: &[(ResultEvent, &[u8])]) {
        let mut body = Vec::new();
        events.iter().for_each(|(event, rows)| encode_record(event, rows, &mut body));
        self.results.send(vec![Message::new(body, "job")]).await.expect("sent");
    }

    async fn send_event(&self, event: ResultEvent) {
        self.send(&[(event, b"")]).await;
    }

    async fn send_rows(&self, mini_batch: u64, rows: &str) {
        let mut attempt = succeeded(mini_batch, 1, 1, 1);
        attempt.rows = Rows::Inline;
        self.send(&[(event(attempt), rows.as_bytes())]).await;
    }

    async fn planned(&self, mini_batches: u64) {
        put_plan(&self.store, mini_batches, Some(mini_batches)).await;
        self.send_event(ResultEvent::Planned(Planned { mini_batches, items: Some(mini_batches) })).await;
    }

    fn output(&self) -> String {
        let path = self.folder.path().join("out/parallel_run_step.txt");
        fs::read_to_string(path).expect("the final file is there")
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join("job/logs").join(name)).expect("the report is there")
    }

    fn overview(&self) -> String {
        let logs = fs::read_dir(self.folder.path().join("job/logs")).expect("there");
        let mut names: Vec<_> =
            logs.map(|entry| entry.expect("readable").file_name().into_string().expect("text")).collect();
        names.retain(|name| name.starts_with("job_progress_overview."));
        names.sort();
        names.iter().map(|name| self.log(name)).collect()
    }
}

fn event(attempt: Attempt) -> ResultEvent {
    ResultEvent::Attempt(Box::new(attempt))
}

#[tokio::test]
async fn a_job_ends_with_its_rows_in_order() {
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
    assert_eq!(result.output, Some(job.folder.path().join("out/parallel_run_step.txt").display().to_string()));
    assert_eq!(job.output(), "row 0\nrow 1\nrow 2\n");
    assert_eq!(job.results.depth().await.expect("there").total(), 0, "everything is acknowledged");
    assert_eq!(job.store.result().await.expect("readable"), Some(result));
    assert_eq!(job.store.progress().await.expect("readable").expect("written").mini_batches.succeeded, 3);
    assert_eq!(job.run().await.state, JobState::Completed, "an ended job stays ended");
}

#[tokio::test]
async fn reports_tell_the_story() {
    let job = Job::new();
    job.send_event(ResultEvent::ProcessStarted { node: "0".into(), process: "process000".into(), pid: 77 }).await;
    let mut warned = succeeded(0, 1, 1, 1);
    warned.rows = Rows::Inline;
    warned.warnings = vec![protocol::Warning { message: "line 3 of a.csv: 'x' is no number".into() }];
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
    let expected = "mini-batch 0 (/data/0.png): line 3 of a.csv: 'x' is no number\nmini-batch 0: 3 more warnings\n";
    assert_eq!(warnings, expected);
    let overview = job.overview();
    assert!(overview.contains("There are 2 tasks with 2 items."), "{overview}");
    assert!(overview.contains("Processed 2 of 2 mini batches in 0:0"), "{overview}");
    assert!(overview.contains("The job ended: Completed."), "{overview}");
    let result = job.log("job_result.txt");
    assert!(result.contains("Failed mini-batches (1), the first:\n  mini-batch 1 (/data/1.png)"), "{result}");
    assert!(job.log("job_error.txt").contains("2 times ValueError: bad value"));
    assert!(job.log("user/error.txt").contains("Traceback: bad value"));
    assert!(job.log("readme.txt").contains("processed_mini-batches.csv"));
    assert!(job.log("sys/master_role.txt").contains("started with process id 77."));
}

#[tokio::test]
async fn a_threshold_fails_the_job_at_once() {
    let mut job = Job::new();
    job.spec.thresholds.error_threshold = 1;
    for mini_batch in 0..2 {
        job.send_event(event(failed(mini_batch, 3, true, 1))).await;
    }
    let result = job.run().await;
    assert_eq!(result.state, JobState::Failed);
    let cause = result.cause.expect("failed");
    assert!(cause.starts_with("The number of failed items is 2, which exceeds error threshold 1."), "{cause}");
    assert!(job.log("job_result.txt").contains(&cause));
    assert!(!job.folder.path().join("out").exists(), "nothing is written");
}

#[tokio::test]
async fn nothing_succeeded_fails_append_row_only() {
    let mut job = Job::new();
    job.send_event(event(succeeded(0, 1, 5, 0))).await;
    job.planned(1).await;
    let result = job.run().await;
    assert!(result.cause.expect("failed").starts_with("There is no succeeded mini batch item returned from run()."));
    job.spec.output.action = OutputAction::SummaryOnly;
    let mut reducer = job.open().await;
    reducer.reopen().await.expect("writable");
    let result = reducer.run(CancellationToken::new()).await.expect("the job ends");
    assert_eq!((result.state, result.output), (JobState::Completed, Some(job.spec.output.folder.display())));
}

#[tokio::test]
async fn a_retried_job_goes_on_with_what_failed() {
    let mut job = Job::new();
    job.spec.thresholds.allowed_failed_count = 0;
    job.send_rows(0, "zero\n").await;
    job.send_event(event(failed(1, 3, true, 1))).await;
    job.planned(2).await;
    assert_eq!(job.run().await.state, JobState::Failed);
    let mut reducer = job.open().await;
    assert_eq!(reducer.tally().state(1), MiniBatchState::Failed);
    reducer.reopen().await.expect("writable");
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
async fn an_output_that_cannot_be_written_fails_the_job_and_loses_nothing() {
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
    assert!(cause.contains("create output folder") && cause.contains("gristmill retry digits-"), "{cause}");
    fs::remove_file(&obstacle).expect("removable");
    let mut reducer = job.open().await;
    reducer.reopen().await.expect("writable");
    let result = reducer.run(CancellationToken::new()).await.expect("the job ends");
    assert_eq!(result.state, JobState::Completed);
    assert_eq!(job.output(), "zero\n");
    assert!(!job.folder.path().join("job/parts").exists(), "parts go when the job is complete");
}

#[tokio::test]
async fn a_canceled_job_keeps_what_was_announced() {
    let job = Job::new();
    let cancel = CancellationToken::new();
    let reducer = job.open().await;
    job.send_rows(0, "zero\n").await;
    cancel.cancel();
    let result = reducer.run(cancel).await.expect("the job ends");
    assert_eq!((result.state, result.mini_batches.succeeded), (JobState::Canceled, 1));
    assert_eq!(job.results.depth().await.expect("there").total(), 0);

    let job = Job::new();
    job.store.request_cancel("not needed any more").await.expect("writable");
    let result = job.run().await;
    assert_eq!((result.state, result.cause.as_deref()), (JobState::Canceled, Some("not needed any more")));
}

#[tokio::test]
async fn others_can_fail_the_job() {
    let job = Job::new();
    let reducer = job.open().await;
    let fail = reducer.fail_job();
    fail.fail("the agent cannot be started");
    fail.fail("a second cause");
    let result = reducer.run(CancellationToken::new()).await.expect("the job ends");
    assert_eq!(result.cause.as_deref(), Some("the agent cannot be started"));

    let job = Job::new();
    job.send_event(ResultEvent::PlanFailed { cause: "input /data does not exist".into() }).await;
    assert_eq!(job.run().await.cause.as_deref(), Some("input /data does not exist"));
}

#[tokio::test]
async fn a_node_that_gave_up_fails_the_job() {
    let job = Job::new();
    let error = ErrorReport { category: "ImportError".into(), message: "no x".into(), ..ErrorReport::default() };
    let (node, process) = ("0".into(), "process000".into());
    job.send_event(ResultEvent::InitFailed { node, process, error: error.into() }).await;
    let cause = Some("init() failed 6 times: ImportError: no x".into());
    job.send_event(ResultEvent::NodeStopped { node: "0".into(), cause }).await;
    let cause = job.run().await.cause.expect("failed");
    assert_eq!(cause, "Node 0 stopped: init() failed 6 times: ImportError: no x");
    assert!(job.overview().contains("process000 on node 0 failed before its first mini batch: ImportError: no x"));
    assert!(job.log("job_error.txt").contains("in init()"));
}

#[tokio::test]
async fn that_all_has_ended_is_told_before_the_final_file_is_written() {
    let mut job = Job::new();
    job.send_rows(0, "row\n").await;
    job.planned(1).await;
    for what in ["a fresh job", "one that had come so far before"] {
        let told = Arc::new(OnceLock::<CancellationToken>::new());
        let all_ended = told.clone();
        job.options.crash = Arc::new(move |point| {
            let is_told = all_ended.get().expect("known before it runs").is_cancelled();
            assert_eq!(is_told, point >= CrashPoint::BeforeOutput, "{what}, {point:?}");
        });
        let reducer = job.open().await;
        told.set(reducer.all_ended()).expect("only here");
        let result = reducer.run(CancellationToken::new()).await.expect("the job ends");
        assert_eq!((result.state, &*job.output()), (JobState::Completed, "row\n"));
        fs::remove_file(job.folder.path().join("job/result.json")).expect("written");
    }
}

#[tokio::test]
async fn a_failed_job_tells_nobody_to_go_home() {
    let job = Job::new();
    job.send_event(ResultEvent::PlanFailed { cause: "no input".into() }).await;
    let reducer = job.open().await;
    let all_ended = reducer.all_ended();
    assert_eq!(reducer.run(CancellationToken::new()).await.expect("the job ends").state, JobState::Failed);
    assert!(!all_ended.is_cancelled());
}

#[tokio::test]
async fn nobody_waits_for_more_results_when_all_have_come() {
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
    let ended = tokio::time::timeout(Duration::from_secs(60), run).await.expect("it does not wait for an hour");
    assert_eq!(ended.expect("no panic").expect("the job ends").state, JobState::Completed);
    assert_eq!(job.output(), "row\nrow\nrow\n");
}

#[tokio::test]
async fn standing_still_ends_the_job_with_what_it_waits_for() {
    let mut job = Job::new();
    job.spec.progress_update_timeout_seconds = 0;
    let waiting = Waiting {
        node: "0".into(),
        process: "process000".into(),
        mini_batch: Some(0),
        phase: SlotPhase::Run,
        seconds: 30,
        stack: "File \"score.py\", line 7, in run".into(),
    };
    let mut other = succeeded(5, 1, 1, 1);
    other.process = "process001".into();
    let started = ResultEvent::ProcessStarted { node: "0".into(), process: "process000".into(), pid: 1 };
    job.send(&[(started, b""), (ResultEvent::Waiting(waiting.into()), b""), (event(other), b"")]).await;
    let cause = job.run().await.cause.expect("failed");
    let expected = "No progress update in 0 seconds. Waiting for mini-batch 0 on node 0, process000, in run() for 30 \
                    seconds, at \"score.py\", line 7, in run.";
    assert_eq!(cause, expected);
    assert!(job.log("job_result.txt").contains("Still waiting for mini-batch 0 on node 0, process000"));
    assert!(job.overview().contains("Waiting for mini-batch 0 on node 0, process000"));
    let progress = job.store.progress().await.expect("readable").expect("written");
    assert_eq!(progress.waiting.len(), 1);
}

#[tokio::test]
async fn a_job_without_a_single_task_ends() {
    let mut job = Job::new();
    job.spec.first_task_creation_timeout_seconds = 0;
    let cause = job.run().await.cause.expect("failed");
    assert_eq!(cause, "Unable to create any task within 0 seconds.");
}

#[tokio::test]
async fn a_message_that_cannot_be_read_is_put_aside() {
    let job = Job::new();
    job.results.send(vec![Message::new(&b"nonsense"[..], "job")]).await.expect("sent");
    job.send_rows(0, "zero\n").await;
    job.planned(1).await;
    assert_eq!(job.run().await.state, JobState::Completed);
    assert!(job.log("sys/error/messages.txt").contains("A result message of 8 bytes cannot be read"));
    assert_eq!(job.results.depth().await.expect("there").total(), 0);
}

#[tokio::test]
async fn a_second_reducer_goes_on_after_the_first_and_results_count_once() {
    let mut job = Job::new();
    job.options.shared = true;
    let first = job.open().await;
    let mut second = job.open().await;
    job.send_rows(0, "zero\n").await;
    second.drain().await.expect("its turn");
    job.send_rows(1, "one\n").await;
    job.send_rows(0, "zero\n").await;
    job.planned(2).await;
    let result = first.run(CancellationToken::new()).await.expect("ends");
    assert_eq!((result.state, result.mini_batches.succeeded), (JobState::Completed, 2));
    assert_eq!(result.duplicates_dropped, 1);
    assert_eq!(second.run(CancellationToken::new()).await.expect("sees it"), result);
    assert_eq!(job.output(), "zero\none\n");
}

/// A job with one row, which the reducer of the test has committed, and another reducer has ended with a second row that
/// the first has not seen.
async fn ended_by_another(job: &Job, behind: &mut Reducer) -> JobResult {
    job.send_rows(1, "one\n").await;
    job.planned(2).await;
    let result = job.run().await;
    assert_eq!((result.state, behind.tally().mini_batches().succeeded), (JobState::Completed, 1));
    result
}

const PROCESSED: &str = "sys/job_report/processed_mini-batches.csv";

#[tokio::test]
async fn reports_of_a_reducer_that_is_behind_replace_none_of_the_one_that_ended_the_job() {
    for is_told_to_stop in [false, true] {
        let mut job = Job::new();
        job.options.shared = true;
        let mut behind = job.open().await;
        job.send_rows(0, "zero\n").await;
        behind.drain().await.expect("committed");
        ended_by_another(&job, &mut behind).await;
        match is_told_to_stop {
            false => behind.report().await.expect("written"),
            true => behind.leave().await,
        }
        // Nothing is under way any more.
        behind.reports.may_have_replaced().await;
        assert_eq!(job.log(PROCESSED).lines().count(), 1 + 2, "told to stop: {is_told_to_stop}");
    }
}

#[tokio::test]
async fn a_report_that_comes_late_is_replaced_by_one_that_is_whole() {
    let mut job = Job::new();
    job.options.shared = true;
    let late = Arc::new(LateStore::below(&job.folder.path().join("job"), PROCESSED));
    job.open().await;
    let store = JobStore::new(late.clone(), ObjectPath::default());
    let mut behind = Reducer::open(store, job.results.clone(), job.options.clone()).await.expect("readable");
    job.send_rows(0, "zero\n").await;
    behind.drain().await.expect("committed");
    behind.report().await.expect("written");
    late.has_begun.notified().await;
    let result = ended_by_another(&job, &mut behind).await;
    late.may_end.notify_one();
    assert_eq!(behind.run(CancellationToken::new()).await.expect("sees it"), result);
    assert_eq!(job.log(PROCESSED).lines().count(), 1 + 2);
    assert!(job.overview().contains("The job ended: Completed."));
}

/// The folder of a job in which the first write of one file takes long.
#[derive(Debug)]
struct LateStore {
    folder: LocalFileSystem,
    late: &'static str,
    is_first: AtomicBool,
    has_begun: Notify,
    may_end: Notify,
}

impl LateStore {
    fn below(folder: &Path, late: &'static str) -> Self {
        let folder = LocalFileSystem::new_with_prefix(folder).expect("a folder");
        Self { folder, late, is_first: true.into(), has_begun: Notify::new(), may_end: Notify::new() }
    }
}

impl fmt::Display for LateStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.folder.fmt(formatter)
    }
}

#[async_trait]
impl ObjectStore for LateStore {
    async fn put_opts(&self, path: &ObjectPath, payload: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        if path.as_ref().ends_with(self.late) && self.is_first.swap(false, Ordering::SeqCst) {
            self.has_begun.notify_one();
            self.may_end.notified().await;
        }
        self.folder.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.folder.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> StoreResult<GetResult> {
        self.folder.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, StoreResult<ObjectPath>>,
    ) -> BoxStream<'static, StoreResult<ObjectPath>> {
        self.folder.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.folder.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> StoreResult<ListResult> {
        self.folder.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &ObjectPath, to: &ObjectPath, options: CopyOptions) -> StoreResult<()> {
        self.folder.copy_opts(from, to, options).await
    }
}

#[tokio::test]
async fn a_reducer_without_messages_ends_the_job_that_another_left() {
    let mut job = Job::new();
    job.options.shared = true;
    let quiet = tokio::spawn(job.open().await.run(CancellationToken::new()));
    let mut other = job.open().await;
    for mini_batch in 0..3 {
        let mut attempt = succeeded(mini_batch, 1, 1, 1);
        attempt.rows = Rows::Inline;
        let mut batch = Batch::default();
        let mut body = Vec::new();
        encode_record(&event(attempt), format!("{mini_batch}\n").as_bytes(), &mut body);
        assert!(batch.add(&body.into()).is_none());
        other.append(batch).await.expect("committed");
    }
    put_plan(&job.store, 3, Some(3)).await;
    other.append_event(&ResultEvent::Planned(Planned { mini_batches: 3, items: Some(3) })).await.expect("committed");
    drop(other);
    let result = quiet.await.expect("no panic").expect("ends");
    assert_eq!((result.state, job.output().as_str()), (JobState::Completed, "0\n1\n2\n"));
}

#[tokio::test]
async fn the_first_to_commit_the_end_decides_it() {
    let mut job = Job::new();
    job.options.shared = true;
    job.send_rows(0, "zero\n").await;
    job.planned(1).await;
    let mut first = job.open().await;
    first.append_event(&End::Canceled(Some("by the user".into())).event()).await.expect("committed");
    let result = job.run().await;
    assert_eq!((result.state, result.cause.as_deref()), (JobState::Canceled, Some("by the user")));
    assert_eq!(result.mini_batches.succeeded, 0, "what comes after the end does not count");
    assert_eq!(job.results.depth().await.expect("there").visible, 2, "and is given back");

    let mut reducer = job.open().await;
    reducer.reopen().await.expect("writable");
    assert_eq!(reducer.run(CancellationToken::new()).await.expect("ends").state, JobState::Completed);
    assert_eq!(job.output(), "zero\n");
}

#[tokio::test]
async fn who_is_told_to_stop_commits_what_it_has_and_leaves_the_job_open() {
    let mut job = Job::new();
    job.options.shared = true;
    job.send_rows(0, "zero\n").await;
    let reducer = job.open().await;
    let mut progress = reducer.progress();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(reducer.serve(stop.clone()));
    progress.wait_for(|progress| progress.mini_batches.succeeded == 1).await.expect("committed");
    stop.cancel();
    assert_eq!(serving.await.expect("no panic").expect("stops"), None);
    assert_eq!(job.store.result().await.expect("readable"), None);
    assert!(job.overview().contains("The overviewer on"), "reports are in the store");
    job.planned(1).await;
    assert_eq!(job.run().await.state, JobState::Completed);
}

#[tokio::test]
async fn what_comes_again_is_not_written_again() {
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
    assert_eq!((reducer.ledger.segments(), reducer.tally().duplicates()), (2, 1), "the ledger says how many came");
    assert_eq!(job.open().await.tally().duplicates(), 1);
}

#[tokio::test]
async fn duplicates_and_a_queue_that_does_not_answer_change_nothing() {
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

/// What the workers of the crash test announce: some rows inline, some as a part, one retry, one failure.
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

/// Kills the reducer the `nth` time it comes to `point`, then lets another one finish.
async fn crash_at(point: CrashPoint, nth: usize) -> (Job, JobResult, bool) {
    let mut job = Job::new();
    // What the killed one had received comes again soon.
    job.options.visibility = Duration::from_millis(50);
    announce(&job).await;
    let passed = Arc::new(AtomicUsize::new(0));
    let seen = passed.clone();
    job.options.crash = Arc::new(move |at| {
        if at == point && seen.fetch_add(1, Ordering::SeqCst) + 1 == nth {
            panic!("killed at {point:?}");
        }
    });
    let reducer = job.open().await;
    let killed = tokio::spawn(reducer.run(CancellationToken::new())).await.is_err();
    job.options.crash = Arc::new(|_| {});
    let result = job.run().await;
    (job, result, killed)
}

#[tokio::test]
async fn a_reducer_killed_at_any_step_is_finished_by_the_next() {
    let undisturbed = Job::new();
    announce(&undisturbed).await;
    let expected = undisturbed.run().await;
    assert_eq!(undisturbed.output(), "row 0\nrow 1\nrow 2\nrow 3\nrow 4\nrow 5\n");
    for &point in CrashPoint::ALL {
        let (job, result, killed) = crash_at(point, 1).await;
        assert!(killed, "{point:?} was never passed");
        assert_eq!(job.output(), undisturbed.output(), "{point:?}");
        assert_eq!((result.state, result.items), (expected.state, expected.items), "{point:?}");
        assert_eq!(result.mini_batches, expected.mini_batches, "{point:?}");
        let out = fs::read_dir(job.folder.path().join("out")).expect("there");
        assert_eq!(out.count(), 1, "{point:?} left something behind");
        let processed = job.log("sys/job_report/processed_mini-batches.csv");
        assert_eq!(processed.lines().count(), 1 + 8, "{point:?}: each attempt has one row");
        let parts = job.folder.path().join("job/parts");
        assert!(!parts.exists(), "{point:?}: parts are no longer needed");
    }
}

#[tokio::test]
async fn a_ledger_that_contradicts_the_plan_is_not_believed() {
    let mut job = Job::new();
    job.options.shared = true;
    let mut body = Vec::new();
    encode_record(&event(succeeded(u64::MAX, 1, 1, 1)), b"", &mut body);
    job.store.put_spec(&job.spec).await.expect("writable");
    job.store.commit_segment(0, vec![body.into()]).await.expect("writable");
    let refused = Reducer::open(job.store.clone(), job.results.clone(), job.options.clone()).await;
    let message = format!("{:#}", refused.expect_err("it is refused"));
    assert!(message.ends_with("mini-batch 18446744073709551615 was never published"), "{message}");
}
