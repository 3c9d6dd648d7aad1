//! The digits behind the seconds of a column of times in CSV: as many in each row as one of them needs, because readers such
//! as `pandas.to_datetime` expect the form of the first row in all others.

use arrow::array::{ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type, TimeUnit};
use protocol::instant::{Instant, Precision};

use super::observed::per_second;

/// Key of the metadata of a field with this number of digits.
const FRACTION: &str = "gristmill.fraction";

/// Whether times of this field may need digits behind the seconds.
pub(super) fn may_need(field: &Field) -> bool {
    matches!(field.data_type(), DataType::Timestamp(unit, _) if *unit != TimeUnit::Second)
}

/// Returns the precision that all times of an array need, in a column of this type.
pub(super) fn needed(array: &ArrayRef, column: &DataType) -> Precision {
    let read = matches!(array.data_type(), DataType::Utf8 | DataType::LargeUtf8)
        .then(|| cast(array, column).ok())
        .flatten();
    let array = read.as_ref().unwrap_or(array);
    let DataType::Timestamp(unit, _) = array.data_type() else { return Precision::Second };
    let Ok(numbers) = cast(array, &DataType::Int64) else { return Precision::Second };
    let numbers = numbers.as_primitive::<Int64Type>();
    let precisions =
        numbers.iter().flatten().map(|number| Instant::new(number, per_second(*unit)).precision());
    precisions.fold(Precision::Second, Precision::max)
}

/// Returns the field of a column whose times have this precision.
pub(super) fn with(field: &Field, precision: Precision) -> Field {
    let digits = match precision {
        Precision::Day | Precision::Second => return field.clone(),
        Precision::Millisecond => "3",
        Precision::Microsecond => "6",
        Precision::Nanosecond => "9",
    };
    let mut metadata = field.metadata().clone();
    metadata.insert(FRACTION.to_owned(), digits.to_owned());
    field.clone().with_metadata(metadata)
}

/// Returns a field without a precision, which only the writer of a file needs.
pub(super) fn without(field: &Field) -> Field {
    let mut metadata = field.metadata().clone();
    metadata.remove(FRACTION);
    field.clone().with_metadata(metadata)
}

/// Returns the precision in which the times of a column are written at least.
pub(super) fn of(field: &Field) -> Precision {
    match field.metadata().get(FRACTION).map(String::as_str) {
        Some("3") => Precision::Millisecond,
        Some("6") => Precision::Microsecond,
        Some("9") => Precision::Nanosecond,
        _ => Precision::Second,
    }
}
