//! The broker of the target as one role sees it: its calls fail and take long, and so do those of the queues that it
//! creates and opens; and bugs can be planted in front of it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use queue::{Broker, Bundles, Error, JobQueues, MemoryBroker, MemoryQueue, Queue, TargetQueues};
use tokio::time::sleep;
use worker::body_to_return;

use crate::actor::Actor;
use crate::counts::{CountedQueue, Counts};
use crate::queue_layer::{QueueLayer, Side};
use crate::weather::Bug;
use crate::witness::Witness;

/// How long after it has created queues a bug deletes them.
const EARLY: Duration = Duration::from_secs(10);

/// One role's view of the broker.
#[derive(Clone, Debug)]
pub(crate) struct BrokerLayer {
    pub inner: Arc<MemoryBroker>,
    pub actor: Actor,
    pub witness: Arc<Witness>,
    pub counts: Counts,
    pub bug: Option<Bug>,
    /// What the role does with tasks and with results.
    pub sides: [Side; 2],
    /// Jobs that may have queues at a time.
    pub jobs_max: u32,
}

impl BrokerLayer {
    async fn call<T>(
        &self,
        name: &str,
        work: impl AsyncFnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let failed = || Error::Unavailable { queue: name.to_owned(), source: "bad weather".into() };
        self.actor.call(failed, work).await
    }

    /// Returns the queues, if they exist, as the role sees them.
    fn layers(&self, name: &str) -> Result<JobQueues, Error> {
        let Some([tasks, results]) = self.inner.pair(name) else {
            return Err(Error::Absent { queue: name.to_owned() });
        };
        let layer = |service: Arc<MemoryQueue>, side, tasks| {
            let counted =
                Arc::new(CountedQueue { inner: service.clone(), counts: self.counts.clone() });
            let inner: Arc<dyn Queue> = if side == self.sides[0] {
                Arc::new(Bundles::new(counted, body_to_return))
            } else {
                counted
            };
            let (actor, witness, bug, counts) =
                (self.actor.clone(), self.witness.clone(), self.bug, self.counts.clone());
            Arc::new(QueueLayer {
                inner,
                service,
                counts,
                actor,
                witness,
                side,
                bug,
                tasks,
                held: Default::default(),
            })
        };
        let tasks = layer(tasks, self.sides[0], None);
        Ok(JobQueues { results: layer(results, self.sides[1], Some(tasks.clone())), tasks })
    }

    async fn delete_as_is(&self, name: &str) -> Result<(), Error> {
        self.call(name, async || {
            self.witness.deletes_queues(name);
            self.inner.delete(name).await
        })
        .await
    }
}

#[async_trait]
impl Broker for BrokerLayer {
    async fn create(&self, name: &str) -> Result<JobQueues, Error> {
        let created = self
            .call(name, async || {
                self.inner.create(name).await?;
                self.layers(name)
            })
            .await?;
        if self.bug == Some(Bug::DeletesQueuesEarly) {
            let (layer, name) = (self.clone(), name.to_owned());
            tokio::spawn(async move {
                sleep(EARLY).await;
                layer.delete_as_is(&name).await
            });
        }
        Ok(created)
    }

    async fn open(&self, name: &str) -> Result<JobQueues, Error> {
        self.call(name, async || self.layers(name)).await
    }

    async fn delete(&self, name: &str) -> Result<(), Error> {
        if self.bug == Some(Bug::LeaksQueues) {
            return Ok(());
        }
        self.delete_as_is(name).await
    }

    async fn target(&self) -> Result<TargetQueues, Error> {
        self.inner.target().await
    }

    fn name_of_tasks(&self, name: &str) -> String {
        self.inner.name_of_tasks(name)
    }

    fn jobs_max(&self) -> u32 {
        self.jobs_max
    }

    async fn close(&self) {}
}
