//! The columns of the final file in a native format: CSV, JSON lines or Parquet.
//!
//! Rows are Arrow IPC streams. A pass over them reads their schemas, and the arrays of columns
//! whose type only the values decide; The result is [`Table`]: one field for each column, in the
//! order of their first appearance. Another pass writes the rows (`native.rs`).

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;

use anyhow::Context;
use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, Schema, SchemaRef, TimeUnit};
use arrow::ipc::reader::StreamReader;
use protocol::instant::Precision;
use protocol::words::counted;
use protocol::{
    ColumnKind, EXTENSION_NAME, JSON_EXTENSION, OutputFormat, PANDAS_METADATA, ROW_SHAPE,
    ResultColumn, RowShape,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::fractions;
use super::observed::{Conflict, Conflicts, Observed, Place, json_field};
use super::pandas::Frames;
use super::{InOrder, rows_of};

/// Categories of a column that are kept in order. More are rather texts.
const CATEGORIES_MAX: usize = 10_000;
/// Columns without a common type that warnings name.
const CONFLICTS_NAMED_MAX: usize = 10;

/// The columns of a file.
#[derive(Debug)]
pub(super) struct Table {
    pub schema: SchemaRef,
    pub shape: RowShape,
    conflicts: Conflicts,
}

/// A format of lines.
pub(super) trait Lines: Sync {
    /// Appends what precedes the rows.
    fn begin(&self, into: &mut Vec<u8>);
    /// Appends the rows of a batch.
    fn append(&self, batch: &RecordBatch, into: &mut Vec<u8>) -> anyhow::Result<()>;
}

/// Calls `take` for the stream, or for each of the streams that follow one another if the rows are `joined`.
pub(super) fn for_each_stream(
    mut rows: Box<dyn Read>,
    joined: bool,
    mut take: impl FnMut(&mut StreamReader<&mut dyn Read>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if !joined {
        let rows: &mut dyn Read = &mut rows;
        return take(&mut StreamReader::try_new(rows, None)?);
    }
    let mut rows = BufReader::new(rows);
    while !rows.fill_buf()?.is_empty() {
        let rest: &mut dyn Read = &mut rows;
        take(&mut StreamReader::try_new(rest, None)?)?;
    }
    Ok(())
}

/// Calls `take` for each batch of rows, with the place of its first row.
fn for_each_batch(
    rows: &mut InOrder<'_>,
    mut take: impl FnMut(Place, &RecordBatch) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    rows.for_each(&mut |mini_batch, rows, joined| {
        let mut row = 0;
        for_each_stream(rows, joined, |stream| {
            for batch in stream {
                let batch = batch?;
                take(Place { mini_batch, row }, &batch)?;
                row += batch.num_rows() as u64;
            }
            Ok(())
        })
        .with_context(|| rows_of(mini_batch))
    })
}

/// The findings of the passes over the rows.
#[derive(Default)]
struct Survey {
    names: Vec<String>,
    known: FxHashMap<String, usize>,
    columns: Vec<Observed>,
    shape: Option<RowShape>,
    frames: Frames,
    last: Option<SchemaRef>,
}

impl Survey {
    fn add_schema(&mut self, schema: &SchemaRef) {
        if self.last.as_ref().is_some_and(|last| last == schema) {
            return;
        }
        let shape = RowShape::parse(schema.metadata().get(ROW_SHAPE).map(String::as_str));
        self.shape = Some(self.shape.map_or(shape, |known| known.with(shape)));
        self.frames.add(schema.metadata().get(PANDAS_METADATA));
        for field in schema.fields() {
            let position = match self.known.get(field.name()) {
                Some(position) => *position,
                None => {
                    self.known.insert(field.name().clone(), self.names.len());
                    self.names.push(field.name().clone());
                    self.columns.push(Observed::default());
                    self.names.len() - 1
                }
            };
            self.columns[position].observe_type(field);
        }
        self.last = Some(schema.clone());
    }
}

impl Table {
    /// Finds the columns of all mini-batches. `declared`: columns that the job asks for, to which all rows have been
    /// checked.
    pub fn of(
        rows: &mut InOrder<'_>,
        format: OutputFormat,
        declared: &[ResultColumn],
    ) -> anyhow::Result<Self> {
        let mut survey = Survey::default();
        rows.for_each(&mut |mini_batch, rows, joined| {
            let read = for_each_stream(rows, joined, |stream| {
                survey.add_schema(&stream.schema());
                // The next stream begins behind the rows of this one.
                if joined {
                    stream.try_for_each(|batch| batch.map(drop)).map_err(Into::into)
                } else {
                    Ok(())
                }
            });
            read.with_context(|| rows_of(mini_batch))
        })?;
        let Survey { mut names, known, mut columns, shape, mut frames, .. } = survey;
        if let Some(index) = frames.counted().map(str::to_owned)
            && !counts_rows(rows, &index)?
        {
            frames.keep_labels();
        }
        let shape = shape.unwrap_or(RowShape::Record);
        if shape == RowShape::Missing {
            names.push("value".to_owned());
            columns.push(Observed::default());
        }
        let open: Vec<usize> =
            (0..columns.len()).filter(|position| columns[*position].is_open()).collect();
        let mut categories: HashMap<usize, Vec<ArrayRef>> = HashMap::new();
        if !open.is_empty() {
            for position in &open {
                if columns[*position].has_categories() {
                    categories.insert(*position, Vec::new());
                }
                columns[*position] = Observed::default();
            }
            observe(rows, &known, &open, &mut columns, &mut categories)?;
        }
        let mut conflicts =
            Conflicts { are_json: format == OutputFormat::Jsonl, ..Conflicts::default() };
        let field = |(name, column): (&String, &Observed)| {
            let field = column.field(name, name, &mut conflicts);
            // A part of a value cannot be told from the JSON around it.
            if conflicts.are_json && has_json_part(field.data_type()) {
                json_field(name)
            } else {
                field
            }
        };
        let mut fields: Vec<Field> = names.iter().zip(&columns).map(field).collect();
        fields.retain(|field| !frames.left_out().contains(field.name()));
        for (position, ResultColumn { name, kind, .. }) in declared.iter().enumerate() {
            let found = fields
                .iter()
                .position(|field| field.name() == name)
                .map(|found| fields.remove(found));
            let found = found.unwrap_or_else(|| Field::new(name, DataType::Utf8, true));
            fields.insert(position, declared_field(*kind, found));
            // The job has asked for this type.
            conflicts.found.retain(|conflict| conflict.column != *name);
        }
        for (position, arrays) in categories {
            if let Some(field) = fields.iter_mut().find(|field| *field.name() == names[position])
                && matches!(field.data_type(), DataType::Dictionary(..))
                && let Some(known) = category_names(&arrays)
            {
                *field =
                    field.clone().with_metadata(HashMap::from([(CATEGORIES.to_owned(), known)]));
            }
        }
        if format == OutputFormat::Csv && fields.iter().any(fractions::may_need) {
            for (name, precision) in precisions(rows, &fields)? {
                if let Some(field) = fields.iter_mut().find(|field| *field.name() == name) {
                    *field = fractions::with(field, precision);
                }
            }
        }
        let known = frames.metadata(&fields).map(|known| (PANDAS_METADATA.to_owned(), known));
        let metadata: HashMap<String, String> = known.into_iter().collect();
        Ok(Self { schema: Arc::new(Schema::new_with_metadata(fields, metadata)), shape, conflicts })
    }

    /// Returns warnings about columns whose values have no common type, one line each.
    pub fn warnings(&self) -> Vec<String> {
        let named = self.conflicts.found.iter().take(CONFLICTS_NAMED_MAX);
        let mut warnings: Vec<String> =
            named.map(|conflict| warning(conflict, self.conflicts.are_json)).collect();
        if let more @ 1.. = self.conflicts.found.len().saturating_sub(CONFLICTS_NAMED_MAX) {
            warnings.push(format!(
                "values without a common type are in {}",
                counted(more as u64, "more column")
            ));
        }
        warnings
    }
}

/// Key of the metadata of a field with its categories in their order, as a list in JSON.
pub(super) const CATEGORIES: &str = "gristmill.categories";

/// Reads the values of open columns.
fn observe(
    rows: &mut InOrder<'_>,
    known: &FxHashMap<String, usize>,
    open: &[usize],
    columns: &mut [Observed],
    categories: &mut HashMap<usize, Vec<ArrayRef>>,
) -> anyhow::Result<()> {
    for_each_batch(rows, |first, batch| {
        for (field, array) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            let position = known[field.name()];
            if open.binary_search(&position).is_err() {
                continue;
            }
            columns[position].observe(array, field, first);
            if let (Some(arrays), DataType::Dictionary(..)) =
                (categories.get_mut(&position), array.data_type())
            {
                let values = array.as_any_dictionary().values();
                if !arrays.iter().any(|array| array == values) {
                    arrays.push(values.clone());
                }
            }
        }
        Ok(())
    })
}

/// Returns whether a column has the numbers 0, 1, 2, … over all mini-batches.
fn counts_rows(rows: &mut InOrder<'_>, column: &str) -> anyhow::Result<bool> {
    let (mut next, mut counts) = (0, true);
    for_each_batch(rows, |_, batch| {
        let Some(numbers) = batch.column_by_name(column) else {
            counts &= batch.num_rows() == 0;
            return Ok(());
        };
        let numbers = cast(numbers, &DataType::Int64)?;
        for number in numbers.as_primitive::<Int64Type>() {
            counts &= number == Some(next);
            next += 1;
        }
        Ok(())
    })?;
    Ok(counts)
}

/// Returns the precision of each column of times.
fn precisions(
    rows: &mut InOrder<'_>,
    fields: &[Field],
) -> anyhow::Result<Vec<(String, Precision)>> {
    let times: Vec<&Field> = fields.iter().filter(|field| fractions::may_need(field)).collect();
    let mut found = vec![Precision::Second; times.len()];
    for_each_batch(rows, |_, batch| {
        for (field, precision) in times.iter().zip(&mut found) {
            if let Some(column) = batch.column_by_name(field.name()) {
                *precision = (*precision).max(fractions::needed(column, field.data_type()));
            }
        }
        Ok(())
    })?;
    Ok(times.into_iter().map(|field| field.name().clone()).zip(found).collect())
}

/// Returns the categories of all mini-batches in the order of their first appearance, as a list in JSON.
fn category_names(arrays: &[ArrayRef]) -> Option<String> {
    let mut names: Vec<serde_json::Value> = Vec::new();
    let mut known = FxHashSet::default();
    for array in arrays {
        let texts = cast(array, &DataType::Utf8).ok()?;
        let is_text =
            matches!(array.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
        // Texts of numbers and truth values are JSON, but for infinite ones.
        let data_type = array.data_type();
        let is_plain =
            data_type.is_integer() || data_type.is_floating() || *data_type == DataType::Boolean;
        if !is_text && !is_plain {
            return None;
        }
        for text in texts.as_string::<i32>().iter().flatten() {
            let value = if is_text { text.into() } else { serde_json::from_str(text).ok()? };
            if known.insert(text.to_owned()) {
                names.push(value);
            }
        }
        if names.len() > CATEGORIES_MAX {
            return None;
        }
    }
    serde_json::to_string(&names).ok()
}

/// Returns whether a part of the values is JSON.
fn has_json_part(data_type: &DataType) -> bool {
    let is_json = |field: &FieldRef| {
        field.metadata().get(EXTENSION_NAME).is_some_and(|name| name == JSON_EXTENSION)
            || has_json_part(field.data_type())
    };
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            is_json(item)
        }
        DataType::Map(entries, _) => has_json_part(entries.data_type()),
        DataType::Struct(fields) => fields.iter().any(is_json),
        _ => false,
    }
}

