//! Write, announce, acknowledge: outcomes leave the node only here, in the order that loses nothing.
//!
//! 1. *Write*: rows and lists of rejected items that are too large for a message become parts in the store. For jobs with
//!    full durability, all parts of a batch are forced to disk together.
//! 2. *Announce*: the attempt goes to the result queue; the next try, if one follows, goes to the task queue.
//! 3. *Acknowledge*: only now the task queue deletes the delivery.
//!
//! To return a mini-batch is to publish it again unchanged and then acknowledge it, without an attempt. That costs
//! neither a try nor a lost delivery, although the queue counts deliveries.
//!
//! A crash between two steps repeats work, and the reducer counts the repeated announcement once. Outcomes that
//! accumulate during one batch travel together in the next, so batches grow with the load. Small batches pause before the
//! next one: otherwise a quick queue would get one outcome at a time, and take processor time from the processes.
//!
//! While the queue or the store is away, the announcer retries and the agent never waits for it, so
//! that timeouts and stops go on. While much waits to be announced, processes get no mini-batches.
//!
//! The agent never inspects rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use backon::Retryable;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use protocol::{
    Attempt, AttemptStatus, Descriptor, PlanPosition, ResultEvent, Rows, TableForm, Work,
};
use queue::pauses::while_others_wait;
use queue::{Delivery, Message, Queue};
use storage::JobStore;
use telemetry::trace::{Step, StepKind};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::Instrument;

use crate::checkpoints::{Checkpoints, STORE_TIME};
use crate::counts::Counts;
use crate::lease::Leases;
use crate::messages::{Messages, inline_rows_bytes_max};
use crate::prepare::Preparer;
use crate::retry::while_unavailable;
use crate::scheduler::{Announcement, Outcome, deliveries_lost};
use crate::{Crash, CrashPoint};

/// Shortest time from the start of a small batch to the next batch.
const BATCH_PERIOD: Duration = Duration::from_millis(10);
/// A batch of at least this many outcomes is not small.
const BATCH_ENOUGH: usize = 64;
const BATCH_MAX: usize = 4096;
/// While more announcements or bytes of rows than these wait, processes get no new work.
const WAITING_MAX: usize = 8192;
const ROWS_BYTES_MAX: usize = 32 << 20;

/// Parts of a batch that are written at once.
const PARTS_AT_ONCE: usize = 16;

/// Sends announcements to the announcer.
#[derive(Clone, Debug)]
pub struct Announcements {
    sender: mpsc::UnboundedSender<(Announcement, BacklogEntry)>,
    backlog: Arc<Backlog>,
}

/// The announcements that wait.
#[derive(Debug, Default)]
struct Backlog {
    announcements: AtomicUsize,
    rows_bytes: AtomicUsize,
}

/// One announcement of the backlog, until it is dropped.
#[derive(Debug)]
struct BacklogEntry {
    backlog: Arc<Backlog>,
    rows_bytes: usize,
}

impl Announcements {
    /// Sends an announcement. Never blocks: while the queue or the store is away, the agent must still enforce timeouts and
    /// stop.
    pub fn send(&self, announcement: Announcement) {
        let rows_bytes = match &announcement {
            Announcement::Outcome(outcome) => outcome.rows.len(),
            _ => 0,
        };
        self.backlog.announcements.fetch_add(1, Ordering::Relaxed);
        self.backlog.rows_bytes.fetch_add(rows_bytes, Ordering::Relaxed);
        let waiting = BacklogEntry { backlog: self.backlog.clone(), rows_bytes };
        // Fails only after an error of the announcer, which its task returns.
        let _ = self.sender.send((announcement, waiting));
    }

    /// Whether the queue is so far behind with announcements that processes should get no new work:
    /// more results would need more memory.
    pub fn are_behind(&self) -> bool {
        let Backlog { announcements, rows_bytes } = &*self.backlog;
        announcements.load(Ordering::Relaxed) >= WAITING_MAX
            || rows_bytes.load(Ordering::Relaxed) >= ROWS_BYTES_MAX
    }
}

