//! Continues a job of a compute target.
//!
//! Reducers publish what has not ended of every open job, so a retry has something to do only if the job has ended, its plan
//! is not complete, rows of it are lost, or its queue has lost messages, which the caller must say.

use std::time::Duration;

use anyhow::Result;
use partitioner::{Inputs, plan_is_damaged};
use protocol::{JobResult, JobSpec};
use reducer::Reducer;
use storage::{JobStore, TargetStore};
use tokio::time::sleep;

use crate::ended::has_completed;
use crate::run::nothing_to_do;
use crate::submit::{SIGN_EVERY, check_writers, enter, full};
use crate::{Engine, Error, Events, For, FoundJob, Jobs, Notice, Submission, Target, Unfinished};

/// Looks at a job that is about to end, one second after the other.
const LOOKS_MAX: usize = 5;

/// The effect of a retry on a compute target.
#[derive(Debug)]
pub enum Retry {
    /// The job is completed, and no mini-batch failed.
    NothingToDo(Box<JobResult>),
    /// The job has not ended, and its reducers publish what it needs.
    InFlight(Box<Submission>),
    /// The mini-batches that run again.
    Submission(Box<Submission>),
}

/// What a retry publishes again of a job that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Republish {
    /// Only what has no message.
    Missing,
    /// Every mini-batch that has not ended: the queue has lost messages.
    Unended,
}

/// Why there is nothing to do for a job that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// Its mini-batches are in its queue, or at a worker, or about to be published.
    Published,
    /// Another process plans it.
    BeingPlanned,
    /// All have ended, and a reducer writes the output.
    Ending,
}

impl Engine {
    /// Continues a job of a compute target: lets reducers publish the mini-batches of an ended job that have not succeeded.
    /// Of a job that has not ended: see the head of this file.
    pub async fn retry_on(
        &self,
        wanted: &str,
        republish: Republish,
        target: &Target,
        events: &Events,
    ) -> crate::Result<Retry> {
        let store = target.open_store().await?;
        let jobs = target.jobs(store.clone());
        let mut looks = 0;
        let (found, mut reducer, is_ending) = loop {
            let found = jobs.find(wanted, For::Change).await?;
            if let Some(result) = nothing_to_do(&found) {
                events.notice(jobs.nothing_to_do(&found, result).await?);
                return Ok(Retry::NothingToDo(Box::new(result.clone())));
            }
            jobs.check_may_run_again(&found).await?;
            check_writers(&found.spec, &store, target).await?;
            let reducer = Reducer::of_ledger(found.store.clone()).await?;
            let is_ending = found.result.is_none() && reducer.tally().ended_as().is_some();
            if !is_ending || looks == LOOKS_MAX {
                break (found, reducer, is_ending);
            }
            looks += 1;
            sleep(Duration::from_secs(1)).await;
        };
        let had_completed = has_completed(&found);
        let FoundJob { store: job, spec, result, .. } = found;
        let job_id = spec.job_id.clone();
        let failed = reducer.tally().mini_batches().failed;
        let in_flight = |state, unended| {
            events.notice(Notice::InFlight { job_id: job_id.clone(), state, unended, failed });
        };
        if is_ending && is_served(&jobs, &job, &job_id).await? {
            in_flight(InFlight::Ending, None);
            return Ok(Retry::InFlight(submission(job, spec, store, target).await?));
        }
        let lost = reducer.forget_lost_rows().await?;
        Notice::lost_rows(&lost, had_completed).into_iter().for_each(|notice| events.notice(notice));
        let mini_batches = reducer.tally().mini_batches();
        // Also takes back a request to cancel that no reducer has seen yet, and an end without a result.
        let reopened = result.is_some() || is_ending || job.cancel_requested().await?.is_some();
        let incomplete = if reopened { reducer.reopen().await? } else { 0 };
        let unfinished = Unfinished::new(reducer.tally(), Default::default());
        if !reopened && republish == Republish::Missing && lost.is_empty() {
            let is_planned = job.plan_complete().await?.is_some() && !plan_is_damaged(&job).await?;
            let state = match is_planned {
                true => Some(InFlight::Published),
                false if is_being_planned(&job).await? => Some(InFlight::BeingPlanned),
                false => None,
            };
            if let Some(state) = state {
                in_flight(state, unfinished.count());
                return Ok(Retry::InFlight(submission(job, spec, store, target).await?));
            }
        }
        job.forget_published().await?;
        let committed = mini_batches.succeeded.saturating_sub(incomplete);
        let continuation = unfinished.explain(&spec, committed, 0, mini_batches.failed, reopened);
        events.notice(Notice::Continuing(continuation.with_incomplete(incomplete)));
        enter(&spec, &store, target).await?;
        if store.is_being_removed(&job_id).await? {
            store.mark_ended(&job_id).await?;
            return Err(Error::BeingRemoved { job_id });
        }
        opened(job, spec, store, target, events).await
    }

