//! The final file as Parquet. Rows are Arrow IPC streams. A first pass unifies their schemas, and a second pass casts
//! each batch to the unified schema.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use ::parquet::basic::Compression;
use ::parquet::file::properties::WriterProperties;
use anyhow::{Context, bail};
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, new_null_array};
use arrow::compute::{CastOptions, cast_with_options, nullif};
use arrow::datatypes::{DataType, Field, Float64Type, Schema, SchemaRef, TimeUnit};
use arrow::ipc::reader::StreamReader;
use protocol::{ColumnKind, ResultColumn};

use super::{InOrder, rows_of};

/// Limits on row groups, which bound the memory of the writer and give readers groups of a useful size.
const ROW_GROUP_ROWS: usize = 1 << 20;
const ROW_GROUP_BYTES: usize = 64 << 20;

/// Writes the rows of every mini-batch. `declared`: columns that the job asks for, to which all rows have been checked. Calls `between` after each with its position; an error from it ends the
/// writing.
pub(super) fn write(
    into: &mut (impl Write + Send),
    rows: &mut dyn InOrder,
    declared: &[ResultColumn],
    between: &dyn Fn(usize) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let schema = unified_schema(rows, declared)?;
    let mut writer =
        ArrowWriter::try_new(into, schema.clone(), Some(properties())).context("start the Parquet file")?;
    let mut position = 0;
    rows.for_each(&mut |mini_batch, rows, joined| {
        for_each_stream(rows, joined, |stream| {
            for batch in stream {
                writer.write(&conform(&batch?, &schema)?)?;
            }
            Ok(())
        })
        .with_context(|| rows_of(mini_batch))?;
        position += 1;
        between(position - 1)
    })?;
    writer.close().map(drop).context("finish the Parquet file")
}

/// Calls `take` for the stream, or for each of the streams that follow one another if the rows are `joined`.
fn for_each_stream(
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

/// Returns the settings of every Parquet file of a job.
pub(crate) fn properties() -> WriterProperties {
    WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by("gristmill".to_owned())
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_max_row_group_bytes(Some(ROW_GROUP_BYTES))
        .build()
}

/// Returns one schema for all mini-batches: declared columns, then others by name in the order of their first appearance.
fn unified_schema(rows: &mut dyn InOrder, declared: &[ResultColumn]) -> anyhow::Result<SchemaRef> {
    let mut fields: Vec<Field> = Vec::new();
    let mut last: Option<SchemaRef> = None;
    let mut add = |mini_batch: u64, schema: SchemaRef| -> anyhow::Result<()> {
        if last.as_ref().is_some_and(|last| last.fields() == schema.fields()) {
            return Ok(());
        }
        for (position, field) in schema.fields().iter().enumerate() {
            let name = field.name();
            if schema.fields()[..position].iter().any(|other| other.name() == name) {
                bail!("mini-batch {mini_batch} has two columns named {name:?}; return columns with distinct names");
            }
            let data_type = plain(field.data_type());
            let Some(known) = fields.iter_mut().find(|known| known.name() == name) else {
                fields.push(Field::new(name, data_type, true));
                continue;
            };
            let Some(unified) = unify(known.data_type(), &data_type) else {
                bail!(
                    "column {name:?} of mini-batch {mini_batch} is {data_type}, but {} in earlier mini-batches; return \
                     the same type from every run()",
                    known.data_type()
                );
            };
            *known = Field::new(name, unified, true);
        }
        last = Some(schema);
        Ok(())
    };
    rows.for_each(&mut |mini_batch, rows, joined| {
        if !joined {
            let stream = StreamReader::try_new(rows, None);
            return add(mini_batch, stream.with_context(|| rows_of(mini_batch))?.schema());
        }
        let mut schemas = Vec::new();
        for_each_stream(rows, true, |stream| {
            schemas.push(stream.schema());
            stream.try_for_each(|batch| batch.map(drop)).map_err(Into::into)
        })
        .with_context(|| rows_of(mini_batch))?;
        schemas.into_iter().try_for_each(|schema| add(mini_batch, schema))
    })?;
    for (position, ResultColumn { name, kind, .. }) in declared.iter().enumerate() {
        let found = fields.iter().position(|field| field.name() == name).map(|found| fields.remove(found));
        let found = found.map_or(DataType::Null, |field| field.data_type().clone());
        fields.insert(position, Field::new(name, declared_type(*kind, found), true));
    }
    // A column without any value in the whole job becomes text, which readers handle best.
    for field in &mut fields {
        if *field.data_type() == DataType::Null {
            *field = Field::new(field.name(), DataType::Utf8, true);
        }
    }
    Ok(Arc::new(Schema::new(fields)))
}

/// Returns the type of a declared column, whose values have the type `found`.
fn declared_type(kind: ColumnKind, found: DataType) -> DataType {
    match (kind, &found) {
        (ColumnKind::Timestamp, DataType::Timestamp(..)) | (ColumnKind::String, DataType::LargeUtf8) => found,
        (ColumnKind::String, DataType::Binary | DataType::LargeBinary) | (ColumnKind::Any, _) => found,
        (ColumnKind::String, _) => DataType::Utf8,
        (ColumnKind::Integer, _) => DataType::Int64,
        (ColumnKind::Number, _) => DataType::Float64,
        (ColumnKind::Boolean, _) => DataType::Boolean,
        (ColumnKind::Timestamp, _) => DataType::Timestamp(TimeUnit::Microsecond, None),
        (ColumnKind::Date, _) => DataType::Date32,
    }
}

/// Returns the type of the values. Categories apply only within one frame.
fn plain(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => plain(values),
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        other => other.clone(),
    }
}

