//! Lists jobs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::Result;
use chrono::{DateTime, Utc};
use futures::{Stream, StreamExt, stream};
use protocol::{Counts, JobResult, Priority, Progress};
use serde::Serialize;

use crate::{Diagnosis, FoundJob, Hint, Jobs, OpenJobs, State, started_at};

/// Jobs or files that are read at the same time.
pub const READS_AT_ONCE: usize = 16;

/// Runs tasks, a few at a time, and returns their results in the order of the tasks.
pub fn in_order<F>(tasks: impl IntoIterator<Item = F>) -> impl Stream<Item = F::Output> + Unpin
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let running = stream::iter(tasks).map(tokio::spawn).buffered(READS_AT_ONCE);
    running.map(|ended| ended.expect("no task panics"))
}

/// Known counts of interrupted jobs of this machine. The portal lists jobs again and again, and the counts come from the
/// ledger, which may be long.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownCounts(Arc<Mutex<HashMap<String, CountsAt>>>);

/// Changes with the ledger and the progress of a job.
type Stamp = (SystemTime, Option<u64>);
/// The counts of mini-batches and items as of a stamp.
type CountsAt = (Stamp, Counts, Counts);

impl KnownCounts {
    /// Returns the counts of mini-batches and items of an interrupted job.
    async fn of(&self, job: &FoundJob, progress: Option<&Progress>) -> (Counts, Counts) {
        let ledger =
            job.store.segment_file(0).and_then(|segment| Some(segment.parent()?.to_owned()));
        let changed = ledger
            .and_then(|ledger| std::fs::metadata(ledger).and_then(|folder| folder.modified()).ok());
        let stamp = changed.map(|changed| (changed, progress.map(|progress| progress.at)));
        let job_id = &job.spec.job_id;
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(job_id).copied();
        if let Some((known_at, mini_batches, items)) = known
            && Some(known_at) == stamp
        {
            return (mini_batches, items);
        }
        let (mini_batches, items) = job.counts(progress, State::Interrupted).await;
        if let Some(stamp) = stamp {
            let known = (stamp, mini_batches, items);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(job_id.clone(), known);
        }
        (mini_batches, items)
    }
}

/// A job, as a list shows it.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Its id.
    pub job_id: String,
    /// Its state.
    pub state: State,
    /// When it was started or enqueued, as its id says.
    pub started_at: Option<DateTime<Utc>>,
    /// Person or team that it counts for on a compute target.
    pub owner: Option<String>,
    /// Its priority on a compute target now.
    pub priority: Priority,
    /// Of a job of a target that has not ended.
    #[serde(flatten)]
    pub activity: Option<Activity>,
    /// From start to end, or until now, without the time between an end and a retry.
    pub elapsed_seconds: Option<f64>,
    /// Mini-batches that end in a second: now, or of an ended job while it worked; `None`: unknown, or none ended.
    pub rate: Option<f64>,
    /// Its mini-batches.
    pub mini_batches: Counts,
    /// Their items.
    pub items: Counts,
    /// Why it failed or was canceled; of a completed job, its failures in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Why it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Summary {
    /// Describes a job of which only this is known.
    pub fn empty(job_id: String, state: State) -> Self {
        Self {
            started_at: started_at(&job_id),
            job_id,
            state,
            owner: None,
            priority: Priority::default(),
            activity: None,
            elapsed_seconds: None,
            rate: None,
            mini_batches: Counts::default(),
            items: Counts::default(),
            cause: None,
            problem: None,
        }
    }
}

/// The work on an unfinished job of a target, and why it waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Activity {
    /// What it lacks.
    pub waits_for: Option<String>,
    /// Time from `enqueue` to its first process, or until now; `None`: unknown.
    pub waited_seconds: Option<f64>,
    /// Its processes.
    pub processes: u64,
    /// Its part of the processes of all jobs of the target; `None`: no job has processes.
    pub share: Option<f64>,
    /// Remaining time at the pace of its workers; `None`: unknown.
    pub remaining_seconds: Option<u64>,
}

