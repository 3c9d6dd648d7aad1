//! Columns under construction: one typed builder for each type a text column can have.
//!
//! A builder takes a value from the text of a cell. It always appends exactly one value, no matter what the cell
//! contains, and reports whether the value differs from the cell.
//!
//! A missing value is null, and has the value of pandas below its null (NaN, the smallest 64-bit number), so that the
//! arrays of pandas are plain copies.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, BooleanBufferBuilder, Float64Array, Int64Array, NullArray,
    NullBufferBuilder, UInt64Array,
};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use protocol::{ColumnType, TableColumn, TableFormat, TableOptions, TypeRules};

use crate::builder::{Builder, FinishedColumn, missing};
use crate::datetime::DayOrder;
use crate::error::Result;
use crate::problem::Problem;
use crate::problems::{Misfit, Replacement};
use crate::scalar::{
    parse_boolean, parse_float, parse_integer, parse_truth, parse_unsigned, quick_decimal,
    short_decimal, short_digits, trim,
};
use crate::texts::Texts;
use crate::times::DateTimes;

/// One column under construction.
pub(crate) enum Column {
    Integer(Integers),
    Unsigned(Unsigned),
    Float(Floats),
    Boolean(Booleans),
    DateTime(DateTimes),
    Text(Texts),
    /// Text of which all values are missing so far.
    Blank(Texts),
}

impl Column {
    /// Creates a column of its type in the schema.
    pub fn new(column: &TableColumn, options: &TableOptions) -> Self {
        let is_given = options.column_types.contains_key(&column.name);
        let has_words = options.has_missing_words();
        let keeps_json = match column.column_type {
            ColumnType::Json => true,
            _ => options.format == TableFormat::Jsonl && options.infer_column_types && !is_given,
        };
        let texts = || {
            let mut texts = Texts::new(options.empty_as_string);
            (texts.keeps_json, texts.has_words) = (keeps_json, has_words);
            texts
        };
        let times = |order| DateTimes::new(order, column, options.types);
        match column.column_type {
            ColumnType::Integer => Self::Integer(Integers { is_given, ..Integers::default() }),
            ColumnType::Unsigned => Self::Unsigned(Unsigned::default()),
            ColumnType::Float => Self::Float(Floats { is_given, has_words, ..Floats::default() }),
            ColumnType::Boolean => {
                let is_pandas = options.types == TypeRules::Pandas;
                let parse = if is_pandas { parse_truth } else { parse_boolean };
                Self::Boolean(Booleans {
                    parse,
                    trims: is_given || !is_pandas,
                    ..Booleans::default()
                })
            }
            ColumnType::DateTimeMonthFirst => Self::DateTime(times(DayOrder::MonthFirst)),
            ColumnType::DateTimeDayFirst => Self::DateTime(times(DayOrder::DayFirst)),
            ColumnType::Text | ColumnType::Json => Self::Text(texts()),
            ColumnType::Blank => Self::Blank(texts()),
        }
    }

    /// Returns the builder as a trait object.
    pub fn builder(&mut self) -> &mut dyn Builder {
        match self {
            Self::Integer(values) => values,
            Self::Unsigned(values) => values,
            Self::Float(values) => values,
            Self::Boolean(values) => values,
            Self::DateTime(values) => values,
            Self::Text(values) | Self::Blank(values) => values,
        }
    }

    /// Returns the finished column. `failed` marks rows that will be removed; they do not affect its type. Calls
    /// `rounded` for each whole number that changes because the column holds a number beyond 64 bits.
    pub fn finish(
        self,
        failed: Option<&[bool]>,
        rounded: impl FnMut(usize, i64, f64),
    ) -> Result<FinishedColumn> {
        let array: ArrayRef = match self {
            Self::Integer(values) => values.finish(failed, rounded),
            Self::Unsigned(mut values) => {
                Arc::new(UInt64Array::new(ScalarBuffer::from(values.values), values.valid.finish()))
            }
            Self::Float(values) => {
                let valid = without(&values.missing, values.values.len());
                Arc::new(Float64Array::new(ScalarBuffer::from(values.values), valid))
            }
            Self::Boolean(mut values) => {
                Arc::new(BooleanArray::new(values.values.finish(), values.valid.finish()))
            }
            Self::DateTime(values) => values.finish(),
            Self::Blank(values) if values.is_all_missing() => {
                Arc::new(NullArray::new(values.len()))
            }
            Self::Text(values) | Self::Blank(values) => return values.finish(),
        };
        Ok(array.into())
    }
}

