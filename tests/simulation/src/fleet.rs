//! One seed, from the job's description to its end.

use std::path::Path;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use object_store::memory::InMemory;
use partitioner::{Partitioner, Pending};
use protocol::{JobResult, JobSpec};
use queue::{Clock, MemoryOptions, MemoryQueue};
use reducer::{CrashPoint, MiniBatchState, Options, Reducer, Tally};
use storage::JobStore;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::actor::Actor;
use crate::job::{JOBS, Job};
use crate::node::Node;
use crate::queue_layer::{QueueLayer, Side};
use crate::rules;
use crate::store_layer::StoreLayer;
use crate::weather::{Bug, Scenario, Weather};
use crate::witness::{Violation, Witness};

/// No job takes longer, whatever the weather.
const PATIENCE: Duration = Duration::from_secs(2 * 3600);
/// Longer than in production: looking around is most of what there is to simulate.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(30);
const VISIBILITY: Duration = Duration::from_secs(60);

/// What a seed came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Played {
    /// Runs of user code.
    pub attempts: u64,
    /// Lives of nodes, reducers and partitioners.
    pub lives: u64,
    /// Virtual time.
    pub time: Duration,
    /// The job stood still because messages were lost, and was retried.
    pub retried: bool,
}

/// Plays one seed. The error is the first rule that was broken.
pub fn run(scenario: Scenario) -> Result<Played, Violation> {
    let job = Job::new(scenario.seed % JOBS);
    let folder = folder();
    // Pauses before something is tried again are drawn from this one.
    fastrand::seed(scenario.seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a thread can have a runtime");
    let played = runtime.block_on(async {
        let spec = job.spec(folder.path(), scenario.bug);
        let output = folder.path().join(&spec.output.file_name);
        let weather = Weather::of(scenario.seed);
        let world = World {
            memory: Arc::new(InMemory::new()),
            tasks: queue(&weather),
            results: queue(&weather),
            witness: Arc::new(Witness::new(job, output)),
            calm_from: Instant::now() + weather.ends,
            thread: std::thread::current().id(),
            scenario,
            weather,
            spec,
        };
        world.play().await
    });
    runtime.shutdown_background();
    played
}

/// In memory where there is such a place.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a temporary folder can be made")
}

fn queue(weather: &Weather) -> Arc<MemoryQueue> {
    Arc::new(MemoryQueue::new(MemoryOptions {
        clock: Clock::tokio(),
        old_receipt_deletes: weather.old_receipt_deletes,
        message_bytes_max: 32 * 1024,
    }))
}

#[derive(Clone)]
struct World {
    memory: Arc<InMemory>,
    tasks: Arc<MemoryQueue>,
    results: Arc<MemoryQueue>,
    witness: Arc<Witness>,
    calm_from: Instant,
    thread: ThreadId,
    scenario: Scenario,
    weather: Weather,
    spec: JobSpec,
}

/// Who lives.
#[derive(Clone, Copy, Debug)]
enum Role {
    Partitioner,
    Node,
    Reducer,
}

impl World {
    async fn play(mut self) -> Result<Played, Violation> {
        let began = Instant::now();
        let god = self.with(Weather::calm()).actor("god".to_owned());
        self.store(&god).put_spec(&self.spec).await.expect("memory takes it");
        let (result, mut lives) = self.play_once(began).await?;
        let retried = rules::stood_still(&result, &self.weather);
        if !retried {
            rules::check(&self.witness, &result)?;
        } else {
            // Somebody retries the job, in good weather.
            self.calm_from = Instant::now();
            self.open_again(&god).await;
            let (result, more) = self.play_once(began).await?;
            lives += more;
            rules::check(&self.witness, &result)?;
        }
        Ok(Played { attempts: self.witness.attempts(), lives, time: began.elapsed(), retried })
    }

    async fn open_again(&self, god: &Actor) {
        let mut reducer = self.reducer(god).await.expect("it is calm");
        reducer.reopen().await.expect("it is calm");
    }

    /// Until some reducer says how the job ended.
    async fn play_once(&self, began: Instant) -> Result<(JobResult, u64), Violation> {
        let (ended, mut ends) = mpsc::unbounded_channel();
        let mut roles = JoinSet::new();
        let lives = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let nodes = (0..self.weather.nodes).map(|number| (Role::Node, number));
        let reducers = (0..self.weather.reducers).map(|number| (Role::Reducer, number));
        for (role, number) in nodes.chain(reducers).chain([(Role::Partitioner, 0)]) {
            roles.spawn(self.clone().keep_alive(role, number, ended.clone(), lives.clone()));
        }
        let result = timeout(PATIENCE, ends.recv()).await;
        roles.abort_all();
        while roles.join_next().await.is_some() {}
        let lives = lives.load(std::sync::atomic::Ordering::SeqCst);
        match (self.witness.violation(), result) {
            (Some(violation), _) => Err(violation),
            (None, Ok(result)) => Ok((result.expect("a reducer ends"), lives)),
            (None, Err(_)) => {
                let detail = format!("it still runs after {} hours", began.elapsed().as_secs() / 3600);
                Err(Violation { rule: "every job ends", detail })
            }
        }
    }

    fn with(&self, weather: Weather) -> Self {
        Self { weather, ..self.clone() }
    }

    fn actor(&self, name: String) -> Actor {
        Actor::new(name, self.scenario.seed, self.weather.clone(), self.calm_from)
    }

