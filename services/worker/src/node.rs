//! A node: a worker process that serves every job of a compute target.
//!
//! The node receives for all jobs through a demultiplexer. `roster` decides which jobs it serves, as a state machine
//! without I/O; `executor` executes the decisions. Each job that the node works on has an [`Agent`](crate::Agent), as on
//! a single machine.
//!
//! A node is stateless: the queue redelivers what a killed node held. What it keeps on disk is a cache by content
//! (unpacked folders, environments), which the nodes of one machine may share, and which mini-batches killed it.
//!
//! Jobs that are here at the same time divide its processes by weight. Further jobs wait in line until the node has a place
//! for them; which of them it hears of first is the choice of the queue.
//!
//! | file | what it does |
//! |---|---|
//! | `allocations`, `driver` | the jobs that the schedule of the target gives this node: they replace the next six |
//! | `roster` | decides which jobs are here, what they need, and when the node leaves them |
//! | `shares` | divides processes and GPUs among the jobs that are here |
//! | `allotment` | tells an agent its share, and the node which GPUs are in use |
//! | `event_loop` | waits for whatever comes first: messages, answers, time, a request to stop |
//! | `executor` | executes the decisions, and reports what happens |
//! | `errands` | requests to the store and the shared queues |
//! | `provision`, `work` | make a job ready, run its agent, clean up after it |
//! | `beat` | signs of life |
//! | `quotas` | the part of this node in what each owner may have in flight |
//! | `pause` | notices that the machine slept, or the process was stopped |
//! | `registration` | lists the node among the workers of its target |
//! | `leftovers` | removes what killed workers of this machine have left |
//! | `logs` | uploads logs while a job runs |
//! | `protection`, `spot` | task protection of ECS; spot notices of EC2 |

#[allow(missing_docs, reason = "public for the simulation alone")]
pub(crate) mod allocations;
#[allow(missing_docs, reason = "public for the simulation alone")]
pub(crate) mod allotment;
pub(crate) mod beat;
#[allow(missing_docs, reason = "public for the simulation alone")]
pub(crate) mod driver;
#[allow(missing_docs, reason = "public for the simulation alone")]
pub(crate) mod errands;
#[allow(missing_docs, reason = "public for the simulation alone")]
pub(crate) mod event_loop;
#[allow(missing_docs, reason = "public for the simulation alone")]
pub(crate) mod executor;
mod leftovers;
mod logs;
mod pause;
mod protection;
mod provision;
#[allow(missing_docs, reason = "public for the simulation alone")]
pub(crate) mod quotas;
mod registration;
#[allow(missing_docs, reason = "public for the simulation alone")]
pub mod roster;
#[allow(missing_docs, reason = "public for the simulation alone")]
pub(crate) mod shares;
mod spot;
mod work;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use protocol::Offer;
use queue::{Broker, Fairness, Queue};
use storage::TargetStore;
use telemetry::Health;
use tokio::sync::watch;

use crate::agent::Timing;
use crate::cache::{Cache, Limits};
use crate::job_users::{JobUsers, UserRange};
use crate::memory_groups::{MemoryGroups, plan as plan_memory_groups};
use crate::solitude::Solitude;
use crate::stop::Stop;
use crate::{Crash, Variables, VisibleGpus, default_process_count, offer};
use driver::Driver;
use event_loop::EventLoop;
use protection::Protection;
pub use protection::TaskProtection;
use roster::{Capacity, Config, Periods};
pub use spot::SpotNotice;
use work::Shared;

/// How often the node looks for what is due.
const TICK: Duration = Duration::from_millis(250);
/// How often it looks whether memory is short.
const MEMORY_EVERY: Duration = Duration::from_secs(2);

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
    /// The queues of each job; `None`: all jobs share the two above.
    pub broker: Option<Arc<dyn Broker>>,
    /// Node id, unique among nodes: the name of the machine and random characters.
    pub name: String,
    /// GPUs of this machine.
    pub gpus: VisibleGpus,
    /// Interpreter for jobs that name none, and for making environments.
    pub python: PathBuf,
    /// Folder that holds the Python packages `gristmill` and `azureml_user`.
    pub package: PathBuf,
    /// What scripts get of the environment of this process.
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
    /// How long agents wait.
    pub timing: Timing,
    /// How long the node waits.
    pub periods: Periods,
    /// Python processes of a job that is alone here, which several jobs divide; `None`: as many as the job asks for, and
    /// one for each core or GPU for several.
    pub process_count: Option<u32>,
    /// Limits of the caches in the work folder.
    pub cache: Limits,
    /// Labels that jobs may require.
    pub labels: BTreeMap<String, String>,
    /// Whether to limit the memory of jobs by control groups, where this machine allows it.
    pub limits_memory: bool,
    /// The users of which each job gets one; `None`: scripts run as the user of this process.
    pub job_users: Option<UserRange>,
    /// How often the node uploads changed log files.
    pub log_period: Duration,
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
            timing: Timing { grace: seconds(30), patience: seconds(120), ..Timing::default() },
            periods: Periods::default(),
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
    /// The machine will be taken away.
    SpotNotice,
}

