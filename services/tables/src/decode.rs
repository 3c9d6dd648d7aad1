//! Decodes the blocks of a mini-batch into one record batch.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Field, Schema};
use parquet::arrow::encode_arrow_schema;
use protocol::{
    Block, BlockRange, TableColumn, TableFormat, TableOptions, TableSchema, TypeRules,
    UnreadRecord, fields,
};

use crate::builder::{Builder, FinishedColumn};
use crate::column::Column;
use crate::delimited::Table;
use crate::error::{Error, Result};
use crate::for_pandas::{doubtful_values, rounded_by_pandas, word_for_pandas};
use crate::headers::{has_header, has_own_header};
use crate::infer::{column_names, header_of};
use crate::line_ends::refuse_cr_alone;
use crate::problem::Problem;
use crate::problems::{LineNumbers, Origin, Problems, Warnings};
use crate::row_groups::{RowGroupReader, joined, parquet_row_groups};
use crate::row_lines::RowLines;
use crate::source::{Identity, Text, TextFile};
use crate::split::{Rows, first_row, splitter};
use crate::stream::{TextStream, Windows, record_ends};
use crate::texts::Texts;

/// One block and its local file.
#[derive(Clone, Copy)]
pub struct LocalBlock<'a> {
    /// The planned block. Messages name its path.
    pub block: &'a Block,
    /// The file itself, or its local copy.
    pub path: &'a Path,
    /// Whether the copy contains only the beginning of the file, its footer, and the bytes of the block, each at its
    /// offset.
    pub has_holes: bool,
}

/// A request to decode blocks.
#[derive(Clone, Copy)]
pub struct DecodeRequest<'a> {
    /// At least one; all with the same path columns.
    pub blocks: &'a [LocalBlock<'a>],
    /// The options of the files.
    pub options: &'a TableOptions,
    /// All columns of text tables, those from the path last. Ignored for Parquet.
    pub schema: Option<&'a TableSchema>,
    /// Whether to add the text of each JSON line, see [`protocol::fields::LINES`]. Each line is then a row for
    /// [`row_places`](Decoder::row_places).
    pub with_lines: bool,
}

/// The rows of a mini-batch.
#[derive(Debug)]
pub struct Decoded {
    /// All valid rows, in the order of the blocks.
    pub batch: RecordBatch,
    /// Number of rows in `batch`.
    pub rows: u64,
    /// Number of records that are not in `batch` because they are unreadable, or because they must fail if they do not
    /// fit.
    pub failed_records: u64,
    /// The problems of these records.
    pub unread: Vec<UnreadRecord>,
    /// The warnings for users about these rows.
    pub warnings: Warnings,
    /// The warnings about values that only pandas changes: a script that takes Arrow gets the values of the file.
    pub warnings_of_pandas: Warnings,
    /// The rows as JSON lines, if requested.
    pub as_items: Option<AsItems>,
}

/// The rows of a mini-batch as JSON lines, which need not fit the columns. The batch marks the lines that are not rows
/// of the table, see [`protocol::fields::FITS`].
#[derive(Clone, Debug)]
pub struct AsItems {
    /// Number of lines that are JSON objects.
    pub rows: u64,
    /// The other lines.
    pub unread: Vec<UnreadRecord>,
    /// The warnings for users about the lines.
    pub warnings: Warnings,
}

/// Size of the pieces in which lines are read and decoded, so that the text to parse is still in the processor's
/// cache.
const WINDOW_BYTES: u64 = 512 * 1024;

/// Length of the byte order mark of UTF-8.
const MARK_BYTES_MAX: u64 = 3;

/// A decoder of successive mini-batches, which keeps its buffers.
pub struct Decoder {
    window_bytes: u64,
    text: Text,
    rows: Rows,
    lines: LineNumbers,
    row_groups: RowGroupReader,
    /// The end of the last range of a text that is read from front to back: the next range probably begins there.
    stream: Option<TextStream>,
    /// Columns of the last file with a header of its own.
    own_header: Option<(Identity, Vec<String>)>,
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
    /// Creates a decoder that reads this many bytes of lines at a time, but at least a byte order mark and the byte
    /// after it.
    pub fn with_window(window_bytes: u64) -> Self {
        Self {
            window_bytes: window_bytes.max(MARK_BYTES_MAX + 1),
            text: Text::default(),
            rows: Rows::default(),
            lines: LineNumbers::default(),
            row_groups: RowGroupReader::default(),
            stream: None,
            own_header: None,
        }
    }

