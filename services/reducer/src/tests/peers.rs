//! Two reducers on one job, step by step.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use protocol::{
    Activity, Progress, Running, RunningMiniBatch, SlotPhase, milliseconds_since_epoch,
};
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::batch::Batch;
use crate::judge::End;
use crate::{Timestamp, Workers};

const PROCESSED: &str = "sys/job_report/processed_mini-batches.csv";

#[tokio::test]
async fn second_reducer_continues_after_the_first_and_results_count_once() {
    let mut job = Job::new();
    job.options.peers = Peers::Many;
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
    assert_eq!(second.run(CancellationToken::new()).await.expect("reads the result"), result);
    assert_eq!(job.output(), "zero\none\n");
}

#[tokio::test]
async fn elapsed_time_goes_on_with_another_reducer_and_stands_still_between_an_end_and_a_retry() {
    let mut job = Job::new();
    job.options.peers = Peers::Many;
    let first = job.open().await;
    let hour_ago = milliseconds_since_epoch() - 3_600_000;
    let left = |at, elapsed_seconds, worked_seconds| Progress {
        at,
        started_at: hour_ago,
        elapsed_seconds,
        worked_seconds,
        ..Reducer::no_progress()
    };
    first.store.put_progress(&left(hour_ago, 60.0, 40.0)).await.expect("written");
    let store = first.store.clone();
    drop(first);
    job.send_event(event(failed(0, 3, true, 1))).await;
    job.planned(1).await;
    let result = job.run().await;
    assert_eq!(result.state, JobState::Failed);
    assert!((3660.0..3760.0).contains(&result.elapsed_seconds), "{}", result.elapsed_seconds);
    assert!(
        (40.0..140.0).contains(&result.worked_seconds),
        "no worker was there: {}",
        result.worked_seconds
    );
    let ended = store.progress().await.expect("readable").expect("written");
    assert_eq!(ended.elapsed_seconds, result.elapsed_seconds);
    let ended = Progress { at: hour_ago, ..ended };
    store.put_progress(&ended).await.expect("written");
    let mut retried = job.open().await;
    reopen(&mut retried).await;
    drop(retried);
    job.send_rows(0, "zero\n").await;
    let result = job.run().await;
    assert_eq!(result.state, JobState::Completed);
    assert!(
        (ended.elapsed_seconds..ended.elapsed_seconds + 100.0).contains(&result.elapsed_seconds),
        "{result:?}"
    );
}

/// Lets another reducer commit a second row and end the job, of which the reducer `behind` knows only the first row.
async fn ended_by_another(job: &Job, behind: &mut Reducer) -> JobResult {
    job.send_rows(1, "one\n").await;
    job.planned(2).await;
    let result = job.run().await;
    assert_eq!((result.state, behind.tally().mini_batches().succeeded), (JobState::Completed, 1));
    result
}

#[tokio::test]
async fn reports_of_outdated_reducer_do_not_replace_final_reports() {
    for is_asked_to_stop in [false, true] {
        let mut job = Job::new();
        job.options.peers = Peers::Many;
        let mut behind = job.open().await;
        job.send_rows(0, "zero\n").await;
        behind.drain().await.expect("committed");
        ended_by_another(&job, &mut behind).await;
        match is_asked_to_stop {
            false => behind.report().await.expect("written"),
            true => behind.leave().await,
        }
        // Waits for the running copy.
        behind.reports.may_have_replaced().await;
        assert_eq!(job.log(PROCESSED).lines().count(), 1 + 2, "asked to stop: {is_asked_to_stop}");
    }
}

#[tokio::test]
async fn late_copy_of_a_report_is_replaced_by_a_complete_one() {
    let mut job = Job::new();
    job.options.peers = Peers::Many;
    let late = Arc::new(LateStore::below(&job.folder.path().join("job"), PROCESSED));
    job.open().await;
    let store = JobStore::new(late.clone(), ObjectPath::default());
    let mut behind =
        Reducer::open(store, job.results.clone(), job.options.clone()).await.expect("readable");
    job.send_rows(0, "zero\n").await;
    behind.drain().await.expect("committed");
    behind.report().await.expect("written");
    late.has_begun.notified().await;
    let result = ended_by_another(&job, &mut behind).await;
    late.may_end.notify_one();
    assert_eq!(behind.run(CancellationToken::new()).await.expect("reads the result"), result);
    assert_eq!(job.log(PROCESSED).lines().count(), 1 + 2);
    assert!(job.overview().contains("The job ended: Completed."));
}

