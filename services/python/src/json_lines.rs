//! Writes rows as JSON lines: one object for each row, keys in column order, shortest numbers, missing values as
//! `null`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::cells::{Cells, ObjectCell, PyColumn, borrow_columns, per_second, read_object};
use protocol::instant::{Instant, MISSING, PLAIN_YEARS, Precision};
use protocol::json::push_string;
use protocol::number::{PYTHON_POSITIONAL, push_float, push_integer};

/// The frame has a cell that only the `json` module can write.
struct Declined;

/// Returns the rows of a frame, or `None` if Python must write them. `names` are unique.
#[pyfunction]
pub fn format_json_lines<'py>(
    py: Python<'py>,
    names: Vec<String>,
    columns: Vec<PyColumn<'py>>,
    rows: usize,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let columns = borrow_columns(&columns, rows)?;
    let keys: Vec<Vec<u8>> =
        names.iter().enumerate().map(|(position, name)| key(position, name)).collect();
    let mut text = Vec::with_capacity(rows * columns.len() * 16);
    let written = if columns.iter().any(Cells::is_object) {
        write(Some(py), &keys, &columns, rows, &mut text)
    } else {
        py.detach(|| write(None, &keys, &columns, rows, &mut text))
    };
    Ok(written.is_ok().then(|| PyBytes::new(py, &text)))
}

/// Returns the text before a value.
fn key(position: usize, name: &str) -> Vec<u8> {
    let mut key = if position == 0 { b"{".to_vec() } else { b",".to_vec() };
    push_string(&mut key, name.as_bytes());
    key.push(b':');
    key
}

fn write(
    py: Option<Python<'_>>,
    keys: &[Vec<u8>],
    columns: &[Cells<'_>],
    rows: usize,
    text: &mut Vec<u8>,
) -> Result<(), Declined> {
    for row in 0..rows {
        for (key, cells) in keys.iter().zip(columns) {
            text.extend_from_slice(key);
            write_cell(py, cells, row, text)?;
        }
        text.extend_from_slice(b"}\n");
    }
    Ok(())
}

fn write_cell(
    py: Option<Python<'_>>,
    cells: &Cells<'_>,
    row: usize,
    text: &mut Vec<u8>,
) -> Result<(), Declined> {
    match cells {
        Cells::Int8(cells) => push_integer(text, cells[row]),
        Cells::Int16(cells) => push_integer(text, cells[row]),
        Cells::Int32(cells) => push_integer(text, cells[row]),
        Cells::Int64(cells) => push_integer(text, cells[row]),
        Cells::UInt8(cells) => push_integer(text, cells[row]),
        Cells::UInt16(cells) => push_integer(text, cells[row]),
        Cells::UInt32(cells) => push_integer(text, cells[row]),
        Cells::UInt64(cells) => push_integer(text, cells[row]),
        Cells::Float32(cells) if cells[row].is_finite() => {
            push_float(text, cells[row], &PYTHON_POSITIONAL)
        }
        Cells::Float64(cells) if cells[row].is_finite() => {
            push_float(text, cells[row], &PYTHON_POSITIONAL)
        }
        Cells::Float32(_) | Cells::Float64(_) => text.extend_from_slice(b"null"),
        Cells::Bool(cells) => push_bool(text, cells[row] != 0),
        Cells::Utf8(cells) => match cells.get(row) {
            Some(field) => push_string(text, field),
            None => text.extend_from_slice(b"null"),
        },
        Cells::Object(cells) => {
            let py = py.expect("the caller holds the interpreter for object columns");
            match read_object(py, cells[row]) {
                ObjectCell::Missing => text.extend_from_slice(b"null"),
                ObjectCell::Text(field) => push_string(text, field),
                ObjectCell::Integer(value) => push_integer(text, value),
                ObjectCell::Float(value) if value.is_finite() => {
                    push_float(text, value, &PYTHON_POSITIONAL)
                }
                ObjectCell::Float(_) => text.extend_from_slice(b"null"),
                ObjectCell::Bool(value) => push_bool(text, value),
                ObjectCell::Other(_) => return Err(Declined),
            }
        }
        Cells::Timestamp(cells, _) if cells[row] == MISSING => text.extend_from_slice(b"null"),
        Cells::Timestamp(cells, unit) => {
            let instant = Instant::new(cells[row], per_second(*unit));
            if !PLAIN_YEARS.contains(&instant.year) {
                return Err(Declined);
            }
            // Like `isoformat`: always with a time, and with a fraction of six digits, or nine if needed.
            let precision = match instant.precision() {
                Precision::Day | Precision::Second => Precision::Second,
                Precision::Millisecond | Precision::Microsecond => Precision::Microsecond,
                Precision::Nanosecond => Precision::Nanosecond,
            };
            text.push(b'"');
            instant.push(text, precision, b'T');
            text.push(b'"');
        }
    }
    Ok(())
}

fn push_bool(text: &mut Vec<u8>, value: bool) {
    text.extend_from_slice(if value { b"true" } else { b"false" });
}
