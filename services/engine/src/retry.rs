//! Runs what the output of a job lacks: mini-batches that have not ended, failed ones and rejected items, each in its place.
//!
//! On this machine, the process of the retry runs them. On a compute target, reducers publish the
//! unfinished mini-batches of every open job. So a retry has work only if it begins a round, the
//! plan is incomplete, rows are lost, or the queue has lost messages, which the caller must say.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use partitioner::{Inputs, plan_is_damaged};
use protocol::{JobResult, JobState, OutputAction, OutputFormat, Replaceable};
use reducer::{Reducer, RoundScript};
use storage::{JobStore, RoundRequest, TargetStore};
use tokio::time::sleep;

use crate::ended::written_here;
use crate::execute::Execution;
use crate::round::{
    begin_round, check_script_is_there, forget_lost_rows, forget_script, take_script,
};
use crate::run::{Locks, lock_output};
use crate::submit::{HEARTBEAT_EVERY, check_writers, enter, send_snapshots};
use crate::{
    Busy, Engine, Error, Events, FoundJob, Jobs, Notice, Purpose, StopRequest, Submission, Target,
    Unfinished,
};

/// Further reads of a job that is about to end, one a second.
const LOOKS_MAX: usize = 5;
/// Time between two checks whether a request has been taken.
const REQUEST_LOOK: Duration = Duration::from_millis(100);

/// The options of a retry.
#[derive(Clone, Debug)]
pub struct RetryOptions {
    /// The ended work to run again, besides the mini-batches that have not ended.
    pub round: RoundRequest,
    /// A folder that replaces that of the entry script.
    pub source_directory: Option<PathBuf>,
    /// Another format for the output of a job that has not written it.
    pub format: Option<OutputFormat>,
    /// The queue of the target has lost messages: publish every mini-batch that has not ended.
    pub republish: bool,
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self { round: RoundRequest::ALL, source_directory: None, format: None, republish: false }
    }
}

impl RetryOptions {
    /// Whether the job has another script or another format from now on.
    fn changes_job(&self) -> bool {
        self.source_directory.is_some() || self.format.is_some()
    }

    /// Returns the result of a completed job that has nothing for this retry, after a notice. Fails if the output of the job
    /// is missing: its rows are removed.
    fn nothing_to_do(&self, job: &FoundJob, events: &Events) -> crate::Result<Option<JobResult>> {
        let Some(result) = job.result.as_ref().filter(|ended| ended.state == JobState::Completed)
        else {
            return Ok(None);
        };
        let RoundRequest { failed, rejects } = self.round;
        let left = (result.mini_batches.failed, result.rejects_of_successes());
        if failed && left.0 > 0 || rejects && left.1 > 0 {
            return Ok(None);
        }
        let job_id = result.job_id.clone();
        if let Some(output) = written_here(job).filter(|output| !Path::new(output).exists()) {
            return Err(Error::Refused(format!(
                "{output}, the output of job {job_id}, is missing, and the job has ended: run the whole job again"
            )));
        }
        let unnamed = result.items.failed.saturating_sub(result.rejects_to_retry());
        events.notice(Notice::NothingToDo { job_id, left, unnamed });
        Ok(Some(result.clone()))
    }
}

/// The effect of a retry on a compute target.
#[derive(Debug)]
pub enum Retry {
    /// The job is completed, and has nothing that the retry could run.
    NothingToDo(Box<JobResult>),
    /// The job has not ended, and no message of it is missing.
    NothingMissing(Box<Submission>),
    /// The job has not ended, and its reducers publish what has failed so far.
    RoundBegun(Box<Submission>),
    /// The mini-batches to publish.
    Submission(Box<Submission>),
}

/// Why no message of a job that has not ended is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NothingMissing {
    /// Its mini-batches are in its queue, or at a worker, or about to be published.
    Published,
    /// Another process plans it.
    BeingPlanned,
    /// All have ended, and a reducer writes the output.
    Ending,
}