/// A store in which the first write of some files is slow, or their first writes fail. Counts the reads of these files.
#[derive(Debug)]
pub(crate) struct LateStore {
    inner: Arc<dyn ObjectStore>,
    /// The end of the names of these files.
    late: &'static str,
    reads: AtomicUsize,
    is_first: AtomicBool,
    failures: AtomicUsize,
    error: fn() -> Error,
    has_begun: Notify,
    may_end: Notify,
}

impl LateStore {
    /// The first `failures` writes of the files fail.
    pub(super) fn new(
        inner: Arc<dyn ObjectStore>,
        late: &'static str,
        failures: usize,
        error: fn() -> Error,
    ) -> Self {
        Self {
            inner,
            late,
            reads: AtomicUsize::default(),
            is_first: false.into(),
            failures: failures.into(),
            error,
            has_begun: Notify::new(),
            may_end: Notify::new(),
        }
    }

    fn in_folder(folder: &Path, late: &'static str, failures: usize) -> Self {
        let folder = LocalFileSystem::new_with_prefix(folder).expect("a folder");
        let error = || Error::Generic { store: "a test", source: "no answer".into() };
        Self::new(Arc::new(folder), late, failures, error)
    }

    /// The first write of the file is slow.
    fn below(folder: &Path, late: &'static str) -> Self {
        Self { is_first: true.into(), ..Self::in_folder(folder, late, 0) }
    }

    /// Writes of the file fail until `heal` is called.
    pub(crate) fn failing(folder: &Path, late: &'static str) -> Self {
        Self::in_folder(folder, late, usize::MAX)
    }

    pub(crate) fn heal(&self) {
        self.failures.store(0, Ordering::SeqCst);
    }

    fn answer(&self, path: &ObjectPath) -> StoreResult<()> {
        let one_less = |left: usize| left.checked_sub(1);
        let fails = path.as_ref().ends_with(self.late)
            && self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok();
        if fails { Err((self.error)()) } else { Ok(()) }
    }
}

