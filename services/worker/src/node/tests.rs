//! Nodes with real Python processes, over queues and a store in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use protocol::{
    Attempt, DeadLetter, Descriptor, Environment, Input, InputKind, JobResult, JobSpec, JobState, ResultEvent,
    TableOptions, Work, decode_records, job_of_message,
};
use queue::{Delivery, Depth, MemoryOptions, MemoryQueue, Message, Queue, Receive};
use rustix::fs::{FileType, Mode};
use storage::{Commit, JobStore, Source, StoreOptions, TargetStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::scheduler::tests::descriptor;

/// Far longer than anything here takes.
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

/// A compute target.
struct Target {
    folder: TempDir,
    store: TargetStore,
    tasks: Arc<MemoryQueue>,
    results: Arc<MemoryQueue>,
    dead_letters: Arc<MemoryQueue>,
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
        Self::with_store("memory:///target").await
    }

    async fn with_store(url: &str) -> Self {
        let queue = || Arc::new(MemoryQueue::new(MemoryOptions::default()));
        let store = TargetStore::open(url, StoreOptions::default()).await.expect("it can be opened");
        let folder = tempfile::tempdir().expect("temporary folder");
        Self { folder, store, tasks: queue(), results: queue(), dead_letters: queue() }
    }

    fn start(&self, name: &str, change: impl FnOnce(&mut NodeOptions)) -> Running {
        let period = Duration::from_millis(50);
        let periods = Periods { watch: period, job_idle: Duration::from_secs(600), ..Periods::default() };
        let mut options = NodeOptions { periods, log_period: period, ..NodeOptions::default() };
        change(&mut options);
        let test = std::env::current_exe().expect("this test has a path");
        let package = test.ancestors().nth(2).expect("it lies in deps/ of the build").join("python");
        assert!(package.join("gristmill/_native.abi3.so").exists(), "build the Python package first: scripts/build");
        let node = Node {
            target: self.store.clone(),
            tasks: self.tasks.clone(),
            results: self.results.clone(),
            dead_letters: self.dead_letters.clone(),
            broker: None,
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
    async fn enqueue(&self, job_id: &str, script: &str, change: impl FnOnce(&mut JobSpec), names: &[&str]) -> JobStore {
        let (scripts, archive) = (self.folder.path().join(job_id), self.folder.path().join("archive"));
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
        self.publish(job_id, names).await;
        store
    }

    async fn publish(&self, job_id: &str, names: &[&str]) {
        let message = |(number, name): (usize, &&str)| {
            let path = self.item(name);
            std::fs::write(&path, "").expect("writable");
            let paths = vec![path.as_path().into()];
            let work = Work::Files { input: 0, paths, versions: vec![], stamps: vec![], key: vec![] };
            let descriptor = Descriptor { job_id: job_id.into(), ..descriptor(number as u64, work) };
            Message::new(serde_json::to_vec(&descriptor).expect("serialises"), job_id)
        };
        let messages = names.iter().enumerate().map(message).collect();
        self.tasks.send(messages).await.expect("memory is always there");
    }

    fn item(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the next result events, up to the one for which `is_last` returns true.
    async fn events_until(
        &self,
        mut is_last: impl FnMut(&str, &ResultEvent) -> bool,
    ) -> Vec<(String, ResultEvent, Bytes)> {
        let mut events = Vec::new();
        loop {
            let delivery = receive(&self.results).await;
            self.results.acknowledge(&[delivery.receipt]).await.expect("memory is always there");
            let job_id = job_of_message(&delivery.body).expect("it names its job");
            let mut is_over = false;
            for record in decode_records(&delivery.body).skip(1) {
                let record = record.expect("readable");
                is_over |= is_last(&job_id, &record.event);
                events.push((job_id.clone(), record.event, delivery.body.slice(record.rows)));
            }
            if is_over {
                return events;
            }
        }
    }

    /// Returns the next `count` attempts, with their jobs and rows.
    async fn attempts(&self, count: usize) -> Vec<(String, Attempt, Bytes)> {
        let mut seen = 0;
        let events = self.events_until(|_, event| {
            seen += usize::from(matches!(event, ResultEvent::Attempt(_)));
            seen == count
        });
        let attempts = events.await.into_iter().filter_map(|(job_id, event, rows)| match event {
            ResultEvent::Attempt(attempt) => Some((job_id, *attempt, rows)),
            _ => None,
        });
        attempts.collect()
    }

    /// Receives a mini-batch that was returned at no cost, and returns its number.
    async fn receive_unspent(&self) -> u64 {
        let delivery = receive(&self.tasks).await;
        let descriptor: Descriptor = serde_json::from_slice(&delivery.body).expect("a descriptor");
        assert_eq!((descriptor.tries_spent, descriptor.deliveries_lost, delivery.receive_count), (0, 0, 1));
        descriptor.mini_batch
    }

    async fn began(&self, name: &str) {
        self.until(|| async { self.item(&format!("{name}.began")).exists() }).await;
    }

    async fn depth(&self) -> Depth {
        self.tasks.depth().await.expect("memory is always there")
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
                    let answer = format!("HTTP/1.1 {status}\r\n{head}content-length: {length}\r\n\r\n{body}");
                    connection.write_all(answer.as_bytes()).await.expect("the client listens");
                }
            });
        }
    });
    address
}

