//! A simulated node: executes the actions of its roster. Demultiplexer and errands are the production code's; agents are
//! simulated.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use protocol::{Descriptor, JobSpec};
use queue::{Arrival, Demultiplexer, Queue, Receipt, View};
use storage::{JobStore, TargetStore};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep};
use worker::parts::{Errands, demultiplexer_options, keep_beating, let_go};
use worker::roster::{Action, Config, Errand, Event, Roster, Standing, Step, Unprovisioned, VisitId};
use worker::{Stop, StopSender};

use crate::actor::{Actor, Told};
use crate::agent::{Agent, LEASE_STEP, PATIENCE};
use crate::queue_layer::QueueLayer;
use crate::weather::Bug;
use crate::witness::Witness;

/// Longer than in production: looking around is most of the work of the simulation.
const TICK: Duration = Duration::from_secs(4);
const WATCH_PERIOD: Duration = Duration::from_secs(10);
/// Longer than in production, as reducers here are more patient.
const BEAT_PERIOD: Duration = Duration::from_secs(30);
/// Failures to provision a job in one life of a node: fewer than it reports to the job.
const ACCIDENTS_MAX: u32 = 2;

/// What one life of a node works with.
pub(crate) struct Node {
    pub actor: Actor,
    pub witness: Arc<Witness>,
    pub target: TargetStore,
    pub tasks: Arc<QueueLayer>,
    pub results: Arc<QueueLayer>,
    pub bug: Option<Bug>,
}

/// What a task reports.
enum Report {
    Event(Event),
    Worked(VisitId, Option<Vec<(Receipt, Descriptor)>>),
}

/// What the loop reacts to.
enum Occurred {
    Told(Told),
    Arrival(Arrival),
    Report(Result<Report, JoinError>),
    Tick,
}

/// What a visit holds.
struct Resources {
    errands: Errands,
    spec: Option<Arc<JobSpec>>,
    tasks: Vec<AbortHandle>,
    agent: Option<(Arc<View>, StopSender)>,
    held: Vec<(Receipt, Descriptor)>,
}

/// The counterpart of the executor of `worker::Node`.
struct Executor {
    node: Node,
    roster: Roster,
    demultiplexer: Arc<Demultiplexer>,
    arrivals: mpsc::Receiver<Arrival>,
    tasks: JoinSet<Report>,
    visits: BTreeMap<VisitId, Resources>,
    accidents: u32,
}

impl Node {
    /// Works until the stop is requested.
    pub async fn live(self) {
        let actor = self.actor.clone();
        let mut told = std::pin::pin!(actor.told());
        let mut has_heard = false;
        let mut executor = Executor::start(self);
        executor.execute().await;
        while !executor.roster.is_over() {
            let occurred = tokio::select! {
                biased;
                told = &mut told, if !has_heard => {
                    has_heard = true;
                    Occurred::Told(told)
                }
                Some(report) = executor.tasks.join_next() => Occurred::Report(report),
                Some(arrival) = executor.arrivals.recv() => Occurred::Arrival(arrival),
                () = sleep(TICK) => Occurred::Tick,
            };
            actor.alive().await;
            executor.occurred(occurred).await;
            executor.node.witness.visits(actor.name(), executor.roster.jobs());
        }
        let _ = executor.demultiplexer.drain().await;
    }
}

