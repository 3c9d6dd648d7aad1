//! The final file as JSON lines: each row in the form in which the script returned it. Dictionaries have the keys that
//! they had, tuples are lists, and other values stand alone.

use std::io::Write;

use arrow::array::RecordBatch;
use protocol::RowShape;

use super::cells::{Cells, cells, key, push_json, push_object};
use super::table::{Lines, Rows, Table};

pub(super) struct JsonLines<'a> {
    lines: Lines<'a>,
    schema: arrow::datatypes::SchemaRef,
    shape: RowShape,
    keys: Vec<Vec<u8>>,
}

impl<'a> JsonLines<'a> {
    /// Starts the file.
    pub fn new(into: &'a mut (dyn Write + Send), table: &Table) -> Self {
        let keys = table.schema.fields().iter().map(|field| key(field.name())).collect();
        Self { lines: Lines::new(into), schema: table.schema.clone(), shape: table.shape, keys }
    }
}

impl Rows for JsonLines<'_> {
    fn write(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        let own = batch.schema_ref();
        let mut columns: Vec<(&[u8], Box<dyn Cells>)> = Vec::new();
        for (target, key) in self.schema.fields().iter().zip(&self.keys) {
            if let Some((position, field)) = own.column_with_name(target.name()) {
                columns.push((key, cells(batch.column(position), field, target)?));
            }
        }
        for row in 0..batch.num_rows() {
            match self.shape {
                RowShape::Value | RowShape::Missing => match columns.first() {
                    Some((_, cells)) => push_json(&**cells, row, &mut self.lines.text),
                    None => self.lines.text.extend_from_slice(b"null"),
                },
                RowShape::Tuple => {
                    self.lines.text.push(b'[');
                    let present = columns.iter().filter(|(_, cells)| !cells.is_absent(row));
                    for (position, (_, cells)) in present.enumerate() {
                        if position > 0 {
                            self.lines.text.extend_from_slice(b", ");
                        }
                        push_json(&**cells, row, &mut self.lines.text);
                    }
                    self.lines.text.push(b']');
                }
                RowShape::Record => {
                    push_object(columns.iter().map(|(key, cells)| (*key, &**cells)), row, &mut self.lines.text);
                }
            }
            self.lines.end_line()?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> anyhow::Result<()> {
        self.lines.finish()
    }
}
