//! Publishes jobs of a compute target, for its reducers: the plan comes from the process that has enqueued the job.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::{Context, Result};
use partitioner::Partitioner;
use queue::{JobQueues, Queue};
use reducer::{Publisher, Reducer};
use storage::JobStore;
use tokio_util::task::AbortOnDropHandle;

use crate::Unfinished;
use crate::submit::show_life;

/// Publishes what has not ended by the ledger.
pub(crate) struct Planned {
    /// Any queue, to read ledgers.
    pub results: Arc<dyn Queue>,
}

impl Publisher for Planned {
    fn publish(&self, job: JobStore, queues: JobQueues) -> Pin<Box<dyn Future<Output = Result<()>> + Send>> {
        let results = self.results.clone();
        Box::pin(async move {
            let _publishing = AbortOnDropHandle::new(tokio::spawn(show_life(job.clone(), "reducer".to_owned())));
            let options = reducer::Options { reports: false, ..reducer::Options::shared() };
            let reducer = Reducer::open(job.clone(), results, options).await?;
            let unfinished = Unfinished::new(reducer.tally(), HashMap::default());
            let partitioner = Partitioner::new(reducer.spec().clone(), job, queues.tasks, queues.results);
            partitioner.follow(|mini_batch| unfinished.pending(mini_batch)).await.context("publish the plan")?;
            Ok(())
        })
    }
}
