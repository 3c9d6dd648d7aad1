//! The list of workers of a target: the offer and current work of each, in `workers/<name>`.
//!
//! A worker writes its entry when it starts, renews it at each change and regularly, and removes it when it ends. The
//! entry of a killed worker becomes stale.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as ObjectPath;
use object_store::{ObjectMeta, ObjectStoreExt};
use protocol::{NodeState, Offer, is_job_id, is_label, one_line};

use super::TargetStore;
use crate::error::found;
use crate::{Error, Result};

/// The longest time between two renewals of an entry.
pub const WORKER_PERIOD: Duration = Duration::from_secs(15);
/// The time between two renewals while the worker has a job.
pub const WORKER_PERIOD_AT_WORK: Duration = Duration::from_secs(2);
/// The age, by the clock of the store, from which an entry is stale: three periods.
pub const WORKER_ENTRY_LASTS: Duration = Duration::from_secs(3 * WORKER_PERIOD.as_secs());
/// The size of the largest entry that is read. A worker has a few labels, and at most some hundred jobs.
const ENTRY_BYTES_MAX: u64 = 256 * 1024;
/// The largest number of entries that are read.
const READ_MAX: usize = 1000;
const READ_AT_ONCE: usize = 16;

/// A worker, as its entry describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenWorker {
    /// Its state.
    pub state: NodeState,
    /// When it last renewed its entry, by the clock of the store, in milliseconds since the epoch.
    pub seen_at: u64,
}

impl TargetStore {
    /// Writes or renews the entry of a worker.
    pub async fn put_worker(&self, state: &NodeState) -> Result<()> {
        let body = serde_json::to_vec(state).expect("plain data always serialises");
        let put = self.objects.store.put(&self.worker(&state.name), body.into()).await;
        let name = self.objects.name(&format!("workers/{}", state.name));
        put.map(drop).map_err(|error| Error::from_store(&name, error))
    }

    /// Removes the entry of a worker.
    pub async fn remove_worker(&self, name: &str) -> Result<()> {
        let deleted = self.objects.store.delete(&self.worker(name)).await;
        found(deleted, &self.objects.name(&format!("workers/{name}"))).map(drop)
    }

    /// Returns the offers of workers by their names, without stale and unreadable entries.
    pub async fn workers(&self) -> Result<BTreeMap<String, Offer>> {
        let seen = self.seen_workers().await?;
        Ok(seen.into_iter().map(|worker| (worker.state.name, worker.state.offer)).collect())
    }

    /// Returns the workers, sorted by name, without stale and unreadable entries.
    pub async fn seen_workers(&self) -> Result<Vec<SeenWorker>> {
        WorkerWatch::new(self.clone()).look().await
    }

    /// Reads an entry. Returns `None` if its worker has ended since the listing, or its content is invalid.
    async fn read_worker(&self, entry: &ObjectMeta) -> Result<Option<SeenWorker>> {
        let read = async { self.objects.store.get(&entry.location).await?.bytes().await };
        let Some(bytes) = found(read.await, &self.objects.name("workers"))? else {
            return Ok(None);
        };
        let name = entry.location.filename().unwrap_or_default().to_owned();
        let seen_at = u64::try_from(entry.last_modified.timestamp_millis()).unwrap_or_default();
        Ok(parse_entry(&bytes, name).map(|state| SeenWorker { state, seen_at }))
    }

    /// Returns the names of the workers, without stale entries.
    pub async fn worker_names(&self) -> Result<Vec<String>> {
        let (fresh, _) = self.listed_workers().await?;
        Ok(fresh.iter().filter_map(|entry| entry.location.filename().map(str::to_owned)).collect())
    }

    /// Removes stale entries.
    pub async fn remove_stale_workers(&self) -> Result<()> {
        let (_, stale) = self.listed_workers().await?;
        for entry in stale {
            self.remove_worker(entry.location.filename().unwrap_or_default()).await?;
        }
        Ok(())
    }

    /// Returns all entries: the fresh ones, and the stale ones.
    async fn listed_workers(&self) -> Result<(Vec<ObjectMeta>, Vec<ObjectMeta>)> {
        let listed = self.objects.list("workers").await?;
        let now = self.now();
        let is_entry = |meta: &ObjectMeta| {
            let name = meta.location.filename().unwrap_or_default();
            meta.size <= ENTRY_BYTES_MAX
                && !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let entries = listed.into_iter().filter(is_entry);
        Ok(entries.partition(|meta| {
            (now - meta.last_modified).num_seconds() < WORKER_ENTRY_LASTS.as_secs() as i64
        }))
    }

    fn worker(&self, name: &str) -> ObjectPath {
        self.objects.path("workers").join(name)
    }
}

/// The workers of a target that a process has read. It reads an entry again only if the entry has changed.
#[derive(Debug)]
pub struct WorkerWatch {
    target: TargetStore,
    known: HashMap<ObjectPath, (Version, Option<SeenWorker>)>,
}

/// A value that differs between two versions of an entry.
type Version = (DateTime<Utc>, Option<String>, u64);

impl WorkerWatch {
    /// Creates a watch that knows no worker.
    pub fn new(target: TargetStore) -> Self {
        Self { target, known: HashMap::new() }
    }

