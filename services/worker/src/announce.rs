//! Write, announce, acknowledge: outcomes leave the node only here, in the order that loses nothing.
//!
//! 1. *Write*: rows and lists of rejected items that are too large for a message become parts in the store. For jobs with
//!    full durability, all parts of a round are forced to disk together.
//! 2. *Announce*: the attempt goes to the result queue; the next try, if one follows, goes to the task queue.
//! 3. *Acknowledge*: only now the task queue deletes the delivery.
//!
//! To return a mini-batch is to publish it again unchanged and then acknowledge it, without an attempt. That costs
//! neither a try nor a lost delivery, although the queue counts deliveries.
//!
//! A crash between two steps repeats work, and the reducer counts the repeated announcement once. Outcomes that
//! accumulate during one round travel together in the next, so rounds grow with the load. Small rounds pause before the
//! next one: otherwise a quick queue would get one outcome at a time, and take processor time from the processes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use backon::Retryable;
use bytes::Bytes;
use protocol::{Attempt, AttemptStatus, Descriptor, PlanPosition, ResultEvent, Rows, Takes, Work};
use queue::pauses::FOR_SECONDS;
use queue::{Message, Queue};
use storage::JobStore;
use telemetry::trace::{Step, StepKind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep_until};
use tracing::Instrument;

use crate::checkpoints::Checkpoints;
use crate::counts::Counts;
use crate::lease::Leases;
use crate::messages::{Messages, inline_rows_bytes_max};
use crate::prepare::Preparer;
use crate::retry::while_unavailable;
use crate::scheduler::{Announcement, Outcome};
use crate::{Crash, CrashPoint};

/// Shortest time from the start of a small round to the next round.
const ROUND_PERIOD: Duration = Duration::from_millis(10);
/// A round of at least this many outcomes is not small.
const ROUND_ENOUGH: usize = 64;
const ROUND_MAX: usize = 4096;
/// Most outcomes that wait for a round; further ones block the agent.
const WAITING_MAX: usize = 8192;

/// Rows of all processes that may wait to be written.
const ROWS_KILOBYTES_MAX: usize = 32 * 1024;

/// Memory of rows that wait to be written.
type Room = OwnedSemaphorePermit;

/// Sends announcements to the announcer. Clones share the memory for rows.
#[derive(Clone, Debug)]
pub struct Announcements {
    sender: mpsc::Sender<(Announcement, Room)>,
    kilobytes: Arc<Semaphore>,
}

impl Announcements {
    /// Sends an announcement. Blocks while too many others wait, or rows that the disk has not taken yet. Larger rows than
    /// the total room get all of it.
    pub async fn send(&self, announcement: Announcement) {
        let bytes = match &announcement {
            Announcement::Outcome(outcome) => outcome.rows.len(),
            _ => 0,
        };
        let kilobytes = u32::try_from(bytes.div_ceil(1024).min(ROWS_KILOBYTES_MAX)).expect("bounded");
        let room = self.kilobytes.clone().acquire_many_owned(kilobytes).await.expect("never closed");
        // Fails only after an error of the announcer, which its task returns.
        let _ = self.sender.send((announcement, room)).await;
    }
}

