//! Runs a job on this machine: starts it, continues an unfinished one, or reuses the result of a finished one.

use std::collections::HashSet;
use std::time::Instant;

use anyhow::{Context, anyhow};
use job_file::Parsed;
use protocol::words::clause;
use protocol::{JobResult, JobSpec, JobState, OutputAction};

use crate::ended::is_untouched;
use crate::execute::{Execution, watch_for_cancel};
use crate::own_paths::{own_paths, set_aside};
use crate::reuse::note_reuse;
use crate::{
    Busy, Check, Engine, Error, Event, Events, FoundJob, Home, Index, Lock, NewJobReason, Notice,
    OutputLock, Remedy, Removed, Result, StopRequest, TargetRef, new_job_id, same_job, source,
};

/// Earlier jobs with the same fingerprint that a run considers, newest first.
const SAME_JOBS_MAX: usize = 16;

enum RunDecision<'a> {
    Run(Box<Execution<'a>>, Locks),
    Reuse(Box<JobResult>),
}

/// An earlier job that replaces a new one.
enum Earlier {
    Unfinished(Box<FoundJob>, Lock),
    Reused(Box<JobResult>),
}

/// Excludes other processes from the job and its output while the job runs.
pub(crate) struct Locks {
    _job: Lock,
    _output: Option<OutputLock>,
}

impl Locks {
    pub(crate) fn new(
        home: &Home,
        job: Lock,
        mut output: Option<OutputLock>,
        job_id: &str,
    ) -> Result<Self> {
        home.mark_open(job_id)?;
        if let Some(output) = &mut output {
            output.name(job_id)?;
        }
        Ok(Self { _job: job, _output: output })
    }
}

/// Waits for the check of the script.
fn finish(check: Option<Check>) -> Result<()> {
    let finished = check.map(|check| tokio::task::block_in_place(|| check.finish()));
    finished.transpose().map(drop)
}

impl Engine {
    /// Runs a checked job to its end, or until it is stopped. Unless `fresh`, continues an unfinished job with the same
    /// script, settings and inputs, or reuses the result of a finished one. A job whose `check` fails leaves nothing behind.
    pub async fn run(
        &self,
        mut parsed: Parsed,
        check: Check,
        fresh: bool,
        stop: &StopRequest,
        events: &Events,
    ) -> Result<JobResult> {
        let assets = std::mem::take(&mut parsed.assets);
        let result = self.run_here(parsed, check, fresh, stop, events).await?;
        self.register(&assets, &result, events)?;
        Ok(result)
    }

    async fn run_here(
        &self,
        parsed: Parsed,
        check: Check,
        fresh: bool,
        stop: &StopRequest,
        events: &Events,
    ) -> Result<JobResult> {
        let mut check = Some(check);
        if !parsed.own_folders.is_empty() {
            // Only a script that passes its check moves the outputs of an earlier run aside.
            finish(check.take())?;
        }
        let choice = {
            let _turn = self.home().lock_until(&stop.cancel).await?;
            tokio::select! {
                choice = self.choose(parsed, fresh, events) => choice?,
                // Listing inputs may take long. A stop here leaves the same state as a kill.
                () = stop.kill.cancelled() => {
                    return Err(anyhow!("stopped before the job began").into());
                }
            }
        };
        match choice {
            RunDecision::Reuse(result) => {
                finish(check)?;
                events.send(Event::Reused(result.job_id.clone()));
                Ok(*result)
            }
            RunDecision::Run(execution, locks) => {
                let (job_id, is_new) = (execution.spec.job_id.clone(), !execution.resumed);
                let execution = Execution { check, ..*execution };
                let result = self.execute(execution, locks, stop, events).await;
                if is_new
                    && matches!(result, Err(Error::Invalid(_)))
                    && let Removed::To(folder) = self.home().take_away(&job_id, false)?
                {
                    std::fs::remove_dir_all(&folder)
                        .with_context(|| format!("remove {}", folder.display()))?;
                    let _turn = self.home().lock()?;
                    self.home().index()?.remove(&HashSet::from([job_id]))?;
                }
                result
            }
        }
    }

