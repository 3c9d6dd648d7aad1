//! The values of an array as text for CSV and as JSON.
//!
//! Values are written as they are, whatever type their column has in the end. Only numbers need to know it: in a column of
//! integers or decimals, floating-point numbers are written as these, and all decimals of a column have the same number of
//! digits. The text of a value never depends on the mini-batch around it.

use std::io::Write;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeBinaryArray, GenericBinaryArray,
    GenericStringArray, OffsetSizeTrait, PrimitiveArray, UnionArray,
};
use arrow::buffer::NullBuffer;
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{self as types, ArrowPrimitiveType, DataType, Field, TimeUnit};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use protocol::instant::{Instant, Precision};
use protocol::json::push_string;
use protocol::number::{Float, Integer, PYTHON_POSITIONAL, push_float, push_integer};
use protocol::{ABSENT, EXTENSION_NAME, JSON_EXTENSION, UUID_EXTENSION};

use super::fractions;
use super::observed::{per_second, without_encoding};

/// A value that does not fit is an error.
pub(super) const EXACT: CastOptions<'static> =
    CastOptions { safe: false, format_options: FormatOptions::new() };

/// The form of numbers that JSON lacks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Json {
    /// As `null`.
    Strict,
    /// As Python's `json` writes and reads them: `NaN`, `Infinity`. For nested values in CSV and in columns of text.
    OfPython,
}

/// The values of an array.
pub(super) trait Cells {
    /// Whether a value is missing.
    fn is_null(&self, row: usize) -> bool;
    /// Whether the row has no such key.
    fn is_absent(&self, _row: usize) -> bool {
        false
    }
    /// Appends a value that is not missing, without quotes.
    fn text(&self, row: usize, into: &mut Vec<u8>);
    /// Appends a value that is not missing: its text in quotes, if JSON escapes nothing in it.
    fn json(&self, row: usize, _form: Json, into: &mut Vec<u8>) {
        in_quotes(into, |into| self.text(row, into));
    }
    /// Whether the text of a value may need quotes in CSV.
    fn may_need_quotes(&self) -> bool {
        true
    }
}

/// Appends a value or `null`.
pub(super) fn push_json(cells: &dyn Cells, row: usize, form: Json, into: &mut Vec<u8>) {
    match cells.is_null(row) {
        true => into.extend_from_slice(b"null"),
        false => cells.json(row, form, into),
    }
}