impl Engine {
    /// Retries a job of this machine; `wanted`: its id, the beginning of its id, or its name.
    pub async fn retry(
        &self,
        wanted: &str,
        options: &RetryOptions,
        stop: &StopRequest,
        events: &Events,
    ) -> crate::Result<JobResult> {
        let home = self.home();
        let jobs = Jobs::Here(home.clone());
        let job = jobs.find(wanted, Purpose::Change).await?;
        let home_lock = home.lock_until(&stop.cancel).await?;
        let job_id = &job.spec.job_id;
        let Some(lock) = home.try_lock_job(job_id)? else {
            drop(home_lock);
            return self.retry_running(&job, options, stop, events).await;
        };
        // It may have ended, or have been continued, before it was locked.
        let mut job = jobs.known_job(job_id).await?;
        // First, because a folder without the script is always a mistake.
        take_script(&mut job.spec, options.source_directory.as_deref())?;
        change_format(&mut job, options.format)?;
        if let Some(result) = options.nothing_to_do(&job, events)? {
            return Ok(result);
        }
        check_script_is_there(&job.spec)?;
        if job_file::script_has_changed(&job.spec) {
            let mut now = job.spec.clone();
            job_file::renew_script(&mut now);
            self.check_script(&now, false, events)?;
        }
        self.check_gpus(&job.spec)?;
        let output = lock_output(&job.spec, home)?;
        // Now only the ledger can refuse the retry. A round that begins needs the new script and format, so they come first;
        // a job whose round is refused has them for the next one.
        match options.source_directory.is_some() {
            true => forget_script(&mut job).await?,
            false => job.store.put_spec(&job.spec).await.context("write the job")?,
        }
        let locks = Locks::new(home, lock, output, &job.spec.job_id)?;
        drop(home_lock);
        let (round, has_other_script) = (Some(options.round), options.source_directory.is_some());
        let execution = Execution { round, has_other_script, ..Execution::resume(job, self) };
        self.execute(execution, locks, stop, events).await
    }

    /// Lets the process that runs a job begin another round, if anything has failed so far.
    async fn retry_running(
        &self,
        job: &FoundJob,
        options: &RetryOptions,
        stop: &StopRequest,
        events: &Events,
    ) -> crate::Result<JobResult> {
        let job_id = &job.spec.job_id;
        let RoundRequest { failed, rejects } = options.round;
        let progress = job.store.progress().await?.unwrap_or_else(Reducer::no_progress);
        let has_failed =
            failed && progress.mini_batches.failed > 0 || rejects && progress.items.failed > 0;
        if !has_failed || options.changes_job() {
            return Err(Busy::Running(job_id.clone()).into());
        }
        job.store.request_round(&options.round).await?;
        while job.store.round_requested().await?.is_some() {
            sleep(REQUEST_LOOK).await;
            if let Some(ended) = self.home().try_lock_job(job_id)? {
                // It has ended in the meantime.
                drop(ended);
                return Box::pin(self.retry(job_id, options, stop, events)).await;
            }
        }
        events.notice(Notice::RoundRequested(job_id.clone()));
        let progress = job.store.progress().await?.unwrap_or(progress);
        let (job_id, logs) = (job_id.clone(), job.store.shown("logs"));
        Ok(JobResult::so_far(job_id, JobState::Running, &progress, logs))
    }

