//! Converts a table from the agent to the arrays of a DataFrame, which user code owns and may change in place.
//!
//! The reader maps the memory file, decodes it without a copy, and copies it once to NumPy's own memory. Column types
//! are those of Azure ML: text is `object`, a missing integer makes the column `float64`, a missing boolean makes it
//! `object`, instants are `datetime64[ns]`. The metadata of a field may ask for the types of pandas
//! (`protocol::fields`).

use std::fs::File;
use std::hash::BuildHasher;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use arrow::array::{Array, ArrayAccessor, ArrayRef, AsArray, DictionaryArray, PrimitiveArray};
use arrow::buffer::Buffer;
use arrow::compute::{cast, filter_record_batch};
use arrow::datatypes::{self as types, ArrowPrimitiveType, DataType, TimeUnit};
use arrow::ipc::reader::StreamDecoder;
use arrow::record_batch::RecordBatch;
use numpy::{Element, PyArray1, PyArrayMethods};
use protocol::fields;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyList, PyString};
use rustc_hash::FxBuildHasher;

/// A column: `(name, kind, array)`.
///
/// The kind is one of:
///
/// - `plain`: an array of the right type.
/// - `text`: objects for the type that pandas has for text.
/// - `arrow_text`: the same as a `large_string` of Arrow: the number of missing values, and its three buffers.
/// - `Int64`, `UInt64`: objects for the nullable types of pandas.
/// - `date`: days since the epoch.
/// - `datetime64[unit]`: 64-bit integers, the smallest of which stands for a missing value.
/// - `utc`: the same, as nanoseconds.
/// - `lines`: a list of the lines of JSON from which the rows come.
/// - `unread`: `None`, for a column before those lines.
/// - `foreign`: the name of a type that only `pyarrow` can convert.
type Column = (String, &'static str, Py<PyAny>);

/// Reads tables, and caches the texts of each column.
#[pyclass]
#[derive(Default)]
pub struct TableReader {
    caches: Vec<TextCache>,
}

#[pymethods]
impl TableReader {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Reads the Arrow IPC stream of `length` bytes behind `fd`, which still belongs to the caller. The result does not
    /// refer to its memory.
    ///
    /// With `as_items`, the rows become dictionaries. Columns with missing values then keep their whole numbers, and
    /// the result has the lines of JSON, which frames lack. `arrow_texts`: pandas keeps its texts in Arrow.
    fn read(
        &mut self,
        py: Python<'_>,
        fd: RawFd,
        length: usize,
        as_items: bool,
        arrow_texts: bool,
    ) -> PyResult<(usize, Vec<Column>)> {
        let batch = py.detach(|| {
            decode(fd, length).and_then(|batch| if as_items { Ok(batch) } else { fitting(batch) })
        })?;
        let schema = batch.schema();
        // Python parses the rows from these lines. Only the names of the columns before them matter.
        let lines =
            schema.fields().iter().position(|field| field.metadata().contains_key(fields::LINES));
        let unread = if as_items { lines.unwrap_or_default() } else { 0 };
        self.caches.resize_with(batch.num_columns().max(self.caches.len()), TextCache::default);
        let mut columns = Vec::with_capacity(batch.num_columns());
        for (position, (field, array)) in schema.fields().iter().zip(batch.columns()).enumerate() {
            let cache = &mut self.caches[position];
            let selection = field.metadata().get(fields::LINES);
            if selection.is_some() && !as_items || field.metadata().contains_key(fields::FITS) {
                continue;
            }
            let is_json = field
                .metadata()
                .get("ARROW:extension:name")
                .is_some_and(|name| name == "arrow.json");
            let for_pandas = field.metadata().get(fields::PANDAS).map(String::as_str);
            let (kind, data) = match array.data_type() {
                _ if position < unread => ("unread", py.None()),
                _ if is_json => json_values(py, array)?,
                _ if selection.is_some() => ("lines", lines_of(py, array)?),
                data_type if as_items && data_type.is_integer() && array.null_count() > 0 => {
                    ("plain", whole_numbers(py, array)?)
                }
                DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
                    if arrow_texts && for_pandas == Some(fields::NAN) =>
                {
                    ("arrow_text", buffers_of_texts(py, array)?)
                }
                _ => convert(py, array, cache, for_pandas)?,
            };
            columns.push((selection.unwrap_or(field.name()).clone(), kind, data));
        }
        Ok((batch.num_rows(), columns))
    }
}

fn decode(fd: RawFd, length: usize) -> PyResult<RecordBatch> {
    let damaged = |error: &dyn std::fmt::Display| {
        PyValueError::new_err(format!("the table from the engine cannot be read: {error}"))
    };
    // SAFETY: the file is only borrowed; `ManuallyDrop` leaves it open.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    // SAFETY: the agent does not change the memory file until this mini-batch is answered, and never shrinks it.
    let map = unsafe { memmap2::MmapOptions::new().len(length).populate().map(&*file) }
        .map_err(|error| damaged(&error))?;
    let start = NonNull::new(map.as_ptr().cast_mut()).ok_or_else(|| damaged(&"it is empty"))?;
    // SAFETY: the buffer owns the map, whose address does not change.
    let mut buffer = unsafe { Buffer::from_custom_allocation(start, length, Arc::new(map)) };
    let mut decoder = StreamDecoder::new();
    while !buffer.is_empty() {
        if let Some(batch) = decoder.decode(&mut buffer).map_err(|error| damaged(&error))? {
            return Ok(batch);
        }
    }
    decoder.schema().map(RecordBatch::new_empty).ok_or_else(|| damaged(&"it holds no record batch"))
}

/// Leaves out the rows that have a value which does not fit the type of its column.
fn fitting(batch: RecordBatch) -> PyResult<RecordBatch> {
    let schema = batch.schema();
    let mark = schema.fields().iter().position(|field| field.metadata().contains_key(fields::FITS));
    let Some(mark) = mark else { return Ok(batch) };
    let filtered = filter_record_batch(&batch, batch.column(mark).as_boolean());
    filtered.map_err(|error| PyValueError::new_err(error.to_string()))
}

fn convert(
    py: Python<'_>,
    array: &ArrayRef,
    cache: &mut TextCache,
    for_pandas: Option<&str>,
) -> PyResult<(&'static str, Py<PyAny>)> {
    let is_float = for_pandas == Some(fields::FLOAT);
    let (missing, text) = match for_pandas {
        Some(fields::NAN) => (PyFloat::new(py, f64::NAN).into_any().unbind(), "text"),
        _ => (py.None(), "plain"),
    };
    match array.data_type() {
        DataType::Int8 => Ok(integers::<types::Int8Type>(py, array)),
        DataType::Int16 => Ok(integers::<types::Int16Type>(py, array)),
        DataType::Int32 => Ok(integers::<types::Int32Type>(py, array)),
        DataType::Int64 if is_float && is_rounded::<types::Int64Type>(array) => {
            Ok(("Int64", whole_numbers(py, array)?))
        }
        DataType::UInt64 if is_float && is_rounded::<types::UInt64Type>(array) => {
            Ok(("UInt64", whole_numbers(py, array)?))
        }
        DataType::Int64 => {
            Ok(wide_integers(py, array.as_primitive::<types::Int64Type>(), is_float, |value| {
                value as f64
            }))
        }
        DataType::UInt8 => Ok(integers::<types::UInt8Type>(py, array)),
        DataType::UInt16 => Ok(integers::<types::UInt16Type>(py, array)),
        DataType::UInt32 => Ok(integers::<types::UInt32Type>(py, array)),
        DataType::UInt64 => {
            Ok(wide_integers(py, array.as_primitive::<types::UInt64Type>(), is_float, |value| {
                value as f64
            }))
        }
        DataType::Float32 => floats(py, array.as_primitive::<types::Float32Type>(), f32::NAN),
        DataType::Float64 => floats(py, array.as_primitive::<types::Float64Type>(), f64::NAN),
        DataType::Boolean => Ok(booleans(py, array, &missing)),
        DataType::Utf8 => Ok((text, texts(py, array.as_string::<i32>(), cache, &missing)?)),
        DataType::LargeUtf8 => Ok((text, texts(py, array.as_string::<i64>(), cache, &missing)?)),
        DataType::Utf8View => Ok((text, texts(py, array.as_string_view(), cache, &missing)?)),
        DataType::Dictionary(keys, values)
            if **keys == DataType::Int32 && **values == DataType::Utf8 =>
        {
            texts_of_dictionary(py, array.as_dictionary::<types::Int32Type>())
        }
        DataType::Null => Ok(("plain", objects(py, (0..array.len()).map(|_| py.None()).collect()))),
        DataType::Date32 => {
            let days = array.as_primitive::<types::Date32Type>();
            let days = days.iter().map(|day| day.map_or(i64::MIN, i64::from)).collect();
            Ok(("date", owned::<i64>(py, days)))
        }
        DataType::Timestamp(unit, None) => Ok(instants(py, array, *unit)),
        DataType::Timestamp(TimeUnit::Nanosecond, Some(zone)) if **zone == *"UTC" => {
            let times = array.as_primitive::<types::TimestampNanosecondType>();
            let missing =
                |(row, value): (usize, &i64)| if times.is_null(row) { i64::MIN } else { *value };
            Ok(("utc", owned::<i64>(py, times.values().iter().enumerate().map(missing).collect())))
        }
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
    wide_integers(py, array.as_primitive::<T>(), false, Into::into)
}

/// Converts whole numbers, to `float64` if one is missing here, or if `is_float`: one is missing in another mini-batch.
fn wide_integers<T>(
    py: Python<'_>,
    array: &PrimitiveArray<T>,
    is_float: bool,
    widen: fn(T::Native) -> f64,
) -> (&'static str, Py<PyAny>)
where
    T: ArrowPrimitiveType,
    T::Native: Element,
{
    if array.null_count() == 0 && !is_float {
        return ("plain", copied(py, array.values()));
    }
    ("plain", owned::<f64>(py, array.iter().map(|value| value.map_or(f64::NAN, widen)).collect()))
}

/// Converts whole numbers, some of which are missing, to `int` and `None`.
fn whole_numbers(py: Python<'_>, array: &ArrayRef) -> PyResult<Py<PyAny>> {
    let array = cast(array, &DataType::Decimal128(20, 0))
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    let cell = |value: Option<i128>| match value {
        Some(value) => Ok(value.into_pyobject(py)?.into_any().unbind()),
        None => Ok(py.None()),
    };
    let cells = array
        .as_primitive::<types::Decimal128Type>()
        .iter()
        .map(cell)
        .collect::<PyResult<Vec<_>>>()?;
    Ok(objects(py, cells))
}

/// Returns whether `float64` may round one of these whole numbers.
fn is_rounded<T>(array: &ArrayRef) -> bool
where
    T: ArrowPrimitiveType,
    T::Native: Into<i128>,
{
    const EXACT_MAX: u128 = 1 << f64::MANTISSA_DIGITS;
    array.as_primitive::<T>().iter().flatten().any(|value| value.into().unsigned_abs() > EXACT_MAX)
}

fn floats<T>(
    py: Python<'_>,
    array: &PrimitiveArray<T>,
    missing: T::Native,
) -> PyResult<(&'static str, Py<PyAny>)>
where
    T: ArrowPrimitiveType,
    T::Native: Element,
{
    let copy = PyArray1::from_slice(py, array.values());
    if let Some(nulls) = array.nulls() {
        let mut copy = copy.try_readwrite()?;
        let values = copy.as_slice_mut()?;
        (0..nulls.len()).filter(|&row| nulls.is_null(row)).for_each(|row| values[row] = missing);
    }
    Ok(("plain", copy.into_any().unbind()))
}

fn booleans(py: Python<'_>, array: &ArrayRef, missing: &Py<PyAny>) -> (&'static str, Py<PyAny>) {
    let array = array.as_boolean();
    if array.null_count() == 0 {
        return ("plain", owned::<bool>(py, array.values().iter().collect()));
    }
    let cell = |value: bool| PyBool::new(py, value).to_owned().into_any().unbind();
    (
        "plain",
        objects(
            py,
            array.iter().map(|value| value.map_or_else(|| missing.clone_ref(py), cell)).collect(),
        ),
    )
}

/// Converts instants to nanoseconds, or keeps their unit if nanoseconds cannot hold one of them.
fn instants(py: Python<'_>, array: &ArrayRef, unit: TimeUnit) -> (&'static str, Py<PyAny>) {
    let (kind, factor, values) = match unit {
        TimeUnit::Second => (
            "datetime64[s]",
            1_000_000_000,
            array.as_primitive::<types::TimestampSecondType>().values(),
        ),
        TimeUnit::Millisecond => (
            "datetime64[ms]",
            1_000_000,
            array.as_primitive::<types::TimestampMillisecondType>().values(),
        ),
        TimeUnit::Microsecond => (
            "datetime64[us]",
            1_000,
            array.as_primitive::<types::TimestampMicrosecondType>().values(),
        ),
        TimeUnit::Nanosecond => {
            ("datetime64[ns]", 1, array.as_primitive::<types::TimestampNanosecondType>().values())
        }
    };
    let optional = || {
        let missing = array.nulls();
        values.iter().enumerate().map(move |(row, &value)| match missing {
            Some(nulls) if nulls.is_null(row) => None,
            _ => Some(value),
        })
    };
    let nanoseconds: Option<Vec<i64>> = optional()
        .map(|value| value.map_or(Some(i64::MIN), |value| value.checked_mul(factor)))
        .collect();
    match nanoseconds {
        Some(nanoseconds) => ("datetime64[ns]", owned(py, nanoseconds)),
        None => (
            kind,
            owned(py, optional().map(|value| value.unwrap_or(i64::MIN)).collect::<Vec<i64>>()),
        ),
    }
}

fn texts<'a, S>(
    py: Python<'_>,
    array: S,
    cache: &mut TextCache,
    missing: &Py<PyAny>,
) -> PyResult<Py<PyAny>>
where
    S: ArrayAccessor<Item = &'a str>,
{
    cache.begin();
    let mut cells = Vec::with_capacity(array.len());
    for row in 0..array.len() {
        cells.push(if array.is_null(row) {
            missing.clone_ref(py)
        } else {
            cache.object(py, array.value(row))
        });
    }
    cache.end();
    Ok(objects(py, cells))
}

/// Returns texts without an object for each: the number of missing ones, the bits that say which, the offsets and the
/// characters.
fn buffers_of_texts(py: Python<'_>, array: &ArrayRef) -> PyResult<Py<PyAny>> {
    let array = cast(array, &DataType::LargeUtf8)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    let texts = array.as_string::<i64>();
    let first = texts.value_offsets()[0];
    let offsets: Vec<i64> = texts.value_offsets().iter().map(|offset| offset - first).collect();
    let characters = &texts.values()[first as usize..][..offsets[texts.len()] as usize];
    let bits = texts.nulls().filter(|nulls| nulls.null_count() > 0);
    let bits = bits.map(|nulls| PyBytes::new(py, &nulls.inner().sliced()));
    let buffers = (
        texts.null_count(),
        bits,
        PyBytes::new(py, &Buffer::from_vec(offsets)),
        PyBytes::new(py, characters),
    );
    Ok(buffers.into_pyobject(py)?.into_any().unbind())
}

/// Returns texts as a list, which needs no NumPy.
fn lines_of(py: Python<'_>, array: &ArrayRef) -> PyResult<Py<PyAny>> {
    Ok(PyList::new(py, array.as_string::<i64>())?.into_any().unbind())
}

/// Converts a dictionary: equal texts become the same Python object.
fn texts_of_dictionary(
    py: Python<'_>,
    array: &DictionaryArray<types::Int32Type>,
) -> PyResult<(&'static str, Py<PyAny>)> {
    let text = |text: &str| PyString::new(py, text).into_any().unbind();
    let texts: Vec<Py<PyAny>> = array
        .values()
        .as_string::<i32>()
        .iter()
        .map(|value| value.map_or_else(|| py.None(), text))
        .collect();
    let known = |key: Option<usize>| {
        key.and_then(|key| texts.get(key)).map_or_else(|| py.None(), |known| known.clone_ref(py))
    };
    Ok(("plain", objects(py, array.keys_iter().map(known).collect())))
}

/// Parses JSON texts to `dict`, `list`, `str`, `int`, `float`, `bool` or `None`.
fn json_values(py: Python<'_>, array: &ArrayRef) -> PyResult<(&'static str, Py<PyAny>)> {
    /// Bytes for one call of Python's own parser: a call costs as much as parsing a short value.
    const TEXT_BYTES: usize = 256 * 1024;
    let parse = py.import("json")?.getattr("loads")?;
    let texts = array.as_string::<i64>();
    let mut cells = Vec::with_capacity(texts.len());
    let mut list = String::from("[");
    for row in 0..texts.len() {
        list.push_str(if texts.is_null(row) { "null" } else { texts.value(row) });
        let is_last = row + 1 == texts.len();
        if is_last || list.len() >= TEXT_BYTES {
            list.push(']');
            for value in parse.call1((&list,))?.try_iter()? {
                cells.push(value?.unbind());
            }
            list.truncate(1);
        } else {
            list.push(',');
        }
    }
    Ok(("plain", objects(py, cells)))
}

/// Maximum length of a cached text, in bytes.
const CACHED_BYTES_MAX: usize = 32;
/// Number of slots in the cache; a power of two.
const CACHE_SLOTS: usize = 8192;
/// Number of lookups before the cache of a column is evaluated.
const TRIAL: usize = 4 * CACHE_SLOTS;
/// The same for a cache that was useless the last time.
const RETRIAL: usize = 1024;

/// A cache of the texts in a column. Columns often repeat a few values, even across mini-batches: the same text becomes
/// the same Python object, because finding an object is faster than creating one. A column whose values rarely repeat
/// stops using its cache.
#[derive(Default)]
struct TextCache {
    slots: Vec<Option<Py<PyString>>>,
    /// Lookups left before the next evaluation.
    trial: usize,
    lookups: usize,
    found: usize,
    is_useless: bool,
}

impl TextCache {
    /// Begins the column of another table.
    fn begin(&mut self) {
        self.trial = if self.is_useless { RETRIAL } else { TRIAL };
        (self.lookups, self.found) = (0, 0);
    }

    fn object(&mut self, py: Python<'_>, text: &str) -> Py<PyAny> {
        if text.len() > CACHED_BYTES_MAX || self.trial == 0 {
            return PyString::new(py, text).into_any().unbind();
        }
        self.lookups += 1;
        self.trial -= 1;
        if self.trial == 0 && self.is_useful() {
            self.trial = TRIAL;
        }
        if self.slots.is_empty() {
            self.slots.resize_with(CACHE_SLOTS, || None);
        }
        let slot = &mut self.slots[FxBuildHasher.hash_one(text.as_bytes()) as usize % CACHE_SLOTS];
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

    /// Evaluates the cache, and returns whether it is useful: one in four lookups must succeed.
    fn is_useful(&mut self) -> bool {
        self.is_useless = self.found < self.lookups / 4;
        (self.lookups, self.found) = (0, 0);
        !self.is_useless
    }

    /// Ends the column.
    fn end(&mut self) {
        if self.lookups >= RETRIAL {
            self.is_useful();
        }
    }
}
