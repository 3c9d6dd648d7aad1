//! Continues a job of a compute target.
//!
//! What is in flight stays there. Of a job that has not ended, a retry publishes only mini-batches that certainly have no
//! message: those whose rows are lost, those that an interrupted `enqueue` has not reached (the last chunk of its plan may
//! get a second message), and those that a queue in SQLite has lost. Other queues do not show what they hold.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::StreamExt;
use partitioner::Inputs;
use protocol::{Descriptor, JobResult, PlanPosition, Record, ResultEvent, decode_records, job_of_message};
use reducer::Reducer;
use storage::JobStore;
use tokio::time::sleep;

use crate::ended::has_completed;
use crate::list::in_order;
use crate::mini_batches::MiniBatches;
use crate::run::nothing_to_do;
use crate::submit::{PUBLISHING_EVERY, check_writers, enter};
use crate::turns::{self, Admission};
use crate::unfinished::Needed;
use crate::{Engine, Error, Events, For, FoundJob, Notice, Queues, Submission, Target, Unfinished};

/// Looks at a job that is about to end, one second after the other.
const LOOKS_MAX: usize = 5;

/// The effect of a retry on a compute target.
#[derive(Debug)]
pub enum Retry {
    /// The job is completed, and no mini-batch failed.
    NothingToDo(Box<JobResult>),
    /// The job has not ended, and no mini-batch of it needs a message.
    InFlight(Box<Submission>),
    /// The mini-batches that run again.
    Submission(Box<Submission>),
}

/// What a retry publishes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Republish {
    /// Only what is not in flight.
    Missing,
    /// Every mini-batch that has not ended: the queue has lost its messages, or has never had them.
    Unended,
}

/// Why no mini-batch of a job that has not ended needs a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// All are in the queue, or at a worker.
    Published {
        /// The queue has counted them.
        is_counted: bool,
    },
    /// Another process plans and publishes them.
    BeingPublished,
    /// All have ended, and a reducer writes the output.
    Ending,
}

/// Which mini-batches that have not ended have no message.
enum Messages {
    Lost(Needed),
    Complete(InFlight),
}

impl Engine {
    /// Continues a job of a compute target: publishes again the mini-batches of an ended job that have not succeeded. Of a
    /// job that has not ended: see the head of this file.
    pub async fn retry_on(
        &self,
        wanted: &str,
        republish: Republish,
        target: &Target,
        events: &Events,
    ) -> crate::Result<Retry> {
        let store = target.open_store().await?;
        let jobs = target.jobs(store.clone());
        let queues = target.open_queues(false).await?;
        let mut looks = 0;
        let (found, in_queue, mut reducer, is_ending) = loop {
            let found = jobs.find(wanted, For::Change).await?;
            if let Some(result) = nothing_to_do(&found) {
                events.notice(jobs.nothing_to_do(&found, result).await?);
                return Ok(Retry::NothingToDo(Box::new(result.clone())));
            }
            jobs.check_may_run_again(&found).await?;
            check_writers(&found.spec, &store, target).await?;
            // Before the ledger is read: what ends in between counts as in flight.
            let in_queue = in_queue(&queues, &found.spec.job_id).await?;
            let options = reducer::Options { reports: false, ..reducer::Options::shared() };
            let reducer = Reducer::open(found.store.clone(), queues.results.clone(), options).await?;
            let is_ending = found.result.is_none() && reducer.tally().ended_as().is_some();
            if !is_ending || looks == LOOKS_MAX {
                break (found, in_queue, reducer, is_ending);
            }
            looks += 1;
            sleep(Duration::from_secs(1)).await;
        };
        let progress = found.store.progress().await.ok().flatten();
        let is_served = jobs.lacks_reducer(&found.spec.job_id, progress.as_ref(), None).is_none();
        let had_completed = has_completed(&found);
        let FoundJob { store: job, spec, result, .. } = found;
        let job_id = spec.job_id.clone();
        let (target, listings) = (target.clone(), Inputs::new(job.stores().options()));
        let submission = |admission, unfinished, job, spec, queues, store| {
            Box::new(Submission { store, job, spec, queues, target: target.clone(), admission, unfinished, listings })
        };
        if is_ending && is_served {
            let mini_batches = reducer.tally().mini_batches();
            events.notice(Notice::InFlight {
                job_id,
                state: InFlight::Ending,
                unended: None,
                failed: mini_batches.failed,
            });
            return Ok(Retry::InFlight(submission(Admission::Runs, Unfinished::none(), job, spec, queues, store)));
        }
        let lost = reducer.forget_lost_rows().await?;
        Notice::lost_rows(&lost, had_completed).into_iter().for_each(|notice| events.notice(notice));
        let mini_batches = reducer.tally().mini_batches();
        // Also takes back a request to cancel that no reducer has seen yet, and an end without a result.
        let reopened = result.is_some() || is_ending || job.cancel_requested().await?.is_some();
        let incomplete = if reopened { reducer.reopen().await? } else { 0 };
        let mut unfinished = Unfinished::new(reducer.tally(), Default::default());
        if queues.broker.is_some() {
            let is_planned = job.plan_complete().await?.is_some() && !plan_is_damaged(&job).await?;
            if !reopened && republish == Republish::Missing && is_planned && lost.is_empty() {
                let state = InFlight::Published { is_counted: true };
                let (unended, failed) = (unfinished.count(), mini_batches.failed);
                events.notice(Notice::InFlight { job_id, state, unended, failed });
                return Ok(Retry::InFlight(submission(Admission::Runs, Unfinished::none(), job, spec, queues, store)));
            }
            job.forget_published().await?;
        } else if !reopened && republish == Republish::Missing && !plan_is_damaged(&job).await? {
            let plan = job.plan_complete().await?;
            plan.iter().for_each(|plan| unfinished.expect(plan.mini_batches));
            // The reducer learns the number of mini-batches from the last message of the publisher.
            let is_derived = spec.fingerprint.is_empty();
            let is_published = reducer.tally().planned().is_some() || plan.is_some() && !is_derived;
            let queue = target.queue()?.place();
            match messages(&job, &queue, &unfinished, is_published, is_derived, in_queue).await? {
                Messages::Lost(mut needed) => {
                    needed.others.extend(lost);
                    unfinished.publish_only(needed);
                }
                Messages::Complete(_) if !lost.is_empty() => {
                    let others = lost.into_iter().collect();
                    unfinished.publish_only(Needed { from: u64::MAX, others, ..Needed::default() });
                }
                Messages::Complete(state) => {
                    let (unended, failed) = (unfinished.count(), mini_batches.failed);
                    events.notice(Notice::InFlight { job_id, state, unended, failed });
                    return Ok(Retry::InFlight(submission(
                        Admission::Runs,
                        Unfinished::none(),
                        job,
                        spec,
                        queues,
                        store,
                    )));
                }
            }
        }
        let committed = mini_batches.succeeded.saturating_sub(incomplete);
        let continuation = unfinished.explain(&spec, committed, 0, mini_batches.failed, reopened);
        events.notice(Notice::Continuing(continuation.with_incomplete(incomplete)));
        let admission = enter(&spec, &store, &target, turns::enter_again(&store, &spec)).await?;
        if store.is_being_removed(&job_id).await? {
            store.mark_ended(&job_id).await?;
            return Err(Error::BeingRemoved { job_id });
        }
        let submission = submission(admission, unfinished, job, spec, queues, store);
        submission.warn(events).await;
        Ok(Retry::Submission(submission))
    }
}

