//! A node: a worker process that serves every job of a compute target.
//!
//! The node receives for all jobs through a demultiplexer. `roster` decides which jobs it serves, as a state machine
//! without I/O; `executor` executes the decisions. Each job that the node works on has an [`Agent`](crate::Agent), as on
//! a single machine.
//!
//! A node is stateless: the queue redelivers what a killed node held. What it keeps on disk is a cache by content
//! (unpacked folders, environments), which the nodes of one machine may share.
//!
//! Absent on purpose: sharing of processors between jobs that are here at the same time (each has its own processes), and
//! any choice between jobs, which is the queue's.
//!
//! | file | what it does |
//! |---|---|
//! | `roster` | decides which jobs are here, what they need, and when the node leaves them |
//! | `executor` | executes the decisions, and reports what happens |
//! | `errands` | requests to the store and the shared queues |
//! | `provision`, `work` | make a job ready, run its agent, clean up after it |
//! | `beat` | signs of life |
//! | `logs` | uploads logs while a job runs |
//! | `protection`, `spot` | task protection of ECS; spot notices of EC2 |

pub(crate) mod beat;
pub(crate) mod errands;
pub(crate) mod executor;
mod logs;
mod protection;
mod provision;
pub mod roster;
mod spot;
mod work;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use queue::{Demultiplexer, Queue};
use storage::TargetStore;
use telemetry::{Health, metrics};
use tokio::sync::watch;

use crate::Crash;
use crate::agent::Timing;
use crate::stop::Stop;
use executor::Executor;
use protection::Protection;
pub use protection::TaskProtection;
use provision::Provisioner;
use roster::Event;
pub use spot::SpotNotice;

/// How often the node looks for what is due.
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
    /// Where messages go that no worker can read.
    pub dead_letters: Arc<dyn Queue>,
    /// Node id, unique among nodes: the name of the machine and random characters.
    pub name: String,
    /// GPUs of this machine.
    pub gpu_count: u32,
    /// Interpreter for jobs that name none, and for making environments.
    pub python: PathBuf,
    /// Folder that holds the Python packages `gristmill` and `azureml_user`.
    pub package: PathBuf,
    /// Folder for caches, which other nodes of this machine may share, and for working directories of this node.
    pub work_folder: PathBuf,
    /// Bytes of tables that may be ready at once for one job.
    pub prefetch_bytes_max: u64,
    /// How the node behaves.
    pub options: NodeOptions,
    /// Crash tests.
    pub crash: Crash,
}

/// How a [`Node`] behaves.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// How long agents wait.
    pub timing: Timing,
    /// Python processes of each job here; `None`: as many as the job asks for.
    pub process_count: Option<u32>,
    /// The node ends after this long without work; `None`: never.
    pub idle_exit: Option<Duration>,
    /// The processes of a job end after this long without a message of it.
    pub job_idle: Duration,
    /// How often the node looks whether a job was canceled.
    pub watch_period: Duration,
    /// How often the node renews its seat of a job with `node_count`.
    pub seat_period: Duration,
    /// A seat that was not renewed for this long is free.
    pub seat_lapse: Duration,
    /// How often the node uploads changed log files.
    pub log_period: Duration,
    /// How long the node leaves a job to others after it could not provision the job, or start a process.
    pub rest: Duration,
    /// Where to look for spot notices.
    pub spot_notice: Option<SpotNotice>,
    /// Where the node shows that it makes progress.
    pub health: Health,
    /// Where a node that is a task of ECS asks for protection while it has work.
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
    /// It had no work for `idle_exit`.
    Idle,
    /// The caller requested it.
    Stopped,
    /// The machine will be taken away.
    SpotNotice,
}

/// What all jobs of a node share.
#[derive(Debug)]
struct Shared {
    node: Node,
    demultiplexer: Arc<Demultiplexer>,
    provisioner: Provisioner,
    protection: Protection,
}

impl Node {
    /// Works until the caller stops it, there is no work, or the machine is taken away. Returns everything it holds
    /// to the queue. An error means that a queue cannot be used.
    pub async fn run(self, mut stop: watch::Receiver<Stop>) -> Result<Ended> {
        let (spot, health) = (self.options.spot_notice.clone(), self.options.health.clone());
        let spot = async { if let Some(spot) = spot { spot.given().await } else { std::future::pending().await } };
        let mut spot = std::pin::pin!(spot);
        let mut executor = Executor::start(self).await;
        let first = *stop.borrow_and_update();
        executor.handle(Event::Stop(first)).await;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let alive = health.coming_round("the loop of the node");
        while !executor.roster.is_over() {
            alive.beat();
            metrics().jobs_open.set(executor.roster.jobs() as i64);
            tokio::select! {
                occurred = executor.next() => executor.occurred(occurred).await?,
                _ = tick.tick() => executor.tick().await,
                notice = &mut spot, if !executor.roster.is_stopping() => {
                    tracing::warn!("this machine will be taken away ({notice}): draining");
                    executor.handle(Event::SpotNotice).await;
                }
                stop = Stop::next(&mut stop) => executor.handle(Event::Stop(stop)).await,
            }
        }
        metrics().jobs_open.set(0);
        let ended = executor.roster.ended();
        executor.end().await.map(|()| ended)
    }
}

#[cfg(test)]
pub(crate) mod tests;
