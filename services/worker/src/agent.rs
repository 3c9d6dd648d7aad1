//! One job on one node: executes the actions of the scheduler, and reports events to it.
//!
//! One loop reports events and executes actions. Receiving, preparing, announcing and each process have tasks of their
//! own. [`crate::scheduler`] makes every decision.

mod actions;
mod examine;
mod limits;
mod processes;
mod reports;
mod stacks;
mod template;
mod usage;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use protocol::{
    Activity, Descriptor, JobSpec, REJECTED_MAX, ResultEvent, SLOT_PHASES, milliseconds_since_epoch,
};
use queue::{Delivery, Queue};
use storage::JobStore;
use telemetry::metrics::STATE;
use telemetry::{Duty, GaugeContribution, Health, metrics};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::announce::{Announcements, Announcer, return_mini_batches, tell};
use crate::checkpoints::Checkpoints;
use crate::held::HeldFile;
use crate::job_users::JobUser;
use crate::lease::{LEASE_STEP, LeaseId, Leases};
use crate::limit::SharedLimiter;
use crate::log_throttle::LogThrottle;
use crate::memory_groups::MemoryGroup;
use crate::node::agent_link::AgentLink;
use crate::node_lock::NodeLockHolder;
use crate::node_log::NodeLog;
use crate::prepare::Preparer;
use crate::python_process::{PythonProcess, Report};
use crate::scheduler::{
    AgentAllocation, Config, Event, NOTICE_AFTER_MAX, NOTICE_AGAIN, ProcessId, Scheduler, Stop,
    Timestamp, wait_of_node,
};
use crate::{Crash, NodeLock, Variables, VisibleGpus, monitor};
use limits::RequestLimits;
use processes::Running;
use template::Template;
use usage::Usage;

/// Time between two ticks of the scheduler.
const TICK: Duration = Duration::from_millis(50);
/// Longest wait for the end of killed processes.
const END_TIME: Duration = Duration::from_secs(2);
/// The same on a machine with GPUs, whose driver may need a while; another job gets the GPU after that.
const END_TIME_WITH_GPUS: Duration = Duration::from_secs(20);

/// Time limits that do not depend on the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long a delivery stays invisible without an extension.
    pub lease_step: Duration,
    /// How long a draining agent waits for `run()`.
    pub grace: Duration,
    /// How long the agent retries calls of a queue that is unavailable, before it fails and keeps everything leased.
    pub patience: Duration,
}

/// Provisions a job on a node (installs packages, downloads reference data), and reports to the job if that takes long.
pub async fn report_provisioning<T>(
    results: &dyn Queue,
    job_id: &str,
    node: &str,
    provisioning: impl Future<Output = T>,
) -> T {
    let began = Instant::now();
    let mut provisioning = std::pin::pin!(provisioning);
    let mut pause = NOTICE_AFTER_MAX;
    loop {
        tokio::select! {
            provisioned = &mut provisioning => return provisioned,
            () = tokio::time::sleep(pause) => {
                pause = NOTICE_AGAIN;
                let detail = "making the Python environment, or fetching side inputs".to_owned();
                let waiting = wait_of_node(node, began.elapsed(), milliseconds_since_epoch(), detail);
                // A failure to report does not stop the work.
                if let Err(error) = tell(results, job_id, &ResultEvent::Waiting(waiting.into()), Duration::ZERO).await {
                    tracing::debug!(job.id = job_id, "cannot report that provisioning takes long: {error:#}");
                }
            }
        }
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease_step: LEASE_STEP,
            grace: Duration::from_secs(10),
            patience: Duration::from_secs(12),
        }
    }
}

