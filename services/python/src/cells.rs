//! The cells of one column of a DataFrame, as slices of the memory of NumPy or Arrow.
//!
//! Python passes `(kind, array)`. The kind determines how to read the array: `bool` (as bytes), `datetime64[unit]` (as
//! 64-bit integers), `utf8` (the buffers of an Arrow string array), `list` (a Python list), and `plain` (by its dtype).

use std::borrow::Cow;

use numpy::{Element, PyArray1, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use pyo3::{Borrowed, ffi};

/// A column as Python passes it, `(kind, array)`. It keeps the memory alive.
pub type PyColumn<'py> = (String, Bound<'py, PyAny>);

/// The cells of a column, borrowed from a [`PyColumn`].
pub enum Cells<'a> {
    Int8(&'a [i8]),
    Int16(&'a [i16]),
    Int32(&'a [i32]),
    Int64(&'a [i64]),
    UInt8(&'a [u8]),
    UInt16(&'a [u16]),
    UInt32(&'a [u32]),
    UInt64(&'a [u64]),
    Float32(&'a [f32]),
    Float64(&'a [f64]),
    /// 0 is false; any other byte is true.
    Bool(&'a [u8]),
    /// [`protocol::instant::MISSING`] stands for a missing instant.
    Timestamp(&'a [i64], arrow::datatypes::TimeUnit),
    /// Addresses of Python objects; 0 stands for `None`.
    Object(Cow<'a, [usize]>),
    Utf8(Utf8<'a>),
}

/// An Arrow string array, with offsets of 32 or 64 bits.
pub struct Utf8<'a> {
    validity: Option<&'a [u8]>,
    offsets: Offsets<'a>,
    data: &'a [u8],
    start: usize,
    length: usize,
}

enum Offsets<'a> {
    Narrow(&'a [i32]),
    Wide(&'a [i64]),
}

impl Utf8<'_> {
    /// Returns the text of a row, or `None` if it is missing.
    pub fn get(&self, row: usize) -> Option<&[u8]> {
        let at = self.start + row;
        if self.validity.is_some_and(|bits| bits[at / 8] & (1 << (at % 8)) == 0) {
            return None;
        }
        let (from, to) = match self.offsets {
            Offsets::Narrow(offsets) => (offsets[at] as usize, offsets[at + 1] as usize),
            Offsets::Wide(offsets) => (offsets[at] as usize, offsets[at + 1] as usize),
        };
        Some(&self.data[from..to])
    }
}

/// Borrows every column. Fails if one does not have `rows` cells.
pub fn borrow_columns<'a>(columns: &'a [PyColumn<'_>], rows: usize) -> PyResult<Vec<Cells<'a>>> {
    let mut borrowed = Vec::with_capacity(columns.len());
    for (kind, array) in columns {
        let cells = borrow_cells(kind, array)?;
        let length = match &cells {
            Cells::Utf8(cells) => cells.length,
            _ => array.len()?,
        };
        if length != rows {
            return Err(PyValueError::new_err(format!(
                "a column has {length} cells in a frame of {rows} rows"
            )));
        }
        borrowed.push(cells);
    }
    Ok(borrowed)
}

/// Borrows a column.
pub fn borrow_cells<'a>(kind: &str, array: &'a Bound<'_, PyAny>) -> PyResult<Cells<'a>> {
    use arrow::datatypes::TimeUnit;
    match kind {
        "plain" => borrow_plain(array),
        "bool" => Ok(Cells::Bool(slice_of(array)?)),
        "datetime64[s]" => Ok(Cells::Timestamp(slice_of(array)?, TimeUnit::Second)),
        "datetime64[ms]" => Ok(Cells::Timestamp(slice_of(array)?, TimeUnit::Millisecond)),
        "datetime64[us]" => Ok(Cells::Timestamp(slice_of(array)?, TimeUnit::Microsecond)),
        "datetime64[ns]" => Ok(Cells::Timestamp(slice_of(array)?, TimeUnit::Nanosecond)),
        "utf8" => borrow_utf8(array).map(Cells::Utf8),
        "list" => {
            let list = array.cast::<PyList>()?;
            Ok(Cells::Object(list.iter().map(|object| object.as_ptr() as usize).collect()))
        }
        _ => Err(PyTypeError::new_err(format!("unknown kind of column: {kind}"))),
    }
}

fn borrow_plain<'a>(array: &'a Bound<'_, PyAny>) -> PyResult<Cells<'a>> {
    let untyped = array.cast::<PyUntypedArray>()?;
    let dtype = untyped.dtype();
    use numpy::PyArrayDescrMethods;
    match (dtype.kind(), dtype.itemsize()) {
        (b'i', 1) => Ok(Cells::Int8(slice_of(array)?)),
        (b'i', 2) => Ok(Cells::Int16(slice_of(array)?)),
        (b'i', 4) => Ok(Cells::Int32(slice_of(array)?)),
        (b'i', 8) => Ok(Cells::Int64(slice_of(array)?)),
        (b'u', 1) => Ok(Cells::UInt8(slice_of(array)?)),
        (b'u', 2) => Ok(Cells::UInt16(slice_of(array)?)),
        (b'u', 4) => Ok(Cells::UInt32(slice_of(array)?)),
        (b'u', 8) => Ok(Cells::UInt64(slice_of(array)?)),
        (b'f', 4) => Ok(Cells::Float32(slice_of(array)?)),
        (b'f', 8) => Ok(Cells::Float64(slice_of(array)?)),
        (b'O', _) => {
            let objects = array.cast::<PyArray1<Py<PyAny>>>()?;
            if !objects.is_contiguous() {
                return Err(PyValueError::new_err("a column is not contiguous"));
            }
            // SAFETY: a contiguous array of this number of object pointers, which the caller keeps alive and unchanged
            // while it holds the interpreter's lock.
            let addresses =
                unsafe { std::slice::from_raw_parts(objects.data().cast(), objects.len()) };
            Ok(Cells::Object(Cow::Borrowed(addresses)))
        }
        _ => Err(PyTypeError::new_err(format!("unknown type of column: {dtype}"))),
    }
}

fn slice_of<'a, T: Element>(array: &'a Bound<'_, PyAny>) -> PyResult<&'a [T]> {
    let array = array.cast::<PyArray1<T>>()?;
    // SAFETY: no other code changes the frame while the result of `run()` is reported.
    unsafe { array.as_slice() }.map_err(|_| PyValueError::new_err("a column is not contiguous"))
}

/// `(validity address or 0, offsets address, bytes of one offset, data address, data length, first row, rows)`.
type Utf8Addresses = (usize, usize, usize, usize, usize, usize, usize);

fn borrow_utf8<'a>(addresses: &'a Bound<'_, PyAny>) -> PyResult<Utf8<'a>> {
    let (validity, offsets, width, data, data_length, start, length): Utf8Addresses =
        addresses.extract()?;
    let end = start + length;
    // SAFETY: these are the addresses of the buffers of an Arrow array, which the caller keeps alive during the call.
    // Their lengths follow from the Arrow format.
    unsafe {
        Ok(Utf8 {
            validity: (validity != 0)
                .then(|| std::slice::from_raw_parts(validity as *const u8, end.div_ceil(8))),
            offsets: match width {
                4 => Offsets::Narrow(std::slice::from_raw_parts(offsets as *const i32, end + 1)),
                _ => Offsets::Wide(std::slice::from_raw_parts(offsets as *const i64, end + 1)),
            },
            data: if data_length == 0 {
                &[]
            } else {
                std::slice::from_raw_parts(data as *const u8, data_length)
            },
            start,
            length,
        })
    }
}

impl Cells<'_> {
    /// Returns whether reading a cell needs the interpreter.
    pub fn is_object(&self) -> bool {
        matches!(self, Self::Object(_))
    }
}

/// A cell of an object column.
pub enum ObjectCell<'a> {
    /// `None` or NaN.
    Missing,
    Text(&'a [u8]),
    Integer(i64),
    Float(f64),
    Bool(bool),
    /// Text that is not valid Unicode, an integer of more than 64 bits, or a value of any other type.
    Other(Borrowed<'a, 'a, PyAny>),
}

/// Reads the object at `address`.
pub fn read_object<'a>(py: Python<'a>, address: usize) -> ObjectCell<'a> {
    let pointer = address as *mut ffi::PyObject;
    // SAFETY: the caller holds the interpreter's lock (`py`) and a reference to the array that owns the object. Each
    // call below follows a check of the exact type that it needs.
    unsafe {
        if pointer.is_null() || pointer == ffi::Py_None() {
            return ObjectCell::Missing;
        }
        let object = Borrowed::from_ptr(py, pointer);
        if ffi::PyUnicode_CheckExact(pointer) != 0 {
            let mut length = 0;
            let text = ffi::PyUnicode_AsUTF8AndSize(pointer, &mut length);
            if text.is_null() {
                ffi::PyErr_Clear();
                return ObjectCell::Other(object);
            }
            return ObjectCell::Text(std::slice::from_raw_parts(text.cast(), length as usize));
        }
        if ffi::PyFloat_CheckExact(pointer) != 0 {
            let value = ffi::PyFloat_AsDouble(pointer);
            return if value.is_nan() { ObjectCell::Missing } else { ObjectCell::Float(value) };
        }
        if ffi::PyBool_Check(pointer) != 0 {
            return ObjectCell::Bool(pointer == ffi::Py_True());
        }
        if ffi::PyLong_CheckExact(pointer) != 0 {
            let mut overflow = 0;
            let value = ffi::PyLong_AsLongLongAndOverflow(pointer, &mut overflow);
            return if overflow == 0 {
                ObjectCell::Integer(value)
            } else {
                ObjectCell::Other(object)
            };
        }
        ObjectCell::Other(object)
    }
}

/// Returns the number of these units of time in a second.
pub fn per_second(unit: arrow::datatypes::TimeUnit) -> i64 {
    use arrow::datatypes::TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    match unit {
        Second => 1,
        Millisecond => 1_000,
        Microsecond => 1_000_000,
        Nanosecond => 1_000_000_000,
    }
}
