//! Conversions and metadata of a finished column that only pandas needs, and doubtful values by the rules of Azure ML.

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, OffsetSizeTrait};
use arrow::datatypes::{DataType, Int64Type, UInt64Type};
use protocol::{TableColumn, TableOptions, TypeRules, fields};

/// Calls `rounded` with row, value and `float64` for each whole number that `float64` changes, nested ones included.
/// Whole numbers become `float64` if values of the column are missing: in this column or, if `is_float`, in another
/// block.
pub(crate) fn rounded_by_pandas(
    column: &ArrayRef,
    is_float: bool,
    rounded: &mut dyn FnMut(usize, i128, f64),
) {
    fn of<T: ArrowPrimitiveType>(column: &ArrayRef, rounded: &mut dyn FnMut(usize, i128, f64))
    where
        T::Native: Into<i128>,
    {
        /// Every whole number up to this one is exact in `float64`.
        const EXACT_MAX: u128 = 1 << f64::MANTISSA_DIGITS;
        for (row, value) in column.as_primitive::<T>().iter().enumerate() {
            let Some(value) =
                value.map(Into::into).filter(|value| value.unsigned_abs() > EXACT_MAX)
            else {
                continue;
            };
            let float = value as f64;
            if float as i128 != value {
                rounded(row, value, float);
            }
        }
    }
    /// Does the same for the values of lists; those of a row begin at its offset.
    fn within<Offset: OffsetSizeTrait>(
        values: &ArrayRef,
        offsets: &[Offset],
        rounded: &mut dyn FnMut(usize, i128, f64),
    ) {
        rounded_by_pandas(values, false, &mut |position, value, float| {
            let row = offsets.partition_point(|offset| offset.as_usize() <= position);
            rounded(row.saturating_sub(1), value, float);
        });
    }
    match column.data_type() {
        DataType::Struct(_) => {
            for part in column.as_struct().columns() {
                rounded_by_pandas(part, false, rounded);
            }
        }
        DataType::List(_) => {
            within(column.as_list::<i32>().values(), column.as_list::<i32>().offsets(), rounded)
        }
        DataType::LargeList(_) => {
            within(column.as_list::<i64>().values(), column.as_list::<i64>().offsets(), rounded)
        }
        DataType::Map(..) => within(column.as_map().values(), column.as_map().offsets(), rounded),
        DataType::FixedSizeList(_, size) => {
            let size = usize::try_from(*size).unwrap_or(1).max(1);
            let values = column.as_fixed_size_list().values();
            rounded_by_pandas(values, false, &mut |position, value, float| {
                rounded(position / size, value, float)
            });
        }
        _ if column.null_count() == 0 && !is_float => {}
        DataType::Int64 => of::<Int64Type>(column, rounded),
        DataType::UInt64 => of::<UInt64Type>(column, rounded),
        _ => {}
    }
}

/// Returns the number of values in a column with a [`TableColumn::doubtful`] text, and that text.
pub(crate) fn doubtful_values<'a>(
    column: &'a TableColumn,
    options: &TableOptions,
    array: &ArrayRef,
) -> Option<(u64, &'a [u8])> {
    let is_given = options.column_types.contains_key(&column.name);
    let value = column.doubtful.as_ref().filter(|_| !is_given)?;
    let values = (array.len() - array.null_count()) as u64;
    (values > 0).then_some((values, value.as_bytes()))
}

/// Returns what pandas must know about a column besides its type.
pub(crate) fn word_for_pandas(
    column: &TableColumn,
    options: &TableOptions,
    array: &ArrayRef,
) -> Option<&'static str> {
    match array.data_type() {
        _ if options.types == TypeRules::Original => None,
        DataType::Int64 | DataType::UInt64 if column.has_missing || array.null_count() > 0 => {
            Some(fields::FLOAT)
        }
        DataType::LargeUtf8 | DataType::Boolean if options.format.is_delimited() => {
            Some(fields::NAN)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{FixedSizeListArray, Int64Array, ListArray, StructArray};
    use arrow::datatypes::{Field, Fields};

    use super::*;

    #[test]
    fn nested_whole_numbers_beside_missing_ones_are_rounded() {
        const LARGE: i64 = (1 << 53) + 1;
        let found = |column: ArrayRef| {
            let mut found = Vec::new();
            rounded_by_pandas(&column, false, &mut |row, value, _| found.push((row, value)));
            found
        };
        let lists = |values: Vec<Option<Vec<Option<i64>>>>| {
            ListArray::from_iter_primitive::<Int64Type, _, _>(values)
        };
        let list = lists(vec![
            Some(vec![]),
            Some(vec![None, Some(1)]),
            None,
            Some(vec![Some(2), Some(LARGE)]),
        ]);
        assert_eq!(found(Arc::new(list)), [(3, LARGE.into())]);
        assert_eq!(
            found(Arc::new(lists(vec![Some(vec![Some(LARGE)])]))),
            [],
            "no value is missing"
        );
        let numbers: ArrayRef =
            Arc::new(Int64Array::from(vec![Some(LARGE), None, Some(5), Some(LARGE)]));
        let fields = Fields::from(vec![Field::new("id", DataType::Int64, true)]);
        let record = StructArray::new(fields, vec![numbers.clone()], None);
        assert_eq!(found(Arc::new(record)), [(0, LARGE.into()), (3, LARGE.into())]);
        let pairs = FixedSizeListArray::new(
            Arc::new(Field::new("item", DataType::Int64, true)),
            2,
            numbers,
            None,
        );
        assert_eq!(found(Arc::new(pairs)), [(0, LARGE.into()), (1, LARGE.into())]);
    }
}