/// One job on one node, about to start.
#[derive(Clone, Debug)]
pub struct Agent {
    /// The job.
    pub spec: Arc<JobSpec>,
    /// Its objects.
    pub store: JobStore,
    /// Task queue.
    pub tasks: Arc<dyn Queue>,
    /// Result queue.
    pub results: Arc<dyn Queue>,
    /// Receives messages that are not mini-batches of the job; `None`: the agent only logs and removes them.
    pub dead_letters: Option<Arc<dyn Queue>>,
    /// Node id.
    pub node: String,
    /// Python processes to run.
    pub process_count: u32,
    /// The connection to a node that several jobs share; `None`: the job has the whole node.
    pub agent_link: Option<AgentLink>,
    /// What this node may use of the limits of the job; `None`: the job has none.
    pub limiter: Option<SharedLimiter>,
    /// Where the agent says which mini-batches it has.
    pub activity: watch::Sender<Activity>,
    /// GPUs of this machine.
    pub gpus: VisibleGpus,
    /// Interpreter.
    pub python: PathBuf,
    /// Folder that holds the Python packages `gristmill` and `azureml_user`.
    pub package: PathBuf,
    /// The environment variables of this process that scripts get.
    pub variables: Variables,
    /// Folder of this node for working directories and downloaded inputs.
    pub work_folder: PathBuf,
    /// The user that runs the Python processes; `None`: the user of this process.
    pub user: Option<Arc<JobUser>>,
    /// Shared by the agents of this node.
    pub node_lock: NodeLock,
    /// Limits the memory of the Python processes; `None`: this machine, or its caller, does not limit it.
    pub memory_group: Option<Arc<MemoryGroup>>,
    /// Bytes of tables and downloads that may be ready at once.
    pub prefetch_bytes_max: u64,
    /// Whether no other node works on the job.
    pub is_alone: bool,
    /// Whether the task queue forgets what this node holds if the process dies: then the node writes it to disk.
    pub notes_held: bool,
    /// Time limits.
    pub timing: Timing,
    /// Health of the node.
    pub health: Health,
    /// Crash tests.
    pub crash: Crash,
}

impl Agent {
    /// Works until it is stopped. Fails if the queue or the store cannot be used; the queue then redelivers the
    /// mini-batches of this agent.
    pub async fn run(self, stop: watch::Receiver<Stop>) -> Result<()> {
        let (tasks, patience) = (self.tasks.clone(), self.timing.patience);
        let held = self.work(stop).await?;
        return_mini_batches(&*tasks, held, patience).await
    }

    /// Returns the root of the log tree: in the job's folder, or on this node if the job has none. The path is free of links,
    /// so that a link below it is one that a script has made.
    pub fn logs(&self) -> PathBuf {
        let folder = self.store.folder().unwrap_or(&self.work_folder);
        folder.canonicalize().unwrap_or_else(|_| folder.to_owned()).join("logs")
    }

    /// Works like [`run`](Self::run), but leaves it to the caller to return or acknowledge the mini-batches still held
    /// at the end, whose leases the agent no longer extends.
    pub async fn work(
        self,
        mut stop: watch::Receiver<Stop>,
    ) -> Result<Vec<(queue::Receipt, Descriptor)>> {
        if *stop.borrow_and_update() != Stop::No {
            return Ok(Vec::new());
        }
        let _idle = IdleOnDrop(self.activity.clone());
        let logs = self.logs();
        let (messages, mut inbox) = mpsc::unbounded_channel();
        let leases = Leases::new(self.timing.lease_step, self.tasks.limits().timed_lease);
        let lost = messages.clone();
        let _heartbeat = leases.keep(self.tasks.clone(), move |lease| {
            let _ = lost.send(Message::LeaseLost(lease));
        });
        let interval = Duration::from_secs(self.spec.resource_monitor_interval_seconds);
        let _monitor =
            monitor::start(logs.join("perf").join(&self.node), interval, self.gpus.clone());
        let checkpoints = Checkpoints::new(&self.store, &self.work_folder, self.user.clone());
        checkpoints.look().await;
        let cache = self.work_folder.join("inputs");
        let preparer =
            Preparer::new(self.spec.clone(), self.store.clone(), cache, self.prefetch_bytes_max);
        let preparer = Arc::new(preparer);
        let (announcements, mut announcer) =
            self.announcer(&leases, &checkpoints, &preparer).start();
        let alive = self.health.coming_round(format!("the agent of job {}", self.spec.job_id));
        let log = NodeLog::open(&logs, &self.node);
        let mut agent_link = self.agent_link.clone();
        let allocation = agent_link.as_mut().map(AgentLink::allocation);
        let config = self.config(allocation, log.first_process_number(), checkpoints.are_remote());
        let _uploads = checkpoints.keep();
        let held_file = match self.notes_held {
            true => Some(
                HeldFile::create(&self.work_folder).context("note which mini-batches are held")?,
            ),
            false => None,
        };
        let mut executor = Executor {
            scheduler: Scheduler::new(config, now()),
            preparer,
            checkpoints,
            limits: self.limiter.clone().map(RequestLimits::new),
            node_lock: self.node_lock.enter(&self.spec.job_id),
            receiving: None,
            held_file,
            running: (0..self.process_count).map(|_| None).collect(),
            template: None,
            usage: Usage::new(self.gpus.clone()),
            reaped: Instant::now(),
            looked: Instant::now(),
            looked_for_members: None,
            leases_held: GaugeContribution::of(&metrics().leases_held),
            processes: SLOT_PHASES.map(|phase| {
                GaugeContribution::of(
                    &metrics().processes.get_or_create(&[(STATE, phase.metric_word())]),
                )
            }),
            agent: self,
            leases,
            messages,
            announcements,
            log,
            dead_lettered: LogThrottle::default(),
        };
        executor.start_template();
        executor.execute().await;

        let worked =
            executor.work(&mut stop, &mut inbox, &mut agent_link, &mut announcer, &alive).await;
        if worked.is_err() {
            // Another job may get their GPUs.
            executor.kill_all().await;
        }
        worked?;
        let held = executor.close().await;
        drop(executor);
        announcer.await.context("the announcer panicked")??;
        Ok(held)
    }