impl Drop for BacklogEntry {
    fn drop(&mut self) {
        self.backlog.announcements.fetch_sub(1, Ordering::Relaxed);
        self.backlog.rows_bytes.fetch_sub(self.rows_bytes, Ordering::Relaxed);
    }
}

/// Announces the outcomes of one agent.
pub struct Announcer {
    /// The job.
    pub job_id: String,
    /// Its store, for parts.
    pub store: JobStore,
    /// Checkpoints, which a success makes superfluous.
    pub checkpoints: Checkpoints,
    /// The task queue, where it publishes the next tries and acknowledges.
    pub tasks: Arc<dyn Queue>,
    /// The result queue.
    pub results: Arc<dyn Queue>,
    /// The leases, without which nothing is announced.
    pub leases: Leases,
    /// How long calls of a queue that is unavailable, and writes to the store, are retried.
    pub patience: Duration,
    /// Rejected items that an outcome may name, at most [`REJECTED_MAX`](protocol::REJECTED_MAX). The store has longer lists.
    pub rejected_max: usize,
    /// Names the places of rejected rows.
    pub preparer: Option<Arc<Preparer>>,
    /// Crash tests.
    pub crash: Crash,
}

impl Announcer {
    /// Starts the announcer. It ends when all senders are dropped and everything is announced.
    pub fn start(self) -> (Announcements, tokio::task::JoinHandle<Result<()>>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let announcements = Announcements { sender, backlog: Arc::default() };
        (announcements, tokio::spawn(self.run(receiver).in_current_span()))
    }