/// Returns the values of an array. `target`: the column in the file.
pub(super) fn cells(
    array: &ArrayRef,
    field: &Field,
    target: &Field,
) -> Result<Box<dyn Cells>, ArrowError> {
    let Some(array) = without_encoding(array) else { return Ok(Box::new(Missing)) };
    let extension = field.metadata().get(EXTENSION_NAME).map(String::as_str);
    let to = match target.data_type() {
        DataType::Dictionary(_, values) => values,
        other => other,
    };
    let is_declared_time = matches!(to, DataType::Timestamp(..) | DataType::Date32);
    if is_declared_time && matches!(array.data_type(), DataType::Utf8 | DataType::LargeUtf8) {
        // `result_schema` allows texts, in any form of ISO 8601.
        return cells(&cast_with_options(&array, to, &EXACT)?, target, target);
    }
    Ok(match array.data_type() {
        DataType::Boolean => Box::new(Booleans(array.as_boolean().clone())),
        DataType::Int8 => integers::<types::Int8Type>(&array, to),
        DataType::Int16 => integers::<types::Int16Type>(&array, to),
        DataType::Int32 => integers::<types::Int32Type>(&array, to),
        DataType::Int64 => integers::<types::Int64Type>(&array, to),
        DataType::UInt8 => integers::<types::UInt8Type>(&array, to),
        DataType::UInt16 => integers::<types::UInt16Type>(&array, to),
        DataType::UInt32 => integers::<types::UInt32Type>(&array, to),
        DataType::UInt64 => integers::<types::UInt64Type>(&array, to),
        // The nearest number of 64 bits has more digits than the shortest text of a narrower one.
        DataType::Float16 | DataType::Float32 if *to == DataType::Float64 => {
            floats::<types::Float64Type>(&cast(&array, to)?, to)
        }
        DataType::Float16 => floats::<types::Float32Type>(&cast(&array, &DataType::Float32)?, to),
        DataType::Float32 => floats::<types::Float32Type>(&array, to),
        DataType::Float64 => floats::<types::Float64Type>(&array, to),
        DataType::Utf8 => texts::<i32>(&array, extension),
        DataType::LargeUtf8 => texts::<i64>(&array, extension),
        DataType::FixedSizeBinary(16) if extension == Some(UUID_EXTENSION) => {
            Box::new(Uuids(array.as_fixed_size_binary().clone()))
        }
        DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_) => {
            let is_text = matches!(to, DataType::Utf8 | DataType::LargeUtf8);
            Box::new(Bytes {
                array: cast(&array, &DataType::LargeBinary)?.as_binary().clone(),
                is_text,
            })
        }
        DataType::Date32 | DataType::Date64 => {
            let seconds = cast(&array, &DataType::Timestamp(TimeUnit::Second, None))?;
            Box::new(Instants {
                seconds: per_second(TimeUnit::Second),
                numbers: counts(&seconds)?,
                kind: InstantKind::Date,
                precision: Precision::Day,
            })
        }
        DataType::Timestamp(unit, zone) => {
            let kind = match zone {
                Some(zone) => InstantKind::Zoned { offset: offset_of(zone) },
                None => InstantKind::Naive,
            };
            let precision = fractions::of(target);
            Box::new(Instants {
                seconds: per_second(*unit),
                numbers: counts(&array)?,
                kind,
                precision,
            })
        }
        DataType::Duration(unit) => {
            Box::new(Durations { seconds: per_second(*unit), numbers: counts(&array)? })
        }
        DataType::Dictionary(_, values) => {
            let plain = cast(&array, values)?;
            return cells(&plain, &Field::new(field.name(), (**values).clone(), true), target);
        }
        DataType::Decimal32(..) => decimals::<types::Decimal32Type>(&array, to),
        DataType::Decimal64(..) => decimals::<types::Decimal64Type>(&array, to),
        DataType::Decimal128(..) => decimals::<types::Decimal128Type>(&array, to),
        DataType::Decimal256(..) => decimals::<types::Decimal256Type>(&array, to),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            list(&array, item, to)?
        }
        DataType::Struct(fields) => {
            let record = array.as_struct();
            let targets = if let DataType::Struct(targets) = to { Some(targets) } else { None };
            let part = |(field, column): (&types::FieldRef, &ArrayRef)| {
                let target = targets.and_then(|targets| {
                    targets.iter().find(|target| target.name() == field.name())
                });
                let target = target.map_or_else(untyped, |target| (**target).clone());
                Ok((key(field.name()), cells(column, field, &target)?))
            };
            let parts =
                fields.iter().zip(record.columns()).map(part).collect::<Result<_, ArrowError>>()?;
            Box::new(Record { nulls: record.nulls().cloned(), parts })
        }
        DataType::Map(entries, _) => {
            let map = array.as_map();
            let DataType::Struct(parts) = entries.data_type() else { return Ok(Box::new(Missing)) };
            let targets = match to {
                DataType::Map(entries, _) => match entries.data_type() {
                    DataType::Struct(targets) => {
                        targets.iter().map(|target| (**target).clone()).collect()
                    }
                    _ => Vec::new(),
                },
                _ => Vec::new(),
            };
            let target = |part: usize| targets.get(part).cloned().unwrap_or_else(untyped);
            let offsets: Vec<usize> = map.offsets().iter().map(|offset| *offset as usize).collect();
            Box::new(Map {
                nulls: map.nulls().cloned(),
                keys: cells(&within(map.keys(), &offsets), &parts[0], &target(0))?,
                values: cells(&within(map.values(), &offsets), &parts[1], &target(1))?,
                offsets: from_zero(offsets),
            })
        }
        DataType::Union(fields, _) => {
            let union = array.as_union().clone();
            let mut children: Vec<Option<Child>> = (0..128).map(|_| None).collect();
            for (id, child) in fields.iter() {
                let is_absent = child.name() == ABSENT;
                children[id as usize] =
                    Some(Child { cells: cells(union.child(id), child, target)?, is_absent });
            }
            Box::new(UnionCells { union, children })
        }
        // Times of day.
        _ => Box::new(Displayed(array)),
    })
}

