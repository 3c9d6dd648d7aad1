//! The status of one job, from the store alone, once or repeatedly.

use std::time::Duration;

use anyhow::{Context, Result};
use protocol::{JobResult, Progress};

use crate::{For, FoundJob, Hint, Jobs, Pulse, Standing, State};

/// Longer than the silence of a reducer that serves a job with workers.
const SECOND_LOOK: Duration = Duration::from_secs(4);

/// The status of a job.
#[allow(missing_docs)]
#[derive(Clone, Debug)]
pub struct Status {
    pub job_id: String,
    pub state: State,
    pub hint: Option<Hint>,
    pub result: Option<JobResult>,
    pub progress: Option<Progress>,
    /// The folder of its logs.
    pub logs: String,
}

/// Looks at one job repeatedly.
#[derive(Debug)]
pub struct Look {
    job: FoundJob,
    progress: Option<Progress>,
    pulse: Option<Pulse>,
}

impl Jobs {
    /// Returns the status of a job; `wanted`: its id, the beginning of its id, or its name. Takes some seconds if only a
    /// second look can tell a silent reducer from a difference of clocks.
    pub async fn status(&self, wanted: &str) -> Result<Status> {
        let mut look = self.look(wanted).await?;
        look.again_if_doubtful(self).await?;
        look.status(self).await
    }

    /// Looks at a job for the first time.
    pub async fn look(&self, wanted: &str) -> Result<Look> {
        let job = self.find(wanted, For::Look).await?;
        let progress = job.store.progress().await?;
        let pulse = progress.as_ref().map(Pulse::new);
        Ok(Look { job, progress, pulse })
    }
}

impl Look {
    /// Returns the id of the job.
    pub fn job_id(&self) -> &str {
        &self.job.spec.job_id
    }

    /// Returns the result of the job, if it has ended.
    pub fn result(&self) -> Option<&JobResult> {
        self.job.result.as_ref()
    }

    /// Looks again.
    pub async fn again(&mut self, jobs: &Jobs) -> Result<()> {
        let id = &self.job.spec.job_id;
        self.job = jobs.job(id).await?.with_context(|| format!("job {id} has been removed"))?;
        self.progress = self.job.store.progress().await?;
        match (&mut self.pulse, &self.progress) {
            (Some(pulse), Some(progress)) => pulse.look(progress),
            (pulse, progress) => *pulse = progress.as_ref().map(Pulse::new),
        }
        Ok(())
    }

    /// Looks again if a reducer seems silent, because its clock may differ.
    async fn again_if_doubtful(&mut self, jobs: &Jobs) -> Result<()> {
        if self.job.result.is_none()
            && let (Some(progress), Some(pulse)) = (&self.progress, self.pulse)
            && jobs.is_doubtful(&self.job.spec.job_id, progress, pulse)?
        {
            tokio::time::sleep(SECOND_LOOK).await;
            self.again(jobs).await?;
        }
        Ok(())
    }

    /// Returns the status as of the latest look.
    pub async fn status(&self, jobs: &Jobs) -> Result<Status> {
        let job = &self.job;
        let Standing { state, hint } = jobs.standing(job, self.progress.as_ref(), self.pulse).await?;
        let committed = if state == State::Interrupted { job.committed().await } else { None };
        Ok(Status {
            job_id: job.spec.job_id.clone(),
            state,
            hint,
            result: job.result.clone(),
            progress: committed.or_else(|| self.progress.clone()),
            logs: job.store.shown("logs"),
        })
    }
}
