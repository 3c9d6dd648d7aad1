//! The folder of local jobs, and the locks that decide which process may work on them.
//!
//! The folder (`~/.gristmill` by default) holds:
//!
//! ```text
//! jobs/<job_id>/                one folder for each job, with its objects and logs
//! open/, index/                 the index of the jobs: `Index`
//! outputs/<digest>              names the last job that writes this output file, and is locked by it
//! removed/                      folders that are being removed
//! assets/                       what jobs have registered: `job_file::Register`
//! environments/, side-inputs/   caches
//! document-files/               conda files that documents contain inline, named by a digest of their content
//! functions/                    functions and tables of calls from Python: `functions.rs`
//! fleet/, fleet.lock            caches of the nodes of compute targets; locked by the processes that use them
//! ```
//!
//! The process that runs a job holds its lock, so an unlocked job that has not ended has lost its process.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use protocol::Durability;
use storage::{JobStore, disk, real_path, snapshot};
use tokio_util::sync::CancellationToken;
use worker::{Cache, CacheLimits};

use crate::list::KnownCounts;
use crate::{Error, Fixable, Index, Remedy, newest_first};

/// How long a process that only looks at a job may hold its lock.
const LOOK_TIME: Duration = Duration::from_millis(200);

/// How often a waiting command tries to lock the folder, and how long it waits before it says so.
const LOCK_LOOK: Duration = Duration::from_millis(20);
const LOCK_SILENCE: Duration = Duration::from_secs(4);

/// The folder of all local jobs.
#[derive(Clone, Debug)]
pub struct Home {
    folder: PathBuf,
    known_counts: KnownCounts,
}

/// Locks a job, the jobs, an output file or the folder of the fleet until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Lock {
    /// Names the job that writes an output, for processes that find it locked and for the next job that writes it.
    pub fn name(&mut self, job_id: &str) -> Result<()> {
        let named = self.file.set_len(0).and_then(|()| self.file.rewind());
        named
            .and_then(|()| self.file.write_all(job_id.as_bytes()))
            .context("name the job that writes the output")
    }

    /// Returns the job that was named last, if there was one.
    pub fn named(&mut self) -> Option<String> {
        let mut job_id = String::new();
        self.file.rewind().and_then(|()| self.file.read_to_string(&mut job_id)).ok()?;
        (!job_id.is_empty()).then_some(job_id)
    }
}

