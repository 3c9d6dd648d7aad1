//! Parquet with the columns of `result_schema`.

use arrow::array::{BinaryArray, Date32Array, ListArray, TimestampMicrosecondArray};
use arrow::datatypes::Int64Type;
use protocol::{ColumnKind, ResultColumn};

use super::*;

#[tokio::test]
async fn parquet_has_the_declared_columns() {
    use ColumnKind::{Boolean, Date, Integer, Number, String, Timestamp};
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.0), Some(f64::NAN)]));
    let texts = |texts: [&str; 2]| -> ArrayRef { Arc::new(StringArray::from(texts.to_vec())) };
    let mut job = parquet_job(vec![
        (
            0,
            RowSource::Inline(stream(vec![
                ("day", texts(["2026-01-31", "1969-12-31"])),
                ("count", floats),
                ("at", texts(["1970-01-01T00:00:01", "1970-01-01T02:00:00+02:00"])),
            ])),
        ),
        (
            1,
            RowSource::Inline(stream(vec![
                ("total", integers(vec![7, 8])),
                ("count", integers(vec![2, 3])),
            ])),
        ),
    ])
    .await;
    let declared = [
        ("count", Integer),
        ("total", Number),
        ("at", Timestamp),
        ("day", Date),
        ("ok", Boolean),
        ("s", String),
    ];
    let column = |(name, kind): (&str, ColumnKind)| ResultColumn {
        name: name.to_owned(),
        kind,
        nullable: true,
    };
    job.output.row_schema = Some(ResultSchema::Columns(declared.map(column).to_vec()));
    let rows = read_parquet(&job.write().await.expect("written").path);
    let found: Vec<_> = rows
        .schema()
        .fields()
        .iter()
        .map(|field| format!("{} {}", field.name(), field.data_type()))
        .collect();
    assert_eq!(
        found,
        ["count Int64", "total Float64", "at Timestamp(µs)", "day Date32", "ok Boolean", "s Utf8"]
    );
    let counts: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(2), Some(3)]));
    let totals: ArrayRef = Arc::new(Float64Array::from(vec![None, None, Some(7.0), Some(8.0)]));
    let instants: ArrayRef =
        Arc::new(TimestampMicrosecondArray::from(vec![Some(1_000_000), Some(0), None, None]));
    let days: ArrayRef = Arc::new(Date32Array::from(vec![Some(20_484), Some(-1), None, None]));
    assert_eq!(rows.columns()[..4], [counts, totals, instants, days]);
}

#[tokio::test]
async fn declared_instants_of_several_zones_are_those_of_utc() {
    let in_zone = |zone: &str| -> ArrayRef {
        Arc::new(TimestampMicrosecondArray::from(vec![7_000_000]).with_timezone(zone.to_owned()))
    };
    let results = ["Europe/Berlin", "Europe/Lisbon"]
        .map(in_zone)
        .map(|at| RowSource::Inline(stream(vec![("at", at)])));
    let mut job = parquet_job((0..).zip(results).collect()).await;
    let column =
        ResultColumn { name: "at".to_owned(), kind: ColumnKind::Timestamp, nullable: false };
    job.output.row_schema = Some(ResultSchema::Columns(vec![column]));
    let rows = read_parquet(&job.write().await.expect("written").path);
    let expected: ArrayRef =
        Arc::new(TimestampMicrosecondArray::from(vec![7_000_000, 7_000_000]).with_timezone("UTC"));
    assert_eq!(rows.columns(), [expected]);
}

#[tokio::test]
async fn values_of_any_without_a_common_type_are_texts() {
    let values: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from(vec!["a"])),
        Arc::new(BinaryArray::from_vec(vec![b"b"])),
        Arc::new(BinaryArray::from_vec(vec![b"\xff\x01"])),
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([Some([Some(1), None])])),
        integers(vec![7]),
    ];
    let results = values.into_iter().map(|any| RowSource::Inline(stream(vec![("any", any)])));
    let mut job = parquet_job((0..).zip(results).collect()).await;
    let column = ResultColumn { name: "any".to_owned(), kind: ColumnKind::Any, nullable: false };
    job.output.row_schema = Some(ResultSchema::Columns(vec![column]));
    let rows = read_parquet(&job.write().await.expect("written").path);
    let expected: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "/wE=", "[1, null]", "7"]));
    assert_eq!(rows.columns(), [expected]);
}
