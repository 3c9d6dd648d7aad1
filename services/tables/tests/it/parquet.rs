//! Row groups of Parquet, and parts of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, DictionaryArray, Int64Array, IntervalDayTimeArray, ListArray, RecordBatch,
    StringArray, TimestampMicrosecondArray, UInt64Array,
};
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, IntervalDayTime, Schema};
use base64::Engine;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;
use protocol::{Block, BlockRange, ItemPath, TableFormat, TableOptions};
use tables::{DecodeRequest, Decoded, Error, LocalBlock, Result};

use crate::support::{Folder, values};

fn options() -> TableOptions {
    TableOptions { format: TableFormat::Parquet, ..TableOptions::default() }
}

/// 25 rows in groups of 10, with the types that pandas and others write.
fn write(folder: &Folder) -> PathBuf {
    let numbers: ArrayRef =
        Arc::new(Int64Array::from_iter((0..25).map(|row| (row != 13).then_some(row))));
    let texts: ArrayRef =
        Arc::new(StringArray::from_iter((0..25).map(|row| (row != 3).then(|| format!("t{row}")))));
    let categories: DictionaryArray<Int32Type> =
        (0..25).map(|row| if row % 2 == 0 { "even" } else { "odd" }).collect();
    let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from_iter_values(0..25));
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(
        (0..25).map(|row| Some(vec![Some(row), None])),
    ));
    let columns = vec![numbers, texts, Arc::new(categories) as ArrayRef, times, lists];
    let names = ["number", "text", "category", "time", "list"];
    let fields: Vec<_> = names
        .iter()
        .zip(&columns)
        .map(|(name, array)| Field::new(*name, array.data_type().clone(), true))
        .collect();
    let metadata: std::collections::HashMap<_, _> =
        [("pandas".to_owned(), "{\"index_columns\": [\"number\"]}".to_owned())].into();
    let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
    let batch = RecordBatch::try_new(schema, columns).expect("columns match");
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(10)).build();
    folder.parquet("data.parquet", &batch, properties)
}

fn decode(path: &Path, row_group: u32, offset: u64, rows: u64) -> Result<Decoded> {
    let range = BlockRange::RowGroup { row_group, offset, rows };
    let block = Block {
        path: ItemPath::from(path),
        version: None,
        range,
        path_columns: vec![("Store".into(), "007".into())],
    };
    let blocks = [LocalBlock { block: &block, path, has_holes: false }];
    tables::decode(&DecodeRequest {
        blocks: &blocks,
        options: &options(),
        schema: None,
        with_lines: false,
    })
}

fn numbers(decoded: &Decoded) -> Vec<String> {
    values(decoded.batch.column(0))
}

#[test]
fn required_columns_are_read_like_others() {
    let folder = Folder::new();
    let numbers_of_file: ArrayRef = Arc::new(Int64Array::from_iter_values(0..4));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(["a", "b", "c", "d"]));
    let fields = vec![
        Field::new("number", DataType::Int64, false),
        Field::new("text", DataType::Utf8, false),
    ];
    let schema = Arc::new(Schema::new(fields));
    let batch = RecordBatch::try_new(schema, vec![numbers_of_file, texts]).expect("columns match");
    let path = folder.parquet("required.parquet", &batch, WriterProperties::default());
    let decoded = decode(&path, 0, 1, 2).expect("readable");
    assert_eq!(numbers(&decoded), ["1", "2"]);
    assert_eq!(values(decoded.batch.column(1)), ["b", "c"]);
}

