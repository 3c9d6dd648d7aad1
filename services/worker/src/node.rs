//! One worker of a fleet: a process that serves every job of a compute target, as their mini-batches come.
//!
//! The one idea: a job here is an [`Agent`], as on a single machine. This loop only sees to it that each job that has
//! messages here has one: it receives for all of them through a demultiplexer, and starts a [`Serving`] for every job it
//! hears of, which finds the job, provisions it, runs its agent, and ends it when there is nothing more to do.
//!
//! A node is stateless: whatever it holds when it is killed is delivered again elsewhere. What it keeps on disk is a
//! cache by content (unpacked folders, environments), which nodes of one machine may share.
//!
//! Deliberately absent: sharing of processors between jobs that happen to be here at the same time, each has its own
//! processes; and any choice between jobs, which is the queue's.

mod logs;
mod protection;
mod provision;
mod seat;
mod serving;
mod spot;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use protocol::Descriptor;
use queue::{Arrival, Delivery, Demultiplexer, DemultiplexerOptions, Queue, ReturnBy};
use storage::TargetStore;
use telemetry::{Health, metrics};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::agent::{Stop, Timing};
use crate::dead_letters::bury;
use crate::slot::deliveries_lost;
use crate::{Crash, default_process_count};
use protection::Protection;
pub use protection::TaskProtection;
use provision::Provisioner;
use serving::{Activity, Memory, Serving};
pub use spot::SpotNotice;

/// How often it is decided whether there is anything to do.
const TICK: Duration = Duration::from_millis(250);

/// A worker of a compute target, about to start.
#[derive(Clone, Debug)]
pub struct Node {
    /// Store of the target.
    pub target: TargetStore,
    /// Task queue of the target.
    pub tasks: Arc<dyn Queue>,
    /// Result queue of the target.
    pub results: Arc<dyn Queue>,
    /// Where messages go that nobody can read.
    pub dead_letters: Arc<dyn Queue>,
    /// Node id, unlike that of any other node: the name of the machine and something random.
    pub name: String,
    /// GPUs of this machine.
    pub gpu_count: u32,
    /// Interpreter for jobs that name none, and for making environments.
    pub python: PathBuf,
    /// Folder that holds the Python packages `gristmill` and `azureml_user`.
    pub package: PathBuf,
    /// Folder for caches, which other nodes of this machine may share, and for working directories of this node.
    pub work_folder: PathBuf,
    /// Tables that may be ready at once for one job, in bytes.
    pub prefetch_bytes_max: u64,
    /// How it behaves.
    pub options: NodeOptions,
    /// Crash tests.
    pub crash: Crash,
}

/// How a [`Node`] behaves.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// What agents wait for, and how long.
    pub timing: Timing,
    /// Python processes of each job here; `None`: as many as the job asks for.
    pub process_count: Option<u32>,
    /// The node ends when it has had nothing to do for so long; `None`: never.
    pub idle_exit: Option<Duration>,
    /// A job's processes end when nothing came for it for so long.
    pub job_idle: Duration,
    /// How often it is looked whether a job was canceled.
    pub watch_period: Duration,
    /// How often the seat of a job with `node_count` is renewed.
    pub seat_period: Duration,
    /// A seat that was not renewed for so long is free.
    pub seat_lapse: Duration,
    /// How often changed log files are uploaded.
    pub log_period: Duration,
    /// How long a job is left to others after it could not be provisioned, or no process could start.
    pub rest: Duration,
    /// Where notices of the end of this machine are announced.
    pub spot_notice: Option<SpotNotice>,
    /// Where it shows that it makes progress.
    pub health: Health,
    /// Where this node, as a task of ECS, asks not to be stopped while it has work.
    pub task_protection: Option<TaskProtection>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            timing: Timing { lease_step: seconds(30), grace: seconds(30), patience: seconds(120) },
            process_count: None,
            idle_exit: None,
            job_idle: seconds(30),
            watch_period: seconds(2),
            seat_period: seconds(20),
            seat_lapse: seconds(60),
            log_period: seconds(5),
            rest: seconds(60),
            spot_notice: None,
            health: Health::default(),
            task_protection: None,
        }
    }
}

/// Why a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It had nothing to do for as long as it was to wait.
    Idle,
    /// It was told to.
    Stopped,
    /// The machine will be taken away.
    SpotNotice,
}

