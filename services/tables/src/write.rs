//! Writes decoded rows to a Parquet file, which keeps the types of their columns.

use std::fs::File;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use parquet::arrow::ArrowWriter;

use crate::decode::DECLARED;
use crate::error::Result;
use crate::row_groups::decoded_schema;

/// Writes rows to an empty file. Returns their number.
pub fn write_parquet(batch: &RecordBatch, file: File) -> Result<u64> {
    let mut rows = batch.clone();
    // The metadata of a Parquet file about its rows holds for these, too.
    let metadata = rows.schema_metadata_mut();
    let declared = metadata.remove(DECLARED).and_then(|text| decoded_schema(&text));
    *metadata = declared.map(|declared| declared.metadata).unwrap_or_default();
    let mut writer = ArrowWriter::try_new(file, rows.schema(), None).map_err(ArrowError::from)?;
    writer.write(&rows).map_err(ArrowError::from)?;
    writer.close().map_err(ArrowError::from)?;
    Ok(rows.num_rows() as u64)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, LargeStringArray};

    use super::*;
    use crate::first_rows::first_parquet_rows;

    #[test]
    fn rows_are_read_back() {
        let columns: [(&str, ArrayRef); 2] = [
            ("n", Arc::new(Int64Array::from(vec![1, 2, 3]))),
            ("t", Arc::new(LargeStringArray::from(vec![Some("a"), None, Some("c")]))),
        ];
        let batch = RecordBatch::try_from_iter(columns).expect("equal lengths");
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("rows.parquet");
        for expected in [3, 0] {
            let rows = batch.slice(0, expected as usize);
            assert_eq!(
                write_parquet(&rows, File::create(&path).expect("writable")).expect("written"),
                expected
            );
            let found =
                first_parquet_rows(File::open(&path).expect("written"), 10).expect("a table");
            assert_eq!(found.cells.len() as u64, expected);
            assert_eq!(found.columns, Some(vec!["n".to_owned(), "t".to_owned()]));
        }
    }
}
