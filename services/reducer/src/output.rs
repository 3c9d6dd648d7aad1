//! The final file: one ordered pass over the ledger and the parts, by mini-batch.
//!
//! It appears whole or not at all: in a folder by renaming a complete temporary file, in a store by completing an
//! upload. Order and bytes depend only on the plan and the results, never on the speed of processes. If several
//! reducers write the file, any of them may therefore be the last.

mod cells;
mod conform;
mod csv_file;
mod edited;
mod fractions;
mod header;
mod json_lines;
mod local;
mod native;
mod object;
mod observed;
mod pandas;
mod parquet;
mod schema_file;
mod source;
mod table;

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::{mem, thread};

use anyhow::Context;
use protocol::words::counted;
use protocol::{Output, OutputColumn, OutputFormat, Replaceable, ResultColumn, ResultSchema};
use storage::{Destination, JobStore};
use tokio::runtime::Handle;

use crate::CrashPoint;
use crate::ledger::{Index, RowLocation};
use local::LocalFile;
use object::Object;
pub(crate) use parquet::properties as parquet_properties;
pub(crate) use source::Source;
use table::Table;

/// Rows from the ledger that are written at once, while the next are read.
const PIECE_BYTES: usize = 1 << 20;
/// Includes room for the rows that complete a piece.
const PIECE_CAPACITY: usize = PIECE_BYTES + PIECE_BYTES / 8;
/// Pieces that may wait to be written.
const PIECES_AHEAD_MAX: usize = 2;
/// Mini-batches named in warnings about different columns.
const COLUMN_WARNINGS_MAX: usize = 10;

/// The sources of the final file. For a thread that may block.
pub(crate) struct Assembly<'a> {
    pub store: &'a JobStore,
    pub index: &'a Index,
    pub output: &'a Output,
    pub job_id: &'a str,
    pub writer: &'a str,
    /// The file of an earlier round or an earlier job that this one replaces.
    pub replaceable: &'a Replaceable,
    pub runtime: Handle,
    pub crash: &'a dyn Fn(CrashPoint),
    /// Called between mini-batches. Returns whether this reducer abandons the file.
    pub is_abandoned: &'a dyn Fn() -> bool,
}

/// The complete final file.
#[derive(Debug)]
pub(crate) struct Written {
    /// Its path or URL.
    pub path: PathBuf,
    /// Its columns, in the native formats.
    pub columns: Vec<OutputColumn>,
    /// Warnings for the user, one line each.
    pub warnings: Vec<String>,
}

/// This reducer abandons the file.
#[derive(Debug, thiserror::Error)]
#[error("another reducer will write the final file")]
struct Abandoned;

/// Whether the cause of an error is a store that may answer later.
pub(crate) fn may_pass(error: &anyhow::Error) -> bool {
    // An `io::Error` that wraps another error leaves it out of the chain.
    let within = |error: &'_ io::Error| {
        error.get_ref()?.downcast_ref::<storage::Error>().map(storage::Error::may_pass)
    };
    error.chain().any(|cause| match cause.downcast_ref::<storage::Error>() {
        Some(error) => error.may_pass(),
        None => cause.downcast_ref().and_then(within).unwrap_or(false),
    })
}

/// The next piece of the final file.
enum Piece {
    /// Rows of some mini-batches.
    Rows(Vec<u8>),
    /// A part with all rows of one mini-batch, by its position among the parts.
    Part { mini_batch: u64, part: u32 },
}

/// The rows of all mini-batches in the order of the file.
struct InOrder<'a> {
    index: &'a Index,
    source: Source<'a>,
}

impl InOrder<'_> {
    /// Calls `take` with each mini-batch that has rows, a reader of them, and whether they may come from several runs.
    fn for_each(
        &mut self,
        take: &mut dyn FnMut(u64, Box<dyn Read>, bool) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for (mini_batch, place) in self.index.rows() {
            let rows = self.source.reader(place).with_context(|| rows_of(mini_batch))?;
            take(mini_batch, rows, self.index.is_joined(mini_batch))?;
        }
        Ok(())
    }
}

