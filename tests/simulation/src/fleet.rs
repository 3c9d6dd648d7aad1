//! One seed, from the first job to the end of the last.

mod nodes;
mod publish;
mod size;
mod small;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use protocol::{JobResult, JobSpec, JobState, Offer};
use queue::{Broker, Depth, MemoryBroker, MemoryOptions, MemoryQueue, Message, Queue};
use reducer::{CrashPoint, Fleet, FleetOptions, Options, Reducer, RoundScript};
use storage::{RoundRequest, TargetStore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use worker::NodeLock;

use crate::actor::{Actor, StopRequest};
use crate::agent_allocations::GpusInUse;
use crate::broker_layer::BrokerLayer;
use crate::counts::Counts;
use crate::dated::Dated;
use crate::job::{Job, LABEL, SLOTS, ZONES};
use crate::node::Node;
use crate::queue_layer::{Nowhere, Side};
use crate::rules;
use crate::store_layer::StoreLayer;
use crate::weather::{Bug, Scenario, Weather};
use crate::witness::{JobWitness, Violation, Witness};

pub use nodes::{Broken, Ended, run_broken, run_poison};
use publish::Publishing;
pub use size::{LATENCY, Meter, Needed, Size, Sized, run_size};
pub use small::{Waited, run_small};

/// No job goes on for longer without an attempt that begins.
const PATIENCE: Duration = Duration::from_secs(2 * 3600);
/// No job takes longer, though a queue may deliver a slow mini-batch dozens of times.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
const VISIBILITY: Duration = Duration::from_secs(60);
/// How long the roles go on after the last job has ended: late reducers and messages change nothing.
const AFTERMATH: Duration = Duration::from_secs(10);
/// Within this time of calm after the last job nothing is left of it.
const TIDY_TIME: Duration = Duration::from_secs(600);

/// What a seed came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Played {
    /// Jobs.
    pub jobs: u64,
    /// Runs of user code.
    pub attempts: u64,
    /// Lives of nodes, reducers and partitioners.
    pub lives: u64,
    /// Virtual time.
    pub time: Duration,
    /// Jobs that stood still because messages had vanished, and were retried.
    pub retried: u64,
    /// Jobs that had another round.
    pub mended: u64,
}

/// Plays one seed. The error is the first broken rule.
pub fn run(scenario: Scenario) -> Result<Played, Violation> {
    let (jobs, weather) = (Job::of_seed(scenario.seed), Weather::of(scenario.seed));
    in_virtual_time(jobs, weather, scenario, World::play)
}

/// Plays these jobs in virtual time.
fn in_virtual_time<T>(
    jobs: Vec<Job>,
    weather: Weather,
    scenario: Scenario,
    play: impl AsyncFnOnce(World) -> T,
) -> T {
    // First, because its name is drawn from the generator below.
    let folder = folder();
    // Pauses before retries are drawn from this generator.
    fastrand::seed(scenario.seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a thread can have a runtime");
    let done =
        runtime.block_on(async { play(World::new(jobs, weather, scenario, folder.path())).await });
    runtime.shutdown_background();
    done
}

/// Makes a temporary folder, in memory where the system allows that.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a temporary folder can be made")
}

#[derive(Clone)]
struct World {
    memory: Arc<Dated>,
    broker: Arc<MemoryBroker>,
    dead_letters: Arc<MemoryQueue>,
    /// Tells reducers of new jobs.
    control: Arc<MemoryQueue>,
    witness: Arc<Witness>,
    counts: Counts,
    folder: PathBuf,
    calm_from: Instant,
    thread: ThreadId,
    scenario: Scenario,
    weather: Weather,
    /// How often jobs were retried.
    play: u64,
    /// The play in which users may cancel jobs: the first one of a round.
    first_play: u64,
    /// Of nodes, reducers and partitioners.
    lives: Arc<AtomicU64>,
}

