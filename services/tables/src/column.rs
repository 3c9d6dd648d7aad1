//! Columns under construction: one typed builder for each type a text column can have.
//!
//! A builder takes a value from the text of a cell. It always takes exactly one value, whatever the cell holds, and
//! says if that value is not what the cell said.
//!
//! Missing numbers and times are kept in the values themselves (NaN, the smallest 64-bit number), as pandas keeps them,
//! so that its arrays are plain copies of these.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, BooleanBufferBuilder, Float64Array, Int64Array, LargeStringArray, NullArray,
    NullBufferBuilder, TimestampNanosecondArray,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use protocol::ColumnType;

use crate::datetime::{DayOrder, parse_datetime};
use crate::error::Result;
use crate::problems::{Became, Misfit};
use crate::scalar::{parse_boolean, parse_float, parse_integer, quick_decimal, short_decimal, short_digits, trim};

/// What `NaT` is in `datetime64[ns]`.
const NOT_A_TIME: i64 = i64::MIN;

/// Takes the cells of one column.
pub(crate) trait Builder {
    /// Takes the cell `text[start..end]` if that can be done quickly. `start <= end` is not given.
    fn take_quickly(&mut self, text: &[u8], start: usize, end: usize) -> bool;
    /// Takes any cell, already without quotes.
    fn take(&mut self, cell: &[u8]) -> std::result::Result<(), Misfit>;
    /// Takes a value that is not there.
    fn take_missing(&mut self);
    /// Makes room for more values.
    fn reserve(&mut self, values: usize, bytes: usize);
}

/// One column under construction.
pub(crate) enum Column {
    Integer(Integers),
    Float(Floats),
    Boolean(Booleans),
    DateTime(DateTimes),
    Text(Texts),
    /// Text that has so far been missing everywhere.
    Blank(Texts),
}

impl Column {
    pub fn new(column_type: ColumnType, empty_as_string: bool) -> Self {
        match column_type {
            ColumnType::Integer => Self::Integer(Integers::default()),
            ColumnType::Float => Self::Float(Floats::default()),
            ColumnType::Boolean => Self::Boolean(Booleans::default()),
            ColumnType::DateTimeMonthFirst => Self::DateTime(DateTimes::new(DayOrder::MonthFirst)),
            ColumnType::DateTimeDayFirst => Self::DateTime(DateTimes::new(DayOrder::DayFirst)),
            ColumnType::Text => Self::Text(Texts::new(empty_as_string)),
            ColumnType::Blank => Self::Blank(Texts::new(empty_as_string)),
        }
    }

    /// The builder, where its type does not matter.
    pub fn builder(&mut self) -> &mut dyn Builder {
        match self {
            Self::Integer(values) => values,
            Self::Float(values) => values,
            Self::Boolean(values) => values,
            Self::DateTime(values) => values,
            Self::Text(values) | Self::Blank(values) => values,
        }
    }

    /// The finished column. `failed` marks rows that will be taken out; they do not decide its type. `rounded` is
    /// called for each whole number that becomes a different one because the column has missing values.
    pub fn finish(self, failed: Option<&[bool]>, rounded: impl FnMut(usize, i64, f64)) -> Result<ArrayRef> {
        Ok(match self {
            Self::Integer(values) => values.finish(failed, rounded),
            Self::Float(values) => Arc::new(Float64Array::new(ScalarBuffer::from(values.values), None)),
            Self::Boolean(mut values) => Arc::new(BooleanArray::new(values.values.finish(), values.valid.finish())),
            Self::DateTime(values) => {
                let valid = values
                    .has_missing
                    .then(|| NullBuffer::from_iter(values.values.iter().map(|&value| value != NOT_A_TIME)));
                Arc::new(TimestampNanosecondArray::new(ScalarBuffer::from(values.values), valid))
            }
            Self::Blank(values) if values.missing == values.offsets.len() - 1 => {
                Arc::new(NullArray::new(values.missing))
            }
            Self::Text(values) | Self::Blank(values) => values.finish()?,
        })
    }
}

