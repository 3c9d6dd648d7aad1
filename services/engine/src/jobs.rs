//! Finds jobs on this machine or in the store of a compute target. Callers treat both alike.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use anyhow::{Context, Result};
use job_file::did_you_mean;
use protocol::{Allocation, Counts, JobResult, JobSpec, JobState, Progress, WaitsFor, is_job_id};
use reducer::Reducer;
use storage::{JobStore, NOT_A_STORE, SeenWorker, TargetStore};

use crate::{
    Error, Fixable, Home, Remedy, Since, State, TargetRef, is_named, name_of, newest_first, started,
};

/// Jobs that a message names, of several.
const JOBS_NAMED_MAX: usize = 5;

/// The jobs that have not ended, by id, with their places in the schedule of their target.
#[derive(Clone, Debug, Default)]
pub struct OpenJobs {
    by_id: Arc<HashMap<String, Option<Scheduled>>>,
    builds: BTreeSet<String>,
}

/// A job in the schedule of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scheduled {
    /// Why it has no processes.
    pub waits_for: Option<WaitsFor>,
    /// The nodes on which it has some.
    pub nodes: Vec<String>,
    /// When the last schedule was made, if the job is admitted.
    pub admitted: Option<Since>,
}

impl OpenJobs {
    /// Whether a job is open.
    pub fn contains(&self, job_id: &str) -> bool {
        self.by_id.contains_key(job_id)
    }

    /// Returns the builds of the nodes, and of the reducer that keeps the schedule.
    pub fn builds(&self) -> &BTreeSet<String> {
        &self.builds
    }

    /// Returns the job as the schedule lists it; `None`: it does not.
    pub(crate) fn scheduled(&self, job_id: &str) -> Option<&Scheduled> {
        self.by_id.get(job_id)?.as_ref()
    }
}

/// The purpose for which a caller finds a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Shows the job.
    Look,
    /// Cancels or continues the job.
    Change,
}

/// All jobs of one place.
#[derive(Clone, Debug)]
pub enum Jobs {
    /// Those of this machine.
    Here(Home),
    /// Those of a compute target.
    There {
        /// The target, as a caller names it.
        target: TargetRef,
        /// Its store.
        store: TargetStore,
    },
}

/// A job, as its store describes it.
#[derive(Debug)]
pub struct FoundJob {
    /// Its objects.
    pub store: JobStore,
    /// What it runs.
    pub spec: JobSpec,
    /// How it ended; `None`: it has not.
    pub result: Option<JobResult>,
    /// Its result cannot be read, and counts as absent.
    pub has_damaged_result: bool,
}

impl FoundJob {
    /// Returns a job that has no result yet.
    pub(crate) fn new(store: JobStore, spec: JobSpec) -> Self {
        Self { store, spec, result: None, has_damaged_result: false }
    }

    /// Reads a job. `None`: it was interrupted before it was described, and holds nothing.
    /// `is_mended`: a result that cannot be read counts as absent, because a continued job writes it again.
    async fn read(store: JobStore, job_id: &str, is_mended: bool) -> Result<Option<Self>> {
        let spec = match store.spec().await {
            Ok(spec) => spec,
            Err(storage::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("read job {job_id}")),
        };
        let result = store.result().await;
        let has_damaged_result = is_mended && matches!(result, Err(storage::Error::Damaged { .. }));
        let result = if has_damaged_result {
            None
        } else {
            result.with_context(|| format!("read job {job_id}"))?
        };
        Ok(Some(Self { store, spec, result, has_damaged_result }))
    }

    /// Returns the counts of mini-batches and items, as far as they are known; of an interrupted job, those of its ledger.
    pub async fn counts(&self, progress: Option<&Progress>, state: State) -> (Counts, Counts) {
        if let Some(result) = &self.result {
            return (result.mini_batches, result.items);
        }
        let committed = if state == State::Interrupted { self.committed().await } else { None };
        let progress = committed.as_ref().or(progress);
        progress.map(|progress| (progress.mini_batches, progress.items)).unwrap_or_default()
    }

