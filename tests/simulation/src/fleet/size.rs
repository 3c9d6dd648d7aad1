//! One large job on many nodes, in good weather: what it asks of queues and store, and what a restart and a retry ask.

use std::time::Duration;

use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::path::Path;
use partitioner::{Partitioner, Pending};
use protocol::JobState;
use queue::Queue;
use tokio::time::{Instant, sleep};

use super::{Side, World, folder};
use crate::counts::Requests;
use crate::job::Job;
use crate::weather::{Pace, Scenario, Weather};
use crate::witness::Violation;

/// The largest message of SQS.
const MESSAGE_BYTES_MAX: usize = 256 << 10;
const LOOK: Duration = Duration::from_secs(1);

/// A job and its fleet.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Nodes with two processes each.
    pub nodes: u64,
    /// Mini-batches.
    pub mini_batches: u64,
    /// Time of each run.
    pub run_time: Duration,
}

/// What a job of some size came to.
#[derive(Clone, Copy, Debug)]
pub struct Sized {
    /// From the start of the roles to the result of the job.
    pub time: Duration,
    /// What all roles have asked meanwhile.
    pub requests: Requests,
    /// What a reducer asks that opens the complete ledger.
    pub restart: Requests,
    /// What a partitioner asks that publishes every mini-batch of the stored plan again.
    pub retry: Requests,
    /// Segments of the ledger.
    pub segments: u64,
    /// Their bytes.
    pub ledger_bytes: u64,
    /// Chunks of the plan, and its other objects.
    pub plan_objects: u64,
    /// The most messages that were in flight at a time.
    pub in_flight_max: u64,
}

/// Plays a job to its end.
pub fn run_size(size: Size) -> Result<Sized, Violation> {
    let folder = folder();
    let scenario = Scenario { seed: 0, bug: None };
    let weather = Weather {
        nodes: size.nodes,
        reducers: 1,
        has_delays: true,
        job_idle: Duration::from_secs(24 * 3600),
        provision_max: Duration::from_secs(1),
        message_bytes_max: MESSAGE_BYTES_MAX,
        drives_time: true,
        pace: Pace::PRODUCTION,
        ..Weather::default()
    };
    super::in_virtual_time(scenario.seed, async {
        let jobs = vec![Job::sized(size.mini_batches, size.run_time)];
        World::new(jobs, weather, scenario, folder.path()).play_size().await
    })
}

impl World {
    async fn play_size(self) -> Result<Sized, Violation> {
        let began = Instant::now();
        let jobs: Vec<_> = self.witness.jobs().cloned().collect();
        let results = async { self.play_once(&jobs).await };
        let in_flight = async {
            let mut most = 0;
            while self.counts.stopped_at().is_none() && self.witness.violation().is_none() {
                let [tasks] = &self.tasks[..] else { unreachable!("SQS has no lanes") };
                most = most.max(tasks.depth().await.expect("memory answers").in_flight);
                sleep(LOOK).await;
            }
            most
        };
        let (results, in_flight_max) = tokio::join!(results, in_flight);
        let (job, user) = (&jobs[0], self.user());
        let result = results?.into_iter().flatten().next().expect("it ends in good weather");
        crate::rules::check(job, &result)?;
        if result.state != JobState::Completed {
            let detail = format!("{result:?}");
            return Err(Violation { rule: "in good weather a job is completed", detail });
        }
        let time = self.counts.stopped_at().expect("there is a result") - began;
        let requests = self.counts.take();
        let reducer = self.reducer(&job.spec, &user).await.expect("it is calm");
        drop(reducer);
        let restart = self.counts.take();
        let store = self.target(&user).job(&job.spec.job_id);
        let [tasks, results] = [Side::PartitionerTasks, Side::Results].map(|side| self.layer(&user, side, None));
        let partitioner = Partitioner::new(job.spec.clone(), store, tasks, results);
        partitioner.resume(|_| Some(Pending::default()), |_| ()).await.expect("it is calm");
        let retry = self.counts.take();
        let (segments, ledger_bytes) = self.objects(&format!("jobs/{}/ledger", job.spec.job_id)).await;
        let (plan_objects, _) = self.objects(&format!("jobs/{}/plan", job.spec.job_id)).await;
        Ok(Sized { time, requests, restart, retry, segments, ledger_bytes, plan_objects, in_flight_max })
    }

    /// Returns the number and the bytes of the objects below a folder.
    async fn objects(&self, folder: &str) -> (u64, u64) {
        let found: Vec<_> = self.memory.list(Some(&Path::from(folder))).try_collect().await.expect("memory answers");
        (found.len() as u64, found.iter().map(|meta| meta.size).sum())
    }
}
