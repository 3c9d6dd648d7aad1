//! Parts: the rows of one attempt, if they are too large for a message. Parts and chunks of the plan have no checksums:
//! a part counts as complete if it has the length that the ledger records.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::TryStreamExt;
use futures::stream::BoxStream;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use protocol::Durability;
use url::Url;

use super::JobStore;
use super::ledger::remove_after_result;
use crate::disk::blocking;
use crate::upload::{S3Object, Upload};
use crate::{Error, Result, disk};

/// A part that is being read.
pub struct PartStream {
    bytes: u64,
    object: String,
    pieces: BoxStream<'static, object_store::Result<Bytes>>,
}

impl JobStore {
    /// Writes a part. Its name is unique to the attempt, so it overwrites no other part. Before a worker announces
    /// parts, it calls [`commit_parts`](Self::commit_parts) once for all of them.
    pub async fn put_part(&self, name: &str, rows: Bytes) -> Result<()> {
        self.objects.put(&part(name), rows).await
    }

    /// Makes all written parts as durable as the job requires. One call for many parts forces to disk everything that
    /// the file system of the job's folder holds in memory.
    pub async fn commit_parts(&self) -> Result<()> {
        let Some(folder) = self.folder.as_ref().filter(|_| self.durability == Durability::Full)
        else {
            return Ok(());
        };
        let parts = folder.join("parts");
        let object = parts.display().to_string();
        let forced = blocking(move || disk::sync_file_system(&parts)).await;
        forced.map_err(|error| Error::unavailable(&object, error))
    }

    /// Reads a part.
    pub async fn part(&self, name: &str) -> Result<Bytes> {
        self.objects.get(&part(name)).await
    }

    /// Reads a part piece by piece.
    pub async fn part_stream(&self, name: &str) -> Result<PartStream> {
        let (object, path) = (self.objects.name(&part(name)), self.objects.path(&part(name)));
        let read = self.objects.store.get(&path).await;
        let read = read.map_err(|error| Error::from_store(&object, error))?;
        Ok(PartStream { bytes: read.meta.size, object, pieces: read.into_stream() })
    }

    /// Returns the numbers of the parts that are missing or truncated. Each of `parts` is a number, a name and a size
    /// in bytes.
    pub async fn lost_parts<'a>(
        &self,
        parts: impl Iterator<Item = (u64, &'a str, u64)>,
    ) -> Result<Vec<u64>> {
        if self.folder.is_some() {
            let file_bytes = |file: &Path| file.metadata().ok().map(|found| found.len());
            let is_lost = |name: &str, bytes: u64| {
                self.part_file(name).is_none_or(|file| file_bytes(&file) != Some(bytes))
            };
            return Ok(parts
                .filter(|(_, name, bytes)| is_lost(name, *bytes))
                .map(|(number, ..)| number)
                .collect());
        }
        // The parts that the listing has not shown yet. The listing is streamed, because it may have millions of
        // objects.
        let mut sought: HashMap<Cow<'a, str>, (u64, u64)> =
            parts.map(|(number, name, bytes)| (stored(name), (number, bytes))).collect();
        if sought.is_empty() {
            return Ok(Vec::new());
        }
        let folder = self.objects.path("parts");
        let below = format!("{folder}/");
        let mut listed = self.objects.store.list(Some(&folder));
        let unlisted = |error| Error::from_store(&self.objects.name("parts"), error);
        while let Some(meta) = listed.try_next().await.map_err(unlisted)? {
            let name = meta.location.as_ref().strip_prefix(&below).unwrap_or_default();
            if sought.get(name).is_some_and(|(_, bytes)| *bytes == meta.size) {
                sought.remove(name);
            }
        }
        let mut lost: Vec<u64> = sought.into_values().map(|(number, _)| number).collect();
        lost.sort_unstable();
        Ok(lost)
    }

    /// Returns the file of a part of a local job.
    pub fn part_file(&self, name: &str) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(ObjectPath::from(part(name)).as_ref()))
    }

    /// Removes all parts, which are no longer needed once the final file and the result exist. For a local job, forces
    /// the result to disk first, because a power cut could otherwise leave neither.
    pub async fn delete_parts(&self) -> Result<()> {
        if let Some(folder) = &self.folder {
            let folder = folder.clone();
            return blocking(move || remove_after_result(&folder, &[folder.join("parts")])).await;
        }
        self.objects.delete_all("parts").await
    }
}

impl PartStream {
    /// Returns the size of the part.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads the next piece. Returns `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        self.pieces.try_next().await.map_err(|error| Error::from_store(&self.object, error))
    }
}

impl Upload {
    /// Appends a part of a job, which must have this size. If both are on S3 and the part is large enough, S3 copies
    /// it.
    pub async fn write_part(&mut self, job: &JobStore, name: &str, bytes: u64) -> Result<()> {
        let object = part(name);
        if let Ok(url) = Url::parse(&job.objects.url)
            && let Some(folder) = S3Object::of(&url)
            && let Some(head) = self.bytes_before_copy(bytes)
        {
            if head > 0 {
                self.write(job.objects.range(&object, 0..head).await?).await?;
            }
            self.copy(&folder.join(&object), head..bytes).await?;
        } else if bytes > 0 {
            let mut part = job.part_stream(name).await?;
            if part.bytes() != bytes {
                let message = format!("it has {} bytes instead of {bytes}", part.bytes());
                return Err(Error::damaged(format!("part {name}"), message));
            }
            while let Some(piece) = part.next().await? {
                self.write(piece).await?;
            }
        }
        Ok(())
    }
}

fn part(name: &str) -> String {
    format!("parts/{name}")
}

/// Returns the name of a part as listings show it: with the characters encoded that stores do not allow.
fn stored(name: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match name.bytes().all(is_plain) && ![".", ".."].contains(&name) {
        true => Cow::Borrowed(name),
        false => Cow::Owned(ObjectPath::from(name).into()),
    }
}
