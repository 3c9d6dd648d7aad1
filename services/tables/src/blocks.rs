//! Splits table files into blocks.
//!
//! Text is split without being read if possible: a line belongs to the block of its first byte, and a line that starts
//! exactly on a boundary belongs to the block before it. Text whose rows must be found is read once, from front to
//! back.

use std::path::Path;

use protocol::{BlockRange, TableOptions};

use crate::error::{Error, Result};
use crate::headers::has_header;
use crate::line_ends::{CR_ALONE, LineEnds};
use crate::source::{LINE_BYTES_MAX, Text, TextFile};
use crate::split::{is_blank, is_multi_line, splitter};
use crate::stream::{RecordEnds, TextStream, Windows, record_ends, too_long};

const PIECE_BYTES: usize = 256 * 1024;

/// Returns the number of blocks of a text file. A block may contain no line.
pub fn text_blocks(file_bytes: u64, block_bytes: u64) -> u64 {
    file_bytes.div_ceil(block_bytes.max(1))
}

/// Returns the lines of block `k`, counted from 0.
pub fn text_block_range(k: u64, block_bytes: u64) -> BlockRange {
    let block_bytes = block_bytes.max(1);
    let first = if k == 0 { 0 } else { k.saturating_mul(block_bytes).saturating_add(1) };
    BlockRange::Lines { first, last: k.saturating_add(1).saturating_mul(block_bytes) }
}

/// Splits rows `from .. from + rows` of one row group into pieces of at most `rows_max` rows.
pub fn split_row_group(
    row_group: u32,
    from: u64,
    rows: u64,
    rows_max: u64,
) -> impl Iterator<Item = BlockRange> {
    let rows_max = rows_max.max(1);
    (0..rows.div_ceil(rows_max)).map(move |piece| {
        let offset = piece * rows_max;
        BlockRange::RowGroup { row_group, offset: from + offset, rows: rows_max.min(rows - offset) }
    })
}

/// The numbers of rows of an input still to skip and to read (`skip` and `take`), while its files are split in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowWindow {
    /// Rows still to skip.
    skip: u64,
    /// Rows still to read; `None`: all.
    take: Option<u64>,
}

impl RowWindow {
    /// Returns the window of an input, at its beginning.
    pub fn of(options: &TableOptions) -> Self {
        Self { skip: options.skip, take: options.take }
    }

    /// Returns whether all further rows are read.
    pub fn has_all(self) -> bool {
        self == Self::default()
    }

    /// Returns whether no further row is read.
    pub fn is_over(self) -> bool {
        self.take == Some(0)
    }

    /// Advances past the next rows. Returns how many of them are skipped first, and how many after these are read.
    pub fn cut(&mut self, rows: u64) -> (u64, u64) {
        let skipped = self.skip.min(rows);
        let read = (rows - skipped).min(self.take.unwrap_or(u64::MAX));
        self.skip -= skipped;
        self.take = self.take.map(|take| take - read);
        (skipped, read)
    }
}

/// The size of one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeSize {
    /// This many rows.
    Rows(u64),
    /// The rows that start in the same block of this many bytes, as [`text_block_range`] counts them.
    Bytes(u64),
}

/// Returns the ranges of a text file, which messages call `name`. The last one may be smaller, and none is empty.
///
/// Each has its number of rows. The iterator reads the file as it advances, in constant memory. A file that can be
/// split at any line becomes [`BlockRange::Lines`], any other [`BlockRange::Records`].
pub fn text_ranges(
    path: &Path,
    name: &str,
    options: &TableOptions,
    size: RangeSize,
) -> Result<TextRanges> {
    let file = TextFile::open(path, name, options)?;
    let ends = record_ends(options);
    let stream = TextStream::open_table(&file, options)?;
    Ok(TextRanges {
        is_lines: !file.is_stream && !is_multi_line(options),
        options: options.clone(),
        file,
        records: 0,
        size: match size {
            RangeSize::Rows(rows) => RangeSize::Rows(rows.max(1)),
            RangeSize::Bytes(bytes) => RangeSize::Bytes(bytes.max(1)),
        },
        awaits_header: has_header(options),
        leaves_header_out: false,
        window: RowWindow::default(),
        record: stream.position(),
        stream,
        ends,
        buffer: Vec::new(),
        done: 0,
        record_is_blank: true,
        block: 0,
        first: 0,
        rows: 0,
        has_ended: false,
    })
}

/// The result of [`text_ranges`].
pub struct TextRanges {
    stream: TextStream,
    ends: RecordEnds,
    file: TextFile,
    options: TableOptions,
    is_lines: bool,
    /// Number of records that are not blank, the header among them.
    records: u64,
    size: RangeSize,
    buffer: Vec<u8>,
    /// Processed bytes of the buffer.
    done: usize,
    /// Start of the current record, and whether it contains only white space so far.
    record: u64,
    record_is_blank: bool,
    /// The first record that is not blank is the header.
    awaits_header: bool,
    /// The ranges exclude the header, because readers of them expect none.
    leaves_header_out: bool,
    /// Which of the following rows are read.
    window: RowWindow,
    /// The current range, and the block in which its first row starts.
    first: u64,
    rows: u64,
    block: u64,
    has_ended: bool,
}