/// A node at work: what all its jobs share.
#[derive(Debug)]
struct Shared {
    node: Node,
    demultiplexer: Demultiplexer,
    provisioner: Provisioner,
    protection: Protection,
}

/// A job that has messages here.
#[derive(Debug)]
struct Job {
    /// What it is busy with.
    activity: Arc<Mutex<Activity>>,
    /// Messages have come that its serving may not have seen.
    again: bool,
}

impl Node {
    /// Works until told to stop, until there is nothing to do, or until the machine is taken away. Everything held is
    /// given back. An error means that a queue cannot be used.
    pub async fn run(self, mut stop: watch::Receiver<Stop>) -> Result<Ended> {
        let mut fleet = Fleet::start(self);
        let mut ended = None;
        let mut failure = None;
        let spot = fleet.shared.node.options.spot_notice.clone();
        let patience = spot.as_ref().map_or(Duration::ZERO, |spot| spot.patience);
        let spot = async { if let Some(spot) = spot { spot.given().await } else { std::future::pending().await } };
        let mut spot = std::pin::pin!(spot);
        let mut machine_goes = None;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let first = *stop.borrow_and_update();
        fleet.stop(first).await;
        let alive = fleet.shared.node.options.health.coming_round("the loop of the node");
        loop {
            alive.beat();
            metrics().jobs_open.set(fleet.servings.len() as i64);
            if fleet.is_stopping() && fleet.servings.is_empty() {
                break;
            }
            tokio::select! {
                Some(arrival) = fleet.arrivals.recv() => {
                    if let Err(error) = fleet.arrived(arrival).await {
                        failure.get_or_insert(error);
                        fleet.stop(Stop::Drain).await;
                    }
                }
                Some(served) = fleet.servings.join_next() => fleet.served(served.context("a job's task panicked")?),
                _ = tick.tick() => {
                    if fleet.is_idle() {
                        ended = Some(Ended::Idle);
                        fleet.stop(Stop::Finish).await;
                    }
                    if machine_goes.is_some_and(|at| at <= Instant::now()) {
                        fleet.stop(Stop::Kill).await;
                    }
                }
                notice = &mut spot, if !fleet.is_stopping() => {
                    tracing::warn!("this machine will be taken away ({notice}): draining");
                    ended = Some(Ended::SpotNotice);
                    machine_goes = Some(Instant::now() + patience);
                    fleet.stop(Stop::Drain).await;
                }
                changed = stop.changed() => {
                    // Whoever could tell us to stop is gone.
                    let stop = changed.map_or(Stop::Kill, |()| *stop.borrow_and_update());
                    fleet.stop(stop).await;
                }
            }
        }
        // What a reader was about to take when it ended.
        fleet.give_back_waiting().await;
        fleet.shared.clear_work_folder();
        match failure {
            Some(error) => Err(error),
            None => Ok(ended.unwrap_or(Ended::Stopped)),
        }
    }
}

/// The loop's own state.
struct Fleet {
    shared: Arc<Shared>,
    arrivals: mpsc::Receiver<Arrival>,
    jobs: HashMap<String, Job>,
    servings: JoinSet<(String, Memory)>,
    /// What was learned of jobs that are not served now.
    memories: HashMap<String, Memory>,
    stop: watch::Sender<Stop>,
    /// When there was last something to do.
    busy_at: Instant,
    /// A job has been looked up, or is.
    has_looked: bool,
}

impl Fleet {
    fn start(node: Node) -> Self {
        let options = DemultiplexerOptions {
            group_of: job_of_task,
            return_by: ReturnBy::Republish(unspent),
            lease: node.options.timing.lease_step,
            poll_wait: Duration::from_secs(20),
            idle_wish: 0,
            hold_max: Some(Duration::from_secs(10)),
        };
        let (demultiplexer, arrivals) = Demultiplexer::start(node.tasks.clone(), options);
        let provisioner = Provisioner::new(&node);
        let protection = Protection::start(node.options.task_protection.clone());
        let fleet = Self {
            shared: Arc::new(Shared { node, demultiplexer, provisioner, protection }),
            arrivals,
            jobs: HashMap::new(),
            servings: JoinSet::new(),
            memories: HashMap::new(),
            stop: watch::Sender::new(Stop::No),
            busy_at: Instant::now(),
            has_looked: false,
        };
        fleet.wish(true);
        fleet
    }

