//! Removes jobs from the store of a target.

use std::time::Duration;

use futures::TryStreamExt;
use object_store::ObjectStore;

use super::TargetStore;
use crate::Result;
use crate::disk::remove_folder;
use crate::error::{found, optional};
use crate::objects::Objects;

/// The object that announces the removal of a job.
const REMOVING: &str = "control/removing";
/// The age from which an announcement no longer counts. A removal needs only a few requests from its announcement to
/// the deletion of `spec.json`.
pub(super) const REMOVAL_SECONDS_MAX: i64 = 600;

/// The result of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The job was removed.
    Removed,
    /// The job is open, or was opened again, so the call has removed nothing.
    Open,
}

impl TargetStore {
    /// Removes a job that is not open; with `must_have_ended` only if it still has a result. Its outputs elsewhere
    /// stay.
    ///
    /// [`REMOVING`] announces the removal before any check, and a process that opens a job looks for the announcement
    /// afterwards ([`is_being_removed`](Self::is_being_removed)), so at least one of them notices the other. The
    /// deletion of `spec.json` removes the job; [`finish_removal`](Self::finish_removal) deletes the other objects.
    pub async fn remove_job(&self, job_id: &str, must_have_ended: bool) -> Result<Removal> {
        let job = self.job(job_id);
        job.objects.put(REMOVING, "").await?;
        let is_open = async {
            Ok(self.is_open(job_id).await? || must_have_ended && job.result().await?.is_none())
        };
        match is_open.await {
            Ok(false) => {}
            Ok(true) => {
                job.objects.delete(REMOVING).await?;
                return Ok(Removal::Open);
            }
            Err(error) => {
                // While the announcement stays, nobody can open the job.
                let _ = job.objects.delete(REMOVING).await;
                return Err(error);
            }
        }
        if let Ok(spec) = job.spec().await {
            self.delete_writer(&spec).await?;
        }
        job.objects.delete("spec.json").await?;
        self.finish_removal(job_id).await?;
        Ok(Removal::Removed)
    }

    /// Removes the remaining objects of a job without `spec.json`.
    pub async fn finish_removal(&self, job_id: &str) -> Result<()> {
        let job = self.job(job_id);
        if let Some(folder) = job.folder() {
            return remove_folder(folder.to_owned()).await;
        }
        let objects = &job.objects;
        // The announcement is deleted last: without it, the other objects would look like a job that is being
        // submitted.
        let last = objects.path(REMOVING);
        let listed = objects.store.list(Some(&objects.path(""))).map_ok(|meta| meta.location);
        let others = listed.try_filter(move |location| std::future::ready(*location != last));
        let deleted =
            objects.store.delete_stream(Box::pin(others)).try_for_each(|_| async { Ok(()) }).await;
        // Another `clean` may delete the same objects.
        found(deleted, &objects.name(""))?;
        objects.delete(REMOVING).await
    }

    /// Removes the remaining objects of a job without `spec.json`, unless a command may be submitting the job: no
    /// removal is announced, and an object was written within `recently` by the clock of the store.
    pub async fn finish_old_removal(&self, job_id: &str, recently: Duration) -> Result<()> {
        let objects = self.job(job_id).objects;
        let listed = objects.list("").await?;
        let is_announced = listed.iter().any(|meta| meta.location == objects.path(REMOVING));
        let written_at = listed.iter().map(|meta| meta.last_modified).max();
        let is_recent =
            written_at.is_some_and(|at| (self.now() - at).to_std().unwrap_or_default() < recently);
        if is_recent && !is_announced { Ok(()) } else { self.finish_removal(job_id).await }
    }

    /// Returns whether a job that was just marked as open is being removed.
    pub async fn is_being_removed(&self, job_id: &str) -> Result<bool> {
        let job = self.job(job_id);
        Ok(self.is_announced(&job.objects, REMOVING).await?
            || optional(job.spec().await)?.is_none())
    }

