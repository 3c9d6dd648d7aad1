//! Who plans and publishes a job: the process that submits it makes its plan, and a reducer publishes that.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use partitioner::{Partitioner, Pending};
use protocol::JobSpec;
use queue::JobQueues;
use reducer::{Publisher, Reducer, Tally};
use storage::{JobStore, random_name};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::World;
use crate::actor::Actor;
use crate::queue_layer::Nowhere;

/// From one sign of life of a process that plans or publishes to the next.
const PUBLISHING_EVERY: Duration = Duration::from_secs(4);

/// The publisher in a reducer, as in the engine.
pub(super) struct Publishing {
    pub world: World,
    pub actor: Actor,
}

impl Publisher for Publishing {
    fn publish(
        &self,
        job: JobStore,
        queues: JobQueues,
    ) -> Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>> {
        let options = self.world.reducer_options(&self.actor);
        Box::pin(async move {
            let _publishing = AbortOnDropHandle::new(tokio::spawn(show_life(job.clone())));
            let reducer = Reducer::open(job.clone(), Arc::new(Nowhere), options).await?;
            let tally = reducer.tally().clone();
            let partitioner =
                Partitioner::new(reducer.spec().clone(), job, queues.tasks, queues.results);
            partitioner
                .follow(|mini_batch| pending(&tally, mini_batch))
                .await
                .context("publish the plan")?;
            Ok(())
        })
    }
}

impl World {
    /// Plans a job, however often that fails.
    pub(super) async fn plan(&self, spec: &JobSpec, actor: &Actor) {
        let store = self.target(actor).job(&spec.job_id);
        let partitioner =
            Partitioner::new(spec.clone(), store, Arc::new(Nowhere), Arc::new(Nowhere));
        // The plan is made by another thread, so it is not determined which of its calls and these come first.
        let name = format!("{}, signs of life", actor.name());
        let signs = Actor::new(name, self.scenario.seed, actor.weather().clone(), self.calm_from);
        let shown = show_life(self.target(&signs).job(&spec.job_id));
        let _planning = AbortOnDropHandle::new(tokio::spawn(shown));
        while partitioner.plan_only().await.is_err() {
            sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Returns what a mini-batch has spent; `None`: it has ended.
fn pending(tally: &Tally, mini_batch: u64) -> Option<Pending> {
    let pending = Pending {
        tries_spent: tally.tries_spent(mini_batch),
        deliveries_lost: tally.deliveries_lost(mini_batch),
        again: tally.again(mini_batch),
    };
    (!tally.state(mini_batch).has_ended()).then_some(pending)
}

/// Shows other processes that this one plans or publishes a job.
async fn show_life(job: JobStore) {
    loop {
        let _ = job.put_publishing(random_name()).await;
        sleep(PUBLISHING_EVERY).await;
    }
}
