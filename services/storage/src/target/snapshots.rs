//! Snapshots in the store of a target: uploaded once, shared by jobs, and removed when no job refers to them.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use protocol::{JobSpec, Snapshots};

use super::TargetStore;
use super::removal::REMOVAL_SECONDS_MAX;
use crate::{Error, Result, Upload};

/// The object that announces a removal of snapshots. Its name cannot be a digest.
const REMOVING_SNAPSHOTS: &str = "snapshots/removing";
/// The interval at which a new job checks whether such a removal has ended.
const REMOVAL_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The number of concurrent reads of `spec.json`.
const SPECS_AT_ONCE: usize = 16;

impl TargetStore {
    /// Downloads a snapshot into a file that appears complete or not at all.
    pub async fn snapshot(&self, digest: &str, to: &Path) -> Result<()> {
        let name = format!("snapshots/{digest}");
        crate::remote::download(&*self.store, &self.path(&name), &self.name(&name), None, to).await
    }

    /// Uploads a snapshot unless one with this digest exists. Returns whether it uploaded it.
    pub async fn put_snapshot(&self, digest: &str, file: &Path) -> Result<bool> {
        let name = format!("snapshots/{digest}");
        let path = self.path(&name);
        if self.exists(&path, &name).await? {
            return Ok(false);
        }
        Upload::file(Arc::clone(&self.store), path, self.name(&name), file).await?;
        Ok(true)
    }

    /// Returns the digests and sizes of snapshots to which no job refers. Ignores the jobs in `removed`.
    pub async fn unused_snapshots(&self, removed: &HashSet<String>) -> Result<Vec<(String, u64)>> {
        let mut unused = self.snapshots().await?;
        self.forget_used(&mut unused, &mut removed.clone()).await?;
        Ok(unused.into_iter().collect())
    }

    /// Removes the snapshots to which no job refers. Returns their digests and sizes.
    ///
    /// The removal writes [`REMOVING_SNAPSHOTS`] before it reads the specifications of new jobs. A new job looks for
    /// this announcement after it writes its `spec.json` ([`has_snapshots`](Self::has_snapshots)). So at least one of
    /// them notices the other.
    pub async fn remove_unused_snapshots(&self) -> Result<Vec<(String, u64)>> {
        let (mut unused, mut known) = (self.snapshots().await?, HashSet::new());
        self.forget_used(&mut unused, &mut known).await?;
        if unused.is_empty() {
            return Ok(Vec::new());
        }
        let announcement = self.path(REMOVING_SNAPSHOTS);
        let failed = |error| Error::from_store(&self.name(REMOVING_SNAPSHOTS), error);
        if self.removes_snapshots().await? {
            let message = "another clean-up is removing snapshots; try again later";
            return Err(Error::unavailable(&self.name(REMOVING_SNAPSHOTS), message));
        }
        self.store.put(&announcement, Bytes::new().into()).await.map_err(failed)?;
        let began = Instant::now();
        let removed = async {
            self.forget_used(&mut unused, &mut known).await?;
            let mut removed = Vec::new();
            for (digest, bytes) in unused {
                // New jobs ignore an old announcement, so the removal must end before it is old.
                if began.elapsed().as_secs() >= REMOVAL_SECONDS_MAX as u64 / 2 {
                    break;
                }
                let name = format!("snapshots/{digest}");
                match self.store.delete(&self.path(&name)).await {
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => {
                        removed.push((digest, bytes))
                    }
                    Err(error) => return Err(Error::from_store(&self.name(&name), error)),
                }
            }
            Ok(removed)
        };
        let removed = removed.await;
        self.store.delete(&announcement).await.map_err(failed)?;
        removed
    }

