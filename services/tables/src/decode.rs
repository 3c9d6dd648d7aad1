//! Blocks of a mini-batch into one record batch.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Field, Schema};
use protocol::{Block, BlockRange, TableFormat, TableOptions, TableSchema, Warning};

use crate::column::{Column, Texts};
use crate::delimited::Table;
use crate::error::{Error, Result};
use crate::infer::{column_names, has_header, splitter};
use crate::problems::{LineNumbers, Place, Problems};
use crate::row_groups::{RowGroupReader, joined};
use crate::source::{Text, TextFile};
use crate::split::{Rows, first_row};

/// One block, and where its file is on this machine.
#[derive(Clone, Copy)]
pub struct LocalBlock<'a> {
    /// The block as it was planned. Messages name its path.
    pub block: &'a Block,
    /// The file itself, or its local copy.
    pub path: &'a Path,
    /// The copy holds only the beginning of the file, its footer, and what the block needs, each in its place.
    pub has_holes: bool,
}

/// What to decode.
#[derive(Clone, Copy)]
pub struct DecodeRequest<'a> {
    /// At least one; all with the same path columns.
    pub blocks: &'a [LocalBlock<'a>],
    /// How to read the files.
    pub options: &'a TableOptions,
    /// All columns of text tables, those from the path last. Not looked at for Parquet.
    pub schema: Option<&'a TableSchema>,
}

/// The rows of a mini-batch.
#[derive(Debug)]
pub struct Decoded {
    /// All rows that are fit to be processed, the blocks' rows one after the other.
    pub batch: RecordBatch,
    /// Rows of `batch`.
    pub rows: u64,
    /// Records that are not in `batch` because they could not be read, or do not fit and should fail then.
    pub failed_records: u64,
    /// What the user should know, the first [`crate::WARNINGS_MAX`] of it.
    pub warnings: Vec<Warning>,
    /// Number of warnings, those not worded included.
    pub warnings_total: u64,
}

/// Lines are read and decoded in pieces of this size: what is parsed has just been read, and is in the processor's
/// cache.
const WINDOW_BYTES: u64 = 512 * 1024;

/// The mark of UTF-8.
const MARK_BYTES_MAX: u64 = 3;

/// Decodes mini-batches, one after the other. Keeps its buffers.
pub struct Decoder {
    window_bytes: u64,
    text: Text,
    rows: Rows,
    lines: LineNumbers,
    row_groups: RowGroupReader,
}

impl fmt::Debug for Decoder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Decoder").finish_non_exhaustive()
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::with_window(WINDOW_BYTES)
    }
}

impl Decoder {
    /// A decoder that reads so many bytes of lines at a time, but at least a byte order mark and what follows it.
    pub fn with_window(window_bytes: u64) -> Self {
        Self {
            window_bytes: window_bytes.max(MARK_BYTES_MAX + 1),
            text: Text::default(),
            rows: Rows::default(),
            lines: LineNumbers::default(),
            row_groups: RowGroupReader::default(),
        }
    }

    /// Reads and decodes the blocks of one mini-batch.
    pub fn decode(&mut self, request: &DecodeRequest) -> Result<Decoded> {
        if request.options.format.is_text() { self.decode_text(request) } else { self.decode_parquet(request) }
    }

    fn decode_text(&mut self, request: &DecodeRequest) -> Result<Decoded> {
        let schema = request.schema.ok_or_else(|| Error::Options("text tables need a schema".to_owned()))?;
        let path_columns = request.blocks.first().map_or(0, |block| block.block.path_columns.len());
        let own = &schema.columns[..schema.columns.len().saturating_sub(path_columns)];
        let empty_as_string = request.options.empty_as_string;
        let names: Vec<String> = own.iter().map(|column| column.name.clone()).collect();
        let selected = selection(&names, &request.options.columns)?;
        let new_column = |&index: &usize| Column::new(own[index].column_type, empty_as_string);
        let mut table = Table {
            columns: selected.iter().map(new_column).collect(),
            names,
            selected,
            is_selection: !request.options.columns.is_empty(),
            rows: 0,
            problems: Problems::new(request.options.on_type_mismatch),
        };
        let mut rows_of_blocks = Vec::with_capacity(request.blocks.len());
        for block in request.blocks {
            let before = table.rows;
            self.append_block(block, request.options, &mut table)?;
            rows_of_blocks.push(table.rows - before);
        }
        finish(table, request.blocks, &rows_of_blocks)
    }

