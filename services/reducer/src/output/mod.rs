//! The final file: one ordered pass over the ledger and the parts, by mini-batch.
//!
//! It appears whole or not at all: in a folder under a temporary name that is renamed when it is whole, in a store as
//! an upload that is finished. Order and bytes depend on the plan and the results alone, never on who was quick; so
//! where several reducers write it, it does not matter who is last.

mod header;
mod local;
mod object;
mod parquet;
mod source;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::mpsc;
use std::{mem, thread};

use anyhow::Context;
use protocol::{Output, OutputFormat};
use storage::{Destination, JobStore};
use tokio::runtime::Handle;

use crate::CrashPoint;
use crate::ledger::{Index, Place};
use local::LocalFile;
use object::Object;
use source::Source;

/// Rows from the ledger are written so many bytes at a time, while the next are read.
const PIECE_BYTES: usize = 1 << 20;
/// With room for the rows that make a piece full.
const PIECE_CAPACITY: usize = PIECE_BYTES + PIECE_BYTES / 8;
/// Pieces that may wait to be written.
const PIECES_AHEAD_MAX: usize = 2;
/// Mini-batches named in a warning about differing columns.
const COLUMN_WARNINGS_MAX: usize = 10;

/// Everything the final file is made from. For a thread that may block.
pub(crate) struct Assembly<'a> {
    pub store: &'a JobStore,
    pub index: &'a Index,
    pub output: &'a Output,
    pub job_id: &'a str,
    pub writer: &'a str,
    pub runtime: Handle,
    pub crash: &'a dyn Fn(CrashPoint),
    /// Asked between mini-batches: whether nobody waits for the file any more.
    pub is_abandoned: &'a dyn Fn() -> bool,
}

/// The final file stands.
#[derive(Debug)]
pub(crate) struct Written {
    /// Its path, or its URL.
    pub path: PathBuf,
    /// What the user should know, one line each.
    pub warnings: Vec<String>,
}

/// Nobody waits for the file any more.
#[derive(Debug, thiserror::Error)]
#[error("the final file is left to another reducer")]
struct Abandoned;

/// What is written next.
enum Piece {
    /// Rows of some mini-batches.
    Rows(Vec<u8>),
    /// All rows of one, which are a part, by its position among the parts.
    Part { mini_batch: u64, part: u32 },
}

/// Where the bytes go.
enum Sink {
    File(LocalFile),
    Object(Box<Object>),
}