    /// Opens a job of a target that is described and planned.
    pub(crate) async fn open_planned(
        &self,
        job: JobStore,
        spec: JobSpec,
        store: TargetStore,
        target: &Target,
        events: &Events,
    ) -> crate::Result<Retry> {
        let mut unfinished = Unfinished::all();
        job.plan_complete().await?.iter().for_each(|plan| unfinished.expect(plan.mini_batches));
        events.notice(Notice::Continuing(unfinished.explain(&spec, 0, 0, 0, false)));
        enter(&spec, &store, target).await?;
        opened(job, spec, store, target, events).await
    }
}

/// Returns a job that is open now, after a warning if it has to wait.
async fn opened(
    job: JobStore,
    spec: JobSpec,
    store: TargetStore,
    target: &Target,
    events: &Events,
) -> crate::Result<Retry> {
    let (full, _) = full(&store, &spec).await?;
    let submission = Submission { full, ..*submission(job, spec, store, target).await? };
    submission.warn(true, events).await;
    Ok(Retry::Submission(Box::new(submission)))
}

async fn submission(
    job: JobStore,
    spec: JobSpec,
    store: TargetStore,
    target: &Target,
) -> crate::Result<Box<Submission>> {
    let (queues, target) = (target.open_queues(false).await?, target.clone());
    let listings = Inputs::new(job.stores().options());
    Ok(Box::new(Submission { store, job, spec, queues, target, full: None, listings }))
}

/// Whether a reducer serves the job now.
async fn is_served(jobs: &Jobs, job: &JobStore, job_id: &str) -> Result<bool> {
    let progress = job.progress().await.ok().flatten();
    Ok(jobs.lacks_reducer(job_id, progress.as_ref(), None, &jobs.open_jobs().await?).is_none())
}

/// Whether a process plans the job now. Waits for another sign of life.
async fn is_being_planned(job: &JobStore) -> Result<bool> {
    let sign = job.planning().await?;
    if sign.is_none() {
        return Ok(false);
    }
    sleep(SIGN_EVERY + SIGN_EVERY / 2).await;
    Ok(job.planning().await? != sign)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use protocol::PlanPosition;
    use storage::{LeftOut, PlanComplete};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn job_that_another_process_plans_is_left_alone() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let job = JobStore::local(folder.path()).expect("it is there");
        assert!(!is_being_planned(&job).await.expect("readable"));
        job.put_planning("1".to_owned()).await.expect("writable");
        assert!(!is_being_planned(&job).await.expect("readable"), "the process was killed");
        let planner = async {
            sleep(SIGN_EVERY).await;
            job.put_planning("2".to_owned()).await.expect("writable");
        };
        assert!(tokio::join!(is_being_planned(&job), planner).0.expect("readable"));
    }

    #[tokio::test]
    async fn every_chunk_of_a_plan_is_checked() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let job = JobStore::local(folder.path()).expect("it is there");
        assert!(!plan_is_damaged(&job).await.expect("readable"), "it is not complete");
        let (chunks, of_last) = (40, 7);
        let plan = PlanComplete {
            mini_batches: PlanPosition::first_of(chunks - 1) + of_last,
            items: None,
            files: 0,
            inputs_digest: String::new(),
            left_out: LeftOut::default(),
        };
        let lines = |count: usize| Bytes::from("{}\n".repeat(count));
        let whole = |chunk| lines(PlanPosition::numbers_of(chunk, plan.mini_batches).count());
        for chunk in 0..chunks {
            job.create_plan_chunk(chunk, whole(chunk)).await.expect("writable");
        }
        job.put_plan_complete(&plan).await.expect("writable");
        assert!(!plan_is_damaged(&job).await.expect("readable"));
        for chunk in [0, 1, 16, 38, 39] {
            job.replace_plan_chunk(chunk, lines(6)).await.expect("writable");
            assert!(plan_is_damaged(&job).await.expect("readable"), "chunk {chunk} is truncated");
            std::fs::remove_file(folder.path().join(format!("plan/{chunk:010}"))).expect("it is there");
            assert!(plan_is_damaged(&job).await.expect("readable"), "chunk {chunk} is missing");
            job.replace_plan_chunk(chunk, whole(chunk)).await.expect("writable");
        }
        assert!(!plan_is_damaged(&job).await.expect("readable"));
    }
}
