//! Types of columns.

use arrow::array::{
    BooleanArray, Date32Array, Decimal128Array, Float64Array, Int8Array, Int64Array, ListArray,
    NullArray, StringArray, StructArray, TimestampMicrosecondArray, TimestampNanosecondArray,
    UInt8Array, UInt64Array,
};
use arrow::buffer::OffsetBuffer;
use proptest::prelude::*;

use super::*;

/// Returns the type of a column of these arrays, one from each mini-batch, and the words of its conflicts.
fn unified(arrays: &[ArrayRef]) -> (DataType, Vec<String>) {
    let mut observed = Observed::default();
    for (mini_batch, array) in (0..).zip(arrays) {
        let field = Field::new("a", array.data_type().clone(), true);
        observed.observe(array, &field, Place { mini_batch, row: 0 });
    }
    let mut conflicts = Conflicts::default();
    let field = observed.field("a", "a", &mut conflicts);
    let words = |conflict: &Conflict| {
        let kinds: Vec<&str> = conflict.kinds.iter().map(|(word, ..)| word.as_str()).collect();
        format!("{}: {}", conflict.column, kinds.join(", "))
    };
    (field.data_type().clone(), conflicts.found.iter().map(words).collect())
}

fn integers(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn floats(values: &[f64]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

fn texts(values: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn nothing(length: usize) -> ArrayRef {
    Arc::new(NullArray::new(length))
}

fn list(values: ArrayRef) -> ArrayRef {
    let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    let offsets = OffsetBuffer::from_lengths([values.len()]);
    Arc::new(ListArray::try_new(field, offsets, values, None).expect("they fit"))
}

fn record(parts: &[(&str, ArrayRef)]) -> ArrayRef {
    let (fields, columns): (Vec<Field>, Vec<ArrayRef>) = parts
        .iter()
        .map(|(name, part)| (Field::new(*name, part.data_type().clone(), true), part.clone()))
        .unzip();
    Arc::new(StructArray::try_new(fields.into(), columns, None).expect("they fit"))
}

fn instant(zone: Option<&str>) -> ArrayRef {
    Arc::new(TimestampMicrosecondArray::from(vec![1_700_000_000_000_000]).with_timezone_opt(zone))
}

#[test]
fn integers_widen_to_the_type_that_holds_their_range() {
    let narrow: ArrayRef = Arc::new(Int8Array::from(vec![-1]));
    let unsigned: ArrayRef = Arc::new(UInt8Array::from(vec![255]));
    assert_eq!(unified(&[narrow.clone(), unsigned]).0, DataType::Int16);
    let large = |value: u64| -> ArrayRef { Arc::new(UInt64Array::from(vec![value])) };
    assert_eq!(unified(&[narrow.clone(), large(7)]).0, DataType::Int64);
    assert_eq!(unified(&[integers(&[7]), large(u64::MAX)]).0, DataType::UInt64);
    assert_eq!(unified(&[narrow, large(u64::MAX)]).0, DataType::Decimal128(20, 0));
}

#[test]
fn whole_floating_point_numbers_are_integers_beside_integers_and_only_there() {
    assert_eq!(unified(&[floats(&[1.0, 2.0])]).0, DataType::Float64);
    assert_eq!(unified(&[integers(&[1 << 60]), floats(&[1.0])]).0, DataType::Int64);
    assert_eq!(unified(&[integers(&[1]), floats(&[0.5])]).0, DataType::Float64);
    let (kept, conflicts) = unified(&[integers(&[(1 << 53) + 1]), floats(&[0.5])]);
    assert_eq!((kept, conflicts), (DataType::Utf8, vec!["a: integer, float".to_owned()]));
    assert_eq!(
        unified(&[integers(&[1]), floats(&[f64::NAN])]).0,
        DataType::Float64,
        "NaN is no integer"
    );
    assert_eq!(
        unified(&[integers(&[1]), floats(&[-0.0])]).0,
        DataType::Float64,
        "no integer is a negative zero"
    );
}

#[test]
fn decimals_take_the_digits_that_hold_all() {
    let decimal = |value, precision, scale| -> ArrayRef {
        let array = Decimal128Array::from(vec![value]).with_precision_and_scale(precision, scale);
        Arc::new(array.expect("it fits"))
    };
    assert_eq!(unified(&[decimal(150, 3, 2), decimal(12_345, 5, 0)]).0, DataType::Decimal128(7, 2));
    assert_eq!(unified(&[decimal(150, 3, 2), integers(&[12_345])]).0, DataType::Decimal128(7, 2));
    assert_eq!(unified(&[decimal(1, 38, 38), decimal(1, 38, 0)]).0, DataType::Decimal256(76, 38));
    assert_eq!(unified(&[decimal(150, 3, 2), floats(&[0.1])]).1, ["a: decimal, float"]);
}

#[test]
fn times_keep_their_instants() {
    let micro =
        |zone: Option<&str>| DataType::Timestamp(TimeUnit::Microsecond, zone.map(Into::into));
    let (berlin, lisbon) = (instant(Some("Europe/Berlin")), instant(Some("Europe/Lisbon")));
    assert_eq!(unified(&[berlin.clone(), berlin.clone()]).0, micro(Some("Europe/Berlin")));
    assert_eq!(unified(&[berlin.clone(), lisbon]).0, micro(Some("UTC")));
    assert_eq!(unified(&[berlin, instant(None)]).1, ["a: time with zone, time without zone"]);
    let day: ArrayRef = Arc::new(Date32Array::from(vec![19_000]));
    assert_eq!(unified(&[day, instant(None)]).0, micro(None));
    let fine: ArrayRef = Arc::new(TimestampNanosecondArray::from(vec![1]));
    let far: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![250_000_000_000_000_000]));
    let nanoseconds = DataType::Timestamp(TimeUnit::Nanosecond, None);
    assert_eq!(unified(&[fine.clone(), instant(None)]).0, nanoseconds);
    assert_eq!(
        unified(&[fine, far]).1,
        ["a: time without zone"],
        "nanoseconds do not reach the year 9892"
    );
}

#[test]
fn lists_and_records_unify_part_by_part() {
    assert_eq!(
        unified(&[list(nothing(0)), list(texts(&["a"]))]).0,
        DataType::new_list(DataType::Utf8, true)
    );
    let (kept, conflicts) = unified(&[list(integers(&[7])), list(texts(&["a"]))]);
    assert_eq!(
        (kept, conflicts),
        (DataType::new_list(DataType::Utf8, true), vec!["a[]: integer, text".to_owned()])
    );
    let left = record(&[("x", integers(&[1])), ("y", list(nothing(0)))]);
    let right = record(&[("y", list(record(&[("z", texts(&["t"]))]))), ("w", floats(&[0.5]))]);
    let DataType::Struct(fields) = unified(&[left.clone(), right]).0 else { panic!("no record") };
    let found: Vec<String> =
        fields.iter().map(|field| format!("{}: {}", field.name(), field.data_type())).collect();
    assert_eq!(found, ["x: Int64", "y: List(Struct(\"z\": Utf8))", "w: Float64"]);
    assert_eq!(unified(&[left, integers(&[1])]).1, ["a: dictionary, integer"]);
}

#[test]
fn missing_values_have_no_type() {
    assert_eq!(unified(&[nothing(2), integers(&[1])]).0, DataType::Int64);
    let all_missing: ArrayRef = Arc::new(Float64Array::from(vec![None, None]));
    assert_eq!(unified(&[all_missing.clone(), texts(&["a"])]), (DataType::Utf8, vec![]));
    assert_eq!(unified(&[all_missing]).0, DataType::Float64);
    assert_eq!(unified(&[nothing(2)]), (DataType::Utf8, vec![]), "readers want some type");
}

fn any_array() -> impl Strategy<Value = ArrayRef> {
    prop_oneof![
        prop::collection::vec(any::<Option<i64>>(), 0..3)
            .prop_map(|v| Arc::new(Int64Array::from(v)) as ArrayRef),
        prop::collection::vec(-9i64..9, 0..3).prop_map(|v| integers(&v)),
        prop::collection::vec(any::<u64>(), 0..3)
            .prop_map(|v| Arc::new(UInt64Array::from(v)) as ArrayRef),
        prop::collection::vec(prop_oneof![Just(0.5), Just(3.0), Just(1e300)], 0..3)
            .prop_map(|v| floats(&v)),
        prop::collection::vec(any::<bool>(), 0..2)
            .prop_map(|v| Arc::new(BooleanArray::from(v)) as ArrayRef),
        Just(texts(&["a"])),
        Just(nothing(1)),
        Just(instant(None)),
        Just(instant(Some("UTC"))),
        (-9i64..9).prop_map(|value| list(integers(&[value]))),
        Just(list(floats(&[0.5]))),
        Just(record(&[("x", integers(&[1]))])),
    ]
}

proptest! {
    #[test]
    fn type_does_not_depend_on_the_order_of_mini_batches(arrays in prop::collection::vec(any_array(), 0..5)) {
        let (kept, conflicts) = unified(&arrays);
        let mut reversed = arrays.clone();
        reversed.reverse();
        let (other, others) = unified(&reversed);
        prop_assert_eq!(&kept, &other);
        prop_assert_eq!(conflicts.len(), others.len());
        for array in &arrays {
            let from = Field::new("a", array.data_type().clone(), true);
            let to = Field::new("a", kept.clone(), true);
            let conformed = crate::output::conform::conform(array, &from, &to).expect("no value is lost");
            prop_assert_eq!(conformed.data_type(), &kept);
            prop_assert_eq!(conformed.logical_null_count(), array.logical_null_count());
        }
    }
}