impl Executor {
    fn start(node: Node) -> Self {
        let (demultiplexer, arrivals) = Demultiplexer::start(node.tasks.clone(), demultiplexer_options(LEASE_STEP));
        let weather = node.actor.weather();
        let config = Config {
            node: node.actor.name().to_owned(),
            idle_wish: 2,
            delay_max: node.tasks.limits().delay_max,
            idle_exit: None,
            job_idle: weather.job_idle,
            watch_period: WATCH_PERIOD,
            seat_period: Duration::from_secs(20),
            seat_lapse: Duration::from_secs(60),
            rest: Duration::from_secs(60),
            notice_time: weather.spot_time.saturating_sub(Duration::from_secs(20)),
        };
        Self {
            roster: Roster::new(config, Instant::now()),
            demultiplexer: Arc::new(demultiplexer),
            arrivals,
            tasks: JoinSet::new(),
            visits: BTreeMap::new(),
            accidents: 0,
            node,
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.node.bug == Some(bug)
    }

    // ---- events ------------------------------------------------------------------------------------------------

    async fn occurred(&mut self, occurred: Occurred) {
        let event = match occurred {
            Occurred::Told(Told::Drain) => Event::Stop(Stop::Drain),
            Occurred::Told(Told::SpotNotice) if self.has(Bug::IgnoresSpotNotices) => return,
            Occurred::Told(Told::SpotNotice) => Event::SpotNotice,
            Occurred::Arrival(Arrival::NewGroup(job_id)) => Event::Arrived(job_id),
            Occurred::Arrival(other) => {
                return self.node.witness.report("a node can read every message", format!("{other:?}"));
            }
            Occurred::Report(Ok(Report::Event(event))) => event,
            Occurred::Report(Ok(Report::Worked(visit, held))) => {
                let held_count = held.as_ref().map(Vec::len);
                if let Some(resources) = self.visits.get_mut(&visit) {
                    resources.held = held.unwrap_or_default();
                }
                Event::Worked { visit, held: held_count }
            }
            Occurred::Report(Err(error)) => {
                if error.is_panic() {
                    self.node.witness.report("no role panics", format!("{}: {error}", self.node.actor.name()));
                }
                return;
            }
            Occurred::Tick => {
                let quiet = |(visit, resources): (&VisitId, &Resources)| {
                    Some((*visit, resources.agent.as_ref()?.0.quiet_since()))
                };
                Event::Tick(self.visits.iter().filter_map(quiet).collect())
            }
        };
        self.roster.handle(event, Instant::now());
        self.execute().await;
    }

    // ---- actions -----------------------------------------------------------------------------------------------

    async fn execute(&mut self) {
        while let Some(action) = self.roster.next_action() {
            self.perform(action).await;
        }
    }

    async fn perform(&mut self, action: Action) {
        match action {
            Action::Open { visit, job_id } => self.open(visit, job_id),
            Action::Run { visit, errand } => self.run(visit, errand),
            Action::Provision { visit, spec } => self.provision(visit, *spec),
            Action::Work(visit) => self.work(visit),
            Action::StopAgent { visit, stop } => {
                if let Some((_, agent)) = &self.visits[&visit].agent {
                    agent.raise(stop);
                }
            }
            Action::LetGo { visit, is_over } => self.let_go(visit, is_over),
            Action::CleanUp(visit) => {
                self.spawn(visit, async move { Report::Event(Event::Done { visit, step: Step::CleanUp }) });
            }
            Action::Close(visit) => {
                let Some(resources) = self.visits.remove(&visit) else { return };
                resources.tasks.iter().for_each(AbortHandle::abort);
                self.demultiplexer.close(&resources.errands.job_id);
            }
            Action::Pause(time) => self.demultiplexer.pause(time),
            Action::Wish(messages) => self.demultiplexer.set_idle_wish(messages),
            Action::Drain => drop(self.demultiplexer.drain().await),
            Action::Log { job_id, message, .. } => {
                tracing::info!(job.id = job_id, node.id = self.node.actor.name(), "{message}");
            }
        }
    }

    fn open(&mut self, visit: VisitId, job_id: String) {
        let errands = Errands {
            visit,
            node: self.node.actor.name().to_owned(),
            store: self.node.target.job(&job_id),
            demultiplexer: self.demultiplexer.clone(),
            results: self.node.results.clone(),
            patience: PATIENCE,
            job_id,
        };
        let resources = Resources { errands, spec: None, tasks: Vec::new(), agent: None, held: Vec::new() };
        self.visits.insert(visit, resources);
    }

    fn run(&mut self, visit: VisitId, errand: Errand) {
        let errands = self.visits[&visit].errands.clone();
        let skips = match errand {
            Errand::GiveBack { .. } => self.has(Bug::KeepsWhatItTurnsAway),
            Errand::Watch { .. } => self.has(Bug::StaysOnEndedJobs),
            _ => false,
        };
        let skipped = match errand {
            Errand::GiveBack { .. } => Event::GivenBack { visit, is_quiet: false },
            _ => Event::Watched { visit, standing: Standing::Open },
        };
        self.spawn(visit, async move { Report::Event(if skips { skipped } else { errands.run(errand).await }) });
    }

    fn provision(&mut self, visit: VisitId, spec: JobSpec) {
        let actor = self.node.actor.clone();
        let fails = self.accidents < ACCIDENTS_MAX && actor.happens(|weather| weather.accident / 2.0);
        self.accidents += u32::from(fails);
        let time = actor.dice().time(actor.weather().provision_max);
        let Some(resources) = self.visits.get_mut(&visit) else { return };
        resources.spec = Some(Arc::new(spec));
        let store = resources.errands.store.clone();
        let reason = "bad weather".to_owned();
        let result = if fails { Err(Unprovisioned { reason, may_pass: true }) } else { Ok(()) };
        self.spawn(visit, async move {
            attended(&store, actor.name(), sleep(time)).await;
            Report::Event(Event::Provisioned { visit, result })
        });
    }

    fn work(&mut self, visit: VisitId) {
        let Node { actor, witness, results, bug, .. } = &self.node;
        let Some(resources) = self.visits.get_mut(&visit) else { return };
        let Errands { job_id, store, .. } = resources.errands.clone();
        let tasks = self.demultiplexer.view(&job_id);
        let stop = StopSender::default();
        let agent = Agent {
            actor: actor.clone(),
            witness: witness.of(&job_id).clone(),
            store: store.clone(),
            tasks: tasks.clone(),
            results: results.clone(),
            spec: resources.spec.clone().expect("it was provisioned"),
            bug: *bug,
        };
        let (actor, stopped) = (actor.clone(), stop.subscribe());
        resources.agent = Some((tasks, stop));
        self.spawn(
            visit,
            async move { Report::Worked(visit, attended(&store, actor.name(), agent.work(stopped)).await) },
        );
    }

    fn let_go(&mut self, visit: VisitId, is_over: bool) {
        let Some(resources) = self.visits.get_mut(&visit) else { return };
        let (held, job_id) = (std::mem::take(&mut resources.held), resources.errands.job_id.clone());
        let Some((view, _)) = resources.agent.clone() else { return };
        if !is_over {
            let witness = self.node.witness.of(&job_id);
            held.iter().for_each(|(receipt, descriptor)| witness.returned(Some(receipt), descriptor));
        }
        self.spawn(visit, async move {
            let _ = let_go(&view, &job_id, held, is_over, PATIENCE).await;
            Report::Event(Event::Done { visit, step: Step::LetGo })
        });
    }

    fn spawn(&mut self, visit: VisitId, task: impl Future<Output = Report> + Send + 'static) {
        let task = self.tasks.spawn(task);
        if let Some(resources) = self.visits.get_mut(&visit) {
            resources.tasks.retain(|task| !task.is_finished());
            resources.tasks.push(task);
        }
    }
}

/// Waits for work on a job, with signs of life meanwhile.
async fn attended<T>(store: &JobStore, node: &str, work: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        done = work => done,
        () = keep_beating(store, node, BEAT_PERIOD) => unreachable!("a node gives signs of life until it leaves"),
    }
}
