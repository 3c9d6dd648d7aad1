//! One job on a simulated node: executes the actions of its scheduler, with simulated Python processes. Leases and
//! announcer are the production code's.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use protocol::{
    AttemptStatus, Descriptor, ErrorReport, JobSpec, Payload, ProcessEvent, RestartChance,
    ResultEvent, SlotPhase, Work,
};
use queue::{Delivery, Queue, Receipt};
use storage::JobStore;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;
use worker::NodeLockHolder;
use worker::scheduler::{
    Action, Announcement, Config, Event, ExitReport, LeasedDelivery, Outcome, ProcessId,
    ProcessSnapshot, Scheduler, Stop, Timestamp,
};
use worker::simulation_api::{
    AgentLink, Announcements, Announcer, Checkpoints, LEASE_STEP, LeaseId, Leases, Preparation,
    Prepared, UnfinishedMiniBatches, with_kept,
};

use crate::actor::Actor;
use crate::agent_allocations::{CheckedAllocation, GpusInUse};
use crate::gpus::Gpus;
use crate::process::{Process, ProcessCommand, ProcessContext};
use crate::weather::Bug;
use crate::witness::{JobWitness, Runs, descriptor};

pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
const GRACE: Duration = Duration::from_secs(30);
/// Longer than in production: looking around is most of the work of the simulation.
const TICK: Duration = Duration::from_secs(4);
const STACKS_TICK: Duration = Duration::from_millis(100);
const PREPARATION_MAX: Duration = Duration::from_secs(20);
/// Failed starts, and deaths between two mini-batches, of one agent: fewer than make it give up.
const ACCIDENTS_MAX: u32 = 2;
/// How long a mini-batch may wait behind a slow run while another process waits for one.
const HOLD_UP_MAX: Duration = Duration::from_secs(13);

/// What an agent works with.
pub(crate) struct Agent {
    pub actor: Actor,
    pub witness: Arc<JobWitness>,
    pub runs: Arc<Runs>,
    pub store: JobStore,
    /// The queues of the job.
    pub tasks: Arc<dyn Queue>,
    pub results: Arc<dyn Queue>,
    pub spec: Arc<JobSpec>,
    pub bug: Option<Bug>,
    pub gpus: GpusInUse,
    pub node_lock: NodeLockHolder,
}

/// What the loop reacts to.
pub(crate) enum Message {
    StopRequest,
    Shared,
    Tick,
    Received(anyhow::Result<Vec<Delivery>>),
    Prepared(LeaseId, Box<Descriptor>, Preparation),
    LeaseLost(LeaseId),
    Decided(Vec<u64>),
    Members(protocol::Members),
    Frame(ProcessId, Box<ProcessEvent>, Bytes),
    Exited(ProcessId, i32),
}

/// The counterpart of the executor of `worker::Agent`.
struct Executor {
    agent: Agent,
    scheduler: Scheduler,
    leases: Leases,
    announcements: Announcements,
    messages: mpsc::UnboundedSender<Message>,
    receiving: Option<AbortOnDropHandle<()>>,
    /// Preparations, and killed processes that are about to end.
    errands: JoinSet<()>,
    processes: BTreeMap<ProcessId, Process>,
    /// Processes that were below the limit of memory after `init()`, and those of them that have exceeded it.
    small: BTreeSet<ProcessId>,
    outgrown: BTreeSet<ProcessId>,
    gpus: Gpus,
    stacks: BTreeSet<ProcessId>,
    receipts: HashMap<LeaseId, Receipt>,
    accidents: u32,
    allocation: CheckedAllocation,
    looked_for_members: Option<Instant>,
}

