//! Executes what the roster decides, and reports to it what happens.
//!
//! Errands, provisioning and agents are tasks in one set; each returns what the roster should know.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Error, Result};
use bytes::Bytes;
use protocol::Descriptor;
use queue::{Arrival, Delivery, Demultiplexer, DemultiplexerOptions, Receipt, ReturnBy, Unreadable, View};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;

use super::errands::{Errands, let_go};
use super::protection::{Hold, Protection};
use super::provision::{Provisioned, Provisioner};
use super::roster::{Action, Config, Event, Roster, Step, Unprovisioned, VisitId};
use super::work::{Left, Remains, provision, work};
use super::{Node, Shared};
use crate::dead_letters::bury;
use crate::default_process_count;
use crate::scheduler::deliveries_lost;
use crate::stop::{Stop, StopSender};

/// What a task reports.
pub(super) enum Report {
    Event(Event),
    Provisioned(VisitId, Result<Box<Provisioned>>),
    Worked(VisitId, Box<Left>),
}

/// What a visit holds.
struct Resources {
    errands: Errands,
    tasks: Vec<AbortHandle>,
    /// Keeps the task of ECS protected.
    protection: Option<Arc<Hold>>,
    provisioned: Option<Box<Provisioned>>,
    agent: Option<RunningAgent>,
    held: Vec<(Receipt, Descriptor)>,
    remains: Option<Remains>,
}

struct RunningAgent {
    view: Arc<View>,
    stop: StopSender,
}

/// The roster of a node, and what its actions need.
pub(super) struct Executor {
    pub(super) roster: Roster,
    pub(super) shared: Arc<Shared>,
    arrivals: mpsc::Receiver<Arrival>,
    tasks: JoinSet<Report>,
    visits: BTreeMap<VisitId, Resources>,
    /// Why the task queue cannot be used.
    failure: Option<Error>,
}

/// What the loop of the node reacts to.
pub(super) enum Occurred {
    Arrival(Arrival),
    Report(Result<Report, JoinError>),
}

impl Executor {
    pub(super) async fn start(node: Node) -> Self {
        let options = demultiplexer_options(node.options.timing.lease_step);
        let (demultiplexer, arrivals) = Demultiplexer::start(node.tasks.clone(), options);
        let roster = Roster::new(config(&node), Instant::now());
        let provisioner = Provisioner::new(&node);
        let protection = Protection::start(node.options.task_protection.clone());
        let shared = Shared { node, demultiplexer: Arc::new(demultiplexer), provisioner, protection };
        let mut executor = Self {
            roster,
            shared: Arc::new(shared),
            arrivals,
            tasks: JoinSet::new(),
            visits: BTreeMap::new(),
            failure: None,
        };
        executor.execute().await;
        executor
    }

    /// Waits for a message of the demultiplexer or the end of a task. Losing this future loses nothing.
    pub(super) async fn next(&mut self) -> Occurred {
        tokio::select! {
            Some(arrival) = self.arrivals.recv() => Occurred::Arrival(arrival),
            Some(joined) = self.tasks.join_next() => Occurred::Report(joined),
            else => std::future::pending().await,
        }
    }

    /// Reports an event to the roster, and executes what follows.
    pub(super) async fn handle(&mut self, event: Event) {
        self.roster.handle(event, Instant::now());
        self.execute().await;
    }

    pub(super) async fn occurred(&mut self, occurred: Occurred) -> Result<()> {
        match occurred {
            Occurred::Arrival(Arrival::NewGroup(job_id)) => self.handle(Event::Arrived(job_id)).await,
            Occurred::Arrival(Arrival::Unreadable { delivery, reason }) => self.bury(delivery, &reason).await,
            Occurred::Arrival(Arrival::Failed(error)) => {
                self.failure.get_or_insert(Error::from(error).context("receive from the task queue"));
                self.handle(Event::Stop(Stop::Drain)).await;
            }
            Occurred::Report(Ok(report)) => {
                let event = self.event_of(report);
                self.handle(event).await;
            }
            Occurred::Report(Err(error)) if error.is_panic() => {
                return Err(error).context("a task of the node panicked");
            }
            // Its visit has ended.
            Occurred::Report(Err(_)) => {}
        }
        Ok(())
    }

