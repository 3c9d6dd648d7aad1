//! The jobs that pages show now. A request reads its job again, with a minimum time between two
//! reads, and its history stays in memory for the next request. A job of 200,000 mini-batches that
//! do nothing takes 0.8 % longer while the portal shows it.

use std::collections::HashMap;
#[cfg(test)]
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLockReadGuard};
use std::time::{Duration, Instant};

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use engine::history::{History, SharedHistory};
use engine::{FoundJob, Jobs, State, Status, StatusReader, Summary};
use engine::{JobStore, Reuses};
use protocol::{JobSpec, RunningMiniBatch};

use crate::Shared;
use crate::attempt_statistics::AttemptStatistics;
use crate::error::{Answer, Refusal};
use crate::live::{Live, UsageSample};

/// Time between two reads of a job.
const LOOK_EVERY_HERE: Duration = Duration::from_millis(400);
const LOOK_EVERY_THERE: Duration = Duration::from_millis(500);
/// Time between two listings of the jobs of the same name.
const LIST_EVERY: Duration = Duration::from_secs(30);
const SAME_MAX: usize = 5;
/// Jobs that stay in memory, and the memory of their histories.
const JOBS_MAX: usize = 32;
const BYTES_MAX: usize = 150 << 20;

/// The jobs that are shown now.
#[derive(Debug, Default)]
pub struct WatchedJobs {
    shown: Mutex<HashMap<String, (Arc<Watched>, Instant)>>,
    /// Whether the folder of the jobs has ever existed.
    was_there: AtomicBool,
}

/// One job that is shown.
#[derive(Debug)]
pub struct Watched {
    pub job_id: String,
    /// Different for each time that the job is loaded, so that a revision means one state.
    generation: String,
    looking: Arc<tokio::sync::Mutex<Option<CachedStatus>>>,
    history: SharedHistory,
    measured: Mutex<AttemptStatistics>,
    live: Mutex<Live>,
}

#[derive(Debug)]
struct CachedStatus {
    look: StatusReader,
    at: Instant,
    latest: Arc<Snapshot>,
    /// When the jobs of the same name were listed.
    listed: Instant,
}

/// A job as of one read.
#[derive(Debug)]
pub struct Snapshot {
    pub store: JobStore,
    pub spec: JobSpec,
    pub status: Status,
    /// Its result cannot be read, and counts as absent.
    pub has_damaged_result: bool,
    /// When it ended, by the clock of its store, milliseconds since 1970.
    pub ended_at: Option<u64>,
    /// Other jobs of the same name.
    pub same: Arc<SameName>,
    /// How often its result was reused.
    pub reuses: Arc<Reuses>,
}

impl WatchedJobs {
    /// Returns a job as it is now.
    pub async fn get(&self, jobs: &Jobs, job_id: &str) -> Answer<View> {
        if !protocol::is_job_id(job_id) || engine::started_at(job_id).is_none() {
            return Err(Refusal::removed(job_id));
        }
        self.check_place(jobs)?;
        let watched = self.entry(job_id);
        let looked = tokio::spawn(look(Arc::clone(&watched), jobs.clone())).await?;
        match looked {
            Ok(snapshot) => Ok(View { snapshot, watched }),
            Err(refusal) => {
                if refusal.is_removal() {
                    self.shown.lock().unwrap_or_else(PoisonError::into_inner).remove(job_id);
                }
                Err(refusal)
            }
        }
    }

    /// Fails if the folder of the jobs has vanished, for example with its disk: its jobs are not removed, and may come
    /// back.
    pub fn check_place(&self, jobs: &Jobs) -> Answer<()> {
        if jobs.is_there() {
            self.was_there.store(true, Ordering::Relaxed);
        } else if self.was_there.load(Ordering::Relaxed) {
            return Err(anyhow::anyhow!(
                "the folder of the jobs, {}, is not there now",
                jobs.place()
            )
            .into());
        }
        Ok(())
    }