impl Agent {
    /// Works until the stop is requested, and returns what it holds.
    pub async fn work(
        self,
        mut stop: watch::Receiver<Stop>,
        agent_link: AgentLink,
    ) -> anyhow::Result<UnfinishedMiniBatches> {
        // A node that ignores lost leases does not watch the clock either.
        let step = if self.has(Bug::LeasesForLong) { 4 * LEASE_STEP } else { LEASE_STEP };
        let leases = Leases::new(step, !self.has(Bug::IgnoresLostLeases));
        let (messages, mut inbox) = mpsc::unbounded_channel();
        let lost = messages.clone();
        let _heartbeat = leases.keep(self.tasks.clone(), move |lease| {
            let _ = lost.send(Message::LeaseLost(lease));
        });
        let (announcements, announcer) = Announcer {
            job_id: self.spec.job_id.clone(),
            store: self.store.clone(),
            checkpoints: Checkpoints::new(&self.store, Path::new(""), None),
            tasks: self.tasks.clone(),
            results: self.results.clone(),
            leases: leases.clone(),
            patience: PATIENCE,
            preparer: None,
            rejected_max: 1, // Mini-batches have few items, and longer lists belong in the store.
            crash: |_| {},
        }
        .start();
        let mut announcer = AbortOnDropHandle::new(announcer);
        let mut spec = self.spec.clone();
        if self.has(Bug::IgnoresRunLimits) {
            Arc::make_mut(&mut spec).process_max_runs = 0;
        }
        let allocation = CheckedAllocation::new(agent_link);
        let config = Config {
            spec,
            node: self.actor.name().to_owned(),
            processes: self.spec.process_count_per_node.expect("the job says how many"),
            allocation: (!self.has(Bug::IgnoresAllocations)).then(|| allocation.last()),
            first_process: self.witness.starts.processes.load(Ordering::SeqCst),
            gpus: self.witness.job.gpus,
            prefetch_bytes_max: u64::MAX,
            grace: GRACE,
            fetches_checkpoints: false,
            lease_max: self.tasks.limits().lease_max,
            is_alone: false,
        };
        let actor = self.actor.clone();
        let (broken, hides_troubles) =
            (self.witness.job.broken_gpu, self.has(Bug::HidesGpuTroubles));
        let mut executor = Executor {
            scheduler: Scheduler::new(config, now()),
            agent: self,
            leases,
            announcements,
            messages,
            receiving: None,
            errands: JoinSet::new(),
            processes: BTreeMap::new(),
            small: BTreeSet::new(),
            outgrown: BTreeSet::new(),
            gpus: Gpus::new(broken, hides_troubles),
            stacks: BTreeSet::new(),
            receipts: HashMap::new(),
            accidents: 0,
            allocation,
            looked_for_members: None,
        };
        executor.execute().await;
        executor.check_members();
        while !executor.scheduler.is_over(now()) {
            let tick = if executor.stacks.is_empty() { TICK } else { STACKS_TICK };
            let message = tokio::select! {
                biased;
                ended = &mut announcer => return Err(failure(ended)),
                Ok(()) = stop.changed() => Message::StopRequest,
                () = executor.allocation.wait() => Message::Shared,
                Some(message) = inbox.recv() => message,
                () = sleep(tick) => Message::Tick,
            };
            actor.alive().await;
            let how = *stop.borrow_and_update();
            executor.handle(Event::Stop(how)).await;
            executor.receive(message).await?;
            executor.check_members();
            executor.schedule().await;
            executor.report_in_use();
            executor.tell_activity();
        }
        executor.close(announcer).await
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Reports a rule that this node has broken.
    fn report(&self, rule: &'static str) {
        self.witness.report(rule, self.actor.name().to_owned());
    }
}

impl Executor {
    async fn handle(&mut self, event: Event) {
        self.scheduler.handle(event, now());
        self.execute().await;
    }

    async fn schedule(&mut self) {
        let leases = self.leases.lapsed();
        if !leases.is_empty() {
            let snapshots = self.snapshots();
            self.handle(Event::LeasesLost { leases, snapshots }).await;
        }
        let access = self
            .agent
            .node_lock
            .access(self.scheduler.wants_to_be_alone(), self.scheduler.holds_any());
        self.scheduler.access(access);
        self.scheduler.schedule(now(), self.announcements.are_behind());
        self.execute().await;
        while self.errands.try_join_next().is_some() {}
    }

