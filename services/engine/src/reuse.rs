//! Reuses the result of a job of a compute target, by the rules of `run` on one machine: the same script, settings and
//! inputs, and an output that nothing has changed since.
//!
//! The plan of a job holds its identity. A job that has not ended is not continued: its mini-batches are in the queue.

use anyhow::{Context, Result};
use futures::{StreamExt, stream};
use job_file::{Identity, Parsed, RunPeriod};
use protocol::{JobResult, JobState};
use serde::{Deserialize, Serialize};
use storage::JobStore;

use crate::ended::is_untouched;
use crate::{Engine, Events, FoundJob, Jobs, NewJobReason, Notice, Target, is_named};

/// Jobs of the same name that are considered, the newest.
const SAME_NAMES_MAX: usize = 16;
const READS_AT_ONCE: usize = 8;
/// An empty period: nodes have a copy of the script, so they have written no files beside it.
const NEVER: RunPeriod = RunPeriod { from: 1, to: 0, has_finished: true };

/// The stored identity of a job of a target.
#[derive(Serialize, Deserialize)]
struct Kept {
    identity: Identity,
    /// The digest of inputs that were in memory, whose copies in the store have other paths.
    #[serde(default)]
    inputs_digest: Option<String>,
}

/// Stores the identity of a job. `inputs_digest`: that of its inputs, if copies of them were sent.
pub(crate) async fn keep(
    job: &JobStore,
    identity: Identity,
    inputs_digest: Option<String>,
) -> Result<()> {
    let kept = serde_json::to_vec(&Kept { identity, inputs_digest })
        .context("an identity always serialises")?;
    job.put_identity(kept.into()).await.context("write what distinguishes the job")
}

async fn kept(job: &JobStore) -> Option<Kept> {
    serde_json::from_slice(&job.identity().await.ok()??).ok()
}

/// Records that the result of a job is reused. The record is only for people, so it may fail.
pub(crate) async fn note_reuse(job: &JobStore) {
    if let Err(error) = job.add_reuse().await {
        tracing::debug!("cannot record that the result is reused: {error:#}");
    }
}

impl Engine {
    /// Returns the result of a completed job of a target that is the same job, unless the job
    /// forbids it. Sends a notice why the newest completed job of the same name differs.
    pub async fn reusable(
        &self,
        parsed: &Parsed,
        target: &Target,
        events: &Events,
    ) -> Result<Option<JobResult>> {
        if !parsed.spec.allow_reuse {
            return Ok(None);
        }
        let jobs = target.jobs(target.open_store().await?);
        let ids = jobs
            .ids()
            .await?
            .into_iter()
            .filter(|id| is_named(id, &parsed.spec.name))
            .take(SAME_NAMES_MAX);
        let all = &jobs;
        // A job that cannot be read does not prevent a new one.
        let read = ids.map(|id| async move { all.job(&id).await.ok().flatten() });
        let mut found = stream::iter(read.collect::<Vec<_>>()).buffered(READS_AT_ONCE);
        let (mut not_reused, mut digest) = (None, None);
        while let Some(job) = found.next().await {
            let Some(job) = job.filter(FoundJob::has_finished) else { continue };
            match jobs.compared(parsed, &job, &mut digest).await {
                Ok(result) => {
                    note_reuse(&job.store).await;
                    return Ok(Some(JobResult { reused: true, ..result }));
                }
                Err(Some(reason)) if not_reused.is_none() => {
                    not_reused = Some((job.spec.job_id, reason))
                }
                Err(_) => {}
            }
        }
        if let Some((earlier, reason)) = not_reused {
            events.notice(Notice::NewJob { earlier, reason });
        }
        Ok(None)
    }
}

impl Jobs {
    /// Returns the result of a job that has ended, if it may be reused; else the reason, if people should know it. `digest`:
    /// that of the inputs, once it is known.
    async fn compared(
        &self,
        parsed: &Parsed,
        job: &FoundJob,
        digest: &mut Option<String>,
    ) -> std::result::Result<JobResult, Option<NewJobReason>> {
        // A part of another job has no identity.
        let Some(kept) = kept(&job.store).await else { return Err(None) };
        let Some(result) = job.result.clone() else { return Err(None) };
        let has_succeeded = result.state == JobState::Completed && result.mini_batches.failed == 0;
        let differences = parsed.identity.differences(&kept.identity, NEVER);
        if job.spec.fingerprint != parsed.spec.fingerprint || !differences.is_empty() {
            let reason = match differences.is_empty() {
                false => Some(NewJobReason::Completed(differences)),
                true => job.spec.fingerprint.is_empty().then_some(NewJobReason::SeveralVersions),
            };
            return Err(reason.filter(|_| has_succeeded));
        }
        if !has_succeeded {
            return Err(Some(NewJobReason::Failed(Vec::new())));
        }
        let Ok(Some(plan)) = job.store.plan_complete().await else { return Err(None) };
        let mut outputs = job.spec.outputs.values().filter(|folder| !folder.is_url());
        if let Some(missing) = outputs.find(|folder| !folder.as_path().is_dir()) {
            return Err(Some(NewJobReason::OutputChanged(missing.display())));
        }
        let output = result.output.clone().unwrap_or_default();
        if !is_untouched(&output, job).await {
            return Err(Some(NewJobReason::OutputChanged(output)));
        }
        if digest.is_none() {
            *digest = parsed.listings.digest(&parsed.spec).await.ok();
        }
        if digest.as_deref() == Some(kept.inputs_digest.as_deref().unwrap_or(&plan.inputs_digest)) {
            return Ok(result);
        }
        let input =
            if let [input] = &parsed.spec.inputs[..] { Some(input.name.clone()) } else { None };
        Err(Some(NewJobReason::InputsChanged(input)))
    }
}