#[derive(Clone, Debug)]
enum Role {
    Partitioner(Arc<JobWitness>),
    Node,
    Reducer,
}

impl World {
    fn new(jobs: Vec<Job>, weather: Weather, scenario: Scenario, folder: &Path) -> Self {
        let witnesses = jobs.into_iter().map(|job| {
            let spec = job.spec(&folder.join(job.id()), scenario.bug);
            std::fs::create_dir(spec.output.folder.as_path())
                .expect("the temporary folder is writable");
            let output = spec.output.folder.as_path().join(&spec.output.file_name);
            JobWitness::new(job, spec, output)
        });
        let options = MemoryOptions {
            old_receipt_deletes: weather.old_receipt_deletes,
            message_bytes_max: weather.message_bytes_max,
            ..MemoryOptions::default()
        };
        Self {
            memory: Arc::new(Dated::new()),
            broker: Arc::new(MemoryBroker::new(options.clone())),
            dead_letters: Arc::new(MemoryQueue::new(options.clone())),
            control: Arc::new(MemoryQueue::new(options)),
            witness: Arc::new(Witness::new(witnesses, &weather)),
            counts: Counts::default(),
            folder: folder.to_owned(),
            calm_from: Instant::now() + weather.ends,
            thread: std::thread::current().id(),
            scenario,
            weather,
            play: 0,
            first_play: 0,
            lives: Arc::default(),
        }
    }

    async fn play(mut self) -> Result<Played, Violation> {
        let began = Instant::now();
        if self.weather.has_quotas() {
            self.target(&self.user())
                .put_quotas(&self.weather.quotas)
                .await
                .expect("memory takes it");
        }
        let mut jobs: Vec<_> = self.witness.jobs().cloned().collect();
        let mut played = Played { jobs: jobs.len() as u64, ..Played::default() };
        loop {
            let results = self.play_once(&jobs).await?;
            let mut stood_still = Vec::new();
            for (witness, result) in jobs.into_iter().zip(results) {
                match result
                    .filter(|result| !rules::stood_still(&witness.job, result, &self.weather))
                {
                    Some(result) => rules::check(&witness, &result)?,
                    None => stood_still.push(witness),
                }
            }
            if stood_still.is_empty() {
                played.attempts += self.witness.jobs().map(|job| job.attempts()).sum::<u64>();
                match self.mend().await {
                    Some(mended) => (jobs, played.mended) = (mended, played.mended.max(1)),
                    None => break,
                }
                continue;
            }
            // Somebody retries these jobs, in good weather.
            played.retried += stood_still.len() as u64;
            jobs = stood_still;
            self.calm_from = Instant::now();
            self.begin_round(&jobs).await;
        }
        played.lives = self.lives.load(Ordering::SeqCst);
        played.time = began.elapsed();
        Ok(played)
    }

    /// Begins another round of jobs.
    async fn begin_round(&mut self, jobs: &[Arc<JobWitness>]) {
        self.play += 1;
        let user = self.user();
        for job in jobs {
            let mut reducer = self.reducer(&job.spec, &user).await.expect("it is calm");
            reducer
                .begin_round(RoundRequest::ALL, &RoundScript::default(), false, |_| Ok(()))
                .await
                .expect("it is calm");
            let target = self.target(&user);
            target.job(&job.spec.job_id).forget_published().await.expect("it is calm");
            target.mark_open(&job.spec.job_id).await.expect("it is calm");
        }
    }

    /// Lets users correct the scripts of jobs that lack something, and retry them; a canceled round is followed by another.
    /// `None`: no job lacks anything.
    async fn mend(&mut self) -> Option<Vec<Arc<JobWitness>>> {
        let is_canceled = |job: &JobWitness| {
            job.result().is_some_and(|result| result.state == JobState::Canceled)
        };
        let lacks = |job: &&Arc<JobWitness>| {
            job.job.can_be_mended() || job.job.is_mended && is_canceled(job)
        };
        let mended: Vec<_> = self.witness.jobs().filter(lacks).map(|job| job.mended()).collect();
        if mended.is_empty() {
            return None;
        }
        self.witness = Arc::new(Witness::new(mended, &self.weather));
        self.calm_from = Instant::now();
        let jobs: Vec<_> = self.witness.jobs().cloned().collect();
        self.begin_round(&jobs).await;
        self.calm_from = Instant::now() + self.weather.ends;
        self.first_play = self.play;
        Some(jobs)
    }