    /// Reads and decodes the blocks of one mini-batch.
    pub fn decode(&mut self, request: &DecodeRequest) -> Result<Decoded> {
        if request.options.format.is_text() {
            self.decode_text(request)
        } else {
            self.decode_parquet(request)
        }
    }

    /// Decodes a mini-batch, and returns the places of some of its rows, such as `data.csv, line 7`; `None` where that
    /// needs a part of a file that is missing.
    pub fn row_places(
        &mut self,
        request: &DecodeRequest,
        rows: &[u64],
    ) -> Result<Vec<Option<String>>> {
        let blocks = request.blocks;
        if !request.options.format.is_text() {
            return rows.iter().map(|&row| row_of_file(row, blocks)).collect();
        }
        let (table, rows_of_blocks) = self.table(request, Some(RowLines::default()))?;
        let failed = table.problems.failed_rows(table.rows);
        // Every line is an item.
        let failed = failed.filter(|_| table.texts.is_none());
        let is_row = |row: &usize| failed.as_ref().is_none_or(|failed| !failed[*row]);
        let kept: Vec<usize> = (0..table.rows).filter(is_row).collect();
        let lines = table.line_numbers.map(|numbers| numbers.of_rows).unwrap_or_default();
        let place = |&row: &u64| {
            let row = *kept.get(usize::try_from(row).ok()?)?;
            let line = (*lines.get(row)?)?;
            let mut end = 0;
            let block = rows_of_blocks.iter().position(|rows| {
                end += rows;
                row < end
            })?;
            Some(format!("{}, line {line}", blocks[block].block.path.display()))
        };
        Ok(rows.iter().map(place).collect())
    }

    fn decode_text(&mut self, request: &DecodeRequest) -> Result<Decoded> {
        let (table, rows_of_blocks) = self.table(request, None)?;
        finish(table, own_columns(request)?, request, &rows_of_blocks)
    }

    /// Returns the rows of text tables, and the number of rows of each block.
    fn table(
        &mut self,
        request: &DecodeRequest,
        line_numbers: Option<RowLines>,
    ) -> Result<(Table, Vec<usize>)> {
        let own = own_columns(request)?;
        let names: Vec<String> = own.iter().map(|column| column.name.clone()).collect();
        let selected = selection(&names, request.options)?;
        let new_column = |&index: &usize| Column::new(&own[index], request.options);
        let mut table = Table {
            width: names.len(),
            places: selected.iter().map(|&index| Some(index)).collect(),
            columns: selected.iter().map(new_column).collect(),
            names,
            selected,
            has_words: request.options.has_missing_words(),
            is_selection: !request.options.columns.is_empty(),
            rows: 0,
            problems: Problems::new(request.options.on_type_mismatch),
            texts: (request.with_lines && request.options.format == TableFormat::Jsonl)
                .then(|| Texts::new(true)),
            line_numbers,
        };
        let mut rows_of_blocks = Vec::with_capacity(request.blocks.len());
        for block in request.blocks {
            let before = table.rows;
            self.append_block(block, request.options, &mut table)?;
            rows_of_blocks.push(table.rows - before);
        }
        Ok((table, rows_of_blocks))
    }

    fn append_block(
        &mut self,
        block: &LocalBlock,
        options: &TableOptions,
        table: &mut Table,
    ) -> Result<()> {
        let name = block.block.path.display();
        let mut file = TextFile::open(block.path, &name, options)?;
        file.has_holes = block.has_holes;
        if has_own_header(options) {
            table.read_as(self.header(&file, options)?);
        }
        match block.block.range {
            BlockRange::Lines { .. } if file.is_stream => {
                let message =
                    "its text must be read from the beginning, but the plan splits it at any line";
                return Err(Error::plan(&name, message));
            }
            BlockRange::Lines { first, last } => {
                let last = last.min(file.bytes);
                let first = first.max(file.first_line);
                let mut from = first;
                while from <= last {
                    let to = last.min(from.saturating_add(self.window_bytes - 1));
                    file.read_lines(from, to, &mut self.text)?;
                    let has_first_line = (from..=to).contains(&file.first_line);
                    // Reserves room for all rows at once.
                    let behind = if from == first { last - to } else { 0 };
                    self.append_text(&file, options, has_first_line, behind, table)?;
                    from = to + 1;
                }
            }
            BlockRange::WholeText => self.append_records(&file, 0, u64::MAX, options, table)?,
            BlockRange::Records { start, end } => {
                self.append_records(&file, start, end, options, table)?
            }
            BlockRange::RowGroup { .. } => {
                return Err(Error::plan(&name, "a text file has no row groups"));
            }
        }
        Ok(())
    }