impl Assembly<'_> {
    /// Writes the final file. The error is one line when shown with `{:#}`. `None`: it was given up, and nothing is left
    /// of it.
    pub fn write(&self) -> anyhow::Result<Option<Written>> {
        let (path, mut sink) = self.open()?;
        let written = self.write_rows(&mut sink).and_then(|()| {
            (self.crash)(CrashPoint::BeforeRename);
            sink.finish()
        });
        match written {
            Err(error) if error.is::<Abandoned>() => {
                sink.abort();
                Ok(None)
            }
            Err(error) if !sink.is_superseded() => {
                sink.abort();
                Err(error.context(format!("write {}", path.display())))
            }
            _ => {
                (self.crash)(CrashPoint::AfterRename);
                Ok(Some(Written { path, warnings: self.warnings() }))
            }
        }
    }

    fn open(&self) -> anyhow::Result<(PathBuf, Sink)> {
        match Destination::of(&self.output.folder, &self.output.file_name)? {
            Destination::Folder(folder) => {
                let file = LocalFile::create(&folder, &self.output.file_name, self.job_id, self.writer)?;
                Ok((folder.join(&self.output.file_name), Sink::File(file)))
            }
            Destination::Url(url) => {
                let upload = self.runtime.block_on(self.store.stores().upload(&url, self.bytes_expected()))?;
                let object = Object::new(upload, self.store.clone(), url.clone(), self.runtime.clone());
                Ok((url.into(), Sink::Object(Box::new(object))))
            }
        }
    }

    fn bytes_expected(&self) -> u64 {
        let bytes = |place| match place {
            Place::None => 0,
            Place::Inline { length, .. } => u64::from(length),
            Place::Part(position) => self.index.part(position).bytes,
        };
        self.index.places().map(|(_, place)| bytes(place)).sum()
    }

    fn write_rows(&self, sink: &mut Sink) -> anyhow::Result<()> {
        let mut source = Source::new(self.store, self.index, self.runtime.clone());
        if self.output.format == OutputFormat::Parquet {
            let between = |position| self.between(position);
            return parquet::write(sink, self.index, &mut source, &between);
        }
        if self.has_header()
            && let Some((_, columns)) = self.index.column_lists().next()
        {
            sink.write_all(header::line(self.output, columns).as_bytes()).context("write the header")?;
        }
        let parts = Source::new(self.store, self.index, self.runtime.clone());
        thread::scope(|scope| {
            let (sender, pieces) = mpsc::sync_channel(PIECES_AHEAD_MAX);
            let index = self.index;
            scope.spawn(move || {
                if let Err(error) = gather(index, &mut source, |piece| sender.send(Ok(piece)).is_ok()) {
                    let _ = sender.send(Err(error));
                }
            });
            for (position, piece) in pieces.iter().enumerate() {
                match piece? {
                    Piece::Rows(rows) => sink.write_all(&rows).context("write rows")?,
                    Piece::Part { mini_batch, part } => {
                        parts.copy_part(part, sink).with_context(|| rows_of(mini_batch))?;
                    }
                }
                self.between(position)?;
            }
            sink.flush().context("write the last rows")
        })
    }

    /// Some rows are written.
    fn between(&self, position: usize) -> anyhow::Result<()> {
        if position == 0 {
            (self.crash)(CrashPoint::DuringOutput);
        }
        match (self.is_abandoned)() {
            true => Err(Abandoned.into()),
            false => Ok(()),
        }
    }

    fn has_header(&self) -> bool {
        match self.output.format {
            OutputFormat::Csv => true,
            OutputFormat::Text => self.output.header,
            OutputFormat::Jsonl | OutputFormat::Parquet => false,
        }
    }

    /// The header is that of the first mini-batch: rows of another shape do not match it.
    fn warnings(&self) -> Vec<String> {
        if !self.has_header() || self.index.column_lists_distinct() < 2 {
            return vec![];
        }
        let mut lists = self.index.column_lists();
        let Some((first, columns)) = lists.next() else { return vec![] };
        let mut differing = lists.filter(|(_, other)| *other != columns);
        let mut warnings: Vec<_> = differing
            .by_ref()
            .take(COLUMN_WARNINGS_MAX)
            .map(|(mini_batch, other)| {
                format!(
                    "mini-batch {mini_batch} returned the columns {other:?}, but the header is that of mini-batch \
                     {first}: {columns:?}"
                )
            })
            .collect();
        let more = differing.count();
        if more > 0 {
            warnings.push(format!("{more} more mini-batches returned other columns than the header names"));
        }
        warnings
    }
}

/// Reads rows in the order of the file, until nobody takes them any more.
fn gather(index: &Index, source: &mut Source<'_>, take: impl Fn(Piece) -> bool) -> anyhow::Result<()> {
    let mut rows = Vec::with_capacity(PIECE_CAPACITY);
    for (mini_batch, place) in index.places() {
        if let Place::Inline { .. } = place {
            source.append_inline(place, &mut rows).with_context(|| rows_of(mini_batch))?;
        }
        let is_part = matches!(place, Place::Part(_));
        if rows.len() >= PIECE_BYTES || is_part && !rows.is_empty() {
            let full = mem::replace(&mut rows, Vec::with_capacity(PIECE_CAPACITY));
            if !take(Piece::Rows(full)) {
                return Ok(());
            }
        }
        if let Place::Part(part) = place
            && !take(Piece::Part { mini_batch, part })
        {
            return Ok(());
        }
    }
    if !rows.is_empty() {
        take(Piece::Rows(rows));
    }
    Ok(())
}

fn rows_of(mini_batch: u64) -> String {
    format!("rows of mini-batch {mini_batch}")
}

impl Sink {
    fn finish(&mut self) -> anyhow::Result<()> {
        match self {
            Self::File(file) => file.finish(),
            Self::Object(object) => object.finish(),
        }
    }

    fn is_superseded(&self) -> bool {
        matches!(self, Self::Object(object) if object.is_superseded())
    }

    fn abort(self) {
        match self {
            Self::File(file) => file.abort(),
            Self::Object(object) => object.abort(),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.write(bytes),
            Self::Object(object) => object.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.flush(),
            Self::Object(object) => object.flush(),
        }
    }
}

#[cfg(test)]
mod tests;
