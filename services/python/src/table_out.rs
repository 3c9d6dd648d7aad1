//! Writes results as Arrow IPC streams of one record batch, which the reducer turns into CSV, JSON lines or Parquet.

use std::collections::HashMap;
use std::io::Cursor;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, PrimitiveArray, TimestampMicrosecondArray,
    TimestampMillisecondArray, TimestampNanosecondArray, TimestampSecondArray,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{self as types, ArrowPrimitiveType, Field, Schema, TimeUnit};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use protocol::{PANDAS_METADATA, ROW_SHAPE, RowShape};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::cells::{Cells, PyColumn, borrow_cells};
use crate::values::{Builder, Cell, Columns, texts_of};
use protocol::instant::MISSING;

/// The kind of a column that pyarrow has written as a separate Arrow IPC stream.
const STREAM: &str = "stream";

/// Returns the table of a frame. NaN becomes null, as in Parquet files of pandas. `pandas` is the metadata that pandas
/// keeps with the frame.
#[pyfunction]
pub fn table_of_frame<'py>(
    py: Python<'py>,
    names: Vec<String>,
    columns: Vec<PyColumn<'py>>,
    rows: usize,
    pandas: Option<String>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut fields = Vec::with_capacity(columns.len());
    let mut arrays = Vec::with_capacity(columns.len());
    let mut builder = None;
    for (name, (kind, values)) in names.iter().zip(&columns) {
        let (field, array) = if kind == STREAM {
            column_of_stream(name, values.cast::<PyBytes>()?.as_bytes())?
        } else {
            match borrow_cells(kind, values)? {
                Cells::Object(addresses) => {
                    if builder.is_none() {
                        builder = Some(Builder::new(py)?);
                    }
                    let column =
                        builder.as_mut().expect("just set").column(cells_at(py, &addresses))?;
                    (column.field(name), column.array)
                }
                cells => {
                    let array = array_of(&cells, rows);
                    (Field::new(name, array.data_type().clone(), true), array)
                }
            }
        };
        if array.len() != rows {
            let message =
                format!("column {name:?} has {} cells in a frame of {rows} rows", array.len());
            return Err(PyValueError::new_err(message));
        }
        fields.push(field);
        arrays.push(array);
    }
    let metadata = pandas.into_iter().map(|known| (PANDAS_METADATA.to_owned(), known)).collect();
    encode(py, fields, arrays, rows, metadata)
}

/// Returns the table of a list of rows. Dictionaries and named tuples fill columns by name, tuples fill them by
/// position, and any other value goes to the column `value`.
#[pyfunction]
pub fn table_of_rows<'py>(
    py: Python<'py>,
    rows: Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyBytes>> {
    let (shape, columns) = columns_of(&rows)?;
    let mut builder = Builder::new(py)?;
    let (mut fields, mut arrays) = (Vec::new(), Vec::new());
    for (name, cells) in columns {
        let column = builder.column(cells).map_err(|error| in_column(py, &name, error))?;
        fields.push(column.field(&name));
        arrays.push(column.array);
    }
    let metadata = match shape {
        RowShape::Record => HashMap::new(),
        shape => HashMap::from([(ROW_SHAPE.to_owned(), shape.as_str().to_owned())]),
    };
    encode(py, fields, arrays, rows.len(), metadata)
}

/// Values by the names of their columns.
type NamedCells<'py> = Vec<(String, Vec<Cell<'py>>)>;

fn columns_of<'py>(rows: &Bound<'py, PyList>) -> PyResult<(RowShape, NamedCells<'py>)> {
    let py = rows.py();
    let has_columns =
        |row: &Bound<'py, PyAny>| row.is_instance_of::<PyDict>() || row.is_instance_of::<PyTuple>();
    if !rows.iter().any(|row| has_columns(&row)) {
        return Ok(match rows.iter().all(|row| row.is_none()) {
            true => (RowShape::Missing, Vec::new()),
            false => (RowShape::Value, vec![("value".to_owned(), rows.iter().map(Some).collect())]),
        });
    }
    let mut shape = RowShape::Missing;
    let mut columns = Columns::default();
    for row in rows.iter() {
        shape = shape.with(if let Ok(record) = row.cast::<PyDict>() {
            columns.add_record(record)?;
            RowShape::Record
        } else if let Ok(tuple) = row.cast::<PyTuple>() {
            match tuple.getattr(intern!(py, "_fields")) {
                Ok(names) => {
                    columns
                        .add_named(names.extract::<Vec<String>>()?.into_iter().zip(tuple.iter()))?;
                    RowShape::Record
                }
                Err(_) => {
                    columns.add_named(
                        tuple
                            .iter()
                            .enumerate()
                            .map(|(position, value)| (position.to_string(), value)),
                    )?;
                    RowShape::Tuple
                }
            }
        } else if row.is_none() {
            columns.add_missing();
            RowShape::Missing
        } else {
            columns.add_named([("value".to_owned(), row)])?;
            RowShape::Value
        });
    }
    Ok((shape, columns.finish().collect()))
}

