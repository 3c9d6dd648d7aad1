//! Writes an object of any size with bounded memory. The object appears complete once it is finished, or not at all.
//!
//! S3 can append other objects without sending them through this process. All parts but the last have at least 5 MiB.
//! So an upload collects small pieces, and may fetch the beginning of an object that S3 copies, to complete the part
//! before it.

mod any;
mod s3;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use aws_sdk_s3::types::CompletedPart;
use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

use crate::error::found;
use crate::remote::parsed;
use crate::stores::shown;
use crate::{Error, Result, Stores};
use any::AnyUpload;
pub(crate) use s3::S3Object;
use s3::S3Upload;

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
/// The smallest part that S3 allows.
const S3_PART_BYTES_MIN: u64 = 5 << 20;
/// The number of bytes that one request copies, unless the size of the object requires more (S3 allows 5 GiB).
const COPY_BYTES_MAX: u64 = 512 << 20;

/// An object that is being written.
#[derive(Debug)]
pub struct Upload {
    name: String,
    bytes_expected: u64,
    /// The bytes that are not yet sent.
    buffer: BytesMut,
    /// The number of the next part, from 1.
    next_part: u64,
    sending: JoinSet<Result<Option<CompletedPart>>>,
    /// The answers of S3 to the parts.
    sent: Vec<CompletedPart>,
    sink: Sink,
}

#[derive(Debug)]
enum Sink {
    Any(AnyUpload),
    S3(S3Upload),
}

/// A request that sends a part. S3 answers with what completes the object.
type Sending = BoxFuture<'static, Result<Option<CompletedPart>>>;

impl Stores {
    /// Begins an upload of an object of about `bytes_expected`. It may fail if the object becomes more than 12 times as
    /// large, and larger than 480 GiB.
    pub async fn upload(&self, url: &str, bytes_expected: u64) -> Result<Upload> {
        let url = parsed(url)?;
        let name = shown(&url);
        if let Some(object) = S3Object::of(&url) {
            let client = self.aws().await?.s3();
            let sink = Sink::S3(S3Upload { client, object, upload_id: None });
            return Ok(Upload::new(name, bytes_expected, sink));
        }
        let (store, path) = self.open(&url).await?;
        Ok(Upload::to(store, path, name, bytes_expected))
    }

    /// Returns whether an object exists.
    pub async fn exists(&self, url: &str) -> Result<bool> {
        let (store, path, name) = self.at(url).await?;
        Ok(found(store.head(&path).await, &name)?.is_some())
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
        Self::new(name, bytes_expected, Sink::Any(AnyUpload { store, path, upload: None }))
    }

    fn new(name: String, bytes_expected: u64, sink: Sink) -> Self {
        let (buffer, sending, sent) = (BytesMut::new(), JoinSet::new(), Vec::new());
        Self { name, bytes_expected, buffer, next_part: 1, sending, sent, sink }
    }

    /// Appends bytes.
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            let part_bytes = usize::try_from(part_bytes(self.bytes_expected, self.next_part))
                .expect("64-bit machine");
            let (now, later) = bytes.split_at(bytes.len().min(part_bytes - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == part_bytes {
                self.send().await?;
            }
        }
        Ok(())
    }

    /// Returns how many bytes at the beginning of an object of this size must be written before S3 can copy the rest;
    /// `None` if the upload is not to S3, or if the object is too small to be copied.
    pub(crate) fn bytes_before_copy(&self, bytes: u64) -> Option<u64> {
        let Sink::S3(_) = &self.sink else { return None };
        let head = match self.buffer.len() as u64 {
            0 => 0,
            buffered => self.s3_part_bytes_min().saturating_sub(buffered),
        };
        (bytes >= head + self.s3_part_bytes_min()).then_some(head)
    }

    /// Appends a range of another object, whose start [`bytes_before_copy`](Self::bytes_before_copy) has returned.
    pub(crate) async fn copy(&mut self, from: &S3Object, range: Range<u64>) -> Result<()> {
        if !self.buffer.is_empty() {
            self.send().await?;
        }
        let bytes = range.end - range.start;
        let pieces = bytes.div_ceil(COPY_BYTES_MAX.max(2 * self.s3_part_bytes_min()));
        for piece in 0..pieces {
            let start = range.start + bytes * piece / pieces;
            let end = range.start + bytes * (piece + 1) / pieces;
            let number = self.begin_part().await?;
            let Sink::S3(upload) = &mut self.sink else { unreachable!("only S3 copies objects") };
            let copying = upload.copied_part(&self.name, number, from, start..end).await?;
            self.sending.spawn(copying);
        }
        Ok(())
    }

    /// Returns the smallest size of a part that S3 copies, or of one before it.
    fn s3_part_bytes_min(&self) -> u64 {
        S3_PART_BYTES_MIN.max(self.bytes_expected / PARTS_EXPECTED + 1)
    }

    /// Sends the buffer as a part.
    async fn send(&mut self) -> Result<()> {
        let number = self.begin_part().await?;
        let part = self.buffer.split().freeze();
        let sending = match &mut self.sink {
            Sink::Any(upload) => upload.part(&self.name, part).await?,
            Sink::S3(upload) => upload.part(&self.name, number, part).await?,
        };
        self.sending.spawn(sending);
        Ok(())
    }

    /// Waits until another part may be sent. Returns its number.
    async fn begin_part(&mut self) -> Result<u64> {
        while self.sending.len() >= PARTS_AT_ONCE {
            self.wait().await?;
        }
        self.next_part += 1;
        Ok(self.next_part - 1)
    }

    /// Waits until one of the parts is sent.
    async fn wait(&mut self) -> Result<()> {
        if let Some(sent) = self.sending.join_next().await {
            self.sent.extend(sent.map_err(|error| Error::unavailable(&self.name, error))??);
        }
        Ok(())
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

    /// Finishes the upload, which makes the object appear.
    pub async fn finish(mut self) -> Result<()> {
        let finished = self.try_finish().await;
        if finished.is_err() {
            self.abort().await;
        }
        finished
    }

    async fn try_finish(&mut self) -> Result<()> {
        if self.next_part > 1 && !self.buffer.is_empty() {
            self.send().await?;
        }
        while !self.sending.is_empty() {
            self.wait().await?;
        }
        let (whole, parts) = (self.buffer.split().freeze(), std::mem::take(&mut self.sent));
        match &mut self.sink {
            Sink::Any(upload) => upload.complete(&self.name, whole).await,
            Sink::S3(upload) => upload.complete(&self.name, whole, parts).await,
        }
    }

    /// Removes the parts sent so far. If that fails, the writer that finishes the object removes them.
    pub async fn abort(mut self) {
        // A part that arrives after the removal of the upload would remain forever.
        self.sending.shutdown().await;
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
