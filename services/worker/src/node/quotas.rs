//! The part of this node in what each owner may have in flight on the target. Pure, except for `watch_parts`.
//!
//! No process counts what runs on all nodes. Instead, each node takes an equal part of the limit, by the list of workers:
//! the first ones, by name, have one more if the limit cannot be divided evenly. So the parts of all nodes together are the
//! limit, as soon as all of them have read the same list.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use protocol::Quotas;
use storage::TargetStore;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

/// From one reading of quotas and workers to the next.
const READ_EVERY: Duration = Duration::from_secs(30);
/// How long a node waits for the first reading before it begins.
const FIRST_MAX: Duration = Duration::from_secs(5);

/// What this node may run of each owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    quotas: Quotas,
    workers: u32,
    /// Workers with smaller names.
    rank: u32,
}

impl Parts {
    /// Divides quotas among workers. This node counts as one even if the list lacks it.
    pub fn new(quotas: Quotas, workers: &[String], node: &str) -> Self {
        let others = workers.iter().filter(|worker| *worker != node);
        let rank = others.clone().filter(|worker| worker.as_str() < node).count();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Self { quotas, workers: count(others.count()).saturating_add(1), rank: count(rank) }
    }

    /// Returns how many mini-batches an owner may have in flight on the target; `None`: any number.
    pub fn limit_of(&self, owner: &str) -> Option<u32> {
        self.quotas.of(owner).max_in_flight
    }

    /// Returns how many processes of an owner this node may have; `None`: any number.
    pub fn of(&self, owner: &str) -> Option<u32> {
        let limit = self.limit_of(owner)?;
        Some(limit / self.workers.max(1) + u32::from(self.rank < limit % self.workers.max(1)))
    }
}

/// Reads the parts of a node, and keeps them up to date until the result is dropped.
pub(super) async fn watch_parts(
    target: TargetStore,
    node: String,
) -> (watch::Receiver<Arc<Parts>>, AbortOnDropHandle<()>) {
    // A node that began without them would run too much.
    let first = timeout(FIRST_MAX, read(&target, &node)).await.map_or(None, Result::ok).unwrap_or_default();
    let (sender, parts) = watch::channel(Arc::new(first));
    (parts, AbortOnDropHandle::new(tokio::spawn(keep(target, node, sender))))
}

async fn keep(target: TargetStore, node: String, parts: watch::Sender<Arc<Parts>>) {
    loop {
        sleep(READ_EVERY).await;
        match read(&target, &node).await {
            Ok(read) => drop(parts.send_if_modified(|parts| {
                let is_new = **parts != read;
                *parts = Arc::new(read);
                is_new
            })),
            Err(error) => tracing::debug!("cannot read the quotas of the target, trying again later: {error:#}"),
        }
    }
}

async fn read(target: &TargetStore, node: &str) -> Result<Parts> {
    let quotas = target.quotas().await?.unwrap_or_default();
    let workers = if quotas.limit_in_flight() { target.worker_names().await? } else { Vec::new() };
    Ok(Parts::new(quotas, &workers, node))
}

#[cfg(test)]
mod tests {
    use protocol::OwnerQuota;

    use super::*;

    fn parts(limit: u32, workers: &[&str]) -> Vec<Option<u32>> {
        let each_owner = OwnerQuota { max_in_flight: Some(limit), ..OwnerQuota::default() };
        let quotas = Quotas { each_owner, ..Quotas::default() };
        let names: Vec<String> = workers.iter().map(|name| (*name).to_owned()).collect();
        names.iter().map(|name| Parts::new(quotas.clone(), &names, name).of("ana")).collect()
    }

    #[test]
    fn parts_of_all_nodes_are_the_limit() {
        assert_eq!(parts(8, &["c", "a", "b"]), [Some(2), Some(3), Some(3)]);
        assert_eq!(parts(2, &["c", "a", "b"]), [Some(0), Some(1), Some(1)]);
        for (limit, workers) in [(0, 3), (1, 3), (7, 3), (100, 7), (5, 1)] {
            let names: Vec<String> = (0..workers).map(|number| format!("node-{number}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            assert_eq!(parts(limit, &names).into_iter().flatten().sum::<u32>(), limit);
        }
    }

    #[test]
    fn owner_without_a_limit_has_no_part() {
        assert_eq!(Parts::default().of("ana"), None);
        let each_owner = OwnerQuota { max_in_flight: Some(3), ..OwnerQuota::default() };
        let owners = [("bo".to_owned(), OwnerQuota::default())].into();
        let parts = Parts::new(Quotas { each_owner, owners, ..Quotas::default() }, &[], "a");
        assert_eq!((parts.of("ana"), parts.of("bo")), (Some(3), None), "a node that is not listed counts");
    }
}