/// Announces the outcomes of one agent.
pub struct Announcer {
    /// The job.
    pub job_id: String,
    /// Its store, for parts.
    pub store: JobStore,
    /// Removed after a success.
    pub checkpoints: Checkpoints,
    /// Where it publishes the next tries, and acknowledges.
    pub tasks: Arc<dyn Queue>,
    /// Where it announces.
    pub results: Arc<dyn Queue>,
    /// Nothing is announced without its lease.
    pub leases: Leases,
    /// How long calls of a queue that is unavailable are retried.
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
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let announcements = Announcements { sender, kilobytes: Arc::new(Semaphore::new(ROWS_KILOBYTES_MAX)) };
        (announcements, tokio::spawn(self.run(receiver).in_current_span()))
    }

    async fn run(self, mut receiver: mpsc::Receiver<(Announcement, Room)>) -> Result<()> {
        let mut round = Vec::new();
        while receiver.recv_many(&mut round, ROUND_MAX).await > 0 {
            let next = Instant::now() + ROUND_PERIOD;
            let is_small = round.len() < ROUND_ENOUGH;
            let has_parts = self.announce(round.drain(..)).await?;
            // After large rows there is no pause, because the next ones occupy memory.
            if is_small && !has_parts {
                sleep_until(next).await;
            }
        }
        Ok(())
    }

    /// Announces one round. Returns whether it had a part to write.
    async fn announce(&self, round: impl Iterator<Item = (Announcement, Room)>) -> Result<bool> {
        let mut messages = Messages::new(&self.job_id, self.results.limits().message_bytes_max);
        let task_bytes_max = self.tasks.limits().message_bytes_max;
        let mut next_tries = Vec::new();
        let mut announced = Vec::new();
        let mut rooms = Vec::new();
        let mut has_parts = false;
        let mut superfluous = Vec::new();
        let mut counts = Counts::default();
        for (announcement, room) in round {
            match announcement {
                Announcement::Event(event) => messages.push(&event, b""),
                Announcement::Outcome(outcome) => {
                    // The lease is lost: another node has the mini-batch, and will announce its outcome.
                    let Some(receipt) = self.leases.receipt(outcome.lease) else { continue };
                    let Outcome { lease, mut attempt, rows, next_try, has_checkpoints, of_rows, .. } = *outcome;
                    if let (Some(of_rows), Some(preparer)) = (of_rows, &self.preparer) {
                        let (descriptor, takes) = *of_rows;
                        name_places(&mut attempt, &descriptor, takes, preparer).await;
                    }
                    let rows = self.write(&mut attempt, rows).await?;
                    if matches!(attempt.rows, Rows::Part { .. }) || attempt.rejected_part.is_some() {
                        has_parts = true;
                        // Writing may take long.
                        if self.leases.receipt(lease).is_none() {
                            continue;
                        }
                    }
                    counts.add(&attempt, rows.len() as u64);
                    let is_superfluous = has_checkpoints && attempt.status == AttemptStatus::Succeeded;
                    superfluous.extend(is_superfluous.then_some(attempt.mini_batch));
                    messages.push(&ResultEvent::Attempt(Box::new(attempt)), &rows);
                    rooms.push(room);
                    next_tries.extend(next_try.map(|next_try| task_message(&self.job_id, next_try, task_bytes_max)));
                    announced.push((lease, receipt));
                }
                Announcement::Drop { lease } => {
                    let Some(receipt) = self.leases.receipt(lease) else { continue };
                    announced.push((lease, receipt));
                }
                Announcement::Return { lease, descriptor } => {
                    let Some(receipt) = self.leases.receipt(lease) else { continue };
                    next_tries.push(task_message(&self.job_id, *descriptor, task_bytes_max));
                    announced.push((lease, receipt));
                }
            }
        }
        if has_parts {
            self.store.commit_parts().await.context("write rows to disk")?;
        }
        let messages = messages.finish();
        if !messages.is_empty() {
            let send = || self.results.send(messages.clone());
            while_unavailable("announce to the result queue", Some(self.patience), send).await?;
            (self.crash)(CrashPoint::AfterAnnounce);
            counts.record();
        }
        self.checkpoints.remove(&superfluous).await;
        drop(rooms);
        if !next_tries.is_empty() {
            let send = || self.tasks.send(next_tries.clone());
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

    /// Writes large rows, and rejected items that one message cannot hold, as parts. Returns small rows.
    async fn write(&self, attempt: &mut Attempt, rows: Bytes) -> Result<Bytes> {
        // The name contains the attempt, so another attempt of the mini-batch writes another part.
        let name = format!(
            "{:010}-{}-{}-{}-{}",
            attempt.mini_batch, attempt.try_number, attempt.deliveries_lost, attempt.node, attempt.started_at
        );
        let mini_batch = attempt.mini_batch;
        if let Some((name, list)) = attempt.move_rejected(self.rejected_max, || format!("{name}-rejected")) {
            let what = || format!("write the rejected items of mini-batch {mini_batch}");
            self.write_part(&name, list.into()).await.with_context(what)?;
        }
        if rows.is_empty() {
            attempt.rows = Rows::None;
            return Ok(rows);
        }
        if rows.len() <= inline_rows_bytes_max(self.results.limits().message_bytes_max) {
            attempt.rows = Rows::Inline;
            return Ok(rows);
        }
        let bytes = rows.len() as u64;
        self.write_part(&name, rows).await.with_context(|| format!("write the rows of mini-batch {mini_batch}"))?;
        attempt.rows = Rows::Part { name, bytes };
        Ok(Bytes::new())
    }

    async fn write_part(&self, name: &str, content: Bytes) -> storage::Result<()> {
        (self.crash)(CrashPoint::BeforePart);
        let put = || async { self.store.put_part(name, content.clone()).await };
        put.retry(FOR_SECONDS).await?;
        (self.crash)(CrashPoint::AfterPart);
        Ok(())
    }
}

/// Replaces the details of rejected rows with their places in files, as far as they are known.
async fn name_places(attempt: &mut Attempt, descriptor: &Descriptor, takes: Takes, preparer: &Preparer) {
    let rows = attempt.rejected.iter().map(|rejected| rejected.item).collect();
    let places = preparer.row_places(descriptor, rows, takes).await;
    for (rejected, place) in attempt.rejected.iter_mut().zip(places) {
        if let Some(place) = place {
            rejected.detail = place;
        }
    }
    let is_rejected_whole = attempt.is_final && attempt.status != AttemptStatus::Succeeded && attempt.total > 0;
    if is_rejected_whole && matches!(descriptor.work, Work::Rows { .. }) {
        let first = descriptor.replays.and_then(|replays| replays.rows).map_or(0, |(first, _)| first);
        let place = preparer.row_places(descriptor, vec![first], takes).await.pop().flatten();
        if let Some(place) = place {
            attempt.detail = match attempt.total {
                1 => place,
                total => format!("{place} and {} more rows", total - 1),
            };
        }
    }
}

/// Returns mini-batches: publishes each again unchanged, and acknowledges the old message.
pub async fn give_back(
    tasks: &dyn Queue,
    job_id: &str,
    held: Vec<(queue::Receipt, Descriptor)>,
    patience: Duration,
) -> Result<()> {
    if held.is_empty() {
        return Ok(());
    }
    let bytes_max = tasks.limits().message_bytes_max;
    let (receipts, descriptors): (Vec<_>, Vec<_>) = held.into_iter().unzip();
    let message = |descriptor| task_message(job_id, descriptor, bytes_max);
    let messages: Vec<Message> = descriptors.into_iter().map(message).collect();
    while_unavailable("return mini-batches", Some(patience), || tasks.send(messages.clone())).await?;
    while_unavailable("return mini-batches", Some(patience), || tasks.acknowledge(&receipts)).await?;
    Ok(())
}

/// Sends an event to a job's reducer from outside its agents.
pub async fn tell(results: &dyn Queue, job_id: &str, event: &ResultEvent, patience: Duration) -> Result<()> {
    let mut messages = Messages::new(job_id, results.limits().message_bytes_max);
    messages.push(event, b"");
    let messages = messages.finish();
    while_unavailable("announce to the result queue", Some(patience), || results.send(messages.clone())).await
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
fn task_message(job_id: &str, descriptor: Descriptor, bytes_max: usize) -> Message {
    let encode = |descriptor: &Descriptor| serde_json::to_vec(descriptor).expect("descriptors always serialise");
    let mut body = encode(&descriptor);
    if body.len() > bytes_max {
        let PlanPosition { chunk, line } = PlanPosition::of(descriptor.mini_batch);
        body = encode(&Descriptor { work: Work::Planned { chunk, line }, ..descriptor });
    }
    Message::new(body, job_id)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use protocol::{REJECTED_MAX, Rejected};
    use queue::{Delivery, Depth, MemoryOptions, MemoryQueue, Receive};

    use super::*;
    use crate::lease::LeaseId;
    use crate::prepare::Prepared;
    use crate::scheduler::{Attempted, Moment, conclude, tests};

    const PATIENCE: Duration = Duration::from_secs(12);

    struct Node {
        tasks: Arc<MemoryQueue>,
        results: Arc<MemoryQueue>,
        leases: Leases,
        store: JobStore,
        announcements: Announcements,
    }

    fn node(message_bytes_max: usize) -> Node {
        let tasks = Arc::new(MemoryQueue::new(MemoryOptions { message_bytes_max, ..MemoryOptions::default() }));
        let results = Arc::new(MemoryQueue::new(MemoryOptions::default()));
        let leases = Leases::new(Duration::from_secs(30), true);
        let store = JobStore::new(Arc::new(object_store::memory::InMemory::new()), "jobs/job".into());
        let announcer = Announcer {
            job_id: "job".into(),
            checkpoints: Checkpoints::new(&store, Path::new("/nowhere"), None),
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

    async fn receive(queue: &MemoryQueue) -> Delivery {
        let wait = Duration::from_secs(60);
        let request = Receive { messages_max: 1, visibility: Duration::from_secs(30), wait };
        queue.receive(request).await.expect("memory is always there").remove(0)
    }

    fn read(delivery: &Delivery) -> Descriptor {
        serde_json::from_slice(&delivery.body).expect("a descriptor")
    }

    impl Node {
        async fn hold(&self) -> LeaseId {
            self.tasks.send(vec![Message::new("first", "job")]).await.expect("memory is always there");
            let delivery = receive(&self.tasks).await;
            self.leases.hold(delivery.receipt, tokio::time::Instant::now())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rejects_that_no_message_can_hold_are_stored_before_they_are_announced() {
        let node = node(10_000);
        let lease = node.hold().await;
        let descriptor = descriptor(7, 10);
        let began = Moment { instant: std::time::Instant::now(), milliseconds: 5 };
        let attempted = Attempted {
            prepared: Prepared::without_reading(&descriptor).expect("local files"),
            descriptor,
            deliveries_lost: 2,
            received: began.instant,
            preparation: Duration::ZERO,
            began,
            waited: Default::default(),
        };
        let (mut attempt, _) = conclude(attempted, ["0", "process000"], protocol::Ending::empty(), 3, began);
        let rejected = |item| Rejected {
            item,
            items: 1,
            detail: "x".repeat(100),
            values: String::new(),
            status: AttemptStatus::RunRaised,
            error: protocol::ErrorReport::default(),
            run: None,
        };
        (attempt.total, attempt.rejected) = (10_000, (0..5000).map(rejected).collect());
        let expected = attempt.rejected.clone();
        let outcome = Outcome {
            lease,
            process: None,
            attempt,
            rows: Bytes::from_static(b"row\n"),
            next_try: None,
            has_checkpoints: false,
            of_rows: None,
        };
        node.announcements.send(Announcement::Outcome(Box::new(outcome))).await;
        let body = receive(&node.results).await.body;
        assert!(body.len() < 128 * 1024, "{}", body.len());
        let records: Vec<_> = protocol::decode_records(&body).map(|record| record.expect("valid").event).collect();
        let Some(ResultEvent::Attempt(attempt)) = records.last() else { panic!("no attempt: {records:?}") };
        let part = attempt.rejected_part.as_deref().expect("it names the object");
        assert_eq!((attempt.rows.clone(), part.items, attempt.rejected.len()), (Rows::Inline, 5000, REJECTED_MAX));
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
        node.announcements.send(Announcement::Return { lease, descriptor: descriptor.clone() }).await;
        let delivery = receive(&node.tasks).await;
        assert_eq!((read(&delivery), delivery.receive_count), (*descriptor, 1));
        while node.leases.count() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(node.tasks.depth().await.expect("answers"), Depth { visible: 0, in_flight: 1, delayed: 0 });
        assert_eq!(node.results.depth().await.expect("answers"), Depth::default(), "no announcement");
    }

    #[tokio::test(start_paused = true)]
    async fn mini_batch_with_lost_lease_is_not_returned() {
        let node = node(10_000);
        let lease = node.hold().await;
        node.leases.end(lease);
        let descriptor = Box::new(descriptor(7, 10));
        node.announcements.send(Announcement::Return { lease, descriptor }).await;
        let marker = Announcement::Event(ResultEvent::NodeStopped { node: "0".into(), cause: None });
        node.announcements.send(marker).await;
        receive(&node.results).await;
        assert_eq!(node.tasks.depth().await.expect("answers").visible, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn too_large_next_try_points_into_the_plan() {
        let node = node(1000);
        let lease = node.hold().await;
        let descriptor = descriptor(1030, 2000);
        let prepared = Prepared::unreadable(&descriptor);
        let began = Moment { instant: std::time::Instant::now(), milliseconds: 0 };
        let (received, preparation) = (began.instant, Duration::ZERO);
        let attempted = Attempted {
            descriptor,
            deliveries_lost: 2,
            prepared,
            received,
            preparation,
            began,
            waited: Default::default(),
        };
        let ending = protocol::Ending::failed(AttemptStatus::RunRaised, protocol::ErrorReport::default());
        let (attempt, next_try) = conclude(attempted, ["0", ""], ending, 3, began);
        let (rows, has_checkpoints, of_rows) = (Bytes::new(), false, None);
        let outcome = Outcome { lease, process: None, attempt, rows, next_try, has_checkpoints, of_rows };
        node.announcements.send(Announcement::Outcome(outcome.into())).await;
        let next = read(&receive(&node.tasks).await);
        assert_eq!((next.tries_spent, next.work), (2, Work::Planned { chunk: 2, line: 6 }));
    }

    #[tokio::test(start_paused = true)]
    async fn unavailable_queue_is_retried_for_as_long_as_patience() {
        let node = node(10_000);
        let lease = node.hold().await;
        node.tasks.fail_next(3);
        give_back(&*node.tasks, "job", vec![], PATIENCE).await.expect("nothing to do");
        let receipt = node.leases.receipt(lease).expect("held");
        let held = vec![(receipt.clone(), descriptor(7, 10))];
        give_back(&*node.tasks, "job", held.clone(), PATIENCE).await.expect("answers in time");
        node.tasks.fail_next(1000);
        give_back(&*node.tasks, "job", held, PATIENCE).await.expect_err("stays away");
    }
}
