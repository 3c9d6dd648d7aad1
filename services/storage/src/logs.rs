//! The log tree of a job, where every role puts what people read.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::ObjectStore;

use crate::{Error, JobStore, Result, Upload};

/// One file of the log tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogFile {
    /// Relative to `logs/`: `user/stdout/0/process000.stdout.txt`.
    pub path: String,
    /// Size.
    pub bytes: u64,
}

impl JobStore {
    /// Writes a file of the log tree; `path` is relative to `logs/`. Replaces the former one.
    pub async fn put_log(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.put(&format!("logs/{path}"), bytes).await
    }

    /// Writes a file of the log tree, of any size, from a local one.
    pub async fn put_log_file(&self, path: &str, file: &Path) -> Result<()> {
        let name = format!("logs/{path}");
        Upload::file(Arc::clone(&self.store), self.path(&name), self.name(&name), file).await
    }

    /// Reads a file of the log tree.
    pub async fn log(&self, path: &str) -> Result<Bytes> {
        self.get(&format!("logs/{path}")).await
    }

    /// Every file of the log tree, by path.
    pub async fn logs(&self) -> Result<Vec<LogFile>> {
        let prefix = self.path("logs");
        let files = self.store.list(Some(&prefix)).try_filter_map(|meta| {
            let path = meta.location.prefix_match(&prefix).map(|parts| {
                let parts: Vec<_> = parts.map(|part| part.as_ref().to_owned()).collect();
                parts.join("/")
            });
            let file = path.filter(|path| !path.is_empty()).map(|path| LogFile { path, bytes: meta.size });
            async { Ok(file) }
        });
        let mut files: Vec<_> =
            files.try_collect().await.map_err(|error| Error::from_store(&self.name("logs"), error))?;
        files.sort();
        Ok(files)
    }
}
