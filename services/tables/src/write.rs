//! Writes decoded rows to a Parquet file, which keeps the types of their columns.

use std::fs::File;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use parquet::arrow::ArrowWriter;

use crate::decode::DECLARED;
use crate::error::{Error, Result};
use crate::row_groups::decoded_schema;

/// Writes rows to an empty file: all of them, or those from the first to the end of a range. Returns their number.
pub fn write_parquet(batch: &RecordBatch, range: Option<(u64, u64)>, file: File) -> Result<u64> {
    let all = batch.num_rows();
    let (first, end) = match range {
        None => (0, all),
        Some((first, end)) => match (usize::try_from(first), usize::try_from(end)) {
            (Ok(first), Ok(end)) if first <= end && end <= all => (first, end),
            _ => return Err(Error::Options(format!("there are {all} rows, so none from {first} to {end}"))),
        },
    };
    let mut rows = batch.slice(first, end - first);
    // What a Parquet file says about its rows is true of these, too.
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
    fn rows_of_a_range_are_read_back() {
        let columns: [(&str, ArrayRef); 2] = [
            ("n", Arc::new(Int64Array::from(vec![1, 2, 3]))),
            ("t", Arc::new(LargeStringArray::from(vec![Some("a"), None, Some("c")]))),
        ];
        let batch = RecordBatch::try_from_iter(columns).expect("equal lengths");
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("rows.parquet");
        let file = || File::create(&path).expect("writable");
        for (range, expected) in [(None, 3), (Some((1, 3)), 2), (Some((3, 3)), 0)] {
            assert_eq!(write_parquet(&batch, range, file()).expect("written"), expected);
            let found = first_parquet_rows(File::open(&path).expect("written"), 10).expect("a table");
            assert_eq!(found.cells.len() as u64, expected);
            assert_eq!(found.columns, Some(vec!["n".to_owned(), "t".to_owned()]));
        }
        assert!(write_parquet(&batch, Some((2, 4)), file()).is_err());
    }
}
