//! The final file as JSON lines: each row in the form in which the script returned it. Dictionaries have the keys that
//! they had, tuples are lists, and other values stand alone.

use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Schema, SchemaRef};
use protocol::RowShape;
use protocol::words::counted;

use super::cells::{Cells, Json, cells, key, push_json, push_object};
use super::table::{Lines, Table};

pub(super) struct JsonLines {
    schema: SchemaRef,
    shape: RowShape,
    keys: Vec<Vec<u8>>,
}

impl JsonLines {
    pub fn new(table: &Table) -> Self {
        let keys = table.schema.fields().iter().map(|field| key(field.name())).collect();
        Self { schema: table.schema.clone(), shape: table.shape, keys }
    }
}

/// The numbers of each column that are infinite, which JSON lacks.
#[derive(Default)]
pub(super) struct Infinite(BTreeMap<String, usize>);

impl Infinite {
    /// Counts those of a batch in the columns of the file.
    pub fn count(&mut self, file: &Schema, batch: &RecordBatch) {
        for field in file.fields() {
            if let count @ 1.. = batch.column_by_name(field.name()).map_or(0, infinite) {
                *self.0.entry(field.name().clone()).or_default() += count;
            }
        }
    }

    /// Returns a warning for each of these columns.
    pub fn warnings(&self) -> Vec<String> {
        let warning = |(column, count): (&String, &usize)| {
            format!(
                "column {column:?} has {}, which JSON lacks: null stands for each; a file name that ends in .csv or \
                 .parquet keeps them",
                counted(*count as u64, "infinite number")
            )
        };
        self.0.iter().map(warning).collect()
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

impl Lines for JsonLines {
    fn begin(&self, _: &mut Vec<u8>) {}

    fn append(&self, batch: &RecordBatch, into: &mut Vec<u8>) -> anyhow::Result<()> {
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
                    Some((_, cells)) => push_json(&**cells, row, Json::Strict, into),
                    None => into.extend_from_slice(b"null"),
                },
                RowShape::Tuple => {
                    into.push(b'[');
                    let present = columns.iter().filter(|(_, cells)| !cells.is_absent(row));
                    for (position, (_, cells)) in present.enumerate() {
                        if position > 0 {
                            into.extend_from_slice(b", ");
                        }
                        push_json(&**cells, row, Json::Strict, into);
                    }
                    into.push(b']');
                }
                RowShape::Record => {
                    let values = columns.iter().map(|(key, cells)| (*key, &**cells));
                    push_object(values, row, Json::Strict, into);
                }
            }
            into.push(b'\n');
        }
        Ok(())
    }
}