/// Adds the name of the column to the error about a value.
fn in_column(py: Python<'_>, name: &str, error: PyErr) -> PyErr {
    match error.is_instance_of::<PyValueError>(py) {
        true => PyValueError::new_err(format!("column {name:?}: {}", error.value(py))),
        false => error,
    }
}

/// Returns the objects at these addresses, which the array of an object column owns; 0 stands for `None`.
fn cells_at<'py>(py: Python<'py>, addresses: &[usize]) -> Vec<Cell<'py>> {
    let object = |address: &usize| match *address as *mut pyo3::ffi::PyObject {
        object if object.is_null() => py.None().into_bound(py),
        // SAFETY: the caller holds a reference to the array, and so to its objects.
        object => unsafe { Bound::from_borrowed_ptr(py, object) },
    };
    addresses.iter().map(|address| Some(object(address))).collect()
}

/// Reads the only column of a stream, with the metadata of its field.
fn column_of_stream(name: &str, stream: &[u8]) -> PyResult<(Field, ArrayRef)> {
    let damaged = |error: arrow::error::ArrowError| {
        PyValueError::new_err(format!("column {name:?}: {error}"))
    };
    let reader = StreamReader::try_new(Cursor::new(stream), None).map_err(damaged)?;
    let schema = reader.schema();
    let batches = reader.collect::<Result<Vec<_>, _>>().map_err(damaged)?;
    let batch = concat_batches(&schema, &batches).map_err(damaged)?;
    Ok((schema.field(0).clone().with_name(name), batch.column(0).clone()))
}

fn encode<'py>(
    py: Python<'py>,
    fields: Vec<Field>,
    arrays: Vec<ArrayRef>,
    rows: usize,
    metadata: HashMap<String, String>,
) -> PyResult<Bound<'py, PyBytes>> {
    let written = py.detach(|| {
        let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), arrays, &options)?;
        let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
        writer.write(&batch)?;
        writer.into_inner()
    });
    Ok(PyBytes::new(py, &written.map_err(|error| PyValueError::new_err(error.to_string()))?))
}

fn array_of(cells: &Cells<'_>, rows: usize) -> ArrayRef {
    match cells {
        Cells::Int8(cells) => copy::<types::Int8Type>(cells),
        Cells::Int16(cells) => copy::<types::Int16Type>(cells),
        Cells::Int32(cells) => copy::<types::Int32Type>(cells),
        Cells::Int64(cells) => copy::<types::Int64Type>(cells),
        Cells::UInt8(cells) => copy::<types::UInt8Type>(cells),
        Cells::UInt16(cells) => copy::<types::UInt16Type>(cells),
        Cells::UInt32(cells) => copy::<types::UInt32Type>(cells),
        Cells::UInt64(cells) => copy::<types::UInt64Type>(cells),
        Cells::Float32(cells) => Arc::new(
            cells.iter().map(|&cell| (!cell.is_nan()).then_some(cell)).collect::<Float32Array>(),
        ),
        Cells::Float64(cells) => Arc::new(
            cells.iter().map(|&cell| (!cell.is_nan()).then_some(cell)).collect::<Float64Array>(),
        ),
        Cells::Bool(cells) => {
            Arc::new(cells.iter().map(|&cell| Some(cell != 0)).collect::<BooleanArray>())
        }
        Cells::Timestamp(cells, unit) => {
            let instants = cells.iter().map(|&cell| (cell != MISSING).then_some(cell));
            match unit {
                TimeUnit::Second => Arc::new(instants.collect::<TimestampSecondArray>()),
                TimeUnit::Millisecond => Arc::new(instants.collect::<TimestampMillisecondArray>()),
                TimeUnit::Microsecond => Arc::new(instants.collect::<TimestampMicrosecondArray>()),
                TimeUnit::Nanosecond => Arc::new(instants.collect::<TimestampNanosecondArray>()),
            }
        }
        Cells::Utf8(cells) => {
            let text = |row| cells.get(row).map(|text| String::from_utf8_lossy(text).into_owned());
            texts_of((0..rows).map(text).collect())
        }
        Cells::Object(_) => unreachable!("objects have a builder"),
    }
}

fn copy<T: ArrowPrimitiveType>(cells: &[T::Native]) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::from_iter_values(cells.iter().copied()))
}