    /// Plays until reducers have written how each job ended. Returns no result of a job that stands still because
    /// messages have vanished.
    async fn play_once(
        &self,
        jobs: &[Arc<JobWitness>],
    ) -> Result<Vec<Option<JobResult>>, Violation> {
        let (began, mut roles) = (Instant::now(), JoinSet::new());
        for (role, count) in
            [(Role::Node, self.weather.nodes), (Role::Reducer, self.weather.reducers)]
        {
            for number in 0..count {
                roles.spawn(self.clone().keep_alive(role.clone(), number));
            }
        }
        for (job, number) in jobs.iter().zip(0..) {
            roles.spawn(self.clone().submit(job.clone(), number));
        }
        let ended = async {
            while !jobs.iter().all(|job| job.result().is_some())
                && self.witness.violation().is_none()
            {
                sleep(Duration::from_secs(1)).await;
            }
            sleep(AFTERMATH).await;
        };
        let attempts = || jobs.iter().map(|job| job.attempts()).sum::<u64>();
        let (mut ended, mut has_ended, mut before) = (std::pin::pin!(ended), false, None);
        while !has_ended
            && before.replace(attempts()) != Some(attempts())
            && began.elapsed() < LONGEST
        {
            has_ended = timeout(PATIENCE, &mut ended).await.is_ok();
        }
        let leftovers = if has_ended { self.tidied().await } else { None };
        roles.abort_all();
        while roles.join_next().await.is_some() {}
        if let Some(violation) = self.witness.violation() {
            return Err(violation);
        }
        let results: Vec<_> = jobs.iter().map(|job| job.result()).collect();
        for (job, result) in jobs.iter().zip(&results) {
            if result.is_none() {
                let detail = format!("{} still runs", job.spec.job_id);
                return Err(Violation { rule: "every job ends", detail });
            }
        }
        match leftovers {
            Some(detail) => Err(Violation { rule: "nothing is left of an ended job", detail }),
            None => Ok(results),
        }
    }

    /// Waits until no queue, node or marker has anything of the jobs, which have ended; otherwise returns what is left.
    async fn tidied(&self) -> Option<String> {
        sleep_until(self.calm_from).await;
        let until = Instant::now() + TIDY_TIME;
        loop {
            let leftovers = self.leftovers().await?;
            if Instant::now() >= until || self.witness.violation().is_some() {
                return Some(leftovers);
            }
            sleep(Duration::from_secs(5)).await;
        }
    }

    async fn leftovers(&self) -> Option<String> {
        let depth = self.dead_letters.depth().await.expect("memory answers");
        if depth != Depth::default() {
            return Some(format!("the queue of dead letters has {depth:?}"));
        }
        let target = self.target(&self.user());
        let open = target.open_ids().await.expect("memory answers");
        if !open.is_empty() {
            return Some(format!("these jobs are open: {open:?}"));
        }
        let (queues, noted) = (self.broker.names(), target.queues().await.expect("memory answers"));
        if !queues.is_empty() || !noted.is_empty() {
            return Some(format!("these queues exist: {queues:?}, and these are noted: {noted:?}"));
        }
        let scheduled = self.witness.scheduled();
        if !scheduled.is_empty() {
            return Some(format!("the schedule has {scheduled:?}"));
        }
        self.witness.node_with_jobs()
    }

    /// For a user, nothing goes wrong.
    fn user(&self) -> Actor {
        Actor::new("User".to_owned(), self.scenario.seed, Weather::default(), self.calm_from)
    }

