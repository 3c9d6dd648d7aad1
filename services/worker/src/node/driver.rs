//! Executes the decisions of [`Allocations`], and reports events to it. A [`NodeBackend`] does the
//! work that differs in a simulated node.
//!
//! Each step of a visit is a task; it returns the event that answers it. One loop waits for whatever comes first: a
//! schedule, an answer, time, a request to stop.
//!
//! A panic while the node prepares a job or works on it counts as a failure of this job on this
//! node, and the node goes on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use protocol::{Activity, JobSpec, LimitNeed, ResultEvent, Schedule};
use queue::{Broker, JobQueues, LeaseClock, Queue};
use storage::{ScheduleFollower, TargetStore};
use telemetry::{Health, metrics};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::Ended;
use super::access::{JobAccess, STORE_WAIT_MAX, UnfinishedMiniBatches, look_up, over};
use super::agent_link::AgentLink;
use super::allocations::{
    Action, AgentFailed, Allocations, Config, Event, NoAnswer, ProvisioningFailure,
    ProvisioningObstacle, Step, VisitId,
};
use super::pause::Pauses;
use super::registration::{Entry, Registration};
use crate::agent::Timing;
use crate::announce::{return_mini_batches, tell};
use crate::limit::{self, Limiter, SharedLimiter};
use crate::pressure;
use crate::scheduler::AgentAllocation;
use crate::stop::{Stop, StopSender};

/// How often a node looks for the next schedule: one request, which costs a dollar a month.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause after the store did not answer.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Provisions jobs and runs their agents.
pub trait NodeBackend: Clone + Send + 'static {
    /// A job that can start.
    type Ready: Send + 'static;
    /// The logs and folders that an agent leaves for the clean-up.
    type Remains: Send + 'static;

    /// Provisions a job.
    fn provision(
        self,
        job: JobAccess,
        spec: JobSpec,
    ) -> impl Future<Output = Result<Self::Ready, ProvisioningFailure>> + Send;

    /// Works on a job until its agent ends. Returns the mini-batches that it held, or why it has failed.
    fn work(
        self,
        job: JobAccess,
        tasks: Arc<dyn Queue>,
        ready: Self::Ready,
        stop: watch::Receiver<Stop>,
        agent_link: AgentLink,
    ) -> impl Future<Output = (anyhow::Result<UnfinishedMiniBatches>, Self::Remains)> + Send;

    /// Uploads the last logs, and removes the folders of the job.
    fn clean_up(remains: Self::Remains) -> impl Future<Output = ()> + Send;

    /// Returns whether the memory of the node is short.
    fn memory_is_short(&self) -> bool {
        pressure::is_short()
    }

    /// Called before the node handles an event.
    fn handles(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Called after the node has handled an event. `has_looked`: the event was a tick.
    fn handled(&self, _allocations: &Allocations, _has_looked: bool) {}
}

/// A node that is about to work.
pub struct Driver<B: NodeBackend> {
    pub backend: B,
    pub config: Config,
    pub target: TargetStore,
    pub broker: Arc<dyn Broker>,
    pub timing: Timing,
    /// Time between two ticks.
    pub tick: Duration,
    /// Time between two checks of memory pressure.
    pub memory_every: Duration,
    /// Where the node shows that it makes progress.
    pub health: Health,
}

