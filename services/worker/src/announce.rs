//! Write, announce, acknowledge: the one place where an outcome leaves the node, in the one order that loses nothing.
//!
//! 1. *Write*: rows too large for a message become a part in storage. Where a job wants it, all parts of a round are
//!    forced to disk at once.
//! 2. *Announce*: the attempt goes to the result queue; a try that is followed by another is published again.
//! 3. *Acknowledge*: only now the task queue forgets the delivery.
//!
//! A mini-batch that is given back takes the same way, without an attempt: it is published again as it was, and then
//! acknowledged. So it costs neither a try nor a lost delivery, whatever the queue counts.
//!
//! A crash between two steps repeats work, and the reducer counts the repeated announcement once. What accumulates
//! while one round is under way travels together in the next, so rounds grow with the load. Small ones do not follow
//! each other at once, or a quick queue would get one outcome at a time and take the processor from the processes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use backon::{ExponentialBuilder, Retryable};
use bytes::Bytes;
use protocol::{Attempt, Descriptor, ResultEvent, Rows, Work};
use queue::{Message, Queue};
use storage::{JobStore, PLAN_CHUNK_MINI_BATCHES};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep_until};
use tracing::Instrument;

use crate::counts::Counts;
use crate::lease::{LeaseId, Leases};
use crate::messages::{Messages, inline_rows_bytes_max};
use crate::{Crash, CrashPoint};

/// From a small round to the next, at least.
const ROUND_PERIOD: Duration = Duration::from_millis(10);
/// Outcomes that make a round worth its calls, however soon after the last.
const ROUND_ENOUGH: usize = 64;
/// Outcomes in one round.
const ROUND_MAX: usize = 4096;
/// Outcomes that may wait for a round, before those who produce them wait too.
const WAITING_MAX: usize = 8192;

/// Rows of all processes that may wait to be written.
const ROWS_KILOBYTES_MAX: usize = 32 * 1024;

/// Something for the reducer.
#[derive(Debug)]
pub enum Announcement {
    /// A mini-batch was attempted.
    Outcome(Box<Outcome>),
    /// Anything else the reducer should know.
    Event(ResultEvent),
    /// A mini-batch that was not begun, or not ended, and is for others.
    GiveBack {
        /// The delivery. If its lease is lost by now, others have it already.
        lease: LeaseId,
        /// As it is to be published.
        descriptor: Box<Descriptor>,
    },
}

/// An attempt, and what must happen to its delivery.
#[derive(Debug)]
pub struct Outcome {
    /// The delivery. If its lease is lost by now, nothing is announced.
    pub lease: LeaseId,
    /// How the attempt ended. `rows` is decided here.
    pub attempt: Attempt,
    /// Rows of a success.
    pub rows: Bytes,
    /// The descriptor of the next try, if there is one.
    pub next_try: Option<Descriptor>,
    /// Memory for the rows, free again when they are written.
    pub room: OwnedSemaphorePermit,
}

/// Memory for rows that wait to be written: who produces faster than the disk takes it has to wait.
#[derive(Clone, Debug)]
pub struct RowsRoom {
    kilobytes: Arc<Semaphore>,
}

impl Default for RowsRoom {
    fn default() -> Self {
        Self { kilobytes: Arc::new(Semaphore::new(ROWS_KILOBYTES_MAX)) }
    }
}

impl RowsRoom {
    /// Waits for room for so many bytes. Rows larger than all of it get all of it.
    pub async fn reserve(&self, bytes: usize) -> OwnedSemaphorePermit {
        let kilobytes = u32::try_from(bytes.div_ceil(1024).min(ROWS_KILOBYTES_MAX)).expect("bounded");
        self.kilobytes.clone().acquire_many_owned(kilobytes).await.expect("never closed")
    }
}

/// Where announcements go.
pub type Announcements = mpsc::Sender<Announcement>;

/// Everything the announcer needs.
#[derive(Debug)]
pub struct Announcer {
    /// Job that all announcements belong to.
    pub job_id: String,
    /// Where parts go.
    pub store: JobStore,
    /// Task queue.
    pub tasks: Arc<dyn Queue>,
    /// Result queue.
    pub results: Arc<dyn Queue>,
    /// The agent's leases.
    pub leases: Leases,
    /// How long a queue that does not answer is waited for.
    pub patience: Duration,
    /// Crash tests.
    pub crash: Crash,
}

impl Announcer {
    /// Starts the announcer. It ends, with everything announced, when all senders are gone.
    pub fn start(self) -> (Announcements, tokio::task::JoinHandle<Result<()>>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (sender, tokio::spawn(self.run(receiver).in_current_span()))
    }

    async fn run(self, mut receiver: mpsc::Receiver<Announcement>) -> Result<()> {
        let mut round = Vec::new();
        while receiver.recv_many(&mut round, ROUND_MAX).await > 0 {
            let next = Instant::now() + ROUND_PERIOD;
            let is_small = round.len() < ROUND_ENOUGH;
            let has_parts = self.announce(round.drain(..)).await?;
            // Large rows wait in memory, so they do not wait for others.
            if is_small && !has_parts {
                sleep_until(next).await;
            }
        }
        Ok(())
    }