    /// Returns the progress of an interrupted local job from its ledger; `None`: the ledger is elsewhere, or empty.
    pub async fn committed(&self) -> Option<Progress> {
        if !self.holds_ledger() {
            return None;
        }
        let before =
            self.store.progress().await.ok().flatten().unwrap_or_else(Reducer::no_progress);
        Some(reducer::committed(&self.store, &self.spec.job_id, before).await)
    }

    /// Whether the ledger of the job is on this machine.
    pub(crate) fn holds_ledger(&self) -> bool {
        self.store.segment_file(0).is_some_and(|segment| segment.exists())
    }

    /// Whether the job has ended without being canceled.
    pub fn has_finished(&self) -> bool {
        self.result.as_ref().is_some_and(|result| result.state != JobState::Canceled)
    }
}

impl Jobs {
    /// Returns the ids of all jobs, newest first.
    pub async fn ids(&self) -> Result<Vec<String>> {
        let ids = match self {
            Self::Here(home) => home.job_ids()?,
            Self::There { store, .. } => store.job_ids().await?,
        };
        Ok(newest_first(ids))
    }

    /// Returns the ids of the jobs that may not have ended, newest first. Reads no job.
    pub async fn open_ids(&self) -> Result<Vec<String>> {
        let ids = match self {
            Self::Here(home) => home.open_jobs()?,
            Self::There { store, .. } => store.open_ids().await?,
        };
        Ok(newest_first(ids))
    }

    /// Returns whether the folder of the jobs exists: its disk may be unmounted for a while. Always true for an object
    /// store, whose requests fail instead.
    pub fn is_there(&self) -> bool {
        match self {
            Self::Here(home) => home.job_folder("").exists(),
            Self::There { .. } => self.has_store(),
        }
    }

    /// Whether a job without a description was interrupted before it began. Otherwise it is being created, or removed.
    pub fn was_cut_off(&self, job_id: &str) -> bool {
        matches!(self, Self::Here(home) if matches!(home.is_running(job_id), Ok(false)))
    }

    /// Reads a job. `None`: it was interrupted before it was described, or is being removed, and holds nothing.
    pub async fn job(&self, job_id: &str) -> Result<Option<FoundJob>> {
        match self {
            Self::Here(home) if !home.job_folder(job_id).exists() => Ok(None),
            Self::Here(_) => FoundJob::read(self.store(job_id)?, job_id, true).await,
            Self::There { .. } => FoundJob::read(self.store(job_id)?, job_id, false).await,
        }
    }

    /// Returns the objects of a job, which need not exist.
    pub fn store(&self, job_id: &str) -> Result<JobStore> {
        match self {
            Self::Here(home) => Ok(JobStore::local(&home.job_folder(job_id))?),
            Self::There { store, .. } => Ok(store.job(job_id)),
        }
    }

    /// Finds the job that `wanted` names by its id, by the beginning of its id, or by a job name.
    ///
    /// A name means the running job with that name, or else the newest one; `for_what` decides which cases are too
    /// ambiguous.
    pub async fn find(&self, wanted: &str, for_what: Purpose) -> crate::Result<FoundJob> {
        if is_job_id(wanted)
            && started(wanted).is_some()
            && let Some(job) = self.job(wanted).await?
        {
            return Ok(job);
        }
        if let Some(job) = self.unended(wanted, for_what).await? {
            return Ok(job);
        }
        let ids = self.ids().await?;
        let id = match ids.iter().find(|id| is_named(id, wanted)) {
            Some(id) => id,
            None => self.id_of(wanted, &ids)?,
        };
        match self.job(id).await? {
            Some(job) => Ok(job),
            None if self.was_cut_off(id) => {
                let problem = format!("job {id} was interrupted before it began");
                Err(Fixable::error(problem, Remedy::RunAgain(TargetRef::ThisMachine)).into())
            }
            None => Err(self.lacks(wanted, &[])),
        }
    }