/// Returns the target of a part of values that have no common type.
fn untyped() -> Field {
    Field::new("", DataType::Null, true)
}

/// A column without values.
struct Missing;

impl Cells for Missing {
    fn is_null(&self, _: usize) -> bool {
        true
    }

    fn text(&self, _: usize, _: &mut Vec<u8>) {}

    fn json(&self, _: usize, _: Json, into: &mut Vec<u8>) {
        into.extend_from_slice(b"null");
    }
}

struct Booleans(BooleanArray);

impl Cells for Booleans {
    fn is_null(&self, row: usize) -> bool {
        self.0.is_null(row)
    }

    fn text(&self, row: usize, into: &mut Vec<u8>) {
        into.extend_from_slice(if self.0.value(row) { b"True" } else { b"False" });
    }

    fn json(&self, row: usize, _: Json, into: &mut Vec<u8>) {
        into.extend_from_slice(if self.0.value(row) { b"true" } else { b"false" });
    }

    fn may_need_quotes(&self) -> bool {
        false
    }
}

/// The form in which numbers are written.
#[derive(Clone, Copy)]
enum NumberForm {
    /// In their own form.
    Own,
    Integer,
    Float,
    /// With this many digits behind the point. In JSON they are text, because readers would make floating-point numbers of
    /// them.
    Decimal {
        scale: usize,
    },
}

impl NumberForm {
    /// Returns the form of numbers in a column of this type.
    fn of(column: &DataType) -> Self {
        match column {
            DataType::Decimal32(_, scale)
            | DataType::Decimal64(_, scale)
            | DataType::Decimal128(_, scale)
            | DataType::Decimal256(_, scale) => {
                Self::Decimal { scale: usize::try_from(*scale).unwrap_or(0) }
            }
            _ if column.is_integer() => Self::Integer,
            _ if column.is_floating() => Self::Float,
            _ => Self::Own,
        }
    }

    /// Appends what follows the digits of a whole number.
    fn push_fraction(self, into: &mut Vec<u8>) {
        match self {
            Self::Float => into.extend_from_slice(b".0"),
            Self::Decimal { scale } if scale > 0 => push_zeros(into, true, scale),
            _ => {}
        }
    }

    /// Appends a number in JSON, given how to append its text.
    fn push_json(self, into: &mut Vec<u8>, push: impl FnOnce(&mut Vec<u8>)) {
        match self {
            Self::Decimal { .. } => in_quotes(into, push),
            _ => push(into),
        }
    }
}

fn push_zeros(into: &mut Vec<u8>, with_point: bool, count: usize) {
    if with_point {
        into.push(b'.');
    }
    into.resize(into.len() + count, b'0');
}

struct Integers<T: ArrowPrimitiveType> {
    array: PrimitiveArray<T>,
    form: NumberForm,
}

fn integers<T: ArrowPrimitiveType>(array: &ArrayRef, to: &DataType) -> Box<dyn Cells>
where
    T::Native: Integer,
{
    Box::new(Integers { array: array.as_primitive::<T>().clone(), form: NumberForm::of(to) })
}

impl<T: ArrowPrimitiveType> Cells for Integers<T>
where
    T::Native: Integer,
{
    fn is_null(&self, row: usize) -> bool {
        self.array.is_null(row)
    }

    fn text(&self, row: usize, into: &mut Vec<u8>) {
        push_integer(into, self.array.value(row));
        self.form.push_fraction(into);
    }

    fn json(&self, row: usize, _: Json, into: &mut Vec<u8>) {
        match self.form {
            NumberForm::Float => push_integer(into, self.array.value(row)),
            form => form.push_json(into, |into| self.text(row, into)),
        }
    }

    fn may_need_quotes(&self) -> bool {
        false
    }
}

