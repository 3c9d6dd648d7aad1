//! Checkpoints: results that scripts hand back before an attempt has ended.
//!
//! In a folder, processes write their files themselves. To any other store, a worker uploads a file in pieces, each an
//! object `checkpoints/<mini-batch>/<file>/<offset>`.

use std::path::PathBuf;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::ObjectStore;

use super::JobStore;
use crate::disk::remove_folder;
use crate::{Error, Result};

const FOLDER: &str = "checkpoints";

/// A piece of a checkpoint file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckpointPiece {
    /// The name of the file.
    pub file: String,
    /// The position of the first byte of the piece in the file.
    pub offset: u64,
}

impl JobStore {
    /// Returns the folder of the checkpoints, which may not exist; `None` if the job has no folder.
    pub fn checkpoints_folder(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(FOLDER))
    }

    /// Returns whether any checkpoint exists, in a store without folders.
    pub async fn has_checkpoints(&self) -> Result<bool> {
        self.has_any_below(FOLDER).await
    }

    /// Writes a piece of a file.
    pub async fn put_checkpoint(
        &self,
        mini_batch: u64,
        piece: &CheckpointPiece,
        bytes: Bytes,
    ) -> Result<()> {
        self.put(&name(mini_batch, piece), bytes).await
    }

    /// Returns the stored pieces of a mini-batch, sorted.
    pub async fn checkpoints_of(&self, mini_batch: u64) -> Result<Vec<CheckpointPiece>> {
        let folder = format!("{FOLDER}/{mini_batch}");
        let prefix = self.path(&folder);
        let pieces = self.store.list(Some(&prefix)).try_filter_map(|meta| {
            let parts = meta.location.prefix_match(&prefix);
            let parts =
                parts.map(|parts| parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>());
            let piece = parts.and_then(|parts| match <[String; 2]>::try_from(parts) {
                Ok([file, offset]) => Some(CheckpointPiece { file, offset: offset.parse().ok()? }),
                Err(_) => None,
            });
            async { Ok(piece) }
        });
        let mut pieces: Vec<_> = pieces
            .try_collect()
            .await
            .map_err(|error| Error::from_store(&self.name(&folder), error))?;
        pieces.sort();
        Ok(pieces)
    }

    /// Reads a piece.
    pub async fn checkpoint(&self, mini_batch: u64, piece: &CheckpointPiece) -> Result<Bytes> {
        self.get(&name(mini_batch, piece)).await
    }

    /// Removes the checkpoints of a mini-batch that has succeeded, from a store without folders.
    pub async fn delete_checkpoints_of(&self, mini_batch: u64) -> Result<()> {
        self.delete_below(&format!("{FOLDER}/{mini_batch}")).await
    }

    /// Removes all checkpoints. Later attempts start from the beginning.
    pub async fn delete_checkpoints(&self) -> Result<()> {
        match self.checkpoints_folder() {
            Some(folder) => remove_folder(folder).await,
            None => self.delete_below(FOLDER).await,
        }
    }
}

fn name(mini_batch: u64, CheckpointPiece { file, offset }: &CheckpointPiece) -> String {
    format!("{FOLDER}/{mini_batch}/{file}/{offset:015}")
}