/// Returns the null buffer of a column whose values in the rows `missing` (in any order) are null; `None` without such
/// rows.
fn without(missing: &[usize], rows: usize) -> Option<NullBuffer> {
    if missing.is_empty() {
        return None;
    }
    let mut valid = BooleanBufferBuilder::new(rows);
    valid.append_n(rows, true);
    missing.iter().for_each(|&row| valid.set_bit(row, false));
    Some(NullBuffer::new(valid.finish()))
}

/// `int64`, or `float64` if a value is beyond 64 bits.
#[derive(Default)]
pub(crate) struct Integers {
    values: Vec<i64>,
    /// Rows without a value in `values`; NaN is missing.
    others: Vec<(usize, f64)>,
    /// Whether the options set the type, so that leading zeros have no meaning.
    is_given: bool,
}

/// Returns whether a number has a digit after a leading zero: such a text is more likely a code than a number.
///
/// Has no branch on the first digit, which is a zero in every other fraction: each misprediction costs as much as the
/// whole conversion.
#[inline]
fn has_leading_zero(text: &[u8], start: usize, end: usize) -> bool {
    let Some(&[first, second]) = text.get(start..).and_then(<[u8]>::first_chunk) else {
        return false;
    };
    (end > start + 1) & (first == b'0') & second.is_ascii_digit()
}

/// Works like [`has_leading_zero`] for a cell without surrounding white space.
fn is_padded(cell: &[u8]) -> bool {
    let digits = usize::from(matches!(cell, [b'+' | b'-', ..]));
    has_leading_zero(cell, digits, cell.len())
}

impl Integers {
    fn take_other(&mut self, value: f64) {
        self.others.push((self.values.len(), value));
        self.values.push(0);
    }

    fn finish(
        mut self,
        failed: Option<&[bool]>,
        mut rounded: impl FnMut(usize, i64, f64),
    ) -> ArrayRef {
        self.others.retain(|&(row, _)| !failed.is_some_and(|failed| failed[row]));
        let missing: Vec<usize> =
            self.others.iter().filter(|(_, value)| value.is_nan()).map(|(row, _)| *row).collect();
        let valid = without(&missing, self.values.len());
        if missing.len() == self.others.len() {
            return Arc::new(Int64Array::new(ScalarBuffer::from(self.values), valid));
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
        Arc::new(Float64Array::new(ScalarBuffer::from(floats), valid))
    }
}

impl Builder for Integers {
    #[inline]
    fn take_quickly(&mut self, text: &[u8], start: usize, end: usize) -> bool {
        let negative = text.get(start) == Some(&b'-');
        let digits = start + usize::from(negative);
        if has_leading_zero(text, digits, end) {
            return false;
        }
        let Some(value) =
            end.checked_sub(digits).and_then(|length| short_digits(text, digits, length))
        else {
            return false;
        };
        let value = value as i64;
        self.values.push(if negative { -value } else { value });
        true
    }

    fn take(&mut self, cell: &[u8]) -> std::result::Result<(), Misfit> {
        /// Beyond it, doubles do not represent every whole number.
        const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
        let cell = trim(cell);
        let misfit = |problem, became| Err(Misfit { problem, became });
        if let Some(value) = parse_integer(cell) {
            self.values.push(value);
            return match is_padded(cell) && !self.is_given {
                true => misfit(Problem::LeadingZeros, Replacement::Integer(value)),
                false => Ok(()),
            };
        }
        let Some(float) = parse_float(cell) else {
            self.take_missing();
            return missing(cell, Problem::NoInteger);
        };
        if float.is_nan() {
            self.take_missing();
            return Ok(());
        }
        if !(-(2f64.powi(63))..2f64.powi(63)).contains(&float) {
            self.take_other(float);
            return misfit(Problem::BeyondInteger, Replacement::Float(float));
        }
        let value = float as i64;
        self.values.push(value);
        match float.fract() == 0.0 && float.abs() < EXACT_MAX {
            true => Ok(()),
            false => misfit(Problem::Fraction, Replacement::Integer(value)),
        }
    }

    fn take_missing(&mut self) {
        self.take_other(f64::NAN);
    }

    fn problem(&self) -> Option<Problem> {
        Some(Problem::NoInteger)
    }

    fn reserve(&mut self, values: usize, _bytes: usize) {
        self.values.reserve(values);
    }
}

/// `uint64`.
pub(crate) struct Unsigned {
    values: Vec<u64>,
    valid: NullBufferBuilder,
}

impl Default for Unsigned {
    fn default() -> Self {
        Self { values: Vec::new(), valid: NullBufferBuilder::new(0) }
    }
}

impl Builder for Unsigned {
    fn take_quickly(&mut self, text: &[u8], start: usize, end: usize) -> bool {
        let Some(value) = text.get(start..end).and_then(parse_unsigned) else { return false };
        self.values.push(value);
        self.valid.append_non_null();
        true
    }

