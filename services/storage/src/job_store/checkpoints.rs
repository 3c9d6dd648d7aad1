//! Checkpoints: results that scripts hand back before an attempt has ended.
//!
//! In a folder, processes write their files themselves. To any other store, a worker uploads a file in pieces, each an
//! object `checkpoints/<mini-batch>/<file>/<offset>`.

use std::path::PathBuf;

use bytes::Bytes;
use object_store::ObjectMeta;

use super::JobStore;
use crate::Result;
use crate::disk::remove_folder;

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
        self.objects.has_any(FOLDER).await
    }

    /// Writes a piece of a file.
    pub async fn put_checkpoint(
        &self,
        mini_batch: u64,
        piece: &CheckpointPiece,
        bytes: Bytes,
    ) -> Result<()> {
        self.objects.put(&name(mini_batch, piece), bytes).await
    }

    /// Returns the stored pieces of a mini-batch, sorted.
    pub async fn checkpoints_of(&self, mini_batch: u64) -> Result<Vec<CheckpointPiece>> {
        let folder = format!("{FOLDER}/{mini_batch}");
        let (listed, prefix) = (self.objects.list(&folder).await?, self.objects.path(&folder));
        let piece = |meta: ObjectMeta| {
            let parts = meta.location.prefix_match(&prefix)?.map(|part| part.as_ref().to_owned());
            let [file, offset] = <[String; 2]>::try_from(parts.collect::<Vec<_>>()).ok()?;
            Some(CheckpointPiece { file, offset: offset.parse().ok()? })
        };
        let mut pieces: Vec<_> = listed.into_iter().filter_map(piece).collect();
        pieces.sort();
        Ok(pieces)
    }

    /// Reads a piece.
    pub async fn checkpoint(&self, mini_batch: u64, piece: &CheckpointPiece) -> Result<Bytes> {
        self.objects.get(&name(mini_batch, piece)).await
    }

    /// Removes the checkpoints of a mini-batch that has succeeded, from a store without folders.
    pub async fn delete_checkpoints_of(&self, mini_batch: u64) -> Result<()> {
        self.objects.delete_all(&format!("{FOLDER}/{mini_batch}")).await
    }

    /// Removes all checkpoints. Later attempts start from the beginning.
    pub async fn delete_checkpoints(&self) -> Result<()> {
        match self.checkpoints_folder() {
            Some(folder) => remove_folder(folder).await,
            None => self.objects.delete_all(FOLDER).await,
        }
    }
}

fn name(mini_batch: u64, CheckpointPiece { file, offset }: &CheckpointPiece) -> String {
    format!("{FOLDER}/{mini_batch}/{file}/{offset:015}")
}
