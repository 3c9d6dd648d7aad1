//! Item checkpoints: results that scripts hand back before their attempt has ended.
//!
//! Python processes write and read them (`python/package/gristmill/checkpoints.py`): one folder for each mini-batch, and
//! in it one file for each attempt that has handed anything back. This node only decides where that folder is, and
//! removes the checkpoints of a mini-batch once its success is announced.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use storage::JobStore;

/// The checkpoints of one job on one node.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: Arc<Path>,
}

impl Checkpoints {
    /// Keeps checkpoints in the folder of the job, where every node finds them, or on this node if the job has none.
    pub fn new(store: &JobStore, work_folder: &Path) -> Self {
        let folder = store.checkpoints_folder().unwrap_or_else(|| work_folder.join("checkpoints"));
        Self { folder: folder.into() }
    }

    /// The folder, which exists once a script has handed something back.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes what is kept of mini-batches that have succeeded. What stays after an error goes with the job.
    pub async fn remove(&self, mini_batches: &[u64]) {
        if mini_batches.is_empty() {
            return;
        }
        let folders: Vec<PathBuf> =
            mini_batches.iter().map(|mini_batch| self.folder.join(mini_batch.to_string())).collect();
        let remove = move || folders.iter().for_each(|folder| drop(std::fs::remove_dir_all(folder)));
        let _ = tokio::task::spawn_blocking(remove).await;
    }
}