    /// Returns the columns that a file names in its own header.
    fn header(&mut self, file: &TextFile, options: &TableOptions) -> Result<&[String]> {
        let is_known = self.own_header.as_ref().is_some_and(|(known, _)| *known == file.identity);
        // Copies of objects may have the identity of an earlier one that has been removed.
        if !is_known || file.has_holes {
            let names = header_of(file, options, &mut self.text)?;
            if names.iter().any(|name| name.contains('\0')) {
                let message = "its header is longer than the part of an object that is read for every mini-batch";
                return Err(Error::plan(&file.name, message));
            }
            self.own_header = Some((file.identity.clone(), names));
        }
        Ok(self.own_header.as_ref().map_or(&[], |(_, names)| names))
    }

    /// Appends the records at bytes `start..end` of a text.
    fn append_records(
        &mut self,
        file: &TextFile,
        start: u64,
        end: u64,
        options: &TableOptions,
        table: &mut Table,
    ) -> Result<()> {
        let mut stream = match self.stream.take() {
            Some(mut stream) if stream.leads_to(file, start) => {
                stream.skip_to(start)?;
                stream
            }
            _ if start == 0 => TextStream::open_table(file, options)?,
            _ => TextStream::open(file, start)?,
        };
        let window_bytes = usize::try_from(self.window_bytes).unwrap_or(usize::MAX);
        let mut windows =
            Windows::new(&mut stream, record_ends(options), window_bytes, end.max(start));
        let (mut has_first_line, mut is_sized) = (start == 0, end == u64::MAX);
        while windows.next(&mut self.text)? {
            if !self.text.is_blank(options.delimiter) {
                let behind = if is_sized { 0 } else { windows.behind() };
                self.append_text(file, options, has_first_line, behind, table)?;
                (has_first_line, is_sized) = (false, true);
            }
        }
        if end != u64::MAX && stream.position() < end {
            let message = format!("its text ends at byte {}, before byte {end}", stream.position());
            return Err(Error::plan(&file.name, message));
        }
        self.stream = file.is_stream.then_some(stream);
        Ok(())
    }

    /// Appends the rows of `self.text`. The block has `behind` bytes after the text.
    fn append_text(
        &mut self,
        file: &TextFile,
        options: &TableOptions,
        has_first_line: bool,
        behind: u64,
        table: &mut Table,
    ) -> Result<()> {
        let mut origin = Origin { file, text: &self.text, lines: &mut self.lines };
        if let Some(numbers) = &mut table.line_numbers {
            numbers.begin(origin.lines_before());
        }
        if options.format == TableFormat::Jsonl {
            table.append_jsonl(&mut origin);
            return Ok(());
        }
        let splitter = splitter(options);
        let mut from = 0;
        let first = has_first_line.then(|| first_row(splitter, origin.text.as_slice()));
        if let Some(first) = &first {
            refuse_cr_alone(&file.name, splitter, &origin.text.as_slice()[..first.next])?;
        }
        if let Some(first) = first.filter(|_| has_header(options)) {
            from = first.next;
            if first.is_broken {
                let defect = "the header line ends within quotes";
                table.problems.defect(Problem::BrokenHeader, (&mut origin, 0), None, None, defect);
            }
            let header = column_names(first.cells);
            let differs = |&index: &usize| header.get(index) != table.names.get(index);
            let other = match table.is_selection {
                _ if has_own_header(options) => None,
                false => (0..header.len().max(table.names.len())).find(differs),
                true => table.selected.iter().copied().find(differs),
            };
            match other {
                Some(index) if options.types == TypeRules::Pandas => {
                    let name = |names: &[String]| {
                        names.get(index).map_or("missing".to_owned(), |name| format!("{name:?}"))
                    };
                    let message = format!(
                        "has another header than the first file: column {} is {} instead of {}; set header: \
                         all_files_different_headers to read each file by its own header",
                        index + 1,
                        name(&header),
                        name(&table.names)
                    );
                    return Err(Error::kind(&file.name, message));
                }
                Some(_) => table.problems.other_header(&file.name),
                None => {}
            }
        }
        table.append_delimited(splitter, from, behind, &mut self.rows, &mut origin);
        Ok(())
    }

