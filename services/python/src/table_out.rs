//! Rows as an Arrow IPC stream of one record batch, for the parts of a Parquet output.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, Int64Array, NullArray, PrimitiveArray, StringArray,
    TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray, TimestampSecondArray,
};
use arrow::datatypes::{self as types, ArrowPrimitiveType, Field, Schema, TimeUnit};
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::cells::{Cells, ObjectCell, PyColumn, Utf8, borrow_columns, read_object};
use crate::instant::MISSING;

/// The stream, or the position of the first column that the extension cannot write.
#[derive(IntoPyObject)]
pub enum Written<'py> {
    Stream(Bound<'py, PyBytes>),
    Declined(usize),
}

/// Writes a frame. NaN becomes null, as in Parquet files of pandas.
#[pyfunction]
pub fn write_table<'py>(
    py: Python<'py>,
    names: Vec<String>,
    columns: Vec<PyColumn<'py>>,
    rows: usize,
) -> PyResult<Written<'py>> {
    let columns = borrow_columns(&columns, rows)?;
    let mut arrays = Vec::with_capacity(columns.len());
    for (position, cells) in columns.iter().enumerate() {
        match array_of(py, cells, rows) {
            Some(array) => arrays.push(array),
            None => return Ok(Written::Declined(position)),
        }
    }
    let stream =
        py.detach(|| encode(&names, arrays, rows)).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(Written::Stream(PyBytes::new(py, &stream)))
}

fn encode(names: &[String], arrays: Vec<ArrayRef>, rows: usize) -> Result<Vec<u8>, arrow::error::ArrowError> {
    let fields: Vec<Field> =
        names.iter().zip(&arrays).map(|(name, array)| Field::new(name, array.data_type().clone(), true)).collect();
    let schema = Arc::new(Schema::new(fields));
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), arrays, &options)?;
    let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
    writer.write(&batch)?;
    writer.into_inner()
}

fn array_of(py: Python<'_>, cells: &Cells<'_>, rows: usize) -> Option<ArrayRef> {
    Some(match cells {
        Cells::Int8(cells) => copy::<types::Int8Type>(cells),
        Cells::Int16(cells) => copy::<types::Int16Type>(cells),
        Cells::Int32(cells) => copy::<types::Int32Type>(cells),
        Cells::Int64(cells) => copy::<types::Int64Type>(cells),
        Cells::UInt8(cells) => copy::<types::UInt8Type>(cells),
        Cells::UInt16(cells) => copy::<types::UInt16Type>(cells),
        Cells::UInt32(cells) => copy::<types::UInt32Type>(cells),
        Cells::UInt64(cells) => copy::<types::UInt64Type>(cells),
        Cells::Float32(cells) => {
            Arc::new(cells.iter().map(|&cell| (!cell.is_nan()).then_some(cell)).collect::<Float32Array>())
        }
        Cells::Float64(cells) => {
            Arc::new(cells.iter().map(|&cell| (!cell.is_nan()).then_some(cell)).collect::<Float64Array>())
        }
        Cells::Bool(cells) => Arc::new(cells.iter().map(|&cell| Some(cell != 0)).collect::<BooleanArray>()),
        Cells::Timestamp(cells, unit) => {
            let instants = cells.iter().map(|&cell| (cell != MISSING).then_some(cell));
            match unit {
                TimeUnit::Second => Arc::new(instants.collect::<TimestampSecondArray>()),
                TimeUnit::Millisecond => Arc::new(instants.collect::<TimestampMillisecondArray>()),
                TimeUnit::Microsecond => Arc::new(instants.collect::<TimestampMicrosecondArray>()),
                TimeUnit::Nanosecond => Arc::new(instants.collect::<TimestampNanosecondArray>()),
            }
        }
        Cells::Utf8(cells) => Arc::new(strings_of(cells, rows)),
        Cells::Object(addresses) => return array_of_objects(py, addresses),
    })
}

fn copy<T: ArrowPrimitiveType>(cells: &[T::Native]) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::from_iter_values(cells.iter().copied()))
}

fn strings_of(cells: &Utf8<'_>, rows: usize) -> StringArray {
    (0..rows).map(|row| cells.get(row).map(|text| String::from_utf8_lossy(text).into_owned())).collect()
}

/// Converts an object column if all its cells have the same type. A column without values has no type, because other
/// mini-batches have its values.
fn array_of_objects(py: Python<'_>, addresses: &[usize]) -> Option<ArrayRef> {
    let cells = || addresses.iter().map(|&address| read_object(py, address));
    let all = |accepts: fn(&ObjectCell<'_>) -> bool| {
        cells().all(|cell| matches!(cell, ObjectCell::Missing) || accepts(&cell))
    };
    if all(|_| false) {
        Some(Arc::new(NullArray::new(addresses.len())))
    } else if all(|cell| matches!(cell, ObjectCell::Text(_))) {
        let texts = cells().map(|cell| match cell {
            ObjectCell::Text(text) => Some(std::str::from_utf8(text).expect("Python gives valid UTF-8")),
            _ => None,
        });
        Some(Arc::new(texts.collect::<StringArray>()))
    } else if all(|cell| matches!(cell, ObjectCell::Bool(_))) {
        let bools = cells().map(|cell| if let ObjectCell::Bool(value) = cell { Some(value) } else { None });
        Some(Arc::new(bools.collect::<BooleanArray>()))
    } else if all(|cell| matches!(cell, ObjectCell::Integer(_))) {
        let integers = cells().map(|cell| if let ObjectCell::Integer(value) = cell { Some(value) } else { None });
        Some(Arc::new(integers.collect::<Int64Array>()))
    } else if all(|cell| matches!(cell, ObjectCell::Integer(_) | ObjectCell::Float(_))) {
        let floats = cells().map(|cell| match cell {
            ObjectCell::Integer(value) => Some(value as f64),
            ObjectCell::Float(value) => Some(value),
            _ => None,
        });
        Some(Arc::new(floats.collect::<Float64Array>()))
    } else {
        None
    }
}
