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

/// Between two looks at the job.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A store that does not answer for so long is given up.
const PATIENCE: Duration = Duration::from_secs(120);
/// A job that stands still for so long may be waiting for somebody to be started.
const HINT_AFTER: Duration = Duration::from_secs(15);

/// Shows progress until the job has ended. `None`: it goes on, and `stopped` was cancelled.
pub async fn follow(jobs: &Jobs, job_id: &str, stopped: &CancellationToken) -> Result<Option<JobResult>> {
    let began = Instant::now();
    let mut answered = Instant::now();
    let mut shown: Option<(watch::Sender<_>, AbortOnDropHandle<()>)> = None;
    let mut hinted = false;
    let Some(mut job) = jobs.job(job_id).await? else { bail!("job {job_id} is gone") };
    loop {
        match look(&job.store).await {
            Ok((Some(result), _)) => return Ok(Some(result)),
            Ok((None, progress)) => {
                answered = Instant::now();
                job.result = None;
                if !hinted && began.elapsed() > HINT_AFTER {
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
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = stopped.cancelled() => return Ok(None),
        }
    }
}

async fn look(store: &JobStore) -> storage::Result<(Option<JobResult>, Option<Progress>)> {
    Ok((store.result().await?, store.progress().await?))
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
