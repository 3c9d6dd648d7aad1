//! The final file as CSV: a header, and the same columns in every row.
//!
//! A missing value is nothing, and an empty text is `""`, which tells them apart for the readers that look. Nested values
//! are JSON.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use memchr::{memchr, memchr3};

use super::cells::{Cells, cells};
use super::table::{Lines, Table};

pub(super) struct Csv {
    schema: SchemaRef,
}

impl Csv {
    pub fn new(table: &Table) -> Self {
        Self { schema: table.schema.clone() }
    }
}

impl Lines for Csv {
    fn begin(&self, into: &mut Vec<u8>) {
        for (position, field) in self.schema.fields().iter().enumerate() {
            if position > 0 {
                into.push(b',');
            }
            let start = into.len();
            into.extend_from_slice(field.name().as_bytes());
            quote(into, start);
        }
        if !self.schema.fields().is_empty() {
            into.push(b'\n');
        }
    }

    fn append(&self, batch: &RecordBatch, into: &mut Vec<u8>) -> anyhow::Result<()> {
        let own = batch.schema_ref();
        let columns =
            self.schema.fields().iter().map(|target| match own.column_with_name(target.name()) {
                Some((position, field)) => cells(batch.column(position), field, target).map(Some),
                None => Ok(None),
            });
        let columns: Vec<Option<Box<dyn Cells>>> = columns.collect::<Result<_, _>>()?;
        let is_single = columns.len() == 1;
        for row in 0..batch.num_rows() {
            for (position, column) in columns.iter().enumerate() {
                if position > 0 {
                    into.push(b',');
                }
                match column {
                    Some(cells) if !cells.is_null(row) => {
                        let start = into.len();
                        cells.text(row, into);
                        if cells.may_need_quotes() {
                            quote(into, start);
                        }
                    }
                    // An empty line would be no row.
                    _ if is_single => into.extend_from_slice(b"\"\""),
                    _ => {}
                }
            }
            into.push(b'\n');
        }
        Ok(())
    }
}

/// Puts the text from `start` into quotes if CSV needs them.
fn quote(text: &mut Vec<u8>, start: usize) {
    let field = &text[start..];
    if memchr3(b',', b'"', b'\n', field).is_none()
        && memchr(b'\r', field).is_none()
        && !field.is_empty()
    {
        return;
    }
    let field = text.split_off(start);
    text.push(b'"');
    for part in field.split_inclusive(|byte| *byte == b'"') {
        text.extend_from_slice(part);
        if part.ends_with(b"\"") {
            text.push(b'"');
        }
    }
    text.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn fields_with_separators_quotes_and_line_breaks_are_quoted() {
        let quoted = |field: &str| {
            let mut text = b"before,".to_vec();
            text.extend_from_slice(field.as_bytes());
            quote(&mut text, 7);
            String::from_utf8(text.split_off(7)).expect("text")
        };
        let plain = ["a b", "é", " x ", "'"];
        assert_eq!(plain.map(quoted), plain);
        assert_eq!(quoted(""), "\"\"");
        assert_eq!(quoted("a,b"), "\"a,b\"");
        assert_eq!(quoted("say \"hi\""), "\"say \"\"hi\"\"\"");
        assert_eq!(["a\nb", "a\rb"].map(quoted), ["\"a\nb\"", "\"a\rb\""]);
    }
}