    /// While nothing is done here, any job's mini-batches are welcome, as many as could be begun at once.
    fn wish(&self, is_free: bool) {
        let node = &self.shared.node;
        let processes = node.options.process_count.unwrap_or_else(|| default_process_count(node.gpu_count)) as usize;
        self.shared.demultiplexer.set_idle_wish(if is_free { processes } else { 0 });
    }

    fn is_stopping(&self) -> bool {
        *self.stop.borrow() != Stop::No
    }

    async fn stop(&mut self, stop: Stop) {
        let is_later = self.stop.send_if_modified(|current| {
            let is_later = stop > *current;
            *current = stop.max(*current);
            is_later
        });
        if is_later {
            self.give_back_waiting().await;
        }
    }

    async fn give_back_waiting(&self) {
        if let Err(error) = self.shared.demultiplexer.drain().await {
            tracing::warn!("mini-batches that wait here come back only when their leases end: {error}");
        }
    }

    async fn arrived(&mut self, arrival: Arrival) -> Result<()> {
        match arrival {
            Arrival::NewGroup(job_id) => self.serve(job_id),
            Arrival::Unreadable { delivery, reason } => self.bury(delivery, &reason).await,
            Arrival::Failed(error) => return Err(error).context("receive from the task queue"),
        }
        Ok(())
    }

    fn serve(&mut self, job_id: String) {
        if self.is_stopping() {
            return;
        }
        if let Some(job) = self.jobs.get_mut(&job_id) {
            job.again = true;
            return;
        }
        let memory = self.memories.remove(&job_id).unwrap_or_default();
        let is_first = !std::mem::replace(&mut self.has_looked, true);
        let activity = Arc::new(Mutex::new(Activity::LookingUp { is_first }));
        self.jobs.insert(job_id.clone(), Job { activity: activity.clone(), again: false });
        let serving = Serving::new(self.shared.clone(), job_id.clone(), activity);
        let stop = self.stop.subscribe();
        self.servings.spawn(async move { (job_id, serving.run(memory, stop).await) });
    }

    fn served(&mut self, (job_id, memory): (String, Memory)) {
        let job = self.jobs.remove(&job_id);
        if memory.is_worth_keeping() {
            self.memories.insert(job_id.clone(), memory);
        }
        if job.is_some_and(|job| job.again) {
            self.serve(job_id);
        }
    }

    /// A message that nobody can read is kept for people to look at.
    async fn bury(&self, delivery: Delivery, reason: &str) {
        let node = &self.shared.node;
        tracing::warn!("a message of the task queue goes to the dead letters: {reason}");
        if let Err(error) = bury(&*node.tasks, Some(&*node.dead_letters), &node.name, delivery, reason).await {
            tracing::warn!("it stays in the task queue for now: {error}");
        }
    }

    /// Whether there has been nothing to do for long enough to end.
    fn is_idle(&mut self) -> bool {
        let now = Instant::now();
        let busy_until = |job: &Job| job.activity.lock().expect("no holder panics").busy_until(now);
        let busy_until = self.jobs.values().filter_map(busy_until).max();
        self.busy_at = self.busy_at.max(busy_until.unwrap_or(self.busy_at));
        self.wish(busy_until != Some(now));
        let idle_exit = self.shared.node.options.idle_exit;
        !self.is_stopping() && idle_exit.is_some_and(|idle_exit| now - self.busy_at >= idle_exit)
    }
}

impl Shared {
    /// Where a job has its working directories here.
    fn job_folder(&self, job_id: &str) -> PathBuf {
        self.node.work_folder.join("nodes").join(&self.node.name).join(job_id)
    }

    /// Folders of this node that are empty. What user code wrote into them stays.
    fn clear_work_folder(&self) {
        let _ = std::fs::remove_dir(self.node.work_folder.join("nodes").join(&self.node.name));
    }
}

/// Whose a task message is. What cannot be read to its end here is not begun.
fn job_of_task(body: &Bytes) -> Result<String, String> {
    let error = match Descriptor::of_message(body) {
        Ok(descriptor) => return Ok(descriptor.job_id),
        Err(error) => error,
    };
    let value: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let text = |name: &str| Some(value.as_ref()?.get(name)?.as_str()?.to_owned());
    Err(match text("job_id") {
        Some(job_id) => format!("a mini-batch of job {job_id}, written by a newer version? {error}"),
        None => format!("no mini-batch: {error}"),
    })
}

/// A descriptor that is given back brings along what the queue has counted, since its next message is a new one.
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

#[cfg(test)]
pub(crate) mod tests;