impl Home {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, known_counts: KnownCounts::default() }
    }

    /// Returns the counts of interrupted jobs that have been read.
    pub(crate) fn known_counts(&self) -> &KnownCounts {
        &self.known_counts
    }

    /// Returns a folder of the home: a cache, or the one of the nodes of compute targets.
    pub(crate) fn cache(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the register of assets.
    pub fn register(&self) -> job_file::Register {
        job_file::Register::new(self.folder.join("assets"))
    }

    /// Returns the file in which a portal that shows the jobs of this machine leaves its address.
    pub fn portal_file(&self) -> PathBuf {
        self.folder.join("portal.json")
    }

    /// Returns the caches of the jobs of this machine, which only a clean-up empties.
    pub(crate) fn caches(&self) -> Cache {
        Cache::new(self.folder.clone(), CacheLimits::default())
    }

    /// Prevents a clean-up from removing caches of the fleet while this process uses them. The home
    /// must exist.
    pub(crate) fn use_fleet(&self) -> Result<Lock> {
        let (file, _) = self.lock_file("fleet.lock")?;
        file.lock_shared().context("wait for the process that removes the caches")?;
        Ok(Lock { file })
    }

    /// Takes the folder of the fleet, to clean it. Returns `None` if a worker of this machine uses it.
    pub(crate) fn try_take_fleet(&self) -> Result<Option<Lock>> {
        let (file, path) = self.lock_file("fleet.lock")?;
        Ok(has_locked(file.try_lock(), &path)?.then_some(Lock { file }))
    }

    fn lock_file(&self, name: &str) -> Result<(File, PathBuf)> {
        let path = self.folder.join(name);
        let file = File::create(&path).with_context(|| format!("write {}", path.display()))?;
        Ok((file, path))
    }

    pub(crate) fn job_folder(&self, job_id: &str) -> PathBuf {
        self.folder.join("jobs").join(job_id)
    }

    /// Creates the folder, with a mark that excludes it from snapshots of scripts.
    pub(crate) fn make(&self) -> Result<()> {
        let made =
            std::fs::create_dir_all(&self.folder).and_then(|()| snapshot::mark(&self.folder));
        let problem = || format!("create {}", self.folder.display());
        made.map_err(|error| Fixable::caused(problem(), Remedy::SetHome, error.into()))
    }

    /// Prevents two processes from choosing or creating jobs at the same moment.
    pub(crate) fn lock(&self) -> Result<Lock> {
        self.make()?;
        let (file, path) = self.lock_file("lock")?;
        file.lock().with_context(|| format!("lock {}", path.display()))?;
        Ok(Lock { file })
    }

    /// Works like [`lock`](Self::lock), without blocking: another process may hold the lock while it lists inputs or removes
    /// environments. Warns if that takes long, and fails once `stopped` is canceled.
    pub(crate) async fn lock_until(&self, stopped: &CancellationToken) -> Result<Lock> {
        self.make()?;
        let (file, path) = self.lock_file("lock")?;
        let began = Instant::now();
        let mut is_told = false;
        loop {
            if has_locked(file.try_lock(), &path)? {
                return Ok(Lock { file });
            }
            if began.elapsed() > LOCK_SILENCE && !std::mem::replace(&mut is_told, true) {
                tracing::warn!(
                    "another command chooses or removes jobs in {}; waiting for it",
                    self.folder.display()
                );
            }
            tokio::select! {
                () = tokio::time::sleep(LOCK_LOOK) => {}
                () = stopped.cancelled() => bail!("stopped before the job began"),
            }
        }
    }

    /// Returns the index of the jobs, and creates it if necessary. Only for the holder of [`lock`](Self::lock).
    pub(crate) fn index(&self) -> Result<Index> {
        let index = Index::new(&self.folder);
        if !index.is_complete() {
            let mut job_ids = newest_first(self.job_ids()?);
            job_ids.reverse();
            index.complete_with(&job_ids).context("index the jobs")?;
        }
        Ok(index)
    }

    /// Returns the jobs that may not have ended, in no order; with an index, they are few.
    pub(crate) fn open_jobs(&self) -> Result<Vec<String>> {
        let index = Index::new(&self.folder);
        if index.is_complete() { Ok(index.open()) } else { self.job_ids() }
    }

    pub(crate) fn mark_open(&self, job_id: &str) -> Result<()> {
        Index::new(&self.folder).mark_open(job_id)
    }

    /// Records that a job has ended, if there is a result.
    pub(crate) fn mark_ended(&self, job_id: &str) -> Result<()> {
        match self.job_folder(job_id).join("result.json").exists() {
            true => Index::new(&self.folder).mark_ended(job_id),
            false => Ok(()),
        }
    }

    /// Locks an output file for a job. `Err`: the job that writes it now, if it is known.
    pub(crate) fn try_lock_output(
        &self,
        output: &Path,
    ) -> Result<std::result::Result<Lock, Option<String>>> {
        let folder = self.folder.join("outputs");
        std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        // A URL looks like a relative path.
        let output = if output.is_absolute() { real_path(output) } else { output.to_owned() };
        let digest = blake3::hash(output.as_os_str().as_bytes()).to_hex();
        let path = folder.join(&digest[..32]);
        loop {
            let mut file =
                File::options().create(true).truncate(false).read(true).write(true).open(&path)?;
            if !has_locked(file.try_lock(), &path)? {
                let mut job_id = String::new();
                let read = file.read_to_string(&mut job_id);
                return Ok(Err(read.ok().filter(|bytes| *bytes > 0).map(|_| job_id)));
            }
            // Otherwise the file was removed in between.
            if is_at(&file, &path) {
                return Ok(Ok(Lock { file }));
            }
        }
    }

    pub(crate) fn create_job(&self, job_id: &str, durability: Durability) -> Result<JobStore> {
        self.mark_open(job_id)?;
        let folder = self.job_folder(job_id);
        let made = match durability {
            Durability::Process => std::fs::create_dir_all(&folder),
            Durability::Full => disk::create_folder(&folder),
        };
        made.with_context(|| format!("create {}", folder.display()))?;
        Ok(JobStore::local(&folder)?.with_durability(durability)?)
    }

    /// Locks a job. Returns `None` if another process has it.
    pub(crate) fn try_lock_job(&self, job_id: &str) -> Result<Option<Lock>> {
        let end = Instant::now() + LOOK_TIME;
        loop {
            let lock = self.try_lock(job_id, File::try_lock)?;
            if lock.is_some() || Instant::now() >= end {
                return Ok(lock);
            }
            std::thread::sleep(LOOK_TIME / 10);
        }
    }

    pub(crate) fn is_running(&self, job_id: &str) -> Result<bool> {
        Ok(self.try_lock(job_id, File::try_lock_shared)?.is_none())
    }

    fn try_lock(
        &self,
        job_id: &str,
        lock: fn(&File) -> Result<(), TryLockError>,
    ) -> Result<Option<Lock>> {
        let path = self.job_folder(job_id).join("lock");
        let removed = || Error::Removed(job_id.to_owned()).into();
        let file = match File::options().create(true).truncate(false).write(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(removed()),
            file => file.with_context(|| format!("write {}", path.display()))?,
        };
        if !has_locked(lock(&file), &path)? {
            return Ok(None);
        }
        // The remover holds the lock while it moves the folder away.
        if is_at(&file, &path) { Ok(Some(Lock { file })) } else { Err(removed()) }
    }

    /// Moves a job's folder away, which removes the job for every other process; the caller removes the folder. Returns
    /// `None` if the job runs, or has been continued, and stays.
    pub(crate) fn take_away(&self, job_id: &str, must_have_ended: bool) -> Result<Option<PathBuf>> {
        // The lock excludes the creation and choice of jobs, so an unlocked job is not about to
        // start.
        let _turn = self.lock()?;
        let Some(_lock) = self.try_lock_job(job_id)? else { return Ok(None) };
        let folder = self.job_folder(job_id);
        if must_have_ended && !folder.join("result.json").exists() {
            return Ok(None);
        }
        let to = self.removed_folder()?.join(job_id);
        std::fs::rename(&folder, &to)
            .with_context(|| format!("move {} to {}", folder.display(), to.display()))?;
        Ok(Some(to))
    }

    pub(crate) fn removed_folder(&self) -> Result<PathBuf> {
        let folder = self.folder.join("removed");
        std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        Ok(folder)
    }

    /// Returns the folders that wait for their removal.
    pub(crate) fn removed(&self) -> Result<Vec<PathBuf>> {
        let entries =
            std::fs::read_dir(self.removed_folder()?).context("read what is being removed")?;
        Ok(entries.flatten().map(|entry| entry.path()).collect())
    }

    /// Removes the lock files of outputs that no job writes now, and whose last job has been removed.
    pub(crate) fn remove_free_outputs(&self) {
        for entry in std::fs::read_dir(self.folder.join("outputs")).into_iter().flatten().flatten()
        {
            let path = entry.path();
            let Ok(file) = File::open(&path) else { continue };
            let is_free = file.try_lock().is_ok();
            let mut lock = Lock { file };
            if is_free && lock.named().is_none_or(|job_id| !self.job_folder(&job_id).exists()) {
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    /// Returns the names of all folders of jobs, in no order.
    pub fn job_ids(&self) -> Result<Vec<String>> {
        let jobs = self.folder.join("jobs");
        let entries = match std::fs::read_dir(&jobs) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).with_context(|| format!("read {}", jobs.display())),
        };
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
    }
}

/// Whether an attempt to lock the file at this path has succeeded; `false`: another process has locked it.
fn has_locked(attempt: Result<(), TryLockError>, path: &Path) -> Result<bool> {
    match attempt {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("lock {}", path.display()))
        }
    }
}