impl fmt::Display for LateStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for LateStore {
    async fn put_opts(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> StoreResult<PutResult> {
        self.answer(path)?;
        if path.as_ref().ends_with(self.late) && self.is_first.swap(false, Ordering::SeqCst) {
            self.has_begun.notify_one();
            self.may_end.notified().await;
        }
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.answer(path)?;
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> StoreResult<GetResult> {
        if path.as_ref().ends_with(self.late) {
            self.reads.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, StoreResult<ObjectPath>>,
    ) -> BoxStream<'static, StoreResult<ObjectPath>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &ObjectPath,
        to: &ObjectPath,
        options: CopyOptions,
    ) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// Returns what a reducer sees of workers of which only the last sign of life is known.
fn workers(
    heartbeats: &watch::Sender<Option<Timestamp>>,
) -> Arc<dyn Fn() -> Arc<Workers> + Send + Sync> {
    let heartbeats = heartbeats.subscribe();
    Arc::new(move || Arc::new(Workers { heartbeat: *heartbeats.borrow(), ..Workers::default() }))
}

#[tokio::test(start_paused = true)]
async fn reducer_that_leaves_a_silent_output_has_applied_each_event_once() {
    let mut job = Job::new();
    (job.options.peers, job.options.output_grace) = (Peers::Many, Duration::ZERO);
    let (silent, answers) = std::sync::mpsc::channel::<()>();
    let (writing, answers, stop) =
        (CancellationToken::new(), std::sync::Mutex::new(answers), CancellationToken::new());
    let (is_writing, stopping) = (writing.clone(), stop.clone());
    job.options.crash = Arc::new(move |point| {
        if point == CrashPoint::DuringOutput {
            is_writing.cancel();
            stopping.cancel();
            // The output answers once the test has ended.
            let _ = answers.lock().expect("no panic").recv();
        }
    });
    let mut reducer = job.open().await;
    job.send_rows(0, "zero\n").await;
    reducer.drain().await.expect("committed");
    job.send(&[(event(failed(1, 1, false, 1)), b"")]).await;
    job.send_rows(1, "one\n").await;
    job.send_rows(0, "zero\n").await;
    job.planned(2).await;
    reducer.drain().await.expect("committed");
    let state = |reducer: &Reducer| {
        let tally = reducer.tally();
        (
            reducer.ledger.segments(),
            tally.duplicates(),
            tally.items(),
            tally.retrying(),
            tally.effort().extra_runs,
        )
    };
    // A thread that blocks holds the paused clock. It goes on for as long as the reducer waits, which may begin late.
    let advancing = AbortOnDropHandle::new(tokio::spawn(async move {
        writing.cancelled().await;
        loop {
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }));
    let finished =
        reducer.finish(End::Complete, &CancellationToken::new(), &stop).await.expect("no error");
    assert_eq!(finished, None);
    drop(advancing);
    let before = state(&reducer);
    reducer.leave().await;
    reducer.catch_up().await.expect("readable");
    assert_eq!(state(&reducer), before);
    assert!(before.0 > 0, "it knows the ledger");
    drop(silent);
}

#[tokio::test]
async fn idle_reducer_ends_job_that_another_left() {
    let mut job = Job::new();
    job.options.peers = Peers::Many;
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
    other
        .append_event(&ResultEvent::Planned(Planned { mini_batches: 3, items: Some(3) }))
        .await
        .expect("committed");
    drop(other);
    let result = quiet.await.expect("no panic").expect("ends");
    assert_eq!((result.state, job.output().as_str()), (JobState::Completed, "0\n1\n2\n"));
}

#[tokio::test]
async fn first_committed_end_decides() {
    let mut job = Job::new();
    job.options.peers = Peers::Many;
    job.send_rows(0, "zero\n").await;
    job.planned(1).await;
    let mut first = job.open().await;
    first
        .append_event(&End::Canceled(Some("by the user".into())).event())
        .await
        .expect("committed");
    let result = job.run().await;
    assert_eq!((result.state, result.cause.as_deref()), (JobState::Canceled, Some("by the user")));
    assert_eq!(result.mini_batches.succeeded, 0, "events after the end do not count");
    assert_eq!(job.results.depth().await.expect("there").visible, 2, "the messages are returned");

    let mut reducer = job.open().await;
    reopen(&mut reducer).await;
    assert_eq!(
        reducer.run(CancellationToken::new()).await.expect("ends").state,
        JobState::Completed
    );
    assert_eq!(job.output(), "zero\n");
}

#[tokio::test]
async fn job_that_ends_meanwhile_is_reopened() {
    let mut job = Job::new();
    job.options.peers = Peers::Many;
    let (mut retry, mut reducer) = (job.open().await, job.open().await);
    reducer
        .append_event(&End::Canceled(Some("by the user".into())).event())
        .await
        .expect("committed");
    reopen(&mut retry).await;
    assert_eq!(retry.tally().ended_as(), None);
    assert_eq!(job.open().await.tally().ended_as(), None, "the ledger says so");
}

#[tokio::test]
async fn stopped_reducer_commits_its_messages_and_leaves_the_job_open() {
    let mut job = Job::new();
    job.options.peers = Peers::Many;
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

/// Returns a job that failed and was reopened, and a reducer that has read of neither.
async fn reopened_behind_a_reducer() -> (Job, Reducer) {
    let mut job = Job::new();
    job.options.peers = Peers::Many;
    job.spec.thresholds.allowed_failed_count = 0;
    let mut behind = job.open().await;
    job.send_event(event(failed(0, 3, true, 1))).await;
    job.planned(1).await;
    behind.drain().await.expect("committed");
    assert_eq!(job.run().await.state, JobState::Failed);
    reopen(&mut job.open().await).await;
    (job, behind)
}

#[tokio::test]
async fn end_decided_before_a_retry_does_not_end_the_reopened_job() {
    let (job, mut behind) = reopened_behind_a_reducer().await;
    let end = End::Failed("decided before the retry".to_owned());
    let finished = behind
        .finish(end, &CancellationToken::new(), &CancellationToken::new())
        .await
        .expect("readable");
    assert_eq!(finished, None);
    assert_eq!(job.store.result().await.expect("readable"), None, "the job is open");
    assert_eq!(job.open().await.tally().ended_as(), None);
    job.send_rows(0, "zero\n").await;
    let result = behind.run(CancellationToken::new()).await.expect("the job ends");
    assert_eq!((result.state, job.output().as_str()), (JobState::Completed, "zero\n"));
}

#[tokio::test]
async fn result_of_an_earlier_run_is_not_written_although_the_job_has_ended_again() {
    let mut job = Job::new();
    job.options.peers = Peers::Many;
    let (mut paused, mut other) = (job.open().await, job.open().await);
    let end = || End::Failed("in the first run".to_owned());
    paused.append_event(&end().event()).await.expect("committed");
    reopen(&mut other).await;
    other
        .append_event(&End::Failed("in the second run".to_owned()).event())
        .await
        .expect("committed");
    let never = CancellationToken::new();
    assert_eq!(paused.write_end(end(), &never, &never).await.expect("readable"), None);
    assert_eq!(job.store.result().await.expect("readable"), None);
}

#[tokio::test]
async fn failure_in_a_reopened_job_is_not_taken_for_one_of_its_first_run() {
    let (job, mut behind) = reopened_behind_a_reducer().await;
    job.send_event(event(failed(0, 3, true, 1))).await;
    behind.drain().await.expect("committed");
    assert_eq!(job.open().await.tally().state(0), MiniBatchState::Failed);
    assert_eq!(
        behind.run(CancellationToken::new()).await.expect("the job ends").state,
        JobState::Failed
    );
}

#[tokio::test]
async fn ledger_that_contradicts_the_plan_is_rejected() {
    let mut job = Job::new();
    job.options.peers = Peers::Many;
    let mut body = Vec::new();
    encode_record(&event(succeeded(u64::MAX, 1, 1, 1)), b"", &mut body);
    job.store.put_spec(&job.spec).await.expect("writable");
    job.store.commit_segment(0, vec![body.into()]).await.expect("writable");
    let opened = Reducer::open(job.store.clone(), job.results.clone(), job.options.clone()).await;
    let message = format!("{:#}", opened.expect_err("the plan has no such mini-batch"));
    assert!(message.ends_with("mini-batch 18446744073709551615 is not in the plan"), "{message}");
}

#[tokio::test]
async fn reducer_of_a_job_without_workers_gives_signs_of_life() {
    let mut job = Job::new();
    job.options = Options { progress_interval: Duration::from_millis(10), ..Options::shared() };
    let run = AbortOnDropHandle::new(tokio::spawn(job.open().await.run(CancellationToken::new())));
    let written = async || job.store.progress().await.expect("readable").map(|written| written.at);
    let mut heartbeats = HashSet::new();
    while heartbeats.len() < 4 {
        heartbeats.extend(written().await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!run.is_finished());
}

#[tokio::test]
async fn reducer_that_knows_of_no_end_does_not_look_for_the_result() {
    let mut job = Job::new();
    job.options = Options { progress_interval: Duration::from_millis(10), ..Options::shared() };
    let store = Arc::new(LateStore::below(&job.folder.path().join("job"), "result.json"));
    job.store = JobStore::new(store.clone(), ObjectPath::default());
    let reducer = job.open().await;
    let mut progress = reducer.progress();
    let run = AbortOnDropHandle::new(tokio::spawn(reducer.run(CancellationToken::new())));
    for _ in 0..20 {
        progress.changed().await.expect("it looks around");
    }
    assert!(!run.is_finished());
    assert_eq!(store.reads.load(Ordering::SeqCst), 1, "when it began");
}

#[tokio::test]
async fn job_without_workers_waits_and_fails_only_with_a_worker() {
    let mut job = Job::new();
    let heartbeats = watch::Sender::new(None);
    job.options = Options {
        progress_interval: Duration::from_millis(10),
        silence: Duration::from_millis(200),
        workers: workers(&heartbeats),
        ..Options::shared()
    };
    job.spec.progress_update_timeout_seconds = 1;
    let reducer = job.open().await;
    let mut progress = reducer.progress();
    let run = tokio::spawn(reducer.run(CancellationToken::new()));
    let started = started("a", "process000");
    job.send_event(started).await;
    progress
        .wait_for(|progress| progress.nodes == 1 && progress.silent_since.is_none())
        .await
        .expect("a worker is present");
    progress
        .wait_for(|progress| progress.silent_since.is_some())
        .await
        .expect("the worker is absent");
    let written = async || {
        job.store.progress().await.expect("readable").and_then(|written| written.silent_since)
    };
    while written().await.is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(!run.is_finished(), "time without workers does not count");
    let beating = async {
        loop {
            heartbeats.send_replace(Some(Timestamp::now()));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let result = tokio::select! {
        result = run => result.expect("no panic").expect("the job ends"),
        () = beating => unreachable!("the signs of life never end"),
    };
    assert!(result.cause.expect("failed").starts_with("No progress update in 1 second."));
}

#[tokio::test]
async fn progress_shows_the_processes_and_mini_batches_of_which_nodes_tell() {
    let running = |mini_batch, since| RunningMiniBatch {
        mini_batch,
        node: "b".to_owned(),
        process: "process001".to_owned(),
        phase: SlotPhase::Run,
        since,
    };
    let activity =
        Activity { held: 3, running: vec![running(5, 20), running(3, 10)], usage: vec![] };
    let of_node = Running { processes: 2, activity, ..Running::default() };
    let nodes = BTreeMap::from([("b".to_owned(), of_node), ("c".to_owned(), Running::default())]);
    let mut job = Job::new();
    let workers =
        Arc::new(move || Arc::new(Workers { nodes: nodes.clone(), held: 3, ..Workers::default() }));
    job.options =
        Options { progress_interval: Duration::from_millis(10), workers, ..Options::shared() };
    let reducer = job.open().await;
    let mut progress = reducer.progress();
    let _run = AbortOnDropHandle::new(tokio::spawn(reducer.run(CancellationToken::new())));
    // This node was killed: no event tells the end of its process.
    job.send_event(started("a", "process000")).await;
    let seen =
        progress.wait_for(|progress| progress.nodes == 1).await.expect("its event arrives").clone();
    assert_eq!((seen.processes, seen.nodes_at_work), (2, 1));
    assert_eq!(seen.running.iter().map(|running| running.mini_batch).collect::<Vec<_>>(), [3, 5]);
}

/// For every phase between the worker's signs of life, the looks of planner and reducer, and the kill.
#[tokio::test(start_paused = true)]
async fn killed_worker_is_named_within_ten_seconds_and_a_live_one_never() {
    const PERIOD: Duration = storage::WORKER_PERIOD_AT_WORK;
    for (first_look, lives) in (0..8).flat_map(|look| (0..8).map(move |lives| (look, lives))) {
        let mut job = Job::new();
        job.store = JobStore::new(Arc::new(InMemory::new()), "jobs/job".into());
        let heartbeats = watch::Sender::new(None);
        job.options =
            Options { reports: false, workers: workers(&heartbeats), ..Options::shared() };
        let beating = async {
            loop {
                let heartbeat = Timestamp::now();
                // The planner looks every second, and a request takes its time.
                tokio::time::sleep(Duration::from_millis(1150)).await;
                heartbeats.send_replace(Some(heartbeat));
                tokio::time::sleep(PERIOD - Duration::from_secs(1)).await;
            }
        };
        let lives = Duration::from_secs(60) + lives * PERIOD / 8;
        let worker =
            async { tokio::time::timeout(lives, beating).await.expect_err("it never ends") };
        let run = async {
            tokio::time::sleep(first_look * PERIOD / 8).await;
            job.send_event(started("a", "process000")).await;
            job.open().await.run(CancellationToken::new()).await
        };
        let looking = async {
            worker.await;
            let written = async || {
                job.store.progress().await.expect("readable").expect("written").silent_since
            };
            assert_eq!(
                written().await,
                None,
                "a worker that lives is not absent ({first_look}, {lives:?})"
            );
            tokio::time::sleep(Duration::from_secs(10)).await;
            assert!(
                written().await.is_some(),
                "ten seconds after the kill ({first_look}, {lives:?})"
            );
        };
        tokio::select! {
            result = run => panic!("the job goes on: {result:?}"),
            () = looking => {}
        }
    }
}

/// A queue may deliver a mini-batch of a slow script many times, and each attempt takes its time.
#[tokio::test]
async fn repeated_attempts_are_progress() {
    let mut job = Job::new();
    job.spec.progress_update_timeout_seconds = 2;
    let reducer = job.open().await;
    let run = tokio::spawn(reducer.run(CancellationToken::new()));
    job.send(&[(started("a", "process000"), b""), (event(succeeded(0, 1, 1, 0)), b"")]).await;
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        job.send(&[(event(succeeded(0, 1, 1, 0)), b"")]).await;
    }
    assert!(!run.is_finished(), "attempts have ended");
    job.send_rows(1, "one\n").await;
    job.planned(2).await;
    let result = run.await.expect("no panic").expect("the job ends");
    assert_eq!(result.state, JobState::Completed, "{result:?}");
}