    fn append_block(&mut self, block: &LocalBlock, options: &TableOptions, table: &mut Table) -> Result<()> {
        let name = block.block.path.display();
        let mut file = TextFile::open(block.path, &name, options)?;
        file.has_holes = block.has_holes;
        match block.block.range {
            BlockRange::Lines { first, last } => {
                let last = last.min(file.bytes());
                let mut from = first;
                while from <= last {
                    let to = last.min(from.saturating_add(self.window_bytes - 1));
                    file.read_lines(from, to, &mut self.text)?;
                    let has_first_line = (from..=to).contains(&file.first_line());
                    // Room for all of them is made once.
                    let behind = if from == first { last - to } else { 0 };
                    self.append_text(&file, options, has_first_line, behind, table);
                    from = to + 1;
                }
            }
            BlockRange::WholeText => {
                file.read_prefix(u64::MAX, &mut self.text)?;
                self.append_text(&file, options, true, 0, table);
            }
            BlockRange::RowGroup { .. } => return Err(wrong_range(&name, "a text file has no row groups")),
        }
        Ok(())
    }

    /// Appends the rows of `self.text`, behind which `behind` bytes of the block follow.
    fn append_text(
        &mut self,
        file: &TextFile,
        options: &TableOptions,
        has_first_line: bool,
        behind: u64,
        table: &mut Table,
    ) {
        let mut place = Place { file, text: &self.text, lines: &mut self.lines };
        if options.format == TableFormat::Jsonl {
            table.append_jsonl(&mut place);
            return;
        }
        let splitter = splitter(options);
        let mut from = 0;
        if has_first_line && has_header(options) {
            let (header, next) = first_row(splitter, place.text.as_slice());
            from = next;
            let header = column_names(header);
            let differs = match table.is_selection {
                false => header != table.names,
                true => table.selected.iter().any(|&index| header.get(index) != Some(&table.names[index])),
            };
            if differs {
                table.problems.warn(|| {
                    let name = file.name();
                    format!("{name}: its header differs from that of the first file, whose column names are used")
                });
            }
        }
        table.append_delimited(splitter, from, behind, &mut self.rows, &mut place);
    }

    fn decode_parquet(&mut self, request: &DecodeRequest) -> Result<Decoded> {
        let mut batches = Vec::with_capacity(request.blocks.len());
        let mut rows_of_blocks = Vec::with_capacity(request.blocks.len());
        for block in request.blocks {
            let name = block.block.path.display();
            let BlockRange::RowGroup { row_group, offset, rows } = block.block.range else {
                return Err(wrong_range(&name, "a Parquet file has no lines"));
            };
            let (piece, listed) = ((row_group, offset, rows), &request.options.columns);
            let batch = self.row_groups.read(block.path, &name, piece, listed, request.blocks.len() == 1)?;
            rows_of_blocks.push(batch.num_rows());
            batches.push(batch);
        }
        let Some(first) = batches.first() else { return Err(Error::Options("a mini-batch has no blocks".to_owned())) };
        let own = first.schema();
        let name = request.blocks[0].block.path.display();
        let batch = joined(&own, batches, &name)?;
        let names = own.fields().iter().map(|field| field.name().clone()).collect();
        let rows = batch.num_rows();
        let batch = assemble(names, batch.columns().to_vec(), request.blocks, &rows_of_blocks, rows)?;
        Ok(Decoded { batch, rows: rows as u64, failed_records: 0, warnings: Vec::new(), warnings_total: 0 })
    }
}

