//! Publishers, and the turns of jobs where a target has quotas.

use std::time::Duration;

use engine::turns::{Admission, Turns, enter_again};
use partitioner::{Partitioner, Pending};
use protocol::JobSpec;
use reducer::{MiniBatchState, Tally};
use tokio::time::sleep;

use super::World;
use crate::actor::Actor;
use crate::queue_layer::Side;
use crate::weather::Bug;

impl World {
    /// Marks a job as open, unless quotas decide that.
    pub(super) async fn mark_open(&self, job_id: &str) {
        if !self.weather.has_quotas() {
            self.target(&self.user()).mark_open(job_id).await.expect("memory takes it");
        }
    }

    /// Publishes a job, or only plans it if it has to wait for its turn.
    pub(super) async fn partition(&self, spec: &JobSpec, actor: &Actor) {
        let tasks = self.layer(actor, Side::PartitionerTasks, None);
        let results = self.layer(actor, Side::Results, None);
        let partitioner = Partitioner::new(spec.clone(), self.target(actor).job(&spec.job_id), tasks, results);
        loop {
            if let Ok(waits) = self.waits(spec, actor).await {
                // Publishing twice does no harm; a retry leaves out what has ended.
                let pending = self.pending(spec, actor).await;
                let pending = |mini_batch| if waits { None } else { pending(mini_batch) };
                if partitioner.resume(pending, |_| ()).await.is_ok() {
                    return;
                }
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Returns whether a job has to wait for its turn.
    async fn waits(&self, spec: &JobSpec, actor: &Actor) -> anyhow::Result<bool> {
        if !self.weather.has_quotas() {
            return Ok(false);
        }
        let entry = enter_again(&self.target(actor), spec).await?;
        Ok(entry != Admission::Runs && self.scenario.bug != Some(Bug::IgnoresQuotas))
    }

    async fn pending(&self, spec: &JobSpec, actor: &Actor) -> impl Fn(u64) -> Option<Pending> + use<> {
        let tally: Option<Tally> = self.reducer(spec, actor).await.ok().map(|reducer| reducer.tally().clone());
        move |mini_batch| {
            let Some(tally) = &tally else { return Some(Pending::default()) };
            let tries_spent = tally.tries_spent(mini_batch);
            match tally.state(mini_batch) {
                MiniBatchState::Succeeded | MiniBatchState::Failed => None,
                _ => Some(Pending { tries_spent, deliveries_lost: tally.deliveries_lost(mini_batch) }),
            }
        }
    }

    /// Lets jobs begin whose turn has come, as every reducer does.
    pub(super) async fn keep_turns(&self, actor: &Actor) {
        if !self.weather.has_quotas() {
            return std::future::pending().await;
        }
        let tasks = self.layer(actor, Side::PartitionerTasks, None);
        let results = self.layer(actor, Side::Results, None);
        Turns::new(self.target(actor), tasks, results).keep().await;
    }
}
