//! The options of a reducer, and the points at which tests kill it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use protocol::Running;
use queue::Queue;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::Peers;
use crate::job_liveness::Timestamp;

/// The unfinished work of a job, and its excluded nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Mini-batches of the plan; `None`: it is not known to be complete.
    pub planned: Option<u64>,
    /// How often mini-batches that had ended were opened again, and how many have ended since: of two readers of the ledger,
    /// the one with the larger value knows more.
    pub ended: (u64, u64),
    /// Nodes that must not work on the job.
    pub excluded: BTreeSet<String>,
}

/// The workers of a job, as far as this process knows.
#[derive(Clone, Debug, Default)]
pub struct Workers {
    /// The last heartbeat of a worker in the store of the target; results are heartbeats, too.
    pub heartbeat: Option<Timestamp>,
    /// The processes of the job on each node that is not silent, by name.
    pub nodes: BTreeMap<String, Running>,
    /// Mini-batches that all nodes hold. A silent one may still have its own.
    pub held: u64,
    /// Some nodes that may run the job; `None`: not known yet.
    pub able: Option<BTreeSet<String>>,
}

/// The options of a reducer. The default suits a job on one machine.
#[derive(Clone)]
pub struct Options {
    /// Name of this reducer in logs and temporary files; unique among concurrent reducers.
    pub writer: String,
    /// Processes per node, if the job leaves it open and the caller knows it.
    pub process_count_per_node: Option<u32>,
    /// Other processes that work on the job.
    pub peers: Peers,
    /// Age of a job from which failures of `init()` in every process fail it.
    pub init_failure_age: Duration,
    /// Interval of the progress overview, the summaries and the polled thresholds.
    pub report_interval: Duration,
    /// Interval of `progress.json` and of checks for a request to cancel; with peers, also of checks for their commits.
    pub progress_interval: Duration,
    /// Time without a heartbeat after which the workers of a job count as absent. Each sends one
    /// every two seconds.
    pub silence: Duration,
    /// Minimum interval between commits while messages arrive.
    pub commit_interval: Duration,
    /// How long to retry an unavailable store before the reducer stops.
    pub store_patience: Duration,
    /// How long a received message stays invisible to other reducers, which receive it if this one dies.
    pub visibility: Duration,
    /// How long one call to the result queue waits for the first message.
    pub receive_wait: Duration,
    /// How long this reducer continues to write the final file after it was asked to stop. The next reducer then writes
    /// the file from the beginning.
    pub output_grace: Duration,
    /// When it is canceled, this reducer gives up the final file, and the job ends as canceled. Only after `cancel` of
    /// [`Reducer::run`](crate::Reducer::run).
    pub kill: CancellationToken,
    /// Destination of unreadable messages; `None`: only the logs.
    pub dead_letters: Option<Arc<dyn Queue>>,
    /// Task queue, for copies of mini-batches; `None`: the job does not speculate.
    pub tasks: Option<Arc<dyn Queue>>,
    /// The unfinished work of the job, for the schedule of the target.
    pub backlog: watch::Sender<Backlog>,
    /// Returns the current state of the workers.
    pub workers: Arc<dyn Fn() -> Arc<Workers> + Send + Sync>,
    /// Whether to write reports for people.
    pub reports: bool,
    /// Called at every step of the write path.
    pub crash: Arc<dyn Fn(CrashPoint) + Send + Sync>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            writer: std::process::id().to_string(),
            process_count_per_node: None,
            peers: Peers::Alone,
            init_failure_age: Duration::from_secs(120),
            report_interval: Duration::from_secs(10),
            progress_interval: Duration::from_secs(1),
            silence: Duration::from_secs(5),
            // At most 40 objects per second.
            commit_interval: Duration::from_millis(25),
            // A full disk stays full.
            store_patience: Duration::from_secs(4),
            visibility: Duration::from_secs(60),
            receive_wait: Duration::from_secs(1),
            output_grace: Duration::from_secs(30),
            kill: CancellationToken::new(),
            dead_letters: None,
            tasks: None,
            backlog: watch::Sender::default(),
            workers: Arc::new(Arc::default),
            reports: true,
            crash: Arc::new(|_| {}),
        }
    }
}

impl Options {
    /// Returns the options for jobs of a target, where many machines work and every request to the store has a price.
    pub fn shared() -> Self {
        Self {
            // Containers have equal process ids, and may start in one millisecond.
            writer: storage::random_name(),
            peers: Peers::Many,
            progress_interval: Duration::from_secs(2),
            commit_interval: Duration::from_millis(200),
            store_patience: Duration::from_secs(120),
            receive_wait: Duration::from_secs(20),
            ..Self::default()
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Options").field("writer", &self.writer).finish_non_exhaustive()
    }
}

protocol::crash_points! {
    /// A round has written the kept rows of its mini-batches, and is not in the ledger.
    BeforeRound,
    /// It is in the ledger, and `result.json` of the round before still exists.
    AfterRound,
    /// Messages were received.
    BeforeSegmentCommit,
    /// They are in the ledger, but not acknowledged.
    AfterSegmentCommit,
    /// They are acknowledged.
    AfterAcknowledge,
    /// Every mini-batch has ended.
    BeforeOutput,
    /// A part of the final file is written, under a temporary name.
    DuringOutput,
    /// All of it is written.
    BeforeRename,
    /// The final file has its name.
    AfterRename,
    /// One of the two tables of rejects has its final name, the other does not yet; or the job never had rejects.
    DuringRejects,
    /// `result.json` exists, and so do the parts.
    AfterResult,
}
