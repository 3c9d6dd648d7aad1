//! Writes rows as delimited text, byte for byte what `DataFrame.to_csv` and the `csv` module write with minimal
//! quoting.
//!
//! The process formats rows, and not the agent, for three reasons. The bytes must be those of the installed pandas,
//! whose quirks Python probes at import; unsupported types fall back to that pandas at once; and all processes share
//! the work.

use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDate, PyDict, PyInt, PyList, PyString, PyTuple};

use crate::cells::{Cells, ObjectCell, PyColumn, borrow_columns, per_second, read_object};
use protocol::instant::{Instant, MISSING, PLAIN_YEARS, Precision};
use protocol::number::{PYTHON_POSITIONAL, push_float, push_integer};

/// The reason why a frame could not be written.
enum Failure {
    /// Only pandas can write a cell.
    Declined,
    /// Writing a cell raised an exception.
    Raised(PyErr),
}

/// The conventions of this interpreter's `csv` and NumPy.
#[derive(FromPyObject)]
pub struct Dialect {
    separator: u8,
    /// Bytes that make `csv` quote a field.
    quoted: Vec<u8>,
    /// Bytes that `csv` handles in a different way.
    declined: Vec<u8>,
    /// The range of magnitudes that NumPy writes without an exponent in `float32`.
    float32_positional: (f64, f64),
}

/// Returns the rows of a frame, or `None` if pandas must write it.
///
/// pandas chooses the precision of instants separately for each chunk of `chunk_rows` rows in a column.
#[pyfunction]
pub fn format_delimited<'py>(
    py: Python<'py>,
    columns: Vec<PyColumn<'py>>,
    rows: usize,
    dialect: Dialect,
    chunk_rows: usize,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let columns = borrow_columns(&columns, rows)?;
    let mut effects = [Effect::None; 256];
    for (bytes, effect) in
        [(&dialect.quoted, Effect::Quotes), (&dialect.declined, Effect::Declines)]
    {
        for &byte in bytes {
            effects[usize::from(byte)] = effect;
        }
    }
    let Some(precisions) = columns.iter().map(|cells| precisions_of(cells, chunk_rows)).collect()
    else {
        return Ok(None);
    };
    let writer = Writer {
        columns: &columns,
        precisions,
        chunk_rows,
        rows,
        separator: dialect.separator,
        effects,
        float32_positional: dialect.float32_positional.0..dialect.float32_positional.1,
    };
    let mut text = Vec::with_capacity(rows * columns.len() * 8);
    let written = if columns.iter().any(Cells::is_object) {
        writer.write(Some(py), &mut text)
    } else {
        py.detach(|| writer.write(None, &mut text))
    };
    match written {
        Ok(()) => Ok(Some(PyBytes::new(py, &text))),
        Err(Failure::Declined) => Ok(None),
        Err(Failure::Raised(error)) => Err(error),
    }
}

/// The effect of a byte on its field.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Effect {
    None,
    Quotes,
    Declines,
}

struct Writer<'a> {
    columns: &'a [Cells<'a>],
    /// For every column of instants, the precision of each chunk of rows.
    precisions: Vec<Vec<Precision>>,
    chunk_rows: usize,
    rows: usize,
    separator: u8,
    effects: [Effect; 256],
    float32_positional: Range<f64>,
}

