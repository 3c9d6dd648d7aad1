//! Converts columns of Python values to Arrow arrays.
//!
//! A column whose values are all of one kind becomes a plain array. One with several kinds becomes a dense union with a
//! child for each kind, so that no value changes here: the reducer knows the values of all mini-batches, and decides
//! which type holds them (`reducer/src/output/observed.rs`). For a key that a dictionary lacks, the kind is *absent*: a
//! child of the type null whose name is [`protocol::ABSENT`].

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Decimal256Array,
    DurationMicrosecondArray, DurationNanosecondArray, Float32Array, Float64Array, Int64Array,
    LargeBinaryArray, LargeListArray, LargeStringArray, ListArray, MapArray, NullArray,
    StringArray, StructArray, Time64MicrosecondArray, TimestampMicrosecondArray,
    TimestampNanosecondArray, UInt64Array, UnionArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Fields, UnionFields, i256};
use numpy::{PyArray1, PyArrayDescrMethods, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use protocol::instant::days_since_epoch;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyMemoryView, PyString, PyTuple,
    PyType,
};
use rustc_hash::FxHashMap;

/// A value of a column; `None`: its row lacks the key.
pub type Cell<'py> = Option<Bound<'py, PyAny>>;

/// Dictionaries with more keys than this, over one mini-batch, are maps rather than records: they become JSON texts.
const KEYS_MAX: usize = 1_000;
/// Maximum depth of nested values. Deeper ones become JSON texts, because readers of Arrow refuse such types.
const DEPTH_MAX: usize = 24;
/// Maximum number of time zones in a column. Further ones become UTC, because a union has at most 127 children.
const ZONES_MAX: usize = 64;
/// Number of digits that the widest decimal holds.
const DIGITS_MAX: usize = 76;

/// An array, and whether its texts are JSON.
pub struct Column {
    pub array: ArrayRef,
    pub is_json: bool,
}

impl Column {
    /// Returns the field of this column.
    pub fn field(&self, name: &str) -> Field {
        let field = Field::new(name, self.array.data_type().clone(), true);
        match self.is_json {
            true => field.with_metadata(HashMap::from([(
                protocol::EXTENSION_NAME.to_owned(),
                protocol::JSON_EXTENSION.to_owned(),
            )])),
            false => field,
        }
    }
}

/// The kind of a value, which selects the array that holds it.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Kind {
    /// The row lacks the key.
    Absent,
    /// `None`, NaN, `NaT` and `pandas.NA`.
    Missing,
    Boolean,
    Integer,
    /// From 2^63 to 2^64 - 1.
    Unsigned,
    Float32,
    Float64,
    /// `Decimal`, and integers beyond 64 bits.
    Decimal,
    Text,
    Binary,
    Date,
    Time,
    Timestamp {
        nanoseconds: bool,
        zone: Option<Arc<str>>,
    },
    Duration {
        nanoseconds: bool,
    },
    List,
    /// Lists of pairs whose first part is a text, the form of maps in pandas and Arrow.
    Map,
    /// One-dimensional arrays of NumPy of this type.
    Numbers(u8, usize),
    Record,
    Json,
}

/// The class of the values of a Python type, determined once for each type.
#[derive(Clone, Copy)]
enum Class {
    Missing,
    Boolean,
    Integer,
    Float,
    Text,
    Binary,
    Record,
    List,
    Timestamp,
    Date,
    Time,
    Duration,
    Decimal,
    NumpyInteger,
    NumpyFloat32,
    /// An instant or a duration.
    NumpyTime,
    NumpyArray,
    /// The package `gristmill` converts it to one of the others.
    Other,
}

/// Builds columns. A result needs only one builder.
pub struct Builder<'py> {
    py: Python<'py>,
    classes: FxHashMap<usize, Class>,
    types: Types<'py>,
    /// `gristmill.rows`, which converts values that have no kind here.
    rows: Bound<'py, PyModule>,
}

struct Types<'py> {
    datetime: Bound<'py, PyAny>,
    date: Bound<'py, PyAny>,
    time: Bound<'py, PyAny>,
    timedelta: Bound<'py, PyAny>,
    decimal: Bound<'py, PyAny>,
}

impl<'py> Builder<'py> {
    pub fn new(py: Python<'py>) -> PyResult<Self> {
        let datetime = py.import(intern!(py, "datetime"))?;
        let types = Types {
            datetime: datetime.getattr("datetime")?,
            date: datetime.getattr("date")?,
            time: datetime.getattr("time")?,
            timedelta: datetime.getattr("timedelta")?,
            decimal: py.import(intern!(py, "decimal"))?.getattr("Decimal")?,
        };
        let rows = py.import(intern!(py, "gristmill.rows"))?;
        Ok(Self { py, classes: FxHashMap::default(), types, rows })
    }

