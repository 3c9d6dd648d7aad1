//! The first rows of a result, as texts for people: CSV, JSON lines, Parquet, or Arrow IPC as parts have it.

use std::fs::File;
use std::io::Cursor;

use arrow::array::{Array, ArrayRef, RecordBatch, make_array};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use protocol::OutputFormat;

use crate::error::Result;
use crate::split::{FirstRow, Splitter, first_row};

/// The longest text of a cell; longer ones are cut.
const CELL_CHARACTERS_MAX: usize = 2000;
const COLUMNS_MAX: usize = 1000;

/// The first rows of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirstRows {
    /// Names of the columns, if they are known.
    pub columns: Option<Vec<String>>,
    /// Rows; `None`: a missing value.
    pub cells: Vec<Vec<Option<String>>>,
    /// Whether there are no more rows.
    pub is_all: bool,
}

/// Returns the first rows of a file of text. `is_whole`: the bytes are not cut off; otherwise an incomplete last line
/// is left out.
pub fn first_rows(
    bytes: &[u8],
    is_whole: bool,
    format: OutputFormat,
    rows_max: usize,
) -> FirstRows {
    let bytes = match bytes.iter().rposition(|byte| *byte == b'\n') {
        Some(last) if !is_whole => &bytes[..=last],
        _ => bytes,
    };
    let mut rows = match format {
        OutputFormat::Csv => delimited(bytes, rows_max),
        OutputFormat::Jsonl => records(bytes, rows_max),
        OutputFormat::Text | OutputFormat::Parquet => lines(bytes, rows_max),
    };
    rows.is_all &= is_whole;
    rows
}

/// Returns the first rows of an Arrow IPC stream, as a process hands them over.
pub fn first_stream_rows(bytes: &[u8], rows_max: usize) -> Result<FirstRows> {
    let reader = StreamReader::try_new(Cursor::new(bytes), None)?;
    batches(reader.map(|batch| batch.map_err(Into::into)), rows_max)
}

/// Returns the first rows of a Parquet file.
pub fn first_parquet_rows(file: File, rows_max: usize) -> Result<FirstRows> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(ArrowError::from)?;
    let columns: Vec<String> =
        builder.schema().fields().iter().map(|field| field.name().clone()).collect();
    let reader = builder.with_batch_size(rows_max + 1).with_limit(rows_max + 1).build();
    let reader = reader.map_err(ArrowError::from)?;
    let rows = batches(reader.map(|batch| batch.map_err(Into::into)), rows_max)?;
    Ok(FirstRows { columns: rows.columns.or(Some(columns)), ..rows })
}

fn batches(
    batches: impl Iterator<Item = Result<RecordBatch>>,
    rows_max: usize,
) -> Result<FirstRows> {
    let mut found = FirstRows { is_all: true, ..FirstRows::default() };
    for batch in batches {
        let batch = batch?;
        let fields = batch.schema_ref().fields().iter().take(COLUMNS_MAX);
        found.columns.get_or_insert_with(|| fields.map(|field| field.name().clone()).collect());
        let options = FormatOptions::default();
        let columns: Vec<_> = batch.columns().iter().take(COLUMNS_MAX).map(in_utc).collect();
        let formatters =
            columns.iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
        let formatters = formatters.collect::<std::result::Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            if found.cells.len() == rows_max {
                found.is_all = false;
                return Ok(found);
            }
            let cells = columns.iter().zip(&formatters).map(|(column, formatter)| {
                match column.is_null(row) {
                    true => None,
                    false => Some(cut(&formatter.value(row).to_string())),
                }
            });
            found.cells.push(cells.collect());
        }
    }
    Ok(found)
}

/// Returns a column with times in UTC instead of a named zone, whose rules only a database knows.
pub(crate) fn in_utc(column: &ArrayRef) -> ArrayRef {
    let DataType::Timestamp(unit, Some(_)) = column.data_type() else { return column.clone() };
    let utc = DataType::Timestamp(*unit, Some("+00:00".into()));
    let column = column.to_data().into_builder().data_type(utc);
    make_array(column.build().expect("only the name of the zone differs"))
}

fn cut(text: &str) -> String {
    cut_to(text, CELL_CHARACTERS_MAX)
}