    /// One life after the other, until the job ends.
    async fn keep_alive(
        self,
        role: Role,
        number: u64,
        ended: mpsc::UnboundedSender<JobResult>,
        lives: Arc<std::sync::atomic::AtomicU64>,
    ) {
        for life in 0u64.. {
            lives.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let actor = self.actor(format!("{role:?}-{number}-{life}"));
            let world = self.clone();
            let (own, ended) = (actor.clone(), ended.clone());
            let mut living = JoinSet::new();
            living.spawn(async move {
                match role {
                    Role::Partitioner => world.partition(&own).await,
                    Role::Node => world.work(&own).await,
                    Role::Reducer => {
                        let result = world.reduce(&own).await;
                        drop(ended.send(result));
                        std::future::pending().await
                    }
                }
            });
            tokio::select! {
                biased;
                done = living.join_next() => {
                    if let Some(Err(error)) = done
                        && error.is_panic()
                    {
                        self.witness.report("nobody panics", format!("{role:?}: {error}"));
                    }
                    if matches!(role, Role::Partitioner) {
                        return;
                    }
                }
                () = self.death(&actor) => actor.kill(),
            }
            living.abort_all();
            while living.join_next().await.is_some() {}
            sleep(actor.dice().between(Duration::from_secs(1), Duration::from_secs(20))).await;
        }
    }

    /// Comes sooner or later while the weather lasts; before that the process may stand still for a while.
    async fn death(&self, actor: &Actor) {
        let crashes = async {
            loop {
                let every = self.weather.crash_every;
                if every.is_zero() || Instant::now() >= self.calm_from {
                    std::future::pending::<()>().await;
                }
                sleep(actor.dice().between(Duration::from_millis(1), 2 * every)).await;
                if Instant::now() >= self.calm_from {
                    continue;
                }
                if !actor.happens(|weather| weather.freeze) {
                    return;
                }
                actor.freeze(actor.dice().time(self.weather.freeze_max));
            }
        };
        // Or it is killed by what it runs.
        tokio::select! { biased; () = actor.dead() => {} () = crashes => {} }
    }

    fn layer(&self, actor: &Actor, side: Side, tasks: Option<Arc<QueueLayer>>) -> Arc<QueueLayer> {
        let inner = match side {
            Side::PartitionerTasks | Side::NodeTasks => self.tasks.clone(),
            Side::Results | Side::ReducerResults => self.results.clone(),
        };
        let (actor, witness) = (actor.clone(), self.witness.clone());
        Arc::new(QueueLayer { inner, actor, witness, side, bug: self.scenario.bug, tasks, held: Default::default() })
    }

    fn store(&self, actor: &Actor) -> JobStore {
        let layer = StoreLayer {
            inner: self.memory.clone(),
            actor: actor.clone(),
            witness: self.witness.clone(),
            bug: self.scenario.bug,
            thread: self.thread,
        };
        JobStore::new(Arc::new(layer), object_store::path::Path::default())
    }

    async fn partition(&self, actor: &Actor) {
        let tasks = self.layer(actor, Side::PartitionerTasks, None);
        let results = self.layer(actor, Side::Results, None);
        let partitioner = Partitioner::new(self.spec.clone(), self.store(actor), tasks, results);
        loop {
            // What is published again does no harm; after a retry, what has ended is left out.
            let pending = self.pending(actor).await;
            if partitioner.resume(&pending, |_| ()).await.is_ok() {
                return;
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    async fn pending(&self, actor: &Actor) -> impl Fn(u64) -> Option<Pending> + use<> {
        let tally: Option<Tally> = self.reducer(actor).await.ok().map(|reducer| reducer.tally().clone());
        move |mini_batch| {
            let Some(tally) = &tally else { return Some(Pending::default()) };
            let tries_spent = tally.tries_spent(mini_batch);
            match tally.state(mini_batch) {
                MiniBatchState::Succeeded | MiniBatchState::Failed => None,
                _ => Some(Pending { tries_spent, deliveries_lost: tally.deliveries_lost(mini_batch) }),
            }
        }
    }

    async fn work(&self, actor: &Actor) {
        let tasks = self.layer(actor, Side::NodeTasks, None);
        let results = self.layer(actor, Side::Results, Some(tasks.clone()));
        let node = Node {
            actor: actor.clone(),
            witness: self.witness.clone(),
            store: self.store(actor),
            tasks,
            results,
            job_id: self.spec.job_id.clone(),
        };
        node.live().await;
    }

    async fn reducer(&self, actor: &Actor) -> anyhow::Result<Reducer> {
        let (witness, bug) = (self.witness.clone(), self.scenario.bug);
        let options = Options {
            writer: actor.name().to_owned(),
            visibility: VISIBILITY,
            reports: false,
            progress_interval: PROGRESS_INTERVAL,
            crash: Arc::new(move |at| {
                if bug == Some(Bug::WritesInPlace) && at == CrashPoint::DuringOutput {
                    std::fs::write(&witness.output, "row of").expect("the folder is there");
                }
                witness.look_at_output();
            }),
            ..Options::shared()
        };
        Reducer::open(self.store(actor), self.layer(actor, Side::ReducerResults, None), options).await
    }

    async fn reduce(&self, actor: &Actor) -> JobResult {
        loop {
            let served = match self.reducer(actor).await {
                Ok(reducer) => reducer.serve(CancellationToken::new()).await,
                Err(error) => Err(error),
            };
            if let Ok(Some(result)) = served {
                return result;
            }
            // As the service does: the job is tried again after a while.
            sleep(Duration::from_secs(20)).await;
        }
    }
}