    /// Returns the column of these values.
    pub fn column(&mut self, cells: Vec<Cell<'py>>) -> PyResult<Column> {
        self.column_at(cells, 0)
    }

    fn column_at(&mut self, mut cells: Vec<Cell<'py>>, depth: usize) -> PyResult<Column> {
        if let Some(array) = texts_only(&cells) {
            return Ok(Column { array, is_json: false });
        }
        let mut kinds: Vec<Kind> = Vec::new();
        let mut positions = Vec::with_capacity(cells.len());
        let mut zones = 0;
        for cell in &mut cells {
            let mut kind = self.kind(cell, depth)?;
            if let Kind::Timestamp { nanoseconds, zone: Some(_) } = kind
                && zones >= ZONES_MAX
                && !kinds.contains(&kind)
            {
                kind = Kind::Timestamp { nanoseconds, zone: Some("UTC".into()) };
            }
            let known = positions.last().copied().filter(|&last: &usize| kinds[last] == kind);
            let position = known
                .or_else(|| kinds.iter().position(|known| *known == kind))
                .unwrap_or_else(|| {
                    zones += usize::from(matches!(kind, Kind::Timestamp { zone: Some(_), .. }));
                    kinds.push(kind);
                    kinds.len() - 1
                });
            positions.push(position);
        }
        let values: Vec<&Kind> =
            kinds.iter().filter(|kind| !matches!(kind, Kind::Missing | Kind::Absent)).collect();
        if !kinds.contains(&Kind::Absent) && values.len() <= 1 {
            let Some(&kind) = values.first() else {
                return Ok(Column { array: Arc::new(NullArray::new(cells.len())), is_json: false });
            };
            for (cell, position) in cells.iter_mut().zip(&positions) {
                if kinds[*position] == Kind::Missing {
                    *cell = None;
                }
            }
            return self.of_kind(kind, &cells, depth);
        }
        self.union(&kinds, &positions, &mut cells, depth)
    }