/// Returns an address at which nobody listens.
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

fn result(job_id: &str) -> JobResult {
    JobResult::new(job_id.into(), JobState::Completed, "logs".into())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_with_different_scripts_share_a_node_that_ends_when_there_is_nothing_to_do() {
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
    let running = target.start("node-1", |options| options.periods.idle_exit = Some(Duration::from_secs(3)));

    let mut attempts: Vec<(String, u64, Bytes)> =
        target.attempts(5).await.into_iter().map(|(job, attempt, rows)| (job, attempt.mini_batch, rows)).collect();
    attempts.sort();
    let expected = [("one", 0), ("one", 1), ("one", 2), ("two", 0), ("two", 1)];
    assert_eq!(attempts.iter().map(|(job, number, _)| (&**job, *number)).collect::<Vec<_>>(), expected);
    assert!(attempts.iter().all(|(job, _, rows)| rows[..] == *if job == "one" { &b"UPPER\n"[..] } else { b"seven\n" }));
    assert_eq!(running.end().await, Ended::Idle);
    assert_eq!(target.depth().await, Depth::default());
    let log = one.log("user/stdout/node-1/process000.stdout.txt").await.expect("uploaded");
    assert!(String::from_utf8_lossy(&log).contains("upper at work"), "{log:?}");
    assert!(!target.item("work/nodes/node-1").exists(), "working directories are removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_store_does_not_end_a_node_that_has_just_started() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let target = Target::with_store(&format!("file://{}", folder.path().display())).await;
    let job = target.enqueue("one", WAITS, |_| (), &["a"]).await;
    // A reader of the result waits until somebody writes into this pipe.
    let answer = job.folder().expect("a folder").join("result.json");
    rustix::fs::mknodat(rustix::fs::CWD, &answer, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    let running = target.start("node-1", |options| options.periods.idle_exit = Some(Duration::from_millis(200)));
    target.until(|| async { target.depth().await.in_flight == 1 }).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!running.ended.is_finished(), "the first job is still looked up");
    drop(std::fs::File::options().write(true).open(&answer).expect("somebody reads"));
    std::fs::remove_file(&answer).expect("it is there");
    assert_eq!(running.end().await, Ended::Idle, "a job that cannot be looked up is no reason to stay");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drained_node_returns_waiting_mini_batches_and_finishes_running_ones() {
    let target = Target::new().await;
    target.enqueue("job", WAITS, |_| (), &["a", "b", "c"]).await;
    let running = target.start("node-1", |_| ());
    target.began("a").await;
    target.until(|| async { target.depth().await.in_flight >= 2 }).await;
    running.stop.send_replace(Stop::Drain);
    target.until(|| async { target.depth().await == Depth { visible: 2, in_flight: 1, delayed: 0 } }).await;
    assert!(!running.ended.is_finished(), "the one that runs may finish");
    std::fs::remove_file(target.item("a")).expect("it is there");
    assert_eq!(running.end().await, Ended::Stopped);
    let attempts = target.attempts(1).await;
    assert_eq!((attempts[0].1.mini_batch, attempts[0].1.status.report_word()), (0, "RUN_DONE"));
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
    let running = target.start("node-1", |options| options.timing.grace = Duration::from_millis(300));
    target.began("a").await;
    assert_eq!(running.drain().await, Ended::Stopped);
    target.receive_unspent().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mini_batch_that_outlasts_a_spot_notice_is_returned_unspent_in_time() {
    let target = Target::new().await;
    target.enqueue("job", WAITS, |_| (), &["a"]).await;
    let is_given = Arc::new(AtomicBool::new(false));
    let address = spot::tests::metadata(is_given.clone(), Arc::default()).await;
    let mut notice = SpotNotice::new(Some(&address), Duration::from_millis(10)).expect("an address");
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
async fn canceled_job_stops_and_its_messages_are_dropped_while_other_jobs_continue() {
    let target = Target::new().await;
    let canceled = target.enqueue("canceled", WAITS, |_| (), &["a", "b", "c"]).await;
    let running = target.start("node-1", |_| ());
    target.began("a").await;
    canceled.request_cancel("by the user").await.expect("memory is always there");
    target.until(|| async { target.depth().await == Depth::default() }).await;
    target.events_until(|_, event| matches!(event, ResultEvent::NodeStopped { cause: None, .. })).await;
    assert!(!running.ended.is_finished());
    target.enqueue("other", "def run(mini_batch): return ['x']", |_| (), &["d"]).await;
    assert_eq!(target.attempts(1).await[0].0, "other");
    running.drain().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_ended_and_unknown_jobs_are_dropped() {
    let target = Target::new().await;
    let store = target.enqueue("ended", WAITS, |_| (), &["a"]).await;
    assert_eq!(store.create_result(&result("ended")).await.expect("memory is always there"), Commit::Committed);
    target.publish("unknown", &["b"]).await;
    let running = target.start("node-1", |_| ());
    target.until(|| async { target.depth().await == Depth::default() }).await;
    running.drain().await;
    assert_eq!(target.results.depth().await.expect("answers"), Depth::default());
    assert!(!target.item("a.began").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_message_becomes_a_dead_letter() {
    let target = Target::new().await;
    let newer = r#"{"job_id":"job","mini_batch":1,"work":{"kind":"telepathy"}}"#;
    let messages = vec![Message::new("hello", "x"), Message::new(newer, "job"), Message::new(vec![0xff, 0xfe], "y")];
    target.tasks.send(messages).await.expect("memory is always there");
    let running = target.start("node-1", |_| ());
    let mut letters: Vec<DeadLetter> = Vec::new();
    for _ in 0..3 {
        letters.push(serde_json::from_slice(&receive(&target.dead_letters).await.body).expect("a dead letter"));
    }
    target.until(|| async { target.depth().await == Depth::default() }).await;
    letters.sort_by_key(DeadLetter::body);
    let bodies: Vec<_> = letters.iter().map(DeadLetter::body).collect();
    assert_eq!(bodies, [b"hello".to_vec(), newer.into(), vec![0xff, 0xfe]]);
    assert!(letters[0].reason.starts_with("no mini-batch"), "{}", letters[0].reason);
    assert!(letters[1].reason.contains("job job, written by a newer version?"), "{}", letters[1].reason);
    assert!(letters[1].reason.contains("telepathy"), "{}", letters[1].reason);
    assert!(letters.iter().all(|letter| letter.node == "node-1" && letter.queue == "tasks"));
    running.drain().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_message_that_no_dead_letters_take_costs_other_mini_batches_nothing() {
    let target = Target::new().await;
    target.dead_letters.fail_next(1000);
    let paths = vec!["/not/an/input/of/the/job".into()];
    let work = Work::Files { input: 0, paths, versions: vec![], stamps: vec![], key: vec![] };
    let poison = Descriptor { job_id: "job".into(), ..descriptor(99, work) };
    let poison = Message::new(serde_json::to_vec(&poison).expect("serialises"), "job");
    target.tasks.send(vec![poison]).await.expect("memory is always there");
    let script = "def init():\n    pass\ndef run(mini_batch):\n    return mini_batch\n";
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    target.enqueue("job", script, |_| (), &names).await;
    let running = target.start("node-1", |_| ());
    for (_, attempt, _) in target.attempts(10).await {
        assert_eq!((attempt.succeeded, attempt.deliveries_lost), (1, 0), "mini-batch {}", attempt.mini_batch);
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
    let running = target.start("node-1", |_| ());
    let events = target.events_until(|_, event| matches!(event, ResultEvent::NodeStopped { .. })).await;
    let [(job_id, ResultEvent::NodeStopped { node, cause: Some(cause) }, _)] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((&**job_id, &**node), ("job", "node-1"));
    assert!(cause.contains("/no/such/python"), "{cause}");
    target.until(|| async { target.depth().await.delayed == 1 }).await;
    running.drain().await;
    assert_eq!(target.depth().await.total(), 1, "other nodes can receive it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_count_limits_the_nodes_of_a_job() {
    let target = Target::new().await;
    let one_node = |spec: &mut JobSpec| spec.node_count = Some(1);
    target.enqueue("job", WAITS, one_node, &["a", "b", "c", "d"]).await;
    let first = target.start("node-1", |_| ());
    target.began("a").await;
    let second = target.start("node-2", |_| ());
    // The other node has seen the job once it has returned messages for later.
    target.until(|| async { target.depth().await.delayed > 0 }).await;
    for name in ["a", "b", "c", "d"] {
        std::fs::remove_file(target.item(name)).expect("it is there");
    }
    let attempts = target.attempts(4).await;
    assert!(attempts.iter().all(|(_, attempt, _)| attempt.node == "node-1"), "{attempts:?}");
    assert!(attempts.iter().all(|(_, attempt, _)| attempt.deliveries_lost == 0 && attempt.try_number == 1));

    first.drain().await;
    target.publish("job", &["e"]).await;
    target.began("e").await;
    std::fs::remove_file(target.item("e")).expect("it is there");
    assert_eq!(target.attempts(1).await[0].1.node, "node-2", "the seat was left");
    second.drain().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_job_is_left_and_served_again_later() {
    let target = Target::new().await;
    let script = "
import os
def run(mini_batch):
    return [os.getpid()]
";
    target.enqueue("job", script, |_| (), &["a"]).await;
    let running = target.start("node-1", |options| options.periods.job_idle = Duration::from_millis(100));
    let first = target.attempts(1).await[0].2.clone();
    target.events_until(|_, event| matches!(event, ResultEvent::NodeStopped { cause: None, .. })).await;
    target.publish("job", &["b"]).await;
    assert_ne!(target.attempts(1).await[0].2, first, "another process");
    running.drain().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ecs_task_is_protected_from_before_the_first_mini_batch_until_it_leaves_the_job() {
    let target = Target::new().await;
    let (agent, mut asked) = protection::tests::agent(None).await;
    let running = target.start("node-1", |options| {
        options.task_protection = Some(agent);
        options.periods.job_idle = Duration::from_millis(100);
    });
    target.enqueue("job", WAITS, |_| (), &["a"]).await;
    target.began("a").await;
    assert!(asked.try_recv().expect("asked before it began").contains("true"));
    assert!(asked.try_recv().is_err(), "once is enough");
    std::fs::remove_file(target.item("a")).expect("it is there");
    target.attempts(1).await;
    assert!(asked.recv().await.expect("ended").contains("false"));
    running.drain().await;
}
