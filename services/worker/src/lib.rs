//! The worker: an agent receives the mini-batches of one job from the task queue, prepares them, supervises the Python
//! processes that call user code, and announces the outcomes. A node of a fleet runs one agent for every job that the schedule
//! of its target gives it.
//!
//! | file | purpose |
//! |---|---|
//! | `node` | a worker of a fleet, which follows the schedule of its target |
//! | `scheduler` | every decision about one job on this node, as a state machine without I/O |
//! | `agent` | one job: executes the actions of the scheduler, and reports events to it |
//! | `stop` | stops agents and nodes |
//! | `python_process`, `scratch` | starts, messages, observes and kills one interpreter; its working directory |
//! | `cache` | the caches of this machine, and their eviction |
//! | `environment`, `conda`, `tools` | the interpreter of the script, and the programs that create one |
//! | `job_users` | a user of its own for each job, where the worker may change users |
//! | `variables` | which environment variables of this process scripts get |
//! | `offer`, `gpu` | the resources of this machine |
//! | `prepare`, `memory_files` | prepares the argument of `run()`: paths, or a table in shared memory |
//! | `side_inputs` | downloads reference data and replaces its URLs by local paths |
//! | `announce`, `messages` | write, announce, acknowledge, in that order; the messages of results |
//! | `dead_letters` | moves messages that are not mini-batches to the dead letters |
//! | `checkpoints` | the results that scripts hand back before their attempt has ended |
//! | `limit` | limits the requests of a job's processes to a service |
//! | `lease` | extends leases, and reports lost ones |
//! | `node_lock` | gives a job exclusive use of a node, for a mini-batch that may kill it |
//! | `held` | records on disk the mini-batches of a node whose queue dies with it |
//! | `retry` | retries calls of queues |
//! | `resident`, `pressure` | the memory of a process; memory pressure of the machine |
//! | `memory_groups`, `oom` | limits the memory of a job; processes that the kernel killed for memory |
//! | `allocator` | keeps freed memory in this process |
//! | `orphans` | kills child processes that user code leaves behind |
//! | `printed`, `capped_log` | the last lines that a process printed, for reports; its output in a file |
//! | `node_log`, `log_throttle` | the log files of the node; limits repeated lines |
//! | `counts` | metrics of announcements |
//! | `monitor` | samples of processor, memory, disk and network |
//!
//! The worker depends on the queue and the storage, but neither on the partitioner nor on the reducer.

mod agent;
mod allocator;
mod announce;
mod cache;
mod capped_log;
mod checkpoints;
mod conda;
mod counts;
mod dead_letters;
mod environment;
mod gpu;
mod held;
mod job_users;
mod lease;
mod limit;
mod log_throttle;
mod memory_files;
mod memory_groups;
mod messages;
mod monitor;
mod node;
#[allow(missing_docs, reason = "public for the simulation, and for callers that create agents")]
mod node_lock;
mod node_log;
mod offer;
mod oom;
mod orphans;
mod prepare;
mod pressure;
mod printed;
mod python_process;
mod resident;
mod retry;
#[allow(missing_docs, reason = "public for the simulation alone")]
pub mod scheduler;
mod scratch;
mod side_inputs;
#[cfg(test)]
mod silent_store;
mod stop;
mod tools;
mod variables;

pub use agent::{Agent, Timing, report_provisioning};
pub use allocator::keep_freed_memory;
pub use announce::body_to_return;
pub use cache::{Cache, Limits as CacheLimits, PinnedEntry};
pub use environment::interpreter;
pub use gpu::{VisibleGpus, default_process_count, process_count};
pub use held::{HeldMiniBatch, held_by_dead_node};
pub use job_users::{JobUser, UserRange, is_root};
pub use limit::limiters;
pub use memory_groups::{NoMemoryGroups, plan as plan_memory_groups};
pub use node::{Ended, Node, NodeOptions, SpotNotice, TaskProtection};
pub use node_lock::{Access, NodeLock, NodeLockHolder};
pub use offer::offer;
pub use pressure::available_memory;
pub use side_inputs::{fetch_side_inputs, replace_paths};
pub use stop::{Stop, StopSender};
pub use variables::{Variables, hide_process};

/// The types beside the scheduler from which the simulation builds its agents and nodes.
pub mod simulation_api {
    pub use crate::announce::{Announcements, Announcer};
    pub use crate::checkpoints::Checkpoints;
    pub use crate::lease::{LEASE_STEP, LeaseId, Leases};
    pub use crate::limit::{LimitRequest, Limiter};
    pub use crate::node::access::{JobAccess, UnfinishedMiniBatches};
    pub use crate::node::agent_link::AgentLink;
    pub use crate::node::allocations::{
        Allocations, Config as NodeConfig, ProvisioningFailure, ProvisioningObstacle,
    };
    pub use crate::node::driver::{Driver, NodeBackend};
    pub use crate::prepare::{Preparation, Prepared, with_kept};
    pub use crate::scheduler::ProcessId;
}

protocol::crash_points! {
    /// The node has leased deliveries and done nothing else.
    AfterReceive,
    /// A process has been handed mini-batches.
    AfterHandOver,
    /// A process has answered; nothing is written.
    AfterRun,
    /// Rows are about to be written as a part.
    BeforePart,
    /// The part is written, its outcome not announced.
    AfterPart,
    /// Outcomes are in the result queue, deliveries still leased.
    AfterAnnounce,
    /// The next try is published, the old delivery still leased.
    AfterRepublish,
    /// The task queue has deleted the deliveries.
    AfterTaskAcknowledge,
}

/// Called at every crash point. Does nothing except in crash tests.
pub type Crash = fn(CrashPoint);
