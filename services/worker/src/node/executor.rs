//! Executes what the roster decides, and reports to it what happens. What a simulated node does in another way is the
//! business of its [`Host`].
//!
//! Errands, provisioning and agents are tasks in one set; each returns what the roster should know.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use protocol::{Descriptor, JobSpec};
use queue::{Arrival, Delivery, Demultiplexer, DemultiplexerOptions, Queue, ReturnBy, Unreadable, View};
use storage::TargetStore;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;

use super::allotment::Allotment;
use super::errands::{Errands, Held, let_go};
use super::roster::{Action, Config, Errand, Event, Roster, Share, Step, Unprovisioned, VisitId};
use crate::agent::Timing;
use crate::pressure;
use crate::scheduler::deliveries_lost;
use crate::stop::{Stop, StopSender};

/// Provisions jobs and runs their agents.
pub trait Host: Clone + Send + 'static {
    /// A job that can start.
    type Ready: Send + 'static;
    /// What an agent leaves behind for the clean-up.
    type Remains: Send + 'static;

    fn run(self, errands: Errands, errand: Errand) -> impl Future<Output = Event> + Send {
        errands.run(errand)
    }

    fn provision(
        self,
        errands: Errands,
        spec: JobSpec,
    ) -> impl Future<Output = Result<Self::Ready, Unprovisioned>> + Send;

    /// Works on a job until its agent ends. Returns the mini-batches that it held, or why it has failed.
    fn work(
        self,
        errands: Errands,
        ready: Self::Ready,
        view: Arc<View>,
        stop: watch::Receiver<Stop>,
        allotment: Allotment,
    ) -> impl Future<Output = (anyhow::Result<Held>, Self::Remains)> + Send;

    fn clean_up(remains: Self::Remains) -> impl Future<Output = ()> + Send;

    /// Moves messages out of the way that no worker can read; with each the reason.
    fn bury(&self, unreadable: Vec<(Delivery, String)>) -> impl Future<Output = ()> + Send;

    fn memory_is_short(&self) -> bool {
        pressure::is_short()
    }

    /// The node is about to handle an event.
    fn handles(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// It has handled one. `has_looked`: it has just looked for what is due.
    fn handled(&self, _roster: &Roster, _has_looked: bool) {}
}

enum Report<H: Host> {
    Event(Event),
    Provisioned(VisitId, Result<H::Ready, Unprovisioned>),
    Worked(VisitId, anyhow::Result<Held>, H::Remains),
}

struct Resources<H: Host> {
    errands: Errands,
    tasks: Vec<AbortHandle>,
    ready: Option<H::Ready>,
    agent: Option<(Arc<View>, StopSender)>,
    share: watch::Sender<Share>,
    held: Held,
    remains: Option<H::Remains>,
}

/// The roster of a node, and what its actions need.
pub struct Executor<H: Host> {
    pub roster: Roster,
    host: H,
    node: String,
    target: TargetStore,
    results: Arc<dyn Queue>,
    patience: Duration,
    demultiplexer: Arc<Demultiplexer>,
    arrivals: mpsc::Receiver<Arrival>,
    /// An arrival that was read together with earlier ones.
    next_arrival: Option<Arrival>,
    /// Why an agent cannot use a queue. All jobs share the queues, so the node ends.
    failure: Option<queue::Error>,
    tasks: JoinSet<Report<H>>,
    /// What agents say is in use.
    reports: (mpsc::UnboundedSender<Event>, mpsc::UnboundedReceiver<Event>),
    visits: BTreeMap<VisitId, Resources<H>>,
}

/// What the loop of a node has to handle besides events.
#[derive(Debug)]
pub enum Trouble {
    /// Messages that no worker can read, and why.
    Unreadable(Vec<(Delivery, String)>),
    /// A queue cannot be used.
    Failed(queue::Error),
    /// A task of the node has panicked.
    Panicked(JoinError),
}

impl<H: Host> Executor<H> {
    pub async fn start(
        host: H,
        config: Config,
        target: TargetStore,
        [tasks, results]: [Arc<dyn Queue>; 2],
        timing: Timing,
    ) -> Self {
        let (demultiplexer, arrivals) = Demultiplexer::start(tasks, demultiplexer_options(timing.lease_step));
        let mut executor = Self {
            host,
            node: config.node.clone(),
            roster: Roster::new(config, Instant::now()),
            target,
            results,
            patience: timing.patience,
            demultiplexer: Arc::new(demultiplexer),
            arrivals,
            next_arrival: None,
            failure: None,
            tasks: JoinSet::new(),
            reports: mpsc::unbounded_channel(),
            visits: BTreeMap::new(),
        };
        executor.execute().await;
        executor
    }