#[test]
fn intervals_whose_months_would_be_lost_are_refused() {
    let folder = Folder::new();
    let intervals: ArrayRef =
        Arc::new(IntervalDayTimeArray::from(vec![IntervalDayTime::new(3, 5_000)]));
    let number: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let batch = RecordBatch::try_from_iter([("interval", intervals), ("number", number)])
        .expect("equal lengths");
    let path = folder.path("intervals.parquet");
    let file = std::fs::File::create(&path).expect("the folder is writable");
    // Other programs do not say that there are no months.
    let options = ArrowWriterOptions::new().with_skip_arrow_metadata(true);
    let mut writer =
        ArrowWriter::try_new_with_options(file, batch.schema(), options).expect("types of Parquet");
    writer.write(&batch).expect("writable");
    writer.close().expect("writable");
    let error = decode(&path, 0, 0, 1).expect_err("months").to_string();
    assert!(
        error.contains("has intervals in column \"interval\", whose months are not read"),
        "{error}"
    );
    let range = BlockRange::RowGroup { row_group: 0, offset: 0, rows: 1 };
    let block = Block { path: ItemPath::from(&*path), version: None, range, path_columns: vec![] };
    let blocks = [LocalBlock { block: &block, path: &path, has_holes: false }];
    let options = TableOptions { columns: vec!["number".to_owned()], ..self::options() };
    let request =
        DecodeRequest { blocks: &blocks, options: &options, schema: None, with_lines: false };
    assert_eq!(numbers(&tables::decode(&request).expect("another column")), ["1"]);
}

#[test]
fn whole_numbers_that_pandas_rounds_are_reported() {
    const BEYOND: i64 = (1 << 53) + 1;
    let folder = Folder::new();
    let columns: Vec<(&str, ArrayRef)> = vec![
        (
            "id",
            Arc::new(Int64Array::from(vec![
                Some(7),
                Some(BEYOND),
                None,
                Some(-BEYOND),
                Some(BEYOND + 1),
            ])),
        ),
        (
            "big",
            Arc::new(UInt64Array::from(vec![
                None,
                Some(u64::MAX),
                Some(1 << 60),
                Some(3),
                Some(4),
            ])),
        ),
        ("complete", Arc::new(Int64Array::from(vec![BEYOND; 5]))),
        ("small", Arc::new(Int64Array::from(vec![None, Some(1), Some(2), Some(3), Some(4)]))),
    ];
    let batch = RecordBatch::try_from_iter(columns).expect("columns match");
    let path = folder.parquet("ids.parquet", &batch, WriterProperties::default());
    let decoded = decode(&path, 0, 0, 5).expect("readable");
    let file = path.display();
    let reported: Vec<_> =
        decoded.warnings_of_pandas.kinds.iter().map(ToString::to_string).collect();
    assert_eq!(
        reported,
        [
            format!(
                "column \"id\": more digits than float64 holds, rounded (2 times; first: {file}, row group 0, row 2: \
                 \"9007199254740993\"); to keep them, set columns: {{id: string}}"
            ),
            format!(
                "column \"big\": more digits than float64 holds, rounded (once: {file}, row group 0, row 2: \
                 \"18446744073709551615\"); to keep them, set columns: {{big: string}}"
            ),
        ]
    );
    assert_eq!(
        (
            decoded.warnings_of_pandas.total,
            decoded.warnings_of_pandas.first.len(),
            decoded.warnings.total
        ),
        (3, 3, 0)
    );
    let first = format!(
        "{file}, row group 0, row 2, column \"id\": 9007199254740993 is rounded to 9007199254740992 because other values of \
         the column are missing"
    );
    assert_eq!(decoded.warnings_of_pandas.first[0].message, first);
    assert_eq!(
        decode(&path, 0, 3, 2).expect("readable").warnings.total,
        0,
        "no value of these rows is missing"
    );
}