/// Returns a text with an ellipsis in place of what follows its first `characters_max` characters.
pub(crate) fn cut_to(text: &str, characters_max: usize) -> String {
    match text.char_indices().nth(characters_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn lines(bytes: &[u8], rows_max: usize) -> FirstRows {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let cells = lines.by_ref().take(rows_max).map(|line| vec![Some(cut(line))]).collect();
    FirstRows { columns: None, cells, is_all: lines.next().is_none() }
}

fn delimited(bytes: &[u8], rows_max: usize) -> FirstRows {
    let splitter = Splitter { delimiter: b',', multi_line: true, drops_lossy: false };
    let mut rest = bytes;
    let mut rows = std::iter::from_fn(|| {
        let FirstRow { mut cells, next, .. } = first_row(splitter, rest);
        rest = &rest[next..];
        cells.truncate(COLUMNS_MAX);
        (!cells.is_empty()).then_some(cells)
    });
    let columns = rows.next();
    let cells = rows.by_ref().take(rows_max);
    let cells = cells.map(|row| {
        row.into_iter().map(|cell| Some(cut(&cell)).filter(|cell| !cell.is_empty())).collect()
    });
    FirstRows { columns, cells: cells.collect(), is_all: rows.next().is_none() }
}

/// Returns the first JSON lines as a table of all keys that occur in them.
fn records(bytes: &[u8], rows_max: usize) -> FirstRows {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let values: Vec<serde_json::Value> = lines
        .by_ref()
        .take(rows_max)
        .map(|line| {
            serde_json::from_str(line)
                .unwrap_or_else(|_| serde_json::Value::String(line.to_owned()))
        })
        .collect();
    let is_all = lines.next().is_none();
    let mut columns: Vec<String> = Vec::new();
    for value in values.iter().filter_map(serde_json::Value::as_object) {
        for key in value.keys() {
            if columns.len() < COLUMNS_MAX && !columns.contains(key) {
                columns.push(key.clone());
            }
        }
    }
    let shown = |value: &serde_json::Value| match value {
        serde_json::Value::Null => None,
        serde_json::Value::String(text) => Some(cut(text)),
        other => Some(cut(&other.to_string())),
    };
    if columns.is_empty() {
        let cells = values.iter().map(|value| vec![shown(value)]).collect();
        return FirstRows { columns: None, cells, is_all };
    }
    let row = |value: &serde_json::Value| match value.as_object() {
        Some(object) => columns.iter().map(|column| object.get(column).and_then(shown)).collect(),
        None => vec![shown(value)],
    };
    FirstRows { cells: values.iter().map(row).collect(), columns: Some(columns), is_all }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, LargeStringArray, TimestampSecondArray};
    use arrow::datatypes::{Field, Schema, TimeUnit};
    use parquet::arrow::ArrowWriter;

    use super::*;
    use crate::IpcStream;

    fn cell(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn fields_in_quotes_hold_anything() {
        let text = b"a,b\r\n1,\"x, \"\"y\"\"\nz\"\n2,\n3,cut o";
        let rows = first_rows(text, false, OutputFormat::Csv, 10);
        assert_eq!(rows.columns, Some(vec!["a".into(), "b".into()]));
        assert_eq!(rows.cells, [vec![cell("1"), cell("x, \"y\"\nz")], vec![cell("2"), None]]);
        assert!(!rows.is_all);
        let rows = first_rows(b"k\n1\n2\n", true, OutputFormat::Csv, 1);
        assert_eq!((rows.cells.len(), rows.is_all), (1, false));
    }

    #[test]
    fn json_lines_have_all_keys() {
        let text = b"{\"a\":1,\"b\":null}\n{\"a\":\"<b>\",\"c\":[1]}\nno json\n";
        let rows = first_rows(text, true, OutputFormat::Jsonl, 10);
        assert_eq!(rows.columns, Some(vec!["a".into(), "b".into(), "c".into()]));
        assert_eq!(rows.cells[0], [cell("1"), None, None]);
        assert_eq!(rows.cells[1], [cell("<b>"), None, cell("[1]")]);
        assert!(rows.is_all);
    }

    #[test]
    fn arrow_and_parquet_become_texts() {
        let fields = [("n", DataType::Int64), ("t", DataType::LargeUtf8)];
        let zone = DataType::Timestamp(TimeUnit::Second, Some("Europe/Zurich".into()));
        let fields = fields.into_iter().chain([("at", zone.clone())]);
        let schema = Arc::new(Schema::new(
            fields.map(|(name, kind)| Field::new(name, kind, true)).collect::<Vec<_>>(),
        ));
        let numbers = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
        let texts = Arc::new(LargeStringArray::from(vec![Some("a"), Some("b"), None]));
        let times = TimestampSecondArray::from(vec![Some(0), None, None]).with_data_type(zone);
        let batch = RecordBatch::try_new(schema.clone(), vec![numbers, texts, Arc::new(times)])
            .expect("equal lengths");
        let stream = IpcStream::new(&batch).expect("a stream");
        let stream = stream.pieces().collect::<Vec<_>>().concat();
        let rows = first_stream_rows(&stream, 2).expect("a stream");
        let first = vec![cell("1"), cell("a"), cell("1970-01-01T00:00:00Z")];
        assert_eq!(rows.cells, [first, vec![None, cell("b"), None]]);
        assert!(!rows.is_all);
        let mut file = tempfile::tempfile().expect("a file");
        let mut writer = ArrowWriter::try_new(file.try_clone().expect("a file"), schema, None)
            .expect("a writer");
        writer.write(&batch).expect("written");
        writer.close().expect("written");
        std::io::Seek::rewind(&mut file).expect("a file");
        let rows = first_parquet_rows(file, 3).expect("Parquet");
        assert_eq!((rows.cells.len(), rows.is_all), (3, true));
    }

    #[test]
    fn anything_else_is_an_error_or_text() {
        assert!(first_stream_rows(b"no arrow", 9).is_err());
        let rows = first_rows(b"\xff\x00a\nb", true, OutputFormat::Text, 9);
        assert_eq!(rows.cells.len(), 2);
    }
}
