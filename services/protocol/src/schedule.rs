//! The schedule of a compute target: which node works on which job, with how many processes and which GPUs.
//!
//! Nodes describe themselves ([`NodeState`]), and jobs what they can use ([`Demand`]). `reducer::schedule` computes a
//! [`Schedule`] from both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    JobSpec, LimitNeed, LimitShare, Offer, Priority, Quotas, ReachedQuota, Requirements, SlotPhase,
    Unfit,
};

/// The state of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeState {
    /// Name, unique among the nodes of a target.
    pub name: String,
    /// The build that it runs: version and commit.
    pub build: String,
    /// Its offer to jobs.
    pub offer: Offer,
    /// Processes of any job, whatever the job asks for; `None`: as many as it asks for.
    pub process_count: Option<u32>,
    /// Number of the schedule that it follows.
    pub schedule: u64,
    /// Whether it takes work. A node that drains, or was not heard from for a while, does not.
    pub accepts_work: bool,
    /// The jobs that it prepares or works on, by id.
    pub jobs: BTreeMap<String, Running>,
    /// The jobs that it cannot prepare, by id, and why, in one line each.
    pub unable: BTreeMap<String, String>,
}

/// The processes of a job on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Running {
    /// Processes, those that are about to end included.
    pub processes: u32,
    /// Whether one of its processes is ready for mini-batches.
    pub is_ready: bool,
    /// Whether it has ended a mini-batch on this node.
    pub has_ended_one: bool,
    /// GPUs on which it keeps failing.
    pub failing_gpus: BTreeSet<u32>,
    /// The share of the `limits` of the job that it needs; `None`: the job has none, or is not
    /// prepared yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitNeed>,
    /// Its mini-batches and usage.
    pub activity: Activity,
}

/// The mini-batches of a job on a node, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Activity {
    /// Mini-batches that the node has taken from the queue, and of which it has not announced the outcome.
    pub held: u64,
    /// Those that processes run: at most one for each process, ordered by process.
    pub running: Vec<RunningMiniBatch>,
    /// The usage of its processes.
    pub usage: Vec<ProcessUsage>,
}

/// The usage of a Python process, without its children.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// Name of the node.
    pub node: String,
    /// `processNNN`.
    pub process: String,
    /// Wall clock of the node at the measurement, milliseconds since the epoch.
    #[serde(default)]
    pub at: u64,
    /// Of one processor, over the last seconds.
    pub cpu_percent: u32,
    /// Resident memory.
    pub memory_bytes: u64,
    /// How busy its GPUs are, on average; `None`: it has none, or the driver does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_percent: Option<u32>,
    /// Memory in use on its GPUs, that of processes with which it shares them included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory_bytes: Option<u64>,
}

/// A mini-batch that a process runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningMiniBatch {
    /// Its number.
    pub mini_batch: u64,
    /// Name of the node.
    pub node: String,
    /// `processNNN`.
    pub process: String,
    /// The phase of the process.
    pub phase: SlotPhase,
    /// Wall clock of the node at which this try began, milliseconds since the epoch.
    pub since: u64,
}

/// The demand of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Job id.
    pub job_id: String,
    /// Person or team whose quota the job counts towards.
    pub owner: String,
    /// Weight among other jobs.
    pub priority: Priority,
    /// When it was enqueued, milliseconds since the epoch.
    pub enqueued_at: u64,
    /// The requirements on each of its nodes.
    pub requires: Requirements,
    /// Nodes that may work on it at a time; `None`: all.
    pub node_count: Option<u32>,
    /// Largest part of a node, in percent.
    pub max_share: Option<u32>,
    /// Processes on a node; `None`: as many as the node runs.
    pub process_count_per_node: Option<u32>,
    /// GPUs of its processes.
    pub gpus: GpuDemand,
    /// Mini-batches that have not ended; 0 of a canceled job.
    pub unfinished: u64,
    /// Whether a command has canceled it. No limit of jobs then keeps a reducer from ending it.
    pub is_canceled: bool,
    /// Whether it runs slow mini-batches speculatively, in further processes.
    pub speculates: bool,
    /// Nodes that must not work on it for a while, because mini-batches fail there that succeed elsewhere.
    pub excluded: BTreeSet<String>,
}

