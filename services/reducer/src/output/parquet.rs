//! The final file as Parquet. Rows are Arrow IPC streams. A first pass unifies their schemas, and a second pass casts
//! each batch to the unified schema (`types.rs`).

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use ::parquet::basic::Compression;
use ::parquet::file::properties::WriterProperties;
use anyhow::{Context, bail};
use arrow::array::{ArrayRef, RecordBatch, new_null_array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::ipc::reader::StreamReader;
use protocol::{ColumnKind, ResultColumn};

use super::{InOrder, rows_of, types};

/// Limits on row groups, which bound the memory of the writer and give readers groups of a useful size.
const ROW_GROUP_ROWS: usize = 1 << 20;
const ROW_GROUP_BYTES: usize = 64 << 20;

/// Writes the rows of every mini-batch. `declared`: columns that the job asks for, to which all rows have been checked.
/// Calls `between` after each with its position; an error from it ends the writing.
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
            let data_type = types::plain(field.data_type());
            let Some(known) = fields.iter_mut().find(|known| known.name() == name) else {
                fields.push(Field::new(name, data_type, true));
                continue;
            };
            let is_any = || declared.iter().any(|column| column.name == *name && column.kind == ColumnKind::Any);
            // A retry cannot mend it: the rows are committed.
            let text = || is_any().then_some(DataType::Utf8);
            let Some(unified) = types::unify(known.data_type(), &data_type).or_else(text) else {
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
    for field in &mut fields {
        *field = Field::new(field.name(), types::without_nulls(field.data_type()), true);
    }
    Ok(Arc::new(Schema::new(fields)))
}

/// Returns the type of a declared column, whose values have the type `found`.
fn declared_type(kind: ColumnKind, found: DataType) -> DataType {
    match (kind, &found) {
        (ColumnKind::Timestamp, DataType::Timestamp(..)) | (ColumnKind::String, DataType::LargeUtf8) => found,
        (ColumnKind::Any, _) => found,
        (ColumnKind::String, _) => DataType::Utf8,
        (ColumnKind::Integer, _) => DataType::Int64,
        (ColumnKind::Number, _) => DataType::Float64,
        (ColumnKind::Boolean, _) => DataType::Boolean,
        (ColumnKind::Timestamp, _) => DataType::Timestamp(TimeUnit::Microsecond, None),
        (ColumnKind::Date, _) => DataType::Date32,
    }
}

/// Returns the batch with the columns and types of the file.
fn conform(batch: &RecordBatch, schema: &SchemaRef) -> anyhow::Result<RecordBatch> {
    let column = |field: &Arc<Field>| {
        let column = batch.column_by_name(field.name());
        let Some(column) = column else { return Ok(new_null_array(field.data_type(), batch.num_rows())) };
        types::conform(column, field.data_type())
            .with_context(|| format!("column {:?}: {} to {}", field.name(), column.data_type(), field.data_type()))
    };
    let columns: Vec<ArrayRef> = schema.fields().iter().map(column).collect::<anyhow::Result<_>>()?;
    if columns.is_empty() {
        return Ok(RecordBatch::new_empty(schema.clone()));
    }
    Ok(RecordBatch::try_new(schema.clone(), columns)?)
}
