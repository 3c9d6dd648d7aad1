//! One type for the values that a column has in all mini-batches, and arrays of that type.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, GenericListArray, OffsetSizeTrait, StringArray,
    StructArray, new_null_array,
};
use arrow::compute::{CastOptions, cast_with_options, nullif};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Float64Type};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};

/// The zone of columns with several zones.
const UTC: &str = "UTC";

/// Returns the type of the values. Categories apply only within one frame.
pub(super) fn plain(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => plain(values),
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        other => nested(other, plain),
    }
}

/// Returns the type in which a column without any value is text, which readers handle best.
pub(super) fn without_nulls(data_type: &DataType) -> DataType {
    if *data_type == DataType::Null { DataType::Utf8 } else { nested(data_type, without_nulls) }
}

/// Returns a type whose parts are changed, if it has any.
fn nested(data_type: &DataType, change: impl Fn(&DataType) -> DataType) -> DataType {
    let part = |field: &FieldRef| Arc::new(Field::new(field.name(), change(field.data_type()), true));
    match data_type {
        DataType::List(field) => DataType::List(part(field)),
        DataType::LargeList(field) => DataType::LargeList(part(field)),
        DataType::FixedSizeList(field, length) => DataType::FixedSizeList(part(field), *length),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(part).collect()),
        other => other.clone(),
    }
}

/// Returns the type that holds the values of both, as pandas would choose it.
pub(super) fn unify(left: &DataType, right: &DataType) -> Option<DataType> {
    use DataType::{
        Binary, Boolean, Date32, Date64, FixedSizeList, Float64, LargeBinary, LargeList, LargeUtf8, List, Null, Struct,
        Timestamp, Utf8,
    };
    if left == right {
        return Some(left.clone());
    }
    match (left, right) {
        (Null, other) | (other, Null) => Some(other.clone()),
        (List(left), List(right)) => Some(List(unify_parts(left, right)?)),
        (List(left) | LargeList(left), List(right) | LargeList(right)) => Some(LargeList(unify_parts(left, right)?)),
        (FixedSizeList(left, length), FixedSizeList(right, other)) if length == other => {
            Some(FixedSizeList(unify_parts(left, right)?, *length))
        }
        (Struct(left), Struct(right)) => unify_structs(left, right).map(Struct),
        (Utf8, LargeUtf8) | (LargeUtf8, Utf8) => Some(LargeUtf8),
        (Binary, LargeBinary) | (LargeBinary, Binary) => Some(LargeBinary),
        (Timestamp(left_unit, left_zone), Timestamp(right_unit, right_zone)) if left_zone == right_zone => {
            Some(Timestamp((*left_unit).max(*right_unit), left_zone.clone()))
        }
        // The instants stay, and their zones differ.
        (Timestamp(left, Some(_)), Timestamp(right, Some(_))) => Some(Timestamp((*left).max(*right), Some(UTC.into()))),
        (left, right) if left.is_integer() && right.is_integer() => Some(unify_integers(left, right)),
        (left, right) if left.is_numeric() && right.is_numeric() && !is_decimal(left) && !is_decimal(right) => {
            Some(Float64)
        }
        (left, right) => {
            let is_text = |data_type: &DataType| matches!(data_type, Utf8 | LargeUtf8);
            let has_text = |data_type: &DataType| {
                let dated = matches!(data_type, Timestamp(..) | Date32 | Date64);
                data_type.is_numeric() || is_text(data_type) || *data_type == Boolean || dated
            };
            (has_text(left) && has_text(right))
                .then(|| if *left == LargeUtf8 || *right == LargeUtf8 { LargeUtf8 } else { Utf8 })
        }
    }
}

fn unify_parts(left: &FieldRef, right: &FieldRef) -> Option<FieldRef> {
    Some(Arc::new(Field::new(left.name(), unify(left.data_type(), right.data_type())?, true)))
}

/// Returns the fields of both by name, in the order of their first appearance.
fn unify_structs(left: &Fields, right: &Fields) -> Option<Fields> {
    let mut fields: Vec<FieldRef> = left.to_vec();
    for field in right {
        match fields.iter_mut().find(|known| known.name() == field.name()) {
            Some(known) => *known = unify_parts(known, field)?,
            None => fields.push(field.clone()),
        }
    }
    Some(fields.into())
}

fn is_decimal(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..)
    )
}