/// The GPUs of the processes of a job. A GPU belongs to one job at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GpuDemand {
    /// One for each process on a node with GPUs; none elsewhere.
    #[default]
    WherePresent,
    /// Each process has this many of its own.
    Each(u32),
    /// This many processes share each GPU.
    Shared(u32),
}

impl Demand {
    /// Returns the demand of a job that was enqueued at this time.
    pub fn of(spec: &JobSpec, priority: Priority, enqueued_at: u64, unfinished: u64) -> Self {
        let gpus = match (spec.gpus_per_process, spec.process_count_per_gpu) {
            (Some(gpus), _) => GpuDemand::Each(gpus),
            (None, Some(processes)) => GpuDemand::Shared(processes),
            (None, None) if spec.requires.gpus > 0 => GpuDemand::Each(1),
            (None, None) => GpuDemand::WherePresent,
        };
        Self {
            job_id: spec.job_id.clone(),
            owner: spec.owner.clone(),
            priority,
            enqueued_at,
            requires: spec.requires.clone(),
            node_count: spec.node_count,
            max_share: spec.max_share,
            process_count_per_node: spec.process_count_per_node,
            gpus,
            unfinished,
            is_canceled: false,
            speculates: spec.speculation,
            excluded: BTreeSet::new(),
        }
    }
}

/// The schedule of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Schedule {
    /// Its number. The first schedule of a target is 1.
    pub number: u64,
    /// When it was computed, by the clock of the store, milliseconds since the epoch.
    pub made_at: u64,
    /// A random name of the process that has committed it. Of two equal schedules one is lost, like any other two.
    pub author: String,
    /// The build of that process.
    pub build: String,
    /// The builds of the nodes, in order.
    pub node_builds: Vec<String>,
    /// The allocations, ordered by node and job.
    pub allocations: Vec<Allocation>,
    /// The processes that nodes must end and have not confirmed, ordered by node and job.
    pub revoked: Vec<Revoked>,
    /// Silent nodes with jobs, ordered by name. They get nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<String>,
    /// The quotas that it keeps.
    pub quotas: Quotas,
    /// The shares of nodes in the `limits` of jobs, ordered by job and node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limit_shares: Vec<LimitShare>,
    /// The jobs that have not ended, ordered by id.
    pub jobs: Vec<ScheduledJob>,
}

impl Schedule {
    /// Returns the share of the limits of a job that a node has, and how many other nodes may use some of them.
    pub fn limit_share(&self, job_id: &str, node: &str) -> (Option<&LimitShare>, usize) {
        let of_job = || self.limit_shares.iter().filter(|share| share.job_id == job_id);
        let others = of_job().filter(|share| share.node != node && share.lent > 0).count();
        (of_job().find(|share| share.node == node), others)
    }
}

/// The processes and GPUs of a node for a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Allocation {
    /// Name of the node.
    pub node: String,
    /// Job id.
    pub job_id: String,
    /// Processes, one at least.
    pub processes: u32,
    /// GPUs that only these processes use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<u32>,
}

/// Processes that a node must end. The node confirms it by following the schedule `since` or a later one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// Name of the node.
    pub node: String,
    /// Job id.
    pub job_id: String,
    /// Processes that the node may still have.
    pub processes: u32,
    /// Number of the first schedule without them.
    pub since: u64,
}

/// A job in a schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScheduledJob {
    /// Job id.
    pub job_id: String,
    /// Person or team whose quota the job counts towards.
    pub owner: String,
    /// Weight among other jobs.
    pub priority: Priority,
    /// Whether a command has canceled it.
    pub is_canceled: bool,
    /// Number of the schedule that admitted it, so that it may have processes; `None`: a limit of jobs at a time is in its
    /// way.
    pub admitted_in: Option<u64>,
    /// Whether it has had its first slice.
    pub had_slice: bool,
    /// Whether it lost its processes before its slice was over. The slice continues.
    pub was_interrupted: bool,
    /// How long it was served in this slice before the interruption, in milliseconds.
    pub served: u64,
    /// Since when it has had a ready process without interruption, milliseconds since the epoch.
    pub served_since: Option<u64>,
    /// Whether it has ended a mini-batch since then.
    pub has_ended_one: bool,
    /// How often mini-batches that had ended were opened again, and how many have ended since, as far as the author knows.
    pub ended: (u64, u64),
    /// Since when it has had no process, milliseconds since the epoch.
    pub waits_since: Option<u64>,
    /// Why it has none.
    pub waits_for: Option<WaitsFor>,
}