    pub(super) async fn tick(&mut self) {
        let agents = self.visits.iter().filter_map(|(visit, resources)| Some((*visit, resources.agent.as_ref()?)));
        let quiet = agents.map(|(visit, agent)| (visit, agent.view.quiet_since())).collect();
        self.handle(Event::Tick(quiet)).await;
    }

    /// Returns the messages that wait here, for the last time, and says why the node has failed, if it has.
    pub(super) async fn end(self) -> Result<()> {
        // A reader may have been about to take some when it ended.
        self.drain().await;
        self.shared.clear_work_folder();
        self.failure.map_or(Ok(()), Err)
    }

    fn event_of(&mut self, report: Report) -> Event {
        match report {
            Report::Event(event) => event,
            Report::Provisioned(visit, Ok(provisioned)) => {
                if let Some(resources) = self.visits.get_mut(&visit) {
                    resources.provisioned = Some(provisioned);
                }
                Event::Provisioned { visit, result: Ok(()) }
            }
            Report::Provisioned(visit, Err(error)) => {
                let may_pass = matches!(error.downcast_ref(), Some(storage::Error::Unavailable { .. }));
                let reason = format!("{error:#}");
                Event::Provisioned { visit, result: Err(Unprovisioned { reason, may_pass }) }
            }
            Report::Worked(visit, left) => {
                let Left { held, remains } = *left;
                let Some(resources) = self.visits.get_mut(&visit) else { return Event::Worked { visit, held: None } };
                resources.remains = Some(remains);
                let held = match held {
                    Ok(held) => {
                        resources.held = held;
                        Some(resources.held.len())
                    }
                    Err(error) => {
                        let job_id = &resources.errands.job_id;
                        tracing::warn!(job.id = job_id, "the agent failed, the queue redelivers its work: {error:#}");
                        None
                    }
                };
                Event::Worked { visit, held }
            }
        }
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
            Action::Run { visit, errand } => {
                let errands = self.visits[&visit].errands.clone();
                self.spawn(visit, async move { Report::Event(errands.run(errand).await) });
            }
            Action::Provision { visit, spec } => {
                let shared = self.shared.clone();
                let Some(resources) = self.visits.get_mut(&visit) else { return };
                resources.protection = Some(Arc::new(shared.protection.hold()));
                let Errands { job_id, store, .. } = resources.errands.clone();
                let provisioning = provision(shared, job_id, store, *spec);
                self.spawn(visit, async move { Report::Provisioned(visit, provisioning.await.map(Box::new)) });
            }
            Action::Work(visit) => self.work(visit),
            Action::StopAgent { visit, stop } => {
                if let Some(agent) = &self.visits[&visit].agent {
                    agent.stop.raise(stop);
                }
            }
            Action::LetGo { visit, is_over } => self.let_go(visit, is_over),
            Action::CleanUp(visit) => {
                let remains = self.visits.get_mut(&visit).and_then(|resources| resources.remains.take());
                self.spawn(visit, async move {
                    if let Some(remains) = remains {
                        remains.clean_up().await;
                    }
                    Report::Event(Event::Done { visit, step: Step::CleanUp })
                });
            }
            Action::Close(visit) => {
                let Some(resources) = self.visits.remove(&visit) else { return };
                resources.tasks.iter().for_each(AbortHandle::abort);
                self.shared.demultiplexer.close(&resources.errands.job_id);
            }
            Action::Pause(time) => self.shared.demultiplexer.pause(time),
            Action::Wish(messages) => self.shared.demultiplexer.set_idle_wish(messages),
            Action::Drain => self.drain().await,
            Action::Log { job_id, is_warning: true, message } => tracing::warn!(job.id = job_id, "{message}"),
            Action::Log { job_id, is_warning: false, message } => tracing::info!(job.id = job_id, "{message}"),
        }
    }

    fn open(&mut self, visit: VisitId, job_id: String) {
        let node = &self.shared.node;
        let errands = Errands {
            visit,
            node: node.name.clone(),
            store: node.target.job(&job_id),
            demultiplexer: self.shared.demultiplexer.clone(),
            results: node.results.clone(),
            patience: node.options.timing.patience,
            job_id,
        };
        let resources = Resources {
            errands,
            tasks: Vec::new(),
            protection: None,
            provisioned: None,
            agent: None,
            held: Vec::new(),
            remains: None,
        };
        self.visits.insert(visit, resources);
    }

    fn work(&mut self, visit: VisitId) {
        let shared = self.shared.clone();
        let Some(resources) = self.visits.get_mut(&visit) else { return };
        let Some(provisioned) = resources.provisioned.take() else { return };
        let view = shared.demultiplexer.view(&resources.errands.job_id);
        let agent = shared.agent(resources.errands.store.clone(), *provisioned, view.clone());
        let stop = StopSender::default();
        let working = work(shared, agent, stop.subscribe(), resources.protection.clone());
        resources.agent = Some(RunningAgent { view, stop });
        self.spawn(visit, async move { Report::Worked(visit, Box::new(working.await)) });
    }

    fn let_go(&mut self, visit: VisitId, is_over: bool) {
        let patience = self.shared.node.options.timing.patience;
        let Some(resources) = self.visits.get_mut(&visit) else { return };
        let (held, job_id) = (std::mem::take(&mut resources.held), resources.errands.job_id.clone());
        let Some(view) = resources.agent.as_ref().map(|agent| agent.view.clone()) else { return };
        self.spawn(visit, async move {
            if let Err(error) = let_go(&view, &job_id, held, is_over, patience).await {
                tracing::warn!(job.id = job_id, "mini-batches return only when their leases end: {error:#}");
            }
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

    async fn drain(&self) {
        if let Err(error) = self.shared.demultiplexer.drain().await {
            tracing::warn!("waiting mini-batches return only when their leases end: {error:#}");
        }
    }

    /// Moves a message that cannot be read to the dead letters.
    async fn bury(&self, delivery: Delivery, reason: &str) {
        let node = &self.shared.node;
        tracing::warn!("a message of the task queue goes to the dead letters: {reason}");
        if let Err(error) = bury(&*node.tasks, Some(&*node.dead_letters), &node.name, delivery, reason).await {
            tracing::warn!("the message stays in the task queue for now: {error:#}");
        }
    }
}

fn config(node: &Node) -> Config {
    let options = &node.options;
    let processes = options.process_count.unwrap_or_else(|| default_process_count(node.gpu_count));
    Config {
        node: node.name.clone(),
        idle_wish: processes as usize,
        delay_max: node.tasks.limits().delay_max,
        idle_exit: options.idle_exit,
        job_idle: options.job_idle,
        watch_period: options.watch_period,
        seat_period: options.seat_period,
        seat_lapse: options.seat_lapse,
        rest: options.rest,
        notice_time: options.spot_notice.as_ref().map_or(Duration::ZERO, |spot| spot.patience),
    }
}

/// Returns how a node splits the task queue.
pub fn demultiplexer_options(lease: Duration) -> DemultiplexerOptions {
    DemultiplexerOptions {
        group_of: |body| job_of_task(body).map_err(Unreadable),
        return_by: ReturnBy::Republish(unspent),
        lease,
        poll_wait: Duration::from_secs(20),
        idle_wish: 0,
        hold_max: Some(Duration::from_secs(10)),
    }
}

/// Returns the job of a task message; in the error, why the message cannot be read.
fn job_of_task(body: &Bytes) -> Result<String, String> {
    let error = match Descriptor::of_message(body) {
        Ok(descriptor) => return Ok(descriptor.job_id),
        Err(error) => error,
    };
    let value: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let text = |name: &str| Some(value.as_ref()?.get(name)?.as_str()?.to_owned());
    Err(match text("job_id") {
        Some(job_id) => format!("a mini-batch of job {job_id}, written by a newer version? {error:#}"),
        None => format!("no mini-batch: {error:#}"),
    })
}

/// Returns the message for a descriptor that returns to the queue. It is a new message, so it carries what the queue has
/// counted.
fn unspent(delivery: &Delivery) -> Bytes {
    match serde_json::from_slice::<Descriptor>(&delivery.body) {
        Ok(descriptor) if delivery.receive_count > 1 => {
            let deliveries_lost = deliveries_lost(&descriptor, delivery.receive_count);
            let descriptor = Descriptor { deliveries_lost, ..descriptor };
            serde_json::to_vec(&descriptor).expect("descriptors always serialise").into()
        }
        _ => delivery.body.clone(),
    }
}
