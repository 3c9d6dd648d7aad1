//! Lists this node among the workers of its target, with what it offers: `enqueue` and reducers read there which jobs no
//! worker takes. The node works without it.

use std::time::Duration;

use protocol::Offer;
use storage::{TargetStore, WORKER_PERIOD};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// How long the end of a node waits for a store that does not answer.
const REMOVAL_MAX: Duration = Duration::from_secs(5);

/// The entry of a node.
pub(super) struct Registration {
    target: TargetStore,
    node: String,
    renewing: AbortOnDropHandle<()>,
}

impl Registration {
    /// Writes the entry, and keeps it fresh.
    pub fn start(target: TargetStore, node: String, offer: Offer) -> Self {
        let renewing = renew(target.clone(), node.clone(), offer);
        Self { target, node, renewing: AbortOnDropHandle::new(tokio::spawn(renewing)) }
    }

    /// Removes the entry. If this fails, it becomes stale.
    pub async fn remove(self) {
        self.renewing.abort();
        let _ = self.renewing.await;
        match timeout(REMOVAL_MAX, self.target.remove_worker(&self.node)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::info!("cannot remove this node from the list of workers: {error:#}"),
            Err(_) => tracing::info!("cannot remove this node from the list of workers: the store does not answer"),
        }
    }
}

async fn renew(target: TargetStore, node: String, offer: Offer) {
    let mut is_told = false;
    loop {
        if let Err(error) = target.put_worker(&node, &offer).await
            && !std::mem::replace(&mut is_told, true)
        {
            tracing::warn!(
                "cannot list this node among the workers of the target, so `enqueue` and `status` do not know what it \
                 offers; allow it to write {}/workers/: {error:#}",
                target.url()
            );
        }
        tokio::time::sleep(WORKER_PERIOD).await;
    }
}
