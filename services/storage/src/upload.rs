//! Writes an object of any size with bounded memory. It appears complete once it is finished, or not at all.
//!
//! S3 can append other objects itself, without transferring them to this process.

mod s3;

use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use object_store::buffered::BufWriter;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use url::Url;

use crate::stores::shown;
use crate::{Error, Result, Stores};
pub(crate) use s3::{Failed, S3Object, S3Upload};

/// Size of the pieces in which a file is read.
const READ_BYTES: usize = 1 << 20;
/// Minimum size of a request, and number of concurrent requests: 32 MiB of memory, more only for objects of
/// more than 70 GiB.
const PART_BYTES: u64 = 8 << 20;
const PARTS_AT_ONCE: usize = 4;
/// Stores allow 10 000 parts per upload.
const PARTS_MAX: u64 = 9000;

/// An object that is being written.
#[derive(Debug)]
pub struct Upload {
    name: String,
    into: Into,
}

#[derive(Debug)]
enum Into {
    Any(BufWriter),
    S3(S3Upload),
}

impl Stores {
    /// Begins to write an object of about `bytes_expected`; a far larger one may fail.
    pub async fn upload(&self, url: &str, bytes_expected: u64) -> Result<Upload> {
        let url = Url::parse(url).map_err(|error| Error::unavailable(url, error))?;
        let name = shown(&url);
        if let Some(place) = S3Object::of(&url) {
            let upload = S3Upload::new(self.aws().await?.s3(), place, name.clone(), bytes_expected);
            return Ok(Upload { name, into: Into::S3(upload) });
        }
        let (store, path) = self.open(&url).await?;
        Ok(Upload::to(store, path, name, bytes_expected))
    }

    /// Returns whether an object exists.
    pub async fn exists(&self, url: &str) -> Result<bool> {
        let url = Url::parse(url).map_err(|error| Error::unavailable(url, error))?;
        let (store, path) = self.open(&url).await?;
        match store.head(&path).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(Error::from_store(&shown(&url), error)),
        }
    }
}

impl Upload {
    /// Begins an upload to any store. `name` is for messages.
    pub(crate) fn to(store: Arc<dyn ObjectStore>, path: ObjectPath, name: String, bytes_expected: u64) -> Self {
        let part_bytes = PART_BYTES.max(bytes_expected / PARTS_MAX + 1);
        let part_bytes = usize::try_from(part_bytes).expect("64-bit machine");
        let writer = BufWriter::with_capacity(store, path, part_bytes).with_max_concurrency(PARTS_AT_ONCE);
        Self { name, into: Into::Any(writer) }
    }

    /// Appends bytes.
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        match &mut self.into {
            Into::Any(writer) => writer.put(bytes).await.map_err(|error| Error::from_store(&self.name, error)),
            Into::S3(upload) => upload.write(&bytes).await,
        }
    }

    /// Uploads a local file.
    pub(crate) async fn file(store: Arc<dyn ObjectStore>, path: ObjectPath, name: String, file: &Path) -> Result<()> {
        let local = |error: std::io::Error| Error::unavailable(&file.display().to_string(), error);
        let mut open = tokio::fs::File::open(file).await.map_err(local)?;
        let bytes = open.metadata().await.map_err(local)?.len();
        let mut upload = Self::to(store, path, name, bytes);
        let written = loop {
            let mut piece = BytesMut::with_capacity(READ_BYTES);
            match open.read_buf(&mut piece).await.map_err(local) {
                Ok(0) => break Ok(()),
                Ok(_) => {
                    if let Err(error) = upload.write(piece.freeze()).await {
                        break Err(error);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        match written {
            Ok(()) => upload.finish().await,
            Err(error) => {
                upload.abort().await;
                Err(error)
            }
        }
    }

    /// Returns the upload to S3, which can copy other objects there; `None` for other stores.
    pub(crate) fn s3(&mut self) -> Option<&mut S3Upload> {
        match &mut self.into {
            Into::Any(_) => None,
            Into::S3(upload) => Some(upload),
        }
    }

    /// Makes the object appear.
    pub async fn finish(self) -> Result<()> {
        match self.into {
            Into::Any(mut writer) => writer.shutdown().await.map_err(|error| Error::from_io(&self.name, error)),
            Into::S3(upload) => upload.finish().await,
        }
    }

    /// Removes the parts sent so far. If that fails, the writer that finishes the object removes them.
    pub async fn abort(self) {
        match self.into {
            Into::Any(mut writer) => drop(writer.abort().await),
            Into::S3(upload) => upload.abort().await,
        }
    }
}