    /// Returns the one of these ids that is `wanted`, or that begins with it.
    pub(crate) fn id_of<'a>(&self, wanted: &str, ids: &'a [String]) -> crate::Result<&'a String> {
        let beginning: Vec<&String> = ids.iter().filter(|id| id.starts_with(wanted)).collect();
        match (beginning.iter().find(|id| id.as_str() == wanted), beginning.as_slice()) {
            (Some(id), _) | (None, [id]) => Ok(*id),
            (None, []) => Err(self.lacks(wanted, ids)),
            (None, ids) => {
                let what = format!("{wanted:?} matches {} jobs", ids.len());
                Err(several(&what, ids.iter().copied()))
            }
        }
    }

    /// Returns the error that none of these ids matches the request of a caller.
    fn lacks(&self, wanted: &str, ids: &[String]) -> Error {
        let place = match self.has_store() {
            true => self.place(),
            false => format!("{}, which {NOT_A_STORE}", self.place()),
        };
        let hint = did_you_mean(wanted, ids.iter().map(|id| name_of(id)));
        let problem = format!("there is no job {wanted:?} in {place}{hint}");
        Error::NoSuchJob { problem, target: self.target().clone() }
    }

    /// Reads a job that existed a moment ago.
    pub(crate) async fn known_job(&self, job_id: &str) -> crate::Result<FoundJob> {
        self.job(job_id).await?.ok_or_else(|| Error::Removed(job_id.to_owned()))
    }

    /// Returns the job of this name that has not ended, if it takes precedence over the newest.
    async fn unended(&self, name: &str, for_what: Purpose) -> crate::Result<Option<FoundJob>> {
        let (mut running, mut stopped) = (Vec::new(), Vec::new());
        for id in self.open_ids().await?.into_iter().filter(|id| is_named(id, name)) {
            let Ok(Some(job)) = self.job(&id).await else { continue };
            if job.result.is_some() {
                continue;
            }
            let is_running = match self {
                Self::Here(home) => home.is_running(&id)?,
                Self::There { .. } => true,
            };
            if is_running { running.push(job) } else { stopped.push(job) }
        }
        match (for_what, running.len(), stopped.len()) {
            (Purpose::Look, 1.., _) | (Purpose::Change, 1, _) => {
                return Ok(running.into_iter().next());
            }
            (Purpose::Change, count @ 2.., _) => {
                let what = format!("{count} jobs named {name:?} are running");
                return Err(several(&what, running.iter().map(|job| &job.spec.job_id)));
            }
            (Purpose::Look, 0, _) | (Purpose::Change, 0, 0) => return Ok(None),
            (Purpose::Change, 0, _) => {}
        }
        // The newest of that name may have ended after an older one was interrupted.
        let newest = self.ids().await?.into_iter().find(|id| is_named(id, name));
        let is_newest = newest.as_deref() == Some(&stopped[0].spec.job_id);
        match (newest, stopped.len()) {
            (_, 1) if is_newest => Ok(stopped.into_iter().next()),
            (Some(ended), 1) => Err(ended_and_interrupted(name, &ended, &stopped[0].spec.job_id)),
            (_, count) => {
                let what = format!("{count} jobs named {name:?} were interrupted");
                Err(several(&what, stopped.iter().map(|job| &job.spec.job_id)))
            }
        }
    }

    /// Returns the folder or URL of the jobs, for messages.
    pub fn place(&self) -> String {
        match self {
            Self::Here(home) => home.job_folder("").display().to_string(),
            Self::There { store, .. } => store.url().to_owned(),
        }
    }

    /// Whether the folder of a target is that of a store. Of other stores, each request says so.
    pub fn has_store(&self) -> bool {
        match self {
            Self::There { store, .. } => store.folder().is_none_or(storage::snapshot::is_marked),
            Self::Here(_) => true,
        }
    }

    /// Returns the target of the jobs.
    pub fn target(&self) -> &TargetRef {
        match self {
            Self::Here(_) => &TargetRef::ThisMachine,
            Self::There { target, .. } => target,
        }
    }

    /// Returns the workers of a compute target. A job of this machine needs none.
    pub async fn workers(&self) -> Result<Vec<SeenWorker>> {
        match self {
            Self::Here(_) => Ok(Vec::new()),
            Self::There { store, .. } => Ok(store.seen_workers().await?),
        }
    }

    /// Returns the jobs of a target that have queues, with the names of these.
    pub async fn queues(&self) -> Result<Vec<(String, String)>> {
        let Self::There { store, .. } = self else { return Ok(Vec::new()) };
        let jobs = store.last_schedule().await?.unwrap_or_default().jobs;
        Ok(jobs.into_iter().filter_map(|job| Some((job.job_id.clone(), job.queues()?))).collect())
    }

    /// Returns the ids of the jobs that have not ended, for [`diagnose`](Self::diagnose).
    pub async fn open_jobs(&self) -> Result<OpenJobs> {
        Ok(match self {
            // The locks of the jobs are more exact.
            Self::Here(_) => OpenJobs::default(),
            Self::There { store, .. } => {
                let schedule = store.last_schedule().await?.unwrap_or_default();
                let builds = schedule.node_builds.iter().chain([&schedule.build]).cloned();
                let builds = builds.filter(|build| !build.is_empty()).collect();
                let made = Since { at: schedule.made_at, age: store.age(&schedule) };
                let jobs = schedule.jobs.into_iter().map(|job| {
                    let admitted = job.admitted_in.map(|_| made);
                    let scheduled =
                        Scheduled { waits_for: job.waits_for, nodes: Vec::new(), admitted };
                    (job.job_id, scheduled)
                });
                let mut scheduled: HashMap<String, Scheduled> = jobs.collect();
                for Allocation { job_id, node, .. } in schedule.allocations {
                    if let Some(job) = scheduled.get_mut(&job_id) {
                        job.nodes.push(node);
                    }
                }
                let open = store.open_ids().await?.into_iter().map(|job_id| {
                    let scheduled = scheduled.remove(&job_id);
                    (job_id, scheduled)
                });
                OpenJobs { by_id: Arc::new(open.collect()), builds }
            }
        })
    }
}