    /// Returns a dense union with a child for each kind.
    fn union(
        &mut self,
        kinds: &[Kind],
        positions: &[usize],
        cells: &mut [Cell<'py>],
        depth: usize,
    ) -> PyResult<Column> {
        let mut parts: Vec<Vec<Cell<'py>>> = vec![Vec::new(); kinds.len()];
        let mut offsets = Vec::with_capacity(cells.len());
        for (cell, position) in cells.iter_mut().zip(positions) {
            let part = &mut parts[*position];
            offsets.push(i32::try_from(part.len()).map_err(|_| too_long())?);
            part.push(cell.take());
        }
        let mut fields = Vec::with_capacity(kinds.len());
        let mut children = Vec::with_capacity(kinds.len());
        for (position, (kind, part)) in kinds.iter().zip(&parts).enumerate() {
            let column = self.of_kind(kind, part, depth)?;
            let name = if *kind == Kind::Absent {
                protocol::ABSENT.to_owned()
            } else {
                position.to_string()
            };
            fields.push(column.field(&name));
            children.push(column.array);
        }
        let type_ids: Vec<i8> = (0..kinds.len()).map(|position| position as i8).collect();
        let fields = UnionFields::try_new(type_ids, fields).map_err(failed)?;
        let type_ids: ScalarBuffer<i8> = positions.iter().map(|&position| position as i8).collect();
        let array = UnionArray::try_new(fields, type_ids, Some(offsets.into()), children)
            .map_err(failed)?;
        Ok(Column { array: Arc::new(array), is_json: false })
    }

    /// Returns the kind of a value. Replaces a value without a kind by one that has a kind.
    fn kind(&mut self, cell: &mut Cell<'py>, depth: usize) -> PyResult<Kind> {
        let Some(value) = cell else { return Ok(Kind::Absent) };
        let mut class = self.class(value)?;
        if let Class::Other = class {
            let plain = self.rows.call_method1(intern!(self.py, "plain_value"), (&*value,))?;
            class = self.class(&plain)?;
            *value = plain;
        }
        Ok(match class {
            Class::Missing => Kind::Missing,
            Class::Boolean => Kind::Boolean,
            Class::Integer | Class::NumpyInteger => {
                if let Class::NumpyInteger = class {
                    *value = value.call_method0(intern!(self.py, "item"))?;
                }
                match value.extract::<i64>() {
                    Ok(_) => Kind::Integer,
                    Err(_) if value.extract::<u64>().is_ok() => Kind::Unsigned,
                    Err(_) => {
                        let text = value.str()?;
                        if text.to_str()?.trim_start_matches('-').len() > DIGITS_MAX {
                            *value = text.into_any();
                            return Ok(Kind::Text);
                        }
                        *value = self.types.decimal.call1((&*value,))?;
                        Kind::Decimal
                    }
                }
            }
            Class::Float => match value.extract::<f64>()?.is_nan() {
                true => Kind::Missing,
                false => Kind::Float64,
            },
            Class::NumpyFloat32 => match value.extract::<f64>()?.is_nan() {
                true => Kind::Missing,
                false => Kind::Float32,
            },
            Class::Text => Kind::Text,
            Class::Binary => Kind::Binary,
            Class::Decimal if value.call_method0(intern!(self.py, "is_nan"))?.is_truthy()? => {
                Kind::Missing
            }
            Class::Decimal => {
                let text = value.call_method1(intern!(self.py, "__format__"), ("f",))?;
                let digits = text.extract::<&str>()?.bytes().filter(u8::is_ascii_digit).count();
                if digits > DIGITS_MAX
                    || !value.call_method0(intern!(self.py, "is_finite"))?.is_truthy()?
                {
                    *value = value.str()?.into_any();
                    return Ok(Kind::Text);
                }
                Kind::Decimal
            }
            Class::Date => Kind::Date,
            // No type of Arrow has a time of day with a zone.
            Class::Time if !value.getattr(intern!(self.py, "tzinfo"))?.is_none() => {
                *value = value.call_method0(intern!(self.py, "isoformat"))?;
                Kind::Text
            }
            Class::Time => Kind::Time,
            Class::Timestamp => Kind::Timestamp {
                nanoseconds: has_nanoseconds(value, intern!(self.py, "nanosecond"))?,
                zone: self.zone(value)?,
            },
            Class::Duration => Kind::Duration {
                nanoseconds: has_nanoseconds(value, intern!(self.py, "nanoseconds"))?,
            },
            Class::NumpyTime => {
                let plain =
                    self.rows.call_method1(intern!(self.py, "plain_instant"), (&*value,))?;
                *value = plain;
                return self.kind(cell, depth);
            }
            Class::Record | Class::List if depth >= DEPTH_MAX => Kind::Json,
            Class::Record => Kind::Record,
            Class::List if is_map(value) => Kind::Map,
            Class::List => Kind::List,
            Class::NumpyArray => {
                let array = value.cast::<PyUntypedArray>()?;
                let dtype = array.dtype();
                match (array.ndim(), dtype.kind(), dtype.itemsize()) {
                    (1, kind @ (b'i' | b'u'), size) => Kind::Numbers(kind, size),
                    (1, b'f', size @ (4 | 8)) => Kind::Numbers(b'f', size),
                    _ => {
                        *value = value.call_method0(intern!(self.py, "tolist"))?;
                        return self.kind(cell, depth);
                    }
                }
            }
            Class::Other => {
                let message = format!("a {} has no form in a table", value.get_type().name()?);
                return Err(PyValueError::new_err(message));
            }
        })
    }

    fn class(&mut self, value: &Bound<'py, PyAny>) -> PyResult<Class> {
        let kind = value.get_type();
        let address = kind.as_ptr() as usize;
        if let Some(class) = self.classes.get(&address) {
            return Ok(*class);
        }
        let class = self.class_of(value, &kind)?;
        self.classes.insert(address, class);
        Ok(class)
    }

    fn class_of(&self, value: &Bound<'py, PyAny>, kind: &Bound<'py, PyType>) -> PyResult<Class> {
        let module = kind.getattr(intern!(self.py, "__module__"))?;
        let module = module.extract::<String>().unwrap_or_default();
        let package = module.split('.').next().unwrap_or_default();
        let is = |class: &Bound<'py, PyAny>| value.is_instance(class);
        Ok(
            if value.is_none()
                || package == "pandas" && matches!(&*kind.name()?.to_string(), "NaTType" | "NAType")
            {
                Class::Missing
            } else if value.is_instance_of::<PyBool>() {
                Class::Boolean
            } else if value.is_instance_of::<PyInt>() {
                Class::Integer
            } else if value.is_instance_of::<PyFloat>() {
                Class::Float
            } else if value.is_instance_of::<PyString>() {
                Class::Text
            } else if value.is_instance_of::<PyBytes>()
                || value.is_instance_of::<PyByteArray>()
                || value.is_instance_of::<PyMemoryView>()
            {
                // `numpy.bytes_` is one of them.
                Class::Binary
            } else if value.is_instance_of::<PyDict>() {
                Class::Record
            } else if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
                Class::List
            } else if is(&self.types.datetime)? {
                Class::Timestamp
            } else if is(&self.types.date)? {
                Class::Date
            } else if is(&self.types.time)? {
                Class::Time
            } else if is(&self.types.timedelta)? {
                Class::Duration
            } else if is(&self.types.decimal)? {
                Class::Decimal
            } else if package == "numpy" {
                match value.getattr(intern!(self.py, "dtype")) {
                    Err(_) => Class::Other,
                    // The buffer of a masked array still holds the values that the mask hides.
                    Ok(_) if value.hasattr(intern!(self.py, "mask"))? => Class::Other,
                    Ok(_) if value.cast::<PyUntypedArray>().is_ok() => Class::NumpyArray,
                    Ok(dtype) => {
                        let kind: String = dtype.getattr(intern!(self.py, "kind"))?.extract()?;
                        let size: usize = dtype.getattr(intern!(self.py, "itemsize"))?.extract()?;
                        match (&*kind, size) {
                            ("b", _) => Class::Boolean,
                            ("i" | "u", _) => Class::NumpyInteger,
                            ("f", 2 | 4) => Class::NumpyFloat32,
                            ("f", _) => Class::Float,
                            ("M" | "m", _) => Class::NumpyTime,
                            _ => Class::Other,
                        }
                    }
                }
            } else {
                Class::Other
            },
        )
    }

