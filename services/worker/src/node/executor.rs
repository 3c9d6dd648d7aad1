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
use tokio_util::task::AbortOnDropHandle;

use super::allotment::Allotment;
use super::driver::unless_it_panics;
use super::errands::{Errands, Held, let_go};
use super::roster::{Action, Config, Errand, Event, Obstacle, Roster, Share, Step, Unprovisioned, VisitId};
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
    fn bury(self, unreadable: Vec<(Delivery, String)>) -> impl Future<Output = ()> + Send;

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
    /// `None`: the agent has panicked.
    Worked(VisitId, anyhow::Result<Held>, Option<H::Remains>),
    Buried,
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
    draining: Option<AbortOnDropHandle<()>>,
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
}

impl<H: Host> Executor<H> {
    pub fn start(
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
            draining: None,
            reports: mpsc::unbounded_channel(),
            visits: BTreeMap::new(),
        };
        executor.execute();
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
                    Ok(report) => {
                        if let Some(event) = self.event_of(report) {
                            return Ok(event);
                        }
                    }
                    // Its visit has ended.
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => tracing::error!("a task of the node panicked: {error}"),
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
    pub fn handle(&mut self, event: Event) {
        self.roster.handle(event, Instant::now());
        self.execute();
    }

    /// Returns the event that time has passed.
    pub fn tick(&self) -> Event {
        let agents = self.visits.iter().filter_map(|(visit, resources)| Some((*visit, resources.agent.as_ref()?)));
        Event::Tick(agents.map(|(visit, (view, _))| (visit, view.quiet_since())).collect())
    }

