//! Reads committed rows from segments and parts with bounded memory.
//!
//! Mini-batches are committed nearly in order, so rows that are adjacent in the output are adjacent in a segment. A few
//! windows on segments turn a million small reads into sequential ones, and also serve any other order.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use storage::JobStore;
use tokio::runtime::Handle;

use super::Sink;
use crate::ledger::{Index, PartFile, RowLocation};

/// Reads rows by their place. For a thread that may block.
pub(crate) struct Source<'a> {
    store: &'a JobStore,
    index: &'a Index,
    runtime: Handle,
    /// Most recently used first.
    windows: Vec<Window>,
    window_bytes: u64,
    windows_max: usize,
}

struct Window {
    segment: u32,
    start: u64,
    bytes: Bytes,
}

/// A part from a store, read as it arrives.
struct PartReader {
    stream: storage::PartStream,
    piece: Bytes,
    runtime: Handle,
}

impl Read for PartReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.runtime.block_on(self.stream.next()).map_err(io::Error::other)? {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let bytes = self.piece.len().min(into.len());
        into[..bytes].copy_from_slice(&self.piece.split_to(bytes));
        Ok(bytes)
    }
}

impl<'a> Source<'a> {
    pub fn new(store: &'a JobStore, index: &'a Index, runtime: Handle) -> Self {
        // In total 16 MiB on a disk, where reads are cheap, and 64 MiB in a remote store, where requests are expensive.
        let (window_bytes, windows_max) =
            if store.folder().is_some() { (256 << 10, 64) } else { (4 << 20, 16) };
        Self { store, index, runtime, windows: Vec::new(), window_bytes, windows_max }
    }

    /// Appends a part to the final file.
    pub(super) fn copy_part(&self, position: u32, into: &mut Sink) -> anyhow::Result<()> {
        let part = self.index.part(position);
        let copied = match (self.part_file(part)?, into) {
            (Some(mut part), Sink::File(file)) => file.append_file(&mut part),
            (Some(mut part), into) => io::copy(&mut part, into),
            (None, Sink::Object(object)) => {
                return object.append_part(part).with_context(|| write_context(part));
            }
            (None, into) => io::copy(&mut self.part_stream(part)?, into),
        };
        let copied = copied.with_context(|| write_context(part))?;
        ensure!(copied == part.bytes, damaged(part, copied));
        Ok(())
    }

    /// Returns a reader of the rows at a place.
    pub fn reader(&mut self, place: RowLocation) -> anyhow::Result<Box<dyn Read>> {
        match place {
            RowLocation::None => Ok(Box::new(io::empty())),
            RowLocation::Inline { length, .. } => {
                let mut bytes = Vec::with_capacity(length as usize);
                self.append_inline(place, &mut bytes)?;
                Ok(Box::new(io::Cursor::new(bytes)))
            }
            RowLocation::Part(position) => {
                let part = self.index.part(position);
                match self.part_file(part)? {
                    Some(file) => Ok(Box::new(io::BufReader::with_capacity(256 << 10, file))),
                    None => Ok(Box::new(self.part_stream(part)?)),
                }
            }
        }
    }

    fn part_stream(&self, part: &PartFile) -> anyhow::Result<PartReader> {
        let stream = self.runtime.block_on(self.store.part_stream(&part.name))?;
        ensure!(stream.bytes() == part.bytes, damaged(part, stream.bytes()));
        Ok(PartReader { stream, piece: Bytes::new(), runtime: self.runtime.clone() })
    }

    fn part_file(&self, part: &PartFile) -> anyhow::Result<Option<File>> {
        let Some(path) = self.store.part_file(&part.name) else { return Ok(None) };
        let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        let bytes = file.metadata().with_context(|| format!("read {}", path.display()))?.len();
        ensure!(bytes == part.bytes, damaged(part, bytes));
        Ok(Some(file))
    }

    /// Appends rows from a segment.
    pub fn append_inline(&mut self, place: RowLocation, into: &mut Vec<u8>) -> anyhow::Result<()> {
        let RowLocation::Inline { segment, offset, length } = place else {
            bail!("not in a segment")
        };
        let mut at = u64::from(offset);
        let end = at + u64::from(length);
        while at < end {
            let window = self.window(segment, at)?;
            let from = usize::try_from(at - window.start).expect("64-bit machine");
            let to = window
                .bytes
                .len()
                .min(usize::try_from(end - window.start).expect("64-bit machine"));
            ensure!(to > from, "ledger segment {segment} is damaged: it ends at byte {at}");
            into.extend_from_slice(&window.bytes[from..to]);
            at += (to - from) as u64;
        }
        Ok(())
    }

    fn window(&mut self, segment: u32, at: u64) -> anyhow::Result<&Window> {
        let start = at - at % self.window_bytes;
        let known = self
            .windows
            .iter()
            .position(|window| window.segment == segment && window.start == start);
        match known {
            Some(0) => {}
            Some(position) => self.windows[..=position].rotate_right(1),
            None => {
                let end = (start + self.window_bytes).min(self.index.segment_bytes(segment));
                let is_full = self.windows.len() == self.windows_max;
                let used = if is_full { self.windows.pop() } else { None };
                let bytes = self.read(segment, start, end, used)?;
                self.windows.insert(0, Window { segment, start, bytes });
            }
        }
        Ok(&self.windows[0])
    }

    /// Reads a window; on a disk into the memory of the least recently used window.
    fn read(
        &self,
        segment: u32,
        start: u64,
        end: u64,
        used: Option<Window>,
    ) -> anyhow::Result<Bytes> {
        let Some(path) = self.store.segment_file(u64::from(segment)) else {
            let read = self.store.segment_range(u64::from(segment), start..end);
            return Ok(self.runtime.block_on(read)?);
        };
        let mut memory = used.map_or_else(Vec::new, |window| window.bytes.into());
        memory.resize(
            usize::try_from(end.saturating_sub(start)).expect("a window fits in memory"),
            0,
        );
        read_at(&path, start, &mut memory).with_context(|| format!("read {}", path.display()))?;
        Ok(memory.into())
    }
}

fn read_at(path: &PathBuf, start: u64, bytes: &mut [u8]) -> io::Result<()> {
    File::open(path)?.read_exact_at(bytes, start)
}

fn write_context(part: &PartFile) -> String {
    format!("copy part {}", part.name)
}

fn damaged(part: &PartFile, found: u64) -> String {
    format!("part {} is damaged: it has {found} bytes instead of {}", part.name, part.bytes)
}
