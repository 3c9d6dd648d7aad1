//! Removes old jobs and caches.
//!
//! A job that runs, or that a process is about to continue, is never removed. A removed job disappears for every other
//! process at one instant: on this machine its folder is renamed under the job's lock, in a store its `spec.json` is deleted
//! first. The next clean-up finishes an interrupted one.

mod caches;

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use futures::StreamExt;
use serde::Serialize;
use storage::{Removal, TargetStore};

use crate::list::in_order;
use crate::{Jobs, Selection, State, Summary, started_at};

/// A younger job without a description may still be in submission.
const UNDESCRIBED_FOR: Duration = Duration::from_secs(3600);

/// The jobs and caches that a clean-up removes.
#[derive(Clone, Debug, Default)]
pub struct CleanUp {
    /// The jobs, if any.
    pub jobs: Option<OldJobs>,
    /// Whether to remove the caches of this machine too, unless a job or worker uses them.
    pub caches: bool,
    /// Only report, remove nothing.
    pub dry_run: bool,
}

/// The jobs that a clean-up removes: by default all that have completed, failed or been canceled.
#[derive(Clone, Debug, Default)]
pub struct OldJobs {
    /// Only these jobs, by id or its beginning; interrupted and damaged ones too. Empty: all jobs.
    pub named: Vec<String>,
    /// Only jobs with these names and states.
    pub selection: Selection,
    /// Only jobs that have not changed for this long.
    pub older_than: Option<Duration>,
    /// Keeps this many of them, the newest.
    pub keep: Option<usize>,
    /// Keeps the newest of them that together have no more bytes.
    pub keep_bytes: Option<u64>,
}

/// A job or cache that a clean-up removes or keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// Id of the job, or path of the cache.
    pub name: String,
    /// State of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Its size, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// Why a job or cache stays.
#[derive(Debug)]
pub enum KeptReason {
    /// The job has not ended.
    NotEnded,
    /// The job's output is in its own folder, and the caller has not named the job.
    HoldsOutput(String),
    /// The job has been continued, or another process removes it.
    Continued,
    /// This job uses the cache.
    UsedByJob(String),
    /// A worker uses the cache.
    UsedByWorker,
    /// It could not be removed.
    Failed(anyhow::Error),
}

/// The effect of a clean-up.
#[derive(Debug, Default)]
pub struct CleanReport {
    /// Removed jobs, newest first.
    pub removed: Vec<Candidate>,
    /// Removed caches, and files of calls from Python that no job names any more; on a target, removed snapshots.
    pub caches: Vec<Candidate>,
    /// Jobs and caches that stay although the caller selected them.
    pub kept: Vec<(Candidate, KeptReason)>,
}

impl CleanReport {
    /// Returns the bytes of everything that was removed.
    pub fn bytes(&self) -> u64 {
        self.removed.iter().chain(&self.caches).filter_map(|removed| removed.bytes).sum()
    }

    /// Whether a removal failed.
    pub fn has_failed(&self) -> bool {
        self.kept.iter().any(|(_, reason)| matches!(reason, KeptReason::Failed(_)))
    }

    fn keep(&mut self, name: impl Into<String>, state: Option<State>, reason: KeptReason) {
        self.kept.push((Candidate { name: name.into(), state, bytes: None }, reason));
    }
}

impl Jobs {
    /// Removes jobs and caches. Calls `removed` for each removed job.
    pub async fn clean(
        &self,
        request: &CleanUp,
        mut removed: impl FnMut(&Candidate),
    ) -> crate::Result<CleanReport> {
        let mut report = CleanReport::default();
        let selected = match &request.jobs {
            Some(jobs) => select(jobs, request.dry_run, self, &mut report).await?,
            None => Vec::new(),
        };
        if let Self::Here(home) = self
            && !request.dry_run
        {
            home.removed()?.iter().try_for_each(|folder| remove_folder(folder))?;
        }
        let are_named = request.jobs.as_ref().is_some_and(|jobs| !jobs.named.is_empty());
        let dry_run = request.dry_run;
        let mut removals = in_order(selected.into_iter().map(|job| {
            let jobs = self.clone();
            async move { (remove(&jobs, &job, are_named, dry_run).await, job) }
        }));
        while let Some((kept, job)) = removals.next().await {
            match kept {
                Ok(None) => {
                    removed(&job);
                    report.removed.push(job);
                }
                Ok(Some(reason)) => report.kept.push((job, reason)),
                Err(error) => report.kept.push((job, KeptReason::Failed(error))),
            }
        }
        match self {
            Self::Here(home) => {
                if !request.dry_run {
                    let removed: HashSet<String> =
                        report.removed.iter().map(|job| job.name.clone()).collect();
                    let _turn = home.lock()?;
                    home.index()?.remove(&removed)?;
                    home.remove_free_outputs();
                }
                caches::clean_unnamed(home, request.dry_run, &mut report)?;
                if request.caches {
                    caches::clean(home, request.dry_run, &mut report)?;
                }
            }
            Self::There { store, .. } => {
                if let Err(error) = clean_snapshots(store, request.dry_run, &mut report).await {
                    report.keep("snapshots", None, KeptReason::Failed(error));
                }
                if !request.dry_run
                    && let Err(error) = store.remove_stale_workers().await
                {
                    report.keep("workers", None, KeptReason::Failed(error.into()));
                }
            }
        }
        Ok(report)
    }
}