fn unify_integers(left: &DataType, right: &DataType) -> DataType {
    use DataType::{Float64, Int16, Int32, Int64, UInt64};
    let width = |data_type: &DataType| data_type.primitive_width().unwrap_or(8);
    if left.is_signed_integer() == right.is_signed_integer() {
        return if width(left) >= width(right) { left.clone() } else { right.clone() };
    }
    let (signed, unsigned) = if left.is_signed_integer() { (left, right) } else { (right, left) };
    if *unsigned == UInt64 {
        return Float64;
    }
    match width(signed).max(2 * width(unsigned)) {
        2 => Int16,
        4 => Int32,
        _ => Int64,
    }
}

/// Returns the array with a unified type. Fails if a value does not fit: it must not become a missing value.
pub(super) fn conform(array: &ArrayRef, to: &DataType) -> anyhow::Result<ArrayRef> {
    if array.data_type() == to {
        return Ok(array.clone());
    }
    Ok(match (array.data_type(), to) {
        (DataType::Struct(_), DataType::Struct(fields)) => {
            let parts = array.as_struct();
            let part = |field: &FieldRef| match parts.column_by_name(field.name()) {
                Some(part) => conform(part, field.data_type()),
                None => Ok(new_null_array(field.data_type(), parts.len())),
            };
            let columns = fields.iter().map(part).collect::<anyhow::Result<_>>()?;
            Arc::new(StructArray::try_new_with_length(fields.clone(), columns, parts.nulls().cloned(), parts.len())?)
        }
        (DataType::List(_), DataType::List(field)) => list(array.as_list::<i32>(), field)?,
        (DataType::LargeList(_), DataType::LargeList(field)) => list(array.as_list::<i64>(), field)?,
        (DataType::List(from), DataType::LargeList(_)) => {
            let large = cast_with_options(array, &DataType::LargeList(from.clone()), &EXACT)?;
            conform(&large, to)?
        }
        (DataType::FixedSizeList(..), DataType::FixedSizeList(field, length)) => {
            let lists = array.as_fixed_size_list();
            let values = conform(lists.values(), field.data_type())?;
            Arc::new(FixedSizeListArray::try_new(field.clone(), *length, values, lists.nulls().cloned())?)
        }
        // Arrow writes no texts with the names of zones.
        (DataType::Timestamp(unit, Some(_)), DataType::Utf8 | DataType::LargeUtf8) => {
            let instants = cast_with_options(array, &DataType::Timestamp(*unit, Some("+00:00".into())), &EXACT)?;
            cast_with_options(&instants, to, &EXACT)?
        }
        (DataType::Binary | DataType::LargeBinary, DataType::Utf8 | DataType::LargeUtf8) => {
            cast_with_options(array, to, &EXACT).or_else(|_| texts(array, to))?
        }
        (from, DataType::Utf8 | DataType::LargeUtf8) if from.is_nested() => texts(array, to)?,
        (from, to) => {
            let is_counted = from.is_floating() && to.is_integer();
            cast_with_options(&if is_counted { without_nan(array)? } else { array.clone() }, to, &EXACT)?
        }
    })
}

const EXACT: CastOptions<'static> = CastOptions { safe: false, format_options: FormatOptions::new() };

/// Returns the values as people read them. Bytes that are no text are hexadecimal.
fn texts(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    let formatter = ArrayFormatter::try_new(array, &TEXTS)?;
    let text = |row| (!array.is_null(row)).then(|| formatter.value(row).try_to_string()).transpose();
    let texts: StringArray = (0..array.len()).map(text).collect::<Result<_, _>>()?;
    cast_with_options(&(Arc::new(texts) as ArrayRef), to, &EXACT)
}

const TEXTS: FormatOptions<'static> = FormatOptions::new().with_null("null");

/// Returns lists whose values have the type of this field.
fn list<Offset: OffsetSizeTrait>(lists: &GenericListArray<Offset>, field: &FieldRef) -> anyhow::Result<ArrayRef> {
    let values = conform(lists.values(), field.data_type())?;
    let (offsets, nulls) = (lists.offsets().clone(), lists.nulls().cloned());
    Ok(Arc::new(GenericListArray::try_new(field.clone(), offsets, values, nulls)?))
}