    /// Waits for the next event. Losing this future loses nothing.
    pub async fn next(&mut self) -> Result<Event, Trouble> {
        if let Some(error) = self.failure.take() {
            return Err(Trouble::Failed(error));
        }
        if let Some(arrival) = self.next_arrival.take() {
            return self.arrived(arrival);
        }
        loop {
            tokio::select! {
                biased;
                Some(report) = self.tasks.join_next() => match report {
                    Ok(report) => return Ok(self.event_of(report)),
                    Err(error) if error.is_panic() => return Err(Trouble::Panicked(error)),
                    // Its visit has ended.
                    Err(_) => {}
                },
                Some(event) = self.reports.1.recv() => return Ok(event),
                Some(arrival) = self.arrivals.recv() => return self.arrived(arrival),
                else => std::future::pending().await,
            }
        }
    }

    fn arrived(&mut self, arrival: Arrival) -> Result<Event, Trouble> {
        let mut unreadable = match arrival {
            Arrival::NewGroup(job_id) => return Ok(Event::Arrived(job_id)),
            Arrival::Failed(error) => return Err(Trouble::Failed(error)),
            Arrival::Unreadable { delivery, reason } => vec![(delivery, reason)],
        };
        // There may be many.
        while self.next_arrival.is_none()
            && let Ok(arrival) = self.arrivals.try_recv()
        {
            match arrival {
                Arrival::Unreadable { delivery, reason } => unreadable.push((delivery, reason)),
                other => self.next_arrival = Some(other),
            }
        }
        Err(Trouble::Unreadable(unreadable))
    }

    /// Reports an event to the roster, and executes what follows.
    pub async fn handle(&mut self, event: Event) {
        self.roster.handle(event, Instant::now());
        self.execute().await;
    }

    /// Returns the event that time has passed.
    pub fn tick(&self) -> Event {
        let agents = self.visits.iter().filter_map(|(visit, resources)| Some((*visit, resources.agent.as_ref()?)));
        Event::Tick(agents.map(|(visit, (view, _))| (visit, view.quiet_since())).collect())
    }

    /// Returns the messages that wait here to the queue.
    pub async fn drain(&self) {
        if let Err(error) = self.demultiplexer.drain().await {
            tracing::warn!("waiting mini-batches return only when their leases end: {error:#}");
        }
    }

    fn event_of(&mut self, report: Report<H>) -> Event {
        match report {
            Report::Event(event) => event,
            Report::Provisioned(visit, provisioned) => {
                let result = provisioned.map(|ready| {
                    if let Some(resources) = self.visits.get_mut(&visit) {
                        resources.ready = Some(ready);
                    }
                });
                Event::Provisioned { visit, result }
            }
            Report::Worked(visit, held, remains) => {
                let held = held.inspect_err(|error| self.failure = lasting(error)).ok();
                let count = held.as_ref().map(Vec::len);
                if let Some(resources) = self.visits.get_mut(&visit) {
                    (resources.held, resources.remains) = (held.unwrap_or_default(), Some(remains));
                }
                Event::Worked { visit, held: count }
            }
        }
    }

    async fn execute(&mut self) {
        while let Some(action) = self.roster.next_action() {
            self.perform(action).await;
        }
    }

    async fn perform(&mut self, action: Action) {
        match action {
            Action::Open { visit, job_id } => self.open(visit, job_id),
            Action::Run { visit, errand } => {
                let running = self.host.clone().run(self.visits[&visit].errands.clone(), errand);
                self.spawn(visit, async move { Report::Event(running.await) });
            }
            Action::Provision { visit, spec } => {
                let provisioning = self.host.clone().provision(self.visits[&visit].errands.clone(), *spec);
                self.spawn(visit, async move { Report::Provisioned(visit, provisioning.await) });
            }
            Action::Share { visit, share } => drop(self.visits[&visit].share.send_replace(share)),
            Action::Work(visit) => self.work(visit),
            Action::StopAgent { visit, stop } => {
                if let Some((_, agent)) = &self.visits[&visit].agent {
                    agent.raise(stop);
                }
            }
            Action::LetGo { visit, is_over } => self.let_go(visit, is_over),
            Action::CleanUp(visit) => {
                let remains = self.visits.get_mut(&visit).and_then(|resources| resources.remains.take());
                self.spawn(visit, async move {
                    if let Some(remains) = remains {
                        H::clean_up(remains).await;
                    }
                    Report::Event(Event::Done { visit, step: Step::CleanUp })
                });
            }
            Action::Close(visit) => {
                let Some(resources) = self.visits.remove(&visit) else { return };
                resources.tasks.iter().for_each(AbortHandle::abort);
                self.demultiplexer.close(&resources.errands.job_id);
            }
            Action::Pause(time) => self.demultiplexer.pause(time),
            Action::Wish(messages) => self.demultiplexer.set_idle_wish(messages),
            Action::Drain => self.drain().await,
            Action::Log { job_id, is_warning: true, message } => {
                tracing::warn!(job.id = job_id, node.id = self.node, "{message}");
            }
            Action::Log { job_id, is_warning: false, message } => {
                tracing::info!(job.id = job_id, node.id = self.node, "{message}");
            }
        }
    }

