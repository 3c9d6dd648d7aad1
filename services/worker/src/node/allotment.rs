//! What connects a node with the agent of a job: the node tells the share of the job, the agent which processes it has and
//! which GPUs they use.

use std::fmt;
use std::sync::Arc;

use protocol::Activity;
use tokio::sync::watch;

use crate::limit::SharedLimiter;
use crate::scheduler::{InUse, Share};

/// The end of the agent.
#[derive(Clone)]
pub struct Allotment {
    share: watch::Receiver<Share>,
    report: Arc<dyn Fn(InUse) + Send + Sync>,
    activity: watch::Sender<Activity>,
    limiter: Option<SharedLimiter>,
}

impl Allotment {
    pub(super) fn new(
        share: watch::Receiver<Share>,
        report: impl Fn(InUse) + Send + Sync + 'static,
        activity: watch::Sender<Activity>,
        limiter: Option<SharedLimiter>,
    ) -> Self {
        Self { share, report: Arc::new(report), activity, limiter }
    }

    /// Returns where the agent says which mini-batches it has. The node reads it now and then.
    pub fn activity(&self) -> watch::Sender<Activity> {
        self.activity.clone()
    }

    /// Returns what the node may use of the limits of the job; `None`: the job has none.
    pub fn limiter(&self) -> Option<SharedLimiter> {
        self.limiter.clone()
    }

    /// Returns the share of the job now.
    pub fn share(&mut self) -> Share {
        self.share.borrow_and_update().clone()
    }

    /// Waits for the next share. Losing this future loses nothing.
    pub async fn next(&mut self) -> Share {
        match self.share.changed().await {
            Ok(()) => self.share(),
            // The node has left the job.
            Err(_) => std::future::pending().await,
        }
    }

    /// Returns the end that the node watches.
    pub fn watched(&self) -> watch::Receiver<Share> {
        self.share.clone()
    }

    /// Tells the node which processes the job has, and which GPUs they may use.
    pub fn report(&self, in_use: InUse) {
        (self.report)(in_use);
    }
}

impl fmt::Debug for Allotment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Allotment")
            .field("share", &*self.share.borrow())
            .finish_non_exhaustive()
    }
}