    fn decode_parquet(&mut self, request: &DecodeRequest) -> Result<Decoded> {
        let mut batches = Vec::with_capacity(request.blocks.len());
        let mut rows_of_blocks = Vec::with_capacity(request.blocks.len());
        let (mut declared, mut index, mut places) =
            (None, Vec::new(), Vec::with_capacity(request.blocks.len()));
        for block in request.blocks {
            let name = block.block.path.display();
            let BlockRange::RowGroup { row_group, offset, rows } = block.block.range else {
                return Err(Error::plan(&name, "a Parquet file has no lines"));
            };
            let (piece, is_alone) = ((row_group, offset, rows), request.blocks.len() == 1);
            let group =
                self.row_groups.read(block.path, &name, piece, request.options, is_alone)?;
            let batch = group.batch;
            declared.get_or_insert(group.declared);
            index = group.index;
            places.push(format!("{} {}", group.first_row, batch.num_rows()));
            rows_of_blocks.push(batch.num_rows());
            batches.push((name, batch));
        }
        let Some((_, first)) = batches.first() else {
            return Err(Error::Options("a mini-batch has no blocks".to_owned()));
        };
        let own = first.schema();
        let batch = joined(&own, batches)?;
        let mut rounded = Problems::new(request.options.on_type_mismatch);
        for (field, column) in own.fields().iter().zip(batch.columns()) {
            rounded_by_pandas(column, false, &mut |row, value, float| {
                rounded.rounded(
                    || place_of(row, request.blocks, &rows_of_blocks),
                    field.name(),
                    value,
                    float,
                );
            });
        }
        let fields = own.fields().iter().map(|field| field.as_ref().clone()).collect();
        let rows = batch.num_rows();
        let mut batch = assemble(fields, batch.columns().to_vec(), request, &rows_of_blocks, rows)?;
        let metadata = batch.schema_metadata_mut();
        if request.options.path_column.is_some() {
            metadata.insert(HAS_PATHS.to_owned(), String::new());
        }
        if let Some(declared) = declared {
            metadata.insert(DECLARED.to_owned(), encode_arrow_schema(&declared));
        }
        metadata.insert(PLACES.to_owned(), places.join(","));
        if !index.is_empty() {
            metadata
                .insert(INDEX.to_owned(), serde_json::to_string(&index).expect("texts serialise"));
        }
        Ok(Decoded {
            batch,
            rows: rows as u64,
            failed_records: 0,
            unread: Vec::new(),
            warnings: Warnings::default(),
            warnings_of_pandas: rounded.finish(request.options),
            as_items: None,
        })
    }
}

/// Returns the place of a row of a mini-batch within its row group.
fn place_of(mut row: usize, blocks: &[LocalBlock], rows_of_blocks: &[usize]) -> String {
    for (block, &rows) in blocks.iter().zip(rows_of_blocks) {
        if let BlockRange::RowGroup { row_group, offset, .. } = block.block.range
            && row < rows
        {
            let path = block.block.path.display();
            return format!("{path}, row group {row_group}, row {}", offset + row as u64 + 1);
        }
        row -= rows.min(row);
    }
    String::new()
}

/// Returns the place of a row of a mini-batch within its Parquet file. Reads the footer of the file.
fn row_of_file(mut row: u64, blocks: &[LocalBlock]) -> Result<Option<String>> {
    for LocalBlock { block, path, .. } in blocks {
        let BlockRange::RowGroup { row_group, offset, rows } = block.range else { return Ok(None) };
        if row < rows {
            let before: u64 = parquet_row_groups(path)?.iter().take(row_group as usize).sum();
            return Ok(Some(format!(
                "{}, row {}, counted from 0",
                block.path.display(),
                before + offset + row
            )));
        }
        row -= rows;
    }
    Ok(None)
}

