//! A service of which the tests play the target.

use std::fs;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::{JobSpec, Planned, ResultEvent, Rows, begin_message, encode_record};
use queue::{Depth, Limits, MemoryOptions, MemoryQueue, Receipt, Receive};

use super::*;
use crate::fixtures::{failed, put_plan, spec, succeeded};
use crate::tests::peers::LateStore;

/// A compute target of which the tests play all other roles.
struct Target {
    folder: tempfile::TempDir,
    store: TargetStore,
    results: Arc<MemoryQueue>,
    dead_letters: Arc<MemoryQueue>,
    /// In their place, a queue that does not answer.
    silent: Option<Arc<SilentQueue>>,
    options: ServiceOptions,
}

impl Target {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let url = format!("file://{}", folder.path().join("store").display());
        let mut options = ServiceOptions {
            look_interval: Duration::from_millis(20),
            trouble_interval: Duration::from_millis(50),
            ..ServiceOptions::default()
        };
        options.reducer.progress_interval = Duration::from_millis(20);
        options.reducer.commit_interval = Duration::from_millis(5);
        let store = TargetStore::open(&url, Default::default()).await.expect("a folder");
        store.create().expect("writable");
        Self {
            store,
            results: Arc::new(MemoryQueue::new(MemoryOptions::default())),
            dead_letters: Arc::new(MemoryQueue::new(MemoryOptions::default())),
            silent: None,
            options,
            folder,
        }
    }

    fn output(&self, job_id: &str) -> String {
        fs::read_to_string(self.folder.path().join(job_id).join("parallel_run_step.txt")).expect("the final file")
    }

    async fn describe(&self, job_id: &str) -> JobSpec {
        let spec = JobSpec { job_id: job_id.to_owned(), ..spec(&self.folder.path().join(job_id)) };
        self.store.job(job_id).put_spec(&spec).await.expect("writable");
        spec
    }

    async fn enqueue(&self, job_id: &str) {
        self.describe(job_id).await;
        self.store.mark_open(job_id).await.expect("writable");
        let published = Bytes::from_static(b"{}\n");
        self.store.job(job_id).create_plan_chunk(0, published).await.expect("writable");
    }

    fn serve(&self) -> (CancellationToken, tokio::task::JoinHandle<anyhow::Result<()>>) {
        let stop = CancellationToken::new();
        (stop.clone(), self.serve_until(&stop))
    }

    fn serve_until(&self, stop: &CancellationToken) -> tokio::task::JoinHandle<anyhow::Result<()>> {
        let service = Service {
            target: self.store.clone(),
            results: self.results.clone(),
            dead_letters: match &self.silent {
                Some(silent) => silent.clone(),
                None => self.dead_letters.clone(),
            },
            options: self.options.clone(),
        };
        tokio::spawn(service.run(stop.clone()))
    }

    async fn send_rows(&self, job_id: &str, mini_batch: u64) {
        let mut attempt = succeeded(mini_batch, 1, 1, 1);
        attempt.rows = Rows::Inline;
        let mut body = begin_message(job_id);
        encode_record(
            &ResultEvent::Attempt(Box::new(attempt)),
            format!("{job_id} {mini_batch}\n").as_bytes(),
            &mut body,
        );
        self.send(body).await;
    }

    async fn planned(&self, job_id: &str, mini_batches: u64) {
        put_plan(&self.store.job(job_id), mini_batches, None).await;
        let mut body = begin_message(job_id);
        encode_record(&ResultEvent::Planned(Planned { mini_batches, items: None }), b"", &mut body);
        self.send(body).await;
    }

    async fn send(&self, body: impl Into<Bytes>) {
        self.results.send(vec![Message::new(body, "any")]).await.expect("sent");
    }

    async fn result(&self, job_id: &str) -> protocol::JobResult {
        let job = self.store.job(job_id);
        loop {
            if let Some(result) = job.result().await.expect("readable") {
                return result;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn has_trouble(&self, job_id: &str) -> bool {
        let progress = self.store.job(job_id).progress().await.expect("readable");
        progress.is_some_and(|progress| progress.trouble.is_some())
    }

    async fn wait_until_closed(&self) {
        while !self.store.open_jobs().await.expect("readable").is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn wait_until_empty(&self) {
        while self.results.depth().await.expect("there").total() > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn end_of_a_job_is_known_to_the_process_at_once() {
    let target = Target::new().await;
    target.enqueue("job").await;
    let (stop, serving) = target.serve();
    target.send_rows("job", 0).await;
    target.planned("job", 1).await;
    target.options.ended.notified().await;
    assert!(target.store.job("job").result().await.expect("readable").is_some());
    stop.cancel();
    serving.await.expect("no panic").expect("stops");
}

#[tokio::test]
async fn messages_and_marks_of_jobs_stay_while_the_store_is_not_mounted() {
    let target = Target::new().await;
    target.enqueue("job").await;
    target.send_rows("job", 0).await;
    target.planned("job", 1).await;
    let [mounted, away] = ["store", "away"].map(|name| target.folder.path().join(name));
    fs::rename(&mounted, &away).expect("ours");
    let (stop, serving) = target.serve();
    // The messages lead the reducer to the job.
    while !target.has_trouble("job").await {
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(target.results.depth().await.expect("there").total(), 2);
    fs::remove_dir_all(&mounted).expect("what was written meanwhile");
    fs::rename(&away, &mounted).expect("ours");
    assert_eq!(target.result("job").await.state, JobState::Completed);
    stop.cancel();
    serving.await.expect("no panic").expect("stops");
}

#[tokio::test]
async fn failed_job_stays_open_until_its_result_is_recorded() {
    let mut target = Target::new().await;
    let folder = target.folder.path().join("store");
    let store = Arc::new(LateStore::failing(&folder, "result.json"));
    target.store = TargetStore::new(store.clone(), Default::default());
    let mut spec = target.describe("job").await;
    spec.thresholds.error_threshold = 0;
    target.store.job("job").put_spec(&spec).await.expect("writable");
    target.store.mark_open("job").await.expect("writable");
    target.store.job("job").create_plan_chunk(0, Bytes::from_static(b"{}\n")).await.expect("writable");
    let (stop, serving) = target.serve();
    let mut body = begin_message("job");
    encode_record(&ResultEvent::Attempt(Box::new(failed(0, 3, true, 1))), b"", &mut body);
    target.send(body).await;
    while !target.has_trouble("job").await {
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(target.store.open_jobs().await.expect("readable"), ["job"]);
    store.heal();
    assert_eq!(target.result("job").await.state, JobState::Failed);
    target.wait_until_closed().await;
    stop.cancel();
    serving.await.expect("no panic").expect("stops");
}

#[tokio::test]
async fn many_jobs_share_a_queue_and_each_ends_with_its_rows() {
    let target = Target::new().await;
    let ids: Vec<String> = (0..5).map(|number| format!("job-{number}")).collect();
    for id in &ids {
        target.enqueue(id).await;
    }
    let (stop, serving) = target.serve();
    for mini_batch in 0..4 {
        for id in &ids {
            target.send_rows(id, mini_batch).await;
        }
    }
    for id in &ids {
        target.planned(id, 4).await;
    }
    for id in &ids {
        assert_eq!(target.result(id).await.state, JobState::Completed);
        let rows: String = (0..4).map(|mini_batch| format!("{id} {mini_batch}\n")).collect();
        assert_eq!(target.output(id), rows);
        let job = target.store.job(id);
        let report = job.log("job_result.txt").await.expect("the reports are in the store");
        assert!(report.starts_with(format!("Job {id} ended: Completed.").as_bytes()));
    }
    target.wait_until_closed().await;
    target.wait_until_empty().await;
    stop.cancel();
    serving.await.expect("no panic").expect("stops");
}

#[tokio::test]
async fn message_opens_its_job_and_messages_of_ended_and_unknown_jobs_are_dropped() {
    let target = Target::new().await;
    target.describe("one").await;
    let (stop, serving) = target.serve();
    target.send_rows("one", 0).await;
    target.send_rows("nowhere", 0).await;
    target.planned("one", 1).await;
    assert_eq!(target.result("one").await.state, JobState::Completed);
    target.send_rows("one", 0).await;
    target.wait_until_empty().await;
    assert!(target.store.open_jobs().await.expect("readable").is_empty());
    stop.cancel();
    serving.await.expect("no panic").expect("stops");
}

#[tokio::test]
async fn unreadable_message_goes_to_the_dead_letters() {
    let target = Target::new().await;
    target.enqueue("one").await;
    let (stop, serving) = target.serve();
    target.send("hello, world").await;
    let mut newer = begin_message("one");
    newer.extend_from_slice(b"\x02\0\0\0\0\0\0\0{}");
    target.send(newer.clone()).await;
    let request = Receive { messages_max: 2, visibility: Duration::from_secs(60), wait: Duration::from_secs(60) };
    let mut bodies = Vec::new();
    while bodies.len() < 2 {
        let letters = target.dead_letters.receive(request).await.expect("there");
        let letters =
            letters.iter().map(|letter| serde_json::from_slice::<DeadLetter>(&letter.body).expect("a letter"));
        bodies.extend(letters.map(|letter| letter.body()));
    }
    bodies.sort();
    assert_eq!(bodies, [newer, b"hello, world".to_vec()]);
    target.wait_until_empty().await;
    stop.cancel();
    serving.await.expect("no panic").expect("stops");
}

#[tokio::test]
async fn job_in_trouble_is_reported_and_stops_no_other() {
    let target = Target::new().await;
    for id in ["damaged", "good"] {
        target.enqueue(id).await;
    }
    let damaged = target.store.job("damaged");
    damaged.commit_segment(0, vec![Bytes::from_static(b"no records")]).await.expect("writable");
    let (stop, serving) = target.serve();
    target.send_rows("damaged", 0).await;
    target.planned("damaged", 1).await;
    target.send_rows("good", 0).await;
    target.planned("good", 1).await;
    assert_eq!(target.result("good").await.state, JobState::Completed);
    let trouble = loop {
        let progress = damaged.progress().await.expect("readable");
        if let Some(trouble) = progress.and_then(|progress| progress.trouble) {
            break trouble;
        }
        sleep(Duration::from_millis(5)).await;
    };
    assert!(trouble.contains("ledger/0000000000 is damaged: restore it, or move it away"), "{trouble}");
    let segment = damaged.segment_file(0).expect("a folder");
    fs::remove_file(segment).expect("there");
    assert_eq!(target.result("damaged").await.state, JobState::Completed, "its messages have been kept");
    stop.cancel();
    serving.await.expect("no panic").expect("stops");
}

#[tokio::test]
async fn canceled_job_ends_and_continues_when_it_is_opened_again() {
    let target = Target::new().await;
    target.enqueue("one").await;
    let (stop, serving) = target.serve();
    target.send_rows("one", 0).await;
    let job = target.store.job("one");
    job.request_cancel("by the user").await.expect("writable");
    let result = target.result("one").await;
    assert_eq!((result.state, result.cause.as_deref()), (JobState::Canceled, Some("by the user")));
    target.wait_until_closed().await;

    let mut reducer = Reducer::open(job.clone(), target.results.clone(), Options::shared()).await.expect("readable");
    reducer.reopen().await.expect("writable");
    target.store.mark_open("one").await.expect("writable");
    target.send_rows("one", 0).await;
    target.send_rows("one", 1).await;
    target.planned("one", 2).await;
    assert_eq!(target.result("one").await.state, JobState::Completed);
    assert_eq!(target.output("one"), "one 0\none 1\n");
    stop.cancel();
    serving.await.expect("no panic").expect("stops");
}

#[tokio::test]
async fn idle_service_exits_and_stopped_service_leaves_its_jobs_open() {
    let mut target = Target::new().await;
    target.enqueue("one").await;
    let (stop, serving) = target.serve();
    target.send_rows("one", 0).await;
    target.wait_until_empty().await;
    stop.cancel();
    serving.await.expect("no panic").expect("stops");
    assert_eq!(target.store.open_jobs().await.expect("readable"), ["one"]);

    target.options.idle_exit = Some(Duration::from_millis(50));
    target.planned("one", 1).await;
    let (_stop, serving) = target.serve();
    serving.await.expect("no panic").expect("exits by itself");
    assert_eq!(target.result("one").await.state, JobState::Completed);
}

#[tokio::test]
async fn stopped_service_leaves_a_slow_final_file_to_the_next() {
    let mut target = Target::new().await;
    let stop = CancellationToken::new();
    target.options.reducer.output_grace = Duration::ZERO;
    let stopping = stop.clone();
    target.options.reducer.crash = Arc::new(move |point| {
        if point == crate::CrashPoint::DuringOutput {
            stopping.cancel();
        }
    });
    target.enqueue("one").await;
    for mini_batch in 0..3 {
        target.send_rows("one", mini_batch).await;
    }
    target.planned("one", 3).await;
    target.serve_until(&stop).await.expect("no panic").expect("stops");
    assert!(target.store.job("one").result().await.expect("readable").is_none(), "it goes on");
    assert_eq!(target.store.open_jobs().await.expect("readable"), ["one"]);
    let folder = fs::read_dir(target.folder.path().join("one")).expect("the output folder");
    assert_eq!(folder.count(), 0, "nothing is left of what was written");

    target.options = Target::new().await.options;
    let (stop, serving) = target.serve();
    assert_eq!(target.result("one").await.state, JobState::Completed);
    assert_eq!(target.output("one"), "one 0\none 1\none 2\n");
    stop.cancel();
    serving.await.expect("no panic").expect("stops");
}

/// A queue that does not answer.
#[derive(Debug, Default)]
struct SilentQueue {
    was_asked: Notify,
}

#[async_trait]
impl Queue for SilentQueue {
    async fn send(&self, _: Vec<Message>) -> Result<(), queue::Error> {
        self.was_asked.notify_one();
        std::future::pending().await
    }

    async fn receive(&self, _: Receive) -> Result<Vec<Delivery>, queue::Error> {
        std::future::pending().await
    }

    async fn extend(&self, _: &[(Receipt, Duration)]) -> Result<Vec<Receipt>, queue::Error> {
        std::future::pending().await
    }

    async fn acknowledge(&self, _: &[Receipt]) -> Result<Vec<Receipt>, queue::Error> {
        std::future::pending().await
    }

    async fn release(&self, _: &[Receipt]) -> Result<(), queue::Error> {
        std::future::pending().await
    }

    async fn depth(&self) -> Result<Depth, queue::Error> {
        std::future::pending().await
    }

    fn limits(&self) -> Limits {
        MemoryQueue::new(MemoryOptions::default()).limits()
    }
}

#[tokio::test]
async fn service_goes_on_and_stops_while_the_dead_letters_do_not_answer() {
    let mut target = Target::new().await;
    let silent = Arc::new(SilentQueue::default());
    target.silent = Some(silent.clone());
    target.enqueue("one").await;
    let (stop, serving) = target.serve();
    target.send("hello, world").await;
    silent.was_asked.notified().await;
    target.send_rows("one", 0).await;
    target.send_rows("two", 0).await;
    target.enqueue("two").await;
    for id in ["one", "two"] {
        target.planned(id, 1).await;
        assert_eq!(target.result(id).await.state, JobState::Completed);
    }
    stop.cancel();
    timeout(LEAVE_TIME / 2, serving).await.expect("it stops").expect("no panic").expect("no error");
}

#[tokio::test]
async fn service_forgets_jobs_that_it_cannot_serve_once_they_are_gone() {
    let target = Target::new().await;
    let service = Service {
        target: target.store.clone(),
        results: target.results.clone(),
        dead_letters: target.dead_letters.clone(),
        options: target.options.clone(),
    };
    let mut running = service.running(&CancellationToken::new()).0;
    running.trouble("gone", "its ledger is damaged".into());
    running.trouble("open", "its ledger is damaged".into());
    running.looked(Some(vec!["open".into()]));
    assert_eq!(running.jobs.len(), 2, "it serves neither again so soon");
    sleep(2 * target.options.trouble_interval).await;
    running.looked(Some(vec!["open".into()]));
    assert_eq!(running.jobs.keys().collect::<Vec<_>>(), ["open"]);
    for number in 0..REFUSED_MAX + 5 {
        let (looked_at, why) = (Instant::now(), "it has ended");
        running.ended(format!("job-{number}"), Ok(Outcome::Absent { looked_at, why }));
    }
    assert!(running.refused.len() <= REFUSED_MAX);
}
