//! Groups the rejected items of a job by cause, from its ledger alone, even while it runs.

use anyhow::{Context, Result};
use protocol::RejectTables;
use reducer::{RejectGroup, RejectGroups, Rejects};
use serde::Serialize;

use crate::FoundJob;

/// The rejected items of a job.
#[derive(Clone, Debug, Serialize)]
pub struct RejectSummary {
    /// The job.
    pub job_id: String,
    /// Number of rejected items.
    pub items: u64,
    /// Number of mini-batches with rejected items.
    pub mini_batches: u64,
    /// The items by cause, the largest group first.
    pub groups: Vec<RejectGroup>,
    /// The tables that name each item; `None` until the job has ended.
    pub tables: Option<RejectTables>,
}

impl FoundJob {
    /// Returns the rejected items by cause. Changes nothing in the store.
    pub async fn rejects(&self) -> Result<RejectSummary> {
        let job_id = &self.spec.job_id;
        let mut rejects = Rejects::find(&self.store, job_id)
            .await
            .with_context(|| format!("read job {job_id}"))?;
        let mut groups = RejectGroups::default();
        loop {
            let mini_batches =
                rejects.next().await.with_context(|| format!("read job {job_id}"))?;
            if mini_batches.is_empty() {
                break;
            }
            for mini_batch in &mini_batches {
                mini_batch.rejects(&self.spec.inputs).for_each(|reject| groups.add(&reject));
            }
        }
        Ok(RejectSummary {
            job_id: job_id.clone(),
            items: groups.items(),
            mini_batches: groups.mini_batches(),
            groups: groups.into_groups(),
            tables: self.result.as_ref().and_then(|result| result.rejects.clone()),
        })
    }
}
