//! The node: one loop that decides. It is the only one that receives from the task queue, hands mini-batches to
//! processes, and judges how they end; everything else (receiving, preparing, each process, announcing) runs beside it
//! and reports to it.
//!
//! A delivery moves through: received → waiting to be prepared → being prepared → waiting for a process → in the pipe
//! of a process → announced. Its lease is held all the way.

mod processes;
mod watch;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use protocol::{AttemptStatus, Descriptor, ErrorReport, JobSpec, ResultEvent};
use queue::{Delivery, Queue, Receive};
use storage::JobStore;
use tokio::sync::{mpsc, watch as channel};
use tokio_util::task::AbortOnDropHandle;

use crate::announce::{Announcement, Announcements, Announcer, Outcome, RowsRoom, give_back};
use crate::gpu::GpuIndices;
use crate::lease::{LEASE_STEP, LeaseId, Leases};
use crate::node_log::NodeLog;
use crate::prepare::{self, Preparer};
use crate::python_process::Report;
use crate::slot::{Ending, InPipe, Prepared, Worker, conclude};
use crate::{Crash, CrashPoint, monitor};
use processes::Slot;

/// How often processes are looked at for timeouts.
const TICK: Duration = Duration::from_millis(50);
/// How long one receive call waits for the first message.
const RECEIVE_WAIT: Duration = Duration::from_secs(5);
/// Mini-batches asked for at once, at most.
const RECEIVE_MAX: usize = 512;
/// How long a draining node lets `run()` finish what it has begun.
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// How long `shutdown()` and the end of the interpreter may take.
const SHUTDOWN_TIME: Duration = Duration::from_secs(30);

/// What the node should do. Values only ever get larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Work.
    No,
    /// The job is done: let processes call `shutdown()` and end.
    Finish,
    /// Take nothing new, finish what runs if that is soon, give the rest back.
    Drain,
    /// Kill what runs, give everything back.
    Kill,
}

/// A node, about to start.
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
    /// Node id.
    pub node: String,
    /// Python processes to run.
    pub process_count: u32,
    /// GPUs of this machine.
    pub gpu_count: u32,
    /// Interpreter.
    pub python: PathBuf,
    /// Folder that holds the Python packages `gristmill` and `azureml_user`.
    pub package: PathBuf,
    /// Folder of this node for working directories and downloaded inputs.
    pub work_folder: PathBuf,
    /// Tables that may be ready at once, in bytes.
    pub prefetch_bytes_max: u64,
    /// Crash tests.
    pub crash: Crash,
}

impl Agent {
    /// Works until told to stop. An error means that queue or storage cannot be used; what was held is redelivered.
    pub async fn run(self, mut stop: channel::Receiver<Stop>) -> Result<()> {
        let logs = self.store.folder().unwrap_or(&self.work_folder).join("logs");
        let (events, mut reports) = mpsc::unbounded_channel();
        let leases = Leases::default();
        let lost = events.clone();
        let _heartbeat = leases.keep(self.tasks.clone(), move |lease| {
            let _ = lost.send(Event::LeaseLost(lease));
        });
        let interval = Duration::from_secs(self.spec.resource_monitor_interval_seconds);
        let _monitor = monitor::start(logs.join("perf").join(&self.node), interval);
        let (announcements, announcer) = Announcer {
            job_id: self.spec.job_id.clone(),
            store: self.store.clone(),
            tasks: self.tasks.clone(),
            results: self.results.clone(),
            leases: leases.clone(),
            crash: self.crash,
        }
        .start();
        let mut announcer = announcer;
        let mut node = Node::new(self, logs, leases, events, announcements);
        node.start_processes().await?;

        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !node.is_over() {
            tokio::select! {
                event = reports.recv() => {
                    node.handle(event.expect("the node itself holds a sender")).await?;
                    while let Ok(event) = reports.try_recv() {
                        node.handle(event).await?;
                    }
                }
                _ = tick.tick() => node.tick().await?,
                changed = stop.changed() => {
                    // Whoever could tell us to stop is gone: so is the job.
                    let stop = changed.map_or(Stop::Kill, |()| *stop.borrow_and_update());
                    node.stop(stop).await?;
                }
                ended = &mut announcer => {
                    ended.context("the announcer panicked")??;
                    unreachable!("the announcer ends before its senders only with an error");
                }
            }
            node.prepare_next();
            node.hand_over();
            node.receive();
        }
        let held = node.close().await?;
        let (tasks, job_id) = (node.agent.tasks.clone(), node.agent.spec.job_id.clone());
        drop(node);
        announcer.await.context("the announcer panicked")??;
        give_back(&*tasks, &job_id, held).await
    }
}