/// Whether the open file is still the one at this path.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let (open, found) = (file.metadata().map(identity), std::fs::metadata(path).map(identity));
    matches!((open, found), (Ok(open), Ok(found)) if open == found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "a-20261121-100203-ab12";

    fn home_with_job() -> (tempfile::TempDir, Home) {
        let folder = tempfile::tempdir().expect("temporary folder");
        let home = Home::new(folder.path().join("home"));
        home.create_job(JOB, Durability::Process).expect("writable");
        (folder, home)
    }

    #[test]
    fn running_job_is_locked() {
        let (_folder, home) = home_with_job();
        let jobs = crate::Jobs::Here(home.clone());
        let lock = home.try_lock_job(JOB).expect("writable").expect("free");
        assert!(home.is_running(JOB).expect("readable"));
        assert!(!jobs.was_cut_off(JOB), "its description may follow");
        drop(lock);
        assert!(!home.is_running(JOB).expect("readable"));
        assert!(jobs.was_cut_off(JOB));
    }

    #[test]
    fn output_has_one_lock_for_all_of_its_paths() {
        let (folder, home) = home_with_job();
        let real = folder.path().join("real");
        std::fs::create_dir(&real).expect("writable");
        std::os::unix::fs::symlink(&real, folder.path().join("link")).expect("writable");
        let lock =
            |folder: &Path| home.try_lock_output(&folder.join("out/rows.txt")).expect("writable");
        let mut held = lock(&real).expect("free");
        assert_eq!(lock(&real).expect_err("locked"), None);
        held.name(JOB).expect("writable");
        let holder = lock(&folder.path().join("link")).expect_err("locked");
        assert_eq!(holder.as_deref(), Some(JOB));
        assert!(lock(folder.path()).is_ok(), "another file");
        assert!(lock(Path::new("s3://bucket")).is_ok());
        drop(held);
        assert!(lock(&real).is_ok());
    }

    #[test]
    fn output_names_its_last_job_until_that_is_removed() {
        let (folder, home) = home_with_job();
        let output = folder.path().join("rows.txt");
        let lock = || home.try_lock_output(&output).expect("writable").expect("free");
        assert_eq!(lock().named(), None);
        lock().name(JOB).expect("writable");
        std::fs::write(&output, "row").expect("writable");
        home.remove_free_outputs();
        assert_eq!(lock().named().as_deref(), Some(JOB));
        std::fs::remove_dir_all(home.job_folder(JOB)).expect("writable");
        home.remove_free_outputs();
        assert_eq!(lock().named(), None);
    }

    #[test]
    fn removed_job_cannot_be_locked() {
        let (_folder, home) = home_with_job();
        std::thread::scope(|scope| {
            let removing = home.try_lock_job(JOB).expect("writable").expect("free");
            let taken = scope.spawn(|| home.try_lock_job(JOB));
            std::thread::sleep(LOOK_TIME / 5);
            // As a whole: between two files of it, the other thread would make another lock.
            std::fs::rename(home.job_folder(JOB), home.folder.join("moved away")).expect("movable");
            drop(removing);
            let error = taken.join().expect("no panic").expect_err("it was removed");
            assert!(error.to_string().contains("has been removed"), "{error:#}");
        });
        assert!(home.try_lock_job(JOB).is_err() && home.is_running(JOB).is_err());
    }

    #[test]
    fn reading_a_job_does_not_block_others() {
        let (_folder, home) = home_with_job();
        let looks = home.try_lock(JOB, File::try_lock_shared).expect("writable").expect("free");
        assert!(!home.is_running(JOB).expect("readable"), "others may look as well");
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| home.try_lock_job(JOB).expect("writable"));
            std::thread::sleep(LOOK_TIME / 5);
            drop(looks);
            assert!(taken.join().expect("no panic").is_some(), "a look ends soon");
        });
    }
}