/// Returns the error that a request means several jobs, one of which a caller has to name.
fn several<'a>(what: &str, job_ids: impl ExactSizeIterator<Item = &'a String>) -> Error {
    let more = if job_ids.len() > JOBS_NAMED_MAX { ", …" } else { "" };
    let named: Vec<&str> = job_ids.take(JOBS_NAMED_MAX).map(String::as_str).collect();
    Error::Refused(format!("{what}: {}{more}; name one by its id", named.join(", ")))
}

fn ended_and_interrupted(name: &str, ended: &str, interrupted: &str) -> Error {
    Error::Refused(format!(
        "{name:?} matches {ended}, which has ended, and {interrupted}, which was interrupted; name one by its id"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_of_several_jobs_are_named() {
        let several = |count| {
            let job_ids: Vec<String> = (0..count).map(|number| format!("a-{number}")).collect();
            super::several("several jobs", job_ids.iter()).to_string()
        };
        assert_eq!(several(2), "several jobs: a-0, a-1; name one by its id");
        assert_eq!(several(7), "several jobs: a-0, a-1, a-2, a-3, a-4, …; name one by its id");
        let expected = "\"a\" matches a-0, which has ended, and a-1, which was interrupted; name one by its id";
        assert_eq!(ended_and_interrupted("a", "a-0", "a-1").to_string(), expected);
    }
}