    fn entry(&self, job_id: &str) -> Arc<Watched> {
        let mut all = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some((watched, used)) = all.get_mut(job_id) {
            *used = now;
            return Arc::clone(watched);
        }
        let watched = Arc::new(Watched {
            job_id: job_id.to_owned(),
            generation: format!(
                "{:016x}",
                getrandom::u64().expect("every supported system has random bytes")
            ),
            looking: Arc::default(),
            history: SharedHistory::default(),
            measured: Mutex::default(),
            live: Mutex::default(),
        });
        all.insert(job_id.to_owned(), (Arc::clone(&watched), now));
        let mut bytes: usize = all.values().map(|(watched, _)| watched.memory_bytes()).sum();
        while all.len() > JOBS_MAX || bytes > BYTES_MAX && all.len() > 1 {
            let Some(oldest) =
                all.iter().min_by_key(|(_, (_, used))| *used).map(|(id, _)| id.clone())
            else {
                break;
            };
            if let Some((removed, _)) = all.remove(&oldest) {
                bytes = bytes.saturating_sub(removed.memory_bytes());
            }
        }
        watched
    }
}

impl Watched {
    /// Returns the memory that it takes, without parts that another thread is using now.
    fn memory_bytes(&self) -> usize {
        let history = self.history.try_read().map_or(0, |history| history.memory_bytes());
        let live = self.live.try_lock().map_or(0, |live| live.memory_bytes());
        history + live + self.measured.try_lock().map_or(0, |measured| measured.memory_bytes())
    }
}

/// Reads a job, unless it was read a moment ago. Continues even if the client disconnects.
async fn look(watched: Arc<Watched>, jobs: Jobs) -> Answer<Arc<Snapshot>> {
    let mut looking = watched.looking.lock().await;
    let period = if matches!(jobs, Jobs::Here(_)) { LOOK_EVERY_HERE } else { LOOK_EVERY_THERE };
    if let Some(looked) = looking.as_ref().filter(|looked| looked.at.elapsed() < period) {
        return Ok(Arc::clone(&looked.latest));
    }
    let id = &watched.job_id;
    // A first read finds jobs by names, too, and an id may be that of a removed job.
    if looking.is_none() && jobs.job(id).await?.is_none() {
        return Err(Refusal::removed(id));
    }
    let (look, before) = match looking.take() {
        Some(CachedStatus { mut look, latest, listed, .. }) => {
            (look.again(&jobs).await.map(|()| look), Some((latest, listed)))
        }
        None => (jobs.look(id).await, None),
    };
    let look = match look {
        Ok(look) => look,
        Err(_) if jobs.job(id).await.is_ok_and(|job| job.is_none()) => {
            return Err(Refusal::removed(id));
        }
        Err(error) => return Err(error.into()),
    };
    look.job().update_history(&watched.history).await?;
    let status = look.status_with(&jobs, &watched.history).await?;
    if let Some(progress) = &status.progress {
        watched.live.lock().unwrap_or_else(PoisonError::into_inner).add(progress);
    }
    let FoundJob { store, spec, has_damaged_result, .. } = look.job();
    // A job that was continued since has another result.
    let known = before.as_ref().filter(|(before, _)| before.status.result == status.result);
    let ended_at = match (&status.result, known.and_then(|(before, _)| before.ended_at)) {
        (None, _) => None,
        (Some(_), Some(known)) => Some(known),
        (Some(_), None) => {
            store.changed_at().await?.and_then(|at| u64::try_from(at.timestamp_millis()).ok())
        }
    };
    let (same, reuses, listed) = match before {
        Some((before, listed)) if listed.elapsed() < LIST_EVERY => {
            (Arc::clone(&before.same), Arc::clone(&before.reuses), listed)
        }
        _ => (Arc::new(same(&jobs, spec).await?), Arc::new(store.reuses().await?), Instant::now()),
    };
    let (store, spec, has_damaged_result) = (store.clone(), spec.clone(), *has_damaged_result);
    let latest =
        Arc::new(Snapshot { store, spec, status, has_damaged_result, ended_at, same, reuses });
    *looking = Some(CachedStatus { look, at: Instant::now(), latest: Arc::clone(&latest), listed });
    Ok(latest)
}

/// Other jobs of the same name.
#[derive(Debug, Default)]
pub struct SameName {
    /// The job that began before this one.
    pub before: Option<String>,
    /// The newest, newest first, and the one before this.
    pub jobs: Vec<Summary>,
}

