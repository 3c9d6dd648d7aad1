//! A node: a worker process that works on the jobs that the schedule of its target gives it.
//!
//! `allocations` decides which jobs the node works on, as a state machine without I/O; `driver` executes the decisions. Each
//! job has an [`Agent`](crate::Agent) and queues of its own, as on a single machine.
//!
//! A node is stateless: the queues redeliver what a killed node held. On disk it keeps a cache by
//! content (unpacked folders, environments), which the nodes of one machine may share, and the
//! names of mini-batches that killed it.
//!
//! | file | what it does |
//! |---|---|
//! | `allocations` | decides which jobs the node has, with how many processes and which GPUs |
//! | `driver` | follows the schedule, executes the decisions, and reports what happens |
//! | `access` | reads the state of a job from the store |
//! | `agent_link` | sends an agent its allocation, and the node the GPUs in use |
//! | `provision`, `work` | make a job ready, run its agent, clean up after it |
//! | `registration` | publishes the state of the node, as a heartbeat |
//! | `pause` | detects that the machine slept, or the process was stopped |
//! | `leftovers` | removes files of killed workers of this machine |
//! | `logs` | uploads logs while a job runs |
//! | `protection`, `spot` | task protection of ECS; spot notices of EC2 |

#[allow(missing_docs, reason = "public for the simulation alone")]
pub(crate) mod access;
#[allow(missing_docs, reason = "public for the simulation alone")]
pub(crate) mod agent_link;
#[allow(missing_docs, reason = "public for the simulation alone")]
pub(crate) mod allocations;
#[allow(missing_docs, reason = "public for the simulation alone")]
pub(crate) mod driver;
mod leftovers;
mod logs;
mod pause;
mod protection;
mod provision;
mod registration;
mod spot;
mod work;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use protocol::{JobSpec, Offer};
use queue::{Broker, Queue};
use storage::TargetStore;
use telemetry::Health;
use tokio::sync::watch;

use crate::agent::Timing;
use crate::cache::{Cache, Limits};
use crate::gpu::{cores, processes_with_gpus};
use crate::job_users::{JobUsers, UserRange};
use crate::memory_groups::{MemoryGroups, plan as plan_memory_groups};
use crate::node_lock::NodeLock;
use crate::stop::Stop;
use crate::{Crash, Variables, VisibleGpus, offer};
use driver::Driver;
use protection::Protection;
pub use protection::TaskProtection;
pub use spot::SpotNotice;
use work::Shared;

/// Time between two ticks of the node.
const TICK: Duration = Duration::from_millis(250);
/// Time between two checks of memory pressure.
const MEMORY_EVERY: Duration = Duration::from_secs(2);

/// A worker of a compute target, about to start.
#[derive(Clone, Debug)]
pub struct Node {
    /// Store of the target.
    pub target: TargetStore,
    /// The queues of its jobs.
    pub broker: Arc<dyn Broker>,
    /// The queue for messages that no worker can read.
    pub dead_letters: Arc<dyn Queue>,
    /// Node id, unique among nodes: the name of the machine and random characters.
    pub name: String,
    /// GPUs of this machine.
    pub gpus: VisibleGpus,
    /// Interpreter for jobs that name none, and for making environments.
    pub python: PathBuf,
    /// Folder that holds the Python packages `gristmill` and `azureml_user`.
    pub package: PathBuf,
    /// The environment variables of this process that scripts get.
    pub variables: Variables,
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
    /// The build of this process: version and commit.
    pub build: String,
    /// How long agents wait.
    pub timing: Timing,
    /// The node ends after this long without work; `None`: never.
    pub idle_exit: Option<Duration>,
    /// Python processes of a job that is alone here, which several jobs divide; `None`: as many as the job asks for, and
    /// one for each core or GPU for several.
    pub process_count: Option<u32>,
    /// Limits of the caches in the work folder.
    pub cache: Limits,
    /// Labels that jobs may require.
    pub labels: BTreeMap<String, String>,
    /// Whether to limit the memory of jobs by control groups, where this machine allows it.
    pub limits_memory: bool,
    /// The range from which each job gets a user; `None`: scripts run as the user of this process.
    pub job_users: Option<UserRange>,
    /// How often the node uploads changed log files.
    pub log_period: Duration,
    /// Where to look for spot notices.
    pub spot_notice: Option<SpotNotice>,
    /// Where the node shows that it makes progress.
    pub health: Health,
    /// The agent of ECS that a node asks for task protection while it has work; `None`: the node is
    /// not a task of ECS.
    pub task_protection: Option<TaskProtection>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            build: String::new(),
            timing: Timing { grace: seconds(30), patience: seconds(120), ..Timing::default() },
            idle_exit: None,
            process_count: None,
            cache: Limits::default(),
            labels: BTreeMap::new(),
            limits_memory: false,
            job_users: None,
            log_period: seconds(5),
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
    /// The cloud reclaims the machine.
    SpotNotice,
}

