//! The status of one job, from the store alone, once or repeatedly.

use std::sync::PoisonError;
use std::time::Duration;

use protocol::{JobResult, Priority, Progress};
use reducer::{Reducer, committed_in};
use serde::Serialize;

use crate::ended::is_output_changed;
use crate::history::{Origin, SharedHistory};
use crate::{For, FoundJob, Hint, Jobs, Pulse, Result, Standing, State};

/// Longer than from one sign of life of a reducer to the next.
const SECOND_LOOK: Duration = Duration::from_secs(4);

/// The status of a job.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its id.
    pub job_id: String,
    /// Its state.
    pub state: State,
    /// What it waits for, if that is known.
    pub hint: Option<Hint>,
    /// Person or team that it counts for on a compute target.
    pub owner: Option<String>,
    /// Its priority on a compute target now.
    pub priority: Priority,
    /// How it ended.
    pub result: Option<JobResult>,
    /// How far it is.
    pub progress: Option<Progress>,
    /// The last replay that has put its rows into the output of the job.
    pub replayed_by: Option<String>,
    /// Whether something other than the job or its replays has written to its output on this machine since it ended.
    pub output_changed: bool,
    /// The folder of its entry script, on the machine that started it.
    pub source_directory: String,
    /// The folder of its logs.
    pub logs: String,
}

/// The status of a job as one JSON object: the same for the command line, the portal and reports.
#[derive(Clone, Debug, Serialize)]
pub struct StatusDocument {
    /// Its id.
    pub job_id: String,
    /// Its state.
    pub state: State,
    /// What it waits for, in the words of the caller.
    pub hint: Option<String>,
    /// Person or team that it counts for on a compute target.
    pub owner: Option<String>,
    /// Its priority on a compute target now.
    pub priority: Priority,
    /// How it ended.
    pub result: Option<JobResult>,
    /// How far it is.
    pub progress: Option<Progress>,
    /// The last replay that has put its rows into the output of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed_by: Option<String>,
    /// Whether something other than the job or its replays has written to its output on this machine since it ended.
    pub output_changed: bool,
    /// The folder of its entry script, on the machine that started it.
    pub source_directory: String,
    /// The folder of its logs.
    pub logs: String,
}

impl Status {
    /// Returns the JSON object of the status; `words` are those of the caller for what a job waits for.
    pub fn document(&self, words: impl FnOnce(&Hint) -> String) -> StatusDocument {
        let this = self.clone();
        StatusDocument {
            job_id: this.job_id,
            state: this.state,
            hint: this.hint.as_ref().map(words),
            owner: this.owner,
            priority: this.priority,
            result: this.result,
            progress: this.progress,
            replayed_by: this.replayed_by,
            output_changed: this.output_changed,
            source_directory: this.source_directory,
            logs: this.logs,
        }
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
        self.job = jobs.known_job(id).await?;
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
        Ok(self.as_status(standing, committed, self.replayed_by(jobs, None).await).await)
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
        let run = {
            let history = history.read().unwrap_or_else(PoisonError::into_inner);
            (history.origin() == Origin::Ledger).then(|| history.tally().times_reopened())
        };
        let replayed_by = if matches!(jobs, Jobs::Here(_)) { self.replayed_by(jobs, run).await } else { None };
        Ok(self.as_status(standing, committed, replayed_by).await)
    }

    /// Returns the last replay that has put its rows into the output. What cannot be read does not hide the status.
    async fn replayed_by(&self, jobs: &Jobs, run: Option<u64>) -> Option<String> {
        jobs.replayed_by(&self.job, run).await.ok().flatten().map(|replay| replay.spec.job_id)
    }

    async fn standing(&self, jobs: &Jobs) -> Result<Standing> {
        Ok(jobs.standing(&self.job, self.progress.as_ref(), self.pulse).await?)
    }

    async fn as_status(&self, standing: Standing, committed: Option<Progress>, replayed_by: Option<String>) -> Status {
        // What cannot be read does not hide the status.
        let priority = match self.job.result {
            None => self.job.priority().await.unwrap_or(self.job.spec.priority),
            Some(_) => self.job.spec.priority,
        };
        let progress = committed.or_else(|| self.progress.clone());
        Status {
            job_id: self.job.spec.job_id.clone(),
            state: standing.state,
            hint: standing.hint,
            owner: self.job.owner(),
            priority,
            result: self.job.result.clone(),
            progress: progress.map(|progress| without_ended_processes(progress, standing.state)),
            // A replay writes the output of the job again.
            output_changed: replayed_by.is_none() && is_output_changed(&self.job).await,
            replayed_by,
            source_directory: self.job.spec.source_directory.display(),
            logs: self.job.store.shown("logs"),
        }
    }
}

/// Forgets the processes of a job that has none any more. Its progress was written before they ended.
fn without_ended_processes(mut progress: Progress, state: State) -> Progress {
    if !state.has_processes(&progress) {
        (progress.processes, progress.nodes_at_work) = (0, 0);
        (progress.rate, progress.remaining_seconds) = (None, None);
        progress.running.clear();
        progress.usage.clear();
        progress.waiting.clear();
    }
    progress
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, RwLock};

    use bytes::Bytes;
    use protocol::{Counts, Durability, JobSpec, JobState, ResultEvent, encode_record};

    use super::*;
    use crate::Home;
    use crate::history::History;
    use crate::replayed::key;

    const BASE: &str = "a-20261121-100203-ab12";
    const REPLAY: &str = "a-replay-20261121-100204-ab12";

    async fn ended(home: &Home, spec: JobSpec, items_rejected: u64) {
        let store = home.create_job(&spec.job_id, Durability::Process).expect("writable");
        store.put_spec(&spec).await.expect("writable");
        let result = JobResult::new(spec.job_id.clone(), JobState::Completed, String::new());
        let items = Counts { failed: items_rejected, ..Counts::default() };
        store.create_result(&JobResult { items_rejected, items, ..result }).await.expect("writable");
    }

    fn known(events: &[ResultEvent]) -> SharedHistory {
        let mut segment = Vec::new();
        events.iter().for_each(|event| encode_record(event, b"", &mut segment));
        let mut history = History::default();
        history.add_segment(&Bytes::from(segment)).expect("valid");
        Arc::new(RwLock::new(history))
    }

    #[tokio::test]
    async fn ledger_that_a_caller_has_read_is_not_read_again() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let home = Home::new(folder.path().to_owned());
        home.make().expect("writable");
        home.index().expect("writable").add(&key(BASE), "a-replay", REPLAY, Durability::Process).expect("writable");
        ended(&home, JobSpec { job_id: BASE.into(), ..JobSpec::example() }, 1).await;
        let (job_id, replays) = (REPLAY.to_owned(), Some(BASE.to_owned()));
        ended(&home, JobSpec { job_id, replays, replays_run: Some(1), ..JobSpec::example() }, 0).await;
        let jobs = Jobs::Here(home);
        let look = jobs.look(BASE).await.expect("it is there");
        // There is no ledger that could be read.
        let replayed_by = async |events: &[ResultEvent]| {
            look.status_with(&jobs, &known(events)).await.expect("it can be read").replayed_by
        };
        assert_eq!(replayed_by(&[ResultEvent::Reopened { at: 0 }]).await.as_deref(), Some(REPLAY));
        assert_eq!(replayed_by(&[ResultEvent::CutShort]).await, None, "it replayed another run");
    }
}