    /// Retries a job of a compute target. The script is that of this machine if the job has ended and its folder is here.
    pub async fn retry_on(
        &self,
        wanted: &str,
        options: &RetryOptions,
        target: &Target,
        events: &Events,
    ) -> crate::Result<Retry> {
        let store = target.open_store().await?;
        let jobs = target.jobs(store.clone());
        let mut looks = 0;
        let (mut found, mut reducer, is_ending) = loop {
            let mut found = jobs.find(wanted, Purpose::Change).await?;
            take_script(&mut found.spec, options.source_directory.as_deref())?;
            if let Some(result) = options.nothing_to_do(&found, events)? {
                return Ok(Retry::NothingToDo(Box::new(result)));
            }
            check_writers(&found.spec, &store, target).await?;
            let reducer = Reducer::of_ledger(found.store.clone()).await?;
            let is_ending = found.result.is_none() && reducer.tally().ended_as().is_some();
            if !is_ending || looks == LOOKS_MAX {
                break (found, reducer, is_ending);
            }
            looks += 1;
            sleep(Duration::from_secs(1)).await;
        };
        let job_id = found.spec.job_id.clone();
        if found.result.is_none() && options.changes_job() {
            return Err(has_not_ended(&job_id).into());
        }
        let failed = reducer.tally().mini_batches().failed;
        let nothing_missing = |state, unended| {
            events.notice(Notice::NothingMissing {
                job_id: job_id.clone(),
                state,
                unended,
                failed,
            });
        };
        if is_ending && is_served(&jobs, &found.store, &job_id).await? {
            nothing_missing(NothingMissing::Ending, None);
            return Ok(Retry::NothingMissing(submission(found, store, target).await?));
        }
        // Also takes back a request to cancel that no reducer has seen yet, and an end without a result.
        let has_ended =
            found.result.is_some() || is_ending || found.store.cancel_requested().await?.is_some();
        let begins = has_ended || reducer.lacks(options.round);
        if found.result.is_some() {
            change_format(&mut found, options.format)?;
            self.renew_script_on(&mut found, options, &store, target, events).await?;
        }
        let lost = forget_lost_rows(&mut reducer, events).await?;
        let begun = match begins {
            true => {
                let script = RoundScript {
                    digest: found.spec.snapshot_digest.clone(),
                    has_other_script: options.source_directory.is_some(),
                };
                Some(begin_round(&mut reducer, options.round, &script, !has_ended, false).await?)
            }
            false => None,
        };
        let job = &found.store;
        let unfinished = Unfinished::new(reducer.tally(), Default::default());
        let is_published = !options.republish && lost.is_empty();
        if begun.is_none() && is_published {
            let is_planned = job.plan_complete().await?.is_some() && !plan_is_damaged(job).await?;
            let state = match is_planned {
                true => Some(NothingMissing::Published),
                false if is_being_planned(job).await? => Some(NothingMissing::BeingPlanned),
                false => None,
            };
            if let Some(state) = state {
                nothing_missing(state, unfinished.count());
                return Ok(Retry::NothingMissing(submission(found, store, target).await?));
            }
        }
        if is_published && begun.as_ref().is_some_and(|begun| begun.is_live) {
            events.notice(Notice::RoundRequested(job_id.clone()));
            return Ok(Retry::RoundBegun(submission(found, store, target).await?));
        }
        job.forget_published().await?;
        events.notice(Notice::Continuing(unfinished.explain(reducer.tally(), &found.spec, begun)));
        Ok(Retry::Submission(open_job(found, store, target, events).await?))
    }

    /// Sends the script as it is now, if its folder is here and it has changed.
    async fn renew_script_on(
        &self,
        job: &mut FoundJob,
        options: &RetryOptions,
        store: &TargetStore,
        target: &Target,
        events: &Events,
    ) -> crate::Result<()> {
        let is_here = job.spec.snapshots.source.is_some()
            && job.spec.source_directory.as_path().join(&job.spec.entry_script).is_file();
        let has_changed =
            || options.source_directory.is_some() || job_file::script_has_changed(&job.spec);
        if is_here && has_changed() {
            job_file::renew_script(&mut job.spec);
            self.check_script(&job.spec, true, events)?;
            send_snapshots(&mut job.spec, store, self.home(), target.queue()?, events).await?;
            forget_script(job).await?;
            events.notice(Notice::Changed {
                while_running: false,
                script: true,
                differences: Vec::new(),
            });
        }
        Ok(job.store.put_spec(&job.spec).await.context("write the job")?)
    }
}

/// Returns why a retry cannot change a job.
fn has_not_ended(job_id: &str) -> anyhow::Error {
    anyhow!(
        "job {job_id} has not ended, and its script and format can change only then: cancel it first, or wait"
    )
}

/// Lets an ended job write its output in another format; the file gets the extension of the format. The rows of the native
/// formats are tables until the file is written, so none runs again. A note names a file with the earlier name, which stays.
fn change_format(job: &mut FoundJob, format: Option<OutputFormat>) -> Result<()> {
    let Some(format) = format else { return Ok(()) };
    let job_id = &job.spec.job_id;
    let extension = match format {
        OutputFormat::Csv => "csv",
        OutputFormat::Jsonl => "jsonl",
        OutputFormat::Parquet => "parquet",
        OutputFormat::Text => bail!("a retry can set csv, jsonl or parquet"),
    };
    match &job.result {
        None => return Err(has_not_ended(job_id)),
        Some(result) if result.state == JobState::Completed => {
            bail!("job {job_id} has written its output: convert that file instead")
        }
        Some(_) => {}
    }
    let output = &mut job.spec.output;
    if output.action != OutputAction::AppendRow || output.format == OutputFormat::Text {
        bail!(
            "job {job_id} has no rows with columns: only an output_format of native has them; start a new job with it"
        );
    }
    let stem =
        output.file_name.rsplit_once('.').map_or(output.file_name.as_str(), |(stem, _)| stem);
    let earlier = output.path();
    output.file_name = format!("{stem}.{extension}");
    output.format = format;
    // It described the file with the earlier name.
    output.replaceable = Replaceable::Anything;
    if output.path().exists() && earlier != output.path() {
        bail!("{} exists already: move it away first", output.path().display());
    }
    if earlier.is_file() && earlier != output.path() {
        job.spec.notes.push(format!("the file in the earlier format stays: {}", earlier.display()));
    }
    Ok(())
}