    /// Returns the name of the time zone of an instant, or its offset.
    fn zone(&self, value: &Bound<'py, PyAny>) -> PyResult<Option<Arc<str>>> {
        let zone = value.getattr(intern!(self.py, "tzinfo"))?;
        if zone.is_none() {
            return Ok(None);
        }
        for name in ["key", "zone"] {
            if let Ok(name) = zone.getattr(name)
                && let Ok(name) = name.extract::<String>()
            {
                return Ok(Some(name.into()));
            }
        }
        let offset = value.call_method0(intern!(self.py, "utcoffset"))?;
        let minutes = microseconds(&offset)?.div_euclid(60_000_000);
        Ok(Some(match minutes {
            0 => "UTC".into(),
            _ => {
                let sign = if minutes < 0 { '-' } else { '+' };
                format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60).into()
            }
        }))
    }

    /// Returns an array of values of one kind; `None` stands for a missing value.
    fn of_kind(&mut self, kind: &Kind, cells: &[Cell<'py>], depth: usize) -> PyResult<Column> {
        let py = self.py;
        fn each<'py, T>(
            cells: &[Cell<'py>],
            read: impl Fn(&Bound<'py, PyAny>) -> PyResult<T>,
        ) -> PyResult<Vec<Option<T>>> {
            cells.iter().map(|cell| cell.as_ref().map(&read).transpose()).collect()
        }
        let array: ArrayRef = match kind {
            Kind::Absent | Kind::Missing => Arc::new(NullArray::new(cells.len())),
            Kind::Boolean => Arc::new(BooleanArray::from(each(cells, |value| value.is_truthy())?)),
            Kind::Integer => Arc::new(Int64Array::from(each(cells, |value| value.extract())?)),
            Kind::Unsigned => Arc::new(UInt64Array::from(each(cells, |value| value.extract())?)),
            Kind::Float32 => Arc::new(Float32Array::from(each(cells, |value| {
                Ok(value.extract::<f64>()? as f32)
            })?)),
            Kind::Float64 => Arc::new(Float64Array::from(each(cells, |value| value.extract())?)),
            Kind::Decimal => decimals(&each(cells, |value| {
                value.call_method1(intern!(py, "__format__"), ("f",))?.extract::<String>()
            })?)?,
            Kind::Text => texts_of(each(cells, text_of)?),
            Kind::Binary => {
                let bytes = each(cells, |value| match value.cast::<PyBytes>() {
                    Ok(bytes) => Ok(bytes.as_bytes().to_vec()),
                    Err(_) => Ok(py
                        .get_type::<PyBytes>()
                        .call1((value,))?
                        .cast::<PyBytes>()?
                        .as_bytes()
                        .to_vec()),
                })?;
                match needs_large_offsets(&bytes) {
                    true => Arc::new(bytes.into_iter().collect::<LargeBinaryArray>()),
                    false => Arc::new(bytes.into_iter().collect::<BinaryArray>()),
                }
            }
            Kind::Date => {
                let epoch = 719_163;
                let ordinal = |value: &Bound<'py, PyAny>| -> PyResult<i32> {
                    Ok(value.call_method0(intern!(py, "toordinal"))?.extract::<i32>()? - epoch)
                };
                Arc::new(Date32Array::from(each(cells, ordinal)?))
            }
            Kind::Time => {
                Arc::new(Time64MicrosecondArray::from(each(cells, |value| time_of_day(py, value))?))
            }
            Kind::Timestamp { nanoseconds, zone } => {
                let zone = zone.as_deref().map(Arc::<str>::from);
                let instants = each(cells, |value| instant(py, value))?;
                match nanoseconds {
                    false => {
                        Arc::new(TimestampMicrosecondArray::from(instants).with_timezone_opt(zone))
                    }
                    true => {
                        let instants = instants.into_iter().zip(cells).map(|(instant, cell)| {
                            let (Some(instant), Some(cell)) = (instant, cell) else {
                                return Ok(None);
                            };
                            let rest: i64 = cell.getattr(intern!(py, "nanosecond"))?.extract()?;
                            nanoseconds_of(instant, rest)
                                .map(Some)
                                .ok_or_else(|| beyond_nanoseconds(cell))
                        });
                        let instants = instants.collect::<PyResult<Vec<Option<i64>>>>()?;
                        Arc::new(TimestampNanosecondArray::from(instants).with_timezone_opt(zone))
                    }
                }
            }
            Kind::Duration { nanoseconds: false } => {
                Arc::new(DurationMicrosecondArray::from(each(cells, microseconds)?))
            }
            Kind::Duration { nanoseconds: true } => {
                Arc::new(DurationNanosecondArray::from(each(cells, |value| {
                    let rest: i64 = value
                        .getattr(intern!(py, "nanoseconds"))
                        .and_then(|rest| rest.extract())
                        .unwrap_or(0);
                    nanoseconds_of(microseconds(value)?, rest)
                        .ok_or_else(|| too_long_a_time(value, 106_751))
                })?))
            }
            Kind::List => {
                let mut lengths = Vec::with_capacity(cells.len());
                let mut items = Vec::new();
                for cell in cells {
                    let before = items.len();
                    if let Some(list) = cell {
                        items.extend(
                            list.try_iter()?
                                .map(|item| item.map(Some))
                                .collect::<PyResult<Vec<_>>>()?,
                        );
                    }
                    lengths.push(items.len() - before);
                }
                let items = self.column_at(items, depth + 1)?;
                let field = Arc::new(items.field(Field::LIST_FIELD_DEFAULT_NAME));
                let is_large = i32::try_from(items.array.len()).is_err();
                list(lengths, field, items.array, validity(cells), is_large)?
            }
            Kind::Map => {
                let (mut lengths, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
                for cell in cells {
                    let before = keys.len();
                    for pair in
                        cell.iter().flat_map(|list| list.cast::<PyList>().into_iter().flatten())
                    {
                        let pair = pair.cast::<PyTuple>()?;
                        keys.push(text_of(&pair.get_item(0)?)?);
                        values.push(Some(pair.get_item(1)?));
                    }
                    lengths.push(keys.len() - before);
                }
                let values = self.column_at(values, depth + 1)?;
                let fields = Fields::from(vec![
                    Field::new("key", DataType::Utf8, false),
                    values.field("value"),
                ]);
                let parts: Vec<ArrayRef> = vec![Arc::new(StringArray::from(keys)), values.array];
                let entries = StructArray::try_new(fields.clone(), parts, None).map_err(failed)?;
                let field = Arc::new(Field::new("entries", DataType::Struct(fields), false));
                let offsets = OffsetBuffer::<i32>::from_lengths(lengths);
                Arc::new(
                    MapArray::try_new(field, offsets, entries, validity(cells), false)
                        .map_err(failed)?,
                )
            }
            Kind::Numbers(kind, size) => {
                let lengths: Vec<usize> = cells
                    .iter()
                    .map(|cell| cell.as_ref().map_or(Ok(0), |array| array.len()))
                    .collect::<PyResult<_>>()?;
                let items = numbers(py, *kind, *size, cells)?;
                let field = Arc::new(Field::new_list_field(items.data_type().clone(), true));
                let is_large = i32::try_from(items.len()).is_err();
                list(lengths, field, items, validity(cells), is_large)?
            }
            Kind::Record => match self.record(cells, depth)? {
                Some(array) => array,
                None => return self.of_kind(&Kind::Json, cells, depth),
            },
            Kind::Json => {
                let texts = each(cells, |value| {
                    self.rows.call_method1(intern!(py, "json_text"), (value,))?.extract::<String>()
                })?;
                return Ok(Column { array: texts_of(texts), is_json: true });
            }
        };
        Ok(Column { array, is_json: false })
    }

    /// Returns a column for each key of the dictionaries, or `None` if they have too many keys.
    fn record(&mut self, cells: &[Cell<'py>], depth: usize) -> PyResult<Option<ArrayRef>> {
        let mut columns = Columns::default();
        for cell in cells {
            match cell {
                Some(record) => columns.add_record(record.cast::<PyDict>()?)?,
                // Readers ignore the parts of a missing record.
                None => columns.add_missing(),
            }
            if columns.names.len() > KEYS_MAX {
                return Ok(None);
            }
        }
        let length = cells.len();
        let (mut fields, mut arrays) = (Vec::new(), Vec::new());
        for (name, cells) in columns.finish() {
            let column = self.column_at(cells, depth + 1)?;
            fields.push(column.field(&name));
            arrays.push(column.array);
        }
        let nulls = validity(cells);
        let array = StructArray::try_new_with_length(Fields::from(fields), arrays, nulls, length)
            .map_err(failed)?;
        Ok(Some(Arc::new(array)))
    }
}

/// Values by the names of their columns, in the order of the first appearance of each name.
#[derive(Default)]
pub struct Columns<'py> {
    names: Vec<String>,
    known: FxHashMap<String, usize>,
    cells: Vec<Vec<Cell<'py>>>,
    rows: usize,
}

impl<'py> Columns<'py> {
    /// Adds a row whose values have the names of its keys.
    pub fn add_record(&mut self, record: &Bound<'py, PyDict>) -> PyResult<()> {
        for (guess, (key, value)) in record.iter().enumerate() {
            let position = match key.cast::<PyString>().ok().and_then(|key| key.to_str().ok()) {
                Some(name) if self.names.get(guess).is_some_and(|known| known == name) => guess,
                Some(name) => self.position(name),
                None => self.position(&text_of(&key.str()?.into_any())?),
            };
            self.put(position, value)?;
        }
        self.rows += 1;
        Ok(())
    }

    /// Adds a row whose values have these names.
    pub fn add_named(
        &mut self,
        values: impl IntoIterator<Item = (String, Bound<'py, PyAny>)>,
    ) -> PyResult<()> {
        for (name, value) in values {
            let position = self.position(&name);
            self.put(position, value)?;
        }
        self.rows += 1;
        Ok(())
    }

    /// Adds a row that has none of the columns.
    pub fn add_missing(&mut self) {
        self.rows += 1;
    }

    fn position(&mut self, name: &str) -> usize {
        if let Some(position) = self.known.get(name) {
            return *position;
        }
        self.names.push(name.to_owned());
        self.known.insert(name.to_owned(), self.names.len() - 1);
        self.cells.push(vec![None; self.rows]);
        self.names.len() - 1
    }

    fn put(&mut self, position: usize, value: Bound<'py, PyAny>) -> PyResult<()> {
        let cells = &mut self.cells[position];
        if cells.len() > self.rows {
            let name = &self.names[position];
            return Err(PyValueError::new_err(format!(
                "two keys of a row have the text {name:?}: give each column a name of its own"
            )));
        }
        cells.resize(self.rows, None);
        cells.push(Some(value));
        Ok(())
    }

    /// Returns the columns, with a cell for each row.
    pub fn finish(self) -> impl Iterator<Item = (String, Vec<Cell<'py>>)> {
        let Self { names, cells, rows, .. } = self;
        names.into_iter().zip(cells).map(move |(name, mut cells)| {
            cells.resize(rows, None);
            (name, cells)
        })
    }
}

/// Returns the array of a column that has only plain texts and `None`, the most frequent kind, in one pass.
fn texts_only(cells: &[Cell<'_>]) -> Option<ArrayRef> {
    let mut texts = Vec::with_capacity(cells.len());
    let mut bytes = 0;
    for cell in cells {
        let value = cell.as_ref()?;
        if value.is_none() {
            texts.push(None);
            continue;
        }
        let text = value.cast_exact::<PyString>().ok()?.to_str().ok()?;
        bytes += text.len();
        texts.push(Some(text));
    }
    (bytes < i32::MAX as usize && texts.iter().any(Option::is_some))
        .then(|| Arc::new(StringArray::from(texts)) as ArrayRef)
}

/// Returns an array of texts.
pub fn texts_of(texts: Vec<Option<String>>) -> ArrayRef {
    match needs_large_offsets(&texts) {
        true => Arc::new(LargeStringArray::from(texts)),
        false => Arc::new(StringArray::from(texts)),
    }
}

/// Returns whether the values together are longer than 32-bit offsets can address.
fn needs_large_offsets<T: AsRef<[u8]>>(values: &[Option<T>]) -> bool {
    let bytes = |value: &T| value.as_ref().len();
    values.iter().flatten().map(bytes).sum::<usize>() > i32::MAX as usize
}

/// Returns a text. Lone surrogates, which UTF-8 lacks, become escapes such as `\udc80`.
fn text_of(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let text = value.cast::<PyString>()?;
    match text.to_str() {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => {
            let bytes = text.call_method1("encode", ("utf-8", "backslashreplace"))?;
            Ok(String::from_utf8_lossy(bytes.cast::<PyBytes>()?.as_bytes()).into_owned())
        }
    }
}

/// Returns whether a value is a list of pairs whose first part is a text.
fn is_map(value: &Bound<'_, PyAny>) -> bool {
    let is_pair = |item: Bound<'_, PyAny>| {
        let Ok(pair) = item.cast_exact::<PyTuple>() else { return false };
        pair.len() == 2 && pair.get_item(0).is_ok_and(|key| key.is_instance_of::<PyString>())
    };
    value.cast::<PyList>().is_ok_and(|list| !list.is_empty() && list.iter().all(is_pair))
}

fn validity(cells: &[Cell<'_>]) -> Option<NullBuffer> {
    cells
        .iter()
        .any(Option::is_none)
        .then(|| cells.iter().map(Option::is_some).collect::<Vec<_>>().into())
}

fn list(
    lengths: Vec<usize>,
    field: Arc<Field>,
    items: ArrayRef,
    nulls: Option<NullBuffer>,
    is_large: bool,
) -> PyResult<ArrayRef> {
    Ok(match is_large {
        true => {
            let offsets = OffsetBuffer::<i64>::from_lengths(lengths);
            Arc::new(LargeListArray::try_new(field, offsets, items, nulls).map_err(failed)?)
        }
        false => {
            let offsets = OffsetBuffer::<i32>::from_lengths(lengths);
            Arc::new(ListArray::try_new(field, offsets, items, nulls).map_err(failed)?)
        }
    })
}

/// Returns the numbers of all arrays, one after the other. NaN is a missing value.
fn numbers(py: Python<'_>, kind: u8, size: usize, cells: &[Cell<'_>]) -> PyResult<ArrayRef> {
    use arrow::array::PrimitiveArray;
    use arrow::datatypes as types;

    fn joined<T: arrow::datatypes::ArrowPrimitiveType>(
        py: Python<'_>,
        cells: &[Cell<'_>],
        is_missing: fn(T::Native) -> bool,
    ) -> PyResult<ArrayRef>
    where
        T::Native: numpy::Element,
    {
        let mut values: Vec<Option<T::Native>> = Vec::new();
        for cell in cells.iter().flatten() {
            let array = match cell.cast::<PyArray1<T::Native>>() {
                Ok(array) => array.clone(),
                // The array has the other byte order.
                Err(_) => {
                    let native =
                        cell.call_method1(intern!(py, "astype"), (numpy::dtype::<T::Native>(py),))?;
                    native.cast_into::<PyArray1<T::Native>>()?
                }
            };
            values.extend(
                array
                    .readonly()
                    .as_array()
                    .iter()
                    .map(|value| (!is_missing(*value)).then_some(*value)),
            );
        }
        Ok(Arc::new(values.into_iter().collect::<PrimitiveArray<T>>()))
    }
    match (kind, size) {
        (b'i', 1) => joined::<types::Int8Type>(py, cells, |_| false),
        (b'i', 2) => joined::<types::Int16Type>(py, cells, |_| false),
        (b'i', 4) => joined::<types::Int32Type>(py, cells, |_| false),
        (b'i', _) => joined::<types::Int64Type>(py, cells, |_| false),
        (b'u', 1) => joined::<types::UInt8Type>(py, cells, |_| false),
        (b'u', 2) => joined::<types::UInt16Type>(py, cells, |_| false),
        (b'u', 4) => joined::<types::UInt32Type>(py, cells, |_| false),
        (b'u', _) => joined::<types::UInt64Type>(py, cells, |_| false),
        (_, 4) => joined::<types::Float32Type>(py, cells, f32::is_nan),
        _ => joined::<types::Float64Type>(py, cells, f64::is_nan),
    }
}

/// Returns decimals of one precision and scale from their texts, each of which has at most [`DIGITS_MAX`] digits.
fn decimals(texts: &[Option<String>]) -> PyResult<ArrayRef> {
    let parts = |text: &str| {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        (whole.trim_start_matches('-').trim_start_matches('0').len(), fraction.len())
    };
    let (whole, scale) = texts
        .iter()
        .flatten()
        .map(|text| parts(text))
        .fold((0, 0), |most, one| (most.0.max(one.0), most.1.max(one.1)));
    let precision = whole + scale;
    if precision > DIGITS_MAX {
        return Ok(Arc::new(StringArray::from(texts.to_vec())));
    }
    let values = texts.iter().map(|text| {
        let Some(text) = text else { return Ok(None) };
        let fraction = text.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        let digits = text.replace('.', "") + &"0".repeat(scale - fraction);
        let value = i256::from_string(&digits);
        value.map(Some).ok_or_else(|| PyValueError::new_err(format!("{text} is not a number")))
    });
    let values = values.collect::<PyResult<Vec<_>>>()?;
    let (precision, scale) = (precision.max(1) as u8, scale as i8);
    if precision <= 38 {
        let values = values.into_iter().map(|value| value.and_then(i256::to_i128));
        let array = values.collect::<Decimal128Array>().with_precision_and_scale(precision, scale);
        return Ok(Arc::new(array.map_err(failed)?));
    }
    let array =
        values.into_iter().collect::<Decimal256Array>().with_precision_and_scale(precision, scale);
    Ok(Arc::new(array.map_err(failed)?))
}

fn has_nanoseconds(value: &Bound<'_, PyAny>, name: &Bound<'_, PyString>) -> PyResult<bool> {
    match value.getattr(name) {
        Ok(number) => Ok(number.extract::<i64>().unwrap_or(0) != 0),
        Err(_) => Ok(false),
    }
}

/// Returns the microseconds of a `timedelta`.
fn microseconds(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    let py = value.py();
    let part = |name| value.getattr(name)?.extract::<i64>();
    let seconds = part(intern!(py, "days"))? * 86_400 + part(intern!(py, "seconds"))?;
    let whole = seconds.checked_mul(1_000_000);
    let rest = part(intern!(py, "microseconds"))?;
    whole
        .and_then(|whole| whole.checked_add(rest))
        .ok_or_else(|| too_long_a_time(value, 106_751_991))
}

/// Returns microseconds and the nanoseconds after them, in nanoseconds. The microseconds of the earliest instant alone would
/// overflow.
fn nanoseconds_of(microseconds: i64, rest: i64) -> Option<i64> {
    i64::try_from(i128::from(microseconds) * 1_000 + i128::from(rest)).ok()
}

fn beyond_nanoseconds(value: &Bound<'_, PyAny>) -> PyErr {
    PyValueError::new_err(format!(
        "{value} has nanoseconds, which a column holds only from 1678 to 2261"
    ))
}

fn too_long_a_time(value: &Bound<'_, PyAny>, days_max: u32) -> PyErr {
    PyValueError::new_err(format!(
        "{value} is longer than a column of durations holds: {days_max} days"
    ))
}

/// Returns the microseconds since midnight of a `time` or `datetime`.
fn time_of_day(py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<i64> {
    let part = |name| value.getattr(name)?.extract::<i64>();
    let minutes = part(intern!(py, "hour"))? * 60 + part(intern!(py, "minute"))?;
    Ok((minutes * 60 + part(intern!(py, "second"))?) * 1_000_000
        + part(intern!(py, "microsecond"))?)
}

/// Returns the microseconds of a `datetime` since 1970; with a time zone, since 1970 in UTC. A `Timestamp` of pandas may have
/// any year.
fn instant(py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<i64> {
    let year = value.getattr(intern!(py, "year"))?.extract()?;
    let part = |name| value.getattr(name)?.extract::<u32>();
    let days = days_since_epoch(year, part(intern!(py, "month"))?, part(intern!(py, "day"))?);
    let time = time_of_day(py, value)?;
    let local = days.and_then(|days| days.checked_mul(86_400_000_000)?.checked_add(time));
    let offset = value.call_method0(intern!(py, "utcoffset"))?;
    let offset = if offset.is_none() { 0 } else { microseconds(&offset)? };
    local.and_then(|local| local.checked_sub(offset)).ok_or_else(|| {
        PyValueError::new_err(format!("the year of {value} is beyond those of a column of times"))
    })
}

fn too_long() -> PyErr {
    PyValueError::new_err("a column has more values than a table holds: return less")
}

fn failed(error: arrow::error::ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