/// `int64`, or `float64` where a value is missing or no whole number.
#[derive(Default)]
pub(crate) struct Integers {
    values: Vec<i64>,
    /// Rows whose value is not in `values`.
    others: Vec<(usize, f64)>,
}

impl Integers {
    fn take_other(&mut self, value: f64) {
        self.others.push((self.values.len(), value));
        self.values.push(0);
    }

    fn finish(mut self, failed: Option<&[bool]>, mut rounded: impl FnMut(usize, i64, f64)) -> ArrayRef {
        self.others.retain(|&(row, _)| !failed.is_some_and(|failed| failed[row]));
        if self.others.is_empty() {
            return Arc::new(Int64Array::new(ScalarBuffer::from(self.values), None));
        }
        let mut floats: Vec<f64> = Vec::with_capacity(self.values.len());
        for (row, &value) in self.values.iter().enumerate() {
            let float = value as f64;
            if float as i128 != i128::from(value) {
                rounded(row, value, float);
            }
            floats.push(float);
        }
        for (row, value) in self.others {
            floats[row] = value;
        }
        Arc::new(Float64Array::new(ScalarBuffer::from(floats), None))
    }
}

impl Builder for Integers {
    #[inline]
    fn take_quickly(&mut self, text: &[u8], start: usize, end: usize) -> bool {
        let negative = text.get(start) == Some(&b'-');
        let digits = start + usize::from(negative);
        let Some(value) = end.checked_sub(digits).and_then(|length| short_digits(text, digits, length)) else {
            return false;
        };
        let value = value as i64;
        self.values.push(if negative { -value } else { value });
        true
    }

    fn take(&mut self, cell: &[u8]) -> std::result::Result<(), Misfit> {
        /// Beyond it not every whole number is a double.
        const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
        let cell = trim(cell);
        let misfit = |became| Err(Misfit { expected: "integer", became });
        if cell.is_empty() {
            self.take_missing();
            return Ok(());
        }
        if let Some(value) = parse_integer(cell) {
            self.values.push(value);
            return Ok(());
        }
        let Some(float) = parse_float(cell) else {
            self.take_missing();
            return misfit(Became::Missing);
        };
        if float.is_nan() {
            self.take_missing();
            return Ok(());
        }
        if !(-(2f64.powi(63))..2f64.powi(63)).contains(&float) {
            self.take_other(float);
            return misfit(Became::Float(float));
        }
        let value = float as i64;
        self.values.push(value);
        if float.fract() == 0.0 && float.abs() < EXACT_MAX { Ok(()) } else { misfit(Became::Integer(value)) }
    }

    fn take_missing(&mut self) {
        self.take_other(f64::NAN);
    }

    fn reserve(&mut self, values: usize, _bytes: usize) {
        self.values.reserve(values);
    }
}

/// `float64`.
#[derive(Default)]
pub(crate) struct Floats {
    values: Vec<f64>,
}

impl Builder for Floats {
    #[inline]
    fn take_quickly(&mut self, text: &[u8], start: usize, end: usize) -> bool {
        if let Some(value) = quick_decimal(text, start, end) {
            self.values.push(value);
            return true;
        }
        let negative = text.get(start) == Some(&b'-');
        let Some(digits) = text.get(start + usize::from(negative)..end) else { return false };
        let Some(value) = short_decimal(digits) else { return false };
        self.values.push(if negative { -value } else { value });
        true
    }

    fn take(&mut self, cell: &[u8]) -> std::result::Result<(), Misfit> {
        let cell = trim(cell);
        let value = parse_float(cell);
        self.values.push(value.unwrap_or(f64::NAN));
        if value.is_some() || cell.is_empty() {
            Ok(())
        } else {
            Err(Misfit { expected: "number", became: Became::Missing })
        }
    }

    fn take_missing(&mut self) {
        self.values.push(f64::NAN);
    }

    fn reserve(&mut self, values: usize, _bytes: usize) {
        self.values.reserve(values);
    }
}

/// `bool`, with missing values.
pub(crate) struct Booleans {
    values: BooleanBufferBuilder,
    valid: NullBufferBuilder,
}

