//! Nodes with real Python processes, over queues and a store in memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use protocol::{
    Allocation, Attempt, DeadLetter, Descriptor, Environment, Input, InputKind, JobSpec,
    ResultEvent, Schedule, ScheduledJob, TableOptions, Work, decode_records, job_of_message,
    queues_of,
};
use queue::{Delivery, Depth, MemoryBroker, MemoryOptions, MemoryQueue, Message, Queue, Receive};
use storage::{Commit, JobStore, Source, StoreOptions, TargetStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::scheduler::tests::descriptor;

/// Far longer than any step of these tests takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs until its file is removed.
const WAITS: &str = "
import os, time
def init():
    pass
def run(mini_batch):
    open(mini_batch[0] + '.began', 'w').close()
    while os.path.exists(mini_batch[0]):
        time.sleep(0.01)
    return mini_batch
";

/// A compute target. The test plays its reducers.
struct Target {
    folder: TempDir,
    store: TargetStore,
    broker: Arc<MemoryBroker>,
    dead_letters: Arc<MemoryQueue>,
    schedule: Mutex<Schedule>,
}

struct Running {
    stop: watch::Sender<Stop>,
    ended: JoinHandle<Result<Ended>>,
}

impl Running {
    async fn drain(self) -> Ended {
        self.stop.send_replace(Stop::Drain);
        self.end().await
    }

    async fn end(self) -> Ended {
        tokio::time::timeout(PATIENCE, self.ended)
            .await
            .expect("it ends")
            .expect("it does not panic")
            .expect("no error")
    }
}

impl Target {
    async fn new() -> Self {
        let dead_letters = Arc::new(MemoryQueue::new(MemoryOptions::default()));
        let store = TargetStore::open("memory:///target", StoreOptions::default())
            .await
            .expect("it can be opened");
        let folder = tempfile::tempdir().expect("temporary folder");
        Self { folder, store, broker: Arc::default(), dead_letters, schedule: Mutex::default() }
    }

    /// Writes the next schedule: the nodes and their jobs, one process each.
    async fn give(&self, allocations: &[(&str, &str)]) {
        let allocation = |(node, job_id): &(&str, &str)| Allocation {
            node: (*node).to_owned(),
            job_id: (*job_id).to_owned(),
            processes: 1,
            gpus: Vec::new(),
        };
        let next = {
            let mut schedule = self.schedule.lock().expect("no holder panics");
            schedule.number += 1;
            schedule.allocations = allocations.iter().map(allocation).collect();
            schedule.clone()
        };
        assert_eq!(
            self.store.create_schedule(&next).await.expect("memory is always there"),
            Commit::Committed
        );
    }

    /// Returns the queues of tasks and of results of a job.
    fn queues(&self, job_id: &str) -> [Arc<MemoryQueue>; 2] {
        self.broker.pair(&queues_of(job_id, 1)).expect("it is enqueued")
    }

    fn start(&self, name: &str, change: impl FnOnce(&mut NodeOptions)) -> Running {
        let period = Duration::from_millis(50);
        let mut options = NodeOptions { log_period: period, ..NodeOptions::default() };
        change(&mut options);
        let test = std::env::current_exe().expect("this test has a path");
        let package =
            test.ancestors().nth(2).expect("it lies in deps/ of the build").join("python");
        assert!(
            package.join("gristmill/_native.abi3.so").exists(),
            "build the Python package first: scripts/build"
        );
        let node = Node {
            target: self.store.clone(),
            broker: self.broker.clone(),
            dead_letters: self.dead_letters.clone(),
            name: name.into(),
            gpus: crate::VisibleGpus::default(),
            python: std::env::var_os("GRISTMILL_PYTHON").unwrap_or_else(|| "python3".into()).into(),
            package,
            variables: Variables::without_secrets(std::env::vars_os().collect(), &[], &[]),
            work_folder: self.folder.path().join("work"),
            prefetch_bytes_max: 1 << 20,
            options,
            crash: |_| (),
        };
        let (stop, stopped) = watch::channel(Stop::No);
        Running { stop, ended: tokio::spawn(node.run(stopped)) }
    }

    /// Enqueues a job with a packed script, and one mini-batch for each name.
    async fn enqueue(
        &self,
        job_id: &str,
        script: &str,
        change: impl FnOnce(&mut JobSpec),
        names: &[&str],
    ) -> JobStore {
        let (scripts, archive) =
            (self.folder.path().join(job_id), self.folder.path().join("archive"));
        std::fs::create_dir_all(&scripts).expect("writable");
        std::fs::write(scripts.join("entry.py"), script).expect("writable");
        let snapshot = storage::pack(Source::Data(&scripts), &archive).expect("packs");
        self.store.put_snapshot(&snapshot.digest, &archive).await.expect("memory is always there");
        let mut spec = spec(job_id);
        spec.snapshots.source = Some(snapshot);
        spec.inputs = vec![Input {
            name: "items".into(),
            kind: InputKind::File,
            paths: vec![self.folder.path().into()],
            partition_format: None,
            table: TableOptions::default(),
        }];
        change(&mut spec);
        let store = self.store.job(job_id);
        store.put_spec(&spec).await.expect("memory is always there");
        self.broker.create(&queues_of(job_id, 1)).await.expect("memory is always there");
        let job = ScheduledJob {
            job_id: job_id.to_owned(),
            admitted_in: Some(1),
            ..ScheduledJob::default()
        };
        self.schedule.lock().expect("no holder panics").jobs.push(job);
        self.publish(job_id, names).await;
        store
    }

    async fn publish(&self, job_id: &str, names: &[&str]) {
        let message = |(number, name): (usize, &&str)| {
            let path = self.item(name);
            std::fs::write(&path, "").expect("writable");
            let paths = vec![path.as_path().into()];
            let work =
                Work::Files { input: 0, paths, versions: vec![], stamps: vec![], key: vec![] };
            let descriptor =
                Descriptor { job_id: job_id.into(), ..descriptor(number as u64, work) };
            Message::new(serde_json::to_vec(&descriptor).expect("serialises"))
        };
        let messages = names.iter().enumerate().map(message).collect();
        self.queues(job_id)[0].send(messages).await.expect("memory is always there");
    }

    fn item(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the next result events of a job with their rows, up to the one for which `is_last` returns true.
    async fn events_until(
        &self,
        job_id: &str,
        mut is_last: impl FnMut(&ResultEvent) -> bool,
    ) -> Vec<(ResultEvent, Bytes)> {
        let [_, results] = self.queues(job_id);
        let mut events = Vec::new();
        loop {
            let delivery = receive(&results).await;
            results.acknowledge(&[delivery.receipt]).await.expect("memory is always there");
            assert_eq!(job_of_message(&delivery.body).expect("it names its job"), job_id);
            let mut is_over = false;
            for record in decode_records(&delivery.body).skip(1) {
                let record = record.expect("readable");
                is_over |= is_last(&record.event);
                events.push((record.event, delivery.body.slice(record.rows)));
            }
            if is_over {
                return events;
            }
        }
    }

    /// Returns the next `count` attempts of a job, with their rows.
    async fn attempts(&self, job_id: &str, count: usize) -> Vec<(Attempt, Bytes)> {
        let mut seen = 0;
        let events = self.events_until(job_id, |event| {
            seen += usize::from(matches!(event, ResultEvent::Attempt(_)));
            seen == count
        });
        let attempts = events.await.into_iter().filter_map(|(event, rows)| match event {
            ResultEvent::Attempt(attempt) => Some((*attempt, rows)),
            _ => None,
        });
        attempts.collect()
    }

    /// Receives a mini-batch of `job` that was returned at no cost, and returns its number.
    async fn receive_unspent(&self) -> u64 {
        let delivery = receive(&self.queues("job")[0]).await;
        let descriptor: Descriptor = serde_json::from_slice(&delivery.body).expect("a descriptor");
        assert_eq!(
            (descriptor.tries_spent, descriptor.deliveries_lost, delivery.receive_count),
            (0, 0, 1)
        );
        descriptor.mini_batch
    }

    async fn began(&self, name: &str) {
        self.until(|| async { self.item(&format!("{name}.began")).exists() }).await;
    }

    /// Returns the depth of the task queue of `job`.
    async fn depth(&self) -> Depth {
        self.queues("job")[0].depth().await.expect("memory is always there")
    }

    async fn until<F: Future<Output = bool>>(&self, condition: impl Fn() -> F) {
        let met = async {
            while !condition().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, met).await.expect("the condition is met in time");
    }
}

/// Answers requests on connections: with a status and a body once `answer` has one for what has arrived. Returns the
/// address.
pub(crate) async fn serve(
    answer: impl Fn(&str) -> Option<(&'static str, &'static str)> + Clone + Send + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.expect("accepts");
            let answer = answer.clone();
            tokio::spawn(async move {
                let (mut buffer, mut request) = (vec![0; 4096], String::new());
                while let Ok(length @ 1..) = connection.read(&mut buffer).await {
                    request.push_str(&String::from_utf8_lossy(&buffer[..length]));
                    let Some((status, body)) = answer(&request) else { continue };
                    request.clear();
                    // The metadata of EC2 says how long a token is valid.
                    let head = "content-type: text/plain\r\nx-aws-ec2-metadata-token-ttl-seconds: 21600\r\n";
                    let length = body.len();
                    let answer = format!(
                        "HTTP/1.1 {status}\r\n{head}content-length: {length}\r\n\r\n{body}"
                    );
                    connection.write_all(answer.as_bytes()).await.expect("the client listens");
                }
            });
        }
    });
    address
}