#[test]
fn row_groups_and_parts_of_them_are_read() {
    let folder = Folder::new();
    let path = write(&folder);
    assert_eq!(tables::parquet_row_groups(&path).expect("readable"), [10, 10, 5]);
    assert_eq!(
        numbers(&decode(&path, 0, 0, 10).expect("readable")),
        (0..10).map(|row| row.to_string()).collect::<Vec<_>>()
    );
    assert_eq!(numbers(&decode(&path, 1, 2, 3).expect("readable")), ["12", "-", "14"]);
    assert_eq!(decode(&path, 2, 0, 5).expect("readable").rows, 5);
    let groups = (0..).zip(tables::parquet_row_groups(&path).expect("readable"));
    let rows: Vec<u64> = groups
        .flat_map(|(group, rows)| tables::split_row_group(group, 0, rows, 4))
        .map(|range| match range {
            BlockRange::RowGroup { row_group, offset, rows } => {
                decode(&path, row_group, offset, rows).expect("readable").rows
            }
            other => panic!("{other:?} of a Parquet file"),
        })
        .collect();
    assert_eq!(rows, [4, 4, 2, 4, 4, 2, 4, 1]);
}

#[test]
fn types_are_those_of_the_file() {
    let folder = Folder::new();
    let path = write(&folder);
    assert_eq!(
        tables::infer_schema([path.as_path()], &options(), &[]).expect("nothing to do"),
        None
    );
    let decoded = decode(&path, 0, 2, 2).expect("readable");
    let schema = decoded.batch.schema();
    let types: Vec<_> = schema.fields().iter().map(|field| field.data_type().to_string()).collect();
    assert_eq!(types[..4], ["Int64", "LargeUtf8", "Dictionary(Int32, Utf8)", "Timestamp(µs)"]);
    assert!(matches!(schema.field(4).data_type(), DataType::List(_)));
    assert_eq!(values(decoded.batch.column(1)), ["t2", "-"]);
    assert_eq!(values(decoded.batch.column(2)), ["even", "odd"]);
    assert_eq!(
        (schema.field(5).name().as_str(), values(decoded.batch.column(5))),
        ("Store", vec!["007".into(); 2])
    );
    let declared = schema.metadata().get("ARROW:schema").expect("what the file says");
    let declared = base64::prelude::BASE64_STANDARD.decode(declared).expect("base64");
    let declared = arrow::ipc::convert::try_schema_from_ipc_buffer(&declared).expect("a schema");
    let types: Vec<_> =
        declared.fields().iter().map(|field| field.data_type().to_string()).collect();
    assert_eq!(types[..4], ["Int64", "Utf8", "Dictionary(Int32, Utf8)", "Timestamp(µs)"]);
    let piece = decode(&path, 1, 2, 5).expect("readable");
    assert_eq!(
        piece.batch.schema().metadata().get("gristmill.places").map(String::as_str),
        Some("12 5")
    );
}

#[test]
fn dictionary_of_a_whole_row_group_is_kept() {
    let folder = Folder::new();
    let path = write(&folder);
    let whole = decode(&path, 0, 0, 10).expect("readable");
    let text = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    assert_eq!(
        [whole.batch.column(1).data_type(), whole.batch.column(2).data_type()],
        [&text, &text]
    );
    let piece = decode(&path, 0, 0, 9).expect("readable");
    assert_eq!(
        *piece.batch.column(1).data_type(),
        DataType::LargeUtf8,
        "a piece would bring all of the dictionary"
    );
    for column in [1, 2] {
        assert_eq!(values(whole.batch.column(column))[..9], values(piece.batch.column(column)));
    }
    assert_eq!(values(whole.batch.column(1))[2..5], ["t2", "-", "t4"]);
}

#[test]
fn text_without_dictionary_is_read() {
    let folder = Folder::new();
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(["a", "b", "a"]));
    let batch = RecordBatch::try_from_iter([("text", texts)]).expect("one column");
    let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
    let path = folder.parquet("plain.parquet", &batch, properties);
    let decoded = decode(&path, 0, 0, 3).expect("readable");
    assert_eq!(*decoded.batch.column(0).data_type(), DataType::LargeUtf8);
    assert_eq!(values(decoded.batch.column(0)), ["a", "b", "a"]);
}