/// Floating-point numbers. In a column of integers or decimals, all of them are whole or missing.
struct Floats<T: ArrowPrimitiveType> {
    array: PrimitiveArray<T>,
    form: NumberForm,
}

fn floats<T: ArrowPrimitiveType>(array: &ArrayRef, to: &DataType) -> Box<dyn Cells>
where
    T::Native: Into<f64> + Float + Copy,
{
    Box::new(Floats { array: array.as_primitive::<T>().clone(), form: NumberForm::of(to) })
}

impl<T: ArrowPrimitiveType> Cells for Floats<T>
where
    T::Native: Into<f64> + Float + Copy,
{
    fn is_null(&self, row: usize) -> bool {
        let is_whole = matches!(self.form, NumberForm::Integer | NumberForm::Decimal { .. });
        self.array.is_null(row) || is_whole && !self.array.value(row).into().is_finite()
    }

    fn text(&self, row: usize, into: &mut Vec<u8>) {
        let value: f64 = self.array.value(row).into();
        match self.form {
            NumberForm::Integer | NumberForm::Decimal { .. } => {
                push_integer(into, value as i128);
                self.form.push_fraction(into);
            }
            NumberForm::Own | NumberForm::Float => {
                push_float(into, self.array.value(row), &PYTHON_POSITIONAL)
            }
        }
    }

    fn json(&self, row: usize, form: Json, into: &mut Vec<u8>) {
        let value: f64 = self.array.value(row).into();
        match form {
            _ if value.is_finite() => self.form.push_json(into, |into| self.text(row, into)),
            Json::Strict => into.extend_from_slice(b"null"),
            Json::OfPython if value.is_nan() => into.extend_from_slice(b"NaN"),
            Json::OfPython if value > 0.0 => into.extend_from_slice(b"Infinity"),
            Json::OfPython => into.extend_from_slice(b"-Infinity"),
        }
    }

    fn may_need_quotes(&self) -> bool {
        false
    }
}

struct Texts<Offset: OffsetSizeTrait> {
    array: GenericStringArray<Offset>,
    /// The texts are JSON.
    are_json: bool,
}

fn texts<Offset: OffsetSizeTrait>(array: &ArrayRef, extension: Option<&str>) -> Box<dyn Cells> {
    let are_json = extension == Some(JSON_EXTENSION);
    Box::new(Texts { array: array.as_string::<Offset>().clone(), are_json })
}

impl<Offset: OffsetSizeTrait> Cells for Texts<Offset> {
    fn is_null(&self, row: usize) -> bool {
        self.array.is_null(row)
    }

    fn text(&self, row: usize, into: &mut Vec<u8>) {
        into.extend_from_slice(self.array.value(row).as_bytes());
    }

    fn json(&self, row: usize, _: Json, into: &mut Vec<u8>) {
        let text = self.array.value(row);
        if self.are_json && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() {
            // A line of JSON lines has no line break.
            into.extend(
                text.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }),
            );
        } else {
            push_string(into, text.as_bytes());
        }
    }
}

struct Uuids(FixedSizeBinaryArray);

impl Cells for Uuids {
    fn is_null(&self, row: usize) -> bool {
        self.0.is_null(row)
    }

    fn text(&self, row: usize, into: &mut Vec<u8>) {
        for (position, byte) in self.0.value(row).iter().enumerate() {
            if matches!(position, 4 | 6 | 8 | 10) {
                into.push(b'-');
            }
            into.extend_from_slice(format!("{byte:02x}").as_bytes());
        }
    }

    fn may_need_quotes(&self) -> bool {
        false
    }
}

/// Bytes, in base64. In a column of text, bytes that are text stand as this text.
struct Bytes {
    array: GenericBinaryArray<i64>,
    is_text: bool,
}

impl Cells for Bytes {
    fn is_null(&self, row: usize) -> bool {
        self.array.is_null(row)
    }

