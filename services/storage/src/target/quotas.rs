//! The quotas of a target, and the markers of its open jobs.

use object_store::ObjectMeta;
use protocol::{Quotas, is_job_id};

use super::TargetStore;
use crate::error::optional;
use crate::{Result, random_name};

/// A job that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenJob {
    /// Its id.
    pub job_id: String,
    /// The version of its marker. A command that changes the demand of the job, cancels it, or opens it again also
    /// writes the marker again.
    pub mark: String,
}

impl TargetStore {
    /// Returns the quotas; `None` if the target has never had any.
    pub async fn quotas(&self) -> Result<Option<Quotas>> {
        optional(self.objects.json("quotas.json").await)
    }

    /// Replaces the quotas.
    pub async fn put_quotas(&self, quotas: &Quotas) -> Result<()> {
        let json = serde_json::to_vec_pretty(quotas).expect("plain data always serialises");
        self.objects.put("quotas.json", json).await
    }

    /// Marks a job as open. The caller does this after it writes `spec.json`, so that reducers find the job, and after
    /// each change of the job's demand.
    pub async fn mark_open(&self, job_id: &str) -> Result<()> {
        // The content differs each time, because an ETag may be a digest of it, and times may be whole seconds.
        self.objects.put(&format!("open/{job_id}"), random_name()).await
    }

    /// Marks a job as ended. The caller does this after writing `result.json`.
    pub async fn mark_ended(&self, job_id: &str) -> Result<()> {
        self.objects.delete(&format!("open/{job_id}")).await
    }

    /// Returns whether a job is marked as open.
    pub(super) async fn is_open(&self, job_id: &str) -> Result<bool> {
        Ok(self.objects.head(&format!("open/{job_id}")).await?.is_some())
    }

    /// Returns the jobs that have not ended, sorted by their ids.
    pub async fn open_jobs(&self) -> Result<Vec<OpenJob>> {
        let job = |meta: ObjectMeta| {
            let job_id = meta.location.filename().filter(|name| is_job_id(name))?.to_owned();
            Some(OpenJob {
                job_id,
                mark: meta.e_tag.unwrap_or_else(|| meta.last_modified.to_rfc3339()),
            })
        };
        let mut jobs: Vec<_> =
            self.objects.list("open").await?.into_iter().filter_map(job).collect();
        jobs.sort_by(|one, other| one.job_id.cmp(&other.job_id));
        Ok(jobs)
    }

    /// Returns the ids of the jobs that have not ended, sorted.
    pub async fn open_ids(&self) -> Result<Vec<String>> {
        Ok(self.open_jobs().await?.into_iter().map(|job| job.job_id).collect())
    }
}

#[cfg(test)]
mod tests {
    use protocol::OwnerQuota;

    use super::super::tests::targets;
    use super::*;

    #[tokio::test]
    async fn rewritten_marker_has_another_version() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for target in targets(folder.path()).await {
            let mut marks = Vec::new();
            for _ in 0..3 {
                target.mark_open("one").await.expect("writable");
                marks.extend(
                    target.open_jobs().await.expect("readable").into_iter().map(|job| job.mark),
                );
            }
            marks.sort_unstable();
            marks.dedup();
            assert_eq!(marks.len(), 3, "{marks:?}");
        }
    }

    #[tokio::test]
    async fn quotas_are_kept() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for target in targets(folder.path()).await {
            assert_eq!(target.quotas().await.expect("readable"), None);
            let each_owner = OwnerQuota { max_jobs: Some(3), max_in_flight: Some(64) };
            let quotas = Quotas { max_jobs: Some(9), each_owner, ..Quotas::default() };
            target.put_quotas(&quotas).await.expect("writable");
            assert_eq!(target.quotas().await.expect("readable"), Some(quotas));
        }
    }
}
