//! Uploads the logs of a job whose store is not a folder, while the job runs. The node writes them
//! to its disk first.
//!
//! Objects cannot be appended to, so the node uploads a growing file as a whole, and ever more rarely. When it leaves the
//! job, it uploads what has changed since.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rustix::fs::OFlags;
use storage::{JobStore, UPLOADED_LOG_BEGINNING_BYTES, UPLOADED_LOG_BYTES_MAX};
use tokio::time::{Instant, sleep};

use crate::job_users;

/// The longest time between two uploads of a growing file.
const PAUSE_MAX: Duration = Duration::from_secs(120);
/// Most files in one round.
const FILES_MAX: usize = 256;

/// The log tree of one job on this node.
pub(super) struct LogUpload {
    folder: PathBuf,
    store: JobStore,
    period: Duration,
    uploaded: HashMap<PathBuf, Uploaded>,
}

struct Uploaded {
    bytes: u64,
    modified: SystemTime,
    /// When the file may be uploaded again, and the pause after that.
    next: Instant,
    pause: Duration,
}

impl LogUpload {
    pub(super) fn new(folder: PathBuf, store: JobStore, period: Duration) -> Self {
        Self { folder, store, period, uploaded: HashMap::new() }
    }

    /// Uploads changes until it is dropped.
    pub(super) async fn keep(&mut self) {
        loop {
            sleep(self.period).await;
            self.round(false).await;
        }
    }

    /// Uploads changed files: those that are due, or all of them in the last round. Stops at an
    /// error of the store.
    pub(super) async fn round(&mut self, is_last: bool) {
        let (folder, now) = (self.folder.clone(), Instant::now());
        let files = tokio::task::spawn_blocking(move || files(&folder)).await.unwrap_or_default();
        let is_due =
            |(path, bytes, modified): &(PathBuf, u64, SystemTime)| match self.uploaded.get(path) {
                None => true,
                Some(last) => {
                    (last.bytes, last.modified) != (*bytes, *modified)
                        && (is_last || last.next <= now)
                }
            };
        let due: Vec<_> = files.into_iter().filter(is_due).collect();
        for (path, bytes, modified) in
            due.into_iter().take(if is_last { usize::MAX } else { FILES_MAX })
        {
            let Some(name) = name(&self.folder, &path) else { continue };
            let read = tokio::task::spawn_blocking({
                let path = path.clone();
                move || read(&path)
            });
            let Ok(Ok(content)) = read.await else { continue };
            if let Err(error) = self.store.put_log(&name, content).await {
                tracing::warn!("cannot upload a log: {error:#}");
                // The store does not answer; the next round retries.
                return;
            }
            let pause = self
                .uploaded
                .get(&path)
                .map_or(self.period, |last| (last.pause * 2).min(PAUSE_MAX));
            self.uploaded.insert(path, Uploaded { bytes, modified, next: now + pause, pause });
        }
    }
}

fn name(folder: &Path, path: &Path) -> Option<String> {
    let parts: Option<Vec<&str>> = path
        .strip_prefix(folder)
        .ok()?
        .components()
        .map(|part| part.as_os_str().to_str())
        .collect();
    Some(parts?.join("/"))
}

fn files(folder: &Path) -> Vec<(PathBuf, u64, SystemTime)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            // Links could lead anywhere.
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => folders.push(entry.path()),
                Ok(metadata) if metadata.is_file() && metadata.len() > 0 => {
                    found.push((
                        entry.path(),
                        metadata.len(),
                        metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                    ));
                }
                _ => {}
            }
        }
    }
    found
}

fn read(path: &Path) -> std::io::Result<Bytes> {
    let mut file = job_users::open(path, OFlags::RDONLY)?;
    let bytes = file.metadata()?.len();
    let mut content = Vec::new();
    if bytes <= UPLOADED_LOG_BYTES_MAX {
        file.read_to_end(&mut content)?;
        return Ok(content.into());
    }
    file.by_ref().take(UPLOADED_LOG_BEGINNING_BYTES).read_to_end(&mut content)?;
    let end_bytes = UPLOADED_LOG_BYTES_MAX - UPLOADED_LOG_BEGINNING_BYTES;
    let left_out = bytes - UPLOADED_LOG_BEGINNING_BYTES - end_bytes;
    content.extend_from_slice(format!("\n[{left_out} bytes are left out here]\n").as_bytes());
    file.seek(SeekFrom::Start(bytes - end_bytes))?;
    file.take(end_bytes).read_to_end(&mut content)?;
    Ok(content.into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn changed_log_is_uploaded_at_growing_intervals_and_at_the_end() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("user/stdout/0/process000.stdout.txt");
        std::fs::create_dir_all(file.parent().expect("it has one")).expect("writable");
        let store = JobStore::new(Arc::new(InMemory::new()), "jobs/job".into());
        let period = Duration::from_secs(5);
        let mut upload = LogUpload::new(folder.path().to_owned(), store.clone(), period);
        let write = |text: &str| std::fs::write(&file, text).expect("writable");
        let uploaded = || async { store.log("user/stdout/0/process000.stdout.txt").await.ok() };

        write("one");
        upload.round(false).await;
        assert_eq!(uploaded().await.as_deref(), Some(&b"one"[..]));
        write("one two");
        upload.round(false).await;
        assert_eq!(uploaded().await.as_deref(), Some(&b"one"[..]), "it is too early");
        tokio::time::advance(period).await;
        upload.round(false).await;
        assert_eq!(uploaded().await.as_deref(), Some(&b"one two"[..]));
        write("one two three");
        upload.round(true).await;
        assert_eq!(uploaded().await.as_deref(), Some(&b"one two three"[..]));
    }

    #[test]
    fn large_file_keeps_its_beginning_and_end() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("log.txt");
        let mut content = b"begin".to_vec();
        content.resize(UPLOADED_LOG_BYTES_MAX as usize + 1000, b'x');
        content.extend_from_slice(b"end");
        std::fs::write(&path, &content).expect("writable");
        let read = read(&path).expect("readable");
        assert!(read.starts_with(b"begin") && read.ends_with(b"end") && read.len() < content.len());
        let text = String::from_utf8_lossy(&read);
        assert!(text.contains("\n[1003 bytes are left out here]\n"));
    }
}