    async fn run(
        self,
        mut receiver: mpsc::UnboundedReceiver<(Announcement, BacklogEntry)>,
    ) -> Result<()> {
        let mut batch = Vec::new();
        let (superfluous, removing) = self.checkpoints.start_removing();
        while receiver.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let next = Instant::now() + BATCH_PERIOD;
            let is_small = batch.len() < BATCH_ENOUGH;
            let has_parts = self.announce(&mut batch, &superfluous).await?;
            // After large rows there is no pause, because the next ones occupy memory.
            if is_small && !has_parts {
                sleep_until(next).await;
            }
        }
        drop(superfluous);
        let _ = timeout(STORE_TIME, removing).await;
        Ok(())
    }

    /// Announces one batch. Returns whether it had a part to write. `superfluous` takes the mini-batches whose checkpoints
    /// no attempt needs any more.
    async fn announce(
        &self,
        batch: &mut Vec<(Announcement, BacklogEntry)>,
        superfluous: &mpsc::UnboundedSender<u64>,
    ) -> Result<bool> {
        let mut writing = Vec::new();
        for (announcement, _) in &mut *batch {
            let Announcement::Outcome(outcome) = announcement else { continue };
            match self.fits_into_a_message(outcome) {
                true => outcome.attempt.rows = Rows::within_message(&outcome.rows),
                false => writing.push(self.write(outcome)),
            }
        }
        let written: Vec<bool> =
            stream::iter(writing).buffered(PARTS_AT_ONCE).try_collect().await?;
        let has_parts = written.contains(&true);
        if has_parts {
            self.store.commit_parts().await.context("write rows to disk")?;
        }
        let mut messages = Messages::new(&self.job_id, self.results.limits().message_bytes_max);
        let task_bytes_max = self.tasks.limits().message_bytes_max;
        let mut republished = Vec::new();
        let mut announced = Vec::new();
        let mut waiting = Vec::new();
        let mut superfluous_checkpoints = Vec::new();
        let mut counts = Counts::default();
        // Writing may take long, so the leases are looked at only now. If one is lost, another node has the mini-batch and will
        // announce its outcome.
        for (announcement, waits) in batch.drain(..) {
            waiting.push(waits);
            match announcement {
                Announcement::Event(event) => messages.push(&event, b""),
                Announcement::Outcome(outcome) => {
                    let Some(receipt) = self.leases.receipt(outcome.lease) else { continue };
                    let Outcome { lease, attempt, rows, next_try, has_checkpoints, .. } = *outcome;
                    counts.add(&attempt, rows.len() as u64);
                    let is_superfluous =
                        has_checkpoints && attempt.status == AttemptStatus::Succeeded;
                    superfluous_checkpoints.extend(is_superfluous.then_some(attempt.mini_batch));
                    messages.push(&ResultEvent::Attempt(Box::new(attempt)), &rows);
                    republished
                        .extend(next_try.map(|next_try| task_message(next_try, task_bytes_max)));
                    announced.push((lease, receipt));
                }
                Announcement::Drop { lease } => {
                    let Some(receipt) = self.leases.receipt(lease) else { continue };
                    announced.push((lease, receipt));
                }
                Announcement::Return { lease, descriptor } => {
                    let Some(receipt) = self.leases.receipt(lease) else { continue };
                    republished.push(task_message(*descriptor, task_bytes_max));
                    announced.push((lease, receipt));
                }
            }
        }
        let messages = messages.finish();
        if !messages.is_empty() {
            let send = || self.results.send(messages.clone());
            while_unavailable("announce to the result queue", Some(self.patience), send).await?;
            (self.crash)(CrashPoint::AfterAnnounce);
            counts.record();
        }
        // The attempts are announced, so another one would be a duplicate.
        for mini_batch in superfluous_checkpoints {
            let _ = superfluous.send(mini_batch);
        }
        drop(waiting);
        if !republished.is_empty() {
            let send = || self.tasks.send(republished.clone());
            while_unavailable("publish to the task queue", Some(self.patience), send).await?;
            (self.crash)(CrashPoint::AfterRepublish);
        }
        let (leases, receipts): (Vec<_>, Vec<_>) = announced.into_iter().unzip();
        if !receipts.is_empty() {
            // The queue rejects receipts of leases that were lost in the meantime. Their outcomes remain valid: they
            // were announced under the lease, and count once.
            let acknowledge = || self.tasks.acknowledge(&receipts);
            while_unavailable("acknowledge mini-batches", Some(self.patience), acknowledge).await?;
            (self.crash)(CrashPoint::AfterTaskAcknowledge);
        }
        for lease in leases {
            self.leases.end(lease);
        }
        Ok(has_parts)
    }

    /// Whether an outcome can be announced as it is. Most can, and need neither a name of a part nor a task.
    fn fits_into_a_message(&self, Outcome { attempt, rows, of_rows, .. }: &Outcome) -> bool {
        of_rows.is_none() && self.fit(rows) && !attempt.has_long_lists(self.rejected_max)
    }

    fn fit(&self, rows: &Bytes) -> bool {
        rows.len() <= inline_rows_bytes_max(self.results.limits().message_bytes_max)
    }

    /// Names the places of rejected rows, and writes large rows, and rejected items that one message cannot hold, as
    /// parts. Returns whether there is one.
    async fn write(&self, outcome: &mut Outcome) -> Result<bool> {
        if self.leases.receipt(outcome.lease).is_none() {
            return Ok(false);
        }
        let Outcome { attempt, rows, of_rows, .. } = outcome;
        if let (Some(of_rows), Some(preparer)) = (of_rows.take(), &self.preparer) {
            let (descriptor, takes) = *of_rows;
            name_places(attempt, &descriptor, takes, preparer).await;
        }
        // The name contains the attempt, so another attempt of the mini-batch writes another part.
        let name = format!(
            "{:010}-{}-{}-{}-{}",
            attempt.mini_batch,
            attempt.try_number,
            attempt.deliveries_lost,
            attempt.node,
            attempt.started_at
        );
        let mini_batch = attempt.mini_batch;
        if let Some((name, list)) =
            attempt.move_rejected(self.rejected_max, || format!("{name}-rejected"))
        {
            let what = || format!("write the rejected items of mini-batch {mini_batch}");
            self.write_part(&name, list.into()).await.with_context(what)?;
        }
        if self.fit(rows) {
            attempt.rows = Rows::within_message(rows);
            return Ok(attempt.rejected_part.is_some());
        }
        let bytes = rows.len() as u64;
        self.write_part(&name, std::mem::take(rows))
            .await
            .with_context(|| format!("write the rows of mini-batch {mini_batch}"))?;
        attempt.rows = Rows::Part { name, bytes };
        Ok(true)
    }

    async fn write_part(&self, name: &str, content: Bytes) -> storage::Result<()> {
        (self.crash)(CrashPoint::BeforePart);
        let put = || async { self.store.put_part(name, content.clone()).await };
        // A lost part would make its mini-batch run again.
        put.retry(while_others_wait(Some(self.patience))).await?;
        (self.crash)(CrashPoint::AfterPart);
        Ok(())
    }
}