/// Opens a job of a target that is described. Warns if it has to wait.
pub(crate) async fn open_job(
    job: FoundJob,
    store: TargetStore,
    target: &Target,
    events: &Events,
) -> crate::Result<Box<Submission>> {
    let job_id = &job.spec.job_id;
    enter(&job.spec, &store, target).await?;
    if store.is_being_removed(job_id).await? {
        store.mark_ended(job_id).await?;
        return Err(Error::Refused(format!(
            "job {job_id} cannot be continued, because a clean-up of the target is removing it"
        )));
    }
    let submission = submission(job, store, target).await?;
    submission.warn(true, events).await;
    Ok(submission)
}

async fn submission(
    FoundJob { store: job, spec, .. }: FoundJob,
    store: TargetStore,
    target: &Target,
) -> crate::Result<Box<Submission>> {
    let (queues, target) = (target.open_queues(false).await?, target.clone());
    let listings = Inputs::new(job.stores().options());
    Ok(Box::new(Submission { store, job, spec, queues, target, listings }))
}

/// Whether a reducer serves the job now.
async fn is_served(jobs: &Jobs, job: &JobStore, job_id: &str) -> Result<bool> {
    let progress = job.progress().await.ok().flatten();
    Ok(jobs.lacks_reducer(job_id, progress.as_ref(), None, &jobs.open_jobs().await?).is_none())
}

/// Whether a process plans the job now. Waits for another heartbeat.
async fn is_being_planned(job: &JobStore) -> Result<bool> {
    let heartbeat = job.planning().await?;
    if heartbeat.is_none() {
        return Ok(false);
    }
    sleep(HEARTBEAT_EVERY + HEARTBEAT_EVERY / 2).await;
    Ok(job.planning().await? != heartbeat)
}

#[cfg(test)]
mod tests {
    use protocol::JobSpec;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn job_that_another_process_plans_is_left_alone() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let job = JobStore::local(folder.path()).expect("it is there");
        assert!(!is_being_planned(&job).await.expect("readable"));
        job.put_planning("1".to_owned()).await.expect("writable");
        assert!(!is_being_planned(&job).await.expect("readable"), "the process was killed");
        let planner = async {
            sleep(HEARTBEAT_EVERY).await;
            job.put_planning("2".to_owned()).await.expect("writable");
        };
        assert!(tokio::join!(is_being_planned(&job), planner).0.expect("readable"));
    }

    #[test]
    fn file_in_the_earlier_format_is_named() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let store = JobStore::local(folder.path()).expect("it is there");
        let mut spec = JobSpec::example();
        spec.output.folder = folder.path().into();
        (spec.output.action, spec.output.format) = (OutputAction::AppendRow, OutputFormat::Csv);
        spec.output.file_name = "rows.csv".to_owned();
        let earlier = spec.output.path();
        let result = Some(JobResult::new("a-1".to_owned(), JobState::Failed, String::new()));
        let mut job = FoundJob { result, ..FoundJob::new(store, spec) };
        std::fs::write(&earlier, "a\n").expect("writable");
        change_format(&mut job, Some(OutputFormat::Jsonl)).expect("its rows have columns");
        assert_eq!(job.spec.output.file_name, "rows.jsonl");
        let named = format!("the file in the earlier format stays: {}", earlier.display());
        assert_eq!(job.spec.notes, [named]);
        let refused = change_format(&mut job, Some(OutputFormat::Csv)).expect_err("it is there");
        assert_eq!(
            refused.to_string(),
            format!("{} exists already: move it away first", earlier.display())
        );
    }
}