    fn take(&mut self, cell: &[u8]) -> std::result::Result<(), Misfit> {
        let cell = trim(cell);
        if self.take_quickly(cell, 0, cell.len()) {
            return Ok(());
        }
        self.take_missing();
        missing(cell, Problem::NoUnsigned)
    }

    fn take_missing(&mut self) {
        self.values.push(0);
        self.valid.append_null();
    }

    fn problem(&self) -> Option<Problem> {
        Some(Problem::NoUnsigned)
    }

    fn reserve(&mut self, values: usize, _bytes: usize) {
        self.values.reserve(values);
    }
}

/// `float64`.
#[derive(Default)]
pub(crate) struct Floats {
    values: Vec<f64>,
    missing: Vec<usize>,
    /// Whether the words of pandas are the only missing values, so that another NaN is a misfit.
    has_words: bool,
    /// Whether the options set the type.
    is_given: bool,
}

impl Builder for Floats {
    #[inline]
    fn take_quickly(&mut self, text: &[u8], start: usize, end: usize) -> bool {
        let negative = text.get(start) == Some(&b'-');
        if has_leading_zero(text, start + usize::from(negative), end) {
            return false;
        }
        if let Some(value) = quick_decimal(text, start, end) {
            self.values.push(value);
            return true;
        }
        let Some(digits) = text.get(start + usize::from(negative)..end) else { return false };
        let Some(value) = short_decimal(digits) else { return false };
        self.values.push(if negative { -value } else { value });
        true
    }

    fn take(&mut self, cell: &[u8]) -> std::result::Result<(), Misfit> {
        let cell = trim(cell);
        let Some(value) = parse_float(cell).filter(|value| !(self.has_words && value.is_nan()))
        else {
            self.take_missing();
            return missing(cell, Problem::NoNumber);
        };
        self.values.push(value);
        let lossy = |problem| Err(Misfit { problem, became: Replacement::Float(value) });
        if is_padded(cell) && !self.is_given {
            lossy(Problem::LeadingZeros)
        } else if is_rounded(cell, value) {
            lossy(Problem::Rounded)
        } else {
            Ok(())
        }
    }

    fn take_missing(&mut self) {
        self.missing.push(self.values.len());
        self.values.push(f64::NAN);
    }

    fn problem(&self) -> Option<Problem> {
        Some(Problem::NoNumber)
    }

    fn reserve(&mut self, values: usize, _bytes: usize) {
        self.values.reserve(values);
    }
}

/// Returns whether a double changes a whole number.
fn is_rounded(cell: &[u8], value: f64) -> bool {
    /// All numbers with fewer digits are exact.
    const DIGITS_EXACT: usize = 15;
    if cell.len() <= DIGITS_EXACT {
        return false;
    }
    let digits = std::str::from_utf8(cell).ok().filter(|text| !text.contains(['.', 'e', 'E']));
    digits
        .and_then(|digits| digits.parse::<i128>().ok())
        .is_some_and(|exact| value as i128 != exact)
}

/// `bool`, with missing values.
pub(crate) struct Booleans {
    values: BooleanBufferBuilder,
    valid: NullBufferBuilder,
    parse: fn(&[u8]) -> Option<bool>,
    /// Whether white space around a value has no meaning.
    trims: bool,
}

impl Default for Booleans {
    fn default() -> Self {
        Self {
            values: BooleanBufferBuilder::new(0),
            valid: NullBufferBuilder::new(0),
            parse: parse_boolean,
            trims: true,
        }
    }
}

impl Builder for Booleans {
    #[inline]
    fn take_quickly(&mut self, text: &[u8], start: usize, end: usize) -> bool {
        let Some(value) = text.get(start..end).and_then(self.parse) else { return false };
        self.values.append(value);
        self.valid.append_non_null();
        true
    }

    fn take(&mut self, cell: &[u8]) -> std::result::Result<(), Misfit> {
        let trimmed = trim(cell);
        let cell = if self.trims { trimmed } else { cell };
        if self.take_quickly(cell, 0, cell.len()) {
            return Ok(());
        }
        self.take_missing();
        missing(trimmed, Problem::NoTruthValue)
    }

    fn take_missing(&mut self) {
        self.values.append(false);
        self.valid.append_null();
    }

    fn problem(&self) -> Option<Problem> {
        Some(Problem::NoTruthValue)
    }

    fn reserve(&mut self, values: usize, _bytes: usize) {
        self.values.reserve(values);
    }
}