impl Node {
    /// Returns what this node offers to jobs.
    pub fn offer(&self) -> Offer {
        offer(self.gpus.count(), self.options.labels.clone())
    }

    /// Returns how many processes a job that is alone may have here.
    fn process_count(&self, spec: &JobSpec) -> u32 {
        let gpus = self.gpus.count();
        let default = || if gpus > 0 { processes_with_gpus(spec, gpus).max(1) } else { cores() };
        self.options.process_count.or(spec.process_count_per_node).unwrap_or_else(default)
    }

    /// Creates the control group of jobs; `None`: the memory of jobs is not limited.
    fn memory_groups(&self) -> Option<MemoryGroups> {
        if !self.options.limits_memory {
            return None;
        }
        let made = plan_memory_groups().map_err(anyhow::Error::new).and_then(|plan| {
            let shown = plan.to_string();
            let groups = plan.carry_out(self.offer().memory).with_context(|| shown.clone())?;
            tracing::info!(
                "jobs may have {} of memory together ({shown})",
                protocol::memory(groups.limit())
            );
            Ok(groups)
        });
        made.inspect_err(|error| {
            tracing::info!("this worker cannot limit the memory of jobs: {error:#}")
        })
        .ok()
    }

    /// Prepares the users of jobs.
    fn users(&self) -> Result<Option<JobUsers>> {
        let Some(range) = self.options.job_users.clone() else { return Ok(None) };
        let folders = Cache::folders(&self.work_folder)
            .chain([self.work_folder.join("nodes").join(&self.name)]);
        // A relative name of a program is looked up in PATH.
        let needed: Vec<&Path> =
            [&*self.python, &*self.package].into_iter().filter(|path| path.is_absolute()).collect();
        JobUsers::start(range, &self.work_folder, folders, &needed).map(Some)
    }

    /// Works until the caller stops it, the node has been idle for `idle_exit`, or the cloud
    /// reclaims the machine. Returns all its mini-batches to the queue.
    pub async fn run(self, stop: watch::Receiver<Stop>) -> Result<Ended> {
        let spot = self.options.spot_notice.clone();
        let spot_notice = async {
            if let Some(spot) = spot { spot.given().await } else { std::future::pending().await }
        };
        let protection = Protection::start(self.options.task_protection.clone());
        let cache = Cache::new(self.work_folder.clone(), self.options.cache).guarded();
        let memory_groups = self.memory_groups();
        let users = self.users()?.map(Arc::new);
        let node_lock = NodeLock::new(self.work_folder.join("alone"));
        let shared =
            Arc::new(Shared { node: self, cache, protection, memory_groups, users, node_lock });
        let node = &shared.node;
        let folder = shared.folder();
        let _claim =
            leftovers::claim(&folder).with_context(|| format!("create {}", folder.display()))?;
        let _tidying = shared.tidy();
        let driver = Driver {
            backend: shared.clone(),
            config: allocations::Config {
                node: node.name.clone(),
                build: node.options.build.clone(),
                offer: node.offer(),
                process_count: node.options.process_count,
                notice_time: node
                    .options
                    .spot_notice
                    .as_ref()
                    .map_or(Duration::ZERO, |spot| spot.patience),
                idle_exit: node.options.idle_exit,
                entry_lasts: storage::WORKER_ENTRY_LASTS,
            },
            target: node.target.clone(),
            broker: node.broker.clone(),
            timing: node.options.timing,
            tick: TICK,
            memory_every: MEMORY_EVERY,
            health: node.options.health.clone(),
        };
        let ended = driver.run(stop, spot_notice).await;
        shared.clear_work_folder();
        Ok(ended)
    }
}

#[cfg(test)]
pub(crate) mod tests;
