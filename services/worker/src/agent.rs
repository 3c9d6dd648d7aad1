//! One job on one node: one loop that decides. It is the only one that receives from the task queue, hands mini-batches
//! to processes, and judges how they end; everything else (receiving, preparing, each process, announcing) runs beside
//! it and reports to it.
//!
//! A delivery moves through: received → waiting to be prepared → being prepared → waiting for a process → in the pipe
//! of a process → announced. Its lease is held all the way.

mod processes;
mod receive;
mod stop;
mod watch;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use protocol::{Descriptor, JobSpec, ResultEvent, SLOT_PHASES};
use queue::{Delivery, Queue};
use storage::JobStore;
use telemetry::metrics::STATE;
use telemetry::{Health, Share, metrics};
use tokio::sync::{mpsc, watch as channel};
use tokio_util::task::AbortOnDropHandle;

use crate::announce::{Announcement, Announcements, Announcer, Outcome, RowsRoom, give_back};
use crate::gpu::GpuIndices;
use crate::lease::{LeaseId, Leases};
use crate::node_log::NodeLog;
use crate::prepare::{self, Preparer};
use crate::python_process::Report;
use crate::slot::{Ending, InPipe, Prepared, Worker, conclude};
use crate::{Crash, monitor};
use processes::Slot;

/// How often processes are looked at for timeouts.
const TICK: Duration = Duration::from_millis(50);
/// How long `shutdown()` and the end of the interpreter may take.
const SHUTDOWN_TIME: Duration = Duration::from_secs(30);

/// What the agent should do. Values only ever get larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Work.
    No,
    /// The job is done: let processes call `shutdown()` and end.
    Finish,
    /// Take nothing new, give back what has not begun, finish what runs if that is soon.
    Drain,
    /// Kill what runs, give everything back.
    Kill,
}

/// How long things may take that no job decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long a delivery stays invisible without news of its node. Leases are extended three times as often.
    pub lease_step: Duration,
    /// How long a draining agent lets `run()` finish what it has begun.
    pub grace: Duration,
    /// How long a queue that does not answer is waited for, before the agent gives up with everything still leased.
    pub patience: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { lease_step: Duration::from_secs(30), grace: Duration::from_secs(10), patience: Duration::from_secs(12) }
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
    /// Where messages go that are no mini-batches of the job; `None`: they are removed, and told in the log.
    pub dead_letters: Option<Arc<dyn Queue>>,
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
    /// What takes how long.
    pub timing: Timing,
    /// Where it shows that it makes progress.
    pub health: Health,
    /// Crash tests.
    pub crash: Crash,
}

impl Agent {
    /// Works until told to stop. An error means that queue or storage cannot be used; what was held is redelivered.
    pub async fn run(self, stop: channel::Receiver<Stop>) -> Result<()> {
        let (tasks, job_id, patience) = (self.tasks.clone(), self.spec.job_id.clone(), self.timing.patience);
        let held = self.work(stop).await?;
        give_back(&*tasks, &job_id, held, patience).await
    }

    /// Where the log tree is: in the job's folder, or on this node where the job has none.
    pub fn logs(&self) -> PathBuf {
        self.store.folder().unwrap_or(&self.work_folder).join("logs")
    }

