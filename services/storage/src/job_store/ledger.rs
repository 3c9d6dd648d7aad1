//! Segments of the ledger, and the removal of history once a job has ended.

use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::{JobStore, optional};
use crate::create::Commit;
use crate::disk::{blocking, unless_absent};
use crate::{Error, Result, disk};

impl JobStore {
    /// Commits a ledger segment: the concatenation of these pieces. `Lost` means that another reducer has committed it;
    /// its records are just as valid.
    pub async fn commit_segment(&self, sequence: u64, pieces: Vec<Bytes>) -> Result<Commit> {
        self.create(&ledger_segment(sequence), pieces.into_iter().collect()).await
    }

    /// Replaces a ledger segment with its readable part. Only if no other reducer serves the job.
    pub async fn replace_segment(&self, sequence: u64, records: Bytes) -> Result<()> {
        self.commit(&ledger_segment(sequence), records).await
    }

    /// Reads a ledger segment. Returns `None` if it was never committed, so that the ledger ends before it.
    pub async fn segment(&self, sequence: u64) -> Result<Option<Bytes>> {
        optional(self.get(&ledger_segment(sequence)).await)
    }

    /// Reads a range of bytes of a ledger segment.
    pub async fn segment_range(&self, sequence: u64, range: Range<u64>) -> Result<Bytes> {
        self.range(&ledger_segment(sequence), range).await
    }

    /// Reads several ranges of bytes of a ledger segment. Ranges that are near each other share a read.
    pub async fn segment_ranges(&self, sequence: u64, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let name = ledger_segment(sequence);
        let read = self.store.get_ranges(&self.path(&name), ranges).await;
        read.map_err(|error| Error::from_store(&self.name(&name), error))
    }

    /// Returns the file of a ledger segment of a local job.
    pub fn segment_file(&self, sequence: u64) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(ledger_segment(sequence)))
    }

    /// Removes the ledger and the descriptors of the plan, which only the continuation of a job needs.
    /// Only for a local job, which no other reducer reads.
    pub async fn delete_history(&self) -> Result<()> {
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        blocking(move || {
            let plan = folder.join("plan");
            let entries =
                std::fs::read_dir(&plan).map_err(|error| Error::unavailable(&plan.display().to_string(), error))?;
            let is_chunk = |path: &PathBuf| {
                path.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit))
            };
            let mut removed: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_chunk).collect();
            removed.push(folder.join("ledger"));
            remove_after_result(&folder, &removed)
        })
        .await
    }
}

/// Forces the result of a job to disk, then removes files and folders: otherwise a power cut could leave neither. For a thread
/// that may block.
pub(super) fn remove_after_result(folder: &Path, paths: &[PathBuf]) -> Result<()> {
    if !paths.iter().any(|path| path.exists()) {
        return Ok(());
    }
    for path in [&folder.join("result.json"), folder] {
        unless_absent(disk::sync(path), path)?;
    }
    paths.iter().try_for_each(|path| match path.is_dir() {
        true => unless_absent(std::fs::remove_dir_all(path), path),
        false => unless_absent(std::fs::remove_file(path), path),
    })
}

fn ledger_segment(sequence: u64) -> String {
    format!("ledger/{sequence:010}")
}
