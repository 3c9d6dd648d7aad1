//! Decides whether an earlier job is the same as a new one: the same script, settings and inputs, and an output that nothing
//! has changed since. The result of such a job is reused. On this machine, one that has not ended is continued; on a compute
//! target it is not, because its mini-batches are in the queue.
//!
//! The plan of a job holds its identity.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use futures::{StreamExt, stream};
use job_file::{Difference, Identity, ModelFolders, Parsed, RunPeriod};
use protocol::{JobResult, JobState};
use serde::{Deserialize, Serialize};
use storage::JobStore;

use crate::ended::is_untouched;
use crate::{
    Engine, Events, FoundJob, Index, Jobs, NewJobReason, Notice, Target, is_named, source,
};

/// Earlier jobs of the same fingerprint or name that are considered, the newest.
pub(crate) const EARLIER_MAX: usize = 16;
/// Jobs of the same name, perhaps of other documents, in which that of a document is looked for, the newest.
const SAME_NAMES_MAX: usize = 4;
const READS_AT_ONCE: usize = 8;
/// An empty period: nodes have a copy of the script, so they have written no files beside it.
const NEVER: RunPeriod = RunPeriod { from: 1, to: 0, has_finished: true };
/// The processes of a job may write for a moment longer than its engine.
const LAST_WRITES: Duration = Duration::from_secs(2);

/// The stored identity of a job.
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

impl Engine {
    /// Returns the result of a completed job of a target that is the same job, unless the job
    /// forbids it. Sends a notice why the newest job of the same document and name that has ended is not
    /// reused.
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
            .take(EARLIER_MAX);
        let all = &jobs;
        // A job that cannot be read does not prevent a new one.
        let read = ids.map(|id| async move { all.job(&id).await.ok().flatten() });
        let mut found = stream::iter(read.collect::<Vec<_>>()).buffered(READS_AT_ONCE);
        let (mut not_reused, mut digest) = (None, None);
        while let Some(job) = found.next().await {
            let Some(job) = job.filter(FoundJob::has_finished) else { continue };
            match jobs.reused(parsed, &job, &mut digest).await {
                Ok(result) => return Ok(Some(result)),
                // Another document may have that name, too.
                Err(reason) if job.spec.job_file == parsed.spec.job_file => {
                    not_reused = not_reused.or(reason.map(|reason| (job.spec.job_id, reason)));
                }
                Err(_) => {}
            }
        }
        if let Some((earlier, reason)) = not_reused {
            events.notice(Notice::NewJob { earlier, reason });
        }
        Ok(None)
    }

    /// Returns why the newest job of this machine with the same document and name is neither continued nor reused. Every new
    /// job calls it, so it reads few files.
    pub(crate) async fn why_new_job(
        &self,
        index: &Index,
        parsed: &Parsed,
        digest: &mut Option<String>,
    ) -> Result<Option<(String, NewJobReason)>> {
        let (jobs, spec) = (self.jobs(), &parsed.spec);
        for id in index.find(&spec.name)?.into_iter().take(SAME_NAMES_MAX) {
            let Ok(Some(job)) = jobs.job(&id).await else { continue };
            if job.spec.job_file != spec.job_file {
                continue;
            }
            if self.home().is_running(&id)? || job.has_finished() && !spec.allow_reuse {
                return Ok(None);
            }
            let reason = jobs.reused(parsed, &job, digest).await.err().flatten();
            return Ok(reason.map(|reason| (id, reason)));
        }
        Ok(None)
    }
}

impl Jobs {
    /// Returns the result of an earlier job, if a new one would compute the same, and records that it is reused; otherwise
    /// the reason, if people should know it. `Err(None)`: it may also be the same job, which has not ended. `digest`: that
    /// of the inputs, once it is known.
    pub(crate) async fn reused(
        &self,
        parsed: &Parsed,
        job: &FoundJob,
        digest: &mut Option<String>,
    ) -> std::result::Result<JobResult, Option<NewJobReason>> {
        let spec = &parsed.spec;
        // A part of another job has no identity.
        let Some(kept) = kept(&job.store).await else { return Err(None) };
        let has_finished = job.has_finished();
        let differences =
            parsed.identity.differences(&kept.identity, self.ran(&job.store, has_finished));
        let Some(result) = job.result.as_ref().filter(|_| has_finished) else {
            let differs = !differences.is_empty();
            return Err(differs.then_some(NewJobReason::Unfinished(differences)));
        };
        if result.state != JobState::Completed || result.mini_batches.failed > 0 {
            return Err(Some(NewJobReason::Failed(differences)));
        }
        if !differences.is_empty() {
            return Err(Some(NewJobReason::Completed(differences)));
        }
        if job.spec.fingerprint != spec.fingerprint {
            let is_mixed = job.spec.fingerprint.is_empty();
            return Err(is_mixed.then_some(NewJobReason::SeveralVersions));
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
            *digest = parsed.listings.digest(spec).await.ok();
        }
        if digest.as_deref() != Some(kept.inputs_digest.as_deref().unwrap_or(&plan.inputs_digest)) {
            let input =
                if let [input] = &spec.inputs[..] { Some(input.name.clone()) } else { None };
            return Err(Some(NewJobReason::InputsChanged(input)));
        }
        // The record is only for people, so it may fail.
        if let Err(error) = job.store.add_reuse().await {
            tracing::debug!("cannot record that the result is reused: {error:#}");
        }
        Ok(JobResult { reused: true, ..result.clone() })
    }

    /// Returns the time in which a job may have written files beside its script.
    fn ran(&self, job: &JobStore, has_finished: bool) -> RunPeriod {
        match (self, job.folder()) {
            (Self::Here(_), Some(folder)) => RunPeriod { has_finished, ..ran(folder) },
            _ => NEVER,
        }
    }
}

/// Returns a warning if script, data or models have changed since a job of this machine began, and keeps a script that has
/// changed. `while_running`: the job has just ended, and only its script and side inputs count.
pub(crate) async fn changed(
    FoundJob { store, spec, .. }: &FoundJob,
    models: &ModelFolders,
    while_running: bool,
) -> Option<Notice> {
    let (folder, script) = (store.folder()?, job_file::script_has_changed(spec));
    let mut differences = Vec::new();
    if (!while_running || !spec.side_inputs.is_empty())
        && let Some(Kept { identity, .. }) = kept(store).await
        && let Ok(now) = identity.renewed(spec, models)
    {
        differences = now.differences(&identity, ran(folder));
        if while_running {
            differences.retain(Difference::is_of_side_input);
        } else if script {
            source::keep(folder, spec, &now);
        }
    }
    (script || !differences.is_empty()).then_some(Notice::Changed {
        while_running,
        script,
        differences,
    })
}

/// Returns the time in which a job of this machine ran: from its first write to the last change of its objects.
fn ran(folder: &Path) -> RunPeriod {
    let nanoseconds = |time: SystemTime| {
        time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
    };
    let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let from = modified(&folder.join("plan/identity.json")).map_or(0, nanoseconds);
    let ended = modified(&folder.join("result.json"));
    let last = match ended {
        Some(ended) => Some(ended),
        None => {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            // A process that only looks at a job locks it as well.
            entries
                .filter(|entry| entry.file_name() != "lock")
                .filter_map(|entry| modified(&entry.path()))
                .max()
                .map(|last| last + LAST_WRITES)
        }
    };
    RunPeriod { from, to: last.map_or(from, nanoseconds), has_finished: false }
}
