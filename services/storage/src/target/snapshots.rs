//! Snapshots in the store of a target: uploaded once, shared by jobs, and removed when no job refers to them.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use object_store::ObjectMeta;
use protocol::{JobSpec, Snapshots};

use super::TargetStore;
use super::removal::REMOVAL_SECONDS_MAX;
use crate::remote::download;
use crate::{Error, Result};

/// The object that announces a removal of snapshots. Its name cannot be a digest.
const REMOVING_SNAPSHOTS: &str = "snapshots/removing";
/// The interval at which a new job checks whether such a removal has ended.
const REMOVAL_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The number of concurrent reads of `spec.json`.
const SPECS_AT_ONCE: usize = 16;

impl TargetStore {
    /// Downloads a snapshot into a file that appears complete or not at all.
    pub async fn snapshot(&self, digest: &str, to: &Path) -> Result<()> {
        let (objects, name) = (&self.objects, format!("snapshots/{digest}"));
        download(&*objects.store, &objects.path(&name), &objects.name(&name), None, to).await
    }

    /// Uploads a snapshot unless one with this digest exists. Returns whether it uploaded it.
    pub async fn put_snapshot(&self, digest: &str, file: &Path) -> Result<bool> {
        let name = format!("snapshots/{digest}");
        if self.objects.head(&name).await?.is_some() {
            return Ok(false);
        }
        self.objects.put_file(&name, file).await?;
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
        if self.removes_snapshots().await? {
            let message = "another clean-up is removing snapshots; try again later";
            return Err(Error::unavailable(&self.objects.name(REMOVING_SNAPSHOTS), message));
        }
        self.objects.put(REMOVING_SNAPSHOTS, "").await?;
        let began = Instant::now();
        let removed = async {
            self.forget_used(&mut unused, &mut known).await?;
            let mut removed = Vec::new();
            for (digest, bytes) in unused {
                // New jobs ignore an old announcement, so the removal must end before it is old.
                if began.elapsed().as_secs() >= REMOVAL_SECONDS_MAX as u64 / 2 {
                    break;
                }
                self.objects.delete(&format!("snapshots/{digest}")).await?;
                removed.push((digest, bytes));
            }
            Ok(removed)
        };
        let removed = removed.await;
        self.objects.delete(REMOVING_SNAPSHOTS).await?;
        removed
    }

    /// Waits until no removal is in progress, then returns whether every snapshot of a job exists. The caller must have
    /// written its `spec.json`.
    pub async fn has_snapshots(&self, spec: &JobSpec) -> Result<bool> {
        while self.removes_snapshots().await? {
            tokio::time::sleep(REMOVAL_CHECK_INTERVAL).await;
        }
        for digest in digests(spec) {
            if self.objects.head(&format!("snapshots/{digest}")).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether a removal of snapshots is in progress.
    async fn removes_snapshots(&self) -> Result<bool> {
        self.is_announced(&self.objects, REMOVING_SNAPSHOTS).await
    }

    /// Returns digest and size of every snapshot.
    async fn snapshots(&self) -> Result<BTreeMap<String, u64>> {
        let is_digest =
            |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let named = |meta: ObjectMeta| {
            Some((meta.location.filename().filter(|name| is_digest(name))?.to_owned(), meta.size))
        };
        Ok(self.objects.list("snapshots").await?.into_iter().filter_map(named).collect())
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
            target.job("a-kept-job").objects.put("spec.json", "{").await.expect("writable");
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
            let objects = &target.objects;
            objects.put("snapshots/aa", "").await.expect("writable");
            objects.put(REMOVING_SNAPSHOTS, "").await.expect("writable");
            target.remove_unused_snapshots().await.expect("nothing to remove");
            let removed = async {
                tokio::time::sleep(3 * REMOVAL_CHECK_INTERVAL).await;
                objects.delete("snapshots/aa").await.expect("there");
                objects.delete(REMOVING_SNAPSHOTS).await.expect("there");
            };
            let (has_snapshots, ()) = tokio::join!(target.has_snapshots(&spec), removed);
            assert!(!has_snapshots.expect("readable"), "it waited for the removal");
        }
    }
}
