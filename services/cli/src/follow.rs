//! Follows a job of a compute target to its end, from storage alone: who works on it is anywhere.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use protocol::{JobResult, Progress};
use storage::JobStore;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::jobs::{Jobs, Standing};
use crate::progress;

/// Between two looks at the job from afar, where every look has a price.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Between two looks at its progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// A store that does not answer for so long is given up.
const PATIENCE: Duration = Duration::from_secs(120);
/// A job that stands still for so long may be waiting for somebody to be started.
const HINT_AFTER: Duration = Duration::from_secs(15);

/// Shows progress until the job has ended, looking at it every `period`. `None`: it goes on, and `stopped` was cancelled.
pub async fn follow(
    jobs: &Jobs,
    job_id: &str,
    period: Duration,
    stopped: &CancellationToken,
) -> Result<Option<JobResult>> {
    let began = Instant::now();
    let mut answered = Instant::now();
    let mut shown: Option<(watch::Sender<_>, AbortOnDropHandle<()>)> = None;
    let mut hinted = false;
    let mut looked_at_progress: Option<Instant> = None;
    let Some(mut job) = jobs.job(job_id).await? else { bail!("job {job_id} is gone") };
    loop {
        let is_due = looked_at_progress.is_none_or(|at| at.elapsed() >= PROGRESS_EVERY);
        if is_due {
            looked_at_progress = Some(Instant::now());
        }
        match look(&job.store, is_due).await {
            Ok((Some(result), _)) => return Ok(Some(result)),
            Ok((None, progress)) => {
                answered = Instant::now();
                job.result = None;
                if !hinted && is_due && began.elapsed() > HINT_AFTER {
                    hinted = true;
                    if let Ok(Standing { hint: Some(hint), .. }) = jobs.standing(&job, progress.as_ref()).await {
                        say!(err, "{hint}");
                    }
                }
                match (progress, &shown) {
                    (Some(progress), Some((sender, _))) => drop(sender.send_replace(progress)),
                    (Some(progress), None) => {
                        let (sender, receiver) = watch::channel(progress);
                        shown = Some((sender, AbortOnDropHandle::new(progress::show()(receiver))));
                    }
                    (None, _) => {}
                }
            }
            Err(error) if answered.elapsed() > PATIENCE => return Err(error.into()),
            Err(error) => tracing::debug!("cannot look at the job, trying again: {error}"),
        }
        tokio::select! {
            () = tokio::time::sleep(period) => {}
            () = stopped.cancelled() => return Ok(None),
        }
    }
}

async fn look(store: &JobStore, progress: bool) -> storage::Result<(Option<JobResult>, Option<Progress>)> {
    let progress = if progress { store.progress().await? } else { None };
    Ok((store.result().await?, progress))
}

/// Ctrl-C and SIGTERM end the following, and never the job.
pub async fn stop_following(stopped: CancellationToken) {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return;
    };
    tokio::select! { _ = interrupt.recv() => (), _ = terminate.recv() => () }
    stopped.cancel();
}