    /// A user submits a job, and may cancel it. A retry only makes the rest of its plan.
    async fn submit(self, job: Arc<JobWitness>, number: u64) {
        let user = self.user();
        let target = self.target(&user);
        let store = target.job(&job.spec.job_id);
        let canceled_after = job.job.canceled_after.filter(|_| self.play == self.first_play);
        if self.play == 0 {
            sleep(job.job.begins).await;
            store.put_spec(&job.spec).await.expect("memory takes it");
            target.mark_open(&job.spec.job_id).await.expect("memory takes it");
            self.control.send(vec![Message::new("a job")]).await.expect("memory takes it");
        }
        let canceled = async {
            let Some(after) = canceled_after else { return };
            sleep(after).await;
            if job.result().is_none() {
                store.request_cancel("by its user").await.expect("memory takes it");
            }
        };
        tokio::join!(self.clone().keep_alive(Role::Partitioner(job.clone()), number), canceled);
    }

    /// Plays one life of a role after the other, until the roles are aborted.
    async fn keep_alive(self, role: Role, number: u64) {
        let name = match &role {
            Role::Partitioner(job) => format!("Partitioner of {}", job.spec.job_id),
            Role::Node => "Node".to_owned(),
            Role::Reducer => "Reducer".to_owned(),
        };
        for life in 0u64.. {
            self.lives.fetch_add(1, Ordering::SeqCst);
            let name = format!("{name}-{number}-{}-{life}", self.play);
            let mut weather = self.weather.clone();
            weather.drives_time &= matches!(role, Role::Partitioner(_));
            let actor = Actor::new(name, self.scenario.seed, weather, self.calm_from);
            let (world, own, own_role) = (self.clone(), actor.clone(), role.clone());
            let mut living = JoinSet::new();
            living.spawn(async move {
                match own_role {
                    Role::Partitioner(job) => world.plan(&job.spec, &own).await,
                    Role::Node => world.work(&own, number).await,
                    Role::Reducer => world.reduce(&own).await,
                }
            });
            tokio::select! {
                biased;
                done = living.join_next() => {
                    if let Some(Err(error)) = done
                        && error.is_panic()
                    {
                        self.witness.report("no role panics", format!("{}: {error}", actor.name()));
                    }
                    if matches!(role, Role::Partitioner(_)) {
                        return;
                    }
                }
                () = self.death(&role, &actor) => actor.kill(),
            }
            living.abort_all();
            while living.join_next().await.is_some() {}
            self.witness.died(actor.name());
            sleep(actor.dice().between(Duration::from_secs(1), Duration::from_secs(20))).await;
        }
    }

