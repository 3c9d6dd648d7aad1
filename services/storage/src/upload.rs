//! Writes an object of any size with bounded memory. The object appears complete once it is finished, or not at all.
//!
//! S3 can append other objects without sending them through this process.

mod any;
mod s3;

use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::io::AsyncReadExt;

use crate::remote::parsed;
use crate::stores::shown;
use crate::{Error, Result, Stores};
use any::AnyUpload;
pub(crate) use s3::{S3Object, S3Upload};

/// The size of the pieces in which a file is read.
const READ_BYTES: usize = 1 << 20;
/// The smallest size of a part, except the last one. With four parts in flight this takes 32 MiB of memory, and more
/// only for objects of more than 35 GiB.
const PART_BYTES: u64 = 8 << 20;
/// The number of concurrent requests.
const PARTS_AT_ONCE: usize = 4;
/// The largest number of parts of an object that is as large as expected. It has up to twice as many if S3 copies half
/// of them. Stores allow 10 000 parts per upload.
const PARTS_EXPECTED: u64 = 4500;
/// The number of parts with the same size. After them the size doubles every [`PARTS_UNTIL_DOUBLE`] parts, because an
/// object may be far larger than expected, such as text that is longer than the tables from which it is made.
const EQUAL_PARTS: u64 = 5000;
const PARTS_UNTIL_DOUBLE: u64 = 1000;
/// The largest part that stores allow.
const PART_BYTES_MAX: u64 = 5 << 30;

/// An object that is being written.
#[derive(Debug)]
pub struct Upload {
    name: String,
    sink: Sink,
}

#[derive(Debug)]
enum Sink {
    Any(AnyUpload),
    S3(S3Upload),
}

impl Stores {
    /// Begins an upload of an object of about `bytes_expected`. It may fail if the object becomes more than 12 times as
    /// large, and larger than 480 GiB.
    pub async fn upload(&self, url: &str, bytes_expected: u64) -> Result<Upload> {
        let url = parsed(url)?;
        let name = shown(&url);
        if let Some(object) = S3Object::of(&url) {
            let upload =
                S3Upload::new(self.aws().await?.s3(), object, name.clone(), bytes_expected);
            return Ok(Upload { name, sink: Sink::S3(upload) });
        }
        let (store, path) = self.open(&url).await?;
        Ok(Upload::to(store, path, name, bytes_expected))
    }

    /// Returns whether an object exists.
    pub async fn exists(&self, url: &str) -> Result<bool> {
        let url = parsed(url)?;
        let (store, path) = self.open(&url).await?;
        match store.head(&path).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(Error::from_store(&shown(&url), error)),
        }
    }
}

impl Upload {
    /// Begins an upload to any store. `name` is the name of the object in messages.
    pub(crate) fn to(
        store: Arc<dyn ObjectStore>,
        path: ObjectPath,
        name: String,
        bytes_expected: u64,
    ) -> Self {
        Self { name, sink: Sink::Any(AnyUpload::new(store, path, bytes_expected)) }
    }

    /// Appends bytes.
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        match &mut self.sink {
            Sink::Any(upload) => {
                upload.write(&bytes).await.map_err(|error| Error::from_store(&self.name, error))
            }
            Sink::S3(upload) => upload.write(&bytes).await,
        }
    }

    /// Uploads a local file.
    pub(crate) async fn file(
        store: Arc<dyn ObjectStore>,
        path: ObjectPath,
        name: String,
        file: &Path,
    ) -> Result<()> {
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

    /// Returns the upload to S3, which can copy other objects of S3; `None` for other stores.
    pub(crate) fn s3(&mut self) -> Option<&mut S3Upload> {
        match &mut self.sink {
            Sink::Any(_) => None,
            Sink::S3(upload) => Some(upload),
        }
    }

    /// Finishes the upload, which makes the object appear.
    pub async fn finish(self) -> Result<()> {
        match self.sink {
            Sink::Any(upload) => {
                upload.finish().await.map_err(|error| Error::from_store(&self.name, error))
            }
            Sink::S3(upload) => upload.finish().await,
        }
    }

    /// Removes the parts sent so far. If that fails, the writer that finishes the object removes them.
    pub async fn abort(self) {
        match self.sink {
            Sink::Any(upload) => upload.abort().await,
            Sink::S3(upload) => upload.abort().await,
        }
    }
}

/// Returns the size of part `number`, counted from 1, of an object of about `bytes_expected`.
fn part_bytes(bytes_expected: u64, number: u64) -> u64 {
    let bytes = PART_BYTES.max(bytes_expected / PARTS_EXPECTED + 1);
    let doublings = number.saturating_sub(EQUAL_PARTS).div_ceil(PARTS_UNTIL_DOUBLE);
    (bytes << doublings).min(PART_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn object_that_is_far_larger_than_expected_has_few_enough_parts() {
        let parts = |expected, written| {
            let sizes = (1..).map(|number| part_bytes(expected, number));
            let sums = sizes.scan(0, |sum, bytes| {
                *sum += bytes;
                Some(*sum)
            });
            1 + sums.take_while(|sum| *sum < written).count()
        };
        for (expected, written) in
            [(0, 80 * GIB), (20 * GIB, 100 * GIB), (0, 480 * GIB), (1 << 40, 12 << 40)]
        {
            let parts = parts(expected, written);
            assert!(
                parts <= 10_000,
                "{parts} parts of {written} bytes, of which {expected} were expected"
            );
        }
        for expected in [1, 20 * GIB, 1 << 40] {
            assert!(parts(expected, expected) <= 4500, "equal parts");
        }
    }

    #[tokio::test]
    async fn object_of_many_parts_appears_complete_when_finished() {
        for parts in [0, 1, 5] {
            let store = Arc::new(InMemory::new());
            let path = ObjectPath::from("folder/object");
            let mut upload = Upload::to(store.clone(), path.clone(), "object".into(), 0);
            let content: Vec<u8> =
                (0..parts * PART_BYTES + 17).map(|at| (at / 1000) as u8).collect();
            for piece in content.chunks(3_000_000) {
                upload.write(Bytes::copy_from_slice(piece)).await.expect("memory is always there");
            }
            assert!(store.head(&path).await.is_err(), "it appears once it is finished");
            upload.finish().await.expect("memory is always there");
            let found = store.get(&path).await.expect("written").bytes().await.expect("readable");
            assert!(found == content, "{parts} parts");
        }
    }

    #[tokio::test]
    async fn aborted_object_does_not_appear() {
        let store = Arc::new(InMemory::new());
        let path = ObjectPath::from("object");
        let mut upload = Upload::to(store.clone(), path.clone(), "object".into(), 0);
        upload
            .write(vec![b'x'; 3 * PART_BYTES as usize].into())
            .await
            .expect("memory is always there");
        upload.abort().await;
        assert!(store.head(&path).await.is_err());
    }
}