/// Returns the field of a declared column, whose values have the type of `found`.
fn declared_field(kind: ColumnKind, found: Field) -> Field {
    let data_type = match (kind, found.data_type()) {
        (ColumnKind::Any, _)
        | (ColumnKind::Timestamp, DataType::Timestamp(..))
        | (ColumnKind::String, DataType::LargeUtf8) => return found,
        (ColumnKind::String, _) => DataType::Utf8,
        (ColumnKind::Integer, _) => DataType::Int64,
        (ColumnKind::Number, _) => DataType::Float64,
        (ColumnKind::Boolean, _) => DataType::Boolean,
        (ColumnKind::Timestamp, _) => DataType::Timestamp(TimeUnit::Microsecond, None),
        (ColumnKind::Date, _) => DataType::Date32,
    };
    Field::new(found.name(), data_type, true)
}

/// Returns the line about a column whose values have no common type.
fn warning(conflict: &Conflict, are_json: bool) -> String {
    let kinds: Vec<String> = conflict
        .kinds
        .iter()
        .map(|(word, values, first)| {
            let place = first.map_or_else(String::new, |Place { mini_batch, row }| {
                format!(", the first in mini-batch {mini_batch}, row {row}")
            });
            format!("{word} ({}{place})", counted(*values, "value"))
        })
        .collect();
    let kinds = match kinds.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => kinds.concat(),
    };
    let column = &conflict.column;
    match are_json {
        true => format!(
            "column {column:?} has values without a common type, each written as it is: {kinds}"
        ),
        false => format!(
            "column {column:?} is text, because no type holds all of its values without loss: {kinds}; return values of \
             one kind, or set output_format: native with a file name that ends in .jsonl"
        ),
    }
}