/// Replaces the details of rejected rows with their places in files, as far as they are known.
async fn name_places(
    attempt: &mut Attempt,
    descriptor: &Descriptor,
    takes: TableForm,
    preparer: &Preparer,
) {
    let rows = attempt.rejected.iter().map(|rejected| rejected.item).collect();
    let places = preparer.row_places(descriptor, rows, takes).await;
    for (rejected, place) in attempt.rejected.iter_mut().zip(places) {
        if let Some(place) = place {
            rejected.detail = place;
        }
    }
    let is_rejected_whole =
        attempt.is_final && attempt.status != AttemptStatus::Succeeded && attempt.total > 0;
    if is_rejected_whole && matches!(descriptor.work, Work::Rows { .. }) {
        let place = preparer.row_places(descriptor, vec![0], takes).await.pop().flatten();
        if let Some(place) = place {
            attempt.detail = match attempt.total {
                1 => place,
                total => format!("{place} and {} more rows", total - 1),
            };
        }
    }
}

/// Returns mini-batches: publishes each again unchanged, and acknowledges the old message.
pub async fn return_mini_batches(
    tasks: &dyn Queue,
    held: Vec<(queue::Receipt, Descriptor)>,
    patience: Duration,
) -> Result<()> {
    if held.is_empty() {
        return Ok(());
    }
    let bytes_max = tasks.limits().message_bytes_max;
    let (receipts, descriptors): (Vec<_>, Vec<_>) = held.into_iter().unzip();
    let message = |descriptor| task_message(descriptor, bytes_max);
    let messages: Vec<Message> = descriptors.into_iter().map(message).collect();
    while_unavailable("return mini-batches", Some(patience), || tasks.send(messages.clone()))
        .await?;
    while_unavailable("return mini-batches", Some(patience), || tasks.acknowledge(&receipts))
        .await?;
    Ok(())
}

/// Returns the body of the message for a descriptor that returns to the queue. It is a new message, so it carries the count
/// of deliveries that the queue kept for the old one.
pub fn body_to_return(delivery: &Delivery) -> Bytes {
    match serde_json::from_slice::<Descriptor>(&delivery.body) {
        Ok(descriptor) if delivery.receive_count > 1 => {
            let deliveries_lost = deliveries_lost(&descriptor, delivery.receive_count);
            let descriptor = Descriptor { deliveries_lost, ..descriptor };
            serde_json::to_vec(&descriptor).expect("descriptors always serialise").into()
        }
        _ => delivery.body.clone(),
    }
}

/// Sends an event to a job's reducer from outside its agents.
pub async fn tell(
    results: &dyn Queue,
    job_id: &str,
    event: &ResultEvent,
    patience: Duration,
) -> Result<()> {
    let mut messages = Messages::new(job_id, results.limits().message_bytes_max);
    messages.push(event, b"");
    let messages = messages.finish();
    while_unavailable("announce to the result queue", Some(patience), || {
        results.send(messages.clone())
    })
    .await
}