/// Returns the columns of text tables that are in the files, not in their paths.
fn own_columns<'a>(request: &DecodeRequest<'a>) -> Result<&'a [TableColumn]> {
    let schema =
        request.schema.ok_or_else(|| Error::Options("text tables need a schema".to_owned()))?;
    let path_columns = request.blocks.first().map_or(0, |block| block.block.path_columns.len());
    Ok(&schema.columns[..schema.columns.len().saturating_sub(path_columns)])
}

/// Returns the positions in `names` of the listed columns; all positions without a list, and none in a table without
/// columns. Their order is that of the list; by the rules of pandas, for which `usecols` is a set, that of the file.
fn selection(names: &[String], options: &TableOptions) -> Result<Vec<usize>> {
    let listed = &options.columns;
    if listed.is_empty() || names.is_empty() {
        return Ok((0..names.len()).collect());
    }
    let positions: HashMap<&str, usize> =
        names.iter().enumerate().map(|(index, name)| (name.as_str(), index)).collect();
    let position = |name: &String| {
        let missing = || {
            Error::Options(format!("the files have no column \"{name}\", which `columns` lists"))
        };
        positions.get(name.as_str()).copied().ok_or_else(missing)
    };
    let mut selected: Vec<usize> = listed.iter().map(position).collect::<Result<_>>()?;
    if options.types == TypeRules::Pandas && options.format.is_delimited() {
        selected.sort_unstable();
    }
    Ok(selected)
}

/// Decodes one mini-batch. Callers that decode several keep a [`Decoder`].
pub fn decode(request: &DecodeRequest) -> Result<Decoded> {
    Decoder::default().decode(request)
}

fn finish(
    table: Table,
    own: &[TableColumn],
    request: &DecodeRequest,
    rows_of_blocks: &[usize],
) -> Result<Decoded> {
    let Table { selected, columns, rows, mut problems, texts, is_selection, .. } = table;
    let options = request.options;
    let failed = problems.failed_rows(rows);
    let mut of_pandas = Problems::new(options.on_type_mismatch);
    let mut columns_done = Vec::with_capacity(columns.len());
    for (&index, column) in selected.iter().zip(columns) {
        let TableColumn { name, has_missing, .. } = &own[index];
        let place = |row| format!("row {row} of a mini-batch");
        let rounded =
            |row, value: i64, rounded| problems.rounded(|| place(row), name, value.into(), rounded);
        let FinishedColumn { array, is_json } = column.finish(failed.as_deref(), rounded)?;
        if options.types == TypeRules::Original {
            rounded_by_pandas(&array, *has_missing, &mut |row, value, float| {
                of_pandas.rounded(|| place(row), name, value, float);
            });
        }
        if let Some((count, value)) = doubtful_values(&own[index], options, &array) {
            let first =
                request.blocks.first().map(|block| block.block.path.display()).unwrap_or_default();
            problems.doubtful(count, &first, &own[index], value);
        }
        let mut metadata = HashMap::new();
        if is_json {
            metadata.insert("ARROW:extension:name".to_owned(), JSON.to_owned());
        } else if let Some(word) = word_for_pandas(&own[index], options, &array) {
            metadata.insert(fields::PANDAS.to_owned(), word.to_owned());
        }
        columns_done.push((
            Field::new(name, array.data_type().clone(), true).with_metadata(metadata),
            array,
        ));
    }
    let fits =
        failed.map(|failed| BooleanArray::from_iter(failed.iter().map(|failed| Some(!failed))));
    let fitting = fits.as_ref().map_or(rows, BooleanArray::true_count);
    let mut as_items = None;
    if let Some(texts) = texts {
        let array = texts.finish()?.array;
        let selection = if is_selection { fields::SELECTED } else { "" };
        let hidden = |array: &dyn Array, key: &str, value: &str| {
            let metadata = HashMap::from([(key.to_owned(), value.to_owned())]);
            Field::new("", array.data_type().clone(), true).with_metadata(metadata)
        };
        if let Some(fits) = &fits {
            columns_done.push((hidden(fits, fields::FITS, ""), Arc::new(fits.clone())));
        }
        columns_done.push((hidden(&array, fields::LINES, selection), array));
        let (unread, warnings) = problems.of_lines(options);
        as_items = Some(AsItems { rows: rows as u64, unread, warnings });
    }
    let (fields, arrays) = columns_done.into_iter().unzip();
    let mut batch = assemble(fields, arrays, request, rows_of_blocks, rows)?;
    if let Some(fits) = fits.filter(|_| as_items.is_none()) {
        batch = filter_record_batch(&batch, &fits)?;
    }
    let failed_records = (rows - fitting) as u64 + problems.unread_records;
    let unread = problems.unread(failed_records);
    let (warnings, warnings_of_pandas) = (problems.finish(options), of_pandas.finish(options));
    Ok(Decoded {
        batch,
        rows: fitting as u64,
        failed_records,
        unread,
        warnings,
        warnings_of_pandas,
        as_items,
    })
}