    fn report_in_use(&mut self) {
        let Some(mut in_use) = self.scheduler.in_use() else { return };
        if self.agent.has(Bug::GrowsBeforeItShrinks) {
            let own = self.allocation.last().gpus;
            in_use.gpus.retain(|gpu| own.contains(gpu));
        }
        self.allocation.report(in_use);
    }

    /// Tells how many mini-batches the node holds, by which reducers notice an emptied queue.
    fn tell_activity(&self) {
        let lies = u64::from(self.agent.has(Bug::WaitsForEver));
        self.allocation.tell_held(self.leases.count() as u64 + lies);
    }

    async fn execute(&mut self) {
        while let Some(action) = self.scheduler.next_action() {
            if let Some(answer) = self.perform(action).await {
                self.scheduler.handle(answer, now());
            }
        }
    }

    async fn receive(&mut self, message: Message) -> anyhow::Result<()> {
        let event = match message {
            Message::StopRequest => return Ok(()),
            Message::Shared => match self.allocation.changed() {
                Some(allocation) if !self.agent.has(Bug::IgnoresAllocations) => {
                    Event::Allocate(allocation)
                }
                _ => return Ok(()),
            },
            Message::Tick => {
                self.tick().await;
                return Ok(());
            }
            Message::Received(deliveries) => Event::Received(
                deliveries?.into_iter().map(|delivery| self.hold(delivery)).collect(),
            ),
            Message::Prepared(lease, descriptor, preparation) => {
                Event::Prepared { lease, descriptor, preparation }
            }
            Message::Decided(mini_batches) => Event::Decided(mini_batches),
            Message::Members(members) => Event::Members(members),
            Message::LeaseLost(lease) => {
                tracing::info!(
                    job.id = self.agent.spec.job_id,
                    node.id = self.agent.actor.name(),
                    "a lease is lost"
                );
                Event::LeasesLost { leases: vec![lease], snapshots: self.snapshots() }
            }
            Message::Frame(process, mut frame, rows) => {
                self.measure(process, &frame).await;
                self.gpus.sent(process, &mut frame);
                Event::Frame { process, frame: *frame, rows }
            }
            Message::Exited(process, code) => {
                let Some(ended) = self.processes.get(&process) else { return Ok(()) };
                let ProcessSnapshot { phase, sequence, .. } = ended.snapshot(process);
                let phase = if self.agent.has(Bug::BlamesNobodyForDeaths) {
                    SlotPhase::Idle
                } else {
                    phase
                };
                Event::Exited { process, code, phase, sequence, ran: None }
            }
        };
        self.handle(event).await;
        Ok(())
    }

    fn hold(&mut self, delivery: Delivery) -> LeasedDelivery {
        let mut descriptor = descriptor(&delivery.body);
        if self.agent.witness.job.is_planned(descriptor.mini_batch) {
            // As if its message were too large for the queue: it has to be looked up.
            descriptor.work = Work::Planned { chunk: 0, line: descriptor.mini_batch };
        }
        self.agent.witness.handed(&delivery.receipt);
        let lease = self.leases.hold(delivery.receipt.clone(), delivery.leased_at);
        self.receipts.insert(lease, delivery.receipt);
        let deaths = self.agent.node_lock.deaths(descriptor.mini_batch);
        LeasedDelivery {
            lease,
            descriptor,
            receive_count: delivery.receive_count,
            deaths,
            bytes: 0,
        }
    }

    /// Reports the memory of a process that is ready or has answered.
    async fn measure(&mut self, process: ProcessId, frame: &ProcessEvent) {
        let limit = self.agent.witness.job.process_max_memory;
        let Some(bytes) = self.processes.get(&process).map(Process::memory).filter(|_| limit > 0)
        else {
            return;
        };
        match frame {
            ProcessEvent::Ready { .. } if bytes <= limit => drop(self.small.insert(process)),
            ProcessEvent::Answered(_) if bytes > limit && self.small.contains(&process) => {
                self.outgrown.insert(process);
            }
            _ => {}
        }
        if !self.agent.has(Bug::IgnoresMemory) {
            self.handle(Event::Measured { process, bytes }).await;
        }
    }

