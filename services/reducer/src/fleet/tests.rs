//! Reducers of which the tests play the target: its jobs, its nodes, and the process that plans.

mod queues;

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use protocol::{
    JobResult, JobSpec, NodeState, Offer, Planned, ResultEvent, Rows, begin_message, encode_record,
};
use queue::{MemoryBroker, MemoryOptions, MemoryQueue, Message};
use tokio::task::JoinHandle;

use super::*;
use crate::fixtures::{put_plan, reopen, spec, succeeded};
use crate::tests::peers::LateStore;

const PAUSE: Duration = Duration::from_millis(5);

struct Target {
    folder: tempfile::TempDir,
    store: TargetStore,
    broker: Arc<MemoryBroker>,
    control: Arc<MemoryQueue>,
    dead_letters: Arc<MemoryQueue>,
    publisher: Arc<Rows3>,
    options: FleetOptions,
}

/// Publishes the rows of mini-batches 0 to 2 of any job, as if nodes had run them at once.
#[derive(Default)]
struct Rows3 {
    calls: AtomicUsize,
    /// Fails at first.
    failures: AtomicUsize,
    /// Publishes nothing at first.
    silent: AtomicUsize,
}

impl Publisher for Rows3 {
    fn publish(
        &self,
        job: JobStore,
        queues: JobQueues,
    ) -> Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let is_left = |count: &AtomicUsize| {
            count
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_ok()
        };
        let (fails, is_silent) = (is_left(&self.failures), is_left(&self.silent));
        Box::pin(async move {
            if fails {
                anyhow::bail!("the test wants it");
            }
            if is_silent {
                return Ok(());
            }
            let job_id = job.spec().await?.job_id;
            for mini_batch in 0..3 {
                let attempt =
                    protocol::Attempt { rows: Rows::Inline, ..succeeded(mini_batch, 1, 1, 1) };
                let event = ResultEvent::Attempt(Box::new(attempt));
                let mut body = begin_message(&job_id);
                encode_record(&event, format!("{job_id} {mini_batch}\n").as_bytes(), &mut body);
                queues.results.send(vec![Message::new(body)]).await?;
            }
            let mut body = begin_message(&job_id);
            encode_record(
                &ResultEvent::Planned(Planned { mini_batches: 3, items: None }),
                b"",
                &mut body,
            );
            queues.results.send(vec![Message::new(body)]).await?;
            Ok(())
        })
    }
}