    fn announcer(
        &self,
        leases: &Leases,
        checkpoints: &Checkpoints,
        preparer: &Arc<Preparer>,
    ) -> Announcer {
        Announcer {
            job_id: self.spec.job_id.clone(),
            store: self.store.clone(),
            checkpoints: checkpoints.clone(),
            tasks: self.tasks.clone(),
            results: self.results.clone(),
            leases: leases.clone(),
            patience: self.timing.patience,
            rejected_max: REJECTED_MAX,
            preparer: Some(preparer.clone()),
            crash: self.crash,
        }
    }

    fn config(
        &self,
        allocation: Option<AgentAllocation>,
        first_process: u32,
        fetches_checkpoints: bool,
    ) -> Config {
        Config {
            spec: self.spec.clone(),
            node: self.node.clone(),
            processes: self.process_count,
            allocation,
            first_process,
            gpus: self.gpus.count(),
            prefetch_bytes_max: self.prefetch_bytes_max,
            grace: self.timing.grace,
            fetches_checkpoints,
            lease_max: self.tasks.limits().lease_max,
            is_alone: self.is_alone,
        }
    }
}

/// Reports an empty activity when an agent ends in any way.
struct IdleOnDrop(watch::Sender<Activity>);

impl Drop for IdleOnDrop {
    fn drop(&mut self) {
        self.0.send_replace(Activity::default());
    }
}

/// A message from a task beside the loop.
enum Message {
    Received(Result<Vec<Delivery>>),
    Process {
        process: ProcessId,
        report: Report,
    },
    /// A report of the template.
    Template(Report),
    LeaseLost(LeaseId),
    /// An event that the scheduler handles as it is.
    Event(Box<Event>),
}

/// The scheduler of one job, and the state that its actions need.
struct Executor {
    scheduler: Scheduler,
    agent: Agent,
    leases: Leases,
    messages: mpsc::UnboundedSender<Message>,
    announcements: Announcements,
    log: NodeLog,
    /// Limits the log lines about messages that are not mini-batches of the job.
    dead_lettered: LogThrottle,
    preparer: Arc<Preparer>,
    checkpoints: Checkpoints,
    receiving: Option<AbortOnDropHandle<()>>,
    held_file: Option<HeldFile>,
    /// The handle of this job to the lock that the agents of the node share.
    node_lock: NodeLockHolder,
    /// `None`: the job has no limits.
    limits: Option<RequestLimits>,
    /// The process in each slot of the scheduler.
    running: Vec<Option<Running>>,
    /// The process from which others are forked; `None`: each process starts an interpreter.
    template: Option<Template>,
    usage: Usage,
    /// When ended children of the script were last reaped.
    reaped: Instant,
    /// When the agent last read which speculative runs are decided, and which nodes work on the
    /// job.
    looked: Instant,
    looked_for_members: Option<Instant>,
    /// This job's part of the node's leases.
    leases_held: GaugeContribution,
    /// This job's part of the node's processes, by phase.
    processes: [GaugeContribution; SLOT_PHASES.len()],
}

