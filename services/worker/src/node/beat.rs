//! Signs of life: they tell a job that a worker is present while no mini-batch ends, because the worker builds an
//! environment, or a run takes an hour.
//!
//! All nodes share one object. A node that finds it changed by another node since its last look does not write, so the
//! number of writes does not grow with the fleet.

use std::time::Duration;

use storage::{Beat, JobStore};
use tokio::time::sleep;

/// Waits for work on a job, with signs of life of the node meanwhile, one each `period`.
pub async fn attended<T>(store: &JobStore, node: &str, period: Duration, work: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        done = work => done,
        () = keep_beating(store, node, period) => unreachable!("a node gives signs of life until it leaves the job"),
    }
}

/// Gives signs of life for a node, one each `period`, until it is dropped.
async fn keep_beating(store: &JobStore, node: &str, period: Duration) {
    let mut seen = None;
    for count in 0.. {
        sleep(period).await;
        if let Err(error) = beat(store, node, count, &mut seen).await {
            tracing::debug!("cannot give a sign of life, trying again: {error:#}");
        }
    }
}

/// Gives a sign of life, unless another node has given one since the last look.
async fn beat(store: &JobStore, node: &str, count: u64, seen: &mut Option<Beat>) -> storage::Result<()> {
    if seen.is_some() {
        let found = store.beat().await?;
        if found != *seen && found.as_ref().is_some_and(|found| found.node != node) {
            *seen = found;
            return Ok(());
        }
    }
    let own = Beat::of(node, count);
    store.put_beat(&own).await?;
    *seen = Some(own);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;

    use super::*;

    const PERIOD: Duration = Duration::from_secs(2);

    fn store() -> JobStore {
        JobStore::new(Arc::new(InMemory::new()), "jobs/job".into())
    }

    async fn last(store: &JobStore) -> Beat {
        store.beat().await.expect("memory is always there").expect("a node has given one")
    }

    #[tokio::test]
    async fn one_node_beats_for_all_and_another_follows_when_it_dies() {
        let (store, mut first, mut second) = (store(), None, None);
        for (node, seen) in [("a", &mut first), ("b", &mut second)] {
            beat(&store, node, 0, seen).await.expect("memory is always there");
        }
        assert_eq!(last(&store).await.node, "b");
        // From now on `a` sees that `b` beats, as long as it does.
        beat(&store, "a", 1, &mut first).await.expect("memory is always there");
        assert_eq!(last(&store).await.node, "b");
        beat(&store, "b", 1, &mut second).await.expect("memory is always there");
        assert_eq!(last(&store).await.node, "b");
        beat(&store, "a", 2, &mut first).await.expect("memory is always there");
        assert_eq!(last(&store).await.node, "b");
        beat(&store, "a", 3, &mut first).await.expect("memory is always there");
        assert_eq!(last(&store).await.node, "a", "`b` has given none since the last look of `a`");
    }

    #[tokio::test(start_paused = true)]
    async fn lone_node_beats_every_period() {
        let store = store();
        let beating = keep_beating(&store, "a", PERIOD);
        tokio::pin!(beating);
        let mut before = None;
        for _ in 0..3 {
            assert!(tokio::time::timeout(PERIOD * 3 / 2, &mut beating).await.is_err(), "it never ends");
            let beat = Some(last(&store).await);
            assert_ne!(beat, before);
            before = beat;
        }
    }
}
