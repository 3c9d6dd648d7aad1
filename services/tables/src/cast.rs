//! Converts columns of a Parquet file to the types in the job file, if no value changes.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::{CastOptions, can_cast_types, cast_with_options};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use protocol::{ColumnType, TableOptions};

use crate::error::{Error, Result};

/// Returns the type in memory; `None` if the column stays unchanged.
fn arrow_type(column_type: ColumnType) -> Option<DataType> {
    match column_type {
        ColumnType::Boolean => Some(DataType::Boolean),
        ColumnType::Integer => Some(DataType::Int64),
        ColumnType::Unsigned => Some(DataType::UInt64),
        ColumnType::Float => Some(DataType::Float64),
        ColumnType::DateTimeMonthFirst => Some(DataType::Timestamp(TimeUnit::Nanosecond, None)),
        ColumnType::Text => Some(DataType::LargeUtf8),
        ColumnType::DateTimeDayFirst | ColumnType::Json | ColumnType::Blank => None,
    }
}

fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_text(values),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        _ => false,
    }
}

/// Returns the columns whose type in the options differs from that in the file, and that type.
fn given<'a>(
    schema: &'a Schema,
    options: &'a TableOptions,
) -> impl Iterator<Item = (usize, &'a Field, DataType)> {
    schema.fields().iter().enumerate().filter_map(|(index, field)| {
        let wanted = arrow_type(*options.column_types.get(field.name())?)?;
        let is_same =
            *field.data_type() == wanted || is_text(field.data_type()) && is_text(&wanted);
        (!is_same).then_some((index, field.as_ref(), wanted))
    })
}

/// Fails if no value of a column can have its type in the options.
pub(crate) fn check_types(schema: &Schema, options: &TableOptions, name: &str) -> Result<()> {
    match given(schema, options)
        .find(|(_, field, wanted)| !can_cast_types(field.data_type(), wanted))
    {
        None => Ok(()),
        Some((_, field, _)) => Err(refused(name, field, options, "cannot be read as")),
    }
}

/// Returns the batch with the types in the options.
pub(crate) fn with_given_types(
    batch: RecordBatch,
    options: &TableOptions,
    name: &str,
) -> Result<RecordBatch> {
    let schema = batch.schema();
    let mut columns = batch.columns().to_vec();
    let mut fields: Vec<Arc<Field>> = schema.fields().to_vec();
    for (index, field, wanted) in given(&schema, options) {
        let cast = exactly(&columns[index], &wanted);
        columns[index] =
            cast.ok_or_else(|| refused(name, field, options, "has values that are not"))?;
        fields[index] = Arc::new(field.clone().with_data_type(wanted));
    }
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &rows)?)
}

fn refused(name: &str, field: &Field, options: &TableOptions, how: &str) -> Error {
    let (column, found) = (field.name(), field.data_type());
    let wanted = options.column_types.get(column).map_or("", |wanted| wanted.name());
    let message = format!(
        "column \"{column}\" is {found} and {how} {wanted}; give it another type in `columns`, or none"
    );
    Error::kind(&format!("{name}:"), message)
}

/// Converts a column. Returns `None` if a value would change or be lost.
fn exactly(array: &ArrayRef, wanted: &DataType) -> Option<ArrayRef> {
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    let cast = cast_with_options(array, wanted, &strict).ok()?;
    // Conversions of text fail on any error; conversions of numbers may round or truncate silently.
    if is_text(array.data_type()) || is_text(wanted) {
        return Some(cast);
    }
    let back = cast_with_options(&cast, array.data_type(), &strict).ok()?;
    (back.to_data() == array.to_data()).then_some(cast)
}