async fn same(jobs: &Jobs, spec: &JobSpec) -> Answer<SameName> {
    let mut ids = jobs.ids().await?;
    ids.retain(|id| *id != spec.job_id && engine::name_of(id) == spec.name);
    // Ids tell the second.
    let began_before = |id: &&String| engine::started_at(id) <= engine::started_at(&spec.job_id);
    let before = ids.iter().find(began_before).cloned();
    ids.truncate(SAME_MAX);
    ids.extend(before.clone().filter(|before| !ids.contains(before)));
    let jobs = jobs.summaries(&ids, &jobs.open_jobs().await?).await;
    Ok(SameName { before, jobs })
}

/// A job as of one read, with its history.
#[derive(Clone, Debug)]
pub struct View {
    pub snapshot: Arc<Snapshot>,
    watched: Arc<Watched>,
}

impl View {
    pub fn job_id(&self) -> &str {
        &self.watched.job_id
    }

    /// Returns the mini-batches that run.
    pub fn running(&self) -> &[RunningMiniBatch] {
        self.snapshot.status.progress.as_ref().map_or(&[], |progress| &progress.running)
    }

    /// Returns the usage of a process while pages showed the job, oldest first.
    pub fn used(&self, node: &str, process: &str) -> Vec<UsageSample> {
        self.watched.live.lock().unwrap_or_else(PoisonError::into_inner).of(node, process)
    }

    pub fn state(&self) -> State {
        self.snapshot.status.state
    }

    /// Returns the history, which may be newer than the snapshot.
    pub fn history(&self) -> RwLockReadGuard<'_, History> {
        self.watched.history.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the statistics of all attempts, as of their last update. The caller must hold the history.
    pub fn measured(&self) -> MutexGuard<'_, AttemptStatistics> {
        self.watched.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the revision of a history.
    pub fn revision(&self, history: &History) -> String {
        format!("{}-{}", self.watched.generation, history.version())
    }

    /// Returns the version in a revision of this job; `None`: it belongs to another load of the job.
    pub fn version_of(&self, revision: &str) -> Option<u32> {
        let (generation, version) = revision.rsplit_once('-')?;
        (generation == self.watched.generation).then(|| version.parse().ok())?
    }

    /// Returns the job for functions of the engine.
    pub fn found(&self) -> FoundJob {
        let Snapshot { store, spec, status, has_damaged_result, .. } = &*self.snapshot;
        let (store, spec, result) = (store.clone(), spec.clone(), status.result.clone());
        FoundJob { store, spec, result, has_damaged_result: *has_damaged_result }
    }

    /// Computes an answer from the history on a thread that may block.
    pub async fn compute<T: Send + 'static>(
        &self,
        answer: impl FnOnce(&Self, &History) -> T + Send + 'static,
    ) -> Answer<T> {
        let view = self.clone();
        Ok(tokio::task::spawn_blocking(move || answer(&view, &view.history())).await?)
    }
}

/// The job whose id the path of a request has.
impl FromRequestParts<Arc<Shared>> for View {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Answer<Self> {
        let names = RawPathParams::from_request_parts(parts, shared).await;
        let names = names.map_err(|error| Refusal::bad(error.body_text()))?;
        let id = names.iter().find(|(name, _)| *name == "id").map_or("", |(_, id)| id);
        shared.watched.get(&shared.options.jobs, id).await
    }
}

/// A history for tests.
#[cfg(test)]
pub fn view_of(store: JobStore, spec: JobSpec, status: Status, history: History) -> View {
    let watched = Watched {
        job_id: spec.job_id.clone(),
        generation: "test".to_owned(),
        looking: Arc::default(),
        history: Arc::new(RwLock::new(history)),
        measured: Mutex::default(),
        live: Mutex::default(),
    };
    let (has_damaged_result, ended_at, same, reuses) = Default::default();
    let snapshot = Snapshot { store, spec, status, has_damaged_result, ended_at, same, reuses };
    View { snapshot: Arc::new(snapshot), watched: Arc::new(watched) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_that_was_shown_least_recently_is_dropped() {
        let jobs = WatchedJobs::default();
        for number in 0..JOBS_MAX + 8 {
            jobs.entry(&format!("job-{number}"));
            jobs.entry("job-0");
        }
        let shown = jobs.shown.lock().expect("no panic");
        assert_eq!(shown.len(), JOBS_MAX);
        assert!(shown.contains_key("job-0") && !shown.contains_key("job-1"));
    }
}
