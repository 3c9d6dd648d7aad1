//! Describes columns of a table for people: type, some values, and the reason for the type, from the first rows.

use std::fs::File;
use std::path::Path;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use protocol::{
    Block, BlockRange, ColumnType, ItemPath, TableColumn, TableOptions, TableSchema, WarningKind,
};
use serde::Serialize;

use crate::WINDOW_ROWS;
use crate::blocks::{RangeSize, text_ranges};
use crate::decode::{DecodeRequest, Decoder, LocalBlock};
use crate::error::{Result, display, unreadable};
use crate::first_rows::cut_to;
use crate::row_groups::guarded;
use crate::scalar::{is_whole, parse_float, parse_integer, parse_unsigned, trim};
use crate::source::must_be_read;

/// Maximum number of values shown of a column, and of characters of each.
const SAMPLES: usize = 3;
const SAMPLE_CHARACTERS: usize = 24;
/// Maximum bytes of text to read.
const TEXT_BYTES: u64 = 64 * 1024;

/// The type of text.
const TEXT: &str = "object (str)";

/// One column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sketch {
    /// Its name.
    pub name: String,
    /// Its type in the frame; for Parquet, its type in the file.
    #[serde(rename = "type")]
    pub column_type: String,
    /// The first distinct values that are not missing.
    pub samples: Vec<String>,
    /// Why it has this type.
    pub reason: String,
}

/// Returns the columns of a text table with the types of `schema`. The last `path_columns` of them come from the path.
/// `path` is a file of the input, or its beginning.
pub fn text_sketches(
    path: &Path,
    options: &TableOptions,
    schema: &TableSchema,
    path_columns: usize,
) -> Result<Vec<Sketch>> {
    let own = schema.columns.len() - path_columns;
    let name = display(path);
    let range = match options.has_one_header() || must_be_read(name.as_bytes(), options) {
        true => {
            let ranges = text_ranges(path, &name, options, RangeSize::Rows(WINDOW_ROWS as u64))?;
            let first =
                if options.has_one_header() { ranges.without_header() } else { ranges }.next();
            first.transpose()?.map_or(BlockRange::WholeText, |(range, _)| range)
        }
        false => BlockRange::Lines { first: 0, last: TEXT_BYTES },
    };
    let block =
        Block { path: ItemPath::from(path), version: None, range, path_columns: Vec::new() };
    let block = [LocalBlock { block: &block, path, has_holes: false }];
    let own_schema =
        TableSchema { columns: schema.columns[..own].to_vec(), is_empty: schema.is_empty };
    let request =
        DecodeRequest { blocks: &block, options, schema: Some(&own_schema), with_lines: false };
    let decoded = Decoder::default().decode(&request)?;
    let batch = decoded.batch.slice(0, decoded.batch.num_rows().min(WINDOW_ROWS));
    let mut sketches = Vec::with_capacity(schema.columns.len());
    for (field, array) in batch.schema().fields().iter().zip(batch.columns()) {
        let found = schema.columns.iter().find(|column| column.name == *field.name());
        let column_type = found.map_or(ColumnType::Text, |column| column.column_type);
        let values = values(array.as_ref());
        let reason = match options.infer_column_types {
            _ if options.column_types.contains_key(field.name()) => "`columns` says so".to_owned(),
            true => {
                let doubtful = found.and_then(|column| column.doubtful.as_deref());
                let reason = reason(column_type, doubtful, &values, array.len());
                let is_of_column = |kind: &&WarningKind| kind.column.as_ref() == Some(field.name());
                match decoded.warnings.kinds.iter().find(is_of_column) {
                    // The reason names a doubtful text.
                    Some(kind) if doubtful.is_none() => format!("{reason}; {}", kind.problem),
                    _ => reason,
                }
            }
            false => "`infer_column_types: false`".to_owned(),
        };
        let column_type = match column_type {
            _ if found.is_some_and(|column| column.has_missing) => "float64".to_owned(),
            ColumnType::Json => "object (dict, list, …)".to_owned(),
            ColumnType::Boolean if array.null_count() > 0 => "object (bool)".to_owned(),
            _ => type_name(array.data_type()),
        };
        sketches.push(Sketch {
            name: field.name().clone(),
            column_type,
            samples: samples(&values),
            reason,
        });
    }
    sketches.extend(schema.columns[own..].iter().map(|column| from_path(&column.name)));
    Ok(sketches)
}

/// Returns a column from the path.
pub fn from_path(name: &str) -> Sketch {
    Sketch {
        name: name.to_owned(),
        column_type: TEXT.to_owned(),
        samples: Vec::new(),
        reason: "from the path, by `partition_format`".to_owned(),
    }
}

/// Returns the column of paths.
pub fn path_column(name: &str) -> Sketch {
    Sketch { reason: "the path of the file of each row".to_owned(), ..from_path(name) }
}

