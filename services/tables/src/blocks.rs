//! Where a table file is cut into blocks.
//!
//! Text is cut without being read: a line belongs to the block in which its first byte lies, and a line that starts
//! exactly on a boundary to the block before it.

use std::path::Path;

use protocol::{BlockRange, TableOptions};

use crate::error::{Result, display};
use crate::row_groups::parquet_row_groups;
use crate::source::{TextFile, is_blank};

const PIECE_BYTES: usize = 256 * 1024;

/// Number of blocks of a text file. Blocks may turn out to hold no line.
pub fn text_blocks(file_bytes: u64, block_bytes: u64) -> u64 {
    file_bytes.div_ceil(block_bytes.max(1))
}

/// The lines of block `k`, counted from 0.
pub fn text_block_range(k: u64, block_bytes: u64) -> BlockRange {
    let block_bytes = block_bytes.max(1);
    let first = if k == 0 { 0 } else { k.saturating_mul(block_bytes).saturating_add(1) };
    BlockRange::Lines { first, last: k.saturating_add(1).saturating_mul(block_bytes) }
}

/// Pieces of one row group of at most `rows_max` rows each.
pub fn split_row_group(row_group: u32, rows: u64, rows_max: u64) -> impl Iterator<Item = BlockRange> {
    let rows_max = rows_max.max(1);
    (0..rows.div_ceil(rows_max)).map(move |piece| {
        let offset = piece * rows_max;
        BlockRange::RowGroup { row_group, offset, rows: rows_max.min(rows - offset) }
    })
}

/// Ranges of one file of `rows` rows each; the last one, and the last one of each row group, may have fewer.
///
/// Text is scanned while the iterator advances, in constant memory. Where a row cannot be told from a line
/// (`support_multi_line`) the file is one range.
pub fn row_ranges(
    path: &Path,
    options: &TableOptions,
    rows: u64,
) -> Result<Box<dyn Iterator<Item = Result<BlockRange>> + Send>> {
    let rows = rows.max(1);
    if !options.format.is_text() {
        let groups = parquet_row_groups(path)?;
        let ranges = (0u32..).zip(groups).flat_map(move |(group, count)| split_row_group(group, count, rows));
        return Ok(Box::new(ranges.map(Ok)));
    }
    let file = TextFile::open(path, &display(path), options)?;
    if options.support_multi_line {
        let whole = (file.bytes() > 0).then_some(Ok(BlockRange::WholeText));
        return Ok(Box::new(whole.into_iter()));
    }
    Ok(Box::new(RowRanges::new(file, options, rows)))
}

struct RowRanges {
    file: TextFile,
    delimiter: u8,
    rows_max: u64,
    buffer: Vec<u8>,
    /// Where the buffer stands in the file, how much of it is filled, and how much of that is done.
    buffer_offset: u64,
    filled: usize,
    done: usize,
    /// Start of the line that is being looked at, and whether only white space was seen in it.
    line: u64,
    line_is_blank: bool,
    /// Start of the header line, which is no row.
    header: Option<u64>,
    /// The range being collected.
    first: u64,
    rows: u64,
    has_ended: bool,
}

impl RowRanges {
    fn new(file: TextFile, options: &TableOptions, rows_max: u64) -> Self {
        let header = crate::infer::has_header(options).then(|| file.first_line());
        Self {
            delimiter: crate::infer::splitter(options).delimiter,
            rows_max,
            buffer: vec![0; PIECE_BYTES],
            buffer_offset: file.mark_bytes(),
            filled: 0,
            done: 0,
            line: 0,
            line_is_blank: true,
            header,
            first: 0,
            rows: 0,
            has_ended: false,
            file,
        }
    }

    /// Counts the line that ends here, and returns the range in front of it if that is complete.
    fn end_line(&mut self, next_line: u64) -> Option<BlockRange> {
        let line = std::mem::replace(&mut self.line, next_line);
        let is_blank = std::mem::replace(&mut self.line_is_blank, true);
        if is_blank || self.header == Some(line) {
            return None;
        }
        self.rows += 1;
        if self.rows <= self.rows_max {
            return None;
        }
        self.rows = 1;
        let first = std::mem::replace(&mut self.first, line);
        Some(BlockRange::Lines { first, last: line - 1 })
    }

    fn advance(&mut self) -> Result<Option<BlockRange>> {
        loop {
            if self.done == self.filled {
                self.buffer_offset += self.filled as u64;
                self.filled = self.file.read_at(&mut self.buffer, self.buffer_offset)?;
                self.done = 0;
                if self.filled == 0 {
                    break;
                }
            }
            let rest = &self.buffer[self.done..self.filled];
            let length = memchr::memchr(b'\n', rest);
            let line = &rest[..length.unwrap_or(rest.len())];
            self.line_is_blank = self.line_is_blank && is_blank(line, self.delimiter);
            self.done += line.len();
            if length.is_some() {
                self.done += 1;
                let next_line = self.buffer_offset + self.done as u64;
                if let Some(range) = self.end_line(next_line) {
                    return Ok(Some(range));
                }
            }
        }
        if !self.line_is_blank
            && let Some(range) = self.end_line(self.buffer_offset)
        {
            return Ok(Some(range));
        }
        self.has_ended = true;
        Ok((self.rows > 0).then_some(BlockRange::Lines { first: self.first, last: self.buffer_offset }))
    }
}

impl Iterator for RowRanges {
    type Item = Result<BlockRange>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let range = self.advance();
        self.has_ended |= range.is_err();
        range.transpose()
    }
}