impl Node {
    /// Returns what this node offers to jobs.
    pub fn offer(&self) -> Offer {
        offer(self.gpus.count(), self.options.labels.clone())
    }

    /// Creates the control group of jobs; `None`: the memory of jobs is not limited.
    fn memory_groups(&self) -> Option<MemoryGroups> {
        if !self.options.limits_memory {
            return None;
        }
        let made = plan_memory_groups().map_err(anyhow::Error::new).and_then(|plan| {
            let shown = plan.to_string();
            let groups = plan.carry_out(self.offer().memory).with_context(|| shown.clone())?;
            tracing::info!("jobs may have {} of memory together ({shown})", protocol::memory(groups.limit()));
            Ok(groups)
        });
        made.inspect_err(|error| tracing::info!("this worker cannot limit the memory of jobs: {error:#}")).ok()
    }

    /// Makes the users of jobs ready.
    fn users(&self) -> Result<Option<JobUsers>> {
        let Some(range) = self.options.job_users.clone() else { return Ok(None) };
        let folders = Cache::folders(&self.work_folder).chain([self.work_folder.join("nodes").join(&self.name)]);
        // A relative name of a program is looked up in PATH.
        let needed: Vec<&Path> =
            [&*self.python, &*self.package].into_iter().filter(|path| path.is_absolute()).collect();
        JobUsers::start(range, &self.work_folder, folders, &needed).map(Some)
    }

    /// Works until the caller stops it, there is no work, or the machine is taken away. Returns everything it holds
    /// to the queue. An error means that a queue cannot be used.
    pub async fn run(self, stop: watch::Receiver<Stop>) -> Result<Ended> {
        let spot = self.options.spot_notice.clone();
        let spot_notice =
            async { if let Some(spot) = spot { spot.given().await } else { std::future::pending().await } };
        let protection = Protection::start(self.options.task_protection.clone());
        let cache = Cache::new(self.work_folder.clone(), self.options.cache).guarded();
        let memory_groups = self.memory_groups();
        let users = self.users()?.map(Arc::new);
        let solitude = Solitude::new(self.work_folder.join("alone"));
        let buried = Default::default();
        let shared = Arc::new(Shared { node: self, cache, protection, memory_groups, users, solitude, buried });
        let node = &shared.node;
        let folder = shared.folder();
        let _claim = leftovers::claim(&folder).with_context(|| format!("create {}", folder.display()))?;
        let _tidying = shared.tidy();
        if let Some(broker) = node.broker.clone() {
            let driver = Driver {
                backend: shared.clone(),
                config: allocations::Config {
                    node: node.name.clone(),
                    offer: node.offer(),
                    process_count: node.options.process_count,
                    notice_time: node.options.spot_notice.as_ref().map_or(Duration::ZERO, |spot| spot.patience),
                    idle_exit: node.options.periods.idle_exit,
                    entry_lasts: 3 * storage::WORKER_PERIOD,
                },
                target: node.target.clone(),
                broker,
                timing: node.options.timing,
                tick: TICK,
                memory_every: MEMORY_EVERY,
                health: node.options.health.clone(),
            };
            let ended = driver.run(stop, spot_notice).await;
            shared.clear_work_folder();
            return Ok(ended);
        }
        let event_loop = EventLoop {
            host: shared.clone(),
            config: config(node),
            target: node.target.clone(),
            queues: [node.tasks.clone(), node.results.clone()],
            timing: node.options.timing,
            tick: TICK,
            memory_every: MEMORY_EVERY,
            health: node.options.health.clone(),
        };
        let ended = event_loop.run(stop, spot_notice).await;
        shared.clear_work_folder();
        ended
    }
}

fn config(node: &Node) -> Config {
    let options = &node.options;
    Config {
        node: node.name.clone(),
        offer: node.offer(),
        idle_wish: capacity(node).process_count(None) as usize,
        capacity: capacity(node),
        places: capacity(node).places(),
        places_of_newcomers: capacity(node).places_of_newcomers(),
        delay_max: node.tasks.limits().delay_max,
        groups_take_turns: node.tasks.limits().fairness == Fairness::Groups,
        notice_time: options.spot_notice.as_ref().map_or(Duration::ZERO, |spot| spot.patience),
        periods: options.periods,
    }
}

fn capacity(node: &Node) -> Capacity {
    Capacity {
        process_count: node.options.process_count,
        process_count_default: default_process_count(node.gpus.count()),
        gpus: node.gpus.count(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