/// Returns the columns of a text table without values.
pub fn schema_sketches(schema: &TableSchema) -> Vec<Sketch> {
    let sketch = |column: &TableColumn| Sketch {
        name: column.name.clone(),
        column_type: match column.column_type {
            ColumnType::Integer | ColumnType::Unsigned if column.has_missing => "float64",
            ColumnType::Integer => "int64",
            ColumnType::Unsigned => "uint64",
            ColumnType::Float => "float64",
            ColumnType::Boolean => "bool",
            ColumnType::DateTimeMonthFirst | ColumnType::DateTimeDayFirst if column.has_offset => {
                "datetime64[ns, UTC]"
            }
            ColumnType::DateTimeMonthFirst | ColumnType::DateTimeDayFirst => "datetime64[ns]",
            _ => "object",
        }
        .to_owned(),
        samples: Vec::new(),
        reason: format!("from the first {WINDOW_ROWS} rows"),
    };
    schema.columns.iter().map(sketch).collect()
}

/// Returns the columns of a Parquet file; `has_rows` says whether the file contains more than its footer.
pub fn parquet_sketches(
    path: &Path,
    options: &TableOptions,
    has_rows: bool,
) -> Result<Vec<Sketch>> {
    let name = display(path);
    let file = File::open(path).map_err(unreadable(&name))?;
    let (schema, batch) = guarded(&name, "footer", || {
        let builder = ParquetRecordBatchReaderBuilder::try_new(file)?;
        let schema = builder.schema().clone();
        let first = match has_rows {
            true => builder
                .with_limit(WINDOW_ROWS)
                .with_batch_size(WINDOW_ROWS)
                .build()?
                .next()
                .transpose()?,
            false => None,
        };
        Ok((schema, first))
    })?;
    let is_read = |name: &String| options.columns.is_empty() || options.columns.contains(name);
    let fields = schema.fields().iter().enumerate().filter(|(_, field)| is_read(field.name()));
    let sketches = fields.map(|(index, field)| {
        let given = options.column_types.get(field.name());
        Sketch {
            name: field.name().clone(),
            column_type: given
                .map_or_else(|| type_name(field.data_type()), |given| given.name().to_owned()),
            samples: batch
                .as_ref()
                .map_or_else(Vec::new, |batch: &RecordBatch| samples(&values(batch.column(index)))),
            reason: if given.is_some() { "`columns` says so" } else { "as in the file" }.to_owned(),
        }
    });
    Ok(sketches.collect())
}

/// Returns the values that are not missing, as text.
fn values(array: &dyn Array) -> Vec<String> {
    let Ok(formatter) = ArrayFormatter::try_new(array, &FormatOptions::default()) else {
        return Vec::new();
    };
    let is_there = |row: &usize| array.is_valid(*row);
    let shown = (0..array.len()).filter(is_there).map(|row| formatter.value(row).to_string());
    shown.filter(|value| value != "NaN").collect()
}

fn samples(values: &[String]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for value in values {
        let shown = cut_to(value, SAMPLE_CHARACTERS);
        if !found.contains(&shown) {
            found.push(shown);
        }
        if found.len() == SAMPLES {
            break;
        }
    }
    found
}

fn reason(
    column_type: ColumnType,
    doubtful: Option<&str>,
    values: &[String],
    rows: usize,
) -> String {
    let missing = match rows - values.len() {
        0 => String::new(),
        missing => format!(", {missing} of {rows} missing"),
    };
    let seen = format!(
        "({} value{} seen{missing})",
        values.len(),
        if values.len() == 1 { "" } else { "s" }
    );
    match column_type {
        _ if values.is_empty() => format!("no values in the first {rows} rows"),
        ColumnType::Boolean => format!("truth values of one notation {seen}"),
        ColumnType::Integer | ColumnType::Unsigned => format!("whole numbers {seen}"),
        ColumnType::Float => format!("numbers {seen}"),
        ColumnType::DateTimeMonthFirst => match doubtful {
            Some(date) => format!("dates such as {date}, with the month before the day {seen}"),
            None => format!("dates {seen}"),
        },
        ColumnType::DateTimeDayFirst => format!("dates, day before month {seen}"),
        ColumnType::Json => format!("objects, arrays, or values of several kinds {seen}"),
        _ => match values.iter().find(|value| parse_float(trim(value.as_bytes())).is_none()) {
            Some(value) => {
                let sample = samples(std::slice::from_ref(value)).concat();
                format!("not all are numbers, dates or truth values: {sample:?} {seen}")
            }
            None if values.iter().any(|value| is_beyond_64_bits(value)) => {
                format!("whole numbers beyond 64 bits {seen}")
            }
            None => format!("numbers in these rows, but other rows have other values {seen}"),
        },
    }
}

fn is_beyond_64_bits(value: &str) -> bool {
    let value = trim(value.as_bytes());
    is_whole(value) && parse_integer(value).is_none() && parse_unsigned(value).is_none()
}

/// Returns the pandas name of a type, if pandas has the type.
fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Boolean => "bool".to_owned(),
        DataType::Float32 | DataType::Float64 => data_type.to_string().to_lowercase(),
        _ if data_type.is_integer() => data_type.to_string().to_lowercase(),
        DataType::Timestamp(_, None) => "datetime64[ns]".to_owned(),
        DataType::Timestamp(_, Some(zone)) => format!("datetime64[ns, {zone}]"),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => TEXT.to_owned(),
        DataType::Null => "object (all missing)".to_owned(),
        other => other.to_string(),
    }
}