impl Target {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let url = format!("file://{}", folder.path().join("store").display());
        let store = TargetStore::open(&url, Default::default()).await.expect("a folder");
        store.create().expect("writable");
        let mut options = FleetOptions {
            look_interval: Duration::from_millis(20),
            trouble_interval: Duration::from_millis(50),
            delete_after: Duration::ZERO,
            ..FleetOptions::default()
        };
        options.reducer.progress_interval = Duration::from_millis(20);
        options.reducer.commit_interval = PAUSE;
        let [control, dead_letters] =
            [(); 2].map(|()| Arc::new(MemoryQueue::new(MemoryOptions::default())));
        Self {
            folder,
            store,
            broker: Arc::default(),
            control,
            dead_letters,
            publisher: Arc::default(),
            options,
        }
    }

    async fn enqueue(&self, job_id: &str) -> JobSpec {
        let spec = JobSpec { job_id: job_id.to_owned(), ..spec(&self.folder.path().join(job_id)) };
        let job = self.store.job(job_id);
        job.put_spec(&spec).await.expect("writable");
        put_plan(&job, 3, None).await;
        self.store.mark_open(job_id).await.expect("writable");
        spec
    }

    fn serve(&self) -> (CancellationToken, JoinHandle<anyhow::Result<()>>) {
        let stop = CancellationToken::new();
        (stop.clone(), self.serve_until(stop))
    }

    fn serve_until(&self, stop: CancellationToken) -> JoinHandle<anyhow::Result<()>> {
        let mut options = self.options.clone();
        // Processes have different names.
        options.reducer.writer = storage::random_name();
        let fleet = Fleet {
            target: self.store.clone(),
            broker: self.broker.clone(),
            control: self.control.clone(),
            dead_letters: self.dead_letters.clone(),
            publisher: self.publisher.clone(),
            options,
        };
        tokio::spawn(fleet.run(stop))
    }

    async fn result(&self, job_id: &str) -> JobResult {
        let job = self.store.job(job_id);
        loop {
            if let Some(result) = job.result().await.expect("readable") {
                return result;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn output(&self, job_id: &str) -> String {
        fs::read_to_string(self.folder.path().join(job_id).join("parallel_run_step.txt"))
            .expect("the final file")
    }

    /// Waits until neither the broker nor the store knows any queue.
    async fn wait_until_tidy(&self) {
        while !self.broker.names().is_empty()
            || !self.store.queues().await.expect("readable").is_empty()
            || !self.store.open_ids().await.expect("readable").is_empty()
        {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn end((stop, serving): (CancellationToken, JoinHandle<anyhow::Result<()>>)) {
    stop.cancel();
    serving.await.expect("no panic").expect("stops");
}

#[tokio::test]
async fn jobs_end_with_their_rows_and_their_queues_are_deleted() {
    let target = Target::new().await;
    let ids: Vec<String> = (0..5).map(|number| format!("job-{number}")).collect();
    for id in &ids {
        target.enqueue(id).await;
    }
    let serving = target.serve();
    for id in &ids {
        assert_eq!(target.result(id).await.state, JobState::Completed);
        assert_eq!(
            target.output(id),
            (0..3).map(|mini_batch| format!("{id} {mini_batch}\n")).collect::<String>()
        );
    }
    target.wait_until_tidy().await;
    assert_eq!(target.publisher.calls.load(Ordering::SeqCst), 5);
    end(serving).await;
}

#[tokio::test]
async fn several_processes_serve_a_job_and_one_publishes_it() {
    let target = Target::new().await;
    let serving: Vec<_> = (0..3).map(|_| target.serve()).collect();
    for number in 0..4 {
        let id = format!("job-{number}");
        target.enqueue(&id).await;
        let result = target.result(&id).await;
        assert_eq!(result.state, JobState::Completed, "{:?}", result.cause);
    }
    target.wait_until_tidy().await;
    assert_eq!(target.publisher.calls.load(Ordering::SeqCst), 4);
    for one in serving {
        end(one).await;
    }
}

#[tokio::test]
async fn job_that_could_not_be_published_is_published_again() {
    let target = Target::new().await;
    target.publisher.failures.store(2, Ordering::SeqCst);
    target.enqueue("job").await;
    let serving = target.serve();
    assert_eq!(target.result("job").await.state, JobState::Completed);
    assert_eq!(target.publisher.calls.load(Ordering::SeqCst), 3);
    end(serving).await;
}

#[tokio::test]
async fn node_works_by_the_schedule() {
    let target = Target::new().await;
    target.publisher.failures.store(usize::MAX, Ordering::SeqCst);
    let offer = Offer { processors: 4, ..Offer::default() };
    let node =
        NodeState { name: "node".to_owned(), offer, accepts_work: true, ..NodeState::default() };
    target.store.put_worker(&node).await.expect("writable");
    target.enqueue("job").await;
    let serving = target.serve();
    let mut follower = storage::ScheduleFollower::new(target.store.clone());
    while follower.known().allocations.is_empty() {
        follower.look().await.expect("readable");
        tokio::time::sleep(PAUSE).await;
    }
    let schedule = follower.known();
    assert_eq!(
        (&*schedule.allocations[0].node, schedule.allocations[0].processes),
        ("node", 2),
        "{schedule:?}"
    );
    let queues = schedule.jobs[0].queues().expect("it is admitted");
    let name = || target.broker.names().first().cloned();
    while name().is_none() {
        tokio::time::sleep(PAUSE).await;
    }
    assert_eq!(name(), Some(queues.clone()));
    assert_eq!(target.store.queues().await.expect("readable"), [queues]);
    target.store.job("job").request_cancel("by the user").await.expect("writable");
    assert_eq!(target.result("job").await.state, JobState::Canceled);
    target.wait_until_tidy().await;
    end(serving).await;
}

#[tokio::test]
async fn reopened_job_continues_in_other_queues() {
    let target = Target::new().await;
    target.enqueue("job").await;
    let serving = target.serve();
    target.result("job").await;
    target.wait_until_tidy().await;
    let job = target.store.job("job");
    let results = Arc::new(MemoryQueue::new(MemoryOptions::default()));
    let mut reducer =
        Reducer::open(job.clone(), results, Options::shared()).await.expect("readable");
    reopen(&mut reducer).await;
    job.forget_published().await.expect("writable");
    target.store.mark_open("job").await.expect("writable");
    assert_eq!(target.result("job").await.state, JobState::Completed);
    target.wait_until_tidy().await;
    assert_eq!(target.publisher.calls.load(Ordering::SeqCst), 2);
    end(serving).await;
}

#[tokio::test]
async fn queues_that_somebody_deletes_are_created_again_and_the_job_is_published_again() {
    let target = Target::new().await;
    // What is published at first ends no mini-batch.
    target.publisher.silent.store(1, Ordering::SeqCst);
    target.enqueue("job").await;
    let serving = target.serve();
    let job = target.store.job("job");
    // A reducer that opens them later would create them.
    let is_served = async || job.progress().await.expect("readable").is_some();
    while job.published_in().await.expect("readable").is_none() || !is_served().await {
        tokio::time::sleep(PAUSE).await;
    }
    for name in target.broker.names() {
        target.broker.delete(&name).await.expect("memory is always there");
    }
    assert_eq!(target.result("job").await.state, JobState::Completed);
    assert_eq!(target.publisher.calls.load(Ordering::SeqCst), 2);
    target.wait_until_tidy().await;
    end(serving).await;
}

/// What a job has in its queue, and at its worker, at one look after the other.
struct Looks {
    queue: MemoryQueue,
    backlog: watch::Sender<Backlog>,
    workers: watch::Sender<Arc<Workers>>,
}

impl Looks {
    fn new() -> Self {
        let backlog = Backlog { planned: Some(9), ended: (0, 3), ..Backlog::default() };
        let queue = MemoryQueue::new(MemoryOptions::default());
        Self { queue, backlog: watch::Sender::new(backlog), workers: watch::Sender::default() }
    }

    /// Returns what is lost after a minute in which something happens once a second.
    async fn lost(&self, mut happens: impl AsyncFnMut(u64)) -> Option<Lost> {
        let mut in_queue = QueueLossDetector {
            backlog: self.backlog.subscribe(),
            workers: self.workers.subscribe(),
        };
        let happening = async {
            for second in 0..60 {
                happens(second).await;
                sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::select! {
            lost = in_queue.lost(&self.queue) => Some(lost),
            () = happening => None,
        }
    }

    fn hold(&self, held: u64) {
        self.workers.send_replace(Arc::new(Workers { held, ..Workers::default() }));
    }
}

#[tokio::test(start_paused = true)]
async fn emptied_queue_is_noticed_unless_a_worker_holds_mini_batches_or_results_come() {
    let looks = Looks::new();
    assert!(matches!(
        looks.lost(async |_| looks.hold(0)).await,
        Some(Lost::Messages { ended: (0, 3) })
    ));
    assert!(looks.lost(async |_| looks.hold(1)).await.is_none());
    assert!(looks.lost(async |second| looks.hold(u64::from(second % 15 == 7))).await.is_none());
    looks.hold(0);
    let ends = |backlog: &mut Backlog| backlog.ended.1 += 1;
    assert!(
        looks
            .lost(async |second| if second % 15 == 7 {
                looks.backlog.send_modify(ends)
            })
            .await
            .is_none()
    );
    let none_left = |backlog: &mut Backlog| backlog.ended.1 = 9;
    looks.backlog.send_modify(none_left);
    assert!(looks.lost(async |_| {}).await.is_none());
    let is_planning = |backlog: &mut Backlog| (backlog.planned, backlog.ended.1) = (None, 0);
    looks.backlog.send_modify(is_planning);
    assert!(looks.lost(async |_| {}).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn queue_with_messages_is_not_empty() {
    let looks = Looks::new();
    looks.queue.send(vec![Message::new("task")]).await.expect("memory is always there");
    assert!(looks.lost(async |_| {}).await.is_none());
    let delayed = Message { delay: Duration::from_secs(300), ..Message::new("task") };
    let looks = Looks::new();
    looks.queue.send(vec![delayed]).await.expect("memory is always there");
    assert!(looks.lost(async |_| {}).await.is_none());
}

#[tokio::test]
async fn unreadable_message_goes_to_the_dead_letters() {
    let target = Target::new().await;
    target.publisher.silent.store(1, Ordering::SeqCst);
    target.enqueue("job").await;
    let serving = target.serve();
    while target.broker.names().is_empty() {
        tokio::time::sleep(PAUSE).await;
    }
    let [_, results] = target.broker.pair(&target.broker.names()[0]).expect("it is there");
    results.send(vec![Message::new("hello, world")]).await.expect("memory is always there");
    let request = Receive {
        messages_max: 1,
        visibility: Duration::from_secs(60),
        wait: Duration::from_secs(60),
    };
    let letters = target.dead_letters.receive(request).await.expect("memory is always there");
    let letter: protocol::DeadLetter = serde_json::from_slice(&letters[0].body).expect("a letter");
    assert_eq!(
        (letter.body(), &*letter.job_id, &*letter.queue),
        (b"hello, world".to_vec(), "job", "results")
    );
    end(serving).await;
}

#[tokio::test]
async fn stopped_process_leaves_a_slow_final_file_to_the_next() {
    let mut target = Target::new().await;
    target.options.reducer.output_grace = Duration::ZERO;
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    target.options.reducer.crash = Arc::new(move |point| {
        if point == crate::CrashPoint::DuringOutput {
            stopping.cancel();
        }
    });
    target.enqueue("job").await;
    target.serve_until(stop).await.expect("no panic").expect("stops");
    assert!(target.store.job("job").result().await.expect("readable").is_none(), "it goes on");
    assert_eq!(target.store.open_ids().await.expect("readable"), ["job"]);
    let folder = fs::read_dir(target.folder.path().join("job")).expect("the output folder");
    assert_eq!(folder.count(), 0, "nothing is left of what was written");
    target.options = Target::new().await.options;
    let serving = target.serve();
    assert_eq!(target.result("job").await.state, JobState::Completed);
    assert_eq!(target.output("job"), "job 0\njob 1\njob 2\n");
    end(serving).await;
}

#[tokio::test]
async fn queues_that_a_killed_process_left_are_deleted() {
    let target = Target::new().await;
    for name in ["gone.0", "foreign"] {
        target.store.put_queues(name).await.expect("writable");
        target.broker.create(name).await.expect("memory takes it");
    }
    let serving = target.serve();
    while target.broker.names() != ["foreign"]
        || target.store.queues().await.expect("readable") != ["foreign"]
    {
        tokio::time::sleep(PAUSE).await;
    }
    end(serving).await;
}

#[tokio::test]
async fn job_in_trouble_is_reported_and_stops_no_other() {
    let target = Target::new().await;
    target.enqueue("damaged").await;
    target.enqueue("good").await;
    let damaged = target.store.job("damaged");
    damaged.commit_segment(0, vec![Bytes::from_static(b"no records")]).await.expect("writable");
    let serving = target.serve();
    assert_eq!(target.result("good").await.state, JobState::Completed);
    let trouble = loop {
        let progress = damaged.progress().await.expect("readable");
        if let Some(trouble) = progress.and_then(|progress| progress.trouble) {
            break trouble;
        }
        tokio::time::sleep(PAUSE).await;
    };
    assert!(
        trouble.reason.contains("ledger/0000000000 is damaged: restore it, or move it away"),
        "{trouble:?}"
    );
    fs::remove_file(damaged.segment_file(0).expect("a folder")).expect("there");
    assert_eq!(
        target.result("damaged").await.state,
        JobState::Completed,
        "its messages have been kept"
    );
    end(serving).await;
}

#[tokio::test]
async fn failed_job_stays_open_until_its_result_is_recorded() {
    let mut target = Target::new().await;
    let folder = target.folder.path().join("store");
    let store = Arc::new(LateStore::failing(&folder, "result.json"));
    target.store = TargetStore::new(store.clone(), Default::default());
    target.enqueue("job").await;
    let serving = target.serve();
    loop {
        let progress = target.store.job("job").progress().await.expect("readable");
        if progress.is_some_and(|progress| progress.trouble.is_some()) {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    assert_eq!(target.store.open_ids().await.expect("readable"), ["job"]);
    store.heal();
    assert_eq!(target.result("job").await.state, JobState::Completed);
    target.wait_until_tidy().await;
    end(serving).await;
}

#[tokio::test]
async fn idle_process_exits_and_stopped_one_leaves_its_jobs_open() {
    let mut target = Target::new().await;
    target.publisher.failures.store(usize::MAX, Ordering::SeqCst);
    target.enqueue("job").await;
    let serving = target.serve();
    while target.broker.names().is_empty() {
        tokio::time::sleep(PAUSE).await;
    }
    end(serving).await;
    assert_eq!(target.store.open_ids().await.expect("readable"), ["job"]);
    target.publisher.failures.store(0, Ordering::SeqCst);
    target.options.idle_exit = Some(Duration::from_millis(100));
    target.options.tidies = true;
    target.options.delete_after = Duration::from_secs(3600);
    let (_, serving) = target.serve();
    assert_eq!(target.result("job").await.state, JobState::Completed, "another process continues");
    serving.await.expect("no panic").expect("it exits");
    assert!(
        target.broker.names().is_empty()
            && target.store.queues().await.expect("readable").is_empty()
    );
}

#[tokio::test]
async fn message_about_a_new_job_makes_a_process_look_at_once() {
    let mut target = Target::new().await;
    target.options.look_interval = Duration::from_secs(3600);
    let serving = target.serve();
    // The first look is over.
    tokio::time::sleep(Duration::from_millis(200)).await;
    target.enqueue("job").await;
    target.control.send(vec![Message::new("job")]).await.expect("sent");
    while target.broker.names().is_empty() {
        tokio::time::sleep(PAUSE).await;
    }
    while target.control.depth().await.expect("there").total() > 0 {
        tokio::time::sleep(PAUSE).await;
    }
    end(serving).await;
}
