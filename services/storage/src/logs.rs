//! The log tree of a job, into which every role writes files for people.

use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use object_store::ObjectMeta;

use crate::{JobStore, Result};

/// The size of the largest log that a node uploads completely. Of a larger one it uploads only the beginning and the
/// end.
pub const UPLOADED_LOG_BYTES_MAX: u64 = 16 << 20;
/// The size of that beginning.
pub const UPLOADED_LOG_BEGINNING_BYTES: u64 = 1 << 20;

/// One file of the log tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogFile {
    /// The path relative to `logs/`, such as `user/stdout/0/process000.stdout.txt`.
    pub path: String,
    /// The size.
    pub bytes: u64,
}

impl JobStore {
    /// Writes or replaces a file of the log tree; `path` is relative to `logs/`.
    pub async fn put_log(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.objects.put(&format!("logs/{path}"), bytes).await
    }

    /// Writes a file of the log tree, of any size, from a local file.
    pub async fn put_log_file(&self, path: &str, file: &Path) -> Result<()> {
        self.objects.put_file(&format!("logs/{path}"), file).await
    }

    /// Works like [`put_log_file`](Self::put_log_file) for a local file that is no longer needed. If the file is on the
    /// disk of the store, moves it instead of copying it.
    pub async fn move_log_file(&self, path: &str, file: &Path) -> Result<()> {
        if let Some(log) = self.folder().map(|folder| folder.join("logs").join(path)) {
            let folder = log.parent().expect("in a folder");
            // The disk of the store may have gone.
            if self.folder().is_some_and(|job| job.is_dir())
                && tokio::fs::create_dir_all(folder).await.is_ok()
                && tokio::fs::rename(file, &log).await.is_ok()
            {
                return Ok(());
            }
        }
        self.put_log_file(path, file).await
    }

    /// Reads a file of the log tree.
    pub async fn log(&self, path: &str) -> Result<Bytes> {
        self.objects.get(&format!("logs/{path}")).await
    }

    /// Reads a range of bytes of a file of the log tree, which must be within the file.
    pub async fn log_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        self.objects.range(&format!("logs/{path}"), range).await
    }

    /// Returns all files of the log tree, sorted by path.
    pub async fn logs(&self) -> Result<Vec<LogFile>> {
        let (listed, prefix) = (self.objects.list("logs").await?, self.objects.path("logs"));
        let file = |meta: ObjectMeta| {
            let parts = meta.location.prefix_match(&prefix)?.map(|part| part.as_ref().to_owned());
            let path = parts.collect::<Vec<_>>().join("/");
            (!path.is_empty()).then_some(LogFile { path, bytes: meta.size })
        };
        let mut files: Vec<_> = listed.into_iter().filter_map(file).collect();
        files.sort();
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use object_store::path::Path as ObjectPath;

    use super::*;

    #[tokio::test]
    async fn local_log_file_is_moved_within_a_disk() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let job = folder.path().join("job");
        std::fs::create_dir(&job).expect("fresh");
        let local = JobStore::local(&job).expect("folder exists");
        let remote = JobStore::new(Arc::new(InMemory::new()), ObjectPath::from("jobs/one"));
        for (store, is_moved) in [(local, true), (remote, false)] {
            let file = folder.path().join("report.csv");
            std::fs::write(&file, "a,b\n").expect("writable");
            store.put_log("sys/report.csv", Bytes::from_static(b"former")).await.expect("writable");
            store.move_log_file("sys/report.csv", &file).await.expect("writable");
            assert_eq!(&store.log("sys/report.csv").await.expect("readable")[..], b"a,b\n");
            assert_eq!(!file.exists(), is_moved);
        }
    }
}