impl TextRanges {
    /// Treats the first record as a header, and excludes it from the ranges: other files of the input have none.
    pub fn without_header(self) -> Self {
        Self { awaits_header: true, leaves_header_out: true, ..self }
    }

    /// Restricts the ranges to the rows of a window.
    pub fn within(self, window: RowWindow) -> Self {
        Self { window, ..self }
    }

    /// Returns the window that remains after the ranges so far.
    pub fn window(&self) -> RowWindow {
        self.window
    }

    /// Counts the record that ends here, and returns the range before it if that is complete.
    fn end_record(&mut self, next: u64) -> Option<(BlockRange, u64)> {
        let record = std::mem::replace(&mut self.record, next);
        let is_blank = std::mem::replace(&mut self.record_is_blank, true);
        if is_blank {
            return None;
        }
        self.records += 1;
        if std::mem::take(&mut self.awaits_header) {
            self.first = if self.leaves_header_out { next } else { self.first };
            return None;
        }
        if self.window.is_over() {
            self.has_ended = true;
            let rows = std::mem::take(&mut self.rows);
            return (rows > 0).then(|| (self.range(self.first, record), rows));
        }
        if self.window.cut(1) == (1, 0) {
            self.first = next;
            return None;
        }
        let (is_full, block) = match self.size {
            RangeSize::Rows(rows) => (self.rows == rows, 0),
            RangeSize::Bytes(bytes) => {
                let block = record.saturating_sub(1) / bytes;
                (self.rows > 0 && self.block != block, block)
            }
        };
        if !is_full {
            self.block = if self.rows == 0 { block } else { self.block };
            self.rows += 1;
            return None;
        }
        self.block = block;
        let rows = std::mem::replace(&mut self.rows, 1);
        let first = std::mem::replace(&mut self.first, record);
        Some((self.range(first, record), rows))
    }

    /// Fails if the only record of the file consists of lines that end with CR alone.
    fn check_only_record(&self) -> Result<()> {
        let mut stream = TextStream::open_table(&self.file, &self.options)?;
        let whole = usize::try_from(self.stream.position()).unwrap_or(usize::MAX).saturating_add(1);
        let mut text = Text::default();
        Windows::new(&mut stream, record_ends(&self.options), whole, u64::MAX).next(&mut text)?;
        let (text, splitter) = (text.as_slice(), splitter(&self.options));
        match LineEnds::of(splitter, text).are_cr_alone(text, true, splitter.delimiter) {
            true => Err(Error::kind(&self.file.name, CR_ALONE)),
            false => Ok(()),
        }
    }

    fn range(&self, start: u64, end: u64) -> BlockRange {
        match self.is_lines {
            true => BlockRange::Lines { first: start, last: end - 1 },
            false => BlockRange::Records { start, end },
        }
    }

    fn advance(&mut self) -> Result<Option<(BlockRange, u64)>> {
        loop {
            if self.done == self.buffer.len() {
                self.buffer.clear();
                self.done = 0;
                if self.stream.read(PIECE_BYTES, &mut self.buffer)? == 0 {
                    break;
                }
            }
            let rest = &self.buffer[self.done..];
            let end = self.ends.next(rest);
            let seen = &rest[..end.unwrap_or(rest.len())];
            self.record_is_blank = self.record_is_blank
                && is_blank(seen.strip_suffix(b"\n").unwrap_or(seen), self.options.delimiter);
            self.done += seen.len();
            let position = self.stream.position() - (self.buffer.len() - self.done) as u64;
            if position - self.record > LINE_BYTES_MAX as u64 && !self.is_lines {
                return Err(too_long(self.stream.name(), self.record));
            }
            if end.is_some()
                && let Some(range) = self.end_record(position)
            {
                return Ok(Some(range));
            }
            if self.has_ended {
                return Ok(None);
            }
        }
        let end = self.stream.position();
        if !self.record_is_blank
            && let Some(range) = self.end_record(end)
        {
            return Ok(Some(range));
        }
        self.has_ended = true;
        if self.records == 1 && self.options.format.is_delimited() {
            self.check_only_record()?;
        }
        // No line starts at the end of the file.
        let end = if self.is_lines { end + 1 } else { end };
        Ok((self.rows > 0).then(|| (self.range(self.first, end), self.rows)))
    }
}

impl Iterator for TextRanges {
    type Item = Result<(BlockRange, u64)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let range = self.advance();
        self.has_ended |= range.is_err();
        range.transpose()
    }
}