impl Writer<'_> {
    /// Writes all rows. Needs `py` if any column holds objects.
    fn write(&self, py: Option<Python<'_>>, text: &mut Vec<u8>) -> Result<(), Failure> {
        for row in 0..self.rows {
            let row_start = text.len();
            for (position, cells) in self.columns.iter().enumerate() {
                if position > 0 {
                    text.push(self.separator);
                }
                self.write_cell(py, position, cells, row, text)?;
            }
            if text.len() == row_start {
                // Otherwise a row of one empty field would read back as no row.
                text.extend_from_slice(b"\"\"");
            }
            text.push(b'\n');
        }
        Ok(())
    }

    fn write_cell(
        &self,
        py: Option<Python<'_>>,
        position: usize,
        cells: &Cells<'_>,
        row: usize,
        text: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        match cells {
            Cells::Int8(cells) => push_integer(text, cells[row]),
            Cells::Int16(cells) => push_integer(text, cells[row]),
            Cells::Int32(cells) => push_integer(text, cells[row]),
            Cells::Int64(cells) => push_integer(text, cells[row]),
            Cells::UInt8(cells) => push_integer(text, cells[row]),
            Cells::UInt16(cells) => push_integer(text, cells[row]),
            Cells::UInt32(cells) => push_integer(text, cells[row]),
            Cells::UInt64(cells) => push_integer(text, cells[row]),
            Cells::Float32(cells) if cells[row].is_nan() => {}
            Cells::Float32(cells) => push_float(text, cells[row], &self.float32_positional),
            Cells::Float64(cells) if cells[row].is_nan() => {}
            Cells::Float64(cells) => push_float(text, cells[row], &PYTHON_POSITIONAL),
            Cells::Bool(cells) => push_bool(text, cells[row] != 0),
            Cells::Utf8(cells) => {
                if let Some(field) = cells.get(row) {
                    self.push_field(text, field)?;
                }
            }
            Cells::Object(cells) => {
                let py = py.expect("the caller holds the interpreter for object columns");
                self.write_object(py, cells[row], text)?;
            }
            Cells::Timestamp(cells, _) if cells[row] == MISSING => {}
            Cells::Timestamp(cells, unit) => {
                let mut instant = Vec::with_capacity(32);
                let precision = self.precisions[position][row / self.chunk_rows];
                Instant::new(cells[row], per_second(*unit)).push(&mut instant, precision, b' ');
                self.push_field(text, &instant)?;
            }
        }
        Ok(())
    }

    fn write_object(
        &self,
        py: Python<'_>,
        address: usize,
        text: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        match read_object(py, address) {
            ObjectCell::Missing => {}
            ObjectCell::Text(field) => self.push_field(text, field)?,
            ObjectCell::Integer(value) => push_integer(text, value),
            ObjectCell::Float(value) => push_float(text, value, &PYTHON_POSITIONAL),
            ObjectCell::Bool(value) => push_bool(text, value),
            ObjectCell::Other(object) => {
                // Own a reference, because its `__str__` may run code that releases the others.
                let object = object.to_owned();
                if !is_written_with_str(&object) {
                    return Err(Failure::Declined);
                }
                let written = object.str().map_err(Failure::Raised)?;
                // The fallback handles text that is not valid Unicode, such as file names.
                self.push_field(text, written.to_str().map_err(|_| Failure::Declined)?.as_bytes())?;
            }
        }
        Ok(())
    }

    fn push_field(&self, text: &mut Vec<u8>, field: &[u8]) -> Result<(), Failure> {
        let effect = |byte: &u8| self.effects[usize::from(*byte)];
        if field.iter().all(|byte| effect(byte) == Effect::None) {
            text.extend_from_slice(field);
            return Ok(());
        }
        if field.iter().any(|byte| effect(byte) == Effect::Declines) {
            return Err(Failure::Declined);
        }
        text.push(b'"');
        for (position, piece) in field.split(|&byte| byte == b'"').enumerate() {
            if position > 0 {
                text.extend_from_slice(b"\"\"");
            }
            text.extend_from_slice(piece);
        }
        text.push(b'"');
        Ok(())
    }
}

/// Returns the lowest precision that loses nothing, for each chunk of rows; `None` if a year does not have four digits.
fn precisions_of(cells: &Cells<'_>, chunk_rows: usize) -> Option<Vec<Precision>> {
    let Cells::Timestamp(cells, unit) = cells else { return Some(Vec::new()) };
    let mut precisions = Vec::with_capacity(cells.len() / chunk_rows + 1);
    for chunk in cells.chunks(chunk_rows) {
        let mut finest = Precision::Day;
        for &cell in chunk.iter().filter(|&&cell| cell != MISSING) {
            let instant = Instant::new(cell, per_second(*unit));
            if !PLAIN_YEARS.contains(&instant.year) {
                return None;
            }
            finest = finest.max(instant.precision());
        }
        precisions.push(finest);
    }
    Some(precisions)
}

fn push_bool(text: &mut Vec<u8>, value: bool) {
    text.extend_from_slice(if value { b"True" } else { b"False" });
}

/// Returns whether `csv` writes `str(object)` and pandas never treats the object as a missing value.
fn is_written_with_str(object: &Bound<'_, PyAny>) -> bool {
    object.is_exact_instance_of::<PyInt>()
        || object.is_exact_instance_of::<PyList>()
        || object.is_exact_instance_of::<PyDict>()
        || object.is_exact_instance_of::<PyTuple>()
        || object.is_exact_instance_of::<PyDate>()
        || object.is_exact_instance_of::<PyString>()
}
