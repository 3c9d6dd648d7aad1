//! What scripts have left in the working directories of their processes, `nodes/<node>/<job>/`. These files count as a part of
//! the caches, and the limits of the caches apply once no job needs them:
//!
//! ```text
//! lock     locked by the agent that works on the job; removed when the agent ends
//! ended    the job has ended; holds the size of the folder
//! ```
//!
//! Of a job that has not ended, or of which the store of this worker knows nothing, files stay for as long as the caches keep
//! anything.

use std::fs::{DirEntry, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use storage::disk::remove_all;

use super::evict::{Candidate, Limits, bytes_on_disk};
use super::{beside, is_at, is_locked, put_text, text_in};

/// The lock that a living worker holds, or the agent of a job.
pub(crate) const LOCK: &str = "lock";
const ENDED: &str = "ended";

/// Marks the folder of a job as in use, until [`leave`]. The kernel does it for a worker that is killed.
pub(crate) fn claim(folder: &Path) -> io::Result<File> {
    loop {
        std::fs::create_dir_all(folder)?;
        let lock = open(folder)?;
        // Shared, as another worker may have the same name. A process that removes the folder is quick.
        lock.lock_shared()?;
        if is_at(&lock, &folder.join(LOCK)) {
            // It is open again.
            remove_all(&folder.join(ENDED))?;
            return Ok(lock);
        }
    }
}

/// Removes the folder of a worker that ends, or of a job that no agent works on any more, if nothing else is in it. Else
/// it is used until now.
pub(crate) fn leave(folder: &Path) {
    let _ = std::fs::remove_file(folder.join(LOCK));
    let _ = std::fs::remove_dir(folder);
}

/// Returns the folders of jobs, by node, that no agent works on, and that no one has said have ended.
pub(crate) fn unknown(nodes: &Path) -> Vec<PathBuf> {
    let unknown =
        |folder: &PathBuf| !folder.join(ENDED).exists() && is_unused(folder).unwrap_or(false);
    folders(nodes).filter(unknown).collect()
}

/// Takes note that the job of a folder has ended.
pub(crate) fn has_ended(folder: &Path) -> io::Result<()> {
    let used_at = folder.metadata()?.modified()?;
    let bytes = bytes_on_disk(folder);
    let mut mark = File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .read(true)
        .open(folder.join(ENDED))?;
    put_text(&mut mark, &bytes.to_string())?;
    mark.set_modified(used_at)
}

/// Returns what is in the folders of jobs that no agent works on.
pub(super) fn find(nodes: &Path, limits: Limits) -> Vec<(PathBuf, Candidate)> {
    let now = SystemTime::now();
    let entry = |folder: PathBuf| {
        if !is_unused(&folder).ok()? {
            return None;
        }
        if let Ok(mut mark) = File::open(folder.join(ENDED)) {
            let (used_at, bytes) =
                (mark.metadata().ok()?.modified().ok()?, text_in(&mut mark)?.parse().ok()?);
            return Some((folder, Candidate { bytes, used_at, in_use: false }));
        }
        let used_at = folder.metadata().ok()?.modified().ok()?;
        let age = now.duration_since(used_at).unwrap_or_default();
        let is_old = limits.age.is_some_and(|age_max| age > age_max);
        // Its size does not matter until then.
        is_old.then_some((folder, Candidate { bytes: 0, used_at, in_use: false }))
    };
    folders(nodes).filter_map(entry).collect()
}

/// Removes the folder of a job, unless an agent works on it. Returns whether it has.
pub(super) fn remove_unused(folder: &Path) -> io::Result<bool> {
    let lock = open(folder)?;
    if !is_locked(lock.try_lock())? || !is_at(&lock, &folder.join(LOCK)) {
        return Ok(false);
    }
    let removed = beside(folder, ".removed");
    std::fs::rename(folder, &removed)?;
    remove_all(&removed)?;
    Ok(true)
}

fn open(folder: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).open(folder.join(LOCK))
}

fn is_unused(folder: &Path) -> io::Result<bool> {
    match File::open(folder.join(LOCK)) {
        Ok(lock) => is_locked(lock.try_lock()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Returns the folders of jobs of all nodes.
fn folders(nodes: &Path) -> impl Iterator<Item = PathBuf> {
    let folders =
        |folder: &Path| entries(folder).map(|entry| entry.path()).filter(|path| path.is_dir());
    folders(nodes).flat_map(move |node| folders(&node).collect::<Vec<_>>())
}

fn entries(folder: &Path) -> impl Iterator<Item = DirEntry> + use<> {
    std::fs::read_dir(folder).into_iter().flatten().flatten()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Cache;
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn files_of_ended_jobs_go_by_the_limits_of_the_caches() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let nodes = folder.path().join("nodes");
        let job = |name: &str| {
            let job = nodes.join("node").join(name);
            std::fs::create_dir_all(job.join("scratch/process000")).expect("writable");
            std::fs::write(job.join("scratch/process000/mine"), vec![1; 100_000])
                .expect("writable");
            job
        };
        let [working, open, ended, older] = ["working", "open", "ended", "older"].map(job);
        let at_work = claim(&working).expect("writable");
        assert_eq!(unknown(&nodes).len(), 3, "an agent works on the other one");
        for (job, hours) in [(&ended, 1), (&older, 2)] {
            File::open(job)
                .expect("there")
                .set_modified(SystemTime::now() - hours * HOUR)
                .expect("writable");
            has_ended(job).expect("writable");
        }
        assert_eq!(unknown(&nodes), [open.as_path()]);
        let tidy = |bytes, age| {
            let limits = Limits { bytes, age, free_min: 0 };
            Cache::new(folder.path().to_owned(), limits).tidy().expect("writable");
            [&working, &open, &ended, &older]
                .map(|job| job.join("scratch/process000/mine").exists())
        };
        assert_eq!(tidy(Some(1 << 20), Some(10 * HOUR)), [true; 4]);
        assert_eq!(
            tidy(Some(150_000), None),
            [true, true, true, false],
            "the one that was left first"
        );
        assert_eq!(tidy(Some(0), Some(HOUR / 2)), [true, true, false, false]);
        File::open(&open)
            .expect("there")
            .set_modified(SystemTime::now() - 2 * HOUR)
            .expect("writable");
        assert_eq!(
            tidy(None, Some(HOUR)),
            [true, false, false, false],
            "no one knows whether its job has ended"
        );
        drop(at_work);
        leave(&working);
        assert_eq!(unknown(&nodes), [working.as_path()], "its files stay when the agent ends");
    }

    #[test]
    fn job_that_is_open_again_keeps_its_files() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let job = folder.path().join("nodes/node/job");
        let at_work = claim(&job).expect("writable");
        assert!(!remove_unused(&job).expect("readable"), "an agent works on it");
        drop(at_work);
        has_ended(&job).expect("writable");
        let _again = claim(&job).expect("writable");
        assert!(!job.join(ENDED).exists());
        leave(&job);
        assert!(!job.exists(), "nothing is in it");
    }
}