/// Returns the attempt as a step of the trace of its mini-batch.
pub fn processed(job_id: &str, attempt: &Attempt) -> Step {
    let error = (attempt.status != AttemptStatus::Succeeded).then(|| attempt.status.word());
    Step {
        name: "process tasks",
        kind: StepKind::Consumer,
        parent: None,
        began: SystemTime::UNIX_EPOCH + Duration::from_millis(attempt.started_at),
        took: Duration::try_from_secs_f64(attempt.elapsed_seconds).unwrap_or_default(),
        fields: vec![
            ("job.id", job_id.into()),
            ("mini_batch.id", attempt.mini_batch.into()),
            ("attempt.number", u64::from(attempt.try_number).into()),
            ("node.id", attempt.node.as_str().into()),
            ("process.id", attempt.process.as_str().into()),
            ("outcome", attempt.status.word().into()),
        ],
        error,
    }
}

/// Returns the message for a descriptor. If it is too large for the queue, it points into the plan.
fn task_message(descriptor: Descriptor, bytes_max: usize) -> Message {
    let encode = |descriptor: &Descriptor| {
        serde_json::to_vec(descriptor).expect("descriptors always serialise")
    };
    let mut body = encode(&descriptor);
    if body.len() > bytes_max {
        let PlanPosition { chunk, line } = PlanPosition::of(descriptor.mini_batch);
        body = encode(&Descriptor { work: Work::Planned { chunk, line }, ..descriptor });
    }
    Message::new(body)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use object_store::ObjectStore;
    use object_store::memory::InMemory;
    use object_store::throttle::{ThrottleConfig, ThrottledStore};
    use protocol::{REJECTED_MAX, Rejected};
    use queue::{Delivery, Depth, MemoryOptions, MemoryQueue, Receive};

    use super::*;
    use crate::lease::LeaseId;
    use crate::scheduler::{conclude, tests};
    use crate::silent_store::SilentStore;

    const PATIENCE: Duration = Duration::from_secs(120);

    struct Node {
        tasks: Arc<MemoryQueue>,
        results: Arc<MemoryQueue>,
        leases: Leases,
        store: JobStore,
        announcements: Announcements,
    }

    fn node(message_bytes_max: usize) -> Node {
        node_over(message_bytes_max, Arc::new(InMemory::new()))
    }

    fn node_over(message_bytes_max: usize, store: Arc<dyn ObjectStore>) -> Node {
        let store = JobStore::new(store, "jobs/job".into());
        let checkpoints = Checkpoints::new(&store, Path::new("/nowhere"), None);
        node_with(message_bytes_max, store, checkpoints)
    }

    fn node_with(message_bytes_max: usize, store: JobStore, checkpoints: Checkpoints) -> Node {
        let tasks = Arc::new(MemoryQueue::new(MemoryOptions {
            message_bytes_max,
            ..MemoryOptions::default()
        }));
        let results = Arc::new(MemoryQueue::new(MemoryOptions::default()));
        let leases = Leases::new(Duration::from_secs(30), true);
        let announcer = Announcer {
            job_id: "job".into(),
            checkpoints,
            store: store.clone(),
            tasks: tasks.clone(),
            results: results.clone(),
            leases: leases.clone(),
            patience: PATIENCE,
            rejected_max: REJECTED_MAX,
            preparer: None,
            crash: |_| (),
        };
        Node { tasks, results, leases, store, announcements: announcer.start().0 }
    }

    fn descriptor(mini_batch: u64, path_bytes: usize) -> Descriptor {
        let paths = vec!["x".repeat(path_bytes).as_str().into()];
        let work = Work::Files { input: 0, paths, versions: vec![], stamps: vec![], key: vec![] };
        Descriptor { tries_spent: 1, deliveries_lost: 2, ..tests::descriptor(mini_batch, work) }
    }

    /// Returns the outcome of an attempt.
    fn outcome(lease: LeaseId, descriptor: Descriptor, ending: protocol::Ending) -> Outcome {
        let began = tests::moment();
        let attempted = tests::attempted(descriptor, began);
        let (attempt, next_try) = conclude(attempted, ["0", "process000"], ending, 3, began);
        let (rows, has_checkpoints, of_rows) = (Bytes::new(), false, None);
        Outcome { lease, process: None, attempt, rows, next_try, has_checkpoints, of_rows }
    }

    fn success(lease: LeaseId, mini_batch: u64, rows: Bytes) -> Announcement {
        let outcome = outcome(lease, descriptor(mini_batch, 10), protocol::Ending::empty());
        Announcement::Outcome(Outcome { rows, ..outcome }.into())
    }

    async fn receive(queue: &MemoryQueue) -> Delivery {
        let wait = Duration::from_secs(60);
        let request = Receive { messages_max: 1, visibility: Duration::from_secs(30), wait };
        loop {
            match queue.receive(request).await {
                Ok(mut deliveries) => return deliveries.remove(0),
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    }

    fn read(delivery: &Delivery) -> Descriptor {
        serde_json::from_slice(&delivery.body).expect("a descriptor")
    }

    impl Node {
        async fn hold(&self) -> LeaseId {
            self.tasks.send(vec![Message::new("first")]).await.expect("memory is always there");
            let delivery = receive(&self.tasks).await;
            self.leases.hold(delivery.receipt, tokio::time::Instant::now())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rejects_that_no_message_can_hold_are_stored_before_they_are_announced() {
        let node = node(10_000);
        let lease = node.hold().await;
        let mut outcome = outcome(lease, descriptor(7, 10), protocol::Ending::empty());
        let rejected = |item| Rejected {
            item,
            items: 1,
            detail: "x".repeat(100),
            values: String::new(),
            status: AttemptStatus::RunRaised,
            error: protocol::ErrorReport::default(),
            run: None,
        };
        let expected: Vec<_> = (0..5000).map(rejected).collect();
        (outcome.attempt.total, outcome.attempt.rejected) = (10_000, expected.clone());
        outcome.rows = Bytes::from_static(b"row\n");
        node.announcements.send(Announcement::Outcome(Box::new(outcome)));
        let body = receive(&node.results).await.body;
        assert!(body.len() < 128 * 1024, "{}", body.len());
        let records: Vec<_> =
            protocol::decode_records(&body).map(|record| record.expect("valid").event).collect();
        let Some(ResultEvent::Attempt(attempt)) = records.last() else {
            panic!("no attempt: {records:?}")
        };
        let part = attempt.rejected_part.as_deref().expect("it names the object");
        assert_eq!(
            (attempt.rows.clone(), part.items, attempt.rejected.len()),
            (Rows::Inline, 5000, REJECTED_MAX)
        );
        let content = node.store.part(&part.name).await.expect("stored");
        assert_eq!(content.len() as u64, part.bytes);
        let list: protocol::RejectedList = serde_json::from_slice(&content).expect("valid");
        assert_eq!(list.rejected, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn returned_mini_batch_is_a_new_message_without_cost() {
        let node = node(10_000);
        let lease = node.hold().await;
        let descriptor = Box::new(descriptor(7, 10));
        node.announcements.send(Announcement::Return { lease, descriptor: descriptor.clone() });
        let delivery = receive(&node.tasks).await;
        assert_eq!((read(&delivery), delivery.receive_count), (*descriptor, 1));
        while node.leases.count() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            node.tasks.depth().await.expect("answers"),
            Depth { visible: 0, in_flight: 1, delayed: 0 }
        );
        assert_eq!(
            node.results.depth().await.expect("answers"),
            Depth::default(),
            "no announcement"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn mini_batch_with_lost_lease_is_not_returned() {
        let node = node(10_000);
        let lease = node.hold().await;
        node.leases.end(lease);
        let descriptor = Box::new(descriptor(7, 10));
        node.announcements.send(Announcement::Return { lease, descriptor });
        let marker =
            Announcement::Event(ResultEvent::NodeStopped { node: "0".into(), cause: None });
        node.announcements.send(marker);
        receive(&node.results).await;
        assert_eq!(node.tasks.depth().await.expect("answers").visible, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn too_large_next_try_points_into_the_plan() {
        let node = node(1000);
        let lease = node.hold().await;
        let ending =
            protocol::Ending::failed(AttemptStatus::RunRaised, protocol::ErrorReport::default());
        let outcome = outcome(lease, descriptor(1030, 2000), ending);
        node.announcements.send(Announcement::Outcome(outcome.into()));
        let next = read(&receive(&node.tasks).await);
        assert_eq!((next.tries_spent, next.work), (2, Work::Planned { chunk: 2, line: 6 }));
    }

    #[tokio::test(start_paused = true)]
    async fn announcing_does_not_wait_for_a_queue_that_is_away() {
        let node = node(10_000);
        node.results.fail_next(5);
        let event =
            || Announcement::Event(ResultEvent::NodeStopped { node: "0".into(), cause: None });
        for _ in 0..WAITING_MAX {
            assert!(!node.announcements.are_behind());
            node.announcements.send(event());
        }
        assert!(node.announcements.are_behind());
        node.announcements.send(event());
        while node.announcements.are_behind() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut announced = 0;
        while announced <= WAITING_MAX {
            announced += protocol::decode_records(&receive(&node.results).await.body).count();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rows_wait_until_the_queue_has_them() {
        let node = node(10_000);
        node.results.fail_next(5);
        let lease = node.hold().await;
        let rows = Bytes::from(vec![b'x'; ROWS_BYTES_MAX]);
        node.announcements.send(success(lease, 7, rows));
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(node.announcements.are_behind(), "the queue is away");
        receive(&node.results).await;
        while node.leases.count() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!node.announcements.are_behind());
    }

    #[tokio::test(start_paused = true)]
    async fn acknowledging_does_not_wait_for_the_removal_of_checkpoints() {
        let (silent, folder) =
            (Arc::new(SilentStore::default()), tempfile::tempdir().expect("temporary folder"));
        let store = JobStore::new(silent.clone(), "jobs/job".into());
        let checkpoints = Checkpoints::new(&store, folder.path(), None);
        let kept = checkpoints.folder().join("7/a-1");
        std::fs::create_dir_all(kept.parent().expect("in a folder")).expect("writable");
        std::fs::write(&kept, "one").expect("writable");
        checkpoints.finish().await;
        assert_eq!(store.checkpoints_of(7).await.expect("readable").len(), 1);
        silent.is_silent.store(true, Ordering::SeqCst);
        let node = node_with(10_000, store, checkpoints);
        let lease = node.hold().await;
        let outcome = outcome(lease, descriptor(7, 10), protocol::Ending::empty());
        node.announcements
            .send(Announcement::Outcome(Box::new(Outcome { has_checkpoints: true, ..outcome })));
        receive(&node.results).await;
        let acknowledged = async {
            while node.tasks.depth().await.expect("answers").total() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(60), acknowledged)
            .await
            .expect("the mini-batch is acknowledged");
    }

    #[tokio::test(start_paused = true)]
    async fn rows_are_written_again_while_there_is_patience() {
        let failing = Arc::new(SilentStore::default());
        failing.fails.store(true, Ordering::SeqCst);
        let store = JobStore::new(failing.clone(), "jobs/job".into());
        let checkpoints = Checkpoints::new(&store, Path::new("/nowhere"), None);
        let node = node_with(10_000, store, checkpoints);
        let lease = node.hold().await;
        node.announcements.send(success(lease, 7, vec![b'x'; 1 << 20].into()));
        // The lease ends after thirty seconds.
        tokio::time::sleep(Duration::from_secs(25)).await;
        assert_eq!(node.results.depth().await.expect("answers").visible, 0);
        failing.fails.store(false, Ordering::SeqCst);
        let body = receive(&node.results).await.body;
        let event = protocol::decode_records(&body).last().expect("one").expect("valid").event;
        let ResultEvent::Attempt(attempt) = event else { panic!("no attempt: {event:?}") };
        assert!(matches!(attempt.rows, Rows::Part { bytes: 1_048_576, .. }), "{:?}", attempt.rows);
    }

    #[tokio::test(start_paused = true)]
    async fn unavailable_queue_is_retried_for_as_long_as_patience() {
        let node = node(10_000);
        let lease = node.hold().await;
        node.tasks.fail_next(3);
        return_mini_batches(&*node.tasks, vec![], PATIENCE).await.expect("nothing to do");
        let receipt = node.leases.receipt(lease).expect("held");
        let held = vec![(receipt.clone(), descriptor(7, 10))];
        return_mini_batches(&*node.tasks, held.clone(), PATIENCE).await.expect("answers in time");
        node.tasks.fail_next(1000);
        return_mini_batches(&*node.tasks, held, PATIENCE).await.expect_err("stays away");
    }

    /// A store in which each object takes this long to write.
    fn slow(put: Duration) -> Arc<dyn ObjectStore> {
        let config = ThrottleConfig { wait_put_per_call: put, ..ThrottleConfig::default() };
        Arc::new(ThrottledStore::new(InMemory::new(), config))
    }

    /// Receives and acknowledges messages until this many attempts have arrived, and returns their mini-batches.
    async fn announced(results: &MemoryQueue, attempts: usize) -> Vec<u64> {
        let mut mini_batches = Vec::new();
        while mini_batches.len() < attempts {
            let delivery = receive(results).await;
            mini_batches.extend(protocol::decode_records(&delivery.body).filter_map(|record| {
                match record.expect("valid").event {
                    ResultEvent::Attempt(attempt) => Some(attempt.mini_batch),
                    _ => None,
                }
            }));
            results.acknowledge(&[delivery.receipt]).await.expect("memory is always there");
        }
        mini_batches
    }

    #[tokio::test(start_paused = true)]
    async fn parts_of_a_batch_are_written_together() {
        let node = node_over(10_000, slow(Duration::from_millis(100)));
        let rows = Bytes::from(vec![b'x'; 100_000]);
        let began = tokio::time::Instant::now();
        for mini_batch in 0..64 {
            let lease = node.hold().await;
            node.announcements.send(success(lease, mini_batch, rows.clone()));
        }
        assert_eq!(announced(&node.results, 64).await, (0..64).collect::<Vec<_>>(), "in order");
        let took = began.elapsed();
        assert!(took < Duration::from_secs(2), "virtual time: {took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_announced_of_a_lease_that_is_lost_while_other_parts_are_written() {
        let node = node_over(10_000, slow(Duration::from_secs(10)));
        let (small, large) = (Bytes::from_static(b"row\n"), Bytes::from(vec![b'x'; 100_000]));
        let [first, second, third] = [node.hold().await, node.hold().await, node.hold().await];
        node.announcements.send(success(first, 0, small));
        let descriptor = Box::new(descriptor(1, 10));
        node.announcements.send(Announcement::Return { lease: second, descriptor });
        node.announcements.send(success(third, 2, large));
        // The large one is being written.
        tokio::time::sleep(Duration::from_secs(5)).await;
        node.leases.end(first);
        node.leases.end(second);
        assert_eq!(announced(&node.results, 1).await, [2]);
        while node.leases.count() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            node.tasks.depth().await.expect("answers"),
            Depth { visible: 0, in_flight: 2, delayed: 0 }
        );
    }
}
