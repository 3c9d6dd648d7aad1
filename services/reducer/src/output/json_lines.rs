//! The final file as JSON lines: each row in the form in which the script returned it. Dictionaries have the keys that
//! they had, tuples are lists, and other values stand alone.

use std::io::Write;

use arrow::array::RecordBatch;
use protocol::RowShape;

use super::cells::{Cells, cells, key, push_json, push_object};
use super::table::{Rows, Table};

/// Rows that are written at once.
const PIECE_BYTES: usize = 1 << 20;

pub(super) struct JsonLines<'a> {
    into: &'a mut (dyn Write + Send),
    schema: arrow::datatypes::SchemaRef,
    shape: RowShape,
    keys: Vec<Vec<u8>>,
    text: Vec<u8>,
}

impl<'a> JsonLines<'a> {
    /// Starts the file.
    pub fn new(into: &'a mut (dyn Write + Send), table: &Table) -> Self {
        let keys = table.schema.fields().iter().map(|field| key(field.name())).collect();
        let text = Vec::with_capacity(PIECE_BYTES);
        Self { into, schema: table.schema.clone(), shape: table.shape, keys, text }
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
                    Some((_, cells)) => push_json(&**cells, row, &mut self.text),
                    None => self.text.extend_from_slice(b"null"),
                },
                RowShape::Tuple => {
                    self.text.push(b'[');
                    let present = columns.iter().filter(|(_, cells)| !cells.is_absent(row));
                    for (position, (_, cells)) in present.enumerate() {
                        if position > 0 {
                            self.text.extend_from_slice(b", ");
                        }
                        push_json(&**cells, row, &mut self.text);
                    }
                    self.text.push(b']');
                }
                RowShape::Record => {
                    push_object(columns.iter().map(|(key, cells)| (*key, &**cells)), row, &mut self.text);
                }
            }
            self.text.push(b'\n');
            if self.text.len() >= PIECE_BYTES {
                self.into.write_all(&self.text)?;
                self.text.clear();
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> anyhow::Result<()> {
        self.into.write_all(&self.text)?;
        Ok(self.into.flush()?)
    }
}