impl Executor {
    /// Reports events and executes actions until the agent can close.
    async fn work(
        &mut self,
        stop: &mut watch::Receiver<Stop>,
        inbox: &mut mpsc::UnboundedReceiver<Message>,
        agent_link: &mut Option<AgentLink>,
        announcer: &mut JoinHandle<Result<()>>,
        alive: &Duty,
    ) -> Result<()> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !self.scheduler.is_over(now()) {
            alive.beat();
            tokio::select! {
                // A stop precedes all other pending events, so that a stopped agent starts nothing.
                biased;
                stop = Stop::next(stop) => self.handle(Event::Stop(stop)).await,
                ended = &mut *announcer => {
                    ended.context("the announcer panicked")??;
                    unreachable!("the announcer ends before its senders only with an error");
                }
                allocation = next_allocation(agent_link) => self.handle(Event::Allocate(allocation)).await,
                _ = tick.tick() => self.tick().await,
                message = inbox.recv() => {
                    self.receive(message.expect("the executor itself holds a sender")).await?;
                    while let Ok(message) = inbox.try_recv() {
                        self.receive(message).await?;
                    }
                }
            }
            self.schedule().await;
            if let Some(agent_link) = &*agent_link
                && let Some(in_use) = self.scheduler.in_use()
            {
                agent_link.report(in_use);
            }
        }
        self.fetch_no_more().await;
        // The node returns only what the scheduler knows.
        while let Ok(message) = inbox.try_recv() {
            self.receive(message).await?;
        }
        Ok(())
    }

    /// Reports an event, and executes the resulting actions.
    async fn handle(&mut self, event: Event) {
        self.scheduler.handle(event, now());
        self.execute().await;
    }

    /// Executes the next steps after all events so far.
    async fn schedule(&mut self) {
        let leases = self.leases.lapsed();
        if !leases.is_empty() {
            let snapshots = self.snapshots();
            self.handle(Event::LeasesLost { leases, snapshots }).await;
        }
        let access =
            self.node_lock.access(self.scheduler.wants_to_be_alone(), self.scheduler.holds_any());
        self.scheduler.access(access);
        self.scheduler.schedule(now(), self.announcements.are_behind());
        self.execute().await;
    }

    async fn execute(&mut self) {
        while let Some(action) = self.scheduler.next_action() {
            if let Some(answer) = self.perform(action).await {
                self.scheduler.handle(answer, now());
            }
        }
    }

    /// Kills the remaining processes, and waits for their end.
    async fn kill_all(&self) {
        self.python_processes().for_each(PythonProcess::kill);
        let ends = self.ends();
        let all_ended = futures::future::join_all(ends.iter().map(CancellationToken::cancelled));
        let _ = tokio::time::timeout(self.end_time(), all_ended).await;
    }

    /// Returns the messages to the queue that its backend has fetched ahead. Otherwise the broker would count each as a
    /// delivery, lost with this node, when the handle of the agent to the queue is dropped.
    async fn fetch_no_more(&mut self) {
        self.receiving = None;
        let nothing =
            queue::Receive { messages_max: 0, visibility: Duration::ZERO, wait: Duration::ZERO };
        let patience = self.agent.timing.patience;
        match tokio::time::timeout(patience, self.agent.tasks.receive(nothing)).await {
            // The job has ended, and with it its queues.
            Ok(Ok(_) | Err(queue::Error::Absent { .. })) => {}
            Ok(Err(error)) => {
                tracing::debug!("cannot return messages that no process needs: {error:#}")
            }
            Err(_) => tracing::debug!(
                "cannot return messages that no process needs: the queue does not answer"
            ),
        }
    }

    /// Kills the remaining processes, and returns the mini-batches that the agent still holds, with their receipts.
    async fn close(&mut self) -> Vec<(queue::Receipt, Descriptor)> {
        if let Some(template) = &self.template {
            template.process.kill();
        }
        let mut ends = self.ends();
        let held = self.scheduler.close();
        self.execute().await;
        ends.extend(self.ends());
        // The command may end with this agent, and then nothing kills the children of the processes.
        let all_ended = futures::future::join_all(ends.iter().map(CancellationToken::cancelled));
        let _ = tokio::time::timeout(self.end_time(), all_ended).await;
        self.checkpoints.finish().await;
        self.leases.release(held)
    }

    fn python_processes(&self) -> impl Iterator<Item = &PythonProcess> {
        let template = self.template.iter().map(|template| &template.process);
        self.running.iter().flatten().map(|running| &running.process).chain(template)
    }

    /// Returns a token for each Python process, which is canceled when the process has ended.
    fn ends(&self) -> Vec<CancellationToken> {
        self.python_processes().map(|process| process.ended.clone()).collect()
    }

    fn end_time(&self) -> Duration {
        if self.agent.gpus.count() > 0 { END_TIME_WITH_GPUS } else { END_TIME }
    }

    /// Returns the process, unless it is forgotten.
    fn running(&mut self, process: ProcessId) -> Option<&mut Running> {
        self.running[process.slot].as_mut().filter(|running| running.id == process)
    }
}

/// Waits for the next allocation of the job.
async fn next_allocation(agent_link: &mut Option<AgentLink>) -> AgentAllocation {
    match agent_link {
        Some(agent_link) => agent_link.next().await,
        None => std::future::pending().await,
    }
}

fn now() -> Timestamp {
    Timestamp { instant: Instant::now(), milliseconds: milliseconds_since_epoch() }
}