/// Where the columns of `listed` stand among `names`, in the order of the list; all of them where nothing is listed, and
/// none in a table that has none at all.
fn selection(names: &[String], listed: &[String]) -> Result<Vec<usize>> {
    if listed.is_empty() || names.is_empty() {
        return Ok((0..names.len()).collect());
    }
    let positions: HashMap<&str, usize> =
        names.iter().enumerate().map(|(index, name)| (name.as_str(), index)).collect();
    let position = |name: &String| {
        let missing = || Error::Options(format!("the files have no column \"{name}\", which `columns` lists"));
        positions.get(name.as_str()).copied().ok_or_else(missing)
    };
    listed.iter().map(position).collect()
}

/// Decodes one mini-batch. Who decodes several keeps a [`Decoder`].
pub fn decode(request: &DecodeRequest) -> Result<Decoded> {
    Decoder::default().decode(request)
}

fn wrong_range(name: &str, message: &str) -> Error {
    Error::Plan { path: name.to_owned(), message: message.to_owned() }
}

fn finish(table: Table, blocks: &[LocalBlock], rows_of_blocks: &[usize]) -> Result<Decoded> {
    let Table { names, selected, columns, rows, mut problems, .. } = table;
    let names: Vec<String> = selected.iter().map(|&index| names[index].clone()).collect();
    let failed = problems.failed_rows(rows);
    let mut arrays = Vec::with_capacity(columns.len());
    for (name, column) in names.iter().zip(columns) {
        arrays.push(column.finish(failed.as_deref(), |row, value, rounded| {
            problems.warn(|| {
                format!(
                    "row {row} of the mini-batch, column \"{name}\": {value} is rounded to {rounded} because other \
                     values of the column are missing"
                )
            });
        })?);
    }
    let mut batch = assemble(names, arrays, blocks, rows_of_blocks, rows)?;
    if let Some(failed) = failed {
        batch = filter_record_batch(&batch, &BooleanArray::from_iter(failed.iter().map(|failed| Some(!failed))))?;
    }
    let failed_records = (rows - batch.num_rows()) as u64 + problems.unread_records;
    let (warnings, warnings_total) = problems.into_warnings();
    Ok(Decoded { rows: batch.num_rows() as u64, batch, failed_records, warnings, warnings_total })
}

/// The batch of the files' own columns and those from their paths.
fn assemble(
    mut names: Vec<String>,
    mut arrays: Vec<ArrayRef>,
    blocks: &[LocalBlock],
    rows_of_blocks: &[usize],
    rows: usize,
) -> Result<RecordBatch> {
    let path_columns = blocks.first().map_or(&[][..], |block| &block.block.path_columns);
    for (index, (name, _)) in path_columns.iter().enumerate() {
        let mut values = Texts::new(true);
        for (block, &rows) in blocks.iter().zip(rows_of_blocks) {
            let value = block.block.path_columns.get(index).map_or("", |(_, value)| value);
            for _ in 0..rows {
                values.take_text(value.as_bytes());
            }
        }
        names.push(name.clone());
        arrays.push(values.finish()?);
    }
    let fields: Vec<Field> =
        names.into_iter().zip(&arrays).map(|(name, array)| Field::new(name, array.data_type().clone(), true)).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)?)
}

#[cfg(test)]
mod tests {
    use protocol::ItemPath;

    use super::*;

    #[test]
    fn a_long_block_is_never_in_memory_as_a_whole() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.csv");
        let lines = 40 * WINDOW_BYTES as usize / 8;
        std::fs::write(&path, format!("a,b\n{}", "123,456\n".repeat(lines))).expect("writable");
        let options = TableOptions::default();
        let schema = crate::infer_schema([path.as_path()], &options, &[]).expect("readable");
        let range = BlockRange::Lines { first: 0, last: u64::MAX };
        let block = Block { path: ItemPath::from(path.as_path()), version: None, range, path_columns: vec![] };
        let blocks = [LocalBlock { block: &block, path: &path, has_holes: false }];
        let mut decoder = Decoder::default();
        let decoded = decoder.decode(&DecodeRequest { blocks: &blocks, options: &options, schema: schema.as_ref() });
        assert_eq!(decoded.expect("readable").rows, lines as u64);
        assert!(decoder.text.bytes.capacity() < 4 * WINDOW_BYTES as usize);
    }
}
