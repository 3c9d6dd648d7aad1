//! Writing an object of any size with bounded memory. It appears whole when it is finished, or not at all.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use object_store::ObjectStore;
use object_store::buffered::BufWriter;
use object_store::path::Path as ObjectPath;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{Error, Result};

/// Piece in which a file is read.
const READ_BYTES: usize = 1 << 20;
/// What is sent in one request, and how many of them at a time: 32 MiB of memory.
const PART_BYTES: usize = 8 << 20;
const PARTS_AT_ONCE: usize = 4;

/// An object that is being written.
#[derive(Debug)]
pub struct Upload {
    name: String,
    writer: BufWriter,
}

impl Upload {
    /// Into any store. `name` is for messages.
    pub(crate) fn to(store: Arc<dyn ObjectStore>, path: ObjectPath, name: String) -> Self {
        let writer = BufWriter::with_capacity(store, path, PART_BYTES).with_max_concurrency(PARTS_AT_ONCE);
        Self { name, writer }
    }

    /// Appends bytes.
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.writer.put(bytes).await.map_err(|error| Error::from_store(&self.name, error))
    }

    /// Appends a file.
    pub async fn write_file(&mut self, file: &Path) -> Result<()> {
        let local = |error: std::io::Error| Error::unavailable(&file.display().to_string(), error);
        let mut open = tokio::fs::File::open(file).await.map_err(local)?;
        loop {
            let mut piece = bytes::BytesMut::with_capacity(READ_BYTES);
            if open.read_buf(&mut piece).await.map_err(local)? == 0 {
                return Ok(());
            }
            self.write(piece.freeze()).await?;
        }
    }

    /// Makes the object appear.
    pub async fn finish(mut self) -> Result<()> {
        self.writer.shutdown().await.map_err(|error| Error::unavailable(&self.name, error))
    }

    /// Removes what has been sent already.
    pub async fn abort(mut self) {
        // Nothing to do for the caller; who pays for leftovers has them removed by a rule of the bucket.
        let _ = self.writer.abort().await;
    }
}
