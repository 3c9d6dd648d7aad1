//! Write, announce, acknowledge: the one place where an outcome leaves the node, in the one order that loses nothing.
//!
//! 1. *Write*: rows too large for a message become a part in storage.
//! 2. *Announce*: the attempt goes to the result queue; a try that is followed by another is published again.
//! 3. *Acknowledge*: only now the task queue forgets the delivery.
//!
//! A crash between two steps repeats work, and the reducer counts the repeated announcement once. What accumulates
//! while one round is under way travels together in the next, so rounds grow with the load and no timer is needed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use backon::{ExponentialBuilder, Retryable};
use bytes::Bytes;
use protocol::{Attempt, Descriptor, ResultEvent, Rows, begin_message, encode_record};
use queue::{Message, Queue};
use storage::JobStore;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::lease::{LeaseId, Leases};
use crate::{Crash, CrashPoint};

/// Rows up to this size travel inside the result message.
const INLINE_ROWS_BYTES_MAX: usize = 64 * 1024;
/// A message is closed when it has reached this size. With one more attempt it stays below every queue's limit.
const MESSAGE_BYTES_FULL: usize = 128 * 1024;
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
    /// The node's leases.
    pub leases: Leases,
    /// Crash tests.
    pub crash: Crash,
}

impl Announcer {
    /// Starts the announcer. It ends, with everything announced, when all senders are gone.
    pub fn start(self) -> (Announcements, tokio::task::JoinHandle<Result<()>>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (sender, tokio::spawn(self.run(receiver)))
    }

    async fn run(self, mut receiver: mpsc::Receiver<Announcement>) -> Result<()> {
        let mut round = Vec::new();
        while receiver.recv_many(&mut round, ROUND_MAX).await > 0 {
            self.announce(round.drain(..)).await?;
        }
        Ok(())
    }

    async fn announce(&self, round: impl Iterator<Item = Announcement>) -> Result<()> {
        let mut messages = Messages::new(&self.job_id);
        let mut next_tries = Vec::new();
        let mut announced = Vec::new();
        let mut rooms = Vec::new();
        for announcement in round {
            match announcement {
                Announcement::Event(event) => messages.push(&event, b""),
                Announcement::Outcome(outcome) => {
                    // A lost lease: somebody else has the mini-batch now, and will announce it.
                    let Some(receipt) = self.leases.receipt(outcome.lease) else { continue };
                    let Outcome { lease, mut attempt, rows, next_try, room } = *outcome;
                    let rows = self.write(&mut attempt, rows).await?;
                    messages.push(&ResultEvent::Attempt(Box::new(attempt)), &rows);
                    rooms.push(room);
                    next_tries.extend(next_try.as_ref().map(|descriptor| task_message(&self.job_id, descriptor)));
                    announced.push((lease, receipt));
                }
            }
        }
        persist("announce to the result queue", || self.results.send(messages.clone_all())).await?;
        drop(rooms);
        (self.crash)(CrashPoint::AfterAnnounce);
        if !next_tries.is_empty() {
            persist("publish the next try", || self.tasks.send(next_tries.clone())).await?;
            (self.crash)(CrashPoint::AfterRepublish);
        }
        let (leases, receipts): (Vec<_>, Vec<_>) = announced.into_iter().unzip();
        if !receipts.is_empty() {
            // A receipt that is refused belongs to a lease lost meanwhile. Its outcome stands: it was announced
            // under the lease, and is counted once.
            persist("acknowledge", || self.tasks.acknowledge(&receipts)).await?;
            (self.crash)(CrashPoint::AfterTaskAcknowledge);
        }
        for lease in leases {
            self.leases.end(lease);
        }
        Ok(())
    }

    /// Decides where rows go, and returns those that stay inline.
    async fn write(&self, attempt: &mut Attempt, rows: Bytes) -> Result<Bytes> {
        if rows.is_empty() {
            attempt.rows = Rows::None;
            return Ok(rows);
        }
        if rows.len() <= INLINE_ROWS_BYTES_MAX {
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
pub async fn give_back(tasks: &dyn Queue, job_id: &str, held: Vec<(queue::Receipt, Descriptor)>) -> Result<()> {
    if held.is_empty() {
        return Ok(());
    }
    let messages: Vec<Message> = held.iter().map(|(_, descriptor)| task_message(job_id, descriptor)).collect();
    persist("give mini-batches back", || tasks.send(messages.clone())).await?;
    let receipts: Vec<_> = held.into_iter().map(|(receipt, _)| receipt).collect();
    persist("give mini-batches back", || tasks.acknowledge(&receipts)).await?;
    Ok(())
}

fn task_message(job_id: &str, descriptor: &Descriptor) -> Message {
    let body = serde_json::to_vec(descriptor).expect("descriptors always serialise");
    Message { body: body.into(), group: job_id.to_owned(), delay: Duration::ZERO }
}

/// A queue that is away for a while is waited for; one that stays away ends the node, with everything still leased.
async fn persist<T, F>(what: &'static str, call: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T, queue::Error>>,
{
    call.retry(backoff())
        .when(|error| matches!(error, queue::Error::Unavailable { .. }))
        .notify(|error, pause| tracing::warn!("cannot {what}, trying again in {pause:?}: {error}"))
        .await
        .context(what)
}

fn backoff() -> ExponentialBuilder {
    ExponentialBuilder::default().with_jitter().with_max_delay(Duration::from_secs(2)).with_max_times(6)
}

/// Result messages under construction.
struct Messages<'a> {
    job_id: &'a str,
    full: Vec<Bytes>,
    current: Vec<u8>,
}

impl<'a> Messages<'a> {
    fn new(job_id: &'a str) -> Self {
        Self { job_id, full: Vec::new(), current: Vec::new() }
    }

    fn push(&mut self, event: &ResultEvent, rows: &[u8]) {
        if self.current.is_empty() {
            self.current = begin_message(self.job_id);
        }
        encode_record(event, rows, &mut self.current);
        if self.current.len() >= MESSAGE_BYTES_FULL {
            self.full.push(std::mem::take(&mut self.current).into());
        }
    }

    fn clone_all(&mut self) -> Vec<Message> {
        if !self.current.is_empty() {
            self.full.push(std::mem::take(&mut self.current).into());
        }
        let message =
            |body: &Bytes| Message { body: body.clone(), group: self.job_id.to_owned(), delay: Duration::ZERO };
        self.full.iter().map(message).collect()
    }
}
