//! Reads the state of a job from the store for a node.

use std::sync::Arc;
use std::time::Duration;

use protocol::Descriptor;
use queue::{Queue, Receipt};
use storage::JobStore;

use super::allocations::{JobEnd, JobLookup};

/// How long the end of a visit waits for a store that does not answer.
pub const STORE_WAIT_MAX: Duration = Duration::from_secs(15);

/// Mini-batches that an agent still held when it stopped.
pub type UnfinishedMiniBatches = Vec<(Receipt, Descriptor)>;

/// A job that a node works on.
#[derive(Clone, Debug)]
pub struct JobAccess {
    pub job_id: String,
    pub store: JobStore,
    pub results: Arc<dyn Queue>,
}

/// Returns the state of a job in the store.
pub(super) async fn look_up(store: &JobStore) -> storage::Result<JobLookup> {
    match over(store).await? {
        Some(JobEnd::Ended) => return Ok(JobLookup::Over("it has ended")),
        Some(JobEnd::Canceled) => return Ok(JobLookup::Over("it was canceled")),
        None => {}
    }
    match store.find_spec().await {
        Ok(Some(spec)) => Ok(JobLookup::Open(Box::new(spec))),
        Ok(None) => Ok(JobLookup::Over("there is no such job in the store")),
        Err(error @ storage::Error::Foreign { .. }) => Ok(JobLookup::Foreign(error.to_string())),
        Err(error) => Err(error),
    }
}

/// Returns how a job ended; `None`: it is open.
pub(super) async fn over(store: &JobStore) -> storage::Result<Option<JobEnd>> {
    if store.result().await?.is_some() {
        return Ok(Some(JobEnd::Ended));
    }
    Ok(store.cancel_requested().await?.map(|_| JobEnd::Canceled))
}