/// What happens beside the loop.
enum Event {
    Received(Result<Vec<Delivery>, queue::Error>),
    Prepared(LeaseId, prepare::Preparation),
    Process { slot: usize, generation: u64, report: Report },
    LeaseLost(LeaseId),
}

/// A delivery that is being prepared.
struct Preparing {
    waiting: Waiting,
    /// Memory it is expected to take.
    bytes: u64,
    since: Instant,
}

/// A delivery before it is prepared.
#[derive(Clone)]
struct Waiting {
    lease: LeaseId,
    descriptor: Descriptor,
    deliveries_lost: u32,
}

struct Node {
    agent: Agent,
    leases: Leases,
    events: mpsc::UnboundedSender<Event>,
    announcements: Announcements,
    rows_room: RowsRoom,
    log: NodeLog,
    preparer: Arc<Preparer>,
    slots: Vec<Slot>,
    gpus: GpuIndices,
    next_process: u32,
    /// Failures of `init()` in a row.
    failed_starts: u32,
    /// Processes in a row that were ready and ended without answering and without a mini-batch to blame.
    idle_deaths: u32,
    /// What the last of either said.
    last_failure: String,
    /// The reason, once the node has given up starting processes.
    gave_up: Option<String>,
    stop: Stop,
    /// When patience with a stop ends.
    stop_deadline: Option<Instant>,

    receiving: Option<AbortOnDropHandle<()>>,
    to_prepare: VecDeque<Waiting>,
    preparing: HashMap<LeaseId, Preparing>,
    ready: VecDeque<Prepared>,
}

impl Node {
    fn new(
        agent: Agent,
        logs: PathBuf,
        leases: Leases,
        events: mpsc::UnboundedSender<Event>,
        announcements: Announcements,
    ) -> Self {
        let log = NodeLog::open(&logs, &agent.node);
        let cache = agent.work_folder.join("inputs");
        Self {
            preparer: Arc::new(Preparer::new(agent.spec.clone(), agent.store.clone(), cache)),
            slots: (0..agent.process_count).map(|_| Slot::default()).collect(),
            gpus: GpuIndices::new(agent.gpu_count),
            next_process: log.first_process_number(),
            failed_starts: 0,
            idle_deaths: 0,
            last_failure: String::new(),
            gave_up: None,
            stop: Stop::No,
            stop_deadline: None,
            receiving: None,
            to_prepare: VecDeque::new(),
            preparing: HashMap::new(),
            ready: VecDeque::new(),
            agent,
            leases,
            events,
            announcements,
            rows_room: RowsRoom::default(),
            log,
        }
    }

