//! The folder in which local jobs live, and who may work on them.
//!
//! `$GRISTMILL_HOME` (by default `~/.gristmill`) holds `jobs/<job_id>/`, one folder a job with its objects, queues and
//! logs, and `environments/`. A running job is locked by the process that runs it, so a lock that is free on a job that
//! has not ended means that its process is gone.

use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use protocol::Durability;
use storage::{JobStore, disk, snapshot};

/// For how long a job that is to be taken may be in the hands of somebody who only looks at it.
const LOOK_TIME: Duration = Duration::from_millis(200);

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

impl Home {
    /// The folder need not exist yet.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Where environments are kept.
    pub fn environments(&self) -> PathBuf {
        self.folder.join("environments")
    }

    /// Where side inputs that are URLs are kept.
    pub fn side_inputs(&self) -> PathBuf {
        self.folder.join("side-inputs")
    }

    /// Where nodes of compute targets keep what they share, and their working directories.
    pub fn fleet(&self) -> PathBuf {
        self.folder.join("fleet")
    }

    /// A job's folder.
    pub fn job_folder(&self, job_id: &str) -> PathBuf {
        self.folder.join("jobs").join(job_id)
    }

    /// Makes the folder. It may lie among scripts, and is none of them.
    pub fn make(&self) -> Result<()> {
        std::fs::create_dir_all(&self.folder)
            .and_then(|()| snapshot::mark(&self.folder))
            .with_context(|| format!("make {} (GRISTMILL_HOME names another folder)", self.folder.display()))
    }

    /// Keeps two commands from choosing or making jobs at the same moment.
    pub fn lock(&self) -> Result<JobLock> {
        self.make()?;
        let path = self.folder.join("lock");
        let file = File::create(&path).with_context(|| format!("write {}", path.display()))?;
        file.lock().with_context(|| format!("lock {}", path.display()))?;
        Ok(JobLock { _file: file })
    }

    /// Makes the folder of a new job.
    pub fn create_job(&self, job_id: &str, durability: Durability) -> Result<JobStore> {
        let folder = self.job_folder(job_id);
        let made = match durability {
            Durability::Process => std::fs::create_dir_all(&folder),
            Durability::Full => disk::create_folder(&folder),
        };
        made.with_context(|| format!("make {}", folder.display()))?;
        Ok(JobStore::local(&folder)?.with_durability(durability)?)
    }

    /// Takes a job. `None`: another process has it.
    pub fn try_lock_job(&self, job_id: &str) -> Result<Option<JobLock>> {
        let end = Instant::now() + LOOK_TIME;
        loop {
            let lock = self.try_lock(job_id, File::try_lock)?;
            if lock.is_some() || Instant::now() >= end {
                return Ok(lock);
            }
            std::thread::sleep(LOOK_TIME / 10);
        }
    }

    /// Whether a process works on the job right now.
    pub fn is_running(&self, job_id: &str) -> Result<bool> {
        Ok(self.try_lock(job_id, File::try_lock_shared)?.is_none())
    }

    fn try_lock(&self, job_id: &str, lock: fn(&File) -> Result<(), TryLockError>) -> Result<Option<JobLock>> {
        let path = self.job_folder(job_id).join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.with_context(|| format!("write {}", path.display()))?;
        match lock(&file) {
            Ok(()) => Ok(Some(JobLock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("lock {}", path.display())),
        }
    }

    /// Names of all folders of jobs, in no order.
    pub fn job_ids(&self) -> Result<Vec<String>> {
        let jobs = self.folder.join("jobs");
        let entries = match std::fs::read_dir(&jobs) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).with_context(|| format!("read {}", jobs.display())),
        };
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_locked_by_one_process() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let home = Home::new(folder.path().join("home"));
        home.create_job("a-20261121-100203-ab12", Durability::Process).expect("writable");
        let lock = home.try_lock_job("a-20261121-100203-ab12").expect("writable").expect("free");
        assert!(home.is_running("a-20261121-100203-ab12").expect("readable"));
        drop(lock);
        assert!(!home.is_running("a-20261121-100203-ab12").expect("readable"));
    }

    #[test]
    fn who_looks_at_a_job_is_in_nobodys_way() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let home = Home::new(folder.path().join("home"));
        let job_id = "a-20261121-100203-ab12";
        home.create_job(job_id, Durability::Process).expect("writable");
        let looks = home.try_lock(job_id, File::try_lock_shared).expect("writable").expect("free");
        assert!(!home.is_running(job_id).expect("readable"), "others look too");
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| home.try_lock_job(job_id).expect("writable"));
            std::thread::sleep(LOOK_TIME / 5);
            drop(looks);
            assert!(taken.join().expect("no panic").is_some(), "a look is over soon");
        });
    }
}
