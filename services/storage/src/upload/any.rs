//! An upload to any store in parts, whose size depends on their number.

use std::sync::Arc;

use bytes::BytesMut;
use object_store::path::Path as ObjectPath;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, Result};
use tokio::task::JoinSet;

use super::{PARTS_AT_ONCE, part_bytes};

#[derive(Debug)]
pub(super) struct AnyUpload {
    store: Arc<dyn ObjectStore>,
    path: ObjectPath,
    bytes_expected: u64,
    /// The bytes that are not yet sent.
    buffer: BytesMut,
    /// Set once the first part is sent.
    upload: Option<Box<dyn MultipartUpload>>,
    next_part: u64,
    sending: JoinSet<Result<()>>,
}

impl AnyUpload {
    pub(super) fn new(store: Arc<dyn ObjectStore>, path: ObjectPath, bytes_expected: u64) -> Self {
        let (buffer, sending) = (BytesMut::new(), JoinSet::new());
        Self { store, path, bytes_expected, buffer, upload: None, next_part: 1, sending }
    }

    pub(super) async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
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

    /// Sends the buffer as a part.
    async fn send(&mut self) -> Result<()> {
        while self.sending.len() >= PARTS_AT_ONCE {
            self.wait().await?;
        }
        let upload = match &mut self.upload {
            Some(upload) => upload,
            None => self.upload.insert(self.store.put_multipart(&self.path).await?),
        };
        self.sending.spawn(upload.put_part(self.buffer.split().freeze().into()));
        self.next_part += 1;
        Ok(())
    }

    async fn wait(&mut self) -> Result<()> {
        match self.sending.join_next().await {
            Some(sent) => sent.map_err(|source| object_store::Error::JoinError { source })?,
            None => Ok(()),
        }
    }

    pub(super) async fn finish(mut self) -> Result<()> {
        let finished = self.try_finish().await;
        if finished.is_err() {
            self.abort().await;
        }
        finished
    }

    async fn try_finish(&mut self) -> Result<()> {
        if self.upload.is_none() {
            return self.store.put(&self.path, self.buffer.split().freeze().into()).await.map(drop);
        }
        if !self.buffer.is_empty() {
            self.send().await?;
        }
        while !self.sending.is_empty() {
            self.wait().await?;
        }
        match &mut self.upload {
            Some(upload) => upload.complete().await.map(drop),
            None => Ok(()),
        }
    }

    pub(super) async fn abort(mut self) {
        // A part that arrives after the removal of the upload would remain forever.
        self.sending.shutdown().await;
        if let Some(mut upload) = self.upload.take() {
            let _ = upload.abort().await;
        }
    }
}