    /// Returns whether this object announces a removal. Ignores an old announcement, of a process that was killed before
    /// it removed anything.
    pub(super) async fn is_announced(&self, objects: &Objects, name: &str) -> Result<bool> {
        Ok(objects.head(name).await?.is_some_and(|meta| {
            (self.now() - meta.last_modified).num_seconds() < REMOVAL_SECONDS_MAX
        }))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::tests::targets;
    use super::*;
    use crate::JobStore;

    async fn ended_job(target: &TargetStore, job_id: &str) -> JobStore {
        let job = target.job(job_id);
        job.put_spec(&protocol::JobSpec { job_id: job_id.into(), ..protocol::JobSpec::example() })
            .await
            .expect("writable");
        job.objects.put("result.json", RESULT).await.expect("writable");
        job.put_log("user/a.txt", Bytes::from_static(b"text")).await.expect("writable");
        job
    }

    const RESULT: &[u8] = br#"{"job_id": "a-job", "state": "Completed", "cause": null, "output": null, "logs": "",
        "mini_batches": {"total": 1, "succeeded": 1, "failed": 0}, "items": {"total": 1, "succeeded": 1, "failed": 0},
        "elapsed_seconds": 1.0, "reused": false}"#;

    #[tokio::test]
    async fn ended_job_is_removed_completely() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for target in targets(folder.path()).await {
            ended_job(&target, "a-job").await;
            let other = ended_job(&target, "a-job-2").await;
            assert_eq!(
                target.remove_job("a-job", true).await.expect("removable"),
                Removal::Removed
            );
            assert_eq!(target.job_ids().await.expect("readable"), ["a-job-2"]);
            other.spec().await.expect("another job stays");
            assert_eq!(&other.log("user/a.txt").await.expect("readable")[..], b"text");
            assert!(target.is_being_removed("a-job").await.expect("readable"), "it was removed");
            target.finish_removal("a-job").await.expect("removed before");
        }
    }

    #[tokio::test]
    async fn inputs_of_a_job_without_spec_are_removed() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("table.parquet");
        std::fs::write(&file, "rows").expect("writable");
        for target in targets(&folder.path().join("store")).await {
            let job = target.job("a-job");
            let copy = job.put_input("table.parquet", &file).await.expect("writable").display();
            assert!(copy.ends_with("/jobs/a-job/inputs/table.parquet"), "{copy}");
            assert_eq!(
                &job.objects.get("inputs/table.parquet").await.expect("readable")[..],
                b"rows"
            );
            assert_eq!(target.job_ids().await.expect("readable"), ["a-job"]);
            target.finish_removal("a-job").await.expect("removable");
            assert!(target.job_ids().await.expect("readable").is_empty());
        }
    }

    #[tokio::test]
    async fn open_job_is_not_removed() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for target in targets(folder.path()).await {
            let job = ended_job(&target, "a-job").await;
            target.mark_open("a-job").await.expect("writable");
            assert_eq!(target.remove_job("a-job", true).await.expect("readable"), Removal::Open);
            assert!(!target.is_being_removed("a-job").await.expect("readable"));
            target.mark_ended("a-job").await.expect("writable");
            job.reopen().await.expect("writable");
            assert_eq!(
                target.remove_job("a-job", true).await.expect("readable"),
                Removal::Open,
                "it has no result"
            );
            job.spec().await.expect("whole");
        }
    }

    #[tokio::test]
    async fn process_that_opens_a_job_notices_its_removal() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for target in targets(folder.path()).await {
            let job = ended_job(&target, "a-job").await;
            job.objects.put(REMOVING, "").await.expect("writable");
            assert!(target.is_being_removed("a-job").await.expect("readable"));
            job.objects.delete("spec.json").await.expect("removable");
            assert!(target.is_being_removed("a-job").await.expect("readable"));
            target.finish_removal("a-job").await.expect("removable");
            assert!(target.job_ids().await.expect("readable").is_empty());
        }
    }
}
