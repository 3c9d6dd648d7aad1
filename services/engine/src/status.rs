//! The status of one job, from the store alone, once or repeatedly.

use std::sync::PoisonError;
use std::time::Duration;

use protocol::{JobResult, Priority, Progress};
use reducer::{Reducer, committed_in};
use serde::Serialize;

use crate::ended::is_output_changed;
use crate::history::SharedHistory;
use crate::{Diagnosis, FoundJob, Heartbeat, Hint, Jobs, OpenJobs, Purpose, Result, State};

/// Longer than the time between two heartbeats of a reducer.
const SECOND_LOOK: Duration = Duration::from_secs(4);

/// The status of a job, as one JSON object: the same for the command line, the portal and reports. `H`: a hint, or its text.
#[derive(Clone, Debug, Serialize)]
pub struct Status<H = Hint> {
    /// Its id.
    pub job_id: String,
    /// Its state.
    pub state: State,
    /// What it waits for, if that is known.
    pub hint: Option<H>,
    /// Person or team that it counts for on a compute target.
    pub owner: Option<String>,
    /// Its priority on a compute target now.
    pub priority: Priority,
    /// How it ended.
    pub result: Option<JobResult>,
    /// Its progress.
    pub progress: Option<Progress>,
    /// Whether something other than the job has written to its output on this machine since it ended.
    pub output_changed: bool,
    /// The folder of its entry script, on the machine that started it.
    pub source_directory: String,
    /// The folder of its logs.
    pub logs: String,
    /// The builds of the workers of its target, and of the reducer that keeps the schedule. Empty after its end.
    pub builds: Vec<String>,
}

/// The status of a job with its hint in the words of the caller.
pub type StatusDocument = Status<String>;

impl Status {
    /// Puts the hint into the words of the caller.
    pub fn document(&self, words: impl FnOnce(&Hint) -> String) -> StatusDocument {
        let this = self.clone();
        Status {
            job_id: this.job_id,
            state: this.state,
            hint: this.hint.as_ref().map(words),
            owner: this.owner,
            priority: this.priority,
            result: this.result,
            progress: this.progress,
            output_changed: this.output_changed,
            source_directory: this.source_directory,
            logs: this.logs,
            builds: this.builds,
        }
    }
}

/// Reads one job repeatedly.
#[derive(Debug)]
pub struct StatusReader {
    job: FoundJob,
    progress: Option<Progress>,
    heartbeat: Option<Heartbeat>,
}

impl Jobs {
    /// Returns the status of a job; `wanted`: its id, the beginning of its id, or its name. Takes
    /// some seconds if only a second read can tell a silent reducer from a difference of clocks.
    pub async fn status(&self, wanted: &str) -> Result<Status> {
        let mut look = self.look(wanted).await?;
        look.again_if_doubtful(self).await?;
        look.status(self).await
    }

    /// Reads a job for the first time.
    pub async fn look(&self, wanted: &str) -> Result<StatusReader> {
        let job = self.find(wanted, Purpose::Look).await?;
        let progress = job.store.progress().await?;
        let heartbeat = progress.as_ref().map(Heartbeat::new);
        Ok(StatusReader { job, progress, heartbeat })
    }
}

impl StatusReader {
    /// Returns the id of the job.
    pub fn job_id(&self) -> &str {
        &self.job.spec.job_id
    }

    /// Returns the job as of the latest read.
    pub fn job(&self) -> &FoundJob {
        &self.job
    }

    /// Returns the result of the job, if it has ended.
    pub fn result(&self) -> Option<&JobResult> {
        self.job.result.as_ref()
    }

    /// Reads the job again.
    pub async fn again(&mut self, jobs: &Jobs) -> Result<()> {
        let id = &self.job.spec.job_id;
        self.job = jobs.known_job(id).await?;
        self.progress = self.job.store.progress().await?;
        match (&mut self.heartbeat, &self.progress) {
            (Some(heartbeat), Some(progress)) => heartbeat.look(progress),
            (heartbeat, progress) => *heartbeat = progress.as_ref().map(Heartbeat::new),
        }
        Ok(())
    }

    /// Reads the job again if a reducer seems silent, because its clock may differ.
    async fn again_if_doubtful(&mut self, jobs: &Jobs) -> Result<()> {
        if self.job.result.is_none()
            && let (Some(progress), Some(heartbeat)) = (&self.progress, self.heartbeat)
            && jobs.is_doubtful(&self.job.spec.job_id, progress, heartbeat)?
        {
            tokio::time::sleep(SECOND_LOOK).await;
            self.again(jobs).await?;
        }
        Ok(())
    }

    /// Returns the status as of the latest read.
    pub async fn status(&self, jobs: &Jobs) -> Result<Status> {
        let (diagnosis, open) = self.diagnose(jobs).await?;
        let committed =
            if diagnosis.state == State::Interrupted { self.job.committed().await } else { None };
        Ok(self.as_status(diagnosis, &open, committed).await)
    }

    /// Works like [`status`](Self::status) for a caller that has read the ledger of the job, so that it is not read again.
    pub async fn status_with(&self, jobs: &Jobs, history: &SharedHistory) -> Result<Status> {
        let (diagnosis, open) = self.diagnose(jobs).await?;
        let is_interrupted = diagnosis.state == State::Interrupted && self.job.holds_ledger();
        let committed = is_interrupted.then(|| {
            let before = self.progress.clone().unwrap_or_else(Reducer::no_progress);
            committed_in(history.read().unwrap_or_else(PoisonError::into_inner).tally(), before)
        });
        Ok(self.as_status(diagnosis, &open, committed).await)
    }

    /// Returns the state of the job, and the open jobs among which it was found.
    async fn diagnose(&self, jobs: &Jobs) -> Result<(Diagnosis, OpenJobs)> {
        let open =
            if self.job.result.is_none() { jobs.open_jobs().await? } else { OpenJobs::default() };
        let diagnosis =
            jobs.diagnose(&self.job, self.progress.as_ref(), self.heartbeat, &open).await?;
        Ok((diagnosis, open))
    }

    async fn as_status(
        &self,
        diagnosis: Diagnosis,
        open: &OpenJobs,
        committed: Option<Progress>,
    ) -> Status {
        // Unreadable objects do not hide the status.
        let priority = match self.job.result {
            None => self.job.priority().await.unwrap_or(self.job.spec.priority),
            Some(_) => self.job.spec.priority,
        };
        let progress = committed.or_else(|| self.progress.clone());
        Status {
            job_id: self.job.spec.job_id.clone(),
            state: diagnosis.state,
            hint: diagnosis.hint,
            owner: self.job.owner(),
            priority,
            result: self.job.result.clone(),
            progress: progress.map(|progress| as_of_state(progress, diagnosis.state)),
            output_changed: is_output_changed(&self.job).await,
            source_directory: self.job.spec.source_directory.display(),
            logs: self.job.store.shown("logs"),
            builds: open.builds().iter().cloned().collect(),
        }
    }
}

/// Clears the processes of a job that has none, whose progress was written before they ended, and marks the last round of an
/// interrupted job.
fn as_of_state(mut progress: Progress, state: State) -> Progress {
    state.mark_last(&mut progress.rounds);
    if !state.has_processes(&progress) {
        (progress.processes, progress.nodes_at_work) = (0, 0);
        (progress.rate, progress.remaining_seconds) = (None, None);
        progress.running.clear();
        progress.usage.clear();
        progress.waiting.clear();
    }
    progress
}
