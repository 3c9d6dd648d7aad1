//! Lists jobs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use chrono::{DateTime, Utc};
use futures::{Stream, StreamExt, stream};
use protocol::{Counts, Priority, Progress};
use serde::Serialize;

use crate::{FoundJob, Jobs, OpenJobs, State, started_at};

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
pub(crate) struct KnownCounts(Arc<Mutex<HashMap<String, Known>>>);

/// Changes with the ledger and the progress of a job.
type Stamp = (SystemTime, Option<u64>);
/// The counts of mini-batches and items as of a stamp.
type Known = (Stamp, Counts, Counts);

impl KnownCounts {
    /// Returns the counts of mini-batches and items of an interrupted job.
    async fn of(&self, job: &FoundJob, progress: Option<&Progress>) -> (Counts, Counts) {
        let ledger = job.store.segment_file(0).and_then(|segment| Some(segment.parent()?.to_owned()));
        let changed = ledger.and_then(|ledger| std::fs::metadata(ledger).and_then(|folder| folder.modified()).ok());
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
#[allow(missing_docs)]
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub job_id: String,
    pub state: State,
    pub started_at: Option<DateTime<Utc>>,
    /// Person or team that it counts for on a compute target.
    pub owner: Option<String>,
    /// Its priority on a compute target now.
    pub priority: Priority,
    /// Working time since it was started or last continued.
    pub elapsed_seconds: Option<f64>,
    pub mini_batches: Counts,
    pub items: Counts,
    /// Why it failed or was canceled; of a completed job, its failures in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Why it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Jobs {
    /// Reads jobs, and returns them in the same order, without those that are being removed.
    pub async fn summaries(&self, ids: &[String], open: &OpenJobs) -> Vec<Summary> {
        let reads: Vec<_> = ids.iter().map(|id| summary(self.clone(), id.clone(), open.clone())).collect();
        in_order(reads).filter_map(std::future::ready).collect().await
    }
}

async fn summary(jobs: Jobs, job_id: String, open: OpenJobs) -> Option<Summary> {
    let started_at = started_at(&job_id);
    let counts = Counts::default();
    let unread = |state: State, problem: String| Summary {
        job_id: job_id.clone(),
        state,
        started_at,
        owner: None,
        priority: Priority::default(),
        elapsed_seconds: None,
        mini_batches: counts,
        items: counts,
        cause: None,
        problem: Some(problem),
    };
    let job = match jobs.job(&job_id).await {
        Ok(Some(job)) => job,
        Ok(None) if jobs.may_be_cut_off(&job_id) => {
            return Some(unread(State::Interrupted, "it was interrupted before it began".to_owned()));
        }
        Ok(None) => return None,
        Err(error) => return Some(unread(State::Damaged, format!("{error:#}"))),
    };
    let described = async {
        let progress = job.store.progress().await?;
        let state = jobs.standing_among(&job, progress.as_ref(), None, &open).await?.state;
        let (mini_batches, items) = match &jobs {
            Jobs::Here(home) if state == State::Interrupted => home.known_counts().of(&job, progress.as_ref()).await,
            _ => job.counts(progress.as_ref(), state).await,
        };
        let worked = |at: u64, since: u64| at.saturating_sub(since) as f64 / 1000.0;
        let elapsed_seconds = match (&job.result, &progress) {
            (Some(result), _) => Some(result.elapsed_seconds),
            (None, Some(progress)) => Some(worked(progress.at, progress.started_at)),
            (None, None) => None,
        };
        let job_id = job_id.clone();
        let cause = job.result.as_ref().and_then(|result| result.cause.clone().or_else(|| result.headline.clone()));
        let priority = match (&jobs, &job.result) {
            (Jobs::There { .. }, None) => job.priority().await?,
            _ => job.spec.priority,
        };
        let problem = None;
        anyhow::Ok(Summary {
            job_id,
            state,
            started_at,
            owner: job.owner(),
            priority,
            elapsed_seconds,
            mini_batches,
            items,
            cause,
            problem,
        })
    };
    Some(described.await.unwrap_or_else(|error| unread(State::Damaged, format!("{error:#}"))))
}
