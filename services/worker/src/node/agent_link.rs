//! The connection of a node to the agent of a job: the node sends the allocation of the job, and
//! the agent reports its processes and the GPUs that they use.

use std::fmt;
use std::sync::Arc;

use protocol::Activity;
use tokio::sync::watch;

use crate::limit::SharedLimiter;
use crate::scheduler::{AgentAllocation, AllocationReport};

/// The agent's end of the connection.
#[derive(Clone)]
pub struct AgentLink {
    allocation: watch::Receiver<AgentAllocation>,
    report: Arc<dyn Fn(AllocationReport) + Send + Sync>,
    activity: watch::Sender<Activity>,
    limiter: Option<SharedLimiter>,
}

impl AgentLink {
    pub(super) fn new(
        allocation: watch::Receiver<AgentAllocation>,
        report: impl Fn(AllocationReport) + Send + Sync + 'static,
        activity: watch::Sender<Activity>,
        limiter: Option<SharedLimiter>,
    ) -> Self {
        Self { allocation, report: Arc::new(report), activity, limiter }
    }

    /// Returns the channel through which the agent publishes its mini-batches.
    pub fn activity(&self) -> watch::Sender<Activity> {
        self.activity.clone()
    }

    /// Returns the limiter of the job on this node; `None`: the job has no limits.
    pub fn limiter(&self) -> Option<SharedLimiter> {
        self.limiter.clone()
    }

    /// Returns the current allocation of the job.
    pub fn allocation(&mut self) -> AgentAllocation {
        self.allocation.borrow_and_update().clone()
    }

    /// Waits for the next allocation. Cancel safe.
    pub async fn next(&mut self) -> AgentAllocation {
        match self.allocation.changed().await {
            Ok(()) => self.allocation(),
            // The node has left the job.
            Err(_) => std::future::pending().await,
        }
    }

    /// Returns a receiver of the allocation.
    pub fn watched(&self) -> watch::Receiver<AgentAllocation> {
        self.allocation.clone()
    }

    /// Reports to the node the processes of the job, and the GPUs that they may use.
    pub fn report(&self, in_use: AllocationReport) {
        (self.report)(in_use);
    }
}

impl fmt::Debug for AgentLink {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AgentLink")
            .field("allocation", &*self.allocation.borrow())
            .finish_non_exhaustive()
    }
}