impl Activity {
    fn of(
        enqueued: Option<DateTime<Utc>>,
        progress: Option<&Progress>,
        state: State,
        hint: Option<Hint>,
    ) -> Self {
        let at_work = progress.filter(|progress| state.has_processes(progress));
        let began_at =
            progress.and_then(|progress| progress.began_at).and_then(|at| i64::try_from(at).ok());
        let until = began_at
            .map_or_else(Utc::now, |at| DateTime::from_timestamp_millis(at).unwrap_or_default());
        // The clocks of two machines may differ.
        let waited = enqueued.map(|at| (until - at).num_milliseconds().max(0) as f64 / 1000.0);
        let is_known = began_at.is_some() || progress.is_none_or(|progress| progress.nodes == 0);
        Self {
            waits_for: hint.map(|hint| hint.blocker.to_string()),
            waited_seconds: waited.filter(|_| is_known),
            processes: at_work.map_or(0, |progress| progress.processes),
            share: None,
            remaining_seconds: at_work
                .filter(|_| state == State::Running)
                .and_then(|progress| progress.remaining_seconds),
        }
    }
}

/// Returns how many mini-batches of a job end in a second: now, or of an ended job while it worked.
pub fn rate(result: Option<&JobResult>, progress: Option<&Progress>, state: State) -> Option<f64> {
    match result {
        Some(result) => {
            let ended = result.mini_batches.ended() as f64;
            (result.worked_seconds > 0.0 && ended > 0.0).then(|| ended / result.worked_seconds)
        }
        None => {
            progress
                .filter(|progress| state == State::Running && state.has_processes(progress))?
                .rate
        }
    }
}

/// Returns the share of each job, given all unfinished jobs of a target.
fn divide(unfinished: &mut [Summary]) {
    let of = |job: &Summary| job.activity.as_ref().map_or(0, |activity| activity.processes);
    let all: u64 = unfinished.iter().map(of).sum();
    for activity in unfinished.iter_mut().filter_map(|job| job.activity.as_mut()) {
        activity.share = (all > 0).then(|| activity.processes as f64 / all as f64);
    }
}

impl Jobs {
    /// Reads the unfinished jobs of a target, with their shares. Of this machine: none, because they do not share it.
    pub async fn unfinished(&self, open: &OpenJobs) -> Result<Vec<Summary>> {
        let Self::There { .. } = self else { return Ok(Vec::new()) };
        let mut unfinished = self.summaries(&self.open_ids().await?, open).await;
        divide(&mut unfinished);
        Ok(unfinished)
    }

    /// Reads jobs, and returns them in the same order, without those that are being removed.
    pub async fn summaries(&self, ids: &[String], open: &OpenJobs) -> Vec<Summary> {
        let reads: Vec<_> =
            ids.iter().map(|id| summary(self.clone(), id.clone(), open.clone())).collect();
        in_order(reads).filter_map(std::future::ready).collect().await
    }
}

