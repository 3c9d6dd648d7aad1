//! Rows of a mini-batch as JSON, for people who look for a bad row.

use std::io::Cursor;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{DataType, Field};
use arrow::ipc::reader::StreamReader;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use protocol::fields;
use serde_json::Value;

use crate::error::Result;
use crate::first_rows::{cut_to, in_utc};

/// Characters that are kept of a value.
const VALUE_CHARACTERS_MAX: usize = 200;

/// Returns rows of an Arrow IPC stream of one record batch as JSON objects, each of `bytes_max` bytes or little more.
/// Longer values are cut, and the last key says how many columns are left out. Types that JSON lacks become texts. A
/// row that the batch lacks becomes an empty text.
pub fn row_texts(stream: &[u8], rows: &[u64], bytes_max: usize) -> Result<Vec<String>> {
    let batch = match StreamReader::try_new(Cursor::new(stream), None)?.next() {
        Some(batch) => shown_columns(&batch?)?,
        None => return Ok(vec![String::new(); rows.len()]),
    };
    let options = FormatOptions::default();
    let columns: Vec<_> = batch.columns().iter().map(in_utc).collect();
    let formatters =
        columns.iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
    let formatters = formatters.collect::<std::result::Result<Vec<_>, _>>()?;
    let text = |row: &u64| match usize::try_from(*row) {
        Ok(row) if row < batch.num_rows() => row_text(&batch, &formatters, row, bytes_max),
        _ => String::new(),
    };
    Ok(rows.iter().map(text).collect())
}

/// Returns the batch without its hidden columns: the lines of its rows, and whether they fit.
fn shown_columns(batch: &RecordBatch) -> Result<RecordBatch> {
    let is_hidden = |field: &Field| {
        [fields::LINES, fields::FITS].iter().any(|key| field.metadata().contains_key(key))
    };
    let all = batch.schema_ref().fields().iter().enumerate();
    let shown: Vec<usize> =
        all.filter(|(_, field)| !is_hidden(field)).map(|(position, _)| position).collect();
    Ok(batch.project(&shown)?)
}

fn row_text(
    batch: &RecordBatch,
    formatters: &[ArrayFormatter<'_>],
    row: usize,
    bytes_max: usize,
) -> String {
    let mut text = String::from("{");
    let fields = batch.schema_ref().fields();
    for (position, (field, formatter)) in fields.iter().zip(formatters).enumerate() {
        if position > 0 {
            text.push(',');
        }
        let shown = value(batch.column(position).as_ref(), formatter, row);
        let member = format!("{}:{shown}", Value::from(field.name().as_str()));
        if text.len() + member.len() > bytes_max {
            let left = fields.len() - position;
            text.push_str(&format!("\"…\":\"{left} more columns\""));
            break;
        }
        text.push_str(&member);
    }
    text.push('}');
    text
}

fn value(column: &dyn Array, formatter: &ArrayFormatter<'_>, row: usize) -> Value {
    if column.is_null(row) || *column.data_type() == DataType::Null {
        return Value::Null;
    }
    let text = formatter.value(row).to_string();
    // JSON lacks numbers such as NaN.
    let number = || serde_json::from_str::<serde_json::Number>(&text).ok().map(Value::Number);
    match column.data_type() {
        DataType::Boolean => Value::Bool(text == "true"),
        kind if kind.is_numeric() => number().unwrap_or(Value::String(text)),
        _ => Value::String(cut_to(&text, VALUE_CHARACTERS_MAX)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use arrow::array::{
        ArrayRef, BooleanArray, Float64Array, Int64Array, LargeStringArray, StringArray,
        TimestampNanosecondArray,
    };
    use arrow::datatypes::Schema;

    use super::*;
    use crate::IpcStream;

    fn stream() -> Vec<u8> {
        let columns: [(&str, ArrayRef); 5] = [
            ("n", Arc::new(Int64Array::from(vec![i64::MAX, 2]))),
            ("x", Arc::new(Float64Array::from(vec![1.5, f64::NAN]))),
            ("ok", Arc::new(BooleanArray::from(vec![true, false]))),
            (
                "at",
                Arc::new(
                    TimestampNanosecondArray::from(vec![Some(0), None])
                        .with_timezone("Europe/Zurich"),
                ),
            ),
            ("t\"", Arc::new(LargeStringArray::from(vec!["a\"é\n".to_owned(), "z".repeat(300)]))),
        ];
        let batch = RecordBatch::try_from_iter(columns).expect("equal lengths");
        let stream = IpcStream::new(&batch).expect("a stream");
        let mut stream = stream.pieces().collect::<Vec<_>>().concat();
        // A memory file is longer than its content.
        stream.extend([7; 100]);
        stream
    }

    #[test]
    fn hidden_columns_are_left_out() {
        let hidden = |key: &str| {
            let metadata = HashMap::from([(key.to_owned(), String::new())]);
            Field::new("", DataType::Utf8, true).with_metadata(metadata)
        };
        let shown = Field::new("n", DataType::Utf8, true);
        let schema =
            Arc::new(Schema::new(vec![shown, hidden(fields::FITS), hidden(fields::LINES)]));
        let column = || Arc::new(StringArray::from(vec!["x"])) as ArrayRef;
        let batch = RecordBatch::try_new(schema, vec![column(), column(), column()])
            .expect("equal lengths");
        let stream = IpcStream::new(&batch).expect("a stream");
        let stream = stream.pieces().collect::<Vec<_>>().concat();
        assert_eq!(row_texts(&stream, &[0], 1000).expect("a stream"), [r#"{"n":"x"}"#]);
    }

    #[test]
    fn rows_become_json_objects() {
        let texts = row_texts(&stream(), &[0, 1, 2], 1000).expect("a stream");
        assert_eq!(
            texts[0],
            r#"{"n":9223372036854775807,"x":1.5,"ok":true,"at":"1970-01-01T00:00:00Z","t\"":"a\"é\n"}"#
        );
        let second: Value = serde_json::from_str(&texts[1]).expect("JSON");
        assert_eq!((&second["x"], &second["at"]), (&Value::from("NaN"), &Value::Null));
        assert_eq!(
            second["t\""].as_str().map(|text| text.chars().count()),
            Some(VALUE_CHARACTERS_MAX + 1)
        );
        assert_eq!(texts[2], "", "there are two rows");
    }

    #[test]
    fn long_rows_name_the_columns_left_out() {
        let texts = row_texts(&stream(), &[0], 30).expect("a stream");
        assert_eq!(texts[0], r#"{"n":9223372036854775807,"…":"4 more columns"}"#);
        assert!(row_texts(b"no stream", &[0], 30).is_err());
    }
}
