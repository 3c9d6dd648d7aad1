//! A table from the agent, as the arrays of a DataFrame that user code owns and may change in place.
//!
//! The memory file is mapped, decoded without a copy, and copied once into NumPy's own memory. Column types follow
//! what entry scripts have always seen: text is `object`, a missing integer makes the column `float64`, a missing
//! boolean makes it `object`, instants are `datetime64[ns]`.

use std::fs::File;
use std::hash::BuildHasher;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use arrow::array::{Array, ArrayAccessor, ArrayRef, AsArray, DictionaryArray, PrimitiveArray};
use arrow::buffer::Buffer;
use arrow::datatypes::{self as types, ArrowPrimitiveType, DataType, TimeUnit};
use arrow::ipc::reader::StreamDecoder;
use arrow::record_batch::RecordBatch;
use numpy::{Element, PyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};
use rustc_hash::FxBuildHasher;

/// A column: its name, what to make of the array, the array.
///
/// The second is `plain`, `date` (days since the epoch), a `datetime64[unit]` (64-bit integers, the smallest of which
/// is missing), or `foreign`: the array is then the name of a type that only `pyarrow` can convert.
type Column = (String, &'static str, Py<PyAny>);

/// Reads tables, one after the other, and remembers the texts that were in each column.
#[pyclass]
#[derive(Default)]
pub struct TableReader {
    memories: Vec<TextMemory>,
}

#[pymethods]
impl TableReader {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Reads the Arrow IPC stream of `length` bytes behind `fd`, which stays the caller's. Nothing of what is returned
    /// refers to it.
    fn read(&mut self, py: Python<'_>, fd: RawFd, length: usize) -> PyResult<(usize, Vec<Column>)> {
        let batch = py.detach(|| decode(fd, length)).map_err(PyValueError::new_err)?;
        let schema = batch.schema();
        self.memories.resize_with(batch.num_columns().max(self.memories.len()), TextMemory::default);
        let mut columns = Vec::with_capacity(batch.num_columns());
        for ((field, array), memory) in schema.fields().iter().zip(batch.columns()).zip(&mut self.memories) {
            let (kind, data) = convert(py, array, memory)?;
            columns.push((field.name().clone(), kind, data));
        }
        Ok((batch.num_rows(), columns))
    }
}

fn decode(fd: RawFd, length: usize) -> Result<RecordBatch, String> {
    let damaged = |error: &dyn std::fmt::Display| format!("the table handed over cannot be read: {error}");
    // SAFETY: the file is only borrowed; `ManuallyDrop` leaves it open.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    // SAFETY: the agent leaves the memory file as it is until this mini-batch is answered, and never shrinks one.
    let map =
        unsafe { memmap2::MmapOptions::new().len(length).populate().map(&*file) }.map_err(|error| damaged(&error))?;
    let start = NonNull::new(map.as_ptr().cast_mut()).ok_or_else(|| damaged(&"it is empty"))?;
    // SAFETY: the buffer owns the map, which does not move.
    let mut buffer = unsafe { Buffer::from_custom_allocation(start, length, Arc::new(map)) };
    let mut decoder = StreamDecoder::new();
    while !buffer.is_empty() {
        if let Some(batch) = decoder.decode(&mut buffer).map_err(|error| damaged(&error))? {
            return Ok(batch);
        }
    }
    decoder.schema().map(RecordBatch::new_empty).ok_or_else(|| damaged(&"it holds no record batch"))
}

fn convert(py: Python<'_>, array: &ArrayRef, memory: &mut TextMemory) -> PyResult<(&'static str, Py<PyAny>)> {
    match array.data_type() {
        DataType::Int8 => Ok(integers::<types::Int8Type>(py, array)),
        DataType::Int16 => Ok(integers::<types::Int16Type>(py, array)),
        DataType::Int32 => Ok(integers::<types::Int32Type>(py, array)),
        DataType::Int64 => Ok(wide_integers(py, array.as_primitive::<types::Int64Type>(), |value| value as f64)),
        DataType::UInt8 => Ok(integers::<types::UInt8Type>(py, array)),
        DataType::UInt16 => Ok(integers::<types::UInt16Type>(py, array)),
        DataType::UInt32 => Ok(integers::<types::UInt32Type>(py, array)),
        DataType::UInt64 => Ok(wide_integers(py, array.as_primitive::<types::UInt64Type>(), |value| value as f64)),
        DataType::Float32 => Ok(floats(py, array.as_primitive::<types::Float32Type>(), f32::NAN)),
        DataType::Float64 => Ok(floats(py, array.as_primitive::<types::Float64Type>(), f64::NAN)),
        DataType::Boolean => Ok(booleans(py, array)),
        DataType::Utf8 => texts(py, array.as_string::<i32>(), memory),
        DataType::LargeUtf8 => texts(py, array.as_string::<i64>(), memory),
        DataType::Utf8View => texts(py, array.as_string_view(), memory),
        DataType::Dictionary(keys, values) if **keys == DataType::Int32 && **values == DataType::Utf8 => {
            texts_of_dictionary(py, array.as_dictionary::<types::Int32Type>())
        }
        DataType::Null => Ok(("plain", objects(py, (0..array.len()).map(|_| py.None()).collect()))),
        DataType::Date32 => {
            let days = array.as_primitive::<types::Date32Type>();
            let days = days.iter().map(|day| day.map_or(i64::MIN, i64::from)).collect();
            Ok(("date", owned::<i64>(py, days)))
        }
        DataType::Timestamp(unit, None) => Ok(instants(py, array, *unit)),
        foreign => Ok(("foreign", PyString::new(py, &foreign.to_string()).into_any().unbind())),
    }
}

fn owned<T: Element>(py: Python<'_>, values: Vec<T>) -> Py<PyAny> {
    PyArray1::from_vec(py, values).into_any().unbind()
}

fn objects(py: Python<'_>, values: Vec<Py<PyAny>>) -> Py<PyAny> {
    PyArray1::from_vec(py, values).into_any().unbind()
}

fn copied<T: Element + Copy>(py: Python<'_>, values: &[T]) -> Py<PyAny> {
    PyArray1::from_slice(py, values).into_any().unbind()
}

fn integers<T>(py: Python<'_>, array: &ArrayRef) -> (&'static str, Py<PyAny>)
where
    T: ArrowPrimitiveType,
    T::Native: Element + Into<f64>,
{
    wide_integers(py, array.as_primitive::<T>(), Into::into)
}

fn wide_integers<T>(py: Python<'_>, array: &PrimitiveArray<T>, widen: fn(T::Native) -> f64) -> (&'static str, Py<PyAny>)
where
    T: ArrowPrimitiveType,
    T::Native: Element,
{
    if array.null_count() == 0 {
        return ("plain", copied(py, array.values()));
    }
    ("plain", owned::<f64>(py, array.iter().map(|value| value.map_or(f64::NAN, widen)).collect()))
}

fn floats<T>(py: Python<'_>, array: &PrimitiveArray<T>, missing: T::Native) -> (&'static str, Py<PyAny>)
where
    T: ArrowPrimitiveType,
    T::Native: Element,
{
    if array.null_count() == 0 {
        return ("plain", copied(py, array.values()));
    }
    ("plain", owned::<T::Native>(py, array.iter().map(|value| value.unwrap_or(missing)).collect()))
}

fn booleans(py: Python<'_>, array: &ArrayRef) -> (&'static str, Py<PyAny>) {
    let array = array.as_boolean();
    if array.null_count() == 0 {
        return ("plain", owned::<bool>(py, array.values().iter().collect()));
    }
    let cell = |value: bool| PyBool::new(py, value).to_owned().into_any().unbind();
    ("plain", objects(py, array.iter().map(|value| value.map_or_else(|| py.None(), cell)).collect()))
}

/// Instants in nanoseconds, or in their own unit where one does not fit.
fn instants(py: Python<'_>, array: &ArrayRef, unit: TimeUnit) -> (&'static str, Py<PyAny>) {
    let (kind, factor, values) = match unit {
        TimeUnit::Second => {
            ("datetime64[s]", 1_000_000_000, array.as_primitive::<types::TimestampSecondType>().values())
        }
        TimeUnit::Millisecond => {
            ("datetime64[ms]", 1_000_000, array.as_primitive::<types::TimestampMillisecondType>().values())
        }
        TimeUnit::Microsecond => {
            ("datetime64[us]", 1_000, array.as_primitive::<types::TimestampMicrosecondType>().values())
        }
        TimeUnit::Nanosecond => ("datetime64[ns]", 1, array.as_primitive::<types::TimestampNanosecondType>().values()),
    };
    let given = || {
        let missing = array.nulls();
        values.iter().enumerate().map(move |(row, &value)| match missing {
            Some(nulls) if nulls.is_null(row) => None,
            _ => Some(value),
        })
    };
    let nanoseconds: Option<Vec<i64>> =
        given().map(|value| value.map_or(Some(i64::MIN), |value| value.checked_mul(factor))).collect();
    match nanoseconds {
        Some(nanoseconds) => ("datetime64[ns]", owned(py, nanoseconds)),
        None => (kind, owned(py, given().map(|value| value.unwrap_or(i64::MIN)).collect::<Vec<i64>>())),
    }
}

fn texts<'a, S>(py: Python<'_>, array: S, memory: &mut TextMemory) -> PyResult<(&'static str, Py<PyAny>)>
where
    S: ArrayAccessor<Item = &'a str>,
{
    memory.begin();
    let mut cells = Vec::with_capacity(array.len());
    for row in 0..array.len() {
        cells.push(if array.is_null(row) { py.None() } else { memory.object(py, array.value(row)) });
    }
    memory.end();
    Ok(("plain", objects(py, cells)))
}

/// Equal texts become the same Python object.
fn texts_of_dictionary(
    py: Python<'_>,
    array: &DictionaryArray<types::Int32Type>,
) -> PyResult<(&'static str, Py<PyAny>)> {
    let text = |text: &str| PyString::new(py, text).into_any().unbind();
    let texts: Vec<Py<PyAny>> =
        array.values().as_string::<i32>().iter().map(|value| value.map_or_else(|| py.None(), text)).collect();
    let known =
        |key: Option<usize>| key.and_then(|key| texts.get(key)).map_or_else(|| py.None(), |known| known.clone_ref(py));
    Ok(("plain", objects(py, array.keys_iter().map(known).collect())))
}

/// Longest text worth remembering, bytes.
const REMEMBERED_BYTES_MAX: usize = 32;
/// Slots of the memory of texts; a power of two.
const REMEMBERED_SLOTS: usize = 8192;
/// Texts that are looked up before the memory of a column is judged, when it is new.
const TRIAL: usize = 4 * REMEMBERED_SLOTS;
/// The same in a column whose memory was of no use the last time.
const RETRIAL: usize = 1024;

/// Columns often repeat a few values, from one mini-batch to the next too: the same text becomes the same Python
/// object, which is quicker found than made. A column of ever new values stops asking.
#[derive(Default)]
struct TextMemory {
    slots: Vec<Option<Py<PyString>>>,
    /// Texts that may still be looked up before the next judgement.
    trial: usize,
    asked: usize,
    found: usize,
    is_useless: bool,
}

impl TextMemory {
    /// A new column of texts begins.
    fn begin(&mut self) {
        self.trial = if self.is_useless { RETRIAL } else { TRIAL };
        (self.asked, self.found) = (0, 0);
    }

    fn object(&mut self, py: Python<'_>, text: &str) -> Py<PyAny> {
        if text.len() > REMEMBERED_BYTES_MAX || self.trial == 0 {
            return PyString::new(py, text).into_any().unbind();
        }
        self.asked += 1;
        self.trial -= 1;
        if self.trial == 0 && self.judge() {
            self.trial = TRIAL;
        }
        if self.slots.is_empty() {
            self.slots.resize_with(REMEMBERED_SLOTS, || None);
        }
        let slot = &mut self.slots[FxBuildHasher.hash_one(text.as_bytes()) as usize % REMEMBERED_SLOTS];
        if let Some(known) = slot
            && known.bind(py).to_str().is_ok_and(|known| known == text)
        {
            self.found += 1;
            return known.clone_ref(py).into_any();
        }
        let object = PyString::new(py, text).unbind();
        *slot = Some(object.clone_ref(py));
        object.into_any()
    }

    /// Whether looking up is worth it: one in four must be found.
    fn judge(&mut self) -> bool {
        self.is_useless = self.found < self.asked / 4;
        (self.asked, self.found) = (0, 0);
        !self.is_useless
    }

    /// The column has ended.
    fn end(&mut self) {
        if self.asked >= RETRIAL {
            self.judge();
        }
    }
}
