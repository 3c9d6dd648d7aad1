//! The folder in which local jobs live, and who may work on them.
//!
//! `$GRISTMILL_HOME` (by default `~/.gristmill`) holds `jobs/<job_id>/`, one folder a job with its objects, queues and
//! logs, and `environments/`. A running job is locked by the process that runs it, so a lock that is free on a job that
//! has not ended means that its process is gone.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use protocol::{JobResult, JobSpec, JobState};
use storage::JobStore;

/// The folder of all local jobs.
#[derive(Clone, Debug)]
pub struct Home {
    folder: PathBuf,
}

/// Held by the process that runs a job, until it ends.
#[derive(Debug)]
pub struct JobLock {
    _file: File,
}

/// A job as it is found on disk.
#[derive(Debug)]
pub struct FoundJob {
    /// Its objects.
    pub store: JobStore,
    /// What it is.
    pub spec: JobSpec,
    /// How it ended, if it has.
    pub result: Option<JobResult>,
}

impl Home {
    /// The folder need not exist yet.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Where environments are kept.
    pub fn environments(&self) -> PathBuf {
        self.folder.join("environments")
    }

    /// A job's folder.
    pub fn job_folder(&self, job_id: &str) -> PathBuf {
        self.folder.join("jobs").join(job_id)
    }

    /// Keeps two commands from choosing or making jobs at the same moment.
    pub fn lock(&self) -> Result<JobLock> {
        std::fs::create_dir_all(&self.folder)
            .with_context(|| format!("make {} (GRISTMILL_HOME names another folder)", self.folder.display()))?;
        let path = self.folder.join("lock");
        let file = File::create(&path).with_context(|| format!("write {}", path.display()))?;
        file.lock().with_context(|| format!("lock {}", path.display()))?;
        Ok(JobLock { _file: file })
    }

    /// Makes the folder of a new job.
    pub fn create_job(&self, job_id: &str) -> Result<JobStore> {
        let folder = self.job_folder(job_id);
        std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(JobStore::local(&folder)?)
    }

    /// Takes a job. `None`: another process has it.
    pub fn try_lock_job(&self, job_id: &str) -> Result<Option<JobLock>> {
        let path = self.job_folder(job_id).join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.with_context(|| format!("write {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(JobLock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("lock {}", path.display())),
        }
    }

    /// Whether a process works on the job right now.
    pub fn is_running(&self, job_id: &str) -> Result<bool> {
        Ok(self.try_lock_job(job_id)?.is_none())
    }

    /// Ids of all jobs, newest first.
    pub fn job_ids(&self) -> Result<Vec<String>> {
        let jobs = self.folder.join("jobs");
        let entries = match std::fs::read_dir(&jobs) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).with_context(|| format!("read {}", jobs.display())),
        };
        let mut ids: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|id| started(id).is_some())
            .collect();
        ids.sort_by(|one, other| started(other).cmp(&started(one)).then_with(|| other.cmp(one)));
        Ok(ids)
    }

    /// Reads a job. `None`: it was cut off before it was described, and holds nothing.
    pub async fn job(&self, job_id: &str) -> Result<Option<FoundJob>> {
        let store = JobStore::local(&self.job_folder(job_id))?;
        let spec = match store.spec().await {
            Ok(spec) => spec,
            Err(storage::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("read job {job_id}")),
        };
        let result = store.result().await.with_context(|| format!("read job {job_id}"))?;
        Ok(Some(FoundJob { store, spec, result }))
    }

    /// The job a person means: its id, the beginning of one, or a job name, for which the newest is taken.
    pub async fn find(&self, wanted: &str) -> Result<FoundJob> {
        let ids = self.job_ids()?;
        let named = |id: &&String| id.len() > ID_SUFFIX && id[..id.len() - ID_SUFFIX] == *wanted;
        let beginning: Vec<&String> = ids.iter().filter(|id| id.starts_with(wanted)).collect();
        let id: &String = match (ids.iter().find(|id| *id == wanted), ids.iter().find(named), beginning.as_slice()) {
            (None, None, [id]) => id,
            (Some(id), _, _) | (None, Some(id), _) => id,
            (None, None, []) => bail!("there is no job {wanted:?}; `gristmill jobs` lists those there are"),
            (None, None, several) => {
                bail!("{wanted:?} may mean any of {} jobs, for example {} or {}", several.len(), several[0], several[1])
            }
        };
        self.job(id).await?.with_context(|| format!("job {id} was cut off before it began; run its job file again"))
    }
}

impl FoundJob {
    /// The job's folder.
    pub fn folder(&self) -> &Path {
        self.store.folder().expect("local jobs have a folder")
    }

    /// Ended by itself, not by being canceled.
    pub fn has_finished(&self) -> bool {
        self.result.as_ref().is_some_and(|result| result.state != JobState::Canceled)
    }
}

/// Length of `-yyyymmdd-hhmmss-xxxx`.
const ID_SUFFIX: usize = 21;

/// An id for a job that starts now.
pub fn new_job_id(name: &str) -> String {
    let now = chrono::Utc::now();
    let seed = format!("{}-{:?}", std::process::id(), now);
    let random = &blake3::hash(seed.as_bytes()).to_hex()[..4];
    format!("{name}-{}-{random}", now.format("%Y%m%d-%H%M%S"))
}

/// The time part of an id, by which ids sort.
fn started(id: &str) -> Option<&str> {
    let suffix = id.get(id.len().checked_sub(ID_SUFFIX)?..)?;
    let time = &suffix[1..16];
    let is_digit_but = |at: usize| time.bytes().enumerate().all(|(i, byte)| byte.is_ascii_digit() || i == at);
    (suffix.starts_with('-') && is_digit_but(8)).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_whatever_their_names() {
        let id = new_job_id("a-job");
        assert!(started(&id).is_some(), "{id}");
        assert_eq!(started("a-20261121-100203-ab12"), Some("20261121-100203"));
        assert_eq!(started("lost+found"), None);
    }

    #[test]
    fn a_job_is_locked_by_one_process() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let home = Home::new(folder.path().join("home"));
        home.create_job("a-20261121-100203-ab12").expect("writable");
        let lock = home.try_lock_job("a-20261121-100203-ab12").expect("writable").expect("free");
        assert!(home.is_running("a-20261121-100203-ab12").expect("readable"));
        drop(lock);
        assert!(!home.is_running("a-20261121-100203-ab12").expect("readable"));
    }
}
