//! Splits the files of a tabular input into blocks.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use protocol::{BlockRange, Input, ItemPath, MiniBatchSize, TableFormat, TableOptions};
use tables::{RangeSize, RowWindow};
use tempfile::NamedTempFile;

use crate::error::{Error, Result};
use crate::listing::Listed;
use crate::remote::{Fetch, Remote, parse_url};

/// A splitter of the files of one input.
pub(crate) struct Cutter {
    input: String,
    table: TableOptions,
    size: MiniBatchSize,
    remote: Arc<Remote>,
    progress: Arc<Mutex<Progress>>,
}

/// The effects of earlier files on the ranges of the next one.
struct Progress {
    window: RowWindow,
    is_first_file: bool,
}

/// Ranges, each with its number of rows if known. Ranges of text that must be read are found while reading, which may
/// fail.
type Ranges = Box<dyn Iterator<Item = Result<(BlockRange, Option<u64>)>> + Send>;

/// A local file: one of the input, or a copy of the needed part of an object.
pub(crate) enum LocalFile {
    Own(ItemPath),
    Copy(NamedTempFile),
}

impl LocalFile {
    pub(crate) fn open(
        remote: &Remote,
        input: &str,
        path: &ItemPath,
        fetch: Fetch,
    ) -> Result<Self> {
        if !path.is_url() {
            return Ok(Self::Own(path.clone()));
        }
        let url = parse_url(path.as_bytes()).expect("the listing returns valid URLs");
        let fetched = remote.fetch(&url, fetch);
        fetched
            .map(Self::Copy)
            .map_err(|error| Error::bad_path(input, path, "cannot be read").because(error))
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Own(path) => path.as_path(),
            Self::Copy(copy) => copy.path(),
        }
    }
}

impl Cutter {
    pub(crate) fn new(input: &Input, size: MiniBatchSize, remote: Arc<Remote>) -> Self {
        let progress = Progress { window: RowWindow::of(&input.table), is_first_file: true };
        let (input, table) = (input.name.clone(), input.table.clone());
        Self { input, table, size, remote, progress: Arc::new(Mutex::new(progress)) }
    }

    /// Returns whether files must be split in the order of the listing, because earlier rows decide which rows of a
    /// file the job reads.
    pub(crate) fn needs_order(&self) -> bool {
        !RowWindow::of(&self.table).has_all() || self.table.has_one_header()
    }

    /// Returns the mini-batches of one file.
    pub(crate) fn mini_batches(&self, listed: &Listed) -> Result<Ranges> {
        let (window, has_header_alone) = self.begin();
        if self.table.format == TableFormat::Parquet {
            let rows_max =
                if let MiniBatchSize::Rows(rows_max) = self.size { Some(rows_max) } else { None };
            return self.row_groups_within(window, listed, rows_max);
        }
        let bytes = self.bytes(&listed.path, listed.size)?;
        let size = match self.size {
            _ if bytes == 0 || window.is_over() => return Ok(Box::new(std::iter::empty())),
            MiniBatchSize::Bytes(block_bytes)
                if window.has_all()
                    && !has_header_alone
                    && !tables::must_be_read(listed.path.as_bytes(), &self.table) =>
            {
                let blocks = tables::text_blocks(bytes, block_bytes);
                let range = move |block| Ok((tables::text_block_range(block, block_bytes), None));
                return Ok(Box::new((0..blocks).map(range)));
            }
            MiniBatchSize::Bytes(block_bytes) => RangeSize::Bytes(block_bytes),
            MiniBatchSize::Rows(rows) => RangeSize::Rows(rows),
            MiniBatchSize::Files(_) => unreachable!("rejected before the listing"),
        };
        self.text_ranges(listed, size, has_header_alone)
    }

    /// Returns the ranges of all rows of one file that the job reads; empty if it reads none.
    pub(crate) fn whole(&self, listed: &Listed) -> Result<Vec<BlockRange>> {
        let (window, has_header_alone) = self.begin();
        if self.table.format == TableFormat::Parquet {
            return self
                .row_groups_within(window, listed, None)?
                .map(|range| range.map(|(range, _)| range))
                .collect();
        }
        let bytes = self.bytes(&listed.path, listed.size)?;
        if bytes == 0 || window.is_over() {
            return Ok(Vec::new());
        }
        if !window.has_all() || has_header_alone {
            let ranges = self.text_ranges(listed, RangeSize::Rows(u64::MAX), has_header_alone)?;
            return ranges.map(|range| range.map(|(range, _)| range)).collect();
        }
        Ok(match tables::must_be_read(listed.path.as_bytes(), &self.table) {
            true => vec![BlockRange::WholeText],
            false => vec![tables::text_block_range(0, bytes)],
        })
    }

