//! The final file as Parquet. Each batch is brought to the types of the file (`conform.rs`).

use std::io::Write;
use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use ::parquet::basic::Compression;
use ::parquet::file::metadata::KeyValue;
use ::parquet::file::properties::WriterProperties;
use anyhow::Context;
use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use protocol::PANDAS_METADATA;

use super::conform::conform;
use super::table::Table;

/// Limits on row groups, which bound the memory of the writer and give readers groups of a useful size.
const ROW_GROUP_ROWS: usize = 1 << 20;
const ROW_GROUP_BYTES: usize = 64 << 20;

pub(super) struct Parquet<'a> {
    writer: ArrowWriter<&'a mut (dyn Write + Send)>,
    schema: SchemaRef,
}

impl<'a> Parquet<'a> {
    /// Starts the file.
    pub fn new(into: &'a mut (dyn Write + Send), table: &Table) -> anyhow::Result<Self> {
        let fields: Vec<FieldRef> = table.schema.fields().iter().map(writable).collect();
        let schema = Arc::new(Schema::new_with_metadata(fields, table.schema.metadata().clone()));
        let mut writer = ArrowWriter::try_new(into, schema.clone(), Some(properties()))
            .context("start the Parquet file")?;
        if let Some(known) = table.schema.metadata().get(PANDAS_METADATA) {
            writer.append_key_value_metadata(KeyValue::new(
                PANDAS_METADATA.to_owned(),
                known.clone(),
            ));
        }
        Ok(Self { writer, schema })
    }

    /// Writes the rows of one batch.
    pub fn write(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        let own = batch.schema_ref();
        let column = |target: &Arc<Field>| match own.column_with_name(target.name()) {
            Some((position, field)) => {
                let column = batch.column(position);
                conform(column, field, target).with_context(|| {
                    format!(
                        "column {:?}: {} to {}",
                        target.name(),
                        column.data_type(),
                        target.data_type()
                    )
                })
            }
            None => Ok(new_null_array(target.data_type(), batch.num_rows())),
        };
        let columns: Vec<ArrayRef> =
            self.schema.fields().iter().map(column).collect::<anyhow::Result<_>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(self.writer.write(&RecordBatch::try_new_with_options(
            self.schema.clone(),
            columns,
            &options,
        )?)?)
    }

    pub fn finish(self) -> anyhow::Result<()> {
        self.writer.close().map(drop).context("finish the Parquet file")
    }
}

/// Returns a field that a Parquet file can hold.
fn writable(field: &FieldRef) -> FieldRef {
    Arc::new(field.as_ref().clone().with_data_type(with_parquet_units(field.data_type())))
}

/// Returns a type with milliseconds in place of seconds, and days in place of the milliseconds of days, which Parquet does
/// not have: readers would find numbers. Categories that are truth values become such values.
fn with_parquet_units(data_type: &DataType) -> DataType {
    let part = |field: &FieldRef| {
        Arc::new(field.as_ref().clone().with_data_type(with_parquet_units(field.data_type())))
    };
    match data_type {
        DataType::Date64 => DataType::Date32,
        DataType::Time32(TimeUnit::Second) => DataType::Time32(TimeUnit::Millisecond),
        DataType::Timestamp(TimeUnit::Second, zone) => {
            DataType::Timestamp(TimeUnit::Millisecond, zone.clone())
        }
        // Arrow makes no dictionary of these.
        DataType::Dictionary(_, values) if **values == DataType::Boolean => DataType::Boolean,
        DataType::Dictionary(index, values) => {
            DataType::Dictionary(index.clone(), with_parquet_units(values).into())
        }
        DataType::List(item) => DataType::List(part(item)),
        DataType::LargeList(item) => DataType::LargeList(part(item)),
        DataType::FixedSizeList(item, length) => DataType::FixedSizeList(part(item), *length),
        DataType::Map(entries, is_sorted) => DataType::Map(part(entries), *is_sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(part).collect()),
        other => other.clone(),
    }
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
