//! Follows a job to its end, from the store alone: it does not matter where its roles run.

use std::mem::discriminant;
use std::time::{Duration, Instant};

use protocol::{JobResult, Progress};
use reducer::Reducer;
use storage::JobStore;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{Events, Heartbeat, Jobs, Notice, OpenJobs, Result};

/// Time between two reads of a job in a store, where each read has a price.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// The command fails if the store does not answer for this long.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a new job waits for its roles before a notice says so.
const HINT_AFTER: Duration = Duration::from_secs(8);

/// The end of following a job.
#[derive(Debug)]
pub enum FollowEnd {
    /// The job ended.
    Ended(Box<JobResult>),
    /// The caller stopped following. The job continues.
    Stopped,
    /// The process that ran the local job has ended.
    Interrupted,
}

/// Reports the progress of a job, and why it waits, until the job has ended. Reads the job at once
/// when `sooner` is notified.
pub async fn follow(
    jobs: &Jobs,
    job_id: &str,
    sooner: &Notify,
    stopped: &CancellationToken,
    events: &Events,
) -> Result<FollowEnd> {
    let began = Instant::now();
    let mut answered = Instant::now();
    let (progress_sender, latest) = watch::channel(Reducer::no_progress());
    let (hint_sender, latest_hint) = watch::channel(None);
    let mut shown = None;
    let mut hinted = None;
    let mut heartbeat: Option<Heartbeat> = None;
    let mut open = OpenJobs::default();
    let mut looked_at_progress: Option<Instant> = None;
    let job = jobs.known_job(job_id).await?;
    loop {
        let is_due = looked_at_progress.is_none_or(|at| at.elapsed() >= PROGRESS_EVERY);
        if is_due {
            looked_at_progress = Some(Instant::now());
        }
        // Before the read: a job that ends a moment later has written its result by then.
        let is_abandoned = is_due && jobs.is_abandoned(job_id)?;
        match look(&job.store, is_due).await {
            Ok((Some(result), _)) => return Ok(FollowEnd::Ended(Box::new(result))),
            Ok((None, _)) if is_abandoned => return Ok(FollowEnd::Interrupted),
            Ok((None, progress)) => {
                answered = Instant::now();
                if let Some(progress) = &progress {
                    heartbeat.get_or_insert_with(|| Heartbeat::new(progress)).look(progress);
                }
                if is_due && let Ok(jobs) = jobs.open_jobs().await {
                    open = jobs;
                }
                let diagnosis =
                    jobs.waits(job_id, progress.as_ref(), heartbeat, open.scheduled(job_id));
                let hint = diagnosis.hint.filter(|_| began.elapsed() > HINT_AFTER);
                match progress {
                    Some(progress) => {
                        progress_sender.send_replace(progress);
                        hint_sender.send_replace(hint);
                        shown.get_or_insert_with(|| {
                            events.progress(latest.clone(), latest_hint.clone())
                        });
                    }
                    None if is_due => {
                        if let Some(hint) = hint
                            && hinted.replace(discriminant(&hint.blocker))
                                != Some(discriminant(&hint.blocker))
                        {
                            events.notice(Notice::Waiting(hint));
                        }
                    }
                    None => {}
                }
            }
            Err(error) if answered.elapsed() > PATIENCE => return Err(error.into()),
            Err(error) => {
                tracing::debug!("cannot read the state of the job, trying again: {error:#}")
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = sooner.notified() => {}
            () = stopped.cancelled() => return Ok(FollowEnd::Stopped),
        }
    }
}

async fn look(
    store: &JobStore,
    progress: bool,
) -> storage::Result<(Option<JobResult>, Option<Progress>)> {
    let progress = if progress { store.progress().await? } else { None };
    Ok((store.result().await?, progress))
}