/// Whether a power cut has damaged the plan. It is then made again, and what has not ended is published again.
async fn plan_is_damaged(job: &JobStore) -> Result<bool> {
    let Some(plan) = job.plan_complete().await? else { return Ok(false) };
    let mini_batches = plan.mini_batches;
    let mut looks = in_order((0..plan.chunks()).map(|chunk| is_damaged(job.clone(), chunk, mini_batches)));
    while let Some(is_damaged) = looks.next().await {
        if is_damaged? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a chunk of a plan of this many mini-batches is missing or truncated.
async fn is_damaged(job: JobStore, chunk: u64, mini_batches: u64) -> Result<bool> {
    let lines = match job.plan_chunk(chunk).await {
        Err(storage::Error::NotFound { .. }) => return Ok(true),
        read => read?.iter().filter(|byte| **byte == b'\n').count() as u64,
    };
    let numbers = PlanPosition::numbers_of(chunk, mini_batches);
    Ok(lines != numbers.end - numbers.start)
}

/// Returns the mini-batches of a job that have a message, if the queue can tell and no outcome of the job waits.
async fn in_queue(queues: &Queues, job_id: &str) -> Result<Option<MiniBatches>> {
    let found: Arc<Mutex<(MiniBatches, bool)>> = Arc::default();
    let (tasks, id) = (found.clone(), job_id.to_owned());
    let task = move |body: &[u8]| {
        // A second start costs nothing when it is lost.
        if let Ok(descriptor) = Descriptor::of_message(body)
            && descriptor.job_id == id
            && !descriptor.copy
        {
            tasks.lock().expect("no holder panics").0.insert(descriptor.mini_batch);
        }
    };
    let (results, id) = (found.clone(), job_id.to_owned());
    let result = move |body: &[u8]| {
        let body = Bytes::copy_from_slice(body);
        let has_ended = |record: std::result::Result<Record, _>| {
            record.is_ok_and(|record| matches!(record.event, ResultEvent::Attempt(_)))
        };
        if job_of_message(&body).is_ok_and(|job_id| job_id == id) && decode_records(&body).any(has_ended) {
            results.lock().expect("no holder panics").1 = true;
        }
    };
    let failed = "look at the messages of the job";
    let can_tell = queues.tasks.look(Box::new(task)).await.context(failed)?
        && queues.results.look(Box::new(result)).await.context(failed)?;
    let (tasks, has_results) = std::mem::take(&mut *found.lock().expect("no holder panics"));
    Ok((can_tell && !has_results).then_some(tasks))
}

/// Finds out which mini-batches of an open job have no message in `queue`. `is_derived`: its plan was complete before
/// anything was published. `in_queue`: the mini-batches that have a message, if the queue can tell.
async fn messages(
    job: &JobStore,
    queue: &str,
    unfinished: &Unfinished,
    is_published: bool,
    is_derived: bool,
    in_queue: Option<MiniBatches>,
) -> Result<Messages> {
    let published = Messages::Complete(InFlight::Published { is_counted: in_queue.is_some() });
    let sign = job.publishing().await?;
    let elsewhere = sign.as_deref().and_then(|sign| std::str::from_utf8(sign).ok()?.split_once(' '));
    let missing: MiniBatches = match &in_queue {
        Some(in_queue) => unfinished.unended().filter(|mini_batch| !in_queue.contains(*mini_batch)).collect(),
        None if elsewhere.is_some_and(|(_, other)| other != queue) => unfinished.unended().collect(),
        None => MiniBatches::default(),
    };
    if missing.is_empty() && (is_published || is_derived && in_queue.is_some()) {
        return Ok(published);
    }
    if is_being_published(job, sign).await? {
        return Ok(Messages::Complete(InFlight::BeingPublished));
    }
    let is_published = is_published || !is_derived && job.plan_complete().await?.is_some();
    let from = match is_published {
        // Published in the meantime.
        true if missing.is_empty() => return Ok(published),
        true => u64::MAX,
        false if is_derived => 0,
        // Each chunk is published before the next one is written.
        false => PlanPosition::first_of(chunks(job).await?.saturating_sub(1)),
    };
    Ok(Messages::Lost(Needed { from, others: missing, except: in_queue.unwrap_or_default() }))
}

/// Whether a process publishes the job now. Waits for another sign of life.
async fn is_being_published(job: &JobStore, sign: Option<Bytes>) -> Result<bool> {
    if sign.is_none() {
        return Ok(false);
    }
    sleep(PUBLISHING_EVERY + PUBLISHING_EVERY / 2).await;
    Ok(job.publishing().await? != sign)
}

/// Returns the number of chunks of an incomplete plan.
async fn chunks(job: &JobStore) -> Result<u64> {
    let mut end = 1;
    while job.has_plan_chunk(end - 1).await? {
        end *= 2;
    }
    let mut first = end / 2;
    while first + 1 < end {
        let middle = first.midpoint(end);
        match job.has_plan_chunk(middle - 1).await? {
            true => first = middle,
            false => end = middle,
        }
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use storage::{LeftOut, PlanComplete};

    use super::*;

    /// Returns the numbers of a job of ten mini-batches that need a message.
    async fn needed(
        job: &JobStore,
        is_published: bool,
        is_derived: bool,
        in_queue: Option<&[u64]>,
    ) -> Option<Vec<u64>> {
        let mut unfinished = Unfinished::all();
        unfinished.expect(10);
        let in_queue = in_queue.map(|in_queue| in_queue.iter().copied().collect());
        match messages(job, "sqs://here", &unfinished, is_published, is_derived, in_queue).await.expect("readable") {
            Messages::Complete(_) => None,
            Messages::Lost(needed) => {
                unfinished.publish_only(needed);
                Some((0..10).filter(|mini_batch| unfinished.pending(*mini_batch).is_some()).collect())
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_mini_batches_without_a_message_are_published() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let job = JobStore::local(folder.path()).expect("it is there");
        let all: Vec<u64> = (0..10).collect();
        job.put_publishing("1 sqs://here".to_owned()).await.expect("writable");
        assert_eq!(needed(&job, true, false, None).await, None, "it may be in flight");
        assert_eq!(needed(&job, true, false, Some(&all)).await, None);
        assert_eq!(needed(&job, true, false, Some(&[0, 1, 2, 3, 5, 6, 7, 9])).await, Some(vec![4, 8]));
        assert_eq!(needed(&job, false, true, None).await, Some(all.clone()), "a replay that was never published");
        assert_eq!(needed(&job, false, true, Some(&all)).await, None);
        assert_eq!(needed(&job, false, false, Some(&[3])).await.map(|needed| needed.len()), Some(9));
        job.put_publishing("2 sqs://there".to_owned()).await.expect("writable");
        assert_eq!(needed(&job, true, false, None).await, Some(all), "it was published elsewhere");
    }

    #[tokio::test(start_paused = true)]
    async fn job_that_another_process_publishes_is_left_alone() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let job = JobStore::local(folder.path()).expect("it is there");
        job.put_publishing("1 sqs://here".to_owned()).await.expect("writable");
        let publisher = async {
            sleep(PUBLISHING_EVERY).await;
            job.put_publishing("2 sqs://here".to_owned()).await.expect("writable");
        };
        let (needed, ()) = tokio::join!(needed(&job, false, false, None), publisher);
        assert_eq!(needed, None);
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

    #[tokio::test]
    async fn chunks_of_a_plan_are_counted() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let job = JobStore::local(folder.path()).expect("it is there");
        for count in 0..20 {
            assert_eq!(chunks(&job).await.expect("readable"), count);
            job.create_plan_chunk(count, Bytes::from_static(b"{}\n")).await.expect("writable");
        }
    }
}