/// Metadata of the batch of a Parquet file: the schema that its file declares, encoded as in the file.
pub(crate) const DECLARED: &str = "ARROW:schema";

/// Metadata of the batch of a Parquet file: `first count` for each of its blocks, separated by commas: the number of
/// the first row in its file, from 0, and the number of rows.
const PLACES: &str = "gristmill.places";
/// Metadata of the batch of a Parquet file: the columns that are in it only as an index of pandas, as a JSON list.
const INDEX: &str = "gristmill.index";

/// Metadata of the batch of a Parquet file whose first column is not in the file: `path_column`.
const HAS_PATHS: &str = "gristmill.has_paths";

/// Arrow's name for text that is JSON.
const JSON: &str = "arrow.json";

/// The text that Hive and Spark write in a path for a missing value.
const MISSING_IN_PATH: &str = "__HIVE_DEFAULT_PARTITION__";

/// Returns the batch of the columns in the files and the columns from their paths.
fn assemble(
    mut fields: Vec<Field>,
    mut arrays: Vec<ArrayRef>,
    request: &DecodeRequest,
    rows_of_blocks: &[usize],
    rows: usize,
) -> Result<RecordBatch> {
    let blocks = request.blocks;
    let text_column = |name: &str, value: &dyn Fn(&Block) -> String| -> Result<(Field, ArrayRef)> {
        let mut values = Texts::new(true);
        for (block, &rows) in blocks.iter().zip(rows_of_blocks) {
            let value = value(block.block);
            for _ in 0..rows {
                match value.as_str() {
                    MISSING_IN_PATH => values.take_missing(),
                    value => values.take_text(value.as_bytes()),
                }
            }
        }
        let FinishedColumn { array, .. } = values.finish()?;
        Ok((Field::new(name, array.data_type().clone(), true), array))
    };
    let path_columns = blocks.first().map_or(&[][..], |block| &block.block.path_columns);
    for (index, (name, _)) in path_columns.iter().enumerate() {
        let value = |block: &Block| {
            block.path_columns.get(index).map_or_else(String::new, |(_, value)| value.clone())
        };
        let (field, array) = text_column(name, &value)?;
        fields.push(field);
        arrays.push(array);
    }
    if let Some(name) = &request.options.path_column {
        let (field, array) = text_column(name, &|block| {
            String::from_utf8_lossy(block.path.as_bytes()).into_owned()
        })?;
        fields.insert(0, field);
        arrays.insert(0, array);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)?)
}

#[cfg(test)]
mod tests {
    use protocol::ItemPath;

    use super::*;

    #[test]
    fn long_block_is_decoded_in_pieces() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.csv");
        let lines = 40 * WINDOW_BYTES as usize / 8;
        std::fs::write(&path, format!("a,b\n{}", "123,456\n".repeat(lines))).expect("writable");
        let options = TableOptions::default();
        let schema = crate::infer_schema([path.as_path()], &options, &[]).expect("readable");
        let range = BlockRange::Lines { first: 0, last: u64::MAX };
        let block = Block {
            path: ItemPath::from(path.as_path()),
            version: None,
            range,
            path_columns: vec![],
        };
        let blocks = [LocalBlock { block: &block, path: &path, has_holes: false }];
        let mut decoder = Decoder::default();
        let decoded = decoder.decode(&DecodeRequest {
            blocks: &blocks,
            options: &options,
            schema: schema.as_ref(),
            with_lines: false,
        });
        assert_eq!(decoded.expect("readable").rows, lines as u64);
        assert!(decoder.text.bytes.capacity() < 4 * WINDOW_BYTES as usize);
    }
}
