//! Runs a job on this machine: starts it, continues an unfinished one, or reuses the result of a finished one.

use std::collections::HashSet;

use anyhow::{Context, anyhow};
use job_file::Parsed;
use protocol::words::clause;
use protocol::{JobResult, JobSpec, JobState, OutputAction};
use reducer::Reducer;

use crate::ended::replaceable;
use crate::execute::{Execution, watch_for_cancel};
use crate::own_paths::{own_paths, set_aside};
use crate::reuse::{self, EARLIER_MAX};
use crate::{
    Busy, Check, Engine, Error, Event, Events, FoundJob, Home, Index, Lock, Notice, Remedy, Result,
    StopRequest, TargetRef, new_job_id, source,
};

enum RunDecision<'a> {
    Run(Box<Execution<'a>>, Locks),
    Reuse(Box<JobResult>),
}

/// The earlier jobs that are the same as a new one.
enum Earlier {
    /// The new job continues this one.
    Unfinished(Box<FoundJob>, Lock),
    /// The new job has this result.
    Reused(Box<JobResult>),
    /// Neither, with a notice why if people may expect it.
    Neither(Option<Box<Notice>>),
}

/// Excludes other processes from the job and its output while the job runs.
pub(crate) struct Locks {
    job: Lock,
    output: Option<Lock>,
}

impl Locks {
    pub(crate) fn new(
        home: &Home,
        job: Lock,
        mut output: Option<Lock>,
        job_id: &str,
    ) -> Result<Self> {
        home.mark_open(job_id)?;
        if let Some(output) = &mut output {
            output.name(job_id)?;
        }
        Ok(Self { job, output })
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
                let (job_id, is_new) = (execution.job.spec.job_id.clone(), !execution.resumed);
                let execution = Execution { check, ..*execution };
                let result = self.execute(execution, locks, stop, events).await;
                if is_new
                    && matches!(result, Err(Error::Invalid(_)))
                    && let Some(folder) = self.home().take_away(&job_id, false)?
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
        let mut output = lock_output(&parsed.spec, home)?;
        let new_job = match self.earlier(&parsed, &index, fresh, events).await? {
            Earlier::Reused(result) => return Ok(RunDecision::Reuse(result)),
            Earlier::Unfinished(job, lock) => {
                let locks = Locks::new(home, lock, output, &job.spec.job_id)?;
                return Ok(RunDecision::Run(Box::new(Execution::resume(*job, self)), locks));
            }
            Earlier::Neither(notice) => notice,
        };
        let Parsed { mut spec, identity, listings, own_folders, .. } = parsed;
        spec.job_id = new_job_id(&spec.name);
        let last = output.as_mut().and_then(Lock::named);
        spec.output.replaceable = replaceable(&self.jobs(), last).await;
        own_paths(&mut spec);
        set_aside(&own_folders, events)?;
        index.add(&spec.fingerprint, &spec.name, &spec.job_id, spec.durability)?;
        let store = home.create_job(&spec.job_id, spec.durability)?;
        if spec.output.folder.as_bytes().is_empty() {
            // summary_only without an output folder: the script's own files need one.
            spec.output.folder = home.job_folder(&spec.job_id).join("output").into();
        }
        let lock = home.try_lock_job(&spec.job_id)?.context("a new job is already locked")?;
        source::keep(&home.job_folder(&spec.job_id), &spec, &identity);
        reuse::keep(&store, identity, None).await?;
        store.put_spec(&spec).await.with_context(|| format!("write job {}", spec.job_id))?;
        let locks = Locks::new(home, lock, output, &spec.job_id)?;
        let new = Execution::new(FoundJob::new(store, spec), self);
        Ok(RunDecision::Run(Box::new(Execution { listings, new_job, ..new }), locks))
    }

    /// Returns the newest job with the same fingerprint that can be continued or reused; otherwise the reason why the newest
    /// that people may expect to be reused is not. `fresh`: only checks that none of them runs.
    async fn earlier(
        &self,
        parsed: &Parsed,
        index: &Index,
        fresh: bool,
        events: &Events,
    ) -> Result<Earlier> {
        let (home, jobs, spec) = (self.home(), self.jobs(), &parsed.spec);
        let (mut not_reused, mut digest) = (None, None);
        let mut considered = 0;
        for id in index.find(&spec.fingerprint)? {
            // A job that cannot be read does not prevent a new one.
            let Ok(Some(other)) = jobs.job(&id).await else { continue };
            if other.spec.fingerprint != spec.fingerprint {
                continue;
            }
            considered += 1;
            if considered > EARLIER_MAX {
                break;
            }
            let lock = home.try_lock_job(&id)?;
            // It may have ended before it was locked.
            let Ok(Some(job)) = jobs.job(&id).await else { continue };
            let has_finished = job.has_finished();
            // A job with a result keeps its lock until its processes have exited. The lock of its output, which the caller
            // has, says that it writes no more.
            let has_output = spec.output.action == OutputAction::AppendRow;
            if lock.is_none() && !(has_finished && has_output) {
                let target = TargetRef::ThisMachine;
                let output = spec.output.path();
                return Err(Busy::SameOutput { job_id: Some(id), output, target }.into());
            }
            if fresh || has_finished && !spec.allow_reuse {
                continue;
            }
            match (jobs.reused(parsed, &job, &mut digest).await, lock) {
                (Ok(result), _) => return Ok(Earlier::Reused(Box::new(result))),
                (Err(None), Some(lock)) if !has_finished => {
                    if !inputs_have_changed(&job).await {
                        return Ok(Earlier::Unfinished(Box::new(job), lock));
                    }
                    events.notice(Notice::InputsChanged(id));
                }
                (Err(reason), _) => not_reused = not_reused.or(reason.map(|reason| (id, reason))),
            }
        }
        if not_reused.is_none() && !fresh {
            not_reused = self.why_new_job(index, parsed, &mut digest).await?;
        }
        let notice =
            not_reused.map(|(earlier, reason)| Box::new(Notice::NewJob { earlier, reason }));
        Ok(Earlier::Neither(notice))
    }

    pub(crate) async fn execute(
        &self,
        execution: Execution<'_>,
        Locks { job: _job, output }: Locks,
        stop: &StopRequest,
        events: &Events,
    ) -> Result<JobResult> {
        let (job_id, store) = (execution.job.spec.job_id.clone(), execution.job.store.clone());
        let requests = tokio::spawn(watch_for_cancel(store.clone(), stop.cancel.clone()));
        let result = execution.run(output, stop, events).await;
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
        let progress = store.progress().await.ok().flatten().unwrap_or_else(Reducer::no_progress);
        let cause = format!(
            "the engine stopped: {}; committed results are kept",
            clause(&format!("{error:#}"))
        );
        let so_far = JobResult::so_far(job_id, JobState::Failed, &progress, store.shown("logs"));
        Ok(JobResult { cause: Some(cause), ..so_far })
    }
}

/// Locks the output file of a job, if it has one.
pub(crate) fn lock_output(spec: &JobSpec, home: &Home) -> Result<Option<Lock>> {
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