    /// Waits until no removal is in progress, then returns whether every snapshot of a job exists. The caller must have
    /// written its `spec.json`.
    pub async fn has_snapshots(&self, spec: &JobSpec) -> Result<bool> {
        while self.removes_snapshots().await? {
            tokio::time::sleep(REMOVAL_CHECK_INTERVAL).await;
        }
        for digest in digests(spec) {
            let name = format!("snapshots/{digest}");
            if !self.exists(&self.path(&name), &name).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether a removal of snapshots is in progress. Ignores an old announcement, which a killed process has
    /// left.
    async fn removes_snapshots(&self) -> Result<bool> {
        match self.store.head(&self.path(REMOVING_SNAPSHOTS)).await {
            Ok(meta) => Ok((self.now() - meta.last_modified).num_seconds() < REMOVAL_SECONDS_MAX),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(Error::from_store(&self.name(REMOVING_SNAPSHOTS), error)),
        }
    }

    /// Returns digest and size of every snapshot.
    async fn snapshots(&self) -> Result<BTreeMap<String, u64>> {
        let failed = |error| Error::from_store(&self.name("snapshots"), error);
        let listed = self.store.list(Some(&self.path("snapshots")));
        let is_digest =
            |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let named = |meta: ObjectMeta| {
            Some((meta.location.filename().filter(|name| is_digest(name))?.to_owned(), meta.size))
        };
        listed
            .try_filter_map(|meta| async move { Ok(named(meta)) })
            .try_collect()
            .await
            .map_err(failed)
    }

    /// Drops the snapshots of jobs that are not `known` yet, and adds these jobs to `known`.
    async fn forget_used(
        &self,
        snapshots: &mut BTreeMap<String, u64>,
        known: &mut HashSet<String>,
    ) -> Result<()> {
        let ids: Vec<String> =
            self.job_ids().await?.into_iter().filter(|id| !known.contains(id)).collect();
        let read = |id: String| async move { (self.job(&id).spec().await, id) };
        let mut specs = stream::iter(ids.into_iter().map(read)).buffer_unordered(SPECS_AT_ONCE);
        while let Some((spec, id)) = specs.next().await {
            match spec {
                Ok(spec) => {
                    for digest in digests(&spec) {
                        snapshots.remove(digest);
                    }
                    known.insert(id);
                }
                // The job is being submitted or removed.
                Err(Error::NotFound { .. }) => {}
                // The snapshots of the job are unknown, so none can be removed.
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Returns the digests of a job's snapshots.
fn digests(spec: &JobSpec) -> impl Iterator<Item = &str> {
    let Snapshots { source, environment, side_inputs } = &spec.snapshots;
    source
        .iter()
        .chain(environment)
        .chain(side_inputs.values())
        .map(|snapshot| snapshot.digest.as_str())
}

#[cfg(test)]
mod tests {
    use protocol::Snapshot;

    use super::super::tests::targets;
    use super::*;

    async fn job_of(target: &TargetStore, job_id: &str, digest: &str) {
        let mut spec = JobSpec { job_id: job_id.into(), ..JobSpec::example() };
        spec.snapshots.source = Some(Snapshot { digest: digest.into(), bytes: 6, file: None });
        target.job(job_id).put_spec(&spec).await.expect("writable");
    }

    #[tokio::test]
    async fn only_unused_snapshots_are_removed() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("archive");
        std::fs::write(&file, "packed").expect("writable");
        for target in targets(&folder.path().join("store")).await {
            for digest in ["aa", "bb", "cc"] {
                target.put_snapshot(digest, &file).await.expect("writable");
            }
            job_of(&target, "an-open-job", "aa").await;
            target.mark_open("an-open-job").await.expect("writable");
            job_of(&target, "a-kept-job", "bb").await;
            target.put_snapshot("cc", &file).await.expect("it is there");
            let unused = |removed: &[&str]| {
                let (target, removed) =
                    (target.clone(), removed.iter().map(|id| (*id).to_owned()).collect());
                async move { target.unused_snapshots(&removed).await.expect("readable") }
            };
            assert_eq!(unused(&[]).await, [("cc".to_owned(), 6)]);
            assert_eq!(unused(&["a-kept-job"]).await.len(), 2);
            assert_eq!(
                target.remove_unused_snapshots().await.expect("removable"),
                [("cc".to_owned(), 6)]
            );
            assert!(
                target.put_snapshot("cc", &file).await.expect("writable"),
                "it was not removed"
            );
            target
                .job("a-kept-job")
                .put("spec.json", Bytes::from_static(b"{"))
                .await
                .expect("writable");
            target.remove_unused_snapshots().await.expect_err("the job's snapshots are unknown");
        }
    }

    /// The job writes its `spec.json` during a removal that has not read it.
    #[tokio::test(start_paused = true)]
    async fn new_job_waits_for_a_removal_and_notices_missing_snapshots() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for target in targets(&folder.path().join("store")).await {
            job_of(&target, "a-job", "aa").await;
            let spec = target.job("a-job").spec().await.expect("readable");
            assert!(!target.has_snapshots(&spec).await.expect("readable"), "it was never sent");
            target
                .store
                .put(&target.path("snapshots/aa"), Bytes::new().into())
                .await
                .expect("writable");
            let announcement = target.path(REMOVING_SNAPSHOTS);
            target.store.put(&announcement, Bytes::new().into()).await.expect("writable");
            target.remove_unused_snapshots().await.expect("nothing to remove");
            let removed = async {
                tokio::time::sleep(3 * REMOVAL_CHECK_INTERVAL).await;
                target.store.delete(&target.path("snapshots/aa")).await.expect("there");
                target.store.delete(&announcement).await.expect("there");
            };
            let (has_snapshots, ()) = tokio::join!(target.has_snapshots(&spec), removed);
            assert!(!has_snapshots.expect("readable"), "it waited for the removal");
        }
    }
}
