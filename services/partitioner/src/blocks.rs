//! Splits the files of a tabular input into blocks.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use protocol::{BlockRange, Input, ItemPath, MiniBatchSize, TableFormat, TableOptions};
use tables::RangeSize;
use tempfile::NamedTempFile;
use url::Url;

use crate::error::{Error, Result};
use crate::listing::Listed;
use crate::remote::{Fetch, Remote};

/// Splits the files of one input.
pub(crate) struct Cutter {
    input: String,
    table: TableOptions,
    size: MiniBatchSize,
    remote: Arc<Remote>,
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
    pub(crate) fn open(remote: &Remote, input: &str, path: &ItemPath, fetch: Fetch) -> Result<Self> {
        if !path.is_url() {
            return Ok(Self::Own(path.clone()));
        }
        let url = std::str::from_utf8(path.as_bytes()).ok().and_then(|text| Url::parse(text).ok());
        let url = url.expect("the listing returns valid URLs");
        let fetched = remote.fetch(&url, fetch);
        fetched.map(Self::Copy).map_err(|error| Error::bad_path(input, path, "cannot be read").because(error))
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
        Self { input: input.name.clone(), table: input.table.clone(), size, remote }
    }

    /// Returns the mini-batches of one file.
    pub(crate) fn mini_batches(&self, listed: &Listed) -> Result<Ranges> {
        if self.table.format == TableFormat::Parquet {
            let groups = self.row_groups(&listed.path)?;
            let counted = |range: BlockRange| Ok((range, range.rows()));
            let MiniBatchSize::Rows(rows_max) = self.size else {
                return Ok(Box::new(groups.map(whole_group).map(counted)));
            };
            return Ok(Box::new(
                groups.flat_map(move |(group, rows)| tables::split_row_group(group, rows, rows_max)).map(counted),
            ));
        }
        let bytes = self.bytes(&listed.path, listed.size)?;
        let size = match self.size {
            _ if bytes == 0 => return Ok(Box::new(std::iter::empty())),
            MiniBatchSize::Bytes(block_bytes) if !tables::must_be_read(listed.path.as_bytes(), &self.table) => {
                let blocks = tables::text_blocks(bytes, block_bytes);
                let range = move |block| Ok((tables::text_block_range(block, block_bytes), None));
                return Ok(Box::new((0..blocks).map(range)));
            }
            MiniBatchSize::Bytes(block_bytes) => RangeSize::Bytes(block_bytes),
            MiniBatchSize::Rows(rows) => RangeSize::Rows(rows),
            MiniBatchSize::Files(_) => unreachable!("rejected before the listing"),
        };
        let file = LocalFile::open(&self.remote, &self.input, &listed.path, Fetch::Whole)?;
        let (input, path) = (self.input.clone(), listed.path.clone());
        let bad_table = move |error| table_error(&input, &path, error);
        let name = listed.path.display();
        let ranges = tables::text_ranges(file.path(), &name, &self.table, size).map_err(&bad_table)?;
        Ok(Box::new(ranges.map(move |range| {
            let (range, rows) = range.map_err(&bad_table)?;
            Ok((range, Some(rows)))
        })))
    }

    /// Returns all rows of one file; empty if it has none.
    pub(crate) fn whole(&self, listed: &Listed) -> Result<Vec<BlockRange>> {
        if self.table.format == TableFormat::Parquet {
            return Ok(self.row_groups(&listed.path)?.map(whole_group).collect());
        }
        let bytes = self.bytes(&listed.path, listed.size)?;
        Ok(match tables::must_be_read(listed.path.as_bytes(), &self.table) {
            _ if bytes == 0 => Vec::new(),
            true => vec![BlockRange::WholeText],
            false => vec![tables::text_block_range(0, bytes)],
        })
    }

    /// Returns each row group and its number of rows.
    fn row_groups(&self, path: &ItemPath) -> Result<impl Iterator<Item = (u32, u64)> + Send + use<>> {
        let file = LocalFile::open(&self.remote, &self.input, path, Fetch::ParquetFooter)?;
        let groups = tables::parquet_row_groups(file.path()).map_err(|error| table_error(&self.input, path, error))?;
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

fn whole_group((row_group, rows): (u32, u64)) -> BlockRange {
    BlockRange::RowGroup { row_group, offset: 0, rows }
}
