//! Writes the plan and publishes it, in this order:
//!
//! ```text
//! plan/schemas.json      so that a worker with a descriptor finds the types
//! plan/<chunk>           so that published mini-batches can be published again
//! task queue             the descriptors of that chunk, while the next ones are being listed
//! …
//! plan/complete.json     from here on, nothing is listed again
//! result queue           Planned: tells the reducer when the job is complete
//! ```
//!
//! A queue may have room for a part of the mini-batches only. The plan does not wait for it: the rest is published from
//! the stored plan.
//!
//! If a partitioner stops between two of these steps, [`Partitioner::resume`] repeats them and compares existing
//! objects instead of writing them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use backon::Retryable;
use bytes::Bytes;
use protocol::{
    Descriptor, JobSpec, PLAN_CHUNK_MINI_BATCHES, PlanPosition, Planned, ResultEvent, TableSchema,
    Work, begin_message, encode_record,
};
use queue::pauses::UNTIL_IT_ANSWERS;
use queue::{MemoryOptions, MemoryQueue, Message, Queue};
use storage::{Commit, JobStore, PlanComplete};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use crate::chunk::{Chunk, DESCRIPTOR_BYTES_MAX};
use crate::error::{Error, Result};
use crate::inputs::Inputs;
use crate::pace::Pace;
use crate::plan::Plan;
use crate::{Pending, PlanProgress};

/// Chunks listed ahead of the one being written: enough to keep both sides busy.
const CHUNKS_AHEAD: usize = 1;

/// Time without an answer of the queue after which publishing fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// The pause before the first look for the next chunk of a plan that another process makes, and the longest one.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LOOKS_APART: Duration = Duration::from_secs(4);

/// Chunks of a stored plan that are read while others are published: about 2 MB.
const READS_AHEAD: usize = 16;

/// The partitioner of one job: plans it, and publishes its mini-batches.
#[derive(Debug)]
pub struct Partitioner {
    spec: JobSpec,
    store: JobStore,
    tasks: Arc<dyn Queue>,
    results: Arc<dyn Queue>,
    inputs: Inputs,
}

/// A message of the listing thread.
enum ListingStep {
    Schemas(Vec<Option<TableSchema>>),
    Chunk { chunk: Chunk, files: u64 },
}

/// Chunks of a stored plan that are being read, in order. A store answers many requests at a time as fast as one.
#[derive(Default)]
struct Reading(VecDeque<(u64, JoinHandle<storage::Result<Bytes>>)>);

impl Reading {
    /// Returns the lines of this chunk; `None` if it is not among the `needed` ones. Reads the next needed ones ahead.
    async fn next(
        &mut self,
        chunk: u64,
        needed: &mut impl Iterator<Item = u64>,
        store: &JobStore,
    ) -> Option<storage::Result<Bytes>> {
        while self.0.len() < READS_AHEAD
            && let Some(number) = needed.next()
        {
            let store = store.clone();
            self.0.push_back((number, tokio::spawn(async move { store.plan_chunk(number).await })));
        }
        let (_, read) = self.0.pop_front_if(|(number, _)| *number == chunk)?;
        Some(read.await.expect("reading does not panic"))
    }
}

/// Returns a chunk of a stored plan; an empty one if it is missing.
fn stored_chunk(number: u64, read: storage::Result<Bytes>) -> storage::Result<Chunk> {
    match read {
        Err(storage::Error::NotFound { .. }) => Ok(Chunk::stored(number, Bytes::new())),
        read => Ok(Chunk::stored(number, read?)),
    }
}

/// Returns whether a complete plan lacks mini-batches: a machine that stopped may have truncated or lost a chunk.
pub async fn plan_is_damaged(job: &JobStore) -> storage::Result<bool> {
    match job.plan_complete().await? {
        Some(complete) => Ok(!is_whole(job, &complete).await?),
        None => Ok(false),
    }
}

