//! The final file as JSON lines: each row in the form in which the script returned it. Dictionaries have the keys that
//! they had, tuples are lists, and other values stand alone.

use std::collections::BTreeMap;
use std::io::Write;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use protocol::RowShape;
use protocol::words::counted;

use super::cells::{Cells, Json, cells, key, push_json, push_object};
use super::table::{Lines, Rows, Table};

pub(super) struct JsonLines<'a> {
    lines: Lines<'a>,
    schema: arrow::datatypes::SchemaRef,
    shape: RowShape,
    keys: Vec<Vec<u8>>,
    /// Infinite numbers of each column, which JSON lacks.
    infinite: BTreeMap<String, usize>,
}

impl<'a> JsonLines<'a> {
    /// Starts the file.
    pub fn new(into: &'a mut (dyn Write + Send), table: &Table) -> Self {
        let keys = table.schema.fields().iter().map(|field| key(field.name())).collect();
        Self {
            lines: Lines::new(into),
            schema: table.schema.clone(),
            shape: table.shape,
            keys,
            infinite: BTreeMap::new(),
        }
    }
}

/// Returns how many numbers of an array, at any depth, are infinite.
fn infinite(array: &ArrayRef) -> usize {
    match array.data_type() {
        DataType::Float64 => array
            .as_primitive::<Float64Type>()
            .iter()
            .flatten()
            .filter(|it| it.is_infinite())
            .count(),
        DataType::Float32 => array
            .as_primitive::<Float32Type>()
            .iter()
            .flatten()
            .filter(|it| it.is_infinite())
            .count(),
        DataType::Struct(_) => array.as_struct().columns().iter().map(infinite).sum(),
        DataType::Union(fields, _) => {
            fields.iter().map(|(id, _)| infinite(array.as_union().child(id))).sum()
        }
        DataType::List(_) => infinite(array.as_list::<i32>().values()),
        DataType::LargeList(_) => infinite(array.as_list::<i64>().values()),
        DataType::FixedSizeList(..) => infinite(array.as_fixed_size_list().values()),
        DataType::Map(..) => infinite(array.as_map().values()),
        _ => 0,
    }
}

impl Rows for JsonLines<'_> {
    fn write(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        let own = batch.schema_ref();
        let mut columns: Vec<(&[u8], Box<dyn Cells>)> = Vec::new();
        for (target, key) in self.schema.fields().iter().zip(&self.keys) {
            if let Some((position, field)) = own.column_with_name(target.name()) {
                columns.push((key, cells(batch.column(position), field, target)?));
                if let count @ 1.. = infinite(batch.column(position)) {
                    *self.infinite.entry(target.name().clone()).or_default() += count;
                }
            }
        }
        for row in 0..batch.num_rows() {
            match self.shape {
                RowShape::Value | RowShape::Missing => match columns.first() {
                    Some((_, cells)) => {
                        push_json(&**cells, row, Json::Strict, &mut self.lines.text)
                    }
                    None => self.lines.text.extend_from_slice(b"null"),
                },
                RowShape::Tuple => {
                    self.lines.text.push(b'[');
                    let present = columns.iter().filter(|(_, cells)| !cells.is_absent(row));
                    for (position, (_, cells)) in present.enumerate() {
                        if position > 0 {
                            self.lines.text.extend_from_slice(b", ");
                        }
                        push_json(&**cells, row, Json::Strict, &mut self.lines.text);
                    }
                    self.lines.text.push(b']');
                }
                RowShape::Record => {
                    push_object(
                        columns.iter().map(|(key, cells)| (*key, &**cells)),
                        row,
                        Json::Strict,
                        &mut self.lines.text,
                    );
                }
            }
            self.lines.end_line()?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> anyhow::Result<Vec<String>> {
        self.lines.finish()?;
        let warning = |(column, count): (&String, &usize)| {
            format!(
                "column {column:?} has {}, which JSON lacks: null stands for each; a file name that ends in .csv or \
                 .parquet keeps them",
                counted(*count as u64, "infinite number")
            )
        };
        Ok(self.infinite.iter().map(warning).collect())
    }
}