    /// As [`run`](Self::run), but what is still held at the end is the caller's to give back or to acknowledge. Nobody
    /// extends its leases any more.
    pub async fn work(self, mut stop: channel::Receiver<Stop>) -> Result<Vec<(queue::Receipt, Descriptor)>> {
        if *stop.borrow_and_update() != Stop::No {
            return Ok(Vec::new());
        }
        let logs = self.logs();
        let (events, mut reports) = mpsc::unbounded_channel();
        let leases = Leases::new(self.timing.lease_step, self.tasks.limits().timed_lease);
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
            patience: self.timing.patience,
            crash: self.crash,
        }
        .start();
        let mut announcer = announcer;
        let alive = self.health.coming_round(format!("the agent of job {}", self.spec.job_id));
        let mut dispatcher = Dispatcher::new(self, logs, leases, events, announcements);
        dispatcher.start_processes().await?;

        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !dispatcher.is_over() {
            alive.beat();
            tokio::select! {
                // Who is told to stop begins nothing more, however much else has happened meanwhile.
                biased;
                changed = stop.changed() => {
                    // Whoever could tell us to stop is gone: so is the job.
                    let stop = changed.map_or(Stop::Kill, |()| *stop.borrow_and_update());
                    dispatcher.stop(stop).await?;
                }
                ended = &mut announcer => {
                    ended.context("the announcer panicked")??;
                    unreachable!("the announcer ends before its senders only with an error");
                }
                _ = tick.tick() => dispatcher.tick().await?,
                event = reports.recv() => {
                    dispatcher.handle(event.expect("the dispatcher itself holds a sender")).await?;
                    while let Ok(event) = reports.try_recv() {
                        dispatcher.handle(event).await?;
                    }
                }
            }
            dispatcher.give_back_waiting().await?;
            dispatcher.prepare_next();
            dispatcher.hand_over();
            dispatcher.receive();
        }
        let held = dispatcher.close().await?;
        drop(dispatcher);
        announcer.await.context("the announcer panicked")??;
        Ok(held)
    }
}

/// What happens beside the loop.
enum Event {
    Received { asked: tokio::time::Instant, deliveries: Result<Vec<Delivery>, queue::Error> },
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

struct Dispatcher {
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
    /// The reason, once the agent has given up starting processes.
    gave_up: Option<String>,
    stop: Stop,
    /// When patience with a stop ends.
    stop_deadline: Option<Instant>,

    receiving: Option<AbortOnDropHandle<()>>,
    to_prepare: VecDeque<Waiting>,
    preparing: HashMap<LeaseId, Preparing>,
    ready: VecDeque<Prepared>,
    /// What this job adds to the leases of the node.
    leases_held: Share,
    /// What it adds to the node's processes, by phase.
    processes: [Share; SLOT_PHASES.len()],
}

impl Dispatcher {
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
            preparer: Arc::new(Preparer::new(agent.spec.clone(), agent.store.clone(), cache, agent.prefetch_bytes_max)),
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
            leases_held: Share::of(&metrics().leases_held),
            processes: SLOT_PHASES
                .map(|phase| Share::of(&metrics().processes.get_or_create(&[(STATE, phase.metric_word())]))),
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
            Event::Received { asked, deliveries } => self.received(asked, deliveries).await,
            Event::Prepared(lease, preparation) => self.prepared(lease, preparation).await,
            Event::Process { slot, generation, report } => self.process_reported(slot, generation, report).await,
            Event::LeaseLost(lease) => {
                self.lease_lost(lease);
                Ok(())
            }
        }
    }

    /// Shows what this job holds here.
    fn show(&mut self) {
        self.leases_held.set(self.leases.count());
        let mut phases = [0; SLOT_PHASES.len()];
        for running in self.slots.iter().filter_map(|slot| slot.running.as_ref()) {
            phases[running.process.status().0 as usize] += 1;
        }
        self.processes.iter_mut().zip(phases).for_each(|(share, count)| share.set(count));
    }

    // ---- announce --------------------------------------------------------------------------------------------

    /// Announces how an attempt ended. `slot`: whose process it was, if one saw it.
    async fn conclude(&mut self, slot: Option<usize>, mut handed: InPipe, ending: Ending, rows: Bytes) -> Result<()> {
        let mut running = slot.and_then(|slot| self.slots[slot].running.as_mut());
        let process = running.as_ref().map_or("", |running| &running.name);
        let worker = Worker { node: &self.agent.node, process };
        let (attempt, next_try) = conclude(&mut handed, worker, ending, self.agent.spec.run_max_try);
        if let Some(running) = &mut running {
            running.log.attempt(running.process.id(), &attempt);
        }
        tracing::debug!(
            job.id = self.agent.spec.job_id,
            mini_batch.id = attempt.mini_batch,
            attempt.number = attempt.try_number,
            node.id = attempt.node.as_str(),
            process.id = attempt.process.as_str(),
            attempt.outcome = attempt.status.word(),
            attempt.seconds = attempt.elapsed_seconds,
            traceparent = attempt.traceparent.map(tracing::field::display),
            "an attempt ended"
        );
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
}