impl<B: NodeBackend> Driver<B> {
    /// Works until `stop` says so, the node is idle for too long, or the cloud reclaims the
    /// machine. Returns all mini-batches to the queues.
    pub async fn run(
        self,
        mut stop: watch::Receiver<Stop>,
        spot_notice: impl Future<Output = String>,
    ) -> Ended {
        let Self { backend, config, target, broker, timing, tick, memory_every, health } = self;
        let mut spot_notice = std::pin::pin!(spot_notice);
        let mut visits = Visits {
            backend: backend.clone(),
            node: config.node.clone(),
            target: target.clone(),
            broker,
            patience: timing.patience,
            tasks: JoinSet::new(),
            reports: mpsc::unbounded_channel(),
            visits: BTreeMap::new(),
        };
        // Others see the entry for longer, so a share is not used twice.
        let limits_last = config.entry_lasts * 3 / 4;
        let mut allocations = Allocations::new(config, Instant::now());
        let states = watch::Sender::new(Entry::of(&allocations, [], []));
        let registration =
            Registration::start(target.clone(), states.subscribe(), LeaseClock::System);
        let (mut schedules, _following) = follow(target);
        let mut pauses = Pauses::watch(LeaseClock::System);
        let (mut tick, mut memory) = (every(tick), every(memory_every));
        let alive = health.coming_round("the loop of the node");
        let first = *stop.borrow_and_update();
        allocations.handle(Event::Stop(first), Instant::now());
        while !allocations.is_over() {
            alive.beat();
            metrics().jobs_open.set(allocations.jobs() as i64);
            let event = tokio::select! {
                // Rare events come first, so that no number of others delays them.
                biased;
                stop = Stop::next(&mut stop) => Event::Stop(stop),
                notice = &mut spot_notice, if !allocations.is_stopping() => {
                    tracing::warn!("the cloud will reclaim this machine ({notice}): draining");
                    Event::SpotNotice
                }
                // Its entry in the store may be old now, which the tick reports.
                _ = pauses.next() => Event::Tick { entry_age: registration.age() },
                _ = memory.tick() => Event::MemoryIsShort(backend.memory_is_short()),
                _ = tick.tick() => Event::Tick { entry_age: registration.age() },
                Ok(()) = schedules.changed() => Event::Scheduled(Box::new(schedules.borrow_and_update().clone())),
                event = visits.next() => event,
            };
            backend.handles().await;
            let has_looked = matches!(event, Event::Tick { .. });
            if let Event::Scheduled(schedule) = &event {
                visits.set_limits(schedule);
            }
            allocations.handle(event, Instant::now());
            while let Some(action) = allocations.next_action() {
                visits.perform(action);
            }
            backend.handled(&allocations, has_looked);
            visits.renew_limits(registration.renewed_at().map(|at| at + limits_last));
            let entry = Entry::of(&allocations, visits.limit_needs(), visits.activities());
            states.send_if_modified(|known| {
                let is_new = *known != entry;
                *known = entry;
                is_new
            });
        }
        metrics().jobs_open.set(0);
        registration.remove().await;
        allocations.ended()
    }
}

/// Ticks at this period, or later.
fn every(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Follows the schedules of a target until the handle is dropped.
fn follow(target: TargetStore) -> (watch::Receiver<Schedule>, AbortOnDropHandle<()>) {
    let (sender, schedules) = watch::channel(Schedule::default());
    let mut follower = ScheduleFollower::new(target);
    let following = async move {
        let mut is_told = false;
        loop {
            let pause = match follower.look().await {
                Ok(is_new) => {
                    is_told = false;
                    if is_new {
                        sender.send_replace(follower.known().clone());
                    }
                    LOOK_EVERY
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::warn!(
                            "cannot look for the next schedule, working by the last one: {error:#}"
                        );
                    }
                    LOOK_AGAIN
                }
            };
            sleep(pause).await;
        }
    };
    (schedules, AbortOnDropHandle::new(tokio::spawn(following)))
}

/// The resources of a visit.
struct Resources<B: NodeBackend> {
    job_id: String,
    /// Name of its queues.
    name: String,
    queues: Option<JobQueues>,
    tasks: Vec<AbortHandle>,
    ready: Option<B::Ready>,
    stop: StopSender,
    allocation: watch::Sender<AgentAllocation>,
    limiter: Option<SharedLimiter>,
    activity: watch::Sender<Activity>,
    held: UnfinishedMiniBatches,
    remains: Option<B::Remains>,
}

enum Report<B: NodeBackend> {
    Event(Event),
    Opened(VisitId, JobQueues),
    Provisioned(VisitId, Result<B::Ready, ProvisioningFailure>),
    /// `None`: the agent has panicked.
    Worked(VisitId, anyhow::Result<UnfinishedMiniBatches>, Option<B::Remains>),
}

