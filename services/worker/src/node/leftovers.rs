//! Locks the folder of a node, and removes the files of killed workers of this machine that would
//! fill the disk: downloads of inputs, and checkpoints. The limits of the caches apply to logs and
//! files of user code.

use std::fs::{DirEntry, File};
use std::io;
use std::path::Path;

use crate::cache::files::{self, LOCK};
use crate::job_users::{HOME, TEMPORARY};
use crate::scratch;

/// The folders of a job that are useless once the worker has ended.
pub(super) const SCRAPS: [&str; 4] = ["inputs", "checkpoints", HOME, TEMPORARY];

/// Marks a folder as that of a living worker, until the file is dropped.
pub(super) fn claim(folder: &Path) -> io::Result<File> {
    std::fs::create_dir_all(folder)?;
    let lock = File::create(folder.join(LOCK))?;
    // Another worker may have the same name.
    let _ = lock.try_lock();
    Ok(lock)
}

/// Removes the files of killed workers in `nodes`.
pub(super) fn clear(nodes: &Path) {
    for folder in entries(nodes).map(|entry| entry.path()) {
        let Ok(lock) = File::open(folder.join(LOCK)) else { continue };
        if lock.try_lock().is_err() {
            continue;
        }
        for job in entries(&folder).map(|entry| entry.path()).filter(|path| path.is_dir()) {
            for name in SCRAPS {
                let _ = std::fs::remove_dir_all(job.join(name));
            }
            entries(&job.join("scratch")).for_each(|entry| scratch::remove(&entry.path()));
            let _ = std::fs::remove_dir(job.join("scratch"));
            files::leave(&job);
        }
        files::leave(&folder);
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = DirEntry> {
    std::fs::read_dir(folder).into_iter().flatten().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scraps_of_dead_workers_are_removed() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let nodes = folder.path().join("nodes");
        let write = |name: &str| {
            let path = nodes.join(name);
            std::fs::create_dir_all(path.parent().expect("has a folder")).expect("writable");
            std::fs::write(path, "text").expect("writable");
        };
        let living = claim(&nodes.join("living")).expect("writable");
        drop(claim(&nodes.join("dead")).expect("writable"));
        drop(claim(&nodes.join("empty")).expect("writable"));
        for name in [
            "living/job/inputs/a",
            "dead/job/inputs/a",
            "dead/job/scratch/process000/mine",
            "old/job/inputs/a",
        ] {
            write(name);
        }
        write("empty/job/checkpoints/a");
        clear(&nodes);
        let exists = |name: &str| nodes.join(name).exists();
        assert!(exists("living/job/inputs/a") && exists("old/job/inputs/a") && !exists("empty"));
        assert!(!exists("dead/job/inputs") && exists("dead/job/scratch/process000/mine"));
        drop(living);
        clear(&nodes);
        assert!(!exists("living"));
    }
}