/// The destination of the bytes.
enum Sink {
    File(LocalFile),
    Object(Box<Object>),
}

impl Assembly<'_> {
    /// Writes the final file. Returns `None` if it was abandoned and removed. `{:#}` prints an error in one line.
    pub fn write(&self) -> anyhow::Result<Option<Written>> {
        if self.output.format == OutputFormat::Text {
            let written = self.write_output(None, &|sink| self.write_rows(sink))?;
            return Ok(written.map(|(path, edited)| {
                let warnings = edited.into_iter().chain(self.warnings()).collect();
                Written { path, columns: Vec::new(), warnings }
            }));
        }
        let context = || format!("write {}", self.output.file_name);
        let table = Table::of(&mut self.in_order(), self.output.format, self.declared())
            .with_context(context)?;
        let has_no_types = self.output.format != OutputFormat::Parquet;
        let schema = has_no_types.then(|| schema_file::contents(&table)).transpose();
        let schema = schema.context("write the schema of the output")?;
        let lacking = RefCell::new(Vec::new());
        let written = self.write_output(schema.as_deref(), &|sink| {
            let between = |position| self.between(position);
            *lacking.borrow_mut() =
                native::write(&table, sink, self.output.format, &mut self.in_order(), &between)?;
            Ok(())
        })?;
        let columns = schema_file::columns(&table);
        Ok(written.map(|(path, edited)| {
            let warnings =
                edited.into_iter().chain(table.warnings()).chain(lacking.into_inner()).collect();
            Written { path, columns, warnings }
        }))
    }

    /// Writes the final file, with its schema beside it. Returns its path or URL, and a warning about an edited file that is
    /// kept.
    fn write_output(
        &self,
        schema: Option<&[u8]>,
        write: &dyn Fn(&mut Sink) -> anyhow::Result<()>,
    ) -> anyhow::Result<Option<(PathBuf, Option<String>)>> {
        let kept = RefCell::new(None);
        let path = self.write_file(&self.output.file_name, write, &|path| {
            (self.crash)(CrashPoint::BeforeRename);
            kept.replace(self.keep_edited(&path.display().to_string())?);
            // Not earlier: it would be beside a file of other columns while the rows are written.
            if let Some(schema) = schema {
                let name = schema_file::name(&self.output.file_name);
                self.write_file(&name, &|sink| Ok(sink.write_all(schema)?), &|_| Ok(()))?;
            }
            Ok(())
        })?;
        let Some(path) = path else { return Ok(None) };
        (self.crash)(CrashPoint::AfterRename);
        let edited = kept.into_inner();
        let warning = edited
            .map(|edited| self.warn_of_edited(&path.display().to_string(), edited))
            .transpose()?;
        Ok(Some((path, warning.flatten())))
    }

    /// Writes a file of the output. Returns its path or URL, or `None` if it was abandoned and removed. `before`: called
    /// before it appears there.
    fn write_file(
        &self,
        name: &str,
        write: &dyn Fn(&mut Sink) -> anyhow::Result<()>,
        before: &dyn Fn(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<Option<PathBuf>> {
        let (path, mut sink) = self.open(name)?;
        let written = write(&mut sink).and_then(|()| before(&path)).and_then(|()| sink.finish());
        match written {
            Err(error) if error.is::<Abandoned>() => {
                sink.abort();
                Ok(None)
            }
            Err(error) if !sink.is_superseded() => {
                sink.abort();
                Err(error.context(format!("write {}", path.display())))
            }
            _ => Ok(Some(path)),
        }
    }

    fn open(&self, name: &str) -> anyhow::Result<(PathBuf, Sink)> {
        match Destination::of(&self.output.folder, name)? {
            Destination::Folder(folder) => {
                let file = LocalFile::create(&folder, name, self.job_id, self.writer)?;
                Ok((folder.join(name), Sink::File(file)))
            }
            Destination::Url(url) => {
                let upload = self
                    .runtime
                    .block_on(self.store.stores().upload(&url, self.index.rows_bytes()))?;
                let object =
                    Object::new(upload, self.store.clone(), url.clone(), self.runtime.clone());
                Ok((url.into(), Sink::Object(Box::new(object))))
            }
        }
    }

    /// Returns the rows of all mini-batches, in order.
    fn in_order(&self) -> InOrder<'_> {
        let source = Source::new(self.store, self.index, self.runtime.clone());
        InOrder { index: self.index, source }
    }

    /// Returns the columns that the job declares.
    fn declared(&self) -> &[ResultColumn] {
        self.output.row_schema.as_ref().and_then(ResultSchema::columns).unwrap_or_default()
    }

    fn write_rows(&self, sink: &mut Sink) -> anyhow::Result<()> {
        let mut source = Source::new(self.store, self.index, self.runtime.clone());
        if self.output.header
            && let Some((_, columns)) = self.index.column_lists().next()
        {
            sink.write_all(header::line(self.output, columns).as_bytes())
                .context("write the header")?;
        }
        let parts = Source::new(self.store, self.index, self.runtime.clone());
        thread::scope(|scope| {
            let (sender, pieces) = mpsc::sync_channel(PIECES_AHEAD_MAX);
            let index = self.index;
            scope.spawn(move || {
                if let Err(error) =
                    gather(index, &mut source, |piece| sender.send(Ok(piece)).is_ok())
                {
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

    /// Called after each piece of rows.
    fn between(&self, position: usize) -> anyhow::Result<()> {
        if position == 0 {
            (self.crash)(CrashPoint::DuringOutput);
        }
        match (self.is_abandoned)() {
            true => Err(Abandoned.into()),
            false => Ok(()),
        }
    }

    /// Returns warnings about lines of text with other columns than those of the first mini-batch, which the header has.
    fn warnings(&self) -> Vec<String> {
        if self.index.column_lists_distinct() < 2 {
            return vec![];
        }
        let whose = if self.output.header {
            "the header has those of"
        } else {
            "the file begins with those of"
        };
        let mut lists = self.index.column_lists();
        let Some((first, columns)) = lists.next() else { return vec![] };
        let mut differing = lists.filter(|(_, other)| *other != columns);
        let mut warnings: Vec<_> = differing
            .by_ref()
            .take(COLUMN_WARNINGS_MAX)
            .map(|(mini_batch, other)| {
                format!(
                    "mini-batch {mini_batch} returned the columns {other:?}, but {whose} mini-batch {first}: {columns:?}"
                )
            })
            .collect();
        let more = differing.count();
        if more > 0 {
            warnings.push(format!(
                "{} returned columns that differ from the first",
                counted(more as u64, "more mini-batch")
            ));
        }
        warnings
    }
}

/// Reads rows in the order of the file, until `take` returns `false`.
fn gather(
    index: &Index,
    source: &mut Source<'_>,
    take: impl Fn(Piece) -> bool,
) -> anyhow::Result<()> {
    let mut rows = Vec::with_capacity(PIECE_CAPACITY);
    for (mini_batch, place) in index.rows() {
        if let RowLocation::Inline { .. } = place {
            source.append_inline(place, &mut rows).with_context(|| rows_of(mini_batch))?;
        }
        let is_part = matches!(place, RowLocation::Part(_));
        if rows.len() >= PIECE_BYTES || is_part && !rows.is_empty() {
            let full = mem::replace(&mut rows, Vec::with_capacity(PIECE_CAPACITY));
            if !take(Piece::Rows(full)) {
                return Ok(());
            }
        }
        if let RowLocation::Part(part) = place
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

pub(crate) fn rows_of(mini_batch: u64) -> String {
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
