//! Checkpoints: results that scripts hand back before an attempt has ended.

use std::path::PathBuf;

use futures::TryStreamExt;
use object_store::ObjectStore;

use super::JobStore;
use crate::{Error, Result};

const FOLDER: &str = "checkpoints";

impl JobStore {
    /// Returns the folder of the checkpoints, which may not exist. `None`: the job has no folder.
    pub fn checkpoints_folder(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(FOLDER))
    }

    /// Removes all checkpoints. No attempt continues from them any more.
    pub async fn delete_checkpoints(&self) -> Result<()> {
        if let Some(folder) = self.checkpoints_folder() {
            return match std::fs::remove_dir_all(&folder) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(Error::unavailable(&folder.display().to_string(), error))
                }
                _ => Ok(()),
            };
        }
        let objects = self.store.list(Some(&self.path(FOLDER))).map_ok(|meta| meta.location);
        let deleted = self.store.delete_stream(Box::pin(objects)).try_for_each(|_| async { Ok(()) }).await;
        match deleted {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(Error::from_store(&self.name(FOLDER), error)),
        }
    }
}
