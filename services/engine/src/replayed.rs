//! The replays of a job: whose rows its output holds, and whether they still belong there.
//!
//! A replay is planned from the rejects of its base, the job that it replays. If the base runs again, other items are
//! rejected, and the rows of the replay belong nowhere.

use anyhow::{Context, Result};
use protocol::{JobResult, JobState};
use reducer::{job_without_rows, times_reopened};

use crate::ended::{has_completed, is_untouched};
use crate::{Error, FoundJob, Jobs, Notice, Remedy, is_named, name_with, started};

/// End of the names of replays.
const SUFFIX: &str = "-replay";
/// Replays of one chain that are followed.
const CHAIN_MAX: usize = 1000;

/// Returns the key under which the index of this machine finds the replays of a job.
pub(crate) fn key(job_id: &str) -> String {
    format!("replay-of:{job_id}")
}

/// Returns the name of the replays of a job.
pub(crate) fn name_of_replay(name: &str) -> String {
    name_with(name.trim_end_matches(SUFFIX), SUFFIX)
}

/// Whether a job has completed and no item failed.
fn nothing_is_left(result: &JobResult) -> bool {
    result.state == JobState::Completed && result.mini_batches.failed == 0 && result.items.failed == 0
}

impl Jobs {
    /// Returns the newest replay of a job whose rows are in the output of that job, or may still get there: one that has
    /// completed, was canceled or has not ended.
    pub(crate) async fn replay_of(&self, base: &FoundJob) -> Result<Option<FoundJob>> {
        self.replay_of_run(base, None).await
    }

    /// `run`: how often the job has been reopened, if the caller knows it. Otherwise its whole ledger may be read.
    async fn replay_of_run(&self, base: &FoundJob, mut run: Option<u64>) -> Result<Option<FoundJob>> {
        let base_id = &base.spec.job_id;
        // Its ledger may have been removed.
        if base.result.as_ref().is_some_and(nothing_is_left) {
            return Ok(None);
        }
        let ids = match self {
            Self::Here(home) => home.index()?.find(&key(base_id))?,
            Self::There { .. } => {
                let name = name_of_replay(&base.spec.name);
                let ids = self.ids().await?.into_iter();
                ids.filter(|id| id != base_id && is_named(id, &name) && started(id) >= started(base_id)).collect()
            }
        };
        for id in ids {
            // A job that cannot be read, or has been removed, is no obstacle.
            let Ok(Some(job)) = self.job(&id).await else { continue };
            let has_failed = job.result.as_ref().is_some_and(|result| result.state == JobState::Failed);
            if has_failed || job.spec.replays.as_deref() != Some(base_id) {
                continue;
            }
            let run = match run {
                Some(run) => run,
                None => *run.insert(times_reopened(&base.store, base_id).await?),
            };
            if job.spec.replays_run.is_none_or(|planned| planned == run) {
                return Ok(Some(job));
            }
        }
        Ok(None)
    }

    /// Returns the replays that have completed the output of a job one after the other, the last one last.
    pub(crate) async fn completed_replays(&self, job: &FoundJob, run: Option<u64>) -> Result<Vec<FoundJob>> {
        let mut chain: Vec<FoundJob> = Vec::new();
        while chain.len() < CHAIN_MAX {
            let next = match chain.last() {
                Some(last) => self.replay_of(last).await?,
                None => self.replay_of_run(job, run).await?,
            };
            let Some(next) = next.filter(has_completed) else { break };
            chain.push(next);
        }
        Ok(chain)
    }

    /// Returns the id of a replay that has not ended and writes the rows of this job and of the replays between them.
    pub(crate) async fn open_replay(&self, job_id: &str) -> Result<Option<String>> {
        // A damaged job has no readable replays.
        let mut next = self.job(job_id).await.ok().flatten();
        for _ in 0..CHAIN_MAX {
            let Some(job) = next else { break };
            next = self.replay_of(&job).await?;
            if let Some(replay) = next.as_ref().filter(|replay| !replay.has_finished()) {
                return Ok(Some(replay.spec.job_id.clone()));
            }
        }
        Ok(None)
    }

    /// Returns the last replay that has put its rows into the output of a job that has ended with rejects. `run`: how often
    /// the job has been reopened, if the caller knows it. Otherwise the whole ledger of a replayed job is read.
    pub async fn replayed_by(&self, job: &FoundJob, run: Option<u64>) -> Result<Option<FoundJob>> {
        match job.result.as_ref().is_some_and(|result| result.rejects_to_replay() > 0) {
            true => Ok(self.completed_replays(job, run).await?.pop()),
            false => Ok(None),
        }
    }

    /// Returns the notice that a completed job has nothing left to run, except perhaps rejected items.
    pub(crate) async fn nothing_to_do(&self, job: &FoundJob, result: &JobResult) -> Result<Notice> {
        let replay = self.replayed_by(job, None).await?.and_then(|replay| replay.result);
        let rejected = replay.as_ref().unwrap_or(result).rejects_to_replay();
        let job_id = result.job_id.clone();
        let remedy = Remedy::Replay { job_id: job_id.clone(), target: self.target().clone() };
        Ok(Notice::NothingToDo { job_id, rejected, remedy: (rejected > 0).then_some(remedy) })
    }

    /// Checks that a job may run again: its output must not lose the rows of a replay, and, if it is a replay itself, its
    /// base must be as it was.
    pub(crate) async fn check_may_run_again(&self, job: &FoundJob) -> crate::Result<()> {
        let (job_id, target) = (job.spec.job_id.clone(), self.target().clone());
        if let Some(last) = self.completed_replays(job, None).await?.pop() {
            return Err(Error::HasReplay { job_id, replay: last.spec.job_id, target });
        }
        let Some(base_id) = &job.spec.replays else { return Ok(()) };
        let Ok(Some(base)) = self.job(base_id).await else {
            return Err(Error::BaseRemoved { job_id, base: base_id.clone() });
        };
        let run = times_reopened(&base.store, base_id).await.with_context(|| format!("read job {base_id}"))?;
        if job.spec.replays_run.is_some_and(|planned| planned != run) {
            return Err(Error::BaseRanAgain { job_id, base: base_id.clone(), target });
        }
        if let Some(without) = job_without_rows(&job.store, base_id).await? {
            return Err(Error::BaseWithoutRows { job_id, without });
        }
        // An interrupted replay may have written the output already.
        if let (Some(result), Self::Here(_)) = (&job.result, self) {
            let last = if result.output.is_some() { job } else { &base };
            check_output(last).await?;
        }
        Ok(())
    }
}

/// Checks that nothing has changed the output since this job wrote it, before a replay writes it again. What is behind a
/// URL is not compared.
pub(crate) async fn check_output(job: &FoundJob) -> crate::Result<()> {
    let Some(output) = job.result.as_ref().and_then(|result| result.output.as_deref()) else { return Ok(()) };
    if job.spec.output.folder.is_url() || is_untouched(output, job).await {
        return Ok(());
    }
    Err(Error::OutputChanged { job_id: job.spec.job_id.clone(), output: output.to_owned() })
}
