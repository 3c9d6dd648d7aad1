//! The final file in a store.

use std::io::{self, Write};

use bytes::Bytes;
use storage::{Error, JobStore, Upload};
use tokio::runtime::Handle;

use crate::ledger::PartFile;

/// Size of a write to the upload.
const BUFFER_BYTES: usize = 1 << 20;

/// The final file, being written.
pub(super) struct Object {
    /// `None` once finished.
    upload: Option<Upload>,
    buffer: Vec<u8>,
    /// Another reducer has finished the object.
    superseded: bool,
    store: JobStore,
    url: String,
    runtime: Handle,
}

impl Object {
    pub fn new(upload: Upload, store: JobStore, url: String, runtime: Handle) -> Self {
        let buffer = Vec::with_capacity(BUFFER_BYTES);
        Self { upload: Some(upload), buffer, superseded: false, store, url, runtime }
    }

    /// Appends a part. The store copies it if possible.
    pub fn append_part(&mut self, part: &PartFile) -> anyhow::Result<()> {
        self.flush()?;
        let upload = self.upload.as_mut().expect("not finished");
        let appended =
            self.runtime.block_on(upload.write_part(&self.store, &part.name, part.bytes));
        Ok(self.noticed(appended)?)
    }

    pub fn finish(&mut self) -> anyhow::Result<()> {
        self.flush()?;
        let finished = self.runtime.block_on(self.upload.take().expect("finished once").finish());
        Ok(self.noticed(finished)?)
    }

    /// Whether another reducer has finished the object, which then has the same bytes.
    pub fn is_superseded(&self) -> bool {
        self.superseded
            && self.runtime.block_on(self.store.stores().exists(&self.url)).unwrap_or(false)
    }

    pub fn abort(self) {
        if let Some(upload) = self.upload {
            self.runtime.block_on(upload.abort());
        }
    }

    fn noticed<T>(&mut self, result: storage::Result<T>) -> storage::Result<T> {
        result.inspect_err(|error| self.superseded |= matches!(error, Error::Superseded { .. }))
    }
}

impl Write for Object {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.flush()?;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let bytes =
            Bytes::from(std::mem::replace(&mut self.buffer, Vec::with_capacity(BUFFER_BYTES)));
        let upload = self.upload.as_mut().expect("not finished");
        let written = self.runtime.block_on(upload.write(bytes));
        self.noticed(written).map_err(io::Error::other)
    }
}
