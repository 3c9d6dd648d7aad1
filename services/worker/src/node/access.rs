//! What a node asks the store about a job, and what an agent leaves to the node.

use std::sync::Arc;
use std::time::Duration;

use protocol::Descriptor;
use queue::{Queue, Receipt};
use storage::JobStore;

use super::allocations::{Found, Over};

/// How long the end of a visit waits for a store that does not answer.
pub const STORE_WAIT_MAX: Duration = Duration::from_secs(15);

/// Mini-batches that an agent still held when it stopped.
pub type Held = Vec<(Receipt, Descriptor)>;

/// A job that a node works on.
#[derive(Clone, Debug)]
pub struct JobAccess {
    pub job_id: String,
    pub store: JobStore,
    pub results: Arc<dyn Queue>,
}

/// Returns what the store says of a job.
pub(super) async fn look_up(store: &JobStore) -> storage::Result<Found> {
    match over(store).await? {
        Some(Over::Ended) => return Ok(Found::Over("it has ended")),
        Some(Over::Canceled) => return Ok(Found::Over("it was canceled")),
        None => {}
    }
    match store.find_spec().await {
        Ok(Some(spec)) => Ok(Found::Open(Box::new(spec))),
        Ok(None) => Ok(Found::Over("there is no such job in the store")),
        Err(error @ storage::Error::Foreign { .. }) => Ok(Found::Foreign(error.to_string())),
        Err(error) => Err(error),
    }
}

/// Returns how a job is over, if it is.
pub(super) async fn over(store: &JobStore) -> storage::Result<Option<Over>> {
    if store.result().await?.is_some() {
        return Ok(Some(Over::Ended));
    }
    Ok(store.cancel_requested().await?.map(|_| Over::Canceled))
}
