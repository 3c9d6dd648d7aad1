//! The schema of a CSV or JSON lines file, in a hidden file beside it.
//!
//! These formats have no types of their own: without it, a reader guesses, and makes the number 7 of the text `007`. A
//! Parquet file needs none.

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use arrow::error::ArrowError;
use arrow::ipc::writer::StreamWriter;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use protocol::{EXTENSION_NAME, JSON_EXTENSION, OutputColumn, UUID_EXTENSION};
use serde::Serialize;

use super::fractions;
use super::table::Table;

/// The content of the file. Python's `gristmill.read` reads it.
#[derive(Serialize)]
struct SchemaFile<'a> {
    /// For people.
    columns: Vec<OutputColumn>,
    /// The shape of the rows: `record`, `tuple` or `value`.
    rows: &'a str,
    /// The schema as an Arrow IPC stream without rows, in base64.
    arrow: String,
}

/// Returns the name of the file beside an output.
pub(super) fn name(file_name: &str) -> String {
    format!(".{file_name}.schema.json")
}

/// Returns the schema of a file.
pub(super) fn contents(table: &Table) -> Result<Vec<u8>, ArrowError> {
    let fields: Vec<Field> =
        table.schema.fields().iter().map(|field| fractions::without(field)).collect();
    let schema = Schema::new_with_metadata(fields, table.schema.metadata().clone());
    let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
    writer.finish()?;
    let arrow = STANDARD.encode(writer.into_inner()?);
    let file = SchemaFile { columns: columns(table), rows: table.shape.as_str(), arrow };
    let mut text = serde_json::to_vec_pretty(&file)
        .map_err(|error| ArrowError::ExternalError(error.into()))?;
    text.push(b'\n');
    Ok(text)
}

/// Returns the columns of a file by name and type.
pub(super) fn columns(table: &Table) -> Vec<OutputColumn> {
    let column = |field: &std::sync::Arc<Field>| OutputColumn {
        name: field.name().clone(),
        r#type: type_name(field),
    };
    table.schema.fields().iter().map(column).collect()
}

/// Returns the name of a type, as Arrow's own documentation writes it.
fn type_name(field: &Field) -> String {
    let unit = |unit: &TimeUnit| match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    };
    match field.metadata().get(EXTENSION_NAME).map(String::as_str) {
        Some(JSON_EXTENSION) => return "json".to_owned(),
        Some(UUID_EXTENSION) => return "uuid".to_owned(),
        _ => {}
    }
    match field.data_type() {
        DataType::Boolean => "bool".to_owned(),
        DataType::Utf8 | DataType::LargeUtf8 => "string".to_owned(),
        DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_) => {
            "binary".to_owned()
        }
        DataType::Date32 | DataType::Date64 => "date".to_owned(),
        DataType::Time32(one) | DataType::Time64(one) => format!("time[{}]", unit(one)),
        DataType::Timestamp(one, None) => format!("timestamp[{}]", unit(one)),
        DataType::Timestamp(one, Some(zone)) => format!("timestamp[{}, {zone}]", unit(one)),
        DataType::Duration(one) => format!("duration[{}]", unit(one)),
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => format!("decimal({precision}, {scale})"),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            format!("list<{}>", type_name(item))
        }
        DataType::Struct(fields) => {
            let parts: Vec<String> = fields
                .iter()
                .map(|field| format!("{}: {}", field.name(), type_name(field)))
                .collect();
            format!("struct<{}>", parts.join(", "))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(parts) if parts.len() == 2 => {
                format!("map<{}, {}>", type_name(&parts[0]), type_name(&parts[1]))
            }
            _ => "map".to_owned(),
        },
        DataType::Dictionary(_, values) => {
            format!("category<{}>", type_name(&Field::new("values", (**values).clone(), true)))
        }
        // `int64`, `float32`.
        other => other.to_string().to_lowercase(),
    }
}