    /// Returns whether there was a part to write.
    async fn announce(&self, round: impl Iterator<Item = Announcement>) -> Result<bool> {
        let mut messages = Messages::new(&self.job_id, self.results.limits().message_bytes_max);
        let task_bytes_max = self.tasks.limits().message_bytes_max;
        let mut next_tries = Vec::new();
        let mut announced = Vec::new();
        let mut rooms = Vec::new();
        let mut has_parts = false;
        let mut counts = Counts::default();
        for announcement in round {
            match announcement {
                Announcement::Event(event) => messages.push(&event, b""),
                Announcement::Outcome(outcome) => {
                    // A lost lease: somebody else has the mini-batch now, and will announce it.
                    let Some(receipt) = self.leases.receipt(outcome.lease) else { continue };
                    let Outcome { lease, mut attempt, rows, next_try, room } = *outcome;
                    let rows = self.write(&mut attempt, rows).await?;
                    has_parts |= matches!(attempt.rows, Rows::Part { .. });
                    // Writing may take long.
                    if self.leases.receipt(lease).is_none() {
                        continue;
                    }
                    counts.add(&attempt, rows.len() as u64);
                    messages.push(&ResultEvent::Attempt(Box::new(attempt)), &rows);
                    rooms.push(room);
                    next_tries.extend(next_try.map(|next_try| task_message(&self.job_id, next_try, task_bytes_max)));
                    announced.push((lease, receipt));
                }
                Announcement::GiveBack { lease, descriptor } => {
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
            persist("announce to the result queue", self.patience, || self.results.send(messages.clone())).await?;
            (self.crash)(CrashPoint::AfterAnnounce);
            counts.tell();
        }
        drop(rooms);
        if !next_tries.is_empty() {
            persist("publish the next try", self.patience, || self.tasks.send(next_tries.clone())).await?;
            (self.crash)(CrashPoint::AfterRepublish);
        }
        let (leases, receipts): (Vec<_>, Vec<_>) = announced.into_iter().unzip();
        if !receipts.is_empty() {
            // A receipt that is refused belongs to a lease lost meanwhile. Its outcome stands: it was announced
            // under the lease, and is counted once.
            persist("acknowledge", self.patience, || self.tasks.acknowledge(&receipts)).await?;
            (self.crash)(CrashPoint::AfterTaskAcknowledge);
        }
        for lease in leases {
            self.leases.end(lease);
        }
        Ok(has_parts)
    }

    /// Decides where rows go, and returns those that stay inline.
    async fn write(&self, attempt: &mut Attempt, rows: Bytes) -> Result<Bytes> {
        if rows.is_empty() {
            attempt.rows = Rows::None;
            return Ok(rows);
        }
        if rows.len() <= inline_rows_bytes_max(self.results.limits().message_bytes_max) {
            attempt.rows = Rows::Inline;
            return Ok(rows);
        }
        // The name is that of the attempt: another attempt of the same mini-batch writes another part.
        let name = format!(
            "{:010}-{}-{}-{}-{}",
            attempt.mini_batch, attempt.try_number, attempt.deliveries_lost, attempt.node, attempt.started_at
        );
        (self.crash)(CrashPoint::BeforePart);
        let put = || async { self.store.put_part(&name, rows.clone()).await };
        put.retry(backoff()).await.with_context(|| format!("write the rows of mini-batch {}", attempt.mini_batch))?;
        (self.crash)(CrashPoint::AfterPart);
        attempt.rows = Rows::Part { name, bytes: rows.len() as u64 };
        Ok(Bytes::new())
    }
}

/// Descriptors given back unspent: each is published again as it was, and the old message acknowledged.
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
    persist("give mini-batches back", patience, || tasks.send(messages.clone())).await?;
    persist("give mini-batches back", patience, || tasks.acknowledge(&receipts)).await?;
    Ok(())
}

/// Tells a job's reducer of something that no agent of the job does.
pub async fn tell(results: &dyn Queue, job_id: &str, event: &ResultEvent, patience: Duration) -> Result<()> {
    let mut messages = Messages::new(job_id, results.limits().message_bytes_max);
    messages.push(event, b"");
    let messages = messages.finish();
    persist("announce to the result queue", patience, || results.send(messages.clone())).await
}

/// The message for a descriptor. One that is too large for the queue points into the plan: the place of a mini-batch
/// there follows from its number.
fn task_message(job_id: &str, descriptor: Descriptor, bytes_max: usize) -> Message {
    let encode = |descriptor: &Descriptor| serde_json::to_vec(descriptor).expect("descriptors always serialise");
    let mut body = encode(&descriptor);
    if body.len() > bytes_max {
        let chunk = descriptor.mini_batch / PLAN_CHUNK_MINI_BATCHES;
        let line = descriptor.mini_batch % PLAN_CHUNK_MINI_BATCHES;
        body = encode(&Descriptor { work: Work::Planned { chunk, line }, ..descriptor });
    }
    Message::new(body, job_id)
}

/// A queue that is away for a while is waited for; one that stays away ends the agent, with everything still leased.
async fn persist<T, F>(what: &'static str, patience: Duration, call: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T, queue::Error>>,
{
    call.retry(backoff().without_max_times().with_total_delay(Some(patience)))
        .when(|error| matches!(error, queue::Error::Unavailable { .. }))
        .notify(|error, pause| tracing::warn!("cannot {what}, trying again in {pause:?}: {error}"))
        .await
        .context(what)
}

fn backoff() -> ExponentialBuilder {
    ExponentialBuilder::default().with_jitter().with_max_delay(Duration::from_secs(2)).with_max_times(6)
}

#[cfg(test)]
mod tests {
    use queue::{Delivery, Depth, MemoryOptions, MemoryQueue, Receive};

    use super::*;
    use crate::slot::{Ending, InPipe, Prepared, Worker, conclude};

    const PATIENCE: Duration = Duration::from_secs(12);

    struct Node {
        tasks: Arc<MemoryQueue>,
        results: Arc<MemoryQueue>,
        leases: Leases,
        announcements: Announcements,
    }

    fn node(message_bytes_max: usize) -> Node {
        let tasks = Arc::new(MemoryQueue::new(MemoryOptions { message_bytes_max, ..MemoryOptions::default() }));
        let results = Arc::new(MemoryQueue::new(MemoryOptions::default()));
        let leases = Leases::new(Duration::from_secs(30), true);
        let store = JobStore::new(Arc::new(object_store::memory::InMemory::new()), "jobs/job".into());
        let announcer = Announcer {
            job_id: "job".into(),
            store,
            tasks: tasks.clone(),
            results: results.clone(),
            leases: leases.clone(),
            patience: PATIENCE,
            crash: |_| (),
        };
        Node { tasks, results, leases, announcements: announcer.start().0 }
    }

    fn descriptor(mini_batch: u64, path_bytes: usize) -> Descriptor {
        let paths = vec!["x".repeat(path_bytes).as_str().into()];
        let work = Work::Files { input: 0, paths, versions: vec![], key: vec![] };
        Descriptor { job_id: "job".into(), mini_batch, tries_spent: 1, deliveries_lost: 2, traceparent: None, work }
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
        /// Holds a delivery of some message.
        async fn hold(&self) -> LeaseId {
            self.tasks.send(vec![Message::new("first", "job")]).await.expect("memory is always there");
            let delivery = receive(&self.tasks).await;
            self.leases.hold(delivery.receipt, tokio::time::Instant::now())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_given_back_is_a_new_message_that_has_spent_nothing() {
        let node = node(10_000);
        let lease = node.hold().await;
        let descriptor = Box::new(descriptor(7, 10));
        let announcement = Announcement::GiveBack { lease, descriptor: descriptor.clone() };
        node.announcements.send(announcement).await.expect("the announcer works");
        let delivery = receive(&node.tasks).await;
        assert_eq!((read(&delivery), delivery.receive_count), (*descriptor, 1));
        while node.leases.count() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(node.tasks.depth().await.expect("answers"), Depth { visible: 0, in_flight: 1, delayed: 0 });
        assert_eq!(node.results.depth().await.expect("answers"), Depth::default(), "nobody is told");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_lost_is_neither_given_back_nor_announced() {
        let node = node(10_000);
        let lease = node.hold().await;
        node.leases.end(lease);
        let announcement = Announcement::GiveBack { lease, descriptor: Box::new(descriptor(7, 10)) };
        node.announcements.send(announcement).await.expect("the announcer works");
        let marker = Announcement::Event(ResultEvent::NodeStopped { node: "0".into(), cause: None });
        node.announcements.send(marker).await.expect("the announcer works");
        receive(&node.results).await;
        assert_eq!(node.tasks.depth().await.expect("answers").visible, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_next_try_that_is_too_large_points_into_the_plan() {
        let node = node(1000);
        let lease = node.hold().await;
        let prepared = Prepared::unreadable(lease, descriptor(1030, 2000), 2);
        let worker = Worker { node: "0", process: "" };
        let ending = Ending::failed(protocol::AttemptStatus::RunRaised, protocol::ErrorReport::default());
        let (attempt, next_try) = conclude(&mut InPipe::unrun(prepared), worker, ending, 3);
        let room = RowsRoom::default().reserve(0).await;
        let outcome = Outcome { lease, attempt, rows: Bytes::new(), next_try, room };
        node.announcements.send(Announcement::Outcome(Box::new(outcome))).await.expect("the announcer works");
        let next = read(&receive(&node.tasks).await);
        assert_eq!((next.tries_spent, next.work), (2, Work::Planned { chunk: 2, line: 6 }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_is_away_is_waited_for() {
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