    fn open(&mut self, visit: VisitId, job_id: String) {
        let errands = Errands {
            visit,
            node: self.node.clone(),
            store: self.target.job(&job_id),
            demultiplexer: self.demultiplexer.clone(),
            results: self.results.clone(),
            patience: self.patience,
            job_id,
        };
        let (tasks, held) = (Vec::new(), Held::new());
        let share = watch::Sender::default();
        self.visits.insert(visit, Resources { errands, tasks, ready: None, agent: None, share, held, remains: None });
    }

    fn work(&mut self, visit: VisitId) {
        let Some(resources) = self.visits.get_mut(&visit) else { return };
        let Some(ready) = resources.ready.take() else { return };
        let view = self.demultiplexer.view(&resources.errands.job_id);
        let stop = StopSender::default();
        let errands = resources.errands.clone();
        let allotment = Allotment::new(resources.share.subscribe(), visit, self.reports.0.clone());
        let working = self.host.clone().work(errands, ready, view.clone(), stop.subscribe(), allotment);
        resources.agent = Some((view, stop));
        self.spawn(visit, async move {
            let (held, remains) = working.await;
            Report::Worked(visit, held, remains)
        });
    }

    fn let_go(&mut self, visit: VisitId, is_over: bool) {
        let Some(resources) = self.visits.get_mut(&visit) else { return };
        let Some((view, _)) = resources.agent.clone() else { return };
        let (held, job_id) = (std::mem::take(&mut resources.held), resources.errands.job_id.clone());
        let patience = self.patience;
        self.spawn(visit, async move {
            if let Err(error) = let_go(&view, &job_id, held, is_over, patience).await {
                tracing::warn!(job.id = job_id, "mini-batches return only when their leases end: {error:#}");
            }
            Report::Event(Event::Done { visit, step: Step::LetGo })
        });
    }

    fn spawn(&mut self, visit: VisitId, task: impl Future<Output = Report<H>> + Send + 'static) {
        let task = self.tasks.spawn(task);
        if let Some(resources) = self.visits.get_mut(&visit) {
            resources.tasks.retain(|task| !task.is_finished());
            resources.tasks.push(task);
        }
    }
}

/// Returns the error of a queue that no agent can use, if that is the cause.
fn lasting(error: &anyhow::Error) -> Option<queue::Error> {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<queue::Error>());
    causes.find(|cause| matches!(cause, queue::Error::Misconfigured { .. })).cloned()
}

/// Returns how a node splits the task queue.
fn demultiplexer_options(lease: Duration) -> DemultiplexerOptions {
    DemultiplexerOptions {
        group_of: job_of_task,
        return_by: ReturnBy::Republish(unspent),
        lease,
        poll_wait: Duration::from_secs(20),
        idle_wish: 0,
        hold_max: Some(Duration::from_secs(10)),
        look_every: Some(Duration::from_secs(8)),
    }
}

/// Returns the job of a task message.
fn job_of_task(body: &Bytes) -> Result<String, Unreadable> {
    let error = match Descriptor::of_message(body) {
        Ok(descriptor) => return Ok(descriptor.job_id),
        Err(error) => error,
    };
    let value: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let job_id = value.as_ref().and_then(|value| value.get("job_id")?.as_str());
    Err(Unreadable(match job_id {
        Some(job_id) => format!("a mini-batch of job {job_id}, written by a newer version? {error:#}"),
        None => format!("no mini-batch: {error:#}"),
    }))
}

/// Returns the message for a descriptor that returns to the queue. It is a new message, so it carries what the queue has
/// counted.
pub fn unspent(delivery: &Delivery) -> Bytes {
    match serde_json::from_slice::<Descriptor>(&delivery.body) {
        Ok(descriptor) if delivery.receive_count > 1 => {
            let deliveries_lost = deliveries_lost(&descriptor, delivery.receive_count);
            let descriptor = Descriptor { deliveries_lost, ..descriptor };
            serde_json::to_vec(&descriptor).expect("descriptors always serialise").into()
        }
        _ => delivery.body.clone(),
    }
}
