//! Stops a job from outside the process that runs it.

use std::time::{Duration, Instant};

use protocol::{JobResult, JobState};

use crate::{Events, FoundJob, Hint, Home, Jobs, Notice, Purpose, Result};

const CANCEL_TIME: Duration = Duration::from_secs(30);

/// The effect of a request to cancel a job.
#[derive(Debug)]
pub enum Canceled {
    /// The job had ended before.
    EndedBefore(JobResult),
    /// The job has stopped.
    Stopped(JobResult),
    /// The job ends as soon as a reducer serves it.
    LacksReducer(Hint),
    /// The job has not stopped yet.
    Requested(String),
}

impl Jobs {
    /// Stops a job and keeps what it has committed; `wanted`: its id, the beginning of its id, or its name.
    pub async fn cancel(&self, wanted: &str, events: &Events) -> Result<Canceled> {
        let job = self.find(wanted, Purpose::Change).await?;
        let job_id = job.spec.job_id.clone();
        if let Some(result) = job.result {
            return Ok(Canceled::EndedBefore(result));
        }
        if let Self::Here(home) = self
            && let Some(result) = cancel_interrupted(home, &job).await?
        {
            return Ok(Canceled::Stopped(result));
        }
        job.store.request_cancel("canceled by the user").await?;
        if let Self::There { store, .. } = self {
            // The schedule admits even a job that waits for a quota or was never published, so that
            // a reducer ends it.
            store.mark_open(&job_id).await?;
            let open = self.open_jobs().await?;
            if let Some(hint) =
                self.lacks_reducer(&job_id, job.store.progress().await?.as_ref(), None, &open)
            {
                return Ok(Canceled::LacksReducer(hint));
            }
        }
        events.notice(Notice::CancelRequested {
            job_id: job_id.clone(),
            seconds: CANCEL_TIME.as_secs(),
        });
        let requested = Instant::now();
        while requested.elapsed() < CANCEL_TIME {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if let Some(result) = job.store.result().await? {
                return Ok(Canceled::Stopped(result));
            }
        }
        Ok(Canceled::Requested(job_id))
    }
}

/// Ends a local job whose process has ended, because no other process would. Returns `None` if it
/// runs.
async fn cancel_interrupted(home: &Home, job: &FoundJob) -> Result<Option<JobResult>> {
    let Some(_lock) = home.try_lock_job(&job.spec.job_id)? else { return Ok(None) };
    // It may have ended before it was locked.
    if let Some(result) = job.store.result().await? {
        return Ok(Some(result));
    }
    let progress = match job.committed().await {
        None => job.store.progress().await?.unwrap_or_default(),
        Some(committed) => committed,
    };
    let (job_id, logs) = (job.spec.job_id.clone(), job.store.shown("logs"));
    let result = JobResult {
        cause: Some("canceled by the user after the process that ran it had ended".to_owned()),
        ..JobResult::so_far(job_id, JobState::Canceled, &progress, logs)
    };
    job.store.create_result(&result).await?;
    home.mark_ended(&job.spec.job_id)?;
    Ok(Some(result))
}