    /// Waits for the death of a role, which comes sooner or later while the weather lasts. Before that the role may
    /// freeze for a while.
    async fn death(&self, role: &Role, actor: &Actor) {
        let is_node = matches!(role, Role::Node);
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
                if is_node && actor.happens(|weather| weather.drain) {
                    // The node ends by itself.
                    actor.tell(StopRequest::Drain);
                    continue;
                }
                if is_node && actor.happens(|weather| weather.spot) {
                    actor.tell(StopRequest::SpotNotice);
                    sleep(self.weather.spot_time).await;
                    return;
                }
                if !actor.happens(|weather| weather.freeze) {
                    return;
                }
                actor.freeze(actor.dice().time(self.weather.freeze_max));
            }
        };
        // Or its own mini-batch kills it.
        tokio::select! { biased; () = actor.dead() => {} () = crashes => {} }
    }

    fn broker(&self, actor: &Actor, sides: [Side; 2]) -> Arc<dyn Broker> {
        let is_unlimited =
            self.weather.jobs_max == 0 || self.scenario.bug == Some(Bug::IgnoresQuotas);
        Arc::new(BrokerLayer {
            inner: self.broker.clone(),
            actor: actor.clone(),
            witness: self.witness.clone(),
            counts: self.counts.clone(),
            bug: self.scenario.bug,
            sides,
            jobs_max: if is_unlimited { u32::MAX } else { self.weather.jobs_max },
        })
    }

    fn target(&self, actor: &Actor) -> TargetStore {
        let layer = StoreLayer {
            inner: self.memory.clone(),
            actor: actor.clone(),
            witness: self.witness.clone(),
            counts: self.counts.clone(),
            bug: self.scenario.bug,
            believed: Arc::default(),
            open: Arc::default(),
            thread: self.thread,
        };
        let now = self.memory.now();
        TargetStore::new(Arc::new(layer), object_store::path::Path::default()).with_time(now)
    }

    async fn work(&self, actor: &Actor, number: u64) {
        let node = Node {
            actor: actor.clone(),
            witness: self.witness.clone(),
            target: self.target(actor),
            broker: self.broker(actor, [Side::NodeTasks, Side::NodeResults]),
            bug: self.scenario.bug,
            accidents: Arc::default(),
            offer: self.offer(number),
            gpus: GpusInUse::default(),
            node_lock: NodeLock::new(self.folder.join(format!("machine-{number}"))),
            idle_since: Arc::default(),
        };
        node.live().await;
    }

    fn offer(&self, number: u64) -> Offer {
        let zone = ZONES[number as usize % ZONES.len()];
        // Where nodes have no labels to choose from, all have the one that jobs may require.
        let zone = if self.weather.has_labels { zone } else { ZONES[0] };
        let labels = [(LABEL.to_owned(), zone.to_owned())].into();
        let gpus = self.witness.jobs().map(|job| job.job.gpus).max().unwrap_or(0);
        Offer { labels, gpus, processors: SLOTS, ..Offer::default() }
    }

    async fn reducer(&self, spec: &JobSpec, actor: &Actor) -> anyhow::Result<Reducer> {
        let (job, options) = (self.target(actor).job(&spec.job_id), self.reducer_options(actor));
        Reducer::open(job, Arc::new(Nowhere), options).await
    }

    fn reducer_options(&self, actor: &Actor) -> Options {
        let (witness, bug) = (self.witness.clone(), self.scenario.bug);
        Options {
            writer: actor.name().to_owned(),
            visibility: VISIBILITY,
            reports: false,
            progress_interval: self.weather.pace.progress,
            silence: self.weather.pace.silence,
            crash: Arc::new(move |at| {
                for job in witness.jobs() {
                    if bug == Some(Bug::WritesInPlace) && at == CrashPoint::DuringOutput {
                        std::fs::write(&job.output, "row of").expect("the folder is there");
                    }
                    job.look_at_output();
                }
            }),
            ..Options::shared()
        }
    }

    /// Serves every open job of the target; sometimes the process is asked to stop, and restarts.
    async fn reduce(&self, actor: &Actor) {
        loop {
            let fleet = Fleet {
                target: self.target(actor),
                broker: self.broker(actor, [Side::ReducerTasks, Side::ReducerResults]),
                control: self.control.clone(),
                dead_letters: self.dead_letters.clone(),
                publisher: Arc::new(Publishing { world: self.clone(), actor: actor.clone() }),
                options: FleetOptions {
                    reducer: self.reducer_options(actor),
                    ..FleetOptions::default()
                },
            };
            let stop = CancellationToken::new();
            let served = fleet.run(stop.clone());
            let is_stopped = actor.happens(|weather| weather.stop);
            let asked = async {
                if is_stopped {
                    sleep(actor.dice().between(Duration::from_secs(1), Duration::from_secs(120)))
                        .await;
                    stop.cancel();
                }
                std::future::pending::<()>().await;
            };
            tokio::select! { biased; _ = served => {} () = asked => {} }
            // A supervisor restarts it.
            sleep(Duration::from_secs(1)).await;
        }
    }
}