async fn summary(jobs: Jobs, job_id: String, open: OpenJobs) -> Option<Summary> {
    let unread = |state, problem| Summary {
        problem: Some(problem),
        ..Summary::empty(job_id.clone(), state)
    };
    let job = match jobs.job(&job_id).await {
        Ok(Some(job)) => job,
        Ok(None) if jobs.was_cut_off(&job_id) => {
            return Some(unread(
                State::Interrupted,
                "it was interrupted before it began".to_owned(),
            ));
        }
        Ok(None) => return None,
        Err(error) => return Some(unread(State::Damaged, format!("{error:#}"))),
    };
    let described = async {
        let progress = job.store.progress().await?;
        let Diagnosis { state, hint } = jobs.diagnose(&job, progress.as_ref(), None, &open).await?;
        let (mini_batches, items) = match &jobs {
            Jobs::Here(home) if state == State::Interrupted => {
                home.known_counts().of(&job, progress.as_ref()).await
            }
            _ => job.counts(progress.as_ref(), state).await,
        };
        let elapsed_seconds = match (&job.result, &progress) {
            (Some(result), _) => Some(result.elapsed_seconds),
            (None, Some(progress)) => Some(progress.elapsed_seconds),
            (None, None) => None,
        };
        let cause = job
            .result
            .as_ref()
            .and_then(|result| result.cause.clone().or_else(|| result.headline.clone()));
        let priority = match (&jobs, &job.result) {
            (Jobs::There { .. }, None) => job.priority().await?,
            _ => job.spec.priority,
        };
        let is_unfinished = matches!(jobs, Jobs::There { .. }) && state.is_open();
        let activity = is_unfinished
            .then(|| Activity::of(started_at(&job_id), progress.as_ref(), state, hint));
        anyhow::Ok(Summary {
            owner: job.owner(),
            priority,
            activity,
            elapsed_seconds,
            rate: rate(job.result.as_ref(), progress.as_ref(), state),
            mini_batches,
            items,
            cause,
            ..Summary::empty(job_id.clone(), state)
        })
    };
    Some(described.await.unwrap_or_else(|error| unread(State::Damaged, format!("{error:#}"))))
}

#[cfg(test)]
mod tests {
    use reducer::Reducer;

    use super::*;
    use crate::Blocker;

    fn progress() -> Progress {
        let enqueued_ms = 1_767_225_600_000;
        let began_at = Some(enqueued_ms + 90_000);
        Progress {
            nodes: 1,
            processes: 3,
            began_at,
            remaining_seconds: Some(60),
            ..Reducer::no_progress()
        }
    }

    fn activity(progress: Option<&Progress>, state: State) -> Activity {
        Activity::of(DateTime::from_timestamp(1_767_225_600, 0), progress, state, None)
    }

    #[test]
    fn activity_of_a_job_follows_from_its_progress() {
        let running = activity(Some(&progress()), State::Running);
        let expected = Activity {
            waited_seconds: Some(90.0),
            processes: 3,
            remaining_seconds: Some(60),
            ..Activity::default()
        };
        assert_eq!(running, expected);
        let silent = Progress { silent_since: Some(0), ..progress() };
        let waiting = activity(Some(&silent), State::Waiting);
        assert_eq!(
            (waiting.processes, waiting.remaining_seconds),
            (0, None),
            "nothing is known of its processes"
        );
        assert_eq!(waiting.waited_seconds, Some(90.0));
        assert!(activity(None, State::Queued).waited_seconds > Some(90.0), "it waits");
        let before = Progress { began_at: None, ..progress() };
        assert_eq!(
            activity(Some(&before), State::Running).waited_seconds,
            None,
            "no reducer has written when it began"
        );
    }

    #[test]
    fn activity_says_what_a_job_waits_for() {
        let blocker = Blocker::FirstReducer;
        let hint =
            Hint { job_id: "job".into(), target: crate::TargetRef::Named("t".into()), blocker };
        let waits_for = Activity::of(None, None, State::Queued, Some(hint)).waits_for;
        assert_eq!(waits_for.as_deref(), Some("no reducer has looked at it yet"));
    }

    #[test]
    fn jobs_share_the_processes_that_work() {
        let job = |processes| Summary {
            activity: Some(Activity { processes, ..Activity::default() }),
            ..Summary::empty(String::new(), State::Running)
        };
        let shares = |mut jobs: Vec<Summary>| {
            divide(&mut jobs);
            jobs.into_iter()
                .map(|job| job.activity.and_then(|activity| activity.share))
                .collect::<Vec<_>>()
        };
        assert_eq!(shares(vec![job(3), job(0), job(1)]), [Some(0.75), Some(0.0), Some(0.25)]);
        assert_eq!(shares(vec![job(0)]), [None]);
    }
}