impl ScheduledJob {
    /// Returns the name of its queues, which a reducer creates when the job is admitted; `None`: it has none. A job that is
    /// admitted again gets others: some services do not create a queue again soon after they have deleted it.
    pub fn queues(&self) -> Option<String> {
        self.admitted_in.map(|number| queues_of(&self.job_id, number))
    }
}

/// Returns the name of the queues of a job that the schedule with this number has admitted.
pub fn queues_of(job_id: &str, admitted_in: u64) -> String {
    format!("{job_id}.{admitted_in}")
}

/// Returns the job and the number of the schedule in a name of queues.
pub fn job_of_queues(name: &str) -> Option<(&str, u64)> {
    let (job_id, number) = name.rsplit_once('.')?;
    Some((job_id, number.parse().ok()?))
}

/// Why a job has no process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// A limit of jobs at a time.
    Quota(ReachedQuota),
    /// Its owner runs as many mini-batches as the quota allows.
    InFlight {
        /// The owner.
        owner: String,
        /// The limit.
        limit: u32,
    },
    /// No worker runs.
    Worker(Requirements),
    /// No worker meets its requirements.
    FittingWorker(Unfit),
    /// The workers that meet its requirements cannot prepare it, or have too few working GPUs.
    AbleWorker {
        /// Number of these workers.
        workers: u64,
        /// The reason that one of them gives; empty: none does.
        #[serde(default)]
        reason: String,
    },
    /// Nodes that may not work on it any more still have processes of it.
    EarlierNodes,
    /// Other jobs have all processes or GPUs that it could use.
    OtherJobs {
        /// Number of jobs that wait and begin before it.
        ahead: u64,
    },
}

impl WaitsFor {
    /// The words of all reasons.
    pub const WORDS: [&str; 7] = [
        "quota",
        "in_flight",
        "worker",
        "fitting_worker",
        "able_worker",
        "earlier_nodes",
        "other_jobs",
    ];

    /// Returns the word of this reason, for metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Quota(_) => "quota",
            Self::InFlight { .. } => "in_flight",
            Self::Worker(_) => "worker",
            Self::FittingWorker(_) => "fitting_worker",
            Self::AbleWorker { .. } => "able_worker",
            Self::EarlierNodes => "earlier_nodes",
            Self::OtherJobs { .. } => "other_jobs",
        }
    }
}

/// `other jobs have all processes that it could use; 2 jobs are ahead of it`
impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota(full) => write!(f, "{full} (quota of the target)"),
            Self::InFlight { owner, limit } => {
                write!(
                    f,
                    "owner {owner} has {limit} of {limit} mini-batches in flight (quota of the target)"
                )
            }
            Self::Worker(requires) if requires.is_empty() => f.write_str("no worker is running"),
            Self::Worker(requires) => {
                write!(f, "no worker is running, and the job requires {requires}")
            }
            Self::FittingWorker(unfit) => unfit.fmt(f),
            Self::AbleWorker { workers, reason } => {
                match workers {
                    1 => f.write_str("the only worker that fits cannot prepare the job")?,
                    _ => write!(f, "none of the {workers} workers that fit can prepare the job")?,
                }
                if reason.is_empty() { Ok(()) } else { write!(f, ": {reason}") }
            }
            Self::EarlierNodes => {
                f.write_str("workers that ran it before still have processes of it")
            }
            Self::OtherJobs { ahead: 0 } => {
                f.write_str("other jobs have all processes that it could use")
            }
            Self::OtherJobs { ahead: 1 } => {
                f.write_str("other jobs have all processes that it could use; 1 job is ahead of it")
            }
            Self::OtherJobs { ahead } => {
                write!(
                    f,
                    "other jobs have all processes that it could use; {ahead} jobs are ahead of it"
                )
            }
        }
    }
}