    /// Returns the workers, sorted by name, without stale and unreadable entries.
    pub async fn look(&mut self) -> Result<Vec<SeenWorker>> {
        let (mut fresh, _) = self.target.listed_workers().await?;
        fresh.truncate(READ_MAX);
        let target = &self.target;
        let known = &self.known;
        let read = fresh.into_iter().map(|entry| async move {
            let version = (entry.last_modified, entry.e_tag.clone(), entry.size);
            let worker = match known.get(&entry.location) {
                Some((known, worker)) if *known == version => worker.clone(),
                _ => target.read_worker(&entry).await?,
            };
            Ok::<_, Error>((entry.location, (version, worker)))
        });
        self.known = stream::iter(read).buffer_unordered(READ_AT_ONCE).try_collect().await?;
        let mut found: Vec<SeenWorker> =
            self.known.values().filter_map(|(_, worker)| worker.clone()).collect();
        found.sort_by(|one, other| one.state.name.cmp(&other.state.name));
        Ok(found)
    }
}

/// Parses an entry. A script can forge one, so this drops names that no label and no job may have, before they reach a
/// terminal.
fn parse_entry(bytes: &[u8], name: String) -> Option<NodeState> {
    let mut state: NodeState = serde_json::from_slice(bytes).ok()?;
    state.name = name;
    state.offer.labels.retain(|name, value| is_label(name) && is_label(value));
    state.jobs.retain(|job_id, _| is_job_id(job_id));
    state.unable.retain(|job_id, _| is_job_id(job_id));
    state.unable.values_mut().for_each(|reason| *reason = one_line(reason));
    Some(state)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use protocol::Running;

    use super::super::tests::targets;
    use super::*;

    fn offer(gpus: u32) -> Offer {
        Offer { gpus, ..Offer::default() }
    }

    fn node(name: &str, gpus: u32) -> NodeState {
        let jobs = [("job".to_owned(), Running { processes: 2, ..Running::default() })].into();
        NodeState {
            name: name.to_owned(),
            offer: offer(gpus),
            jobs,
            accepts_work: true,
            ..NodeState::default()
        }
    }

    #[tokio::test]
    async fn workers_are_listed_until_they_end() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for target in targets(folder.path()).await {
            assert_eq!(target.workers().await.expect("readable"), BTreeMap::new());
            target.put_worker(&node("a", 1)).await.expect("writable");
            target.put_worker(&node("a", 2)).await.expect("writable");
            target.put_worker(&node("b", 0)).await.expect("writable");
            let expected = BTreeMap::from([("a".to_owned(), offer(2)), ("b".to_owned(), offer(0))]);
            assert_eq!(target.workers().await.expect("readable"), expected);
            let seen = target.seen_workers().await.expect("readable");
            assert_eq!(
                seen.iter().map(|worker| worker.state.clone()).collect::<Vec<_>>(),
                [node("a", 2), node("b", 0)]
            );
            assert!(seen.iter().all(|worker| worker.seen_at > 1_700_000_000_000), "{seen:?}");
            let mut names = target.worker_names().await.expect("readable");
            names.sort();
            assert_eq!(names, ["a", "b"]);
            target.remove_worker("a").await.expect("removable");
            target.remove_worker("a").await.expect("removed before");
            target.remove_stale_workers().await.expect("readable");
            assert_eq!(
                target.workers().await.expect("readable"),
                BTreeMap::from([("b".to_owned(), offer(0))])
            );
        }
    }

    #[tokio::test]
    async fn stale_and_damaged_entries_do_not_count() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let [target, _] = targets(folder.path()).await;
        for name in ["killed", "damaged", "alive", "large"] {
            target.put_worker(&node(name, 1)).await.expect("writable");
        }
        let path = |name: &str| folder.path().join("workers").join(name);
        std::fs::write(path("damaged"), "{").expect("writable");
        std::fs::write(path("large"), " ".repeat(300_000)).expect("writable");
        std::fs::write(
            path("alive"),
            r#"{"name": "other", "offer": {"gpus": 1, "labels": {"zone": "a\u001b[2J"}}, "jobs": {"\u001b[2J": {}},
                "unable": {"\u001b[2J": "", "job": "its disk is full\nforged"}}"#,
        )
        .expect("writable");
        let killed = std::fs::File::options().write(true).open(path("killed")).expect("there");
        killed
            .set_modified(SystemTime::now() - 3 * WORKER_PERIOD - Duration::from_secs(5))
            .expect("settable");
        let [seen] = &target.seen_workers().await.expect("readable")[..] else {
            panic!("one is alive")
        };
        let unable = [("job".to_owned(), "its disk is full".to_owned())].into();
        assert_eq!(
            seen.state,
            NodeState { name: "alive".to_owned(), offer: offer(1), unable, ..NodeState::default() }
        );
        target.remove_stale_workers().await.expect("removable");
        assert!(!path("killed").exists() && path("alive").exists());
    }
}