#[test]
fn several_blocks_are_one_table() {
    let folder = Folder::new();
    let path = write(&folder);
    let blocks = [(0, "x"), (2, "y")].map(|(row_group, store)| Block {
        path: ItemPath::from(path.as_path()),
        version: None,
        range: BlockRange::RowGroup { row_group, offset: 0, rows: 5 },
        path_columns: vec![("Store".into(), store.into())],
    });
    let local = blocks.each_ref().map(|block| LocalBlock { block, path: &path, has_holes: false });
    let decoded = tables::decode(&DecodeRequest {
        blocks: &local,
        options: &options(),
        schema: None,
        with_lines: false,
    })
    .expect("readable");
    assert_eq!(numbers(&decoded), ["0", "1", "2", "3", "4", "20", "21", "22", "23", "24"]);
    assert_eq!(values(decoded.batch.column(5))[4..6], ["x", "y"]);
}

#[test]
fn column_that_cannot_be_read_is_named() {
    let folder = Folder::new();
    let path = write(&folder);
    let mut bytes = std::fs::read(&path).expect("written before");
    let footer = parquet::file::metadata::ParquetMetaDataReader::new()
        .parse_and_finish(&std::fs::File::open(&path).expect("written before"));
    let (start, length) = footer.expect("valid").row_group(1).column(1).byte_range();
    bytes[start as usize..(start + length) as usize].fill(0xff);
    std::fs::write(&path, bytes).expect("writable");
    decode(&path, 0, 0, 10).expect("another row group");
    let error = decode(&path, 1, 0, 10).expect_err("damaged").to_string();
    assert!(
        error.contains("data.parquet") && error.contains("row group 1, column \"text\""),
        "{error}"
    );
}

#[test]
fn missing_value_in_a_path_is_missing() {
    let folder = Folder::new();
    let path = write(&folder);
    let range = BlockRange::RowGroup { row_group: 0, offset: 0, rows: 1 };
    let block = |value: &str| Block {
        path: ItemPath::from(path.as_path()),
        version: None,
        range,
        path_columns: vec![("city".to_owned(), value.to_owned())],
    };
    let blocks = ["__HIVE_DEFAULT_PARTITION__", "", "Rome"].map(block);
    let local = blocks.each_ref().map(|block| LocalBlock { block, path: &path, has_holes: false });
    let decoded = tables::decode(&DecodeRequest {
        blocks: &local,
        options: &options(),
        schema: None,
        with_lines: false,
    });
    let batch = decoded.expect("readable").batch;
    let cities = batch.column_by_name("city").expect("from the path").as_string::<i64>().iter();
    assert_eq!(cities.collect::<Vec<_>>(), [None, Some(""), Some("Rome")]);
}

#[test]
fn outdated_plan_is_reported() {
    let folder = Folder::new();
    let path = write(&folder);
    for (row_group, offset, rows) in [(3, 0, 1), (0, 5, 6), (0, u64::MAX, 1)] {
        let error = decode(&path, row_group, offset, rows).expect_err("beyond the file");
        assert!(matches!(error, Error::Plan { .. }), "{error}");
    }
}

#[test]
fn corrupt_file_is_named() {
    let folder = Folder::new();
    let whole = std::fs::read(write(&folder)).expect("just written");
    for content in [
        &b""[..],
        b"PAR1",
        b"not Parquet at all",
        &whole[..whole.len() - 1],
        &whole[whole.len() / 2..],
    ] {
        let path = folder.file("corrupt.parquet", content);
        for error in [decode(&path, 0, 0, 10).err(), tables::parquet_row_groups(&path).err()] {
            let error = error.expect("corrupt");
            assert!(matches!(error, Error::Malformed { .. }), "{error}");
            assert!(error.to_string().contains("corrupt.parquet"), "{error}");
        }
    }
}

proptest! {
    #[test]
    fn damaged_bytes_cause_an_error_or_other_values_but_no_crash(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)
    ) {
        let folder = Folder::new();
        let path = write(&folder);
        let mut bytes = std::fs::read(&path).expect("just written");
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        std::fs::write(&path, bytes).expect("writable");
        for row_group in 0..3 {
            let _ = decode(&path, row_group, 0, 5);
        }
    }
}
