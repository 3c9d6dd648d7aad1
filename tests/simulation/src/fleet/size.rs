//! One large job on many nodes, in good weather: what it asks of queues and store, and what a restart and a retry ask.

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::path::Path;
use partitioner::{Partitioner, Pending};
use protocol::JobState;
use queue::{MemoryOptions, MemoryQueue, Queue};
use tokio::time::{Instant, sleep};

use super::{World, in_virtual_time};
use crate::actor::Actor;
use crate::counts::{CountedQueue, Requests};
use crate::job::Job;
use crate::queue_layer::{MESSAGE_BYTES_MAX, Nowhere, QueueLayer, Side};
use crate::weather::{Pace, Scenario, Weather};
use crate::witness::Violation;

const LOOK: Duration = Duration::from_secs(1);
/// Milliseconds that a request of a restart, of `status` or of a retry to the store takes: Amazon names 100 to 200 for
/// small objects.
pub const LATENCY: u64 = 150;

/// A job and its fleet.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Nodes with two processes each.
    pub nodes: u64,
    /// Mini-batches.
    pub mini_batches: u64,
    /// Time of each run.
    pub run_time: Duration,
    /// Measures the memory of roles.
    pub meter: Meter,
}

/// What a job of some size came to.
#[derive(Clone, Copy, Debug)]
pub struct Sized {
    /// From the start of the roles to the result of the job.
    pub time: Duration,
    /// What all roles have asked meanwhile.
    pub requests: Requests,
    /// What a reducer needs to open the complete ledger.
    pub restart: Needed,
    /// What `status` needs while the job runs.
    pub status: Needed,
    /// What a publisher needs to publish every mini-batch of the stored plan again.
    pub retry: Needed,
    /// Segments of the ledger.
    pub segments: u64,
    /// Their bytes.
    pub ledger_bytes: u64,
    /// Chunks of the plan, and its other objects.
    pub plan_objects: u64,
    /// The most messages that were in flight at a time.
    pub in_flight_max: u64,
}

/// What a role needs by itself.
#[derive(Clone, Copy, Debug)]
pub struct Needed {
    /// What it asks.
    pub requests: Requests,
    /// How long that takes, where each request takes as long as [`LATENCY`] says.
    pub time: Duration,
    /// The most memory that it has meanwhile, in bytes.
    pub memory: u64,
}

/// Measures memory.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    /// Begins to measure.
    pub begin: fn(),
    /// Returns the most bytes that were allocated since beyond those that were allocated then.
    pub most: fn() -> u64,
}

/// Plays a job to its end.
pub fn run_size(size: Size) -> Result<Sized, Violation> {
    let weather = Weather {
        nodes: size.nodes,
        reducers: 1,
        has_delays: true,
        provision_max: Duration::from_secs(1),
        message_bytes_max: MESSAGE_BYTES_MAX,
        drives_time: true,
        pace: Pace::PRODUCTION,
        ..Weather::default()
    };
    let jobs = vec![Job::sized(size.mini_batches, size.run_time)];
    let scenario = Scenario { seed: 0, bug: None };
    in_virtual_time(jobs, weather, scenario, async |world| world.play_size(size.meter).await)
}

impl World {
    async fn play_size(self, meter: Meter) -> Result<Sized, Violation> {
        let began = Instant::now();
        let jobs: Vec<_> = self.witness.jobs().cloned().collect();
        let results = async { self.play_once(&jobs).await };
        let in_flight = async {
            let mut most = 0;
            while self.counts.stopped_at().is_none() && self.witness.violation().is_none() {
                for [tasks, _] in
                    self.broker.names().iter().filter_map(|name| self.broker.pair(name))
                {
                    most = most.max(tasks.depth().await.expect("memory answers").in_flight);
                }
                // A look counts every message.
                sleep(LOOK.max(began.elapsed() / 100)).await;
            }
            most
        };
        let (results, in_flight_max) = tokio::join!(results, in_flight);
        let weather = Weather { latency: LATENCY - 10, ..Weather::default() };
        let drives_time = Weather { drives_time: true, ..weather.clone() };
        let [user, publisher] = [weather, drives_time].map(|weather| {
            Actor::new("User".to_owned(), self.scenario.seed, weather, self.calm_from)
        });
        let job = &jobs[0];
        let result = results?.into_iter().flatten().next().expect("it ends in good weather");
        crate::rules::check(job, &result)?;
        if result.state != JobState::Completed {
            let detail = format!("{result:?}");
            return Err(Violation { rule: "in good weather a job is completed", detail });
        }
        let time = self.counts.stopped_at().expect("there is a result") - began;
        let requests = self.counts.take();
        let store_of = |actor: &Actor| self.target(actor).job(&job.spec.job_id);
        let restart = self
            .needed(meter, async || {
                let opened = self.reducer(&job.spec, &user).await.expect("it is calm");
                assert_eq!(opened.tally().mini_batches().succeeded, job.job.mini_batches);
            })
            .await;
        let status = self
            .needed(meter, async || {
                let store = store_of(&user);
                store.spec().await.expect("it is there");
                store.progress().await.expect("it is calm").expect("reducers have written it");
            })
            .await;
        let retry = self
            .needed(meter, async || {
                let published = Arc::new(QueueLayer {
                    inner: Arc::new(CountedQueue {
                        inner: Arc::new(Nowhere),
                        counts: self.counts.clone(),
                    }),
                    service: Arc::new(MemoryQueue::new(MemoryOptions::default())),
                    counts: self.counts.clone(),
                    actor: publisher.clone(),
                    witness: self.witness.clone(),
                    side: Side::ReducerTasks,
                    bug: None,
                    tasks: None,
                    held: Default::default(),
                });
                let (spec, results) = (job.spec.clone(), Arc::new(Nowhere));
                let partitioner = Partitioner::new(spec, store_of(&publisher), published, results);
                partitioner.follow(|_| Some(Pending::default())).await.expect("it is calm");
            })
            .await;
        let (segments, ledger_bytes) =
            self.objects(&format!("jobs/{}/ledger", job.spec.job_id)).await;
        let (plan_objects, _) = self.objects(&format!("jobs/{}/plan", job.spec.job_id)).await;
        Ok(Sized {
            time,
            requests,
            restart,
            status,
            retry,
            segments,
            ledger_bytes,
            plan_objects,
            in_flight_max,
        })
    }

    async fn needed(&self, meter: Meter, work: impl AsyncFnOnce()) -> Needed {
        // What was aborted before leaves its memory.
        sleep(LOOK).await;
        let began = Instant::now();
        (meter.begin)();
        work().await;
        Needed { memory: (meter.most)(), time: began.elapsed(), requests: self.counts.take() }
    }

    /// Returns the number and the bytes of the objects below a folder.
    async fn objects(&self, folder: &str) -> (u64, u64) {
        let found: Vec<_> = self
            .memory
            .list(Some(&Path::from(folder)))
            .try_collect()
            .await
            .expect("memory answers");
        (found.len() as u64, found.iter().map(|meta| meta.size).sum())
    }
}