/// The visits of a node, and the tasks that run for them.
struct Visits<B: NodeBackend> {
    backend: B,
    node: String,
    target: TargetStore,
    broker: Arc<dyn Broker>,
    patience: Duration,
    tasks: JoinSet<Report<B>>,
    /// The reports of agents.
    reports: (mpsc::UnboundedSender<Event>, mpsc::UnboundedReceiver<Event>),
    visits: BTreeMap<VisitId, Resources<B>>,
}

impl<B: NodeBackend> Visits<B> {
    /// Waits for the next event. Cancel safe.
    async fn next(&mut self) -> Event {
        loop {
            tokio::select! {
                biased;
                Some(report) = self.tasks.join_next() => match report {
                    Ok(report) => return self.event_of(report),
                    // Its visit has ended.
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => tracing::error!("a task of the node panicked: {error}"),
                },
                Some(event) = self.reports.1.recv() => return event,
                else => std::future::pending().await,
            }
        }
    }

    fn event_of(&mut self, report: Report<B>) -> Event {
        match report {
            Report::Event(event) => event,
            Report::Opened(visit, queues) => {
                if let Some(resources) = self.visits.get_mut(&visit) {
                    resources.queues = Some(queues);
                }
                Event::Opened { visit, opened: Ok(Some(())) }
            }
            Report::Provisioned(visit, provisioned) => {
                let result = provisioned.map(|ready| {
                    if let Some(resources) = self.visits.get_mut(&visit) {
                        resources.ready = Some(ready);
                    }
                });
                Event::Provisioned { visit, result }
            }
            Report::Worked(visit, worked, remains) => {
                let (worked, held) = match worked {
                    Ok(held) => (Ok(held.len()), held),
                    Err(error) => (Err(failure(&error)), UnfinishedMiniBatches::new()),
                };
                if let Some(resources) = self.visits.get_mut(&visit) {
                    (resources.held, resources.remains) = (held, remains);
                    resources.limiter = None;
                }
                Event::Worked { visit, worked }
            }
        }
    }

    /// Applies the shares of limits that a schedule gives this node.
    fn set_limits(&self, schedule: &Schedule) {
        for (job_id, limiter) in self.limiters() {
            let (own, others) = schedule.limit_share(job_id, &self.node);
            let (id, parts) = own.map_or((0, 0), |share| (share.id, share.parts));
            limiter.lock().expect("no holder panics").set_share(id, parts, others, limit::now());
        }
    }

    /// Sets until when the shares of the limiters are valid.
    fn renew_limits(&self, valid_until: Option<Instant>) {
        let Some(valid_until) = valid_until else { return };
        for (_, limiter) in self.limiters() {
            limiter.lock().expect("no holder panics").renew(valid_until.into_std(), limit::now());
        }
    }

    fn limit_needs(&self) -> impl Iterator<Item = (String, LimitNeed)> {
        self.limiters().map(|(job_id, limiter)| {
            (job_id.to_owned(), limiter.lock().expect("no holder panics").need(limit::now()))
        })
    }

    /// Returns which mini-batches of each job the node has.
    fn activities(&self) -> impl Iterator<Item = (String, Activity)> {
        self.visits
            .values()
            .map(|resources| (resources.job_id.clone(), resources.activity.borrow().clone()))
    }