/// Returns floating-point numbers with nulls in place of NaN, which whole numbers do not have.
fn without_nan(column: &ArrayRef) -> anyhow::Result<ArrayRef> {
    let floats = cast_with_options(column, &DataType::Float64, &EXACT)?;
    let is_nan = BooleanArray::from_unary(floats.as_primitive::<Float64Type>(), f64::is_nan);
    Ok(nullif(&floats, &is_nan)?)
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float64Array, Int64Array, ListArray, NullArray, TimestampMicrosecondArray};
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::{TimeUnit, TimestampMicrosecondType};
    use arrow::util::display::array_value_to_string;

    use super::*;

    /// Returns lists of these lengths.
    fn lists(lengths: &[usize], values: ArrayRef) -> ArrayRef {
        let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
        let offsets = OffsetBuffer::from_lengths(lengths.iter().copied());
        Arc::new(ListArray::try_new(field, offsets, values, None).expect("they fit"))
    }

    fn structs(parts: &[(&str, ArrayRef)]) -> ArrayRef {
        let (fields, columns): (Vec<Field>, Vec<ArrayRef>) =
            parts.iter().map(|(name, part)| (Field::new(*name, part.data_type().clone(), false), part.clone())).unzip();
        Arc::new(StructArray::try_new(fields.into(), columns, None).expect("they fit"))
    }

    /// Returns the values of arrays that have been brought to one type.
    fn unified(arrays: &[ArrayRef]) -> Option<(DataType, Vec<String>)> {
        let types = arrays.iter().map(|array| plain(array.data_type()));
        let unified = without_nulls(&types.reduce(|left, right| unify(&left, &right).unwrap_or(DataType::Boolean))?);
        let mut values = Vec::new();
        for array in arrays {
            let array = conform(array, &unified).ok()?;
            assert_eq!(*array.data_type(), unified);
            values.extend((0..array.len()).map(|row| array_value_to_string(&array, row).expect("printable")));
        }
        Some((unified, values))
    }

    fn instant(zone: Option<&str>) -> ArrayRef {
        let values = TimestampMicrosecondArray::from(vec![1_700_000_000_000_000]);
        Arc::new(values.with_timezone_opt(zone))
    }

    #[test]
    fn instants_of_several_zones_are_those_of_utc() {
        let [berlin, lisbon, naive] = [Some("Europe/Berlin"), Some("Europe/Lisbon"), None].map(instant);
        let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        for zones in [[&berlin, &lisbon], [&lisbon, &berlin]] {
            let types = zones.map(|array| array.data_type().clone());
            assert_eq!(unify(&types[0], &types[1]), Some(utc.clone()));
            for array in zones {
                let array = conform(array, &utc).expect("an instant");
                assert_eq!(array.as_primitive::<TimestampMicrosecondType>().value(0), 1_700_000_000_000_000);
            }
        }
        let (data_type, values) = unified(&[berlin, naive, lisbon]).expect("texts");
        assert_eq!(data_type, DataType::Utf8);
        assert_eq!(values, ["2023-11-14T22:13:20Z", "2023-11-14T22:13:20", "2023-11-14T22:13:20Z"]);
    }

    fn integers(values: &[i64]) -> ArrayRef {
        Arc::new(Int64Array::from(values.to_vec()))
    }

    fn texts(values: &[&str]) -> ArrayRef {
        Arc::new(StringArray::from(values.to_vec()))
    }

    #[test]
    fn lists_unify_by_their_values() {
        let empty = lists(&[0, 0], Arc::new(NullArray::new(0)));
        let (data_type, values) = unified(&[empty.clone(), lists(&[1, 2], texts(&["a", "b", "c"]))]).expect("texts");
        assert_eq!(data_type, DataType::new_list(DataType::Utf8, true));
        assert_eq!(values, ["[]", "[]", "[a]", "[b, c]"]);
        assert_eq!(unified(&[empty.clone(), empty]).expect("lists").0, DataType::new_list(DataType::Utf8, true));
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.5]));
        let (_, values) = unified(&[lists(&[1], integers(&[7])), lists(&[1], floats)]).expect("numbers");
        assert_eq!(values, ["[7.0]", "[0.5]"]);
        let large = conform(&lists(&[1], integers(&[7])), &DataType::new_large_list(DataType::Float64, true));
        assert_eq!(large.expect("a list").as_list::<i64>().values().len(), 1);
        assert_eq!(unified(&[lists(&[1], integers(&[7])), integers(&[7])]), None, "a list is not a number");
    }

    #[test]
    fn structs_have_the_fields_of_all() {
        let left = structs(&[("a", integers(&[1])), ("b", lists(&[0], Arc::new(NullArray::new(0))))]);
        let right = structs(&[("b", lists(&[1], structs(&[("x", texts(&["t"]))]))), ("c", texts(&["u"]))]);
        let (_, values) = unified(&[left.clone(), right.clone(), left]).expect("structs");
        assert_eq!(values, ["{a: 1, b: [], c: }", "{a: , b: [{x: t}], c: u}", "{a: 1, b: [], c: }"]);
        let inner = |part| lists(&[1], structs(&[part]));
        let (_, values) = unified(&[inner(("x", integers(&[1]))), inner(("y", texts(&["z"])))]).expect("structs");
        assert_eq!(values, ["[{x: 1, y: }]", "[{x: , y: z}]"]);
    }
}
