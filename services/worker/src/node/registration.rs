//! Publishes the state of this node: commands, reducers and the portal read its entry. While the
//! node has a job, the entry is its heartbeat, and the schedule gives a silent node nothing.
//!
//! With a job the node renews its entry every two seconds, otherwise every 15. After five seconds
//! of silence the schedule gives its work to others (`reducer/src/worker_liveness.rs`); after 45 the
//! entry is void, and the node begins nothing and lets its runs end. The store dates entries:
//! nothing compares clocks of machines.

use std::time::Duration;

use protocol::{Activity, LimitNeed, NodeState};
use queue::LeaseClock;
use storage::{TargetStore, WORKER_PERIOD, WORKER_PERIOD_AT_WORK};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::allocations::Allocations;

/// How long the end of a node waits for a store that does not answer.
const REMOVAL_MAX: Duration = Duration::from_secs(5);

/// The content of the entry, and its longest time without a renewal.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    state: NodeState,
    /// Time between two renewals.
    period: Duration,
}

impl Entry {
    /// `limits`: how much of the limits of jobs the node needs, by job. `activities`: which mini-batches it has.
    pub fn of(
        allocations: &Allocations,
        limits: impl IntoIterator<Item = (String, LimitNeed)>,
        activities: impl IntoIterator<Item = (String, Activity)>,
    ) -> Self {
        let period = if allocations.has_work() { WORKER_PERIOD_AT_WORK } else { WORKER_PERIOD };
        let mut state = allocations.state();
        for (job_id, need) in limits {
            state.jobs.entry(job_id).and_modify(|running| running.limits = Some(need));
        }
        for (job_id, activity) in activities {
            state.jobs.entry(job_id).and_modify(|running| running.activity = activity);
        }
        Self { state, period }
    }
}

/// The entry of a node in the store.
pub(super) struct Registration {
    target: TargetStore,
    node: String,
    clock: LeaseClock,
    renewed_at: watch::Receiver<Option<Instant>>,
    renewing: AbortOnDropHandle<()>,
}

impl Registration {
    /// Writes the entry, and keeps it up to date.
    pub fn start(target: TargetStore, entries: watch::Receiver<Entry>, clock: LeaseClock) -> Self {
        let node = entries.borrow().state.name.clone();
        let (renewals, renewed_at) = watch::channel(None);
        let renewing = renew(target.clone(), entries, renewals, clock.clone());
        Self {
            target,
            node,
            clock,
            renewed_at,
            renewing: AbortOnDropHandle::new(tokio::spawn(renewing)),
        }
    }

    /// Returns when this node has begun to write the entry that others may read, by the clock of leases; `None`: it has not
    /// written one yet.
    pub fn renewed_at(&self) -> Option<Instant> {
        *self.renewed_at.borrow()
    }

    /// Returns the age of this entry.
    pub fn age(&self) -> Option<Duration> {
        self.renewed_at().map(|at| self.clock.now() - at)
    }

    /// Removes the entry. If this fails, it becomes stale.
    pub async fn remove(self) {
        self.renewing.abort();
        let _ = self.renewing.await;
        match timeout(REMOVAL_MAX, self.target.remove_worker(&self.node)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::info!("cannot remove this node from the list of workers: {error:#}")
            }
            Err(_) => tracing::info!(
                "cannot remove this node from the list of workers: the store does not answer"
            ),
        }
    }
}

async fn renew(
    target: TargetStore,
    mut entries: watch::Receiver<Entry>,
    renewals: watch::Sender<Option<Instant>>,
    clock: LeaseClock,
) {
    let mut is_told = false;
    loop {
        let Entry { state, period } = entries.borrow_and_update().clone();
        let began = clock.now();
        let written = target.put_worker(&state).await;
        let is_written = written.is_ok();
        match written {
            Ok(()) => {
                is_told = false;
                renewals.send_replace(Some(began));
            }
            Err(_) if std::mem::replace(&mut is_told, true) => {}
            Err(error) => tracing::warn!(
                "cannot list this node among the workers of the target, so the schedule gives it no job; trying again; it \
                 needs to write {}/workers/: {error:#}",
                target.url()
            ),
        }
        sleep(WORKER_PERIOD_AT_WORK).await;
        // If the store was absent, as a folder is before the first job, that job waits for this entry.
        if is_written {
            let _ = timeout(period - WORKER_PERIOD_AT_WORK, changed(&mut entries)).await;
        }
    }
}

/// Waits until the content of the entry changes.
async fn changed(entries: &mut watch::Receiver<Entry>) {
    if entries.changed().await.is_err() {
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
        let state = NodeState { name: "node".to_owned(), ..NodeState::default() };
        let entries = watch::Sender::new(Entry { state, period: WORKER_PERIOD });
        let registration =
            Registration::start(target.clone(), entries.subscribe(), LeaseClock::System);
        let seen = async || {
            let seen = target.seen_workers().await.expect("memory is always there");
            seen.into_iter().map(|worker| worker.state).collect::<Vec<_>>()
        };
        sleep(Duration::from_millis(1)).await;
        assert_eq!(seen().await, [entries.borrow().state.clone()]);
        for processes in 1..=3 {
            entries.send_modify(|entry| {
                entry
                    .state
                    .jobs
                    .insert("job".to_owned(), Running { processes, ..Running::default() });
            });
            sleep(WORKER_PERIOD_AT_WORK + Duration::from_millis(1)).await;
            assert_eq!(seen().await, [entries.borrow().state.clone()]);
        }
        let renewals = async |seconds| {
            let before = registration.renewed_at();
            sleep(Duration::from_secs(seconds)).await;
            registration.renewed_at() != before
        };
        sleep(WORKER_PERIOD_AT_WORK).await;
        assert!(
            !renewals(10).await && renewals(10).await,
            "nothing depends on a node without work"
        );
        entries.send_modify(|entry| entry.period = WORKER_PERIOD_AT_WORK);
        sleep(WORKER_PERIOD_AT_WORK).await;
        assert!(renewals(2).await && renewals(2).await);
        registration.remove().await;
        assert_eq!(seen().await, []);
    }
}