/// Returns an address without a listener.
pub(crate) async fn unused_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    format!("http://{}", listener.local_addr().expect("bound"))
}

async fn receive(queue: &MemoryQueue) -> Delivery {
    let request = Receive { messages_max: 1, visibility: PATIENCE, wait: PATIENCE };
    let mut deliveries = queue.receive(request).await.expect("memory is always there");
    assert!(!deliveries.is_empty(), "nothing came");
    deliveries.remove(0)
}

pub(crate) fn spec(job_id: &str) -> JobSpec {
    JobSpec { job_id: job_id.into(), ..JobSpec::example() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_with_different_scripts_share_a_node_that_ends_when_idle() {
    let target = Target::new().await;
    let reference = target.item("reference.txt");
    std::fs::write(&reference, "seven").expect("writable");
    let archive = target.item("reference.archive");
    let packed = storage::pack(Source::Data(&reference), &archive).expect("packs");
    target.store.put_snapshot(&packed.digest, &archive).await.expect("memory is always there");
    std::fs::remove_file(&reference).expect("the node has only the copy");

    let upper = "
def run(mini_batch):
    print('upper at work')
    return ['UPPER']
";
    let one = target.enqueue("one", upper, |_| (), &["a", "b", "c"]).await;
    let refer = "
import sys
def run(mini_batch):
    with open(sys.argv[2]) as file:
        return [file.read()]
";
    let with_reference = |spec: &mut JobSpec| {
        spec.side_inputs.insert("reference".into(), reference.as_path().into());
        spec.snapshots.side_inputs.insert("reference".into(), packed);
        spec.argv = vec!["--reference".into(), reference.to_str().expect("text").into()];
    };
    target.enqueue("two", refer, with_reference, &["d", "e"]).await;
    target.give(&[("node-1", "one"), ("node-1", "two")]).await;
    let running =
        target.start("node-1", |options| options.idle_exit = Some(Duration::from_secs(1)));

    for (job_id, count, expected) in [("one", 3, &b"UPPER\n"[..]), ("two", 2, b"seven\n")] {
        let attempts = target.attempts(job_id, count).await;
        let mut numbers: Vec<u64> =
            attempts.iter().map(|(attempt, _)| attempt.mini_batch).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..count as u64).collect::<Vec<_>>());
        assert!(attempts.iter().all(|(_, rows)| rows[..] == *expected), "{attempts:?}");
    }
    assert!(!running.ended.is_finished(), "it still has both jobs");
    target.give(&[]).await;
    assert_eq!(running.end().await, Ended::Idle);
    for job_id in ["one", "two"] {
        assert_eq!(
            target.queues(job_id)[0].depth().await.expect("memory is always there"),
            Depth::default()
        );
    }
    let log = one.log("user/stdout/node-1/process000.stdout.txt").await.expect("uploaded");
    assert!(String::from_utf8_lossy(&log).contains("upper at work"), "{log:?}");
    assert!(!target.item("work/nodes/node-1").exists(), "working directories are removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drained_node_returns_waiting_mini_batches_and_finishes_running_ones() {
    let target = Target::new().await;
    target.enqueue("job", WAITS, |_| (), &["a", "b", "c"]).await;
    target.give(&[("node-1", "job")]).await;
    let running = target.start("node-1", |_| ());
    target.began("a").await;
    target.until(|| async { target.depth().await.in_flight >= 2 }).await;
    running.stop.send_replace(Stop::Drain);
    target
        .until(|| async { target.depth().await == Depth { visible: 2, in_flight: 1, delayed: 0 } })
        .await;
    assert!(!running.ended.is_finished(), "the one that runs may finish");
    std::fs::remove_file(target.item("a")).expect("it is there");
    assert_eq!(running.end().await, Ended::Stopped);
    let attempts = target.attempts("job", 1).await;
    assert_eq!((attempts[0].0.mini_batch, attempts[0].0.status.report_word()), (0, "RUN_DONE"));
    let mut left: Vec<u64> = Vec::new();
    for _ in 0..2 {
        left.push(target.receive_unspent().await);
    }
    left.sort();
    assert_eq!(left, [1, 2]);
    assert!(!target.item("b.began").exists() && !target.item("c.began").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mini_batch_that_outlasts_the_grace_period_is_returned_unspent() {
    let target = Target::new().await;
    target.enqueue("job", WAITS, |_| (), &["a"]).await;
    target.give(&[("node-1", "job")]).await;
    let running =
        target.start("node-1", |options| options.timing.grace = Duration::from_millis(300));
    target.began("a").await;
    assert_eq!(running.drain().await, Ended::Stopped);
    target.receive_unspent().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mini_batch_that_outlasts_a_spot_notice_is_returned_unspent_in_time() {
    let target = Target::new().await;
    target.enqueue("job", WAITS, |_| (), &["a"]).await;
    target.give(&[("node-1", "job")]).await;
    let is_given = Arc::new(AtomicBool::new(false));
    let address = spot::tests::metadata(is_given.clone(), Arc::default()).await;
    let mut notice =
        SpotNotice::new(Some(&address), Duration::from_millis(10)).expect("an address");
    notice.patience = Duration::from_millis(300);
    let running = target.start("node-1", |options| {
        // The grace period alone would allow much more.
        options.timing.grace = 10 * PATIENCE;
        options.spot_notice = Some(notice);
    });
    target.began("a").await;
    is_given.store(true, Ordering::SeqCst);
    assert_eq!(running.end().await, Ended::SpotNotice);
    target.receive_unspent().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canceled_job_stops_while_other_jobs_continue() {
    let target = Target::new().await;
    let canceled = target.enqueue("job", WAITS, |_| (), &["a", "b", "c"]).await;
    target.enqueue("other", "def run(mini_batch): return ['x']", |_| (), &["d"]).await;
    target.give(&[("node-1", "job")]).await;
    let running = target.start("node-1", |_| ());
    target.began("a").await;
    canceled.request_cancel("by the user").await.expect("memory is always there");
    target.give(&[("node-1", "other")]).await;
    target
        .events_until("job", |event| matches!(event, ResultEvent::NodeStopped { cause: None, .. }))
        .await;
    assert!(!running.ended.is_finished());
    target.attempts("other", 1).await;
    running.drain().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_message_becomes_a_dead_letter() {
    let target = Target::new().await;
    let newer = r#"{"job_id":"job","mini_batch":1,"work":{"kind":"telepathy"}}"#;
    target.enqueue("job", WAITS, |_| (), &[]).await;
    let messages = vec![Message::new("hello"), Message::new(newer), Message::new(vec![0xff, 0xfe])];
    target.queues("job")[0].send(messages).await.expect("memory is always there");
    target.give(&[("node-1", "job")]).await;
    let running = target.start("node-1", |_| ());
    let mut letters: Vec<DeadLetter> = Vec::new();
    for _ in 0..3 {
        letters.push(
            serde_json::from_slice(&receive(&target.dead_letters).await.body)
                .expect("a dead letter"),
        );
    }
    target.until(|| async { target.depth().await == Depth::default() }).await;
    letters.sort_by_key(DeadLetter::body);
    let bodies: Vec<_> = letters.iter().map(DeadLetter::body).collect();
    assert_eq!(bodies, [b"hello".to_vec(), newer.into(), vec![0xff, 0xfe]]);
    assert!(letters[1].reason.contains("telepathy"), "{}", letters[1].reason);
    let origin = |letter: &DeadLetter| {
        letter.node == "node-1" && (&*letter.job_id, &*letter.queue) == ("job", "tasks")
    };
    assert!(letters.iter().all(origin), "{letters:?}");
    running.drain().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_message_that_no_dead_letters_take_costs_other_mini_batches_nothing() {
    let target = Target::new().await;
    target.dead_letters.fail_next(1000);
    let script = "def init():\n    pass\ndef run(mini_batch):\n    return mini_batch\n";
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    target.enqueue("job", script, |_| (), &names).await;
    let paths = vec!["/not/an/input/of/the/job".into()];
    let work = Work::Files { input: 0, paths, versions: vec![], stamps: vec![], key: vec![] };
    let poison = Descriptor { job_id: "job".into(), ..descriptor(99, work) };
    let poison = Message::new(serde_json::to_vec(&poison).expect("serialises"));
    target.queues("job")[0].send(vec![poison]).await.expect("memory is always there");
    target.give(&[("node-1", "job")]).await;
    let running = target.start("node-1", |_| ());
    for (attempt, _) in target.attempts("job", 10).await {
        assert_eq!(
            (attempt.succeeded, attempt.deliveries_lost),
            (1, 0),
            "mini-batch {}",
            attempt.mini_batch
        );
    }
    running.drain().await;
    assert_eq!(target.depth().await.total(), 1, "the queue keeps the poison");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unprovisionable_job_names_its_cause_and_is_left_to_other_nodes() {
    let target = Target::new().await;
    let nowhere = |spec: &mut JobSpec| {
        spec.environment = Environment::Interpreter { path: "/no/such/python".into() };
    };
    target.enqueue("job", WAITS, nowhere, &["a"]).await;
    target.give(&[("node-1", "job")]).await;
    let running = target.start("node-1", |_| ());
    let events =
        target.events_until("job", |event| matches!(event, ResultEvent::NodeStopped { .. })).await;
    let [(ResultEvent::NodeStopped { node, cause: Some(cause) }, _)] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(node, "node-1");
    assert!(cause.contains("/no/such/python"), "{cause}");
    let is_unable = || async {
        let workers = target.store.seen_workers().await.expect("memory is always there");
        workers.iter().any(|worker| worker.state.unable.contains_key("job"))
    };
    target.until(is_unable).await;
    running.drain().await;
    assert_eq!(target.depth().await.total(), 1, "other nodes can receive it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_without_processes_is_left_and_served_again_later() {
    let target = Target::new().await;
    let script = "
import os
def run(mini_batch):
    return [os.getpid()]
";
    target.enqueue("job", script, |_| (), &["a"]).await;
    target.give(&[("node-1", "job")]).await;
    let running = target.start("node-1", |_| ());
    let first = target.attempts("job", 1).await[0].1.clone();
    target.give(&[]).await;
    target
        .events_until("job", |event| matches!(event, ResultEvent::NodeStopped { cause: None, .. }))
        .await;
    target.publish("job", &["b"]).await;
    target.give(&[("node-1", "job")]).await;
    assert_ne!(target.attempts("job", 1).await[0].1, first, "another process");
    running.drain().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ecs_task_is_protected_from_before_the_first_mini_batch_until_it_leaves_the_job() {
    let target = Target::new().await;
    let (agent, mut asked) = protection::tests::agent(None).await;
    target.enqueue("job", WAITS, |_| (), &["a"]).await;
    target.give(&[("node-1", "job")]).await;
    let running = target.start("node-1", |options| options.task_protection = Some(agent));
    target.began("a").await;
    assert!(asked.try_recv().expect("asked before it began").contains("true"));
    assert!(asked.try_recv().is_err(), "once is enough");
    std::fs::remove_file(target.item("a")).expect("it is there");
    target.attempts("job", 1).await;
    target.give(&[]).await;
    assert!(asked.recv().await.expect("ended").contains("false"));
    running.drain().await;
}
