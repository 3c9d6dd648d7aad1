//! What only pandas changes or must know of a finished column, and what the rules of the original make of codes.

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::datatypes::{DataType, Int64Type, UInt64Type};
use protocol::{TableColumn, TableOptions, TypeRules, fields};

/// Calls `rounded` with row, value and number for each whole number of a column that is another as `float64`, which the
/// original makes of whole numbers with missing values, here or, if `is_float`, elsewhere.
pub(crate) fn rounded_by_pandas(column: &ArrayRef, is_float: bool, rounded: impl FnMut(usize, i128, f64)) {
    fn of<T: ArrowPrimitiveType>(column: &ArrayRef, mut rounded: impl FnMut(usize, i128, f64))
    where
        T::Native: Into<i128>,
    {
        /// Each whole number up to this one is a `float64`.
        const EXACT_MAX: u128 = 1 << f64::MANTISSA_DIGITS;
        for (row, value) in column.as_primitive::<T>().iter().enumerate() {
            let Some(value) = value.map(Into::into).filter(|value| value.unsigned_abs() > EXACT_MAX) else { continue };
            let float = value as f64;
            if float as i128 != value {
                rounded(row, value, float);
            }
        }
    }
    match column.data_type() {
        _ if column.null_count() == 0 && !is_float => {}
        DataType::Int64 => of::<Int64Type>(column, rounded),
        DataType::UInt64 => of::<UInt64Type>(column, rounded),
        _ => {}
    }
}

/// Returns how many values of a column the original's rules take for truth values although they look like codes, and one
/// of them.
pub(crate) fn codes<'a>(column: &'a TableColumn, options: &TableOptions, array: &ArrayRef) -> Option<(u64, &'a [u8])> {
    let code = column.code.as_ref().filter(|_| !options.column_types.contains_key(&column.name))?;
    let values = (array.len() - array.null_count()) as u64;
    (values > 0).then_some((values, code.as_bytes()))
}

/// Returns what pandas must know about a column besides its type.
pub(crate) fn word_for_pandas(column: &TableColumn, options: &TableOptions, array: &ArrayRef) -> Option<&'static str> {
    match array.data_type() {
        _ if options.types == TypeRules::Original => None,
        DataType::Int64 | DataType::UInt64 if column.has_missing || array.null_count() > 0 => Some(fields::FLOAT),
        DataType::LargeUtf8 | DataType::Boolean if options.format.is_delimited() => Some(fields::NAN),
        _ => None,
    }
}