    /// Continues or reuses an earlier job with the same fingerprint, or describes a new one.
    async fn choose(
        &self,
        parsed: Parsed,
        fresh: bool,
        events: &Events,
    ) -> Result<RunDecision<'_>> {
        let home = self.home();
        let index = home.index()?;
        let output = lock_output(&parsed.spec, home)?;
        let (earlier, not_reused) = self.earlier(&parsed, &index, fresh, events).await?;
        match earlier {
            Some(Earlier::Reused(result)) => return Ok(RunDecision::Reuse(result)),
            Some(Earlier::Unfinished(job, lock)) => {
                let locks = Locks::new(home, lock, output, &job.spec.job_id)?;
                return Ok(RunDecision::Run(
                    Box::new(Execution::resume(*job, home, self.settings())),
                    locks,
                ));
            }
            None => {}
        }
        let Parsed { mut spec, identity, listings, own_folders, .. } = parsed;
        let new_job = match not_reused {
            _ if fresh => None,
            Some((earlier, reason)) => Some(Notice::NewJob { earlier, reason }),
            None => same_job::why_new_job(&index, home, &spec, &identity)?,
        };
        spec.job_id = new_job_id(&spec.name);
        own_paths(&mut spec);
        set_aside(&own_folders, events)?;
        index.add(&spec.fingerprint, &spec.name, &spec.job_id, spec.durability)?;
        let store = home.create_job(&spec.job_id, spec.durability)?;
        if spec.output.folder.as_bytes().is_empty() {
            // summary_only without an output folder: the script's own files need one.
            spec.output.folder = home.job_folder(&spec.job_id).join("output").into();
        }
        let lock = home.try_lock_job(&spec.job_id)?.context("a new job is already locked")?;
        same_job::write(&home.job_folder(&spec.job_id), &identity)?;
        source::keep(&home.job_folder(&spec.job_id), &spec, &identity);
        store.put_spec(&spec).await.with_context(|| format!("write job {}", spec.job_id))?;
        let locks = Locks::new(home, lock, output, &spec.job_id)?;
        let new = Execution::new(FoundJob::new(store, spec), home, self.settings());
        let execution = Execution { listings, new_job: new_job.map(Box::new), ..new };
        Ok(RunDecision::Run(Box::new(execution), locks))
    }

    /// Returns the newest job with the same fingerprint that can be continued or reused; otherwise
    /// the newest that people may expect to be reused, with the reason why it is not. `fresh`: only
    /// checks that none of them runs.
    async fn earlier(
        &self,
        parsed: &Parsed,
        index: &Index,
        fresh: bool,
        events: &Events,
    ) -> Result<(Option<Earlier>, Option<(String, NewJobReason)>)> {
        let (home, jobs, spec) = (self.home(), self.jobs(), &parsed.spec);
        let (mut digest, mut not_reused) = (None, None);
        let mut looked_at = 0;
        for id in index.find(&spec.fingerprint)? {
            // A job that cannot be read does not prevent a new one.
            let Ok(Some(other)) = jobs.job(&id).await else { continue };
            if other.spec.fingerprint != spec.fingerprint {
                continue;
            }
            looked_at += 1;
            if looked_at > SAME_JOBS_MAX {
                break;
            }
            if other.has_finished() && !spec.allow_reuse {
                continue;
            }
            let Some(lock) = home.try_lock_job(&id)? else {
                return Err(Busy::SameOutput {
                    job_id: Some(id),
                    output: spec.output.path(),
                    target: TargetRef::ThisMachine,
                }
                .into());
            };
            if fresh {
                continue;
            }
            // It may have ended before it was locked.
            let Ok(Some(job)) = jobs.job(&id).await else { continue };
            if !job.has_finished() {
                if same_job::differs(&home.job_folder(&id), &parsed.identity, false) {
                    continue;
                }
                if inputs_have_changed(&job).await {
                    events.notice(Notice::InputsChanged(id));
                    continue;
                }
                return Ok((Some(Earlier::Unfinished(Box::new(job), lock)), None));
            }
            match self.reuse(&job, parsed, &mut digest).await {
                Ok(result) => return Ok((Some(Earlier::Reused(Box::new(result))), None)),
                Err(None) => {}
                Err(Some(reason)) => {
                    not_reused.get_or_insert((id, reason));
                }
            }
        }
        Ok((None, not_reused))
    }

    /// Returns the result of a finished job, if a new run would compute the same; otherwise the
    /// reason, if it may surprise people. `digest`: that of the inputs now, once it is known.
    async fn reuse(
        &self,
        job: &FoundJob,
        parsed: &Parsed,
        digest: &mut Option<String>,
    ) -> std::result::Result<JobResult, Option<NewJobReason>> {
        let spec = &parsed.spec;
        let Some(result) = job.result.clone().filter(|_| spec.allow_reuse) else {
            return Err(None);
        };
        if result.state != JobState::Completed || result.mini_batches.failed > 0 {
            return Err(None);
        }
        let Ok(Some(plan)) = job.store.plan_complete().await else { return Err(None) };
        if same_job::differs(&self.home().job_folder(&job.spec.job_id), &parsed.identity, true) {
            return Err(None);
        }
        let output = result.output.clone().unwrap_or_default();
        let mut outputs = job.spec.outputs.values().filter(|folder| !folder.is_url());
        if let Some(missing) = outputs.find(|folder| !folder.as_path().is_dir()) {
            return Err(Some(NewJobReason::OutputChanged(missing.display())));
        }
        if !is_untouched(&output, job).await {
            return Err(Some(NewJobReason::OutputChanged(output)));
        }
        if digest.is_none() {
            *digest = parsed.listings.digest(spec).await.ok();
        }
        if digest.as_ref() != Some(&plan.inputs_digest) {
            let input =
                if let [input] = &spec.inputs[..] { Some(input.name.clone()) } else { None };
            return Err(Some(NewJobReason::InputsChanged(input)));
        }
        note_reuse(&job.store).await;
        Ok(JobResult { reused: true, ..result })
    }

    pub(crate) async fn execute(
        &self,
        execution: Execution<'_>,
        _locks: Locks,
        stop: &StopRequest,
        events: &Events,
    ) -> Result<JobResult> {
        let requests = tokio::spawn(watch_for_cancel(execution.store.clone(), stop.cancel.clone()));
        let started = Instant::now();
        let (job_id, store) = (execution.spec.job_id.clone(), execution.store.clone());
        let result = execution.run(stop, events).await;
        requests.abort();
        self.home().mark_ended(&job_id)?;
        let error = match result {
            Ok(result) => return Ok(result),
            Err(error) => match error.downcast::<Error>() {
                Ok(error) => return Err(error),
                // People can fix it, and continue the job.
                Err(error) if Remedy::of(&error).is_some() => return Err(error.into()),
                Err(error) => error,
            },
        };
        // The engine failed, on a full disk for example. In the job's folder the job stays unfinished.
        let progress = store.progress().await.ok().flatten();
        let cause = format!(
            "the engine stopped: {}; committed results are kept",
            clause(&format!("{error:#}"))
        );
        let counts = progress.map(|progress| (progress.mini_batches, progress.items));
        let (mini_batches, items) = counts.unwrap_or_default();
        Ok(JobResult {
            cause: Some(cause),
            mini_batches,
            items,
            elapsed_seconds: started.elapsed().as_secs_f64(),
            ..JobResult::new(job_id, JobState::Failed, store.shown("logs"))
        })
    }
}

/// Locks the output file of a job, if it has one.
pub(crate) fn lock_output(spec: &JobSpec, home: &Home) -> Result<Option<OutputLock>> {
    if spec.output.action != OutputAction::AppendRow {
        return Ok(None);
    }
    let output = spec.output.path();
    let locked = home.try_lock_output(&output)?;
    let target = TargetRef::ThisMachine;
    locked.map(Some).map_err(|job_id| Busy::SameOutput { job_id, output, target }.into())
}

/// Whether the inputs of an unfinished job have changed since it was planned.
async fn inputs_have_changed(job: &FoundJob) -> bool {
    // The partitioner repeats an incomplete plan, and compares it on the way.
    let Ok(Some(plan)) = job.store.plan_complete().await else { return false };
    partitioner::inputs_digest(&job.spec).await.is_ok_and(|digest| digest != plan.inputs_digest)
}