    /// Begins a file. Returns the window of its rows, and whether it alone has a header.
    fn begin(&self) -> (RowWindow, bool) {
        let mut progress = lock(&self.progress);
        let is_first_file = std::mem::take(&mut progress.is_first_file);
        (progress.window, is_first_file && self.table.has_one_header())
    }

    /// Returns the row groups of a Parquet file, cut to the rows that are read.
    fn row_groups_within(
        &self,
        window: RowWindow,
        listed: &Listed,
        rows_max: Option<u64>,
    ) -> Result<Ranges> {
        if window.is_over() {
            return Ok(Box::new(std::iter::empty()));
        }
        let groups = self.row_groups(&listed.path)?;
        let counted = |range: BlockRange| Ok((range, range.rows()));
        if window.has_all() {
            let Some(rows_max) = rows_max else {
                return Ok(Box::new(groups.map(whole_group).map(counted)));
            };
            let pieces = groups
                .flat_map(move |(group, rows)| tables::split_row_group(group, 0, rows, rows_max))
                .map(counted);
            return Ok(Box::new(pieces));
        }
        let progress = Arc::clone(&self.progress);
        let pieces = groups.flat_map(move |(group, rows)| {
            let (from, rows) = lock(&progress).window.cut(rows);
            tables::split_row_group(group, from, rows, rows_max.unwrap_or(u64::MAX))
        });
        Ok(Box::new(pieces.map(counted)))
    }

    /// Reads a text to find its ranges, and returns them.
    fn text_ranges(
        &self,
        listed: &Listed,
        size: RangeSize,
        has_header_alone: bool,
    ) -> Result<Ranges> {
        let file = LocalFile::open(&self.remote, &self.input, &listed.path, Fetch::Whole)?;
        let (input, path) = (self.input.clone(), listed.path.clone());
        let bad_table = move |error| table_error(&input, &path, error);
        let name = listed.path.display();
        let mut ranges = tables::text_ranges(file.path(), &name, &self.table, size)
            .map_err(&bad_table)?
            .within(lock(&self.progress).window);
        if has_header_alone {
            ranges = ranges.without_header();
        }
        let progress = Arc::clone(&self.progress);
        Ok(Box::new(std::iter::from_fn(move || {
            let range = ranges.next();
            lock(&progress).window = ranges.window();
            Some(range?.map(|(range, rows)| (range, Some(rows))).map_err(&bad_table))
        })))
    }

    /// Returns each row group and its number of rows.
    fn row_groups(
        &self,
        path: &ItemPath,
    ) -> Result<impl Iterator<Item = (u32, u64)> + Send + use<>> {
        let file = LocalFile::open(&self.remote, &self.input, path, Fetch::ParquetFooter)?;
        let groups = tables::parquet_row_groups(file.path())
            .map_err(|error| table_error(&self.input, path, error))?;
        Ok((0..).zip(groups))
    }

    fn bytes(&self, path: &ItemPath, size: Option<u64>) -> Result<u64> {
        match size {
            Some(bytes) => Ok(bytes),
            None => fs::metadata(path.as_path())
                .map(|metadata| metadata.len())
                .map_err(|error| Error::bad_path(&self.input, path, UNREADABLE).because(error)),
        }
    }
}

/// The problem of a file that cannot be read, and the remedy.
pub(crate) const UNREADABLE: &str = "cannot be read; repair the file, or leave it out";

/// Returns the error of a table. An error about a copy names only the copy, so the message adds the URL.
pub(crate) fn table_error(input: &str, path: &ItemPath, error: tables::Error) -> Error {
    match path.is_url() {
        true => Error::bad_path(input, path, format_args!("({error:#})")),
        false => Error::bad_table(input, error),
    }
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().expect("no holder panics")
}

fn whole_group((row_group, rows): (u32, u64)) -> BlockRange {
    BlockRange::RowGroup { row_group, offset: 0, rows }
}
