//! Seats, where a job says how many nodes may work on it at a time. Each node has at most one seat of a job.
//!
//! The objects and their rule are in `storage`; here is who may take a seat, and the duty to renew it.

use std::collections::HashMap;
use std::time::Duration;

use storage::{Commit, JobStore};
use tokio::time::{Instant, sleep};

/// What this node has seen of the seats of a job: it measures by its own clock how long one has not been renewed.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed(HashMap<u32, Observation>);

#[derive(Clone, Copy, Debug)]
struct Observation {
    epoch: u64,
    since: Instant,
}

impl Observed {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes a seat that is free: never taken, given up, ours from before, or not renewed for `lapse`.
    pub(super) async fn take(
        &mut self,
        store: &JobStore,
        seats: u32,
        node: &str,
        lapse: Duration,
    ) -> storage::Result<Option<Seat>> {
        for number in 0..seats {
            let known = self.0.get(&number).copied();
            let epoch = match store.seat(number, known.map_or(0, |known| known.epoch)).await? {
                None => 0,
                Some(seat) => {
                    let observation = match known.filter(|known| known.epoch == seat.epoch) {
                        Some(known) => known,
                        None => Observation { epoch: seat.epoch, since: Instant::now() },
                    };
                    self.0.insert(number, observation);
                    let is_free = seat.node.is_empty() || seat.node == node || observation.since.elapsed() >= lapse;
                    if !is_free {
                        continue;
                    }
                    seat.epoch
                }
            };
            if store.claim_seat(number, epoch + 1, node).await? == Commit::Committed {
                return Ok(Some(Seat { number, epoch: epoch + 1, renewed_at: Instant::now() }));
            }
        }
        Ok(None)
    }
}

/// A seat that this node has.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) number: u32,
    epoch: u64,
    renewed_at: Instant,
}

impl Seat {
    /// Renews the seat until it is lost: somebody has taken it, or might have.
    pub(super) async fn keep(&mut self, store: &JobStore, node: &str, period: Duration, lapse: Duration) {
        loop {
            sleep(period).await;
            // Not to be trusted as long as others wait for it.
            let trusted_until = self.renewed_at + lapse * 3 / 4;
            let claim = store.claim_seat(self.number, self.epoch + 1, node);
            match tokio::time::timeout_at(trusted_until.max(Instant::now() + period / 2), claim).await {
                Ok(Ok(Commit::Committed)) => {
                    self.epoch += 1;
                    self.renewed_at = Instant::now();
                }
                Ok(Ok(Commit::Lost)) => return,
                Ok(Err(error)) if Instant::now() < trusted_until => {
                    tracing::warn!("cannot renew seat {}, trying again: {error}", self.number);
                }
                Ok(Err(_)) | Err(_) => return,
            }
        }
    }

    /// Leaves it to others at once. If that fails, they take it when it has lapsed.
    pub(super) async fn leave(self, store: &JobStore) {
        if let Err(error) = store.claim_seat(self.number, self.epoch + 1, "").await {
            tracing::warn!("seat {} stays taken for a while: {error}", self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;

    use super::*;

    const LAPSE: Duration = Duration::from_secs(60);
    const PERIOD: Duration = Duration::from_secs(20);

    fn store() -> JobStore {
        JobStore::new(Arc::new(InMemory::new()), "jobs/job".into())
    }

    async fn take(observed: &mut Observed, store: &JobStore, node: &str) -> Option<Seat> {
        observed.take(store, 2, node, LAPSE).await.expect("memory is always there")
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_no_more_than_so_many_seats() {
        let (store, mut observed) = (store(), Observed::default());
        let first = take(&mut Observed::default(), &store, "a").await.expect("free");
        let second = take(&mut Observed::default(), &store, "b").await.expect("free");
        assert_ne!(first.number, second.number);
        assert!(take(&mut observed, &store, "c").await.is_none());
        first.leave(&store).await;
        assert!(take(&mut observed, &store, "c").await.is_some(), "one was left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_seat_that_is_renewed_stays_taken_and_one_that_is_not_can_be_taken() {
        let (store, mut observed) = (store(), Observed::default());
        let mut kept = take(&mut Observed::default(), &store, "a").await.expect("free");
        let lapsing = take(&mut Observed::default(), &store, "b").await.expect("free");
        let (number, renewed) = (lapsing.number, store.clone());
        let keeping = tokio::spawn(async move { kept.keep(&renewed, "a", PERIOD, LAPSE).await });
        let mut tries = 0;
        let taken = loop {
            match take(&mut observed, &store, "c").await {
                Some(seat) => break seat,
                None => tries += 1,
            }
            sleep(Duration::from_secs(5)).await;
        };
        assert_eq!(taken.number, number);
        assert!(tries >= 12, "it was waited for: {tries}");
        assert!(!keeping.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_away_for_long_learns_that_the_seat_is_lost() {
        let store = store();
        let mut seat = take(&mut Observed::default(), &store, "a").await.expect("free");
        store.claim_seat(seat.number, 2, "b").await.expect("memory is always there");
        seat.keep(&store, "a", PERIOD, LAPSE).await;
    }
}