    async fn handle(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Received(deliveries) => self.received(deliveries).await,
            Event::Prepared(lease, preparation) => self.prepared(lease, preparation).await,
            Event::Process { slot, generation, report } => self.process_reported(slot, generation, report).await,
            Event::LeaseLost(lease) => {
                self.lease_lost(lease);
                Ok(())
            }
        }
    }

    // ---- receive ---------------------------------------------------------------------------------------------

    /// Asks the queue for more when less is held than the processes will soon need.
    fn receive(&mut self) {
        if self.receiving.is_some() || self.stop != Stop::No || self.gave_up.is_some() {
            return;
        }
        let depth: usize = self.slots.iter().map(Slot::depth).sum();
        let wanted = (2 * depth).saturating_sub(self.leases.count()).min(RECEIVE_MAX);
        // Few at a time are not worth a call.
        if wanted == 0 || wanted * 4 < depth.min(RECEIVE_MAX) {
            return;
        }
        let (tasks, events) = (self.agent.tasks.clone(), self.events.clone());
        self.receiving = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let request = Receive { messages_max: wanted, visibility: LEASE_STEP, wait: RECEIVE_WAIT };
            let received = tasks.receive(request).await;
            if matches!(received, Err(queue::Error::Unavailable { .. })) {
                // The one place that paces a queue which is away.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            let _ = events.send(Event::Received(received));
        })));
    }

    async fn received(&mut self, received: Result<Vec<Delivery>, queue::Error>) -> Result<()> {
        self.receiving = None;
        let deliveries = match received {
            Ok(deliveries) => deliveries,
            Err(error @ queue::Error::Unavailable { .. }) => {
                tracing::warn!("cannot receive from the task queue, trying again: {error}");
                return Ok(());
            }
            Err(error) => return Err(error).context("receive from the task queue"),
        };
        if !deliveries.is_empty() {
            (self.agent.crash)(CrashPoint::AfterReceive);
        }
        for delivery in deliveries {
            let descriptor: Descriptor = match serde_json::from_slice(&delivery.body) {
                Ok(descriptor) => descriptor,
                Err(error) => {
                    self.log.main("ERROR", &format!("a message that is no descriptor was removed: {error}"));
                    self.agent.tasks.acknowledge(&[delivery.receipt]).await.context("remove a message")?;
                    continue;
                }
            };
            let deliveries_lost = descriptor.deliveries_lost + delivery.receive_count.saturating_sub(1);
            let waiting = Waiting { lease: self.leases.hold(delivery.receipt), descriptor, deliveries_lost };
            if deliveries_lost > self.agent.spec.lost_delivery_max {
                self.lost_too_often(waiting).await?;
            } else {
                self.to_prepare.push_back(waiting);
            }
        }
        Ok(())
    }

    async fn lost_too_often(&mut self, waiting: Waiting) -> Result<()> {
        let message = format!(
            "mini-batch {} was lost with its node {} times (limit {}): does it take the machine down? Look at the \
             memory of its last attempts in logs/perf",
            waiting.descriptor.mini_batch, waiting.deliveries_lost, self.agent.spec.lost_delivery_max
        );
        let error = ErrorReport {
            category: "LostTooOften".into(),
            message,
            traceback: String::new(),
            log: format!("sys/node/{}/_main.txt", self.agent.node),
        };
        self.fail_unrun(waiting, AttemptStatus::LostTooOften, error).await
    }

    // ---- prepare ---------------------------------------------------------------------------------------------

    /// Prepares what waits, as far as memory allows.
    fn prepare_next(&mut self) {
        while let Some(next) = self.to_prepare.front() {
            if let Some(prepared) = self.preparer.at_once(next.lease, &next.descriptor, next.deliveries_lost) {
                self.to_prepare.pop_front();
                self.ready.push_back(prepared);
                continue;
            }
            let bytes = prepare::expected_bytes(&next.descriptor);
            let idle = self.preparing.is_empty() && self.ready.is_empty();
            let full = self.preparing.len() > self.slots.len()
                || self.prepared_bytes() + bytes > self.agent.prefetch_bytes_max;
            if full && !idle {
                return;
            }
            let Some(waiting) = self.to_prepare.pop_front() else { return };
            let Waiting { lease, descriptor, deliveries_lost } = waiting.clone();
            self.preparing.insert(lease, Preparing { waiting, bytes, since: Instant::now() });
            let (preparer, events) = (self.preparer.clone(), self.events.clone());
            tokio::spawn(async move {
                let preparation = preparer.prepare(lease, descriptor, deliveries_lost).await;
                let _ = events.send(Event::Prepared(lease, preparation));
            });
        }
    }

    fn prepared_bytes(&self) -> u64 {
        let preparing: u64 = self.preparing.values().map(|preparing| preparing.bytes).sum();
        let ready: u64 = self.ready.iter().map(|prepared| prepared.bytes).sum();
        let in_pipes: u64 = self.slots.iter().filter_map(|slot| Some(slot.running.as_ref()?.pipe.bytes())).sum();
        preparing + ready + in_pipes
    }

    async fn prepared(&mut self, lease: LeaseId, preparation: prepare::Preparation) -> Result<()> {
        // Not there: it took too long, and has been given up.
        if self.preparing.remove(&lease).is_none() {
            return Ok(());
        }
        match preparation {
            prepare::Preparation::Ready(prepared) => self.ready.push_back(*prepared),
            prepare::Preparation::Empty(prepared) => {
                // Never reaches `run()`: it is done, with whatever records failed before.
                let ending = Ending {
                    status: AttemptStatus::Succeeded,
                    returned: 0,
                    columns: None,
                    error: None,
                    run_seconds: 0.0,
                    process_seconds: 0.0,
                };
                self.conclude(None, InPipe::unrun(*prepared), ending, Bytes::new()).await?;
            }
            prepare::Preparation::Failed(prepared, error) => {
                let ending = Ending::failed(AttemptStatus::LoadFailed, error);
                self.conclude(None, InPipe::unrun(*prepared), ending, Bytes::new()).await?;
            }
        }
        Ok(())
    }

    /// A disk or a network that does not answer holds up its own mini-batch only, and not for ever.
    async fn give_up_slow_preparations(&mut self) -> Result<()> {
        let limit = self.limit();
        let slow = self.preparing.extract_if(|_, preparing| preparing.since.elapsed() > limit);
        for (_, Preparing { waiting, .. }) in slow.collect::<Vec<_>>() {
            let error = ErrorReport {
                category: "LoadTimeout".into(),
                message: format!(
                    "mini-batch {} could not be read within {} seconds (run_invocation_timeout plus \
                     task_overhead_timeout): {}",
                    waiting.descriptor.mini_batch,
                    limit.as_secs(),
                    waiting.descriptor.detail()
                ),
                ..ErrorReport::default()
            };
            self.fail_unrun(waiting, AttemptStatus::LoadTimedOut, error).await?;
        }
        Ok(())
    }

    async fn fail_unrun(&mut self, waiting: Waiting, status: AttemptStatus, error: ErrorReport) -> Result<()> {
        let prepared = Prepared::unreadable(waiting.lease, waiting.descriptor, waiting.deliveries_lost);
        let ending = Ending::failed(status, error);
        self.conclude(None, InPipe::unrun(prepared), ending, Bytes::new()).await
    }

    // ---- announce --------------------------------------------------------------------------------------------

    /// Announces how an attempt ended. `slot`: whose process it was, if one saw it.
    async fn conclude(&mut self, slot: Option<usize>, mut handed: InPipe, ending: Ending, rows: Bytes) -> Result<()> {
        let mut running = slot.and_then(|slot| self.slots[slot].running.as_mut());
        let process = running.as_ref().map_or(String::new(), |running| running.name.clone());
        let worker = Worker { node: self.agent.node.clone(), process };
        let (attempt, next_try) = conclude(&mut handed, &worker, ending, self.agent.spec.run_max_try);
        if let Some(running) = &mut running {
            running.log.attempt(running.process.id(), &attempt);
        }
        let lease = handed.prepared.lease;
        let room = self.rows_room.reserve(rows.len()).await;
        let outcome = Outcome { lease, attempt, rows, next_try, room };
        self.announce(Announcement::Outcome(Box::new(outcome))).await
    }

    async fn announce(&self, announcement: Announcement) -> Result<()> {
        // The announcer is gone only after an error of its own, which the main loop reports.
        let _ = self.announcements.send(announcement).await;
        Ok(())
    }

    async fn tell(&self, event: ResultEvent) -> Result<()> {
        self.announce(Announcement::Event(event)).await
    }

    // ---- stop ------------------------------------------------------------------------------------------------

    async fn stop(&mut self, stop: Stop) -> Result<()> {
        if stop <= self.stop {
            return Ok(());
        }
        self.stop = stop;
        self.receiving = None;
        let patience = if stop == Stop::Finish { SHUTDOWN_TIME } else { DRAIN_TIME };
        self.stop_deadline = Some(Instant::now() + patience);
        self.log.main(
            "INFO",
            match stop {
                Stop::No => "working",
                Stop::Finish => "the job is done",
                Stop::Drain => "draining: what runs may finish, the rest is given back",
                Stop::Kill => "stopping at once",
            },
        );
        if stop == Stop::Kill {
            self.kill_processes();
        }
        self.finish_idle_processes();
        Ok(())
    }

    /// Whether nothing is left to be done here.
    fn is_over(&self) -> bool {
        match self.stop {
            Stop::No => false,
            Stop::Kill => true,
            Stop::Finish | Stop::Drain => {
                let too_late = self.stop_deadline.is_some_and(|deadline| Instant::now() > deadline);
                too_late || self.slots.iter().all(Slot::is_empty)
            }
        }
    }

    /// Ends what is left and returns what must be given back, with its receipts.
    async fn close(&mut self) -> Result<Vec<(queue::Receipt, Descriptor)>> {
        self.receiving = None;
        self.kill_processes();
        let mut held: Vec<(LeaseId, Descriptor, u32)> = Vec::new();
        let preparing = self.preparing.drain().map(|(_, preparing)| preparing.waiting);
        held.extend(
            self.to_prepare.drain(..).chain(preparing).map(|one| (one.lease, one.descriptor, one.deliveries_lost)),
        );
        let in_pipes = self.slots.iter_mut().flat_map(Slot::take_back);
        held.extend(in_pipes.chain(self.ready.drain(..)).map(|one| (one.lease, one.descriptor, one.deliveries_lost)));
        for slot in 0..self.slots.len() {
            self.forget_process(slot);
        }
        let stopped = ResultEvent::NodeStopped { node: self.agent.node.clone(), cause: self.gave_up.clone() };
        self.tell(stopped).await?;
        self.log.main("INFO", &format!("stopped; {} mini-batches are given back", held.len()));
        let receipt = |(lease, descriptor, deliveries_lost): (LeaseId, Descriptor, u32)| {
            let receipt = self.leases.receipt(lease)?;
            self.leases.end(lease);
            Some((receipt, Descriptor { deliveries_lost, ..descriptor }))
        };
        Ok(held.into_iter().filter_map(receipt).collect())
    }
}
