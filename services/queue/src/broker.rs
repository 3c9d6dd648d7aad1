//! The queues of jobs: each job of a compute target has two of its own while it may run.
//!
//! A job that has its own queues needs nobody to divide a queue between jobs: a worker receives from the queues of the jobs
//! that it works on, and no message is in the way of another job.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{Error, Queue};

/// Creates, opens and deletes the queues of jobs.
///
/// A name consists of letters, digits, `-`, `_` and `.`. A service that allows fewer characters, or shorter names, replaces
/// it by one that it allows, always the same.
#[async_trait]
pub trait Broker: Send + Sync + Debug {
    /// Creates the queues that do not exist, and opens both.
    async fn create(&self, name: &str) -> Result<JobQueues, Error>;

    /// Opens the queues. [`Error::Absent`]: one of them does not exist.
    async fn open(&self, name: &str) -> Result<JobQueues, Error>;

    /// Deletes the queues with their messages. It is no error if they do not exist. Calls of those who have opened them fail
    /// from then on, mostly with [`Error::Absent`], or find nothing.
    async fn delete(&self, name: &str) -> Result<(), Error>;

    /// Returns how many jobs may have queues at a time.
    fn jobs_max(&self) -> u32;

    /// Ends all leases of this process, and lets every acknowledgement reach the service. Queues that it has opened are not
    /// used after that.
    async fn close(&self);
}

/// The queues of a job.
#[derive(Clone, Debug)]
pub struct JobQueues {
    /// Descriptors of mini-batches.
    pub tasks: Arc<dyn Queue>,
    /// Results.
    pub results: Arc<dyn Queue>,
}
