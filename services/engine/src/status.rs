//! The status of one job, from the store alone, once or repeatedly.

use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Context, Result};
use protocol::{JobResult, Progress};
use reducer::{Reducer, committed_in};
use serde::Serialize;

use crate::history::SharedHistory;
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
    /// The last replay that has put its rows into the output of the job.
    pub replayed_by: Option<String>,
    /// The folder of its entry script, on the machine that started it.
    pub source_directory: String,
    /// The folder of its logs.
    pub logs: String,
}

/// The status of a job as one JSON object: the same for the command line, the portal and reports.
#[allow(missing_docs)]
#[derive(Clone, Debug, Serialize)]
pub struct StatusDocument {
    pub job_id: String,
    pub state: State,
    /// What it waits for, in the words of the caller.
    pub hint: Option<String>,
    pub result: Option<JobResult>,
    pub progress: Option<Progress>,
    /// The last replay that has put its rows into the output of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed_by: Option<String>,
    /// The folder of its entry script, on the machine that started it.
    pub source_directory: String,
    pub logs: String,
}

impl Status {
    /// Returns the JSON object of the status; `words` are those of the caller for what a job waits for.
    pub fn document(&self, words: impl FnOnce(&Hint) -> String) -> StatusDocument {
        let Self { job_id, state, hint, result, progress, replayed_by, source_directory, logs } = self.clone();
        let hint = hint.as_ref().map(words);
        StatusDocument { job_id, state, hint, result, progress, replayed_by, source_directory, logs }
    }
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

    /// Returns the job as of the latest look.
    pub fn job(&self) -> &FoundJob {
        &self.job
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
        let standing = self.standing(jobs).await?;
        let committed = if standing.state == State::Interrupted { self.job.committed().await } else { None };
        Ok(self.as_status(standing, committed, self.replayed_by(jobs).await))
    }

    /// Works like [`status`](Self::status) for a caller that has read the ledger of the job, so that it is not read again.
    pub async fn status_with(&self, jobs: &Jobs, history: &SharedHistory) -> Result<Status> {
        let standing = self.standing(jobs).await?;
        let is_interrupted = standing.state == State::Interrupted && self.job.holds_ledger();
        let committed = is_interrupted.then(|| {
            let before = self.progress.clone().unwrap_or_else(Reducer::no_progress);
            committed_in(history.read().unwrap_or_else(PoisonError::into_inner).tally(), before)
        });
        // Pages ask often, and a listing of a store costs money.
        let replayed_by = if matches!(jobs, Jobs::Here(_)) { self.replayed_by(jobs).await } else { None };
        Ok(self.as_status(standing, committed, replayed_by))
    }

    /// Returns the last replay that has put its rows into the output. What cannot be read does not hide the status.
    async fn replayed_by(&self, jobs: &Jobs) -> Option<String> {
        jobs.replayed_by(&self.job).await.ok().flatten().map(|replay| replay.spec.job_id)
    }

    async fn standing(&self, jobs: &Jobs) -> Result<Standing> {
        jobs.standing(&self.job, self.progress.as_ref(), self.pulse).await
    }

    fn as_status(&self, standing: Standing, committed: Option<Progress>, replayed_by: Option<String>) -> Status {
        Status {
            job_id: self.job.spec.job_id.clone(),
            state: standing.state,
            hint: standing.hint,
            result: self.job.result.clone(),
            progress: committed.or_else(|| self.progress.clone()),
            replayed_by,
            source_directory: self.job.spec.source_directory.display(),
            logs: self.job.store.shown("logs"),
        }
    }
}