    fn text(&self, row: usize, into: &mut Vec<u8>) {
        let bytes = self.array.value(row);
        match std::str::from_utf8(bytes) {
            Ok(text) if self.is_text => into.extend_from_slice(text.as_bytes()),
            _ => into.extend_from_slice(STANDARD.encode(bytes).as_bytes()),
        }
    }

    fn json(&self, row: usize, _: Json, into: &mut Vec<u8>) {
        let mut text = Vec::new();
        self.text(row, &mut text);
        push_string(into, &text);
    }
}

/// Days and instants.
struct Instants {
    numbers: PrimitiveArray<types::Int64Type>,
    /// Units in a second.
    seconds: i64,
    kind: InstantKind,
    /// The least precision of each time.
    precision: Precision,
}

#[derive(Clone, Copy)]
enum InstantKind {
    Date,
    Naive,
    /// Written with this offset in minutes.
    Zoned {
        offset: i64,
    },
}

fn counts(array: &ArrayRef) -> Result<PrimitiveArray<types::Int64Type>, ArrowError> {
    Ok(cast(array, &DataType::Int64)?.as_primitive::<types::Int64Type>().clone())
}

/// Returns the minutes of a zone that is an offset such as `+01:00`. Times of any other zone are written in UTC.
fn offset_of(zone: &str) -> i64 {
    let (sign, digits) = match zone.as_bytes() {
        [b'+', ..] => (1, &zone[1..]),
        [b'-', ..] => (-1, &zone[1..]),
        _ => return 0,
    };
    let parts = digits.split_once(':').and_then(|(hours, minutes)| {
        Some((hours.parse::<i64>().ok()?, minutes.parse::<i64>().ok()?))
    });
    parts.map_or(0, |(hours, minutes)| sign * (hours * 60 + minutes))
}

impl Instants {
    fn push(&self, row: usize, between: u8, into: &mut Vec<u8>) {
        let number = self.numbers.value(row);
        let offset = match self.kind {
            InstantKind::Zoned { offset } => offset,
            _ => 0,
        };
        let Some(local) = number.checked_add(offset * 60 * self.seconds) else {
            return push_integer(into, number);
        };
        let instant = Instant::new(local, self.seconds);
        // ISO 8601 has a sign in front of years of more than four digits.
        match instant.year {
            ..0 => into.push(b'-'),
            10_000.. => into.push(b'+'),
            _ => {}
        }
        let precision = match self.kind {
            InstantKind::Date => Precision::Day,
            _ => instant.precision().max(self.precision),
        };
        instant.push(into, precision, between);
        if let InstantKind::Zoned { .. } = self.kind {
            let sign = if offset < 0 { '-' } else { '+' };
            let _ = write!(into, "{sign}{:02}:{:02}", offset.abs() / 60, offset.abs() % 60);
        }
    }
}

impl Cells for Instants {
    fn is_null(&self, row: usize) -> bool {
        self.numbers.is_null(row)
    }

    fn text(&self, row: usize, into: &mut Vec<u8>) {
        self.push(row, b' ', into);
    }

    fn json(&self, row: usize, _: Json, into: &mut Vec<u8>) {
        in_quotes(into, |into| self.push(row, b'T', into));
    }

    fn may_need_quotes(&self) -> bool {
        false
    }
}

/// Durations, in the form of ISO 8601 that pandas reads: `P1DT2H3M4.5S`.
struct Durations {
    numbers: PrimitiveArray<types::Int64Type>,
    seconds: i64,
}

impl Cells for Durations {
    fn is_null(&self, row: usize) -> bool {
        self.numbers.is_null(row)
    }

    fn text(&self, row: usize, into: &mut Vec<u8>) {
        let number = self.numbers.value(row);
        let length = number.unsigned_abs();
        let per_second = self.seconds.unsigned_abs();
        let (seconds, rest) = (length / per_second, length % per_second);
        let sign = if number < 0 { "-" } else { "" };
        let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
        let _ = write!(into, "{sign}P{days}DT{hours}H{minutes}M{}", seconds % 60);
        if rest > 0 {
            let digits = format!("{:09}", rest * (1_000_000_000 / per_second));
            let _ = write!(into, ".{}", digits.trim_end_matches('0'));
        }
        into.push(b'S');
    }