/// Returns the type that holds the values of both, as pandas would choose it.
fn unify(left: &DataType, right: &DataType) -> Option<DataType> {
    use DataType::{Binary, Boolean, Date32, Date64, Float64, LargeBinary, LargeUtf8, Null, Timestamp, Utf8};
    if left == right {
        return Some(left.clone());
    }
    match (left, right) {
        (Null, other) | (other, Null) => Some(other.clone()),
        (Utf8, LargeUtf8) | (LargeUtf8, Utf8) => Some(LargeUtf8),
        (Binary, LargeBinary) | (LargeBinary, Binary) => Some(LargeBinary),
        (Timestamp(left_unit, left_zone), Timestamp(right_unit, right_zone)) if left_zone == right_zone => {
            Some(Timestamp((*left_unit).max(*right_unit), left_zone.clone()))
        }
        (left, right) if left.is_integer() && right.is_integer() => Some(unify_integers(left, right)),
        (left, right) if left.is_numeric() && right.is_numeric() && !is_decimal(left) && !is_decimal(right) => {
            Some(Float64)
        }
        (left, right) => {
            let is_text = |data_type: &DataType| matches!(data_type, Utf8 | LargeUtf8);
            let has_text = |data_type: &DataType| {
                let dated = matches!(data_type, Timestamp(..) | Date32 | Date64);
                data_type.is_numeric() || is_text(data_type) || *data_type == Boolean || dated
            };
            (has_text(left) && has_text(right))
                .then(|| if *left == LargeUtf8 || *right == LargeUtf8 { LargeUtf8 } else { Utf8 })
        }
    }
}

fn is_decimal(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..)
    )
}

fn unify_integers(left: &DataType, right: &DataType) -> DataType {
    use DataType::{Float64, Int16, Int32, Int64, UInt64};
    let width = |data_type: &DataType| data_type.primitive_width().unwrap_or(8);
    if left.is_signed_integer() == right.is_signed_integer() {
        return if width(left) >= width(right) { left.clone() } else { right.clone() };
    }
    let (signed, unsigned) = if left.is_signed_integer() { (left, right) } else { (right, left) };
    if *unsigned == UInt64 {
        return Float64;
    }
    match width(signed).max(2 * width(unsigned)) {
        2 => Int16,
        4 => Int32,
        _ => Int64,
    }
}

/// Returns the batch with the columns and types of the file.
fn conform(batch: &RecordBatch, schema: &SchemaRef) -> anyhow::Result<RecordBatch> {
    let columns: Vec<ArrayRef> = schema
        .fields()
        .iter()
        .map(|field| match batch.column_by_name(field.name()) {
            None => Ok(new_null_array(field.data_type(), batch.num_rows())),
            Some(column) if column.data_type() == field.data_type() => Ok(column.clone()),
            // Unlike the default, a value that does not fit must not become a missing value.
            Some(column) => {
                let options = CastOptions { safe: false, ..CastOptions::default() };
                let is_counted = column.data_type().is_floating() && field.data_type().is_integer();
                let column = &if is_counted { without_nan(column)? } else { column.clone() };
                cast_with_options(column, field.data_type(), &options).with_context(|| {
                    format!("column {:?}: {} to {}", field.name(), column.data_type(), field.data_type())
                })
            }
        })
        .collect::<anyhow::Result<_>>()?;
    if columns.is_empty() {
        return Ok(RecordBatch::new_empty(schema.clone()));
    }
    Ok(RecordBatch::try_new(schema.clone(), columns)?)
}

/// Returns floating-point numbers with nulls in place of NaN, which whole numbers do not have.
fn without_nan(column: &ArrayRef) -> anyhow::Result<ArrayRef> {
    let floats = cast_with_options(column, &DataType::Float64, &CastOptions::default())?;
    let is_nan = BooleanArray::from_unary(floats.as_primitive::<Float64Type>(), f64::is_nan);
    Ok(nullif(&floats, &is_nan)?)
}
