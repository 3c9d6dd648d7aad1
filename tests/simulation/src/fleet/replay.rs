//! Replays: users correct the scripts of jobs that had rejects, and run the rejected items again.

use std::sync::Arc;

use protocol::{Descriptor, JobState};
use reducer::Rejects;
use storage::{JobStore, PlanComplete};
use tokio::time::Instant;

use super::World;
use crate::witness::{JobWitness, Witness};

impl World {
    /// Returns the world in which the rejects of its jobs run again; `None`: no job had any that its output lacks.
    pub(super) async fn of_replays(&self) -> Option<Self> {
        let (mut witnesses, mut plans) = (Vec::new(), Vec::new());
        for first in self.witness.jobs() {
            let has_completed = first.result().is_some_and(|result| result.state == JobState::Completed);
            if !has_completed || !first.job.can_be_replayed() {
                continue;
            }
            let plan = self.plan_of_replay(first).await;
            if plan.is_empty() {
                continue;
            }
            let job = first.job.replayed(plan.iter().map(|descriptor| descriptor.replays.expect("a replay")));
            let spec = job.spec(first.spec.output.folder.as_path(), self.scenario.bug);
            witnesses.push(JobWitness::new(job, spec, first.output.clone()));
            plans.push(plan);
        }
        if witnesses.is_empty() {
            return None;
        }
        let specs: Vec<_> = witnesses.iter().map(|witness| witness.spec.job_id.clone()).collect();
        let world = Self {
            witness: Arc::new(Witness::new(witnesses, &self.weather)),
            calm_from: Instant::now() + self.weather.ends,
            play: 0,
            is_replay: true,
            lives: Arc::default(),
            ..self.clone()
        };
        for (job_id, plan) in specs.iter().zip(plans) {
            describe(&world.target(&world.user()).job(job_id), plan).await;
        }
        Some(world)
    }

    /// Plans the replay of a job, as the engine does.
    async fn plan_of_replay(&self, first: &JobWitness) -> Vec<Descriptor> {
        let job_id = &first.spec.job_id;
        let store = self.target(&self.user()).job(job_id);
        let mut rejects = Rejects::find(&store, job_id).await.expect("it is calm");
        let mut plan = Vec::new();
        loop {
            let mini_batches = rejects.next().await.expect("it is calm");
            if mini_batches.is_empty() {
                break;
            }
            for rejected in &mini_batches {
                plan.extend(rejected.replay(false).expect("the plan is there").plan);
            }
        }
        for (number, descriptor) in (0..).zip(&mut plan) {
            (descriptor.job_id, descriptor.mini_batch) = (first.job.id_of_replay(), number);
        }
        plan
    }
}

/// Writes a plan.
async fn describe(store: &JobStore, plan: Vec<Descriptor>) {
    let mini_batches = plan.len() as u64;
    let lines: Vec<String> =
        plan.iter().map(|descriptor| serde_json::to_string(descriptor).expect("plain data") + "\n").collect();
    store.put_schemas(&[]).await.expect("it is calm");
    store.create_plan_chunk(0, lines.concat().into()).await.expect("it is calm");
    let complete = PlanComplete {
        mini_batches,
        items: None,
        files: mini_batches,
        inputs_digest: String::new(),
        left_out: Default::default(),
    };
    store.put_plan_complete(&complete).await.expect("it is calm");
}
