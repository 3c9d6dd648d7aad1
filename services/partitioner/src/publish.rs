//! Writes the plan and publishes from it. The order of the writes is the point of this file:
//!
//! ```text
//! plan/schemas.json      a worker that gets a descriptor finds the types it needs
//! plan/<chunk>           what is published can be published again
//! task queue             the descriptors of that chunk, while the next one is being listed
//! …
//! plan/complete.json     from here on, nothing is listed again
//! result queue           Planned: the reducer knows when it is done
//! ```
//!
//! A partitioner that stops anywhere between two of these lines is continued by [`Partitioner::resume`], which does
//! the same again: what is there already is compared, not written.

use std::sync::Arc;

use anyhow::Context;
use backon::{ExponentialBuilder, Retryable};
use bytes::Bytes;
use protocol::{Descriptor, JobSpec, Planned, ResultEvent, TableSchema, Work, begin_message, encode_record};
use queue::{Message, Queue};
use storage::{Commit, JobStore, PLAN_CHUNK_MINI_BATCHES, PlanComplete};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use crate::chunk::Chunk;
use crate::error::{Error, Result};
use crate::plan::{Plan, plan_with};
use crate::{Pending, PlanProgress};

/// Chunks that are listed ahead of the one being written: enough to keep both sides busy.
const CHUNKS_AHEAD: usize = 1;

/// Pauses between calls to a queue that does not answer: 100 ms, 200 ms, … about two minutes in all.
const SEND_TRIES_MAX: usize = 11;

/// Plans one job and publishes its mini-batches.
#[derive(Debug)]
pub struct Partitioner {
    spec: JobSpec,
    store: JobStore,
    tasks: Arc<dyn Queue>,
    results: Arc<dyn Queue>,
}

/// What the listing thread gives.
enum Step {
    Schemas(Vec<Option<TableSchema>>),
    Chunk { chunk: Chunk, files: u64 },
}

impl Partitioner {
    /// `tasks` and `results` are the queues that the job's workers and its reducer receive from.
    pub fn new(spec: JobSpec, store: JobStore, tasks: Arc<dyn Queue>, results: Arc<dyn Queue>) -> Self {
        Self { spec, store, tasks, results }
    }

    /// Plans a new job: writes the plan, publishes every mini-batch, and tells the reducer the totals. Workers can
    /// start on the first chunk while the rest is still being listed.
    ///
    /// `progress` is called after each published chunk. Fails with [`Error`] where the user must correct the job or
    /// its inputs. After a failure or a crash, [`resume`](Self::resume) goes on.
    pub async fn plan_and_publish(&self, progress: impl Fn(PlanProgress)) -> anyhow::Result<PlanComplete> {
        self.resume(|_| Some(Pending::default()), progress).await
    }

    /// Continues a job whose plan may be missing, partial or whole, and publishes the mini-batches for which `pending`
    /// gives what they have spent. `None`: it needs no message.
    ///
    /// A mini-batch that is still in the queue from before gets a second message, which does no harm. An unfinished
    /// plan is made again and must agree with what there is, else [`Error::InputsChanged`]. Once the plan is whole the
    /// inputs are not looked at again.
    pub async fn resume(
        &self,
        pending: impl Fn(u64) -> Option<Pending>,
        progress: impl Fn(PlanProgress),
    ) -> anyhow::Result<PlanComplete> {
        let stored = self.stored_plan().await.context("read the plan")?;
        let (published_to, whole) = match &stored {
            Some(complete) => self.publish_stored(complete, &pending, &progress).await?,
            None => (0, false),
        };
        let complete = match stored {
            Some(complete) if whole => complete,
            _ => {
                let pending = |mini_batch| if mini_batch < published_to { None } else { pending(mini_batch) };
                self.plan(&pending, &progress).await?
            }
        };
        let planned = Planned { mini_batches: complete.mini_batches, items: complete.items };
        let mut body = begin_message(&self.spec.job_id);
        encode_record(&ResultEvent::Planned(planned), b"", &mut body);
        let message = Message::new(body, &self.spec.job_id);
        send(&*self.results, vec![message]).await.context("announce that the plan is complete")?;
        info!(
            job.id = self.spec.job_id,
            mini_batch.count = complete.mini_batches,
            file.count = complete.files,
            "planned"
        );
        Ok(complete)
    }

