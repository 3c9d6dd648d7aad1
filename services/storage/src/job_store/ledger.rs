//! Segments of the ledger, and the removal of history once a job has ended.
//!
//! A segment has its records, followed by their digest. The digest reveals a segment that a power cut has truncated at
//! any place, or that something has changed.

use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use object_store::PutPayload;

use super::{JobStore, optional};
use crate::create::Commit;
use crate::disk::{blocking, unless_absent};
use crate::{Error, Result, disk};

const DIGEST_BYTES: usize = 16;

impl JobStore {
    /// Commits a ledger segment whose records are the concatenation of these pieces. `Lost` means that another reducer
    /// has committed the segment, whose records are just as valid.
    pub async fn commit_segment(&self, sequence: u64, mut pieces: Vec<Bytes>) -> Result<Commit> {
        pieces.push(digest(&pieces));
        let segment: PutPayload = pieces.into_iter().collect();
        self.commits.create(&ledger_segment(sequence), segment).await
    }

    /// Replaces a damaged ledger segment. The caller must be the only reducer of the job.
    pub async fn replace_segment(&self, sequence: u64, records: Bytes) -> Result<()> {
        let digest = digest(std::slice::from_ref(&records));
        self.commits.put(&ledger_segment(sequence), [records, digest].concat()).await
    }

    /// Reads the records of a ledger segment. Returns `None` if it was never committed, so that the ledger ends before
    /// it. Fails with [`Error::Damaged`] if it differs from the committed one.
    pub async fn segment(&self, sequence: u64) -> Result<Option<Bytes>> {
        let name = ledger_segment(sequence);
        let Some(bytes) = optional(self.objects.get(&name).await)? else { return Ok(None) };
        match records_of(&bytes) {
            Some(records) => Ok(Some(records)),
            None => Err(Error::damaged(self.objects.name(&name), "it was truncated or changed")),
        }
    }

    /// Reads a range of bytes of a ledger segment.
    pub async fn segment_range(&self, sequence: u64, range: Range<u64>) -> Result<Bytes> {
        self.objects.range(&ledger_segment(sequence), range).await
    }

    /// Reads several ranges of bytes of a ledger segment. Ranges that are near each other share a read.
    pub async fn segment_ranges(&self, sequence: u64, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let name = ledger_segment(sequence);
        let read = self.objects.store.get_ranges(&self.objects.path(&name), ranges).await;
        read.map_err(|error| Error::from_store(&self.objects.name(&name), error))
    }

    /// Returns the file of a ledger segment of a local job.
    pub fn segment_file(&self, sequence: u64) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(ledger_segment(sequence)))
    }

    /// Removes the ledger and the descriptors of the plan, which only a continuation of the job needs. Does so only for
    /// a local job, which has no other reducer.
    pub async fn delete_history(&self) -> Result<()> {
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        blocking(move || {
            let plan = folder.join("plan");
            let entries = std::fs::read_dir(&plan)
                .map_err(|error| Error::unavailable(&plan.display().to_string(), error))?;
            let is_chunk = |path: &PathBuf| {
                path.file_name()
                    .is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit))
            };
            let mut removed: Vec<PathBuf> =
                entries.flatten().map(|entry| entry.path()).filter(is_chunk).collect();
            removed.push(folder.join("ledger"));
            remove_after_result(&folder, &removed)
        })
        .await
    }
}

/// Forces the result of a job to disk, then removes files and folders. In another order, a power cut could leave
/// neither. Blocks.
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

/// Returns the records of a segment; `None` if it differs from the committed one.
pub fn records_of(segment: &Bytes) -> Option<Bytes> {
    let records = segment.slice(..segment.len().checked_sub(DIGEST_BYTES)?);
    (digest(std::slice::from_ref(&records)) == segment[records.len()..]).then_some(records)
}

/// Returns the digest of the records of a segment.
fn digest(pieces: &[Bytes]) -> Bytes {
    let mut hasher = blake3::Hasher::new();
    pieces.iter().for_each(|piece| {
        hasher.update(piece);
    });
    Bytes::copy_from_slice(&hasher.finalize().as_bytes()[..DIGEST_BYTES])
}

fn ledger_segment(sequence: u64) -> String {
    format!("ledger/{sequence:010}")
}