    fn may_need_quotes(&self) -> bool {
        false
    }
}

/// Decimals. Outside of a column of decimals they have no zeros at the end: how many an array has depends on the other
/// values of its mini-batch.
struct Decimals<T: types::DecimalType> {
    array: PrimitiveArray<T>,
    form: NumberForm,
}

fn decimals<T: types::DecimalType>(array: &ArrayRef, to: &DataType) -> Box<dyn Cells> {
    Box::new(Decimals { array: array.as_primitive::<T>().clone(), form: NumberForm::of(to) })
}

impl<T: types::DecimalType> Cells for Decimals<T> {
    fn is_null(&self, row: usize) -> bool {
        self.array.is_null(row)
    }

    fn text(&self, row: usize, into: &mut Vec<u8>) {
        let text = self.array.value_as_string(row);
        let fraction = text.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        match self.form {
            NumberForm::Decimal { scale } => {
                into.extend_from_slice(text.as_bytes());
                if scale > fraction {
                    push_zeros(into, fraction == 0, scale - fraction);
                }
            }
            _ if fraction > 0 => {
                into.extend_from_slice(text.trim_end_matches('0').trim_end_matches('.').as_bytes());
            }
            _ => into.extend_from_slice(text.as_bytes()),
        }
    }

    fn may_need_quotes(&self) -> bool {
        false
    }
}

/// Values whose text is that of Arrow.
struct Displayed(ArrayRef);

impl Cells for Displayed {
    fn is_null(&self, row: usize) -> bool {
        self.0.is_null(row)
    }

    fn text(&self, row: usize, into: &mut Vec<u8>) {
        let options = FormatOptions::new();
        // Arrow has a formatter for each type that is left.
        if let Ok(formatter) = ArrayFormatter::try_new(&self.0, &options) {
            let _ = write!(into, "{}", formatter.value(row));
        }
    }
}

/// Lists, in JSON.
struct List {
    nulls: Option<NullBuffer>,
    offsets: Vec<usize>,
    items: Box<dyn Cells>,
}

fn list(array: &ArrayRef, item: &Field, to: &DataType) -> Result<Box<dyn Cells>, ArrowError> {
    let target = match to {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            (**item).clone()
        }
        _ => untyped(),
    };
    let (values, offsets): (&ArrayRef, Vec<usize>) = match array.data_type() {
        DataType::List(_) => {
            let lists = array.as_list::<i32>();
            (lists.values(), lists.offsets().iter().map(|offset| *offset as usize).collect())
        }
        DataType::LargeList(_) => {
            let lists = array.as_list::<i64>();
            (lists.values(), lists.offsets().iter().map(|offset| *offset as usize).collect())
        }
        _ => {
            let lists = array.as_fixed_size_list();
            let length = lists.value_length() as usize;
            (lists.values(), (0..=lists.len()).map(|row| row * length).collect())
        }
    };
    let values = within(values, &offsets);
    Ok(Box::new(List {
        nulls: array.nulls().cloned(),
        offsets: from_zero(offsets),
        items: cells(&values, item, &target)?,
    }))
}

/// Returns the part of nested values to which the rows of a slice refer: each slice would otherwise convert all of them.
fn within(values: &ArrayRef, offsets: &[usize]) -> ArrayRef {
    let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
    values.slice(first, last - first)
}

/// Returns offsets into that part.
fn from_zero(offsets: Vec<usize>) -> Vec<usize> {
    let first = offsets[0];
    offsets.into_iter().map(|offset| offset - first).collect()
}

fn is_null_at(nulls: Option<&NullBuffer>, row: usize) -> bool {
    nulls.is_some_and(|nulls| nulls.is_null(row))
}

impl Cells for List {
    fn is_null(&self, row: usize) -> bool {
        is_null_at(self.nulls.as_ref(), row)
    }

    fn text(&self, row: usize, into: &mut Vec<u8>) {
        self.json(row, Json::OfPython, into);
    }

