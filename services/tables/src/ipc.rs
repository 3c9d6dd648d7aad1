//! The form in which a table is handed over: an Arrow IPC stream of one schema message and one record batch.
//!
//! The stream is a list of buffers that share the memory of the columns. Its size is known before any copy, and the
//! only copy is that to its destination.

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::ipc::writer::StreamEncoder;

use crate::error::Result;

/// A table to hand over. Buffers are not compressed and start at multiples of 64 bytes.
pub struct IpcStream {
    buffers: Vec<Buffer>,
}

impl IpcStream {
    /// Creates the stream of one batch.
    pub fn new(batch: &RecordBatch) -> Result<Self> {
        let mut encoder = StreamEncoder::try_new(&batch.schema())?;
        let mut buffers = encoder.encode(batch)?;
        buffers.extend(encoder.finish()?);
        Ok(Self { buffers })
    }

    /// Returns the exact length in bytes.
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().map(|buffer| buffer.len() as u64).sum()
    }

    /// Returns the pieces, in order, for a vectored write.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.buffers.iter().map(Buffer::as_slice)
    }
}
