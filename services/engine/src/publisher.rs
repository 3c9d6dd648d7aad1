//! Publishes jobs of a compute target, for its reducers: the plan comes from the process that has enqueued the job.

use std::collections::HashMap;
use std::pin::Pin;

use anyhow::{Context, Result};
use partitioner::Partitioner;
use queue::JobQueues;
use reducer::{Publisher, Reducer};
use storage::JobStore;

use crate::Unfinished;
use crate::submit::show_life;

/// Publishes the mini-batches that have not ended according to the ledger.
pub(crate) struct Planned;

impl Publisher for Planned {
    fn publish(
        &self,
        job: JobStore,
        queues: JobQueues,
    ) -> Pin<Box<dyn Future<Output = Result<()>> + Send>> {
        Box::pin(async move {
            let signing = job.clone();
            let _publishing = show_life(move |sign| {
                let job = signing.clone();
                async move { job.put_publishing(sign).await }
            });
            let reducer = Reducer::of_ledger(job.clone()).await?;
            let unfinished = Unfinished::new(reducer.tally(), HashMap::default());
            let partitioner =
                Partitioner::new(reducer.spec().clone(), job, queues.tasks, queues.results);
            partitioner
                .follow(|mini_batch| unfinished.pending(mini_batch))
                .await
                .context("publish the plan")?;
            Ok(())
        })
    }
}