    fn json(&self, row: usize, form: Json, into: &mut Vec<u8>) {
        into.push(b'[');
        for item in self.offsets[row]..self.offsets[row + 1] {
            if item > self.offsets[row] {
                into.extend_from_slice(b", ");
            }
            push_json(&*self.items, item, form, into);
        }
        into.push(b']');
    }
}

/// Records, in JSON.
struct Record {
    nulls: Option<NullBuffer>,
    parts: Vec<(Vec<u8>, Box<dyn Cells>)>,
}

impl Cells for Record {
    fn is_null(&self, row: usize) -> bool {
        is_null_at(self.nulls.as_ref(), row)
    }

    fn text(&self, row: usize, into: &mut Vec<u8>) {
        self.json(row, Json::OfPython, into);
    }

    fn json(&self, row: usize, form: Json, into: &mut Vec<u8>) {
        push_object(self.parts.iter().map(|(key, cells)| (&**key, &**cells)), row, form, into);
    }
}

/// Returns a name as the key of an object, with the colon behind it.
pub(super) fn key(name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(name.len() + 4);
    push_string(&mut key, name.as_bytes());
    key.extend_from_slice(b": ");
    key
}

/// Appends an object of the keys that the row has.
pub(super) fn push_object<'a>(
    parts: impl Iterator<Item = (&'a [u8], &'a dyn Cells)>,
    row: usize,
    form: Json,
    into: &mut Vec<u8>,
) {
    into.push(b'{');
    let mut is_first = true;
    for (key, cells) in parts {
        if cells.is_absent(row) {
            continue;
        }
        if !is_first {
            into.extend_from_slice(b", ");
        }
        is_first = false;
        into.extend_from_slice(key);
        push_json(cells, row, form, into);
    }
    into.push(b'}');
}

/// Maps, in JSON: lists of pairs, which keep the order of the keys, and keys of any type.
struct Map {
    nulls: Option<NullBuffer>,
    offsets: Vec<usize>,
    keys: Box<dyn Cells>,
    values: Box<dyn Cells>,
}

impl Cells for Map {
    fn is_null(&self, row: usize) -> bool {
        is_null_at(self.nulls.as_ref(), row)
    }

    fn text(&self, row: usize, into: &mut Vec<u8>) {
        self.json(row, Json::OfPython, into);
    }

    fn json(&self, row: usize, form: Json, into: &mut Vec<u8>) {
        into.push(b'[');
        for entry in self.offsets[row]..self.offsets[row + 1] {
            into.extend_from_slice(if entry > self.offsets[row] { b", [" } else { b"[" });
            push_json(&*self.keys, entry, form, into);
            into.extend_from_slice(b", ");
            push_json(&*self.values, entry, form, into);
            into.push(b']');
        }
        into.push(b']');
    }
}

/// Values of several kinds.
struct UnionCells {
    union: UnionArray,
    /// By the type ids of the union.
    children: Vec<Option<Child>>,
}

struct Child {
    cells: Box<dyn Cells>,
    is_absent: bool,
}

impl UnionCells {
    fn at(&self, row: usize) -> (&Child, usize) {
        let child = self.children[self.union.type_id(row) as usize].as_ref();
        (child.expect("a union has a child for each of its ids"), self.union.value_offset(row))
    }
}

impl Cells for UnionCells {
    fn is_null(&self, row: usize) -> bool {
        let (child, row) = self.at(row);
        child.cells.is_null(row)
    }

    fn is_absent(&self, row: usize) -> bool {
        let (child, row) = self.at(row);
        child.is_absent || child.cells.is_absent(row)
    }

    fn text(&self, row: usize, into: &mut Vec<u8>) {
        let (child, row) = self.at(row);
        child.cells.text(row, into);
    }

    fn json(&self, row: usize, form: Json, into: &mut Vec<u8>) {
        let (child, row) = self.at(row);
        child.cells.json(row, form, into);
    }
}

fn in_quotes(into: &mut Vec<u8>, push: impl FnOnce(&mut Vec<u8>)) {
    into.push(b'"');
    push(into);
    into.push(b'"');
}
