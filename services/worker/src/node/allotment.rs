//! What connects a node with the agent of a job: the node tells the share of the job, the agent which processes it has and
//! which GPUs they use.

use tokio::sync::{mpsc, watch};

use super::roster::{Event, VisitId};
use crate::scheduler::{InUse, Share};

/// The end of the agent.
#[derive(Clone, Debug)]
pub struct Allotment {
    share: watch::Receiver<Share>,
    visit: VisitId,
    reports: mpsc::UnboundedSender<Event>,
}

impl Allotment {
    pub(super) fn new(share: watch::Receiver<Share>, visit: VisitId, reports: mpsc::UnboundedSender<Event>) -> Self {
        Self { share, visit, reports }
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
        let _ = self.reports.send(Event::InUse { visit: self.visit, in_use });
    }
}
