//! Cuts the files of a tabular input into blocks.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use protocol::{BlockRange, Input, ItemPath, MiniBatchSize, TableFormat, TableOptions};
use tempfile::NamedTempFile;
use url::Url;

use crate::error::{Error, Result};
use crate::listing::Listed;
use crate::remote::{Fetch, Remote};

/// How the files of one input are cut.
pub(crate) struct Cutter {
    input: String,
    table: TableOptions,
    size: MiniBatchSize,
    remote: Arc<Remote>,
}

/// Blocks cut by rows are found while the file is read, which may fail on the way.
type Ranges = Box<dyn Iterator<Item = Result<BlockRange>> + Send>;

/// A file that can be opened: the input's own, or a copy of what is needed of an object.
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
        let url = url.expect("the listing gives valid URLs");
        let fetched = remote.fetch(&url, fetch);
        fetched
            .map(Self::Copy)
            .map_err(|message| Error::bad_path(input, path, format_args!("cannot be read: {message}")))
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

    /// The mini-batches of one file.
    pub(crate) fn mini_batches(&self, listed: &Listed) -> Result<Ranges> {
        if self.table.format == TableFormat::Parquet {
            let groups = self.row_groups(&listed.path)?;
            let MiniBatchSize::Rows(rows_max) = self.size else { return Ok(Box::new(groups.map(whole_group).map(Ok))) };
            return Ok(Box::new(
                groups.flat_map(move |(group, rows)| tables::split_row_group(group, rows, rows_max)).map(Ok),
            ));
        }
        let bytes = self.bytes(&listed.path, listed.size)?;
        match self.size {
            _ if self.table.support_multi_line || bytes == 0 => {
                Ok(Box::new(whole_text(&self.table, bytes).into_iter().map(Ok)))
            }
            MiniBatchSize::Bytes(block_bytes) => {
                let blocks = tables::text_blocks(bytes, block_bytes);
                Ok(Box::new((0..blocks).map(move |block| Ok(tables::text_block_range(block, block_bytes)))))
            }
            MiniBatchSize::Rows(rows) => {
                let file = LocalFile::open(&self.remote, &self.input, &listed.path, Fetch::Whole)?;
                let (input, path) = (self.input.clone(), listed.path.clone());
                let bad_table = move |error| table_error(&input, &path, &error);
                let ranges = tables::row_ranges(file.path(), &self.table, rows).map_err(&bad_table)?;
                Ok(Box::new(ranges.map(move |range| range.map_err(&bad_table))))
            }
            MiniBatchSize::Files(_) => unreachable!("refused before anything is listed"),
        }
    }

    /// All rows of one file; nothing where it has none.
    pub(crate) fn whole(&self, listed: &Listed) -> Result<Vec<BlockRange>> {
        if self.table.format == TableFormat::Parquet {
            return Ok(self.row_groups(&listed.path)?.map(whole_group).collect());
        }
        Ok(whole_text(&self.table, self.bytes(&listed.path, listed.size)?).into_iter().collect())
    }

    /// Each row group and its number of rows.
    fn row_groups(&self, path: &ItemPath) -> Result<impl Iterator<Item = (u32, u64)> + Send + use<>> {
        let file = LocalFile::open(&self.remote, &self.input, path, Fetch::ParquetFooter)?;
        let groups = tables::parquet_row_groups(file.path()).map_err(|error| table_error(&self.input, path, &error))?;
        Ok((0..).zip(groups))
    }

    fn bytes(&self, path: &ItemPath, size: Option<u64>) -> Result<u64> {
        match size {
            Some(bytes) => Ok(bytes),
            None => fs::metadata(path.as_path()).map(|metadata| metadata.len()).map_err(|error| {
                let message = format_args!("cannot be read: {error}; mend the file, or leave it out").to_string();
                Error::bad_path(&self.input, path, message)
            }),
        }
    }
}

/// Errors about a copy name the copy, which means nothing to the user.
pub(crate) fn table_error(input: &str, path: &ItemPath, error: &tables::Error) -> Error {
    if path.is_url() { Error::bad_path(input, path, format_args!("({error})")) } else { Error::bad_input(input, error) }
}

fn whole_group((row_group, rows): (u32, u64)) -> BlockRange {
    BlockRange::RowGroup { row_group, offset: 0, rows }
}

fn whole_text(table: &TableOptions, bytes: u64) -> Option<BlockRange> {
    match bytes {
        0 => None,
        _ if table.support_multi_line => Some(BlockRange::WholeText),
        _ => Some(tables::text_block_range(0, bytes)),
    }
}