    async fn tick(&mut self) {
        let mut snapshots = self.snapshots();
        for seen in &mut snapshots {
            seen.stacks = self.stacks.remove(&seen.process).then(|| "File".to_owned());
        }
        self.handle(Event::Tick(snapshots)).await;
        self.check_decided().await;
        let holds_up = self
            .processes
            .values()
            .filter_map(Process::holds_up_for)
            .any(|time| time > HOLD_UP_MAX);
        let idles =
            self.processes.values().filter_map(Process::idle_for).any(|time| time > HOLD_UP_MAX);
        if holds_up && idles && !self.agent.actor.is_told_to_stop() {
            self.agent.report("nothing waits behind a slow run");
        }
    }

    async fn check_decided(&mut self) {
        if !self.scheduler.has_long_run(now()) {
            return;
        }
        if self.agent.has(Bug::DropsTheSlowerTooEarly) {
            return self
                .handle(Event::Decided((0..self.agent.witness.job.mini_batches).collect()))
                .await;
        }
        let (store, messages) = (self.agent.store.clone(), self.messages.clone());
        self.errands.spawn(async move {
            if let Ok(decided) = store.decided().await {
                let _ = messages.send(Message::Decided(decided));
            }
        });
    }

    fn check_members(&mut self) {
        if !self.scheduler.asks_for_members()
            || self.looked_for_members.is_some_and(|at| at.elapsed() < TICK)
        {
            return;
        }
        self.looked_for_members = Some(Instant::now());
        let (store, messages) = (self.agent.store.clone(), self.messages.clone());
        self.errands.spawn(async move {
            if let Ok(members) = store.members().await {
                let _ = messages.send(Message::Members(members));
            }
        });
    }

    fn snapshots(&self) -> Vec<ProcessSnapshot> {
        self.processes.iter().map(|(id, process)| process.snapshot(*id)).collect()
    }

    async fn perform(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Receive { messages_max } => self.start_receiving(messages_max),
            Action::StopReceiving => self.receiving = None,
            Action::Prepare { lease, descriptor, .. } => self.prepare(lease, *descriptor),
            Action::Start { process, gpus, sees } => {
                // No simulated job has several GPUs for one process.
                let gpu = gpus.map(|gpus| gpus.numbers()[0]);
                return self.start(process, gpu, sees.unwrap_or_default());
            }
            Action::HandOver { process, frames, .. } => {
                if self.agent.actor.is_told_to_stop() {
                    self.agent.report("a stopping node starts no mini-batch");
                }
                if self.allocation.handed(process) {
                    self.agent.report("an agent keeps to its allocation");
                }
                if self.outgrown.contains(&process) {
                    self.agent.report("a process above its memory gets no mini-batch");
                }
                for frame in frames {
                    if let Some(rule) = self.gpus.handed(process, &frame) {
                        self.agent.report(rule);
                    }
                    let handed = self.scheduler.hand_over_of(process, frame.sequence);
                    let receipt = handed.and_then(|(lease, _)| self.receipts.get(&lease).cloned());
                    self.processes
                        .get_mut(&process)?
                        .send(ProcessCommand::Run(Box::new(frame), receipt));
                }
            }
            Action::Begin { lease, deadline } => self.leases.start(lease, deadline.into()),
            Action::Wait { lease } => self.leases.wait(lease),
            Action::Recall { process, sequences } => {
                let in_time = !self.agent.has(Bug::NeverRecalls)
                    && self.processes.get(&process)?.recall(sequences);
                return Some(Event::RecallAnswered { process, in_time });
            }
            Action::DumpStacks { process, .. } => drop(self.stacks.insert(process)),
            Action::Finish(process) => {
                self.gpus.leaves(process);
                self.processes.get_mut(&process)?.send(ProcessCommand::Finish);
            }
            Action::Kill(process) => self.kill(process),
            Action::Examine { process, sequence, .. } => {
                let mut death =
                    ErrorReport { category: "ProcessDied".into(), ..ErrorReport::default() };
                self.gpus.died(process, sequence, &mut death.message);
                let findings = ExitReport {
                    death,
                    early: "it died".into(),
                    chance: RestartChance::Likely,
                    has_checkpoints: false,
                };
                return Some(Event::Examined { process, findings: Box::new(findings) });
            }
            Action::Forget(process) => {
                self.gpus.leaves(process);
                self.agent.gpus.ended(&self.agent.spec.job_id, process);
                self.processes.remove(&process);
                self.allocation.forget(process);
                self.stacks.remove(&process);
            }
            Action::Announce(announcement) => self.announce(announcement).await,
            Action::Notice { waiting, .. } => {
                self.announce(Announcement::Event(ResultEvent::Waiting(waiting))).await;
            }
            Action::Log { message, .. } => {
                tracing::info!(
                    job.id = self.agent.spec.job_id,
                    node.id = self.agent.actor.name(),
                    "{message}"
                );
            }
            Action::BeginAlone { mini_batch } => {
                self.agent.node_lock.begin(mini_batch).expect("the folder is writable");
            }
            Action::EndAlone { mini_batch } => self.agent.node_lock.end(mini_batch),
            Action::ReuseTable(_) | Action::UserError { .. } => {}
        }
        None
    }