async fn is_whole(job: &JobStore, complete: &PlanComplete) -> storage::Result<bool> {
    let mut needed = 0..complete.chunks();
    let mut reading = Reading::default();
    for number in 0..complete.chunks() {
        let planned = PlanPosition::numbers_of(number, complete.mini_batches);
        if let Some(read) = reading.next(number, &mut needed, job).await
            && stored_chunk(number, read)?.len() != planned.end - planned.start
        {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.iter().for_each(|(_, read)| read.abort());
    }
}

impl Partitioner {
    /// Creates a partitioner. The workers of the job receive from `tasks`, its reducer from `results`.
    pub fn new(
        spec: JobSpec,
        store: JobStore,
        tasks: Arc<dyn Queue>,
        results: Arc<dyn Queue>,
    ) -> Self {
        let inputs = Inputs::new(store.stores().options());
        Self { spec, store, tasks, results, inputs }
    }

    /// Creates a partitioner that only [plans](Self::plan_only).
    pub fn planning(spec: JobSpec, store: JobStore) -> Self {
        let nowhere = || Arc::new(MemoryQueue::new(MemoryOptions::default()));
        Self::new(spec, store, nowhere(), nowhere())
    }

    /// Returns the partitioner with the listings that a check of the job has begun, which it continues.
    pub fn with_inputs(self, inputs: Inputs) -> Self {
        Self { inputs, ..self }
    }

    /// Plans a new job: writes the plan, publishes every mini-batch, and sends the totals to the reducer. Workers can
    /// start on the first chunk while the partitioner lists the rest.
    ///
    /// Calls `progress` after each published chunk. Fails with [`Error`] if the user must correct the job or its
    /// inputs. After a failure or a crash, [`resume`](Self::resume) continues.
    pub async fn plan_and_publish(
        &self,
        progress: impl Fn(PlanProgress),
    ) -> anyhow::Result<PlanComplete> {
        self.resume(|_| Some(Pending::default()), progress).await
    }

    /// Continues a job whose plan may be missing, partial or complete, and publishes the mini-batches for which
    /// `pending` returns what they have spent. `None` means that a mini-batch needs no message.
    ///
    /// A mini-batch that is still in the queue gets a second message, which does no harm. An unfinished plan is made
    /// again and must agree with its stored part; otherwise the call fails with [`Error::InputsChanged`]. Once the plan
    /// is complete, the inputs are not read again.
    pub async fn resume(
        &self,
        pending: impl Fn(u64) -> Option<Pending>,
        progress: impl Fn(PlanProgress),
    ) -> anyhow::Result<PlanComplete> {
        let stored = self.stored_plan().await.context("read the plan")?;
        let mut published_to = 0;
        if let Some(complete) = stored {
            self.announce(&complete).await?;
            match self.publish_stored(&complete, 0, &pending, &progress).await? {
                (_, true) => return Ok(complete),
                (end, false) => published_to = end,
            }
        }
        let pending =
            |mini_batch| if mini_batch < published_to { None } else { pending(mini_batch) };
        let (published, chunks) = (AtomicU64::new(0), watch::Sender::new(0));
        let planning = async {
            let report = |planned: PlanProgress| {
                progress(PlanProgress { published: published.load(Ordering::Relaxed), ..planned })
            };
            let complete = self.plan(&chunks, &report).await?;
            self.announce(&complete).await?;
            Ok(complete)
        };
        let (complete, ()) =
            tokio::try_join!(planning, self.publish_chunks(&chunks, &pending, &published))?;
        progress(PlanProgress {
            files: complete.files,
            mini_batches: complete.mini_batches,
            published: published.into_inner(),
        });
        Ok(complete)
    }

    /// Makes the plan if it is missing or damaged, and publishes nothing: another process [follows](Self::follow) it.
    pub async fn plan_only(&self) -> anyhow::Result<PlanComplete> {
        match self.stored_plan().await.context("read the plan")? {
            Some(complete)
                if is_whole(&self.store, &complete).await.context("read the plan")? =>
            {
                Ok(complete)
            }
            _ => self.plan(&watch::Sender::new(0), &|_| ()).await,
        }
    }

    /// Publishes a plan that another process makes, each chunk once it is written, until the plan is complete.
    /// Otherwise like [`resume`](Self::resume). If the job cannot be planned, tells the reducer and returns `None`.
    pub async fn follow(
        &self,
        pending: impl Fn(u64) -> Option<Pending>,
    ) -> anyhow::Result<Option<PlanComplete>> {
        let (mut number, mut pause) = (0, FIRST_LOOK);
        let mut pace = Pace::new(&self.spec, &*self.tasks);
        let complete = loop {
            if let Some(complete) = self.store.plan_complete().await.context("read the plan")? {
                break complete;
            }
            // A chunk that is not full is the last one, or a truncated one that the planner writes again.
            let full = match self.store.plan_chunk(number).await {
                Ok(lines) => Some(Chunk::stored(number, lines))
                    .filter(|chunk| chunk.len() == PLAN_CHUNK_MINI_BATCHES),
                Err(storage::Error::NotFound { .. }) => None,
                Err(error) => return Err(error).context("read the plan"),
            };
            match full {
                Some(chunk) => {
                    self.publish(&chunk, &pending, &mut pace).await?;
                    (number, pause) = (number + 1, FIRST_LOOK);
                }
                None => {
                    if let Some(cause) = self.store.plan_failure().await.context("read the plan")? {
                        self.send_to_reducer(&ResultEvent::PlanFailed { cause }).await?;
                        return Ok(None);
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(LOOKS_APART);
                }
            }
        };
        self.announce(&complete).await?;
        if !self.publish_stored(&complete, number, &pending, &|_| ()).await?.1 {
            anyhow::bail!("the plan is truncated; a retry of the job makes it again");
        }
        Ok(Some(complete))
    }

    /// Tells the reducer that the plan is complete.
    async fn announce(&self, complete: &PlanComplete) -> anyhow::Result<()> {
        let planned = Planned { mini_batches: complete.mini_batches, items: complete.items };
        self.send_to_reducer(&ResultEvent::Planned(planned)).await?;
        info!(
            job.id = self.spec.job_id,
            mini_batch.count = complete.mini_batches,
            file.count = complete.files,
            "planned"
        );
        Ok(())
    }

    async fn send_to_reducer(&self, event: &ResultEvent) -> anyhow::Result<()> {
        let mut body = begin_message(&self.spec.job_id);
        encode_record(event, b"", &mut body);
        let message = Message::new(body);
        send(&*self.results, vec![message]).await.context("tell the reducer about the plan")
    }

    /// Returns the totals of a complete plan. Returns `None` if a machine that stopped has left a part of it empty or
    /// truncated: then the plan is made again.
    async fn stored_plan(&self) -> storage::Result<Option<PlanComplete>> {
        let stored = async {
            let complete = self.store.plan_complete().await?;
            if complete.is_some() {
                self.store.schemas().await?;
            }
            Ok(complete)
        };
        match stored.await {
            Err(error @ (storage::Error::Damaged { .. } | storage::Error::NotFound { .. })) => {
                warn!(job.id = self.spec.job_id, error = %format!("{error:#}"), "the plan is incomplete and is made again");
                Ok(None)
            }
            other => other,
        }
    }

    /// Makes the plan, and sends the number of written chunks to `chunks`.
    async fn plan(
        &self,
        chunks: &watch::Sender<u64>,
        progress: &impl Fn(PlanProgress),
    ) -> anyhow::Result<PlanComplete> {
        let (sender, mut steps) = mpsc::channel(CHUNKS_AHEAD);
        let plan = self.inputs.plan(&self.spec);
        let listing = tokio::task::spawn_blocking(move || list(plan, &sender));
        while let Some(step) = steps.recv().await {
            match step {
                ListingStep::Schemas(schemas) => self.write_schemas(&schemas).await?,
                ListingStep::Chunk { chunk, files } => {
                    self.write_chunk(&chunk).await?;
                    chunks.send_replace(chunk.number + 1);
                    progress(PlanProgress {
                        files,
                        mini_batches: chunk.first() + chunk.len(),
                        published: 0,
                    });
                }
            }
        }
        let complete = listing.await.context("list the inputs")??;
        self.check_no_chunk_is_left(&complete).await?;
        self.store.put_plan_complete(&complete).await.context("complete the plan")?;
        chunks.send_replace(u64::MAX);
        Ok(complete)
    }

    /// Publishes each chunk of a plan that is being made once it is written. `chunks` holds the number of written
    /// chunks, or `u64::MAX` once the plan is complete.
    async fn publish_chunks(
        &self,
        chunks: &watch::Sender<u64>,
        pending: &impl Fn(u64) -> Option<Pending>,
        published: &AtomicU64,
    ) -> anyhow::Result<()> {
        let mut chunks = chunks.subscribe();
        let mut pace = Pace::new(&self.spec, &*self.tasks);
        for number in 0.. {
            let written = *chunks
                .wait_for(|written| *written > number)
                .await
                .expect("the caller holds the sender");
            match self.store.plan_chunk(number).await {
                Ok(lines) => {
                    let count =
                        self.publish(&Chunk::stored(number, lines), pending, &mut pace).await?;
                    published.fetch_add(count, Ordering::Relaxed);
                }
                Err(storage::Error::NotFound { .. }) if written == u64::MAX => break,
                Err(error) => return Err(error).context("read the plan"),
            }
        }
        Ok(())
    }

    /// Publishes the stored plan from chunk `from` on, up to a truncated chunk. Returns the number of mini-batches of
    /// the plan up to there, and whether these are all.
    async fn publish_stored(
        &self,
        complete: &PlanComplete,
        from: u64,
        pending: &impl Fn(u64) -> Option<Pending>,
        progress: &impl Fn(PlanProgress),
    ) -> anyhow::Result<(u64, bool)> {
        let mut published = 0;
        let mut pace = Pace::new(&self.spec, &*self.tasks);
        let span = |number| PlanPosition::numbers_of(number, complete.mini_batches);
        let mut needed = (from..complete.chunks())
            .filter(|&number| span(number).any(|mini_batch| pending(mini_batch).is_some()));
        let mut reading = Reading::default();
        for number in from..complete.chunks() {
            let (first, end) = (span(number).start, span(number).end);
            if let Some(read) = reading.next(number, &mut needed, &self.store).await {
                let chunk = stored_chunk(number, read).context("read the plan")?;
                if chunk.len() != end - first {
                    let (job, held, planned) = (&self.spec.job_id, chunk.len(), end - first);
                    warn!(
                        job.id = job,
                        plan.chunk = number,
                        "the plan is truncated: {held} mini-batches instead of {planned}"
                    );
                    return Ok((first, false));
                }
                published += self.publish(&chunk, pending, &mut pace).await?;
            }
            progress(PlanProgress { files: complete.files, mini_batches: end, published });
        }
        Ok((complete.mini_batches, true))
    }

    async fn write_schemas(&self, schemas: &[Option<TableSchema>]) -> anyhow::Result<()> {
        let stored = match self.store.schemas().await {
            Ok(stored) => stored,
            Err(storage::Error::NotFound { .. } | storage::Error::Damaged { .. }) => {
                return self.store.put_schemas(schemas).await.context("write the column types");
            }
            Err(error) => return Err(error).context("read the column types"),
        };
        let differs = self
            .spec
            .inputs
            .iter()
            .zip(stored.iter().zip(schemas))
            .find(|(_, (stored, now))| stored != now);
        match differs {
            None => Ok(()),
            Some((input, _)) => {
                let difference = "its columns or their types are different".to_owned();
                Err(Error::InputsChanged { input: input.name.clone(), difference }.into())
            }
        }
    }

    async fn write_chunk(&self, chunk: &Chunk) -> anyhow::Result<()> {
        let created = self
            .store
            .create_plan_chunk(chunk.number, chunk.lines.clone())
            .await
            .context("write the plan")?;
        match created {
            Commit::Committed => {
                debug!(
                    job.id = self.spec.job_id,
                    plan.chunk = chunk.number,
                    mini_batch.count = chunk.len(),
                    "plan chunk written"
                );
                Ok(())
            }
            Commit::Lost => {
                let stored = self.store.plan_chunk(chunk.number).await.context("read the plan")?;
                if chunk.lines.starts_with(&stored) {
                    // The machine stopped before the chunk was completely on disk.
                    return self
                        .store
                        .replace_plan_chunk(chunk.number, chunk.lines.clone())
                        .await
                        .context("repair the plan");
                }
                Err(self.difference(&Chunk::stored(chunk.number, stored), Some(chunk)).into())
            }
        }
    }

    async fn check_no_chunk_is_left(&self, complete: &PlanComplete) -> anyhow::Result<()> {
        let number = complete.chunks();
        match self.store.plan_chunk(number).await {
            Err(storage::Error::NotFound { .. }) => Ok(()),
            Ok(stored) => Err(self.difference(&Chunk::stored(number, stored), None).into()),
            Err(error) => Err(error).context("read the plan"),
        }
    }

    /// Returns the first difference between a stored chunk and the same chunk as it is planned now.
    fn difference(&self, stored: &Chunk, now: Option<&Chunk>) -> Error {
        let line = |chunk: Option<&Chunk>, index| chunk.and_then(|chunk| chunk.line(index));
        let index = (0..).find(|&index| {
            let (then, now) = (line(Some(stored), index), line(now, index));
            then != now || then.is_none()
        });
        let index = index.expect("an endless range ends only with a result");
        let descriptor =
            |line: Option<bytes::Bytes>| serde_json::from_slice::<Descriptor>(&line?).ok();
        let (then, now) = (descriptor(line(Some(stored), index)), descriptor(line(now, index)));
        let input =
            [&then, &now].into_iter().flatten().find_map(|descriptor| match descriptor.work {
                Work::Files { input, .. } | Work::Rows { input, .. } => {
                    self.spec.inputs.get(input as usize)
                }
                Work::Rank | Work::Planned { .. } => None,
            });
        let detail = |descriptor: Option<Descriptor>| match descriptor {
            Some(descriptor) => descriptor.detail(),
            None => "nothing".to_owned(),
        };
        let mini_batch = stored.first() + index as u64;
        let (then, now) = (detail(then), detail(now));
        let difference = match then == now {
            true => format!(
                "mini-batch {mini_batch} reads {now}, whose size or time of the last change is different"
            ),
            false => format!("mini-batch {mini_batch} was {then} and would now be {now}"),
        };
        Error::InputsChanged {
            input: input.map_or_else(String::new, |input| input.name.clone()),
            difference,
        }
    }

    async fn publish(
        &self,
        chunk: &Chunk,
        pending: &impl Fn(u64) -> Option<Pending>,
        pace: &mut Pace,
    ) -> anyhow::Result<u64> {
        let bytes_max = self.tasks.limits().message_bytes_max.min(DESCRIPTOR_BYTES_MAX);
        let mut messages = chunk
            .messages(&self.spec.job_id, bytes_max, pending)
            .with_context(|| format!("plan chunk {} is damaged", chunk.number))?;
        let count = messages.len() as u64;
        let bundle_max = pace.together(&self.store).await;
        messages.iter_mut().for_each(|message| message.bundle_max = bundle_max);
        if count > 0 {
            send(&*self.tasks, messages)
                .await
                .with_context(|| format!("publish plan chunk {}", chunk.number))?;
        }
        Ok(count)
    }
}

/// Runs the plan on a thread that may block, until it ends or the channel closes.
fn list(mut plan: Plan, steps: &mpsc::Sender<ListingStep>) -> Result<PlanComplete> {
    let schemas = plan.schemas()?;
    let mut wanted = steps.blocking_send(ListingStep::Schemas(schemas)).is_ok();
    let mut number = 0;
    while wanted && let Some(chunk) = Chunk::next(&mut plan, number)? {
        wanted = steps.blocking_send(ListingStep::Chunk { chunk, files: plan.files() }).is_ok();
        number += 1;
    }
    Ok(plan.totals())
}

/// Sends messages, and retries for a while if the queue does not answer.
async fn send(queue: &dyn Queue, messages: Vec<Message>) -> std::result::Result<(), queue::Error> {
    let send = || queue.send(messages.clone());
    let pauses = UNTIL_IT_ANSWERS.with_total_delay(Some(PATIENCE));
    send.retry(pauses).when(|error| matches!(error, queue::Error::Unavailable { .. })).await
}