    fn limiters(&self) -> impl Iterator<Item = (&str, &SharedLimiter)> {
        self.visits
            .values()
            .filter_map(|resources| Some((&*resources.job_id, resources.limiter.as_ref()?)))
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Open { visit, job_id, queues } => {
                let resources = Resources {
                    job_id,
                    name: queues,
                    queues: None,
                    tasks: Vec::new(),
                    ready: None,
                    stop: StopSender::default(),
                    allocation: watch::Sender::default(),
                    limiter: None,
                    activity: watch::Sender::default(),
                    held: UnfinishedMiniBatches::new(),
                    remains: None,
                };
                self.visits.insert(visit, resources);
            }
            Action::Do { visit, step } => self.begin(visit, step),
            Action::Allocate { visit, allocation } => {
                if let Some(resources) = self.visits.get(&visit) {
                    resources.allocation.send_replace(allocation);
                }
            }
            Action::StopAgent { visit, stop } => {
                if let Some(resources) = self.visits.get(&visit) {
                    resources.stop.raise(stop);
                }
            }
            Action::Close(visit) => {
                let Some(resources) = self.visits.remove(&visit) else { return };
                resources.tasks.iter().for_each(AbortHandle::abort);
            }
            Action::Log { job_id, is_warning: true, message } => {
                tracing::warn!(job.id = job_id.as_deref(), node.id = self.node, "{message}");
            }
            Action::Log { job_id, is_warning: false, message } => {
                tracing::info!(job.id = job_id.as_deref(), node.id = self.node, "{message}");
            }
        }
    }

    fn begin(&mut self, visit: VisitId, step: Step) {
        let Some(resources) = self.visits.get_mut(&visit) else { return };
        let (job_id, node) = (resources.job_id.clone(), self.node.clone());
        let store = self.target.job(&job_id);
        let done = move || Report::Event(Event::Done { visit });
        match step {
            Step::LookUp => {
                let looking = async move {
                    let found = look_up(&store).await.map_err(|error| {
                        tracing::warn!(job.id = job_id, "cannot look the job up: {error:#}");
                        NoAnswer
                    });
                    Report::Event(Event::LookedUp { visit, found })
                };
                let unanswered =
                    move |_| Report::Event(Event::LookedUp { visit, found: Err(NoAnswer) });
                self.spawn(visit, looking, unanswered);
            }
            Step::OpenQueues => {
                let (broker, name) = (self.broker.clone(), resources.name.clone());
                let opening = async move {
                    match broker.open(&name).await {
                        Ok(queues) => Report::Opened(visit, queues),
                        Err(queue::Error::Absent { .. }) => {
                            Report::Event(Event::Opened { visit, opened: Ok(None) })
                        }
                        Err(error) => {
                            tracing::warn!(
                                job.id = job_id,
                                "cannot open the queues of the job: {error:#}"
                            );
                            Report::Event(Event::Opened { visit, opened: Err(NoAnswer) })
                        }
                    }
                };
                let unanswered =
                    move |_| Report::Event(Event::Opened { visit, opened: Err(NoAnswer) });
                self.spawn(visit, opening, unanswered);
            }
            Step::Provision(spec) => {
                resources.limiter = limiter(&spec);
                let Some(access) = self.access(visit) else { return };
                let provisioning = self.backend.clone().provision(access, *spec);
                let failed = move |panic: JoinError| {
                    let reason = format!("the worker panicked while it prepared the job: {panic}");
                    Report::Provisioned(
                        visit,
                        Err(ProvisioningFailure {
                            reason,
                            obstacle: ProvisioningObstacle::Lasting,
                        }),
                    )
                };
                self.spawn(
                    visit,
                    async move { Report::Provisioned(visit, provisioning.await) },
                    failed,
                );
            }
            Step::Work => self.work(visit),
            Step::IsOver => {
                let asking = async move {
                    let over = timeout(STORE_WAIT_MAX, over(&store)).await;
                    Report::Event(Event::Looked {
                        visit,
                        over: over.ok().and_then(Result::ok).flatten(),
                    })
                };
                self.spawn(visit, asking, move |_| {
                    Report::Event(Event::Looked { visit, over: None })
                });
            }
            Step::Tell(reason) => {
                let (queues, patience) = (resources.queues.clone(), self.patience);
                let telling = async move {
                    let cause = Some(format!("node {node} cannot work on the job: {reason}"));
                    let event = ResultEvent::NodeStopped { node, cause };
                    if let Some(queues) = queues
                        && let Err(error) = tell(&*queues.results, &job_id, &event, patience).await
                    {
                        tracing::warn!(
                            job.id = job_id,
                            "cannot tell the reducer why the job cannot start: {error:#}"
                        );
                    }
                    done()
                };
                self.spawn(visit, telling, move |_| done());
            }
            Step::LetGo => {
                let (queues, patience) = (resources.queues.clone(), self.patience);
                let held = std::mem::take(&mut resources.held);
                let returning = async move {
                    if let Some(queues) = queues
                        && let Err(error) =
                            return_mini_batches(&*queues.tasks, held, patience).await
                        && failure(&error) == AgentFailed::Otherwise
                    {
                        tracing::warn!(
                            job.id = job_id,
                            "mini-batches return only when their leases end: {error:#}"
                        );
                    }
                    done()
                };
                self.spawn(visit, returning, move |_| done());
            }
            Step::CleanUp => {
                let remains = resources.remains.take();
                let cleaning = async move {
                    if let Some(remains) = remains {
                        B::clean_up(remains).await;
                    }
                    done()
                };
                self.spawn(visit, cleaning, move |_| done());
            }
        }
    }

    fn work(&mut self, visit: VisitId) {
        let Some(access) = self.access(visit) else { return };
        let Some(resources) = self.visits.get_mut(&visit) else { return };
        let (Some(queues), Some(ready)) = (resources.queues.clone(), resources.ready.take()) else {
            return;
        };
        let reports = self.reports.0.clone();
        let report = move |in_use| {
            let _ = reports.send(Event::AllocationReport { visit, in_use });
        };
        let (allocation, activity) = (resources.allocation.subscribe(), resources.activity.clone());
        let agent_link = AgentLink::new(allocation, report, activity, resources.limiter.clone());
        let stop = resources.stop.subscribe();
        let working = self.backend.clone().work(access, queues.tasks, ready, stop, agent_link);
        let worked = async move {
            let (held, remains) = working.await;
            Report::Worked(visit, held, Some(remains))
        };
        self.spawn(visit, worked, move |panic| Report::Worked(visit, Err(panic.into()), None));
    }

    /// Returns the access to a job, once its queues are open.
    fn access(&self, visit: VisitId) -> Option<JobAccess> {
        let Resources { job_id, queues, .. } = self.visits.get(&visit)?;
        let results = queues.as_ref()?.results.clone();
        Some(JobAccess { store: self.target.job(job_id), job_id: job_id.clone(), results })
    }

    /// Starts a task of a visit.
    fn spawn(
        &mut self,
        visit: VisitId,
        task: impl Future<Output = Report<B>> + Send + 'static,
        failed: impl FnOnce(JoinError) -> Report<B> + Send + 'static,
    ) {
        let job_id = self.visits.get(&visit).map(|resources| resources.job_id.clone());
        let task = self.tasks.spawn(catch_panic(job_id, task, failed));
        if let Some(resources) = self.visits.get_mut(&visit) {
            resources.tasks.retain(|task| !task.is_finished());
            resources.tasks.push(task);
        }
    }
}

/// Runs a task of a visit. A panic ends only this task, and is reported as its failure: otherwise a job that makes a node
/// panic would end one node after the other.
async fn catch_panic<T: Send + 'static>(
    job_id: Option<String>,
    task: impl Future<Output = T> + Send + 'static,
    failed: impl FnOnce(JoinError) -> T,
) -> T {
    AbortOnDropHandle::new(tokio::spawn(task)).await.unwrap_or_else(|error| {
        tracing::error!(job.id = job_id, "a task of the job panicked on this node: {error}");
        failed(error)
    })
}

/// Returns the limiter of a job that has limits.
fn limiter(spec: &JobSpec) -> Option<SharedLimiter> {
    let limiter = Limiter::new(spec.limits, storage::random_bits(), limit::now());
    (!spec.limits.is_empty()).then(|| Arc::new(Mutex::new(limiter)))
}

/// Returns why an agent has failed.
fn failure(error: &anyhow::Error) -> AgentFailed {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<queue::Error>());
    match causes.any(|cause| matches!(cause, queue::Error::Absent { .. })) {
        true => AgentFailed::WithoutQueues,
        false => AgentFailed::Otherwise,
    }
}