    fn start_receiving(&mut self, messages_max: usize) {
        let (leases, tasks, messages) =
            (self.leases.clone(), self.agent.tasks.clone(), self.messages.clone());
        self.receiving = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let received = leases.receive(&*tasks, messages_max).await;
            let _ = messages.send(Message::Received(received));
        })));
    }

    fn prepare(&mut self, lease: LeaseId, descriptor: Descriptor) {
        let (actor, messages) = (self.agent.actor.clone(), self.messages.clone());
        let job = &self.agent.witness.job;
        let ends = job.ends(descriptor.mini_batch, descriptor.tries_spent + 1);
        let (store, items) = (self.agent.store.clone(), job.items(descriptor.mini_batch));
        let longest = if job.run_time.is_some() { Duration::ZERO } else { PREPARATION_MAX };
        self.errands.spawn(async move {
            if ends == AttemptStatus::LoadTimedOut {
                return std::future::pending().await;
            }
            sleep(actor.dice().time(longest)).await;
            let descriptor = Descriptor { work: Work::Rank, ..descriptor };
            let payload = match items {
                1 => Payload::Rank,
                _ => Payload::Files { paths: vec!["/item".into(); items as usize], stamps: vec![] },
            };
            let prepared = Box::new(Prepared::new(payload, items));
            let preparation =
                with_kept(&store, &descriptor, prepared).await.unwrap_or_else(|error| {
                    let message = format!("{error:#}");
                    Preparation::Unreachable(ErrorReport { message, ..ErrorReport::default() })
                });
            let _ = messages.send(Message::Prepared(lease, Box::new(descriptor), preparation));
        });
    }

    fn start(&mut self, id: ProcessId, gpu: Option<u32>, sees: Vec<u32>) -> Option<Event> {
        self.agent.witness.starts.processes.fetch_add(1, Ordering::SeqCst);
        self.agent.witness.works_on(self.agent.actor.name());
        let may_fail = self.accidents < ACCIDENTS_MAX;
        self.accidents += u32::from(may_fail);
        let Agent { actor, witness, runs, .. } = &self.agent;
        let (actor, witness, runs) = (actor.clone(), witness.clone(), runs.clone());
        if may_fail && actor.happens(|weather| weather.accident) {
            return Some(Event::NotStarted {
                process: id,
                message: "bad weather".into(),
                chance: RestartChance::Likely,
            });
        }
        let (bug, messages) = (self.agent.bug, self.messages.clone());
        if self.agent.gpus.started(
            &self.agent.spec.job_id,
            id,
            gpu.into_iter().chain(sees).collect(),
        ) {
            self.agent.report("no GPU is in processes of two jobs of a node at a time");
        }
        self.gpus.started(id, gpu);
        self.processes.insert(
            id,
            Process::start(ProcessContext {
                id,
                actor,
                witness,
                runs,
                bug,
                messages,
                gpu,
                may_fail,
            }),
        );
        None
    }

    fn kill(&mut self, process: ProcessId) {
        let Some(killed) = self.processes.get_mut(&process) else { return };
        killed.kill();
        self.gpus.killed(process);
        let messages = self.messages.clone();
        self.errands.spawn(async move {
            sleep(Duration::from_millis(50)).await;
            let _ = messages.send(Message::Exited(process, -9));
        });
    }

    async fn announce(&mut self, mut announcement: Announcement) {
        match &mut announcement {
            Announcement::Outcome(outcome) => {
                let status = outcome.attempt.status;
                if self.agent.has(Bug::ForgetsSlowPreparations)
                    && status == AttemptStatus::LoadTimedOut
                {
                    return;
                }
                if self.agent.has(Bug::CountsCopies) && status != AttemptStatus::Succeeded {
                    outcome.attempt.copy = false;
                }
                if self.agent.has(Bug::ForgetsRejectedItems) {
                    outcome.attempt.rejected.pop();
                }
                self.record(outcome);
            }
            Announcement::Return { .. } if self.agent.has(Bug::KeepsWhatItShouldGiveBack) => return,
            Announcement::Return { lease, descriptor } => {
                self.agent.witness.returned(self.receipts.remove(lease).as_ref(), descriptor);
            }
            Announcement::Drop { lease } => {
                self.agent.witness.dropped(self.receipts.remove(lease).as_ref())
            }
            Announcement::Event(_) => {}
        }
        self.announcements.send(announcement);
    }

    fn record(&mut self, outcome: &mut Outcome) {
        // Names the attempt.
        let process = format!("{}/{}", self.agent.actor.name(), self.agent.witness.name_attempt());
        outcome.attempt.process = process.as_str().into();
        tracing::info!(
            job.id = self.agent.spec.job_id,
            mini_batch.id = outcome.attempt.mini_batch,
            attempt.number = outcome.attempt.try_number,
            deliveries.lost = outcome.attempt.deliveries_lost,
            attempt.outcome = outcome.attempt.status.word(),
            process.id = process,
            "an attempt ended"
        );
        if let Some(receipt) = self.receipts.remove(&outcome.lease) {
            let next = outcome.next_try.as_ref().map(|next| next.tries_spent);
            self.agent.witness.submitted(&receipt, &process, next);
        }
    }

    /// Ends the agent, and returns what it holds.
    async fn close(
        mut self,
        announcer: AbortOnDropHandle<anyhow::Result<()>>,
    ) -> anyhow::Result<UnfinishedMiniBatches> {
        let held = self.scheduler.close();
        self.execute().await;
        let Self { agent, leases, announcements, .. } = self;
        drop(announcements);
        let announced = announcer.await;
        let held = leases.release(held);
        drop(leases.lapsed());
        if !matches!(announced, Ok(Ok(()))) {
            return Err(failure(announced));
        }
        if leases.count() > 0 {
            let detail = format!("{} keeps {} mini-batches", agent.actor.name(), leases.count());
            agent.witness.report("a node that leaves returns what it holds", detail);
        }
        Ok(held)
    }
}

/// Returns why the announcer has ended.
fn failure(ended: Result<anyhow::Result<()>, JoinError>) -> anyhow::Error {
    match ended {
        Ok(Ok(())) => anyhow::anyhow!("the announcer has ended"),
        Ok(Err(error)) => error,
        Err(error) => error.into(),
    }
}

fn now() -> Timestamp {
    let instant = Instant::now().into_std();
    Timestamp { instant, milliseconds: protocol::milliseconds_since_epoch() }
}