/// Selects the jobs to remove, newest first.
async fn select(
    old: &OldJobs,
    dry_run: bool,
    jobs: &Jobs,
    report: &mut CleanReport,
) -> Result<Vec<Candidate>> {
    let mut ids = jobs.ids().await?;
    if !old.named.is_empty() {
        let named = old.named.iter().map(|wanted| jobs.id_of(wanted, &ids).cloned());
        ids = named.collect::<crate::Result<_>>()?;
    }
    ids.retain(|id| old.selection.has_name(id));
    let open = jobs.open_jobs().await?;
    let now = match jobs {
        Jobs::Here(_) => Utc::now(),
        Jobs::There { store, .. } => store.now(),
    };
    let before = old.older_than.map(|age| now - age);
    if let Some(before) = before {
        // A job that started later cannot have ended earlier.
        ids.retain(|id| started_at(id).is_none_or(|at| at < before));
    }
    let mut rows = Vec::new();
    let found = jobs.summaries(&ids, &open).await;
    if let Jobs::There { store, .. } = jobs
        && !dry_run
    {
        finish_removals(store, &ids, &found).await?;
    }
    for row in found {
        match is_selected(&row, old) {
            true => rows.push(row),
            false if !old.named.is_empty() => {
                report.keep(row.job_id, Some(row.state), KeptReason::NotEnded)
            }
            false => {}
        }
    }
    let mut selected = Vec::new();
    let mut examined = in_order(rows.into_iter().map(|row| examine(jobs.clone(), row, before)));
    while let Some(job) = examined.next().await {
        selected.extend(job?);
    }
    let mut kept_bytes = 0_u64;
    let first = selected.iter().enumerate().position(|(position, job): (usize, &Candidate)| {
        kept_bytes = kept_bytes.saturating_add(job.bytes.unwrap_or_default());
        match (old.keep, old.keep_bytes) {
            (None, None) => true,
            (keep, keep_bytes) => {
                keep.is_some_and(|keep| position >= keep)
                    || keep_bytes.is_some_and(|bytes| kept_bytes > bytes)
            }
        }
    });
    Ok(first.map_or_else(Vec::new, |first| selected.split_off(first)))
}

/// Finishes the removals of an interrupted clean-up, whose jobs have lost their description.
async fn finish_removals(store: &TargetStore, ids: &[String], found: &[Summary]) -> Result<()> {
    let described: HashSet<&str> = found.iter().map(|row| row.job_id.as_str()).collect();
    for id in ids.iter().filter(|id| !described.contains(id.as_str())) {
        store
            .finish_old_removal(id, UNDESCRIBED_FOR)
            .await
            .with_context(|| format!("remove job {id}"))?;
    }
    Ok(())
}

/// Without states: jobs that have ended, and, if named, interrupted or damaged ones.
fn is_selected(row: &Summary, old: &OldJobs) -> bool {
    match row.state {
        State::Completed | State::Failed | State::Canceled => old.selection.has_state(row.state),
        state @ (State::Interrupted | State::Damaged) => {
            !old.named.is_empty() || old.selection.states.contains(&state)
        }
        _ => false,
    }
}

/// Determines the size of a job. Returns `None` if it has changed since `before`.
async fn examine(
    jobs: Jobs,
    row: Summary,
    before: Option<DateTime<Utc>>,
) -> Result<Option<Candidate>> {
    let store = jobs.store(&row.job_id)?;
    if let Some(before) = before
        && store.changed_at().await?.or(row.started_at).is_some_and(|changed| changed >= before)
    {
        return Ok(None);
    }
    let bytes = match store.folder() {
        // An interrupted job has left links to the files of its script, which are not part of it.
        Some(folder) => caches::bytes_below(folder),
        None => store.bytes().await?,
    };
    Ok(Some(Candidate { name: row.job_id, state: Some(row.state), bytes: Some(bytes) }))
}

/// Removes a job. Returns the reason if it stays.
async fn remove(
    jobs: &Jobs,
    job: &Candidate,
    is_named: bool,
    dry_run: bool,
) -> Result<Option<KeptReason>> {
    let id = &job.name;
    let must_have_ended =
        job.state.is_some_and(|state| !state.is_open() && state != State::Damaged);
    let removing = async {
        let objects = jobs.store(id)?;
        if !is_named && objects.holds_output().await? {
            return Ok(Some(KeptReason::HoldsOutput(objects.shown("output"))));
        }
        if dry_run {
            return Ok(None);
        }
        let is_removed = match jobs {
            Jobs::Here(home) => match home.take_away(id, must_have_ended)? {
                Some(folder) => remove_folder(&folder).map(|()| true)?,
                None => false,
            },
            Jobs::There { store, .. } => {
                matches!(store.remove_job(id, must_have_ended).await?, Removal::Removed)
            }
        };
        anyhow::Ok((!is_removed).then_some(KeptReason::Continued))
    };
    removing.await.with_context(|| format!("remove job {id}"))
}

/// Removes a folder, which another clean-up may be removing too.
fn remove_folder(folder: &Path) -> Result<()> {
    storage::disk::remove_all(folder).with_context(|| format!("remove {}", folder.display()))
}

/// Removes the snapshots of a target that no remaining job refers to.
async fn clean_snapshots(
    store: &TargetStore,
    dry_run: bool,
    report: &mut CleanReport,
) -> Result<()> {
    let unused = match dry_run {
        true => {
            store
                .unused_snapshots(&report.removed.iter().map(|job| job.name.clone()).collect())
                .await?
        }
        false => store.remove_unused_snapshots().await?,
    };
    let removed = |(digest, bytes)| Candidate {
        name: format!("snapshots/{digest}"),
        state: None,
        bytes: Some(bytes),
    };
    report.caches.extend(unused.into_iter().map(removed));
    Ok(())
}