    /// Returns the messages that wait here to the queue. A node that waited for a queue that is away would not kill its agents
    /// when it is asked to.
    fn start_draining(&mut self) {
        let (demultiplexer, before) = (self.demultiplexer.clone(), self.draining.take());
        self.draining = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            if let Err(error) = demultiplexer.drain().await {
                tracing::warn!("waiting mini-batches return only when their leases end: {error:#}");
            }
        })));
    }

    /// Returns the messages that still wait here to the queue.
    pub async fn drain(&mut self) {
        self.start_draining();
        if let Some(draining) = self.draining.take() {
            let _ = draining.await;
        }
    }

    /// Moves messages that no worker can read out of the way, without waiting for a queue that may be away.
    pub fn bury(&mut self, unreadable: Vec<(Delivery, String)>) {
        let burying = self.host.clone().bury(unreadable);
        self.tasks.spawn(async move {
            burying.await;
            Report::Buried
        });
    }

    fn event_of(&mut self, report: Report<H>) -> Option<Event> {
        Some(match report {
            Report::Event(event) => event,
            Report::Buried => return None,
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
                    (resources.held, resources.remains) = (held.unwrap_or_default(), remains);
                }
                Event::Worked { visit, held: count }
            }
        })
    }

    fn execute(&mut self) {
        while let Some(action) = self.roster.next_action() {
            self.perform(action);
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Open { visit, job_id } => self.open(visit, job_id),
            Action::Run { visit, errand } => {
                let unanswered = errand.unanswered(visit);
                let running = self.host.clone().run(self.visits[&visit].errands.clone(), errand);
                self.spawn(visit, async move { Report::Event(running.await) }, |_| Report::Event(unanswered));
            }
            Action::Provision { visit, spec } => {
                let provisioning = self.host.clone().provision(self.visits[&visit].errands.clone(), *spec);
                let failed = move |panic: JoinError| {
                    let reason = format!("the worker panicked while it prepared the job: {panic}");
                    Report::Provisioned(visit, Err(Unprovisioned { reason, obstacle: Obstacle::Lasting }))
                };
                self.spawn(visit, async move { Report::Provisioned(visit, provisioning.await) }, failed);
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
                let done = move || Report::Event(Event::Done { visit, step: Step::CleanUp });
                let cleaning = async move {
                    if let Some(remains) = remains {
                        H::clean_up(remains).await;
                    }
                    done()
                };
                self.spawn(visit, cleaning, move |_| done());
            }
            Action::Close(visit) => {
                let Some(resources) = self.visits.remove(&visit) else { return };
                resources.tasks.iter().for_each(AbortHandle::abort);
                self.demultiplexer.close(&resources.errands.job_id);
            }
            Action::Pause(time) => self.demultiplexer.pause(time),
            Action::Wish(messages) => self.demultiplexer.set_idle_wish(messages),
            Action::Drain => self.start_draining(),
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
        let reports = self.reports.0.clone();
        let allotment = Allotment::new(resources.share.subscribe(), move |in_use| {
            let _ = reports.send(Event::InUse { visit, in_use });
        });
        let working = self.host.clone().work(errands, ready, view.clone(), stop.subscribe(), allotment);
        resources.agent = Some((view, stop));
        let worked = async move {
            let (held, remains) = working.await;
            Report::Worked(visit, held, Some(remains))
        };
        self.spawn(visit, worked, move |panic| Report::Worked(visit, Err(panic.into()), None));
    }

    fn let_go(&mut self, visit: VisitId, is_over: bool) {
        let Some(resources) = self.visits.get_mut(&visit) else { return };
        let Some((view, _)) = resources.agent.clone() else { return };
        let (held, job_id) = (std::mem::take(&mut resources.held), resources.errands.job_id.clone());
        let patience = self.patience;
        let done = move || Report::Event(Event::Done { visit, step: Step::LetGo });
        let letting_go = async move {
            if let Err(error) = let_go(&view, &job_id, held, is_over, patience).await {
                tracing::warn!(job.id = job_id, "mini-batches return only when their leases end: {error:#}");
            }
            done()
        };
        self.spawn(visit, letting_go, move |_| done());
    }

    /// Starts a task of a visit.
    fn spawn(
        &mut self,
        visit: VisitId,
        task: impl Future<Output = Report<H>> + Send + 'static,
        failed: impl FnOnce(JoinError) -> Report<H> + Send + 'static,
    ) {
        let job_id = self.visits.get(&visit).map(|resources| resources.errands.job_id.clone());
        let task = self.tasks.spawn(unless_it_panics(job_id, task, failed));
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

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use protocol::Work;
    use queue::{Depth, Limits, MemoryOptions, MemoryQueue, Message, Receipt, Receive};
    use storage::StoreOptions;
    use telemetry::Health;

    use super::super::event_loop::EventLoop;
    use super::super::{Ended, NodeOptions, roster};
    use super::*;
    use crate::scheduler::tests::descriptor;

    /// Panics or hangs with one job at a step of its way, and works on others until they are killed.
    #[derive(Clone)]
    struct Panicking {
        step: &'static str,
        worked: mpsc::UnboundedSender<String>,
    }

    impl Panicking {
        fn reach(&self, step: &str, job_id: &str) {
            assert!(step != self.step || job_id != "bad", "the job is bad");
        }
    }

    impl Host for Panicking {
        type Ready = ();
        type Remains = (&'static str, String);

        async fn run(self, errands: Errands, errand: Errand) -> Event {
            if errand == Errand::LookUp {
                self.reach("look up", &errands.job_id);
            }
            errands.run(errand).await
        }

        async fn provision(self, errands: Errands, _: JobSpec) -> Result<(), Unprovisioned> {
            self.reach("provision", &errands.job_id);
            if self.step == "hang" && errands.job_id == "bad" {
                std::future::pending::<()>().await;
            }
            Ok(())
        }

        async fn work(
            self,
            errands: Errands,
            (): (),
            _: Arc<View>,
            mut stop: watch::Receiver<Stop>,
            _: Allotment,
        ) -> (anyhow::Result<Held>, Self::Remains) {
            self.reach("work", &errands.job_id);
            self.worked.send(errands.job_id.clone()).expect("the test listens");
            let mut told = if errands.job_id == "bad" { Stop::Kill } else { Stop::No };
            while told != Stop::Kill {
                told = Stop::next(&mut stop).await;
                self.worked.send(format!("{told:?}")).expect("the test listens");
            }
            (Ok(Held::new()), (self.step, errands.job_id))
        }

        async fn clean_up((step, job_id): Self::Remains) {
            assert!(step != "clean up" || job_id != "bad", "the job is bad");
        }

        async fn bury(self, _: Vec<(Delivery, String)>) {}

        fn memory_is_short(&self) -> bool {
            false
        }
    }

    /// A queue that does not answer while it is away.
    #[derive(Debug)]
    struct Leaving {
        memory: MemoryQueue,
        away: watch::Sender<bool>,
    }

    impl Leaving {
        async fn back(&self) -> &MemoryQueue {
            self.away.subscribe().wait_for(|away| !away).await.expect("it holds the sender");
            &self.memory
        }
    }

    #[async_trait]
    impl Queue for Leaving {
        async fn send(&self, messages: Vec<Message>) -> Result<(), queue::Error> {
            self.back().await.send(messages).await
        }

        async fn receive(&self, request: Receive) -> Result<Vec<Delivery>, queue::Error> {
            self.back().await.receive(request).await
        }

        async fn extend(&self, leases: &[(Receipt, Duration)]) -> Result<Vec<Receipt>, queue::Error> {
            self.back().await.extend(leases).await
        }

        async fn acknowledge(&self, receipts: &[Receipt]) -> Result<Vec<Receipt>, queue::Error> {
            self.back().await.acknowledge(receipts).await
        }

        async fn release(&self, receipts: &[Receipt]) -> Result<(), queue::Error> {
            self.back().await.release(receipts).await
        }

        async fn depth(&self) -> Result<Depth, queue::Error> {
            self.back().await.depth().await
        }

        fn limits(&self) -> Limits {
            self.memory.limits()
        }
    }

    /// A target whose node is a [`Panicking`] host.
    struct Target {
        store: TargetStore,
        tasks: Arc<Leaving>,
        results: Arc<MemoryQueue>,
        /// The mini-batches that the host has processed, and the order to stop that it received.
        worked: mpsc::UnboundedReceiver<String>,
        stop: watch::Sender<Stop>,
        node: tokio::task::JoinHandle<anyhow::Result<Ended>>,
    }

    impl Target {
        async fn start(step: &'static str) -> Self {
            let store = TargetStore::open("memory:///target", StoreOptions::default()).await.expect("it can be opened");
            let memory = || MemoryQueue::new(MemoryOptions::default());
            let tasks = Arc::new(Leaving { memory: memory(), away: watch::Sender::new(false) });
            let results = Arc::new(memory());
            let (sender, worked) = mpsc::unbounded_channel();
            let event_loop = EventLoop {
                host: Panicking { step, worked: sender },
                config: roster::tests::config(),
                target: store.clone(),
                queues: [tasks.clone(), results.clone()],
                timing: NodeOptions::default().timing,
                tick: Duration::from_millis(250),
                memory_every: Duration::from_secs(2),
                health: Health::default(),
            };
            let (stop, stopped) = watch::channel(Stop::No);
            let node = tokio::spawn(event_loop.run(stopped, std::future::pending()));
            Self { store, tasks, results, worked, stop, node }
        }

        async fn enqueue(&self, job_id: &str) {
            let spec = JobSpec { job_id: job_id.into(), ..JobSpec::example() };
            self.store.job(job_id).put_spec(&spec).await.expect("memory is always there");
            let descriptor = Descriptor { job_id: job_id.into(), ..descriptor(0, Work::Rank) };
            let body = serde_json::to_vec(&descriptor).expect("serialises");
            self.tasks.send(vec![Message::new(body, job_id)]).await.expect("memory is always there");
        }

        async fn wait_for(&mut self, what: &str) {
            while self.worked.recv().await.expect("the node works") != what {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn job_that_makes_a_node_panic_ends_neither_the_node_nor_other_jobs() {
        for step in ["look up", "provision", "work", "clean up"] {
            let mut target = Target::start(step).await;
            target.enqueue("bad").await;
            tokio::time::sleep(Duration::from_secs(5)).await;
            if step == "provision" {
                let request = Receive { messages_max: 1, visibility: Duration::from_secs(60), wait: Duration::ZERO };
                let told = target.results.receive(request).await.expect("memory is always there");
                let told = String::from_utf8_lossy(&told[0].body).into_owned();
                assert!(
                    told.contains("panicked while it prepared the job") && told.contains("the job is bad"),
                    "{told}"
                );
            }
            target.enqueue("good").await;
            target.wait_for("good").await;
            target.stop.send_replace(Stop::Kill);
            assert_eq!(target.node.await.expect("no panic").expect("no error"), Ended::Stopped, "{step}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn draining_node_kills_its_agents_although_the_queue_is_away() {
        let mut target = Target::start("hang").await;
        target.enqueue("good").await;
        target.wait_for("good").await;
        target.enqueue("bad").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        target.tasks.away.send_replace(true);
        target.stop.send_replace(Stop::Drain);
        target.wait_for("Drain").await;
        target.stop.send_replace(Stop::Kill);
        let killed = target.wait_for("Kill");
        tokio::time::timeout(Duration::from_secs(1), killed).await.expect("it does not wait for the queue");
        target.tasks.away.send_replace(false);
        assert_eq!(target.node.await.expect("no panic").expect("no error"), Ended::Stopped);
    }
}