    /// The totals of a plan that is whole. A machine that stopped may have left some of it empty or cut short: then it
    /// is made again.
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
                warn!(job.id = self.spec.job_id, %error, "the plan is not whole and is made again");
                Ok(None)
            }
            other => other,
        }
    }

    async fn plan(
        &self,
        pending: &impl Fn(u64) -> Option<Pending>,
        progress: &impl Fn(PlanProgress),
    ) -> anyhow::Result<PlanComplete> {
        let (sender, mut steps) = mpsc::channel(CHUNKS_AHEAD);
        let plan = plan_with(&self.spec, self.store.stores().options());
        let listing = tokio::task::spawn_blocking(move || list(plan, &sender));
        let mut published = 0;
        while let Some(step) = steps.recv().await {
            match step {
                Step::Schemas(schemas) => self.write_schemas(&schemas).await?,
                Step::Chunk { chunk, files } => {
                    self.write_chunk(&chunk).await?;
                    published += self.publish(&chunk, pending).await?;
                    progress(PlanProgress { files, mini_batches: chunk.first() + chunk.len(), published });
                }
            }
        }
        let complete = listing.await.context("list the inputs")??;
        self.check_no_chunk_is_left(&complete).await?;
        self.store.put_plan_complete(&complete).await.context("complete the plan")?;
        Ok(complete)
    }

    /// Publishes from the stored plan. Returns how far it came, in mini-batches, and whether that is all: a chunk that is
    /// cut short ends it.
    async fn publish_stored(
        &self,
        complete: &PlanComplete,
        pending: &impl Fn(u64) -> Option<Pending>,
        progress: &impl Fn(PlanProgress),
    ) -> anyhow::Result<(u64, bool)> {
        let mut published = 0;
        for number in 0..complete.chunks() {
            let first = number * PLAN_CHUNK_MINI_BATCHES;
            let end = complete.mini_batches.min(first + PLAN_CHUNK_MINI_BATCHES);
            if (first..end).any(|mini_batch| pending(mini_batch).is_some()) {
                let chunk = match self.store.plan_chunk(number).await {
                    Ok(lines) => Chunk::stored(number, lines),
                    Err(storage::Error::NotFound { .. }) => Chunk::stored(number, Bytes::new()),
                    Err(error) => return Err(error).context("read the plan"),
                };
                if chunk.len() != end - first {
                    let (job, held, planned) = (&self.spec.job_id, chunk.len(), end - first);
                    warn!(
                        job.id = job,
                        plan.chunk = number,
                        "the plan is cut short and is made again: {held} mini-batches instead of {planned}"
                    );
                    return Ok((first, false));
                }
                published += self.publish(&chunk, pending).await?;
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
        let differs = self.spec.inputs.iter().zip(stored.iter().zip(schemas)).find(|(_, (stored, now))| stored != now);
        match differs {
            None => Ok(()),
            Some((input, _)) => {
                let difference = "its columns, or their types, are others".to_owned();
                Err(Error::InputsChanged { input: input.name.clone(), difference }.into())
            }
        }
    }

    async fn write_chunk(&self, chunk: &Chunk) -> anyhow::Result<()> {
        let created =
            self.store.create_plan_chunk(chunk.number, chunk.lines.clone()).await.context("write the plan")?;
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
                    // The machine stopped before all of it was on the disk.
                    return self
                        .store
                        .replace_plan_chunk(chunk.number, chunk.lines.clone())
                        .await
                        .context("mend the plan");
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

    /// The first difference between a chunk as it is stored and as it is made now.
    fn difference(&self, stored: &Chunk, now: Option<&Chunk>) -> Error {
        let line = |chunk: Option<&Chunk>, index| chunk.and_then(|chunk| chunk.line(index));
        let index = (0..).find(|&index| {
            let (then, now) = (line(Some(stored), index), line(now, index));
            then != now || then.is_none()
        });
        let index = index.expect("a range without end ends only by finding");
        let descriptor = |line: Option<bytes::Bytes>| serde_json::from_slice::<Descriptor>(&line?).ok();
        let (then, now) = (descriptor(line(Some(stored), index)), descriptor(line(now, index)));
        let input = [&then, &now].into_iter().flatten().find_map(|descriptor| match descriptor.work {
            Work::Files { input, .. } | Work::Rows { input, .. } => self.spec.inputs.get(input as usize),
            Work::Rank | Work::Planned { .. } => None,
        });
        let detail = |descriptor: Option<Descriptor>| match descriptor {
            Some(descriptor) => descriptor.detail(),
            None => "nothing".to_owned(),
        };
        Error::InputsChanged {
            input: input.map_or_else(String::new, |input| input.name.clone()),
            difference: format!(
                "mini-batch {} was {} and would now be {}",
                stored.first() + index as u64,
                detail(then),
                detail(now)
            ),
        }
    }

    async fn publish(&self, chunk: &Chunk, pending: &impl Fn(u64) -> Option<Pending>) -> anyhow::Result<u64> {
        let messages = chunk
            .messages(&self.spec.job_id, pending)
            .with_context(|| format!("plan chunk {} is damaged", chunk.number))?;
        let count = messages.len() as u64;
        if count > 0 {
            send(&*self.tasks, messages).await.with_context(|| format!("publish plan chunk {}", chunk.number))?;
        }
        Ok(count)
    }
}

/// Runs on a thread that may block, until the plan ends or nobody wants more of it.
fn list(mut plan: Plan, steps: &mpsc::Sender<Step>) -> Result<PlanComplete> {
    let schemas = plan.schemas()?;
    let mut wanted = steps.blocking_send(Step::Schemas(schemas)).is_ok();
    let mut number = 0;
    while wanted && let Some(chunk) = Chunk::next(&mut plan, number)? {
        wanted = steps.blocking_send(Step::Chunk { chunk, files: plan.files() }).is_ok();
        number += 1;
    }
    Ok(plan.totals())
}

/// A queue that does not answer is asked again, for a while.
async fn send(queue: &dyn Queue, messages: Vec<Message>) -> std::result::Result<(), queue::Error> {
    let send = || queue.send(messages.clone());
    let pauses = ExponentialBuilder::default()
        .with_min_delay(std::time::Duration::from_millis(100))
        .with_max_delay(std::time::Duration::from_secs(20))
        .with_max_times(SEND_TRIES_MAX);
    send.retry(pauses).when(|error| matches!(error, queue::Error::Unavailable { .. })).await
}
