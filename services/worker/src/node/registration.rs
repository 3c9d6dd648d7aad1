//! Tells the target what this node has and does: commands, reducers and the portal read its entry. While the node has a job,
//! the entry is its sign of life, and the schedule gives a silent node nothing.

use std::time::Duration;

use protocol::NodeState;
use storage::{TargetStore, WORKER_PERIOD, WORKER_PERIOD_AT_WORK};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

/// How long the end of a node waits for a store that does not answer.
const REMOVAL_MAX: Duration = Duration::from_secs(5);

/// The entry of a node.
pub(super) struct Registration {
    target: TargetStore,
    node: String,
    renewed_at: watch::Receiver<Option<Instant>>,
    renewing: AbortOnDropHandle<()>,
}

impl Registration {
    /// Writes the entry, and keeps it up to date.
    pub fn start(target: TargetStore, states: watch::Receiver<NodeState>) -> Self {
        let node = states.borrow().name.clone();
        let (renewals, renewed_at) = watch::channel(None);
        let renewing = renew(target.clone(), states, renewals);
        Self { target, node, renewed_at, renewing: AbortOnDropHandle::new(tokio::spawn(renewing)) }
    }

    /// Returns when this node has begun to write the entry that others may read; `None`: it has not written one yet.
    pub fn renewed_at(&self) -> Option<Instant> {
        *self.renewed_at.borrow()
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

async fn renew(target: TargetStore, mut states: watch::Receiver<NodeState>, renewals: watch::Sender<Option<Instant>>) {
    let mut is_told = false;
    loop {
        let state = states.borrow_and_update().clone();
        let began = Instant::now();
        match target.put_worker(&state).await {
            Ok(()) => drop(renewals.send_replace(Some(began))),
            Err(_) if std::mem::replace(&mut is_told, true) => {}
            Err(error) => tracing::warn!(
                "cannot list this node among the workers of the target, so `enqueue` and `status` do not know what it \
                 has and does; allow it to write {}/workers/: {error:#}",
                target.url()
            ),
        }
        sleep(WORKER_PERIOD_AT_WORK).await;
        if states.borrow().jobs.is_empty() {
            let _ = timeout(WORKER_PERIOD - WORKER_PERIOD_AT_WORK, changed(&mut states)).await;
        }
    }
}

/// Waits until the node has another state.
async fn changed(states: &mut watch::Receiver<NodeState>) {
    if states.changed().await.is_err() {
        // The node ends, and removes its entry.
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use object_store::path::Path;
    use protocol::Running;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn entry_follows_the_state_of_the_node_until_it_ends() {
        let target = TargetStore::new(Arc::new(InMemory::new()), Path::default());
        let states = watch::Sender::new(NodeState { name: "node".to_owned(), ..NodeState::default() });
        let registration = Registration::start(target.clone(), states.subscribe());
        let seen = async || {
            let seen = target.seen_workers().await.expect("memory is always there");
            seen.into_iter().map(|worker| worker.state).collect::<Vec<_>>()
        };
        sleep(Duration::from_millis(1)).await;
        assert_eq!(seen().await, [states.borrow().clone()]);
        for processes in 1..=3 {
            states.send_modify(|state| {
                state.jobs.insert("job".to_owned(), Running { processes, ..Running::default() });
            });
            sleep(WORKER_PERIOD_AT_WORK + Duration::from_millis(1)).await;
            assert_eq!(seen().await, [states.borrow().clone()]);
        }
        registration.remove().await;
        assert_eq!(seen().await, []);
    }
}