impl Default for Booleans {
    fn default() -> Self {
        Self { values: BooleanBufferBuilder::new(0), valid: NullBufferBuilder::new(0) }
    }
}

impl Builder for Booleans {
    #[inline]
    fn take_quickly(&mut self, text: &[u8], start: usize, end: usize) -> bool {
        let Some(value) = text.get(start..end).and_then(parse_boolean) else { return false };
        self.values.append(value);
        self.valid.append_non_null();
        true
    }

    fn take(&mut self, cell: &[u8]) -> std::result::Result<(), Misfit> {
        let cell = trim(cell);
        match parse_boolean(cell) {
            Some(value) => {
                self.values.append(value);
                self.valid.append_non_null();
                Ok(())
            }
            None => {
                self.take_missing();
                let misfit = Misfit { expected: "truth value", became: Became::Missing };
                if cell.is_empty() { Ok(()) } else { Err(misfit) }
            }
        }
    }

    fn take_missing(&mut self) {
        self.values.append(false);
        self.valid.append_null();
    }

    fn reserve(&mut self, values: usize, _bytes: usize) {
        self.values.reserve(values);
    }
}

/// `datetime64[ns]`.
pub(crate) struct DateTimes {
    values: Vec<i64>,
    order: DayOrder,
    has_missing: bool,
}

impl DateTimes {
    fn new(order: DayOrder) -> Self {
        Self { values: Vec::new(), order, has_missing: false }
    }
}

impl Builder for DateTimes {
    #[inline]
    fn take_quickly(&mut self, text: &[u8], start: usize, end: usize) -> bool {
        let Some(value) = text.get(start..end).and_then(|cell| parse_datetime(cell, self.order)) else { return false };
        self.values.push(value);
        true
    }

    fn take(&mut self, cell: &[u8]) -> std::result::Result<(), Misfit> {
        let cell = trim(cell);
        match parse_datetime(cell, self.order) {
            Some(value) => {
                self.values.push(value);
                Ok(())
            }
            None => {
                self.take_missing();
                let misfit = Misfit { expected: "date or time", became: Became::Missing };
                if cell.is_empty() { Ok(()) } else { Err(misfit) }
            }
        }
    }

    fn take_missing(&mut self) {
        self.values.push(NOT_A_TIME);
        self.has_missing = true;
    }

    fn reserve(&mut self, values: usize, _bytes: usize) {
        self.values.reserve(values);
    }
}

/// `object` of `str` and `None`.
pub(crate) struct Texts {
    offsets: Vec<i64>,
    bytes: Vec<u8>,
    valid: NullBufferBuilder,
    missing: usize,
    empty_as_string: bool,
}

impl Texts {
    pub fn new(empty_as_string: bool) -> Self {
        Self { offsets: vec![0], bytes: Vec::new(), valid: NullBufferBuilder::new(0), missing: 0, empty_as_string }
    }

    /// Takes a value as it stands, empty or not.
    pub fn take_text(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.offsets.push(self.bytes.len() as i64);
        self.valid.append_non_null();
    }

    pub fn finish(mut self) -> Result<ArrayRef> {
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.offsets));
        Ok(Arc::new(LargeStringArray::try_new(offsets, Buffer::from(self.bytes), self.valid.finish())?))
    }
}

impl Builder for Texts {
    #[inline]
    fn take_quickly(&mut self, text: &[u8], start: usize, end: usize) -> bool {
        match text.get(start..end) {
            None | Some([] | [b'"', ..]) => false,
            Some(cell) => {
                self.take_text(cell);
                true
            }
        }
    }

    fn take(&mut self, cell: &[u8]) -> std::result::Result<(), Misfit> {
        if cell.is_empty() && !self.empty_as_string {
            self.take_missing()
        } else {
            self.take_text(cell)
        }
        Ok(())
    }

    fn take_missing(&mut self) {
        self.offsets.push(self.bytes.len() as i64);
        self.valid.append_null();
        self.missing += 1;
    }

    fn reserve(&mut self, values: usize, bytes: usize) {
        self.offsets.reserve(values);
        self.bytes.reserve(bytes);
    }
}
